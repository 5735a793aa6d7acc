//! `kingpost up`: the local cluster goes on after the loss of its primary, and takes it back; its registry knows the nodes.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use kingpost_tests::{Endpoint, Kingpost, ShowLogs, http_get, kingpost_bin, new_dir, signal, wait_until, within};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::common::{only_kingpost, value};
use crate::fleet::{History, Kind};

const LONG: Duration = Duration::from_secs(120);

/// Reads the output of `up`, line by line, until one that `found` accepts.
pub(crate) async fn until<T>(
    what: &str,
    lines: &mut Lines<BufReader<ChildStdout>>,
    dir: &Path,
    mut found: impl FnMut(&str) -> Option<T>,
) -> T {
    within(what, LONG, dir, async {
        while let Some(line) = lines.next_line().await.unwrap() {
            eprintln!("up: {line}");
            if let Some(found) = found(&line) {
                return found;
            }
        }
        panic!("up ended");
    })
    .await
}

/// Returns the cluster's nodes in these services of its registry: id, role, health.
pub(crate) async fn registered(registry: u16, services: &[&str]) -> Option<Vec<[String; 3]>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found = Vec::new();
    for service in services {
        let (_, body) = http_get(registry, &format!("/v1/namespaces/kingpost/services/{service}/instances")).await?;
        let answer: Value = serde_json::from_str(&body).ok()?;
        for instance in answer["instances"].as_array()? {
            found.push([text(&instance["id"]), text(&instance["metadata"]["role"]), text(&instance["health"])]);
        }
    }
    Some(found)
}

/// A running `kingpost up` in a directory of its own.
pub(crate) struct Up {
    child: Child,
    pub(crate) lines: Lines<BufReader<ChildStdout>>,
    pub(crate) dir: PathBuf,
    /// Port of its proxy; 0 without one.
    proxy: u16,
    /// Port of its registry.
    pub(crate) registry: u16,
    /// Output until it was ready.
    pub(crate) said: Vec<String>,
}

/// Makes a directory for a cluster.
pub(crate) fn directory() -> PathBuf {
    let dir = new_dir("up");
    // The servers may run as another user.
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    dir.join("cluster")
}

impl Up {
    /// Starts it with these arguments, and waits until it is ready.
    async fn start(arguments: &[&str]) -> Up {
        Up::start_in(directory(), arguments).await
    }

    /// Starts it in this directory, and waits until it is ready.
    pub(crate) async fn start_in(dir: PathBuf, arguments: &[&str]) -> Up {
        let mut up = Command::new(kingpost_bin());
        up.arg("up").args(arguments).arg("--dir").arg(&dir);
        for listen in ["--listen", "--metrics-listen", "--registry-listen", "--console-listen"] {
            up.args([listen, "127.0.0.1:0"]);
        }
        let mut child = up.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("kingpost up");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = Vec::new();
        until("the cluster's start", &mut lines, &dir, |line| {
            said.push(line.to_owned());
            (line == "ready").then_some(())
        })
        .await;
        let mut up = Up { child, lines, dir, proxy: 0, registry: 0, said };
        up.proxy = up.port("proxy ").unwrap_or(0);
        up.registry = up.port("registry http://").unwrap();
        up
    }

    /// Returns the port in the line with this beginning.
    pub(crate) fn port(&self, begins: &str) -> Option<u16> {
        let address = self.said.iter().find_map(|line| line.strip_prefix(begins)?.trim().split(['/', ' ']).next())?;
        address.rsplit(':').next()?.parse().ok()
    }

    /// Runs `kingpost ARGUMENTS` with its configuration.
    pub(crate) async fn run(&self, arguments: &[&str]) -> Output {
        let file = self.dir.join("kingpost.toml").to_str().unwrap().to_owned();
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let run = tokio::task::spawn_blocking(move || {
            let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            arguments.extend(["--config", &file]);
            Kingpost::run(&arguments)
        });
        run.await.unwrap()
    }

