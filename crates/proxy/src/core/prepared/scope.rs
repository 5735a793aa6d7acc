//! Context on which the meaning of a text depends, besides the text.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sql::has_literal;
use topology::NodeId;

use super::baseline::{Asked, Baseline, Begins, Learnt, Reported, Values};

/// Time after a schema change for which a replica may not know of it; also the time for which a server's answer to a Describe is given to other
/// clients, since a schema change may go unseen.
pub(crate) const SETTLED_AFTER: Duration = Duration::from_secs(10);

/// Two sessions of one scope read the same text in the same way.
///
/// The meaning of a name in a text depends on the database, on the user (`"$user"` in the search path, `ALTER ROLE … SET`), and on the session's
/// parameters: `search_path`, `role`, and those by which literals are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Scope {
    namespace: u64,
    parse_settings: ParseSettings,
}

/// A set of parameters that change how a text is read, as numbers of this process. A number is never used for another
/// set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct ParseSettings {
    /// Number of the parameters that matter to any text; 0 if the session has set none of them.
    pub(super) names: u64,
    /// Number of the parameters that matter to string literals; 0 likewise.
    pub(super) literals: u64,
}

impl ParseSettings {
    /// The servers' defaults: the session has set no such parameter.
    pub(crate) const DEFAULT: ParseSettings = ParseSettings { names: 0, literals: 0 };

    /// Returns the part of the parse settings that matters to this text.
    pub(crate) fn of(self, text: &[u8]) -> ParseSettings {
        if self.literals == 0 || has_literal(text) { self } else { ParseSettings { literals: 0, ..self } }
    }

    /// True if the two sets differ only in how literals are read. A statement that was prepared under one of them
    /// then keeps its meaning under the other: PostgreSQL analyses a prepared statement again when names change their
    /// meaning, but not when `DateStyle` changes.
    pub(crate) fn differs_in_literals(self, other: ParseSettings) -> bool {
        self.names == other.names && self.literals != other.literals
    }
}

impl Scope {
    /// Returns the scope of this namespace and these parse settings.
    pub(crate) fn new(namespace: &StatementNamespace, parse_settings: ParseSettings) -> Scope {
        Scope { namespace: namespace.number, parse_settings }
    }

    /// Returns the parse settings.
    pub(crate) fn parse_settings(self) -> ParseSettings {
        self.parse_settings
    }

    /// True if the scope is of this database and user.
    pub(crate) fn is_at(self, namespace: &StatementNamespace) -> bool {
        self.namespace == namespace.number
    }
}

/// A database, by its name on the servers, a user, and the initial state of sessions by the configuration.
#[derive(Debug)]
pub(crate) struct StatementNamespace {
    number: u64,
    schema: Arc<Schema>,
    /// Grows when a server connection of this namespace ends. Earlier knowledge may be about another database, or another search path: `DROP DATABASE d
    /// WITH (FORCE); CREATE DATABASE d …` ends all connections, and new ones lead to the new database under the same name.
    doubts: AtomicU64,
    /// Grows when new server connections begin with other parameters than those that there are: a connection that was opened under a lower
    /// count is closed as soon as it is free.
    renewals: AtomicU64,
    /// Grows when a login may get other parameters than the one before.
    greetings: AtomicU64,
    /// Grows when clients were sent values under which their statements do not run any more: those clients are closed.
    dismissals: AtomicU64,
    baseline: Mutex<Baseline>,
    /// [`Baseline::is_agreed`].
    is_agreed: AtomicBool,
    /// [`Baseline::is_read_committed`].
    is_read_committed: AtomicBool,
}

impl StatementNamespace {
    pub(super) fn new(number: u64, schema: Arc<Schema>) -> StatementNamespace {
        StatementNamespace {
            number,
            schema,
            doubts: AtomicU64::new(0),
            renewals: AtomicU64::new(0),
            greetings: AtomicU64::new(0),
            dismissals: AtomicU64::new(0),
            baseline: Mutex::default(),
            is_agreed: AtomicBool::new(false),
            is_read_committed: AtomicBool::new(false),
        }
    }

