//! A prepared statement: a text and its parameter types, in one scope.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use sql::{Access, Changes, Class, Flags};

use super::columns::Columns;
use super::parameters::Parameters;
use super::scope::{Known, SETTLED_AFTER, SchemaSnapshot, Scope};

/// Maximum length in bytes of an unnamed statement that server connections keep.
const MOST_UNNAMED: usize = 8 << 10;
/// Number of Parses without a name after which a statement is expected to recur.
const MANY: u32 = 2;
/// Approximate size of a statement besides its text and types, in bytes.
const FIXED: usize = 384;

/// A text and its parameter types, in one scope. Clients of the scope share the statement. A server connection has it at most once, under a name made
/// from `id`.
#[derive(Debug)]
pub(crate) struct Statement {
    id: u64,
    /// Scope of the text. `None`: the statement belongs to one client alone, because its meaning is unknown: the client has unknown settings, or the
    /// text has a literal such as `'now'`.
    scope: Option<Scope>,
    text: Box<[u8]>,
    types: Box<[u8]>,
    parameters: Parameters,
    class: Class,
    /// Value of [`super::scope::Schema::declared`] at the statement's creation.
    declared: u64,
    /// True if a server has accepted the statement at least once.
    accepted: AtomicBool,
    /// Columns that clients are told of, once a client has asked.
    columns: OnceLock<Columns>,
    /// True if the columns have changed since: no further client gets the statement.
    outdated: AtomicBool,
    /// True if a Parse of the text gives other parameters or columns by now: no further client gets the statement, but its present clients keep it.
    superseded: AtomicBool,
    /// True if a replica has refused to run the statement.
    demoted: AtomicBool,
    /// Number of Parses without a name; not counted beyond [`MANY`].
    unnamed: AtomicU32,
    /// The last answer of a server to a Describe.
    described: ArcSwapOption<Described>,
    /// Changes of the statement to parameters and channels, once requested; `None` if unknown.
    changes: OnceLock<Option<Arc<Changes>>>,
}

/// A server's answer to a Describe.
#[derive(Debug)]
pub(crate) struct Described {
    /// `ParameterDescription`, then `RowDescription` or `NoData`, as whole messages.
    pub(crate) messages: Box<[u8]>,
    /// Time of the answer.
    at: Instant,
    /// Value of [`super::scope::Schema::version`] when the Describe was sent.
    schema: u64,
}

impl Statement {
    pub(super) fn new(
        id: u64,
        scope: Option<Scope>,
        text: &[u8],
        types: &[u8],
        class: Class,
        known: Known,
    ) -> Statement {
        Statement {
            id,
            scope,
            text: text.into(),
            types: types.into(),
            parameters: Parameters::new(text, types, known.doubts),
            class,
            declared: known.declared,
            accepted: AtomicBool::new(false),
            columns: OnceLock::new(),
            outdated: AtomicBool::new(false),
            superseded: AtomicBool::new(false),
            demoted: AtomicBool::new(false),
            unnamed: AtomicU32::new(0),
            described: ArcSwapOption::empty(),
            changes: OnceLock::new(),
        }
    }

    /// Creates a placeholder for an unknown statement that is not cached.
    pub(crate) fn unknown() -> Statement {
        Statement::new(0, None, b"", b"\0\0", Class::UNKNOWN, Known::default())
    }

    /// Returns the ID: unique in the process; 0 only for [`Statement::unknown`].
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the statement's name on server connections.
    pub(crate) fn name(&self) -> StatementName {
        StatementName::of(self.id)
    }

    /// Returns the scope in which the text was read; `None` if the statement belongs to one client alone.
    pub(crate) fn scope(&self) -> Option<Scope> {
        self.scope
    }

    /// Returns the text, without its NUL.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Returns the parameter types declared by the client, as on the wire: the count, then the type OIDs.
    pub(crate) fn types(&self) -> &[u8] {
        &self.types
    }

    /// Returns the parameter types with which a server connection gets the statement: those that the first server has determined, once they are
    /// known.
    pub(crate) fn settled_types(&self) -> &[u8] {
        self.parameters.settled().unwrap_or(&self.types)
    }

    /// True if the client has left the type of a parameter open.
    pub(crate) fn leaves_types_open(&self) -> bool {
        self.parameters.are_open()
    }

    /// Records the parameter types with which a server has described the statement; returns false if the first server has determined others; then no
    /// further client gets the statement.
    pub(crate) fn has_types(&self, types: &[u8]) -> bool {
        let same = !self.parameters.are_open() || self.parameters.settle(types);
        self.superseded.fetch_or(!same, Ordering::Relaxed);
        same
    }

    /// Records a server's description of a fresh Parse of the text; `None` for one that is too long to compare. If the statement was prepared with
    /// other parameters, or returns other columns, no further client gets the statement.
    pub(crate) fn parses_as(&self, parameters: Option<&[u8]>, columns: Option<Columns>, at: SchemaSnapshot) {
        let same = parameters.is_some_and(|types| self.has_types(types))
            && columns.is_none_or(|columns| self.columns().is_none_or(|told| told == columns));
        if same {
            self.parameters.are_still_so(at);
        }
        self.superseded.fetch_or(!same, Ordering::Relaxed);
    }

    /// Records that a server rejects the statement with the parameters that the first server has determined. A new Parse of the text determines them
    /// again.
    pub(crate) fn does_not_parse(&self) {
        self.superseded.fetch_or(self.parameters.settled().is_some(), Ordering::Relaxed);
    }

