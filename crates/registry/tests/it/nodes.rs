//! Several nodes on one store, in one process: their messages, and the choice of judges.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use registry::store::{Batch, BoxFuture, Committed, NodeId, NodeList, NodeRow, Sink};
use registry::{Beat, Check, Health, Registration, Registry, Revision, Settings, Store, StoreError, store};
use tokio::time::Instant;

use crate::common::*;

async fn on(directory: &tempfile::TempDir) -> Arc<dyn Store> {
    store::open(&format!("sqlite:{}", directory.path().join("registry.db").display())).await.unwrap()
}

async fn nodes(directory: &tempfile::TempDir, count: usize, settings: &Settings) -> Vec<Registry> {
    let mut nodes = Vec::new();
    for _ in 0..count {
        nodes.push(Registry::open(settings.clone(), on(directory).await).await.unwrap());
    }
    for node in &nodes {
        until(node, "the others", |node| {
            let peers = node.status().peers;
            peers.len() == count - 1 && peers.iter().all(|peer| peer.reached)
        })
        .await;
    }
    nodes
}

/// Returns settings with a configured port, so that the node listens from the beginning.
fn listening() -> Settings {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut settings = Settings::default();
    settings.peers.listen = free.local_addr().unwrap();
    settings
}

async fn until(registry: &Registry, what: &str, condition: impl Fn(&Registry) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition(registry) {
        assert!(Instant::now() < deadline, "{what} did not come: {:?}", registry.status());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn with_ttl(n: usize) -> Registration {
    let mut registration = Registration::new(id(n), service(0), "127.0.0.1", 1);
    registration.check = Some(Check::ttl(Duration::from_secs(1)));
    registration
}

fn health(registry: &Registry, n: usize) -> Option<Health> {
    registry.instance(&id(n)).map(|instance| instance.health)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_commits_the_others_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let nodes = nodes(&directory, 3, &Settings::default()).await;
    let reads: Vec<u64> = nodes.iter().map(|node| node.status().counts.full_loads).collect();
    // All at once: each batch of a node follows one of another node.
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..300 {
        let node = nodes[n % 3].clone();
        calls.spawn(async move { node.register(vec![registration(n, "a")]).await.pop().unwrap().unwrap().revision });
    }
    let last = calls.join_all().await.into_iter().max().unwrap();
    for node in &nodes {
        reached(node, last).await;
    }
    nodes[0].deregister(&[id(7)]).await.pop().unwrap().unwrap();
    nodes[1].put_service(service(99), registration(1, "b").metadata).await.unwrap();
    let last = nodes[1].revision();
    for (node, reads) in nodes.iter().zip(reads) {
        reached(node, last).await;
        assert_eq!(digests(node), digests(&nodes[0]));
        let counts = node.status().counts;
        assert_eq!(counts.full_loads, reads, "nothing was taken for another history");
        assert!(counts.pushes_applied > 0 && counts.pushed > 0, "{counts:?}");
    }
    let fresh = open(&on(&directory).await).await;
    assert_eq!(digests(&fresh), digests(&nodes[2]));
    for node in nodes.iter().chain([&fresh]) {
        node.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_may_go_to_any_node_and_silence_is_found_by_one() {
    let directory = tempfile::tempdir().unwrap();
    let nodes = nodes(&directory, 3, &Settings::default()).await;
    nodes[0]
        .register((0..30).map(with_ttl).collect())
        .await
        .into_iter()
        .for_each(|row| assert!(row.is_ok(), "{row:?}"));
    for node in &nodes {
        reached(node, nodes[0].revision()).await;
    }
    // Each instance stays with one node, mostly not its judge; ten of them fall silent.
    let silent = Arc::new(AtomicBool::new(false));
    let (beating, hush) = (nodes.clone(), Arc::clone(&silent));
    let beats = tokio::spawn(async move {
        loop {
            for (n, node) in beating.iter().enumerate() {
                let of = if hush.load(Ordering::Relaxed) { 20 } else { 30 };
                let ids: Vec<_> = (0..of).filter(|id| id % 3 == n).map(id).collect();
                assert!(node.heartbeat(&ids).await.iter().all(|beat| *beat == Beat::Known));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    // Every lease has come up more than once.
    for node in &nodes {
        until(node, "questions", |node| node.status().counts.asked >= 30).await;
    }
    let status: Vec<_> = nodes.iter().map(|node| node.status().counts).collect();
    assert!(status.iter().all(|counts| counts.expired == 0 && counts.revived == 0), "{status:?}");
    silent.store(true, Ordering::Relaxed);
    for node in &nodes {
        until(node, "expiry", |node| (20..30).all(|n| health(node, n) == Some(Health::Critical))).await;
    }
    let expired: Vec<u64> = nodes.iter().map(|node| node.status().counts.expired).collect();
    assert_eq!(expired.iter().sum::<u64>(), 10, "each by one node: {expired:?}");
    assert!(expired.iter().filter(|expired| **expired > 0).count() > 1, "the work is shared: {expired:?}");
    silent.store(false, Ordering::Relaxed);
    for node in &nodes {
        until(node, "return", |node| (0..30).all(|n| health(node, n) == Some(Health::Passing))).await;
    }
    beats.abort();
    for node in &nodes {
        node.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_is_missed_by_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let nodes = nodes(&directory, 3, &Settings::default()).await;
    nodes[0]
        .register((0..30).map(with_ttl).collect())
        .await
        .into_iter()
        .for_each(|row| assert!(row.is_ok(), "{row:?}"));
    for node in &nodes {
        reached(node, nodes[0].revision()).await;
    }
    // All heartbeats go to one node; when it leaves, they go to the next.
    let gone = Arc::new(AtomicBool::new(false));
    let (beating, left) = (nodes.clone(), Arc::clone(&gone));
    let beats = tokio::spawn(async move {
        let ids: Vec<_> = (0..29).map(id).collect();
        loop {
            beating[usize::from(left.load(Ordering::Relaxed))].heartbeat(&ids).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    gone.store(true, Ordering::Relaxed);
    nodes[0].shutdown().await;
    for node in &nodes[1..] {
        until(node, "the loss", |node| node.status().counts.nodes_lost == 1 && node.status().peers.len() == 1).await;
    }
    // The silent instance is found by its present owner; no other is.
    until(&nodes[2], "expiry", |node| health(node, 29) == Some(Health::Critical)).await;
    let after = nodes[2].status().counts.asked + nodes[1].status().counts.asked;
    until(&nodes[2], "another round", |node| node.status().counts.asked + nodes[1].status().counts.asked >= after + 30)
        .await;
    let expired: u64 = nodes[1..].iter().map(|node| node.status().counts.expired).sum();
    assert_eq!(expired, 1);
    assert_eq!(nodes[1].snapshot(&service(0)).unwrap().usable(), 29);
    beats.abort();
    for node in &nodes[1..] {
        node.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_judges_nothing_owns_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let judge = nodes(&directory, 1, &Settings::default()).await.pop().unwrap();
    let mut settings = Settings::default();
    settings.health.enabled = false;
    let other = Registry::open(settings, on(&directory).await).await.unwrap();
    let rows = (0..20).map(with_ttl).collect();
    other.register(rows).await.into_iter().for_each(|row| assert!(row.is_ok(), "{row:?}"));
    // Heartbeats at this node count all the same.
    let beating = other.clone();
    let beats = tokio::spawn(async move {
        loop {
            beating.heartbeat(&(0..15).map(id).collect::<Vec<_>>()).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    until(&judge, "expiry", |node| (15..20).all(|n| health(node, n) == Some(Health::Critical))).await;
    assert_eq!((judge.status().counts.expired, other.status().counts.expired), (5, 0));
    assert_eq!(judge.snapshot(&service(0)).unwrap().usable(), 15);
    beats.abort();
    judge.shutdown().await;
    other.shutdown().await;
}

/// A store that never signals a new commit.
struct Silent {
    store: Arc<dyn Store>,
    /// True to hide the other nodes, so that this one pushes nothing to them.
    alone: bool,
    /// True if it cannot be read.
    blind: AtomicBool,
}

impl Silent {
    async fn new(directory: &tempfile::TempDir, alone: bool) -> Arc<Silent> {
        Arc::new(Silent { store: on(directory).await, alone, blind: AtomicBool::new(false) })
    }
}

impl Store for Silent {
    fn name(&self) -> &'static str {
        self.store.name()
    }
    fn commit(&self, batch: Arc<Batch>) -> BoxFuture<'_, Result<Committed, StoreError>> {
        self.store.commit(batch)
    }
    fn resolve(&self, number: u64) -> BoxFuture<'_, Result<Option<Revision>, StoreError>> {
        self.store.resolve(number)
    }
    fn read<'a>(&'a self, sink: &'a mut dyn Sink) -> BoxFuture<'a, Result<(), StoreError>> {
        if self.blind.load(Ordering::Relaxed) {
            return Box::pin(async { Err(StoreError::Address { reason: "it cannot be read now" }) });
        }
        self.store.read(sink)
    }
    fn collect(&self, up_to: Revision, before: i64, limit: usize) -> BoxFuture<'_, Result<usize, StoreError>> {
        self.store.collect(up_to, before, limit)
    }
    fn attend<'a>(
        &'a self,
        own: Option<&'a NodeRow>,
        gone: &'a [NodeId],
    ) -> BoxFuture<'a, Result<NodeList, StoreError>> {
        Box::pin(async move {
            let mut roll = self.store.attend(own, gone).await?;
            if self.alone {
                roll.nodes.retain(|row| own.is_some_and(|own| own.id == row.id));
            }
            Ok(roll)
        })
    }
    fn changed(&self, _: Revision) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

/// A client may register at one node and send the first heartbeat to another that has not seen the commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_has_not_heard_of_an_instance_asks_before_it_says_so() {
    let directory = tempfile::tempdir().unwrap();
    // Each listens from the beginning: without another node in sight, a node opens no port otherwise.
    let open = async |store: Arc<Silent>| Registry::open(listening(), store).await.unwrap();
    let first = open(Silent::new(&directory, true).await).await;
    let second = open(Silent::new(&directory, true).await).await;
    let register = async |n: usize| {
        first
            .register((n..n + 100).map(with_ttl).collect())
            .await
            .into_iter()
            .for_each(|row| assert!(row.is_ok(), "{row:?}"));
    };
    register(0).await;
    assert!(second.instance(&id(0)).is_none() && second.status().peers.is_empty(), "nobody has told it");
    let reads = second.status().counts.unknown_id_lookups;
    let mut beats = tokio::task::JoinSet::new();
    for n in 0..100 {
        let second = second.clone();
        beats.spawn(async move { second.heartbeat(&[id(n), id(1000 + n)]).await });
    }
    while let Some(answer) = beats.join_next().await {
        assert_eq!(answer.unwrap(), [Beat::Known, Beat::Unknown]);
    }
    let reads = second.status().counts.unknown_id_lookups - reads;
    assert!((1..50).contains(&reads), "100 calls share reads of the store: {reads}");
    // The instance is in the cache now, with a lease; every look-up of an unknown id is a read of its own.
    assert_eq!(second.heartbeat(&[id(0)]).await, [Beat::Known]);
    assert!(second.instance_or_ask(&id(99)).await.is_some() && second.instance_or_ask(&id(500)).await.is_none());

    // If the store cannot be read, or lags, the other nodes know the instance.
    let blind = Silent::new(&directory, false).await;
    let third = open(Arc::clone(&blind)).await;
    until(&third, "the way to the first", |node| {
        node.status().peers.iter().any(|peer| peer.reached && peer.address == first.status().peer_address)
    })
    .await;
    blind.blind.store(true, Ordering::Relaxed);
    register(100).await;
    assert!(third.instance(&id(100)).is_none());
    assert_eq!(third.heartbeat(&[id(100), id(300), id(5)]).await, [Beat::Known, Beat::Unknown, Beat::Known]);
    for node in [first, second, third] {
        node.shutdown().await;
    }
}

/// Other programs on the peers' port learn nothing, do no harm, and their place becomes free again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_turned_away() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let directory = tempfile::tempdir().unwrap();
    let alone = nodes(&directory, 1, &Settings::default()).await.pop().unwrap();
    let address = alone.status().peer_address;
    let refused = tokio::net::TcpStream::connect(&address).await.map_err(|error| error.kind());
    assert_eq!(
        refused.err(),
        Some(std::io::ErrorKind::ConnectionRefused),
        "a node that is alone has no port for others"
    );
    let second = Registry::open(Settings::default(), on(&directory).await).await.unwrap();
    let node = alone;
    for one in [&node, &second] {
        until(one, "the other", |node| node.status().peers.iter().any(|peer| peer.reached)).await;
    }
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 200], &[0xff; 200], b""] {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let _ = stream.write_all(bytes).await;
        stream.shutdown().await.unwrap();
        let mut said = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut said)).await.expect("it is closed");
        assert!(said.len() <= 22, "nothing but the greeting: {said:?}");
    }
    let quiet = node.register(vec![registration(1, "a")]).await.pop().unwrap().unwrap();
    assert_eq!(node.revision(), quiet.revision);
    assert!(node.revision() > Revision(0));
    node.shutdown().await;
    second.shutdown().await;
}

/// With more silent connections open than there are places, a node can still connect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_holds_the_peers_port_keeps_no_node_out() {
    let directory = tempfile::tempdir().unwrap();
    let node = Registry::open(listening(), on(&directory).await).await.unwrap();
    let address = node.status().peer_address;
    let held = Arc::new(std::sync::Mutex::new(Vec::new()));
    let holding = Arc::clone(&held);
    let again = tokio::spawn(async move {
        loop {
            // Reopens connections that were closed.
            let mut streams = Vec::new();
            for _ in 0..200 {
                streams.extend(tokio::net::TcpStream::connect(&address).await);
            }
            *holding.lock().unwrap() = streams;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    let began = Instant::now();
    while held.lock().unwrap().len() < 200 {
        assert!(began.elapsed() < PATIENCE, "200 connections");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let other = Registry::open(Settings::default(), on(&directory).await).await.unwrap();
    for one in [&node, &other] {
        until(one, "the other", |node| node.status().peers.iter().any(|peer| peer.reached)).await;
    }
    let written = other.register(vec![registration(1, "a")]).await.pop().unwrap().unwrap();
    reached(&node, written.revision).await;
    again.abort();
    for node in [node, other] {
        node.shutdown().await;
    }
}
