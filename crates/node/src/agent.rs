//! The agent: observes, lets the supervisor decide, and acts; one turn each interval.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use config::Config;
use config::node::CopySource;
use failover::drain::Drain;
use failover::observe::{self, Observed, Observer, PeerState, Voice};
use process::{Failure, systemd};
use registry_client::{Claim, Entry, Member};
use tokio::sync::watch;
use topology::NodeConfig;
use watermark::Lsn;
use wire::control;

use crate::controldata::{self, OnDisk};
use crate::directory::{Directory, NodeIdentity};
use crate::hands::Hands;
use crate::lease::{self, LeaseClock};
use crate::mandate::{self, Leader, Mandate};
use crate::report::Report;
use crate::shared::{self, OwnSettings};
use crate::supervise::{
    Action, Data, Decision, Lease, Observation, Permits, Rebuild, Server, State, Trouble, Up, decide,
};

/// Time without WAL after which a standby is led elsewhere: a failover in progress leads it sooner.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest pause between two attempts that fail.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Interval between two looks at the lease.
const LEASE_PACE: Duration = Duration::from_millis(100);
/// Share of reads of a server without a configured one.
const WEIGHT: u32 = 100;
/// Interval between two looks at the server's settings.
const SETTINGS_PACE: Duration = Duration::from_secs(5);

/// Sets the fence, in the files.
const FENCE: [&str; 2] =
    ["ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_catalog.pg_reload_conf()::text"];
const UNFENCE: [&str; 2] =
    ["ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_catalog.pg_reload_conf()::text"];
/// Query of the settings that pg_rewind needs.
const REWINDABLE: &str = "SELECT CASE \
     WHEN current_setting('is_superuser') <> 'on' THEN 'its user is no superuser' \
     WHEN current_setting('full_page_writes') <> 'on' THEN 'full_page_writes is off' \
     WHEN current_setting('wal_log_hints') <> 'on' AND current_setting('data_checksums') <> 'on' \
          THEN 'wal_log_hints is off, and there are no data checksums' END";

/// Makes the statement that ends all sessions but those of agents, failovers and probes. The registry's sessions end, too: they write.
fn end_sessions() -> String {
    let own = control::is_named(&[control::FAILOVER, control::SWITCHOVER, control::PROBE, control::ORACLE]);
    format!(
        "SELECT count(pg_catalog.pg_terminate_backend(pid))::text FROM pg_catalog.pg_stat_activity \
         WHERE backend_type = 'client backend' AND pid <> pg_catalog.pg_backend_pid() \
         AND NOT (usename = current_user AND {own})"
    )
}

/// An agent.
pub(crate) struct Agent {
    pub(crate) config: Config,
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) observer: Observer,
    pub(crate) hands: Hands,
    pub(crate) identity: NodeIdentity,
    pub(crate) permits: Permits,
    pub(crate) lease: LeaseClock,
    /// Entry in the registry; None before the server has answered.
    pub(crate) entry: watch::Sender<Option<Entry>>,
    /// Servers that the registry has.
    pub(crate) listed: watch::Receiver<Vec<NodeConfig>>,
    /// Access to the registry, if there is one.
    pub(crate) member: Option<Arc<Member>>,
    /// The configuration file.
    pub(crate) file: Option<PathBuf>,
    /// Lease of a primary, for the watchdog; None for any other server.
    pub(crate) guarded: watch::Sender<Option<LeaseClock>>,
    pub(crate) status: Arc<Report>,
    /// True if the process has no other task: its orphans are the agent's to wait for, and the service manager hears of its state.
    pub(crate) is_alone: bool,
    pub(crate) memory: Memory,
}

/// Memory of earlier turns. Nothing in it is needed after a restart.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Last reported state and reason.
    reported: Option<(State, Option<Trouble>)>,
    /// Fork of the own timeline from the leader's: own and leader's timeline, position.
    fork: Option<(u32, u32, Lsn)>,
    /// Time since which a standby has received nothing.
    silent_since: Option<Duration>,
    /// Number of failed actions since the server last answered, and the last reason.
    failures: u32,
    trouble: Option<String>,
    checked_rights: bool,
    /// True if the server was primary in the last turn.
    is_primary: bool,
    /// Another node's claim to make the cluster.
    claimed: Option<Trouble>,
    /// Time of the last look at the server's settings.
    settings_seen: Option<Duration>,
    /// True if the settings fell short of the primary's at that time.
    cramped: bool,
    /// Settings that waited for a restart at that time.
    pending: Vec<String>,
    /// Wait for clients to leave, before the server ends or its data are copied anew.
    drain: Option<Drain>,
    /// True once the server is to end after that wait.
    ends: bool,
}

