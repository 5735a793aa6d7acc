//! Reception from the source: one thread that reads and appends.
//!
//! ```text
//!  connect ─▶ what are you? ─▶ are you still the same? where do we go on? ─▶ announce ourselves, ask for events ─▶ receive … ─▶ back off, and again
//! ```

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::binlog::event::{Checksum, Format, HEADER, Header, Kind, Rotate};
use ::binlog::gtid::{State, mariadb};
use ::binlog::protocol::command::{Dump, DumpGtid, NON_BLOCK, RegisterSlave, THROUGH_GTID};
use ::binlog::protocol::reply::ServerError;
use ::binlog::protocol::{Messages, TooLong};
use ::binlog::{Dialect, Event, MAGIC};
use tracing::{error, info, warn};

use super::acknowledge::Acknowledger;
use super::client::{Access, Client, ClientError};
use super::log::{AppendError, FileName, Writer};
use super::receive::{ReceiveError, Receiver, Step};
use super::shared::Shared;
use super::source::{self, Settings, SourceError};
use crate::channel::Channel;
use crate::config::UpstreamConfig;
use crate::error::UpstreamError;
use crate::upstream::{jittered, password};

/// First and longest pause between connection attempts.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Pause while the disk is full.
const FULL_PAUSE: Duration = Duration::from_millis(500);
/// Pause after an error that retrying does not fix.
const ALARM_PAUSE: Duration = Duration::from_secs(5);
/// Error number of a source that cannot send the requested events.
const FATAL_READ: u16 = 1236;
/// Bytes read at once.
const READ: usize = 256 << 10;
/// Size limit of a source's message in answer to the query for a file's name, in bytes: a list of very many GTIDs.
const MAX_MESSAGE: usize = 17 << 20;
/// Time limit of sending an acknowledgement.
const WRITE: Duration = Duration::from_secs(10);

/// Reason why nothing is received.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error("{0}")]
    Client(#[from] ClientError),
    #[error("{0}")]
    Source(#[from] SourceError),
    #[error("{0}")]
    Receive(#[from] ReceiveError),
    #[error("{0}")]
    Append(#[from] AppendError),
    #[error("{0}")]
    Upstream(#[from] UpstreamError),
    #[error(
        "the source names a binary log {0:?}: letters, digits, \".\", \"-\" and \"_\" are taken, with a number at the end"
    )]
    Name(String),
    #[error("the source goes on with {given} after {held}: the files between them are missing")]
    Gap { held: String, given: String },
    #[error("the source sends {given} from offset {offset}, and was asked for {asked}")]
    Unasked { asked: String, given: String, offset: u64 },
    #[error(
        "epoch {epoch} is fenced in term {term}: a failover away from server {source_id} is under way or done, and nothing more of it is taken"
    )]
    Fenced { epoch: u64, term: u64, source_id: u32 },
}

impl Failed {
    /// True if retrying does not help, and an operator must act.
    fn is_alarm(&self) -> bool {
        match self {
            Failed::Client(error) => error.is_lasting(),
            Failed::Receive(error) => !matches!(error, ReceiveError::Ended),
            Failed::Upstream(error) => error.is_alarm(),
            Failed::Append(error) => !matches!(error, AppendError::Full { .. }),
            Failed::Source(_) | Failed::Name(_) | Failed::Gap { .. } | Failed::Unasked { .. } => true,
            Failed::Fenced { .. } => false,
        }
    }

    /// True if the source cannot continue from the relay's log: if the source is right, the relay has to give up its log.
    fn needs_reset(&self) -> bool {
        match self {
            Failed::Source(error) => {
                matches!(error, SourceError::Behind { .. } | SourceError::Anew { .. } | SourceError::Purged { .. })
            }
            Failed::Append(error) => matches!(error, AppendError::Mismatch { .. } | AppendError::Parted { .. }),
            // The file, or the position in it, does not exist.
            Failed::Receive(ReceiveError::Refused(error)) => error.code == FATAL_READ,
            Failed::Gap { .. } => true,
            _ => false,
        }
    }
}

