//! Downstream connections: standbys, `pg_receivewal`, other relays. One tokio task per connection.
//!
//! ```text
//!  accept ─▶ login ─▶ commands ─START_REPLICATION─▶ stream ─▶ commands …
//!                                                    └ its timeline ended, or the client has had enough
//!                                └WATCH_FLUSHED─▶ watch: to a proxy that holds commits until they are durable here
//! ```
//!
//! *What must hold*: a slow downstream delays only itself: WAL goes from the page cache to its socket and is never queued in memory; every state has
//! a time limit and a byte limit.

mod command;
mod login;
mod shown;
mod stream;
pub(crate) mod transport;
mod watch;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tracing::{debug, info, warn};
use wire::{Frame, HEADER, Severity, Sqlstate, message};

use crate::running::accept;
use crate::shared::Shared;
use crate::socket::notice_a_dead_host;
use transport::Transport;

/// Size limit of a downstream's message, in bytes.
const MAX_MESSAGE: usize = 64 << 10;
/// Time limit for a client to take an answer other than WAL.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

/// Reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
enum Gone {
    #[error("the client closed the connection")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0} took too long")]
    TooSlow(&'static str),
    /// The client has received the error.
    #[error("{0}")]
    Refused(String),
    #[error("the relay is shutting down")]
    Stopping,
}

/// A connection, and its input that was not processed yet.
struct Connection {
    /// Unique in this process; shown to the client as the process ID.
    id: u32,
    stream: Transport,
    input: Vec<u8>,
    peer: String,
    user: String,
    application_name: String,
    /// Identity of the client, after TLS.
    identity: Option<Box<tls::Identity>>,
}

/// Accepts connections until the relay is stopped.
pub(crate) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let take = |stream, peer| {
        shared.metrics.accepted.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move { connection(stream, peer, shared).await });
    };
    accept(listener, "downstream", shared.stopped(), take).await;
}

async fn connection(stream: TcpStream, peer: String, shared: Arc<Shared>) {
    // Small answers must not wait for more; errors mean that the peer is gone, which the next read reports.
    let _ = stream.set_nodelay(true);
    let id = shared.new_id();
    let mut connection = Connection {
        id,
        stream: Transport::new(stream),
        input: Vec::new(),
        peer,
        user: String::new(),
        application_name: String::new(),
        identity: None,
    };
    let settings = shared.settings();
    let watched = notice_a_dead_host(connection.stream.as_fd(), settings.downstream_timeout);
    if let Err(error) = watched {
        debug!(peer = connection.peer, %error, "the kernel does not watch a downstream's host");
    }
    let Some(_place) = shared.places.take(settings.max_downstreams) else {
        shared.metrics.refused.fetch_add(1, Ordering::Relaxed);
        let text = format!("sorry, too many clients already: max_downstreams is {}", settings.max_downstreams);
        let _ = connection.fatal(Sqlstate::TOO_MANY_CONNECTIONS, &text).await;
        return;
    };
    let login = timeout(settings.login_timeout, login::log_in(&mut connection, &shared)).await;
    match login.unwrap_or(Err(Gone::TooSlow("the login"))) {
        Ok(()) => {}
        Err(error) => {
            shared.metrics.refused.fetch_add(1, Ordering::Relaxed);
            debug!(peer = connection.peer, %error, "a downstream did not log in");
            return;
        }
    }
    info!(
        peer = connection.peer,
        user = connection.user,
        application = connection.application_name,
        id,
        "a downstream has logged in"
    );
    let end = command::serve(&mut connection, &shared).await;
    shared.slots.release(id, true);
    match end {
        Ok(()) | Err(Gone::Closed | Gone::Stopping) => info!(peer = connection.peer, id, "a downstream has left"),
        Err(error) => warn!(peer = connection.peer, id, %error, "a downstream was lost"),
    }
}

impl Connection {
    /// Returns the next whole message.
    async fn message(&mut self) -> Result<(u8, Vec<u8>), Gone> {
        loop {
            if let Some(message) = self.buffered()? {
                return Ok(message);
            }
            self.read().await?;
        }
    }

    /// Returns the next message if it has arrived already.
    fn buffered(&mut self) -> Result<Option<(u8, Vec<u8>)>, Gone> {
        let refuse = |text: String| Gone::Refused(text);
        let Some(frame) = Frame::read(&self.input).map_err(|error| refuse(error.to_string()))? else {
            return Ok(None);
        };
        if frame.payload > MAX_MESSAGE {
            return Err(refuse(format!("a message of {} bytes, expected at most {MAX_MESSAGE}", frame.payload)));
        }
        let Some(payload) = self.input.get(HEADER..frame.total()).map(<[u8]>::to_vec) else { return Ok(None) };
        self.input.drain(..frame.total());
        Ok(Some((frame.tag, payload)))
    }

    async fn read(&mut self) -> Result<(), Gone> {
        self.input.reserve(4096);
        match self.stream.read(&mut self.input).await? {
            0 => Err(Gone::Closed),
            _ => Ok(()),
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        match timeout(WRITE_LIMIT, self.stream.write_all(bytes)).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(Gone::TooSlow("taking an answer")),
        }
    }

    /// Sends the client the reason for the end of the connection.
    async fn fatal(&mut self, code: Sqlstate, text: &str) -> Gone {
        self.fatal_with_hint(code, text, "").await
    }

    async fn fatal_with_hint(&mut self, code: Sqlstate, text: &str, hint: &str) -> Gone {
        let mut out = Vec::new();
        message::error(&mut out, Severity::Fatal, code, text, hint);
        if let Err(gone) = self.send(&out).await {
            return gone;
        }
        self.linger().await;
        Gone::Refused(text.into())
    }

    /// Waits until the client has read the error: closing a socket with unread input discards the output under way. Has a time limit and a byte
    /// limit.
    async fn linger(&mut self) {
        const LIMIT: Duration = Duration::from_secs(1);
        const MOST_READS: usize = 64;
        let drain = async {
            let _ = self.stream.shutdown().await;
            for _ in 0..MOST_READS {
                self.input.clear();
                if self.read().await.is_err() {
                    return;
                }
            }
        };
        let _ = timeout(LIMIT, drain).await;
    }
}
