//! A proxy whose list of servers comes from a registry.

use kingpost_tests::{Cluster, Kingpost, Node, RegistryNode, ShowLogs};
use serde_json::json;
use toml::Value;

use crate::common::only_kingpost;

const NODES: &str = "/v1/namespaces/kingpost/services/postgres/instances";

pub(crate) async fn register(registry: &RegistryNode, node: &Node) {
    let body = json!({ "host": "127.0.0.1", "port": node.port() });
    let answer = registry.send("PUT", &format!("{NODES}/{}", node.name()), &body).await;
    assert!(answer.status < 300, "{}", answer.body);
}

/// Returns the port of the server that answers at the proxy.
async fn server(proxy: &Kingpost, hint: &str) -> u16 {
    let client = proxy.connect().await;
    let sql = format!("/* kingpost.route={hint} */ SELECT inet_server_port()");
    let row = client.query_one(&sql, &[]).await.unwrap();
    u16::try_from(row.get::<_, i32>(0)).unwrap()
}

#[tokio::test]
async fn registry_names_the_nodes_of_a_proxy() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let (primary, replica) = (cluster.primary(), cluster.replica(0));
    let mut registry = RegistryNode::start("").await;
    register(&registry, primary).await;
    // The first of the two does not exist.
    let urls = vec!["http://127.0.0.1:1".to_owned(), registry.url()];
    let proxy = Kingpost::of(&cluster)
        .set("cluster.nodes", Value::Array(Vec::new()))
        .set("cluster.from.urls", urls)
        .start()
        .await;
    assert_eq!(server(&proxy, "replica").await, primary.port(), "there is no other");

    // One more server, which gets reads.
    register(&registry, replica).await;
    let reads = async |port: u16| (server(&proxy, "replica").await == port).then_some(());
    cluster.wait("the replica to get reads", async || reads(replica.port()).await).await;
    assert_eq!(server(&proxy, "primary").await, primary.port());

    // A reload of the file keeps the list, and so does the loss of the registry.
    proxy.reload("proxy.pool.size", 7);
    registry.end(9).await;
    for _ in 0..20 {
        assert!([replica.port(), primary.port()].contains(&server(&proxy, "replica").await));
    }
    registry.start_again().await;

    // Isolated: no longer a node.
    let patch = json!({ "isolate": true });
    let path = format!("/v1/namespaces/kingpost/instances/{}", replica.name());
    let answer = registry.send("PATCH", &path, &patch).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    cluster.wait("the replica to get no reads", async || reads(primary.port()).await).await;

    // An empty list is not accepted.
    let answer =
        registry.ask("DELETE", &format!("/v1/namespaces/kingpost/instances/{}", primary.name()), &[], "").await;
    assert!(answer.status < 300, "{}", answer.body);
    let log = || std::fs::read_to_string(proxy.process().log()).unwrap_or_default();
    cluster.wait("a word about it", async || log().contains("names no node").then_some(())).await;
    assert_eq!(server(&proxy, "replica").await, primary.port());
}
