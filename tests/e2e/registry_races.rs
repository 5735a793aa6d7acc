//! Two concurrent requests of Eureka's or Consul's clients about one instance, each a change of a part: both are answered 200, and both take effect.

use kingpost_tests::{RegistryNode, ShowLogs};
use serde_json::{Value, json};

/// Rounds of each pair. Without the condition on the write, a third to nearly all of them lost one of two.
const ROUNDS: usize = 60;

async fn eureka(node: &RegistryNode, n: usize) -> String {
    let id = format!("i{n}");
    let instance =
        json!({ "instanceId": id, "hostName": "h", "ipAddr": "10.0.0.1", "port": { "$": 80, "@enabled": "true" } });
    let answer = node.send("POST", "/eureka/apps/SHOP", &json!({ "instance": instance })).await;
    assert_eq!(answer.status, 204, "{}", answer.body);
    format!("/eureka/apps/SHOP/{id}")
}

async fn eureka_shown(node: &RegistryNode, path: &str) -> Value {
    node.ask("GET", path, &[("Accept", "application/json")], "").await.json()["instance"].clone()
}

async fn consul(node: &RegistryNode, id: &str, port: u16) -> u16 {
    let service = json!({ "ID": id, "Name": "web", "Port": port });
    node.send("PUT", "/v1/agent/service/register", &service).await.status
}

async fn consul_check(node: &RegistryNode, id: &str) -> u16 {
    let check = json!({ "ID": format!("service:{id}"), "Name": "alive", "ServiceID": id, "TTL": "60s" });
    node.send("PUT", "/v1/agent/check/register", &check).await.status
}

#[tokio::test]
async fn of_two_changes_at_once_none_is_lost() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let put = async |path: String| node.ask("PUT", &path, &[], "").await.status;
    let mut lost = [const { Vec::new() }; 4];
    for n in 0..ROUNDS {
        let path = eureka(&node, n).await;
        let both = tokio::join!(put(format!("{path}/metadata?a=1")), put(format!("{path}/metadata?b=1")));
        assert_eq!(both, (200, 200));
        let shown = eureka_shown(&node, &path).await;
        if json!([shown["metadata"]["a"], shown["metadata"]["b"]]) != json!(["1", "1"]) {
            lost[0].push(shown);
        }
        let both =
            tokio::join!(put(format!("{path}/status?value=OUT_OF_SERVICE")), put(format!("{path}/metadata?c=1")));
        assert_eq!(both, (200, 200));
        let shown = eureka_shown(&node, &path).await;
        if json!([shown["status"], shown["metadata"]["c"]]) != json!(["OUT_OF_SERVICE", "1"]) {
            lost[1].push(shown);
        }
        let id = format!("w{n}");
        assert_eq!(consul(&node, &id, 1).await, 200);
        assert_eq!(tokio::join!(consul_check(&node, &id), consul(&node, &id, 2)), (200, 200));
        let shown = node.get(&format!("/v1/agent/service/{id}")).await.json();
        if shown["Port"] != 2 {
            lost[2].push(shown);
        }
        let deregister = async || node.ask("PUT", &format!("/v1/agent/service/deregister/{id}"), &[], "").await.status;
        let (check, gone) = tokio::join!(consul_check(&node, &id), deregister());
        // A check that comes after the end of its service has no service to belong to.
        assert!(gone == 200 && matches!(check, 200 | 404), "{check} {gone}");
        let shown = node.get(&format!("/v1/agent/service/{id}")).await;
        if shown.status != 404 {
            lost[3].push(shown.json());
        }
    }
    let counts = lost.each_ref().map(Vec::len);
    assert_eq!(
        counts, [0; 4],
        "of {ROUNDS} each: metadata and metadata, status and metadata, check and port, check and end"
    );
}

#[tokio::test]
async fn many_changes_of_one_instance_all_take_effect() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let path = eureka(&node, 0).await;
    let change = async |n: usize| {
        let answer = node.ask("PUT", &format!("{path}/metadata?key{n}={n}"), &[], "").await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    };
    // Fewer than the allowed entries of an instance.
    futures_util::future::join_all((0..50).map(change)).await;
    let shown = eureka_shown(&node, &path).await;
    let there = (0..50).filter(|n| shown["metadata"][format!("key{n}")].as_str() == Some(&*n.to_string())).count();
    assert_eq!(there, 50, "{shown}");
}
