//! The running parts: each cluster's topology and proxy, wired together. Only this module knows how to drive them.

mod cluster_runtime;
mod shown;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use ::console::{ClustersPart, ProxyPart, Served};
use topology::{Address, Topology, View};

use crate::console::{Scene, Shown};
use auth::{AskedAgain, Passwords};
use config::Config;
use metrics::{Exposition, Source, Traces};
use process::Failure;
use proxy::console::{ChangeFreeze, NoOrders, Orders, Process};
use proxy::fleet::Fleet;
use proxy::trace::Sink;
use proxy::{Proxy, Socket, StartError};

pub(crate) use cluster_runtime::ClusterRuntime;
use cluster_runtime::refused;
pub(crate) use shown::describe_view;

type Clusters = Arc<RwLock<Vec<Arc<ClusterRuntime>>>>;

/// The clusters, for the web console.
struct ShownClusters(Clusters);

/// The parts of one process.
pub struct Running {
    /// The clusters; the first one has the listening sockets. Never empty.
    parts: Clusters,
    fleet: Arc<Fleet>,
    runtime: tokio::runtime::Handle,
    passwords: OnceLock<Arc<Passwords>>,
    profiler_token: Option<String>,
    traces: Option<Traces>,
    sink: Option<Sink>,
    /// The relay of this process, if any.
    relay: OnceLock<Arc<::relay::Relay>>,
}

/// Totals for display.
#[derive(Debug, Clone, Copy, Default)]
pub struct Traffic {
    /// Clients connected.
    pub clients: u64,
    /// Number of statements so far.
    pub queries: u64,
}

impl Running {
    /// Starts probing and listening.
    ///
    /// # Errors
    /// A part cannot start, for example because an address is taken.
    pub fn start(config: &Config, runtime: &tokio::runtime::Handle) -> Result<Running, Failure> {
        Running::start_on(config, watch(config, runtime)?, Vec::new(), BTreeMap::new(), runtime)
    }

    /// Starts listening, with topologies that run already (in the order of the configuration), with the sockets that another process has handed over,
    /// and with the operators' orders for that process's clusters.
    ///
    /// # Errors
    /// A part cannot start.
    pub fn start_on(
        config: &Config,
        topologies: Vec<Arc<Topology>>,
        sockets: Vec<Socket>,
        mut orders: BTreeMap<String, Orders>,
        runtime: &tokio::runtime::Handle,
    ) -> Result<Running, Failure> {
        process::raise_descriptor_limit();
        let (traces, sink) = Traces::start(&config.proxy.tracing, runtime)?.unzip();
        let fleet = Fleet::new(config.directory());
        // The others first: once the first one listens, clients come for all of them.
        let mut sockets = Some(sockets);
        let mut parts = Vec::new();
        let each = config.of_each_cluster();
        for (at, (config, topology)) in each.iter().zip(&topologies).enumerate().rev() {
            let sockets = if at == 0 { sockets.take().unwrap_or_default() } else { Vec::new() };
            let ordered = orders.remove(&config.cluster.name).unwrap_or_default();
            match ClusterRuntime::start(config, Arc::clone(topology), sockets, &fleet, runtime, ordered) {
                Ok(part) => parts.insert(0, Arc::new(part)),
                Err(failure) => {
                    parts.iter().for_each(|part: &Arc<ClusterRuntime>| part.shutdown(Duration::ZERO));
                    topologies.iter().for_each(|topology| topology.shutdown());
                    return Err(failure);
                }
            }
        }
        for cluster in orders.keys() {
            tracing::warn!(cluster, "what operators have ordered of the old process is dropped: no such cluster");
        }
        let running = Running {
            parts: Arc::new(RwLock::new(parts)),
            fleet,
            runtime: runtime.clone(),
            passwords: OnceLock::new(),
            profiler_token: config.metrics.profiler_token.clone().filter(|token| !token.is_empty()),
            traces,
            sink,
            relay: OnceLock::new(),
        };
        running.parts().iter().for_each(|part| running.equip(part));
        Ok(running)
    }

