//! System calls, wrapped so that other modules need no `unsafe`.

use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::{c_int, c_void, socklen_t};

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_size(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn owned(result: c_int) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: the call that returned `fd` succeeded, and `fd` has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

// === epoll ===

/// An epoll instance. Sockets are registered once, edge-triggered, for reading and writing, so that no statement costs a call to change the interest.
pub(crate) struct Epoll(OwnedFd);

/// An event of [`Epoll::wait`].
pub(crate) type Event = libc::epoll_event;

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        // SAFETY: takes no pointer.
        owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Epoll)
    }

    /// Registers a socket, edge-triggered, for reading and writing.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, data: u64) -> io::Result<()> {
        let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        self.control(libc::EPOLL_CTL_ADD, fd, events as u32, data)
    }

    /// Registers a descriptor, level-triggered, for reading.
    pub(crate) fn add_level(&self, fd: BorrowedFd<'_>, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, data)
    }

    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    fn control(&self, operation: c_int, fd: BorrowedFd<'_>, events: u32, data: u64) -> io::Result<()> {
        let mut event = Event { events, u64: data };
        // SAFETY: `event` lives for the call; both descriptors are open.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, fd.as_raw_fd(), &mut event) }).map(drop)
    }

    /// Waits at most `millis` milliseconds (-1: no limit), and returns the number of events.
    pub(crate) fn wait(&self, events: &mut [Event], millis: c_int) -> io::Result<usize> {
        let room = events.len().min(1024) as c_int;
        // SAFETY: the kernel writes at most `room` events, and there is room for them.
        match check(unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), room, millis) }) {
            Ok(n) => Ok(n as usize),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }
}

/// Maximum number of descriptors of [`wait_for_any`].
pub(crate) const MOST_WAITED_FOR: usize = 64;

/// Waits until one of the descriptors is readable, or the time is over. (Finer than epoll's milliseconds.)
pub(crate) fn wait_for_any<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>, limit: std::time::Duration) {
    let mut polled = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; MOST_WAITED_FOR];
    let mut count = 0;
    for (slot, fd) in polled.iter_mut().zip(fds) {
        slot.fd = fd.as_raw_fd();
        count += 1;
    }
    let limit = libc::timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos().into() };
    // SAFETY: `polled` has `count` entries or more, and lives for the call, like `limit`. The result is not used.
    let _ = unsafe { libc::ppoll(polled.as_mut_ptr(), count, &limit, std::ptr::null()) };
}

// === eventfd ===

/// Wake-up of an epoll loop from another thread.
pub(crate) struct Wake(OwnedFd);

impl Wake {
    pub(crate) fn new() -> io::Result<Wake> {
        // SAFETY: takes no pointer.
        owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }).map(Wake)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.0.as_fd()
    }

    pub(crate) fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes are read from `one`. A full counter means that a wake-up is already pending.
        let _ = unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast::<c_void>(), one.len()) };
    }

    pub(crate) fn quiet(&self) {
        let mut count = [0u8; 8];
        // SAFETY: at most eight bytes are written to `count`.
        let _ = unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast::<c_void>(), count.len()) };
    }
}

// === sockets ===

