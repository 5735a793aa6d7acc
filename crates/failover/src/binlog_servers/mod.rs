//! Servers of MariaDB or MySQL behind relays, as a kind of servers of the [engine](super::engine) and behind its adapter: GTIDs, and epochs that each
//! relay counts for itself. The two families differ in the text of statements ([`Family`]) and in the comparison of transactions ([`Held`]).
//!
//! ```text
//!  survey ─▶ fence the relays in a term ─▶ a candidate catches up from the relay that has most ─▶ chosen on the relays ─▶ promoted ─▶ relays follow
//!
//!  switchover: the source refuses writes ─▶ the relays have all of its log ─▶ as above ─▶ the former source replicates from a relay
//! ```
//!
//! All state is on the relays, as for PostgreSQL: after a run was killed, the next one continues where it stopped. A server keeps no note: whatever was
//! chosen binds, until a relay has followed it and it is lost, or an operator gives it up. Replicas stay with their relays: nothing changes for them.

mod situation;
mod switchover;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::binlog::Dialect;
use ::binlog::gtid::{State, mariadb, mysql};
use ::relay::{BinlogAccess, BinlogSession, BinlogStanding, Order};
use futures_util::future::join_all;
use tokio::sync::Mutex;

use super::ballot::TooFew;
use super::cluster_monitor::Hosts;
use super::elect::{Adapter, Elected, News, NotPromoted, Stop, elect};
use super::engine::{Engine, NotAgreed, Plan, Promoted, ServerKind, Wish};
use super::failover_run::{self, Guard, NoGuard};
use super::plan::{Candidate, Election, RelaySeen, ServerSeen, Survey, Tags};
use super::{drive, run};
use crate::args::{FailoverArgs, StopAt};
use config::{Config, failover::needed, secret};
use process::{Failure, terminal};
use situation::has_followed;
pub(super) use switchover::switchover;
pub(super) use watch::watch;

/// Longest wait until relays receive from a new source.
const BEGUN: Duration = Duration::from_secs(10);
/// Interval between two checks of a condition that is waited for.
const PACE: Duration = Duration::from_millis(50);

/// Servers with a binary log.
#[derive(Debug, Clone, Copy)]
pub(super) enum BinlogServers {}

type Node = ServerSeen<BinlogServers>;
type Relay = RelaySeen<BinlogServers>;

/// Answer of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeState {
    pub(super) server_id: u32,
    /// The transactions that it has.
    pub(super) held: Held,
    pub(super) read_only: bool,
    /// Address of the server that it replicates from.
    pub(super) master: Option<String>,
}

/// Transactions of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Held {
    MariaDb {
        /// Transactions in its binary log.
        log: mariadb::State,
        /// The last transaction that it has, per domain.
        position: mariadb::Position,
    },
    /// The executed transactions.
    MySql(mysql::Set),
}

impl Held {
    /// Returns the transactions in the binary log.
    fn state(&self) -> State {
        match self {
            Held::MariaDb { log, .. } => State::MariaDb(log.clone()),
            Held::MySql(executed) => State::MySql(executed.clone()),
        }
    }

    fn has(&self, wanted: &Wanted) -> bool {
        match (self, wanted) {
            (Held::MariaDb { log, position }, Wanted::MariaDb(wanted)) => {
                wanted.iter().all(|gtid| log.contains(gtid) || position.get(gtid.domain) == Some(gtid))
            }
            (Held::MySql(executed), Wanted::MySql(wanted)) => executed.includes(wanted),
            _ => false,
        }
    }

    /// Returns the number of transactions; for MariaDB as far as sequence numbers tell.
    fn reach(&self) -> u64 {
        match self {
            Held::MariaDb { position, .. } => position.iter().map(|gtid| gtid.sequence).fold(0, u64::saturating_add),
            Held::MySql(executed) => executed.count(),
        }
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Held::MariaDb { position, .. } => position.fmt(f),
            Held::MySql(executed) => executed.fmt(f),
        }
    }
}

/// Transactions that the new source must have.
#[derive(Debug, Clone)]
pub(super) enum Wanted {
    /// The last one of each domain.
    MariaDb(mariadb::Position),
    /// The complete set.
    MySql(mysql::Set),
}

impl Wanted {
    fn of(state: &State) -> Wanted {
        match state {
            State::MariaDb(state) => Wanted::MariaDb(state.position()),
            State::MySql(set) => Wanted::MySql(set.clone()),
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::MariaDb(position) => position.fmt(f),
            Wanted::MySql(set) => set.fmt(f),
        }
    }
}

/// Statements for the servers of a family.
struct Family {
    /// Queries for `server_id`, `read_only`, and one or two texts of the transactions that the server has.
    look: &'static str,
    /// Queries for the replication. Host and port of the source are the second and fourth of many columns.
    replication: &'static str,
    stop: &'static str,
    start: &'static str,
    /// Makes the server a source whose commits wait for a relay as the old source's did, from the first one on.
    promote: [&'static str; 5],
    writable: &'static str,
    /// Queries for whether the server can be a source: fails without semi-synchronous replication; 0 without a binary log of what it replicates.
    ready: &'static str,
    /// Ends all writes: no transaction commits from the last statement's answer on.
    silence: &'static [&'static str],
    /// Makes a silent source a server whose own commits wait for no relay: those of its replication would wait for ever.
    demote: &'static [&'static str],
}

const MARIADB: Family = Family {
    look: "SELECT @@server_id, @@read_only, @@gtid_binlog_state, @@gtid_current_pos",
    replication: "SHOW SLAVE STATUS",
    stop: "STOP SLAVE",
    start: "START SLAVE",
    promote: [
        "SET GLOBAL rpl_semi_sync_master_timeout = 4294967295",
        "SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC",
        "SET GLOBAL rpl_semi_sync_master_wait_no_slave = ON",
        "SET GLOBAL rpl_semi_sync_master_enabled = ON",
        "RESET SLAVE ALL",
    ],
    writable: "SET GLOBAL read_only = 0",
    ready: "SELECT @@global.log_bin AND @@global.log_slave_updates, @@global.rpl_semi_sync_master_enabled",
    // read_only does not bind users with READ_ONLY ADMIN; the lock, which ends with the session, binds all.
    silence: &["SET GLOBAL read_only = 1", "FLUSH TABLES WITH READ LOCK"],
    demote: &["SET GLOBAL rpl_semi_sync_master_enabled = OFF", "UNLOCK TABLES", "STOP SLAVE"],
};

