//! The archiver: one thread that writes the log's segments and histories to the archive of `[relay.archive]`.
//!
//! It reads durable bytes from the log's files and shares nothing else with receiving and acknowledging. A slow, full or absent archive costs room on the
//! relay's disk, never a commit's time.

mod state;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::archive::config::ArchiveConfig;
use ::archive::{
    Archive, ArchiveError, FileName, Held, Identity, Job, Kind, Progress, Put, Span, StoreError, keys, next_whole, sum,
};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::watch;
use tracing::{debug, info, warn};
use watermark::Lsn;

use crate::error::StartError;
use crate::log::{Archivable, Log, Segment, Timeline};
use crate::shared::Shared;

pub(crate) use state::ArchiveMarks;
pub use state::ArchiveStatus;

/// Objects in work at a time. Each takes up to two blocks of memory: the raw bytes and the compressed ones.
const AT_ONCE: usize = 4;
/// Shortest time between two passes when there was nothing more to do: each lists what it has written.
const SHORTEST_WAIT: Duration = Duration::from_millis(500);
/// Longest wait after a failure; the first is a second.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Longest time of a look at a configuration that has no archive.
const IDLE: Duration = Duration::from_secs(1);
/// Longest time to archive the newest WAL at the end.
const FAREWELL: Duration = Duration::from_secs(5);
/// Added to the nice value of threads that compress: receiving comes first.
const NICE: i32 = 5;

/// The archiver's thread.
#[derive(Debug)]
pub(crate) struct Archiving {
    stop: watch::Sender<bool>,
    ended: Mutex<Option<Receiver<()>>>,
}

impl Archiving {
    /// Starts the thread. It follows the configuration, also over reloads.
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Archiving, StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("relay-archive")
            .max_blocking_threads(AT_ONCE * 2)
            .on_thread_start(|| {
                // Only for this thread, on Linux. Without it the archiver competes with receiving for the processor.
                let _ = rustix::process::nice(NICE);
            })
            .build()
            .map_err(StartError::Thread)?;
        let (stop, mut stopped) = watch::channel(false);
        let (sender, ended) = sync_channel(1);
        let mut archiver = Archiver { shared: Arc::clone(shared), open: None };
        let run = move || {
            let _ = rustix::process::nice(NICE);
            runtime.block_on(async {
                tokio::select! {
                    () = archiver.run() => {}
                    _ = stopped.wait_for(|stop| *stop) => {}
                }
                // What has come since the last pass; the receiver has ended.
                if tokio::time::timeout(FAREWELL, archiver.finish()).await.is_err() {
                    warn!("the archive lacks the newest WAL: it did not take it within {FAREWELL:?}");
                }
            });
            // A file system that hangs keeps its thread.
            runtime.shutdown_background();
            let _ = sender.send(());
        };
        std::thread::Builder::new().name("relay-archive".into()).spawn(run).map_err(StartError::Thread)?;
        Ok(Archiving { stop, ended: Mutex::new(Some(ended)) })
    }

    /// Ends the thread. It archives the newest WAL before, for some seconds at most.
    pub(crate) fn finish(&self) {
        self.stop.send_replace(true);
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        if ended.is_some_and(|ended| ended.recv_timeout(FAREWELL * 2) == Err(RecvTimeoutError::Timeout)) {
            warn!("the archiver has not ended");
        }
    }
}

