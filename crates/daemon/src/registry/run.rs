//! A running registry: its core, its fronts, and its metrics and health.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use registry::api::{
    AuditLog, Auth, BUCKETS_MICROS, Context, EurekaServer, EurekaServers, EurekaView, Front, HttpStats, Mount, Server,
    Tls,
};
use registry::{Registry, dns};
use tokio::net::TcpListener;
use tokio::sync::Mutex;

use super::eureka::Replication;
use crate::console::Known;
use config::registry::{AuthMethod, NACOS_GRPC, NACOS_LISTEN, RegistryConfig};
use metrics::{Exposition, Source, Type};
use process::Failure;

/// A running registry.
pub struct Running {
    /// The core.
    pub registry: Registry,
    stats: Arc<HttpStats>,
    addresses: Vec<SocketAddr>,
    dns: Option<(SocketAddr, dns::Server)>,
    /// Authentication of all fronts, replaced by a reload.
    door: Arc<ArcSwap<Auth>>,
    tls: Option<Arc<Tls>>,
    audit: AuditLog,
    /// Eureka's own servers; `None` where there are none.
    eureka: Option<Arc<EurekaServers>>,
    eureka_view: EurekaView,
    /// Requests to them; `None` after the shutdown.
    replication: Mutex<Option<Replication>>,
    /// The fronts' server; `None` after the shutdown.
    server: Mutex<Option<Server>>,
}

impl Running {
    /// Opens the store, loads it and serves.
    ///
    /// # Errors
    /// An address is taken, or the store cannot be opened.
    pub async fn start(config: &RegistryConfig) -> Result<Running, Failure> {
        let tls = match tls_of(config)? {
            Some(rules) => {
                let required = config.tls.mode == tls::ListenMode::Require;
                Some(Arc::new(Tls { required, config: ArcSwap::new(rules) }))
            }
            None => None,
        };
        let audit = match config.audit.file.as_str() {
            "" => AuditLog::default(),
            file => AuditLog::open(Path::new(file), config.audit.max_bytes)
                .map_err(|error| Failure::path("write registry.audit.file", Path::new(file), &error))?,
        };
        let mut mounts = Vec::new();
        let mut addresses = Vec::new();
        for (key, address) in config.addresses() {
            let (listener, bound) = listen(key, address).await?;
            addresses.push(bound);
            let fronts = match key {
                "consul_listen" => vec![Front::Consul],
                "eureka_listen" => vec![Front::Eureka],
                NACOS_LISTEN => vec![Front::Nacos],
                "xds_listen" => vec![Front::Xds],
                _ => Front::ALL.to_vec(),
            };
            mounts.push(Mount { listener, fronts: fronts.clone(), tls: tls.clone() });
            if key == NACOS_LISTEN {
                let above = SocketAddr::new(bound.ip(), bound.port().saturating_add(NACOS_GRPC));
                let (listener, bound) = listen(key, &above.to_string()).await?;
                addresses.push(bound);
                mounts.push(Mount { listener, fronts, tls: tls.clone() });
            }
        }
        let peers = match config.peer_listen.as_str() {
            "" => SocketAddr::new(addresses.first().map_or(Ipv4Addr::LOCALHOST.into(), SocketAddr::ip), 0),
            address => {
                let found = tokio::net::lookup_host(address).await.ok().and_then(|mut found| found.next());
                found.ok_or_else(|| Failure::environment(format!("registry.peer_listen: {address} has no address")))?
            }
        };
        let dns = match config.dns.listen.as_str() {
            "" => None,
            address => Some(dns_listener(address).await?),
        };
        prepare(&config.store.0)?;
        let store = registry::store::open(&config.store.0)
            .await
            .map_err(|error| Failure::environment(format!("cannot open registry.store: {error}")))?;
        let registry = Registry::open(config.settings(peers), store)
            .await
            .map_err(|error| Failure::environment(format!("cannot start the registry: {error}")))?;
        registry.keep_from_probes(addresses.iter().copied().chain(dns.as_ref().map(|(address, _)| *address)));
        let mut limits = config.http();
        limits.connections = affordable(limits.connections, process::raise_descriptor_limit());
        let replication = Replication::start(&config.eureka, &registry)?;
        let eureka = replication.as_ref().map(|replication| Arc::clone(&replication.servers));
        let context = Context::new(registry.clone(), config.auth(), limits, config.node.clone(), audit.clone())
            .known_as(config.hosts.clone())
            .replicating(eureka.clone());
        let door = context.door();
        let (public, eureka_view) = (context.public(), context.eureka_view());
        let stats = Arc::clone(&context.stats);
        let server = Server::start(mounts, context);
        let dns = dns.map(|(address, listener)| {
            (address, dns::Server::start(listener, config.dns.zone(), public, config.dns.limits()))
        });
        let (replication, server) = (Mutex::new(replication), Mutex::new(Some(server)));
        Ok(Running { registry, stats, addresses, dns, door, tls, audit, eureka, eureka_view, replication, server })
    }

