//! The two dialects of the log and its protocol: everything in which MariaDB and MySQL differ, as far as it is data. GTIDs are in [`crate::gtid`].

use crate::event::{self, BodyError, Kind};
use crate::gtid::{State, mysql};
use crate::protocol::command::ANNOTATE_ROWS;
use crate::walker::Event;

/// A family of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// MariaDB 10.5 and later.
    MariaDb,
    /// MySQL 8.4 and later, with `gtid_mode = ON`.
    MySql,
}

/// A method of login by a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugin {
    /// `mysql_native_password`, by SHA-1.
    Native,
    /// `caching_sha2_password`, by SHA-256.
    Sha2,
}

impl Plugin {
    /// Returns the name in the protocol.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Plugin::Native => "mysql_native_password",
            Plugin::Sha2 => "caching_sha2_password",
        }
    }
}

impl Dialect {
    /// Returns the name of the family.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dialect::MariaDb => "MariaDB",
            Dialect::MySql => "MySQL",
        }
    }

    /// Returns the kind of the event that lists a file's earlier transactions.
    #[must_use]
    pub fn list(self) -> Kind {
        match self {
            Dialect::MariaDb => Kind::MARIADB_GTID_LIST,
            Dialect::MySql => Kind::MYSQL_PREVIOUS_GTIDS,
        }
    }

    /// Returns the family of a file by the event that lists its earlier transactions; None for any other event.
    #[must_use]
    pub fn of_list(kind: Kind) -> Option<Dialect> {
        [Dialect::MariaDb, Dialect::MySql].into_iter().find(|dialect| dialect.list() == kind)
    }

    /// Returns the transactions before a file, if the event is the list of them.
    ///
    /// # Errors
    /// The list cannot be parsed.
    pub fn begins(self, event: &Event<'_>) -> Result<Option<State>, BodyError> {
        let kind = event.header.kind;
        if kind != self.list() {
            return Ok(None);
        }
        let wrong = |what: String| BodyError { kind, what };
        Ok(Some(match self {
            Dialect::MariaDb => {
                let state = crate::gtid::mariadb::State::from_list(&event::gtid_list(event.body)?);
                State::MariaDb(state.ok_or_else(|| wrong("too many domains and servers".into()))?)
            }
            Dialect::MySql => State::MySql(mysql::Set::decode(event.body).map_err(|error| wrong(error.to_string()))?),
        }))
    }

    /// Returns the method by which replicas of the family log in.
    #[must_use]
    pub fn plugin(self) -> Plugin {
        match self {
            Dialect::MariaDb => Plugin::Native,
            Dialect::MySql => Plugin::Sha2,
        }
    }

    /// Returns the version in a server's greeting. MariaDB puts one in front that old replicas of MySQL accept.
    #[must_use]
    pub fn greeting(self, version: &str) -> String {
        match self {
            Dialect::MariaDb => format!("5.5.5-{version}"),
            Dialect::MySql => version.into(),
        }
    }

    /// Returns the version that is told before the source's is known.
    #[must_use]
    pub fn oldest_version(self) -> &'static str {
        match self {
            Dialect::MariaDb => "10.11.0-MariaDB",
            Dialect::MySql => "8.4.0",
        }
    }

    /// Returns the statements with which a replica prepares the request for events: time between heartbeats in nanoseconds, its own `server_id`, and
    /// whether it acknowledges.
    #[must_use]
    pub fn preparation(self, heartbeat: u64, server_id: u32, semisync: bool) -> Vec<String> {
        let semisync = u8::from(semisync);
        match self {
            Dialect::MariaDb => vec![
                format!("SET @master_heartbeat_period = {heartbeat}"),
                "SET @master_binlog_checksum = @@global.binlog_checksum".into(),
                "SET @mariadb_slave_capability = 4".into(),
                format!("SET @rpl_semi_sync_slave = {semisync}"),
            ],
            Dialect::MySql => {
                let mut statements = vec![
                    format!("SET @source_heartbeat_period = {heartbeat}"),
                    "SET @source_binlog_checksum = @@global.binlog_checksum".into(),
                    format!("SET @replica_uuid = '{}'", uuid_of(server_id)),
                ];
                // A replica that does not acknowledge does not set it at all.
                if semisync == 1 {
                    statements.push("SET @rpl_semi_sync_replica = 1".into());
                }
                statements
            }
        }
    }

    /// Returns the query for the checksum of the first events, after [`Dialect::preparation`].
    #[must_use]
    pub fn checksum_query(self) -> &'static str {
        match self {
            Dialect::MariaDb => "SELECT @master_binlog_checksum",
            Dialect::MySql => "SELECT @source_binlog_checksum",
        }
    }

    /// Returns the statement by which a server begins its history anew.
    #[must_use]
    pub fn reset(self) -> &'static str {
        match self {
            Dialect::MariaDb => "RESET MASTER",
            Dialect::MySql => "RESET BINARY LOGS AND GTIDS",
        }
    }

    /// Returns the flags of a request for events by file and offset.
    #[must_use]
    pub fn dump_flags(self) -> u16 {
        match self {
            Dialect::MariaDb => ANNOTATE_ROWS,
            Dialect::MySql => 0,
        }
    }

    /// Returns the status variable that is OFF while a source does not wait for replicas.
    #[must_use]
    pub fn semisync_status(self) -> &'static str {
        match self {
            Dialect::MariaDb => "Rpl_semi_sync_master_status",
            Dialect::MySql => "Rpl_semi_sync_source_status",
        }
    }
}

/// Returns the `server_uuid` of a relay with this `server_id`, which no other server of the cluster has: `kingpost` in ASCII, and the number.
#[must_use]
pub fn uuid_of(server_id: u32) -> mysql::Uuid {
    let mut uuid = *b"kingpost\0\0\0\0\0\0\0\0";
    uuid[12..].copy_from_slice(&server_id.to_be_bytes());
    mysql::Uuid(uuid)
}