impl Drop for Archiving {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

struct Archiver {
    shared: Arc<Shared>,
    open: Option<Open>,
}

/// An open archive, and the knowledge about it.
struct Open {
    config: ArchiveConfig,
    archive: Archive,
    progress: Progress,
    /// Histories that are in the archive.
    histories: BTreeMap<Timeline, ()>,
}

impl Archiver {
    async fn run(&mut self) {
        let mut wait = Duration::ZERO;
        let mut failures = 0_u32;
        loop {
            tokio::time::sleep(wait).await;
            let config = self.shared.settings().archive.clone();
            if !config.is_on() {
                self.open = None;
                self.shared.archive.off();
                (wait, failures) = (IDLE, 0);
                continue;
            }
            self.shared.archive.on(&config);
            let Some(log) = self.shared.log() else {
                wait = IDLE.min(config.interval);
                continue;
            };
            let flushed = log.tail().flushed.get();
            self.shared.archive.sample(flushed);
            match self.pass(&config, &log).await {
                Ok(has_more) => {
                    self.shared.archive.works(&config);
                    if !has_more {
                        rest(&log, flushed, config.interval).await;
                    }
                    (wait, failures) = (Duration::ZERO, 0);
                }
                Err(error) => {
                    self.shared.archive.fails(&config, &error);
                    if !matches!(error, ArchiveError::Store(StoreError::Failed { .. })) {
                        // Looked at from the beginning: an operator may have mended it.
                        self.open = None;
                    }
                    wait = Duration::from_secs(1 << failures.min(5)).min(LONGEST_WAIT);
                    failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// Archives the rest, also in parts.
    async fn finish(&mut self) {
        let (config, Some(log)) = (self.shared.settings().archive.clone(), self.shared.log()) else { return };
        if !config.is_on() {
            return;
        }
        loop {
            match self.pass(&config, &log).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return warn!(%error, "the archive lacks the newest WAL"),
            }
        }
    }

    /// Writes the next objects, and confirms what the archive lists. True: there is more to do at once.
    async fn pass(&mut self, config: &ArchiveConfig, log: &Arc<Log>) -> Result<bool, ArchiveError> {
        if self.open.as_ref().is_none_or(|open| open.config != *config) {
            self.open = None;
            let archive = self.attach(config, log).await?;
            let progress = Progress::new(archive.identity().segment_size);
            self.open = Some(Open { config: config.clone(), archive, progress, histories: BTreeMap::new() });
        }
        let Some(open) = &mut self.open else { return Ok(false) };
        // A new key in the file encrypts from now on.
        open.archive.set_keys(keys(config)?);
        open.histories(log).await?;
        let held = held(log);
        open.progress.forget(&held.files);
        open.look(&held.files).await?;
        let jobs = open.progress.next(&held.files, AT_ONCE);
        let is_busy = jobs.iter().any(|job| job.kind == Kind::Block);
        let done = open.work(log, &held, jobs, &self.shared.archive).await;
        self.shared.archive.covers(held.flushed, open.progress.behind(&held.files));
        done?;
        open.look(&held.files).await?;
        self.shared.archive.confirm(held.confirmed(&open.progress));
        open.clean(&held.files).await;
        Ok(is_busy)
    }

    /// Opens the archive, and says so.
    async fn attach(&self, config: &ArchiveConfig, log: &Log) -> Result<Archive, ArchiveError> {
        let store = ::archive::open(config)?;
        let identity = log.identity();
        let identity = Identity { system_id: identity.system_id, segment_size: identity.segment_size.bytes() };
        let archive = Archive::open(store, identity, self.shared.archive.was_open(config)).await?;
        self.shared.archive.opened(config);
        info!(archive = config.url, creates = archive.creates(), "archiving");
        Ok(archive)
    }
}

impl Open {
    /// Writes the histories that are not there, and compares the others: a timeline with another history is another cluster's branch.
    async fn histories(&mut self, log: &Log) -> Result<(), ArchiveError> {
        for (timeline, content) in log.histories() {
            if self.histories.contains_key(&timeline) {
                continue;
            }
            let Some(file) = FileName::parse(&timeline.history_name()) else { continue };
            let bytes = content.len() as u64;
            let span = Span { file: file.clone(), from: 0, to: bytes };
            let sealed = self.archive.seal(Kind::History, &span, &content[..], bytes);
            let sealed = sealed.map_err(|source| ArchiveError::Local { file, source })?;
            self.archive.put(&self.archive.path(Kind::History, &span), Kind::History, &span, sealed).await?;
            self.histories.insert(timeline, ());
        }
        Ok(())
    }

    /// Lists the directories that matter.
    async fn look(&mut self, held: &[Held]) -> Result<(), ArchiveError> {
        for directory in self.progress.to_list(held) {
            let listed = self.archive.list(&directory).await?;
            for path in self.progress.listed(&directory, &listed, held) {
                warn!(
                    path,
                    "the archive lacks an object that was written, or shows it with another size: written again"
                );
            }
        }
        Ok(())
    }

    /// Carries out jobs, several at a time. The first error is returned when all have ended.
    async fn work(
        &mut self,
        log: &Arc<Log>,
        held: &HeldLog,
        jobs: Vec<Job>,
        marks: &ArchiveMarks,
    ) -> Result<(), ArchiveError> {
        let archive = &self.archive;
        let mut running: FuturesUnordered<_> = jobs.into_iter().map(|job| carry_out(archive, log, held, job)).collect();
        let mut failed = None;
        while let Some(ended) = running.next().await {
            match ended {
                Ok(Some((job, put, size))) => {
                    self.progress.done(&job, if put == Put::New { size } else { 0 });
                    marks.put(put, size);
                }
                Ok(None) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Removes parts that nobody needs. A failure only costs room: the credentials may not permit it.
    async fn clean(&mut self, held: &[Held]) {
        for part in self.progress.superseded() {
            if let Err(error) = self.archive.remove(&self.archive.path(Kind::Part, &part)).await {
                return debug!(%error, "parts stay");
            }
            self.progress.removed(&part);
        }
        while let Some(file) = self.progress.to_clean(held) {
            // Also those that other relays have written.
            let listed = match self.archive.list(&::archive::part_directory(&file)).await {
                Ok(listed) => listed,
                Err(error) => return debug!(%error, "parts stay"),
            };
            for object in listed {
                if let Err(error) = self.archive.remove(&object.path).await {
                    debug!(%error, "parts stay");
                    break;
                }
            }
            self.progress.cleaned(&file);
        }
    }
}

/// Waits for `interval`, but not much longer than until a block is whole that was not at `flushed`.
async fn rest(log: &Log, flushed: Lsn, interval: Duration) {
    let tail = log.tail();
    let whole = Lsn(next_whole(flushed.0, log.identity().segment_size.bytes()));
    let least = SHORTEST_WAIT.min(interval);
    tokio::time::sleep(least).await;
    let _ = tokio::time::timeout(interval - least, tail.flushed.reached(whole)).await;
}

/// The log's segments, as an archive sees them.
struct HeldLog {
    files: Vec<Held>,
    segments: Vec<Archivable>,
    flushed: Lsn,
    segment_size: crate::log::SegmentSize,
}

fn held(log: &Log) -> HeldLog {
    let (flushed, segments) = log.archivable();
    let segment_size = log.identity().segment_size;
    let file = |of: &Archivable| {
        let file = FileName::parse(&of.segment.name(segment_size))?;
        Some(Held { file, durable: of.durable, is_closed: of.is_closed })
    };
    // Every segment has a name that is valid.
    let (segments, files) = segments.into_iter().filter_map(|of| file(&of).map(|file| (of, file))).unzip();
    HeldLog { files, segments, flushed, segment_size }
}

impl HeldLog {
    /// Returns the position up to which the relay may remove segments.
    fn confirmed(&self, progress: &Progress) -> Lsn {
        match self.segments.get(progress.confirmed(&self.files)) {
            Some(first) => self.segment_size.start(first.segment.number),
            None => self.segment_size.start_of(self.flushed),
        }
    }

    fn segment(&self, file: &FileName) -> Option<Segment> {
        let index = self.files.iter().position(|held| held.file == *file)?;
        Some(self.segments[index].segment)
    }
}

/// Compares or writes one object. None: the log does not hold the segment any more.
async fn carry_out(
    archive: &Archive,
    log: &Arc<Log>,
    held: &HeldLog,
    job: Job,
) -> Result<Option<(Job, Put, u64)>, ArchiveError> {
    let path = archive.path(job.kind, &job.span);
    let local = |source| ArchiveError::Local { file: job.span.file.clone(), source };
    let Some(segment) = held.segment(&job.span.file) else { return Ok(None) };
    let file = match log.file(segment) {
        Ok(Some(file)) => file,
        // Removed meanwhile: the archive had confirmed it before it was opened again.
        Ok(None) if !log.holds(segment) => return Ok(None),
        Ok(None) => return Err(local(io::ErrorKind::NotFound.into())),
        Err(error) => return Err(local(io::Error::other(error.to_string()))),
    };
    let raw = At { file, at: job.span.from };
    let bytes = job.span.bytes();
    if job.is_listed {
        let raw = raw.clone();
        let sum = blocking(move || sum(raw, bytes)).await.map_err(local)?;
        if archive.compare(&path, job.kind, &job.span, sum).await? {
            return Ok(Some((job, Put::Equal, 0)));
        }
    }
    let (sealing, kind, span) = (archive.clone(), job.kind, job.span.clone());
    let sealed = blocking(move || sealing.seal(kind, &span, raw, bytes)).await.map_err(local)?;
    let size = sealed.object.len() as u64;
    let put = archive.put(&path, job.kind, &job.span, sealed).await?;
    Ok(Some((job, put, size)))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panicked| Err(io::Error::other(panicked.to_string())))
}

/// A reader of a file from an offset on. The file is open, so its name is not given to a later segment.
#[derive(Debug, Clone)]
struct At {
    file: Arc<File>,
    at: u64,
}

impl Read for At {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
