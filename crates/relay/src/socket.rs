//! A blocking connection to a server, over TCP or a Unix socket.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// A connection. Two threads may read and write at once, each with its own clone.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// An address to connect to.
#[derive(Debug)]
pub(crate) enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Place {
    /// Resolves `host:port`, or the path of a Unix socket, to all addresses of the name.
    pub(crate) fn all(address: &str) -> io::Result<Vec<Place>> {
        if address.starts_with('/') {
            return Ok(vec![Place::Unix(address.into())]);
        }
        let all: Vec<Place> = address.to_socket_addrs()?.map(Place::Tcp).collect();
        if all.is_empty() { Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")) } else { Ok(all) }
    }
}

impl Socket {
    /// Starts to connect. [`Socket::shutdown`] may end the socket from then on, also while [`Socket::connected`] waits, which with a dead host takes
    /// its full time.
    pub(crate) fn begin(place: &Place) -> io::Result<Socket> {
        let address = match place {
            Place::Unix(path) => return Ok(Socket::Unix(UnixStream::connect(path)?)),
            Place::Tcp(address) => address,
        };
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, address) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(Socket::Tcp(TcpStream::from(socket))),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for the connection, for `limit` at most.
    pub(crate) fn connected(&self, limit: Duration) -> io::Result<()> {
        let Socket::Tcp(stream) = self else { return Ok(()) };
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(stream, PollFlags::OUT)], Some(&left)) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer")),
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        // A socket that was shut down meanwhile has no peer.
        stream.peer_addr()?;
        stream.set_nonblocking(false)?;
        // Acknowledgements are small, and commits wait for them.
        stream.set_nodelay(true)
    }

    /// Connects to `address` (`host:port`, or the path of a Unix socket): tries each address of the name, for `limit` each, until one answers. Before
    /// each wait `known` gets a clone of the socket, which can end it. `failed` converts an I/O error for the caller.
    pub(crate) fn connect<E>(
        address: &str,
        limit: Duration,
        known: impl Fn(Socket) -> Result<(), E>,
        failed: impl Fn(io::Error) -> E,
    ) -> Result<Socket, E> {
        let mut reached = Err(io::Error::from(io::ErrorKind::NotFound));
        for place in Place::all(address).map_err(&failed)? {
            let socket = match Socket::begin(&place) {
                Ok(socket) => socket,
                Err(error) => {
                    reached = Err(error);
                    continue;
                }
            };
            known(socket.try_clone().map_err(&failed)?)?;
            reached = socket.connected(limit).map(|()| socket);
            if reached.is_ok() {
                break;
            }
        }
        reached.map_err(failed)
    }

    /// See [`notice_a_dead_host`].
    pub(crate) fn notice_a_dead_host(&self, limit: Duration) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => notice_a_dead_host(stream.as_fd(), limit),
            Socket::Unix(_) => Ok(()),
        }
    }

    pub(crate) fn try_clone(&self) -> io::Result<Socket> {
        Ok(match self {
            Socket::Tcp(stream) => Socket::Tcp(stream.try_clone()?),
            Socket::Unix(stream) => Socket::Unix(stream.try_clone()?),
        })
    }

    /// Sets the longest time of one read or write.
    pub(crate) fn set_timeouts(&self, read: Duration, write: Duration) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(Some(read))?;
                stream.set_write_timeout(Some(write))
            }
            Socket::Unix(stream) => {
                stream.set_read_timeout(Some(read))?;
                stream.set_write_timeout(Some(write))
            }
        }
    }

    /// True if a read would not wait.
    pub(crate) fn is_readable(&self) -> bool {
        let fd = match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    /// Shuts all clones down: a pending read or write gets an end or an error at once.
    pub(crate) fn shutdown(&self) {
        // An error means that it is gone already.
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

/// Makes the kernel end a TCP connection whose peer host is dead: one that acknowledges no sent data for `limit`, or, while nothing is sent, answers
/// no probe. At least a second, at most a day.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn notice_a_dead_host(socket: BorrowedFd<'_>, limit: Duration) -> io::Result<()> {
    let limit = limit.clamp(Duration::from_secs(1), Duration::from_secs(86_400));
    // A quarter of the time idle, then three probes in the rest.
    let part = (limit / 4).max(Duration::from_secs(1));
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, part)?;
    sockopt::set_tcp_keepintvl(socket, part)?;
    sockopt::set_tcp_keepcnt(socket, 3)?;
    Ok(sockopt::set_tcp_user_timeout(socket, u32::try_from(limit.as_millis()).unwrap_or(u32::MAX))?)
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(buffer),
            Socket::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_kernel_watches_the_other_host() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        for (limit, timeout, idle) in [(20_000, 20_000, 5), (10, 1000, 1), (u64::MAX, 86_400_000, 21_600)] {
            let socket = Socket::begin(&Place::all(&address).unwrap()[0]).unwrap();
            socket.connected(Duration::from_secs(5)).unwrap();
            let Socket::Tcp(stream) = &socket else { panic!("a TCP socket") };
            socket.notice_a_dead_host(Duration::from_millis(limit)).unwrap();
            let fd = stream.as_fd();
            assert!(sockopt::socket_keepalive(fd).unwrap());
            assert_eq!(sockopt::tcp_user_timeout(fd).unwrap(), timeout);
            assert_eq!(sockopt::tcp_keepidle(fd).unwrap(), Duration::from_secs(idle));
            assert_eq!(sockopt::tcp_keepcnt(fd).unwrap(), 3);
        }
    }
    /// A dead host answers no SYN, nor does a listener whose queue is full.
    #[test]
    fn waiting_for_a_connection_can_be_ended() {
        let queue = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&queue, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
        rustix::net::listen(&queue, 0).unwrap();
        let listener = std::net::TcpListener::from(queue);
        let place = Place::Tcp(listener.local_addr().unwrap());
        let mut full = Vec::new();
        let waits = loop {
            let socket = Socket::begin(&place).unwrap();
            match socket.connected(Duration::from_millis(200)) {
                Ok(()) => full.push(socket),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => break socket,
                Err(error) => panic!("{error}"),
            }
            assert!(full.len() < 100, "the queue is never full");
        };
        let other = waits.try_clone().unwrap();
        let thread = std::thread::spawn(move || waits.connected(Duration::from_secs(60)));
        other.shutdown();
        let ended = thread.join().unwrap().unwrap_err();
        assert_ne!(ended.kind(), io::ErrorKind::TimedOut, "{ended}");
    }
}
