//! Garbage, truncated, oversized and slow input: its sender is disconnected, all others are served.

use std::time::Duration;

use kingpost_tests::raw::{Raw, bind, message, parse, query, startup, sync};
use kingpost_tests::{Cluster, DATABASE, Kingpost, ShowLogs, Subject, USER, subject, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{only_kingpost, value};

/// A generator with a fixed seed, so that a failure can be repeated.
struct Noise(u64);

impl Noise {
    fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut next = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 24) as u8
        };
        (0..n).map(|_| next()).collect()
    }
}

async fn proxy() -> (Cluster, Kingpost) {
    let cluster = Cluster::builder().replicas(1).start().await;
    let kingpost = Kingpost::of(&cluster).set("proxy.login_timeout", "2s").set("proxy.pool.size", 4).start().await;
    (cluster, kingpost)
}

async fn serves(cluster: &Cluster, kingpost: &Kingpost) {
    let serves = async { value(&kingpost.connect().await, "SELECT 7").await };
    assert_eq!(within("an honest client", Duration::from_secs(20), cluster.dir(), serves).await, "7");
}

/// Sends bytes on a new connection, ends the sending direction, and reads until the end or for a moment: any answer is right.
async fn throw(port: u16, bytes: &[u8]) {
    let mut raw = Raw::connect(port).await;
    raw.send(bytes).await;
    let _ = raw.stream.shutdown().await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(20), raw.stream.read_to_end(&mut answer)).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_leaves_the_proxy_serving_and_leaks_nothing() {
    if subject() != Subject::Kingpost {
        return;
    }
    let (cluster, kingpost) = proxy().await;
    let _logs = ShowLogs(cluster.dir());
    serves(&cluster, &kingpost).await;
    let base = kingpost.process().fd_count();
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    let login = startup(3 << 16, &[("user", USER), ("database", DATABASE)]);
    for round in 0..150 {
        let garbage = noise.bytes(1 + round * 7);
        throw(kingpost.port(), &garbage).await;
        throw(kingpost.port(), &[login.clone(), garbage.clone()].concat()).await;
        // A valid header, then garbage of the announced length.
        let kind = b"QPBDESHCdcfFpX"[round % 14];
        throw(kingpost.port(), &[login.clone(), message(kind, &garbage), sync()].concat()).await;
    }
    // Every prefix of a valid conversation.
    let whole =
        [login, query("BEGIN"), parse("s", "SELECT $1::text"), bind("", "s", &["x"]), sync(), query("COMMIT")].concat();
    for end in 0..whole.len() {
        throw(kingpost.port(), &whole[..end]).await;
    }
    serves(&cluster, &kingpost).await;
    assert!(kingpost.process().exit_status().is_none());
    // At most one pool connection to each node beyond those of the first client, which may have used only one node.
    let limit = base + 8;
    cluster.wait("descriptors to come back", async || (kingpost.process().fd_count() <= limit).then_some(())).await;
    for node in cluster.nodes() {
        assert!(node.pool_connections().await <= 4, "{} has more connections than the pool", node.name());
    }
}

#[tokio::test]
async fn lengths_that_lie_are_refused() {
    if only_kingpost() {
        return;
    }
    let (cluster, kingpost) = proxy().await;
    let _logs = ShowLogs(cluster.dir());
    serves(&cluster, &kingpost).await;
    let before = kingpost.process().rss_kib();
    for length in [0u32, 1, 3, 4, 7, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff] {
        // As a start-up packet.
        let mut raw = Raw::connect(kingpost.port()).await;
        raw.send(&[&length.to_be_bytes()[..], &[0, 3, 0, 0]].concat()).await;
        let rest = within("the end of a bad start", Duration::from_secs(20), cluster.dir(), raw.rest()).await;
        assert!(rest.iter().all(|message| message.kind == b'E'), "{length:x}: {rest:?}");
        // As a message's, with a length too small to count itself.
        if length < 4 {
            let mut raw = Raw::login(kingpost.port()).await;
            raw.send(&[&b"Q"[..], &length.to_be_bytes(), b"SELECT 1\0"].concat()).await;
            let rest = within("the end of a bad message", Duration::from_secs(20), cluster.dir(), raw.rest()).await;
            assert_eq!(rest.last().map(|message| message.kind), Some(b'E'), "{length:x}: {rest:?}");
        }
    }
    // 2 GB announced, little sent: no 2 GB may be allocated.
    let mut open = Vec::new();
    for kind in b"QPBdp" {
        for length in [0x7fff_ffffu32, 0xffff_ffff] {
            let mut raw = Raw::login(kingpost.port()).await;
            raw.send(&[&[*kind][..], &length.to_be_bytes(), &[b'x'; 100_000]].concat()).await;
            open.push(raw);
        }
    }
    serves(&cluster, &kingpost).await;
    let grown = kingpost.process().rss_kib();
    assert!(grown < before + (40 << 10), "memory grew from {before} to {grown} KiB");
    drop(open);
    serves(&cluster, &kingpost).await;
}

