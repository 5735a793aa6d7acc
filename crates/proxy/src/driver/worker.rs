//! A worker: its sockets, and what the core asks. How it waits for them is in [`epolled`](super::epolled) and
//! [`ringed`](super::ringed).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tls::Link;
use topology::Address;

use super::mailbox::{Letter, Mailbox};
use super::ring::Ring;
use super::ringed::Agenda;
use super::sys::{self, Epoll, MOST_WAITED_FOR};
use crate::console::{Desk, Look, Report, Request};
use crate::core::token::{Kind, Token};
use crate::core::{Core, Effect, Mail};

/// The one buffer that all connections of a worker are read into, in bytes.
pub(super) const BUFFER: usize = 64 << 10;
/// Longest time between two looks at the clock's business.
const TICK: Duration = Duration::from_millis(100);
/// The same of a worker that has no connections: of 48 workers most may have none, and each look wakes a core.
const IDLE_TICK: Duration = Duration::from_secs(1);
/// Stands for the mailbox among the tokens; a token is never 0.
pub(super) const MAILBOX: u64 = 0;

/// Clients' sockets that there is room for from the start. So much is the allocator's to map apart: it then grows by moving pages, where
/// small tables that grow leave holes of the size of all the former ones. What is not used of it is not in memory.
const CLIENTS: usize = 8192;

/// How a worker waits.
pub(super) enum Poller {
    Epoll(Epoll),
    /// By io_uring; here is what its next turn submits.
    Ring(Box<Agenda>),
}

/// What differs between the two ways in which a worker's loop waits.
pub(super) trait Waits {
    /// Waits until something happens, at most so long.
    fn wait(&mut self, worker: &mut Worker, limit: Duration) -> io::Result<()>;

    /// Tells the core what has happened.
    fn tell(&mut self, worker: &mut Worker) -> io::Result<()>;

    /// Goes on with a socket that was left over by an earlier turn.
    fn go_on(worker: &mut Worker, token: Token);
}

/// A worker's sockets and the core that they serve.
pub(crate) struct Worker {
    pub(super) core: Core,
    pub(super) poller: Poller,
    pub(super) mailboxes: Arc<Vec<Mailbox>>,
    pub(super) id: usize,
    console: Desk,
    /// By kind and slot, as the core numbers them.
    pub(super) sockets: [Vec<Option<Socket>>; 3],
    /// Sockets to be read again without waiting for an event.
    pub(super) again: Vec<Token>,
    /// Whose messages end the time in which answers gather.
    others: Vec<Token>,
    effects: Vec<Effect>,
    letters: Vec<Letter>,
    pub(super) buffer: Box<[u8]>,
    /// The buffer that links write into: with one of them only while its socket is full.
    pub(super) sealed: Vec<u8>,
    /// Sockets that the core does not want to read.
    pub(super) paused: usize,
    stopping: bool,
}

pub(super) struct Socket {
    pub(super) fd: OwnedFd,
    flags: u16,
    pub(super) token: Token,
    /// Its TLS, if it speaks that.
    pub(super) link: Option<Box<Link>>,
}

/// What is so with a socket or not: a bit each, for there are many sockets.
#[derive(Clone, Copy)]
#[repr(u16)]
pub(super) enum Flag {
    Connecting = 1,
    /// The core does not want to read it.
    Paused = 1 << 1,
    /// It is in `again`.
    Queued = 1 << 2,
    /// Epoll: its end, or an error, was announced; that happens only once.
    Ended = 1 << 3,
    /// io_uring: it is received from.
    Armed = 1 << 4,
    /// That it no longer is, is on its way.
    Cancelled = 1 << 5,
    /// It is asked whether it is connected, or has room.
    Polled = 1 << 6,
    /// It has no room.
    Full = 1 << 7,
    /// It is among those with something to send.
    Sending = 1 << 8,
    /// Something came while the core did not want to read it, and is kept.
    Held = 1 << 9,
    /// So much of that, or its end, that it is not received from.
    Enough = 1 << 10,
}

