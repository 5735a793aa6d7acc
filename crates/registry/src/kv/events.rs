//! Events: messages from one client of a namespace to all others. The last [`KEPT`] of a namespace are kept.
//!
//! Events are rows of the key-value store, in a reserved namespace of keys ([`NamespaceName::of_events`]), so every node of the store receives them
//! through the feed that it follows anyway, and they wake no watcher of keys. Event number n is the row
//!
//! ```text
//!  event/NNN     NNN = n modulo KEPT, three digits     flags = n     value: the front's encoding
//! ```
//!
//! so a new event replaces the oldest one: there are never more rows, and none to delete. A node that fires an event writes the row of the number
//! after the highest, if that row is unchanged; if two nodes choose the same number, one of them chooses again. So numbers rise by one in commit
//! order, and no event overwrites another one of its number.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::Subject;
use super::model::{Entry, Operation, Verb};
use crate::error::{WatchError, WriteError};
use crate::model::{NamespaceName, Revision};
use crate::registry::Registry;

/// Number of events kept for each namespace, as many as Consul's agents keep.
pub(crate) const KEPT: u64 = 256;
const EVENT: &str = "event/";

fn key(number: u64) -> String {
    format!("{EVENT}{:03}", number % KEPT)
}

impl Registry {
    /// Returns the events of `namespace` that this node has, oldest first, each with its number in `flags`; and their revision.
    ///
    /// # Errors
    /// The store holds no keys.
    pub(crate) fn events(&self, namespace: &NamespaceName) -> Result<(Revision, Vec<Arc<Entry>>), WriteError> {
        let (revision, mut events) = self.kv_tree(&NamespaceName::of_events(namespace), EVENT)?;
        events.sort_unstable_by_key(|event| event.flags);
        Ok((revision, events))
    }

    /// Waits until `namespace` has an event later than `seen`, or until `deadline`.
    ///
    /// # Errors
    /// The registry stops; too many calls wait.
    pub(crate) async fn event_after(
        &self,
        namespace: &NamespaceName,
        seen: Revision,
        deadline: Instant,
    ) -> Result<(), WatchError> {
        self.kv_wait(&NamespaceName::of_events(namespace), Subject::Tree(EVENT.into()), seen, deadline).await
    }

    /// Sends `value` to all clients of `namespace`. Returns the event's number.
    ///
    /// # Errors
    /// The same as for any write.
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
