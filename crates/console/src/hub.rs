//! Looks at the parts once a second, and when woken, and builds the board.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::sync::watch;

use crate::board::Board;
use crate::events::{self, Events, Seen, Severity};
use crate::history::{History, Sample, Series};
use crate::parts::{Parts, Served};
use crate::picture::{Cluster, PoolNumbers, Registry, Relay};
use crate::rates::{Growth, Proxy, Rates};

/// Interval between two looks.
const PACE: Duration = Duration::from_secs(1);
/// Minimum time between two looks, however often the hub is woken.
const LEAST: Duration = Duration::from_millis(100);
/// Time limit of asking for the proxy's pools.
const POOLS: Duration = Duration::from_secs(3);
/// Maximum number of instances whose changes are reported individually at each look.
const TOLD: usize = 5;

/// A handle that makes the console look at once.
#[derive(Debug, Clone)]
pub struct Wake(Arc<watch::Sender<()>>);

/// State shared by connections and the task that looks.
pub(crate) struct Hub {
    pub(crate) parts: Parts,
    pub(crate) boards: watch::Receiver<Arc<Board>>,
    /// Points older than those on the board.
    pub(crate) history: Arc<Mutex<History>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// State of the task itself.
struct Looker {
    parts: Parts,
    boards: watch::Sender<Arc<Board>>,
    history: Arc<Mutex<History>>,
    rates: Rates,
    events: Events,
    cluster: Option<Cluster>,
    relay: Option<Relay>,
    registry: Option<Registry>,
    pools: Vec<PoolNumbers>,
    /// Number of instances' transitions reported.
    told: u64,
    /// The primary's write position.
    written: Growth,
    /// Rows applied by the registry, and heartbeats.
    changes: Growth,
    heartbeats: Growth,
    sampled: Option<Instant>,
}

/// Constant data.
#[derive(Serialize)]
struct Hello {
    version: &'static str,
    parts: Vec<&'static str>,
    glossary: Vec<(&'static str, &'static str)>,
}

/// Status of a cluster, for viewers of another one.
#[derive(Serialize)]
struct ClusterSummary {
    name: String,
    primary: Option<String>,
}

impl ClusterSummary {
    fn of(served: &Served) -> ClusterSummary {
        ClusterSummary { name: served.name.clone(), primary: served.cluster.look().primary }
    }
}

impl Wake {
    pub(crate) fn new() -> Wake {
        Wake(Arc::new(watch::Sender::new(())))
    }

    /// Makes the console look at once. Callable from any thread; never blocks; several calls before the look count as one.
    pub fn wake(&self) {
        self.0.send_replace(());
    }
}

impl Hub {
    /// Starts to look, on the current tokio runtime, until the hub is dropped.
    pub(crate) fn start(parts: Parts, wake: &Wake) -> Hub {
        let (sender, boards) = watch::channel(Arc::new(Board::default()));
        let history = Arc::default();
        let looker = Looker {
            parts: parts.clone(),
            boards: sender,
            history: Arc::clone(&history),
            rates: Rates::default(),
            events: Events::default(),
            cluster: None,
            relay: None,
            registry: None,
            pools: Vec::new(),
            told: 0,
            written: Growth::default(),
            changes: Growth::default(),
            heartbeats: Growth::default(),
            sampled: None,
        };
        let task = tokio::spawn(looker.run(wake.0.subscribe()));
        Hub { parts, boards, history, task }
    }
}

impl Looker {
    async fn run(mut self, mut wake: watch::Receiver<()>) {
        let mut board = Board::default();
        board.put("hello", &self.hello());
        loop {
            let began = Instant::now();
            let pools = self.ask_for_pools().await;
            self.look(&mut board, pools);
            self.boards.send_replace(Arc::new(board.clone()));
            tokio::time::sleep(LEAST).await;
            tokio::select! {
                () = tokio::time::sleep(PACE.saturating_sub(began.elapsed())) => {}
                Ok(()) = wake.changed() => {}
            }
        }
    }

    fn hello(&self) -> Hello {
        let parts = [
            ("cluster", self.parts.cluster.is_some()),
            ("proxy", self.parts.proxy.is_some()),
            ("relay", self.parts.relay.is_some()),
            ("registry", self.parts.registry.is_some()),
        ];
        Hello {
            version: env!("CARGO_PKG_VERSION"),
            parts: parts.iter().filter(|(_, there)| *there).map(|(name, _)| *name).collect(),
            glossary: self.parts.proxy.as_ref().map(|proxy| proxy.glossary()).unwrap_or_default(),
        }
    }

    /// Asks the workers for the pools, but only while there is a viewer.
    async fn ask_for_pools(&self) -> Option<Vec<PoolNumbers>> {
        // The hub has one receiver, and each viewer one.
        if self.boards.receiver_count() <= 1 {
            return None;
        }
        let proxy = Arc::clone(self.parts.proxy.as_ref()?);
        let asked = tokio::task::spawn_blocking(move || proxy.pools());
        tokio::time::timeout(POOLS, asked).await.ok()?.ok()
    }

