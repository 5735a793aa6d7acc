//! Incremental backups: of a server that summarises its WAL (PostgreSQL 17 and later), joined by its `pg_combinebackup`.

use std::path::Path;

use kingpost_tests::{Cluster, Node, RunAs, SOON, ShowLogs, command, pg_bin, skipped, wait_until};

use crate::archive::{archiving, files, open_dir, wait_archived};
use crate::backup::{config, done, lsn, metric, recovered, refused};

/// True if the servers can give incremental backups, and have the program that joins them.
pub(crate) fn can_combine() -> bool {
    pg_bin().join("pg_combinebackup").exists()
}

/// Reports that a test is left out where the servers are too old.
pub(crate) fn needs_combine() -> bool {
    if !can_combine() {
        skipped(
            "PostgreSQL 17 or later with pg_combinebackup is needed (PG_BIN, tests/newest/setup postgresql prints it)",
        );
    }
    !can_combine()
}

/// Starts servers that summarise their WAL; None where the servers are too old, or lack the program that joins backups.
async fn summarizing(replicas: usize) -> Option<Cluster> {
    if needs_combine() {
        return None;
    }
    Some(Cluster::builder().replicas(replicas).setting("summarize_wal", "on").start().await)
}

/// Returns the backups as `kingpost backup list --json` shows them.
fn backups(config: &Path) -> Vec<serde_json::Value> {
    let listed: serde_json::Value = serde_json::from_str(&done(config, &["backup", "list", "--json"])).unwrap();
    listed["backups"].as_array().unwrap().clone()
}

const STATE: &str =
    "SELECT concat_ws(' ', (SELECT sum(n) FROM t), (SELECT count(*) FROM t), (SELECT sum(n) FROM in_fast))";

