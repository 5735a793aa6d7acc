//! The relay of a binary log between real servers of MariaDB.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use binlog::Plugin;
use binlog::event::{self, Checksum, Kind};
use binlog::protocol::login::Greeting;
use binlog::protocol::{Messages, message, reply};
use kingpost_tests::certs::Authority;
use kingpost_tests::{BinlogRelay, MariaDb, SOON, wait_until, within};
use mysql_async::prelude::Queryable as _;

pub(crate) const TABLE: &[&str] = &["CREATE DATABASE app", "CREATE TABLE app.t (id BIGINT PRIMARY KEY, text LONGTEXT)"];

pub(crate) async fn source() -> MariaDb {
    let source = MariaDb::new(1, true);
    source.start_new().await;
    source
}

pub(crate) async fn replica(id: u32, relay: &BinlogRelay) -> MariaDb {
    let replica = MariaDb::new(id, false);
    replica.start_new().await;
    replica.replicate_from(relay.port()).await;
    replica
}

/// Waits until a server has the transactions of a position.
pub(crate) async fn wait_for_gtid(server: &MariaDb, gtid: &str) {
    wait_until(&format!("{gtid} on a replica"), SOON, server.dir(), async || {
        let reached = server.value(&format!("SELECT MASTER_GTID_WAIT('{gtid}', 1)")).await;
        (reached == "0").then_some(())
    })
    .await;
}

pub(crate) async fn position(server: &MariaDb) -> String {
    server.value("SELECT @@gtid_binlog_pos").await
}

pub(crate) async fn checksum(server: &MariaDb) -> String {
    server.value("SELECT CONCAT(COUNT(*), ' ', COALESCE(SUM(CRC32(CONCAT(id, text))), 0)) FROM app.t").await
}

/// Returns the files of an epoch, in order.
fn files(relay: &BinlogRelay, epoch: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(relay.dir().join(epoch)).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

pub(crate) fn has_alarm(metrics: &kingpost_tests::Metrics) -> bool {
    metrics.sum("kingpost_relay_alarm", &[]) == 1.0
}

/// Stock replicas receive all events over rotations, including one of more than one packet; the relay's files have the source's bytes; a client
/// without the password gets nothing.
#[tokio::test(flavor = "multi_thread")]
async fn stock_replicas_are_fed_over_rotations() {
    let source = source().await;
    let mut relay = BinlogRelay::of(source.port());
    relay.start().await;
    source.run(TABLE).await;
    let (one, two) = (replica(2, &relay).await, replica(3, &relay).await);
    source
        .run(&[
            "INSERT INTO app.t VALUES (1, 'one'), (2, 'two')",
            "FLUSH BINARY LOGS",
            "INSERT INTO app.t VALUES (3, REPEAT('x', 17000000))",
            "BEGIN",
            "INSERT INTO app.t VALUES (4, 'four')",
            "UPDATE app.t SET text = 'changed' WHERE id = 1",
            "COMMIT",
            "FLUSH BINARY LOGS",
            "ALTER TABLE app.t ADD COLUMN more INT",
            "DELETE FROM app.t WHERE id = 2",
        ])
        .await;
    let at = position(&source).await;
    for replica in [&one, &two] {
        wait_for_gtid(replica, &at).await;
        assert_eq!(checksum(replica).await, checksum(&source).await);
        assert_eq!(replica.value("SELECT @@gtid_slave_pos").await, at);
    }
    // The source has the last file open, as its first event says.
    let kept = files(&relay, "0000000001-1");
    assert_eq!(kept.len(), 3);
    for file in &kept[..2] {
        let theirs = std::fs::read(source.data().join(file.file_name().unwrap())).unwrap();
        assert!(std::fs::read(file).unwrap() == theirs, "{} differs", file.display());
    }
    let acknowledged = source.value("SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME='RPL_SEMI_SYNC_MASTER_NO_TX'").await;
    assert_eq!(acknowledged, "0", "each commit was acknowledged");
    let stranger = MariaDb::new(4, false);
    stranger.start_new().await;
    stranger.replicate_from(relay.port()).await;
    stranger.run(&["STOP SLAVE", "CHANGE MASTER TO MASTER_PASSWORD='wrong'", "START SLAVE"]).await;
    let error = wait_until("the stranger to be refused", SOON, stranger.dir(), async || {
        let error = stranger.slave_status("Last_IO_Error").await;
        error.contains("Access denied").then_some(error)
    })
    .await;
    assert!(!relay.log().contains("wrong") && !relay.log().contains("repl-secret"), "{error}");
}

/// A replica whose position is before the log, or beyond it, gets the error that a source would send.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_does_not_fit_is_refused() {
    let source = source().await;
    let mut relay = BinlogRelay::of(source.port());
    relay.start().await;
    source.run(TABLE).await;
    source.run(&["FLUSH BINARY LOGS", "INSERT INTO app.t VALUES (1, 'one')"]).await;
    let replica = replica(2, &relay).await;
    wait_for_gtid(&replica, &position(&source).await).await;
    for (position, says) in [("0-1-999", "not in the master's binlog"), ("0-9-1", "not in the master's binlog")] {
        replica.run(&["STOP SLAVE", &format!("SET GLOBAL gtid_slave_pos = '{position}'"), "START SLAVE"]).await;
        let error = wait_until("the replica to be refused", SOON, replica.dir(), async || {
            let error = replica.slave_status("Last_IO_Error").await;
            error.contains(says).then_some(error)
        })
        .await;
        assert!(error.contains("1236"), "{error}");
    }
}

