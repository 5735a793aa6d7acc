//! Tokens and policies: rows of the key-value store that no key-value front can reach, in a reserved namespace of keys for each scope
//! ([`NamespaceName::of_acl`]). A scope is a namespace, or `*` for all of them.
//!
//! Changes to a scope are serialised across all nodes. Every node has all rows in memory, like the keys, so a request costs no access to the store.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::model::{Entry, Operation};
use crate::error::WriteError;
use crate::model::NamespaceName;
use crate::registry::Registry;
use crate::settings::AclLimits;

impl Registry {
    /// Returns the limits on tokens and policies.
    pub(crate) fn acl_limits(&self) -> &AclLimits {
        &self.inner().settings.acl
    }

    /// Returns a number that differs after each change of the tokens and policies on this node.
    pub(crate) fn acl_changes(&self) -> u64 {
        let Some(kv) = self.inner().kv.as_ref() else { return 0 };
        // A user of tokens receives changes by other nodes as soon as a user of keys.
        kv.use_now();
        kv.acl_changes.load(Ordering::Acquire)
    }

    /// Returns the rows of all scopes on this node.
    pub(crate) fn acl_rows(&self) -> Vec<Arc<Entry>> {
        let Some(kv) = self.inner().kv.as_ref() else { return Vec::new() };
        let state = kv.state();
        let spaces = state.spaces().filter(|(name, _)| name.is_of_acl());
        spaces.flat_map(|(_, space)| space.tree("").cloned()).collect()
    }

    /// Changes the tokens and policies of `scope`: `decide` gets all rows and returns the operations; it is called again if another write came in
    /// between. Returns the second value of `decide`, after the commit.
    ///
    /// # Errors
    /// Any error of `decide` or of a write.
    pub(crate) async fn change_acl<T, E: From<WriteError>>(
        &self,
        scope: &str,
        decide: impl FnMut(&[Arc<Entry>]) -> Result<(Vec<Operation>, T), E>,
    ) -> Result<T, E> {
        self.change_counted(&NamespaceName::of_acl(scope), &format!("the tokens and policies of {scope}"), decide).await
    }
}
