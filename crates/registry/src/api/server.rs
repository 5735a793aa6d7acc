//! Listening, connections and their limits; from bytes to a whole [`Request`], and from a [`Reply`](super::reply::Reply) to bytes. What a request
//! means is the fronts' affair.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Sleep;

use super::error::ApiError;
use super::reply::Body;
use super::request::Request;
use super::{Context, Front};

/// Pause after an accept that failed: out of descriptors, where only time helps.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Most headers of a request.
const MOST_HEADERS: usize = 64;
/// hyper takes no smaller buffer.
const LEAST_HEADER_BYTES: usize = 8192;

/// One address and what is served there.
#[derive(Debug)]
pub struct Mount {
    /// A socket that listens.
    pub listener: TcpListener,
    /// What is served there.
    pub fronts: Vec<Front>,
}

/// The running HTTP side. Dropping it closes the listeners and cuts the connections' tasks loose; [`Server::shutdown`] waits.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    connections: Arc<Semaphore>,
    most: u32,
    acceptors: Vec<tokio::task::JoinHandle<()>>,
}

/// What all connections share.
struct Shared {
    context: Arc<Context>,
    /// Connections by address, loopback left out.
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

impl Server {
    /// Serves on sockets that listen already.
    pub fn start(mounts: Vec<Mount>, context: Context) -> Server {
        let (stop, stopping) = watch::channel(false);
        let most = u32::try_from(context.limits.connections).unwrap_or(u32::MAX).min(Semaphore::MAX_PERMITS as u32);
        let connections = Arc::new(Semaphore::new(most as usize));
        let context = Arc::new(Context { stopping: stopping.clone(), ..context });
        let shared = Arc::new(Shared { context, by_address: Mutex::default() });
        let acceptors = mounts
            .into_iter()
            .map(|mount| {
                let (shared, connections, stopping) = (Arc::clone(&shared), Arc::clone(&connections), stopping.clone());
                tokio::spawn(accept(mount.listener, mount.fronts.into(), shared, connections, stopping))
            })
            .collect();
        Server { stop, connections, most, acceptors }
    }

    /// Stops accepting, answers what waits, and lets requests under way end until `grace` is over.
    pub async fn shutdown(self, grace: Duration) {
        let _ = self.stop.send(true);
        for acceptor in &self.acceptors {
            acceptor.abort();
        }
        if tokio::time::timeout(grace, self.connections.acquire_many(self.most)).await.is_err() {
            tracing::warn!(?grace, "connections to the registry were cut");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for acceptor in &self.acceptors {
            acceptor.abort();
        }
    }
}

async fn accept(
    listener: TcpListener,
    fronts: Arc<[Front]>,
    shared: Arc<Shared>,
    connections: Arc<Semaphore>,
    stopping: watch::Receiver<bool>,
) {
    loop {
        // Never closed.
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "the registry cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let stats = &shared.context.stats;
        stats.accepted.fetch_add(1, Ordering::Relaxed);
        let Some(counted) = Counted::new(&shared, peer.ip()) else {
            stats.turned_away.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (shared, fronts, stopping) = (Arc::clone(&shared), Arc::clone(&fronts), stopping.clone());
        tokio::spawn(async move {
            serve(stream, peer, fronts, &shared, stopping).await;
            drop((permit, counted));
        });
    }
}

/// One connection in the count of its address.
struct Counted {
    shared: Arc<Shared>,
    /// None for loopback, which is not counted.
    address: Option<IpAddr>,
}

impl Counted {
    fn new(shared: &Arc<Shared>, address: IpAddr) -> Option<Counted> {
        if address.is_loopback() {
            return Some(Counted { shared: Arc::clone(shared), address: None });
        }
        let mut by_address = shared.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let count = by_address.entry(address).or_default();
        if *count >= shared.context.limits.connections_per_address {
            return None;
        }
        *count += 1;
        Some(Counted { shared: Arc::clone(shared), address: Some(address) })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let Some(address) = self.address else { return };
        let mut by_address = self.shared.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&address);
            }
        }
    }
}

