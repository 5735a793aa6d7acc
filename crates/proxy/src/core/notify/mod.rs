//! LISTEN and NOTIFY in transaction mode.
//!
//! - `listen`: the delivery of notifications to clients.
//! - `listener`: the one server connection of a pool that listens for all of the pool's clients.
//! - `notification`: a notification, its sender, and the moment at which a client may get it.

mod listen;
mod listener;
mod notification;

pub(in crate::core) use listen::{Channels, Listening, PendingNotifications};
pub(in crate::core) use listener::Listener;
pub use listener::ListenerMessage;
pub(in crate::core) use notification::Sender;
pub(crate) use notification::{ProbeCounters, Senders};
