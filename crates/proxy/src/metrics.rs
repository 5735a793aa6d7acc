//! Counters of the workers.
//!
//! Each worker has its own set and is its only writer, so an increment is a load and a store, not a locked add; readers
//! add the sets up.

use std::sync::atomic::{AtomicU64, Ordering};

use sql::Pins;

/// A number that one thread changes and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it. Only the owner may call this.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Takes from it. Only the owner may call this.
    pub fn sub(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(n), Ordering::Relaxed);
    }

    /// Replaces it. Only the owner may call this.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Returns the value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds of the histogram buckets, in microseconds; the last bucket has none.
pub const BUCKETS: [u64; 18] = [
    50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 102_400, 204_800, 409_600, 819_200, 1_638_400,
    6_553_600, 26_214_400,
];

/// Durations by size.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [Counter; BUCKETS.len() + 1],
    sum: Counter,
}

impl Histogram {
    /// Counts a duration of so many microseconds.
    pub fn observe(&self, micros: u64) {
        let bucket = BUCKETS.partition_point(|&bound| bound < micros);
        self.buckets[bucket].add(1);
        self.sum.add(micros);
    }
}

/// A histogram at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// Durations in each bucket of [`BUCKETS`], and above all of them; not cumulative.
    pub buckets: [u64; BUCKETS.len() + 1],
    /// Sum of all durations, in microseconds.
    pub sum_micros: u64,
}

