//! `kingpost up --engine mariadb` and `mysql`: servers around a relay, in the registry and the console; a failover; a switchover; Ctrl-C; the next start.

use std::path::Path;
use std::time::Duration;

use kingpost_tests::{Kingpost, ShowLogs, http_get, mysqld, signal, skipped, wait_until};
use mysql_async::prelude::Queryable as _;
use serde_json::Value;

use crate::common::only_kingpost;
use crate::mysql::is_missing;
use crate::up::{Up, directory, registered, until};

const LONG: Duration = Duration::from_secs(120);

/// Connects to the server at a port, as `client.cnf` says.
async fn connect(port: u16, password: &str) -> mysql_async::Conn {
    let options = mysql_async::OptsBuilder::default().ip_or_hostname("127.0.0.1").tcp_port(port).prefer_socket(false);
    mysql_async::Conn::new(options.user(Some("kingpost")).pass(Some(password))).await.unwrap()
}

async fn ids(port: u16, password: &str) -> Vec<u32> {
    let mut connection = connect(port, password).await;
    connection.query("SELECT id FROM app.t ORDER BY id").await.unwrap_or_default()
}

/// Returns the process of the server of a data directory, if it runs.
fn process(engine: &str, data: &Path) -> Option<u32> {
    let pid: u32 = std::fs::read_to_string(data.join(format!("{engine}.pid"))).ok()?.trim().parse().ok()?;
    let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
    (cwd == data).then_some(pid)
}

