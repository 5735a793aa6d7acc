//! `kingpost failover` of MariaDB servers behind relays, by GTID.
//!
//! ```text
//!  survey ─▶ fence the relays in a term ─▶ a candidate catches up from the relay that has most ─▶ chosen on the relays ─▶ promoted ─▶ relays follow
//! ```
//!
//! All state is on the relays, as for PostgreSQL: after a run was killed, the next one continues where it stopped. Replicas stay with their relays:
//! nothing changes for them.

use std::sync::Arc;
use std::time::Duration;

use ::binlog::gtid::mariadb::{Position, State};
use ::relay::{BinlogStanding, MariaDbAccess, MariaDbSession, Order};

use crate::args::FailoverArgs;
use config::failover::needed;
use config::{Config, secret};
use process::Failure;
use process::terminal;

/// A server, as the survey found it.
#[derive(Debug, Clone)]
struct Node {
    name: String,
    address: String,
    state: Result<NodeState, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct NodeState {
    server_id: u32,
    /// Transactions in its binary log.
    log: State,
    /// The last transaction that it has, per domain.
    position: Position,
    read_only: bool,
    /// Address of the server that it replicates from.
    master: Option<String>,
}

impl NodeState {
    fn has(&self, wanted: &Position) -> bool {
        wanted.iter().all(|gtid| self.log.contains(gtid) || self.position.get(gtid.domain) == Some(gtid))
    }

    /// Returns the number of transactions, as far as sequence numbers tell.
    fn reach(&self) -> u64 {
        self.position.iter().map(|gtid| gtid.sequence).fold(0, u64::saturating_add)
    }
}

/// A relay, as the survey found it.
#[derive(Debug, Clone)]
struct Seen {
    name: String,
    address: String,
    standing: Result<BinlogStanding, String>,
}

/// Plan of a failover.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    term: u64,
    /// The server that an earlier run has chosen.
    chosen: Option<String>,
    /// Number of relays that must be fenced, or already follow the chosen server.
    fence: usize,
    /// Names of relays that already follow the chosen server: once fenced, they would never take anything more from it.
    there: Vec<String>,
}

/// Reason to do nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Refusal {
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

fn standing(relays: &[Seen]) -> impl Iterator<Item = (&Seen, &BinlogStanding)> {
    relays.iter().filter_map(|relay| relay.standing.as_ref().ok().map(|standing| (relay, standing)))
}

/// True if the relay takes a server's writes: it has left any fence and entered an epoch of that server.
fn follows(standing: &BinlogStanding, node: &Node) -> bool {
    let is_source = node.state.as_ref().is_ok_and(|state| state.server_id == standing.source);
    !standing.fenced && (is_source || standing.upstream == node.address)
}

/// Derives a plan from a survey.
fn plan(
    nodes: &[Node],
    relays: &[Seen],
    acknowledgements: usize,
    to: Option<&str>,
    force: bool,
) -> Result<Plan, Refusal> {
    let fence = needed(relays.len(), acknowledgements);
    let answer = standing(relays).count();
    if answer < fence {
        return Err(Refusal::TooFew { answer, relays: relays.len(), fence });
    }
    let lives = |standing: &BinlogStanding| !standing.fenced && standing.upstream_state == "streaming";
    let elected = standing(relays).filter_map(|(_, standing)| standing.chosen.clone()).max();
    let node = elected.as_ref().and_then(|(_, name)| nodes.iter().find(|node| node.name == *name));
    let there: Vec<String> = standing(relays)
        .filter(|(_, standing)| node.is_some_and(|node| follows(standing, node)))
        .map(|(relay, _)| relay.name.clone())
        .collect();
    // A relay follows the chosen server, so that choice was carried out. If the server is lost by now, this is the next failover.
    let done = !there.is_empty() && node.is_some_and(|node| node.state.is_err());
    // The operator has said that the chosen server is gone for good.
    let given_up = force && to.is_some() && to != elected.as_ref().map(|(_, name)| name.as_str());
    let (elected, there) = if done || given_up { (None, Vec::new()) } else { (elected, there) };
    if let Some((relay, standing)) = standing(relays).find(|(_, standing)| lives(standing))
        && !force
        && elected.is_none()
    {
        return Err(Refusal::Lives { relay: relay.name.clone(), upstream: standing.upstream.clone() });
    }
    let chosen = elected.map(|(_, node)| node);
    if let (Some(chosen), Some(to)) = (&chosen, to)
        && chosen != to
    {
        return Err(Refusal::Chosen { chosen: chosen.clone(), to: to.into() });
    }
    let term = standing(relays).map(|(_, standing)| standing.term).max().unwrap_or(0) + 1;
    Ok(Plan { term, chosen, fence, there })
}

