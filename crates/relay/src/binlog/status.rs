//! Status of a relay of a binary log.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::shared::Shared;

/// A relay at one moment.
#[derive(Debug, Clone)]
pub struct BinlogStatus {
    /// Address of the upstream.
    pub upstream: String,
    /// `streaming`, or the reason why it does not stream.
    pub upstream_state: String,
    /// True if an operator must act: nothing is received any more, or commits do not wait for this relay.
    pub alarm: bool,
    /// Time since the state or the alarm last changed.
    pub upstream_since: Duration,
    /// Reasons why a commit on the source may not be durable here.
    pub concerns: Vec<String>,
    /// The epoch being written; 0: none yet.
    pub epoch: u64,
    /// `server_id` of the server that wrote the epoch.
    pub source: u32,
    /// The highest promised term.
    pub term: u64,
    /// True if the relay takes nothing more from that source.
    pub fenced: bool,
    /// The last durable transaction of each domain and server.
    pub gtids: String,
    /// The file, and the offset up to which whole transactions are durable.
    pub durable: Option<(String, u64)>,
    /// Positions: appended, durable, durable in whole transactions.
    pub written: u64,
    /// See `written`.
    pub flushed: u64,
    /// See `written`.
    pub whole: u64,
    /// Files held.
    pub files: usize,
    /// Name of the oldest of them.
    pub oldest: Option<String>,
    /// Bytes of them.
    pub bytes: u64,
    /// The reason why the log has stopped.
    pub failure: Option<String>,
    /// Replicas being fed.
    pub downstreams: Vec<BinlogDownstream>,
    /// Number of connections, including those that are not fed.
    pub connections: usize,
    /// Totals since the start, with the name of the metric.
    pub counters: Vec<(&'static str, &'static str, u64)>,
}

/// A replica being fed.
#[derive(Debug, Clone)]
pub struct BinlogDownstream {
    /// Unique while the process lives.
    pub id: u32,
    /// `server_id` of the replica.
    pub server_id: u32,
    /// Address of the replica.
    pub peer: String,
    /// User of the login.
    pub user: String,
    /// Durable bytes not yet sent to it.
    pub unsent: u64,
}

impl BinlogStatus {
    pub(super) fn of(shared: &Shared) -> BinlogStatus {
        let (upstream, concerns, log) = (shared.upstream(), shared.concerns(), &shared.log);
        let (durable, promise, log_files) = (log.durable(), shared.promise.now(), log.log_files());
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (counts, metrics) = (&shared.counts, &log.metrics);
        // Read upwards, so that the order whole ≤ flushed ≤ written holds.
        let (whole, flushed, written) = (log.whole.get().0, log.flushed.get().0, log.written.get().0);
        let downstreams = shared.fed().into_iter().map(|fed| BinlogDownstream {
            id: fed.id,
            server_id: fed.server_id,
            peer: fed.peer.clone(),
            user: fed.user.clone(),
            unsent: whole.saturating_sub(load(&fed.sent)),
        });
        let epoch = log.epoch();
        BinlogStatus {
            upstream: shared.control.address(),
            alarm: upstream.alarm || !concerns.is_empty(),
            upstream_state: upstream.state,
            upstream_since: upstream.since.elapsed(),
            concerns,
            epoch,
            source: log_files.last().map_or(0, |log_file| log_file.source),
            term: promise.term(),
            fenced: epoch > 0 && u64::from(promise.fenced_up_to()) >= epoch,
            gtids: durable.state.to_string(),
            durable: durable.file.map(|(log_file, offset)| (log_file.name.to_string(), offset)),
            written,
            flushed,
            whole,
            files: log_files.len(),
            oldest: log_files.first().map(|log_file| log_file.name.to_string()),
            bytes: log.bytes(),
            failure: log.failure().map(ToString::to_string),
            downstreams: downstreams.collect(),
            connections: shared.places.taken(),
            counters: vec![
                ("relay_received_bytes", "Bytes from the source.", load(&counts.received_bytes)),
                ("relay_sent_bytes", "Bytes to replicas.", load(&counts.sent_bytes)),
                ("relay_acknowledgements", "Acknowledgements sent to the source.", load(&counts.acknowledgements)),
                ("relay_upstream_disconnects", "Ends of the connection to the source.", load(&counts.disconnects)),
                ("relay_accepted", "Connections of replicas accepted.", load(&counts.accepted)),
                ("relay_refused", "Connections of replicas refused or without a login.", load(&counts.refused)),
                ("relay_appended_bytes", "Bytes of the binary log that were new.", load(&metrics.appended_bytes)),
                ("relay_appends", "Writes to the log's files: each has many transactions.", load(&metrics.appends)),
                (
                    "relay_compared_bytes",
                    "Bytes of the binary log that were held already.",
                    load(&metrics.compared_bytes),
                ),
                ("relay_throttled", "Times that receiving had to wait for the disk.", load(&metrics.throttled)),
                ("relay_files_removed", "Old files removed.", load(&metrics.files_removed)),
            ],
        }
    }
}
