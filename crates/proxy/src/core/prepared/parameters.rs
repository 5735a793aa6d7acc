//! Types of a statement's parameters that the client has left open.
//!
//! PostgreSQL determines them when it parses the text (`select … where a = $1`: the type of `a`), and they stay for the life of the prepared
//! statement. When `a` gets another type later, a statement that was prepared before still takes the former type, and one that is prepared now takes
//! the new one. So:
//!
//! - Each server connection gets the statement with the types that the first one has determined, whatever the schema is by then.
//! - From time to time a server is asked if a Parse would still determine the same types, since a schema can change undetected: outside the proxy, in
//!   `DO`, in a function; and after the end of a server connection, since the next one may lead to another database of that name, or begin with
//!   another search path. If a Parse would not, clients that prepare the text from then on get another statement.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::scope::{SETTLED_AFTER, SchemaSnapshot};

/// Types that PostgreSQL treats as undeclared in a Parse: none, `unknown`, `void`.
const OPEN: [u32; 3] = [0, 705, 2278];
/// Minimum time between two checks, in milliseconds, however often the schema may have changed: a limit on the checks if each statement may hide DDL.
const ASKED_JUST_NOW: u64 = 1_000;

#[derive(Debug)]
pub(super) struct Parameters {
    /// True if the text has a parameter whose type the client has not declared.
    open: bool,
    /// Types as in Parse and ParameterDescription: the count (Int16), then the type OIDs (Int32 each).
    settled: OnceLock<Box<[u8]>>,
    /// Time at which a server last determined the same types for a fresh Parse, as milliseconds of a [`SchemaSnapshot`] plus 1; 0: never. Stored after
    /// `version` and `doubts`.
    asked: AtomicU64,
    /// The version of the schema at that check. `doubts`: the number of doubts then.
    version: AtomicU64,
    doubts: AtomicU64,
}

impl Parameters {
    /// Creates the parameters of a text with the types declared in its Parse, and the number of doubts about its namespace until then.
    pub(super) fn new(text: &[u8], declared: &[u8], doubts: u64) -> Parameters {
        Parameters {
            open: is_open(text, declared),
            settled: OnceLock::new(),
            asked: AtomicU64::new(0),
            version: AtomicU64::new(0),
            doubts: AtomicU64::new(doubts),
        }
    }

    pub(super) fn are_open(&self) -> bool {
        self.open
    }

    /// Returns the types that the first server has determined.
    pub(super) fn settled(&self) -> Option<&[u8]> {
        self.settled.get().map(|types| &**types)
    }

    /// Records the types that a server has determined; returns false if another one has determined different types.
    pub(super) fn settle(&self, types: &[u8]) -> bool {
        **self.settled.get_or_init(|| types.into()) == *types
    }

    /// Records that a server, asked `at` that snapshot, has determined the same types for a fresh Parse as the first one.
    pub(super) fn are_still_so(&self, at: SchemaSnapshot) {
        self.version.store(at.version, Ordering::Relaxed);
        self.doubts.store(at.doubts, Ordering::Relaxed);
        self.asked.store(at.millis.saturating_add(1), Ordering::Release);
    }

    /// True if a fresh Parse would determine the same types as the first, as far as known without asking.
    pub(super) fn are_sure(&self, now: SchemaSnapshot) -> bool {
        if self.doubts.load(Ordering::Relaxed) != now.doubts {
            return false;
        }
        if !self.open {
            return true;
        }
        let Some(asked) = self.asked.load(Ordering::Acquire).checked_sub(1) else { return false };
        let age = now.millis.saturating_sub(asked);
        let same = self.version.load(Ordering::Relaxed) == now.version;
        age < ASKED_JUST_NOW || (same && u128::from(age) < SETTLED_AFTER.as_millis())
    }
}

