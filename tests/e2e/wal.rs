//! The relay's log with real WAL: a real server's bytes, cut and damaged, and `pg_waldump` as the reference for the end.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use kingpost_tests::{Cluster, ShowLogs, new_dir, pg_bin};
use relay::log::{Directory, Identity, Log, LogOptions, PAGE, Segment, SegmentSize, Start, Timeline};
use watermark::Lsn;

/// A server's WAL from a segment's start to its last record.
struct RealWal {
    identity: Identity,
    start: Lsn,
    bytes: Vec<u8>,
    /// Starts of the records, by `pg_waldump`.
    records: Vec<Lsn>,
    /// Position where a record crosses from one segment into the next.
    crossing: Lsn,
    /// Start of a segment switch.
    switch: Lsn,
}

impl RealWal {
    fn at(&self, offset: u64) -> Lsn {
        Lsn(self.start.0 + offset)
    }

    fn end(&self) -> Lsn {
        self.at(self.bytes.len() as u64)
    }
}

/// Returns the starts of the records from `start` on, and the switches among them.
fn waldump(dir: &Path, start: Lsn) -> (Vec<Lsn>, Vec<Lsn>) {
    // Both ends by name: by default it takes the segment size from any file, even an empty one.
    let size = SegmentSize::DEFAULT;
    let first = Segment { number: size.number(start), timeline: Timeline(1) }.name(size);
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let last = names.filter(|name| Segment::of_name(name, size).is_some()).max().unwrap();
    let mut command = Command::new(pg_bin().join("pg_waldump"));
    let output = command.arg("-p").arg(dir).args([first, last]).output().unwrap();
    let (mut records, mut switches) = (Vec::new(), Vec::new());
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        // Not beyond the names: a line has up to 18 MB, the content of a record.
        let Some((lsn, rest)) = line.split_once("lsn: ").and_then(|(_, rest)| rest.split_once(", ")) else { continue };
        let lsn: Lsn = lsn.parse().unwrap();
        records.push(lsn);
        if rest.split_once("desc: ").is_some_and(|(_, name)| name.starts_with("SWITCH")) {
            switches.push(lsn);
        }
    }
    (records, switches)
}

async fn real_wal() -> RealWal {
    let cluster = Cluster::builder().setting("full_page_writes", "on").start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let size = SegmentSize::DEFAULT;
    let system_id = primary.query("SELECT system_identifier FROM pg_control_system()").await.parse().unwrap();
    // A few records in the segment before, so that the walk begins behind a switch.
    primary.execute("SELECT pg_switch_wal()").await;
    primary.execute("CREATE TABLE t (n int, text text)").await;
    let start: Lsn = primary.query("SELECT pg_current_wal_lsn()").await.parse().unwrap();
    let start = size.start_of(start);
    // Large records at first, so that there are few: one of 6 MB crosses into the next segment in its middle.
    for megabytes in [6, 6, 6] {
        let sql = format!("SELECT pg_logical_emit_message(true, 'x', repeat('kingpost', {megabytes} * 131072))");
        primary.execute(&sql).await;
    }
    primary.execute("INSERT INTO t SELECT n, repeat('x', n % 2500) FROM generate_series(1, 600) n").await;
    primary.execute("CHECKPOINT; UPDATE t SET n = n + 1 WHERE n % 7 = 0; SELECT pg_switch_wal()").await;
    primary.execute("INSERT INTO t SELECT n, repeat('y', n % 900) FROM generate_series(1, 400) n").await;
    primary.execute("DELETE FROM t WHERE n % 3 = 0; CREATE INDEX ON t (n)").await;
    let first = Segment { number: size.number(start), timeline: Timeline(1) };
    primary.stop().await;
    let pg_wal = cluster.dir().join("n0/pg_wal");
    let (records, switches) = waldump(&pg_wal, start);
    let last = *records.last().unwrap();
    let mut bytes = Vec::new();
    for number in first.number..=size.number(last) {
        bytes.extend(fs::read(pg_wal.join(Segment { number, ..first }.name(size))).unwrap());
    }
    // Up to the end of the last record: a shutdown checkpoint, which fits into the rest of its page.
    let length = u32::from_le_bytes(bytes[(last.0 - start.0) as usize..][..4].try_into().unwrap());
    bytes.truncate((last.0 - start.0) as usize + length.next_multiple_of(8) as usize);
    let crossing = Lsn(start.0 + size.bytes());
    RealWal {
        identity: Identity { system_id, segment_size: size },
        start,
        bytes,
        records,
        crossing,
        switch: switches[0],
    }
}