const MYSQL: Family = Family {
    look: "SELECT @@server_id, @@read_only, @@global.gtid_executed",
    replication: "SHOW REPLICA STATUS",
    stop: "STOP REPLICA",
    start: "START REPLICA",
    promote: [
        "SET GLOBAL rpl_semi_sync_source_timeout = 4294967295",
        "SET GLOBAL rpl_semi_sync_source_wait_point = AFTER_SYNC",
        "SET GLOBAL rpl_semi_sync_source_wait_no_replica = ON",
        "SET GLOBAL rpl_semi_sync_source_enabled = ON",
        "RESET REPLICA ALL",
    ],
    // super_read_only, too.
    writable: "SET GLOBAL read_only = OFF",
    ready: "SELECT @@global.log_bin AND @@global.log_replica_updates, @@global.rpl_semi_sync_source_enabled",
    silence: &["SET GLOBAL super_read_only = ON"],
    demote: &["SET GLOBAL rpl_semi_sync_source_enabled = OFF", "STOP REPLICA"],
};

impl Family {
    fn of(dialect: Dialect) -> &'static Family {
        match dialect {
            Dialect::MariaDb => &MARIADB,
            Dialect::MySql => &MYSQL,
        }
    }
}

/// Returns the statement that has a replica replicate from another address, with the login that it has.
fn change_source(dialect: Dialect, host: &str, port: &str) -> String {
    let host = host.replace(['\'', '\\'], "");
    match dialect {
        Dialect::MariaDb => format!("CHANGE MASTER TO MASTER_HOST = '{host}', MASTER_PORT = {port}"),
        Dialect::MySql => format!("CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{host}', SOURCE_PORT = {port}"),
    }
}

/// Returns the query that waits until a server has transactions: 0 if it has them, anything else after `seconds`.
fn wait_for(wanted: &Wanted, seconds: u64) -> String {
    match wanted {
        Wanted::MariaDb(position) => format!("SELECT MASTER_GTID_WAIT('{position}', {seconds})"),
        Wanted::MySql(set) => format!("SELECT WAIT_FOR_EXECUTED_GTID_SET('{set}', {seconds})"),
    }
}

/// Position that the new source must have.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// Name and address of the relay that has it.
    relay: (String, String),
    wanted: Wanted,
}

/// Reason to do nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{answer} of {relays} relays answer, and {fence} are needed: what was acknowledged could be lost")]
    TooFew { answer: usize, relays: usize, fence: usize },
    #[error("{relay} receives from {upstream} at this moment: the source lives")]
    Lives { relay: String, upstream: String },
    #[error("an earlier run has chosen {chosen}, which may be the source already: it goes on with that, not with {to}")]
    Chosen { chosen: String, to: String },
    #[error("the relays {0} and {1} have each what the other lacks: they have followed two sources")]
    Apart(String, String),
    #[error("no server that could be promoted answers")]
    Nobody,
    #[error("{0} is the source that the relays would be fenced from: they could not follow it afterwards")]
    Old(String),
    #[error("{node} was chosen on {relay}, and may be the source already: the fences stay")]
    Begun { relay: String, node: String },
}

impl ServerKind for BinlogServers {
    type Server = NodeState;
    type Relay = BinlogStanding;
    type Target = Target;
    type Refusal = Refusal;

    const NOTES: bool = false;
    // Hosts that are silent are waited for long enough once.
    const SURVEYS_AGAIN: bool = false;
    const SIDE_BY_SIDE: bool = false;
    // A relay that has lost its directory must not come back during a failover, so that no two runs hold one term.
    const OWN_TERMS: bool = false;

    fn system_of_server(_: &NodeState) -> u64 {
        0
    }

    fn system_of_relay(_: &BinlogStanding) -> u64 {
        0
    }

    fn term(relay: &BinlogStanding) -> u64 {
        relay.term
    }

    fn chosen(relay: &BinlogStanding) -> Option<&(u64, String)> {
        relay.chosen.as_ref()
    }

    fn noted(_: &NodeState) -> Option<u64> {
        None
    }

    fn fence(_: &Plan, relay: &Relay) -> Option<u32> {
        relay.standing.as_ref().ok().map(|standing| standing.epoch)
    }

    fn promoted(_: &Survey<BinlogServers>) -> Option<Promoted> {
        None
    }

    fn candidates(now: &Survey<BinlogServers>, plan: &Plan, wish: &Wish<'_>) -> Result<Election, Refusal> {
        let only = binding(now, plan, wish)?.or(wish.to.map(str::to_owned));
        let to_fence = now.standing().filter(|(relay, _)| !plan.there.contains(&relay.name));
        let old = to_fence.max_by_key(|(_, standing)| standing.epoch).map_or(0, |(_, standing)| standing.source);
        let found = fit(now, old, only.as_deref());
        match found.first() {
            None => return Err(Refusal::Nobody),
            Some((first, state)) if state.server_id == old => return Err(Refusal::Old(first.name.clone())),
            Some(_) => {}
        }
        let candidate = |(node, _): (&Node, _)| Candidate { name: node.name.clone(), priority: 0 };
        Ok(Election { candidates: found.into_iter().map(candidate).collect(), withdraw: None, unfit: Vec::new() })
    }

    fn keep_furthest(_: &mut Election, _: &Survey<BinlogServers>) {}

    fn target(fenced: &[(Relay, BinlogStanding)]) -> Result<Option<Target>, Refusal> {
        let (relay, standing) = furthest(fenced)?;
        let relay = (relay.name.clone(), relay.address.clone());
        Ok(Some(Target { relay, wanted: Wanted::of(&standing.state) }))
    }

    #[cfg(test)]
    fn reached(target: &Target, server: &NodeState) -> bool {
        server.held.has(&target.wanted)
    }

