//! `kingpost up` for real: servers, proxy, self-check, second start, kill -9, `down`. Needs PostgreSQL.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Longest time for anything here.
const LIMIT: Duration = Duration::from_secs(120);

/// A cluster in a directory of its own; stopped and removed at the end, also of a test that fails.
struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Scratch {
        let dir = tempfile::tempdir().unwrap();
        // Servers run as another user when the test runs as root.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), mode).unwrap();
        Scratch { dir }
    }

    fn cluster(&self) -> PathBuf {
        self.dir.path().join("cluster")
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kingpost"));
        command.arg(name).arg("--dir").arg(self.cluster()).stdin(Stdio::null());
        if name == "up" {
            command.args([
                "--listen",
                "127.0.0.1:0",
                "--metrics-listen",
                "127.0.0.1:0",
                "--registry-listen",
                "127.0.0.1:0",
                "--console-listen",
                "127.0.0.1:0",
            ]);
        }
        command
    }

    fn run(&self, name: &str, args: &[&str]) -> Output {
        self.command(name).args(args).output().unwrap()
    }

    /// Postmasters that run on the cluster's data directories.
    fn postmasters(&self) -> usize {
        let Ok(nodes) = std::fs::read_dir(self.cluster().join("nodes")) else { return 0 };
        nodes
            .flatten()
            .filter(|node| {
                let data = node.path().join("data");
                let file = std::fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
                let pid = file.lines().next().unwrap_or("none");
                std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == data)
            })
            .count()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = self.run("down", &[]);
    }
}

fn assert_success(output: &Output) {
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{errors}", output.status);
}

/// A running `up`, and its lines.
struct Up {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Up {
    fn start(scratch: &Scratch, args: &[&str]) -> Up {
        let mut child = scratch.command("up").args(args).stdout(Stdio::piped()).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                eprintln!("up: {line}");
                let _ = sender.send(line);
            }
        });
        Up { child, lines }
    }

    fn wait_for(&self, wanted: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("no line with {wanted:?}"));
            if line.contains(wanted) {
                return line;
            }
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn status(scratch: &Scratch) -> serde_json::Value {
    let output = scratch.run("status", &["--json"]);
    assert_success(&output);
    serde_json::from_slice(&output.stdout).unwrap()
}

