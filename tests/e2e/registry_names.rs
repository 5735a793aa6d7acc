//! Probed instances with names for hosts: unanswered names of one namespace do not affect the other namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kingpost_tests::{RegistryNode, SOON, ShowLogs, new_dir, skipped, wait_until};
use serde_json::{Value, json};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::AbortHandle;

/// Number of names of each namespace.
const DEAD: usize = 80;
const LIVE: usize = 20;
/// Concurrent look-ups of one namespace, out of 64 for all.
const SHARE: usize = 32;
/// Addresses are looked up again after 30 s.
const AGAIN: Duration = Duration::from_secs(90);

/// A DNS server that knows names below `live.test`, and never answers for those below `dead.test`.
struct Names {
    address: SocketAddr,
    /// Number of queries of each name.
    asked: Arc<Mutex<BTreeMap<String, usize>>>,
    serving: AbortHandle,
}

impl Drop for Names {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Names {
    /// Starts on the port of DNS, as resolvers use no other; at its own address. `None`: not permitted.
    async fn start() -> Option<Names> {
        let pid = std::process::id().to_be_bytes();
        let socket = match UdpSocket::bind((Ipv4Addr::new(127, pid[2] | 1, pid[3], 53), 53)).await {
            Ok(socket) => socket,
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return None,
            Err(error) => panic!("a DNS server: {error}"),
        };
        let (address, asked) = (socket.local_addr().unwrap(), Arc::<Mutex<BTreeMap<String, usize>>>::default());
        let noted = Arc::clone(&asked);
        let serving = tokio::spawn(async move {
            let mut query = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut query).await {
                let Some((name, answer)) = answer(&query[..length]) else { continue };
                if answer.is_none() || answer.as_ref().is_some_and(|answer| answer[7] == 1) {
                    *noted.lock().unwrap().entry(name).or_default() += 1;
                }
                if let Some(answer) = answer {
                    let _ = socket.send_to(&answer, client).await;
                }
            }
        });
        Some(Names { address, asked, serving: serving.abort_handle() })
    }

    /// Returns the names below `domain` that were queried at least this often.
    fn asked(&self, domain: &str, times: usize) -> BTreeSet<String> {
        let asked = self.asked.lock().unwrap();
        let asked = asked.iter().filter(|(name, count)| name.ends_with(domain) && **count >= times);
        asked.map(|(name, _)| name.clone()).collect()
    }

    /// Returns a command that runs a program with this resolver: in a mount namespace of its own.
    fn resolver(&self, dir: &Path) -> Vec<String> {
        let (resolv, switch) = (dir.join("resolv.conf"), dir.join("nsswitch.conf"));
        // An unanswered query is sent once, with the longest wait of the system's resolver.
        let lines = format!("nameserver {}\noptions timeout:30 attempts:1\n", self.address.ip());
        std::fs::write(&resolv, lines).unwrap();
        std::fs::write(&switch, "hosts: files dns\n").unwrap();
        let script = format!(
            "mount --bind {} /etc/resolv.conf && if [ -e /etc/nsswitch.conf ]; then mount --bind {} /etc/nsswitch.conf; fi && exec \"$@\"",
            resolv.display(),
            switch.display()
        );
        ["unshare", "--mount", "sh", "-c", &script, "sh"].map(str::to_owned).into()
    }
}

/// Returns the name of a query, and the answer, if there is one: for IPv4 an address of this machine (then the answer's count is 1), else no record.
fn answer(query: &[u8]) -> Option<(String, Option<Vec<u8>>)> {
    let (mut labels, mut at) = (Vec::new(), 12);
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(query.get(at..at + length)?).to_ascii_lowercase());
        at += length;
    }
    let (question, kind) = (query.get(12..at + 4)?, query.get(at..at + 2)?);
    let name = labels.join(".");
    if name.ends_with("dead.test") {
        return Some((name, None));
    }
    let found = kind == [0, 1] && name.ends_with("live.test");
    let mut answer = [&query[..2], &[0x81, 0x80, 0, 1, 0, u8::from(found), 0, 0, 0, 0], question].concat();
    if found {
        answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1]);
    }
    Some((name, Some(answer)))
}

async fn register(node: &RegistryNode, namespace: &str, many: usize, port: u16, health: &str) {
    let check = json!({ "type": "tcp", "interval": "1s", "timeout": "1s", "rise": 1, "fall": 1 });
    let instance = |n: usize| json!({ "service": "named", "id": format!("n{n}"), "host": format!("n{n}.{namespace}.test"), "port": port, "health": health, "check": check });
    let all: Vec<Value> = (0..many).map(instance).collect();
    let path = format!("/v1/namespaces/{namespace}/instances");
    let answer = node.send("POST", &path, &json!({ "instances": all })).await;
    assert_eq!(answer.json()["failed"], 0, "{}", answer.body);
}

/// Counts a namespace's passing instances.
async fn passing(node: &RegistryNode, namespace: &str) -> usize {
    let path = format!("/v1/namespaces/{namespace}/services/named/instances");
    let shown = node.get(&path).await.json();
    shown["instances"].as_array().unwrap().iter().filter(|instance| instance["health"] == "passing").count()
}

/// Eighty names of one namespace that the resolver never answers, and twenty of another one. The twenty are found while the eighty hold their share
/// of the look-ups, and stay passing over the time in which the eighty are given up, and their own addresses are looked up again.
#[tokio::test]
async fn names_that_are_not_answered_are_nothing_to_other_namespaces() {
    let Some(names) = Names::start().await else {
        skipped("a DNS server needs port 53, which only root may open here");
        return;
    };
    let dir = new_dir("resolver");
    let within = names.resolver(&dir);
    let within: Vec<&str> = within.iter().map(String::as_str).collect();
    // No share of critical instances is too large.
    let more = "[registry.health]\nprobe_allow = [\"127.0.0.1\"]\n[registry.health.brake]\nservice_share = 1.0\nwhole_share = 1.0";
    let node = RegistryNode::start_within(&within, None, more).await;
    let _logs = ShowLogs(node.dir());
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let accepting = tokio::spawn(async move { while server.accept().await.is_ok() {} });

    register(&node, "dead", DEAD, port, "passing").await;
    wait_until("the look-ups to be held", SOON, node.dir(), async || {
        (names.asked("dead.test", 1).len() >= SHARE).then_some(())
    })
    .await;
    register(&node, "live", LIVE, port, "critical").await;
    wait_until("the live names to be found", SOON, node.dir(), async || {
        (passing(&node, "live").await == LIVE).then_some(())
    })
    .await;
    // None of the dead ones has released its look-up: the others were looked up beside them.
    assert_eq!(names.asked("dead.test", 1).len(), SHARE);
    wait_until("dead names to be critical, and the live ones to be asked for again", AGAIN, node.dir(), async || {
        let live = passing(&node, "live").await;
        assert_eq!(live, LIVE, "of the live ones");
        let again = names.asked("live.test", 2).len() == LIVE;
        (again && passing(&node, "dead").await < DEAD).then_some(())
    })
    .await;
    accepting.abort();
}
