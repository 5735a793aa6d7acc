//! Decisions by merged policies.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use super::policy::{Level, Policy};
use super::{Access, Kind, Resource};

/// Policies merged into one table of decisions.
#[derive(Debug, Default)]
pub(crate) struct Authorizer {
    named: HashMap<Kind, Names>,
    unnamed: HashMap<Kind, Level>,
}

/// Rules for the names of one kind.
#[derive(Debug, Default)]
struct Names {
    exact: BTreeMap<Box<str>, Level>,
    prefixes: BTreeMap<Box<str>, Level>,
    /// Lengths of the prefixes.
    lengths: BTreeSet<usize>,
}

fn merge<K: Ord>(map: &mut BTreeMap<K, Level>, name: K, level: Level) {
    map.entry(name).and_modify(|known| *known = (*known).max(level)).or_insert(level);
}

impl Names {
    /// Returns the level of the longest prefix of `name`.
    fn longest(&self, name: &str) -> Option<Level> {
        let mut lengths = self.lengths.range(..=name.len()).rev();
        lengths.find_map(|length| self.prefixes.get(name.get(..*length)?).copied())
    }

    fn level(&self, name: &str) -> Option<Level> {
        self.exact.get(name).copied().or_else(|| self.longest(name))
    }

    /// Iterates over the levels of all rules for names that begin with `prefix`.
    fn within<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = Level> + 'a {
        let of = move |map: &'a BTreeMap<Box<str>, Level>| {
            map.range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
                .take_while(move |(name, _)| name.starts_with(prefix))
                .map(|(_, level)| *level)
        };
        of(&self.exact).chain(of(&self.prefixes))
    }

    /// Decides about all names that begin with `prefix`; `None`: the default decides.
    fn all(&self, prefix: &str, access: Access) -> Option<bool> {
        let base = self.longest(prefix).map(|level| level.allows(access));
        if base == Some(false) || self.within(prefix).any(|level| !level.allows(access)) {
            return Some(false);
        }
        base
    }
}

impl Authorizer {
    /// Merges policies.
    pub(crate) fn merged<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> Authorizer {
        let mut merged = Authorizer::default();
        for rule in policies.into_iter().flat_map(|policy| &policy.rules) {
            let Some((name, is_prefix)) = &rule.name else {
                let level = merged.unnamed.entry(rule.kind).or_insert(rule.level);
                *level = (*level).max(rule.level);
                continue;
            };
            let names = merged.named.entry(rule.kind).or_default();
            if *is_prefix {
                names.lengths.insert(name.len());
                merge(&mut names.prefixes, name.clone(), rule.level);
            } else {
                merge(&mut names.exact, name.clone(), rule.level);
            }
        }
        merged
    }

    /// Decides about an access; `None` if no rule does.
    pub(crate) fn decide(&self, access: Access, resource: Resource<'_>) -> Option<bool> {
        let names = |kind| self.named.get(&kind);
        let unnamed = |kind| self.unnamed.get(&kind).map(|level: &Level| level.allows(access));
        match resource {
            Resource::One(kind @ (Kind::Mesh | Kind::Peering), _) => unnamed(kind).or_else(|| unnamed(Kind::Operator)),
            Resource::One(kind, _) if Kind::UNNAMED.contains(&kind) => unnamed(kind),
            Resource::One(kind, name) => names(kind)?.level(name).map(|level| level.allows(access)),
            Resource::Keys(prefix) => names(Kind::Key)?.all(prefix, access),
            Resource::Record(name) => names(Kind::Service)?.level(name).map(|level| level.allows(access)),
            Resource::Audit => unnamed(Kind::Operator),
            Resource::Everything => {
                // A policy written for Consul names no entries; whoever reads or writes one asks about it by name.
                let kinds = Kind::NAMED.into_iter().filter(|kind| *kind != Kind::Config);
                let named = kinds.map(|kind| self.decide_all(access, kind));
                let unnamed = [Kind::Operator].into_iter().map(unnamed);
                let decisions: Vec<Option<bool>> = named.chain(unnamed).collect();
                if decisions.contains(&Some(false)) {
                    return Some(false);
                }
                decisions.iter().all(|decision| *decision == Some(true)).then_some(true)
            }
        }
    }

    /// Decides about all names of a kind; `None` if no rule refuses one and the default decides about others.
    pub(crate) fn decide_all(&self, access: Access, kind: Kind) -> Option<bool> {
        self.named.get(&kind)?.all("", access)
    }

    /// True if a rule allows something.
    pub(crate) fn allows_any(&self) -> bool {
        let levels = self.named.values().flat_map(|names| names.exact.values().chain(names.prefixes.values()));
        levels.chain(self.unnamed.values()).any(|level| level.allows(Access::Read))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Answers of Consul's own authorizer to questions about policies: tests/peers/acl makes the results of the table.
    const TABLE: &str = include_str!("table.txt");

    fn resource<'a>(kind: &str, name: &'a str) -> Resource<'a> {
        let kinds = Kind::NAMED.into_iter().chain(Kind::UNNAMED);
        match kind {
            "key-tree" => Resource::Keys(name),
            other => Resource::One(kinds.into_iter().find(|kind| kind.name() == other).unwrap(), name),
        }
    }

    fn answer(default: &str, policies: &str, question: &str) -> &'static str {
        let read: Result<Vec<Policy>, _> =
            policies.split(" && ").map(|text| Policy::parse(&text.replace("\\n", "\n"))).collect();
        let Ok(read) = read else { return "error" };
        let mut words = question.splitn(3, ' ');
        let (kind, access) = (words.next().unwrap(), words.next().unwrap());
        let access = [Access::Read, Access::List, Access::Write].into_iter().find(|it| it.name() == access).unwrap();
        let resource = resource(kind, words.next().unwrap_or_default());
        let allowed = Authorizer::merged(&read).decide(access, resource);
        // The default never gives rights on tokens and policies.
        let default = default == "allow" && resource != Resource::ACL;
        if allowed.unwrap_or(default) { "allow" } else { "deny" }
    }

    #[test]
    fn rules_mean_what_they_mean_to_consul() {
        let (mut rows, mut wrong) = (0, Vec::new());
        for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let [default, policies, question, expected] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
            let found = answer(default, policies, question);
            if found != expected {
                wrong.push(format!("{line}: found {found}"));
            }
            rows += 1;
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(rows >= 200, "{rows} rows");
    }

    #[test]
    fn everything_is_allowed_only_where_each_kind_is() {
        let all = super::super::builtin::everything;
        let merged = |text: &str| Authorizer::merged(&[Policy::parse(text).unwrap()]);
        for (text, access, expected) in [
            (all(Access::Write).as_str(), Access::Write, Some(true)),
            (all(Access::Read).as_str(), Access::Read, Some(true)),
            (all(Access::Read).as_str(), Access::Write, Some(false)),
            (r#"service_prefix "" { policy = "write" }"#, Access::Read, None),
            (r#"key "a" { policy = "deny" }"#, Access::Read, Some(false)),
            ("", Access::Read, None),
        ] {
            assert_eq!(merged(text).decide(access, Resource::Everything), expected, "{text}");
        }
    }
}
