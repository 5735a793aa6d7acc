//! A process that appends is killed: all WAL that it had reported as flushed is there.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use super::*;

const DIR: &str = "KINGPOST_TEST_KILL_DIR";

/// Makes the same WAL in every process, too long to end before the kill.
fn long_wal() -> Wal {
    wal((0..2000).map(|i| (i * 7919) % 9000))
}

/// Not a test by itself: the child process that the test below starts and kills.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let wal = long_wal();
    let (mut writer, log) = open(Path::new(&dir)).unwrap();
    let tail = writer.tail();
    let mut out = std::io::stdout().lock();
    let (_, mut at) = writer.resume();
    let mut piece = 3001;
    while at < wal.at() {
        let end = Lsn(wal.at().0.min(at.0 + piece));
        writer.append(at, wal.range(at, end)).unwrap();
        at = end;
        piece = (piece * 3) % 50_021;
        // Reports the flushed position, as an acknowledger does.
        writeln!(out, "flushed {}", tail.flushed.get().0).unwrap();
        out.flush().unwrap();
    }
    writer.flush().unwrap();
    writeln!(out, "flushed {}", log.tail().flushed.get().0).unwrap();
}

#[test]
fn what_was_reported_as_flushed_survives_being_killed() {
    let wal = long_wal();
    let dir = tempfile::tempdir().unwrap();
    let mut flushed = BEGIN;
    let mut kills = 0;
    // Later in each round, so that the last one reaches the end.
    for lines in (1_usize..).map(|round| round * round) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "log::tests::kill::child", "--nocapture", "--test-threads=1"])
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut seen = 0;
        while seen < lines
            && let Some(line) = out.next()
        {
            if let Some(position) = line.unwrap().split_once("flushed ").map(|(_, position)| position.parse().unwrap())
            {
                flushed = flushed.max(Lsn(position));
                seen += 1;
            }
        }
        let ended = seen < lines;
        child.kill().unwrap();
        // Reports that it sent before its death count too.
        for line in out.map_while(Result::ok) {
            if let Some(position) = line.split_once("flushed ").and_then(|(_, position)| position.parse().ok()) {
                flushed = flushed.max(Lsn(position));
            }
        }
        child.wait().unwrap();
        let (writer, log) = open(dir.path()).unwrap();
        let end = log.recovery().end;
        assert!(end >= wal.end_before(flushed), "reported {flushed}, and {end} is there");
        assert!(end > BEGIN || flushed == BEGIN);
        if end > BEGIN {
            assert!(held_bytes(dir.path(), 1, BEGIN, end) == wal.range(BEGIN, end));
        }
        drop(writer);
        if ended {
            break;
        }
        kills += 1;
    }
    assert!(kills >= 5, "killed only {kills} times");
    assert_eq!(flushed, wal.at());
}
