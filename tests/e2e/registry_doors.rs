//! Requests that the registry does not answer, data that it does not disclose, and probes that it does not send: other hosts' names, other
//! namespaces' changes, unreadable names, its own ports.

use kingpost_tests::{RegistryNode, SOON, ShowLogs, new_dir, skipped, wait_until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::relay_life::Small;

const WEB: &str = "/v1/namespaces/default/services/web/instances";

#[tokio::test]
async fn without_a_login_only_names_of_this_machine_are_answered() {
    let node = RegistryNode::start("hosts = [\"registry.internal\"]").await;
    let _logs = ShowLogs(node.dir());
    let ask = async |method: &str, path: &str, host: &str| {
        let body = r#"{"host":"h"}"#;
        let head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        node.raw(format!("{head}{host}\r\n{body}").as_bytes()).await.expect("an answer")
    };
    let port = node.port();
    for path in [WEB, "/v1/catalog/services", "/eureka/apps", "/prometheus/targets", "/v1/status/leader", "/nothing"] {
        for host in ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example"] {
            let answer = ask("GET", path, &format!("Host: {host}:{port}\r\n")).await;
            assert_eq!(answer.status, 421, "{path} as {host}: {}", answer.body);
            assert!(answer.body.contains("registry.hosts"), "{}", answer.body);
        }
    }
    assert_eq!(ask("PUT", &format!("{WEB}/a"), "Host: evil.example\r\n").await.status, 421);
    assert_eq!(node.get(WEB).await.status, 404, "nothing was registered");
    let known = [format!("127.0.0.1:{port}"), "localhost:1".into(), "[::1]:8632".into(), "registry.internal:80".into()];
    for host in known {
        let answer = ask("GET", "/v1/catalog/services", &format!("Host: {host}\r\n")).await;
        assert_eq!(answer.status, 200, "{host}: {}", answer.body);
    }
}

#[tokio::test]
async fn the_answer_to_a_body_that_is_too_large_arrives() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    // More than the sockets of both sides hold. Most clients send all of it before they read, and give up if they cannot.
    let body = vec![b' '; 16 << 20];
    for (method, path) in [
        ("POST", "/v1/namespaces/default/instances"),
        ("PUT", "/v1/agent/service/register"),
        ("POST", "/v1/namespaces/default/nothing"),
    ] {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
        let mut stream = TcpStream::connect(("127.0.0.1", node.port())).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let sent = stream.write_all(&body).await;
        assert!(sent.is_ok(), "{path}: {sent:?} instead of an answer");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap_or_else(|error| panic!("{path}: {error} instead of an answer"));
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 413 "), "{path}: {answer}");
    }
}

/// A client that keeps its connections is told that this one ends, where its request is refused before its body was read.
#[tokio::test]
async fn a_refusal_before_the_body_says_that_the_connection_ends() {
    let node = RegistryNode::start("auth = \"acl\"\n").await;
    let _logs = ShowLogs(node.dir());
    for (path, body, ends) in [("/v1/txn", "[]", true), ("/v1/txn", "", false)] {
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: localhost\r\nX-Consul-Token: unknown\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = TcpStream::connect(("127.0.0.1", node.port())).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.windows(4).any(|four| four == b"\r\n\r\n") {
            let mut some = [0; 4096];
            let read = stream.read(&mut some).await.unwrap();
            assert!(read > 0, "{path}: no answer");
            answer.extend_from_slice(&some[..read]);
        }
        let answer = String::from_utf8_lossy(&answer).to_lowercase();
        assert!(answer.starts_with("http/1.1 403 "), "{path}: {answer}");
        assert_eq!(answer.contains("connection: close"), ends, "{path} {body:?}: {answer}");
    }
}

