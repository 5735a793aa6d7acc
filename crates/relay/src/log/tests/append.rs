//! Appending: bytes, positions, and refusals.

use std::fs;

use super::super::{AppendError, LOCK_FILE, Removed, Retention, STATE_FILE, identify};
use super::*;

#[test]
fn the_files_hold_what_was_appended() {
    let dir = tempfile::tempdir().unwrap();
    let wal = some_wal();
    let (mut writer, log) = open(dir.path()).unwrap();
    assert_eq!(writer.resume(), (Timeline(1), BEGIN));
    feed(&mut writer, &wal, wal.at());
    assert_eq!(log.tail().written.get(), wal.at());
    writer.flush().unwrap();
    assert_eq!(log.tail().flushed.get(), wal.at());
    assert!(held_bytes(dir.path(), 1, BEGIN, wal.at()) == wal.bytes);
    assert_eq!(log.start(), BEGIN);
    let metrics = log.metrics();
    assert_eq!(metrics.appended_bytes.load(Ordering::Relaxed), wal.bytes.len() as u64);
    assert!(metrics.flushes.count() > 0);
    assert_eq!(writer.resume(), (Timeline(1), identity().segment_size.start_of(wal.at())));
}

/// The writer's thread flushes too, except on a slow disk.
#[test]
fn who_flushes() {
    let dir = tempfile::tempdir().unwrap();
    let wal = some_wal();
    let (mut writer, log) = open(dir.path()).unwrap();
    let (told, by_whom) = std::sync::mpsc::channel();
    log.tell_of_flushes(Some(Box::new(move || told.send(std::thread::current().id()).unwrap())));
    let here = std::thread::current().id();
    let mut at = BEGIN;
    let mut flush = |slow: bool| {
        let end = Lsn(at.0 + 500);
        writer.take(at, wal.range(at, end)).unwrap();
        assert_eq!(log.tail().flushed.get(), at, "nobody was asked to");
        log.flushing.set_last_us(if slow { 10_000 } else { 100 });
        writer.flush_here();
        let by_whom = by_whom.recv().unwrap();
        assert_eq!(log.tail().flushed.get(), end);
        at = end;
        by_whom == here
    };
    // The flusher may be checking for work at the same moment. Not each time.
    assert!((0..1000).any(|_| flush(false)));
    for _ in 0..10 {
        assert!(!flush(true), "the disk was slow the last time");
    }
    // The disk was quick this time.
    assert!((0..1000).any(|_| flush(false)));
    log.tell_of_flushes(None);
}

#[test]
fn what_is_held_is_compared_and_a_gap_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let wal = some_wal();
    let (mut writer, log) = open(dir.path()).unwrap();
    let half = Lsn(BEGIN.0 + MB + 5000);
    feed(&mut writer, &wal, half);

    let error = writer.append(Lsn(half.0 + 1), &[0]).unwrap_err();
    assert!(matches!(error, AppendError::Gap { expected, at } if expected == half && at.0 == half.0 + 1), "{error}");

    // Overlap alone, then overlap and new bytes in one piece; in an earlier segment too.
    writer.append(BEGIN, wal.range(BEGIN, half)).unwrap();
    assert_eq!(log.tail().written.get(), half);
    let later = Lsn(half.0 + 100_000);
    writer.append(Lsn(BEGIN.0 + 77), wal.range(Lsn(BEGIN.0 + 77), later)).unwrap();
    assert_eq!(log.tail().written.get(), later);

    for at in [BEGIN.0, BEGIN.0 + 70_000, BEGIN.0 + MB, later.0 - 1] {
        let mut wrong = wal.range(BEGIN, Lsn(later.0 + 10)).to_vec();
        wrong[(at - BEGIN.0) as usize] ^= 1;
        let error = writer.append(BEGIN, &wrong).unwrap_err();
        assert!(matches!(error, AppendError::Mismatch { at: differs } if differs.0 == at), "{error}");
    }
    let error = writer.append(Lsn(BEGIN.0 - 8), &[0; 16]).unwrap_err();
    assert!(matches!(error, AppendError::BeforeStart { oldest: BEGIN, .. }), "{error}");
    assert_eq!(log.tail().written.get(), later, "nothing refused was written");
    feed(&mut writer, &wal, wal.at());
    writer.flush().unwrap();
    assert!(held_bytes(dir.path(), 1, BEGIN, wal.at()) == wal.bytes);
}

