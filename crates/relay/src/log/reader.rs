//! Readers: they find the file and offset of a position, so that a sender can let the kernel send the bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use watermark::Lsn;

use super::segment::PAGE;
use super::{Log, ReadError, Segment, Tail, Timeline, lock};

/// Limit of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Serve {
    /// Durable WAL: nothing that a crash of this host could take back.
    #[default]
    Flushed,
    /// Received WAL: one flush sooner, and safe only while the upstream lives.
    Written,
}

/// A cursor on one timeline of the log's history. Holds one file open; nobody waits for it.
#[derive(Debug)]
pub struct Reader {
    log: Arc<Log>,
    timeline: Timeline,
    position: Lsn,
    /// End of the timeline, and the next one.
    ended: Option<(Lsn, Timeline)>,
    file: Option<(Segment, Arc<File>)>,
}

/// Result of a read.
#[derive(Debug)]
pub enum Next {
    /// Bytes to send.
    Chunk(Chunk),
    /// The end of the timeline, at `at`: everything before it has been read. `next` continues.
    EndOfTimeline {
        /// The timeline that follows.
        next: Timeline,
        /// The switch point.
        at: Lsn,
    },
    /// No bytes yet: await the position's next byte on the tail's mark, or [`Log::changes`].
    CaughtUp,
}

/// Bytes in a file, kept there while this value exists.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// The segment's file.
    pub file: Arc<File>,
    /// Offset in the file.
    pub offset: u64,
    /// Number of bytes; at least one.
    pub len: usize,
    /// Position of the first byte.
    pub at: Lsn,
    /// Limit of reading at this moment.
    pub end_of_wal: Lsn,
    path: PathBuf,
}

impl Chunk {
    /// Appends the bytes to `buffer`.
    ///
    /// # Errors
    /// [`ReadError::Io`]; the buffer is as it was.
    pub fn read_into(&self, buffer: &mut Vec<u8>) -> Result<(), ReadError> {
        let length = buffer.len();
        buffer.resize(length + self.len, 0);
        self.file.read_exact_at(&mut buffer[length..], self.offset).map_err(|source| {
            buffer.truncate(length);
            ReadError::Io { path: self.path.clone(), source }
        })
    }
}

impl Reader {
    pub(super) fn open(log: Arc<Log>, timeline: Timeline, at: Lsn) -> Result<Reader, ReadError> {
        let tail = log.tail();
        let mut ended = None;
        if tail.timeline != timeline {
            let history = log.parsed_history(tail.timeline);
            let (left_at, next) = history.left(timeline).ok_or(ReadError::UnknownTimeline { timeline })?;
            if at > left_at {
                return Err(ReadError::NotInHistory { requested: at, timeline, forked_at: left_at });
            }
            ended = Some((left_at, next));
        }
        // Received WAL is on its way to the disk: it can be read a moment later.
        if at > tail.written.get() {
            return Err(ReadError::AheadOfFlush { requested: at, flushed: tail.flushed.get() });
        }
        let mut reader = Reader { log, timeline, position: at, ended, file: None };
        // Reported now, not with the first chunk: a standby that gets the error at once looks elsewhere.
        let limit = reader.limit(Serve::Written);
        if limit > at || reader.log.start() > at {
            reader.open_file()?;
        }
        Ok(reader)
    }

    /// Returns the position of the next byte.
    #[must_use]
    pub fn position(&self) -> Lsn {
        self.position
    }

    /// Returns the next bytes and moves behind them: at most `max` (but up to a page in any case), from one segment; a longer chunk ends at a page
    /// boundary, as with a server's own sender.
    ///
    /// # Errors
    /// [`ReadError::Removed`] if retention was faster; [`ReadError::Io`].
    pub fn next(&mut self, serve: Serve, max: usize) -> Result<Next, ReadError> {
        let limit = self.limit(serve);
        if self.position >= limit {
            return Ok(match self.ended {
                Some((at, next)) if self.position >= at => Next::EndOfTimeline { next, at },
                _ => Next::CaughtUp,
            });
        }
        let size = self.log.identity().segment_size;
        let offset = size.offset(self.position);
        let max = (max as u64).max(PAGE);
        let mut end = limit.0.min(self.position.0.saturating_add(max)).min(self.position.0 - offset + size.bytes());
        if end < limit.0 && end - end % PAGE > self.position.0 {
            end -= end % PAGE;
        }
        let (segment, file) = self.open_file()?;
        let path = self.log.dir().join(segment.name(size));
        let len = (end - self.position.0) as usize;
        let chunk = Chunk { file, offset, len, at: self.position, end_of_wal: limit, path };
        self.position = Lsn(end);
        Ok(Next::Chunk(chunk))
    }

    /// True if the position's next byte will be at this tail: it is of the reader's timeline, or begins with the rest of it.
    #[must_use]
    pub fn awaits(&self, tail: &Tail) -> bool {
        tail.timeline == self.timeline || self.ended.is_some_and(|(at, _)| self.position < at)
    }

    /// Returns the limit of reading; notices the end of the timeline.
    fn limit(&mut self, serve: Serve) -> Lsn {
        let tail = self.log.tail();
        let held = match serve {
            Serve::Flushed => tail.flushed.get(),
            Serve::Written => tail.written.get(),
        };
        if tail.timeline == self.timeline {
            return held;
        }
        if self.ended.is_none() {
            self.ended = self.log.parsed_history(tail.timeline).left(self.timeline);
        }
        // A log that was begun after the switch begins with the segment's start, before the switch point: it may not have reached that yet.
        self.ended.map_or(self.position, |(at, _)| at.min(held))
    }

    fn open_file(&mut self) -> Result<(Segment, Arc<File>), ReadError> {
        let size = self.log.identity().segment_size;
        let number = size.number(self.position);
        if let Some((segment, file)) = &self.file
            && segment.number == number
        {
            return Ok((*segment, file.clone()));
        }
        self.file = None;
        let removed = || ReadError::Removed { segment: Segment { number, timeline: self.timeline }.name(size) };
        let segment = self.locate(number).ok_or_else(removed)?;
        let file = self.log.lend(segment)?.ok_or_else(removed)?;
        self.file = Some((segment, file.clone()));
        Ok((segment, file))
    }

    /// Finds the file with segment `number` for this timeline: its own; where the timeline ends in the segment, also the next timeline's, which
    /// begins with a copy; before the timeline began, its ancestor's.
    fn locate(&self, number: u64) -> Option<Segment> {
        let log = &self.log;
        let has = |segment: Segment| lock(&log.held).contains_key(&segment);
        let history = log.parsed_history(self.timeline);
        super::recover::locate(&history, number, &log.identity(), has).or_else(|| {
            let (at, next) = self.ended?;
            let copy = Segment { number, timeline: next };
            (log.identity().segment_size.number(at) == number && has(copy)).then_some(copy)
        })
    }
}
