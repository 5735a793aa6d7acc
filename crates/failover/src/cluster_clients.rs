//! Communication with servers, relays and proxies. No decisions are made here; every wait has a limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::relay::{Order, RelayAccess, RelayState, SessionError};
use futures_util::future::join_all;
use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, SimpleQueryMessage};
use topology::{Candidacy, ClusterConfig, NodeConfig};
use watermark::Lsn;
use wire::control::{self, Settings};

use super::lock;
use super::note::{self, Note};
use super::plan::{Locked, ProxySeen, ProxyState, RelaySeen, ServerSeen, ServerState, Survey, Tags};
use config::failover::{PartConfig, RelayPartConfig};
use config::{Config, secret};
use process::Failure;

/// Application name of sessions on servers and in consoles.
const APPLICATION: &str = control::FAILOVER;
/// Default time limit of one query of a host.
const LOOK: Duration = Duration::from_secs(2);
/// Time limit where the caller limits queries on a clock that may stand still: it ends only queries that are no longer waited for.
const PATIENT: Duration = Duration::from_secs(10);
/// Time limit for a host that has just not answered.
const GLANCE: Duration = Duration::from_millis(300);
/// Time limit of a relay's order; the order has a shorter limit of its own.
const ORDER: Duration = Duration::from_secs(50);
/// Time limit of one quick statement on a server that has accepted the connection: longer than such a statement may wait for a lock there. A host
/// that vanished answers nothing, and its own limits do not count.
const ANSWER: Duration = Duration::from_secs(7);

/// The query is explained in the topology crate: a standby's timeline is the one being received, or the one in the control file.
const ASK: &str = "\
    SELECT system_identifier, standby, \
           CASE WHEN standby THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_flush_lsn() END, \
           CASE WHEN standby THEN pg_catalog.pg_last_wal_receive_lsn() END, \
           CASE WHEN standby THEN greatest( \
               (SELECT received_tli FROM pg_catalog.pg_stat_wal_receiver), \
               (SELECT min_recovery_end_timeline FROM pg_catalog.pg_control_recovery()), \
               (SELECT timeline_id FROM pg_catalog.pg_control_checkpoint())) \
           ELSE ('x' || left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::int END, \
           EXISTS (SELECT FROM pg_catalog.pg_stat_wal_receiver WHERE status = 'streaming'), \
           (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'primary_conninfo'), \
           (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'primary_slot_name'), \
           (SELECT setting::int FROM pg_catalog.pg_settings WHERE name = 'recovery_min_apply_delay'), \
           CASE WHEN standby THEN pg_catalog.pg_is_wal_replay_paused() ELSE false END, \
           current_setting('is_superuser') = 'on', \
           current_setting('synchronous_standby_names') \
    FROM (SELECT pg_catalog.pg_is_in_recovery() AS standby OFFSET 0) AS role, pg_catalog.pg_control_system()";

/// Access to all hosts, built from the configuration once.
#[derive(Debug, Clone)]
pub(super) struct ClusterClients {
    cluster: ClusterConfig,
    relays: Vec<Login>,
    proxies: Vec<Login>,
    acknowledgements: usize,
    /// Time limit of one query of a host.
    look: Duration,
    /// TLS with relays and proxies.
    tls: tls::ConnectConfig,
    connector: Option<Arc<tls::Connector>>,
}

#[derive(Clone)]
struct Login {
    part: PartConfig,
    password: Option<String>,
    /// Application name of a relay on servers.
    application: String,
    /// True while a query of it is in progress.
    looking: Arc<AtomicBool>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.part.fmt(f)
    }
}

fn server_seen(node: &NodeConfig, state: PeerResult<ServerState>) -> ServerSeen {
    let never = node.failover == Candidacy::Never;
    let tags = Tags { never, priority: node.failover_priority, zone: node.zone.clone() };
    ServerSeen { name: node.name.clone(), address: node.address.clone(), tags, state }
}

fn relay_seen(login: &Login, standing: PeerResult<RelayState>) -> RelaySeen {
    let Login { part, application, .. } = login;
    RelaySeen { name: part.name.clone(), address: part.address.clone(), application: application.clone(), standing }
}

