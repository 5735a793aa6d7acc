//! HTTP: connections and their limits, who may what, and from a request to an answer.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Sleep;

use crate::auth::{Auth, Denied, Role, Session};
use crate::board::Cursor;
use crate::config::{ConfigError, ConsoleConfig};
use crate::guard::{Guard, Site};
use crate::hub::{Hub, Wake};
use crate::hubs::Hubs;
use crate::parts::{Action, Parts, Refusal};
use crate::search::Search;
use crate::{assets, stream};

/// Most connections at a time, beyond those of viewers; further ones wait in the kernel's queue.
const CONNECTIONS: usize = 128;
/// Longest wait for a request on a connection.
const HEADERS: Duration = Duration::from_secs(20);
/// Longest time in which a browser takes nothing of what is sent to it.
const STALLED: Duration = Duration::from_secs(20);
/// Longest body, and longest wait for it.
const BODY_BYTES: usize = 8 << 10;
const BODY: Duration = Duration::from_secs(5);
/// Longest wait for what a part has to say.
const ANSWER: Duration = Duration::from_secs(15);
/// Time between two looks at which clusters there are.
const FOLLOW: Duration = Duration::from_secs(1);
/// Rows of a list.
const ROWS: usize = 200;
/// Pause after an accept that failed: out of descriptors, where only time helps.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Nothing but our own files; nobody may frame the page, and no script may make markup of a text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Why there is no console.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is taken, or is none.
    #[error("cannot listen on {address} for the console: {source}")]
    Listen {
        /// As configured.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The configuration is no good.
    #[error("console.{key}: {0}", key = .0.key)]
    Config(#[from] ConfigError),
}

/// A running console; it ends with this value.
#[derive(Debug)]
pub struct Console {
    address: SocketAddr,
    wake: Wake,
    socket: OwnedFd,
    stop: watch::Sender<bool>,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

/// What connections share.
struct Shared {
    hubs: Hubs,
    /// Places for viewers, of whichever cluster.
    places: Arc<Semaphore>,
    auth: Auth,
    guard: Guard,
    /// The port is in it, for browsers do not keep the cookies of a host's ports apart.
    cookie: String,
    stopping: watch::Receiver<bool>,
}

/// A request without its body.
struct Asked<'a> {
    headers: &'a HeaderMap,
    query: Vec<(String, String)>,
    peer: IpAddr,
    session: Option<Session>,
}

/// What is not answered, and how that is said.
enum Failed {
    Status(StatusCode, String),
    RetryAfter(u64),
}

impl Console {
    /// Listens as configured and serves, on the current tokio runtime.
    ///
    /// # Errors
    /// The configuration is no good, or the address cannot be listened on.
    pub async fn start(config: &ConsoleConfig, parts: Parts) -> Result<Console, StartError> {
        let listen = |source| StartError::Listen { address: config.listen.clone(), source };
        let listener = TcpListener::bind(&config.listen).await.map_err(listen)?;
        Console::serve(listener, config, parts)
    }

    /// As [`Console::start`], on a socket that listens already.
    ///
    /// # Errors
    /// Likewise.
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

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its listening socket once more, for another process.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// For whoever knows that there is something new.
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

/// Has hubs follow the clusters when nobody asks for one: a cluster's curves begin with the cluster.
async fn follow(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(FOLLOW).await;
        shared.hubs.follow();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, connections: Arc<Semaphore>) {
    loop {
        // Never closed.
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
        .serve_connection(TokioIo::new(Patient { stream, timer: None }), service);
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        ended = serving.as_mut() => {
            if let Err(error) = ended {
                // The browser's doing: gone, too slow, garbage.
                tracing::debug!(%peer, %error, "a connection to the console ended early");
            }
        }
        stopped = stopping.wait_for(|stop| *stop) => drop(stopped),
    }
}

async fn answer(request: Request<Incoming>, peer: IpAddr, shared: &Arc<Shared>) -> Response<Body> {
    let mut response = match route(request, peer, shared).await {
        Ok(response) => response,
        Err(Failed::Status(status, why)) => json_of(status, &json!({ "error": why })),
        Err(Failed::RetryAfter(seconds)) => {
            let why = format!("too many wrong tokens from your address: try again in {seconds} s");
            let mut response = json_of(StatusCode::TOO_MANY_REQUESTS, &json!({ "error": why }));
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
            response
        }
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

async fn route(request: Request<Incoming>, peer: IpAddr, shared: &Arc<Shared>) -> Result<Response<Body>, Failed> {
    let (parts, body) = request.into_parts();
    let header = |name: &HeaderName| parts.headers.get(name).and_then(|value| value.to_str().ok());
    if !shared.guard.host(header(&header::HOST)) {
        let why = "this name is not the console's: use its address, localhost, or set console.public_url";
        return Err(Failed::Status(StatusCode::MISDIRECTED_REQUEST, why.into()));
    }
    let path = parts.uri.path();
    if let (&Method::GET | &Method::HEAD, Some(asset)) = (&parts.method, assets::at(path)) {
        return Ok(file(asset, &parts.headers));
    }
    let asked = Asked {
        headers: &parts.headers,
        query: pairs(parts.uri.query().unwrap_or_default()),
        peer,
        session: shared.auth.session(cookie(&parts.headers, &shared.cookie), Instant::now()),
    };
    match (&parts.method, path) {
        (&Method::GET, "/api/session") => Ok(json_of(StatusCode::OK, &who(shared, asked.session.as_ref()))),
        (&Method::GET, path) if path.starts_with("/api/") => {
            if !shared.auth.may(asked.session.as_ref(), Role::Viewer) {
                return Err(Failed::Status(StatusCode::UNAUTHORIZED, "sign in to look".into()));
            }
            look(path, &asked, shared).await
        }
        (&Method::POST, "/api/login" | "/api/logout" | "/api/act") => {
            let (host, origin) = (header(&header::HOST), header(&header::ORIGIN));
            if !shared.guard.origin(host, origin, header(&HeaderName::from_static("sec-fetch-site"))) {
                return Err(Failed::Status(StatusCode::FORBIDDEN, "only the console's own page may do that".into()));
            }
            let json = header(&header::CONTENT_TYPE).is_some_and(|value| value.starts_with("application/json"));
            if !json {
                return Err(Failed::Status(StatusCode::UNSUPPORTED_MEDIA_TYPE, "expected application/json".into()));
            }
            if path == "/api/act" {
                let session =
                    asked.session.as_ref().filter(|_| shared.auth.may(asked.session.as_ref(), Role::Operator));
                let session = session.ok_or_else(|| {
                    let status = if asked.session.is_some() { StatusCode::FORBIDDEN } else { StatusCode::UNAUTHORIZED };
                    Failed::Status(status, "sign in with an operator's token to act".into())
                })?;
                return act(read(body).await?, session, &hub_of(&asked, shared)?, shared.hubs.wake()).await;
            }
            let body = read(body).await?;
            if path == "/api/login" { login(&body, &asked, shared) } else { Ok(logout(&asked, shared)) }
        }
        _ if path.starts_with("/api/") => Err(Failed::Status(StatusCode::NOT_FOUND, "there is nothing here".into())),
        _ => Err(Failed::Status(StatusCode::NOT_FOUND, "there is no such page".into())),
    }
}

// === Looking ===

async fn look(path: &str, asked: &Asked<'_>, shared: &Arc<Shared>) -> Result<Response<Body>, Failed> {
    let hub = hub_of(asked, shared)?;
    let value = |name: &str| asked.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    let registry = || hub.parts.registry.clone().ok_or_else(|| not_here("registry"));
    match path {
        "/api/events" => watch_events(asked, shared, &hub),
        "/api/state" => {
            let text = hub.boards.borrow().news(&mut Cursor::default());
            Ok(with_type(StatusCode::OK, "application/json", text.into()))
        }
        "/api/history" => {
            let after = value("after").and_then(|text| text.parse().ok()).unwrap_or(0);
            let history = hub.history.lock().unwrap_or_else(PoisonError::into_inner);
            let text = history.after(&value("span").unwrap_or_default(), after);
            let text = text.ok_or_else(|| Failed::Status(StatusCode::NOT_FOUND, "no such span: hour, day".into()))?;
            Ok(with_type(StatusCode::OK, "application/json", text.into()))
        }
        "/api/statements" => {
            let proxy = hub.parts.proxy.clone().ok_or_else(|| not_here("proxy"))?;
            blocking(move || Some(proxy.statements(ROWS)), "").await
        }
        "/api/services" => {
            let registry = registry()?;
            let search = Search::parse(value("namespace").as_deref(), &value("q").unwrap_or_default());
            blocking(move || Some(registry.find(&search, ROWS)), "").await
        }
        "/api/instances" => {
            let (registry, service) = (registry()?, value("service").unwrap_or_default());
            blocking(move || registry.instances(&service, ROWS), "no such service").await
        }
        "/api/instance" => {
            let (registry, id) = (registry()?, value("id").unwrap_or_default());
            blocking(move || registry.instance(&id), "no such instance").await
        }
        "/api/clients" => {
            let proxy = hub.parts.proxy.clone().ok_or_else(|| not_here("proxy"))?;
            blocking(move || Some(proxy.clients(ROWS)), "").await
        }
        _ => Err(Failed::Status(StatusCode::NOT_FOUND, "there is nothing here".into())),
    }
}

/// The hub of the cluster that a request is for.
fn hub_of(asked: &Asked<'_>, shared: &Shared) -> Result<Arc<Hub>, Failed> {
    let name = asked.query.iter().find(|(key, _)| key == "cluster").map(|(_, value)| value.as_str());
    shared.hubs.of(name).ok_or_else(|| {
        Failed::Status(StatusCode::NOT_FOUND, format!("no such cluster: {:?}", name.unwrap_or_default()))
    })
}

fn not_here(part: &str) -> Failed {
    Failed::Status(StatusCode::NOT_FOUND, format!("no {part} runs in this process"))
}

/// What may scan a large registry, or wait for workers, away from the threads that everything else is on.
async fn blocking<T: Serialize + Send + 'static>(
    ask: impl FnOnce() -> Option<T> + Send + 'static,
    missing: &str,
) -> Result<Response<Body>, Failed> {
    let asked = tokio::task::spawn_blocking(move || ask().map(|value| serde_json::to_vec(&value)));
    match tokio::time::timeout(ANSWER, asked).await {
        Ok(Ok(Some(Ok(text)))) => Ok(with_type(StatusCode::OK, "application/json", text.into())),
        Ok(Ok(None)) => Err(Failed::Status(StatusCode::NOT_FOUND, missing.to_owned())),
        Ok(_) => Err(Failed::Status(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be made".into())),
        Err(_) => Err(Failed::Status(StatusCode::GATEWAY_TIMEOUT, "no answer in time".into())),
    }
}

fn watch_events(asked: &Asked<'_>, shared: &Arc<Shared>, hub: &Hub) -> Result<Response<Body>, Failed> {
    let place = Arc::clone(&shared.places).try_acquire_owned().map_err(|_| {
        Failed::Status(StatusCode::SERVICE_UNAVAILABLE, "too many pages are open: console.viewers limits them".into())
    })?;
    // The first picture is soon followed by one with the pools, for which nobody asked before.
    shared.hubs.wake().wake();
    let cookie = cookie(asked.headers, &shared.cookie).map(str::to_owned);
    let guard = Arc::clone(shared);
    let allowed = move || {
        let session = guard.auth.session(cookie.as_deref(), Instant::now());
        guard.auth.may(session.as_ref(), Role::Viewer)
    };
    let events = stream::events(hub.boards.clone(), shared.stopping.clone(), Box::new(allowed), place);
    let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(events)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // For reverse proxies that would wait until they have more.
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

// === Who ===

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    token: String,
}

fn who(shared: &Shared, session: Option<&Session>) -> serde_json::Value {
    json!({
        "name": session.map(|session| session.name.as_str()),
        "may_view": shared.auth.may(session, Role::Viewer),
        "may_act": shared.auth.may(session, Role::Operator),
        "can_sign_in": shared.auth.has_tokens(),
    })
}

fn login(body: &[u8], asked: &Asked<'_>, shared: &Shared) -> Result<Response<Body>, Failed> {
    let login: Login = parse(body)?;
    match shared.auth.login(login.token.trim(), asked.peer, Instant::now()) {
        Ok((cookie, session)) => {
            tracing::info!(token = session.name, peer = %asked.peer, "signed in to the console");
            let mut response = json_of(StatusCode::OK, &who(shared, Some(&session)));
            set_cookie(&mut response, shared, &cookie, 12 * 3600);
            Ok(response)
        }
        Err(Denied::Wrong) => {
            tracing::warn!(peer = %asked.peer, "a wrong token for the console");
            Err(Failed::Status(StatusCode::UNAUTHORIZED, "there is no such token".into()))
        }
        Err(Denied::TooMany(seconds)) => Err(Failed::RetryAfter(seconds)),
        Err(Denied::NoRandom) => {
            Err(Failed::Status(StatusCode::SERVICE_UNAVAILABLE, "the system has no random numbers".into()))
        }
    }
}

fn logout(asked: &Asked<'_>, shared: &Shared) -> Response<Body> {
    if let Some(cookie) = cookie(asked.headers, &shared.cookie) {
        shared.auth.logout(cookie);
    }
    let mut response = json_of(StatusCode::OK, &who(shared, None));
    set_cookie(&mut response, shared, "", 0);
    response
}

fn set_cookie(response: &mut Response<Body>, shared: &Shared, value: &str, seconds: u32) {
    let secure = if shared.guard.secure() { "; Secure" } else { "" };
    let text = format!("{}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}", shared.cookie);
    if let Ok(value) = HeaderValue::from_str(&text) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

// === Acting ===

async fn act(body: Bytes, session: &Session, hub: &Arc<Hub>, wake: &Wake) -> Result<Response<Body>, Failed> {
    let action: Action = parse(&body)?;
    let what = action.describe();
    let cluster = hub.parts.cluster.as_ref().filter(|_| !action.is_of_the_registry()).map(|part| part.look().name);
    // A task of its own: what was begun goes on when the browser leaves.
    let doing = {
        let hub = Arc::clone(hub);
        tokio::spawn(async move {
            let parts = &hub.parts;
            match (action.is_of_the_registry(), &parts.registry, &parts.proxy) {
                (true, Some(registry), _) => registry.act(&action).await,
                (true, None, _) => Err(Refusal::NotHere("no registry runs in it")),
                (false, _, Some(proxy)) => {
                    let proxy = Arc::clone(proxy);
                    let done = tokio::task::spawn_blocking(move || proxy.act(&action)).await;
                    done.unwrap_or_else(|error| Err(Refusal::Refused(error.to_string())))
                }
                (false, _, None) => Err(Refusal::NotHere("no proxy runs in it")),
            }
        })
    };
    let done = match tokio::time::timeout(ANSWER, doing).await {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => Err(Refusal::Refused(error.to_string())),
        Err(_) => {
            tracing::warn!(token = session.name, cluster, action = what, "an action in the console takes long");
            let why = "not done yet: it goes on, look whether it happens".to_owned();
            return Err(Failed::Status(StatusCode::GATEWAY_TIMEOUT, why));
        }
    };
    wake.wake();
    match done {
        Ok(said) => {
            tracing::info!(token = session.name, cluster, action = what, "an action in the console");
            Ok(json_of(StatusCode::OK, &json!({ "done": said })))
        }
        Err(refusal) => {
            tracing::info!(token = session.name, cluster, action = what, %refusal, "an action in the console was refused");
            let status = match refusal {
                Refusal::NotHere(_) | Refusal::NotFound(_) => StatusCode::NOT_FOUND,
                Refusal::Refused(_) => StatusCode::CONFLICT,
            };
            Err(Failed::Status(status, refusal.to_string()))
        }
    }
}

async fn read(body: Incoming) -> Result<Bytes, Failed> {
    match tokio::time::timeout(BODY, Limited::new(body, BODY_BYTES).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(_)) => Err(Failed::Status(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body has more than {BODY_BYTES} bytes, or broke off"),
        )),
        Err(_) => Err(Failed::Status(StatusCode::REQUEST_TIMEOUT, "the body did not come".into())),
    }
}

fn parse<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, Failed> {
    // What serde says quotes names of fields, and never a token: that is a value.
    serde_json::from_slice(body).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        Failed::Status(StatusCode::BAD_REQUEST, format!("the body is not what was expected, at {line}:{column}"))
    })
}

// === Forms ===

fn file(asset: &'static assets::Asset, headers: &HeaderMap) -> Response<Body> {
    let has = |name: HeaderName, wanted: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).is_some_and(|value| value.contains(wanted))
    };
    let mut response = if has(header::IF_NONE_MATCH, &asset.tag) {
        with_type(StatusCode::NOT_MODIFIED, asset.content_type, Bytes::new())
    } else if has(header::ACCEPT_ENCODING, "gzip") {
        let mut response = with_type(StatusCode::OK, asset.content_type, asset.gzip.clone());
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        response
    } else {
        with_type(StatusCode::OK, asset.content_type, asset.plain.clone())
    };
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(&asset.tag) {
        headers.insert(header::ETAG, tag);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    response
}

fn json_of(status: StatusCode, value: &serde_json::Value) -> Response<Body> {
    with_type(status, "application/json", value.to_string().into())
}

fn with_type(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(body).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// The pairs of a query, decoded.
fn pairs(query: &str) -> Vec<(String, String)> {
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .take(16)
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key), decode(value))
        })
        .collect()
}

/// A stream whose peer must take something now and then.
struct Patient {
    stream: TcpStream,
    /// Runs while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn check<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.timer = None;
            return polled;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(STALLED)));
        if timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl AsyncRead for Patient {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buffer);
        self.check(cx, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
