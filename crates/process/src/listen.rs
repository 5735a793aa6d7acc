//! Listening TCP sockets.

use std::io;
use std::os::fd::OwnedFd;

/// Binds an address, or takes the socket that another process handed over for it.
///
/// # Errors
/// The address cannot be bound.
pub async fn listen(inherited: Option<OwnedFd>, address: &str) -> io::Result<tokio::net::TcpListener> {
    match inherited {
        Some(socket) => tokio::net::TcpListener::from_std(std::net::TcpListener::from(socket)),
        None => tokio::net::TcpListener::bind(address).await,
    }
}
