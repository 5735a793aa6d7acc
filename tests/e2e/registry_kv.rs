//! Consul's keys, sessions and transactions, requested over HTTP as in its documentation; and a lock over nodes that are killed.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kingpost_tests::{Cluster, HttpResponse, RegistryNode, SOON, ShowLogs, wait_until};
use serde_json::{Value, json};

async fn put(node: &RegistryNode, path: &str, body: &str) -> HttpResponse {
    node.ask("PUT", path, &[], body).await
}

fn index(answer: &HttpResponse) -> u64 {
    answer.header("x-consul-index").expect("an index").parse().unwrap()
}

async fn session(node: &RegistryNode, body: &Value) -> String {
    let made = put(node, "/v1/session/create", &body.to_string()).await;
    assert_eq!(made.status, 200, "{}", made.body);
    made.json()["ID"].as_str().unwrap().to_owned()
}

/// Each line: method, path, body; then status and body of the answer. All run in order on one node.
#[tokio::test]
async fn keys_as_consul_has_them() {
    let node = RegistryNode::start("[registry.kv]\nvalue_bytes = 1000\nkey_bytes = 20").await;
    let _logs = ShowLogs(node.dir());
    let large = "x".repeat(1001);
    for (method, path, body, status, expected) in [
        ("GET", "/v1/kv/a", "", 404, ""),
        ("GET", "/v1/kv/?keys", "", 200, "[]"),
        ("GET", "/v1/kv/?recurse", "", 404, ""),
        ("GET", "/v1/kv/a?keys", "", 404, ""),
        ("PUT", "/v1/kv/a/b?flags=18446744073709551615", "one", 200, "true"),
        ("PUT", "/v1/kv/a/b?cas=0", "two", 200, "false"),
        ("PUT", "/v1/kv/a/b?cas=2", "two", 200, "true"),
        ("GET", "/v1/kv/a/b?raw", "", 200, "two"),
        ("PUT", "/v1/kv/a/", "", 200, "true"),
        ("PUT", "/v1/kv/a%2Fc", "x", 200, "true"),
        ("PUT", "/v1/kv/%C3%A4", "x", 200, "true"),
        ("GET", "/v1/kv/?keys", "", 200, r#"["a/","a/b","a/c","ä"]"#),
        ("GET", "/v1/kv/a?keys&separator=/", "", 200, r#"["a/"]"#),
        ("GET", "/v1/kv/a/?keys&separator=/", "", 200, r#"["a/","a/b","a/c"]"#),
        ("GET", "/v1/kv/a/c?keys&ns=other", "", 404, ""),
        ("DELETE", "/v1/kv/a/c?cas=1", "", 200, "false"),
        ("DELETE", "/v1/kv/a/c", "", 200, "true"),
        ("DELETE", "/v1/kv/a/c", "", 200, "true"),
        ("DELETE", "/v1/kv/a/c?cas=7", "", 200, "true"),
        ("PUT", "/v1/kv/a?acquire=none", "", 500, r#"invalid session "none""#),
        ("PUT", "/v1/kv/a?release=none", "", 200, "false"),
        ("PUT", "/v1/kv/a?cas=1&acquire=x", "", 400, "Conflicting flags: cas&acquire\n"),
        ("DELETE", "/v1/kv/a?recurse&cas=1", "", 400, "Conflicting flags: recurse&cas\n"),
        ("PUT", "/v1/kv/", "x", 400, "Missing key name\n"),
        ("GET", "/v1/kv/", "", 400, "Missing key name\n"),
        ("PUT", "/v1/kv/a?flags=x", "", 400, "flags=\"x\": expected a whole number\n"),
        ("PUT", "/v1/kv/123456789012345678901", "", 400, "key: 21 is more than the limit of 20\n"),
        ("PUT", "/v1/kv/large", &large, 413, "the value is larger than registry.kv.value_bytes = 1000\n"),
        ("POST", "/v1/kv/a", "", 405, "this path takes GET, HEAD, PUT, DELETE\n"),
        ("DELETE", "/v1/kv/a?recurse", "", 200, "true"),
        ("GET", "/v1/kv/?keys", "", 200, r#"["ä"]"#),
    ] {
        let answer = node.ask(method, path, &[], body).await;
        assert_eq!((answer.status, answer.body.as_str()), (status, expected), "{method} {path}");
    }
    put(&node, "/v1/kv/whole?flags=7", "\u{e4}\n").await;
    let answer = node.get("/v1/kv/whole").await;
    let found = &answer.json()[0];
    let shown = json!({ "LockIndex": 0, "Key": "whole", "Flags": 7, "Value": "w6QK", "CreateIndex": found["CreateIndex"],
        "ModifyIndex": found["ModifyIndex"] });
    assert_eq!(*found, shown);
    assert_eq!(index(&answer), found["ModifyIndex"].as_u64().unwrap());
    let raw = node.get("/v1/kv/whole?raw").await;
    assert_eq!(raw.header("content-security-policy"), Some("sandbox"));
    assert_eq!(raw.header("x-content-type-options"), Some("nosniff"));
    // Unchanged, it is not written again.
    put(&node, "/v1/kv/whole?flags=7", "\u{e4}\n").await;
    assert_eq!(index(&node.get("/v1/kv/whole").await), index(&answer));
}

/// A token sees and changes the keys and sessions of its namespaces, and is not woken by others.
#[tokio::test]
async fn keys_of_a_namespace_are_its_own() {
    // Each with its SHA-256.
    let (a, b, reader) = ("a-token", "b-token", "reader");
    let tokens = [
        (a, "1f6076e3a47ba1ded08025ffe06e57af217c14f9407f33fba50f99b1c7019387", "write", "a"),
        (b, "c033d6825ce303906a2a8cfc0f933e8380fefc8e039ef2bd3dabb97b1a27c875", "write", "b"),
        (reader, "3d0941964aa3ebdcb00ccef58b1bb399f9f898465e9886d5aec7f31090a0fb30", "read", "a"),
    ]
    .map(|(name, hash, role, namespace)| {
        format!(
            "[[registry.tokens]]\nname = \"{name}\"\nsha256 = \"{hash}\"\nrole = \"{role}\"\nnamespaces = [\"{namespace}\"]\n"
        )
    });
    let node = RegistryNode::start(&format!("auth = \"tokens\"\n{}", tokens.concat())).await;
    let _logs = ShowLogs(node.dir());
    let ask = async |token: &str, method: &str, path: &str, body: &str| {
        node.ask(method, path, &[("X-Consul-Token", token)], body).await
    };
    let made = ask(a, "PUT", "/v1/session/create?ns=a", "").await.json()["ID"].as_str().unwrap().to_owned();
    for (token, method, path, status) in [
        (a, "PUT", "/v1/kv/k?ns=a".to_owned(), 200),
        (b, "PUT", "/v1/kv/k?ns=b".into(), 200),
        (b, "PUT", "/v1/kv/k?ns=a".into(), 403),
        (b, "GET", "/v1/kv/k?ns=a".into(), 403),
        (b, "DELETE", "/v1/kv/?recurse&ns=a".into(), 403),
        (reader, "GET", "/v1/kv/k?ns=a".into(), 200),
        (reader, "PUT", "/v1/kv/k?ns=a".into(), 403),
        (reader, "DELETE", "/v1/kv/k?ns=a".into(), 403),
        (reader, "PUT", "/v1/session/create?ns=a".into(), 403),
        (reader, "GET", "/v1/session/list?ns=a".into(), 200),
        (reader, "PUT", format!("/v1/session/destroy/{made}?ns=a"), 403),
        (reader, "PUT", format!("/v1/session/renew/{made}?ns=a"), 403),
        (b, "GET", "/v1/session/list?ns=a".into(), 403),
        // A session of one namespace can hold nothing in another, and cannot be ended there.
        (b, "PUT", format!("/v1/kv/k?acquire={made}&ns=b"), 500),
        (b, "PUT", format!("/v1/session/renew/{made}?ns=b"), 404),
        (b, "PUT", format!("/v1/session/destroy/{made}?ns=b"), 200),
        (a, "PUT", format!("/v1/kv/k?acquire={made}&ns=a"), 200),
        ("", "GET", "/v1/kv/k?ns=a".into(), 401),
        // Without a name the token's namespace is used, and no other.
        (a, "GET", "/v1/kv/k".into(), 200),
        (b, "DELETE", "/v1/kv/k".into(), 200),
        (b, "GET", "/v1/kv/k".into(), 404),
        (a, "GET", "/v1/kv/k".into(), 200),
        (a, "GET", "/v1/kv/k?ns=default".into(), 403),
    ] {
        assert_eq!(ask(token, method, &path, "x").await.status, status, "{token} {method} {path}");
    }
    for (token, body, status) in [
        (reader, json!([{ "KV": { "Verb": "get", "Key": "k" } }]), 200),
        (reader, json!([{ "KV": { "Verb": "set", "Key": "k" } }]), 403),
        (a, json!([{ "KV": { "Verb": "set", "Key": "k", "Namespace": "b" } }]), 400),
        (b, json!([{ "KV": { "Verb": "delete-tree", "Key": "" } }]), 403),
    ] {
        assert_eq!(ask(token, "PUT", "/v1/txn?ns=a", &body.to_string()).await.status, status, "{token} {body}");
    }
    // A write in one namespace does not change the index of the other, and wakes no request there.
    let before = index(&ask(a, "GET", "/v1/kv/?recurse&ns=a", "").await);
    for n in 0..5 {
        assert_eq!(ask(b, "PUT", &format!("/v1/kv/n{n}?ns=b"), "x").await.status, 200);
    }
    assert_eq!(index(&ask(a, "GET", "/v1/kv/?recurse&ns=a", "").await), before);
    let path = format!("/v1/kv/?recurse&ns=a&index={before}&wait=60s");
    let waiting = ask(a, "GET", &path, "");
    let writing = async {
        ask(b, "PUT", "/v1/kv/again?ns=b", "x").await;
        ask(a, "PUT", "/v1/kv/mine?ns=a", "x").await
    };
    let (woken, _) = tokio::join!(waiting, writing);
    assert!(woken.body.contains("mine") && index(&woken) > before, "{}", woken.body);
}

#[tokio::test]
async fn sessions_as_consul_has_them() {
    let node = RegistryNode::start("node = \"here\"").await;
    let _logs = ShowLogs(node.dir());
    let wanted = json!({ "Name": "n", "TTL": "15s", "LockDelay": "0s", "Behavior": "delete", "Checks": [] });
    let id = session(&node, &wanted).await;
    let shown = node.get(&format!("/v1/session/info/{id}")).await.json();
    let created = &shown[0]["CreateIndex"];
    assert_eq!(
        shown,
        json!([{ "ID": id, "Name": "n", "Node": "here", "LockDelay": 0, "Behavior": "delete", "TTL": "15s", "Checks": [],
            "NodeChecks": [], "ServiceChecks": null, "CreateIndex": created, "ModifyIndex": created }])
    );
    let default = session(&node, &json!({})).await;
    let usual = node.get(&format!("/v1/session/info/{default}")).await.json();
    assert_eq!((&usual[0]["LockDelay"], &usual[0]["Behavior"]), (&json!(15_000_000_000_u64), &json!("release")));
    assert_eq!(usual[0]["NodeChecks"], json!(["serfHealth"]));
    assert_eq!(node.get("/v1/session/list").await.json().as_array().unwrap().len(), 2);
    assert_eq!(node.get("/v1/session/node/here").await.json().as_array().unwrap().len(), 2);
    assert_eq!(node.get("/v1/session/node/there").await.json(), json!([]));
    assert_eq!(node.get("/v1/session/info/none").await.json(), json!([]));
    for (body, status, text) in [
        (json!({ "TTL": "5s" }), 500, "Invalid Session TTL '5s', must be between [10s=24h0m0s]"),
        (json!({ "TTL": "25h" }), 500, "Invalid Session TTL '25h', must be between [10s=24h0m0s]"),
        (json!({ "Behavior": "keep" }), 500, "Invalid Behavior setting 'keep'"),
        (json!({ "Checks": ["nothing"] }), 500, "Missing check 'nothing' registration"),
        (json!({ "LockDelay": "2m" }), 400, "LockDelay: expected a time of up to 60s, such as 15s\n"),
    ] {
        let answer = put(&node, "/v1/session/create", &body.to_string()).await;
        assert_eq!((answer.status, answer.body.as_str()), (status, text), "{body}");
    }
    // Two sessions and a key.
    let path = |act: &str, id: &str| format!("/v1/kv/lock?{act}={id}");
    for (act, who, expected) in [
        ("acquire", &id, "true"),
        ("acquire", &id, "true"),
        ("acquire", &default, "false"),
        ("release", &default, "false"),
        ("release", &id, "true"),
        ("acquire", &default, "true"),
        ("acquire", &id, "false"),
    ] {
        assert_eq!(put(&node, &path(act, who), "v").await.body, expected, "{act} {who}");
    }
    let held = node.get("/v1/kv/lock").await.json();
    assert_eq!((&held[0]["Session"], &held[0]["LockIndex"]), (&json!(default), &json!(2)));
    // After its end its key is free, and cannot be taken before the lock delay is over.
    assert_eq!(put(&node, &format!("/v1/session/destroy/{default}"), "").await.body, "true");
    assert_eq!(node.get("/v1/kv/lock").await.json()[0].get("Session"), None);
    assert_eq!(put(&node, &path("acquire", &id), "v").await.body, "false");
    assert_eq!(put(&node, "/v1/kv/other?acquire=", "v").await.status, 500);
    assert_eq!(put(&node, &format!("/v1/kv/other?acquire={id}"), "v").await.body, "true");
    let gone = put(&node, &format!("/v1/session/renew/{default}"), "").await;
    assert_eq!((gone.status, gone.body), (404, format!("Session id '{default}' not found")));
    assert_eq!(put(&node, &format!("/v1/session/renew/{id}"), "").await.json()[0]["ID"], json!(id));
    put(&node, &format!("/v1/session/destroy/{id}"), "").await;
    assert_eq!(node.get("/v1/kv/other").await.status, 404, "deleted with its session");
}

/// A service's check and its session; and a restart: keys, sessions and locks are kept.
#[tokio::test]
async fn sessions_survive_a_restart_and_end_with_their_check() {
    let mut node = RegistryNode::start("").await;
    let service = json!({ "ID": "w", "Name": "web", "Port": 1, "Check": { "TTL": "600s", "Status": "passing" } });
    assert_eq!(put(&node, "/v1/agent/service/register", &service.to_string()).await.status, 200);
    let checked = session(&node, &json!({ "ServiceChecks": [{ "ID": "service:w" }], "LockDelay": "0s" })).await;
    let plain = session(&node, &json!({ "LockDelay": "0s" })).await;
    assert_eq!(put(&node, &format!("/v1/kv/a?acquire={checked}"), "x").await.body, "true");
    assert_eq!(put(&node, &format!("/v1/kv/b?acquire={plain}"), "x").await.body, "true");
    node.end(9).await;
    node.start_again().await;
    let holder = async |key: &str| node.get(&format!("/v1/kv/{key}")).await.json()[0]["Session"].clone();
    assert_eq!((holder("a").await, holder("b").await), (json!(checked), json!(plain)));
    assert_eq!(put(&node, &format!("/v1/kv/b?acquire={checked}"), "x").await.body, "false");
    assert_eq!(put(&node, "/v1/agent/check/fail/service:w", "").await.status, 200);
    wait_until("the end of the session", SOON, node.dir(), async || holder("a").await.is_null().then_some(())).await;
    assert_eq!(holder("b").await, json!(plain));
    let refused = put(&node, "/v1/session/create", &json!({ "Checks": ["service:w"] }).to_string()).await;
    assert_eq!((refused.status, refused.body.as_str()), (500, "Check 'service:w' is in critical state"));
}

#[tokio::test]
async fn transactions_as_consul_has_them() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let txn = async |body: Value| put(&node, "/v1/txn", &body.to_string()).await;
    let one = txn(json!([
        { "KV": { "Verb": "set", "Key": "a", "Value": "MQ==", "Flags": 5 } },
        { "KV": { "Verb": "get", "Key": "a" } },
        { "KV": { "Verb": "delete", "Key": "none" } },
        { "KV": { "Verb": "check-not-exists", "Key": "b" } },
    ]))
    .await;
    let answer = one.json();
    assert_eq!((one.status, &answer["Errors"]), (200, &Value::Null));
    let results = answer["Results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    assert_eq!((&results[0]["KV"]["Value"], &results[1]["KV"]["Value"]), (&Value::Null, &json!("MQ==")));
    let stale = txn(json!([
        { "KV": { "Verb": "set", "Key": "a", "Value": "Mg==" } },
        { "KV": { "Verb": "cas", "Key": "a", "Value": "Mg==", "Index": 1 } },
        { "KV": { "Verb": "get", "Key": "none" } },
    ]))
    .await;
    assert_eq!(stale.status, 409);
    let errors = json!([
        { "OpIndex": 1, "What": "failed to set key \"a\", index is stale" },
        { "OpIndex": 2, "What": "key \"none\" doesn't exist" },
    ]);
    assert_eq!(stale.json(), json!({ "Results": null, "Errors": errors }));
    assert_eq!(node.get("/v1/kv/a?raw").await.body, "1", "nothing of it was done");
    for (body, status) in [
        (json!({}), 400),
        (json!([{ "KV": { "Verb": "become", "Key": "a" } }]), 409),
        (json!([{ "KV": { "Verb": "set", "Value": "" } }]), 409),
        (json!([{ "KV": { "Verb": "set", "Key": "a", "Value": "not base64" } }]), 400),
        (json!([{ "Node": { "Verb": "get" } }]), 501),
        (Value::Array(vec![json!({ "KV": { "Verb": "get", "Key": "a" } }); 129]), 413),
    ] {
        assert_eq!(txn(body.clone()).await.status, status, "{body}");
    }
}

/// Actions of the candidates of an election: at most one may believe that it leads.
struct Election {
    nodes: Vec<RegistryNode>,
    terms: Mutex<Vec<(Instant, Instant)>>,
    serial: AtomicUsize,
    over: AtomicBool,
    /// Time to live of new sessions, in seconds. Doubled while a live node takes longer than half of it to answer: on a machine that busy nobody
    /// could lead otherwise, even with a perfect lock.
    ttl: AtomicU64,
    /// The node that does not answer because it was stopped or killed, if any.
    away: AtomicUsize,
}

const LONGEST_TTL: u64 = 16;
/// Longest time for all terms. Two leaders at once are found at any speed.
const TERMS: Duration = Duration::from_secs(240);

impl Election {
    /// Sends a request to a node; None if it is down, or does not answer within `ttl`.
    async fn ask(&self, ttl: Duration, n: usize, method: &str, path: &str, body: &str) -> Option<HttpResponse> {
        let (n, asked) = (n % self.nodes.len(), Instant::now());
        let answer = tokio::time::timeout(ttl, self.nodes[n].try_ask(method, path, &[], body)).await.ok().flatten();
        if asked.elapsed() > ttl / 2 && self.away.load(Ordering::Acquire) != n && ttl.as_secs() < LONGEST_TTL {
            self.ttl.fetch_max(2 * ttl.as_secs(), Ordering::AcqRel);
        }
        answer
    }

    async fn candidate(&self, n: usize) {
        while !self.over.load(Ordering::Acquire) {
            let round = self.serial.fetch_add(1, Ordering::AcqRel);
            let asked = Instant::now();
            let ttl = Duration::from_secs(self.ttl.load(Ordering::Acquire));
            let wanted = json!({ "TTL": format!("{}s", ttl.as_secs()), "LockDelay": "0s", "Checks": [] }).to_string();
            let made = self.ask(ttl, n + round, "PUT", "/v1/session/create", &wanted).await;
            let Some(made) = made.filter(|answer| answer.status == 200) else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let id = made.json()["ID"].as_str().unwrap().to_owned();
            let (mut until, mut since, mut steps) = (asked + ttl, None, 0);
            while Instant::now() < until && steps < 3 + round % 5 {
                let asked = Instant::now();
                // A different node each time: all nodes learn of renewals.
                let at = n + round + self.serial.fetch_add(1, Ordering::AcqRel);
                match self.ask(ttl, at, "PUT", &format!("/v1/session/renew/{id}"), "").await {
                    Some(answer) if answer.status == 200 => until = asked + ttl,
                    Some(answer) if answer.status == 404 => break,
                    _ => {}
                }
                if since.is_none() {
                    let path = format!("/v1/kv/election?acquire={id}");
                    if self.ask(ttl, at, "PUT", &path, &id).await.is_some_and(|answer| answer.body == "true") {
                        since = Some(Instant::now());
                    }
                } else {
                    steps += 1;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let Some(since) = since.filter(|since| *since < until) else { continue };
            let mut believed = until;
            if round.is_multiple_of(2) {
                believed = believed.min(Instant::now());
                self.ask(ttl, n + round, "PUT", &format!("/v1/session/destroy/{id}"), "").await;
            }
            self.terms.lock().unwrap().push((since, believed));
        }
    }

    async fn reaches(&self, terms: usize) {
        wait_until(&format!("{terms} terms"), TERMS, self.nodes[0].dir(), async || {
            (self.terms.lock().unwrap().len() >= terms).then_some(())
        })
        .await;
    }
}

/// Three nodes on one PostgreSQL, candidates that use all of them, and nodes that are killed, suspended, and come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_held_by_one_whichever_node_dies() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let store = cluster.primary().endpoint().url();
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(RegistryNode::start_on(Some(&store), "[registry.kv]\nsession_ttl_min = \"1s\"").await);
    }
    let election = Arc::new(Election {
        nodes,
        terms: Mutex::default(),
        serial: AtomicUsize::new(0),
        over: AtomicBool::new(false),
        ttl: AtomicU64::new(1),
        away: AtomicUsize::new(usize::MAX),
    });
    let mut candidates = tokio::task::JoinSet::new();
    for n in 0..4 {
        let election = Arc::clone(&election);
        candidates.spawn(async move { election.candidate(n).await });
    }
    election.reaches(3).await;
    // Suspended for longer than a time to live, and resumed.
    let ttl = Duration::from_secs(election.ttl.load(Ordering::Acquire));
    election.away.store(1, Ordering::Release);
    election.nodes[1].process().signal(19);
    tokio::time::sleep(3 * ttl).await;
    election.nodes[1].process().signal(18);
    election.reaches(6).await;
    election.away.store(0, Ordering::Release);
    election.nodes[0].end(9).await;
    election.reaches(9).await;
    election.nodes[1].end(15).await;
    election.reaches(12).await;
    election.over.store(true, Ordering::Release);
    while candidates.join_next().await.is_some() {}
    let mut terms = election.terms.lock().unwrap().clone();
    terms.sort_by_key(|(since, _)| *since);
    for pair in terms.windows(2) {
        let ((_, believed), (since, _)) = (pair[0], pair[1]);
        assert!(since >= believed, "two led at once for {:?}", believed - since);
    }
}
