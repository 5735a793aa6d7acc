//! Storage of binary logs: one writer, any number of readers, positions that grow.
//!
//! ```text
//!  relay.dir/
//!    0000000001-7/            epoch 1: what the server with server_id 7 wrote
//!      mysql-bin.000012       byte for byte the source's file, under the source's name
//!      mysql-bin.000013
//!    0000000002-8/            epoch 2: after a failover; the first file begins at or before where epoch 1 ends
//!      mysql-bin.000001
//! ```
//!
//! Two sources never write the same bytes, even for the same transactions: so each source gets a directory of its own, an *epoch*, and GTIDs lead
//! from one epoch to the next.
//!
//! A position ([`Lsn`]) counts the bytes of all files held since the process began; it is stored in no file. The durable end and its GTIDs are
//! derived from the files themselves ([`recover`]).
//!
//! # Invariants
//!
//! - `written >= flushed >= whole`; none goes down. `written - flushed` is at most [`MAX_UNFLUSHED`] and one event.
//! - `whole` is where a transaction ends: nothing of a transaction is fed or acknowledged before all of it is durable.
//! - A byte once published as written is never changed: what comes again is compared.
//! - A file is begun only after the one before it was flushed, with its name.
//! - No epoch but the last is ever appended to.
//! - In an epoch each transaction is new, and each file begins with what those before it have ([`Log::history`]).

mod names;
mod recover;
mod retention;
mod writer;

pub(crate) use names::FileName;
pub(crate) use recover::{LogError, give_up, is_log, last_source};
pub(crate) use writer::{AppendError, Mark, Writer};

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};

use ::binlog::Dialect;
use ::binlog::gtid::{Gtid, State};
use watermark::{Lsn, Unparker, Watermark};

use crate::log::flush::{Flush, Flushing};
use crate::log::{Directory, FlushTimes, LogFailure, lock};

/// Limit of bytes written and not flushed. An append that would exceed it waits for the disk.
pub(crate) const MAX_UNFLUSHED: u64 = 64 << 20;

/// A file of the log, shared by all of its readers.
#[derive(Debug)]
pub(crate) struct LogFile {
    /// Epoch of its directory.
    pub(crate) epoch: u64,
    /// `server_id` of the server that wrote it.
    pub(crate) source: u32,
    /// Name at the source.
    pub(crate) name: FileName,
    pub(crate) path: PathBuf,
    /// Position of its first byte.
    pub(crate) start: Lsn,
    /// State of the log at the start of the file; not set before the file's list of GTIDs has arrived.
    pub(crate) begins: OnceLock<State>,
    /// Position of its end, set once another file was begun.
    pub(crate) end: OnceLock<Lsn>,
}

impl LogFile {
    /// Returns the number of its bytes, given the end of the log.
    fn bytes(&self, written: Lsn) -> u64 {
        self.end.get().copied().unwrap_or(written).0.saturating_sub(self.start.0)
    }
}

/// End of the durable log, in whole transactions.
#[derive(Debug, Clone)]
pub(crate) struct Durable {
    /// The position; 0 while nothing is held.
    pub(crate) at: Lsn,
    /// The file, and the offset in it.
    pub(crate) file: Option<(Arc<LogFile>, u64)>,
    /// Transactions of the log up to there.
    pub(crate) state: State,
    /// The last position whose acknowledgement the source waits for.
    pub(crate) wanted: Option<(Arc<LogFile>, u64)>,
}

/// A file with bytes written and not flushed.
#[derive(Debug, Clone)]
struct Unflushed {
    log_file: Arc<LogFile>,
    file: Arc<File>,
}

/// Counters since the log was opened.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) appended_bytes: AtomicU64,
    pub(crate) appends: AtomicU64,
    pub(crate) compared_bytes: AtomicU64,
    pub(crate) throttled: AtomicU64,
    pub(crate) files_removed: AtomicU64,
    pub(crate) flushes: FlushTimes,
}

/// Binary logs in a directory; shared by readers and maintenance. [`Log::open`] also returns the [`Writer`].
#[derive(Debug)]
pub(crate) struct Log {
    directory: Directory,
    pub(crate) dialect: Dialect,
    /// Oldest first.
    log_files: Mutex<VecDeque<Arc<LogFile>>>,
    /// Epoch of the directory written now, or last; 0 if there is none.
    epoch: AtomicU64,
    pub(crate) written: Arc<Watermark>,
    pub(crate) flushed: Arc<Watermark>,
    /// See [`Durable::at`].
    pub(crate) whole: Arc<Watermark>,
    durable: Mutex<Durable>,
    /// See [`Log::history`].
    history: Mutex<State>,
    /// Source of the last epoch, even if no file of it is held.
    source: Option<u32>,
    /// Ends of transactions that are written and not durable, oldest first.
    marks: Mutex<VecDeque<Mark>>,
    unflushed: Mutex<VecDeque<Unflushed>>,
    flushing: Flushing,
    failure: OnceLock<LogFailure>,
    /// Woken when the log fails: the writer, while it waits for a flush.
    waiting: Mutex<Option<Unparker>>,
    pub(crate) metrics: Metrics,
}

