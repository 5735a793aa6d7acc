//! Acknowledging: whoever has flushed says so to the source, while the receiver goes on receiving.

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
    /// Only what is in this epoch is the source's.
    epoch: u64,
    state: Mutex<State>,
}

struct State {
    channel: Channel,
    /// Up to here it was acknowledged: a position in the log.
    told: Lsn,
    broken: bool,
}

impl Acknowledger {
    /// Acknowledges in the epoch `epoch` over `channel` from now on.
    pub(super) fn new(shared: &Arc<Shared>, epoch: u64, channel: Channel) -> Arc<Acknowledger> {
        let state = Mutex::new(State { channel, told: Lsn(0), broken: false });
        Arc::new(Acknowledger { shared: Arc::clone(shared), epoch, state })
    }

    /// What the source waits for, and is durable, is acknowledged. One acknowledgement stands for all before it.
    pub(super) fn flushed(&self) {
        let Some((file, offset)) = self.shared.log.durable().wanted else { return };
        if file.epoch == self.epoch {
            self.tell(file.name.as_str(), offset, Lsn(file.start.0 + offset));
        }
    }

    /// The source has sent again what is held, and waits for it. All that is held up to there is durable?
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
        // Number 0: it is no answer to a packet of the source.
        message(&mut out, 0, &command::acknowledgement(file, offset));
        if let Err(error) = state.channel.write_all(&out) {
            tracing::warn!(%error, "cannot acknowledge");
            state.broken = true;
            // The receiver finds out, and connects again.
            state.channel.shutdown();
            return;
        }
        self.shared.counts.acknowledgements.fetch_add(1, Ordering::Relaxed);
    }
}