/// An upstream of a standby.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Upstream {
    /// Name of the relay; None for a server.
    relay: Option<String>,
    host: String,
    port: u16,
}

impl Agent {
    /// Runs turn after turn.
    pub(crate) async fn run(&mut self) -> Result<(), Failure> {
        while !(self.memory.ends && self.is_drained()) {
            let lease = self.lease;
            let is_primary =
                self.memory.is_primary && !self.config.failover.relays.is_empty() && !self.hands.directory.is_paused();
            let acted = tokio::select! {
                biased;
                acted = self.turn() => acted?,
                // Whatever the turn waits for: a server that hangs, a host that is lost.
                () = over(lease), if is_primary => {
                    tracing::error!("the lease has ended while the agent waited: the server is stopped at once");
                    self.hands.stop(true).await;
                    self.memory.is_primary = false;
                    true
                }
            };
            if self.is_alone && std::process::id() == 1 {
                crate::reap::reap(self.hands.child());
            }
            let pause = match self.memory.failures {
                0 if acted => Duration::ZERO,
                0 => self.config.node.interval,
                failures => self.config.node.interval.saturating_mul(1 << failures.min(6)).min(LONGEST_PAUSE),
            };
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// Observes, decides and acts once; returns true if there was something to do.
    async fn turn(&mut self) -> Result<bool, Failure> {
        self.take_list()?;
        let asked = lease::now();
        let seen = self.observer.observe().await;
        let observation = self.observation(&seen, asked).await;
        let decision = decide(&observation);
        self.guard(&observation);
        self.report(&decision, &observation);
        self.check_rights(&observation).await;
        if decision.action == Action::Wait {
            if decision.state == State::Fenced
                && !observation.paused
                && matches!(&observation.server, Server::Up(up) if !up.locked)
            {
                // Sessions that have come since.
                let _ = self.observer.run(&self.name, &[&end_sessions()]).await;
            }
            return Ok(false);
        }
        tracing::debug!(action = ?decision.action, "the agent acts");
        self.status.begins();
        let done = self.act(&decision.action, &seen, &observation).await;
        self.status.ends(done.is_ok());
        match done {
            Ok(()) => {
                // A start has succeeded only when the server answers.
                if !matches!(decision.action, Action::StartPrimary | Action::StartStandby) {
                    (self.memory.failures, self.memory.trouble) = (0, None);
                }
                Ok(decision.action != Action::Lead)
            }
            Err(failure) => {
                self.memory.failures += 1;
                let text = failure.to_string();
                if self.memory.trouble.as_ref() != Some(&text) {
                    tracing::error!(state = %decision.state, "{text}");
                }
                self.memory.trouble = Some(text);
                Ok(false)
            }
        }
    }

    /// Takes over the servers that the registry has.
    pub(crate) fn take_list(&mut self) -> Result<(), Failure> {
        if !self.listed.has_changed().unwrap_or(false) {
            return Ok(());
        }
        let nodes = self.listed.borrow_and_update().clone();
        if nodes.is_empty() {
            return Ok(());
        }
        let nodes = with_own(nodes, &self.name, &self.address);
        if nodes != self.config.cluster.nodes {
            self.config.cluster.nodes = nodes;
            self.observer = Observer::new(&self.config)?;
        }
        Ok(())
    }

    /// True if the registry has other servers of the cluster, whether they answer or not.
    fn others_are_listed(&self) -> bool {
        self.listed.borrow().iter().any(|node| node.name != self.name)
    }

    async fn observation(&mut self, seen: &Observed, asked: Duration) -> Observation {
        let mut leader = mandate::leader(seen, &self.name);
        let runs = self.hands.runs();
        let state = seen.servers.iter().find(|server| server.name == self.name);
        let state = state.and_then(|server| server.state.as_ref().ok()).filter(|_| runs).cloned();
        let data = match &state {
            Some(state) => self.running_data(state),
            None => self.data().await,
        };
        let own = match (&state, &data) {
            (Some(state), _) => Some((state.system, state.timeline)),
            (None, Data::Present(disk)) => Some((disk.system, disk.timeline)),
            _ => None,
        };
        let mut word = Mandate::Stands;
        if let Some((system, timeline)) = own {
            word = mandate::mandate(seen, &self.name, system, timeline);
            if let Some(leader) = &mut leader {
                leader.fork = self.fork(timeline, leader).await;
            }
        }
        if self.hands.directory.is_new() {
            let confirmed =
                seen.relays.is_empty() || seen.relays.iter().any(|relay| matches!(relay.voice, Voice::State(_)));
            match word {
                Mandate::Stands if confirmed => {
                    if let Err(failure) = self.hands.directory.set_new(false) {
                        tracing::warn!("{failure}");
                    }
                }
                // Its relays have never had any WAL: no other server can have been promoted.
                Mandate::Unknown { .. } => word = Mandate::Stands,
                _ => {}
            }
        }
        if word == Mandate::Stands {
            self.lease.renew(asked);
        }
        let led = leader.as_ref().map(|leader| upstreams(seen, leader)).unwrap_or_default();
        let server = match state {
            Some(state) => {
                self.look_at_settings().await;
                Server::Up(self.up(&state, &led))
            }
            None if runs => Server::Silent,
            None => Server::Down,
        };
        self.memory.is_primary = matches!(&server, Server::Up(up) if !up.standby && !up.locked);
        let rebuild = self.rebuild(&server).await;
        if let Server::Up(_) = server {
            (self.memory.failures, self.memory.trouble) = (0, None);
        }
        Observation {
            data,
            server,
            leader,
            cluster_exists: mandate::cluster_exists(seen, &self.name) || self.others_are_listed(),
            mandate: word,
            lease: if self.config.failover.relays.is_empty() { Lease::Valid } else { self.lease.state(lease::now()) },
            fenced: self.hands.directory.is_fenced(),
            permits: self.permits,
            claimed: self.memory.claimed.clone(),
            paused: self.hands.directory.is_paused(),
            rebuild,
        }
    }

    /// Returns the order to copy the primary's data anew. A server that answers has time for its clients to leave.
    async fn rebuild(&mut self, server: &Server) -> Rebuild {
        let ordered = self.hands.directory.is_rebuild_wanted();
        if !ordered && !self.memory.ends {
            self.memory.drain = None;
            return Rebuild::No;
        }
        let mut drain = self.memory.drain.unwrap_or_else(|| Drain::begin(lease::now()));
        if matches!(server, Server::Up(_)) && !self.config.node.drain.is_zero() {
            drain.see(self.observer.client_sessions(&self.name).await.ok(), lease::now());
        }
        self.memory.drain = Some(drain);
        match server {
            // An agent that ends leaves the order to its next start.
            _ if !ordered || self.memory.ends => Rebuild::No,
            Server::Up(_) if !self.is_drained() => Rebuild::Draining,
            _ => Rebuild::Due,
        }
    }

    /// True unless clients still have time to leave.
    fn is_drained(&self) -> bool {
        self.memory.drain.is_none_or(|drain| drain.is_over(self.config.node.drain, lease::now()))
    }

    fn up(&mut self, state: &PeerState, led: &[Upstream]) -> Up {
        let now = lease::now();
        let silent_since = match state.standby && !state.receiving {
            true => Some(self.memory.silent_since.unwrap_or(now)),
            false => None,
        };
        self.memory.silent_since = silent_since;
        let leads = |(host, port): &(String, u16)| led.iter().any(|to| to.host == *host && to.port == *port);
        Up {
            standby: state.standby,
            timeline: state.timeline,
            system: state.system,
            has: state.has,
            receiving: state.receiving,
            patience_over: silent_since.is_some_and(|since| now.saturating_sub(since) >= PATIENCE),
            led: state.upstream.as_ref().is_some_and(leads),
            locked: state.locked,
            cramped: self.memory.cramped,
        }
    }

    /// Looks at the settings that standbys share with their primary, and at those that wait for a restart.
    async fn look_at_settings(&mut self) {
        let now = lease::now();
        if self.memory.settings_seen.is_some_and(|seen| now.saturating_sub(seen) < SETTINGS_PACE) {
            return;
        }
        self.memory.settings_seen = Some(now);
        let text = match self.observer.run(&self.name, &[shared::QUERY]).await {
            Ok(text) => text.unwrap_or_default(),
            Err(why) => return tracing::debug!(why, "cannot read the server's settings"),
        };
        let Some(own) = OwnSettings::parse(&text) else { return };
        self.memory.cramped = own.recovery_paused && !self.hands.short_settings(Some(&own)).await.is_empty();
        if own.pending != self.memory.pending {
            match own.pending.is_empty() {
                true => tracing::info!("no setting waits for a restart of the server any more"),
                false => {
                    tracing::warn!(settings = own.pending.join(", "), "these settings wait for a restart of the server")
                }
            }
            self.status.pending(own.pending.len());
            self.memory.pending = own.pending;
        }
    }

    /// Tells the watchdog whose lease it guards.
    fn guard(&self, observation: &Observation) {
        let guarded = self.memory.is_primary && !self.config.failover.relays.is_empty() && !observation.paused;
        self.guarded.send_replace(guarded.then_some(self.lease));
    }

    /// Returns the data of a running server, from its own answer.
    fn running_data(&self, state: &PeerState) -> Data {
        Data::Present(OnDisk {
            system: state.system,
            standby: state.standby,
            timeline: state.timeline,
            clean: false,
            checkpoint: Lsn(0),
            segment: 16 << 20,
        })
    }

    /// Reads the data of a server that does not answer.
    async fn data(&self) -> Data {
        let directory = &self.hands.directory;
        if self.config.node.volume && !Directory::is_mounted(&directory.path) {
            return Data::Strange(Trouble::Vanished);
        }
        if directory.rewinding().exists() && !directory.data().exists() {
            return Data::HalfRewound;
        }
        let disk = match self.hands.inspect().await {
            Ok(Some(disk)) => disk,
            Ok(None) => return Data::Missing { known: self.identity.system.is_some() },
            Err(failure) => return Data::Strange(Trouble::Other(failure.to_string())),
        };
        let programs = self.hands.installation.version;
        match (self.identity.system, self.hands.version()) {
            (_, Some(data)) if data != programs => Data::Strange(Trouble::OtherVersion { data, programs }),
            (None, _) => Data::Strange(Trouble::Unknown),
            (Some(theirs), _) if theirs != disk.system => {
                Data::Strange(Trouble::OtherSystem { own: disk.system, theirs })
            }
            _ => Data::Present(disk),
        }
    }

    /// Returns the position at which the leader's history leaves a timeline, from its history file.
    async fn fork(&mut self, timeline: u32, leader: &Leader) -> Option<Lsn> {
        if leader.timeline <= timeline {
            return None;
        }
        if let Some((own, theirs, fork)) = self.memory.fork
            && (own, theirs) == (timeline, leader.timeline)
        {
            return Some(fork);
        }
        let name = relay::log::Timeline(leader.timeline).history_name();
        let read = format!("SELECT pg_catalog.pg_read_file('pg_wal/{name}')");
        let history = match self.observer.run(&leader.name, &[&read]).await {
            Ok(history) => history?,
            Err(why) => {
                tracing::debug!(leader = leader.name, why, "cannot read the history file");
                return None;
            }
        };
        let fork = controldata::fork(&history, leader.timeline, timeline)?;
        self.memory.fork = Some((timeline, leader.timeline, fork));
        Some(fork)
    }

    async fn act(&mut self, action: &Action, seen: &Observed, observation: &Observation) -> Result<(), Failure> {
        match action {
            Action::Wait => Ok(()),
            Action::Initialise => {
                if !self.claim().await? {
                    return Ok(());
                }
                self.hands.directory.set_new(true)?;
                self.hands.initialise().await?;
                self.remember_data().await
            }
            Action::Clone => {
                self.hands.directory.set_new(false)?;
                self.hands.directory.set_rebuild_wanted(false)?;
                let (leader, upstream) = self.source(seen, observation)?;
                self.make_slot(&leader, &upstream).await?;
                let (host, port) = split(&leader.address);
                let slot = observe::slot(&self.name);
                let to = (&*upstream.host, upstream.port);
                if !self.copy_from_archive(&leader, to, &slot).await {
                    self.hands.clone_from(&host, port, to, &slot).await?;
                }
                self.hands.directory.set_fenced(false)?;
                self.remember_data().await?;
                self.hands.directory.set_copy_wanted(false)
            }
            Action::SetAside => {
                let aside = self.set_aside()?;
                tracing::warn!(kept = %aside.display(), "the data could not be rewound; they are made anew");
                self.permits.join = true;
                Ok(())
            }
            Action::Rebuild => {
                self.hands.stop(false).await;
                let aside = self.set_aside()?;
                tracing::info!(kept = %aside.display(), "the data are copied anew, by order");
                self.permits.join = true;
                self.hands.directory.set_rebuild_wanted(false)
            }
            Action::WithdrawRebuild => {
                tracing::warn!("the order to copy the data anew is withdrawn: {}", Trouble::NothingToCopy);
                self.hands.directory.set_rebuild_wanted(false)
            }
            Action::StartPrimary => {
                self.lease.renew(lease::now());
                self.start(&[])
            }
            Action::StartStandby => {
                if let Ok((leader, upstream)) = self.source(seen, observation) {
                    if let Err(failure) = self.make_slot(&leader, &upstream).await {
                        tracing::warn!("{failure}");
                    }
                    let slot = observe::slot(&self.name);
                    let data = self.hands.directory.data();
                    self.hands.follow(&data, (&upstream.host, upstream.port), &slot)?;
                }
                let raised = self.hands.short_settings(None).await;
                if !raised.is_empty() {
                    tracing::warn!(settings = ?raised, "the server starts with the primary's settings: its own fall short of them");
                }
                self.start(&raised)
            }
            Action::StopFast => {
                self.hands.stop(false).await;
                Ok(())
            }
            Action::StopNow => {
                self.hands.stop(true).await;
                Ok(())
            }
            Action::Lead => {
                let (leader, upstream) = self.source(seen, observation)?;
                self.make_slot(&leader, &upstream).await?;
                if matches!(&observation.server, Server::Up(up) if up.led) {
                    return Ok(());
                }
                let conninfo = self.hands.conninfo(&upstream.host, upstream.port, "").replace('\'', "''");
                let slot = observe::slot(&self.name);
                let run = [
                    format!("ALTER SYSTEM SET primary_conninfo = '{conninfo}'"),
                    format!("ALTER SYSTEM SET primary_slot_name = '{slot}'"),
                    "SELECT pg_catalog.pg_reload_conf()::text".to_owned(),
                ];
                let run: Vec<&str> = run.iter().map(String::as_str).collect();
                self.on_own(&run).await
            }
            Action::BecomeStandby => {
                let (leader, upstream) = self.source(seen, observation)?;
                self.make_slot(&leader, &upstream).await?;
                let slot = observe::slot(&self.name);
                let data = self.hands.directory.data();
                self.hands.make_standby(&data, (&upstream.host, upstream.port), &slot)?;
                self.hands.directory.set_fenced(false)
            }
            Action::Rewind => self.rewind(seen, observation).await,
            Action::Fence => {
                self.hands.directory.set_fenced(true)?;
                self.on_own(&[FENCE[0], FENCE[1], &end_sessions()]).await
            }
            Action::Unfence => {
                self.on_own(&UNFENCE).await?;
                self.hands.directory.set_fenced(false)
            }
        }
    }

    async fn rewind(&mut self, seen: &Observed, observation: &Observation) -> Result<(), Failure> {
        let (leader, upstream) = self.source(seen, observation)?;
        // Until its first checkpoint the control file of a promoted server has the old timeline, and pg_rewind finds nothing to do.
        let checkpoint = self.observer.checkpoint(&leader.name).await;
        checkpoint.map_err(|why| {
            Failure::runtime(format!("cannot rewind to {}: it made no checkpoint: {why}", leader.name))
        })?;
        self.make_slot(&leader, &upstream).await?;
        self.hands.stop(false).await;
        let Some(disk) = self.hands.inspect().await? else { return Ok(()) };
        let fork = leader.fork.unwrap_or(Lsn(0));
        let (host, port) = split(&leader.address);
        let slot = observe::slot(&self.name);
        let to = (&*upstream.host, upstream.port);
        self.hands.rewind((&host, port), (leader.timeline, fork), &disk, to, &slot).await?;
        tracing::info!(leader = leader.name, timeline = leader.timeline, "the data were rewound");
        self.hands.directory.set_fenced(false)
    }

    /// Moves the data, or the half-rewound data, out of the way.
    pub(crate) fn set_aside(&self) -> Result<std::path::PathBuf, Failure> {
        let directory = &self.hands.directory;
        let from = if directory.rewinding().exists() { directory.rewinding() } else { directory.data() };
        directory.set_aside(&from, self.config.node.aside)
    }

    /// Runs statements on the own server.
    async fn on_own(&self, statements: &[&str]) -> Result<(), Failure> {
        let run = self.observer.run(&self.name, statements).await;
        run.map(drop).map_err(|why| Failure::runtime(format!("cannot set up the server {}: {why}", self.name)))
    }

    /// Claims to make the cluster, where a registry decides between several hosts; returns true if this node may.
    async fn claim(&mut self) -> Result<bool, Failure> {
        let Some(member) = &self.member else { return Ok(true) };
        let own = Claim { name: self.name.clone(), id: self.identity.id.clone() };
        let held = member.claim(&own).await?;
        self.memory.claimed = (held != own).then(|| Trouble::Claimed { node: held.name, key: member.claim_key() });
        Ok(self.memory.claimed.is_none())
    }

    /// Makes a standby's data from the archive, if they are to come from there; returns false if they have to come from the primary.
    async fn copy_from_archive(&self, leader: &Leader, upstream: (&str, u16), slot: &str) -> bool {
        let (CopySource::Archive, Some(file)) = (self.config.node.copy_from, &self.file) else { return false };
        match self.hands.clone_from_archive(file, leader.system, upstream, slot).await {
            Ok(()) => true,
            Err(failure) => {
                tracing::warn!("the data are copied from the primary, for the archive cannot be used: {failure}");
                false
            }
        }
    }

    fn start(&mut self, raised: &[(&'static str, u32)]) -> Result<(), Failure> {
        // A server that ended without an answer: the next start comes later.
        if self.memory.failures > 0 {
            tracing::warn!("the server did not come up; the end of its log:\n{}", self.hands.log_tail());
        }
        self.memory.failures += 1;
        (self.memory.checked_rights, self.memory.settings_seen, self.memory.cramped) = (false, None, false);
        self.hands.spawn(raised)
    }

    /// Writes the identity of the data.
    pub(crate) async fn remember_data(&mut self) -> Result<(), Failure> {
        let disk = self.hands.inspect().await?;
        let disk = disk.ok_or_else(|| Failure::environment("there are no data to take over"))?;
        self.identity.system = Some(disk.system);
        self.identity.version = self.hands.version();
        self.hands.directory.set_identity(&self.identity)
    }

    /// Returns the leader, and the upstream that this node follows.
    fn source(&self, seen: &Observed, observation: &Observation) -> Result<(Leader, Upstream), Failure> {
        let leader = observation.leader.clone();
        let leader = leader.ok_or_else(|| Failure::runtime("no primary answers"))?;
        let upstream = upstreams(seen, &leader).into_iter().next();
        let upstream = upstream.ok_or_else(|| Failure::runtime("there is nothing to follow"))?;
        Ok((leader, upstream))
    }

    /// Creates the node's slot at its upstream.
    async fn make_slot(&self, leader: &Leader, upstream: &Upstream) -> Result<(), Failure> {
        let slot = observe::slot(&self.name);
        let made = match &upstream.relay {
            Some(relay) => self.observer.make_slot(relay, &slot).await,
            None => {
                let make = format!(
                    "SELECT pg_catalog.pg_create_physical_replication_slot('{slot}', true)::text \
                     WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = '{slot}')"
                );
                self.observer.run(&leader.name, &[&make]).await.map(drop)
            }
        };
        let at = upstream.relay.as_deref().unwrap_or(&leader.name);
        made.map_err(|why| Failure::runtime(format!("cannot create the slot {slot} on {at}: {why}")))
    }

    /// Warns once a start if a rewind would fail: the first failover is too late to find out.
    async fn check_rights(&mut self, observation: &Observation) {
        if self.memory.checked_rights || !matches!(&observation.server, Server::Up(_)) {
            return;
        }
        match self.observer.run(&self.name, &[REWINDABLE]).await {
            Ok(why) => {
                self.memory.checked_rights = true;
                if let Some(why) = why {
                    tracing::warn!(
                        why,
                        "pg_rewind cannot be used on this server: after a failover its data are copied anew"
                    );
                }
            }
            Err(why) => tracing::debug!(why, "cannot check the settings that pg_rewind needs"),
        }
    }

    /// Shows a changed state in the log, to the service manager and in the registry.
    fn report(&mut self, decision: &Decision, observation: &Observation) {
        let lease = self.memory.is_primary.then(|| self.lease.rest(lease::now())).flatten();
        self.status.decided(decision, observation.paused, lease);
        let now = (decision.state, decision.why.clone());
        if self.memory.reported.as_ref() != Some(&now) {
            let why = decision.why.as_ref().map(ToString::to_string).unwrap_or_default();
            match decision.state {
                State::Broken | State::Fenced => {
                    tracing::warn!(node = self.name, state = %decision.state, "state changed: {why}")
                }
                _ if why.is_empty() => tracing::info!(node = self.name, state = %decision.state, "state changed"),
                _ => tracing::info!(node = self.name, state = %decision.state, "state changed: {why}"),
            }
            if self.is_alone {
                systemd::notify(&format!("STATUS={}: {why}", decision.state));
            }
            self.memory.reported = Some(now);
        }
        let Server::Up(up) = &observation.server else { return };
        let role = match decision.state {
            State::Primary => "primary".to_owned(),
            State::Following if up.standby => "replica".to_owned(),
            state => state.to_string(),
        };
        let own = self.config.cluster.nodes.iter().find(|node| node.name == self.name);
        let entry = Entry {
            name: self.name.clone(),
            address: self.address.clone(),
            role,
            weight: if self.memory.drain.is_none() { WEIGHT } else { 0 },
            zone: own.and_then(|node| node.zone.clone()),
        };
        self.entry.send_if_modified(|before| before.replace(entry.clone()).as_ref() != Some(&entry));
    }

    /// Takes reads off the server, waits for clients to leave, and stops it.
    pub(crate) async fn end(&mut self) {
        let drain = self.config.node.drain;
        if !drain.is_zero() && self.entry.borrow().is_some() {
            (self.memory.drain, self.memory.ends) = (Some(Drain::begin(lease::now())), true);
            self.entry.send_modify(|entry| {
                if let Some(entry) = entry {
                    entry.weight = 0;
                }
            });
            tracing::info!(?drain, "the server's weight is 0; clients have time to leave");
            // A primary's lease goes on meanwhile. The limit also holds for a turn that hangs.
            let _ = tokio::time::timeout(drain, self.run()).await;
        }
        if self.hands.runs() {
            self.hands.stop(false).await;
        }
    }
}

/// Adds a server to a registry's list, if it is not there yet.
pub(crate) fn with_own(mut nodes: Vec<NodeConfig>, name: &str, address: &str) -> Vec<NodeConfig> {
    if !nodes.iter().any(|node| node.name == name) {
        nodes.push(NodeConfig::new(name, address));
    }
    nodes
}

/// Returns once a lease has ended.
async fn over(lease: LeaseClock) {
    while lease.state(lease::now()) != Lease::Over {
        tokio::time::sleep(LEASE_PACE).await;
    }
}

/// Returns the upstreams that a standby may have, the best first: relays that stream on the leader's timeline, then the leader.
fn upstreams(seen: &Observed, leader: &Leader) -> Vec<Upstream> {
    let upstream = |relay: Option<&str>, address: &str| {
        let (host, port) = split(address);
        Upstream { relay: relay.map(str::to_owned), host, port }
    };
    let relays = seen.relays.iter().filter(|relay| match &relay.voice {
        Voice::State(state) => {
            state.system == leader.system && state.timeline >= leader.timeline && state.state == "streaming"
        }
        _ => false,
    });
    let relays = relays.map(|relay| upstream(Some(&relay.name), &relay.address));
    relays.chain([upstream(None, &leader.address)]).collect()
}

/// Splits an address into host and port.
pub(crate) fn split(address: &str) -> (String, u16) {
    let (host, port) = process::address::split(address, "5432");
    (host.to_owned(), port.parse().unwrap_or(5432))
}