/// Writes rows one by one, and records the acknowledged commits. A lost connection is reopened.
struct Writers {
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<BTreeSet<u64>>>,
    acknowledged: Arc<AtomicU64>,
}

impl Writers {
    fn start(source: &Arc<MariaDb>, count: u64) -> Writers {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let tasks = (0..count).map(|writer| {
            let (stop, total, source) = (Arc::clone(&stop), Arc::clone(&acknowledged), Arc::clone(source));
            tokio::spawn(async move {
                let (mut done, mut next, mut connection) = (BTreeSet::new(), (writer + 1) << 32, None);
                while !stop.load(Ordering::Relaxed) {
                    if connection.is_none() {
                        connection = source.connect().await.ok();
                    }
                    let Some(open) = &mut connection else {
                        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                        continue;
                    };
                    next += 1;
                    let insert = open.query_drop(format!("INSERT INTO app.t VALUES ({next}, 'row')"));
                    // A commit may wait for a relay that does not come back: its outcome is unknown then.
                    let result = tokio::select! {
                        result = insert => result.is_ok(),
                        () = async {
                            while !stop.load(Ordering::Relaxed) {
                                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                            }
                        } => false,
                    };
                    if result {
                        done.insert(next);
                        total.fetch_add(1, Ordering::Relaxed);
                    } else {
                        connection = None;
                    }
                }
                done
            })
        });
        Writers { stop: Arc::clone(&stop), tasks: tasks.collect(), acknowledged }
    }

    /// Waits for `count` more acknowledged commits.
    async fn more(&self, count: u64, source: &MariaDb) {
        let target = self.acknowledged.load(Ordering::Relaxed) + count;
        wait_until("commits to be acknowledged", SOON * 2, source.dir(), async || {
            (self.acknowledged.load(Ordering::Relaxed) >= target).then_some(())
        })
        .await;
    }

    async fn end(self) -> BTreeSet<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = BTreeSet::new();
        for task in self.tasks {
            all.extend(task.await.unwrap());
        }
        all
    }
}

async fn rows(server: &MariaDb) -> BTreeSet<u64> {
    let mut connection = server.connect().await.unwrap();
    let ids: Vec<u64> = connection.query("SELECT id FROM app.t").await.unwrap();
    ids.into_iter().collect()
}

/// Returns the number of commits that wait for the acknowledgement of a replica.
pub(crate) async fn waiting(source: &MariaDb) -> String {
    let sql = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for semi-sync ACK%'";
    source.value(sql).await
}