/// Checks that the fences may be removed: no relay is changed if any has recorded a chosen node.
fn may_abort(relays: &[Seen]) -> Result<(), Refusal> {
    let chosen = standing(relays).find_map(|(relay, standing)| Some((relay, standing.chosen.as_ref()?)));
    match chosen {
        Some((relay, (_, node))) => Err(Refusal::Begun { relay: relay.name.clone(), node: node.clone() }),
        None => Ok(()),
    }
}

/// Returns the relay that has everything that any of them has.
fn furthest(relays: &[Seen]) -> Result<(&Seen, &BinlogStanding), Refusal> {
    let mut best: Option<(&Seen, &BinlogStanding)> = None;
    for (relay, standing) in standing(relays).filter(|(_, standing)| standing.fenced) {
        best = match best {
            None => Some((relay, standing)),
            Some((_, held)) if standing.state.lacks(&held.state.position()).is_empty() => Some((relay, standing)),
            Some((_, held)) if held.state.lacks(&standing.state.position()).is_empty() => best,
            Some((other, _)) => return Err(Refusal::Apart(other.name.clone(), relay.name.clone())),
        };
    }
    best.ok_or(Refusal::Nobody)
}

/// Returns the servers that may be promoted, best first: the named or chosen one; or every one that answers, replicates and is not the old source.
fn candidates<'a>(nodes: &'a [Node], old: u32, only: Option<&str>) -> Vec<&'a Node> {
    let fits = |node: &&Node| match (&node.state, only) {
        (Err(_), _) => false,
        (Ok(_), Some(only)) => node.name == only,
        (Ok(state), None) => state.server_id != old,
    };
    let mut all: Vec<&Node> = nodes.iter().filter(fits).collect();
    all.sort_by_key(|node| std::cmp::Reverse(node.state.as_ref().map_or(0, NodeState::reach)));
    all
}

/// Access to servers and relays.
struct Parts {
    config: Config,
    password: String,
    servers_tls: Option<Arc<tls::Connector>>,
    relays_tls: Option<Arc<tls::Connector>>,
    relay_passwords: Vec<String>,
}

impl Parts {
    fn new(config: Config) -> Result<Parts, Failure> {
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
        Ok(Parts { password, servers_tls, relays_tls, relay_passwords, config })
    }

    fn server(&self, address: &str) -> Result<MariaDbSession, String> {
        let (user, password) = (&self.config.failover.user, &self.password);
        MariaDbSession::open(&MariaDbAccess { address, user, password, connector: self.servers_tls.clone() })
    }

    fn order(&self, relay: usize, order: &Order) -> Result<BinlogStanding, String> {
        let part = &self.config.failover.relays[relay];
        let (address, user, password) = (&part.address, &part.user, &self.relay_passwords[relay]);
        MariaDbSession::open(&MariaDbAccess { address, user, password, connector: self.relays_tls.clone() })?
            .order(order)
    }

    fn relays(&self) -> Vec<Seen> {
        side_by_side(&self.config.failover.relays, |index, part| Seen {
            name: part.name.clone(),
            address: part.address.clone(),
            standing: self.order(index, &Order::Look),
        })
    }

