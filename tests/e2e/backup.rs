//! Base backups and the way back: `kingpost backup` and `kingpost restore`, beside a relay that archives.

use std::path::{Path, PathBuf};
use std::process::Output;

use kingpost_tests::{
    Cluster, Node, Process, RegistryNode, RunAs, SOON, ShowLogs, command, kingpost_bin, pg_bin, wait_until,
};

use crate::archive::{archiving, files, open_dir, wait_archived};

/// A state of pgbench's tables: each sum of balances, and the number and sum of the history.
const STATE: &str = "SELECT concat_ws(' ', (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers), \
                     (SELECT sum(bbalance) FROM pgbench_branches), (SELECT count(*) FROM pgbench_history), \
                     (SELECT sum(delta) FROM pgbench_history))";

/// A configuration file for backups of these servers to an archive.
pub(crate) fn config(cluster: &Cluster, archive: &Path, nodes: &[&Node]) -> PathBuf {
    let mut text = format!("[relay.archive]\nurl = {archive:?}\n");
    for node in nodes {
        text.push_str(&format!(
            "[[cluster.nodes]]\nname = {:?}\naddress = \"127.0.0.1:{}\"\n",
            node.name(),
            node.port()
        ));
    }
    let path = cluster.dir().join("backup.toml");
    std::fs::write(&path, text).unwrap();
    path
}

pub(crate) fn kingpost(config: &Path, args: &[&str]) -> Output {
    let mut kingpost = command(&kingpost_bin(), RunAs::Server, "KILL");
    let words = args.iter().position(|word| word.starts_with('-')).unwrap_or(args.len());
    kingpost.args(&args[..words]).arg("--config").arg(config).args(&args[words..]);
    kingpost.output().unwrap()
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Runs `kingpost`, which must succeed; returns its output.
pub(crate) fn done(config: &Path, args: &[&str]) -> String {
    let output = kingpost(config, args);
    assert!(output.status.success(), "{args:?}: {:?}\n{}", output.status, text(&output));
    text(&output)
}

/// Runs `kingpost`, which must fail; returns its output.
pub(crate) fn refused(config: &Path, args: &[&str]) -> String {
    let output = kingpost(config, args);
    assert!(!output.status.success(), "{args:?}: {}", text(&output));
    text(&output)
}

async fn now(node: &Node) -> String {
    node.query("SELECT clock_timestamp()").await
}

pub(crate) async fn lsn(node: &Node) -> String {
    node.query("SELECT pg_current_wal_insert_lsn()").await
}

fn pgbench(node: &Node, args: &[&str]) -> tokio::process::Command {
    let mut pgbench = tokio::process::Command::new(pg_bin().join("pgbench"));
    pgbench.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &node.port().to_string()]).args(args).arg("app");
    pgbench
}

