//! The one thread that accepts, and hands each connection to the least loaded worker. (With a listener a worker the
//! kernel would spread them by hash, and unevenly.)

use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::mailbox::{Letter, Mailbox};
use super::sys::{self, Epoll, Event, Wake};
use crate::config::Listen;
use crate::core::Peer;
use crate::metrics::Metrics;

/// Connections that the kernel keeps for us until we accept them.
const BACKLOG: i32 = 4096;
/// Connections accepted from one listener before the next has its turn.
const BATCH: usize = 64;

/// A socket that clients connect to.
pub(crate) struct Listener {
    fd: OwnedFd,
    tcp: bool,
    peer: Peer,
    /// As it can be connected to.
    pub(crate) address: String,
    /// As the configuration has it.
    pub(crate) configured: String,
    /// A Unix socket's file, removed at the end.
    path: Option<PathBuf>,
    /// Another process listens on the same socket: the file stays.
    handed_over: AtomicBool,
}

impl Listener {
    /// Listens where the configuration says.
    pub(crate) fn bind(listen: &Listen) -> io::Result<Listener> {
        if listen.address.starts_with('/') {
            let path = PathBuf::from(&listen.address);
            // A file that nobody listens on is left over from a process that was killed.
            if path.exists() && UnixStream::connect(&path).is_err() {
                std::fs::remove_file(&path)?;
            }
            let listener = UnixListener::bind(&path)?;
            listener.set_nonblocking(true)?;
            let fd = OwnedFd::from(listener);
            sys::set_backlog(fd.as_fd(), BACKLOG)?;
            return Ok(Listener::new(listen, fd, listen.address.clone(), Some(path)));
        }
        let addresses: Vec<_> = listen.address.to_socket_addrs()?.collect();
        let listener = TcpListener::bind(&addresses[..])?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?.to_string();
        let fd = OwnedFd::from(listener);
        sys::set_backlog(fd.as_fd(), BACKLOG)?;
        Ok(Listener::new(listen, fd, address, None))
    }

    /// Goes on with a socket that another process has listened on by the same configuration.
    pub(crate) fn adopt(listen: &Listen, fd: OwnedFd) -> io::Result<Listener> {
        let local = listen.address.starts_with('/');
        let path = local.then(|| PathBuf::from(&listen.address));
        let address = match local {
            true => listen.address.clone(),
            false => TcpListener::from(fd.try_clone()?).local_addr()?.to_string(),
        };
        Ok(Listener::new(listen, fd, address, path))
    }

    fn new(listen: &Listen, fd: OwnedFd, address: String, path: Option<PathBuf>) -> Listener {
        let peer = Peer { route: listen.route, local: path.is_some(), address: None };
        let configured = listen.address.clone();
        Listener { fd, tcp: path.is_none(), peer, address, configured, path, handed_over: AtomicBool::new(false) }
    }

    /// The same socket once more, for another process.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Another process has it: its file stays.
    pub(crate) fn leave(&self) {
        self.handed_over.store(true, Ordering::Release);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path
            && !self.handed_over.load(Ordering::Acquire)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Ends the acceptor.
pub(crate) struct Stop {
    flag: AtomicBool,
    wake: Wake,
}

impl Stop {
    pub(crate) fn new() -> io::Result<Stop> {
        Ok(Stop { flag: AtomicBool::new(false), wake: Wake::new()? })
    }

    pub(crate) fn now(&self) {
        self.flag.store(true, Ordering::Release);
        self.wake.ring();
    }
}

/// Accepts until it is told to stop.
pub(crate) fn run(
    listeners: &[Listener],
    stop: &Stop,
    mailboxes: &[Mailbox],
    metrics: &[Arc<Metrics>],
) -> io::Result<()> {
    let epoll = Epoll::new()?;
    epoll.add_level(stop.wake.fd(), u64::MAX)?;
    for (i, listener) in listeners.iter().enumerate() {
        epoll.add_level(listener.fd(), i as u64)?;
    }
    let mut events = [Event { events: 0, u64: 0 }; 64];
    let mut handed: Vec<u64> = vec![0; mailboxes.len()];
    let mut complained = false;
    while !stop.flag.load(Ordering::Acquire) {
        let count = epoll.wait(&mut events, -1)?;
        for event in &events[..count] {
            let Some(listener) = usize::try_from(event.u64).ok().and_then(|i| listeners.get(i)) else { continue };
            for _ in 0..BATCH {
                match sys::accept(listener.fd(), listener.tcp) {
                    Ok(Some((fd, address))) => {
                        complained = false;
                        let worker = least_loaded(&handed, metrics);
                        handed[worker] += 1;
                        mailboxes[worker].post(Letter::Client(fd, Peer { address, ..listener.peer }));
                    }
                    Ok(None) => break,
                    Err(error) => {
                        // Out of descriptors, as a rule. The connection waits; so do we, instead of spinning.
                        if !std::mem::replace(&mut complained, true) {
                            tracing::error!(%error, address = listener.address, "cannot accept a connection");
                        }
                        std::thread::sleep(Duration::from_millis(20));
                        break;
                    }
                }
            }
        }
    }
    Ok(())
}

/// The worker with the fewest clients, those on their way to it included.
fn least_loaded(handed: &[u64], metrics: &[Arc<Metrics>]) -> usize {
    let load = |i: &usize| metrics[*i].clients.get() + handed[*i].saturating_sub(metrics[*i].clients_accepted.get());
    (0..handed.len()).min_by_key(load).unwrap_or(0)
}
