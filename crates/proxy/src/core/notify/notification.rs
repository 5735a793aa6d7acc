//! Notifications: their senders, and the moment at which a client may get them.
//!
//! A notification carries the process ID of the backend that sent it. Clients, however, were told process IDs made by the proxy (`Core::client_pid`),
//! and a client compares the two to recognize its own notifications. So the proxy replaces the backend's process ID with that of the sending client,
//! if only one client can be the sender: the backend may run the next client's statements before the last client's notifications have arrived.
//!
//! Probes show which notifications have arrived. A probe is an empty query on the connection that listens; [`ProbeCounters`] numbers the probes of all
//! such connections. Once a probe is answered, all notifications that were committed before the probe was sent have arrived. A client that leaves a
//! server connection after a write takes the number of the next probe. Until that probe is answered, a notification of this backend may be this
//! client's or the next client's.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use topology::NodeId;
use wire::message::{self, Status};

use crate::core::Core;
use crate::core::memory::Token;
use crate::core::session::{Aborted, Phase};

/// A notification, as received by a shared connection.
#[derive(Debug)]
pub struct Notification {
    pid: u32,
    /// True if `pid` is a process ID that a client of the proxy was told.
    of_client: bool,
    pub(in crate::core) channel: Arc<str>,
    payload: Box<[u8]>,
}

/// Numbers of the probes, over all connections that listen.
#[derive(Debug, Default)]
pub(crate) struct ProbeCounters {
    sent: AtomicU64,
    /// The highest number that a server connection waits for.
    wanted: AtomicU64,
}

/// The client whose notifications a server connection's backend sends.
pub(in crate::core) struct Sender {
    seen: Arc<Seen>,
    /// Process ID (as told by the proxy) of the last client that wrote; 0 if none has.
    writer: u32,
    /// True if the current client has sent a statement that may notify.
    has_written: bool,
    /// Once this probe is answered, all notifications of the last writer have arrived.
    left: u64,
}

/// The part of [`Sender`] that other workers read.
#[derive(Debug, Default)]
struct Seen {
    writer: AtomicU32,
    /// Until this probe is answered, an earlier client may be the sender.
    since: AtomicU64,
}

/// The server connections of all workers, by node and backend process ID.
#[derive(Debug, Default)]
pub(crate) struct Senders(Mutex<HashMap<(NodeId, u32), Arc<Seen>>>);

// === impl Notification ===

impl Notification {
    /// Returns the approximate size in bytes.
    pub(in crate::core) fn size(&self) -> usize {
        self.channel.len() + self.payload.len() + 64
    }
}

// === impl ProbeCounters ===

impl ProbeCounters {
    /// Returns the number of the next probe of any connection, and marks it as awaited.
    fn mark(&self) -> u64 {
        let mark = self.sent.load(Ordering::SeqCst) + 1;
        if self.wanted.load(Ordering::Relaxed) < mark {
            self.wanted.fetch_max(mark, Ordering::Relaxed);
        }
        mark
    }

    /// Allocates the number of a probe that is about to be sent.
    pub(in crate::core) fn probe(&self) -> u64 {
        self.sent.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Returns the highest number that is awaited.
    pub(in crate::core) fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::Relaxed)
    }
}

// === impl Sender ===

impl Sender {
    pub(in crate::core) fn new() -> Sender {
        Sender { seen: Arc::default(), writer: 0, has_written: false, left: 0 }
    }

    /// Records a client's statement that may notify.
    fn writes(&mut self, pid: u32) {
        self.has_written = true;
        if self.writer != pid {
            // `since` is stored before `writer`: a reader in between sees the old client in doubt, and so no certain sender.
            self.seen.since.store(self.left, Ordering::SeqCst);
            self.seen.writer.store(pid, Ordering::SeqCst);
            self.writer = pid;
        }
    }

    /// Records that the client has left the server connection, and that none of its statements runs any more.
    pub(in crate::core) fn rest(&mut self, counters: &ProbeCounters) {
        if std::mem::take(&mut self.has_written) {
            self.left = counters.mark();
        }
    }
}

impl Seen {
    /// Returns the only possible sender, if all probes up to `proven` have been answered.
    fn client(&self, proven: u64) -> Option<u32> {
        let writer = self.writer.load(Ordering::SeqCst);
        let certain = self.since.load(Ordering::SeqCst) <= proven && self.writer.load(Ordering::SeqCst) == writer;
        (certain && writer != 0).then_some(writer)
    }
}

// === impl Senders ===

impl Senders {
    fn lock(&self) -> MutexGuard<'_, HashMap<(NodeId, u32), Arc<Seen>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an open server connection.
    pub(in crate::core) fn add(&self, node: NodeId, pid: u32, sender: &Sender) {
        self.lock().insert((node, pid), sender.seen.clone());
    }

    /// Removes a closed server connection. (The process ID may belong to a new backend by now.)
    pub(in crate::core) fn remove(&self, node: NodeId, pid: u32, sender: &Sender) {
        let mut known = self.lock();
        if known.get(&(node, pid)).is_some_and(|known| Arc::ptr_eq(known, &sender.seen)) {
            known.remove(&(node, pid));
        }
    }

