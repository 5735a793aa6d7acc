//! `kingpost relay`: the relay of this process, wired to configuration, signals, admin HTTP and, without a configured upstream, to the topology,
//! whose primary it follows.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ::backup::{BackupStatus, Keeper};
use ::relay::config::{Engine, RelayConfig};
use ::relay::log::{FLUSH_BUCKETS_US, FetchError, fetch};
use ::relay::{
    ArchiveStatus, DownstreamStatus, FetchFromError, LogStatus, OtherRelay, Relay, RelayAccess, SlotStatus, StartError,
    Status, Surroundings, fetch_archived, fetch_from,
};
use tokio::signal::unix::SignalKind;
use topology::{ClusterConfig, Topology};
use watermark::Lsn;

use crate::args::{FetchArgs, RelayArgs, RelayCommand, ResetArgs};
use crate::console::{Scene, Shown, Watched};
use crate::endpoints::Endpoints;
use crate::relay_mariadb;
use crate::run::{describe_view, primary_of};
use config::{self, Config, secret, settle, warn};
use metrics::{Exposition, Source, Type};
use process::{Failure, INTERRUPTED, LogFlags, StopSignals, control_runtime, listen_for, logging, systemd, terminal};

/// Interval between two looks at the topology's primary and at the log.
const WATCH: Duration = Duration::from_millis(500);

/// Runs the relay, or one of its tools.
pub fn command(args: &RelayArgs, log: &LogFlags) -> Result<(), Failure> {
    match (&args.command, &args.config) {
        (Some(RelayCommand::Fetch(args)), _) => fetch_file(args),
        (Some(RelayCommand::Reset(args)), _) => reset(args),
        (None, Some(path)) => {
            let (config, warnings) = config::load(path)?.accept(path)?;
            logging::start(&log.over(&config.log), None)?;
            warn(&warnings);
            let runtime = control_runtime()?;
            let result = match config.relay.engine {
                Engine::Postgresql => runtime.block_on(serve(path, config, args.new)),
                Engine::Mariadb | Engine::Mysql => runtime.block_on(relay_mariadb::serve(path, config)),
            };
            runtime.shutdown_timeout(Duration::from_secs(1));
            result
        }
        (None, None) => Err(Failure::config("no configuration file: give --config")),
    }
}

/// Exit code that makes a server's recovery stop; codes up to 125 tell it that the file does not exist.
const STOP_RECOVERY: i32 = 126;

fn fetch_file(args: &FetchArgs) -> Result<(), Failure> {
    match fetch_anywhere(args) {
        Ok(true) => Ok(()),
        // Without a message: a server in recovery asks for missing files all the time, and would fill its log.
        Ok(false) => std::process::exit(1),
        Err(failure) if args.stop_recovery => {
            terminal::note(format_args!("kingpost: {failure}"));
            std::process::exit(STOP_RECOVERY)
        }
        Err(failure) => Err(failure),
    }
}

/// Fetches a file from the first place that has it: relays, or the directory of one, then the archive. False: none has it. A place that does not answer
/// is an error only if no other has the file.
fn fetch_anywhere(args: &FetchArgs) -> Result<bool, Failure> {
    let mut failed = Vec::new();
    let held = if args.from.is_empty() {
        match fetch(&args.dir, &args.name, &args.target) {
            Ok(()) => true,
            Err(FetchError::NotHeld { .. }) => false,
            Err(error) => {
                failed.push(error.to_string());
                false
            }
        }
    } else {
        fetch_over_the_network(args, &mut failed)?
    };
    if held {
        return Ok(true);
    }
    if let Some(path) = &args.archive {
        match fetch_from_archive(path, args) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(failure) => failed.push(failure.to_string()),
        }
    }
    if failed.is_empty() {
        return Ok(false);
    }
    Err(Failure::environment(format!("cannot fetch {}: {}", args.name, failed.join("; "))))
}

