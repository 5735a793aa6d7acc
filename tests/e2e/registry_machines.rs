//! Checks and maintenance of a node, which count for all services on it: through Consul's API, and as the other fronts show them.

use kingpost_tests::{Cluster, RegistryNode, SOON, ShowLogs, wait_until};
use serde_json::{Value, json};

async fn put(node: &RegistryNode, path: &str, body: &Value) -> u16 {
    node.send("PUT", path, body).await.status
}

/// Returns a check without the registry's own counters.
fn plain(check: &Value) -> Value {
    let mut check = check.clone();
    let map = check.as_object_mut().unwrap();
    for key in ["CreateIndex", "ModifyIndex"] {
        assert!(map.remove(key).is_some_and(|index| index.is_u64()), "{key}");
    }
    check
}

/// Returns the nodes of a service's passing instances, by Consul's API; and the number of usable ones, by the registry's own API.
async fn passing(node: &RegistryNode, service: &str, namespace: &str) -> (Vec<String>, usize) {
    let found = node.get(&format!("/v1/health/service/{service}?passing&ns={namespace}")).await.json();
    let mut nodes: Vec<String> =
        found.as_array().unwrap().iter().map(|entry| entry["Node"]["Node"].as_str().unwrap().to_owned()).collect();
    nodes.sort();
    let own = node.get(&format!("/v1/namespaces/{namespace}/services/{service}/instances?usable=true")).await;
    let own = if own.status == 200 { own.json()["instances"].as_array().unwrap().len() } else { 0 };
    (nodes, own)
}

/// Returns the ids of a list of checks, with their status.
fn ids(list: &Value) -> Vec<String> {
    let text = |check: &Value| format!("{} {}", check["CheckID"].as_str().unwrap(), check["Status"].as_str().unwrap());
    let mut ids: Vec<String> = list.as_array().unwrap().iter().map(text).collect();
    ids.sort();
    ids
}

/// Makes two namespaces; in each a node of the asking agent (127.0.0.1), with a service of its own address and one of another, and an unrelated node
/// of the catalog.
async fn world(node: &RegistryNode) {
    for namespace in ["default", "other"] {
        for (id, address) in [("here", ""), ("moved", "10.0.0.9")] {
            let sent = json!({ "ID": id, "Name": "web", "Address": address, "Port": 80 });
            assert_eq!(put(node, &format!("/v1/agent/service/register?ns={namespace}"), &sent).await, 200);
        }
        let far = json!({ "Node": "far", "Address": "10.0.0.2", "Service": { "Service": "web", "Port": 80 } });
        assert_eq!(put(node, &format!("/v1/catalog/register?ns={namespace}"), &far).await, 200);
    }
}

