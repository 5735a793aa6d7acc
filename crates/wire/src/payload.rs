//! Decoding of single fields of message payloads.

use std::borrow::Cow;

use crate::Sqlstate;

/// Returns the bytes up to the next NUL, and the bytes after it; None if there is no NUL.
#[must_use]
#[inline]
pub fn cstr(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    // Most strings are names, which are short: `memchr` is fast for long texts, but slow to start.
    let end = match bytes.first_chunk::<8>() {
        Some(first) => match first_nul(u64::from_le_bytes(*first)) {
            Some(end) => end,
            None => 8 + memchr::memchr(0, &bytes[8..])?,
        },
        None => bytes.iter().position(|byte| *byte == 0)?,
    };
    Some((&bytes[..end], &bytes[end + 1..]))
}

/// Returns the index of the first of eight bytes that is 0, counted from the lowest. (Subtracting 1 from each byte sets the highest bit of those that
/// are 0. A borrow only reaches bytes behind the first 0.)
fn first_nul(bytes: u64) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let nuls = bytes.wrapping_sub(ONES) & !bytes & (ONES << 7);
    (nuls != 0).then_some(nuls.trailing_zeros() as usize / 8)
}

/// Decodes the text of a `Query`: the whole payload, without its NUL.
#[must_use]
pub fn text(payload: &[u8]) -> Option<&[u8]> {
    let (&0, text) = payload.split_last()? else { return None };
    memchr::memchr(0, text).is_none().then_some(text)
}

/// Decodes `Parse`: statement name, text, and the declared parameter types as on the wire.
#[must_use]
pub fn parse(payload: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (name, rest) = cstr(payload)?;
    let (text, types) = cstr(rest)?;
    let count = usize::from(u16::from_be_bytes(*types.first_chunk()?));
    (types.len() == 2 + 4 * count).then_some((name, text, types))
}

/// Decodes `Bind`: portal, statement, and the rest, as far as the payload has arrived.
#[must_use]
pub fn bind(payload: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (portal, rest) = cstr(payload)?;
    let (statement, rest) = cstr(rest)?;
    Some((portal, statement, rest))
}

/// Decodes `Execute`: portal, and the maximum number of rows to return (0: all).
#[must_use]
pub fn execute(payload: &[u8]) -> Option<(&[u8], u32)> {
    let (portal, rest) = cstr(payload)?;
    Some((portal, u32::from_be_bytes(rest.try_into().ok()?)))
}

/// Returns the value with this number (from 0) in the rest of a `Bind`. `None` if it is NULL or missing. Its format, text or binary, is not checked.
#[must_use]
pub fn bound_value(rest: &[u8], number: usize) -> Option<&[u8]> {
    let (formats, rest) = rest.split_first_chunk::<2>()?;
    let rest = rest.get(2 * usize::from(u16::from_be_bytes(*formats))..)?;
    let (count, mut rest) = rest.split_first_chunk::<2>()?;
    if number >= usize::from(u16::from_be_bytes(*count)) {
        return None;
    }
    for _ in 0..number {
        let (length, values) = rest.split_first_chunk::<4>()?;
        let length = i32::from_be_bytes(*length);
        rest = values.get(usize::try_from(length).unwrap_or(0)..)?;
    }
    let (length, values) = rest.split_first_chunk::<4>()?;
    values.get(..usize::try_from(i32::from_be_bytes(*length)).ok()?)
}

/// Object of a `Describe` or a `Close`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named<'a> {
    /// A prepared statement.
    Statement(&'a [u8]),
    /// A portal.
    Portal(&'a [u8]),
}

/// Decodes `Describe` and `Close`.
#[must_use]
pub fn named(payload: &[u8]) -> Option<Named<'_>> {
    let (&kind, rest) = payload.split_first()?;
    let (name, rest) = cstr(rest)?;
    match kind {
        b'S' if rest.is_empty() => Some(Named::Statement(name)),
        b'P' if rest.is_empty() => Some(Named::Portal(name)),
        _ => None,
    }
}

/// A column of a `RowDescription`, with the fields that decoding of the rows depends on. (The column's table and its format are omitted.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Column<'a> {
    /// The column's name.
    pub name: &'a [u8],
    /// OID of the type.
    pub kind: u32,
    /// The type modifier; -1: none.
    pub modifier: i32,
}

