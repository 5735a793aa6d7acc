//! The registry: its own API, restarts, limits, tokens, and the command line's client.

use std::process::Stdio;
use std::time::Duration;

use kingpost_tests::{Kingpost, RegistryNode, SOON, ShowLogs, wait_until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const WEB: &str = "/v1/namespaces/default/services/web/instances";

/// Returns the ids of an answer's instances.
fn ids(answer: &Value) -> Vec<&str> {
    let list = answer["instances"].as_array().unwrap_or_else(|| panic!("no instances: {answer}"));
    list.iter().map(|instance| instance["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_cycle_in_its_own_api() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    assert_eq!(node.get(WEB).await.status, 404, "nobody has spoken of the service");
    let batch = json!({ "instances": [
        { "id": "a", "host": "10.0.0.1", "port": 80, "location": { "zone": "z1" }, "metadata": { "v": "1" } },
        { "id": "b", "host": "10.0.0.2", "port": 80, "location": { "zone": "z2" }, "metadata": { "v": "2" },
          "check": { "type": "ttl", "ttl": "10s" } },
        { "host": "10.0.0.3", "port": 80, "weight": 0 },
    ]});
    let registered = node.send("POST", WEB, &batch).await;
    assert_eq!((registered.status, &registered.json()["failed"]), (200, &json!(0)), "{}", registered.body);

    // Everything at once, and no duplicates.
    let all = node.get(WEB).await;
    assert_eq!(ids(&all.json()).len(), 3, "{}", all.body);
    let tag = all.header("etag").unwrap();
    let again = node.ask("GET", WEB, &[("If-None-Match", tag)], "").await;
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    for (query, expected) in [
        ("usable", &["a", "b"][..]),
        ("zone=z1", &["a"]),
        ("meta=v=2", &["b"]),
        ("meta=v=2&zone=z1", &[]),
        ("health=critical", &[]),
    ] {
        assert_eq!(ids(&node.get(&format!("{WEB}?{query}")).await.json()), expected, "{query}");
    }
    assert_eq!(ids(&node.get("/v1/namespaces/default/instances?meta=v=1").await.json()), ["a"]);

    // An unchanged registration is not written.
    let same = json!({ "host": "10.0.0.1", "port": 80, "location": { "zone": "z1" }, "metadata": { "v": "1" } });
    assert_eq!(node.send("PUT", &format!("{WEB}/a"), &same).await.json()["outcome"], "unchanged");

    // A heartbeat right after registering works; one of an unknown instance is reported.
    let beats = node.send("POST", "/v1/namespaces/default/heartbeats", &json!({ "ids": ["a", "b", "x"] })).await;
    assert_eq!(beats.json(), json!({ "unknown": ["x"] }));

    // A change answers a waiting request.
    let revision = all.json()["revision"].as_u64().unwrap();
    let path = format!("{WEB}?after={revision}&wait=30s");
    let (woken, patched) = tokio::join!(node.get(&path), async {
        wait_until("the request to wait", SOON, node.dir(), async || {
            let metrics = node.metrics().await;
            (metrics.sum("kingpost_registry_watchers", &[]) >= 1.0).then_some(())
        })
        .await;
        node.send("PATCH", "/v1/namespaces/default/instances/a", &json!({ "isolate": true })).await
    });
    assert_eq!(patched.status, 200, "{}", patched.body);
    assert!(woken.json()["revision"].as_u64().unwrap() > revision, "{}", woken.body);
    assert_eq!(ids(&node.get(&format!("{WEB}?usable")).await.json()), ["b"]);

    // Several services at once: only changes.
    let now = node.get(WEB).await.json()["revision"].clone();
    let asked = json!({ "services": [{ "service": "web", "revision": now }, { "service": "none" }] });
    let answered = node.send("POST", "/v1/namespaces/default/queries", &asked).await.json();
    assert_eq!(
        (&answered["services"][0]["unchanged"], &answered["services"][1]["absent"]),
        (&json!(true), &json!(true))
    );

    // Prometheus sees the usable instances.
    let targets = node.get("/prometheus/targets?namespace=default").await.json();
    assert_eq!(targets[0]["targets"], json!(["10.0.0.2:80"]), "{targets}");
    assert_eq!(targets[0]["labels"]["__meta_kingpost_service"], "web");

    assert_eq!(node.send("DELETE", "/v1/namespaces/default/instances/a", &json!({})).await.status, 204);
    assert_eq!(node.send("DELETE", "/v1/namespaces/default/instances/a", &json!({})).await.status, 404);
    let description = node.get("/v1/openapi.json").await.json();
    assert_eq!(description["openapi"], "3.1.0");
}

#[tokio::test]
async fn nothing_that_was_answered_is_lost() {
    let mut node = RegistryNode::start("").await;
    let mut revision = 0;
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        for n in 0..20 {
            let answer = node.send("PUT", &format!("{WEB}/s{signal}-{n}"), &json!({ "host": "h", "port": n })).await;
            assert_eq!(answer.status, 201, "{}", answer.body);
        }
        let before = node.get(WEB).await.json();
        node.end(signal).await;
        node.start_again().await;
        let after = node.get(WEB).await.json();
        assert_eq!(after, before, "after signal {signal}");
        let now = after["revision"].as_u64().unwrap();
        assert!(now > revision);
        revision = now;
    }
}

#[tokio::test]
async fn who_says_nothing_expires_and_comes_back() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let instance = |after: Option<&str>| {
        let mut check = json!({ "type": "ttl", "ttl": "1s" });
        if let Some(after) = after {
            check["deregister_after"] = after.into();
        }
        json!({ "host": "h", "port": 1, "check": check })
    };
    node.send("PUT", &format!("{WEB}/stays"), &instance(None)).await;
    node.send("PUT", &format!("{WEB}/goes"), &instance(Some("1s"))).await;
    let health = async |wanted: &str| {
        let shown = node.get("/v1/namespaces/default/instances/stays").await.json();
        (shown["health"] == wanted).then_some(())
    };
    wait_until("the instance to expire", SOON, node.dir(), async || health("critical").await).await;
    let gone = async || (node.get("/v1/namespaces/default/instances/goes").await.status == 404).then_some(());
    wait_until("the other one to be removed", SOON, node.dir(), gone).await;
    assert_eq!(node.ask("PUT", "/v1/namespaces/default/instances/stays/heartbeat", &[], "").await.status, 204);
    wait_until("the instance to be back", SOON, node.dir(), async || health("passing").await).await;
}

#[tokio::test]
async fn a_stream_tells_what_changes() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    node.send("PUT", &format!("{WEB}/a"), &json!({ "host": "h" })).await;
    let mut watch = tokio::process::Command::new(kingpost_tests::kingpost_bin());
    watch.args(["registry", "watch", "web", "--url", &node.url()]).stdout(Stdio::piped()).kill_on_drop(true);
    let mut watch = watch.spawn().unwrap();
    let mut lines = Lines { from: watch.stdout.take().unwrap(), pending: Vec::new() };
    assert_eq!(ids(&lines.next().await), ["a"]);
    node.send("PUT", &format!("{WEB}/b"), &json!({ "host": "h" })).await;
    let change = lines.next().await;
    assert_eq!(change["put"][0]["id"], "b", "{change}");
    node.send("DELETE", "/v1/namespaces/default/instances/a", &json!({})).await;
    let change = lines.next().await;
    assert_eq!(change["removed"], json!(["a"]), "{change}");
}

