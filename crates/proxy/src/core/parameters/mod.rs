//! Run-time parameters: those that a client has set, those in force on a server connection, and the change of a connection's parameters to a
//! client's.
//!
//! The changes of a text are read from PostgreSQL's parse tree before the text is sent ([`sql::Changes`]). Two types track the changes:
//!
//! - [`Tracker`] relies only on the server's answers. A change is made once its statement has completed, and is lasting once its transaction has
//!   committed. From then on it belongs to the client, on every server connection of the client.
//! - [`InForce`](in_force::InForce) has the parameters that will be in force once all messages sent so far have been executed, SET LOCAL included:
//!   the next text is read under them. It assumes that these messages succeed; if one does not, the server skips or refuses the messages after it.

mod in_force;
mod params;
mod tracked;

pub(crate) use in_force::Reads;
pub(crate) use params::{Applied, Interned, Params, literals_and_back, set_config};
pub(crate) use tracked::{Circumstances, Completed, Followed, Tracker, applied, changed, filled};
