//! Run-time parameters: what a client has set, what a server connection has in force, and how the one is brought to the other.
//!
//! What a text changes is read from PostgreSQL's parse tree before it is sent ([`sql::Changes`]). From there two things follow it:
//!
//! - [`Tracker`]: that a change has happened is known when its statement completes, that it lasts when its transaction commits. From
//!   then on it is the client's own, wherever its statements go. It believes nothing that the server has not said.
//! - [`InForce`](in_force::InForce): what will be in force when what was sent so far has been carried out, SET LOCAL included. A text that is sent next is
//!   read under that. It believes that what was sent succeeds: if it does not, the server skips or refuses what comes behind it.

mod in_force;
mod params;
mod tracked;

pub(crate) use in_force::Reads;
pub(crate) use params::{Applied, Interned, Params, set_config};
pub(crate) use tracked::{Circumstances, Completed, Followed, Tracker, applied, changed, filled};
