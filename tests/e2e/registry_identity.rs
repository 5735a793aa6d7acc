//! Clients of Consul and Eureka whose ids are unique on a node, or in an application, but not in the registry: none replaces another.

use std::collections::BTreeSet;

use kingpost_tests::{Kingpost, RegistryNode, ShowLogs};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Returns the hosts of a Consul service, from `/v1/health/service`: node, service id, address.
async fn consul_hosts(node: &RegistryNode, service: &str) -> BTreeSet<[String; 3]> {
    let entries = node.get(&format!("/v1/health/service/{service}")).await.json();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let entry = |entry: &Value| {
        [text(&entry["Node"]["Node"]), text(&entry["Service"]["ID"]), text(&entry["Service"]["Address"])]
    };
    entries.as_array().unwrap().iter().map(entry).collect()
}

fn set<const N: usize>(rows: [[&str; 3]; N]) -> BTreeSet<[String; 3]> {
    rows.into_iter().map(|row| row.map(str::to_owned)).collect()
}

/// Registers a Consul service from another address of the loopback: for the registry, another host.
async fn register_from(from: &str, node: &RegistryNode, service: &Value) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    let mut stream = socket.connect(([127, 0, 0, 1], node.port()).into()).await.unwrap();
    let body = service.to_string();
    let head = format!(
        "PUT /v1/agent/service/register HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn consul_hosts_with_one_service_id_are_two_instances() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    // Without an ID, as its clients register: Consul takes the name, which is unique on an agent. Each client is a host of its own.
    for (from, address) in [("127.0.0.2", "10.0.0.1"), ("127.0.0.3", "10.0.0.2")] {
        let sent = json!({ "Name": "web", "Address": address, "Port": 80, "Check": { "TTL": "60s" } });
        register_from(from, &node, &sent).await;
    }
    assert_eq!(
        consul_hosts(&node, "web").await,
        set([["10.0.0.1", "web", "10.0.0.1"], ["10.0.0.2", "web", "10.0.0.2"]])
    );
    // A host's own id takes precedence over all others; here it is the host of the tests' address.
    let own = json!({ "Name": "web", "Port": 81, "Check": { "TTL": "60s" } });
    assert_eq!(node.send("PUT", "/v1/agent/service/register", &own).await.status, 200);
    assert_eq!(node.send("PUT", "/v1/agent/check/pass/service:web", &json!({})).await.status, 200);
    let passing = node.get("/v1/health/service/web?passing").await.json();
    assert_eq!((passing.as_array().unwrap().len(), &passing[0]["Service"]["Port"]), (1, &json!(81)), "{passing}");
    let shown = node.get("/v1/agent/services").await.json();
    assert_eq!((shown.as_object().unwrap().len(), &shown["web"]["Port"]), (3, &json!(81)), "{shown}");
    assert_eq!(node.send("PUT", "/v1/agent/service/deregister/web", &json!({})).await.status, 200);
    // Between two others there is no guess.
    let answer = node.send("PUT", "/v1/agent/service/deregister/web", &json!({})).await;
    assert_eq!(answer.status, 409, "{}", answer.body);
    assert!(answer.body.contains("10.0.0.1") && answer.body.contains("10.0.0.2"), "{}", answer.body);
    let one = json!({ "Node": "10.0.0.1", "ServiceID": "web" });
    assert_eq!(node.send("PUT", "/v1/catalog/deregister", &one).await.status, 200);
    assert_eq!(consul_hosts(&node, "web").await, set([["10.0.0.2", "web", "10.0.0.2"]]));
    // An id of only one host is found from everywhere.
    assert_eq!(node.send("PUT", "/v1/agent/service/deregister/web", &json!({})).await.status, 200);
    assert_eq!(consul_hosts(&node, "web").await, set([]));
    assert_eq!(node.send("PUT", "/v1/agent/service/deregister/web", &json!({})).await.status, 404);
}

#[tokio::test]
async fn one_service_id_on_two_catalog_nodes_is_two_instances_also_when_imported() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    for (name, address) in [("n2", "10.0.0.2"), ("n3", "10.0.0.3")] {
        let service = json!({ "ID": "s2", "Service": "shop", "Port": 80, "Tags": [name] });
        let sent = json!({ "Node": name, "Address": address, "Service": service });
        assert_eq!(node.send("PUT", "/v1/catalog/register", &sent).await.status, 200);
    }
    let both = set([["n2", "s2", "10.0.0.2"], ["n3", "s2", "10.0.0.3"]]);
    assert_eq!(consul_hosts(&node, "shop").await, both);
    let imported = RegistryNode::start("").await;
    let import = Kingpost::run(&["registry", "import", "--from-consul", &node.url(), "--url", &imported.url()]);
    let said = String::from_utf8_lossy(&import.stderr).into_owned();
    assert!(import.status.success() && said.contains("2 of 2"), "{said}");
    assert_eq!(consul_hosts(&imported, "shop").await, both, "as many as it said");
    // The service itself registers at its new registry: it is the imported one.
    let itself = json!({ "ID": "s2", "Name": "shop", "Address": "10.0.0.2", "Port": 80 });
    assert_eq!(imported.send("PUT", "/v1/agent/service/register", &itself).await.status, 200);
    assert_eq!(consul_hosts(&imported, "shop").await, both);
    let gone = json!({ "Node": "n3", "ServiceID": "s2" });
    assert_eq!(imported.send("PUT", "/v1/catalog/deregister", &gone).await.status, 200);
    assert_eq!(consul_hosts(&imported, "shop").await, set([["n2", "s2", "10.0.0.2"]]));
}

#[tokio::test]
async fn eureka_applications_on_one_host_leave_each_other_alone() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let register = async |app: &str, port: u16| {
        // Without an instanceId Eureka takes the name of the host, which is unique in an application.
        let instance = json!({ "hostName": "host-a", "ipAddr": "10.0.0.1", "app": app, "port": { "$": port, "@enabled": "true" } });
        let answer = node.send("POST", &format!("/eureka/apps/{app}"), &json!({ "instance": instance })).await;
        assert_eq!(answer.status, 204, "{}", answer.body);
    };
    register("ORDERS", 80).await;
    register("STOCK", 81).await;
    for (app, port) in [("ORDERS", 80), ("STOCK", 81)] {
        let beat = node.ask("PUT", &format!("/eureka/apps/{app}/host-a"), &[], "").await;
        assert_eq!(beat.status, 200, "{app}: {}", beat.body);
        let json = [("Accept", "application/json")];
        let shown = node.ask("GET", &format!("/eureka/apps/{app}/host-a"), &json, "").await.json();
        let instance = &shown["instance"];
        assert_eq!(
            json!([instance["instanceId"], instance["app"], instance["port"]["$"]]),
            json!(["host-a", app, port])
        );
    }
    assert_eq!(node.ask("DELETE", "/eureka/apps/ORDERS/host-a", &[], "").await.status, 200);
    assert_eq!(node.ask("PUT", "/eureka/apps/ORDERS/host-a", &[], "").await.status, 404);
    assert_eq!(node.ask("PUT", "/eureka/apps/STOCK/host-a", &[], "").await.status, 200);
    // The other fronts show the instance under its client's id.
    let native = node.get("/v1/namespaces/default/services/stock/instances").await.json();
    let instance = &native["instances"][0];
    assert_eq!(json!([instance["id"], instance["metadata"]["kingpost.id"]]), json!(["eureka:host-a@STOCK", "host-a"]));
}