    /// Takes over the settings that can change while it runs: tokens, `auth`, and the files of `[registry.tls]` and `[registry.peer_tls]`, for
    /// connections that begin later. `old` is the running configuration.
    ///
    /// # Errors
    /// Another setting has changed, a file cannot be used, or `auth = "none"` would open a socket to other machines: then nothing has changed.
    pub fn reload(&self, old: &RegistryConfig, config: &RegistryConfig) -> Result<(), Failure> {
        let fixed = fixed(old, config);
        if !fixed.is_empty() {
            return Err(Failure::config(format!("{} cannot be changed while the registry runs", fixed.join(", ")))
                .advise("start it again, or put the old value back"));
        }
        // The open sockets are decisive, not the file's addresses.
        let open = self.addresses.iter().find(|address| !address.ip().is_loopback());
        if let (AuthMethod::None, Some(open)) = (config.auth, open) {
            return Err(Failure::config(format!(
                "registry.auth: found \"none\", and the registry listens on {open}: anybody who reaches it could change everything"
            )));
        }
        // Steps that can fail come before those that change anything.
        let rules = tls_of(config)?;
        self.registry
            .renew_peer_tls(&config.peer_tls)
            .map_err(|error| Failure::config(format!("registry.peer_tls: {error}")))?;
        if let (Some(tls), Some(rules)) = (&self.tls, rules) {
            tls.config.store(rules);
        }
        self.door.store(Arc::new(config.auth()));
        Ok(())
    }

    /// Returns the registry for the console.
    pub fn known(&self) -> Known {
        let addresses = self.addresses.iter().map(ToString::to_string).collect();
        Known::new(self.registry.clone(), addresses, self.audit.clone(), self.eureka_view.clone())
    }

    /// Returns the addresses; the one with all fronts first.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the address of the DNS server.
    pub fn dns_address(&self) -> Option<SocketAddr> {
        self.dns.as_ref().map(|(address, _)| *address)
    }

    /// Answers running requests until `grace` is over, and stops.
    pub async fn shutdown(&self, grace: Duration) {
        if let Some(server) = self.server.lock().await.take() {
            server.shutdown(grace).await;
            drop(self.replication.lock().await.take());
            self.registry.shutdown().await;
        }
    }
}

/// Descriptors not used for clients' connections: for the store, the other nodes, probes, DNS, metrics, health and the console.
const KEPT_DESCRIPTORS: u64 = 512;

/// Returns how many of `wanted` connections the limit of descriptors allows. Below twice the kept descriptors, half of the limit.
fn affordable(wanted: usize, descriptors: u64) -> usize {
    let room = descriptors.saturating_sub(KEPT_DESCRIPTORS).max(descriptors / 2);
    let most = usize::try_from(room).unwrap_or(usize::MAX).min(wanted).max(1);
    if most < wanted {
        tracing::warn!(
            wanted,
            most,
            descriptors,
            "registry.connections: the limit of open files allows fewer; raise it (ulimit -n)"
        );
    }
    most
}

