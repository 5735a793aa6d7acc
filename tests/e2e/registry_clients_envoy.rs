//! Envoy, unmodified: it gets all clusters and their endpoints from the registry (ADS), and sends requests to the instances.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use kingpost_tests::{Port, Process, RegistryNode, RunAs, SOON, ShowLogs, command, new_dir, wait_until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::clients::{here, installed};
use crate::registry_clients_nacos::token;

const LIMIT: Duration = Duration::from_secs(300);
/// Requests after which each instance known to Envoy has got one.
const REQUESTS: usize = 12;

/// Starts a server that answers with its name; returns its port.
async fn serve(name: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 4096];
                // The whole head, which is short.
                let _ = stream.read(&mut request).await;
                let answer =
                    format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{name}", name.len());
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    port
}

fn socket(port: u16) -> Value {
    json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } })
}

/// Makes Envoy's configuration: the registry's address and token, and two paths with their clusters.
fn bootstrap(registry: u16, admin: u16, listen: u16, token: &str) -> Value {
    let route =
        |service: &str| json!({ "match": { "prefix": format!("/{service}") }, "route": { "cluster": service } });
    let router = json!({ "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" });
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "test",
        "http_filters": [{ "name": "router", "typed_config": router }],
        "route_config": {
            // The clusters come later.
            "validate_clusters": false,
            "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": [route("tenant-a/shop"), route("tenant-b/shop")] }],
        },
    });
    let http2 = json!({
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": { "http2_protocol_options": {} },
    });
    let grpc = json!({
        "envoy_grpc": { "cluster_name": "registry" },
        "initial_metadata": [{ "key": "authorization", "value": format!("Bearer {token}") }],
    });
    json!({
        "node": { "id": "envoy", "cluster": "test" },
        "admin": { "address": socket(admin) },
        "dynamic_resources": {
            "ads_config": { "api_type": "GRPC", "transport_api_version": "V3", "grpc_services": [grpc] },
            "cds_config": { "ads": {}, "resource_api_version": "V3" },
            "lds_config": { "ads": {}, "resource_api_version": "V3" },
        },
        "static_resources": {
            "listeners": [{
                "name": "in",
                "address": socket(listen),
                "filter_chains": [{ "filters": [{ "name": "http", "typed_config": manager }] }],
            }],
            "clusters": [{
                "name": "registry",
                "type": "STATIC",
                "typed_extension_protocol_options": { "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2 },
                "load_assignment": {
                    "cluster_name": "registry",
                    "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": socket(registry) } }] }],
                },
            }],
        },
    })
}

/// Requests a service, and returns the names of the answering servers, or the status of failed requests.
async fn ask(port: u16, service: &str) -> BTreeSet<String> {
    let mut said = BTreeSet::new();
    for _ in 0..REQUESTS {
        let answer = RegistryNode::try_ask_at(port, "GET", &format!("/{service}"), &[], "").await;
        said.insert(
            answer.map_or("nothing".into(), |it| if it.status == 200 { it.body } else { it.status.to_string() }),
        );
    }
    said
}

async fn finds(port: u16, dir: &Path, service: &str, expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(|name| (*name).to_owned()).collect();
    wait_until(&format!("{service} to be {expected:?}"), SOON, dir, async || {
        (ask(port, service).await == expected).then_some(())
    })
    .await;
}

/// Part of `make clients` only: Envoy is a program of 100 MB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a package of 100 MB: make clients"]
async fn registry_xds_envoy() {
    let setup = Command::new(here().join("setup")).arg("--envoy").stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(LIMIT, setup).await.expect("the set-up ends").unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let program = std::fs::canonicalize(installed().await.join("envoy/bin/envoy")).unwrap();

    let (writer, first) = token("writer", "write", &json!(["tenant-a", "tenant-b"]));
    let (reader, second) = token("reader", "read", &json!(["tenant-a"]));
    let mut node = RegistryNode::start(&format!("auth = \"tokens\"\n{first}{second}")).await;
    let logs = node.dir().to_owned();
    let _logs = ShowLogs(&logs);
    let bearer = format!("Bearer {writer}");
    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    let send = async |node: &RegistryNode, method: &str, path: &str, body: Value| {
        let answer = node.ask(method, path, &headers, &body.to_string()).await;
        assert!(matches!(answer.status, 200 | 201), "{} {}", answer.status, answer.body);
    };
    for (namespace, name) in [("tenant-a", "a"), ("tenant-a", "b"), ("tenant-b", "c")] {
        let body = json!({ "host": "127.0.0.1", "port": serve(name).await });
        send(&node, "PUT", &format!("/v1/namespaces/{namespace}/services/shop/instances/{name}"), body).await;
    }

    let (admin, listen, dir) = (Port::reserve(), Port::reserve(), new_dir("envoy"));
    let _said = ShowLogs(&dir);
    let config = dir.join("envoy.json");
    std::fs::write(&config, bootstrap(node.port(), admin.number(), listen.number(), &reader).to_string()).unwrap();
    let mut envoy = command(&program, RunAs::Tests, "KILL");
    envoy.args(["--use-dynamic-base-id", "--concurrency", "1", "-c"]).arg(&config).current_dir(&dir);
    let _envoy = Process::start("envoy", envoy, &dir.join("envoy.log"));

    finds(listen.number(), &dir, "tenant-a/shop", &["a", "b"]).await;
    let clusters = RegistryNode::try_ask_at(admin.number(), "GET", "/clusters", &[], "").await.unwrap().body;
    assert!(clusters.contains("tenant-a/shop") && !clusters.contains("tenant-b"), "{clusters}");
    assert_eq!(ask(listen.number(), "tenant-b/shop").await, BTreeSet::from(["503".to_owned()]), "no such cluster");

    // Isolated; then back, with the other one critical; then the registry dies and comes back, and later changes arrive.
    let (a, b) = ("/v1/namespaces/tenant-a/instances/a", "/v1/namespaces/tenant-a/instances/b");
    send(&node, "PATCH", b, json!({ "isolate": true })).await;
    finds(listen.number(), &dir, "tenant-a/shop", &["a"]).await;
    send(&node, "PATCH", b, json!({ "isolate": false })).await;
    finds(listen.number(), &dir, "tenant-a/shop", &["a", "b"]).await;
    send(&node, "PATCH", a, json!({ "health": "critical" })).await;
    finds(listen.number(), &dir, "tenant-a/shop", &["b"]).await;
    node.end(9).await;
    assert_eq!(ask(listen.number(), "tenant-a/shop").await, BTreeSet::from(["b".to_owned()]));
    node.start_again().await;
    send(&node, "PATCH", a, json!({ "health": "passing" })).await;
    finds(listen.number(), &dir, "tenant-a/shop", &["a", "b"]).await;
    assert_eq!(node.metrics().await.sum("kingpost_registry_xds_refused_total", &[]), 0.0, "Envoy takes everything");
}
