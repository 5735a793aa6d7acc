//! The variables of a source, and conclusions from them: whether it waits for acknowledgements, and whether it has the log's transactions.

use ::binlog::Dialect;
use ::binlog::event::Checksum;
use ::binlog::gtid::{State, mariadb, mysql};
use ::binlog::protocol::reply::Row;

/// The queried variables of MariaDB, in this order.
const MARIADB: [&str; 12] = [
    "server_id",
    "log_bin",
    "binlog_checksum",
    "gtid_binlog_state",
    "gtid_current_pos",
    "rpl_semi_sync_master_enabled",
    "rpl_semi_sync_master_timeout",
    "rpl_semi_sync_master_wait_point",
    "rpl_semi_sync_master_wait_no_slave",
    "encrypt_binlog",
    "version",
    "sync_binlog",
];

/// The queried variables of MySQL, in this order: a transaction that is no longer under way is executed.
const MYSQL: [&str; 8] =
    ["server_id", "log_bin", "binlog_checksum", "gtid_owned", "gtid_executed", "gtid_mode", "version", "sync_binlog"];

/// The variables of semi-synchronous replication: whether commits wait, how long, where, and without a replica.
fn semisync_variables(dialect: Dialect) -> [&'static str; 4] {
    match dialect {
        Dialect::MariaDb => [
            "rpl_semi_sync_master_enabled",
            "rpl_semi_sync_master_timeout",
            "rpl_semi_sync_master_wait_point",
            "rpl_semi_sync_master_wait_no_slave",
        ],
        Dialect::MySql => [
            "rpl_semi_sync_source_enabled",
            "rpl_semi_sync_source_timeout",
            "rpl_semi_sync_source_wait_point",
            "rpl_semi_sync_source_wait_no_replica",
        ],
    }
}

/// Limit below which a semi-synchronous time-out, in milliseconds, counts as not waiting: a day.
const LONG: u64 = 86_400_000;

/// Values of a source's variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) dialect: Dialect,
    pub(crate) server_id: u32,
    pub(crate) checksum: Checksum,
    /// Transactions of its binary log.
    pub(crate) state: State,
    applied: Applied,
    pub(crate) version: String,
    pub(crate) semisync: bool,
    /// True if the server has no variables of semi-synchronous replication: MySQL without the plugin.
    no_plugin: bool,
    timeout_ms: u64,
    after_sync: bool,
    wait_no_replica: bool,
    sync_binlog: u64,
}

/// Transactions that a server has carried out, whether they are in its own binary log or not.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Applied {
    /// `gtid_current_pos`.
    MariaDb(mariadb::Position),
    /// `gtid_executed`. In the binary log are those under way, too, which wait for an acknowledgement.
    MySql(mysql::Set),
}

/// Reason why a server cannot be a source.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SourceError {
    #[error("the server answers {name} with {value:?}, which is not understood")]
    Value { name: &'static str, value: String },
    #[error(
        "the server writes no binary log: set log_bin, and log_slave_updates where it may become the source of others"
    )]
    NoLog,
    #[error("the server has gtid_mode = {0}: a relay feeds replicas by GTID, so gtid_mode = ON is needed")]
    NoGtids(String),
    #[error("the server encrypts its binary log (encrypt_binlog): a copy of it, byte for byte, cannot be had")]
    Encrypted,
    #[error("the server has server_id {0}, as the relay itself: give relay.server_id another value")]
    SameId(u32),
    #[error(
        "the server lacks {lacks}, which this relay made durable for an earlier source: it was not promoted from here, or is an old source that \
         came back. Nothing of it is taken. Follow the server that has everything"
    )]
    Behind { lacks: String },
    #[error(
        "the server has {has} in its binary log and not {lost}, which it sent to this relay before: it has begun its history anew ({reset}), \
         or was put back. Nothing of that is taken"
    )]
    Anew { has: State, lost: String, reset: &'static str },
    #[error(
        "the server has {has}, and has purged what comes next: none of its binary logs begins at or before what this relay has ({own})"
    )]
    Purged { has: State, own: State },
}

/// Returns the statements that query all variables.
pub(crate) fn questions(dialect: Dialect) -> Vec<String> {
    let select = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| format!("@@global.{name}")).collect();
        format!("SELECT {}", names.join(", "))
    };
    match dialect {
        Dialect::MariaDb => vec![select(&MARIADB)],
        // The plugin's variables may not exist. Sets of GTIDs may be longer than SHOW tells.
        Dialect::MySql => vec![select(&MYSQL), "SHOW GLOBAL VARIABLES LIKE 'rpl_semi_sync_source_%'".into()],
    }
}

