//! One task a node: keeps a session, asks it, reports.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::net::sockopt;
use tls::postgres::Named;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, NoTls};
use watermark::Lsn;
use wire::control::Settings;

use crate::ask::{Noted, Watched};
use crate::config::{ClusterConfig, Target};
use crate::decide::{Position, Report};
use crate::handle::Shared;
use crate::view::{Address, NodeId};

/// Time between two probes of a replica while it is wanted that one catches up.
const FAST: Duration = Duration::from_millis(10);
/// Time to the first probe of a replica that has not reached the position of a waiting request; it doubles until the replica has, up to [`FAST`]:
/// asking a replica that lags does not make it faster.
const QUICK: Duration = Duration::from_millis(1);
/// Time to the next probe after a failed one while the node is not yet given up, or when it is reported again.
const RETRY: Duration = Duration::from_millis(100);
/// Shortest time between two probes, however many failures are reported.
const LEAST: Duration = Duration::from_millis(5);

/// Time without an acknowledgement from a server's host after which a session is given up.
const SILENCE: Duration = Duration::from_secs(5);
/// Silence after which the host gets a TCP keepalive, and time from one such keepalive to the next.
const KEEPALIVE: Duration = Duration::from_secs(1);

/// Requests of other tasks to a prober.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    suspected: AtomicBool,
    now: Notify,
}

impl Signal {
    /// Has the node probed at once after a failure seen elsewhere; one failed probe is then enough.
    pub(crate) fn suspect(&self) {
        if !self.suspected.swap(true, Ordering::AcqRel) {
            self.now.notify_one();
        }
    }

    /// Has the node probed at once. A failure counts as any other does.
    pub(crate) fn nudge(&self) {
        self.now.notify_one();
    }
}

/// Addresses at which a prober has reached its node.
#[derive(Debug, Clone)]
pub(crate) struct Reached {
    /// The configured address, resolved.
    pub(crate) address: Address,
    /// The Unix socket of a server that was reached by TCP on this host.
    pub(crate) socket: Option<Arc<Path>>,
}

/// Message of a prober: its report, and the addresses that it last reached.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) node: NodeId,
    /// Generation of the prober: reports of a replaced prober are ignored.
    pub(crate) generation: u64,
    pub(crate) report: Report,
    pub(crate) reached: Option<Reached>,
    /// Bytes of WAL that the node keeps for the slot that is furthest behind; None: not in this answer.
    pub(crate) slots_held: Option<u64>,
    /// Number of the node's configuration; None: likewise.
    pub(crate) settings: Option<u64>,
}

pub(crate) struct Prober {
    pub(crate) node: NodeId,
    pub(crate) generation: u64,
    pub(crate) name: String,
    pub(crate) target: Target,
    pub(crate) config: Arc<ClusterConfig>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) signal: Arc<Signal>,
    /// End of the time in which replicas are probed fast.
    pub(crate) fast_until: watch::Receiver<Instant>,
    pub(crate) reports: mpsc::Sender<Message>,
}

/// State that decides when a node is probed next.
#[derive(Debug, Clone, Copy)]
struct Next {
    /// Number of consecutive failed probes.
    failures: u32,
    /// True after a request for an immediate probe.
    nudged: bool,
    /// True for a standby while a recent request wants standbys to catch up.
    wanted: bool,
    /// Pause of a standby that has not reached the position that a waiting request needs.
    behind: Option<Duration>,
}

/// Cause of a failed probe.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    #[error("cannot resolve {name}: {source}")]
    Resolve { name: String, source: std::io::Error },
    #[error("{0} resolves to no address")]
    NoAddress(String),
    #[error("cannot connect to {to}: {source}")]
    Connect { to: String, source: std::io::Error },
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("{}", describe(.0))]
    Server(#[from] tokio_postgres::Error),
    #[error("{0}")]
    Unexpected(String),
}

