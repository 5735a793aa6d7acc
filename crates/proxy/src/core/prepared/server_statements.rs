//! Prepared statements of one server connection.

use std::collections::HashMap;

use super::alias::Aliases;
use super::statement::Statement;

/// Prepared statements of a server connection, including the effect of messages that are not yet answered.
#[derive(Debug, Default)]
pub(crate) struct ServerStatements {
    named: HashMap<u64, Entry, foldhash::fast::RandomState>,
    unnamed: Unnamed,
    clock: u64,
    /// True if the connection has the statement of replay checks.
    replay_check: bool,
    /// Statements under the client's own names.
    pub(crate) aliases: Aliases,
}

/// Unnamed statement of a server connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Unnamed {
    /// Any statement, or none.
    #[default]
    Unknown,
    /// The statement with this ID.
    Is(u64),
    /// A statement of the current client that is too long to be cached.
    TooLong,
}

/// A named statement.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// Value of the connection's `clock` at the last use.
    used: u64,
    /// True if this connection has described the statement, with the columns that clients were told of. (Of two connections, one may have parsed the
    /// text before a schema change and the other after it.)
    described: bool,
    /// True if no client uses the connection's statement of this name: see [`ServerStatements::spends`].
    spent: bool,
    /// True after [`ServerStatements::runs_outside`].
    outside: bool,
}

/// Statements of a connection before all were dropped, for [`ServerStatements::undo`].
#[derive(Debug, Clone)]
pub(crate) struct Dropped(HashMap<u64, Entry, foldhash::fast::RandomState>, Aliases, bool);

impl ServerStatements {
    /// True if the connection has this statement, under its name `kp…`.
    pub(crate) fn has(&self, statement: &Statement) -> bool {
        self.named.get(&statement.id()).is_some_and(|entry| !entry.spent)
    }

    /// Marks the statement as used; returns false if the connection does not have it.
    pub(crate) fn uses(&mut self, statement: &Statement) -> bool {
        self.clock += 1;
        match self.named.get_mut(&statement.id()).filter(|entry| !entry.spent) {
            Some(entry) => {
                entry.used = self.clock;
                true
            }
            None => false,
        }
    }

    /// Records that a Parse of the statement is sent.
    pub(crate) fn gets(&mut self, statement: &Statement) {
        self.clock += 1;
        self.named.insert(statement.id(), Entry { used: self.clock, ..Entry::default() });
    }

    /// Records that the connection does not have the statement after all.
    pub(crate) fn loses(&mut self, statement: &Statement) {
        self.named.remove(&statement.id());
    }

    /// Marks the connection's statement of this name as no longer usable. It stays on the server until room is made.
    pub(crate) fn spends(&mut self, statement: &Statement) {
        if let Some(entry) = self.named.get_mut(&statement.id()) {
            *entry = Entry { spent: true, ..Entry::default() };
        }
    }

    /// Records that the statement runs while literals are read differently than when it was prepared. PostgreSQL may then analyze it again, as after
    /// `ANALYZE` of one of its tables, and from then on it has the literals of that moment: no other client may run it here.
    pub(crate) fn runs_outside(&mut self, statement: &Statement) {
        if let Some(entry) = self.named.get_mut(&statement.id()) {
            entry.outside = true;
        }
    }

    /// Forgets the statements that were run so, and returns their IDs, for them to be dropped.
    pub(crate) fn loses_outside(&mut self) -> Vec<u64> {
        let ids: Vec<u64> = self.named.iter().filter(|(_, entry)| entry.outside).map(|(id, _)| *id).collect();
        self.named.retain(|_, entry| !entry.outside);
        ids
    }

    /// Records that the connection has the statement of replay checks, or may have it no more. Returns true if it had it before.
    pub(crate) fn set_has_replay_check(&mut self, has: bool) -> bool {
        std::mem::replace(&mut self.replay_check, has)
    }

    /// Returns the number of named statements on the connection, according to all messages sent: the server has the same number, if only the proxy
    /// has created or dropped any.
    pub(crate) fn count(&self) -> usize {
        self.named.len() + self.aliases.len() + usize::from(self.replay_check)
    }

    /// Forgets the least recently used statement and returns its ID, for a Close to be sent. `None` if there are fewer than `most`.
    pub(crate) fn makes_room(&mut self, most: usize) -> Option<u64> {
        if self.named.len() < most {
            return None;
        }
        let (&id, _) = self.named.iter().min_by_key(|(_, entry)| entry.used)?;
        self.named.remove(&id);
        Some(id)
    }

