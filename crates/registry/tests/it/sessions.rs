//! Sessions and locks over several nodes on one store, in one process: each node has a path of its own to the store, which can be cut.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use registry::api::{AuditLog, Auth, Context, Front, HttpLimits, Mount, Server};
use registry::kv::{Behavior, Given, Operation, Refusal, Renewal, Session, Verb};
use registry::store::{Batch, BoxFuture, Committed, Head, KvPlan, KvRead, KvStore, NodeId, NodeList, NodeRow, Sink};
use registry::{
    Check, Health, InstanceId, NamespaceName, Registration, Registry, Revision, Settings, Store, StoreError,
    WriteError, store,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use crate::common::*;

/// A store with a path to it that can be cut, or hang.
struct Cut {
    store: Arc<dyn Store>,
    way: Arc<Way>,
    /// True if it can hold keys and sessions.
    has_keys: bool,
}

/// A node's path to the store.
#[derive(Default)]
struct Way {
    cut: AtomicBool,
    /// True to block all calls until it is over, as with a server that does not answer.
    hangs: AtomicBool,
}

impl Way {
    async fn pass(&self) -> Result<(), StoreError> {
        while self.hangs.load(Ordering::Acquire) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        match self.cut.load(Ordering::Acquire) {
            true => Err(StoreError::Unavailable { store: "cut", doing: "connecting", reason: "the way is cut".into() }),
            false => Ok(()),
        }
    }
}

/// The key-value part, over the same path.
struct CutKv {
    store: Arc<dyn KvStore>,
    way: Arc<Way>,
}

impl Cut {
    async fn on(directory: &tempfile::TempDir) -> Arc<Cut> {
        let store = store::open(&format!("sqlite:{}", directory.path().join("registry.db").display())).await.unwrap();
        Arc::new(Cut { store, way: Arc::default(), has_keys: true })
    }

    fn set(&self, cut: bool) {
        self.way.cut.store(cut, Ordering::Release);
    }
}

impl Store for Cut {
    fn name(&self) -> &'static str {
        "cut"
    }
    fn commit(&self, batch: Arc<Batch>) -> BoxFuture<'_, Result<Committed, StoreError>> {
        Box::pin(async move {
            self.way.pass().await?;
            self.store.commit(batch).await
        })
    }
    fn resolve(&self, number: u64) -> BoxFuture<'_, Result<Option<Revision>, StoreError>> {
        Box::pin(async move {
            self.way.pass().await?;
            self.store.resolve(number).await
        })
    }
    fn read<'a>(&'a self, sink: &'a mut dyn Sink) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.way.pass().await?;
            self.store.read(sink).await
        })
    }
    fn collect(&self, up_to: Revision, before: i64, limit: usize) -> BoxFuture<'_, Result<usize, StoreError>> {
        Box::pin(async move {
            self.way.pass().await?;
            self.store.collect(up_to, before, limit).await
        })
    }
    fn attend<'a>(
        &'a self,
        own: Option<&'a NodeRow>,
        gone: &'a [NodeId],
    ) -> BoxFuture<'a, Result<NodeList, StoreError>> {
        Box::pin(async move {
            self.way.pass().await?;
            self.store.attend(own, gone).await
        })
    }
    fn changed(&self, seen: Revision) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if self.way.pass().await.is_ok() {
                self.store.changed(seen).await;
            }
        })
    }
    fn kv(&self) -> Option<Arc<dyn KvStore>> {
        if !self.has_keys {
            return None;
        }
        Some(Arc::new(CutKv { store: self.store.kv()?, way: Arc::clone(&self.way) }))
    }
}

impl KvStore for CutKv {
    fn head(&self) -> BoxFuture<'_, Result<Head, StoreError>> {
        Box::pin(async move {
            self.way.pass().await?;
            self.store.head().await
        })
    }
    fn read(&self, epoch: i64, after: Revision) -> BoxFuture<'_, Result<KvRead, StoreError>> {
        Box::pin(async move {
            self.way.pass().await?;
            self.store.read(epoch, after).await
        })
    }
    fn commit(&self, number: u64, plan: Arc<dyn KvPlan>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            self.way.pass().await?;
            self.store.commit(number, plan).await
        })
    }
    fn resolve(&self, number: u64) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            self.way.pass().await?;
            self.store.resolve(number).await
        })
    }
    fn collect(&self, up_to: Revision, before: i64, limit: usize) -> BoxFuture<'_, Result<usize, StoreError>> {
        Box::pin(async move {
            self.way.pass().await?;
            self.store.collect(up_to, before, limit).await
        })
    }
}

