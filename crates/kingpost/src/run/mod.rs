//! The running parts: the topology and the proxy, wired together. The only module that knows how they are driven.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use topology::{Address, NodeView, OracleTimes, RelayStatus, Role, Topology, View, WEIGHT_SCALE};

use crate::admin::Source;
use crate::config::Config;
use crate::console::{Observed, Scene, Shown, Watched};
use crate::error::Failure;
use crate::exposition::{Exposition, Type};
use crate::judges::Judges;
use crate::lookup::Lookup;
use crate::otlp::traces::Traces;
use proxy::console::Process;
use proxy::metrics::{BUCKETS, Snapshot};
use proxy::{Proxy, Socket, StartError};

/// The parts of one process.
pub(crate) struct Running {
    topology: Arc<Topology>,
    /// The cluster's.
    name: String,
    /// `None` once it was shut down.
    proxy: RwLock<Option<Proxy>>,
    pulse: Mutex<Pulse>,
    lookup: Arc<Lookup>,
    judges: Arc<Judges>,
    profiler_token: Option<String>,
    traces: Option<Traces>,
    /// The relay of this process, where there is one.
    relay: OnceLock<Arc<::relay::Relay>>,
}

/// Whether each worker's loop still turns. An idle one turns at least once in [`Pulse::LIMIT`].
#[derive(Debug, Default)]
struct Pulse {
    /// By worker: its turns, and since when it has had so many.
    last: Vec<(u64, Instant)>,
}

impl Pulse {
    /// Longest time without a turn.
    const LIMIT: Duration = Duration::from_secs(10);

    /// Compares with what was seen before; `now` never goes back.
    fn observe(&mut self, turns: &[u64], now: Instant) -> Result<(), String> {
        self.last.resize(turns.len(), (u64::MAX, now));
        for (worker, (last, turns)) in self.last.iter_mut().zip(turns).enumerate() {
            if last.0 != *turns {
                *last = (*turns, now);
            }
            let still = now.saturating_duration_since(last.1);
            if still > Pulse::LIMIT {
                return Err(format!("worker {worker} has not turned for {} s", still.as_secs()));
            }
        }
        Ok(())
    }
}

/// Totals for people.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Traffic {
    /// Clients connected.
    pub(crate) clients: u64,
    /// Statements so far.
    pub(crate) queries: u64,
}

impl Running {
    /// Starts probing and listening.
    ///
    /// # Errors
    /// A part cannot start, for example because an address is taken.
    pub(crate) fn start(config: &Config, runtime: &tokio::runtime::Handle) -> Result<Running, Failure> {
        Running::start_on(config, watch(config, runtime)?, Vec::new(), runtime)
    }

    /// Starts listening, where the cluster is being watched already, with the sockets that another process has handed over.
    ///
    /// # Errors
    /// A part cannot start.
    pub(crate) fn start_on(
        config: &Config,
        topology: Arc<Topology>,
        sockets: Vec<Socket>,
        runtime: &tokio::runtime::Handle,
    ) -> Result<Running, Failure> {
        raise_descriptor_limit();
        let (traces, sink) = Traces::start(&config.proxy.tracing, runtime)?.unzip();
        match Proxy::start(&config.proxy, Arc::clone(&topology), sockets) {
            Ok(proxy) => Ok(Running {
                traces: {
                    sink.into_iter().for_each(|sink| proxy.trace_to(sink));
                    traces
                },
                lookup: Lookup::start(topology.clone(), proxy.lookups(), &config.proxy.auth_query, runtime),
                judges: Judges::start(proxy.verifications(), &config.proxy, runtime),
                profiler_token: config.metrics.profiler_token.clone().filter(|token| !token.is_empty()),
                topology,
                name: config.cluster.name.clone(),
                proxy: RwLock::new(Some(proxy)),
                pulse: Mutex::default(),
                relay: OnceLock::new(),
            }),
            Err(error) => {
                topology.shutdown();
                Err(failure_of(&error))
            }
        }
    }

    /// Asks the proxy, as long as there is one.
    fn ask<T: Default>(&self, question: impl FnOnce(&Proxy) -> T) -> T {
        self.proxy.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(question).unwrap_or_default()
    }

    /// Shows a relay's metrics beside the proxy's.
    pub(crate) fn show_relay(&self, relay: Arc<::relay::Relay>) {
        // There is one at most.
        let _ = self.relay.set(relay);
    }

