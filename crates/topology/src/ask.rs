//! A prober's session: the queries to a node, and the meaning of its answers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::Statement;
use tokio_postgres::types::PgLsn;
use tracing::{info, warn};
use watermark::Lsn;
use wire::control::{PROBE, Settings};

use crate::decide::{Facts, Position};
use crate::local_socket;
use crate::offer::{self, ASK_ROLE, ASK_SNAPSHOT, Numbers, Offered};
use crate::probe::{ProbeError, Prober, Reached, Session, connect};

/// `standby` is read first and once: a server leaves recovery but does not return to it, so the columns for a standby can still be answered when it
/// has just been promoted. The timeline that is followed is the one being received; a standby that receives nothing has only the control file, which
/// is behind until its next restart point.
const ASK: &str = "\
    SELECT standby, \
           CASE WHEN standby THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END, \
           CASE WHEN NOT standby THEN left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) END, \
           CASE WHEN standby THEN greatest( \
               (SELECT received_tli FROM pg_catalog.pg_stat_wal_receiver), \
               (SELECT min_recovery_end_timeline FROM pg_catalog.pg_control_recovery()), \
               (SELECT timeline_id FROM pg_catalog.pg_control_checkpoint())) END, \
           CASE WHEN standby THEN \
               extract(epoch FROM clock_timestamp() - pg_catalog.pg_last_xact_replay_timestamp())::float8 END, \
           (SELECT max(CASE WHEN standby THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END - restart_lsn)::float8 \
            FROM pg_catalog.pg_replication_slots), \
           extract(epoch FROM pg_catalog.pg_postmaster_start_time())::float8, \
           extract(epoch FROM pg_catalog.pg_conf_load_time())::float8 \
    FROM (SELECT pg_catalog.pg_is_in_recovery() AS standby OFFSET 0) AS role";

/// Query for the position of a standby, without the control file, which takes longer to read than all the rest. As in [`ASK`], the timeline is read
/// after the position.
const ASK_QUICKLY: &str = "\
    SELECT standby, \
           CASE WHEN standby THEN pg_catalog.pg_last_wal_replay_lsn() END, \
           CASE WHEN standby THEN (SELECT received_tli FROM pg_catalog.pg_stat_wal_receiver) END, \
           CASE WHEN standby THEN \
               extract(epoch FROM clock_timestamp() - pg_catalog.pg_last_xact_replay_timestamp())::float8 END \
    FROM (SELECT pg_catalog.pg_is_in_recovery() AS standby OFFSET 0) AS role";

/// Log messages that a prober has already written.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    uninformed: bool,
    numbers: Option<&'static str>,
}

/// A prober's session with its state for as long as the session lasts.
pub(crate) struct Watched {
    pub(crate) session: Session,
    offered: Offered,
    ask: Statement,
    /// Prepared when it is needed for the first time.
    ask_quickly: Option<Statement>,
    /// Highest timeline seen: a server's timeline does not go back, but a single answer may lack it.
    timeline: u32,
    fresh: bool,
    /// Bytes of WAL that the server keeps for the slot that is furthest behind, as of the last complete answer.
    pub(crate) slots_held: u64,
    /// [`NodeView::settings`](crate::NodeView::settings) as of the last complete answer.
    pub(crate) settings: u64,
    socket: Option<Arc<Path>>,
}

impl Watched {
    pub(crate) async fn open(prober: &Prober, noted: &mut Noted) -> Result<Watched, ProbeError> {
        let connector = prober.shared.connector.load_full();
        let session = connect(&prober.target, &prober.config, connector, PROBE, Some(&Settings::catalog())).await?;
        let offered = offer::find(&session.client, prober.config.positions).await?;
        noted.note(prober, offered.numbers);
        let text = match offered.numbers {
            Numbers::Log { .. } => ASK,
            Numbers::Transactions => ASK_SNAPSHOT,
            Numbers::None => ASK_ROLE,
        };
        let ask = session.client.prepare(text).await?;
        let socket = match prober.config.may_use_local_sockets() {
            // Time for the questions of the probe must be left.
            true => timeout(prober.config.probe_timeout / 4, local_socket::find(&session, &prober.config)).await,
            false => Ok(None),
        };
        Ok(Watched {
            session,
            offered,
            ask,
            ask_quickly: None,
            timeline: 0,
            fresh: true,
            slots_held: 0,
            settings: settings_number(opened()),
            socket: socket.ok().flatten(),
        })
    }

