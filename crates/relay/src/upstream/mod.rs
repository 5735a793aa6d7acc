//! Receiving from the upstream: one thread that reads and appends, one that acknowledges.
//!
//! ```text
//!  follow: connect ─▶ who are you? ─▶ slot, histories ─▶ start where the log ends ─▶ receive ─▶ its timeline ended ─┐
//!     ▲                                                        ▲───────────── switch ◀───────────────────────────────┘
//!     └── back off; an alarm waits longer, and for a reload ◀── anything failed
//! ```
//!
//! *What must hold*: while there is something to read, the receiver does not wait for the disk's flush, and when there is not, only on a
//! disk that was quick the last time; nothing is acknowledged that was not durable here and sent, or sent again and compared, by this
//! very upstream; nothing is cut off because an upstream says so.

mod acknowledge;
mod session;

pub(crate) use acknowledge::now_micros;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::{error, info, warn};
use watermark::Lsn;
use wire::replication::{Identity as Remote, Order, TimelineEnd, is_slot_name, position};

use crate::channel::Channel;
use crate::config::UpstreamConfig;
use crate::error::UpstreamError;
use crate::log::{AppendError, Log, LogOptions, SegmentSize, Start, Timeline, Writer};
use crate::operate::Standing;
use crate::shared::{Greeting, Shared};
use acknowledge::Acknowledger;
use session::{Login, Session, Started};

/// First and longest pause before connecting again.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Pause after something that trying again does not help.
const ALARM_PAUSE: Duration = Duration::from_secs(30);
/// Pause while the disk is full.
const FULL_PAUSE: Duration = Duration::from_millis(500);
/// Most history files fetched of an upstream: those of the newest timelines.
const MOST_HISTORIES: u32 = 64;
/// Most switches of timelines on one connection: each takes a promotion.
const MOST_SWITCHES: u32 = 1000;
/// Most bytes taken while there is more to read before the flusher begins.
const GATHER: usize = 256 << 10;
/// Segments made ahead of time.
pub(crate) const SPARES: usize = 2;

/// What the receiving thread is told, and the way to interrupt it.
#[derive(Debug)]
pub(crate) struct Control {
    state: Mutex<ControlState>,
    changed: Condvar,
}

#[derive(Debug)]
struct ControlState {
    config: UpstreamConfig,
    /// Goes up with each change of `config`.
    generation: u64,
    stopping: bool,
    /// The connection that is in use.
    socket: Option<Channel>,
    /// Something may be received and acknowledged: from [`Control::hold`] until the connection's work has ended.
    receiving: bool,
    /// What the configuration says; `config.address` is where in fact.
    configured: String,
}

