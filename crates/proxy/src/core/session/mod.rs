//! A client's session, from accept to its end.
//!
//! - `client`: what a client connection is; `replay`: its unit that may be sent again.
//! - `login`: to the first `ReadyForQuery`; `limits`: how many clients there may be, and for how long each may be in which state;
//!   `journal`: the log of logins; `revoke`: users that were looked up and may not log in any more.
//! - `unit`: a client without a server: what its next messages are, and where they go.
//! - `forward`: a client with a server: its messages go on, one by one; `statements`: those that are about prepared statements.
//! - `local`: what the proxy answers by itself; `begin`: BEGIN, which goes to a server with what follows it.
//! - `lost`, `aborted`: a client leaves its server, or the server its client.
//! - `cancel`: cancel requests; `operator`: clients of the console.

mod aborted;
mod begin;
mod cancel;
mod client;
mod forward;
mod home;
mod journal;
mod limits;
mod local;
mod login;
mod lost;
mod operator;
mod replay;
mod revoke;
mod statements;
mod unit;

pub(in crate::core) use begin::begins_read_only;
pub(in crate::core) use cancel::Cancel;
pub(in crate::core) use client::{Aborted, Again, At, Client, Mark, Pass, Phase, Sole, Unit};
pub(in crate::core) use forward::MOST_EXPECTED;
pub(in crate::core) use journal::Journal;
pub(crate) use limits::Counts;
pub(in crate::core) use limits::Doorkeeper;
pub(in crate::core) use login::error;
pub(in crate::core) use operator::Paused;
pub(in crate::core) use revoke::Revision;
pub(in crate::core) use unit::NO_BLOCKS;