    /// Ends it as Ctrl-C does.
    pub(crate) async fn end(mut self) {
        assert!(signal(self.child.id().unwrap(), 2));
        within("the end", LONG, &self.dir, async { while self.lines.next_line().await.unwrap().is_some() {} }).await;
        assert!(self.child.wait().await.unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_bring_a_former_primary_and_a_killed_server_back() {
    if only_kingpost() {
        return;
    }
    let up = Up::start(&["--replicas", "1", "--durability", "relay", "--tour"]).await;
    for shown in [
        "tour: the restored server has the table",
        "tour: node2 takes writes",
        "tour: node1 is a standby of node2",
        "tour: kingpost switchover --to node1: it is the primary again",
    ] {
        assert!(up.said.iter().any(|line| line.contains(shown)), "{shown}: {:?}", up.said);
    }
    let (cluster, registry) = (up.dir.clone(), up.registry);
    let _logs = ShowLogs(&cluster);
    let shows = async |what: &str, roles: [&str; 2]| {
        let [one, two] = roles;
        let expected =
            [["node1", one], ["node2", two], ["proxy1", ""], ["relay1", ""]].map(|[id, role]| [id, role, "passing"]);
        wait_until(what, LONG, &cluster, async || {
            registered(registry, &["postgres", "proxy", "relay"])
                .await
                .is_some_and(|found| found == expected)
                .then_some(())
        })
        .await;
    };
    shows("the nodes in the registry", ["primary", "replica"]).await;
    let endpoint = Endpoint::new(up.proxy, &cluster);
    let mut config = endpoint.config();
    config.user("postgres").dbname("postgres");
    let client = endpoint.connect_as(&config).await;
    client.batch_execute("CREATE TABLE t (n int); INSERT INTO t VALUES (1)").await.unwrap();

    // The server that was the primary meanwhile is a replica like any other: it has new rows, and reads are sent to it.
    client.batch_execute("INSERT INTO t VALUES (3)").await.unwrap();
    let read = async {
        while value(
            &client,
            "/* kingpost.route=replica */ SELECT pg_is_in_recovery() AND EXISTS (SELECT FROM t WHERE n = 3)",
        )
        .await
            != "t"
        {}
    };
    within("a read from it", LONG, &cluster, read).await;

    // A killed server is started again by its agent, and is what it was.
    let pid = || {
        let file = std::fs::read_to_string(cluster.join("nodes/node1/data/postmaster.pid")).unwrap_or_default();
        file.lines().next().and_then(|pid| pid.parse::<u32>().ok())
    };
    let killed = pid();
    assert!(signal(killed.unwrap(), 9));
    wait_until("the killed server", LONG, &cluster, async || pid().filter(|pid| Some(*pid) != killed)).await;
    let writes = async || {
        let client = endpoint.try_connect(&config).await.ok()?;
        client.batch_execute("INSERT INTO t VALUES (4)").await.ok()
    };
    wait_until("a write", LONG, &cluster, writes).await;
    shows("the same roles", ["primary", "replica"]).await;
    up.end().await;
}

/// The quickstart's switchovers, while clients write whose sessions are set to READ WRITE.
#[tokio::test(flavor = "multi_thread")]
async fn switchovers_of_a_local_cluster_lose_nothing() {
    if only_kingpost() {
        return;
    }
    let mut up = Up::start(&[]).await;
    let dir = up.dir.clone();
    let _logs = ShowLogs(&dir);
    let endpoint = Endpoint::new(up.proxy, &dir);
    let mut config = endpoint.config();
    config.user("postgres").dbname("postgres");
    let admin = endpoint.connect_as(&config).await;
    for sql in ["CREATE ROLE alice LOGIN", "CREATE DATABASE app OWNER alice"] {
        admin.batch_execute(sql).await.unwrap();
    }
    let client = endpoint.connect().await;
    client.batch_execute("CREATE TABLE acked (n bigint)").await.unwrap();
    let mut history = History::new(&dir);
    history.add(&endpoint, Kind::ReadWrite, 8).await;
    history.more(100).await;
    for (node, back) in [("node2", "node1 follows node2"), ("node1", "node2 follows node1")] {
        let ran = up.run(&["switchover", "--to", node]).await;
        let text = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
        assert!(ran.status.success(), "{text}");
        // No manual step is needed for the local cluster's own work.
        assert!(text.contains("kingpost up brings it back") && !text.contains("pg_rewind"), "{text}");
        history.more(200).await;
        until(back, &mut up.lines, &dir, |line| line.starts_with(back).then_some(())).await;
        history.more(200).await;
    }
    let errors = history.check(&client).await;
    assert!(errors.is_empty(), "clients saw {} errors: {:?}", errors.len(), &errors[..errors.len().min(5)]);
    up.end().await;
}