    /// Notes that a server connection of this namespace has ended: before the known types and columns of a text are given to another client, a server
    /// is asked.
    pub(crate) fn invalidate(&self) {
        self.doubts.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the version of the meaning of texts here, as far as this process knows: it grows with the schema's, and with each invalidation.
    pub(crate) fn version(&self) -> u64 {
        self.schema.version() + self.doubts.load(Ordering::Acquire)
    }

    /// Notes that new server connections begin with other parameters than the open ones. Returns the new count.
    fn renew(&self) -> u64 {
        self.renewals.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Returns the count of renewals.
    pub(crate) fn renewals(&self) -> u64 {
        self.renewals.load(Ordering::Acquire)
    }

    /// Returns the version of the parameters that clients get at their login.
    pub(crate) fn greetings(&self) -> u64 {
        self.greetings.load(Ordering::Acquire) + self.renewals()
    }

    /// Notes that statements of logged-in clients would run under other values than these clients were sent.
    fn dismiss(&self) {
        self.dismissals.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the count of dismissals.
    pub(crate) fn dismissals(&self) -> u64 {
        self.dismissals.load(Ordering::Acquire)
    }

    /// Gives access to the baseline. Takes a lock: only for connections that begin or answer, never for a statement.
    pub(crate) fn baseline<T>(&self, look: impl FnOnce(&mut Baseline) -> T) -> T {
        let mut baseline = self.baseline.lock().unwrap_or_else(PoisonError::into_inner);
        let result = look(&mut baseline);
        self.is_agreed.store(baseline.is_agreed(), Ordering::Release);
        self.is_read_committed.store(baseline.is_read_committed(), Ordering::Release);
        result
    }

    /// Decides how a session begins on a node; with the count of renewals for it.
    pub(crate) fn begins(&self, at: Asked) -> (Begins, u64) {
        self.baseline(|baseline| (baseline.begins(at), self.renewals()))
    }

    /// Learns a node's own values from a session that began under the count `begun`. Returns the session's count from now on; `None`: another session
    /// has changed the values that sessions begin with, and the order of the two is not known.
    pub(crate) fn learn(&self, at: Asked, values: Option<Values>, begun: u64) -> Option<(Learnt, u64)> {
        self.baseline(|baseline| {
            if begun != self.renewals() {
                return None;
            }
            let learnt = baseline.learn(at, values);
            if learnt == Learnt::Replaced {
                self.dismiss();
            }
            let changes = matches!(learnt, Learnt::Changed | Learnt::Replaced);
            Some((learnt, if changes { self.renew() } else { begun }))
        })
    }

    /// Notes that a node refuses sessions with the baseline's values: see [`Baseline::refused`].
    pub(crate) fn refused(&self, at: Asked, why: &str) -> bool {
        self.baseline(|baseline| {
            let replaced = baseline.refused(at, why);
            if replaced {
                self.dismiss();
                self.renew();
            }
            replaced
        })
    }

    /// Notes the parameters that a usable session has reported at its login. `own`: the session has its node's own values, which were not queried.
    /// Returns the session's count from now on, if sessions begin otherwise than before.
    pub(crate) fn reported(&self, node: NodeId, reported: &[(String, String)], own: bool) -> Option<u64> {
        self.baseline(|baseline| {
            let against_before = baseline.reported(node, reported);
            if against_before != Reported::Same {
                self.greetings.fetch_add(1, Ordering::AcqRel);
            }
            (own && against_before == Reported::OtherLiterals).then(|| self.renew())
        })
    }

    /// Forgets all learnt values, by order of an operator.
    pub(crate) fn forget(&self) {
        self.baseline(|baseline| {
            baseline.forget();
            self.renew();
        });
    }

    /// True if sessions on any node can begin with the baseline's values.
    pub(crate) fn is_agreed(&self) -> bool {
        self.is_agreed.load(Ordering::Acquire)
    }

    /// True if a BEGIN without an isolation level is known to begin a READ COMMITTED transaction.
    pub(crate) fn is_read_committed(&self) -> bool {
        self.is_read_committed.load(Ordering::Acquire)
    }

    /// Returns the current knowledge of the namespace.
    pub(super) fn known(&self) -> Known {
        Known { declared: self.schema.declared(), doubts: self.doubts.load(Ordering::Acquire) }
    }

    /// Returns the snapshot of `now`.
    pub(crate) fn snapshot(&self, now: Instant) -> SchemaSnapshot {
        let doubts = self.doubts.load(Ordering::Acquire);
        SchemaSnapshot { millis: self.schema.millis(now), version: self.schema.version(), doubts }
    }

    /// Returns the schema of the database.
    pub(crate) fn schema(&self) -> &Schema {
        &self.schema
    }
}

/// A database's schema, as far as this process knows of changes.
#[derive(Debug)]
pub(crate) struct Schema {
    /// Grows when a client changes the schema: once before the statement is sent, and once when it may have been committed.
    changes: AtomicU64,
    /// Grows in the same way, but only for CREATE, ALTER and DROP, and not for statements that may hide DDL, such as
    /// CALL or DO.
    declared: AtomicU64,
    born: Instant,
    /// Time of the last schema change, in milliseconds after `born`, plus 1; 0: never.
    last: AtomicU64,
}

/// Knowledge of a namespace when a statement was made.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known {
    /// [`Schema::declared`].
    pub(super) declared: u64,
    /// Number of doubts about the namespace until then.
    pub(super) doubts: u64,
}

/// A point in time, and the knowledge of a namespace then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SchemaSnapshot {
    /// Milliseconds since the process's table of statements was made.
    pub(super) millis: u64,
    pub(super) version: u64,
    /// Number of doubts about the namespace until then.
    pub(super) doubts: u64,
}

impl SchemaSnapshot {
    /// Returns the snapshot of the answer to a question asked at this snapshot: the version of the schema and the doubts are those of the question.
    pub(crate) fn answered(self, now: SchemaSnapshot) -> SchemaSnapshot {
        SchemaSnapshot { millis: now.millis, ..self }
    }
}

impl Schema {
    pub(super) fn new(born: Instant) -> Schema {
        Schema { changes: AtomicU64::new(0), declared: AtomicU64::new(0), born, last: AtomicU64::new(0) }
    }

