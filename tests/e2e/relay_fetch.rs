//! `kingpost relay fetch --from`: recovery from a relay on another host.

use std::path::Path;
use std::process::Command;

use kingpost_tests::certs::Authority;
use kingpost_tests::{Cluster, Cut, Link, Port, Relay, ShowLogs, kingpost_bin};

use crate::relay::wait_durable;

const SEGMENT: usize = 16 << 20;

fn fetch(arguments: &[&str], name: &str, target: &Path) -> (Option<i32>, String) {
    let mut fetch = Command::new(kingpost_bin());
    let output = fetch.args(["relay", "fetch", name]).arg(target).args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_recovers_from_a_relay_on_another_host() {
    let authority = Authority::new();
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let pair = authority.issue_server("relay", &["127.0.0.1"]);
    let user = toml::toml! {
        name = "rep"
        password = "correct horse"
    };
    let mut relay = Relay::of(&cluster, primary.port())
        .set("relay.auth", "scram-sha-256")
        .set("relay.users", vec![toml::Value::Table(user)])
        .set("relay.tls.mode", "require")
        .set("relay.tls.cert_file", pair.cert.to_str().unwrap())
        .set("relay.tls.key_file", pair.key.to_str().unwrap());
    relay.start().await;
    primary.execute("CREATE TABLE t AS SELECT n, repeat(md5(n::text), 30) FROM generate_series(1, 30000) n").await;
    primary.execute("SELECT pg_create_restore_point('here')").await;
    primary.execute("DROP TABLE t").await;
    primary.execute("SELECT pg_switch_wal()").await;
    primary.execute("CREATE TABLE later ()").await;
    let end = wait_durable(&relay, primary).await;
    primary.kill9().await;

    let scratch = tempfile::tempdir().unwrap();
    let password = scratch.path().join("password");
    std::fs::write(&password, "correct horse\n").unwrap();
    let open_to_the_server = |path: &Path, mode: &str| {
        assert!(Command::new("chmod").arg(mode).arg(path).status().unwrap().success());
    };
    open_to_the_server(scratch.path(), "755");
    open_to_the_server(&password, "644");
    let ca = authority.ca_file();
    // The first relay of the list is gone for good.
    let dead = Port::reserve();
    let (dead, here) = (format!("127.0.0.1:{}", dead.number()), format!("127.0.0.1:{}", relay.port()));
    let (password, ca) = (password.to_str().unwrap(), ca.to_str().unwrap());
    let arguments = ["--user", "rep", "--password-file", password, "--tls", "verify-full", "--ca-file", ca];
    let both = [&["--from", &dead, "--from", &here][..], &arguments].concat();
    let one = [&["--from", &here][..], &arguments].concat();

    // Whole segments are the primary's, byte for byte; the last one is, up to its end.
    let target = scratch.path().join("fetched");
    let last = (end as usize) / SEGMENT;
    for number in 1..=last {
        let name = format!("00000001{:016X}", number);
        assert_eq!(fetch(&both, &name, &target), (Some(0), String::new()), "{name}");
        let (fetched, held) = (std::fs::read(&target).unwrap(), primary.dir().join("pg_wal").join(&name));
        let held = std::fs::read(held).unwrap();
        let whole = if number == last { end as usize % SEGMENT } else { SEGMENT };
        assert_eq!(fetched.len(), SEGMENT);
        assert!(fetched[..whole] == held[..whole], "{name} is not the primary's");
        assert!(fetched[whole..].iter().all(|byte| *byte == 0), "{name} goes on behind the end");
        std::fs::remove_file(&target).unwrap();
    }
    let stranger = Authority::new().ca_file();
    let distrusting = ["--from", &here, "--user", "rep", "--tls", "verify-ca", "--ca-file", stranger.to_str().unwrap()];
    let without_tls = ["--from", &here, "--user", "rep", "--password-file", password];
    let nobody = ["--from", &here, "--user", "nobody", "--password-file", password, "--tls", "require"];
    for (arguments, name, code, expected) in [
        // An ordinary answer: no message.
        (one.as_slice(), "000000010000000000000077", 1, ""),
        (&one, "000000020000000000000001", 1, ""),
        (&one, "00000002.history", 1, ""),
        (&one, "postgresql.conf", 4, "neither a WAL segment nor a timeline history file"),
        // The file may be at the relay that does not answer.
        (&both, "000000010000000000000077", 4, "cannot connect to relay 127.0.0.1:"),
        (&distrusting, "000000010000000000000001", 4, "is not of a CA in ca_file"),
        (&without_tls, "000000010000000000000001", 4, "connection requires TLS"),
        (&nobody, "000000010000000000000001", 4, "password authentication failed"),
    ] {
        let (exit, text) = fetch(arguments, name, &target);
        assert!(exit == Some(code) && text.contains(expected), "{arguments:?} {name}: {exit:?} {text}");
        assert!(!expected.is_empty() || text.is_empty(), "{text}");
        assert!(!text.contains("correct horse"));
    }
    let left = std::fs::read_dir(scratch.path()).unwrap().flatten().map(|entry| entry.file_name()).collect::<Vec<_>>();
    assert_eq!(left, ["password"], "nothing half done is left");

    let command = format!("{} relay fetch %f %p {}", kingpost_bin().display(), both.join(" "));
    let restored = cluster.copy("restored", ("restore_command", &command));
    std::fs::write(restored.dir().join("recovery.signal"), "").unwrap();
    let config = restored.dir().join("dynamic.conf");
    std::fs::write(config, "recovery_target_name = 'here'\nrecovery_target_action = 'promote'\n").unwrap();
    restored.start().await;
    restored.wait_value("SELECT pg_is_in_recovery()", "f").await;
    assert_eq!(restored.query("SELECT count(*) FROM t").await, "30000");

    // A server can be asked as well: for the history of its timeline, and the segment in which the earlier one ended.
    let server = format!("127.0.0.1:{}", restored.port());
    let server = ["--from", server.as_str()];
    assert_eq!(fetch(&server, "00000002.history", &target), (Some(0), String::new()));
    let history = std::fs::read_to_string(&target).unwrap();
    assert_eq!(history, std::fs::read_to_string(restored.dir().join("pg_wal/00000002.history")).unwrap());
    let switch = history.lines().last().unwrap().split('\t').nth(1).unwrap();
    let low = u64::from_str_radix(switch.split_once('/').unwrap().1, 16).unwrap() as usize;
    let name = format!("00000001{:016X}", low / SEGMENT);
    assert_eq!(fetch(&server, &name, &target), (Some(0), String::new()));
    let (fetched, held) = (std::fs::read(&target).unwrap(), std::fs::read(relay.dir().join(&name)).unwrap());
    let whole = low % SEGMENT;
    assert!(fetched.len() == SEGMENT && fetched[..whole] == held[..whole]);
    assert!(fetched[whole..].iter().all(|byte| *byte == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_ahead_of_the_relay_keeps_its_own_segment() {
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let (primary, standby) = (cluster.primary(), cluster.replica(0));
    let link = Cut::to(primary.port());
    let mut relay = Relay::of(&cluster, link.port());
    relay.start().await;
    primary.execute("CREATE TABLE t AS SELECT n FROM generate_series(1, 1000) n").await;
    wait_durable(&relay, primary).await;
    link.set(Link::BlackHole);
    primary.execute("INSERT INTO t SELECT generate_series(1001, 20000)").await;
    standby.wait_caught_up(primary).await;

    // Each time that its stream ends the server asks for the segment that it was receiving.
    let scratch = tempfile::tempdir().unwrap();
    assert!(Command::new("chmod").arg("777").arg(scratch.path()).status().unwrap().success());
    let asked = scratch.path().join("asked");
    let command = format!(
        "echo %f >> {}; exec {} relay fetch %f %p --from 127.0.0.1:{}",
        asked.display(),
        kingpost_bin().display(),
        relay.port()
    );
    standby.execute(&format!("ALTER SYSTEM SET restore_command = '{command}'")).await;
    standby.execute("SELECT pg_reload_conf()").await;
    standby.wait_value("SELECT current_setting('restore_command') <> ''", "t").await;
    primary.kill9().await;
    let times = || {
        let asked = std::fs::read_to_string(&asked).unwrap_or_default();
        asked.lines().filter(|name| *name == "000000010000000000000001").count()
    };
    cluster.wait("the standby to ask the relay", async || (times() > 2).then_some(())).await;

    standby.promote().await;
    assert_eq!(standby.query("SELECT count(*) FROM t").await, "20000");
    standby.execute("INSERT INTO t VALUES (0)").await;
    standby.kill9().await;
    standby.start().await;
    assert_eq!(standby.query("SELECT count(*) FROM t").await, "20001");
}
