//! Cancel requests.
//!
//! A client's process ID contains its worker and slot. Its secret key is computed from the connection's token and the process's secret, so it is not
//! stored. A request is sent to the server only while that server runs a statement of this client, and the server connection is not given to another
//! client before the request has been handled.
//!
//! With several proxies side by side, a request may reach another proxy than the client's. The process ID contains the number of the proxy, and the
//! request is passed on to that proxy, once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use topology::{Address, NodeId};
use wire::startup::V3_2;
use wire::{Sqlstate, message};

use super::client::Phase;
use crate::core::memory::Output;
use crate::core::memory::{Kind, Token};
use crate::core::{Core, CoreMessage, Effect, Secure, over};

/// Maximum time for a server to handle a cancel request.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of cancel requests under way for one server connection.
const MOST_PER_SERVER: u8 = 4;

/// A connection that carries one cancel request to a server.
pub(in crate::core) struct Cancel {
    pub token: Token,
    pub output: Output,
    phase: CancelPhase,
    address: Address,
    /// The node, and the server connection whose statement is to be cancelled. `None`: the request goes to another proxy.
    to: Option<(NodeId, Token)>,
    pid: u32,
    secret: Vec<u8>,
    /// The worker and connection that the request came from.
    requester: Option<(usize, Token)>,
    since: Instant,
}

/// State of a cancel connection.
enum CancelPhase {
    Connecting,
    /// SSLRequest was sent.
    Asking(Box<tls::Target>),
    /// The TLS handshake is under way.
    Securing,
    /// The cancel request was sent.
    Sent,
}

/// Process ID that a client is told. From the highest bit on: `01`, 8 bits of worker, 22 bits of slot (counted from 1). With several proxies side by
/// side, 5 of the 22 bits are the number of the proxy.
///
/// The number is positive as a signed integer, as drivers expect. It is above 2^22, the highest process ID of Linux: so `pg_cancel_backend()` with a
/// driver's ID never affects another client's backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) struct ClientPid(u32);

const MARK: u32 = 1 << 30;
const SLOT_BITS: u32 = 22;
const PEER_SLOT_BITS: u32 = 17;

impl ClientPid {
    /// Creates the ID of the client in slot `slot` of worker `worker`; `peer` is this proxy's number, 0 if there is only one.
    fn new(worker: usize, slot: usize, peer: u8) -> ClientPid {
        let slot = slot as u32 + 1;
        let slot = match peer {
            0 => slot & ((1 << SLOT_BITS) - 1),
            peer => u32::from(peer & 0x1f) << PEER_SLOT_BITS | slot & ((1 << PEER_SLOT_BITS) - 1),
        };
        ClientPid(MARK | (worker as u32 & 0xff) << SLOT_BITS | slot)
    }

    /// Parses the process ID of a cancel request. `None`: no client was ever told such an ID.
    pub(super) fn read(pid: u32) -> Option<ClientPid> {
        (pid >> 30 == 1).then_some(ClientPid(pid))
    }

    /// Returns the client's worker, by its number among those of all clusters.
    fn worker(self) -> usize {
        (self.0 >> SLOT_BITS & 0xff) as usize
    }

    /// Returns the number of the client's proxy.
    fn peer(self) -> u8 {
        (self.0 >> PEER_SLOT_BITS & 0x1f) as u8
    }

    /// Returns the client's slot; `None` if the ID is not of a client.
    fn slot(self, peers: bool) -> Option<usize> {
        let bits = if peers { PEER_SLOT_BITS } else { SLOT_BITS };
        (self.0 as usize & ((1 << bits) - 1)).checked_sub(1)
    }
}

/// Byte appended to the secret of a request for another proxy, which then does not pass it on again.
const PASSED_ON: u8 = 0xff;

/// Returns the secret as the client sent it, and true if a proxy has passed the request on: the secret is then one byte longer than a key.
pub(in crate::core) fn passed_on(secret: &[u8]) -> (&[u8], bool) {
    match secret {
        [secret @ .., _] if matches!(secret.len(), 4 | 32) => (secret, true),
        _ => (secret, false),
    }
}

impl Core {
    /// Returns the process ID and secret key that a client gets at login.
    pub(in crate::core) fn cancel_key(&self, c: usize, version: u32) -> (u32, Vec<u8>) {
        let secret = self.cancel_secret(self.clients[c].token);
        let length = if version >= V3_2 { 32 } else { 4 };
        (self.client_pid(c), secret[..length].to_vec())
    }

    /// Returns the worker of this cluster that has the client with this process ID.
    pub(super) fn worker_of(&self, pid: u32) -> Option<usize> {
        let worker = ClientPid::read(pid)?.worker().checked_sub(self.shared.membership.first_worker)?;
        (worker < self.shared.workers).then_some(worker)
    }

