//! Storage of WAL in segment files: one writer, any number of readers, positions that grow.
//!
//! ```text
//!  Writer ── pwrite ──▶ segment files ──(file, offset, length)──▶ Reader, Reader, …
//!    │ publishes             ▲   ▲
//!    ▼ written               │   └── preallocator: the next files, full of zeroes; old ones under new names (retain)
//!  flusher ── fdatasync ─────┘
//!    │ publishes
//!    ▼ flushed ──▶ acknowledger, senders
//! ```
//!
//! The files are PostgreSQL's own, by name and content, so that `pg_waldump`, `restore_command` and `pg_archivecleanup` can read them. Beside them: a
//! lock file, and one small file that identifies the cluster (`identity`). Positions are stored in no file: they are derived from the WAL itself
//! (`recover`).
//!
//! # Invariants
//!
//! - On each timeline `written >= flushed >= acknowledged`; none decreases. `written - flushed` is at most [`MAX_UNFLUSHED`].
//! - A byte that was published as written never changes. Bytes that arrive again are compared, not written.
//! - A failed flush is never retried and trusted: the log stops.
//! - No reader makes the writer wait; the writer shares locks with readers only when it begins a segment.
//! - A file is renamed only to a higher segment number, and only while it has no reader: its old contents then differ from later writes by their page
//!   addresses.
//! - Names are durable before anything after them is reported as flushed.
//! - WAL of whole records is never truncated.

mod ahead;
mod archivable;
mod crossing;
mod directory;
mod error;
mod fetch;
pub(crate) mod files;
pub(crate) mod flush;
mod flusher;
mod give_up;
mod history;
mod identity;
mod metrics;
mod new_file;
mod overlap;
mod reader;
mod recover;
mod reserve;
mod retention;
mod segment;
mod wal;
mod whole;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use arc_swap::ArcSwap;
use watermark::{Lsn, Unparker, Watermark};

pub(crate) use archivable::Archivable;
pub use directory::{Directory, LOCK_FILE};
pub use error::{AppendError, FetchError, LogError, LogFailure, ReadError, SwitchError};
pub use fetch::fetch;
pub use give_up::give_up;
pub use history::{History, HistoryError, MAX_HISTORY_BYTES};
pub use identity::{Identity, STATE_FILE, earlier_term, take_over};
pub use metrics::{FLUSH_BUCKETS_US, FlushTimes, LogMetrics};
pub use new_file::NewFile;
pub use overlap::Link;
pub use reader::{Chunk, Next, Reader, Serve};
pub use recover::{MAX_SPARES, Recovery, Start, identify};
pub use retention::Retention;
pub use segment::{PAGE, Segment, SegmentSize, Timeline};
pub use wal::{Landmark, PAGE_BYTES, Stop, Walker};
pub use writer::Writer;

use ahead::Ahead;
use crossing::Crossing;
use files::failed;
use whole::Walked;

/// Limit of bytes written and not flushed. An append that would exceed it waits for the disk. Recovery relies on the limit.
pub const MAX_UNFLUSHED: u64 = 64 << 20;

/// Options for opening a log.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Directory of the log.
    pub directory: Directory,
    /// Expected identity. Must be equal to that of the directory, if it has one.
    pub identity: Identity,
    /// Used only if no WAL is held.
    pub start: Option<Start>,
    /// Segments created ahead of time: 1 to [`MAX_SPARES`].
    pub spares: usize,
}

/// The growing end of the log: one timeline's positions. Each timeline switch creates a new one, which may begin below the end of the last one: the
/// beginning of a record whose rest never came is truncated.
#[derive(Debug)]
pub struct Tail {
    /// The timeline.
    pub timeline: Timeline,
    /// Start of this process's writing on the timeline: the end that recovery found, or the switch point.
    pub begin: Lsn,
    /// End of the bytes in the files.
    pub written: Arc<Watermark>,
    /// End of the bytes on the disk.
    pub flushed: Arc<Watermark>,
    /// End of the bytes acknowledged to the upstream. Published by the acknowledger.
    pub acknowledged: Arc<Watermark>,
    /// End of the bytes that are on the disk and acknowledged to the current upstream; 0 while there is none, or before the first acknowledgement.
    /// Unlike `acknowledged` it never covers bytes that only an earlier upstream has sent.
    pub confirmed: Arc<Watermark>,
    ended: OnceLock<(Timeline, Lsn)>,
}

impl Tail {
    fn new(timeline: Timeline, begin: Lsn) -> Arc<Tail> {
        let mark = || Arc::new(Watermark::new(begin));
        let ended = OnceLock::new();
        Arc::new(Tail {
            timeline,
            begin,
            written: mark(),
            flushed: mark(),
            acknowledged: mark(),
            confirmed: Arc::default(),
            ended,
        })
    }

