//! The variables of a source, and conclusions from them: whether it waits for acknowledgements, and whether it has the log's transactions.

use ::binlog::event::Checksum;
use ::binlog::gtid::mariadb::{Position, State};
use ::binlog::protocol::reply::Row;

/// The queried variables, in this order.
const VARIABLES: [&str; 12] = [
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

/// Limit below which a semi-synchronous time-out, in milliseconds, counts as not waiting: a day.
const LONG: u64 = 86_400_000;

/// Values of a source's variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) server_id: u32,
    pub(crate) checksum: Checksum,
    /// Transactions of its binary log.
    pub(crate) state: State,
    /// The replication position, including transactions that it has not written to its own binary log.
    pub(crate) position: Position,
    pub(crate) version: String,
    pub(crate) semisync: bool,
    timeout_ms: u64,
    after_sync: bool,
    wait_no_slave: bool,
    sync_binlog: u64,
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
    #[error("the server encrypts its binary log (encrypt_binlog): a copy of it, byte for byte, cannot be had")]
    Encrypted,
    #[error("the server has server_id {0}, as the relay itself: give relay.server_id another value")]
    SameId(u32),
    #[error(
        "the server lacks {lacks}, which this relay made durable for an earlier source: it was not promoted from here, or is an old source that \
         came back. Nothing of it is taken. Follow the server that has everything"
    )]
    Behind { lacks: Position },
    #[error(
        "the server has {has} in its binary log and not {lost}, which it sent to this relay before: it has begun its history anew (RESET MASTER), \
         or was put back. Nothing of that is taken"
    )]
    Anew { has: State, lost: Position },
    #[error(
        "the server has {has}, and has purged what comes next: none of its binary logs begins at or before what this relay has ({own})"
    )]
    Purged { has: State, own: State },
}

/// Returns the statement that queries all variables.
pub(crate) fn question() -> String {
    format!("SELECT {}", VARIABLES.map(|name| format!("@@global.{name}")).join(", "))
}

impl Settings {
    /// Parses the answer to [`question`].
    pub(crate) fn read(rows: &[Row]) -> Result<Settings, SourceError> {
        let text = |name: &'static str| -> String {
            let column = VARIABLES.iter().position(|known| *known == name);
            let value = column.and_then(|column| rows.first()?.get(column)?.clone());
            value.unwrap_or_default()
        };
        let wrong = |name: &'static str| SourceError::Value { name, value: text(name) };
        let number = |name: &'static str| text(name).parse::<u64>().map_err(|_| wrong(name));
        let on = |name: &'static str| matches!(text(name).as_str(), "1" | "ON");
        if !on("log_bin") {
            return Err(SourceError::NoLog);
        }
        if on("encrypt_binlog") {
            return Err(SourceError::Encrypted);
        }
        Ok(Settings {
            server_id: u32::try_from(number("server_id")?).map_err(|_| wrong("server_id"))?,
            checksum: match text("binlog_checksum").as_str() {
                "CRC32" => Checksum::Crc32,
                "NONE" => Checksum::None,
                _ => return Err(wrong("binlog_checksum")),
            },
            state: text("gtid_binlog_state").parse().map_err(|_| wrong("gtid_binlog_state"))?,
            position: text("gtid_current_pos").parse().map_err(|_| wrong("gtid_current_pos"))?,
            version: text("version"),
            semisync: on("rpl_semi_sync_master_enabled"),
            timeout_ms: number("rpl_semi_sync_master_timeout")?,
            after_sync: text("rpl_semi_sync_master_wait_point").eq_ignore_ascii_case("AFTER_SYNC"),
            wait_no_slave: on("rpl_semi_sync_master_wait_no_slave"),
            sync_binlog: number("sync_binlog")?,
        })
    }

    /// Returns the reasons why a commit on this server may not be durable on the relay; empty if there are none.
    pub(crate) fn does_not_wait(&self) -> Vec<String> {
        let mut found = Vec::new();
        if !self.semisync {
            found.push("rpl_semi_sync_master_enabled is OFF: commits wait for nobody".into());
        }
        if !self.after_sync {
            found.push("rpl_semi_sync_master_wait_point is AFTER_COMMIT: others see a commit that may still be lost (AFTER_SYNC waits first)".into());
        }
        if self.timeout_ms < LONG {
            let timeout = self.timeout_ms;
            found.push(format!(
                "rpl_semi_sync_master_timeout is {timeout} ms: after it commits wait for nobody (4294967295 waits for 49 days)"
            ));
        }
        if !self.wait_no_slave {
            found.push(
                "rpl_semi_sync_master_wait_no_slave is OFF: without a connected replica commits wait for nobody".into(),
            );
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
        let lost = history.lost_by(&self.state);
        if lost.is_empty() { Ok(()) } else { Err(SourceError::Anew { has: self.state.clone(), lost }) }
    }

    /// Checks that it has everything of `own`, by the last transaction of each domain.
    pub(crate) fn has(&self, own: &State) -> Result<(), SourceError> {
        let mut lacks = self.state.lacks(&own.position());
        // A server made from a copy has the transaction without having written it to its own log.
        for gtid in own.position().iter().filter(|gtid| self.position.get(gtid.domain) == Some(*gtid)) {
            lacks.remove(gtid.domain);
        }
        if lacks.is_empty() { Ok(()) } else { Err(SourceError::Behind { lacks }) }
    }
}

