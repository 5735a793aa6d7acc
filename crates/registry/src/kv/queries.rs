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

    /// Waits until the index of the rows below `prefix` is above `after`, or until `deadline`.
    ///
    /// # Errors
    /// The registry stops; too many calls wait.
    pub(crate) async fn query_wait(
        &self,
        namespace: &NamespaceName,
        prefix: &str,
        after: Revision,
        deadline: Instant,
    ) -> Result<(), WatchError> {
        self.kv_wait(&NamespaceName::of_queries(namespace), Subject::Tree(prefix.into()), after, deadline).await
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
