//! Planned changes of a MySQL source, and a watcher that replaces a lost one, while clients write.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use kingpost_tests::{BinlogRelay, MySql, RegistryNode, SOON, wait_until};
use mysql_async::prelude::Queryable as _;
use tokio::task::JoinHandle;

use crate::mysql::{TABLE, checksum, is_missing, relay_of, replica, source};
use crate::mysql_faults::rows;

/// Longest wait of a client for one commit; its outcome is unknown then.
const PATIENCE: Duration = Duration::from_secs(3);

/// The servers of a cluster by number, as clients know them.
pub(crate) type Servers = Arc<RwLock<Vec<Arc<MySql>>>>;

pub(crate) fn server(servers: &Servers, index: usize) -> Arc<MySql> {
    Arc::clone(&servers.read().unwrap_or_else(PoisonError::into_inner)[index])
}

pub(crate) fn all(servers: &Servers) -> Vec<Arc<MySql>> {
    servers.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Clients that write rows to whichever server takes them.
pub(crate) struct Writers {
    stop: Arc<AtomicBool>,
    total: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<BTreeSet<u64>>>,
}

impl Writers {
    pub(crate) fn start(servers: &Servers, count: u64) -> Writers {
        let (stop, total) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let tasks = (0..count)
            .map(|writer| tokio::spawn(write(Arc::clone(servers), writer, Arc::clone(&stop), Arc::clone(&total))))
            .collect();
        Writers { stop, total, tasks }
    }

    /// Waits until so many further commits are acknowledged.
    pub(crate) async fn more(&self, count: u64, relay: &BinlogRelay) {
        let target = self.total.load(Ordering::Relaxed) + count;
        wait_until("commits to be acknowledged", SOON * 2, relay.logs(), async || {
            (self.total.load(Ordering::Relaxed) >= target).then_some(())
        })
        .await;
    }

    /// Ends the clients; returns the acknowledged rows.
    pub(crate) async fn end(self) -> BTreeSet<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut acknowledged = BTreeSet::new();
        for task in self.tasks {
            acknowledged.extend(task.await.unwrap());
        }
        acknowledged
    }
}

async fn write(servers: Servers, writer: u64, stop: Arc<AtomicBool>, total: Arc<AtomicU64>) -> BTreeSet<u64> {
    let (mut done, mut next, mut connection, mut index) = (BTreeSet::new(), (writer + 1) << 32, None, 0);
    while !stop.load(Ordering::Relaxed) {
        if connection.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let count = all(&servers).len();
            index = (index + 1) % count;
            connection =
                tokio::time::timeout(PATIENCE, server(&servers, index).connect()).await.ok().and_then(Result::ok);
        }
        let Some(open) = &mut connection else { continue };
        next += 1;
        let insert = open.query_drop(format!("INSERT INTO app.t VALUES ({next}, 'row', NULL)"));
        if matches!(tokio::time::timeout(PATIENCE, insert).await, Ok(Ok(()))) {
            done.insert(next);
            total.fetch_add(1, Ordering::Relaxed);
        } else {
            connection = None;
        }
    }
    done
}

/// Starts a source, a relay and two replicas.
pub(crate) async fn cluster() -> (Servers, BinlogRelay) {
    let source = Arc::new(source().await);
    let mut relay = relay_of(&source);
    relay.start().await;
    source.run(TABLE).await;
    let mut servers = vec![source];
    for id in [2, 3] {
        let replica = replica(id, &relay).await;
        replica.wait_for_gtids(&servers[0].gtids().await).await;
        replica.run(&["SET GLOBAL super_read_only = ON"]).await;
        servers.push(Arc::new(replica));
    }
    (Arc::new(RwLock::new(servers)), relay)
}

/// Names and ports, as `kingpost switchover` takes them.
pub(crate) fn nodes(servers: &Servers) -> Vec<(&'static str, u16)> {
    ["n1", "n2", "n3"].into_iter().zip(all(servers).iter().map(|server| server.port())).collect()
}

/// Returns the server that takes writes.
pub(crate) async fn writable(servers: &Servers) -> usize {
    let mut found = Vec::new();
    for (index, server) in all(servers).iter().enumerate() {
        if server.value("SELECT @@read_only").await == "0" {
            found.push(index);
        }
    }
    assert_eq!(found.len(), 1, "one server takes writes");
    found[0]
}

/// Checks that each server has all transactions of the source, and each acknowledged row.
pub(crate) async fn all_agree(servers: &Servers, acknowledged: &BTreeSet<u64>) {
    let source = server(servers, writable(servers).await);
    let at = source.gtids().await;
    for server in all(servers) {
        server.wait_for_gtids(&at).await;
        assert_eq!(checksum(&server).await, checksum(&source).await);
        assert_eq!(server.gtids().await, at);
        let there = rows(&server).await;
        let lost: Vec<_> = acknowledged.difference(&there).collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    }
}

