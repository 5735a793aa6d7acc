//! Prepared statements. Clients name them, server connections have them under names of the proxy's, and clients whose texts mean
//! the same share them.
//!
//! ```text
//!  a client's Parse ─▶ Statements (a worker's table) ─▶ Registry (the process) ─▶ Statement, one for each (scope, text, types)
//!      Names: what the client calls it                                               Held: has a server connection got it?
//! ```
//!
//! - [`Scope`]: what the meaning of a text depends on beside the text. Statements of two scopes are never mixed up.
//! - [`Names`]: the only place that changes what a client's names stand for. Each change can be undone: a server skips what comes
//!   behind an error.
//! - [`Held`]: what one server connection has.
//! - [`Columns`]: what a client was told of the rows that it will get.
//!
//! What must hold: a client gets the statement that its own session would have made of its text, or an error that PostgreSQL would
//! have given. Nothing in here does I/O.

mod columns;
mod held;
mod names;
mod registry;
mod scope;
mod statement;

pub(crate) use columns::Columns;
pub(crate) use held::{Dropped, Held, Unnamed};
pub(crate) use names::{Full, Names, Undo};
pub(crate) use registry::{Registry, Statements};
pub(crate) use scope::{Place, Reading, Scope};
pub(crate) use statement::{Statement, StatementName};
