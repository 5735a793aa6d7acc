//! A log that is written, truncated at any position, and opened again.

#![allow(clippy::unwrap_used)]

use std::fs;

use ::binlog::MAGIC;
use ::binlog::event::{CHECKSUM, Checksum, HEADER, Kind, artificial};
use ::binlog::gtid::mariadb;

use super::*;
use crate::log::flush;
use crate::log::tests::directory;

const SUM: Checksum = Checksum::Crc32;

fn event(at: usize, kind: Kind, body: &[u8]) -> Vec<u8> {
    artificial(kind, 1, (at + HEADER + body.len() + CHECKSUM) as u32, 0, body, SUM)
}

fn format_body() -> Vec<u8> {
    let mut body = vec![4, 0];
    body.resize(56, 0);
    body.push(HEADER as u8);
    body.extend_from_slice(&[56; 30]);
    body.push(1);
    body
}

fn gtid_body(sequence: u64) -> Vec<u8> {
    let mut body = sequence.to_le_bytes().to_vec();
    body.extend_from_slice(&[0; 11]);
    body
}

fn list_body(last: u64) -> Vec<u8> {
    let mut body = u32::from(last > 0).to_le_bytes().to_vec();
    if last > 0 {
        body.extend_from_slice(&[0, 0, 0, 0, 1, 0, 0, 0]);
        body.extend_from_slice(&last.to_le_bytes());
    }
    body
}

/// Returns a file that begins after transaction `last`, and the ends of its transactions. Every other transaction is in the form of MariaDB 11.4 and
/// later: its inner events do not carry their end (`end_log_pos` is 0).
fn file(last: u64, transactions: u64) -> (Vec<u8>, Vec<(u64, u64)>) {
    let mut bytes = MAGIC.to_vec();
    let mut ends = Vec::new();
    let push = |bytes: &mut Vec<u8>, kind, body: &[u8]| {
        let event = event(bytes.len(), kind, body);
        bytes.extend_from_slice(&event);
    };
    push(&mut bytes, Kind::FORMAT, &format_body());
    push(&mut bytes, Kind::MARIADB_GTID_LIST, &list_body(last));
    ends.push((bytes.len() as u64, last));
    for sequence in last + 1..=last + transactions {
        push(&mut bytes, Kind::MARIADB_GTID, &gtid_body(sequence));
        if sequence % 2 == 0 {
            bytes.extend_from_slice(&artificial(Kind(23), 1, 0, 0, &[7; 40], SUM));
        } else {
            push(&mut bytes, Kind(23), &[7; 40]);
        }
        push(&mut bytes, Kind::XID, &[0; 8]);
        ends.push((bytes.len() as u64, sequence));
    }
    (bytes, ends)
}

fn gtid(sequence: u64) -> Gtid {
    Gtid::MariaDb(mariadb::Gtid { domain: 0, server: 1, sequence })
}

fn gtids(last: u64) -> String {
    if last == 0 { String::new() } else { format!("0-1-{last}") }
}

fn name(number: u64) -> FileName {
    FileName::parse(format!("bin.{number:06}").as_bytes()).unwrap()
}

fn open(dir: &Path) -> Result<(Writer, Arc<Log>), LogError> {
    Log::open(&directory(dir), Dialect::MariaDb)
}

/// Writes a file through the writer, transaction by transaction.
fn write(writer: &mut Writer, epoch: u64, number: u64, last: u64, transactions: u64) {
    let (bytes, ends) = file(last, transactions);
    writer.begin(epoch, 1, name(number)).unwrap();
    let mut from = 0;
    for (index, (end, sequence)) in ends.iter().enumerate() {
        writer.take(&bytes[from as usize..*end as usize]).unwrap();
        if index == 0 {
            writer.begins_with(State::parse(Dialect::MariaDb, &gtids(last)).unwrap()).unwrap();
        }
        let gtid = (index > 0).then(|| gtid(*sequence));
        writer.mark(true, true, gtid, from).unwrap();
        writer.publish(*end).unwrap();
        from = *end;
    }
    writer.flush_behind();
}

