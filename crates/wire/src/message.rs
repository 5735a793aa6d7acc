//! Appends messages to a buffer.

use crate::{Severity, Sqlstate};

/// Appends a message whose payload `fill` writes.
pub fn message(out: &mut Vec<u8>, tag: u8, fill: impl FnOnce(&mut Vec<u8>)) {
    out.push(tag);
    let at = out.len();
    out.extend([0; 4]);
    fill(out);
    // Payloads made by this process are far below 4 GiB.
    let length = (out.len() - at) as u32;
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

/// Appends the header of a message. The caller appends the `payload` bytes of the payload separately.
pub fn header(out: &mut Vec<u8>, tag: u8, payload: usize) {
    out.push(tag);
    out.extend(((payload + 4) as u32).to_be_bytes());
}

fn cstr(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(text);
    out.push(0);
}

/// Transaction status in `ReadyForQuery`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// No transaction.
    Idle = b'I',
    /// In a transaction.
    Transaction = b'T',
    /// In a failed transaction.
    Failed = b'E',
}

impl Status {
    /// Decodes the byte on the wire.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Status> {
        match byte {
            b'I' => Some(Status::Idle),
            b'T' => Some(Status::Transaction),
            b'E' => Some(Status::Failed),
            _ => None,
        }
    }
}

// === to a client ===

/// Appends `ErrorResponse`. `hint` may be empty.
pub fn error(out: &mut Vec<u8>, severity: Severity, code: Sqlstate, text: &str, hint: &str) {
    error_with_detail(out, severity, code, text, "", hint);
}

/// Appends `ErrorResponse` with a detail. `detail` and `hint` may be empty.
pub fn error_with_detail(out: &mut Vec<u8>, severity: Severity, code: Sqlstate, text: &str, detail: &str, hint: &str) {
    message(out, b'E', |out| {
        for (field, value) in [
            (b'S', severity.as_str().as_bytes()),
            (b'V', severity.as_str().as_bytes()),
            (b'C', &code.0),
            (b'M', text.as_bytes()),
            (b'D', detail.as_bytes()),
            (b'H', hint.as_bytes()),
        ] {
            if !value.is_empty() {
                out.push(field);
                // A NUL would end the field early, and the rest would be misread.
                out.extend(value.iter().map(|&b| if b == 0 { b'?' } else { b }));
                out.push(0);
            }
        }
        out.push(0);
    });
}

/// Appends `NoticeResponse` of severity NOTICE.
pub fn notice(out: &mut Vec<u8>, text: &str) {
    message(out, b'N', |out| {
        out.extend(b"SNOTICE\0VNOTICE\0C00000\0M");
        // A zero byte would end the text.
        out.extend(text.bytes().filter(|&b| b != 0));
        out.extend([0, 0]);
    });
}

/// Appends `NoticeResponse` of severity WARNING.
pub fn warning(out: &mut Vec<u8>, code: Sqlstate, text: &str) {
    let at = out.len();
    error(out, Severity::Error, code, text, "");
    // The layout is the same; tag and severity differ.
    let payload = out.split_off(at + crate::HEADER);
    out.truncate(at);
    let rest = payload.splitn(3, |&b| b == 0).nth(2).unwrap_or_default();
    message(out, b'N', |out| {
        out.extend(b"SWARNING\0VWARNING\0");
        out.extend(rest);
    });
}

/// Appends `ReadyForQuery`.
pub fn ready(out: &mut Vec<u8>, status: Status) {
    out.extend([b'Z', 0, 0, 0, 5, status as u8]);
}

/// Appends `CommandComplete`.
pub fn complete(out: &mut Vec<u8>, tag: &str) {
    message(out, b'C', |out| cstr(out, tag.as_bytes()));
}

/// Appends a message without a payload: `ParseComplete` (`1`), `BindComplete` (`2`), `CloseComplete` (`3`), `NoData` (`n`), `EmptyQueryResponse`
/// (`I`), `Sync` (`S`), `Terminate` (`X`), …
pub fn empty(out: &mut Vec<u8>, tag: u8) {
    out.extend([tag, 0, 0, 0, 4]);
}

/// Appends `AuthenticationOk`.
pub fn authentication_ok(out: &mut Vec<u8>) {
    message(out, b'R', |out| out.extend(0u32.to_be_bytes()));
}

/// Appends `AuthenticationMD5Password`.
pub fn authentication_md5(out: &mut Vec<u8>, salt: [u8; 4]) {
    message(out, b'R', |out| {
        out.extend(5u32.to_be_bytes());
        out.extend(salt);
    });
}

/// Appends `AuthenticationCleartextPassword`.
pub fn authentication_cleartext(out: &mut Vec<u8>) {
    message(out, b'R', |out| out.extend(3u32.to_be_bytes()));
}

/// Appends `AuthenticationGSS`, which requests a GSSAPI token.
pub fn authentication_gss(out: &mut Vec<u8>) {
    message(out, b'R', |out| out.extend(7u32.to_be_bytes()));
}

