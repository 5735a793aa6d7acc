//! Messages from other threads to a worker.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, PoisonError};

use super::sys::Wake;
use crate::console::{Look, Report};
use crate::core::{Mail, Moved, Peer};
use tls::Link;

/// A message to a worker.
pub(crate) enum Letter {
    /// A client connection that was accepted.
    Client(OwnedFd, Peer),
    /// A connection from another worker: the socket, the TLS link if there is one, the core's state, and bytes that arrived on the way.
    Moved(OwnedFd, Option<Box<Link>>, Box<Moved>, Vec<u8>),
    /// A request of the console for a report.
    Look(Look, SyncSender<Report>),
    /// A message to the core.
    Core(Mail),
    /// The request to stop, whatever is still open.
    Stop,
}

/// Mailbox of a worker. Its lock is held for a push or a swap only. Few statements post a message: one that needs a server connection from another
/// worker, or a LISTEN.
pub(crate) struct Mailbox {
    letters: Mutex<Vec<Letter>>,
    wake: Wake,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Mailbox> {
        Ok(Mailbox { letters: Mutex::new(Vec::new()), wake: Wake::new()? })
    }

    pub(crate) fn post(&self, letter: Letter) {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        letters.push(letter);
        if letters.len() == 1 {
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
    pub(crate) fn take(&self, into: &mut Vec<Letter>) {
        self.wake.quiet();
        std::mem::swap(&mut *self.letters.lock().unwrap_or_else(PoisonError::into_inner), into);
    }
}
