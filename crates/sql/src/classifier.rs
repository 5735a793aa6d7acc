//! Cache of shapes in front of the parser.

use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use pg_query::protobuf::ParseResult;

use crate::class::{Access, Class, Local};
use crate::functions::Functions;
use crate::prepared::{self, PreparedName};
use crate::set::{self, Changes};
use crate::{hint, local, newer, shape, statement, unparsed};

/// Limits of a [`Classifier`], and the operator's knowledge about the database's functions.
#[derive(Debug, Clone)]
pub struct ClassifierConfig {
    /// Maximum number of cached shapes. 0 disables the cache.
    pub max_entries: usize,
    /// Maximum number of bytes of a parsed text: a longer one is a write.
    pub max_text: usize,
    /// Maximum number of bytes of all cached shapes together, including overhead.
    pub max_bytes: usize,
    /// Functions that only read, besides PostgreSQL's own: `name` (as called without a schema) or `schema.name`, spelled as PostgreSQL folds names
    /// (lower case unless quoted).
    pub read_functions: Vec<String>,
}

impl Default for ClassifierConfig {
    fn default() -> Self {
        ClassifierConfig {
            max_entries: 10_000,
            max_text: 64 * 1024,
            max_bytes: 16 * 1024 * 1024,
            read_functions: Vec::new(),
        }
    }
}

/// Counters of a [`Classifier`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Texts answered from the cache.
    pub hits: u64,
    /// Texts that had to be parsed.
    pub misses: u64,
    /// Texts not examined: too long, or not UTF-8.
    pub refused: u64,
    /// Shapes evicted from the cache.
    pub evictions: u64,
    /// Present number of shapes.
    pub entries: usize,
    /// Bytes of the present shapes.
    pub bytes: usize,
}

struct Entry {
    hash: u64,
    key: Box<[u8]>,
    class: Class,
    /// True if requested since the clock hand last passed.
    used: bool,
}

impl Entry {
    fn bytes(&self) -> usize {
        cost(self.key.len())
    }
}

/// Returns the bytes of an entry: its key, itself, and its place in the index.
fn cost(key: usize) -> usize {
    key + size_of::<Entry>() + 2 * size_of::<u32>()
}

/// Classifies texts. One per worker thread: it is `Send`, and its cache is not shared.
///
/// Only for sessions with `standard_conforming_strings = on` and a client encoding in which every byte below 0x80 is ASCII, because the parser
/// assumes both.
pub struct Classifier {
    max_entries: usize,
    max_text: usize,
    max_bytes: usize,
    functions: Functions,
    hasher: RandomState,
    /// Positions in `entries`, by hash of the key.
    index: HashTable<u32>,
    entries: Vec<Entry>,
    /// Clock hand: next entry to be considered for eviction.
    hand: usize,
    /// Key of the current text.
    scratch: Vec<u8>,
    /// Hash of that key; 0 if the text was not examined.
    shape: u64,
    /// Last text of [`Classifier::classify_parsed`], with the result.
    last: Last,
    counters: Counters,
}

/// A text with its class and its shape.
#[derive(Default)]
struct Last {
    text: Vec<u8>,
    said: Option<(Class, u64)>,
}

impl std::fmt::Debug for Classifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Classifier").field("counters", &self.counters).finish_non_exhaustive()
    }
}

impl Classifier {
    /// Creates a classifier with an empty cache.
    #[must_use]
    pub fn new(config: ClassifierConfig) -> Classifier {
        Classifier {
            max_entries: config.max_entries.min(u32::MAX as usize),
            max_text: config.max_text,
            max_bytes: config.max_bytes,
            functions: Functions::new(config.read_functions),
            hasher: RandomState::default(),
            index: HashTable::new(),
            entries: Vec::new(),
            hand: 0,
            scratch: Vec::new(),
            shape: 0,
            last: Last::default(),
            counters: Counters::default(),
        }
    }

    /// Returns the class of a text. Does not allocate if its shape is cached.
    pub fn classify(&mut self, text: &[u8]) -> Class {
        let Some(valid) = self.accept(text) else {
            self.counters.refused += 1;
            self.shape = 0;
            return unparsed::classify(text);
        };
        shape::key(text, &mut self.scratch);
        let hash = self.hash();
        self.shape = hash;
        if let Some(position) = self.find(hash) {
            self.counters.hits += 1;
            let entry = &mut self.entries[position];
            entry.used = true;
            return entry.class;
        }
        self.counters.misses += 1;
        let (class, of_shape) = fresh(valid, &self.functions);
        if of_shape {
            self.insert(hash, class);
        }
        class
    }

    /// Returns the class of a Parse message's text, which is requested twice in a row: when its unit is examined, and when the message is sent.
    pub fn classify_parsed(&mut self, text: &[u8]) -> Class {
        if let Some((class, shape)) = self.last.said
            && self.last.text == text
        {
            self.counters.hits += 1;
            self.shape = shape;
            return class;
        }
        let class = self.classify(text);
        // A text that is too long to be examined is also too long to be kept.
        self.last.said = (self.shape != 0).then_some((class, self.shape));
        if self.last.said.is_some() {
            self.last.text.clear();
            self.last.text.extend_from_slice(text);
        }
        class
    }

    /// Returns a hash of the shape of the last classified text, unique among the shapes of this classifier with high probability; 0 if it has no
    /// shape.
    #[must_use]
    pub fn shape(&self) -> u64 {
        self.shape
    }

