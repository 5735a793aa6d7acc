//! Prepared statements, shared by content: all clients of all workers that prepare the same text with the same
//! parameter types share one [`Statement`], and a server connection holds it once, under a name made from its id.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use hashbrown::HashTable;
use sql::Class;

/// A text with parameter types.
#[derive(Debug)]
pub struct Statement {
    /// Never given twice in a process; never 0.
    pub id: u64,
    /// Stands for the session parameters that it was parsed under.
    pub dialect: u64,
    /// The text, without its NUL.
    pub text: Box<[u8]>,
    /// Count and ids of the declared parameter types, as on the wire.
    pub types: Box<[u8]>,
    /// What it is.
    pub class: Class,
    /// A server has taken it once: its Parse may be answered without asking again.
    pub accepted: AtomicBool,
    /// Hash of its `RowDescription`, or of there being none, once a client has asked for it.
    pub shape: OnceLock<u64>,
    /// Its columns have changed since: nobody is given it any more.
    pub outdated: AtomicBool,
    /// A replica refused to run it.
    pub demoted: AtomicBool,
    /// How often it came without a name; not counted beyond [`Statement::MANY`].
    unnamed: AtomicU32,
    /// What a server has answered to its Describe last.
    described: ArcSwapOption<Described>,
    /// What [`Registry::ddl`] was when it was made.
    ddl: u64,
}

/// A server's answer to a Describe.
#[derive(Debug)]
pub struct Described {
    /// `ParameterDescription`, and `RowDescription` or `NoData`, as messages.
    pub messages: Box<[u8]>,
    /// When it came.
    at: Instant,
    /// What the cluster's schema was when it was asked for, as far as changes are known of.
    schema: u64,
}

/// For so long a server's answer to a Describe is given to others, if nobody is seen to change the schema.
const DESCRIBED_FOR: Duration = Duration::from_secs(10);
/// Longest text that is kept for its coming again without a name, in bytes.
const MOST_UNNAMED: usize = 8 << 10;

impl Statement {
    /// A statement that is not kept, of which nothing is known.
    pub fn unknown() -> Statement {
        Statement::new(0, 0, (Box::default(), Box::default()), Class::UNKNOWN, 0)
    }

    /// One that no server has been given yet, of this text and these types.
    fn new(id: u64, dialect: u64, (text, types): (Box<[u8]>, Box<[u8]>), class: Class, ddl: u64) -> Statement {
        Statement {
            id,
            dialect,
            text,
            types,
            class,
            accepted: AtomicBool::new(false),
            shape: OnceLock::new(),
            outdated: AtomicBool::new(false),
            demoted: AtomicBool::new(false),
            unnamed: AtomicU32::new(0),
            described: ArcSwapOption::empty(),
            ddl,
        }
    }

    /// True if a Parse of its content may still be one of it: what servers made of it may depend on what the schema was then, and
    /// only a fresh one is sure to be understood as the schema is now.
    fn is_current(&self, ddl: u64) -> bool {
        !self.outdated.load(Ordering::Relaxed) && (self.ddl == ddl || self.class.control != sql::Control::None)
    }

    /// From so many times on it is thought to come again.
    const MANY: u32 = 2;

