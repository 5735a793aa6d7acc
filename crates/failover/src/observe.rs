//! The cluster as `kingpost node` sees it: the answers of servers and relays that failovers decide by, and sessions on servers.

use tokio_postgres::Client;
use watermark::Lsn;
use wire::control;

use super::cluster_clients::{ClusterClients, first};
use super::conninfo;
use super::plan::Locked;
use config::Config;
use process::Failure;
use relay::{OrderError, RelayState};

/// Query of the number of clients' sessions for which WHICH holds, without Kingpost's, for which OWN holds; NULL unless the server tells them to this
/// login, by TOLD.
const SESSIONS: &str = "SELECT CASE WHEN TOLD THEN count(*)::text END FROM pg_catalog.pg_stat_activity \
     WHERE backend_type = 'client backend' AND pid <> pg_catalog.pg_backend_pid() \
     AND NOT OWN AND (WHICH)";
/// Condition under which a server shows the sessions of other users.
const SHOWN: &str = "pg_catalog.pg_has_role('pg_read_all_stats', 'MEMBER')";
/// Condition under which it also shows their states.
const TRACKED: &str =
    "pg_catalog.pg_has_role('pg_read_all_stats', 'MEMBER') AND current_setting('track_activities') = 'on'";

/// Access to the servers and relays of a configuration.
#[derive(Debug, Clone)]
pub struct Observer {
    clients: ClusterClients,
    relays: Vec<(String, String)>,
}

/// Answers of all hosts.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// The servers, in the configuration's order.
    pub servers: Vec<Peer>,
    /// The relays, in the configuration's order.
    pub relays: Vec<RelayPeer>,
}

/// A server.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Configured name.
    pub name: String,
    /// Configured address.
    pub address: String,
    /// State, or the reason why it is not known.
    pub state: Result<PeerState, String>,
}

/// State of a server that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerState {
    /// System identifier.
    pub system: u64,
    /// True if it is in recovery.
    pub standby: bool,
    /// Timeline that it writes or follows.
    pub timeline: u32,
    /// Position of its WAL.
    pub has: Lsn,
    /// Position up to which it has replayed; that of its WAL on a primary.
    pub replayed: Lsn,
    /// True if it receives WAL at the moment.
    pub receiving: bool,
    /// Host and port in `primary_conninfo`.
    pub upstream: Option<(String, u16)>,
    /// True if a switchover has locked it.
    pub locked: bool,
}

/// A relay.
#[derive(Debug, Clone)]
pub struct RelayPeer {
    /// Configured name.
    pub name: String,
    /// Configured address.
    pub address: String,
    /// The relay's answer.
    pub voice: Voice,
}

/// Answer of a relay.
#[derive(Debug, Clone)]
pub enum Voice {
    /// State of its log and promises.
    State(RelayState),
    /// The relay has no log yet.
    Empty,
    /// The reason why its state is not known.
    Silent(String),
}