/// Each field of a node's check as registered, and as each of Consul's paths shows it.
#[tokio::test]
async fn a_check_of_a_node_has_consuls_fields() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    world(&node).await;
    let shown = |id: &str, name: &str, status: &str, notes: &str, kind: &str, definition: Value| {
        // As Go writes it.
        let interval = definition["Interval"].as_str().map_or("", |_| "10m0s");
        json!({ "Node": "127.0.0.1", "CheckID": id, "Name": name, "Status": status, "Notes": notes, "Output": "",
            "ServiceID": "", "ServiceName": "", "ServiceTags": [], "Type": kind, "Interval": interval,
            "Timeout": definition["Timeout"].as_str().unwrap_or_default(), "ExposedPort": 0, "Definition": definition })
    };
    for (sent, expected) in [
        (
            json!({ "ID": "m", "Name": "Memory", "Notes": "why", "TTL": "600s", "Status": "passing" }),
            shown("m", "Memory", "passing", "why", "ttl", json!({})),
        ),
        // No id: the name is the id. No status: critical until the first report.
        (json!({ "Name": "disk", "TTL": "600s" }), shown("disk", "disk", "critical", "", "ttl", json!({}))),
        // It does not mention services, so none is deregistered.
        (
            json!({ "CheckID": "t", "Name": "T", "TCP": "10.0.0.9:1", "Interval": "600s", "Timeout": "2s",
                "DeregisterCriticalServiceAfter": "1s", "Status": "warning" }),
            shown("t", "T", "warning", "", "tcp", json!({ "TCP": "10.0.0.9:1", "Interval": "600s", "Timeout": "2s" })),
        ),
        (
            json!({ "ID": "h", "Name": "H", "HTTP": "http://10.0.0.9:1/", "Interval": "600s", "Timeout": "1s",
                "Status": "passing" }),
            shown(
                "h",
                "H",
                "passing",
                "",
                "http",
                json!({ "HTTP": "http://10.0.0.9:1/", "Interval": "600s", "Timeout": "1s" }),
            ),
        ),
        // Once more with the same id: it keeps the status.
        (
            json!({ "ID": "m", "Name": "Memory 2", "TTL": "700s" }),
            shown("m", "Memory 2", "passing", "", "ttl", json!({})),
        ),
    ] {
        let id = expected["CheckID"].as_str().unwrap();
        assert_eq!(put(&node, "/v1/agent/check/register", &sent).await, 200, "{sent}");
        let of_agent = node.get("/v1/agent/checks").await.json();
        assert_eq!(plain(&of_agent[id]), expected, "of the agent");
        let lists = [
            node.get("/v1/health/node/127.0.0.1").await.json(),
            node.get("/v1/health/state/any").await.json(),
            node.get(&format!("/v1/health/state/{}", expected["Status"].as_str().unwrap())).await.json(),
            node.get("/v1/health/service/web?filter=Service.ID+==+here").await.json()[0]["Checks"].clone(),
            node.get("/v1/health/service/web?filter=Service.ID+==+moved").await.json()[0]["Checks"].clone(),
        ];
        for (n, list) in lists.iter().enumerate() {
            let found: Vec<Value> =
                list.as_array().unwrap().iter().filter(|it| it["CheckID"] == id).map(plain).collect();
            assert_eq!(found, std::slice::from_ref(&expected), "list {n} after {sent}: {list}");
        }
    }
    // None of it is a check of the service, of another node, or in another namespace, and none of it is a service.
    assert_eq!(node.get("/v1/health/checks/web").await.json(), json!([]));
    assert_eq!(node.get("/v1/health/node/far").await.json(), json!([]));
    for path in ["/v1/health/state/any?ns=other", "/v1/health/node/127.0.0.1?ns=other"] {
        assert_eq!(node.get(path).await.json(), json!([]), "{path}");
    }
    assert_eq!(node.get("/v1/catalog/services").await.json(), json!({ "web": [] }));
    let services = node.get("/v1/namespaces/default/services").await.json();
    assert_eq!(services["services"].as_array().unwrap().len(), 1, "{services}");
    assert_eq!(node.get("/v1/health/service/kingpost.machines").await.json(), json!([]));
    assert_eq!(node.get("/v1/namespaces/default/services/kingpost.machines").await.status, 404);
    assert!(!node.get("/prometheus/targets").await.body.contains("kingpost.machine"));
    // Refusals, as for a service's check.
    for (sent, names) in [
        (json!({ "TTL": "10s" }), "Name"),
        (json!({ "Name": "x", "Args": ["true"], "Interval": "1s" }), "args"),
        (json!({ "Name": "x", "TTL": "1s", "TCP": "a:1" }), "one of"),
    ] {
        let answer = node.send("PUT", "/v1/agent/check/register", &sent).await;
        assert!(answer.status == 400 && answer.body.contains(names), "{sent}: {}", answer.body);
    }
}

