//! `kingpost backup`: from a server to the archive, in pieces of bounded size.

use std::io::{IsTerminal as _, Read as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use archive::{BLOCK, BackupId, BackupPart, Identity};
use config::Config;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use process::{Failure, StopSignals, terminal};
use registry_client::Sources;
use relay::{BackupEvent, BackupSession, BaseBackup, Cause, ServerAccess, SessionError};
use tokio::sync::mpsc;
use watermark::Lsn;
use wire::replication::{BackupOptions, INCREMENTAL_SINCE};

use crate::args::TakeArgs;
use crate::catalog::{Catalog, Counter, now, now_micros};
use crate::chain::{self, Wanted};
use crate::mark::{BEAT, Mark, State, is_dead};
use crate::record::{NEEDED, Point, Record, Stream, is_number};
use crate::restore::manifest_of;
use crate::say::Say;
use crate::size;

/// Pieces in work at a time: compressed, or on their way to the archive.
const AT_ONCE: usize = 4;
/// Most tablespaces, as their numbers in names.
const MOST: usize = 4096;

/// A connection to the server of a backup, and the server's name in the configuration.
pub(crate) struct Server {
    name: String,
    session: BackupSession,
}

/// A message of the thread that reads from the server.
enum Read {
    Piece(BackupPart, u64, Vec<u8>),
    End(Box<Ended>),
    Failed(String),
}

struct Ended {
    end: Point,
    /// Bytes of each stream.
    streams: Vec<u64>,
    manifest: u64,
}

/// Takes a backup.
pub(crate) fn take(config: &Config, args: &TakeArgs) -> Result<(), Failure> {
    if args.label.len() > 500 || args.label.contains(|c: char| c.is_control()) {
        return Err(Failure::config("--label: at most 500 bytes, and no control characters"));
    }
    let runtime = process::control_runtime()?;
    let config = &runtime.block_on(with_nodes(config))?;
    let server = connect(config, args.from.as_deref())?;
    let wanted = if args.incremental { Wanted::Incremental } else { Wanted::Full };
    let done = runtime.block_on(async {
        let mut stop = StopSignals::new()?;
        tokio::select! {
            done = run(config, args, wanted, server, None, Say::Terminal) => done.map(drop),
            signal = stop.next() => Err(Failure::runtime(format!("{signal}: the backup is not there; the next one removes its rest"))),
        }
    });
    // The thread that reads may wait for the server.
    runtime.shutdown_background();
    done
}

/// Returns the configuration with the nodes that the registry of `[cluster.from]` names; unchanged without one.
pub(crate) async fn with_nodes(config: &Config) -> Result<Config, Failure> {
    let mut filled = Config { clusters: Vec::new(), ..config.clone() };
    Sources::start(&mut filled).await?;
    Ok(filled)
}

/// Connects to the named node; otherwise to a standby, else to the primary.
pub(crate) fn connect(config: &Config, from: Option<&str>) -> Result<Server, Failure> {
    let mut nodes = config.backup_sources();
    if let Some(from) = from {
        nodes.retain(|(name, _)| *name == from);
        if nodes.is_empty() {
            return Err(Failure::config(format!("no node of the configuration is named {from:?}")));
        }
    }
    if nodes.is_empty() {
        return Err(Failure::config("no server to take a backup from")
            .advise("name the servers in [[cluster.nodes]] or [cluster.from], or one in relay.upstream.address"));
    }
    let (mut primary, mut failures) = (None, Vec::new());
    let found = each(config, &nodes, |name, opened| match opened {
        Ok(session) if session.is_standby || from.is_some() => Some(Server { name: name.into(), session }),
        Ok(session) => {
            primary = Some(Server { name: name.into(), session });
            None
        }
        Err(error) => {
            failures.push(error.to_string());
            None
        }
    })?;
    found.or(primary).ok_or_else(|| {
        Failure::environment(format!("no server gives a backup: {}", failures.join("; ")))
            .advise("backups log in as relay.upstream.user, which needs the REPLICATION attribute")
    })
}

/// Opens a session with each node, up to the first of which `take` returns something.
fn each<T>(
    config: &Config,
    nodes: &[(&str, &str)],
    mut take: impl FnMut(&str, Result<BackupSession, SessionError>) -> Option<T>,
) -> Result<Option<T>, Failure> {
    let upstream = &config.relay.upstream;
    let password = config::secret(upstream.password.as_ref(), upstream.password_file.as_deref())?;
    let connector = tls::Connector::new(&upstream.tls);
    let connector = connector.map_err(|error| Failure::config(format!("relay.upstream.tls: {error}")))?.map(Arc::new);
    let (user, password, connector) = (upstream.user.as_str(), password.as_deref(), connector.as_ref());
    Ok(nodes.iter().find_map(|(name, address)| {
        take(name, BackupSession::open(&ServerAccess { name, address, user, password, connector }))
    }))
}

/// Returns the primary's name and the end of its WAL; None if no primary answers.
pub(crate) fn primary(config: &Config, system: u64) -> Result<Option<(String, Lsn)>, Failure> {
    each(config, &config.backup_sources(), |name, opened| {
        let session = opened.ok().filter(|session| !session.is_standby && session.system == system)?;
        Some((name.to_owned(), session.position))
    })
}

/// Takes a backup, in a turn of the schedule if one is given. False: another process has that turn.
pub(crate) async fn run(
    config: &Config,
    args: &TakeArgs,
    wanted: Wanted,
    server: Server,
    turn: Option<u64>,
    say: Say,
) -> Result<bool, Failure> {
    let Server { name, mut session } = server;
    let identity = Identity { system_id: session.system, segment_size: session.segment_size };
    let catalog = Catalog::open(&config.relay.archive, identity).await?;
    let parent = parent(&catalog, &mut session, &name, wanted, say).await?;
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(|error| Failure::environment(format!("no random bytes: {error}")))?;
    let (started, clock) = (now(), Instant::now());
    let id = BackupId::new(started, u32::from_ne_bytes(random));
    catalog.put_mark(&id, &Mark::here(State::Making, 0, started)).await?;
    // The mark first: others look at it when they find the turn.
    if let Some(turn) = turn
        && !catalog.take_turn(turn, &id).await?
    {
        catalog.remove_mark(&id).await?;
        return Ok(false);
    }
    let others = observe(&catalog, &id).await?;

    let version = session.server_version().to_owned();
    let standby = session.is_standby;
    let mut settings = std::collections::BTreeMap::new();
    for setting in NEEDED {
        let value = session.show(setting).map_err(|error| Failure::runtime(error.to_string()))?;
        if is_number(&value) {
            settings.insert(setting.to_owned(), value);
        }
    }
    let role = if standby { "standby" } else { "primary" };
    say.note(format_args!("backup {id} from {name} ({role}, PostgreSQL {version}) to {}", catalog.name()));
    let (backup, parent) = match start(&catalog, session, parent.as_ref(), args).await? {
        Ok(backup) => (backup, parent),
        // The reason may pass: summaries that are missing, a standby that has made no checkpoint since.
        Err(error) if parent.is_some() && may_be_full(wanted, &error) => {
            say.warn(format_args!("{error}: a full backup is taken in place of an incremental one"));
            let (of, from) = (config.clone(), name.clone());
            let again = tokio::task::spawn_blocking(move || connect(&of, Some(&from))).await;
            let again = again.map_err(|error| Failure::runtime(error.to_string()))??.session;
            if again.system != identity.system_id {
                return Err(Failure::runtime(format!("{name} is of another cluster than a moment ago")));
            }
            (start(&catalog, again, None, args).await?.map_err(|error| refused(&error, None))?, None)
        }
        Err(error) => return Err(refused(&error, parent.as_ref())),
    };
    let begun = backup.begun().clone();
    if begun.tablespaces.len() > MOST {
        return Err(Failure::runtime(format!("the server has more than {MOST} tablespaces")));
    }
    let mut record = Record::begin(&id, &name, &args.label, started, Point::from(begun.start));
    (record.standby, record.server_version, record.settings) = (standby, version, settings);
    if let Some(parent) = &parent {
        record.follow(parent);
    }

    let (sender, mut reads) = mpsc::channel(1);
    let counter = Counter::default();
    let counted = Arc::clone(&counter);
    std::thread::Builder::new()
        .name("backup-read".into())
        .spawn(move || read(backup, &sender, &counted))
        .map_err(|error| Failure::environment(format!("cannot start a thread: {error}")))?;
    // The server's estimate is that of whole files.
    let sizes = begun.tablespaces.iter().try_fold(0_u64, |sum, of| Some(sum + of.size? * 1024));
    let expected = sizes.filter(|_| parent.is_none());
    let progress = Progress::new(expected, Arc::clone(&counter), say);
    let mut work = FuturesUnordered::new();
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    let mut ended = None;
    let mut beat = 0;
    let mut beaten = Instant::now();
    while ended.is_none() || !work.is_empty() {
        tokio::select! {
            read = reads.recv(), if ended.is_none() && work.len() < AT_ONCE => match read {
                Some(Read::Piece(part, from, raw)) => work.push(catalog.put_piece(id.clone(), part, from, raw)),
                Some(Read::End(end)) => ended = Some(end),
                Some(Read::Failed(why)) => return Err(Failure::runtime(why)),
                None => return Err(Failure::runtime("reading from the server has ended early")),
            },
            Some(stored) = work.next(), if !work.is_empty() => record.stored += stored?,
            _ = tick.tick() => {
                progress.show();
                if beaten.elapsed() >= BEAT {
                    if catalog.mark(&id).await?.is_none_or(|mark| mark.state == State::Removing) {
                        return Err(taken_for_dead(&id));
                    }
                    (beat, beaten) = (beat + 1, Instant::now());
                    catalog.put_mark(&id, &Mark::here(State::Making, beat, now())).await?;
                }
            }
        }
    }
    progress.end();
    let Some(end) = ended else { return Err(Failure::runtime("the backup has no end")) };
    record.end = end.end;
    record.manifest = end.manifest;
    record.streams = begun
        .tablespaces
        .into_iter()
        .zip(end.streams)
        .map(|(of, bytes)| {
            let (oid, location) = of.place.map_or((None, None), |(oid, location)| (Some(oid), Some(location)));
            Stream { oid, location, bytes }
        })
        .collect();
    (record.ended, record.ended_micros) = (now(), now_micros());
    finish(&catalog, &id, &record).await?;
    clean(&catalog, &others, clock, say).await;
    report(&catalog, &record, args, clock, say).await?;
    Ok(true)
}

/// Returns the backup to which the next one is to be incremental; None for a full one.
async fn parent(
    catalog: &Catalog,
    session: &mut BackupSession,
    name: &str,
    wanted: Wanted,
    say: Say,
) -> Result<Option<Record>, Failure> {
    if wanted == Wanted::Full {
        return Ok(None);
    }
    let obstacle = match session.major() {
        major if major < INCREMENTAL_SINCE => {
            Some((format!("{name} is of PostgreSQL {major}"), format!("from {INCREMENTAL_SINCE} on")))
        }
        _ => {
            let setting = session.show("summarize_wal").map_err(|error| Failure::runtime(error.to_string()))?;
            (setting != "on").then(|| (format!("summarize_wal is {setting} on {name}"), "where it is on".into()))
        }
    };
    if let Some((why, needed)) = obstacle {
        let text = format!("{why}: a server makes incremental backups {needed}");
        if wanted == Wanted::Incremental {
            let advice = "set summarize_wal = on and reload the server, which can make the next backup after a full one incremental";
            return Err(Failure::runtime(text).advise(advice));
        }
        say.warn(format_args!("{text}; a full one is taken"));
        return Ok(None);
    }
    let (records, timelines) = (catalog.records().await?, catalog.timelines().await?);
    let server = Point { lsn: session.position, timeline: session.timeline };
    let chosen = chain::parent(&records, &timelines, server, wanted, now()).cloned();
    if chosen.is_none() && wanted == Wanted::Incremental {
        let most = chain::MOST;
        return Err(Failure::runtime(format!(
            "the archive {} has no backup that an incremental one of {name} can follow: one of its history, behind fewer than {most} others",
            catalog.name()
        ))
        .advise("take a full backup: without --incremental"));
    }
    Ok(chosen)
}

/// Starts the backup, after the manifest of its parent was sent. The inner error is the server's.
async fn start(
    catalog: &Catalog,
    mut session: BackupSession,
    parent: Option<&Record>,
    args: &TakeArgs,
) -> Result<Result<BaseBackup, SessionError>, Failure> {
    let options = BackupOptions {
        label: args.label.clone(),
        fast: !args.spread,
        max_rate: args.max_rate,
        incremental: parent.is_some(),
    };
    let manifest =
        parent.map(|parent| Ok::<_, Failure>((manifest_of(catalog, parent)?, parent.id.clone()))).transpose()?;
    let started = tokio::task::spawn_blocking(move || {
        if let Some((mut reader, id)) = manifest {
            let mut manifest = Vec::new();
            let read = reader.read_to_end(&mut manifest);
            read.map_err(|error| Failure::runtime(format!("cannot read the manifest of the backup {id}: {error}")))?;
            if let Err(error) = session.upload_manifest(&manifest) {
                return Ok(Err(error));
            }
        }
        Ok(session.start(&options))
    });
    started.await.map_err(|error| Failure::runtime(error.to_string()))?
}

/// True if a full backup may take the place of an incremental one that the server refuses.
fn may_be_full(wanted: Wanted, error: &SessionError) -> bool {
    matches!(wanted, Wanted::FullEvery(_)) && matches!(error.cause, Cause::Refused { .. })
}

fn refused(error: &SessionError, parent: Option<&Record>) -> Failure {
    let failure = Failure::runtime(error.to_string());
    match parent {
        None => failure.advise("backups log in as relay.upstream.user, which needs the REPLICATION attribute"),
        Some(parent) => failure.advise(format!(
            "a backup incremental to {} needs the server's WAL summaries from its start on (wal_summary_keep_time); without --incremental it is full",
            parent.id
        )),
    }
}

/// Writes the record, unless somebody has begun to remove the backup: a cleaner writes its mark first and looks for the record then.
async fn finish(catalog: &Catalog, id: &BackupId, record: &Record) -> Result<(), Failure> {
    catalog.put_record(id, record).await?;
    if let Some(parent) = record.parent.as_deref().and_then(BackupId::parse)
        && !catalog.has_record(&parent).await?
    {
        catalog.remove_record(id).await?;
        return Err(Failure::runtime(format!(
            "the backup {parent} was removed while {id} was made, which is incremental to it"
        )));
    }
    if catalog.mark(id).await?.is_none_or(|mark| mark.state == State::Removing) {
        catalog.remove_record(id).await?;
        return Err(taken_for_dead(id));
    }
    catalog.remove_mark(id).await
}

fn taken_for_dead(id: &BackupId) -> Failure {
    Failure::runtime(format!(
        "the backup {id} was taken for dead by another one, which removed it: it gave no sign for a minute"
    ))
}

/// Returns the other backups without a record, with their marks.
async fn observe(catalog: &Catalog, own: &BackupId) -> Result<Vec<(BackupId, Option<Mark>)>, Failure> {
    let mut observed = Vec::new();
    for id in catalog.unfinished().await?.into_iter().filter(|id| id != own) {
        let mark = catalog.mark(&id).await?;
        observed.push((id, mark));
    }
    Ok(observed)
}

/// Removes what dead backups have left. Failures are said, and left to the next one.
async fn clean(catalog: &Catalog, observed: &[(BackupId, Option<Mark>)], since: Instant, say: Say) {
    for (id, first) in observed {
        let cleaned = async {
            let mark = catalog.mark(id).await?;
            if !is_dead(first.as_ref(), mark.as_ref(), since.elapsed(), now()) {
                return Ok(None);
            }
            catalog.put_mark(id, &Mark::here(State::Removing, 0, now())).await?;
            if catalog.has_record(id).await? {
                return Ok(None);
            }
            catalog.remove_data(id).await.map(Some)
        };
        match cleaned.await {
            Ok(Some(bytes)) => {
                say.note(format_args!("removed the rest of the backup {id}, which was killed ({})", size(bytes)));
            }
            Ok(None) => {}
            Err(failure) => say.note(format_args!("the rest of the backup {id} is not removed: {failure}")),
        }
    }
}

/// Waits until the archive has the WAL of the backup, and says so.
async fn report(catalog: &Catalog, record: &Record, args: &TakeArgs, clock: Instant, say: Say) -> Result<(), Failure> {
    if args.json {
        terminal::raw(&String::from_utf8_lossy(&record.render()));
        terminal::raw("\n");
    } else {
        say.line(format_args!(
            "backup {}{}: {} in {} files of the archive's format take {}, {:.1} s; WAL from {} to {}",
            record.id,
            record.parent.as_ref().map(|parent| format!(", incremental to {parent}")).unwrap_or_default(),
            size(record.bytes()),
            record.streams.len(),
            size(record.stored),
            clock.elapsed().as_secs_f64(),
            record.start.lsn,
            record.end
        ));
    }
    let waiting = Instant::now();
    let Point { lsn, timeline } = record.end;
    loop {
        let reach = catalog.reach(timeline, record.start.lsn, lsn).await?;
        if reach >= lsn {
            say.note(format_args!("restorable: the archive has the WAL up to {reach} on timeline {timeline}"));
            return Ok(());
        }
        if waiting.elapsed() >= args.wait {
            return Err(Failure::runtime(format!(
                "the backup {} is complete and not restorable yet: it needs WAL up to {lsn} on timeline {timeline}, and the archive {} has it \
                 up to {reach}",
                record.id,
                catalog.name()
            ))
            .advise("a relay with this [relay.archive] must run and follow the cluster: its alarm and metrics say why it is behind"));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Reads the backup from the server, and gives it on in pieces; ends when nobody takes them.
fn read(mut backup: BaseBackup, to: &mpsc::Sender<Read>, counter: &AtomicU64) {
    if let Err(why) = read_pieces(&mut backup, to, counter) {
        let _ = to.blocking_send(Read::Failed(why));
    }
}

fn read_pieces(backup: &mut BaseBackup, to: &mpsc::Sender<Read>, counter: &AtomicU64) -> Result<(), String> {
    const PIECE: usize = BLOCK as usize;
    let mut streams = vec![0_u64; backup.begun().tablespaces.len()];
    let mut has_begun = vec![false; streams.len()];
    let mut manifest = 0_u64;
    let mut part: Option<BackupPart> = None;
    let mut piece: Vec<u8> = Vec::new();
    let mut from = 0_u64;
    let mut end = None;
    let gone = || "the backup was given up".to_owned();
    let flush = |part: Option<BackupPart>, from: &mut u64, piece: Vec<u8>| -> Result<(), String> {
        let Some(part) = part.filter(|_| !piece.is_empty()) else { return Ok(()) };
        let length = piece.len() as u64;
        to.blocking_send(Read::Piece(part, *from, piece)).map_err(|_| gone())?;
        *from += length;
        Ok(())
    };
    while let Some(event) = backup.event().map_err(|error| error.to_string())? {
        match event {
            BackupEvent::Archive(index) => {
                flush(part, &mut from, std::mem::take(&mut piece))?;
                if std::mem::replace(&mut has_begun[index], true) {
                    return Err("the server sent a tablespace twice".into());
                }
                let number = u16::try_from(index).map_err(|_| "too many tablespaces".to_owned())?;
                (part, from) = (Some(BackupPart::Stream(number)), 0);
            }
            BackupEvent::Manifest => {
                flush(part, &mut from, std::mem::take(&mut piece))?;
                (part, from) = (Some(BackupPart::Manifest), 0);
            }
            BackupEvent::Data(data) => {
                let bytes = data.len() as u64;
                match part {
                    Some(BackupPart::Stream(index)) => streams[usize::from(index)] += bytes,
                    Some(_) => manifest += bytes,
                    None => return Err("the server sent data of no tablespace".into()),
                }
                if manifest > crate::manifest::LARGEST {
                    return Err(format!("the server's manifest has more than {} bytes", crate::manifest::LARGEST));
                }
                counter.fetch_add(bytes, Ordering::Relaxed);
                let mut data = &data[..];
                while !data.is_empty() {
                    if piece.capacity() == 0 {
                        piece.reserve_exact(PIECE);
                    }
                    let here = data.len().min(PIECE - piece.len());
                    piece.extend_from_slice(&data[..here]);
                    data = &data[here..];
                    if piece.len() == PIECE {
                        flush(part, &mut from, std::mem::take(&mut piece))?;
                    }
                }
            }
            BackupEvent::End(point) => end = Some(Point::from(point)),
        }
    }
    flush(part, &mut from, piece)?;
    if has_begun.contains(&false) || manifest == 0 {
        return Err("the server ended the backup before all of it was sent".into());
    }
    let end = end.ok_or("the server ended the backup without its end position")?;
    to.blocking_send(Read::End(Box::new(Ended { end, streams, manifest }))).map_err(|_| gone())
}

/// A line on a terminal that shows how far a backup is.
struct Progress {
    expected: Option<u64>,
    counter: Counter,
    started: Instant,
    is_shown: bool,
}

impl Progress {
    fn new(expected: Option<u64>, counter: Counter, say: Say) -> Progress {
        let is_shown = say == Say::Terminal && std::io::stderr().is_terminal();
        Progress { expected, counter, started: Instant::now(), is_shown }
    }

    fn show(&self) {
        use std::io::Write as _;
        if !self.is_shown {
            return;
        }
        let done = self.counter.load(Ordering::Relaxed);
        let share = match self.expected {
            Some(expected) if expected > 0 => {
                format!(" of {} ({} %)", size(expected), (done * 100 / expected).min(100))
            }
            _ => String::new(),
        };
        let rate = done as f64 / self.started.elapsed().as_secs_f64().max(0.1);
        let _ = write!(std::io::stderr(), "\r{}{share}, {}/s   ", size(done), size(rate as u64));
    }

    fn end(&self) {
        if self.is_shown {
            self.show();
            terminal::note("");
        }
    }
}
