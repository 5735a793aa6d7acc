//! Active probes: a single request to a target, and the evaluation of results in a row.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::reach::Reach;
use super::resolver::{Looked, Resolver};
use super::secure::Secure;
use super::{grpc, mysql};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::model::{CheckKind, Health, Instance, Pace, ProbeTls};

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
    Http { path: String },
    Postgres,
    Mysql,
    Redis,
    Grpc { service: String },
}

/// The result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) health: Health,
    /// True if the target's machine refused the connection: it is up, and nothing listens. Unlike silence, that is no fault of this node or of the
    /// network, so no brake keeps the instance.
    pub(crate) refused: bool,
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
            CheckKind::Tcp { target, pace } => (target.clone().unwrap_or_else(own), Kind::Tcp, pace),
            CheckKind::Postgres { target, pace } => (target.clone().unwrap_or_else(own), Kind::Postgres, pace),
            CheckKind::Mysql { target, pace } => (target.clone().unwrap_or_else(own), Kind::Mysql, pace),
            CheckKind::Redis { target, pace } => (target.clone().unwrap_or_else(own), Kind::Redis, pace),
            CheckKind::Grpc { target, service, tls: how, pace } => {
                tls.clone_from(how);
                (target.clone().unwrap_or_else(own), Kind::Grpc { service: service.clone() }, pace)
            }
            CheckKind::Http { url, tls: how, pace } => {
                let secure = url.strip_prefix("https://");
                if secure.is_some() {
                    tls = Some(how.clone().unwrap_or_default());
                }
                let (target, path) = match secure.or_else(|| url.strip_prefix("http://")) {
                    None => (own(), url.clone()),
                    Some(rest) => {
                        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                        let path = if path.is_empty() { "/" } else { path };
                        let with_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
                        let port = if secure.is_some() { 443 } else { 80 };
                        (if with_port { host.to_owned() } else { format!("{host}:{port}") }, path.to_owned())
                    }
                };
                (target, Kind::Http { path }, pace)
            }
        };
        Some((Question { target, timeout: pace.timeout, kind, tls }, pace.clone()))
    }

    /// Makes the probe, on behalf of an instance of `namespace`. Any error and any timeout is critical. The time limit begins when the address is
    /// known. `None`: not probed, since the name could not be looked up now.
    pub(crate) async fn ask(
        &self,
        namespace: &str,
        resolver: &Resolver,
        reach: &Reach,
        secure: &Secure,
    ) -> Option<Found> {
        let addresses = match resolver.resolve(namespace, &self.target).await {
            Looked::Addresses(addresses) => addresses,
            Looked::Failed => {
                tracing::debug!(target = self.target, "probe: the name has no address");
                return Some(Health::Critical.into());
            }
            Looked::Later => return None,
        };
        let may: Vec<SocketAddr> = addresses.into_iter().filter(|address| reach.may(*address, is_here)).collect();
        if may.is_empty() {
            tracing::debug!(
                target = self.target,
                "probe: registry.health.probe_deny has the address, or the registry itself listens there"
            );
            return Some(Health::Critical.into());
        }
        Some(match tokio::time::timeout(self.timeout, self.answer(&may, secure)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                tracing::debug!(target = self.target, "probe: {error}");
                Health::Critical.into()
            }
            Err(_) => Health::Critical.into(),
        })
    }

    async fn answer(&self, addresses: &[SocketAddr], secure: &Secure) -> std::io::Result<Found> {
        match TcpStream::connect(addresses).await {
            Ok(stream) => match &self.tls {
                None => self.talk(stream).await.map(Found::from),
                Some(tls) => {
                    let protocol: &[u8] = if matches!(self.kind, Kind::Grpc { .. }) { b"h2" } else { b"http/1.1" };
                    let stream = secure.connect(stream, tls, &self.target, protocol).await?;
                    self.talk(stream).await.map(Found::from)
                }
            },
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                Ok(Found { health: Health::Critical, refused: true })
            }
            Err(error) => Err(error),
        }
    }

    async fn talk(&self, mut stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> std::io::Result<Health> {
        match &self.kind {
            Kind::Tcp => Ok(Health::Passing),
            Kind::Http { path } => {
                let host = &self.target;
                let request = format!(
                    "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: kingpost\r\nAccept: */*\r\nConnection: close\r\n\r\n"
                );
                stream.write_all(request.as_bytes()).await?;
                Ok(http_health(&read_until(&mut stream, |bytes| bytes.len() >= 12).await?))
            }
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
        }
    }
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

/// Returns the health for a status line: 200 to 299 is passing, 429 a warning.
fn http_health(line: &[u8]) -> Health {
    let code = line.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5));
    match code {
        Some([b'2', b'0'..=b'9', b'0'..=b'9']) => Health::Passing,
        Some(b"429") => Health::Warning,
        _ => Health::Critical,
    }
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

    use std::sync::Arc;

    use super::*;
    use crate::model::{Check, InstanceId, Registration, ServiceKey};

    #[test]
    fn http_answers() {
        for (line, health) in [
            ("HTTP/1.1 200", Health::Passing),
            ("HTTP/1.0 204", Health::Passing),
            ("HTTP/1.1 429", Health::Warning),
            ("HTTP/1.1 301", Health::Critical),
            ("HTTP/1.1 500", Health::Critical),
            ("HTTP/1.1 2", Health::Critical),
            ("HTTP/1.1 2xx", Health::Critical),
            ("SSH-2.0-Open", Health::Critical),
            ("", Health::Critical),
        ] {
            assert_eq!(http_health(line.as_bytes()), health, "{line:?}");
        }
    }

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

    #[test]
    fn whom_to_ask() {
        let pace = Pace::default();
        for (host, kind, target) in [
            ("h", CheckKind::Tcp { target: None, pace: pace.clone() }, "h:7"),
            ("::1", CheckKind::Tcp { target: None, pace: pace.clone() }, "[::1]:7"),
            ("h", CheckKind::Tcp { target: Some("g:9".into()), pace: pace.clone() }, "g:9"),
            ("h", CheckKind::Http { url: "/up".into(), tls: None, pace: pace.clone() }, "h:7"),
            ("h", CheckKind::Http { url: "http://g/up".into(), tls: None, pace: pace.clone() }, "g:80"),
            ("h", CheckKind::Http { url: "http://g:8".into(), tls: None, pace: pace.clone() }, "g:8"),
            ("h", CheckKind::Http { url: "https://g/up".into(), tls: None, pace: pace.clone() }, "g:443"),
        ] {
            let id = InstanceId::parse("default/i").unwrap();
            let mut registration = Registration::new(id, ServiceKey::parse("default/s").unwrap(), host, 7);
            registration.check = Some(Check { kind, deregister_after: None });
            let instance = Arc::new(Instance::registered(registration, None));
            assert_eq!(Question::of(&instance).unwrap().0.target, target);
        }
    }
}
