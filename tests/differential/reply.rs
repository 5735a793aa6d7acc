//! Messages of a server, decoded as far as they are compared and shown.

use std::fmt::{self, Display};

use crate::text::quoted;

/// A column as RowDescription gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// OID of its table, and its number in the table; 0 without a table.
    pub(crate) table: u32,
    pub(crate) attribute: i16,
    /// OID of its type.
    pub(crate) kind: u32,
    pub(crate) length: i16,
    pub(crate) modifier: i32,
    pub(crate) format: i16,
}

/// The fields of an ErrorResponse or NoticeResponse, by their letters, without those that name PostgreSQL's source (`F`, `L`, `R`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Fields(pub(crate) Vec<(u8, String)>);

/// A message of a server, or its absence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// AuthenticationOk and others.
    Authentication(u32),
    /// BackendKeyData: the process id.
    Key(u32),
    /// ParameterStatus.
    Parameter(String, String),
    /// ReadyForQuery: `I`, `T` or `E`.
    Ready(u8),
    /// ParseComplete, BindComplete, CloseComplete, NoData, PortalSuspended, EmptyQueryResponse, CopyDone: by its letter.
    Plain(u8),
    /// ParameterDescription.
    Parameters(Vec<u32>),
    /// RowDescription.
    Columns(Vec<Column>),
    /// DataRow.
    Row(Vec<Option<Vec<u8>>>),
    /// CommandComplete.
    Complete(String),
    /// ErrorResponse.
    Error(Fields),
    /// NoticeResponse.
    Notice(Fields),
    /// CopyInResponse (`G`) or CopyOutResponse (`H`), with the overall format and that of each column.
    Copy(u8, u8, Vec<i16>),
    /// CopyData.
    Data(Vec<u8>),
    /// NotificationResponse.
    Notification { process: u32, channel: String, payload: String },
    /// Anything else.
    Other(u8, Vec<u8>),
    /// The server has closed the connection.
    Closed,
    /// No message within the tester's limit.
    Silence,
}

/// A parser of a message's body; missing parts read as 0 or empty.
struct Body<'a>(&'a [u8]);

impl Body<'_> {
    fn bytes(&mut self, n: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }

    fn u8(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    fn u16(&mut self) -> u16 {
        self.bytes(2).try_into().map_or(0, u16::from_be_bytes)
    }

    fn u32(&mut self) -> u32 {
        self.bytes(4).try_into().map_or(0, u32::from_be_bytes)
    }

    fn text(&mut self) -> String {
        let end = self.0.iter().position(|&b| b == 0).unwrap_or(self.0.len());
        let text = String::from_utf8_lossy(&self.0[..end]).into_owned();
        self.0 = self.0.get(end + 1..).unwrap_or_default();
        text
    }

    fn fields(&mut self) -> Fields {
        let mut fields = Vec::new();
        loop {
            match self.u8() {
                0 => return Fields(fields),
                code => {
                    let value = self.text();
                    if !b"FLR".contains(&code) {
                        fields.push((code, value));
                    }
                }
            }
        }
    }

    fn column(&mut self) -> Column {
        Column {
            name: self.text(),
            table: self.u32(),
            attribute: self.u16() as i16,
            kind: self.u32(),
            length: self.u16() as i16,
            modifier: self.u32() as i32,
            format: self.u16() as i16,
        }
    }

    fn value(&mut self) -> Option<Vec<u8>> {
        let length = self.u32() as i32;
        usize::try_from(length).ok().map(|length| self.bytes(length))
    }
}

impl Fields {
    /// Returns a field by its letter; empty if it is missing.
    pub(crate) fn get(&self, code: u8) -> &str {
        self.0.iter().find(|(known, _)| *known == code).map_or("", |(_, value)| value)
    }

    /// Returns the SQLSTATE.
    pub(crate) fn code(&self) -> &str {
        self.get(b'C')
    }

    /// Returns the text.
    pub(crate) fn message(&self) -> &str {
        self.get(b'M')
    }
}

impl Reply {
    /// Decodes a message from its type and the bytes after its length.
    pub(crate) fn decode(kind: u8, body: &[u8]) -> Reply {
        let mut body = Body(body);
        match kind {
            b'R' => Reply::Authentication(body.u32()),
            b'K' => Reply::Key(body.u32()),
            b'S' => Reply::Parameter(body.text(), body.text()),
            b'Z' => Reply::Ready(body.u8()),
            b'1' | b'2' | b'3' | b'n' | b's' | b'I' | b'c' => Reply::Plain(kind),
            b't' => Reply::Parameters((0..body.u16()).map(|_| body.u32()).collect()),
            b'T' => Reply::Columns((0..body.u16()).map(|_| body.column()).collect()),
            b'D' => Reply::Row((0..body.u16()).map(|_| body.value()).collect()),
            b'C' => Reply::Complete(body.text()),
            b'E' => Reply::Error(body.fields()),
            b'N' => Reply::Notice(body.fields()),
            b'G' | b'H' => {
                let format = body.u8();
                Reply::Copy(kind, format, (0..body.u16()).map(|_| body.u16() as i16).collect())
            }
            b'd' => Reply::Data(body.0.to_vec()),
            b'A' => Reply::Notification { process: body.u32(), channel: body.text(), payload: body.text() },
            other => Reply::Other(other, body.0.to_vec()),
        }
    }

