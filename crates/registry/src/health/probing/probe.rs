//! Active probes: a single request to a target, and the evaluation of results in a row.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::http::{self, MOST_REQUESTS, Url};
use super::reach::Reach;
use super::resolver::{Looked, Resolver};
use super::secure::Secure;
use super::{grpc, h2ping, mysql};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::Instant;

use crate::model::{CheckKind, Health, Instance, InstanceId, NamespaceName, Pace, ProbeRequest, ProbeTls};

/// Interval at which the health of an alias is compared with that of its instance.
const ALIAS: Duration = Duration::from_secs(1);

/// A probe of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// The target, `host:port`.
    target: String,
    timeout: Duration,
    kind: Kind,
    /// TLS parameters; `None`: the connection is in clear.
    tls: Option<ProbeTls>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Tcp,
    Udp {
        message: String,
    },
    Http {
        url: Url,
        options: HttpOptions,
    },
    Postgres,
    Mysql,
    Redis,
    Grpc {
        service: String,
    },
    H2ping,
    /// The health of another instance. There is no target.
    Alias {
        instance: InstanceId,
    },
}

/// Parameters of an HTTP check, which also apply after a redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HttpOptions {
    tls: Option<ProbeTls>,
    no_redirects: bool,
    request: ProbeRequest,
}

/// The result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) health: Health,
    /// True if the target's machine refused the connection: it is up, and nothing listens. Unlike silence, that is no fault of this node or of the
    /// network, so no brake keeps the instance.
    pub(crate) refused: bool,
}

/// The outcome of a request.
enum Answer {
    Found(Found),
    /// The request that the target refers to.
    Redirect(Box<Question>),
}

impl From<Health> for Found {
    fn from(health: Health) -> Found {
        Found { health, refused: false }
    }
}

/// Results so far: N equal ones in a row change the health.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    /// Failures in a row.
    pub(crate) failed: u8,
    /// Other results in a row.
    answered: u8,
}

impl Row {
    /// True if the last result was no failure.
    pub(crate) fn has_answered(self) -> bool {
        self.failed == 0 && self.answered > 0
    }

    /// Adds a result, `found`, and returns the new health of an instance with the health `current`.
    pub(crate) fn after(&mut self, found: Health, current: Health, pace: &Pace) -> Health {
        if found == Health::Critical {
            self.failed = self.failed.saturating_add(1);
            self.answered = 0;
            if self.failed >= pace.fall { Health::Critical } else { current }
        } else {
            self.answered = self.answered.saturating_add(1);
            self.failed = 0;
            if current != Health::Critical || self.answered >= pace.rise { found } else { current }
        }
    }
}

impl Question {
    /// Returns the probe of an instance's check; `None` if the instance reports by itself.
    pub(crate) fn of(instance: &Instance) -> Option<(Question, Pace)> {
        let own = || match instance.host.contains(':') {
            true => format!("[{}]:{}", instance.host, instance.port),
            false => format!("{}:{}", instance.host, instance.port),
        };
        let mut tls = None;
        let (target, kind, pace) = match &instance.check.as_ref()?.kind {
            CheckKind::Ttl { .. } | CheckKind::Reported | CheckKind::Several { .. } => return None,
            CheckKind::Alias { instance: other, .. } => {
                let other = InstanceId::new(&NamespaceName::of(&instance.service), other).ok()?;
                let kind = Kind::Alias { instance: other };
                let pace = Pace { interval: ALIAS, fall: 1, rise: 1, ..Pace::default() };
                return Some((Question { target: String::new(), timeout: pace.timeout, kind, tls }, pace));
            }
            CheckKind::Tcp { target, tls: how, pace } => {
                tls.clone_from(how);
                (target.clone().unwrap_or_else(own), Kind::Tcp, pace)
            }
            CheckKind::H2ping { target, tls: how, pace } => {
                tls.clone_from(how);
                (target.clone().unwrap_or_else(own), Kind::H2ping, pace)
            }
            CheckKind::Udp { target, message, pace } => {
                (target.clone().unwrap_or_else(own), Kind::Udp { message: message.clone() }, pace)
            }
            CheckKind::Postgres { target, pace } => (target.clone().unwrap_or_else(own), Kind::Postgres, pace),
            CheckKind::Mysql { target, pace } => (target.clone().unwrap_or_else(own), Kind::Mysql, pace),
            CheckKind::Redis { target, pace } => (target.clone().unwrap_or_else(own), Kind::Redis, pace),
            CheckKind::Grpc { target, service, tls: how, pace } => {
                tls.clone_from(how);
                (target.clone().unwrap_or_else(own), Kind::Grpc { service: service.clone() }, pace)
            }
            CheckKind::Http { url, tls, no_redirects, request, pace } => {
                let request = request.as_deref().cloned().unwrap_or_default();
                let options = HttpOptions { tls: tls.clone(), no_redirects: *no_redirects, request };
                return Some((Question::http(Url::of(url, own), options, pace.timeout), pace.clone()));
            }
        };
        Some((Question { target, timeout: pace.timeout, kind, tls }, pace.clone()))
    }

