//! Readers beside the writer, and files for `restore_command`.

use std::fs;

use super::super::{FetchError, Next, PAGE_BYTES, Serve, fetch};
use super::*;

#[test]
fn chunks_end_with_pages_and_never_cross_a_segment() {
    let dir = tempfile::tempdir().unwrap();
    let wal = some_wal();
    let (mut writer, log) = open(dir.path()).unwrap();
    feed(&mut writer, &wal, wal.at());
    writer.flush().unwrap();
    for (from, max) in
        [(BEGIN, 128 << 10), (Lsn(BEGIN.0 + 100), 100_000), (Lsn(BEGIN.0 + MB - 10), 0), (BEGIN, usize::MAX)]
    {
        let mut reader = log.reader(Timeline(1), from).unwrap();
        let mut bytes = Vec::new();
        while let Next::Chunk(chunk) = reader.next(Serve::Flushed, max).unwrap() {
            assert_eq!(chunk.at.0, from.0 + bytes.len() as u64);
            assert_eq!(chunk.end_of_wal, wal.at());
            let end = chunk.at.0 + chunk.len as u64;
            assert!(chunk.len <= max.max(8192) && chunk.len > 0);
            assert!(end.is_multiple_of(8192) || end == wal.at().0);
            assert!(chunk.offset + chunk.len as u64 <= MB);
            chunk.read_into(&mut bytes).unwrap();
        }
        assert!(bytes == wal.range(from, wal.at()));
        assert_eq!(reader.position(), wal.at());
    }
    let caught_up = log.reader(Timeline(1), wal.at()).unwrap().next(Serve::Written, 10).unwrap();
    assert!(matches!(caught_up, Next::CaughtUp));
}

/// Several readers follow one writer; they read the bytes written, and never unflushed ones.
#[test]
fn readers_follow_the_writer() {
    let dir = tempfile::tempdir().unwrap();
    let wal = wal((0..1000).map(|i| (i * 31) % 9000));
    let (mut writer, log) = open(dir.path()).unwrap();
    std::thread::scope(|scope| {
        for serve in [Serve::Flushed, Serve::Written, Serve::Flushed] {
            let (wal, log) = (&wal, log.clone());
            scope.spawn(move || {
                let mut reader = log.reader(Timeline(1), BEGIN).unwrap();
                let tail = log.tail();
                let mark = if serve == Serve::Flushed { tail.flushed.clone() } else { tail.written.clone() };
                let mut parker = watermark::Parker::new(mark.clone());
                let mut bytes = Vec::new();
                while reader.position() < wal.at() {
                    match reader.next(serve, 128 << 10).unwrap() {
                        Next::Chunk(chunk) => {
                            assert!(reader.position() <= mark.get());
                            chunk.read_into(&mut bytes).unwrap();
                        }
                        Next::CaughtUp => {
                            parker.wait(Lsn(reader.position().0 + 1), None);
                        }
                        other => panic!("{other:?}"),
                    }
                }
                assert!(bytes == wal.bytes);
            });
        }
        feed(&mut writer, &wal, wal.at());
    });
}

#[test]
fn fetches_what_is_held_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let to = tempfile::tempdir().unwrap();
    let target = to.path().join("RECOVERYXLOG");
    let wal = some_wal();
    let (mut writer, log) = open(dir.path()).unwrap();
    feed(&mut writer, &wal, wal.at());
    log.store_history(Timeline(2), b"1\t0/600000\tx\n").unwrap();

    fetch(dir.path(), "000000010000000000000005", &target).unwrap();
    assert!(fs::read(&target).unwrap() == wal.bytes[..MB as usize]);
    // The segment being written: its current part.
    let last = super::super::Segment { number: identity().segment_size.number(wal.at()), timeline: Timeline(1) };
    fetch(dir.path(), &last.name(identity().segment_size), &target).unwrap();
    let held = (wal.at().0 % MB) as usize;
    assert!(fs::read(&target).unwrap()[..held] == wal.bytes[wal.bytes.len() - held..]);
    fetch(dir.path(), "00000002.history", &target).unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"1\t0/600000\tx\n");

    fs::remove_file(&target).unwrap();
    let ahead = super::super::Segment { number: last.number + 1, ..last }.name(identity().segment_size);
    for name in ["000000010000000000000004", "000000020000000000000005", &ahead, "00000003.history"] {
        assert!(matches!(fetch(dir.path(), name, &target), Err(FetchError::NotHeld { .. })), "{name}");
    }
    for name in ["../../etc/passwd", "kingpost-log.state", "", "000000010000000000000005.partial"] {
        assert!(matches!(fetch(dir.path(), name, &target), Err(FetchError::BadName { .. })), "{name}");
    }
    assert!(matches!(fetch(to.path(), "00000003.history", &target), Err(FetchError::NotHeld { .. })));
    let nowhere = to.path().join("no/such/directory");
    assert!(matches!(fetch(dir.path(), "000000010000000000000005", &nowhere), Err(FetchError::Log(_))));
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0, "nothing half done is left");
}

#[test]
fn a_server_that_has_more_of_a_segment_keeps_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let to = tempfile::tempdir().unwrap();
    let target = to.path().join("RECOVERYXLOG");
    let wal = some_wal();
    let (mut writer, _log) = open(dir.path()).unwrap();
    let half = wal.end_before(Lsn(BEGIN.0 + MB / 2));
    feed(&mut writer, &wal, half);
    let name = "000000010000000000000005";
    let own = to.path().join(name);
    let whole = wal.range(BEGIN, Lsn(BEGIN.0 + MB));
    let held = (half.0 - BEGIN.0) as usize;
    let filled = |end: usize| [&whole[..end], &vec![0; MB as usize - end]].concat();
    // Behind its last page a recycled file has pages of another address.
    let page_end = held.next_multiple_of(PAGE_BYTES);
    let recycled = [&filled(held)[..page_end], &whole[..MB as usize - page_end]].concat();
    for (case, bytes, copied) in [
        ("the same", filled(held), true),
        ("less", filled(held - 9000), true),
        ("nothing", filled(0), true),
        ("recycled", recycled, true),
        ("another's", vec![7; MB as usize], true),
        ("short", whole[..4000].to_vec(), true),
        ("a record more", filled(held + 200), false),
        ("pages more", filled(held + 20_000), false),
        ("all", whole.to_vec(), false),
    ] {
        fs::write(&own, &bytes).unwrap();
        match fetch(dir.path(), name, &target) {
            Ok(()) => assert!(copied, "{case}"),
            Err(FetchError::NotHeld { .. }) => assert!(!copied && !target.exists(), "{case}"),
            Err(error) => panic!("{case}: {error}"),
        }
        assert!(fs::read(&own).unwrap() == bytes, "{case}");
        let _ = fs::remove_file(&target);
    }
    // Asked for by a name of its own, the file is what it is at the relay.
    fetch(dir.path(), name, &own).unwrap();
    assert!(fs::read(&own).unwrap()[..held] == whole[..held]);
}