    /// What the console shows of it.
    pub(crate) fn scene(&self) -> Scene {
        let cluster = Watched { topology: Arc::clone(&self.topology), name: self.name.clone() };
        let observed = |proxy: &Proxy| Some(Observed { observer: proxy.observer(), addresses: proxy.addresses() });
        let mut scene = Scene::default();
        scene.parts.cluster = Some(Arc::new(cluster));
        if let Some(observed) = self.ask(observed) {
            scene.parts.proxy = Some(Arc::new(observed));
        }
        if let Some(relay) = self.relay.get() {
            let addresses = relay.addresses().iter().map(ToString::to_string).collect();
            let relay = Arc::clone(relay);
            scene.parts.relay = Some(Arc::new(Shown { status: Arc::new(move || relay.status()), addresses }));
        }
        scene
    }

    /// Who watches the nodes.
    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Where the primary is, while there is one.
    pub(crate) fn primary(&self) -> Option<String> {
        primary_of(&self.topology)
    }

    /// Where clients connect; port 0 resolved.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.ask(Proxy::addresses)
    }

    /// Waits until a primary is known.
    ///
    /// # Errors
    /// It took longer; what each node is and said is in the failure.
    pub(crate) async fn wait_ready(&self, limit: Duration) -> Result<(), Failure> {
        self.topology
            .wait_ready(limit)
            .await
            .map_err(|error| Failure::runtime(format!("the proxy found no primary: {error}")))
    }

    /// Takes over a new configuration. What may be refused is asked first, so that a refusal leaves everything as it was.
    ///
    /// # Errors
    /// A part refused.
    pub(crate) fn reload(&self, config: &Config) -> Result<(), Failure> {
        let refused =
            |error: &dyn std::fmt::Display| Failure::config(format!("the new configuration is refused: {error}"));
        config.cluster.validate().map_err(|error| refused(&error))?;
        config.cluster.connector().map_err(|error| refused(&error))?;
        let proxy = self.proxy.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(proxy) = proxy.as_ref() {
            proxy.reload(&config.proxy).map_err(|error| refused(&error))?;
        }
        self.lookup.reload(&config.proxy.auth_query);
        self.judges.reload(&config.proxy);
        self.topology.reload(config.cluster.clone()).map_err(|error| refused(&error))
    }

    /// Takes requests to read passwords again; none once the proxy has been stopped.
    pub(crate) fn renewals(&self) -> Option<proxy::RenewalDesk> {
        self.ask(|proxy| Some(proxy.renewals()))
    }

    /// Who watches the nodes, to keep.
    pub(crate) fn watcher(&self) -> Arc<Topology> {
        Arc::clone(&self.topology)
    }

    /// A lookup whose own password is refused has passwords read again by these.
    pub(crate) fn renew_by(&self, passwords: Arc<crate::passwords::Passwords>) {
        self.lookup.renew_by(passwords);
    }

    /// Lets operators reload and stop from the console.
    pub(crate) fn serve_operators(&self, process: Box<dyn Process>) {
        if let Some(proxy) = self.proxy.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
            proxy.serve_operators(process);
        }
    }

    /// What the topology sees now.
    pub(crate) fn view(&self) -> Arc<View> {
        self.topology.view()
    }

    /// Totals.
    pub(crate) fn traffic(&self) -> Traffic {
        let snapshot = self.ask(Proxy::metrics);
        let sum = |list: &[(&'static str, &'static str, u64)], names: &[&str]| {
            list.iter().filter(|(name, _, _)| names.contains(name)).map(|(_, _, value)| value).sum()
        };
        Traffic {
            clients: sum(&snapshot.gauges, &["clients"]),
            queries: sum(&snapshot.counters, &["statements_primary", "statements_replica", "statements_local"]),
        }
    }

    /// The sockets that clients connect to, for a process that takes over.
    pub(crate) fn sockets(&self) -> std::io::Result<Vec<Socket>> {
        match self.proxy.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
            Some(proxy) => proxy.sockets(),
            None => Err(std::io::Error::other("the proxy has been stopped")),
        }
    }

    /// Another process accepts from now on. Blocks for a moment.
    pub(crate) fn stop_accepting(&self) {
        if let Some(proxy) = self.proxy.write().unwrap_or_else(PoisonError::into_inner).as_mut() {
            proxy.stop_accepting();
        }
    }

    /// Clients that are connected.
    pub(crate) fn clients(&self) -> usize {
        self.ask(Proxy::clients)
    }

    /// Stops accepting, lets transactions finish until `grace` is over, closes everything. Blocks.
    pub(crate) fn shutdown(&self, grace: Duration) {
        if let Some(proxy) = self.proxy.write().unwrap_or_else(PoisonError::into_inner).take() {
            proxy.shutdown(grace);
        }
        if let (Some(traces), Ok(runtime)) = (&self.traces, tokio::runtime::Handle::try_current()) {
            runtime.block_on(traces.end());
        }
        self.topology.shutdown();
    }
}

