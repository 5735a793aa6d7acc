//! What goes wrong with a relay.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use watermark::Lsn;

use crate::log::{AppendError, LogError, LogFailure, SwitchError};

/// A relay cannot start, or does not take a new configuration.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The log cannot be opened.
    #[error("cannot open the log in {}: {source}", dir.display())]
    Log {
        /// Its directory.
        dir: PathBuf,
        /// Why.
        source: LogError,
    },
    /// The binary log cannot be opened.
    #[error("cannot open the binary log in {}: {text}", dir.display())]
    Binlog {
        /// Its directory.
        dir: PathBuf,
        /// Why.
        text: String,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {address} for standbys: {source}")]
    Listen {
        /// Which.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The configuration cannot be used.
    #[error("{0}")]
    Config(String),
    /// A file beside the log cannot be used.
    #[error("cannot {tried} {}: {source}", path.display())]
    File {
        /// `read` or `write`.
        tried: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Whom a replication connection is with, as errors name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// What a relay receives from: a server, or another relay.
    Upstream,
    /// A relay, by its configured name.
    Relay(String),
    /// A server, by its configured name.
    Server(String),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Upstream => f.write_str("the upstream"),
            Peer::Relay(name) => write!(f, "relay {name}"),
            Peer::Server(name) => write!(f, "server {name}"),
        }
    }
}

/// A replication connection failed. The text names whom it was with.
#[derive(Debug)]
pub struct SessionError {
    /// Whom it was with.
    pub peer: Peer,
    /// What went wrong.
    pub cause: Cause,
}

/// What went wrong with a replication connection.
#[derive(Debug)]
pub enum Cause {
    /// There is no connection.
    Connect {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The connection broke.
    Io(io::Error),
    /// The peer closed the connection.
    Closed,
    /// The peer is being shut down, and has everything it wrote acknowledged.
    ShuttingDown,
    /// Nothing came for so long.
    Silent(Duration),
    /// No answer came to an order of an operator within so long: it may be carried out all the same.
    NoAnswer {
        /// The order's first words: `KINGPOST FENCE`.
        order: String,
        /// How long was waited.
        limit: Duration,
    },
    /// The peer answered with an error.
    Refused {
        /// What was asked.
        doing: String,
        /// Its code.
        code: String,
        /// Its message and detail.
        text: String,
    },
    /// The peer asks for a password, and none is configured.
    NoPassword {
        /// Whose.
        user: String,
    },
    /// The peer asks for something that is not spoken here.
    Method,
    /// The peer has no TLS, and is to have it.
    NoTls,
    /// TLS failed.
    Tls(tls::LinkError),
    /// SCRAM failed.
    Scram(wire::scram::Error),
    /// The peer does not speak the protocol.
    Protocol(String),
}

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Cause {
        Cause::Io(error)
    }
}

impl From<wire::scram::Error> for Cause {
    fn from(error: wire::scram::Error) -> Cause {
        Cause::Scram(error)
    }
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = &self.peer;
        // The keys of a configuration that say how to reach it.
        let section = if *peer == Peer::Upstream { "relay.upstream." } else { "its " };
        match &self.cause {
            Cause::Connect { address, source } if matches!(peer, Peer::Relay(name) if name == address) => {
                write!(f, "cannot connect to {peer}: {source}")
            }
            Cause::Connect { address, source } => write!(f, "cannot connect to {peer} at {address}: {source}"),
            Cause::Io(source) => write!(f, "the connection to {peer} broke: {source}"),
            Cause::Closed => write!(f, "{peer} closed the connection"),
            Cause::ShuttingDown => write!(f, "{peer} is shutting down"),
            Cause::Silent(limit) => write!(f, "{peer} said nothing for {} s", limit.as_secs_f32()),
            Cause::NoAnswer { order, limit } => write!(
                f,
                "{peer} did not answer to {order} within {} s; it may still carry it out: ask again",
                limit.as_secs_f32()
            ),
            Cause::Refused { doing, code, text } => write!(f, "{peer} refused {doing}: {text} (SQLSTATE {code})"),
            Cause::NoPassword { user } => {
                write!(f, "{peer} asks for a password of user {user:?}: give {section}password or password_file")
            }
            Cause::Method => write!(
                f,
                "{peer} asks for an authentication method that is not spoken here: expected trust, password or scram-sha-256"
            ),
            Cause::NoTls => write!(f, "{peer} does not offer TLS, and {section}tls.mode wants it"),
            Cause::Tls(error) => write!(f, "TLS with {peer}: {error}"),
            Cause::Scram(error) => write!(f, "logging in to {peer} failed: {error}"),
            Cause::Protocol(what) => write!(f, "{peer} does not speak the replication protocol: {what}"),
        }
    }
}

impl std::error::Error for SessionError {}

