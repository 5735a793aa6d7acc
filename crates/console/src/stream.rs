//! A viewer's stream of server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use hyper::body::Frame;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;

use crate::board::{Board, Cursor};

/// Lifetime of a stream, after which the browser reconnects: so no viewer keeps a permission for ever.
const LIFETIME: Duration = Duration::from_secs(3600);
/// Interval of the keep-alive comments by which both sides detect that the other is gone.
const SILENCE: Duration = Duration::from_secs(10);

/// A function that returns true if the viewer may still view; called before each event.
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

/// Returns the events of a viewer: one with the whole state, then one for each look that the viewer keeps up with.
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
                    // The returned value holds a lock.
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
