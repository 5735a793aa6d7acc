//! A planned change of the source of MariaDB or MySQL. After a failure before the choice the old source continues.
//!
//! ```text
//!  the replica catches up ─▶ the source refuses writes ─▶ relays have its whole log ─▶ fence … promote ─▶ relays follow
//!  ─▶ replicas of the old source, and the old source itself, replicate from the new one and from a relay
//! ```
//!
//! *What must hold*: from before the end of the old source's log is read, the source commits nothing; so it has nothing that the new source lacks. What
//! commits there all the same, after a restart of the server, is never acknowledged: the relays are fenced from it.

use std::cell::Cell;
use std::time::{Duration, Instant};

use ::relay::BinlogSession;
use binlog::Dialect;

use super::super::elect::{Elected, elect};
use super::super::engine::{Plan, Wish};
use super::super::failover_run::{Guard, NoGuard};
use super::super::hooks::{self, Hook};
use super::super::plan::Survey;
use super::super::{Ends, drive, survey_until};
use super::situation::{Situation, situation, successor};
use super::{
    BinlogClients, BinlogServers, Family, Held, NodeState, PACE, Servers, Target, Wanted, abort, catch_up,
    change_source, follow, furthest, look, refuse, replace_source, show,
};
use crate::args::SwitchoverArgs;
use config::{Config, secret};
use process::{Failure, address::split, terminal};

/// Time added to a statement's own limit before its answer is given up.
const MARGIN: Duration = Duration::from_secs(5);
/// Seconds between a former source's attempts to connect to the relay; a server's own default is 60.
const RETRY: u32 = 1;
/// Most times that the replica catches up before the source refuses writes.
const ROUNDS: u32 = 5;
/// Time in which a replica that is near its source catches up.
const NEAR: Duration = Duration::from_millis(500);
/// Longest wait until a former source replicates.
const REPLICATES: Duration = Duration::from_secs(10);

/// Makes another server the source, as planned.
///
/// # Errors
/// Nothing was changed; or the old source continues; or a node was chosen, with which the next run goes on.
pub(in super::super) fn switchover(config: Config, dialect: Dialect, args: &SwitchoverArgs) -> Result<(), Failure> {
    let servers = Servers::new(config, dialect, &args.stop)?;
    drive(async {
        let mut stop = Ends::new()?;
        let ended = Cell::new(None);
        let survey = servers.clients.survey().await;
        show(&survey);
        let signal = async {
            ended.set(Some(stop.next().await));
            std::future::pending::<()>().await;
        };
        // A signal ends the run at its next check before the choice: no order is under way then.
        tokio::select! {
            result = begin(&servers, &survey, args, &ended) => result,
            () = signal => Ok(()),
        }
    })
}

/// Decides on the way from the survey, and takes it.
async fn begin(
    servers: &Servers,
    survey: &Survey<BinlogServers>,
    args: &SwitchoverArgs,
    ended: &Cell<Option<&'static str>>,
) -> Result<(), Failure> {
    let to = args.to.as_deref();
    let anew;
    let (survey, source) = match situation(survey) {
        Situation::Healthy { source } => (survey, source),
        Situation::Fenced { source } if !args.dry_run => {
            terminal::line("an earlier run was interrupted: it is called off, and this one begins anew");
            abort(servers, survey).await?;
            anew = relays_receive(servers, survey.needed()).await;
            (&anew, source)
        }
        Situation::Fenced { .. } | Situation::Chosen { .. } | Situation::NoSource => {
            terminal::line("no source is at work: this goes on as a failover");
            let wish = Wish { to, ..Wish::default() };
            replace_source(servers, survey, &wish, args.dry_run, &NoGuard).await?;
            if !args.dry_run {
                bring_back_silent(servers).await;
            }
            return Ok(());
        }
    };
    if survey.relays.is_empty() {
        return Err(Failure::config("no relay is configured as [[failover.relays]]: it passes the last commits on"));
    }
    let node = successor(survey, &source, to)
        .map_err(|why| Failure::runtime(why.to_string()).advise("look at what is shown above; nothing was changed"))?;
    ready(servers, &node).await?;
    if args.dry_run {
        terminal::line(format_args!(
            "would have {node} catch up, have {source} refuse writes, fence {} or more relays, promote {node}, and have the relays follow it",
            survey.needed()
        ));
        return Ok(());
    }
    change(servers, survey, &source, &node, ended).await
}

