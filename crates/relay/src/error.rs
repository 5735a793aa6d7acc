//! What goes wrong with a relay.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

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

/// Why receiving from the upstream ended.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// There is no connection.
    #[error("cannot connect to the upstream at {address}: {source}")]
    Connect {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the connection to the upstream broke: {0}")]
    Io(#[from] io::Error),
    /// The upstream closed the connection.
    #[error("the upstream closed the connection")]
    Closed,
    /// The upstream is being shut down, and has everything it wrote acknowledged.
    #[error("the upstream is shutting down")]
    ShuttingDown,
    /// Nothing came.
    #[error("the upstream said nothing for {} s", .0.as_secs())]
    Silent(Duration),
    /// The upstream answered with an error.
    #[error("the upstream refused {doing}: {text} (SQLSTATE {code})")]
    Refused {
        /// What was asked.
        doing: String,
        /// Its code.
        code: String,
        /// Its message and detail.
        text: String,
    },
    /// The upstream asks for a password, and none is configured.
    #[error("the upstream asks for a password of user {user:?}: give relay.upstream.password or password_file")]
    NoPassword {
        /// Whose.
        user: String,
    },
    /// The upstream asks for something that is not spoken here.
    #[error(
        "the upstream asks for an authentication method that the relay does not speak: expected trust, password or \
         scram-sha-256"
    )]
    Method,
    /// The upstream has no TLS, and is to have it.
    #[error("the upstream does not offer TLS, and relay.upstream.tls.mode wants it")]
    NoTls,
    /// TLS failed.
    #[error("{0}")]
    Tls(tls::LinkError),
    /// The files for TLS cannot be used.
    #[error("[relay.upstream.tls] {0}")]
    TlsFiles(#[from] tls::Error),
    /// SCRAM failed.
    #[error("logging in to the upstream failed: {0}")]
    Scram(#[from] wire::scram::Error),
    /// It does not speak the protocol.
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
    /// The relay is being stopped, or was pointed elsewhere.
    #[error("interrupted")]
    Interrupted,
}

impl UpstreamError {
    /// Whether trying again cannot help before somebody has looked: nothing is received, nothing is cut off.
    #[must_use]
    pub fn is_alarm(&self) -> bool {
        match self {
            UpstreamError::OtherSystem { .. } | UpstreamError::Failed(_) | UpstreamError::Switch(_) => true,
            UpstreamError::Append(error) => !matches!(error, AppendError::Full { .. }),
            UpstreamError::Refused { text, .. } => is_other_history(text) || text.contains("has already been removed"),
            UpstreamError::Connect { .. }
            | UpstreamError::Io(_)
            | UpstreamError::Closed
            | UpstreamError::ShuttingDown
            | UpstreamError::Fenced { .. }
            | UpstreamError::Silent(_)
            | UpstreamError::NoPassword { .. }
            | UpstreamError::Method
            | UpstreamError::NoTls
            | UpstreamError::Tls(_)
            | UpstreamError::TlsFiles(_)
            | UpstreamError::Scram(_)
            | UpstreamError::Protocol(_)
            | UpstreamError::Log(_)
            | UpstreamError::State(_)
            | UpstreamError::Interrupted => false,
        }
    }
}

/// Servers give these errors no code of their own, so that the text is all there is to tell by.
fn is_other_history(text: &str) -> bool {
    text.contains("is not in this server's history")
}
