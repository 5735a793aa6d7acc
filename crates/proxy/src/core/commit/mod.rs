//! The commit gate: answers to commits are held back until the commits are durable elsewhere. `gate`: what servers' replies close;
//! `waiting`: what opens it; `fate`, purely: what becomes of it; `degraded`: when too few relays confirm.

mod degraded;
mod fate;
mod gate;
mod waiting;

pub(in crate::core) use gate::{Commits, Gate};