    fn look(&mut self, board: &mut Board, pools: Option<Vec<PoolNumbers>>) {
        let (now, wall) = (Instant::now(), wall());
        let mut seen = Vec::new();
        if let Some(part) = &self.parts.clusters {
            board.put("clusters", &part.now().iter().map(ClusterSummary::of).collect::<Vec<_>>());
        }
        if let Some(part) = &self.parts.cluster {
            let cluster = part.look();
            seen.extend(events::of_cluster(self.cluster.as_ref(), &cluster));
            board.put("cluster", &cluster);
            self.cluster = Some(cluster);
        }
        if let Some(part) = &self.parts.relay {
            let relay = part.look();
            seen.extend(events::of_relay(self.relay.as_ref(), &relay));
            board.put("relay", &relay);
            self.relay = Some(relay);
        }
        if let Some(part) = self.parts.registry.clone() {
            let registry = part.look();
            seen.extend(events::of_registry(self.registry.as_ref(), &registry));
            board.put("registry", &registry);
            self.registry = Some(registry);
            let (transitions, told) = part.transitions_since(self.told, TOLD);
            let untold = (told - self.told).saturating_sub(transitions.len() as u64);
            self.told = told;
            seen.extend(transitions.iter().map(events::of_transition));
            if untold > 0 {
                seen.push(Seen(Severity::Warning, "registry".into(), format!("{untold} more instances changed")));
            }
        }
        if let Some(pools) = pools {
            seen.extend(events::of_pools(&self.pools, &pools));
            self.pools.clone_from(&pools);
            board.put("pools", &self.rates.pools(pools, now));
        }
        // Rates over less than a second are noisy: a look in between reports changes, but takes no sample.
        if self.sampled.is_none_or(|at| now.saturating_duration_since(at) >= PACE * 9 / 10) {
            self.sampled = Some(now);
            let proxy = self.parts.proxy.as_ref().map(|part| part.numbers());
            let proxy = proxy.map(|numbers| self.rates.proxy(numbers, now));
            let sample = self.sample(proxy.as_ref(), now, wall);
            board.sample(&sample);
            self.history.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
            if let Some(proxy) = &proxy {
                board.put("proxy", proxy);
            }
        }
        for seen in seen {
            self.events.push(seen, wall);
        }
        board.events(self.events.last.iter());
        board.now = wall;
    }

    fn sample(&mut self, proxy: Option<&Proxy>, now: Instant, wall: u64) -> Sample {
        let mut sample = Sample::at(wall);
        let written = self.written_now();
        sample.put(Series::Wal, self.written.rate(written, now));
        if let Some(proxy) = proxy {
            let rate = |name| proxy.rates.get(name).copied().or(Some(0.0));
            let gauge = |name| Some(proxy.gauges.get(name).copied().unwrap_or(0) as f64);
            sample.put(Series::Reads, rate("statements_replica"));
            sample.put(Series::Writes, rate("statements_primary"));
            sample.put(Series::Local, rate("statements_local"));
            sample.put(Series::Transactions, rate("transactions"));
            sample.put(Series::Clients, gauge("clients"));
            sample.put(Series::Waiting, gauge("clients_waiting"));
            sample.put(Series::P50, proxy.statements.p50.map(|micros| micros as f64));
            sample.put(Series::P99, proxy.statements.p99.map(|micros| micros as f64));
        }
        if let Some(registry) = &self.registry {
            let count = |name| registry.counts.get(name).copied();
            sample.put(Series::Instances, Some(registry.instances as f64));
            sample.put(Series::Unwell, Some((registry.critical + registry.isolated) as f64));
            sample.put(Series::Watchers, Some(registry.watchers as f64));
            sample.put(Series::Changes, self.changes.rate(count("rows_applied"), now));
            sample.put(Series::Heartbeats, self.heartbeats.rate(count("heartbeats"), now));
        }
        sample
    }

    /// Returns the primary's write position, as far as it is known here.
    fn written_now(&self) -> Option<u64> {
        let cluster = self.cluster.as_ref();
        let primary = cluster.and_then(|cluster| {
            let name = cluster.primary.as_ref()?;
            cluster.nodes.iter().find(|node| node.name == *name)?.position.as_deref()
        });
        let relay = || self.relay.as_ref().and_then(|relay| relay.upstream_end.as_deref());
        position(primary.or_else(relay)?)
    }
}

/// Parses a position such as `16/B374D848`.
fn position(text: &str) -> Option<u64> {
    let (high, low) = text.split_once('/')?;
    let part = |text| u32::from_str_radix(text, 16).ok().map(u64::from);
    Some(part(high)? << 32 | part(low)?)
}

fn wall() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions() {
        for (text, number) in [
            ("0/0", Some(0)),
            ("1/A", Some((1 << 32) + 10)),
            ("FFFFFFFF/FFFFFFFF", Some(u64::MAX)),
            ("1", None),
            ("1/100000000", None),
            ("x/1", None),
        ] {
            assert_eq!(position(text), number, "{text}");
        }
    }
}
