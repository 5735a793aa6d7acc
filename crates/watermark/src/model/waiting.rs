//! Waiting: in every interleaving, a waiter for a published number is woken. If a thread sleeps forever, loom reports a deadlock.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use loom::thread;

use crate::sync::Sleeper;
use crate::{Parker, Waited, Waiters, Watermark};

fn block_on<F: Future>(future: F) -> F::Output {
    let sleeper = Sleeper::here();
    let waker = Waker::from(Arc::new(sleeper.clone()));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        sleeper.sleep(None);
    }
}

/// Polls once.
fn begin<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    let waker = Waker::noop();
    std::pin::Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// Checks a model of three threads that all sleep and wake: with three preemptions it would take a minute.
fn wide(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(model);
}

fn zero() -> Arc<Watermark<u64>> {
    Arc::new(Watermark::new(0))
}

fn publisher(mark: &Arc<Watermark<u64>>, number: u64) -> thread::JoinHandle<()> {
    let mark = Arc::clone(mark);
    thread::spawn(move || {
        mark.publish(number);
    })
}

/// Both orders of the number and the thread's first wait; then a second wait by the same thread.
#[test]
fn a_parked_thread_is_woken() {
    loom::model(|| {
        let mark = zero();
        let publisher = {
            let mark = Arc::clone(&mark);
            thread::spawn(move || {
                mark.publish(1);
                mark.publish(2);
            })
        };
        let mut parker = Parker::new(Arc::clone(&mark));
        assert!(matches!(parker.wait(1, None), Waited::Reached(1 | 2)));
        assert_eq!(parker.wait(2, None), Waited::Reached(2));
        publisher.join().unwrap();
    });
}

/// A publisher of a lower number must not consume the alarm meant for a publisher of a sufficient one.
#[test]
fn two_publish_and_a_thread_is_woken() {
    loom::model(|| {
        let mark = zero();
        let publishers = [publisher(&mark, 1), publisher(&mark, 2)];
        let mut parker = Parker::new(Arc::clone(&mark));
        assert!(matches!(parker.wait(1, None), Waited::Reached(_)));
        assert_eq!(parker.wait(2, None), Waited::Reached(2));
        publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
    });
}

#[test]
fn two_threads_are_woken() {
    wide(|| {
        let mark = zero();
        let other = {
            let mark = Arc::clone(&mark);
            thread::spawn(move || Parker::new(mark).wait(2, None))
        };
        let publisher = publisher(&mark, 2);
        assert_eq!(Parker::new(Arc::clone(&mark)).wait(1, None), Waited::Reached(2));
        assert_eq!(other.join().unwrap(), Waited::Reached(2));
        publisher.join().unwrap();
    });
}

#[test]
fn an_unpark_is_not_lost() {
    loom::model(|| {
        let mark = zero();
        let mut parker = Parker::new(Arc::clone(&mark));
        let unparker = parker.unparker();
        let other = thread::spawn(move || unparker.unpark());
        assert_eq!(parker.wait(1, None), Waited::Unparked);
        other.join().unwrap();
    });
}

/// A publish and an unpark at once: the thread sees both.
#[test]
fn neither_of_unpark_and_number_is_lost() {
    loom::model(|| {
        let mark = zero();
        let mut parker = Parker::new(Arc::clone(&mark));
        let unparker = parker.unparker();
        let publisher = publisher(&mark, 1);
        let other = thread::spawn(move || unparker.unpark());
        if parker.wait(1, None) == Waited::Unparked {
            assert_eq!(parker.wait(1, None), Waited::Reached(1));
        } else {
            assert_eq!(parker.wait(2, None), Waited::Unparked);
        }
        publisher.join().unwrap();
        other.join().unwrap();
    });
}

/// A thread leaves, and another reuses its place, while a publisher is about to wake the first.
#[test]
fn a_place_that_is_used_again_wakes_its_new_owner() {
    loom::model(|| {
        let mark = zero();
        let publishers = [publisher(&mark, 1), publisher(&mark, 2)];
        Parker::new(Arc::clone(&mark)).wait(1, None);
        assert_eq!(Parker::new(Arc::clone(&mark)).wait(2, None), Waited::Reached(2));
        publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
    });
}

/// Creates waiters that count the calls to `wake`.
fn loop_of(mark: &Arc<Watermark<u64>>) -> (Waiters<u64, u64>, Arc<AtomicUsize>) {
    let wakes = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&wakes);
    let waiters = Waiters::new(Arc::clone(mark), 8, move || {
        counter.fetch_add(1, Ordering::AcqRel);
    });
    (waiters, wakes)
}

/// Checks that nothing is due while the event loop sleeps, after `pop` has returned `None` and without a wake-up.
fn assert_would_wake(mark: &Watermark<u64>, waiters: &Waiters<u64, u64>, wakes: &AtomicUsize, seen: usize) {
    let due = waiters.smallest().is_some_and(|target| target <= mark.get());
    assert!(!due || wakes.load(Ordering::Acquire) > seen, "asleep, though a target has been reached");
}

#[test]
fn a_loop_is_woken_for_what_it_inserts() {
    loom::model(|| {
        let mark = zero();
        let (mut waiters, wakes) = loop_of(&mark);
        let publisher = publisher(&mark, 2);
        waiters.insert(2, 2).unwrap();
        waiters.insert(1, 1).unwrap();
        publisher.join().unwrap();
        assert_would_wake(&mark, &waiters, &wakes, 0);
        assert_eq!((waiters.pop(), waiters.pop(), waiters.pop()), (Some(1), Some(2), None));
    });
}