/// Waits until enough relays whose fences were removed receive again; returns the last survey, also after the time limit.
async fn relays_receive(servers: &Servers, needed: usize) -> Survey<BinlogServers> {
    let streaming = |survey: &Survey<BinlogServers>| {
        survey.standing().filter(|(_, standing)| standing.upstream_state == "streaming").count()
    };
    survey_until(servers.limit(), async || servers.clients.survey().await, |survey| streaming(survey) >= needed).await
}

/// Checks that a server can be a source whose commits wait for relays.
async fn ready(servers: &Servers, node: &str) -> Result<(), Failure> {
    let address = servers.address(node);
    let asked = servers.clients.off(move |clients| {
        let rows = clients.server(&address)?.query(Family::of(clients.dialect).ready)?;
        match rows.first().and_then(|row| row.first()?.as_deref()) {
            Some("1") => Ok(()),
            _ => Err("it keeps no binary log of what it replicates".to_owned()),
        }
    });
    asked.await.map_err(|why| {
        Failure::runtime(format!("{node} cannot be the source: {why}"))
            .advise("semi-synchronous replication and a binary log of all transactions are needed; nothing was changed")
    })
}

/// A source that commits nothing: its session, which holds the lock, and its transactions.
struct Silent {
    session: Option<BinlogSession>,
    held: Held,
}

/// The check before a node is chosen: no signal has come, and the old source has no further transaction.
struct StillSilent<'a> {
    servers: &'a Servers,
    source: &'a str,
    held: &'a Held,
    ended: &'a Cell<Option<&'static str>>,
}

impl Guard for StillSilent<'_> {
    async fn before_election(&self) -> Result<(), String> {
        not_ended(self.ended)?;
        let now = state_of(self.servers, self.source).await?;
        match now.read_only && now.held == *self.held {
            true => Ok(()),
            false => Err(format!("{} has taken writes meanwhile", self.source)),
        }
    }

    async fn before_promotion(&self) -> Result<(), String> {
        Ok(())
    }
}

fn not_ended(ended: &Cell<Option<&'static str>>) -> Result<(), String> {
    ended.get().map_or(Ok(()), |name| Err(format!("ended by {name}")))
}

async fn state_of(servers: &Servers, node: &str) -> Result<NodeState, String> {
    let address = servers.address(node);
    servers.clients.off(move |clients| look(&mut clients.server(&address)?, clients.dialect)).await
}

/// Carries out a switchover that was checked.
async fn change(
    servers: &Servers,
    survey: &Survey<BinlogServers>,
    source: &str,
    node: &str,
    ended: &Cell<Option<&'static str>>,
) -> Result<(), Failure> {
    let failed = |why: String| Failure::runtime(format!("{source} stays the source: {why}")).advise("run it again");
    // Before the source refuses writes, so that it does so for as short a time as possible. Each time there is less to catch up with, unless clients
    // write faster than the replica applies.
    let mut current = survey.clone();
    for _ in 0..ROUNDS {
        let (round, address) = (Instant::now(), servers.address(node));
        let standing: Vec<_> = current.standing().map(|(relay, standing)| (relay.clone(), standing.clone())).collect();
        let (relay, has) = furthest(&standing).map_err(refuse)?;
        let target = Target { relay: (relay.name.clone(), relay.address.clone()), wanted: Wanted::of(&has.state) };
        let catching_up = servers.clients.off(move |clients| catch_up(clients, &address, &target)).await;
        catching_up.and_then(|()| not_ended(ended)).map_err(failed)?;
        if round.elapsed() < NEAR {
            break;
        }
        current = servers.clients.survey().await;
    }
    let began = Instant::now();
    let mut silent = None;
    let work = async {
        silent = Some(silence(servers, source).await.map_err(failed)?);
        servers_mark(servers, "silenced");
        let held = silent.as_ref().map(|silent: &Silent| silent.held.clone());
        let held = held.ok_or_else(|| failed("it gave no answer".into()))?;
        relays_have(servers, survey.needed(), &held, ended).await.map_err(failed)?;
        let wish = Wish { to: Some(node), ..Wish::default() };
        let guard = StillSilent { servers, source, held: &held, ended };
        elect(servers, survey, Plan::default(), &wish, Some(source), &guard).await
    };
    match work.await {
        Ok(Elected { promoted, engine }) => {
            terminal::line(format_args!(
                "{} is the source; nobody could write for {:.1} s",
                promoted.node,
                began.elapsed().as_secs_f32()
            ));
            let followed = follow(servers, &promoted.node, &engine).await;
            repoint(servers, survey, source, &promoted.node).await;
            let relay = engine.ballot.relays.first().map(|(relay, _)| relay.address.clone()).unwrap_or_default();
            bring_back(servers, source, &promoted.node, relay, silent).await;
            followed
        }
        Err(failure) => {
            drop(silent);
            go_on(servers, source).await;
            Err(failure)
        }
    }
}