fn fetch_from_archive(path: &Path, args: &FetchArgs) -> Result<bool, Failure> {
    let (config, _) = config::load(path)?.accept(path)?;
    if !config.relay.archive.is_on() {
        return Err(Failure::config(format!("{} has no [relay.archive] with a url", path.display())));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::environment(format!("cannot start a runtime: {error}")))?;
    let fetched = runtime.block_on(fetch_archived(&config.relay.archive, &args.name, &args.target));
    // A file system that hangs keeps its thread.
    runtime.shutdown_background();
    fetched.map_err(|error| Failure::environment(error.to_string()))
}

/// Fetches a file from the first relay that has it.
fn fetch_over_the_network(args: &FetchArgs, failed: &mut Vec<String>) -> Result<bool, Failure> {
    let password = secret(None, args.password_file.as_deref())?;
    let tls = tls::ConnectConfig {
        mode: args.tls,
        ca_file: args.ca_file.clone(),
        cert_file: args.cert_file.clone(),
        key_file: args.key_file.clone(),
        ..tls::ConnectConfig::default()
    };
    let connector = tls::Connector::new(&tls).map_err(|error| Failure::config(format!("--tls: {error}")))?;
    let connector = connector.map(Arc::new);
    for address in &args.from {
        let relay = RelayAccess {
            name: address,
            address,
            user: &args.user,
            password: password.as_deref(),
            connector: connector.as_ref(),
        };
        match fetch_from(&relay, &args.name, &args.target) {
            Ok(()) => return Ok(true),
            Err(FetchFromError::NotHeld { .. }) => {}
            Err(error) => failed.push(error.to_string()),
        }
    }
    Ok(false)
}

fn reset(args: &ResetArgs) -> Result<(), Failure> {
    let given_up = ::relay::reset(&args.dir, args.remove).map_err(|error| Failure::environment(error.to_string()))?;
    let (one, many, slots) = match given_up.is_binlog {
        true => ("binary log", "binary logs", ""),
        false => ("segment", "segments", "slots, and "),
    };
    let held = match given_up.files.as_slice() {
        [] => format!("no {one}"),
        [only] => only.clone(),
        [first, .., last] => format!("{} {many}, {first} to {last}", given_up.files.len()),
    };
    match &given_up.moved_to {
        Some(to) => terminal::line(format_args!("given up: {held}; they are in {}", to.display())),
        None => terminal::line(format_args!("given up and removed: {held}")),
    }
    match given_up.term {
        Some(term) => terminal::line(format_args!("kept: {slots}what was promised up to term {term}")),
        None => {
            terminal::line("kept: slots. What was promised is not known; the relay asks the others when it is started")
        }
    }
    Ok(())
}

/// A running relay, and the topology that it follows.
pub(crate) struct Relaying {
    relay: Relay,
    /// The topology whose primary is followed; `None` if the configuration names the upstream.
    topology: RwLock<Option<Arc<Topology>>>,
    /// True if the configuration names the upstream, perhaps since a reload: the topology's primary is then ignored.
    named: AtomicBool,
    /// The backups in the relay's archive.
    keeper: Keeper,
}

impl Relaying {
    /// Starts the relay. Without a configured upstream it follows the cluster's primary.
    ///
    /// # Errors
    /// The log cannot be opened, an address is taken, or the configuration has neither upstream nor nodes.
    pub(crate) fn start(config: &Config, is_new: bool, runtime: &tokio::runtime::Handle) -> Result<Relaying, Failure> {
        let topology = match config.relay.upstream.address.as_str() {
            "" if config.cluster.nodes.is_empty() => {
                return Err(Failure::config("cannot start the relay: nothing says what to follow")
                    .advise("give relay.upstream.address, or [[cluster.nodes]] whose primary it is to follow"));
            }
            "" => Some(
                Topology::start(watched(config), runtime)
                    .map_err(|error| Failure::environment(format!("cannot start watching the cluster: {error}")))?,
            ),
            _ => None,
        };
        let relay = Relay::start(&config.relay, surroundings(config)?, is_new, runtime);
        let relay = relay.map_err(|error| failure_of(&error))?;
        let named = AtomicBool::new(topology.is_none());
        Ok(Relaying { relay, topology: RwLock::new(topology), named, keeper: Keeper::start(config)? })
    }

    pub(crate) fn relay(&self) -> &Relay {
        &self.relay
    }