async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    fronts: Arc<[Front]>,
    shared: &Shared,
    mut stopping: watch::Receiver<bool>,
) {
    let context = &shared.context;
    let limits = &context.limits;
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (context, fronts) = (Arc::clone(context), Arc::clone(&fronts));
        async move { Ok::<_, Infallible>(answer(request, peer.ip(), &fronts, &context).await) }
    });
    let io = TokioIo::new(Patient::new(stream, limits.write_timeout));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_headers(MOST_HEADERS)
        .max_buf_size(limits.header_bytes.max(LEAST_HEADER_BYTES))
        .serve_connection(io, service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&mut stopping) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // The client's doing: garbage, too slow, gone. The counters say how often.
        tracing::debug!(%peer, %error, "a connection to the registry ended early");
    }
}

/// Returns when the server stops. What the wait returns must not live across a later await: it holds a lock.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

async fn answer(
    request: hyper::Request<Incoming>,
    peer: IpAddr,
    fronts: &[Front],
    context: &Arc<Context>,
) -> hyper::Response<Body> {
    let began = Instant::now();
    let path = request.uri().path();
    let front = Front::of_path(path).filter(|front| fronts.contains(front));
    // Where nothing is served the first front of the address says so in its own form.
    let speaker = front.or_else(|| fronts.first().copied()).unwrap_or(Front::Native);
    let result = match front {
        Some(front) => match read(request, peer, context).await {
            Ok(request) => front.handle(context, request).await,
            Err(error) => Err(error),
        },
        None => Err(ApiError::NoSuchPath(path.chars().take(200).collect())),
    };
    let reply = result.unwrap_or_else(|error| {
        if error == ApiError::Unauthorized {
            context.stats.unauthorized.fetch_add(1, Ordering::Relaxed);
        }
        let cut = matches!(error, ApiError::TooLarge { .. } | ApiError::BodyTimeout { .. });
        let reply = speaker.show(&error).with_error_headers(&error);
        // What is left of the body is not read.
        if cut { reply.header(hyper::header::CONNECTION, "close") } else { reply }
    });
    context.stats.fronts[speaker as usize].record(reply.status().as_u16(), began.elapsed(), reply.waited);
    reply.into_response()
}

/// Reads the body, within its limits.
async fn read(request: hyper::Request<Incoming>, peer: IpAddr, context: &Context) -> Result<Request, ApiError> {
    let limits = &context.limits;
    let too_large =
        || ApiError::TooLarge { what: "the body", limit: "registry.body_bytes", value: limits.body_bytes as u64 };
    let (parts, body) = request.into_parts();
    let mut request = Request::new(parts.method, &parts.uri, parts.headers, bytes::Bytes::new(), peer)?;
    // Of somebody unknown no body is taken into memory: what may be asked without a token needs none, the rest is refused.
    if context.auth.identify(&request).is_err() {
        return Ok(request);
    }
    let announced =
        request.headers.get(hyper::header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > limits.body_bytes as u64) {
        return Err(too_large());
    }
    let collected = tokio::time::timeout(limits.body_timeout, Limited::new(body, limits.body_bytes).collect()).await;
    request.body = match collected {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large()),
        Ok(Err(error)) => return Err(ApiError::bad(format!("the body broke off: {error}"))),
        Err(_) => {
            let value = limits.body_timeout.as_millis() as u64;
            return Err(ApiError::BodyTimeout { limit: "registry.body_timeout", value });
        }
    };
    Ok(request)
}

/// A stream whose peer must take something now and then.
struct Patient {
    stream: TcpStream,
    limit: Duration,
    /// Runs while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn new(stream: TcpStream, limit: Duration) -> Patient {
        Patient { stream, limit, timer: None }
    }

    fn check<T>(&mut self, cx: &mut TaskContext<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.timer = None;
            return polled;
        }
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        if timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl AsyncRead for Patient {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.check(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.check(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
