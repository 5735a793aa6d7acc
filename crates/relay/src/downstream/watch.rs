//! `WATCH_FLUSHED`: tells a proxy the durable position of the log, now and whenever it moves.
//!
//! The position is the one confirmed to the current upstream (`Tail::confirmed`), not the durable one on disk: WAL of an earlier upstream need not be
//! in the history of this one. 0 means that there is no upstream at the moment.
//!
//! The proxy may ask meanwhile for the relay's promise ([`Question`]): a strong read needs to know that its primary was not left behind
//! (docs/decisions/0048). The promise is read after the question, and a fence is answered only after the promise has changed: a proxy that is told of
//! no fence asked before anybody was told of one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use watermark::Lsn;
use wire::Sqlstate;
use wire::replication::{self, Flushed, Promised, Question};

use super::{Connection, Gone};
use crate::log::Log;
use crate::shared::Shared;

/// Time between two messages while nothing moves, so that the proxy knows that the relay is alive.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Runs until the client leaves or the relay stops; there is no other end.
pub(super) async fn run(connection: &mut Connection, shared: &Shared, log: &Arc<Log>) -> Result<(), Gone> {
    let mut out = Vec::new();
    replication::copy_out(&mut out);
    let mut told = None;
    let mut due = Instant::now();
    loop {
        // Also questions that came together with the command.
        answer_questions(connection, shared, log).await?;
        // Before the tail is read: later changes end the wait below.
        let changes = log.changes().get();
        let tail = log.tail();
        let at = tail.confirmed.get();
        let now = Flushed {
            system: log.identity().system_id,
            term: shared.promise.term(),
            timeline: tail.timeline.0,
            at: at.0,
        };
        if told != Some(now) || Instant::now() >= due {
            now.write(&mut out);
            connection.send(&out).await?;
            out.clear();
            told = Some(now);
            due = Instant::now() + HEARTBEAT;
            // The position may have moved during the send.
            continue;
        }
        tokio::select! {
            _ = tail.confirmed.reached(Lsn(at.0 + 1)) => {}
            _ = log.changes().reached(changes + 1) => {}
            () = sleep_until(due) => {}
            heard = connection.read() => heard?,
            () = shared.stopped() => {
                let text = "terminating connection due to administrator command";
                connection.fatal(Sqlstate::ADMIN_SHUTDOWN, text).await;
                return Err(Gone::Stopping);
            }
        }
    }
}

/// Answers the proxy's questions so far: of several only the last, whose answer serves all.
async fn answer_questions(connection: &mut Connection, shared: &Shared, log: &Log) -> Result<(), Gone> {
    let mut last = None;
    while let Some((tag, payload)) = connection.buffered()? {
        match (tag, Question::read(&payload)) {
            (b'X', _) => return Err(Gone::Closed),
            (b'd', Some(question)) => last = Some(question),
            (tag, _) => {
                let text = format!("a message {:?} while WATCH_FLUSHED runs", char::from(tag));
                return Err(connection.fatal(Sqlstate::PROTOCOL_VIOLATION, &text).await);
            }
        }
    }
    let Some(Question { number }) = last else { return Ok(()) };
    let remembers = shared.promise.exists();
    let promise = shared.promise.now();
    let promised = Promised {
        number,
        system: log.identity().system_id,
        term: promise.term(),
        fenced: if remembers { promise.fenced_up_to() } else { u32::MAX },
        timeline: log.tail().timeline.0,
    };
    let mut out = Vec::new();
    promised.write(&mut out);
    connection.send(&out).await
}
