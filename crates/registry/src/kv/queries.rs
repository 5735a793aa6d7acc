//! Consul's prepared queries: rows of the key-value store that no key-value front can reach, in a reserved namespace of keys
//! ([`NamespaceName::of_queries`]). Changes to a namespace's queries are serialised across all nodes.

use std::sync::Arc;

use tokio::time::Instant;

use super::Subject;
use super::model::{Entry, Operation};
use crate::error::{WatchError, WriteError};
use crate::model::{NamespaceName, Revision};
use crate::registry::Registry;

impl Registry {
    /// Returns the row of a key.
    pub(crate) fn query_row(&self, namespace: &NamespaceName, key: &str) -> Option<Arc<Entry>> {
        self.kv_get(&NamespaceName::of_queries(namespace), key).ok()?.1
    }

    /// Returns the rows whose keys begin with `prefix`, and their index.
    ///
    /// # Errors
    /// The store holds no keys.
    pub(crate) fn query_rows(
        &self,
        namespace: &NamespaceName,
        prefix: &str,
    ) -> Result<(Revision, Vec<Arc<Entry>>), WriteError> {
        self.kv_tree(&NamespaceName::of_queries(namespace), prefix)
    }

    /// Waits until the index of the rows below `prefix` is above `after`, one of `sessions` has ended, or until `deadline`.
    ///
    /// # Errors
    /// The registry stops; too many calls wait.
    pub(crate) async fn query_wait(
        &self,
        namespace: &NamespaceName,
        prefix: &str,
        after: Revision,
        sessions: &[&str],
        deadline: Instant,
    ) -> Result<(), WatchError> {
        let (space, rows) = (NamespaceName::of_queries(namespace), Subject::Tree(prefix.into()));
        let Some(kv) = self.inner().kv.as_ref().filter(|_| !sessions.is_empty()) else {
            return self.kv_wait(&space, rows, after, deadline).await;
        };
        let has_changed =
            || kv.index(&space, &rows) > after || sessions.iter().any(|id| !self.knows_session(namespace, id));
        tokio::select! {
            woken = self.kv_wait_until(&space, rows.clone(), has_changed, deadline) => woken,
            woken = self.kv_wait_until(namespace, Subject::Sessions, has_changed, deadline) => woken,
        }
    }

    /// Returns the revision at which a session ended; `None` while it lives. Of a session that this node has forgotten, the revision is that of the
    /// last change of any session of the namespace: it is never lower than the session's own.
    pub(crate) fn session_end_revision(&self, namespace: &NamespaceName, id: &str) -> Option<Revision> {
        let kv = self.inner().kv.as_ref()?;
        let state = kv.state();
        let Some(space) = state.space(namespace) else { return Some(Revision(0)) };
        space.session(id).is_none().then(|| space.session_end(id))
    }

    /// True if the session exists, as far as this node knows.
    pub(crate) fn knows_session(&self, namespace: &NamespaceName, id: &str) -> bool {
        let Some(kv) = self.inner().kv.as_ref() else { return false };
        kv.state().space(namespace).is_some_and(|space| space.session(id).is_some())
    }

    /// Changes the queries of `namespace`: `decide` gets all rows and returns the operations; it is called again if another write came in between.
    /// Returns the second value of `decide`, after the commit.
    ///
    /// # Errors
    /// Any error of `decide` or of a write.
    pub(crate) async fn change_queries<T, E: From<WriteError>>(
        &self,
        namespace: &NamespaceName,
        decide: impl FnMut(&[Arc<Entry>]) -> Result<(Vec<Operation>, T), E>,
    ) -> Result<T, E> {
        let what = format!("the prepared queries of {namespace}");
        self.change_counted(&NamespaceName::of_queries(namespace), &what, decide).await
    }
}
