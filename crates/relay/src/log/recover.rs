//! Recovery of a directory: the positions come from the WAL itself.
//!
//! The walk begins so far before the last segment that it covers everything which might not have been flushed
//! ([`MAX_UNFLUSHED`](super::MAX_UNFLUSHED)), and follows page headers and checksums to the end of the last whole record. Bytes behind that are the
//! rest of a write that a crash cut off, or old content of a recycled file: they are replaced by zeroes.
//!
//! *Invariant*: recovery may be cut off after any step, by `kill -9` or a power cut, and the next one finds the same end. The walk begins below the
//! highest file that has WAL, so files are cleared **from the highest down**: below a remaining file there is never a cleared one. A file loses its
//! name before its bytes: no file with a segment's name is ever half cleared, except the current one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use watermark::Lsn;

use super::files::{self, failed};
use super::history::MAX_HISTORY_BYTES;
use super::segment::PAGE;
use super::wal::{PAGE_BYTES, Stop, Walker, is_page};
use super::{History, Identity, LogError, STATE_FILE, Segment, SegmentSize, Timeline};

/// Limit of segments created ahead of time.
pub const MAX_SPARES: usize = 8;
/// Files are read in pieces of this size.
const PIECE: usize = 128 * PAGE_BYTES;

/// Start of an empty log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The upstream's timeline.
    pub timeline: Timeline,
    /// A segment's start.
    pub at: Lsn,
}

/// Report of the recovery of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// The current timeline.
    pub timeline: Timeline,
    /// Start of the walk.
    pub walked_from: Lsn,
    /// End of the last whole record, where writing continues.
    pub end: Lsn,
    /// Number of whole records on the way.
    pub records: u64,
    /// Start of the last whole record.
    pub last_record: Option<Lsn>,
    /// The reason for the end of the walk; `None` at the end of the files.
    pub stop: Option<Stop>,
    /// True if bytes behind the end were removed.
    pub discarded: bool,
    /// Names of segments, or copies of them, with more behind the end than the rest of one write: after a power failure, or on a damaged disk. The
    /// upstream sends that WAL again; without an upstream these files are the only copy. The lowest first.
    pub set_aside: Vec<String>,
}

/// A directory's contents, by kind.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) segments: BTreeSet<Segment>,
    pub(super) histories: BTreeMap<Timeline, Arc<[u8]>>,
}

pub(super) struct Recovered {
    pub(super) report: Recovery,
    /// Segments with WAL.
    pub(super) held: BTreeSet<Segment>,
    /// Files prepared for writing, by number; of the report's timeline.
    pub(super) ahead: BTreeMap<u64, Arc<File>>,
}

/// Reads the directory and removes incomplete files. The caller has its lock.
pub(super) fn list(dir: &Path, identity: &Identity) -> Result<Listing, LogError> {
    let mut listing = Listing::default();
    for entry in fs::read_dir(dir).map_err(failed("list", dir))? {
        let path = entry.map_err(failed("list", dir))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if name.ends_with(files::UNFINISHED) {
            files::remove(&path).map_err(failed("remove", &path))?;
        } else if let Some(segment) = Segment::of_name(name, identity.segment_size) {
            listing.segments.insert(segment);
        } else if let Some(timeline) = Timeline::of_history_name(name) {
            let content = read_history(&path)?;
            listing.histories.insert(timeline, content);
        }
    }
    Ok(listing)
}

/// Returns the name of some segment in `dir`, of any size.
pub(super) fn any_segment(dir: &Path) -> Result<Option<String>, LogError> {
    for entry in fs::read_dir(dir).map_err(failed("list", dir))? {
        let name = entry.map_err(failed("list", dir))?.file_name();
        if let Some(name) = name.to_str().filter(|name| name.len() == 24 && name.bytes().all(|b| b.is_ascii_hexdigit()))
        {
            return Ok(Some(name.into()));
        }
    }
    Ok(None)
}

fn read_history(path: &Path) -> Result<Arc<[u8]>, LogError> {
    let length = fs::metadata(path).map_err(failed("look at", path))?.len();
    if length > MAX_HISTORY_BYTES as u64 {
        let source = super::HistoryError::TooLong { bytes: usize::try_from(length).unwrap_or(usize::MAX) };
        return Err(LogError::History { path: path.into(), source });
    }
    Ok(fs::read(path).map_err(failed("read", path))?.into())
}

