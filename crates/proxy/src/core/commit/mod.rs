//! The commit gate: answers to commits are held back until the commits are durable elsewhere. `fate` decides, purely; `gate` does.

mod fate;
mod gate;

pub(in crate::core) use gate::{Commits, Gate};
