//! What a relay of MariaDB shows of itself.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::shared::Shared;

/// A relay at one moment.
#[derive(Debug, Clone)]
pub struct BinlogStatus {
    /// Where events come from.
    pub upstream: String,
    /// `streaming`, or what stands in the way.
    pub upstream_state: String,
    /// Whether somebody has to look: nothing is received any more, or commits do not wait for this relay.
    pub alarm: bool,
    /// How long it has been so.
    pub upstream_since: Duration,
    /// Why a commit on the source does not mean that it is durable here.
    pub concerns: Vec<String>,
    /// The directory that is written; 0: none yet.
    pub epoch: u64,
    /// `server_id` of whoever wrote it.
    pub source: u32,
    /// The highest term that was promised to.
    pub term: u64,
    /// Whether nothing more is taken of that source.
    pub fenced: bool,
    /// What is durable: the last transaction of each domain and server.
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
    /// Why nothing is written any more.
    pub failure: Option<String>,
    /// All that are fed.
    pub downstreams: Vec<BinlogDownstream>,
    /// Connections, also those that are not fed.
    pub connections: usize,
    /// Totals since the start; the name is a metric's.
    pub counters: Vec<(&'static str, &'static str, u64)>,
}

/// A replica that is fed.
#[derive(Debug, Clone)]
pub struct BinlogDownstream {
    /// Unique while the process lives.
    pub id: u32,
    /// Its `server_id`.
    pub server_id: u32,
    /// Its address.
    pub peer: String,
    /// As whom it has logged in.
    pub user: String,
    /// Bytes that are durable here and were not sent to it.
    pub unsent: u64,
}

impl BinlogStatus {
    pub(super) fn of(shared: &Shared) -> BinlogStatus {
        let (upstream, concerns, log) = (shared.upstream(), shared.concerns(), &shared.log);
        let (durable, promise, held) = (log.durable(), shared.promise.now(), log.held());
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (counts, metrics) = (&shared.counts, &log.metrics);
        // Read upwards, so that what is shown keeps its order.
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
            source: held.last().map_or(0, |held| held.source),
            term: promise.term(),
            fenced: epoch > 0 && u64::from(promise.fenced_up_to()) >= epoch,
            gtids: durable.state.to_string(),
            durable: durable.file.map(|(held, offset)| (held.name.to_string(), offset)),
            written,
            flushed,
            whole,
            files: held.len(),
            oldest: held.first().map(|held| held.name.to_string()),
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