/// Finds the file with segment `number` of `timeline`'s history: its own, or that of the ancestor at that position.
pub(super) fn locate(
    history: &History,
    number: u64,
    identity: &Identity,
    has: impl Fn(Segment) -> bool,
) -> Option<Segment> {
    let size = identity.segment_size;
    let timeline = history.timeline;
    let own = Segment { number, timeline };
    if has(own) {
        return Some(own);
    }
    let (timeline, _) = history.newest_first().find(|(_, begin)| size.number(*begin) <= number)?;
    Some(Segment { number, timeline }).filter(|segment| has(*segment))
}

/// Finds the end of WAL, makes everything before it durable and everything behind it zero. At most `unflushed` bytes were written and not flushed:
/// [`MAX_UNFLUSHED`](super::MAX_UNFLUSHED).
pub(super) fn recover(
    dir: &Path,
    identity: &Identity,
    start: Option<Start>,
    listing: &Listing,
    spares: usize,
    unflushed: u64,
) -> Result<Recovered, LogError> {
    let size = identity.segment_size;
    let Some(timeline) = listing.segments.iter().map(|segment| segment.timeline).max() else {
        return fresh(dir, identity, start);
    };
    let history = match listing.histories.get(&timeline) {
        Some(content) => History::parse(timeline, content)
            .map_err(|source| LogError::History { path: dir.join(timeline.history_name()), source })?,
        None => History::none(timeline),
    };
    let find = |number| locate(&history, number, identity, |segment| listing.segments.contains(&segment));
    let open = |segment: Segment| open_segment(dir, segment, identity);

    let numbers: BTreeSet<u64> = listing.segments.iter().map(|segment| segment.number).collect();
    // The last segment with WAL: files ahead of it have zeroes, or pages of lower positions.
    let mut last = None;
    for number in numbers.iter().copied().rev() {
        let Some(segment) = find(number) else { continue };
        let page = read_first_page(dir, segment, identity)?;
        if is_page(identity, size.start(number), &page) {
            last = Some(number);
            break;
        }
    }
    let Some(last) = last else { return nothing_written(dir, identity, start, listing) };

    // The oldest segment held without a gap.
    let mut oldest = last;
    while oldest > 0 && find(oldest - 1).is_some() {
        oldest -= 1;
    }
    // Writing is never further ahead of the flushes than this: everything before was durable.
    let durable_to = Lsn(size.start(last).0.saturating_sub(unflushed)).max(size.start(oldest));
    let mut from = size.number(durable_to);
    let mut walk = walk(identity, timeline, from, last, &find, &open)?;
    if walk.walker.end().is_none() && from > oldest {
        // One record is longer than the walked part: start before it.
        from = oldest;
        walk = self::walk(identity, timeline, from, last, &find, &open)?;
    }
    // A log that began with the segment in which its timeline begins has received that segment, and copied nothing.
    let received = size.start_of(history.begin()) == size.start(oldest)
        && listing.segments.iter().all(|segment| segment.timeline == timeline);
    let begun = if received { Lsn(0) } else { history.begin() };
    let end = walk.walker.end().unwrap_or(size.start(from));
    // The first file of the timeline starts with a copy, which was made durable before the file got its name.
    let in_copy = begun > size.start(from) && walk.walker.end().is_some_and(|end| end < begun);
    let stopped = Lsn(walk.walker.at().0 - if walk.stop.is_some() { PAGE } else { 0 });
    if in_copy || stopped < durable_to.max(Lsn(begun.0 - begun.0 % PAGE)) {
        let segment = find(size.number(stopped)).map_or_else(String::new, |segment| segment.name(size));
        return Err(LogError::Damaged { dir: dir.into(), segment, valid_to: end, durable_to: durable_to.max(begun) });
    }
    let end = end.max(begun);

    // The padding behind a switch of segments must be zero; a crash may have left other bytes there.
    for (index, from) in &walk.paddings {
        let Some((segment, file)) = walk.files.get(*index) else { continue };
        let (from, path) = (size.offset(*from), dir.join(segment.name(size)));
        if !files::is_zero(file, from, size.bytes()).map_err(failed("read", &path))? {
            files::zero_fill(file, from, size.bytes()).map_err(failed("write", &path))?;
        }
    }
    // A killed process leaves bytes that no flush has reached. One that stopped because a flush failed leaves pages that the kernel takes for clean,
    // so that a flush would succeed without effect: written again, they are dirty again.
    let mut buffer = vec![0; PIECE];
    for (segment, file) in &walk.files {
        let path = dir.join(segment.name(size));
        let Range { start: mut at, end: to } = written_again(size, segment.number, durable_to, end, unflushed);
        while at < to {
            let here = buffer.len().min((to - at) as usize);
            let offset = at - size.start(segment.number).0;
            file.read_exact_at(&mut buffer[..here], offset).map_err(failed("read", &path))?;
            files::write_at(file, &buffer[..here], offset).map_err(failed("write", &path))?;
            at += here as u64;
        }
        files::sync(file).map_err(failed("flush", &path))?;
    }
    let current = size.number(end);
    let held = |segment: &Segment| {
        let written_on = segment.number == current && size.offset(end) > 0;
        segment.number < current || segment.timeline < timeline || written_on
    };
    let held: BTreeSet<Segment> = listing.segments.iter().copied().filter(held).collect();
    let mut clearing = Clearing { dir, identity, end, stopped, discarded: false, set_aside: Vec::new() };
    let mut ahead = BTreeMap::new();
    let behind = |segment: &&Segment| segment.number >= current && segment.timeline == timeline;
    // The highest first: see the module.
    for segment in listing.segments.iter().rev().filter(behind).copied() {
        if held.contains(&segment) {
            clearing.behind_the_end(segment, &open(segment)?)?;
        } else if segment.number <= current.saturating_add(spares as u64) {
            if let Some(file) = clearing.all_of(segment, open(segment)?)? {
                ahead.insert(segment.number, Arc::new(file));
            }
        } else {
            clearing.remove(segment, &open(segment)?)?;
        }
    }
    let Clearing { discarded, mut set_aside, .. } = clearing;
    set_aside.reverse();
    let report = Recovery {
        timeline,
        walked_from: size.start(from),
        end,
        records: walk.walker.records(),
        last_record: walk.walker.last_record(),
        stop: walk.stop,
        discarded,
        set_aside,
    };
    Ok(Recovered { report, held, ahead })
}

