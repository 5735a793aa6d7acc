//! The single thread that accepts connections. It hands each connection to the worker with the fewest clients. (With a listener in each worker the
//! kernel would distribute connections by hash, and unevenly.)

use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::mailbox::{Mailbox, WorkerCommand};
use super::sys::{self, Epoll, Event, Wake};
use super::system::SystemUsers;
use crate::config::Listen;
use crate::core::Peer;
use crate::metrics::Metrics;

/// Maximum number of connections in the kernel's accept queue.
const BACKLOG: i32 = 4096;
/// Number of connections accepted from one listener before the next listener's turn.
const BATCH: usize = 64;

/// A socket that clients connect to.
pub(crate) struct Listener {
    fd: OwnedFd,
    tcp: bool,
    peer: Peer,
    /// The address to connect to.
    pub(crate) address: String,
    /// The address in the configuration.
    pub(crate) configured: String,
    /// The file of a Unix socket, removed at the end.
    path: Option<PathBuf>,
    /// True if another process listens on the same socket, so that the file stays.
    handed_over: AtomicBool,
}

impl Listener {
    /// Listens on the configured address.
    pub(crate) fn bind(listen: &Listen) -> io::Result<Listener> {
        if listen.address.starts_with('/') {
            let path = PathBuf::from(&listen.address);
            // A file without a listening process was left by a process that was killed.
            if path.exists() && UnixStream::connect(&path).is_err() {
                std::fs::remove_file(&path)?;
            }
            let listener = UnixListener::bind(&path)?;
            admit(&path, listen).inspect_err(|_| drop(std::fs::remove_file(&path)))?;
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

    /// Takes over a socket on which another process has listened for the same configuration.
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
        let peer = Peer { route: listen.route, local: path.is_some(), ..Peer::default() };
        let configured = listen.address.clone();
        Listener { fd, tcp: path.is_none(), peer, address, configured, path, handed_over: AtomicBool::new(false) }
    }

    /// Returns a duplicate of the socket, for another process.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Marks the socket as taken over by another process: its file stays.
    pub(crate) fn leave(&self) {
        self.handed_over.store(true, Ordering::Release);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Sets the permissions of a Unix socket: the group first, so that the mode never applies to another group.
fn admit(path: &Path, listen: &Listen) -> io::Result<()> {
    if let Some(group) = &listen.group {
        let number = match group.parse() {
            Ok(number) => Some(number),
            Err(_) => std::fs::read_to_string("/etc/group")?.lines().find_map(|line| group_number(line, group)),
        };
        let unknown = || io::Error::other(format!("no group is called {group:?} in /etc/group"));
        std::os::unix::fs::chown(path, None, Some(number.ok_or_else(unknown)?))?;
    }
    if let Some(mode) = listen.mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode.0))?;
    }
    Ok(())
}

/// Returns the number in a line of `/etc/group` (`name:password:number:members`), if the line is of this group.
fn group_number(line: &str, group: &str) -> Option<u32> {
    let mut fields = line.split(':');
    let name = fields.next()?;
    let number = fields.nth(1)?;
    if name == group { number.parse().ok() } else { None }
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

/// Signal to the acceptor to stop.
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

/// Accepts connections until it is told to stop.
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
    let mut users = SystemUsers::new();
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
                        let system = if listener.tcp { None } else { users.at(fd.as_fd()) };
                        let peer = Peer { address, system, ..listener.peer.clone() };
                        mailboxes[worker].post(WorkerCommand::Client(fd, peer));
                    }
                    Ok(None) => break,
                    Err(error) => {
                        // Usually the process is out of descriptors. The connection stays in the queue; the pause avoids a busy loop.
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

/// Returns the worker with the fewest clients, including those on their way to it.
fn least_loaded(handed: &[u64], metrics: &[Arc<Metrics>]) -> usize {
    let load = |i: &usize| metrics[*i].clients.get() + handed[*i].saturating_sub(metrics[*i].clients_accepted.get());
    (0..handed.len()).min_by_key(load).unwrap_or(0)
}