fn flushed(log: &Log) {
    while log.flushed.get() < log.written.get() {
        flush::flush_here(log);
        std::thread::yield_now();
    }
    // The flusher publishes the flush before it publishes what is durable.
    flush::wait_settled(log);
}

#[test]
fn what_was_written_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, log) = open(dir.path()).unwrap();
    assert_eq!((log.epoch(), log.durable().state.is_empty(), writer.resume().is_none()), (0, true, true));
    write(&mut writer, 1, 7, 0, 3);
    write(&mut writer, 1, 8, 3, 2);
    write(&mut writer, 2, 1, 5, 4);
    flushed(&log);
    let durable = log.durable();
    assert_eq!((durable.state.to_string(), durable.at), (gtids(9), log.written.get()));
    let (log_file, offset) = durable.wanted.unwrap();
    assert_eq!((log_file.name.as_str(), offset), ("bin.000001", fs::metadata(&log_file.path).unwrap().len()));
    drop((writer, log));
    let (writer, log) = open(dir.path()).unwrap();
    assert_eq!((log.durable().state.to_string(), log.epoch(), log.log_files().len()), (gtids(9), 2, 3));
    let begins: Vec<String> =
        log.log_files().iter().map(|log_file| log_file.begins.get().unwrap().to_string()).collect();
    assert_eq!(begins, [gtids(0), gtids(3), gtids(5)]);
    let (log_file, from) = writer.resume().unwrap();
    let (_, ends) = file(5, 4);
    assert_eq!((log_file.epoch, from), (2, ends[3].0), "from the last transaction on");
    assert_eq!(log.next(&log.log_files()[0]).unwrap().path, log.log_files()[1].path);
    assert!(log.next(&log.log_files()[2]).is_none());
}

/// In an epoch a file begins with the transactions of the files before it, and each transaction is new: also for a process that has only the files.
#[test]
fn another_history_is_recognised() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, mut log) = open(dir.path()).unwrap();
    write(&mut writer, 1, 7, 0, 3);
    flushed(&log);
    for opened_again in [false, true] {
        if opened_again {
            drop((writer, log));
            (writer, log) = open(dir.path()).unwrap();
        }
        assert_eq!(log.history().to_string(), gtids(3));
        let parted = |result: Result<(), AppendError>| matches!(result, Err(AppendError::Parted { .. }));
        let again = |sequence| Some(gtid(sequence));
        for (sequence, is_new) in [(1, false), (3, false), (4, true), (4, false)] {
            assert_eq!(!parted(writer.mark(true, true, again(sequence), 0)), is_new, "{sequence}");
        }
        // The transaction was not published: it may come again.
        writer.rewind().unwrap();
        assert!(!parted(writer.mark(true, true, again(4), 0)));
        writer.rewind().unwrap();
    }
    writer.begin(1, 1, name(8)).unwrap();
    for begins in ["0-1-2", "0-1-4", "", "0-1-3,1-1-1", "0-2-3"] {
        let error = writer.begins_with(State::parse(Dialect::MariaDb, begins).unwrap()).unwrap_err().to_string();
        assert!(error.contains("begun its history anew"), "{begins}: {error}");
    }
    writer.begins_with(State::parse(Dialect::MariaDb, &gtids(3)).unwrap()).unwrap();
    // Another source's first file may begin anywhere earlier.
    writer.begin(2, 2, name(1)).unwrap();
    writer.begins_with(State::parse(Dialect::MariaDb, &gtids(1)).unwrap()).unwrap();
}

