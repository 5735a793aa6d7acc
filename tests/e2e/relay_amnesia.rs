//! A relay that comes back with an empty directory: it knows of no promise, and acknowledges nothing until it has learnt more.

use std::collections::BTreeSet;

use kingpost_tests::{Cluster, Failover, Node, Relay, SOON, ShowLogs, within};

use crate::relay_orders::order;

/// Makes commits of these nodes wait for `count` of the relays.
async fn synchronous(nodes: &[Node], count: usize, relays: &[&Relay]) {
    let names: Vec<&str> = relays.iter().map(|relay| relay.name()).collect();
    for node in nodes {
        node.execute(&format!("ALTER SYSTEM SET synchronous_standby_names = 'ANY {count} ({})'", names.join(", ")))
            .await;
        node.execute("SELECT pg_reload_conf()").await;
    }
    nodes[0]
        .wait_value("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'", &relays.len().to_string())
        .await;
}

/// Starts a commit that may hang.
fn commit(node: &Node, n: i32) -> tokio::task::JoinHandle<bool> {
    let (endpoint, config) = (node.endpoint(), node.admin_config());
    tokio::spawn(async move {
        let client = endpoint.connect_as(&config).await;
        client.batch_execute(&format!("INSERT INTO t VALUES ({n})")).await.is_ok()
    })
}