impl Log {
    /// Opens the log: finds its end in the files, truncates a transaction that a crash left incomplete, and starts the flusher.
    ///
    /// # Errors
    /// [`LogError`]: a file is damaged, or the operating system refuses.
    pub(crate) fn open(directory: &Directory, dialect: Dialect) -> Result<(Writer, Arc<Log>), LogError> {
        let found = recover::recover(directory.path(), dialect)?;
        let end = found.end;
        let file = found.log_files.back().map(|log_file| (Arc::clone(log_file), end.0 - log_file.start.0));
        tracing::info!(
            dir = %directory.path().display(), files = found.log_files.len(), epoch = found.epoch, gtids = %found.state,
            cut_off = found.cut_off, "binary log opened"
        );
        let source = last_source(directory.path());
        let mark = || Arc::new(Watermark::new(end));
        let durable = Durable { at: end, file: file.clone(), state: found.state, wanted: None };
        let log = Arc::new(Log {
            directory: directory.clone(),
            dialect,
            log_files: Mutex::new(found.log_files),
            epoch: AtomicU64::new(found.epoch),
            written: mark(),
            flushed: mark(),
            whole: mark(),
            durable: Mutex::new(durable),
            history: Mutex::new(found.history.clone()),
            source,
            marks: Mutex::default(),
            unflushed: Mutex::default(),
            flushing: Flushing::default(),
            failure: OnceLock::new(),
            waiting: Mutex::default(),
            metrics: Metrics::default(),
        });
        let writer = Writer::start(Arc::clone(&log), file, found.last_group, found.history)?;
        Ok((writer, log))
    }

    /// Returns the end of the durable log.
    pub(crate) fn durable(&self) -> Durable {
        lock(&self.durable).clone()
    }

    /// Returns the transactions of the current epoch: all came from its source, and are in that server's binary log.
    pub(crate) fn history(&self) -> State {
        lock(&self.history).clone()
    }

    /// Returns the epoch for a source of which nothing is held. If the log was given up, and the epoch was fenced ([`give_up`]), the same source gets
    /// the same number again, so the fence stays in force.
    pub(crate) fn next_epoch(&self, source: u32, fenced: u32) -> u64 {
        let epoch = self.epoch();
        let is_fenced = epoch > 0 && epoch <= u64::from(fenced) && lock(&self.log_files).is_empty();
        if is_fenced && self.source == Some(source) { epoch } else { epoch + 1 }
    }

    /// Returns the epoch written now, or last; 0 if there is none.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Returns all files, oldest first.
    pub(crate) fn log_files(&self) -> Vec<Arc<LogFile>> {
        lock(&self.log_files).iter().cloned().collect()
    }

    /// Returns the file that follows an ended one; None if it was removed.
    pub(crate) fn next(&self, file: &LogFile) -> Option<Arc<LogFile>> {
        let end = file.end.get()?;
        lock(&self.log_files).iter().find(|log_file| log_file.start == *end && log_file.path != file.path).cloned()
    }

    /// Returns the reason for the log's failure; None while it works.
    pub(crate) fn failure(&self) -> Option<&LogFailure> {
        self.failure.get()
    }

    /// See [`Flushing::tell`].
    pub(crate) fn tell_of_flushes(&self, tell: Option<Box<dyn Fn() + Send + Sync>>) {
        self.flushing.tell(tell);
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the number of bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        let written = self.written.get();
        lock(&self.log_files).iter().map(|log_file| log_file.bytes(written)).sum()
    }

    /// Removes the oldest unneeded files: never the last one, never one at or after the position `needed`, unless more than `max_bytes` are held.
    /// `keep_bytes` stay in any case. Returns the removed paths.
    ///
    /// # Errors
    /// [`LogError::Io`]; files removed before the error stay removed.
    pub(crate) fn retain(
        &self,
        needed: Option<Lsn>,
        keep_bytes: u64,
        max_bytes: u64,
    ) -> Result<Vec<PathBuf>, LogError> {
        let durable = self.flushed.get();
        let needed = needed.map_or(durable, |needed| needed.min(durable));
        let old: Vec<Arc<LogFile>> = {
            let mut log_files = lock(&self.log_files);
            let spans: Vec<(Lsn, u64)> = log_files.iter().map(|file| (file.start, file.bytes(durable))).collect();
            let count = retention::removable(&spans, needed, keep_bytes, max_bytes).min(behind(&log_files));
            log_files.drain(..count).collect()
        };
        let mut removed = Vec::new();
        for file in old {
            recover::remove(&file.path)?;
            self.metrics.files_removed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            removed.push(file.path.clone());
            if let Some(directory) = file.path.parent().filter(|_| file.epoch < self.epoch()) {
                // Fails while the directory has another file.
                let _ = std::fs::remove_dir(directory);
            }
        }
        Ok(removed)
    }

