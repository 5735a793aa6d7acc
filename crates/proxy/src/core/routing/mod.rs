//! Routing of statements: `route` chooses the node, `strong` the wait of a strong read before it, `verified` asks a replica ahead of a read, `early`
//! lets the first reads of a transaction run on a replica.

mod early;
mod route;
mod strong;
mod verified;

pub(in crate::core) use strong::{Hold, Proof, Reach, StrongReads, UNPROVEN_HINT};
#[cfg(test)]
pub(in crate::core) use verified::REPLAYED;
pub(in crate::core) use verified::{ReplayCheck, ReplayChecks, Replayed};
