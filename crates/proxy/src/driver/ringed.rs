//! Waiting with io_uring.
//!
//! A turn is one system call. It submits the [`Agenda`] of the last turn, sends included, and waits for completions. For each socket one receive is
//! submitted that completes again and again, into buffers that all sockets share. A send is over when the call returns, and the core is not touched
//! before that, so the outputs that are sent stay in place.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use tls::LONGEST_PART;

use super::ring::{Completion, Ring, Wait};
use super::sys;
use super::worker::{BUFFER, Flag, MAILBOX, Poller, Socket, Waits, Worker, look_up, slot};
use crate::core::token::Token;
use crate::core::{Destination, Moved};

/// The kind of a submission, in the highest bits of its data; the other bits are the token.
const RECEIVE: u64 = 0;
const POLL: u64 = 1 << 60;
const SEND: u64 = 2 << 60;
const CANCEL: u64 = 3 << 60;
const WATCH: u64 = 4 << 60;
const WHAT: u64 = 15 << 60;
/// Events that report a broken connection: the peer no longer reads.
const BROKEN: i32 = (libc::POLLERR | libc::POLLHUP) as i32;
/// Most bytes kept of a socket that the core has paused, before receiving stops as well. Bytes that are in buffers by then still arrive.
const KEPT: usize = 64 << 10;
/// Number of bytes given to the core in one turn after which the next turn does not wait: their buffers should not lie idle.
const MUCH: usize = 64 << 10;
/// Most sends in one turn; the rest is sent in the next turn.
const SENDS: usize = 512;

/// Input that arrived on a socket while the core had paused it.
#[derive(Default)]
struct PausedInput {
    bytes: Vec<u8>,
    /// End of the stream, if it has ended.
    end: Option<End>,
}

/// End of a socket's stream.
enum End {
    /// The peer sends no more.
    Finished,
    /// The connection is broken.
    Broken(io::Error),
}

/// A connection that goes to another worker, once its receive here has ended.
struct Leaving {
    socket: Socket,
    to: Destination,
    moved: Box<Moved>,
    early: Vec<u8>,
}

/// Submissions of the next turn.
#[derive(Default)]
pub(super) struct Agenda {
    /// Sockets for which a receive, or a poll for the connection to be made, is submitted.
    begin: Vec<Token>,
    /// Sockets for which a poll for room is submitted.
    room: Vec<Token>,
    /// Sockets whose stream has ended, for which a poll is submitted that reports room to send and a broken connection.
    watch: Vec<Token>,
    /// Submissions to be cancelled.
    cancel: Vec<u64>,
    /// Sockets with output to send.
    send: Vec<Token>,
    /// Sends of this turn, with their number of bytes: complete, unless `short` has them.
    sent: Vec<(Token, usize)>,
    /// Sends that were not complete: the number of bytes sent, or an error as a negative number.
    short: Vec<(Token, i32)>,
    leaving: Vec<Leaving>,
    /// For the sockets with [`Flag::Held`].
    paused_input: HashMap<Token, PausedInput>,
}

impl Agenda {
    pub(super) fn begin(&mut self, token: Token) {
        self.begin.push(token);
    }
}

/// The ring, and the completions of the last wait.
struct Turn {
    ring: Ring,
    done: Vec<Completion>,
    /// Time in which completions gather in the next wait.
    gather: Duration,
}

impl Waits for Turn {
    fn wait(&mut self, worker: &mut Worker, limit: Duration) -> io::Result<()> {
        let wait = Wait { limit, gather: std::mem::take(&mut self.gather) };
        worker.submit(&mut self.ring, &mut self.done, wait)
    }

    fn gather(&mut self, worker: &mut Worker, limit: Duration) {
        // Bytes that have arrived are in the ring and no longer in the socket. So a wait that other connections should end would not see theirs.
        if worker.others.is_empty() {
            self.gather = limit;
        }
    }

    fn tell(&mut self, worker: &mut Worker) -> io::Result<()> {
        for of in self.done.drain(..) {
            worker.completed(&mut self.ring, of)?;
            self.ring.done(of);
        }
        self.ring.publish();
        Ok(())
    }

    fn go_on(worker: &mut Worker, token: Token) {
        worker.resumed(token);
    }
}

