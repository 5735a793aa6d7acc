//! Errors of a relay.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use watermark::Lsn;

use crate::log::{AppendError, LogError, LogFailure, SwitchError};

/// A relay cannot start, or cannot apply a new configuration.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The log cannot be opened.
    #[error("cannot open the log in {}: {source}", dir.display())]
    Log {
        /// Directory of the log.
        dir: PathBuf,
        /// The cause.
        source: LogError,
    },
    /// The binary log cannot be opened.
    #[error("cannot open the binary log in {}: {text}", dir.display())]
    Binlog {
        /// Directory of the log.
        dir: PathBuf,
        /// The cause, in words.
        text: String,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {address} for standbys: {source}")]
    Listen {
        /// The address.
        address: String,
        /// Error of the operating system.
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
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Peer of a replication connection, for errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// The upstream that a relay receives from: a server, or another relay.
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

/// A failed replication connection. The text names the peer.
#[derive(Debug)]
pub struct SessionError {
    /// The peer.
    pub peer: Peer,
    /// The cause.
    pub cause: Cause,
}

/// Cause of a replication connection's failure.
#[derive(Debug)]
pub enum Cause {
    /// No connection could be made.
    Connect {
        /// Address of the peer.
        address: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The connection broke.
    Io(io::Error),
    /// The peer closed the connection.
    Closed,
    /// The peer is being shut down, and has everything it wrote acknowledged.
    ShuttingDown,
    /// No message was received for this time.
    Silent(Duration),
    /// An order of an operator got no answer in time: it may still be carried out.
    NoAnswer {
        /// The order's first words: `KINGPOST FENCE`.
        order: String,
        /// The time limit.
        limit: Duration,
    },
    /// The peer answered with an error.
    Refused {
        /// The request.
        doing: String,
        /// SQLSTATE of the error.
        code: String,
        /// Message and detail of the error.
        text: String,
    },
    /// The peer requires a password, and none is configured.
    NoPassword {
        /// Name of the user.
        user: String,
    },
    /// The peer requires an authentication method that is not supported.
    Method,
    /// The peer has no TLS, which is required.
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
        // The prefix of the configuration keys that describe the connection.
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
    /// Turns a read that hit the socket's time-out into [`Cause::Silent`]: nothing was received for `limit`.
    pub(crate) fn silent(self, limit: Duration) -> SessionError {
        match self.cause {
            Cause::Io(error) if is_timeout(&error) => SessionError { cause: Cause::Silent(limit), ..self },
            _ => self,
        }
    }

    /// Turns such a read of an order's answer into [`Cause::NoAnswer`].
    pub(crate) fn unanswered(self, order: &str, limit: Duration) -> SessionError {
        match self.cause {
            Cause::Io(error) if is_timeout(&error) => {
                SessionError { cause: Cause::NoAnswer { order: order.into(), limit }, ..self }
            }
            _ => self,
        }
    }

    /// Returns the peer's own message if it refused the request.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        match &self.cause {
            Cause::Refused { text, .. } => Some(text),
            _ => None,
        }
    }

    /// True if the peer no longer has the requested WAL.
    pub(crate) fn is_removed(&self) -> bool {
        self.sqlstate() == Some("58P01") || self.refusal().is_some_and(|text| text.contains("has already been removed"))
    }

    /// True if the requested position is on a timeline, or after the end of one, that is not in the peer's history.
    pub(crate) fn is_other_history(&self) -> bool {
        // Servers give these errors no SQLSTATE of their own, so only the text distinguishes them.
        self.refusal().is_some_and(|text| text.contains("is not in this server's history"))
    }

    /// Returns the `SQLSTATE` of a refusal.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        match &self.cause {
            Cause::Refused { code, .. } => Some(code),
            _ => None,
        }
    }
}

/// Reason for the end of receiving from the upstream.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The connection failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The files for TLS cannot be used.
    #[error("[relay.upstream.tls] {0}")]
    TlsFiles(#[from] tls::Error),
    /// The upstream does not report what a relay must know.
    #[error("the upstream does not speak the replication protocol: {0}")]
    Protocol(String),
    /// The upstream belongs to another cluster.
    #[error(
        "the upstream belongs to another cluster: the log in {dir} is of system {expected}, the upstream is of system \
         {found}; point the relay at the right server, or at an empty directory"
    )]
    OtherSystem {
        /// System identifier of the log.
        expected: u64,
        /// System identifier of the upstream.
        found: u64,
        /// The log's directory.
        dir: String,
    },
    /// The upstream's segments have another size than the log's.
    #[error(
        "the upstream has WAL in segments of {found} bytes now, and the log in {dir} has segments of {held} bytes (pg_resetwal --wal-segsize). Nothing is \
         received; `kingpost relay reset` gives up what the relay holds, and it begins anew"
    )]
    OtherSegmentSize {
        /// Bytes of a segment of the log.
        held: u64,
        /// Bytes of a segment of the upstream.
        found: u64,
        /// The log's directory.
        dir: String,
    },
    /// The log of a primary ends before what is durable here, on the same timeline: it has lost WAL that was acknowledged to it as durable.
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
    /// The upstream has removed the held WAL, which therefore cannot be compared; it may still have what follows.
    #[error("the upstream has removed WAL that is held here: nothing can be compared with it")]
    NoOverlap,
    /// The upstream has removed the WAL that comes next here, and no other host has it.
    #[error(
        "{error}: this relay lacks WAL that the upstream has no longer{}. It is tried again. If nobody has it, `kingpost relay reset` gives up \
         what the relay holds, and it begins anew",
        list(tried)
    )]
    Gap {
        /// Error of the upstream.
        error: Box<UpstreamError>,
        /// Other relays, and why they could not help.
        tried: Vec<String>,
    },
    /// Another relay's WAL was received to its end.
    #[error("caught up")]
    CaughtUp,
    /// The promises of this relay are unknown, and cannot be found out yet.
    #[error("{0}")]
    NoMemory(String),
    /// The log was fenced from its timeline.
    #[error(
        "fenced: for term {term} nothing more is taken on timeline {fenced}, and the upstream is on timeline {found}; it is not \
         the primary any more"
    )]
    Fenced {
        /// The promised term.
        term: u64,
        /// The last timeline that ended here.
        fenced: u32,
        /// Timeline of the upstream.
        found: u32,
    },
    /// The log did not accept the received WAL.
    #[error("{0}")]
    Append(#[from] AppendError),
    /// The log did not accept a new timeline.
    #[error("cannot follow to the upstream's timeline: {0}")]
    Switch(#[from] SwitchError),
    /// The log cannot be opened, or one of its files cannot be stored.
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
    /// The relay is being stopped, or was given another upstream.
    #[error("interrupted")]
    Interrupted,
}

impl UpstreamError {
    /// True if the upstream no longer has the WAL that comes next here.
    #[must_use]
    pub fn is_gap(&self) -> bool {
        match self {
            UpstreamError::Gap { .. } => true,
            UpstreamError::Session(error) => error.is_removed(),
            _ => false,
        }
    }

    /// True if the upstream has invalidated this relay's slot: PostgreSQL 18 refuses to stream with such a slot; earlier versions only lack WAL.
    #[must_use]
    pub fn is_lost_slot(&self) -> bool {
        let UpstreamError::Session(error) = self else { return false };
        error.sqlstate() == Some("55000")
            && error.refusal().is_some_and(|text| text.contains("can no longer access replication slot"))
    }

    /// True if retrying cannot help before an operator has acted: nothing is received, nothing is truncated.
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