/// The relay and the replica are killed while commits are acknowledged, then the source for good: the relay has every acknowledged commit. A replica
/// takes over by GTID, the relay follows it in a new epoch, and other replicas continue. The old source has a commit that was never acknowledged: it
/// is not followed.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_and_an_old_source_is_recognised() {
    let source = source().await;
    let mut relay = BinlogRelay::of(source.port());
    relay.start().await;
    source.run(TABLE).await;
    let (heir, other) = (replica(2, &relay).await, replica(3, &relay).await);
    let shared = Arc::new(source);
    let writers = Writers::start(&shared, 4);
    writers.more(50, &shared).await;
    relay.kill9().await;
    relay.start().await;
    writers.more(50, &shared).await;
    heir.kill9().await;
    heir.start().await;
    shared.run(&["FLUSH BINARY LOGS"]).await;
    writers.more(50, &shared).await;
    // Transactions that the source had written, without an acknowledgement, are committed when it recovers.
    shared.kill9().await;
    shared.start().await;
    writers.more(50, &shared).await;
    // Without the relay commits wait.
    relay.kill9().await;
    wait_until("commits to wait", SOON, shared.dir(), async || (waiting(&shared).await != "0").then_some(())).await;
    shared.kill9().await;
    let acknowledged = writers.end().await;
    assert!(acknowledged.len() >= 200);
    relay.launch();
    let held = relay.wait_for("open its log", |metrics| metrics.sum("kingpost_relay_epoch", &[]) == 1.0).await;
    assert_eq!(held.sum("kingpost_relay_streaming", &[]), 0.0);
    let gtids = relay.gtids().await;
    for replica in [&heir, &other] {
        wait_for_gtid(replica, &gtids).await;
    }
    let there = rows(&heir).await;
    let lost: Vec<_> = acknowledged.difference(&there).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");

    // A replica takes over; the other one stays with the relay.
    let nodes = [("n1", shared.port()), ("n2", heir.port()), ("n3", other.port())];
    let (done, said) = relay.failover(&nodes, &["--dry-run"]).await;
    assert!(done && said.contains("would fence 1 or more relays in term 1, and promote n"), "{said}");
    assert_eq!(relay.metrics().await.sum("kingpost_relay_fenced", &[]), 0.0, "only said");
    let (done, said) = relay.failover(&nodes, &["--to", "n2"]).await;
    assert!(done, "{said}");
    relay
        .wait_for("follow the new source", |metrics| {
            metrics.sum("kingpost_relay_streaming", &[]) == 1.0 && metrics.sum("kingpost_relay_epoch", &[]) == 2.0
        })
        .await;
    let (done, said) = relay.failover(&nodes, &[]).await;
    assert!(!done && said.contains("the source lives"), "{said}");
    heir.run(&[
        "INSERT INTO app.t VALUES (1, 'after the failover')",
        "FLUSH BINARY LOGS",
        "INSERT INTO app.t VALUES (2, 'and on')",
    ])
    .await;
    let at = position(&heir).await;
    wait_for_gtid(&other, &at).await;
    assert_eq!(checksum(&other).await, checksum(&heir).await);
    // A replica that begins with nothing gets all transactions, over both epochs.
    let fresh = replica(4, &relay).await;
    wait_for_gtid(&fresh, &at).await;
    assert_eq!(checksum(&fresh).await, checksum(&heir).await);

    // The old source comes back, with a commit that was never acknowledged: it is in the source's own binary log. All waiting commits of the writers
    // may have been on the relay, so there is one more.
    let source = shared;
    source.start().await;
    let late = Arc::clone(&source);
    let late = tokio::spawn(async move {
        let mut connection = late.connect().await.unwrap();
        connection.query_drop("INSERT INTO app.t VALUES (10000000, 'too late for the relay')").await
    });
    wait_until("a commit to wait", SOON, source.dir(), async || (waiting(&source).await != "0").then_some(())).await;
    source.kill9().await;
    assert!(late.await.unwrap().is_err(), "nobody acknowledged it");
    source.start().await;
    let more = rows(&source).await;
    assert!(more.difference(&there).next().is_some(), "the old source has what nobody acknowledged");
    // Another name for the old source: with the configured one the relay continues with the failover's choice.
    relay.follow(&format!("localhost:{}", source.port()));
    relay.wait_for("recognise the old source", has_alarm).await;
    let (_, why) = relay.http("/readyz").await.unwrap();
    assert!(why.contains("the server lacks"), "{why}");
    assert_eq!(relay.metrics().await.sum("kingpost_relay_epoch", &[]), 2.0, "nothing of it was taken");
    source.replicate_from(relay.port()).await;
    source.run(&["STOP SLAVE", "SET GLOBAL gtid_slave_pos = @@gtid_binlog_pos", "START SLAVE"]).await;
    let error = wait_until("the old source to be refused as a replica", SOON, source.dir(), async || {
        let error = source.slave_status("Last_IO_Error").await;
        (!error.is_empty()).then_some(error)
    })
    .await;
    assert!(error.contains("not in the master's binlog"), "{error}");
}

fn is_fenced(metrics: &kingpost_tests::Metrics) -> bool {
    metrics.sum("kingpost_relay_fenced", &[]) == 1.0
}

fn follows_anew(metrics: &kingpost_tests::Metrics) -> bool {
    metrics.sum("kingpost_relay_streaming", &[]) == 1.0 && metrics.sum("kingpost_relay_epoch", &[]) >= 2.0
}

/// Starts a source with its table, two relays of it, and a replica behind each relay.
async fn two_relays() -> (Arc<MariaDb>, [BinlogRelay; 2], [MariaDb; 2]) {
    let source = Arc::new(source().await);
    let mut relays = [BinlogRelay::of(source.port()), BinlogRelay::of(source.port()).set("relay.server_id", 78)];
    for relay in &mut relays {
        relay.start().await;
    }
    source.run(TABLE).await;
    let replicas = [replica(2, &relays[0]).await, replica(3, &relays[1]).await];
    (source, relays, replicas)
}

/// Waits until a statement waits for an acknowledgement.
async fn a_commit_waits(source: &MariaDb) {
    wait_until("a commit to wait", SOON, source.dir(), async || {
        let waiting = source
            .value("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for semi-sync ACK%'")
            .await;
        (waiting != "0").then_some(())
    })
    .await;
}

