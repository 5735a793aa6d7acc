//! What the relay holds and whom it feeds.

use std::sync::Arc;

use ::console::RelayPart;
use ::console::picture::{Downstream, Relay, RelayLog, Slot};
use ::relay::Status;
use watermark::Lsn;

/// A relay that runs.
pub(crate) struct Shown {
    /// Asks it.
    pub(crate) status: Arc<dyn Fn() -> Status + Send + Sync>,
    pub(crate) addresses: Vec<String>,
}

impl RelayPart for Shown {
    fn look(&self) -> Relay {
        let status = (self.status)();
        let flushed = status.log.as_ref().map_or(Lsn(0), |log| log.flushed);
        let behind = |end: Lsn, at: Lsn| end.0.saturating_sub(at.0);
        Relay {
            addresses: self.addresses.clone(),
            upstream: status.upstream,
            state: status.upstream_state,
            alarm: status.alarm,
            upstream_end: (status.upstream_end > Lsn(0)).then(|| status.upstream_end.to_string()),
            log: status.log.map(|log| RelayLog {
                timeline: log.timeline,
                oldest: log.oldest.to_string(),
                written: log.written.to_string(),
                flushed: log.flushed.to_string(),
                acknowledged: log.acknowledged.to_string(),
                lag_bytes: behind(status.upstream_end, log.flushed),
                bytes: log.bytes,
                failure: log.failure,
            }),
            downstreams: status
                .downstreams
                .into_iter()
                .map(|downstream| Downstream {
                    name: downstream.application_name,
                    peer: downstream.peer,
                    slot: downstream.slot,
                    sent: downstream.sent.to_string(),
                    flushed: downstream.flushed.to_string(),
                    applied: downstream.applied.to_string(),
                    lag_bytes: behind(flushed, downstream.flushed),
                })
                .collect(),
            slots: status
                .slots
                .into_iter()
                .map(|slot| Slot {
                    name: slot.name,
                    restart: slot.restart.map(|restart| restart.to_string()),
                    active: slot.active,
                })
                .collect(),
        }
    }
}
