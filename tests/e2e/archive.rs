//! The archive of a relay in a directory, its faults, and recovery from it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kingpost_tests::{
    Cluster, Node, Relay, RunAs, SOON, ShowLogs, command, kingpost_bin, new_dir, skipped, wait_until, within,
};

use crate::relay::wait_durable;
use crate::relay_life::Small;

pub(crate) const SEGMENT: usize = 16 << 20;

/// Makes a directory that the relay and the servers, which run as another user, can write to and read.
pub(crate) fn open_dir(what: &str) -> PathBuf {
    let dir = new_dir(what);
    assert!(Command::new("chmod").arg("777").arg(&dir).status().unwrap().success());
    dir
}

/// Makes a relay that keeps as little WAL as it may, and archives to `url`.
pub(crate) fn archiving(cluster: &Cluster, upstream: u16, url: &str) -> Relay {
    Relay::of(cluster, upstream)
        .set("relay.keep_bytes", 0)
        .set("relay.archive.url", url)
        .set("relay.archive.interval", "100ms")
        .set("relay.archive.timeout", "5s")
        .set("relay.archive.alarm_after", "1s")
}

/// A configuration file with an archive and nothing else, for `kingpost relay fetch --archive`.
pub(crate) fn archive_file(cluster: &Cluster, settings: &[(&str, &str)]) -> PathBuf {
    let path = cluster.dir().join("archive.toml");
    let lines: String = settings.iter().map(|(key, value)| format!("{key} = {value:?}\n")).collect();
    std::fs::write(&path, format!("[relay.archive]\n{lines}")).unwrap();
    path
}

pub(crate) fn fetch(archive: &Path, name: &str, target: &Path, more: &[&str]) -> (Option<i32>, String) {
    let mut fetch = Command::new(kingpost_bin());
    fetch.args(["relay", "fetch", "--dir", "/nowhere", "--archive"]).arg(archive).args(more).arg(name).arg(target);
    let output = fetch.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// Returns the `restore_command` of a server that has nothing but the archive.
pub(crate) fn restore_command(archive: &Path) -> String {
    format!("{} relay fetch %f %p --dir /nowhere --archive {}", kingpost_bin().display(), archive.display())
}

/// Writes about `megabytes` of WAL, in rows with a number.
pub(crate) async fn write(primary: &Node, megabytes: u32) {
    primary.execute("CREATE TABLE IF NOT EXISTS load (n int, pad text)").await;
    let sql = format!("INSERT INTO load SELECT n, repeat('x', 1000) FROM generate_series(1, {}) n", megabytes * 900);
    primary.execute(&sql).await;
}

pub(crate) async fn number(relay: &Relay, metric: &str) -> f64 {
    relay.metrics().await.sum(&format!("kingpost_relay_archive_{metric}"), &[])
}

/// Waits until the archive has all that the primary has written, also in parts.
pub(crate) async fn wait_archived(cluster: &Cluster, relay: &Relay, primary: &Node) -> u64 {
    let end = wait_durable(relay, primary).await;
    let archived = async || {
        let confirmed = number(relay, "confirmed_bytes").await as u64;
        let all = confirmed >= end / SEGMENT as u64 * SEGMENT as u64;
        (all && number(relay, "behind_bytes").await == 0.0).then_some(())
    };
    wait_until("the archive to have it", Duration::from_secs(60), cluster.dir(), archived).await;
    end
}

pub(crate) async fn wait_alarm(cluster: &Cluster, relay: &Relay, alarm: f64) {
    let what = format!("the archive's alarm to be {alarm}");
    wait_until(&what, SOON, cluster.dir(), async || (number(relay, "alarm").await == alarm).then_some(())).await;
}

/// Compares every file that the archive has of timeline 1 before `end` with the primary's, byte for byte.
pub(crate) fn same_as_primary(archive: &Path, primary: &Node, end: u64, scratch: &Path) {
    let target = scratch.join("fetched");
    for number in 1..=end as usize / SEGMENT {
        let name = format!("00000001{number:016X}");
        let (code, said) = fetch(archive, &name, &target, &[]);
        assert_eq!((code, said.as_str()), (Some(0), ""), "{name}");
        let whole = if number == end as usize / SEGMENT { end as usize % SEGMENT } else { SEGMENT };
        let (fetched, held) =
            (std::fs::read(&target).unwrap(), std::fs::read(primary.dir().join("pg_wal").join(&name)).unwrap());
        assert_eq!(fetched.len(), SEGMENT, "{name}");
        // The primary may have written more since, and the archive have that.
        let written = fetched.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1).max(whole);
        assert!(fetched[..written] == held[..written], "{name} is not the primary's");
        std::fs::remove_file(&target).unwrap();
    }
}