/// `--abort` removes fences without a choice: the waiting commit is acknowledged, and all continue with the same source. Once a node is chosen, even
/// on one relay only, no fence is removed, and the failover can be completed.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_is_called_off_until_a_node_is_chosen() {
    let (source, relays, replicas) = two_relays().await;
    let nodes = [("n1", source.port()), ("n2", replicas[0].port()), ("n3", replicas[1].port())];
    let failover = async |arguments: &[&str]| relays[0].failover_with(&[&relays[1]], &nodes, arguments).await;
    for relay in &relays {
        relay.order("KINGPOST FENCE TERM 1 TIMELINE 1").await;
    }
    let insert = |id: u64| {
        let source = Arc::clone(&source);
        tokio::spawn(async move { source.run(&[&format!("INSERT INTO app.t VALUES ({id}, 'row')")]).await })
    };
    let waits = insert(1);
    a_commit_waits(&source).await;
    let (done, said) = failover(&["--abort"]).await;
    assert!(done, "{said}");
    for relay in &relays {
        relay
            .wait_for("receive again", |metrics| {
                !is_fenced(metrics) && metrics.sum("kingpost_relay_streaming", &[]) == 1.0
            })
            .await;
    }
    within("the commit that waited", SOON, relays[0].logs(), waits).await.unwrap();
    let at = position(&source).await;
    for replica in &replicas {
        wait_for_gtid(replica, &at).await;
    }
    let (done, said) = failover(&[]).await;
    assert!(!done && said.contains("the source lives"), "{said}");

    // One relay has recorded the chosen node when the run ends.
    for relay in &relays {
        relay.order("KINGPOST FENCE TERM 7 TIMELINE 1").await;
    }
    relays[1].order("KINGPOST CHOOSE TERM 7 NODE \"n3\"").await;
    let waits = insert(2);
    a_commit_waits(&source).await;
    let (done, said) = failover(&["--abort"]).await;
    assert!(!done && said.contains("n3"), "{said}");
    for relay in &relays {
        assert!(is_fenced(&relay.metrics().await), "no relay was let go: {said}");
    }
    let (done, said) = failover(&["--to", "n2"]).await;
    assert!(!done && said.contains("has chosen n3"), "{said}");
    source.kill9().await;
    assert!(waits.await.is_err(), "nobody acknowledged it");
    let (done, said) = failover(&[]).await;
    assert!(done && said.contains("n3 is the source"), "{said}");
    for relay in &relays {
        relay.wait_for("follow n3", follows_anew).await;
    }
    within("a commit on n3", SOON, relays[0].logs(), replicas[1].run(&["INSERT INTO app.t VALUES (3, 'row')"])).await;
    wait_for_gtid(&replicas[0], &position(&replicas[1]).await).await;
    assert_eq!(rows(&replicas[0]).await, BTreeSet::from([1, 3]));
}

/// Either of two relays acknowledges, so each may have transactions that the other lacks: a failover needs both, and the promoted server has all that
/// either acknowledged. The relay that lacked transactions follows too, with the replica behind it.
#[tokio::test(flavor = "multi_thread")]
async fn what_one_of_two_relays_acknowledged_is_not_lost() {
    let (source, mut relays, replicas) = two_relays().await;
    let nodes = [("n1", source.port()), ("n2", replicas[0].port()), ("n3", replicas[1].port())];
    let writers = Writers::start(&source, 4);
    writers.more(50, &source).await;
    relays[0].kill9().await;
    writers.more(50, &source).await;
    relays[0].start().await;
    writers.more(50, &source).await;
    relays[1].kill9().await;
    source.run(&["FLUSH BINARY LOGS"]).await;
    writers.more(50, &source).await;
    source.kill9().await;
    let acknowledged = writers.end().await;
    let (done, said) = relays[0].failover_with(&[&relays[1]], &nodes, &[]).await;
    assert!(!done && said.contains("1 of 2 relays answer, and 2 are needed"), "{said}");
    relays[1].launch();
    relays[1].wait_for("open its log", |metrics| metrics.sum("kingpost_relay_epoch", &[]) == 1.0).await;
    assert_ne!(relays[0].gtids().await, relays[1].gtids().await, "the second relay lacks something");
    // The replica that is behind, because its relay was killed.
    let (done, said) = relays[0].failover_with(&[&relays[1]], &nodes, &["--to", "n3"]).await;
    assert!(done && said.contains("n3 is the source"), "{said}");
    for relay in &relays {
        relay.wait_for("follow n3", follows_anew).await;
    }
    let there = rows(&replicas[1]).await;
    let lost: Vec<_> = acknowledged.difference(&there).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    let insert = replicas[1].run(&["INSERT INTO app.t VALUES (1, 'after the failover')"]);
    within("a commit on n3", SOON, relays[0].logs(), insert).await;
    wait_for_gtid(&replicas[0], &position(&replicas[1]).await).await;
    assert_eq!(checksum(&replicas[0]).await, checksum(&replicas[1]).await);
    // Behind either relay a replica that begins with nothing gets all transactions.
    for (id, relay) in [(4, &relays[0]), (5, &relays[1])] {
        let fresh = replica(id, relay).await;
        wait_for_gtid(&fresh, &position(&replicas[1]).await).await;
        assert_eq!(checksum(&fresh).await, checksum(&replicas[1]).await);
    }
}

