//! The relay between real servers: its log, its downstreams, its refusals.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use kingpost_tests::{
    Cluster, Node, Process, Relay, RunAs, SOON, ShowLogs, command, kingpost_bin, new_dir, pg_bin, wait_until,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SEGMENT: u64 = 16 << 20;

/// Starts a primary, and a relay that follows it from its first segment on.
async fn primary_and_relay() -> (Cluster, Relay) {
    let cluster = Cluster::builder().start().await;
    let mut relay = Relay::of(&cluster, cluster.primary().port());
    relay.start().await;
    (cluster, relay)
}

/// Writes about `megabytes` of WAL.
async fn write(primary: &Node, megabytes: u32) {
    primary.execute("CREATE TABLE IF NOT EXISTS load (n int, pad text)").await;
    let sql = format!("INSERT INTO load SELECT n, repeat('x', 1000) FROM generate_series(1, {}) n", megabytes * 900);
    primary.execute(&sql).await;
}

/// Waits until the relay has made durable all that the primary has written so far.
pub(crate) async fn wait_durable(relay: &Relay, primary: &Node) -> u64 {
    let sql = "SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint";
    let target: u64 = primary.query(sql).await.parse().unwrap();
    let logs = relay.endpoint().logs;
    wait_until("the relay to have it", SOON, &logs, async || (relay.position("flushed").await >= target).then_some(()))
        .await;
    target
}

/// Returns the segment files of a directory.
fn segments(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let is_segment = |name: &str| name.len() == 24 && name.bytes().all(|b| b.is_ascii_hexdigit());
    std::fs::read_dir(dir)
        .unwrap()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .filter(|(name, _)| is_segment(name))
        .map(|(name, path)| (name, std::fs::read(path).unwrap()))
        .collect()
}

/// Compares the WAL of timeline 1 before `end` in two directories; returns the number of segments in both.
pub(crate) fn same_before(ours: &Path, theirs: &Path, end: u64) -> usize {
    let (ours, theirs) = (segments(ours), segments(theirs));
    let mut compared = 0;
    for (name, bytes) in &ours {
        let number =
            u64::from_str_radix(&name[8..16], 16).unwrap() << 8 | u64::from_str_radix(&name[16..], 16).unwrap();
        let length = end.saturating_sub(number * SEGMENT).min(SEGMENT) as usize;
        // Both create segments ahead of time.
        let Some(other) = theirs.get(name).filter(|_| length > 0) else { continue };
        assert!(bytes[..length] == other[..length], "{name} differs");
        compared += 1;
    }
    compared
}

