//! Configuration of failovers.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ::relay::config::Engine;

use crate::etcd::EtcdConfig;

::settings::settings! {
    /// `[failover]`: settings of `kingpost failover`, `switchover` and `watch` beside `[cluster]`.
    #[derive(Clone, PartialEq)]
    pub struct FailoverConfig: Default {
        /// Kind of the servers: "postgresql", or "mariadb" or "mysql" behind relays with the same engine.
        pub engine: Engine = Engine::Postgresql;
        /// User on the servers that may promote and set primary_conninfo: a superuser.
        pub user: String = "postgres".into();
        /// Password of the user, where the servers ask for one: this, or a file.
        pub password: Option<String> = None, secret(), example(r#""change-me-five""#);
        /// File that holds the password in its first line.
        pub password_file: Option<PathBuf> = None, example(r#""/etc/kingpost/failover.password""#);
        /// User of the relays that a former source of MariaDB or MySQL replicates as after a switchover. None: a message gives advice.
        pub replication_user: Option<String> = None, example(r#""repl""#);
        /// Password of that user: this, or a file.
        pub replication_password: Option<String> = None, secret(), example(r#""change-me-eight""#);
        /// File that holds the password in its first line.
        pub replication_password_file: Option<PathBuf> = None, example(r#""/etc/kingpost/repl.password""#);
        /// Number of relays that must have a commit before it is acknowledged: so many less one may be lost with the primary. Of n relays, n -
        /// acknowledgements + 1 are fenced at a failover, and more than half. To agree with the servers' synchronous_standby_names, or with
        /// commit_durability: `kingpost check --online` asks them.
        pub acknowledgements: usize = 1, range(1, 100);
        /// Longest time for one step.
        pub step_timeout: Duration = Duration::from_secs(60);
        /// Lease of the agents of `kingpost node` ([node] lease): a promotion waits for so long after the fence, so that a primary that is cut off
        /// has stopped by then. "0s": no wait.
        pub lease: Duration = Duration::ZERO, or_never();
        /// Zones whose nodes may become the primary without being named by --to; none: all.
        pub zones: Vec<String> = Vec::new();
        /// A standby that lacks more than this many bytes does not become the primary without being named. Not given: there is no limit.
        pub lag_limit: Option<u64> = None, range(0, i64::MAX), example("1073741824");
        /// TLS with relays and proxies: as `[cluster.tls]`, which is for the servers.
        pub tls: tls::ConnectConfig = tls::ConnectConfig::default();
        /// Program that stops a server cleanly at a switchover, with its arguments. Its environment has KINGPOST_NODE and KINGPOST_ADDRESS. None: the
        /// server is locked instead: it goes on running, and lets nobody in.
        pub stop: Vec<String> = Vec::new();
        /// Program that brings a former primary back as a standby. Its environment also has KINGPOST_PRIMARY, KINGPOST_PRIMARY_ADDRESS and
        /// KINGPOST_UPSTREAM (the address to receive from). None: a message gives advice.
        pub rejoin: Vec<String> = Vec::new();
        /// Name of whatever brings a former primary back by itself, as an operator of Kubernetes does: no message gives advice then. "": nothing
        /// does. With a program above it has no meaning.
        pub rejoined_by: String = String::new();
        /// The lock of `kingpost watch --etcd`: with it a lost primary is replaced without anybody's doing.
        pub etcd: EtcdConfig = EtcdConfig::default();
        /// The relays. Of password and password_file at most one.
        pub relays: Vec<RelayPartConfig> = Vec::new();
        /// The proxies that pause during a switchover. Of password and password_file at most one.
        pub proxies: Vec<PartConfig> = Vec::new();
    }
}

impl fmt::Debug for FailoverConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailoverConfig")
            .field("engine", &self.engine)
            .field("user", &self.user)
            .field("replication_user", &self.replication_user)
            .field("tls", &self.tls)
            .field("acknowledgements", &self.acknowledgements)
            .field("step_timeout", &self.step_timeout)
            .field("lease", &self.lease)
            .field("zones", &self.zones)
            .field("lag_limit", &self.lag_limit)
            .field("stop", &self.stop)
            .field("rejoin", &self.rejoin)
            .field("rejoined_by", &self.rejoined_by)
            .field("etcd", &self.etcd)
            .field("relays", &self.relays)
            .field("proxies", &self.proxies)
            .finish_non_exhaustive()
    }
}

::settings::settings! {
    /// A proxy that is paused; or the address of a relay.
    #[derive(Clone, PartialEq)]
    pub struct PartConfig {
        /// Name.
        pub name: String, example(r#""proxy1""#);
        /// Address for its clients.
        pub address: String, example(r#""proxy1:6432""#);
        /// The proxy's name for this cluster, where it has several (`[[clusters]]`): then only this one's clients pause.
        pub cluster: Option<String> = None, example(r#""billing""#);
        /// Operator of its console.
        pub user: String = "kingpost".into();
        /// Password of the operator.
        pub password: Option<String> = None, secret(), example(r#""change-me-seven""#);
        /// File that holds the password in its first line.
        pub password_file: Option<PathBuf> = None, example(r#""/etc/kingpost/proxy.password""#);
    }
}

::settings::settings! {
    /// A relay that is fenced.
    #[derive(Clone, PartialEq)]
    pub struct RelayPartConfig {
        /// Name.
        pub name: String, example(r#""relay1""#);
        /// Address for its downstreams.
        pub address: String, example(r#""relay1:6442""#);
        /// User of the relay that is an operator.
        pub user: String = "kingpost".into();
        /// Password of the operator.
        pub password: Option<String> = None, secret(), example(r#""change-me-six""#);
        /// File that holds the password in its first line.
        pub password_file: Option<PathBuf> = None, example(r#""/etc/kingpost/relay.password""#);
        /// Name of the relay on the servers (its relay.upstream.application_name), as synchronous_standby_names has it; its name if not given.
        pub application_name: Option<String> = None, example(r#""relay1""#);
    }
}

impl RelayPartConfig {
    /// Returns the address and login of the relay.
    pub fn part(&self) -> PartConfig {
        PartConfig {
            name: self.name.clone(),
            address: self.address.clone(),
            user: self.user.clone(),
            password: self.password.clone(),
            password_file: self.password_file.clone(),
            cluster: None,
        }
    }
}

impl fmt::Debug for RelayPartConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.part().fmt(f)
    }
}

impl fmt::Debug for PartConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartConfig")
            .field("name", &self.name)
            .field("address", &self.address)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// Returns the number of `relays` that a failover needs: enough to stop all commits ([`stopping`]), and more than half, or two runs could each get
/// enough and elect two nodes.
pub fn needed(relays: usize, acknowledgements: usize) -> usize {
    stopping(relays, acknowledgements).max(relays / 2 + 1)
}

/// Returns the number of `relays` to fence so that no commit can be acknowledged any more, and so that one of them has every acknowledged commit.
pub fn stopping(relays: usize, acknowledgements: usize) -> usize {
    (relays + 1).saturating_sub(acknowledgements.max(1)).max(1)
}