/// After a log is given up, the next epoch begins; for the same source the same epoch, if it was fenced.
#[test]
fn a_log_is_given_up_and_its_number_is_kept() {
    for to in [Some("aside"), None] {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, log) = open(dir.path()).unwrap();
        assert_eq!(log.next_epoch(1, 0), 1);
        write(&mut writer, 1, 7, 0, 3);
        write(&mut writer, 2, 1, 3, 4);
        flushed(&log);
        assert_eq!((log.next_epoch(1, 2), log.next_epoch(2, 2)), (3, 3));
        drop((writer, log));
        let to = to.map(|to| dir.path().join(to));
        let names = give_up(dir.path(), to.as_deref()).unwrap();
        assert_eq!(names, ["0000000001-1/bin.000007", "0000000002-1/bin.000001"]);
        if let Some(to) = to {
            assert_eq!(fs::read(to.join("0000000002-1/bin.000001")).unwrap(), file(3, 4).0);
        }
        assert_eq!(give_up(dir.path(), None).unwrap(), [""; 0], "once more, as after a crash");
        assert!(is_log(dir.path()));
        let (writer, log) = open(dir.path()).unwrap();
        assert!(writer.resume().is_none() && log.history().is_empty() && log.durable().state.is_empty());
        assert_eq!((log.next_epoch(1, 1), log.next_epoch(1, 2), log.next_epoch(9, 2)), (3, 2, 3));
    }
}

#[test]
fn wherever_a_file_is_torn_whole_transactions_stay() {
    let (bytes, ends) = file(2, 3);
    for cut in 0..=bytes.len() {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, log) = open(dir.path()).unwrap();
        write(&mut writer, 1, 1, 0, 2);
        drop((writer, log));
        let epoch = dir.path().join("0000000001-1");
        fs::write(epoch.join("bin.000002"), &bytes[..cut]).unwrap();
        let (mut writer, log) = open(dir.path()).unwrap();
        let kept = ends.iter().rev().find(|(end, _)| *end <= cut as u64);
        assert_eq!(log.durable().state.to_string(), gtids(kept.map_or(2, |kept| kept.1)), "cut at {cut}");
        let length = fs::metadata(epoch.join("bin.000002")).ok().map(|metadata| metadata.len());
        assert_eq!(length, kept.map(|kept| kept.0), "cut at {cut}");
        if let Some((end, _)) = kept {
            // The rest arrives again.
            writer.take(&bytes[*end as usize..]).unwrap();
            writer.publish(bytes.len() as u64).unwrap();
            drop((writer, log));
            assert_eq!(open(dir.path()).unwrap().1.durable().state.to_string(), gtids(5), "cut at {cut}");
        }
    }
}

#[test]
fn a_damaged_file_is_an_error_and_stays_as_it_is() {
    let (bytes, ends) = file(0, 3);
    let middle = ends[1].0 as usize + 30;
    for at in [2, 30, middle, bytes.len() - 1] {
        let dir = tempfile::tempdir().unwrap();
        let epoch = dir.path().join("0000000001-1");
        fs::create_dir(&epoch).unwrap();
        let mut broken = bytes.clone();
        broken[at] ^= 1;
        fs::write(epoch.join("bin.000001"), &broken).unwrap();
        let error = open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("Nothing was changed"), "{error}");
        assert_eq!(fs::read(epoch.join("bin.000001")).unwrap(), broken);
    }
    // A crash leaves zeroes if a file's length reached the disk before its bytes.
    let dir = tempfile::tempdir().unwrap();
    let epoch = dir.path().join("0000000001-1");
    fs::create_dir(&epoch).unwrap();
    let mut longer = bytes.clone();
    longer.resize(bytes.len() + 5000, 0);
    fs::write(epoch.join("bin.000001"), &longer).unwrap();
    assert_eq!(open(dir.path()).unwrap().1.durable().state.to_string(), gtids(3));
    assert_eq!(fs::read(epoch.join("bin.000001")).unwrap(), bytes);
}

/// MariaDB 11.4 and later omit the end of most events, so only the length determines it.
#[test]
fn a_damaged_length_is_no_torn_event() {
    let (mut bytes, _) = file(0, 2);
    let rows = bytes.len();
    bytes.extend_from_slice(&artificial(Kind(23), 1, 0, 0, &[7; 40], SUM));
    let torn = bytes.clone();
    let next = event(bytes.len(), Kind::XID, &[0; 8]);
    bytes.extend_from_slice(&next);
    let open_with = |bytes: &[u8]| {
        let dir = tempfile::tempdir().unwrap();
        let epoch = dir.path().join("0000000001-1");
        fs::create_dir(&epoch).unwrap();
        fs::write(epoch.join("bin.000001"), bytes).unwrap();
        let state = open(dir.path()).map(|(_, log)| log.durable().state.to_string());
        (state.map_err(|error| error.to_string()), fs::read(epoch.join("bin.000001")).unwrap())
    };
    for byte in [1, 2] {
        let mut damaged = bytes.clone();
        damaged[rows + 9 + byte] ^= 0x40;
        let (state, after) = open_with(&damaged);
        let error = state.unwrap_err();
        assert!(error.contains(&format!("another event begins at offset {}", torn.len())), "{error}");
        assert!(after == damaged, "nothing was cut off");
    }
    // The same length, and the file ends within the event: that is what a crash leaves.
    let mut long = torn;
    long[rows + 10] ^= 0x40;
    let (state, after) = open_with(&long);
    assert_eq!((state.unwrap(), after), (gtids(2), file(0, 2).0));
}

