//! Sockets: datagrams one after the other, connections with limits.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::answer::{Answered, Outcome, cut};
use super::limit::{Limiter, Verdict};
use super::{Limits, Seeds, Services, Stats, Transport, Zone, answer};

/// Pause after a socket error: out of descriptors or memory, where only time helps.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum length of a datagram that is read; a question is far shorter.
const LONGEST_DATAGRAM: usize = 4096;

/// The sockets of one address: both, since a client with a truncated datagram asks again over TCP.
#[derive(Debug)]
pub struct Listener {
    udp: UdpSocket,
    tcp: TcpListener,
}

impl Listener {
    /// Binds both sockets; with port 0, to a port that is free for both.
    ///
    /// # Errors
    /// The address is in use or invalid.
    pub async fn bind(address: &str) -> io::Result<Listener> {
        let mut tries = 10;
        loop {
            let tcp = TcpListener::bind(address).await?;
            let local = tcp.local_addr()?;
            tries -= 1;
            match UdpSocket::bind(local).await {
                Ok(udp) => return Ok(Listener { udp, tcp }),
                // The system chose a port that is free for TCP only.
                Err(_) if address.ends_with(":0") && tries > 0 => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the address that it listens on.
    ///
    /// # Errors
    /// The system does not return it.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// A running DNS server. Ends when dropped: a client repeats a question whose answer is lost.
#[derive(Debug)]
pub struct Server {
    /// Ends its tasks when dropped.
    _tasks: JoinSet<()>,
    stats: Arc<Stats>,
}

/// State shared by all questions.
struct Shared {
    zone: Zone,
    services: Box<dyn Services + Send + Sync>,
    limits: Limits,
    stats: Arc<Stats>,
    random: AtomicU64,
    /// Seed of the clients on this machine, which all have one address.
    local: u64,
    limiter: Limiter,
    /// Start of the limiter's time.
    began: Instant,
}

impl Server {
    /// Serves a zone.
    pub fn start(
        listener: Listener,
        zone: Zone,
        services: impl Services + Send + Sync + 'static,
        limits: Limits,
    ) -> Server {
        let stats = Arc::new(Stats::default());
        let mut seed = [0; 8];
        // Without randomness the order of instances can be guessed, which does no harm.
        let _ = getrandom::fill(&mut seed);
        let local = u64::from_le_bytes(seed);
        let random = AtomicU64::new(local);
        let (limiter, began) = (Limiter::new(limits.per_second), Instant::now());
        let stats_of = Arc::clone(&stats);
        let shared = Arc::new(Shared {
            zone,
            services: Box::new(services),
            limits,
            stats: stats_of,
            random,
            local,
            limiter,
            began,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(datagrams(listener.udp, Arc::clone(&shared)));
        tasks.spawn(connections(listener.tcp, shared));
        Server { _tasks: tasks, stats }
    }

    /// Returns the counters.
    pub fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }
}

impl Shared {
    /// Answers a datagram, if its network gets an answer.
    fn answer_datagram(&self, query: &[u8], peer: IpAddr) -> Option<Vec<u8>> {
        // No other machine can send from a loopback address, and all clients of this machine may share one resolver.
        if self.limits.trust_loopback && peer.to_canonical().is_loopback() {
            return self.answer(query, Transport::Udp, peer);
        }
        match self.limiter.judge(peer, self.began.elapsed()) {
            Verdict::Whole => self.answer(query, Transport::ForeignUdp { most: self.limits.foreign_datagram }, peer),
            Verdict::Cut => self.count(cut(query, &self.zone)),
            Verdict::Silence => {
                self.stats.limited.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    fn answer(&self, query: &[u8], transport: Transport, peer: IpAddr) -> Option<Vec<u8>> {
        let order = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let client = match peer.to_canonical() {
            peer if peer.is_loopback() => self.local,
            IpAddr::V4(v4) => u64::from(u32::from(v4)),
            IpAddr::V6(v6) => (u128::from(v6) >> 64) as u64 ^ u128::from(v6) as u64,
        };
        self.count(answer(query, transport, &self.zone, &*self.services, Seeds { order, client }))
    }

    fn count(&self, answered: Option<Answered>) -> Option<Vec<u8>> {
        let Some(Answered { bytes, outcome, truncated, .. }) = answered else {
            self.stats.dropped.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let counter = match outcome {
            Outcome::Found => &self.stats.found,
            Outcome::Empty => &self.stats.empty,
            Outcome::Refused => &self.stats.refused,
            Outcome::Limited => &self.stats.limited,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.stats.truncated.fetch_add(u64::from(truncated), Ordering::Relaxed);
        Some(bytes)
    }
}

async fn datagrams(socket: UdpSocket, shared: Arc<Shared>) {
    let mut buffer = vec![0; LONGEST_DATAGRAM];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, peer)) => {
                let Some(answer) = buffer.get(..length).and_then(|query| shared.answer_datagram(query, peer.ip()))
                else {
                    continue;
                };
                // Does not wait: an answer without room is lost, like any datagram.
                let _ = socket.try_send_to(&answer, peer);
            }
            Err(error) => {
                tracing::debug!(%error, "a DNS datagram could not be received");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn connections(listener: TcpListener, shared: Arc<Shared>) {
    let places = Arc::new(Semaphore::new(shared.limits.connections.clamp(1, Semaphore::MAX_PERMITS)));
    // Ends the connections together with this task.
    let mut open = JoinSet::new();
    loop {
        while open.try_join_next().is_some() {}
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let shared = Arc::clone(&shared);
                open.spawn(async move {
                    if let Err(error) = serve(stream, peer.ip(), &shared).await {
                        tracing::debug!(%peer, %error, "a DNS connection ended early");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the registry cannot accept a DNS connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Serves a connection. Each message is preceded by its length in two bytes.
async fn serve(mut stream: TcpStream, peer: IpAddr, shared: &Shared) -> io::Result<()> {
    let _ = stream.set_nodelay(true);
    let mut message = Vec::new();
    let limit = shared.limits.idle;
    loop {
        let exchange = async {
            let length = match stream.read_u16().await {
                Ok(length) => usize::from(length),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                Err(error) => return Err(error),
            };
            message.resize(length, 0);
            stream.read_exact(&mut message).await?;
            let Some(answer) = shared.answer(&message, Transport::Tcp, peer) else { return Ok(false) };
            let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
            let mut framed = Vec::with_capacity(answer.len() + 2);
            framed.extend_from_slice(&length.to_be_bytes());
            framed.extend_from_slice(&answer);
            stream.write_all(&framed).await?;
            Ok(true)
        };
        match tokio::time::timeout(limit, exchange).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Ok(()),
        }
    }
}
