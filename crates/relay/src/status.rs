//! Status of a relay.

use std::sync::atomic::Ordering;
use std::time::Duration;

use watermark::Lsn;

use crate::archiver::ArchiveStatus;
use crate::shared::Shared;

/// Status of a relay at one moment.
#[derive(Debug, Clone)]
pub struct Status {
    /// Address of the upstream.
    pub upstream: String,
    /// `streaming`, or the obstacle.
    pub upstream_state: String,
    /// True if an operator must act: nothing is received any more, or the disk is full.
    pub alarm: bool,
    /// Duration of the upstream's state.
    pub upstream_since: Duration,
    /// The furthest reported end of the upstream's log.
    pub upstream_end: Lsn,
    /// Status of the log; None before the upstream was reached for the first time.
    pub log: Option<LogStatus>,
    /// Status of the archive; None without one.
    pub archive: Option<ArchiveStatus>,
    /// The streaming downstreams.
    pub downstreams: Vec<DownstreamStatus>,
    /// Slots of downstreams.
    pub slots: Vec<SlotStatus>,
    /// Number of connections, including those that do not stream.
    pub connections: usize,
    /// Totals since the start, with the names of metrics.
    pub counters: Vec<(&'static str, &'static str, u64)>,
}

/// Status of the log at one moment.
#[derive(Debug, Clone)]
pub struct LogStatus {
    /// System identifier of the cluster.
    pub system_id: u64,
    /// The timeline being written.
    pub timeline: u32,
    /// The highest promised term.
    pub term: u64,
    /// True if nothing more is taken on that timeline.
    pub fenced: bool,
    /// Oldest position held.
    pub oldest: Lsn,
    /// End of the appended WAL.
    pub written: Lsn,
    /// End of the durable WAL.
    pub flushed: Lsn,
    /// End of the WAL acknowledged to the upstream as durable.
    pub acknowledged: Lsn,
    /// Number of held segments.
    pub segments: u64,
    /// Bytes of the segments.
    pub bytes: u64,
    /// True if a timeline switch needs no room on the disk.
    pub reserve: bool,
    /// Reason why nothing is written any more.
    pub failure: Option<String>,
}

/// Status of a downstream at one moment.
#[derive(Debug, Clone)]
pub struct DownstreamStatus {
    /// Unique in this process.
    pub id: u32,
    /// Application name of the downstream.
    pub application_name: String,
    /// Address of the downstream.
    pub peer: String,
    /// Name of its slot.
    pub slot: Option<String>,
    /// End of the WAL sent to it.
    pub sent: Lsn,
    /// Written, flushed and applied by its own report; 0 before the first.
    pub written: Lsn,
    /// See `written`.
    pub flushed: Lsn,
    /// See `written`.
    pub applied: Lsn,
}

/// Status of a slot at one moment.
#[derive(Debug, Clone)]
pub struct SlotStatus {
    /// Name.
    pub name: String,
    /// Oldest position that its user needs.
    pub restart: Option<Lsn>,
    /// The oldest transaction whose rows its user needs, as a full transaction ID (`pg_current_xact_id`); 0 for none.
    pub xmin: u64,
    /// The oldest transaction whose catalog rows its user needs.
    pub catalog_xmin: u64,
    /// True if a connection uses it.
    pub active: bool,
}

impl Status {
    pub(crate) fn of(shared: &Shared) -> Status {
        let upstream = shared.upstream();
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let metrics = &shared.metrics;
        let log = shared.log().map(|log| {
            let (tail, retained, promise) = (log.tail(), log.retained(), shared.promise.now());
            // In ascending order, so that the shown positions keep their order.
            let (acknowledged, flushed, written) = (tail.acknowledged.get(), tail.flushed.get(), tail.written.get());
            LogStatus {
                system_id: log.identity().system_id,
                timeline: tail.timeline.0,
                term: promise.term(),
                fenced: promise.standing(tail.timeline.0).is_some(),
                oldest: retained.oldest,
                written,
                flushed,
                acknowledged,
                segments: retained.segments as u64,
                bytes: retained.bytes,
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
        let flushed = log.as_ref().map_or(Lsn(0), |log| log.flushed);
        Status {
            archive: shared.archive.status(flushed, shared.settings().archive.alarm_after),
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