/// Appends `AuthenticationGSSContinue` with a token.
pub fn authentication_gss_continue(out: &mut Vec<u8>, token: &[u8]) {
    message(out, b'R', |out| {
        out.extend(8u32.to_be_bytes());
        out.extend_from_slice(token);
    });
}

/// Appends `AuthenticationSASL` with these mechanisms.
pub fn authentication_sasl(out: &mut Vec<u8>, mechanisms: &[&str]) {
    message(out, b'R', |out| {
        out.extend(10u32.to_be_bytes());
        for mechanism in mechanisms {
            cstr(out, mechanism.as_bytes());
        }
        out.push(0);
    });
}

/// Appends `AuthenticationSASLContinue`.
pub fn authentication_sasl_continue(out: &mut Vec<u8>, data: &[u8]) {
    message(out, b'R', |out| {
        out.extend(11u32.to_be_bytes());
        out.extend(data);
    });
}

/// Appends `AuthenticationSASLFinal`.
pub fn authentication_sasl_final(out: &mut Vec<u8>, data: &[u8]) {
    message(out, b'R', |out| {
        out.extend(12u32.to_be_bytes());
        out.extend(data);
    });
}

/// Appends `ParameterStatus`.
pub fn parameter_status(out: &mut Vec<u8>, name: &str, value: &str) {
    message(out, b'S', |out| {
        cstr(out, name.as_bytes());
        cstr(out, value.as_bytes());
    });
}

/// Appends `BackendKeyData`.
pub fn backend_key(out: &mut Vec<u8>, pid: u32, secret: &[u8]) {
    message(out, b'K', |out| {
        out.extend(pid.to_be_bytes());
        out.extend(secret);
    });
}

/// Appends `NegotiateProtocolVersion`: the newest version that the sender supports, and the options that it does not know.
pub fn negotiate_version(out: &mut Vec<u8>, newest: u32, unknown: &[&[u8]]) {
    message(out, b'v', |out| {
        out.extend(newest.to_be_bytes());
        out.extend((unknown.len() as u32).to_be_bytes());
        for name in unknown {
            cstr(out, name);
        }
    });
}

/// A column of a `RowDescription`, in text format and of no table.
#[derive(Debug, Clone, Copy)]
pub struct Column<'a> {
    /// Name.
    pub name: &'a str,
    /// OID of the type.
    pub kind: u32,
    /// Size of the type in bytes; -1 if it varies.
    pub size: i16,
}

