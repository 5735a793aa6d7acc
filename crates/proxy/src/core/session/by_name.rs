//! Texts that name prepared statements: `EXECUTE s`, `PREPARE s AS …`, `DEALLOCATE s`.
//!
//! Statements that the client has prepared by the protocol have other names on servers. Ahead of such a text the server connection gets them under the
//! client's names, too: see [`Aliases`](crate::core::prepared). A class with [`Flags::NAMES`] says that a text is of this kind; no other text is
//! looked at here.

use std::collections::HashSet;

use sql::{Access, Class, Control, Flags, NameUse, PreparedName};
use wire::message;

use super::client::Step;
use crate::core::Core;
use crate::core::prepared::{AliasChange, StatementName, Unnamed};
use crate::core::server::{Deallocating, Note, Request};

/// Properties of an executed statement that its EXECUTE has as well.
const INHERITED: Flags = Flags(
    Flags::RESETS_PARAMETERS.0
        | Flags::TRANSACTION.0
        | Flags::SAVEPOINT.0
        | Flags::SCHEMA.0
        | Flags::DDL.0
        | Flags::LISTENS.0
        | Flags::LOCAL.0
        | Flags::LOCKS.0
        | Flags::UNKNOWN.0
        | Flags::MAKES.0
        | Flags::SNAPSHOT.0,
);

/// The place of the messages that bring aliases in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In a unit of the proxy's, ahead of a Query.
    Ahead,
    /// In the client's unit.
    InUnit,
    /// In the client's unit, in which portals must stay.
    BehindBind,
}

/// Most statements of one text that are looked at because they name others in turn. Each is parsed for its names.
const MOST_NESTED: usize = 64;

/// The parameter types of an empty text: none.
const NO_TYPES: &[u8] = b"\0\0";

/// Returns the class of a text that executes statements of these classes; `None` for one that is not the client's by the protocol.
fn with_executed(class: Class, executed: impl Iterator<Item = Option<Class>>) -> Class {
    let mut whole = class;
    let mut reads = class.flags.has(Flags::EXECUTES_ONE);
    for one in executed {
        let Some(one) = one else {
            reads = false;
            continue;
        };
        reads &= one.access == Access::Read;
        whole.pins = whole.pins.with(one.pins);
        whole.flags = whole.flags.with(Flags(one.flags.0 & INHERITED.0));
        if one.control != Control::None {
            whole.flags = whole.flags.with(Flags::TRANSACTION);
        }
        if one.flags.has(Flags::DROPS_STATEMENTS) {
            // Which ones is seen in the answer, as with a text of several statements.
            whole.flags = whole.flags.with(Flags::DROPS_STATEMENTS).with(Flags::MULTI);
        }
        whole.hint = whole.hint.or(one.hint);
    }
    if reads {
        whole.access = Access::Read;
        whole.flags = whole.flags.with(Flags::APART);
    }
    whole
}

impl Core {
    /// Returns the class of a text together with those of the client's statements that it executes by name. They may be other statements at its next
    /// use, so this class is not kept.
    pub(in crate::core) fn class_with_executed(&self, c: usize, class: Class, text: &[u8]) -> Class {
        let names = &self.clients[c].names;
        if !class.flags.has(Flags::EXECUTES) || names.len() == 0 {
            return class;
        }
        let named = self.all_names(c, text);
        let executed = named.iter().filter(|named| named.used == NameUse::Execute);
        with_executed(class, executed.map(|named| names.get(named.name.as_bytes()).map(|statement| statement.class())))
    }

    /// Returns the names in a text, and those that the client's statements with these names execute or drop in turn: `P x "execute s"`, `EXECUTE x`.
    fn all_names(&self, c: usize, text: &[u8]) -> Vec<PreparedName> {
        let mut named = self.classifier.prepared_names(text);
        let mut seen = HashSet::new();
        let mut at = 0;
        while at < named.len() {
            let PreparedName { name, used, statement: outer } = &named[at];
            at += 1;
            let inner = self.clients[c].names.get(name.as_bytes());
            let Some(inner) = inner.filter(|inner| *used == NameUse::Execute && inner.class().flags.has(Flags::NAMES))
            else {
                continue;
            };
            if seen.len() < MOST_NESTED && seen.insert((inner.id(), *outer)) {
                let inner = self.classifier.prepared_names(inner.text());
                let outer = *outer;
                named.extend(inner.into_iter().map(|inner| PreparedName { statement: outer, ..inner }));
            }
        }
        named
    }

