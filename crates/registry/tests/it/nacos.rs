//! Nacos' API over HTTP.

use serde_json::json;

use crate::common::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_is_described_by_its_clusters() {
    let node = Node::alone().await;
    for (name, cluster, ip) in
        [("shop", "", "10.0.0.1"), ("shop", "b", "10.0.0.2"), ("shop", "b", "10.0.0.3"), ("g@@shop", "c", "10.0.0.4")]
    {
        let path = format!("/nacos/v1/ns/instance?serviceName={name}&clusterName={cluster}&ip={ip}&port=80");
        assert_eq!(node.ask("POST", &path, "").await, (200, "ok".into()), "{path}");
    }
    let cluster = |name: &str| json!({ "name": name, "healthChecker": { "type": "TCP" }, "metadata": {} });
    let described = |group: &str, clusters: &[&str]| {
        json!({
            "namespaceId": "public", "groupName": group, "name": "shop", "protectThreshold": 0.0, "metadata": {},
            "selector": { "type": "none" }, "clusters": clusters.iter().map(|name| cluster(name)).collect::<Vec<_>>(),
        })
    };
    for (query, expected) in [
        ("serviceName=shop", described("DEFAULT_GROUP", &["DEFAULT", "b"])),
        ("serviceName=DEFAULT_GROUP@@shop&namespaceId=public", described("DEFAULT_GROUP", &["DEFAULT", "b"])),
        ("serviceName=shop&groupName=g", described("g", &["c"])),
    ] {
        assert_eq!(node.get(&format!("/nacos/v1/ns/service?{query}")).await, expected, "{query}");
    }
    for (method, query, expected, said) in [
        ("GET", "serviceName=none", 400, "no service \"DEFAULT_GROUP@@none\" in the namespace \"public\""),
        (
            "GET",
            "serviceName=shop&namespaceId=other",
            400,
            "no service \"DEFAULT_GROUP@@shop\" in the namespace \"other\"",
        ),
        ("GET", "", 400, "serviceName"),
        ("POST", "serviceName=new", 405, ""),
        ("DELETE", "serviceName=shop", 405, ""),
    ] {
        let (status, body) = node.ask(method, &format!("/nacos/v1/ns/service?{query}"), "").await;
        assert!(status == expected && body.contains(said), "{method} {query}: {status} {body}");
    }
}