async fn rows(node: &Node) -> BTreeSet<i32> {
    let rows = node.admin().await.query("SELECT n FROM t", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Waits until the relay reports that it does not know its promises; returns the message.
async fn does_not_know(cluster: &Cluster, relay: &Relay) -> String {
    cluster
        .wait("the relay to say that it has no memory", async || {
            let (status, text) = relay.http("/readyz").await?;
            (status != 200 && text.contains("does not know what it has promised")).then_some(text)
        })
        .await
}

/// The only relay, fenced in a failover away from a live primary, loses its directory; its configuration still names the old primary.
#[tokio::test(flavor = "multi_thread")]
async fn the_only_relay_asks_before_it_acknowledges() {
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let [old, new] = cluster.nodes() else { panic!("two nodes") };
    let mut relay = Relay::of(&cluster, old.port());
    relay.start().await;
    new.follow_port(relay.port());
    old.execute("CREATE TABLE t (n int)").await;
    synchronous(cluster.nodes(), 1, &[&relay]).await;
    assert!(commit(old, 1).await.unwrap());
    new.wait_caught_up(old).await;
    Failover::of(&cluster, &[&relay]).succeed(&["failover", "--to", "n1", "--force"]).await;
    assert!(commit(new, 2).await.unwrap());
    // As required: no commit of the old primary is acknowledged.
    let fenced_off = commit(old, 100);
    old.wait_value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'", "1").await;

    relay.kill9().await;
    relay.lose_directory();
    relay.launch();
    let decided = cluster
        .wait("the relay to acknowledge, or to say why not", async || {
            if fenced_off.is_finished() {
                return Some("acknowledged".to_owned());
            }
            let (_, text) = relay.http("/readyz").await?;
            text.contains("does not know what it has promised").then_some(text)
        })
        .await;
    assert!(decided.contains("--new") && decided.contains("has its slot"), "{decided}");
    assert!(!fenced_off.is_finished());
    assert_eq!(relay.metrics().await.sum("kingpost_relay_alarm", &[]), 1.0);
    for text in ["KINGPOST LOOK", "KINGPOST FENCE TERM 9 TIMELINE 2"] {
        let error = order(&relay, text).unwrap_err();
        assert!(error.contains("cannot promise anything yet"), "{text}: {error}");
    }

    // Pointed at the new primary, and told to go on.
    relay.kill9().await;
    let mut relay = relay.set("relay.upstream.address", format!("127.0.0.1:{}", new.port()));
    relay.is_new(true);
    relay.start().await;
    assert!(commit(new, 3).await.unwrap());
    assert!(!fenced_off.is_finished(), "the old primary still gets nothing acknowledged");
    let held = rows(new).await;
    assert_eq!(held, BTreeSet::from([1, 2, 3]), "what was acknowledged is there");
    let term: u64 = order(&relay, "KINGPOST LOOK").unwrap().term().parse().unwrap();
    assert!(term > 1_000_000, "higher than any term before: {term}");
    // It is reported only once.
    relay.stop().await;
    relay.is_new(false);
    relay.start().await;
}

/// One of three relays loses its directory, during a failover: it learns its promises from the others, by itself.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_relays_learns_from_the_others() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let mut relays: Vec<Relay> = (0..3).map(|_| Relay::of(&cluster, primary.port())).collect();
    let all: Vec<(String, u16)> = relays.iter().map(|relay| (relay.name().to_owned(), relay.port())).collect();
    // Each lists all, including itself; all are new at the same time.
    for relay in &mut relays {
        relay.knows(&all.iter().map(|(name, port)| (name.as_str(), *port)).collect::<Vec<_>>());
        relay.launch();
    }
    for relay in &relays {
        relay.wait_receiving().await;
    }
    primary.execute("CREATE TABLE t (n int)").await;
    synchronous(cluster.nodes(), 2, &relays.iter().collect::<Vec<_>>()).await;
    assert!(commit(primary, 1).await.unwrap());
    for relay in &relays[..2] {
        order(relay, "KINGPOST FENCE TERM 7 TIMELINE 1").unwrap();
        order(relay, "KINGPOST CHOOSE TERM 7 NODE \"n9\"").unwrap();
    }
    // Two of three take nothing any more, so nothing is acknowledged.
    let fenced_off = commit(primary, 100);
    primary.wait_value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'", "1").await;

    // One of the two loses its memory while the other one is away: no relay can tell the promises, and it does not guess.
    for relay in &relays[..2] {
        relay.kill9().await;
    }
    relays[0].lose_directory();
    relays[0].launch();
    let text = does_not_know(&cluster, &relays[0]).await;
    assert!(text.contains(&format!("relay {}", all[1].0)), "{text}");
    assert!(!fenced_off.is_finished());
    relays[1].launch();
    let standing = cluster
        .wait("the relay to know what it promised", async || {
            let (status, text) = relays[0].http("/readyz").await?;
            assert!(status != 200);
            text.contains("fenced: for term 7").then_some(text)
        })
        .await;
    assert!(!fenced_off.is_finished(), "{standing}");

    // The failover is called off by a higher term.
    order(&relays[1], "KINGPOST WITHDRAW TERM 7 NODE \"n9\"").unwrap();
    order(&relays[1], "KINGPOST RELEASE TERM 8").unwrap();
    within("the commit that waited", SOON, cluster.dir(), fenced_off).await.unwrap();
    assert_eq!(rows(primary).await, BTreeSet::from([1, 100]));
}

/// A relay that watches the cluster needs no operator if all servers answer: it goes on once a promotion under way would be over.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_sees_all_servers_goes_on_by_itself() {
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let [old, new] = cluster.nodes() else { panic!("two nodes") };
    let ports: Vec<u16> = cluster.nodes().iter().map(Node::port).collect();
    let mut relay = Relay::watching(&cluster, &ports).set("failover.step_timeout", "1s");
    relay.start().await;
    old.execute("CREATE TABLE t (n int)").await;
    synchronous(cluster.nodes(), 1, &[&relay]).await;
    assert!(commit(old, 1).await.unwrap());
    new.wait_caught_up(old).await;

    // One server does not answer: it may have been promoted.
    relay.kill9().await;
    relay.lose_directory();
    new.sigstop();
    relay.launch();
    let waits = commit(old, 2);
    let text = does_not_know(&cluster, &relay).await;
    assert!(text.contains("server n1"), "{text}");
    assert!(!waits.is_finished());
    new.sigcont();
    relay.wait_receiving().await;
    assert!(within("the commit", SOON, cluster.dir(), waits).await.unwrap());
    assert_eq!(rows(old).await, BTreeSet::from([1, 2]));
}