/// Runs the receiving thread, until the relay is stopped or the log has failed.
pub(super) fn run(shared: &Arc<Shared>, mut writer: Writer) {
    let mut back_off = BACK_OFF.0;
    let mut said = String::new();
    loop {
        let Some((config, generation)) = shared.control.wanted() else { return };
        let failed = match attempt(shared, &config, generation, &mut writer, &mut back_off) {
            Ok(never) => match never {},
            Err(failed) => failed,
        };
        shared.log.tell_of_flushes(None);
        shared.control.received();
        shared.counts.disconnects.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = writer.rewind() {
            error!(%error, "the binary log cannot be written");
        }
        if let Some(failure) = shared.log.failure() {
            shared.upstream_is(&failure.to_string(), true);
            return;
        }
        if shared.control.interrupted(generation) {
            back_off = BACK_OFF.0;
            continue;
        }
        let (alarm, mut text) = (failed.is_alarm(), failed.to_string());
        if failed.needs_reset() && writer.resume().is_some() {
            let dir = shared.log.path().display();
            text.push_str(&format!(
                ". If the source is to stay as it is, stop the relay and give up what it holds: kingpost relay reset --dir {dir}"
            ));
        }
        shared.upstream_is(&text, alarm);
        if alarm && said != text {
            error!(upstream = config.address, error = text, "the source cannot be followed; nothing was cut off");
        } else if said != text {
            warn!(upstream = config.address, error = text, "not receiving");
        }
        said = text;
        shared.control.pause(generation, jittered(if alarm { ALARM_PAUSE } else { back_off }));
        back_off = (back_off * 2).min(BACK_OFF.1);
    }
}

/// Returns the login at the source.
pub(super) fn access<'a>(config: &'a UpstreamConfig, password: &'a str) -> Result<Access<'a>, Failed> {
    let connector = tls::Connector::new(&config.tls).map_err(|error| ClientError::Tls(error.to_string()))?;
    Ok(Access {
        address: &config.address,
        user: &config.user,
        password,
        connector: connector.map(Arc::new),
        host_timeout: config.timeout,
    })
}

/// Start position of a stream.
struct Start {
    epoch: u64,
    /// None for the source's first file.
    file: Option<FileName>,
    offset: u64,
    /// True if the file is the one that is being written.
    goes_on: bool,
}