/// The source changes while clients write: none of their commits is lost, the former source becomes a replica, one of the source itself moves along.
/// A run that was killed at any step is run again.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts three servers of MySQL, for scripts/test-long"]
async fn a_switchover_of_mysql_loses_nothing() {
    if is_missing() {
        return;
    }
    let (servers, relay) = cluster().await;
    let nodes = nodes(&servers);
    // Replicates from the source itself, and acknowledges nothing.
    server(&servers, 2).run(&["SET GLOBAL rpl_semi_sync_replica_enabled = OFF"]).await;
    server(&servers, 2).replicate_from(server(&servers, 0).port(), "SOURCE_SSL=0, GET_SOURCE_PUBLIC_KEY=1").await;
    let writers = Writers::start(&servers, 4);
    writers.more(50, &relay).await;
    for (arguments, good, says) in [
        (&["--dry-run", "--to", "n2"][..], true, "would have n2 catch up, have n1 refuse writes"),
        (&["--to", "n1"], false, "n1 is the source already"),
        (&["--to", "n9"], false, "no server is named n9"),
    ] {
        let (done, said) = relay.switchover(&nodes, arguments).await;
        assert!(done == good && said.contains(says), "{said}");
        assert_eq!(writable(&servers).await, 0);
    }
    let (done, said) = relay.switchover(&nodes, &["--to", "n2"]).await;
    assert!(done && said.contains("n2 is the source; nobody could write for"), "{said}");
    assert!(said.contains("n1 replicates from the relay") && said.contains("n3 replicates from n2"), "{said}");
    eprintln!("{said}");
    writers.more(50, &relay).await;
    assert_eq!(writable(&servers).await, 1);
    // A transaction that is open then fails at its commit.
    let mut open = server(&servers, 1).connect().await.unwrap();
    open.query_drop("BEGIN").await.unwrap();
    open.query_drop("INSERT INTO app.t VALUES (1, 'open', NULL)").await.unwrap();
    let (done, said) = relay.switchover(&nodes, &["--to", "n1"]).await;
    assert!(done, "{said}");
    let refused = open.query_drop("COMMIT").await.unwrap_err().to_string();
    assert!(refused.contains("1290") || refused.contains("read-only"), "{refused}");
    writers.more(50, &relay).await;

    // Killed: run again it goes on, or begins anew.
    for step in ["silenced", "fenced", "caught-up", "elected", "promoted"] {
        let old = writable(&servers).await;
        let to = nodes[1 - old].0;
        let (done, said) = relay.switchover(&nodes, &["--to", to, "--die-at", step]).await;
        assert!(!done, "{step}: {said}");
        let (done, said) = relay.switchover(&nodes, &["--to", to]).await;
        assert!(done, "{step}: {said}");
        assert_eq!(writable(&servers).await, 1 - old, "{step}: {said}");
        writers.more(30, &relay).await;
    }
    // Killed before the choice, and taken back.
    let old = writable(&servers).await;
    let (done, _) = relay.switchover(&nodes, &["--die-at", "fenced"]).await;
    assert!(!done);
    let (done, said) = relay.failover(&nodes, &["--abort"]).await;
    assert!(done && said.contains("takes writes again"), "{said}");
    writers.more(30, &relay).await;
    assert_eq!(writable(&servers).await, old);
    let acknowledged = writers.end().await;
    all_agree(&servers, &acknowledged).await;
    eprintln!("{} acknowledged, 0 lost", acknowledged.len());
}

/// Two watchers under a lock of the registry: one replaces the lost source. Another one, without a lock, says what to do.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts three servers of MySQL, for scripts/test-long"]
async fn a_watcher_replaces_a_lost_source_of_mysql() {
    if is_missing() {
        return;
    }
    let (servers, relay) = cluster().await;
    let nodes = nodes(&servers);
    let registry = RegistryNode::start("[registry.kv]\nsession_ttl_min = \"1s\"").await;
    let url = registry.url();
    let under_lock = ["--after", "1s", "--ttl", "4s", "--registry", &url];
    let advises = relay.watch(&nodes, &["--after", "500ms"]);
    let (one, two) = (relay.watch(&nodes, &under_lock), relay.watch(&nodes, &under_lock));
    let read = |log: &std::path::Path| std::fs::read_to_string(log).unwrap_or_default();
    let says = async |log: &std::path::Path, text: &str| {
        wait_until(&format!("a watcher to say {text:?}"), SOON, relay.logs(), async || {
            read(log).contains(text).then_some(())
        })
        .await;
    };
    for (_, log) in [&advises, &one, &two] {
        says(log, "n1 is the primary").await;
    }
    let writers = Writers::start(&servers, 4);
    writers.more(50, &relay).await;
    server(&servers, 0).kill9().await;
    says(&advises.1, "it is time for `kingpost failover`: ").await;
    for (_, log) in [&advises, &one, &two] {
        wait_until("another source", SOON, relay.logs(), async || {
            let said = read(log);
            (said.contains("n2 is the primary") || said.contains("n3 is the primary")).then_some(())
        })
        .await;
    }
    let said = [&one, &two].map(|(_, log)| read(log)).concat();
    assert_eq!(said.matches(" is the source\n").count(), 1, "{said}");
    servers.write().unwrap_or_else(PoisonError::into_inner).remove(0);
    writers.more(50, &relay).await;
    let acknowledged = writers.end().await;
    all_agree(&servers, &acknowledged).await;
}
