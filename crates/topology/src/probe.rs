//! One task a node: keeps a session, asks it, reports.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_postgres::config::SslMode;
use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, NoTls, Statement};
use tracing::warn;
use watermark::Lsn;

use crate::config::{ClusterConfig, Target};
use crate::decide::{Facts, Position, Report};
use crate::handle::Shared;
use crate::secure::Secure;
use crate::view::{Address, NodeId};

/// Time between two probes of a replica while somebody waits for it to catch up.
const FAST: Duration = Duration::from_millis(10);
/// Time to the next probe after a failed one while the node is not yet given up, or when it is reported again.
const RETRY: Duration = Duration::from_millis(100);
/// Shortest time between two probes, however many failures are reported.
const LEAST: Duration = Duration::from_millis(5);

/// Of a session: what cannot change while it lasts.
const ASK_ONCE: &str = "\
    SELECT system_identifier, pg_size_bytes(current_setting('wal_segment_size')), \
           pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') \
    FROM pg_control_system()";

/// `standby` is read first and once: a server leaves recovery but does not return to it, so what is asked of a standby can
/// still be answered when it has just been promoted. The timeline that is followed is the one being received; a standby
/// that receives nothing has only the control file, which is behind until its next restart point.
const ASK: &str = "\
    SELECT standby, \
           CASE WHEN standby THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, \
           CASE WHEN NOT standby THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END, \
           CASE WHEN standby THEN greatest( \
               (SELECT received_tli FROM pg_stat_wal_receiver), \
               (SELECT min_recovery_end_timeline FROM pg_control_recovery()), \
               (SELECT timeline_id FROM pg_control_checkpoint())) END, \
           CASE WHEN standby THEN \
               extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::float8 END \
    FROM (SELECT pg_is_in_recovery() AS standby OFFSET 0) AS role";

/// What others tell a prober.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    suspected: AtomicBool,
    now: Notify,
}

impl Signal {
    /// The node failed somebody: probe at once, and believe the first failure.
    pub(crate) fn suspect(&self) {
        if !self.suspected.swap(true, Ordering::AcqRel) {
            self.now.notify_one();
        }
    }
}

/// What a prober sends: its report, and the address that it last reached.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) node: NodeId,
    /// The prober's: reports of one that was replaced are not used.
    pub(crate) generation: u64,
    pub(crate) report: Report,
    pub(crate) address: Option<Address>,
}

pub(crate) struct Prober {
    pub(crate) node: NodeId,
    pub(crate) generation: u64,
    pub(crate) name: String,
    pub(crate) target: Target,
    pub(crate) config: Arc<ClusterConfig>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) signal: Arc<Signal>,
    /// Until when replicas are probed fast.
    pub(crate) fast_until: watch::Receiver<Instant>,
    pub(crate) reports: mpsc::Sender<Message>,
}

/// Why a probe failed.
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

/// The server's own words where it said something: the driver's text alone is "db error".
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
}

/// Connects and logs in, as `application`. Names are resolved anew each time. The caller bounds the time.
pub(crate) async fn connect(
    target: &Target,
    config: &ClusterConfig,
    connector: Option<Arc<tls::Connector>>,
    application: &str,
) -> Result<Session, ProbeError> {
    let mut login = tokio_postgres::Config::new();
    login
        .user(&config.user)
        .dbname(&config.database)
        .application_name(application)
        .options(format!("-c statement_timeout={}", config.probe_timeout.as_millis().max(1)));
    if let Some(password) = &config.password {
        login.password(password);
    }
    match target {
        Target::Unix(path) => {
            let stream = UnixStream::connect(path)
                .await
                .map_err(|source| ProbeError::Connect { to: path.display().to_string(), source })?;
            let (client, connection) = login.connect_raw(stream, NoTls).await?;
            Ok(drive(client, connection, Address::Unix(PathBuf::clone(path))))
        }
        Target::Tcp { host, port } => {
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
                        // Only latency is lost if this fails.
                        let _ = stream.set_nodelay(true);
                        let address = Address::Tcp(address);
                        return Ok(match secure {
                            None => {
                                let (client, connection) = login.connect_raw(stream, NoTls).await?;
                                drive(client, connection, address)
                            }
                            Some(target) => {
                                let (client, connection) = login.connect_raw(stream, Secure(target)).await?;
                                drive(client, connection, address)
                            }
                        });
                    }
                    Err(source) => failed = ProbeError::Connect { to: address.to_string(), source },
                }
            }
            Err(failed)
        }
    }
}

fn drive<S, T>(client: Client, connection: tokio_postgres::Connection<S, T>, address: Address) -> Session
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    // How it ended does not matter: whoever uses the client is told why, and a prober only wants to know that it did.
    let closed = tokio::spawn(async move { drop(connection.await) });
    Session { client: Arc::new(client), closed, address }
}

/// `wal_segment_size` in bytes, and the identifier of the database system.
pub(crate) async fn ask_once(client: &Client) -> Result<(u64, u64, bool), ProbeError> {
    let row = client.query_one(ASK_ONCE, &[]).await?;
    let (system, segment): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    Ok((system.cast_unsigned(), segment.cast_unsigned(), row.try_get(2)?))
}

