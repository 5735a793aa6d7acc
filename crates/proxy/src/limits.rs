//! Limits on time and on connections, for a database, for a user, and for all.

use std::time::Duration;

/// Maximum times of a client in a state; `None`: no limit.
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

/// Time limits of a database or a user. `None`: the next more general limit applies; zero: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnLimits {
    /// Overrides [`TimeLimits::idle`].
    pub idle: Option<Duration>,
    /// Overrides [`TimeLimits::idle_transaction`].
    pub idle_transaction: Option<Duration>,
    /// Overrides [`TimeLimits::query`].
    pub query: Option<Duration>,
    /// Overrides [`TimeLimits::transaction`].
    pub transaction: Option<Duration>,
}

impl OwnLimits {
    /// Returns these limits, with those of `others` in place of missing ones.
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

/// Returns a time limit; zero stands for none.
pub(crate) fn unless_zero(limit: Duration) -> Option<Duration> {
    (!limit.is_zero()).then_some(limit)
}

/// Maximum numbers of server connections to one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// For the database and user: the size of their pool.
    pub pool: usize,
    /// Beyond the pool's size, for clients that have waited for `reserve_timeout`.
    pub reserve: usize,
    /// For the user, with all databases; `None`: no limit.
    pub user: Option<usize>,
    /// For the database, with all users; `None`: no limit.
    pub database: Option<usize>,
    /// For all databases and users; `None`: no limit.
    pub node: Option<usize>,
}

impl ConnectionLimits {
    /// Returns the limit of a pool only.
    #[cfg(test)]
    pub(crate) fn of_pool(pool: usize) -> ConnectionLimits {
        ConnectionLimits { pool, reserve: 0, user: None, database: None, node: None }
    }
}

/// Age at which a server connection is closed once it is idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    /// Minimum age at which a connection is closed.
    pub least: Duration,
    /// Maximum random addition to each connection's age, so that connections opened together are not closed together.
    pub jitter: Duration,
}

/// Returns a limit on a number; 0 stands for none.
pub(crate) fn unless_none(limit: usize) -> Option<usize> {
    (limit != 0).then_some(limit)
}
