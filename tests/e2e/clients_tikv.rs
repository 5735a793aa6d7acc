//! Registry nodes on TiKV: a real PD of three members, and unistore in place of TiKV (`tests/tikv`). Skipped if they are not built.
//!
//! Clients write instances again and again, and send heartbeats for them, while PD, the store and the nodes are killed, frozen and restarted. In the
//! end every acknowledged write is on every node; no instance with heartbeats was critical or gone in between.

#[path = "../tikv/rig.rs"]
mod rig;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kingpost_tests::{HttpResponse, RegistryNode, SOON, wait_until};
use serde_json::{Value, json};
use tokio::sync::RwLock;
use tokio::task::JoinSet;

const SERVICE: &str = "/v1/namespaces/default/services/web/instances";
const NODES: usize = 3;
const CLIENTS: usize = 6;
/// Instances that a client writes in turn.
const OWN: usize = 5;
/// Instances that are registered once, and then only send heartbeats.
const QUIET: usize = 10;
/// Time to live of an instance. Longer than a busy machine keeps a client from running; shorter than PD is frozen.
const TTL: Duration = Duration::from_secs(20);
/// Longest wait for an answer: a write ends by the store's deadline of 15 s, needs as long again to find out its outcome, and then one more attempt.
const ANSWER: Duration = Duration::from_secs(120);
const KILL: i32 = 9;

/// Three nodes, and the clients' records.
struct World {
    rig: rig::Rig,
    clients: Arc<Clients>,
    tasks: JoinSet<()>,
    writers: JoinSet<()>,
}

struct Clients {
    nodes: Vec<RwLock<RegistryNode>>,
    stop: AtomicBool,
    /// The last acknowledged round of each registered instance.
    acknowledged: Mutex<BTreeMap<String, u64>>,
    /// Time of the last answered heartbeat of all, and the longest interval between two of them.
    beat: Mutex<(Option<Instant>, Duration)>,
    /// Violations: the instances that were missing or critical, and the time.
    wronged: Mutex<BTreeSet<String>>,
}

fn instance(id: &str, round: u64) -> Value {
    let check = json!({ "type": "ttl", "ttl": format!("{}s", TTL.as_secs()) });
    json!({ "id": id, "host": "h", "port": 1, "check": check, "metadata": { "round": round.to_string() } })
}

impl Clients {
    async fn ask(&self, node: usize, method: &str, path: &str, body: &Value) -> Option<HttpResponse> {
        let node = self.nodes[node].read().await;
        let headers = [("Content-Type", "application/json")];
        let asked = async { node.try_ask(method, path, &headers, &body.to_string()).await };
        tokio::time::timeout(ANSWER, asked).await.unwrap_or_else(|_| panic!("{method} {path}: no answer in {ANSWER:?}"))
    }

