//! Services with several checks, through Consul's API, and probes over TLS.

use kingpost_tests::certs::Authority;
use kingpost_tests::{RegistryNode, SOON, ShowLogs, wait_until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn put(node: &RegistryNode, path: &str, body: &Value) -> u16 {
    node.send("PUT", path, body).await.status
}

/// Returns the checks of a service: id and status.
async fn checks(node: &RegistryNode, service: &str, namespace: &str) -> Vec<(String, String)> {
    let answer = node.get(&format!("/v1/health/checks/{service}?ns={namespace}")).await.json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut found: Vec<_> =
        answer.as_array().unwrap().iter().map(|check| (text(&check["CheckID"]), text(&check["Status"]))).collect();
    found.sort();
    found
}

fn are(found: &[(String, String)], expected: &[(&str, &str)]) -> bool {
    found.iter().map(|(id, status)| (id.as_str(), status.as_str())).eq(expected.iter().copied())
}

/// Counts the passing instances, by Consul's API, and the usable ones, by the registry's own.
async fn usable(node: &RegistryNode, service: &str, namespace: &str) -> (usize, usize) {
    let consul = node.get(&format!("/v1/health/service/{service}?passing&ns={namespace}")).await.json();
    let own = node.get(&format!("/v1/namespaces/{namespace}/services/{service}/instances?usable=true")).await;
    let own = if own.status == 200 { own.json()["instances"].as_array().unwrap().len() } else { 0 };
    (consul.as_array().unwrap().len(), own)
}

#[tokio::test]
async fn a_service_is_as_well_as_the_worst_of_its_checks() {
    let mut node = RegistryNode::start("").await;
    let dir = node.dir().to_owned();
    let _logs = ShowLogs(&dir);
    let sent = json!({
        "ID": "web1", "Name": "web", "Address": "10.0.0.1", "Port": 80,
        "Checks": [
            { "TTL": "60s" },
            { "CheckID": "disk", "Name": "Disk", "Notes": "why", "TTL": "60s", "Status": "passing" },
        ],
    });
    // Two namespaces, each with a service of the same name and id.
    for namespace in ["default", "other"] {
        assert_eq!(put(&node, &format!("/v1/agent/service/register?ns={namespace}"), &sent).await, 200);
        let found = checks(&node, "web", namespace).await;
        assert!(are(&found, &[("disk", "passing"), ("service:web1:1", "critical")]), "{found:?}");
        assert_eq!(usable(&node, "web", namespace).await, (0, 0));
    }
    assert_eq!(put(&node, "/v1/agent/check/pass/service:web1:1", &json!({})).await, 200);
    assert_eq!(usable(&node, "web", "default").await, (1, 1));
    assert_eq!(usable(&node, "web", "other").await, (0, 0), "another namespace's check");

    // Each way of setting a status; the worst status counts.
    for (path, body, disk, found) in [
        ("warn/disk", json!({}), "warning", (0, 1)),
        ("fail/disk", json!({}), "critical", (0, 0)),
        ("update/disk", json!({ "Status": "warning" }), "warning", (0, 1)),
        ("pass/disk", json!({}), "passing", (1, 1)),
    ] {
        assert_eq!(put(&node, &format!("/v1/agent/check/{path}"), &body).await, 200, "{path}");
        let shown = checks(&node, "web", "default").await;
        assert!(are(&shown, &[("disk", disk), ("service:web1:1", "passing")]), "{path}: {shown:?}");
        assert_eq!(usable(&node, "web", "default").await, found, "{path}");
        let (status, aggregated) = match disk {
            "passing" => (200, "passing"),
            "warning" => (429, "warning"),
            _ => (503, "critical"),
        };
        let judged = node.get("/v1/agent/health/service/id/web1").await;
        assert_eq!((judged.status, &judged.json()["AggregatedStatus"]), (status, &json!(aggregated)));
    }
    let shown = node.get("/v1/health/node/10.0.0.1").await.json();
    assert_eq!(shown.as_array().unwrap().len(), 2, "{shown}");
    assert_eq!(shown.as_array().unwrap().iter().filter(|check| check["Name"] == "Disk").count(), 1);
    // Unknown ids do not exist: nor does the id of a single check.
    for id in ["nothing", "service:web1", "service:web1:2"] {
        assert_eq!(put(&node, &format!("/v1/agent/check/pass/{id}"), &json!({})).await, 404, "{id}");
    }

    // One more check, before and after a restart; the others keep their status.
    assert_eq!(put(&node, "/v1/agent/check/warn/disk", &json!({})).await, 200);
    let more = json!({ "ID": "extra", "Name": "Extra", "ServiceID": "web1", "TTL": "60s", "Status": "passing" });
    assert_eq!(put(&node, "/v1/agent/check/register", &more).await, 200);
    node.end(libc::SIGKILL).await;
    node.start_again().await;
    let all = [("disk", "warning"), ("extra", "passing"), ("service:web1:1", "passing")];
    let found = checks(&node, "web", "default").await;
    assert!(are(&found, &all), "{found:?}");
    let state = node.get("/v1/health/state/warning").await.json();
    assert_eq!((state.as_array().unwrap().len(), &state[0]["CheckID"]), (1, &json!("disk")));

    // Registered again with one of them: the others stay, as in Consul, unless replacement is requested.
    let again = json!({
        "ID": "web1", "Name": "web", "Address": "10.0.0.1", "Port": 81, "Check": { "CheckID": "extra", "TTL": "50s" },
    });
    assert_eq!(put(&node, "/v1/agent/service/register", &again).await, 200);
    let found = checks(&node, "web", "default").await;
    assert!(are(&found, &all), "{found:?}");
    assert_eq!(put(&node, "/v1/agent/check/deregister/disk", &json!({})).await, 200);
    assert_eq!(put(&node, "/v1/agent/check/deregister/disk", &json!({})).await, 404);
    assert_eq!(usable(&node, "web", "default").await, (1, 1), "the worst one is gone");
    assert_eq!(put(&node, "/v1/agent/service/register?replace-existing-checks=true", &again).await, 200);
    let found = checks(&node, "web", "default").await;
    assert!(are(&found, &[("extra", "passing")]), "{found:?}");
    let found = checks(&node, "web", "other").await;
    assert!(are(&found, &[("disk", "passing"), ("service:web1:1", "critical")]), "{found:?}");
}

/// Two nodes on one store: each check has its own lease, heartbeats go to one node, and the other may be the judging one.
#[tokio::test]
async fn each_of_several_checks_expires_by_itself() {
    let cluster = kingpost_tests::Cluster::builder().replicas(0).start().await;
    let store = cluster.primary().endpoint().url();
    let (first, second) =
        (RegistryNode::start_on(Some(&store), "").await, RegistryNode::start_on(Some(&store), "").await);
    let _logs = (ShowLogs(first.dir()), ShowLogs(second.dir()));
    for n in 0..6 {
        let sent = json!({
            "ID": format!("w{n}"), "Name": "web", "Address": "10.0.0.1", "Port": n,
            "Checks": [
                { "CheckID": format!("beats{n}"), "TTL": "2s", "Status": "passing" },
                { "CheckID": format!("silent{n}"), "TTL": "2s", "Status": "passing" },
                { "CheckID": format!("refused{n}"), "TCP": "127.0.0.1:1", "Interval": "1s", "Status": "passing" },
                { "CheckID": format!("long{n}"), "TTL": "1h", "Status": "passing" },
            ],
        });
        assert_eq!(put(&first, "/v1/agent/service/register", &sent).await, 200);
    }
    let beat = async || {
        for n in 0..6 {
            let node = [&first, &second][n % 2];
            assert_eq!(put(node, &format!("/v1/agent/check/pass/beats{n}"), &json!({})).await, 200);
        }
    };
    let mut beaten = 0;
    wait_until("the silent ones to be critical", SOON, second.dir(), async || {
        beat().await;
        beaten += 1;
        let found = checks(&second, "web", "default").await;
        let critical = |id: &str| found.iter().filter(|(i, s)| i.starts_with(id) && s == "critical").count();
        (critical("silent") == 6 && critical("refused") == 6 && critical("beats") == 0).then_some(())
    })
    .await;
    assert!(beaten > 1);
    let found = checks(&first, "web", "default").await;
    assert!(found.iter().filter(|(id, _)| id.starts_with("long")).all(|(_, status)| status == "passing"), "{found:?}");
    // The next heartbeat makes it passing again.
    wait_until("the silent ones to be back", SOON, first.dir(), async || {
        beat().await;
        for n in 0..6 {
            assert_eq!(put(&second, &format!("/v1/agent/check/pass/silent{n}"), &json!({})).await, 200);
        }
        let found = checks(&first, "web", "default").await;
        found.iter().filter(|(id, _)| id.starts_with("silent")).all(|(_, status)| status == "passing").then_some(())
    })
    .await;
    // Only the check with a limit on its critical time deregisters its service.
    for (n, after) in [(0, "1s"), (1, "1h")] {
        let check = json!({
            "ID": format!("last{n}"), "Name": "last", "ServiceID": format!("w{n}"), "TTL": "1h",
            "DeregisterCriticalServiceAfter": after, "Status": "critical",
        });
        assert_eq!(put(&first, "/v1/agent/check/register", &check).await, 200);
    }
    wait_until("the end of one service", SOON, first.dir(), async || {
        beat_but(&first, 0).await;
        let left = first.get("/v1/catalog/service/web").await.json().as_array().unwrap().len();
        (left == 5).then_some(())
    })
    .await;
    assert_eq!(first.get("/v1/agent/service/w0").await.status, 404);
    assert_eq!(first.get("/v1/agent/service/w1").await.status, 200);
}

async fn beat_but(node: &RegistryNode, but: usize) {
    for n in (0..6).filter(|n| *n != but) {
        assert_eq!(put(node, &format!("/v1/agent/check/pass/beats{n}"), &json!({})).await, 200);
    }
}

/// The target is another registry, which speaks HTTP and gRPC over TLS.
#[tokio::test]
async fn probes_speak_tls_and_look_at_certificates() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let serve = async |pair: &kingpost_tests::certs::Pair| {
        RegistryNode::start(&format!(
            "[registry.tls]\nmode = \"require\"\ncert_file = {:?}\nkey_file = {:?}",
            pair.cert, pair.key
        ))
        .await
    };
    let (known, unknown) = (authority.issue("known", &["127.0.0.1"]), stranger.issue("unknown", &["127.0.0.1"]));
    let (known, unknown) = (serve(&known).await, serve(&unknown).await);
    let more = format!("[registry.health]\nprobe_ca_file = {:?}", authority.ca_file());
    let node = RegistryNode::start(&more).await;
    let _logs = ShowLogs(node.dir());
    let (good, bad) = (format!("127.0.0.1:{}", known.port()), format!("127.0.0.1:{}", unknown.port()));
    let http = |scheme: &str, at: &str, more: Value| {
        let mut check = json!({ "HTTP": format!("{scheme}://{at}/v1/status/leader"), "Interval": "1s" });
        check.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        check
    };
    let grpc = |at: &str, more: Value| {
        let mut check = json!({ "GRPC": at, "Interval": "1s" });
        check.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        check
    };
    let of = |kind: &str, at: &str, more: Value| {
        let mut check = json!({ kind: at, "Interval": "1s" });
        check.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        check
    };
    let cases = [
        ("tcp", of("TCP", &good, json!({ "TCPUseTLS": true })), "passing"),
        ("tcp-another-authority", of("TCP", &bad, json!({ "TCPUseTLS": true })), "critical"),
        ("tcp-not-verified", of("TCP", &bad, json!({ "TCPUseTLS": true, "TLSSkipVerify": true })), "passing"),
        ("tcp-plain", of("TCP", &bad, json!({})), "passing"),
        ("h2ping", of("H2PING", &good, json!({})), "passing"),
        ("h2ping-another-authority", of("H2PING", &bad, json!({})), "critical"),
        ("h2ping-another-name", of("H2PING", &good, json!({ "TLSServerName": "other.example" })), "critical"),
        ("h2ping-not-verified", of("H2PING", &bad, json!({ "TLSSkipVerify": true })), "passing"),
        ("h2ping-plain", of("H2PING", &good, json!({ "H2PingUseTLS": false })), "critical"),
        ("verified", http("https", &good, json!({})), "passing"),
        ("another-authority", http("https", &bad, json!({})), "critical"),
        ("not-verified", http("https", &bad, json!({ "TLSSkipVerify": true })), "passing"),
        ("another-name", http("https", &good, json!({ "TLSServerName": "other.example" })), "critical"),
        ("plain", http("http", &good, json!({})), "critical"),
        ("grpc", grpc(&good, json!({ "GRPCUseTLS": true })), "passing"),
        ("grpc-another-authority", grpc(&bad, json!({ "GRPCUseTLS": true })), "critical"),
        ("grpc-not-verified", grpc(&bad, json!({ "GRPCUseTLS": true, "TLSSkipVerify": true })), "passing"),
        ("grpc-plain", grpc(&good, json!({})), "critical"),
    ];
    // Each begins with the status that the probe must change.
    for (name, check, status) in &cases {
        let mut check = check.clone();
        check["Status"] = if *status == "passing" { "critical".into() } else { "passing".into() };
        let sent = json!({ "Name": name, "Address": "127.0.0.1", "Check": check });
        assert_eq!(put(&node, "/v1/agent/service/register", &sent).await, 200, "{name}");
    }
    let mut left: Vec<&str> = Vec::new();
    wait_until("each check to find what it should", SOON, node.dir(), async || {
        left.clear();
        for (name, _, status) in &cases {
            let found = checks(&node, name, "default").await;
            if found.first().is_none_or(|(_, found)| found != status) {
                left.push(name);
            }
        }
        if left.is_empty() { Some(()) } else { None }
    })
    .await;
}

