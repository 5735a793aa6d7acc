//! The waiters of an event loop.

use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::heap::{Heap, Key};
use crate::mark::{Number, Watermark};
use crate::place::Place;

/// Targets of one thread at a watermark: any number of them, each with a payload that is returned when it is reached. Owned by one thread at a time;
/// only one word is shared, and nothing is locked.
///
/// ```
/// # use std::sync::Arc;
/// # use watermark::{Waiters, Watermark};
/// let durable = Arc::new(Watermark::new(0_u64));
/// // Called by the publisher: writes to an eventfd, for example. Then the loop calls `pop`.
/// let mut held = Waiters::new(Arc::clone(&durable), 1000, || {});
/// let waiter = held.insert(7, "a client whose COMMIT is held")?;
/// held.insert(5, "another")?;
/// durable.publish(6);
/// while let Some(client) = held.pop() {
///     assert_eq!(client, "another");
/// }
/// assert!(held.cancel(waiter).is_some());
/// # Ok::<(), &str>(())
/// ```
pub struct Waiters<T, N: Number = crate::Lsn> {
    mark: Arc<Watermark<N>>,
    place: Arc<Place>,
    heap: Heap<T>,
    limit: usize,
}

/// Identifies one of the [`Waiters`], to cancel it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiter(Key);

struct Call<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Call<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        (self.0)();
    }
}

// === impl Waiters ===

impl<T, N: Number> Waiters<T, N> {
    /// Creates the set, for at most `limit` waiters. `wake` is called when the lowest target has been reached: by the publishing thread, so it should
    /// be short and must not panic, and only once until [`pop`](Waiters::pop) has returned `None`.
    pub fn new(mark: Arc<Watermark<N>>, limit: usize, wake: impl Fn() + Send + Sync + 'static) -> Waiters<T, N> {
        let place = mark.mark().waiting().places.claim();
        place.set_waker(Waker::from(Arc::new(Call(wake))));
        Waiters { mark, place, heap: Heap::new(), limit }
    }

    /// Returns the watermark.
    #[must_use]
    pub fn watermark(&self) -> &Arc<Watermark<N>> {
        &self.mark
    }

    /// Returns the number of waiters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// True if there are no waiters.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.len() == 0
    }

    /// Returns the lowest target.
    #[must_use]
    pub fn smallest(&self) -> Option<N> {
        self.heap.smallest().map(N::from_u64)
    }

    /// Adds a waiter for `target`. If it has been reached already, `wake` is called (perhaps from here) and `pop` returns it; a caller that does not
    /// want this compares with the watermark first.
    ///
    /// # Errors
    ///
    /// Returns `payload` if there are as many waiters as the limit.
    pub fn insert(&mut self, target: N, payload: T) -> Result<Waiter, T> {
        if self.heap.len() >= self.limit {
            return Err(payload);
        }
        let target = target.to_u64();
        let lowest = self.heap.smallest().is_none_or(|smallest| target < smallest);
        let waiter = self.heap.insert(target, payload).map(Waiter)?;
        if lowest {
            let alarm = self.place.alarm();
            alarm.arm(target);
            // An earlier publisher may not have seen the alarm armed.
            if self.mark.mark().get() >= target && alarm.retract() {
                self.place.rouse();
            }
        }
        Ok(waiter)
    }

    /// Removes a waiter. Returns `None` if `pop` returned it, or it was cancelled, before. O(log n).
    pub fn cancel(&mut self, waiter: Waiter) -> Option<T> {
        // The alarm stays as it is: at worst `wake` is called once for nothing.
        self.heap.remove(waiter.0)
    }

    /// Returns a waiter whose target has been reached. Must be called until it returns `None`, because only then will `wake` be called again.
    pub fn pop(&mut self) -> Option<T> {
        let mark = self.mark.mark();
        let alarm = self.place.alarm();
        // Repeats only if a target was reached while it was being armed, and then there is one to return.
        loop {
            let number = mark.get();
            if let Some(payload) = self.heap.pop(number) {
                return Some(payload);
            }
            match self.heap.smallest() {
                Some(target) if alarm.is_armed(target) => return None,
                Some(target) => {
                    alarm.arm(target);
                    if mark.get() < target {
                        return None;
                    }
                }
                None => {
                    alarm.disarm();
                    return None;
                }
            }
        }
    }
}

impl<T, N: Number> Drop for Waiters<T, N> {
    fn drop(&mut self) {
        self.place.leave();
    }
}

impl<T, N: Number> std::fmt::Debug for Waiters<T, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiters")
            .field("len", &self.len())
            .field("smallest", &self.heap.smallest())
            .finish_non_exhaustive()
    }
}
