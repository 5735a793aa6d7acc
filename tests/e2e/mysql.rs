//! The relay of a binary log between real servers of MySQL. What it does whatever the family is tried with MariaDB, in `binlog`.

use std::path::PathBuf;

use kingpost_tests::certs::Authority;
use kingpost_tests::{BinlogRelay, MySql, SOON, mysqld, skipped, wait_until};

pub(crate) const TABLE: &[&str] =
    &["CREATE DATABASE app", "CREATE TABLE app.t (id BIGINT PRIMARY KEY, text LONGTEXT, more JSON)"];

/// Returns true, and records the skipped test, where MySQL cannot be had.
pub(crate) fn is_missing() -> bool {
    let missing = mysqld().is_none();
    if missing {
        skipped("no MySQL: KINGPOST_TESTS_MYSQLD names its mysqld");
    }
    missing
}

pub(crate) async fn source() -> MySql {
    let source = MySql::new(1, true);
    source.start_new().await;
    source
}

pub(crate) fn relay_of(source: &MySql) -> BinlogRelay {
    BinlogRelay::of(source.port()).set("relay.engine", "mysql")
}

pub(crate) async fn replica(id: u32, relay: &BinlogRelay) -> MySql {
    let replica = MySql::new(id, false);
    replica.start_new().await;
    replica.replicate_from(relay.port(), "SOURCE_SSL=0").await;
    replica
}

pub(crate) async fn checksum(server: &MySql) -> String {
    server
        .value("SELECT CONCAT(COUNT(*), ' ', COALESCE(SUM(CRC32(CONCAT(id, text, COALESCE(more, '')))), 0)) FROM app.t")
        .await
}

/// Stock replicas receive all kinds of transactions over rotations: with tags, compressed, of XA, with partial JSON, of more than one packet. The relay's
/// files have the source's bytes, and each commit was acknowledged. The relay logs in without TLS, by the server's RSA key.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts three servers of MySQL, for scripts/test-long"]
async fn stock_replicas_of_mysql_are_fed() {
    if is_missing() {
        return;
    }
    let source = source().await;
    // The server has just started: it remembers no password.
    let mut relay = relay_of(&source).set("relay.upstream.tls.mode", "disable");
    relay.start().await;
    source.run(TABLE).await;
    let one = replica(2, &relay).await;
    source
        .run(&[
            "INSERT INTO app.t VALUES (1, 'one', '{\"a\": 1, \"b\": \"long enough that a part of it is worth it\"}'), (2, 'two', NULL)",
            "SET gtid_next = 'AUTOMATIC:blue'",
            "INSERT INTO app.t VALUES (3, 'with a tag', NULL)",
            "SET gtid_next = 'AUTOMATIC:_2'",
            "INSERT INTO app.t VALUES (4, 'with another one', NULL)",
            "SET gtid_next = 'AUTOMATIC'",
            "FLUSH BINARY LOGS",
            "SET SESSION binlog_transaction_compression = ON",
            "INSERT INTO app.t VALUES (5, REPEAT('compressed', 1000), NULL)",
            "SET SESSION binlog_transaction_compression = OFF",
            "SET SESSION binlog_row_value_options = PARTIAL_JSON",
            "UPDATE app.t SET more = JSON_SET(more, '$.a', 2) WHERE id = 1",
            "XA START 'one'",
            "INSERT INTO app.t VALUES (6, 'of XA', NULL)",
            "XA END 'one'",
            "XA PREPARE 'one'",
            "FLUSH BINARY LOGS",
            "XA COMMIT 'one'",
            "INSERT INTO app.t VALUES (7, REPEAT('x', 17000000), NULL)",
            "CREATE TABLE app.copy AS SELECT id, text FROM app.t",
            "SET SESSION binlog_format = 'STATEMENT'",
            "SET @name = 'by a variable'",
            "INSERT INTO app.t VALUES (8, @name, NULL)",
            "SET SESSION binlog_format = 'ROW'",
            "ALTER TABLE app.t ADD COLUMN last INT",
            "DELETE FROM app.t WHERE id = 2",
        ])
        .await;
    // Begins after all of it, and gets it from the relay's files.
    let two = replica(3, &relay).await;
    let at = source.gtids().await;
    assert!(at.contains(":blue:1") && at.contains(":_2:1"), "{at}");
    for replica in [&one, &two] {
        replica.wait_for_gtids(&at).await;
        assert_eq!(checksum(replica).await, checksum(&source).await);
        assert_eq!(replica.gtids().await, at);
        assert_eq!(replica.value("SELECT COUNT(*) FROM app.copy").await, "7");
        assert_eq!(replica.status("Rpl_semi_sync_replica_status").await, "ON");
    }
    relay.wait_for("have it all", |metrics| metrics.sum("kingpost_relay_source_concerns", &[]) == 0.0).await;
    assert_eq!(relay.gtids().await, at);
    // The source has the last file open, as its first event says.
    let directory = relay.dir().join("0000000001-1");
    let mut kept: Vec<PathBuf> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    kept.sort();
    assert_eq!(kept.len(), 3);
    for file in &kept[..2] {
        let theirs = std::fs::read(source.data().join(file.file_name().unwrap())).unwrap();
        assert!(std::fs::read(file).unwrap() == theirs, "{} differs", file.display());
    }
    assert_eq!(source.status("Rpl_semi_sync_source_no_tx").await, "0", "each commit was acknowledged");
    assert_ne!(source.status("Rpl_semi_sync_source_yes_tx").await, "0");
    let (good, said) = relay.check().await;
    assert!(good, "{said}");
    one.run(&["STOP REPLICA", "CHANGE REPLICATION SOURCE TO SOURCE_PASSWORD='wrong'", "START REPLICA"]).await;
    one.wait_for_error("Access denied").await;
    assert!(!relay.log().contains("wrong") && !relay.log().contains("repl-secret"));
}