impl Observer {
    /// Reads the password files.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn new(config: &Config) -> Result<Observer, Failure> {
        let relays = config.failover.relays.iter().map(|relay| (relay.name.clone(), relay.address.clone())).collect();
        Ok(Observer { clients: ClusterClients::new(config)?, relays })
    }

    /// Asks all hosts at once, each with a time limit.
    pub async fn observe(&self) -> Observed {
        let survey = self.clients.survey().await;
        let peer = |server: super::plan::ServerSeen| Peer {
            name: server.name,
            address: server.address,
            state: server.state.map(|state| PeerState {
                system: state.system,
                standby: state.standby,
                timeline: state.timeline,
                has: state.has,
                replayed: state.replayed,
                receiving: state.receiving,
                upstream: state.conninfo.as_deref().and_then(conninfo::endpoint),
                locked: state.locked != Locked::No,
            }),
        };
        let empty = OrderError::Empty.to_string();
        let relay = |relay: super::plan::RelaySeen| RelayPeer {
            name: relay.name,
            address: relay.address,
            voice: match relay.standing {
                Ok(state) => Voice::State(state),
                Err(why) if why.contains(&empty) => Voice::Empty,
                Err(why) => Voice::Silent(why),
            },
        };
        Observed {
            servers: survey.servers.into_iter().map(peer).collect(),
            relays: survey.relays.into_iter().map(relay).collect(),
        }
    }

    /// Runs quick statements on a server, even on a locked one, as a session of a failover: a switchover counts all others. Returns the
    /// first value of the last one.
    ///
    /// # Errors
    /// The server does not answer, or refuses a statement.
    pub async fn run(&self, node: &str, statements: &[&str]) -> Result<Option<String>, String> {
        let client: Client = self.clients.session(node).await?;
        let mut value = None;
        for statement in statements {
            value = first(&client, statement).await?;
        }
        Ok(value)
    }

    /// Makes a checkpoint on a server.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub async fn checkpoint(&self, node: &str) -> Result<(), String> {
        self.clients.checkpoint(node).await
    }

    /// Creates a physical slot on a relay, unless it exists.
    ///
    /// # Errors
    /// The relay does not answer, or refuses.
    pub async fn make_slot(&self, relay: &str, slot: &str) -> Result<(), String> {
        self.clients.make_slot(relay, slot).await
    }

    /// Counts the sessions of clients on a server, idle ones and those of a proxy's pool, too.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn client_sessions(&self, node: &str) -> Result<u64, String> {
        self.count(node, SHOWN, "true").await
    }

    /// Counts the sessions of clients on a server that run a statement or are in a transaction.
    ///
    /// # Errors
    /// The server does not answer, or does not show the state of its sessions to this login.
    pub async fn busy_sessions(&self, node: &str) -> Result<u64, String> {
        self.count(node, TRACKED, "state NOT IN ('idle', 'disabled')").await
    }

    async fn count(&self, node: &str, told: &str, which: &str) -> Result<u64, String> {
        let count = self.run(node, &[&sessions(told, which)]).await?.and_then(|count| count.parse().ok());
        count.ok_or_else(|| {
            format!("{node} does not show its sessions: track_activities has to be on, and the user a member of pg_read_all_stats")
        })
    }

    /// Removes the slots that servers and relays keep for a node; returns those that could not be removed, with the reason.
    pub async fn leave(&self, node: &str) -> Vec<String> {
        let slot = slot(node);
        let mut left = Vec::new();
        for (relay, _) in &self.relays {
            if let Err(why) = self.clients.drop_slot(relay, &slot).await {
                left.push(format!("{relay}: {why}"));
            }
        }
        let seen = self.observe().await;
        let drop = format!(
            "SELECT pg_catalog.pg_drop_replication_slot(slot_name)::text FROM pg_catalog.pg_replication_slots \
             WHERE slot_name = '{slot}'"
        );
        for Peer { name, state, .. } in seen.servers.iter().filter(|server| server.name != node) {
            let dropped = match state {
                Ok(_) => self.run(name, &[&drop]).await.map(|_| ()),
                Err(why) => Err(why.clone()),
            };
            if let Err(why) = dropped {
                left.push(format!("{name}: {why}"));
            }
        }
        left
    }
}

/// Makes the query of the number of sessions.
fn sessions(told: &str, which: &str) -> String {
    SESSIONS.replace("TOLD", told).replace("WHICH", which).replace("OWN", &control::is_named(&control::NAMES))
}

/// Makes the name of a node's slot: lower-case letters, digits and underscores, 63 bytes at most.
#[must_use]
pub fn slot(name: &str) -> String {
    let plain = name.chars().map(|c| match c.to_ascii_lowercase() {
        c if c.is_ascii_lowercase() || c.is_ascii_digit() => c,
        _ => '_',
    });
    let mut slot: String = "kingpost_".chars().chain(plain).collect();
    slot.truncate(63);
    slot
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxys_session_for_a_client_without_a_name_is_a_clients() {
        for statement in [sessions(SHOWN, "true"), sessions(TRACKED, "true")] {
            assert!(statement.contains(&format!("NOT {}", control::is_named(&control::NAMES))), "{statement}");
            assert!(!statement.contains(&format!("'{}'", control::PROXIED)), "{statement}");
            assert!(!["TOLD", "WHICH", "OWN"].iter().any(|place| statement.contains(place)), "{statement}");
        }
    }

    #[test]
    fn slots() {
        assert_eq!(slot("DB-1.example"), "kingpost_db_1_example");
        assert_eq!(slot(&"x".repeat(99)).len(), 63);
    }
}
