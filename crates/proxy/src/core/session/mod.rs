//! A client's session, from accept to its end.
//!
//! - `client`: the state of a client connection; `replay`: the unit in flight, while it may be sent to another server
//!   again.
//! - `login`: from the startup packet to the first `ReadyForQuery`; `limits`: how many clients there may be, and how
//!   long each may stay in a state; `overdue`: the error for a login or a wait that has come to its limit.
//! - `cluster_routing`: which cluster, where there are several; `worker_affinity`: which worker serves the client.
//! - `unit`: a client without a server connection: collects messages up to `Query` or `Sync`, and decides where they
//!   go.
//! - `forward`: a client with a server connection: passes its messages on, one by one; `statements`: messages about
//!   prepared statements; `by_name`: texts that name them.
//! - `local`: messages that the proxy answers without a server; `begin`: a BEGIN that is put off until the next unit.
//! - `ends`: Terminate, and the end of a client's stream; `lost`, `aborted`: a client leaves its server connection, or a
//!   server connection is lost under its client; `termination`: the client's share in that, by the server's last FATAL.
//! - `traffic`: whether a statement may run, by the traffic rules.
//! - `cancel`: cancel requests; `operator`: clients of the console.

mod aborted;
mod bearer;
mod begin;
mod by_name;
mod cancel;
mod client;
mod cluster_routing;
mod ends;
mod external_auth;
mod forward;
mod journal;
mod limits;
mod local;
mod login;
mod lost;
mod operator;
mod overdue;
mod put_off;
mod replay;
mod replication;
mod revoke;
mod statements;
mod termination;
mod traffic;
mod unit;
mod worker_affinity;

pub(in crate::core) use aborted::IN_FAILED_TRANSACTION;
pub(in crate::core) use begin::begins_read_only;
pub(in crate::core) use cancel::Cancel;
pub(in crate::core) use client::{Aborted, At, Attempts, Client, PassThrough, Phase, ReadBound, SingleStatement, Unit};
pub(in crate::core) use ends::{End, Leavers};
pub(in crate::core) use forward::MOST_EXPECTED;
pub(in crate::core) use journal::Journal;
pub(crate) use limits::Counts;
pub(in crate::core) use limits::PreAuthConnections;
pub(in crate::core) use login::error;
pub(in crate::core) use overdue::{Attempt, Awaited, Overdue};
pub(in crate::core) use put_off::{EarlyReads, PutOffBegin};
pub(in crate::core) use replication::Tunnel;
pub(in crate::core) use revoke::Revision;
pub(in crate::core) use traffic::TrafficAdmission;
pub(in crate::core) use unit::NO_BLOCKS;
