//! A worker: its sockets, and the core's effects. The two ways to wait for sockets are in [`epolled`](super::epolled)
//! and [`ringed`](super::ringed).

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tls::Link;
use topology::Address;
use wire::{Severity, Sqlstate, message};

use super::mailbox::{Mailbox, WorkerCommand};
use super::ring::Ring;
use super::ringed::Agenda;
use super::sys::{self, Epoll, MOST_WAITED_FOR};
use crate::console::{Asker, ConsoleHandle, Look, Report, Request};
use crate::core::token::{Kind, Token};
use crate::core::{Core, CoreMessage, Destination, Effect, Moved};
use crate::fleet::Fleet;

/// Size of the one buffer into which all connections of a worker are read, in bytes.
pub(super) const BUFFER: usize = 64 << 10;
/// Longest time between two calls of `Core::tick`.
const TICK: Duration = Duration::from_millis(100);
/// [`TICK`] of a worker without connections. Most of 48 workers may have none, and each tick wakes a CPU core.
const IDLE_TICK: Duration = Duration::from_secs(1);
/// Most reads of a server connection whose write has failed: as many bytes as its socket buffer may have.
const LAST_READS: usize = 64;
/// The number of the mailbox among tokens; a token is never 0.
pub(super) const MAILBOX: u64 = 0;

/// Room for so many client sockets is reserved at the start. A table of this size is mapped by itself and grows by
/// moving pages, while small tables that grow would leave holes in the heap. The part that is not used takes no
/// physical memory.
const CLIENTS: usize = 8192;

/// Interface by which a worker waits for its sockets.
pub(super) enum Poller {
    Epoll(Epoll),
    /// With io_uring; holds the submissions of the next turn.
    Ring(Box<Agenda>),
}

/// The operations that differ between epoll and io_uring.
pub(super) trait Waits {
    /// Waits until something happens, at most `limit`.
    fn wait(&mut self, worker: &mut Worker, limit: Duration) -> io::Result<()>;

    /// Lets answers gather for this time ahead of the next wait, or in it.
    fn gather(&mut self, worker: &mut Worker, limit: Duration);

    /// Reports the events to the core.
    fn tell(&mut self, worker: &mut Worker) -> io::Result<()>;

    /// Goes on reading a socket on which an earlier turn stopped early.
    fn go_on(worker: &mut Worker, token: Token);
}

/// A worker: the core and its sockets.
pub(crate) struct Worker {
    pub(super) core: Core,
    pub(super) poller: Poller,
    pub(super) mailboxes: Arc<Vec<Mailbox>>,
    /// The other clusters' workers.
    fleet: Arc<Fleet>,
    pub(super) id: usize,
    console: ConsoleHandle,
    /// Sockets by kind and slot, as in the core's tokens.
    pub(super) sockets: [Vec<Option<Socket>>; 3],
    /// Sockets to be read again without waiting for an event.
    pub(super) again: Vec<Token>,
    /// Connections whose messages end the time in which answers gather.
    pub(super) others: Vec<Token>,
    effects: Vec<Effect>,
    commands: Vec<WorkerCommand>,
    pub(super) buffer: Box<[u8]>,
    /// The buffer that TLS links write into. A link keeps it only while its socket is full.
    pub(super) sealed: Vec<u8>,
    /// Number of sockets that the core has paused.
    pub(super) paused: usize,
    stopping: bool,
}

pub(super) struct Socket {
    pub(super) fd: OwnedFd,
    flags: u16,
    pub(super) token: Token,
    /// The TLS of the connection, if it has TLS.
    pub(super) link: Option<Box<Link>>,
}

/// The state of a socket: one bit each, since there are many sockets.
#[derive(Clone, Copy)]
#[repr(u16)]
pub(super) enum Flag {
    Connecting = 1,
    /// The core has paused reading.
    Paused = 1 << 1,
    /// The socket is in `again`.
    Queued = 1 << 2,
    /// The end of the stream, or an error, was announced; with epoll that happens only once.
    Ended = 1 << 3,
    /// io_uring: a receive is submitted.
    Armed = 1 << 4,
    /// io_uring: the receive is being cancelled.
    Cancelled = 1 << 5,
    /// io_uring: a poll is submitted, for the connection to be made or for room to send.
    Polled = 1 << 6,
    /// The socket's send buffer is full.
    Full = 1 << 7,
    /// The socket is in the list of those with output to send.
    Sending = 1 << 8,
    /// Bytes have arrived while reading was paused, and are kept.
    Held = 1 << 9,
    /// So many bytes are kept that receiving has stopped; or the end of the stream has come.
    Enough = 1 << 10,
    /// The core knows that the peer sends no more.
    Finished = 1 << 11,
    /// Epoll: the peer reads no more either.
    Broken = 1 << 12,
}