fn servers_mark(servers: &Servers, name: &str) {
    use super::super::elect::Adapter;
    servers.mark(name);
}

/// Has the source refuse writes, and reads its transactions. A statement that runs for longer than the limit prevents it.
async fn silence(servers: &Servers, source: &str) -> Result<Silent, String> {
    let address = servers.address(source);
    let silent = servers.clients.off(move |clients| {
        let limit = clients.config.failover.step_timeout;
        let mut session = clients.server(&address)?;
        session.patience(limit + MARGIN)?;
        session.query(&format!("SET SESSION lock_wait_timeout = {}", limit.as_secs().max(1)))?;
        for statement in Family::of(clients.dialect).silence {
            session.query(statement)?;
        }
        let held = look(&mut session, clients.dialect)?.held;
        Ok(Silent { session: Some(session), held })
    });
    let silent = silent.await.map_err(|why| format!("it does not stop writing: {why}"))?;
    terminal::line(format_args!("{source} refuses writes; it has {}", silent.held));
    Ok(silent)
}

/// Waits until enough relays have all transactions of the source.
async fn relays_have(
    servers: &Servers,
    needed: usize,
    held: &Held,
    ended: &Cell<Option<&'static str>>,
) -> Result<(), String> {
    let (began, wanted) = (Instant::now(), held.state());
    loop {
        not_ended(ended)?;
        let survey = servers.clients.survey().await;
        let have = survey.standing().filter(|(_, standing)| standing.state.includes(&wanted)).count();
        if have >= needed {
            return Ok(());
        }
        if began.elapsed() > servers.limit() {
            return Err(format!("its relays do not have all of its log after {:?}", servers.limit()));
        }
        tokio::time::sleep(PACE).await;
    }
}

/// Lets the old source continue, unless a node was chosen.
async fn go_on(servers: &Servers, source: &str) {
    let survey = servers.clients.survey().await;
    if let Situation::Chosen { node } = situation(&survey) {
        return terminal::line(format_args!(
            "{node} was chosen: run it again to go on; {source} goes on refusing writes"
        ));
    }
    match abort(servers, &survey).await {
        Ok(()) => terminal::line(format_args!("{source} goes on as the source")),
        Err(failure) => {
            terminal::line(format_args!("{source} may still refuse writes: {failure}; run `kingpost failover --abort`"))
        }
    }
}

/// Lets the source of the relays take writes again, after a run that was interrupted.
///
/// # Errors
/// The source refuses.
pub(super) async fn writes_again(servers: &Servers, survey: &Survey<BinlogServers>) -> Result<(), String> {
    let (Situation::Healthy { source } | Situation::Fenced { source }) = situation(survey) else { return Ok(()) };
    let silenced = survey.state(&source).is_some_and(|state| state.read_only && state.master.is_none());
    if !silenced {
        return Ok(());
    }
    let address = servers.address(&source);
    let told = servers
        .clients
        .off(move |clients| clients.server(&address)?.query(Family::of(clients.dialect).writable).map(drop));
    told.await.map_err(|why| format!("{source} goes on refusing writes: {why}"))?;
    terminal::line(format_args!("{source} takes writes again"));
    Ok(())
}

/// Has replicas of the old source itself replicate from the new one, with the login that they have.
async fn repoint(servers: &Servers, survey: &Survey<BinlogServers>, source: &str, node: &str) {
    let (from, to) = (servers.address(source), servers.address(node));
    let of_source = |state: &NodeState| state.master.as_deref() == Some(&*from);
    let replicas = survey.answering().filter(|(server, state)| server.name != node && of_source(state));
    for (server, _) in replicas {
        let (address, to) = (server.address.clone(), to.clone());
        let told = servers.clients.off(move |clients| {
            let mut session = clients.server(&address)?;
            session.patience(clients.config.failover.step_timeout)?;
            let family = Family::of(clients.dialect);
            let (host, port) = split(&to, "3306");
            for statement in [family.stop, &change_source(clients.dialect, host, port), family.start] {
                session.query(statement)?;
            }
            Ok(())
        });
        match told.await {
            Ok(()) => terminal::line(format_args!("{} replicates from {node}", server.name)),
            Err(why) => terminal::line(format_args!("{} still replicates from {source}: {why}", server.name)),
        }
    }
}

