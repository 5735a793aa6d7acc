//! The process's prepared statements by scope and text, and each worker's table in front of them.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use foldhash::quality::RandomState;
use hashbrown::HashTable;
use sql::{Class, Flags, Meaning, has_moving_literal, meaning_of};
use topology::NodeId;

use super::baseline::Differences;
use super::scope::{Known, ParseSettings, Schema, Scope, StatementNamespace};
use super::statement::Statement;

/// Parts of the table of statements, each with its own lock.
const SHARDS: usize = 16;
/// A shard is swept when its bytes have doubled since the last sweep and grown by this much more.
const SLACK: usize = 256 << 10;
/// Most sets of parameters that are remembered. Beyond that all are forgotten: clients with one such set may then no
/// longer share statements.
const MOST_READINGS: usize = 1 << 16;

/// The process's statements, and the numbers that stand for namespaces and sets of parameters. A lock is taken when a
/// worker meets a text, a set of parameters, or a pair of database and user for the first time, and in
/// [`Registry::literals_of`].
#[derive(Debug)]
pub(crate) struct Registry {
    /// Gives statement ids and the other numbers.
    next: AtomicU64,
    /// Every parsed text is hashed, so the hash is a fast one, with keys that differ in each process.
    hasher: RandomState,
    born: Instant,
    shards: [Mutex<Shard>; SHARDS],
    namespaces: Mutex<Namespaces>,
    /// Sets of parameters, each with its number.
    parse_settings: Mutex<HashMap<Settings, u64>>,
}

/// Names and values, sorted.
type Settings = Box<[(String, String)]>;

/// A part of the table. A sweep drops the statements that only the table still refers to.
#[derive(Debug, Default)]
struct Shard {
    table: HashTable<(u64, Arc<Statement>)>,
    bytes: usize,
    /// `bytes` after the last sweep.
    swept: usize,
}

/// Database and user by their names on the servers, and what sessions begin with.
type PlaceName = (Arc<str>, Arc<str>, Arc<str>);

#[derive(Debug, Default)]
struct Namespaces {
    by_name: HashMap<PlaceName, Weak<StatementNamespace>>,
    schemas: HashMap<Arc<str>, Weak<Schema>>,
    /// Entries after the last sweep.
    swept: usize,
}

