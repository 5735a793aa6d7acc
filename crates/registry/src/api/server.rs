//! Listeners, connections and their limits; reads bytes into a whole [`Request`], and writes a [`Reply`](super::reply::Reply) as bytes. The fronts
//! interpret the request.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as TaskContext, Poll, ready};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::{Buf, Bytes, BytesMut};
use http_body_util::{BodyExt, Either, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Sleep;
use tokio_rustls::{TlsAcceptor, rustls};

use super::complaint::Complaint;
use super::error::ApiError;
use super::grpc::{self, Services};
use super::reply::Body;
use super::request::Request;
use super::{Context, Front, dispatch, nacos};

/// Pause after a failed accept: without free file descriptors, only time helps.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Minimum interval of log messages about rejected connections.
const COMPLAIN: Duration = Duration::from_secs(60);
/// Maximum number of headers of a request.
const MOST_HEADERS: usize = 64;
/// Smallest buffer that hyper accepts.
const LEAST_HEADER_BYTES: usize = 8192;
/// Connection preface of HTTP/2.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum number of concurrent requests on an HTTP/2 connection, including streams.
const STREAMS: u32 = 256;
/// Maximum number of response bytes that an HTTP/2 connection buffers while its client does not read.
const UNSENT: usize = 256 << 10;
/// Idle time after which an HTTP/2 client is sent a ping, and the time it has to answer.
const ASK_AFTER: Duration = Duration::from_secs(30);
const ASKED: Duration = Duration::from_secs(20);
/// Time that an HTTP/2 connection has to end its streams when it is closed.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A listener address and the fronts served there.
#[derive(Debug)]
pub struct Mount {
    /// The listening socket.
    pub listener: TcpListener,
    /// The fronts served there.
    pub fronts: Vec<Front>,
    /// TLS of the address; `None` without TLS.
    pub tls: Option<Arc<Tls>>,
}

/// TLS on an address. The first byte of a connection tells whether the client uses TLS.
#[derive(Debug)]
pub struct Tls {
    /// True if clients without TLS are rejected.
    pub required: bool,
    /// Certificate and rules; replaceable for later connections. Its ALPN should offer `h2` and `http/1.1`.
    pub config: ArcSwap<rustls::ServerConfig>,
}

/// Maximum time of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The first byte of a TLS connection: the record type of the handshake.
const TLS_RECORD: u8 = 0x16;

/// The running HTTP side. Dropping it closes the listeners and detaches the connections' tasks; [`Server::shutdown`] waits for them.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    connections: Arc<Semaphore>,
    most: u32,
    acceptors: Vec<tokio::task::JoinHandle<()>>,
}

/// State shared by all connections.
struct Shared {
    context: Arc<Context>,
    grpc: Services,
    /// Number of connections by address, except loopback.
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

impl Server {
    /// Starts serving on listening sockets.
    pub fn start(mounts: Vec<Mount>, context: Context) -> Server {
        let (stop, stopping) = watch::channel(false);
        let most = u32::try_from(context.limits.connections).unwrap_or(u32::MAX).min(Semaphore::MAX_PERMITS as u32);
        let connections = Arc::new(Semaphore::new(most as usize));
        let context = Arc::new(Context { stopping: stopping.clone(), ..context });
        let grpc = Services::new(&context);
        let shared = Arc::new(Shared { context, grpc, by_address: Mutex::default() });
        let acceptors = mounts
            .into_iter()
            .map(|mount| {
                let (shared, connections, stopping) = (Arc::clone(&shared), Arc::clone(&connections), stopping.clone());
                let mounted = Mounted { fronts: mount.fronts.into(), tls: mount.tls };
                tokio::spawn(accept(mount.listener, mounted, shared, connections, stopping))
            })
            .collect();
        Server { stop, connections, most, acceptors }
    }

