//! A real etcd with one member, open to all or with TLS and users.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::certs::{Authority, Pair};
use crate::cluster::Cluster;
use crate::port::Port;
use crate::process::{Process, RunAs, command};
use crate::wait::{SOON, wait_until};

/// The user of an etcd with access control.
pub const ETCD_USER: &str = "watcher";
/// Password of [`ETCD_USER`].
pub const ETCD_PASSWORD: &str = "the-watchers-own";

/// A running etcd, stopped on drop.
#[derive(Debug)]
pub struct Etcd {
    program: String,
    dir: PathBuf,
    client: Port,
    peer: Port,
    /// The CA's certificate, and etcd's own with its key.
    tls: Option<(PathBuf, Pair)>,
    process: Option<Process>,
}

impl Etcd {
    /// Starts `KINGPOST_ETCD`, or the installed `etcd`; None, with a message, if there is none.
    ///
    /// # Panics
    /// When it does not listen in time.
    pub async fn start(cluster: &Cluster) -> Option<Etcd> {
        let program = std::env::var("KINGPOST_ETCD").unwrap_or_else(|_| "etcd".into());
        if !Command::new(&program).arg("--version").output().is_ok_and(|output| output.status.success()) {
            crate::skipped("no etcd (set KINGPOST_ETCD)");
            return None;
        }
        let (client, peer) = (Port::reserve(), Port::reserve());
        let mut etcd = Etcd { program, dir: cluster.dir().to_owned(), client, peer, tls: None, process: None };
        etcd.start_again().await;
        Some(etcd)
    }

    /// Starts etcd with TLS, client certificates required, and access control: [`ETCD_USER`] has a watcher's permissions.
    ///
    /// # Panics
    /// When it does not start, or refuses what is set.
    pub async fn start_secured(cluster: &Cluster, authority: &Authority) -> Option<Etcd> {
        let mut etcd = Etcd::start(cluster).await?;
        let text = |text: &str| STANDARD.encode(text);
        let grant = |kind: &str, prefix: &str, end: &str| {
            format!(
                r#"{{"name":"watching","perm":{{"permType":"{kind}","key":"{}","range_end":"{}"}}}}"#,
                text(prefix),
                text(end)
            )
        };
        for (path, body) in [
            ("user/add", r#"{"name":"root","password":"of-root"}"#.to_owned()),
            ("user/grant", r#"{"user":"root","role":"root"}"#.to_owned()),
            ("role/add", r#"{"name":"watching"}"#.to_owned()),
            ("role/grant", grant("READWRITE", "/kingpost/failover/", "/kingpost/failover0")),
            ("role/grant", grant("READ", "/service/", "/service0")),
            ("user/add", format!(r#"{{"name":"{ETCD_USER}","password":"{ETCD_PASSWORD}"}}"#)),
            ("user/grant", format!(r#"{{"user":"{ETCD_USER}","role":"watching"}}"#)),
            ("enable", "{}".to_owned()),
        ] {
            let answer = etcd.post(&format!("/v3/auth/{path}"), &body).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        }
        // Without a name in the certificate: etcd would take it for the user of every HTTP request.
        etcd.tls = Some((authority.ca_file(), authority.issue("", &["127.0.0.1"])));
        etcd.start_again().await;
        Some(etcd)
    }

    /// Kills it and starts it again with the same data. It loses the tokens that it has issued.
    ///
    /// # Panics
    /// When it does not listen in time.
    pub async fn start_again(&mut self) {
        self.process = None;
        let (client, peer) = (self.url(), format!("http://127.0.0.1:{}", self.peer.number()));
        let mut etcd = command(Path::new(&self.program), RunAs::Tests, "KILL");
        etcd.arg("--data-dir").arg(self.dir.join("etcd"));
        etcd.args(["--listen-client-urls", &client, "--advertise-client-urls", &client, "--listen-peer-urls", &peer]);
        etcd.args(["--initial-advertise-peer-urls", &peer, "--initial-cluster", &format!("default={peer}")]);
        if let Some((ca, pair)) = &self.tls {
            etcd.arg("--cert-file").arg(&pair.cert).arg("--key-file").arg(&pair.key);
            etcd.arg("--client-cert-auth").arg("--trusted-ca-file").arg(ca);
        }
        etcd.stdin(Stdio::null());
        self.process = Some(Process::start("etcd", etcd, &self.dir.join("etcd.log")));
        wait_until("etcd", SOON, &self.dir, async || {
            TcpStream::connect(("127.0.0.1", self.client.number())).await.ok()
        })
        .await;
    }

    /// Returns the address for clients.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.client.number())
    }

    /// Sends a request and returns the raw answer.
    async fn post(&self, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.client.number())).await.expect("etcd listens");
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.expect("etcd reads");
        let mut answer = String::new();
        stream.take(1 << 16).read_to_string(&mut answer).await.expect("etcd answers");
        answer
    }
}
