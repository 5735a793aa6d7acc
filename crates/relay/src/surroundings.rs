//! The other members of a relay's cluster, from its configuration.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::ask::RelayAccess;

/// The servers and relays that a relay asks when it has lost its memory, and receives from when its upstream no longer has the WAL that it lacks.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// Names and addresses of the servers, reached with the upstream's settings.
    pub servers: Vec<(String, String)>,
    /// The relays, possibly including this one.
    pub relays: Vec<OtherRelay>,
    /// Number of relays that must have a commit before it is acknowledged; None: unknown.
    pub acknowledgements: Option<usize>,
    /// Longest time from a failover's last look at the relays to the end of the promotion that follows.
    pub promotion: Duration,
}

/// A relay, and the way to reach it.
#[derive(Clone)]
pub struct OtherRelay {
    /// Configured name.
    pub name: String,
    /// `host:port`, or the path of a Unix socket.
    pub address: String,
    /// User of the login.
    pub user: String,
    /// Password of the user.
    pub password: Option<String>,
    /// None: without TLS.
    pub connector: Option<Arc<tls::Connector>>,
}

impl fmt::Debug for OtherRelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtherRelay").field("name", &self.name).field("address", &self.address).finish_non_exhaustive()
    }
}

impl OtherRelay {
    pub(crate) fn access(&self) -> RelayAccess<'_> {
        RelayAccess {
            name: &self.name,
            address: &self.address,
            user: &self.user,
            password: self.password.as_deref(),
            connector: self.connector.as_ref(),
        }
    }
}
