//! Namespaces of keys that are the registry's own: rules and events are there. How they are changed.

use std::sync::Arc;

use super::model::{Ask, Entry, Operation, Refusal};
use crate::error::WriteError;
use crate::model::NamespaceName;
use crate::registry::Registry;

/// So often a write is decided again before it is given up. On one node writes of a namespace wait for each other, so each time another
/// node was faster.
const ATTEMPTS: u32 = 32;

impl Registry {
    /// Changes what is in `space`, a namespace of the registry's own that errors call `what`: `decide` says what is to be done, given all
    /// that there is, and is asked again where another write came in between. One of the operations has to be refused then. What `decide` said
    /// beside that, once it is committed.
    ///
    /// # Errors
    /// What `decide` says; as of any write.
    pub(super) async fn change_own<T, E: From<WriteError>>(
        &self,
        space: &NamespaceName,
        what: &str,
        mut decide: impl FnMut(&[Arc<Entry>]) -> Result<(Vec<Operation>, T), E>,
    ) -> Result<T, E> {
        let kv = self.kv()?;
        // The last digit of the digest of whose it is.
        let shard = space.as_str().bytes().next_back().map_or(0, usize::from) % kv.changing.len();
        let _one_at_a_time = kv.changing[shard].lock().await;
        // What any node has committed before is here.
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
                    // A refusal is decided from what the store has, so that is here now.
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