    /// Returns the result of an alias, from the health of the other instance; `None` for a probe.
    pub(super) fn of_alias(&self, health: impl FnOnce(&InstanceId) -> Option<Health>) -> Option<Found> {
        let Kind::Alias { instance } = &self.kind else { return None };
        let health = health(instance).unwrap_or(Health::Critical);
        // No fault of this node or of the network: no brake keeps the instance.
        Some(Found { health, refused: health == Health::Critical })
    }

    fn http(url: Url, options: HttpOptions, timeout: Duration) -> Question {
        let tls = url.secure.then(|| options.tls.clone().unwrap_or_default());
        Question { target: url.target(), timeout, kind: Kind::Http { url, options }, tls }
    }

    /// Makes the probe, on behalf of an instance of `namespace`, and follows redirects. Any error and any timeout is critical. `None`: not probed,
    /// since a name could not be looked up now.
    pub(crate) async fn ask(
        &self,
        namespace: &str,
        resolver: &Resolver,
        reach: &Reach,
        secure: &Secure,
    ) -> Option<Found> {
        let mut next = match self.ask_once(namespace, resolver, reach, secure).await? {
            Answer::Found(found) => return Some(found),
            Answer::Redirect(next) => next,
        };
        for _ in 1..MOST_REQUESTS {
            next = match next.ask_once(namespace, resolver, reach, secure).await? {
                // Only a refusal by the instance's own target shows that nothing listens there.
                Answer::Found(found) => return Some(found.health.into()),
                Answer::Redirect(next) => next,
            };
        }
        tracing::debug!(target = self.target, "probe: more than {MOST_REQUESTS} requests, by redirects");
        Some(Health::Critical.into())
    }

    /// Makes a single request. The time limit begins when the address is known.
    async fn ask_once(&self, namespace: &str, resolver: &Resolver, reach: &Reach, secure: &Secure) -> Option<Answer> {
        let critical = || Some(Answer::Found(Health::Critical.into()));
        let addresses = match resolver.resolve(namespace, &self.target).await {
            Looked::Addresses(addresses) => addresses,
            Looked::Failed => {
                tracing::debug!(target = self.target, "probe: the name has no address");
                return critical();
            }
            Looked::Later => return None,
        };
        let may: Vec<SocketAddr> = addresses.into_iter().filter(|address| reach.may(*address, is_here)).collect();
        if may.is_empty() {
            tracing::debug!(
                target = self.target,
                "probe: registry.health.probe_deny has the address, or the registry itself listens there"
            );
            return critical();
        }
        match tokio::time::timeout(self.timeout, self.answer(&may, secure)).await {
            Ok(Ok(answer)) => Some(answer),
            Ok(Err(error)) => {
                tracing::debug!(target = self.target, "probe: {error}");
                critical()
            }
            Err(_) => critical(),
        }
    }

    async fn answer(&self, addresses: &[SocketAddr], secure: &Secure) -> std::io::Result<Answer> {
        if let Kind::Udp { message } = &self.kind {
            return udp(addresses, message).await;
        }
        let began = Instant::now();
        match TcpStream::connect(addresses).await {
            Ok(stream) => match &self.tls {
                None => self.talk(stream, began).await,
                Some(tls) => {
                    let protocol: &[u8] = match self.kind {
                        Kind::Grpc { .. } | Kind::H2ping => b"h2",
                        Kind::Http { .. } => b"http/1.1",
                        _ => b"",
                    };
                    let stream = secure.connect(stream, tls, &self.target, protocol).await?;
                    self.talk(stream, began).await
                }
            },
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                Ok(Answer::Found(Found { health: Health::Critical, refused: true }))
            }
            Err(error) => Err(error),
        }
    }

    /// Speaks the protocol over a connection that was `began` to be made.
    async fn talk(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        began: Instant,
    ) -> std::io::Result<Answer> {
        let health = match &self.kind {
            // A connection is all that is asked; a datagram and an alias have none.
            Kind::Tcp | Kind::Udp { .. } | Kind::Alias { .. } => Ok(Health::Passing),
            Kind::H2ping => h2ping::ask(stream).await,
            Kind::Http { url, options } => match url.ask(&options.request, &mut stream).await? {
                http::Answer::Health(health) => Ok(health),
                http::Answer::Redirect { .. } if options.no_redirects => Ok(Health::Critical),
                http::Answer::Redirect { to, same_method } => {
                    let mut options = options.clone();
                    url.redirected(&to, same_method, &mut options.request);
                    let left = self.timeout.saturating_sub(began.elapsed());
                    return Ok(Answer::Redirect(Box::new(Question::http(to, options, left))));
                }
            },
            Kind::Postgres => {
                // The same as `pg_isready`: with a user that need not exist. Nobody logs in.
                let mut startup = Vec::new();
                wire::message::startup(&mut startup, &[("user", "kingpost")]);
                stream.write_all(&startup).await?;
                Ok(postgres_health(&read_until(&mut stream, whole_message).await?))
            }
            Kind::Mysql => mysql::ask(&mut stream).await,
            Kind::Redis => {
                stream.write_all(b"PING\r\n").await?;
                Ok(redis_health(&read_until(&mut stream, |bytes| bytes.contains(&b'\n')).await?))
            }
            Kind::Grpc { service } => grpc::ask(stream, self.tls.is_some(), &self.target, service).await,
        };
        health.map(|health| Answer::Found(health.into()))
    }
}

