//! Answers to the statements of a replica: pure decisions, without I/O.
//!
//! [`meaning`] is the one table of the variables that a replica may set: each is honoured, has no effect for the reason beside it, or is refused with
//! an error that the replica shows. Sources: `slave.cc`, `semisync_slave.cc` and `mysqlbinlog.cc` of MariaDB 10.5 to 11.8, `rpl_replica.cc` of MySQL.

use std::time::Duration;

use ::binlog::event::Checksum;
use ::binlog::gtid::mariadb::Position;
use ::binlog::protocol::command::{ANNOTATE_ROWS, Dump, DumpGtid, NON_BLOCK, THROUGH_GTID};
use ::binlog::protocol::reply::Row;
use ::binlog::protocol::text::Statement;
use ::binlog::{Dialect, uuid_of};

use super::feed::Request;
use super::feed::mariadb::{self, Until};

/// Longest value of a variable, in bytes.
const LONGEST: usize = 2 << 20;
/// Dump flag of MySQL: the replica also understands heartbeats with positions of 64 bits. No effect: all understand those with 32 bits.
const HEARTBEAT_V2: u16 = 2;
/// Capability level of a replica that understands GTIDs and omitted events (MariaDB 10.0 and later).
const UNDERSTANDS_GTIDS: u64 = 4;

/// The relay's own values, for a replica's queries.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) dialect: Dialect,
    pub(super) server_id: u32,
    pub(super) version: String,
    pub(super) checksum: Checksum,
    pub(super) state: String,
    /// Seconds since 1970.
    pub(super) now: u64,
}

/// Effect of a variable that a replica sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// Nanoseconds between two heartbeats; 0 for none.
    Heartbeat,
    /// The replica understands checksums; the announcement before the first format event has this one.
    Checksum,
    /// See [`UNDERSTANDS_GTIDS`].
    Capability,
    /// Start position.
    Position,
    /// A position in a gap of the log is an error.
    Strict,
    /// A position that the log does not have yet is no error.
    IgnoreDuplicates,
    /// End position.
    Until,
    /// The transactions of the end position are left out, too.
    UntilBefore,
    /// Two bytes more before each event.
    SemiSync,
    /// Events that were marked with `@@skip_replication` are left out.
    SkipMarked,
    /// No effect, for this reason.
    None(#[allow(dead_code)] &'static str),
}

/// Returns the effect of a user variable, or (`system`) of a system variable of the session. None: refused, since the behaviour of a source is not
/// known.
fn meaning(system: bool, name: &str) -> Option<Meaning> {
    Some(match (system, name) {
        (false, "master_heartbeat_period" | "source_heartbeat_period") => Meaning::Heartbeat,
        (false, "master_binlog_checksum" | "source_binlog_checksum") => Meaning::Checksum,
        (false, "mariadb_slave_capability") => Meaning::Capability,
        (false, "slave_connect_state") => Meaning::Position,
        (false, "slave_gtid_strict_mode") => Meaning::Strict,
        (false, "slave_gtid_ignore_duplicates") => Meaning::IgnoreDuplicates,
        (false, "slave_until_gtid") => Meaning::Until,
        (false, "slave_gtid_until_before_gtids") => Meaning::UntilBefore,
        (false, "rpl_semi_sync_slave" | "rpl_semi_sync_replica") => Meaning::SemiSync,
        (true, "skip_replication") => Meaning::SkipMarked,
        (false, "slave_uuid" | "replica_uuid") => Meaning::None("replicas are told apart by their server_id"),
        (true, "net_write_timeout" | "net_read_timeout" | "wait_timeout") => {
            Meaning::None("relay.downstream_timeout is the limit on a replica that takes nothing")
        }
        _ => return None,
    })
}

