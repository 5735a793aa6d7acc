//! Requests of stock replicas to a relay of MariaDB: beside each of them one replica sends the same to the source itself.

use kingpost_tests::{BinlogRelay, MariaDb, SOON, wait_until, within};
use mysql_async::prelude::Queryable as _;

use crate::binlog::{TABLE, checksum, position, replica, source, wait_for_gtid};

/// Waits until both threads of a replica have stopped; returns the errors and the replica's position.
async fn stopped(replica: &MariaDb) -> (String, String, String) {
    wait_until("a replica to stop", SOON, replica.dir(), async || {
        let running = [replica.slave_status("Slave_IO_Running").await, replica.slave_status("Slave_SQL_Running").await];
        (running == ["No", "No"]).then_some(())
    })
    .await;
    let errors = [replica.slave_status("Last_IO_Error").await, replica.slave_status("Last_SQL_Error").await].concat();
    (errors, replica.value("SELECT @@gtid_slave_pos").await, checksum(replica).await)
}

/// Returns the bytes of the longest event in a server's first binary log.
async fn longest_event(server: &MariaDb) -> u64 {
    let mut connection = server.connect().await.unwrap();
    let events: Vec<(String, u64, String, u64, u64, String)> =
        connection.query("SHOW BINLOG EVENTS IN 'mysql-bin.000001'").await.unwrap();
    events.iter().map(|event| event.4 - event.1).max().unwrap()
}

/// Returns the lines of `mariadb-binlog` that name a transaction, read over the network from a position on.
async fn remote(port: u16, from: &str) -> Vec<String> {
    let mut tool = tokio::process::Command::new("mariadb-binlog");
    tool.args(["--no-defaults", "--read-from-remote-server", "--to-last-log", "--host=127.0.0.1", "--user=repl"]);
    tool.arg(format!("--port={port}")).arg(format!("--start-position={from}")).env("MYSQL_PWD", "repl-secret");
    let output = tool.arg("mysql-bin.000001").kill_on_drop(true).output().await.expect("run mariadb-binlog");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter(|line| line.contains("GTID ") && line.contains(" trans")).map(str::to_owned).collect()
}