/// Calls `each` with the columns of a `RowDescription`, in order. `None` if the payload is invalid.
pub fn each_column(payload: &[u8], mut each: impl FnMut(Column<'_>)) -> Option<()> {
    let (count, mut rest) = payload.split_first_chunk::<2>()?;
    for _ in 0..u16::from_be_bytes(*count) {
        let (name, after) = cstr(rest)?;
        // Table (4 bytes) and attribute (2), type (4) and its size (2), modifier (4), format (2).
        let (fixed, after) = after.split_first_chunk::<18>()?;
        let [_, _, _, _, _, _, k1, k2, k3, k4, _, _, m1, m2, m3, m4, _, _] = *fixed;
        each(Column {
            name,
            kind: u32::from_be_bytes([k1, k2, k3, k4]),
            modifier: i32::from_be_bytes([m1, m2, m3, m4]),
        });
        rest = after;
    }
    rest.is_empty().then_some(())
}

/// Returns the message of an `ErrorResponse` or `NoticeResponse`; invalid UTF-8 in it is replaced, and a missing message is empty.
#[must_use]
pub fn error_message(payload: &[u8]) -> Cow<'_, str> {
    error_field(payload, b'M').map(String::from_utf8_lossy).unwrap_or_default()
}

/// Returns the value of this field in an `ErrorResponse` or `NoticeResponse`.
#[must_use]
pub fn error_field(payload: &[u8], field: u8) -> Option<&[u8]> {
    let mut rest = payload;
    loop {
        let (&kind, after) = rest.split_first()?;
        if kind == 0 {
            return None;
        }
        let (value, after) = cstr(after)?;
        if kind == field {
            return Some(value);
        }
        rest = after;
    }
}

/// Returns the SQLSTATE of an `ErrorResponse`.
#[must_use]
pub fn sqlstate(payload: &[u8]) -> Option<Sqlstate> {
    error_field(payload, b'C').and_then(|code| code.try_into().ok()).map(Sqlstate)
}

/// Returns the value of a `DataRow` of one column; None if it is NULL, or the row is malformed or has other columns.
#[must_use]
pub fn only_value(payload: &[u8]) -> Option<&[u8]> {
    let value = payload.strip_prefix(&[0, 1])?;
    let (length, value) = value.split_first_chunk()?;
    (i32::from_be_bytes(*length) == i32::try_from(value.len()).ok()?).then_some(value)
}

/// Decodes `ParameterStatus`: name and value.
#[must_use]
pub fn parameter_status(payload: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, rest) = cstr(payload)?;
    let (value, rest) = cstr(rest)?;
    rest.is_empty().then_some((name, value))
}

/// Decodes `NotificationResponse`: process ID, channel, payload.
pub fn notification(payload: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let (pid, rest) = payload.split_first_chunk()?;
    let (channel, rest) = cstr(rest)?;
    match cstr(rest)? {
        (text, []) => Some((u32::from_be_bytes(*pid), channel, text)),
        _ => None,
    }
}

/// Decodes `BackendKeyData`: process ID and secret.
#[must_use]
pub fn backend_key(payload: &[u8]) -> Option<(u32, &[u8])> {
    let (pid, secret) = payload.split_first_chunk::<4>()?;
    (4..=256).contains(&secret.len()).then_some((u32::from_be_bytes(*pid), secret))
}

