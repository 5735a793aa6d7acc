//! The former primary comes back as a standby, and no other server is affected.

use std::path::Path;
use std::process::Command;

use kingpost_tests::{Cluster, Node, SOON, ShowLogs, pg_bin, within};

use crate::common::only_kingpost;
use crate::fleet::Fleet;

/// Returns a command prefix for the owner of a server's data; empty if that is the tests' user.
fn as_owner(node: &Node) -> String {
    use std::os::unix::fs::MetadataExt;
    let data = std::fs::metadata(node.dir()).unwrap();
    let id = Command::new("id").arg("-u").output().unwrap().stdout;
    if id == b"0\n" {
        format!("setpriv --reuid {} --regid {} --clear-groups --", data.uid(), data.gid())
    } else {
        String::new()
    }
}

/// Returns the guide's script, adapted to this machine: servers run here, and belong to a user of the harness.
fn script(fleet: &Fleet, node: &Node) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/rejoin-server");
    // The harness starts the servers, as they are its children.
    let stop = format!(
        "sh -c 'kill -INT $(head -1 {0}/postmaster.pid) && while [ -e {0}/postmaster.pid ]; do sleep 0.05; done'",
        node.dir().display()
    );
    let stop_file = fleet.cluster.dir().join("stop-server");
    std::fs::write(&stop_file, format!("{stop}\n")).unwrap();
    let command = format!(
        "DATA={} RUN= AS='{}' STOP='sh {}' START=true BIN={} PATH={}:$PATH sh {}",
        node.dir().display(),
        as_owner(node),
        stop_file.display(),
        pg_bin().display(),
        pg_bin().display(),
        script.display()
    );
    vec!["/bin/sh".into(), "-c".into(), command]
}

/// Makes a cluster whose new primary, n1, has written so much that it has removed the WAL of its promotion. The old one, n0, had WAL that no other
/// server has; it is back, unchanged, and believes that it is the primary.
async fn left_behind() -> Fleet {
    let builder = Fleet::builder().setting("wal_keep_size", "0");
    let mut fleet = builder.setting("min_wal_size", "32MB").setting("max_wal_size", "48MB").start().await;
    {
        let [n0, n1, n2] = fleet.cluster.nodes() else { panic!("three nodes") };
        n0.execute("INSERT INTO acked VALUES (1)").await;
        n1.wait_caught_up(n0).await;
        n2.wait_caught_up(n0).await;
        fleet.relays[0].stop().await;
        n0.execute("INSERT INTO acked SELECT generate_series(1000, 300000)").await;
        n0.kill9().await;
    }
    fleet.relays[0].launch();
    let cluster = &fleet.cluster;
    let [n0, n1, _] = cluster.nodes() else { panic!("three nodes") };
    cluster.wait("the relay to be there", async || fleet.relays[0].http("/healthz").await).await;
    let text = fleet.failover().succeed(&["failover", "--to", "n1"]).await;
    assert!(text.contains("promoted n1"), "{text}");
    n1.execute("CREATE TABLE bulk (t text)").await;
    for _ in 0..12 {
        let write = "INSERT INTO bulk SELECT repeat('x', 1000) FROM generate_series(1, 8000)";
        for sql in [write, "SELECT pg_switch_wal()", "CHECKPOINT"] {
            n1.execute(sql).await;
        }
    }
    n0.start().await;
    assert_eq!(n0.query("SELECT count(*) > 100000 FROM acked").await, "t");
    fleet
}

/// Checks that it is a standby on the new timeline, with the primary's data, and nothing else.
async fn follows(cluster: &Cluster) {
    let [n0, n1, n2] = cluster.nodes() else { panic!("three nodes") };
    n0.wait_value("SELECT received_tli FROM pg_stat_wal_receiver", "2").await;
    n0.wait_caught_up(n1).await;
    assert_eq!(n0.query("SELECT count(*) FROM acked").await, "1");
    n2.wait_caught_up(n1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guides_script_brings_an_old_primary_back_late() {
    if only_kingpost() {
        return;
    }
    let fleet = left_behind().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let n0 = &cluster.nodes()[0];
    // The next run finds a second primary, and runs the script.
    let failover = fleet.failover().set("failover.rejoin", script(&fleet, n0));
    let text = failover.succeed(&["failover"]).await;
    assert!(text.contains("n0 was brought back as a standby"), "{text}");
    within("its start", SOON, cluster.dir(), n0.start()).await;
    follows(cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_recipe_brings_an_old_primary_back_late() {
    if only_kingpost() {
        return;
    }
    let fleet = left_behind().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let n0 = &cluster.nodes()[0];
    // During this run n0 did not answer, so it was not known as the former primary. The next run sees it, and has nothing else to do.
    let text = fleet.failover().fail(&["failover"]).await;
    assert!(text.contains("n1 is the primary and answers"), "{text}");
    let recipe = text.split_once("To bring it back as a standby").expect(&text).1;
    let steps: Vec<&str> = recipe.lines().skip(1).map_while(|line| line.strip_prefix("    ")).collect();
    let [first, commands @ .., last] = &steps[..] else { panic!("{text}") };
    assert_eq!((*first, *last), ("stop it", "start it"), "{text}");
    n0.stop().await;
    let script = commands.join("\n").replace("DATA", n0.dir().to_str().unwrap()).replace('…', "user=postgres");
    let owner = as_owner(n0);
    let mut words = owner.split_whitespace().chain(["sh", "-eux", "-c", &script]);
    let mut run = Command::new(words.next().unwrap());
    let path = format!("{}:{}", pg_bin().display(), std::env::var("PATH").unwrap_or_default());
    let ran = run.args(words).env("PATH", path).output().unwrap();
    assert!(ran.status.success(), "{script}: {}", String::from_utf8_lossy(&ran.stderr));
    within("its start", SOON, cluster.dir(), n0.start()).await;
    follows(cluster).await;
}

/// One was the primary, another is stopped for maintenance.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_stopped_for_a_reason_is_left_alone() {
    if only_kingpost() {
        return;
    }
    let fleet = Fleet::builder().start().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let [n0, n1, n2] = cluster.nodes() else { panic!("three nodes") };
    let told = cluster.dir().join("told");
    let note = format!("echo $KINGPOST_NODE after $KINGPOST_PRIMARY on $KINGPOST_TIMELINE >> {}", told.display());
    let failover = fleet.failover().set("failover.rejoin", vec!["/bin/sh".to_owned(), "-c".into(), note]);
    n2.stop().await;
    n0.kill9().await;
    cluster.wait("the relay to notice", async || (fleet.relays[0].http("/readyz").await?.0 != 200).then_some(())).await;
    let text = failover.succeed(&["failover"]).await;
    assert!(text.contains("n2 does not answer, and is left alone"), "{text}");
    let lines = || std::fs::read_to_string(&told).unwrap_or_default();
    assert_eq!(lines(), "n0 after n1 on 00000002\n");
    // Everything has been done: a later run changes no server.
    let text = failover.fail(&["failover"]).await;
    assert!(text.contains("n1 is the primary and answers"), "{text}");
    // An interrupted run goes on, and learns the former primary from the new one.
    n2.start().await;
    n2.wait_caught_up(n1).await;
    n1.kill9().await;
    cluster.wait("the relay to notice", async || (fleet.relays[0].http("/readyz").await?.0 != 200).then_some(())).await;
    failover.fail(&["failover", "--die-at", "promoted"]).await;
    failover.run(&["failover"]).await;
    assert_eq!(lines(), "n0 after n1 on 00000002\nn1 after n2 on 00000003\n");
}
