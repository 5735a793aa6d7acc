//! Receiving from the source: one thread that reads and appends.
//!
//! ```text
//!  connect ─▶ what are you? ─▶ where do we go on? ─▶ announce ourselves, ask for events ─▶ receive … ─▶ back off, and again
//! ```

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::binlog::MAGIC;
use ::binlog::event::Rotate;
use ::binlog::gtid::mariadb::Position;
use ::binlog::protocol::command::{ANNOTATE_ROWS, Dump, RegisterSlave};
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

/// First and longest pause before connecting again.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Pause after something that trying again does not help.
const ALARM_PAUSE: Duration = Duration::from_secs(5);
/// Bytes read at once.
const READ: usize = 256 << 10;
/// Longest time to send an acknowledgement.
const WRITE: Duration = Duration::from_secs(10);

/// Why nothing is received.
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
    /// Whether trying again does not help, and somebody has to look.
    fn is_alarm(&self) -> bool {
        match self {
            Failed::Client(error) => error.is_lasting(),
            Failed::Receive(error) => !matches!(error, ReceiveError::Ended),
            Failed::Upstream(error) => error.is_alarm(),
            Failed::Source(_) | Failed::Append(_) | Failed::Name(_) | Failed::Gap { .. } | Failed::Unasked { .. } => {
                true
            }
            Failed::Fenced { .. } => false,
        }
    }
}

/// The receiving thread: until the relay is stopped, or the log has failed.
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
        let (alarm, text) = (failed.is_alarm(), failed.to_string());
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

/// With what to log in at the source.
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

/// From where a source is asked.
struct Start {
    epoch: u64,
    file: FileName,
    offset: u64,
    /// The file is the one that is written.
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
    let settings = Settings::read(&client.query(&source::question())?)?;
    let own_id = shared.settings().server_id;
    if settings.server_id == own_id {
        return Err(SourceError::SameId(own_id).into());
    }
    crate::log::lock(&shared.version).clone_from(&settings.version);
    shared.semisync.store(settings.semisync, Ordering::Relaxed);
    let start = start(shared, &mut client, &settings, writer)?;
    let heartbeat = u64::try_from(config.heartbeat.as_nanos()).unwrap_or(u64::MAX);
    for statement in [
        &*format!("SET @master_heartbeat_period = {heartbeat}"),
        "SET @master_binlog_checksum = @@global.binlog_checksum",
        "SET @mariadb_slave_capability = 4",
        &*format!("SET @rpl_semi_sync_slave = {}", u8::from(settings.semisync)),
    ] {
        client.query(statement)?;
    }
    let register = RegisterSlave { server_id: own_id, host: config.application_name.clone(), port: 0 };
    client.ask(&register.encode(), "COM_REGISTER_SLAVE")?;
    let Start { epoch, file, mut offset, goes_on } = start;
    // What is asked for is taken as received before: it is durable, or nothing of the epoch is there yet.
    let position = u32::try_from(offset).unwrap_or_else(|_| {
        offset = MAGIC.len() as u64;
        MAGIC.len() as u32
    });
    let dump = Dump { position, flags: ANNOTATE_ROWS, server_id: own_id, file: file.to_string() };
    let (channel, read) = client.begin(&dump.encode())?;
    let io = ClientError::Io;
    channel.set_timeouts(config.timeout, WRITE).map_err(io)?;
    shared.control.hold(generation, channel.another().map_err(io)?)?;
    // After the connection was made known: a fence that comes later interrupts it.
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
        // The file was begun, and nothing of it has come.
        writer.take(&MAGIC)?;
    }
    info!(upstream = config.address, source = settings.server_id, epoch, file = %file, offset, "asked for events");
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
        receiver: Receiver::new(offset, settings.checksum, settings.semisync),
    };
    let concerns = settings.does_not_wait();
    shared.set_concerns(concerns);
    stream.receive(channel, &read, config, back_off)
}