/// A connection path to a server that fails once the server was told to take writes: the statement arrives, but its answer does not, and no new
/// connection succeeds until the path is mended.
struct Deaf {
    port: u16,
    passes: Arc<AtomicBool>,
}

impl Deaf {
    fn to(target: u16) -> Deaf {
        const STATEMENT: &[u8] = b"SET GLOBAL read_only = 0";
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, passes) = (listener.local_addr().unwrap().port(), Arc::new(AtomicBool::new(true)));
        let open = Arc::clone(&passes);
        std::thread::spawn(move || {
            let mut told = false;
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                if !open.load(Ordering::SeqCst) {
                    continue;
                }
                let server = TcpStream::connect(("127.0.0.1", target)).unwrap();
                let (mut from_server, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let back = Arc::clone(&open);
                std::thread::spawn(move || {
                    let mut buffer = [0; 65536];
                    while let Ok(n @ 1..) = from_server.read(&mut buffer) {
                        if !back.load(Ordering::SeqCst) || to_client.write_all(&buffer[..n]).is_err() {
                            break;
                        }
                    }
                    let _ = to_client.shutdown(std::net::Shutdown::Both);
                });
                if told {
                    let (mut from, mut to) = (client, server);
                    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                    continue;
                }
                // One connection at a time until then, as the command opens them.
                let (mut from, mut to, mut buffer) = (client, server, [0; 65536]);
                while let Ok(n @ 1..) = from.read(&mut buffer) {
                    let sent = &buffer[..n];
                    if sent.windows(STATEMENT.len()).any(|window| window == STATEMENT) {
                        told = true;
                        open.store(false, Ordering::SeqCst);
                    }
                    to.write_all(sent).unwrap();
                }
                let _ = to.shutdown(std::net::Shutdown::Write);
            }
        });
        Deaf { port, passes }
    }

    fn mend(&self) {
        self.passes.store(true, Ordering::SeqCst);
    }
}

/// A server that was told to take writes, and whose answer is lost, may take them: no second one is made a source beside it, and the next run
/// continues with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_may_take_writes_already_stays_the_only_one() {
    let source = source().await;
    let mut relay = BinlogRelay::of(source.port());
    relay.start().await;
    source.run(TABLE).await;
    let replicas = [replica(2, &relay).await, replica(3, &relay).await];
    let at = position(&source).await;
    for replica in &replicas {
        wait_for_gtid(replica, &at).await;
    }
    let deaf = Deaf::to(replicas[0].port());
    let nodes = [("n1", source.port()), ("n2", deaf.port), ("n3", replicas[1].port())];
    source.kill9().await;
    let unheard = async || {
        let (done, said) = relay.failover(&nodes, &[]).await;
        // Until the relay has noticed the loss, it reports that the source lives.
        (!said.contains("the source lives")).then_some((done, said))
    };
    let (done, said) = wait_until("the relay to miss its source", SOON, relay.logs(), unheard).await;
    assert!(!done && said.contains("n2 was chosen, and does not say whether it takes writes"), "{said}");
    assert_eq!(replicas[0].value("SELECT @@read_only").await, "0");
    assert_eq!(replicas[1].value("SELECT @@read_only").await, "1", "two sources: {said}");

    deaf.mend();
    let (done, said) = relay.failover(&nodes, &["--to", "n3"]).await;
    assert!(!done && said.contains("has chosen n2"), "{said}");
    let (done, said) = relay.failover(&nodes, &[]).await;
    assert!(done && said.contains("n2 is the source"), "{said}");
    relay.wait_for("follow n2", follows_anew).await;
    assert_eq!(replicas[1].value("SELECT @@read_only").await, "1", "{said}");
}