/// Finds the files below a directory that others than the owner may read, with their text.
fn readable(dir: &Path, found: &mut Vec<(String, String)>) {
    use std::os::unix::fs::PermissionsExt;
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let metadata = entry.metadata().unwrap();
        if metadata.permissions().mode() & 0o004 == 0 {
            continue;
        }
        if metadata.is_dir() {
            readable(&entry.path(), found);
        } else if metadata.is_file() {
            let text = String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap()).into_owned();
            found.push((entry.path().display().to_string(), text));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_cluster_of_mariadb() {
    if only_kingpost() {
        return;
    }
    local_cluster("mariadb", &["--engine", "mariadb"]).await;
}

/// True if others than the owner may enter a directory and all above it: servers of root run as another account.
fn is_open(dir: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    dir.ancestors().all(|dir| std::fs::metadata(dir).is_ok_and(|dir| dir.permissions().mode() & 0o001 != 0))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts three servers of MySQL, for scripts/test-long"]
async fn a_local_cluster_of_mysql() {
    if only_kingpost() || is_missing() {
        return;
    }
    let programs = mysqld().unwrap().parent().unwrap().to_owned();
    if !is_open(&programs) {
        return skipped("the account of MySQL's servers cannot enter the directory of its programs");
    }
    local_cluster("mysql", &["--engine", "mysql", "--mysql-bin", programs.to_str().unwrap()]).await;
}

async fn local_cluster(engine: &str, arguments: &[&str]) {
    let mut up = Up::start_in(directory(), arguments).await;
    let (cluster, registry, console) = (up.dir.clone(), up.registry, up.port("console  http://").unwrap());
    let _logs = ShowLogs(&cluster);
    let password = std::fs::read_to_string(cluster.join(format!("{engine}.password"))).unwrap().trim().to_owned();
    let address = |name: &str| {
        let line = up.said.iter().find(|line| line.ends_with(&format!("({name})"))).unwrap();
        line.split_whitespace().nth(1).unwrap().rsplit(':').next().unwrap().parse::<u16>().unwrap()
    };
    let ports = ["node1", "node2", "node3"].map(address);
    assert!(up.said.iter().any(|line| line.contains("the relay acknowledged it, read it back from node2")));

    let shows = async |what: &str, roles: [&str; 3]| {
        wait_until(&format!("{what} in the registry"), LONG, &cluster, async || {
            let found = registered(registry, &[engine, "relay"]).await?;
            let of = |id: &str, role: &str| [id.to_owned(), role.to_owned(), "passing".to_owned()];
            let nodes = ["node1", "node2", "node3"].iter().zip(roles).map(|(id, role)| of(id, role));
            (found == nodes.chain([of("relay1", "")]).collect::<Vec<_>>()).then_some(())
        })
        .await;
        wait_until(&format!("{what} in the console"), LONG, &cluster, async || {
            let (_, body) = http_get(console, "/api/state").await?;
            let state: Value = serde_json::from_str(&body).ok()?;
            let nodes = state["cluster"]["nodes"].as_array()?.clone();
            let found: Vec<&str> = nodes.iter().map(|node| node["role"].as_str().unwrap_or_default()).collect();
            let fed = state["relay"]["downstreams"].as_array()?.len();
            let well = state["cluster"]["engine"] == engine && state["relay"]["state"] == "streaming" && fed == 2;
            (found == roles && well && nodes.iter().all(|node| node["position"].is_string())).then_some(())
        })
        .await;
    };
    shows("the nodes", ["primary", "replica", "replica"]).await;
    let mut client = connect(ports[0], &password).await;
    for statement in ["CREATE DATABASE app", "CREATE TABLE app.t (id INT PRIMARY KEY)", "INSERT INTO app.t VALUES (1)"]
    {
        client.query_drop(statement).await.unwrap();
    }

    assert!(signal(process(engine, &cluster.join("nodes/node1")).unwrap(), 9));
    let failed_over = async || up.run(&["failover", "--to", "node3"]).await.status.success().then_some(());
    wait_until("a failover", LONG, &cluster, failed_over).await;
    until("the former primary to come back", &mut up.lines, &cluster, |line| {
        (line == "node1 follows node3").then_some(())
    })
    .await;
    shows("their new roles", ["replica", "replica", "primary"]).await;
    connect(ports[2], &password).await.query_drop("INSERT INTO app.t VALUES (2)").await.unwrap();
    for port in ports {
        wait_until("all rows on each server", LONG, &cluster, async || {
            (ids(port, &password).await == [1, 2]).then_some(())
        })
        .await;
    }
    let changed = up.run(&["switchover", "--to", "node2"]).await;
    let said = String::from_utf8_lossy(&changed.stdout).into_owned();
    assert!(changed.status.success() && said.contains("node3 replicates from the relay"), "{said}");
    shows("the roles after a switchover", ["replica", "primary", "replica"]).await;
    connect(ports[1], &password).await.query_drop("INSERT INTO app.t VALUES (3)").await.unwrap();
    for port in ports {
        wait_until("the last row on each server", LONG, &cluster, async || {
            (ids(port, &password).await == [1, 2, 3]).then_some(())
        })
        .await;
    }
    let mut metrics = http_get(up.port("metrics  http://").unwrap(), "/metrics").await.unwrap().1;
    metrics.retain(|letter| letter != '\r');
    assert!(metrics.contains("kingpost_relay_epoch 3\n"), "{metrics}");

    // Ctrl-C ends everything.
    up.end().await;
    for name in ["node1", "node2", "node3"] {
        assert_eq!(process(engine, &cluster.join("nodes").join(name)), None, "{name} is left");
    }
    let mut found = Vec::new();
    readable(&cluster, &mut found);
    assert!(found.iter().any(|(name, _)| name.ends_with("kingpost.toml")));
    let told: Vec<_> = found.iter().filter(|(_, text)| text.contains(&password)).map(|(name, _)| name).collect();
    assert!(told.is_empty(), "others can read the password in {told:?}");

    // The next start knows the last primary, and the engine of the servers.
    let again = Up::start_in(cluster.clone(), &[]).await;
    assert!(again.said.iter().any(|line| line.ends_with("starting node2 as primary")), "{:?}", again.said);
    let status = tokio::task::spawn_blocking({
        let cluster = cluster.clone();
        move || {
            let run = Kingpost::run(&["status", "--json", "--dir", cluster.to_str().unwrap()]);
            serde_json::from_slice::<Value>(&run.stdout).unwrap()
        }
    })
    .await
    .unwrap();
    let roles: Vec<&str> =
        status["nodes"].as_array().unwrap().iter().filter_map(|node| node["role"].as_str()).collect();
    assert_eq!(roles, ["replica", "primary", "replica"]);
    assert_eq!(ids(again.port("primary ").unwrap(), &password).await, [1, 2, 3]);
    again.end().await;
}