impl Shared {
    /// Counts a login whose password the server has refused.
    pub(crate) fn note_refusal(&self, error: &ProbeError) {
        if let ProbeError::Server(error) = error
            && error.code() == Some(&tokio_postgres::error::SqlState::INVALID_PASSWORD)
        {
            self.refusals.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

/// Returns the server's own message if it sent one: the driver's text alone is "db error".
fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(said) => format!("{}: {} (SQLSTATE {})", said.severity(), said.message(), said.code().code()),
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}

/// A connection that is being driven by a task of its own; it ends soon after the client is dropped.
pub(crate) struct Session {
    pub(crate) client: Arc<Client>,
    pub(crate) closed: JoinHandle<()>,
    pub(crate) address: Address,
    /// Our end of a TCP connection.
    pub(crate) ours: Option<SocketAddr>,
}

/// Connects and logs in, as `application`, to a server in a session with these settings; or to a proxy's console, without. Resolves names anew
/// each time. The caller bounds the time.
pub(crate) async fn connect(
    target: &Target,
    config: &ClusterConfig,
    connector: Option<Arc<tls::Connector>>,
    application: &str,
    settings: Option<&Settings>,
) -> Result<Session, ProbeError> {
    let mut login = tokio_postgres::Config::new();
    login.user(&config.user).dbname(&config.database).application_name(application);
    if let Some(settings) = settings {
        login.options(settings.clone().with_statement_timeout(config.probe_timeout).options());
    }
    if let Some(password) = &config.password {
        login.password(password);
    }
    let session = match target {
        Target::Unix(path) => {
            let stream = UnixStream::connect(path)
                .await
                .map_err(|source| ProbeError::Connect { to: path.display().to_string(), source })?;
            let (client, connection) = login.connect_raw(stream, NoTls).await?;
            drive(client, connection, Address::Unix(PathBuf::clone(path)), None)
        }
        Target::Tcp { host, port } => 'reached: {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host.as_str(), *port))
                .await
                .map_err(|source| ProbeError::Resolve { name: host.clone(), source })?
                .collect();
            let secure =
                match connector {
                    None => {
                        login.ssl_mode(SslMode::Disable);
                        None
                    }
                    Some(connector) => {
                        login.ssl_mode(if connector.is_optional() { SslMode::Prefer } else { SslMode::Require });
                        let named = tls::Target::new(connector, host);
                        Some(named.ok_or_else(|| {
                            ProbeError::Unexpected(format!("{host:?} is no name that a certificate has"))
                        })?)
                    }
                };
            let mut failed = ProbeError::NoAddress(host.clone());
            for address in found {
                match TcpStream::connect(address).await {
                    Ok(stream) => {
                        // Only time is lost if one of them fails.
                        let _ = (stream.set_nodelay(true), notice_silence(&stream));
                        let ours = stream.local_addr().ok();
                        let address = Address::Tcp(address);
                        break 'reached match secure {
                            None => {
                                let (client, connection) = login.connect_raw(stream, NoTls).await?;
                                drive(client, connection, address, ours)
                            }
                            Some(target) => {
                                let (client, connection) = login.connect_raw(stream, Named::from(target)).await?;
                                drive(client, connection, address, ours)
                            }
                        };
                    }
                    Err(source) => failed = ProbeError::Connect { to: address.to_string(), source },
                }
            }
            return Err(failed);
        }
    };
    if let Some(settings) = settings {
        session.client.batch_execute(&settings.prologue()).await?;
    }
    Ok(session)
}

/// Makes the kernel detect a host that has gone silently: by unacknowledged bytes, or by a keepalive after some silence.
fn notice_silence(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_tcp_user_timeout(stream, SILENCE.as_millis() as u32)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE)
}

fn drive<S, T>(
    client: Client,
    connection: tokio_postgres::Connection<S, T>,
    address: Address,
    ours: Option<SocketAddr>,
) -> Session
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    // The way it ended does not matter: users of the client get the error, and a prober only needs to know that it ended.
    let closed = tokio::spawn(async move { drop(connection.await) });
    Session { client: Arc::new(client), closed, address, ours }
}

// === impl Next ===

impl Next {
    /// Returns the time from one probe to the next.
    fn interval(self, config: &ClusterConfig) -> Duration {
        match self {
            Next { failures: 0, nudged: true, .. } => LEAST,
            Next { nudged: true, .. } => RETRY,
            Next { failures: 0, wanted: true, behind: Some(patience), .. } => patience,
            Next { failures: 0, wanted: true, behind: None, .. } => FAST,
            Next { failures, .. } if failures > 0 && failures < config.probe_failures => RETRY,
            _ => config.probe_interval.max(LEAST),
        }
    }
}

/// Returns the pause of a standby that has not reached the position that a waiting request needs, from its previous pause.
fn patience(before: Duration, behind: bool) -> Duration {
    if behind { (before * 2).min(FAST) } else { QUICK }
}

// === impl Prober ===

