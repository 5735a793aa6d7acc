//! Sockets that speak TLS: what is read goes through a [`Link`] to the core, what the core has goes through it to the socket.
//!
//! A plain connection pays one test of a field for all this. A secured one is read into the same shared buffer, behind what
//! its link has kept of an unfinished record; it writes from one shared buffer, which stays with it only while its
//! socket is full.

use std::io;
use std::os::fd::AsFd;

use tls::{Event, LONGEST_PART, Link};

use super::sys;
use super::worker::{BUFFER, Flag, Worker, slot};
use crate::core::Secure;
use crate::core::token::Token;

/// Plaintext encrypted before it is written, in bytes: a client that does not read makes us keep no more of it than this.
const AT_ONCE: usize = 64 << 10;

impl Worker {
    /// Begins TLS on a connection that has been plain so far.
    pub(super) fn secure(&mut self, token: Token, with: &Secure) {
        let early = self.core.early(token);
        let Some(output) = self.core.output(token) else { return };
        let plain = output.writable();
        let made = match with {
            Secure::Accept { acceptor, direct } => Link::accept(acceptor, *direct),
            Secure::Connect(target) => Link::connect(target),
        };
        let mut link = match made {
            Ok(link) => Box::new(link),
            Err(error) => return self.core.insecure(token, &error.to_string()),
        };
        let count = plain.len();
        if count > 0 {
            // Clear text: the answer to a client's request for TLS.
            link.prime(plain);
            self.core.wrote(token, count);
        }
        let Some(socket) = slot(&mut self.sockets, token) else { return };
        socket.link = Some(link);
        for part in early.chunks(BUFFER - LONGEST_PART) {
            let Some(link) = slot(&mut self.sockets, token).and_then(|socket| socket.link.as_mut()) else { return };
            let kept = link.unfinished(&mut self.buffer);
            self.buffer[kept..kept + part.len()].copy_from_slice(part);
            if !self.take_records(token, kept + part.len()) {
                return;
            }
        }
        self.flush_link(token);
    }

    /// Reads a secured socket once, as [`Worker::read`] does a plain one.
    pub(super) fn read_link(&mut self, token: Token) {
        let Some(socket) = slot(&mut self.sockets, token) else { return };
        let Some(link) = &mut socket.link else { return };
        let kept = link.unfinished(&mut self.buffer);
        match sys::receive(socket.fd.as_fd(), &mut self.buffer[kept..]) {
            Ok(0) => {
                // What is said at the end goes through the link, too.
                link.keep(&self.buffer[..kept]);
                self.core.closed(token, "the peer closed the connection");
            }
            Ok(n) => {
                if (kept + n == BUFFER || socket.is(Flag::Ended)) && !socket.set(Flag::Queued, true) {
                    self.again.push(token);
                }
                if self.take_records(token, kept + n) && self.answers(token) {
                    // A flight of the handshake. What the core has to say is written at the end of the turn, as always.
                    self.flush_link(token);
                }
            }
            Err(error) => {
                link.keep(&self.buffer[..kept]);
                match error.kind() {
                    io::ErrorKind::WouldBlock => {}
                    io::ErrorKind::Interrupted => {
                        if !socket.set(Flag::Queued, true) {
                            self.again.push(token);
                        }
                    }
                    _ => self.core.closed(token, &error.to_string()),
                }
            }
        }
    }

    /// Whether a link has something for the peer.
    pub(super) fn answers(&mut self, token: Token) -> bool {
        let link = slot(&mut self.sockets, token).and_then(|socket| socket.link.as_ref());
        link.is_some_and(|link| !link.pending().is_empty())
    }

    /// Gives the first `count` bytes of the buffer to a socket's link, and what comes of them to the core. False if that
    /// was the end of the connection.
    pub(super) fn take_records(&mut self, token: Token, count: usize) -> bool {
        let Some(socket) = slot(&mut self.sockets, token) else { return false };
        let Some(link) = &mut socket.link else { return false };
        let core = &mut self.core;
        let mut ended = false;
        let outcome = link.received(&mut self.buffer[..count], &mut |event| match event {
            Event::Secured(identity) => core.secured(token, identity),
            Event::Data(bytes) => core.received(token, bytes),
            Event::Closed => ended = true,
        });
        match outcome {
            Ok(()) if ended => core.closed(token, "the peer closed the connection"),
            Ok(()) => return true,
            // What is pending then says to the peer why: it is written when the core closes the connection.
            Err(error) => core.insecure(token, &error.to_string()),
        }
        false
    }

    /// Writes what a link has and what the core has for it, as far as the socket takes it.
    pub(super) fn flush_link(&mut self, token: Token) {
        loop {
            let Some(socket) = slot(&mut self.sockets, token) else { return };
            let Some(link) = &mut socket.link else { return };
            if link.pending().is_empty() && link.is_open() {
                let Some(output) = self.core.output(token) else { return };
                let plain = output.writable();
                let plain = &plain[..plain.len().min(AT_ONCE)];
                if !plain.is_empty() {
                    if let Err(error) = link.encrypt(plain, &mut self.sealed) {
                        return self.core.insecure(token, &error.to_string());
                    }
                    let count = plain.len();
                    self.core.wrote(token, count);
                }
            }
            let bytes = link.pending();
            if bytes.is_empty() {
                return;
            }
            match sys::send(socket.fd.as_fd(), bytes) {
                Ok(n) => {
                    let all = n == bytes.len();
                    link.wrote(n, &mut self.sealed);
                    if !all {
                        // The socket is full: it says when it is not.
                        return self.want_room(token);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return self.want_room(token),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.core.closed(token, &error.to_string()),
            }
        }
    }
}