/// Requests of a replica, as its variables state them.
#[derive(Debug, Default)]
pub(super) struct ReplicaSettings {
    heartbeat: Option<Duration>,
    checksum: Option<Checksum>,
    capability: u64,
    position: Option<Position>,
    strict: bool,
    ignore_duplicates: bool,
    until: Option<Position>,
    until_before: bool,
    semisync: bool,
    skip_marked: bool,
}

/// An answer to a statement.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StatementReply {
    Ok,
    Rows(Vec<String>, Vec<Row>),
    /// Ends the connection with this number.
    Kill(u32),
    /// Number, SQLSTATE, text.
    Error(u16, &'static str, String),
}

impl ReplicaSettings {
    /// Returns the time between two heartbeats; None if the replica wants none.
    pub(super) fn heartbeat(&self) -> Option<Duration> {
        self.heartbeat
    }

    /// Returns the checksum of the first announcement of a file; None if the replica does not understand checksums.
    pub(super) fn checksum(&self) -> Option<Checksum> {
        self.checksum
    }

    /// True if each event has the header of a semi-synchronous source. No event requests an acknowledgement: the relay is the durable copy.
    pub(super) fn semisync(&self) -> bool {
        self.semisync
    }

    /// Returns the events that a dump command requests.
    ///
    /// # Errors
    /// In words, if the relay cannot behave as a source would.
    pub(super) fn request(&self, dump: &Dump) -> Result<Request, String> {
        let Some(position) = self.position.clone() else {
            return Err("a relay feeds replicas by GTID: CHANGE MASTER TO MASTER_USE_GTID = slave_pos".into());
        };
        if self.capability < UNDERSTANDS_GTIDS {
            return Err(format!(
                "a relay feeds replicas that understand GTIDs: @mariadb_slave_capability is {}, and {UNDERSTANDS_GTIDS} is needed",
                self.capability
            ));
        }
        if dump.flags & !(NON_BLOCK | ANNOTATE_ROWS) != 0 {
            return Err(format!("this relay does not know the flags {:#x} of COM_BINLOG_DUMP", dump.flags));
        }
        let before = self.until_before;
        Ok(Request::MariaDb(mariadb::Request {
            position,
            strict: self.strict,
            ignore_duplicates: self.ignore_duplicates,
            until: self.until.clone().map(|at| Until { at, before }),
            skip_marked: self.skip_marked,
            annotate: dump.flags & ANNOTATE_ROWS != 0,
        }))
    }

    /// Returns the events that a dump command of MySQL requests.
    ///
    /// # Errors
    /// In words, if the relay cannot behave as a source would.
    pub(super) fn request_set(dump: &DumpGtid) -> Result<Request, String> {
        if dump.flags & !(NON_BLOCK | HEARTBEAT_V2 | THROUGH_GTID) != 0 {
            return Err(format!("this relay does not know the flags {:#x} of COM_BINLOG_DUMP_GTID", dump.flags));
        }
        Ok(Request::MySql(dump.set.clone()))
    }

    /// Sets a variable.
    fn set(&mut self, system: bool, name: &str, value: &str, facts: &Facts) -> Result<(), (u16, &'static str, String)> {
        let Some(meaning) = meaning(system, name) else {
            return Err(match system {
                true => (1193, "HY000", format!("Unknown system variable '{name}': this is a relay of the binary log")),
                false => (1235, "42000", format!("this relay does not know what a source does with @{name}")),
            });
        };
        let wrong = || {
            let value: String = value.chars().take(200).collect();
            (1231, "42000", format!("Variable '{name}' can't be set to the value of '{value}'"))
        };
        if value.len() > LONGEST {
            return Err(wrong());
        }
        let number = || value.parse::<u64>().map_err(|_| wrong());
        let switch = || match value.to_ascii_lowercase().as_str() {
            "1" | "on" => Ok(true),
            "0" | "off" => Ok(false),
            _ => Err(wrong()),
        };
        let position = || value.parse::<Position>().map_err(|_| wrong());
        match meaning {
            Meaning::Heartbeat => {
                let nanos = number()?;
                self.heartbeat = (nanos > 0).then(|| Duration::from_nanos(nanos));
            }
            Meaning::Checksum => {
                self.checksum = Some(match value.to_ascii_lowercase().as_str() {
                    "@@global.binlog_checksum" => facts.checksum,
                    "none" => Checksum::None,
                    "crc32" => Checksum::Crc32,
                    _ => return Err(wrong()),
                });
            }
            Meaning::Capability => self.capability = number()?,
            Meaning::Position => self.position = Some(position()?),
            Meaning::Strict => self.strict = switch()?,
            Meaning::IgnoreDuplicates => self.ignore_duplicates = switch()?,
            Meaning::Until => self.until = Some(position()?),
            Meaning::UntilBefore => self.until_before = switch()?,
            Meaning::SemiSync => self.semisync = switch()?,
            Meaning::SkipMarked => self.skip_marked = switch()?,
            Meaning::None(_) => {}
        }
        Ok(())
    }

