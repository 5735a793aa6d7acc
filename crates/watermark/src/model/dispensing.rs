//! Uniqueness of numbers under every interleaving.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use crate::{Dispenser, Place, Range};

/// Sends one request to a counting source, which returns as many numbers as requested.
fn draw(dispenser: &Dispenser, source: &AtomicU64) {
    if let Some(draw) = dispenser.begin() {
        let first = source.fetch_add(u64::from(draw.takers()), Ordering::AcqRel);
        dispenser.complete(draw, Range { first, step: 1, note: first });
    }
}

fn number(dispenser: &Dispenser, place: Place) -> Option<u64> {
    let drawn = dispenser.number(place)?.ok()?;
    assert!(drawn.number >= drawn.note, "first number and note of two batches");
    Some(drawn.number)
}

/// Two takers while batches begin: each finally gets a number, the two differ, and a number is never older than its request.
#[test]
fn each_number_is_somebodys_alone_and_from_after_the_question() {
    loom::model(|| {
        let dispenser = Arc::new(Dispenser::new(|| {}));
        let source = Arc::new(AtomicU64::new(1));
        let taker = {
            let (dispenser, source) = (Arc::clone(&dispenser), Arc::clone(&source));
            thread::spawn(move || {
                // An atomic read-modify-write never returns an old value.
                let before = source.fetch_add(0, Ordering::AcqRel);
                let place = dispenser.take().unwrap();
                (before, place)
            })
        };
        let own = dispenser.take().unwrap();
        draw(&dispenser, &source);
        draw(&dispenser, &source);
        let (before, others) = taker.join().unwrap();
        draw(&dispenser, &source);
        let (own, others) = (number(&dispenser, own).unwrap(), number(&dispenser, others).unwrap());
        assert_ne!(own, others, "one number for two");
        // A taker that the driver did not count would get a number that the source gives to the next taker.
        let given = source.fetch_add(0, Ordering::AcqRel);
        assert!(own < given && others < given, "{own} and {others}, of which the source gave those below {given}");
        assert!(others >= before, "{others} was given before {before} was asked for");
    });
}

/// The first taker of a batch wakes the driver in any of its states: no taker waits for a sleeping driver.
#[test]
fn whoever_joins_first_wakes_the_driver() {
    loom::model(|| {
        let wakes = Arc::new(AtomicU64::new(0));
        let dispenser = {
            let wakes = Arc::clone(&wakes);
            Arc::new(Dispenser::new(move || {
                wakes.fetch_add(1, Ordering::AcqRel);
            }))
        };
        let taker = {
            let dispenser = Arc::clone(&dispenser);
            thread::spawn(move || dispenser.take().is_some())
        };
        let source = AtomicU64::new(1);
        draw(&dispenser, &source);
        taker.join().unwrap();
        assert_eq!(wakes.load(Ordering::Acquire), 1);
        draw(&dispenser, &source);
        assert_eq!(dispenser.waiting(), 0);
    });
}

/// The driver starts to wait for several takers while they join: either a taker wakes the driver, or the driver sees them all.
#[test]
fn whoever_makes_a_batch_large_enough_wakes_the_driver_or_is_seen() {
    for enough in 1..=2 {
        loom::model(move || {
            let wakes = Arc::new(AtomicU64::new(0));
            let dispenser = {
                let wakes = Arc::clone(&wakes);
                Arc::new(Dispenser::new(move || {
                    wakes.fetch_add(1, Ordering::AcqRel);
                }))
            };
            // The earlier threshold must not matter.
            assert!(!dispenser.wake_at(3 - enough));
            let takers = [(); 2].map(|()| {
                let dispenser = Arc::clone(&dispenser);
                thread::spawn(move || dispenser.take().is_some())
            });
            let before = wakes.load(Ordering::Acquire);
            let seen = dispenser.wake_at(enough);
            for taker in takers {
                assert!(taker.join().unwrap());
            }
            let woken = wakes.load(Ordering::Acquire) > before;
            assert!(seen || woken, "{enough} were waited for, two came, and the driver sleeps");
        });
    }
}

/// The driver reuses a slot while it is read: a number is of the taker's own batch, or there is none.
#[test]
fn a_place_that_lapses_while_it_is_read_gives_no_number_of_another_batch() {
    loom::model(|| {
        let dispenser = Arc::new(Dispenser::new(|| {}));
        let source = AtomicU64::new(1);
        let place = dispenser.take().unwrap();
        draw(&dispenser, &source);
        let reader = {
            let dispenser = Arc::clone(&dispenser);
            thread::spawn(move || number(&dispenser, place))
        };
        for _ in 0..2 {
            let _ = dispenser.take();
            draw(&dispenser, &source);
        }
        assert!(matches!(reader.join().unwrap(), None | Some(1)), "another batch's number");
    });
}
