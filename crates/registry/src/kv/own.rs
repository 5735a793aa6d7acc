//! Changes to the reserved namespaces of keys, which hold rules and events.

use std::sync::Arc;

use super::model::{Ask, Entry, Operation, Refusal};
use crate::error::WriteError;
use crate::model::NamespaceName;
use crate::registry::Registry;

/// Attempts before a write is given up. On one node, writes to a namespace wait for each other, so each failed attempt means that another node was
/// faster.
const ATTEMPTS: u32 = 32;

impl Registry {
    /// Changes the contents of `space`, a reserved namespace that errors call `what`. `decide` gets all entries and returns the operations; it is
    /// called again if another write came in between, so at least one of the operations must be conditional. Returns the second value of `decide`,
    /// after the commit.
    ///
    /// # Errors
    /// Any error of `decide` or of a write.
    pub(super) async fn change_own<T, E: From<WriteError>>(
        &self,
        space: &NamespaceName,
        what: &str,
        mut decide: impl FnMut(&[Arc<Entry>]) -> Result<(Vec<Operation>, T), E>,
    ) -> Result<T, E> {
        let kv = self.kv()?;
        // Keyed by the last digit of the owner's digest.
        let shard = space.as_str().bytes().next_back().map_or(0, usize::from) % kv.changing.len();
        let _one_at_a_time = kv.changing[shard].lock().await;
        // After this, the state has everything that any node committed before.
        self.kv_settle().await?;
        for _ in 0..ATTEMPTS {
            let entries: Vec<Arc<Entry>> =
                kv.state().space(space).into_iter().flat_map(|space| space.tree("").cloned()).collect();
            let (operations, told) = decide(&entries)?;
            if operations.is_empty() {
                return Ok(told);
            }
            match kv.ask(Ask::Operations(space.clone(), operations)).await? {
                Ok(_) => return Ok(told),
                Err(refused) => match refused.into_iter().next() {
                    // A refusal is decided on the store's rows, so the state has them now.
                    Some((_, refusal)) if refusal.is_lost_race() => {}
                    Some((_, Refusal::Full { what, found, limit })) => {
                        return Err(WriteError::Full { what, found, limit }.into());
                    }
                    refused => {
                        let text = refused.map_or_else(String::new, |(_, refusal)| refusal.to_string());
                        return Err(WriteError::Unavailable { reason: text.into() }.into());
                    }
                },
            }
        }
        Err(WriteError::Contended { what: what.into(), attempts: ATTEMPTS }.into())
    }
}