/// A replica whose transactions are before the log, or beyond it, gets the error that a source would send; one by file and offset is refused.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts two servers of MySQL, for scripts/test-long"]
async fn a_replica_of_mysql_that_does_not_fit_is_refused() {
    if is_missing() {
        return;
    }
    // Its commits wait for nobody: the relay comes late.
    let source = MySql::new(1, false);
    source.start_new().await;
    source.run(TABLE).await;
    let uuid = source.value("SELECT @@server_uuid").await;
    source.run(&["FLUSH BINARY LOGS", "PURGE BINARY LOGS TO 'mysql-bin.000002'"]).await;
    let mut relay = relay_of(&source);
    relay.start().await;
    let replica = replica(2, &relay).await;
    replica.wait_for_error("purged required binary logs").await;
    for (executed, says) in [(format!("{uuid}:1-999"), "more GTIDs"), (format!("{uuid}:1-2:red:1"), "more GTIDs")] {
        let purged = format!("SET GLOBAL gtid_purged = '{executed}'");
        replica.run(&["STOP REPLICA", "RESET BINARY LOGS AND GTIDS", &purged, "START REPLICA"]).await;
        replica.wait_for_error(says).await;
    }
    replica.replicate_from(relay.port(), "SOURCE_SSL=0").await;
    replica
        .run(&[
            "STOP REPLICA",
            "CHANGE REPLICATION SOURCE TO SOURCE_AUTO_POSITION=0, SOURCE_LOG_FILE='mysql-bin.000002', SOURCE_LOG_POS=4",
            "START REPLICA",
        ])
        .await;
    replica.wait_for_error("SOURCE_AUTO_POSITION = 1").await;
}

/// TLS on both sides: the source and the relay refuse a login without it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts two servers of MySQL, for scripts/test-long"]
async fn tls_between_source_relay_and_replica_of_mysql() {
    if is_missing() {
        return;
    }
    let source = source().await;
    source.run(&["SET GLOBAL require_secure_transport = ON"]).await;
    let authority = Authority::new();
    let of_relay = authority.issue("relay", &["127.0.0.1"]);
    let text = |path: &PathBuf| path.display().to_string();
    let mut relay = relay_of(&source)
        .set("relay.upstream.tls.mode", "require")
        .set("relay.tls.mode", "require")
        .set("relay.tls.cert_file", text(&of_relay.cert))
        .set("relay.tls.key_file", text(&of_relay.key));
    relay.start().await;
    source.run(TABLE).await;
    let replica = replica(2, &relay).await;
    replica.wait_for_error("insecure transport").await;
    let authority = authority.ca_file().display().to_string();
    replica
        .replicate_from(
            relay.port(),
            &format!("SOURCE_SSL=1, SOURCE_SSL_CA='{authority}', SOURCE_SSL_VERIFY_SERVER_CERT=1"),
        )
        .await;
    replica.wait_for_gtids(&source.gtids().await).await;
    // On the same connection.
    let connected = relay.metrics().await.sum("kingpost_relay_accepted_total", &[]);
    source.run(&["INSERT INTO app.t VALUES (1, 'one', NULL)"]).await;
    replica.wait_for_gtids(&source.gtids().await).await;
    assert_eq!(relay.metrics().await.sum("kingpost_relay_accepted_total", &[]), connected);
}

/// A source that does not wait is an alarm with a reason; the servers that cannot be sources say why.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a server of MySQL, for scripts/test-long"]
async fn a_source_of_mysql_that_does_not_wait_is_an_alarm() {
    if is_missing() {
        return;
    }
    let source = source().await;
    let mut relay = relay_of(&source);
    relay.start().await;
    source.run(&["SET GLOBAL rpl_semi_sync_source_timeout = 1000"]).await;
    alarm(&relay, "rpl_semi_sync_source_timeout is 1000 ms").await;
    source
        .run(&["SET GLOBAL rpl_semi_sync_source_timeout = 4294967295", "SET GLOBAL rpl_semi_sync_source_enabled = OFF"])
        .await;
    alarm(&relay, "rpl_semi_sync_source_enabled is OFF").await;
    source.run(&["SET GLOBAL gtid_mode = ON_PERMISSIVE"]).await;
    relay.kill9().await;
    relay.launch();
    alarm(&relay, "gtid_mode = ON is needed").await;
}

/// Waits until the relay is not ready for a reason.
async fn alarm(relay: &BinlogRelay, says: &str) {
    wait_until(&format!("an alarm about {says}"), SOON, relay.logs(), async || {
        relay.http("/readyz").await.filter(|(_, why)| why.contains(says))
    })
    .await;
}
