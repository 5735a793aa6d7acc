//! The writer: appends the source's stream, event by event.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use ::binlog::gtid::{Gtid, State};
use watermark::{Lsn, Parker, Waited};

use super::recover::{self, LogError};
use super::{FileName, Log, LogFile, MAX_UNFLUSHED, Unflushed, merge, names};
use crate::log::files::is_full;
use crate::log::{LogFailure, flush, lock};

/// Bytes collected before a write to the file.
const GATHERED: usize = 1 << 20;
/// Limit of individually remembered ends of transactions that are not durable; further ones are merged with the last.
const MAX_MARKS: usize = 4096;
/// Size of the pieces in which held bytes are compared.
const COMPARE: usize = 64 << 10;

/// The end of a transaction, or of an event outside of one.
#[derive(Debug, Clone)]
pub(crate) struct Mark {
    pub(crate) at: Lsn,
    pub(crate) file: Arc<LogFile>,
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Transactions that ended since the previous mark.
    pub(crate) gtids: Vec<Gtid>,
    /// True if the source waits for its acknowledgement.
    pub(crate) wanted: bool,
}

/// Bytes were not accepted. No accepted bytes are lost, and nothing was overwritten.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppendError {
    /// The source's bytes differ from the held ones.
    #[error(
        "{} differs from what the source sends at offset {offset}: the source is not the server that wrote it, or has begun anew. Nothing \
         was overwritten", path.display()
    )]
    Mismatch {
        /// Path of the file.
        path: PathBuf,
        /// Offset of the first different byte, or a little before it.
        offset: u64,
    },
    /// The source's transactions do not continue the held ones.
    #[error(
        "the source goes on with {given} in {file}, and this relay holds {held} of it: the source has begun its history anew ({reset}), or \
         was put back. Nothing of that is taken"
    )]
    Parted {
        /// The transaction, or the list at the start of a file.
        given: String,
        /// The source's file.
        file: String,
        /// The last held transactions.
        held: State,
        /// The statement that does so.
        reset: &'static str,
    },
    /// The disk is full. May be retried.
    #[error("no room for the binary log in {}: {source}; nothing is acknowledged until there is room", path.display())]
    Full {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The operating system refused; may be retried.
    #[error("cannot {tried} {}: {source}", path.display())]
    Io {
        /// The failed operation, a verb.
        tried: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// An error of the log's files.
    #[error("{0}")]
    Log(LogError),
    /// The log has failed.
    #[error("{0}")]
    Failed(LogFailure),
}

impl From<LogError> for AppendError {
    fn from(error: LogError) -> AppendError {
        match error {
            LogError::Io { path, source, .. } if is_full(&source) => AppendError::Full { path, source },
            error => AppendError::Log(error),
        }
    }
}

struct Current {
    log_file: Arc<LogFile>,
    file: Arc<File>,
    /// Offset in the file up to which bytes are published as written.
    published: u64,
    /// Offset up to which bytes were taken; the last ones are in `gathered`.
    taken: u64,
    /// The last bytes before `taken`, which are not in the file yet.
    gathered: Vec<u8>,
}

/// The only appender. When it is dropped, written bytes are flushed, and the flusher ends.
pub(crate) struct Writer {
    log: Arc<Log>,
    current: Option<Current>,
    /// Offset of the last transaction of the current file, or of the last event outside of one.
    last_group: u64,
    /// Marks of `taken`, not yet published.
    marks: VecDeque<Mark>,
    /// [`Log::history`], including what is marked and not yet published.
    history: State,
    /// True once the epoch's history is known: its first file's list of GTIDs has arrived.
    epoch_begun: bool,
    stop: Arc<AtomicBool>,
    flusher: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("last_group", &self.last_group).finish_non_exhaustive()
    }
}

impl Writer {
    pub(super) fn start(
        log: Arc<Log>,
        file: Option<(Arc<LogFile>, u64)>,
        last_group: u64,
        history: State,
    ) -> Result<Writer, LogError> {
        let epoch_begun = file.is_some();
        let current = match file {
            None => None,
            Some((log_file, end)) => {
                let file = recover::open_for_writing(&log_file.path)?;
                Some(Current { log_file, file: Arc::new(file), published: end, taken: end, gathered: Vec::new() })
            }
        };
        let stop = Arc::new(AtomicBool::new(false));
        let flusher = {
            let (log, stop) = (Arc::clone(&log), Arc::clone(&stop));
            std::thread::Builder::new().name("binlog-flush".into()).spawn(move || flush::flush_on(&*log, &stop))
        };
        let flusher = flusher.map_err(recover::failed("start a thread for", log.path()))?;
        if let Some(current) = &current {
            lock(&log.unflushed)
                .push_back(Unflushed { log_file: Arc::clone(&current.log_file), file: Arc::clone(&current.file) });
        }
        Ok(Writer {
            log,
            current,
            last_group,
            marks: VecDeque::new(),
            history,
            epoch_begun,
            stop,
            flusher: Some(flusher),
        })
    }