/// Returns the names and values in the answers to [`questions`].
fn values(dialect: Dialect, answers: &[Vec<Row>]) -> Vec<(String, String)> {
    let names = match dialect {
        Dialect::MariaDb => &MARIADB[..],
        Dialect::MySql => &MYSQL[..],
    };
    let first = answers.first().and_then(|rows| rows.first()).map(Vec::as_slice).unwrap_or_default();
    let selected = names.iter().zip(first).map(|(name, value)| ((*name).to_owned(), value.clone().unwrap_or_default()));
    let shown = answers.iter().skip(1).flatten().filter_map(|row| match &row[..] {
        [Some(name), Some(value)] => Some((name.to_ascii_lowercase(), value.clone())),
        _ => None,
    });
    selected.chain(shown).collect()
}

impl Settings {
    /// Parses the answers to [`questions`].
    pub(crate) fn read(dialect: Dialect, answers: &[Vec<Row>]) -> Result<Settings, SourceError> {
        let values = values(dialect, answers);
        let find = |name: &str| values.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let text = |name: &'static str| find(name).unwrap_or_default();
        let wrong = |name: &'static str| SourceError::Value { name, value: text(name) };
        let number = |name: &'static str| text(name).parse::<u64>().map_err(|_| wrong(name));
        let on = |name: &'static str| matches!(text(name).as_str(), "1" | "ON");
        if !on("log_bin") {
            return Err(SourceError::NoLog);
        }
        if on("encrypt_binlog") {
            return Err(SourceError::Encrypted);
        }
        let (state, applied) = match dialect {
            Dialect::MariaDb => {
                let state = text("gtid_binlog_state").parse().map_err(|_| wrong("gtid_binlog_state"))?;
                let position = text("gtid_current_pos").parse().map_err(|_| wrong("gtid_current_pos"))?;
                (State::MariaDb(state), Applied::MariaDb(position))
            }
            Dialect::MySql => {
                if !on("gtid_mode") {
                    return Err(SourceError::NoGtids(text("gtid_mode")));
                }
                let executed: mysql::Set = text("gtid_executed").parse().map_err(|_| wrong("gtid_executed"))?;
                let mut state = mysql::Set::parse_owned(&text("gtid_owned")).map_err(|_| wrong("gtid_owned"))?;
                if !state.merge(&executed) {
                    return Err(wrong("gtid_executed"));
                }
                (State::MySql(state), Applied::MySql(executed))
            }
        };
        let [enabled, timeout, wait_point, wait_no_replica] = semisync_variables(dialect);
        let no_plugin = dialect == Dialect::MySql && find(enabled).is_none();
        Ok(Settings {
            dialect,
            server_id: u32::try_from(number("server_id")?).map_err(|_| wrong("server_id"))?,
            checksum: match text("binlog_checksum").as_str() {
                "CRC32" => Checksum::Crc32,
                "NONE" => Checksum::None,
                _ => return Err(wrong("binlog_checksum")),
            },
            state,
            applied,
            version: text("version"),
            semisync: on(enabled),
            no_plugin,
            timeout_ms: if no_plugin { 0 } else { number(timeout)? },
            after_sync: text(wait_point).eq_ignore_ascii_case("AFTER_SYNC"),
            wait_no_replica: on(wait_no_replica),
            sync_binlog: number("sync_binlog")?,
        })
    }

    /// Returns the reasons why a commit on this server may not be durable on the relay; empty if there are none.
    pub(crate) fn does_not_wait(&self) -> Vec<String> {
        let mut found = Vec::new();
        let [enabled, timeout, wait_point, wait_no_replica] = semisync_variables(self.dialect);
        if self.no_plugin {
            found.push(
                "the plugin rpl_semi_sync_source is not installed: commits wait for nobody (INSTALL PLUGIN rpl_semi_sync_source SONAME \
                 'semisync_source.so')"
                    .into(),
            );
            return found;
        }
        if !self.semisync {
            found.push(format!("{enabled} is OFF: commits wait for nobody"));
        }
        if !self.after_sync {
            found.push(format!(
                "{wait_point} is AFTER_COMMIT: others see a commit that may still be lost (AFTER_SYNC waits first)"
            ));
        }
        if self.timeout_ms < LONG {
            let ms = self.timeout_ms;
            found
                .push(format!("{timeout} is {ms} ms: after it commits wait for nobody (4294967295 waits for 49 days)"));
        }
        if !self.wait_no_replica {
            found.push(format!("{wait_no_replica} is OFF: without a connected replica commits wait for nobody"));
        }
        if self.sync_binlog != 1 {
            let sync = self.sync_binlog;
            found.push(format!(
                "sync_binlog is {sync}: after a crash of its host the server may lack what this relay has (1 flushes each commit)"
            ));
        }
        found
    }

