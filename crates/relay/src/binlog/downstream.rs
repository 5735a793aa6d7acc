//! Replica connections. One tokio task per connection.
//!
//! ```text
//!  accept ─▶ greeting ─▶ login ─▶ statements … ─▶ COM_REGISTER_SLAVE ─▶ COM_BINLOG_DUMP ─▶ events, heartbeats
//! ```
//!
//! *What must hold*: a replica gets only durable events, in whole transactions; a slow replica delays only itself.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use ::binlog::event::{self, Checksum, Format, HEADER, Header, Kind};
use ::binlog::protocol::command::{Command, NON_BLOCK, SEMISYNC};
use ::binlog::protocol::login::{self, ClientHello, Greeting, NONCE};
use ::binlog::protocol::{MAX_PACKET, Messages, message, packet_header, reply};
use ::binlog::{Dialect, MAGIC};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::{debug, info, warn};
use watermark::Lsn;
use wire::replication::Order;

use super::answer::{Facts, ReplicaSettings, StatementReply};
use super::feed::{self, Feed, Refused, Request, Verdict, first_file};
use super::log::LogFile;
use super::orders;
use super::shared::{Fed, Shared};
use crate::downstream::transport::Transport;
use crate::log::lock;
use crate::running::accept;
use crate::socket::notice_a_dead_host;

/// Size limit of a replica's message, in bytes: a position with very many domains.
const MAX_MESSAGE: usize = 2 << 20;
/// Time limit for a client to take an answer.
const WRITE_LIMIT: Duration = Duration::from_secs(30);
/// Bytes of a file read at once, and collected for one write.
const READ: usize = 256 << 10;
/// Minimum time between two heartbeats.
const HEARTBEAT: Duration = Duration::from_millis(100);
/// Bytes before an event, without and with semi-synchronous replication: no acknowledgement is requested.
const PREFIX: (&[u8], &[u8]) = (&[0], &[0, SEMISYNC, 0]);

/// Reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
enum Gone {
    #[error("the client closed the connection")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0} took too long")]
    TooSlow(&'static str),
    /// The client has received the error.
    #[error("{0}")]
    Refused(String),
    #[error("another connection of the same server has come")]
    Replaced,
    #[error("its server has ended the connection (KILL)")]
    Killed,
    #[error("the relay is shutting down")]
    Stopping,
}

struct Connection {
    id: u32,
    stream: Transport,
    messages: Messages,
    input: Vec<u8>,
    /// Number of the next packet.
    sequence: u8,
    /// One of [`PREFIX`].
    prefix: &'static [u8],
    peer: String,
    user: String,
}

/// Accepts connections until the relay is stopped.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let take = |stream, peer| {
        shared.counts.accepted.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move { connection(stream, peer, shared).await });
    };
    accept(listener, "replica", shared.stopped(), take).await;
}

async fn connection(stream: TcpStream, peer: String, shared: Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    let settings = shared.settings();
    let (id, stream, messages) = (shared.new_id(), Transport::new(stream), Messages::new(MAX_MESSAGE));
    let (input, sequence, prefix, user) = (Vec::new(), 0, PREFIX.0, String::new());
    let mut connection = Connection { id, stream, messages, input, sequence, prefix, peer, user };
    if let Err(error) = notice_a_dead_host(connection.stream.as_fd(), settings.downstream_timeout) {
        debug!(peer = connection.peer, %error, "the kernel does not watch a replica's host");
    }
    let Some(_place) = shared.places.take(settings.max_downstreams) else {
        shared.counts.refused.fetch_add(1, Ordering::Relaxed);
        let _ = connection.refuse(1040, "08004", "Too many connections").await;
        return;
    };
    let login = timeout(settings.login_timeout, connection.log_in(&shared)).await;
    if let Err(error) = login.unwrap_or(Err(Gone::TooSlow("the login"))) {
        shared.counts.refused.fetch_add(1, Ordering::Relaxed);
        debug!(peer = connection.peer, %error, "a replica did not log in");
        return;
    }
    let end = tokio::select! {
        end = connection.serve(&shared) => end,
        () = shared.stopped() => Err(Gone::Stopping),
    };
    shared.leave(id);
    match end {
        Ok(()) | Err(Gone::Closed | Gone::Stopping | Gone::Killed) => {
            info!(peer = connection.peer, id, "a replica has left")
        }
        Err(error) => warn!(peer = connection.peer, id, %error, "a replica was lost"),
    }
}