    /// Has the client's statements that a text executes by name run on the primary from now on, after a replica has refused the text.
    pub(in crate::core) fn demote_executed(&mut self, c: usize, class: Class, text: &[u8]) {
        if !class.flags.has(Flags::EXECUTES) {
            return;
        }
        for named in self.classifier.prepared_names(text) {
            if let Some(statement) =
                self.clients[c].names.get(named.name.as_bytes()).filter(|_| named.used == NameUse::Execute)
            {
                statement.demote();
            }
        }
    }

    /// Returns the names in a text, if the server connection has to be asked to know them or to forget them.
    fn names_in(&self, c: usize, s: usize, class: Class, text: &[u8]) -> Vec<PreparedName> {
        let none = self.clients[c].names.len() == 0 && self.servers[s].statements.aliases.is_empty();
        if none || !class.flags.has(Flags::NAMES) {
            return Vec::new();
        }
        let mut named = self.all_names(c, text);
        // A name like the proxy's own stands for the proxy's statement there.
        named.retain(|named| !StatementName::is_like(named.name.as_bytes()));
        named
    }

    /// Brings the server connection's aliases in line with the client's names, ahead of a Query. `Some`: the Query waits for earlier answers.
    pub(super) fn alias_for_query(&mut self, c: usize, s: usize, class: Class, text: &[u8]) -> Option<Step> {
        let named = self.names_in(c, s, class, text);
        if named.is_empty() {
            return None;
        }
        let inside = self.servers[s].protocol.is_in_unit();
        if !inside && !self.servers[s].protocol.is_settled() {
            return Some(Step::Blocked);
        }
        let place = if inside { Place::InUnit } else { Place::Ahead };
        self.send_aliases(c, s, &named, place);
        let (client, server) = (&self.clients[c], &mut self.servers[s]);
        let drops = |named: &&PreparedName| {
            let name = named.name.as_bytes();
            named.used == NameUse::Deallocate
                && client.names.get(name).is_some()
                && server.statements.aliases.get(name).is_some()
        };
        let drops: Vec<_> =
            named.iter().filter(drops).map(|named| (named.statement, named.name.as_bytes().into())).collect();
        if !drops.is_empty() {
            server.deallocating = Some(Box::new(Deallocating { completed: 0, drops }));
            // Which of them were dropped is known when the Query is answered.
            server.barrier = true;
        }
        None
    }

    /// Brings the aliases in line, within a client's unit of the extended protocol. `is_bound`: the text has a portal already.
    pub(super) fn alias_in_unit(&mut self, c: usize, s: usize, class: Class, text: &[u8], is_bound: bool) {
        let named = self.names_in(c, s, class, text);
        if !named.is_empty() {
            let place = if is_bound { Place::BehindBind } else { Place::InUnit };
            self.send_aliases(c, s, &named, place);
        }
    }

    /// Sends the Parses and Closes for the names of a text.
    fn send_aliases(&mut self, c: usize, s: usize, named: &[PreparedName], place: Place) {
        let mut changes = self.servers[s].statements.aliases.changes(&self.clients[c].names, named);
        if self.servers[s].protocol.is_failed() {
            // The server parses nothing but an empty text there.
            changes.retain(|(_, change)| !matches!(change, AliasChange::Parse(_)));
        }
        if changes.is_empty() {
            return;
        }
        let ahead = place == Place::Ahead;
        for (name, change) in &changes {
            let around = match change {
                AliasChange::Parse(statement) if place != Place::BehindBind => self.literals_around(c, s, statement),
                _ => None,
            };
            if let Some((there, _)) = &around {
                self.servers[s].statements.set_unnamed(Unnamed::Unknown);
                self.send_own(s, there, !ahead);
            }
            self.write_server(s, |out| match change {
                AliasChange::Close => message::close_statement(out, name),
                AliasChange::Parse(statement) => message::parse(out, name, statement.text(), statement.settled_types()),
                AliasChange::Take => message::parse(out, name, b"", NO_TYPES),
            });
            let request = if matches!(change, AliasChange::Close) { Request::Close } else { Request::Parse };
            let server = &mut self.servers[s];
            let was = server.statements.aliases.set(name, change.alias());
            server.protocol.sent(request, Note::Alias { name: name.clone(), was, ahead });
            if let Some((_, back)) = &around {
                self.send_own(s, back, !ahead);
            }
        }
        self.servers[s].cleaning.aliases = true;
        if ahead {
            self.end_ahead(s);
        }
    }

