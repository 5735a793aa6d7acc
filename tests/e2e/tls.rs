//! TLS with clients and with servers, certificates, and MD5.

use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, TryStreamExt, pin_mut};
use kingpost_tests::certs::{Authority, Pair, replace};
use kingpost_tests::raw::{Raw, query, startup};
use kingpost_tests::{
    Cluster, DATABASE, Kingpost, KingpostBuilder, SCRAM_PASSWORD, SCRAM_USER, SOON, ShowLogs, USER, pg_bin, sqlstate,
    unique, user, within,
};
use tls::postgres::Secure;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio_postgres::config::{ChannelBinding, SslMode};
use tokio_postgres::{Client, Config, NoTls};

use crate::common::{name, only_kingpost, value};

const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
/// Hosts of the certificates of the tests' servers and proxies.
const HERE: &[&str] = &["localhost", "127.0.0.1"];

fn text(path: &std::path::Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Makes a proxy whose clients can use TLS.
fn proxy<'a>(cluster: &'a Cluster, pair: &Pair, mode: &str) -> KingpostBuilder<'a> {
    Kingpost::of(cluster)
        .set("proxy.tls.mode", mode)
        .set("proxy.tls.cert_file", text(&pair.cert))
        .set("proxy.tls.key_file", text(&pair.key))
}

fn config(kingpost: &Kingpost) -> Config {
    let mut config = kingpost.endpoint().config();
    config.ssl_mode(SslMode::Require);
    config
}

async fn connect(config: &Config, tls: &Secure) -> Result<Client, tokio_postgres::Error> {
    let connecting = tokio::time::timeout(SOON, config.connect(tls.clone())).await.expect("an answer to a login");
    let (client, connection) = connecting?;
    tokio::spawn(connection);
    Ok(client)
}

/// Returns standard output and error of psql, and true if it succeeded.
async fn psql(kingpost: &Kingpost, options: &str, sql: &str) -> (bool, String) {
    let conninfo = format!("host=localhost port={} dbname={DATABASE} user={USER} {options}", kingpost.port());
    let mut psql = Command::new(pg_bin().join("psql"));
    psql.args(["-X", "-A", "-t", "-d", &conninfo, "-c", sql]).stdin(Stdio::null()).kill_on_drop(true);
    psql.env("HOME", kingpost.config_path().parent().unwrap()).env("LC_ALL", "C.UTF-8");
    let output = within("psql", SOON, &kingpost.endpoint().logs, psql.output()).await.unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// Reads bytes until the peer closes, in any way.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = tokio::time::timeout(SOON, stream.read_to_end(&mut bytes)).await.expect("the peer closes");
    bytes
}

// === Clients ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_at_work_over_tls() {
    if only_kingpost() {
        return;
    }
    let authority = Authority::new();
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = proxy(&cluster, &authority.issue("proxy", HERE), "require").set("proxy.pool.size", 3).start().await;
    let tls = authority.client(None);
    let client = connect(&config(&kingpost), &tls).await.unwrap();

    // Simple and prepared statements, many of them, over few servers.
    let table = name("secret");
    client.batch_execute(&format!("CREATE TABLE {table} (n int PRIMARY KEY, t text)")).await.unwrap();
    let insert = client.prepare(&format!("INSERT INTO {table} VALUES ($1, $2)")).await.unwrap();
    for n in 0..100i32 {
        assert_eq!(client.execute(&insert, &[&n, &"x".repeat(n as usize)]).await.unwrap(), 1);
    }
    assert_eq!(value(&client, &format!("SELECT sum(length(t)) FROM {table}")).await, "4950");

    // COPY in with messages of any size, and out.
    let sink = client.copy_in(&format!("COPY {table} FROM STDIN")).await.unwrap();
    pin_mut!(sink);
    let row = |n: i32| format!("{n}\t{}\n", "y".repeat(1000));
    for n in 100..10_100 {
        sink.send(Bytes::from(row(n))).await.unwrap();
    }
    assert_eq!(sink.finish().await.unwrap(), 10_000);
    let out =
        client.copy_out(&format!("COPY (SELECT * FROM {table} WHERE n >= 100 ORDER BY n) TO STDOUT")).await.unwrap();
    let copied = out.try_fold(Vec::new(), async |mut all, chunk| {
        all.extend_from_slice(&chunk);
        Ok(all)
    });
    let expected: String = (100..10_100).map(row).collect();
    assert!(copied.await.unwrap() == expected.as_bytes(), "COPY gives what it took");

    // A result and a statement longer than any buffer.
    let long = "z".repeat(3 << 20);
    assert!(value(&client, &format!("SELECT '{long}'")).await == long);
    assert_eq!(value(&client, &format!("SELECT length('{long}')")).await, (3 << 20).to_string());

    // An error leaves the session intact.
    assert_eq!(sqlstate(&client.simple_query("SELECT 1/0").await.unwrap_err()), "22012");
    assert_eq!(value(&client, "SELECT 7").await, "7");

    // Many at once.
    let others = futures_util::future::join_all((0..20).map(|_| async {
        let client = connect(&config(&kingpost), &tls).await.unwrap();
        for _ in 0..10 {
            assert_eq!(value(&client, "SELECT 7").await, "7");
        }
    }));
    others.await;
    let metrics = kingpost.metrics().await;
    assert!(metrics.sum("kingpost_clients_secured_total", &[]) >= 21.0);
    assert_eq!(metrics.sum("kingpost_tls_failures_total", &[]), 0.0);
}