/// Receives the bytes that have arrived, without waiting.
pub(crate) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`.
    check_size(unsafe {
        libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast::<c_void>(), buffer.len(), libc::MSG_DONTWAIT)
    })
}

/// Sends as many bytes as the socket takes, without waiting.
pub(crate) fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the kernel reads `bytes.len()` bytes from `bytes`.
    check_size(unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast::<c_void>(), bytes.len(), flags) })
}

/// Shuts down the sending direction.
pub(crate) fn finish(fd: BorrowedFd<'_>) {
    // SAFETY: takes no pointer. Fails if the peer is gone, which does not matter.
    let _ = unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_WR) };
}

/// Starts a TCP connection, with TCP_NODELAY.
pub(crate) fn connect_tcp(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let fd = socket(family)?;
    tune(&fd)?;
    if address.ip().is_loopback() {
        skip_congestion_control(&fd);
    }
    match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            connect(&fd, &raw)?;
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            connect(&fd, &raw)?;
        }
    }
    Ok(fd)
}

/// Starts a connection to a Unix socket.
pub(crate) fn connect_unix(path: &Path) -> io::Result<OwnedFd> {
    // SAFETY: all bytes zero is a valid `sockaddr_un`.
    let mut raw: libc::sockaddr_un = unsafe { zeroed() };
    raw.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= raw.sun_path.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket's path is too long"));
    }
    for (to, from) in raw.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let fd = socket(libc::AF_UNIX)?;
    connect(&fd, &raw)?;
    Ok(fd)
}

fn socket(family: c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointer.
    owned(unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0) })
}

fn connect<T>(fd: &OwnedFd, address: &T) -> io::Result<()> {
    let length = size_of_val(address) as socklen_t;
    let pointer = std::ptr::from_ref(address).cast::<libc::sockaddr>();
    // SAFETY: `address` is one of the sockaddr structures, `length` its size.
    match check(unsafe { libc::connect(fd.as_raw_fd(), pointer, length) }) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(()),
    }
}

/// Returns the result of a connection attempt.
pub(crate) fn connect_result(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut error: c_int = 0;
    let mut length = size_of::<c_int>() as socklen_t;
    let pointer = std::ptr::from_mut(&mut error).cast::<c_void>();
    // SAFETY: the kernel writes at most `length` bytes to `error`.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR, pointer, &mut length) })?;
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Returns the peer's and the local address of a TCP socket; `None` for a Unix socket, or one that is no longer connected.
pub(crate) fn addresses(fd: BorrowedFd<'_>) -> (Option<SocketAddr>, Option<SocketAddr>) {
    match fd.try_clone_to_owned().map(std::net::TcpStream::from) {
        Ok(stream) => (stream.peer_addr().ok(), stream.local_addr().ok()),
        Err(_) => (None, None),
    }
}

/// Sets TCP_NODELAY, and keepalive and time-outs that detect a silently lost peer within about half a minute.
fn tune(fd: &OwnedFd) -> io::Result<()> {
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 15)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 5)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 30_000)
}

/// Selects the simplest congestion control, which every kernel has, since there is no congestion between two sockets of one machine: the system's
/// default may be BBR, which paces with a timer and costs a tenth of the proxy's CPU time.
fn skip_congestion_control(fd: &OwnedFd) {
    let name = b"reno";
    let pointer = name.as_ptr().cast::<c_void>();
    // SAFETY: the kernel reads `name.len()` bytes from `name`. If it refuses, the system's algorithm stays.
    let _ = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, pointer, name.len() as socklen_t)
    };
}

/// Returns the IP address in a peer's socket address; `None` if it has none.
fn ip_of(peer: &libc::sockaddr_storage) -> Option<IpAddr> {
    let pointer = std::ptr::from_ref(peer);
    match c_int::from(peer.ss_family) {
        libc::AF_INET => {
            // SAFETY: according to the family it is a `sockaddr_in`, and a `sockaddr_storage` is large and aligned enough.
            let v4 = unsafe { &*pointer.cast::<libc::sockaddr_in>() };
            Some(IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: as above, for `sockaddr_in6`.
            let v6 = unsafe { &*pointer.cast::<libc::sockaddr_in6>() };
            Some(IpAddr::from(v6.sin6_addr.s6_addr).to_canonical())
        }
        _ => None,
    }
}

fn set_option(fd: &OwnedFd, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    let pointer = std::ptr::from_ref(&value).cast::<c_void>();
    // SAFETY: the kernel reads `size_of::<c_int>()` bytes from `value`.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, pointer, size_of::<c_int>() as socklen_t) })
        .map(drop)
}

/// Accepts one connection, and returns it with the peer's IP address; `None` if no connection waits.
pub(crate) fn accept(listener: BorrowedFd<'_>, tcp: bool) -> io::Result<Option<(OwnedFd, Option<IpAddr>)>> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: all bytes zero is a valid `sockaddr_storage`.
    let mut peer: libc::sockaddr_storage = unsafe { zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as socklen_t;
    let pointer = std::ptr::from_mut(&mut peer).cast::<libc::sockaddr>();
    // SAFETY: the kernel writes at most `length` bytes to `peer`.
    let result = unsafe { libc::accept4(listener.as_raw_fd(), pointer, &mut length, flags) };
    match owned(result) {
        Ok(fd) => {
            let address = ip_of(&peer);
            if tcp {
                tune(&fd)?;
                if address.is_some_and(|address| address.is_loopback()) {
                    skip_congestion_control(&fd);
                }
            }
            Ok(Some((fd, address)))
        }
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED | libc::EPROTO) => Ok(None),
            _ => Err(error),
        },
    }
}

/// Sets the maximum length of the kernel's accept queue.
pub(crate) fn set_backlog(listener: BorrowedFd<'_>, length: c_int) -> io::Result<()> {
    // SAFETY: takes no pointer. On a listening socket it only changes the backlog.
    check(unsafe { libc::listen(listener.as_raw_fd(), length) }).map(drop)
}
