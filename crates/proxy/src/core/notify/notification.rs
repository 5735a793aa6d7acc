//! Notifications: what one is, who has sent it, and when a client may get it.
//!
//! A client is told a process id of the proxy's own (`Core::client_pid`), and a notification says which server process has sent it. Who asks
//! itself whether it has sent a notification compares the two. So the process id is replaced by that of the client whose it was, where
//! only one can have been: a connection is given to the next client before the notifications of the last have arrived.
//!
//! What has arrived is known by probes: empty queries on the connection that listens ([`Tide`] numbers them, over all of these). What was
//! committed before a probe was sent has been heard when it is answered. So who leaves a server connection after it has written takes the
//! number of the next probe, and until that is answered a notification of that process may be that client's or the next one's.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use topology::NodeId;
use wire::message::{self, Status};

use crate::core::Core;
use crate::core::memory::Token;
use crate::core::session::{Aborted, Phase};

/// A notification, as it came by a shared connection.
#[derive(Debug)]
pub struct Notification {
    pid: u32,
    /// The process id is that of a client of the proxy.
    of_client: bool,
    pub(in crate::core) channel: Arc<str>,
    payload: Box<[u8]>,
}

/// Numbers of the probes, over all connections that listen.
#[derive(Debug, Default)]
pub(crate) struct Tide {
    sent: AtomicU64,
    /// The highest that somebody waits for.
    wanted: AtomicU64,
}

/// Whose notifications a server connection's process sends.
pub(in crate::core) struct Sender {
    seen: Arc<Seen>,
    /// The process id of the client that wrote last; 0: none has.
    writer: u32,
    /// The present client has sent something that may notify.
    wrote: bool,
    /// The probe that proves that the last writer's notifications have been heard.
    left: u64,
}

/// What others see of it.
#[derive(Debug, Default)]
struct Seen {
    writer: AtomicU32,
    /// Until this probe is answered it may be another client.
    since: AtomicU64,
}

/// All workers' server connections, by node and process.
#[derive(Debug, Default)]
pub(crate) struct Senders(Mutex<HashMap<(NodeId, u32), Arc<Seen>>>);

// === impl Notification ===

impl Notification {
    /// Bytes that it takes, about.
    pub(in crate::core) fn size(&self) -> usize {
        self.channel.len() + self.payload.len() + 64
    }
}

// === impl Tide ===

impl Tide {
    /// The number of the next probe that is sent, whoever sends it; somebody waits for it.
    fn mark(&self) -> u64 {
        let mark = self.sent.load(Ordering::SeqCst) + 1;
        if self.wanted.load(Ordering::Relaxed) < mark {
            self.wanted.fetch_max(mark, Ordering::Relaxed);
        }
        mark
    }

    /// A probe is going to be sent.
    pub(in crate::core) fn probe(&self) -> u64 {
        self.sent.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The highest number that somebody waits for.
    pub(in crate::core) fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::Relaxed)
    }
}

// === impl Sender ===

impl Sender {
    pub(in crate::core) fn new() -> Sender {
        Sender { seen: Arc::default(), writer: 0, wrote: false, left: 0 }
    }

    /// A client sends what may notify.
    fn writes(&mut self, pid: u32) {
        self.wrote = true;
        if self.writer != pid {
            // The name is marked as doubtful before it changes: whoever reads both in between finds no certain name.
            self.seen.since.store(self.left, Ordering::SeqCst);
            self.seen.writer.store(pid, Ordering::SeqCst);
            self.writer = pid;
        }
    }

    /// Its client has left it, and nothing of that client's runs any more.
    pub(in crate::core) fn rest(&mut self, tide: &Tide) {
        if std::mem::take(&mut self.wrote) {
            self.left = tide.mark();
        }
    }
}

impl Seen {
    /// The only client that it can be, when this probe and those before it have been answered.
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

    /// A connection is open.
    pub(in crate::core) fn add(&self, node: NodeId, pid: u32, sender: &Sender) {
        self.lock().insert((node, pid), sender.seen.clone());
    }

    /// A connection is closed. (Its process id may be another's by now.)
    pub(in crate::core) fn remove(&self, node: NodeId, pid: u32, sender: &Sender) {
        let mut known = self.lock();
        if known.get(&(node, pid)).is_some_and(|known| Arc::ptr_eq(known, &sender.seen)) {
            known.remove(&(node, pid));
        }
    }

    /// The process id of the client that a server process's notification is of.
    fn of(&self, node: NodeId, pid: u32, proven: u64) -> Option<u32> {
        self.lock().get(&(node, pid))?.client(proven)
    }
}

impl Core {
    /// A client sends a server something that may notify.
    pub(in crate::core) fn note_sender(&mut self, c: usize, s: usize) {
        let pid = self.client_pid(c);
        self.servers[s].sender.writes(pid);
    }

    /// A notification that a server has sent. `proven`: the last probe that has been answered on that connection.
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

    /// Tells a client, which must be outside of a transaction, or the answer of one that is not over.
    pub(in crate::core) fn tell_notification(&mut self, c: usize, notification: &Notification) {
        // A server's process id may be the same as one that the proxy has given out. Of all clients this one must not take it for its own.
        let mistaken = !notification.of_client && notification.pid == self.client_pid(c);
        let pid = if mistaken { 0 } else { notification.pid };
        self.tell(c, |out| message::notification(out, pid, notification.channel.as_bytes(), &notification.payload));
    }

    /// True if the client is between two transactions, and nothing of an answer has been written that is not whole. `ready`: it has just
    /// been told so.
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

    /// A client that listens has been told that it is ready: it may be the only moment at which it can be told more.
    pub(in crate::core) fn notify_between(&mut self, client: Option<Token>) {
        if let Some(token) = client
            && self.is_client(token)
        {
            self.notify(token.index(), true);
        }
    }

    /// Tells clients what they can be told by now.
    pub(in crate::core) fn notify_all(&mut self) {
        let mut noticed = self.noticed.take();
        noticed.retain(|&token| self.is_client(token) && !self.notify(token.index(), false));
        self.noticed.put_back(noticed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sender_is_known_and_several_are_not() {
        let (tide, mut sender) = (Tide::default(), Sender::new());
        assert_eq!(sender.seen.client(u64::MAX), None);
        sender.writes(7);
        assert_eq!(sender.seen.client(0), Some(7));
        sender.rest(&tide);
        // Who comes back is still the only one.
        sender.writes(7);
        sender.rest(&tide);
        assert_eq!((sender.seen.client(0), tide.wanted()), (Some(7), 1));
        sender.writes(8);
        assert_eq!(sender.seen.client(0), None);
        // A probe that was sent after the first had left.
        assert_eq!(tide.probe(), 1);
        assert_eq!((sender.seen.client(0), sender.seen.client(1)), (None, Some(8)));
        sender.rest(&tide);
        sender.writes(7);
        // One that was sent before.
        assert_eq!(sender.seen.client(1), None);
        assert_eq!(tide.probe(), 2);
        assert_eq!(sender.seen.client(2), Some(7));
        // Who writes nothing wants no probe.
        sender.rest(&tide);
        sender.rest(&tide);
        assert_eq!(tide.wanted(), 3);
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
