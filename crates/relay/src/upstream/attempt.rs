//! One connection to an upstream, from connecting to its end.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tracing::{error, info, warn};
use watermark::Lsn;
use wire::replication::{Identity as Remote, TimelineEnd, position};

use super::acknowledge::Acknowledger;
use super::{SPARES, parse_size, password};
use crate::ask::{Role, history, identify, role, show};
use crate::config::UpstreamConfig;
use crate::error::{Peer, SessionError, UpstreamError};
use crate::log::{AppendError, Link, Log, LogOptions, SegmentSize, Start, Timeline, Writer};
use crate::session::{Login, STEP, Session, Started};
use crate::shared::{Greeting, Shared};
use crate::surroundings::OtherRelay;

/// First pause before connecting again, once something was received.
const FIRST_PAUSE: Duration = super::BACK_OFF.0;
/// Pause while the disk is full.
const FULL_PAUSE: Duration = Duration::from_millis(500);
/// Limit of the history files fetched from an upstream: those of the newest timelines.
const MOST_HISTORIES: u32 = 64;
/// Limit of timeline switches on one connection: each takes a promotion.
const MOST_SWITCHES: u32 = 1000;
/// Bytes taken, while more input is available, before the flusher starts.
const GATHER: usize = 256 << 10;

/// The relay's slot on the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// The slot was created now.
    Made,
    Existed,
    /// None is configured.
    None,
}

/// Source of the WAL.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source<'a> {
    /// The upstream, for as long as the stream lasts.
    Upstream,
    /// Another relay, up to its current end: it has WAL that the upstream has removed. It gets reports of durable positions, as from any other
    /// downstream; they count for no client.
    Relay(&'a OtherRelay),
}

/// The bounds of one stream.
struct Plan {
    /// End of a stream from another relay: its end when the stream began.
    until: Option<(Timeline, Lsn)>,
    /// The requested position.
    from: Lsn,
    /// End of the held WAL that the upstream has as well, and sends again.
    compared: Lsn,
    link: Option<Link>,
}

/// One connection, from connecting to its end.
pub(super) struct Attempt<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) config: &'a UpstreamConfig,
    pub(super) generation: u64,
    pub(super) source: Source<'a>,
    /// True if the upstream refused to stream with the slot: it is recreated.
    pub(super) slot_is_lost: bool,
    /// True if held WAL is requested again, to be compared. False after [`UpstreamError::NoOverlap`].
    pub(super) overlaps: bool,
}