/// Returns the changed keys of `[registry]` that cannot change while the registry runs. Tokens and TLS files can; so can `auth`, which is checked
/// against the open sockets.
fn fixed(old: &RegistryConfig, new: &RegistryConfig) -> Vec<String> {
    let table = |config: &RegistryConfig| toml::Table::try_from(config).unwrap_or_default();
    let (old_table, new_table) = (table(old), table(new));
    let keys = old_table.keys().chain(new_table.keys().filter(|key| !old_table.contains_key(*key)));
    let differ = keys.filter(|key| !matches!(key.as_str(), "tokens" | "auth" | "tls" | "peer_tls"));
    let mut fixed: Vec<String> =
        differ.filter(|key| old_table.get(*key) != new_table.get(*key)).map(|key| format!("registry.{key}")).collect();
    if old.tls.mode != new.tls.mode {
        fixed.push("registry.tls.mode".into());
    }
    if old.peer_tls.mode != new.peer_tls.mode {
        fixed.push("registry.peer_tls.mode".into());
    }
    fixed
}

/// Makes the TLS configuration of `[registry.tls]`; `None` without TLS.
fn tls_of(config: &RegistryConfig) -> Result<Option<Arc<tls::rustls::ServerConfig>>, Failure> {
    let acceptor = tls::Acceptor::new(&config.tls)
        .map_err(|error| Failure::config(format!("registry.tls.{}: {error}", error.setting())))?;
    Ok(acceptor.map(|acceptor| acceptor.speaking(&[b"h2", b"http/1.1"])))
}

/// Binds the address that a key of `[registry]` gives; returns the socket and its address.
async fn listen(key: &str, address: &str) -> Result<(TcpListener, SocketAddr), Failure> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        Failure::environment(format!("cannot listen on {address} for the registry: {error}"))
            .advise(format!("choose another address: registry.{key}"))
    })?;
    let bound = listener
        .local_addr()
        .map_err(|error| Failure::runtime(format!("cannot read the address of {address}: {error}")))?;
    Ok((listener, bound))
}

async fn dns_listener(address: &str) -> Result<(SocketAddr, dns::Listener), Failure> {
    let failed = |error: std::io::Error| {
        Failure::environment(format!("cannot listen on {address} for DNS: {error}"))
            .advise("choose another address: registry.dns.listen; ports below 1024 need a capability")
    };
    let listener = dns::Listener::bind(address).await.map_err(failed)?;
    Ok((listener.address().map_err(failed)?, listener))
}

/// Makes the directory of a SQLite file.
fn prepare(store: &str) -> Result<(), Failure> {
    let Some(file) = store.strip_prefix("sqlite:") else { return Ok(()) };
    match Path::new(file).parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => std::fs::create_dir_all(parent).map_err(|error| Failure::path("create", parent, &error)),
        None => Ok(()),
    }
}

impl Source for Running {
    fn metrics(&self) -> Exposition {
        let mut exposition = Exposition::of_this_build();
        describe(&self.registry, &self.stats, &mut exposition);
        exposition.counter(
            "registry_audit_lost_total",
            "Changes that could not be written to the audit file.",
            self.audit.lost(),
        );
        if let Some((_, dns)) = &self.dns {
            describe_dns(&dns.stats(), &mut exposition);
        }
        if let Some(eureka) = &self.eureka {
            describe_eureka(&eureka.status(), &mut exposition);
        }
        exposition
    }

    fn alive(&self) -> Result<(), String> {
        Ok(())
    }

    fn ready(&self) -> Result<(), String> {
        let status = self.registry.status();
        match (status.ready, status.store_error, status.write_error) {
            (true, ..) => Ok(()),
            (false, Some(error), _) => Err(format!("the store: {error}")),
            (false, None, Some(error)) => Err(format!("the store takes no writes: {error}")),
            (false, None, None) => Err("stopping".into()),
        }
    }
}

/// Adds the metrics of replication with Eureka's own servers.
fn describe_eureka(servers: &[EurekaServer], exposition: &mut Exposition) {
    type Value = fn(&EurekaServer) -> u64;
    let metrics: [(Type, &str, &str, Value); 5] = [
        (Type::Gauge, "registry_eureka_server_reached", "1 while the Eureka server takes changes.", |it| {
            u64::from(it.reached)
        }),
        (
            Type::Gauge,
            "registry_eureka_server_waiting",
            "Instances whose changes the Eureka server has not been told.",
            |it| it.waiting as u64,
        ),
        (Type::Counter, "registry_eureka_sent_total", "Changes sent to the Eureka server.", |it| it.sent),
        (Type::Counter, "registry_eureka_refused_total", "Changes that the Eureka server refused.", |it| it.refused),
        (
            Type::Counter,
            "registry_eureka_lost_total",
            "Changes given up, because the Eureka server did not take them in time or they were too many.",
            |it| it.lost,
        ),
    ];
    for (kind, name, help, value) in metrics {
        let mut metric = exposition.metric(kind, name, help);
        for server in servers {
            metric.sample(&[("server", &server.name)], value(server));
        }
    }
}

