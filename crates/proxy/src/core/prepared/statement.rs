//! One prepared statement: a text with parameter types, read in one scope.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use sql::{Access, Changes, Class};

use super::columns::Columns;
use super::scope::{SETTLED_AFTER, Scope};

/// Longest text that is kept for its coming again without a name, in bytes.
const MOST_UNNAMED: usize = 8 << 10;
/// From so many times on a text without a name is thought to come again.
const MANY: u32 = 2;
/// What a statement takes beside its text and types, in bytes, about.
const FIXED: usize = 320;

/// A text with parameter types, in one scope. Clients of that scope share it, and a server connection has it once, under a name made
/// from its id.
#[derive(Debug)]
pub(crate) struct Statement {
    id: u64,
    /// None: it is one client's alone. What it means nobody can say: its client has settings that are not known, or the text has the time in it
    /// at which it is read.
    scope: Option<Scope>,
    text: Box<[u8]>,
    types: Box<[u8]>,
    class: Class,
    /// [`super::scope::Schema::declared`] when it was made.
    declared: u64,
    /// A server has taken it once.
    accepted: AtomicBool,
    /// What clients are told of its columns, once one has asked.
    columns: OnceLock<Columns>,
    /// Its columns have changed since: nobody is given it any more.
    outdated: AtomicBool,
    /// A replica refused to run it.
    demoted: AtomicBool,
    /// How often it came without a name; not counted beyond [`MANY`].
    unnamed: AtomicU32,
    /// What a server has answered to its Describe last.
    described: ArcSwapOption<Described>,
    /// What it does to the session's parameters and channels, once that was asked; None: it can't be told.
    changes: OnceLock<Option<Arc<Changes>>>,
}

/// A server's answer to a Describe.
#[derive(Debug)]
pub(crate) struct Described {
    /// `ParameterDescription`, and `RowDescription` or `NoData`, as messages.
    pub(crate) messages: Box<[u8]>,
    /// When it came.
    at: Instant,
    /// [`super::scope::Schema::version`] when it was asked for.
    schema: u64,
}

impl Statement {
    pub(super) fn new(
        id: u64,
        scope: Option<Scope>,
        text: &[u8],
        types: &[u8],
        class: Class,
        declared: u64,
    ) -> Statement {
        Statement {
            id,
            scope,
            text: text.into(),
            types: types.into(),
            class,
            declared,
            accepted: AtomicBool::new(false),
            columns: OnceLock::new(),
            outdated: AtomicBool::new(false),
            demoted: AtomicBool::new(false),
            unnamed: AtomicU32::new(0),
            described: ArcSwapOption::empty(),
            changes: OnceLock::new(),
        }
    }

    /// One of which nothing is known, and that nobody keeps.
    pub(crate) fn unknown() -> Statement {
        Statement::new(0, None, b"", b"\0\0", Class::UNKNOWN, 0)
    }

    /// Never given twice in a process; 0: [`Statement::unknown`].
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Its name in server connections.
    pub(crate) fn name(&self) -> StatementName {
        StatementName::of(self.id)
    }

    /// In which scope it was read; None: it is one client's alone.
    pub(crate) fn scope(&self) -> Option<Scope> {
        self.scope
    }

    /// The text, without its NUL.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Count and ids of the declared parameter types, as on the wire.
    pub(crate) fn types(&self) -> &[u8] {
        &self.types
    }

    /// What it is. A read that a replica has refused writes, unseen: by a function behind a view, for example.
    pub(crate) fn class(&self) -> Class {
        if self.is_demoted() { Class { access: Access::Write, ..self.class } } else { self.class }
    }

    /// Bytes that it takes, about.
    pub(super) fn weight(&self) -> usize {
        FIXED + self.text.len() + self.types.len()
    }

    pub(super) fn is(&self, scope: Scope, text: &[u8], types: &[u8]) -> bool {
        self.scope == Some(scope) && *self.text == *text && *self.types == *types
    }

    /// True if a Parse of its content may still be one of it: what servers made of it may depend on what the schema was then, and
    /// only a fresh one is sure to be understood as the schema is now.
    pub(super) fn is_current(&self, declared: u64) -> bool {
        !self.is_outdated() && (self.declared == declared || self.class.control != sql::Control::None)
    }

    /// A server has taken it once: its Parse may be answered without asking again.
    pub(crate) fn is_accepted(&self) -> bool {
        self.accepted.load(Ordering::Relaxed)
    }

