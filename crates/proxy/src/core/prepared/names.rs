//! Names of one client's prepared statements. No other code changes the meaning of a name.
//!
//! A name changes when the message that changes it is sent, since later messages depend on it: `P s …; B s; E; S` in one packet. After an error the
//! server skips all messages up to Sync; the changes of skipped messages are undone, the last one first.
//!
//! This follows PostgreSQL (`exec_parse_message`, `exec_simple_query`). A Parse of the unnamed statement drops the old
//! one before it looks at the new text, and so does a Query. A Parse of a named statement that fails changes nothing. A
//! rollback undoes none of this.

use std::collections::HashMap;
use std::sync::Arc;

use super::statement::Statement;

/// Bytes of a name that count: PostgreSQL's `NAMEDATALEN` less one. SQL and the protocol both cut a longer name.
pub(crate) const NAME_MAX: usize = 63;
/// Bytes that a named statement counts for beside its name, text and types.
const ENTRY: usize = 512;

/// The prepared statements of one client. Two pointers large while the client has none.
#[derive(Debug, Default)]
pub(crate) struct Names {
    unnamed: Option<Arc<Statement>>,
    named: Option<Box<Named>>,
}

/// Statements by name.
#[derive(Debug, Default)]
pub(crate) struct Named {
    // Looked up with every Bind: a fast hash, with a key that differs in each process.
    entries: HashMap<Box<[u8]>, Entry, foldhash::fast::RandomState>,
    bytes: usize,
    /// True if some entries have a `settled` statement.
    unsettled: bool,
}

/// Entry of a name.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    statement: Arc<Statement>,
    /// Bytes charged for the name in [`Named::bytes`]: the statement may be replaced by one of another size.
    bytes: usize,
    /// True if the client was sent the statement's columns, and relies on them.
    told: bool,
    /// Set if `statement` was made while it was unknown under which parameters the client's texts are read. The name
    /// stands for `settled` again once that is known.
    settled: Option<Arc<Statement>>,
}

/// Reversal of a message's change, in case the server skips the message.
#[derive(Debug, Default)]
pub(crate) enum Undo {
    /// The message has changed nothing.
    #[default]
    Nothing,
    /// The unnamed statement before the change.
    Unnamed(Option<Arc<Statement>>),
    /// The name stood for no statement.
    Free(Box<[u8]>),
    /// The entry of the name before the change.
    Named(Box<(Box<[u8]>, Entry)>),
    /// The entries before all names were dropped.
    All(Box<Named>),
}

/// The client has as many bytes of named statements as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "prepared statements of more than {most} bytes in one session: raise proxy.pool.prepared_bytes_per_client, or deallocate those that are not needed"
)]
pub(crate) struct Full {
    most: usize,
}