/// What an idle connection costs beside the core's part of it (see there).
const _: () = assert!(size_of::<Option<Socket>>() <= 24);

impl Socket {
    pub(super) fn is(&self, flag: Flag) -> bool {
        self.flags & flag as u16 != 0
    }

    /// Makes it so, or not; returns what it was.
    pub(super) fn set(&mut self, flag: Flag, to: bool) -> bool {
        let was = self.is(flag);
        if to {
            self.flags |= flag as u16;
        } else {
            self.flags &= !(flag as u16);
        }
        was
    }
}

impl Worker {
    /// With a ring, `ring` says, or else with epoll.
    pub(crate) fn new(
        id: usize,
        mut core: Core,
        mailboxes: Arc<Vec<Mailbox>>,
        console: Desk,
        ring: bool,
    ) -> io::Result<Worker> {
        let poller = if ring { Poller::Ring(Box::default()) } else { Poller::Epoll(Epoll::new()?) };
        let bells = mailboxes.clone();
        core.wake_by(Arc::new(move || bells[id].ring()));
        Ok(Worker {
            core,
            poller,
            mailboxes,
            id,
            console,
            sockets: [Vec::with_capacity(CLIENTS), Vec::new(), Vec::new()],
            again: Vec::new(),
            others: Vec::new(),
            effects: Vec::new(),
            letters: Vec::new(),
            buffer: vec![0; BUFFER].into(),
            sealed: Vec::new(),
            paused: 0,
            stopping: false,
        })
    }