    fn holds(then: &BinlogStanding, now: &BinlogStanding, node: Option<&NodeState>) -> bool {
        // The choice was carried out there already, or the relay is where its fence is.
        node.is_some_and(|node| node.server_id == now.source) || (now.fenced && now.epoch == then.epoch)
    }
}

/// True if the relay takes a server's writes: it has left any fence and entered an epoch of that server.
fn follows(standing: &BinlogStanding, node: &Node) -> bool {
    let is_source = node.state.as_ref().is_ok_and(|state| state.server_id == standing.source);
    !standing.fenced && (is_source || standing.upstream == node.address)
}

/// Decides on the failover to carry out.
///
/// # Errors
/// The source lives, too few relays answer, or another node was chosen than the wish names.
pub(super) fn begin(survey: &Survey<BinlogServers>, wish: &Wish<'_>) -> Result<Plan, Refusal> {
    let fence = needed(survey.relays.len(), survey.acknowledgements);
    let answer = survey.standing().count();
    if answer < fence {
        return Err(Refusal::TooFew { answer, relays: survey.relays.len(), fence });
    }
    let lives = |standing: &BinlogStanding| !standing.fenced && standing.upstream_state == "streaming";
    let elected = survey.elected();
    let node = elected.as_ref().and_then(|(_, name)| survey.server(name));
    let there: Vec<String> = survey
        .standing()
        .filter(|(_, standing)| node.is_some_and(|node| follows(standing, node)))
        .map(|(relay, _)| relay.name.clone())
        .collect();
    // A relay follows the chosen server, so that choice was carried out. If the server is lost by now, this is the next failover.
    let carried_out = !there.is_empty() && node.is_some_and(|node| node.state.is_err());
    // The operator has said that the chosen server is gone for good.
    let given_up = wish.force && wish.to.is_some() && wish.to != elected.as_ref().map(|(_, name)| name.as_str());
    let plan = match elected {
        Some((over, _)) if carried_out || given_up => Plan { over, carried_out, ..Plan::default() },
        _ => Plan { there, ..Plan::default() },
    };
    let chosen = binding(survey, &plan, wish)?;
    if let Some((relay, standing)) = survey.standing().find(|(_, standing)| lives(standing))
        && !wish.force
        && chosen.is_none()
    {
        return Err(Refusal::Lives { relay: relay.name.clone(), upstream: standing.upstream.clone() });
    }
    Ok(plan)
}

/// Returns the node that an earlier run has chosen, and that the relays' answers still bind to.
fn binding(survey: &Survey<BinlogServers>, plan: &Plan, wish: &Wish<'_>) -> Result<Option<String>, Refusal> {
    let chosen = survey.elected().filter(|(term, _)| *term > plan.over).map(|(_, node)| node);
    match (&chosen, wish.to) {
        (Some(chosen), Some(to)) if chosen != to => Err(Refusal::Chosen { chosen: chosen.clone(), to: to.into() }),
        _ => Ok(chosen),
    }
}

/// Checks that the fences may be removed: no relay is changed if any has recorded a chosen node.
fn may_abort(survey: &Survey<BinlogServers>) -> Result<(), Refusal> {
    let chosen = survey.standing().find_map(|(relay, standing)| Some((relay, standing.chosen.as_ref()?)));
    match chosen {
        Some((relay, (_, node))) => Err(Refusal::Begun { relay: relay.name.clone(), node: node.clone() }),
        None => Ok(()),
    }
}

/// Returns the relay that has everything that any of them has.
fn furthest(fenced: &[(Relay, BinlogStanding)]) -> Result<(&Relay, &BinlogStanding), Refusal> {
    let mut best: Option<(&Relay, &BinlogStanding)> = None;
    for (relay, standing) in fenced {
        best = match best {
            None => Some((relay, standing)),
            Some((_, held)) if standing.state.includes(&held.state) => Some((relay, standing)),
            Some((_, held)) if held.state.includes(&standing.state) => best,
            Some((other, _)) => return Err(Refusal::Apart(other.name.clone(), relay.name.clone())),
        };
    }
    best.ok_or(Refusal::Nobody)
}

/// Returns the servers that may be promoted, best first: the named or chosen one; or every one that answers and is not the old source.
fn fit<'a>(survey: &'a Survey<BinlogServers>, old: u32, only: Option<&str>) -> Vec<(&'a Node, &'a NodeState)> {
    let fits = |(node, state): &(&Node, &NodeState)| match only {
        Some(only) => node.name == only,
        None => state.server_id != old,
    };
    let mut all: Vec<_> = survey.answering().filter(fits).collect();
    all.sort_by_key(|(_, state)| std::cmp::Reverse(state.held.reach()));
    all
}

/// Access to servers and relays.
struct BinlogClients {
    config: Config,
    dialect: Dialect,
    password: String,
    servers_tls: Option<Arc<tls::Connector>>,
    relays_tls: Option<Arc<tls::Connector>>,
    relay_passwords: Vec<String>,
    /// One look at a host at a time: a host that does not answer holds one thread, not one for each look.
    server_turns: Vec<Arc<Mutex<()>>>,
    relay_turns: Vec<Arc<Mutex<()>>>,
}

impl BinlogClients {
    fn new(config: Config, dialect: Dialect) -> Result<BinlogClients, Failure> {
        let connector = |tls: &tls::ConnectConfig, section: &str| {
            let made = tls::Connector::new(tls).map_err(|error| Failure::config(format!("[{section}] {error}")));
            made.map(|connector| connector.map(Arc::new))
        };
        let failover = &config.failover;
        let password = secret(failover.password.as_ref(), failover.password_file.as_deref())?.unwrap_or_default();
        let relay_passwords = failover
            .relays
            .iter()
            .map(|relay| Ok(secret(relay.password.as_ref(), relay.password_file.as_deref())?.unwrap_or_default()))
            .collect::<Result<_, Failure>>()?;
        let servers_tls = connector(&config.cluster.tls, "cluster.tls")?;
        let relays_tls = connector(&failover.tls, "failover.tls")?;
        let turns = |count: usize| (0..count).map(|_| Arc::default()).collect();
        let (server_turns, relay_turns) = (turns(config.cluster.nodes.len()), turns(failover.relays.len()));
        Ok(BinlogClients {
            dialect,
            password,
            servers_tls,
            relays_tls,
            relay_passwords,
            server_turns,
            relay_turns,
            config,
        })
    }

