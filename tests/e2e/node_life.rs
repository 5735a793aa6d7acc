//! `kingpost node` from the first start to the last: empty hosts, taking over, drain, maintenance, containers, logins, settings, disks.

use std::path::Path;
use std::process::Command;

use kingpost_tests::{
    Cluster, Cut, Link, Metrics, Port, Process, RegistryNode, Relay, RunAs, SOON, ShowLogs, certs::Authority, command,
    http_get, kingpost_bin, pg_bin, signal, skipped, wait_until,
};

use crate::common::only_kingpost;
use crate::node::{Agent, Pair, STREAMS, aside};
use crate::relay_full::fill;
use crate::relay_life::Small;

const RECOVERS: &str = "SELECT pg_is_in_recovery()";

/// Checks that one of these servers is primary and the others stream from it; returns the primary's index.
async fn one_primary(agents: &[Agent]) -> usize {
    let dir = &agents[0].dir;
    let streaming = async || {
        let mut primary = None;
        for (index, agent) in agents.iter().enumerate() {
            match agent.query(RECOVERS).await.ok()?.as_str() {
                "f" if primary.is_none() => primary = Some(index),
                "f" => panic!("two primaries"),
                _ => drop(agent.query(STREAMS).await.ok().filter(|status| status == "streaming")?),
            }
        }
        primary
    };
    wait_until("one primary with standbys", SOON, dir, streaming).await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_three_empty_hosts_one_makes_the_cluster() {
    if only_kingpost() {
        return;
    }
    let registry = RegistryNode::start("").await;
    let mut agents = ["a", "b", "c"].map(Agent::new);
    for agent in &mut agents {
        agent.launch(&["--init", "--join", &registry.url()]);
    }
    let primary = one_primary(&agents).await;
    let made = agents.iter().filter(|agent| agent.directory().join("logs/initdb.log").exists());
    assert_eq!(made.map(|agent| agent.name).collect::<Vec<_>>(), [agents[primary].name]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "as the one with a registry, for scripts/test-long"]
async fn of_a_list_the_first_makes_the_cluster() {
    if only_kingpost() {
        return;
    }
    let mut agents = ["a", "b", "c"].map(Agent::new);
    let nodes = agents
        .iter()
        .map(|agent| format!("[[cluster.nodes]]\nname = {:?}\naddress = {:?}\n", agent.name, agent.address()));
    let text: String = nodes.collect();
    let path = agents[0].dir.join("agents.toml");
    std::fs::write(&path, text).unwrap();
    for agent in agents.iter_mut().rev() {
        agent.config = Some(path.clone());
        agent.launch(&["--init", "--join"]);
    }
    assert_eq!(one_primary(&agents).await, 0);
    let (code, text) = agents[0].ends(&["--init", "--join", "127.0.0.1:1"]);
    assert!(code == Some(3) && text.contains("two hosts could each make a cluster"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detached_server_outlives_its_agent_and_a_paused_agent_only_watches() {
    if only_kingpost() {
        return;
    }
    let (mut a, status) = (Agent::new("a"), Port::reserve());
    a.environment.push(("KINGPOST__NODE__SERVER", "detached".into()));
    a.environment.push(("KINGPOST__NODE__METRICS_LISTEN", format!("127.0.0.1:{}", status.number())));
    a.launch(&["--init"]);
    a.wait_value(RECOVERS, "f").await;
    let server = a.server().unwrap();
    a.process().signal(15);
    assert!(a.process().wait_exit(SOON).await.success());
    assert_eq!(a.server(), Some(server), "the server ended with its agent");
    a.query("SELECT 1").await.unwrap();

    a.launch(&[]);
    a.wait_log("\"state\":\"primary\"").await;
    assert_eq!(a.server(), Some(server));
    let ready = async || http_get(status.number(), "/readyz").await.filter(|(code, _)| *code == 200);
    wait_until("the agent to be ready", SOON, &a.dir, ready).await;

    let (code, text) = a.ends(&["--pause"]);
    assert_eq!(code, Some(0), "{text}");
    let paused = async || {
        let metrics = Metrics::now(status.number()).await;
        (metrics.sum("kingpost_node_paused", &[]) == 1.0
            && metrics.sum("kingpost_node_state", &[("state", "primary")]) == 1.0)
            .then_some(())
    };
    wait_until("the agent to pause", SOON, &a.dir, paused).await;
    a.kill_server();
    // Each turn would start it.
    let turns = async || Metrics::now(status.number()).await.sum("kingpost_node_turns_total", &[]);
    let before = turns().await;
    wait_until("some turns", SOON, &a.dir, async || (turns().await >= before + 3.0).then_some(())).await;
    assert!(a.query("SELECT 1").await.is_err(), "a paused agent has started its server");
    let not_ready = http_get(status.number(), "/readyz").await.unwrap();
    assert!(not_ready.0 == 503 && not_ready.1.contains("--resume"), "{not_ready:?}");
    let (code, text) = a.ends(&["--resume"]);
    assert_eq!(code, Some(0), "{text}");
    a.wait_value(RECOVERS, "f").await;

    // Data that another program made are taken over by a word only.
    a.process().signal(15);
    a.process().wait_exit(SOON).await;
    std::fs::remove_file(a.directory().join("kingpost.node")).unwrap();
    let server = a.server();
    a.kill_server();
    wait_until("the server to end", SOON, &a.dir, async || {
        (!Path::new(&format!("/proc/{}", server.unwrap())).exists()).then_some(())
    })
    .await;
    a.launch(&[]);
    a.wait_log("--adopt").await;
    a.process().signal(9);
    a.process().wait_exit(SOON).await;
    a.launch(&["--adopt"]);
    a.wait_value(RECOVERS, "f").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "two copies of a server, for scripts/test-long"]
async fn settings_that_standbys_need_are_raised_on_them_and_a_node_is_made_anew() {
    if only_kingpost() {
        return;
    }
    let registry = RegistryNode::start("").await;
    let (mut a, mut b, status) = (Agent::new("a"), Agent::new("b"), Port::reserve());
    a.environment.push(("KINGPOST__NODE__METRICS_LISTEN", format!("127.0.0.1:{}", status.number())));
    a.launch(&["--init", "--join", &registry.url()]);
    a.wait_value(RECOVERS, "f").await;
    b.launch(&["--join", &registry.url()]);
    b.wait_value(STREAMS, "streaming").await;

    a.execute("ALTER SYSTEM SET max_connections = 150").await;
    a.execute("SELECT pg_reload_conf()").await;
    let pending =
        async || (Metrics::now(status.number()).await.sum("kingpost_node_restart_pending", &[]) == 1.0).then_some(());
    wait_until("a setting to wait for a restart", SOON, &a.dir, pending).await;
    a.wait_log("max_connections").await;
    // The primary first: the standby cannot replay that with its own value.
    a.kill_server();
    a.wait_value("SHOW max_connections", "150").await;
    b.wait_value("SHOW max_connections", "150").await;
    a.execute("CREATE TABLE t AS SELECT 7 AS n").await;
    b.wait_value("SELECT n FROM t", "7").await;

    // Clients of a server that is to end get a moment.
    b.process().signal(15);
    b.process().wait_exit(SOON).await;
    b.environment.push(("KINGPOST__NODE__DRAIN", "600s".into()));
    b.launch(&["--rebuild", "--join", &registry.url()]);
    b.wait_value(STREAMS, "streaming").await;
    b.wait_value("SELECT n FROM t", "7").await;
    assert_eq!(aside(&b), 1, "{}", b.log());
    b.wait_log("\"state\":\"following\"").await;
    wait_weight(&registry, &b, 100).await;
    let _session = b.session().await.unwrap();
    b.process().signal(15);
    wait_weight(&registry, &b, 0).await;
    b.query("SELECT n FROM t").await.unwrap();
    // A second signal ends it at once.
    b.process().signal(15);
    b.process().wait_exit(SOON).await;
    wait_until("its server to end", SOON, &b.dir, async || b.query("SELECT 1").await.is_err().then_some(())).await;
}

/// Waits until the registry has this weight of a server.
async fn wait_weight(registry: &RegistryNode, agent: &Agent, weight: u64) {
    let seen = async || {
        let nodes = registry.get("/v1/namespaces/kingpost/services/postgres/instances").await.json();
        let own = nodes["instances"].as_array()?.iter().find(|node| node["id"] == agent.name)?;
        own["weight"].as_u64().filter(|seen| *seen == weight)
    };
    wait_until(&format!("the weight {weight} of {}", agent.name), SOON, &agent.dir, seen).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "two copies of a server, for scripts/test-long"]
async fn a_running_agent_copies_the_data_anew_by_order() {
    if only_kingpost() {
        return;
    }
    let registry = RegistryNode::start("").await;
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    a.launch(&["--init", "--join", &registry.url()]);
    a.wait_value(RECOVERS, "f").await;
    // The wait is far longer than the test: it ends with the last session.
    b.environment.push(("KINGPOST__NODE__DRAIN", "600s".into()));
    let url = registry.url();
    b.launch(&["--join", &url]);
    b.wait_value(STREAMS, "streaming").await;
    wait_weight(&registry, &b, 100).await;
    let (code, text) = a.ends(&["--rebuild", "--join", &url]);
    assert!(code != Some(0) && text.contains("nothing to copy"), "{text}");
    let (code, text) = b.ends(&["--join", &url]);
    assert!(code != Some(0) && text.contains("another agent runs"), "{text}");

    let session = b.session().await.unwrap();
    let order = async || {
        let (code, text) = b.ends(&["--rebuild", "--join", &url]);
        assert_eq!(code, Some(0), "{text}");
        wait_weight(&registry, &b, 0).await;
        b.wait_log("--keep").await;
    };
    order().await;
    let (code, text) = b.ends(&["--keep"]);
    assert_eq!(code, Some(0), "{text}");
    wait_weight(&registry, &b, 100).await;
    assert_eq!(aside(&b), 0, "{}", b.log());
    order().await;
    session.simple_query("SELECT 1").await.unwrap();
    assert_eq!(aside(&b), 0, "{}", b.log());
    drop(session);
    wait_until("the data to be set aside", SOON, &b.dir, async || (aside(&b) == 1).then_some(())).await;
    b.wait_value(STREAMS, "streaming").await;
    wait_weight(&registry, &b, 100).await;
    b.process().signal(15);
    assert!(b.process().wait_exit(SOON).await.success());
}

/// Returns the first process of a new PID namespace, whose parent is `unshare`.
fn first_inside(unshare: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn as_the_first_process_of_a_container() {
    if only_kingpost() {
        return;
    }
    let mut a = Agent::new("a");
    let probe = Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "true"]).output().unwrap();
    if !probe.status.success() {
        skipped("no process namespace can be made here");
        return;
    }
    let mut unshare = command(Path::new("/usr/bin/unshare"), RunAs::Tests, "KILL");
    unshare.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(kingpost_bin());
    unshare.args(["node", "--init", "--name", "a", "--address", &a.address(), "--directory"]).arg(a.directory());
    unshare.env("KINGPOST__NODE__PG_BIN", pg_bin()).env("KINGPOST__NODE__LISTEN_ADDRESSES", "127.0.0.1");
    unshare.env("KINGPOST__NODE__INTERVAL", "100ms");
    a.process = Some(Process::start("a", unshare, &a.dir.join("agent.log")));
    a.wait_value(RECOVERS, "f").await;
    let agent = first_inside(a.process().pid()).unwrap();
    let children = || {
        let text = std::fs::read_to_string(format!("/proc/{agent}/task/{agent}/children")).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
    };
    // The killed server's own processes become the agent's: it waits for them, and starts a server again.
    let [server] = children()[..] else { panic!("one server: {:?}", children()) };
    signal(server, 9);
    let again = async || match children()[..] {
        [now] if now != server => Some(()),
        _ => None,
    };
    wait_until("a new server, and no orphans", SOON, &a.dir, again).await;
    a.wait_value(RECOVERS, "f").await;

    signal(agent, 15);
    a.process().wait_exit(SOON).await;
    let control = Command::new(pg_bin().join("pg_controldata")).arg(a.directory().join("data")).output().unwrap();
    let control = String::from_utf8_lossy(&control.stdout).into_owned();
    assert!(control.contains("shut down\n"), "{control}\n{}", a.log());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "two servers with initdb, for scripts/test-long"]
async fn passwords_and_tls_between_agents_and_servers() {
    if only_kingpost() {
        return;
    }
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    let authority = Authority::new();
    let pair = authority.issue_server("server", &["127.0.0.1"]);
    let secret = "a: secret's \\ word";
    for agent in [&mut a, &mut b] {
        agent.environment.push(("KINGPOST__FAILOVER__PASSWORD", secret.into()));
    }
    a.launch(&["--init"]);
    a.wait_log("\"state\":\"primary\"").await;
    // Nobody comes in without it.
    assert!(a.query("SELECT 1").await.is_err());
    let data = a.directory().join("data");
    for (from, to) in [(&pair.cert, "server.crt"), (&pair.key, "server.key")] {
        let installed =
            Command::new("install").args(["-m", "600", "-o", "postgres"]).arg(from).arg(data.join(to)).status();
        assert!(installed.unwrap().success());
    }
    let conf = data.join("postgresql.conf");
    let text = std::fs::read_to_string(&conf).unwrap();
    std::fs::write(&conf, format!("{text}\nssl = on\n")).unwrap();
    let hba = data.join("pg_hba.conf");
    let text = std::fs::read_to_string(&hba).unwrap();
    std::fs::write(&hba, text.replace("host ", "hostssl ").replace("\nhost\t", "\nhostssl\t")).unwrap();
    signal(a.server().unwrap(), 1);
    for agent in [&mut a, &mut b] {
        agent.environment.push(("KINGPOST__CLUSTER__TLS__MODE", "verify-ca".into()));
        agent.environment.push(("KINGPOST__CLUSTER__TLS__CA_FILE", authority.ca_file().display().to_string()));
    }
    a.process().signal(15);
    a.process().wait_exit(SOON).await;
    a.launch(&[]);
    a.wait_log("\"state\":\"primary\"").await;
    b.launch(&["--join", &a.address()]);
    b.wait_log("\"state\":\"following\"").await;
    let psql = |agent: &Agent, sql: &str| {
        let mut psql = Command::new(pg_bin().join("psql"));
        psql.env("PGPASSWORD", secret).env("PGSSLMODE", "require").args([
            "-h",
            "127.0.0.1",
            "-U",
            "postgres",
            "-XAtc",
            sql,
        ]);
        psql.args(["-p", &agent.port.number().to_string(), "postgres"]);
        String::from_utf8_lossy(&psql.output().unwrap().stdout).trim().to_owned()
    };
    let streams = async || (psql(&b, STREAMS) == "streaming").then_some(());
    wait_until("the standby to stream", SOON, &b.dir, streams).await;
    let ssl = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_replication USING (pid)";
    assert_eq!(psql(&a, ssl), "t");
    for agent in [&a, &b] {
        assert!(!agent.whole_log().contains("secret"), "{}", agent.whole_log());
    }
    assert!(!psql(&b, "SHOW primary_conninfo").contains("secret"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "fills a disk, for scripts/test-long"]
async fn a_server_whose_disk_is_full_comes_back_when_there_is_room() {
    if only_kingpost() {
        return;
    }
    let mut a = Agent::new("a");
    let Some(small) = Small::mount(&a.dir, 200) else {
        skipped("no file system can be mounted here");
        return;
    };
    // A mounted volume is a condition, and here it is one; the agent's directory is below it.
    a.launch(&["--init"]);
    a.wait_value(RECOVERS, "f").await;
    a.execute("CREATE TABLE t (n int, pad text)").await;
    a.execute("INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 1000) n").await;
    fill(&a.dir);
    // Each writes WAL until there is no room: the server panics, and cannot recover either.
    let more = "INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 7000) n";
    let down = async || a.query(more).await.is_err().then_some(());
    wait_until("the disk to be full", SOON, &a.dir, down).await;
    std::fs::remove_file(a.dir.join("filler")).unwrap();
    wait_until("the server to come back", SOON, &a.dir, async || a.query("INSERT INTO t VALUES (0)").await.ok()).await;
    let count: u32 = a.query("SELECT count(*) FROM t").await.unwrap().parse().unwrap();
    assert!(count > 1000, "{count}");
    a.kill();
    drop(small);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "waits for a lease, for scripts/test-long"]
async fn a_promotion_waits_for_the_lease_of_a_primary_that_is_cut_off() {
    if only_kingpost() {
        return;
    }
    let mut pair = Pair::start("12s").await;
    let logs = pair.cluster.dir().to_owned();
    let _logs = ShowLogs(&logs);
    // The agent of the primary reaches its relay by a path of its own.
    let path = Cut::to(pair.relay.port());
    let text = std::fs::read_to_string(pair.a.config.as_ref().unwrap()).unwrap();
    let (old, new) = (format!("127.0.0.1:{}", pair.relay.port()), format!("127.0.0.1:{}", path.port()));
    let config = pair.a.dir.join("agent.toml");
    std::fs::write(&config, text.replace(&old, &new)).unwrap();
    let fake = pair.a.dir.join("watchdog");
    std::fs::write(&fake, "").unwrap();
    pair.a.process().signal(15);
    pair.a.process().wait_exit(SOON).await;
    pair.a.config = Some(config);
    pair.a.environment.push(("KINGPOST__NODE__WATCHDOG", fake.display().to_string()));
    pair.a.launch(&[]);
    pair.a.wait_value("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'", "1").await;
    pair.b.wait_value(STREAMS, "streaming").await;
    let fed = || std::fs::read(&fake).unwrap();
    wait_until("the watchdog to be fed", SOON, &pair.a.dir, async || fed().ends_with(b"\0\0").then_some(())).await;

    path.set(Link::BlackHole);
    let failover = pair.failover().set("failover.lease", "12s");
    let promoted = tokio::spawn(async move { failover.succeed(&["failover", "--force", "--to", "b"]).await });
    // Both answer throughout: never is there a write on one after the other has taken one.
    let write = "SET synchronous_commit = local; INSERT INTO acked VALUES (1)";
    let mut by_a = 0;
    while pair.b.query(RECOVERS).await.as_deref() != Ok("f") {
        by_a += u32::from(pair.a.query(write).await.is_ok());
        assert!(
            !promoted.is_finished() || pair.b.query(RECOVERS).await.as_deref() == Ok("f"),
            "it has promoted nobody"
        );
    }
    assert!(pair.a.query(write).await.is_err(), "the old primary takes writes beside the new one");
    assert!(by_a > 0, "the old primary was not even tried");
    let text = promoted.await.unwrap();
    assert!(text.contains("promoted b"), "{text}");
    path.set(Link::Up);
    pair.a.wait_value("SELECT received_tli FROM pg_stat_wal_receiver", "2").await;
    wait_until("the watchdog to be disarmed", SOON, &pair.a.dir, async || fed().ends_with(b"V").then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "makes a backup, for scripts/test-long"]
async fn a_copy_from_the_archive() {
    copy_from_the_archive(false).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "makes backups, for scripts/test-long"]
async fn a_copy_from_a_chain_in_the_archive() {
    if !crate::backup_incremental::needs_combine() {
        copy_from_the_archive(true).await;
    }
}

async fn copy_from_the_archive(is_chain: bool) {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(0).start().await;
    let _logs = ShowLogs(cluster.dir());
    let archive = crate::archive::open_dir("archive");
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    a.launch(&["--init"]);
    a.wait_value(RECOVERS, "f").await;
    let mut relay: Relay = crate::archive::archiving(&cluster, a.port.number(), archive.to_str().unwrap());
    relay.start().await;
    a.execute("CREATE TABLE t AS SELECT generate_series(1, 1000) AS n").await;
    let config = cluster.dir().join("agents.toml");
    let text = format!(
        "[relay.archive]\nurl = {archive:?}\n[node]\ncopy_from = \"archive\"\n[[cluster.nodes]]\nname = \"a\"\naddress = {:?}\n",
        a.address()
    );
    std::fs::write(&config, text).unwrap();
    if is_chain {
        a.execute("ALTER SYSTEM SET summarize_wal = on").await;
        a.execute("SELECT pg_reload_conf()").await;
        a.wait_value("SHOW summarize_wal", "on").await;
    }
    crate::backup::done(&config, &["backup"]);
    a.execute("INSERT INTO t SELECT generate_series(1001, 1100)").await;
    if is_chain {
        crate::backup::done(&config, &["backup", "--incremental"]);
    }
    b.config = Some(config);
    b.launch(&["--join"]);
    b.wait_value(STREAMS, "streaming").await;
    b.wait_value("SELECT count(*) FROM t", "1100").await;
    let restored = std::fs::read_to_string(b.directory().join("logs/restore.log")).unwrap();
    assert_eq!(restored.contains("which is joined from 2 backups"), is_chain, "{restored}");
    assert!(!b.directory().join("logs/pg_basebackup.log").exists(), "{}", b.log());
}