/// Returns the files below a directory, with their sizes.
pub(crate) fn files(dir: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![dir.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(directory).unwrap().flatten() {
            match entry.metadata().unwrap() {
                of if of.is_dir() => waiting.push(entry.path()),
                of => {
                    let name = entry.path().strip_prefix(dir).unwrap().display().to_string();
                    found.insert(name, of.len());
                }
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_time_it_archives_every_byte_and_a_server_is_restored() {
    let cluster = Cluster::builder().setting("wal_keep_size", "1GB").start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let dir = open_dir("archive");
    let url = dir.to_str().unwrap();
    let mut relay = archiving(&cluster, primary.port(), url);
    for round in 0..6_u64 {
        relay.start().await;
        // Killed in the middle of whatever it does: after another number of objects in each round, or when there is nothing left.
        let count = async || number(&relay, "objects_total").await + number(&relay, "equal_total").await;
        let done = AtomicBool::new(false);
        let writing = async {
            for _ in 0..5 {
                write(primary, 1).await;
            }
            done.store(true, Ordering::Release);
        };
        let some = async || (count().await >= (round % 4) as f64 || done.load(Ordering::Acquire)).then_some(());
        let killing = async {
            wait_until("some objects", SOON, cluster.dir(), some).await;
            relay.kill9().await;
        };
        tokio::join!(writing, killing);
    }
    relay.start().await;
    write(primary, 5).await;
    let end = wait_archived(&cluster, &relay, primary).await;
    let archive = archive_file(&cluster, &[("url", url)]);
    let scratch = tempfile::tempdir().unwrap();
    same_as_primary(&archive, primary, end, scratch.path());
    assert_eq!(number(&relay, "alarm").await, 0.0);
    // Parts of whole segments are gone, and nothing is half written under a name of its own. A kill may leave an unfinished object beside.
    let mut found = files(&dir);
    found.retain(|name, _| !name.ends_with(".unfinished"));
    let whole = found.keys().filter(|name| name.starts_with("wal/")).count();
    assert_eq!(whole, end as usize / SEGMENT - 1, "{found:?}");
    let parts_of =
        |number: usize| found.keys().filter(|name| name.starts_with(&format!("part/00000001{number:016X}/"))).count();
    assert_eq!(parts_of(1), 0, "{found:?}");
    assert!(parts_of(end as usize / SEGMENT) > 0, "{found:?}");
    // Quick answers about what never was.
    for name in ["000000010000000000000077", "00000002.history", "000000020000000000000001"] {
        assert_eq!(fetch(&archive, name, &scratch.path().join("no"), &[]), (Some(1), String::new()), "{name}");
    }
    let (code, said) = fetch(&archive, "postgresql.conf", &scratch.path().join("no"), &[]);
    assert!(code == Some(4) && said.contains("neither a WAL segment nor a timeline history file"), "{code:?} {said}");
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "nothing is left");

    // The relay's disk has dropped the first segments; primary and relay are lost, and a server recovers from the archive alone.
    let dropped = async || (relay.position("oldest").await > 2 * SEGMENT as u64).then_some(());
    wait_until("the relay to drop segments", SOON, cluster.dir(), dropped).await;
    relay.stop().await;
    primary.kill9().await;
    let restored = cluster.copy("restored", ("restore_command", &restore_command(&archive)));
    std::fs::write(restored.dir().join("recovery.signal"), "").unwrap();
    restored.start().await;
    restored.wait_value("SELECT pg_is_in_recovery()", "f").await;
    assert_eq!(restored.query("SELECT count(*) FROM load").await, (7 * 5 * 900).to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_too_far_behind_heals_by_the_archive_and_follows_a_promotion() {
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let (primary, replica) = (cluster.primary(), cluster.replica(0));
    let dir = open_dir("archive");
    let archive = archive_file(&cluster, &[("url", dir.to_str().unwrap())]);
    let mut relay = archiving(&cluster, primary.port(), dir.to_str().unwrap());
    relay.start().await;
    write(primary, 40).await;
    wait_archived(&cluster, &relay, primary).await;
    let dropped = async || (relay.position("oldest").await > 2 * SEGMENT as u64).then_some(());
    wait_until("the relay to drop segments", SOON, cluster.dir(), dropped).await;

    let late = cluster.copy("late", ("restore_command", &restore_command(&archive)));
    late.follow_port(relay.port());
    late.start().await;
    late.wait_caught_up(primary).await;
    assert_eq!(late.query("SELECT count(*) FROM load").await, (40 * 900).to_string());
    write(primary, 1).await;
    late.wait_caught_up(primary).await;

    // A promotion: the history goes to the archive, and the end of the timeline that was left.
    cluster.wait_caught_up().await;
    wait_archived(&cluster, &relay, primary).await;
    primary.stop().await;
    replica.promote().await;
    replica.wait_value("SELECT pg_is_in_recovery()", "f").await;
    relay.reload("relay.upstream.address", format!("127.0.0.1:{}", replica.port()));
    let switched = async || (relay.metrics().await.sum("kingpost_relay_timeline", &[]) == 2.0).then_some(());
    wait_until("the relay to switch timelines", SOON, cluster.dir(), switched).await;
    replica.execute("CREATE TABLE after_it AS SELECT 1 AS n").await;
    replica.execute("SELECT pg_switch_wal()").await;
    replica.execute("INSERT INTO after_it VALUES (2)").await;
    wait_archived(&cluster, &relay, replica).await;
    assert!(dir.join("history/00000002.history").exists());
    late.wait_value("SELECT count(*) FROM after_it", "2").await;
    relay.stop().await;
    replica.kill9().await;
    let restored = cluster.copy("restored", ("restore_command", &restore_command(&archive)));
    std::fs::write(restored.dir().join("recovery.signal"), "").unwrap();
    restored.start().await;
    restored.wait_value("SELECT pg_is_in_recovery()", "f").await;
    assert_eq!(restored.query("SELECT count(*) FROM load").await, (41 * 900).to_string());
    assert_eq!(restored.query("SELECT count(*) FROM after_it").await, "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_relays_archive_one_cluster_together() {
    let cluster = Cluster::builder().setting("wal_keep_size", "1GB").start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let dir = open_dir("archive");
    let url = dir.to_str().unwrap();
    let mut relays = [(); 2].map(|()| archiving(&cluster, primary.port(), url));
    for relay in &mut relays {
        relay.start().await;
    }
    write(primary, 40).await;
    let mut end = 0;
    for relay in &relays {
        end = wait_archived(&cluster, relay, primary).await;
    }
    let mut equal = 0.0;
    for relay in &relays {
        assert_eq!((number(relay, "alarm").await, number(relay, "failures_total").await), (0.0, 0.0));
        equal += number(relay, "equal_total").await;
    }
    assert!(equal >= (end as usize / SEGMENT - 1) as f64, "each whole segment was written once: {equal}");
    let scratch = tempfile::tempdir().unwrap();
    same_as_primary(&archive_file(&cluster, &[("url", url)]), primary, end, scratch.path());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_that_is_full_or_gone_delays_no_commit() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let dir = open_dir("archive");
    let Some(small) = Small::mount(&dir, 64) else {
        skipped("no file system can be mounted here");
        return;
    };
    // The relay keeps at most four segments, if the archive has the others.
    let mut relay = archiving(&cluster, primary.port(), dir.to_str().unwrap()).set("relay.max_bytes", 64 << 20);
    relay.start().await;
    write(primary, 1).await;
    wait_archived(&cluster, &relay, primary).await;
    primary.execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{}'", relay.name())).await;
    primary.execute("SELECT pg_reload_conf()").await;
    primary.wait_value("SELECT sync_state FROM pg_stat_replication", "sync").await;
    let commits = async |count: u32| {
        let work = async {
            for _ in 0..count {
                write(primary, 8).await;
            }
        };
        within("commits", Duration::from_secs(60), cluster.dir(), work).await;
    };

    let filler = dir.join("filler");
    crate::relay_full::fill(&dir);
    commits(10).await;
    wait_alarm(&cluster, &relay, 1.0).await;
    assert!(number(&relay, "behind_bytes").await > (70 << 20) as f64);
    let fails = async || (number(&relay, "failures_total").await > 0.0).then_some(());
    wait_until("a failure", SOON, cluster.dir(), fails).await;
    assert_eq!(relay.metrics().await.sum("kingpost_relay_alarm", &[]), 0.0, "the relay itself is well");
    let said = async || relay.log().contains("the archive is behind").then_some(());
    wait_until("the alarm in the log", Duration::from_secs(60), cluster.dir(), said).await;
    // More than max_bytes stay: the archive does not have them.
    let oldest = relay.position("oldest").await;
    assert!(oldest <= SEGMENT as u64, "{oldest}");
    std::fs::remove_file(&filler).unwrap();
    wait_archived(&cluster, &relay, primary).await;
    wait_alarm(&cluster, &relay, 0.0).await;
    let dropped = async || (relay.position("oldest").await > 4 * SEGMENT as u64).then_some(());
    wait_until("the relay to drop segments", SOON, cluster.dir(), dropped).await;

    // The file system is unmounted under it: nothing is written to the directory that comes to light.
    drop(small);
    commits(3).await;
    wait_alarm(&cluster, &relay, 1.0).await;
    assert_eq!(files(&dir), BTreeMap::new());
    // A new one in its place is no archive.
    let _small = Small::mount(&dir, 64).unwrap();
    commits(1).await;
    assert_eq!(files(&dir), BTreeMap::new());
    assert_eq!(number(&relay, "alarm").await, 1.0);
    // Until the relay is started again: then it is taken for the archive that it is told to use.
    relay.stop().await;
    relay.start().await;
    wait_archived(&cluster, &relay, primary).await;
    wait_alarm(&cluster, &relay, 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_segments_are_archived_without_waiting_for_the_interval() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let dir = open_dir("archive");
    let relay = archiving(&cluster, primary.port(), dir.to_str().unwrap());
    let mut relay = relay.set("relay.archive.interval", "1h").set("relay.archive.alarm_after", "2h");
    relay.start().await;
    // The second time the archiver has had nothing more to do, and waits.
    for _ in 0..2 {
        write(primary, 40).await;
        let whole = wait_durable(&relay, primary).await / SEGMENT as u64 * SEGMENT as u64;
        let confirmed = async || (number(&relay, "confirmed_bytes").await >= whole as f64).then_some(());
        wait_until("whole segments to be archived", SOON, cluster.dir(), confirmed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_clusters_archive_is_refused() {
    let dir = open_dir("archive");
    let url = dir.to_str().unwrap();
    let one = Cluster::builder().start().await;
    let mut first = archiving(&one, one.primary().port(), url);
    first.start().await;
    write(one.primary(), 1).await;
    wait_archived(&one, &first, one.primary()).await;
    first.stop().await;
    let before = files(&dir);

    // The template of all clusters is one; a reset gives this one a system identifier of its own.
    let other = Cluster::builder().start().await;
    let _logs = ShowLogs(other.dir());
    let data = other.primary().dir();
    crate::archive::other_system(other.primary()).await;
    let mut second = archiving(&other, other.primary().port(), url);
    second.start().await;
    wait_alarm(&other, &second, 1.0).await;
    let said = second.log();
    assert!(said.contains("holds the WAL of the cluster with system identifier"), "{said}");
    assert!(said.contains("give relay.archive.url another prefix or directory"), "{said}");
    write(other.primary(), 20).await;
    wait_durable(&second, other.primary()).await;
    assert_eq!(number(&second, "confirmed_bytes").await, 0.0);
    assert_eq!(files(&dir), before, "{}", data.display());
}

/// Gives a server another system identifier.
async fn other_system(node: &Node) {
    node.stop().await;
    let control = node.dir().join("global/pg_control");
    let mut bytes = std::fs::read(&control).unwrap();
    bytes[0] ^= 1;
    // ControlFileData ends with a CRC-32C of what is before it; its place depends on the version.
    let crc = (200..512 - 4).find(|at| {
        let mut original = bytes[..*at].to_vec();
        original[0] ^= 1;
        crc32c::crc32c(&original).to_le_bytes() == bytes[*at..*at + 4]
    });
    let crc = crc.expect("the control file's checksum");
    let sum = crc32c::crc32c(&bytes[..crc]).to_le_bytes();
    bytes[crc..crc + 4].copy_from_slice(&sum);
    std::fs::write(&control, bytes).unwrap();
    // New WAL, whose pages carry the identifier.
    let mut reset = command(&kingpost_tests::pg_bin().join("pg_resetwal"), RunAs::Server, "KILL");
    let output = reset.args(["-f", "-D"]).arg(node.dir()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    node.start().await;
}