fn attempt(
    shared: &Arc<Shared>,
    config: &UpstreamConfig,
    generation: u64,
    writer: &mut Writer,
    back_off: &mut Duration,
) -> Result<std::convert::Infallible, Failed> {
    shared.upstream_is_tried();
    let password = password(config)?.unwrap_or_default();
    let known = |socket| shared.control.connecting(generation, socket).map_err(Failed::from);
    let mut client = Client::open(&access(config, &password)?, known)?;
    let dialect = shared.log.dialect;
    let settings = variables(dialect, &mut client)?;
    let own_id = shared.settings().server_id;
    if settings.server_id == own_id {
        return Err(SourceError::SameId(own_id).into());
    }
    crate::log::lock(&shared.version).clone_from(&settings.version);
    shared.semisync.store(settings.semisync, Ordering::Relaxed);
    let start = start(shared, &mut client, &settings, writer, config, &known)?;
    let heartbeat = u64::try_from(config.heartbeat.as_nanos()).unwrap_or(u64::MAX);
    for statement in dialect.preparation(heartbeat, own_id, settings.semisync) {
        client.query(&statement)?;
    }
    // The checksum in force until the first format event. It may have been set anew since the variables were queried.
    let checksum = client.query(dialect.checksum_query())?.into_iter().next();
    let checksum = match checksum.and_then(|row| row.into_iter().next().flatten()).as_deref() {
        Some("NONE") => Checksum::None,
        Some("CRC32") => Checksum::Crc32,
        other => {
            let value = other.unwrap_or_default().into();
            return Err(SourceError::Value { name: "binlog_checksum", value }.into());
        }
    };
    let register = RegisterSlave { server_id: own_id, host: config.application_name.clone(), port: 0 };
    client.ask(&register.encode(), "COM_REGISTER_SLAVE")?;
    let Start { epoch, file, mut offset, goes_on } = start;
    // The requested position counts as received before: it is durable, or nothing of the epoch is here yet.
    let position = u32::try_from(offset).unwrap_or_else(|_| {
        offset = MAGIC.len() as u64;
        MAGIC.len() as u32
    });
    let name = file.as_ref().map(ToString::to_string).unwrap_or_default();
    let dump = Dump { position, flags: dialect.dump_flags(), server_id: own_id, file: name.clone() };
    let (channel, read) = client.begin(&dump.encode())?;
    let io = ClientError::Io;
    channel.set_timeouts(config.timeout, WRITE).map_err(io)?;
    shared.control.hold(generation, channel.another().map_err(io)?)?;
    // After the connection was registered: a later fence interrupts it.
    let promise = shared.promise.now();
    if epoch <= u64::from(promise.fenced_up_to()) {
        let (term, source_id) = (promise.term(), settings.server_id);
        return Err(Failed::Fenced { epoch, term, source_id });
    }
    let acknowledger = Acknowledger::new(shared, epoch, channel.another().map_err(io)?);
    let flushed = Arc::clone(&acknowledger);
    let tell: Box<dyn Fn() + Send + Sync> = Box::new(move || flushed.flushed());
    shared.log.tell_of_flushes(settings.semisync.then_some(tell));
    if goes_on && writer.end() == 0 {
        // The file was begun, and none of its bytes have arrived.
        writer.take(&MAGIC)?;
    }
    info!(upstream = config.address, source = settings.server_id, epoch, file = name, offset, "asked for events");
    let mut stream = Stream {
        shared,
        writer,
        source: settings.server_id,
        epoch,
        file,
        begun: goes_on,
        asked: offset,
        announced: false,
        at: offset,
        ready: 0,
        acknowledger,
        receiver: Receiver::new(dialect, offset, checksum, settings.semisync),
        generation,
    };
    let concerns = settings.does_not_wait();
    shared.set_concerns(concerns);
    stream.receive(channel, &read, config, back_off)
}

/// Determines the start position at the source. No query may wait for a commit of the source that waits for this relay, as SHOW BINARY LOGS and SHOW
/// MASTER STATUS do.
fn start(
    shared: &Shared,
    client: &mut Client,
    settings: &Settings,
    writer: &Writer,
    config: &UpstreamConfig,
    known: &impl Fn(Channel) -> Result<(), Failed>,
) -> Result<Start, Failed> {
    let first = MAGIC.len() as u64;
    let epoch = shared.log.next_epoch(settings.server_id, shared.promise.now().fenced_up_to());
    let Some((log_file, group)) = writer.resume() else {
        // The whole log of the source: any replica that the source could serve can be served from here.
        return Ok(Start { epoch, file: None, offset: first, goes_on: false });
    };
    if log_file.source == settings.server_id {
        settings.still_has(&shared.log.history())?;
        let (epoch, file, offset) = (log_file.epoch, Some(log_file.name.clone()), group.max(first));
        return Ok(Start { epoch, file, offset, goes_on: true });
    }
    let own = shared.log.durable().state;
    settings.has(&own)?;
    let purged = || SourceError::Purged { has: settings.state.clone(), own: own.clone() };
    let (file, begins) = file_at(shared, config, &own, known)?.ok_or_else(purged)?;
    let reaches_back = match (&own, begins) {
        (State::MySql(own), Some(State::MySql(begins))) => own.includes(&begins),
        (State::MariaDb(own), _) => {
            let rows = client.query(&format!("SELECT BINLOG_GTID_POS('{file}', 4)"))?;
            let text = rows.into_iter().next().and_then(|row| row.into_iter().next().flatten()).unwrap_or_default();
            let wrong = SourceError::Value { name: "gtid_binlog_state", value: text.clone() };
            let begins: mariadb::Position = text.parse().map_err(|_| wrong)?;
            source::reaches_back(&begins, own)
        }
        _ => false,
    };
    if !reaches_back {
        return Err(purged().into());
    }
    info!(source = settings.server_id, was = log_file.source, %own, %file, "another source, which has everything: a new epoch");
    Ok(Start { epoch, file: Some(file), offset: first, goes_on: false })
}

