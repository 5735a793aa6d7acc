//! Sockets that the service manager listens on for this process (socket activation, `$LISTEN_FDS`). Without that variable there are none.

use std::io;
use std::net::ToSocketAddrs;
use std::os::fd::OwnedFd;

use listenfd::ListenFd;
use proxy::Socket;

use crate::upgrade::Sockets;
use config::Config;
use process::Failure;

/// Returns the sockets that the service manager has opened, by their addresses in the configuration.
///
/// # Errors
/// A socket has no address of the configuration, or does not listen.
pub fn sockets(config: &Config) -> Result<Sockets, Failure> {
    let mut given = ListenFd::from_env();
    let mut sockets = Sockets::default();
    for index in 0..given.len() {
        let (fd, at) = take(&mut given, index)
            .map_err(|error| Failure::environment(format!("socket {index} of the service manager: {error}")))?;
        let socket = |address: &str, fd| Socket { address: address.into(), fd, of_manager: true };
        if let Some(listen) = config.proxy.listen.iter().find(|listen| at.is(&listen.address)) {
            sockets.proxy.push(socket(&listen.address, fd));
        } else if at.is(&config.metrics.listen) {
            sockets.metrics = Some(socket(&config.metrics.listen, fd));
        } else if at.is(&config.console.listen) {
            sockets.console = Some(socket(&config.console.listen, fd));
        } else {
            let what = format!(
                "the service manager listens on {at}, which is no address of proxy.listen, metrics.listen or console.listen"
            );
            return Err(Failure::config(what)
                .advise("ListenStream= of the socket unit and the configuration have to name the same addresses"));
        }
    }
    Ok(sockets)
}

/// Address of a listening socket.
#[derive(Debug)]
enum At {
    Tcp(std::net::SocketAddr),
    Unix(Option<std::path::PathBuf>),
}

impl At {
    /// True if `address` of the configuration is that of this socket.
    fn is(&self, address: &str) -> bool {
        match self {
            At::Tcp(at) => address.to_socket_addrs().is_ok_and(|mut found| found.any(|found| found == *at)),
            At::Unix(path) => path.as_deref().is_some_and(|path| path == std::path::Path::new(address)),
        }
    }
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            At::Tcp(at) => at.fmt(f),
            At::Unix(Some(path)) => path.display().fmt(f),
            At::Unix(None) => f.write_str("a Unix socket without a path"),
        }
    }
}

fn take(given: &mut ListenFd, index: usize) -> io::Result<(OwnedFd, At)> {
    // Leaves a socket that is not TCP in its place.
    if let Ok(Some(listener)) = given.take_tcp_listener(index) {
        listener.set_nonblocking(true)?;
        let at = At::Tcp(listener.local_addr()?);
        return Ok((listener.into(), at));
    }
    let none = || io::Error::other("expected a stream socket (ListenStream=)");
    let listener = given.take_unix_listener(index)?.ok_or_else(none)?;
    listener.set_nonblocking(true)?;
    let at = At::Unix(listener.local_addr()?.as_pathname().map(Into::into));
    Ok((listener.into(), at))
}
