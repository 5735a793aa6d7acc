//! Tests beyond the models: time-outs, many waiters, real threads.

#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::sync::Sleeper;
use crate::{Lsn, Parker, Waited, Waiters, Watermark};

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

fn block_on<F: Future>(future: F) -> F::Output {
    let sleeper = Sleeper::here();
    let waker = Waker::from(Arc::new(sleeper.clone()));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        sleeper.sleep(None);
    }
}

#[test]
fn a_future_is_ready_exactly_when_the_target_is_reached() {
    let mark: Watermark = Watermark::new(Lsn(5));
    for (target, published, ready) in
        [(5, None, true), (0, None, true), (6, None, false), (6, Some(6), true), (9, Some(8), false)]
    {
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut future = mark.reached(Lsn(target));
        let first = poll(&mut future, &waker);
        if let Some(published) = published {
            assert_eq!(first, Poll::Pending);
            mark.publish(Lsn(published));
            assert_eq!(count.get(), usize::from(ready), "target {target}");
        }
        assert_eq!(poll(&mut future, &waker).is_ready(), ready, "target {target}");
    }
}

#[test]
fn the_highest_number_can_be_waited_for() {
    let mark = Watermark::new(0_u64);
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut future = mark.reached(u64::MAX);
    assert!(poll(&mut future, &waker).is_pending());
    mark.publish(u64::MAX - 1);
    assert_eq!(count.get(), 0);
    mark.publish(u64::MAX);
    assert_eq!(count.get(), 1);
    assert_eq!(poll(&mut future, &waker), Poll::Ready(u64::MAX));
}

#[test]
fn a_dropped_future_leaves_nothing_behind() {
    let mark = Watermark::new(0_u64);
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    for _ in 0..3 {
        let mut futures: Vec<_> = (0..100).map(|_| mark.reached(1)).collect();
        for future in &mut futures {
            assert!(poll(future, &waker).is_pending());
        }
        assert_eq!(Arc::strong_count(&count), 102);
        drop(futures);
        assert_eq!(Arc::strong_count(&count), 2);
    }
    mark.publish(1);
    assert_eq!(count.get(), 0);
}

#[test]
fn a_future_that_moves_to_another_task_wakes_that_one() {
    let mark = Watermark::new(0_u64);
    let (before, after) = (Arc::new(Count::default()), Arc::new(Count::default()));
    let mut future = mark.reached(1);
    assert!(poll(&mut future, &Waker::from(Arc::clone(&before))).is_pending());
    assert!(poll(&mut future, &Waker::from(Arc::clone(&after))).is_pending());
    mark.publish(1);
    assert_eq!((before.get(), after.get()), (0, 1));
}

/// More tasks than are woken at once, with unordered targets.
#[test]
fn every_task_that_is_due_is_woken_and_no_other() {
    let mark = Watermark::new(0_u64);
    let counts: Vec<_> = (0..500).map(|_| Arc::new(Count::default())).collect();
    let target = |index: usize| 1 + (index as u64 * 7919) % 500;
    let mut futures: Vec<_> = (0..500).map(|index| mark.reached(target(index))).collect();
    for (future, count) in futures.iter_mut().zip(&counts) {
        assert!(poll(future, &Waker::from(Arc::clone(count))).is_pending());
    }
    for number in [1, 100, 101, 433] {
        mark.publish(number);
        for (index, count) in counts.iter().enumerate() {
            assert_eq!(count.get(), usize::from(target(index) <= number), "at {number}, target {}", target(index));
        }
    }
}

