//! The registry through Kingpost's own proxy, with a lagging replica: many writers on several nodes, transactions that hold the counter for long,
//! killed connections and nodes. No change is missed, none is seen partially, none is reverted, and in the end all nodes have the same content.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kingpost_tests::{Cluster, Kingpost, RegistryNode, ShowLogs, wait_until};
use serde_json::{Value, json};
use tokio::sync::RwLock;

const SERVICE: &str = "/v1/namespaces/default/services/fire/instances";
const WRITERS: usize = 6;
const INSTANCES: usize = 6;
const ROUNDS: usize = 12;
const ENTRIES: usize = 16;
const LIMIT: Duration = Duration::from_secs(90);

type Node = Arc<RwLock<RegistryNode>>;

fn name(writer: usize, n: usize) -> String {
    format!("w{writer}-{n}")
}

/// Writes all of its instances each round: described anew, or removed. Returns the expected final state of each. Goes on until there was `enough`
/// disturbance.
async fn write(nodes: Vec<Node>, writer: usize, enough: Arc<AtomicBool>) -> BTreeMap<String, Option<usize>> {
    let mut last = BTreeMap::new();
    let mut round = 0;
    while round < ROUNDS || !enough.load(Ordering::Acquire) {
        round += 1;
        for n in 0..INSTANCES {
            let (id, removed) = (name(writer, n), (round + n) % 5 == 0);
            let metadata: BTreeMap<String, String> =
                (0..ENTRIES).map(|e| (format!("k{e}"), round.to_string())).collect();
            let body = json!({ "host": "h", "version": round.to_string(), "metadata": metadata }).to_string();
            let (method, path, body) = match removed {
                true => ("DELETE", format!("/v1/namespaces/default/instances/{id}"), String::new()),
                false => ("PUT", format!("{SERVICE}/{id}"), body),
            };
            // An unanswered write is repeated at the other node: all writes are idempotent.
            for attempt in 0.. {
                let node = nodes[(writer + attempt) % nodes.len()].read().await;
                let headers = [("Content-Type", "application/json")];
                let asked = tokio::time::timeout(Duration::from_secs(20), node.try_ask(method, &path, &headers, &body));
                match asked.await.ok().flatten().map(|answer| answer.status) {
                    Some(200 | 201 | 204) => break,
                    Some(404) if removed => break,
                    _ => {}
                }
                drop(node);
                assert!(attempt < 1000, "{method} {path} is never answered");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            last.insert(id, (!removed).then_some(round));
        }
    }
    last
}

/// Returns the round of each instance in a node's answer; all parts of an instance must agree on it.
fn rounds(shown: &Value) -> BTreeMap<String, usize> {
    let rounds = shown["instances"].as_array().into_iter().flatten().map(|instance| {
        let version = instance["version"].as_str().unwrap();
        let metadata = instance["metadata"].as_object().unwrap();
        assert!(metadata.len() == ENTRIES && metadata.values().all(|value| value == version), "by half: {instance}");
        (instance["id"].as_str().unwrap().to_owned(), version.parse().unwrap())
    });
    rounds.collect()
}

/// Follows a node by blocking requests: revisions only rise, no instance goes back.
async fn follow(node: Node, done: Arc<AtomicBool>) -> usize {
    let (mut revision, mut seen, mut looks) = (0, BTreeMap::new(), 0);
    while !done.load(Ordering::Acquire) {
        let node = node.read().await;
        let answer = node.get(&format!("{SERVICE}?after={revision}&wait=200ms")).await;
        if answer.status != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        }
        let shown = answer.json();
        let at = shown["revision"].as_u64().unwrap();
        assert!(at >= revision, "from revision {revision} back to {at}");
        revision = at;
        for (id, round) in rounds(&shown) {
            let before = seen.insert(id.clone(), round).unwrap_or(0);
            assert!(round >= before, "{id} from round {before} back to {round}");
        }
        looks += 1;
    }
    looks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registry_under_fire_through_the_proxy_and_a_replica_that_lags() {
    let cluster = Cluster::builder().replicas(1).log_statements().start().await;
    let _logs = ShowLogs(cluster.dir());
    let proxy = Kingpost::of(&cluster)
        .set("cluster.lag_limit", "1h")
        .set("proxy.routing.consistency", "eventual")
        .start()
        .await;
    let store = proxy.endpoint().url();
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..3 {
        nodes.push(Arc::new(RwLock::new(RegistryNode::start_on(Some(&store), "").await)));
    }
    let replica = cluster.replica(0);
    replica.recovery_delay(Duration::from_millis(60)).await;

    let done = Arc::new(AtomicBool::new(false));
    let following: Vec<_> = [0, 2].map(|n| tokio::spawn(follow(Arc::clone(&nodes[n]), Arc::clone(&done)))).into();
    let enough = Arc::new(AtomicBool::new(false));
    let write = |writer| tokio::spawn(write(nodes[..2].to_vec(), writer, Arc::clone(&enough)));
    let writers: Vec<_> = (0..WRITERS).map(write).collect();
    let disturbing = Arc::new(AtomicBool::new(true));
    let disturb = async {
        let mut turn = 0;
        while disturbing.load(Ordering::Acquire) {
            tokio::time::sleep(Duration::from_millis(100)).await;
            match turn % 5 {
                0 => {
                    // An open transaction holds the counter: every commit waits.
                    cluster
                        .primary()
                        .execute("BEGIN; SELECT v FROM registry_rev FOR UPDATE; SELECT pg_sleep(0.15); COMMIT")
                        .await;
                }
                1 => replica.pause_replay().await,
                2 => {
                    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                        WHERE application_name = 'kingpost registry' AND pid <> pg_backend_pid()";
                    cluster.primary().execute(kill).await;
                }
                3 => replica.resume_replay().await,
                _ if turn == 4 => {
                    // Its writers go on at the other node.
                    nodes[1].read().await.process().signal(9);
                    nodes[1].write().await.start_again().await;
                }
                _ => {}
            }
            turn += 1;
            // Everything has happened at least once, at any speed of the writers.
            enough.store(turn > 5, Ordering::Release);
        }
        replica.resume_replay().await;
        turn
    };
    let finish = async {
        let mut expected = BTreeMap::new();
        for writer in writers {
            expected.extend(writer.await.expect("a writer"));
        }
        disturbing.store(false, Ordering::Release);
        expected
    };
    let both = tokio::time::timeout(LIMIT, futures_util::future::join(disturb, finish));
    let (turns, expected) = both.await.expect("writers come to an end");
    assert!(turns > 5, "writers end after everything has happened");

    // A fresh node, which has only read, from the primary: the reference.
    let fresh = RegistryNode::start_on(Some(&cluster.primary().endpoint().url()), "").await;
    let truth = fresh.get(SERVICE).await.json();
    let left: BTreeMap<String, usize> = expected.into_iter().filter_map(|(id, round)| Some((id, round?))).collect();
    assert_eq!(rounds(&truth), left, "what was answered for last");
    for node in &nodes {
        let node = node.read().await;
        let same = async || (node.get(SERVICE).await.json() == truth).then_some(());
        wait_until("all nodes to hold the same", LIMIT, node.dir(), same).await;
    }
    done.store(true, Ordering::Release);
    for follower in following {
        assert!(follower.await.expect("a follower") > 10);
    }
    assert!(replica.saw("SELECT v, epoch, gc_floor FROM registry_rev"), "the replica has had its part in it");
}
