//! Policies: rules in Consul's language.

use super::hcl::{self, Item, Value};
use super::{Access, Kind};

/// Policies that always exist.
pub(crate) mod builtin {
    use super::{Access, Kind};

    /// Returns rules that give one access to everything: those of `global-management` (write) and of `builtin/global-read-only` (read).
    pub(crate) fn everything(access: Access) -> String {
        let level = access.name();
        let unnamed = Kind::UNNAMED.iter().map(|kind| format!("{} = \"{level}\"\n", kind.name()));
        let named = Kind::NAMED.iter().map(|kind| format!("{}_prefix \"\" {{ policy = \"{level}\" }}\n", kind.name()));
        unnamed.chain(named).collect()
    }

    /// Returns the rules of a service's own token: it registers the service, and discovers all others.
    pub(crate) fn of_service(name: &str) -> String {
        format!(
            "service \"{name}\" {{ policy = \"write\" }}\nservice \"{name}-sidecar-proxy\" {{ policy = \"write\" }}\n\
             service_prefix \"\" {{ policy = \"read\" }}\nnode_prefix \"\" {{ policy = \"read\" }}\n"
        )
    }

    /// Returns the rules of a node's own token: it registers the node, and discovers all services.
    pub(crate) fn of_node(name: &str) -> String {
        format!("node \"{name}\" {{ policy = \"write\" }}\nservice_prefix \"\" {{ policy = \"read\" }}\n")
    }
}

/// Access that a rule gives. Of two rules for one name, the greater one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Read,
    List,
    Write,
    Deny,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) kind: Kind,
    /// The name, and true if it is a prefix; `None` for a kind without names.
    pub(super) name: Option<(Box<str>, bool)>,
    pub(super) level: Level,
}

/// A policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(super) rules: Vec<Rule>,
}

/// An error in the rules of a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A text that is neither HCL nor JSON.
    #[error("Failed to parse ACL rules: line {line}: {reason}")]
    Syntax {
        /// The line, from 1.
        line: usize,
        /// The found and the expected text.
        reason: String,
    },
    /// A rule that is not known here.
    #[error("Failed to parse ACL rules: {0}")]
    Rule(String),
    /// A level that the rule does not have.
    #[error("Invalid {rule} policy: found {found:?}, expected {expected}")]
    Level {
        /// The key of the rule.
        rule: String,
        /// The level.
        found: String,
        /// The known levels.
        expected: &'static str,
    },
}

impl Level {
    pub(super) fn allows(self, access: Access) -> bool {
        match self {
            Level::Write => true,
            Level::List => access != Access::Write,
            Level::Read => access == Access::Read,
            Level::Deny => false,
        }
    }

    fn parse(rule: &str, kind: Kind, text: &str) -> Result<Level, PolicyError> {
        let lists = kind == Kind::Key;
        match text.to_ascii_lowercase().as_str() {
            "read" => Ok(Level::Read),
            "write" => Ok(Level::Write),
            "deny" => Ok(Level::Deny),
            "list" if lists => Ok(Level::List),
            _ => Err(PolicyError::Level {
                rule: rule.to_owned(),
                found: text.to_owned(),
                expected: if lists { "read, list, write or deny" } else { "read, write or deny" },
            }),
        }
    }
}

impl Policy {
    /// Parses rules in HCL or JSON.
    ///
    /// # Errors
    /// The text is not well-formed, or has a rule or a level that is not known: a part that is not carried out is never dropped.
    pub(crate) fn parse(text: &str) -> Result<Policy, PolicyError> {
        let items = hcl::parse(text).map_err(|(line, reason)| PolicyError::Syntax { line, reason })?;
        let mut policy = Policy::default();
        for item in &items {
            policy.take(item)?;
        }
        Ok(policy)
    }