    fn server(&self, address: &str) -> Result<BinlogSession, String> {
        let (user, password) = (&self.config.failover.user, &self.password);
        BinlogSession::open(&BinlogAccess { address, user, password, connector: self.servers_tls.clone() })
    }

    fn order(&self, relay: usize, order: &Order) -> Result<BinlogStanding, String> {
        let part = &self.config.failover.relays[relay];
        let (address, user, password) = (&part.address, &part.user, &self.relay_passwords[relay]);
        BinlogSession::open(&BinlogAccess { address, user, password, connector: self.relays_tls.clone() })?
            .order(order, self.dialect)
    }

    async fn survey(self: &Arc<Self>) -> Survey<BinlogServers> {
        self.survey_by(std::future::pending).await
    }

    /// Queries all hosts; one that does not answer within the limit counts as silent.
    async fn survey_within(self: &Arc<Self>, limit: Duration) -> Survey<BinlogServers> {
        self.survey_by(|| tokio::time::sleep(limit)).await
    }

    async fn survey_by<L: Future<Output = ()>>(self: &Arc<Self>, limit: impl Fn() -> L) -> Survey<BinlogServers> {
        let servers = (0..self.config.cluster.nodes.len()).map(|index| self.see_server(index, limit()));
        let relays = (0..self.config.failover.relays.len()).map(|index| self.see_relay(index, limit()));
        let (servers, relays) = tokio::join!(join_all(servers), join_all(relays));
        Survey { servers, relays, acknowledgements: self.config.failover.acknowledgements }
    }

    async fn look_at_server(self: &Arc<Self>, index: usize) -> Node {
        let address = self.config.cluster.nodes[index].address.clone();
        let turn = Arc::clone(&self.server_turns[index]).lock_owned().await;
        let look = move |clients: &BinlogClients| {
            let _turn = turn;
            look(&mut clients.server(&address)?, clients.dialect)
        };
        self.server_seen(index, self.off(look).await)
    }

    async fn look_at_relay(self: &Arc<Self>, index: usize) -> Relay {
        let turn = Arc::clone(&self.relay_turns[index]).lock_owned().await;
        let look = move |clients: &BinlogClients| {
            let _turn = turn;
            clients.order(index, &Order::Look)
        };
        self.relay_seen(index, self.off(look).await)
    }

    fn server_seen(&self, index: usize, state: Result<NodeState, String>) -> Node {
        let node = &self.config.cluster.nodes[index];
        Node { name: node.name.clone(), address: node.address.clone(), tags: Tags::default(), state }
    }

    fn relay_seen(&self, index: usize, standing: Result<BinlogStanding, String>) -> Relay {
        let part = &self.config.failover.relays[index];
        Relay { name: part.name.clone(), address: part.address.clone(), application: String::new(), standing }
    }

    /// Runs blocking work off the runtime.
    async fn off<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&BinlogClients) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let clients = Arc::clone(self);
        tokio::task::spawn_blocking(move || work(&clients)).await.map_err(|error| error.to_string())?
    }
}

fn look(session: &mut BinlogSession, dialect: Dialect) -> Result<NodeState, String> {
    let family = Family::of(dialect);
    let rows = session.query(family.look)?;
    let text = |column: usize| rows.first().and_then(|row| row.get(column)?.clone()).unwrap_or_default();
    let wrong = |_| "the server answers what is not understood".to_owned();
    let replication = session.query(family.replication)?;
    let master = replication.first().and_then(|row| Some(format!("{}:{}", row.get(1)?.clone()?, row.get(3)?.clone()?)));
    Ok(NodeState {
        server_id: text(0).parse().map_err(|_| "no server_id".to_owned())?,
        held: match dialect {
            Dialect::MariaDb => {
                Held::MariaDb { log: text(2).parse().map_err(wrong)?, position: text(3).parse().map_err(wrong)? }
            }
            Dialect::MySql => Held::MySql(text(2).parse().map_err(wrong)?),
        },
        read_only: text(1) != "0",
        master,
    })
}

/// Promotes a replica to replace a lost source.
pub(super) fn failover(config: Config, dialect: Dialect, args: &FailoverArgs) -> Result<(), Failure> {
    let servers = Servers::new(config, dialect, &args.stop)?;
    run(async {
        let survey = servers.clients.survey().await;
        show(&survey);
        if args.abort {
            return abort(&servers, &survey).await;
        }
        let wish = Wish { to: args.to.as_deref(), force: args.force, ..Wish::default() };
        replace_source(&servers, &survey, &wish, args.dry_run, &NoGuard).await
    })
}

/// Carries out a failover from the survey to the end.
async fn replace_source(
    servers: &Servers,
    survey: &Survey<BinlogServers>,
    wish: &Wish<'_>,
    dry_run: bool,
    guard: &impl Guard,
) -> Result<(), Failure> {
    let plan = begin(survey, wish).map_err(refuse)?;
    let election = BinlogServers::candidates(survey, &plan, wish).map_err(refuse)?;
    if dry_run {
        let names: Vec<&str> = election.candidates.iter().map(|candidate| candidate.name.as_str()).collect();
        terminal::line(format_args!(
            "would fence {} or more relays in term {}, and promote {}",
            survey.needed(),
            survey.highest_term() + 1,
            names.join(" or ")
        ));
        return Ok(());
    }
    // From here on the old source gets nothing acknowledged.
    let Elected { promoted, engine } = elect(servers, survey, plan, wish, None, guard).await?;
    terminal::line(format_args!("{} is the source", promoted.node));
    follow(servers, &promoted.node, &engine).await
}

fn refuse(refusal: Refusal) -> Failure {
    let advice = match &refusal {
        Refusal::Lives { .. } => "--force takes the relays away from it all the same",
        Refusal::Chosen { .. } => "leave --to out; or, if that server never comes back as the source, say --force",
        Refusal::Old(_) => "`kingpost failover --abort` lets them go on with it; else name a replica",
        _ => "look at what is shown above",
    };
    Failure::runtime(refusal.to_string()).advise(advice)
}