    /// Answers a statement.
    pub(super) fn answer(&mut self, text: &str, facts: &Facts) -> StatementReply {
        let one = |name: &str, value: String| StatementReply::Rows(vec![name.into()], vec![vec![Some(value)]]);
        let answer = |set: Result<(), (u16, &'static str, String)>| match set {
            Ok(()) => StatementReply::Ok,
            Err((code, state, text)) => StatementReply::Error(code, state, text),
        };
        match Statement::parse(text) {
            Statement::Timestamp => one("UNIX_TIMESTAMP()", facts.now.to_string()),
            // A relay sends no text that an encoding could change.
            Statement::Names => StatementReply::Ok,
            Statement::Version => one("VERSION()", facts.version.clone()),
            Statement::Kill(id) => StatementReply::Kill(id),
            Statement::Set(assignments) => {
                answer(assignments.iter().try_for_each(|(name, value)| self.set(false, name, value, facts)))
            }
            Statement::SetSystem(name, value) => answer(self.set(true, &name, &value, facts)),
            Statement::UserVariable(name) if meaning(false, &name) == Some(Meaning::Checksum) => {
                StatementReply::Rows(vec![format!("@{name}")], vec![vec![self.checksum.map(|sum| sum.name().into())]])
            }
            Statement::Variables(names) => {
                let mut row = Vec::new();
                for (name, _) in &names {
                    match variable(name, facts) {
                        Some(value) => row.push(Some(value)),
                        None => {
                            return StatementReply::Error(1193, "HY000", format!("Unknown system variable '{name}'"));
                        }
                    }
                }
                StatementReply::Rows(names.into_iter().map(|(_, written)| written).collect(), vec![row])
            }
            Statement::Show(name) => {
                let rows = variable(&name, facts).map(|value| vec![Some(name), Some(value)]);
                StatementReply::Rows(vec!["Variable_name".into(), "Value".into()], rows.into_iter().collect())
            }
            Statement::UserVariable(_) | Statement::Other => StatementReply::Error(
                1235,
                "42000",
                "this is a relay of the binary log: it answers what a replica asks, and knows no tables".into(),
            ),
        }
    }
}

fn variable(name: &str, facts: &Facts) -> Option<String> {
    Some(match name {
        "server_id" => facts.server_id.to_string(),
        "binlog_checksum" => facts.checksum.name().into(),
        "version" => facts.version.clone(),
        "log_bin" | "read_only" => "1".into(),
        "binlog_format" => "ROW".into(),
        _ => {
            return match facts.dialect {
                Dialect::MariaDb => variable_of_mariadb(name, facts),
                Dialect::MySql => variable_of_mysql(name, facts),
            };
        }
    })
}

fn variable_of_mariadb(name: &str, facts: &Facts) -> Option<String> {
    Some(match name {
        "gtid_domain_id" => "0".into(),
        "gtid_binlog_state" | "gtid_binlog_pos" | "gtid_current_pos" => facts.state.clone(),
        // As a source that could wait for replicas but does not. Without a row MariaDB 10.11 warns about a source that cannot.
        "rpl_semi_sync_master_enabled" => "OFF".into(),
        _ => return None,
    })
}

