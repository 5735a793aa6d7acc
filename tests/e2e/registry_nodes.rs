//! Several registry nodes on one store: any of them may die, be suspended or lose the store, and only the metrics show it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kingpost_tests::{Cluster, RegistryNode, SOON, ShowLogs, skipped, wait_until};
use serde_json::{Value, json};

const SERVICE: &str = "/v1/namespaces/default/services/web/instances";
/// So many that each node judges some that send their heartbeats to another node: random numbers decide which node judges. With 30, one in a hundred
/// runs had at most one of ten, and [`Clients::wait_judged`] then waited for half a minute.
const INSTANCES: usize = 90;
/// Time without an answer after which a client asks another node.
const CLIENT: Duration = Duration::from_millis(250);
const STOP: i32 = 19;
const CONTINUE: i32 = 18;

/// The clients: instances that send heartbeats, each to the next node if one does not answer, and an observer.
struct Clients {
    nodes: Vec<Arc<RegistryNode>>,
    /// Number of instances that still send heartbeats; those from this number on are silent.
    beating: AtomicUsize,
    /// Instances seen as critical while they sent heartbeats.
    wronged: Mutex<BTreeSet<String>>,
    /// Record of the heartbeats of each part of the instances.
    beats: Vec<Mutex<Beats>>,
    rounds: AtomicUsize,
    watching: AtomicBool,
}

/// Record of the heartbeats of some instances. On a busy machine the clients themselves may not run for longer than a time to live: their instances
/// are then rightly critical.
#[derive(Default)]
struct Beats {
    /// Time at which the last answered one was sent, so a lower bound of its arrival; `None` before the first.
    sent: Option<Instant>,
    /// Time of the last answered one that came more than a time to live after the one before.
    interrupted: Option<Instant>,
}

/// Time to live of the instances, and the time after an interruption in which they may still be seen as critical.
const TTL: Duration = Duration::from_secs(1);
const RECOVERY: Duration = Duration::from_secs(10);

impl Beats {
    fn answered(&mut self, sent: Instant) {
        if self.sent.replace(sent).is_some_and(|before| before.elapsed() >= TTL) {
            self.interrupted = Some(Instant::now());
        }
    }

    /// True if, by these heartbeats, no node can have missed one for a time to live.
    fn were_steady(&self) -> bool {
        self.sent.is_some_and(|sent| sent.elapsed() < TTL) && self.interrupted.is_none_or(|at| at.elapsed() > RECOVERY)
    }
}

fn name(n: usize) -> String {
    format!("i{n:02}")
}

impl Clients {
    async fn ask(&self, n: usize, method: &str, path: &str, body: &str) -> Option<Value> {
        for node in self.nodes.iter().cycle().skip(n % self.nodes.len()).take(self.nodes.len()) {
            let headers = [("Content-Type", "application/json")];
            if let Ok(Some(answer)) = tokio::time::timeout(CLIENT, node.try_ask(method, path, &headers, body)).await
                && answer.status == 200
            {
                return Some(answer.json());
            }
        }
        None
    }

