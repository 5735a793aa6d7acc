//! Timeline switches, and the state after a crash in the middle of one.

use std::fs;

use super::super::{Next, ReadError, Serve, SwitchError, Tail};
use super::*;

fn history(parent: u32, at: Lsn) -> Vec<u8> {
    format!("{parent}\t{at}\tno recovery target specified\n").into_bytes()
}

/// Makes a log with timeline 1 up to `to`, which may be in the middle of a record.
fn log_up_to(dir: &Path, wal: &Wal, to: Lsn) -> (Writer, Arc<Log>) {
    let (mut writer, log) = open(dir).unwrap();
    feed(&mut writer, wal, to);
    (writer, log)
}

/// Makes `wal` up to `at`, then timeline 2.
fn forked(wal: &Wal, at: Lsn) -> Wal {
    let mut fork = wal.fork(2, at);
    for i in 0..200 {
        fork.record((i * 1237) % 11_000);
    }
    fork
}

/// Reads all bytes that a reader on `timeline` gets, and the end that it reports.
fn read_all(log: &Arc<Log>, timeline: u32, from: Lsn) -> (Vec<u8>, Next) {
    let mut reader = log.reader(Timeline(timeline), from).unwrap();
    let mut bytes = Vec::new();
    loop {
        match reader.next(Serve::Flushed, 50_000).unwrap() {
            Next::Chunk(chunk) => {
                assert_eq!(chunk.at.0, from.0 + bytes.len() as u64);
                chunk.read_into(&mut bytes).unwrap();
            }
            end => return (bytes, end),
        }
    }
}

fn check_both_timelines(log: &Arc<Log>, old: &Wal, new: &Wal, at: Lsn) {
    let (bytes, end) = read_all(log, 1, BEGIN);
    assert!(bytes == old.range(BEGIN, at));
    assert!(matches!(end, Next::EndOfTimeline { next: Timeline(2), at: ends } if ends == at));
    let from = identity().segment_size.start_of(at);
    let (bytes, end) = read_all(log, 2, from);
    assert!(bytes == new.range(from, new.at()));
    assert!(matches!(end, Next::CaughtUp));
    // A downstream that asks on the new timeline for earlier WAL gets that too.
    assert!(read_all(log, 2, BEGIN).0 == new.bytes);

    let error = log.reader(Timeline(1), Lsn(at.0 + 8)).unwrap_err();
    assert!(matches!(error, ReadError::NotInHistory { .. }));
    assert_eq!(
        (error.to_string(), error.detail().unwrap()),
        (
            format!("requested starting point {} on timeline 1 is not in this server's history", Lsn(at.0 + 8)),
            format!("This server's history forked from timeline 1 at {at}.")
        )
    );
    assert_eq!(
        log.reader(Timeline(7), at).unwrap_err().to_string(),
        "requested timeline 7 is not in this server's history"
    );
    let beyond = Lsn(new.at().0 + 8);
    assert_eq!(
        log.reader(Timeline(2), beyond).unwrap_err().to_string(),
        format!("requested starting point {beyond} is ahead of the WAL flush position of this server {}", new.at())
    );
}

/// Returns fork points: in a segment, and between two.
fn forks(wal: &Wal) -> [Lsn; 2] {
    let inside = wal.records[wal.records.len() / 2].1;
    assert_ne!(identity().segment_size.offset(inside), 0);
    let mut switched = wal.clone();
    switched.switch();
    [inside, switched.at()]
}

#[test]
fn goes_on_after_the_switch_point_and_after_a_restart() {
    let mut wal = some_wal();
    wal.switch();
    let [inside, between] = forks(&some_wal());
    for (at, written) in [(inside, inside), (inside, Lsn(inside.0 + 20)), (between, between)] {
        // Behind a fork between segments the whole padding of the switch follows.
        assert!(at == between || wal.end_before(written) == at, "no whole record behind the fork");
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, log) = log_up_to(dir.path(), &wal, written);
        let old = log.tail();
        let mut follower = log.reader(Timeline(1), BEGIN).unwrap();
        let seen = log.changes().get();
        let tail: Arc<Tail> = writer.switch_timeline(Timeline(2), at, &history(1, at)).unwrap();
        assert_eq!((tail.timeline, tail.begin, tail.written.get(), tail.flushed.get()), (Timeline(2), at, at, at));
        assert_eq!(old.ended(), Some((Timeline(2), at)));
        assert_eq!(old.flushed.get(), written, "what had been written was flushed first");
        assert!(log.changes().get() > seen);
        assert_eq!(log.history(Timeline(2)).as_deref(), Some(&history(1, at)[..]));
        // A reader of the old timeline reaches its end.
        loop {
            match follower.next(Serve::Flushed, 1 << 20).unwrap() {
                Next::Chunk(_) => {}
                Next::EndOfTimeline { next: Timeline(2), at: ends } if ends == at => break,
                other => panic!("{other:?}"),
            }
        }
        let new = forked(&wal, at);
        assert_eq!(writer.resume(), (Timeline(2), identity().segment_size.start_of(at)));
        feed(&mut writer, &new, new.at());
        writer.flush().unwrap();
        check_both_timelines(&log, &wal, &new, at);
        drop((writer, log));
        let (writer, log) = open(dir.path()).unwrap();
        assert_eq!((log.recovery().timeline, log.recovery().end), (Timeline(2), new.at()));
        check_both_timelines(&log, &wal, &new, at);
        drop(writer);
    }
}