macro_rules! metrics {
    (counters { $($(#[$cdoc:meta])* $counter:ident: $chelp:literal,)* }
     gauges { $($(#[$gdoc:meta])* $gauge:ident: $ghelp:literal,)* }
     histograms { $($histogram:ident: $hhelp:literal,)* }) => {
        /// One worker's numbers.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $(#[doc = $chelp] pub $counter: Counter,)*
            $(#[doc = $ghelp] pub $gauge: Counter,)*
            $(#[doc = $hhelp] pub $histogram: Histogram,)*
            /// Clients that became pinned, by reason: as [`Pins::NAMES`].
            pub pins: [Counter; Pins::NAMES.len()],
        }

        /// Sums of the numbers of all workers.
        #[derive(Debug, Clone, Default)]
        pub struct Snapshot {
            /// Counters that only grow: name, help, value.
            pub counters: Vec<(&'static str, &'static str, u64)>,
            /// Values of the moment: name, help, value.
            pub gauges: Vec<(&'static str, &'static str, u64)>,
            /// Durations: name, help, value.
            pub histograms: Vec<(&'static str, &'static str, HistogramSnapshot)>,
            /// Clients that became pinned: reason, count.
            pub pins: Vec<(&'static str, u64)>,
        }

        impl Snapshot {
            /// Adds the sets up.
            pub fn of<'a>(sets: impl Iterator<Item = &'a Metrics> + Clone) -> Snapshot {
                Snapshot {
                    counters: vec![$((stringify!($counter), $chelp, sets.clone().map(|m| m.$counter.get()).sum()),)*],
                    gauges: vec![$((stringify!($gauge), $ghelp, sets.clone().map(|m| m.$gauge.get()).sum()),)*],
                    histograms: vec![$((stringify!($histogram), $hhelp, sum(sets.clone().map(|m| &m.$histogram))),)*],
                    pins: Pins::NAMES
                        .iter()
                        .enumerate()
                        .map(|(i, (_, name))| (*name, sets.clone().map(|m| m.pins[i].get()).sum()))
                        .collect(),
                }
            }
        }
    };
}

metrics! {
    counters {
        clients_accepted: "Client connections accepted",
        clients_refused: "Client connections refused: over max_clients, or a failed login",
        clients_secured: "Client connections that completed a TLS handshake",
        tls_failures: "Connections, of clients and to servers, that ended by an error of TLS",
        statements_primary: "Statements (simple queries and extended-protocol batches) sent to the primary",
        statements_replica: "Statements sent to a replica",
        functions_cleaned: "Server connections cleared of what a function of which nothing is known may have left",
        functions_forgotten: "Server connections on which functions are analysed anew, because their literals had been read under another client's TimeZone, DateStyle or the like",
        settings_brought_over: "Server connections that began with the primary's session settings on a node whose own differ",
        settings_refused: "Server connections refused by a node because of the primary's session settings",
        replica_logins_refused: "Logins that a replica refused, and that the primary was asked for then",
        unnamed_shared: "Unnamed statements that the server connection had already: not parsed again",
        describes_local: "Describes of known statements answered by the proxy itself",
        parameters_tracked: "Changes of run-time parameters by clients (SET, RESET, set_config) that were kept for their later statements",
        statements_local: "Statements answered by the proxy itself",
        traffic_refused: "Statements refused by traffic rules",
        begins_put_off: "BEGIN statements that went to a server with the statement after them",
        transactions: "Times a server connection went back to its pool",
        bytes_from_clients: "Bytes read from clients",
        bytes_from_servers: "Bytes read from servers",
        server_connections_opened: "Server connections opened",
        server_connections_failed: "Server connections that could not be opened",
        server_connections_lost: "Server connections lost while in use",
        server_connections_moved: "Idle server connections taken over from another worker",
        server_connections_evicted: "Idle server connections closed because another pool waited under a limit that both share",
        clients_handed_over: "Connections handed over to the cluster that they asked for",
        clients_moved: "Clients taken over from the worker that had accepted them, to be with others of their pool",
        replays_refused: "Reads that a replica refused and the primary answered",
        replays_lost: "Reads whose server was lost and another answered",
        outcome_unknown: "Statements whose outcome is unknown because their server was lost",
        transactions_lost: "Transactions rolled back because their server was lost",
        early_reads: "Reads of a transaction before its first write that ran on a replica",
        consistency_primary: "Reads sent to the primary because no replica had replayed the session's own writes yet",
        replay_checks: "Reads sent to a replica behind a question for its replayed position",
        replay_checks_behind: "Reads whose replica answered that question with an earlier position than theirs, or with an error",
        strong_reads: "Strong reads that asked where the primary was",
        strong_primary: "Strong reads sent to the primary because no replica had got there within strong_wait",
        strong_unproven: "Statements of strong sessions refused, or connections closed, because too few relays said that the primary's term still stands",
        gated: "Answers held back until what they tell of was durable on enough relays",
        gate_degraded_commits: "Commits acknowledged though too few relays have them (on_degraded = local)",
        gate_refused: "Units refused because too few relays confirm commits (on_degraded = wait)",
        gate_unknown: "Commits whose outcome is unknown: not confirmed in time, or the primary was replaced",
        wait_timeouts: "Statements refused because no server connection came free in time",
        cancels: "Cancel requests passed on",
        cancels_passed_on: "Cancel requests passed on to the proxy that their key is of",
        cancels_unknown: "Cancel requests with a wrong key",
        protocol_errors: "Connections closed for a violation of the protocol",
        prepares: "Prepared statements sent to a server because its connection did not have them",
        parses_local: "Parse messages answered by the proxy itself",
        parses_asked: "Parse messages of a known text for which a server was asked whether its parameters still have the same types",
        lane_statements: "Statements sent on a server connection shared with other clients",
        lane_batches: "Batches in which they were sent: statements divided by batches is the size of a batch",
        lane_unknown: "Reads that had a server connection to themselves because their cost was not known yet",
        lane_slow: "Reads that had a server connection to themselves because their shape is slow or has held others up",
        lane_large: "Reads that had a server connection to themselves because of the size of their answers",
        lane_stalls: "Shared server connections given up to a statement that ran for too long",
        lane_moved: "Statements taken out of a shared server connection because of the one before them",
        lane_redone: "Statements sent again by themselves because a shared server connection could not answer them",
        listens_shared: "LISTENs after which their clients listen by a shared server connection",
        listens_refused: "LISTENs whose clients kept their server connection because the shared one could not be had, or a limit was reached",
        notifications: "Notifications that shared server connections got",
        notifications_told: "Notifications that clients got from shared server connections",
        listeners_closed: "Clients closed because notifications for them were lost, or were more than they read",
        clients_timed_out: "Clients closed because they were in one state for too long",
        user_lookups: "Users looked up on a server",
        spans: "Statements that were traced",
        spans_dropped: "Traced statements of which nothing was told: more than could be sent on",
        statements_slow: "Statements that took as long as slow_statement and were logged",
        classify_hits: "Statements whose class was known",
        classify_misses: "Statements that had to be parsed",
    }
    gauges {
        clients: "Client connections",
        clients_waiting: "Clients waiting for a server connection",
        clients_pinned: "Clients that keep their server connection because of state in its session",
        clients_listening: "Clients that listen by a shared server connection",
        listeners: "Shared server connections that listen",
        gate_held: "Clients whose answer is held back until it is durable",
        gate_degraded: "Workers that find too few relays to confirm commits",
        servers: "Server connections, those being opened included",
        servers_busy: "Server connections in use",
        lanes: "Server connections shared by several clients' statements at the moment",
        turns: "Turns of the event loop",
    }
    histograms {
        statement_micros: "Time from the dispatch of a statement to the end of its answer",
        wait_micros: "Time a client waited for a server connection",
        gate_micros: "Time an answer was held back",
        strong_wait_micros: "Time a strong read waited to know what it must see, and for a replica that has it",
    }
}

fn sum<'a>(histograms: impl Iterator<Item = &'a Histogram>) -> HistogramSnapshot {
    let mut total = HistogramSnapshot::default();
    for histogram in histograms {
        for (sum, bucket) in total.buckets.iter_mut().zip(&histogram.buckets) {
            *sum += bucket.get();
        }
        total.sum_micros += histogram.sum.get();
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_adds_workers_up() {
        let (a, b) = (Metrics::default(), Metrics::default());
        a.clients.add(2);
        b.clients.add(3);
        b.clients.sub(1);
        a.statement_micros.observe(50);
        b.statement_micros.observe(51);
        b.statement_micros.observe(u64::MAX / 4);
        let snapshot = Snapshot::of([&a, &b].into_iter());
        assert_eq!(snapshot.gauges.iter().find(|g| g.0 == "clients").map(|g| g.2), Some(4));
        let (_, _, histogram) = &snapshot.histograms[0];
        assert_eq!((histogram.buckets[0], histogram.buckets[1], histogram.buckets[BUCKETS.len()]), (1, 1, 1));
    }
}
