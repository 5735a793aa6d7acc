//! The waiters of one event loop.

use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::heap::{Heap, Key};
use crate::mark::{Number, Watermark};
use crate::place::Place;

/// What one thread is waiting for at a watermark: any number of targets, each with something that the thread wants back
/// when it is reached. It belongs to one thread at a time; nothing in it is locked or shared but one word.
///
/// ```
/// # use std::sync::Arc;
/// # use watermark::{Waiters, Watermark};
/// let durable = Arc::new(Watermark::new(0_u64));
/// // Called by who publishes: writes to an eventfd, say. Then the loop calls `pop`.
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

/// One waiter among [`Waiters`]: what to cancel it by.
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
    /// For at most `limit` waiters. `wake` is called when the lowest target has been reached: by the thread that publishes, so
    /// it should be short and must not panic, and once only until [`pop`](Waiters::pop) has given None.
    pub fn new(mark: Arc<Watermark<N>>, limit: usize, wake: impl Fn() + Send + Sync + 'static) -> Waiters<T, N> {
        let place = mark.mark().waiting().places.claim();
        place.set_waker(Waker::from(Arc::new(Call(wake))));
        Waiters { mark, place, heap: Heap::new(), limit }
    }

    /// Where they wait.
    #[must_use]
    pub fn watermark(&self) -> &Arc<Watermark<N>> {
        &self.mark
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// True if nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.len() == 0
    }

    /// The lowest target.
    #[must_use]
    pub fn smallest(&self) -> Option<N> {
        self.heap.smallest().map(N::from_u64)
    }

    /// Waits for `target`. Should it have been reached already, then `wake` is called (perhaps from here) and `pop` gives it;
    /// who does not want that way round compares with the watermark first.
    ///
    /// # Errors
    ///
    /// Gives `payload` back if there are as many as the limit.
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
            // Whoever published before that may not have seen it armed.
            if self.mark.mark().get() >= target && alarm.retract() {
                self.place.rouse();
            }
        }
        Ok(waiter)
    }

    /// Waits no longer. None if `pop` gave it, or it was cancelled, before. O(log n).
    pub fn cancel(&mut self, waiter: Waiter) -> Option<T> {
        // What is armed stays as it is: at the worst one `wake` comes for nothing.
        self.heap.remove(waiter.0)
    }

    /// One whose target has been reached. To be called until it gives None, for only then will `wake` be called again.
    pub fn pop(&mut self) -> Option<T> {
        let mark = self.mark.mark();
        let alarm = self.place.alarm();
        // Goes round again only when a target was reached while it was being armed, and then there is one to give.
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
