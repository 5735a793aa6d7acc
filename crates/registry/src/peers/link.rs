//! A persistent connection to another node: messages of this node, and the answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::Contact;
use super::ended::{Ended, HANDSHAKE};
use super::secure::{Binding, Reading, Way, Writing};
use super::wire::{self, Direction, Handshake, Introduced, Message, PeerError, Silence};
use crate::registry::Inner;
use crate::store::{Interner, NodeRow};

/// Maximum number of queued messages; a message beyond it is dropped, since the store has its content.
const SAYINGS: usize = 256;
/// Maximum number of unanswered questions.
const QUESTIONS: usize = 1024;
/// Time limit of writing a message.
const WRITE: Duration = Duration::from_secs(5);
/// Maximum interval between two messages of each side.
const NEWS: Duration = Duration::from_secs(1);
/// Silence after which a peer is gone.
pub(super) const SILENCE: Duration = Duration::from_secs(5);
/// First pause between two attempts to connect, and the longest.
const PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// A link to a peer. Dropping it ends the connection.
pub(super) struct Link {
    pub(super) row: NodeRow,
    pub(super) contact: Arc<Contact>,
    sayings: mpsc::Sender<Saying>,
    task: AbortHandle,
}

type Answers = oneshot::Sender<Vec<Option<Silence>>>;

struct Saying {
    body: Bytes,
    question: Option<(u64, Answers)>,
}

impl Link {
    /// Queues `body`. Returns true if there was room.
    pub(super) fn say(&self, body: Bytes) -> bool {
        self.sayings.try_send(Saying { body, question: None }).is_ok()
    }

