//! The whole log, on real files and synthetic WAL. Real WAL is in the end-to-end tests.

#![allow(clippy::unwrap_used)]

mod append;
mod cut_off;
pub(super) mod disk;
mod faults;
mod kill;
mod overlap;
mod reading;
mod recovery;
mod synthetic;
mod timelines;
mod walking;
mod whole;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use watermark::Lsn;

use super::{Directory, Identity, Log, LogError, LogOptions, SegmentSize, Start, Timeline, Writer};
use synthetic::Wal;

/// Faults that a test injects.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) no_room: AtomicBool,
    pub(super) no_flush: AtomicBool,
    pub(super) no_name: AtomicBool,
}

impl Faults {
    pub(super) fn room(&self) -> io::Result<()> {
        if self.no_room.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    pub(super) fn name(&self) -> io::Result<()> {
        if self.no_name.load(Ordering::SeqCst) { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        if self.no_flush.load(Ordering::SeqCst) { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }
}

const MB: u64 = 1 << 20;
/// Start of the tests' logs: the fifth segment.
const BEGIN: Lsn = Lsn(5 * MB);

/// Small segments, so that tests cross many.
fn identity() -> Identity {
    Identity { system_id: 42, segment_size: SegmentSize::new(MB).unwrap() }
}

fn options(dir: &Path) -> LogOptions {
    let start = Some(Start { timeline: Timeline(1), at: BEGIN });
    LogOptions { directory: directory(dir), identity: identity(), start, spares: 2 }
}

/// Opens a log's directory. A process that another test starts at this moment shares the lock of an open directory until its exec: the function waits
/// for that.
pub(crate) fn directory(dir: &Path) -> Directory {
    for _ in 0..1_000 {
        match Directory::open(dir) {
            Err(LogError::Locked { .. }) => std::thread::sleep(std::time::Duration::from_millis(10)),
            opened => return opened.unwrap(),
        }
    }
    panic!("{} is locked by somebody else", dir.display());
}

fn open(dir: &Path) -> Result<(Writer, Arc<Log>), LogError> {
    Log::open(options(dir))
}

/// Returns WAL with records of these lengths.
fn wal(lengths: impl IntoIterator<Item = usize>) -> Wal {
    let mut wal = Wal::new(identity(), 1, BEGIN);
    for length in lengths {
        wal.record(length);
    }
    wal
}

/// Returns about three segments of records of many lengths.
fn some_wal() -> Wal {
    wal((0..700).map(|i| (i * 7919) % 9000))
}

/// Appends the missing part of `wal` up to `to`, from the log's resume position, in uneven pieces.
fn feed(writer: &mut Writer, wal: &Wal, to: Lsn) {
    let (_, mut at) = writer.resume();
    let mut piece = 1;
    while at < to {
        let end = Lsn(to.0.min(at.0 + piece));
        writer.append(at, wal.range(at, end)).unwrap();
        at = end;
        piece = (piece * 3) % 100_003;
    }
}

/// Waits until the preallocator is done: two files ahead, and the reserve.
fn settled(log: &Log) {
    for _ in 0..10_000 {
        if super::lock(&log.ahead).len() >= 2 && log.has_reserve() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("no segments were made ahead of time");
}

/// Returns the bytes of a timeline's files from `from` up to `to`.
fn held_bytes(dir: &Path, timeline: u32, from: Lsn, to: Lsn) -> Vec<u8> {
    let size = identity().segment_size;
    let mut bytes = Vec::new();
    for number in size.number(from)..=size.number(Lsn(to.0 - 1)) {
        let segment = super::Segment { number, timeline: Timeline(timeline) };
        bytes.extend(std::fs::read(dir.join(segment.name(size))).unwrap());
    }
    let offset = size.offset(from) as usize;
    bytes[offset..offset + (to.0 - from.0) as usize].to_vec()
}