#[tokio::test]
async fn names_that_nobody_can_read_are_refused_by_every_front() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    for name in ["we\u{202e}bsite", "shop\u{200b}", "sh\u{ad}op"] {
        let escaped: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let instance = json!({ "host": "h", "service": name });
        let polaris = json!({ "service": name, "namespace": "default", "host": "10.0.0.1", "port": 80 });
        let eureka = json!({ "instance": { "hostName": "h", "ipAddr": "10.0.0.1", "app": name, "port": { "$": 1, "@enabled": "true" } } });
        for (method, path, body) in [
            ("PUT", format!("/v1/namespaces/default/services/{escaped}/instances/a"), json!({ "host": "h" })),
            ("PUT", format!("{WEB}/{escaped}"), json!({ "host": "h" })),
            ("PUT", format!("{WEB}/zone"), json!({ "host": "h", "location": { "zone": name } })),
            ("PUT", format!("{WEB}/meta"), json!({ "host": "h", "metadata": { name: "v" } })),
            ("PUT", format!("/v1/namespaces/default/services/{escaped}"), json!({ "metadata": {} })),
            ("PUT", "/v1/agent/service/register".into(), json!({ "Name": name, "Address": "10.0.0.1" })),
            ("PUT", "/v1/agent/service/register".into(), json!({ "Name": "web", "ID": name, "Address": "10.0.0.1" })),
            (
                "PUT",
                "/v1/agent/service/register".into(),
                json!({ "Name": "web", "Tags": [name], "Address": "10.0.0.1" }),
            ),
            (
                "PUT",
                "/v1/catalog/register".into(),
                json!({ "Node": name, "Address": "10.0.0.1", "Service": { "Service": "web" } }),
            ),
            ("POST", format!("/eureka/apps/{escaped}"), eureka),
            ("POST", "/v1/RegisterInstance".into(), polaris),
            ("POST", "/v1/namespaces/default/instances".into(), json!({ "instances": [instance] })),
        ] {
            let answer = node.send(method, &path, &body).await;
            assert!(answer.status >= 400, "{method} {path} {body}: {} {}", answer.status, answer.body);
            assert!(answer.body.contains("U+"), "{method} {path}: it says which character: {}", answer.body);
        }
    }
    assert_eq!(node.get("/v1/namespaces/default/services").await.json()["services"], json!([]));
}

#[tokio::test]
async fn a_namespace_neither_shows_nor_wakes_for_the_changes_of_another() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let register = async |namespace: &str, service: &str| {
        let path = format!("/v1/namespaces/{namespace}/services/{service}/instances/{service}");
        assert_eq!(node.send("PUT", &path, &json!({ "host": "h" })).await.status, 201);
    };
    register("a", "first").await;
    register("b", "other").await;
    let indexes = async || {
        let mut found = Vec::new();
        for path in ["catalog/services", "catalog/nodes", "health/state/any", "catalog/node/kingpost"] {
            let answer = node.get(&format!("/v1/{path}?ns=a")).await;
            found.push((path, answer.header("x-consul-index").unwrap().to_owned()));
        }
        let listed = node.get("/v1/namespaces/a/services").await.json();
        found.push(("services", listed["revision"].to_string()));
        found
    };
    let before = indexes().await;
    let index = before[0].1.clone();
    register("b", "another").await;
    assert_eq!(indexes().await, before, "what changes in b does not show in a");
    // Three requests wait for a change in a; b changes, then a. A request woken by b would have answered without the change in a.
    let waiting = async |path: String| node.get(&path).await;
    let consul = waiting(format!("/v1/catalog/services?ns=a&index={index}&wait=60s"));
    let state = waiting(format!("/v1/health/state/any?ns=a&index={index}&wait=60s"));
    let native = waiting(format!("/v1/namespaces/a/services?after={index}&wait=60s"));
    let changes = async {
        let three = async || {
            let metrics = node.metrics().await;
            (metrics.sum("kingpost_registry_watchers", &[]) >= 3.0).then_some(())
        };
        wait_until("three to wait", SOON, node.dir(), three).await;
        register("b", "third").await;
        let gone = node.ask("DELETE", "/v1/namespaces/b/instances/third", &[], "").await;
        assert!(gone.status < 300, "{}", gone.body);
        register("a", "second").await;
    };
    let (consul, _, native, ()) = tokio::join!(consul, state, native, changes);
    assert!(consul.json().get("second").is_some(), "woken by another namespace: {}", consul.body);
    assert!(native.body.contains("second"), "woken by another namespace: {}", native.body);
    assert!(consul.header("x-consul-index").unwrap().parse::<u64>().unwrap() > index.parse().unwrap());
}

/// Returns the health of the instances of `web`, by id.
async fn health(node: &RegistryNode) -> Vec<(String, String)> {
    let answer = node.get(WEB).await.json();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = answer["instances"].as_array().cloned().unwrap_or_default();
    list.iter().map(|instance| (text(&instance["id"]), text(&instance["health"]))).collect()
}