#[test]
fn a_log_that_begins_after_a_switch_gives_of_the_old_timeline_what_it_has() {
    let wal = some_wal();
    let [at, _] = forks(&wal);
    let new = forked(&wal, at);
    let from = identity().segment_size.start_of(at);
    let half = new.end_before(Lsn(from.0 + (at.0 - from.0) / 2));
    assert!(from < half && half < at);
    let dir = tempfile::tempdir().unwrap();
    let start = Some(Start { timeline: Timeline(2), at: from });
    let (mut writer, log) = Log::open(LogOptions { start, ..options(dir.path()) }).unwrap();
    log.store_history(Timeline(2), &history(1, at)).unwrap();
    let (bytes, end) = read_all(&log, 1, from);
    assert!(bytes.is_empty() && matches!(end, Next::CaughtUp), "{end:?}");
    let mut follower = log.reader(Timeline(1), from).unwrap();
    assert!(follower.awaits(&log.tail()));

    feed(&mut writer, &new, half);
    writer.flush().unwrap();
    for serve in [Serve::Flushed, Serve::Written] {
        let end = log.reader(Timeline(1), half).unwrap().next(serve, 1).unwrap();
        assert!(matches!(end, Next::CaughtUp), "{end:?}");
    }
    let (bytes, end) = read_all(&log, 1, from);
    assert!(bytes == wal.range(from, half) && matches!(end, Next::CaughtUp), "{end:?}");
    let error = log.reader(Timeline(1), Lsn(half.0 + 8)).unwrap_err();
    assert!(matches!(error, ReadError::AheadOfFlush { .. }), "{error}");

    feed(&mut writer, &new, new.at());
    writer.flush().unwrap();
    let (bytes, end) = read_all(&log, 1, from);
    assert!(bytes == wal.range(from, at));
    assert!(matches!(end, Next::EndOfTimeline { next: Timeline(2), at: ends } if ends == at), "{end:?}");
    while matches!(follower.next(Serve::Flushed, 1 << 20).unwrap(), Next::Chunk(_)) {}
    assert!(!follower.awaits(&log.tail()), "only the end of the timeline is left");
}

#[test]
fn killed_after_any_step_of_a_switch() {
    let wal = some_wal();
    let [at, _] = forks(&wal);
    let new = forked(&wal, at);
    let size = identity().segment_size;
    let fork = dir_name(2, size.number(at));
    for step in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, log) = log_up_to(dir.path(), &wal, at);
        match step {
            // Only the history file.
            0 => log.store_history(Timeline(2), &history(1, at)).unwrap(),
            // An incomplete file of the fork.
            1 => {
                log.store_history(Timeline(2), &history(1, at)).unwrap();
                fs::write(dir.path().join(format!("{fork}.unfinished")), "x").unwrap();
            }
            // The fork's file, with the files ahead still under their old names.
            _ => {
                writer.switch_timeline(Timeline(2), at, &history(1, at)).unwrap();
                let ahead = dir.path().join(dir_name(2, size.number(at) + 1));
                if ahead.exists() {
                    fs::rename(ahead, dir.path().join(dir_name(1, size.number(at) + 1))).unwrap();
                }
            }
        }
        drop((writer, log));
        let (mut writer, log) = open(dir.path()).unwrap();
        assert_eq!(log.recovery().end, at);
        if log.recovery().timeline == Timeline(1) {
            assert!(step < 2);
            writer.switch_timeline(Timeline(2), at, &history(1, at)).unwrap();
        }
        feed(&mut writer, &new, new.at());
        writer.flush().unwrap();
        check_both_timelines(&log, &wal, &new, at);
    }
}

fn dir_name(timeline: u32, number: u64) -> String {
    super::super::Segment { number, timeline: Timeline(timeline) }.name(identity().segment_size)
}