impl SessionError {
    /// Names a read that took longer than the socket's time-out: nothing came for `limit`.
    pub(crate) fn silent(self, limit: Duration) -> SessionError {
        match self.cause {
            Cause::Io(error) if is_timeout(&error) => SessionError { cause: Cause::Silent(limit), ..self },
            _ => self,
        }
    }

    /// The same of an answer to an order.
    pub(crate) fn unanswered(self, order: &str, limit: Duration) -> SessionError {
        match self.cause {
            Cause::Io(error) if is_timeout(&error) => {
                SessionError { cause: Cause::NoAnswer { order: order.into(), limit }, ..self }
            }
            _ => self,
        }
    }

    /// The peer's own words, if it refused what was asked.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        match &self.cause {
            Cause::Refused { text, .. } => Some(text),
            _ => None,
        }
    }

    /// Whether the peer has no longer the WAL that was asked for.
    pub(crate) fn is_removed(&self) -> bool {
        self.sqlstate() == Some("58P01") || self.refusal().is_some_and(|text| text.contains("has already been removed"))
    }

    /// Whether what was asked for is on a timeline, or behind the end of one, that is not in the peer's history.
    pub(crate) fn is_other_history(&self) -> bool {
        // Servers give these errors no code of their own, so that the text is all there is to tell by.
        self.refusal().is_some_and(|text| text.contains("is not in this server's history"))
    }

    /// The `SQLSTATE` of a refusal.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        match &self.cause {
            Cause::Refused { code, .. } => Some(code),
            _ => None,
        }
    }
}

