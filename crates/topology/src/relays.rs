//! Positions that the cluster's relays have made durable: one connection to each, on which it reports its position after each change.
//!
//! ```text
//!  relay ──WATCH_FLUSHED──▶ task a relay ──▶ Tally (pure) ──▶ Durable::mark(n), one for each number of relays
//! ```
//!
//! The mark for `n` is the n-th largest of their positions: at least `n` of them have reached it. Positions count only on the view's term; a new term
//! has new marks, and waiters at the old ones have to check.
//!
//! On the same connection each relay is asked for its promises, on request (`proof`).

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsConnector;
use tracing::{info, warn};
use watermark::{Lsn, Watermark};
use wire::payload::{self, Authentication};
use wire::replication::{ANSWERS_QUESTIONS, Flushed, Promised, Question};
use wire::scram::{Client as Scram, Credential, MECHANISM};
use wire::{Frame, HEADER, message};

use crate::config::{ClusterConfig, MOST_RELAYS, RelayConfig, Target};
use crate::handle::Shared;
use crate::proof::{self, TermProof};
use crate::view::Term;

/// Maximum time to connect and log in.
const LOGIN: Duration = Duration::from_secs(5);
/// Maximum silence: a relay sends a message each second.
const SILENCE: Duration = Duration::from_secs(4);
/// Time between two attempts.
const RETRY: Duration = Duration::from_millis(250);
/// Maximum length of a relay's message, in bytes.
const MAX_MESSAGE: usize = 16 << 10;

/// Positions that are durable on the relays, on one term.
#[derive(Debug, Default)]
pub struct Durable {
    /// The term of the positions.
    pub term: Term,
    marks: [Arc<Watermark>; MOST_RELAYS],
}

/// Status of a relay, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayStatus {
    /// Name in the configuration.
    pub name: String,
    /// Address in the configuration.
    pub address: String,
    /// True if the relay counts at the moment: it is connected, receives from its upstream, and that is on the view's term.
    pub confirms: bool,
    /// Timeline and position in the relay's last report.
    pub told: Option<(u32, Lsn)>,
    /// Reason why the relay is not connected.
    pub error: Option<String>,
}

/// Part of the state shared by the tasks and the handle.
#[derive(Debug)]
pub(crate) struct Relays {
    durable: ArcSwap<Durable>,
    tally: Mutex<Tally>,
    /// Number of relays that confirm at the moment.
    confirming: AtomicUsize,
}

/// Reports of all relays.
#[derive(Debug, Default)]
struct Tally(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    config: RelayConfig,
    told: Option<Flushed>,
    /// Last answer to a question.
    promised: Option<Promised>,
    connected: bool,
    error: Option<String>,
}

// === impl Durable ===

impl Durable {
    /// Returns the position up to which at least this number of relays have the log durably; None if there cannot be so many.
    #[must_use]
    pub fn mark(&self, relays: usize) -> Option<&Arc<Watermark>> {
        self.marks.get(relays.checked_sub(1)?)
    }
}

// === impl Tally ===

impl Entry {
    fn new(config: RelayConfig) -> Entry {
        Entry { config, told: None, promised: None, connected: false, error: None }
    }

    fn is_on(&self, term: Term) -> bool {
        self.told.is_some_and(|told| told.system == term.system && told.timeline == term.timeline)
    }

    /// True if the relay confirms commits of this term. A relay reports no position while it has no upstream.
    fn confirms(&self, term: Term) -> bool {
        self.connected && self.is_on(term) && self.told.is_some_and(|told| told.at > 0)
    }
}

impl Tally {
    /// Returns the positions on this term, the furthest first. A relay that cannot be reached keeps its position.
    fn positions(&self, term: Term) -> Vec<Lsn> {
        let on = self.0.iter().filter(|entry| entry.is_on(term));
        let mut positions: Vec<Lsn> = on.filter_map(|entry| Some(Lsn(entry.told?.at))).collect();
        positions.sort_unstable_by(|a, b| b.cmp(a));
        positions
    }

