//! The promise on disk: one file of two blocks, written in turns.
//!
//! ```text
//!  offset 0     block 0: the promise with an even sequence number
//!  offset 4096  block 1: the one with an odd number
//! ```
//!
//! A block is text, so that it can be read in an emergency (`strings kingpost-relay.promise`), followed by zeroes:
//!
//! ```text
//! kingpost-promise 1
//! sequence 7
//! term 3
//! fenced 2
//! chosen 3 "n1"
//! follow "db1:5432" "db2:5432"
//! anew 2 0/5000000
//! giving-up yes
//! crc32c 1b2c3d4e
//! ```
//!
//! `fenced`, `chosen`, `follow`, `anew` and `giving-up` are there only if set; names are JSON strings; the checksum is over the lines before it. Of
//! the blocks with a correct checksum, the one with the higher sequence number counts.
//!
//! *Invariant*: a promise is on disk before anybody is told of it. An interrupted write leaves the other block unchanged, so that the file always has
//! the old promise or the new one. Both blocks were written when the file was made: on filesystems that write files in place (ext4, XFS) no promise
//! needs free space. Each block is a page of the page cache and a sector of today's disks, so that writing one never touches the other.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use watermark::Lsn;
use wire::replication::{position, read_position};

use super::{Choice, Fence, Owed, Promise, PromiseError, Redirect};
use crate::error::StartError;

/// Name of the file.
pub(super) const NAME: &str = "kingpost-relay.promise";
const VERSION_LINE: &str = "kingpost-promise 1";
/// Bytes of a block.
const BLOCK: usize = 4096;

/// The promise, in memory and on disk.
#[derive(Debug)]
pub(crate) struct PromiseFile {
    path: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Open once it exists.
    file: Option<File>,
    /// Sequence number of the promise; 0: there is none.
    sequence: u64,
    promise: Promise,
}

/// The reason why a promise was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotPromised {
    /// The rules refuse the promise.
    #[error("{0}")]
    Refused(#[from] PromiseError),
    /// Earlier promises are unknown: there is no file.
    #[error("this relay does not know what it has promised: its directory is new or was lost")]
    NoMemory,
    /// The write failed. The earlier promise holds; the disk may have taken the new one all the same, which then holds after a restart.
    #[error("{0}")]
    File(StartError),
}

impl PromiseFile {
    /// Reads the file of a directory, if it exists. The caller has the directory's lock.
    ///
    /// # Errors
    /// [`StartError::File`]: the file cannot be read, or none of its blocks is valid.
    pub(crate) fn open(dir: &Path) -> Result<PromiseFile, StartError> {
        let path = dir.join(NAME);
        let fail = |source| StartError::File { tried: "read", path: path.clone(), source };
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let inner = Inner { file: None, sequence: 0, promise: Promise::default() };
                return Ok(PromiseFile { path, inner: Mutex::new(inner) });
            }
            Err(error) => return Err(fail(error)),
        };
        let mut blocks = [[0; BLOCK]; 2];
        for (block, at) in blocks.iter_mut().zip([0, BLOCK]) {
            read_block(&file, block, at as u64).map_err(fail)?;
        }
        let (sequence, promise) = newest(&blocks).map_err(|reason| {
            fail(io::Error::other(format!(
                "{reason}. What the relay has promised is not known: restore the file from a copy"
            )))
        })?;
        Ok(PromiseFile { path, inner: Mutex::new(Inner { file: Some(file), sequence, promise }) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the file exists.
    pub(crate) fn exists(&self) -> bool {
        self.lock().file.is_some()
    }

    /// Returns the promise.
    pub(crate) fn now(&self) -> Promise {
        self.lock().promise.clone()
    }

    /// Returns the highest promised term; 0: none.
    pub(crate) fn term(&self) -> u64 {
        self.lock().promise.term
    }

    /// Creates the file if it is missing; durable on return.
    pub(crate) fn make(&self, promise: Promise) -> Result<(), StartError> {
        let mut inner = self.lock();
        let mut blocks = vec![0; 2 * BLOCK];
        let sequence = inner.sequence + 2;
        let text = render(sequence, &promise);
        if text.len() > BLOCK {
            return Err(StartError::Config(format!(
                "{}: names of {} bytes have no room",
                self.path.display(),
                text.len()
            )));
        }
        let at = offset(sequence) as usize;
        blocks[at..at + text.len()].copy_from_slice(text.as_bytes());
        let new = self.path.with_extension("promise.new");
        let write = || -> io::Result<File> {
            let options = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o640).clone();
            let file = options.open(&new)?;
            file.write_all_at(&blocks, 0)?;
            file.sync_all()?;
            std::fs::rename(&new, &self.path)?;
            if let Some(dir) = self.path.parent() {
                File::open(dir)?.sync_all()?;
            }
            Ok(file)
        };
        let file = write().map_err(|source| StartError::File { tried: "write", path: self.path.clone(), source })?;
        *inner = Inner { file: Some(file), sequence, promise };
        Ok(())
    }

    /// Replaces the promise by one made from it; durable on return. One flush, and no free space on the disk.
    ///
    /// # Errors
    /// [`NotPromised`]; the old promise holds.
    pub(crate) fn change(
        &self,
        change: impl FnOnce(&Promise) -> Result<Promise, PromiseError>,
    ) -> Result<(), NotPromised> {
        let mut inner = self.lock();
        let Some(file) = &inner.file else { return Err(NotPromised::NoMemory) };
        let promise = change(&inner.promise)?;
        if promise == inner.promise {
            return Ok(());
        }
        let sequence = inner.sequence + 1;
        let text = render(sequence, &promise);
        if text.len() > BLOCK {
            return Err(PromiseError::TooLong { bytes: text.len(), room: BLOCK }.into());
        }
        let mut block = [0; BLOCK];
        block[..text.len()].copy_from_slice(text.as_bytes());
        let write = file.write_all_at(&block, offset(sequence)).and_then(|()| file.sync_data());
        write.map_err(|source| {
            NotPromised::File(StartError::File { tried: "write", path: self.path.clone(), source })
        })?;
        (inner.sequence, inner.promise) = (sequence, promise);
        Ok(())
    }
}

