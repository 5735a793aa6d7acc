//! The nodes of a cluster: roles, timelines, LSNs, health, and who is primary.
//!
//! ```text
//!  ClusterConfig ─▶ prober (one task a node) ──Report──▶ coordinator: Decider (pure) ──▶ View ──ArcSwap──▶ readers
//!                     ▲ report_failure, want_replay                                 ├─▶ Node::replayed, lag (atomics)
//!                     └─ workers                                                    └─▶ oracle task: whom to ask
//! ```
//!
//! Readers (the proxy's workers) never block and never ask: they compare [`Topology::epoch`] with the epoch of the
//! [`View`] they hold, and take the new one when it moved. Numbers that move all the time (replayed LSN, lag) are
//! atomics inside the shared [`Node`].
//!
//! # Invariants
//!
//! - What is decided is a function of the reports, of what was known before, and of the time given: `decide` does no I/O
//!   and reads no clock.
//! - One task publishes: views, marks, lags. A view has at most one primary, and epochs rise.
//! - Nothing is decided before every configured node was tried once. A node out of recovery on a timeline below the
//!   highest seen anywhere (also by a replica) is never primary, whether or not the newer primary can be reached. One that
//!   stood beside the primary on the same timeline does not become primary when that one is lost.
//! - Where no server tells a timeline, nothing says which of two that take writes is the newer one: then neither is primary, until one of them
//!   stops to say so. A term is a number counted here, another one with each primary found.
//! - `Node::replayed` is a position on the view's term, learnt from a standby that is on that timeline, over a session that
//!   still lasts. It is put back before a view with a new term is seen, when the session breaks, and when a probe fails:
//!   a standby restarted after a crash may be behind where it was.
//! - Without timelines a standby's position counts from the second answer on that came in the term: that one was asked for after its
//!   primary had been found.
//! - By what numbers a server says where it is (`offer`) is found out once a session. What it lacks is only what it says it lacks: a privilege
//!   that is missing is a failure.
//! - An oracle's answer is used only if the server that gave it is out of recovery, on the view's timeline, and the view's
//!   primary when the answer arrives. Its term is the timeline.
//! - A term is proven ([`Topology::proof`]) only by answers of relays to a question that was sent after the ticket was taken.
//! - Lag is measured against what the primary had written when, on this process's clock (`lag`): idleness makes none, and
//!   the loss of the primary adds none.
//! - A connection to a server begins with the certificates of the last good configuration ([`Topology::secure`]); one that is
//!   there keeps those it began with.
//! - Nobody outside this crate's tasks waits for a network or a name server.

mod ask;
pub mod config;
mod coordinate;
mod decide;
mod facts;
mod flush;
mod handle;
mod lag;
mod offer;
mod oracle;
mod outcome;
mod probe;
mod proof;
mod relays;
pub mod session;
pub mod times;
mod view;

pub use config::{
    Candidacy, ClusterConfig, MOST_NODES, NodeConfig, Positions, RegistrySource, RelayConfig, StartError,
};
pub use flush::Flushing;
pub use handle::{NotReady, Topology};
pub use proof::Standing;
pub use relays::{Durable, MOST_RELAYS, RelayStatus};
pub use session::{ConnectError, connect};
pub use times::OracleTimes;
pub use view::{Address, Node, NodeId, NodeView, Role, Said, Term, View, WEIGHT_SCALE};