    /// Stops accepting, answers waiting requests, and lets running requests end until `grace` has elapsed.
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

/// The fronts and the TLS of an address.
#[derive(Clone)]
struct Mounted {
    fronts: Arc<[Front]>,
    tls: Option<Arc<Tls>>,
}

async fn accept(
    listener: TcpListener,
    mounted: Mounted,
    shared: Arc<Shared>,
    connections: Arc<Semaphore>,
    stopping: watch::Receiver<bool>,
) {
    let complaint = Complaint::every(COMPLAIN);
    let complain = |error: &dyn std::fmt::Display| {
        if complaint.is_due() {
            tracing::warn!("the registry takes no further connection: {error}; said once a minute at most");
        }
    };
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                complain(&error);
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let stats = &shared.context.stats;
        stats.accepted.fetch_add(1, Ordering::Relaxed);
        // Closed at once: a client left in the kernel's queue would not try another node.
        let Ok(permit) = Arc::clone(&connections).try_acquire_owned() else {
            stats.turned_away.fetch_add(1, Ordering::Relaxed);
            complain(&format_args!("there are registry.connections = {}", shared.context.limits.connections));
            continue;
        };
        let Some(counted) = Counted::new(&shared, peer.ip()) else {
            stats.turned_away.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        let _ = stream.set_nodelay(true);
        let (shared, mounted, stopping) = (Arc::clone(&shared), mounted.clone(), stopping.clone());
        tokio::spawn(async move {
            if let Err(error) = enter(stream, peer, mounted, shared, stopping).await {
                // Caused by the client: garbage, a timeout, a disconnect. Counters record how often.
                tracing::debug!(%peer, %error, "a connection to the registry ended early");
            }
            drop((permit, counted));
        });
    }
}

/// A connection counted for its address.
struct Counted {
    shared: Arc<Shared>,
    /// Address of the client; `None` for loopback, which is not counted.
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

type Ended = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Serves a connection, through TLS if the client uses it.
async fn enter(
    stream: TcpStream,
    peer: SocketAddr,
    mounted: Mounted,
    shared: Arc<Shared>,
    mut stopping: watch::Receiver<bool>,
) -> Ended {
    let Some(tls) = mounted.tls else { return serve(stream, peer, mounted.fronts, shared, stopping).await };
    let mut first = [0];
    let limit = shared.context.limits.header_timeout;
    let peeked = tokio::select! {
        peeked = tokio::time::timeout(limit, stream.peek(&mut first)) => peeked??,
        () = stopped(&mut stopping) => return Ok(()),
    };
    let insecure = || shared.context.stats.insecure.fetch_add(1, Ordering::Relaxed);
    if peeked == 0 {
        return Ok(());
    }
    if first[0] != TLS_RECORD {
        if tls.required {
            insecure();
            return Err("a client without TLS, which registry.tls requires".into());
        }
        return serve(stream, peer, mounted.fronts, shared, stopping).await;
    }
    let acceptor = TlsAcceptor::from(tls.config.load_full());
    match tokio::time::timeout(limit.min(HANDSHAKE), acceptor.accept(stream)).await {
        Ok(Ok(stream)) => serve(stream, peer, mounted.fronts, shared, stopping).await,
        Ok(Err(error)) => {
            insecure();
            Err(error.into())
        }
        Err(_) => {
            insecure();
            Err("the handshake of TLS took too long".into())
        }
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    mut stream: S,
    peer: SocketAddr,
    fronts: Arc<[Front]>,
    shared: Arc<Shared>,
    mut stopping: watch::Receiver<bool>,
) -> Ended {
    let limits = shared.context.limits.clone();
    let begun = tokio::select! {
        begun = tokio::time::timeout(limits.header_timeout, beginning(&mut stream)) => begun??,
        () = stopped(&mut stopping) => return Ok(()),
    };
    let is_http2 = begun == HTTP2;
    // An HTTP/2 stream is refused alone: the connection stays open.
    let unread = Arc::new(AtomicBool::new(false));
    let linger = (!is_http2).then(|| Arc::clone(&unread));
    let io = TokioIo::new(WriteTimeout::new(stream, begun, limits.write_timeout, linger));
    // Closed with the connection, which ends the client's registrations over it.
    let opened = match is_http2 && fronts.contains(&Front::Nacos) {
        true => Some(nacos::Opened::new(&shared.context, peer.ip())?),
        false => None,
    };
    let over = opened.as_ref().map(|opened| Arc::clone(&opened.connection));
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        let (shared, fronts, unread) = (Arc::clone(&shared), Arc::clone(&fronts), Arc::clone(&unread));
        if let Some(opened) = &opened {
            request.extensions_mut().insert(Arc::clone(&opened.connection));
        }
        async move { Ok::<_, Infallible>(dispatch(request, peer.ip(), &fronts, &shared, &unread).await) }
    });
    if is_http2 {
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(ASK_AFTER)
            .keep_alive_timeout(ASKED)
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
            .max_send_buf_size(UNSENT)
            .serve_connection(io, service);
        let mut connection = std::pin::pin!(connection);
        let over = async {
            match over {
                Some(over) => over.over().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = connection.as_mut() => ended?,
            () = over => {
                // Sends the last messages, if the client reads them.
                connection.as_mut().graceful_shutdown();
                let _ = tokio::time::timeout(LAST_WORDS, connection).await;
            }
            () = stopped(&mut stopping) => {
                connection.as_mut().graceful_shutdown();
                connection.await?;
            }
        }
        return Ok(());
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_headers(MOST_HEADERS)
        .max_buf_size(limits.header_bytes.max(LEAST_HEADER_BYTES))
        .serve_connection(io, service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => ended?,
        () = stopped(&mut stopping) => {
            connection.as_mut().graceful_shutdown();
            connection.await?;
        }
    }
    Ok(())
}

/// Reads until it is clear whether the client speaks HTTP/2. Returns all of [`HTTP2`], or the bytes received so far.
async fn beginning(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
    let mut begun = BytesMut::with_capacity(HTTP2.len());
    while begun.len() < HTTP2.len() && HTTP2.starts_with(&begun) {
        let room = HTTP2.len() - begun.len();
        if (&mut *stream).take(room as u64).read_buf(&mut begun).await? == 0 {
            break;
        }
    }
    Ok(begun.freeze())
}

/// Returns when the server stops. The value of the wait must not live across a later await: it holds a lock.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// Passes a request to the gRPC services, or to a front.
async fn dispatch(
    request: hyper::Request<Incoming>,
    peer: IpAddr,
    fronts: &[Front],
    shared: &Shared,
    unread: &AtomicBool,
) -> hyper::Response<Either<Body, tonic::body::Body>> {
    if request.version() != hyper::Version::HTTP_2 || !grpc::is_grpc(request.headers()) {
        return answer(request, peer, fronts, &shared.context, unread).await.map(Either::Left);
    }
    let began = Instant::now();
    let (front, response) = shared.grpc.answer(request, peer, fronts).await;
    // The outcome of a started response is only known at its end; here it counts as answered.
    let status = match tonic::Status::from_header_map(response.headers()).map(|status| status.code()) {
        None | Some(tonic::Code::Ok) => 200,
        Some(tonic::Code::Internal | tonic::Code::Unknown | tonic::Code::Unavailable) => 500,
        Some(_) => 400,
    };
    shared.context.stats.fronts[front as usize].record(status, began.elapsed(), false);
    response.map(Either::Right)
}

async fn answer(
    request: hyper::Request<Incoming>,
    peer: IpAddr,
    fronts: &[Front],
    context: &Arc<Context>,
    unread: &AtomicBool,
) -> hyper::Response<Body> {
    let began = Instant::now();
    // HTTP/2 ends the stream alone.
    let is_http1 = request.version() < hyper::Version::HTTP_2;
    // True until the whole body has been read.
    unread.store(!request.body().is_end_stream(), Ordering::Relaxed);
    let path = request.uri().path();
    let front = dispatch::of_path(path).filter(|front| fronts.contains(front));
    // For a path that is not served, the first front of the address encodes the error.
    let speaker = front.or_else(|| fronts.first().copied()).unwrap_or(Front::Native);
    let result = match (front, context.meant(request.uri(), request.headers())) {
        (_, Err(error)) => Err(error),
        (Some(front), _) => match read(request, peer, context, unread).await {
            Ok(request) => dispatch::handle(front, context, request).await,
            Err(error) => Err(error),
        },
        (None, _) => Err(ApiError::NoSuchPath(path.chars().take(200).collect())),
    };
    let reply = result.unwrap_or_else(|error| {
        context.refused(&error);
        dispatch::show(speaker, &error).with_error_headers(&error)
    });
    // The rest of the body is not read: without this header the client would send its next request into a closed connection.
    let cut = is_http1 && unread.load(Ordering::Relaxed);
    let reply = if cut { reply.header(hyper::header::CONNECTION, "close") } else { reply };
    context.stats.fronts[speaker as usize].record(reply.status().as_u16(), began.elapsed(), reply.waited);
    reply.into_response()
}

/// Reads the body, within its limits.
async fn read(
    request: hyper::Request<Incoming>,
    peer: IpAddr,
    context: &Context,
    unread: &AtomicBool,
) -> Result<Request, ApiError> {
    let limits = &context.limits;
    let (parts, body) = request.into_parts();
    let mut request = Request::new(parts.method, &parts.uri, parts.headers, bytes::Bytes::new(), peer)?;
    let caller = context.identify(&request);
    context.admit(caller.as_ref().ok(), peer)?;
    // An unidentified caller's body is not read, except for a login: other requests without a token need none or are rejected.
    let (most, limit) = match caller {
        Ok(caller) if caller.is_trusted() => (limits.body_bytes, "registry.body_bytes"),
        // The anonymous token: a bootstrap, or a write that it may do.
        Ok(_) => (ANONYMOUS_BYTES.min(limits.body_bytes), "the limit of requests without a token"),
        Err(_) if nacos::is_login(&request.path()) => (LOGIN_BYTES.min(limits.body_bytes), "registry.body_bytes"),
        Err(_) if nacos::has_password_in_form(&request) => {
            (FORM_BYTES.min(limits.body_bytes), "the limit of forms with a password")
        }
        Err(_) => return Ok(request),
    };
    let too_large = || ApiError::TooLarge { what: "the body", limit, value: most as u64 };
    let announced =
        request.headers.get(hyper::header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > most as u64) {
        return Err(too_large());
    }
    let collected = tokio::time::timeout(limits.body_timeout, Limited::new(body, most).collect()).await;
    request.body = match collected {
        Ok(Ok(collected)) => {
            unread.store(false, Ordering::Relaxed);
            collected.to_bytes()
        }
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large()),
        Ok(Err(error)) => return Err(ApiError::bad(format!("the body broke off: {error}"))),
        Err(_) => {
            let value = limits.body_timeout.as_millis() as u64;
            return Err(ApiError::BodyTimeout { limit: "registry.body_timeout", value });
        }
    };
    Ok(request)
}

/// Maximum length of a body from a caller without a token, where tokens of the store are in use and the default is to deny.
const ANONYMOUS_BYTES: usize = 64 << 10;
/// Maximum length of a login's body from an unidentified caller.
const LOGIN_BYTES: usize = 4096;
/// Maximum length of a form that has the password with which it is authenticated.
const FORM_BYTES: usize = 256 << 10;

/// Limits of bytes and time for discarding the rest of a body that was not read before the response. Closing a socket with unread bytes resets the
/// connection at once, and the client loses a response that it has not yet read.
const LINGER_BYTES: usize = 64 << 20;
const LINGER: Duration = Duration::from_secs(5);

/// A stream whose peer must read within the write timeout, and which is closed so that the peer receives the last response.
struct WriteTimeout<S> {
    stream: S,
    /// Bytes already read from the stream.
    begun: Bytes,
    limit: Duration,
    /// Timer that runs while a write is blocked.
    timer: Option<Pin<Box<Sleep>>>,
    /// Set if a part of the last request is unread; `None` if nobody checks.
    unread: Option<Arc<AtomicBool>>,
    closing: Closing,
}

/// Progress of closing a connection.
enum Closing {
    /// Not begun, or our side is not yet closed.
    Open,
    /// Our side is closed; further input is discarded, up to `left` bytes and until `until`.
    Lingers {
        left: usize,
        until: Pin<Box<Sleep>>,
    },
    Closed,
}

impl<S> WriteTimeout<S> {
    fn new(stream: S, begun: Bytes, limit: Duration, unread: Option<Arc<AtomicBool>>) -> WriteTimeout<S> {
        WriteTimeout { stream, begun, limit, timer: None, unread, closing: Closing::Open }
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

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.begun.has_remaining() {
            let length = self.begun.len().min(buffer.remaining());
            buffer.put_slice(&self.begun.split_to(length));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
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
        let this = &mut *self;
        loop {
            match &mut this.closing {
                Closing::Open => {
                    ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
                    let unread = this.unread.as_ref().is_some_and(|unread| unread.load(Ordering::Relaxed));
                    this.closing = match unread {
                        true => Closing::Lingers { left: LINGER_BYTES, until: Box::pin(tokio::time::sleep(LINGER)) },
                        false => Closing::Closed,
                    };
                }
                Closing::Lingers { left, until } => {
                    if until.as_mut().poll(cx).is_ready() {
                        this.closing = Closing::Closed;
                        continue;
                    }
                    let mut dropped = [0; 16 << 10];
                    let mut buffer = ReadBuf::new(&mut dropped);
                    let read = ready!(Pin::new(&mut this.stream).poll_read(cx, &mut buffer));
                    match buffer.filled().len() {
                        came if read.is_ok() && came > 0 && *left > came => *left -= came,
                        _ => this.closing = Closing::Closed,
                    }
                }
                Closing::Closed => return Poll::Ready(Ok(())),
            }
        }
    }
}