/// Result with an error in words.
pub(super) type PeerResult<T> = Result<T, String>;

impl ClusterClients {
    /// Reads the password files.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn new(config: &Config) -> Result<ClusterClients, Failure> {
        let failover = &config.failover;
        let login = |part: PartConfig| -> Result<Login, Failure> {
            let password = secret(part.password.as_ref(), part.password_file.as_deref())?;
            Ok(Login { part, password, application: String::new(), looking: Arc::default() })
        };
        let relay = |relay: &RelayPartConfig| -> Result<Login, Failure> {
            let application = relay.application_name.as_ref().unwrap_or(&relay.name).clone();
            Ok(Login { application, ..login(relay.part())? })
        };
        let mut cluster = config.cluster.clone();
        let own = secret(failover.password.as_ref(), failover.password_file.as_deref())?;
        if own.is_some() || cluster.user != failover.user {
            cluster.password = own;
        }
        cluster.user.clone_from(&failover.user);
        // Limit of a statement; pg_promote has a limit of its own, which must be shorter.
        cluster.probe_timeout = failover.step_timeout + Duration::from_secs(5);
        let connector = tls::Connector::new(&failover.tls)
            .map_err(|error| Failure::config(format!("[failover.tls] {error}")))?
            .map(Arc::new);
        Ok(ClusterClients {
            cluster,
            relays: failover.relays.iter().map(relay).collect::<Result<_, _>>()?,
            proxies: failover.proxies.iter().cloned().map(login).collect::<Result<_, _>>()?,
            acknowledgements: failover.acknowledgements,
            look: LOOK,
            tls: failover.tls.clone(),
            connector,
        })
    }

    /// Sets the time limit of later queries of a host.
    pub(super) fn look_within_at_most(&mut self, limit: Duration) {
        self.look = limit;
    }

    /// Returns a copy for a caller that limits each query on a clock of its own. Queries of the copy and the original do not block each other.
    pub(super) fn patient(&self) -> ClusterClients {
        let relays = self.relays.iter().map(|login| Login { looking: Arc::default(), ..login.clone() }).collect();
        ClusterClients { look: PATIENT, relays, ..self.clone() }
    }

    pub(super) fn nodes(&self) -> &[NodeConfig] {
        &self.cluster.nodes
    }

    pub(super) fn relay_count(&self) -> usize {
        self.relays.len()
    }

    pub(super) fn proxy_count(&self) -> usize {
        self.proxies.len()
    }

    /// Queries all hosts concurrently.
    pub(super) async fn survey(&self) -> Survey {
        self.survey_within(|_| self.look).await
    }

    /// Queries all hosts again, with a short limit for those that have just not answered.
    pub(super) async fn survey_again(&self, before: &Survey) -> Survey {
        let answered = |name: &str| {
            let server = before.servers.iter().any(|server| server.name == name && server.state.is_ok());
            server || before.relays.iter().any(|relay| relay.name == name && relay.standing.is_ok())
        };
        self.survey_within(|name| if answered(name) { self.look } else { GLANCE }).await
    }

    async fn survey_within(&self, limit: impl Fn(&str) -> Duration) -> Survey {
        let servers =
            self.cluster.nodes.iter().map(|node| self.see_server(node, tokio::time::sleep(limit(&node.name))));
        let relays = self.relays.iter().enumerate();
        let relays = relays.map(|(index, login)| self.see_relay(index, tokio::time::sleep(limit(&login.part.name))));
        let (servers, relays) = tokio::join!(join_all(servers), join_all(relays));
        let mut survey = Survey { servers, relays, acknowledgements: self.acknowledgements };
        self.count(&mut survey);
        survey
    }

    /// Sets the number of relays that commits wait for, from what the servers of a survey report.
    pub(super) fn count(&self, survey: &mut Survey) {
        survey.acknowledgements = survey.acknowledged_by(self.acknowledgements);
    }

    /// Returns a survey in which no host has been queried.
    pub(super) fn unseen(&self) -> Survey {
        let why = "it has not been looked at yet";
        let servers = self.cluster.nodes.iter().map(|node| server_seen(node, Err(why.into())));
        let relays = self.relays.iter().map(|login| relay_seen(login, Err(why.into())));
        Survey { servers: servers.collect(), relays: relays.collect(), acknowledgements: self.acknowledgements }
    }

    /// Queries a server until `limit` is over.
    pub(super) async fn see_server(&self, node: &NodeConfig, limit: impl Future<Output = ()>) -> ServerSeen {
        let state = tokio::select! {
            biased;
            state = self.look(&node.name) => state,
            () = limit => Err("it does not answer in time".into()),
        };
        server_seen(node, state)
    }

    /// Queries the relay of this index until `limit` is over.
    pub(super) async fn see_relay(&self, index: usize, limit: impl Future<Output = ()>) -> RelaySeen {
        let login = &self.relays[index];
        let standing = tokio::select! {
            biased;
            standing = self.order(&login.part.name, Order::Look) => standing,
            () = limit => Err("it does not answer in time".into()),
        };
        relay_seen(login, standing)
    }

    /// Opens a session on a server, even on a locked one.
    pub(super) async fn session(&self, node: &str) -> PeerResult<Client> {
        self.session_and_lock(node).await.map(|(client, _)| client)
    }

    /// Opens a session on a server; the flag is true if the server is locked.
    async fn session_and_lock(&self, node: &str) -> PeerResult<(Client, bool)> {
        match self.connect(node, APPLICATION, &Settings::catalog()).await {
            Err(why) if why.contains(lock::LIBRARY) => Ok((self.session_past_lock(node, APPLICATION).await?, true)),
            other => other.map(|client| (client, false)),
        }
    }

    /// Opens a superuser's session that a [`lock`] does not refuse.
    pub(super) async fn session_past_lock(&self, node: &str, application: &str) -> PeerResult<Client> {
        self.connect(node, application, &Settings::catalog().with("session_preload_libraries", "")).await
    }

    /// True if the server refuses sessions because it is locked.
    pub(super) async fn is_locked(&self, node: &str) -> PeerResult<bool> {
        match self.connect(node, APPLICATION, &Settings::catalog()).await {
            Ok(_) => Ok(false),
            Err(why) if why.contains(lock::LIBRARY) => Ok(true),
            Err(why) => Err(why),
        }
    }

    async fn connect(&self, node: &str, application: &str, settings: &Settings) -> PeerResult<Client> {
        let known = self.cluster.nodes.iter().find(|known| known.name == node);
        let known = known.ok_or_else(|| format!("no node is named {node}"))?;
        let client = topology::connect(&self.cluster, known, application, Some(settings), self.look.max(LOOK)).await;
        client.map_err(|error| error.to_string())
    }

    /// Queries the state of a server.
    pub(super) async fn look(&self, node: &str) -> PeerResult<ServerState> {
        let look = async {
            let (client, locked) = self.session_and_lock(node).await?;
            let row = client.query_one(ASK, &[]).await.map_err(|error| describe(&error))?;
            let mut state = read(&row).map_err(|error| describe(&error))?;
            if locked {
                state.locked = lock::kind(&client).await?;
            }
            if state.superuser {
                let command = first(&client, note::COMMAND).await?.unwrap_or_default();
                state.note = Note::read(&command).1;
                state.read_only = first(&client, lock::READ_ONLY).await?.as_deref() == Some("t");
            }
            Ok(state)
        };
        within(self.look, look).await
    }

    /// Runs quick statements on a server, each in its own transaction; returns the first value of the last one.
    pub(super) async fn run(&self, node: &str, statements: &[&str]) -> PeerResult<Option<String>> {
        let client = self.session(node).await?;
        let mut value = None;
        for statement in statements {
            value = first(&client, statement).await?;
        }
        Ok(value)
    }

    /// Has a server make a checkpoint, which may take as long as a step.
    pub(super) async fn checkpoint(&self, node: &str) -> PeerResult<()> {
        let client = self.session(node).await?;
        // The server has a time limit, too, which a lost server cannot keep.
        within(self.cluster.probe_timeout + LOOK, ask(&client, "CHECKPOINT")).await.map(drop)
    }

    /// Has a relay carry out an order.
    pub(super) async fn order(&self, relay: &str, order: Order) -> PeerResult<RelayState> {
        let limit = if order == Order::Look { self.look } else { ORDER };
        let looking = (order == Order::Look).then(|| self.looking(relay)).flatten();
        if looking.as_ref().is_some_and(|looking| looking.swap(true, Ordering::AcqRel)) {
            // The thread of the last query is still waiting: no second one waits beside it.
            return Err(format!("relay {relay} does not answer"));
        }
        self.ask_relay(relay, limit, move |relay| {
            let result = match &order {
                Order::Look => ::relay::look(relay, limit),
                order => ::relay::order(relay, order),
            };
            if let Some(looking) = looking {
                looking.store(false, Ordering::Release);
            }
            result
        })
        .await
    }

    fn looking(&self, relay: &str) -> Option<Arc<AtomicBool>> {
        let login = self.relays.iter().find(|login| login.part.name == relay)?;
        Some(Arc::clone(&login.looking))
    }

    /// Creates a physical slot on a relay, unless it exists.
    pub(super) async fn make_slot(&self, relay: &str, slot: &str) -> PeerResult<()> {
        let slot = slot.to_owned();
        self.ask_relay(relay, LOOK, move |relay| ::relay::make_slot(relay, &slot)).await
    }

    /// Drops a physical slot on a relay, if it exists.
    pub(super) async fn drop_slot(&self, relay: &str, slot: &str) -> PeerResult<()> {
        let slot = slot.to_owned();
        self.ask_relay(relay, LOOK, move |relay| ::relay::drop_slot(relay, &slot)).await
    }

    /// Runs a blocking request to a relay, off the runtime.
    async fn ask_relay<T: Send + 'static>(
        &self,
        relay: &str,
        limit: Duration,
        ask: impl FnOnce(&RelayAccess<'_>) -> Result<T, SessionError> + Send + 'static,
    ) -> PeerResult<T> {
        let login = self.relays.iter().find(|login| login.part.name == relay).cloned();
        let Login { part, password, .. } = login.ok_or_else(|| format!("no relay is named {relay}"))?;
        let connector = self.connector.clone();
        let work = tokio::task::spawn_blocking(move || {
            let relay = RelayAccess {
                name: &part.name,
                address: &part.address,
                user: &part.user,
                password: password.as_deref(),
                connector: connector.as_ref(),
            };
            ask(&relay)
        });
        match tokio::time::timeout(limit, work).await {
            // The caller knows the request.
            Ok(Ok(result)) => result.map_err(|error| error.refusal().map_or_else(|| error.to_string(), str::to_owned)),
            Ok(Err(_)) => Err("asking it panicked".into()),
            Err(_) => Err(format!("relay {relay} does not answer within {limit:?}")),
        }
    }

    /// Runs a command in the console of each proxy, concurrently; returns the names and errors of those where it failed.
    pub(super) async fn consoles(&self, command: &str, limit: Duration) -> Vec<(String, String)> {
        let each = (0..self.proxies.len()).map(|proxy| self.at_console(proxy, command, limit));
        join_all(each).await.into_iter().flatten().collect()
    }

    /// Runs a command in the console of the proxy of this index; returns its name and the error if the command fails, or does not end within `limit`.
    pub(super) async fn at_console(&self, proxy: usize, command: &str, limit: Duration) -> Option<(String, String)> {
        let login = &self.proxies[proxy];
        let work = async { ask(&self.console(login).await?, command).await.map(drop) };
        let done = tokio::time::timeout(limit, work).await;
        let done = done.unwrap_or_else(|_| Err(format!("{command} took longer than {limit:?}")));
        done.err().map(|error| (login.part.name.clone(), error))
    }

    /// Queries all proxies concurrently.
    pub(super) async fn proxies(&self) -> Vec<ProxySeen> {
        let each = self.proxies.iter().map(|login| async move {
            let look = async {
                let console = self.console(login).await?;
                let values = pairs(&console, "SHOW STATE", "key", "value").await?;
                let value = |key: &str| values.iter().find(|(of, _)| of == key).map(|(_, value)| value.as_str());
                let gates = pairs(&console, "SHOW GATE", "database", "durability").await?;
                Ok(ProxyState {
                    paused: value("paused") == Some("yes"),
                    lease: value("pause_lease").and_then(|left| left.parse().ok()).map(Duration::from_secs),
                    gates,
                })
            };
            let state = within(self.look, look).await;
            ProxySeen { name: login.part.name.clone(), address: login.part.address.clone(), state }
        });
        join_all(each).await
    }

    async fn console(&self, login: &Login) -> PeerResult<Client> {
        let mut console = self.cluster.clone();
        (console.user, console.password) = (login.part.user.clone(), login.password.clone());
        // The console of this cluster alone, if the proxy has several: the other clusters' clients are not affected.
        console.database = match &login.part.cluster {
            Some(cluster) => format!("kingpost.{cluster}"),
            None => "kingpost".into(),
        };
        console.tls = self.tls.clone();
        let node = NodeConfig::new(login.part.name.clone(), login.part.address.clone());
        let client = topology::connect(&console, &node, APPLICATION, None, self.look).await;
        client.map_err(|error| error.to_string())
    }
}