/// Sends a datagram to the first address that can be sent to, and waits for any answer.
async fn udp(addresses: &[SocketAddr], message: &str) -> std::io::Result<Answer> {
    let mut failed = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        let own = if address.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
        let sent = async {
            let socket = UdpSocket::bind((own, 0)).await?;
            // Connected, so that only this address is heard, and that a refusal is.
            socket.connect(address).await?;
            socket.send(message.as_bytes()).await?;
            Ok(socket)
        };
        match sent.await {
            Ok(socket) => {
                return match socket.recv(&mut [0; ANSWER]).await {
                    Ok(_) => Ok(Answer::Found(Health::Passing.into())),
                    Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                        Ok(Answer::Found(Found { health: Health::Critical, refused: true }))
                    }
                    Err(error) => Err(error),
                };
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// True if an address belongs to this machine, so that a socket can be bound to it. Sends nothing.
fn is_here(address: IpAddr) -> bool {
    address.is_loopback() || std::net::UdpSocket::bind((address, 0)).is_ok()
}

/// Maximum number of bytes read of an answer.
const ANSWER: usize = 512;

/// Reads until `enough` is true, or up to [`ANSWER`] bytes, or to the end.
pub(super) async fn read_until(
    stream: &mut (impl AsyncRead + Unpin),
    enough: impl Fn(&[u8]) -> bool,
) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(ANSWER);
    let mut limited = stream.take(ANSWER as u64);
    while !enough(&bytes) && limited.read_buf(&mut bytes).await? > 0 {}
    Ok(bytes)
}

/// True if the bytes contain a complete PostgreSQL message: a byte, and a length that counts itself.
fn whole_message(bytes: &[u8]) -> bool {
    bytes
        .get(1..5)
        .and_then(|length| length.try_into().ok())
        .is_some_and(|length| bytes.len() > u32::from_be_bytes(length) as usize)
}

/// Returns the health for a server's first message. An authentication request: the server accepts connections. An error: it does too (no such user,
/// no entry in its access list), unless it is starting up, shutting down or recovering (SQLSTATE 57P..), or has no connection left (53300: alive, but
/// of no use: a warning).
fn postgres_health(message: &[u8]) -> Health {
    match message.split_first() {
        Some((b'R', rest)) if rest.len() >= 8 => Health::Passing,
        Some((b'E', rest)) if rest.len() > 4 => {
            let state = rest[4..].split(|b| *b == 0).find_map(|field| field.strip_prefix(b"C"));
            match state {
                Some(state) if state.starts_with(b"57P") => Health::Critical,
                Some(b"53300") => Health::Warning,
                Some(_) => Health::Passing,
                None => Health::Critical,
            }
        }
        _ => Health::Critical,
    }
}

/// Returns the health for a reply to `PING`: a request for a password, or for another user, is passing. A server that is still loading is critical.
fn redis_health(reply: &[u8]) -> Health {
    let is = |start: &[u8]| reply.starts_with(start);
    if is(b"+PONG") || is(b"-NOAUTH") || is(b"-NOPERM") || is(b"-WRONGPASS") {
        Health::Passing
    } else if is(b"-ERR max number of clients") || is(b"-MASTERDOWN") || is(b"-DENIED") {
        Health::Warning
    } else {
        Health::Critical
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::model::{Check, InstanceId, Registration, ServiceKey};

    #[test]
    fn postgres_answers() {
        for (message, health) in [
            (&b"R\0\0\0\x08\0\0\0\x05"[..], Health::Passing),
            (b"E\0\0\0\x20SFATAL\0C28000\0Mno entry\0\0", Health::Passing),
            (b"E\0\0\0\x20SFATAL\0C57P03\0Mstarting up\0\0", Health::Critical),
            (b"E\0\0\0\x20SFATAL\0C53300\0Mtoo many\0\0", Health::Warning),
            (b"E\0\0\0\x20", Health::Critical),
            (b"R", Health::Critical),
            (b"HTTP/1.1 400 Bad", Health::Critical),
            (b"", Health::Critical),
        ] {
            assert_eq!(postgres_health(message), health, "{:?}", String::from_utf8_lossy(message));
        }
    }

    #[test]
    fn redis_answers() {
        for (reply, health) in [
            ("+PONG\r\n", Health::Passing),
            ("-NOAUTH Authentication required.\r\n", Health::Passing),
            ("-LOADING Redis is loading the dataset in memory\r\n", Health::Critical),
            ("-ERR max number of clients reached\r\n", Health::Warning),
            ("-ERR unknown\r\n", Health::Critical),
            ("HTTP/1.1 400 Bad Request\r\n", Health::Critical),
            ("", Health::Critical),
        ] {
            assert_eq!(redis_health(reply.as_bytes()), health, "{reply:?}");
        }
    }

    #[test]
    fn it_takes_several_to_change_the_verdict() {
        use Health::{Critical as C, Passing as P, Warning as W};
        let pace = Pace { fall: 3, rise: 2, ..Pace::default() };
        for (answers, verdicts) in [
            (vec![P, C, C, P], vec![P, P, P, P]),
            (vec![C, C, C, C], vec![P, P, C, C]),
            (vec![C, C, C, P, C, P, P], vec![P, P, C, C, C, C, P]),
            (vec![W, P], vec![W, P]),
        ] {
            let (mut row, mut health, mut found) = (Row::default(), P, Vec::new());
            for answer in &answers {
                health = row.after(*answer, health, &pace);
                found.push(health);
            }
            assert_eq!(found, verdicts, "{answers:?}");
        }
    }

    fn instance(host: &str, port: u16, kind: CheckKind) -> Instance {
        let id = InstanceId::parse("default/i").unwrap();
        let mut registration = Registration::new(id, ServiceKey::parse("default/s").unwrap(), host, port);
        registration.check = Some(Check { kind, deregister_after: None });
        Instance::registered(registration, None)
    }

    /// Answers requests: `/N` refers to `/N-1`, `/0` is good; `/secret` is good for `user:pw` only; `/to/URL` refers to the URL.
    async fn respond(stream: &mut TcpStream) -> std::io::Result<()> {
        let request = read_until(stream, |bytes| bytes.ends_with(b"\r\n\r\n")).await?;
        let request = String::from_utf8_lossy(&request);
        let path = request.split(' ').nth(1).unwrap_or_default();
        let answer = match (path, path.trim_start_matches('/').parse::<u32>(), path.strip_prefix("/to/")) {
            (_, Ok(0), _) | ("/?x=1", ..) => "200 OK".to_owned(),
            (_, Ok(n), _) => format!("302 Found\r\nLocation: {}", n - 1),
            (.., Some(url)) => format!("307 Temporary Redirect\r\nLocation: {url}"),
            ("/secret", ..) if request.contains("Authorization: Basic dXNlcjpwdw==\r\n") => "204 No Content".to_owned(),
            _ => "401 Unauthorized".to_owned(),
        };
        stream.write_all(format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n").as_bytes()).await
    }

    #[tokio::test]
    async fn redirects_are_followed_and_passwords_sent() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let forbidden = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let (at, own) = (server.local_addr().unwrap(), forbidden.local_addr().unwrap());
        let serving = tokio::spawn(async move {
            loop {
                let (mut stream, _) = server.accept().await.unwrap();
                let _ = respond(&mut stream).await;
            }
        });
        let reach = Reach::new(&[], &[]).without([own]);
        let (resolver, secure) = (Resolver::default(), Secure::new(None).unwrap());
        let (good, bad) = (Health::Passing.into(), Health::Critical.into());
        for (url, expected) in [
            (format!("http://{at}?x=1"), good),
            (format!("http://{at}/9"), good),
            (format!("http://{at}/10"), bad),
            ("/3".into(), good),
            (format!("http://user:pw@{at}/secret"), good),
            (format!("http://user:wrong@{at}/secret"), bad),
            (format!("http://{at}/secret"), bad),
            (format!("http://user:pw@{at}/to//secret"), good),
            // A redirect to a whole URL does not take the password along.
            (format!("http://user:pw@{at}/to/http://{at}/secret"), bad),
            (format!("http://{at}/to/http://user:pw@{at}/secret"), good),
            // Each address is judged by the rules for probes.
            (format!("http://{at}/to/http://{own}/0"), bad),
            (format!("http://{closed}/"), Found { refused: true, ..bad }),
            (format!("http://{at}/to/http://{closed}/"), bad),
        ] {
            let pace = Pace { timeout: Duration::from_secs(30), ..Pace::default() };
            let ask = async |no_redirects| {
                let kind =
                    CheckKind::Http { url: url.clone(), tls: None, no_redirects, request: None, pace: pace.clone() };
                let question = Question::of(&instance("127.0.0.1", at.port(), kind)).unwrap().0;
                assert!(!format!("{question:?}").contains("pw"), "{question:?}");
                question.ask("default", &resolver, &reach, &secure).await.unwrap()
            };
            assert_eq!(ask(false).await, expected, "{url}");
            let redirected = url.contains("/to/") || url.ends_with(['3', '9']);
            assert_eq!(ask(true).await, if redirected { bad } else { expected }, "{url} without redirects");
        }
        let connected = tokio::time::timeout(Duration::ZERO, forbidden.accept()).await;
        assert!(connected.is_err(), "an address that must not be probed was connected to");
        serving.abort();
    }

    #[tokio::test]
    async fn a_datagram_is_answered_refused_or_lost() {
        let open = |named: bool| {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            (socket.local_addr().unwrap(), named.then(|| UdpSocket::from_std(socket).unwrap()))
        };
        let ((answers, answering), (silent, _silence), (gone, _)) = (open(true), open(true), open(false));
        let answering = answering.unwrap();
        let server = tokio::spawn(async move {
            let mut bytes = [0; 16];
            let (length, from) = answering.recv_from(&mut bytes).await.unwrap();
            answering.send_to(b"", from).await.unwrap();
            bytes[..length].to_vec()
        });
        let (resolver, reach, secure) = (Resolver::default(), Reach::default(), Secure::new(None).unwrap());
        let ask = async |at: SocketAddr, timeout: Duration| {
            let pace = Pace { timeout, ..Pace::default() };
            let kind = CheckKind::Udp { target: None, message: "ping".into(), pace };
            let question = Question::of(&instance("127.0.0.1", at.port(), kind)).unwrap().0;
            question.ask("default", &resolver, &reach, &secure).await.unwrap()
        };
        let (long, short) = (Duration::from_secs(30), Duration::from_millis(10));
        assert_eq!(ask(answers, long).await, Health::Passing.into());
        assert_eq!(server.await.unwrap(), b"ping");
        assert_eq!(ask(gone, long).await, Found { health: Health::Critical, refused: true });
        assert_eq!(ask(silent, short).await, Health::Critical.into());
    }

    #[test]
    fn whom_to_ask() {
        let pace = Pace::default();
        for (host, kind, target) in [
            ("h", CheckKind::Tcp { target: None, tls: None, pace: pace.clone() }, "h:7"),
            ("::1", CheckKind::Tcp { target: None, tls: None, pace: pace.clone() }, "[::1]:7"),
            ("h", CheckKind::Tcp { target: Some("g:9".into()), tls: None, pace: pace.clone() }, "g:9"),
            (
                "h",
                CheckKind::Http {
                    url: "/up".into(),
                    tls: None,
                    no_redirects: false,
                    request: None,
                    pace: pace.clone(),
                },
                "h:7",
            ),
            (
                "h",
                CheckKind::Http {
                    url: "http://g/up".into(),
                    tls: None,
                    no_redirects: false,
                    request: None,
                    pace: pace.clone(),
                },
                "g:80",
            ),
            (
                "h",
                CheckKind::Http {
                    url: "http://g:8".into(),
                    tls: None,
                    no_redirects: false,
                    request: None,
                    pace: pace.clone(),
                },
                "g:8",
            ),
            (
                "h",
                CheckKind::Http {
                    url: "http://u:p@g:8?x=1".into(),
                    tls: None,
                    no_redirects: false,
                    request: None,
                    pace: pace.clone(),
                },
                "g:8",
            ),
            (
                "h",
                CheckKind::Http {
                    url: "https://g/up".into(),
                    tls: None,
                    no_redirects: false,
                    request: None,
                    pace: pace.clone(),
                },
                "g:443",
            ),
        ] {
            assert_eq!(Question::of(&instance(host, 7, kind)).unwrap().0.target, target);
        }
    }
}
