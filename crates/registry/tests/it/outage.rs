//! The path to the store is cut, for one node or for all: an instance that sends heartbeats becomes neither critical nor deregistered, during the
//! outage or after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use registry::store::{Batch, BoxFuture, Committed, NodeId, NodeList, NodeRow, Sink};
use registry::{Beat, Check, CheckKind, Health, Registration, Registry, Revision, Settings, Store, StoreError, store};
use tokio::time::Instant;

use crate::common::*;

/// A store with a path to it that can be cut.
struct Cut {
    store: Arc<dyn Store>,
    cut: AtomicBool,
}

impl Cut {
    async fn on(directory: &tempfile::TempDir) -> Arc<Cut> {
        let store = store::open(&format!("sqlite:{}", directory.path().join("registry.db").display())).await.unwrap();
        Arc::new(Cut { store, cut: AtomicBool::new(false) })
    }

    fn way(&self) -> Result<&Arc<dyn Store>, StoreError> {
        if self.cut.load(Ordering::Acquire) {
            return Err(StoreError::Unavailable { store: "cut", doing: "connecting", reason: "the way is cut".into() });
        }
        Ok(&self.store)
    }
}

impl Store for Cut {
    fn name(&self) -> &'static str {
        "cut"
    }
    fn commit(&self, batch: Arc<Batch>) -> BoxFuture<'_, Result<Committed, StoreError>> {
        Box::pin(async move { self.way()?.commit(batch).await })
    }
    fn resolve(&self, number: u64) -> BoxFuture<'_, Result<Option<Revision>, StoreError>> {
        Box::pin(async move { self.way()?.resolve(number).await })
    }
    fn read<'a>(&'a self, sink: &'a mut dyn Sink) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move { self.way()?.read(sink).await })
    }
    fn collect(&self, up_to: Revision, before: i64, limit: usize) -> BoxFuture<'_, Result<usize, StoreError>> {
        Box::pin(async move { self.way()?.collect(up_to, before, limit).await })
    }
    fn attend<'a>(
        &'a self,
        own: Option<&'a NodeRow>,
        gone: &'a [NodeId],
    ) -> BoxFuture<'a, Result<NodeList, StoreError>> {
        Box::pin(async move { self.way()?.attend(own, gone).await })
    }
    fn changed(&self, seen: Revision) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if let Ok(store) = self.way() {
                store.changed(seen).await;
            }
        })
    }
}

async fn until(registry: &Registry, what: &str, condition: impl Fn(&Registry) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition(registry) {
        assert!(Instant::now() < deadline, "{what} did not come: {:?}", registry.status());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn leased(n: usize, ttl: Duration, deregister_after: Duration) -> Registration {
    let mut registration = Registration::new(id(n), service(n % 2), "127.0.0.1", 1);
    registration.check = Some(Check { kind: CheckKind::Ttl { ttl }, deregister_after: Some(deregister_after) });
    registration
}

fn health(registry: &Registry, n: usize) -> Option<Health> {
    registry.instance(&id(n)).map(|instance| instance.health)
}

async fn register(registry: &Registry, rows: Vec<Registration>) {
    registry.register(rows).await.into_iter().for_each(|row| assert!(row.is_ok(), "{row:?}"));
}

/// The instance was critical when the store went away; it reports passing during the outage, and its time as a critical one is over when the store is
/// back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_says_that_it_lives_while_the_store_is_away_is_there_when_it_is_back() {
    let after = Duration::from_secs(2);
    let directory = tempfile::tempdir().unwrap();
    let cut = Cut::on(&directory).await;
    let node = Registry::open(Settings::default(), cut.clone()).await.unwrap();
    register(&node, vec![leased(1, Duration::from_secs(60), after), leased(2, Duration::from_secs(60), after)]).await;
    let reported = Instant::now();
    let reports = [(id(1), Health::Critical), (id(2), Health::Critical)];
    node.report(&reports).await.into_iter().for_each(|row| assert!(row.is_ok(), "{row:?}"));
    cut.cut.store(true, Ordering::Release);
    assert_eq!(node.heartbeat(&[id(1)]).await, [Beat::Known]);
    // The last report before the store is back: only this node has received it.
    tokio::time::sleep_until(reported + after + Duration::from_millis(500)).await;
    cut.cut.store(false, Ordering::Release);
    // The silent instance is removed: so the time is over, and the node has judged.
    until(&node, "the end of the other one", |node| health(node, 2).is_none()).await;
    assert_eq!(health(&node, 1), Some(Health::Passing));
    // The counter is updated after the commit becomes visible.
    until(&node, "the count of it", |node| node.status().counts.reaped > 0).await;
    assert_eq!(node.status().counts.reaped, 1);
    node.shutdown().await;
}

/// One of two nodes has lost only the store. The heartbeats that it answers count; silent instances are found by the other node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_at_a_node_without_its_store_count() {
    let directory = tempfile::tempdir().unwrap();
    let (far, near) = (Cut::on(&directory).await, Cut::on(&directory).await);
    let first = Registry::open(Settings::default(), far.clone()).await.unwrap();
    let second = Registry::open(Settings::default(), near).await.unwrap();
    for node in [&first, &second] {
        until(node, "the other node", |node| node.status().peers.iter().any(|peer| peer.reached)).await;
    }
    let rows = (0..30).map(|n| leased(n, Duration::from_secs(1), Duration::from_secs(60))).collect();
    register(&first, rows).await;
    reached(&second, first.revision()).await;
    let beating = first.clone();
    let beats = tokio::spawn(async move {
        let ids: Vec<_> = (0..20).map(id).collect();
        loop {
            assert!(beating.heartbeat(&ids).await.iter().all(|beat| *beat == Beat::Known));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    far.cut.store(true, Ordering::Release);
    // Including those that the node without its store would judge.
    until(&second, "the silent ones", |node| (20..30).all(|n| health(node, n) == Some(Health::Critical))).await;
    // All leases of the living instances have come up, several times, with only one node to judge them.
    let asked = second.status().counts.asked;
    until(&second, "questions", |node| node.status().counts.asked >= asked + 100).await;
    let beaten: Vec<_> = (0..20).map(|n| health(&second, n)).collect();
    assert!(beaten.iter().all(|health| *health == Some(Health::Passing)), "{beaten:?}");
    let counts = second.status().counts;
    assert_eq!((counts.expired, counts.nodes_lost), (10, 0), "{counts:?}");
    assert!(!beats.is_finished(), "a heartbeat was not known");
    beats.abort();
    far.cut.store(false, Ordering::Release);
    for node in [first, second] {
        node.shutdown().await;
    }
}
