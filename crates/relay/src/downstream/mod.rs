//! Feeding downstreams: standbys, `pg_receivewal`, other relays. One tokio task a connection.
//!
//! ```text
//!  accept ─▶ login ─▶ commands ─START_REPLICATION─▶ stream ─▶ commands …
//!                                                    └ its timeline ended, or the client has had enough
//!                                └WATCH_FLUSHED─▶ watch: to a proxy that holds commits until they are durable here
//! ```
//!
//! *What must hold*: a slow downstream costs itself time and nobody anything else: WAL goes from the page cache to its socket
//! and is never kept in memory; in every state there is a limit on time and on bytes.

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

/// Longest message of a downstream, in bytes.
const MAX_MESSAGE: usize = 64 << 10;
/// Longest time for a client to take an answer, other than WAL.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
enum Gone {
    #[error("the client closed the connection")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0} took too long")]
    TooSlow(&'static str),
    /// The client was told already.
    #[error("{0}")]
    Refused(String),
    #[error("the relay is shutting down")]
    Stopping,
}

/// A connection, and what it has sent that was not looked at.
struct Connection {
    /// Unique while the process lives; what the client sees as the process id.
    id: u32,
    stream: Transport,
    input: Vec<u8>,
    peer: String,
    user: String,
    application_name: String,
    /// Who it is, after TLS.
    identity: Option<Box<tls::Identity>>,
}

/// Accepts until the relay is stopped.
pub(crate) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let take = |stream, peer| {
        shared.metrics.accepted.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move { connection(stream, peer, shared).await });
    };
    accept(listener, "downstream", shared.stopped(), take).await;
}

async fn connection(stream: TcpStream, peer: String, shared: Arc<Shared>) {
    // Small answers must not wait for more; errors mean that the peer is gone, which the next read will tell.
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
    /// The next message, whole.
    async fn message(&mut self) -> Result<(u8, Vec<u8>), Gone> {
        loop {
            if let Some(message) = self.buffered()? {
                return Ok(message);
            }
            self.read().await?;
        }
    }

    /// The next message if it has come already.
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

    /// Tells the client why the connection ends.
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

    /// Lets the client read what it was told: a socket that is closed with something unread in it takes back what is on its
    /// way. Bounded in time and bytes.
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

/// Places for connections, counted; the limit may change while some are taken.
#[derive(Debug, Default)]
pub(crate) struct Places(Arc<std::sync::atomic::AtomicUsize>);

/// Given back when dropped.
pub(crate) struct Place(Arc<std::sync::atomic::AtomicUsize>);

impl Places {
    pub(crate) fn take(&self, limit: usize) -> Option<Place> {
        let place = Place(Arc::clone(&self.0));
        (self.0.fetch_add(1, Ordering::Relaxed) < limit).then_some(place)
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_back() {
        let places = Places::default();
        let (one, two) = (places.take(2), places.take(2));
        assert!(one.is_some() && two.is_some() && places.take(2).is_none());
        assert_eq!(places.taken(), 2);
        drop(one);
        assert!(places.take(2).is_some());
    }
}
