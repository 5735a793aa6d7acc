//! Rates and recent latencies, computed from totals. Pure: the caller passes the time.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::picture::{PoolNumbers, ProxyNumbers};

/// Period that latencies cover.
const RECENT: Duration = Duration::from_secs(60);
/// Interval between two histograms kept.
const STEP: Duration = Duration::from_secs(5);

/// By database and user: statements, transactions, time of statements and time of waits in microseconds.
type PoolTotals = BTreeMap<(String, String), [u64; 4]>;

/// Totals of the last look.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    last: Option<(Instant, BTreeMap<&'static str, u64>)>,
    pools: Option<(Instant, PoolTotals)>,
    histograms: VecDeque<(Instant, Vec<u64>, Vec<u64>)>,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Growth(Option<(Instant, u64)>);

/// The page's data of a proxy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Proxy {
    pub(crate) addresses: Vec<String>,
    pub(crate) gauges: BTreeMap<&'static str, u64>,
    pub(crate) totals: BTreeMap<&'static str, u64>,
    /// Rates per second, since the last look; empty at the first one.
    pub(crate) rates: BTreeMap<&'static str, f64>,
    pub(crate) pins: Vec<Pin>,
    /// Latencies of statements in the last minute.
    pub(crate) statements: Latency,
    /// Latencies of waits in the last minute.
    pub(crate) waits: Latency,
    pub(crate) bounds: &'static [u64],
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Pin {
    pub(crate) reason: &'static str,
    pub(crate) total: u64,
}

/// Distribution of durations.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Latency {
    pub(crate) count: u64,
    /// Upper bounds in microseconds; None in the last bucket, which has no bound.
    pub(crate) p50: Option<u64>,
    pub(crate) p95: Option<u64>,
    pub(crate) p99: Option<u64>,
    /// Counts by bucket.
    pub(crate) buckets: Vec<u64>,
}

/// The page's data of a pool.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Pool {
    pub(crate) database: String,
    pub(crate) user: String,
    pub(crate) mode: &'static str,
    pub(crate) paused: bool,
    pub(crate) clients: usize,
    pub(crate) waiting: usize,
    pub(crate) oldest_wait_ms: u64,
    pub(crate) busy: usize,
    pub(crate) idle: usize,
    pub(crate) connecting: usize,
    /// Rates per second since the last look.
    pub(crate) queries: Option<f64>,
    pub(crate) transactions: Option<f64>,
    /// Microseconds for each statement, since the last look.
    pub(crate) query_micros: Option<f64>,
    /// Microseconds of waiting for each transaction.
    pub(crate) wait_micros: Option<f64>,
}

impl Growth {
    /// Returns the rate per second since the last call; None at the first call, and while the number is unknown.
    pub(crate) fn rate(&mut self, total: Option<u64>, now: Instant) -> Option<f64> {
        let before = std::mem::replace(&mut self.0, total.map(|total| (now, total)));
        let ((at, before), after) = (before?, total?);
        let seconds = now.saturating_duration_since(at).as_secs_f64();
        (seconds > 0.0).then(|| after.saturating_sub(before) as f64 / seconds)
    }
}

impl Rates {
    /// Returns the page's data of a proxy.
    pub(crate) fn proxy(&mut self, numbers: ProxyNumbers, now: Instant) -> Proxy {
        let totals: BTreeMap<&'static str, u64> = numbers.counters.iter().copied().collect();
        let mut rates = BTreeMap::new();
        if let Some((at, before)) = &self.last {
            let seconds = now.saturating_duration_since(*at).as_secs_f64();
            if seconds > 0.0 {
                for (name, total) in &totals {
                    let grown = total.saturating_sub(before.get(name).copied().unwrap_or(*total));
                    rates.insert(*name, grown as f64 / seconds);
                }
            }
        }
        self.last = Some((now, totals.clone()));
        let (statements, waits) = self.recent(&numbers, now);
        Proxy {
            addresses: numbers.addresses,
            gauges: numbers.gauges.iter().copied().collect(),
            totals,
            rates,
            pins: numbers.pins.iter().map(|(reason, total)| Pin { reason, total: *total }).collect(),
            statements: Latency::of(statements, numbers.bounds),
            waits: Latency::of(waits, numbers.bounds),
            bounds: numbers.bounds,
        }
    }

    /// Returns the growth of the histograms in the last minute.
    fn recent(&mut self, numbers: &ProxyNumbers, now: Instant) -> (Vec<u64>, Vec<u64>) {
        let age = |at: Instant| now.saturating_duration_since(at);
        // The oldest histogram kept is the latest one that is a minute old.
        while self.histograms.len() > 1 && self.histograms.get(1).is_some_and(|(at, ..)| age(*at) >= RECENT) {
            self.histograms.pop_front();
        }
        let grown = |now: &[u64], before: Option<&Vec<u64>>| {
            let before = before.map(Vec::as_slice).unwrap_or_default();
            now.iter().enumerate().map(|(i, n)| n.saturating_sub(before.get(i).copied().unwrap_or(0))).collect()
        };
        let oldest = self.histograms.front();
        let recent = (
            grown(&numbers.statements, oldest.map(|(_, statements, _)| statements)),
            grown(&numbers.waits, oldest.map(|(_, _, waits)| waits)),
        );
        if self.histograms.back().is_none_or(|(at, ..)| age(*at) >= STEP) {
            self.histograms.push_back((now, numbers.statements.clone(), numbers.waits.clone()));
        }
        recent
    }