/// Reader of a process's JSON lines.
struct Lines {
    from: tokio::process::ChildStdout,
    pending: Vec<u8>,
}

impl Lines {
    async fn next(&mut self) -> Value {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return serde_json::from_slice(&line).unwrap();
            }
            let mut buffer = [0; 4096];
            let read = tokio::time::timeout(SOON, self.from.read(&mut buffer)).await.expect("a line in time").unwrap();
            assert!(read > 0, "the stream ended");
            self.pending.extend_from_slice(&buffer[..read]);
        }
    }
}

#[tokio::test]
async fn whatever_comes_it_goes_on() {
    let node = RegistryNode::start(
        "body_bytes = 4096\nheader_timeout = \"1s\"\nbody_timeout = \"1s\"\nwaiting = 1\nbatch = 2",
    )
    .await;
    let _logs = ShowLogs(node.dir());
    // Garbage, some of it nearly a request.
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"GET\r\n\r\n",
        b"GET /%ff HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"\0\0\0\0\0\0\0\0\r\n\r\n",
        b"POST /v1/namespaces/default/instances HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: nonsense\r\n\r\n",
    ] {
        if let Some(answer) = node.raw(bytes).await {
            assert!((400..500).contains(&answer.status), "{} {}", answer.status, answer.body);
        }
    }
    // More headers than allowed.
    let many: String = (0..5000).map(|n| format!("X-{n}: {n}\r\n")).collect();
    let answer = node.raw(format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes()).await;
    assert!(answer.is_none_or(|answer| answer.status == 431), "too many headers");
    // Bodies: too large by their announcement, too large in fact, and never sent.
    let announced =
        b"POST /v1/namespaces/default/instances HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000000\r\n\r\n";
    let answer = node.raw(announced).await.expect("an answer at once");
    assert_eq!((answer.status, &answer.json()["error"]["limit"]), (413, &json!("registry.body_bytes")));
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
    let chunked = format!(
        "POST /v1/namespaces/default/instances HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}{chunk}0\r\n\r\n"
    );
    let answer = node.raw(chunked.as_bytes()).await.expect("an answer");
    assert_eq!(answer.status, 413, "{}", answer.body);
    let stalled = b"POST /v1/namespaces/default/instances HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{";
    let answer = node.raw(stalled).await.expect("an answer");
    assert_eq!((answer.status, &answer.json()["error"]["limit"]), (408, &json!("registry.body_timeout")));
    // A header that never ends: the connection is closed.
    let mut slow = TcpStream::connect(("127.0.0.1", node.port())).await.unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nX: ").await.unwrap();
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(SOON, slow.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "a header that never ends keeps its connection");
    // Batches and waits have their limits.
    let three: Vec<Value> = (0..3).map(|n| json!({ "host": "h", "port": n })).collect();
    let answer = node.send("POST", WEB, &json!({ "instances": three })).await;
    assert_eq!((answer.status, &answer.json()["error"]["limit"]), (413, &json!("registry.batch")));
    for (body, says) in [
        (json!({ "instances": [{ "port": 1 }] }), "host"),
        (json!({ "instances": [{ "host": "h", "prot": 1 }] }), "prot"),
        (json!({ "instances": [{ "host": "h", "port": 70000 }] }), "u16"),
        (json!({ "instances": 7 }), "expected a sequence"),
    ] {
        let answer = node.send("POST", WEB, &body).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        assert!(answer.body.contains(says), "{body}: {}", answer.body);
    }
    let mut waiting = TcpStream::connect(("127.0.0.1", node.port())).await.unwrap();
    let path = "/v1/namespaces/default/services/none/watch";
    waiting.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    // Its place is taken before any other request.
    let mut begun = [0; 256];
    let read = waiting.read(&mut begun).await.unwrap();
    assert!(begun[..read].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&begun[..read]));
    let refused = async || {
        let answer = node.get(&format!("{WEB}?after=0&wait=1ms")).await;
        (answer.status == 429).then_some(answer)
    };
    let answer = wait_until("the second one to be refused", SOON, node.dir(), refused).await;
    assert_eq!(answer.json()["error"]["limit"], "registry.waiting");
    drop(waiting);
    let free = async || (node.get(&format!("{WEB}?after=0&wait=1ms")).await.status == 404).then_some(());
    wait_until("the place to be free again", SOON, node.dir(), free).await;
    assert_eq!(node.send("PUT", &format!("{WEB}/a"), &json!({ "host": "h" })).await.status, 201);
}