/// Why receiving from the upstream ended.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The connection.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The files for TLS cannot be used.
    #[error("[relay.upstream.tls] {0}")]
    TlsFiles(#[from] tls::Error),
    /// It does not say what a relay must know of it.
    #[error("the upstream does not speak the replication protocol: {0}")]
    Protocol(String),
    /// It is another cluster's.
    #[error(
        "the upstream belongs to another cluster: the log in {dir} is of system {expected}, the upstream is of system \
         {found}; point the relay at the right server, or at an empty directory"
    )]
    OtherSystem {
        /// Of the log.
        expected: u64,
        /// Of the upstream.
        found: u64,
        /// The log's directory.
        dir: String,
    },
    /// It writes segments of another size than the log has.
    #[error(
        "the upstream has WAL in segments of {found} bytes now, and the log in {dir} has segments of {held} bytes (pg_resetwal --wal-segsize). Nothing is \
         received; `kingpost relay reset` gives up what the relay holds, and it begins anew"
    )]
    OtherSegmentSize {
        /// Bytes of a segment of the log.
        held: u64,
        /// Of the upstream.
        found: u64,
        /// The log's directory.
        dir: String,
    },
    /// A primary ends before what is durable here, on the same timeline: it has lost what it was told of as durable.
    #[error(
        "the server lacks {} bytes of WAL that this relay has acknowledged: timeline {timeline} ends at {at} there, and whole records up to {held} are \
         durable here. It was put back from an older copy, or lost what it had written. Nothing is received from it, nothing was cut off. To keep what the \
         relay has let it recover from there before it takes writes; if it is to stay as it is, `kingpost relay reset` gives up what the relay holds",
        held.0.saturating_sub(at.0)
    )]
    Behind {
        /// The timeline of both.
        timeline: u32,
        /// End of the upstream's log.
        at: Lsn,
        /// End of the last whole record that is durable here.
        held: Lsn,
    },
    /// What is held is not to be had any more from the upstream, and so cannot be compared; what comes next may be.
    #[error("the upstream has removed WAL that is held here: nothing can be compared with it")]
    NoOverlap,
    /// WAL that comes next here is gone there, and nobody else has it.
    #[error(
        "{error}: this relay lacks WAL that the upstream has no longer{}. It is tried again. If nobody has it, `kingpost relay reset` gives up \
         what the relay holds, and it begins anew",
        list(tried)
    )]
    Gap {
        /// What the upstream said.
        error: Box<UpstreamError>,
        /// Other relays, and why they were of no use.
        tried: Vec<String>,
    },
    /// Everything was received that another relay had.
    #[error("caught up")]
    CaughtUp,
    /// What this relay has promised is not known, and cannot be found out yet.
    #[error("{0}")]
    NoMemory(String),
    /// The log was fenced off from its timeline.
    #[error(
        "fenced: for term {term} nothing more is taken on timeline {fenced}, and the upstream is on timeline {found}; it is not \
         the primary any more"
    )]
    Fenced {
        /// The term that was promised to.
        term: u64,
        /// The last timeline that ended here.
        fenced: u32,
        /// Of the upstream.
        found: u32,
    },
    /// The log did not take what came.
    #[error("{0}")]
    Append(#[from] AppendError),
    /// The log did not take a new timeline.
    #[error("cannot follow to the upstream's timeline: {0}")]
    Switch(#[from] SwitchError),
    /// The log cannot be opened, or a file of it not be stored.
    #[error("{0}")]
    Log(#[from] LogError),
    /// A file beside the log cannot be written.
    #[error("{0}")]
    State(Box<StartError>),
    /// The log has failed for good.
    #[error("the log failed: {0}")]
    Failed(LogFailure),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The relay is being stopped, or was pointed elsewhere.
    #[error("interrupted")]
    Interrupted,
}

impl UpstreamError {
    /// Whether the upstream has no longer what comes next here.
    #[must_use]
    pub fn is_gap(&self) -> bool {
        match self {
            UpstreamError::Gap { .. } => true,
            UpstreamError::Session(error) => error.is_removed(),
            _ => false,
        }
    }

    /// Whether the upstream gave up this relay's slot: PostgreSQL 18 refuses to stream with such a slot; earlier versions only miss WAL.
    #[must_use]
    pub fn is_lost_slot(&self) -> bool {
        let UpstreamError::Session(error) = self else { return false };
        error.sqlstate() == Some("55000")
            && error.refusal().is_some_and(|text| text.contains("can no longer access replication slot"))
    }

    /// Whether trying again cannot help before somebody has looked: nothing is received, nothing is cut off.
    #[must_use]
    pub fn is_alarm(&self) -> bool {
        match self {
            UpstreamError::OtherSystem { .. }
            | UpstreamError::OtherSegmentSize { .. }
            | UpstreamError::Behind { .. }
            | UpstreamError::Failed(_)
            | UpstreamError::Switch(_)
            | UpstreamError::Gap { .. }
            | UpstreamError::NoMemory(_) => true,
            UpstreamError::Append(error) => !matches!(error, AppendError::Full { .. }),
            UpstreamError::Session(error) => error.is_removed() || error.is_other_history(),
            UpstreamError::CaughtUp
            | UpstreamError::NoOverlap
            | UpstreamError::TlsFiles(_)
            | UpstreamError::Protocol(_)
            | UpstreamError::Fenced { .. }
            | UpstreamError::Log(_)
            | UpstreamError::State(_)
            | UpstreamError::Thread(_)
            | UpstreamError::Interrupted => false,
        }
    }
}

fn list(tried: &[String]) -> String {
    if tried.is_empty() {
        return ", and no other relay is listed to have it from ([[cluster.relays]])".into();
    }
    format!(", and no other relay has it: {}", tried.join("; "))
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_whom_it_is_about() {
        let say = |peer: &Peer, cause| SessionError { peer: peer.clone(), cause }.to_string();
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let relay = Peer::Relay("r1".into());
        for (text, expected) in [
            (
                say(&relay, Cause::Connect { address: "a:1".into(), source: refused() }),
                "cannot connect to relay r1 at a:1: connection refused",
            ),
            (say(&Peer::Upstream, Cause::Closed), "the upstream closed the connection"),
            (
                say(&Peer::Server("db1".into()), Cause::Silent(Duration::from_millis(1500))),
                "server db1 said nothing for 1.5 s",
            ),
            (
                say(&relay, Cause::NoAnswer { order: "KINGPOST FENCE".into(), limit: Duration::from_secs(25) }),
                "relay r1 did not answer to KINGPOST FENCE within 25 s; it may still carry it out: ask again",
            ),
            (
                say(&Peer::Upstream, Cause::NoTls),
                "the upstream does not offer TLS, and relay.upstream.tls.mode wants it",
            ),
            (say(&relay, Cause::NoTls), "relay r1 does not offer TLS, and its tls.mode wants it"),
        ] {
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn what_a_refusal_means() {
        for (code, text, gap, lost, alarm) in [
            ("58P01", "requested WAL segment 000000010000000000000002 has already been removed", true, false, true),
            ("XX000", "requested WAL segment 000000010000000000000002 has already been removed", true, false, true),
            ("55000", "can no longer access replication slot \"kingpost_relay\"", false, true, false),
            ("55000", "something else", false, false, false),
            (
                "XX000",
                "requested starting point 0/5000000 on timeline 1 is not in this server's history",
                false,
                false,
                true,
            ),
            ("57P01", "terminating connection due to administrator command", false, false, false),
        ] {
            let cause = Cause::Refused { doing: "streaming".into(), code: code.into(), text: text.into() };
            let error = UpstreamError::Session(SessionError { peer: Peer::Upstream, cause });
            assert_eq!((error.is_gap(), error.is_lost_slot(), error.is_alarm()), (gap, lost, alarm), "{text}");
            let gap = UpstreamError::Gap { error: Box::new(error), tried: Vec::new() };
            assert!(gap.is_gap() && gap.is_alarm());
        }
    }
}
