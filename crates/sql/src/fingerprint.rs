//! Fingerprint of a statement: a number shared by all texts that differ only in their literals.
//!
//! It is libpg_query's. Unlike a shape's hash (`Classifier::shape`) it is the same in every process, and the same for `SELECT 1` and `SELECT $1`, so
//! that an operator can identify a statement by it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pg_query::{FingerprintOptions, ParserOptions};

/// Maximum length of a text with a fingerprint, in bytes. A longer one would occupy a worker for too long.
pub const FINGERPRINT_MAX: usize = 64 << 10;

/// Returns the fingerprint of a text; never 0. `None` if PostgreSQL's grammar rejects the text, or the text is longer than [`FINGERPRINT_MAX`].
#[must_use]
pub fn fingerprint(text: &[u8]) -> Option<u64> {
    if text.len() > FINGERPRINT_MAX {
        return None;
    }
    let text = str::from_utf8(text).ok()?;
    // Names of tables count in full, with their schemas: `a.orders` and `b.orders` may belong to two tenants.
    let options = FingerprintOptions::RANGEVAR_PG17_COMPAT | FingerprintOptions::FULL_RELNAME;
    // As for the parser: a panic in the binding must not end the worker.
    let found = catch_unwind(AssertUnwindSafe(|| pg_query::fingerprint(text, ParserOptions::DEFAULT, options)));
    Some(found.ok()?.ok()?.value.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<u64> {
        fingerprint(text.as_bytes())
    }

    #[test]
    fn literals_do_not_count_and_everything_else_does() {
        let one = of("SELECT * FROM orders WHERE id = 1");
        assert!(one.is_some());
        for alike in [
            "select *  from orders where id = 'x' -- why",
            "SELECT * FROM orders WHERE id = $1",
            "/* app */ SELECT * FROM Orders WHERE id = 22;",
        ] {
            assert_eq!(of(alike), one, "{alike}");
        }
        for other in [
            "SELECT * FROM \"Orders\" WHERE id = 1",
            "SELECT * FROM customers WHERE id = 1",
            "SELECT * FROM orders_2024 WHERE id = 1",
            "SELECT * FROM orders_2025 WHERE id = 1",
            "SELECT * FROM a.orders WHERE id = 1",
            "SELECT id FROM orders WHERE id = 1",
            "SELECT * FROM orders WHERE id > 1",
            "SELECT * FROM orders WHERE id = 1; SELECT 1",
        ] {
            assert!(of(other).is_some_and(|other| Some(other) != one), "{other}");
        }
        assert_ne!(of("SELECT * FROM orders_2024"), of("SELECT * FROM orders_2025"));
    }

    #[test]
    fn lists_of_any_length_are_alike() {
        assert_eq!(of("SELECT 1 FROM t WHERE a IN (1, 2)"), of("SELECT 1 FROM t WHERE a IN (1, 2, 3)"));
        assert_eq!(of("INSERT INTO t VALUES (1, 2)"), of("INSERT INTO t VALUES (1, 2), (3, 4)"));
    }

    #[test]
    fn it_is_the_same_in_every_process() {
        assert_eq!(of("SELECT 1"), Some(0x50fd_e206_2600_9aba));
    }

    #[test]
    fn what_is_no_sql_has_none() {
        let long = format!("SELECT '{}'", "x".repeat(FINGERPRINT_MAX));
        let deep = format!("SELECT {}1{}", "(".repeat(30_000), ")".repeat(30_000));
        for text in ["SELEC 1", "SELECT 'open", "SELECT \0", &long, &deep] {
            assert_eq!(of(text), None, "{}", &text[..text.len().min(20)]);
        }
        assert_eq!(fingerprint(b"SELECT '\xff'"), None);
    }
}
