//! Reports of the log's positions: when `flushed` moves, at once on request, and in each status interval.
//!
//! The flushing thread reports each flush itself: on a busy machine a thread woken for it comes late, and costs as much as the report does. Its write
//! to the socket has a time limit, and blocks only if the upstream has not read thousands of reports; then the upstream sends nothing either that
//! could be flushed.

use std::borrow::Cow;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use tracing::warn;
use watermark::{Lsn, Parker, Unparker, Watermark};
use wire::replication;

use super::silence::{Silence, judge};
use crate::channel::Channel;
use crate::config::UpstreamConfig;
use crate::error::UpstreamError;
use crate::log::{Log, Tail};
use crate::shared::{Feedback, Shared};

/// Information from the receiver for the acknowledging thread.
#[derive(Debug, Default)]
struct ReceiverState {
    /// End of the WAL that this upstream has sent, and that was appended or found equal to the held bytes.
    received: AtomicU64,
    asked: AtomicBool,
    stop: AtomicBool,
    /// Time since when the receiver waits for the upstream, in microseconds after [`Reporter::born`]; [`BUSY`] while it does something else.
    waits_since: AtomicU64,
    /// True while the relay's state says that the upstream does not answer.
    unheard: AtomicBool,
}

/// Value of [`ReceiverState::waits_since`] while the receiver does not wait.
const BUSY: u64 = u64::MAX;
/// State of a relay whose upstream does not answer.
const UNHEARD: &str = "the upstream does not answer";

/// Acknowledger of one stream: the flusher after each flush, and a thread for all other reasons.
pub(super) struct Acknowledger {
    reporter: Arc<Reporter>,
    unparker: Unparker,
    socket: Channel,
    thread: JoinHandle<()>,
}

impl Acknowledger {
    /// `state`: state of the relay while the stream continues. `confirms`: true if the reports count for clients that wait until the log is durable
    /// here.
    pub(super) fn start(
        shared: &Arc<Shared>,
        config: &UpstreamConfig,
        socket: Channel,
        tail: Arc<Tail>,
        from: Lsn,
        state: Cow<'static, str>,
        confirms: bool,
    ) -> Result<Acknowledger, UpstreamError> {
        tail.confirmed.reset(Lsn(0));
        let receiver = ReceiverState {
            received: AtomicU64::new(from.0),
            waits_since: AtomicU64::new(BUSY),
            ..ReceiverState::default()
        };
        // A parker of its own, without a position: it only waits to be unparked.
        let parker = Parker::new(Arc::<Watermark>::default());
        let unparker = parker.unparker();
        let another = socket.another().map_err(UpstreamError::Thread)?;
        let reports = Reports { socket: another, sent: Lsn(0), last: Instant::now(), open: true };
        let reporter = Arc::new(Reporter {
            shared: Arc::clone(shared),
            log: shared.log().ok_or(UpstreamError::Interrupted)?,
            receiver,
            tail,
            reports: Mutex::new(reports),
            born: Instant::now(),
            state,
            confirms,
            interval: config.status_interval,
            patience: config.heartbeat.min(config.timeout / 2),
        });
        let thread = {
            let reporter = Arc::clone(&reporter);
            std::thread::Builder::new()
                .name("relay-ack".into())
                .spawn(move || reporter.run(parker))
                .map_err(UpstreamError::Thread)?
        };
        let flushed = Arc::clone(&reporter);
        reporter.log.tell_of_flushes(Some(Box::new(move || flushed.flushed())));
        // Reports flushes from before the registration.
        unparker.unpark();
        Ok(Acknowledger { reporter, unparker, socket, thread })
    }

    /// Marks the start of a wait for the upstream.
    pub(super) fn waits(&self) {
        let now = u64::try_from(self.reporter.born.elapsed().as_micros()).unwrap_or(BUSY - 1);
        self.reporter.receiver.waits_since.store(now, Ordering::Relaxed);
    }

    /// Records that a message arrived. The upstream's log ends at `end` (0: not reported).
    pub(super) fn heard(&self, end: u64) {
        let Reporter { shared, receiver, .. } = &*self.reporter;
        receiver.waits_since.store(BUSY, Ordering::Relaxed);
        shared.metrics.upstream_end.fetch_max(end, Ordering::Relaxed);
        // Pairs with the fence in `unheard`: either this thread sees the upstream's state, or the other one sees the message.
        fence(Ordering::SeqCst);
        if receiver.unheard.load(Ordering::Relaxed) {
            self.reporter.heard_again();
        }
    }

    /// Records that all WAL before `end` was received from this upstream.
    pub(super) fn received(&self, end: Lsn, bytes: usize) {
        let Reporter { shared, receiver, tail, .. } = &*self.reporter;
        shared.metrics.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        receiver.received.store(end.0, Ordering::Release);
        // Pairs with the fence in `durable`: either the flusher sees `received`, or this thread sees the flush.
        fence(Ordering::SeqCst);
        // While held WAL is sent again, no flush happens: the acknowledging thread has to report.
        if tail.flushed.get() >= end {
            self.unparker.unpark();
        }
    }

    /// Requests an immediate report.
    pub(super) fn ask(&self) {
        self.reporter.receiver.asked.store(true, Ordering::Release);
        self.unparker.unpark();
    }

    /// Stops the acknowledger: nothing is acknowledged after this returns.
    pub(super) fn stop(self) {
        let reporter = &self.reporter;
        reporter.log.tell_of_flushes(None);
        reporter.receiver.stop.store(true, Ordering::Release);
        self.unparker.unpark();
        if self.thread.join().is_err() {
            warn!("the acknowledging thread panicked");
            self.socket.shutdown();
        }
        // The flusher may be in the middle of a report, or start one more.
        reporter.reports().open = false;
        reporter.tail.confirmed.reset(Lsn(0));
    }
}

