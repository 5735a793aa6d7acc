//! `kingpost watch`: notices the loss of the primary, and reports it; or, guarded by a lock in etcd or in the registry, fails over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Ends;
use super::cluster_clients::ClusterClients;
use super::cluster_monitor::{ClusterMonitor, LOOK};
use super::elector::Elector;
use super::etcd::PATRONI;
use super::failover_run::FailoverRun;
use super::held::{Held, SHORTEST};
use super::judge::{Due, Judgement, Watched, judge};
use super::plan::{self, Situation};
use super::replace_primary::replace_primary;
use super::report::Report;
use super::suspend_aware_clock::SuspendAwareClock;
use crate::args::WatchArgs;
use config::Config;
use metrics::{Admin, Pushing};
use process::{Failure, terminal};

/// Longest time until the first answer of etcd or the registry.
const STARTING: Duration = Duration::from_secs(10);
/// Time until the next attempt to take a lock that somebody else has: its holder may die.
const TAKEN: Duration = Duration::from_millis(250);
/// Time until the next attempt after a failure; it doubles while they fail.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));

/// A watched cluster, of either kind of servers.
pub(super) trait Watching {
    fn config(&self) -> &Config;
    /// Waits for the next answer of a server or relay, and judges the latest answers of all.
    async fn next(&mut self) -> Judgement;
    /// Gives up all answers: they are outdated.
    fn forget(&mut self);
    /// Words for a lost primary that nobody replaces.
    fn advice(&self) -> String;
    /// Surveys again, and does what is due, under the lock.
    async fn act(&mut self, held: &Held) -> Result<(), Failure>;
}

/// Servers of PostgreSQL, watched.
struct Cluster<'a> {
    steps: FailoverRun,
    patient: &'a ClusterClients,
    clock: &'a SuspendAwareClock,
    monitor: ClusterMonitor<'a, ClusterClients>,
}

/// Watches servers of PostgreSQL until a signal.
pub(super) async fn watch(mut steps: FailoverRun, args: &WatchArgs, stop: &mut Ends) -> Result<(), Failure> {
    steps.clients.look_within_at_most(LOOK);
    let patient = steps.clients.patient();
    let clock = SuspendAwareClock::start();
    let monitor = ClusterMonitor::new(&patient, &clock);
    run(Cluster { steps, patient: &patient, clock: &clock, monitor }, &clock, args, stop).await
}

impl Watching for Cluster<'_> {
    fn config(&self) -> &Config {
        &self.steps.config
    }

    async fn next(&mut self) -> Judgement {
        judge(self.monitor.next().await)
    }

    fn forget(&mut self) {
        self.monitor = ClusterMonitor::new(self.patient, self.clock);
    }

    fn advice(&self) -> String {
        match plan::candidates(self.monitor.survey(), None, false, &self.steps.rules(None)) {
            Ok(election) => {
                let names: Vec<_> = election.candidates.into_iter().map(|candidate| candidate.name).collect();
                format!("it is time for `kingpost failover`: {} would be the primary", names.join(" or "))
            }
            Err(why) => format!("it is time for `kingpost failover`, but {why}"),
        }
    }

    async fn act(&mut self, held: &Held) -> Result<(), Failure> {
        let steps = &mut self.steps;
        steps.began = Instant::now();
        steps.step("locked");
        // The earlier holder may have failed over. Hosts that have been silent for long are not waited for again.
        let survey = steps.clients.survey_again(self.monitor.survey()).await;
        match (judge(&survey), survey.situation()) {
            // An earlier run was interrupted before it had elected a node, and the primary lives: removing the fences is enough for it to go on.
            (_, Ok(Situation::Fenced { .. })) if survey.elected().is_none() => steps.abort().await,
            (Judgement::Lost | Judgement::Unfinished, _) => replace_primary(steps, &survey, None, false, held).await,
            (Judgement::Healthy(_) | Judgement::Unsure(_), _) => Ok(()),
        }
    }
}