    /// Queues a question; returns `None` if the peer cannot be asked now.
    pub(super) fn ask(&self, number: u64, body: Bytes) -> Option<oneshot::Receiver<Vec<Option<Silence>>>> {
        let (answer, answered) = oneshot::channel();
        let saying = Saying { body, question: Some((number, answer)) };
        (self.contact.is_connected() && self.sayings.try_send(saying).is_ok()).then_some(answered)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts a link to `row`. `now`: milliseconds since the node's start.
pub(super) fn start(inner: &Arc<Inner>, row: NodeRow, now: u64) -> Link {
    let contact = Arc::new(Contact::default());
    contact.heard.store(now, Ordering::Relaxed);
    let (sayings, queue) = mpsc::channel(SAYINGS);
    let task = tokio::spawn(run(Arc::clone(inner), row.clone(), queue, Arc::clone(&contact))).abort_handle();
    Link { row, contact, sayings, task }
}

async fn run(inner: Arc<Inner>, row: NodeRow, mut queue: mpsc::Receiver<Saying>, contact: Arc<Contact>) {
    let mut pause = PAUSE;
    let mut last = String::new();
    loop {
        let ended = match connect(&inner, &row).await {
            Err(error) => error,
            Ok((frames, writer)) => {
                // Messages queued while there was no connection are outdated.
                while queue.try_recv().is_ok() {}
                contact.heard.store(inner.peers.now(), Ordering::Relaxed);
                contact.connected.store(true, Ordering::Release);
                contact.failed.store(0, Ordering::Relaxed);
                tracing::debug!(node = row.id.0, address = row.address, "connected to another node");
                (pause, last) = (PAUSE, String::new());
                let Err(ended) = talk(&inner, frames, writer, &mut queue, &contact).await;
                contact.connected.store(false, Ordering::Release);
                ended
            }
        };
        contact.failed.fetch_add(1, Ordering::Relaxed);
        inner.peers.contacts.notify_one();
        let reason = ended.to_string();
        if reason != last {
            tracing::warn!(node = row.id.0, address = row.address, "another node cannot be reached: {reason}");
            last = reason;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Connects, within [`HANDSHAKE`].
async fn connect(inner: &Inner, row: &NodeRow) -> Result<(Frames, PeerWriter), Ended> {
    let deadline = Instant::now() + HANDSHAKE;
    let late = |_| Ended::Late(HANDSHAKE);
    let reached = async {
        let stream = TcpStream::connect(&row.address).await?;
        let secure = inner.peers.secure();
        Way::out(stream, secure.as_deref()).await
    };
    let mut way = timeout_at(deadline, reached).await.map_err(late)??;
    let mut greeting = [0; wire::GREETING];
    // A TLS server waits for the client's first message; a server without TLS sends the first one.
    let mute = |_| if way.binding.is_none() { Ended::Mute } else { Ended::Late(HANDSHAKE) };
    timeout_at(deadline, way.read.read_exact(&mut greeting)).await.map_err(mute)??;
    timeout_at(deadline, introduce(inner, row, way, &greeting)).await.map_err(late)?
}

async fn introduce(inner: &Inner, row: &NodeRow, mut way: Way, greeting: &[u8]) -> Result<(Frames, PeerWriter), Ended> {
    let (introduction, introduced): (Bytes, Introduced) = handshake(inner, way.binding)?.introduction(greeting)?;
    way.send(&introduction).await?;
    let mut welcome = [0; wire::WELCOME];
    way.read.read_exact(&mut welcome).await?;
    let channel = introduced.welcomed(&welcome, row.id)?;
    Ok((Frames::new(way.read, channel.receive), PeerWriter { write: way.write, direction: channel.send }))
}

/// Begins a handshake on this node's side.
pub(super) fn handshake(inner: &Inner, binding: Option<Binding>) -> Result<Handshake, Ended> {
    let secret = inner.peers.secret.get().ok_or(Ended::Secret)?;
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(Handshake::new(secret, inner.peers.own, nonce, binding.as_ref())?)
}

async fn talk(
    inner: &Inner,
    mut frames: Frames,
    mut writer: PeerWriter,
    queue: &mut mpsc::Receiver<Saying>,
    contact: &Contact,
) -> Result<std::convert::Infallible, Ended> {
    let mut interner = Interner::default();
    let mut questions: HashMap<u64, Answers> = HashMap::new();
    let mut ticks = tokio::time::interval(NEWS);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            frame = tokio::time::timeout(SILENCE, frames.next()) => {
                let body = frame.map_err(|_| Ended::Late(SILENCE))??;
                contact.heard.store(inner.peers.now(), Ordering::Relaxed);
                match Message::read(&body, &mut interner)? {
                    Message::Answer { number, silence } => {
                        if let Some(answer) = questions.remove(&number) {
                            // The caller may have given up.
                            let _ = answer.send(silence);
                        }
                    }
                    Message::News { epoch, revision } => inner.told(epoch, revision),
                    Message::Question { .. } | Message::Committed { .. } => return Err(PeerError::Malformed.into()),
                }
            }
            saying = queue.recv() => {
                // The link holds the sender, and aborts this task when it is dropped.
                let Some(Saying { body, question }) = saying else { std::future::pending().await };
                if let Some((number, answer)) = question {
                    questions.retain(|_, answer| !answer.is_closed());
                    if questions.len() >= QUESTIONS {
                        continue;
                    }
                    questions.insert(number, answer);
                }
                writer.say(&body).await?;
            }
            _ = ticks.tick() => writer.say(&inner.news()).await?,
        }
    }
}

/// The sending half.
pub(super) struct PeerWriter {
    pub(super) write: Writing,
    pub(super) direction: Direction,
}

impl PeerWriter {
    pub(super) async fn say(&mut self, body: &[u8]) -> Result<(), Ended> {
        let (length, tag) = self.direction.seal(body);
        let write = async {
            // A large body is not copied to save a system call.
            if body.len() <= 8192 {
                self.write.write_all(&[&length, body, &tag].concat()).await?;
            } else {
                self.write.write_all(&length).await?;
                self.write.write_all(body).await?;
                self.write.write_all(&tag).await?;
            }
            self.write.flush().await
        };
        Ok(tokio::time::timeout(WRITE, write).await.map_err(|_| Ended::Late(WRITE))??)
    }
}

/// The receiving half. A read is cancel-safe: received bytes stay in the buffer.
pub(super) struct Frames {
    read: Reading,
    buffer: BytesMut,
    direction: Direction,
}

impl Frames {
    pub(super) fn new(read: Reading, direction: Direction) -> Frames {
        Frames { read, buffer: BytesMut::new(), direction }
    }

    pub(super) async fn next(&mut self) -> Result<Bytes, Ended> {
        loop {
            if let Some(length) = self.buffer.first_chunk::<4>() {
                let whole = Direction::announced(*length)?;
                if self.buffer.len() >= 4 + whole {
                    let mut frame = self.buffer.split_to(4 + whole).freeze();
                    let _ = frame.split_to(4);
                    return Ok(self.direction.open(frame)?);
                }
            }
            // The buffer grows with the bytes received, not with the length announced.
            self.buffer.reserve(16 * 1024);
            if self.read.read_buf(&mut self.buffer).await? == 0 {
                return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
            }
        }
    }
}