/// Returns the file from which the source would serve a replica that has `own`, and, if the source sends it, the list of GTIDs with which the file
/// begins; None if the source cannot serve it. The source gets the request of such a replica, and only the beginning of the answer is read.
fn file_at(
    shared: &Shared,
    config: &UpstreamConfig,
    own: &State,
    known: &impl Fn(Channel) -> Result<(), Failed>,
) -> Result<Option<(FileName, Option<State>)>, Failed> {
    let password = password(config)?.unwrap_or_default();
    let mut client = Client::open(&access(config, &password)?, known)?;
    let server_id = shared.settings().server_id;
    let (preparation, dump) = match own {
        State::MariaDb(own) => {
            let position = own.position();
            let preparation = vec![
                "SET @master_binlog_checksum = 'NONE'".into(),
                "SET @mariadb_slave_capability = 4".into(),
                format!("SET @slave_connect_state = '{position}'"),
                format!("SET @slave_until_gtid = '{position}'"),
            ];
            let dump = Dump { position: MAGIC.len() as u32, flags: NON_BLOCK, server_id, file: String::new() };
            (preparation, dump.encode())
        }
        State::MySql(own) => {
            let dump = DumpGtid { flags: NON_BLOCK | THROUGH_GTID, server_id, set: own.clone() };
            (vec!["SET @source_binlog_checksum = 'NONE'".to_owned()], dump.encode())
        }
    };
    for statement in preparation {
        client.query(&statement)?;
    }
    let (mut channel, read) = client.begin(&dump)?;
    channel.set_timeouts(config.timeout, WRITE).map_err(ClientError::Io)?;
    let mut messages = Messages::new(MAX_MESSAGE);
    let (mut buffer, mut found, mut total) = (read, None::<FileName>, 0);
    let mut checksum = Checksum::None;
    loop {
        let mut input = &buffer[..];
        let wrong = |error: TooLong| ReceiveError::Protocol(error.to_string());
        while let Some((_, message)) = messages.next(&mut input).map_err(wrong)? {
            match message.split_first() {
                Some((0, event)) => {
                    let Some((header, body)) = event.split_first_chunk::<HEADER>() else { continue };
                    let event = Event { header: Header::parse(header), at: 0, artificial: true, body };
                    match &found {
                        None if event.header.kind == Kind::ROTATE => {
                            let name = Rotate::parse(body).map_err(ReceiveError::Body)?.name;
                            let text = String::from_utf8_lossy(&name).into_owned();
                            found = Some(FileName::parse(&name).ok_or(Failed::Name(text))?);
                        }
                        // MySQL leaves the checksums in the events of its file, whatever was requested.
                        Some(_) if shared.log.dialect == Dialect::MySql && event.header.kind == Kind::FORMAT => {
                            checksum = Format::parse(body).map_err(ReceiveError::Body)?.checksum;
                        }
                        // Of MySQL nothing more is needed. MariaDB's answer ends by itself.
                        Some(file) if shared.log.dialect == Dialect::MySql => {
                            let end = body.len().saturating_sub(checksum.bytes());
                            let event = Event { body: &body[..end], ..event };
                            if let Some(begins) = Dialect::MySql.begins(&event).map_err(ReceiveError::Body)? {
                                return Ok(Some((file.clone(), Some(begins))));
                            }
                        }
                        _ => {}
                    }
                }
                Some((0xff, _)) => {
                    let error = ServerError::parse(&message);
                    return if error.code == FATAL_READ { Ok(None) } else { Err(ReceiveError::Refused(error).into()) };
                }
                Some((0xfe, _)) => return Ok(found.map(|file| (file, None))),
                _ => {}
            }
        }
        // Only the list at the end follows, unless the source has replicated the position without writing it to its own log.
        if found.is_some() && total > READ {
            return Ok(found.map(|file| (file, None)));
        }
        buffer.resize(READ, 0);
        let count = channel.read(&mut buffer).map_err(ClientError::Io)?;
        if count == 0 {
            return Err(ClientError::Closed.into());
        }
        buffer.truncate(count);
        total += count;
    }
}