    /// A server has taken it.
    pub(crate) fn accept(&self) {
        self.accepted.store(true, Ordering::Relaxed);
    }

    /// Its columns have changed since: a fresh one takes its place.
    pub(crate) fn is_outdated(&self) -> bool {
        self.outdated.load(Ordering::Relaxed)
    }

    /// Its columns are not what they were.
    pub(crate) fn outdate(&self) {
        self.outdated.store(true, Ordering::Relaxed);
    }

    fn is_demoted(&self) -> bool {
        self.demoted.load(Ordering::Relaxed)
    }

    /// A replica has refused it: it goes to the primary from now on.
    pub(crate) fn demote(&self) {
        self.demoted.store(true, Ordering::Relaxed);
    }

    /// It was parsed without a name.
    pub(crate) fn note_unnamed(&self) {
        if self.unnamed.load(Ordering::Relaxed) < MANY {
            self.unnamed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// True if it comes again and again without a name, and servers may keep it.
    pub(crate) fn is_recurring(&self) -> bool {
        self.scope.is_some()
            && self.unnamed.load(Ordering::Relaxed) >= MANY
            && self.text.len() <= MOST_UNNAMED
            && !self.is_outdated()
    }

    /// A server says what its columns are. False if that is not what was said before.
    pub(crate) fn has_columns(&self, columns: Columns) -> bool {
        *self.columns.get_or_init(|| columns) == columns
    }

    /// What clients are told of its columns, if any has asked.
    pub(crate) fn columns(&self) -> Option<Columns> {
        self.columns.get().copied()
    }

    /// Keeps a server's answer to a Describe.
    pub(crate) fn note_described(&self, messages: Vec<u8>, at: Instant, schema: u64) {
        self.described.store(Some(Arc::new(Described { messages: messages.into(), at, schema })));
    }

    /// What a server would answer to a Describe now, if that is known.
    pub(crate) fn described(&self, now: Instant, schema: u64) -> Option<Arc<Described>> {
        if self.is_outdated() || !self.is_accepted() {
            return None;
        }
        let described = self.described.load_full()?;
        let fresh = now.saturating_duration_since(described.at) < SETTLED_AFTER && described.schema == schema;
        fresh.then_some(described)
    }

    /// What it does to the session's parameters and channels; `read` is asked once. None: that can't be told.
    pub(crate) fn changes(&self, read: impl FnOnce() -> Option<Changes>) -> Option<Arc<Changes>> {
        self.changes.get_or_init(|| read().map(Arc::new)).clone()
    }
}

#[cfg(test)]
impl Statement {
    /// One for tests.
    pub(super) fn test(id: u64) -> Statement {
        Statement::test_of(id, b"select 1")
    }

    pub(super) fn test_of(id: u64, text: &[u8]) -> Statement {
        Statement::new(id, None, text, b"\0\0", Class::UNKNOWN, 0)
    }
}

/// `kp` and the id in decimal, without allocating.
pub(crate) struct StatementName {
    bytes: [u8; 22],
    from: usize,
}

impl StatementName {
    /// What all of them begin with.
    pub(crate) const PREFIX: &[u8] = b"kp";

    /// The name of the statement with this id.
    pub(crate) fn of(mut id: u64) -> StatementName {
        let mut bytes = [0; 22];
        let mut from = bytes.len();
        loop {
            from -= 1;
            bytes[from] = b'0' + (id % 10) as u8;
            id /= 10;
            if id == 0 {
                break;
            }
        }
        from -= 2;
        bytes[from..from + 2].copy_from_slice(StatementName::PREFIX);
        StatementName { bytes, from }
    }

    /// The name.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.from..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(StatementName::of(0).as_bytes(), b"kp0");
        assert_eq!(StatementName::of(1234).as_bytes(), b"kp1234");
        assert_eq!(StatementName::of(u64::MAX).as_bytes(), b"kp18446744073709551615");
    }

    #[test]
    fn a_description_is_good_for_a_while_and_for_one_schema() {
        let (statement, now) = (Statement::test(1), Instant::now());
        statement.note_described(b"t".to_vec(), now, 3);
        assert!(statement.described(now, 3).is_none(), "no server has taken it");
        statement.accept();
        assert!(statement.described(now, 3).is_some());
        assert!(statement.described(now, 4).is_none());
        assert!(statement.described(now + SETTLED_AFTER, 3).is_none());
        statement.outdate();
        assert!(statement.described(now, 3).is_none());
    }
}