#[tokio::test]
async fn unknown_and_misplaced_messages_are_protocol_errors() {
    if only_kingpost() {
        return;
    }
    let (cluster, kingpost) = proxy().await;
    let _logs = ShowLogs(cluster.dir());
    for bytes in [message(b'!', b"x"), message(b'Z', b"I"), message(b'R', &[0; 4]), message(b'\0', &[])] {
        let mut raw = Raw::login(kingpost.port()).await;
        raw.send(&bytes).await;
        let rest = raw.rest().await;
        let error = rest.last().expect("a word before the end");
        assert_eq!((error.kind, error.field(b'C').as_deref()), (b'E', Some("08P01")), "{bytes:?}: {rest:?}");
    }
    // PostgreSQL ignores CopyData outside of COPY.
    let mut raw = Raw::login(kingpost.port()).await;
    raw.send(&[message(b'd', b"x"), message(b'c', b""), query("SELECT 1")].concat()).await;
    assert_eq!(raw.kinds_until(b'Z').await, "TDCZ");
    serves(&cluster, &kingpost).await;
}

#[tokio::test]
async fn a_login_that_never_ends_is_ended() {
    if only_kingpost() {
        return;
    }
    let (cluster, kingpost) = proxy().await;
    let _logs = ShowLogs(cluster.dir());
    let login = startup(3 << 16, &[("user", USER), ("database", DATABASE)]);
    let mut open = Vec::new();
    for end in [0, 3, 7, login.len() - 1] {
        let mut raw = Raw::connect(kingpost.port()).await;
        raw.send(&login[..end]).await;
        open.push(raw);
    }
    serves(&cluster, &kingpost).await;
    // `login_timeout` is 2 s; reads of the harness are bounded.
    for raw in &mut open {
        let rest = raw.rest().await;
        assert!(rest.iter().all(|message| message.kind == b'E'), "{rest:?}");
    }
}

#[tokio::test]
async fn a_client_that_dies_in_the_middle_of_an_answer() {
    let (cluster, kingpost) = proxy().await;
    let _logs = ShowLogs(cluster.dir());
    for _ in 0..20 {
        let mut raw = Raw::login(kingpost.port()).await;
        raw.send(&query("SELECT repeat('x', 1000) FROM generate_series(1, 100000)")).await;
        raw.next().await.unwrap();
        drop(raw);
    }
    serves(&cluster, &kingpost).await;
    // The servers do not work on for clients that are gone.
    let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{USER}' AND state = 'active'");
    for node in cluster.nodes() {
        node.wait_value(&sql, "0").await;
        assert!(subject() != Subject::Kingpost || node.pool_connections().await <= 4);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_descriptors_those_inside_are_served_and_the_rest_later() {
    if only_kingpost() {
        return;
    }
    let (cluster, kingpost) = proxy().await;
    let _logs = ShowLogs(cluster.dir());
    let inside = kingpost.connect().await;
    inside.batch_execute("CREATE TABLE inside (n int)").await.unwrap();
    assert_eq!(value(&inside, "SELECT count(*) FROM inside").await, "0");
    let process = kingpost.process();
    let base = process.fd_count();
    let limit = base + 10;
    process.limit_descriptors(limit);
    let login = startup(3 << 16, &[("user", USER), ("database", DATABASE)]);
    let mut crowd = Vec::new();
    for _ in 0..60 {
        let mut raw = Raw::connect(kingpost.port()).await;
        raw.send(&login).await;
        crowd.push(raw);
    }
    cluster.wait("all descriptors to be in use", async || (process.fd_count() >= limit - 1).then_some(())).await;
    // Connected clients keep their connections, for reads, for writes and in a transaction.
    for n in 0..50 {
        let work = format!("BEGIN; INSERT INTO inside VALUES ({n}); COMMIT");
        within("a write", Duration::from_secs(20), cluster.dir(), inside.batch_execute(&work)).await.unwrap();
        let count =
            within("a read", Duration::from_secs(20), cluster.dir(), value(&inside, "SELECT count(*) FROM inside"));
        assert_eq!(count.await, (n + 1).to_string());
    }
    assert!(process.exit_status().is_none());
    // It was logged, and not once for each.
    let said = std::fs::read_to_string(process.log()).unwrap().matches("cannot accept").count();
    assert!((1..5).contains(&said), "said {said} times");
    drop(crowd);
    serves(&cluster, &kingpost).await;
    cluster.wait("descriptors to come back", async || (process.fd_count() <= base + 8).then_some(())).await;
}