    async fn beat(&self, part: usize) {
        loop {
            let ids: Vec<String> =
                (0..self.beating.load(Ordering::Acquire)).filter(|n| n % self.nodes.len() == part).map(name).collect();
            let body = json!({ "ids": ids }).to_string();
            let sent = Instant::now();
            let answer = self.ask(part, "POST", "/v1/namespaces/default/heartbeats", &body).await;
            if let Some(answer) = answer {
                assert_eq!(answer["unknown"], json!([]), "an instance was forgotten");
                self.beats[part].lock().unwrap().answered(sent);
            }
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    }

    async fn look(&self) {
        loop {
            let critical = self.critical(self.rounds.fetch_add(1, Ordering::AcqRel)).await;
            if self.watching.load(Ordering::Acquire) {
                let beating = self.beating.load(Ordering::Acquire);
                let steady = |n: usize| self.beats[n % self.nodes.len()].lock().unwrap().were_steady();
                let wronged = critical.into_iter().filter(|id| (0..beating).any(|n| name(n) == *id && steady(n)));
                self.wronged.lock().unwrap().extend(wronged);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns the critical instances, by one node's answer.
    async fn critical(&self, n: usize) -> BTreeSet<String> {
        let Some(answer) = self.ask(n, "GET", SERVICE, "").await else { return BTreeSet::new() };
        let list = answer["instances"].as_array().unwrap();
        list.iter().filter(|i| i["health"] == "critical").map(|i| i["id"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until `n` instances are critical by every node of `nodes`.
    async fn wait_critical(&self, nodes: &[usize], n: usize) {
        wait_until(&format!("{n} critical instances"), SOON, self.nodes[0].dir(), async || {
            for node in nodes {
                if self.critical(*node).await.len() != n {
                    return None;
                }
            }
            Some(())
        })
        .await;
    }

    /// Waits until `metric` of a node is at least this high (or, below 0, exactly minus this).
    async fn wait_metric(&self, node: usize, metric: &str, least: f64) {
        wait_until(&format!("{metric} of node {node} to be {least}"), SOON, self.nodes[node].dir(), async || {
            let value = self.nodes[node].metrics().await.sum(metric, &[]);
            (value >= least).then_some(())
        })
        .await;
    }

    /// Waits until every lease has been judged twice on `node`: a wrong expiry would have happened by then. Once in a time to live it asks the other
    /// nodes about those that it judges but does not hear itself: a third to a sixth of all.
    async fn wait_judged(&self, node: usize) {
        let asked = "kingpost_registry_asked_total";
        let now = self.nodes[node].metrics().await.sum(asked, &[]);
        self.wait_metric(node, asked, now + INSTANCES as f64).await;
    }

    fn nobody_was_wronged(&self, when: &str) {
        let wronged = self.wronged.lock().unwrap();
        assert!(wronged.is_empty(), "{when}: critical while they sent heartbeats: {wronged:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_may_die_and_nobody_notices_but_the_metrics() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let store = cluster.primary().endpoint().url();
    let mut nodes = Vec::new();
    for _ in 0..3 {
        let brake = "[registry.health.brake]\nlongest = \"4s\"";
        nodes.push(Arc::new(RegistryNode::start_on(Some(&store), brake).await));
    }
    let clients = Arc::new(Clients {
        nodes: nodes.clone(),
        beating: AtomicUsize::new(INSTANCES),
        wronged: Mutex::default(),
        beats: (0..3).map(|_| Mutex::default()).collect(),
        rounds: AtomicUsize::new(0),
        watching: AtomicBool::new(true),
    });
    for node in 0..3 {
        clients.wait_metric(node, "kingpost_registry_peers_reached", 2.0).await;
    }
    let instances: Vec<Value> = (0..INSTANCES)
        .map(|n| json!({ "id": name(n), "host": "h", "port": n, "check": { "type": "ttl", "ttl": format!("{}s", TTL.as_secs()) } }))
        .collect();
    let mut tasks = tokio::task::JoinSet::new();
    let answer = nodes[0].send("POST", SERVICE, &json!({ "instances": instances })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    // At once, and at all nodes: also those that do not know the instances yet.
    for part in 0..3 {
        let clients = Arc::clone(&clients);
        tasks.spawn(async move { clients.beat(part).await });
    }
    let looking = Arc::clone(&clients);
    tasks.spawn(async move { looking.look().await });
    clients.wait_judged(1).await;
    clients.nobody_was_wronged("undisturbed");

    // The owner of a third of them dies, with the heartbeats that only it had received.
    nodes[0].end(9).await;
    for node in [1, 2] {
        clients.wait_metric(node, "kingpost_registry_nodes_lost_total", 1.0).await;
    }
    clients.wait_judged(1).await;
    clients.nobody_was_wronged("a node was killed");
    clients.beating.store(INSTANCES - 4, Ordering::Release);
    clients.wait_critical(&[1, 2], 4).await;
    clients.beating.store(INSTANCES, Ordering::Release);
    clients.watching.store(false, Ordering::Release);
    clients.wait_critical(&[1, 2], 0).await;
    clients.watching.store(true, Ordering::Release);

    // The store goes and comes back: heartbeats and discovery go on.
    cluster.primary().stop().await;
    for node in [1, 2] {
        wait_until("the store to be missed", SOON, nodes[node].dir(), async || {
            (!nodes[node].is_ready().await).then_some(())
        })
        .await;
        assert_eq!(nodes[node].get(SERVICE).await.status, 200);
    }
    cluster.primary().start().await;
    for node in [1, 2] {
        wait_until("the store to be back", SOON, nodes[node].dir(), async || {
            nodes[node].is_ready().await.then_some(())
        })
        .await;
        clients.wait_judged(node).await;
    }
    clients.nobody_was_wronged("the store was gone");

    // One is suspended for longer than any lease, and goes on.
    nodes[2].process().signal(STOP);
    clients.wait_metric(1, "kingpost_registry_nodes_lost_total", 2.0).await;
    nodes[2].process().signal(CONTINUE);
    clients.wait_metric(2, "kingpost_registry_graces_total", 2.0).await;
    clients.wait_metric(1, "kingpost_registry_peers_reached", 1.0).await;
    clients.wait_judged(2).await;
    clients.nobody_was_wronged("a node stood still");

    // Many vanish at once: the last good state is kept for a while, then they are removed.
    clients.beating.store(INSTANCES / 3, Ordering::Release);
    wait_until("a brake to hold", SOON, nodes[1].dir(), async || {
        let held = async |n: usize| nodes[n].metrics().await.sum("kingpost_registry_protected", &[]) > 0.0;
        (held(1).await && held(2).await).then_some(())
    })
    .await;
    assert!(clients.critical(1).await.is_empty(), "the last good state is served");
    clients.wait_critical(&[1, 2], INSTANCES - INSTANCES / 3).await;
    clients.nobody_was_wronged("much vanished");
    tasks.shutdown().await;
}

/// A machine that is busy for a second, and a lease of one: unread data in the node's socket are no silence.
#[tokio::test]
async fn time_in_which_a_node_does_not_run_is_nobodys_silence() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let instance = json!({ "host": "h", "check": { "type": "ttl", "ttl": format!("{}s", TTL.as_secs()) } });
    assert_eq!(node.send("PUT", &format!("{SERVICE}/i"), &instance).await.status, 201);
    let beat = async || {
        let answer = node.ask("PUT", "/v1/namespaces/default/instances/i/heartbeat", &[], "").await;
        assert!(answer.status < 300, "{} {}", answer.status, answer.body);
    };
    let expired = async || node.metrics().await.sum("kingpost_registry_expired_total", &[]);
    for _ in 0..20 {
        beat().await;
        let before = expired().await;
        beat().await;
        let stopped = Instant::now();
        node.process().signal(STOP);
        tokio::time::sleep(Duration::from_millis(1200)).await;
        node.process().signal(CONTINUE);
        let (stopped, goes_on) = (stopped.elapsed(), Instant::now());
        // It checks its leases meanwhile.
        tokio::time::sleep(Duration::from_millis(250)).await;
        beat().await;
        // Not if the test itself was late: for longer than a lease, or so long that the node reports its own suspension.
        if stopped > Duration::from_millis(1400) || goes_on.elapsed() > Duration::from_millis(600) {
            continue;
        }
        let steady = Instant::now();
        for _ in 0..5 {
            beat().await;
        }
        let after = expired().await;
        if steady.elapsed() < TTL {
            assert_eq!(after, before, "an instance that sends heartbeats has expired");
            return;
        }
    }
    skipped("this machine is too busy");
}