/// Starts a server on a restored directory, and waits for the end of recovery.
pub(crate) async fn recovered(cluster: &Cluster, name: &str, dir: &Path) -> Node {
    let node = cluster.adopt(name, dir);
    node.start().await;
    node.wait_value("SELECT pg_is_in_recovery()", "f").await;
    node
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_table_comes_back_with_two_tablespaces() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let (archive, places, to) = (open_dir("archive"), open_dir("places"), open_dir("to"));
    let mut relay = archiving(&cluster, primary.port(), archive.to_str().unwrap());
    relay.start().await;
    for name in ["fast", "slow"] {
        let place = places.join(name);
        let made = command(Path::new("/bin/mkdir"), RunAs::Server, "KILL").arg(&place).status().unwrap();
        assert!(made.success());
        primary.execute(&format!("CREATE TABLESPACE {name} LOCATION '{}'", place.display())).await;
        primary
            .execute(&format!("CREATE TABLE in_{name} TABLESPACE {name} AS SELECT generate_series(1, 1000) AS n"))
            .await;
    }
    assert!(pgbench(primary, &["-i", "-q", "-s", "1"]).output().await.unwrap().status.success());
    let config = config(&cluster, &archive, &[primary]);
    // Before the relay's first object, or after it: the backup makes or finds the archive.
    let load = pgbench(primary, &["-n", "-c", "2", "-t", "300"]).spawn().unwrap();
    let backup = tokio::task::spawn_blocking({
        let config = config.clone();
        move || done(&config, &["backup", "--label", "under load"])
    });
    assert!(load.wait_with_output().await.unwrap().status.success());
    let said = backup.await.unwrap();
    assert!(said.contains("restorable: the archive has the WAL up to"), "{said}");
    assert!(pgbench(primary, &["-n", "-c", "2", "-t", "100"]).output().await.unwrap().status.success());

    let state = primary.query(STATE).await;
    let (moment, at) = (now(primary).await, lsn(primary).await);
    primary.execute("DROP TABLE pgbench_accounts, in_fast").await;
    primary.execute("SELECT pg_create_restore_point('afterwards')").await;
    primary.execute("CREATE TABLE later AS SELECT 1").await;
    wait_archived(&cluster, &relay, primary).await;

    let listed = done(&config, &["backup", "list"]);
    assert!(
        listed.contains("restorable  under load") && listed.contains("any moment can be restored from"),
        "{listed}"
    );
    let shown = done(&config, &["backup", "show", "latest"]);
    assert!(shown.contains(places.join("fast").to_str().unwrap()), "{shown}");
    assert!(done(&config, &["backup", "verify"]).contains("are as in the server's manifest"));

    // By time: one tablespace where it is told, the other inside.
    let by_time = to.join("by-time");
    let old = places.join("fast").display().to_string();
    let mapped = format!("{old}={}", to.join("fast-again").display());
    let dir = by_time.display().to_string();
    let said = done(&config, &["restore", "--at", &moment, "--to", &dir, "--tablespace", &mapped]);
    assert!(said.contains("start the server, which recovers up to"), "{said}");
    let restored = recovered(&cluster, "by-time", &by_time).await;
    assert_eq!(restored.query(STATE).await, state);
    for table in ["in_fast", "in_slow"] {
        assert_eq!(restored.query(&format!("SELECT sum(n) FROM {table}")).await, "500500");
    }
    let location = "SELECT string_agg(pg_tablespace_location(oid), ' ' ORDER BY spcname) FROM pg_tablespace WHERE spcname IN ('fast', 'slow')";
    let found = restored.query(location).await;
    assert!(
        found.starts_with(to.join("fast-again").to_str().unwrap()) && found.contains("/by-time/tablespaces/"),
        "{found}"
    );
    restored.stop().await;

    // By position, tried at once; and by name, where the table is gone.
    let by_lsn = to.join("by-lsn").display().to_string();
    let bin = pg_bin().display().to_string();
    let said = done(&config, &["restore", "--at", &at, "--to", &by_lsn, "--verify", "--pg-bin", &bin]);
    assert!(said.contains("recovered up to ") && said.contains("the last commit is of 20"), "{said}");
    let restored = recovered(&cluster, "by-lsn", Path::new(&by_lsn)).await;
    assert_eq!(restored.query(STATE).await, state);
    restored.stop().await;
    let by_name = to.join("by-name").display().to_string();
    done(&config, &["restore", "--at", "afterwards", "--to", &by_name]);
    let restored = recovered(&cluster, "by-name", Path::new(&by_name)).await;
    let there =
        "SELECT concat_ws(' ', to_regclass('pgbench_tellers'), to_regclass('pgbench_accounts'), to_regclass('later'))";
    assert_eq!(restored.query(there).await, "pgbench_tellers");
    restored.stop().await;

    // Refusals.
    let full = refused(&config, &["restore", "--to", &by_name]);
    assert!(full.contains("is not empty: nothing is restored over it"), "{full}");
    let elsewhere = to.join("elsewhere").display().to_string();
    let early = refused(&config, &["restore", "--at", "2020-01-01 00:00:00", "--to", &elsewhere]);
    assert!(early.contains("read in UTC: it has no zone") && early.contains("; the oldest, 20"), "{early}");
    let far = refused(&config, &["restore", "--at", "FF/0", "--to", &elsewhere]);
    assert!(far.contains("has the WAL from the backup"), "{far}");
    let unknown = refused(&config, &["restore", "--to", &elsewhere, "--tablespace", "/no=/where"]);
    assert!(unknown.contains("the backup has none in /no"), "{unknown}");
    assert!(!Path::new(&elsewhere).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn across_a_promotion_the_branch_is_chosen_or_asked_for() {
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let (primary, replica) = (cluster.primary(), cluster.replica(0));
    let (archive, to) = (open_dir("archive"), open_dir("to"));
    let url = archive.to_str().unwrap();
    let mut relay = archiving(&cluster, primary.port(), url);
    relay.start().await;
    primary.execute("CREATE TABLE t AS SELECT 'before' AS x").await;
    cluster.wait_caught_up().await;
    let config = config(&cluster, &archive, &[primary, replica]);
    let said = done(&config, &["backup"]);
    assert!(said.contains("(standby, PostgreSQL"), "{said}");
    // With a transaction id the commit is flushed, and the restore point with it.
    let point = async |node: &Node, name: &str| {
        node.execute(&format!("SELECT pg_create_restore_point('{name}'), txid_current()")).await;
    };
    point(primary, "early").await;
    primary.execute("INSERT INTO t VALUES ('common')").await;
    let common = lsn(primary).await;
    cluster.wait_caught_up().await;
    // Only the old primary, and its relay, have the next row.
    replica.follow_port(1);
    let receives = format!("SELECT count(*) FROM pg_stat_replication WHERE application_name = '{}'", replica.name());
    primary.wait_value(&receives, "0").await;
    let lost_from = now(primary).await;
    primary.execute("INSERT INTO t VALUES ('lost')").await;
    let lost = lsn(primary).await;
    point(primary, "only-lost").await;
    point(primary, "both").await;
    wait_archived(&cluster, &relay, primary).await;
    relay.stop().await;
    primary.kill9().await;
    replica.promote().await;
    let mut relay = archiving(&cluster, replica.port(), url);
    relay.start().await;
    replica.execute("INSERT INTO t VALUES ('after')").await;
    point(replica, "both").await;
    wait_archived(&cluster, &relay, replica).await;
    let end = async || archive.join("history/00000002.history").exists().then_some(());
    wait_until("the history in the archive", SOON, cluster.dir(), end).await;

    let rows = async |name: &str, args: &[&str]| {
        let dir = to.join(name);
        let text = dir.display().to_string();
        done(&config, &[&["restore", "--to", &text], args].concat());
        let restored = recovered(&cluster, name, &dir).await;
        let rows = restored.query("SELECT string_agg(x, ' ' ORDER BY ctid) FROM t").await;
        restored.stop().await;
        rows
    };
    assert_eq!(rows("latest", &[]).await, "before common after");
    assert_eq!(rows("common", &["--at", &common]).await, "before common");
    assert_eq!(rows("lost", &["--at", &lost, "--timeline", "1"]).await, "before common lost");
    assert_eq!(rows("not-lost", &["--at", &lost_from, "--timeline", "2"]).await, "before common");
    assert_eq!(rows("only-lost", &["--at", "only-lost"]).await, "before common lost");

    let elsewhere = to.join("elsewhere").display().to_string();
    let asked = refused(&config, &["restore", "--at", &lost, "--to", &elsewhere]);
    assert!(asked.contains("choose one with --timeline") && asked.contains("timeline 1 up to"), "{asked}");
    let asked = refused(&config, &["restore", "--at", &lost_from, "--to", &elsewhere]);
    assert!(asked.contains("choose one with --timeline"), "{asked}");
    let asked = refused(&config, &["restore", "--at", "both", "--to", &elsewhere]);
    assert!(asked.contains("restore point \"both\" is on timeline 2, and on timeline 1 up to"), "{asked}");
    let nowhere = refused(&config, &["restore", "--at", "nowhere", "--to", &elsewhere]);
    assert!(nowhere.contains("restore point \"nowhere\" is not in the archived WAL behind any backup"), "{nowhere}");

    // A backup of the new timeline; with it the window moves on. A restore point before it is found behind the backup before.
    replica.execute("SELECT pg_switch_wal()").await;
    replica.execute("INSERT INTO t VALUES ('later')").await;
    done(&config, &["backup", "--from", replica.name()]);
    assert_eq!(rows("early", &["--at", "early"]).await, "before");
    let pruned = done(&config, &["backup", "prune", "--keep", "0", "--dry-run"]);
    assert!(pruned.contains("would remove the backup 20"), "{pruned}");
    let before = files(&archive);
    done(&config, &["backup", "prune", "--keep", "0", "--json"]);
    let after = files(&archive);
    assert!(after.len() < before.len(), "{after:?}");
    assert_eq!(after.keys().filter(|name| name.starts_with("backup/")).count(), 1, "{after:?}");
    assert!(after.keys().all(|name| !name.contains("/00000001")), "WAL of timeline 1 is not needed: {after:?}");
    assert_eq!(rows("newest", &[]).await, "before common after later");

    // A standby from the archive alone, which then streams.
    let dir = to.join("standby");
    let said = done(&config, &["restore", "--standby", "--to", dir.to_str().unwrap()]);
    assert!(said.contains("as a standby: set primary_conninfo"), "{said}");
    assert!(dir.join("standby.signal").exists());
    let standby = cluster.adopt("standby", &dir);
    standby.follow_port(replica.port());
    standby.start().await;
    replica.execute("INSERT INTO t VALUES ('streamed')").await;
    standby.wait_caught_up(replica).await;
    assert_eq!(
        standby.query("SELECT string_agg(x, ' ' ORDER BY ctid) FROM t").await,
        "before common after later streamed"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_byte_nothing_is_there_and_the_next_one_cleans_up() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let (archive, to) = (open_dir("archive"), open_dir("to"));
    let mut relay = archiving(&cluster, primary.port(), archive.to_str().unwrap());
    relay.start().await;
    primary.execute("CREATE TABLE t AS SELECT 1 AS n").await;
    wait_archived(&cluster, &relay, primary).await;
    let config = config(&cluster, &archive, &[primary]);
    let started = |name: &str, args: &[&str]| -> Process {
        let mut kingpost = command(&kingpost_bin(), RunAs::Server, "KILL");
        kingpost.arg(args[0]).arg("--config").arg(&config).args(&args[1..]);
        Process::start(name, kingpost, &cluster.dir().join(format!("{name}.log")))
    };
    let ended = async |process: &Process| {
        process.signal(9);
        let end = async || process.exit_status();
        wait_until("the end of a killed process", SOON, cluster.dir(), end).await
    };
    let data = || files(&archive).into_keys().filter(|name| name.starts_with("base/")).collect::<Vec<_>>();

    // Once with its mark alone, and once with a piece.
    for (name, rate, wanted) in [("mark", "32k", "/mark"), ("piece", "8M", "-0000/000")] {
        let backup = started(name, &["backup", "--max-rate", rate]);
        let there = async || data().iter().any(|path| path.ends_with(wanted)).then_some(());
        wait_until("an object of the backup", SOON, cluster.dir(), there).await;
        ended(&backup).await;
    }
    let listed = done(&config, &["backup", "list"]);
    assert!(listed.contains("no backup in") && listed.contains("is being made, or was killed"), "{listed}");
    let elsewhere = to.join("elsewhere").display().to_string();
    let nothing = refused(&config, &["restore", "--to", &elsewhere]);
    assert!(nothing.contains("the archive has no backup that ended before"), "{nothing}");
    let said = done(&config, &["backup", "--json"]);
    assert_eq!(said.matches("removed the rest of the backup").count(), 2, "{said}");
    let id = done(&config, &["backup", "show", "latest"])
        .lines()
        .next()
        .unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .to_owned();
    assert!(data().iter().all(|path| path.contains(&id)) && !data().iter().any(|path| path.ends_with("mark")));

    // A restore that is killed leaves a directory in which no server starts.
    let dir = to.join("killed");
    let restore = started("restore", &["restore", "--to", dir.to_str().unwrap()]);
    let begun = async || dir.join("RESTORE_IS_UNFINISHED").exists().then_some(());
    wait_until("a restore to begin", SOON, cluster.dir(), begun).await;
    ended(&restore).await;
    assert!(dir.join("RESTORE_IS_UNFINISHED").exists(), "the restore was faster than its end");
    let mut postgres = command(&pg_bin().join("postgres"), RunAs::Server, "KILL");
    let output = postgres.arg("-D").arg(&dir).output().unwrap();
    assert!(!output.status.success(), "{}", text(&output));
    let again = refused(&config, &["restore", "--to", dir.to_str().unwrap()]);
    assert!(again.contains("it is what a restore left that was killed"), "{again}");

    // A byte that has changed never gets into a restored directory.
    let piece = data().into_iter().find(|path| path.ends_with("00000-0000/000")).unwrap();
    let mut bytes = std::fs::read(archive.join(&piece)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(archive.join(&piece), bytes).unwrap();
    let damaged = refused(&config, &["backup", "verify"]);
    assert!(damaged.contains("is damaged: ") && damaged.contains(&piece), "{damaged}");
    let damaged = refused(&config, &["restore", "--to", &elsewhere]);
    assert!(damaged.contains("no server starts in that directory"), "{damaged}");
    assert!(!Path::new(&elsewhere).join("global/pg_control").exists());
    drop(relay);
}

/// Returns a relay's metric of its backups.
pub(crate) async fn metric(relay: &kingpost_tests::Relay, name: &str) -> f64 {
    relay.metrics().await.sum(&format!("kingpost_relay_backup_{name}"), &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_of_one_archive_take_backups_by_schedule_one_at_a_time() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let archive = open_dir("archive");
    let scheduled = || {
        archiving(&cluster, primary.port(), archive.to_str().unwrap())
            .set("relay.backup.every", "1s")
            .set("relay.backup.keep", "1s")
            .set("relay.backup.spread", false)
    };
    let mut relays = [scheduled(), scheduled().set("relay.upstream.slot", "other")];
    for relay in &mut relays {
        relay.start().await;
    }
    primary.execute("CREATE TABLE t AS SELECT 1 AS n").await;
    // Three of both, and by then the first is outside of the window.
    let taken = async || {
        let taken = metric(&relays[0], "taken_total").await + metric(&relays[1], "taken_total").await;
        (taken >= 3.0).then_some(())
    };
    wait_until("three backups", SOON, cluster.dir(), taken).await;
    let config = config(&cluster, &archive, &[primary]);
    let listed = done(&config, &["backup", "list"]);
    assert!(listed.contains("restorable  schedule") && listed.contains("any moment can be restored from"), "{listed}");
    assert!(listed.contains(&format!(" behind {}", primary.name())), "{listed}");
    for relay in &relays {
        assert_eq!((metric(relay, "alarm").await, metric(relay, "failures_total").await), (0.0, 0.0));
        assert!(metric(relay, "window_to_bytes").await > 0.0 && metric(relay, "window_from_seconds").await > 1e9);
    }
    // Each turn is of one backup, which has a record or was removed by now; only the newest turn stays.
    let turns = files(&archive).into_keys().filter(|name| name.starts_with("turn/")).count();
    assert!(turns <= 2, "{turns} turns");
    for relay in &mut relays {
        relay.stop().await;
    }

    // A server that gives no backup is an alarm.
    let mut relay = scheduled().set("relay.backup.from", "nobody").set("relay.upstream.slot", "third");
    relay.start().await;
    wait_until("the alarm", SOON, cluster.dir(), async || (metric(&relay, "alarm").await == 1.0).then_some(())).await;
    assert!(metric(&relay, "failures_total").await >= 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_names_the_servers_of_backups() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let archive = open_dir("archive");
    let registry = RegistryNode::start("").await;
    crate::registry_source::register(&registry, primary).await;
    let mut relay = archiving(&cluster, primary.port(), archive.to_str().unwrap())
        .set("cluster.from.urls", vec![registry.url()])
        .set("relay.backup.every", "1h")
        .set("relay.backup.from", primary.name())
        .set("relay.backup.spread", false);
    relay.start().await;
    primary.execute("CREATE TABLE t AS SELECT 1 AS n").await;
    let taken = async || (metric(&relay, "taken_total").await >= 1.0).then_some(());
    wait_until("a backup by schedule", SOON, cluster.dir(), taken).await;

    let file = config(&cluster, &archive, &[]);
    let text = std::fs::read_to_string(&file).unwrap();
    // The first of the two does not exist.
    let from = |url: &str| format!("{text}[cluster.from]\nurls = [\"http://127.0.0.1:1\", {url:?}]\n");
    std::fs::write(&file, from(&registry.url())).unwrap();
    let said = done(&file, &["backup"]);
    assert!(said.contains(&format!(" from {} (primary, PostgreSQL", primary.name())), "{said}");
    let listed = done(&file, &["backup", "list"]);
    assert!(listed.contains(&format!(" behind {}", primary.name())), "{listed}");
}

/// Returns the words behind `encryption` in the headers of the objects with content, by path.
fn encryptions(archive: &Path) -> std::collections::BTreeMap<String, String> {
    let object = |name: &String| std::fs::read(archive.join(name)).ok();
    let mut found = std::collections::BTreeMap::new();
    for name in files(archive).into_keys().filter(|name| name.contains('/') && !name.contains("unfinished")) {
        // Parts go when their segment is whole.
        let Some(object) = object(&name) else { continue };
        let header = String::from_utf8_lossy(&object[..512]).into_owned();
        let word = header.lines().find_map(|line| line.strip_prefix("encryption ")).unwrap().to_owned();
        found.insert(name, word);
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_that_becomes_encrypted_and_gets_a_new_key_is_restored() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let (archive, to) = (open_dir("archive"), open_dir("to"));
    let key = |digit: &str| digit.repeat(64);
    let keys = |name: &str, keys: &[String]| {
        let path = cluster.dir().join(name);
        std::fs::write(&path, keys.join("\n")).unwrap();
        path
    };
    let file = keys("archive.keys", &[key("a")]);
    // In clear first.
    let mut relay = archiving(&cluster, primary.port(), archive.to_str().unwrap());
    relay.start().await;
    primary.execute("CREATE TABLE t AS SELECT 'a visible row' AS x").await;
    primary.execute("SELECT pg_switch_wal()").await;
    wait_archived(&cluster, &relay, primary).await;
    relay.stop().await;
    assert!(encryptions(&archive).values().all(|word| word == "none"));
    let mut relay = archiving(&cluster, primary.port(), archive.to_str().unwrap())
        .set("relay.archive.key_file", file.display().to_string())
        .set("relay.archive.compression", "lz4");
    relay.start().await;
    let config = |name: &str, key_file: &Path| {
        let path = config(&cluster, &archive, &[primary]);
        let text = std::fs::read_to_string(&path).unwrap();
        let named = cluster.dir().join(name);
        std::fs::write(&named, text.replacen('\n', &format!("\nkey_file = {key_file:?}\n"), 1)).unwrap();
        named
    };
    let all = config("all.toml", &file);
    primary.execute("INSERT INTO t VALUES ('an encrypted row')").await;
    done(&all, &["backup"]);
    // A new key, while the relay runs.
    keys("archive.keys", &[key("a"), key("b")]);
    primary.execute("SELECT pg_switch_wal()").await;
    primary.execute("INSERT INTO t VALUES ('a row of the new key')").await;
    wait_archived(&cluster, &relay, primary).await;
    let words: std::collections::BTreeSet<String> = encryptions(&archive).into_values().collect();
    assert_eq!(words.len(), 3, "in clear, and with two keys: {words:?}");

    assert!(done(&all, &["backup", "verify"]).contains("are as in the server's manifest"));
    let dir = to.join("all");
    done(&all, &["restore", "--to", dir.to_str().unwrap()]);
    let restored = recovered(&cluster, "all", &dir).await;
    let rows = "SELECT string_agg(x, ', ' ORDER BY ctid) FROM t";
    assert_eq!(restored.query(rows).await, "a visible row, an encrypted row, a row of the new key");
    restored.stop().await;

    // A lost key, another one, and none at all.
    for (name, key_file) in
        [("only-new", keys("only-new.keys", &[key("b")])), ("another", keys("another.keys", &[key("c")]))]
    {
        let file = config(&format!("{name}.toml"), &key_file);
        let said = refused(&file, &["backup", "verify"]);
        assert!(said.contains("is encrypted with the key ") && said.contains("relay.archive.key_file"), "{said}");
        assert!(!said.contains(&"b".repeat(8)) && !said.contains(&"c".repeat(8)), "{said}");
    }
    let missing = config("missing.toml", &cluster.dir().join("no-such.keys"));
    assert!(refused(&missing, &["backup", "list"]).contains("key_file"));
}
