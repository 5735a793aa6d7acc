//! The event loop: sockets on one side, [`crate::core::Core`] on the other.
//!
//! This is the only part of the crate with system calls in it, and the only one with `unsafe` ([`sys`], [`ring`]). It decides nothing:
//! it reads what is there, gives it to the core, does what the core asks, and writes each connection that has output once
//! a turn.

pub(crate) mod acceptor;
mod epolled;
pub(crate) mod mailbox;
pub(crate) mod ring;
mod ringed;
mod secured;
pub(crate) mod sys;
pub(crate) mod worker;