    /// It was parsed without a name.
    pub fn note_unnamed(&self) {
        if self.unnamed.load(Ordering::Relaxed) < Statement::MANY {
            self.unnamed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// True if it comes again and again without a name, and servers may keep it.
    pub fn is_recurring(&self) -> bool {
        self.unnamed.load(Ordering::Relaxed) >= Statement::MANY
            && self.text.len() <= MOST_UNNAMED
            && !self.outdated.load(Ordering::Relaxed)
    }

    /// Keeps a server's answer to a Describe.
    pub fn note_described(&self, messages: Vec<u8>, at: Instant, schema: u64) {
        self.described.store(Some(Arc::new(Described { messages: messages.into(), at, schema })));
    }

    /// What a server would answer to a Describe now, if that is known.
    pub fn described(&self, now: Instant, schema: u64) -> Option<Arc<Described>> {
        if self.outdated.load(Ordering::Relaxed) || !self.accepted.load(Ordering::Relaxed) {
            return None;
        }
        let described = self.described.load_full()?;
        let fresh = now.saturating_duration_since(described.at) < DESCRIBED_FOR && described.schema == schema;
        fresh.then_some(described)
    }

    /// What a server says its columns are. False if that is not what was said before.
    pub fn is_described_as(&self, tag: u8, description: &[u8]) -> bool {
        let mut hasher = DefaultHasher::new();
        (tag, description).hash(&mut hasher);
        let shape = hasher.finish();
        *self.shape.get_or_init(|| shape) == shape
    }

    /// Its name in server connections.
    pub fn name(&self) -> StatementName {
        StatementName::of(self.id)
    }
}

/// `kp` and the id in decimal, without allocating.
pub struct StatementName {
    bytes: [u8; 22],
    from: usize,
}

impl StatementName {
    /// What all of them begin with.
    pub const PREFIX: &[u8] = b"kp";

    /// The name of the statement with this id.
    pub fn of(mut id: u64) -> StatementName {
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
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.from..]
    }
}

/// The process's statements; asked only when a worker meets a text for the first time.
#[derive(Debug, Default)]
pub struct Registry {
    next: AtomicU64,
    /// Grows when a client changes the schema: before that is sent, and when it may have been committed.
    schema: AtomicU64,
    /// The same, for changes by statements that say so.
    ddl: AtomicU64,
    changed: Mutex<Option<Instant>>,
    known: Mutex<HashMap<Content, Weak<Statement>>>,
}

type Content = (u64, Box<[u8]>, Box<[u8]>);

impl Registry {
    /// Stands for the cluster's schema, as far as this process knows of changes.
    pub fn schema(&self) -> u64 {
        self.schema.load(Ordering::Acquire)
    }

    /// Stands for the cluster's schema as statements that say so have changed it.
    pub fn ddl(&self) -> u64 {
        self.ddl.load(Ordering::Acquire)
    }

    /// A client changes the schema, or may have committed that; `openly`: by a statement that says so. Every Parse after it is a
    /// fresh one then, as it would be without the proxy.
    pub fn schema_changes(&self, now: Instant, openly: bool) {
        if openly {
            self.ddl.fetch_add(1, Ordering::AcqRel);
        }
        *self.changed.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        self.schema.fetch_add(1, Ordering::AcqRel);
    }

    /// True if it has been changed so lately that a replica may not know.
    pub fn has_changed_lately(&self, now: Instant) -> bool {
        let changed = *self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        changed.is_some_and(|at| now.saturating_duration_since(at) < DESCRIBED_FOR)
    }

    fn intern(&self, dialect: u64, text: &[u8], types: &[u8], class: Class) -> Arc<Statement> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key: Content = (dialect, text.into(), types.into());
        let current = known.get(&key).and_then(Weak::upgrade).filter(|s| s.is_current(self.ddl()));
        if let Some(statement) = current {
            return statement;
        }
        if known.len() >= 1024 && known.len().is_power_of_two() {
            known.retain(|_, statement| statement.strong_count() > 0);
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let content = (key.1.clone(), key.2.clone());
        let statement = Arc::new(Statement::new(id, dialect, content, class, self.ddl()));
        known.insert(key, Arc::downgrade(&statement));
        statement
    }
}

/// A worker's own way to statements: a bounded table in front of the registry.
pub struct Statements {
    registry: Arc<Registry>,
    hasher: RandomState,
    table: HashTable<Entry>,
    most: usize,
    /// Total text length of the table, in bytes.
    bytes: usize,
    most_bytes: usize,
    clock: u64,
}

struct Entry {
    hash: u64,
    used: u64,
    statement: Arc<Statement>,
}

impl Statements {
    /// A table of at most `most` statements and 16 MiB of text; what it evicts lives on while clients hold it.
    pub fn new(registry: Arc<Registry>, most: usize) -> Statements {
        Statements {
            registry,
            hasher: RandomState::new(),
            table: HashTable::new(),
            most: most.max(16),
            bytes: 0,
            most_bytes: 16 << 20,
            clock: 0,
        }
    }