    /// A client that may have prepared `name` by SQL prepares it by the protocol: the server is asked if the name is taken, ahead of the client's
    /// Parse.
    pub(super) fn try_name(&mut self, s: usize, name: &[u8], text: &[u8], types: &[u8]) {
        let server = &mut self.servers[s];
        let was = server.statements.aliases.set(name, None);
        if was.is_some() {
            server.protocol.sent(Request::Close, Note::Alias { name: name.into(), was, ahead: false });
            self.write_server(s, |out| message::close_statement(out, name));
        }
        self.write_server(s, |out| {
            message::parse(out, name, text, types);
            message::close_statement(out, name);
        });
        let protocol = &mut self.servers[s].protocol;
        protocol.sent(Request::Parse, Note::Inserted);
        protocol.sent(Request::Close, Note::CloseOwn);
    }

    /// A statement of the Query in flight has completed: if it was a DEALLOCATE of a statement by the protocol, the client has it no more.
    pub(in crate::core) fn note_deallocated(&mut self, s: usize) {
        let server = &mut self.servers[s];
        let Some(deallocating) = &mut server.deallocating else { return };
        let at = deallocating.completed;
        deallocating.completed += 1;
        for (_, name) in deallocating.drops.iter().filter(|(statement, _)| *statement == at) {
            server.statements.aliases.set(name, None);
            if let Some(c) = server.client
                && let Some(undo) = self.clients[c].names.close(name)
            {
                self.clients[c].replay.answered(undo);
            }
        }
    }

    /// Closes the aliases of a client that has left the server connection. Returns false if there are none.
    pub(super) fn close_aliases(&mut self, s: usize) -> bool {
        let names = self.servers[s].statements.aliases.take();
        if names.is_empty() {
            return false;
        }
        for name in names {
            self.write_server(s, |out| message::close_statement(out, &name));
            self.servers[s].protocol.sent(Request::Close, Note::Own);
        }
        self.write_server(s, |out| message::empty(out, b'S'));
        self.servers[s].protocol.sent(Request::Sync, Note::Own);
        true
    }
}

#[cfg(test)]
mod tests {
    use sql::{Classifier, ClassifierConfig, Hint, Pins};

    use super::*;

    #[test]
    fn an_execute_is_what_its_statement_is() {
        let mut classifier = Classifier::new(ClassifierConfig::default());
        let mut of = |execute: &str, statements: &[Option<&str>]| {
            let class = classifier.classify(execute.as_bytes());
            let executed: Vec<_> =
                statements.iter().map(|text| text.map(|text| classifier.classify(text.as_bytes()))).collect();
            with_executed(class, executed.into_iter())
        };
        let read = Some("select 1");
        let cases: [(&str, &[Option<&str>], Access); 8] = [
            ("execute s", &[read], Access::Read),
            ("explain (format json) execute s (null)", &[read], Access::Read),
            ("execute s", &[None], Access::Write),
            ("execute s", &[Some("insert into t values (1)")], Access::Write),
            ("execute s (nextval('q'))", &[read], Access::Write),
            ("create table x as execute s", &[read], Access::Write),
            ("execute s; execute s", &[read, read], Access::Write),
            ("execute s", &[Some("select f()")], Access::Write),
        ];
        for (execute, statements, expected) in cases {
            assert_eq!(of(execute, statements).access, expected, "{execute}");
        }
        let locks = of("execute s", &[Some("select pg_advisory_lock(1)")]);
        assert!(locks.flags.has(Flags::LOCKS) && locks.pins == Pins::ADVISORY_LOCK);
        assert!(of("execute s", &[Some("commit")]).flags.has(Flags::TRANSACTION));
        assert!(of("execute s", &[Some("set search_path = x")]).pins == Pins::SET);
        assert_eq!(of("execute s", &[Some("/* kingpost.route=primary */ select 1")]).hint, Some(Hint::Primary));
        assert_eq!(of("/* kingpost.route=replica */ execute s", &[read]).hint, Some(Hint::Replica));
    }
}
