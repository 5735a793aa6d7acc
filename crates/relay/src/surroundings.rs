//! Who else there is in a relay's cluster, as its configuration says.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::ask::RelayAccess;

/// The servers and relays that a relay can ask when it has lost its memory, and receive from when its upstream no longer has what it lacks.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// Names and addresses of the servers. They are reached as the upstream is.
    pub servers: Vec<(String, String)>,
    /// The relays; this one may be among them.
    pub relays: Vec<OtherRelay>,
    /// How many relays must have a commit before it is acknowledged; None: it is not known.
    pub acknowledgements: Option<usize>,
    /// Longest time from a failover's last look at the relays to the end of the promotion that follows.
    pub promotion: Duration,
}

/// A relay, and how to reach it.
#[derive(Clone)]
pub struct OtherRelay {
    /// Its configured name.
    pub name: String,
    /// `host:port`, or the path of a Unix socket.
    pub address: String,
    /// One of its users.
    pub user: String,
    /// Its password.
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