impl Control {
    /// `configured` is the configuration's address, which `config` may deviate from.
    pub(crate) fn new(config: UpstreamConfig, configured: &str) -> Control {
        let configured = configured.into();
        let state = ControlState { config, generation: 0, stopping: false, socket: None, receiving: false, configured };
        Control { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, ControlState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows another upstream, or the same in another way. The connection in use ends if anything is different.
    pub(crate) fn follow(&self, change: impl FnOnce(&mut UpstreamConfig)) {
        let mut state = self.lock();
        let mut config = state.config.clone();
        change(&mut config);
        if config != state.config {
            state.config = config;
            state.generation += 1;
            if let Some(socket) = state.socket.take() {
                socket.shutdown();
            }
            self.changed.notify_all();
        }
    }

    /// What the configuration says; empty: nothing.
    pub(crate) fn configured(&self) -> String {
        self.lock().configured.clone()
    }

    pub(crate) fn set_configured(&self, address: &str) {
        self.lock().configured = address.into();
    }

    /// Ends what is received now, and returns once nothing of it is under way any more; a new connection is made after. False: it
    /// has not ended within the time.
    pub(crate) fn interrupt(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut state = self.lock();
        state.generation += 1;
        if let Some(socket) = state.socket.take() {
            socket.shutdown();
        }
        self.changed.notify_all();
        let interrupted = state.generation;
        while state.receiving && state.generation == interrupted {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        !state.receiving
    }

    /// Ends the receiving thread.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.stopping = true;
        if let Some(socket) = state.socket.take() {
            socket.shutdown();
        }
        self.changed.notify_all();
    }

    pub(crate) fn address(&self) -> String {
        self.lock().config.address.clone()
    }

    /// Makes a connection that logs in known, so that it can be interrupted. Nothing is received on it yet.
    fn connecting(&self, generation: u64, socket: Channel) -> Result<(), UpstreamError> {
        let mut state = self.lock();
        if state.stopping || state.generation != generation {
            return Err(UpstreamError::Interrupted);
        }
        state.socket = Some(socket);
        Ok(())
    }

    /// The connection's work has ended.
    fn received(&self) {
        let mut state = self.lock();
        state.socket = None;
        state.receiving = false;
        self.changed.notify_all();
    }

    /// Makes a connection known, so that it can be interrupted.
    fn hold(&self, generation: u64, socket: Channel) -> Result<(), UpstreamError> {
        let mut state = self.lock();
        if state.stopping || state.generation != generation {
            return Err(UpstreamError::Interrupted);
        }
        state.socket = Some(socket);
        state.receiving = true;
        Ok(())
    }

    fn interrupted(&self, generation: u64) -> bool {
        let state = self.lock();
        state.stopping || state.generation != generation
    }

    /// Waits; true if there is something new to do sooner.
    fn pause(&self, generation: u64, length: Duration) -> bool {
        let end = Instant::now() + length;
        let mut state = self.lock();
        loop {
            if state.stopping || state.generation != generation {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The receiving thread: until [`Control::stop`], or until the log has failed.
pub(crate) fn run(shared: &Arc<Shared>, mut writer: Option<Writer>) {
    let mut back_off = BACK_OFF.0;
    loop {
        let (config, generation) = {
            let state = shared.control.lock();
            if state.stopping {
                return;
            }
            (state.config.clone(), state.generation)
        };
        if config.address.is_empty() {
            shared.upstream_is("no upstream is known", false);
            shared.control.pause(generation, ALARM_PAUSE);
            continue;
        }
        let failed = Follow { shared, config: &config, generation }.follow(&mut writer, &mut back_off);
        shared.control.received();
        shared.metrics.disconnects.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if shared.control.interrupted(generation) {
            back_off = BACK_OFF.0;
            continue;
        }
        let alarm = failed.is_alarm();
        shared.upstream_is(&failed.to_string(), alarm);
        if let UpstreamError::Failed(_) | UpstreamError::Append(AppendError::Failed(_)) = failed {
            error!(error = %failed, "the log has failed, nothing is received any more");
            return;
        }
        let pause = if alarm {
            error!(upstream = config.address, error = %failed, "the upstream cannot be followed; nothing was cut off");
            ALARM_PAUSE
        } else {
            match failed {
                UpstreamError::ShuttingDown => info!(upstream = config.address, "the upstream is shutting down"),
                error => warn!(upstream = config.address, %error, again_in = ?back_off, "not receiving"),
            }
            jittered(back_off)
        };
        shared.control.pause(generation, pause);
        back_off = (back_off * 2).min(BACK_OFF.1);
    }
}

/// Between half and all of it, so that many relays do not come back at the same moment.
fn jittered(length: Duration) -> Duration {
    let mut byte = [0; 1];
    let share = getrandom::fill(&mut byte).map_or(255, |()| u32::from(byte[0]));
    length / 2 + length * share / 510
}

/// One connection's work.
struct Follow<'a> {
    shared: &'a Arc<Shared>,
    config: &'a UpstreamConfig,
    generation: u64,
}

impl Follow<'_> {
    fn follow(&self, writer: &mut Option<Writer>, back_off: &mut Duration) -> UpstreamError {
        match self.connection(writer, back_off) {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    fn connection(
        &self,
        writer: &mut Option<Writer>,
        back_off: &mut Duration,
    ) -> Result<std::convert::Infallible, UpstreamError> {
        let config = self.config;
        let password = password(config)?;
        let login = Login {
            user: &config.user,
            password: password.as_deref(),
            application_name: &config.application_name,
            connector: tls::Connector::new(&config.tls)?.map(Arc::new),
        };
        self.shared.upstream_is("connecting", false);
        let known = |socket| self.shared.control.connecting(self.generation, socket);
        let mut session = Session::open(&config.address, &login, known)?;
        self.shared.control.hold(self.generation, session.socket()?)?;
        let remote = identify(&mut session)?;
        let writer = match writer {
            Some(writer) => writer,
            None => writer.insert(self.first_open(&mut session, remote)?),
        };
        let log = self.shared.log().ok_or(UpstreamError::Interrupted)?;
        if log.identity().system_id != remote.system {
            return Err(UpstreamError::OtherSystem {
                expected: log.identity().system_id,
                found: remote.system,
                dir: log.dir().display().to_string(),
            });
        }
        // After the connection was made known: a fence that comes later interrupts it.
        if let Some(fence) = self.shared.state.fence()
            && remote.timeline <= fence.timeline
        {
            return Err(UpstreamError::Fenced { term: log.term(), fenced: fence.timeline, found: remote.timeline });
        }
        self.greet(&mut session)?;
        self.ensure_slot(&mut session)?;
        self.fetch_histories(&mut session, &log, remote.timeline)?;
        for _ in 0..MOST_SWITCHES {
            let end = match self.stream(&mut session, writer, &log, back_off)? {
                Some(end) => end,
                None => session.finish_timeline()?,
            };
            self.switch(&mut session, writer, end)?;
        }
        Err(UpstreamError::Protocol(format!("more than {MOST_SWITCHES} timelines ended on one connection")))
    }

    /// Opens an empty directory: it begins with the segment that the upstream writes now.
    fn first_open(&self, session: &mut Session, remote: Remote) -> Result<Writer, UpstreamError> {
        let shown = show(session, "wal_segment_size")?;
        let bytes =
            parse_size(&shown).ok_or_else(|| UpstreamError::Protocol(format!("wal_segment_size is {shown:?}")))?;
        let segment_size = SegmentSize::new(bytes)?;
        let at = segment_size.start_of(Lsn(remote.position));
        let start = Start { timeline: Timeline(remote.timeline), at };
        info!(system = remote.system, timeline = remote.timeline, %at, "a new log begins");
        let identity = crate::log::Identity { system_id: remote.system, segment_size };
        let dir = self.shared.dir.clone();
        let (writer, log) = Log::open(LogOptions { dir, identity, start: Some(start), spares: SPARES })?;
        self.shared.set_log(log);
        Ok(writer)
    }

    /// Keeps what downstreams are greeted with: they must not notice which of the two they talk to.
    fn greet(&self, session: &mut Session) -> Result<(), UpstreamError> {
        let greeting = Greeting {
            server_version: session.server_version().to_owned(),
            data_directory_mode: show(session, "data_directory_mode")?,
        };
        self.shared.state.greet(greeting).map_err(|error| UpstreamError::State(Box::new(error)))?;
        if show(session, "synchronous_commit")? == "remote_apply" {
            warn!(
                "synchronous_commit is remote_apply on the upstream: a relay applies nothing, so that commits wait for ever \
                 if only relays are synchronous standbys"
            );
        }
        Ok(())
    }

    fn ensure_slot(&self, session: &mut Session) -> Result<(), UpstreamError> {
        let slot = &self.config.slot;
        if slot.is_empty() {
            return Ok(());
        }
        let options =
            if crate::shared::major(session.server_version()) >= 15 { "(RESERVE_WAL)" } else { "RESERVE_WAL" };
        match session.ask(&format!("CREATE_REPLICATION_SLOT \"{slot}\" PHYSICAL {options}")) {
            Ok(_) => {
                info!(slot, "made a replication slot on the upstream");
                Ok(())
            }
            // duplicate_object: as it should be, but for the first time.
            Err(UpstreamError::Refused { code, .. }) if code == "42710" => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Fetches the history files that are missing: downstreams ask for each.
    fn fetch_histories(&self, session: &mut Session, log: &Log, newest: u32) -> Result<(), UpstreamError> {
        let own = log.tail().timeline;
        for timeline in (newest.saturating_sub(MOST_HISTORIES).max(1) + 1)..=newest.min(own.0) {
            if log.history(Timeline(timeline)).is_none() {
                match history(session, timeline) {
                    Ok(content) => log.store_history(Timeline(timeline), &content)?,
                    Err(error @ UpstreamError::Refused { .. }) => {
                        warn!(timeline, %error, "a timeline's history is not to be had");
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Streams until the timeline ends. Some: it had ended already.
    fn stream(
        &self,
        session: &mut Session,
        writer: &mut Writer,
        log: &Arc<Log>,
        back_off: &mut Duration,
    ) -> Result<Option<TimelineEnd>, UpstreamError> {
        let (timeline, from) = writer.resume();
        let slot = match self.config.slot.as_str() {
            "" => String::new(),
            slot => format!("SLOT \"{slot}\" "),
        };
        let command = format!("START_REPLICATION {slot}PHYSICAL {} TIMELINE {}", position(from.0), timeline.0);
        session.set_patience(self.config.timeout, self.config.timeout)?;
        if let Started::Ended(end) = session.start(&command)? {
            return Ok(Some(end));
        }
        info!(upstream = self.config.address, timeline = timeline.0, %from, "streaming");
        self.shared.upstream_is("streaming", false);
        *back_off = BACK_OFF.0;
        let acknowledger = Acknowledger::start(self.shared, self.config, session.socket()?, writer.tail(), from)?;
        let result = self.receive(session, writer, log, &acknowledger);
        // Whatever ended it: what was taken is flushed.
        writer.flush_behind();
        acknowledger.stop();
        result.map(|()| None)
    }

    fn receive(
        &self,
        session: &mut Session,
        writer: &mut Writer,
        log: &Log,
        acknowledger: &Acknowledger,
    ) -> Result<(), UpstreamError> {
        let mut wal = Vec::with_capacity(1 << 20);
        // Bytes taken since somebody was told to flush.
        let mut gathered = 0;
        loop {
            let (heard, start) = session.receive(&mut wal).map_err(|error| match error {
                UpstreamError::Io(error) if is_timeout(&error) => UpstreamError::Silent(self.config.timeout),
                error => error,
            })?;
            if let Some(failure) = log.failure() {
                return Err(UpstreamError::Failed(failure.clone()));
            }
            acknowledger.heard(heard.end);
            if let Some(at) = start {
                self.append(writer, Lsn(at), &wal)?;
                acknowledger.received(Lsn(at + wal.len() as u64), wal.len());
                gathered += wal.len();
            }
            if heard.reply {
                acknowledger.ask();
            }
            // One flush for all that has arrived; while there is more than that, it is read and flushed side by side.
            if gathered > 0 && !session.is_readable() {
                writer.flush_here();
                gathered = 0;
            } else if gathered >= GATHER {
                writer.flush_behind();
                gathered = 0;
            }
            if heard.done {
                return Ok(());
            }
        }
    }

    /// Appends; waits for room when the disk is full. What is durable stays acknowledged meanwhile.
    fn append(&self, writer: &mut Writer, at: Lsn, wal: &[u8]) -> Result<(), UpstreamError> {
        let mut told = false;
        loop {
            match writer.take(at, wal) {
                Err(error @ AppendError::Full { .. }) => {
                    // What there was room for.
                    writer.flush_behind();
                    if !told {
                        told = true;
                        error!(%error, "the disk is full: receiving waits");
                        self.shared.upstream_is(&error.to_string(), true);
                    }
                    if self.shared.control.pause(self.generation, FULL_PAUSE) {
                        return Err(UpstreamError::Interrupted);
                    }
                }
                result => {
                    if told && result.is_ok() {
                        info!("there is room again");
                        self.shared.upstream_is("streaming", false);
                    }
                    return Ok(result?);
                }
            }
        }
    }

    fn switch(&self, session: &mut Session, writer: &mut Writer, end: TimelineEnd) -> Result<(), UpstreamError> {
        let content = history(session, end.next)?;
        let before = writer.tail().timeline;
        writer.switch_timeline(Timeline(end.next), Lsn(end.at), &content)?;
        info!(from = before.0, to = end.next, at = %Lsn(end.at), "the upstream's timeline changed");
        Ok(())
    }
}

fn password(config: &UpstreamConfig) -> Result<Option<String>, UpstreamError> {
    match (&config.password, &config.password_file) {
        (Some(password), _) => Ok(Some(password.clone())),
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path).map_err(|source| {
                let path = path.clone();
                UpstreamError::State(Box::new(crate::error::StartError::File { tried: "read", path, source }))
            })?;
            Ok(Some(text.lines().next().unwrap_or_default().to_owned()))
        }
        (None, None) => Ok(None),
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

fn identify(session: &mut Session) -> Result<Remote, UpstreamError> {
    let rows = session.ask("IDENTIFY_SYSTEM")?;
    rows.first().and_then(|row| row.identity()).ok_or_else(|| UpstreamError::Protocol("IDENTIFY_SYSTEM".into()))
}

fn show(session: &mut Session, name: &str) -> Result<String, UpstreamError> {
    let rows = session.ask(&format!("SHOW {name}"))?;
    rows.first()
        .and_then(|row| row.text(0))
        .map(str::to_owned)
        .ok_or_else(|| UpstreamError::Protocol(format!("SHOW {name} gave nothing")))
}

fn history(session: &mut Session, timeline: u32) -> Result<Vec<u8>, UpstreamError> {
    let mut rows = session.ask(&format!("TIMELINE_HISTORY {timeline}"))?;
    let content = rows.first_mut().and_then(|row| row.0.get_mut(1)).and_then(Option::take);
    content.ok_or_else(|| UpstreamError::Protocol(format!("TIMELINE_HISTORY {timeline} gave nothing")))
}

/// `16MB`, `1GB`: as a setting of unit byte is shown.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let shift = match &text[digits..] {
        "" | "B" => 0,
        "kB" => 10,
        "MB" => 20,
        "GB" => 30,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

/// Whether an upstream can be configured so.
///
/// # Errors
/// What is wrong, with the key's name.
pub(crate) fn validate(config: &UpstreamConfig) -> Result<(), String> {
    if !config.slot.is_empty() && !is_slot_name(&config.slot) {
        return Err(format!(
            "relay.upstream.slot is {:?}: expected 1 to 63 lower-case letters, digits and underscores, or \"\" for none",
            config.slot
        ));
    }
    if config.password.is_some() && config.password_file.is_some() {
        return Err("relay.upstream: give at most one of password and password_file".into());
    }
    Ok(())
}

/// Has a relay carry out an operator's order; what it says of itself afterwards. Blocking; some seconds at most, and longer for
/// a fence while its disk is slow.
///
/// # Errors
/// It cannot be reached, or refuses, or is no relay.
pub fn order(
    address: &str,
    user: &str,
    password: Option<&str>,
    connector: Option<Arc<tls::Connector>>,
    order: &Order,
) -> Result<Standing, UpstreamError> {
    let login = Login { user, password, application_name: "kingpost failover", connector };
    let mut session = Session::open(address, &login, |_| Ok(()))?;
    let rows = session.ask(&order.text())?;
    let standing = rows.first().and_then(Standing::read);
    standing.ok_or_else(|| UpstreamError::Protocol(format!("the answer to {} is none", order.text())))
}

/// Makes a physical slot on a relay, from which on WAL is kept for a standby; nothing happens if it is there. Blocking.
///
/// # Errors
/// The relay cannot be reached, or refuses.
pub fn make_slot(
    address: &str,
    user: &str,
    password: Option<&str>,
    connector: Option<Arc<tls::Connector>>,
    slot: &str,
) -> Result<(), UpstreamError> {
    let login = Login { user, password, application_name: "kingpost failover", connector };
    let mut session = Session::open(address, &login, |_| Ok(()))?;
    match session.ask(&format!("CREATE_REPLICATION_SLOT \"{slot}\" PHYSICAL RESERVE_WAL")) {
        Ok(_) => Ok(()),
        // duplicate_object
        Err(UpstreamError::Refused { code, .. }) if code == "42710" => Ok(()),
        Err(error) => Err(error),
    }
}

/// What a relay says of itself to whoever asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Identifier of the cluster.
    pub system: u64,
    /// Timeline it is on.
    pub timeline: u32,
    /// End of what it serves.
    pub position: Lsn,
    /// How many stream from it.
    pub downstreams: u64,
    /// `streaming`, or what stands between it and its upstream.
    pub upstream: String,
}

/// Asks a relay over its own protocol. Blocking; a few seconds at most.
///
/// # Errors
/// It cannot be reached, or refuses, or is no relay.
pub fn probe(address: &str, user: &str, password: Option<&str>) -> Result<Probe, UpstreamError> {
    let login = Login { user, password, application_name: "kingpost status", connector: None };
    let mut session = Session::open(address, &login, |_| Ok(()))?;
    let remote = identify(&mut session)?;
    Ok(Probe {
        system: remote.system,
        timeline: remote.timeline,
        position: Lsn(remote.position),
        downstreams: show(&mut session, "kingpost.downstreams")?.parse().unwrap_or(0),
        upstream: show(&mut session, "kingpost.upstream")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("16MB", Some(16 << 20)),
            ("1GB", Some(1 << 30)),
            ("64kB", Some(64 << 10)),
            ("512B", Some(512)),
            ("7", Some(7)),
            ("", None),
            ("MB", None),
            ("16 MB", None),
            ("99999999999999999999GB", None),
        ] {
            assert_eq!(parse_size(text), bytes, "{text}");
        }
    }

    #[test]
    fn jitter_stays_within_bounds() {
        for _ in 0..1000 {
            let pause = jittered(Duration::from_millis(100));
            assert!((50..=100).contains(&pause.as_millis()), "{pause:?}");
        }
    }
}
