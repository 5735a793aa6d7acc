//! Consul's events, fired and listed by its clients' requests: over two namespaces, two nodes of one store, two hosts.

use std::collections::BTreeSet;

use kingpost_tests::{Cluster, HttpResponse, RegistryNode, SOON, ShowLogs, wait_until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::registry_clients_nacos::token;

async fn fire(node: &RegistryNode, path: &str, payload: &str) -> HttpResponse {
    node.ask("PUT", &format!("/v1/event/fire/{path}"), &[], payload).await
}

fn index(answer: &HttpResponse) -> u64 {
    answer.header("x-consul-index").expect("an index").parse().unwrap()
}

/// Computes the index of an event's id as Consul's clients do.
fn index_of(event: &Value) -> u64 {
    let id = u128::from_str_radix(&event["ID"].as_str().unwrap().replace('-', ""), 16).unwrap();
    (id >> 64) as u64 ^ id as u64
}

fn names(list: &HttpResponse) -> Vec<String> {
    let list = list.json();
    list.as_array().unwrap().iter().map(|event| event["Name"].as_str().unwrap().to_owned()).collect()
}

/// Waits until `node` has this number of waiting requests.
async fn waiting(node: &RegistryNode, many: f64) {
    wait_until("requests that wait", SOON, node.dir(), async || {
        (node.metrics().await.sum("kingpost_registry_watchers", &[]) >= many).then_some(())
    })
    .await;
}

#[tokio::test]
async fn events_as_consul_has_them() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let nothing = node.get("/v1/event/list").await;
    assert_eq!((nothing.status, nothing.body.as_str(), index(&nothing)), (200, "[]", 1), "0 would be no index");
    let fired = fire(&node, "deploy", "v1\n").await;
    assert_eq!(fired.status, 200, "{}", fired.body);
    let shown = json!({
        "ID": fired.json()["ID"], "Name": "deploy", "Payload": "djEK", "NodeFilter": "", "ServiceFilter": "", "TagFilter": "",
        "Version": 1, "LTime": 1,
    });
    assert_eq!(fired.json(), shown);
    let list = node.get("/v1/event/list").await;
    assert_eq!((list.json(), index(&list)), (json!([shown]), index_of(&shown)));
    assert_eq!(fire(&node, "a/b?node=x&service=y&tag=z", "").await.json()["Payload"], Value::Null);
    let large = "x".repeat(512 - "large".len());
    for (path, payload, status) in [
        ("large", large.as_str(), 200),
        ("larger", &large, 413),
        ("large?node=n", &large, 413),
        ("", "", 400),
        ("a%00b", "", 400),
        ("a?node=(", "", 400),
        ("a?service=(", "", 400),
        ("a?service=s&tag=(", "", 400),
        ("a?tag=t", "", 400),
        // Look-around, which Go's regular expressions lack, too.
        ("a?node=(?=x)", "", 400),
        (r"a?node=(\w{100}){100}", "", 400),
        ("a?dc=other", "", 400),
        ("_rexec", "", 501),
    ] {
        assert_eq!(fire(&node, path, payload).await.status, status, "{path}");
    }
    for (method, path, status) in [
        ("GET", "/v1/event/fire/a", 405),
        ("PUT", "/v1/event/list", 405),
        ("GET", "/v1/event/other", 404),
        ("GET", "/v1/event/list?node=(", 400),
        ("GET", "/v1/event/list?index=x", 400),
    ] {
        assert_eq!(node.ask(method, path, &[], "").await.status, status, "{method} {path}");
    }
    // A refused request makes no event. No host here matches the one with filters.
    assert_eq!(names(&node.get("/v1/event/list").await), ["deploy", "large"]);
    assert_eq!(names(&node.get("/v1/event/list?name=deploy").await), ["deploy"]);
    let none = node.get("/v1/event/list?name=none").await;
    assert_eq!((none.body.as_str(), index(&none)), ("[]", 1));
    // Any index but that of the last event is answered at once.
    for other in [2, index_of(&shown)] {
        assert_eq!(names(&node.get(&format!("/v1/event/list?index={other}&wait=60s")).await).len(), 2);
    }
    let last = index(&node.get("/v1/event/list").await);
    let same = node.get(&format!("/v1/event/list?index={last}&wait=10ms")).await;
    assert_eq!((index(&same), names(&same).len()), (last, 2), "nothing happened");
}

