//! Disks that are full or fail.

use super::super::ahead::Blocks;
use super::super::{AppendError, MAX_UNFLUSHED, Segment, flush};
use super::*;

#[test]
fn a_full_disk_loses_nothing_and_the_log_goes_on_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let wal = wal((0..900).map(|_| 9000));
    let (mut writer, log) = open(dir.path()).unwrap();
    feed(&mut writer, &wal, Lsn(BEGIN.0 + 100));
    log.faults.no_room.store(true, Ordering::SeqCst);
    // The files made ahead are used up first.
    let error = writer.append(Lsn(BEGIN.0 + 100), wal.range(Lsn(BEGIN.0 + 100), wal.at())).unwrap_err();
    assert!(matches!(&error, AppendError::Full { .. }), "{error}");
    assert!(error.to_string().contains("nothing is acknowledged until there is room"), "{error}");
    let written = log.tail().written.get();
    assert!(written > Lsn(BEGIN.0 + 100) && written < wal.at());
    assert_eq!(identity().segment_size.offset(written), 0, "all that there was room for");
    // Accepted WAL is safe, and stays so.
    writer.flush().unwrap();
    assert_eq!(log.tail().flushed.get(), written);
    assert!(log.failure().is_none());
    assert!(writer.append(written, wal.range(written, wal.at())).is_err());
    assert_eq!(log.tail().written.get(), written);

    log.faults.no_room.store(false, Ordering::SeqCst);
    // The same append again.
    writer.append(Lsn(BEGIN.0 + 100), wal.range(Lsn(BEGIN.0 + 100), wal.at())).unwrap();
    writer.flush().unwrap();
    assert!(held_bytes(dir.path(), 1, BEGIN, wal.at()) == wal.bytes);
}

#[test]
fn a_failed_flush_stops_the_log_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let wal = some_wal();
    let (mut writer, log) = open(dir.path()).unwrap();
    let safe = Lsn(BEGIN.0 + 5000);
    feed(&mut writer, &wal, safe);
    writer.flush().unwrap();
    log.faults.no_flush.store(true, Ordering::SeqCst);
    // Waiters for other changes than a position are woken, too.
    let mut parker_free = log.changes().get();
    writer.append(safe, wal.range(safe, Lsn(safe.0 + 5000))).unwrap();
    let failure = writer.flush().unwrap_err();
    assert_eq!((failure.flushed, failure.tried), (safe, "flush"));
    assert!(log.changes().get() > std::mem::take(&mut parker_free));
    assert_eq!(log.failure(), Some(&failure));
    // The disk works again, which nobody may believe.
    log.faults.no_flush.store(false, Ordering::SeqCst);
    let at = log.tail().written.get();
    assert!(matches!(writer.append(at, wal.range(at, Lsn(at.0 + 1))), Err(AppendError::Failed(_))));
    assert!(writer.flush().is_err());
    drop(writer);
    assert_eq!(log.tail().flushed.get(), safe, "nothing more was reported as flushed");
    let (writer, log) = open(dir.path()).unwrap();
    assert!(log.recovery().end >= wal.end_before(safe));
    drop(writer);
}

/// Also when the writer's thread is the one that flushes, and the flusher is woken after it.
#[test]
fn a_flush_that_failed_is_not_tried_again_by_another_thread() {
    let dir = tempfile::tempdir().unwrap();
    let wal = some_wal();
    let (mut writer, log) = open(dir.path()).unwrap();
    let safe = Lsn(BEGIN.0 + 5000);
    // At any speed of the disk; retried while the flusher checks for work.
    let flush_here = || {
        log.flushing.set_last_us(0);
        while !flush::flush_here(&*log) {
            std::thread::yield_now();
        }
    };
    writer.take(BEGIN, wal.range(BEGIN, safe)).unwrap();
    flush_here();
    assert_eq!(log.tail().flushed.get(), safe);
    log.faults.no_flush.store(true, Ordering::SeqCst);
    writer.take(safe, wal.range(safe, Lsn(safe.0 + 5000))).unwrap();
    flush_here();
    assert_eq!(log.failure().map(|failure| failure.flushed), Some(safe));
    log.faults.no_flush.store(false, Ordering::SeqCst);
    let before = log.metrics().flushes.count();
    flush_here();
    assert!(writer.flush().is_err());
    // Its threads have ended by then.
    drop(writer);
    assert_eq!((log.tail().flushed.get(), log.metrics().flushes.count()), (safe, before));
}

/// The writer may not get arbitrarily far ahead of the disk; a failure wakes it from its wait.
#[test]
fn what_is_not_flushed_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let wal = wal((0..9000).map(|_| 9000));
    assert!(wal.bytes.len() as u64 > MAX_UNFLUSHED);
    let (mut writer, log) = open(dir.path()).unwrap();
    std::thread::scope(|scope| {
        let watcher = log.clone();
        let done = Arc::new(AtomicBool::new(false));
        let stop = done.clone();
        scope.spawn(move || {
            let tail = watcher.tail();
            while !stop.load(Ordering::Acquire) {
                // In this order: `written` may rise in between, but `flushed` never falls.
                let written = tail.written.get();
                assert!(written.0 <= tail.flushed.get().0 + MAX_UNFLUSHED);
                std::thread::yield_now();
            }
        });
        let appended = writer.append(BEGIN, &wal.bytes);
        done.store(true, Ordering::Release);
        appended.unwrap();
    });
    writer.flush().unwrap();
}

#[test]
fn a_segment_whose_name_may_not_last_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let (_writer, log) = open(dir.path()).unwrap();
    let segment = Segment { number: 1000, timeline: Timeline(1) };
    log.faults.no_name.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let error = log.create_segment(segment, Blocks::Written).unwrap_err();
        assert!(error.to_string().contains("sync the directory"), "{error}");
    }
    log.faults.no_name.store(false, Ordering::SeqCst);
    log.create_segment(segment, Blocks::Written).unwrap();
}
