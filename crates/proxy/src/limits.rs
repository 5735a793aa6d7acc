//! Limits on time and on connections, for a database, for a user, and for all.

use std::time::Duration;

use settings::OrNever;

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

/// Time limits of a database or a user. `None`: the next more general limit applies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnLimits {
    /// Overrides [`TimeLimits::idle`].
    pub idle: Option<OrNever>,
    /// Overrides [`TimeLimits::idle_transaction`].
    pub idle_transaction: Option<OrNever>,
    /// Overrides [`TimeLimits::query`].
    pub query: Option<OrNever>,
    /// Overrides [`TimeLimits::transaction`].
    pub transaction: Option<OrNever>,
}

impl OwnLimits {
    /// Returns these limits, with those of `others` in place of missing ones.
    pub(crate) fn over(self, others: TimeLimits) -> TimeLimits {
        let limit = |own: Option<OrNever>, other| own.map_or(other, OrNever::get);
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
