//! Two concurrent runs of `kingpost failover`. The model of failovers found each of these three cases; here the real programs run.

use std::time::Duration;

use kingpost_tests::{Cut, Link, SOON, ShowLogs, wait_until};

use crate::common::only_kingpost;
use crate::fleet::Fleet;

/// Returns the output so far of a started run.
fn said(log: &std::path::Path) -> String {
    std::fs::read_to_string(log).unwrap_or_default()
}

/// Returns the term in which relays were fenced.
fn term(text: &str) -> u64 {
    let after = text.split("in term ").nth(1).unwrap_or_else(|| panic!("no term in {text}"));
    after.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

/// With 2 acknowledgements of 2 relays one fence stops all commits. Two runs, each with one relay, would each have enough.
#[tokio::test(flavor = "multi_thread")]
async fn half_of_the_relays_are_not_enough_for_a_failover() {
    if only_kingpost() {
        return;
    }
    let fleet = Fleet::builder().replicas(1).relays(2).acknowledgements(2).start().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let (n0, n1) = (cluster.primary(), cluster.replica(0));
    // The standby receives from the first relay, which stays.
    fleet.relays[1].kill9().await;
    n0.kill9().await;
    let text = fleet.failover().set("failover.acknowledgements", 2).fail(&["failover"]).await;
    assert!(text.contains("1 of 2 relays answer, and 2 have to be fenced"), "{text}");
    assert_eq!(fleet.relays[0].metrics().await.sum("kingpost_relay_fenced", &[]), 0.0, "nothing was changed");
    assert_eq!(n1.query("SELECT pg_is_in_recovery()").await, "t");
}

/// A run has elected n1 and is about to promote it. Another one fences the relay that knows of it; then neither the relay nor n1 answers any more.
/// The second run must not forget the relay's answer to the fence.
#[tokio::test(flavor = "multi_thread")]
async fn an_election_that_a_fenced_relay_told_of_is_not_overlooked() {
    if only_kingpost() {
        return;
    }
    let fleet = Fleet::builder().acknowledgements(1).start().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let [n0, n1, n2] = cluster.nodes() else { panic!("three nodes") };
    let relay = &fleet.relays[0];
    n0.kill9().await;
    let (one, two) = (fleet.failover(), fleet.failover());
    let (first, first_log) = one.start(&["failover", "--to", "n1", "--stop-at", "elected"]);
    let stands = async |log: &std::path::Path, step: &str| {
        let text = format!("standing still after {step}");
        wait_until(&text, SOON, cluster.dir(), async || said(log).contains(&text).then_some(())).await;
    };
    stands(&first_log, "elected").await;
    let (second, second_log) = two.start(&["failover", "--stop-at", "fenced"]);
    stands(&second_log, "fenced").await;
    relay.process().signal(libc::SIGSTOP);
    n1.sigstop();
    second.signal(libc::SIGCONT);
    // It ends, or elects another node as soon as the relay answers again.
    let refused = async || said(&second_log).contains("was elected in term").then_some(());
    let found = tokio::time::timeout(Duration::from_secs(15), wait_until("it to say so", SOON, cluster.dir(), refused));
    let found = found.await;
    relay.process().signal(libc::SIGCONT);
    n1.sigcont();
    assert!(found.is_ok(), "{}", said(&second_log));
    assert!(!second.wait_exit(SOON).await.success());
    assert_eq!(n2.query("SELECT pg_is_in_recovery()").await, "t", "{}", said(&second_log));
    // The first run finds that it was overtaken, and the next one goes on with the elected node.
    first.signal(libc::SIGCONT);
    first.wait_exit(SOON).await;
    let text = fleet.failover().succeed(&["failover"]).await;
    assert!(text.contains("n1 is the primary"), "{text}");
    assert_eq!(n2.query("SELECT pg_is_in_recovery()").await, "t");
}

/// A relay that is fenced by one run loses its directory, learns from another relay, which has promised nothing yet, and is fenced by another run.
/// With equal terms the relay would seem to support both.
#[tokio::test(flavor = "multi_thread")]
async fn two_runs_never_have_one_term() {
    if only_kingpost() {
        return;
    }
    let mut fleet = Fleet::builder().replicas(1).relays(2).acknowledgements(1).start().await;
    let dir = fleet.cluster.dir().to_owned();
    let _logs = ShowLogs(&dir);
    let all: Vec<(String, u16)> = fleet.relays.iter().map(|relay| (relay.name().to_owned(), relay.port())).collect();
    let all: Vec<(&str, u16)> = all.iter().map(|(name, port)| (name.as_str(), *port)).collect();
    for relay in &mut fleet.relays {
        relay.stop().await;
        relay.knows(&all);
        relay.start().await;
    }
    // A slow path to the second relay, which can be cut before its fence arrives.
    let link = Cut::to(fleet.relays[1].port());
    link.set(Link::Slow(Duration::from_millis(80)));
    let mut relays = Vec::new();
    for (index, relay) in fleet.relays.iter().enumerate() {
        let mut part = toml::Table::new();
        part.insert("name".into(), relay.name().into());
        let port = if index == 1 { link.port() } else { relay.port() };
        part.insert("address".into(), format!("127.0.0.1:{port}").into());
        relays.push(toml::Value::Table(part));
    }
    let (first, log) = fleet.failover().set("failover.relays", relays).start(&["failover", "--force"]);
    let name = fleet.relays[0].name().to_owned();
    let fenced = async || said(&log).contains(&format!("fenced {name}")).then_some(());
    wait_until("the first relay to be fenced", SOON, &dir, fenced).await;
    link.set(Link::Cut);
    assert!(!first.wait_exit(SOON).await.success());
    assert!(!said(&log).contains(&format!("fenced {}", fleet.relays[1].name())), "{}", said(&log));
    let one = term(&said(&log));
    fleet.relays[0].kill9().await;
    fleet.relays[0].lose_directory();
    fleet.relays[0].start().await;
    let text = fleet.failover().fail(&["failover", "--force", "--die-at", "fenced"]).await;
    assert_ne!(term(&text), one, "{text}");
    fleet.failover().succeed(&["failover", "--abort"]).await;
}