impl Connection {
    async fn next(&mut self) -> Result<Vec<u8>, Gone> {
        loop {
            let mut input = &self.input[..];
            let next = self.messages.next(&mut input);
            let used = self.input.len() - input.len();
            self.input.drain(..used);
            match next {
                Ok(Some((sequence, message))) => {
                    self.sequence = sequence.wrapping_add(1);
                    return Ok(message);
                }
                Ok(None) => {}
                Err(error) => return Err(Gone::Refused(error.to_string())),
            }
            if self.stream.read(&mut self.input).await? == 0 {
                return Err(Gone::Closed);
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        match timeout(WRITE_LIMIT, self.stream.write_all(bytes)).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(Gone::TooSlow("taking an answer")),
        }
    }

    async fn send(&mut self, payload: &[u8]) -> Result<(), Gone> {
        let mut out = Vec::new();
        self.sequence = message(&mut out, self.sequence, payload);
        self.write(&out).await
    }

    /// Sends the client the reason for the end of the connection.
    async fn refuse(&mut self, code: u16, state: &str, text: &str) -> Gone {
        match self.send(&reply::error(code, state, text)).await {
            Ok(()) => Gone::Refused(text.into()),
            Err(gone) => gone,
        }
    }

    async fn log_in(&mut self, shared: &Shared) -> Result<(), Gone> {
        let settings = shared.settings();
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(|error| Gone::Refused(error.to_string()))?;
        // Clients take a zero byte for the end of the nonce.
        nonce.iter_mut().for_each(|byte| *byte = *byte % 93 + 33);
        let (version, plugin) = (shared.log.dialect.greeting(&version(shared)), settings.plugin);
        self.send(&Greeting::new(version, self.id, nonce, settings.acceptor.is_some(), plugin).encode()).await?;
        let mut secure = false;
        let response = loop {
            let message = self.next().await?;
            match (ClientHello::parse(&message), &settings.acceptor) {
                (Ok(ClientHello::Tls), Some(acceptor)) if !secure => {
                    // Bytes in clear text behind the TLS request must not be taken for encrypted ones.
                    if !self.input.is_empty() {
                        return Err(Gone::Refused("bytes in clear behind the request for TLS".into()));
                    }
                    self.stream.accept(acceptor, &[], &mut self.input).await?;
                    secure = true;
                }
                (Ok(ClientHello::Response(response)), _) => break response,
                (Ok(ClientHello::Tls), _) => return Err(self.refuse(1105, "HY000", "there is no TLS here").await),
                (Err(error), _) => return Err(self.refuse(1043, "08S01", &error.to_string()).await),
            }
        };
        if settings.needs_tls && !secure {
            let text = match shared.log.dialect {
                Dialect::MariaDb => "Connections using insecure transport are prohibited here: set MASTER_SSL = 1",
                Dialect::MySql => "Connections using insecure transport are prohibited here: set SOURCE_SSL = 1",
            };
            return Err(self.refuse(3159, "08004", text).await);
        }
        let mut proof = response.proof;
        if response.plugin != plugin.name() {
            self.send(&login::switch_to(plugin, &nonce)).await?;
            proof = self.next().await?;
        }
        if !settings.accepts(&response.user, &nonce, &proof) {
            let host = self.peer.rsplit_once(':').map_or("", |(host, _)| host).to_owned();
            let denied = login::access_denied(&response.user, &host, !proof.is_empty());
            self.send(&denied).await?;
            return Err(Gone::Refused(format!("access denied for user {:?}", response.user)));
        }
        self.user = response.user;
        if let Some(accepted) = login::proof_accepted(plugin) {
            self.send(&accepted).await?;
        }
        self.send(&reply::ok()).await
    }

    async fn serve(&mut self, shared: &Arc<Shared>) -> Result<(), Gone> {
        let mut settings = ReplicaSettings::default();
        loop {
            let limit = shared.settings().downstream_timeout;
            let message = timeout(limit, self.next()).await.map_err(|_| Gone::TooSlow("the next command"))??;
            match Command::parse(&message) {
                Ok(Command::Quit) => return Ok(()),
                Ok(Command::Ping | Command::RegisterSlave(_)) => self.send(&reply::ok()).await?,
                Ok(Command::Query(text)) => match orders::order(&text) {
                    Some(order) => self.order(shared, order).await?,
                    None => match settings.answer(&text, &facts(shared)) {
                        StatementReply::Kill(id) => self.kill(shared, id).await?,
                        answer => self.answer(answer).await?,
                    },
                },
                Ok(command @ (Command::Dump(_) | Command::DumpGtid(_))) => {
                    let (request, flags, server_id) = match (shared.log.dialect, command) {
                        (Dialect::MariaDb, Command::Dump(dump)) => {
                            (settings.request(&dump), dump.flags, dump.server_id)
                        }
                        (Dialect::MySql, Command::DumpGtid(dump)) => {
                            (ReplicaSettings::request_set(&dump), dump.flags, dump.server_id)
                        }
                        (Dialect::MySql, _) => {
                            let text = "a relay feeds replicas of MySQL by GTID: CHANGE REPLICATION SOURCE TO SOURCE_AUTO_POSITION = 1";
                            return Err(self.refuse(1236, "HY000", text).await);
                        }
                        (Dialect::MariaDb, _) => {
                            let text = "this relay feeds replicas of MariaDB: COM_BINLOG_DUMP_GTID, which replicas of MySQL use, is not served";
                            return Err(self.refuse(1236, "HY000", text).await);
                        }
                    };
                    match request {
                        Ok(request) => self.dump(shared, &settings, request, flags, server_id).await?,
                        Err(text) => return Err(self.refuse(1236, "HY000", &text).await),
                    }
                    // The replica has all that it requested.
                    shared.leave(self.id);
                }
                Ok(Command::Other(_)) => self.send(&reply::error(1047, "08S01", "Unknown command")).await?,
                Err(error) => return Err(self.refuse(1047, "08S01", &error.to_string()).await),
            }
        }
    }

    async fn answer(&mut self, answer: StatementReply) -> Result<(), Gone> {
        match answer {
            StatementReply::Ok | StatementReply::Kill(_) => self.send(&reply::ok()).await,
            StatementReply::Error(code, state, text) => self.send(&reply::error(code, state, &text)).await,
            StatementReply::Rows(columns, rows) => {
                let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
                for message in reply::rows(&columns, &rows) {
                    self.send(&message).await?;
                }
                Ok(())
            }
        }
    }

    /// Ends another connection of the same user, as a semi-synchronous replica requests for its own when it stops.
    async fn kill(&mut self, shared: &Shared, id: u32) -> Result<(), Gone> {
        let fed = shared.fed().into_iter().find(|fed| fed.id == id);
        let answer = match fed {
            // A source notices later than a relay that the replica has closed the connection, so this is no error on a source.
            None if shared.was_given(id) => reply::ok(),
            None => reply::error(1094, "HY000", &format!("Unknown thread id: {id}")),
            Some(fed) if fed.user != self.user => {
                reply::error(1095, "HY000", &format!("You are not owner of thread {id}"))
            }
            Some(fed) => {
                fed.killed.notify_one();
                reply::ok()
            }
        };
        self.send(&answer).await
    }

    /// Carries out an operator's order, off the runtime: it waits for the disk.
    async fn order(&mut self, shared: &Arc<Shared>, order: Order) -> Result<(), Gone> {
        if !shared.settings().is_operator(&self.user) {
            let text = format!(
                "user {:?} may not give orders to this relay: set operator = true in [[relay.users]]",
                self.user
            );
            return self.send(&reply::error(1227, "42000", &text)).await;
        }
        let worker = Arc::clone(shared);
        let done = tokio::task::spawn_blocking(move || orders::carry_out(&worker, &order)).await;
        let answer = match done {
            Ok(Ok(standing)) => {
                let columns = standing.columns();
                let names = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
                StatementReply::Rows(names, vec![columns.into_iter().map(|(_, value)| Some(value)).collect()])
            }
            Ok(Err(error)) => StatementReply::Error(1105, "HY000", error.to_string()),
            Err(_) => StatementReply::Error(1105, "HY000", "the order was not carried out to its end".into()),
        };
        self.answer(answer).await
    }

    /// Sends events. Returns once all requested events are sent.
    async fn dump(
        &mut self,
        shared: &Arc<Shared>,
        settings: &ReplicaSettings,
        request: Request,
        flags: u16,
        server_id: u32,
    ) -> Result<(), Gone> {
        if shared.log.durable().file.is_none() {
            return Err(self.refuse(1236, "HY000", "the relay has nothing yet: its source was not reached").await);
        }
        let own_id = shared.settings().server_id;
        let mut feeder = match Feeder::open(shared, request, settings.checksum()) {
            Ok(feeder) => feeder,
            Err(refused) => return Err(self.refuse(1236, "HY000", &refused.to_string()).await),
        };
        self.prefix = if settings.semisync() { PREFIX.1 } else { PREFIX.0 };
        let fed = Arc::new(Fed {
            id: self.id,
            server_id,
            peer: self.peer.clone(),
            user: self.user.clone(),
            sent: AtomicU64::new(feeder.log_file.start.0),
            replaced: Notify::new(),
            killed: Notify::new(),
        });
        shared.enter(Arc::clone(&fed));
        let asked = feeder.feed.request();
        info!(
            peer = self.peer, replica = server_id, user = self.user, has = asked.has(), from = %feeder.log_file.name,
            until = asked.until(), semisync = settings.semisync(), "feeding a replica"
        );
        let every = settings.heartbeat().map(|every| every.max(HEARTBEAT));
        // As a source: a client without the flag to wait, or that is no server, gets only the events that exist now.
        let waits = flags & NON_BLOCK == 0 && server_id != 0;
        let mut out = Vec::with_capacity(READ + HEADER);
        let announce = |log_file: &LogFile, checksum| {
            event::announce(own_id, log_file.name.as_str(), MAGIC.len() as u64, checksum)
        };
        self.packet(&mut out, &announce(&feeder.log_file, feeder.checksum));
        loop {
            let whole = shared.log.whole.get();
            let step = feeder.next(shared, whole, &mut |part: EventChunk<'_>| match part {
                EventChunk::Event(event) => self.packet(&mut out, event),
                EventChunk::Begins { left, bytes } => self.begin_long(&mut out, left, bytes),
            });
            match step {
                Ok(Step::Gathered) => {}
                Ok(Step::Long { mut left, mut at }) => {
                    // An event of any length, in several packets.
                    let mut room = MAX_PACKET - self.prefix.len() - HEADER;
                    while left > 0 {
                        self.write(&std::mem::take(&mut out)).await?;
                        let part = left.min(READ as u64).min(room as u64) as usize;
                        out.resize(part, 0);
                        feeder.file.read_exact_at(&mut out, at)?;
                        (left, at, room) = (left - part as u64, at + part as u64, room - part);
                        if room == 0 {
                            // The packet is full; another one follows, possibly empty.
                            room = MAX_PACKET;
                            let length = left.min(MAX_PACKET as u64) as usize;
                            out.extend_from_slice(&packet_header(length, self.sequence));
                            self.sequence = self.sequence.wrapping_add(1);
                        }
                    }
                }
                Ok(Step::NextFile) => {
                    // With the checksum of the file before: the new one takes effect after the format event.
                    self.packet(&mut out, &announce(&feeder.log_file, feeder.checksum));
                    fed.sent.store(feeder.log_file.start.0, Ordering::Relaxed);
                }
                Ok(Step::Ends) => {
                    let last = feeder.feed.last_event(own_id, feeder.offset, feeder.checksum);
                    self.packet(&mut out, &last);
                    return self.end(shared, out).await;
                }
                Ok(Step::UpToDate) if !waits => return self.end(shared, out).await,
                Ok(Step::UpToDate) => {
                    if !out.is_empty() {
                        self.flush(shared, &fed, &mut out).await?;
                    }
                    fed.sent.store(feeder.at().0, Ordering::Relaxed);
                    let silence = async {
                        match every {
                            Some(every) => tokio::time::sleep(every).await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        _ = shared.log.whole.reached(Lsn(whole.0 + 1)) => {}
                        () = silence => {
                            let beat = event::heartbeat(own_id, feeder.log_file.name.as_str(), feeder.offset, feeder.checksum);
                            self.packet(&mut out, &beat);
                        }
                        () = fed.replaced.notified() => return Err(Gone::Replaced),
                        () = fed.killed.notified() => return Err(Gone::Killed),
                        // The replica sends nothing now but its end, or an acknowledgement that was not requested.
                        read = self.stream.read(&mut self.input) => {
                            if read? == 0 {
                                return Err(Gone::Closed);
                            }
                            self.input.clear();
                        }
                    }
                }
                Err(FeedError::Refused(refused)) => return Err(self.refuse(1236, "HY000", &refused.to_string()).await),
                Err(FeedError::Io(error)) => {
                    let text = format!("the relay cannot read {}: {error}", feeder.log_file.name);
                    return Err(self.refuse(1236, "HY000", &text).await);
                }
            }
            if out.len() >= READ {
                self.flush(shared, &fed, &mut out).await?;
                fed.sent.store(feeder.at().0, Ordering::Relaxed);
            }
        }
    }

    async fn flush(&mut self, shared: &Shared, fed: &Fed, out: &mut Vec<u8>) -> Result<(), Gone> {
        shared.counts.sent_bytes.fetch_add(out.len() as u64, Ordering::Relaxed);
        let limit = shared.settings().downstream_timeout;
        tokio::select! {
            written = timeout(limit, self.stream.write_all(out)) => match written {
                Ok(result) => result?,
                Err(_) => return Err(Gone::TooSlow("taking events")),
            },
            () = fed.killed.notified() => return Err(Gone::Killed),
        }
        out.clear();
        Ok(())
    }

    /// Sends the rest, and the end-of-stream packet.
    async fn end(&mut self, shared: &Shared, out: Vec<u8>) -> Result<(), Gone> {
        shared.counts.sent_bytes.fetch_add(out.len() as u64, Ordering::Relaxed);
        let limit = shared.settings().downstream_timeout;
        timeout(limit, self.stream.write_all(&out)).await.map_err(|_| Gone::TooSlow("taking events"))??;
        self.input.clear();
        self.send(&reply::eof()).await
    }

    /// Appends a whole event as a message.
    fn packet(&mut self, out: &mut Vec<u8>, event: &[u8]) {
        self.begin_long(out, 0, event);
    }

    /// Begins the message of an event with `left` bytes after `bytes`.
    fn begin_long(&mut self, out: &mut Vec<u8>, left: u64, bytes: &[u8]) {
        let length = left + (bytes.len() + self.prefix.len()) as u64;
        out.extend_from_slice(&packet_header(length.min(MAX_PACKET as u64) as usize, self.sequence));
        out.extend_from_slice(self.prefix);
        out.extend_from_slice(bytes);
        self.sequence = self.sequence.wrapping_add(1);
    }
}

fn version(shared: &Shared) -> String {
    let version = lock(&shared.version).clone();
    if version.is_empty() { shared.log.dialect.oldest_version().into() } else { version }
}

fn facts(shared: &Shared) -> Facts {
    let durable = shared.log.durable();
    let checksum = durable.file.and_then(|(log_file, _)| checksum_of(&log_file).ok()).unwrap_or(Checksum::Crc32);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (dialect, server_id) = (shared.log.dialect, shared.settings().server_id);
    Facts { dialect, server_id, version: version(shared), checksum, state: durable.state.to_string(), now }
}

/// Returns the checksum algorithm of a file's events.
fn checksum_of(log_file: &LogFile) -> io::Result<Checksum> {
    let file = File::open(&log_file.path)?;
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, MAGIC.len() as u64)?;
    let header = Header::parse(&header);
    let length = (header.length as usize).clamp(HEADER, 64 << 10) - HEADER;
    let mut body = vec![0; length];
    file.read_exact_at(&mut body, (MAGIC.len() + HEADER) as u64)?;
    Format::parse(&body).map(|format| format.checksum).map_err(io::Error::other)
}