impl Source for Running {
    fn metrics(&self) -> Exposition {
        let mut exposition = Exposition::of_this_build();
        describe_proxy(&self.ask(Proxy::metrics), &mut exposition);
        describe_view(&self.topology.view(), &mut exposition);
        if let Some(relay) = self.relay.get() {
            crate::relay::describe(relay, &mut exposition);
        }
        if let Some(traces) = &self.traces {
            traces.describe(&mut exposition);
        }
        describe_relays(&self.topology.relays(), &mut exposition);
        describe_oracle(&self.topology.oracle_times(), &mut exposition);
        exposition
    }

    fn alive(&self) -> Result<(), String> {
        let turns = self.ask(Proxy::turns);
        if turns.is_empty() {
            return Err("the proxy has been stopped".into());
        }
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner).observe(&turns, Instant::now())
    }

    fn profiler_token(&self) -> Option<&str> {
        self.profiler_token.as_deref()
    }

    fn ready(&self) -> Result<(), String> {
        if self.addresses().is_empty() {
            return Err("the proxy does not listen".into());
        }
        match self.topology.view().primary {
            Some(_) => Ok(()),
            None => Err("no primary is known".into()),
        }
    }
}

/// Begins to watch the cluster.
///
/// # Errors
/// The configuration cannot be used.
pub(crate) fn watch(config: &Config, runtime: &tokio::runtime::Handle) -> Result<Arc<Topology>, Failure> {
    Topology::start(config.cluster.clone(), runtime)
        .map_err(|error| Failure::environment(format!("cannot start watching the cluster: {error}")))
}

/// Where a topology's primary is, while there is one.
pub(crate) fn primary_of(topology: &Topology) -> Option<String> {
    Some(address_of(&topology.view().primary_node()?.address))
}

/// `host:port`, or a path.
pub(crate) fn address_of(address: &Address) -> String {
    match address {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => path.display().to_string(),
    }
}

/// The workers' metrics. Their names are the proxy's; the unit becomes seconds, counters get their suffix.
fn describe_proxy(snapshot: &Snapshot, exposition: &mut Exposition) {
    for (name, help, value) in &snapshot.counters {
        exposition.counter(&format!("{name}_total"), help, *value);
    }
    for (name, help, value) in &snapshot.gauges {
        exposition.gauge(name, help, *value);
    }
    let mut pins = exposition.metric(Type::Counter, "pins_total", "Clients that became pinned, by reason");
    for (reason, count) in &snapshot.pins {
        pins.sample(&[("reason", reason)], *count);
    }
    for (name, help, histogram) in &snapshot.histograms {
        let name = name.replace("_micros", "_seconds");
        let buckets: Vec<(f64, u64)> =
            BUCKETS.iter().zip(&histogram.buckets).map(|(bound, count)| (*bound as f64 / 1e6, *count)).collect();
        let above = histogram.buckets.last().copied().unwrap_or(0);
        exposition.histogram(&name, help, &buckets, above, histogram.sum_micros as f64 / 1e6);
    }
}

/// The cluster's metrics.
pub(crate) fn describe_view(view: &View, exposition: &mut Exposition) {
    exposition.gauge("topology_epoch", "Grows with each change of the cluster's picture.", view.epoch);
    exposition.gauge("topology_timeline", "Timeline of the current or last primary.", view.term.timeline);
    exposition.gauge("topology_primary_known", "1 while there is a primary.", view.primary.is_some());
    let mut role = exposition.metric(Type::Gauge, "node_role", "1 for the role that a node has.");
    for node in &view.nodes {
        for (name, value) in
            [("unknown", Role::Unknown), ("primary", Role::Primary), ("replica", Role::Replica), ("stale", Role::Stale)]
        {
            role.sample(&[("node", &node.node.name), ("role", name)], node.role == value);
        }
    }
    let mut each = |name, help, value: &dyn Fn(&NodeView) -> f64| {
        let mut metric = exposition.metric(Type::Gauge, name, help);
        for node in &view.nodes {
            metric.sample(&[("node", &node.node.name)], value(node));
        }
    };
    each("node_usable", "1 while a node may be given new work.", &|node| f64::from(u8::from(node.usable)));
    each("node_weight", "Share of reads relative to the other nodes, lowered during slow start.", &|node| {
        f64::from(node.weight) / f64::from(WEIGHT_SCALE)
    });
    each("node_lag_seconds", "Time a replica is behind, by the last probe.", &|node| {
        node.node.lag_ms.load(Ordering::Relaxed) as f64 / 1000.0
    });
    each("node_lag_bytes", "Bytes a replica's replay is behind, by the last probe.", &|node| {
        node.node.lag_bytes.load(Ordering::Relaxed) as f64
    });
    let help = "Bytes of WAL that a node keeps for the replication slot that is furthest behind.";
    each("node_slots_held_bytes", help, &|node| node.node.slots_held.load(Ordering::Relaxed) as f64);
}

