//! Requirements on the key-value part of every store: through two nodes on it, as seen by users, and directly.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use registry::kv::{Behavior, Entry, Given, KvLimits, Operation, Refusal, Session, Verb};
use registry::store::{Head, KvContent, KvDecision, KvPlan, KvRead, KvRow};
use registry::{NamespaceName, Registry, Revision, Store, StoreError};

use super::*;

fn namespace(name: &str) -> NamespaceName {
    NamespaceName::new(name).unwrap()
}

fn put(key: &str, value: &[u8]) -> Operation {
    Operation { key: key.into(), verb: Verb::Set(Bytes::copy_from_slice(value), 0) }
}

fn put_if(key: &str, value: &[u8], index: Revision) -> Operation {
    Operation { key: key.into(), verb: Verb::SetIf(Bytes::copy_from_slice(value), 0, index) }
}

/// A plan that writes given rows, and records its input.
struct Fixed {
    seen: (i64, Revision),
    rows: Vec<KvRow>,
    told: Mutex<Option<KvRead>>,
}

impl KvPlan for Fixed {
    fn seen(&self) -> (i64, Revision) {
        self.seen
    }

    fn plan(&self, missed: KvRead) -> KvDecision {
        let v = Revision(missed.head.v.0 + 1);
        let rows: Vec<KvRow> = self.rows.iter().cloned().map(|row| KvRow { revision: v, ..row }).collect();
        *self.told.lock().unwrap() = Some(missed);
        if rows.is_empty() { KvDecision::Nothing } else { KvDecision::Write(rows, v) }
    }
}

fn row(namespace: &str, key: &str, content: KvContent) -> KvRow {
    let namespace = self::namespace(namespace);
    KvRow { namespace, name: key.into(), content, lock_delay: 0, revision: Revision(0), mtime: 1000 }
}

fn entry(key: &str, value: &[u8]) -> KvContent {
    KvContent::Entry(Arc::new(Entry {
        key: key.into(),
        value: Bytes::copy_from_slice(value),
        flags: u64::MAX,
        session: Some("s-1".into()),
        lock_index: 3,
        created: Revision(1),
        modified: Revision(0),
    }))
}

/// Runs all tests on a store without keys. `again` opens the same database as another node.
pub(crate) async fn all<F: Future<Output = Result<Arc<dyn Store>, StoreError>>>(again: impl Fn() -> F) {
    the_store_itself(&again().await.unwrap(), &again().await.unwrap()).await;
    two_nodes(&again().await.unwrap(), &again().await.unwrap()).await;
}

async fn the_store_itself(store: &Arc<dyn Store>, other: &Arc<dyn Store>) {
    let (kv, other) = (store.kv().unwrap(), other.kv().unwrap());
    let start = kv.head().await.unwrap();
    assert_eq!(start.v, Revision(1), "so nothing is ever of the index that clients have of what never was");
    let after = |writes: u64| Revision(start.v.0 + writes);
    assert!(kv.read(start.epoch, Revision(0)).await.unwrap().rows.is_empty());
    // Rows come back unchanged through another opening: bytes that are no text, the longest key, all bits of a number.
    let long = "ü".repeat(256);
    let session = Session {
        id: "s-1".into(),
        name: "a name".into(),
        node: "n".into(),
        lock_delay: 15_000_000_000,
        behavior: Behavior::Delete,
        ttl: Some(10_000),
        ttl_text: "10s".into(),
        node_checks: vec!["serfHealth".into()],
        service_checks: vec![("service:a".into(), id(1))],
        created: Revision(1),
        modified: Revision(1),
    };
    let rows = vec![
        row("a", "k", entry("k", &[0, 255, 10, 0])),
        row("b", "k", entry("k", b"of another")),
        row("a", "K", entry("K", b"")),
        row("a", &long, entry(&long, &vec![7; 512 << 10])),
        row("a", "s-1", KvContent::Session(Arc::new(session.clone()))),
        KvRow { lock_delay: 1500, ..row("a", "gone", KvContent::NoEntry) },
        row("a", "s-0", KvContent::NoSession),
    ];
    let plan = Arc::new(Fixed { seen: (start.epoch, Revision(0)), rows: rows.clone(), told: Mutex::default() });
    kv.commit(1, Arc::clone(&plan) as Arc<dyn KvPlan>).await.unwrap();
    assert!(kv.resolve(1).await.unwrap() && !kv.resolve(2).await.unwrap());
    assert!(!other.resolve(1).await.unwrap(), "each opening has numbers of its own");
    assert_eq!(other.head().await.unwrap(), Head { v: after(1), ..start });
    let mut read = other.read(start.epoch, after(0)).await.unwrap();
    assert!(!read.whole);
    let key = |row: &KvRow| (row.namespace.as_str().to_owned(), row.name.to_string());
    read.rows.sort_by_key(key);
    let mut expected: Vec<KvRow> = rows
        .into_iter()
        .map(|row| {
            let content = match row.content {
                KvContent::Entry(entry) => {
                    KvContent::Entry(Arc::new(Entry { modified: after(1), ..Entry::clone(&entry) }))
                }
                KvContent::Session(session) => {
                    KvContent::Session(Arc::new(Session { modified: after(1), ..Session::clone(&session) }))
                }
                content => content,
            };
            KvRow { content, revision: after(1), ..row }
        })
        .collect();
    expected.sort_by_key(key);
    assert_eq!(read.rows, expected);
    // Under the lock a node gets exactly the rows that it lacks, or all if its history is another one.
    for (seen, whole, rows) in [
        ((start.epoch, after(1)), false, 0),
        ((start.epoch, after(0)), false, 7),
        ((start.epoch + 1, after(1)), true, 7),
    ] {
        let plan = Arc::new(Fixed { seen, rows: Vec::new(), told: Mutex::default() });
        other.commit(1, Arc::clone(&plan) as Arc<dyn KvPlan>).await.unwrap();
        let told = plan.told.lock().unwrap().take().unwrap();
        assert_eq!((told.whole, told.rows.len(), told.head.v), (whole, rows, after(1)), "{seen:?}");
    }
    // A later row replaces an earlier one; deleted keys are collected, and a node that has seen less reads everything.
    let rows = vec![row("a", "k", KvContent::NoEntry), row("a", &long, KvContent::NoEntry)];
    kv.commit(2, Arc::new(Fixed { seen: (start.epoch, after(1)), rows, told: Mutex::default() })).await.unwrap();
    assert_eq!(kv.collect(after(1), 2000, 100).await.unwrap(), 2, "those of the first revision");
    assert_eq!(kv.collect(after(2), 1000, 100).await.unwrap(), 0, "too young");
    assert_eq!(kv.collect(after(2), 2000, 100).await.unwrap(), 2);
    let late = other.read(start.epoch, after(1)).await.unwrap();
    assert_eq!((late.whole, late.rows.len(), late.head.gc_floor), (true, 3, after(2)));
    // Restores the initial state for the next test.
    let gone = late.rows.iter().map(|row| match row.content {
        KvContent::Session(_) => KvRow { content: KvContent::NoSession, ..row.clone() },
        _ => KvRow { content: KvContent::NoEntry, ..row.clone() },
    });
    let plan = Fixed { seen: (start.epoch, after(2)), rows: gone.collect(), told: Mutex::default() };
    kv.commit(3, Arc::new(plan)).await.unwrap();
}

