//! The web console: one page, served by the binary, that shows the live state of the parts of this process.
//!
//! ```text
//!  parts (traits; the binary implements them) ──look, once a second──▶ hub: rates, events ──▶ board (latest state)
//!                 ▲                                                                            │ one a viewer
//!                 └── act ◀── POST, token, confirmed ◀── page (web/) ◀── server-sent events ───┘
//! ```
//!
//! # Invariants
//!
//! - This crate depends on no other part of Kingpost: the data are the plain values of [`picture`], the operations are an [`Action`]. Neither has a
//!   field for a secret.
//! - A viewer that does not keep up gets the latest state, not a queue: only its cursor is kept.
//! - Viewers, connections, sessions, requests, samples and events are bounded; workers are asked for pools and statements only while there is a
//!   viewer.
//! - Every change is a POST from the page itself, by the holder of an operator's token.
//! - The page loads nothing from elsewhere and runs no script but its own files.

mod assets;
mod auth;
mod board;
pub mod config;
mod events;
mod guard;
mod history;
mod hub;
mod hubs;
mod lines;
mod order;
mod parts;
pub mod picture;
mod rates;
mod search;
mod server;
mod stream;
mod transitions;

pub use config::{ConfigError, ConsoleConfig};
pub use hub::Wake;
pub use lines::compare;
pub use order::{client_rank, service_rank, standing_rank};
pub use parts::{
    Action, BoxFuture, ClusterPart, ClustersPart, EntryName, Parts, ProxyPart, Refusal, RegistryPart, RelayPart, Served,
};
pub use search::Search;
pub use server::{Console, StartError};
pub use transitions::{State, Transition, Transitions};
