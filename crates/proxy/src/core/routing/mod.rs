//! Where statements go: `route` says to which node, `strong` what a strong read waits for before that.

mod route;
mod strong;

pub(in crate::core) use strong::{Hold, Proof, Reach, StrongReads, UNPROVEN_HINT};
