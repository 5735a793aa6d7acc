//! All interleavings of a few threads, by loom. The crate's documentation has the command.

#![allow(clippy::unwrap_used)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

mod dispensing;
mod waiting;

use crate::{Answer, Lsn, Oracle, Wanted, Watermark};

fn at(number: u64) -> Answer {
    Answer { term: number, lsn: Lsn(number), flushed: Lsn(number) }
}

/// Sends one request to the server. The server processes commits and requests sequentially: both change `position` (a plain load would model a server
/// that may answer from an old copy).
fn ask(oracle: &Oracle, position: &AtomicU64) {
    let batch = oracle.begin();
    let answer = at(position.fetch_add(0, Ordering::AcqRel));
    oracle.complete(batch, answer);
}

/// An asker writes, is told of the commit, and asks: the answer is never from before its write.
#[test]
fn an_answer_is_never_older_than_its_ticket() {
    loom::model(|| {
        let oracle = Arc::new(Oracle::new(|| {}));
        let position = Arc::new(AtomicU64::new(1));
        let asker = {
            let (oracle, position) = (Arc::clone(&oracle), Arc::clone(&position));
            thread::spawn(move || {
                position.fetch_add(1, Ordering::AcqRel);
                let ticket = oracle.ticket();
                (ticket, oracle.answer(ticket))
            })
        };
        ask(&oracle, &position);
        ask(&oracle, &position);
        let (ticket, early) = asker.join().unwrap();
        for answer in [early, oracle.answer(ticket)].into_iter().flatten() {
            assert!(answer.lsn >= Lsn(2), "answered with the position before the write");
        }
    });
}

/// At rest, every ticket has an answer or a batch is wanted: one ticket is taken while the batch for another begins.
#[test]
fn no_ticket_is_forgotten() {
    loom::model(|| {
        let oracle = Arc::new(Oracle::new(|| {}));
        let first = oracle.ticket();
        let asker = {
            let oracle = Arc::clone(&oracle);
            thread::spawn(move || oracle.ticket_for_later())
        };
        let batch = oracle.begin();
        oracle.complete(batch, at(1));
        let second = asker.join().unwrap();
        for ticket in [first, second] {
            assert!(oracle.answer(ticket).is_some() || oracle.wanted() > Wanted::No, "nobody will answer {ticket:?}");
        }
    });
}

/// An asker that makes a batch wanted wakes the driver in any of its states.
#[test]
fn whoever_makes_a_batch_wanted_wakes_the_driver() {
    loom::model(|| {
        let wakes = Arc::new(AtomicU64::new(0));
        let oracle = {
            let wakes = Arc::clone(&wakes);
            Arc::new(Oracle::new(move || {
                wakes.fetch_add(1, Ordering::AcqRel);
            }))
        };
        let asker = {
            let oracle = Arc::clone(&oracle);
            thread::spawn(move || {
                oracle.ticket();
            })
        };
        let batch = oracle.begin();
        oracle.complete(batch, at(1));
        asker.join().unwrap();
        assert_eq!(wakes.load(Ordering::Acquire), 1);
    });
}

/// The driver reuses slots while they are read: term and position are always of the same answer.
#[test]
fn an_answer_is_never_torn() {
    loom::model(|| {
        let oracle = Arc::new(Oracle::new(|| {}));
        let ticket = oracle.ticket();
        let batch = oracle.begin();
        oracle.complete(batch, at(1));
        let reader = {
            let oracle = Arc::clone(&oracle);
            thread::spawn(move || oracle.answer(ticket))
        };
        for number in 2..=3 {
            let batch = oracle.begin();
            oracle.complete(batch, at(number));
        }
        if let Some(answer) = reader.join().unwrap() {
            assert_eq!(answer.term, answer.lsn.0, "term and position of two answers");
        }
    });
}

/// Two publishers, one reader: the mark never goes down, and ends at the highest number.
#[test]
fn a_mark_only_rises() {
    loom::model(|| {
        let mark = Arc::new(Watermark::new(Lsn(1)));
        let writers = [2, 3].map(|lsn| {
            let mark = Arc::clone(&mark);
            thread::spawn(move || mark.publish(Lsn(lsn)))
        });
        let (first, second) = (mark.get(), mark.get());
        assert!(first <= second);
        for writer in writers {
            writer.join().unwrap();
        }
        assert_eq!(mark.get(), Lsn(3));
    });
}
