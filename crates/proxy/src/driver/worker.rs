//! One worker's loop.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tls::Link;
use topology::Address;

use super::mailbox::{Letter, Mailbox};
use super::sys::{self, Epoll, Event};
use crate::console::{Desk, Look, Report, Request};
use crate::core::token::{Kind, Token};
use crate::core::{Core, Effect, Mail};

/// The one buffer that all connections of a worker are read into, in bytes.
pub(super) const BUFFER: usize = 64 << 10;
/// Events taken a turn.
const EVENTS: usize = 256;
/// Longest time between two looks at the clock's business.
const TICK: Duration = Duration::from_millis(100);
/// Stands for the mailbox among the tokens; a token is never 0.
const MAILBOX: u64 = 0;

/// A worker's sockets and the core that they serve.
pub(crate) struct Worker {
    pub(super) core: Core,
    epoll: Epoll,
    mailboxes: Arc<Vec<Mailbox>>,
    id: usize,
    console: Desk,
    /// By kind and slot, as the core numbers them.
    pub(super) sockets: [Vec<Option<Socket>>; 3],
    /// Sockets to be read again without waiting for an event.
    pub(super) again: Vec<Token>,
    effects: Vec<Effect>,
    letters: Vec<Letter>,
    pub(super) buffer: Box<[u8]>,
    /// The buffer that links write into: with one of them only while its socket is full.
    pub(super) sealed: Vec<u8>,
    stopping: bool,
}

pub(super) struct Socket {
    pub(super) fd: OwnedFd,
    token: Token,
    /// Its TLS, if it speaks that.
    pub(super) link: Option<Box<Link>>,
    connecting: bool,
    /// The core does not want to read it.
    paused: bool,
    /// Its end, or an error, was announced; that happens only once.
    pub(super) ended: bool,
    /// It is in `again`.
    pub(super) queued: bool,
}

impl Worker {
    pub(crate) fn new(id: usize, mut core: Core, mailboxes: Arc<Vec<Mailbox>>, console: Desk) -> io::Result<Worker> {
        let epoll = Epoll::new()?;
        epoll.add_level(mailboxes[id].fd(), MAILBOX)?;
        let bells = mailboxes.clone();
        core.wake_by(Arc::new(move || bells[id].ring()));
        Ok(Worker {
            core,
            epoll,
            mailboxes,
            id,
            console,
            sockets: [Vec::new(), Vec::new(), Vec::new()],
            again: Vec::new(),
            effects: Vec::new(),
            letters: Vec::new(),
            buffer: vec![0; BUFFER].into(),
            sealed: Vec::new(),
            stopping: false,
        })
    }