impl Default for Registry {
    fn default() -> Registry {
        Registry {
            next: AtomicU64::new(1),
            hasher: RandomState::default(),
            born: Instant::now(),
            shards: Default::default(),
            namespaces: Mutex::default(),
            parse_settings: Mutex::default(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The namespace of this database and this user, by their names on the servers, for sessions that begin with `start`
    /// (parameters and statements of the configuration; empty: with none).
    pub(crate) fn namespace(&self, (database, user): (&str, &str), start: &str) -> Arc<StatementNamespace> {
        let mut namespaces = lock(&self.namespaces);
        let key: PlaceName = (database.into(), user.into(), start.into());
        if let Some(namespace) = namespaces.by_name.get(&key).and_then(Weak::upgrade) {
            return namespace;
        }
        if namespaces.by_name.len() + namespaces.schemas.len() > 2 * namespaces.swept + 64 {
            namespaces.by_name.retain(|_, namespace| namespace.strong_count() > 0);
            namespaces.schemas.retain(|_, schema| schema.strong_count() > 0);
            namespaces.swept = namespaces.by_name.len() + namespaces.schemas.len();
        }
        let known = namespaces.schemas.get(database).and_then(Weak::upgrade);
        let schema = known.unwrap_or_else(|| {
            let schema = Arc::new(Schema::new(self.born));
            namespaces.schemas.insert(key.0.clone(), Arc::downgrade(&schema));
            schema
        });
        let namespace = Arc::new(StatementNamespace::new(self.number(), schema));
        namespaces.by_name.insert(key, Arc::downgrade(&namespace));
        namespace
    }

    /// In what a node's own session settings differ from those under which sessions run, over all namespaces.
    pub(crate) fn differences(&self, node: NodeId) -> Differences {
        let all: Vec<Arc<StatementNamespace>> =
            lock(&self.namespaces).by_name.values().filter_map(Weak::upgrade).collect();
        let mut differences = Differences::default();
        for namespace in all {
            let of = namespace.baseline(|baseline| baseline.differences(node));
            differences.names.extend(of.names);
            differences.refused |= of.refused;
        }
        differences.names.sort_unstable();
        differences.names.dedup();
        differences
    }

    /// The parse settings for these parameters, which are sorted by name. Parameters that do not change how a text is read are
    /// left out.
    pub(crate) fn parse_settings<'a>(
        &self,
        parameters: impl Iterator<Item = &'a (String, String)> + Clone,
    ) -> ParseSettings {
        let of = |meaning| parameters.clone().filter(move |(name, _)| meaning_of(name) == meaning);
        ParseSettings { names: self.number_of(of(Meaning::Anything)), literals: self.number_of(of(Meaning::Literals)) }
    }

    /// The number of a set of parameters; 0 for the empty set.
    fn number_of<'a>(&self, parameters: impl Iterator<Item = &'a (String, String)>) -> u64 {
        let list: Box<[(String, String)]> = parameters.cloned().collect();
        if list.is_empty() {
            return 0;
        }
        let mut readings = lock(&self.parse_settings);
        if let Some(&number) = readings.get(&list) {
            return number;
        }
        if readings.len() >= MOST_READINGS {
            readings.clear();
        }
        let number = self.number();
        readings.insert(list, number);
        number
    }

    /// The parameters of parse settings that matter to string literals; `None` if they have been forgotten. Takes time
    /// linear in the number of sets.
    pub(crate) fn literals_of(&self, parse_settings: ParseSettings) -> Option<Box<[(String, String)]>> {
        if parse_settings.literals == 0 {
            return Some(Box::default());
        }
        let readings = lock(&self.parse_settings);
        let found = readings.iter().find(|(_, number)| **number == parse_settings.literals);
        found.map(|(list, _)| list.clone())
    }

    /// A new statement for one client alone.
    pub(crate) fn private(
        &self,
        namespace: &StatementNamespace,
        text: &[u8],
        types: &[u8],
        class: Class,
    ) -> Arc<Statement> {
        Arc::new(Statement::new(self.number(), None, text, types, class, namespace.known()))
    }

    /// The statement for this scope and text. Two kinds of texts give a new statement each time: those with a literal such as `'now'`, which is
    /// evaluated when the text is parsed; and `EXECUTE q1` and `FETCH c1`, whose columns depend on what the session has under that name then.
    fn intern(&self, hash: u64, scope: Scope, text: &[u8], types: &[u8], class: Class, known: Known) -> Arc<Statement> {
        if class.flags.has(Flags::OF_SESSION) || has_moving_literal(text) {
            return Arc::new(Statement::new(self.number(), None, text, types, class, known));
        }
        // The shard is chosen by the highest bits, because the table uses the lowest.
        let mut shard = lock(&self.shards[(hash >> 60) as usize % SHARDS]);
        let is_same = |entry: &(u64, Arc<Statement>)| entry.0 == hash && entry.1.is(scope, text, types);
        let found = shard.table.find_entry(hash, is_same);
        if let Ok(mut found) = found {
            if !found.get().1.is_current(known) {
                found.get_mut().1 = Arc::new(Statement::new(self.number(), Some(scope), text, types, class, known));
            }
            return found.get().1.clone();
        }
        let statement = Arc::new(Statement::new(self.number(), Some(scope), text, types, class, known));
        if shard.bytes + statement.weight() > 2 * shard.swept + SLACK {
            shard.sweep();
        }
        shard.bytes += statement.weight();
        shard.table.insert_unique(hash, (hash, statement.clone()), |entry| entry.0);
        statement
    }

    /// Number of statements in the table, and their bytes.
    #[cfg(test)]
    fn kept(&self) -> (usize, usize) {
        self.shards.iter().fold((0, 0), |(count, bytes), shard| {
            let shard = lock(shard);
            (count + shard.table.len(), bytes + shard.bytes)
        })
    }
}

impl Shard {
    /// Drops statements that only the table refers to.
    fn sweep(&mut self) {
        self.table.retain(|entry| Arc::strong_count(&entry.1) > 1);
        self.bytes = self.table.iter().map(|entry| entry.1.weight()).sum();
        self.swept = self.bytes;
    }
}

/// A worker's access to statements: a bounded table of statements that a server has accepted, in front of the registry.
#[derive(Debug)]
pub(crate) struct Statements {
    registry: Arc<Registry>,
    table: HashTable<Entry>,
    most: usize,
    bytes: usize,
    most_bytes: usize,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    hash: u64,
    used: u64,
    statement: Arc<Statement>,
}

impl Statements {
    /// A table of at most `most` statements and 16 MiB. A statement dropped from it lives on while clients have it.
    pub(crate) fn new(registry: Arc<Registry>, most: usize) -> Statements {
        Statements { registry, table: HashTable::new(), most: most.max(16), bytes: 0, most_bytes: 16 << 20, clock: 0 }
    }

