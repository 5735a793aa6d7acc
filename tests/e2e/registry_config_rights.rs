//! Rights to configuration entries, at every front: two namespaces, two users of one namespace, and a right that is taken away while requests wait.

use std::ffi::OsStr;
use std::sync::Arc;

use kingpost_tests::{HttpResponse, RegistryNode, SOON, ShowLogs, wait_until, within};
use serde_json::{Value, json};

use crate::clients::installed;
use crate::registry_clients::run_at;
use crate::registry_clients_nacos::{Doors, token};

const FORM: (&str, &str) = ("Content-Type", "application/x-www-form-urlencoded");
const SETTINGS: &str = "auth = \"acl\"\n[registry.config]\nconsul_keys = \"config\"\n";

async fn send(node: &RegistryNode, token: &str, method: &str, path: &str, body: &str) -> HttpResponse {
    let bearer = format!("Bearer {token}");
    let kind = if body.starts_with(['{', '"']) { ("Content-Type", "application/json") } else { FORM };
    node.ask(method, path, &[("Authorization", &bearer), kind], body).await
}

/// Makes the first token of all, with all rights.
async fn root_of(node: &RegistryNode) -> String {
    let made = node.ask("PUT", "/v1/acl/bootstrap", &[("Content-Type", "application/json")], "").await.json();
    made["SecretID"].as_str().unwrap().to_owned()
}

/// Makes a policy and a token with it. Returns the token.
async fn user(node: &RegistryNode, root: &str, name: &str, rules: &str) -> String {
    let policy = json!({ "Name": name, "Rules": rules }).to_string();
    assert_eq!(send(node, root, "PUT", "/v1/acl/policy", &policy).await.status, 200);
    let made = send(node, root, "PUT", "/v1/acl/token", &json!({ "Policies": [{ "Name": name }] }).to_string()).await;
    made.json()["SecretID"].as_str().unwrap().to_owned()
}

fn path_of(namespace: &str, group: &str, id: &str) -> String {
    format!("/v1/namespaces/{namespace}/configs/{group}/{id}")
}

/// Returns the requests about one entry: method, path and body.
fn requests(namespace: &str, group: &str, id: &str) -> Vec<(&'static str, String, String)> {
    let own = path_of(namespace, group, id);
    let none = String::new;
    let tail = format!("dataId={id}&group={group}");
    let new = format!("dataId={id}&groupName={group}&namespaceId={namespace}");
    let key = format!("/v1/kv/config/{group}/{id}");
    let ns = format!("ns={namespace}");
    let listened = |md5: &str| format!("Listening-Configs={id}%02{group}%02{md5}%02{namespace}%01");
    vec![
        ("GET", own.clone(), none()),
        ("GET", format!("{own}?md5=x&wait=1ms"), none()),
        ("GET", format!("{own}/history"), none()),
        ("POST", format!("{own}/rollback"), json!({ "version": 1 }).to_string()),
        ("PUT", own.clone(), json!({ "content": "stranger" }).to_string()),
        ("PUT", own.clone(), json!({ "content": "stranger", "if_md5": "" }).to_string()),
        ("PUT", own.clone(), json!({ "content": "stranger", "addresses": ["127.0.0.1"] }).to_string()),
        ("DELETE", own, none()),
        ("GET", format!("/nacos/v1/cs/configs?{tail}&tenant={namespace}"), none()),
        ("GET", format!("/nacos/v1/cs/configs?show=all&{tail}&tenant={namespace}"), none()),
        ("GET", format!("/nacos/v1/cs/configs?beta=true&{tail}&tenant={namespace}"), none()),
        ("POST", "/nacos/v1/cs/configs".to_owned(), format!("{tail}&tenant={namespace}&content=stranger")),
        ("POST", "/nacos/v1/cs/configs/listener".to_owned(), listened("")),
        ("POST", "/nacos/v1/cs/configs/listener".to_owned(), listened("x")),
        ("DELETE", format!("/nacos/v1/cs/configs?{tail}&tenant={namespace}"), none()),
        ("GET", format!("/nacos/v1/cs/history?search=accurate&{tail}&tenant={namespace}"), none()),
        ("GET", format!("/nacos/v1/cs/history?nid=1&{tail}&tenant={namespace}"), none()),
        ("GET", format!("/nacos/v2/cs/config?{tail}&namespaceId={namespace}"), none()),
        ("GET", format!("/nacos/v2/cs/history/list?{tail}&namespaceId={namespace}"), none()),
        ("GET", format!("/nacos/v3/client/cs/config?{new}"), none()),
        ("GET", format!("/nacos/v3/admin/cs/config?{new}"), none()),
        ("GET", format!("/nacos/v3/admin/cs/config/beta?{new}"), none()),
        ("DELETE", format!("/nacos/v3/admin/cs/config/beta?{new}"), none()),
        ("DELETE", format!("/nacos/v3/admin/cs/config?{new}"), none()),
        ("GET", format!("{key}?{ns}"), none()),
        ("GET", format!("{key}?raw&{ns}"), none()),
        ("GET", format!("{key}?keys&{ns}"), none()),
        ("GET", format!("{key}?recurse&{ns}"), none()),
        ("PUT", format!("{key}?{ns}"), "stranger".to_owned()),
        ("PUT", format!("{key}?cas=0&{ns}"), "stranger".to_owned()),
        ("DELETE", format!("{key}?{ns}"), none()),
        ("DELETE", format!("{key}?cas=1&{ns}"), none()),
    ]
}