struct Stream<'a> {
    shared: &'a Arc<Shared>,
    writer: &'a mut Writer,
    source: u32,
    epoch: u64,
    /// The next file. None: the source's first, whatever its name.
    file: Option<FileName>,
    /// True if that file is the one being written.
    begun: bool,
    asked: u64,
    announced: bool,
    /// Offset of the next byte.
    at: u64,
    /// Offset up to which events of the file are whole.
    ready: u64,
    acknowledger: Arc<Acknowledger>,
    receiver: Receiver,
    generation: u64,
}

impl Stream<'_> {
    fn receive(
        &mut self,
        mut channel: Channel,
        read: &[u8],
        config: &UpstreamConfig,
        back_off: &mut Duration,
    ) -> Result<std::convert::Infallible, Failed> {
        let mut buffer = vec![0; READ];
        let mut count = read.len().min(READ);
        buffer[..count].copy_from_slice(&read[..count]);
        loop {
            let taken = self.take(&buffer[..count]);
            // Includes what was whole before an error.
            let ready = self.ready;
            self.write(|writer| writer.publish(ready))?;
            taken?;
            if self.announced {
                self.shared.upstream_is("streaming", false);
                *back_off = BACK_OFF.0;
            }
            if channel.is_readable() {
                self.writer.flush_behind();
            } else {
                self.writer.flush_here();
            }
            count = channel.read(&mut buffer).map_err(|error| match error.kind() {
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => ClientError::Silent(config.timeout),
                _ => ClientError::Io(error),
            })?;
            if count == 0 {
                return Err(ClientError::Closed.into());
            }
            self.shared.counts.received_bytes.fetch_add(count as u64, Ordering::Relaxed);
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        let (mut input, mut piece) = (bytes, &[][..]);
        while let Some(step) = self.receiver.next(&mut input, &mut piece)? {
            match step {
                Step::Announced(rotate) => self.announced(&rotate)?,
                Step::Header(header) => self.bytes(&header)?,
                Step::Bytes(bytes) => self.bytes(bytes)?,
                Step::Event(whole) => {
                    let held = self.writer.end();
                    if whole.end <= held {
                        if whole.wanted && whole.whole {
                            self.acknowledger.sent_again(whole.end);
                        }
                        continue;
                    }
                    if let Some(state) = whole.begins {
                        self.writer.begins_with(state)?;
                    }
                    self.writer.mark(whole.whole, whole.wanted, whole.gtid, whole.group)?;
                    self.ready = whole.end;
                }
                Step::Heartbeat(_) => {}
            }
        }
        Ok(())
    }

    /// Handles the announcement of a file: another one, or the one requested.
    fn announced(&mut self, rotate: &Rotate) -> Result<(), Failed> {
        let name = || String::from_utf8_lossy(&rotate.name).into_owned();
        let file = FileName::parse(&rotate.name).ok_or_else(|| Failed::Name(name()))?;
        let current = self.file.clone();
        if !self.announced {
            if current.as_ref().is_some_and(|current| *current != file) || rotate.position != self.asked {
                let name_of = current.map_or_else(|| "its first file".into(), |current| current.to_string());
                let (asked, given, offset) = (format!("{name_of} from {}", self.asked), name(), rotate.position);
                return Err(Failed::Unasked { asked, given, offset });
            }
            self.announced = true;
        } else if current.as_ref() == Some(&file) {
            return Ok(());
        } else if current.as_ref().is_some_and(|current| file.number() != current.number() + 1)
            || rotate.position != MAGIC.len() as u64
        {
            return Err(Failed::Gap {
                held: current.map_or_else(String::new, |current| current.to_string()),
                given: format!("{} from {}", name(), rotate.position),
            });
        } else {
            self.begun = false;
        }
        if !self.begun {
            let (ready, epoch, source) = (self.ready, self.epoch, self.source);
            self.write(|writer| writer.publish(ready))?;
            self.write(|writer| writer.begin(epoch, source, file.clone()))?;
            self.writer.take(&MAGIC)?;
            self.receiver.jump(MAGIC.len() as u64);
            (self.file, self.begun, self.at, self.ready) = (Some(file), true, MAGIC.len() as u64, 0);
        }
        Ok(())
    }

    /// Writes. When the disk is full it first removes unneeded files, and then waits for room with the connection open: a source of version 10.11 may
    /// hang for good if the connection ends in the middle of an event. Durable events stay acknowledged meanwhile.
    fn write(&mut self, mut work: impl FnMut(&mut Writer) -> Result<(), AppendError>) -> Result<(), Failed> {
        let mut told = false;
        loop {
            match work(self.writer) {
                Err(error @ AppendError::Full { .. }) => {
                    self.writer.flush_behind();
                    if self.made_room() {
                        continue;
                    }
                    if !told {
                        told = true;
                        error!(%error, "the disk is full: receiving waits");
                        self.shared.upstream_is(&error.to_string(), true);
                    }
                    if self.shared.control.pause(self.generation, FULL_PAUSE) {
                        return Err(UpstreamError::Interrupted.into());
                    }
                }
                result => {
                    if told && result.is_ok() {
                        info!("there is room again");
                        self.shared.upstream_is("streaming", false);
                    }
                    return Ok(result?);
                }
            }
        }
    }

    /// True if unneeded files existed, and were removed.
    fn made_room(&self) -> bool {
        match self.shared.log.retain(self.shared.needed(), 0, self.shared.settings().max_bytes) {
            Ok(removed) if removed.is_empty() => false,
            Ok(removed) => {
                let files = removed.len();
                warn!(files, "the disk is full: gave up old binary logs that nobody needs, whatever keep_bytes says");
                true
            }
            Err(error) => {
                warn!(%error, "the disk is full, and old binary logs cannot be removed");
                false
            }
        }
    }

    /// Handles bytes of the file: compares the held ones, appends the others.
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        if !self.announced {
            return Err(ReceiveError::Protocol("events before the name of their file".into()).into());
        }
        let held = usize::try_from(self.writer.end().saturating_sub(self.at)).unwrap_or(usize::MAX).min(bytes.len());
        let (old, new) = bytes.split_at(held);
        if !old.is_empty() {
            self.writer.compare(self.at, old)?;
        }
        if !new.is_empty() {
            self.writer.take(new)?;
            self.write(Writer::make_room)?;
        }
        self.at += bytes.len() as u64;
        Ok(())
    }
}

