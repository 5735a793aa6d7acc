//! What a relay shows of itself.

use std::sync::atomic::Ordering;
use std::time::Duration;

use watermark::Lsn;

use crate::shared::Shared;

/// A relay at one moment.
#[derive(Debug, Clone)]
pub struct Status {
    /// Where WAL comes from.
    pub upstream: String,
    /// `streaming`, or what stands in the way.
    pub upstream_state: String,
    /// Whether somebody has to look: nothing is received any more, or the disk is full.
    pub alarm: bool,
    /// How long it has been so.
    pub upstream_since: Duration,
    /// The furthest end of the upstream's log that was heard of.
    pub upstream_end: Lsn,
    /// The log; None before the upstream was reached for the first time.
    pub log: Option<LogStatus>,
    /// All that stream.
    pub downstreams: Vec<DownstreamStatus>,
    /// Their slots.
    pub slots: Vec<SlotStatus>,
    /// Connections, also those that do not stream.
    pub connections: usize,
    /// Totals since the start; the name is a metric's.
    pub counters: Vec<(&'static str, &'static str, u64)>,
}

/// The log at one moment.
#[derive(Debug, Clone)]
pub struct LogStatus {
    /// Of the cluster.
    pub system_id: u64,
    /// The timeline being written.
    pub timeline: u32,
    /// The highest term that was promised to.
    pub term: u64,
    /// Whether nothing more is taken on that timeline.
    pub fenced: bool,
    /// Oldest position held.
    pub oldest: Lsn,
    /// Appended.
    pub written: Lsn,
    /// Durable.
    pub flushed: Lsn,
    /// Told to the upstream as durable.
    pub acknowledged: Lsn,
    /// Segments held.
    pub segments: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Whether a switch of timelines needs no room on the disk.
    pub reserve: bool,
    /// Why nothing is written any more.
    pub failure: Option<String>,
}

/// A downstream at one moment.
#[derive(Debug, Clone)]
pub struct DownstreamStatus {
    /// Unique while the process lives.
    pub id: u32,
    /// As it calls itself.
    pub application_name: String,
    /// Its address.
    pub peer: String,
    /// Its slot.
    pub slot: Option<String>,
    /// Sent to it.
    pub sent: Lsn,
    /// Written, flushed and applied by its own report; 0 before the first.
    pub written: Lsn,
    /// See `written`.
    pub flushed: Lsn,
    /// See `written`.
    pub applied: Lsn,
}

/// A slot at one moment.
#[derive(Debug, Clone)]
pub struct SlotStatus {
    /// Name.
    pub name: String,
    /// Oldest position that it needs.
    pub restart: Option<Lsn>,
    /// The oldest transaction whose rows its user needs, with its epoch, as `pg_current_xact_id` gives it; 0: none.
    pub xmin: u64,
    /// The same for rows of catalogs.
    pub catalog_xmin: u64,
    /// Whether a connection uses it.
    pub active: bool,
}

impl Status {
    pub(crate) fn of(shared: &Shared) -> Status {
        let upstream = shared.upstream();
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let metrics = &shared.metrics;
        let log = shared.log().map(|log| {
            let (tail, held, promise) = (log.tail(), log.held(), shared.promise.now());
            // Read upwards, so that what is shown keeps its order.
            let (acknowledged, flushed, written) = (tail.acknowledged.get(), tail.flushed.get(), tail.written.get());
            LogStatus {
                system_id: log.identity().system_id,
                timeline: tail.timeline.0,
                term: promise.term(),
                fenced: promise.standing(tail.timeline.0).is_some(),
                oldest: held.oldest,
                written,
                flushed,
                acknowledged,
                segments: held.segments as u64,
                bytes: held.bytes,
                reserve: log.has_reserve(),
                failure: log.failure().map(|failure| failure.to_string()),
            }
        });
        let downstreams = shared.downstreams().into_iter().map(|progress| DownstreamStatus {
            id: progress.id,
            application_name: progress.application_name.clone(),
            peer: progress.peer.clone(),
            slot: progress.slot.clone(),
            sent: Lsn(load(&progress.sent)),
            written: Lsn(load(&progress.written)),
            flushed: Lsn(load(&progress.flushed)),
            applied: Lsn(load(&progress.applied)),
        });
        let slots = shared.slots.slots().into_iter().map(|slot| SlotStatus {
            name: slot.name,
            restart: slot.restart,
            xmin: slot.feedback.ids().0,
            catalog_xmin: slot.feedback.ids().1,
            active: slot.active,
        });
        Status {
            upstream: shared.control.address(),
            upstream_state: upstream.state,
            alarm: upstream.alarm,
            upstream_since: upstream.since.elapsed(),
            upstream_end: Lsn(load(&metrics.upstream_end)),
            log,
            downstreams: downstreams.collect(),
            slots: slots.collect(),
            connections: shared.places.taken(),
            counters: vec![
                ("relay_received_bytes", "WAL from the upstream.", load(&metrics.received_bytes)),
                ("relay_sent_bytes", "WAL to downstreams.", load(&metrics.sent_bytes)),
                ("relay_acknowledgements", "Reports to the upstream.", load(&metrics.acknowledgements)),
                ("relay_upstream_disconnects", "Ends of the connection to the upstream.", load(&metrics.disconnects)),
                ("relay_accepted", "Downstream connections accepted.", load(&metrics.accepted)),
                ("relay_refused", "Downstream connections refused or without a login.", load(&metrics.refused)),
            ],
        }
    }
}
