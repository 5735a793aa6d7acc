//! Prepared statements. Clients have their own names for them, server connections have them under names of the proxy's
//! (`kp17`), and clients share a statement if their texts mean the same.
//!
//! ```text
//!  a client's Parse ─▶ Statements (a worker's table) ─▶ Registry (the process) ─▶ Statement, one for each (scope, text, types)
//!      Names: what the client calls it                                       ServerStatements: has a server connection got it?
//! ```
//!
//! - [`Scope`]: what the meaning of a text depends on, besides the text. Statements of two scopes are never mixed up.
//! - [`Names`]: the only place that changes what a client's names stand for. Each change can be undone, since a server
//!   skips what follows an error.
//! - [`ServerStatements`]: which statements one server connection has.
//! - [`Aliases`](alias::Aliases): those that it has under its client's own names, for texts that name them.
//! - [`Baseline`](baseline::Baseline): the values that all sessions of a namespace begin with.
//! - [`CachedFunctionPlans`]: under which parameters a server connection has read the literals in functions.
//! - [`Columns`]: the columns of a statement as clients were told of them.
//! - `Parameters`: the types of a statement's parameters, which stay as the first server has settled them.
//!
//! What must hold: a client gets the statement that its own session would have made of its text, or an error that
//! PostgreSQL would have given. Nothing in here does I/O.

mod alias;
pub(in crate::core) mod baseline;
mod columns;
mod function_plans;
mod names;
mod parameters;
mod registry;
mod scope;
mod server_statements;
mod statement;

pub(crate) use alias::{Alias, AliasChange};
pub(in crate::core) use baseline::is_read_committed;
pub(crate) use columns::Columns;
pub(crate) use function_plans::CachedFunctionPlans;
pub(crate) use names::{Full, NAME_MAX, Names, Undo};
pub(crate) use registry::{Registry, Statements};
pub(crate) use scope::{ParseSettings, SchemaSnapshot, Scope, StatementNamespace};
pub(crate) use server_statements::{Dropped, ServerStatements, Unnamed};
pub(crate) use statement::{Statement, StatementName};
