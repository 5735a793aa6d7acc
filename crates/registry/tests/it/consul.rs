//! Consul's catalog over HTTP: nodes, their metadata, filters, and lists assembled from pieces.

use registry::api::{AuditLog, Auth, Context, Front, HttpLimits, Mount, Server};
use registry::{Registry, Settings, store};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::common::*;

struct Node {
    _directory: tempfile::TempDir,
    registry: Registry,
    server: Server,
    address: std::net::SocketAddr,
}

impl Node {
    async fn start() -> Node {
        let directory = tempfile::tempdir().unwrap();
        let store = store::open(&format!("sqlite:{}", directory.path().join("registry.db").display())).await.unwrap();
        let registry = Registry::open(Settings::default(), store).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mount = Mount { listener, fronts: vec![Front::Consul, Front::Eureka, Front::Prometheus], tls: None };
        let context =
            Context::new(registry.clone(), Auth::None, HttpLimits::default(), "own".to_owned(), AuditLog::default());
        let server = Server::start(vec![mount], context);
        Node { _directory: directory, registry, server, address }
    }

    /// Sends a request; returns status and body.
    async fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = tokio::net::TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    async fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path, "").await;
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap_or_else(|e| panic!("{path}: {e}: {body}"))
    }

    async fn end(self) {
        self.server.shutdown(PATIENCE).await;
        self.registry.shutdown().await;
    }
}

/// Returns the values of a field, sorted.
fn each(list: &Value, field: &str) -> Vec<String> {
    let text = |entry: &Value| entry.pointer(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut found: Vec<String> = list.as_array().unwrap().iter().map(text).collect();
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_their_metadata_and_filters() {
    let node = Node::start().await;
    for (name, rack, service, tag) in
        [("n1", "a", "web", "v1"), ("n1", "a", "db", "v1"), ("n2", "b", "web", "v2"), ("n3", "", "web", "v1")]
    {
        let meta = if rack.is_empty() { json!({}) } else { json!({ "rack": rack, "os": "linux" }) };
        let body = json!({
            "Node": name, "Address": format!("10.0.0.{}", &name[1..]), "NodeMeta": meta,
            "Service": { "ID": service, "Service": service, "Port": 80, "Tags": [tag], "Meta": { "rack": rack } },
        });
        assert_eq!(node.ask("PUT", "/v1/catalog/register", &body.to_string()).await.0, 200);
    }
    for (path, field, expected) in [
        ("/v1/catalog/service/web?node-meta=rack:a", "/Node", &["n1"][..]),
        ("/v1/catalog/service/web?node-meta=os:linux", "/Node", &["n1", "n2"]),
        ("/v1/catalog/service/web?node-meta=os:linux&node-meta=rack:b", "/Node", &["n2"]),
        ("/v1/catalog/service/web?node-meta=rack:c", "/Node", &[]),
        ("/v1/health/service/web?node-meta=rack:b", "/Node/Node", &["n2"]),
        ("/v1/health/service/web?passing&node-meta=rack:b", "/Node/Node", &["n2"]),
        ("/v1/catalog/nodes?node-meta=rack:a", "/Node", &["n1"]),
        ("/v1/catalog/nodes", "/Node", &["n1", "n2", "n3", "own"]),
        ("/v1/catalog/service/web?filter=ServiceTags+contains+v1", "/Node", &["n1", "n3"]),
        ("/v1/catalog/service/web?filter=Node+matches+%22n%5B12%5D%22", "/Node", &["n1", "n2"]),
        ("/v1/health/service/web?filter=Service.Meta.rack+not+matches+%22.%22", "/Node/Node", &["n3"]),
        ("/v1/health/service/web?filter=any+Service.Tags+as+t+%7B+t+==+v2+%7D", "/Node/Node", &["n2"]),
        (
            "/v1/health/service/web?filter=all+Checks+as+c+%7B+c.Status+==+passing+%7D",
            "/Node/Node",
            &["n1", "n2", "n3"],
        ),
    ] {
        assert_eq!(each(&node.get(path).await, field), expected, "{path}");
    }
    let services = node.get("/v1/catalog/services?node-meta=rack:b").await;
    assert_eq!(services, json!({ "web": ["v2"] }));
    let on = node.get("/v1/catalog/node-services/n1").await;
    assert_eq!((&on["Node"]["Address"], &on["Node"]["Meta"]["rack"]), (&json!("10.0.0.1"), &json!("a")));
    assert_eq!(each(&on["Services"], "/ID"), ["db", "web"]);
    let on = node.get("/v1/catalog/node-services/n1?filter=Service+matches+%22%5Ed%22").await;
    assert_eq!(each(&on["Services"], "/ID"), ["db"]);
    assert_eq!(node.get("/v1/catalog/node-services/none").await, json!({ "Node": null, "Services": [] }));
    assert_eq!(node.get("/v1/catalog/node/n1").await["Services"].as_object().unwrap().len(), 2);
    for wrong in ["node-meta=rack", "node-meta=:a", "filter=Node+matches+%22(%22"] {
        assert_eq!(node.ask("GET", &format!("/v1/catalog/nodes?{wrong}"), "").await.0, 400, "{wrong}");
    }
    node.end().await;
}

/// With many instances, so that lists have several pieces, every form of a list matches the instances after each change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_pieces_tell_what_there_is_after_each_change() {
    const COUNT: usize = 700;
    let node = Node::start().await;
    let one = |n: usize, status: &str| {
        let (ip, port) = (format!("10.0.{}.{}", n / 250, n % 250), json!({ "$": 80, "@enabled": "true" }));
        json!({ "instance": {
            "instanceId": format!("i{n:04}"), "hostName": "h", "app": "SHOP", "ipAddr": ip, "port": port, "status": status,
        }})
    };
    let mut there = std::collections::BTreeMap::new();
    for n in 0..COUNT {
        assert_eq!(node.ask("POST", "/eureka/apps/SHOP", &one(n, "UP").to_string()).await.0, 204);
        there.insert(format!("i{n:04}"), "UP");
    }
    for step in 0..12 {
        let n = step * 61 % COUNT;
        match step % 3 {
            0 => {
                assert_eq!(node.ask("POST", "/eureka/apps/SHOP", &one(n, "DOWN").to_string()).await.0, 204);
                there.insert(format!("i{n:04}"), "DOWN");
            }
            1 => {
                assert_eq!(node.ask("DELETE", &format!("/eureka/apps/SHOP/i{n:04}"), "").await.0, 200);
                there.remove(&format!("i{n:04}"));
            }
            _ => {
                assert_eq!(node.ask("POST", "/eureka/apps/SHOP", &one(COUNT + step, "UP").to_string()).await.0, 204);
                there.insert(format!("i{:04}", COUNT + step), "UP");
            }
        }
        let apps = node.get("/eureka/apps").await;
        let application = &apps["applications"]["application"];
        assert_eq!((application.as_array().map(Vec::len), &application[0]["name"]), (Some(1), &json!("SHOP")));
        let told = application[0]["instance"].as_array().unwrap().iter();
        let told: std::collections::BTreeMap<_, _> =
            told.map(|it| (it["instanceId"].as_str().unwrap().to_owned(), it["status"].as_str().unwrap())).collect();
        assert_eq!(told, there, "step {step}");
        let down = there.values().filter(|status| **status == "DOWN").count();
        let code = format!("DOWN_{down}_UP_{}_", there.len() - down);
        assert_eq!(apps["applications"]["apps__hashcode"], code);
        let targets = node.get("/prometheus/targets?all").await;
        assert_eq!(targets.as_array().unwrap().len(), there.len());
    }
    node.end().await;
}