    /// Records that the Close of this statement was skipped: the connection still has the statement.
    pub(crate) fn keeps(&mut self, id: u64) {
        self.named.insert(id, Entry::default());
    }

    /// Records that this connection has described the statement, with the columns that clients were told of.
    pub(crate) fn has_described(&mut self, statement: &Statement) {
        if let Some(entry) = self.named.get_mut(&statement.id()) {
            entry.described = true;
        }
    }

    /// True if the connection has the statement, with the columns that clients were told of.
    pub(crate) fn is_described(&self, statement: &Statement) -> bool {
        self.named.get(&statement.id()).is_some_and(|entry| entry.described && !entry.spent)
    }

    /// Returns the connection's unnamed statement.
    pub(crate) fn unnamed(&self) -> Unnamed {
        self.unnamed
    }

    /// Records the unnamed statement after a message (a Parse, a Query) that is sent.
    pub(crate) fn set_unnamed(&mut self, unnamed: Unnamed) {
        self.unnamed = unnamed;
    }

    /// Handles the client's departure: no other client may use an unnamed statement that was too long to be cached.
    pub(crate) fn client_leaves(&mut self) {
        if self.unnamed == Unnamed::TooLong {
            self.unnamed = Unnamed::Unknown;
        }
    }

    /// Records that a statement is sent that drops all named statements (`DEALLOCATE ALL`, `DISCARD ALL`).
    pub(crate) fn drops_all(&mut self) -> Dropped {
        Dropped(
            std::mem::take(&mut self.named),
            std::mem::take(&mut self.aliases),
            std::mem::take(&mut self.replay_check),
        )
    }

    /// Restores the statements after the statement that dropped them has failed or was skipped.
    pub(crate) fn undo(&mut self, dropped: Dropped) {
        (self.named, self.aliases, self.replay_check) = (dropped.0, dropped.1, dropped.2);
    }

    /// Returns the IDs of the connection's statements, for operators.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> {
        self.named.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_by_what_was_used_longest_ago() {
        let statements: Vec<Statement> = (1..=3).map(Statement::test).collect();
        let mut server = ServerStatements::default();
        assert_eq!(server.makes_room(2), None);
        server.gets(&statements[0]);
        server.gets(&statements[1]);
        assert!(server.uses(&statements[0]) && !server.uses(&statements[2]));
        assert_eq!(server.makes_room(2), Some(2));
        assert!(server.has(&statements[0]) && !server.has(&statements[1]));
        server.gets(&statements[2]);
        server.has_described(&statements[2]);
        assert!(server.is_described(&statements[2]) && !server.is_described(&statements[0]));
        // A statement whose Close was skipped may have any description.
        server.keeps(2);
        assert!(server.has(&statements[1]) && !server.is_described(&statements[1]));
        // An unusable statement is still on the server, and is closed first.
        server.has_described(&statements[2]);
        server.spends(&statements[2]);
        assert!(!server.has(&statements[2]) && !server.uses(&statements[2]) && !server.is_described(&statements[2]));
        assert_eq!(server.count(), 3);
        let mut closed = [server.makes_room(2), server.makes_room(2)];
        closed.sort();
        assert_eq!((closed, server.makes_room(2), server.count()), ([Some(2), Some(3)], None, 1));
        // A statement that was never there is not added.
        server.spends(&statements[0]);
        assert_eq!(server.count(), 1);
    }

    #[test]
    fn what_was_run_outside_of_its_reading_goes() {
        let [one, two] = [1, 2].map(Statement::test);
        let mut server = ServerStatements::default();
        server.gets(&one);
        server.gets(&two);
        server.runs_outside(&one);
        assert!(server.has(&one), "the client that has run it so goes on with it");
        assert_eq!((server.loses_outside(), server.loses_outside()), (vec![1], vec![]));
        assert!(!server.has(&one) && server.has(&two));
    }

    #[test]
    fn dropping_all_can_be_undone() {
        let statement = Statement::test(7);
        let mut server = ServerStatements::default();
        server.gets(&statement);
        server.set_unnamed(Unnamed::Is(9));
        let dropped = server.drops_all();
        assert!(!server.has(&statement) && server.unnamed() == Unnamed::Is(9));
        server.undo(dropped);
        assert!(server.has(&statement) && server.unnamed() == Unnamed::Is(9));
        server.set_unnamed(Unnamed::TooLong);
        server.client_leaves();
        assert_eq!(server.unnamed(), Unnamed::Unknown);
    }
}
