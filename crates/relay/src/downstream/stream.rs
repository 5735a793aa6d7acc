//! One downstream's stream: sends WAL and receives reports, on one socket and in one task.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::Interest;
use tokio::time::Instant;
use watermark::Lsn;
use wire::message;
use wire::replication::{self, Reply, TimelineEnd, WAL_HEADER};

use super::command::Refusal;
use super::transport::Transport;
use super::{Connection, Gone};
use crate::log::{Chunk, Log, Next, Reader, Serve, Tail, Timeline};
use crate::shared::{Feedback, Progress, Shared};
use crate::upstream::now_micros;

/// Limit of the WAL in one message, in bytes: PostgreSQL's own.
const CHUNK: usize = 128 << 10;
/// Messages sent before the socket is read for reports, and other tasks get their turn.
const BURST: usize = 16;
/// Interval of messages to a downstream when there is nothing to send: below any sensible `wal_receiver_timeout`.
const KEEPALIVE: Duration = Duration::from_secs(3);

/// A stream that may begin.
pub(super) struct Stream {
    shared: Arc<Shared>,
    log: Arc<Log>,
    reader: Reader,
    serve: Serve,
    progress: Arc<Progress>,
    /// The reader's result before the answer to the command was sent: a timeline may end where streaming starts.
    first: Option<Next>,
    /// Control messages, sent before anything else, unless a message is partly sent.
    control: Vec<u8>,
    sending: Option<Sending>,
    /// Times of the last message from the client, and of the last one to it.
    heard: Instant,
    sent: Instant,
    /// True if a reply was requested since the last message from the client.
    asked: bool,
    /// True once the client's CopyDone has arrived.
    client_done: bool,
    /// True once the relay's CopyDone is under way: nothing of the copy may follow it.
    done: bool,
}

/// A WAL message that is being sent.
struct Sending {
    header: [u8; WAL_HEADER],
    /// Bytes of header and WAL sent so far.
    done: usize,
    chunk: Chunk,
}

/// State of sending.
enum Push {
    /// The socket takes no more.
    Blocked,
    /// The downstream has the available WAL.
    Idle,
    /// More WAL is available, but other tasks come first.
    More,
    Ended(TimelineEnd),
}

impl Stream {
    /// Checks that streaming can start at the position, and acquires the slot.
    pub(super) fn begin(
        connection: &Connection,
        shared: &Arc<Shared>,
        log: &Arc<Log>,
        slot: Option<String>,
        at: Lsn,
        timeline: Option<Timeline>,
    ) -> Result<Stream, Refusal> {
        if let Some(slot) = &slot {
            shared.slots.acquire(slot, connection.id)?;
        }
        let timeline = timeline.unwrap_or_else(|| log.tail().timeline);
        let mut reader = log.reader(timeline, at)?;
        let serve = shared.settings().serve;
        let first = Some(reader.next(serve, CHUNK)?);
        let progress = Arc::new(Progress {
            id: connection.id,
            application_name: connection.application_name.clone(),
            peer: connection.peer.clone(),
            slot,
            timeline: AtomicU32::new(timeline.0),
            sent: AtomicU64::new(at.0),
            written: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            started: at.0,
            feedback: Mutex::default(),
        });
        let now = Instant::now();
        Ok(Stream {
            shared: Arc::clone(shared),
            log: Arc::clone(log),
            reader,
            serve,
            progress,
            first,
            control: Vec::new(),
            sending: None,
            heard: now,
            sent: now,
            asked: false,
            client_done: false,
            done: false,
        })
    }

    /// Streams until the timeline ends, the client ends the copy, or the connection is lost. Only `ReadyForQuery` remains to be sent to the client.
    pub(super) async fn run(mut self, connection: &mut Connection) -> Result<(), Gone> {
        if let Some(Next::EndOfTimeline { next, at }) = &self.first {
            let end = TimelineEnd { next: next.0, at: at.0 };
            return connection.send(&closing(Some(end))).await;
        }
        replication::copy_both(&mut self.control);
        self.shared.enter(Arc::clone(&self.progress));
        let result = self.copy(connection).await;
        self.shared.leave(self.progress.id);
        let end = result?;
        let mut out = std::mem::take(&mut self.control);
        out.extend(closing(end));
        connection.send(&out).await
    }