/// The loop empties its heap and arms for the rest while two threads publish.
#[test]
fn a_loop_is_woken_for_what_it_has_left() {
    loom::model(|| {
        let mark = zero();
        let (mut waiters, wakes) = loop_of(&mark);
        waiters.insert(1, 1).unwrap();
        waiters.insert(2, 2).unwrap();
        let publishers = [publisher(&mark, 1), publisher(&mark, 2)];
        let seen = wakes.load(Ordering::Acquire);
        while waiters.pop().is_some() {}
        publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
        assert_would_wake(&mark, &waiters, &wakes, seen);
        while waiters.pop().is_some() {}
        assert!(waiters.is_empty());
    });
}

/// The lowest target is cancelled while its number is published, and another one is waited for.
#[test]
fn a_loop_is_woken_after_a_cancel() {
    loom::model(|| {
        let mark = zero();
        let (mut waiters, wakes) = loop_of(&mark);
        let lowest = waiters.insert(1, 1).unwrap();
        let publishers = [publisher(&mark, 1), publisher(&mark, 3)];
        waiters.insert(3, 3).unwrap();
        waiters.cancel(lowest);
        let seen = wakes.load(Ordering::Acquire);
        while waiters.pop().is_some() {}
        publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
        assert_would_wake(&mark, &waiters, &wakes, seen);
    });
}

/// One publish causes one call for one arming: a loop is never woken for a number that it does not wait for, nor twice.
#[test]
fn a_loop_is_woken_once() {
    loom::model(|| {
        let mark = zero();
        let (mut waiters, wakes) = loop_of(&mark);
        waiters.insert(2, 2).unwrap();
        mark.publish(1);
        assert_eq!(wakes.load(Ordering::Acquire), 0, "woken for a number that nobody waits for");
        let publishers = [publisher(&mark, 2), publisher(&mark, 3)];
        publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
        assert_eq!(wakes.load(Ordering::Acquire), 1);
    });
}

#[test]
fn a_task_is_woken() {
    loom::model(|| {
        let mark = zero();
        let publishers = [publisher(&mark, 1), publisher(&mark, 2)];
        block_on(mark.reached(1));
        assert_eq!(block_on(mark.reached(2)), 2);
        publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
    });
}

/// Two tasks share the heap: its holder does the work of a publisher that cannot get it.
#[test]
fn two_tasks_are_woken() {
    wide(|| {
        let mark = zero();
        let other = {
            let mark = Arc::clone(&mark);
            thread::spawn(move || block_on(mark.reached(2)))
        };
        let publisher = publisher(&mark, 2);
        assert_eq!(block_on(mark.reached(1)), 2);
        assert_eq!(other.join().unwrap(), 2);
        publisher.join().unwrap();
    });
}

/// A task with a higher target, which stays asleep, holds the heap while another task's number is published.
#[test]
fn a_task_that_enters_does_not_hide_another() {
    wide(|| {
        let mark = zero();
        let other = {
            let mark = Arc::clone(&mark);
            thread::spawn(move || {
                let mut stays = mark.reached(2);
                let _ = begin(&mut stays);
                // Its drop would wake the other task.
                std::mem::forget(stays);
            })
        };
        let publisher = publisher(&mark, 1);
        assert_eq!(block_on(mark.reached(1)), 1);
        other.join().unwrap();
        publisher.join().unwrap();
    });
}

/// More tasks are due than are woken at once, and the first of them does not help with the rest.
#[test]
fn who_comes_behind_a_batch_is_woken() {
    loom::model(|| {
        let mark = zero();
        let mut first = mark.reached(1);
        let _ = begin(&mut first);
        let publisher = publisher(&mark, 2);
        assert_eq!(block_on(mark.reached(2)), 2);
        publisher.join().unwrap();
    });
}

/// A time-out drops a future (which holds the heap) while another task's number is published.
#[test]
fn a_dropped_task_does_not_take_another_with_it() {
    wide(|| {
        let mark = zero();
        let other = {
            let mark = Arc::clone(&mark);
            thread::spawn(move || {
                let mut dropped = mark.reached(1);
                let _ = begin(&mut dropped);
            })
        };
        let publisher = publisher(&mark, 1);
        assert_eq!(block_on(mark.reached(1)), 1);
        other.join().unwrap();
        publisher.join().unwrap();
    });
}

/// A task and a thread at one watermark; the task's own waker counts, so that only the publisher can help.
#[test]
fn tasks_and_threads_do_not_hide_each_other() {
    wide(|| {
        let mark = zero();
        let thread = {
            let mark = Arc::clone(&mark);
            thread::spawn(move || Parker::new(mark).wait(1, None))
        };
        let publisher = publisher(&mark, 1);
        assert_eq!(block_on(mark.reached(1)), 1);
        assert_eq!(thread.join().unwrap(), Waited::Reached(1));
        publisher.join().unwrap();
    });
}

/// The mark goes down and up again while a thread waits: the thread sees the final number.
#[test]
fn a_reset_forgets_nobody() {
    loom::model(|| {
        let mark = Arc::new(Watermark::new(5_u64));
        let other = {
            let mark = Arc::clone(&mark);
            thread::spawn(move || {
                mark.reset(1);
                mark.publish(7);
            })
        };
        assert_eq!(Parker::new(Arc::clone(&mark)).wait(6, None), Waited::Reached(7));
        other.join().unwrap();
    });
}

/// A waiter that is told of a number sees all writes made before the publish.
#[test]
fn what_was_written_before_is_seen() {
    loom::model(|| {
        let mark = zero();
        let written = Arc::new(AtomicU64::new(0));
        let publisher = {
            let (mark, written) = (Arc::clone(&mark), Arc::clone(&written));
            thread::spawn(move || {
                written.store(1, Ordering::Relaxed);
                mark.publish(1);
            })
        };
        block_on(mark.reached(1));
        assert_eq!(written.load(Ordering::Relaxed), 1);
        publisher.join().unwrap();
    });
}
