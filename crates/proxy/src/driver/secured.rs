//! Sockets with TLS: bytes from the socket go through a [`Link`] to the core, the core's output goes through the link
//! to the socket.
//!
//! A plain connection pays for this with the test of one field. A TLS connection is read into the same shared buffer,
//! behind the unfinished record that its link has kept. It is written from one shared buffer, which the link keeps only
//! while the socket is full.

use std::io;
use std::os::fd::AsFd;

use tls::{Event, LONGEST_PART, Link};

use super::sys;
use super::worker::{BUFFER, Flag, Worker, slot};
use crate::core::Secure;
use crate::core::token::Token;

/// Most plaintext that is encrypted before it is written, in bytes. It bounds the bytes kept for a client that does not read.
const AT_ONCE: usize = 64 << 10;

impl Worker {
    /// Starts TLS on a connection that was plain so far.
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
            // Output in clear: the answer to the client's SSLRequest.
            link.prime(plain);
            self.core.written(token, count);
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

    /// Reads a TLS socket once, as [`Worker::read`] reads a plain one.
    pub(super) fn read_link(&mut self, token: Token) {
        let Some(socket) = slot(&mut self.sockets, token) else { return };
        let Some(link) = &mut socket.link else { return };
        let kept = link.unfinished(&mut self.buffer);
        match sys::receive(socket.fd.as_fd(), &mut self.buffer[kept..]) {
            Ok(0) => {
                // `Core::closed` may send a last message, for which the link must be in order.
                link.keep(&self.buffer[..kept]);
                self.finished(token);
            }
            Ok(n) => {
                if (kept + n == BUFFER || socket.is(Flag::Ended)) && !socket.set(Flag::Queued, true) {
                    self.again.push(token);
                }
                if self.take_records(token, kept + n) && self.answers(token) {
                    // Handshake messages are written at once; the core's output is written at the end of the turn, as
                    // always.
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

    /// True if a link has bytes for the peer.
    pub(super) fn answers(&mut self, token: Token) -> bool {
        let link = slot(&mut self.sockets, token).and_then(|socket| socket.link.as_ref());
        link.is_some_and(|link| !link.pending().is_empty())
    }

    /// Gives the first `count` bytes of the buffer to a socket's link, and the link's events to the core. False if the
    /// connection is at its end.
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
            Ok(()) if ended => self.finished(token),
            Ok(()) => return true,
            // The link now has an alert for the peer: it is written when the core closes the connection.
            Err(error) => self.core.insecure(token, &error.to_string()),
        }
        false
    }

    /// Writes the link's bytes and the core's output, as far as the socket takes them.
    pub(super) fn flush_link(&mut self, token: Token) {
        loop {
            let Some(socket) = slot(&mut self.sockets, token) else { return };
            let Some(link) = &mut socket.link else { return };
            if link.pending().is_empty() && link.is_open() {
                let Some(output) = self.core.output(token) else { return };
                let plain = output.writable();
                let plain = &plain[..plain.len().min(AT_ONCE)];
                if !plain.is_empty()
                    && let Err(error) = link.encrypt(plain, &mut self.sealed)
                {
                    return self.core.insecure(token, &error.to_string());
                }
            }
            let bytes = link.pending();
            if bytes.is_empty() {
                return;
            }
            match sys::send(socket.fd.as_fd(), bytes) {
                Ok(n) => {
                    let all = n == bytes.len();
                    // The core may close a connection whose last byte is written.
                    let plain = link.wrote(n, &mut self.sealed);
                    if plain > 0 {
                        self.core.written(token, plain);
                    }
                    if !all {
                        // The socket is full: its next event says when there is room.
                        return self.want_room(token);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return self.want_room(token),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.write_failed(token, &error),
            }
        }
    }
}
