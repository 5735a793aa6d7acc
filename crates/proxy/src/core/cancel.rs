//! Cancel requests.
//!
//! A client's key names its worker and slot; the secret is made from the connection's token and the process's own secret, so
//! nothing is stored. A request goes to the server only while that server runs a statement of this very client, and
//! the server is not given to another client before the request has had its effect.
//!
//! With several proxies side by side a request may reach another than the one that its client is connected to: the key says which, and
//! the request is passed on to that one, once.

use std::time::{Duration, Instant};

use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use topology::{Address, NodeId};
use wire::startup::V3_2;
use wire::{Sqlstate, message};

use super::buffer::Output;
use super::client::Phase;
use super::token::{Kind, Token};
use super::{Core, Effect, Mail, Secure, over};

/// Longest time for a server to take a cancel request.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);
/// Most cancel requests on their way to one server connection.
const MOST_PER_SERVER: u8 = 4;

/// A connection that carries one cancel request to a server.
pub(super) struct Cancel {
    pub token: Token,
    pub output: Output,
    phase: CancelPhase,
    address: Address,
    /// The node, and the server connection there that it is about; None: it goes to a peer.
    to: Option<(NodeId, Token)>,
    pid: u32,
    secret: Vec<u8>,
    /// Who asked: worker and connection there.
    requester: Option<(usize, Token)>,
    since: Instant,
}

/// How far such a connection has come.
enum CancelPhase {
    Connecting,
    /// The server was asked for TLS.
    Asking(Box<tls::Target>),
    /// TLS begins.
    Securing,
    /// The request is on its way.
    Sent,
}

/// Which worker gave this process id to a client.
pub(super) fn worker_of(pid: u32) -> usize {
    (pid >> 23 & 0xff) as usize
}

/// Bits of a process id that say which slot, where some say which of several proxies.
const PEER_SLOT_BITS: u32 = 18;

/// Which of several proxies gave it.
fn peer_of(pid: u32) -> u8 {
    (pid >> PEER_SLOT_BITS & 0x1f) as u8
}

/// Those bits.
const SLOT_OF_PEER: u32 = (1 << PEER_SLOT_BITS) - 1;

/// Ends the secret of a request that one peer passes on to another, which passes it on to nobody.
const PASSED_ON: u8 = 0xff;

/// The secret as it was given, and whether a peer has passed it on: then it is a byte longer than either length of key.
pub(super) fn passed_on(secret: &[u8]) -> (&[u8], bool) {
    match secret {
        [secret @ .., _] if matches!(secret.len(), 4 | 32) => (secret, true),
        _ => (secret, false),
    }
}

impl Core {
    /// What a client presents to have its statement cancelled.
    pub(super) fn cancel_key(&self, c: usize, version: u32) -> (u32, Vec<u8>) {
        let secret = self.cancel_secret(self.clients[c].token);
        let length = if version >= V3_2 { 32 } else { 4 };
        (self.client_pid(c), secret[..length].to_vec())
    }

    /// What a client is told that its server's process id is.
    pub(super) fn client_pid(&self, c: usize) -> u32 {
        // 8 bits of worker, 23 bits of slot, counted from 1: positive as a signed number, as drivers expect.
        // With peers, 5 of the slot's bits say which of them.
        let slot = match self.settings.peer {
            0 => (c as u32 + 1) & 0x7f_ffff,
            peer => u32::from(peer & 0x1f) << PEER_SLOT_BITS | (c as u32 + 1) & SLOT_OF_PEER,
        };
        (self.id as u32 & 0xff) << 23 | slot
    }

    fn cancel_secret(&self, token: Token) -> [u8; 32] {
        // HMAC takes a key of any length: this cannot fail.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.shared.secret) else { return [0; 32] };
        mac.update(b"cancel");
        mac.update(&(self.id as u64).to_be_bytes());
        mac.update(&token.raw().to_be_bytes());
        mac.finalize().into_bytes().into()
    }

