//! Changes to the reserved namespaces of keys, which hold rules, events, tokens and policies, and prepared queries.

use std::sync::Arc;

use super::model::{Ask, Entry, Operation, Refusal, Verb};
use crate::error::WriteError;
use crate::model::{NamespaceName, Revision};
use crate::registry::Registry;

/// Attempts before a write is given up. On one node, writes to a namespace wait for each other, so each failed attempt means that another node was
/// faster.
const ATTEMPTS: u32 = 32;

/// The key of the counter of writes to a space whose writes are serialised.
const WRITES: &str = "writes";

impl Registry {
    /// Changes the contents of `space` like [`Registry::change_own`]; the counter of writes, which is not among the entries, makes the change
    /// conditional.
    ///
    /// # Errors
    /// Any error of `decide` or of a write.
    pub(super) async fn change_counted<T, E: From<WriteError>>(
        &self,
        space: &NamespaceName,
        what: &str,
        mut decide: impl FnMut(&[Arc<Entry>]) -> Result<(Vec<Operation>, T), E>,
    ) -> Result<T, E> {
        self.change_own(space, what, |entries| {
            let counted = counted(entries.iter().find(|entry| &*entry.key == WRITES).map(|entry| &**entry));
            let known: Vec<Arc<Entry>> = entries.iter().filter(|entry| &*entry.key != WRITES).map(Arc::clone).collect();
            let (operations, told) = decide(&known)?;
            if operations.is_empty() {
                return Ok((operations, told));
            }
            Ok((std::iter::once(counted).chain(operations).collect(), told))
        })
        .await
    }

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

/// Makes the operation that increments the counter, if no write has incremented it since.
fn counted(writes: Option<&Entry>) -> Operation {
    let (count, revision) = writes.map_or((0, Revision(0)), |entry| {
        let digits = std::str::from_utf8(&entry.value).unwrap_or_default();
        (digits.parse::<u64>().unwrap_or(0), entry.modified)
    });
    let value = count.wrapping_add(1).to_string();
    Operation { key: WRITES.into(), verb: Verb::SetIf(value.into(), 0, revision) }
}
