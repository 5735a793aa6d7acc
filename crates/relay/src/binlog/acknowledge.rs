//! Acknowledgements to the source: the thread that flushes sends them, while the receiver goes on receiving.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use ::binlog::protocol::{command, message};
use watermark::Lsn;

use super::shared::Shared;
use crate::channel::Channel;
use crate::log::lock;

/// One connection's acknowledgements.
pub(super) struct Acknowledger {
    shared: Arc<Shared>,
    /// Positions are the source's only in this epoch.
    epoch: u64,
    state: Mutex<State>,
}

struct State {
    channel: Channel,
    /// Log position up to which the source has been acknowledged.
    told: Lsn,
    broken: bool,
}

impl Acknowledger {
    /// Starts acknowledging in the epoch `epoch` over `channel`.
    pub(super) fn new(shared: &Arc<Shared>, epoch: u64, channel: Channel) -> Arc<Acknowledger> {
        let state = Mutex::new(State { channel, told: Lsn(0), broken: false });
        Arc::new(Acknowledger { shared: Arc::clone(shared), epoch, state })
    }

    /// Acknowledges the durable transactions that the source waits for. One acknowledgement covers all before it.
    pub(super) fn flushed(&self) {
        let Some((file, offset)) = self.shared.log.durable().wanted else { return };
        if file.epoch == self.epoch {
            self.tell(file.name.as_str(), offset, Lsn(file.start.0 + offset));
        }
    }

    /// Acknowledges data that the source has sent again and waits for, once all held up to there is durable.
    pub(super) fn sent_again(&self, offset: u64) {
        let durable = self.shared.log.durable();
        if let Some((file, end)) = durable.file
            && file.epoch == self.epoch
            && offset <= end
        {
            self.tell(file.name.as_str(), offset, Lsn(file.start.0 + offset));
        }
    }

    fn tell(&self, file: &str, offset: u64, at: Lsn) {
        let mut state = lock(&self.state);
        if at <= state.told || state.broken {
            return;
        }
        state.told = at;
        let mut out = Vec::new();
        // Number 0: not an answer to a packet of the source.
        message(&mut out, 0, &command::acknowledgement(file, offset));
        if let Err(error) = state.channel.write_all(&out) {
            tracing::warn!(%error, "cannot acknowledge");
            state.broken = true;
            // The receiver notices, and connects again.
            state.channel.shutdown();
            return;
        }
        self.shared.counts.acknowledgements.fetch_add(1, Ordering::Relaxed);
    }
}