    /// Returns the topology, if the relay follows its primary.
    fn topology(&self) -> Option<Arc<Topology>> {
        self.topology.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes the console's view of the relay.
    fn scene(self: &Arc<Relaying>, config: &Config) -> Scene {
        let mut scene = Scene::default();
        if let Some(topology) = self.topology() {
            scene.parts.cluster = Some(Arc::new(Watched { topology, name: config.cluster.name.clone() }));
        }
        let addresses = self.relay.addresses().iter().map(ToString::to_string).collect();
        let asked = Arc::clone(self);
        scene.parts.relay = Some(Arc::new(Shown {
            status: Arc::new(move || asked.relay.status()),
            backups: Some(Arc::new({
                let asked = Arc::clone(self);
                move || asked.keeper.status()
            })),
            addresses,
        }));
        scene
    }

    /// Follows the primary, also to another server; returns when the relay cannot go on.
    pub(crate) async fn watch(&self) -> Failure {
        loop {
            if let Err(reason) = self.relay.alive() {
                return Failure::runtime(format!("the relay cannot go on: {reason}"))
                    .advise("look after the disk; what was acknowledged is in the log and stays there");
            }
            if let Some(address) = self.primary() {
                self.relay.follow(&address);
            }
            tokio::time::sleep(WATCH).await;
        }
    }

    fn primary(&self) -> Option<String> {
        if self.named.load(Ordering::Acquire) {
            return None;
        }
        let topology = self.topology()?;
        let status = self.relay.status();
        let held = status.log.as_ref().map(|log| (log.timeline, log.fenced));
        goes_over(topology.view().term.timeline, held, !status.upstream.is_empty()).then(|| primary_of(&topology))?
    }

    fn reload(&self, config: &Config) -> Result<(), Failure> {
        let topology = self.topology.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let (Some(topology), true) = (topology, config.relay.upstream.address.is_empty()) {
            topology
                .reload(watched(config))
                .map_err(|error| Failure::config(format!("the new configuration is refused: {error}")))?;
        }
        self.relay
            .reload(&config.relay, surroundings(config)?)
            .map_err(|error| Failure::config(format!("the new configuration is refused: {error}")))?;
        self.named.store(!config.relay.upstream.address.is_empty(), Ordering::Release);
        self.keeper.reload(config);
        Ok(())
    }

    /// Stops the relay. Blocks.
    pub(crate) fn shutdown(&self) {
        self.relay.shutdown();
        if let Some(topology) = self.topology.write().unwrap_or_else(PoisonError::into_inner).take() {
            topology.shutdown();
        }
    }
}

/// True if a relay goes over to the primary of this timeline. `held`: the log's timeline, and true if it is fenced, so that nothing more is taken on
/// it; `follows`: the relay has an upstream.
///
/// The topology here may see a promotion later than the operator who ordered it, and who has told the relay. Going back to the old primary until then
/// would keep commits of the new one waiting.
fn goes_over(timeline: u32, held: Option<(u32, bool)>, follows: bool) -> bool {
    held.is_none_or(|(own, fenced)| !follows || timeline > own || (timeline == own && !fenced))
}

/// Returns the cluster as a relay watches it: servers only. The positions of other relays are for proxies.
fn watched(config: &Config) -> ClusterConfig {
    ClusterConfig { relays: Vec::new(), ..config.cluster.clone() }
}

/// Collects the servers, and the relays that the configuration lists for proxies or for failovers; the relay may ask all of them.
fn surroundings(config: &Config) -> Result<Surroundings, Failure> {
    let (cluster, failover) = (&config.cluster, &config.failover);
    let connector = |tls: &tls::ConnectConfig, section: &str| -> Result<Option<Arc<tls::Connector>>, Failure> {
        let made = tls::Connector::new(tls).map_err(|error| Failure::config(format!("[{section}] {error}")))?;
        Ok(made.map(Arc::new))
    };
    let secured = connector(&cluster.tls, "cluster.tls")?;
    let mut relays: Vec<OtherRelay> = cluster
        .relays
        .iter()
        .map(|relay| OtherRelay {
            name: relay.name.clone(),
            address: relay.address.clone(),
            user: relay.user.clone().unwrap_or_else(|| cluster.user.clone()),
            password: match &relay.user {
                None => relay.password.clone().or_else(|| cluster.password.clone()),
                Some(_) => relay.password.clone(),
            },
            connector: secured.clone().filter(|_| relay.tls),
        })
        .collect();
    let secured = connector(&failover.tls, "failover.tls")?;
    for relay in &failover.relays {
        if relays.iter().any(|known| known.address == relay.address) {
            continue;
        }
        relays.push(OtherRelay {
            name: relay.name.clone(),
            address: relay.address.clone(),
            user: relay.user.clone(),
            password: secret(relay.password.as_ref(), relay.password_file.as_deref())?,
            connector: secured.clone(),
        });
    }
    Ok(Surroundings {
        servers: cluster.nodes.iter().map(|node| (node.name.clone(), node.address.clone())).collect(),
        relays,
        // A setting of failovers; without [[failover.relays]] it is unknown.
        acknowledgements: (!failover.relays.is_empty()).then_some(failover.acknowledgements),
        promotion: failover.step_timeout,
    })
}

impl Source for Relaying {
    fn metrics(&self) -> Exposition {
        let mut exposition = Exposition::of_this_build();
        describe(&self.relay, &mut exposition);
        if let Some(backups) = self.keeper.status() {
            describe_backups(&backups, &mut exposition);
        }
        if let Some(topology) = self.topology() {
            describe_view(&topology.view(), &mut exposition);
        }
        exposition
    }

