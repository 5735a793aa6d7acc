//! A node of the registry on SQLite, with its fronts over HTTP.

use std::net::SocketAddr;
use std::path::Path;

use registry::api::{AuditLog, Auth, Context, Front, HttpLimits, Mount, Server};
use registry::{Registry, Settings, store};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::PATIENCE;

pub(crate) struct Node {
    _directory: Option<tempfile::TempDir>,
    pub(crate) registry: Registry,
    server: Server,
    address: SocketAddr,
}

impl Node {
    /// Starts a node on a store of its own.
    pub(crate) async fn alone() -> Node {
        let directory = tempfile::tempdir().unwrap();
        let node = Node::start(directory.path()).await;
        Node { _directory: Some(directory), ..node }
    }

    /// Starts a node on the store in a directory.
    pub(crate) async fn start(directory: &Path) -> Node {
        Node::let_in_by(directory, Auth::None).await
    }

    /// Starts a node with authentication on the store in a directory.
    pub(crate) async fn let_in_by(directory: &Path, auth: Auth) -> Node {
        let store = store::open(&format!("sqlite:{}", directory.join("registry.db").display())).await.unwrap();
        let registry = Registry::open(Settings::default(), store).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mount = Mount { listener, fronts: Front::ALL.to_vec(), tls: None };
        let context =
            Context::new(registry.clone(), auth, HttpLimits::default(), "own".to_owned(), AuditLog::default());
        let server = Server::start(vec![mount], context);
        Node { _directory: None, registry, server, address }
    }

    /// Sends a request; returns status and body.
    pub(crate) async fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        self.ask_from("127.0.0.1", method, path, body).await
    }

    /// Sends a request from another address of the loopback: from another host, for the registry.
    pub(crate) async fn ask_from(&self, from: &str, method: &str, path: &str, body: &str) -> (u16, String) {
        let (head, body) = self.whole_from(from, method, path, body).await;
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
    }

    /// Returns the head and the body of an answer.
    pub(crate) async fn whole_from(&self, from: &str, method: &str, path: &str, body: &str) -> (String, String) {
        self.whole_with(from, method, path, "", body).await
    }

    /// Returns the head and the body of an answer to a request with more lines of headers.
    pub(crate) async fn whole_with(
        &self,
        from: &str,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> (String, String) {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        let mut stream = socket.connect(self.address).await.unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path, "").await;
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap_or_else(|e| panic!("{path}: {e}: {body}"))
    }

    pub(crate) async fn end(self) {
        self.server.shutdown(PATIENCE).await;
        self.registry.shutdown().await;
    }
}