/// A semi-synchronous replica runs, with events across packet boundaries, and ends its connection by KILL. Replicas stop at START SLAVE UNTIL, and
/// leave out marked events, as those of the source do. A reader that does not wait reaches the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_gets_what_it_asks_for() {
    let source = source().await;
    let mut relay = BinlogRelay::of(source.port());
    relay.start().await;
    source.run(TABLE).await;
    let behind = MariaDb::new(2, false).option("--rpl-semi-sync-slave-enabled=ON");
    behind.start_new().await;
    behind.replicate_from(relay.port()).await;
    let direct = MariaDb::new(3, false);
    direct.start_new().await;
    direct.replicate_from(source.port()).await;
    source.run(&["INSERT INTO app.t VALUES (1, 'one')", "INSERT INTO app.t VALUES (2, REPEAT('x', 17000000))"]).await;
    // An event that fills its packet to the last byte, with the three bytes that stand before it for a semi-synchronous replica.
    let full = (1 << 24) - 1 - 3 - (longest_event(&source).await - 17_000_000);
    for length in full - 1..=full + 1 {
        source.run(&[&format!("INSERT INTO app.t VALUES ({length}, REPEAT('z', {length}))")]).await;
    }
    let begin = position(&source).await;
    for replica in [&behind, &direct] {
        wait_for_gtid(replica, &begin).await;
        assert_eq!(checksum(replica).await, checksum(&source).await);
        replica.run(&["STOP SLAVE"]).await;
    }
    assert_eq!(stopped(&behind).await.0, "");
    let log = relay.log();
    assert!(log.contains("\"semisync\":true"), "{log}");
    let said = std::fs::read_to_string(behind.dir().join("mariadb.log")).unwrap();
    assert!(!said.contains("gracefully kill") && !said.contains("cannot connect to master to kill"), "{said}");

    let mut ends = Vec::new();
    for transaction in [
        &["INSERT INTO app.t VALUES (3, 'three')"][..],
        &["BEGIN", "INSERT INTO app.t VALUES (4, 'four')", "UPDATE app.t SET text = '4' WHERE id = 4", "COMMIT"],
        &["FLUSH BINARY LOGS", "SET gtid_domain_id = 1", "INSERT INTO app.t VALUES (5, 'five')"],
        &["CREATE TABLE app.other (id INT)"],
        &["FLUSH BINARY LOGS", "INSERT INTO app.t VALUES (6, 'six')"],
    ] {
        source.run(transaction).await;
        ends.push(position(&source).await);
    }
    // At the current position; after one transaction; in the middle, at the end of a file; before the position; one domain alone, then both; an end
    // that does not exist.
    let one_domain = ends[3].split(',').next().unwrap().to_owned();
    for until in [&begin, &ends[0], &ends[1], &ends[0], &one_domain, &ends[3], &ends[4]] {
        let start = format!("START SLAVE UNTIL master_gtid_pos = '{until}'");
        let mut came = Vec::new();
        for replica in [&behind, &direct] {
            replica.run(&[&start]).await;
            came.push(within("the end", SOON, relay.logs(), stopped(replica)).await);
        }
        assert_eq!(came[0], came[1], "{until}");
    }
    assert_eq!(behind.value("SELECT @@gtid_slave_pos").await, position(&source).await);

    for replica in [&behind, &direct] {
        replica.run(&["SET GLOBAL replicate_events_marked_for_skip = FILTER_ON_MASTER", "START SLAVE"]).await;
    }
    source
        .run(&[
            "SET skip_replication = 1",
            "INSERT INTO app.t VALUES (50, 'marked')",
            "SET skip_replication = 0",
            "INSERT INTO app.t VALUES (51, 'not marked')",
        ])
        .await;
    for replica in [&behind, &direct] {
        wait_for_gtid(replica, &position(&source).await).await;
        assert_eq!(replica.value("SELECT GROUP_CONCAT(id) FROM app.t WHERE id IN (50, 51)").await, "51");
        assert_eq!(replica.slave_status("Slave_IO_Running").await, "Yes");
    }
    assert_eq!(checksum(&behind).await, checksum(&direct).await);

    let lines = within("the reader's end", SOON, relay.logs(), remote(relay.port(), &ends[1])).await;
    assert!(lines.len() >= 4, "{lines:?}");
    assert_eq!(lines, remote(source.port(), &ends[1]).await);
}

/// The source's checksums are disabled and enabled while replicas are connected, and the new source has none: no replica fails, not even one that
/// returns to an earlier file.
#[tokio::test(flavor = "multi_thread")]
async fn checksums_may_change() {
    let source = source().await;
    let mut relay = BinlogRelay::of(source.port());
    relay.start().await;
    source.run(TABLE).await;
    let heir = MariaDb::new(2, false).option("--binlog-checksum=NONE");
    heir.start_new().await;
    heir.replicate_from(relay.port()).await;
    let (other, away) = (replica(3, &relay).await, replica(4, &relay).await);
    for (id, value) in [(1, "NONE"), (2, "CRC32"), (3, "NONE"), (4, "CRC32")] {
        let set = format!("SET GLOBAL binlog_checksum = {value}");
        source.run(&[&set, &format!("INSERT INTO app.t VALUES ({id}, '{value}')")]).await;
        for replica in [&heir, &other] {
            wait_for_gtid(replica, &position(&source).await).await;
        }
        // In a file with checksums: in one without, a stock replica of the source itself would not continue after this.
        if id == 2 {
            wait_for_gtid(&away, &position(&source).await).await;
            away.run(&["STOP SLAVE"]).await;
        }
    }
    away.run(&["START SLAVE"]).await;
    wait_for_gtid(&away, &position(&source).await).await;
    source.kill9().await;
    let nodes = [("n1", source.port()), ("n2", heir.port()), ("n3", other.port())];
    let (done, said) = relay.failover(&nodes, &["--to", "n2"]).await;
    assert!(done, "{said}");
    heir.run(&["INSERT INTO app.t VALUES (5, 'without')", "FLUSH BINARY LOGS", "INSERT INTO app.t VALUES (6, 'six')"])
        .await;
    for replica in [&other, &away] {
        wait_for_gtid(replica, &position(&heir).await).await;
        assert_eq!(checksum(replica).await, checksum(&heir).await);
        // The connection is the same: none has ended.
        assert_eq!(replica.slave_status("Last_IO_Errno").await, "0");
    }
}