/// A run ended when one of two relays already followed the new source: the next run makes the other one follow, too, and commits do not wait for
/// ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_ended_between_two_relays_is_finished() {
    let (source, relays, replicas) = two_relays().await;
    let nodes = [("n1", source.port()), ("n2", replicas[0].port()), ("n3", replicas[1].port())];
    source.run(&["INSERT INTO app.t VALUES (1, 'row')"]).await;
    let at = position(&source).await;
    for replica in &replicas {
        wait_for_gtid(replica, &at).await;
    }
    source.kill9().await;
    for relay in &relays {
        relay.order("KINGPOST FENCE TERM 1 TIMELINE 1").await;
        relay.order("KINGPOST CHOOSE TERM 1 NODE \"n2\"").await;
    }
    replicas[0]
        .run(&[
            "STOP SLAVE",
            "SET GLOBAL rpl_semi_sync_master_timeout = 4294967295",
            "SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC",
            "SET GLOBAL rpl_semi_sync_master_wait_no_slave = ON",
            "SET GLOBAL rpl_semi_sync_master_enabled = ON",
            "RESET SLAVE ALL",
            "SET GLOBAL read_only = 0",
        ])
        .await;
    relays[0].order(&format!("KINGPOST FOLLOW TERM 1 ADDRESS \"127.0.0.1:{}\"", replicas[0].port())).await;
    relays[0].wait_for("follow n2", follows_anew).await;
    let insert = replicas[0].run(&["INSERT INTO app.t VALUES (2, 'acknowledged by the first relay')"]);
    within("a commit on n2", SOON, relays[0].logs(), insert).await;
    let (done, said) = relays[0].failover_with(&[&relays[1]], &nodes, &[]).await;
    assert!(done, "{said}");
    for relay in &relays {
        relay.wait_for("follow n2", follows_anew).await;
        assert!(!is_fenced(&relay.metrics().await), "{said}");
    }
    let insert = replicas[0].run(&["INSERT INTO app.t VALUES (3, 'after it was finished')"]);
    within("a commit on n2", SOON, relays[0].logs(), insert).await;
    wait_for_gtid(&replicas[1], &position(&replicas[0]).await).await;
    assert_eq!(rows(&replicas[1]).await, BTreeSet::from([1, 2, 3]));
}

/// A crash leaves an incomplete event: it is truncated, and the source sends it again. A wrong byte is not an incomplete event.
#[tokio::test(flavor = "multi_thread")]
async fn the_position_is_found_in_the_files_alone() {
    let source = source().await;
    let mut relay = BinlogRelay::of(source.port());
    relay.start().await;
    source.run(TABLE).await;
    source.run(&["INSERT INTO app.t VALUES (1, 'one')", "INSERT INTO app.t VALUES (2, 'two')"]).await;
    let before = relay.gtids().await;
    relay.kill9().await;
    let last = files(&relay, "0000000001-1").pop().unwrap();
    let whole = std::fs::read(&last).unwrap();
    // The header of an event, and 14 bytes of it, as a torn write leaves them.
    let mut torn = whole.clone();
    torn.extend_from_slice(&event::artificial(Kind::XID, 1, 0, 0, &[0; 40], Checksum::Crc32)[..33]);
    std::fs::write(&last, &torn).unwrap();
    relay.start().await;
    assert_eq!(relay.gtids().await, before);
    source.run(&["INSERT INTO app.t VALUES (3, 'three')"]).await;
    let replica = replica(2, &relay).await;
    wait_for_gtid(&replica, &position(&source).await).await;
    assert_eq!(checksum(&replica).await, checksum(&source).await);

    relay.kill9().await;
    let mut broken = std::fs::read(&last).unwrap();
    let middle = whole.len() - 60;
    broken[middle] ^= 0x20;
    std::fs::write(&last, &broken).unwrap();
    relay.launch();
    let status = relay.process().wait_exit(SOON).await;
    assert!(!status.success());
    let said = relay.log();
    assert!(said.contains("it is damaged") && said.contains("Nothing was changed"), "{said}");
    assert!(std::fs::read(&last).unwrap() == broken);
}

/// Settings by which a commit does not wait raise the alarm, and correcting them ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_does_not_wait_raises_the_alarm() {
    let source = source().await;
    let mut relay = BinlogRelay::of(source.port());
    relay.start().await;
    assert_eq!(relay.http("/readyz").await.unwrap().0, 200);
    source.run(&["SET GLOBAL rpl_semi_sync_master_timeout = 1000"]).await;
    relay.wait_for("raise the alarm", has_alarm).await;
    let (status, why) = relay.http("/readyz").await.unwrap();
    assert!(status != 200 && why.contains("rpl_semi_sync_master_timeout is 1000 ms"), "{why}");
    let (good, said) = relay.check().await;
    assert!(!good && said.contains("rpl_semi_sync_master_timeout is 1000 ms"), "{said}");
    source.run(&["SET GLOBAL rpl_semi_sync_master_timeout = 4294967295"]).await;
    relay.wait_for("end the alarm", |metrics| !has_alarm(metrics)).await;
    let (good, said) = relay.check().await;
    assert!(good, "{said}");
    source.run(&["SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_COMMIT"]).await;
    relay.wait_for("raise the alarm again", has_alarm).await;
}