/// Queries all servers and relays, shows their state, and changes nothing.
///
/// # Errors
/// A server or relay does not answer.
pub(super) fn check(config: Config, dialect: Dialect) -> Result<(), Failure> {
    let clients = Arc::new(BinlogClients::new(config, dialect)?);
    drive(async {
        let survey = clients.survey().await;
        show(&survey);
        let (all, answer) =
            (survey.servers.len() + survey.relays.len(), survey.answering().count() + survey.standing().count());
        let silent = all - answer;
        if silent == 0 { Ok(()) } else { Err(Failure::runtime(format!("{silent} of them do not answer"))) }
    })
}

/// The servers and relays of a failover.
struct Servers {
    clients: Arc<BinlogClients>,
    /// Test hook that stops the run.
    stop: StopAt,
}

impl Servers {
    fn new(config: Config, dialect: Dialect, stop: &StopAt) -> Result<Servers, Failure> {
        Ok(Servers { clients: Arc::new(BinlogClients::new(config, dialect)?), stop: stop.clone() })
    }

    fn limit(&self) -> Duration {
        self.clients.config.failover.step_timeout
    }

    fn address(&self, node: &str) -> String {
        let known = self.clients.config.cluster.nodes.iter().find(|known| known.name == node);
        known.map(|known| known.address.clone()).unwrap_or_default()
    }
}

impl Adapter for Servers {
    type Kind = BinlogServers;
    type Setback = String;

    fn run(&self) -> u16 {
        0
    }

    fn mark(&self, name: &str) {
        failover_run::mark(&self.stop, name, |text| terminal::line(text));
    }

    async fn order(&self, relay: &str, order: Order) -> Result<BinlogStanding, String> {
        let index = self.clients.config.failover.relays.iter().position(|part| part.name == relay);
        let index = index.ok_or_else(|| format!("no relay is named {relay}"))?;
        self.clients.off(move |clients| clients.order(index, &order)).await
    }

    async fn survey_again(&self, before: &Survey<BinlogServers>) -> Survey<BinlogServers> {
        before.clone()
    }

    async fn note(&self, _: &Survey<BinlogServers>, _: u64, _: Option<&str>) -> Vec<String> {
        Vec::new()
    }

    async fn catch_up(&self, candidates: &[Candidate], target: &Target) -> Result<String, String> {
        let node = candidates.first().map(|candidate| candidate.name.clone()).unwrap_or_default();
        let (address, target) = (self.address(&node), target.clone());
        self.clients.off(move |clients| catch_up(clients, &address, &target)).await.map(|()| node)
    }

    async fn promote(&self, node: &str, _: &Engine<BinlogServers>) -> Result<u32, NotPromoted<String>> {
        let address = self.address(node);
        let told = self.clients.off(move |clients| Ok(promote(clients, &address))).await;
        let why = match told {
            Ok(Ok(())) => return Ok(0),
            Ok(Err(Told::No(why))) => return Err(NotPromoted::Not(why)),
            Ok(Err(Told::Unknown(why))) | Err(why) => why,
        };
        let failure = Failure::runtime(format!("{node} was chosen, and does not say whether it takes writes: {why}"));
        Err(NotPromoted::Unknown(failure.advise(
            "run it again: it goes on with that server; if that is gone for good, --force --to NODE takes another",
        )))
    }

    fn not_chosen(&self, _: &str, NotAgreed { agree, quorum }: NotAgreed, _: &[String]) -> String {
        format!("{agree} relays took the choice, and {quorum} are needed: another run may be under way")
    }

    fn nothing_promoted(&self, setbacks: Vec<(String, String)>) -> Failure {
        let failed: Vec<String> = setbacks.into_iter().map(|(node, why)| format!("{node}: {why}")).collect();
        Failure::runtime(format!("nothing was promoted: {}", failed.join("; ")))
            .advise("run it again to go on; `kingpost failover --abort` takes the fence away")
    }

    fn tell(&self, news: News<'_, BinlogServers>) {
        match news {
            News::There { relay } => terminal::line(format_args!("{relay}: follows the new source already")),
            News::NotFenced { relay, why } => terminal::line(format_args!("{relay}: not fenced: {why}")),
            News::EnoughFenced { engine, .. } => {
                let Ok((best, has)) = furthest(&engine.ballot.relays) else { return };
                terminal::line(format_args!(
                    "fenced {} relays in term {}; {} has {}",
                    engine.ballot.relays.len(),
                    engine.term(),
                    best.name,
                    Wanted::of(&has.state)
                ));
            }
            News::NotChosen { relay, why } => terminal::line(format_args!("{relay}: {why}")),
            News::Fenced { .. }
            | News::PromotedMeanwhile { .. }
            | News::Counted { .. }
            | News::Withdrawn { .. }
            | News::Chosen { .. } => {}
        }
    }

    fn failure(&self, stop: Stop<'_, BinlogServers>) -> Failure {
        match stop {
            Stop::Fenced { too_few: TooFew { fenced, needed }, relays, .. } => {
                refuse(Refusal::TooFew { answer: fenced, relays, fence: needed })
            }
            Stop::Refused(refusal) => refuse(refusal),
            Stop::Overtaken { node, term, not: NotAgreed { agree, quorum } } => Failure::runtime(format!(
                "{node} is not promoted: {agree} relays still hold to term {term}, and {quorum} are needed: another run may be under way"
            ))
            .advise("run it again to go on"),
            // Servers keep no notes.
            Stop::NotNoted(_) | Stop::NotWithdrawn { .. } => refuse(Refusal::Nobody),
        }
    }
}

/// Has a server receive all that the fenced relays have. Blocking.
fn catch_up(
    clients: &BinlogClients,
    address: &str,
    Target { relay: (relay, from), wanted }: &Target,
) -> Result<(), String> {
    let limit = clients.config.failover.step_timeout;
    let dialect = clients.dialect;
    let family = Family::of(dialect);
    let mut session = clients.server(address)?;
    session.patience(limit + Duration::from_secs(5))?;
    let state = look(&mut session, dialect)?;
    if state.held.has(wanted) {
        return Ok(());
    }
    let (host, port) = from.rsplit_once(':').ok_or_else(|| "the relay's address has no port".to_owned())?;
    if state.master.as_deref() != Some(from) {
        session.query(family.stop)?;
        session.query(&change_source(dialect, host, port))?;
    }
    session.query(family.start)?;
    let seconds = limit.as_secs().max(1);
    let rows = session.query(&wait_for(wanted, seconds))?;
    if rows.first().and_then(|row| row.first().cloned().flatten()).as_deref() != Some("0") {
        return Err(format!("it has not got {wanted} from {relay} within {seconds} s"));
    }
    let state = look(&mut session, dialect)?;
    if state.held.has(wanted) { Ok(()) } else { Err(format!("it has {} and not {wanted}", state.held)) }
}

