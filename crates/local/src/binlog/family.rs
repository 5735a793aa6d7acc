//! The two families of servers with a binary log, as far as a local cluster differs by them: settings, options and statements.

use ::binlog::Dialect;
use ::binlog::gtid::State;
use ::console::picture;
use ::relay::config::Engine as Of;

use super::super::children::PID_FILES;
use super::super::dir::Engine;

/// Texts of one family.
#[derive(Debug)]
pub(crate) struct Family {
    pub(super) engine: Engine,
    pub(super) relay: Of,
    pub(super) dialect: Dialect,
    pub(super) shown: picture::Engine,
    /// Name in configurations, in the registry, and of the family's client.
    pub(super) word: &'static str,
    /// Oldest supported version; 1011 for 10.11.
    pub(super) oldest: u32,
    /// File of the process id, in the data directory.
    pub(super) pid_file: &'static str,
    /// Settings of every server, in a file of its data directory.
    pub(super) settings: &'static str,
    /// Options of a primary: name and value.
    pub(super) primary: &'static [(&'static str, &'static str)],
    /// Options of a replica: name and value.
    pub(super) replica: &'static [(&'static str, &'static str)],
    /// Queries for `read_only`, the transactions, and counts of connections and commits.
    pub(super) question: &'static str,
    pub(super) replication: &'static str,
    pub(super) stop: &'static str,
    pub(super) start: &'static str,
    /// Queries for the number of acknowledged commits.
    pub(super) acknowledged: &'static str,
    /// Queries for the transactions of a primary.
    pub(super) written: &'static str,
}

pub(super) const MARIADB: Family = Family {
    engine: Engine::Mariadb,
    relay: Of::Mariadb,
    dialect: Dialect::MariaDb,
    shown: picture::Engine::Mariadb,
    word: "mariadb",
    // GTIDs with gtid_strict_mode, and semi-synchronous replication in the server itself.
    oldest: 1003,
    pid_file: PID_FILES[1],
    settings: "\
# Written by kingpost when it made this server; yours to change. Port, socket, server_id and who waits for the relay are
# given at each start.
[mariadbd]
log_bin = mysql-bin
log_slave_updates
gtid_strict_mode = 1
binlog_format = ROW
binlog_checksum = CRC32
sync_binlog = 1
innodb_flush_log_at_trx_commit = 1
innodb_buffer_pool_size = 64M
innodb_log_file_size = 32M
performance_schema = OFF
slave_net_timeout = 10
max_connections = 500
",
    primary: &[
        ("rpl-semi-sync-master-timeout", "4294967295"),
        ("rpl-semi-sync-master-wait-point", "AFTER_SYNC"),
        ("rpl-semi-sync-master-wait-no-slave", "ON"),
        ("rpl-semi-sync-master-enabled", "ON"),
        ("read-only", "OFF"),
    ],
    replica: &[
        ("rpl-semi-sync-master-timeout", "4294967295"),
        ("rpl-semi-sync-master-wait-point", "AFTER_SYNC"),
        ("rpl-semi-sync-master-wait-no-slave", "ON"),
        ("rpl-semi-sync-master-enabled", "OFF"),
        ("read-only", "ON"),
    ],
    question: "SELECT @@read_only, @@gtid_current_pos, \
     (SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'THREADS_CONNECTED'), \
     (SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'BINLOG_COMMITS')",
    replication: "SHOW SLAVE STATUS",
    stop: "STOP SLAVE",
    start: "START SLAVE",
    acknowledged: "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS \
         WHERE VARIABLE_NAME = 'RPL_SEMI_SYNC_MASTER_YES_TX'",
    written: "SELECT @@gtid_binlog_pos",
};

pub(super) const MYSQL: Family = Family {
    engine: Engine::Mysql,
    relay: Of::Mysql,
    dialect: Dialect::MySql,
    shown: picture::Engine::Mysql,
    word: "mysql",
    // The oldest version that the relay knows.
    oldest: 804,
    pid_file: PID_FILES[2],
    settings: "\
# Written by kingpost when it made this server; yours to change. Port, socket, server_id and who waits for the relay are
# given at each start.
[mysqld]
log_bin = mysql-bin
gtid_mode = ON
enforce_gtid_consistency = ON
sync_binlog = 1
innodb_flush_log_at_trx_commit = 1
innodb_buffer_pool_size = 64M
innodb_redo_log_capacity = 32M
performance_schema = OFF
mysqlx = OFF
secure_file_priv = NULL
replica_net_timeout = 10
max_connections = 500
plugin_load_add = semisync_source.so
plugin_load_add = semisync_replica.so
",
    primary: &[
        ("rpl-semi-sync-source-timeout", "4294967295"),
        ("rpl-semi-sync-source-wait-point", "AFTER_SYNC"),
        ("rpl-semi-sync-source-wait-no-replica", "ON"),
        ("rpl-semi-sync-source-enabled", "ON"),
    ],
    replica: &[
        ("rpl-semi-sync-source-timeout", "4294967295"),
        ("rpl-semi-sync-source-wait-point", "AFTER_SYNC"),
        ("rpl-semi-sync-source-wait-no-replica", "ON"),
        ("rpl-semi-sync-source-enabled", "OFF"),
        ("read-only", "ON"),
    ],
    question: "SELECT @@read_only, @@global.gtid_executed, \
     (SELECT VARIABLE_VALUE FROM performance_schema.global_status WHERE VARIABLE_NAME = 'Threads_connected'), NULL",
    replication: "SHOW REPLICA STATUS",
    stop: "STOP REPLICA",
    start: "START REPLICA",
    acknowledged: "SELECT VARIABLE_VALUE FROM performance_schema.global_status WHERE VARIABLE_NAME = 'Rpl_semi_sync_source_yes_tx'",
    written: "SELECT @@global.gtid_executed",
};