/// Returns the part of a segment that may not have been flushed, and is written again. Everything up to `durable_to` was durable before the segment
/// was begun. At most `unflushed` written bytes, which ended at `end` or behind it, were not flushed: in a large segment a small part.
fn written_again(size: SegmentSize, number: u64, durable_to: Lsn, end: Lsn, unflushed: u64) -> Range<u64> {
    let start = size.start(number).max(durable_to).0.max(end.0.saturating_sub(unflushed));
    start..end.0.min(size.start(number).0 + size.bytes())
}

/// True if the segment has pages of its own positions behind the page at `stopped`: WAL that was written, and can no longer be reached.
fn has_pages_after(file: &File, identity: &Identity, segment: Segment, stopped: Lsn) -> io::Result<bool> {
    let size = identity.segment_size;
    let mut at = size.start(segment.number).max(Lsn(stopped.0.saturating_add(PAGE)));
    let mut page = [0; PAGE_BYTES];
    while size.number(at) == segment.number {
        file.read_exact_at(&mut page, size.offset(at))?;
        if is_page(identity, at, &page) {
            return Ok(true);
        }
        at.0 += PAGE;
    }
    Ok(false)
}

/// State of clearing the bytes behind the end of WAL, one segment after the other.
struct Clearing<'a> {
    dir: &'a Path,
    identity: &'a Identity,
    /// End of WAL.
    end: Lsn,
    /// Start of the page in which the walk stopped.
    stopped: Lsn,
    discarded: bool,
    /// Names of the segments set aside.
    set_aside: Vec<String>,
}

