//! Events: what one client of a namespace tells all others, in passing. The last [`KEPT`] of a namespace are kept.
//!
//! They are rows of the key-value store, in a namespace of keys of their own ([`NamespaceName::of_events`]), so every node of the store sees
//! them by the feed that it follows anyway, and they wake nobody who waits for keys. Event number n is the row
//!
//! ```text
//!  event/NNN     NNN = n modulo KEPT, three digits     flags = n     value: what the front keeps
//! ```
//!
//! so a new event takes the place of the oldest one: there are never more rows, and none to be deleted. Who fires writes the row of the number after
//! the highest, if that row is still as it was; of two nodes that choose one number, one chooses again. So numbers rise by one in the order of
//! commits, and no event is written over by another of its number.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::Subject;
use super::model::{Entry, Operation, Verb};
use crate::error::{WatchError, WriteError};
use crate::model::{NamespaceName, Revision};
use crate::registry::Registry;

/// Events of a namespace that are kept, as Consul's agents do.
pub(crate) const KEPT: u64 = 256;
const EVENT: &str = "event/";

fn key(number: u64) -> String {
    format!("{EVENT}{:03}", number % KEPT)
}

impl Registry {
    /// The events of `namespace` that this node has, oldest first, each with its number in `flags`; and as of when.
    ///
    /// # Errors
    /// The store holds no keys.
    pub(crate) fn events(&self, namespace: &NamespaceName) -> Result<(Revision, Vec<Arc<Entry>>), WriteError> {
        let (revision, mut events) = self.kv_tree(&NamespaceName::of_events(namespace), EVENT)?;
        events.sort_unstable_by_key(|event| event.flags);
        Ok((revision, events))
    }

    /// Waits until `namespace` has another event than as of `seen`, or `deadline`.
    ///
    /// # Errors
    /// The registry stops; too many wait.
    pub(crate) async fn event_after(
        &self,
        namespace: &NamespaceName,
        seen: Revision,
        deadline: Instant,
    ) -> Result<(), WatchError> {
        self.kv_wait(&NamespaceName::of_events(namespace), Subject::Tree(EVENT.into()), seen, deadline).await
    }

    /// Tells all clients of `namespace` of `value`. The event's number.
    ///
    /// # Errors
    /// As of any write.
    pub(crate) async fn fire(&self, namespace: &NamespaceName, value: &Bytes) -> Result<u64, WriteError> {
        let space = NamespaceName::of_events(namespace);
        self.change_own(&space, &format!("the events of {namespace}"), |entries| {
            let number = entries.iter().map(|event| event.flags).max().unwrap_or(0) + 1;
            let key = key(number);
            let before = entries.iter().find(|event| *event.key == *key).map_or(Revision(0), |event| event.modified);
            let verb = Verb::SetIf(value.clone(), number, before);
            Ok((vec![Operation { key: key.into(), verb }], number))
        })
        .await
    }
}