    /// Returns the addresses at which this session has reached the node.
    pub(crate) fn reached(&self) -> Reached {
        Reached { address: self.session.address.clone(), socket: self.socket.clone() }
    }

    /// Queries only the position of a standby: None if that is not possible without the complete query, and `ask` must be used. Possible for a
    /// standby that receives on its already known timeline: then that is the one it replays.
    pub(crate) async fn ask_quickly(&mut self) -> Result<Option<Facts>, ProbeError> {
        if !matches!(self.offered.numbers, Numbers::Log { .. }) {
            return Ok(None);
        }
        if self.ask_quickly.is_none() {
            self.ask_quickly = Some(self.session.client.prepare(ASK_QUICKLY).await?);
        }
        let Some(ask) = &self.ask_quickly else { return Ok(None) };
        let row = self.session.client.query_one(ask, &[]).await?;
        let receives = row.try_get::<_, Option<i32>>(2)?.map(i32::cast_unsigned);
        let Some(lsn) = row.try_get::<_, Option<PgLsn>>(1)?.filter(|_| receives == Some(self.timeline)) else {
            return Ok(None);
        };
        let position = Position::of_log(Lsn(u64::from(lsn)), commit_age(row.try_get(3)?));
        Ok(Some(Facts { system: self.offered.system, timeline: self.timeline, fresh: false, position }))
    }

    pub(crate) async fn ask(&mut self) -> Result<Facts, ProbeError> {
        let position = match self.offered.numbers {
            Numbers::Log { .. } => self.ask_log().await?,
            Numbers::Transactions | Numbers::None => self.ask_without_log().await?,
        };
        let fresh = std::mem::replace(&mut self.fresh, false);
        Ok(Facts { system: self.offered.system, timeline: self.timeline, fresh, position })
    }

    async fn ask_log(&mut self) -> Result<Position, ProbeError> {
        let row = self.session.client.query_one(&self.ask, &[]).await?;
        let lsn = Lsn(row.try_get::<_, Option<PgLsn>>(1)?.map_or(0, u64::from));
        let (timeline, position) = if row.try_get(0)? {
            let timeline = row.try_get::<_, Option<i32>>(3)?.unwrap_or(0).cast_unsigned();
            (timeline, Position::of_log(lsn, commit_age(row.try_get(4)?)))
        } else {
            (parse_timeline(row.try_get(2)?)?, Position::Primary { lsn })
        };
        self.slots_held = row.try_get::<_, Option<f64>>(5)?.unwrap_or(0.0).max(0.0) as u64;
        self.settings = settings_number([row.try_get(6)?, row.try_get(7)?]);
        self.timeline = self.timeline.max(timeline);
        Ok(position)
    }

    async fn ask_without_log(&self) -> Result<Position, ProbeError> {
        let client = &self.session.client;
        let row = client.query_one(&self.ask, &[]).await?;
        let standby: bool = row.try_get(0)?;
        let snapshot = match self.offered.numbers {
            Numbers::Transactions => (number(row.try_get(1)?)?, number(row.try_get(2)?)?),
            _ => (Lsn(0), Lsn(0)),
        };
        let member = match &self.offered.member {
            None => None,
            Some(ask) => Some(match client.query_opt(ask, &[]).await? {
                // The server is in no list: no row proves that it is the writer.
                None => (false, None),
                Some(row) => (row.try_get::<_, Option<bool>>(0)?.unwrap_or(false), lag(row.try_get(1)?)),
            }),
        };
        Ok(position(standby, snapshot, member))
    }
}

