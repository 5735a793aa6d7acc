//! Connections from other nodes: commits to apply, questions to answer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Duration;

use super::ended::{Ended, HANDSHAKE};
use super::link::{Frames, PeerWriter, SILENCE, handshake};
use super::secure::Way;
use super::wire::{self, Message, PeerError};
use crate::registry::Inner;
use crate::status::add;
use crate::store::{Interner, MOST_NODES, NodeId};

/// Maximum number of connections, two for each node: an old connection may still exist when a new one comes.
const CONNECTIONS: usize = 2 * MOST_NODES;
/// Maximum number of connections that have not authenticated yet. If there is one more, the oldest is closed: a node needs only a round trip, so an
/// attacker that holds connections open keeps no node out.
const STRANGERS: usize = 32;

/// A connection, with a flag that is true once a node has authenticated.
struct Caller {
    introduced: Arc<AtomicBool>,
    task: AbortHandle,
}

/// Connections that have not authenticated, oldest first.
#[derive(Default)]
struct UnauthenticatedPeers(VecDeque<Caller>);

impl UnauthenticatedPeers {
    fn push(&mut self, caller: Caller) {
        self.0.retain(|caller| !caller.introduced.load(Ordering::Acquire) && !caller.task.is_finished());
        if self.0.len() >= STRANGERS
            && let Some(oldest) = self.0.pop_front()
        {
            // If it is a node that has authenticated by now, it connects again.
            oldest.task.abort();
        }
        self.0.push_back(caller);
    }
}

/// Accepts connections until the registry stops.
pub(super) async fn run(inner: Arc<Inner>, listener: TcpListener) {
    let mut stop = inner.stop.subscribe();
    // Dropping the set ends all connections.
    let mut connections = JoinSet::new();
    let mut unauthenticated = UnauthenticatedPeers::default();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            _ = connections.join_next(), if connections.len() >= CONNECTIONS + STRANGERS => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, from)) if connections.len() < CONNECTIONS + STRANGERS => {
                let inner = Arc::clone(&inner);
                let introduced = Arc::new(AtomicBool::new(false));
                let is_node = Arc::clone(&introduced);
                let task = connections.spawn(async move {
                    let Err(ended) = serve(&inner, stream, &is_node).await;
                    tracing::debug!(%from, "a connection of another node ended: {ended}");
                });
                unauthenticated.push(Caller { introduced, task });
            }
            // Too many: closed.
            Ok(_) => {}
            Err(error) => {
                tracing::warn!("accepting other nodes: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn welcome(inner: &Inner, stream: TcpStream) -> Result<(NodeId, Frames, PeerWriter), Ended> {
    let secure = inner.peers.secure();
    let mut way = Way::to_here(stream, secure.as_deref()).await?;
    let handshake = handshake(inner, way.binding)?;
    way.send(&handshake.greeting()).await?;
    let mut introduction = [0; wire::INTRODUCTION];
    way.read.read_exact(&mut introduction).await?;
    let (welcome, who, channel) = handshake.welcome(&introduction)?;
    way.send(&welcome).await?;
    Ok((who, Frames::new(way.read, channel.receive), PeerWriter { write: way.write, direction: channel.send }))
}

async fn serve(inner: &Inner, stream: TcpStream, is_node: &AtomicBool) -> Result<std::convert::Infallible, Ended> {
    // TLS is included: a connection that does not complete it in time has not authenticated.
    let shaken = tokio::time::timeout(HANDSHAKE, welcome(inner, stream)).await;
    let (who, mut frames, mut writer) = shaken.map_err(|_| Ended::Late(HANDSHAKE))??;
    is_node.store(true, Ordering::Release);
    inner.peers.called_by(who);
    let mut interner = Interner::default();
    loop {
        let body = tokio::time::timeout(SILENCE, frames.next()).await.map_err(|_| Ended::Late(SILENCE))??;
        inner.peers.heard_from(who);
        match Message::read(&body, &mut interner)? {
            Message::Question { number, ids } => {
                if let Some(silence) = inner.health.leases.silence(&ids) {
                    writer.say(&wire::answer(number, &silence)).await?;
                }
            }
            Message::Committed { epoch, revision, records } => {
                if inner.offer(epoch, revision, records).await {
                    add(&inner.counters.pushes_applied, 1);
                } else {
                    inner.told(epoch, revision);
                }
            }
            Message::News { epoch, revision } => {
                inner.told(epoch, revision);
                writer.say(&inner.news()).await?;
            }
            Message::Answer { .. } => return Err(PeerError::Malformed.into()),
        }
    }
}
