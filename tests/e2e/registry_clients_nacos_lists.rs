//! Long lists of Nacos over gRPC, composed of cached encoded pieces: the same as over HTTP, after any change.

use kingpost_tests::{RegistryNode, ShowLogs};
use serde_json::{Value, json};

use crate::registry_clients_nacos::{Agent, Doors};

/// Instances of each namespace: several pieces, and enough that the first encoding runs on another thread.
const MANY: usize = 300;

/// Returns the addresses of instances `from` to `to`, sorted as text.
fn ips(net: &str, numbers: impl Iterator<Item = usize>) -> Vec<String> {
    let mut ips: Vec<String> = numbers.map(|n| format!("{net}.{}.{}", n / 200, n % 200)).collect();
    ips.sort();
    ips
}

async fn put(node: &RegistryNode, namespace: &str, net: &str, numbers: std::ops::Range<usize>, metadata: &Value) {
    let instance = |n: usize| {
        let host = format!("{net}.{}.{}", n / 200, n % 200);
        json!({ "service": "shop", "id": format!("i{n:04}"), "host": host, "port": 80, "metadata": metadata, "health": if n.is_multiple_of(7) { "critical" } else { "passing" } })
    };
    let list: Vec<Value> = numbers.map(instance).collect();
    for some in list.chunks(100) {
        let path = format!("/v1/namespaces/{namespace}/instances");
        let answer = node.send("POST", &path, &json!({ "instances": some })).await;
        assert_eq!(answer.json()["failed"], 0, "{}", answer.body);
    }
}

/// Returns the hosts in the answers to a client over gRPC, and to one over HTTP.
async fn both(node: &RegistryNode, agent: &mut Agent, namespace: &str, clusters: &str, healthy: bool) -> [Value; 2] {
    let asked = json!({ "do": "hosts", "service": "shop", "clusters": clusters, "healthy": healthy });
    let grpc = agent.ask(asked, "hosts").await;
    let path = format!(
        "/nacos/v1/ns/instance/list?serviceName=shop&namespaceId={namespace}&clusters={clusters}&healthyOnly={healthy}"
    );
    let mut http = node.get(&path).await.json()["hosts"].take();
    for host in http.as_array_mut().unwrap() {
        // Without the fields that the client ignores.
        let known = grpc[0].as_object().unwrap_or_else(|| panic!("no host over gRPC: {host}"));
        host.as_object_mut().unwrap().retain(|field, _| known.contains_key(field));
    }
    [grpc, http]
}

/// Checks that all lists are the same both ways; returns the number of hosts, and of healthy ones.
async fn agree(node: &RegistryNode, agent: &mut Agent, namespace: &str) -> (usize, usize) {
    let mut counts = Vec::new();
    for (clusters, healthy) in [("", false), ("", true), ("DEFAULT", false), ("DEFAULT,other", true)] {
        let [grpc, http] = both(node, agent, namespace, clusters, healthy).await;
        assert!(grpc == http, "{namespace} {clusters:?} {healthy}:\n{grpc}\n{http}");
        counts.push(grpc.as_array().unwrap().len());
    }
    assert_eq!(counts[..2], counts[2..], "a cluster that all are in");
    (counts[0], counts[1])
}

/// Two namespaces with a service of one name; three changes in one of them, of which the other gets nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registry_nacos_grpc_lists_are_those_of_http() {
    let doors = Doors::new();
    let node = RegistryNode::start(&doors.key()).await;
    let _logs = ShowLogs(node.dir());
    put(&node, "tenant-a", "10.1", 0..MANY, &json!({ "v": "1", "text": "\"\\ü\n" })).await;
    put(&node, "tenant-b", "10.2", 0..MANY, &json!({ "v": "1" })).await;
    let mut a = Agent::start_with(&doors.address(), "tenant-a", &[]).await;
    let mut b = Agent::start_with(&doors.address(), "tenant-b", &[]).await;
    for (agent, net) in [(&mut a, "10.1"), (&mut b, "10.2")] {
        agent.ask(json!({ "do": "subscribe", "service": "shop" }), "subscribed").await;
        let all = ips(net, 0..MANY);
        agent.hears("shop", &all.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    let unwell = |numbers: std::ops::Range<usize>| numbers.filter(|n| n % 7 == 0).count();
    assert_eq!(agree(&node, &mut a, "tenant-a").await, (MANY, MANY - unwell(0..MANY)));
    let of_b = both(&node, &mut b, "tenant-b", "", false).await;
    assert_eq!(agree(&node, &mut b, "tenant-b").await, (MANY, MANY - unwell(0..MANY)));

    let isolate = async |isolate: bool| {
        let path = "/v1/namespaces/tenant-a/instances/i0100";
        assert_eq!(node.send("PATCH", path, &json!({ "isolate": isolate })).await.status, 200);
    };
    let hears = async |a: &mut Agent, numbers: Vec<usize>| {
        let ips = ips("10.1", numbers.into_iter());
        a.hears("shop", &ips.iter().map(String::as_str).collect::<Vec<_>>()).await;
    };
    // One instance is isolated; pieces are split by many more; one comes back, and others change.
    isolate(true).await;
    hears(&mut a, (0..MANY).filter(|n| *n != 100).collect()).await;
    assert_eq!(agree(&node, &mut a, "tenant-a").await, (MANY - 1, MANY - 1 - unwell(0..MANY)));
    put(&node, "tenant-a", "10.1", MANY..2 * MANY, &json!({})).await;
    hears(&mut a, (0..2 * MANY).filter(|n| *n != 100).collect()).await;
    assert_eq!(agree(&node, &mut a, "tenant-a").await, (2 * MANY - 1, 2 * MANY - 1 - unwell(0..2 * MANY)));
    put(&node, "tenant-a", "10.1", 5..6, &json!({ "v": "2" })).await;
    isolate(false).await;
    hears(&mut a, (0..2 * MANY).collect()).await;
    assert_eq!(agree(&node, &mut a, "tenant-a").await, (2 * MANY, 2 * MANY - unwell(0..2 * MANY)));
    let [shown, _] = both(&node, &mut a, "tenant-a", "", false).await;
    let changed = shown.as_array().unwrap().iter().filter(|host| host["metadata"] == json!({ "v": "2" })).count();
    assert_eq!(changed, 1);

    // The other namespace is unchanged, and got nothing.
    assert_eq!(both(&node, &mut b, "tenant-b", "", false).await, of_b);
    assert!(b.heard.is_empty(), "{:?}", b.heard);
    assert!(of_b[0].as_array().unwrap().iter().all(|host| host["ip"].as_str().unwrap().starts_with("10.2.")));
}