    /// Runs until it is told to stop.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        let mut events = [Event { events: 0, u64: 0 }; EVENTS];
        let mut ticked = Instant::now();
        while !self.stopping {
            if let Some(gather) = self.core.gather() {
                std::thread::sleep(gather);
            }
            let wait = if self.again.is_empty() { self.core.patience(TICK).as_millis() as i32 } else { 0 };
            let count = self.epoll.wait(&mut events, wait)?;
            let now = Instant::now();
            self.core.turn(now);
            // What was left over goes behind what is new, so that nobody is starved.
            let again = std::mem::take(&mut self.again);
            for event in &events[..count] {
                self.event(event.u64, event.events);
            }
            for token in &again {
                if let Some(socket) = self.socket(*token) {
                    socket.queued = false;
                    self.read(*token);
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
            self.settle();
        }
        Ok(())
    }

    fn event(&mut self, data: u64, flags: u32) {
        let Some(token) = Token::from_raw(data) else { return self.mail() };
        let Some(socket) = self.socket(token) else { return };
        let flags = flags as i32;
        let broken = flags & (libc::EPOLLERR | libc::EPOLLHUP) != 0;
        if socket.connecting {
            if broken || flags & libc::EPOLLOUT != 0 {
                socket.connecting = false;
                match sys::connect_result(socket.fd.as_fd()) {
                    Ok(()) => self.core.connected(token),
                    Err(error) => return self.core.closed(token, &error.to_string()),
                }
            } else {
                return;
            }
        }
        if flags & libc::EPOLLOUT != 0 {
            self.flush(token);
        }
        if broken || flags & (libc::EPOLLIN | libc::EPOLLRDHUP) != 0 {
            if (broken || flags & libc::EPOLLRDHUP != 0)
                && let Some(socket) = self.socket(token)
            {
                socket.ended = true;
            }
            self.read(token);
        }
    }

    /// Reads a socket once; one whose end was announced is read again until it comes.
    fn read(&mut self, token: Token) {
        let Some(socket) = slot(&mut self.sockets, token) else { return };
        if socket.paused {
            return;
        }
        if socket.link.is_some() {
            return self.read_link(token);
        }
        match sys::receive(socket.fd.as_fd(), &mut self.buffer) {
            Ok(0) => self.core.closed(token, "the peer closed the connection"),
            Ok(n) => {
                // A short read has emptied the socket: the next bytes make a new event.
                if (n == BUFFER || socket.ended) && !socket.queued {
                    socket.queued = true;
                    self.again.push(token);
                }
                self.core.received(token, &self.buffer[..n]);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                if !socket.queued {
                    socket.queued = true;
                    self.again.push(token);
                }
            }
            Err(error) => self.core.closed(token, &error.to_string()),
        }
    }

    fn flush(&mut self, token: Token) {
        loop {
            let Some(socket) = slot(&mut self.sockets, token) else { return };
            if socket.connecting {
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
                    self.core.wrote(token, n);
                    if !all {
                        // The socket is full: it says when it is not.
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.core.closed(token, &error.to_string()),
            }
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
                    self.say_goodbye(socket, &last);
                }
            }
            Effect::Pause(token) => {
                if let Some(socket) = self.socket(token) {
                    socket.paused = true;
                }
            }
            Effect::Resume(token) => {
                if let Some(socket) = self.socket(token) {
                    socket.paused = false;
                    // What came meanwhile made its event then.
                    if !socket.queued {
                        socket.queued = true;
                        self.again.push(token);
                    }
                }
            }
            Effect::Move { token, to, server } => {
                if let Some(socket) = self.unregister(token) {
                    // Without this its events would go on coming here: the descriptor stays open.
                    if let Err(error) = self.epoll.remove(socket.fd.as_fd()) {
                        tracing::error!(%error, "cannot take a socket out of the event loop");
                    }
                    self.mailboxes[to].post(Letter::Server(socket.fd, socket.link, server));
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
        if socket.connecting {
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

    fn mail(&mut self) {
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
                Letter::Server(fd, link, moved) => {
                    let token = self.core.adopt(*moved);
                    match self.register(fd, token, false) {
                        Ok(()) => {
                            if let Some(socket) = self.socket(token) {
                                socket.link = link;
                            }
                            self.core.adopted(token);
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
        self.epoll.add(fd.as_fd(), token.raw())?;
        let sockets = &mut self.sockets[table(token)];
        debug_assert!(sockets.get(token.index()).is_none_or(Option::is_none), "the slot's old socket is still open");
        if sockets.len() <= token.index() {
            sockets.resize_with(token.index() + 1, || None);
        }
        sockets[token.index()] =
            Some(Socket { fd, token, link: None, connecting, paused: false, ended: false, queued: false });
        Ok(())
    }

    fn unregister(&mut self, token: Token) -> Option<Socket> {
        let slot = self.sockets[table(token)].get_mut(token.index())?;
        if slot.as_ref()?.token == token { slot.take() } else { None }
    }

    fn socket(&mut self, token: Token) -> Option<&mut Socket> {
        slot(&mut self.sockets, token)
    }
}

pub(super) fn slot(sockets: &mut [Vec<Option<Socket>>; 3], token: Token) -> Option<&mut Socket> {
    let socket = sockets[table(token)].get_mut(token.index())?.as_mut()?;
    (socket.token == token).then_some(socket)
}

fn table(token: Token) -> usize {
    match token.kind() {
        Kind::Client => 0,
        Kind::Server => 1,
        Kind::Cancel => 2,
    }
}