    /// Returns another cluster that has the client with this process ID.
    pub(super) fn cluster_of(&self, pid: u32) -> Option<Arc<str>> {
        let pid = ClientPid::read(pid)?;
        if self.settings.peer != 0 && pid.peer() != self.settings.peer {
            return None;
        }
        let membership = &self.shared.membership;
        membership.clusters.of_worker(pid.worker()).filter(|cluster| *cluster != membership.cluster)
    }

    /// Returns the process ID that a client is told.
    pub(in crate::core) fn client_pid(&self, c: usize) -> u32 {
        ClientPid::new(self.shared.membership.first_worker + self.id, c, self.settings.peer).0
    }

    fn cancel_secret(&self, token: Token) -> [u8; 32] {
        // HMAC accepts a key of any length, so this cannot fail.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.shared.secret) else { return [0; 32] };
        mac.update(b"cancel");
        mac.update(&(self.id as u64).to_be_bytes());
        mac.update(&token.raw().to_be_bytes());
        mac.finalize().into_bytes().into()
    }

    /// Handles a request for one of this worker's clients.
    pub(in crate::core) fn cancel(&mut self, pid: u32, secret: &[u8], from: usize, requester: Token) {
        let slot = ClientPid::read(pid).and_then(|pid| pid.slot(self.settings.peer != 0));
        // `usize::MAX` is never a slot in use.
        let c = slot.unwrap_or(usize::MAX);
        let known = self.clients.get(c).filter(|client| matches!(client.phase, Phase::Ready)).is_some_and(|client| {
            let expected = self.cancel_secret(client.token);
            // Either key length is accepted, regardless of the client's protocol version: both have at least 32 bits.
            matches!(secret.len(), 4 | 32) && bool::from(secret.ct_eq(&expected[..secret.len()]))
        });
        if !known {
            self.metrics.cancels_unknown.add(1);
            return self.tell_requester(from, requester);
        }
        self.metrics.cancels.add(1);
        if self.clients[c].waiting {
            self.refuse_unit(c, Sqlstate::QUERY_CANCELED, "canceling statement due to user request");
            return self.tell_requester(from, requester);
        }
        let shared = self.clients[c].at.lane();
        let server = match shared {
            // In a lane, a server can cancel only the running statement. Another client's waiting unit is removed from the lane.
            Some(s) => self.cancel_in_lane(c, s).then_some(s),
            None => self.clients[c].at.server().filter(|&s| self.servers[s].is_running()),
        };
        match server {
            Some(s) if self.servers[s].cancels < MOST_PER_SERVER => self.send_cancel(s, Some((from, requester))),
            _ => self.tell_requester(from, requester),
        }
    }

    /// Passes a request on to the proxy in its process ID. Returns false if that is this proxy.
    pub(in crate::core) fn pass_on_cancel(&mut self, pid: u32, secret: &[u8], requester: Token) -> bool {
        let Some(peer) = ClientPid::read(pid).map(ClientPid::peer) else { return false };
        if self.settings.peer == 0 || peer == self.settings.peer {
            return false;
        }
        let Some(address) = self.settings.peers.get(&peer).cloned() else {
            self.metrics.cancels_unknown.add(1);
            self.tell_requester(self.id, requester);
            return true;
        };
        self.metrics.cancels_passed_on.add(1);
        let secret = [secret, &[PASSED_ON]].concat();
        self.connect_cancel(address, None, pid, secret, Some((self.id, requester)));
        true
    }

    fn connect_cancel(
        &mut self,
        address: Address,
        to: Option<(NodeId, Token)>,
        pid: u32,
        secret: Vec<u8>,
        requester: Option<(usize, Token)>,
    ) {
        let token = self.token(Kind::Cancel, self.cancels.vacant_key());
        self.cancels.insert(Cancel {
            token,
            output: Output::default(),
            phase: CancelPhase::Connecting,
            address: address.clone(),
            to,
            pid,
            secret,
            requester,
            since: self.now,
        });
        self.effects.push(Effect::Connect { token, address });
    }

    /// Connects to the server to cancel the statement of connection `s`.
    pub(in crate::core) fn send_cancel(&mut self, s: usize, requester: Option<(usize, Token)>) {
        let node = self.servers[s].node;
        let Some(address) = self.address(node) else {
            if let Some((worker, requester)) = requester {
                self.tell_requester(worker, requester);
            }
            return;
        };
        let server = &mut self.servers[s];
        server.cancels += 1;
        let (to, pid, secret) = (Some((node, server.token)), server.key.0, server.key.1.clone());
        self.connect_cancel(address, to, pid, secret, requester);
    }

