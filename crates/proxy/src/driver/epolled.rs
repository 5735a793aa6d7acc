//! Wait of a worker with epoll.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use super::sys::{self, Event};
use super::worker::{BUFFER, Flag, MAILBOX, Poller, Waits, Worker, slot};
use crate::core::token::Token;

/// Most events taken in one turn.
const EVENTS: usize = 256;

/// The events of the last wait.
struct Events {
    events: [Event; EVENTS],
    count: usize,
}

impl Waits for Events {
    fn wait(&mut self, worker: &mut Worker, limit: Duration) -> io::Result<()> {
        self.count = match &worker.poller {
            Poller::Epoll(epoll) => epoll.wait(&mut self.events, limit.as_millis() as i32)?,
            Poller::Ring(_) => 0,
        };
        Ok(())
    }

    fn gather(&mut self, worker: &mut Worker, limit: Duration) {
        worker.wait_for_others(limit);
    }

    fn tell(&mut self, worker: &mut Worker) -> io::Result<()> {
        for event in &self.events[..self.count] {
            worker.event(event.u64, event.events);
        }
        Ok(())
    }

    fn go_on(worker: &mut Worker, token: Token) {
        worker.read(token);
    }
}

impl Worker {
    /// Runs until the worker is stopped.
    pub(super) fn run_epoll(&mut self) -> io::Result<()> {
        if let Poller::Epoll(epoll) = &self.poller {
            epoll.add_level(self.mailboxes[self.id].fd(), MAILBOX)?;
        }
        self.turns(&mut Events { events: [Event { events: 0, u64: 0 }; EVENTS], count: 0 })
    }

    fn event(&mut self, data: u64, flags: u32) {
        let Some(token) = Token::from_raw(data) else { return self.take_commands() };
        let Some(socket) = self.socket(token) else { return };
        let flags = flags as i32;
        let broken = flags & (libc::EPOLLERR | libc::EPOLLHUP) != 0;
        if socket.is(Flag::Connecting) {
            if broken || flags & libc::EPOLLOUT != 0 {
                socket.set(Flag::Connecting, false);
                match sys::connect_result(socket.fd.as_fd()) {
                    Ok(()) => self.core.connected(token),
                    Err(error) => return self.core.closed(token, &error.to_string()),
                }
            } else {
                return;
            }
        }
        if flags & libc::EPOLLOUT != 0 {
            self.flush_epoll(token);
        }
        if broken || flags & (libc::EPOLLIN | libc::EPOLLRDHUP) != 0 {
            if (broken || flags & libc::EPOLLRDHUP != 0)
                && let Some(socket) = self.socket(token)
            {
                socket.set(Flag::Ended, true);
                socket.set(Flag::Broken, broken);
            }
            self.read(token);
        }
    }

    /// Reads a socket once. A socket whose end was announced is read again and again, until the end is reached.
    fn read(&mut self, token: Token) {
        let Some(socket) = slot(&mut self.sockets, token) else { return };
        if socket.is(Flag::Finished) {
            // The only further event is that the peer does not read, either.
            if socket.is(Flag::Broken) {
                self.core.closed(token, "the connection was reset");
            }
            return;
        }
        if socket.is(Flag::Paused) {
            return;
        }
        if socket.link.is_some() {
            return self.read_link(token);
        }
        match sys::receive(socket.fd.as_fd(), &mut self.buffer) {
            Ok(0) => self.finished(token),
            Ok(n) => {
                // A short read has emptied the socket, so the next bytes will make a new event.
                if (n == BUFFER || socket.is(Flag::Ended)) && !socket.set(Flag::Queued, true) {
                    self.again.push(token);
                }
                self.core.received(token, &self.buffer[..n]);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                if !socket.set(Flag::Queued, true) {
                    self.again.push(token);
                }
            }
            Err(error) => self.core.closed(token, &error.to_string()),
        }
    }

    /// Writes a connection's output, as far as the socket takes it.
    pub(super) fn flush_epoll(&mut self, token: Token) {
        loop {
            let Some(socket) = slot(&mut self.sockets, token) else { return };
            if socket.is(Flag::Connecting) {
                return;
            }
            if socket.link.is_some() {
                return self.flush_link(token);
            }
            let Some(output) = self.core.output(token) else { return };
            let bytes = output.writable();
            if bytes.is_empty() {
                return;
            }
            match sys::send(socket.fd.as_fd(), bytes) {
                Ok(n) => {
                    let all = n == bytes.len();
                    self.core.written(token, n);
                    if !all {
                        // The socket is full: its next event says when there is room.
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.write_failed(token, &error),
            }
        }
    }
}