    /// True if a Parse of the text would give this statement's parameters and columns, as far as known without asking a server.
    pub(crate) fn is_sure(&self, now: SchemaSnapshot) -> bool {
        let settled = !self.parameters.are_open();
        let rowless = self.class.flags.has(Flags::ROWLESS) || self.class.control != sql::Control::None;
        (settled && rowless) || self.parameters.are_sure(now)
    }

    /// Returns the statement's class. A read that a replica has refused counts as a write: it may call a function that writes.
    pub(crate) fn class(&self) -> Class {
        if self.is_demoted() { Class { access: Access::Write, ..self.class } } else { self.class }
    }

    /// Returns the approximate size in bytes.
    pub(super) fn weight(&self) -> usize {
        FIXED + self.text.len() + self.types.len()
    }

    pub(super) fn is(&self, scope: Scope, text: &[u8], types: &[u8]) -> bool {
        self.scope == Some(scope) && *self.text == *text && *self.types == *types
    }

    /// True if a Parse of the same text may be answered with this statement. After DDL only a fresh Parse is sure to see the present schema.
    pub(super) fn is_current(&self, known: Known) -> bool {
        !self.is_outdated()
            && !self.superseded.load(Ordering::Relaxed)
            && (self.declared == known.declared || self.class.control != sql::Control::None)
    }

    /// True if a server has accepted the statement: the proxy may answer a Parse of it.
    pub(crate) fn is_accepted(&self) -> bool {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Records that a server has accepted the statement.
    pub(crate) fn accept(&self) {
        self.accepted.store(true, Ordering::Relaxed);
    }

    /// True if the columns have changed since clients were told: a fresh statement has to replace this one.
    pub(crate) fn is_outdated(&self) -> bool {
        self.outdated.load(Ordering::Relaxed)
    }

    /// Records that the columns are no longer those that clients were told of.
    pub(crate) fn outdate(&self) {
        self.outdated.store(true, Ordering::Relaxed);
    }

    fn is_demoted(&self) -> bool {
        self.demoted.load(Ordering::Relaxed)
    }

    /// Records that a replica has refused the statement: it is sent to the primary from now on.
    pub(crate) fn demote(&self) {
        self.demoted.store(true, Ordering::Relaxed);
    }

    /// Counts a Parse without a name.
    pub(crate) fn note_unnamed(&self) {
        if self.unnamed.load(Ordering::Relaxed) < MANY {
            self.unnamed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// True if the statement is repeatedly parsed without a name, and may be kept on server connections.
    pub(crate) fn is_recurring(&self) -> bool {
        self.scope.is_some()
            && self.unnamed.load(Ordering::Relaxed) >= MANY
            && self.text.len() <= MOST_UNNAMED
            && !self.is_outdated()
    }

    /// Records the columns that a server has described; returns false if they differ from those described before.
    pub(crate) fn has_columns(&self, columns: Columns) -> bool {
        *self.columns.get_or_init(|| columns) == columns
    }

    /// Returns the columns that clients are told of, if any client has asked.
    pub(crate) fn columns(&self) -> Option<Columns> {
        self.columns.get().copied()
    }

    /// Caches a server's answer to a Describe for other clients.
    pub(crate) fn note_described(&self, messages: Vec<u8>, at: Instant, schema: u64) {
        self.described.store(Some(Arc::new(Described { messages: messages.into(), at, schema })));
    }

    /// Returns the present answer of a server to a Describe, if it is known.
    pub(crate) fn described(&self, now: Instant, schema: u64) -> Option<Arc<Described>> {
        if self.is_outdated() || !self.is_accepted() {
            return None;
        }
        let described = self.described.load_full()?;
        let fresh = now.saturating_duration_since(described.at) < SETTLED_AFTER && described.schema == schema;
        fresh.then_some(described)
    }

    /// Returns the statement's changes to parameters and channels; `None` if unknown. `read` is called once, for the first caller.
    pub(crate) fn changes(&self, read: impl FnOnce() -> Option<Changes>) -> Option<Arc<Changes>> {
        self.changes.get_or_init(|| read().map(Arc::new)).clone()
    }
}

#[cfg(test)]
impl Statement {
    /// A statement for tests.
    pub(super) fn test(id: u64) -> Statement {
        Statement::test_of(id, b"select 1")
    }

    pub(super) fn test_of(id: u64, text: &[u8]) -> Statement {
        Statement::new(id, None, text, b"\0\0", Class::UNKNOWN, Known::default())
    }
}

/// Name of a statement on servers: `kp` and the ID in decimal. Created without allocating.
pub(crate) struct StatementName {
    bytes: [u8; 22],
    from: usize,
}

impl fmt::Display for StatementName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(self.as_bytes()).unwrap_or_default())
    }
}

impl StatementName {
    /// Prefix of all such names.
    pub(crate) const PREFIX: &[u8] = b"kp";

    /// True for a name that a statement of the proxy's may have.
    pub(crate) fn is_like(name: &[u8]) -> bool {
        let digits = name.strip_prefix(StatementName::PREFIX);
        digits.is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
    }

    /// Returns the name of the statement with this ID.
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

    /// Returns the bytes of the name.
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
        assert_eq!(StatementName::of(1234).to_string(), "kp1234");
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
