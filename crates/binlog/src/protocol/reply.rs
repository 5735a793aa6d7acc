//! Answers of a server: OK, ERR, EOF, and rows.

use super::{Cursor, ProtocolError, put_packed, wrong};

/// Status flags: autocommit.
const STATUS: [u8; 2] = [2, 0];
/// Most columns, and most rows, read of an answer.
const MOST: u64 = 4096;

/// A server's ERR.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text} (error {code}, {state})")]
pub struct ServerError {
    /// Number of the error.
    pub code: u16,
    /// SQLSTATE; empty if none was given.
    pub state: String,
    /// Message text.
    pub text: String,
}

impl ServerError {
    /// Parses a message that begins with FF.
    #[must_use]
    pub fn parse(message: &[u8]) -> ServerError {
        let mut c = Cursor(message.get(1..).unwrap_or_default());
        let code = c.number(2).unwrap_or(0) as u16;
        let state = match c.0 {
            [b'#', rest @ ..] if rest.len() >= 5 => {
                c.0 = &rest[5..];
                String::from_utf8_lossy(&rest[..5]).into_owned()
            }
            _ => String::new(),
        };
        ServerError { code, state, text: String::from_utf8_lossy(c.0).into_owned() }
    }
}

/// Encodes an OK.
#[must_use]
pub fn ok() -> Vec<u8> {
    vec![0, 0, 0, STATUS[0], STATUS[1], 0, 0]
}

/// Encodes the end of columns, of rows, or of a dump.
#[must_use]
pub fn eof() -> Vec<u8> {
    vec![0xfe, 0, 0, STATUS[0], STATUS[1]]
}

/// True if a message is an EOF, not a row.
#[must_use]
pub fn is_eof(message: &[u8]) -> bool {
    message.first() == Some(&0xfe) && message.len() < 9
}

/// Encodes an ERR.
#[must_use]
pub fn error(code: u16, state: &str, text: &str) -> Vec<u8> {
    let mut out = vec![0xff];
    out.extend_from_slice(&code.to_le_bytes());
    out.push(b'#');
    out.extend_from_slice(state.as_bytes());
    out.extend_from_slice(text.as_bytes());
    out
}

/// Encodes the messages of an answer with rows: column names, and texts; None is NULL.
#[must_use]
pub fn rows(columns: &[&str], rows: &[Vec<Option<String>>]) -> Vec<Vec<u8>> {
    let mut messages = vec![vec![columns.len() as u8]];
    for name in columns {
        let mut column = Vec::new();
        for text in ["def", "", "", "", name, ""] {
            put_packed(&mut column, text.as_bytes());
        }
        // utf8mb4, 1024 bytes, VAR_STRING.
        column.extend_from_slice(&[0x0c, 45, 0, 0, 4, 0, 0, 253, 0, 0, 0, 0, 0]);
        messages.push(column);
    }
    messages.push(eof());
    for row in rows {
        let mut message = Vec::new();
        for value in row {
            match value {
                Some(text) => put_packed(&mut message, text.as_bytes()),
                None => message.push(0xfb),
            }
        }
        messages.push(message);
    }
    messages.push(eof());
    messages
}

/// A row of an answer.
pub type Row = Vec<Option<String>>;

/// A parser of a server's answer to a statement, message by message.
#[derive(Debug, Default)]
pub struct ReplyParser {
    columns: Option<u64>,
    /// Number of list ends received: of columns, of rows.
    ends: u8,
    described: u64,
    rows: Vec<Row>,
}

impl ReplyParser {
    /// Takes the next message. Some: the answer is complete; an OK gives no rows.
    ///
    /// # Errors
    /// The server refuses the statement (outer `Ok`, inner `Err`), or the message is not part of an answer.
    #[allow(clippy::type_complexity)]
    pub fn received(&mut self, message: &[u8]) -> Result<Option<Result<Vec<Row>, ServerError>>, ProtocolError> {
        if message.first() == Some(&0xff) {
            return Ok(Some(Err(ServerError::parse(message))));
        }
        let Some(columns) = self.columns else {
            if message.first() == Some(&0) {
                return Ok(Some(Ok(Vec::new())));
            }
            let columns = Cursor(message).packed().filter(|columns| *columns <= MOST);
            self.columns = Some(columns.ok_or_else(|| wrong("an answer that is neither OK nor rows"))?);
            return Ok(None);
        };
        if is_eof(message) {
            self.ends += 1;
            return Ok((self.ends > 1).then(|| Ok(std::mem::take(&mut self.rows))));
        }
        if self.ends == 0 {
            self.described += 1;
            return if self.described > columns { Err(wrong("more columns than were announced")) } else { Ok(None) };
        }
        if self.rows.len() as u64 >= MOST {
            return Err(wrong(format!("an answer of more than {MOST} rows")));
        }
        let mut c = Cursor(message);
        let mut row = Vec::new();
        for _ in 0..columns {
            if c.0.first() == Some(&0xfb) {
                c.0 = &c.0[1..];
                row.push(None);
                continue;
            }
            let text = c.packed_bytes().ok_or_else(|| wrong("a row that is too short"))?;
            row.push(Some(String::from_utf8_lossy(text).into_owned()));
        }
        self.rows.push(row);
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_answer_is_what_was_sent(values in prop::collection::vec(prop::collection::vec(prop::option::of("\\PC{0,300}"), 2), 0..5)) {
            let mut parser = ReplyParser::default();
            let mut got = None;
            for message in rows(&["a", "b"], &values) {
                prop_assert!(got.is_none());
                got = parser.received(&message).unwrap();
            }
            prop_assert_eq!(got.unwrap().unwrap(), values);
        }

        #[test]
        fn no_messages_make_a_panic(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..8)) {
            let mut parser = ReplyParser::default();
            for message in messages {
                let _ = (parser.received(&message), ServerError::parse(&message));
            }
        }
    }

    #[test]
    fn errors_and_ok() {
        assert_eq!(ReplyParser::default().received(&ok()).unwrap(), Some(Ok(vec![])));
        let told = ServerError { code: 1236, state: "HY000".into(), text: "gone".into() };
        assert_eq!(ReplyParser::default().received(&error(1236, "HY000", "gone")).unwrap(), Some(Err(told)));
        assert!(ReplyParser::default().received(&[0xfd, 0, 0, 1]).is_err(), "65536 columns");
    }
}