    fn alive(&self) -> Result<(), String> {
        self.relay.alive()
    }

    fn ready(&self) -> Result<(), String> {
        let status = self.relay.status();
        match (status.upstream_state.as_str(), status.log.is_some()) {
            ("streaming", true) => Ok(()),
            (state, _) => Err(format!("not receiving from {}: {state}", status.upstream)),
        }
    }
}

async fn serve(path: &Path, mut config: Config, is_new: bool) -> Result<(), Failure> {
    // Signals first: a reload that comes while starting must not kill the process.
    let mut hangup = listen_for(SignalKind::hangup())?;
    let mut stop = StopSignals::new()?;
    let relaying = Arc::new(Relaying::start(&config, is_new, &tokio::runtime::Handle::current())?);
    let (source, scene) = (Arc::clone(&relaying), relaying.scene(&config));
    let endpoints = match Endpoints::start(&config, (None, None), source, scene, relaying.topology().as_deref()).await {
        Ok(endpoints) => endpoints,
        Err(failure) => {
            let ending = Arc::clone(&relaying);
            let _ = tokio::task::spawn_blocking(move || ending.shutdown()).await;
            return Err(failure);
        }
    };
    let addresses: Vec<String> = relaying.relay().addresses().iter().map(ToString::to_string).collect();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        listen = addresses.join(", "),
        metrics = endpoints.metrics(),
        console = endpoints.console(),
        dir = %config.relay.dir.display(),
        "started"
    );
    systemd::ready();
    let result = loop {
        tokio::select! {
            name = stop.next() => {
                tracing::info!(signal = name, "stopping");
                break Ok(());
            }
            _ = hangup.recv() => reload(path, &mut config, &relaying),
            failure = relaying.watch() => break Err(failure),
        }
    };
    systemd::notify("STOPPING=1");
    endpoints.flush().await;
    let ending = Arc::clone(&relaying);
    tokio::select! {
        ended = tokio::task::spawn_blocking(move || ending.shutdown()) => {
            if let Err(error) = ended {
                tracing::error!(%error, "stopping failed");
            }
        }
        name = stop.next() => {
            tracing::warn!(signal = name, "stopping at once");
            std::process::exit(INTERRUPTED);
        }
    }
    tracing::info!("stopped");
    result
}

/// Reads the file again. With any error in it, the running configuration stays.
fn reload(path: &Path, config: &mut Config, relaying: &Relaying) {
    let loaded = config::load(path).and_then(|loaded| loaded.accept(path));
    let applied = loaded.and_then(|(new, warnings)| relaying.reload(&new).map(|()| (new, warnings)));
    // The failure is in the log.
    let _ = settle(path, config, applied, say_what_comes_later);
}