impl Names {
    /// Returns the statement of this name; empty: the unnamed one.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&Arc<Statement>> {
        self.get_told(name).map(|(statement, _)| statement)
    }

    /// Returns the number of named statements.
    pub(crate) fn len(&self) -> usize {
        self.named.as_ref().map_or(0, |named| named.entries.len())
    }

    /// Returns the statement of this name; true if the client was sent its columns. (For the unnamed statement, clients ask each time.)
    pub(crate) fn get_told(&self, name: &[u8]) -> Option<(&Arc<Statement>, bool)> {
        match name {
            b"" => self.unnamed.as_ref().map(|statement| (statement, false)),
            name => self.entry(name).map(|entry| (&entry.statement, entry.told)),
        }
    }

    /// True if the client was sent this statement's columns under any name other than `except`.
    pub(crate) fn is_told_of(&self, statement: &Arc<Statement>, except: Option<&[u8]>) -> bool {
        let named = self.named.iter().flat_map(|named| &named.entries);
        named.into_iter().any(|(name, entry)| {
            entry.told && Arc::ptr_eq(&entry.statement, statement) && except.is_none_or(|except| **name != *key(except))
        })
    }

    /// Returns the undo for the change that `set_told` may make, when a Describe is sent.
    pub(crate) fn describe(&self, name: &[u8]) -> Undo {
        match self.entry(name).filter(|entry| entry.told) {
            Some(entry) => Undo::Named(Box::new((key(name).into(), entry.clone()))),
            None => Undo::Nothing,
        }
    }

    /// Notes if the client has been sent the columns of the statement of this name. Returns the statement; `None` if the name stands for no statement
    /// or is empty.
    pub(crate) fn set_told(&mut self, name: &[u8], told: bool) -> Option<&Arc<Statement>> {
        let entry = self.named.as_mut()?.entries.get_mut(key(name))?;
        entry.told = told;
        Some(&entry.statement)
    }

    /// Notes that a Parse of the unnamed statement is sent.
    pub(crate) fn parse_unnamed(&mut self, statement: Arc<Statement>) -> Undo {
        Undo::Unnamed(self.unnamed.replace(statement))
    }

    /// Notes that a Parse is sent; the client may have `most` bytes of named statements. The name must not be in use: such a Parse will fail, and
    /// changes nothing.
    pub(crate) fn parse(&mut self, name: &[u8], statement: Arc<Statement>, most: usize) -> Result<Undo, Full> {
        if name.is_empty() {
            return Ok(self.parse_unnamed(statement));
        }
        let named = self.named.get_or_insert_default();
        let name = key(name);
        let bytes = weight(name, &statement);
        if named.bytes + bytes > most {
            return Err(Full { most });
        }
        named.bytes += bytes;
        let taken = named.entries.insert(name.into(), Entry { statement, bytes, told: false, settled: None });
        debug_assert!(taken.is_none(), "a name that is taken is not given again");
        Ok(Undo::Free(name.into()))
    }

    /// Notes that a Parse of the unnamed statement has failed: there is no unnamed statement now.
    pub(crate) fn unnamed_failed(&mut self) {
        self.unnamed = None;
    }

    /// Notes that a Query is sent, which drops the unnamed statement.
    pub(crate) fn query(&mut self) -> Undo {
        match self.unnamed.take() {
            None => Undo::Nothing,
            unnamed => Undo::Unnamed(unnamed),
        }
    }

    /// Notes that a Close or a DEALLOCATE of this name is sent. `None` if the name stands for no statement.
    pub(crate) fn close(&mut self, name: &[u8]) -> Option<Undo> {
        if name.is_empty() {
            return self.unnamed.take().map(|unnamed| Undo::Unnamed(Some(unnamed)));
        }
        let named = self.named.as_mut()?;
        let (name, entry) = named.entries.remove_entry(key(name))?;
        named.bytes -= entry.bytes;
        if named.entries.is_empty() {
            self.named = None;
        }
        Some(Undo::Named(Box::new((name, entry))))
    }

    /// Drops all named statements, but not the unnamed one (`DropAllPreparedStatements`), when `DEALLOCATE ALL` or `DISCARD ALL` is sent. If it is
    /// sent as a Query, [`Names::query`] drops that one.
    pub(crate) fn drop_all(&mut self) -> Undo {
        self.named.take().map_or(Undo::Nothing, Undo::All)
    }

    /// Replaces a statement that must be analysed again by a fresh one under the same name. The client still relies on the columns that it was sent.
    pub(crate) fn replace(&mut self, name: &[u8], statement: Arc<Statement>) {
        if name.is_empty() {
            self.unnamed = Some(statement);
        } else if let Some(named) = &mut self.named
            && let Some(entry) = named.entries.get_mut(key(name))
        {
            entry.statement = statement;
            entry.settled = None;
        }
    }

    /// Replaces the name's statement by `statement` for as long as it is unknown under which parameters the client's texts are read.
    pub(crate) fn replace_for_now(&mut self, name: &[u8], statement: Arc<Statement>) {
        if let Some(named) = &mut self.named
            && let Some(entry) = named.entries.get_mut(key(name))
        {
            let was = std::mem::replace(&mut entry.statement, statement);
            entry.settled.get_or_insert(was);
            named.unsettled = true;
        }
    }

    /// Restores the name's own statement, once it is known again under which parameters the client's texts are read, and returns it. `None` if
    /// `replace_for_now` has not changed the name.
    pub(crate) fn settled(&mut self, name: &[u8]) -> Option<&Arc<Statement>> {
        let named = self.named.as_mut().filter(|named| named.unsettled)?;
        let entry = named.entries.get_mut(key(name))?;
        entry.statement = entry.settled.take()?;
        Some(&entry.statement)
    }

    /// Restores all names when the client leaves the server connection whose parameters were unknown.
    pub(crate) fn settle(&mut self) {
        if let Some(named) = self.named.as_mut().filter(|named| named.unsettled) {
            named.unsettled = false;
            for entry in named.entries.values_mut() {
                if let Some(settled) = entry.settled.take() {
                    entry.statement = settled;
                }
            }
        }
    }

    /// Undoes the change of a message that the server has skipped. Changes are undone last one first.
    pub(crate) fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Nothing => {}
            Undo::Unnamed(statement) => self.unnamed = statement,
            Undo::Free(name) => _ = self.close(&name),
            Undo::Named(was) => {
                let (name, entry) = *was;
                let named = self.named.get_or_insert_default();
                named.bytes += entry.bytes;
                named.unsettled |= entry.settled.is_some();
                if let Some(instead) = named.entries.insert(name, entry) {
                    named.bytes -= instead.bytes;
                }
            }
            Undo::All(named) => self.named = Some(named),
        }
    }

    fn entry(&self, name: &[u8]) -> Option<&Entry> {
        self.named.as_ref()?.entries.get(key(name))
    }
}

