//! A blocking connection to a server, over TCP or a Unix socket.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

/// A connection. Reading and writing may go on in two threads at once, each with its own clone.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects to `host:port` or the path of a Unix socket; each address that a name has is tried for `limit`.
    pub(crate) fn connect(address: &str, limit: Duration) -> io::Result<Socket> {
        if address.starts_with('/') {
            return Ok(Socket::Unix(UnixStream::connect(address)?));
        }
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, limit) {
                Ok(stream) => {
                    // Acknowledgements are small, and commits wait for them.
                    stream.set_nodelay(true)?;
                    return Ok(Socket::Tcp(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
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

    /// Longest time that one read or write may take.
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

    /// Whether a read would not have to wait.
    pub(crate) fn is_readable(&self) -> bool {
        let fd = match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    /// Ends it for all clones: whoever reads or writes gets an end or an error at once.
    pub(crate) fn shutdown(&self) {
        // Nothing to do about an error: it is gone already.
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

/// Has the kernel end a TCP connection whose other host is gone without a word: a host that acknowledges nothing that was sent to it for
/// `limit`, or, while nothing is sent, answers no probe. At least a second, at most a day.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn notice_a_dead_host(socket: BorrowedFd<'_>, limit: Duration) -> io::Result<()> {
    let limit = limit.clamp(Duration::from_secs(1), Duration::from_secs(86_400));
    // A quarter of the time without a word, then three probes in the rest.
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
            let socket = Socket::connect(&address, Duration::from_secs(5)).unwrap();
            let Socket::Tcp(stream) = &socket else { panic!("a TCP socket") };
            socket.notice_a_dead_host(Duration::from_millis(limit)).unwrap();
            let fd = stream.as_fd();
            assert!(sockopt::socket_keepalive(fd).unwrap());
            assert_eq!(sockopt::tcp_user_timeout(fd).unwrap(), timeout);
            assert_eq!(sockopt::tcp_keepidle(fd).unwrap(), Duration::from_secs(idle));
            assert_eq!(sockopt::tcp_keepcnt(fd).unwrap(), 3);
        }
    }
}
