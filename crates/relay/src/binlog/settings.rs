//! The configuration, resolved.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ::binlog::protocol::login::Stored;
use ::binlog::{Dialect, Plugin};

use crate::config::RelayConfig;
use crate::error::StartError;

/// Settings that downstream connections use. Immutable; a reload makes a new value.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) server_id: u32,
    /// None: no TLS with replicas.
    pub(super) acceptor: Option<tls::Acceptor>,
    /// True if a login without TLS is refused.
    pub(super) needs_tls: bool,
    pub(super) max_downstreams: usize,
    pub(super) login_timeout: Duration,
    pub(super) downstream_timeout: Duration,
    pub(super) keep_bytes: u64,
    pub(super) max_bytes: u64,
    /// The method by which replicas log in.
    pub(super) plugin: Plugin,
    users: HashMap<String, Stored>,
    operators: HashSet<String>,
}

impl Settings {
    /// Resolves the configuration, reading password files.
    pub(super) fn new(config: &RelayConfig, dialect: Dialect) -> Result<Settings, StartError> {
        let (family, plugin) = (dialect.name(), dialect.plugin());
        let server_id = config.server_id;
        if server_id == 0 {
            return Err(StartError::Config(format!(
                "relay.server_id is 0: a relay of {family} needs a server_id that no server of the cluster has"
            )));
        }
        tls::Connector::new(&config.upstream.tls)
            .map_err(|error| StartError::Config(format!("[relay.upstream.tls] {error}")))?;
        let acceptor =
            tls::Acceptor::new(&config.tls).map_err(|error| StartError::Config(format!("[relay.tls] {error}")))?;
        let mut users = HashMap::new();
        for user in &config.users {
            let password = match (&user.password, &user.password_file) {
                (Some(password), _) => password.clone(),
                (None, Some(path)) => {
                    let read = std::fs::read_to_string(path);
                    let failed = |source| StartError::File { tried: "read", path: path.clone(), source };
                    read.map_err(failed)?.lines().next().unwrap_or_default().to_owned()
                }
                (None, None) => String::new(),
            };
            if password.is_empty() {
                let name = &user.name;
                return Err(StartError::Config(format!(
                    "user {name:?} of the relay has no password: give password or password_file (a SCRAM verifier is of no use to a replica \
                     of {family})"
                )));
            }
            if users.insert(user.name.clone(), Stored::of(plugin, &password)).is_some() {
                return Err(StartError::Config(format!("user {:?} of the relay is configured twice", user.name)));
            }
        }
        Ok(Settings {
            server_id,
            acceptor,
            needs_tls: config.tls.mode == tls::ListenMode::Require,
            max_downstreams: config.max_downstreams,
            login_timeout: config.login_timeout,
            downstream_timeout: config.downstream_timeout,
            keep_bytes: config.keep_bytes,
            max_bytes: config.max_bytes,
            plugin,
            users,
            operators: config.users.iter().filter(|user| user.operator).map(|user| user.name.clone()).collect(),
        })
    }

    /// True if a logged-in user may fence the relay.
    pub(super) fn is_operator(&self, user: &str) -> bool {
        self.operators.contains(user)
    }

    /// True if `proof` is the right answer of the user to `nonce`.
    pub(super) fn accepts(&self, user: &str, nonce: &[u8; 20], proof: &[u8]) -> bool {
        match self.users.get(user) {
            Some(stored) => stored.accepts(nonce, proof),
            None => {
                // Takes as long as for a known user.
                let _ = Stored::of(self.plugin, "nobody").accepts(nonce, proof);
                false
            }
        }
    }
}