/// Appends `RowDescription`.
pub fn row_description(out: &mut Vec<u8>, columns: &[Column<'_>]) {
    message(out, b'T', |out| {
        out.extend((columns.len() as u16).to_be_bytes());
        for column in columns {
            cstr(out, column.name.as_bytes());
            out.extend([0; 6]);
            out.extend(column.kind.to_be_bytes());
            out.extend(column.size.to_be_bytes());
            out.extend((-1i32).to_be_bytes());
            out.extend([0; 2]);
        }
    });
}

/// Appends `DataRow`; None is NULL.
pub fn data_row(out: &mut Vec<u8>, values: &[Option<&[u8]>]) {
    message(out, b'D', |out| {
        out.extend((values.len() as u16).to_be_bytes());
        for value in values {
            match value {
                Some(value) => {
                    out.extend((value.len() as u32).to_be_bytes());
                    out.extend(*value);
                }
                None => out.extend((-1i32).to_be_bytes()),
            }
        }
    });
}

/// Appends `RowDescription` and one `DataRow` of text columns.
pub fn text_row(out: &mut Vec<u8>, columns: &[(&str, &str)]) {
    let description: Vec<_> = columns.iter().map(|(name, _)| Column { name, kind: 25, size: -1 }).collect();
    row_description(out, &description);
    let values: Vec<_> = columns.iter().map(|(_, value)| Some(value.as_bytes())).collect();
    data_row(out, &values);
}

// === to a server ===

/// Appends `StartupMessage` of protocol 3.0.
pub fn startup(out: &mut Vec<u8>, parameters: &[(&str, &str)]) {
    let at = out.len();
    out.extend([0; 4]);
    out.extend(crate::startup::V3_0.to_be_bytes());
    for (name, value) in parameters {
        cstr(out, name.as_bytes());
        cstr(out, value.as_bytes());
    }
    out.push(0);
    let length = (out.len() - at) as u32;
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

/// Appends `CancelRequest`.
pub fn cancel(out: &mut Vec<u8>, pid: u32, secret: &[u8]) {
    out.extend(((12 + secret.len()) as u32).to_be_bytes());
    out.extend((1234u32 << 16 | 5678).to_be_bytes());
    out.extend(pid.to_be_bytes());
    out.extend(secret);
}

/// Appends `NotificationResponse`.
pub fn notification(out: &mut Vec<u8>, pid: u32, channel: &[u8], payload: &[u8]) {
    message(out, b'A', |out| {
        out.extend_from_slice(&pid.to_be_bytes());
        out.extend_from_slice(channel);
        out.push(0);
        out.extend_from_slice(payload);
        out.push(0);
    });
}

/// Appends `Query`.
pub fn query(out: &mut Vec<u8>, text: &str) {
    message(out, b'Q', |out| cstr(out, text.as_bytes()));
}

/// Appends `Parse`; `types` is the count and the type OIDs, as on the wire.
pub fn parse(out: &mut Vec<u8>, name: &[u8], text: &[u8], types: &[u8]) {
    message(out, b'P', |out| {
        cstr(out, name);
        cstr(out, text);
        out.extend(types);
    });
}

/// Appends `Bind` of a prepared statement without parameters, with results in text format.
pub fn bind(out: &mut Vec<u8>, portal: &[u8], statement: &[u8]) {
    message(out, b'B', |out| {
        cstr(out, portal);
        cstr(out, statement);
        // Counts of parameter formats, parameters and result formats.
        out.extend([0; 6]);
    });
}

/// Appends `Execute` of a portal, without a limit on rows.
pub fn execute(out: &mut Vec<u8>, portal: &[u8]) {
    message(out, b'E', |out| {
        cstr(out, portal);
        out.extend([0; 4]);
    });
}

/// Appends `Close` of a prepared statement.
pub fn close_statement(out: &mut Vec<u8>, name: &[u8]) {
    message(out, b'C', |out| {
        out.push(b'S');
        cstr(out, name);
    });
}

/// Appends `Close` of a portal.
pub fn close_portal(out: &mut Vec<u8>, name: &[u8]) {
    message(out, b'C', |out| {
        out.push(b'P');
        cstr(out, name);
    });
}

/// Appends `Describe` of a prepared statement.
pub fn describe_statement(out: &mut Vec<u8>, name: &[u8]) {
    message(out, b'D', |out| {
        out.push(b'S');
        cstr(out, name);
    });
}

/// Appends `SSLRequest`.
pub fn ssl_request(out: &mut Vec<u8>) {
    out.extend(8u32.to_be_bytes());
    out.extend(crate::startup::SSL.to_be_bytes());
}

/// Appends `PasswordMessage`.
pub fn password(out: &mut Vec<u8>, password: &str) {
    message(out, b'p', |out| cstr(out, password.as_bytes()));
}

/// Appends `SASLInitialResponse`.
pub fn sasl_initial(out: &mut Vec<u8>, mechanism: &str, data: &[u8]) {
    message(out, b'p', |out| {
        cstr(out, mechanism.as_bytes());
        out.extend((data.len() as u32).to_be_bytes());
        out.extend(data);
    });
}

/// Appends `SASLResponse`.
pub fn sasl_response(out: &mut Vec<u8>, data: &[u8]) {
    message(out, b'p', |out| out.extend(data));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Frame, payload};

    #[test]
    fn written_messages_are_read_back() {
        let mut out = Vec::new();
        error(&mut out, Severity::Fatal, Sqlstate::INVALID_PASSWORD, "a\0b", "do this");
        let frame = Frame::read(&out).unwrap().unwrap();
        assert_eq!((frame.tag, frame.total()), (b'E', out.len()));
        assert_eq!(payload::sqlstate(&out[5..]), Some(Sqlstate::INVALID_PASSWORD));
        assert_eq!(payload::error_field(&out[5..], b'M').unwrap(), b"a?b");
        assert_eq!(payload::error_field(&out[5..], b'H').unwrap(), b"do this");

        out.clear();
        warning(&mut out, Sqlstate::FEATURE_NOT_SUPPORTED, "careful");
        let frame = Frame::read(&out).unwrap().unwrap();
        assert_eq!((frame.tag, frame.total()), (b'N', out.len()));
        assert_eq!(payload::error_field(&out[5..], b'S').unwrap(), b"WARNING");
        assert_eq!(payload::error_field(&out[5..], b'V').unwrap(), b"WARNING");
        assert_eq!(payload::error_field(&out[5..], b'M').unwrap(), b"careful");

        out.clear();
        startup(&mut out, &[("user", "u")]);
        let (read, length) = crate::startup::read(&out).unwrap().unwrap();
        assert_eq!(length, out.len());
        assert!(matches!(read, crate::Startup::Login { version: crate::startup::V3_0, .. }));

        out.clear();
        cancel(&mut out, 9, b"abcd");
        let (read, length) = crate::startup::read(&out).unwrap().unwrap();
        assert_eq!(length, out.len());
        assert_eq!(read, crate::Startup::Cancel { pid: 9, secret: b"abcd" });

        out.clear();
        parse(&mut out, b"n", b"select 1", &[0, 0]);
        assert_eq!(payload::parse(&out[5..]), Some((&b"n"[..], &b"select 1"[..], &[0u8, 0][..])));
    }
}
