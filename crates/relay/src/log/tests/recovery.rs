//! Recovery after a crash at any position.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use proptest::prelude::*;

use super::super::Segment;
use super::*;

fn path(dir: &Path, number: u64) -> std::path::PathBuf {
    dir.join(Segment { number, timeline: Timeline(1) }.name(identity().segment_size))
}

/// Changes bytes from `from` up to `to`, in the files that exist.
fn overwrite(dir: &Path, from: Lsn, to: Lsn, byte: impl Fn(u64) -> u8) {
    let size = identity().segment_size;
    let mut at = from;
    while at < to {
        let end = Lsn(to.0.min(size.start_of(at).0 + MB));
        let path = path(dir, size.number(at));
        if path.exists() {
            let bytes: Vec<u8> = (at.0..end.0).map(&byte).collect();
            File::options().write(true).open(path).unwrap().write_all_at(&bytes, size.offset(at)).unwrap();
        }
        at = end;
    }
}

/// Returns the directory of a closed log with `wal` in it.
fn stored(wal: &Wal) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, _) = open(dir.path()).unwrap();
    feed(&mut writer, wal, wal.at());
    drop(writer);
    dir
}

/// Opens the log after a crash that kept `cut`, appends the rest, and checks that all of `wal` is held in the end.
fn goes_on(dir: &Path, wal: &Wal, expected: Lsn, what: &str) {
    let (mut writer, log) = open(dir).unwrap();
    assert_eq!(log.recovery().end, expected, "{what}");
    assert_eq!(log.tail().flushed.get(), expected);
    let size = identity().segment_size;
    if size.offset(expected) != 0 {
        let tail = held_bytes(dir, 1, expected, Lsn(size.start_of(expected).0 + MB));
        assert!(tail.iter().all(|byte| *byte == 0), "behind the end there is nothing");
    }
    feed(&mut writer, wal, wal.at());
    drop(writer);
    assert!(held_bytes(dir, 1, BEGIN, wal.at()) == wal.bytes);
    let (writer, log) = open(dir).unwrap();
    assert_eq!(log.recovery().end, wal.at());
    drop(writer);
}

#[test]
fn opens_where_it_was_closed() {
    let wal = some_wal();
    let dir = stored(&wal);
    goes_on(dir.path(), &wal, wal.at(), "closed");
}

#[test]
fn at_every_kind_of_place() {
    let mut wal = wal((0..120).map(|i| (i * 4999) % 20_000));
    wal.switch();
    wal.record(500);
    wal.record(40_000);
    let size = identity().segment_size;
    let page_end = wal.records.iter().find(|(start, end)| end.0 / 8192 > start.0 / 8192).unwrap();
    let crossing = wal.records.iter().find(|(start, end)| size.number(*end) > size.number(*start)).unwrap();
    let switch = wal.records[wal.records.len() - 3];
    for (cut, what) in [
        (BEGIN.0, "nothing"),
        (BEGIN.0 + 1, "in the first page's header"),
        (BEGIN.0 + 39, "before the first page's header is whole"),
        (BEGIN.0 + 40, "a header alone"),
        (wal.records[1].0.0, "between two records"),
        (wal.records[1].0.0 + 3, "in a record's length"),
        (wal.records[1].0.0 + 24, "behind a record's header"),
        (page_end.1.0 - page_end.1.0 % 8192, "between two pages"),
        (page_end.1.0 - page_end.1.0 % 8192 + 5, "in a page's header"),
        (page_end.1.0 - page_end.1.0 % 8192 + 24, "behind a page's header"),
        (size.start_of(crossing.1).0 - 1, "before a segment's end"),
        (size.start_of(crossing.1).0, "between two segments"),
        (size.start_of(crossing.1).0 + 12, "in a segment's header"),
        (size.start_of(crossing.1).0 + 40, "behind a segment's header"),
        (crossing.1.0 - 8, "in a record from the segment before"),
        (switch.0.0 + 10, "in a segment switch"),
        (switch.0.0 + 24 + 100, "in the padding of a segment switch: it is known what belongs there"),
        (wal.at().0 - 9, "before the last byte, padding aside"),
        (wal.at().0, "nowhere"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, _) = open(dir.path()).unwrap();
        feed(&mut writer, &wal, Lsn(cut));
        drop(writer);
        let expected = wal.end_before(Lsn(cut));
        goes_on(dir.path(), &wal, expected, what);
    }
}

/// Any length that the field allows: PostgreSQL up to 15 writes records of more than 1,020 MiB.
#[test]
fn a_record_that_is_cut_off_may_be_of_any_length() {
    for total in [1020 << 20, (1020 << 20) + 1, (1 << 30) - 1, u32::MAX] {
        let mut wal = wal([100, 200]);
        let end = wal.at();
        wal.begin_record(total, 4 * 128 + 5);
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, log) = open(dir.path()).unwrap();
        feed(&mut writer, &wal, wal.at());
        let acknowledgeable = log.acknowledgeable(wal.at());
        assert!(
            acknowledgeable < Lsn(BEGIN.0 + MB),
            "{total}: the segment in which it begins has to stay: {acknowledgeable}"
        );
        drop(writer);
        let (writer, log) = Log::open_within(options(dir.path()), MB).unwrap();
        assert_eq!(log.recovery().end, end, "{total}");
        drop(writer);
    }
}

