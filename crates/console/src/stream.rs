//! One viewer's stream of server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use hyper::body::Frame;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;

use crate::board::{Board, Cursor};

/// A stream ends at this age and the browser comes again: so nobody stays for ever on what was once allowed.
const LIFETIME: Duration = Duration::from_secs(3600);
/// What is said when there is nothing to say, so that both sides notice when the other is gone.
const SILENCE: Duration = Duration::from_secs(10);

/// Whether the viewer may still look; asked before each event.
pub(crate) type Allowed = Box<dyn Fn() -> bool + Send + Sync>;

struct Viewer {
    boards: watch::Receiver<Arc<Board>>,
    stopping: watch::Receiver<bool>,
    allowed: Allowed,
    cursor: Cursor,
    first: bool,
    end: Instant,
    _place: OwnedSemaphorePermit,
}

/// The events of a viewer: one with all there is, then one for each look that it keeps up with.
pub(crate) fn events(
    boards: watch::Receiver<Arc<Board>>,
    stopping: watch::Receiver<bool>,
    allowed: Allowed,
    place: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
    let end = Instant::now() + LIFETIME;
    let viewer = Viewer { boards, stopping, allowed, cursor: Cursor::default(), first: true, end, _place: place };
    futures_util::stream::unfold(viewer, |mut viewer| async move {
        let text = viewer.next().await?;
        Some((Ok(Frame::data(Bytes::from(text))), viewer))
    })
}

impl Viewer {
    async fn next(&mut self) -> Option<String> {
        let retry = if std::mem::take(&mut self.first) {
            "retry: 1500\n"
        } else {
            tokio::select! {
                changed = self.boards.changed() => changed.ok()?,
                stopped = self.stopping.wait_for(|stop| *stop) => {
                    // What it returns holds a lock.
                    drop(stopped);
                    return None;
                }
                () = tokio::time::sleep(SILENCE) => return (self.allowed)().then(|| ": \n\n".to_owned()),
                () = tokio::time::sleep_until(self.end) => return None,
            }
            ""
        };
        if !(self.allowed)() {
            return None;
        }
        let board = Arc::clone(&self.boards.borrow_and_update());
        Some(format!("{retry}data: {}\n\n", board.news(&mut self.cursor)))
    }
}