/// A node's check counts for every service on the node, for every asking client, and for no other node; with each way of setting its status.
#[tokio::test]
async fn a_check_of_a_node_counts_for_all_services_on_it() {
    let mut node = RegistryNode::start("").await;
    let dir = node.dir().to_owned();
    let _logs = ShowLogs(&dir);
    world(&node).await;
    let all = || vec!["10.0.0.9".to_owned(), "127.0.0.1".into(), "far".into()];
    let far = || vec!["far".to_owned()];
    assert_eq!(passing(&node, "web", "default").await, (all(), 3));
    let check = json!({ "ID": "memory", "Name": "Memory", "TTL": "600s", "Status": "passing" });
    assert_eq!(put(&node, "/v1/agent/check/register", &check).await, 200);
    // It wakes requests that wait for the service, but not those in the other namespace.
    let index = async |namespace: &str| {
        let answer = node.get(&format!("/v1/health/service/web?ns={namespace}")).await;
        answer.header("x-consul-index").unwrap().parse::<u64>().unwrap()
    };
    let (before, other) = (index("default").await, index("other").await);
    let path = format!("/v1/health/service/web?passing&index={before}&wait=60s");
    let nothing = json!({});
    let (woken, said) = tokio::join!(node.get(&path), put(&node, "/v1/agent/check/fail/memory", &nothing));
    assert_eq!(said, 200);
    let woken = woken.json();
    assert_eq!((woken.as_array().unwrap().len(), &woken[0]["Node"]["Node"]), (1, &json!("far")), "{woken}");
    assert_eq!((index("default").await > before, index("other").await), (true, other));
    for (path, body, status, expected) in [
        ("warn/memory", json!({}), "warning", (far(), 3)),
        ("fail/memory", json!({}), "critical", (far(), 1)),
        ("update/memory", json!({ "Status": "warning" }), "warning", (far(), 3)),
        ("pass/memory", json!({}), "passing", (all(), 3)),
        ("update/memory", json!({ "Status": "critical" }), "critical", (far(), 1)),
    ] {
        assert_eq!(put(&node, &format!("/v1/agent/check/{path}"), &body).await, 200, "{path}");
        assert_eq!(passing(&node, "web", "default").await, expected, "{path}");
        assert_eq!(passing(&node, "web", "other").await, (all(), 3), "{path}");
        assert_eq!(ids(&node.get("/v1/health/node/127.0.0.1").await.json()), [format!("memory {status}")]);
        let judged = node.get("/v1/agent/health/service/id/moved").await;
        let code = match status {
            "passing" => 200,
            "warning" => 429,
            _ => 503,
        };
        assert_eq!((judged.status, &judged.json()["AggregatedStatus"]), (code, &json!(status)), "{path}");
        assert_eq!(ids(&judged.json()["Checks"]), [format!("memory {status}")]);
    }
    // In the other fronts.
    let targets = node.get("/prometheus/targets?namespace=default&service=web").await;
    assert!(
        targets.status == 200 && targets.body.contains("10.0.0.2") && !targets.body.contains("10.0.0.9"),
        "{}",
        targets.body
    );
    let nacos =
        node.get("/nacos/v1/ns/instance/list?serviceName=web&namespaceId=default&healthyOnly=true").await.json();
    assert_eq!(nacos["hosts"].as_array().map(Vec::len), Some(1), "{nacos}");
    // One registers on the node afterwards, and one was there over a restart.
    let late = json!({ "ID": "late", "Name": "web", "Port": 81 });
    assert_eq!(put(&node, "/v1/agent/service/register", &late).await, 200);
    assert_eq!(passing(&node, "web", "default").await, (far(), 1));
    node.end(libc::SIGKILL).await;
    node.start_again().await;
    assert_eq!(passing(&node, "web", "default").await, (far(), 1));
    assert_eq!(passing(&node, "web", "other").await, (all(), 3));
    // A session with this check ends with it.
    let wanted = json!({ "NodeChecks": ["memory"], "LockDelay": "0s" });
    let refused = node.send("PUT", "/v1/session/create", &wanted).await;
    assert_eq!((refused.status, refused.body.as_str()), (500, "Check 'memory' is in critical state"));
    assert_eq!(put(&node, "/v1/agent/check/pass/memory", &json!({})).await, 200);
    let session = node.send("PUT", "/v1/session/create", &wanted).await.json()["ID"].as_str().unwrap().to_owned();
    let info = node.get(&format!("/v1/session/info/{session}")).await.json();
    assert_eq!((&info[0]["NodeChecks"], &info[0]["ServiceChecks"]), (&json!(["memory"]), &Value::Null), "{info}");
    assert_eq!(put(&node, "/v1/agent/check/fail/memory", &json!({})).await, 200);
    wait_until("the end of the session", SOON, &dir, async || {
        (node.get(&format!("/v1/session/info/{session}")).await.json() == json!([])).then_some(())
    })
    .await;
    // Without the check all is as it was.
    assert_eq!(put(&node, "/v1/agent/check/deregister/memory", &json!({})).await, 200);
    assert_eq!(put(&node, "/v1/agent/check/deregister/memory", &json!({})).await, 404);
    assert_eq!(put(&node, "/v1/agent/check/pass/memory", &json!({})).await, 404);
    assert_eq!(passing(&node, "web", "default").await.1, 4);
    assert_eq!(node.get("/v1/health/node/127.0.0.1").await.json(), json!([]));
}

