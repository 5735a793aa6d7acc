//! Tasks that wait at a watermark: a heap of wakers, and the future that inserts one.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::heap::{Heap, Key};
use crate::mark::{Mark, Number, Watermark};
use crate::place::Alarm;
use crate::sync::{Mutex, Ordering, fence, lock, try_lock};

/// Maximum number of tasks woken for one locking of the heap.
const BATCH: usize = if cfg!(loom) { 1 } else { 32 };

/// The waiting tasks. A publisher never waits for the heap: the heap's holder reads the number after releasing it, and wakes the due tasks on behalf
/// of the publishers that could not.
pub(crate) struct Tasks {
    /// Written only while `heap` is locked, to its lowest target.
    alarm: Alarm,
    heap: Mutex<Heap<Waker>>,
}

/// The future of [`Watermark::reached`]. Once dropped, it leaves nothing at the watermark.
#[must_use = "a future does nothing unless it is polled"]
pub struct Reached<'a, N: Number> {
    mark: &'a Watermark<N>,
    target: u64,
    key: Option<Key>,
}

// === impl Tasks ===

impl Tasks {
    pub(crate) fn new() -> Tasks {
        Tasks { alarm: Alarm::new(), heap: Mutex::new(Heap::new()) }
    }

    /// Ensures that `waker` is woken when `target` is published, unless it was published before: the number must be read again after this call.
    fn enter(&self, mark: &Mark, key: &mut Option<Key>, target: u64, waker: Waker) {
        let mut heap = lock(&self.heap);
        // Wakers are dropped and woken without the lock: a task's last waker drops its futures, which may want to leave this heap, and a woken task
        // may be polled at once.
        let known = key.and_then(|key| heap.get_mut(key));
        let dropped = match known {
            Some(known) if known.will_wake(&waker) => Some(waker),
            Some(known) => Some(std::mem::replace(known, waker)),
            None => match heap.insert(target, waker) {
                Ok(entered) => {
                    *key = Some(entered);
                    None
                }
                Err(waker) => {
                    *key = None;
                    Some(waker)
                }
            },
        };
        self.arm(&heap);
        drop(heap);
        fence(Ordering::SeqCst);
        self.settle(mark);
        // 2^32 tasks are waiting: memory ends earlier. This task is polled repeatedly instead of being forgotten.
        if let Some(waker) = dropped
            && key.is_none()
        {
            waker.wake();
        }
    }

    fn leave(&self, mark: &Mark, key: Key) {
        let mut heap = lock(&self.heap);
        let waker = heap.remove(key);
        if waker.is_some() {
            heap.shrink();
            self.arm(&heap);
        }
        drop(heap);
        fence(Ordering::SeqCst);
        self.settle(mark);
        drop(waker);
    }

    /// Arms for the lowest target. Must be called while the heap is locked.
    fn arm(&self, heap: &Heap<Waker>) {
        match heap.smallest() {
            Some(target) if self.alarm.is_armed(target) => {}
            Some(target) => self.alarm.set(target),
            None => self.alarm.disarm(),
        }
    }

    /// Wakes all due tasks, unless another thread is about to. Must be called after storing a number, and after releasing the heap; in both cases
    /// after a fence that follows.
    pub(crate) fn settle(&self, mark: &Mark) {
        // Terminates: each iteration removes tasks from the heap, and a task that arrives meanwhile with a reached target does not stay.
        loop {
            let number = mark.get();
            if !self.alarm.is_due(number) {
                return;
            }
            let Some(mut heap) = try_lock(&self.heap) else { return };
            let mut due = [const { None }; BATCH];
            for waker in &mut due {
                *waker = heap.pop(number);
            }
            heap.shrink();
            self.arm(&heap);
            drop(heap);
            // Without the lock: a waker may do anything, even poll the task at once.
            for waker in due.into_iter().flatten() {
                Waker::wake(waker);
            }
            fence(Ordering::SeqCst);
        }
    }
}

// === impl Reached ===

impl<'a, N: Number> Reached<'a, N> {
    pub(crate) fn new(mark: &'a Watermark<N>, target: N) -> Reached<'a, N> {
        Reached { mark, target: target.to_u64(), key: None }
    }

    fn look(&mut self) -> Poll<N> {
        let number = self.mark.get();
        if number.to_u64() < self.target {
            return Poll::Pending;
        }
        self.leave();
        Poll::Ready(number)
    }

    fn leave(&mut self) {
        if let Some(key) = self.key.take() {
            let mark = self.mark.mark();
            mark.waiting().tasks.leave(mark, key);
        }
    }
}

impl<N: Number> Future for Reached<'_, N> {
    type Output = N;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<N> {
        let this = &mut *self;
        if let ready @ Poll::Ready(_) = this.look() {
            return ready;
        }
        let mark = this.mark.mark();
        mark.waiting().tasks.enter(mark, &mut this.key, this.target, context.waker().clone());
        this.look()
    }
}

impl<N: Number> Drop for Reached<'_, N> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl<N: Number> std::fmt::Debug for Reached<'_, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reached").field("target", &self.target).finish_non_exhaustive()
    }
}
