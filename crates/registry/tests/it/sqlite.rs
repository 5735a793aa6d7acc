//! The embedded store.

use std::sync::Arc;

use registry::{Outcome, Registry, Settings, Store, store};

use crate::common::*;
use crate::common::{config, fire, kv, suite};

async fn in_directory(directory: &tempfile::TempDir) -> Result<Arc<dyn Store>, registry::StoreError> {
    store::open(&format!("sqlite:{}", directory.path().join("registry.db").display())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contract() {
    let directory = tempfile::tempdir().unwrap();
    suite::all(|| in_directory(&directory)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys() {
    let directory = tempfile::tempdir().unwrap();
    kv::all(|| in_directory(&directory)).await;
    config::all(|| in_directory(&directory)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_fire() {
    let directory = tempfile::tempdir().unwrap();
    fire::under_fire(|| in_directory(&directory), 20, async {}).await;
    let elsewhere = tempfile::tempdir().unwrap();
    fire::only_the_counter_misses_nothing(|| in_directory(&elsewhere)).await;
}

#[tokio::test]
async fn what_was_answered_is_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let (before, epoch) = {
        let registry = open(&in_directory(&directory).await.unwrap()).await;
        for n in 0..20 {
            registry.register(vec![registration(n, "a")]).await.pop().unwrap().unwrap();
        }
        registry.deregister(&[id(3)]).await.pop().unwrap().unwrap();
        (digests(&registry), registry.status().epoch)
        // Not shut down, as if the process had been killed.
    };
    let registry = open(&in_directory(&directory).await.unwrap()).await;
    assert_eq!(digests(&registry), before);
    assert_eq!(registry.status().epoch, epoch);
    assert_eq!(registry.instance(&id(3)), None);
    let again = registry.register(vec![registration(4, "a")]).await.pop().unwrap().unwrap();
    assert_eq!(again.outcome, Outcome::Unchanged);
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("registry.db"), "by no means a database, but long enough to look like one")
        .unwrap();
    let error = in_directory(&directory).await.err().unwrap();
    assert!(error.to_string().contains("not a database"), "{error}");
    for address in ["sqlite:", "sqlite::memory:", "sqlite:file:x?mode=memory", "sqlite", "oracle:x", ""] {
        assert!(store::open(address).await.is_err(), "{address}");
    }
    assert!(store::open("sqlite:/nonexistent/registry.db").await.is_err());
}

#[tokio::test]
async fn limits_are_kept_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = Settings::default();
    settings.limits.instances = 3;
    settings.limits.instances_per_service = 2;
    settings.limits.call_rows = 10;
    settings.limits.watchers = 0;
    let registry = Registry::open(settings, in_directory(&directory).await.unwrap()).await.unwrap();
    let full = registry.register(vec![registration(0, "a"), registration(10, "a"), registration(20, "a")]).await;
    assert!(full[0].is_ok() && full[1].is_ok());
    assert!(full[2].as_ref().unwrap_err().to_string().contains("instances of the service: there are 2"), "{full:?}");
    assert!(registry.register(vec![registration(1, "a")]).await[0].is_ok());
    let full = registry.register(vec![registration(2, "a"), registration(0, "b")]).await;
    assert!(full[0].as_ref().unwrap_err().to_string().contains("instances: there are 3"), "{full:?}");
    assert!(full[1].is_ok(), "what is there may change");
    let long = registry.register((0..11).map(|n| registration(n, "a")).collect()).await;
    assert!(long.iter().all(|row| row.as_ref().is_err_and(|e| e.to_string().contains("rows of a call"))));
    let deadline = tokio::time::Instant::now() + PATIENCE;
    assert!(registry.watch_all(registry.revision(), deadline).await.is_err());
}

#[tokio::test]
async fn watches() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(&in_directory(&directory).await.unwrap()).await;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let nobody = registry::Revision(0);
    // A service that does not exist yet.
    let watching = tokio::spawn({
        let registry = registry.clone();
        async move { registry.watch(&service(5), nobody, deadline).await.unwrap() }
    });
    while registry.status().watchers == 0 {
        tokio::task::yield_now().await;
    }
    registry.register(vec![registration(4, "another service")]).await.pop().unwrap().unwrap();
    let written = registry.register(vec![registration(5, "a")]).await.pop().unwrap().unwrap();
    assert_eq!(watching.await.unwrap(), written.revision, "another service's change wakes nobody");
    assert_eq!(registry.revision_of(&service(5)), written.revision);
    // A past revision is answered at once; a future one, at the deadline.
    assert_eq!(registry.watch(&service(5), nobody, deadline).await.unwrap(), written.revision);
    let soon = tokio::time::Instant::now();
    assert_eq!(registry.watch(&service(5), written.revision, soon).await.unwrap(), written.revision);
    assert_eq!(registry.watch_all(registry.revision(), soon).await.unwrap(), registry.revision());
    assert_eq!(registry.status().watchers, 0);
    // The removal of the service is a change, too.
    let gone = registry.deregister(&[id(5)]).await.pop().unwrap().unwrap();
    assert_eq!(registry.revision_of(&service(5)), gone.revision);
    assert!(registry.snapshot(&service(5)).is_none());
    let changes = registry.changes(&service(5), nobody).unwrap();
    assert_eq!(changes.len(), 2, "{changes:?}");
}

#[tokio::test]
async fn finds_by_metadata() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(&in_directory(&directory).await.unwrap()).await;
    registry.register((0..30).map(|n| registration(n, if n % 3 == 0 { "x" } else { "y" })).collect()).await;
    let default = registry::NamespaceName::default();
    assert_eq!(registry.find(&default, &[("what", "x")], 100).instances.len(), 10);
    assert_eq!(registry.find(&default, &[("what", "x"), ("n", "6")], 100).instances[0].id, id(6));
    assert!(registry.find(&default, &[("what", "x"), ("n", "7")], 100).instances.is_empty());
    let few = registry.find(&default, &[("what", "y")], 5);
    assert_eq!((few.instances.len(), few.truncated), (5, true));
}

#[tokio::test]
async fn stopping_answers_everybody() {
    let directory = tempfile::tempdir().unwrap();
    let registry = open(&in_directory(&directory).await.unwrap()).await;
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..50 {
        let registry = registry.clone();
        calls.spawn(async move { (n, registry.register(vec![registration(n, "a")]).await.pop().unwrap()) });
    }
    let watching = tokio::spawn({
        let registry = registry.clone();
        async move { registry.watch_all(registry::Revision(u64::MAX), tokio::time::Instant::now() + PATIENCE).await }
    });
    tokio::task::yield_now().await;
    registry.shutdown().await;
    let mut answered = Vec::new();
    while let Some(call) = calls.join_next().await {
        if let (n, Ok(_)) = call.unwrap() {
            answered.push(n);
        }
    }
    assert!(watching.await.unwrap().is_err());
    let after = open(&in_directory(&directory).await.unwrap()).await;
    for n in answered {
        assert!(after.instance(&id(n)).is_some(), "{n} was answered");
    }
}
