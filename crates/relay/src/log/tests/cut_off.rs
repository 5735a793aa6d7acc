//! Recovery, interrupted after each of its steps, and repeated.

use std::fs;
use std::path::PathBuf;

use super::super::Segment;
use super::*;

/// Most unflushed bytes in these tests: less than the record below has.
const UNFLUSHED: u64 = 2 * MB;

/// A directory as a crash left it, and the expected result of its recovery.
struct Left {
    dir: tempfile::TempDir,
    wal: Wal,
    timeline: u32,
    end: Lsn,
}

fn path(dir: &Path, timeline: u32, number: u64) -> PathBuf {
    dir.join(Segment { number, timeline: Timeline(timeline) }.name(identity().segment_size))
}

fn copied(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

/// Reads the copies of segments that were set aside, in any order.
fn aside(dir: &Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().flatten();
    let aside = entries.filter(|entry| entry.file_name().to_string_lossy().contains(".after-"));
    aside
        .filter(|entry| !entry.file_name().to_string_lossy().ends_with(".unfinished"))
        .map(|entry| fs::read(entry.path()).unwrap())
        .collect()
}

/// Small records, then one that is longer than the unflushed limit, and nearly complete.
fn in_a_long_record() -> Left {
    let mut wal = wal([100, 200, 9000]);
    wal.record(6 << 20);
    wal.record(100);
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = open(dir.path()).unwrap();
    feed(&mut writer, &wal, Lsn(BEGIN.0 + 5 * MB + 12_345));
    drop(writer);
    let end = wal.records[2].1;
    Left { dir, wal, timeline: 1, end }
}

/// As [`in_a_long_record`], but the record began with its segment: the whole segment is removed.
fn in_a_long_record_from_a_segment_on() -> Left {
    let mut wal = wal([100, 200]);
    wal.switch();
    wal.record(6 << 20);
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = open(dir.path()).unwrap();
    feed(&mut writer, &wal, Lsn(BEGIN.0 + 5 * MB + 12_345));
    drop(writer);
    let end = wal.records[2].1;
    assert_eq!(end.0 % MB, 0);
    // Ahead of it: a file with old content.
    let last = identity().segment_size.number(Lsn(BEGIN.0 + 5 * MB));
    let recycled = path(dir.path(), 1, last + 1);
    fs::copy(path(dir.path(), 1, last - 1), recycled).unwrap();
    Left { dir, wal, timeline: 1, end }
}

/// In the middle of short records; non-zero padding, and a record cut off.
fn between_short_records() -> Left {
    let mut wal = wal((0..100).map(|i| (i * 7919) % 9000));
    wal.switch();
    for length in [500, 40_000, 900_000, 900_000, 77] {
        wal.record(length);
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = open(dir.path()).unwrap();
    feed(&mut writer, &wal, Lsn(wal.at().0 - 300));
    drop(writer);
    let padded = path(dir.path(), 1, identity().segment_size.number(BEGIN));
    let mut bytes = fs::read(&padded).unwrap();
    bytes[MB as usize - 20_000..].fill(7);
    fs::write(padded, bytes).unwrap();
    let end = wal.end_before(Lsn(wal.at().0 - 300));
    Left { dir, wal, timeline: 1, end }
}

/// A damaged page: the WAL behind it is out of reach, and set aside.
fn before_damage() -> Left {
    let wal = some_wal();
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = open(dir.path()).unwrap();
    feed(&mut writer, &wal, wal.at());
    drop(writer);
    let damaged = path(dir.path(), 1, identity().segment_size.number(BEGIN) + 1);
    let mut bytes = fs::read(&damaged).unwrap();
    bytes[300_000..300_100].fill(0x55);
    fs::write(damaged, bytes).unwrap();
    let end = wal.end_before(Lsn(BEGIN.0 + MB + 300_000));
    Left { dir, wal, timeline: 1, end }
}

/// On a second timeline, in a long record.
fn on_a_second_timeline() -> Left {
    let old = some_wal();
    let at = old.records[old.records.len() / 2].1;
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = open(dir.path()).unwrap();
    feed(&mut writer, &old, at);
    let history = format!("1\t{at}\tno recovery target specified\n");
    writer.switch_timeline(Timeline(2), at, history.as_bytes()).unwrap();
    let mut wal = old.fork(2, at);
    wal.record(5000);
    wal.record(5 << 20);
    feed(&mut writer, &wal, Lsn(wal.at().0 - 5000));
    drop(writer);
    let end = wal.end_before(Lsn(wal.at().0 - 5000));
    Left { dir, wal, timeline: 2, end }
}

fn reopen(dir: &Path) -> Result<(Writer, Arc<Log>), LogError> {
    Log::open_within(LogOptions { start: None, ..options(dir) }, UNFLUSHED)
}

/// Checks the final result of every recovery.
fn check(left: &Left, dir: &Path, what: &str) {
    let (mut writer, log) = reopen(dir).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!((log.recovery().timeline.0, log.recovery().end), (left.timeline, left.end), "{what}");
    let size = identity().segment_size;
    let whole = held_bytes(dir, left.timeline, size.start_of(Lsn(left.end.0 - 1)), left.end);
    assert!(whole == left.wal.range(size.start_of(Lsn(left.end.0 - 1)), left.end), "{what}: what is whole is there");
    if size.offset(left.end) != 0 {
        let behind = held_bytes(dir, left.timeline, left.end, Lsn(size.start_of(left.end).0 + MB));
        assert!(behind.iter().all(|byte| *byte == 0), "{what}: behind the end there is nothing");
    }
    // The log goes on: the upstream sends the rest again.
    feed(&mut writer, &left.wal, left.wal.at());
    drop(writer);
    let (writer, log) = reopen(dir).unwrap();
    assert_eq!(log.recovery().end, left.wal.at(), "{what}");
    let mut reader = log.reader(Timeline(left.timeline), BEGIN).unwrap();
    let mut bytes = Vec::new();
    while let super::super::Next::Chunk(chunk) = reader.next(super::super::Serve::Flushed, 1 << 20).unwrap() {
        chunk.read_into(&mut bytes).unwrap();
    }
    assert!(bytes == left.wal.bytes, "{what}: all of it, in the end");
    drop(writer);
}

/// Kills the recovery after each step, and then perhaps once more; with and without a power cut.
fn cut_off_after_each_step(left: &Left) {
    let undisturbed = copied(left.dir.path());
    check(left, undisturbed.path(), "undisturbed");
    let lost = aside(undisturbed.path());
    let mut steps = 0;
    for (power, twice) in [(false, false), (true, false), (false, true)] {
        for step in 0.. {
            let what = format!("after step {step}, power cut: {power}, twice: {twice}");
            let dir = copied(left.dir.path());
            disk::stop_after(step);
            let opened = reopen(dir.path());
            let run = disk::end();
            if !run.was_stopped() {
                assert!(opened.is_ok() && step > 3, "{what}");
                steps = step;
                break;
            }
            assert!(opened.is_err(), "{what}: an error was passed over");
            if power {
                run.cut_power(step as u64 + 1);
            }
            if twice {
                disk::stop_after((step * 7 + 3) % (step + 4));
                drop(reopen(dir.path()));
                drop(disk::end());
            }
            check(left, dir.path(), &what);
            // No WAL was out of reach before; recovery makes it so only if power fails while the last file is cleared.
            if lost.is_empty() && !power {
                assert!(aside(dir.path()).is_empty(), "{what}: a false alarm");
            }
            for copy in &lost {
                assert!(aside(dir.path()).contains(copy), "{what}: what was out of reach is kept");
            }
        }
    }
    assert!(steps > 3, "there are steps to be cut off");
}

#[test]
fn recovery_of_a_long_record_that_is_not_whole() {
    cut_off_after_each_step(&in_a_long_record());
}

#[test]
fn recovery_that_clears_whole_segments() {
    cut_off_after_each_step(&in_a_long_record_from_a_segment_on());
}

#[test]
fn recovery_of_padding_and_a_short_rest() {
    cut_off_after_each_step(&between_short_records());
}

#[test]
fn recovery_of_what_is_out_of_reach() {
    cut_off_after_each_step(&before_damage());
}

#[test]
fn recovery_on_a_second_timeline() {
    cut_off_after_each_step(&on_a_second_timeline());
}