/// True if the text may have a parameter without a declared type. `'$1'` and `a$1` count, although they are not parameters.
fn is_open(text: &[u8], declared: &[u8]) -> bool {
    let mut most = 0;
    let mut rest = text;
    while let Some(at) = rest.iter().position(|&byte| byte == b'$') {
        rest = &rest[at + 1..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit());
        let number =
            digits.fold(0_usize, |number, digit| number.saturating_mul(10).saturating_add(usize::from(digit - b'0')));
        most = most.max(number);
    }
    let types = declared.get(2..).unwrap_or_default().chunks_exact(4);
    let mut types = types.map(|oid| u32::from_be_bytes([oid[0], oid[1], oid[2], oid[3]]));
    most > types.len() || (most > 0 && types.any(|oid| OPEN.contains(&oid)))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::core::prepared::Registry;

    fn types(oids: &[u32]) -> Vec<u8> {
        let count = (oids.len() as u16).to_be_bytes();
        count.into_iter().chain(oids.iter().flat_map(|oid| oid.to_be_bytes())).collect()
    }

    #[test]
    fn which_are_open() {
        let cases: [(&str, &[u32], bool); 12] = [
            ("select 1", &[], false),
            ("select $1", &[], true),
            ("select $1", &[0], true),
            ("select $1", &[705], true),
            ("select $1", &[23], false),
            ("select $1, $2", &[23], true),
            ("select $2, $1", &[23, 25], false),
            ("select $2, $1", &[23, 0], true),
            ("select 1", &[0], false),
            ("select $$a$$, $x$b$x$", &[], false),
            ("select 1$", &[], false),
            ("select $99999999999999999999999999", &[23], true),
        ];
        for (text, declared, expected) in cases {
            assert_eq!(is_open(text.as_bytes(), &types(declared)), expected, "{text} {declared:?}");
        }
    }

    #[test]
    fn how_long_an_answer_is_good() {
        let registry = Registry::default();
        let namespace = registry.namespace(("d", "u"), "");
        let begin = Instant::now();
        let at = |millis| namespace.snapshot(begin + Duration::from_millis(millis));
        let parameters = Parameters::new(b"select $1", &types(&[]), 0);
        assert!(!parameters.are_sure(at(0)), "no server was asked");
        assert!(parameters.settle(&types(&[23])) && parameters.settle(&types(&[23])));
        assert!(!parameters.settle(&types(&[25])));
        assert_eq!(parameters.settled(), Some(&types(&[23])[..]));
        parameters.are_still_so(at(0));
        assert!(parameters.are_sure(at(9_999)) && !parameters.are_sure(at(10_000)));
        // Another worker's clock is slightly behind.
        parameters.are_still_so(at(500));
        assert!(parameters.are_sure(at(499)));
        // A statement that may hide DDL has run.
        let before = at(20_000);
        namespace.schema().changes(begin + Duration::from_secs(20), false);
        parameters.are_still_so(before);
        assert!(parameters.are_sure(at(20_999)) && !parameters.are_sure(at(21_000)));
        parameters.are_still_so(at(21_000));
        assert!(parameters.are_sure(at(30_000)));
        // A server connection has ended, also between a question and its answer.
        let before = at(30_000);
        namespace.invalidate();
        assert!(!parameters.are_sure(at(30_000)));
        parameters.are_still_so(before.answered(at(30_001)));
        assert!(!parameters.are_sure(at(30_001)));
        parameters.are_still_so(at(30_000));
        assert!(parameters.are_sure(at(30_000)));
        // Schemas of other databases and connections of other users do not count.
        registry.namespace(("d", "v"), "").invalidate();
        registry.namespace(("e", "u"), "").schema().changes(begin, true);
        assert!(parameters.are_sure(at(30_000)));
        assert!(Parameters::new(b"select 1", &types(&[]), 1).are_sure(at(0)));
        assert!(!Parameters::new(b"select 1", &types(&[]), 0).are_sure(at(0)), "it was made before the doubt");
    }
}