enum EventChunk<'a> {
    Event(&'a [u8]),
    /// The beginning of an event that is longer than a read.
    Begins {
        left: u64,
        bytes: &'a [u8],
    },
}

/// Result of a step.
enum Step {
    /// Some events were processed.
    Gathered,
    /// An event has begun: `left` bytes of it follow, from this offset of the file.
    Long {
        left: u64,
        at: u64,
    },
    NextFile,
    /// The replica has all that it requested (`START SLAVE UNTIL`).
    Ends,
    /// The replica has every durable event.
    UpToDate,
}

enum FeedError {
    Refused(Refused),
    Io(io::Error),
}

impl From<io::Error> for FeedError {
    fn from(error: io::Error) -> FeedError {
        FeedError::Io(error)
    }
}

impl From<feed::FeedError> for FeedError {
    fn from(error: feed::FeedError) -> FeedError {
        match error {
            feed::FeedError::Refused(refused) => FeedError::Refused(refused),
            feed::FeedError::Body(error) => FeedError::Io(io::Error::other(error)),
        }
    }
}

/// Reads files for one replica.
struct Feeder {
    log_file: Arc<LogFile>,
    file: File,
    /// Offset of the next event.
    offset: u64,
    /// Checksum of the stream's events: the replica's choice, and after the first format event that event's.
    checksum: Checksum,
    /// True if the replica understands checksums.
    aware: bool,
    feed: Feed,
    /// True until a format event is sent.
    first: bool,
    buffer: Vec<u8>,
}