    /// Returns the next timeline and its switch point; `None` while this timeline is written.
    #[must_use]
    pub fn ended(&self) -> Option<(Timeline, Lsn)> {
        self.ended.get().copied()
    }
}

/// Amount of held WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetainedWal {
    /// Number of segments, including those of ended timelines.
    pub segments: usize,
    /// Bytes of the segments, and of the files created ahead of time and in reserve.
    pub bytes: u64,
    /// Start of the oldest segment after which none is missing.
    pub oldest: Lsn,
}

/// Result of [`Log::retain`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// Names of the segments that are no longer held.
    pub segments: Vec<String>,
    /// Number of recycled files among them.
    pub recycled: usize,
}

/// WAL in a directory; shared by readers and maintenance. [`Log::open`] also returns the [`Writer`].
#[derive(Debug)]
pub struct Log {
    dir: PathBuf,
    identity: Identity,
    recovery: Recovery,
    tail: ArcSwap<Tail>,
    changes: Watermark<u64>,
    change_count: AtomicU64,
    failure: OnceLock<LogFailure>,
    /// Woken when the log fails: the writer, while it waits for a flush.
    writer: Mutex<Option<Unparker>>,
    /// Segments with WAL. A file is opened once, and shared while it is open.
    held: Mutex<BTreeMap<Segment, Weak<File>>>,
    /// Segments that a reader has had. The kernel may still refer to sent pages of such a file, in sockets that are closed here: the file is never
    /// overwritten.
    lent: Mutex<BTreeSet<Segment>>,
    /// Segments with bytes written and not flushed, oldest first; the last one is being written.
    unflushed: Mutex<VecDeque<Unflushed>>,
    flushing: flush::Flushing,
    ahead: Mutex<Ahead>,
    histories: Mutex<BTreeMap<Timeline, Arc<[u8]>>>,
    metrics: LogMetrics,
    /// The last examined segment starts, with the records that cross them.
    crossings: Mutex<[(Lsn, Option<Crossing>); 2]>,
    /// Progress of the search for whole records.
    walked: Mutex<Option<Walked>>,
    /// True if the last attempt to create a file found no room.
    short: AtomicBool,
    /// The thread that creates files ahead of time.
    preallocator: OnceLock<std::thread::Thread>,
    #[cfg(test)]
    faults: tests::Faults,
}

#[derive(Debug, Clone)]
struct Unflushed {
    segment: Segment,
    file: Arc<File>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    /// Opens the log: finds the end of WAL, makes it durable, and starts the flusher's and the
    /// preallocator's threads, which end with the [`Writer`].
    ///
    /// # Errors
    /// [`LogError`]: the directory is another cluster's, is damaged, or the operating system refuses.
    pub fn open(options: LogOptions) -> Result<(Writer, Arc<Log>), LogError> {
        Log::open_within(options, MAX_UNFLUSHED)
    }

    /// Opens a log of which at most `unflushed` bytes had been written and not flushed; else as [`Log::open`].
    fn open_within(options: LogOptions, unflushed: u64) -> Result<(Writer, Arc<Log>), LogError> {
        let LogOptions { directory, identity, start, spares } = options;
        let spares = spares.clamp(1, MAX_SPARES);
        let dir = directory.path().to_owned();
        claim(&dir, identity)?;
        let mut listing = recover::list(&dir, &identity)?;
        let recovered = recover::recover(&dir, &identity, start, &listing, spares, unflushed)?;
        let report = recovered.report;
        tracing::info!(
            dir = %dir.display(), timeline = report.timeline.0, end = %report.end, walked_from = %report.walked_from,
            records = report.records, discarded = report.discarded, "log opened"
        );
        if !report.set_aside.is_empty() {
            tracing::error!(
                copies = ?report.set_aside, end = %report.end,
                "WAL behind its end was out of reach: the upstream has to send it again; what was there is kept in copies"
            );
        }
        let tail = Tail::new(report.timeline, report.end);
        let next = identity.segment_size.number(Lsn(report.end.0.saturating_sub(1))) + 1;
        let current = Segment { number: identity.segment_size.number(report.end), timeline: report.timeline };
        let log = Arc::new(Log {
            recovery: report,
            tail: ArcSwap::new(tail.clone()),
            changes: Watermark::new(0),
            change_count: AtomicU64::new(0),
            failure: OnceLock::new(),
            writer: Mutex::new(None),
            held: Mutex::new(recovered.held.into_iter().map(|segment| (segment, Weak::new())).collect()),
            lent: Mutex::default(),
            unflushed: Mutex::new(VecDeque::new()),
            flushing: flush::Flushing::default(),
            ahead: Mutex::new(Ahead::new(tail.timeline, next, spares, recovered.ahead)),
            histories: Mutex::new(std::mem::take(&mut listing.histories)),
            metrics: LogMetrics::default(),
            crossings: Mutex::default(),
            walked: Mutex::default(),
            short: AtomicBool::new(false),
            preallocator: OnceLock::new(),
            #[cfg(test)]
            faults: tests::Faults::default(),
            dir,
            identity,
        });
        let writer = Writer::start(log.clone(), tail, current, directory)?;
        Ok((writer, log))
    }

