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
            "selector": { "type": "none", "contextType": "NONE" }, "clusters": clusters.iter().map(|name| cluster(name)).collect::<Vec<_>>(),
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
        ("DELETE", "serviceName=shop", 400, "instances"),
        ("PATCH", "serviceName=shop", 405, ""),
    ] {
        let (status, body) = node.ask(method, &format!("/nacos/v1/ns/service?{query}"), "").await;
        assert!(status == expected && body.contains(said), "{method} {query}: {status} {body}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_is_created_changed_and_removed() {
    let node = Node::alone().await;
    let label = "selector=%7B%22type%22:%22label%22,%22expression%22:%22a%3Db%22%7D";
    for (version, answer) in [
        ("/nacos/v1/ns/service", "ok"),
        ("/nacos/v2/ns/service", r#""data":"ok""#),
        ("/nacos/v3/admin/ns/service", r#""data":"ok""#),
    ] {
        let at = format!("{version}?serviceName=shop&groupName=g");
        for (method, more, status, said) in [
            ("PUT", "&protectThreshold=0.5", 400, "no service"),
            ("DELETE", "", 400, "no service"),
            ("POST", "&protectThreshold=2", 400, "protectThreshold"),
            ("POST", "&metadata=kingpost.nacos%3D1", 400, "reserved"),
            ("POST", "&protectThreshold=0.5&metadata=a%3Db", 200, answer),
            ("POST", "", 400, "already exists"),
            ("GET", "", 200, r#""protectThreshold":0.5"#),
            ("GET", "", 200, r#"{"a":"b"}"#),
            ("PUT", &*format!("&protectThreshold=0.25&{label}"), 200, answer),
            ("GET", "", 200, r#""protectThreshold":0.25"#),
            ("GET", "", 200, r#""metadata":{}"#),
            ("GET", "", 200, r#""expression":"a=b""#),
        ] {
            let (found, body) = node.ask(method, &format!("{at}{more}"), "").await;
            assert!(found == status && body.contains(said), "{method} {at}{more}: {found} {body}");
        }
        let list = format!("{version}/list?groupName=g&pageNo=1&pageSize=10");
        assert!(node.ask("GET", &list, "").await.1.contains("\"shop\""), "an empty service is shown: {list}");
        assert!(!node.ask("GET", &format!("{list}&ignoreEmptyService=true"), "").await.1.contains("\"shop\""));
        let (status, body) = node.ask("DELETE", &at, "").await;
        assert!(status == 200 && body.contains(answer), "{status} {body}");
        assert!(!node.ask("GET", &list, "").await.1.contains("\"shop\""));
    }
    let (status, body) = node.ask("PUT", "/nacos/v1/ns/service?serviceName=shop", "").await;
    assert!(status == 400 && body.contains("protectThreshold is missing"), "{status} {body}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_instances_are_healthy_when_the_threshold_is_reached() {
    let node = Node::alone().await;
    for (id, health) in [("a", "passing"), ("b", "critical"), ("c", "critical")] {
        let path = format!("/v1/namespaces/public/services/shop/instances/{id}");
        let body = json!({ "host": "10.0.0.1", "port": 80, "health": health }).to_string();
        let (status, body) = node.ask("PUT", &path, &body).await;
        assert!(status < 300, "{status} {body}");
    }
    let list = async |more: &str| {
        let answer = node.get(&format!("/nacos/v1/ns/instance/list?serviceName=shop{more}")).await;
        let healthy = answer["hosts"].as_array().unwrap().iter().filter(|host| host["healthy"] == true).count();
        (healthy, answer["hosts"].as_array().unwrap().len(), answer["reachProtectionThreshold"].as_bool().unwrap())
    };
    assert_eq!(list("").await, (1, 3, false), "no record, no protection");
    for (threshold, all, healthy_only) in [
        ("0.3", (1, 3, false), (1, 1, false)),
        ("0.34", (3, 3, true), (1, 1, false)),
        ("1", (3, 3, true), (1, 1, true)),
        ("0", (1, 3, false), (1, 1, false)),
    ] {
        let path = format!("/nacos/v1/ns/service?serviceName=shop&protectThreshold={threshold}");
        assert_eq!(node.ask("PUT", &path, "").await, (200, "ok".into()), "{path}");
        for (query, expected) in [
            ("", all),
            ("&clusters=DEFAULT", all),
            ("&healthyOnly=true", healthy_only),
            ("&clusters=none", (0, 0, false)),
        ] {
            assert_eq!(list(query).await, expected, "{threshold}: {query}");
        }
    }
}

/// A persistent instance has no beats: it is not there for a beat, which does not make it ephemeral.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_beat_leaves_a_persistent_instance_as_it_is() {
    let node = Node::alone().await;
    let at = "serviceName=shop&ip=127.0.0.1&port=80";
    let answer = node.ask("POST", &format!("/nacos/v1/ns/instance?{at}&ephemeral=false"), "").await;
    assert_eq!(answer, (200, "ok".into()));
    let beat = json!({ "ip": "127.0.0.1", "port": 80, "cluster": "DEFAULT" }).to_string();
    let beat = beat.replace('"', "%22").replace('{', "%7B").replace('}', "%7D");
    for (more, status, said) in [
        (String::new(), 200, "20404"),
        ("&ephemeral=false".into(), 200, "20404"),
        (format!("&beat={beat}"), 400, "persistent"),
    ] {
        let (found, body) = node.ask("PUT", &format!("/nacos/v1/ns/instance/beat?{at}{more}"), "").await;
        assert!(found == status && body.contains(said), "{more}: {found} {body}");
        assert_eq!(node.get(&format!("/nacos/v1/ns/instance?{at}")).await["ephemeral"], false, "{more}");
    }
}

/// The requests of version 2 do what those of version 1 do, and answer in an envelope.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_by_version_2() {
    let node = Node::alone().await;
    let at = "serviceName=shop&groupName=g&ip=10.0.0.1&port=80";
    for (method, path, status, pointer, expected) in [
        ("GET", format!("instance?{at}"), 404, "/code", json!(20004)),
        ("POST", format!("instance?{at}&weight=2&metadata=a%3Db"), 200, "/data", json!("ok")),
        ("GET", format!("instance?{at}"), 200, "/data/weight", json!(2.0)),
        ("GET", format!("instance?{at}"), 200, "/data/service", json!("g@@shop")),
        ("GET", "instance/list?serviceName=shop&groupName=g".into(), 200, "/data/hosts/0/ip", json!("10.0.0.1")),
        ("GET", "instance/list?serviceName=shop&groupName=g".into(), 200, "/code", json!(0)),
        ("PUT", format!("instance/beat?{at}"), 200, "/code", json!(10200)),
        ("PUT", "instance/beat?serviceName=none&ip=10.0.0.1&port=80".into(), 200, "/code", json!(20404)),
        ("PATCH", format!("instance?{at}&weight=3"), 200, "/data", json!("ok")),
        ("GET", format!("instance?{at}"), 200, "/data/weight", json!(3.0)),
        ("PUT", format!("health/instance?{at}&healthy=false"), 200, "/data", json!("ok")),
        ("GET", format!("instance?{at}"), 200, "/data/healthy", json!(false)),
        ("PUT", format!("health?{at}&healthy=true"), 200, "/data", json!("ok")),
        ("GET", format!("instance?{at}"), 200, "/data/healthy", json!(true)),
        ("PUT", format!("health/instance?{at}&healthy=maybe"), 400, "/code", json!(20002)),
        ("DELETE", format!("instance?{at}"), 200, "/data", json!("ok")),
        ("GET", "instance/list?serviceName=shop&groupName=g".into(), 200, "/data/hosts", json!([])),
    ] {
        let (found, body) = node.ask(method, &format!("/nacos/v2/ns/{path}"), "").await;
        let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert!(found == status && answer.pointer(pointer) == Some(&expected), "{method} {path}: {found} {body}");
    }
    assert_eq!(
        node.ask("PUT", "/nacos/v1/ns/health/instance?serviceName=none&ip=h&port=1&healthy=true", "").await.0,
        404
    );
    // An instance that is not ephemeral is probed.
    let probed = "serviceName=probed&ip=10.0.0.1&port=80&ephemeral=false";
    assert_eq!(node.ask("POST", &format!("/nacos/v2/ns/instance?{probed}"), "").await.0, 200);
    let (status, body) = node.ask("PUT", &format!("/nacos/v2/ns/health/instance?{probed}&healthy=true"), "").await;
    assert!(status == 400 && body.contains("probes"), "{status} {body}");
    node.end().await;
}
