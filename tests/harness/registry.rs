//! The real binary as a registry on SQLite, and requests by hand.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use toml::Table;

use crate::kingpost::kingpost_bin;
use crate::port::Port;
use crate::process::{Process, RunAs, command};
use crate::run::new_dir;
use crate::wait::{SOON, wait_until};

/// Longest answer read.
const LONGEST: u64 = 64 << 20;

/// A registry, stopped on drop.
#[derive(Debug)]
pub struct RegistryNode {
    dir: PathBuf,
    port: Port,
    metrics: Port,
    /// Program, with its arguments, that executes the registry; empty: the registry is started directly.
    within: Vec<String>,
    process: Option<Process>,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct HttpResponse {
    /// Status code.
    pub status: u16,
    /// Head, unparsed.
    pub head: String,
    /// Body.
    pub body: String,
}

impl HttpResponse {
    /// Returns a header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    /// Returns the body as JSON.
    ///
    /// # Panics
    /// When it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {} {}", self.status, self.body))
    }
}

impl RegistryNode {
    /// Starts a registry with an empty store and without login, and `more` in its `[registry]`.
    ///
    /// # Panics
    /// When it does not become ready.
    pub async fn start(more: &str) -> RegistryNode {
        RegistryNode::start_on(None, more).await
    }

    /// As [`RegistryNode::start`], on a store that others may use too.
    ///
    /// # Panics
    /// When it does not become ready.
    pub async fn start_on(store: Option<&str>, more: &str) -> RegistryNode {
        RegistryNode::start_within(&[], store, more).await
    }

    /// As [`RegistryNode::start_on`], started by a program, `within` with its arguments, that executes the registry: `prlimit --nofile=1024`.
    ///
    /// # Panics
    /// When it does not become ready.
    pub async fn start_within(within: &[&str], store: Option<&str>, more: &str) -> RegistryNode {
        let dir = new_dir("registry");
        let within = within.iter().map(|&word| word.to_owned()).collect();
        let mut node = RegistryNode { dir, port: Port::reserve(), metrics: Port::reserve(), within, process: None };
        let own = format!("sqlite:{}", node.dir.join("registry.sqlite").display());
        let store = store.unwrap_or(&own);
        let mut text = format!("listen = \"127.0.0.1:{}\"\nstore = \"{store}\"\n{more}\n", node.port.number());
        if !more.contains("auth =") {
            text = format!("auth = \"none\"\n{text}");
        }
        let text = format!("[registry]\n{text}[metrics]\nlisten = \"127.0.0.1:{}\"\n", node.metrics.number());
        text.parse::<Table>().expect("a configuration");
        std::fs::write(node.config(), text).expect("write the registry's configuration");
        node.start_again().await;
        node
    }

    /// Starts the same registry again.
    ///
    /// # Panics
    /// When it does not become ready.
    pub async fn start_again(&mut self) {
        let mut kingpost = match self.within.split_first() {
            None => command(&kingpost_bin(), RunAs::Tests, "KILL"),
            Some((program, rest)) => {
                let mut command = command(Path::new(program), RunAs::Tests, "KILL");
                command.args(rest).arg(kingpost_bin());
                command
            }
        };
        kingpost.args(["registry", "--config"]).arg(self.config());
        let path = self.dir.join("registry.log");
        let log = || std::fs::read_to_string(&path).unwrap_or_default();
        let starts = || log().matches("registry started").count();
        // Starts before this one said their addresses in the same file.
        let before = starts();
        self.process = Some(Process::start("registry", kingpost, &path));
        wait_until("the registry to be ready", SOON, &self.dir, async || {
            let ended = self.process().exit_status();
            assert!(ended.is_none(), "the registry ended with {ended:?}:\n{}", log());
            let ready =
                crate::metrics::get(self.metrics.number(), "/readyz").await.filter(|(status, _)| *status == 200);
            // The line with its addresses comes a moment after that.
            ready.filter(|_| starts() > before)
        })
        .await;
    }

    fn config(&self) -> PathBuf {
        self.dir.join("kingpost.toml")
    }

    /// Returns its directory: configuration, store, log.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the process.
    ///
    /// # Panics
    /// When it is not started.
    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("the registry is started")
    }

    /// Ends it by a signal.
    ///
    /// # Panics
    /// When it does not end.
    pub async fn end(&self, signal: i32) {
        self.process().signal(signal);
        self.process().wait_exit(SOON).await;
    }

    /// Returns the port of all its APIs.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns `http://127.0.0.1:…`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }

    /// True if it reports that it is ready; false also without an answer.
    pub async fn is_ready(&self) -> bool {
        crate::metrics::get(self.metrics.number(), "/readyz").await.is_some_and(|(status, _)| status == 200)
    }

    /// Returns the port of its DNS server, which the system chose.
    ///
    /// # Panics
    /// When it has none.
    pub fn dns_port(&self) -> u16 {
        self.started()["dns"]
            .as_str()
            .and_then(|address| address.rsplit_once(':')?.1.parse().ok())
            .expect("a DNS server")
    }

    /// Returns its message on start.
    fn started(&self) -> Value {
        let log = std::fs::read_to_string(self.process().log()).expect("read the registry's log");
        let lines = log.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut said = lines.filter(|line| line["message"] == "registry started");
        said.next().expect("it has said that it started")
    }

    /// Returns its metrics.
    ///
    /// # Panics
    /// When there are none.
    pub async fn metrics(&self) -> crate::Metrics {
        crate::Metrics::now(self.metrics.number()).await
    }

    /// Sends a request and reads the answer to its end.
    ///
    /// # Panics
    /// When there is no whole answer.
    pub async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> HttpResponse {
        let answer = self.try_ask(method, path, headers, body).await;
        answer.unwrap_or_else(|| panic!("{method} {path}: no answer"))
    }

    /// As [`RegistryNode::ask`], for a registry that may be down: None then, and also for a cut-off answer.
    pub async fn try_ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Option<HttpResponse> {
        RegistryNode::try_ask_at(self.port(), method, path, headers, body).await
    }

    /// As [`RegistryNode::try_ask`], to a port in front of the registry's own.
    pub async fn try_ask_at(
        port: u16,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Option<HttpResponse> {
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n",
            body.len()
        );
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        request.push_str(body);
        let stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        exchange(stream, request.as_bytes()).await
    }

    /// As [`RegistryNode::ask`], without headers and body.
    pub async fn get(&self, path: &str) -> HttpResponse {
        self.ask("GET", path, &[], "").await
    }

    /// As [`RegistryNode::ask`], with JSON.
    pub async fn send(&self, method: &str, path: &str, body: &Value) -> HttpResponse {
        self.ask(method, path, &[("Content-Type", "application/json")], &body.to_string()).await
    }

    /// Sends bytes and reads until the registry closes; None if the received bytes are no answer.
    ///
    /// # Panics
    /// When it cannot be connected to.
    pub async fn raw(&self, bytes: &[u8]) -> Option<HttpResponse> {
        let stream = TcpStream::connect(("127.0.0.1", self.port())).await.expect("connect to the registry");
        exchange(stream, bytes).await
    }
}

async fn exchange(mut stream: TcpStream, bytes: &[u8]) -> Option<HttpResponse> {
    // The registry may answer, and close, before everything was sent.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = stream.take(LONGEST).read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    Some(HttpResponse { status, head: head.to_owned(), body: body.to_owned() })
}