/// The driver's part of the cost of an idle connection (for the core's part see `Client`).
const _: () = assert!(size_of::<Option<Socket>>() <= 24);

impl Socket {
    pub(super) fn is(&self, flag: Flag) -> bool {
        self.flags & flag as u16 != 0
    }

    /// Sets the flag to `to`, and gives its old value.
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
    /// Creates a worker with the given core. `ring`: waits with io_uring, otherwise with epoll.
    pub(crate) fn new(
        id: usize,
        mut core: Core,
        mailboxes: Arc<Vec<Mailbox>>,
        fleet: Arc<Fleet>,
        console: ConsoleHandle,
        ring: bool,
    ) -> io::Result<Worker> {
        let poller = if ring { Poller::Ring(Box::default()) } else { Poller::Epoll(Epoll::new()?) };
        let bells = mailboxes.clone();
        core.wake_by(Arc::new(move || bells[id].ring()));
        Ok(Worker {
            core,
            poller,
            mailboxes,
            fleet,
            id,
            console,
            sockets: [Vec::with_capacity(CLIENTS), Vec::new(), Vec::new()],
            again: Vec::new(),
            others: Vec::new(),
            effects: Vec::new(),
            commands: Vec::new(),
            buffer: vec![0; BUFFER].into(),
            sealed: Vec::new(),
            paused: 0,
            stopping: false,
        })
    }

    /// Runs until the worker is stopped.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        if matches!(self.poller, Poller::Ring(_)) {
            // An io_uring belongs to the thread that creates it.
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