#[tokio::test]
async fn psql_verifies_the_proxy() {
    if only_kingpost() {
        return;
    }
    let (authority, other) = (Authority::new(), Authority::new());
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = proxy(&cluster, &authority.issue("proxy", &["localhost"]), "require").start().await;
    let (right, wrong) = (text(&authority.ca_file()), text(&other.ca_file()));
    let (good, said) = psql(&kingpost, &format!("sslmode=verify-full sslrootcert={right}"), "\\conninfo").await;
    assert!(good && said.contains("TLSv1.3"), "{said}");
    let old = format!("sslmode=verify-full sslrootcert={right} ssl_max_protocol_version=TLSv1.2");
    let (good, said) = psql(&kingpost, &old, "\\conninfo").await;
    assert!(good && said.contains("TLSv1.2"), "{said}");
    let (good, said) = psql(&kingpost, &format!("sslmode=verify-ca sslrootcert={wrong}"), "SELECT 7").await;
    assert!(!good && said.contains("certificate verify failed"), "{said}");
    // Without TLS: refused, with advice.
    let (good, said) = psql(&kingpost, "sslmode=disable", "SELECT 7").await;
    assert!(!good && said.contains("connect with sslmode=require"), "{said}");
    // With both allowed.
    let kingpost = proxy(&cluster, &authority.issue("proxy", HERE), "allow").start().await;
    for mode in ["disable", "allow", "prefer", "require"] {
        let (good, said) = psql(&kingpost, &format!("sslmode={mode}"), "SELECT 7").await;
        assert!(good && said.trim() == "7", "{mode}: {said}");
    }
    // Without TLS, a client that insists on it gives up.
    let kingpost = Kingpost::of(&cluster).start().await;
    let (good, said) = psql(&kingpost, "sslmode=require", "SELECT 7").await;
    assert!(!good && said.contains("server does not support SSL"), "{said}");
}

#[tokio::test]
async fn cancel_with_and_without_tls() {
    if only_kingpost() {
        return;
    }
    let authority = Authority::new();
    let pair = authority.issue_server("server", HERE);
    let cluster = Cluster::builder().tls(&pair).start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = proxy(&cluster, &authority.issue("proxy", HERE), "require")
        .set("cluster.tls.mode", "verify-full")
        .set("cluster.tls.ca_file", text(&authority.ca_file()))
        .start()
        .await;
    let tls = authority.client(None);
    // The proxy requires it; the token of a connection that only prefers it can be used either way.
    let mut preferring = config(&kingpost);
    preferring.ssl_mode(SslMode::Prefer);
    let client = connect(&preferring, &tls).await.unwrap();
    for secured in [true, false] {
        let key = unique();
        let holder = cluster.primary().admin().await;
        holder.batch_execute(&format!("SELECT pg_advisory_lock({key})")).await.unwrap();
        let sql = format!("SELECT pg_advisory_xact_lock({key})");
        let waiting = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{key}%' AND pid <> pg_backend_pid()"
        );
        let cancel = async {
            cluster.primary().wait_value(&waiting, "1").await;
            let token = client.cancel_token();
            if secured {
                token.cancel_query(tls.clone()).await.unwrap();
            } else {
                // As libpq before 17 does it.
                token.cancel_query(NoTls).await.unwrap();
            }
        };
        let both = futures_util::future::join(client.simple_query(&sql), cancel);
        let (outcome, ()) = within("the cancelled statement", SOON, cluster.dir(), both).await;
        assert_eq!(sqlstate(&outcome.unwrap_err()), "57014", "secured: {secured}");
    }
}

