//! The store in TiKV: a real PD, with unistore in place of TiKV (`tests/tikv`). Without them these tests are skipped.

#[path = "../../../../tests/tikv/rig.rs"]
mod rig;

use std::sync::Arc;
use std::time::Duration;

use registry::store::WriteKind;
use registry::{Revision, Store, StoreError, store};
use rig::Rig;

use crate::common::*;
use crate::common::{config, fire, kv, suite};

async fn opened(rig: &Rig, prefix: &str) -> Result<Arc<dyn Store>, StoreError> {
    store::open(&rig.address(prefix)).await
}

fn register(n: usize, what: &str) -> WriteKind {
    WriteKind::Register(Box::new(registration(n, what)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contract() {
    let Some(rig) = Rig::start() else { return };
    // Within the rows, within the feed, and between the counter and all else.
    for key in ["k/contract/d", "k/contract/f/0000000000000004", "k/contract/i/default/instance-3", "k/contract/s"] {
        rig.split(key);
    }
    suite::all(|| opened(&rig, "contract")).await;
    // Another registry in the same cluster sees nothing of it.
    let other = opened(&rig, "contract2").await.unwrap();
    assert_eq!(suite::read(&other, 0).await.head.v, Revision(0));
    assert!(suite::read(&other, 0).await.records.is_empty());
    assert!(
        store::open(&rig.address("contract")).await.unwrap().attend(None, &[]).await.unwrap().secret
            != other.attend(None, &[]).await.unwrap().secret
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_sessions() {
    let Some(rig) = Rig::start() else { return };
    // Within the rows, and between the counter, the feed and all else.
    for key in ["k/keys/k/d", "k/keys/k/r", "k/keys/k/r/a/0/k", "k/keys/k/r/mine/0/many/5"] {
        rig.split(key);
    }
    kv::all(|| opened(&rig, "keys")).await;
    config::all(|| opened(&rig, "keys")).await;
    // Another registry in the same cluster sees nothing of it.
    let other = opened(&rig, "keys2").await.unwrap();
    assert!(other.kv().unwrap().read(0, Revision(0)).await.unwrap().rows.is_empty());
}

/// Nodes write and read while regions split, requests and replies are lost, stores report that they are busy or not leader, and the store restarts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_fire() {
    let Some(mut rig) = Rig::start() else { return };
    let address = rig.address("fire");
    let disturb = async {
        for round in 0..8 {
            for (call, mode) in [
                ("KvCommit", "reply"),
                ("KvCommit", "request"),
                ("KvPrewrite", "reply"),
                ("KvPrewrite", "request"),
                ("KvBatchGet", "epoch"),
                ("KvScan", "request"),
                ("KvGet", "busy"),
                ("KvPrewrite", "leader"),
                ("KvCommit", "epoch"),
            ] {
                rig.fault(call, mode, round, 2);
            }
            rig.split(&format!("k/fire/i/default/instance-{}", round * 9));
            tokio::time::sleep(Duration::from_millis(150)).await;
            if round == 4 {
                rig.restart_store();
            }
        }
    };
    fire::under_fire(|| store::open(&address), 12, disturb).await;
}

/// A commit whose every reply is lost, or says that its outcome is unknown, has happened or not, and the registry finds out which by the
/// batch's number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_nobody_answered_for_is_found_out() {
    let Some(rig) = Rig::start() else { return };
    let store = opened(&rig, "lost").await.unwrap();
    let mut revision = 0;
    for (number, mode, happened) in [
        (1, "undetermined", true),
        // An error that is newer than this client.
        (2, "newer", true),
        (3, "abort", true),
        (4, "reply", true),
        (5, "request", false),
    ] {
        rig.fault("KvCommit", mode, 0, 10_000);
        let committed = store.commit(suite::batch(number, vec![register(1, mode)])).await;
        assert!(matches!(committed, Err(StoreError::Undetermined { .. })), "{mode}: {committed:?}");
        rig.clear();
        let found = store.resolve(number).await.unwrap();
        assert_eq!(found.is_some(), happened, "{mode}");
        // It stays so.
        revision += u64::from(happened);
        let read = suite::read(&store, 0).await;
        assert_eq!(read.head.v, Revision(revision), "{mode}");
        assert_eq!(store.resolve(number).await.unwrap(), found, "{mode}");
    }
    // And what was not written keeps nobody from writing.
    let again = store.commit(suite::batch(6, vec![register(1, "again")])).await.unwrap();
    assert_eq!(again.revision, Revision(revision + 1));
}

/// A node that dies between the two phases of its commit leaves locks. Another one waits for their time to live, and goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_node_had_half_committed_is_undone_or_done() {
    let Some(rig) = Rig::start() else { return };
    // The counter in one region, the rows in another: the transaction may be committed in one and open in the other.
    rig.split("k/dead/d");
    for (step, call, committed) in [(1, "KvPrewrite", false), (2, "KvCommit", false)] {
        let dying = opened(&rig, "dead").await.unwrap();
        let other = opened(&rig, "dead").await.unwrap();
        let before = suite::read(&other, 0).await.head.v;
        rig.clear();
        // The first request locks the counter, or would commit it; no later request of the node gets through.
        rig.fault(call, "request", u32::from(call == "KvPrewrite"), 10_000);
        let batch = suite::batch(step, vec![register(1, "dying"), register(2, "dying")]);
        let dies = tokio::spawn(async move { dying.commit(batch).await });
        let began = std::time::Instant::now();
        while rig.calls(call) < 3 {
            assert!(began.elapsed() < PATIENCE, "{call} was not tried");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        dies.abort();
        let _ = dies.await;
        rig.clear();
        let head = suite::read(&other, 0).await.head.v;
        assert_eq!(head > before, committed, "{call}");
        let next = other
            .commit(suite::batch(1, vec![register(1, "other"), register(2, &format!("other {step}"))]))
            .await
            .unwrap();
        assert_eq!(next.revision, Revision(head.0 + 1), "{call}");
    }
}

/// PD stops responding: calls fail no later than at their deadline, and when PD continues, so does the registry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pd_that_stands_still_is_an_error_in_time() {
    let Some(mut rig) = Rig::start() else { return };
    let store = opened(&rig, "still").await.unwrap();
    store.commit(suite::batch(1, vec![register(1, "a")])).await.unwrap();
    rig.freeze_pd(0);
    // PD continues only after this has ended: so its own deadline ends it.
    let committed = tokio::time::timeout(3 * PATIENCE, store.commit(suite::batch(2, vec![register(1, "b")])));
    let committed = committed.await.expect("a deadline");
    assert!(matches!(committed, Err(StoreError::Unavailable { .. })), "{committed:?}");
    rig.thaw_pd(0);
    let number = succeeds(&store, 3).await;
    rig.kill_pd(0);
    rig.start_pd(0);
    succeeds(&store, number).await;
}

/// Commits batches from `number` on until one succeeds; returns the next number.
async fn succeeds(store: &Arc<dyn Store>, number: u64) -> u64 {
    let began = std::time::Instant::now();
    for number in number.. {
        match store.commit(suite::batch(number, vec![register(1, &format!("try {number}"))])).await {
            Ok(_) => return number + 1,
            Err(error) => assert!(began.elapsed() < 2 * PATIENCE, "{error}"),
        }
    }
    unreachable!("numbers do not end")
}

#[tokio::test]
async fn what_is_not_there_or_newer_is_said_so() {
    let error = store::open("tikv://u:sesame@127.0.0.1:1/p").await.err().unwrap();
    assert!(!format!("{error} {error:?}").contains("sesame"), "{error:?}");
    assert!(matches!(store::open("tikv://127.0.0.1:1").await.err(), Some(StoreError::Address { .. })));
    let Some(rig) = Rig::start() else { return };
    drop(opened(&rig, "newer").await.unwrap());
    let deadline = || tokio::time::Instant::now() + PATIENCE;
    let client = tikv::Client::connect(rig.endpoints(), tikv::Security::none(), deadline()).await.unwrap();
    let at = client.timestamp(deadline()).await.unwrap();
    let write = tikv::Write::Put("k/newer/v".into(), "\x01999".into());
    client.commit(at, vec![write], deadline()).await.unwrap();
    assert!(matches!(opened(&rig, "newer").await.err(), Some(StoreError::Newer { found: 999, .. })));
}
