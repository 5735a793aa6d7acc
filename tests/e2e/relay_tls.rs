//! The relay with TLS on both sides.

use std::process::Command;

use kingpost_tests::certs::Authority;
use kingpost_tests::{Cluster, Relay, ShowLogs, pg_bin};

/// Hosts of the certificates.
const HERE: &[&str] = &["localhost", "127.0.0.1"];

fn text(path: &std::path::Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn wal_crosses_the_network_encrypted() {
    let authority = Authority::new();
    let cluster = Cluster::builder().tls(&authority.issue_server("server", HERE)).start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let pair = authority.issue_server("relay", HERE);
    let ca = text(&authority.ca_file());
    let mut rep = toml::Table::new();
    rep.insert("name".into(), "rep".into());
    rep.insert("password".into(), "correct horse".into());
    // From a server over TLS, for downstreams with a password over TLS.
    let mut first = Relay::of(&cluster, primary.port())
        .set("relay.upstream.tls.mode", "verify-full")
        .set("relay.upstream.tls.ca_file", ca.clone())
        .set("relay.auth", "scram-sha-256")
        .set("relay.users", vec![toml::Value::Table(rep)])
        .set("relay.tls.mode", "require")
        .set("relay.tls.cert_file", text(&pair.cert))
        .set("relay.tls.key_file", text(&pair.key));
    first.start().await;
    primary
        .wait_value("SELECT ssl FROM pg_stat_ssl JOIN pg_stat_replication USING (pid) WHERE state = 'streaming'", "t")
        .await;
    // A second relay behind the first, with a password bound to the certificate; a standby behind it.
    let mut second = Relay::of(&cluster, first.port())
        .set("relay.upstream.tls.mode", "verify-full")
        .set("relay.upstream.tls.ca_file", ca.clone())
        .set("relay.upstream.user", "rep")
        .set("relay.upstream.password", "correct horse")
        .set("relay.upstream.slot", "");
    // Without a slot nothing shows that it has not run before.
    second.is_new(true);
    second.start().await;
    let standby = cluster.standby("s1", second.port());
    standby.start().await;
    primary
        .execute("CREATE TABLE t AS SELECT n, repeat(md5(n::text), 30) AS text FROM generate_series(1, 40000) n")
        .await;
    standby.wait_caught_up(primary).await;
    let sum = "SELECT md5(string_agg(text, '' ORDER BY n)) FROM t";
    assert_eq!(standby.query(sum).await, primary.query(sum).await);
    assert!(first.metrics().await.sum("kingpost_relay_sent_bytes_total", &[]) > 30e6);

    let psql = |options: &str| {
        let conninfo = format!("host=127.0.0.1 port={} user=rep dbname=x replication=true {options}", first.port());
        let mut psql = Command::new(pg_bin().join("psql"));
        psql.env("PGPASSWORD", "correct horse").args(["-X", "-A", "-t", "-w", "-c", "IDENTIFY_SYSTEM", &conninfo]);
        let output = psql.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    for (options, good, expected) in [
        (format!("sslmode=verify-full sslrootcert={ca} channel_binding=require"), true, "|1|"),
        ("sslmode=disable".into(), false, "connection requires TLS"),
    ] {
        let (succeeded, text) = psql(&options);
        assert!(succeeded == good && text.contains(expected), "{options}: {text}");
    }

    // A relay that trusts another authority receives nothing, and reports the reason.
    let mut wary = Relay::of(&cluster, primary.port())
        .set("relay.upstream.tls.mode", "verify-ca")
        .set("relay.upstream.tls.ca_file", text(&Authority::new().ca_file()));
    wary.launch();
    cluster
        .wait("the reason", async || {
            wary.http("/readyz").await.filter(|(_, text)| text.contains("is not of a CA in ca_file"))
        })
        .await;
}