/// Returns the offset of the block of a sequence number.
fn offset(sequence: u64) -> u64 {
    sequence % 2 * BLOCK as u64
}

/// Reads a block; bytes behind the end of the file are zeroes.
fn read_block(file: &File, block: &mut [u8; BLOCK], at: u64) -> io::Result<()> {
    let mut read = 0;
    while read < BLOCK {
        match file.read_at(&mut block[read..], at + read as u64)? {
            0 => break,
            n => read += n,
        }
    }
    Ok(())
}

/// Returns the newest valid promise.
fn newest(blocks: &[[u8; BLOCK]; 2]) -> Result<(u64, Promise), String> {
    let read = blocks.each_ref().map(|block| parse(block));
    match read {
        [Ok(one), Ok(other)] => Ok(if one.0 > other.0 { one } else { other }),
        [Ok(one), Err(_)] | [Err(_), Ok(one)] => Ok(one),
        [Err(one), Err(other)] => Err(format!("block 0: {one}; block 1: {other}")),
    }
}

fn quoted(text: &str) -> String {
    // A string can always be rendered as JSON.
    serde_json::to_string(text).unwrap_or_default()
}

fn render(sequence: u64, promise: &Promise) -> String {
    let mut text = format!("{VERSION_LINE}\nsequence {sequence}\nterm {}\n", promise.term);
    if let Some(Fence { timeline, chosen }) = &promise.fence {
        let _ = writeln!(text, "fenced {timeline}");
        if let Some(Choice { term, node }) = chosen {
            let _ = writeln!(text, "chosen {term} {}", quoted(node));
        }
    }
    if let Some(Redirect { configured, address }) = &promise.redirect {
        let _ = writeln!(text, "follow {} {}", quoted(configured), quoted(address));
    }
    if let Some(Owed { timeline, to }) = &promise.owed {
        let _ = writeln!(text, "anew {timeline} {}", position(to.0));
    }
    if promise.giving_up {
        text.push_str("giving-up yes\n");
    }
    let crc = crc32c::crc32c(text.as_bytes());
    let _ = writeln!(text, "crc32c {crc:08x}");
    text
}

/// An iterator over the lines of a block.
struct Lines<'a>(std::iter::Peekable<std::str::Lines<'a>>);

impl<'a> Lines<'a> {
    /// Returns the text after the key, if the next line begins with it.
    fn optional(&mut self, key: &str) -> Option<&'a str> {
        let rest = |line: &'a str| line.strip_prefix(key).and_then(|rest| rest.strip_prefix(' '));
        let found = self.0.peek().copied().and_then(rest)?;
        self.0.next();
        Some(found)
    }

    fn number(&mut self, key: &str) -> Result<u64, String> {
        let text = self.optional(key).ok_or_else(|| format!("no line {key:?}"))?;
        text.parse().map_err(|_| format!("{key} is {text:?}, expected a number"))
    }
}