/// Has the former source replicate from a relay: by the configured program, or as the configured user; else prints how to.
async fn bring_back(servers: &Servers, old: &str, node: &str, relay: String, silent: Option<Silent>) {
    let failover = &servers.clients.config.failover;
    let (address, primary) = (servers.address(old), servers.address(node));
    let done = if !failover.rejoin.is_empty() {
        let hook = Hook {
            program: &failover.rejoin,
            node: old,
            address: &address,
            primary: Some((node, &primary)),
            upstream: Some(&relay),
            ..Hook::default()
        };
        drop(silent);
        hooks::run(&hook, servers.limit() * 5).await.map(drop)
    } else if failover.replication_user.is_some() {
        let Some(silent) = silent else { return };
        servers.clients.off(move |clients| demote(clients, &address, &relay, silent)).await
    } else {
        let (host, port) = split(&relay, "3306");
        terminal::line(format_args!(
            "{old} refuses writes, and replicates from nobody. To have it replicate from the relay:"
        ));
        for statement in Family::of(servers.clients.dialect).demote {
            terminal::line(format_args!("  {statement};"));
        }
        terminal::line(format_args!("  {}, …; see the guide", change_source(servers.clients.dialect, host, port)));
        return;
    };
    match done {
        Ok(()) => terminal::line(format_args!("{old} replicates from the relay, and stays read-only")),
        Err(why) => terminal::line(format_args!("{old} is no replica yet, and refuses writes: {why}")),
    }
}

/// Has a former source that a killed run has silenced replicate from a relay, if it has nothing that the new source lacks.
async fn bring_back_silent(servers: &Servers) {
    let survey = servers.clients.survey().await;
    let Situation::Healthy { source } = situation(&survey) else { return };
    let (Some(new), Some((relay, _))) = (survey.state(&source), survey.standing().next()) else { return };
    let has = new.held.state();
    let silenced = survey.answering().filter(|(server, state)| {
        server.name != source && state.read_only && state.master.is_none() && has.includes(&state.held.state())
    });
    for (server, state) in silenced {
        let silent = Silent { session: None, held: state.held.clone() };
        bring_back(servers, &server.name, &source, relay.address.clone(), Some(silent)).await;
    }
}

/// Makes the silent source a replica of a relay. Blocking.
fn demote(clients: &BinlogClients, address: &str, relay: &str, mut silent: Silent) -> Result<(), String> {
    let (dialect, failover) = (clients.dialect, &clients.config.failover);
    let mut session = match silent.session.take() {
        Some(session) => session,
        None => clients.server(address)?,
    };
    let now = look(&mut session, dialect)?;
    // Without its relays it would answer commits that nobody acknowledged.
    if !now.read_only || now.held != silent.held {
        return Err("it has taken writes meanwhile".into());
    }
    for statement in Family::of(dialect).demote {
        session.query(statement)?;
    }
    let password = secret(failover.replication_password.as_ref(), failover.replication_password_file.as_deref());
    let password = literal(&password.map_err(|failure| failure.to_string())?.unwrap_or_default());
    let user = literal(failover.replication_user.as_deref().unwrap_or_default());
    let (host, port) = split(relay, "3306");
    session.query("SET SESSION sql_mode = ''")?;
    let tls = u8::from(clients.relays_tls.is_some());
    let change = change_source(dialect, host, port);
    let change = match (dialect, &now.held) {
        (Dialect::MariaDb, held) => {
            session.query(&format!("SET GLOBAL gtid_slave_pos = '{held}'"))?;
            format!(
                "{change}, MASTER_USER = '{user}', MASTER_PASSWORD = '{password}', MASTER_SSL = {tls}, MASTER_CONNECT_RETRY = {RETRY}, MASTER_USE_GTID = slave_pos"
            )
        }
        (Dialect::MySql, _) => format!(
            "{change}, SOURCE_USER = '{user}', SOURCE_PASSWORD = '{password}', SOURCE_SSL = {tls}, SOURCE_CONNECT_RETRY = {RETRY}, SOURCE_RETRY_COUNT = 86400, SOURCE_AUTO_POSITION = 1"
        ),
    };
    session.query_with_secret(&change, &password, "the change of its source")?;
    session.query(Family::of(dialect).start)?;
    let began = Instant::now();
    loop {
        let rows = session.query(Family::of(dialect).replication)?;
        let text = |column: usize| rows.first().and_then(|row| row.get(column)?.clone()).unwrap_or_default();
        // The places of these columns are the same in all versions: both threads, their errors.
        if text(10) == "Yes" && text(11) == "Yes" {
            return Ok(());
        }
        if began.elapsed() > REPLICATES {
            return Err(format!("its replication does not run: {} {}", text(35), text(37)).trim_end().to_owned());
        }
        std::thread::sleep(PACE);
    }
}

/// Escapes a text for a literal, in a session without a mode of its own.
fn literal(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\'', "''")
}