/// Returns the requests that list entries of a namespace.
fn lists(namespace: &str) -> Vec<String> {
    vec![
        format!("/v1/namespaces/{namespace}/configs"),
        format!("/v1/namespaces/{namespace}/configs?group=one"),
        format!("/nacos/v1/cs/configs?search=blur&dataId=*&group=*&tenant={namespace}"),
        format!("/nacos/v2/cs/config/searchDetail?search=blur&dataId=*&group=*&namespaceId={namespace}"),
        format!("/nacos/v3/admin/cs/config/list?pageNo=1&pageSize=10&namespaceId={namespace}"),
        format!("/nacos/v2/cs/history/configs?namespaceId={namespace}"),
        format!("/v1/kv/config/?recurse&ns={namespace}"),
        format!("/v1/kv/config/?keys&ns={namespace}"),
        "/v1/namespaces".to_owned(),
    ]
}

/// Every request of every front has one answer for an entry that the caller may not read, whether or not it exists, and changes nothing; no list has
/// it. For another namespace by role, and for another user's group in the same namespace by policy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_learns_of_the_entries_of_others() {
    let (first, first_table) = token("first", "write", &json!(["tenant-a"]));
    let (second, second_table) = token("second", "write", &json!(["tenant-b"]));
    let node = RegistryNode::start(&[SETTINGS, &first_table, &second_table].concat()).await;
    let _logs = ShowLogs(node.dir());
    let root = root_of(&node).await;
    let rules = |group: &str| {
        format!(r#"config_prefix "{group}/" {{ policy = "write" }} key_prefix "config/" {{ policy = "write" }}"#)
    };
    let one = user(&node, &root, "one", &rules("one")).await;
    let two = user(&node, &root, "two", &rules("two")).await;
    // The right to the entry alone is no right to the key.
    let keyless = user(&node, &root, "keyless", r#"config_prefix "one/" { policy = "write" }"#).await;
    for (namespace, owner, stranger) in [("tenant-a", &first, &second), ("default", &one, &two)] {
        let existing = path_of(namespace, "one", "entry-one");
        let content = json!({ "content": "mine-alone" }).to_string();
        assert_eq!(send(&node, owner, "PUT", &existing, &content).await.status, 200);
        for ((method, path, body), (_, other_path, other_body)) in
            requests(namespace, "one", "entry-one").into_iter().zip(requests(namespace, "one", "entry-two"))
        {
            let found = send(&node, stranger, method, &path, &body).await;
            let missing = send(&node, stranger, method, &other_path, &other_body).await;
            let said = |answer: &HttpResponse, id: &str| {
                let index = answer.header("x-consul-index").map(str::to_owned);
                // An id that stands for a name is made of the name.
                (answer.status, index, answer.body.replace(id, "ID"))
            };
            assert_eq!(said(&found, "entry-one"), said(&missing, "entry-two"), "{method} {path}");
            assert!(!found.body.contains("mine-alone"), "{method} {path}: {}", found.body);
        }
        for path in lists(namespace) {
            let answer = send(&node, stranger, "GET", &path, "").await;
            assert!(
                !answer.body.contains("entry-one") && !answer.body.contains("mine-alone"),
                "{path}: {}",
                answer.body
            );
            assert!(answer.header("x-consul-index").is_none_or(|index| index == "1"), "{path}");
            let own = send(&node, owner, "GET", &path, "").await;
            assert!(path == "/v1/namespaces" || own.body.contains("entry-one"), "{path}: {}", own.body);
        }
        let kept = send(&node, owner, "GET", &existing, "").await.json();
        assert_eq!((&kept["content"], &kept["version"]), (&json!("mine-alone"), &json!(1)));
    }
    let key = "/v1/kv/config/one/entry-one";
    assert_eq!(send(&node, &one, "GET", &format!("{key}?raw"), "").await.body, "mine-alone");
    assert_eq!(send(&node, &keyless, "GET", &path_of("default", "one", "entry-one"), "").await.status, 200);
    for (method, path) in [("GET", key.to_owned()), ("PUT", key.to_owned()), ("DELETE", key.to_owned())] {
        assert_eq!(send(&node, &keyless, method, &path, "x").await.status, 403, "{method}");
    }
    assert_eq!(send(&node, &keyless, "GET", "/v1/kv/config/?recurse", "").await.status, 404);
}

/// As [`nobody_learns_of_the_entries_of_others`], over Polaris' and Nacos' gRPC, and for who listens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_learns_of_them_over_grpc() {
    let doors = Doors::new();
    let (first, first_table) = token("first", "write", &json!(["tenant-a"]));
    let (second, second_table) = token("second", "write", &json!(["tenant-b"]));
    let settings = SETTINGS.replacen('\n', &format!("\n{}", doors.key()), 1);
    let node = RegistryNode::start(&[settings, first_table, second_table].concat()).await;
    let root = root_of(&node).await;
    let one = user(&node, &root, "one", r#"config_prefix "one/" { policy = "write" }"#).await;
    let two = user(&node, &root, "two", r#"config_prefix "two/" { policy = "write" }"#).await;
    for (theirs, own, group, owner, stranger) in
        [("tenant-a", "tenant-b", "one", &first, &second), ("default", "default", "two", &one, &two)]
    {
        let variables = [
            ("THEIRS", theirs),
            ("OWN", own),
            ("GROUP", group),
            ("OWNER", owner),
            ("STRANGER", stranger),
            ("NACOS_ADDRESS", &doors.address()),
        ];
        let variables = variables.map(|(name, value)| (name, OsStr::new(value)));
        let python = installed().await.join("venv/bin/python");
        run_at(&node, &python, "python/registry_config_rights.py", &variables).await;
    }
}

/// Entries are keys for Consul's clients: values, lists, conditions and blocking queries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_as_keys_of_consul() {
    let node = RegistryNode::start("[registry.config]\nconsul_keys = \"/config/\"\n").await;
    let _logs = ShowLogs(node.dir());
    let ask = async |method: &str, path: &str, body: &str| node.ask(method, &format!("/v1/kv/{path}"), &[], body).await;
    let key = "config/shop/conf/app.yaml";
    let first = async { ask("GET", &format!("{key}?index=1&wait=60s"), "").await };
    let publish = async { ask("PUT", key, "a: 1").await };
    // The first change of all wakes who waits for it.
    let (told, put) = within("the first change", SOON, node.dir(), async { tokio::join!(first, publish) }).await;
    assert_eq!((put.body.as_str(), told.status), ("true", 200), "{}", told.body);
    let found = ask("GET", key, "").await.json();
    assert_eq!(found[0]["Value"], "YTogMQ==");
    let index = found[0]["ModifyIndex"].as_u64().unwrap();
    let entry = node.get("/v1/namespaces/default/configs/shop/conf%2Fapp.yaml").await.json();
    assert_eq!((&entry["content"], &entry["revision"]), (&json!("a: 1"), &json!(index)));
    for (query, body, expected) in [
        ("cas=0".to_owned(), "x", "false"),
        (format!("cas={}", index - 1), "x", "false"),
        (format!("cas={index}"), "a: 2", "true"),
        (format!("cas={index}"), "x", "false"),
    ] {
        assert_eq!(ask("PUT", &format!("{key}?{query}"), body).await.body, expected, "{query}");
    }
    let history = node.get("/v1/namespaces/default/configs/shop/conf%2Fapp.yaml/history").await.json();
    assert_eq!(history["versions"].as_array().unwrap().len(), 2, "a write is a version");
    // Another entry outside of the prefix wakes nobody; one within it does.
    let tree = ask("GET", "config/shop/?recurse", "").await;
    let index = tree.header("x-consul-index").unwrap().to_owned();
    let poll = async { ask("GET", &format!("config/shop/?recurse&index={index}&wait=60s"), "").await };
    let writes = async {
        ask("PUT", "config/bank/x", "other").await;
        ask("PUT", "config/shop/cipher-b", "hunter2").await;
    };
    let (told, ()) = within("the change", SOON, node.dir(), async { tokio::join!(poll, writes) }).await;
    let values: Vec<(Value, Value)> =
        told.json().as_array().unwrap().iter().map(|one| (one["Key"].clone(), one["Value"].clone())).collect();
    // A secret's content is in no list.
    assert_eq!(values, [(json!("config/shop/cipher-b"), Value::Null), (json!(key), json!("YTogMg=="))]);
    assert_eq!(ask("GET", "config/shop/cipher-b?raw", "").await.body, "hunter2");
    let keys = ask("GET", "config/?keys&separator=/", "").await.json();
    assert_eq!(keys, json!(["config/bank/", "config/shop/"]));
    for (method, path, status) in [
        ("PUT", "config/shop/a?acquire=x", 400),
        ("PUT", "config/shop/a?flags=7", 400),
        ("PUT", "config/shop", 400),
        ("PUT", "config/shop/", 400),
        ("GET", "config/shop", 404),
        ("GET", "config/", 404),
        ("DELETE", "config/shop/?recurse", 400),
    ] {
        assert_eq!(ask(method, path, "x").await.status, status, "{method} {path}");
    }
    let operation = json!([{ "KV": { "Verb": "set", "Key": "config/shop/a", "Value": "eA==" } }]).to_string();
    assert_eq!(node.ask("PUT", "/v1/txn", &[], &operation).await.status, 409);
    assert_eq!(ask("DELETE", &format!("{key}?cas=1"), "").await.body, "false");
    assert_eq!(ask("DELETE", key, "").await.body, "true");
    assert_eq!(ask("DELETE", &format!("{key}?cas=1"), "").await.body, "true");
    assert_eq!(ask("GET", key, "").await.status, 404);
}

/// A client that waits is told of nothing after its right was taken away: its answer is a refusal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_is_taken_away_while_requests_wait() {
    let node = Arc::new(RegistryNode::start(SETTINGS).await);
    let dir = node.dir().to_owned();
    let _logs = ShowLogs(&dir);
    let root = root_of(&node).await;
    let rules = r#"config_prefix "g/" { policy = "read" } key_prefix "" { policy = "read" }
                   service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }"#;
    let user = user(&node, &root, "user", rules).await;
    let service = "/v1/namespaces/default/services/web/instances";
    let change = async |content: &str| {
        let entry = json!({ "content": content }).to_string();
        assert_eq!(send(&node, &root, "PUT", &path_of("default", "g", "a"), &entry).await.status, 200);
        assert_eq!(send(&node, &root, "PUT", "/v1/kv/plain", content).await.status, 200);
        let instance = json!({ "host": "10.0.0.1", "metadata": { "is": content } }).to_string();
        let put = send(&node, &root, "PUT", &format!("{service}/a"), &instance).await;
        assert!(matches!(put.status, 200 | 201), "{}", put.body);
    };
    change("before").await;
    let index = async |path: &str| {
        send(&node, &user, "GET", path, "").await.header("x-consul-index").expect("an index").to_owned()
    };
    let revision = send(&node, &user, "GET", service, "").await.json()["revision"].as_u64().unwrap();
    let mut polls = vec![format!("{service}?after={revision}&wait=60s")];
    for path in ["/v1/kv/config/g/a", "/v1/kv/config/?recurse", "/v1/kv/plain", "/v1/health/service/web"] {
        let mark = if path.contains('?') { '&' } else { '?' };
        polls.push(format!("{path}{mark}index={}&wait=60s", index(path).await));
    }
    let waiting = polls.len();
    let asked = polls.into_iter().map(|path| {
        let (node, user) = (Arc::clone(&node), user.clone());
        tokio::spawn(async move { (send(&node, &user, "GET", &path, "").await, path) })
    });
    let asked: Vec<_> = asked.collect();
    let all_wait =
        async || (node.metrics().await.sum("kingpost_registry_watchers", &[]) >= waiting as f64).then_some(());
    wait_until("all requests to wait", SOON, &dir, all_wait).await;
    let id = send(&node, &root, "GET", "/v1/acl/tokens", "").await.json();
    let id =
        id.as_array().unwrap().iter().find(|one| one["Policies"][0]["Name"] == "user").unwrap()["AccessorID"].clone();
    let gone = send(&node, &root, "DELETE", &format!("/v1/acl/token/{}", id.as_str().unwrap()), "").await;
    assert_eq!(gone.status, 200, "{}", gone.body);
    change("after").await;
    for answer in asked {
        let (answer, path) = within("an answer", SOON, &dir, answer).await.unwrap();
        assert!(matches!(answer.status, 401 | 403), "{path}: {} {}", answer.status, answer.body);
        assert!(!answer.body.contains("after"), "{path}: {}", answer.body);
    }
}