    /// Writes instances, each again and again with the current round, at every node in turn. It waits for each answer, so that an unacknowledged
    /// round cannot be written later than the next one.
    async fn write(self: Arc<Clients>, client: usize) {
        for round in 1.. {
            for n in 0..OWN {
                if self.stop.load(Ordering::SeqCst) {
                    return;
                }
                let id = format!("i{client}-{n}");
                let body = json!({ "instances": [instance(&id, round)] });
                let answer = self.ask((round as usize + client) % NODES, "POST", SERVICE, &body).await;
                // Of many rows some may fail: the status is that of the whole call.
                if answer.is_some_and(|answer| answer.status == 200 && answer.json()["failed"] == 0) {
                    self.acknowledged.lock().unwrap().insert(id, round);
                } else {
                    // A dead node refuses at once.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    /// Sends heartbeats of all acknowledged instances, to every node in turn.
    async fn beat(self: Arc<Clients>) {
        for turn in 0.. {
            let ids: Vec<String> = self.acknowledged.lock().unwrap().keys().cloned().collect();
            let answer =
                self.ask(turn % NODES, "POST", "/v1/namespaces/default/heartbeats", &json!({ "ids": ids })).await;
            if let Some(answer) = answer.filter(|answer| answer.status == 200) {
                if answer.json()["unknown"] != json!([]) {
                    self.wrong(format!("unknown to node {}: {}", turn % NODES, answer.body));
                }
                let (last, longest) = &mut *self.beat.lock().unwrap();
                *longest = last.replace(Instant::now()).map_or(*longest, |before| before.elapsed().max(*longest));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Checks at every node in turn that all instances are there and passing.
    async fn look(self: Arc<Clients>) {
        for turn in 0.. {
            // Acknowledged before the question. A node may learn of it a moment later if another node wrote it.
            let before: BTreeSet<String> = self.acknowledged.lock().unwrap().keys().cloned().collect();
            tokio::time::sleep(Duration::from_millis(100)).await;
            let Some(answer) = self.ask(turn % NODES, "GET", SERVICE, &Value::Null).await else { continue };
            if answer.status != 200 {
                self.wrong(format!("node {} answered {}", turn % NODES, answer.status));
                continue;
            }
            let (last, longest) = *self.beat.lock().unwrap();
            // On a machine that is too busy the clients do not send heartbeats in time.
            let steady = longest < TTL && last.is_some_and(|last| last.elapsed() < TTL);
            for instance in answer.json()["instances"].as_array().cloned().unwrap_or_default() {
                let id = instance["id"].as_str().unwrap_or_default();
                if steady && before.contains(id) && instance["health"] == "critical" {
                    self.wrong(format!("{id} was critical at node {}", turn % NODES));
                }
            }
        }
    }

    fn wrong(&self, what: String) {
        self.wronged.lock().unwrap().insert(what);
    }

    /// Returns the round of each passing instance, as a node has them.
    async fn rounds(&self, node: usize) -> BTreeMap<String, u64> {
        let Some(answer) = self.ask(node, "GET", SERVICE, &Value::Null).await else { return BTreeMap::new() };
        let list = answer.json()["instances"].as_array().cloned().unwrap_or_default();
        let well = list.iter().filter(|i| i["health"] != "critical");
        let round = |i: &Value| i["metadata"]["round"].as_str().and_then(|round| round.parse().ok());
        well.map(|i| (i["id"].as_str().expect("an id").to_owned(), round(i).expect("a round"))).collect()
    }

    async fn metric(&self, node: usize, name: &str) -> f64 {
        self.nodes[node].read().await.metrics().await.sum(name, &[])
    }

    /// Waits until each of `nodes` has committed a write.
    async fn go_on(&self, after: &str, nodes: &[usize]) {
        for node in nodes {
            let before = self.metric(*node, "kingpost_registry_commits_total").await;
            let logs = self.nodes[*node].read().await.dir().to_owned();
            wait_until(&format!("commits of node {node} after {after}"), 4 * SOON, &logs, async || {
                (self.metric(*node, "kingpost_registry_commits_total").await > before).then_some(())
            })
            .await;
        }
    }
}

impl World {
    async fn start() -> Option<World> {
        let rig = rig::Rig::with(3, None)?;
        let store = rig.address("e2e");
        let mut nodes = Vec::new();
        for _ in 0..NODES {
            nodes.push(RwLock::new(RegistryNode::start_on(Some(&store), "").await));
        }
        let clients = Arc::new(Clients {
            nodes,
            stop: AtomicBool::new(false),
            acknowledged: Mutex::default(),
            beat: Mutex::default(),
            wronged: Mutex::default(),
        });
        let quiet: Vec<Value> = (0..QUIET).map(|n| instance(&format!("quiet-{n}"), 0)).collect();
        let answer = clients.ask(0, "POST", SERVICE, &json!({ "instances": quiet })).await.expect("an answer");
        assert_eq!((answer.status, &answer.json()["failed"]), (200, &json!(0)), "{}", answer.body);
        clients.acknowledged.lock().unwrap().extend((0..QUIET).map(|n| (format!("quiet-{n}"), 0)));
        let (mut tasks, mut writers) = (JoinSet::new(), JoinSet::new());
        for client in 0..CLIENTS {
            writers.spawn(Arc::clone(&clients).write(client));
        }
        tasks.spawn(Arc::clone(&clients).beat());
        tasks.spawn(Arc::clone(&clients).look());
        let world = World { rig, clients, tasks, writers };
        world.clients.go_on("the start", &[0, 1, 2]).await;
        Some(world)
    }

    /// Stops the writers, and compares the content of every node with the acknowledged writes.
    async fn check(mut self) {
        let clients = &self.clients;
        clients.stop.store(true, Ordering::SeqCst);
        while let Some(writer) = self.writers.join_next().await {
            writer.expect("a writer");
        }
        let acknowledged = clients.acknowledged.lock().unwrap().clone();
        assert_eq!(acknowledged.len(), CLIENTS * OWN + QUIET, "every instance was written");
        let logs = clients.nodes[0].read().await.dir().to_owned();
        for node in 0..NODES {
            let mut said = String::new();
            wait_until("a node to have what was acknowledged", 2 * SOON, &logs, async || {
                let found = clients.rounds(node).await;
                // An unacknowledged write may have been done all the same: a later round.
                let lacks = |(id, round): &(&String, &u64)| found.get(*id).is_none_or(|found| found < *round);
                let lacking: Vec<_> =
                    acknowledged.iter().filter(lacks).map(|(id, round)| (id, round, found.get(id))).collect();
                let saying = format!("{lacking:?}");
                if !lacking.is_empty() && said != saying {
                    eprintln!("node {node} does not have yet, or not in health: instance, round, found: {saying}");
                    said = saying;
                }
                lacking.is_empty().then_some(())
            })
            .await;
        }
        let found = [clients.rounds(0).await, clients.rounds(1).await, clients.rounds(2).await];
        assert!(found[0] == found[1] && found[1] == found[2], "the nodes agree: {found:?}");
        assert!(self.tasks.try_join_next().is_none(), "heartbeats and looks go on to the end");
        self.tasks.shutdown().await;
        let wronged = clients.wronged.lock().unwrap().clone();
        assert!(wronged.is_empty(), "{wronged:?}");
        for node in 0..NODES {
            assert_eq!(clients.metric(node, "kingpost_registry_tikv_timestamps_refused_total").await, 0.0);
            assert!(clients.metric(node, "kingpost_registry_tikv_timestamp_wait_seconds_count").await > 0.0);
            assert!(clients.metric(node, "kingpost_registry_tikv_timestamp_round_trip_seconds_count").await > 0.0);
        }
    }
}

const ALL: [usize; 3] = [0, 1, 2];

/// PD's members, the leader among them, are killed and restarted one after the other; a node is killed and comes back; the store is frozen, stopped
/// cleanly, and killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_acknowledged_is_lost_while_pd_the_store_and_a_node_are_restarted() {
    let Some(mut world) = World::start().await else { return };
    let clients = Arc::clone(&world.clients);
    let lost = clients.metric(0, "kingpost_registry_tikv_timestamp_streams_lost_total").await;
    for member in 0..3 {
        tokio::task::block_in_place(|| {
            world.rig.kill_pd(member);
            world.rig.start_pd(member);
        });
        clients.go_on("a restart of one of PD's members", &ALL).await;
    }
    assert!(
        clients.metric(0, "kingpost_registry_tikv_timestamp_streams_lost_total").await > lost,
        "one of them led, so the stream of timestamps broke"
    );
    clients.nodes[1].read().await.end(KILL).await;
    clients.go_on("a node was killed", &[0, 2]).await;
    clients.nodes[1].write().await.start_again().await;
    clients.go_on("it was started again", &ALL).await;
    world.rig.freeze_store();
    // Time for which the store is frozen.
    tokio::time::sleep(Duration::from_secs(3)).await;
    world.rig.thaw_store();
    clients.go_on("the store stood still", &ALL).await;
    tokio::task::block_in_place(|| world.rig.restart_store());
    clients.go_on("a restart of the store", &ALL).await;
    tokio::task::block_in_place(|| world.rig.kill_store());
    clients.go_on("the store was killed", &ALL).await;
    world.check().await;
}

/// PD's leader is frozen for 3 s, then all of PD, for 3 s and for 30 s: writes end with an error in time, heartbeats and discovery continue from
/// memory, and no instance is gone or critical afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_acknowledged_is_lost_while_pd_stands_still() {
    let Some(world) = World::start().await else { return };
    let clients = Arc::clone(&world.clients);
    let leader = world.rig.leader();
    world.rig.freeze_pd(leader);
    // Another member leads after the lease of the frozen one.
    clients.go_on("PD's leader stood still", &ALL).await;
    world.rig.thaw_pd(leader);
    for seconds in [3, 30] {
        let before: Vec<String> = clients.acknowledged.lock().unwrap().keys().cloned().collect();
        (0..3).for_each(|member| world.rig.freeze_pd(member));
        // Time for which all of PD is frozen.
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        if seconds > TTL.as_secs() {
            for node in ALL {
                let served = clients.rounds(node).await;
                assert!(before.iter().all(|id| served.contains_key(id)), "from memory, {before:?} are: {served:?}");
                assert!(!clients.nodes[node].read().await.is_ready().await, "node {node} says that it has no store");
            }
        }
        (0..3).for_each(|member| world.rig.thaw_pd(member));
        clients.go_on("PD stood still", &ALL).await;
    }
    world.check().await;
}