impl Clearing<'_> {
    fn path(&self, segment: Segment) -> std::path::PathBuf {
        self.dir.join(segment.name(self.identity.segment_size))
    }

    /// True if the file has only zeroes from offset `from` on.
    fn is_clear(&self, segment: Segment, file: &File, from: u64) -> Result<bool, LogError> {
        files::is_zero(file, from, self.identity.segment_size.bytes()).map_err(failed("read", &self.path(segment)))
    }

    /// True if the segment has WAL that can no longer be reached.
    fn is_out_of_reach(&self, segment: Segment, file: &File) -> Result<bool, LogError> {
        has_pages_after(file, self.identity, segment, self.stopped).map_err(failed("read", &self.path(segment)))
    }

    /// Clears the current segment behind the end.
    fn behind_the_end(&mut self, segment: Segment, file: &File) -> Result<(), LogError> {
        let (size, path) = (self.identity.segment_size, self.path(segment));
        let keep = size.offset(self.end);
        if self.is_clear(segment, file, keep)? {
            return Ok(());
        }
        self.discarded = true;
        if self.is_out_of_reach(segment, file)? {
            let copy = self.name_aside(segment);
            let unfinished = files::unfinished(&copy);
            copy_whole(file, &unfinished, size.bytes()).map_err(failed("copy", &path))?;
            files::rename_durably(&unfinished, &copy)?;
            self.note_aside(&copy);
        }
        // A later walk might take these bytes for WAL that follows.
        files::zero_fill_from_the_end(file, keep, size.bytes()).map_err(failed("write", &path))?;
        files::sync(file).map_err(failed("flush", &path))
    }

    /// Clears a segment behind the end for reuse; None if it was set aside.
    fn all_of(&mut self, segment: Segment, file: File) -> Result<Option<File>, LogError> {
        let (size, path) = (self.identity.segment_size, self.path(segment));
        if self.is_clear(segment, &file, 0)? {
            return Ok(Some(file));
        }
        self.discarded = true;
        if self.is_out_of_reach(segment, &file)? {
            self.put_aside(segment)?;
            return Ok(None);
        }
        // Under another name while it is cleared. After a crash it is removed as incomplete.
        let unfinished = files::unfinished(&path);
        files::rename_durably(&path, &unfinished)?;
        files::zero_fill(&file, 0, size.bytes()).map_err(failed("write", &unfinished))?;
        files::sync(&file).map_err(failed("flush", &unfinished))?;
        files::rename_durably(&unfinished, &path)?;
        Ok(Some(file))
    }

    /// Removes a segment behind the end, or sets it aside.
    fn remove(&mut self, segment: Segment, file: &File) -> Result<(), LogError> {
        self.discarded |= !self.is_clear(segment, file, 0)?;
        if self.is_out_of_reach(segment, file)? {
            return self.put_aside(segment);
        }
        files::remove_durably(&self.path(segment))
    }

    /// Renames the file to a name that is no segment's.
    fn put_aside(&mut self, segment: Segment) -> Result<(), LogError> {
        let aside = self.name_aside(segment);
        files::rename_durably(&self.path(segment), &aside)?;
        self.note_aside(&aside);
        Ok(())
    }

    /// Returns an unused name: a file kept by an earlier recovery, perhaps an interrupted one, is not overwritten.
    fn name_aside(&self, segment: Segment) -> std::path::PathBuf {
        let (high, low) = (self.end.0 >> 32, self.end.0 as u32);
        let name = format!("{}.after-{high:X}-{low:X}", segment.name(self.identity.segment_size));
        let mut path = self.dir.join(&name);
        let mut number = 2_u64;
        while path.exists() {
            path = self.dir.join(format!("{name}.{number}"));
            number += 1;
        }
        path
    }

    fn note_aside(&mut self, path: &Path) {
        self.set_aside.push(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
    }
}

/// Copies the `length` bytes of a file to a new one at `to`, durably except for its name.
fn copy_whole(file: &File, to: &Path, length: u64) -> io::Result<()> {
    let copy = files::create(to)?;
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    while at < length {
        let here = buffer.len().min((length - at) as usize);
        file.read_exact_at(&mut buffer[..here], at)?;
        files::write_at(&copy, &buffer[..here], at)?;
        at += here as u64;
    }
    files::sync(&copy)
}

struct Walk {
    walker: Walker,
    stop: Option<Stop>,
    files: Vec<(Segment, File)>,
    /// Files that end with padding, by index, with the start of the padding.
    paddings: Vec<(usize, Lsn)>,
}

fn walk(
    identity: &Identity,
    timeline: Timeline,
    from: u64,
    to: u64,
    find: &impl Fn(u64) -> Option<Segment>,
    open: &impl Fn(Segment) -> Result<File, LogError>,
) -> Result<Walk, LogError> {
    let size = identity.segment_size;
    let mut walk = Walk {
        walker: Walker::new(*identity, timeline, size.start(from)),
        stop: None,
        files: Vec::new(),
        paddings: Vec::new(),
    };
    let mut buffer = vec![0; PIECE];
    for number in from..=to {
        let Some(segment) = find(number) else { break };
        let file = open(segment)?;
        let path = Path::new(&segment.name(size)).to_owned();
        walk.files.push((segment, file));
        let Some((_, file)) = walk.files.last() else { break };
        let mut offset = 0;
        while offset < size.bytes() {
            file.read_exact_at(&mut buffer, offset).map_err(failed("read", &path))?;
            for page in buffer.as_chunks::<PAGE_BYTES>().0 {
                if let Err(stop) = walk.walker.page(page) {
                    walk.stop = Some(stop);
                    return Ok(walk);
                }
            }
            offset += PIECE as u64;
        }
        if let Some(from) = walk.walker.padding() {
            walk.paddings.push((walk.files.len() - 1, from));
        }
    }
    Ok(walk)
}

