//! The registry's DNS with HAProxy's resolver, which asks over UDP only and takes a cut answer for the whole one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kingpost_tests::{Port, Process, RegistryNode, RunAs, SOON, ShowLogs, command, skipped, wait_until};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Starts HAProxy with a backend of `slots` servers, which the service `web` fills.
fn haproxy(dir: &Path, dns: u16, size: u16, slots: usize, front: &Port) -> Process {
    let socket = dir.join(format!("haproxy{size}.sock"));
    let config = format!(
        "global\n  stats socket {} mode 600\ndefaults\n  mode tcp\n  timeout connect 1s\n  timeout client 1s\n  timeout server 1s\n\
         resolvers kingpost\n  nameserver own 127.0.0.1:{dns}\n  accepted_payload_size {size}\n  timeout resolve 200ms\n  hold valid 200ms\n\
         frontend in\n  bind 127.0.0.1:{}\n  default_backend web\n\
         backend web\n  server-template web 1-{slots} _web._tcp.service.consul resolvers kingpost init-addr none\n",
        socket.display(),
        front.number(),
    );
    let file = dir.join(format!("haproxy{size}.cfg"));
    std::fs::write(&file, config).unwrap();
    let mut haproxy = command(&PathBuf::from("/usr/sbin/haproxy"), RunAs::Tests, "KILL");
    haproxy.args(["-db", "-f"]).arg(file);
    Process::start("haproxy", haproxy, &dir.join(format!("haproxy{size}.log")))
}

async fn ask(dir: &Path, size: u16, order: &str) -> Option<String> {
    let mut stream = UnixStream::connect(dir.join(format!("haproxy{size}.sock"))).await.ok()?;
    stream.write_all(format!("{order}\n").as_bytes()).await.ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.ok()?;
    Some(text)
}

/// Returns the addresses of the servers that are up, and the number of answers that HAProxy has read.
async fn state(dir: &Path, size: u16) -> (BTreeSet<String>, u64) {
    let servers = ask(dir, size, "show servers state web").await.unwrap_or_default();
    let lines = servers.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    // Fields 4, 5 and 6: address, operational state (2: running), administrative state (0x20: without an address).
    let addressed = |fields: &[&str]| fields[6].parse::<u32>().is_ok_and(|state| state & 0x20 == 0);
    let up = lines.filter(|fields| fields.len() > 18 && fields[5] == "2" && addressed(fields));
    let up = up.map(|fields| format!("{}:{}", fields[4], fields[18])).collect();
    let counted = ask(dir, size, "show resolvers kingpost").await.unwrap_or_default();
    let valid = counted.lines().find_map(|line| line.trim().strip_prefix("valid:")?.trim().parse().ok());
    (up, valid.unwrap_or(0))
}

#[tokio::test]
async fn haproxys_servers_do_not_flap() {
    if !Path::new("/usr/sbin/haproxy").exists() {
        skipped("HAProxy is not installed");
        return;
    }
    let node = RegistryNode::start("[registry.dns]\nlisten = \"127.0.0.1:0\"").await;
    let _logs = ShowLogs(node.dir());
    let instance =
        |n: u16| json!({ "service": "web", "id": format!("w{n:03}"), "host": format!("10.0.0.{n}"), "port": 80 });
    let list: Vec<_> = (0..60).map(instance).collect();
    let answer = node.send("POST", "/v1/namespaces/default/instances", &json!({ "instances": list })).await;
    assert_eq!(answer.json()["failed"], 0, "{}", answer.body);
    let fronts = [Port::reserve(), Port::reserve()];
    // 8192 bytes have room for all, 1232 for a part.
    for (size, front, all, looks) in [(8192, &fronts[0], true, 15), (1232, &fronts[1], false, 600)] {
        let _haproxy = haproxy(node.dir(), node.dns_port(), size, 80, front);
        // A cut answer has no addresses, so HAProxy asks for each by itself: it is done when nothing changes for a while.
        let (mut first, mut since) = (BTreeSet::new(), 0);
        wait_until("servers that are up", SOON, node.dir(), async || {
            let (now, answers) = state(node.dir(), size).await;
            if now != first {
                (first, since) = (now, answers);
            }
            let enough = if all { first.len() == 60 } else { first.len() > 15 && answers > since + 60 };
            enough.then_some(())
        })
        .await;
        let asked = state(node.dir(), size).await.1;
        wait_until("more answers", SOON, node.dir(), async || {
            let (now, answers) = state(node.dir(), size).await;
            assert_eq!(now, first, "{size}: other servers are up than at first");
            (answers >= asked + looks).then_some(())
        })
        .await;
        let log = std::fs::read_to_string(node.dir().join(format!("haproxy{size}.log"))).unwrap();
        assert!(log.contains("is UP/READY") && !log.contains("DOWN"), "{size}: {log}");
    }
}