    fn confirming(&self, term: Term) -> usize {
        self.0.iter().filter(|entry| entry.confirms(term)).count()
    }
}

// === impl Relays ===

impl Relays {
    pub(crate) fn new() -> Relays {
        Relays { durable: ArcSwap::default(), tally: Mutex::default(), confirming: AtomicUsize::new(0) }
    }

    pub(crate) fn durable(&self) -> Arc<Durable> {
        self.durable.load_full()
    }

    pub(crate) fn confirming(&self) -> usize {
        self.confirming.load(Ordering::Relaxed)
    }

    pub(crate) fn status(&self) -> Vec<RelayStatus> {
        let term = self.durable.load().term;
        let tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        let status = |entry: &Entry| RelayStatus {
            name: entry.config.name.clone(),
            address: entry.config.address.clone(),
            confirms: entry.confirms(term),
            told: entry.told.map(|told| (told.timeline, Lsn(told.at))),
            error: entry.error.clone(),
        };
        tally.0.iter().map(status).collect()
    }

    /// Returns the last question by which this term is proven; 0: none.
    pub(crate) fn proven(&self, term: Term) -> u64 {
        let tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        proof::proven(term, tally.0.iter().map(|entry| entry.promised))
    }

    pub(crate) fn term_proof(&self, term: Term) -> TermProof {
        let tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        let relays = tally.0.len();
        // The last answer of a relay that is not connected does not count.
        let said = || tally.0.iter().filter(|entry| entry.connected).filter_map(|entry| entry.promised);
        let stands = said().filter(|promised| proof::stands(*promised, term)).count();
        TermProof { relays, needed: proof::needed(relays), stands, ended: said().count() - stands }
    }

    /// Records a relay's answer.
    fn hear(&self, name: &str, promised: Promised) {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = tally.0.iter_mut().find(|entry| entry.config.name == name) {
            entry.promised = Some(promised);
        }
    }

    /// Prepares for a view of this term: if the term is new, earlier positions no longer count.
    pub(crate) fn begin(&self, term: Term) {
        if self.durable.load().term != term {
            self.durable.store(Arc::new(Durable { term, ..Durable::default() }));
        }
        self.update(|_| {});
    }

    /// Applies a change, and publishes the results.
    fn update(&self, change: impl FnOnce(&mut Tally)) {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut tally);
        let durable = self.durable.load();
        for (mark, position) in durable.marks.iter().zip(tally.positions(durable.term)) {
            mark.publish(position);
        }
        let confirming = tally.confirming(durable.term);
        let before = self.confirming.swap(confirming, Ordering::Relaxed);
        let all = tally.0.len();
        drop(tally);
        if confirming < before {
            warn!(confirming, before, relays = all, "fewer relays make commits durable");
        } else if confirming > before {
            info!(confirming, before, relays = all, "more relays make commits durable");
        }
    }

    /// Simulates a report by a relay of this name, for tests and simulation.
    pub(crate) fn tell(&self, name: &str, told: Option<Flushed>) {
        self.update(|tally| {
            let entry = match tally.0.iter_mut().position(|entry| entry.config.name == name) {
                Some(at) => &mut tally.0[at],
                None => {
                    let config = RelayConfig { name: name.into(), ..RelayConfig::default() };
                    tally.0.push(Entry::new(config));
                    let last = tally.0.len() - 1;
                    &mut tally.0[last]
                }
            };
            entry.connected = told.is_some();
            entry.told = told.or(entry.told);
        });
    }

    fn with(&self, name: &str, change: impl FnOnce(&mut Entry)) {
        self.update(|tally| {
            if let Some(entry) = tally.0.iter_mut().find(|entry| entry.config.name == name) {
                change(entry);
            }
        });
    }
}

// === the tasks ===