/// Damage by a crash at a position.
#[derive(Debug, Clone, Copy)]
enum Damage {
    /// The rest was never written.
    Cut,
    /// The page's rest has these bytes.
    Garbled(u8),
    /// The next pages belong to an earlier segment: the file was recycled.
    Recycled,
}

fn options(wal: &RealWal, dir: &Path, begin: Lsn) -> LogOptions {
    let start = Some(Start { timeline: Timeline(1), at: begin });
    LogOptions { directory: Directory::open(dir).unwrap(), identity: wal.identity, start, spares: 1 }
}

/// Checks that the log ends where `pg_waldump` says, and goes on from there to the server's last record.
fn check(wal: &RealWal, dir: PathBuf, at: Lsn, damage: Damage) {
    let size = wal.identity.segment_size;
    let (begin, bytes, records) = (wal.start, &wal.bytes, &wal.records);
    let (mut writer, log) = Log::open(options(wal, &dir, begin)).unwrap();
    let mut from = begin;
    // In pieces of arbitrary length, as from a socket.
    while from < at {
        let to = Lsn(at.0.min(from.0 + 1_234_567));
        writer.append(from, &bytes[(from.0 - begin.0) as usize..(to.0 - begin.0) as usize]).unwrap();
        from = to;
    }
    drop((writer, log));
    let segment = Segment { number: size.number(at), timeline: Timeline(1) };
    let path = dir.join(segment.name(size));
    if let Ok(file) = File::options().write(true).open(path) {
        let offset = size.offset(at);
        let rest = (PAGE - offset % PAGE) as usize;
        match damage {
            Damage::Cut => {}
            Damage::Garbled(byte) => file.write_all_at(&vec![byte; rest], offset).unwrap(),
            Damage::Recycled => {
                let length = (size.bytes() - offset).min(5 * PAGE) as usize;
                file.write_all_at(&wal.bytes[offset as usize..offset as usize + length], offset).unwrap();
            }
        }
    }
    let first = Segment { number: size.number(begin), timeline: Timeline(1) };
    let (expected, _) = waldump(&dir, begin);
    let (mut writer, log) = Log::open(options(wal, &dir, begin)).unwrap();
    let found = log.recovery();
    let seen = (found.last_record, found.records as usize);
    assert_eq!(seen, (expected.last().copied(), expected.len()), "{damage:?} at {at}: {found:?}");
    assert!(records[..expected.len()] == expected, "{damage:?} at {at}");
    // Every completely written record is there.
    let next = records.get(expected.len()).copied().unwrap_or(wal.end());
    assert!(
        found.end <= next && next.0 - found.end.0 <= 40 + 24,
        "{damage:?} at {at}: {found:?}, next record at {next}"
    );
    let (_, resume) = writer.resume();
    writer.append(resume, &bytes[(resume.0 - begin.0) as usize..]).unwrap();
    drop((writer, log));
    let mut held = Vec::new();
    for number in first.number..=size.number(Lsn(wal.end().0 - 1)) {
        held.extend(fs::read(dir.join(Segment { number, ..first }.name(size))).unwrap());
    }
    assert!(held[..bytes.len()] == bytes[..], "{damage:?} at {at}");
    assert_eq!(waldump(&dir, begin).0, *records, "{damage:?} at {at}");
    fs::remove_dir_all(dir).unwrap();
}

#[tokio::test]
async fn real_wal_ends_where_pg_waldump_says_whatever_a_crash_left() {
    let wal = real_wal().await;
    let dir = new_dir("wal");
    let middle = wal.records[wal.records.len() / 2];
    let last = *wal.records.last().unwrap();
    let (cut, garbled, recycled) = (Damage::Cut, Damage::Garbled(0xA5), Damage::Recycled);
    let places = [
        (wal.start.0 + 1, cut, "in the first page's header"),
        (wal.crossing.0 + 17, recycled, "in a segment's header, in a record"),
        (wal.crossing.0 + 3 * PAGE, garbled, "between two pages of a record"),
        (wal.switch.0 + 5, recycled, "in a segment switch"),
        (wal.switch.0 + 24 + 3 * PAGE, garbled, "in its padding"),
        (middle.0 + 2, recycled, "in a record's length"),
        (middle.0 + 25, garbled, "behind a record's header"),
        (last.0 + 30, garbled, "in the last record"),
        (wal.end().0, cut, "nowhere"),
    ];
    for (index, (at, damage, what)) in places.into_iter().enumerate() {
        eprintln!("{what}: {} {damage:?}", Lsn(at));
        check(&wal, dir.join(index.to_string()), Lsn(at), damage);
    }
}