impl Feeder {
    fn open(shared: &Shared, request: Request, checksum: Option<Checksum>) -> Result<Feeder, Refused> {
        let (log_file, file, feed) = among(&shared.log.log_files(), &shared.log.durable().state, request)?;
        let (offset, aware) = (MAGIC.len() as u64, checksum.is_some());
        let checksum = checksum.unwrap_or(Checksum::None);
        Ok(Feeder { log_file, file, offset, checksum, aware, feed, first: true, buffer: Vec::new() })
    }

    /// Returns the position in the log.
    fn at(&self) -> Lsn {
        Lsn(self.log_file.start.0 + self.offset)
    }

    /// Reads the next events, up to `whole`.
    fn next(&mut self, shared: &Shared, whole: Lsn, send: &mut dyn FnMut(EventChunk<'_>)) -> Result<Step, FeedError> {
        let end = self.log_file.end.get().copied();
        let most = end.unwrap_or(whole).min(whole).0.saturating_sub(self.log_file.start.0);
        if self.offset >= most {
            return match end.filter(|end| *end <= whole) {
                _ if self.feed.ends() && self.offset > MAGIC.len() as u64 => Ok(Step::Ends),
                Some(_) => self.next_file(shared, whole),
                None => Ok(Step::UpToDate),
            };
        }
        self.buffer.resize(READ.min((most - self.offset) as usize), 0);
        self.file.read_exact_at(&mut self.buffer, self.offset)?;
        let mut used = 0;
        while let Some(header) = self.buffer.get(used..).and_then(|rest| rest.first_chunk::<HEADER>()) {
            let header = Header::parse(header);
            let length = header.length as usize;
            if length < HEADER {
                return Err(io::Error::other(format!("an event of {length} bytes at {}", self.offset)).into());
            }
            let Some(event) = self.buffer.get(used..used + length) else {
                if length <= READ {
                    break;
                }
                return self.long(header, used, send);
            };
            let verdict = match self.feed.header(&header) {
                Verdict::Look => self.feed.transaction(&header, &event[HEADER..], || shared.log.durable().state)?,
                verdict => verdict,
            };
            match verdict {
                Verdict::Stop => return Ok(Step::Ends),
                Verdict::Send if header.kind == Kind::FORMAT => {
                    self.checksum = Format::parse(&event[HEADER..]).map_err(io::Error::other)?.checksum;
                    if self.checksum != Checksum::None && !self.aware {
                        return Err(FeedError::Refused(Refused::Checksum));
                    }
                    let mut event = event.to_vec();
                    if std::mem::take(&mut self.first) {
                        event::clear_created(&mut event, self.checksum);
                    }
                    send(EventChunk::Event(&event));
                }
                Verdict::Send => send(EventChunk::Event(event)),
                Verdict::Skip | Verdict::Look => {}
            }
            used += length;
            self.offset += length as u64;
        }
        if used == 0 {
            return Err(io::Error::other(format!("no whole event at offset {}", self.offset)).into());
        }
        Ok(Step::Gathered)
    }

    /// Handles an event longer than a read, which starts after `used` bytes of the buffer.
    fn long(&mut self, header: Header, used: usize, send: &mut dyn FnMut(EventChunk<'_>)) -> Result<Step, FeedError> {
        if used > 0 {
            return Ok(Step::Gathered);
        }
        let length = u64::from(header.length);
        let at = self.offset;
        self.offset += length;
        match self.feed.header(&header) {
            Verdict::Send => {}
            Verdict::Stop => return Ok(Step::Ends),
            Verdict::Skip | Verdict::Look => return Ok(Step::Gathered),
        }
        let begun = &self.buffer[..HEADER];
        let left = length - HEADER as u64;
        send(EventChunk::Begins { left, bytes: begun });
        Ok(Step::Long { left, at: at + HEADER as u64 })
    }

    fn next_file(&mut self, shared: &Shared, whole: Lsn) -> Result<Step, FeedError> {
        let next = shared.log.next(&self.log_file).ok_or(FeedError::Refused(Refused::Purged))?;
        if next.epoch == self.log_file.epoch {
            if whole <= Lsn(next.start.0 + MAGIC.len() as u64) {
                return Ok(Step::UpToDate);
            }
            self.file = File::open(&next.path)?;
            self.log_file = next;
            self.offset = MAGIC.len() as u64;
            return Ok(Step::NextFile);
        }
        // Another source wrote the next epoch: its start file is found by the replica's current position.
        let durable = shared.log.durable();
        if durable.file.as_ref().is_none_or(|(log_file, _)| log_file.epoch < next.epoch) {
            return Ok(Step::UpToDate);
        }
        let later: Vec<Arc<LogFile>> =
            shared.log.log_files().into_iter().filter(|log_file| log_file.epoch == next.epoch).collect();
        let request = self.feed.request();
        (self.log_file, self.file, self.feed) = among(&later, &durable.state, request).map_err(FeedError::Refused)?;
        (self.offset, self.first) = (MAGIC.len() as u64, true);
        Ok(Step::NextFile)
    }
}

/// Finds the file that contains the request's position, or else the last one that begins before it.
fn among(
    log_files: &[Arc<LogFile>],
    state: &::binlog::gtid::State,
    mut request: Request,
) -> Result<(Arc<LogFile>, File, Feed), Refused> {
    let begins = log_files.iter().enumerate().filter_map(|(index, log_file)| Some((index, log_file.begins.get()?)));
    let begins: Vec<_> = begins.collect();
    let index = first_file(begins.into_iter(), state, &mut request)?;
    let log_file = Arc::clone(&log_files[index]);
    // The file may be removed at any moment.
    let file = File::open(&log_file.path).map_err(|_| Refused::Purged)?;
    let feed = log_file.begins.get().and_then(|begins| Feed::new(request, begins, state)).ok_or(Refused::Purged)?;
    Ok((log_file, file, feed))
}