/// Warns of changes that take effect only at the relay's next start.
pub(crate) fn say_what_comes_later(old: &Config, new: &Config) {
    let fixed = |config: &RelayConfig| (config.listen.clone(), config.dir.clone());
    let same = fixed(&new.relay) == fixed(&old.relay) && new.metrics == old.metrics;
    if !same || new.log != old.log || new.console != old.console {
        tracing::warn!(
            "changes of relay.listen, relay.dir, [metrics], [console] and [log] take effect at the next start"
        );
    }
}

/// Turns the error of a relay's start into a failure with advice.
pub fn failure_of(error: &StartError) -> Failure {
    let what = format!("cannot start the relay: {error}");
    match error {
        StartError::Config(_) => Failure::config(what),
        StartError::Listen { .. } => Failure::environment(what).advise("choose another address: relay.listen"),
        StartError::Log { .. } | StartError::Binlog { .. } | StartError::File { .. } | StartError::Thread(_) => {
            Failure::environment(what)
        }
    }
}

/// Adds the relay's metrics.
pub(crate) fn describe(relay: &Relay, exposition: &mut Exposition) {
    let status = relay.status();
    exposition.gauge("relay_streaming", "1 while WAL is received.", status.upstream_state == "streaming");
    exposition.gauge("relay_alarm", "1 while somebody has to look: see the log.", status.alarm);
    exposition.gauge("relay_connections", "Downstream connections.", status.connections);
    for (name, help, value) in &status.counters {
        exposition.counter(&format!("{name}_total"), help, *value);
    }
    exposition.gauge("relay_upstream_bytes", "End of the upstream's log, as a position.", status.upstream_end.0);
    if let Some(log) = &status.log {
        describe_log(log, exposition);
    }
    if let Some(archive) = &status.archive {
        describe_archive(archive, exposition);
    }
    describe_downstreams(&status, exposition);
    let mut restart = exposition.metric(Type::Gauge, "relay_slot_restart_bytes", "What a slot needs, as a position.");
    for slot in &status.slots {
        restart.sample(&[("slot", &slot.name)], slot.restart.unwrap_or(Lsn(0)).0);
    }
    for (name, help, id) in [
        (
            "relay_slot_xmin",
            "The oldest transaction whose rows a slot keeps at the primary, as pg_current_xact_id gives it; 0: none.",
            (|slot| slot.xmin) as fn(&SlotStatus) -> u64,
        ),
        ("relay_slot_catalog_xmin", "The same for rows of catalogs.", |slot| slot.catalog_xmin),
    ] {
        let mut metric = exposition.metric(Type::Gauge, name, help);
        for slot in &status.slots {
            metric.sample(&[("slot", &slot.name)], id(slot));
        }
    }
    relay.log_metrics(|log| {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for (name, help, value) in [
            ("relay_appended_bytes_total", "Bytes of WAL that were new.", load(&log.appended_bytes)),
            ("relay_compared_bytes_total", "Bytes of WAL that were held already.", load(&log.compared_bytes)),
            ("relay_throttled_total", "Times that receiving had to wait for the disk.", load(&log.throttled)),
            ("relay_segments_late_total", "Segments not ready when they were needed.", load(&log.segments_late)),
            ("relay_segments_removed_total", "Old segments removed.", load(&log.segments_removed)),
        ] {
            exposition.counter(name, help, value);
        }
        let counts = log.flushes.buckets();
        let buckets: Vec<(f64, u64)> =
            FLUSH_BUCKETS_US.iter().zip(counts).map(|(bound, count)| (*bound as f64 / 1e6, count)).collect();
        let above = counts.last().copied().unwrap_or(0);
        let sum = log.flushes.sum_us() as f64 / 1e6;
        exposition.histogram("relay_flush_seconds", "How long a flush of the log took.", &buckets, above, sum);
    });
}

