//! Requirements on every store.

use std::sync::Arc;

use registry::store::{Batch, Committed, Head, NodeId, NodeRow, Record, Sink, WriteKind};
use registry::{Health, Metadata, Outcome, Registry, Revision, Store, StoreError, WriteError};

use super::*;

/// The result of a read.
#[derive(Default)]
pub(crate) struct Read {
    pub(crate) after: Revision,
    pub(crate) head: Head,
    pub(crate) records: Vec<Record>,
}

impl Sink for Read {
    fn begin(&mut self, head: Head) -> Revision {
        self.head = head;
        self.after
    }

    fn record(&mut self, record: Record) {
        self.records.push(record);
    }
}

pub(crate) async fn read(store: &Arc<dyn Store>, after: u64) -> Read {
    let mut read = Read { after: Revision(after), ..Read::default() };
    store.read(&mut read).await.unwrap();
    read
}

pub(crate) fn batch(number: u64, kinds: Vec<WriteKind>) -> Arc<Batch> {
    let writes = kinds.into_iter().map(|kind| registry::store::Write { kind, expected: None }).collect();
    Arc::new(Batch::new(number, writes, 1000))
}

fn register(n: usize, what: &str) -> WriteKind {
    WriteKind::Register(Box::new(registration(n, what)))
}

fn outcomes(committed: &Committed) -> Vec<Outcome> {
    committed.outcomes.iter().map(|outcome| outcome.0).collect()
}

/// Runs all tests on an empty store. `again` opens the same database as another node.
pub(crate) async fn all<F: Future<Output = Result<Arc<dyn Store>, StoreError>>>(again: impl Fn() -> F) {
    let store = again().await.unwrap();
    commits_and_reads(&store).await;
    every_field_survives(&store, &again().await.unwrap()).await;
    tombstones(&store).await;
    resolves(&store, &again().await.unwrap()).await;
    two_nodes(&store, &again().await.unwrap()).await;
    nodes_find_each_other(&store, &again().await.unwrap()).await;
    several_open_at_once(&again).await;
}

/// Opening a store whose schema `older` has reverted to the first version migrates it, and keeps its rows.
#[allow(dead_code, reason = "SQLite's is tested where its migrations are")]
pub(crate) async fn goes_forward<F: Future<Output = Result<Arc<dyn Store>, StoreError>>>(
    again: impl Fn() -> F,
    older: impl Future<Output = ()>,
) {
    let before = read(&again().await.unwrap(), 0).await;
    assert!(!before.records.is_empty());
    older.await;
    let store = again().await.unwrap();
    let after = read(&store, 0).await;
    assert_eq!((after.head, after.records.len()), (before.head, before.records.len()), "the same history");
    // The new tables work: a commit records its writer, and nodes call the roll.
    let committed = store.commit(batch(1, vec![register(9, "forward")])).await.unwrap();
    assert_eq!(store.resolve(1).await.unwrap(), Some(committed.revision));
    assert!(store.attend(None, &[]).await.unwrap().nodes.is_empty());
}

async fn commits_and_reads(store: &Arc<dyn Store>) {
    let start = read(store, 0).await;
    assert_eq!((start.head.v, start.records.len()), (Revision(0), 0));
    assert!(start.head.epoch > 0);
    let first = store.commit(batch(1, vec![register(1, "a"), register(2, "a"), register(1, "b")])).await.unwrap();
    assert_eq!((first.revision, first.wrote), (Revision(1), true));
    assert_eq!(outcomes(&first), [Outcome::Created, Outcome::Created, Outcome::Updated]);
    let same = store.commit(batch(2, vec![register(1, "b"), register(2, "a")])).await.unwrap();
    assert_eq!((same.revision, same.wrote), (Revision(1), false), "nothing new, no new revision");
    let second = store.commit(batch(3, vec![register(1, "b"), WriteKind::Patch(id(2), weight(7))])).await.unwrap();
    assert_eq!(outcomes(&second), [Outcome::Unchanged, Outcome::Updated]);
    assert_eq!(second.outcomes[0].1, Revision(1), "the revision of the row");
    let delta = read(store, 1).await;
    assert_eq!((delta.head.v, delta.records.len()), (Revision(2), 1), "only what is after the cursor");
    assert_eq!(read(store, 0).await.records.len(), 2);
    let none = store.commit(batch(4, vec![WriteKind::Patch(id(99), weight(7)), WriteKind::Deregister(id(99))])).await;
    assert_eq!(outcomes(&none.unwrap()), [Outcome::NotFound, Outcome::NotFound]);
    let many = (100..700).map(|n| register(n, "many")).collect();
    assert_eq!(store.commit(batch(5, many)).await.unwrap().records.len(), 600);
    assert_eq!(read(store, 2).await.records.len(), 600);
}