struct Reporter {
    shared: Arc<Shared>,
    log: Arc<Log>,
    receiver: ReceiverState,
    tail: Arc<Tail>,
    reports: Mutex<Reports>,
    born: Instant,
    state: Cow<'static, str>,
    confirms: bool,
    interval: Duration,
    /// Silence after which the upstream is asked for a reply; and the time that it has to answer.
    patience: Duration,
}

/// The last reports, and their destination. Locked while a report is written.
struct Reports {
    socket: Channel,
    sent: Lsn,
    last: Instant,
    open: bool,
}

impl Reporter {
    fn reports(&self) -> MutexGuard<'_, Reports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports a flush, in the flushing thread: another thread would have to be woken for each flush.
    fn flushed(&self) {
        let mut reports = self.reports();
        if self.durable() > reports.sent {
            // The receiver notices a lost connection.
            let _ = self.report(&mut reports, false);
        }
    }

    /// Sends the reports that flushes do not cause: on request, at each interval, and for WAL that was sent again and had been flushed before. Asks a
    /// silent upstream for a reply, and sets the relay's state if it does not answer.
    fn run(&self, mut parker: Parker<Lsn>) {
        let (mut asked_at, mut look_at) = (None, self.born);
        // A slot at the upstream keeps the last feedback, perhaps of an earlier connection. None of it is withdrawn before standbys had time to
        // reconnect.
        let (mut feedback, mut feedback_due) = (None, self.born + self.interval);
        // An upstream with nothing to send must confirm that: only then the relay's state is streaming.
        if !self.report(&mut self.reports(), true) {
            return;
        }
        while !self.receiver.stop.load(Ordering::Acquire) {
            let last = self.reports().last;
            let until = (last + self.interval).min(look_at);
            parker.wait(Lsn(1), Some(until));
            let now = Instant::now();
            let late = now.saturating_duration_since(until) > self.patience / 2;
            let asked = self.receiver.asked.swap(false, Ordering::AcqRel);
            let mut reports = self.reports();
            let silence = judge(now, self.silent_since(&reports), asked_at, self.patience, late);
            let due = now.saturating_duration_since(reports.last) >= self.interval;
            let ask = silence == Silence::Ask;
            if (asked || due || ask || self.durable() > reports.sent) && !self.report(&mut reports, ask) {
                return;
            }
            match silence {
                Silence::Wait(until) => look_at = until,
                Silence::Ask => (asked_at, look_at) = (Some(now), now + self.patience),
                Silence::Unheard(until) => {
                    look_at = until;
                    self.unheard();
                }
            }
            // Another relay gets no feedback: it would pass it on to the same upstream.
            let wanted = if self.confirms { self.shared.feedback() } else { Feedback::default() };
            let due = self.confirms && now >= feedback_due && feedback != Some(Feedback::default());
            if wanted != feedback.unwrap_or_default() || due {
                (feedback, feedback_due) = (Some(wanted), now + self.interval);
                let mut out = Vec::new();
                replication::feedback(&mut out, now_micros(), wanted.xmin, wanted.catalog_xmin);
                if !reports.write(&out) {
                    return;
                }
            }
        }
    }

    /// Returns the time since when the receiver has waited in vain; None if it does something else, or input is available.
    fn silent_since(&self, reports: &Reports) -> Option<Instant> {
        let since = self.receiver.waits_since.load(Ordering::Relaxed);
        (since != BUSY && !reports.socket.is_readable()).then(|| self.born + Duration::from_micros(since))
    }

    /// Sets the relay's state after the upstream did not answer. The connection stays: the upstream may only be slow.
    fn unheard(&self) {
        if self.receiver.unheard.swap(true, Ordering::Relaxed) {
            return;
        }
        self.shared.upstream_is(UNHEARD, false);
        fence(Ordering::SeqCst);
        if self.receiver.waits_since.load(Ordering::Relaxed) == BUSY {
            self.heard_again();
        }
    }

    fn heard_again(&self) {
        if self.receiver.unheard.swap(false, Ordering::Relaxed) {
            self.shared.upstream_is(&self.state, false);
        }
    }

    /// Returns the end of the WAL that is durable here and known to be this upstream's; a little less while a record that crosses into another
    /// segment is incomplete, so that the upstream keeps what a restart would have to read again.
    fn durable(&self) -> Lsn {
        let acknowledgeable = self.log.acknowledgeable(self.tail.flushed.get());
        fence(Ordering::SeqCst);
        acknowledgeable.min(Lsn(self.receiver.received.load(Ordering::Acquire)))
    }

    /// Sends a report; false if the connection is lost.
    fn report(&self, reports: &mut Reports, reply: bool) -> bool {
        if !reports.open {
            return false;
        }
        let durable = self.durable().max(reports.sent);
        let written = self.tail.written.get().min(Lsn(self.receiver.received.load(Ordering::Acquire)));
        let mut out = Vec::with_capacity(64);
        replication::status(&mut out, written.0, durable.0, 0, now_micros(), reply);
        if !reports.write(&out) {
            return false;
        }
        (reports.sent, reports.last) = (durable, Instant::now());
        if durable > Lsn(0) && self.confirms {
            self.tail.acknowledged.publish(durable);
            self.tail.confirmed.publish(durable);
        }
        self.shared.metrics.acknowledgements.fetch_add(1, Ordering::Relaxed);
        true
    }
}

impl Reports {
    /// Writes to the socket; false if the connection is lost.
    fn write(&mut self, bytes: &[u8]) -> bool {
        self.open &= self.socket.write_all(bytes).inspect_err(|_| self.socket.shutdown()).is_ok();
        self.open
    }
}

/// Returns the microseconds since 1970.
pub(crate) fn now_micros() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}
