//! Limits on time and on connections, for a database, for a user, and for all.

use std::time::Duration;

/// How long a client may be in a state; `None`: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLimits {
    /// Idle, outside a transaction.
    pub idle: Option<Duration>,
    /// Idle in a transaction.
    pub idle_transaction: Option<Duration>,
    /// Running a statement.
    pub query: Option<Duration>,
    /// In one transaction, idle or not.
    pub transaction: Option<Duration>,
}

/// Time limits of a database or a user. `None`: the next more general limit holds; zero: there is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnLimits {
    /// As [`TimeLimits::idle`].
    pub idle: Option<Duration>,
    /// As [`TimeLimits::idle_transaction`].
    pub idle_transaction: Option<Duration>,
    /// As [`TimeLimits::query`].
    pub query: Option<Duration>,
    /// As [`TimeLimits::transaction`].
    pub transaction: Option<Duration>,
}

impl OwnLimits {
    /// These limits, and those of `others` where this has none.
    pub(crate) fn over(self, others: TimeLimits) -> TimeLimits {
        let limit = |own: Option<Duration>, other| own.map_or(other, unless_zero);
        TimeLimits {
            idle: limit(self.idle, others.idle),
            idle_transaction: limit(self.idle_transaction, others.idle_transaction),
            query: limit(self.query, others.query),
            transaction: limit(self.transaction, others.transaction),
        }
    }
}

impl TimeLimits {
    /// True if there is any limit.
    pub(crate) fn any(self) -> bool {
        [self.idle, self.idle_transaction, self.query, self.transaction].iter().any(Option::is_some)
    }
}

/// A time limit; zero stands for none.
pub(crate) fn unless_zero(limit: Duration) -> Option<Duration> {
    (!limit.is_zero()).then_some(limit)
}

/// Most server connections to one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Of the database and user: the size of their pool.
    pub pool: usize,
    /// Beyond the pool's size, for clients that have waited for `reserve_timeout`.
    pub reserve: usize,
    /// Of the user, with all databases; `None`: no limit.
    pub user: Option<usize>,
    /// Of the database, for all users; `None`: no limit.
    pub database: Option<usize>,
    /// Of all databases and users; `None`: no limit.
    pub node: Option<usize>,
}

impl ConnectionLimits {
    /// The limit of a pool, and nothing else.
    #[cfg(test)]
    pub(crate) fn of_pool(pool: usize) -> ConnectionLimits {
        ConnectionLimits { pool, reserve: 0, user: None, database: None, node: None }
    }
}

/// The age at which a server connection is closed once it is idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    /// No connection is closed for its age before.
    pub least: Duration,
    /// Each connection lives for up to this much longer, so that those that were opened together are closed apart.
    pub jitter: Duration,
}

/// A limit on a number; 0 stands for none.
pub(crate) fn unless_none(limit: usize) -> Option<usize> {
    (limit != 0).then_some(limit)
}
