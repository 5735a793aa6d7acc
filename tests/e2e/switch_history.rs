//! Switchovers under load without a program that stops servers: acknowledged commits are there, and clients of the proxy notice nothing.

use kingpost_tests::{Kingpost, Node, ShowLogs};

use crate::common::only_kingpost;
use crate::fleet::{Fleet, FleetBuilder, History, Kind};

/// Makes two switchovers, to the second node and to the third, while clients insert by the proxy and past it.
async fn two_switchovers(fleet: FleetBuilder, proxy: impl AsyncFnOnce(&Fleet) -> Kingpost) {
    if only_kingpost() {
        return;
    }
    let fleet = fleet.start().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let [n0, n1, n2] = cluster.nodes() else { panic!("three nodes") };
    let kingpost = proxy(&fleet).await;
    let failover = fleet.failover().proxy(&kingpost);
    let mut history = History::new(cluster.dir());
    history.add(kingpost.endpoint(), Kind::Autocommit, 4).await;
    history.add(kingpost.endpoint(), Kind::ReadWrite, 4).await;
    history.add(&n0.endpoint(), Kind::Stubborn, 3).await;
    history.more(100).await;

    let text = failover.succeed(&["switchover", "--to", "n1"]).await;
    eprintln!("{text}");
    history.add(&n1.endpoint(), Kind::Stubborn, 3).await;
    history.more(200).await;
    let text = failover.succeed(&["switchover", "--to", "n2"]).await;
    eprintln!("{text}");
    history.more(200).await;

    let errors = history.check(&n2.admin().await).await;
    assert!(
        errors.is_empty(),
        "clients of the proxy saw {} errors: {:?}",
        errors.len(),
        &errors[..errors.len().min(5)]
    );
    for old in [n0, n1] {
        refuses(old).await;
    }
}

/// Checks that nobody can log in any more: neither an application nor an administrator who does not know of the lock.
async fn refuses(node: &Node) {
    for user in ["alice", "postgres"] {
        let mut config = node.endpoint().config();
        config.user(user);
        let error = node.endpoint().try_connect(&config).await.err();
        let said = error.as_ref().and_then(|error| error.as_db_error()).map(|error| error.message().to_owned());
        assert!(said.as_ref().is_some_and(|said| said.contains("kingpost_switchover")), "{user}: {error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn asynchronous_commits_survive_switchovers() {
    two_switchovers(Fleet::builder(), async |fleet| fleet.proxy().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn synchronous_commits_survive_switchovers() {
    two_switchovers(Fleet::builder().acknowledgements(1), async |fleet| fleet.proxy().await).await;
}

/// Answers to commits that the proxy holds back until the relay has them are sent before the old primary is left: no client gets an unknown outcome.
#[tokio::test(flavor = "multi_thread")]
async fn gated_commits_survive_switchovers() {
    two_switchovers(Fleet::builder(), async |fleet| {
        let relay = &fleet.relays[0];
        let entries = [("name", "r1".to_owned()), ("address", format!("127.0.0.1:{}", relay.port()))];
        let entries = entries.into_iter().map(|(key, value)| (key.to_owned(), value.into()));
        let builder = Kingpost::of(&fleet.cluster).add("cluster.relays", entries.collect());
        let builder = builder.set("cluster.probe_interval", "1s").set("cluster.probe_timeout", "2s");
        builder.set("proxy.gate.commit_durability", "relay").start().await
    })
    .await;
}