/// A task that ends with its owner.
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Keeps one task per configured relay. Runs until it is aborted.
pub(crate) async fn run(shared: Arc<Shared>, mut settings: watch::Receiver<Arc<ClusterConfig>>) {
    let mut tasks: Vec<(RelayConfig, Option<Task>)> = Vec::new();
    loop {
        let config = Arc::clone(&settings.borrow_and_update());
        let wanted: Vec<RelayConfig> = config.relays.iter().map(|relay| relay.with_defaults(&config)).collect();
        tasks.retain(|(relay, _)| wanted.contains(relay));
        shared.relays.update(|tally| {
            tally.0.retain(|entry| wanted.contains(&entry.config));
            for relay in &wanted {
                if !tally.0.iter().any(|entry| entry.config == *relay) {
                    tally.0.push(Entry::new(relay.clone()));
                }
            }
        });
        shared.proofs.set_relays(wanted.len());
        for relay in wanted {
            if !tasks.iter().any(|(known, _)| *known == relay) {
                let task = tokio::spawn(follow(Arc::clone(&shared), relay.clone()));
                tasks.push((relay, Some(Task(task.abort_handle()))));
            }
        }
        if settings.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Watches one relay, for ever.
async fn follow(shared: Arc<Shared>, relay: RelayConfig) {
    let mut said: Option<String> = None;
    loop {
        let Err(error) = watch_once(&shared, &relay).await;
        let text = error.to_string();
        if said.as_ref() != Some(&text) {
            warn!(relay = relay.name, address = relay.address, error = text, "no word from a relay");
        }
        said = Some(text.clone());
        shared.relays.with(&relay.name, |entry| {
            entry.connected = false;
            entry.error = Some(text);
        });
        sleep(RETRY).await;
    }
}

/// Reason why no reports come from a relay.
#[derive(Debug, thiserror::Error)]
enum Unheard {
    #[error("{0:?} is not host:port")]
    Address(String),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("no answer within {0:?}")]
    Silent(Duration),
    #[error("it closed the connection")]
    Closed,
    #[error("it refused: {text} (SQLSTATE {code})")]
    Refused { text: String, code: String },
    #[error("it asks for a password: set `password` of this relay")]
    NoPassword,
    #[error("it asks for a way of authentication that is not scram-sha-256")]
    Method,
    #[error("its proof of identity: {0}")]
    Scram(#[from] wire::scram::Error),
    #[error(
        "it does not offer TLS, and [cluster.tls] mode wants it: set `tls = false` for this relay, or use a tunnel"
    )]
    NoTls,
    #[error("it does not speak the protocol: {0}")]
    Protocol(String),
}