    /// Gives a part the things that all parts of the process share.
    fn equip(&self, part: &ClusterRuntime) {
        if let Some(sink) = &self.sink {
            part.ask(|proxy| proxy.trace_to(sink.clone()));
        }
        if let Some(passwords) = self.passwords.get() {
            part.renew_by(passwords);
        }
    }

    /// Returns the clusters' parts, the first one first.
    pub fn parts(&self) -> Vec<Arc<ClusterRuntime>> {
        self.parts.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the first cluster's part, which has the listening sockets.
    fn first(&self) -> Arc<ClusterRuntime> {
        Arc::clone(&self.parts.read().unwrap_or_else(PoisonError::into_inner)[0])
    }

    /// Adds a relay's metrics to the proxy's.
    pub fn show_relay(&self, relay: Arc<::relay::Relay>) {
        // At most one relay is ever set.
        let _ = self.relay.set(relay);
    }

    /// Returns the parts that the web console shows.
    pub fn scene(&self) -> Scene {
        let mut scene = Scene::default();
        scene.parts.clusters = Some(Arc::new(ShownClusters(Arc::clone(&self.parts))));
        if let Some(relay) = self.relay.get() {
            let addresses = relay.addresses().iter().map(ToString::to_string).collect();
            let relay = Arc::clone(relay);
            scene.parts.relay =
                Some(Arc::new(Shown { status: Arc::new(move || relay.status()), backups: None, addresses }));
        }
        scene
    }

    /// Returns the topology of the first cluster.
    pub fn topology(&self) -> Arc<Topology> {
        Arc::clone(self.first().topology())
    }

    /// Returns the address of the first cluster's primary, if there is one.
    pub fn primary(&self) -> Option<String> {
        primary_of(self.first().topology())
    }

    /// Returns the addresses for clients, with port 0 resolved.
    pub fn addresses(&self) -> Vec<String> {
        self.first().ask(Proxy::addresses)
    }

    /// Waits until the first cluster's primary is known.
    ///
    /// # Errors
    /// It took longer; the failure has the state and the error of each node.
    pub async fn wait_ready(&self, limit: Duration) -> Result<(), Failure> {
        let topology = self.topology();
        topology
            .wait_ready(limit)
            .await
            .map_err(|error| Failure::runtime(format!("the proxy found no primary: {error}")))
    }

    /// Takes over a new configuration: changed clusters, new ones, and removed ones, whose clients may end their transactions until `grace` is over.
    /// Steps that may be refused come first, so that a refusal leaves everything unchanged.
    ///
    /// # Errors
    /// A part refused the configuration.
    pub fn reload(&self, config: &Config, grace: Duration) -> Result<(), Failure> {
        let each = config.of_each_cluster();
        let running = self.parts();
        let first = running[0].name();
        if (each.len() > 1 || running.len() > 1) && each.first().is_none_or(|of| of.cluster.name != first) {
            let text = format!(
                "the first cluster is {first:?}, and has the listening sockets: it stays the first one until a restart"
            );
            return Err(refused(&text));
        }
        let known = |of: &Config, at: usize| match at {
            0 => Some(Arc::clone(&running[0])),
            _ => running[1..].iter().find(|part| part.name() == of.cluster.name).cloned(),
        };
        let prepared = each.iter().map(ClusterRuntime::prepare).collect::<Result<Vec<_>, _>>()?;
        let mut parts: Vec<Arc<ClusterRuntime>> = Vec::new();
        let mut begun = Vec::new();
        for (at, of) in each.iter().enumerate() {
            let part = match known(of, at) {
                Some(part) => part,
                None => {
                    let started = watch_one(of, &self.runtime).and_then(|topology| {
                        ClusterRuntime::start(of, topology, Vec::new(), &self.fleet, &self.runtime, Orders::default())
                    });
                    let part = match started {
                        Ok(part) => Arc::new(part),
                        Err(failure) => {
                            begun.iter().for_each(|part: &Arc<ClusterRuntime>| part.shutdown(Duration::ZERO));
                            return Err(failure);
                        }
                    };
                    self.equip(&part);
                    tracing::info!(cluster = part.name(), "a cluster is served from now on");
                    begun.push(Arc::clone(&part));
                    part
                }
            };
            parts.push(part);
        }
        for ((part, of), prepared) in parts.iter().zip(&each).zip(prepared) {
            part.adopt(of, prepared)?;
        }
        self.fleet.set_directory(config.directory());
        let old = std::mem::replace(&mut *self.parts.write().unwrap_or_else(PoisonError::into_inner), parts.clone());
        for gone in old.into_iter().filter(|part| !parts.iter().any(|kept| Arc::ptr_eq(kept, part))) {
            tracing::info!(cluster = gone.name(), "a cluster is not served any more");
            self.runtime.spawn_blocking(move || gone.shutdown(grace));
        }
        Ok(())
    }

    /// Sets the passwords that are read again when a server of any cluster refuses one.
    pub fn renew_by(&self, passwords: Arc<Passwords>) {
        self.parts().iter().for_each(|part| part.renew_by(&passwords));
        // They are set already.
        let _ = self.passwords.set(passwords);
    }

    /// Returns the requests so far to read passwords again.
    pub fn asked_again(&self) -> AskedAgain {
        let asked =
            |part: &Arc<ClusterRuntime>| (part.name().to_owned(), part.renewals().asked(), part.topology().refusals());
        AskedAgain(self.parts().iter().map(asked).collect())
    }

    /// Answers these requests: passwords were read, and the parts have them.
    pub fn read_again(&self, asked: &AskedAgain) {
        for part in self.parts() {
            if let Some((_, ticket, _)) = asked.0.iter().find(|(name, ..)| name == part.name()) {
                part.renewals().answer(*ticket);
            }
        }
    }

    /// Lets operators reload and stop the process from the console, which is the first cluster's.
    pub fn serve_operators(&self, process: Box<dyn Process>) {
        self.first().change(|proxy| proxy.serve_operators(process));
    }

    /// Returns the current view of the first cluster's topology.
    pub fn view(&self) -> Arc<View> {
        self.first().topology().view()
    }

    /// Returns the totals over all clusters.
    pub fn traffic(&self) -> Traffic {
        let sum = |list: &[(&'static str, &'static str, u64)], names: &[&str]| {
            list.iter().filter(|(name, _, _)| names.contains(name)).map(|(_, _, value)| value).sum::<u64>()
        };
        let mut traffic = Traffic::default();
        for part in self.parts() {
            let snapshot = part.ask(Proxy::metrics);
            traffic.clients += sum(&snapshot.gauges, &["clients"]);
            traffic.queries +=
                sum(&snapshot.counters, &["statements_primary", "statements_replica", "statements_local"]);
        }
        traffic
    }

    /// Returns the sockets for clients, for a process that takes over.
    pub fn sockets(&self) -> std::io::Result<Vec<Socket>> {
        let sockets = self.first().ask(|proxy| Some(proxy.sockets()));
        sockets.unwrap_or_else(|| Err(std::io::Error::other("the proxy has been stopped")))
    }

    /// Returns operators' orders, by cluster; operators can give no further order until the other part of the result is dropped. Blocks.
    ///
    /// # Errors
    /// The orders are already held for another process, or a console does not answer.
    pub fn orders(&self) -> Result<(BTreeMap<String, Orders>, ChangeFreeze), NoOrders> {
        self.fleet.orders()
    }

    /// Stops accepting, because another process does from now on. Blocks for a moment.
    pub fn stop_accepting(&self) {
        self.first().change(Proxy::stop_accepting);
    }

    /// Counts the connected clients of all clusters.
    pub fn clients(&self) -> usize {
        self.parts().iter().map(|part| part.ask(Proxy::clients)).sum()
    }

    /// Stops accepting, lets transactions finish until `grace` is over, closes everything. Blocks.
    pub fn shutdown(&self, grace: Duration) {
        self.stop_accepting();
        std::thread::scope(|scope| {
            for part in self.parts() {
                scope.spawn(move || part.shutdown(grace));
            }
        });
        if let (Some(traces), Ok(runtime)) = (&self.traces, tokio::runtime::Handle::try_current()) {
            runtime.block_on(traces.end());
        }
    }
}

impl ClustersPart for ShownClusters {
    fn now(&self) -> Vec<Served> {
        let parts = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        let served = |part: Arc<ClusterRuntime>| {
            let (watched, observed) = part.seen();
            Served {
                name: part.name().to_owned(),
                identity: part,
                cluster: Arc::new(watched),
                proxy: observed.map(|observed| Arc::new(observed) as Arc<dyn ProxyPart>),
            }
        };
        parts.into_iter().map(served).collect()
    }
}

impl Source for Running {
    fn metrics(&self) -> Exposition {
        let mut exposition = Exposition::of_this_build();
        let parts = self.parts();
        match parts.as_slice() {
            [one] => one.describe(&mut exposition),
            several => {
                for part in several {
                    let mut own = Exposition::default();
                    part.describe(&mut own);
                    exposition.join(own, ("cluster", part.name()));
                }
            }
        }
        if let Some(relay) = self.relay.get() {
            crate::relay::describe(relay, &mut exposition);
        }
        if let Some(traces) = &self.traces {
            traces.describe(&mut exposition);
        }
        exposition
    }