fn describe_log(log: &LogStatus, exposition: &mut Exposition) {
    exposition.gauge("relay_timeline", "Timeline being written.", log.timeline);
    exposition.gauge("relay_term", "Highest term that was promised to at a failover.", log.term);
    exposition.gauge("relay_fenced", "1 while nothing more is taken on that timeline.", log.fenced);
    let mut position = exposition.metric(Type::Gauge, "relay_position_bytes", "Positions of the log.");
    for (name, at) in
        [("oldest", log.oldest), ("written", log.written), ("flushed", log.flushed), ("acknowledged", log.acknowledged)]
    {
        position.sample(&[("position", name)], at.0);
    }
    exposition.gauge("relay_held_bytes", "Bytes of segments held.", log.bytes);
    let help = "1 while what a switch of timelines needs is kept back, so that it needs no room on the disk.";
    exposition.gauge("relay_reserve", help, log.reserve);
}

fn describe_archive(archive: &ArchiveStatus, exposition: &mut Exposition) {
    exposition.gauge(
        "relay_archive_alarm",
        "1 while somebody has to look after the archive: see the log.",
        archive.alarm,
    );
    let help = "Durable here and not in the archive.";
    exposition.gauge("relay_archive_behind_bytes", help, archive.behind_bytes);
    let help = "Time since when the archive has not had all that was durable here.";
    exposition.gauge("relay_archive_behind_seconds", help, archive.behind.as_secs_f64());
    let help = "Position up to which the archive has confirmed every segment; WAL from there on stays here.";
    exposition.gauge("relay_archive_confirmed_bytes", help, archive.confirmed.0);
    for (name, help, value) in [
        ("relay_archive_objects_total", "Objects written to the archive.", archive.puts),
        ("relay_archive_bytes_total", "Bytes of the objects written to the archive.", archive.put_bytes),
        ("relay_archive_equal_total", "Objects that were in the archive with equal content.", archive.equal),
        ("relay_archive_failures_total", "Failed attempts to archive.", archive.failures),
    ] {
        exposition.counter(name, help, value);
    }
}

fn describe_backups(backups: &BackupStatus, exposition: &mut Exposition) {
    let help = "1 while somebody has to look after the backups by schedule: see the log.";
    exposition.gauge("relay_backup_alarm", help, backups.alarm);
    exposition.gauge("relay_backup_restorable", "Backups in the archive that can be restored.", backups.restorable);
    if let Some(newest) = backups.newest {
        exposition.gauge("relay_backup_newest_seconds", "End of the newest restorable backup, since 1970.", newest);
    }
    if let Some(window) = &backups.window {
        let help = "The oldest moment that can be restored, since 1970.";
        exposition.gauge("relay_backup_window_from_seconds", help, window.from_seconds());
        let help = "Position of the newest moment that can be restored.";
        exposition.gauge("relay_backup_window_to_bytes", help, window.to().0);
    }
    exposition.counter("relay_backup_taken_total", "Backups taken by schedule.", backups.taken);
    exposition.counter("relay_backup_failures_total", "Failed backups by schedule.", backups.failures);
}

fn describe_downstreams(status: &Status, exposition: &mut Exposition) {
    let flushed = status.log.as_ref().map_or(Lsn(0), |log| log.flushed);
    let mut each = |name, help, value: &dyn Fn(&DownstreamStatus) -> u64| {
        let mut metric = exposition.metric(Type::Gauge, name, help);
        for downstream in &status.downstreams {
            let id = downstream.id.to_string();
            metric.sample(&[("downstream", &downstream.application_name), ("id", &id)], value(downstream));
        }
    };
    let behind = |at: Lsn| flushed.0.saturating_sub(at.0);
    each("relay_downstream_unsent_bytes", "Durable here and not sent yet.", &|downstream| behind(downstream.sent));
    each("relay_downstream_lag_bytes", "Durable here and not yet durable there.", &|downstream| {
        behind(downstream.flushed)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn to_which_primary_a_relay_goes_over() {
        for (what, timeline, held, follows, expected) in [
            ("a new relay", 1, None, false, true),
            ("the same timeline", 2, Some((2, false)), true, true),
            ("a promotion", 3, Some((2, false)), true, true),
            ("a promotion that it was fenced for", 3, Some((2, true)), true, true),
            ("the one that it was fenced away from", 2, Some((2, true)), true, false),
            ("the one before", 1, Some((2, false)), true, false),
            ("it has none, and says why it takes nothing of this one", 1, Some((2, true)), false, true),
        ] {
            assert_eq!(goes_over(timeline, held, follows), expected, "{what}");
        }
    }
}
