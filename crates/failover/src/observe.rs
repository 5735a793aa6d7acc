//! The cluster as `kingpost node` sees it: the answers of servers and relays that failovers decide by, and sessions on servers.

use tokio_postgres::Client;
use watermark::Lsn;

use super::cluster_clients::{ClusterClients, first};
use super::conninfo;
use super::plan::Locked;
use config::Config;
use process::Failure;
use relay::{OrderError, RelayState};

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

    /// Removes a slot from every relay that has it; returns the relays that did not answer.
    pub async fn drop_slots(&self, slot: &str) -> Vec<String> {
        let mut failed = Vec::new();
        for (relay, _) in &self.relays {
            if let Err(why) = self.clients.drop_slot(relay, slot).await {
                failed.push(format!("{relay}: {why}"));
            }
        }
        failed
    }
}
