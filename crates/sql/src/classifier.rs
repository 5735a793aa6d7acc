//! The cache of shapes in front of the parser.

use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use pg_query::protobuf::ParseResult;

use crate::class::{Access, Class, Flags, Local};
use crate::functions::Functions;
use crate::set::{self, Changes};
use crate::{hint, local, shape, statement, unparsed};

/// Limits of a [`Classifier`], and what the operator knows about the database's functions.
#[derive(Debug, Clone)]
pub struct ClassifierConfig {
    /// Shapes kept at most. 0: nothing is kept.
    pub max_entries: usize,
    /// Bytes of a text that is parsed at most: a longer one is a write.
    pub max_text: usize,
    /// Bytes that all kept shapes take together at most, with what is kept beside them.
    pub max_bytes: usize,
    /// Functions that only read, besides PostgreSQL's own: `name` (as called without a schema) or `schema.name`,
    /// written as PostgreSQL folds them (lower case unless quoted).
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

/// What a [`Classifier`] has done and holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Texts answered from the cache.
    pub hits: u64,
    /// Texts that had to be parsed.
    pub misses: u64,
    /// Texts not looked at: too long, or not UTF-8.
    pub refused: u64,
    /// Shapes thrown out to make room.
    pub evictions: u64,
    /// Shapes held now.
    pub entries: usize,
    /// Bytes they take now.
    pub bytes: usize,
}

struct Entry {
    hash: u64,
    key: Box<[u8]>,
    class: Class,
    /// Asked for since the hand last came by.
    used: bool,
}

impl Entry {
    fn bytes(&self) -> usize {
        cost(self.key.len())
    }
}

/// Bytes an entry takes: its key, itself, and its place in the index.
fn cost(key: usize) -> usize {
    key + size_of::<Entry>() + 2 * size_of::<u32>()
}

/// Tells what texts are. One per worker thread: it is `Send`, and keeps what it has learned to itself.
///
/// Only for sessions with `standard_conforming_strings = on` and a client encoding in which every byte below 0x80 is
/// ASCII: the parser reads texts that way.
pub struct Classifier {
    max_entries: usize,
    max_text: usize,
    max_bytes: usize,
    functions: Functions,
    hasher: RandomState,
    /// Positions in `entries`, by hash of the key.
    index: HashTable<u32>,
    entries: Vec<Entry>,
    /// Next entry to be looked at for eviction.
    hand: usize,
    /// The key of the text at hand.
    scratch: Vec<u8>,
    /// Hash of that key; 0 if the text was not looked at.
    shape: u64,
    /// The text that [`Classifier::classify_parsed`] was last given, and what was said of it.
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
    /// An empty one.
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

    /// What the text is. Does not allocate if its shape is known.
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
        let class = fresh(valid, &self.functions);
        self.insert(hash, class);
        class
    }

    /// The same for the text of a Parse, which is asked for twice in a row: when its unit is looked at, and when the message is sent.
    pub fn classify_parsed(&mut self, text: &[u8]) -> Class {
        if let Some((class, shape)) = self.last.said
            && self.last.text == text
        {
            self.counters.hits += 1;
            self.shape = shape;
            return class;
        }
        let class = self.classify(text);
        // A text that is too long to be looked at is too long to be kept.
        self.last.said = (self.shape != 0).then_some((class, self.shape));
        if self.last.said.is_some() {
            self.last.text.clear();
            self.last.text.extend_from_slice(text);
        }
        class
    }

    /// Stands for the shape of the text last classified, among those that this classifier has seen; 0 if it has none. Two
    /// shapes may share one, though hardly ever.
    #[must_use]
    pub fn shape(&self) -> u64 {
        self.shape
    }

    /// A replica refused this text because it writes: from now on texts of its shape are writes. Forgotten if the shape
    /// is evicted.
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

    /// What a text with [`Class::local`] asks of the proxy; None if it is not one. Parses the text.
    #[must_use]
    pub fn local_command(&self, text: &[u8]) -> Option<Local> {
        local::command(&parse(self.accept(text)?).ok()?)
    }

    /// What a text, with [`Pins::SET`](crate::Pins::SET), [`Pins::ROLE`](crate::Pins::ROLE) or
    /// [`Flags::RESETS_PARAMETERS`](crate::Flags::RESETS_PARAMETERS), does to the parameters of its session; None if it can't be
    /// parsed. Parses the text.
    #[must_use]
    pub fn changes(&self, text: &[u8]) -> Option<Changes> {
        Some(set::changes(&parse(self.accept(text)?).ok()?, &self.functions))
    }

    /// What it has done and holds.
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

    /// The position of the entry with the key in `scratch`.
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

    /// Second chance: the hand passes over what was used since it last came by. There must be an entry.
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

/// The class without any cache.
fn fresh(text: &str, functions: &Functions) -> Class {
    let hint = hint::hint(text.as_bytes());
    match parse(text) {
        Ok(tree) => Class { hint, ..statement::classify(&tree, functions) },
        // A newer server may know more than this grammar.
        Err(Unparsed::Refused) => Class { hint, flags: Flags::UNKNOWN, ..Class::UNKNOWN },
        Err(Unparsed::TooDeep) => unparsed::classify(text.as_bytes()),
    }
}

/// Why there is no tree.
enum Unparsed {
    /// The grammar refuses the text; so will the server, unless it is newer.
    Refused,
    /// The server may well accept it.
    TooDeep,
}

/// How messages of a grammar begin that ran out of its stack or of its own.
const TOO_DEEP: [&str; 2] = ["stack depth limit exceeded", "memory exhausted"];

fn parse(text: &str) -> Result<ParseResult, Unparsed> {
    // The binding walks the tree for its own summaries; a panic there must not cost the worker.
    match catch_unwind(AssertUnwindSafe(|| pg_query::parse(text, 0))) {
        Ok(Ok(parsed)) => Ok(parsed.protobuf),
        // At its beginning: a message ends with a piece of the text, where the same words may stand.
        Ok(Err(pg_query::Error::Parse(message))) if !TOO_DEEP.iter().any(|deep| message.starts_with(deep)) => {
            Err(Unparsed::Refused)
        }
        // A NUL.
        Ok(Err(pg_query::Error::Conversion(_))) => Err(Unparsed::Refused),
        Ok(Err(_)) | Err(_) => Err(Unparsed::TooDeep),
    }
}
