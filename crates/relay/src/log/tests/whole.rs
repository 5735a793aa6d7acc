//! End of the last whole record, queried repeatedly.

use proptest::prelude::*;

use super::*;

fn pages(log: &Log) -> u64 {
    log.metrics().walked_pages.load(Ordering::Relaxed)
}

/// Appends up to `to`, durably.
fn grow(writer: &mut Writer, wal: &Wal, to: Lsn) {
    feed(writer, wal, to);
    writer.flush().unwrap();
}

/// Returns the expected answer at `at`: the padding behind a switch of segments counts only as far as it is held.
fn expected(wal: &Wal, at: Lsn) -> Lsn {
    wal.aligned_end_before(at).min(at)
}

/// Queries come each second. A log that has not moved costs one page; otherwise only the new WAL is read.
#[test]
fn what_was_walked_once_is_not_walked_again() {
    let dir = tempfile::tempdir().unwrap();
    let wal = some_wal();
    let (mut writer, log) = open(dir.path()).unwrap();
    let first = Lsn(BEGIN.0 + MB - 20_000);
    grow(&mut writer, &wal, first);
    assert_eq!(log.whole_records().unwrap(), expected(&wal, first));
    let mut before = pages(&log);
    assert!(before >= 100, "a walk through the segment: {before}");
    for _ in 0..10 {
        assert_eq!(log.whole_records().unwrap(), expected(&wal, first));
    }
    assert!(pages(&log) - before <= 10, "ten looks at what had been seen");
    // Into the next segments, a little more each time.
    let mut at = first;
    while at < wal.at() {
        let next = Lsn(wal.at().0.min(at.0 + 50_001));
        grow(&mut writer, &wal, next);
        before = pages(&log);
        assert_eq!(log.whole_records().unwrap(), expected(&wal, next));
        assert!(pages(&log) - before <= 50_001 / 8192 + 2, "{} pages for what is new", pages(&log) - before);
        at = next;
    }
}

/// A record longer than many segments, queried while it arrives and after.
#[test]
fn in_a_long_record() {
    let dir = tempfile::tempdir().unwrap();
    let mut wal = wal([100, 200]);
    wal.record(9 << 20);
    wal.record(10);
    let (mut writer, log) = open(dir.path()).unwrap();
    let mut at = BEGIN;
    while at < wal.at() {
        at = Lsn(wal.at().0.min(at.0 + 700_001));
        grow(&mut writer, &wal, at);
        assert_eq!(log.whole_records().unwrap(), expected(&wal, at));
    }
    let all = wal.bytes.len() as u64 / 8192;
    assert!(pages(&log) < 2 * all + 100, "{} pages of {all}", pages(&log));
    drop(writer);
    // No query before the middle of the record.
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, log) = open(dir.path()).unwrap();
    let middle = Lsn(BEGIN.0 + 8 * MB + 5);
    grow(&mut writer, &wal, middle);
    assert_eq!(log.whole_records().unwrap(), expected(&wal, middle));
    assert!(pages(&log) < 3 * all, "{} pages of {all}", pages(&log));
    let before = pages(&log);
    assert_eq!(log.whole_records().unwrap(), expected(&wal, middle));
    assert!(pages(&log) - before <= 1);
}

/// A connection that is cut loses a record's last bytes, though the record is the same with the zeroes of a new file in their place.
#[test]
fn zeroes_that_never_came() {
    let mut wal = wal([100, 200]);
    let before = wal.at();
    wal.record(1);
    assert_eq!(wal.bytes.last(), Some(&0));
    let end = wal.at();
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, log) = open(dir.path()).unwrap();
    for at in before.0 + 24..end.0 {
        grow(&mut writer, &wal, Lsn(at));
        assert_eq!(log.whole_records().unwrap(), before, "at {}", Lsn(at));
    }
    grow(&mut writer, &wal, end);
    assert_eq!(log.whole_records().unwrap(), end);

    // The new primary has not replayed it either, and goes on without it.
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, log) = open(dir.path()).unwrap();
    grow(&mut writer, &wal, Lsn(before.0 + 24));
    let history = format!("1\t{before}\tno recovery target specified\n");
    writer.switch_timeline(Timeline(2), before, history.as_bytes()).unwrap();
    assert_eq!(log.whole_records().unwrap(), before);
}

#[test]
fn on_another_timeline() {
    let wal = some_wal();
    let at = wal.records[wal.records.len() / 2].1;
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, log) = open(dir.path()).unwrap();
    grow(&mut writer, &wal, at);
    assert_eq!(log.whole_records().unwrap(), at);
    let history = format!("1\t{at}\tno recovery target specified\n");
    writer.switch_timeline(Timeline(2), at, history.as_bytes()).unwrap();
    assert_eq!(log.whole_records().unwrap(), at);
    let mut new = wal.fork(2, at);
    for length in [10, 30_000, 1_200_000, 7] {
        new.record(length);
        let cut = Lsn(new.at().0 - 3);
        grow(&mut writer, &new, cut);
        assert_eq!(log.whole_records().unwrap(), expected(&new, cut));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// At any time, and after any number of queries, the answer equals that of a walk through the whole log.
    #[test]
    fn at_any_time(
        lengths in prop::collection::vec(prop_oneof![0_usize..60, 0_usize..9000, 0_usize..300_000, 1_000_000_usize..1_200_000], 1..30),
        switch: bool,
        looks in prop::collection::vec(0.0..=1.0_f64, 1..12),
    ) {
        let mut wal = wal(lengths);
        if switch {
            wal.switch();
            wal.record(9000);
        }
        let mut looks: Vec<Lsn> = looks.iter().map(|part| Lsn(BEGIN.0 + (wal.bytes.len() as f64 * part) as u64)).collect();
        looks.sort_unstable();
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, log) = open(dir.path()).unwrap();
        for at in looks {
            grow(&mut writer, &wal, at);
            prop_assert_eq!(log.whole_records().unwrap(), expected(&wal, at));
        }
    }
}
