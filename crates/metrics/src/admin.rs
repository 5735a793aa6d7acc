//! Admin HTTP: `/metrics`, `/healthz`, `/readyz`, and profiles.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

use crate::exposition::Exposition;
use crate::profile::{self, Order, ProfileError};
use process::Failure;
use subtle::ConstantTimeEq;

/// Most connections at a time; further ones wait in the kernel's queue.
const CONNECTIONS: usize = 64;
/// Longest time without received data before a connection is closed.
pub const IDLE: Duration = Duration::from_secs(15);
/// Longest age of a connection.
const LIFETIME: Duration = Duration::from_secs(600);

/// The source of the answers.
pub trait Source: Send + Sync + 'static {
    /// Returns the metrics.
    fn metrics(&self) -> Exposition;
    /// Returns Ok if the process works; the reason if not.
    fn alive(&self) -> Result<(), String>;
    /// Returns Ok if clients can be served; the reason if not.
    fn ready(&self) -> Result<(), String>;
    /// Returns the token that gives access to profiles; without one there are none.
    fn profiler_token(&self) -> Option<&str> {
        None
    }
}

/// The HTTP server; dropping it ends the server.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    socket: OwnedFd,
    task: tokio::task::JoinHandle<()>,
}

impl Admin {
    /// Binds an address, or takes the socket that another process handed over for it, and serves.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn start<S: Source>(address: &str, inherited: Option<OwnedFd>, source: Arc<S>) -> Result<Admin, Failure> {
        let listener = process::listen(inherited, address).await.map_err(|error| {
            Failure::environment(format!("cannot listen on {address} for metrics: {error}"))
                .advise("choose another address: metrics.listen in the configuration, --metrics-listen for `up`")
        })?;
        Admin::serve(listener, source, IDLE)
    }

    /// Serves on a bound socket; a connection silent for `idle` is closed.
    ///
    /// # Errors
    /// The socket has no address.
    pub fn serve<S: Source>(listener: TcpListener, source: Arc<S>, idle: Duration) -> Result<Admin, Failure> {
        let address = listener
            .local_addr()
            .map_err(|error| Failure::runtime(format!("cannot read the address of the metrics socket: {error}")))?;
        let socket = listener.as_fd().try_clone_to_owned();
        let socket = socket.map_err(|error| Failure::runtime(format!("cannot keep the metrics socket: {error}")))?;
        let router = Router::new()
            .route("/metrics", get(metrics::<S>))
            .route("/healthz", get(healthz::<S>))
            .route("/readyz", get(readyz::<S>))
            .route("/debug/pprof/profile", get(profiled::<S>))
            .with_state(source);
        let limited = Limited { listener, idle, permits: Arc::new(Semaphore::new(CONNECTIONS)) };
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(limited, router).await {
                tracing::error!(%error, "admin HTTP ended");
            }
        });
        Ok(Admin { address, socket, task })
    }

    /// Duplicates the socket, for another process.
    ///
    /// # Errors
    /// The limit of descriptors is reached.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// Returns the bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn metrics<S: Source>(State(source): State<Arc<S>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], source.metrics().render()).into_response()
}

async fn healthz<S: Source>(State(source): State<Arc<S>>) -> Response {
    answer(source.alive())
}

async fn readyz<S: Source>(State(source): State<Arc<S>>) -> Response {
    answer(source.ready())
}

async fn profiled<S: Source>(State(source): State<Arc<S>>, request: Request) -> Response {
    let Some(token) = source.profiler_token() else {
        return (StatusCode::NOT_FOUND, "metrics.profiler_token is not set\n").into_response();
    };
    let shown = request.headers().get(header::AUTHORIZATION).map(axum::http::HeaderValue::as_bytes);
    let shown = shown.and_then(|shown| shown.strip_prefix(b"Bearer ")).unwrap_or_default();
    if !bool::from(shown.ct_eq(token.as_bytes())) {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, challenge, "expected: Authorization: Bearer <metrics.profiler_token>\n")
            .into_response();
    }
    let failed = |error: ProfileError| {
        let status = match error {
            ProfileError::Order(_) => StatusCode::BAD_REQUEST,
            ProfileError::Busy => StatusCode::TOO_MANY_REQUESTS,
            ProfileError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, format!("{error}\n")).into_response()
    };
    let order = match Order::parse(request.uri().query().unwrap_or_default()) {
        Ok(order) => order,
        Err(error) => return failed(error),
    };
    match profile::take(order).await {
        Ok(bytes) => ([(header::CONTENT_TYPE, order.form.content_type())], bytes).into_response(),
        Err(error) => failed(error),
    }
}