    /// A request for one of this worker's clients.
    pub(super) fn cancel(&mut self, pid: u32, secret: &[u8], from: usize, requester: Token) {
        // 0 is nobody's; it becomes a slot that is never used.
        let slot = if self.settings.peer == 0 { pid & 0x7f_ffff } else { pid & SLOT_OF_PEER };
        let c = (slot as usize).wrapping_sub(1);
        let known = self.clients.get(c).filter(|client| matches!(client.phase, Phase::Ready)).is_some_and(|client| {
            let expected = self.cancel_secret(client.token);
            // Either length of key is good, whichever protocol version the client speaks: both are 32 bits or more.
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
            // Of a lane's statements only the one that runs can be cancelled by the server; any other just does not happen.
            Some(s) => self.cancel_in_lane(c, s).then_some(s),
            None => self.clients[c].at.server().filter(|&s| self.servers[s].is_running()),
        };
        match server {
            Some(s) if self.servers[s].cancels < MOST_PER_SERVER => self.send_cancel(s, Some((from, requester))),
            _ => self.tell_requester(from, requester),
        }
    }

    /// A request of whoever connected for it goes to the proxy that its key is of. False if that is this one.
    pub(super) fn pass_on_cancel(&mut self, pid: u32, secret: &[u8], requester: Token) -> bool {
        if self.settings.peer == 0 || peer_of(pid) == self.settings.peer {
            return false;
        }
        let Some(address) = self.settings.peers.get(&peer_of(pid)).cloned() else {
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

    /// Asks a server to stop what it runs on this connection.
    pub(super) fn send_cancel(&mut self, s: usize, requester: Option<(usize, Token)>) {
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

    pub(super) fn address(&self, node: topology::NodeId) -> Option<Address> {
        self.view.node(node).map(|node| node.address.clone())
    }

    pub(super) fn cancel_connected(&mut self, x: usize) {
        let cancel = &self.cancels[x];
        // A peer is asked as a client would: in clear, which a listener takes for cancel requests.
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

    /// What a server says on such a connection: nothing but its answer to the request for TLS.
    pub(super) fn cancel_received(&mut self, x: usize, bytes: &[u8]) {
        let cancel = &mut self.cancels[x];
        match &cancel.phase {
            CancelPhase::Asking(target) if bytes == b"S" => {
                let with = Secure::Connect((**target).clone());
                cancel.phase = CancelPhase::Securing;
                self.effects.push(Effect::Secure { token: cancel.token, with });
            }
            CancelPhase::Asking(target) if bytes == b"N" && target.connector.is_optional() => self.cancel_ready(x),
            CancelPhase::Asking(_) => {
                // The key is a secret: it does not go where the configuration does not let it.
                tracing::warn!("a cancel request was not sent: the server did not agree to TLS");
                self.cancel_done(x);
            }
            _ => {}
        }
    }

    /// The request can be sent.
    pub(super) fn cancel_ready(&mut self, x: usize) {
        let cancel = &mut self.cancels[x];
        if matches!(cancel.phase, CancelPhase::Sent) {
            return;
        }
        cancel.phase = CancelPhase::Sent;
        message::cancel(cancel.output.append(&mut self.buffers), cancel.pid, &cancel.secret);
        self.dirty.push(cancel.token);
    }

    /// The server has closed the connection: by then the signal is sent. (Or it could not be reached.)
    pub(super) fn cancel_done(&mut self, x: usize) {
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

    pub(super) fn expire_cancels(&mut self) {
        let late: Vec<usize> = self
            .cancels
            .iter()
            .filter(|(_, cancel)| over(cancel.since, CANCEL_TIMEOUT, self.now))
            .map(|(x, _)| x)
            .collect();
        for x in late {
            // The signal may still come: the connection it is about must not serve anyone else.
            if let Some((_, server)) = self.cancels[x].to
                && self.is_server(server)
            {
                self.servers[server.index()].retire = true;
            }
            self.cancel_done(x);
        }
    }

    /// PostgreSQL closes a cancel connection when the signal is sent: clients rely on that.
    fn tell_requester(&mut self, worker: usize, requester: Token) {
        if worker == self.id {
            if self.is_client(requester) {
                self.close_client(requester.index());
            }
        } else {
            self.effects.push(Effect::Post { to: worker, mail: Mail::Cancelled(requester) });
        }
    }
}