impl Attempt<'_> {
    /// Runs the connection; returns the reason for its end.
    pub(super) fn run(&self, writer: &mut Option<Writer>, back_off: &mut Duration) -> UpstreamError {
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
        let password = match self.source {
            Source::Upstream => password(config)?,
            Source::Relay(relay) => relay.password.clone(),
        };
        let login = self.login(password.as_deref())?;
        self.shared.upstream_is_tried(&self.state("connecting"));
        let known = |socket| self.shared.control.connecting(self.generation, socket);
        let mut session = Session::open(&login, known)?;
        self.shared.control.hold(self.generation, session.socket()?)?;
        let remote = identify(&mut session)?;
        if let Some(log) = self.shared.log()
            && log.identity().system_id != remote.system
        {
            return Err(UpstreamError::OtherSystem {
                expected: log.identity().system_id,
                found: remote.system,
                dir: log.dir().display().to_string(),
            });
        }
        if let Source::Upstream = self.source {
            self.remember(&mut session, &login, remote)?;
        }
        // After the connection was registered: a later fence interrupts it.
        let promise = self.shared.promise.now();
        if remote.timeline <= promise.fenced_up_to() {
            let (term, fenced) = (promise.term(), promise.fenced_up_to());
            return Err(UpstreamError::Fenced { term, fenced, found: remote.timeline });
        }
        let writer = match writer {
            Some(writer) => writer,
            None => writer.insert(self.first_open(&mut session, remote)?),
        };
        let log = self.shared.log().ok_or(UpstreamError::Interrupted)?;
        self.compare_sizes(&mut session, &log)?;
        match self.source {
            Source::Upstream => {
                must_not_be_behind(&mut session, &log, remote)?;
                self.greet(&mut session)?;
                if self.ensure_slot(&mut session)? != Slot::None
                    && let Err(error) = self.shared.slots.has_slot_at(&self.config.address, &self.config.slot)
                {
                    warn!(%error, "that the relay has a slot at its upstream is not saved");
                }
            }
            Source::Relay(_) => {}
        }
        self.fetch_histories(&mut session, &log, remote.timeline)?;
        for _ in 0..MOST_SWITCHES {
            let end = match self.stream(&mut session, writer, &log, remote, back_off)? {
                Some(end) => end,
                None => session.finish_timeline()?,
            };
            self.switch(&mut session, writer, end)?;
        }
        Err(UpstreamError::Protocol(format!("more than {MOST_SWITCHES} timelines ended on one connection")))
    }

    fn login<'b>(&'b self, password: Option<&'b str>) -> Result<Login<'b>, UpstreamError> {
        let config = self.config;
        let (peer, address, user, connector) = match self.source {
            Source::Upstream => {
                let connector = tls::Connector::new(&config.tls)?.map(Arc::new);
                (Peer::Upstream, &config.address, &config.user, connector)
            }
            Source::Relay(relay) => {
                (Peer::Relay(relay.name.clone()), &relay.address, &relay.user, relay.connector.clone())
            }
        };
        Ok(Login {
            peer,
            address,
            user,
            password,
            application_name: &config.application_name,
            connector,
            host_timeout: config.timeout,
            step: STEP,
        })
    }

    /// Returns the relay's state during this connection.
    fn state(&self, upstream: &'static str) -> Cow<'static, str> {
        match self.source {
            Source::Upstream => upstream.into(),
            Source::Relay(relay) => {
                format!("catching up from relay {}: the upstream has no longer what comes next", relay.name).into()
            }
        }
    }

    /// Opens an empty directory: the log begins with the segment that the upstream writes now.
    fn first_open(&self, session: &mut Session, remote: Remote) -> Result<Writer, UpstreamError> {
        let segment_size = SegmentSize::new(segment_bytes(session)?)?;
        let at = segment_size.start_of(Lsn(remote.position));
        let start = Start { timeline: Timeline(remote.timeline), at };
        info!(system = remote.system, timeline = remote.timeline, %at, "a new log begins");
        let identity = crate::log::Identity { system_id: remote.system, segment_size };
        let directory = self.shared.directory().ok_or(UpstreamError::Interrupted)?;
        // The relay now lacks the WAL that it had before.
        let anew = self.shared.promise.change(|promise| Ok(promise.begun_anew(remote.timeline, Lsn(remote.position))));
        anew.map_err(|error| UpstreamError::NoMemory(error.to_string()))?;
        let (writer, log) = Log::open(LogOptions { directory, identity, start: Some(start), spares: SPARES })?;
        self.shared.set_log(log);
        Ok(writer)
    }

    /// Refuses segments of another size than the log's: `pg_resetwal` changes it, but neither the cluster nor the timeline.
    fn compare_sizes(&self, session: &mut Session, log: &Log) -> Result<(), UpstreamError> {
        let (held, found) = (log.identity().segment_size.bytes(), segment_bytes(session)?);
        if held == found {
            return Ok(());
        }
        Err(UpstreamError::OtherSegmentSize { held, found, dir: log.dir().display().to_string() })
    }

    /// Stores the parameters for downstreams' greetings, which must not differ between the relay and its upstream.
    fn greet(&self, session: &mut Session) -> Result<(), UpstreamError> {
        let greeting = Greeting {
            server_version: session.server_version().to_owned(),
            data_directory_mode: show(session, "data_directory_mode")?,
        };
        if let Err(error) = self.shared.slots.greet(greeting) {
            // A full disk must not prevent receiving: the parameters are queried again each time.
            warn!(%error, "what downstreams are greeted with is not saved");
        }
        if show(session, "synchronous_commit")? == "remote_apply" {
            warn!(
                "synchronous_commit is remote_apply on the upstream: a relay applies nothing, so that commits wait for ever \
                 if only relays are synchronous standbys"
            );
        }
        Ok(())
    }

    /// Creates the slot if it does not exist; recreates it if it keeps nothing.
    pub(super) fn ensure_slot(&self, session: &mut Session) -> Result<Slot, SessionError> {
        let slot = &self.config.slot;
        if slot.is_empty() {
            return Ok(Slot::None);
        }
        match session.ask(&self.create_slot(session)) {
            Ok(_) => {
                info!(slot, "made a replication slot on the upstream");
                Ok(Slot::Made)
            }
            // duplicate_object: the normal case, except for the first time.
            Err(error) if error.sqlstate() == Some("42710") => {
                if self.slot_is_lost || self.keeps_nothing(session)? {
                    self.renew_slot(session)?;
                }
                Ok(Slot::Existed)
            }
            Err(error) => Err(error),
        }
    }

    /// Drops a slot that keeps nothing, and recreates it: it keeps what the upstream writes from now on, while the rest comes from another relay.
    fn renew_slot(&self, session: &mut Session) -> Result<(), SessionError> {
        let slot = &self.config.slot;
        match session.ask(&format!("DROP_REPLICATION_SLOT \"{slot}\"")) {
            Ok(_) => info!(slot, "dropped the slot on the upstream, which had given up what it was to keep"),
            // undefined_object: another client has dropped it.
            Err(error) if error.sqlstate() == Some("42704") => {}
            // Another connection uses it, so it keeps something.
            Err(error) if error.refusal().is_some() => {
                warn!(slot, %error, "the slot on the upstream keeps nothing, and cannot be made anew");
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        session.ask(&self.create_slot(session)).map(|_| ())
    }

    fn create_slot(&self, session: &Session) -> String {
        let options =
            if crate::shared::major(session.server_version()) >= 15 { "(RESERVE_WAL)" } else { "RESERVE_WAL" };
        format!("CREATE_REPLICATION_SLOT \"{}\" PHYSICAL {options}", self.config.slot)
    }

    /// True if the slot has no position: the upstream has invalidated it (`max_slot_wal_keep_size`). PostgreSQL before 15 does not report this; there
    /// the slot keeps WAL again once the relay has confirmed some.
    fn keeps_nothing(&self, session: &mut Session) -> Result<bool, SessionError> {
        if crate::shared::major(session.server_version()) < 15 {
            return Ok(false);
        }
        let rows = session.ask(&format!("READ_REPLICATION_SLOT \"{}\"", self.config.slot))?;
        Ok(rows.first().is_some_and(|row| row.text(0).is_some() && row.text(1).is_none()))
    }

    /// Fetches missing history files: downstreams request each of them.
    fn fetch_histories(&self, session: &mut Session, log: &Log, newest: u32) -> Result<(), UpstreamError> {
        let own = log.tail().timeline;
        for timeline in (newest.saturating_sub(MOST_HISTORIES).max(1) + 1)..=newest.min(own.0) {
            if log.history(Timeline(timeline)).is_none() {
                match history(session, timeline) {
                    Ok(content) => log.store_history(Timeline(timeline), &content)?,
                    Err(error) if error.refusal().is_some() => {
                        warn!(timeline, %error, "a timeline's history is not to be had");
                    }
                    Err(error) => return Err(error.into()),
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
        remote: Remote,
        back_off: &mut Duration,
    ) -> Result<Option<TimelineEnd>, UpstreamError> {
        let (timeline, least) = writer.resume();
        let (from, link) = if self.overlaps { (writer.overlap().1, None) } else { (least, writer.link()) };
        let slot = match (self.source, self.config.slot.as_str()) {
            (Source::Relay(_), _) | (_, "") => String::new(),
            (Source::Upstream, slot) => format!("SLOT \"{slot}\" "),
        };
        let command = format!("START_REPLICATION {slot}PHYSICAL {} TIMELINE {}", position(from.0), timeline.0);
        session.set_patience(self.config.timeout, self.config.timeout)?;
        let gone = |error: UpstreamError| match error {
            UpstreamError::Append(AppendError::BeforeStart { .. }) if from < least => UpstreamError::NoOverlap,
            error if from < least && error.is_gap() => UpstreamError::NoOverlap,
            error => error,
        };
        if let Started::Ended(end) = session.start(&command).map_err(|error| gone(error.into()))? {
            return Ok(Some(end));
        }
        let state = self.state("streaming");
        let confirms = matches!(self.source, Source::Upstream);
        let (socket, tail) = (session.socket()?, writer.tail());
        let started = Acknowledger::start(self.shared, self.config, socket, tail, from, state.clone(), confirms);
        let acknowledger = started?;
        // WAL that both the log and the upstream have is compared first.
        let compared = writer.position().1.min(Lsn(remote.position)).max(from);
        let begun = || {
            // Not earlier: a server first confirms the stream, and may then report that the WAL is missing; or send another history.
            info!(upstream = self.config.address, timeline = timeline.0, %from, "{state}");
            self.shared.upstream_is(&state, false);
            *back_off = FIRST_PAUSE;
        };
        let until = match self.source {
            Source::Upstream => None,
            Source::Relay(_) => Some((Timeline(remote.timeline), Lsn(remote.position))),
        };
        let plan = Plan { until, from, compared, link };
        let result = self.receive(session, writer, log, plan, &acknowledger, begun);
        // After any end, the taken bytes are flushed.
        writer.flush_behind();
        acknowledger.stop();
        result.map(|()| None).map_err(gone)
    }

    /// Receives WAL. `begun` is called once the upstream has sent WAL that is taken, and the held part was compared.
    fn receive(
        &self,
        session: &mut Session,
        writer: &mut Writer,
        log: &Log,
        plan: Plan,
        acknowledger: &Acknowledger,
        begun: impl FnOnce(),
    ) -> Result<(), UpstreamError> {
        let Plan { until, from, compared, mut link } = plan;
        let mut received = from;
        let mut begun = Some(begun);
        let mut wal = Vec::with_capacity(1 << 20);
        // Bytes taken since the last flush request.
        let mut gathered = 0;
        loop {
            let (timeline, at) = writer.position();
            if until.is_some_and(|(last, end)| timeline >= last && at >= end) {
                return Err(UpstreamError::CaughtUp);
            }
            acknowledger.waits();
            let (heard, start) = session.receive(&mut wal).map_err(|error| error.silent(self.config.timeout))?;
            if let Some(failure) = log.failure() {
                return Err(UpstreamError::Failed(failure.clone()));
            }
            acknowledger.heard(heard.end);
            if let Some(at) = start {
                let mut at = Lsn(at);
                if let Some(expected) = &mut link {
                    let Some((bytes, follows)) = expected.take(&wal) else { continue };
                    (at, wal) = (expected.at(), bytes);
                    if !follows {
                        return Err(AppendError::Mismatch { at }.into());
                    }
                    link = None;
                }
                self.append(writer, log, at, &wal)?;
                received = Lsn(at.0 + wal.len() as u64);
                acknowledger.received(received, wal.len());
                gathered += wal.len();
            }
            if (heard.end > 0 || start.is_some())
                && received >= compared
                && let Some(begun) = begun.take()
            {
                begun();
            }
            if heard.reply {
                acknowledger.ask();
            }
            // One flush for all that has arrived; while more is available, reading and flushing run concurrently.
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

    /// Appends. When the disk is full it first removes unneeded WAL, and then waits for room. Durable WAL stays acknowledged meanwhile.
    fn append(&self, writer: &mut Writer, log: &Log, at: Lsn, wal: &[u8]) -> Result<(), UpstreamError> {
        let mut told = false;
        loop {
            match writer.take(at, wal) {
                Err(error @ AppendError::Full { .. }) => {
                    // Flushes the part that fitted.
                    writer.flush_behind();
                    if self.made_room(log) {
                        continue;
                    }
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
                        self.shared.upstream_is(&self.state("streaming"), false);
                    }
                    return Ok(result?);
                }
            }
        }
    }

    /// True if unneeded WAL existed, and was removed.
    fn made_room(&self, log: &Log) -> bool {
        match self.shared.retain(log, true) {
            Ok(removed) if removed.segments.is_empty() => false,
            Ok(removed) => {
                let segments = removed.segments.len();
                warn!(segments, "the disk is full: gave up old segments that nobody needs, whatever keep_bytes says");
                true
            }
            Err(error) => {
                warn!(%error, "the disk is full, and old segments cannot be removed");
                false
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

/// Returns the bytes of the upstream's segments.
fn segment_bytes(session: &mut Session) -> Result<u64, UpstreamError> {
    let shown = show(session, "wal_segment_size")?;
    parse_size(&shown).ok_or_else(|| UpstreamError::Protocol(format!("wal_segment_size is {shown:?}")))
}

/// Refuses a primary that ends, on the log's timeline, before a whole record that is durable here. A standby or a relay may be behind, and catches
/// up.
fn must_not_be_behind(session: &mut Session, log: &Log, remote: Remote) -> Result<(), UpstreamError> {
    let (tail, at) = (log.tail(), Lsn(remote.position));
    if remote.timeline != tail.timeline.0 || at >= tail.flushed.get() || role(session)? == Role::Follower {
        return Ok(());
    }
    // A primary that crashed continues where a record was cut off: its beginning may have been sent.
    let held = log.whole_records()?;
    if at >= held { Ok(()) } else { Err(UpstreamError::Behind { timeline: remote.timeline, at, held }) }
}