    /// Checks that its binary log still has all that it sent of an epoch.
    pub(crate) fn still_has(&self, history: &State) -> Result<(), SourceError> {
        let (has, reset) = (self.state.clone(), self.dialect.reset());
        history.lost_by(&self.state).map_or(Ok(()), |lost| Err(SourceError::Anew { has, lost, reset }))
    }

    /// Checks that it has everything of `own`.
    pub(crate) fn has(&self, own: &State) -> Result<(), SourceError> {
        let lacks = match (own, &self.state, &self.applied) {
            // By the last transaction of each domain.
            (State::MariaDb(own), State::MariaDb(state), Applied::MariaDb(position)) => {
                let mut lacks = state.lacks(&own.position());
                // A server made from a copy has the transaction without having written it to its own log.
                for gtid in own.position().iter().filter(|gtid| position.get(gtid.domain) == Some(*gtid)) {
                    lacks.remove(gtid.domain);
                }
                lacks.to_string()
            }
            (State::MySql(own), _, Applied::MySql(executed)) => own.without(executed).to_string(),
            _ => own.to_string(),
        };
        if lacks.is_empty() { Ok(()) } else { Err(SourceError::Behind { lacks }) }
    }
}

/// True if a file that begins at `begins` has everything that comes after `own`.
pub(crate) fn reaches_back(begins: &mariadb::Position, own: &mariadb::State) -> bool {
    begins.iter().all(|gtid| own.contains(gtid))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn row(changes: &[(&str, &str)]) -> Vec<Vec<Row>> {
        let good = [
            "1",
            "1",
            "CRC32",
            "0-1-9",
            "0-1-9",
            "1",
            "4294967295",
            "AFTER_SYNC",
            "1",
            "0",
            "10.11.6-MariaDB-log",
            "1",
        ];
        let value = |(name, value): (&&str, &str)| {
            let changed = changes.iter().find(|(changed, _)| changed == name);
            Some(changed.map_or(value, |(_, value)| *value).to_owned())
        };
        vec![vec![MARIADB.iter().zip(good).map(value).collect()]]
    }

    const A: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";

    /// The answers of MySQL 9.7.
    fn mysql(changes: &[(&str, &str)]) -> Vec<Vec<Row>> {
        let of = |name: &str, value: String| {
            Some(changes.iter().find(|(changed, _)| *changed == name).map_or(value, |(_, value)| (*value).to_owned()))
        };
        let good = ["1", "1", "CRC32", "", &format!("{A}:1-9"), "ON", "9.7.4", "1"].map(str::to_owned);
        let row = MYSQL.iter().zip(good).map(|(name, value)| of(name, value)).collect();
        let shown =
            [("enabled", "ON"), ("timeout", "4294967295"), ("wait_point", "AFTER_SYNC"), ("wait_no_replica", "ON")];
        let shown = shown.map(|(name, value)| {
            let name = format!("rpl_semi_sync_source_{name}");
            vec![Some(name.clone()), of(&name, value.into())]
        });
        vec![vec![row], shown.into()]
    }

    #[test]
    fn whether_a_source_of_mysql_waits() {
        for (name, value, says) in [
            ("version", "8.4.1", ""),
            ("rpl_semi_sync_source_enabled", "OFF", "source_enabled is OFF"),
            ("rpl_semi_sync_source_timeout", "10000", "10000 ms"),
            ("rpl_semi_sync_source_wait_point", "AFTER_COMMIT", "AFTER_COMMIT"),
            ("rpl_semi_sync_source_wait_no_replica", "OFF", "wait_no_replica is OFF"),
            ("sync_binlog", "0", "sync_binlog is 0"),
        ] {
            let settings = Settings::read(Dialect::MySql, &mysql(&[(name, value)])).unwrap();
            let found = settings.does_not_wait().join("; ");
            assert_eq!(found.is_empty(), says.is_empty(), "{name} {value}: {found}");
            assert!(found.contains(says), "{found}");
        }
        let answers = mysql(&[]);
        let without = Settings::read(Dialect::MySql, &[answers[0].clone(), vec![]]).unwrap();
        assert!(!without.semisync && without.does_not_wait().concat().contains("INSTALL PLUGIN"));
        let off = Settings::read(Dialect::MySql, &mysql(&[("gtid_mode", "ON_PERMISSIVE")])).unwrap_err();
        assert!(off.to_string().contains("gtid_mode = ON is needed"), "{off}");
    }

    /// A transaction that waits for an acknowledgement is in the binary log, and not executed.
    #[test]
    fn whether_a_source_of_mysql_has_what_the_log_has() {
        let answers = mysql(&[("gtid_owned", &format!("{A}:10#31")), ("gtid_executed", &format!("{A}:1-9"))]);
        let settings = Settings::read(Dialect::MySql, &answers).unwrap();
        for (own, has, still) in
            [("1-9", true, true), ("1-10", false, true), ("1-11", false, false), ("blue:1", false, false)]
        {
            let own = State::parse(Dialect::MySql, &format!("{A}:{own}")).unwrap();
            assert_eq!((settings.has(&own).is_ok(), settings.still_has(&own).is_ok()), (has, still), "{own}");
        }
    }

    #[test]
    fn whether_a_source_waits() {
        for (name, value, says) in [
            ("version", "10.6.1", ""),
            ("rpl_semi_sync_master_enabled", "0", "enabled is OFF"),
            ("rpl_semi_sync_master_timeout", "10000", "10000 ms"),
            ("rpl_semi_sync_master_wait_point", "AFTER_COMMIT", "AFTER_COMMIT"),
            ("rpl_semi_sync_master_wait_no_slave", "0", "wait_no_slave is OFF"),
            ("sync_binlog", "0", "sync_binlog is 0"),
        ] {
            let settings = Settings::read(Dialect::MariaDb, &row(&[(name, value)])).unwrap();
            let found = settings.does_not_wait().join("; ");
            assert_eq!(found.is_empty(), says.is_empty(), "{name} {value}: {found}");
            assert!(found.contains(says), "{found}");
        }
    }

    #[test]
    fn what_is_no_source() {
        assert_eq!(Settings::read(Dialect::MariaDb, &row(&[("log_bin", "0")])), Err(SourceError::NoLog));
        assert_eq!(Settings::read(Dialect::MariaDb, &row(&[("encrypt_binlog", "1")])), Err(SourceError::Encrypted));
        for (name, value) in
            [("server_id", "x"), ("binlog_checksum", "MD5"), ("gtid_binlog_state", "1"), ("sync_binlog", "")]
        {
            let error = Settings::read(Dialect::MariaDb, &row(&[(name, value)])).unwrap_err();
            assert!(matches!(error, SourceError::Value { .. }), "{error}");
        }
        assert!(Settings::read(Dialect::MariaDb, &[]).is_err());
    }

    #[test]
    fn whether_it_has_what_the_log_has() {
        let own: mariadb::State = "0-2-3,0-1-9,5-1-4".parse().unwrap();
        for (state, position, lacks) in [
            ("0-1-9,5-1-4", "0-1-9,5-1-4", ""),
            ("0-1-9,0-3-12,5-1-7", "0-3-12,5-1-7", ""),
            ("0-1-8,0-3-12,5-1-4", "0-3-12,5-1-4", "0-1-9"),
            ("0-3-12", "0-3-12,5-1-4", "0-1-9"),
            ("", "0-1-9,5-1-4", ""),
            ("", "", "0-1-9,5-1-4"),
        ] {
            let settings =
                Settings::read(Dialect::MariaDb, &row(&[("gtid_binlog_state", state), ("gtid_current_pos", position)]))
                    .unwrap();
            let found = match settings.has(&State::MariaDb(own.clone())) {
                Ok(()) => String::new(),
                Err(SourceError::Behind { lacks }) => lacks,
                Err(other) => other.to_string(),
            };
            assert_eq!(found, lacks, "{state} {position}");
        }
        assert!(reaches_back(&"".parse().unwrap(), &own) && reaches_back(&"0-1-9".parse().unwrap(), &own));
        assert!(!reaches_back(&"0-1-10".parse().unwrap(), &own) && !reaches_back(&"7-1-1".parse().unwrap(), &own));
    }
}
