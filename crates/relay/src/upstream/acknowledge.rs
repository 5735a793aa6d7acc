//! Reports of how far the log is: when `flushed` moves, at once when asked, and each status interval.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use tracing::warn;
use watermark::{Lsn, Parker, Unparker, Waited};
use wire::replication;

use crate::channel::Channel;
use crate::config::UpstreamConfig;
use crate::error::UpstreamError;
use crate::log::{Log, Tail};
use crate::shared::Shared;

/// What the receiver tells the acknowledging thread.
#[derive(Debug, Default)]
struct Told {
    /// Up to here this upstream has sent, and it was appended or found to be what is held.
    received: AtomicU64,
    asked: AtomicBool,
    stop: AtomicBool,
    /// Messages heard; to notice silence.
    heard: AtomicU64,
}

/// The acknowledging thread of one stream.
pub(super) struct Acknowledger {
    shared: Arc<Shared>,
    told: Arc<Told>,
    tail: Arc<Tail>,
    unparker: Unparker,
    socket: Channel,
    thread: JoinHandle<()>,
}

impl Acknowledger {
    pub(super) fn start(
        shared: &Arc<Shared>,
        config: &UpstreamConfig,
        socket: Channel,
        tail: Arc<Tail>,
        from: Lsn,
    ) -> Result<Acknowledger, UpstreamError> {
        tail.confirmed.reset(Lsn(0));
        let told = Arc::new(Told { received: AtomicU64::new(from.0), ..Told::default() });
        let parker = Parker::new(Arc::clone(&tail.flushed));
        let unparker = parker.unparker();
        let reporter = Reporter {
            shared: Arc::clone(shared),
            log: shared.log().ok_or(UpstreamError::Interrupted)?,
            told: Arc::clone(&told),
            tail: Arc::clone(&tail),
            socket: socket.another()?,
            interval: config.status_interval,
            patience: config.timeout / 2,
        };
        let thread = std::thread::Builder::new()
            .name("relay-ack".into())
            .spawn(move || reporter.run(parker))
            .map_err(UpstreamError::Io)?;
        Ok(Acknowledger { shared: Arc::clone(shared), told, tail, unparker, socket, thread })
    }

    /// The upstream's log ends at `end` (0: it did not say).
    pub(super) fn heard(&self, end: u64) {
        self.told.heard.fetch_add(1, Ordering::Relaxed);
        self.shared.metrics.upstream_end.fetch_max(end, Ordering::Relaxed);
    }

    /// Everything before `end` was received from this upstream.
    pub(super) fn received(&self, end: Lsn, bytes: usize) {
        self.shared.metrics.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.told.received.store(end.0, Ordering::Release);
        // With the one in `durable`: either this thread sees `flushed` or that one `received`.
        fence(Ordering::SeqCst);
        // While what is held is sent again, `flushed` does not move: somebody else has to wake the thread.
        if self.tail.flushed.get() >= end {
            self.unparker.unpark();
        }
    }

    /// Answer at once.
    pub(super) fn ask(&self) {
        self.told.asked.store(true, Ordering::Release);
        self.unparker.unpark();
    }

    /// Ends the thread.
    pub(super) fn stop(self) {
        self.told.stop.store(true, Ordering::Release);
        self.unparker.unpark();
        if self.thread.join().is_err() {
            warn!("the acknowledging thread panicked");
            self.socket.shutdown();
        }
        self.tail.confirmed.reset(Lsn(0));
    }
}

struct Reporter {
    shared: Arc<Shared>,
    log: Arc<Log>,
    told: Arc<Told>,
    tail: Arc<Tail>,
    socket: Channel,
    interval: Duration,
    /// Silence after which the upstream is asked whether it is there.
    patience: Duration,
}

impl Reporter {
    fn run(mut self, mut parker: Parker<Lsn>) {
        let (mut sent, mut last) = (Lsn(0), Instant::now());
        let (mut heard, mut heard_at) = (0, Instant::now());
        let mut feedback = None;
        self.report(Lsn(0), false);
        while !self.told.stop.load(Ordering::Acquire) {
            let next = (last + self.interval).min(heard_at + self.patience);
            // `flushed` first: if it moves after this line, the wait below ends.
            let flushed = self.tail.flushed.get();
            if self.durable(flushed) <= sent && !self.told.asked.load(Ordering::Acquire) {
                // While what is held is sent again, `flushed` is ahead: `received` unparks then.
                match parker.wait(Lsn(flushed.max(sent).0 + 1), Some(next)) {
                    Waited::Reached(_) | Waited::Unparked | Waited::TimedOut => {}
                }
            }
            let now = Instant::now();
            let count = self.told.heard.load(Ordering::Relaxed);
            if count != heard {
                (heard, heard_at) = (count, now);
            }
            let silent = now.duration_since(heard_at) >= self.patience;
            let asked = self.told.asked.swap(false, Ordering::AcqRel);
            let due = now.duration_since(last) >= self.interval;
            let durable = self.durable(self.tail.flushed.get()).max(sent);
            if durable > sent || asked || due || silent {
                if !self.report(durable, silent) {
                    return;
                }
                (sent, last) = (durable, now);
                if silent {
                    heard_at = now;
                }
            }
            let wanted = self.shared.feedback();
            if wanted != feedback.unwrap_or_default() || (due && feedback.is_some()) {
                feedback = Some(wanted);
                let mut out = Vec::new();
                replication::feedback(&mut out, now_micros(), wanted.xmin, wanted.catalog_xmin);
                if self.write(&out).is_err() {
                    return;
                }
            }
        }
    }

    /// What is durable here and known to be this upstream's; a little less while a record that crosses into another segment is
    /// incomplete, so that the upstream keeps what a restart would have to read again.
    fn durable(&self, flushed: Lsn) -> Lsn {
        let acknowledgeable = self.log.acknowledgeable(flushed);
        fence(Ordering::SeqCst);
        acknowledgeable.min(Lsn(self.told.received.load(Ordering::Acquire)))
    }

    /// False: the connection is gone.
    fn report(&mut self, durable: Lsn, reply: bool) -> bool {
        let written = self.tail.written.get().min(Lsn(self.told.received.load(Ordering::Acquire)));
        let mut out = Vec::with_capacity(64);
        replication::status(&mut out, written.0, durable.0, 0, now_micros(), reply);
        if self.write(&out).is_err() {
            return false;
        }
        if durable > Lsn(0) {
            self.tail.acknowledged.publish(durable);
            self.tail.confirmed.publish(durable);
        }
        self.shared.metrics.acknowledgements.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.socket.write_all(bytes).inspect_err(|_| self.socket.shutdown())
    }
}

/// Microseconds since 1970.
pub(crate) fn now_micros() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}