/// True if a file that begins at `begins` has everything that comes after `own`.
pub(crate) fn reaches_back(begins: &Position, own: &State) -> bool {
    begins.iter().all(|gtid| own.contains(gtid))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn row(changes: &[(&str, &str)]) -> Vec<Row> {
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
        vec![VARIABLES.iter().zip(good).map(value).collect()]
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
            let settings = Settings::read(&row(&[(name, value)])).unwrap();
            let found = settings.does_not_wait().join("; ");
            assert_eq!(found.is_empty(), says.is_empty(), "{name} {value}: {found}");
            assert!(found.contains(says), "{found}");
        }
    }

    #[test]
    fn what_is_no_source() {
        assert_eq!(Settings::read(&row(&[("log_bin", "0")])), Err(SourceError::NoLog));
        assert_eq!(Settings::read(&row(&[("encrypt_binlog", "1")])), Err(SourceError::Encrypted));
        for (name, value) in
            [("server_id", "x"), ("binlog_checksum", "MD5"), ("gtid_binlog_state", "1"), ("sync_binlog", "")]
        {
            let error = Settings::read(&row(&[(name, value)])).unwrap_err();
            assert!(matches!(error, SourceError::Value { .. }), "{error}");
        }
        assert!(Settings::read(&[]).is_err());
    }

    #[test]
    fn whether_it_has_what_the_log_has() {
        let own: State = "0-2-3,0-1-9,5-1-4".parse().unwrap();
        for (state, position, lacks) in [
            ("0-1-9,5-1-4", "0-1-9,5-1-4", ""),
            ("0-1-9,0-3-12,5-1-7", "0-3-12,5-1-7", ""),
            ("0-1-8,0-3-12,5-1-4", "0-3-12,5-1-4", "0-1-9"),
            ("0-3-12", "0-3-12,5-1-4", "0-1-9"),
            ("", "0-1-9,5-1-4", ""),
            ("", "", "0-1-9,5-1-4"),
        ] {
            let settings =
                Settings::read(&row(&[("gtid_binlog_state", state), ("gtid_current_pos", position)])).unwrap();
            let found = match settings.has(&own) {
                Ok(()) => String::new(),
                Err(SourceError::Behind { lacks }) => lacks.to_string(),
                Err(other) => other.to_string(),
            };
            assert_eq!(found, lacks, "{state} {position}");
        }
        assert!(reaches_back(&"".parse().unwrap(), &own) && reaches_back(&"0-1-9".parse().unwrap(), &own));
        assert!(!reaches_back(&"0-1-10".parse().unwrap(), &own) && !reaches_back(&"7-1-1".parse().unwrap(), &own));
    }
}
