//! What all workers of a process share.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock};

use topology::Topology;
use wire::scram::SaltedKeys;

use super::notify::{Senders, Tide};
use super::observe::Sink;
use super::pool::Budgets;
use super::prepared::Registry;
use super::session::Counts;
use crate::accounts::Accounts;

/// What all workers of a process share.
///
/// Its locks are taken when connections are made, when a pool gets its first client, when a worker meets a text for the first time, and
/// when a notification has come: never for a statement that is known.
pub struct Shared {
    /// Who is primary, and how far the replicas are.
    pub topology: Arc<Topology>,
    /// Prepared statements by content.
    pub(crate) registry: Arc<Registry>,
    /// Server connections in all workers.
    pub(crate) budgets: Budgets,
    /// Derived SCRAM keys of the last login to a server, by user.
    pub keys: Mutex<HashMap<String, Arc<SaltedKeys>>>,
    /// Users that are looked up on a server.
    pub accounts: Accounts,
    /// What clients have shown of themselves, by user: enough to log in to the servers as them.
    pub(crate) passed: Mutex<HashMap<String, Passed>>,
    /// Clients by address, database and user.
    pub(crate) counts: Mutex<Counts>,
    /// Clients of all workers that have logged in.
    pub(crate) inside: AtomicUsize,
    /// Whose notifications servers' processes send.
    pub(crate) senders: Senders,
    /// Numbers of the probes that say which notifications have been heard.
    pub(crate) tide: Tide,
    /// Bytes of notifications on their way between workers.
    pub(crate) notices: AtomicUsize,
    /// Makes cancel keys and the salts of users that do not exist.
    pub secret: [u8; 32],
    /// Clients of all workers.
    pub clients: AtomicUsize,
    /// Number of workers.
    pub workers: usize,
    /// Takes what is traced; nothing is set where nothing is.
    pub sink: OnceLock<Sink>,
}

impl Shared {
    /// Of a process with so many workers, in which nothing has happened. `secret` is random.
    pub fn new(topology: Arc<Topology>, workers: usize, secret: [u8; 32]) -> Arc<Shared> {
        Arc::new(Shared {
            topology,
            registry: Arc::default(),
            budgets: Budgets::new(workers),
            keys: Mutex::default(),
            accounts: Accounts::default(),
            passed: Mutex::default(),
            counts: Mutex::default(),
            inside: AtomicUsize::new(0),
            senders: Senders::default(),
            tide: Tide::default(),
            notices: AtomicUsize::new(0),
            secret,
            clients: AtomicUsize::new(0),
            workers,
            sink: OnceLock::new(),
        })
    }
}

/// With what the proxy can log in as a user, because a client has.
#[derive(Clone, Default)]
pub(crate) struct Passed {
    /// By SCRAM, where the server has the verifier that the client was compared with.
    pub(crate) keys: Option<Arc<SaltedKeys>>,
    /// By MD5.
    pub(crate) md5: Option<wire::md5::Verifier>,
    /// Where the lookup gave it in clear text.
    pub(crate) password: Option<String>,
}
