//! The commit gate: answers to commits are held back until the commits are durable elsewhere. `gate` closes gates by servers' replies, `waiting`
//! opens them, `fate` decides on them without I/O, and `degraded` handles too few confirming relays.

mod degraded;
mod fate;
mod gate;
mod waiting;

pub(in crate::core) use fate::Gate;
pub(in crate::core) use gate::Commits;
