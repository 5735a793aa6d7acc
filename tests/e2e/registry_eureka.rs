//! Replication between this registry and other Eureka servers. The other server here is a registry on a store of its own, which speaks the same
//! protocol; Eureka's own server is beside it in tests/peers.

use std::path::Path;

use kingpost_tests::{RegistryNode, SOON, ShowLogs, wait_until};
use serde_json::{Value, json};

/// Returns the settings of replication with a server, behind those of `[registry]`.
fn servers(urls: &[String], more: &str) -> String {
    urls.iter().map(|url| format!("[[registry.eureka.servers]]\nurl = \"{url}/eureka\"\n{more}\n")).collect()
}

async fn register(node: &RegistryNode, id: &str, dirty: u64, fields: Value) {
    let mut instance = json!({
        "instanceId": id, "hostName": "h", "app": "SHOP", "ipAddr": "10.0.0.1", "status": "UP", "vipAddress": "shop",
        "port": { "$": 80, "@enabled": "true" }, "leaseInfo": { "durationInSecs": 60 }, "lastDirtyTimestamp": dirty.to_string(),
    });
    instance.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    let answer = node.send("POST", "/eureka/apps/SHOP", &json!({ "instance": instance })).await;
    assert_eq!(answer.status, 204, "{}", answer.body);
}

async fn change(node: &RegistryNode, method: &str, path: &str) -> u16 {
    node.ask(method, &format!("/eureka/apps/SHOP/{path}"), &[], "").await.status
}

/// Returns the instances of the application: id, status, override and the metadata `zone` of each.
async fn seen(node: &RegistryNode) -> Option<Vec<String>> {
    let answer = node.try_ask("GET", "/eureka/apps", &[("Accept", "application/json")], "").await?;
    let whole: Value = serde_json::from_str(&answer.body).ok()?;
    let applications = whole["applications"]["application"].as_array()?.iter();
    let instances = applications.flat_map(|application| application["instance"].as_array().into_iter().flatten());
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let mut seen: Vec<String> = instances
        .map(|one| {
            let fields = [&one["instanceId"], &one["status"], &one["overriddenStatus"], &one["metadata"]["zone"]];
            fields.map(text).join(" ")
        })
        .collect();
    seen.sort();
    Some(seen)
}

/// Waits until all nodes see these instances.
async fn see(nodes: &[&RegistryNode], logs: &Path, expected: &[&str]) {
    for node in nodes {
        let what = format!("port {} to see {expected:?}", node.port());
        wait_until(&what, SOON, logs, async || (seen(node).await? == *expected).then_some(())).await;
    }
}

