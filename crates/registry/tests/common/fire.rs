//! Many writers on several nodes, readers that lag, connections that die: no change missed, none out of order, and all nodes
//! equal in the end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use registry::store::{Batch, BoxFuture, Committed, NodeId, NodeRow, Roll, Sink};
use registry::{Registry, Revision, Store, StoreError, WriteError};

use super::*;

const WRITERS: usize = 8;
const INSTANCES: usize = 12;

/// A store whose reads arrive late, as from a replica that lags.
struct Lagging(Arc<dyn Store>);

impl Store for Lagging {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn commit(&self, batch: Arc<Batch>) -> BoxFuture<'_, Result<Committed, StoreError>> {
        self.0.commit(batch)
    }
    fn resolve(&self, number: u64) -> BoxFuture<'_, Result<Option<Revision>, StoreError>> {
        self.0.resolve(number)
    }
    fn read<'a>(&'a self, sink: &'a mut dyn Sink) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.0.read(sink).await?;
            tokio::time::sleep(Duration::from_millis(60)).await;
            Ok(())
        })
    }
    fn collect(&self, up_to: Revision, before: i64, limit: usize) -> BoxFuture<'_, Result<usize, StoreError>> {
        self.0.collect(up_to, before, limit)
    }
    fn attend<'a>(&'a self, own: Option<&'a NodeRow>, gone: &'a [NodeId]) -> BoxFuture<'a, Result<Roll, StoreError>> {
        self.0.attend(own, gone)
    }
    fn changed(&self, seen: Revision) -> BoxFuture<'_, ()> {
        self.0.changed(seen)
    }
}

/// `rounds` of changes by each writer; `disturb` runs meanwhile.
pub(crate) async fn under_fire<F: Future<Output = Result<Arc<dyn Store>, StoreError>>>(
    again: impl Fn() -> F,
    rounds: usize,
    disturb: impl Future<Output = ()>,
) {
    let nodes = [open(&again().await.unwrap()).await, open(&again().await.unwrap()).await];
    let lagging: Arc<dyn Store> = Arc::new(Lagging(again().await.unwrap()));
    let reader = open(&lagging).await;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(write(nodes[writer % nodes.len()].clone(), writer, rounds));
    }
    let (done, watched) = (tokio::sync::watch::Sender::new(false), reader.clone());
    let mut finished = done.subscribe();
    let watching = tokio::spawn(async move {
        let (mut at, mut rounds) = (Revision(0), HashMap::new());
        while !*finished.borrow_and_update() {
            let soon = tokio::time::Instant::now() + Duration::from_millis(200);
            let now = watched.watch_all(at, soon).await.unwrap();
            assert!(now >= at, "revisions only rise");
            at = now;
            for service in watched.services(None) {
                for instance in &service.instances {
                    let round: usize = instance.metadata.get("what").unwrap().parse().unwrap();
                    let before = rounds.insert(instance.id.clone(), round).unwrap_or(0);
                    assert!(round >= before, "{} went from round {before} back to {round}", instance.id);
                    assert_eq!(instance.version.as_ref(), instance.metadata.get("what").unwrap(), "half of a change");
                }
            }
        }
    });
    let mut expected: HashMap<usize, Option<String>> = HashMap::new();
    let mut last = Revision(0);
    tokio::pin!(disturb);
    let mut disturbed = false;
    loop {
        tokio::select! {
            () = &mut disturb, if !disturbed => disturbed = true,
            finished = writers.join_next() => match finished {
                Some(finished) => {
                    let (states, revision) = finished.unwrap();
                    expected.extend(states);
                    last = last.max(revision);
                }
                None => break,
            }
        }
    }
    let fresh = open(&again().await.unwrap()).await;
    for node in nodes.iter().chain([&reader]) {
        reached(node, last).await;
        assert_eq!(digests(node), digests(&fresh));
    }
    for (n, what) in expected {
        let found = fresh.instance(&id(n)).map(|instance| instance.metadata.get("what").unwrap().to_owned());
        assert_eq!(found, what, "instance {n}: what was answered for last");
    }
    done.send_replace(true);
    watching.await.unwrap();
    for node in nodes.iter().chain([&reader, &fresh]) {
        node.shutdown().await;
    }
}

/// Changes instances of its own, each round all of them; returns what each must be in the end.
async fn write(node: Registry, writer: usize, rounds: usize) -> (HashMap<usize, Option<String>>, Revision) {
    let mut states = HashMap::new();
    let mut last = Revision(0);
    for round in 1..=rounds {
        for n in 0..INSTANCES {
            let n = writer * INSTANCES + n;
            let removed = (round + n).is_multiple_of(5);
            loop {
                let answer = if removed {
                    node.deregister(&[id(n)]).await.pop().unwrap()
                } else {
                    let mut registration = registration(n, &round.to_string());
                    registration.version = round.to_string();
                    node.register(vec![registration]).await.pop().unwrap()
                };
                match answer {
                    Ok(written) => last = last.max(written.revision),
                    Err(WriteError::NotFound { .. }) if removed => {}
                    Err(WriteError::Unavailable { .. } | WriteError::Undetermined { .. }) => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        continue;
                    }
                    Err(error) => panic!("{error}"),
                }
                break;
            }
            states.insert(n, (!removed).then(|| round.to_string()));
        }
    }
    (states, last)
}
