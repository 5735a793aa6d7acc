//! Run-time parameters: what a client has set, what is in force on a server connection, and how a connection is brought
//! to a client's parameters.
//!
//! What a text changes is read from PostgreSQL's parse tree before the text is sent ([`sql::Changes`]). Two types
//! follow the changes:
//!
//! - [`Tracker`] believes only what the server has said. A change has happened when its statement has completed, and
//!   lasts when its transaction has committed. From then on it belongs to the client, wherever the client's statements
//!   go.
//! - [`InForce`](in_force::InForce) says what will be in force when everything sent so far has been carried out, SET
//!   LOCAL included: the next text is read under that. It assumes that what was sent succeeds; if it does not, the
//!   server skips or refuses what comes behind.

mod in_force;
mod params;
mod tracked;

pub(crate) use in_force::Reads;
pub(crate) use params::{Applied, Interned, Params, literals_and_back, set_config};
pub(crate) use tracked::{Circumstances, Completed, Followed, Tracker, applied, changed, filled};