    fn fail(&self, failure: LogFailure) {
        tracing::error!(%failure, "the binary log has stopped");
        let _ = self.failure.set(failure);
        if let Some(writer) = &*lock(&self.waiting) {
            writer.unpark();
        }
    }

    /// Publishes the marks that have become durable.
    fn advance(&self, flushed: Lsn) {
        let mut marks = lock(&self.marks);
        let count = marks.partition_point(|mark| mark.at <= flushed);
        if count == 0 {
            return;
        }
        let mut durable = lock(&self.durable);
        for mark in marks.drain(..count) {
            durable.at = mark.at;
            for gtid in &mark.gtids {
                // A new epoch begins with transactions that the previous one has, too.
                if !durable.state.contains(*gtid) && !durable.state.add(*gtid) {
                    tracing::warn!(%gtid, "too many domains and servers, or origins, in the log's state");
                }
            }
            if mark.wanted {
                durable.wanted = Some((Arc::clone(&mark.file), mark.offset));
            }
            durable.file = Some((mark.file, mark.offset));
        }
        let at = durable.at;
        drop(durable);
        drop(marks);
        self.whole.publish(at);
    }
}

/// Files with bytes written and not flushed, up to `written`.
pub(crate) struct Batch {
    written: Lsn,
    files: Vec<Unflushed>,
}

impl Flush for Log {
    type Batch = Batch;

    fn flushing(&self) -> &Flushing {
        &self.flushing
    }

    fn times(&self) -> &FlushTimes {
        &self.metrics.flushes
    }

    fn has_failed(&self) -> bool {
        self.failure().is_some()
    }

    fn batch(&self) -> Option<Batch> {
        let written = self.written.get();
        if written <= self.flushed.get() {
            return None;
        }
        let files = lock(&self.unflushed).iter().filter(|file| file.log_file.start < written).cloned().collect();
        Some(Batch { written, files })
    }

    fn files(batch: &Batch) -> usize {
        batch.files.len()
    }

    fn sync(&self, batch: &Batch, file: usize) -> io::Result<()> {
        batch.files[file].file.sync_data()
    }

    fn flushed(&self, batch: &Batch, file: usize) {
        let end = batch.files[file].log_file.end.get().copied().unwrap_or(batch.written);
        let flushed = end.min(batch.written);
        self.flushed.publish(flushed);
        self.advance(flushed);
    }

    fn failed(&self, batch: &Batch, file: usize, error: io::Error) {
        let (flushed, path) = (self.flushed.get(), batch.files[file].log_file.path.clone());
        self.fail(LogFailure { tried: "flush", path, reason: error.to_string(), flushed });
    }

    fn settled(&self, batch: Batch) {
        let over = |log_file: &LogFile| log_file.end.get().is_some_and(|end| *end <= batch.written);
        lock(&self.unflushed).retain(|file| !over(&file.log_file));
    }
}

/// Returns the number of oldest files that do not determine the log's state. An epoch's first file contains the point where the previous epoch ended:
/// while it is the only one, it may not have reached that point, and only the last file of the previous epoch gives the end of the log.
fn behind(log_files: &VecDeque<Arc<LogFile>>) -> usize {
    let mut last = log_files.len().saturating_sub(1);
    while last > 0 && log_files[last - 1].epoch != log_files[last].epoch {
        last -= 1;
    }
    last
}

/// Merges the later of two GTID lists of one mark. Of MariaDB's GTIDs the last one stays for each domain and server, in order. MySQL's all stay, since
/// numbers may be missing: as many as transactions fit into [`MAX_UNFLUSHED`].
fn merge(gtids: &mut Vec<Gtid>, more: &[Gtid]) {
    for gtid in more {
        if let Gtid::MariaDb(new) = gtid {
            let is_same = |held: &Gtid| match held {
                Gtid::MariaDb(held) => (held.domain, held.server) == (new.domain, new.server),
                Gtid::MySql(_) => false,
            };
            gtids.retain(|held| !is_same(held));
        }
        gtids.push(*gtid);
    }
}

#[cfg(test)]
mod tests;