/// Recovers an empty directory.
fn fresh(dir: &Path, identity: &Identity, start: Option<Start>) -> Result<Recovered, LogError> {
    let Some(start) = start else { return Err(LogError::Empty { dir: dir.into() }) };
    if start.at == Lsn(0) || identity.segment_size.offset(start.at) != 0 {
        return Err(LogError::BadStart { at: start.at });
    }
    let report = Recovery {
        timeline: start.timeline,
        walked_from: start.at,
        end: start.at,
        records: 0,
        last_record: None,
        stop: None,
        discarded: false,
        set_aside: Vec::new(),
    };
    Ok(Recovered { report, held: BTreeSet::new(), ahead: BTreeMap::new() })
}

/// Recovers a directory with files but no segment that begins as one: a log that was stopped before its first page was complete.
fn nothing_written(
    dir: &Path,
    identity: &Identity,
    start: Option<Start>,
    listing: &Listing,
) -> Result<Recovered, LogError> {
    let size = identity.segment_size;
    // More files than a new log makes ahead of time: they held WAL.
    if let Some(segment) = listing.segments.iter().nth(MAX_SPARES + 1) {
        let at = size.start(segment.number);
        return Err(LogError::Damaged {
            dir: dir.into(),
            segment: segment.name(size),
            valid_to: Lsn(0),
            durable_to: at,
        });
    }
    let recovered = fresh(dir, identity, start)?;
    for segment in listing.segments.iter().rev() {
        files::remove_durably(&dir.join(segment.name(size)))?;
    }
    Ok(recovered)
}

fn open_segment(dir: &Path, segment: Segment, identity: &Identity) -> Result<File, LogError> {
    let size = identity.segment_size;
    let path = dir.join(segment.name(size));
    let file = files::open(&path)?;
    let held = file.metadata().map_err(failed("look at", &path))?.len();
    if held == size.bytes() { Ok(file) } else { Err(LogError::SegmentLength { path, held, expected: size.bytes() }) }
}

/// Reads the first page; zeroes if the file is shorter.
fn read_first_page(dir: &Path, segment: Segment, identity: &Identity) -> Result<[u8; PAGE_BYTES], LogError> {
    let path = dir.join(segment.name(identity.segment_size));
    let file = files::open(&path)?;
    let mut page = [0; PAGE_BYTES];
    match file.read_exact_at(&mut page, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok([0; PAGE_BYTES]),
        Err(error) => Err(failed("read", &path)(error)),
        Ok(()) => Ok(page),
    }
}

/// Returns the identity of a directory without opening it: `None` if it is empty or missing.
///
/// # Errors
/// [`LogError`] if it cannot be read, or holds segments and no state file.
pub fn identify(dir: &Path) -> Result<Option<Identity>, LogError> {
    if let Some(content) = super::identity::read(dir)? {
        return Ok(Some(content.identity));
    }
    match any_segment(dir) {
        Ok(Some(example)) => Err(LogError::NotALog { dir: dir.into(), example, state: STATE_FILE }),
        Ok(None) => Ok(None),
        Err(LogError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const MB: u64 = 1 << 20;

    #[test]
    fn what_is_written_again() {
        for (what, segment_mb, number, durable_mb, end_mb, expected) in [
            ("a small one, all of it", 16, 5, 16, 90, (80, 90)),
            ("before the last one", 16, 4, 16, 90, (64, 80)),
            ("what was durable before it was begun", 16, 1, 20, 90, (26, 32)),
            ("a large one, its end only", 1024, 1, 960, 1624, (1560, 1624)),
            ("one with little in it", 1024, 1, 960, 1030, (1024, 1030)),
            ("the one before it", 1024, 0, 960, 1030, (966, 1024)),
            ("one that is behind the end", 1024, 2, 960, 1030, (2048, 1030)),
        ] {
            let size = SegmentSize::new(segment_mb * MB).unwrap();
            let range = written_again(size, number, Lsn(durable_mb * MB), Lsn(end_mb * MB), 64 * MB);
            assert_eq!((range.start / MB, range.end / MB), expected, "{what}");
        }
    }
}