    /// Runs turns until the worker is stopped.
    pub(super) fn turns<W: Waits>(&mut self, waits: &mut W) -> io::Result<()> {
        let mut ticked = Instant::now();
        while !self.stopping {
            self.gather(waits);
            let tick = if self.core.has_connections() { TICK } else { IDLE_TICK };
            let limit = if self.again.is_empty() { self.core.patience(tick) } else { Duration::ZERO };
            waits.wait(self, limit)?;
            let now = Instant::now();
            self.core.turn(now);
            // Sockets left over from the last turn come after new events, so that no socket starves.
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

    /// Lets answers on lanes gather if the core wants that: until the time is over, or another connection needs the
    /// worker.
    fn gather<W: Waits>(&mut self, waits: &mut W) {
        if !self.again.is_empty() {
            return;
        }
        if let Some(limit) = self.core.gather(MOST_WAITED_FOR - 1, &mut self.others) {
            waits.gather(self, limit);
        }
    }

    /// Waits until the time is over, a mailbox has something, or bytes arrive for one of the `others`.
    pub(super) fn wait_for_others(&self, limit: Duration) {
        let sockets = self.others.iter().filter_map(|&token| look_up(&self.sockets, token));
        let reads = |socket: &&Socket| !socket.is(Flag::Paused) && !socket.is(Flag::Finished);
        let others = sockets.filter(reads).map(|socket| socket.fd.as_fd());
        sys::wait_for_any(std::iter::once(self.mailboxes[self.id].fd()).chain(others), limit);
    }

    /// Writes a connection's output: at once with epoll, at the end of the turn with io_uring.
    fn flush(&mut self, token: Token) {
        match self.poller {
            Poller::Epoll(_) => self.flush_epoll(token),
            Poller::Ring(_) => self.flush_ring(token),
        }
    }

    /// Carries out effects and writes outputs until there are no more of either.
    fn settle(&mut self) {
        loop {
            let idle = !self.effects();
            let mut has_written = false;
            while let Some(token) = self.core.next_dirty() {
                has_written = true;
                self.flush(token);
            }
            if idle && !has_written {
                return;
            }
        }
    }

    /// Carries out the core's effects; false if there are none.
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
                    // Bytes that arrived while reading was paused made their event then.
                    if !socket.set(Flag::Queued, true) {
                        self.again.push(token);
                    }
                }
            }
            Effect::Move { token, to, moved } => {
                if let Some(socket) = self.unregister(token) {
                    let Poller::Epoll(epoll) = &self.poller else { return self.leave(socket, to, moved) };
                    // The descriptor stays open, so without this its events would go on arriving here.
                    if let Err(error) = epoll.remove(socket.fd.as_fd()) {
                        tracing::error!(%error, "cannot take a socket out of the event loop");
                    }
                    self.hand_over(socket, to, moved, Vec::new());
                }
            }
            Effect::LookUp { client, user } => {
                if let Err(why) = self.core.look_up(&user, client) {
                    self.core.deliver(CoreMessage::Account { client, answer: Err(why.into()) });
                }
            }
            Effect::Verify(question) => self.core.verify(*question),
            Effect::Post { to, message } => self.mailboxes[to].post(WorkerCommand::Core(message)),
            Effect::Ask { client, text, access, whole } => {
                let asker = Asker::Client { worker: self.id, client };
                if let Err(bytes) = self.console.put(Request { asker, text, access, whole }) {
                    self.core.deliver(CoreMessage::Answer { client, bytes });
                }
            }
        }
    }

    /// Hands a moving connection to its destination; `early`: bytes that have arrived for it meanwhile.
    pub(super) fn hand_over(&mut self, socket: Socket, to: Destination, moved: Box<Moved>, early: Vec<u8>) {
        let command = WorkerCommand::Moved(socket.fd, socket.link, moved, early);
        match to {
            Destination::Worker(to) => self.mailboxes[to].post(command),
            Destination::Cluster(name) => {
                if let Err(WorkerCommand::Moved(fd, link, ..)) = self.fleet.post(&name, command) {
                    let mut last = Vec::new();
                    let text = format!("the cluster {name:?} is not served any more");
                    message::error(&mut last, Severity::Fatal, Sqlstate::CANNOT_CONNECT_NOW, &text, "");
                    self.say_goodbye(Socket { fd, flags: 0, token: socket.token, link }, &last);
                }
            }
        }
    }

    /// Returns the core's report, with the addresses of its sockets.
    fn look(&mut self, look: Look) -> Report {
        let mut report = self.core.report(look);
        for client in &mut report.clients {
            if let Some(socket) = self.socket(client.token) {
                (client.address, client.local) = sys::addresses(socket.fd.as_fd());
                client.fd = Some(socket.fd.as_raw_fd());
            }
        }
        for server in &mut report.servers {
            if let Some(socket) = self.socket(server.token) {
                (server.address, server.local) = sys::addresses(socket.fd.as_fd());
                server.fd = Some(socket.fd.as_raw_fd());
            }
        }
        report
    }

    /// Reports the end of a socket's stream to the core, once.
    pub(super) fn finished(&mut self, token: Token) {
        const WHY: &str = "the peer closed the connection";
        let Some(socket) = slot(&mut self.sockets, token) else { return };
        if socket.is(Flag::Broken) {
            return self.core.closed(token, WHY);
        }
        if !socket.set(Flag::Finished, true) {
            self.core.finished(token, WHY);
        }
    }

    /// Writes the last bytes and lets the peer read them: closing a socket with unread input would make the kernel drop
    /// the output.
    fn say_goodbye(&mut self, mut socket: Socket, last: &[u8]) {
        if socket.is(Flag::Connecting) {
            return;
        }
        match &mut socket.link {
            Some(link) => {
                // Before the handshake is done there is no way to say anything.
                let last = last.get(link.carried()..).unwrap_or_default();
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

    /// Closes a connection after a failed write. A server's last bytes, which name the reason, may still be unread: they are read first.
    pub(super) fn write_failed(&mut self, token: Token, error: &io::Error) {
        let is_ring = matches!(self.poller, Poller::Ring(_));
        for _ in 0..LAST_READS {
            let Some(socket) = slot(&mut self.sockets, token) else { return };
            if token.kind() != Kind::Server || socket.is(Flag::Paused) {
                break;
            }
            if is_ring {
                // The bytes are in the ring; the end of the stream comes behind them.
                if socket.is(Flag::Armed) && !socket.is(Flag::Held) {
                    return;
                }
                break;
            }
            let kept = socket.link.as_mut().map_or(0, |link| link.unfinished(&mut self.buffer));
            match sys::receive(socket.fd.as_fd(), &mut self.buffer[kept..]) {
                Ok(count @ 1..) if socket.link.is_some() => {
                    if !self.take_records(token, kept + count) {
                        return;
                    }
                }
                Ok(count @ 1..) => self.core.received(token, &self.buffer[..count]),
                _ => {
                    if let Some(link) = &mut socket.link {
                        link.keep(&self.buffer[..kept]);
                    }
                    break;
                }
            }
        }
        self.core.closed(token, &error.to_string());
    }

    pub(super) fn take_commands(&mut self) {
        let mut commands = std::mem::take(&mut self.commands);
        self.mailboxes[self.id].take(&mut commands);
        for command in commands.drain(..) {
            // `accept` and `adopt` may reuse a slot that the core has freed: the slot's old socket must be closed
            // first.
            self.effects();
            match command {
                WorkerCommand::Client(fd, peer) => {
                    let token = self.core.accept(peer);
                    if let Err(error) = self.register(fd, token, false) {
                        self.core.closed(token, &error.to_string());
                    }
                }
                WorkerCommand::Moved(fd, link, moved, early) => {
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
                WorkerCommand::Core(message) => self.core.deliver(message),
                WorkerCommand::Look(look, to) => {
                    // The console may have stopped waiting for the report.
                    let _ = to.try_send(self.look(look));
                }
                WorkerCommand::Stop => self.stopping = true,
            }
        }
        self.commands = commands;
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

/// Returns the entry as [`slot`] does, for reading only.
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