fn probed(id: &str, port: u16, kind: &str) -> Value {
    let mut check = json!({ "type": kind, "interval": "1s", "timeout": "1s", "fall": 1, "rise": 1 });
    if kind == "http" {
        check["url"] = json!(format!("http://127.0.0.1:{port}/"));
    }
    json!({ "service": "web", "id": id, "host": "127.0.0.1", "port": port, "check": check })
}

#[tokio::test]
async fn who_refuses_a_connection_is_critical_and_who_is_silent_is_kept_for_a_while() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    // The system accepts its connections, but they are never read.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = (silent.local_addr().unwrap().port(), silent);
    // A reserved port without a server.
    let refusing = kingpost_tests::Port::reserve();
    let mut instances: Vec<Value> = (0..4).map(|n| probed(&format!("silent-{n}"), silent.0, "http")).collect();
    instances.extend((0..4).map(|n| probed(&format!("refusing-{n}"), refusing.number(), "tcp")));
    // By the time that the first has failed three times, all others have failed once, so that many are lost at once.
    instances.iter_mut().for_each(|instance| instance["check"]["fall"] = json!(3));
    let answer = node.send("POST", "/v1/namespaces/default/instances", &json!({ "instances": instances })).await;
    assert_eq!(answer.json()["failed"], 0, "{}", answer.body);
    // All eight are lost at once, so the brake holds those without a known state.
    let judged = async || {
        let all = health(&node).await;
        let refused = all.iter().filter(|(id, health)| id.starts_with("refusing") && health == "critical").count();
        (refused == 4 && node.metrics().await.sum("kingpost_registry_held_total", &[]) >= 4.0).then_some(all)
    };
    let all = wait_until("the refused ones", SOON, node.dir(), judged).await;
    assert!(all.iter().all(|(id, health)| id.starts_with("refusing") || health == "passing"), "{all:?}");
}

#[tokio::test]
async fn the_registrys_own_ports_are_not_probed_unless_that_is_allowed() {
    for (more, expected) in [("", "critical"), ("[registry.health]\nprobe_allow = [\"127.0.0.1\"]", "passing")] {
        let node = RegistryNode::start(more).await;
        let _logs = ShowLogs(node.dir());
        let started = std::fs::read_to_string(node.process().log()).unwrap();
        let mut said = started.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let said = said.rfind(|line| line["message"] == "registry started").unwrap();
        let metrics = said["metrics"].as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
        // Another program's port, for comparison: TCP connects as soon as the system listens.
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut instances = vec![probed("own", node.port(), "tcp"), probed("metrics", metrics, "tcp")];
        instances.push(probed("other", other.local_addr().unwrap().port(), "tcp"));
        for instance in &mut instances {
            instance["health"] = json!(if expected == "critical" { "passing" } else { "critical" });
        }
        instances[2]["health"] = json!("critical");
        let answer = node.send("POST", "/v1/namespaces/default/instances", &json!({ "instances": instances })).await;
        assert_eq!(answer.json()["failed"], 0, "{}", answer.body);
        let judged = async || {
            let all = health(&node).await;
            let is = |id: &str, wanted: &str| all.iter().any(|(found, health)| found == id && health == wanted);
            (is("own", expected) && is("metrics", expected) && is("other", "passing")).then_some(())
        };
        wait_until("the probes", SOON, node.dir(), judged).await;
    }
}

#[tokio::test]
async fn who_cannot_write_is_not_ready() {
    let place = new_dir("small");
    let Some(_small) = Small::mount(&place, 4) else {
        skipped("no file system can be mounted here");
        return;
    };
    let store = format!("sqlite:{}", place.join("registry.sqlite").display());
    let node = RegistryNode::start_on(Some(&store), "").await;
    let _logs = ShowLogs(node.dir());
    let register = async |id: &str| node.send("PUT", &format!("{WEB}/{id}"), &json!({ "host": "h" })).await.status;
    assert_eq!(register("a").await, 201);
    // A filler takes the rest of the disk.
    let filler = place.join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
    let unready = async || (!node.is_ready().await).then_some(());
    wait_until("it to say that it cannot write", SOON, node.dir(), unready).await;
    assert_eq!(register("b").await, 503);
    assert_eq!(node.get(WEB).await.status, 200, "it can be read");
    drop(file);
    std::fs::remove_file(&filler).unwrap();
    wait_until("it to write again", SOON, node.dir(), async || node.is_ready().await.then_some(())).await;
    assert_eq!(register("b").await, 201);
}