    fn nodes(&self) -> Vec<Node> {
        side_by_side(&self.config.cluster.nodes, |_, node| Node {
            name: node.name.clone(),
            address: node.address.clone(),
            state: self.server(&node.address).and_then(|mut session| look(&mut session)),
        })
    }
}

/// Queries all of them concurrently: several that do not answer take as long as one.
fn side_by_side<T: Sync, R: Send>(all: &[T], look: impl Fn(usize, &T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let look = &look;
        let threads: Vec<_> =
            all.iter().enumerate().map(|(index, one)| scope.spawn(move || look(index, one))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn look(session: &mut MariaDbSession) -> Result<NodeState, String> {
    let rows = session.query("SELECT @@server_id, @@gtid_binlog_state, @@gtid_current_pos, @@read_only")?;
    let text = |column: usize| rows.first().and_then(|row| row.get(column)?.clone()).unwrap_or_default();
    let wrong = |_| "the server answers what is not understood".to_owned();
    // Host and port are the third and fifth of many columns, in all versions.
    let slave = session.query("SHOW SLAVE STATUS")?;
    let master = slave.first().and_then(|row| Some(format!("{}:{}", row.get(1)?.clone()?, row.get(3)?.clone()?)));
    Ok(NodeState {
        server_id: text(0).parse().map_err(|_| "no server_id".to_owned())?,
        log: text(1).parse().map_err(wrong)?,
        position: text(2).parse().map_err(wrong)?,
        read_only: text(3) != "0",
        master,
    })
}

/// Promotes a replica to replace a lost source. Blocking.
pub(super) fn failover(config: Config, args: &FailoverArgs) -> Result<(), Failure> {
    let limit = config.failover.step_timeout;
    let acknowledgements = config.failover.acknowledgements;
    let parts = Parts::new(config)?;
    let (nodes, relays) = (parts.nodes(), parts.relays());
    show(&nodes, &relays);
    if args.abort {
        return abort(&parts, &relays);
    }
    let refuse = |refusal: Refusal| {
        let advice = match &refusal {
            Refusal::Lives { .. } => "--force takes the relays away from it all the same",
            Refusal::Chosen { .. } => "leave --to out; or, if that server never comes back as the source, say --force",
            Refusal::Old(_) => "`kingpost failover --abort` lets them go on with it; else name a replica",
            _ => "look at what is shown above",
        };
        Failure::runtime(refusal.to_string()).advise(advice)
    };
    let plan = plan(&nodes, &relays, acknowledgements, args.to.as_deref(), args.force).map_err(refuse)?;
    let only = plan.chosen.as_deref().or(args.to.as_deref());
    let to_fence = || standing(&relays).filter(|(relay, _)| !plan.there.contains(&relay.name));
    let old = to_fence().max_by_key(|(_, standing)| standing.epoch).map_or(0, |(_, standing)| standing.source);
    let found = candidates(&nodes, old, only);
    let Some(first) = found.first() else { return Err(refuse(Refusal::Nobody)) };
    if first.state.as_ref().is_ok_and(|state| state.server_id == old) {
        return Err(refuse(Refusal::Old(first.name.clone())));
    }
    if args.dry_run {
        let names: Vec<&str> = found.iter().map(|node| node.name.as_str()).collect();
        terminal::line(format_args!(
            "would fence {} or more relays in term {}, and promote {}",
            plan.fence,
            plan.term,
            names.join(" or ")
        ));
        return Ok(());
    }

    // From here on the old source gets nothing acknowledged.
    let mut fenced = Vec::new();
    for (index, relay) in relays.iter().enumerate() {
        let Ok(standing) = &relay.standing else { continue };
        if plan.there.contains(&relay.name) {
            terminal::line(format_args!("{}: follows the new source already", relay.name));
            continue;
        }
        let order = Order::Fence { term: plan.term, timeline: standing.epoch };
        match parts.order(index, &order) {
            Ok(standing) => fenced.push((index, Seen { standing: Ok(standing), ..relay.clone() })),
            Err(error) => terminal::line(format_args!("{}: not fenced: {error}", relay.name)),
        }
    }
    let seen: Vec<Seen> = fenced.iter().map(|(_, relay)| relay.clone()).collect();
    let (taken, there) = (seen.len() + plan.there.len(), plan.there.len());
    if taken < plan.fence {
        return Err(refuse(Refusal::TooFew { answer: taken, relays: relays.len(), fence: plan.fence }));
    }
    let (best, has) = furthest(&seen).map_err(refuse)?;
    let wanted = has.state.position();
    terminal::line(format_args!("fenced {} relays in term {}; {} has {wanted}", seen.len(), plan.term, best.name));

    let mut failed = Vec::new();
    for node in found {
        let enough = plan.fence.saturating_sub(there);
        match promote(&parts, node, best, &wanted, &fenced, (plan.term, enough), limit) {
            Ok(()) => {
                terminal::line(format_args!("{} is the source", node.name));
                return follow(&parts, node, &fenced, plan.term);
            }
            Err(NotPromoted::Not(error)) => failed.push(format!("{}: {error}", node.name)),
            // Promoting another server could make a second source.
            Err(NotPromoted::Unknown(error)) => {
                return Err(Failure::runtime(format!(
                    "{} was chosen, and does not say whether it takes writes: {error}",
                    node.name
                ))
                .advise("run it again: it goes on with that server; if that is gone for good, --force --to NODE takes another"));
            }
        }
    }
    Err(Failure::runtime(format!("nothing was promoted: {}", failed.join("; ")))
        .advise("run it again to go on; `kingpost failover --abort` takes the fence away"))
}

/// Queries all servers and relays, shows their state, and changes nothing. Blocking.
///
/// # Errors
/// A server or relay does not answer.
pub(super) fn check(config: Config) -> Result<(), Failure> {
    let parts = Parts::new(config)?;
    let (nodes, relays) = (parts.nodes(), parts.relays());
    show(&nodes, &relays);
    let silent = nodes.iter().filter(|node| node.state.is_err()).count() + standing_not(&relays);
    if silent == 0 { Ok(()) } else { Err(Failure::runtime(format!("{silent} of them do not answer"))) }
}

fn standing_not(relays: &[Seen]) -> usize {
    relays.len() - standing(relays).count()
}

/// Reason why a server is not the source.
enum NotPromoted {
    /// The server takes no writes.
    Not(String),
    /// The server was told to take writes, and its answer is unknown.
    Unknown(String),
}

impl From<String> for NotPromoted {
    fn from(why: String) -> NotPromoted {
        NotPromoted::Not(why)
    }
}

/// Has a server catch up, chooses it in the term on at least `enough` relays, and makes it the source.
fn promote(
    parts: &Parts,
    node: &Node,
    best: &Seen,
    wanted: &Position,
    fenced: &[(usize, Seen)],
    (term, enough): (u64, usize),
    limit: Duration,
) -> Result<(), NotPromoted> {
    let mut session = parts.server(&node.address)?;
    session.patience(limit + Duration::from_secs(5))?;
    let mut state = look(&mut session)?;
    if !state.has(wanted) {
        let (host, port) = best.address.rsplit_once(':').ok_or_else(|| "the relay's address has no port".to_owned())?;
        if state.master.as_deref() != Some(&best.address) {
            session.query("STOP SLAVE")?;
            session.query(&format!(
                "CHANGE MASTER TO MASTER_HOST = '{}', MASTER_PORT = {port}",
                host.replace(['\'', '\\'], "")
            ))?;
        }
        session.query("START SLAVE")?;
        let seconds = limit.as_secs().max(1);
        let rows = session.query(&format!("SELECT MASTER_GTID_WAIT('{wanted}', {seconds})"))?;
        if rows.first().and_then(|row| row.first().cloned().flatten()).as_deref() != Some("0") {
            return Err(format!("it has not got {wanted} from {} within {seconds} s", best.name).into());
        }
        state = look(&mut session)?;
        if !state.has(wanted) {
            return Err(format!("it has {} and not {wanted}", state.position).into());
        }
    }
    let mut chosen = 0;
    for (index, relay) in fenced {
        match parts.order(*index, &Order::Choose { term, node: node.name.clone() }) {
            Ok(_) => chosen += 1,
            Err(error) => terminal::line(format_args!("{}: {error}", relay.name)),
        }
    }
    if chosen < enough {
        let why = format!("{chosen} relays took the choice, and {enough} are needed: another run may be under way");
        return Err(why.into());
    }
    for statement in [
        "STOP SLAVE",
        // Its commits must wait for a relay as the old source's did, from the first one on.
        "SET GLOBAL rpl_semi_sync_master_timeout = 4294967295",
        "SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC",
        "SET GLOBAL rpl_semi_sync_master_wait_no_slave = ON",
        "SET GLOBAL rpl_semi_sync_master_enabled = ON",
        "RESET SLAVE ALL",
    ] {
        session.query(statement)?;
    }
    let Err(why) = session.query("SET GLOBAL read_only = 0") else { return Ok(()) };
    // The answer may have been lost although the statement succeeded.
    match parts.server(&node.address).and_then(|mut session| look(&mut session)) {
        Ok(state) if !state.read_only => Ok(()),
        _ => Err(NotPromoted::Unknown(why)),
    }
}

/// Has the relays follow the new source.
fn follow(parts: &Parts, node: &Node, fenced: &[(usize, Seen)], term: u64) -> Result<(), Failure> {
    let order = Order::Follow { term, address: node.address.clone() };
    let mut lost = Vec::new();
    for (index, relay) in fenced {
        if let Err(error) = parts.order(*index, &order) {
            lost.push(format!("{}: {error}", relay.name));
        }
    }
    if lost.is_empty() {
        terminal::line(format_args!(
            "{} relays follow it; name it in their configuration (relay.upstream.address) too",
            fenced.len()
        ));
        return Ok(());
    }
    Err(Failure::runtime(format!("{} was promoted, and not every relay follows it: {}", node.name, lost.join("; ")))
        .advise("run it again once the relays answer"))
}

/// Removes the fences, unless a node was chosen.
fn abort(parts: &Parts, relays: &[Seen]) -> Result<(), Failure> {
    may_abort(relays).map_err(|refusal| {
        Failure::runtime(refusal.to_string()).advise("`kingpost failover` goes on with that server")
    })?;
    let term = standing(relays).map(|(_, standing)| standing.term).max().unwrap_or(0) + 1;
    let mut failed: Vec<String> = relays
        .iter()
        .filter_map(|relay| Some((relay, relay.standing.as_ref().err()?)))
        .map(|(relay, why)| format!("{}: a fence would stay, for it does not answer: {why}", relay.name))
        .collect();
    for (index, relay) in relays.iter().enumerate().filter(|(_, relay)| relay.standing.as_ref().is_ok_and(|s| s.fenced))
    {
        if let Err(error) = parts.order(index, &Order::Release { term }) {
            failed.push(format!("{}: {error}", relay.name));
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(Failure::runtime(failed.join("; "))) }
}

/// Prints the survey, one line per server and relay.
fn show(nodes: &[Node], relays: &[Seen]) {
    for node in nodes {
        let text = match &node.state {
            Err(why) => format!("does not answer: {why}"),
            Ok(state) => {
                let role = if state.read_only { "reads" } else { "writes" };
                let from = state.master.as_deref().map(|master| format!(", from {master}")).unwrap_or_default();
                format!("server_id {}, {role}{from}, has {}", state.server_id, state.position)
            }
        };
        terminal::line(format_args!("{:<12} {:<22} {text}", node.name, node.address));
    }
    for relay in relays {
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

    fn relay(name: &str, term: u64, fenced: bool, chosen: Option<(u64, &str)>, gtids: &str, state: &str) -> Seen {
        let chosen = chosen.map(|(term, node)| (term, node.to_owned()));
        let standing = BinlogStanding {
            term,
            epoch: 1,
            source: 1,
            fenced,
            chosen,
            state: gtids.parse().unwrap(),
            upstream: "a:1".into(),
            upstream_state: state.into(),
        };
        Seen { name: name.into(), address: format!("{name}:1"), standing: Ok(standing) }
    }

    fn silent(name: &str) -> Seen {
        Seen { name: name.into(), address: format!("{name}:1"), standing: Err("nothing".into()) }
    }

    #[test]
    fn what_a_survey_comes_to() {
        let lost = |name| relay(name, 2, false, None, "0-1-9", "cannot connect");
        let lives = relay("r", 2, false, None, "0-1-9", "streaming");
        let chose = relay("r", 4, true, Some((4, "n2")), "0-1-9", "fenced");
        let ok = |term, chosen: Option<&str>, fence| {
            Ok(Plan { term, chosen: chosen.map(str::to_owned), fence, there: Vec::new() })
        };
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
            assert_eq!(plan(&[], &relays, w, to, force), expected, "{relays:?}");
        }
    }

    fn node(name: &str, server_id: u32, position: &str) -> Node {
        let state = NodeState {
            server_id,
            log: State::default(),
            position: position.parse().unwrap(),
            read_only: true,
            master: None,
        };
        Node { name: name.into(), address: format!("{name}:1"), state: Ok(state) }
    }

    #[test]
    fn an_earlier_run_ended_when_some_relays_followed() {
        let on = |source: u32, upstream: &str, mut relay: Seen| {
            let standing = relay.standing.as_mut().unwrap();
            (standing.source, standing.upstream) = (source, upstream.into());
            relay
        };
        let left = || relay("left", 4, true, Some((4, "n2")), "0-1-9", "fenced");
        let went = |state| on(2, "n2:1", relay("went", 4, false, None, "0-1-9,0-2-10", state));
        let fence_stays = on(1, "n2:1", relay("late", 4, true, Some((4, "n2")), "0-1-9", "cannot connect"));
        let gone = Node { state: Err("down".into()), ..node("n2", 2, "") };
        let there = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let ok = |chosen: Option<&str>, names: &[&str]| {
            Ok(Plan { term: 5, chosen: chosen.map(str::to_owned), fence: 2, there: there(names) })
        };
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
            assert_eq!(plan(&[server], &relays, 1, None, false), expected, "{relays:?}");
        }
    }

    #[test]
    fn fences_are_taken_away_only_while_nothing_is_chosen() {
        let fenced = |name, chosen| relay(name, 3, true, chosen, "0-1-9", "fenced");
        assert_eq!(may_abort(&[fenced("a", None), fenced("b", None), silent("c")]), Ok(()));
        let begun = Refusal::Begun { relay: "b".into(), node: "n3".into() };
        assert_eq!(may_abort(&[fenced("a", None), fenced("b", Some((3, "n3")))]), Err(begun));
    }

    #[test]
    fn the_relay_that_has_most() {
        let of = |name, gtids| relay(name, 3, true, None, gtids, "");
        let name = |relays: &[Seen]| furthest(relays).map(|(relay, _)| relay.name.clone());
        assert_eq!(name(&[of("a", "0-1-9"), of("b", "0-1-12"), of("c", "0-1-3")]), Ok("b".into()));
        assert_eq!(name(&[of("a", "0-1-9"), of("b", "0-2-10")]), Err(Refusal::Apart("a".into(), "b".into())));
        assert_eq!(name(&[relay("a", 3, false, None, "0-1-9", "")]), Err(Refusal::Nobody));
    }

    #[test]
    fn who_may_be_promoted() {
        let nodes = [
            node("old", 1, "0-1-20"),
            node("behind", 2, "0-1-5"),
            node("ahead", 3, "0-1-9"),
            Node { state: Err("down".into()), ..node("down", 4, "") },
        ];
        let names =
            |only| candidates(&nodes, 1, only).iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(" ");
        assert_eq!(names(None), "ahead behind");
        assert_eq!(names(Some("behind")), "behind");
        assert_eq!(names(Some("down")), "");
    }
}