fn tool(name: &str, arguments: &[&str]) -> Output {
    let mut tool = Command::new(pg_bin().join(name));
    tool.args(arguments).output().unwrap_or_else(|e| panic!("run {name}: {e}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn holds_the_primarys_bytes_and_feeds_everyone_from_them() {
    let (cluster, relay) = primary_and_relay().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let standbys = ["s1", "s2"].map(|name| cluster.standby(name, relay.port()));
    for standby in &standbys {
        standby.start().await;
    }
    // A relay behind the relay, and a tool that writes segments.
    let mut second = Relay::of(&cluster, relay.port());
    second.start().await;
    let behind = cluster.standby("s3", second.port());
    behind.start().await;
    let archive = new_dir("receivewal");
    let receivewal = |create: &[&str]| {
        let mut receive = command(&pg_bin().join("pg_receivewal"), RunAs::Tests, "KILL");
        receive.args(["-h", "127.0.0.1", "-p", &relay.port().to_string(), "-U", "postgres", "-w", "-D"]).arg(&archive);
        receive.args(["-S", "archive"]).args(create);
        receive
    };
    let made = receivewal(&["--create-slot"]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let receiving = Process::start("pg_receivewal", receivewal(&["--synchronous"]), &cluster.dir().join("receive.log"));

    write(primary, 36).await;
    let end = wait_durable(&relay, primary).await;
    for standby in standbys.iter().chain([&behind]) {
        standby.wait_caught_up(primary).await;
        assert_eq!(standby.query("SELECT count(*) FROM load").await, (36 * 900).to_string());
    }
    wait_durable(&second, primary).await;
    let theirs = primary.dir().join("pg_wal");
    assert!(same_before(relay.dir(), &theirs, end) >= 3);
    assert!(same_before(second.dir(), &theirs, end) >= 2);
    // Complete segments are under their own names there.
    let whole = end / SEGMENT * SEGMENT;
    wait_until("pg_receivewal to have it", SOON, cluster.dir(), async || (segments(&archive).len() >= 2).then_some(()))
        .await;
    assert!(same_before(&archive, &theirs, whole) >= 2);
    let first = segments(relay.dir()).into_keys().next().unwrap();
    let dump = tool("pg_waldump", &["-p", relay.dir().to_str().unwrap(), "-q", &first, &first]);
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));

    // The relay's metrics.
    let metrics = relay.metrics().await;
    assert_eq!(metrics.sum("kingpost_relay_streaming", &[]), 1.0);
    assert_eq!(metrics.sum("kingpost_relay_alarm", &[]), 0.0);
    assert!(metrics.sum("kingpost_relay_downstream_lag_bytes", &[("downstream", "s1")]) < SEGMENT as f64);
    assert!(metrics.sum("kingpost_relay_flush_seconds_count", &[]) > 0.0);
    assert_eq!(relay.http("/healthz").await.unwrap().0, 200);

    // The primary is lost: a standby with old data gets everything from the relay alone.
    drop(receiving);
    primary.kill9().await;
    let cold = cluster.standby("cold", relay.port());
    cold.start().await;
    cold.wait_value("SELECT count(*) FROM load", &(36 * 900).to_string()).await;
    assert_eq!(relay.http("/healthz").await.unwrap().0, 200);
    assert_eq!(relay.http("/readyz").await.unwrap().0, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_at_any_time_also_while_the_primary_is_gone() {
    let (cluster, mut relay) = primary_and_relay().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let standby = cluster.standby("s1", relay.port());
    standby.start().await;
    for round in 0..3 {
        write(primary, 3).await;
        if round == 1 {
            relay.stop().await
        } else {
            relay.kill9().await
        }
        write(primary, 3).await;
        relay.start().await;
    }
    standby.wait_caught_up(primary).await;
    let end = wait_durable(&relay, primary).await;
    assert!(same_before(relay.dir(), &primary.dir().join("pg_wal"), end) >= 1);

    primary.kill9().await;
    relay.kill9().await;
    relay.launch();
    let cold = cluster.standby("cold", relay.port());
    cold.start().await;
    let rows = (6 * 3 * 900).to_string();
    cold.wait_value("SELECT count(*) FROM load", &rows).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_downstream_that_does_not_read_costs_the_others_nothing() {
    let (cluster, relay) = primary_and_relay().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let standby = cluster.standby("s1", relay.port());
    standby.start().await;
    let before = relay.process().rss_kib();
    let mut stuck = Vec::new();
    for _ in 0..5 {
        let mut socket = replication(relay.port(), "postgres").await;
        let asked = format!("START_REPLICATION 0/{:X} TIMELINE 1", SEGMENT);
        query(&mut socket, &asked).await;
        stuck.push(socket);
    }
    write(primary, 40).await;
    standby.wait_caught_up(primary).await;
    wait_durable(&relay, primary).await;
    let grown = relay.process().rss_kib().saturating_sub(before);
    assert!(grown < 20 << 10, "the relay has grown by {grown} KiB");
    // In the end they are disconnected: they never answer.
    let gone = async || (relay.metrics().await.sum("kingpost_relay_connections", &[]) <= 1.0).then_some(());
    wait_until("the silent ones to be dropped", SOON, cluster.dir(), gone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_recovers_from_its_files() {
    let (cluster, relay) = primary_and_relay().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    write(primary, 20).await;
    primary.execute("SELECT pg_create_restore_point('here')").await;
    primary.execute("DROP TABLE load").await;
    primary.execute("SELECT pg_switch_wal()").await;
    primary.execute("CREATE TABLE later ()").await;
    wait_durable(&relay, primary).await;
    primary.kill9().await;

    let fetch = format!("{} relay fetch --dir {} %f %p", kingpost_bin().display(), relay.dir().display());
    let restored = cluster.copy("restored", ("restore_command", &fetch));
    std::fs::write(restored.dir().join("recovery.signal"), "").unwrap();
    let config = restored.dir().join("dynamic.conf");
    std::fs::write(config, "recovery_target_name = 'here'\nrecovery_target_action = 'promote'\n").unwrap();
    restored.start().await;
    restored.wait_value("SELECT pg_is_in_recovery()", "f").await;
    assert_eq!(restored.query("SELECT count(*) FROM load").await, (20 * 900).to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_with_reasons() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let user = |name: &str, password: &str| {
        let mut user = toml::Table::new();
        user.insert("name".into(), name.into());
        user.insert("password".into(), password.into());
        toml::Value::Table(user)
    };
    let mut relay = Relay::of(&cluster, cluster.primary().port())
        .set("relay.auth", "scram-sha-256")
        .set("relay.users", vec![user("rep", "correct horse")])
        .set("relay.login_timeout", "1s");
    relay.start().await;
    let port = relay.port().to_string();

    let psql = |password: &str, connection: &str, sql: &str| {
        let mut psql = Command::new(pg_bin().join("psql"));
        psql.env("PGPASSWORD", password).args(["-X", "-A", "-t", "-w", "-c", sql]);
        let output = psql.arg(format!("host=127.0.0.1 port={port} user=rep {connection}")).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (good, text) = psql("correct horse", "dbname=replication replication=true", "IDENTIFY_SYSTEM");
    let system = cluster.primary().query("SELECT system_identifier FROM pg_control_system()").await;
    assert!(good && text.starts_with(&format!("{system}|1|")), "{text}");
    let version = cluster.primary().query("SHOW server_version").await;
    for (password, connection, sql, expected) in [
        ("wrong", "dbname=x replication=true", "IDENTIFY_SYSTEM", "password authentication failed for user \"rep\""),
        ("correct horse", "dbname=app", "SELECT 1", "serves physical replication connections only"),
        (
            "correct horse",
            "dbname=app replication=database",
            "SELECT 1",
            "serves physical replication connections only",
        ),
        ("correct horse", "dbname=x replication=true", "SELECT 1", "cannot execute SQL commands in WAL sender"),
        ("correct horse", "dbname=x replication=true", "SHOW server_version", version.as_str()),
        ("correct horse", "dbname=x replication=true", "SHOW wal_segment_size", "16MB"),
        ("correct horse", "dbname=x replication=true", "SHOW nothing", "unrecognized configuration parameter"),
        ("correct horse", "dbname=x replication=true", "TIMELINE_HISTORY 7", "pg_wal/00000007.history"),
        (
            "correct horse",
            "dbname=x replication=true",
            "START_REPLICATION 0/1000000 TIMELINE 7",
            "requested timeline 7 is not in this server's history",
        ),
        (
            "correct horse",
            "dbname=x replication=true",
            "START_REPLICATION F/0 TIMELINE 1",
            "requested starting point F/0 is ahead of the WAL flush position of this server",
        ),
        (
            "correct horse",
            "dbname=x replication=true",
            "START_REPLICATION SLOT \"none\" 0/1000000",
            "replication slot \"none\" does not exist",
        ),
        (
            "correct horse",
            "dbname=x replication=true",
            "KINGPOST FENCE TERM 9 TIMELINE 9",
            "\"rep\" is no operator of this relay",
        ),
        (
            "correct horse",
            "dbname=x replication=true",
            "CREATE_REPLICATION_SLOT s LOGICAL pgoutput",
            "logical replication",
        ),
    ] {
        let (_, text) = psql(password, connection, sql);
        assert!(text.contains(expected), "{sql}: {text}");
    }
    let mut backup = Command::new(pg_bin().join("pg_basebackup"));
    backup.env("PGPASSWORD", "correct horse").args(["-h", "127.0.0.1", "-p", &port, "-U", "rep", "-w", "-X", "none"]);
    let backup = backup.arg("-D").arg(cluster.dir().join("backup")).output().unwrap();
    let text = String::from_utf8_lossy(&backup.stderr);
    assert!(!backup.status.success() && text.contains("a relay holds write-ahead log"), "{text}");

    // Garbage and empty connections are ended; a correct client is served all the while.
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &[0, 0, 0, 8, 0, 9, 0, 0], b""] {
        let mut socket = TcpStream::connect(("127.0.0.1", relay.port())).await.unwrap();
        socket.write_all(garbage).await.unwrap();
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(SOON, socket.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "a connection that sent {garbage:?} was not closed");
    }
    let (good, _) = psql("correct horse", "dbname=replication replication=true", "IDENTIFY_SYSTEM");
    assert!(good);
    assert!(!relay.log().contains("correct horse"));
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_are_refused_as_a_server_refuses_them() {
    let (cluster, relay) = primary_and_relay().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    for order in [
        "CREATE_REPLICATION_SLOT a PHYSICAL (bogus)",
        "CREATE_REPLICATION_SLOT a PHYSICAL (bogus 'x', RESERVE_WAL)",
        "CREATE_REPLICATION_SLOT a PHYSICAL (\"Bogus\" 1)",
        "CREATE_REPLICATION_SLOT a PHYSICAL (RESERVE_WAL, RESERVE_WAL)",
        "CREATE_REPLICATION_SLOT a PHYSICAL (RESERVE_WAL maybe)",
        "CREATE_REPLICATION_SLOT a PHYSICAL (RESERVE_WAL 2)",
        "CREATE_REPLICATION_SLOT a PHYSICAL (RESERVE_WAL '1')",
        "CREATE_REPLICATION_SLOT a PHYSICAL (SNAPSHOT 'export')",
        "CREATE_REPLICATION_SLOT a PHYSICAL (TWO_PHASE)",
        "CREATE_REPLICATION_SLOT a PHYSICAL ()",
        "CREATE_REPLICATION_SLOT a PHYSICAL bogus",
        "CREATE_REPLICATION_SLOT a PHYSICAL (bogus) more",
        "CREATE_REPLICATION_SLOT a PHYSICAL EXPORT_SNAPSHOT",
        "CREATE_REPLICATION_SLOT a PHYSICAL RESERVE_WAL RESERVE_WAL",
        "CREATE_REPLICATION_SLOT a",
        "CREATE_REPLICATION_SLOT A-b PHYSICAL",
        "CREATE_REPLICATION_SLOT \"A\" PHYSICAL",
        "CREATE_REPLICATION_SLOT \"\" PHYSICAL",
        "READ_REPLICATION_SLOT b x",
        "DROP_REPLICATION_SLOT nosuch",
        "DROP_REPLICATION_SLOT nosuch WAIT",
        "DROP_REPLICATION_SLOT nosuch WAITS",
        "TIMELINE_HISTORY 0",
        "TIMELINE_HISTORY 1",
        "TIMELINE_HISTORY x",
        "START_REPLICATION 0/0 bogus",
        "START_REPLICATION PHYSICAL 0/0 TIMELINE 0",
        "START_REPLICATION PHYSICAL 0/0 (proto_version '1')",
        "START_REPLICATION SLOT \"No\" 0/0",
        "START_REPLICATION x",
        "SHOW",
        "SHOW bogus",
        "SHOW a.b",
        "SHOW \"Bogus Name\"",
        "SHOW wal_segment_size x",
        "IDENTIFY_SYSTEM x",
        "SELECT 1",
    ] {
        let (mut ours, theirs) = (refusal(relay.port(), order).await, refusal(primary.port(), order).await);
        // The relay adds a detail about the error in the text.
        if !theirs.contains_key(&'D') && ours.get(&'M').is_some_and(|text| text == "syntax error") {
            ours.remove(&'D');
        }
        assert_eq!(ours, theirs, "{order}");
    }
    // And these are not.
    let psql = |port: u16, order: &str| {
        let to = format!("host=127.0.0.1 port={port} user=postgres dbname=x replication=true");
        let output = tool("psql", &["-X", "-A", "-t", "-w", "-c", order, &to]);
        assert!(output.status.success(), "{order}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for order in [
        "CREATE_REPLICATION_SLOT b1 PHYSICAL (RESERVE_WAL 'off')",
        "CREATE_REPLICATION_SLOT b2 TEMPORARY PHYSICAL (RESERVE_WAL 0);",
        "SHOW server_version",
        "SHOW server_version_num",
        "SHOW wal_segment_size",
        "SHOW data_directory_mode",
        "SHOW BLOCK_SIZE",
        "SHOW \"wal_block_size\"",
        "SHOW integer_datetimes",
        "SHOW default_transaction_read_only",
        "SHOW wal_sender_timeout",
        "SHOW ssl",
        "READ_REPLICATION_SLOT nosuch",
        "READ_REPLICATION_SLOT b1",
        "DROP_REPLICATION_SLOT b1 WAIT",
    ] {
        assert_eq!(psql(relay.port(), order), psql(primary.port(), order), "{order}");
    }
    // libpq tries the next host if it was to run queries, or needs a primary.
    let hosts =
        format!("host=127.0.0.1,127.0.0.1 port={},{} user=postgres dbname=postgres", relay.port(), primary.port());
    let output = tool("psql", &["-X", "-A", "-t", "-w", "-c", "SHOW cluster_name", &hosts]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), primary.name(), "{output:?}");
    for (attributes, served) in [("any", true), ("standby", true), ("read-only", true), ("primary", false)] {
        let to = format!(
            "host=127.0.0.1 port={} user=postgres dbname=x replication=true target_session_attrs={attributes}",
            relay.port()
        );
        let output = tool("psql", &["-X", "-A", "-t", "-w", "-c", "IDENTIFY_SYSTEM", &to]);
        assert_eq!(output.status.success(), served, "{attributes}: {output:?}");
    }
}

/// Returns the error of a refused order: its fields, without the position in the source that raised it, and with WAL positions made equal.
pub(crate) async fn refusal(port: u16, order: &str) -> BTreeMap<char, String> {
    let mut socket = replication(port, "postgres").await;
    query(&mut socket, order).await;
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let n = tokio::time::timeout(SOON, socket.read(&mut buffer)).await.expect("an answer").unwrap();
        assert!(n > 0, "{order}: no error came");
        seen.extend_from_slice(&buffer[..n]);
        let mut at = 0;
        while let Some(header) = seen.get(at..at + 5) {
            let end = at + 1 + u32::from_be_bytes(header[1..].try_into().unwrap()) as usize;
            match seen.get(at + 5..end) {
                Some(body) if header[0] == b'E' => {
                    let fields = body.split(|byte| *byte == 0).filter(|field| !field.is_empty());
                    let text = |field: &[u8]| (char::from(field[0]), alike(&String::from_utf8_lossy(&field[1..])));
                    return fields.map(text).filter(|(field, _)| "SCMDH".contains(*field)).collect();
                }
                Some(_) => at = end,
                None => break,
            }
        }
    }
}

/// Replaces each WAL position (`X/X`) in a text by the same one.
fn alike(text: &str) -> String {
    let is_position = |word: &str| {
        let hex = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        word.split_once('/').is_some_and(|(high, low)| hex(high) && hex(low.trim_end_matches('.')))
    };
    text.split(' ').map(|word| if is_position(word) { "X/X" } else { word }).collect::<Vec<_>>().join(" ")
}

/// Opens a replication connection without a password, message by message.
async fn replication(port: u16, user: &str) -> TcpStream {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let text = format!("user\0{user}\0database\0replication\0replication\0true\0\0");
    let mut packet = ((8 + text.len()) as u32).to_be_bytes().to_vec();
    packet.extend(196_608_u32.to_be_bytes());
    packet.extend(text.as_bytes());
    socket.write_all(&packet).await.unwrap();
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while !seen.ends_with(b"Z\0\0\0\x05I") {
        let n = socket.read(&mut buffer).await.unwrap();
        assert!(n > 0, "the login was refused: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..n]);
    }
    socket
}

async fn query(socket: &mut TcpStream, text: &str) {
    let mut message = vec![b'Q'];
    message.extend(((5 + text.len()) as u32).to_be_bytes());
    message.extend(text.as_bytes());
    message.push(0);
    socket.write_all(&message).await.unwrap();
}