    /// Returns the cluster and the segment size of the WAL.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the directory of the files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the result of the recovery.
    #[must_use]
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Returns the timeline being written, with its positions.
    #[must_use]
    pub fn tail(&self) -> Arc<Tail> {
        self.tail.load_full()
    }

    /// Returns the start of the oldest segment after which none is missing.
    #[must_use]
    pub fn start(&self) -> Lsn {
        self.retained().oldest
    }

    /// Counts timeline switches and the log's failure: awaited together with a position, since positions do not move then.
    #[must_use]
    pub fn changes(&self) -> &Watermark<u64> {
        &self.changes
    }

    /// Returns the reason for the log's failure; `None` while it works.
    #[must_use]
    pub fn failure(&self) -> Option<&LogFailure> {
        self.failure.get()
    }

    /// Sets a function called after each flush, by the flushing thread: for a caller that each flush would wake otherwise. It may wait for a socket,
    /// for a bounded time: the next flush waits for it. None removes it. A call may be in progress when this returns.
    pub fn tell_of_flushes(&self, tell: Option<Box<dyn Fn() + Send + Sync>>) {
        self.flushing.tell(tell);
    }

    /// True if the disk had no room at the last attempt to create a file ahead of time. The caller may then discard unneeded WAL before receiving has
    /// to wait.
    #[must_use]
    pub fn is_short_of_room(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Has missing files created ahead of time, if there is room now. Does not wait.
    pub fn prepare(&self) {
        if let Some(thread) = self.preallocator.get() {
            thread.unpark();
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn metrics(&self) -> &LogMetrics {
        &self.metrics
    }

    /// Returns the amount of held WAL.
    #[must_use]
    pub fn retained(&self) -> RetainedWal {
        let size = self.identity.segment_size;
        let current = self.tail.load().written.get();
        let ahead = lock(&self.ahead).len();
        let held = lock(&self.held);
        let mut oldest = size.number(current);
        for number in held.keys().rev().map(|segment| segment.number) {
            if number + 1 < oldest {
                break;
            }
            oldest = oldest.min(number);
        }
        let reserve = usize::from(self.has_reserve());
        let bytes = (held.len() + ahead + reserve) as u64 * size.bytes();
        RetainedWal { segments: held.len(), bytes, oldest: size.start(oldest) }
    }

    /// Returns the content of a timeline's history file; `None` if it is not held.
    #[must_use]
    pub fn history(&self, timeline: Timeline) -> Option<Arc<[u8]>> {
        lock(&self.histories).get(&timeline).cloned()
    }

    /// True if the log holds the segment.
    pub(crate) fn holds(&self, segment: Segment) -> bool {
        lock(&self.held).contains_key(&segment)
    }

    /// Returns all histories.
    pub(crate) fn histories(&self) -> Vec<(Timeline, Arc<[u8]>)> {
        lock(&self.histories).iter().map(|(timeline, content)| (*timeline, content.clone())).collect()
    }

    /// Stores a timeline's history file durably. For the timeline that the log begins on and older ones: a switch brings its own.
    ///
    /// # Errors
    /// [`LogError`]: the content is invalid, another one is held for the timeline, or it cannot be written.
    pub fn store_history(&self, timeline: Timeline, content: &[u8]) -> Result<(), LogError> {
        let path = self.dir.join(timeline.history_name());
        History::parse(timeline, content).map_err(|source| LogError::History { path: path.clone(), source })?;
        let mut histories = lock(&self.histories);
        match histories.get(&timeline) {
            Some(held) if held[..] == *content => return Ok(()),
            Some(_) => return Err(LogError::OtherHistory { timeline }),
            None => {}
        }
        self.write_history(&path, content)?;
        histories.insert(timeline, content.into());
        Ok(())
    }

    /// Returns a reader that begins at `at` on `timeline`, which may have ended.
    ///
    /// # Errors
    /// [`ReadError`], with PostgreSQL's messages.
    pub fn reader(self: &Arc<Self>, timeline: Timeline, at: Lsn) -> Result<Reader, ReadError> {
        Reader::open(self.clone(), timeline, at)
    }

    /// Removes unneeded WAL according to `retention`; never the last segment with WAL nor unflushed bytes. Takes as long as the file system does to
    /// remove files: not for threads that must not wait.
    ///
    /// # Errors
    /// [`LogError::Io`]; files removed before the error stay removed.
    pub fn retain(&self, retention: &Retention) -> Result<Removed, LogError> {
        let size = self.identity.segment_size;
        // The last segment with WAL stays, even when it is full: an upstream proves by it that it has the same history.
        let current = size.number(Lsn(self.tail.load().flushed.get().0.saturating_sub(1)));
        let old: Vec<(Segment, bool)> = {
            let mut held = lock(&self.held);
            let segments: Vec<Segment> = held.keys().copied().collect();
            let first = retention::first_to_keep(&segments, current, size, retention);
            let stay = held.split_off(&Segment { number: first, timeline: Timeline(0) });
            let old = std::mem::replace(&mut *held, stay);
            let mut lent = lock(&self.lent);
            // A reader with the file open continues: such a file only loses its name.
            let unread = |segment: &Segment, file: &Weak<File>| file.strong_count() == 0 && !lent.contains(segment);
            let old = old.into_iter().map(|(segment, file)| (segment, unread(&segment, &file))).collect();
            *lent = lent.split_off(&Segment { number: first, timeline: Timeline(0) });
            old
        };
        let mut removed = Removed::default();
        for (segment, unread) in old {
            let recycled = unread && (self.recycle(segment)? || self.reserve_from(segment)?);
            if recycled {
                removed.recycled += 1;
                self.metrics.segments_recycled.fetch_add(1, Ordering::Relaxed);
            } else {
                self.remove(segment)?;
                self.metrics.segments_removed.fetch_add(1, Ordering::Relaxed);
            }
            removed.segments.push(segment.name(size));
        }
        Ok(removed)
    }

    fn remove(&self, segment: Segment) -> Result<(), LogError> {
        let path = self.path(segment);
        match fs::remove_file(&path) {
            // pg_archivecleanup may have removed it.
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    fn path(&self, segment: Segment) -> PathBuf {
        self.dir.join(segment.name(self.identity.segment_size))
    }

    /// Returns the history that ends with `timeline`.
    fn parsed_history(&self, timeline: Timeline) -> History {
        let content = self.history(timeline);
        // It was parsed when it was stored.
        content.and_then(|content| History::parse(timeline, &content).ok()).unwrap_or_else(|| History::none(timeline))
    }

    /// Returns the open file of a held segment, which is opened if necessary.
    pub(crate) fn file(&self, segment: Segment) -> Result<Option<Arc<File>>, LogError> {
        let mut held = lock(&self.held);
        let Some(slot) = held.get_mut(&segment) else { return Ok(None) };
        if let Some(file) = slot.upgrade() {
            return Ok(Some(file));
        }
        let path = self.path(segment);
        match File::open(&path) {
            Ok(file) => {
                let file = Arc::new(file);
                *slot = Arc::downgrade(&file);
                Ok(Some(file))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("open", &path)(error)),
        }
    }

    /// Returns the file for a reader, which may have the kernel send it.
    fn lend(&self, segment: Segment) -> Result<Option<Arc<File>>, LogError> {
        let file = self.file(segment)?;
        if file.is_some() {
            lock(&self.lent).insert(segment);
        }
        Ok(file)
    }

    /// Wakes all waiters: something other than a position has changed.
    fn changed(&self) {
        self.changes.publish(self.change_count.fetch_add(1, Ordering::AcqRel) + 1);
    }

    fn fail(&self, failure: LogFailure) {
        tracing::error!(%failure, "the log has stopped");
        let _ = self.failure.set(failure);
        self.changed();
        if let Some(writer) = &*lock(&self.writer) {
            writer.unpark();
        }
    }
}

/// Compares the directory's identity with the expected one; sets it in an empty directory. A directory without WAL accepts another segment size, but
/// no other cluster.
fn claim(dir: &Path, identity: Identity) -> Result<(), LogError> {
    let Some(content) = identity::read(dir)? else {
        if let Some(example) = recover::any_segment(dir)? {
            return Err(LogError::NotALog { dir: dir.into(), example, state: STATE_FILE });
        }
        return identity::write(dir, identity);
    };
    let held = content.identity;
    if held.system_id != identity.system_id {
        return Err(LogError::OtherCluster { dir: dir.into(), held: held.system_id, given: identity.system_id });
    }
    if held.segment_size != identity.segment_size {
        // After a reset, possibly because of `pg_resetwal --wal-segsize`.
        if recover::any_segment(dir)?.is_none() {
            return identity::write(dir, identity);
        }
        let (held, given) = (held.segment_size.bytes(), identity.segment_size.bytes());
        return Err(LogError::OtherSegmentSize { dir: dir.into(), held, given });
    }
    Ok(())
}