/// Semi-synchronous replication is enabled while the relay is connected: a source treats a replica as semi-synchronous only when it requests events,
/// so the relay has to request them again, or commits would wait for ever. After it is disabled, the relay keeps receiving, with its alarm.
#[tokio::test(flavor = "multi_thread")]
async fn semi_sync_may_be_switched_while_connected() {
    let source = MariaDb::new(1, true).option("--rpl-semi-sync-master-enabled=OFF");
    source.start_new().await;
    let mut relay = BinlogRelay::of(source.port());
    relay.start().await;
    relay.wait_for("raise the alarm", has_alarm).await;
    source.run(TABLE).await;
    let insert = async |statements: &[&str], says: &str| {
        within("a commit", SOON, relay.logs(), source.run(statements)).await;
        let at = position(&source).await;
        let has = |metrics: &kingpost_tests::Metrics| {
            let state = metrics.samples.iter().find(|sample| sample.name == "kingpost_relay_durable_info");
            state.and_then(|sample| sample.labels.get("gtids")).is_some_and(|gtids| *gtids == at)
        };
        relay.wait_for(says, has).await;
    };
    let status = async |name: &str| {
        let of = format!("SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = '{name}'");
        source.value(&of).await
    };
    insert(&["INSERT INTO app.t VALUES (1, 'one')"], "receive without semi-sync").await;
    let on = "SET GLOBAL rpl_semi_sync_master_enabled = ON";
    insert(&[on, "INSERT INTO app.t VALUES (2, 'two')"], "receive with semi-sync").await;
    relay.wait_for("end the alarm", |metrics| !has_alarm(metrics)).await;
    assert_eq!(status("RPL_SEMI_SYNC_MASTER_CLIENTS").await, "1");
    assert_eq!(status("RPL_SEMI_SYNC_MASTER_YES_TX").await, "1");
    let off = "SET GLOBAL rpl_semi_sync_master_enabled = OFF";
    insert(&[off, "INSERT INTO app.t VALUES (3, 'three')"], "receive after it was switched off").await;
    relay.wait_for("raise the alarm again", has_alarm).await;
    insert(&[on, "INSERT INTO app.t VALUES (4, 'four')"], "receive after it was switched on again").await;
    assert_eq!(status("RPL_SEMI_SYNC_MASTER_NO_TX").await, "0");
}

/// Starts a source that sends `events`, and admits everybody. Returns its port, and the acknowledged position.
fn hostile(events: Vec<Vec<u8>>) -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, acknowledged) = (listener.local_addr().unwrap().port(), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&acknowledged);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = converse(stream.unwrap(), &events, &count);
        }
    });
    (port, acknowledged)
}

fn converse(mut stream: TcpStream, events: &[Vec<u8>], acknowledged: &AtomicU64) -> std::io::Result<()> {
    let mut messages = Messages::new(1 << 20);
    let mut pending = Vec::new();
    let mut next = |stream: &mut TcpStream| -> std::io::Result<Vec<u8>> {
        loop {
            let mut input = &pending[..];
            let message = messages.next(&mut input).unwrap();
            let used = pending.len() - input.len();
            pending.drain(..used);
            if let Some((_, message)) = message {
                return Ok(message);
            }
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer)?;
            if count == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            pending.extend_from_slice(&buffer[..count]);
        }
    };
    let send = |stream: &mut TcpStream, sequence: u8, payloads: &[Vec<u8>]| {
        let mut out = Vec::new();
        let mut sequence = sequence;
        for payload in payloads {
            sequence = message(&mut out, sequence, payload);
        }
        stream.write_all(&out)
    };
    send(
        &mut stream,
        0,
        &[Greeting::new("5.5.5-10.11.6-MariaDB".into(), 1, [33; 20], false, Plugin::Native).encode()],
    )?;
    next(&mut stream)?;
    send(&mut stream, 2, &[reply::ok()])?;
    loop {
        let command = next(&mut stream)?;
        let text = String::from_utf8_lossy(command.get(1..).unwrap_or_default()).into_owned();
        let row = |values: &[&str]| {
            let names: Vec<&str> = values.iter().map(|_| "v").collect();
            reply::rows(&names, &[values.iter().map(|value| Some((*value).to_owned())).collect()])
        };
        match command[0] {
            0x12 => break,
            3 if text.contains("@@global.server_id") => {
                let values = [
                    "1",
                    "1",
                    "CRC32",
                    "0-1-1",
                    "0-1-1",
                    "1",
                    "4294967295",
                    "AFTER_SYNC",
                    "1",
                    "0",
                    "10.11.6-MariaDB",
                    "1",
                ];
                send(&mut stream, 1, &row(&values))?;
            }
            3 if text.starts_with("SELECT @master_binlog_checksum") => send(&mut stream, 1, &row(&["CRC32"]))?,
            3 if text.starts_with("SHOW GLOBAL STATUS") => send(&mut stream, 1, &row(&["s", "ON"]))?,
            _ => send(&mut stream, 1, &[reply::ok()])?,
        }
    }
    let payloads: Vec<Vec<u8>> = events.iter().map(|event| [&[0, 0xef, 1][..], event].concat()).collect();
    send(&mut stream, 1, &payloads)?;
    loop {
        next(&mut stream)?;
        acknowledged.fetch_add(1, Ordering::Relaxed);
    }
}

