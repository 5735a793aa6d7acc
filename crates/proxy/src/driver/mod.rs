//! The event loop: sockets on one side, [`crate::core::Core`] on the other.
//!
//! All system calls of the crate are here, and all `unsafe` ([`sys`], [`ring`]). The driver decides nothing. It reads
//! what has arrived, gives it to the core, carries out the core's effects, and writes each connection that has output
//! once a turn.

pub(crate) mod acceptor;
mod epolled;
pub(crate) mod mailbox;
pub(crate) mod ring;
mod ringed;
mod secured;
pub(crate) mod sys;
mod system;
pub(crate) mod worker;