impl Socket {
    /// Notes that the stream has ended. From then on one poll reports room and a break, and not one for each time: a poll that is submitted anew
    /// completes at once, because of the end.
    fn set_ended(&mut self, poller: &mut Poller) {
        if !self.set(Flag::Ended, true)
            && let Poller::Ring(agenda) = poller
        {
            agenda.watch.push(self.token);
        }
    }
}

impl Worker {
    /// Runs until the worker is stopped.
    pub(super) fn run_ring(&mut self, mut ring: Ring) -> io::Result<()> {
        ring.poll(self.mailboxes[self.id].fd(), libc::POLLIN, true, MAILBOX)?;
        let mut turn = Turn { ring, done: Vec::new(), gather: Duration::ZERO };
        self.turns(&mut turn)?;
        // Sends the last output.
        turn.wait(self, Duration::ZERO)
    }

    /// Submits the agenda, waits, and reports the sent bytes to the core.
    fn submit(&mut self, ring: &mut Ring, done: &mut Vec<Completion>, mut wait: Wait) -> io::Result<()> {
        let Poller::Ring(agenda) = &mut self.poller else { return Ok(()) };
        let mut agenda = std::mem::take(&mut **agenda);
        for of in agenda.cancel.drain(..) {
            ring.cancel(of, CANCEL)?;
        }
        for token in agenda.begin.drain(..) {
            let Some(socket) = slot(&mut self.sockets, token) else { continue };
            if socket.is(Flag::Connecting) {
                socket.set(Flag::Polled, true);
                ring.poll(socket.fd.as_fd(), libc::POLLOUT, false, POLL | token.raw())?;
            } else if !socket.is(Flag::Armed) && !socket.is(Flag::Enough) && !socket.is(Flag::Ended) {
                socket.set(Flag::Armed, true);
                socket.set(Flag::Cancelled, false);
                ring.receive(socket.fd.as_fd(), RECEIVE | token.raw())?;
            }
        }
        for token in agenda.room.drain(..) {
            let Some(socket) = slot(&mut self.sockets, token) else { continue };
            if socket.is(Flag::Full) && !socket.set(Flag::Polled, true) {
                ring.poll(socket.fd.as_fd(), libc::POLLOUT, false, POLL | token.raw())?;
            }
        }
        for token in agenda.watch.drain(..) {
            let Some(socket) = slot(&mut self.sockets, token) else { continue };
            ring.poll(socket.fd.as_fd(), libc::POLLOUT, true, WATCH | token.raw())?;
        }
        let (sockets, core) = (&mut self.sockets, &self.core);
        let mut bytes = 0;
        for token in agenda.send.drain(..agenda.send.len().min(SENDS)) {
            let Some(socket) = slot(sockets, token) else { continue };
            socket.set(Flag::Sending, false);
            let count = core.output(token).map_or(0, |output| output.writable().len());
            if count > 0 {
                bytes += count;
                agenda.sent.push((token, count));
            }
        }
        // A send may let a paused connection go on, and no event would end the wait for that.
        if !agenda.send.is_empty() || bytes > MUCH || (self.paused > 0 && bytes > 0) {
            wait = Wait::NONE;
        }
        let sockets = &self.sockets;
        let sends = agenda.sent.iter().filter_map(|&(token, count)| {
            let output = core.output(token)?.writable().get(..count)?;
            Some((look_up(sockets, token)?.fd.as_fd(), output, SEND | token.raw()))
        });
        if wait.gather.is_zero() || ring.gathers() {
            ring.turn(sends, wait, done)?;
        } else {
            // What is sent must not wait for what gathers.
            ring.turn(sends, Wait::NONE, done)?;
            if done.is_empty() {
                self.wait_for_others(wait.gather);
                ring.turn(std::iter::empty(), wait, done)?;
            }
        }
        for of in &*done {
            if of.data & WHAT == SEND
                && let Some(token) = Token::from_raw(of.data & !WHAT)
            {
                agenda.short.push((token, of.result));
            }
        }
        let (mut sent, mut short) = (std::mem::take(&mut agenda.sent), std::mem::take(&mut agenda.short));
        if let Poller::Ring(of) = &mut self.poller {
            **of = agenda;
        }
        for (token, count) in sent.drain(..) {
            match short.iter().find(|(of, _)| *of == token) {
                None => self.core.written(token, count),
                Some(&(_, result)) => self.sent_in_part(token, result),
            }
        }
        short.clear();
        if let Poller::Ring(agenda) = &mut self.poller {
            (agenda.sent, agenda.short) = (sent, short);
        }
        Ok(())
    }