    /// The statement for this text, types, namespace and parse settings. The table keeps only texts that a server has accepted:
    /// any other may not even be SQL.
    pub(crate) fn get(
        &mut self,
        namespace: &StatementNamespace,
        parse_settings: ParseSettings,
        text: &[u8],
        types: &[u8],
        class: Class,
    ) -> Arc<Statement> {
        let (scope, known) = (Scope::new(namespace, parse_settings.of(text)), namespace.known());
        self.clock += 1;
        let hash = self.registry.hasher.hash_one((scope, text, types));
        let found = self.table.find_mut(hash, |entry| entry.hash == hash && entry.statement.is(scope, text, types));
        if let Some(entry) = found {
            entry.used = self.clock;
            if entry.statement.is_current(known) {
                return entry.statement.clone();
            }
        }
        let statement = self.registry.intern(hash, scope, text, types, class, known);
        if statement.scope().is_none() {
            return statement;
        }
        // (A fresh statement replaces an outdated one in any case.)
        let found = self.table.find_mut(hash, |entry| entry.hash == hash && entry.statement.is(scope, text, types));
        match found {
            Some(entry) => entry.statement = statement.clone(),
            None if statement.is_accepted() => self.keep(hash, &statement),
            None => {}
        }
        statement
    }

    fn keep(&mut self, hash: u64, statement: &Arc<Statement>) {
        if self.table.len() >= self.most || self.bytes + statement.weight() > self.most_bytes {
            self.evict();
        }
        if statement.weight() > self.most_bytes / 2 {
            return;
        }
        self.bytes += statement.weight();
        let entry = Entry { hash, used: self.clock, statement: statement.clone() };
        self.table.insert_unique(hash, entry, |entry| entry.hash);
    }

