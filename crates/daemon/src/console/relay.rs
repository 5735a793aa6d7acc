//! The relay in the web console: its log and its downstreams.

use std::sync::Arc;

use ::backup::BackupStatus;
use ::console::RelayPart;
use ::console::picture::{Downstream, Engine, Relay, RelayArchive, RelayLog, Slot};
use ::relay::{BinlogRelay, Status};
use watermark::Lsn;

/// A running relay.
pub(crate) struct Shown {
    /// Returns the relay's status.
    pub status: Arc<dyn Fn() -> Status + Send + Sync>,
    /// Returns the status of the backups in its archive; None where nobody keeps them.
    pub backups: Option<Arc<dyn Fn() -> Option<BackupStatus> + Send + Sync>>,
    pub addresses: Vec<String>,
}

impl RelayPart for Shown {
    fn look(&self) -> Relay {
        let status = (self.status)();
        let backups = self.backups.as_ref().and_then(|backups| backups()).unwrap_or_default();
        let flushed = status.log.as_ref().map_or(Lsn(0), |log| log.flushed);
        let behind = |end: Lsn, at: Lsn| end.0.saturating_sub(at.0);
        Relay {
            engine: Engine::Postgresql,
            addresses: self.addresses.clone(),
            upstream: status.upstream,
            state: status.upstream_state,
            alarm: status.alarm,
            concerns: Vec::new(),
            archive: status.archive.map(|archive| RelayArchive {
                url: archive.url,
                state: archive.state,
                alarm: archive.alarm,
                confirmed: archive.confirmed.to_string(),
                behind_bytes: archive.behind_bytes,
                behind_ms: u64::try_from(archive.behind.as_millis()).unwrap_or(u64::MAX),
                window: backups.window.map(|window| window.to_string()),
                backup_failure: backups.failure.filter(|_| backups.alarm),
            }),
            upstream_end: (status.upstream_end > Lsn(0)).then(|| status.upstream_end.to_string()),
            log: status.log.map(|log| RelayLog {
                timeline: log.timeline,
                oldest: log.oldest.to_string(),
                written: log.written.to_string(),
                flushed: log.flushed.to_string(),
                acknowledged: log.acknowledged.to_string(),
                gtids: String::new(),
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

/// A running relay of a binary log.
pub struct ShownBinlog {
    /// The relay.
    pub relay: Arc<BinlogRelay>,
    /// Kind of the servers.
    pub engine: Engine,
    /// Returns the name of the server with this `server_id`.
    pub name: Box<dyn Fn(u32) -> String + Send + Sync>,
}

impl RelayPart for ShownBinlog {
    fn look(&self) -> Relay {
        let status = self.relay.status();
        let durable = status.durable.as_ref().map(|(file, offset)| format!("{file}:{offset}")).unwrap_or_default();
        // Bytes that are not durable yet belong to no file's reliable end: they are only counted.
        let unflushed = status.written.saturating_sub(status.whole);
        Relay {
            engine: self.engine,
            addresses: self.relay.addresses().iter().map(ToString::to_string).collect(),
            upstream: status.upstream,
            state: status.upstream_state,
            alarm: status.alarm,
            concerns: status.concerns,
            archive: None,
            upstream_end: None,
            log: (status.epoch > 0).then(|| RelayLog {
                timeline: u32::try_from(status.epoch).unwrap_or(u32::MAX),
                oldest: status.oldest.unwrap_or_default(),
                written: format!("{durable} and {unflushed} bytes"),
                flushed: durable.clone(),
                acknowledged: durable,
                gtids: status.gtids,
                lag_bytes: unflushed,
                bytes: status.bytes,
                failure: status.failure,
            }),
            downstreams: status
                .downstreams
                .into_iter()
                .map(|replica| Downstream {
                    name: (self.name)(replica.server_id),
                    peer: replica.peer,
                    lag_bytes: replica.unsent,
                    ..Downstream::default()
                })
                .collect(),
            slots: Vec::new(),
        }
    }
}
