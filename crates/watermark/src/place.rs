//! Where one waiting thread is found by those who publish.
//!
//! The one hand-shake that everything else rests on. Who waits: `arm`, then look at the number again, then sleep. Who
//! publishes: store the number, then look at what is armed, then wake. A full fence between the two steps of each makes sure
//! that at least one of them sees the other.

use std::sync::Arc;
use std::task::Waker;

use crate::sync::{AtomicBool, AtomicU64, Mutex, OnceLock, Ordering, fence, lock, try_lock};

/// Nobody waits: no number is higher than this.
const QUIET: u64 = u64::MAX;

/// The number up to which (inclusive) publishing concerns nobody: one less than the lowest target that is waited for. Aligned
/// to a cache line, so that a thread that arms its own does not disturb those who look at another.
#[repr(align(64))]
pub(crate) struct Alarm(AtomicU64);

/// One thread's. It is used again by another thread when the first has left, and freed with the watermark.
pub(crate) struct Place {
    alarm: Alarm,
    taken: AtomicBool,
    /// Held only for as long as it takes to copy or replace what is in it.
    waker: Mutex<Option<Waker>>,
    next: OnceLock<Arc<Place>>,
}

/// The places at one watermark: as many as there have ever been waiting threads at the same time.
pub(crate) struct Places {
    first: OnceLock<Arc<Place>>,
}

// === impl Alarm ===

impl Alarm {
    pub(crate) fn new() -> Alarm {
        Alarm(AtomicU64::new(QUIET))
    }

    /// From now on whoever publishes `target` or more raises the alarm. The number has to be read (again) behind a fence that
    /// follows this: it may have been reached before.
    pub(crate) fn set(&self, target: u64) {
        // The target 0 is always reached, which the second look at the number will find.
        self.0.store(target.saturating_sub(1), Ordering::Release);
    }

    /// The same with the fence.
    pub(crate) fn arm(&self, target: u64) {
        self.set(target);
        fence(Ordering::SeqCst);
    }

    /// True if it is armed for exactly this target, and has been since it was armed.
    pub(crate) fn is_armed(&self, target: u64) -> bool {
        self.0.load(Ordering::Relaxed) == target.saturating_sub(1)
    }

    pub(crate) fn disarm(&self) {
        self.0.store(QUIET, Ordering::Release);
    }

    /// Disarms it; false if somebody who published has done so, and wakes.
    pub(crate) fn retract(&self) -> bool {
        self.0.swap(QUIET, Ordering::AcqRel) != QUIET
    }

    /// True if `number` concerns somebody. To be called behind a fence that follows the storing of `number`.
    pub(crate) fn is_due(&self, number: u64) -> bool {
        self.0.load(Ordering::Relaxed) < number
    }

    /// Disarms it if `number` is above what is armed: of all who publish, one gets true for each time that it was armed.
    pub(crate) fn take(&self, number: u64) -> bool {
        let mut armed = self.0.load(Ordering::Relaxed);
        // Goes round again only when the waiting thread has armed anew in between.
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

    /// Whom to wake from now on. Not to be called while the alarm is armed.
    pub(crate) fn set_waker(&self, waker: Waker) {
        let before = lock(&self.waker).replace(waker);
        drop(before);
    }

    /// To be called by who has taken the alarm. Never waits.
    pub(crate) fn wake(&self) {
        // Who else can hold it: another one who publishes, and who took the alarm when it was armed for the last time but
        // one. It is about to wake the thread, which then looks at the number anew.
        let waker = try_lock(&self.waker).and_then(|waker| waker.clone());
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes whoever is there, whatever has been reached.
    pub(crate) fn rouse(&self) {
        let waker = lock(&self.waker).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Gives the place back.
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

    /// A place that nobody else has.
    pub(crate) fn claim(&self) -> Arc<Place> {
        let mut link = &self.first;
        // Ends: each turn goes one place on, and the last one is added here or by another, who takes no more than one.
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

    /// Wakes each thread that waits for `number` or less. To be called behind a fence that follows the storing of `number`.
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
