//! Routing of statements: `route` chooses the node, `strong` the wait of a strong read before it.

mod route;
mod strong;

pub(in crate::core) use strong::{Hold, Proof, Reach, StrongReads, UNPROVEN_HINT};
