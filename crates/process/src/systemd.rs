//! Reports to a service manager (`Type=notify`, one datagram to `$NOTIFY_SOCKET`). Without that variable nothing happens.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends a state to the service manager, if there is one.
pub fn notify(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}

/// Reports that the process serves; from now on it is the service's main process.
pub fn ready() {
    notify(&format!("MAINPID={}\nREADY=1", std::process::id()));
}
