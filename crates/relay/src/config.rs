//! Configuration of a relay.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ::archive::config::ArchiveConfig;

::settings::settings! {
    /// `[relay]`.
    #[derive(Debug, Clone, PartialEq)]
    pub struct RelayConfig: Default {
        /// Kind of the servers: "postgresql", or "mariadb" or "mysql" for a relay of the binary log (docs/guide/relay-mariadb.md).
        pub engine: Engine = Engine::Postgresql;
        /// Server id of the relay itself, with engine = "mariadb" or "mysql": a number that no server of the cluster has. 0: none.
        pub server_id: u32 = 0, range(0, u32::MAX as i64);
        /// Addresses for standbys, pg_receivewal and other relays: host:port. Empty: nobody is served.
        pub listen: Vec<String> = vec!["127.0.0.1:6442".into()];
        /// Directory of the write-ahead log: segments and history files as in pg_wal.
        pub dir: PathBuf = "/var/lib/kingpost/relay".into();
        /// TLS with downstreams: as `[proxy.tls]`.
        pub tls: tls::ListenConfig = tls::ListenConfig::default();
        /// Authentication method for downstreams: "scram-sha-256", or "trust", only where every address is loopback.
        pub auth: AuthMethod = AuthMethod::ScramSha256;
        /// Limit of the WAL that downstreams get: "flushed" is what is durable here; "written" is one flush sooner, and safe only as long as the
        /// primary lives.
        pub serve: ServeUpTo = ServeUpTo::Flushed;
        /// Most downstream connections at a time; more are refused with 53300.
        pub max_downstreams: usize = 100, range(1, 10_000);
        /// Time from accept to a completed login.
        pub login_timeout: Duration = Duration::from_secs(15);
        /// A downstream that has said nothing for this long is dropped; it is asked after half of it.
        pub downstream_timeout: Duration = Duration::from_secs(60);
        /// True if the rows that queries on standbys still need are reported to the primary.
        pub hot_standby_feedback: bool = true;
        /// Bytes of WAL kept although no downstream needs them.
        pub keep_bytes: u64 = 1 << 30, range(0, i64::MAX);
        /// Most bytes of WAL kept, whichever downstream needs it: one further behind gets 58P01 and has to restore from an archive. WAL that
        /// [relay.archive] does not have yet stays, also beyond it.
        pub max_bytes: u64 = 64 << 30, range(64 << 20, i64::MAX);
        /// Archive that all WAL goes to; only with engine = "postgresql".
        pub archive: ArchiveConfig = ArchiveConfig::default();
        /// Base backups that the relay takes into the archive by itself.
        pub backup: BackupConfig = BackupConfig::default();
        /// Server, or relay, that the WAL comes from.
        pub upstream: UpstreamConfig = UpstreamConfig::default();
        /// Users that may stream. Of password, password_file and verifier at most one.
        pub users: Vec<UserConfig> = Vec::new(), shown_table();
    }
}

::settings::settings! {
    /// Kind of the servers that a relay serves.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Engine {
        /// PostgreSQL: the relay stores its write-ahead log.
        Postgresql = "postgresql",
        /// MariaDB: the relay stores its binary log.
        Mariadb = "mariadb",
        /// MySQL: the relay stores its binary log.
        Mysql = "mysql",
    }
}