#[tokio::test]
async fn changes_go_from_each_side_to_the_other() {
    let mut other = RegistryNode::start("").await;
    let replicating = servers(&[other.url()], "");
    let first = RegistryNode::start(&replicating).await;
    let store = format!("sqlite:{}", first.dir().join("registry.sqlite").display());
    let second = RegistryNode::start_on(Some(&store), &replicating).await;
    let _logs = ShowLogs(first.dir());
    let logs = first.dir();
    // The other server starts again, with a node of this side among its own servers.
    other.end(libc::SIGTERM).await;
    let file = other.dir().join("kingpost.toml");
    let text = std::fs::read_to_string(&file).expect("read its configuration");
    let text = text.replace("[metrics]", &format!("{}[metrics]", servers(&[first.url()], "")));
    std::fs::write(&file, text).expect("write its configuration");
    // What is registered meanwhile is told later.
    register(&second, "meanwhile", 1, json!({})).await;
    other.start_again().await;
    let all = [&first, &second, &other];
    see(&all, logs, &["meanwhile UP UNKNOWN -"]).await;
    // The other server may have it from its own first look, and be told later: a removal in between would be undone for a lease.
    let told = async || {
        let metrics = second.metrics().await;
        (metrics.sum("kingpost_registry_eureka_sent_total", &[]) == 1.0).then_some(())
    };
    wait_until("the second node to tell it", SOON, logs, told).await;
    assert_eq!(change(&other, "DELETE", "meanwhile").await, 200);
    see(&all, logs, &[]).await;

    register(&first, "a", 10, json!({ "metadata": { "zone": "one" } })).await;
    register(&other, "b", 10, json!({ "metadata": { "zone": "two" } })).await;
    see(&all, logs, &["a UP UNKNOWN one", "b UP UNKNOWN two"]).await;
    // Overrides, and their end, on the side where the instance did not register.
    assert_eq!(change(&other, "PUT", "a/status?value=OUT_OF_SERVICE&lastDirtyTimestamp=11").await, 200);
    assert_eq!(change(&second, "PUT", "b/status?value=DOWN&lastDirtyTimestamp=11").await, 200);
    see(&all, logs, &["a OUT_OF_SERVICE OUT_OF_SERVICE one", "b DOWN DOWN two"]).await;
    assert_eq!(change(&first, "DELETE", "a/status?value=UP&lastDirtyTimestamp=12").await, 200);
    assert_eq!(change(&second, "PUT", "b/metadata?zone=three").await, 200);
    see(&all, logs, &["a UP UNKNOWN one", "b DOWN DOWN three"]).await;
    // The clients change sides, by a heartbeat or by registering again.
    assert_eq!(change(&other, "PUT", "a?lastDirtyTimestamp=12").await, 200);
    register(&first, "b", 13, json!({ "metadata": { "zone": "four" } })).await;
    see(&all, logs, &["a UP UNKNOWN one", "b DOWN DOWN four"]).await;
    // An older registration at one side gives way to the newer at the other.
    assert_eq!(change(&first, "DELETE", "b").await, 200);
    see(&all, logs, &["a UP UNKNOWN one"]).await;
    assert_eq!(change(&other, "DELETE", "a").await, 200);
    see(&all, logs, &[]).await;

    // Nothing that was replicated is replicated again: each side has sent what its own clients changed.
    let sent = async |node: &RegistryNode| {
        let metrics = node.metrics().await;
        metrics.sum("kingpost_registry_eureka_sent_total", &[])
    };
    let (first_sent, second_sent) = (sent(&first).await, sent(&second).await);
    assert!(first_sent <= 5.0 && second_sent <= 4.0, "{first_sent} and {second_sent}");
    for node in [&first, &second] {
        assert_eq!(node.metrics().await.sum("kingpost_registry_eureka_refused_total", &[]), 0.0);
    }
}

#[tokio::test]
async fn a_server_that_is_gone_or_refuses_is_seen_in_the_metrics_and_holds_nothing_up() {
    let token = "sha256 = \"2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\"\nrole = \"write\"\n";
    let locked =
        RegistryNode::start(&format!("auth = \"tokens\"\n[[registry.tokens]]\nname = \"peer\"\n{token}")).await;
    let file = locked.dir().join("password");
    std::fs::write(&file, "wrong\n").expect("write a password");
    let more = format!("user = \"any\"\npassword_file = \"{}\"", file.display());
    // Nobody listens on the second's port.
    let gone = kingpost_tests::Port::reserve();
    let urls = [locked.url(), format!("http://127.0.0.1:{}", gone.number())];
    let node = RegistryNode::start(&servers(&urls, &more)).await;
    let _logs = ShowLogs(node.dir());
    register(&node, "a", 1, json!({})).await;
    assert_eq!(change(&node, "PUT", "a?lastDirtyTimestamp=1").await, 200);
    let reached = async |number: usize| {
        let label = [("server", format!("{}/eureka", urls[number]))];
        let labels: Vec<(&str, &str)> = label.iter().map(|(name, value)| (*name, value.as_str())).collect();
        node.metrics().await.sum("kingpost_registry_eureka_server_reached", &labels)
    };
    let waiting = async || node.metrics().await.sum("kingpost_registry_eureka_server_waiting", &[]);
    assert_eq!((reached(0).await, reached(1).await, waiting().await), (0.0, 0.0, 2.0));
    // The password is read again after a refusal.
    std::fs::write(&file, "secret\n").expect("write the password");
    let asked = async || {
        let headers = [("Authorization", "Bearer secret"), ("Accept", "application/json")];
        let answer = locked.ask("GET", "/eureka/apps/SHOP/a", &headers, "").await;
        (answer.status == 200).then_some(())
    };
    wait_until("the instance to be at the server", SOON, node.dir(), asked).await;
    wait_until("the server to count as reached", SOON, node.dir(), async || (reached(0).await == 1.0).then_some(()))
        .await;
    assert_eq!((reached(1).await, waiting().await), (0.0, 1.0));
    let log = std::fs::read_to_string(node.process().log()).expect("read the log");
    assert!(!log.contains("secret") && !log.contains("wrong") && log.contains("takes no changes"), "{log}");
}