impl Noted {
    fn note(&mut self, prober: &Prober, numbers: Numbers) {
        if self.numbers.replace(numbers.name()).is_none_or(|before| before != numbers.name()) {
            match numbers {
                Numbers::Log { .. } => {}
                Numbers::Transactions => info!(
                    node = prober.name,
                    "this server tells no position in its log: where it is, is told by transaction ids (cluster.positions)"
                ),
                Numbers::None => info!(
                    node = prober.name,
                    "this server tells no position: what a client reads after a write, the primary answers (cluster.positions)"
                ),
            }
        }
        if matches!(numbers, Numbers::Log { informed: false, .. }) && !std::mem::replace(&mut self.uninformed, true) {
            warn!(
                node = prober.name,
                user = prober.config.user,
                "this user may not see which timeline a replica receives: after a failover replicas stay without reads \
                 until their next restart point; GRANT pg_monitor to it"
            );
        }
    }
}

/// Returns the position of a server without a readable log. `snapshot`: its lower and upper transaction ID. `member`: for a server in a list of those
/// that share a storage, true if it is the writer there, and its replication lag.
fn position(standby: bool, snapshot: (Lsn, Lsn), member: Option<(bool, Option<Duration>)>) -> Position {
    match (standby, member) {
        (true, _) => Position::Standby {
            replayed: snapshot.0,
            reached: snapshot.1,
            late: member.and_then(|(_, late)| late),
            commit_age: None,
        },
        (false, Some((false, _))) => Position::Disowned,
        (false, _) => Position::Primary { lsn: snapshot.1 },
    }
}

/// Returns a number made from two times, in seconds: of the server's start, and of the last time it has read its files.
fn settings_number(times: [f64; 2]) -> u64 {
    let [start, load] = times.map(f64::to_bits);
    (start.rotate_left(32) ^ load).max(1)
}

/// Returns the times of a server that reports none: those of the session.
fn opened() -> [f64; 2] {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    [0.0, since.as_secs_f64()]
}

fn number(id: i64) -> Result<Lsn, ProbeError> {
    let id = u64::try_from(id).map_err(|_| ProbeError::Unexpected(format!("{id} is no transaction id")))?;
    Ok(Lsn(id))
}

/// Converts from milliseconds; a negative number is none.
fn lag(millis: Option<f64>) -> Option<Duration> {
    millis.and_then(|millis| Duration::try_from_secs_f64(millis / 1000.0).ok())
}

/// Converts from seconds. A clock that is ahead makes a negative age: nothing is known then.
fn commit_age(age: Option<f64>) -> Option<Duration> {
    age.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

/// Parses the timeline in the first eight digits of a WAL file's name.
pub(crate) fn parse_timeline(digits: &str) -> Result<u32, ProbeError> {
    u32::from_str_radix(digits, 16)
        .map_err(|_| ProbeError::Unexpected(format!("the name of a WAL file begins with {digits:?}, not a timeline")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_without_a_log_is() {
        let snapshot = (Lsn(7), Lsn(9));
        let late = Some(Duration::from_millis(20));
        let standby = |late| Position::Standby { replayed: Lsn(7), reached: Lsn(9), late, commit_age: None };
        for (in_recovery, member, expected) in [
            (true, None, standby(None)),
            (true, Some((false, late)), standby(late)),
            // The list lags behind a role that has just ended: the server's own answer counts.
            (true, Some((true, None)), standby(None)),
            (false, None, Position::Primary { lsn: Lsn(9) }),
            (false, Some((true, None)), Position::Primary { lsn: Lsn(9) }),
            (false, Some((false, late)), Position::Disowned),
        ] {
            assert_eq!(position(in_recovery, snapshot, member), expected, "{in_recovery} {member:?}");
        }
    }

    #[test]
    fn a_reload_and_a_start_change_the_number() {
        let (start, load) = (1_700_000_000.123_456, 1_700_000_000.323_456);
        let first = settings_number([start, load]);
        assert_eq!(first, settings_number([start, load]));
        assert_ne!(first, settings_number([start, load + 0.000_01]));
        assert_ne!(first, settings_number([start + 0.000_01, load]));
        assert_ne!(settings_number([0.0, 0.0]), 0);
    }

    #[test]
    fn odd_numbers_are_none() {
        assert!(number(-1).is_err());
        assert_eq!(lag(Some(-1.0)), None);
        assert_eq!(lag(Some(f64::NAN)), None);
        assert_eq!(lag(Some(1500.0)), Some(Duration::from_millis(1500)));
    }
}