/// The relays that the proxy hears.
fn describe_relays(relays: &[RelayStatus], exposition: &mut Exposition) {
    let help = "1 while a relay confirms what is durable on the primary's timeline.";
    let mut confirms = exposition.metric(Type::Gauge, "cluster_relay_confirms", help);
    for relay in relays {
        confirms.sample(&[("relay", &relay.name)], relay.confirms);
    }
    let help = "Position that a relay has last confirmed.";
    let mut confirmed = exposition.metric(Type::Gauge, "cluster_relay_confirmed_bytes", help);
    for relay in relays {
        confirmed.sample(&[("relay", &relay.name)], relay.told.map_or(0, |(_, at)| at.0));
    }
}

/// The oracle's metrics.
fn describe_oracle(times: &OracleTimes, exposition: &mut Exposition) {
    for (name, help, times) in [
        ("oracle_wait_seconds", "Time from when a batch was wanted until it was sent.", &times.waited),
        ("oracle_round_trip_seconds", "Time from sending a batch's question to its answer.", &times.round_trip),
    ] {
        let bounds = topology::times::BUCKETS.iter().map(|bound| *bound as f64 / 1e6);
        let buckets: Vec<(f64, u64)> = bounds.zip(times.buckets).collect();
        let above = times.buckets.last().copied().unwrap_or(0);
        exposition.histogram(name, help, &buckets, above, times.sum_micros as f64 / 1e6);
    }
    exposition.counter("oracle_failed_total", "Batches that were not answered.", times.failed);
}

/// What the user can do about a proxy that does not start.
fn failure_of(error: &StartError) -> Failure {
    let what = format!("cannot start the proxy: {error}");
    match error {
        StartError::Settings(_) => Failure::config(what),
        StartError::Listen { .. } => Failure::environment(what)
            .advise("choose another address: proxy.listen in the configuration, --listen for `up`"),
        StartError::System { .. } => Failure::environment(what),
    }
}

/// A client is a descriptor, and the usual soft limit is 1024. Returns how many descriptors the process may have now.
pub(crate) fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let before = limit.current;
        limit.current = limit.maximum;
        match setrlimit(Resource::Nofile, limit) {
            Ok(()) => tracing::debug!(limit = ?limit.maximum, "raised the limit of open files"),
            Err(error) => {
                limit.current = before;
                tracing::warn!(%error, "cannot raise the limit of open files");
            }
        }
    }
    limit.current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy::metrics::HistogramSnapshot;

    #[test]
    fn pulse() {
        let start = Instant::now();
        let mut pulse = Pulse::default();
        for (turns, seconds, alive) in [
            ([5, 5], 0, true),
            ([5, 6], 9, true),
            ([5, 7], 11, false),
            ([6, 8], 12, true),
            ([7, 8], 22, true),
            ([8, 8], 23, false),
            ([8, 9], 24, true),
        ] {
            let observed = pulse.observe(&turns, start + Duration::from_secs(seconds));
            assert_eq!(observed.is_ok(), alive, "{turns:?} turns after {seconds} s");
        }
    }

    #[test]
    fn histograms_are_in_seconds() {
        let mut buckets = [0; BUCKETS.len() + 1];
        buckets[0] = 1;
        buckets[BUCKETS.len()] = 2;
        let snapshot = Snapshot {
            counters: vec![("cancels", "Cancels", 4)],
            histograms: vec![("wait_micros", "Waits", HistogramSnapshot { buckets, sum_micros: 1_500_000 })],
            ..Snapshot::default()
        };
        let mut exposition = Exposition::default();
        describe_proxy(&snapshot, &mut exposition);
        let text = exposition.render();
        for line in [
            "kingpost_cancels_total 4",
            "kingpost_wait_seconds_bucket{le=\"0.00005\"} 1",
            "kingpost_wait_seconds_bucket{le=\"+Inf\"} 3",
            "kingpost_wait_seconds_sum 1.5",
            "kingpost_wait_seconds_count 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
