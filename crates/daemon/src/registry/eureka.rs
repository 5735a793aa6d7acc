//! Requests to Eureka's own servers: a task each, which asks the registry what to send.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::registry::{EurekaConfig, EurekaServerConfig};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request};
use process::Failure;
use process::http::exchange;
use registry::api::{EurekaServers, ServerAnswer, ServerStep};
use registry::{NamespaceName, Registry};
use secret::Source;
use tokio::task::JoinSet;

/// Longest time of a request, its answer included.
const LIMIT: Duration = Duration::from_secs(30);
/// Most bytes of an answer: the list of all instances is the longest.
const LARGEST: usize = 256 << 20;
/// Wait of a driver for which nothing is due.
const IDLE: Duration = Duration::from_secs(3600);

/// Replication with Eureka's own servers, until it is dropped.
pub(super) struct Replication {
    /// The servers and what they have still to be told.
    pub(super) servers: Arc<EurekaServers>,
    _drivers: JoinSet<()>,
}

impl Replication {
    /// Starts the drivers; None without servers.
    ///
    /// # Errors
    /// A file for TLS cannot be used.
    pub(super) fn start(config: &EurekaConfig, registry: &Registry) -> Result<Option<Replication>, Failure> {
        if config.servers.is_empty() {
            return Ok(None);
        }
        let namespace = NamespaceName::new(&config.namespace)
            .map_err(|error| Failure::config(format!("registry.eureka.namespace: {error}")))?;
        let links = config.servers.iter().map(Link::new).collect::<Result<Vec<Link>, Failure>>()?;
        let names = config.servers.iter().map(|server| server.url.clone()).collect();
        let servers = Arc::new(EurekaServers::new(registry.clone(), namespace, names));
        let mut drivers = JoinSet::new();
        for (number, link) in links.into_iter().enumerate() {
            drivers.spawn(drive(Arc::clone(&servers), number, link));
        }
        Ok(Some(Replication { servers, _drivers: drivers }))
    }
}

async fn drive(servers: Arc<EurekaServers>, number: usize, mut link: Link) {
    loop {
        let answer = match servers.next(number, Instant::now()) {
            ServerStep::Wait(limit) => {
                tokio::select! {
                    // A wait with a limit is for that time, whatever comes meanwhile.
                    () = servers.told(number), if limit.is_none() => {}
                    () = tokio::time::sleep(limit.unwrap_or(IDLE)) => {}
                }
                continue;
            }
            ServerStep::Get(path) => link.ask(Method::GET, path, String::new()).await,
            ServerStep::Post(path, body) => link.ask(Method::POST, path, body).await,
        };
        servers.answered(number, answer).await;
    }
}

/// A server's address, and the way to reach it.
struct Link {
    /// `host:port`.
    address: String,
    path: String,
    tls: Option<tls::Target>,
    user: String,
    password: Option<PathBuf>,
    /// Content of `Authorization`; read again after a failure.
    login: Option<HeaderValue>,
}

impl Link {
    fn new(server: &EurekaServerConfig) -> Result<Link, Failure> {
        let wrong = |why: String| Failure::config(format!("registry.eureka.servers: {why}"));
        let (is_secure, address, path) = server.place().ok_or_else(|| wrong("a url is none".into()))?;
        let tls = if is_secure {
            let config = tls::ConnectConfig {
                mode: tls::ConnectMode::VerifyFull,
                ca_file: Some(server.ca_file.clone().unwrap_or_else(|| tls::system_authorities().to_owned())),
                ..tls::ConnectConfig::default()
            };
            let connector = tls::Connector::new(&config).map_err(|error| wrong(format!("ca_file: {error}")))?;
            let host = process::address::host(address);
            let target = connector.and_then(|connector| tls::Target::new(Arc::new(connector), host));
            Some(target.ok_or_else(|| wrong(format!("{host:?} is no name that a certificate can be for")))?)
        } else {
            None
        };
        Ok(Link {
            address: address.to_owned(),
            path: path.to_owned(),
            tls,
            user: server.user.clone().unwrap_or_default(),
            password: server.password_file.clone(),
            login: None,
        })
    }

    /// Sends a request; returns the answer, or the reason why there is none.
    async fn ask(&mut self, method: Method, path: &str, body: String) -> ServerAnswer {
        let answer = match tokio::time::timeout(LIMIT, self.exchange(method, path, body)).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no answer within {} s", LIMIT.as_secs())),
        };
        if !matches!(answer, Ok((200..=299, _))) {
            // The password may have been changed.
            self.login = None;
        }
        answer
    }

    async fn exchange(&mut self, method: Method, path: &str, body: String) -> ServerAnswer {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}/{path}", self.path))
            .header(HOST, &self.address)
            .header(ACCEPT, "application/json");
        if let Some(login) = self.login().await? {
            request = request.header(AUTHORIZATION, login);
        }
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| error.to_string())?;
        let response =
            exchange(&self.address, self.tls.as_ref(), request).await.map_err(|broken| broken.to_string())?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), LARGEST).collect().await.map_err(|error| error.to_string())?;
        Ok((status, body.to_bytes().to_vec()))
    }

    /// Returns the content of `Authorization`; None without a password.
    async fn login(&mut self) -> Result<Option<HeaderValue>, String> {
        let (None, Some(file)) = (&self.login, &self.password) else { return Ok(self.login.clone()) };
        let source = Source::File(file.clone());
        let read = tokio::task::spawn_blocking(move || source.read(Duration::ZERO)).await;
        let password = read.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let mut login = HeaderValue::from_str(&registry::basic_login(&self.user, password.expose()))
            .map_err(|error| error.to_string())?;
        login.set_sensitive(true);
        self.login = Some(login);
        Ok(self.login.clone())
    }
}