    /// The statement of this content; `classify` is asked if this worker does not know it.
    pub fn get(&mut self, dialect: u64, text: &[u8], types: &[u8], classify: impl FnOnce() -> Class) -> Arc<Statement> {
        self.clock += 1;
        let hash = self.hasher.hash_one((dialect, text, types));
        let same = |entry: &Entry| {
            entry.hash == hash
                && entry.statement.dialect == dialect
                && *entry.statement.text == *text
                && *entry.statement.types == *types
        };
        if let Some(entry) = self.table.find_mut(hash, same) {
            entry.used = self.clock;
            if !entry.statement.is_current(self.registry.ddl()) {
                entry.statement = self.registry.intern(dialect, text, types, classify());
            }
            return entry.statement.clone();
        }
        let statement = self.registry.intern(dialect, text, types, classify());
        if self.table.len() >= self.most || self.bytes > self.most_bytes {
            self.evict();
        }
        self.bytes += text.len();
        let entry = Entry { hash, used: self.clock, statement: statement.clone() };
        self.table.insert_unique(hash, entry, |entry| entry.hash);
        statement
    }

    /// Drops the half that was not used for longest: rare, and then cheap for a while.
    fn evict(&mut self) {
        let mut used: Vec<u64> = self.table.iter().map(|entry| entry.used).collect();
        let middle = used.len() / 2;
        let (_, &mut limit, _) = used.select_nth_unstable(middle);
        self.table.retain(|entry| entry.used > limit);
        self.bytes = self.table.iter().map(|entry| entry.statement.text.len()).sum();
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
    fn one_content_is_one_statement_across_workers_and_evictions() {
        let registry = Arc::new(Registry::default());
        let mut a = Statements::new(registry.clone(), 16);
        let mut b = Statements::new(registry, 16);
        let first = a.get(0, b"select 1", b"\0\0", || Class::UNKNOWN);
        assert!(Arc::ptr_eq(&first, &b.get(0, b"select 1", b"\0\0", || Class::UNKNOWN)));
        assert_ne!(first.id, a.get(0, b"select 1", b"\0\x01\0\0\0\x17", || Class::UNKNOWN).id);
        for i in 0..1000 {
            a.get(0, format!("select {i}, x").as_bytes(), b"\0\0", || Class::UNKNOWN);
            assert!(a.table.len() <= 16);
        }
        assert!(Arc::ptr_eq(&first, &a.get(0, b"select 1", b"\0\0", || Class::UNKNOWN)));
    }
    #[test]
    fn after_ddl_a_content_is_a_new_statement() {
        let registry = Arc::new(Registry::default());
        let (mut a, mut b) = (Statements::new(registry.clone(), 16), Statements::new(registry.clone(), 16));
        let mut get = |text: &[u8], class: Class| {
            let statement = a.get(0, text, b"\0\0", || class);
            assert!(Arc::ptr_eq(&statement, &b.get(0, text, b"\0\0", || class)));
            statement.id
        };
        let begin = Class { control: sql::Control::Begin { read_only: false }, ..Class::UNKNOWN };
        let before = (get(b"table t", Class::UNKNOWN), get(b"begin", begin));
        registry.schema_changes(Instant::now(), false);
        assert_eq!((get(b"table t", Class::UNKNOWN), get(b"begin", begin)), before);
        registry.schema_changes(Instant::now(), true);
        assert_ne!(get(b"table t", Class::UNKNOWN), before.0);
        assert_eq!(get(b"begin", begin), before.1);
    }
}