#[test]
fn a_file_that_is_missing_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let epoch = dir.path().join("0000000001-1");
    fs::create_dir(&epoch).unwrap();
    for (number, last) in [(1, 0), (3, 2)] {
        fs::write(epoch.join(format!("bin.{number:06}")), file(last, 2).0).unwrap();
    }
    assert!(matches!(open(dir.path()), Err(LogError::Missing { before: 1, number: 3, .. })));
    fs::create_dir(dir.path().join("0000000001-2")).unwrap();
    assert!(matches!(open(dir.path()), Err(LogError::TwoEpochs { .. })));
}

#[test]
fn what_comes_again_is_compared() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, log) = open(dir.path()).unwrap();
    write(&mut writer, 1, 1, 0, 3);
    let (bytes, ends) = file(0, 3);
    let from = ends[2].0;
    writer.compare(from, &bytes[from as usize..]).unwrap();
    let mut other = bytes[from as usize..].to_vec();
    other[25] ^= 1;
    let error = writer.compare(from, &other).unwrap_err();
    assert!(matches!(error, AppendError::Mismatch { offset, .. } if offset == from + 25), "{error}");
    // Bytes of an event taken and not published are forgotten, also in the file.
    writer.take(&vec![9; 3 << 20]).unwrap();
    writer.rewind().unwrap();
    flushed(&log);
    assert_eq!(fs::read(dir.path().join("0000000001-1/bin.000001")).unwrap(), bytes);
}

#[test]
fn the_oldest_files_go() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, log) = open(dir.path()).unwrap();
    for number in 1..=3 {
        write(&mut writer, 1, number, (number - 1) * 2, 2);
    }
    write(&mut writer, 2, 1, 6, 2);
    flushed(&log);
    let third = log.log_files()[2].clone();
    let removed = log.retain(Some(third.start), 0, u64::MAX).unwrap();
    assert_eq!(removed.len(), 2);
    assert_eq!(log.retain(None, 0, u64::MAX).unwrap().len(), 0, "the new epoch may not have come up to its end");
    write(&mut writer, 2, 2, 8, 1);
    flushed(&log);
    assert_eq!(log.retain(Some(log.log_files()[1].start), 0, u64::MAX).unwrap().len(), 1);
    assert!(!dir.path().join("0000000001-1").exists(), "its last file is gone");
    assert!(log.next(&third).is_some_and(|next| next.epoch == 2), "whoever reads the file goes on");
    drop((writer, log));
    assert_eq!(open(dir.path()).unwrap().1.durable().state.to_string(), gtids(9));
}

/// The log's state never shrinks: a new epoch begins with transactions that the previous epoch has, too.
#[test]
fn an_epoch_that_begins_earlier_takes_nothing_away() {
    let dir = tempfile::tempdir().unwrap();
    let (mut writer, log) = open(dir.path()).unwrap();
    write(&mut writer, 1, 1, 0, 9);
    write(&mut writer, 2, 1, 3, 2);
    flushed(&log);
    assert_eq!(log.durable().state.to_string(), gtids(9));
    drop((writer, log));
    let (mut writer, log) = open(dir.path()).unwrap();
    assert_eq!(log.durable().state.to_string(), gtids(9), "also after a start");
    write(&mut writer, 3, 1, 3, 8);
    flushed(&log);
    assert_eq!(log.durable().state.to_string(), gtids(11));
}