#[tokio::test]
async fn a_node_in_maintenance_takes_its_services_out() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    world(&node).await;
    let (all, far) = (vec!["10.0.0.9".to_owned(), "127.0.0.1".into(), "far".into()], vec!["far".to_owned()]);
    let notes = async || {
        let list = node.get("/v1/health/node/127.0.0.1").await.json();
        let check = list.as_array().unwrap().first()?;
        assert_eq!((&check["CheckID"], &check["Name"]), (&json!("_node_maintenance"), &json!("Node Maintenance Mode")));
        assert_eq!((&check["Status"], &check["ServiceID"]), (&json!("critical"), &json!("")));
        Some(check["Notes"].as_str().unwrap().to_owned())
    };
    for (path, status, found, expected) in [
        ("?enable=true&reason=a+disk", 200, &far, Some("a disk")),
        // Repeated: as in Consul the first reason stays.
        ("?enable=1&reason=another", 200, &far, Some("a disk")),
        ("?enable=maybe", 400, &far, Some("a disk")),
        ("", 400, &far, Some("a disk")),
        ("?enable=false", 200, &all, None),
        ("?enable=f", 200, &all, None),
        (
            "?enable=true",
            200,
            &far,
            Some("Maintenance mode is enabled for this node, but no reason was provided. This is a default message."),
        ),
        ("?enable=False", 200, &all, None),
    ] {
        assert_eq!(put(&node, &format!("/v1/agent/maintenance{path}"), &json!({})).await, status, "{path}");
        assert_eq!(notes().await.as_deref(), expected, "{path}");
        assert_eq!(passing(&node, "web", "default").await.0, *found, "{path}");
        assert_eq!(passing(&node, "web", "other").await.0, all, "{path}");
        let judged = node.get("/v1/agent/health/service/id/here").await;
        let aggregated = if expected.is_some() { (503, "maintenance") } else { (200, "passing") };
        assert_eq!((judged.status, judged.json()["AggregatedStatus"].as_str().unwrap()), aggregated, "{path}");
    }
    // Beside checks of the node: both are there, and the checks stay when maintenance is over.
    let check = json!({ "ID": "memory", "Name": "Memory", "TTL": "600s", "Status": "passing" });
    assert_eq!(put(&node, "/v1/agent/check/register", &check).await, 200);
    assert_eq!(put(&node, "/v1/agent/maintenance?enable=true", &json!({})).await, 200);
    let list = async || ids(&node.get("/v1/health/node/127.0.0.1").await.json());
    assert_eq!(list().await, ["_node_maintenance critical", "memory passing"]);
    assert_eq!(put(&node, "/v1/agent/check/deregister/memory", &json!({})).await, 200);
    assert_eq!(list().await, ["_node_maintenance critical"]);
    assert_eq!(passing(&node, "web", "default").await.0, far);
    assert_eq!(put(&node, "/v1/agent/maintenance?enable=false", &json!({})).await, 200);
    assert_eq!(passing(&node, "web", "default").await.0, all);
}