fn namespace() -> NamespaceName {
    NamespaceName::default()
}

/// Makes a session with a time to live of `ttl`; others wait for twice as long.
fn session(id: &str, ttl: Option<Duration>) -> Session {
    Session {
        id: id.into(),
        name: String::new(),
        node: "n".into(),
        lock_delay: 0,
        behavior: Behavior::Release,
        ttl: ttl.map(|ttl| ttl.as_millis() as u64),
        ttl_text: String::new(),
        node_checks: Vec::new(),
        service_checks: Vec::new(),
        created: Revision(0),
        modified: Revision(0),
    }
}

async fn begin(registry: &Registry, session: Session) {
    registry.session_begin(&namespace(), session).await.unwrap().unwrap();
}

/// Returns true if the session acquired the key.
async fn take(registry: &Registry, key: &str, session: &str) -> Result<bool, WriteError> {
    let verb = Verb::Lock(Bytes::copy_from_slice(session.as_bytes()), 0, session.into());
    let answer = registry.kv_apply(&namespace(), vec![Operation { key: key.into(), verb }]).await?;
    Ok(answer.is_ok())
}

fn holder(registry: &Registry, key: &str) -> Option<String> {
    let (_, entry) = registry.kv_get(&namespace(), key).unwrap();
    entry.and_then(|entry| entry.session.as_deref().map(str::to_owned))
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn nodes(directory: &tempfile::TempDir, count: usize) -> (Vec<Arc<Cut>>, Vec<Registry>) {
    let (mut ways, mut nodes) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let way = Cut::on(directory).await;
        nodes.push(Registry::open(Settings::default(), way.clone()).await.unwrap());
        ways.push(way);
    }
    for node in &nodes {
        until("the other nodes", || {
            let peers = node.status().peers;
            peers.len() == count - 1 && peers.iter().all(|peer| peer.reached)
        })
        .await;
    }
    (ways, nodes)
}