#[test]
fn wal_out_of_reach_is_kept_aside() {
    let wal = some_wal();
    let dir = stored(&wal);
    let damaged = Lsn(BEGIN.0 + MB + 10 * 8192);
    let before = fs::read(path(dir.path(), 6)).unwrap();
    overwrite(dir.path(), damaged, Lsn(damaged.0 + 10), |_| 0x55);
    let (writer, log) = open(dir.path()).unwrap();
    let report = log.recovery();
    assert_eq!(report.end, wal.end_before(damaged));
    assert_eq!(report.set_aside.len(), 3, "the damaged segment and those behind it: {:?}", report.set_aside);
    let copy = fs::read(dir.path().join(&report.set_aside[0])).unwrap();
    assert!(copy[11 * 8192..] == before[11 * 8192..]);
    drop(writer);
    goes_on(dir.path(), &wal, wal.end_before(damaged), "cleared");
    assert!(dir.path().join(&report.set_aside[2]).exists());
}

#[test]
fn looks_at_no_more_than_may_not_have_been_flushed() {
    let wal = wal((0..8500).map(|_| 9000));
    assert!(wal.bytes.len() as u64 > super::super::MAX_UNFLUSHED + 5 * MB);
    let dir = stored(&wal);
    let last = identity().segment_size.number(wal.at());
    let bound = Lsn(identity().segment_size.start(last).0 - super::super::MAX_UNFLUSHED);
    overwrite(dir.path(), Lsn(bound.0 - 20_000), Lsn(bound.0 - 19_990), |_| 0x55);
    let (writer, log) = open(dir.path()).unwrap();
    assert_eq!((log.recovery().end, log.recovery().walked_from), (wal.at(), bound));
    drop(writer);
}

/// If no record starts in the examined part, the search begins earlier; damage there is in WAL that had been durable.
#[test]
fn wal_that_had_been_durable_is_not_given_up() {
    let wal = wal([100, 200, 71 << 20, 50]);
    let dir = stored(&wal);
    let (writer, log) = open(dir.path()).unwrap();
    assert_eq!(log.recovery().end, wal.at());
    drop(writer);
    // Without the record's end no record begins in the examined part.
    let last = wal.records[2].1;
    overwrite(dir.path(), Lsn(last.0 / 8192 * 8192), Lsn(last.0 + MB), |_| 0);
    overwrite(dir.path(), Lsn(BEGIN.0 + MB + 8192), Lsn(BEGIN.0 + MB + 8200), |_| 0x55);
    let before = fs::read(path(dir.path(), 6)).unwrap();
    let error = open(dir.path()).map(|_| ()).unwrap_err();
    assert!(matches!(&error, LogError::Damaged { segment, .. } if segment == "000000010000000000000006"), "{error}");
    assert_eq!(fs::read(path(dir.path(), 6)).unwrap(), before, "nothing was changed");
}

#[test]
fn files_of_another_length_and_leftovers() {
    let wal = some_wal();
    let dir = stored(&wal);
    fs::write(dir.path().join("000000010000000000000009.unfinished"), "x").unwrap();
    fs::write(dir.path().join("backup_label"), "x").unwrap();
    let (writer, _) = open(dir.path()).unwrap();
    drop(writer);
    assert!(!dir.path().join("000000010000000000000009.unfinished").exists());
    assert!(dir.path().join("backup_label").exists(), "not ours");
    File::options().write(true).open(path(dir.path(), 6)).unwrap().set_len(MB - 1).unwrap();
    assert!(matches!(open(dir.path()), Err(LogError::SegmentLength { .. })));
}

#[test]
fn a_missing_segment_ends_what_is_held() {
    let wal = wal((0..900).map(|_| 9000));
    let dir = stored(&wal);
    fs::remove_file(path(dir.path(), 7)).unwrap();
    let (mut writer, log) = open(dir.path()).unwrap();
    assert_eq!(log.start(), Lsn(BEGIN.0 + 3 * MB));
    assert_eq!(log.recovery().end, wal.at());
    let error = log.reader(Timeline(1), Lsn(BEGIN.0 + 2 * MB)).unwrap_err();
    assert_eq!(error.sqlstate(), "58P01");
    let mut more = wal.clone();
    more.record(10);
    let at = wal.at();
    writer.append(at, more.range(at, more.at())).unwrap();
    drop(writer);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Killed with bytes up to `cut` written; a power failure in addition may change anything after some earlier position.
    #[test]
    fn whatever_a_crash_leaves_behind(
        lengths in prop::collection::vec(prop_oneof![0_usize..60, 0_usize..9000, 0_usize..300_000], 1..40),
        cut in 0.0..=1.0_f64,
        torn in prop::option::of((0.0..=1.0_f64, any::<u8>())),
        switch: bool,
    ) {
        let mut wal = wal(lengths);
        if switch {
            wal.switch();
            wal.record(100);
            wal.record(9000);
        }
        let within = |part: f64| Lsn(BEGIN.0 + (wal.bytes.len() as f64 * part) as u64);
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, _) = open(dir.path()).unwrap();
        feed(&mut writer, &wal, within(cut));
        drop(writer);
        let mut end = within(cut);
        if let Some((part, byte)) = torn {
            // A page of which the disk has other bytes.
            let page = Lsn(within(part).0 / 8192 * 8192);
            overwrite(dir.path(), page, Lsn(page.0 + 8192), |_| byte);
            // The change matters only before the end, and not in padding, whose bytes are known.
            let whole = wal.end_before(page);
            if page >= end || whole <= page {
                end = end.min(page);
            }
        }
        let (mut writer, log) = match open(dir.path()) {
            Ok(opened) => opened,
            // The first page is lost: with segments after it, the log is not a new one.
            Err(LogError::Damaged { .. }) if end < Lsn(BEGIN.0 + 8192) => return Ok(()),
            Err(error) => panic!("{error}"),
        };
        let found = log.recovery().end;
        let expected = wal.end_before(end);
        prop_assert!(found == expected, "{found}, expected {expected}");
        feed(&mut writer, &wal, wal.at());
        drop(writer);
        prop_assert!(held_bytes(dir.path(), 1, BEGIN, wal.at()) == wal.bytes);
    }
}