async fn change(primary: &Node, by: u32) {
    primary.execute(&format!("UPDATE t SET n = n + {by} WHERE n % 5000 = 0")).await;
    primary.execute(&format!("INSERT INTO in_fast VALUES ({by})")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_is_joined_and_stays_together() {
    let Some(cluster) = summarizing(0).await else { return };
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let (archive, place, to) = (open_dir("archive"), open_dir("places").join("fast"), open_dir("to"));
    let mut relay = archiving(&cluster, primary.port(), archive.to_str().unwrap());
    relay.start().await;
    let config = config(&cluster, &archive, &[primary]);
    let bin = pg_bin().display().to_string();
    primary.execute("CREATE TABLE t AS SELECT n, repeat('x', 500) AS pad FROM generate_series(1, 20000) AS n").await;
    let early = kingpost_fails(&config);
    assert!(early.contains("has no backup that an incremental one of n0 can follow"), "{early}");
    done(&config, &["backup", "--label", "first"]);
    // A tablespace that the full backup lacks, and one more change for each backup of the chain.
    let made = command(Path::new("/bin/mkdir"), RunAs::Server, "KILL").arg(&place).status().unwrap();
    assert!(made.success());
    primary.execute(&format!("CREATE TABLESPACE fast LOCATION '{}'", place.display())).await;
    primary.execute("CREATE TABLE in_fast (n int) TABLESPACE fast").await;
    for by in 1..=2 {
        change(primary, by).await;
        let said = done(&config, &["backup", "--incremental"]);
        assert!(said.contains(", incremental to 20") && said.contains("restorable: "), "{said}");
    }
    change(primary, 3).await;
    let (state, at) = (primary.query(STATE).await, lsn(primary).await);
    primary.execute("DELETE FROM t").await;
    wait_archived(&cluster, &relay, primary).await;

    let all = backups(&config);
    let stored = |n: usize| all[n]["stored"].as_u64().unwrap();
    assert!(stored(1) * 2 < stored(0) && stored(2) * 2 < stored(0), "{all:?}");
    assert_eq!((&all[1]["parent"], &all[2]["parent"]), (&all[0]["id"], &all[1]["id"]));
    assert_eq!((&all[0]["version"], &all[2]["version"]), (&1.into(), &2.into()));
    let shown = done(&config, &["backup", "show", "latest"]);
    assert!(shown.contains("a restore reads 3 backups"), "{shown}");
    assert!(done(&config, &["backup", "verify"]).contains("of a chain of 3 backups are as in the server's manifest"));

    let missing = to.join("missing").display().to_string();
    let refusal = refused(&config, &["restore", "--to", &missing, "--pg-bin", "/nonexistent"]);
    assert!(refusal.contains("is incremental: no pg_combinebackup of PostgreSQL "), "{refusal}");
    assert!(!Path::new(&missing).exists());
    // A program that damages its result: the restore says so, and no server starts.
    let (lying, damaged) = (open_dir("lying"), to.join("damaged"));
    let script = format!(
        "#!/bin/sh\n{bin}/pg_combinebackup \"$@\" || exit\n[ \"$1\" = --version ] || echo x >> \"$3/PG_VERSION\"\n"
    );
    std::fs::write(lying.join("pg_combinebackup"), script).unwrap();
    assert!(
        std::process::Command::new("chmod").arg("755").arg(lying.join("pg_combinebackup")).status().unwrap().success()
    );
    let (lying, path) = (lying.display().to_string(), damaged.display().to_string());
    let refusal = refused(&config, &["restore", "--at", &at, "--to", &path, "--pg-bin", &lying]);
    assert!(refusal.contains("made a damaged directory of 3 backups: PG_VERSION has "), "{refusal}");
    assert!(damaged.exists() && !damaged.join("global/pg_control").exists());
    let restored = async |name: &str, more: &[&str]| {
        let dir = to.join(name);
        let path = dir.display().to_string();
        let said = done(&config, &[&["restore", "--at", &at, "--to", &path, "--pg-bin", &bin], more].concat());
        assert!(said.contains(" joined files are as in the manifest of pg_combinebackup"), "{said}");
        assert!(!dir.join("unfinished").exists() && !dir.join("RESTORE_IS_UNFINISHED").exists());
        let node = recovered(&cluster, name, &dir).await;
        assert_eq!(node.query(STATE).await, state);
        let fast = node.query("SELECT pg_tablespace_location(oid) FROM pg_tablespace WHERE spcname = 'fast'").await;
        node.stop().await;
        fast
    };
    assert!(restored("inside", &["--verify"]).await.contains("/inside/tablespaces/"));
    let elsewhere = to.join("fast=again").display().to_string();
    let mapped = format!("{}={elsewhere}", place.display());
    assert_eq!(restored("mapped", &["--tablespace", &mapped]).await, elsewhere);

    // The window needs the last backup, which needs the others; of those the WAL goes.
    let pruned = done(&config, &["backup", "prune", "--keep", "0"]);
    assert!(pruned.contains("removes 0 backups and "), "{pruned}");
    let listed = done(&config, &["backup", "list"]);
    assert!(listed.contains("of a chain  first") && listed.contains("restorable  kingpost"), "{listed}");
    restored("pruned", &[]).await;
    // A new full backup needs none of them.
    done(&config, &["backup"]);
    let pruned = done(&config, &["backup", "prune", "--keep", "0"]);
    assert!(pruned.contains("removes 3 backups and "), "{pruned}");
    assert_eq!(backups(&config).len(), 1);
    done(&config, &["backup", "verify"]);

    // Without its parent a backup is none; and none is made where the server does not summarise.
    done(&config, &["backup", "--incremental"]);
    let first = files(&archive).into_keys().find(|name| name.starts_with("backup/")).unwrap();
    std::fs::rename(archive.join(&first), archive.join("unfinished.tmp")).unwrap();
    assert!(done(&config, &["backup", "list"]).contains("chain broken"));
    assert!(refused(&config, &["backup", "verify"]).contains("which is not in the archive"));
    assert!(refused(&config, &["restore", "--to", &missing]).contains("has no backup that ended before"));
    primary.execute("ALTER SYSTEM SET summarize_wal = off").await;
    primary.execute("SELECT pg_reload_conf()").await;
    let off = async || kingpost_fails(&config).contains("summarize_wal is off on n0").then_some(());
    wait_until("the setting", SOON, cluster.dir(), off).await;
}

fn kingpost_fails(config: &Path) -> String {
    refused(config, &["backup", "--incremental"])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_mixes_full_and_incremental_backups_of_a_standby() {
    let Some(cluster) = summarizing(1).await else { return };
    let _logs = ShowLogs(cluster.dir());
    let (primary, replica) = (cluster.primary(), cluster.replica(0));
    let (archive, to) = (open_dir("archive"), open_dir("to"));
    let config = config(&cluster, &archive, &[primary, replica]);
    let mut relay = archiving(&cluster, primary.port(), archive.to_str().unwrap());
    relay.start().await;
    primary.execute("CREATE TABLE t AS SELECT 1 AS n").await;
    cluster.wait_caught_up().await;
    let said = done(&config, &["backup"]);
    assert!(said.contains("(standby, PostgreSQL"), "{said}");
    // A standby's backup begins with the primary's last checkpoint: without a new one there is nothing that it could follow with.
    let idle = kingpost_fails(&config);
    assert!(idle.contains("without --incremental it is full"), "{idle}");
    primary.execute("INSERT INTO t VALUES (2)").await;
    primary.execute("CHECKPOINT").await;
    cluster.wait_caught_up().await;
    let said = done(&config, &["backup", "--incremental"]);
    assert!(said.contains("(standby, PostgreSQL") && said.contains(", incremental to "), "{said}");
    relay.stop().await;

    let mut relay =
        relay.set("relay.backup.every", "1s").set("relay.backup.full_every", "1h").set("relay.backup.spread", false);
    relay.start().await;
    let taken = async |count: f64| {
        let taken = async || (metric(&relay, "taken_total").await >= count).then_some(());
        wait_until("backups by schedule", SOON, cluster.dir(), taken).await;
    };
    taken(2.0).await;
    assert!(backups(&config)[1..4].iter().all(|backup| backup["parent"].is_string()), "{:?}", backups(&config));
    // The server summarises no longer: a full backup is better than none.
    primary.execute("ALTER SYSTEM SET summarize_wal = off").await;
    primary.execute("SELECT pg_reload_conf()").await;
    let full = async || backups(&config)[4..].iter().any(|backup| backup["parent"].is_null()).then_some(());
    wait_until("a full backup", SOON, cluster.dir(), full).await;
    assert_eq!((metric(&relay, "alarm").await, metric(&relay, "failures_total").await), (0.0, 0.0));
    relay.stop().await;
    let dir = to.join("latest");
    let bin = pg_bin().display().to_string();
    done(&config, &["restore", "--to", dir.to_str().unwrap(), "--pg-bin", &bin]);
    let node = recovered(&cluster, "latest", &dir).await;
    assert_eq!(node.query("SELECT sum(n) FROM t").await, "3");
    node.stop().await;
}