/// Watches a cluster until a signal.
pub(super) async fn run(
    mut cluster: impl Watching,
    clock: &SuspendAwareClock,
    args: &WatchArgs,
    stop: &mut Ends,
) -> Result<(), Failure> {
    let began = Instant::now();
    let say = |text: String| terminal::line(format_args!("{:6.1} s  {text}", began.elapsed().as_secs_f32()));
    let elector = Elector::of(args, &cluster.config().failover)?;
    if let Some(elector) = &elector {
        may_act(cluster.config(), elector, args.lock_ttl()).await?;
    }
    let owner = format!("{}:{}", host(), std::process::id());
    let lock = Locking { key: lock_key(cluster.config()), owner, ttl: args.lock_ttl() };
    say(format!(
        "watching {} servers and {} relays; a lost primary is {}",
        cluster.config().cluster.nodes.len(),
        cluster.config().failover.relays.len(),
        if elector.is_some() { "replaced" } else { "reported" }
    ));
    let report = Arc::new(Report::new(elector.is_some()));
    let _admin = match &args.metrics_listen {
        Some(address) => {
            cluster.config().metrics.permits("--metrics-listen", address)?;
            Some(Admin::start(address, None, Arc::clone(&report)).await?)
        }
        None => None,
    };
    let pushing = Pushing::start(&cluster.config().metrics.otlp, Arc::clone(&report))?;
    let mut watched = Watched::default();
    let mut again = AGAIN.0;
    let mut busy = false;
    let mut not_before = Duration::ZERO;
    loop {
        let judgement = tokio::select! {
            judgement = cluster.next() => judgement,
            name = stop.next() => {
                if let Some(pushing) = &pushing {
                    pushing.flush().await;
                }
                say(format!("ended by {name}"));
                return Ok(());
            }
        };
        report.looked(&judgement);
        if watched.see(&judgement, clock.now()) {
            again = AGAIN.0;
            busy = false;
            not_before = Duration::ZERO;
            say(match &judgement {
                Judgement::Healthy(primary) => format!("{primary} is the primary"),
                Judgement::Unsure(why) => format!("no primary answers: {why}"),
                Judgement::Lost => "no primary answers, and no relay hears one".into(),
                Judgement::Unfinished => "a failover was begun, and has not ended".into(),
            });
        }
        match (watched.due(clock.now(), args.after, elector.is_some()), &elector) {
            (Due::Nothing, _) | (Due::Failover, None) => {}
            (Due::Advice, _) => say(cluster.advice()),
            (Due::Failover, Some(_)) if clock.now() < not_before => {}
            (Due::Failover, Some(elector)) => {
                report.begins();
                let result = guarded(&mut cluster, elector, &lock).await;
                report.ends(result.as_ref().ok().copied());
                match result {
                    Ok(true) => cluster.forget(),
                    Ok(false) => {
                        not_before = clock.now() + TAKEN;
                        if !std::mem::replace(&mut busy, true) {
                            say("somebody else has the lock: it is theirs to do".into());
                        }
                    }
                    Err(failure) => {
                        say(format!("failed: {failure}"));
                        cluster.forget();
                        not_before = clock.now() + again;
                        again = (again * 2).min(AGAIN.1);
                    }
                }
            }
        }
    }
}

/// Returns the name of the lock, in etcd or in the registry.
pub(super) fn lock_key(config: &Config) -> String {
    format!("/kingpost/failover/{}", config.cluster.name)
}

/// Checks that this program may replace a primary by itself.
async fn may_act(config: &Config, elector: &Elector, ttl: Duration) -> Result<(), Failure> {
    if config.failover.relays.is_empty() {
        return Err(Failure::config(
            "no relay is configured as [[failover.relays]]: without one nothing is failed over by itself",
        ));
    }
    if ttl < SHORTEST {
        return Err(Failure::config(format!(
            "--ttl is {ttl:?}: expected at least {SHORTEST:?}, or etcd grants a longer one"
        )));
    }
    // The service may be starting, too, as after a power cut.
    let began = Instant::now();
    let keys = loop {
        match elector.keys(PATRONI).await {
            Ok(keys) => break keys,
            Err(why) if began.elapsed() > STARTING => {
                return Err(Failure::runtime(format!("cannot ask {}: {why}", elector.name())));
            }
            Err(_) => tokio::time::sleep(STARTING / 20).await,
        }
    };
    let patroni = format!("{PATRONI}{}/leader", config.cluster.name);
    if keys.contains(&patroni) {
        return Err(Failure::config(format!(
            "{} has {patroni}: Patroni decides who is primary of this cluster",
            elector.name()
        ))
            .advise("watch without --etcd and --registry: it advises; proxies and relays follow Patroni's decisions by themselves"));
    }
    let refused = |why| Failure::runtime(format!("{} would not give a lock of {ttl:?}: {why}", elector.name()));
    elector.would_grant(ttl).await.map_err(refused)
}

/// Settings of the lock: its key, its owner, and its time to live without renewal.
struct Locking {
    key: String,
    owner: String,
    ttl: Duration,
}

/// Acts under the lock; false: somebody else has it.
async fn guarded(cluster: &mut impl Watching, elector: &Elector, lock: &Locking) -> Result<bool, Failure> {
    let held = Held::take(elector, &lock.key, &lock.owner, lock.ttl).await;
    let Some(held) = held.map_err(|why| Failure::runtime(format!("cannot take the lock: {why}")))? else {
        return Ok(false);
    };
    let result = cluster.act(&held).await;
    held.give_back().await;
    result.map(|()| true)
}

/// Returns the name of this machine.
pub(super) fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()).unwrap_or_default()
}
