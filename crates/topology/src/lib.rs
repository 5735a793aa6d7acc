//! The nodes of a cluster: roles, timelines, LSNs, health, and the primary.
//!
//! ```text
//!  ClusterConfig ─▶ prober (one task a node) ──Report──▶ coordinator: Decider (pure) ──▶ View ──ArcSwap──▶ readers
//!                     ▲ report_failure, want_replay                                 ├─▶ Node::replayed, lag (atomics)
//!                     └─ workers                                                    └─▶ oracle task: the server to ask
//! ```
//!
//! Readers (the proxy's workers) never block and never send queries: they compare [`Topology::epoch`] with the epoch of the [`View`] they hold, and
//! take the new one after a change. Numbers that change all the time (replayed LSN, lag) are atomics inside the shared [`Node`].
//!
//! # Invariants
//!
//! - A decision is a function of the reports, of the earlier state, and of the given time: `decide` does no I/O and reads no clock.
//! - One task publishes views, marks and lags. A view has at most one primary, and epochs rise.
//! - No decision is made before every configured node was tried once. A node out of recovery on a timeline below the highest seen anywhere (also by a
//!   replica) is never primary, whether or not the newer primary can be reached. A node seen out of recovery on the primary's timeline besides it
//!   does not become primary after the loss of the primary.
//! - If no server reports a timeline, it is unknown which of two that accept writes is the newer primary: neither is primary then, until one of them
//!   stops accepting them. The term is a number counted here, a new one with each primary found.
//! - `Node::replayed` is a position on the view's term, reported by a standby on that timeline, over a session that still exists. It is reset before
//!   a view with a new term is visible, when the session is lost, and when a probe fails: a standby restarted after a crash may be behind its former
//!   position.
//! - Without timelines a standby's position counts from its second answer in the term: that query was sent after the primary had been found.
//! - The kind of a server's positions (`offer`) is determined once per session. A server lacks only what it reports to lack: a missing privilege is a
//!   failure.
//! - An oracle's answer is used only if its server is out of recovery, on the view's timeline, and the view's primary when the answer arrives. Its
//!   term is the timeline.
//! - A term is proven ([`Topology::proof`]) only by answers of relays to a question that was sent after the ticket was taken.
//! - Lag is measured against the primary's earlier positions, on this process's clock (`lag`): idleness causes none, and the loss of the primary adds
//!   none.
//! - A connection to a server starts with the certificates of the last valid configuration ([`Topology::secure`]); an existing one keeps its own.
//! - Callers never wait for a network or a name server: only this crate's tasks do.

mod ask;
pub mod config;
mod coordinate;
mod decide;
mod facts;
mod flush;
mod handle;
mod lag;
mod local_socket;
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
    Candidacy, ClusterConfig, MOST_NODES, MOST_RELAYS, NodeConfig, Positions, RegistrySource, RelayConfig, StartError,
};
pub use flush::Flushing;
pub use handle::{NotReady, Topology};
pub use proof::TermProof;
pub use relays::{Durable, RelayStatus};
pub use session::{ConnectError, connect};
pub use times::OracleTimes;
pub use view::{Address, Node, NodeId, NodeView, ReportedPosition, Role, Term, View, WEIGHT_SCALE};
