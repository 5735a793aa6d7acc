//! Aliases: statements that a server connection has under its client's own names, for texts that name them: EXECUTE, PREPARE, DEALLOCATE.
//!
//! A client's `s` is `kp17` on servers, so a server does not find `EXECUTE s`. Right before such a text the server connection gets the statement under
//! the client's name as well. The text goes to the server as it is: the names, positions and tags of all answers are the client's. An alias lasts until
//! the client leaves the connection; until then it is brought in line with [`Names`] before each further such text.

use std::collections::HashMap;
use std::sync::Arc;

use sql::{Class, Flags, NameUse, PreparedName};

use super::names::{Names, key};
use super::statement::Statement;

/// Aliases of one server connection, including the effect of messages that are not yet answered. One pointer large while there are none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Aliases(Option<Box<ByName>>);

type ByName = HashMap<Box<[u8]>, Alias, foldhash::fast::RandomState>;

/// The statement of an alias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alias {
    /// The client's statement with this ID.
    Of(u64),
    /// An empty statement, which only takes the name: PREPARE is refused, DEALLOCATE finds it.
    Taken,
}

/// A message that brings an alias in line with the client's names.
#[derive(Debug)]
pub(crate) enum AliasChange {
    /// Close of the name: the client has no such statement any more, or another one.
    Close,
    /// Parse of the client's statement under the name.
    Parse(Arc<Statement>),
    /// Parse of an empty text under the name.
    Take,
}

impl Aliases {
    /// True if the connection has an alias.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the number of aliases.
    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |aliases| aliases.len())
    }

    /// Returns the alias of this name.
    pub(crate) fn get(&self, name: &[u8]) -> Option<Alias> {
        self.0.as_ref()?.get(key(name)).copied()
    }

    /// Records that the name is parsed, or closed (`None`). Returns the alias before.
    pub(crate) fn set(&mut self, name: &[u8], alias: Option<Alias>) -> Option<Alias> {
        let Some(alias) = alias else {
            let aliases = self.0.as_mut()?;
            let was = aliases.remove(key(name));
            if aliases.is_empty() {
                self.0 = None;
            }
            return was;
        };
        self.0.get_or_insert_default().insert(key(name).into(), alias)
    }

    /// Takes out all names.
    pub(crate) fn take(&mut self) -> Vec<Box<[u8]>> {
        self.0.take().map_or_else(Vec::new, |aliases| aliases.into_keys().collect())
    }

    /// Returns the messages that a text with these names needs ahead of it, for a client with these statements.
    pub(crate) fn changes(&self, names: &Names, text: &[PreparedName]) -> Vec<(Box<[u8]>, AliasChange)> {
        let mut executed: HashMap<&[u8], bool, foldhash::fast::RandomState> = HashMap::default();
        for named in text {
            *executed.entry(named.name.as_bytes()).or_default() |= named.used == NameUse::Execute;
        }
        let mut changes = Vec::new();
        for named in text {
            let name = named.name.as_bytes();
            let Some(is_executed) = executed.remove(name).filter(|_| !name.is_empty()) else { continue };
            let there = self.get(name);
            // A setting of the proxy's means nothing to a server.
            let is_servers = |class: Class| !class.local || class.flags.has(Flags::DROPS_STATEMENTS);
            let wanted = names.get(name).filter(|statement| !is_executed || is_servers(statement.class()));
            let is_good = match (there, wanted) {
                (None, None) => true,
                (Some(Alias::Of(id)), Some(statement)) => !is_executed || id == statement.id(),
                (Some(Alias::Taken), Some(_)) => !is_executed,
                _ => false,
            };
            if is_good {
                continue;
            }
            if there.is_some() {
                changes.push((name.into(), AliasChange::Close));
            }
            match wanted {
                Some(statement) if is_executed => changes.push((name.into(), AliasChange::Parse(statement.clone()))),
                Some(_) => changes.push((name.into(), AliasChange::Take)),
                None => {}
            }
        }
        changes
    }
}

impl AliasChange {
    /// Returns the alias after the message.
    pub(crate) fn alias(&self) -> Option<Alias> {
        match self {
            AliasChange::Close => None,
            AliasChange::Parse(statement) => Some(Alias::Of(statement.id())),
            AliasChange::Take => Some(Alias::Taken),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const ROOM: usize = 1 << 20;

    /// Applies the changes for a text, and returns them as `-name`, `+name=id`, `+name`.
    fn brought(aliases: &mut Aliases, names: &Names, text: &[(&str, NameUse)]) -> String {
        let named = |(i, (name, used)): (usize, &(&str, NameUse))| PreparedName {
            name: (*name).to_owned(),
            used: *used,
            statement: i,
        };
        let text: Vec<PreparedName> = text.iter().enumerate().map(named).collect();
        let changes = aliases.changes(names, &text);
        let mut words = Vec::new();
        for (name, change) in changes {
            let shown = String::from_utf8_lossy(&name).into_owned();
            words.push(match &change {
                AliasChange::Close => format!("-{shown}"),
                AliasChange::Parse(statement) => format!("+{shown}={}", statement.id()),
                AliasChange::Take => format!("+{shown}"),
            });
            aliases.set(&name, change.alias());
        }
        assert_eq!(aliases.changes(names, &text).len(), 0, "nothing is left to do");
        words.join(" ")
    }

    #[test]
    fn a_connection_follows_the_clients_names() {
        use NameUse::{Deallocate, Execute, Prepare};
        let (mut aliases, mut names) = (Aliases::default(), Names::default());
        let statement = |id| Arc::new(Statement::test(id));
        assert_eq!(brought(&mut aliases, &names, &[("s", Execute), ("s", Prepare)]), "");
        names.parse(b"s", statement(1), ROOM).unwrap();
        names.parse(b"t", statement(2), ROOM).unwrap();
        assert_eq!(brought(&mut aliases, &names, &[("s", Execute), ("nosuch", Execute), ("s", Execute)]), "+s=1");
        assert_eq!(brought(&mut aliases, &names, &[("t", Prepare)]), "+t");
        assert_eq!(brought(&mut aliases, &names, &[("s", Deallocate), ("t", Deallocate)]), "");
        assert_eq!(brought(&mut aliases, &names, &[("t", Deallocate), ("t", Execute)]), "-t +t=2");
        assert_eq!(aliases.len(), 2);
        // Another statement under the name, and none.
        names.close(b"s").unwrap();
        names.close(b"t").unwrap();
        names.parse(b"s", statement(3), ROOM).unwrap();
        assert_eq!(brought(&mut aliases, &names, &[("s", Execute), ("t", Prepare)]), "-s +s=3 -t");
        names.close(b"s").unwrap();
        assert_eq!(brought(&mut aliases, &names, &[("s", Execute)]), "-s");
        assert!(aliases.is_empty() && aliases.take().is_empty());
    }

    #[test]
    fn a_long_name_is_its_first_63_bytes() {
        let (mut aliases, mut names) = (Aliases::default(), Names::default());
        let long = "n".repeat(70);
        names.parse(long.as_bytes(), Arc::new(Statement::test(1)), ROOM).unwrap();
        let cut = &long[..63];
        assert_eq!(brought(&mut aliases, &names, &[(cut, NameUse::Execute)]), format!("+{cut}=1"));
        assert!(names.close(cut.as_bytes()).is_some() && aliases.get(long.as_bytes()).is_some());
    }
}