fn parse(block: &[u8]) -> Result<(u64, Promise), String> {
    let end = block.iter().position(|byte| *byte == 0).unwrap_or(block.len());
    let text = std::str::from_utf8(&block[..end]).map_err(|_| "not text")?;
    let mut lines = Lines(text.lines().peekable());
    let version = lines.0.next().unwrap_or("");
    if version != VERSION_LINE {
        return Err(format!("begins with {version:?}, and this version reads {VERSION_LINE:?}"));
    }
    let wrong = |key: &str| format!("the line {key:?} is not as it should be");
    let sequence = lines.number("sequence")?;
    let mut promise = Promise { term: lines.number("term")?, ..Promise::default() };
    if let Some(timeline) = lines.optional("fenced") {
        let timeline = timeline.parse().map_err(|_| wrong("fenced"))?;
        let chosen = match lines.optional("chosen") {
            None => None,
            Some(line) => {
                let (term, node) = line.split_once(' ').ok_or_else(|| wrong("chosen"))?;
                let term = term.parse().map_err(|_| wrong("chosen"))?;
                Some(Choice { term, node: serde_json::from_str(node).map_err(|_| wrong("chosen"))? })
            }
        };
        promise.fence = Some(Fence { timeline, chosen });
    }
    if let Some(line) = lines.optional("follow") {
        let mut names = serde_json::Deserializer::from_str(line).into_iter::<String>();
        let mut name = || names.next().and_then(Result::ok).ok_or_else(|| wrong("follow"));
        promise.redirect = Some(Redirect { configured: name()?, address: name()? });
    }
    if let Some(line) = lines.optional("anew") {
        let (timeline, to) = line.split_once(' ').ok_or_else(|| wrong("anew"))?;
        let timeline = timeline.parse().map_err(|_| wrong("anew"))?;
        promise.owed = Some(Owed { timeline, to: Lsn(read_position(to).ok_or_else(|| wrong("anew"))?) });
    }
    promise.giving_up = lines.optional("giving-up").is_some();
    // Only one encoding is valid: a block with another was not written by this program.
    if render(sequence, &promise) != text {
        return Err("its checksum does not fit its lines".into());
    }
    Ok((sequence, promise))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn full() -> Promise {
        Promise {
            term: 7,
            fence: Some(Fence { timeline: 2, chosen: Some(Choice { term: 3, node: "n \"1\"\n".into() }) }),
            redirect: Some(Redirect { configured: "db1:5432".into(), address: "/run/a b".into() }),
            owed: Some(Owed { timeline: 1, to: Lsn(0x500_0000) }),
            giving_up: true,
        }
    }

    fn block(sequence: u64, promise: &Promise) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        let text = render(sequence, promise);
        block[..text.len()].copy_from_slice(text.as_bytes());
        block
    }

    #[test]
    fn a_promise_survives_and_takes_turns() {
        let dir = tempfile::tempdir().unwrap();
        let file = PromiseFile::open(dir.path()).unwrap();
        assert!(!file.exists());
        assert!(
            matches!(file.change(|old| old.fence(1, 1, 1, Lsn(0))), Err(NotPromised::NoMemory)),
            "there is no file yet"
        );
        assert_eq!(file.term(), 0);
        file.make(Promise::default()).unwrap();
        for term in 1..6 {
            file.change(|old| old.fence(term, 1, 1, Lsn(0))).unwrap();
            assert!(matches!(file.change(|old| old.fence(term, 1, 1, Lsn(0))), Err(NotPromised::Refused(_))));
            let again = PromiseFile::open(dir.path()).unwrap();
            assert_eq!((again.term(), again.now()), (term, file.now()));
        }
        assert_eq!(std::fs::metadata(dir.path().join(NAME)).unwrap().len(), 2 * BLOCK as u64, "it does not grow");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing beside it");
        file.make(full()).unwrap();
        assert_eq!(PromiseFile::open(dir.path()).unwrap().now(), full());
        file.change(|old| old.fence(8, 2, 2, Lsn(0))).unwrap();
        assert_eq!(PromiseFile::open(dir.path()).unwrap().term(), 8);
    }

    /// The text of the file's documentation.
    #[test]
    fn the_format() {
        let fence = Some(Fence { timeline: 2, chosen: Some(Choice { term: 3, node: "n1".into() }) });
        let redirect = Some(Redirect { configured: "db1:5432".into(), address: "db2:5432".into() });
        let owed = Some(Owed { timeline: 2, to: Lsn(0x500_0000) });
        let text = render(7, &Promise { term: 3, fence, redirect, owed, giving_up: true });
        let (lines, crc) = text.split_at(text.rfind("crc32c").unwrap());
        assert_eq!(
            lines,
            "kingpost-promise 1\nsequence 7\nterm 3\nfenced 2\nchosen 3 \"n1\"\nfollow \"db1:5432\" \"db2:5432\"\n\
             anew 2 0/5000000\ngiving-up yes\n"
        );
        assert_eq!(crc, format!("crc32c {:08x}\n", crc32c::crc32c(lines.as_bytes())));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = PromiseFile::open(dir.path()).unwrap();
        file.make(Promise::default()).unwrap();
        file.change(|old| old.fence(1, 1, 1, Lsn(0))).unwrap();
        let long = "\u{1}".repeat(1000);
        let refused = file.change(|old| old.choose(1, &long, 1));
        assert!(matches!(refused, Err(NotPromised::Refused(PromiseError::TooLong { room: BLOCK, .. }))), "{refused:?}");
        assert_eq!(file.now().standing(1), Some((1, None)));
        // The longest names of an order.
        file.change(|old| old.choose(1, &"\"".repeat(256), 1)).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_believed_is_an_error_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        for content in [&b""[..], b"x", &[0; 2 * BLOCK], &[0xff; 9000]] {
            std::fs::write(dir.path().join(NAME), content).unwrap();
            let error = PromiseFile::open(dir.path()).unwrap_err().to_string();
            assert!(error.contains(NAME) && error.contains("restore the file"), "{error}");
        }
    }

    proptest! {
        /// A write cut off at any sector, or with any garbage behind, leaves the old promise or the new one.
        #[test]
        fn a_torn_write_leaves_one_of_the_two(
            sequence in 1_u64..1000, sectors in 0_usize..=8, garbage in prop::collection::vec(any::<u8>(), 0..BLOCK),
        ) {
            let old = full();
            let new = old.fence(8, 2, 2, Lsn(0)).unwrap();
            let mut blocks = [[0; BLOCK]; 2];
            blocks[(sequence % 2) as usize] = block(sequence, &old);
            // Earlier content of the other block.
            let other = &mut blocks[((sequence + 1) % 2) as usize];
            *other = block(sequence - 1, &Promise::default());
            other[..garbage.len()].copy_from_slice(&garbage);
            let written = block(sequence + 1, &new);
            other[..sectors * 512].copy_from_slice(&written[..sectors * 512]);
            let found = newest(&blocks).unwrap();
            prop_assert!(found == (sequence, old) || (found == (sequence + 1, new) && sectors > 0), "{found:?}");
        }

        #[test]
        fn round_trip(
            sequence: u64, term: u64, timeline: u32, chosen in prop::option::of((any::<u64>(), ".{0,60}")),
            fenced: bool, redirect in prop::option::of((".{0,60}", ".{0,60}")), owed in prop::option::of(any::<(u32, u64)>()),
            giving_up: bool,
        ) {
            let chosen = chosen.map(|(term, node)| Choice { term, node });
            let promise = Promise {
                term,
                fence: fenced.then_some(Fence { timeline, chosen }),
                redirect: redirect.map(|(configured, address)| Redirect { configured, address }),
                owed: owed.map(|(timeline, to)| Owed { timeline, to: Lsn(to) }),
                giving_up,
            };
            prop_assert_eq!(parse(&block(sequence, &promise)), Ok((sequence, promise)));
        }

        #[test]
        fn every_changed_byte_is_seen(at: usize, to: u8) {
            let good = block(5, &full());
            let mut changed = good;
            changed[at % render(5, &full()).len()] = to;
            prop_assert_eq!(parse(&changed).is_ok(), changed == good);
        }

        #[test]
        fn never_panics(content in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&content);
            let mut text = format!("{VERSION_LINE}\nsequence 1\nterm 1\n").into_bytes();
            text.extend(content);
            let _ = parse(&text);
        }
    }
}
