//! Place of a waiting thread, where publishers find it.
//!
//! All waiting depends on one handshake. A waiter arms, then reads the number again, then sleeps. A publisher stores the number, then checks the
//! alarms, then wakes. A full fence between the two steps of each ensures that at least one of them sees the other.

use std::sync::Arc;
use std::task::Waker;

use crate::sync::{AtomicBool, AtomicU64, Mutex, OnceLock, Ordering, fence, lock, try_lock};

/// Value of an alarm without waiters: no number is higher.
const QUIET: u64 = u64::MAX;

/// The number up to which (inclusive) a publish concerns no waiter: one less than the lowest awaited target. Aligned to a cache line, so that a
/// thread that arms its own alarm does not disturb readers of another.
#[repr(align(64))]
pub(crate) struct Alarm(AtomicU64);

/// Place of one thread. Reused by another thread when the first has left, and freed with the watermark.
pub(crate) struct Place {
    alarm: Alarm,
    taken: AtomicBool,
    /// Locked only to copy or replace the waker.
    waker: Mutex<Option<Waker>>,
    next: OnceLock<Arc<Place>>,
}

/// Places at a watermark: as many as the highest number of threads that ever waited at once.
pub(crate) struct Places {
    first: OnceLock<Arc<Place>>,
}

// === impl Alarm ===

impl Alarm {
    pub(crate) fn new() -> Alarm {
        Alarm(AtomicU64::new(QUIET))
    }

    /// From now on a publisher of `target` or more raises the alarm. The caller must read the number (again) after a fence that follows: it may have
    /// been reached before.
    pub(crate) fn set(&self, target: u64) {
        // The target 0 is always reached, which the second read of the number finds.
        self.0.store(target.saturating_sub(1), Ordering::Release);
    }

    /// Sets the alarm, followed by the fence.
    pub(crate) fn arm(&self, target: u64) {
        self.set(target);
        fence(Ordering::SeqCst);
    }

    /// True if the alarm has been armed for exactly this target, and not taken since.
    pub(crate) fn is_armed(&self, target: u64) -> bool {
        self.0.load(Ordering::Relaxed) == target.saturating_sub(1)
    }

    pub(crate) fn disarm(&self) {
        self.0.store(QUIET, Ordering::Release);
    }

    /// Disarms the alarm; returns false if a publisher has done so, and wakes.
    pub(crate) fn retract(&self) -> bool {
        self.0.swap(QUIET, Ordering::AcqRel) != QUIET
    }

    /// True if `number` concerns a waiter. Must be called after a fence that follows the store of `number`.
    pub(crate) fn is_due(&self, number: u64) -> bool {
        self.0.load(Ordering::Relaxed) < number
    }

    /// Disarms the alarm if `number` is above its value: of all publishers, one gets true for each arming.
    pub(crate) fn take(&self, number: u64) -> bool {
        let mut armed = self.0.load(Ordering::Relaxed);
        // Repeats only if the waiting thread has armed again in between.
        while armed < number {
            match self.0.compare_exchange(armed, QUIET, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => armed = now,
            }
        }
        false
    }
}

// === impl Place ===

impl Place {
    fn new() -> Place {
        Place { alarm: Alarm::new(), taken: AtomicBool::new(false), waker: Mutex::new(None), next: OnceLock::new() }
    }

    pub(crate) fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    /// Sets the waker. Must not be called while the alarm is armed.
    pub(crate) fn set_waker(&self, waker: Waker) {
        let before = lock(&self.waker).replace(waker);
        drop(before);
    }

    /// Wakes the thread. Called by the publisher that has taken the alarm. Never blocks.
    pub(crate) fn wake(&self) {
        // The lock can only be held by another publisher that took the alarm of the last arming but one. It is about to wake the thread, which then
        // reads the number again.
        let waker = try_lock(&self.waker).and_then(|waker| waker.clone());
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes the thread at the place, even if its target has not been reached.
    pub(crate) fn rouse(&self) {
        let waker = lock(&self.waker).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Releases the place.
    pub(crate) fn leave(&self) {
        self.alarm.disarm();
        let waker = lock(&self.waker).take();
        self.taken.store(false, Ordering::Release);
        drop(waker);
    }
}

// === impl Places ===

impl Places {
    pub(crate) fn new() -> Places {
        Places { first: OnceLock::new() }
    }

    /// Claims a place that no other thread has.
    pub(crate) fn claim(&self) -> Arc<Place> {
        let mut link = &self.first;
        // Terminates: each iteration moves one place on, and the last one is added here or by another thread, which takes only one.
        loop {
            let place = link.get_or_init(|| Arc::new(Place::new()));
            if place.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Arc::clone(place);
            }
            link = &place.next;
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn len(&self) -> usize {
        std::iter::successors(self.first.get(), |place| place.next.get()).count()
    }

    /// Wakes each thread that waits for `number` or less. Must be called after a fence that follows the store of `number`.
    pub(crate) fn published(&self, number: u64) {
        let mut link = &self.first;
        while let Some(place) = link.get() {
            if place.alarm.take(number) {
                place.wake();
            }
            link = &place.next;
        }
    }
}