/// Reason why a server is not the source.
enum Told {
    /// The server was not told to take writes.
    No(String),
    /// The server was told to take writes, and its answer is unknown.
    Unknown(String),
}

impl From<String> for Told {
    fn from(why: String) -> Told {
        Told::No(why)
    }
}

/// Makes a server the source. Blocking.
fn promote(clients: &BinlogClients, address: &str) -> Result<(), Told> {
    let mut session = clients.server(address)?;
    session.patience(clients.config.failover.step_timeout + Duration::from_secs(5))?;
    let family = Family::of(clients.dialect);
    for statement in std::iter::once(family.stop).chain(family.promote) {
        session.query(statement)?;
    }
    let Err(why) = session.query(family.writable) else { return Ok(()) };
    // The answer may have been lost although the statement succeeded.
    match clients.server(address).and_then(|mut session| look(&mut session, clients.dialect)) {
        Ok(state) if !state.read_only => Ok(()),
        _ => Err(Told::Unknown(why)),
    }
}

/// Has the relays follow the new source.
async fn follow(servers: &Servers, node: &str, engine: &Engine<BinlogServers>) -> Result<(), Failure> {
    let order = Order::Follow { term: engine.term(), address: servers.address(node) };
    let fenced = &engine.ballot.relays;
    let each = fenced.iter().map(|(relay, _)| async { (&relay.name, servers.order(&relay.name, order.clone()).await) });
    let lost: Vec<String> = join_all(each)
        .await
        .into_iter()
        .filter_map(|(relay, result)| Some(format!("{relay}: {}", result.err()?)))
        .collect();
    if lost.is_empty() {
        has_begun(servers, node, engine).await;
        terminal::line(format_args!(
            "{} relays follow it; name it in their configuration (relay.upstream.address) too",
            fenced.len()
        ));
        return Ok(());
    }
    Err(Failure::runtime(format!("{node} was promoted, and not every relay follows it: {}", lost.join("; ")))
        .advise("run it again once the relays answer"))
}

/// Waits a while until the relays receive from the new source, and prints those that do not.
async fn has_begun(servers: &Servers, node: &str, engine: &Engine<BinlogServers>) {
    let Some(server_id) = engine.now.state(node).map(|state| state.server_id) else { return };
    let limit = servers.limit().min(BEGUN);
    let each = engine.ballot.relays.iter().map(|(relay, _)| async {
        let began = Instant::now();
        loop {
            let why = match servers.order(&relay.name, Order::Look).await {
                Ok(standing) if has_followed(&standing, server_id) => return,
                Ok(standing) => standing.upstream_state,
                Err(why) => why,
            };
            if began.elapsed() > limit {
                return terminal::line(format_args!("{}: receives nothing from {node} yet: {why}", relay.name));
            }
            tokio::time::sleep(PACE).await;
        }
    });
    join_all(each).await;
}

/// Removes the fences, unless a node was chosen, and lets the source take writes again.
async fn abort(servers: &Servers, survey: &Survey<BinlogServers>) -> Result<(), Failure> {
    may_abort(survey).map_err(|refusal| {
        Failure::runtime(refusal.to_string()).advise("`kingpost failover` goes on with that server")
    })?;
    let term = survey.highest_term() + 1;
    let mut failed: Vec<String> = survey
        .relays
        .iter()
        .filter_map(|relay| Some((relay, relay.standing.as_ref().err()?)))
        .map(|(relay, why)| format!("{}: a fence would stay, for it does not answer: {why}", relay.name))
        .collect();
    for (relay, _) in survey.standing().filter(|(_, standing)| standing.fenced) {
        if let Err(error) = servers.order(&relay.name, Order::Release { term }).await {
            failed.push(format!("{}: {error}", relay.name));
        }
    }
    failed.extend(switchover::writes_again(servers, survey).await.err());
    if failed.is_empty() { Ok(()) } else { Err(Failure::runtime(failed.join("; "))) }
}