    fn sent_in_part(&mut self, token: Token, result: i32) {
        match usize::try_from(result) {
            Ok(count) => {
                self.core.written(token, count);
                self.want_room(token);
            }
            Err(_) if matches!(-result, libc::EAGAIN | libc::EINTR) => self.want_room(token),
            Err(_) => self.write_failed(token, &io::Error::from_raw_os_error(-result)),
        }
    }

    fn completed(&mut self, ring: &mut Ring, of: Completion) -> io::Result<()> {
        let Some(token) = Token::from_raw(of.data & !WHAT) else {
            if of.data == MAILBOX {
                if !of.more() {
                    ring.poll(self.mailboxes[self.id].fd(), libc::POLLIN, true, MAILBOX)?;
                }
                self.take_commands();
            }
            return Ok(());
        };
        match of.data & WHAT {
            RECEIVE => self.came(token, ring.bytes(of), of),
            POLL => self.ready(token, of.result),
            WATCH => self.watched(token, of),
            _ => {}
        }
        Ok(())
    }

    /// Handles received bytes of a socket, or its end.
    fn came(&mut self, token: Token, bytes: &[u8], of: Completion) {
        let Some(socket) = slot(&mut self.sockets, token) else { return self.came_late(token, bytes, of) };
        let end = match -of.result {
            ..=-1 => None,
            // The receive was cancelled, or there was no buffer: it can be submitted again.
            libc::ENOBUFS | libc::EINTR | libc::EAGAIN | libc::ECANCELED => None,
            0 => Some(End::Finished),
            error => Some(End::Broken(io::Error::from_raw_os_error(error))),
        };
        if let Some(End::Finished) = end {
            socket.set_ended(&mut self.poller);
        }
        if !of.more() {
            socket.set(Flag::Armed, false);
            if end.is_none()
                && let Poller::Ring(agenda) = &mut self.poller
            {
                agenda.begin(token);
            }
        }
        if socket.is(Flag::Paused) || socket.is(Flag::Held) {
            let Poller::Ring(agenda) = &mut self.poller else { return };
            socket.set(Flag::Held, true);
            let paused_input = agenda.paused_input.entry(token).or_default();
            paused_input.bytes.extend_from_slice(bytes);
            paused_input.end = paused_input.end.take().or(end);
            socket.set(Flag::Enough, paused_input.end.is_some() || paused_input.bytes.len() >= KEPT);
            if socket.is(Flag::Enough) && socket.is(Flag::Armed) && !socket.set(Flag::Cancelled, true) {
                agenda.cancel.push(RECEIVE | token.raw());
            }
            return;
        }
        self.deliver(token, bytes);
        self.ended(token, end);
    }

    /// Reports the end of a socket's stream to the core, if it has ended.
    fn ended(&mut self, token: Token, end: Option<End>) {
        match end {
            None => {}
            Some(End::Finished) => self.finished(token),
            Some(End::Broken(error)) => self.core.closed(token, &error.to_string()),
        }
    }

    /// Handles an event of the poll of a socket whose stream has ended, or another report of that end.
    fn watched(&mut self, token: Token, of: Completion) {
        let Some(socket) = slot(&mut self.sockets, token) else { return };
        if of.result < 0 {
            return;
        }
        if of.result & BROKEN != 0 {
            return self.core.closed(token, "the connection was reset");
        }
        if !of.more()
            && let Poller::Ring(agenda) = &mut self.poller
        {
            agenda.watch.push(token);
        }
        if of.result & i32::from(libc::POLLOUT) != 0 && socket.set(Flag::Full, false) {
            self.flush_ring(token);
        }
    }

    /// Bytes for a socket that is on its way to another worker, or was closed.
    fn came_late(&mut self, token: Token, bytes: &[u8], of: Completion) {
        let Poller::Ring(agenda) = &mut self.poller else { return };
        let Some(at) = agenda.leaving.iter().position(|leaving| leaving.socket.token == token) else { return };
        agenda.leaving[at].early.extend_from_slice(bytes);
        if !of.more() {
            let leaving = agenda.leaving.swap_remove(at);
            self.hand_over(leaving.socket, leaving.to, leaving.moved, leaving.early);
        }
    }