    fn alive(&self) -> Result<(), String> {
        self.parts().iter().try_for_each(|part| part.alive())
    }

    fn profiler_token(&self) -> Option<&str> {
        self.profiler_token.as_deref()
    }

    /// Returns Ok if clients of any cluster can be served: a failed cluster must not keep the clients of the others away.
    fn ready(&self) -> Result<(), String> {
        if self.addresses().is_empty() {
            return Err("the proxy does not listen".into());
        }
        let parts = self.parts();
        match parts.iter().any(|part| part.topology().view().primary.is_some()) {
            true => Ok(()),
            false if parts.len() > 1 => Err("no primary is known of any cluster".into()),
            false => Err("no primary is known".into()),
        }
    }
}

/// Starts the topology of every cluster, in the order of the configuration.
///
/// # Errors
/// The configuration of a cluster is unusable; no topology is started.
pub(crate) fn watch(config: &Config, runtime: &tokio::runtime::Handle) -> Result<Vec<Arc<Topology>>, Failure> {
    let mut topologies: Vec<Arc<Topology>> = Vec::new();
    for of in config.of_each_cluster() {
        match watch_one(&of, runtime) {
            Ok(topology) => topologies.push(topology),
            Err(failure) => {
                topologies.iter().for_each(|topology| topology.shutdown());
                return Err(failure);
            }
        }
    }
    Ok(topologies)
}

fn watch_one(config: &Config, runtime: &tokio::runtime::Handle) -> Result<Arc<Topology>, Failure> {
    let name = &config.cluster.name;
    Topology::start(config.cluster.clone(), runtime)
        .map_err(|error| Failure::environment(format!("cannot start watching the cluster {name:?}: {error}")))
}

/// Returns the address of a topology's primary, if there is one.
pub(crate) fn primary_of(topology: &Topology) -> Option<String> {
    Some(address_of(&topology.view().primary_node()?.address))
}

/// Renders `host:port`, or a path.
pub(crate) fn address_of(address: &Address) -> String {
    match address {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => path.display().to_string(),
    }
}

/// Adds advice to the failure of a proxy that does not start.
fn failure_of(error: &StartError) -> Failure {
    let what = format!("cannot start the proxy: {error}");
    match error {
        StartError::Settings(_) => Failure::config(what),
        StartError::Listen { .. } => Failure::environment(what)
            .advise("choose another address: proxy.listen in the configuration, --listen for `up`"),
        StartError::TooManyWorkers { .. } => Failure::config(what),
        StartError::System { .. } => Failure::environment(what),
    }
}
