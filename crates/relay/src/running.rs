//! Parts of a running relay of either family beside its log: the receiving thread, and the listening sockets.

use std::net::TcpListener as StdListener;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tracing::warn;

use crate::error::StartError;

/// The thread that receives from the upstream.
#[derive(Debug)]
pub(crate) struct Receiving(Mutex<Option<JoinHandle<()>>>);

impl Receiving {
    /// Starts the thread under this name.
    pub(crate) fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<Receiving, StartError> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(run).map_err(StartError::Thread)?;
        Ok(Receiving(Mutex::new(Some(thread))))
    }

    /// Returns Ok if the thread runs; the reason if not.
    pub(crate) fn alive(&self) -> Result<(), String> {
        let thread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match thread.as_ref() {
            Some(thread) if !thread.is_finished() => Ok(()),
            Some(_) => Err("the receiving thread has ended".into()),
            None => Err("the relay has been stopped".into()),
        }
    }

    /// Waits for the end of the thread, which has been told to stop.
    pub(crate) fn join(&self) {
        let thread = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            warn!("the receiving thread panicked");
        }
    }
}

/// Makes a listening socket for the runtime in whose context this is called.
pub(crate) fn listen(listener: StdListener) -> Result<TcpListener, StartError> {
    let address = listener.local_addr().map(|address| address.to_string()).unwrap_or_default();
    TcpListener::from_std(listener).map_err(|source| StartError::Listen { address, source })
}

/// Gives each connection to `take`, with the peer's address, until `stopped` completes. `whom`: the kind of peer, for the log.
pub(crate) async fn accept(
    listener: TcpListener,
    whom: &str,
    stopped: impl Future<Output = ()>,
    mut take: impl FnMut(TcpStream, String),
) {
    let mut stopped = std::pin::pin!(stopped);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stopped => return,
        };
        match accepted {
            Ok((stream, peer)) => take(stream, peer.to_string()),
            Err(error) => {
                // Out of descriptors, or the peer is gone: in both cases only time helps.
                warn!(%error, "cannot accept a {whom}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