    /// Returns the current version of the schema.
    pub(crate) fn version(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Returns the current version of the schema, counting DDL only.
    pub(crate) fn declared(&self) -> u64 {
        self.declared.load(Ordering::Acquire)
    }

    fn millis(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.born).as_millis()).unwrap_or(u64::MAX - 1)
    }

    /// Notes that a client changes the schema, or may have committed a change. `declared`: by DDL, after which each Parse makes a fresh statement, as
    /// it would without the proxy.
    pub(crate) fn changes(&self, now: Instant, declared: bool) {
        if declared {
            self.declared.fetch_add(1, Ordering::AcqRel);
        }
        self.last.fetch_max(self.millis(now) + 1, Ordering::AcqRel);
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// True if the schema was changed so recently that a replica may not know of it.
    pub(crate) fn has_changed_lately(&self, now: Instant) -> bool {
        match self.last.load(Ordering::Acquire).checked_sub(1) {
            Some(last) => now.saturating_duration_since(self.born + Duration::from_millis(last)) < SETTLED_AFTER,
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_settles() {
        let born = Instant::now();
        let schema = Schema::new(born);
        let at = |seconds| born + Duration::from_secs(seconds);
        assert_eq!((schema.version(), schema.declared(), schema.has_changed_lately(born)), (0, 0, false));
        schema.changes(born, false);
        assert_eq!((schema.version(), schema.declared(), schema.has_changed_lately(born)), (1, 0, true));
        schema.changes(at(5), true);
        assert_eq!((schema.version(), schema.declared()), (2, 1));
        // Workers' clocks differ a little: the later one counts.
        schema.changes(at(4), false);
        assert!(schema.has_changed_lately(at(14)) && !schema.has_changed_lately(at(15)));
    }
}