::settings::settings! {
    /// `[relay.backup]`: the schedule of base backups. Of all relays of an archive that have one, one at a time takes a backup.
    #[derive(Debug, Clone, PartialEq)]
    pub struct BackupConfig: Default {
        /// Time from the start of a backup to the start of the next one. "0s": no backup by schedule.
        pub every: Duration = Duration::ZERO, example(r#""1d""#);
        /// Time back to which every moment stays restorable: earlier backups and earlier WAL are removed after each backup by schedule. "0s": nothing
        /// is removed.
        pub keep: Duration = Duration::ZERO, example(r#""14d""#);
        /// Time from the start of a full backup to the start of the next full one. Those in between are incremental, where the server can: PostgreSQL 17
        /// and later, with summarize_wal = on. "0s": every backup is full.
        pub full_every: Duration = Duration::ZERO, example(r#""7d""#);
        /// Name of the node that gives the backup. "": a standby that answers, else the primary.
        pub from: String = String::new();
        /// Most bytes that the server sends in a second: 32 KiB to 1 GiB. 0: no limit.
        pub max_rate: u64 = 0, range(0, 1 << 30);
        /// True to spread the writes of the server's checkpoint over minutes.
        pub spread: bool = true;
    }
}

impl BackupConfig {
    /// Returns the time between two backups; None without a schedule.
    #[must_use]
    pub fn schedule(&self) -> Option<Duration> {
        (!self.every.is_zero()).then_some(self.every)
    }
}

impl Engine {
    /// Returns the dialect of the servers' binary log; None for PostgreSQL, which has none.
    #[must_use]
    pub fn dialect(self) -> Option<::binlog::Dialect> {
        match self {
            Engine::Postgresql => None,
            Engine::Mariadb => Some(::binlog::Dialect::MariaDb),
            Engine::Mysql => Some(::binlog::Dialect::MySql),
        }
    }
}

::settings::settings! {
    /// `[relay.upstream]`: the server, or the relay, that the WAL comes from.
    #[derive(Clone, PartialEq)]
    pub struct UpstreamConfig: Default {
        /// Address of the upstream: host:port, or the absolute path of a Unix socket. "": the primary among `[[cluster.nodes]]`, also after a
        /// failover.
        pub address: String = String::new();
        /// User with the REPLICATION attribute.
        pub user: String = "postgres".into();
        /// Password of the user, where the server asks for one: this, or a file.
        pub password: Option<String> = None, secret(), example(r#""change-me-three""#);
        /// File that holds the password in its first line.
        pub password_file: Option<PathBuf> = None, example(r#""/etc/kingpost/replication.password""#);
        /// TLS with the upstream: as `[cluster.tls]`. The files are read again for each connection.
        pub tls: tls::ConnectConfig = tls::ConnectConfig::default();
        /// Permanent physical slot there, made when it is missing; "" for none.
        pub slot: String = "kingpost_relay".into();
        /// The name for synchronous_standby_names.
        pub application_name: String = "kingpost_relay".into();
        /// Longest time between two reports of how far the log is; one that matters is sent at once.
        pub status_interval: Duration = Duration::from_secs(10);
        /// An upstream that has said nothing for this long is asked whether it is there; if it does not answer in the same time, the relay says that
        /// it does not hear it, also to `kingpost failover`. The connection is kept.
        pub heartbeat: Duration = Duration::from_millis(500);
        /// The connection to an upstream that has said nothing for this long is given up.
        pub timeout: Duration = Duration::from_secs(20);
    }
}

impl fmt::Debug for UpstreamConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamConfig")
            .field("address", &self.address)
            .field("user", &self.user)
            .field("tls", &self.tls)
            .field("slot", &self.slot)
            .field("application_name", &self.application_name)
            .finish_non_exhaustive()
    }
}

::settings::settings! {
    /// `[[relay.users]]`: a user that may stream.
    #[derive(Clone, PartialEq)]
    pub struct UserConfig {
        /// Name.
        pub name: String, shown(r#""replicator""#);
        /// Password.
        pub password: Option<String> = None, secret(), shown(r#""change-me-four""#);
        /// File that holds the password in its first line.
        pub password_file: Option<PathBuf> = None, example(r#""/etc/kingpost/replicator.password""#);
        /// SCRAM-SHA-256$… as in pg_authid.
        pub verifier: Option<String> = None, secret(), example(r#""SCRAM-SHA-256$4096:c2FsdHNhbHRzYWx0c2FsdA==$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=""#);
        /// True if the user may also fence the relay and name its upstream, as `kingpost failover` does.
        pub operator: bool = false;
    }
}

impl fmt::Debug for UserConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserConfig").field("name", &self.name).finish_non_exhaustive()
    }
}

::settings::settings! {
    /// Authentication method for downstreams.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum AuthMethod {
        /// None: only if every address is on the loopback.
        Trust = "trust",
        /// Password, by SCRAM-SHA-256.
        ScramSha256 = "scram-sha-256",
    }
}

::settings::settings! {
    /// Limit of the WAL that downstreams get.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ServeUpTo {
        /// WAL durable here: a replica never shows data that the relay could lose.
        Flushed = "flushed",
        /// WAL received: one flush sooner, and safe only as long as the upstream lives.
        Written = "written",
    }
}