/// A prober's session with what it knows for as long as that lasts.
struct Watched {
    session: Session,
    ask: Statement,
    system: u64,
    /// Highest timeline seen: a server's timeline does not go back, what it says of it may be missing for a while.
    timeline: u32,
    fresh: bool,
}

impl Watched {
    async fn open(prober: &Prober, warned: &mut bool) -> Result<Watched, ProbeError> {
        let connector = prober.shared.connector.load_full();
        let session = connect(&prober.target, &prober.config, connector, "kingpost probe").await?;
        let (system, _, informed) = ask_once(&session.client).await?;
        if !informed && !std::mem::replace(warned, true) {
            warn!(
                node = prober.name,
                user = prober.config.user,
                "this user may not see which timeline a replica receives: after a failover replicas stay without reads \
                 until their next restart point; GRANT pg_monitor to it"
            );
        }
        let ask = session.client.prepare(ASK).await?;
        Ok(Watched { session, ask, system, timeline: 0, fresh: true })
    }

    async fn ask(&mut self) -> Result<Facts, ProbeError> {
        let row = self.session.client.query_one(&self.ask, &[]).await?;
        let lsn = Lsn(row.try_get::<_, Option<PgLsn>>(1)?.map_or(0, u64::from));
        let (timeline, position) = if row.try_get(0)? {
            let timeline = row.try_get::<_, Option<i32>>(3)?.unwrap_or(0).cast_unsigned();
            // A clock that is ahead makes a negative age: nothing is known then.
            let age = row.try_get::<_, Option<f64>>(4)?;
            let commit_age = age.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            (timeline, Position::Standby { replayed: lsn, commit_age })
        } else {
            (parse_timeline(row.try_get(2)?)?, Position::Primary { lsn })
        };
        self.timeline = self.timeline.max(timeline);
        let fresh = std::mem::replace(&mut self.fresh, false);
        Ok(Facts { system: self.system, timeline: self.timeline, fresh, position })
    }
}

/// The first eight digits of a WAL file's name.
pub(crate) fn parse_timeline(digits: &str) -> Result<u32, ProbeError> {
    u32::from_str_radix(digits, 16)
        .map_err(|_| ProbeError::Unexpected(format!("the name of a WAL file begins with {digits:?}, not a timeline")))
}

// === impl Prober ===

impl Prober {
    /// Runs until it is aborted or nobody listens any more.
    pub(crate) async fn run(mut self) {
        let mut session: Option<Watched> = None;
        let mut failures = 0_u32;
        let mut standby = false;
        let mut warned = false;
        loop {
            // Taken before the question is sent: an answer to an earlier question does not clear a later suspicion.
            let suspected = self.signal.suspected.swap(false, Ordering::AcqRel);
            let limit = self.config.probe_timeout;
            let probe = timeout(limit, async {
                if session.is_none() {
                    session = Some(Watched::open(&self, &mut warned).await?);
                }
                match &mut session {
                    Some(watched) => watched.ask().await,
                    None => Err(ProbeError::Unexpected("no session".into())),
                }
            });
            let (report, address) = match probe.await.unwrap_or(Err(ProbeError::Timeout(limit))) {
                Ok(facts) => {
                    failures = 0;
                    standby = matches!(facts.position, Position::Standby { .. });
                    (Report::Up(facts), session.as_ref().map(|watched| watched.session.address.clone()))
                }
                Err(error) => {
                    session = None;
                    failures = failures.saturating_add(1);
                    (Report::Down { error: error.to_string(), suspected }, None)
                }
            };
            if !self.send(report, address).await {
                return;
            }
            if self.pause(&mut session, failures, standby).await && !self.send(Report::Lost, None).await {
                return;
            }
        }
    }

    async fn send(&self, report: Report, address: Option<Address>) -> bool {
        let message = Message { node: self.node, generation: self.generation, report, address };
        self.reports.send(message).await.is_ok()
    }

    /// Waits until the next probe is due; true if the session broke.
    async fn pause(&mut self, session: &mut Option<Watched>, failures: u32, standby: bool) -> bool {
        let probed = Instant::now();
        let mut nudged = false;
        let lost = loop {
            let fast = standby && failures == 0 && *self.fast_until.borrow_and_update() > probed;
            let interval = match failures {
                0 if nudged => LEAST,
                _ if nudged => RETRY,
                0 if fast => FAST,
                failures if failures > 0 && failures < self.config.probe_failures => RETRY,
                _ => self.config.probe_interval,
            };
            let closed = async {
                match session {
                    Some(watched) => drop((&mut watched.session.closed).await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = tokio::time::sleep_until(probed + interval.max(LEAST)) => break false,
                () = closed => break true,
                () = self.signal.now.notified(), if !nudged => nudged = true,
                changed = self.fast_until.changed(), if standby && !nudged => if changed.is_err() { break false },
            }
        };
        if lost {
            *session = None;
        }
        lost
    }
}
