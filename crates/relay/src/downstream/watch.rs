//! `WATCH_FLUSHED`: tells a proxy how far the log is durable, now and whenever that moves.
//!
//! What is told is what the upstream of this moment has been told (`Tail::confirmed`), not just what lies on the disk: what an
//! earlier upstream has sent need not be in this one's history. 0 says that there is none at the moment.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use watermark::Lsn;
use wire::Sqlstate;
use wire::replication::{self, Flushed};

use super::{Connection, Gone};
use crate::log::Log;
use crate::shared::Shared;

/// Time between two messages if nothing moves: so that whoever listens knows that the relay is there.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Runs until the client leaves or the relay stops; there is no other end.
pub(super) async fn run(connection: &mut Connection, shared: &Shared, log: &Arc<Log>) -> Result<(), Gone> {
    let mut out = Vec::new();
    replication::copy_out(&mut out);
    let mut told = None;
    let mut due = Instant::now();
    loop {
        // Before the tail is looked at: what changes after that ends the wait below.
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
            // It may have moved while that was sent.
            continue;
        }
        tokio::select! {
            _ = tail.confirmed.reached(Lsn(at.0 + 1)) => {}
            _ = log.changes().reached(changes + 1) => {}
            () = sleep_until(due) => {}
            heard = connection.read() => {
                heard?;
                match connection.buffered()? {
                    None => {}
                    Some((b'X', _)) => return Err(Gone::Closed),
                    Some((tag, _)) => {
                        let text = format!("a message {:?} while WATCH_FLUSHED runs", char::from(tag));
                        return Err(connection.fatal(Sqlstate::PROTOCOL_VIOLATION, &text).await);
                    }
                }
            }
            () = shared.stopped() => {
                let text = "terminating connection due to administrator command";
                connection.fatal(Sqlstate::ADMIN_SHUTDOWN, text).await;
                return Err(Gone::Stopping);
            }
        }
    }
}