fn answer(state: Result<(), String>) -> Response {
    match state {
        Ok(()) => (StatusCode::OK, "ok\n").into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

/// A listener with limits on connections, and on their age and silence.
struct Limited {
    listener: TcpListener,
    idle: Duration,
    permits: Arc<Semaphore>,
}

impl Listener for Limited {
    type Io = Bounded;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Bounded, SocketAddr) {
        loop {
            let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
            match self.listener.accept().await {
                Ok((stream, address)) => return (Bounded::new(stream, permit, self.idle), address),
                Err(error) => {
                    // Out of descriptors, or the peer is gone: either way only time helps.
                    tracing::warn!(%error, "admin HTTP cannot accept");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that times out.
struct Bounded {
    stream: TcpStream,
    idle: Duration,
    end: Instant,
    timer: Pin<Box<Sleep>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Bounded {
    fn new(stream: TcpStream, permit: Option<OwnedSemaphorePermit>, idle: Duration) -> Bounded {
        let now = Instant::now();
        Bounded {
            stream,
            idle,
            end: now + LIFETIME,
            timer: Box::pin(tokio::time::sleep_until(now + idle)),
            _permit: permit,
        }
    }

    fn late(&mut self, cx: &mut Context<'_>) -> bool {
        if profile::is_running() && Instant::now() < self.end && self.timer.as_mut().poll(cx).is_ready() {
            // A client that waits for a profile receives nothing meanwhile.
            self.moved();
        }
        self.timer.as_mut().poll(cx).is_ready()
    }

    fn moved(&mut self) {
        let end = self.end.min(Instant::now() + self.idle);
        self.timer.as_mut().reset(end);
    }
}

impl AsyncRead for Bounded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if polled.is_ready() {
            self.moved();
        } else if self.late(cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buffer);
        if polled.is_pending() && self.late(cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    struct Fake {
        ready: Result<(), String>,
    }

    impl Source for Fake {
        fn metrics(&self) -> Exposition {
            let mut exposition = Exposition::default();
            exposition.gauge("clients", "Clients.", 1_u64);
            exposition
        }

        fn alive(&self) -> Result<(), String> {
            Ok(())
        }

        fn ready(&self) -> Result<(), String> {
            self.ready.clone()
        }
    }

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn answers() {
        let unready = Err("no primary".to_owned());
        let admin = Admin::start("127.0.0.1:0", None, Arc::new(Fake { ready: unready })).await.unwrap();
        for (request, status, body) in [
            (
                "GET /metrics",
                "200",
                "# HELP kingpost_clients Clients.\n# TYPE kingpost_clients gauge\nkingpost_clients 1\n",
            ),
            ("GET /healthz", "200", "ok\n"),
            ("GET /readyz", "503", "no primary\n"),
            ("GET /other", "404", ""),
            ("POST /metrics", "405", ""),
        ] {
            let text = format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            let answer = ask(admin.address(), &text).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
            assert!(answer.ends_with(&format!("\r\n\r\n{body}")), "{request}: {answer}");
        }
    }

    #[tokio::test]
    async fn a_silent_connection_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let admin = Admin::serve(listener, Arc::new(Fake { ready: Ok(()) }), Duration::from_millis(20)).unwrap();
        assert!(ask(admin.address(), "GET /metr").await.is_empty());
    }

    #[tokio::test]
    async fn a_taken_address_is_named() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let failure = Admin::start(&address, None, Arc::new(Fake { ready: Ok(()) })).await.unwrap_err();
        assert!(failure.to_string().contains(&address), "{failure}");
    }
}
