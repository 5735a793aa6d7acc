//! Cancel requests: they end the right statement, never another client's.

use futures_util::future::join_all;
use kingpost_tests::raw::{Raw, query, startup};
use kingpost_tests::{DATABASE, Kingpost, SOON, USER, sqlstate, unique, within};
use tokio_postgres::NoTls;

use crate::common::{Shared, only_kingpost, shared, value};

/// Waits until `count` statements with `marker` run on the primary and wait for a lock.
async fn wait_blocked(shared: &Shared, marker: &str, count: usize) {
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{marker}%' AND pid <> pg_backend_pid()"
    );
    shared.cluster.primary().wait_value(&sql, &count.to_string()).await;
}

#[tokio::test]
async fn a_running_statement_is_cancelled() {
    let (shared, _logs) = shared().await;
    let client = shared.kingpost.connect().await;
    for _ in 0..3 {
        let key = unique();
        let holder = shared.cluster.primary().admin().await;
        holder.batch_execute(&format!("SELECT pg_advisory_lock({key})")).await.unwrap();
        let token = client.cancel_token();
        let sql = format!("SELECT pg_advisory_xact_lock({key})");
        let cancel = async {
            wait_blocked(shared, &sql, 1).await;
            token.cancel_query(NoTls).await.unwrap();
        };
        let (outcome, ()) = within(
            "the cancelled statement",
            SOON,
            shared.cluster.dir(),
            futures_util::future::join(client.simple_query(&sql), cancel),
        )
        .await;
        assert_eq!(sqlstate(&outcome.unwrap_err()), "57014");
        assert_eq!(value(&client, "SELECT 7").await, "7");
    }
}

#[tokio::test]
async fn a_cancel_reaches_only_its_own_statement() {
    let (shared, _logs) = shared().await;
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", 6).start().await;
    let key = unique();
    let holder = shared.cluster.primary().admin().await;
    holder.batch_execute(&format!("SELECT pg_advisory_lock({key})")).await.unwrap();
    let sql = format!("SELECT pg_advisory_xact_lock_shared({key})");
    let clients = join_all((0..6).map(|_| kingpost.connect())).await;
    let token = clients[3].cancel_token();
    let steps = async {
        wait_blocked(shared, &sql, 6).await;
        token.cancel_query(NoTls).await.unwrap();
        wait_blocked(shared, &sql, 5).await;
        holder.batch_execute(&format!("SELECT pg_advisory_unlock({key})")).await.unwrap();
    };
    let running = join_all(clients.iter().map(|client| client.simple_query(&sql)));
    let (outcomes, ()) =
        within("six statements", SOON, shared.cluster.dir(), futures_util::future::join(running, steps)).await;
    for (n, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(_) => assert_ne!(n, 3, "the cancelled statement finished"),
            Err(error) => assert_eq!((n, sqlstate(&error)), (3, "57014")),
        }
    }
}

#[tokio::test]
async fn a_cancel_that_comes_late_hits_nobody() {
    let (shared, _logs) = shared().await;
    // One server connection: the second client's statement runs where the first one's ran.
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", 1).start().await;
    let (idle, busy) = (kingpost.connect().await, kingpost.connect().await);
    let key = unique();
    let holder = shared.cluster.primary().admin().await;
    holder.batch_execute(&format!("SELECT pg_advisory_lock({key})")).await.unwrap();
    idle.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    let late = idle.cancel_token();
    let sql = format!("SELECT pg_advisory_xact_lock({key})");
    let steps = async {
        wait_blocked(shared, &sql, 1).await;
        for _ in 0..5 {
            late.cancel_query(NoTls).await.unwrap();
            // A key that was never issued.
            let mut stranger = Raw::connect(kingpost.port()).await;
            stranger.send(&[0, 0, 0, 16, 0x04, 0xd2, 0x16, 0x2e, 0, 0, 0, 1, 9, 9, 9, 9]).await;
            assert!(stranger.rest().await.is_empty(), "a cancel request has no answer");
        }
        holder.batch_execute(&format!("SELECT pg_advisory_unlock({key})")).await.unwrap();
    };
    let running = within(
        "the other statement",
        SOON,
        shared.cluster.dir(),
        futures_util::future::join(busy.simple_query(&sql), steps),
    );
    running.await.0.unwrap();
    assert_eq!(value(&idle, "SELECT 7").await, "7");
}