/// Adds the DNS server's metrics.
fn describe_dns(stats: &dns::Stats, exposition: &mut Exposition) {
    let mut queries = exposition.metric(Type::Counter, "registry_dns_queries_total", "DNS questions, by outcome.");
    for (outcome, counter) in [
        ("found", &stats.found),
        ("empty", &stats.empty),
        ("refused", &stats.refused),
        ("dropped", &stats.dropped),
        ("limited", &stats.limited),
    ] {
        queries.sample(&[("outcome", outcome)], counter.load(Ordering::Relaxed));
    }
    exposition.counter(
        "registry_dns_truncated_total",
        "DNS answers that did not fit into a datagram.",
        stats.truncated.load(Ordering::Relaxed),
    );
}

/// Adds the registry's metrics.
fn describe(registry: &Registry, stats: &HttpStats, exposition: &mut Exposition) {
    let status = registry.status();
    exposition.gauge("registry_ready", "1 while the store answers and takes writes.", status.ready);
    exposition.gauge("registry_revision", "Revision of the whole.", status.revision.0);
    exposition.gauge("registry_instances", "Instances.", status.instances);
    exposition.gauge("registry_services", "Services, those included that are only waited for.", status.services);
    exposition.gauge("registry_watchers", "Calls that wait for a change.", status.watchers);
    exposition.gauge("registry_queued_writes", "Writes that wait for their batch.", status.queued_writes);
    exposition.gauge("registry_kv_keys", "Keys of the key-value store.", status.kv.keys);
    exposition.gauge("registry_kv_bytes", "Bytes of its keys and values.", status.kv.bytes);
    exposition.gauge("registry_kv_sessions", "Sessions, which may hold keys as locks.", status.kv.sessions);
    exposition.gauge("registry_kv_revision", "Revision of keys and sessions.", status.kv.revision.0);
    exposition.counter(
        "registry_config_wakes_total",
        "Wake-ups of clients that listen to configuration entries: one for each of them and each change of its entry.",
        registry.config_wakes(),
    );
    exposition.gauge("registry_peers", "Other nodes on the same store that live.", status.peers.len());
    let reached = status.peers.iter().filter(|peer| peer.reached).count();
    exposition.gauge("registry_peers_reached", "Those of them that this node has a connection to.", reached);
    exposition.gauge(
        "registry_protected",
        "Services, and the whole, whose last good state is kept because too much was lost at once.",
        status.protected.len(),
    );
    for (name, value) in status.counts.each() {
        let help = format!("Count of {} since the start.", name.replace('_', " "));
        exposition.counter(&format!("registry_{name}_total"), &help, value);
    }
    if let Some(figures) = registry.tikv_figures() {
        describe_tikv(figures, exposition);
    }
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    exposition.counter("registry_connections_accepted_total", "Connections accepted.", load(&stats.accepted));
    exposition.counter(
        "registry_connections_refused_total",
        "Connections closed because their address had too many.",
        load(&stats.turned_away),
    );
    exposition.counter("registry_too_often_total", "Requests refused by registry.rate.", load(&stats.too_often));
    exposition.counter(
        "registry_insecure_total",
        "Handshakes of TLS that failed, and connections without TLS where it is required.",
        load(&stats.insecure),
    );
    exposition.counter("registry_unauthorized_total", "Requests without a known token.", load(&stats.unauthorized));
    let xds = &stats.xds;
    exposition.gauge("registry_xds_streams", "Streams of xDS that are open.", load(&xds.streams));
    exposition.counter("registry_xds_responses_total", "Responses sent over xDS.", load(&xds.responses));
    exposition.counter("registry_xds_refused_total", "Responses that clients of xDS refused.", load(&xds.refused));
    exposition.counter(
        "registry_xds_left_out_total",
        "Instances that xDS left out of a service's endpoints, for their host is a name or they have no port; counted each time that the endpoints are encoded.",
        load(&xds.left_out),
    );
    let mut requests = exposition.metric(Type::Counter, "registry_requests_total", "Requests, by front and outcome.");
    for (front, counts) in Front::ALL.iter().zip(&stats.fronts) {
        for (outcome, counter) in
            [("answered", &counts.answered), ("refused", &counts.refused), ("failed", &counts.failed)]
        {
            requests.sample(&[("front", front.name()), ("outcome", outcome)], load(counter));
        }
    }
    let mut buckets = [0; BUCKETS_MICROS.len() + 1];
    let mut sum = 0;
    for front in &stats.fronts {
        for (total, bucket) in buckets.iter_mut().zip(&front.buckets) {
            *total += load(bucket);
        }
        sum += load(&front.sum_micros);
    }
    let pairs: Vec<(f64, u64)> =
        BUCKETS_MICROS.iter().zip(&buckets).map(|(bound, count)| (*bound as f64 / 1e6, *count)).collect();
    let above = buckets.last().copied().unwrap_or(0);
    let help = "Time to answer a request; those that wait for a change left out.";
    exposition.histogram("registry_request_seconds", help, &pairs, above, sum as f64 / 1e6);
}