#[tokio::test]
async fn tokens() {
    let made = |name: &str| {
        let output = Kingpost::run(&["registry", "token", name]);
        assert!(output.status.success());
        let said = String::from_utf8(output.stderr).unwrap();
        let hash = said.lines().find_map(|line| line.strip_prefix("sha256 = ")).expect("a hash").to_owned();
        (String::from_utf8(output.stdout).unwrap().trim().to_owned(), hash)
    };
    let (reader, reader_hash) = made("reader");
    let (writer, writer_hash) = made("writer");
    let node = RegistryNode::start(&format!(
        "auth = \"tokens\"\n[[registry.tokens]]\nname = \"reader\"\nsha256 = {reader_hash}\nrole = \"read\"\n\
         [[registry.tokens]]\nname = \"writer\"\nsha256 = {writer_hash}\nrole = \"write\"\nnamespaces = [\"default\"]"
    ))
    .await;
    let put = async |path: &str, token: &str| {
        let header = format!("Bearer {token}");
        let headers: &[(&str, &str)] = if token.is_empty() { &[] } else { &[("Authorization", &header)] };
        node.ask("PUT", path, headers, r#"{"host":"h"}"#).await.status
    };
    let path = format!("{WEB}/a");
    for (path, token, expected) in [
        (path.as_str(), "", 401),
        (&path, "wrong", 401),
        (&path, &reader, 403),
        (&path, &writer, 201),
        ("/v1/namespaces/other/services/web/instances/a", &writer, 403),
    ] {
        assert_eq!(put(path, token).await, expected, "{path}");
    }
    for (header, value, expected) in [
        ("X-Consul-Token", reader.clone(), 200),
        ("X-Consul-Token", "wrong".into(), 401),
        ("Authorization", format!("Bearer {reader}"), 200),
    ] {
        assert_eq!(node.ask("GET", "/v1/health/service/web", &[(header, &value)], "").await.status, expected);
        assert_eq!(node.ask("GET", "/eureka/apps", &[(header, &value)], "").await.status, expected);
        assert_eq!(node.ask("GET", "/prometheus/targets", &[(header, &value)], "").await.status, expected);
    }
    let log = std::fs::read_to_string(node.process().log()).unwrap();
    assert!(log.contains("registry::audit") && log.contains("writer"), "changes are in the log: {log}");
    for secret in [&reader, &writer] {
        assert!(!log.contains(secret.as_str()), "a token is in the log");
    }
    assert_eq!(node.metrics().await.sum("kingpost_registry_unauthorized_total", &[]), 5.0);
}

#[tokio::test]
async fn the_command_line() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let run = async |arguments: &[&str]| {
        let mut all = vec!["registry"];
        all.extend_from_slice(arguments);
        let url = node.url();
        all.extend_from_slice(&["--url", &url]);
        let mut command = tokio::process::Command::new(kingpost_tests::kingpost_bin());
        let output = command.args(&all).stdin(Stdio::null()).output().await.unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        (output.status.success(), said, String::from_utf8(output.stderr).unwrap())
    };
    let (good, id, error) = run(&["register", "shop", "10.0.0.1:80", "--meta", "v=1", "--zone", "z1"]).await;
    assert!(good, "{error}");
    run(&["register", "shop", "[::1]:81", "--id", "six", "--namespace", "other"]).await;
    let (_, listed, _) = run(&["ls", "shop"]).await;
    assert!(listed.contains(id.trim()) && listed.contains("10.0.0.1:80") && listed.contains("v=1"), "{listed}");
    assert!(run(&["ls"]).await.1.contains("shop"));
    let (_, exported, _) = run(&["export"]).await;
    assert_eq!(exported.lines().count(), 2, "{exported}");

    // Into an empty one: the same again.
    let second = RegistryNode::start("").await;
    let file = second.dir().join("export.jsonl");
    std::fs::write(&file, &exported).unwrap();
    let url = second.url();
    let import = Kingpost::run(&["registry", "import", file.to_str().unwrap(), "--url", &url]);
    assert!(import.status.success(), "{}", String::from_utf8_lossy(&import.stderr));
    let again = Kingpost::run(&["registry", "export", "--url", &url]);
    assert_eq!(String::from_utf8(again.stdout).unwrap(), exported);

    let twice = Kingpost::run(&["registry", "import", file.to_str().unwrap(), "--url", &url]);
    let said = String::from_utf8_lossy(&twice.stderr);
    assert!(said.contains("2 of 2 instances registered, 2 of them were there already"), "{said}");

    // From its Consul and its Eureka side into further ones.
    let tagged =
        json!({ "ID": "t", "Name": "tagged", "Address": "10.0.0.7", "Port": 7, "Tags": ["a"], "Meta": { "k": "v" } });
    assert_eq!(node.send("PUT", "/v1/agent/service/register", &tagged).await.status, 200);
    for (flag, path) in [("--from-consul", ""), ("--from-eureka", "/eureka")] {
        let third = RegistryNode::start("").await;
        let (url, from) = (third.url(), format!("{}{path}", node.url()));
        let import = Kingpost::run(&["registry", "import", flag, &from, "--url", &url, "--ttl", "1h"]);
        assert!(import.status.success(), "{}", String::from_utf8_lossy(&import.stderr));
        let shop = third.get("/v1/namespaces/default/services/shop/instances").await.json();
        let only = &shop["instances"][0];
        assert_eq!((ids(&shop).len(), &only["check"]["ttl"]), (1, &json!("1h")), "{shop}");
        assert_eq!(only["metadata"]["kingpost.id"], id.trim(), "the id that it had there: {shop}");
        let tagged = third.get("/v1/health/service/tagged?tag=a").await.json();
        let service = &tagged[0]["Service"];
        let expected = if flag == "--from-consul" {
            json!(["t", "10.0.0.7", 7, { "k": "v" }])
        } else {
            json!([null, null, null, null])
        };
        assert_eq!(json!([service["ID"], service["Address"], service["Port"], service["Meta"]]), expected, "{tagged}");
    }

    assert!(run(&["deregister", id.trim()]).await.0);
    let (good, _, error) = run(&["deregister", id.trim()]).await;
    assert!(!good && error.contains("not registered"), "{error}");
    let nobody = Kingpost::run(&["registry", "ls", "--url", "http://127.0.0.1:1"]);
    assert!(!nobody.status.success());
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("127.0.0.1:1"), "which registry");
}

#[tokio::test]
async fn many_clients_register_at_once() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let one = async |n: usize| {
        let answer = node.send("PUT", &format!("{WEB}/i{n:03}"), &json!({ "host": "h", "port": n })).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
    };
    tokio::time::timeout(Duration::from_secs(60), futures_util::future::join_all((0..200).map(one))).await.unwrap();
    assert_eq!(ids(&node.get(WEB).await.json()).len(), 200);
}