/// Two nodes increment counters concurrently: nothing is lost or counted twice, and each sees the other's writes in the end.
async fn two_nodes(one: &Arc<dyn Store>, other: &Arc<dyn Store>) {
    const EACH: usize = 40;
    let (a, b) = (open(one).await, open(other).await);
    let (mine, theirs) = (namespace("mine"), namespace("theirs"));
    let count = |registry: Registry, namespace: NamespaceName| async move {
        let mut counted = 0;
        while counted < EACH {
            let (_, found) = registry.kv_get(&namespace, "count").unwrap();
            let (index, value) = found.map_or((Revision(0), 0), |entry| {
                (entry.modified, String::from_utf8_lossy(&entry.value).parse::<usize>().unwrap())
            });
            let next = put_if("count", (value + 1).to_string().as_bytes(), index);
            match registry.kv_apply(&namespace, vec![next]).await.unwrap() {
                Ok(_) => counted += 1,
                Err(refused) => assert!(matches!(refused[..], [(0, Refusal::Stale { .. })]), "{refused:?}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, async {
        tokio::join!(
            count(a.clone(), mine.clone()),
            count(b.clone(), mine.clone()),
            count(a.clone(), theirs.clone()),
            count(b.clone(), theirs.clone()),
        )
    })
    .await
    .unwrap();
    for registry in [&a, &b] {
        registry.kv_settle().await.unwrap();
        for namespace in [&mine, &theirs] {
            let (index, entry) = registry.kv_get(namespace, "count").unwrap();
            let entry = entry.unwrap();
            assert_eq!(&*entry.value, (2 * EACH).to_string().as_bytes());
            assert_eq!(index, entry.modified);
        }
    }
    // A transaction over many keys, with values of all sizes, reaches the other node completely.
    let many: Vec<Operation> = (0..100).map(|n| put(&format!("many/{n}"), &vec![n as u8; n * 100])).collect();
    let given = a.kv_apply(&mine, many).await.unwrap().unwrap();
    assert!(given.iter().all(|given| matches!(given, Given::Entry { .. })));
    b.kv_settle().await.unwrap();
    let (_, tree) = b.kv_tree(&mine, "many/").unwrap();
    assert_eq!(tree.len(), 100);
    assert!(tree.iter().all(|entry| entry.modified == tree[0].modified), "one revision");
    assert!(b.kv_tree(&theirs, "many/").unwrap().1.is_empty());
    // A value beyond the limit is refused, and a later opening finds the same state.
    let limits = KvLimits::default();
    let large = put("large", &vec![0; limits.value_bytes + 1]);
    assert!(a.kv_apply(&mine, vec![large]).await.is_err());
    let deleted = Operation { key: "many/".into(), verb: Verb::DeleteTree };
    a.kv_apply(&mine, vec![deleted]).await.unwrap().unwrap();
    a.shutdown().await;
    let c = open(one).await;
    assert_eq!(c.kv_tree(&mine, "").unwrap().1.len(), 1);
    for registry in [b, c] {
        registry.shutdown().await;
    }
}