    /// Runs until it is told to stop.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        if matches!(self.poller, Poller::Ring(_)) {
            // It belongs to the thread that makes it.
            match Ring::new() {
                Ok(ring) => return self.run_ring(ring),
                Err(error) => {
                    tracing::warn!(%error, worker = self.id, "no io_uring for a worker: it takes epoll");
                    self.poller = Poller::Epoll(Epoll::new()?);
                }
            }
        }
        self.run_epoll()
    }

    /// Turns, until it is told to stop.
    pub(super) fn turns<W: Waits>(&mut self, waits: &mut W) -> io::Result<()> {
        let mut ticked = Instant::now();
        while !self.stopping {
            self.gather();
            let tick = if self.core.has_connections() { TICK } else { IDLE_TICK };
            let limit = if self.again.is_empty() { self.core.patience(tick) } else { Duration::ZERO };
            waits.wait(self, limit)?;
            let now = Instant::now();
            self.core.turn(now);
            // What was left over goes behind what is new, so that nobody is starved.
            let again = std::mem::take(&mut self.again);
            waits.tell(self)?;
            for token in &again {
                if let Some(socket) = self.socket(*token) {
                    socket.set(Flag::Queued, false);
                    W::go_on(self, *token);
                }
            }
            if self.again.is_empty() {
                self.again = again;
                self.again.clear();
            }
            if now.duration_since(ticked) >= TICK {
                ticked = now;
                self.core.tick();
            }
            self.core.end_turn();
            self.settle();
        }
        Ok(())
    }

    /// Lets the answers of shared connections gather, if the core says so: until the time is over, or something else is to be done.
    fn gather(&mut self) {
        if !self.again.is_empty() {
            return;
        }
        let Some(limit) = self.core.gather(MOST_WAITED_FOR - 1, &mut self.others) else { return };
        if matches!(self.poller, Poller::Ring(_)) && !self.others.is_empty() {
            // What comes is in the ring by then, and not in the socket.
            return;
        }
        let sockets = self.others.iter().filter_map(|&token| look_up(&self.sockets, token));
        let others = sockets.filter(|socket| !socket.is(Flag::Paused)).map(|socket| socket.fd.as_fd());
        sys::wait_for_any(std::iter::once(self.mailboxes[self.id].fd()).chain(others), limit);
    }

    /// Writes what the core has for a socket: at once, or, with io_uring, at the end of the turn.
    fn flush(&mut self, token: Token) {
        match self.poller {
            Poller::Epoll(_) => self.flush_epoll(token),
            Poller::Ring(_) => self.flush_ring(token),
        }
    }

    /// Does what the core asks and writes what it has, until it has no more of either.
    fn settle(&mut self) {
        loop {
            let idle = !self.effects();
            let mut wrote = false;
            while let Some(token) = self.core.next_dirty() {
                wrote = true;
                self.flush(token);
            }
            if idle && !wrote {
                return;
            }
        }
    }

    /// Does what the core asks; false if that is nothing.
    fn effects(&mut self) -> bool {
        let mut effects = std::mem::take(&mut self.effects);
        self.core.take_effects(&mut effects);
        let any = !effects.is_empty();
        for effect in effects.drain(..) {
            self.effect(effect);
        }
        self.effects = effects;
        any
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Connect { token, address } => {
                let fd = match &address {
                    Address::Tcp(address) => sys::connect_tcp(address),
                    Address::Unix(path) => sys::connect_unix(path),
                };
                let result = fd.and_then(|fd| self.register(fd, token, true));
                if let Err(error) = result {
                    self.core.closed(token, &error.to_string());
                }
            }
            Effect::Secure { token, with } => self.secure(token, &with),
            Effect::Close { token, last } => {
                if let Some(socket) = self.unregister(token) {
                    self.disarm(&socket);
                    self.say_goodbye(socket, &last);
                }
            }
            Effect::Pause(token) => {
                if let Some(socket) = self.socket(token)
                    && !socket.set(Flag::Paused, true)
                {
                    self.paused += 1;
                }
            }
            Effect::Resume(token) => {
                if let Some(socket) = slot(&mut self.sockets, token) {
                    if socket.set(Flag::Paused, false) {
                        self.paused -= 1;
                    }
                    // What came meanwhile made its event then.
                    if !socket.set(Flag::Queued, true) {
                        self.again.push(token);
                    }
                }
            }
            Effect::Move { token, to, moved } => {
                if let Some(socket) = self.unregister(token) {
                    let Poller::Epoll(epoll) = &self.poller else { return self.leave(socket, to, moved) };
                    // Without this its events would go on coming here: the descriptor stays open.
                    if let Err(error) = epoll.remove(socket.fd.as_fd()) {
                        tracing::error!(%error, "cannot take a socket out of the event loop");
                    }
                    self.mailboxes[to].post(Letter::Moved(socket.fd, socket.link, moved, Vec::new()));
                }
            }
            Effect::LookUp { client, user } => {
                if let Err(why) = self.core.look_up(&user, client) {
                    self.core.mail(Mail::Account { client, answer: Err(why.into()) });
                }
            }
            Effect::Post { to, mail } => self.mailboxes[to].post(Letter::Core(mail)),
            Effect::Ask { client, text, access } => {
                if let Err(bytes) = self.console.put(Request { worker: self.id, client, text, access }) {
                    self.core.mail(Mail::Answer { client, bytes });
                }
            }
        }
    }

    /// What the core has, and where its sockets lead.
    fn look(&mut self, look: Look) -> Report {
        let mut report = self.core.report(look);
        for client in &mut report.clients {
            if let Some(socket) = self.socket(client.token) {
                (client.address, client.local) = sys::addresses(socket.fd.as_fd());
            }
        }
        for server in &mut report.servers {
            if let Some(socket) = self.socket(server.token) {
                (server.address, server.local) = sys::addresses(socket.fd.as_fd());
            }
        }
        report
    }

    /// Writes what is left, and lets the peer read it: closing a socket with unread input would make the kernel drop it.
    fn say_goodbye(&mut self, mut socket: Socket, last: &[u8]) {
        if socket.is(Flag::Connecting) {
            return;
        }
        match &mut socket.link {
            Some(link) => {
                // Before the handshake is done there is no way to say anything.
                if link.is_open() && !last.is_empty() {
                    let _ = link.encrypt(last, &mut self.sealed);
                }
                link.close();
                let _ = sys::send(socket.fd.as_fd(), link.pending());
            }
            None if !last.is_empty() => {
                let _ = sys::send(socket.fd.as_fd(), last);
            }
            None => {}
        }
        sys::finish(socket.fd.as_fd());
        for _ in 0..16 {
            if !matches!(sys::receive(socket.fd.as_fd(), &mut self.buffer), Ok(1..)) {
                return;
            }
        }
    }

    pub(super) fn mail(&mut self) {
        let mut letters = std::mem::take(&mut self.letters);
        self.mailboxes[self.id].take(&mut letters);
        for letter in letters.drain(..) {
            // A slot that the core has freed may be given out again right here: its old socket must be dealt with first.
            self.effects();
            match letter {
                Letter::Client(fd, peer) => {
                    let token = self.core.accept(peer);
                    if let Err(error) = self.register(fd, token, false) {
                        self.core.closed(token, &error.to_string());
                    }
                }
                Letter::Moved(fd, link, moved, early) => {
                    let token = self.core.adopt(*moved);
                    match self.register(fd, token, false) {
                        Ok(()) => {
                            if let Some(socket) = self.socket(token) {
                                socket.link = link;
                            }
                            self.core.adopted(token);
                            self.deliver(token, &early);
                        }
                        Err(error) => self.core.closed(token, &error.to_string()),
                    }
                }
                Letter::Core(mail) => self.core.mail(mail),
                Letter::Look(look, to) => {
                    // Who asked may have given up.
                    let _ = to.try_send(self.look(look));
                }
                Letter::Stop => self.stopping = true,
            }
        }
        self.letters = letters;
    }

    fn register(&mut self, fd: OwnedFd, token: Token, connecting: bool) -> io::Result<()> {
        match &mut self.poller {
            Poller::Epoll(epoll) => epoll.add(fd.as_fd(), token.raw())?,
            Poller::Ring(agenda) => agenda.begin(token),
        }
        let sockets = &mut self.sockets[table(token)];
        debug_assert!(sockets.get(token.index()).is_none_or(Option::is_none), "the slot's old socket is still open");
        if sockets.len() <= token.index() {
            sockets.resize_with(token.index() + 1, || None);
        }
        let flags = if connecting { Flag::Connecting as u16 } else { 0 };
        sockets[token.index()] = Some(Socket { fd, flags, token, link: None });
        Ok(())
    }

    fn unregister(&mut self, token: Token) -> Option<Socket> {
        let slot = self.sockets[table(token)].get_mut(token.index())?;
        let socket = if slot.as_ref()?.token == token { slot.take() } else { None }?;
        self.paused -= usize::from(socket.is(Flag::Paused));
        Some(socket)
    }

    pub(super) fn socket(&mut self, token: Token) -> Option<&mut Socket> {
        slot(&mut self.sockets, token)
    }
}

pub(super) fn slot(sockets: &mut [Vec<Option<Socket>>; 3], token: Token) -> Option<&mut Socket> {
    let socket = sockets[table(token)].get_mut(token.index())?.as_mut()?;
    (socket.token == token).then_some(socket)
}

/// As [`slot`], to look only.
pub(super) fn look_up(sockets: &[Vec<Option<Socket>>; 3], token: Token) -> Option<&Socket> {
    let socket = sockets[table(token)].get(token.index())?.as_ref()?;
    (socket.token == token).then_some(socket)
}

fn table(token: Token) -> usize {
    match token.kind() {
        Kind::Client => 0,
        Kind::Server => 1,
        Kind::Cancel => 2,
    }
}
