//! A real etcd with one member.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::cluster::Cluster;
use crate::port::Port;
use crate::process::{Process, RunAs, command};
use crate::wait::{SOON, wait_until};

/// A running etcd. Ended when dropped.
#[derive(Debug)]
pub struct Etcd {
    client: Port,
    _peer: Port,
    _process: Process,
}

impl Etcd {
    /// Starts `KINGPOST_ETCD`, or the `etcd` that is installed; none, and says so, if there is none.
    ///
    /// # Panics
    /// When it does not listen in time.
    pub async fn start(cluster: &Cluster) -> Option<Etcd> {
        let program = std::env::var("KINGPOST_ETCD").unwrap_or_else(|_| "etcd".into());
        if !Command::new(&program).arg("--version").output().is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: no etcd (set KINGPOST_ETCD)");
            return None;
        }
        let (client, peer) = (Port::reserve(), Port::reserve());
        let [url, peers] = [&client, &peer].map(|port| format!("http://127.0.0.1:{}", port.number()));
        let mut etcd = command(Path::new(&program), RunAs::Tests, "KILL");
        etcd.arg("--data-dir").arg(cluster.dir().join("etcd"));
        etcd.args(["--listen-client-urls", &url, "--advertise-client-urls", &url, "--listen-peer-urls", &peers]);
        etcd.args(["--initial-advertise-peer-urls", &peers, "--initial-cluster", &format!("default={peers}")]);
        etcd.stdin(Stdio::null());
        let process = Process::start("etcd", etcd, &cluster.dir().join("etcd.log"));
        wait_until("etcd", SOON, cluster.dir(), async || {
            tokio::net::TcpStream::connect(("127.0.0.1", client.number())).await.ok()
        })
        .await;
        Some(Etcd { client, _peer: peer, _process: process })
    }

    /// Where its clients connect.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.client.number())
    }
}