    /// Returns the current file, with epoch, source and name, and the offset from which the source must send: the start of the last transaction, so
    /// that it is compared.
    pub(crate) fn resume(&self) -> Option<(Arc<LogFile>, u64)> {
        let current = self.current.as_ref()?;
        Some((Arc::clone(&current.log_file), self.last_group.min(current.published)))
    }

    /// Returns the end of the current file.
    pub(crate) fn end(&self) -> u64 {
        self.current.as_ref().map_or(0, |current| current.published)
    }

    /// Discards the bytes of an incomplete event: the connection has ended.
    ///
    /// # Errors
    /// [`AppendError`].
    pub(crate) fn rewind(&mut self) -> Result<(), AppendError> {
        if !self.marks.is_empty() {
            self.marks.clear();
            self.history = self.log.history();
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        current.gathered.clear();
        current.taken = current.published;
        // Written bytes of the event must not remain behind shorter events.
        let cut = current.file.set_len(current.published);
        cut.map_err(|source| AppendError::Io { tried: "cut", path: current.log_file.path.clone(), source })
    }

    /// Begins a file. The previous one is flushed first, and never written again. `epoch`: that of the last file, or a higher one.
    ///
    /// # Errors
    /// [`AppendError`]; the log is unchanged.
    pub(crate) fn begin(&mut self, epoch: u64, source: u32, name: FileName) -> Result<(), AppendError> {
        self.rewind()?;
        self.wait_flushed(self.log.written.get())?;
        let directory = self.log.path().join(names::epoch(epoch, source));
        recover::make_directory(&directory)?;
        let path = directory.join(name.as_str());
        let file = Arc::new(recover::create(&path)?);
        let start = self.log.written.get();
        if let Some(current) = &self.current {
            let _ = current.log_file.end.set(start);
        }
        let log_file =
            Arc::new(LogFile { epoch, source, name, path, start, begins: Default::default(), end: Default::default() });
        {
            let mut unflushed = lock(&self.log.unflushed);
            // All is flushed: the remaining entry is the previous file.
            unflushed.clear();
            unflushed.push_back(Unflushed { log_file: Arc::clone(&log_file), file: Arc::clone(&file) });
        }
        if self.log.epoch() != epoch {
            (self.history, self.epoch_begun) = (State::new(self.log.dialect), false);
            *lock(&self.log.history) = State::new(self.log.dialect);
        }
        self.log.epoch.store(epoch, Ordering::Release);
        lock(&self.log.log_files).push_back(Arc::clone(&log_file));
        self.current = Some(Current { log_file, file, published: 0, taken: 0, gathered: Vec::new() });
        self.last_group = 0;
        Ok(())
    }

    /// Compares `bytes`, which the source sends again, with the held ones at `offset` of the current file.
    ///
    /// # Errors
    /// [`AppendError::Mismatch`].
    pub(crate) fn compare(&mut self, offset: u64, bytes: &[u8]) -> Result<(), AppendError> {
        let Some(current) = &self.current else { return Ok(()) };
        let mut at = offset;
        for part in bytes.chunks(COMPARE) {
            let mut held = vec![0; part.len()];
            let read = current.file.read_exact_at(&mut held, at);
            let path = || current.log_file.path.clone();
            read.map_err(|source| AppendError::Io { tried: "read", path: path(), source })?;
            if let Some(differs) = held.iter().zip(part).position(|(held, given)| held != given) {
                return Err(AppendError::Mismatch { path: path(), offset: at + differs as u64 });
            }
            at += part.len() as u64;
        }
        self.log.metrics.compared_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Takes bytes of the current event. They are invisible before [`Writer::mark`] and [`Writer::publish`], and may be written to
    /// the file by [`Writer::make_room`].
    ///
    /// # Errors
    /// [`AppendError::Failed`].
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<(), AppendError> {
        if let Some(failure) = self.log.failure() {
            return Err(AppendError::Failed(failure.clone()));
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        current.gathered.extend_from_slice(bytes);
        current.taken += bytes.len() as u64;
        Ok(())
    }

    /// Writes the taken bytes if there are many.
    ///
    /// # Errors
    /// [`AppendError`]; may be retried.
    pub(crate) fn make_room(&mut self) -> Result<(), AppendError> {
        match &self.current {
            Some(current) if current.gathered.len() >= GATHERED => self.write(),
            _ => Ok(()),
        }
    }

    /// Marks the end of a whole, valid event at the end of the taken bytes. `whole`: all transactions are whole, too. `group`: the start of its
    /// transaction.
    ///
    /// # Errors
    /// [`AppendError::Parted`]: the source sends a transaction that it has sent before.
    pub(crate) fn mark(
        &mut self,
        whole: bool,
        wanted: bool,
        gtid: Option<Gtid>,
        group: u64,
    ) -> Result<(), AppendError> {
        let Some(current) = &self.current else { return Ok(()) };
        if let Some(gtid) = gtid {
            if self.history.contains(gtid) {
                return Err(self.parted(gtid.to_string()));
            }
            // If there are too many domains and servers, the list of the next file reports it.
            let _ = self.history.add(gtid);
        }
        self.last_group = group;
        if !whole {
            return Ok(());
        }
        let at = Lsn(current.log_file.start.0 + current.taken);
        let gtids = gtid.into_iter().collect();
        self.marks.push_back(Mark { at, file: Arc::clone(&current.log_file), offset: current.taken, gtids, wanted });
        Ok(())
    }

    fn parted(&self, given: String) -> AppendError {
        let file = self.current.as_ref().map(|current| current.log_file.name.to_string()).unwrap_or_default();
        AppendError::Parted { given, file, held: self.history.clone(), reset: self.log.dialect.reset() }
    }

    /// Takes the current file's list of GTIDs.
    ///
    /// # Errors
    /// [`AppendError::Parted`]: it differs from the transactions of the epoch's earlier files.
    pub(crate) fn begins_with(&mut self, state: State) -> Result<(), AppendError> {
        let Some(current) = &self.current else { return Ok(()) };
        if self.epoch_begun && !self.history.is_followed_by(&state) {
            return Err(self.parted(format!("what comes after {state}")));
        }
        self.epoch_begun = true;
        // Of MySQL the log also stands for what came before its first file: a replica may have it, and a new source must.
        if matches!(state, State::MySql(_)) && !lock(&self.log.durable).state.merge(&state) {
            tracing::warn!("too many origins in the log's state");
        }
        let _ = current.log_file.begins.set(state.clone());
        (*lock(&self.log.history)).clone_from(&state);
        self.history = state;
        Ok(())
    }

    /// Writes and publishes all whole events: `at` is the end of the last of them in the current file.
    ///
    /// # Errors
    /// [`AppendError`].
    pub(crate) fn publish(&mut self, at: u64) -> Result<(), AppendError> {
        self.write()?;
        let Some(current) = &mut self.current else { return Ok(()) };
        if at <= current.published {
            return Ok(());
        }
        let new = at - current.published;
        self.log.metrics.appended_bytes.fetch_add(new, Ordering::Relaxed);
        self.log.metrics.appends.fetch_add(1, Ordering::Relaxed);
        current.published = at;
        let written = Lsn(current.log_file.start.0 + at);
        if self.marks.iter().any(|mark| !mark.gtids.is_empty()) {
            let mut history = lock(&self.log.history);
            for gtid in self.marks.iter().flat_map(|mark| &mark.gtids) {
                let _ = history.add(*gtid);
            }
        }
        {
            let mut marks = lock(&self.log.marks);
            for mark in self.marks.drain(..) {
                let full = marks.len() >= MAX_MARKS;
                match marks.back_mut().filter(|_| full) {
                    Some(last) => {
                        let (gtids, wanted) = (std::mem::take(&mut last.gtids), last.wanted);
                        *last = Mark { gtids, wanted: wanted || mark.wanted, ..mark.clone() };
                        merge(&mut last.gtids, &mark.gtids);
                    }
                    None => marks.push_back(mark),
                }
            }
        }
        self.log.written.publish(written);
        self.throttle(written)
    }

    fn write(&mut self) -> Result<(), AppendError> {
        let Some(current) = &mut self.current else { return Ok(()) };
        if current.gathered.is_empty() {
            return Ok(());
        }
        let at = current.taken - current.gathered.len() as u64;
        let written = current.file.write_all_at(&current.gathered, at);
        written.map_err(|source| {
            let path = current.log_file.path.clone();
            if is_full(&source) {
                AppendError::Full { path, source }
            } else {
                AppendError::Io { tried: "write", path, source }
            }
        })?;
        current.gathered.clear();
        Ok(())
    }

    /// Waits for the disk while too many bytes are not flushed.
    fn throttle(&self, written: Lsn) -> Result<(), AppendError> {
        let target = Lsn(written.0.saturating_sub(MAX_UNFLUSHED));
        if self.log.flushed.get() >= target {
            return Ok(());
        }
        self.log.metrics.throttled.fetch_add(1, Ordering::Relaxed);
        self.wait_flushed(target)
    }

    fn wait_flushed(&self, target: Lsn) -> Result<(), AppendError> {
        self.flush_behind();
        let mut parker = Parker::new(Arc::clone(&self.log.flushed));
        *lock(&self.log.waiting) = Some(parker.unparker());
        let result = loop {
            // Only after the unparker is set: a failure wakes through it.
            if let Some(failure) = self.log.failure() {
                break Err(AppendError::Failed(failure.clone()));
            }
            if let Waited::Reached(_) = parker.wait(target, None) {
                break Ok(());
            }
        };
        *lock(&self.log.waiting) = None;
        result
    }

    /// Has the flusher flush the published bytes. Does not wait.
    pub(crate) fn flush_behind(&self) {
        if let Some(flusher) = &self.flusher {
            flusher.thread().unpark();
        }
    }

    /// Flushes the published bytes in this thread, unless the flusher is doing so or the disk was slow the last time.
    pub(crate) fn flush_here(&self) {
        if !flush::flush_here(&*self.log) {
            self.flush_behind();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.rewind();
        self.stop.store(true, Ordering::Release);
        if let Some(flusher) = self.flusher.take() {
            flusher.thread().unpark();
            let _ = flusher.join();
        }
    }
}
