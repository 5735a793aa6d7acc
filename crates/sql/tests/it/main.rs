//! Texts of statements, and what the classifier makes of them.
//!
//! One program for all modules, as linking is slow; `allocations` has an allocator of its own, and so a program.
#![allow(clippy::unwrap_used)]

mod changes;
mod classes;
mod introspection;
mod newer;
mod shapes;