    /// Returns the page's data of the pools.
    pub(crate) fn pools(&mut self, pools: Vec<PoolNumbers>, now: Instant) -> Vec<Pool> {
        let before = self.pools.take();
        let mut totals = PoolTotals::new();
        let seconds = before.as_ref().map_or(0.0, |(at, _)| now.saturating_duration_since(*at).as_secs_f64());
        let shown = pools.into_iter().map(|pool| {
            let key = (pool.database.clone(), pool.user.clone());
            let now = [pool.queries, pool.transactions, pool.query_micros, pool.wait_micros];
            let grown = before
                .as_ref()
                .and_then(|(_, before)| before.get(&key))
                .filter(|_| seconds > 0.0)
                .map(|before| [0, 1, 2, 3].map(|i: usize| now[i].saturating_sub(before[i]) as f64));
            totals.insert(key, now);
            let each = |sum: usize, count: usize| {
                grown.and_then(|grown| (grown[count] > 0.0).then(|| grown[sum] / grown[count]))
            };
            Pool {
                queries: grown.map(|grown| grown[0] / seconds),
                transactions: grown.map(|grown| grown[1] / seconds),
                query_micros: each(2, 0),
                wait_micros: each(3, 1),
                database: pool.database,
                user: pool.user,
                mode: pool.mode,
                paused: pool.paused,
                clients: pool.clients,
                waiting: pool.waiting,
                oldest_wait_ms: pool.oldest_wait_ms,
                busy: pool.busy,
                idle: pool.idle,
                connecting: pool.connecting,
            }
        });
        let shown = shown.collect();
        self.pools = Some((now, totals));
        shown
    }
}

impl Latency {
    fn of(buckets: Vec<u64>, bounds: &[u64]) -> Latency {
        let count: u64 = buckets.iter().sum();
        let at = |share: f64| {
            // Rank of the requested value, from 1.
            let rank = ((count as f64 * share).ceil() as u64).max(1);
            let mut sum = 0;
            let bucket = buckets.iter().position(|n| {
                sum += n;
                sum >= rank
            });
            bucket.and_then(|bucket| bounds.get(bucket)).copied()
        };
        Latency { count, p50: at(0.5), p95: at(0.95), p99: at(0.99), buckets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: &[u64] = &[100, 200];

    fn numbers(statements: u64, buckets: [u64; 3]) -> ProxyNumbers {
        ProxyNumbers {
            counters: vec![("statements", statements)],
            statements: buckets.to_vec(),
            waits: vec![0; 3],
            bounds: BOUNDS,
            ..ProxyNumbers::default()
        }
    }

    #[test]
    fn rates_and_the_last_minute() {
        let (start, mut rates) = (Instant::now(), Rates::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        let first = rates.proxy(numbers(100, [50, 0, 0]), at(0));
        assert!(first.rates.is_empty());
        assert_eq!(first.statements.count, 50, "before the first look there was nothing else");
        let second = rates.proxy(numbers(150, [90, 9, 1]), at(2));
        assert_eq!(second.rates.get("statements"), Some(&25.0));
        let latency = second.statements;
        assert_eq!((latency.count, latency.p50, latency.p95, latency.p99), (50, Some(100), Some(200), None));
        // Older values have left the period a minute later.
        for seconds in (5..=70).step_by(5) {
            rates.proxy(numbers(150, [90, 9, 1]), at(seconds));
        }
        assert_eq!(rates.proxy(numbers(150, [90, 9, 1]), at(71)).statements.count, 0);
        assert!(rates.histograms.len() <= 14);
        // A restarted process counts from zero again.
        assert_eq!(rates.proxy(numbers(1, [1, 0, 0]), at(72)).rates.get("statements"), Some(&0.0));
    }

    #[test]
    fn growth() {
        let (start, mut growth) = (Instant::now(), Growth::default());
        for (seconds, total, expected) in [
            (0, Some(10), None),
            (2, Some(30), Some(10.0)),
            (3, Some(30), Some(0.0)),
            (3, Some(35), None),
            (4, None, None),
            (5, Some(50), None),
            (6, Some(40), Some(0.0)),
        ] {
            assert_eq!(growth.rate(total, start + Duration::from_secs(seconds)), expected, "{seconds} {total:?}");
        }
    }

    #[test]
    fn pools_by_the_second() {
        let (start, mut rates) = (Instant::now(), Rates::default());
        let pool = |queries, transactions, query_micros| PoolNumbers {
            database: "app".into(),
            queries,
            transactions,
            query_micros,
            ..PoolNumbers::default()
        };
        assert_eq!(rates.pools(vec![pool(5, 1, 0)], start)[0].queries, None);
        let shown = rates.pools(vec![pool(25, 11, 4000)], start + Duration::from_secs(2));
        assert_eq!((shown[0].queries, shown[0].transactions), (Some(10.0), Some(5.0)));
        assert_eq!((shown[0].query_micros, shown[0].wait_micros), (Some(200.0), Some(0.0)));
        let shown = rates.pools(vec![pool(25, 11, 4000)], start + Duration::from_secs(3));
        assert_eq!((shown[0].query_micros, shown[0].queries), (None, Some(0.0)), "of no statement there is no mean");
    }
}
