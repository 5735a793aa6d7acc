//! One failover in progress, with the state shared by all of its steps.

use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};

use super::cluster_clients::ClusterClients;
use super::plan::{Rules, Survey};
use crate::args::StopAt;
use config::Config;
use process::{Failure, terminal};

/// One failover in progress.
pub(super) struct FailoverRun {
    pub(super) config: Config,
    pub(super) clients: ClusterClients,
    pub(super) began: Instant,
    /// Random number, which distinguishes its terms from those of runs that begin at the same time.
    pub(super) run: u16,
    /// True if everything that cannot be known any more counts as lost.
    pub(super) force: bool,
    /// True if there may be too few relays.
    pub(super) accept_loss: bool,
    /// Test hook that stops the run.
    pub(super) stop: StopAt,
}

/// Checks before the irreversible steps.
pub(super) trait Guard {
    /// Runs before a node is elected: from then on a later run continues with that node. Err: it must not be elected.
    fn before_election(&self) -> impl Future<Output = Result<(), String>>;

    /// Runs before the node is promoted. Err: another run is in progress, or may be.
    fn before_promotion(&self) -> impl Future<Output = Result<(), String>>;
}

/// No checks: the operator is responsible.
pub(super) struct NoGuard;

impl Guard for NoGuard {
    async fn before_election(&self) -> Result<(), String> {
        Ok(())
    }

    async fn before_promotion(&self) -> Result<(), String> {
        Ok(())
    }
}

impl FailoverRun {
    /// # Errors
    /// The configuration has no servers, or a password file cannot be read.
    pub(super) fn new(config: Config) -> Result<FailoverRun, Failure> {
        if config.cluster.nodes.is_empty() {
            return Err(
                Failure::config("nothing says which servers there are").advise("list them as [[cluster.nodes]]")
            );
        }
        let clients = ClusterClients::new(&config)?;
        let stop = StopAt::default();
        let mut run = [0; 2];
        getrandom::fill(&mut run).map_err(|error| Failure::runtime(format!("no random numbers: {error}")))?;
        let run = u16::from_ne_bytes(run);
        Ok(FailoverRun { config, clients, began: Instant::now(), run, force: false, accept_loss: false, stop })
    }

    /// See [`mark`].
    pub(super) fn step(&self, name: &str) {
        mark(&self.stop, name, |text| self.say(text));
    }

    pub(super) fn say(&self, text: impl std::fmt::Display) {
        terminal::line(format_args!("{:6.1} s  {text}", self.began.elapsed().as_secs_f32()));
    }

    pub(super) fn limit(&self) -> Duration {
        self.config.failover.step_timeout
    }

    /// Returns the configured address of a node.
    pub(super) fn address(&self, node: &str) -> String {
        let known = self.clients.nodes().iter().find(|known| known.name == node);
        known.map(|known| known.address.clone()).unwrap_or_default()
    }

    /// Returns the rules for candidates that replace `old`.
    pub(super) fn rules(&self, old: Option<&str>) -> Rules {
        let zone = |old: &str| self.clients.nodes().iter().find(|node| node.name == old)?.zone.clone();
        let failover = &self.config.failover;
        Rules { zones: failover.zones.clone(), lag_limit: failover.lag_limit, home: old.and_then(zone) }
    }

    /// Returns the primary of a timeline: the one that answers, or else the one that relays or standbys receive from or last received from.
    pub(super) async fn primary_of(&self, survey: &Survey, timeline: u32) -> Option<String> {
        let answers = survey.answering().find(|(_, state)| !state.standby && state.timeline == timeline);
        if let Some((server, _)) = answers {
            return Some(server.name.clone());
        }
        let relays = survey.standing().filter(|(_, standing)| standing.timeline == timeline);
        let relays = relays.map(|(_, standing)| standing.upstream.clone());
        let standbys = survey.answering().filter(|(_, state)| state.standby && state.timeline == timeline);
        let standbys = standbys.filter_map(|(_, state)| super::conninfo::endpoint(state.conninfo.as_deref()?));
        let upstreams: Vec<String> = relays.chain(standbys.map(|(host, port)| format!("{host}:{port}"))).collect();
        for upstream in upstreams {
            for server in &survey.servers {
                // A standby that others receive from is not the primary.
                let standby = survey.state(&server.name).is_some_and(|state| state.standby);
                if !standby && same(&upstream, &server.address).await {
                    return Some(server.name.clone());
                }
            }
        }
        None
    }
}

/// Marks the end of one step, before the next begins. A test may end or stop this program here.
pub(super) fn mark(stop: &StopAt, name: &str, say: impl FnOnce(std::fmt::Arguments<'_>)) {
    if stop.die_at.as_deref() == Some(name) {
        std::process::abort();
    }
    if stop.stop_at.as_deref() == Some(name) {
        say(format_args!("standing still after {name}"));
        // The program continues on SIGCONT.
        let _ = kill_process(getpid(), Signal::STOP);
    }
}

/// Time limit of a name resolution.
const RESOLVE: Duration = Duration::from_secs(2);

/// True if two addresses lead to the same host and port: the same text, or a common resolved address.
pub(super) async fn same(one: &str, other: &str) -> bool {
    if one == other {
        return true;
    }
    let resolve = async |address: &str| -> Vec<std::net::SocketAddr> {
        let found = tokio::time::timeout(RESOLVE, tokio::net::lookup_host(address)).await;
        found.ok().and_then(Result::ok).map(Iterator::collect).unwrap_or_default()
    };
    let (one, other) = tokio::join!(resolve(one), resolve(other));
    one.iter().any(|address| other.contains(address))
}