/// A request that waits by name is not answered for another name; the buffer holds 256 events, and drops the oldest, also over a restart.
#[tokio::test]
async fn the_last_256_events_are_kept() {
    let mut node = RegistryNode::start("").await;
    let dir = node.dir().to_owned();
    let _logs = ShowLogs(&dir);
    let waited = node.get("/v1/event/list?name=last&index=1&wait=60s");
    let (waited, ()) = tokio::join!(waited, async {
        waiting(&node, 1.0).await;
        for n in 1..=300 {
            assert_eq!(fire(&node, &format!("n{n}"), "").await.json()["LTime"], json!(n));
        }
        waiting(&node, 1.0).await;
        fire(&node, "last", "").await;
    });
    assert_eq!(names(&waited), ["last"]);
    let expected: Vec<String> = (46..=300).map(|n| format!("n{n}")).chain(["last".to_owned()]).collect();
    assert_eq!((expected.len(), names(&node.get("/v1/event/list").await)), (256, expected.clone()));
    node.end(15).await;
    node.start_again().await;
    assert_eq!(names(&node.get("/v1/event/list").await), expected);
    assert_eq!(fire(&node, "next", "").await.json()["LTime"], json!(302));
}

/// Two tenants, each with a token: one's events are neither shown to the other, nor answer its requests, nor appear among its keys.
#[tokio::test]
async fn events_of_a_namespace_are_its_own() {
    let (a, first) = token("a", "write", &json!(["a"]));
    let (b, second) = token("b", "write", &json!(["b"]));
    let (reader, third) = token("reader", "read", &json!(["a"]));
    let node = RegistryNode::start(&format!("auth = \"tokens\"\n{first}{second}{third}")).await;
    let _logs = ShowLogs(node.dir());
    let ask = async |token: &str, method: &str, path: &str| {
        node.ask(method, path, &[("X-Consul-Token", token)], "secret").await
    };
    for (token, method, path, status) in [
        (a.as_str(), "PUT", "/v1/event/fire/of-a?ns=a", 200),
        (&b, "PUT", "/v1/event/fire/of-b?ns=b", 200),
        (&b, "PUT", "/v1/event/fire/x?ns=a", 403),
        (&b, "GET", "/v1/event/list?ns=a", 403),
        (&reader, "GET", "/v1/event/list?ns=a", 200),
        (&reader, "PUT", "/v1/event/fire/x?ns=a", 403),
        (&reader, "GET", "/v1/event/list?ns=b", 403),
        ("", "GET", "/v1/event/list?ns=a", 401),
        ("", "PUT", "/v1/event/fire/x", 401),
    ] {
        assert_eq!(ask(token, method, path).await.status, status, "{method} {path}");
    }
    // Without a name the token's namespace is used.
    for (token, expected) in [(&a, "of-a"), (&b, "of-b"), (&reader, "of-a")] {
        assert_eq!(names(&ask(token, "GET", "/v1/event/list").await), [expected]);
    }
    for token in [&a, &b] {
        assert_eq!(ask(token, "GET", "/v1/kv/?recurse").await.status, 404, "events are no keys");
    }
    let before = ask(&b, "GET", "/v1/event/list").await;
    let path = format!("/v1/event/list?index={}&wait=60s", index(&before));
    let (woken, ()) = tokio::join!(ask(&b, "GET", &path), async {
        waiting(&node, 1.0).await;
        for n in 0..5 {
            assert_eq!(ask(&a, "PUT", &format!("/v1/event/fire/n{n}")).await.status, 200);
        }
        // Only this request still waits.
        waiting(&node, 1.0).await;
        ask(&b, "PUT", "/v1/event/fire/mine").await;
    });
    assert_eq!(names(&woken), ["of-b", "mine"]);
    assert_eq!(names(&ask(&a, "GET", "/v1/event/list").await), ["of-a", "n0", "n1", "n2", "n3", "n4"]);
}