    fn take(&mut self, item: &Item) -> Result<(), PolicyError> {
        let [key, labels @ ..] = item.keys.as_slice() else { return Ok(()) };
        let key = key.to_ascii_lowercase();
        if let Some(kind) = Kind::UNNAMED.into_iter().find(|kind| kind.name() == key) {
            let Value::Text(text) = &item.value else {
                return Err(PolicyError::Rule(format!("{key}: expected a text")));
            };
            if !text.is_empty() {
                let level = Level::parse(&key, kind, text)?;
                self.rules.push(Rule { kind, name: None, level });
            }
            return Ok(());
        }
        let (word, is_prefix) = match key.strip_suffix("_prefix") {
            Some(word) => (word, true),
            None => (key.as_str(), false),
        };
        // Consul reads such rules, and takes no notice of them.
        if word == "identity" {
            return Ok(());
        }
        let kind = Kind::NAMED.into_iter().find(|kind| kind.name() == word).ok_or_else(|| {
            let known = Kind::NAMED.map(|kind| format!("{0}, {0}_prefix", kind.name())).join(", ");
            let whole = Kind::UNNAMED.map(Kind::name).join(", ");
            PolicyError::Rule(format!("the rule {key:?} is not known; expected one of {known}, {whole}"))
        })?;
        self.named(&key, kind, is_prefix, labels, &item.value)
    }

    /// Takes the rules of a block: with its label, or with blocks inside whose keys are the labels.
    fn named(
        &mut self,
        key: &str,
        kind: Kind,
        is_prefix: bool,
        labels: &[String],
        value: &Value,
    ) -> Result<(), PolicyError> {
        match (labels, value) {
            (_, Value::List(values)) => {
                values.iter().try_for_each(|value| self.named(key, kind, is_prefix, labels, value))
            }
            ([], Value::Object(items)) => {
                items.iter().try_for_each(|item| self.named(key, kind, is_prefix, &item.keys, &item.value))
            }
            ([name], Value::Object(items)) => {
                let level = attributes(key, kind, items)?;
                self.rules.push(Rule { kind, name: Some((name.as_str().into(), is_prefix)), level });
                Ok(())
            }
            _ => Err(PolicyError::Rule(format!("{key}: expected {key} \"NAME\" {{ policy = \"…\" }}"))),
        }
    }
}

/// Reads the attributes of a rule.
fn attributes(key: &str, kind: Kind, items: &[Item]) -> Result<Level, PolicyError> {
    let mut level = None;
    for item in items {
        let name = item.keys.join(" ").to_ascii_lowercase();
        match (name.as_str(), &item.value) {
            ("policy", Value::Text(text)) => level = Some(Level::parse(key, kind, text)?),
            // There is no mesh here, so nobody asks for intentions.
            ("intentions", Value::Text(text)) if kind == Kind::Service => {
                if !text.is_empty() {
                    Level::parse("intentions", kind, text)?;
                }
            }
            _ => {
                return Err(PolicyError::Rule(format!("{key}: found {name:?}, expected policy = \"…\"")));
            }
        }
    }
    level.ok_or_else(|| PolicyError::Level { rule: key.to_owned(), found: String::new(), expected: "policy = \"…\"" })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn nothing_is_dropped() {
        for (text, error) in [
            ("servce \"a\" { policy = \"read\" }", "\"servce\" is not known"),
            ("service \"a\" { polcy = \"read\" }", "found \"polcy\""),
            ("service \"a\" { policy = \"list\" }", "read, write or deny"),
            ("service \"a\" {}", "found \"\""),
            ("key \"a\" { policy = \"read\" sentinel { code = \"x\" } }", "found \"sentinel\""),
            ("namespace \"a\" { acl = \"read\" }", "\"namespace\" is not known"),
            ("acl = \"list\"", "Invalid acl policy"),
            ("acl \"x\" { policy = \"read\" }", "acl: expected a text"),
            ("service \"a\" \"b\" { policy = \"read\" }", "expected service \"NAME\""),
            ("{\"service\": {\"a\": {\"policy\": 1}}}", "found \"policy\""),
        ] {
            let found = Policy::parse(text).unwrap_err().to_string();
            assert!(found.contains(error), "{text}: {found}");
        }
    }

    #[test]
    fn the_own_policies_are_policies() {
        for text in [
            builtin::everything(Access::Write),
            builtin::everything(Access::Read),
            builtin::of_service("web"),
            builtin::of_node("n1"),
        ] {
            assert!(!Policy::parse(&text).unwrap().rules.is_empty());
        }
        assert_eq!(Policy::parse("").unwrap(), Policy::default());
    }
}