impl Unheard {
    fn protocol(what: impl fmt::Display) -> Unheard {
        Unheard::Protocol(what.to_string())
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection to a relay, with its unread input.
struct Line {
    stream: Box<dyn Stream>,
    input: Vec<u8>,
    /// True if the relay answers a [`Question`].
    answers: bool,
}

impl Line {
    /// Returns the next message, whole.
    async fn message(&mut self) -> Result<(u8, Vec<u8>), Unheard> {
        loop {
            if let Some(frame) = Frame::read(&self.input).map_err(Unheard::protocol)? {
                if frame.payload > MAX_MESSAGE {
                    return Err(Unheard::protocol(format_args!("a message of {} bytes", frame.payload)));
                }
                if let Some(data) = self.input.get(HEADER..frame.total()).map(<[u8]>::to_vec) {
                    self.input.drain(..frame.total());
                    return Ok((frame.tag, data));
                }
            }
            self.input.reserve(1024);
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(Unheard::Closed);
            }
        }
    }

    async fn send(&mut self, fill: impl FnOnce(&mut Vec<u8>)) -> Result<(), Unheard> {
        let mut out = Vec::new();
        fill(&mut out);
        Ok(self.stream.write_all(&out).await?)
    }
}

/// Connects, and processes the relay's messages until the connection ends.
async fn watch_once(shared: &Arc<Shared>, relay: &RelayConfig) -> Result<std::convert::Infallible, Unheard> {
    let connector = shared.connector.load_full().filter(|_| relay.tls);
    let login = timeout(LOGIN, log_in(relay, connector));
    let mut line = login.await.unwrap_or(Err(Unheard::Silent(LOGIN)))?;
    info!(relay = relay.name, address = relay.address, "connected to a relay");
    let mut questions = shared.proofs.questions();
    // The present question, which may be awaited, was not yet sent on this connection.
    let mut asked = 0;
    let mut heard = Instant::now();
    loop {
        let number = *questions.borrow_and_update();
        if line.answers && number != asked {
            asked = number;
            let send = line.send(|out| Question { number }.write(out));
            timeout(SILENCE, send).await.unwrap_or(Err(Unheard::Silent(SILENCE)))?;
        }
        let message = tokio::select! {
            message = line.message() => message?,
            Ok(()) = questions.changed() => continue,
            () = sleep_until(heard + SILENCE) => return Err(Unheard::Silent(SILENCE)),
        };
        heard = Instant::now();
        take_in(shared, &relay.name, message)?;
    }
}

/// Processes a relay's message while `WATCH_FLUSHED` runs.
fn take_in(shared: &Shared, name: &str, (tag, data): (u8, Vec<u8>)) -> Result<(), Unheard> {
    match tag {
        b'd' => match (Flushed::read(&data), Promised::read(&data)) {
            (Some(told), _) => shared.relays.with(name, |entry| {
                entry.told = Some(told);
                entry.connected = true;
                entry.error = None;
            }),
            (_, Some(promised)) => {
                shared.relays.hear(name, promised);
                shared.proofs.hear();
            }
            (None, None) => return Err(Unheard::protocol("a message that says something else")),
        },
        b'H' | b'N' | b'S' => {}
        b'E' => return Err(refusal(&data)),
        tag => return Err(Unheard::protocol(format_args!("a message {:?}", char::from(tag)))),
    }
    Ok(())
}

async fn log_in(relay: &RelayConfig, connector: Option<Arc<tls::Connector>>) -> Result<Line, Unheard> {
    let Some(Target::Tcp { host, port }) = Target::parse(&relay.address) else {
        return Err(Unheard::Address(relay.address.clone()));
    };
    let mut tcp = TcpStream::connect((host.as_str(), port)).await?;
    // A failure costs only latency.
    let _ = tcp.set_nodelay(true);
    let stream: Box<dyn Stream> = match connector {
        None => Box::new(tcp),
        Some(connector) => {
            let mut out = Vec::new();
            message::ssl_request(&mut out);
            tcp.write_all(&out).await?;
            // One byte and no more: clear-text bytes after it would not be the relay's.
            match tcp.read_u8().await? {
                b'S' => {
                    let optional = tls::Target::new(Arc::clone(&connector), &host);
                    let target = optional.ok_or_else(|| Unheard::Address(relay.address.clone()))?;
                    let config = target.connector.config().clone();
                    Box::new(TlsConnector::from(config).connect(target.name, tcp).await?)
                }
                b'N' if connector.is_optional() => Box::new(tcp),
                b'N' => return Err(Unheard::NoTls),
                _ => return Err(Unheard::protocol("its answer to the request for TLS")),
            }
        }
    };
    let mut line = Line { stream, input: Vec::new(), answers: false };
    let user = relay.user.as_deref().unwrap_or_default();
    line.send(|out| {
        let parameters = [
            ("user", user),
            ("database", "replication"),
            ("replication", "true"),
            ("application_name", "kingpost gate"),
        ];
        message::startup(out, &parameters);
    })
    .await?;
    let mut scram: Option<Scram> = None;
    loop {
        let (tag, data) = line.message().await?;
        match tag {
            b'R' => match payload::authentication(&data).ok_or_else(|| Unheard::protocol("authentication"))? {
                Authentication::Ok => {}
                Authentication::Sasl(list) if payload::has_mechanism(list, MECHANISM.as_bytes()) => {
                    let password = relay.password.as_deref().ok_or(Unheard::NoPassword)?;
                    let client = Scram::new(Credential::password(password))?;
                    let first = client.first();
                    line.send(|out| message::sasl_initial(out, MECHANISM, &first)).await?;
                    scram = Some(client);
                }
                Authentication::SaslContinue(challenge) => {
                    let client = scram.as_mut().ok_or_else(|| Unheard::protocol("SASL out of order"))?;
                    let answer = client.final_(challenge)?;
                    line.send(|out| message::sasl_response(out, &answer)).await?;
                }
                Authentication::SaslFinal(proof) => {
                    scram.as_mut().ok_or_else(|| Unheard::protocol("SASL out of order"))?.verify(proof)?;
                }
                Authentication::Cleartext
                | Authentication::Sasl(_)
                | Authentication::Md5(_)
                | Authentication::Other(_) => return Err(Unheard::Method),
            },
            b'S' => {
                let (name, value) = ANSWERS_QUESTIONS;
                line.answers |= payload::parameter_status(&data) == Some((name.as_bytes(), value.as_bytes()));
            }
            b'E' => return Err(refusal(&data)),
            b'Z' => {
                line.send(|out| message::query(out, "WATCH_FLUSHED")).await?;
                return Ok(line);
            }
            _ => {}
        }
    }
}

fn refusal(data: &[u8]) -> Unheard {
    let field = |kind| payload::error_field(data, kind).map(String::from_utf8_lossy).unwrap_or_default().into_owned();
    Unheard::Refused { text: field(b'M'), code: field(b'C') }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Term = Term { system: 7, timeline: 2 };

    fn told(timeline: u32, at: u64) -> Option<Flushed> {
        Some(Flushed { system: 7, term: 0, timeline, at })
    }

    #[test]
    fn a_mark_is_where_so_many_are() {
        let relays = Relays::new();
        relays.begin(TERM);
        let durable = relays.durable();
        let marks = || [1, 2, 3].map(|n| durable.mark(n).map(|mark| mark.get().0));
        relays.tell("a", told(2, 30));
        assert_eq!((marks(), relays.confirming()), ([Some(30), Some(0), Some(0)], 1));
        relays.tell("b", told(2, 10));
        relays.tell("c", told(2, 20));
        assert_eq!((marks(), relays.confirming()), ([Some(30), Some(20), Some(10)], 3));
        relays.tell("b", told(2, 40));
        assert_eq!(marks(), [Some(40), Some(30), Some(20)]);
        // Durable positions stay when a relay cannot be reached, or has no upstream: but it does not confirm.
        relays.tell("b", None);
        relays.tell("a", told(2, 0));
        assert_eq!((marks(), relays.confirming()), ([Some(40), Some(30), Some(20)], 1));
        assert_eq!((durable.mark(0).is_none(), durable.mark(MOST_RELAYS + 1).is_none()), (true, true));
    }

    #[test]
    fn terms_are_not_compared() {
        let relays = Relays::new();
        relays.begin(TERM);
        relays.tell("a", told(1, 1000));
        relays.tell("b", Some(Flushed { system: 8, term: 0, timeline: 2, at: 1000 }));
        let old = relays.durable();
        assert_eq!((old.mark(1).map(|mark| mark.get()), relays.confirming()), (Some(Lsn(0)), 0));
        relays.tell("a", told(3, 50));
        relays.begin(Term { timeline: 3, ..TERM });
        let new = relays.durable();
        assert_eq!(new.term.timeline, 3);
        assert_eq!((new.mark(1).map(|mark| mark.get()), relays.confirming()), (Some(Lsn(50)), 1));
        assert_eq!(old.mark(1).map(|mark| mark.get()), Some(Lsn(0)), "an old mark does not move any more");
    }
}
