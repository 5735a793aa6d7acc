//! The writer: appends the WAL that the upstream sends.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::Release};
use std::thread::JoinHandle;

use watermark::{Lsn, Parker, Waited};

use super::files::{self, failed};
use super::flush;
use super::segment::PAGE;
use super::wal::{PAGE_BYTES, Walker};
use super::{
    AppendError, Directory, History, Link, Log, LogError, LogFailure, MAX_UNFLUSHED, ReadError, Segment, SwitchError,
    Tail, Timeline, Unflushed, lock, recover,
};

/// Size of the pieces in which held bytes are compared.
const COMPARE: usize = 64 << 10;

/// The only appender. When it is dropped, written bytes are flushed, and the log's threads end.
#[derive(Debug)]
pub struct Writer {
    log: Arc<Log>,
    tail: Arc<Tail>,
    /// Position of the next byte.
    position: Lsn,
    /// The segment being written; `None` between two.
    current: Option<(Segment, Arc<File>)>,
    stop: Arc<AtomicBool>,
    /// Threads: flusher, preallocator.
    threads: Option<[JoinHandle<()>; 2]>,
    /// Held until the writer is dropped.
    _directory: Directory,
}

impl Writer {
    pub(super) fn start(
        log: Arc<Log>,
        tail: Arc<Tail>,
        current: Segment,
        directory: Directory,
    ) -> Result<Writer, LogError> {
        let position = tail.begin;
        let mut writer = Writer {
            log: log.clone(),
            tail,
            position,
            current: None,
            stop: Arc::new(AtomicBool::new(false)),
            threads: None,
            _directory: directory,
        };
        if log.identity.segment_size.offset(position) != 0 {
            let file = Arc::new(files::open(&log.path(current))?);
            writer.begin(current, file);
        }
        let spawn = |name: &str, body: fn(&Log, &AtomicBool)| {
            let (log, stop) = (log.clone(), writer.stop.clone());
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || body(&log, &stop));
            thread.map_err(failed("start a thread for", &writer.log.dir))
        };
        let flusher = spawn("wal-flush", flush::flush_on)?;
        match spawn("wal-ahead", Log::preallocate) {
            Ok(preallocator) => {
                let _ = log.preallocator.set(preallocator.thread().clone());
                writer.threads = Some([flusher, preallocator]);
            }
            Err(error) => {
                writer.stop.store(true, Release);
                flusher.thread().unpark();
                return Err(error);
            }
        }
        Ok(writer)
    }

    /// Returns the timeline being written, with its positions.
    #[must_use]
    pub fn tail(&self) -> Arc<Tail> {
        self.tail.clone()
    }

    /// Returns the position of the next byte.
    #[must_use]
    pub fn position(&self) -> (Timeline, Lsn) {
        (self.tail.timeline, self.position)
    }

    /// Returns the position from which the upstream must send: the start of the segment being written, so that its held part is compared; or of an
    /// earlier one, in which an incomplete record began. Another upstream may have left the timeline at that record.
    #[must_use]
    pub fn resume(&self) -> (Timeline, Lsn) {
        (self.tail.timeline, self.log.identity.segment_size.start_of(self.log.acknowledgeable(self.position)))
    }

    /// Returns the position from which the upstream must send to prove the same history: [`Writer::resume`], or the start of an earlier segment if
    /// the WAL held after that position cannot distinguish two histories. Reads the held WAL from there on.
    #[must_use]
    pub fn overlap(&self) -> (Timeline, Lsn) {
        let (timeline, resume) = self.resume();
        (timeline, self.log.overlap(timeline, resume, self.position))
    }

    /// Returns the record that new WAL must follow, if nothing is held from [`Writer::resume`] on that could be compared with it.
    #[must_use]
    pub fn link(&self) -> Option<Link> {
        let (timeline, resume) = self.resume();
        let previous = if resume == self.position { self.log.record_before(timeline, resume) } else { None };
        previous.map(|previous| Link::new(resume, previous))
    }

    /// Takes `bytes` and has the flusher flush them: [`Writer::take`] and [`Writer::flush_behind`].
    ///
    /// # Errors
    /// The errors of [`Writer::take`].
    pub fn append(&mut self, at: Lsn, bytes: &[u8]) -> Result<(), AppendError> {
        let taken = self.take(at, bytes);
        self.flush_behind();
        taken
    }

    /// Takes `bytes`, whose first one is at `at`. Held bytes are compared; the rest is written, and visible to readers of the written position on
    /// return. Waits only while more than [`MAX_UNFLUSHED`] bytes would be unflushed. Afterwards, also after an error, the caller must start the
    /// flush, by [`Writer::flush_behind`] or [`Writer::flush_here`]: nothing else does.
    ///
    /// # Errors
    /// [`AppendError`]; a part may have been written, and all bytes may be passed again.
    pub fn take(&mut self, at: Lsn, bytes: &[u8]) -> Result<(), AppendError> {
        if let Some(failure) = self.log.failure() {
            return Err(AppendError::Failed(failure.clone()));
        }
        if at > self.position {
            return Err(AppendError::Gap { expected: self.position, at });
        }
        let held = usize::try_from(self.position.0 - at.0).unwrap_or(usize::MAX).min(bytes.len());
        let (old, mut new) = bytes.split_at(held);
        self.compare(at, old)?;
        if new.is_empty() {
            return Ok(());
        }
        self.log.metrics.appends.fetch_add(1, Relaxed);
        let size = self.log.identity.segment_size;
        while !new.is_empty() {
            let room = size.bytes() - size.offset(self.position);
            let (here, rest) = new.split_at(new.len().min(usize::try_from(room).unwrap_or(usize::MAX)).min(MAX_PIECE));
            self.throttle(here.len() as u64)?;
            self.write(here)?;
            new = rest;
        }
        Ok(())
    }

    /// Has the flusher flush the taken bytes. Does not wait.
    pub fn flush_behind(&self) {
        self.wake(0);
    }

    /// Flushes the taken bytes in this thread, unless the flusher is doing so or the disk was slow the last time: then as [`Writer::flush_behind`].
    /// For a caller that has nothing to take meanwhile.
    pub fn flush_here(&self) {
        if !flush::flush_here(&*self.log) {
            self.flush_behind();
        }
    }

    /// Ends the timeline at `at` and continues with `to`, whose history file is `history`. All written bytes are flushed first. A switch that a crash
    /// interrupted may be repeated.
    ///
    /// # Errors
    /// [`SwitchError`]: the log is unchanged.
    pub fn switch_timeline(&mut self, to: Timeline, at: Lsn, history: &[u8]) -> Result<Arc<Tail>, SwitchError> {
        let from = self.tail.timeline;
        let parsed = History::parse(to, history).map_err(|source| SwitchError::History { to, source })?;
        if parsed.ancestors.last() != Some(&(from, at)) {
            return Err(SwitchError::NotAChild { from, to, at });
        }
        if at > self.position {
            return Err(SwitchError::Gap { to, expected: self.position, at });
        }
        if at < self.position {
            // After the switch point there may be the beginning of a record whose rest never came; nothing else.
            let held_end = self.end_of_records(at)?;
            if held_end > at {
                return Err(SwitchError::Diverged { from, to, at, held_end });
            }
        }
        self.wait_flushed(self.position).map_err(SwitchError::Failed)?;

        // In this order: a crash before the file has its name leaves the log on the old timeline.
        self.log.store_history(to, history)?;
        let size = self.log.identity.segment_size;
        let segment = Segment { number: size.number(at), timeline: to };
        let current = self.copy_to_fork(segment, at)?;
        let next = if current.is_some() { segment.number + 1 } else { segment.number };
        if let Err(error) = self.log.readdress_ahead(to, next).and_then(|()| files::sync_dir(&self.log.dir)) {
            // A restart may find the log on either timeline: nothing may be appended to the old one any more.
            let (path, flushed) = (self.log.dir.clone(), self.tail.flushed.get());
            let failure = LogFailure { tried: "switch timelines in", path, reason: error.to_string(), flushed };
            self.log.fail(failure.clone());
            return Err(SwitchError::Failed(failure));
        }

        let tail = Tail::new(to, at);
        lock(&self.log.unflushed).clear();
        // These are records of the other timeline.
        *lock(&self.log.crossings) = Default::default();
        self.current = None;
        if let Some(file) = current {
            self.begin(segment, file);
        }
        self.position = at;
        let old = std::mem::replace(&mut self.tail, tail.clone());
        self.log.tail.store(tail.clone());
        let _ = old.ended.set((to, at));
        self.log.changed();
        self.wake(1);
        tracing::info!(from = from.0, to = to.0, %at, "timeline switched");
        Ok(tail)
    }

    /// Waits until all written bytes are on the disk.
    ///
    /// # Errors
    /// The failure that stopped the log.
    pub fn flush(&mut self) -> Result<(), LogFailure> {
        self.wait_flushed(self.position)
    }

    /// Creates the new timeline's first file, with the old one's contents up to `at`; `None` if `at` is a segment's start.
    fn copy_to_fork(&self, segment: Segment, at: Lsn) -> Result<Option<Arc<File>>, SwitchError> {
        let size = self.log.identity.segment_size;
        let keep = size.offset(at);
        if keep == 0 {
            return Ok(None);
        }
        let path = self.log.path(segment);
        let unfinished = files::unfinished(&path);
        let fill = |file: &File| -> Result<(), LogError> {
            let failed = |tried| failed(tried, &unfinished);
            let mut buffer = vec![0; COMPARE];
            let mut offset = 0;
            while offset < keep {
                let here = buffer.len().min(usize::try_from(keep - offset).unwrap_or(COMPARE));
                self.read_held(Lsn(size.start_of(at).0 + offset), &mut buffer[..here])?;
                files::write_at(file, &buffer[..here], offset).map_err(failed("write"))?;
                offset += here as u64;
            }
            files::zero_fill(file, keep, size.bytes()).map_err(failed("write"))?;
            files::sync(file).map_err(failed("flush"))
        };
        let fresh = || -> Result<File, LogError> {
            let file = files::create(&unfinished).map_err(failed("make", &unfinished))?;
            #[cfg(test)]
            self.log.faults.room().map_err(failed("make", &unfinished))?;
            fill(&file)?;
            Ok(file)
        };
        let reserved = |full: LogError| -> Result<File, LogError> {
            // The incomplete file has used the last room.
            let _ = files::remove(&unfinished);
            let file = self.log.take_reserve(&unfinished)?.ok_or(full)?;
            fill(&file)?;
            Ok(file)
        };
        let made = fresh().or_else(|error| if error.is_full() { reserved(error) } else { Err(error) });
        match made.and_then(|file| files::rename_durably(&unfinished, &path).map(|()| file)) {
            Ok(file) => Ok(Some(Arc::new(file))),
            Err(error) => {
                let _ = files::remove(&unfinished);
                Err(error.into())
            }
        }
    }

    /// Returns the end of the last whole held record, searching from a little before `at`.
    fn end_of_records(&self, at: Lsn) -> Result<Lsn, LogError> {
        let size = self.log.identity.segment_size;
        let oldest = self.log.start();
        let mut from = size.start_of(Lsn(at.0.saturating_sub(1))).max(oldest);
        loop {
            let mut walker = Walker::new(self.log.identity, self.tail.timeline, from);
            let mut page = [0; PAGE_BYTES];
            while walker.at() < self.position {
                let held = usize::try_from(self.position.0 - walker.at().0).unwrap_or(PAGE_BYTES).min(PAGE_BYTES);
                // After the written bytes there may be old contents of a recycled file.
                page[held..].fill(0);
                self.read_held(walker.at(), &mut page[..held])?;
                if walker.page(&page).is_err() {
                    break;
                }
            }
            match walker.end_within(self.position) {
                Some(end) => return Ok(end),
                None if from > oldest => from = Lsn(from.0.saturating_sub(size.bytes())).max(oldest),
                None => return Ok(from),
            }
        }
    }

    /// Compares `bytes` with the held ones at `at`.
    fn compare(&self, mut at: Lsn, mut bytes: &[u8]) -> Result<(), AppendError> {
        let mut buffer = vec![0; COMPARE.min(bytes.len())];
        while !bytes.is_empty() {
            let (here, rest) = bytes.split_at(bytes.len().min(COMPARE));
            let held = &mut buffer[..here.len()];
            match self.read_held(at, held) {
                Ok(()) => {}
                Err(LogError::Io { tried, path, source }) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(AppendError::Io { tried, path, source });
                }
                Err(_) => return Err(AppendError::BeforeStart { at, oldest: self.log.start() }),
            }
            if held != here {
                let differs = held.iter().zip(here).take_while(|(held, given)| held == given).count();
                return Err(AppendError::Mismatch { at: Lsn(at.0 + differs as u64) });
            }
            self.log.metrics.compared_bytes.fetch_add(here.len() as u64, Relaxed);
            at.0 += here.len() as u64;
            bytes = rest;
        }
        Ok(())
    }

    /// Reads held bytes of this timeline's history, all before the position.
    fn read_held(&self, mut at: Lsn, mut buffer: &mut [u8]) -> Result<(), LogError> {
        let size = self.log.identity.segment_size;
        while !buffer.is_empty() {
            let number = size.number(at);
            let room = usize::try_from(size.bytes() - size.offset(at)).unwrap_or(usize::MAX);
            let (here, rest) = buffer.split_at_mut(buffer.len().min(room));
            let (segment, file) = match &self.current {
                Some((segment, file)) if segment.number == number => (*segment, file.clone()),
                _ => self.held_file(number)?,
            };
            file.read_exact_at(here, size.offset(at)).map_err(failed("read", &self.log.path(segment)))?;
            at.0 += here.len() as u64;
            buffer = rest;
        }
        Ok(())
    }

    fn held_file(&self, number: u64) -> Result<(Segment, Arc<File>), LogError> {
        let log = &self.log;
        let history = log.parsed_history(self.tail.timeline);
        let segment =
            recover::locate(&history, number, &log.identity, |segment| lock(&log.held).contains_key(&segment));
        let wanted = segment.unwrap_or(Segment { number, timeline: self.tail.timeline });
        match segment.map(|segment| log.file(segment)).transpose()?.flatten() {
            Some(file) => Ok((wanted, file)),
            None => Err(failed("open", &log.path(wanted))(io::ErrorKind::NotFound.into())),
        }
    }

    /// Writes into one segment, and publishes the written bytes, also after a partial write.
    fn write(&mut self, bytes: &[u8]) -> Result<(), AppendError> {
        let size = self.log.identity.segment_size;
        if self.current.as_ref().is_none_or(|(segment, _)| segment.number != size.number(self.position)) {
            let segment = Segment { number: size.number(self.position), timeline: self.tail.timeline };
            let file = self.log.take_ahead(segment).map_err(not_taken)?;
            self.begin(segment, file);
            self.wake(1);
        }
        let Some((segment, file)) = &self.current else { return Ok(()) };
        let (mut done, mut refused) = (0, None);
        while done < bytes.len() {
            match file.write_at(&bytes[done..], size.offset(self.position) + done as u64) {
                Ok(0) => refused = Some(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => refused = Some(error),
            }
            if refused.is_some() {
                break;
            }
        }
        let refused =
            refused.map(|source| not_taken(LogError::Io { tried: "write", path: self.log.path(*segment), source }));
        if done > 0 {
            self.position.0 += done as u64;
            self.log.metrics.appended_bytes.fetch_add(done as u64, Relaxed);
            self.tail.written.publish(self.position);
        }
        refused.map_or(Ok(()), Err)
    }

    /// Makes `segment` the one being written; the flusher and the readers learn of it before anything is published in it.
    fn begin(&mut self, segment: Segment, file: Arc<File>) {
        lock(&self.log.held).insert(segment, Arc::downgrade(&file));
        lock(&self.log.unflushed).push_back(Unflushed { segment, file: file.clone() });
        self.current = Some((segment, file));
    }

    fn throttle(&self, more: u64) -> Result<(), AppendError> {
        let wanted = Lsn((self.position.0 + more).saturating_sub(MAX_UNFLUSHED));
        if self.tail.flushed.get() >= wanted {
            return Ok(());
        }
        self.log.metrics.throttled.fetch_add(1, Relaxed);
        self.wait_flushed(wanted).map_err(AppendError::Failed)
    }

    fn wait_flushed(&self, target: Lsn) -> Result<(), LogFailure> {
        if self.tail.flushed.get() >= target {
            return Ok(());
        }
        self.flush_behind();
        let mut parker = Parker::new(self.tail.flushed.clone());
        *lock(&self.log.writer) = Some(parker.unparker());
        let waited = loop {
            // Only after the unparker is set: a failure wakes through it.
            if let Some(failure) = self.log.failure() {
                break Err(failure.clone());
            }
            if let Waited::Reached(_) = parker.wait(target, None) {
                break Ok(());
            }
        };
        *lock(&self.log.writer) = None;
        waited
    }

    /// Wakes the flusher (0) or the preallocator (1).
    fn wake(&self, thread: usize) {
        if let Some(threads) = &self.threads {
            threads[thread].thread().unpark();
        }
    }
}

/// Size limit of a piece, so that it can be flushed by itself if necessary.
const MAX_PIECE: usize = (MAX_UNFLUSHED / 4) as usize;
const _: () = assert!(MAX_UNFLUSHED.is_multiple_of(PAGE));

fn not_taken(error: LogError) -> AppendError {
    match error {
        LogError::Io { path, source, .. } if files::is_full(&source) => AppendError::Full { path, source },
        LogError::Io { tried, path, source } => AppendError::Io { tried, path, source },
        // Creating or writing a segment has no other errors.
        other => {
            AppendError::Io { tried: "make a segment in", path: Default::default(), source: io::Error::other(other) }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Release);
        if let Some(threads) = self.threads.take() {
            for thread in &threads {
                thread.thread().unpark();
            }
            for thread in threads {
                // A thread that panicked has reported it.
                let _ = thread.join();
            }
        }
    }
}

impl From<LogError> for ReadError {
    fn from(error: LogError) -> ReadError {
        match error {
            LogError::Io { path, source, .. } => ReadError::Io { path, source },
            other => ReadError::Io { path: Default::default(), source: io::Error::other(other) },
        }
    }
}