/// A waker that is the last owner of another future at the same watermark: dropping it takes the tasks' lock again.
#[test]
fn a_waker_that_owns_a_waiting_future_may_be_dropped() {
    struct Owner(#[expect(dead_code, reason = "owned to be dropped")] Pin<Box<dyn Future<Output = u64> + Send + Sync>>);
    impl Wake for Owner {
        fn wake(self: Arc<Self>) {}
    }
    let mark: &'static Watermark<u64> = Box::leak(Box::new(Watermark::new(0)));
    let owner = || {
        let mut inner = Box::pin(mark.reached(1));
        assert!(inner.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        Waker::from(Arc::new(Owner(inner)))
    };
    let mut outer = mark.reached(2);
    assert!(poll(&mut outer, &owner()).is_pending());
    assert!(poll(&mut outer, &owner()).is_pending(), "replaces the waker");
    drop(outer);
    mark.publish(2);
}

#[test]
fn a_thread_waits_until_its_deadline() {
    let mark = Arc::new(Watermark::new(Lsn(1)));
    let mut parker = Parker::new(Arc::clone(&mark));
    let deadline = Instant::now() + Duration::from_millis(5);
    assert_eq!(parker.wait(Lsn(2), Some(deadline)), Waited::TimedOut);
    assert!(Instant::now() >= deadline);
    assert_eq!(parker.wait(Lsn(1), Some(deadline)), Waited::Reached(Lsn(1)), "reached goes before a deadline");
    parker.unparker().unpark();
    assert_eq!(parker.wait(Lsn(2), Some(deadline)), Waited::Unparked, "an unpark goes before a deadline");
    assert_eq!(parker.wait(Lsn(2), Some(deadline)), Waited::TimedOut, "an unpark counts once");
}

#[test]
fn a_parker_moves_to_another_thread() {
    let mark = Arc::new(Watermark::new(0_u64));
    let mut parker = Parker::new(Arc::clone(&mark));
    assert_eq!(parker.wait(1, Some(Instant::now())), Waited::TimedOut);
    let waiting = thread::spawn(move || parker.wait(1, None));
    mark.publish(1);
    assert_eq!(waiting.join().unwrap(), Waited::Reached(1));
}

#[test]
fn waiters_have_a_limit() {
    let mark = Arc::new(Watermark::new(0_u64));
    let mut waiters = Waiters::new(mark, 2, || {});
    let first = waiters.insert(1, "a").unwrap();
    waiters.insert(2, "b").unwrap();
    assert_eq!(waiters.insert(3, "c"), Err("c"));
    assert_eq!(waiters.cancel(first), Some("a"));
    assert_eq!(waiters.cancel(first), None);
    assert!(waiters.insert(3, "c").is_ok());
    assert_eq!((waiters.len(), waiters.smallest()), (2, Some(2)));
}

#[test]
fn waiters_may_insert_what_is_reached() {
    for target in [0, 1, 5] {
        let mark = Arc::new(Watermark::new(5_u64));
        let wakes = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&wakes);
        let mut waiters = Waiters::new(mark, 2, move || {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        waiters.insert(target, target).unwrap();
        assert_eq!(wakes.load(Ordering::SeqCst), 1, "target {target}");
        assert_eq!((waiters.pop(), waiters.pop()), (Some(target), None));
    }
}

/// Places are reused: a watermark does not grow with the number of past threads.
#[test]
fn a_place_is_used_again() {
    let mark = Arc::new(Watermark::new(0_u64));
    for _ in 0..1000 {
        let _parker = Parker::new(Arc::clone(&mark));
        let _waiters: Waiters<(), u64> = Waiters::new(Arc::clone(&mark), 1, || {});
    }
    assert_eq!(mark.mark().waiting().places.len(), 2);
}

/// Threads, tasks and an event loop follow a number to its end, some giving up on the way: all arrive.
#[test]
fn everybody_arrives() {
    const END: u64 = 20_000;
    let mark = Arc::new(Watermark::new(0_u64));
    let mut threads = Vec::new();
    for step in [1, 3, 1000] {
        let mark = Arc::clone(&mark);
        threads.push(thread::spawn(move || {
            let mut parker = Parker::new(Arc::clone(&mark));
            let mut number = 0;
            while number < END {
                match parker.wait((number + step).min(END), None) {
                    Waited::Reached(reached) => number = reached,
                    other => panic!("{other:?}"),
                }
            }
        }));
    }
    for step in [1, 7] {
        let mark = Arc::clone(&mark);
        threads.push(thread::spawn(move || {
            let mut number = 0;
            while number < END {
                let mut given_up = mark.reached(number + 2);
                let _ = poll(&mut given_up, Waker::noop());
                let waits = mark.reached((number + step).min(END));
                number = block_on(waits);
            }
        }));
    }
    {
        let mark = Arc::clone(&mark);
        threads.push(thread::spawn(move || {
            let (wake, woken) = mpsc::sync_channel(1);
            let mut waiters = Waiters::new(Arc::clone(&mark), 10, move || {
                let _ = wake.try_send(());
            });
            let mut next = 1;
            while waiters.len() < 10 {
                waiters.insert(next, next).unwrap();
                next += 1;
            }
            while !waiters.is_empty() {
                woken.recv().unwrap();
                while let Some(target) = waiters.pop() {
                    assert!(target <= mark.get());
                    if next <= END {
                        waiters.insert(next, next).unwrap();
                        next += 1;
                    }
                }
            }
        }));
    }
    for offset in [0, 1] {
        let mark = Arc::clone(&mark);
        threads.push(thread::spawn(move || {
            for number in 1..=END / 2 {
                mark.publish(2 * number - offset);
            }
        }));
    }
    for thread in threads {
        thread.join().unwrap();
    }
}