    /// Makes texts of this shape writes, after a replica refused the text because it writes. Forgotten if the shape is evicted.
    pub fn demote(&mut self, text: &[u8]) {
        if self.accept(text).is_none() {
            return;
        }
        let class = Class { access: Access::Write, ..self.classify(text) };
        self.last.said = None;
        // classify has left the key in scratch.
        let hash = self.hash();
        if let Some(position) = self.find(hash) {
            self.entries[position].class = class;
        }
    }

    /// Returns the command of a text with [`Class::local`]; `None` if it has none. Parses the text.
    #[must_use]
    pub fn local_command(&self, text: &[u8]) -> Option<Local> {
        local::command(&parse(self.accept(text)?).ok()?)
    }

    /// Returns the changes of the session's parameters by a text with [`Pins::SET`](crate::Pins::SET), [`Pins::ROLE`](crate::Pins::ROLE) or
    /// [`Flags::RESETS_PARAMETERS`](crate::Flags::RESETS_PARAMETERS); `None` if it cannot be parsed. Parses the text.
    #[must_use]
    pub fn changes(&self, text: &[u8]) -> Option<Changes> {
        Some(set::changes(&parse(self.accept(text)?).ok()?, &self.functions))
    }

    /// Returns the prepared statements that a text with [`Flags::NAMES`](crate::Flags::NAMES) names, in the order of the text; none if it cannot be
    /// parsed. Parses the text.
    #[must_use]
    pub fn prepared_names(&self, text: &[u8]) -> Vec<PreparedName> {
        self.accept(text).and_then(|text| parse(text).ok()).map_or_else(Vec::new, |tree| prepared::names(&tree))
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn accept<'t>(&self, text: &'t [u8]) -> Option<&'t str> {
        if text.len() > self.max_text {
            return None;
        }
        str::from_utf8(text).ok()
    }

    fn hash(&self) -> u64 {
        self.hasher.hash_one(self.scratch.as_slice())
    }

    /// Returns the position of the entry with the key in `scratch`.
    fn find(&self, hash: u64) -> Option<usize> {
        let entries = &self.entries;
        let key = self.scratch.as_slice();
        self.index.find(hash, |&i| *entries[i as usize].key == *key).map(|&i| i as usize)
    }

    fn insert(&mut self, hash: u64, class: Class) {
        let bytes = cost(self.scratch.len());
        if bytes > self.max_bytes || self.max_entries == 0 {
            return;
        }
        while self.entries.len() >= self.max_entries || self.counters.bytes + bytes > self.max_bytes {
            self.evict();
        }
        let position = self.entries.len();
        self.entries.push(Entry { hash, key: self.scratch.as_slice().into(), class, used: false });
        let entries = &self.entries;
        #[allow(clippy::cast_possible_truncation)]
        self.index.insert_unique(hash, position as u32, |&i| entries[i as usize].hash);
        self.counters.entries = self.entries.len();
        self.counters.bytes += bytes;
    }

    /// Evicts an entry by second chance: the hand skips entries used since it last passed. There must be an entry.
    fn evict(&mut self) {
        loop {
            if self.hand >= self.entries.len() {
                self.hand = 0;
            }
            let entry = &mut self.entries[self.hand];
            if !std::mem::take(&mut entry.used) {
                break;
            }
            self.hand += 1;
        }
        let position = self.hand;
        let last = self.entries.len() - 1;
        let moved = self.entries[last].hash;
        let gone = self.entries[position].hash;
        if let Ok(place) = self.index.find_entry(gone, |&i| i as usize == position) {
            place.remove();
        }
        if last != position
            && let Some(place) = self.index.find_mut(moved, |&i| i as usize == last)
        {
            #[allow(clippy::cast_possible_truncation)]
            {
                *place = position as u32;
            }
        }
        let entry = self.entries.swap_remove(position);
        self.counters.bytes -= entry.bytes();
        self.counters.entries = self.entries.len();
        self.counters.evictions += 1;
    }
}

/// Classifies a text without the cache. The boolean is true if the class holds for all texts of its shape.
fn fresh(text: &str, functions: &Functions) -> (Class, bool) {
    let hint = hint::hint(text.as_bytes());
    match parse(text) {
        Ok(tree) => (Class { hint, ..statement::classify(&tree, functions) }, true),
        Err(Unparsed::Refused) => {
            let newer = newer::classify(text, functions, |text| parse(text).ok());
            (Class { hint, ..newer.class }, newer.of_shape)
        }
        Err(Unparsed::TooDeep) => (unparsed::classify(text.as_bytes()), true),
    }
}

/// Reason why a text has no parse tree.
enum Unparsed {
    /// The grammar rejects the text; the server will, too, unless it is newer.
    Refused,
    /// The text is nested too deeply, and the server may well accept it.
    TooDeep,
}

/// Beginnings of the grammar's messages about an exhausted parser or C stack.
const TOO_DEEP: [&str; 2] = ["stack depth limit exceeded", "memory exhausted"];

fn parse(text: &str) -> Result<ParseResult, Unparsed> {
    // The binding walks the tree for its own summaries; a panic there must not end the worker.
    match catch_unwind(AssertUnwindSafe(|| pg_query::parse(text, 0))) {
        Ok(Ok(parsed)) => Ok(parsed.protobuf),
        // Only at the beginning: a message ends with a part of the text, which may contain the same words.
        Ok(Err(pg_query::Error::Parse(message))) if !TOO_DEEP.iter().any(|deep| message.starts_with(deep)) => {
            Err(Unparsed::Refused)
        }
        // A NUL.
        Ok(Err(pg_query::Error::Conversion(_))) => Err(Unparsed::Refused),
        Ok(Err(_)) | Err(_) => Err(Unparsed::TooDeep),
    }
}