impl Prober {
    /// Runs until it is aborted or its reports have no receiver.
    pub(crate) async fn run(mut self) {
        let mut session: Option<Watched> = None;
        let mut failures = 0_u32;
        // Of a standby: where it is, and how long it is left alone if that is not far enough.
        let mut standby: Option<(Lsn, Duration)> = None;
        let mut quickly = false;
        let mut noted = Noted::default();
        let mut awaited = self.shared.awaited.subscribe();
        loop {
            // Taken before the question is sent: an answer to an earlier question does not clear a later suspicion.
            let suspected = self.signal.suspected.swap(false, Ordering::AcqRel);
            let limit = self.config.probe_timeout;
            let probe = timeout(limit, async {
                if session.is_none() {
                    session = Some(Watched::open(&self, &mut noted).await?);
                }
                let Some(watched) = &mut session else { return Err(ProbeError::Unexpected("no session".into())) };
                let told = if quickly { watched.ask_quickly().await? } else { None };
                match told {
                    Some(facts) => Ok(facts),
                    None => watched.ask().await,
                }
            });
            let (report, reached) = match probe.await.unwrap_or(Err(ProbeError::Timeout(limit))) {
                Ok(facts) => {
                    failures = 0;
                    standby = match facts.position {
                        Position::Standby { replayed, .. } => {
                            let before = standby.map_or(QUICK, |(_, before)| before);
                            Some((replayed, patience(before, quickly && replayed < *awaited.borrow())))
                        }
                        Position::Primary { .. } | Position::Disowned => None,
                    };
                    (Report::Up(facts), session.as_ref().map(Watched::reached))
                }
                Err(error) => {
                    self.shared.note_refusal(&error);
                    session = None;
                    failures = failures.saturating_add(1);
                    (Report::Down { error: error.to_string(), suspected }, None)
                }
            };
            let slots_held = session.as_ref().map(|watched| watched.slots_held);
            let settings = session.as_ref().map(|watched| watched.settings);
            if !self.send(report, reached, slots_held, settings).await {
                return;
            }
            let Some(next) = self.pause(&mut session, failures, standby, &mut awaited).await else {
                if !self.send(Report::Lost, None, None, None).await {
                    return;
                }
                quickly = false;
                continue;
            };
            quickly = next.failures == 0 && !next.nudged && next.wanted && next.behind.is_some();
        }
    }

    async fn send(
        &self,
        report: Report,
        reached: Option<Reached>,
        slots_held: Option<u64>,
        settings: Option<u64>,
    ) -> bool {
        let (node, generation) = (self.node, self.generation);
        let message = Message { node, generation, report, reached, slots_held, settings };
        self.reports.send(message).await.is_ok()
    }

    /// Waits until the next probe is due, and says why it is; nothing if the session broke.
    async fn pause(
        &mut self,
        session: &mut Option<Watched>,
        failures: u32,
        standby: Option<(Lsn, Duration)>,
        awaited: &mut watch::Receiver<Lsn>,
    ) -> Option<Next> {
        let probed = Instant::now();
        let mut nudged = false;
        let next = loop {
            let wanted = standby.is_some() && *self.fast_until.borrow_and_update() > probed;
            let there = *awaited.borrow_and_update();
            let behind = standby.filter(|(replayed, _)| *replayed < there).map(|(_, patience)| patience);
            let next = Next { failures, nudged, wanted, behind };
            let closed = async {
                match session {
                    Some(watched) => drop((&mut watched.session.closed).await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = tokio::time::sleep_until(probed + next.interval(&self.config)) => break Some(next),
                () = closed => break None,
                () = self.signal.now.notified(), if !nudged => nudged = true,
                changed = self.fast_until.changed(), if standby.is_some() && !nudged => {
                    if changed.is_err() { break Some(next) }
                }
                changed = awaited.changed(), if standby.is_some() && !nudged => {
                    if changed.is_err() { break Some(next) }
                }
            }
        };
        if next.is_none() {
            *session = None;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals() {
        let config = ClusterConfig { probe_interval: Duration::from_secs(1), probe_failures: 3, ..Default::default() };
        let usual = config.probe_interval;
        for (failures, nudged, wanted, behind, expected) in [
            (0, false, false, None, usual),
            (0, true, false, None, LEAST),
            (0, true, true, Some(QUICK), LEAST),
            (1, true, true, Some(QUICK), RETRY),
            (0, false, true, None, FAST),
            (0, false, true, Some(QUICK), QUICK),
            // No request has wanted it for long enough.
            (0, false, false, Some(QUICK), usual),
            (1, false, true, Some(QUICK), RETRY),
            (2, false, false, None, RETRY),
            (3, false, true, Some(QUICK), usual),
        ] {
            let next = Next { failures, nudged, wanted, behind };
            assert_eq!(next.interval(&config), expected, "{next:?}");
        }
    }

    #[test]
    fn a_standby_that_lags_is_asked_less_and_less_often() {
        let mut seen = vec![QUICK];
        for _ in 0..5 {
            seen.push(patience(seen[seen.len() - 1], true));
        }
        assert_eq!(seen, [1, 2, 4, 8, 10, 10].map(Duration::from_millis));
        assert_eq!(patience(FAST, false), QUICK);
    }
}