fn roles(status: &serde_json::Value) -> Vec<String> {
    let nodes = status["nodes"].as_array().unwrap();
    nodes.iter().map(|node| node["role"].as_str().unwrap().to_owned()).collect()
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + LIMIT;
    while !condition() {
        assert!(std::time::Instant::now() < end, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn http(address: &str, path: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn once_twice_in_the_same_directory() {
    let scratch = Scratch::new();
    for (start, made) in [("first", true), ("second", false)] {
        let output = scratch.run("up", &["--once", "--replicas", "1"]);
        assert_success(&output);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("read it back from the replica"), "{start}: {text}");
        assert!(text.contains("starting the relay"), "{start}: {text}");
        assert_eq!(text.contains("initdb"), made, "{start}: {text}");
        assert_eq!(text.contains("pg_basebackup"), made, "{start}: {text}");
        assert_eq!(scratch.postmasters(), 0, "{start}");
        if made {
            as_an_earlier_version_had_it(&scratch.cluster().join("nodes"));
        }
    }
    assert!(scratch.cluster().join("nodes/node2/data/PG_VERSION").exists());
}

/// Moves data to their place in an earlier version.
fn as_an_earlier_version_had_it(nodes: &Path) {
    for node in ["node1", "node2"] {
        let aside = nodes.join("aside");
        std::fs::rename(nodes.join(node).join("data"), &aside).unwrap();
        std::fs::remove_dir_all(nodes.join(node)).unwrap();
        std::fs::rename(&aside, nodes.join(node)).unwrap();
    }
}

#[test]
fn runs_until_down_and_survives_a_kill() {
    let scratch = Scratch::new();
    let up = Up::start(&scratch, &[]);
    up.wait_for("ready");
    let seen = status(&scratch);
    assert_eq!(roles(&seen), ["primary", "replica", "replica"], "{seen:#}");
    assert_eq!((&seen["relay"]["role"], &seen["relay"]["connections"]), (&"relay".into(), &2.into()), "{seen:#}");
    let metrics = seen["metrics"].as_str().unwrap().to_owned();
    assert!(http(&metrics, "/readyz").starts_with("HTTP/1.1 200"));
    assert!(http(&metrics, "/healthz").starts_with("HTTP/1.1 200"));
    assert!(http(&metrics, "/metrics").contains("kingpost_node_role{"));
    assert!(http(&metrics, "/metrics").contains("kingpost_relay_streaming 1"));

    // The registry has the cluster's own nodes, and finds them well.
    let wanted = serde_json::json!([
        { "service": "postgres", "instances": 3, "usable": 3 },
        { "service": "proxy", "instances": 1, "usable": 1 },
        { "service": "relay", "instances": 1, "usable": 1 },
    ]);
    wait_until("all nodes to be registered", || status(&scratch)["registered"] == wanted);
    let registry = seen["registry"].as_str().unwrap();
    let primary = http(registry, "/v1/namespaces/kingpost/instances?meta=role%3Dprimary");
    assert!(primary.contains("\"id\":\"node1\""), "{primary}");

    let second = scratch.run("up", &["--once"]);
    assert_eq!(second.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&second.stderr).contains("already"));

    up.kill();
    assert_eq!(scratch.postmasters(), 3, "the servers of a killed `up` are left");
    let up = Up::start(&scratch, &[]);
    up.wait_for("which an earlier run had left");
    up.wait_for("ready");
    assert_eq!(scratch.postmasters(), 3);
    assert_success(&scratch.run("down", &[]));
    assert_eq!(scratch.postmasters(), 0);

    let up = Up::start(&scratch, &["--replicas", "1"]);
    up.wait_for("ready");
    up.kill();
    assert_success(&scratch.run("down", &[]));
    assert_eq!(scratch.postmasters(), 0, "`down` stops what a killed `up` left");
}

#[test]
fn without_a_relay_too() {
    let scratch = Scratch::new();
    for relay in [false, true] {
        let args: &[&str] = if relay { &["--once"] } else { &["--once", "--replicas", "1", "--no-relay"] };
        let output = scratch.run("up", args);
        assert_success(&output);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text.contains("starting the relay"), relay, "{text}");
        assert!(!text.contains("made again"), "the replica goes over from one to the other: {text}");
    }
}

#[test]
fn after_a_failover_the_promoted_node_is_the_primary() {
    let scratch = Scratch::new();
    let up = Up::start(&scratch, &["--replicas", "1"]);
    up.wait_for("ready");
    // Its agent would start it again.
    let node1 = scratch.cluster().join("nodes/node1");
    let paused =
        Command::new(env!("CARGO_BIN_EXE_kingpost")).args(["node", "--pause", "--directory"]).arg(&node1).output();
    assert_success(&paused.unwrap());
    kill_server(&node1.join("data"));
    let nodes = status(&scratch);
    let address = nodes["nodes"][1]["address"].as_str().unwrap().to_owned();
    promote(&address);
    up.wait_for("was replica, is primary");
    assert_success(&scratch.run("down", &[]));
    drop(up);

    let up = Up::start(&scratch, &[]);
    up.wait_for("starting node2 as primary");
    up.wait_for("making node1 with pg_basebackup");
    up.wait_for("ready");
    assert_eq!(roles(&status(&scratch)), ["replica", "primary"]);
    assert_success(&scratch.run("down", &[]));
}

/// kill -9 of one server.
fn kill_server(data: &Path) {
    let text = std::fs::read_to_string(data.join("postmaster.pid")).unwrap();
    let pid = text.lines().next().unwrap().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

fn promote(address: &str) {
    let (host, port) = address.split_once(':').unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::Config::new()
            .host(host)
            .port(port.parse().unwrap())
            .user("postgres")
            .dbname("postgres")
            .connect(tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        client.simple_query("SELECT pg_promote()").await.unwrap();
    });
}