/// Where the source is to begin.
fn start(shared: &Shared, client: &mut Client, settings: &Settings, writer: &Writer) -> Result<Start, Failed> {
    let logs = |client: &mut Client| -> Result<Vec<FileName>, Failed> {
        let rows = client.query("SHOW BINARY LOGS")?;
        let names = rows.into_iter().filter_map(|row| row.into_iter().next().flatten());
        names.map(|name| FileName::parse(name.as_bytes()).ok_or(Failed::Name(name))).collect()
    };
    let first = MAGIC.len() as u64;
    let Some((held, group)) = writer.resume() else {
        // Everything that the source has: whoever could be fed by it can be fed from here.
        let file = logs(client)?.into_iter().next().ok_or(SourceError::NoLog)?;
        return Ok(Start { epoch: shared.log.epoch() + 1, file, offset: first, goes_on: false });
    };
    if held.source == settings.server_id {
        let (epoch, file, offset) = (held.epoch, held.name.clone(), group.max(first));
        return Ok(Start { epoch, file, offset, goes_on: true });
    }
    let own = shared.log.durable().state;
    settings.has(&own)?;
    for file in logs(client)?.into_iter().rev() {
        let rows = client.query(&format!("SELECT BINLOG_GTID_POS('{file}', 4)"))?;
        let text = rows.into_iter().next().and_then(|row| row.into_iter().next().flatten()).unwrap_or_default();
        let wrong = SourceError::Value { name: "gtid_binlog_state", value: text.clone() };
        let begins: Position = text.parse().map_err(|_| wrong)?;
        if source::reaches_back(&begins, &own) {
            info!(source = settings.server_id, was = held.source, %own, %file, "another source, which has everything: a new epoch");
            return Ok(Start { epoch: shared.log.epoch() + 1, file, offset: first, goes_on: false });
        }
    }
    Err(SourceError::Purged { has: settings.state.clone(), own }.into())
}

struct Stream<'a> {
    shared: &'a Arc<Shared>,
    writer: &'a mut Writer,
    source: u32,
    epoch: u64,
    /// The file that comes.
    file: FileName,
    /// It is the one that is written.
    begun: bool,
    asked: u64,
    announced: bool,
    /// Offset of the next byte.
    at: u64,
    /// Up to here events of the file are whole.
    ready: u64,
    acknowledger: Arc<Acknowledger>,
    receiver: Receiver,
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
            // Also what was whole before an error.
            self.writer.publish(self.ready)?;
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
                        self.writer.begins_with(state);
                    }
                    self.writer.mark(whole.whole, whole.wanted, whole.gtid, whole.group);
                    self.ready = whole.end;
                }
                Step::Heartbeat(_) => {}
            }
        }
        Ok(())
    }

    /// What follows is of another file, or of the one that was asked for.
    fn announced(&mut self, rotate: &Rotate) -> Result<(), Failed> {
        let name = || String::from_utf8_lossy(&rotate.name).into_owned();
        let file = FileName::parse(&rotate.name).ok_or_else(|| Failed::Name(name()))?;
        if !self.announced {
            if file != self.file || rotate.position != self.asked {
                let (asked, given, offset) = (format!("{} from {}", self.file, self.asked), name(), rotate.position);
                return Err(Failed::Unasked { asked, given, offset });
            }
            self.announced = true;
        } else if file == self.file {
            return Ok(());
        } else if file.number() != self.file.number() + 1 || rotate.position != MAGIC.len() as u64 {
            return Err(Failed::Gap {
                held: self.file.to_string(),
                given: format!("{} from {}", name(), rotate.position),
            });
        } else {
            self.begun = false;
        }
        if !self.begun {
            self.writer.publish(self.ready)?;
            self.writer.begin(self.epoch, self.source, file.clone())?;
            self.writer.take(&MAGIC)?;
            self.receiver.jump(MAGIC.len() as u64);
            (self.file, self.begun, self.at, self.ready) = (file, true, MAGIC.len() as u64, 0);
        }
        Ok(())
    }

    /// Bytes of the file: compared as far as they are held, else taken.
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
        }
        self.at += bytes.len() as u64;
        Ok(())
    }
}

/// What a look at the source's variables has found.
pub(super) struct Looked {
    /// Why a commit there does not mean that the relay has it; none: it does.
    pub(super) concerns: Vec<String>,
    /// Whether the source waits for semi-synchronous replicas at all.
    pub(super) semisync: bool,
}

/// Asks the source, over another connection, whether its commits wait. Blocking.
pub(super) fn look(config: &UpstreamConfig) -> Result<Looked, Failed> {
    let password = password(config)?.unwrap_or_default();
    let known = |_| Ok::<(), Failed>(());
    let mut client = Client::open(&access(config, &password)?, known)?;
    let settings = Settings::read(&client.query(&source::question())?)?;
    let mut concerns = settings.does_not_wait();
    let status = client.query("SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_status'")?;
    let status = status.into_iter().next().and_then(|row| row.into_iter().nth(1).flatten());
    if settings.semisync && status.as_deref() == Some("OFF") {
        concerns.push("the source does not wait for replicas at this moment (Rpl_semi_sync_master_status is OFF): it has given up waiting".into());
    }
    Ok(Looked { concerns, semisync: settings.semisync })
}
