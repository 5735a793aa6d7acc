//! Messages from other threads to a worker.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, PoisonError};

use super::sys::Wake;
use crate::console::{Look, Report};
use crate::core::{CoreMessage, Moved, Peer};
use tls::Link;

/// A message to a worker.
pub(crate) enum WorkerCommand {
    /// A client connection that was accepted.
    Client(OwnedFd, Peer),
    /// A connection from another worker: the socket, the TLS link if there is one, the core's state, and bytes that arrived on the way.
    Moved(OwnedFd, Option<Box<Link>>, Box<Moved>, Vec<u8>),
    /// A request of the console for a report.
    Look(Look, SyncSender<Report>),
    /// A message to the core.
    Core(CoreMessage),
    /// The request to stop, whatever is still open.
    Stop,
}

/// Mailbox of a worker. Its lock is held for a push or a swap only. Few statements post a message: one that needs a server connection from another
/// worker, or a LISTEN.
pub(crate) struct Mailbox {
    commands: Mutex<Vec<WorkerCommand>>,
    wake: Wake,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Mailbox> {
        Ok(Mailbox { commands: Mutex::new(Vec::new()), wake: Wake::new()? })
    }

    pub(crate) fn post(&self, command: WorkerCommand) {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.push(command);
        if commands.len() == 1 {
            self.wake.ring();
        }
    }

    /// Wakes the worker for a turn.
    pub(crate) fn ring(&self) {
        self.wake.ring();
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.fd()
    }

    /// Moves all messages into `into`, which must be empty.
    pub(crate) fn take(&self, into: &mut Vec<WorkerCommand>) {
        self.wake.quiet();
        std::mem::swap(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner), into);
    }
}