/// Answers `GET` requests: `/9` to `/1` refer to the next lower number, `/0` is good, `/open` is good for `user:sesame` only.
async fn pages(listener: tokio::net::TcpListener) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 2048];
        let length = stream.read(&mut request).await.unwrap_or(0);
        let request = String::from_utf8_lossy(&request[..length]).into_owned();
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let answer = match path.trim_start_matches('/').parse::<u32>() {
            Ok(0) => "200 OK".to_owned(),
            Ok(n) => format!("302 Found\r\nLocation: /{}", n - 1),
            Err(_) if path == "/?x=1" => "200 OK".to_owned(),
            Err(_) if path == "/open" && request.contains("Authorization: Basic dXNlcjpzZXNhbWU=") => {
                "200 OK".to_owned()
            }
            Err(_) => "403 Forbidden".to_owned(),
        };
        let _ = stream.write_all(format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n").as_bytes()).await;
    }
}

/// As Consul's agent probes: it follows redirects, logs in, and takes a URL without a path.
#[tokio::test]
async fn http_checks_are_as_consuls_agent_makes_them() {
    let node = RegistryNode::start("[log]\nlevel = \"debug\"").await;
    let _logs = ShowLogs(node.dir());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let serving = tokio::spawn(pages(listener));
    let http = |url: String| json!({ "HTTP": url, "Interval": "1s" });
    let mut stays = http(format!("http://{at}/1"));
    stays["DisableRedirects"] = true.into();
    let cases = [
        ("redirected", http(format!("http://{at}/9")), "passing"),
        ("too-often", http(format!("http://{at}/10")), "critical"),
        ("not-followed", stays, "critical"),
        ("query", http(format!("http://{at}?x=1")), "passing"),
        ("login", http(format!("http://user:sesame@{at}/open")), "passing"),
        ("wrong-login", http(format!("http://user:sesame2@{at}/open?key=sesame")), "critical"),
        ("nowhere", http("http://user:sesame@127.0.0.1:1/?key=sesame".into()), "critical"),
    ];
    for (name, check, status) in &cases {
        let mut check = check.clone();
        check["Status"] = if *status == "passing" { "critical".into() } else { "passing".into() };
        let sent = json!({ "Name": name, "Address": "127.0.0.1", "Check": check });
        assert_eq!(put(&node, "/v1/agent/service/register", &sent).await, 200, "{name}");
    }
    wait_until("each check to find what it should", SOON, node.dir(), async || {
        for (name, _, status) in &cases {
            if checks(&node, name, "default").await.first().is_none_or(|(_, found)| found != status) {
                return None;
            }
        }
        Some(())
    })
    .await;
    serving.abort();
    let log = std::fs::read_to_string(node.dir().join("registry.log")).unwrap();
    assert!(log.contains("probe: ") && !log.contains("sesame"), "a password is in the log");
}