/// The request in an `Authentication…` message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authentication<'a> {
    /// The login has succeeded.
    Ok,
    /// A password in clear text.
    Cleartext,
    /// An MD5 answer for this salt.
    Md5([u8; 4]),
    /// SASL with one of these mechanisms (a list of C strings).
    Sasl(&'a [u8]),
    /// Data of a SASL exchange.
    SaslContinue(&'a [u8]),
    /// The last data of a SASL exchange.
    SaslFinal(&'a [u8]),
    /// Another method, by its number.
    Other(u32),
}

/// Decodes `Authentication…`.
#[must_use]
pub fn authentication(payload: &[u8]) -> Option<Authentication<'_>> {
    let (kind, rest) = payload.split_first_chunk::<4>()?;
    Some(match u32::from_be_bytes(*kind) {
        0 => Authentication::Ok,
        3 => Authentication::Cleartext,
        5 => Authentication::Md5(*rest.first_chunk()?),
        10 => Authentication::Sasl(rest),
        11 => Authentication::SaslContinue(rest),
        12 => Authentication::SaslFinal(rest),
        other => Authentication::Other(other),
    })
}

/// True if the list of C strings, which an empty string ends, contains `wanted`.
#[must_use]
pub fn has_mechanism(mut list: &[u8], wanted: &[u8]) -> bool {
    while let Some((name, rest)) = cstr(list) {
        if name == wanted {
            return true;
        }
        if name.is_empty() {
            return false;
        }
        list = rest;
    }
    false
}

/// Decodes `SASLInitialResponse`: mechanism and the client's first message.
#[must_use]
pub fn sasl_initial(payload: &[u8]) -> Option<(&[u8], &[u8])> {
    let (mechanism, rest) = cstr(payload)?;
    let (length, data) = rest.split_first_chunk::<4>()?;
    (u32::from_be_bytes(*length) as usize == data.len()).then_some((mechanism, data))
}

/// Decodes `SASLInitialResponse`, possibly without the client's first message (a length of -1): mechanism, and that message if present.
#[must_use]
pub fn sasl_start(payload: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let (mechanism, rest) = cstr(payload)?;
    if rest == [0xff; 4] {
        return Some((mechanism, None));
    }
    sasl_initial(payload).map(|(mechanism, data)| (mechanism, Some(data)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_a_row_description() {
        let mut out = Vec::new();
        let columns =
            [("a", 23, 4), ("b", 1043, -1)].map(|(name, kind, size)| crate::message::Column { name, kind, size });
        crate::message::row_description(&mut out, &columns);
        let payload = &out[crate::HEADER..];
        let mut read = Vec::new();
        assert_eq!(
            each_column(payload, |column| read.push((column.name.to_vec(), column.kind, column.modifier))),
            Some(())
        );
        assert_eq!(read, [(b"a".to_vec(), 23, -1), (b"b".to_vec(), 1043, -1)]);
        for length in 0..payload.len() {
            assert_eq!(each_column(&payload[..length], |_| ()), None, "{length}");
        }
        assert_eq!(each_column(&[payload, b"x"].concat(), |_| ()), None);
    }

    #[test]
    fn ends_of_texts() {
        for noise in [0x01, 0x7f, 0x80, 0x81, 0xff] {
            for length in 0..24 {
                let mut bytes = vec![noise; length];
                assert_eq!((cstr(&bytes), text(&bytes)), (None, None));
                for end in (0..length).rev() {
                    bytes[end] = 0;
                    assert_eq!(cstr(&bytes), Some((&bytes[..end], &bytes[end + 1..])), "{noise} {length} {end}");
                    assert_eq!(text(&bytes), (end + 1 == length).then_some(&bytes[..end]), "{noise} {length} {end}");
                }
            }
        }
    }

    #[test]
    fn fields() {
        assert_eq!(
            parse(b"s1\0select 1\0\0\x01\0\0\0\x17"),
            Some((&b"s1"[..], &b"select 1"[..], &b"\0\x01\0\0\0\x17"[..]))
        );
        assert_eq!(parse(b"s1\0select 1\0\0\x02\0\0\0\x17"), None);
        assert_eq!(parse(b"s1\0select 1"), None);
        assert_eq!(bind(b"p\0s\0rest"), Some((&b"p"[..], &b"s"[..], &b"rest"[..])));
        let values = [&[0, 1, 0, 1][..], &[0, 3], &[0xff; 4], &[0, 0, 0, 2], b"ab", &[0, 0, 0, 9], b"cd"].concat();
        assert_eq!(bound_value(&values, 0), None, "NULL");
        assert_eq!(bound_value(&values, 1), Some(&b"ab"[..]));
        assert_eq!(bound_value(&values, 2), None, "longer than what is there");
        assert_eq!(bound_value(&values, 3), None, "no such value");
        assert_eq!(bound_value(&[0xff, 0xff, 0], 0), None);
        assert_eq!(named(b"Sx\0"), Some(Named::Statement(b"x")));
        assert_eq!(named(b"P\0"), Some(Named::Portal(b"")));
        assert_eq!(named(b"Px\0y"), None);
        assert_eq!(named(b""), None);
        let error = b"SERROR\0VERROR\0C25006\0Mcannot\0\0";
        assert_eq!(sqlstate(error), Some(Sqlstate::READ_ONLY_TRANSACTION));
        assert_eq!(error_field(error, b'M').unwrap(), b"cannot");
        assert_eq!(error_message(error), "cannot");
        assert_eq!(error_message(b"\0"), "");
        assert_eq!(error_field(error, b'D'), None);
        assert_eq!(error_field(b"SERROR", b'C'), None);
        assert!(has_mechanism(b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0", b"SCRAM-SHA-256"));
        assert!(!has_mechanism(b"SCRAM-SHA-256-PLUS\0\0", b"SCRAM-SHA-256"));
        assert_eq!(sasl_initial(b"SCRAM-SHA-256\0\0\0\0\x02n,"), Some((&b"SCRAM-SHA-256"[..], &b"n,"[..])));
        assert_eq!(sasl_initial(b"SCRAM-SHA-256\0\0\0\0\x03n,"), None);
        assert_eq!(sasl_start(b"X\0\0\0\0\x02n,"), Some((&b"X"[..], Some(&b"n,"[..]))));
        assert_eq!(sasl_start(b"X\0\xff\xff\xff\xff"), Some((&b"X"[..], None)));
        assert_eq!(sasl_start(b"X\0\xff\xff\xff\xffn,"), None);
    }
}
