//! The wire protocol by hand, for messages that a well-behaved driver never sends.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::endpoint::{DATABASE, USER};

const LIMIT: Duration = Duration::from_secs(20);

/// A message from the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Type of the message.
    pub kind: u8,
    /// Bytes after the length.
    pub body: Vec<u8>,
}

impl Message {
    /// Returns a field of an ErrorResponse or NoticeResponse: `C` for the SQLSTATE, `M` for the text.
    pub fn field(&self, code: u8) -> Option<String> {
        let mut fields = self.body.split(|&b| b == 0);
        let found = fields.find(|field| field.first() == Some(&code));
        found.map(|field| String::from_utf8_lossy(&field[1..]).into_owned())
    }
}

/// A bare connection. Every read has a limit of 20 s, after which the test fails.
#[derive(Debug)]
pub struct Raw {
    /// The socket.
    pub stream: TcpStream,
}

/// Encodes a message with its type and length.
pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
    out.extend_from_slice(body);
    out
}

/// Encodes a `Query`.
pub fn query(text: &str) -> Vec<u8> {
    message(b'Q', format!("{text}\0").as_bytes())
}

/// Encodes a `Parse` without parameter types.
pub fn parse(name: &str, text: &str) -> Vec<u8> {
    message(b'P', format!("{name}\0{text}\0\0\0").as_bytes())
}

/// Encodes a `Bind` of the unnamed portal or a named one, with text parameters and text results.
pub fn bind(portal: &str, statement: &str, parameters: &[&str]) -> Vec<u8> {
    let mut body = format!("{portal}\0{statement}\0").into_bytes();
    body.extend_from_slice(&0u16.to_be_bytes());
    body.extend_from_slice(&(parameters.len() as u16).to_be_bytes());
    for parameter in parameters {
        body.extend_from_slice(&(parameter.len() as u32).to_be_bytes());
        body.extend_from_slice(parameter.as_bytes());
    }
    body.extend_from_slice(&0u16.to_be_bytes());
    message(b'B', &body)
}

/// Encodes a `Describe` of a statement (`S`) or portal (`P`).
pub fn describe(what: u8, name: &str) -> Vec<u8> {
    message(b'D', &[&[what], name.as_bytes(), &[0]].concat())
}

/// Encodes a `Close` of a statement (`S`) or portal (`P`).
pub fn close(what: u8, name: &str) -> Vec<u8> {
    message(b'C', &[&[what], name.as_bytes(), &[0]].concat())
}

/// Encodes an `Execute` of at most `rows` rows; 0 for all.
pub fn execute(portal: &str, rows: u32) -> Vec<u8> {
    message(b'E', &[portal.as_bytes(), &[0], &rows.to_be_bytes()].concat())
}

/// Encodes a `Sync`.
pub fn sync() -> Vec<u8> {
    message(b'S', &[])
}

/// Encodes a `Flush`.
pub fn flush() -> Vec<u8> {
    message(b'H', &[])
}

/// Encodes a start-up packet: version (`3 << 16 | minor`) and parameters.
pub fn startup(version: u32, parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut body = version.to_be_bytes().to_vec();
    for (name, value) in parameters {
        body.extend_from_slice(format!("{name}\0{value}\0").as_bytes());
    }
    body.push(0);
    let mut out = (body.len() as u32 + 4).to_be_bytes().to_vec();
    out.extend_from_slice(&body);
    out
}

impl Raw {
    /// Connects without sending anything.
    ///
    /// # Panics
    /// When the port does not accept.
    pub async fn connect(port: u16) -> Raw {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap_or_else(|e| panic!("connect to {port}: {e}"));
        stream.set_nodelay(true).expect("set TCP_NODELAY");
        Raw { stream }
    }

    /// Connects as the tests' usual user with protocol 3.0, up to the first ReadyForQuery.
    ///
    /// # Panics
    /// When that is refused.
    pub async fn login(port: u16) -> Raw {
        Raw::login_with(port, &[]).await
    }

    /// Logs in as [`Raw::login`] does, with start-up parameters.
    ///
    /// # Panics
    /// When that is refused.
    pub async fn login_with(port: u16, parameters: &[(&str, &str)]) -> Raw {
        Raw::greeted(port, USER, DATABASE, parameters).await.0
    }

    /// Logs in as another user, or to another database.
    ///
    /// # Panics
    /// When that is refused.
    pub async fn login_as(port: u16, user: &str, database: &str) -> Raw {
        Raw::greeted(port, user, database, &[]).await.0
    }

    /// Logs in with all of these, and also returns the messages of the greeting (BackendKeyData, ParameterStatus) up to ReadyForQuery.
    ///
    /// # Panics
    /// When that is refused.
    pub async fn greeted(port: u16, user: &str, database: &str, parameters: &[(&str, &str)]) -> (Raw, Vec<Message>) {
        let mut raw = Raw::connect(port).await;
        raw.send(&startup(3 << 16, &[&[("user", user), ("database", database)], parameters].concat())).await;
        let messages = raw.until(b'Z').await;
        assert_eq!(messages[0].kind, b'R', "{messages:?}");
        (raw, messages)
    }

    /// Sends bytes; the next read notices a closed connection.
    pub async fn send(&mut self, bytes: &[u8]) {
        let _ = tokio::time::timeout(LIMIT, self.stream.write_all(bytes)).await.expect("the peer takes what is sent");
    }

    /// Reads the next `n` bytes.
    ///
    /// # Errors
    /// When the peer closes.
    ///
    /// # Panics
    /// When nothing comes.
    pub async fn bytes(&mut self, n: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; n];
        let read = tokio::time::timeout(LIMIT, self.stream.read_exact(&mut bytes)).await;
        read.unwrap_or_else(|_| panic!("no answer in {LIMIT:?}"))?;
        Ok(bytes)
    }

    /// Reads the next message; None when the peer closes.
    ///
    /// # Panics
    /// When nothing comes.
    pub async fn next(&mut self) -> Option<Message> {
        let head = self.bytes(5).await.ok()?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let body = self.bytes(length.checked_sub(4).expect("a length counts itself") as usize).await.ok()?;
        Some(Message { kind: head[0], body })
    }

    /// Reads the messages up to and including the first of `kind`.
    ///
    /// # Panics
    /// When the peer closes before.
    pub async fn until(&mut self, kind: u8) -> Vec<Message> {
        let mut messages = Vec::new();
        loop {
            let wanted = kind as char;
            let Some(message) = self.next().await else { panic!("closed before {wanted}; came: {messages:?}") };
            let last = message.kind == kind;
            messages.push(message);
            if last {
                return messages;
            }
        }
    }

    /// Reads up to and including the first message of `kind`, and returns the types of all but those that may come at any time (ParameterStatus,
    /// NoticeResponse).
    ///
    /// # Panics
    /// When the peer closes before.
    pub async fn kinds_until(&mut self, kind: u8) -> String {
        let messages = self.until(kind).await;
        messages.iter().filter(|message| !b"SN".contains(&message.kind)).map(|message| message.kind as char).collect()
    }

    /// Reads all messages until the peer closes.
    ///
    /// # Panics
    /// When it does not.
    pub async fn rest(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        while let Some(message) = self.next().await {
            messages.push(message);
        }
        messages
    }
}
