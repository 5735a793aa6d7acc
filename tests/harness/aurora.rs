//! A model, made of real servers, of servers that are compatible with PostgreSQL and report no log positions.
//!
//! Real data, real replay, real promotions: only the answers to probes differ. Probes connect to a database of their own, [`PROBED`], in whose
//! `pg_catalog` functions and views are replaced by others of the same names, which answer as Aurora does according to Amazon's documentation and
//! other programs' bug reports.
//!
//! The test has to guarantee what Aurora's shared storage guarantees: before a reader is promoted the writer is *stopped*
//! ([`Node::stop`](crate::Node::stop)), not killed, so that no reader has what the new writer lacks.

use crate::cluster::Cluster;

/// The user that probes of a model connect as.
pub const PROBER: &str = "prober";
/// The database that probes of a model connect to.
pub const PROBED: &str = "probed";

/// Information that the servers of a model report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tells {
    /// As Aurora: a list of the members that share the storage, and snapshots.
    Members,
    /// Snapshots, without a list.
    Snapshots,
    /// Roles only.
    Roles,
}

/// Functions that exist and fail, with their return types.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("pg_last_wal_replay_lsn()", "pg_lsn"),
    ("pg_last_wal_receive_lsn()", "pg_lsn"),
    ("pg_last_xact_replay_timestamp()", "timestamptz"),
    ("pg_stat_get_wal_receiver()", "TABLE (received_tli int)"),
    ("pg_get_replication_slots()", "TABLE (restart_lsn pg_lsn)"),
];

/// Further such functions on a writer with `wal_level` below `logical`.
const NOT_LOGICAL: &[(&str, &str)] = &[
    ("pg_current_wal_lsn()", "pg_lsn"),
    ("pg_current_wal_insert_lsn()", "pg_lsn"),
    ("pg_current_wal_flush_lsn()", "pg_lsn"),
];

fn failing(name: &str, returns: &str, code: &str, text: &str) -> String {
    let text = text.replace('\'', "''");
    format!(
        "ALTER FUNCTION pg_catalog.{name} RENAME TO real_{};\n\
         CREATE FUNCTION pg_catalog.{name} RETURNS {returns} LANGUAGE plpgsql AS \
         $$BEGIN RAISE EXCEPTION USING ERRCODE = '{code}', MESSAGE = '{text}'; END$$;\n",
        name.trim_end_matches("()")
    )
}

impl Cluster {
    /// Turns all nodes into servers of the model for sessions in [`PROBED`].
    ///
    /// # Panics
    /// When that does not succeed in time.
    pub async fn tell_only(&self, tells: Tells) {
        self.primary().execute_in("postgres", &format!("CREATE ROLE {PROBER} LOGIN")).await;
        self.primary().execute_in("postgres", &format!("CREATE DATABASE {PROBED}")).await;
        let mut sql = format!(
            "SET allow_system_table_mods = on;\n\
             CREATE SCHEMA model;\n\
             GRANT USAGE ON SCHEMA model TO {PROBER};\n\
             CREATE TABLE model.disowned (server_id text);\n"
        );
        for (name, returns) in UNSUPPORTED {
            sql += &failing(name, returns, "0A000", &format!("Function {name} is currently not supported for Aurora"));
        }
        for (name, returns) in NOT_LOGICAL {
            sql += &failing(name, returns, "55000", "wal_level must be set to 'logical'");
        }
        for (view, function) in
            [("pg_stat_wal_receiver", "pg_stat_get_wal_receiver"), ("pg_replication_slots", "pg_get_replication_slots")]
        {
            sql += &format!(
                "ALTER VIEW pg_catalog.{view} RENAME TO real_{view};\n\
                 CREATE VIEW pg_catalog.{view} AS SELECT * FROM pg_catalog.{function}();\n\
                 GRANT SELECT ON pg_catalog.{view} TO PUBLIC;\n"
            );
        }
        if tells == Tells::Roles {
            sql += &failing("pg_current_snapshot()", "pg_snapshot", "0A000", "snapshots are not supported");
        }
        if tells == Tells::Members {
            // Only the server's own row, which is the one that a probe queries.
            sql += "CREATE FUNCTION pg_catalog.aurora_db_instance_identifier() RETURNS text LANGUAGE sql AS \
                    $$SELECT pg_catalog.current_setting('cluster_name')$$;\n\
                    CREATE FUNCTION pg_catalog.aurora_replica_status() \
                    RETURNS TABLE (server_id text, session_id text, replica_lag_in_msec double precision) LANGUAGE sql AS $$\
                    SELECT name, CASE WHEN reader THEN '4b8ad0f0-0000-4000-8000-000000000000' ELSE 'MASTER_SESSION_ID' END, \
                           CASE WHEN reader THEN 15.5::float8 END \
                    FROM (SELECT name, pg_catalog.pg_is_in_recovery() \
                                 OR EXISTS (SELECT FROM model.disowned AS d WHERE d.server_id = name) AS reader \
                          FROM pg_catalog.current_setting('cluster_name') AS name) AS own$$;\n";
        }
        sql += &format!("GRANT SELECT ON ALL TABLES IN SCHEMA model TO {PROBER};\n");
        self.primary().execute_in(PROBED, &sql).await;
        self.wait_caught_up().await;
    }
}