#[test]
fn a_directory_has_one_writer_and_one_cluster() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(identify(dir.path()).unwrap(), None);
    assert_eq!(identify(&dir.path().join("nothing")).unwrap(), None);
    let (writer, log) = open(dir.path()).unwrap();
    assert!(matches!(Directory::open(dir.path()), Err(LogError::Locked { .. })));
    assert_eq!(identify(dir.path()).unwrap(), Some(identity()));
    drop(writer);
    let (writer, _) = open(dir.path()).expect("free again, although somebody still reads");
    drop((writer, log));

    let other = |change: fn(&mut LogOptions)| {
        let mut options = options(dir.path());
        change(&mut options);
        Log::open(options).map(|_| ()).unwrap_err().to_string()
    };
    assert!(other(|o| o.identity.system_id = 43).contains("system identifier 42, not of 43"));
    fs::write(dir.path().join("000000010000000000000005"), "").unwrap();
    assert!(other(|o| o.identity.segment_size = SegmentSize::DEFAULT).contains("segments of 1048576 bytes"));
    fs::remove_file(dir.path().join(STATE_FILE)).unwrap();
    assert!(matches!(open(dir.path()), Err(LogError::NotALog { .. })));
    assert!(matches!(identify(dir.path()), Err(LogError::NotALog { .. })));
    fs::write(dir.path().join(STATE_FILE), "kingpost-log 1\n").unwrap();
    assert!(matches!(open(dir.path()), Err(LogError::State { .. })));
    assert!(dir.path().join(LOCK_FILE).exists());
}

#[test]
fn a_new_log_needs_a_place_to_begin() {
    let dir = tempfile::tempdir().unwrap();
    for (start, empty) in [(None, true), (Some(Lsn(BEGIN.0 + 1)), false), (Some(Lsn(0)), false)] {
        let start = start.map(|at| Start { timeline: Timeline(1), at });
        let error = Log::open(LogOptions { start, ..options(dir.path()) }).map(|_| ()).unwrap_err();
        assert!(if empty {
            matches!(error, LogError::Empty { .. })
        } else {
            matches!(error, LogError::BadStart { .. })
        });
    }
}

#[test]
fn retention_removes_and_recycles_but_never_under_a_reader() {
    let dir = tempfile::tempdir().unwrap();
    let wal = wal((0..900).map(|_| 9000));
    let (mut writer, log) = open(dir.path()).unwrap();
    feed(&mut writer, &wal, wal.at());
    writer.flush().unwrap();
    settled(&log);
    let segments = log.retained().segments;
    assert!(segments >= 7);

    // A reader in the first segment, which no retention setting protects.
    let mut reader = log.reader(Timeline(1), BEGIN).unwrap();
    let downstream = Some(Lsn(BEGIN.0 + 2 * MB + 5));
    let removed = log.retain(&Retention { downstream, ..Retention::default() }).unwrap();
    assert_eq!(removed.segments, ["000000010000000000000005", "000000010000000000000006"]);
    assert_eq!(log.start(), Lsn(BEGIN.0 + 2 * MB));
    assert!(!dir.path().join("000000010000000000000005").exists());
    assert_eq!(log.retain(&Retention { downstream, ..Retention::default() }).unwrap(), Removed::default());
    let error = log.reader(Timeline(1), Lsn(BEGIN.0 + MB)).unwrap_err();
    assert_eq!(error.to_string(), "requested WAL segment 000000010000000000000006 has already been removed");

    // The file that it has open keeps its bytes, whatever happens to the name.
    let mut read = Vec::new();
    while read.len() < MB as usize {
        match reader.next(super::super::Serve::Flushed, 100_000).unwrap() {
            super::super::Next::Chunk(chunk) => chunk.read_into(&mut read).unwrap(),
            other => panic!("{other:?}"),
        }
    }
    assert!(read == wal.bytes[..MB as usize]);
    assert!(matches!(
        reader.next(super::super::Serve::Flushed, 1),
        Err(super::super::ReadError::Removed { segment }) if segment == "000000010000000000000006"
    ));
}

