//! A client of TiKV: timestamps from its PD, and optimistic transactions committed in two phases.
//!
//! ```text
//!  callers ─▶ Dispenser ─▶ Pipeline ─▶ one stream ─▶ PD                    timestamps: a thread of its own
//!  callers ─▶ Client ─▶ Regions (a snapshot, swapped whole) ─▶ channels ─▶ TiKV, PD
//! ```
//!
//! # Invariants
//!
//! - Nobody joins a batch of timestamps that was sent already; no timestamp is given twice; none that is not higher than all that were
//!   given before its batch was sent.
//! - Every call has the caller's deadline. One that is dropped leaves either nothing or a whole transaction behind: locks without an
//!   owner end with their time to live.
//! - [`Error::Undetermined`] comes only of a commit that was sent, and that no answer proves to have been carried out or not
//!   (`verdict`). Every other error of [`Client::commit`] means that nothing was written.
//! - Asynchronous commit and one-phase commit are not used. Locks of others are rolled back only when PD's time says that their time to
//!   live is over.
//! - What comes from a server is bounded and checked before it is used. No key and no value is in an error or a log line.

mod ack;
mod backoff;
mod channel;
mod codec;
mod error;
#[cfg(test)]
mod fake;
mod figures;
mod lock;
mod pd;
mod region;
mod snapshot;
pub mod timestamps;
mod transaction;
mod verdict;

/// Messages of PD and TiKV, generated from `proto/`.
#[allow(missing_docs, unreachable_pub, dead_code, clippy::all, reason = "generated")]
mod proto {
    pub(crate) mod pdpb {
        include!(concat!(env!("OUT_DIR"), "/pdpb.rs"));
    }
    pub(crate) mod tikvpb {
        include!(concat!(env!("OUT_DIR"), "/tikvpb.rs"));
    }
}

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

pub use channel::Security;
pub use error::Error;
pub use figures::{BUCKETS, Counts, Figures, Histogram};
pub use snapshot::{Pair, Scan, Snapshot};
pub use timestamps::{Timestamp, Timestamps};
pub use transaction::Write;

use crate::channel::Channels;
use crate::pd::Pd;
use crate::region::Regions;

/// A client of one cluster. Cheap to share; must be dropped outside of its calls.
#[derive(Debug)]
pub struct Client {
    timestamps: Timestamps,
    regions: Regions,
    figures: Arc<Figures>,
}

impl Client {
    /// Connects to the cluster whose PD members are at `endpoints`, each `host:port`. Finds the leader, which proves that the addresses belong to a
    /// cluster.
    ///
    /// # Errors
    /// No member names a leader until `deadline`.
    pub async fn connect(endpoints: Vec<String>, security: Security, deadline: Instant) -> Result<Arc<Client>, Error> {
        let figures = Arc::new(Figures::default());
        let channels = Arc::new(Channels::new(security));
        let pd = Arc::new(Pd::new(endpoints, channels));
        pd.leader(deadline).await?;
        let timestamps = Timestamps::start(Arc::clone(&pd), timestamps::Settings::default(), Arc::clone(&figures))?;
        Ok(Arc::new(Client { timestamps, regions: Regions::new(pd, Arc::clone(&figures)), figures }))
    }

    /// Returns a timestamp from after the start of this call.
    ///
    /// # Errors
    /// [`Error::Late`] at `deadline`.
    ///
    /// # Errors
    /// [`Error::Late`] at `deadline`.
    pub async fn timestamp(&self, deadline: Instant) -> Result<Timestamp, Error> {
        self.timestamps.within(deadline).await
    }

    /// Returns the snapshot of everything committed up to `at`.
    #[must_use]
    pub fn snapshot(self: &Arc<Client>, at: Timestamp) -> Snapshot {
        Snapshot::new(Arc::clone(self), at)
    }

    /// Returns the counters since the start.
    #[must_use]
    pub fn figures(&self) -> &Arc<Figures> {
        &self.figures
    }
}

/// A key, or other bytes.
pub(crate) type Key = Bytes;