#[tokio::test]
async fn tls_at_once() {
    if only_kingpost() {
        return;
    }
    let authority = Authority::new();
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = proxy(&cluster, &authority.issue("proxy", HERE), "require").start().await;
    // The tests' connector offers "postgresql" in ALPN.
    let stream = TcpStream::connect(("127.0.0.1", kingpost.port())).await.unwrap();
    let mut stream = authority.client(None).named("localhost").begin(stream).await.unwrap();
    assert_eq!(stream.connection().alpn_protocol(), Some(&b"postgresql"[..]));
    let login = startup(3 << 16, &[("user", USER), ("database", DATABASE)]);
    // In one piece with later messages: nothing tells that a client waits.
    stream.write_all(&[login, query("SELECT 'through'"), b"X\0\0\0\x04".to_vec()].concat()).await.unwrap();
    let mut bytes = Vec::new();
    // `read_to_end` fails if the end comes without close_notify.
    tokio::time::timeout(SOON, stream.read_to_end(&mut bytes)).await.expect("the end").expect("close_notify");
    assert!(bytes.windows(7).any(|window| window == b"through"), "{}", String::from_utf8_lossy(&bytes));
    // A proxy without TLS.
    let bare = Kingpost::of(&cluster).start().await;
    let stream = TcpStream::connect(("127.0.0.1", bare.port())).await.unwrap();
    assert!(authority.client(None).named("localhost").begin(stream).await.is_err());
}