/// A source that sends lies, or unusable events, gets a clear error, and no acknowledgement.
#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_source_gets_an_error_and_no_acknowledgement() {
    let sum = Checksum::Crc32;
    let begin = event::announce(1, "bin.000001", 4, sum);
    let xid = |end: u32| event::artificial(Kind::XID, 1, end, 0, &[0; 8], sum);
    let mut damaged = xid(4 + 31);
    damaged[25] ^= 1;
    let mut endless = xid(0);
    endless[9..13].copy_from_slice(&u32::MAX.to_le_bytes());
    for (events, says) in [
        (vec![begin.clone(), xid(400)], "the source lies"),
        (vec![begin.clone(), damaged], "it is damaged"),
        (vec![begin.clone(), endless], "4294967295 bytes"),
        (vec![event::announce(1, "../../etc/passwd.1", 4, sum)], "names a binary log"),
        (vec![event::announce(1, "bin.000009", 400, sum)], "was asked for"),
        (vec![begin, event::announce(1, "bin.000007", 4, sum)], "are missing"),
    ] {
        let (port, acknowledged) = hostile(events);
        let mut relay = BinlogRelay::of(port);
        relay.launch();
        relay.wait_for("raise the alarm", has_alarm).await;
        let (_, why) = relay.http("/readyz").await.unwrap();
        assert!(why.contains(says), "{why}");
        assert_eq!(acknowledged.load(Ordering::Relaxed), 0, "{says}");
        assert_eq!(relay.gtids().await, "");
    }
}

/// Clients that are not replicas: refused or disconnected, and the relay continues.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_are_no_replicas() {
    let source = source().await;
    let mut relay = BinlogRelay::of(source.port()).set("relay.login_timeout", "1s").set("relay.max_downstreams", 3);
    relay.start().await;
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\xff\xff\xff\x01", b"\0\0\0\x01", &[0; 100]] {
        let port = relay.port();
        let garbage = garbage.to_vec();
        let talk = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.write_all(&garbage).unwrap();
            let mut heard = Vec::new();
            // Until the relay ends it.
            let _ = stream.read_to_end(&mut heard);
        });
        within("the relay to end a connection", SOON, relay.logs(), talk).await.unwrap();
    }
    // Half-open connections take places only until the time limit of a login.
    let open: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(("127.0.0.1", relay.port())).unwrap()).collect();
    source.run(TABLE).await;
    let replica = replica(2, &relay).await;
    wait_for_gtid(&replica, &position(&source).await).await;
    drop(open);
    relay.wait_for("refuse all of them", |metrics| metrics.sum("kingpost_relay_refused_total", &[]) >= 7.0).await;
}

/// With TLS on both sides; a replica without it is refused.
#[tokio::test(flavor = "multi_thread")]
async fn events_cross_the_network_encrypted() {
    let authority = Authority::new();
    let here = &["localhost", "127.0.0.1"];
    let (of_source, of_relay) = (authority.issue("source", here), authority.issue("relay", here));
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let ca = text(&authority.ca_file());
    let mut source = MariaDb::new(1, true).files(&[
        ("ca.pem", &authority.ca_file()),
        ("cert.pem", &of_source.cert),
        ("key.pem", &of_source.key),
    ]);
    for (option, name) in [("ssl-ca", "ca.pem"), ("ssl-cert", "cert.pem"), ("ssl-key", "key.pem")] {
        let path = source.dir().join(name);
        source = source.option(&format!("--{option}={}", path.display()));
    }
    source.start_new().await;
    source.run(&["SET sql_log_bin = 0", "ALTER USER repl@'%' REQUIRE SSL"]).await;
    let mut relay = BinlogRelay::of(source.port())
        .set("relay.upstream.tls.mode", "verify-full")
        .set("relay.upstream.tls.ca_file", ca)
        .set("relay.tls.mode", "require")
        .set("relay.tls.cert_file", text(&of_relay.cert))
        .set("relay.tls.key_file", text(&of_relay.key));
    relay.start().await;
    source.run(TABLE).await;
    source.run(&["INSERT INTO app.t VALUES (1, 'one'), (2, REPEAT('y', 17000000))"]).await;
    let replica = MariaDb::new(2, false).files(&[("ca.pem", &authority.ca_file())]);
    replica.start_new().await;
    replica.replicate_from(relay.port()).await;
    wait_until("the replica without TLS to be refused", SOON, replica.dir(), async || {
        replica.slave_status("Last_IO_Error").await.contains("insecure transport").then_some(())
    })
    .await;
    let trusts =
        format!("CHANGE MASTER TO MASTER_SSL = 1, MASTER_SSL_CA = '{}'", replica.dir().join("ca.pem").display());
    replica.run(&["STOP SLAVE", &trusts, "START SLAVE"]).await;
    wait_for_gtid(&replica, &position(&source).await).await;
    assert_eq!(checksum(&replica).await, checksum(&source).await);
}
