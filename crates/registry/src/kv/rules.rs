//! Rules: rows of the key-value store that no key-value front can reach. Those of each namespace are in a reserved namespace of keys
//! ([`NamespaceName::of_rules`]), so they have their own index, wake no watcher of keys, and count apart.
//!
//! Changes to the rules of a namespace are serialised across all nodes: each write is conditional on a counter of writes, and is decided again if the
//! counter has moved.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::Kv;
use super::model::{Entry, Operation, Verb};
use crate::error::WriteError;
use crate::model::{NamespaceName, Revision};
use crate::registry::Registry;
use crate::settings::RuleLimits;

/// Prefix of the keys of rules.
const RULE: &str = "rule/";

/// The version of a namespace's rules as read: a different value if the rules may have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RulesMark {
    epoch: i64,
    /// Number of full reads by this node.
    replaced: u64,
    revision: Revision,
}

/// A change of one rule.
#[derive(Clone, Debug)]
pub(crate) enum RuleWrite {
    /// Sets the rule to these bytes, with a number in `flags`.
    Put(String, Bytes, u64),
    /// Deletes the rule.
    Delete(String),
}

impl Kv {
    fn rules_mark(&self, space: &NamespaceName) -> RulesMark {
        let state = self.state();
        let revision = state.space(space).map_or(Revision(0), |space| space.tree_index(""));
        RulesMark { epoch: state.epoch, replaced: self.replaced.load(Ordering::Relaxed), revision }
    }
}

/// Returns the name of a rule, if the key is that of one.
pub(crate) fn rule_name(entry: &Entry) -> Option<&str> {
    entry.key.strip_prefix(RULE)
}

impl Registry {
    /// Returns the limits on rules.
    pub(crate) fn rule_limits(&self) -> &RuleLimits {
        &self.inner().settings.rules
    }

    /// Returns the version of the rules of `namespace` on this node; `None` if none was ever written. The cost does not depend on the number of
    /// rules.
    pub(crate) fn rules_mark(&self, namespace: &NamespaceName) -> Option<RulesMark> {
        let kv = self.inner().kv.as_ref()?;
        let mark = kv.rules_mark(&NamespaceName::of_rules(namespace));
        if mark.revision == Revision(0) {
            return None;
        }
        // A user of rules receives changes by other nodes as soon as a user of keys.
        kv.use_now();
        Some(mark)
    }

    /// Returns the rules of `namespace` on this node and their version, read together.
    pub(crate) fn rules(&self, namespace: &NamespaceName) -> (RulesMark, Vec<Arc<Entry>>) {
        let Some(kv) = self.inner().kv.as_ref() else { return Default::default() };
        let space = NamespaceName::of_rules(namespace);
        let state = kv.state();
        let replaced = kv.replaced.load(Ordering::Relaxed);
        let Some(space) = state.space(&space) else { return Default::default() };
        let mark = RulesMark { epoch: state.epoch, replaced, revision: space.tree_index("") };
        (mark, space.tree(RULE).cloned().collect())
    }

    /// Returns the rules of all namespaces on this node, one list for each namespace.
    pub(crate) fn all_rules(&self) -> Vec<Vec<Arc<Entry>>> {
        let Some(kv) = self.inner().kv.as_ref() else { return Vec::new() };
        let state = kv.state();
        let of_rules = state.spaces().filter(|(name, _)| name.rules_digest().is_some());
        of_rules.map(|(_, space)| space.tree(RULE).cloned().collect()).collect()
    }

    /// Returns the rules called `name` in all namespaces whose digest begins with `digest`.
    pub(crate) fn rules_called(&self, digest: &str, name: &str) -> Vec<Arc<Entry>> {
        let Some(kv) = self.inner().kv.as_ref() else { return Vec::new() };
        let key = format!("{RULE}{name}");
        let state = kv.state();
        let fits = |name: &NamespaceName| name.rules_digest().is_some_and(|of| of.starts_with(digest));
        state.spaces().filter(|(name, _)| fits(name)).filter_map(|(_, space)| space.entry(&key).cloned()).collect()
    }

    /// Changes the rules of `namespace`: `decide` gets all rules and returns the changes; it is called again if another write came in between.
    /// Returns the second value of `decide`, after the commit.
    ///
    /// # Errors
    /// Any error of `decide` or of a write.
    pub(crate) async fn change_rules<T, E: From<WriteError>>(
        &self,
        namespace: &NamespaceName,
        mut decide: impl FnMut(&[Arc<Entry>]) -> Result<(Vec<RuleWrite>, T), E>,
    ) -> Result<T, E> {
        let space = NamespaceName::of_rules(namespace);
        self.change_counted(&space, &format!("the rules of {namespace}"), |entries| {
            let known: Vec<Arc<Entry>> =
                entries.iter().filter(|entry| rule_name(entry).is_some()).map(Arc::clone).collect();
            let (rules, told) = decide(&known)?;
            let rules = rules.into_iter().map(|rule| match rule {
                RuleWrite::Put(name, value, number) => {
                    Operation { key: format!("{RULE}{name}").into(), verb: Verb::Set(value, number) }
                }
                RuleWrite::Delete(name) => Operation { key: format!("{RULE}{name}").into(), verb: Verb::Delete },
            });
            Ok((rules.collect(), told))
        })
        .await
    }
}
