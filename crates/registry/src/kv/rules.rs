//! Rules: rows of the key-value store that no key-value front reaches. Each namespace's are in a namespace of keys of their own
//! ([`NamespaceName::of_rules`]), so they have their own index, wake nobody who waits for keys, and count apart.
//!
//! All that is done to the rules of a namespace is done one after the other, over all nodes: each write says of which count of writes it
//! thought, and is decided again where that has passed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::Kv;
use super::model::{Entry, Operation, Verb};
use crate::error::WriteError;
use crate::model::{NamespaceName, Revision};
use crate::registry::Registry;
use crate::settings::RuleLimits;

/// The key of the count of writes; the keys of rules begin with [`RULE`].
const WRITES: &str = "writes";
const RULE: &str = "rule/";

/// As of when a namespace's rules were read: another value where they may be others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RulesMark {
    epoch: i64,
    /// How often this node has read everything anew.
    replaced: u64,
    revision: Revision,
}

/// What is to become of a rule.
#[derive(Clone, Debug)]
pub(crate) enum RuleWrite {
    /// It is to be these bytes, with a number.
    Put(String, Bytes, u64),
    /// It is to go.
    Delete(String),
}

impl Kv {
    fn rules_mark(&self, space: &NamespaceName) -> RulesMark {
        let state = self.state();
        let revision = state.space(space).map_or(Revision(0), |space| space.tree_index(""));
        RulesMark { epoch: state.epoch, replaced: self.replaced.load(Ordering::Relaxed), revision }
    }
}

/// The name of a rule, if the key is one's.
pub(crate) fn rule_name(entry: &Entry) -> Option<&str> {
    entry.key.strip_prefix(RULE)
}

impl Registry {
    /// How much rules may be.
    pub(crate) fn rule_limits(&self) -> &RuleLimits {
        &self.inner().settings.rules
    }

    /// As of when the rules of `namespace` are that this node has; `None`: nobody has written any. Costs the same however many there are.
    pub(crate) fn rules_mark(&self, namespace: &NamespaceName) -> Option<RulesMark> {
        let kv = self.inner().kv.as_ref()?;
        let mark = kv.rules_mark(&NamespaceName::of_rules(namespace));
        if mark.revision == Revision(0) {
            return None;
        }
        // Whoever uses rules hears of changes by other nodes as soon as who uses keys.
        kv.use_now();
        Some(mark)
    }

    /// The rules of `namespace` that this node has, and as of when, read together.
    pub(crate) fn rules(&self, namespace: &NamespaceName) -> (RulesMark, Vec<Arc<Entry>>) {
        let Some(kv) = self.inner().kv.as_ref() else { return Default::default() };
        let space = NamespaceName::of_rules(namespace);
        let state = kv.state();
        let replaced = kv.replaced.load(Ordering::Relaxed);
        let Some(space) = state.space(&space) else { return Default::default() };
        let mark = RulesMark { epoch: state.epoch, replaced, revision: space.tree_index("") };
        (mark, space.tree(RULE).cloned().collect())
    }

    /// The rules of all namespaces that this node has, each namespace's apart.
    pub(crate) fn all_rules(&self) -> Vec<Vec<Arc<Entry>>> {
        let Some(kv) = self.inner().kv.as_ref() else { return Vec::new() };
        let state = kv.state();
        let of_rules = state.spaces().filter(|(name, _)| name.rules_digest().is_some());
        of_rules.map(|(_, space)| space.tree(RULE).cloned().collect()).collect()
    }

    /// The rules with this name, of the namespaces whose digest begins so.
    pub(crate) fn rules_called(&self, digest: &str, name: &str) -> Vec<Arc<Entry>> {
        let Some(kv) = self.inner().kv.as_ref() else { return Vec::new() };
        let key = format!("{RULE}{name}");
        let state = kv.state();
        let fits = |name: &NamespaceName| name.rules_digest().is_some_and(|of| of.starts_with(digest));
        state.spaces().filter(|(name, _)| fits(name)).filter_map(|(_, space)| space.entry(&key).cloned()).collect()
    }

    /// Changes the rules of `namespace`: `decide` says what is to be done, given all that there are, and is asked again where another
    /// write came in between. What it said beside that, once it is committed.
    ///
    /// # Errors
    /// What `decide` says; as of any write.
    pub(crate) async fn change_rules<T, E: From<WriteError>>(
        &self,
        namespace: &NamespaceName,
        mut decide: impl FnMut(&[Arc<Entry>]) -> Result<(Vec<RuleWrite>, T), E>,
    ) -> Result<T, E> {
        let space = NamespaceName::of_rules(namespace);
        self.change_own(&space, &format!("the rules of {namespace}"), |entries| {
            let writes = entries.iter().find(|entry| &*entry.key == WRITES);
            let counted = counted(writes.map(|entry| &**entry));
            let known: Vec<Arc<Entry>> =
                entries.iter().filter(|entry| rule_name(entry).is_some()).map(Arc::clone).collect();
            let (rules, told) = decide(&known)?;
            if rules.is_empty() {
                return Ok((Vec::new(), told));
            }
            let rules = rules.into_iter().map(|rule| match rule {
                RuleWrite::Put(name, value, number) => {
                    Operation { key: format!("{RULE}{name}").into(), verb: Verb::Set(value, number) }
                }
                RuleWrite::Delete(name) => Operation { key: format!("{RULE}{name}").into(), verb: Verb::Delete },
            });
            Ok((std::iter::once(counted).chain(rules).collect(), told))
        })
        .await
    }
}

/// Counts a write, if none was counted since.
fn counted(writes: Option<&Entry>) -> Operation {
    let (count, revision) = writes.map_or((0, Revision(0)), |entry| {
        let digits = std::str::from_utf8(&entry.value).unwrap_or_default();
        (digits.parse::<u64>().unwrap_or(0), entry.modified)
    });
    let value = count.wrapping_add(1).to_string();
    Operation { key: WRITES.into(), verb: Verb::SetIf(value.into(), 0, revision) }
}