fn variable_of_mysql(name: &str, facts: &Facts) -> Option<String> {
    Some(match name {
        "gtid_mode" => "ON".into(),
        "gtid_executed" => facts.state.clone(),
        "server_uuid" => uuid_of(facts.server_id).to_string(),
        // As above. A replica that gets an error instead switches semi-synchronous replication off.
        "rpl_semi_sync_source_enabled" => "0".into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn facts() -> Facts {
        let (version, state) = ("10.11.6-MariaDB".into(), "0-1-9".into());
        let dialect = Dialect::MariaDb;
        Facts { dialect, server_id: 77, version, checksum: Checksum::Crc32, state, now: 1_700_000_000 }
    }

    fn ask(settings: &mut ReplicaSettings, text: &str) -> String {
        ask_of(&facts(), settings, text)
    }

    fn ask_of(facts: &Facts, settings: &mut ReplicaSettings, text: &str) -> String {
        match settings.answer(text, facts) {
            StatementReply::Ok => "OK".to_owned(),
            StatementReply::Rows(_, rows) => format!("{:?}", rows.concat().into_iter().flatten().collect::<Vec<_>>()),
            StatementReply::Kill(id) => format!("kill {id}"),
            StatementReply::Error(code, ..) => code.to_string(),
        }
    }

    /// Statements in the programs of MariaDB 10.11 and 11.8, in the order in which they send them.
    const ALL: &[(&str, &str)] = &[
        ("SELECT UNIX_TIMESTAMP()", "[\"1700000000\"]"),
        ("SHOW VARIABLES LIKE 'SERVER_ID'", "[\"server_id\", \"77\"]"),
        ("SET @master_heartbeat_period= 30000001024", "OK"),
        ("SET @master_binlog_checksum= @@global.binlog_checksum", "OK"),
        ("SELECT @master_binlog_checksum", "[\"CRC32\"]"),
        ("SET skip_replication=1", "OK"),
        ("SET @mariadb_slave_capability=4", "OK"),
        ("SELECT @@GLOBAL.gtid_domain_id", "[\"0\"]"),
        ("SET @slave_connect_state='0-1-15,1-1-2'", "OK"),
        ("SET @slave_gtid_strict_mode=1", "OK"),
        ("SET @slave_gtid_ignore_duplicates=1", "OK"),
        ("SET @slave_until_gtid='0-1-17'", "OK"),
        ("SET @slave_gtid_until_before_gtids=1", "OK"),
        ("SHOW VARIABLES LIKE 'rpl_semi_sync_master_enabled'", "[\"rpl_semi_sync_master_enabled\", \"OFF\"]"),
        ("SET @rpl_semi_sync_slave= 1", "OK"),
    ];

    #[test]
    fn what_a_replica_of_mariadb_says_is_honoured() {
        let mut settings = ReplicaSettings::default();
        for (statement, expected) in ALL {
            assert_eq!(ask(&mut settings, statement), *expected, "{statement}");
        }
        let dump = Dump { position: 4, flags: ANNOTATE_ROWS, server_id: 2, file: String::new() };
        let until = Some(Until { at: "0-1-17".parse().unwrap(), before: true });
        let position = "0-1-15,1-1-2".parse().unwrap();
        let request = mariadb::Request {
            position,
            strict: true,
            ignore_duplicates: true,
            until,
            skip_marked: true,
            annotate: true,
        };
        assert_eq!(settings.request(&dump), Ok(Request::MariaDb(request)));
        assert_eq!(settings.heartbeat(), Some(Duration::from_nanos(30_000_001_024)));
        assert_eq!((settings.checksum(), settings.semisync()), (Some(Checksum::Crc32), true));
        let strange = Dump { flags: 4, ..dump.clone() };
        assert!(settings.request(&strange).unwrap_err().contains("flags 0x4"));
        assert_eq!(ask(&mut settings, "SET @mariadb_slave_capability=3"), "OK");
        assert!(settings.request(&dump).unwrap_err().contains("understand GTIDs"));
        assert!(ReplicaSettings::default().request(&dump).unwrap_err().contains("by GTID"));
        assert_eq!((ReplicaSettings::default().checksum(), ReplicaSettings::default().heartbeat()), (None, None));
    }

    /// Statements of a semi-synchronous replica of MySQL 9.7, in its order.
    #[test]
    fn what_a_replica_of_mysql_says_is_honoured() {
        let facts = Facts { dialect: Dialect::MySql, version: "9.7.4".into(), ..facts() };
        let mut settings = ReplicaSettings::default();
        for (statement, expected) in [
            ("SELECT UNIX_TIMESTAMP()", "[\"1700000000\"]"),
            ("SELECT @@GLOBAL.SERVER_ID", "[\"77\"]"),
            ("SET @master_heartbeat_period = 30000001024, @source_heartbeat_period = 30000001024", "OK"),
            (
                "SET @master_binlog_checksum = @@global.binlog_checksum, @source_binlog_checksum = @@global.binlog_checksum",
                "OK",
            ),
            ("SELECT @source_binlog_checksum", "[\"CRC32\"]"),
            ("SELECT @@GLOBAL.GTID_MODE", "[\"ON\"]"),
            ("SELECT @@GLOBAL.SERVER_UUID", "[\"6b696e67-706f-7374-0000-00000000004d\"]"),
            (
                "SET @slave_uuid = 'ce392fc2-ead3-11f1-86d1-02fc00000001', @replica_uuid = 'ce392fc2-ead3-11f1-86d1-02fc00000001'",
                "OK",
            ),
            ("SELECT @@global.rpl_semi_sync_source_enabled", "[\"0\"]"),
            ("SET @rpl_semi_sync_replica = 1", "OK"),
            ("SELECT @@global.gtid_domain_id", "1193"),
        ] {
            assert_eq!(ask_of(&facts, &mut settings, statement), expected, "{statement}");
        }
        assert_eq!(settings.heartbeat(), Some(Duration::from_nanos(30_000_001_024)));
        assert_eq!((settings.checksum(), settings.semisync()), (Some(Checksum::Crc32), true));
        let set = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5";
        let dump = DumpGtid { flags: THROUGH_GTID, server_id: 2, set: set.parse().unwrap() };
        assert_eq!(ReplicaSettings::request_set(&dump).unwrap().has(), set);
        let usual = DumpGtid { flags: HEARTBEAT_V2, ..dump.clone() };
        assert!(ReplicaSettings::request_set(&usual).is_ok());
        let strange = DumpGtid { flags: 8, ..dump };
        assert!(ReplicaSettings::request_set(&strange).unwrap_err().contains("flags 0x8"));
    }

    #[test]
    fn what_nobody_knows_is_refused() {
        for (statement, expected) in [
            ("SHOW VARIABLES LIKE 'nothing'", "[]"),
            ("SELECT @@nothing", "1193"),
            ("SELECT @nothing", "1235"),
            ("SET NAMES utf8mb3", "OK"),
            ("KILL 17", "kill 17"),
            ("SET @slave_uuid = 'x', @replica_uuid = 'x'", "OK"),
            ("SET @master_binlog_checksum='NONE'", "OK"),
            ("SET @master_binlog_checksum='MD5'", "1231"),
            ("SET @slave_connect_state='0-1'", "1231"),
            ("SET @slave_gtid_strict_mode=2", "1231"),
            ("SET @slave_do_something_new=1", "1235"),
            ("SET sql_log_bin=0", "1193"),
            ("SELECT * FROM t", "1235"),
        ] {
            assert_eq!(ask(&mut ReplicaSettings::default(), statement), expected, "{statement}");
        }
    }
}