#[tokio::test]
async fn clear_text_before_the_handshake_is_not_taken() {
    if only_kingpost() {
        return;
    }
    let authority = Authority::new();
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = proxy(&cluster, &authority.issue("proxy", HERE), "allow").start().await;
    let login = startup(3 << 16, &[("user", USER), ("database", DATABASE)]);
    // Together with the request: refused, with a message.
    let mut raw = Raw::connect(kingpost.port()).await;
    raw.send(&[&SSL_REQUEST[..], &login].concat()).await;
    let said = rest(&mut raw.stream).await;
    let said = String::from_utf8_lossy(&said);
    assert!(said.starts_with('E') && said.contains("received unencrypted data after SSL request"), "{said:?}");
    // After the answer: it is not TLS, and there is no login.
    let mut raw = Raw::connect(kingpost.port()).await;
    raw.send(&SSL_REQUEST).await;
    assert_eq!(raw.bytes(1).await.unwrap(), b"S");
    raw.send(&login).await;
    let said = rest(&mut raw.stream).await;
    // At most a TLS alert.
    assert!(said.is_empty() || said[0] == 0x15, "{said:?}");
    // A second request inside of TLS, of either kind.
    for code in [0x2f, 0x30] {
        let mut stream = TcpStream::connect(("127.0.0.1", kingpost.port())).await.unwrap();
        stream.write_all(&SSL_REQUEST).await.unwrap();
        let mut answer = [0];
        stream.read_exact(&mut answer).await.unwrap();
        let mut stream = authority.client(None).named("localhost").begin(stream).await.unwrap();
        let mut again = SSL_REQUEST;
        again[7] = code;
        stream.write_all(&again).await.unwrap();
        let mut said = Vec::new();
        let _ = tokio::time::timeout(SOON, stream.read_to_end(&mut said)).await.expect("the end");
        assert!(String::from_utf8_lossy(&said).contains("0A000"), "{said:?}");
    }
    assert_eq!(value(&kingpost.connect().await, "SELECT 7").await, "7");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_that_never_end() {
    if only_kingpost() {
        return;
    }
    let authority = Authority::new();
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost =
        proxy(&cluster, &authority.issue("proxy", HERE), "allow").set("proxy.login_timeout", "2s").start().await;
    assert_eq!(value(&kingpost.connect().await, "SELECT 7").await, "7");
    let (descriptors, before) = (kingpost.process().fd_count(), kingpost.process().rss_kib());
    let mut open = Vec::new();
    for i in 0..40usize {
        let mut raw = Raw::connect(kingpost.port()).await;
        if i % 2 == 0 {
            raw.send(&SSL_REQUEST).await;
            assert_eq!(raw.bytes(1).await.unwrap(), b"S");
        }
        // The beginning of a record of 16 kB, and no more of it, or a byte now and then.
        raw.send(&[0x16, 3, 1, 0x40, 0]).await;
        raw.send(&vec![1; i * 300]).await;
        open.push(raw);
    }
    let mut slow = Raw::connect(kingpost.port()).await;
    let hello = async {
        for byte in [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3].into_iter().cycle() {
            if slow.stream.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within("a byte at a time to be cut off", SOON, cluster.dir(), hello).await;
    for raw in &mut open {
        rest(&mut raw.stream).await;
    }
    // Garbage of every sort, whole and half-closed.
    for i in 0..60usize {
        let mut raw = Raw::connect(kingpost.port()).await;
        raw.send(&SSL_REQUEST).await;
        assert_eq!(raw.bytes(1).await.unwrap(), b"S");
        let noise: Vec<u8> = (0..i * 700).map(|n| (n * 31 + i * 7 + (n >> 5)) as u8).collect();
        raw.send(&[&[0x16, 3, (i % 5) as u8][..], &noise].concat()).await;
        let _ = raw.stream.shutdown().await;
        let said = rest(&mut raw.stream).await;
        assert!(said.is_empty() || said[0] == 0x15, "nothing but an alert: {said:?}");
    }
    assert_eq!(value(&kingpost.connect().await, "SELECT 7").await, "7");
    cluster
        .wait("descriptors to come back", async || (kingpost.process().fd_count() <= descriptors + 4).then_some(()))
        .await;
    let grown = kingpost.process().rss_kib();
    assert!(grown < before + (20 << 10), "memory grew from {before} to {grown} KiB");
}

// === Identity ===

#[tokio::test]
async fn users_by_certificate() {
    if only_kingpost() {
        return;
    }
    let (authority, other) = (Authority::new(), Authority::new());
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let by_certificate = |name: &str| {
        let mut table = toml::Table::new();
        table.insert("name".into(), name.into());
        table.insert("auth".into(), "cert".into());
        table
    };
    let kingpost = proxy(&cluster, &authority.issue("proxy", HERE), "allow")
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.tls.ca_file", text(&authority.ca_file()))
        .set("proxy.tls.client_cert", "optional")
        .add("proxy.users", by_certificate(USER))
        .add("proxy.users", user(SCRAM_USER, SCRAM_PASSWORD))
        .start()
        .await;
    let (alice, bob) = (authority.issue(USER, &[]), authority.issue("bob", &[]));
    let client = connect(&config(&kingpost), &authority.client(Some(&alice))).await.unwrap();
    assert_eq!(value(&client, "SELECT current_user").await, USER);
    // Another user's certificate, none, and none without TLS.
    let refusal = async |shows: Option<&Pair>| {
        let error = connect(&config(&kingpost), &authority.client(shows)).await.map(|_| ()).unwrap_err();
        (sqlstate(&error).to_owned(), error.as_db_error().map(|e| e.message().to_owned()).unwrap_or_default())
    };
    let (code, said) = refusal(Some(&bob)).await;
    assert!(code == "28000" && said.contains("\"bob\"'s (CN), not user \"alice\"'s"), "{code} {said}");
    let (code, said) = refusal(None).await;
    assert!(code == "28000" && said.contains("showed none"), "{code} {said}");
    let error = kingpost.endpoint().try_connect(&kingpost.endpoint().config()).await.map(|_| ()).unwrap_err();
    assert_eq!(sqlstate(&error), "28000");
    // One of another authority does not reach the login.
    let forged = other.issue(USER, &[]);
    let (code, _) = refusal(Some(&forged)).await;
    assert_eq!(code, "");
    cluster
        .wait("the log to say why", async || {
            let log = std::fs::read_to_string(kingpost.process().log()).unwrap();
            log.contains("the peer's certificate is not of a CA in ca_file").then_some(())
        })
        .await;
    // A user of the same proxy with a password needs no certificate, and may show any.
    for shows in [None, Some(&bob)] {
        let mut with_password = config(&kingpost);
        with_password.user(SCRAM_USER).password(SCRAM_PASSWORD);
        let client = connect(&with_password, &authority.client(shows)).await.unwrap();
        assert_eq!(value(&client, "SELECT current_user").await, SCRAM_USER);
    }
    // verify-full: a client over TLS must be the user of its certificate.
    kingpost.reload("proxy.tls.client_cert", "verify-full");
    cluster
        .wait("the reload", async || {
            let mut with_password = config(&kingpost);
            with_password.user(SCRAM_USER).password(SCRAM_PASSWORD);
            let outcome = connect(&with_password, &authority.client(Some(&bob))).await;
            outcome.err().filter(|error| sqlstate(error) == "28000").map(drop)
        })
        .await;
    assert!(connect(&config(&kingpost), &authority.client(Some(&alice))).await.is_ok());
}

#[tokio::test]
async fn a_certificate_lets_in_no_role_that_the_lookup_does_not_give() {
    if only_kingpost() {
        return;
    }
    let authority = Authority::new();
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    cluster.primary().execute("CREATE ROLE carla LOGIN").await;
    let kingpost = proxy(&cluster, &authority.issue("proxy", HERE), "require")
        .set("proxy.auth", "cert")
        .set("proxy.tls.ca_file", text(&authority.ca_file()))
        .set("proxy.tls.client_cert", "verify-ca")
        .set("proxy.auth_query.query", "SELECT rolname, rolpassword FROM pg_authid WHERE rolname=$1 AND rolcanlogin")
        .set("proxy.auth_query.cache", "300ms")
        .set("proxy.auth_query.negative_cache", "100ms")
        .start()
        .await;
    let shows = authority.client(Some(&authority.issue("carla", &[])));
    let mut as_carla = config(&kingpost);
    as_carla.user("carla");
    // Without a password: the certificate is the proof.
    let client = connect(&as_carla, &shows).await.unwrap();
    assert_eq!(value(&client, "SELECT current_user").await, "carla");
    cluster.primary().execute("ALTER ROLE carla NOLOGIN").await;
    // The server connection that is open would serve the role.
    cluster
        .wait("the client to be closed", async || client.simple_query("SELECT 1").await.is_err().then_some(()))
        .await;
    let error = connect(&as_carla, &shows).await.map(|_| ()).unwrap_err();
    assert_eq!(sqlstate(&error), "28000", "{error:?}");
    cluster.primary().execute("ALTER ROLE carla LOGIN").await;
    cluster.wait("the role to be let in again", async || connect(&as_carla, &shows).await.ok()).await;
}

#[tokio::test]
async fn scram_is_bound_to_the_certificate() {
    if only_kingpost() {
        return;
    }
    let authority = Authority::new();
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = proxy(&cluster, &authority.issue("proxy", HERE), "allow")
        .set("proxy.auth", "scram-sha-256")
        .add("proxy.users", user(SCRAM_USER, SCRAM_PASSWORD))
        .start()
        .await;
    for binding in [ChannelBinding::Require, ChannelBinding::Prefer, ChannelBinding::Disable] {
        let mut config = config(&kingpost);
        config.user(SCRAM_USER).password(SCRAM_PASSWORD).channel_binding(binding);
        let client = connect(&config, &authority.client(None)).await.unwrap();
        assert_eq!(value(&client, "SELECT current_user").await, SCRAM_USER, "{binding:?}");
        config.password("wrong");
        let error = connect(&config, &authority.client(None)).await.map(|_| ()).unwrap_err();
        assert_eq!(sqlstate(&error), "28P01", "{binding:?}");
    }
    // libpq's own.
    let options = format!(
        "user={SCRAM_USER} password='{SCRAM_PASSWORD}' sslmode=verify-full sslrootcert={} channel_binding=require",
        text(&authority.ca_file())
    );
    let (good, said) = psql(&kingpost, &options, "SELECT current_user").await;
    assert!(good && said.trim() == SCRAM_USER, "{said}");
}

#[tokio::test]
async fn md5_on_both_sides() {
    if only_kingpost() {
        return;
    }
    let hba = "hostssl all clara 127.0.0.1/32 password\nhostnossl all clara 127.0.0.1/32 password\n\
               host all mona,sam 127.0.0.1/32 md5\nhost all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n";
    let authority = Authority::new();
    let cluster = Cluster::builder().hba(hba).tls(&authority.issue_server("server", HERE)).start().await;
    let _logs = ShowLogs(cluster.dir());
    let made = "SET password_encryption = 'md5'; CREATE ROLE mona LOGIN PASSWORD 'm0na''s'; \
                SET password_encryption = 'scram-sha-256'; CREATE ROLE clara LOGIN PASSWORD 'c1ara''s'";
    cluster.primary().execute(made).await;
    let verifier = cluster.primary().query("SELECT rolpassword FROM pg_authid WHERE rolname = 'mona'").await;
    assert!(verifier.starts_with("md5"));
    let by_verifier = |name: &str, verifier: &str| {
        let mut table = toml::Table::new();
        table.insert("name".into(), name.into());
        table.insert("verifier".into(), verifier.into());
        table
    };
    let log_in = async |kingpost: &Kingpost, name: &str, password: &str| {
        let mut config = kingpost.endpoint().config();
        config.user(name).password(password);
        let client = kingpost.endpoint().try_connect(&config).await?;
        client.simple_query("SELECT 1").await?;
        Ok::<_, tokio_postgres::Error>(())
    };
    for mona in [user("mona", "m0na's"), by_verifier("mona", &verifier)] {
        let kingpost = Kingpost::of(&cluster)
            .set("proxy.auth", "md5")
            .add("proxy.users", mona)
            .add("proxy.users", user(SCRAM_USER, SCRAM_PASSWORD))
            .add("proxy.users", user("clara", "c1ara's"))
            .start()
            .await;
        log_in(&kingpost, "mona", "m0na's").await.unwrap();
        log_in(&kingpost, SCRAM_USER, SCRAM_PASSWORD).await.unwrap();
        for (name, password) in [("mona", "wrong"), ("mona", ""), ("nobody", "m0na's")] {
            let error = log_in(&kingpost, name, password).await.unwrap_err();
            assert_eq!(sqlstate(&error), "28P01", "{name} {password}: {error:?}");
        }
        // A server that asks for the password itself gets it over TLS only.
        let error = log_in(&kingpost, "clara", "c1ara's").await.unwrap_err();
        let said = error.as_db_error().unwrap().message().to_owned();
        assert!(sqlstate(&error) == "28000" && said.contains("only over TLS"), "{said}");
        kingpost.reload("cluster.tls.mode", "require");
        cluster.wait("TLS with servers", async || log_in(&kingpost, "clara", "c1ara's").await.ok()).await;
        log_in(&kingpost, "mona", "m0na's").await.unwrap();
        let log = std::fs::read_to_string(kingpost.process().log()).unwrap();
        for secret in ["m0na's", "c1ara's", SCRAM_PASSWORD, &verifier] {
            assert!(!log.contains(secret), "{secret:?} is in the log:\n{log}");
        }
    }
}

// === Servers ===

/// Rules that require TLS of all but the harness and replication.
const TLS_ONLY: &str = "hostssl all sam 127.0.0.1/32 scram-sha-256\nhostssl all all 127.0.0.1/32 trust\n\
     hostnossl all postgres 127.0.0.1/32 trust\nhostnossl replication all 127.0.0.1/32 trust\n";

/// Creates the user of the probes, whom the rules require to use TLS.
async fn guarded(cluster: &Cluster) {
    cluster.primary().execute("CREATE ROLE watcher LOGIN; GRANT pg_monitor TO watcher").await;
    cluster.wait_caught_up().await;
}

#[tokio::test]
async fn servers_that_insist_on_tls() {
    if only_kingpost() {
        return;
    }
    let authority = Authority::new();
    let pair = authority.issue_server("server", &["127.0.0.1"]);
    let cluster = Cluster::builder().replicas(1).hba(TLS_ONLY).tls(&pair).start().await;
    let _logs = ShowLogs(cluster.dir());
    guarded(&cluster).await;
    let kingpost = Kingpost::of(&cluster)
        .set("cluster.user", "watcher")
        .set("cluster.tls.mode", "verify-full")
        .set("cluster.tls.ca_file", text(&authority.ca_file()))
        .set("proxy.auth", "scram-sha-256")
        .add("proxy.users", user(SCRAM_USER, SCRAM_PASSWORD))
        .add("proxy.users", user(USER, "alice's own"))
        .start()
        .await;
    for (name, password) in [(USER, "alice's own"), (SCRAM_USER, SCRAM_PASSWORD)] {
        let mut config = kingpost.endpoint().config();
        config.user(name).password(password);
        let client = kingpost.endpoint().connect_as(&config).await;
        for route in ["primary", "replica"] {
            let sql = format!(
                "/* kingpost.route={route} */ SELECT ssl::text || ' ' || version FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
            );
            cluster.wait(&format!("{route} to serve"), async || client.simple_query(&sql).await.ok()).await;
            assert_eq!(value(&client, &sql).await, "true TLSv1.3", "{name} on the {route}");
        }
    }
    // Probes and the oracle, too.
    let bare =
        "SELECT count(*) FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE usename = 'watcher' AND NOT ssl";
    assert_eq!(cluster.primary().query(bare).await, "0");

    // Another authority: no new connection, and the log has the reason. Open connections stay until they are closed.
    let other = Authority::new();
    kingpost.reload("cluster.tls.ca_file", text(&other.ca_file()));
    cluster
        .wait("a clear word", async || {
            let log = std::fs::read_to_string(kingpost.process().log()).unwrap();
            log.contains("the peer's certificate is not of a CA in ca_file").then_some(())
        })
        .await;
    kingpost.wait_readyz(503).await;
    kingpost.reload("cluster.tls.ca_file", text(&authority.ca_file()));
    kingpost.wait_readyz(200).await;

    // A name that is not in the certificate. (localhost is 127.0.0.1 all the same.)
    let node = |n: &kingpost_tests::Node| {
        let mut table = toml::Table::new();
        table.insert("name".into(), n.name().into());
        table.insert("address".into(), format!("localhost:{}", n.port()).into());
        toml::Value::Table(table)
    };
    let nodes: Vec<toml::Value> = cluster.nodes().iter().map(node).collect();
    kingpost.reload("cluster.nodes", nodes);
    kingpost.wait_readyz(503).await;
    kingpost.reload("cluster.tls.mode", "verify-ca");
    kingpost.wait_readyz(200).await;
}

#[tokio::test]
async fn servers_without_tls() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    // Preferred: without it, then.
    let kingpost = Kingpost::of(&cluster).set("cluster.tls.mode", "prefer").start().await;
    let client = kingpost.connect().await;
    assert_eq!(value(&client, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").await, "f");
    // Required: refused.
    kingpost.reload("cluster.tls.mode", "require");
    kingpost.wait_readyz(503).await;
}

#[tokio::test]
async fn a_reload_that_changes_tls_replaces_server_connections() {
    if only_kingpost() {
        return;
    }
    let authority = Authority::new();
    let pair = authority.issue_server("server", &["127.0.0.1"]);
    let hba = "host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n";
    let cluster = Cluster::builder().hba(hba).tls(&pair).start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).start().await;
    let ssl = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let (idle, busy) = (kingpost.connect().await, kingpost.connect().await);
    busy.batch_execute("BEGIN; CREATE TABLE kept (n int)").await.unwrap();
    assert_eq!((value(&idle, ssl).await, value(&busy, ssl).await), ("f".into(), "f".into()));
    kingpost.reload("cluster.tls.mode", "require");
    // In a transaction the connection stays until its end; without one the next statement has another.
    cluster.wait("a connection with TLS", async || (value(&idle, ssl).await == "t").then_some(())).await;
    assert_eq!(value(&busy, ssl).await, "f");
    busy.batch_execute("COMMIT").await.unwrap();
    for _ in 0..5 {
        assert_eq!((value(&idle, ssl).await, value(&busy, ssl).await), ("t".into(), "t".into()));
    }
    let bare = "SELECT count(*) FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE application_name = 'kingpost' AND NOT ssl";
    cluster.wait("no connection in clear", async || (cluster.primary().query(bare).await == "0").then_some(())).await;
    // Another reload replaces nothing.
    let pid = value(&idle, "SELECT pg_backend_pid()").await;
    kingpost.reload("proxy.login_timeout", "14s");
    cluster
        .wait("the reload", async || {
            let log = std::fs::read_to_string(kingpost.process().log()).unwrap();
            (log.matches("reloaded").count() >= 2).then_some(())
        })
        .await;
    assert_eq!(cluster.primary().query(&format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}")).await, "1");
}

// === Certificates that change ===

#[tokio::test]
async fn a_renewed_certificate_is_taken_by_a_reload() {
    if only_kingpost() {
        return;
    }
    let (first, second) = (Authority::new(), Authority::new());
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let pair = first.issue("proxy", HERE);
    let kingpost = proxy(&cluster, &pair, "require").start().await;
    let old = connect(&config(&kingpost), &first.client(None)).await.unwrap();
    assert!(connect(&config(&kingpost), &second.client(None)).await.is_err());

    replace(&pair, &second.issue("proxy", HERE));
    kingpost.process().signal(libc::SIGHUP);
    cluster
        .wait("the new certificate", async || connect(&config(&kingpost), &second.client(None)).await.ok().map(drop))
        .await;
    assert!(connect(&config(&kingpost), &first.client(None)).await.is_err());
    assert_eq!(value(&old, "SELECT 7").await, "7", "a connection that was there goes on");

    // Files that do not match: the old ones stay, and the log reports it.
    std::fs::copy(&first.issue("other", HERE).key, &pair.key).unwrap();
    kingpost.process().signal(libc::SIGHUP);
    cluster
        .wait("a word in the log", async || {
            let log = std::fs::read_to_string(kingpost.process().log()).unwrap();
            (log.contains("not reloaded") && log.contains("is not the key of cert_file")).then_some(())
        })
        .await;
    let client = connect(&config(&kingpost), &second.client(None)).await.unwrap();
    assert_eq!(value(&client, "SELECT 7").await, "7");
    let checked = Kingpost::run(&["check", "--config", &text(kingpost.config_path())]);
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(checked.status.code() == Some(3) && said.contains("proxy.tls.key_file: key_file"), "{said}");
}

// === The primary dies ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_with_tls_on_both_sides() {
    if only_kingpost() {
        return;
    }
    let authority = Authority::new();
    let pair = authority.issue_server("server", &["127.0.0.1"]);
    let cluster = Cluster::builder().replicas(1).hba(TLS_ONLY).tls(&pair).start().await;
    let _logs = ShowLogs(cluster.dir());
    guarded(&cluster).await;
    let kingpost = proxy(&cluster, &authority.issue("proxy", HERE), "require")
        .set("cluster.user", "watcher")
        .set("cluster.tls.mode", "verify-full")
        .set("cluster.tls.ca_file", text(&authority.ca_file()))
        .start()
        .await;
    let client = connect(&config(&kingpost), &authority.client(None)).await.unwrap();
    client.batch_execute("CREATE TABLE kept (n int)").await.unwrap();
    cluster.wait_caught_up().await;
    cluster.primary().kill9().await;
    cluster.replica(0).promote().await;
    // The same connection goes on; the statement in flight may have failed, once.
    cluster.wait("writes to go on", async || client.simple_query("INSERT INTO kept VALUES (1)").await.ok()).await;
    assert_eq!(value(&client, "SELECT current_setting('cluster_name')").await, "n1");
}

// === Drivers ===

#[tokio::test]
async fn drivers_at_their_usual_work_over_tls() {
    if only_kingpost() {
        return;
    }
    let authority = Authority::new();
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = proxy(&cluster, &authority.issue("proxy", HERE), "require").set("proxy.pool.size", 5).start().await;
    let url = format!(
        "postgresql://{USER}@localhost:{}/{DATABASE}?sslmode=verify-full&sslrootcert={}",
        kingpost.port(),
        text(&authority.ca_file())
    );
    let target = crate::clients::installed().await;
    // psycopg has its own libpq, 17 or newer: it can begin with TLS at once.
    let python = target.join("venv/bin/python");
    crate::clients::run_at(&python, "python/psycopg_usual.py", &format!("{url}&sslnegotiation=direct"), None, &cluster)
        .await;
    crate::clients::run_at(&python, "python/asyncpg_usual.py", &url, None, &cluster).await;
    crate::clients::run_at("node".as_ref(), "node/pg_usual.mjs", &url, None, &cluster).await;
    let metrics = kingpost.metrics().await;
    assert_eq!(metrics.sum("kingpost_tls_failures_total", &[]), 0.0);
    // No client came without TLS.
    let error = kingpost.endpoint().config().connect(NoTls).await.map(|_| ()).unwrap_err();
    assert_eq!(sqlstate(&error), "28000");
}
