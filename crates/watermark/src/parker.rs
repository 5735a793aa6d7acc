//! Waiting of a thread that has nothing else to do.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Instant;

use crate::mark::{Number, Watermark};
use crate::place::Place;
use crate::sync::{AtomicBool, Ordering, Sleeper};

/// Lets one thread at a time sleep until a watermark has reached a target.
pub struct Parker<N: Number = crate::Lsn> {
    mark: Arc<Watermark<N>>,
    place: Arc<Place>,
    unparked: Arc<AtomicBool>,
    /// The sleeper that the place wakes.
    sleeper: Option<Sleeper>,
}

/// Ends a [`Parker`]'s wait, or its next one, before the target is reached: to stop the thread, or to give it other work.
#[derive(Clone)]
pub struct Unparker {
    place: Arc<Place>,
    unparked: Arc<AtomicBool>,
}

/// Result of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited<N> {
    /// The watermark has reached the target; contains the watermark's number.
    Reached(N),
    /// [`Unparker::unpark`] was called since the last wait with this result.
    Unparked,
    /// The deadline has passed.
    TimedOut,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        Sleeper::wake(&self);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Sleeper::wake(self);
    }
}

// === impl Parker ===

impl<N: Number> Parker<N> {
    /// Creates a parker for a thread that waits at `mark`. One per thread, kept as long as the thread waits there.
    #[must_use]
    pub fn new(mark: Arc<Watermark<N>>) -> Parker<N> {
        let place = mark.mark().waiting().places.claim();
        Parker { mark, place, unparked: Arc::new(AtomicBool::new(false)), sleeper: None }
    }

    /// Returns the watermark.
    #[must_use]
    pub fn watermark(&self) -> &Arc<Watermark<N>> {
        &self.mark
    }

    /// Returns a handle that ends waits from outside.
    #[must_use]
    pub fn unparker(&self) -> Unparker {
        Unparker { place: Arc::clone(&self.place), unparked: Arc::clone(&self.unparked) }
    }

    /// Sleeps until the watermark has reached `target`, [`Unparker::unpark`] is called, or `deadline` has passed (`None` means never). If several
    /// hold, the first of these is returned, and an unpark remains for the next wait.
    ///
    /// A target that has been reached costs one load.
    pub fn wait(&mut self, target: N, deadline: Option<Instant>) -> Waited<N> {
        let number = self.mark.get();
        if number >= target {
            return Waited::Reached(number);
        }
        let sleeper = self.sleeper();
        let waited = self.sleep(&sleeper, target, deadline);
        self.place.alarm().disarm();
        waited
    }

    fn sleep(&self, sleeper: &Sleeper, target: N, deadline: Option<Instant>) -> Waited<N> {
        // Ends with the awaited event; after any other wake-up the thread arms and checks again.
        loop {
            self.place.alarm().arm(target.to_u64());
            let number = self.mark.get();
            if number >= target {
                return Waited::Reached(number);
            }
            if self.unparked.load(Ordering::Relaxed) && self.unparked.swap(false, Ordering::Acquire) {
                return Waited::Unparked;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Waited::TimedOut;
            }
            sleeper.sleep(deadline);
        }
    }

    /// Returns this thread's sleeper, which the place wakes from now on.
    fn sleeper(&mut self) -> Sleeper {
        if let Some(sleeper) = self.sleeper.as_ref().filter(|sleeper| sleeper.is_here()) {
            return sleeper.clone();
        }
        let sleeper = Sleeper::here();
        self.place.set_waker(Waker::from(Arc::new(sleeper.clone())));
        self.sleeper = Some(sleeper.clone());
        sleeper
    }
}

impl<N: Number> Drop for Parker<N> {
    fn drop(&mut self) {
        self.place.leave();
    }
}

impl<N: Number + std::fmt::Debug> std::fmt::Debug for Parker<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parker").field("mark", &self.mark).finish_non_exhaustive()
    }
}

// === impl Unparker ===

impl Unparker {
    /// Ends the wait, or the next one. Several calls before that count as one.
    pub fn unpark(&self) {
        self.unparked.store(true, Ordering::Release);
        self.place.rouse();
    }
}

impl std::fmt::Debug for Unparker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unparker").finish_non_exhaustive()
    }
}