    /// Drops the less recently used half of the table: rarely needed, and no more work for a while after.
    fn evict(&mut self) {
        let mut used: Vec<u64> = self.table.iter().map(|entry| entry.used).collect();
        if used.is_empty() {
            return;
        }
        let middle = used.len() / 2;
        let (_, &mut limit, _) = used.select_nth_unstable(middle);
        self.table.retain(|entry| entry.used > limit);
        self.bytes = self.table.iter().map(|entry| entry.statement.weight()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_TYPES: &[u8] = b"\0\0";

    struct World {
        registry: Arc<Registry>,
        a: Statements,
        b: Statements,
    }

    fn world() -> World {
        let registry = Arc::new(Registry::default());
        let table = || Statements::new(registry.clone(), 16);
        World { a: table(), b: table(), registry }
    }

    fn get(table: &mut Statements, namespace: &StatementNamespace, text: &str) -> Arc<Statement> {
        let statement = table.get(namespace, ParseSettings::DEFAULT, text.as_bytes(), NO_TYPES, Class::UNKNOWN);
        statement.accept();
        statement
    }

    #[test]
    fn one_content_is_one_statement_across_workers_and_evictions() {
        let mut world = world();
        let namespace = world.registry.namespace(("d", "u"), "");
        let first = get(&mut world.a, &namespace, "select 1");
        assert!(Arc::ptr_eq(&first, &get(&mut world.b, &namespace, "select 1")));
        let typed = world.a.get(&namespace, ParseSettings::DEFAULT, b"select 1", b"\0\x01\0\0\0\x17", Class::UNKNOWN);
        assert_ne!(first.id(), typed.id());
        for i in 0..1000 {
            get(&mut world.a, &namespace, &format!("select {i}, x"));
            assert!(world.a.table.len() <= 16);
        }
        assert!(Arc::ptr_eq(&first, &get(&mut world.a, &namespace, "select 1")));
    }

    #[test]
    fn databases_users_and_parameters_have_statements_of_their_own() {
        let mut world = world();
        let registry = world.registry.clone();
        let places =
            [("d", "u"), ("e", "u"), ("d", "v")].map(|(database, user)| registry.namespace((database, user), ""));
        assert!(Arc::ptr_eq(&places[0], &registry.namespace(("d", "u"), "")));
        let parse_settings =
            |name: &str, value: &str| registry.parse_settings([(name.to_owned(), value.to_owned())].iter());
        let readings = [
            ParseSettings::DEFAULT,
            parse_settings("timezone", "UTC"),
            parse_settings("timezone", "Asia/Tokyo"),
            parse_settings("search_path", "a"),
            parse_settings("search_path", "b"),
        ];
        assert_eq!(
            (parse_settings("timezone", "UTC"), parse_settings("app.tenant", "a")),
            (readings[1], ParseSettings::DEFAULT)
        );
        let mut different = |text: &str| {
            let mut ids = Vec::new();
            for namespace in &places {
                for parse_settings in readings {
                    ids.push(world.a.get(namespace, parse_settings, text.as_bytes(), NO_TYPES, Class::UNKNOWN).id());
                }
            }
            ids.sort_unstable();
            ids.dedup();
            ids.len()
        };
        assert_eq!(different("select 'x' from t"), 3 * 5);
        assert_eq!(different("select $1 from t"), 3 * 3, "a time zone changes nothing where there is no literal");
        assert!(readings[1].differs_in_literals(readings[2]) && !readings[1].differs_in_literals(readings[3]));
        let tokyo = [("timezone".to_owned(), "Asia/Tokyo".to_owned())];
        assert_eq!(registry.literals_of(readings[2]).as_deref(), Some(&tokyo[..]));
        assert_eq!(registry.literals_of(readings[3]).as_deref(), Some(&[][..]));
        // A change of the schema is the database's, whoever makes it.
        places[2].schema().changes(Instant::now(), true);
        assert_eq!((places[0].schema().declared(), places[1].schema().declared()), (1, 0));
    }

    #[test]
    fn after_ddl_a_content_is_a_new_statement() {
        let mut world = world();
        let namespace = world.registry.namespace(("d", "u"), "");
        let begin = Class { control: sql::Control::Begin { read_only: false }, ..Class::UNKNOWN };
        let mut both = |text: &str, class: Class| {
            let one = world.a.get(&namespace, ParseSettings::DEFAULT, text.as_bytes(), NO_TYPES, class);
            one.accept();
            assert!(Arc::ptr_eq(
                &one,
                &world.b.get(&namespace, ParseSettings::DEFAULT, text.as_bytes(), NO_TYPES, class)
            ));
            one.id()
        };
        let before = (both("table t", Class::UNKNOWN), both("begin", begin));
        namespace.schema().changes(Instant::now(), false);
        assert_eq!((both("table t", Class::UNKNOWN), both("begin", begin)), before);
        namespace.schema().changes(Instant::now(), true);
        assert_ne!(both("table t", Class::UNKNOWN), before.0);
        assert_eq!(both("begin", begin), before.1);
    }

    #[test]
    fn a_time_in_a_text_is_nobody_elses() {
        let mut world = world();
        let namespace = world.registry.namespace(("d", "u"), "");
        let (one, other) =
            (get(&mut world.a, &namespace, "select 'now'"), get(&mut world.a, &namespace, "select 'now'"));
        assert!(one.id() != other.id() && one.scope().is_none());
        assert_eq!(world.registry.kept().0, 0);
    }

    #[test]
    fn texts_that_nobody_has_any_more_are_not_kept() {
        let mut world = world();
        let namespace = world.registry.namespace(("d", "u"), "");
        // Together they are twice what may be kept; longer ones take a minute where nothing is optimised.
        const LONG: usize = 64 << 10;
        let long = "x".repeat(LONG);
        world.a.most_bytes = 16 * LONG;
        for n in 0..300 {
            // No server has taken it.
            drop(world.a.get(
                &namespace,
                ParseSettings::DEFAULT,
                format!("{n} {long}").as_bytes(),
                NO_TYPES,
                Class::UNKNOWN,
            ));
        }
        let (_, bytes) = world.registry.kept();
        assert!(bytes <= SHARDS * (LONG + 2 * SLACK), "{bytes}");
        assert_eq!(world.a.bytes, 0);
        // Nor are those that servers have taken, but for a worker's table.
        for n in 0..300 {
            get(&mut world.a, &namespace, &format!("{n} {long}"));
            get(&mut world.a, &namespace, &format!("{n} {long}"));
        }
        assert!(world.a.bytes <= world.a.most_bytes);
        let (_, bytes) = world.registry.kept();
        assert!(bytes <= 2 * world.a.most_bytes + SHARDS * (LONG + 2 * SLACK), "{bytes}");
    }

    #[test]
    fn places_that_nobody_has_any_more_are_forgotten() {
        let registry = Registry::default();
        let kept = registry.namespace(("d", "u"), "");
        for n in 0..10_000 {
            registry.namespace((&n.to_string(), "u"), "");
        }
        let namespaces = lock(&registry.namespaces);
        assert!(namespaces.by_name.len() < 200 && namespaces.schemas.len() < 200);
        drop(namespaces);
        assert!(Arc::ptr_eq(&kept, &registry.namespace(("d", "u"), "")));
        // Sessions that begin otherwise read the same text otherwise, but see the same schema.
        let other = registry.namespace(("d", "u"), "search_path=s\0");
        assert!(!Arc::ptr_eq(&kept, &other) && std::ptr::eq(kept.schema(), other.schema()));
    }
}