impl Family {
    /// Returns the family of an engine; MariaDB for PostgreSQL, which is none.
    pub(crate) fn of(engine: Engine) -> &'static Family {
        if engine == Engine::Mysql { &MYSQL } else { &MARIADB }
    }

    /// Returns the query that waits up to 30 s for transactions; 0 if the server has them.
    pub(super) fn wait_for(&self, written: &str) -> String {
        match self.dialect {
            Dialect::MariaDb => format!("SELECT MASTER_GTID_WAIT('{written}', 30)"),
            Dialect::MySql => format!("SELECT WAIT_FOR_EXECUTED_GTID_SET('{written}', 30)"),
        }
    }

    /// Returns the statement that has a server replicate from `port` by GTID, from its current position.
    pub(super) fn replicate_from(&self, port: u16, user: &str, secret: &str) -> String {
        match self.dialect {
            Dialect::MariaDb => format!(
                "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = '{user}', MASTER_CONNECT_RETRY = 1, \
                 MASTER_HEARTBEAT_PERIOD = 1, MASTER_USE_GTID = slave_pos, MASTER_PASSWORD = '{secret}'"
            ),
            Dialect::MySql => format!(
                "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {port}, SOURCE_USER = '{user}', \
                 SOURCE_CONNECT_RETRY = 1, SOURCE_RETRY_COUNT = 100000, SOURCE_HEARTBEAT_PERIOD = 1, SOURCE_AUTO_POSITION = 1, SOURCE_SSL = 0, \
                 SOURCE_PASSWORD = '{secret}'"
            ),
        }
    }

    /// Returns the statements by which a starting server makes kingpost's user, for this host only, outside of its binary log.
    pub(super) fn make_user(&self, user: &str, secret: &str) -> String {
        let user = format!("{user}@'127.0.0.1'");
        let grant = format!("GRANT ALL PRIVILEGES ON *.* TO {user} WITH GRANT OPTION;\n");
        match self.dialect {
            Dialect::MariaDb => {
                format!("SET sql_log_bin = 0;\nCREATE OR REPLACE USER {user} IDENTIFIED BY '{secret}';\n{grant}")
            }
            // root was made without a password.
            Dialect::MySql => format!(
                "SET sql_log_bin = 0;\nCREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{secret}';\nALTER USER {user} IDENTIFIED BY '{secret}';\n\
                 {grant}ALTER USER root@localhost ACCOUNT LOCK;\n"
            ),
        }
    }

    /// True if a server's position has all transactions of a binary log's state.
    pub(super) fn covers(&self, position: &str, state: &str) -> bool {
        use ::binlog::gtid::mariadb;
        match self.dialect {
            Dialect::MariaDb => {
                let (has, wanted) = (position.parse::<mariadb::Position>(), state.parse::<mariadb::State>());
                let (Ok(has), Ok(wanted)) = (has, wanted) else { return false };
                let covered = |domain, sequence| has.get(domain).is_some_and(|has| has.sequence >= sequence);
                wanted.position().iter().all(|gtid| covered(gtid.domain, gtid.sequence))
            }
            Dialect::MySql => {
                let (has, wanted) = (State::parse(self.dialect, position), State::parse(self.dialect, state));
                has.is_ok_and(|has| wanted.is_ok_and(|wanted| has.includes(&wanted)))
            }
        }
    }

    /// Returns the number of transactions that `primary` has and `other` lacks; for MariaDB by sequence numbers, which grow by one a transaction.
    pub(super) fn behind(&self, primary: &str, other: &str) -> Option<u64> {
        use ::binlog::gtid::{mariadb::Position, mysql::Set};
        match self.dialect {
            Dialect::MariaDb => {
                let (primary, has) = (primary.parse::<Position>().ok()?, other.parse::<Position>().ok()?);
                let sequence = |domain| has.get(domain).map_or(0, |gtid| gtid.sequence);
                let lacks = primary.iter().map(|gtid| gtid.sequence.saturating_sub(sequence(gtid.domain)));
                Some(lacks.fold(0, u64::saturating_add))
            }
            Dialect::MySql => {
                let (primary, has) = (primary.parse::<Set>().ok()?, other.parse::<Set>().ok()?);
                Some(primary.without(&has).count())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";

    #[test]
    fn what_a_position_covers() {
        let set = |text: &str| format!("{UUID}:{text}");
        for (family, position, state, expected) in [
            (&MARIADB, "0-1-9".to_owned(), "0-1-9".to_owned(), true),
            (&MARIADB, "0-2-10".into(), "0-1-9,0-2-10".into(), true),
            (&MARIADB, "0-1-8".into(), "0-1-9".into(), false),
            (&MARIADB, "0-1-9".into(), "0-1-9,1-1-1".into(), false),
            (&MARIADB, String::new(), String::new(), true),
            (&MARIADB, "?".into(), String::new(), false),
            (&MYSQL, set("1-9"), set("1-9"), true),
            (&MYSQL, set("1-5:7-9"), set("1-9"), false),
            (&MYSQL, "?".into(), set("1-9"), false),
        ] {
            assert_eq!(family.covers(&position, &state), expected, "{position} {state}");
        }
        assert_eq!(MYSQL.behind(&set("1-9"), &set("1-5:7-8")), Some(2));
        assert_eq!(MYSQL.behind(&set("1-9"), "?"), None);
    }
}