    /// Gives received bytes to the core, through the socket's TLS link if there is one.
    pub(super) fn deliver(&mut self, token: Token, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some(socket) = slot(&mut self.sockets, token) else { return };
            let Some(link) = &mut socket.link else { return self.core.received(token, bytes) };
            let kept = link.unfinished(&mut self.buffer);
            let (part, rest) = bytes.split_at(bytes.len().min(BUFFER - LONGEST_PART));
            bytes = rest;
            self.buffer[kept..kept + part.len()].copy_from_slice(part);
            if !self.take_records(token, kept + part.len()) {
                return;
            }
            if self.answers(token) {
                self.flush_link(token);
            }
        }
    }

    /// Reads a socket again, at the core's request.
    fn resumed(&mut self, token: Token) {
        let Some(socket) = slot(&mut self.sockets, token) else { return };
        if socket.is(Flag::Paused) || !socket.set(Flag::Held, false) {
            return;
        }
        socket.set(Flag::Enough, false);
        let Poller::Ring(agenda) = &mut self.poller else { return };
        let Some(paused_input) = agenda.paused_input.remove(&token) else { return };
        if !socket.is(Flag::Armed) && paused_input.end.is_none() {
            agenda.begin(token);
        }
        self.deliver(token, &paused_input.bytes);
        // The core may have paused the socket again meanwhile, but the stream is at its end.
        self.ended(token, paused_input.end);
    }

    /// Handles a connection that is established, or a socket that has room.
    fn ready(&mut self, token: Token, events: i32) {
        let Some(socket) = slot(&mut self.sockets, token) else { return };
        socket.set(Flag::Polled, false);
        if events >= 0 && events & (i32::from(libc::POLLOUT) | BROKEN) == 0 {
            // Only the end of the stream: every further poll would say so at once, and none would wait for room.
            return socket.set_ended(&mut self.poller);
        }
        if !socket.set(Flag::Connecting, false) {
            socket.set(Flag::Full, false);
            return self.flush_ring(token);
        }
        match sys::connect_result(socket.fd.as_fd()) {
            Ok(()) => {
                if let Poller::Ring(agenda) = &mut self.poller {
                    agenda.begin(token);
                }
                self.core.connected(token);
            }
            Err(error) => self.core.closed(token, &error.to_string()),
        }
    }

    /// Notes that the socket has output, which is sent at the end of the turn.
    pub(super) fn flush_ring(&mut self, token: Token) {
        let Some(socket) = slot(&mut self.sockets, token) else { return };
        if socket.is(Flag::Connecting) || socket.is(Flag::Full) {
            return;
        }
        if socket.link.is_some() {
            return self.flush_link(token);
        }
        if let Poller::Ring(agenda) = &mut self.poller
            && !socket.set(Flag::Sending, true)
        {
            agenda.send.push(token);
        }
    }

    /// Submits a poll for room for a full socket. (Epoll reports room without a request.)
    pub(super) fn want_room(&mut self, token: Token) {
        if let Poller::Ring(agenda) = &mut self.poller
            && let Some(socket) = slot(&mut self.sockets, token)
            && !socket.set(Flag::Full, true)
            && !socket.is(Flag::Ended)
        {
            agenda.room.push(token);
        }
    }

    /// Ends all submissions for a socket that leaves. Gives the bytes that were kept while it was paused.
    pub(super) fn disarm(&mut self, socket: &Socket) -> Vec<u8> {
        let Poller::Ring(agenda) = &mut self.poller else { return Vec::new() };
        if socket.is(Flag::Armed) {
            agenda.cancel.push(RECEIVE | socket.token.raw());
        }
        if socket.is(Flag::Polled) {
            agenda.cancel.push(POLL | socket.token.raw());
        }
        if socket.is(Flag::Ended) {
            agenda.cancel.push(WATCH | socket.token.raw());
        }
        let paused_input = if socket.is(Flag::Held) { agenda.paused_input.remove(&socket.token) } else { None };
        paused_input.map(|paused_input| paused_input.bytes).unwrap_or_default()
    }

    /// Moves a connection to another worker, with all bytes that arrive before its receive here has ended.
    pub(super) fn leave(&mut self, socket: Socket, to: Destination, moved: Box<Moved>) {
        let early = self.disarm(&socket);
        let armed = socket.is(Flag::Armed);
        match &mut self.poller {
            Poller::Ring(agenda) if armed => agenda.leaving.push(Leaving { socket, to, moved, early }),
            _ => self.hand_over(socket, to, moved, early),
        }
    }
}
