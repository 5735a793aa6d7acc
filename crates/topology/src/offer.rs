//! Kind of a server's positions, determined once a session.
//!
//! PostgreSQL has positions in the write-ahead log, and timelines. A server that is compatible with it may have neither: on Amazon Aurora the
//! functions exist and fail ("is currently not supported for Aurora"), and which of them do depends on the version, the role and `wal_level`. So
//! names and versions are ignored: a function that answers is supported, one that fails as unsupported is not.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Statement};

use crate::config::Positions;
use crate::probe::ProbeError;

/// Trial of all later queries to a primary and to a standby, in one statement: a server offers log positions only if it could answer in both roles.
/// (A writer of Aurora with `wal_level = logical` has positions, its readers have none: the two can't be compared.)
const ASK_LOG: &str = "\
    SELECT system_identifier, pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size')), \
           pg_catalog.pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), \
           CASE WHEN NOT standby THEN pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()) END, \
           pg_catalog.pg_last_wal_replay_lsn(), pg_catalog.pg_last_xact_replay_timestamp(), \
           (SELECT received_tli FROM pg_catalog.pg_stat_wal_receiver), \
           (SELECT min_recovery_end_timeline FROM pg_catalog.pg_control_recovery()), \
           (SELECT timeline_id FROM pg_catalog.pg_control_checkpoint()), \
           (SELECT count(*) FROM pg_catalog.pg_replication_slots) \
    FROM (SELECT pg_catalog.pg_is_in_recovery() AS standby OFFSET 0) AS role, pg_catalog.pg_control_system()";

const ASK_SYSTEM: &str = "SELECT system_identifier FROM pg_catalog.pg_control_system()";

/// Placeholder for the system identifier of a server that reports none. (0 is "not known yet".)
const UNTOLD: u64 = 1;

/// Query for the role and two numbers of the statement's own snapshot: all transactions below the first have ended, and those of them that committed
/// are visible; none at or above the second is.
pub(crate) const ASK_SNAPSHOT: &str = "\
    SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.pg_snapshot_xmin(seen)::text::bigint, pg_catalog.pg_snapshot_xmax(seen)::text::bigint \
    FROM pg_catalog.pg_current_snapshot() AS seen";

pub(crate) const ASK_ROLE: &str = "SELECT pg_catalog.pg_is_in_recovery()";

/// Query for this server's row in the list of those that share one storage: true if it is the writer, and its replication lag.
pub(crate) const ASK_MEMBER: &str = "\
    SELECT session_id = 'MASTER_SESSION_ID', replica_lag_in_msec::float8 \
    FROM aurora_replica_status() WHERE server_id = aurora_db_instance_identifier()";

/// Abilities of a server, determined at the beginning of a session.
pub(crate) struct Offered {
    /// System identifier of the server, or [`UNTOLD`].
    pub(crate) system: u64,
    pub(crate) numbers: Numbers,
    /// Query [`ASK_MEMBER`], prepared if the server has such a list.
    pub(crate) member: Option<Statement>,
}

/// Kind of the server's positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// Positions in its log, of segments of this size, and timelines. `informed`: the user may see which timeline is received.
    Log { segment: u64, informed: bool },
    /// Transaction IDs.
    Transactions,
    /// None: the server reports only its role.
    None,
}

impl Numbers {
    /// Returns the name for the log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Numbers::Log { .. } => "wal",
            Numbers::Transactions => "transactions",
            Numbers::None => "none",
        }
    }
}

/// Determines the server's abilities, as far as `wanted` leaves them open.
///
/// # Errors
/// The server does not answer, or does not support `wanted`.
pub(crate) async fn find(client: &Client, wanted: Positions) -> Result<Offered, ProbeError> {
    if matches!(wanted, Positions::Auto | Positions::Wal) {
        let log = log(client).await;
        if wanted == Positions::Wal {
            return log;
        }
        if let Some(offered) = unless_lacking(log)? {
            return Ok(offered);
        }
    }
    let system = system_if_told(client).await?;
    let member = unless_lacking(member(client).await)?;
    let numbers = match wanted {
        Positions::Transactions => snapshot(client).await.map(|()| Numbers::Transactions)?,
        // Transaction IDs mean the same on two servers only if they share one history, and without timelines only the list proves that.
        Positions::Auto if member.is_some() => match unless_lacking(snapshot(client).await)? {
            Some(()) => Numbers::Transactions,
            None => Numbers::None,
        },
        _ => Numbers::None,
    };
    Ok(Offered { system, numbers, member })
}

/// Positions in the log.
pub(crate) async fn log(client: &Client) -> Result<Offered, ProbeError> {
    let row = client.query_one(ASK_LOG, &[]).await?;
    let (system, segment): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    let numbers = Numbers::Log { segment: segment.cast_unsigned(), informed: row.try_get(2)? };
    Ok(Offered { system: system.cast_unsigned(), numbers, member: None })
}

/// Returns the system identifier, if there is one, of a server without a readable log.
pub(crate) async fn system_if_told(client: &Client) -> Result<u64, ProbeError> {
    match client.query_one(ASK_SYSTEM, &[]).await {
        Ok(row) => Ok(row.try_get::<_, i64>(0)?.cast_unsigned()),
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Ok(UNTOLD),
        Err(error) => Ok(unless_lacking(Err(error.into()))?.unwrap_or(UNTOLD)),
    }
}

async fn member(client: &Client) -> Result<Statement, ProbeError> {
    let statement = client.prepare(ASK_MEMBER).await?;
    client.query_opt(&statement, &[]).await?;
    Ok(statement)
}

async fn snapshot(client: &Client) -> Result<(), ProbeError> {
    client.query_one(ASK_SNAPSHOT, &[]).await?;
    Ok(())
}

/// Returns None if the server reports that it does not support the query; any other failure stays one. A missing privilege is a failure: a server
/// that has timelines must not be taken for one without.
fn unless_lacking<T>(answer: Result<T, ProbeError>) -> Result<Option<T>, ProbeError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(ProbeError::Server(error)) if error.code().is_some_and(is_lacking) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_lacking(code: &SqlState) -> bool {
    [
        SqlState::FEATURE_NOT_SUPPORTED,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::UNDEFINED_TABLE,
        SqlState::UNDEFINED_COLUMN,
        // "wal_level must be set to 'logical'"
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
    ]
    .contains(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_server_says_it_lacks_is_lacking() {
        for (code, lacking) in [
            ("0A000", true),
            ("42883", true),
            ("42P01", true),
            ("42703", true),
            ("55000", true),
            ("42501", false),
            ("57P01", false),
            ("57014", false),
            ("53300", false),
            ("XX000", false),
        ] {
            assert_eq!(is_lacking(&SqlState::from_code(code)), lacking, "{code}");
        }
    }
}
