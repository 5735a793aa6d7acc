//! The HTTP server: connections and their limits. Requests are answered in [`request`].

mod act;
mod look;
mod patient;
mod request;
mod response;
mod sign_in;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use self::patient::Patient;
use self::request::answer;
use crate::auth::Auth;
use crate::config::{ConfigError, ConsoleConfig};
use crate::guard::{Guard, Site};
use crate::hub::Wake;
use crate::hubs::Hubs;
use crate::parts::Parts;

/// Maximum number of concurrent connections, besides those of viewers; further ones wait in the kernel's queue.
const CONNECTIONS: usize = 128;
/// Time limit of a request's headers.
const HEADERS: Duration = Duration::from_secs(20);
/// Time limit of a part's answer.
const ANSWER: Duration = Duration::from_secs(15);
/// Interval between two checks for new or removed clusters.
const FOLLOW: Duration = Duration::from_secs(1);
/// Pause after a failed accept: out of descriptors, where only time helps.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Reason why the console did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is in use or invalid.
    #[error("cannot listen on {address} for the console: {source}")]
    Listen {
        /// The configured address.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// The configuration is invalid.
    #[error("console.{key}: {0}", key = .0.key)]
    Config(#[from] ConfigError),
}

/// A running console; it stops when dropped.
#[derive(Debug)]
pub struct Console {
    address: SocketAddr,
    wake: Wake,
    socket: OwnedFd,
    stop: watch::Sender<bool>,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

/// State shared by connections.
struct Shared {
    hubs: Hubs,
    /// Permits of viewers, for all clusters together.
    places: Arc<Semaphore>,
    auth: Auth,
    guard: Guard,
    /// Cookie name. Includes the port, since browsers share cookies between the ports of a host.
    cookie: String,
    stopping: watch::Receiver<bool>,
}

impl Console {
    /// Listens as configured and serves, on the current tokio runtime.
    ///
    /// # Errors
    /// The configuration is invalid, or the address cannot be listened on.
    pub async fn start(config: &ConsoleConfig, parts: Parts) -> Result<Console, StartError> {
        let listen = |source| StartError::Listen { address: config.listen.clone(), source };
        let listener = TcpListener::bind(&config.listen).await.map_err(listen)?;
        Console::serve(listener, config, parts)
    }

    /// Serves like [`Console::start`], on a socket that listens already.
    ///
    /// # Errors
    /// The same as for [`Console::start`].
    pub fn serve(listener: TcpListener, config: &ConsoleConfig, parts: Parts) -> Result<Console, StartError> {
        let listen = |source| StartError::Listen { address: config.listen.clone(), source };
        let address = listener.local_addr().map_err(listen)?;
        let socket = listener.as_fd().try_clone_to_owned().map_err(listen)?;
        if let Some(error) = config.check(address.ip().is_loopback()).into_iter().next() {
            return Err(error.into());
        }
        let hubs = Hubs::start(parts);
        let (stop, stopping) = watch::channel(false);
        let wake = hubs.wake().clone();
        let shared = Arc::new(Shared {
            hubs,
            places: Arc::new(Semaphore::new(config.viewers.min(Semaphore::MAX_PERMITS))),
            auth: Auth::new(config.tokens(), config.anonymous_view),
            guard: Guard::new(address, Site::parse(&config.public_url)),
            cookie: format!("kingpost_console_{}", address.port()),
            stopping,
        });
        let connections = CONNECTIONS + config.viewers.min(Semaphore::MAX_PERMITS - CONNECTIONS);
        let following = tokio::spawn(follow(Arc::clone(&shared)));
        let accepting = tokio::spawn(accept(listener, shared, Arc::new(Semaphore::new(connections))));
        Ok(Console { address, wake, socket, stop, tasks: [accepting, following] })
    }

    /// Returns the address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Duplicates the listening socket, for another process.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// Returns the handle by which other parts signal changes.
    #[must_use]
    pub fn wake(&self) -> Wake {
        self.wake.clone()
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Updates the hubs even without requests, so that a cluster's curves begin with the cluster.
async fn follow(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(FOLLOW).await;
        shared.hubs.follow();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, connections: Arc<Semaphore>) {
    loop {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "the console cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            connection(stream, peer, shared).await;
            drop(permit);
        });
    }
}

async fn connection(stream: TcpStream, peer: SocketAddr, shared: Arc<Shared>) {
    let mut stopping = shared.stopping.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(answer(request, peer.ip(), &shared).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_headers(64)
        .max_buf_size(32 << 10)
        .serve_connection(TokioIo::new(Patient::new(stream)), service);
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        ended = serving.as_mut() => {
            if let Err(error) = ended {
                // Caused by the browser: gone, too slow, invalid bytes.
                tracing::debug!(%peer, %error, "a connection to the console ended early");
            }
        }
        stopped = stopping.wait_for(|stop| *stop) => drop(stopped),
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