/// Adds the metrics of the TiKV client. The wait for a batch of timestamps and PD's answer are apart, so that a slow service shows which of them is
/// slow.
fn describe_tikv(figures: &registry::store::TikvFigures, exposition: &mut Exposition) {
    for (name, value) in figures.counts().each() {
        let help = format!("TiKV: count of {} since the start.", name.replace('_', " "));
        exposition.counter(&format!("registry_tikv_{name}_total"), &help, value);
    }
    for (name, help, histogram) in [
        (
            "registry_tikv_timestamp_wait_seconds",
            "From the question for a timestamp to the sending of its batch.",
            &figures.timestamp_wait,
        ),
        (
            "registry_tikv_timestamp_round_trip_seconds",
            "From the sending of a batch of timestamps to PD's answer.",
            &figures.timestamp_round_trip,
        ),
    ] {
        let (counts, micros) = histogram.read();
        let bounds = registry::store::TIKV_BUCKETS_MICROS.iter().map(|bound| *bound as f64 / 1e6);
        let pairs: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let above = counts.last().copied().unwrap_or(0);
        exposition.histogram(name, help, &pairs, above, micros as f64 / 1e6);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_everything_else() {
        for (wanted, descriptors, most) in [
            (10_000, 1_048_576, 10_000),
            (10_000, 10_512, 10_000),
            (10_000, 10_000, 9488),
            (10_000, 1024, 512),
            (10_000, 256, 128),
            (10, 1024, 10),
            (10, 0, 1),
        ] {
            assert_eq!(affordable(wanted, descriptors), most, "{wanted} of {descriptors}");
        }
    }

    #[test]
    fn what_a_reload_cannot_change() {
        type Change = fn(&mut RegistryConfig);
        let cases: [(Change, &[&str]); 10] = [
            (|_| {}, &[]),
            (|c| c.auth = AuthMethod::None, &[]),
            (|c| c.tls.cert_file = Some("other.pem".into()), &[]),
            (|c| c.tls.mode = tls::ListenMode::Require, &["registry.tls.mode"]),
            (|c| c.peer_tls.ca_file = Some("other.pem".into()), &[]),
            (|c| c.peer_tls.mode = registry::PeerTlsMode::Require, &["registry.peer_tls.mode"]),
            (|c| c.listen = "127.0.0.1:1".into(), &["registry.listen"]),
            (|c| c.store.0 = "postgres://u:secret@h/d".into(), &["registry.store"]),
            (|c| c.health.probes = 7, &["registry.health"]),
            (|c| (c.batch, c.node) = (7, "n".into()), &["registry.batch", "registry.node"]),
        ];
        for (number, (change, expected)) in cases.into_iter().enumerate() {
            let old = RegistryConfig::default();
            let mut new = old.clone();
            change(&mut new);
            assert_eq!(fixed(&old, &new), expected, "case {number}");
        }
    }
}