#[tokio::test]
async fn a_statement_that_waits_for_a_server_is_cancelled() {
    let (shared, _logs) = shared().await;
    if crate::common::only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", 1).start().await;
    let (holder, waiting) = (kingpost.connect().await, kingpost.connect().await);
    holder.batch_execute("BEGIN").await.unwrap();
    value(&holder, "SELECT pg_backend_pid()").await;
    let token = waiting.cancel_token();
    // The statement may not have reached the proxy when the request is sent; so it is repeated until there is an outcome.
    let cancel = async {
        loop {
            token.cancel_query(NoTls).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    let outcome = tokio::select! {
        outcome = within("the waiting statement", SOON, shared.cluster.dir(), waiting.simple_query("SELECT pg_backend_pid()")) => outcome,
        () = cancel => unreachable!(),
    };
    assert_eq!(sqlstate(&outcome.unwrap_err()), "57014");
    holder.batch_execute("COMMIT").await.unwrap();
    assert_eq!(value(&waiting, "/* kingpost.route=primary */ SELECT 7").await, "7");
}

/// A load balancer gives a cancel request to any of several proxies: the request reaches the one with the client.
#[tokio::test]
async fn a_cancel_finds_its_way_between_proxies() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let one = Kingpost::of(&shared.cluster).set("proxy.pool.size", 2).set("proxy.peer_id", 1).start().await;
    let mut peer = toml::Table::new();
    peer.insert("id".into(), 1.into());
    peer.insert("address".into(), format!("127.0.0.1:{}", one.port()).into());
    let two = Kingpost::of(&shared.cluster).set("proxy.peer_id", 2).add("proxy.peers", peer).start().await;
    let holder = shared.cluster.primary().admin().await;
    let key = unique();
    holder.batch_execute(&format!("SELECT pg_advisory_lock({key})")).await.unwrap();
    let mut client = Raw::connect(one.port()).await;
    client.send(&startup(3 << 16, &[("user", USER), ("database", DATABASE)])).await;
    let greeting = client.until(b'Z').await;
    let secret = &greeting.iter().find(|message| message.kind == b'K').unwrap().body;
    let request = |secret: &[u8]| [&[0, 0, 0, 16][..], &80_877_102u32.to_be_bytes(), secret].concat();
    let wrong = [&secret[..4], b"none"].concat();
    let elsewhere = [&[secret[0], secret[1] | 0x7c][..], &secret[2..]].concat();
    let sql = format!("SELECT pg_advisory_xact_lock({key})");
    client.send(&query(&sql)).await;
    wait_blocked(shared, &sql, 1).await;
    // With a wrong key, or one of an unknown proxy, nothing is cancelled; the answer is the end of the connection.
    for bytes in [&wrong[..], &elsewhere] {
        for port in [one.port(), two.port()] {
            let mut raw = Raw::connect(port).await;
            raw.send(&request(bytes)).await;
            within("the end of a cancel request", SOON, shared.cluster.dir(), raw.rest()).await;
        }
    }
    wait_blocked(shared, &sql, 1).await;
    let mut raw = Raw::connect(two.port()).await;
    raw.send(&request(secret)).await;
    within("the end of a cancel request", SOON, shared.cluster.dir(), raw.rest()).await;
    let heard = within("the cancelled statement", SOON, shared.cluster.dir(), client.until(b'Z')).await;
    let error = heard.iter().find(|message| message.kind == b'E').and_then(|message| message.field(b'C'));
    assert_eq!(error.as_deref(), Some("57014"));
    assert_eq!(two.metrics().await.sum("kingpost_cancels_passed_on_total", &[]), 2.0);
}