/// Prints the survey, one line per server and relay.
fn show(survey: &Survey<BinlogServers>) {
    for node in &survey.servers {
        let text = match &node.state {
            Err(why) => format!("does not answer: {why}"),
            Ok(state) => {
                let role = if state.read_only { "reads" } else { "writes" };
                let from = state.master.as_deref().map(|master| format!(", from {master}")).unwrap_or_default();
                format!("server_id {}, {role}{from}, has {}", state.server_id, state.held)
            }
        };
        terminal::line(format_args!("{:<12} {:<22} {text}", node.name, node.address));
    }
    for relay in &survey.relays {
        let text = match &relay.standing {
            Err(why) => format!("does not answer: {why}"),
            Ok(standing) => {
                let fence = if standing.fenced { ", fenced" } else { "" };
                let chosen = standing.chosen.as_ref().map(|(_, node)| format!(", {node} chosen")).unwrap_or_default();
                let (epoch, state) = (standing.epoch, &standing.state);
                format!(
                    "epoch {epoch}{fence}{chosen}, from {}, has {state}: {}",
                    standing.upstream, standing.upstream_state
                )
            }
        };
        terminal::line(format_args!("{:<12} {:<22} relay, {text}", relay.name, relay.address));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn seen(name: &str, standing: Result<BinlogStanding, String>) -> Relay {
        Relay { name: name.into(), address: format!("{name}:1"), application: String::new(), standing }
    }

    fn survey(servers: &[Node], relays: &[Relay]) -> Survey<BinlogServers> {
        Survey { servers: servers.to_vec(), relays: relays.to_vec(), acknowledgements: 1 }
    }

    /// The decision of a survey: the term, the node that binds, the number of relays to fence, and those that are left alone.
    type Decided = (u64, Option<String>, usize, Vec<String>);

    fn decided(survey: &Survey<BinlogServers>, to: Option<&str>, force: bool) -> Result<Decided, Refusal> {
        let wish = Wish { to, force, ..Wish::default() };
        let plan = begin(survey, &wish)?;
        Ok((survey.highest_term() + 1, binding(survey, &plan, &wish)?, survey.needed(), plan.there))
    }

    fn relay(name: &str, term: u64, fenced: bool, chosen: Option<(u64, &str)>, gtids: &str, state: &str) -> Relay {
        let chosen = chosen.map(|(term, node)| (term, node.to_owned()));
        let dialect = if gtids.contains(':') { Dialect::MySql } else { Dialect::MariaDb };
        let standing = BinlogStanding {
            term,
            epoch: 1,
            source: 1,
            fenced,
            chosen,
            state: State::parse(dialect, gtids).unwrap(),
            upstream: "a:1".into(),
            upstream_state: state.into(),
        };
        seen(name, Ok(standing))
    }

    fn silent(name: &str) -> Relay {
        seen(name, Err("nothing".into()))
    }

    #[test]
    fn what_a_survey_comes_to() {
        let lost = |name| relay(name, 2, false, None, "0-1-9", "cannot connect");
        let lives = relay("r", 2, false, None, "0-1-9", "streaming");
        let chose = relay("r", 4, true, Some((4, "n2")), "0-1-9", "fenced");
        let ok = |term, chosen: Option<&str>, fence| Ok((term, chosen.map(str::to_owned), fence, Vec::new()));
        for (relays, w, to, force, expected) in [
            (vec![lost("a")], 1, None, false, ok(3, None, 1)),
            (vec![lives.clone()], 1, None, true, ok(3, None, 1)),
            (vec![lives], 1, None, false, Err(Refusal::Lives { relay: "r".into(), upstream: "a:1".into() })),
            (vec![silent("a")], 1, None, true, Err(Refusal::TooFew { answer: 0, relays: 1, fence: 1 })),
            (vec![lost("a"), silent("b")], 1, None, false, Err(Refusal::TooFew { answer: 1, relays: 2, fence: 2 })),
            (vec![lost("a"), lost("b"), silent("c")], 2, None, false, ok(3, None, 2)),
            (vec![chose.clone()], 1, Some("n2"), false, ok(5, Some("n2"), 1)),
            (vec![chose.clone()], 1, Some("n3"), false, Err(Refusal::Chosen { chosen: "n2".into(), to: "n3".into() })),
            (vec![chose], 1, Some("n3"), true, ok(5, None, 1)),
        ] {
            let survey = Survey { acknowledgements: w, ..survey(&[], &relays) };
            assert_eq!(decided(&survey, to, force), expected, "{relays:?}");
        }
    }

    fn node(name: &str, server_id: u32, position: &str) -> Node {
        let held = match position.contains(':') {
            true => Held::MySql(position.parse().unwrap()),
            false => Held::MariaDb { log: mariadb::State::default(), position: position.parse().unwrap() },
        };
        let state = NodeState { server_id, held, read_only: true, master: None };
        Node { name: name.into(), address: format!("{name}:1"), tags: Tags::default(), state: Ok(state) }
    }

    #[test]
    fn an_earlier_run_ended_when_some_relays_followed() {
        let on = |source: u32, upstream: &str, mut relay: Relay| {
            let standing = relay.standing.as_mut().unwrap();
            (standing.source, standing.upstream) = (source, upstream.into());
            relay
        };
        let left = || relay("left", 4, true, Some((4, "n2")), "0-1-9", "fenced");
        let went = |state| on(2, "n2:1", relay("went", 4, false, None, "0-1-9,0-2-10", state));
        let fence_stays = on(1, "n2:1", relay("late", 4, true, Some((4, "n2")), "0-1-9", "cannot connect"));
        let gone = Node { state: Err("down".into()), ..node("n2", 2, "") };
        let there = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let ok = |chosen: Option<&str>, names: &[&str]| Ok((5, chosen.map(str::to_owned), 2, there(names)));
        let lives = Refusal::Lives { relay: "went".into(), upstream: "n2:1".into() };
        for (server, relays, expected) in [
            (node("n2", 2, ""), [left(), went("streaming")], ok(Some("n2"), &["went"])),
            (node("n2", 2, ""), [left(), went("cannot connect")], ok(Some("n2"), &["went"])),
            (node("n2", 2, ""), [left(), fence_stays.clone()], ok(Some("n2"), &[])),
            (gone.clone(), [left(), fence_stays], ok(Some("n2"), &[])),
            // The new source is lost, too.
            (gone.clone(), [left(), went("cannot connect")], ok(None, &[])),
            // The server is only unreachable from here.
            (gone, [left(), went("streaming")], Err(lives)),
        ] {
            assert_eq!(decided(&survey(&[server], &relays), None, false), expected, "{relays:?}");
        }
    }

    #[test]
    fn fences_are_taken_away_only_while_nothing_is_chosen() {
        let fenced = |name, chosen| relay(name, 3, true, chosen, "0-1-9", "fenced");
        assert_eq!(may_abort(&survey(&[], &[fenced("a", None), fenced("b", None), silent("c")])), Ok(()));
        let begun = Refusal::Begun { relay: "b".into(), node: "n3".into() };
        assert_eq!(may_abort(&survey(&[], &[fenced("a", None), fenced("b", Some((3, "n3")))])), Err(begun));
    }

    #[test]
    fn the_relay_that_has_most() {
        let of = |name, gtids| relay(name, 3, true, None, gtids, "");
        let name = |relays: &[Relay]| {
            let fenced: Vec<_> = relays.iter().map(|relay| (relay.clone(), relay.standing.clone().unwrap())).collect();
            furthest(&fenced).map(|(relay, _)| relay.name.clone())
        };
        assert_eq!(name(&[of("a", "0-1-9"), of("b", "0-1-12"), of("c", "0-1-3")]), Ok("b".into()));
        assert_eq!(name(&[of("a", "0-1-9"), of("b", "0-2-10")]), Err(Refusal::Apart("a".into(), "b".into())));
        let (one, two) = (format!("{UUID}:1-9"), format!("{UUID}:1-12,{UUID}:blue:1"));
        assert_eq!(name(&[of("a", &one), of("b", &two), of("c", &one)]), Ok("b".into()));
        // A set has holes: the highest number says nothing.
        let hole = format!("{UUID}:1-5:7-30");
        assert_eq!(name(&[of("a", &one), of("b", &hole)]), Err(Refusal::Apart("a".into(), "b".into())));
        assert_eq!(name(&[]), Err(Refusal::Nobody));
    }

    const UUID: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";

    #[test]
    fn who_has_what_the_relays_have() {
        let has = |held: &str, wanted: &str| {
            let dialect = if wanted.contains(':') { Dialect::MySql } else { Dialect::MariaDb };
            node("n", 1, held).state.unwrap().held.has(&Wanted::of(&State::parse(dialect, wanted).unwrap()))
        };
        let set = |text: &str| format!("{UUID}:{text}");
        for (held, wanted, expected) in [
            ("0-1-9".to_owned(), "0-1-9".to_owned(), true),
            ("0-1-8".to_owned(), "0-1-9".to_owned(), false),
            (set("1-9"), set("1-9"), true),
            (set("1-9"), set("1-5"), true),
            (set("1-5:7-20"), set("1-9"), false),
            (set("1-9"), format!("{UUID}:1-9,{UUID}:blue:1"), false),
            (set("1-9"), "0-1-9".to_owned(), false),
        ] {
            assert_eq!(has(&held, &wanted), expected, "{held} and {wanted}");
        }
    }

    /// Three servers, of which `n2` and `n3` replicate; `down` does not answer.
    fn three(down: &str) -> Vec<Node> {
        let mut nodes = [node("n1", 1, "0-1-9"), node("n2", 2, "0-1-8"), node("n3", 3, "0-1-9")];
        for node in &mut nodes {
            let state = node.state.as_mut().unwrap();
            (state.read_only, state.master) = (node.name != "n1", (node.name != "n1").then(|| "r:1".to_owned()));
            if node.name == down {
                node.state = Err("down".into());
            }
        }
        nodes.into()
    }

    #[test]
    fn situations_and_judgements() {
        use super::super::judge::Judgement;
        use situation::{Situation, judge, situation};
        let streams = || relay("r", 2, false, None, "0-1-9", "streaming");
        let misses = || relay("r", 2, false, None, "0-1-9", "cannot connect");
        let fenced = || relay("r", 3, true, None, "0-1-9", "fenced");
        let chose = || relay("r", 3, true, Some((3, "n2")), "0-1-9", "fenced");
        let other = |mut relay: Relay| {
            relay.standing.as_mut().unwrap().source = 2;
            relay
        };
        let n = |name: &str| name.to_owned();
        let healthy = |name| (Situation::Healthy { source: n(name) }, Judgement::Healthy(n(name)));
        let lost = |judgement| (Situation::NoSource, judgement);
        let few = || Judgement::Unsure("1 relays answer, and 2 are needed".into());
        for (down, relays, expected) in [
            ("", vec![streams()], healthy("n1")),
            // The relay connects again, or will: its source answers.
            ("", vec![misses()], healthy("n1")),
            ("n1", vec![streams()], lost(Judgement::Unsure("r hears it".into()))),
            ("n1", vec![misses()], lost(Judgement::Lost)),
            ("n1", vec![misses(), silent("s")], lost(few())),
            ("n1", vec![fenced()], lost(Judgement::Unfinished)),
            ("", vec![fenced()], (Situation::Fenced { source: n("n1") }, Judgement::Unfinished)),
            ("n1", vec![chose()], (Situation::Chosen { node: n("n2") }, Judgement::Unfinished)),
            ("", vec![chose(), silent("s")], (Situation::Chosen { node: n("n2") }, few())),
            // A relay that missed the last failover still names the old source.
            ("", vec![streams(), other(relay("s", 5, false, None, "0-2-10", "streaming"))], healthy("n2")),
        ] {
            let survey = survey(&three(down), &relays);
            assert_eq!((situation(&survey), judge(&survey)), expected, "{down} {relays:?}");
        }
    }

    #[test]
    fn the_successor_of_a_source() {
        use situation::{Unready, successor};
        let streams = || relay("r", 2, false, None, "0-1-9", "streaming");
        let misses = || relay("r", 2, false, None, "0-1-9", "cannot connect");
        let n = |name: &str| name.to_owned();
        let mut alone = three("");
        alone[1].state.as_mut().unwrap().master = None;
        let few = Unready::TooFew { streaming: 0, source_name: n("n1"), needed: 1 };
        for (servers, relay, to, expected) in [
            (three(""), streams(), None, Ok(n("n3"))),
            (three(""), streams(), Some("n2"), Ok(n("n2"))),
            (three("n3"), streams(), None, Ok(n("n2"))),
            (three("n2"), streams(), Some("n2"), Err(Unready::Silent(n("n2")))),
            (three(""), streams(), Some("n1"), Err(Unready::Source(n("n1")))),
            (three(""), streams(), Some("n4"), Err(Unready::Unknown(n("n4")))),
            (alone.clone(), streams(), Some("n2"), Err(Unready::Alone(n("n2")))),
            (alone[..2].to_vec(), streams(), None, Err(Unready::Nobody)),
            (three(""), misses(), None, Err(few)),
        ] {
            assert_eq!(successor(&survey(&servers, &[relay]), "n1", to), expected, "{to:?}");
        }
    }

    #[test]
    fn who_may_be_promoted() {
        let nodes = [
            node("old", 1, "0-1-20"),
            node("behind", 2, "0-1-5"),
            node("ahead", 3, "0-1-9"),
            Node { state: Err("down".into()), ..node("down", 4, "") },
        ];
        let survey = survey(&nodes, &[]);
        let names =
            |only| fit(&survey, 1, only).iter().map(|(node, _)| node.name.as_str()).collect::<Vec<_>>().join(" ");
        assert_eq!(names(None), "ahead behind");
        assert_eq!(names(Some("behind")), "behind");
        assert_eq!(names(Some("down")), "");
    }
}