/// Returns the names of the events that a client at `from` gets.
async fn told(node: &RegistryNode, from: &str, query: &str) -> Vec<String> {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    let mut stream = socket.connect(format!("127.0.0.1:{}", node.port()).parse().unwrap()).await.unwrap();
    let request = format!("GET /v1/event/list{query} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let answer = HttpResponse { status: 200, head: head.to_owned(), body: body.to_owned() };
    assert!(head.starts_with("HTTP/1.1 200"), "{answer:?}");
    names(&answer)
}

/// Two hosts, each with services and a name in the catalog: an event with filters goes to its target only.
#[tokio::test]
async fn an_event_is_told_to_those_whom_it_is_for() {
    let node = RegistryNode::start("node = \"registry-1\"").await;
    let _logs = ShowLogs(node.dir());
    for (name, address, service, tags) in
        [("web-1", "127.0.0.2", "shop", json!(["blue"])), ("db-1", "127.0.0.3", "store", json!(["blue", "primary"]))]
    {
        let sent = json!({
            "Node": name, "Address": address, "Service": { "ID": service, "Service": service, "Tags": tags },
            "Checks": [{ "Node": name, "CheckID": "up", "Name": "up", "Status": "passing" }],
        });
        assert_eq!(node.send("PUT", "/v1/catalog/register", &sent).await.status, 200);
        // The same in another namespace, by a host that is a different one there.
        let sent = json!({ "Node": name, "Address": "127.0.0.9", "Service": { "ID": "alien", "Service": "alien" } });
        assert_eq!(node.send("PUT", "/v1/catalog/register?ns=other", &sent).await.status, 200);
    }
    for query in [
        "all",
        "web?node=^web-",
        "db?node=^db-1$",
        "address?node=^127.0.0.2$",
        "registry?node=registry-1",
        "shop?service=^shop$",
        "primary?service=.&tag=^primary$",
        "both?node=1$&service=.&tag=blue",
        "nobody?node=^web-&service=store",
        "alien?service=alien",
    ] {
        assert_eq!(fire(&node, query, "").await.status, 200, "{query}");
    }
    let web = ["all", "web", "address", "registry", "shop", "both"];
    let db = ["all", "db", "registry", "primary", "both"];
    assert_eq!(told(&node, "127.0.0.2", "").await, web);
    assert_eq!(told(&node, "127.0.0.3", "").await, db);
    assert_eq!(told(&node, "127.0.0.1", "").await, ["all", "registry"], "a host without services");
    assert_eq!(told(&node, "127.0.0.2", "?ns=other").await, [""; 0]);
    // As a node chosen by the list's query, from any host; by its names in the catalog.
    assert_eq!(told(&node, "127.0.0.1", "?node=^web-1$").await, ["all", "web", "shop", "both"]);
    assert_eq!(told(&node, "127.0.0.1", "?service=store").await, ["all", "db", "primary", "both"]);
    assert_eq!(told(&node, "127.0.0.1", "?service=.&tag=blue&name=both").await, ["both"]);
    assert_eq!(told(&node, "127.0.0.1", "?node=nobody").await, [""; 0]);
}

/// Two nodes on one store, with concurrent events at both: each event has its own number, and both list all, in one order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_tells_of_events_of_all() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let store = cluster.primary().endpoint().url();
    let (one, two) = (RegistryNode::start_on(Some(&store), "").await, RegistryNode::start_on(Some(&store), "").await);
    let _logs = (ShowLogs(one.dir()), ShowLogs(two.dir()));
    // A request that waits at one node gets an event fired at the other.
    let (woken, ()) = tokio::join!(two.get("/v1/event/list?index=1&wait=60s"), async {
        waiting(&two, 1.0).await;
        fire(&one, "first?ns=other", "").await;
        fire(&one, "first", "").await;
    });
    assert_eq!((names(&woken), woken.json()[0]["LTime"].as_u64()), (vec!["first".to_owned()], Some(1)));
    let fire_some = async |node: &RegistryNode, name: &str| {
        let paths: Vec<String> = (0..10).map(|n| format!("{name}{n}")).collect();
        let fired = futures_util::future::join_all(paths.iter().map(|path| fire(node, path, ""))).await;
        fired.iter().map(|fired| fired.json()["LTime"].as_u64().unwrap_or_else(|| panic!("{fired:?}"))).collect()
    };
    let (mut numbers, others): (BTreeSet<u64>, BTreeSet<u64>) =
        tokio::join!(fire_some(&one, "one"), fire_some(&two, "two"));
    numbers.extend(others);
    assert_eq!(numbers, (2..=21).collect());
    let lists = [one.get("/v1/event/list?consistent").await, two.get("/v1/event/list?consistent").await];
    assert_eq!((lists[0].json(), index(&lists[0])), (lists[1].json(), index(&lists[1])));
    let told: Vec<u64> = lists[0].json().as_array().unwrap().iter().map(|e| e["LTime"].as_u64().unwrap()).collect();
    assert_eq!(told, (1..=21).collect::<Vec<_>>());
    for node in [&one, &two] {
        assert_eq!(names(&node.get("/v1/event/list?ns=other&consistent").await), ["first"]);
    }
}
