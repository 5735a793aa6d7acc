//! State shared by all workers of a proxy.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use topology::{NodeId, Topology};
use wire::scram::SaltedKeys;

use super::membership::Membership;
use super::notify::{ProbeCounters, Senders};
use super::observe::Sink;
use super::pool::Budgets;
use super::prepared::Registry;
use super::session::Counts;
use crate::accounts::Accounts;
use crate::renewals::Renewals;
use crate::traffic::Traffic;
use crate::verify::Verifier;

/// State shared by all workers of a proxy. The proxies of several clusters share nothing of it.
///
/// A lock in here is taken when a connection is made, when a pool gets its first client, when a worker meets a
/// statement text or a set of parameters for the first time, and when a notification has come: never for a statement
/// that the worker knows.
pub struct Shared {
    /// The roles of the nodes, and how far each replica has replayed.
    pub topology: Arc<Topology>,
    /// Prepared statements, shared by text and scope.
    pub(crate) registry: Arc<Registry>,
    /// Bounds on server connections, over all workers.
    pub(crate) budgets: Budgets,
    /// SCRAM keys derived at the last login to a server, by user.
    pub keys: Mutex<HashMap<String, Arc<SaltedKeys>>>,
    /// Users whose accounts are looked up on a server.
    pub accounts: Accounts,
    /// External authenticators of passwords that the proxy does not know.
    pub(crate) verifier: Verifier,
    /// Requests to read passwords again that servers have refused.
    pub(crate) renewals: Renewals,
    /// Credentials that clients have proved, by user: with them the proxy can log in to servers as that user.
    pub(crate) passed: Mutex<HashMap<String, Passed>>,
    /// Differences between nodes' session settings that the log has: the node, the number of its configuration, the settings.
    pub(crate) differences_said: Mutex<HashSet<(NodeId, u64, Vec<&'static str>)>>,
    /// Number of clients by address, database and user.
    pub(crate) counts: Mutex<Counts>,
    /// Number of clients of all workers that have logged in.
    pub(crate) inside: AtomicUsize,
    /// Client for which each backend runs statements: notifications carry the process ID that this client was given.
    pub(crate) senders: Senders,
    /// Numbers for the probes (notifications of the proxy's own) that show which notifications have been delivered.
    pub(crate) counters: ProbeCounters,
    /// Bytes of notifications that are on their way between workers.
    pub(crate) notification_bytes: AtomicUsize,
    /// Random key from which cancel keys, and the salts for unknown users, are derived.
    pub secret: [u8; 32],
    /// Number of clients of all workers.
    pub clients: AtomicUsize,
    /// Number of workers.
    pub workers: usize,
    /// Name of this cluster, and the other clusters of the process.
    pub(crate) membership: Membership,
    /// Limits on statements, by user, database and statement.
    pub(crate) traffic: Traffic,
    /// Receiver of traced spans; not set while tracing is off.
    pub sink: OnceLock<Sink>,
}

impl Shared {
    /// Creates the state of a process with one cluster and `workers` workers. `secret` is random.
    pub fn new(topology: Arc<Topology>, workers: usize, secret: [u8; 32]) -> Arc<Shared> {
        Shared::of(topology, workers, secret, Membership::alone())
    }

    /// As [`Shared::new`], for one of several clusters.
    pub fn of(topology: Arc<Topology>, workers: usize, secret: [u8; 32], membership: Membership) -> Arc<Shared> {
        Arc::new(Shared {
            topology,
            registry: Arc::default(),
            budgets: Budgets::new(workers),
            keys: Mutex::default(),
            accounts: Accounts::default(),
            verifier: Verifier::default(),
            renewals: Renewals::default(),
            passed: Mutex::default(),
            differences_said: Mutex::default(),
            counts: Mutex::default(),
            inside: AtomicUsize::new(0),
            senders: Senders::default(),
            counters: ProbeCounters::default(),
            notification_bytes: AtomicUsize::new(0),
            secret,
            clients: AtomicUsize::new(0),
            workers,
            membership,
            traffic: Traffic::new(Instant::now()),
            sink: OnceLock::new(),
        })
    }
}

/// Credentials with which a client has authenticated as a user: the proxy logs in to servers with them.
#[derive(Clone, Default)]
pub(crate) struct Passed {
    /// SCRAM keys; usable where the server has the verifier that the client was checked against.
    pub(crate) keys: Option<Arc<SaltedKeys>>,
    /// An MD5 verifier.
    pub(crate) md5: Option<wire::md5::Verifier>,
    /// The password, where the account lookup gave it in clear text, or the client did (method `ldap`).
    pub(crate) password: Option<String>,
}