/// Returns two columns of a console's table.
async fn pairs(console: &Client, command: &str, first: &str, second: &str) -> PeerResult<Vec<(String, String)>> {
    let messages = console.simple_query(command).await.map_err(|error| describe(&error))?;
    let row = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => {
            let text = |name| row.try_get(name).ok().flatten().unwrap_or_default().to_owned();
            Some((text(first), text(second)))
        }
        _ => None,
    };
    Ok(messages.iter().filter_map(row).collect())
}

/// Returns the result of some work, or an error if it takes too long.
async fn within<T>(limit: Duration, work: impl Future<Output = PeerResult<T>>) -> PeerResult<T> {
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
}

/// Returns the first value of a quick statement's first row, as text.
pub(super) async fn first(client: &Client, statement: &str) -> PeerResult<Option<String>> {
    within(ANSWER, ask(client, statement)).await
}

/// Returns the first value of a statement's first row, without a time limit: the caller has one.
async fn ask(client: &Client, statement: &str) -> PeerResult<Option<String>> {
    let messages = client.simple_query(statement).await.map_err(|error| describe(&error))?;
    Ok(messages.into_iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}

fn read(row: &tokio_postgres::Row) -> Result<ServerState, tokio_postgres::Error> {
    let lsn = |at: Option<PgLsn>| Lsn(at.map_or(0, u64::from));
    let standby: bool = row.try_get(1)?;
    let first = lsn(row.try_get(2)?);
    let received = lsn(row.try_get(3)?);
    Ok(ServerState {
        system: row.try_get::<_, i64>(0)?.cast_unsigned(),
        standby,
        timeline: row.try_get::<_, Option<i32>>(4)?.unwrap_or(0).cast_unsigned(),
        has: first.max(received),
        replayed: first,
        receiving: row.try_get(5)?,
        conninfo: row.try_get::<_, Option<String>>(6)?.filter(|conninfo| !conninfo.is_empty()),
        slot: row.try_get::<_, Option<String>>(7)?.filter(|slot| !slot.is_empty()),
        delay: Duration::from_millis(row.try_get::<_, Option<i32>>(8)?.unwrap_or(0).unsigned_abs().into()),
        paused: row.try_get(9)?,
        superuser: row.try_get(10)?,
        sync_names: row.try_get(11)?,
        locked: Locked::No,
        read_only: false,
        note: None,
    })
}

/// Returns the server's own message, if there is one.
pub(super) fn describe(error: &tokio_postgres::Error) -> String {
    use std::error::Error;
    match (error.as_db_error(), error.source()) {
        (Some(said), _) => format!("{} (SQLSTATE {})", said.message(), said.code().code()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}