/// Sessions renewed at any node live, whichever node judges them; silent ones end, and their locks are released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_may_go_to_any_node_and_the_silent_end() {
    let directory = tempfile::tempdir().unwrap();
    let (_, nodes) = nodes(&directory, 2).await;
    // Long enough that nodes confirm renewals from memory: half of it is more than the interval between two roll calls.
    let ttl = Duration::from_secs(3);
    // Enough that each node judges some that are renewed at the other one: the judge is a matter of chance.
    for n in 0..40 {
        begin(&nodes[n % 2], session(&format!("s{n}"), Some(ttl))).await;
        assert!(take(&nodes[(n + 1) % 2], &format!("k{n}"), &format!("s{n}")).await.unwrap());
    }
    let renewing = nodes.clone();
    let renewals = tokio::spawn(async move {
        loop {
            for n in 0..20 {
                // Always at the same node, so that the other one has to ask.
                let answer = renewing[n % 2].session_renew(&namespace(), &format!("s{n}")).await.unwrap();
                assert!(matches!(answer, Renewal::Lives(_)), "s{n}: {answer:?}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    until("the end of the silent ones", || (20..40).all(|n| holder(&nodes[0], &format!("k{n}")).is_none())).await;
    // Each other session comes up with a judge that has not heard of it, and that asks; each lives, and holds its key.
    let asked = nodes.iter().map(|node| node.status().counts.asked).sum::<u64>();
    until("questions", || nodes.iter().map(|node| node.status().counts.asked).sum::<u64>() >= asked + 3).await;
    assert!(!renewals.is_finished(), "a renewal was not answered");
    let alive: BTreeSet<String> = nodes[1].sessions(&namespace()).unwrap().1.iter().map(|s| s.id.to_string()).collect();
    assert_eq!(alive, (0..20).map(|n| format!("s{n}")).collect());
    for n in 0..20 {
        assert_eq!(holder(&nodes[1], &format!("k{n}")), Some(format!("s{n}")));
    }
    assert!(matches!(nodes[0].session_renew(&namespace(), "s27").await.unwrap(), Renewal::Unknown));
    renewals.abort();
    for node in nodes {
        node.shutdown().await;
    }
}

/// A session renewed during an outage of the store still lives after it, however long it was. Renewals are not confirmed meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_lives_through_an_outage_of_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let (ways, nodes) = nodes(&directory, 2).await;
    let ttl = Duration::from_millis(500);
    for id in ["renewed", "silent"] {
        begin(&nodes[0], session(id, Some(ttl))).await;
        assert!(take(&nodes[0], id, id).await.unwrap());
        // Otherwise "nobody holds the key" would be true of a node that has never heard of the key.
        until("the key at the other node", || holder(&nodes[1], id).as_deref() == Some(id)).await;
    }
    ways.iter().for_each(|way| way.set(true));
    let refused = Arc::new(AtomicUsize::new(0));
    let (renewing, counted) = (nodes[0].clone(), Arc::clone(&refused));
    let renewals = tokio::spawn(async move {
        loop {
            if renewing.session_renew(&namespace(), "renewed").await.is_err() {
                counted.fetch_add(1, Ordering::AcqRel);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    until("refused renewals", || refused.load(Ordering::Acquire) >= 30).await;
    assert!(take(&nodes[1], "other", "renewed").await.is_err());
    ways.iter().for_each(|way| way.set(false));
    until("the end of the silent one", || holder(&nodes[1], "silent").is_none()).await;
    assert_eq!(holder(&nodes[1], "renewed").as_deref(), Some("renewed"));
    let answer = nodes[0].session_renew(&namespace(), "renewed").await.unwrap();
    assert!(matches!(answer, Renewal::Lives(_)), "{answer:?}");
    renewals.abort();
    for node in nodes {
        node.shutdown().await;
    }
}

/// A judge's path to the store hangs while it ends sessions: afterwards the sessions that were renewed meanwhile at another node, which confirmed
/// that to the clients, still live and hold their locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_judge_whose_store_hangs_ends_nobody_who_was_renewed_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let (ways, nodes) = nodes(&directory, 2).await;
    // Long enough that nodes confirm renewals from memory.
    let ttl = Duration::from_secs(3);
    let renewed = |n: usize| format!("renewed-{n}");
    for n in 0..24 {
        begin(&nodes[0], session(&renewed(n), Some(ttl))).await;
        assert!(take(&nodes[0], &renewed(n), &renewed(n)).await.unwrap());
        begin(&nodes[0], session(&format!("silent-{n}"), Some(ttl))).await;
    }
    until("the sessions at the other node", || nodes[1].sessions(&namespace()).unwrap().1.len() == 48).await;
    let lived = Arc::new(AtomicUsize::new(0));
    let (renewing, counted) = (nodes[0].clone(), Arc::clone(&lived));
    let renewals = tokio::spawn(async move {
        loop {
            for n in 0..24 {
                let answer = renewing.session_renew(&namespace(), &renewed(n)).await.unwrap();
                assert!(matches!(answer, Renewal::Lives(_)), "{}: {answer:?}", renewed(n));
            }
            counted.fetch_add(1, Ordering::AcqRel);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    ways[1].way.hangs.store(true, Ordering::Release);
    // The node with the open path is renewed for more than two times to live, during which the other one is stuck.
    until("the end of some silent ones", || nodes[0].sessions(&namespace()).unwrap().1.len() < 48).await;
    let rounds = lived.load(Ordering::Acquire);
    until("renewals", || lived.load(Ordering::Acquire) > rounds + 140 || renewals.is_finished()).await;
    ways[1].way.hangs.store(false, Ordering::Release);
    until("the end of all silent ones", || nodes.iter().all(|node| node.sessions(&namespace()).unwrap().1.len() <= 24))
        .await;
    let rounds = lived.load(Ordering::Acquire);
    until("renewals", || lived.load(Ordering::Acquire) > rounds + 2 || renewals.is_finished()).await;
    assert!(!renewals.is_finished(), "a session that was renewed all the time has ended: {:?}", renewals.await);
    for n in 0..24 {
        assert_eq!(holder(&nodes[0], &renewed(n)), Some(renewed(n)));
    }
    renewals.abort();
    for node in nodes {
        node.shutdown().await;
    }
}

/// A session ends with its check: when the check is critical, and when the service is deregistered; not with another one's check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_with_its_check() {
    let directory = tempfile::tempdir().unwrap();
    let (_, nodes) = nodes(&directory, 2).await;
    let with_check = |n: usize| {
        let mut registration = registration(n, "a");
        registration.check = Some(Check::ttl(Duration::from_secs(600)));
        registration
    };
    nodes[0].register((0..3).map(with_check).collect()).await.into_iter().for_each(|row| assert!(row.is_ok()));
    let checked = |name: &str, instance: InstanceId| Session {
        service_checks: vec![("service:x".into(), instance)],
        ..session(name, None)
    };
    for n in 0..3 {
        begin(&nodes[1], checked(&format!("s{n}"), id(n))).await;
        assert!(take(&nodes[0], &format!("k{n}"), &format!("s{n}")).await.unwrap());
    }
    nodes[0].report(&[(id(0), Health::Critical)]).await.pop().unwrap().unwrap();
    until("the end with a critical check", || holder(&nodes[1], "k0").is_none()).await;
    nodes[1].deregister(&[id(1)]).await.pop().unwrap().unwrap();
    until("the end with a service that is gone", || holder(&nodes[0], "k1").is_none()).await;
    assert_eq!(holder(&nodes[0], "k2").as_deref(), Some("s2"));
    for node in nodes {
        node.shutdown().await;
    }
}

/// Candidates for one lock die, lose contact, come back, or release the lock, at nodes that lose their paths to the store and leave: at any time at
/// most one candidate may believe that it holds the lock (its last answered renewal was sent less than a time to live ago). Each new holder has a
/// higher lock index.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_never_held_by_two() {
    const TTL: Duration = Duration::from_millis(1000);
    const TENURES: usize = 25;
    let directory = tempfile::tempdir().unwrap();
    let (ways, nodes) = nodes(&directory, 3).await;
    let history: Arc<Mutex<Vec<(u64, Instant, Instant)>>> = Arc::default();
    let serial = Arc::new(AtomicUsize::new(0));
    let mut candidates = tokio::task::JoinSet::new();
    for n in 0..6_usize {
        let (nodes, history, serial) = (nodes.clone(), Arc::clone(&history), Arc::clone(&serial));
        candidates.spawn(async move {
            for round in 0_usize.. {
                let node = &nodes[(n + round) % nodes.len()];
                let id = format!("c{n}-{}", serial.fetch_add(1, Ordering::AcqRel));
                let asked = Instant::now();
                match node.session_begin(&namespace(), session(&id, Some(TTL))).await {
                    Ok(made) => made.unwrap(),
                    Err(_) => {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                }
                // Counted from before the renewal was sent, as a holder must.
                let mut until = asked + TTL;
                let mut since = None;
                let mut index = 0;
                let mut steps = 0;
                while Instant::now() < until {
                    let asked = Instant::now();
                    let node = &nodes[(n + round + steps) % nodes.len()];
                    let renewed = tokio::time::timeout_at(until, node.session_renew(&namespace(), &id)).await;
                    match renewed {
                        Ok(Ok(Renewal::Lives(_))) => until = until.max(asked + TTL),
                        Ok(Ok(Renewal::Unknown)) => break,
                        Ok(Err(_)) | Err(_) => {}
                    }
                    if since.is_none() {
                        let verb = Verb::Lock(Bytes::new(), 0, id.as_str().into());
                        let ask = vec![Operation { key: "leader".into(), verb }];
                        match tokio::time::timeout_at(until, node.kv_apply(&namespace(), ask)).await {
                            Ok(Ok(Ok(given))) => {
                                let Given::Entry { entry, .. } = &given[0] else { panic!("{given:?}") };
                                (since, index) = (Some(Instant::now()), entry.lock_index);
                            }
                            Ok(Ok(Err(refused))) => {
                                let ended = matches!(refused[0].1, Refusal::NoSession { .. });
                                if ended {
                                    break;
                                }
                            }
                            Ok(Err(_)) | Err(_) => {}
                        }
                    } else {
                        steps += 1;
                    }
                    // Some die early, some late; one in three releases the lock.
                    if steps > 2 + (n + round) % 4 {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(60)).await;
                }
                let Some(since) = since else { continue };
                // The holder may believe in the lock until its last renewal expires, or until it releases the lock.
                let mut believed = until;
                if (n + round) % 3 == 0 {
                    believed = believed.min(Instant::now());
                    let _ = node.session_end(&namespace(), &id).await;
                }
                let mut history = history.lock().unwrap();
                history.push((index, since, believed));
                if history.len() >= TENURES {
                    return;
                }
            }
        });
    }
    // Meanwhile paths to the store are cut, of one node after another, and finally one node leaves for good.
    let (cut, ended) = (ways.clone(), Arc::new(AtomicBool::new(false)));
    let stopped = Arc::clone(&ended);
    let cutting = tokio::spawn(async move {
        for n in 0_usize.. {
            if stopped.load(Ordering::Acquire) {
                break;
            }
            cut[n % 3].set(true);
            tokio::time::sleep(Duration::from_millis(700 + 400 * (n as u64 % 3))).await;
            cut[n % 3].set(false);
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    });
    tokio::time::timeout(PATIENCE * 2, async { while candidates.join_next().await.is_some() {} }).await.unwrap();
    ended.store(true, Ordering::Release);
    cutting.await.unwrap();
    let mut history = history.lock().unwrap().clone();
    history.sort_by_key(|(_, since, _)| *since);
    assert!(history.len() >= TENURES);
    for pair in history.windows(2) {
        let ((first, _, believed), (second, since, _)) = (pair[0], pair[1]);
        assert!(second > first, "lock index {second} came after {first}");
        assert!(since >= believed, "two held the lock: {:?} too early, indexes {first} and {second}", believed - since);
    }
    for node in nodes {
        node.shutdown().await;
    }
}

/// A node that the others cannot ask, because it has lost the store and them, confirms no renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_told_of_a_renewal_that_nobody_can_ask_for() {
    let directory = tempfile::tempdir().unwrap();
    let (ways, nodes) = nodes(&directory, 2).await;
    let ttl = Duration::from_secs(1);
    begin(&nodes[0], session("s", Some(ttl))).await;
    assert!(matches!(nodes[0].session_renew(&namespace(), "s").await.unwrap(), Renewal::Lives(_)));
    let mut service = Registration::new(id(1), service(1), "h", 1);
    service.check = None;
    nodes[0].register(vec![service]).await.pop().unwrap().unwrap();
    ways[0].set(true);
    let deadline = Instant::now() + PATIENCE;
    loop {
        // Within half a time to live of its last contact with the store it may still confirm; after that never.
        if nodes[0].session_renew(&namespace(), "s").await.is_err() {
            break;
        }
        assert!(Instant::now() < deadline, "a node without its store goes on vouching");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(nodes[0].session_renew(&namespace(), "s").await.is_err());
    ways[0].set(false);
    // Once it is back in touch, it confirms again.
    while !matches!(nodes[0].session_renew(&namespace(), "s").await, Ok(Renewal::Lives(_))) {
        assert!(Instant::now() < deadline, "a node that has its store back does not vouch");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for node in nodes {
        node.shutdown().await;
    }
}

/// On a store without keys, a request for keys fails with a status that clients do not retry; services are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_keys_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let whole = Cut::on(&directory).await;
    let store = Arc::new(Cut { store: Arc::clone(&whole.store), way: Arc::default(), has_keys: false });
    let registry = Registry::open(Settings::default(), store).await.unwrap();
    assert!(!registry.has_keys());
    assert!(registry.session_renew(&namespace(), "s").await.is_err());
    assert!(take(&registry, "k", "s").await.is_err());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let mount = Mount { listener, fronts: vec![Front::Consul], tls: None };
    let context =
        Context::new(registry.clone(), Auth::None, HttpLimits::default(), "n".to_owned(), AuditLog::default());
    let server = Server::start(vec![mount], context);
    for (ask, status) in [
        ("GET /v1/kv/k", "501"),
        ("PUT /v1/kv/k?acquire=s", "501"),
        ("GET /v1/kv/?recurse&index=1", "501"),
        ("PUT /v1/session/create", "501"),
        ("GET /v1/session/list", "501"),
        ("PUT /v1/txn", "501"),
        ("PUT /v1/event/fire/deploy", "501"),
        ("GET /v1/event/list", "501"),
        ("GET /v1/query", "501"),
        ("GET /v1/catalog/services", "200"),
    ] {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("{ask} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert_eq!(answer.split(' ').nth(1), Some(status), "{ask}: {answer}");
        assert_eq!(
            answer.contains("keys, sessions, events and queries need a store in SQLite"),
            status == "501",
            "{ask}: {answer}"
        );
    }
    server.shutdown(PATIENCE).await;
    registry.shutdown().await;
}
