//! The end of a connection between two nodes.

use std::time::Duration;

use super::wire::PeerError;

/// Time limit of the handshake.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);

/// Reason why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error("{0}")]
    Io(std::io::Error),
    #[error("{0}")]
    Peer(#[from] PeerError),
    #[error("nothing for {0:?}")]
    Late(Duration),
    #[error("the secret of the store is not known yet")]
    Secret,
    #[error("what answers there is not TLS, which registry.peer_tls of this node asks for: that node does not have it")]
    NoTls,
    #[error(
        "it takes connections and has said nothing for {HANDSHAKE:?}: it hangs, or takes TLS only: it has registry.peer_tls, this node does not"
    )]
    Mute,
}

impl From<std::io::Error> for Ended {
    fn from(error: std::io::Error) -> Ended {
        Ended::Io(tls::explain(error))
    }
}