    /// Returns the message's kind, without its content, but with an error's SQLSTATE: differences of one kind have equal kinds.
    pub(crate) fn kind(&self) -> String {
        match self {
            Reply::Authentication(_) => "R".into(),
            Reply::Key(_) => "K".into(),
            Reply::Parameter(name, _) => format!("ParameterStatus {name}"),
            Reply::Ready(status) => format!("Z{}", char::from(*status)),
            Reply::Plain(kind) => char::from(*kind).into(),
            Reply::Parameters(_) => "t".into(),
            Reply::Columns(_) => "T".into(),
            Reply::Row(_) => "row".into(),
            Reply::Complete(tag) => format!("C {}", tag.split(' ').next().unwrap_or_default()),
            Reply::Error(fields) => format!("error {}", fields.code()),
            Reply::Notice(fields) => format!("notice {}", fields.code()),
            Reply::Copy(kind, ..) => char::from(*kind).into(),
            Reply::Data(_) => "copy data".into(),
            Reply::Notification { .. } => "notification".into(),
            Reply::Other(kind, _) => format!("message {:?}", char::from(*kind)),
            Reply::Closed => "closed".into(),
            Reply::Silence => "silence".into(),
        }
    }
}

/// Most bytes shown of a value.
const SHOWN: usize = 60;

fn shown(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(SHOWN)];
    let text = match std::str::from_utf8(cut) {
        Ok(text) if !text.chars().any(|c| c.is_control() && c != '\n' && c != '\t') => quoted(text),
        _ => format!("x{}", cut.iter().map(|b| format!("{b:02x}")).collect::<String>()),
    };
    if bytes.len() > SHOWN { format!("{text}… ({} bytes)", bytes.len()) } else { text }
}

impl Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Authentication(code) => write!(f, "Authentication {code}"),
            Reply::Key(process) => write!(f, "BackendKeyData {process}"),
            Reply::Parameter(name, value) => write!(f, "ParameterStatus {name} = {}", quoted(value)),
            Reply::Ready(status) => write!(f, "Z:{}", char::from(*status)),
            Reply::Plain(kind) => f.write_str(match kind {
                b'1' => "ParseComplete",
                b'2' => "BindComplete",
                b'3' => "CloseComplete",
                b'n' => "NoData",
                b's' => "PortalSuspended",
                b'I' => "EmptyQueryResponse",
                _ => "CopyDone",
            }),
            Reply::Parameters(types) => write!(f, "ParameterDescription {types:?}"),
            Reply::Columns(columns) => {
                let many = columns.len() > 12;
                let columns = columns.iter().take(12).map(|c| {
                    let table = if c.table == 0 { String::new() } else { format!(" of {}.{}", c.table, c.attribute) };
                    let format = if c.format == 0 { "" } else { " binary" };
                    format!("{} {}{table}{format}", c.name, c.kind)
                });
                let columns: Vec<String> = columns.collect();
                write!(f, "RowDescription ({}{})", columns.join(", "), if many { ", …" } else { "" })
            }
            Reply::Row(values) => {
                let many = values.len() > 12;
                let one = |value: &Option<Vec<u8>>| value.as_ref().map_or("null".into(), |value| shown(value));
                let values: Vec<String> = values.iter().take(12).map(one).collect();
                write!(f, "row {}{}", values.join(", "), if many { ", …" } else { "" })
            }
            Reply::Complete(tag) => write!(f, "CommandComplete {tag}"),
            Reply::Error(fields) | Reply::Notice(fields) => {
                let kind = if matches!(self, Reply::Error(_)) { "error" } else { "notice" };
                write!(f, "{kind} {} {} {}", fields.get(b'S'), fields.code(), quoted(fields.message()))?;
                for (code, value) in fields.0.iter().filter(|(code, _)| !b"SVCM".contains(code)) {
                    write!(f, " {}={}", char::from(*code), quoted(value))?;
                }
                Ok(())
            }
            Reply::Copy(kind, format, columns) => {
                let name = if *kind == b'G' { "CopyInResponse" } else { "CopyOutResponse" };
                write!(f, "{name} {format} {columns:?}")
            }
            Reply::Data(data) => write!(f, "CopyData {}", shown(data)),
            Reply::Notification { process, channel, payload } => {
                write!(f, "notification {channel} {} of process {process}", quoted(payload))
            }
            Reply::Other(kind, body) => write!(f, "message {:?} {}", char::from(*kind), shown(body)),
            Reply::Closed => f.write_str("(the connection is closed)"),
            Reply::Silence => f.write_str("(no answer)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_decoded() {
        let table: [(u8, &[u8], &str); 10] = [
            (b'Z', b"T", "Z:T"),
            (b'1', b"", "ParseComplete"),
            (b'C', b"SELECT 1\0", "CommandComplete SELECT 1"),
            (b'S', b"TimeZone\0UTC\0", "ParameterStatus TimeZone = \"UTC\""),
            (b'E', b"SERROR\0C22012\0Mno\0P7\0Fint.c\0L1\0Rint4div\0\0", "error ERROR 22012 \"no\" P=\"7\""),
            (b'D', b"\0\x02\0\0\0\x01a\xff\xff\xff\xff", "row \"a\", null"),
            (b't', b"\0\x01\0\0\0\x17", "ParameterDescription [23]"),
            (b'A', b"\0\0\0\x05ch\0hi\0", "notification ch \"hi\" of process 5"),
            (
                b'T',
                b"\0\x01id\0\0\0\0\x09\0\x01\0\0\0\x17\0\x04\xff\xff\xff\xff\0\x01",
                "RowDescription (id 23 of 9.1 binary)",
            ),
            (b'?', b"\x01", "message '?' x01"),
        ];
        for (kind, body, expected) in table {
            assert_eq!(Reply::decode(kind, body).to_string(), expected);
        }
        // A truncated message must not cause a panic.
        assert_eq!(Reply::decode(b'T', b"\0\x01id").to_string(), "RowDescription (id 0)");
    }
}