#[test]
fn old_segments_come_back_under_new_names_and_do_not_pass_for_wal() {
    let dir = tempfile::tempdir().unwrap();
    let wal = wal((0..900).map(|_| 9000));
    let to = |half_segments: u64| Lsn(BEGIN.0 + half_segments * MB / 2);
    let (mut writer, log) = open(dir.path()).unwrap();
    feed(&mut writer, &wal, to(5));
    settled(&log);
    // No further files can be made: the next ones are recycled.
    log.faults.no_room.store(true, Ordering::SeqCst);
    feed(&mut writer, &wal, to(7));
    writer.flush().unwrap();
    let removed = log.retain(&Retention { downstream: Some(to(6)), ..Retention::default() }).unwrap();
    assert_eq!((removed.segments.len(), removed.recycled), (3, 1), "one place was free");
    let recycled = dir.path().join("00000001000000000000000A");
    assert!(fs::read(&recycled).unwrap() == wal.range(BEGIN, to(2)));
    // Into the middle of the recycled file: its first half is new, the second old.
    let end = to(11);
    feed(&mut writer, &wal, end);
    drop(writer);
    assert!(fs::read(&recycled).unwrap()[MB as usize / 2..] == *wal.range(to(1), to(2)));
    let (writer, log) = open(dir.path()).unwrap();
    assert_eq!(log.recovery().end, wal.end_before(end));
    assert!(log.recovery().discarded, "what was old is gone");
    let held = wal.end_before(end);
    assert!(held_bytes(dir.path(), 1, to(6), held) == wal.range(to(6), held));
    assert!(held_bytes(dir.path(), 1, held, to(12)).iter().all(|byte| *byte == 0));
    drop(writer);
}

/// While a record is incomplete, its upstream must keep the segment in which it began; no whole record waits for that.
#[test]
fn what_may_be_acknowledged_stays_with_a_record_that_is_not_whole() {
    let mut wal = wal((0..300).map(|i| (i * 7919) % 9000));
    wal.record(2_500_000);
    wal.record(100);
    wal.switch();
    wal.record(100);
    let size = identity().segment_size;
    // A record that ends with its segment.
    let room = |wal: &Wal| MB - size.offset(wal.at());
    while room(&wal) > 40_000 {
        wal.record(30_000);
    }
    while room(&wal) > 8192 + 400 {
        wal.record(100);
    }
    let to_page = (8192 - wal.at().0 % 8192) as usize;
    wal.record(to_page - 24);
    wal.record(8192 - 24 - 24);
    assert_eq!(size.offset(wal.at()), 0);
    let boundary = wal.at();
    wal.record(50);

    let dir = tempfile::tempdir().unwrap();
    let (mut writer, log) = open(dir.path()).unwrap();
    let mut crossed = 0;
    let mut at = BEGIN;
    while at < wal.at() {
        // Every position near a segment's start, some of the others.
        let near = size.offset(Lsn(at.0 + 2000)) < 12_000;
        let next = Lsn(wal.at().0.min(at.0 + if near { 53 } else { 5003 }));
        writer.append(at, wal.range(at, next)).unwrap();
        at = next;
        let whole = wal.end_before(at).min(at);
        let ack = log.acknowledgeable(at);
        assert!(whole <= ack && ack <= at, "{whole} {ack} {at}");
        assert!(
            size.number(ack) <= size.number(wal.end_before(at)),
            "{ack} at {at}, the last whole one ends at {whole}"
        );
        assert!(ack == at || size.number(ack) < size.number(at));
        crossed += u32::from(ack < at);
    }
    assert!(crossed > 500, "{crossed}");
    drop(writer);
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, log) = open(dir.path()).unwrap();
    feed(&mut writer, &wal, boundary);
    assert_eq!(log.acknowledgeable(boundary), boundary, "nothing crosses there");
}