    /// Runs the copy itself, including both sides' CopyDone. None: the client ended it.
    async fn copy(&mut self, connection: &mut Connection) -> Result<Option<TimelineEnd>, Gone> {
        let patience = self.shared.settings().downstream_timeout;
        let log = Arc::clone(&self.log);
        let mut ended = None;
        loop {
            // Both are read before the log: later changes end the wait below.
            let (changes, tail) = (log.changes().get(), log.tail());
            self.take_reports(connection)?;
            let push = match ended {
                None => self.push(&mut connection.stream),
                Some(end) => self.push_control(&mut connection.stream).map(|blocked| match blocked {
                    true => Push::Blocked,
                    false => Push::Ended(end),
                }),
            };
            let push = match push {
                Ok(push) => push,
                Err(Failed::Io(error)) => return Err(error.into()),
                Err(Failed::Refused(refusal)) => return Err(self.refuse(connection, &refusal).await),
            };
            let mut wait = Wait { writable: false, log: false };
            match push {
                Push::More => {
                    tokio::task::yield_now().await;
                    continue;
                }
                Push::Blocked => wait.writable = true,
                Push::Ended(end) if ended.is_none() => {
                    ended = Some(end);
                    self.done = true;
                    message::empty(&mut self.control, b'c');
                    continue;
                }
                Push::Ended(_) if self.client_done => return Ok(ended),
                Push::Ended(_) => {}
                Push::Idle if self.client_done => {
                    message::empty(&mut self.control, b'c');
                    return Ok(None);
                }
                Push::Idle => wait.log = true,
            }
            let due = self.next_due(patience);
            tokio::select! {
                () = self.moved(&log, &tail, changes), if wait.log => {}
                ready = connection.stream.ready(wait.interest()) => drop(ready?),
                () = tokio::time::sleep_until(due) => self.on_time(patience)?,
                () = self.shared.stopped() => return Err(self.farewell(connection).await),
            }
        }
    }

    /// Waits until the log has grown, or another log is in use.
    async fn moved(&self, log: &Log, tail: &Tail, changes: u64) {
        let mark = match self.serve {
            Serve::Flushed => &tail.flushed,
            Serve::Written => &tail.written,
        };
        let next = Lsn(self.reader.position().0 + 1);
        tokio::select! {
            _ = mark.reached(next), if self.reader.awaits(tail) => {}
            _ = log.changes().reached(changes + 1) => {}
        }
    }

    fn next_due(&self, patience: Duration) -> Instant {
        let silence = if self.asked { patience } else { patience / 2 };
        (self.heard + silence).min(self.sent + KEEPALIVE)
    }

    /// Sends a keepalive, or ends a dead connection.
    fn on_time(&mut self, patience: Duration) -> Result<(), Gone> {
        let now = Instant::now();
        if now >= self.heard + patience {
            return Err(Gone::TooSlow("an answer of the downstream"));
        }
        let ask = !self.asked && now >= self.heard + patience / 2;
        // An unsent keepalive says it already; more would pile up.
        if ask || (now >= self.sent + KEEPALIVE && self.control.is_empty()) {
            self.keepalive(ask);
            self.asked |= ask;
        }
        self.sent = now;
        Ok(())
    }

    fn keepalive(&mut self, reply: bool) {
        if self.done {
            return;
        }
        replication::keepalive(&mut self.control, self.reader.position().0, now_micros(), reply);
    }