impl Undo {
    /// True if a later message may mean something else when this change is undone.
    pub(crate) fn is_change(&self) -> bool {
        !matches!(self, Undo::Nothing)
    }
}

/// Returns the bytes of a name that count.
pub(super) fn key(name: &[u8]) -> &[u8] {
    &name[..name.len().min(NAME_MAX)]
}

fn weight(name: &[u8], statement: &Statement) -> usize {
    name.len() + statement.text().len() + statement.types().len() + ENTRY
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROOM: usize = 1 << 20;

    fn statement(id: u64) -> Arc<Statement> {
        Arc::new(Statement::test(id))
    }

    fn id(names: &Names, name: &[u8]) -> Option<u64> {
        names.get(name).map(|statement| statement.id())
    }

    fn message(names: &Names, name: &[u8]) -> bool {
        names.get_told(name).is_some_and(|(_, told)| told)
    }

    #[test]
    fn a_skipped_parse_leaves_what_was_there() {
        let mut names = Names::default();
        names.parse(b"", statement(1), ROOM).unwrap();
        let undo = names.parse(b"", statement(2), ROOM).unwrap();
        assert_eq!(id(&names, b""), Some(2));
        names.undo(undo);
        assert_eq!(id(&names, b""), Some(1));
        // A Parse that failed by itself has dropped it.
        names.parse(b"", statement(3), ROOM).unwrap();
        names.unnamed_failed();
        assert_eq!(id(&names, b""), None);
    }

    #[test]
    fn closing_the_unnamed_statement_and_taking_it_back() {
        let mut names = Names::default();
        names.parse(b"s", statement(5), ROOM).unwrap();
        names.parse(b"", statement(1), ROOM).unwrap();
        let undo = names.close(b"").unwrap();
        assert_eq!((id(&names, b""), names.len()), (None, 1));
        names.undo(undo);
        assert_eq!((id(&names, b""), names.len()), (Some(1), 1));
        assert!(names.close(b"nobody").is_none());
    }

    #[test]
    fn a_skipped_describe_leaves_what_the_client_relies_on() {
        let mut names = Names::default();
        names.parse(b"a", statement(1), ROOM).unwrap();
        assert!(matches!(names.describe(b"a"), Undo::Nothing), "the client was told nothing yet");
        names.set_told(b"a", true);
        let undo = names.describe(b"a");
        names.replace(b"a", statement(2));
        names.set_told(b"a", false);
        names.undo(undo);
        assert_eq!((id(&names, b"a"), message(&names, b"a"), names.len()), (Some(1), true, 1));
        names.close(b"a").unwrap();
        assert!(names.named.is_none());
    }

    #[test]
    fn dropping_all_with_a_parse_behind_it() {
        let mut names = Names::default();
        names.parse(b"a", statement(1), ROOM).unwrap();
        names.set_told(b"a", true);
        names.parse(b"", statement(2), ROOM).unwrap();
        let all = names.drop_all();
        let again = names.parse(b"a", statement(3), ROOM).unwrap();
        assert_eq!((id(&names, b"a"), id(&names, b""), message(&names, b"a")), (Some(3), Some(2), false));
        names.undo(again);
        names.undo(all);
        assert_eq!((id(&names, b"a"), id(&names, b""), message(&names, b"a")), (Some(1), Some(2), true));
    }

    #[test]
    fn what_a_client_relies_on() {
        let mut names = Names::default();
        let shared = statement(1);
        names.parse(b"a", shared.clone(), ROOM).unwrap();
        names.parse(b"b", shared.clone(), ROOM).unwrap();
        names.set_told(b"a", true);
        assert!(names.is_told_of(&shared, None) && names.is_told_of(&shared, Some(b"b")));
        assert!(!names.is_told_of(&shared, Some(b"a")) && !names.is_told_of(&statement(1), None));
        names.replace(b"a", statement(2));
        assert!(message(&names, b"a") && !names.is_told_of(&shared, None));
    }

    #[test]
    fn what_was_parsed_where_nobody_knew_how_is_for_then() {
        let mut names = Names::default();
        names.parse(b"a", statement(1), ROOM).unwrap();
        names.parse(b"b", statement(2), ROOM).unwrap();
        names.set_told(b"a", true);
        names.replace_for_now(b"a", statement(3));
        names.replace_for_now(b"a", statement(4));
        names.replace_for_now(b"b", statement(5));
        assert_eq!((id(&names, b"a"), id(&names, b"b")), (Some(4), Some(5)));
        assert_eq!(names.settled(b"a").map(|statement| statement.id()), Some(1));
        assert!(message(&names, b"a"));
        // Names that are closed meanwhile, and the undo of that.
        let undo = names.close(b"b").unwrap();
        names.settle();
        names.undo(undo);
        names.settle();
        assert_eq!((id(&names, b"a"), id(&names, b"b")), (Some(1), Some(2)));
        names.replace_for_now(b"a", statement(6));
        names.replace(b"a", statement(7));
        names.settle();
        assert_eq!(id(&names, b"a"), Some(7));
    }

    #[test]
    fn a_statement_of_another_size_costs_what_the_first_did() {
        let mut names = Names::default();
        names.parse(b"a", statement(1), ROOM).unwrap();
        names.parse(b"b", statement(2), ROOM).unwrap();
        let longer = Arc::new(Statement::test_of(3, &[b'x'; 1000]));
        names.replace_for_now(b"a", longer.clone());
        let undo = names.close(b"a").unwrap();
        names.undo(undo);
        names.replace(b"a", longer);
        names.close(b"a").unwrap();
        assert_eq!(names.named.as_ref().map(|named| named.bytes), Some(weight(b"b", &statement(2))));
    }

    #[test]
    fn there_is_a_bound() {
        // Many small statements count, too.
        let mut names = Names::default();
        let many = (0..ROOM).find(|n| names.parse(n.to_string().as_bytes(), statement(1), ROOM).is_err());
        assert!(many.is_some_and(|many| many > ROOM / 2 / ENTRY && many < ROOM / ENTRY), "{many:?}");
        let mut names = Names::default();
        let long = Arc::new(Statement::test_of(1, &vec![b'x'; ROOM / 2 - ENTRY - 1]));
        names.parse(b"a", long.clone(), ROOM).unwrap();
        let refused = names.parse(b"bc", long.clone(), ROOM).unwrap_err();
        assert!(refused.to_string().contains("prepared_bytes_per_client"), "{refused}");
        names.close(b"a").unwrap();
        names.parse(b"b", long, ROOM).unwrap();
    }

    proptest! {
        /// Any changes, undone in the opposite order, leave the names as before.
        #[test]
        fn taken_back_is_as_before(before in proptest::collection::vec((0..6u8, 0..4u8), 0..12), after in proptest::collection::vec((0..6u8, 0..4u8), 0..12)) {
            let mut next = 0;
            let mut act = |names: &mut Names, (what, which): (u8, u8)| {
                let name = [&b""[..], b"a", b"b", b"c"][usize::from(which)];
                next += 1;
                match what {
                    0 | 1 if name.is_empty() || names.get(name).is_none() => names.parse(name, statement(next), ROOM).unwrap(),
                    2 => names.close(name).unwrap_or_default(),
                    3 => names.query(),
                    4 => names.drop_all(),
                    _ => Undo::Nothing,
                }
            };
            let mut names = Names::default();
            for step in before {
                act(&mut names, step);
            }
            let shown = |names: &Names| [&b""[..], b"a", b"b", b"c"].map(|name| id(names, name));
            let bytes = |names: &Names| names.named.as_ref().map_or(0, |named| named.bytes);
            let was = (shown(&names), bytes(&names), names.len());
            let done: Vec<Undo> = after.into_iter().map(|step| act(&mut names, step)).collect();
            for undo in done.into_iter().rev() {
                names.undo(undo);
            }
            prop_assert_eq!(was, (shown(&names), bytes(&names), names.len()));
        }
    }
}
