//! What is answered to the statements of a replica: a decision over texts.

use std::collections::HashMap;
use std::time::Duration;

use ::binlog::event::Checksum;
use ::binlog::gtid::mariadb::Position;
use ::binlog::protocol::reply::Row;
use ::binlog::protocol::text::Statement;

/// Most variables that a replica may set, and their longest value.
const MOST: (usize, usize) = (64, 2 << 20);

/// What the relay says of itself.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) server_id: u32,
    pub(super) version: String,
    pub(super) checksum: Checksum,
    pub(super) state: String,
    /// Seconds since 1970.
    pub(super) now: u64,
}

/// What a replica has said of itself.
#[derive(Debug, Default)]
pub(super) struct Said(HashMap<String, String>);

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Ok,
    Rows(Vec<String>, Vec<Row>),
    /// Number, SQLSTATE, text.
    Error(u16, &'static str, String),
}

impl Said {
    /// How often it wants to hear something; None: it did not say.
    pub(super) fn heartbeat(&self) -> Option<Duration> {
        let nanos = self.0.get("master_heartbeat_period")?.parse().ok()?;
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    /// What it has; None: it does not replicate by GTID.
    pub(super) fn position(&self) -> Option<Result<Position, String>> {
        let text = self.0.get("slave_connect_state")?;
        Some(text.parse().map_err(|error: ::binlog::gtid::GtidError| error.to_string()))
    }

    /// Whether it understands checksums, if events have any.
    pub(super) fn understands(&self, checksum: Checksum) -> bool {
        checksum == Checksum::None || self.0.get("master_binlog_checksum").is_some_and(|name| name == checksum.name())
    }

    /// Answers a statement.
    pub(super) fn answer(&mut self, text: &str, facts: &Facts) -> Answer {
        let one = |name: &str, value: String| Answer::Rows(vec![name.into()], vec![vec![Some(value)]]);
        match Statement::parse(text) {
            Statement::Timestamp => one("UNIX_TIMESTAMP()", facts.now.to_string()),
            // A relay sends no text that an encoding could change.
            Statement::Names => Answer::Ok,
            Statement::Version => one("VERSION()", facts.version.clone()),
            Statement::Set(assignments) => {
                for (name, value) in assignments {
                    let value = match value.to_ascii_lowercase().as_str() {
                        "@@global.binlog_checksum" => facts.checksum.name().to_owned(),
                        _ => value,
                    };
                    let room = self.0.len() < MOST.0 || self.0.contains_key(&name);
                    if !room || value.len() > MOST.1 || name.len() > 64 {
                        return Answer::Error(
                            1105,
                            "HY000",
                            "too many variables, or too long ones, for a relay".into(),
                        );
                    }
                    self.0.insert(name, value);
                }
                Answer::Ok
            }
            Statement::UserVariable(name) => {
                let value = self.0.get(&name).cloned();
                Answer::Rows(vec![format!("@{name}")], vec![vec![value]])
            }
            Statement::Variables(names) => {
                let mut row = Vec::new();
                for (name, _) in &names {
                    match variable(name, facts) {
                        Some(value) => row.push(Some(value)),
                        None => return Answer::Error(1193, "HY000", format!("Unknown system variable '{name}'")),
                    }
                }
                Answer::Rows(names.into_iter().map(|(_, written)| written).collect(), vec![row])
            }
            Statement::Show(name) => {
                let rows = variable(&name, facts).map(|value| vec![Some(name), Some(value)]);
                Answer::Rows(vec!["Variable_name".into(), "Value".into()], rows.into_iter().collect())
            }
            Statement::Other => Answer::Error(
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
        "gtid_domain_id" => "0".into(),
        "binlog_checksum" => facts.checksum.name().into(),
        "version" => facts.version.clone(),
        "gtid_binlog_state" | "gtid_binlog_pos" | "gtid_current_pos" => facts.state.clone(),
        "log_bin" | "read_only" => "1".into(),
        "binlog_format" => "ROW".into(),
        // Replicas of a relay need not acknowledge: the relay is the durable copy.
        "rpl_semi_sync_master_enabled" => "OFF".into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn facts() -> Facts {
        let (version, state) = ("10.11.6-MariaDB".into(), "0-1-9".into());
        Facts { server_id: 77, version, checksum: Checksum::Crc32, state, now: 1_700_000_000 }
    }

    #[test]
    fn what_a_replica_of_mariadb_10_11_asks() {
        let mut said = Said::default();
        let mut ask = |text: &str| match said.answer(text, &facts()) {
            Answer::Ok => "OK".to_owned(),
            Answer::Rows(_, rows) => format!("{:?}", rows.concat().into_iter().flatten().collect::<Vec<_>>()),
            Answer::Error(code, ..) => code.to_string(),
        };
        for (statement, expected) in [
            ("SELECT UNIX_TIMESTAMP()", "[\"1700000000\"]"),
            ("SHOW VARIABLES LIKE 'SERVER_ID'", "[\"server_id\", \"77\"]"),
            ("SET @master_heartbeat_period= 30000001024", "OK"),
            ("SET @master_binlog_checksum= @@global.binlog_checksum", "OK"),
            ("SELECT @master_binlog_checksum", "[\"CRC32\"]"),
            ("SET @mariadb_slave_capability=4", "OK"),
            ("SELECT @@GLOBAL.gtid_domain_id", "[\"0\"]"),
            ("SET @slave_connect_state='0-1-15,1-1-2'", "OK"),
            ("SHOW VARIABLES LIKE 'rpl_semi_sync_master_enabled'", "[\"rpl_semi_sync_master_enabled\", \"OFF\"]"),
            ("SHOW VARIABLES LIKE 'nothing'", "[]"),
            ("SELECT @@nothing", "1193"),
            ("SET NAMES utf8mb3", "OK"),
            ("SELECT * FROM t", "1235"),
        ] {
            assert_eq!(ask(statement), expected, "{statement}");
        }
        assert_eq!(said.position().unwrap().unwrap().to_string(), "0-1-15,1-1-2");
        assert_eq!(said.heartbeat(), Some(Duration::from_nanos(30_000_001_024)));
        assert!(said.understands(Checksum::Crc32));
        assert!(!Said::default().understands(Checksum::Crc32) && Said::default().position().is_none());
    }

    #[test]
    fn what_a_replica_sets_has_a_limit() {
        let mut said = Said::default();
        let full =
            (0..200).map(|n| said.answer(&format!("SET @v{n}=1"), &facts())).filter(|answer| *answer != Answer::Ok);
        assert_eq!(full.count(), 200 - MOST.0);
    }
}
