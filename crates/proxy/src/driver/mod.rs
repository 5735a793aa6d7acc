//! The event loop between sockets and [`crate::core::Core`].
//!
//! It has all system calls of the crate, and all `unsafe` ([`sys`], [`ring`]). The driver makes no decisions. It reads the bytes that have arrived,
//! passes them to the core, carries out the core's effects, and writes each connection that has output once a turn.

pub(crate) mod acceptor;
mod epolled;
pub(crate) mod mailbox;
pub(crate) mod ring;
mod ringed;
mod secured;
pub(crate) mod sys;
mod system;
pub(crate) mod worker;