#[test]
fn a_switch_that_would_lose_or_skip_wal_is_refused() {
    let wal = some_wal();
    let [at, _] = forks(&wal);
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, log) = log_up_to(dir.path(), &wal, at);
    let mut switch = |to: u32, at: Lsn, history: &[u8]| writer.switch_timeline(Timeline(to), at, history).unwrap_err();
    let before = wal.records[wal.records.len() / 2 - 1].1;
    assert!(matches!(switch(2, before, &history(1, before)), SwitchError::Diverged { held_end, .. } if held_end == at));
    let long_before = wal.records[3].1;
    assert!(
        matches!(switch(2, long_before, &history(1, long_before)), SwitchError::Diverged { held_end, .. } if held_end == at)
    );
    let beyond = Lsn(at.0 + 8);
    assert!(matches!(switch(2, beyond, &history(1, beyond)), SwitchError::Gap { .. }));
    assert!(matches!(switch(2, at, &history(1, beyond)), SwitchError::NotAChild { .. }));
    assert!(matches!(switch(3, at, &history(2, at)), SwitchError::NotAChild { .. }));
    assert!(matches!(switch(2, at, b""), SwitchError::NotAChild { .. }));
    assert!(matches!(switch(2, at, b"nonsense"), SwitchError::History { .. }));
    assert!(matches!(switch(1, at, &history(1, at)), SwitchError::History { .. }));
    // Nothing has changed.
    assert_eq!((log.tail().timeline, log.changes().get()), (Timeline(1), 0));
    assert_eq!(log.history(Timeline(2)), None);
    let mut writer = writer;
    feed(&mut writer, &wal, wal.at());
    // Two servers promoted to one number.
    log.store_history(Timeline(2), &history(1, at)).unwrap();
    log.store_history(Timeline(2), &history(1, at)).unwrap();
    assert!(matches!(log.store_history(Timeline(2), &history(1, beyond)), Err(LogError::OtherHistory { .. })));
    assert!(matches!(log.store_history(Timeline(2), b"x"), Err(LogError::History { .. })));
}

#[test]
fn a_switch_needs_no_room() {
    let wal = some_wal();
    for at in forks(&wal) {
        let mut wal = wal.clone();
        wal.switch();
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, log) = log_up_to(dir.path(), &wal, at);
        settled(&log);
        log.faults.no_room.store(true, Ordering::SeqCst);
        writer.switch_timeline(Timeline(2), at, &history(1, at)).unwrap();
        let new = forked(&wal, at);
        let in_this_segment = Lsn(new.at().0.min(at.0 + 50_000));
        feed(&mut writer, &new, in_this_segment);
        writer.flush().unwrap();
        assert!(!log.has_reserve());
        // With room the reserve is made again, and serves the next switch.
        log.faults.no_room.store(false, Ordering::SeqCst);
        log.prepare();
        settled(&log);
        feed(&mut writer, &new, new.at());
        writer.flush().unwrap();
        check_both_timelines(&log, &wal, &new, at);
        log.faults.no_room.store(true, Ordering::SeqCst);
        let second = format!("1\t{at}\tx\n2\t{}\ty\n", new.at()).into_bytes();
        let end = new.at();
        writer.switch_timeline(Timeline(3), end, &second).unwrap();
        drop((writer, log));
        let (writer, log) = open(dir.path()).unwrap();
        assert_eq!((log.recovery().timeline, log.recovery().end), (Timeline(3), end));
        drop(writer);
    }
}

#[test]
fn a_switch_without_room_and_reserve_can_be_made_later() {
    let wal = some_wal();
    let [at, _] = forks(&wal);
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, log) = log_up_to(dir.path(), &wal, at);
    settled(&log);
    log.faults.no_room.store(true, Ordering::SeqCst);
    for file in ["kingpost-log.reserve", "kingpost-log.reserve-history"] {
        fs::remove_file(dir.path().join(file)).unwrap();
    }
    assert!(matches!(writer.switch_timeline(Timeline(2), at, &history(1, at)), Err(SwitchError::Log(_))));
    assert_eq!(log.tail().timeline, Timeline(1));
    log.faults.no_room.store(false, Ordering::SeqCst);
    writer.switch_timeline(Timeline(2), at, &history(1, at)).unwrap();
    let new = forked(&wal, at);
    feed(&mut writer, &new, new.at());
    writer.flush().unwrap();
    check_both_timelines(&log, &wal, &new, at);
}

/// An old segment becomes the reserve if no file can be made.
#[test]
fn an_old_segment_becomes_the_reserve() {
    let dir = tempfile::tempdir().unwrap();
    let wal = wal((0..900).map(|_| 9000));
    let (mut writer, log) = open(dir.path()).unwrap();
    feed(&mut writer, &wal, wal.at());
    writer.flush().unwrap();
    settled(&log);
    log.faults.no_room.store(true, Ordering::SeqCst);
    fs::remove_file(dir.path().join("kingpost-log.reserve")).unwrap();
    log.retain(&super::super::Retention::default()).unwrap();
    assert!(log.has_reserve());
}
