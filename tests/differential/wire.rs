//! One connection of a session's client, to a server or to the proxy.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use kingpost_tests::raw;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::outstanding::Outstanding;
use crate::reply::Reply;
use crate::session::{Client, Message, Way};

/// Length limit of a message that is read.
const LONGEST: usize = 64 << 20;

/// A connection that has logged in, or was refused.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
    outstanding: Outstanding,
    /// Parameters reported by the server.
    pub(crate) parameters: BTreeMap<String, String>,
    /// Process ID of BackendKeyData; 0 if none was sent.
    pub(crate) process: u32,
    /// Status in the last ReadyForQuery; 0 before the first.
    pub(crate) status: u8,
    /// Received notifications, separate from the answers.
    pub(crate) notifications: Vec<Reply>,
    closed: bool,
}

impl Wire {
    /// Connects and logs in; returns the server's replies up to its first ReadyForQuery, or up to the end.
    ///
    /// # Errors
    /// The port does not accept connections.
    pub(crate) async fn login(port: u16, client: &Client, limit: Duration) -> io::Result<(Wire, Vec<Reply>)> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let mut wire = Wire {
            stream,
            buffer: Vec::new(),
            outstanding: Outstanding::default(),
            parameters: BTreeMap::new(),
            process: 0,
            status: 0,
            notifications: Vec::new(),
            closed: false,
        };
        let mut parameters = vec![("user", &*client.user), ("database", &*client.database)];
        parameters.extend(client.parameters.iter().map(|(name, value)| (&**name, &**value)));
        let _ = wire.stream.write_all(&raw::startup(3 << 16, &parameters)).await;
        // A login is answered like a Sync: any replies, then ReadyForQuery.
        wire.outstanding.sent(&Message::Sync);
        let replies = wire.settle(limit).await;
        Ok((wire, replies))
    }

    /// Sends messages in one write. The next read finds that the peer has closed.
    pub(crate) async fn send(&mut self, messages: &[Message]) {
        let mut bytes = Vec::new();
        for message in messages {
            message.encode(&mut bytes);
            self.outstanding.sent(message);
        }
        // A peer that does not read is detected by its silence.
        let _ = timeout(Duration::from_secs(5), self.stream.write_all(&bytes)).await;
    }

    /// Reads until no reply is outstanding. Otherwise the last reply is [`Reply::Closed`], or [`Reply::Silence`] after `limit` without one.
    /// ParameterStatus and notifications are kept separately.
    pub(crate) async fn settle(&mut self, limit: Duration) -> Vec<Reply> {
        let mut replies = Vec::new();
        while !self.closed && !self.outstanding.is_settled() {
            match self.read(limit).await {
                Ok(Some(reply)) => {
                    let ends = matches!(reply, Reply::Closed);
                    self.note(reply, &mut replies);
                    if ends {
                        break;
                    }
                }
                Ok(None) | Err(_) => {
                    replies.push(Reply::Silence);
                    break;
                }
            }
        }
        replies
    }

    /// Reads unsolicited messages until `enough` returns true, or nothing has arrived by the end of `limit`. Returns those other than notifications
    /// and ParameterStatus: there should be none.
    pub(crate) async fn listen(&mut self, limit: Duration, enough: impl Fn(&Wire) -> bool) -> Vec<Reply> {
        let mut replies = Vec::new();
        let end = Instant::now() + limit;
        while !self.closed && !enough(self) {
            match self.read(end.saturating_duration_since(Instant::now())).await {
                Ok(Some(reply)) => self.note(reply, &mut replies),
                Ok(None) | Err(_) => break,
            }
        }
        replies
    }

    fn note(&mut self, reply: Reply, replies: &mut Vec<Reply>) {
        match reply {
            Reply::Parameter(name, value) => {
                // The proxy's own parameters: a server has none like them.
                if !name.starts_with("kingpost.") {
                    self.parameters.insert(name, value);
                }
            }
            Reply::Notification { .. } => self.notifications.push(reply),
            Reply::Key(process) => self.process = process,
            Reply::Ready(status) => {
                self.status = status;
                replies.push(reply);
            }
            reply => replies.push(reply),
        }
    }

    /// Returns the next message; None if nothing arrived.
    async fn read(&mut self, limit: Duration) -> io::Result<Option<Reply>> {
        let end = Instant::now() + limit;
        loop {
            if let Some(reply) = self.next_buffered()? {
                return Ok(Some(reply));
            }
            let left = end.saturating_duration_since(Instant::now());
            match timeout(left, self.stream.read_buf(&mut self.buffer)).await {
                Err(_) => return Ok(None),
                Ok(Ok(0)) | Ok(Err(_)) => {
                    self.closed = true;
                    return Ok(Some(Reply::Closed));
                }
                Ok(Ok(_)) => {}
            }
        }
    }

    fn next_buffered(&mut self) -> io::Result<Option<Reply>> {
        let Some(head) = self.buffer.get(..5) else { return Ok(None) };
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if !(4..LONGEST).contains(&length) {
            return Err(io::Error::other(format!("a message of length {length}")));
        }
        let Some(body) = self.buffer.get(5..=length) else { return Ok(None) };
        let (kind, reply) = (self.buffer[0], Reply::decode(self.buffer[0], body));
        self.buffer.drain(..=length);
        self.outstanding.received(kind);
        Ok(Some(reply))
    }

    /// True if the server waits for CopyData.
    pub(crate) fn is_copying(&self) -> bool {
        self.outstanding.is_copying()
    }

    /// True if the server has no work for this client, in no transaction.
    pub(crate) fn is_idle(&self) -> bool {
        self.status == b'I' && self.outstanding.is_empty() && !self.closed
    }

    /// True if messages were sent that the server need not have answered yet, without a Sync or Flush.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.outstanding.is_settled() && self.outstanding.has_queued()
    }

    /// True if the client has prepared or described statements, in no transaction, and has sent neither Bind nor Sync since.
    pub(crate) fn only_prepares(&self) -> bool {
        self.status == b'I' && self.outstanding.only_prepares()
    }

    /// True if the connection is closed, as far as is known.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Sends messages, and ends the connection in this way. A reset happens when the connection is dropped.
    pub(crate) async fn end(&mut self, messages: &[Message], way: Way) {
        self.send(messages).await;
        let _ = match way {
            Way::Terminate => self.stream.write_all(&raw::message(b'X', &[])).await,
            Way::HalfClose => self.stream.shutdown().await,
            Way::Reset => self.stream.set_zero_linger(),
        };
    }

    /// Reads up to the end of the connection. The last reply is [`Reply::Closed`] or [`Reply::Silence`].
    pub(crate) async fn rest(&mut self, limit: Duration) -> Vec<Reply> {
        let mut replies = Vec::new();
        while !self.closed {
            match self.read(limit).await {
                Ok(Some(reply)) => self.note(reply, &mut replies),
                Ok(None) | Err(_) => {
                    replies.push(Reply::Silence);
                    break;
                }
            }
        }
        replies
    }

    /// Terminates the connection.
    pub(crate) async fn terminate(mut self) {
        let _ = self.stream.write_all(&raw::message(b'X', &[])).await;
        let _ = self.stream.shutdown().await;
    }
}