    /// Returns the process ID (as told by the proxy) of the client that sent a backend's notification.
    fn of(&self, node: NodeId, pid: u32, proven: u64) -> Option<u32> {
        self.lock().get(&(node, pid))?.client(proven)
    }
}

impl Core {
    /// Records that a client sends a server a statement that may notify.
    pub(in crate::core) fn note_sender(&mut self, c: usize, s: usize) {
        let pid = self.client_pid(c);
        self.servers[s].sender.writes(pid);
    }

    /// Creates a notification from a server's message. `proven`: the last answered probe of that connection.
    pub(in crate::core) fn notification(
        &self,
        s: usize,
        pid: u32,
        channel: Arc<str>,
        payload: &[u8],
        proven: u64,
    ) -> Notification {
        let server = &self.servers[s];
        let own = server.client.filter(|_| pid == server.key.0).map(|c| self.client_pid(c));
        let client = own.or_else(|| self.shared.senders.of(server.node, pid, proven));
        Notification { pid: client.unwrap_or(pid), of_client: client.is_some(), channel, payload: payload.into() }
    }

    /// Sends a notification to a client. The client must be outside a transaction, or its transaction's last answer must still be under way.
    pub(in crate::core) fn tell_notification(&mut self, c: usize, notification: &Notification) {
        // A backend may have the process ID that this client was told: the client must not mistake that backend's notification for its own.
        let mistaken = !notification.of_client && notification.pid == self.client_pid(c);
        let pid = if mistaken { 0 } else { notification.pid };
        self.write_client(c, |out| {
            message::notification(out, pid, notification.channel.as_bytes(), &notification.payload)
        });
    }

    /// True if the client is between two transactions, with no partial answer in its output. `ready`: it has just been sent `ReadyForQuery`.
    pub(in crate::core) fn is_between(&self, c: usize, ready: bool) -> bool {
        let client = &self.clients[c];
        let quiet = matches!(client.phase, Phase::Ready)
            && client.begun.is_none()
            && client.aborted == Aborted::No
            && !client.skipping
            && client.output.held().is_none();
        quiet
            && match (client.at.server(), client.at.lane()) {
                (None, None) => !client.unit.routed,
                (None, Some(_)) => false,
                (Some(s), _) => {
                    let server = &self.servers[s];
                    let nothing_asked = server.protocol.is_quiet() && !client.unit.routed;
                    server.protocol.status() == Status::Idle
                        && !server.discard
                        && server.pass == 0
                        && (ready || nothing_asked)
                }
            }
    }

    /// Sends pending notifications to a listening client that has been sent `ReadyForQuery`: it may be the only opportunity before its next
    /// statement.
    pub(in crate::core) fn notify_between(&mut self, client: Option<Token>) {
        if let Some(token) = client
            && self.is_client(token)
        {
            self.notify(token.index(), true);
        }
    }

    /// Sends notifications to all clients that can get them now.
    pub(in crate::core) fn notify_all(&mut self) {
        let mut noticed = self.pending_notifications.take();
        noticed.retain(|&token| self.is_client(token) && !self.notify(token.index(), false));
        self.pending_notifications.put_back(noticed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sender_is_known_and_several_are_not() {
        let (counters, mut sender) = (ProbeCounters::default(), Sender::new());
        assert_eq!(sender.seen.client(u64::MAX), None);
        sender.writes(7);
        assert_eq!(sender.seen.client(0), Some(7));
        sender.rest(&counters);
        // A returning client is still the only sender.
        sender.writes(7);
        sender.rest(&counters);
        assert_eq!((sender.seen.client(0), counters.wanted()), (Some(7), 1));
        sender.writes(8);
        assert_eq!(sender.seen.client(0), None);
        // A probe sent after the first client had left.
        assert_eq!(counters.probe(), 1);
        assert_eq!((sender.seen.client(0), sender.seen.client(1)), (None, Some(8)));
        sender.rest(&counters);
        sender.writes(7);
        // A probe sent before.
        assert_eq!(sender.seen.client(1), None);
        assert_eq!(counters.probe(), 2);
        assert_eq!(sender.seen.client(2), Some(7));
        // A client that writes nothing needs no probe.
        sender.rest(&counters);
        sender.rest(&counters);
        assert_eq!(counters.wanted(), 3);
    }

    #[test]
    fn a_process_is_known_for_as_long_as_its_connection() {
        let senders = Senders::default();
        let (mut old, mut new) = (Sender::new(), Sender::new());
        senders.add(NodeId(0), 5, &old);
        assert_eq!(senders.of(NodeId(0), 5, 0), None);
        old.writes(77);
        assert_eq!((senders.of(NodeId(0), 5, 0), senders.of(NodeId(1), 5, 0)), (Some(77), None));
        new.writes(78);
        senders.add(NodeId(0), 5, &new);
        senders.remove(NodeId(0), 5, &old);
        assert_eq!(senders.of(NodeId(0), 5, 0), Some(78));
        senders.remove(NodeId(0), 5, &new);
        assert_eq!(senders.of(NodeId(0), 5, 0), None);
    }
}