/// The catalog: nodes by themselves, their checks, their data, and the removal of each.
#[tokio::test]
async fn the_catalog_has_nodes_with_checks() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let register = async |body: Value, status: u16| {
        let answer = node.send("PUT", "/v1/catalog/register", &body).await;
        assert_eq!(answer.status, status, "{body}: {}", answer.body);
    };
    let named = async |path: &str| {
        let list = node.get(path).await.json();
        let mut names: Vec<String> =
            list.as_array().unwrap().iter().map(|node| node["Node"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names.retain(|name| name.starts_with('n'));
        names
    };
    // A node alone, with all its fields.
    let id = "40e4a748-2192-161a-0510-9bf59fe950b5";
    let alone = json!({ "Node": "n1", "Address": "10.0.0.1", "ID": id, "NodeMeta": { "rack": "a" },
        "TaggedAddresses": { "wan": "1.2.3.4" } });
    register(alone, 200).await;
    let mut shown = node.get("/v1/catalog/node/n1").await.json();
    let map = shown["Node"].as_object_mut().unwrap();
    assert!(map.remove("CreateIndex").is_some() && map.remove("ModifyIndex").is_some());
    assert_eq!(
        shown,
        json!({ "Node": { "ID": id, "Node": "n1", "Address": "10.0.0.1", "Datacenter": "dc1",
            "TaggedAddresses": { "lan": "10.0.0.1", "wan": "1.2.3.4" }, "Meta": { "rack": "a" } }, "Services": {} })
    );
    assert_eq!(named("/v1/catalog/nodes").await, ["n1"]);
    assert_eq!(named("/v1/catalog/nodes?node-meta=rack:a").await, ["n1"]);
    assert!(named("/v1/catalog/nodes?node-meta=rack:b").await.is_empty());
    assert!(named("/v1/catalog/nodes?ns=other").await.is_empty());
    // Its checks come with services and without, one at a time or several; those of a service name the service.
    register(
        json!({ "Node": "n1", "Address": "10.0.0.1", "NodeMeta": { "rack": "b" },
            "Service": { "ID": "w", "Service": "web", "Port": 80 },
            "Checks": [{ "CheckID": "up", "Name": "Up", "Status": "passing", "Node": "n1" },
                { "CheckID": "of-w", "Name": "Of w", "Status": "passing", "ServiceID": "w" }] }),
        200,
    )
    .await;
    register(json!({ "Node": "n1", "Address": "10.0.0.1", "Check": { "Name": "second", "Status": "warning" } }), 200)
        .await;
    register(
        json!({ "Node": "n2", "Address": "10.0.0.2", "Service": { "ID": "w", "Service": "web", "Port": 80 } }),
        200,
    )
    .await;
    assert_eq!(ids(&node.get("/v1/health/node/n1").await.json()), ["of-w passing", "second warning", "up passing"]);
    assert_eq!(ids(&node.get("/v1/health/checks/web").await.json()), ["of-w passing"]);
    assert_eq!(passing(&node, "web", "default").await, (vec!["n2".into()], 2));
    // Registered anew without metadata, the node has none any more; nor do its services, by any path.
    let entry = async || node.get("/v1/health/service/web?filter=Node.Node+==+n1").await.json()[0].clone();
    assert_eq!(entry().await["Node"]["Meta"], json!({}));
    let skipping = json!({ "Node": "n1", "Address": "10.9.9.9", "NodeMeta": { "rack": "z" }, "SkipNodeUpdate": true });
    register(skipping, 200).await;
    assert_eq!(entry().await["Node"]["Address"], "10.0.0.1");
    register(json!({ "Node": "n1", "Address": "10.0.0.7", "NodeMeta": { "rack": "c" } }), 200).await;
    assert_eq!(
        json!([entry().await["Node"]["Address"], entry().await["Node"]["Meta"]["rack"]]),
        json!(["10.0.0.7", "c"])
    );
    assert_eq!(named("/v1/catalog/service/web?node-meta=rack:c").await, ["n1"]);
    // Status of single checks, without the service.
    let of_service = json!({ "CheckID": "of-w", "Status": "critical", "ServiceID": "w" });
    register(json!({ "Node": "n1", "Address": "10.0.0.7", "SkipNodeUpdate": true, "Check": of_service }), 200).await;
    register(
        json!({ "Node": "n1", "Address": "10.0.0.7", "SkipNodeUpdate": true,
        "Check": { "CheckID": "second", "Status": "passing" } }),
        200,
    )
    .await;
    assert_eq!(ids(&node.get("/v1/health/node/n1").await.json()), ["of-w critical", "second passing", "up passing"]);
    for (body, status) in [
        (json!({ "Node": "n1", "Address": "1.1.1.1", "Check": { "Status": "passing" } }), 400),
        (json!({ "Node": "n1", "Address": "1.1.1.1", "Check": { "Name": "x", "Node": "n2" } }), 400),
        (json!({ "Node": "n1", "Address": "1.1.1.1", "Check": { "Name": "x", "ServiceID": "nothing" } }), 404),
        (json!({ "Node": "n1", "Address": "1.1.1.1", "Checks": [{ "Name": "x" }, { "Name": "x" }] }), 400),
        (
            json!({ "Node": "n1", "Address": "1.1.1.1", "Service": { "Service": "a" }, "Check": { "Name": "x", "ServiceID": "b" } }),
            400,
        ),
        (json!({ "Node": "n1" }), 400),
        (json!({ "Node": "n".repeat(250), "Address": "1.1.1.1" }), 400),
    ] {
        register(body, status).await;
    }
    // One check, one service, the node.
    let deregister = async |body: Value| put(&node, "/v1/catalog/deregister", &body).await;
    for (body, left) in [
        (json!({ "Node": "n1", "CheckID": "second" }), &["of-w critical", "up passing"][..]),
        (json!({ "Node": "n1", "CheckID": "second" }), &["of-w critical", "up passing"]),
        (json!({ "Node": "n1", "CheckID": "of-w" }), &["up passing"]),
        (json!({ "Node": "n2", "CheckID": "up" }), &["up passing"]),
        (json!({ "Node": "n1", "ServiceID": "w" }), &["up passing"]),
        (json!({ "Node": "n1" }), &[]),
    ] {
        assert_eq!(deregister(body.clone()).await, 200);
        assert_eq!(ids(&node.get("/v1/health/node/n1").await.json()), left, "{body}");
    }
    assert_eq!(named("/v1/catalog/nodes").await, ["n2"]);
    assert_eq!(node.get("/v1/catalog/node/n1").await.json(), Value::Null);
    assert_eq!(passing(&node, "web", "default").await, (vec!["n2".into()], 1));
}

/// Two nodes of the registry on one store. The check of a machine expires by itself and is probed like that of a service, both nodes show the same,
/// and the other machine's services are not affected.
#[tokio::test]
async fn a_nodes_check_expires_on_every_node_of_the_registry() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let store = cluster.primary().endpoint().url();
    let more = "[registry.health]\nprobe_allow = [\"127.0.0.1\"]";
    let (first, second) =
        (RegistryNode::start_on(Some(&store), more).await, RegistryNode::start_on(Some(&store), more).await);
    let _logs = (ShowLogs(first.dir()), ShowLogs(second.dir()));
    world(&first).await;
    let check = json!({ "ID": "beats", "Name": "Beats", "TTL": "2s", "Status": "passing" });
    assert_eq!(put(&first, "/v1/agent/check/register", &check).await, 200);
    // Refused at once: nothing listens on port 1.
    let probed =
        json!({ "ID": "probed", "Name": "Probed", "TCP": "127.0.0.1:1", "Interval": "1s", "Status": "passing" });
    assert_eq!(put(&first, "/v1/agent/check/register?ns=other", &probed).await, 200);
    for (namespace, id) in [("default", "beats"), ("other", "probed")] {
        for node in [&first, &second] {
            wait_until(&format!("{id} is critical"), SOON, node.dir(), async || {
                let found = ids(&node.get(&format!("/v1/health/node/127.0.0.1?ns={namespace}")).await.json());
                let out = passing(node, "web", namespace).await == (vec!["far".into()], 1);
                (out && found == [format!("{id} critical")]).then_some(())
            })
            .await;
        }
    }
    assert_eq!(put(&second, "/v1/agent/check/pass/beats", &json!({})).await, 200);
    wait_until("the services are back", SOON, first.dir(), async || {
        (passing(&first, "web", "default").await.1 == 3).then_some(())
    })
    .await;
    assert_eq!(passing(&second, "web", "other").await.1, 1, "another namespace's check");
}