/// Result of a query of the source's variables.
pub(super) struct Looked {
    /// Reasons why a commit there may not be durable on the relay; empty if there are none.
    pub(super) concerns: Vec<String>,
    pub(super) settings: Settings,
}

/// Queries the source's variables.
fn variables(dialect: Dialect, client: &mut Client) -> Result<Settings, Failed> {
    let answers =
        source::questions(dialect).iter().map(|question| client.query(question)).collect::<Result<Vec<_>, _>>()?;
    Ok(Settings::read(dialect, &answers)?)
}

/// Queries, over another connection, whether the source's commits wait. Blocking.
pub(super) fn look(dialect: Dialect, config: &UpstreamConfig) -> Result<Looked, Failed> {
    let password = password(config)?.unwrap_or_default();
    let known = |_| Ok::<(), Failed>(());
    let mut client = Client::open(&access(config, &password)?, known)?;
    let settings = variables(dialect, &mut client)?;
    let mut concerns = settings.does_not_wait();
    let variable = dialect.semisync_status();
    let status = client.query(&format!("SHOW GLOBAL STATUS LIKE '{variable}'"))?;
    let status = status.into_iter().next().and_then(|row| row.into_iter().nth(1).flatten());
    if settings.semisync && status.as_deref() == Some("OFF") {
        concerns.push(format!(
            "the source does not wait for replicas at this moment ({variable} is OFF): it has given up waiting"
        ));
    }
    Ok(Looked { concerns, settings })
}