    pub(in crate::core) fn address(&self, node: topology::NodeId) -> Option<Address> {
        self.view.node(node).map(|node| node.address.clone())
    }

    pub(in crate::core) fn cancel_connected(&mut self, x: usize) {
        let cancel = &self.cancels[x];
        // Another proxy gets the request in clear, as from a client: listeners accept cancel requests in clear.
        let Some((node, _)) = cancel.to else { return self.cancel_ready(x) };
        match self.shared.topology.secure(node, &cancel.address) {
            None => self.cancel_ready(x),
            Some(target) => {
                let cancel = &mut self.cancels[x];
                cancel.phase = CancelPhase::Asking(Box::new(target));
                message::ssl_request(cancel.output.append(&mut self.buffers));
                self.dirty.push(cancel.token);
            }
        }
    }

    /// Handles the server's bytes on a cancel connection: only its answer to SSLRequest.
    pub(in crate::core) fn cancel_received(&mut self, x: usize, bytes: &[u8]) {
        let cancel = &mut self.cancels[x];
        match &cancel.phase {
            CancelPhase::Asking(target) if bytes == b"S" => {
                let with = Secure::Connect((**target).clone());
                cancel.phase = CancelPhase::Securing;
                self.effects.push(Effect::Secure { token: cancel.token, with });
            }
            CancelPhase::Asking(target) if bytes == b"N" && target.connector.is_optional() => self.cancel_ready(x),
            CancelPhase::Asking(_) => {
                // The cancel key is a secret: it is not sent in clear if the configuration requires TLS.
                tracing::warn!("a cancel request was not sent: the server did not agree to TLS");
                self.cancel_done(x);
            }
            _ => {}
        }
    }

    /// Sends the cancel request once the connection is ready for it.
    pub(in crate::core) fn cancel_ready(&mut self, x: usize) {
        let cancel = &mut self.cancels[x];
        if matches!(cancel.phase, CancelPhase::Sent) {
            return;
        }
        cancel.phase = CancelPhase::Sent;
        message::cancel(cancel.output.append(&mut self.buffers), cancel.pid, &cancel.secret);
        self.dirty.push(cancel.token);
    }

    /// Ends a cancel connection: the server has closed it, so the signal has been sent; or the server could not be reached.
    pub(in crate::core) fn cancel_done(&mut self, x: usize) {
        let mut cancel = self.cancels.remove(x);
        cancel.output.clear(&mut self.buffers);
        self.effects.push(Effect::Close { token: cancel.token, last: Vec::new() });
        if let Some((worker, requester)) = cancel.requester {
            self.tell_requester(worker, requester);
        }
        if let Some((_, token)) = cancel.to
            && self.is_server(token)
        {
            let s = token.index();
            let server = &mut self.servers[s];
            server.cancels -= 1;
            if server.cancels == 0 && std::mem::take(&mut server.held_for_cancel) {
                self.rest(s);
            }
        }
    }

    pub(in crate::core) fn expire_cancels(&mut self) {
        let late: Vec<usize> = self
            .cancels
            .iter()
            .filter(|(_, cancel)| over(cancel.since, CANCEL_TIMEOUT, self.now))
            .map(|(x, _)| x)
            .collect();
        for x in late {
            // The signal may still come, so the server connection must not serve another client.
            if let Some((_, server)) = self.cancels[x].to
                && self.is_server(server)
            {
                self.servers[server.index()].retire = true;
            }
            self.cancel_done(x);
        }
    }

    /// Closes the requester's connection. PostgreSQL closes it once the signal is sent, and clients rely on that.
    fn tell_requester(&mut self, worker: usize, requester: Token) {
        if worker == self.id {
            if self.is_client(requester) {
                self.close_client(requester.index());
            }
        } else {
            self.effects.push(Effect::Post { to: worker, message: CoreMessage::Cancelled(requester) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_ids() {
        for (worker, slot, peer) in
            [(0, 0, 0), (255, 4_194_302, 0), (7, 42, 0), (0, 0, 1), (255, 131_070, 31), (7, 42, 5)]
        {
            let pid = ClientPid::new(worker, slot, peer);
            assert!(pid.0 > 1 << 22 && pid.0 < 1 << 31, "{pid:?}");
            assert_eq!(ClientPid::read(pid.0), Some(pid));
            assert_eq!((pid.worker(), pid.slot(peer != 0)), (worker, Some(slot)));
            assert!(peer == 0 || pid.peer() == peer);
        }
        for pid in [0, 1, 4_194_304, u32::MAX, 1 << 31] {
            assert_eq!(ClientPid::read(pid), None, "{pid}");
        }
    }
}