    /// Reads the received messages, without waiting.
    fn take_reports(&mut self, connection: &mut Connection) -> Result<(), Gone> {
        // Bounded: a client that reports without end still gets WAL in between.
        for _ in 0..BURST {
            while let Some((tag, payload)) = connection.buffered()? {
                self.heard = Instant::now();
                self.asked = false;
                match tag {
                    b'd' => match replication::read_reply(&payload) {
                        Some(reply) => self.take(reply),
                        None => {
                            let kind = payload.first().copied().map_or('?', char::from);
                            return Err(Gone::Refused(format!("a replication message of unexpected kind {kind:?}")));
                        }
                    },
                    b'c' => self.client_done = true,
                    b'X' => return Err(Gone::Closed),
                    tag => return Err(Gone::Refused(format!("a message {:?} during streaming", char::from(tag)))),
                }
            }
            connection.input.reserve(4096);
            match connection.stream.try_read(&mut connection.input) {
                Ok(0) => return Err(Gone::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn take(&mut self, reply: Reply) {
        match reply {
            Reply::Status { write, flush, apply, reply } => {
                self.progress.written.store(write, Ordering::Relaxed);
                self.progress.flushed.store(flush, Ordering::Relaxed);
                self.progress.applied.store(apply, Ordering::Relaxed);
                if let Some(slot) = &self.progress.slot {
                    self.shared.slots.advance(slot, Lsn(flush), self.progress.timeline.load(Ordering::Relaxed));
                }
                // A client that requests replies without end gets one per socketful.
                if reply && self.control.is_empty() {
                    self.keepalive(false);
                }
            }
            Reply::Feedback { xmin, catalog_xmin } => {
                let feedback = Feedback { xmin, catalog_xmin };
                match &self.progress.slot {
                    // The slot's feedback outlives the stream, and this process.
                    Some(slot) => {
                        if self.shared.slots.feed_back(slot, feedback) {
                            let shared = Arc::clone(&self.shared);
                            // A failed write is retried with the next save, and reported then.
                            tokio::task::spawn_blocking(move || shared.slots.save());
                        }
                    }
                    None => *self.progress.feedback.lock().unwrap_or_else(PoisonError::into_inner) = feedback,
                }
            }
        }
    }

    /// Sends as much as the socket takes, up to a burst.
    fn push(&mut self, socket: &mut Transport) -> Result<Push, Failed> {
        for _ in 0..BURST {
            if self.push_control(socket)? {
                return Ok(Push::Blocked);
            }
            if self.client_done {
                return Ok(Push::Idle);
            }
            let next = match self.first.take() {
                Some(next) => next,
                None => self.reader.next(self.serve, CHUNK).map_err(|error| Failed::Refused(error.into()))?,
            };
            match next {
                Next::Chunk(chunk) => {
                    let header = replication::wal_header(chunk.at.0, chunk.end_of_wal.0, now_micros(), chunk.len);
                    self.sending = Some(Sending { header, done: 0, chunk });
                }
                Next::EndOfTimeline { next, at } => {
                    return Ok(Push::Ended(TimelineEnd { next: next.0, at: at.0 }));
                }
                Next::CaughtUp => {
                    return match self.log.failure() {
                        Some(failure) => Err(Failed::Io(io::Error::other(failure.to_string()))),
                        None => Ok(Push::Idle),
                    };
                }
            }
        }
        Ok(if self.push_control(socket)? { Push::Blocked } else { Push::More })
    }

    /// Sends the current message and the control messages; returns true if the socket takes no more.
    fn push_control(&mut self, socket: &mut Transport) -> Result<bool, Failed> {
        while let Some(sending) = &mut self.sending {
            match sending.push(socket) {
                Ok(true) => {
                    let end = sending.chunk.at.0 + sending.chunk.len as u64;
                    self.progress.sent.store(end, Ordering::Relaxed);
                    self.shared.metrics.sent_bytes.fetch_add(sending.chunk.len as u64, Ordering::Relaxed);
                    self.sending = None;
                    self.sent = Instant::now();
                }
                Ok(false) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(Failed::Io(error)),
            }
        }
        while !self.control.is_empty() {
            match socket.try_write(&self.control) {
                Ok(n) => {
                    self.control.drain(..n);
                    self.sent = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(Failed::Io(error)),
            }
        }
        match socket.flush() {
            Ok(()) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(Failed::Io(error)),
        }
    }

    /// Sends an error in the middle of the copy, which ends the connection.
    async fn refuse(&mut self, connection: &mut Connection, refusal: &Refusal) -> Gone {
        let mut out = std::mem::take(&mut self.control);
        refusal.write(&mut out);
        match connection.send(&out).await {
            Ok(()) => {
                connection.linger().await;
                Gone::Refused(refusal.text.clone())
            }
            Err(gone) => gone,
        }
    }

    /// Ends the stream as a server that shuts down: the client learns that no more WAL comes, and that nothing broke.
    async fn farewell(&mut self, connection: &mut Connection) -> Gone {
        if self.sending.is_none() {
            self.keepalive(true);
            let mut out = std::mem::take(&mut self.control);
            message::complete(&mut out, "COPY 0");
            let _ = tokio::time::timeout(Duration::from_secs(1), connection.send(&out)).await;
            connection.linger().await;
        }
        Gone::Stopping
    }
}

/// Reason for the end of sending.
enum Failed {
    Io(io::Error),
    Refused(Refusal),
}

struct Wait {
    writable: bool,
    log: bool,
}

impl Wait {
    fn interest(&self) -> Interest {
        if self.writable { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE }
    }
}

impl Sending {
    /// Sends with one system call; returns true when the whole message is sent.
    fn push(&mut self, socket: &mut Transport) -> io::Result<bool> {
        if self.done < WAL_HEADER {
            // MORE: the header goes out in one packet with the WAL that follows.
            let rest = &self.header[self.done..];
            self.done += socket.try_write_more(rest)?;
            return Ok(false);
        }
        let done = self.done - WAL_HEADER;
        let offset = self.chunk.offset + done as u64;
        let sent = socket.try_send_file(&self.chunk.file, offset, self.chunk.len - done)?;
        if sent == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a segment is shorter than it was"));
        }
        self.done += sent;
        Ok(self.done == WAL_HEADER + self.chunk.len)
    }
}

/// Returns the messages after a copy; the caller sends `ReadyForQuery`.
fn closing(end: Option<TimelineEnd>) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some(end) = end {
        replication::timeline_end(&mut out, end);
    }
    // Twice: clients expect one that ends the copy and one that ends the command.
    message::complete(&mut out, "START_STREAMING");
    message::complete(&mut out, "START_REPLICATION");
    out
}