async fn every_field_survives(store: &Arc<dyn Store>, other: &Arc<dyn Store>) {
    let mut full = registration(50, "naïve \u{1F600} \"quoted\" \\ \n,{}'%");
    full.host = "2001:db8::1".into();
    full.port = 65535;
    full.protocol = "gRPC".into();
    full.version = "1.2.3-rc'1".into();
    full.weight = 0;
    full.priority = 65535;
    full.location = serde_json::from_str(r#"{"region":"r","zone":"z","campus":"c"}"#).unwrap();
    full.check = Some(serde_json::from_str(r#"{"type":"ttl","ttl":"5s","deregister_after":"1m"}"#).unwrap());
    full.isolate = Some(true);
    full.health = Some(Health::Warning);
    full.id = registry::InstanceId::parse("default/Ünï code ").unwrap();
    let twin = registry::InstanceId::parse("default/ünï code").unwrap();
    let mut other_case = full.clone();
    other_case.id = twin.clone();
    let writes = vec![
        WriteKind::Register(Box::new(full.clone())),
        WriteKind::Register(Box::new(other_case)),
        WriteKind::PutService(service(3), Metadata::from_pairs([("k", "v\u{e9}")]).unwrap()),
    ];
    let committed = store.commit(batch(6, writes)).await.unwrap();
    assert_eq!(outcomes(&committed), [Outcome::Created; 3], "ids differ also by case and by a space at the end");
    let back = read(other, committed.revision.0 - 1).await;
    let mut found = 0;
    for record in back.records {
        match record {
            Record::Instance(row) if row.instance.id == full.id => {
                let written = committed.records.iter().find_map(|r| match r {
                    Record::Instance(row) if row.instance.id == full.id => Some(row.instance.clone()),
                    _ => None,
                });
                assert_eq!(Some(&row.instance), written.as_ref());
                assert_eq!(row.instance.metadata, full.metadata);
                found += 1;
            }
            Record::Service(row) => {
                assert_eq!((row.key, row.metadata.get("k")), (service(3), Some("v\u{e9}")));
                found += 1;
            }
            Record::Instance(row) => assert_eq!(row.instance.id, twin),
        }
    }
    assert_eq!(found, 2);
}

async fn tombstones(store: &Arc<dyn Store>) {
    let head = read(store, 0).await.head;
    let gone = store.commit(batch(7, vec![WriteKind::Deregister(id(100)), WriteKind::DeleteService(service(3))])).await;
    assert_eq!(outcomes(&gone.unwrap()), [Outcome::Removed, Outcome::Removed]);
    let delta = read(store, head.v.0).await;
    let deleted = delta.records.iter().filter(|record| match record {
        Record::Instance(row) => row.deleted && row.instance.id == id(100),
        Record::Service(row) => row.deleted,
    });
    assert_eq!(deleted.count(), 2);
    assert_eq!(store.collect(delta.head.v, 1000, 100).await.unwrap(), 0, "written at 1000: not older than that");
    assert_eq!(store.collect(Revision(head.v.0), 9999, 100).await.unwrap(), 0, "not after the revision");
    assert_eq!(store.collect(delta.head.v, 9999, 100).await.unwrap(), 2);
    let after = read(store, head.v.0).await;
    assert_eq!((after.head.gc_floor, after.records.len()), (delta.head.v, 0));
}

async fn resolves(store: &Arc<dyn Store>, other: &Arc<dyn Store>) {
    let committed = store.commit(batch(21, vec![register(1, "resolved")])).await.unwrap();
    other.commit(batch(22, vec![register(2, "another node's")])).await.unwrap();
    assert_eq!(store.resolve(21).await.unwrap(), Some(committed.revision), "also after somebody else has committed");
    assert_eq!(store.resolve(22).await.unwrap(), None, "what this one never sent");
    assert_eq!(other.resolve(21).await.unwrap(), None, "what somebody else sent");
}

/// Two nodes on one store write concurrently; each has the other's writes in the end, and both are equal.
async fn two_nodes(one: &Arc<dyn Store>, other: &Arc<dyn Store>) {
    let nodes = [open(one).await, open(other).await];
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..200 {
        let node = nodes[n % 2].clone();
        calls.spawn(async move {
            let what = format!("node {}", n % 2);
            let written = node.register(vec![registration(n / 2, &what)]).await.pop().unwrap().unwrap();
            let found = node.instance(&id(n / 2)).expect("registered: found");
            assert!(found.revision >= written.revision, "the own cache has it before the answer");
            assert_eq!(node.heartbeat(&[id(n / 2)]).await, [registry::Beat::Known]);
            written.revision
        });
    }
    let mut last = Revision(0);
    while let Some(revision) = calls.join_next().await {
        last = last.max(revision.unwrap());
    }
    for node in &nodes {
        reached(node, last).await;
        let missing = node.deregister(&[id(7777)]).await.pop().unwrap();
        assert!(matches!(missing, Err(WriteError::NotFound { .. })), "{missing:?}");
    }
    assert_eq!(nodes[0].revision(), nodes[1].revision());
    assert_eq!(digests(&nodes[0]), digests(&nodes[1]));
    let fresh: Registry = open(one).await;
    assert_eq!(digests(&fresh), digests(&nodes[0]));
    for node in nodes.iter().chain([&fresh]) {
        node.shutdown().await;
    }
}

async fn nodes_find_each_other(store: &Arc<dyn Store>, other: &Arc<dyn Store>) {
    let row = |id, beat| NodeRow { id: NodeId(id), address: format!("[::1]:{id}"), judges: id == 1, beat };
    let left = store.attend(None, &[]).await.unwrap().nodes;
    assert_eq!(left, [], "nodes that were shut down have gone");
    let revision = read(store, 0).await.head.v;
    assert_eq!(store.attend(Some(&row(1, 1)), &[]).await.unwrap().nodes, [row(1, 1)]);
    let roll = other.attend(Some(&row(2, 1)), &[]).await.unwrap();
    assert_eq!(roll.nodes, [row(1, 1), row(2, 1)]);
    let again = store.attend(Some(&row(1, 2)), &[]).await.unwrap();
    assert_eq!(again.nodes, [row(1, 2), row(2, 1)]);
    assert!(again.secret == roll.secret, "one secret for all");
    assert!(again.secret.0 != [0; 32]);
    assert_eq!(format!("{:?}", again.secret), "Secret(…)");
    assert_eq!(store.attend(None, &[NodeId(2), NodeId(77)]).await.unwrap().nodes, [row(1, 2)]);
    assert_eq!(other.attend(None, &[NodeId(1)]).await.unwrap().nodes, []);
    assert_eq!(read(store, 0).await.head.v, revision, "no revision is taken for it");
}

async fn several_open_at_once<F: Future<Output = Result<Arc<dyn Store>, StoreError>>>(again: &impl Fn() -> F) {
    let (a, b, c) = tokio::join!(again(), again(), again());
    let epochs = [read(&a.unwrap(), 0).await.head.epoch, read(&b.unwrap(), 0).await.head.epoch];
    assert_eq!(epochs[0], epochs[1]);
    drop(c.unwrap());
}
