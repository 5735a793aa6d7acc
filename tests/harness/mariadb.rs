//! MariaDB servers, and a relay of their binary log: the real programs, each in a directory of its own.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use toml::{Table, Value};

use crate::kingpost::{kingpost_bin, set};
use crate::metrics::Metrics;
use crate::port::Port;
use crate::process::{Process, RunAs, command};
use crate::root;
use crate::run::{Files, new_dir, unique};
use crate::template::run;
use crate::wait::{SOON, wait_until};

/// User of the replicas and the relay on servers, and of replicas on relays.
pub(crate) const REPLICATOR: (&str, &str) = ("repl", "repl-secret");
/// User that may give orders to relays.
const OPERATOR: (&str, &str) = ("operator", "operator-secret");

fn id_of(arguments: &[&str]) -> Option<u32> {
    let output = Command::new("id").args(arguments).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// Returns the account of the servers if the tests run as root.
fn account() -> Option<(u32, u32)> {
    static ACCOUNT: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    *ACCOUNT.get_or_init(|| {
        if id_of(&["-u"]) != Some(0) {
            return None;
        }
        ["mysql", "nobody"].iter().find_map(|name| Some((id_of(&["-u", name])?, id_of(&["-g", name])?)))
    })
}

fn program(name: &str) -> PathBuf {
    // Debian installs the server outside of a user's PATH.
    let sbin = Path::new("/usr/sbin").join(name);
    if sbin.exists() { sbin } else { name.into() }
}

/// Returns a command that runs as the servers' account and ends with the test process.
fn server_command(name: &str, death_signal: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", death_signal]);
    if let Some((uid, gid)) = account() {
        command.args(["--reuid", &uid.to_string(), "--regid", &gid.to_string(), "--clear-groups"]);
    }
    command.arg("--").arg(program(name)).arg("--no-defaults");
    command
}

/// Returns the data directory of a server that was never started, created once and copied for each server.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let dir = new_dir("mariadb-template");
        if let Some((uid, gid)) = account() {
            chown(&dir, Some(uid), Some(gid)).expect("give a directory to the server");
        }
        let data = dir.join("data");
        let mut install = server_command("mariadb-install-db", "KILL");
        install.arg(format!("--datadir={}", data.display())).arg(format!("--tmpdir={}", dir.display()));
        install.args(["--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-log-file-size=8M"]);
        run(&mut install);
        data
    })
}

/// A MariaDB server, ended when dropped.
#[derive(Debug)]
pub struct MariaDb {
    id: u32,
    dir: PathBuf,
    port: Port,
    options: Vec<String>,
    process: Mutex<Option<Arc<Process>>>,
    _files: Files,
}

impl MariaDb {
    /// Creates a server with a `server_id`, which writes a binary log, and waits for semi-synchronous replicas (for the longest possible time) if
    /// `semisync`. Not started.
    ///
    /// # Panics
    /// When its directory cannot be created.
    pub fn new(id: u32, semisync: bool) -> MariaDb {
        let dir = new_dir(&format!("mariadb{id}"));
        run(Command::new("cp").arg("-a").arg(template()).arg(dir.join("data")));
        if let Some((uid, gid)) = account() {
            chown(&dir, Some(uid), Some(gid)).expect("give a directory to the server");
        }
        let options = [
            "--log-bin=mysql-bin",
            "--log-slave-updates",
            "--gtid-strict-mode=1",
            "--binlog-checksum=CRC32",
            "--binlog-format=ROW",
            "--sync-binlog=1",
            "--innodb-flush-log-at-trx-commit=1",
            "--innodb-buffer-pool-size=16M",
            "--innodb-log-file-size=8M",
            "--performance-schema=OFF",
            "--slave-net-timeout=10",
            "--max-allowed-packet=256M",
        ];
        let mut options: Vec<String> = options.iter().map(ToString::to_string).collect();
        if semisync {
            options.extend(
                [
                    "--rpl-semi-sync-master-enabled=ON",
                    "--rpl-semi-sync-master-timeout=4294967295",
                    "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
                    "--rpl-semi-sync-master-wait-no-slave=ON",
                ]
                .map(str::to_owned),
            );
        }
        MariaDb { id, port: Port::reserve(), options, process: Mutex::default(), _files: Files(dir.clone()), dir }
    }

    /// Adds an option, in effect from the next start on.
    #[must_use]
    pub fn option(mut self, option: &str) -> MariaDb {
        self.options.push(option.into());
        self
    }

    /// Copies files into its directory, readable only by the server.
    ///
    /// # Panics
    /// When they cannot be copied.
    #[must_use]
    pub fn files(self, files: &[(&str, &Path)]) -> MariaDb {
        for (name, from) in files {
            let path = self.dir.join(name);
            std::fs::copy(from, &path).expect("copy a file for the server");
            if let Some((uid, gid)) = account() {
                chown(&path, Some(uid), Some(gid)).expect("give a file to the server");
            }
        }
        self
    }

    /// Returns its port, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns its data directory.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Returns its directory, which contains its log.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts the server, and waits until it answers.
    ///
    /// # Panics
    /// When it does not answer.
    pub async fn start(&self) {
        let mut server = server_command("mariadbd", "KILL");
        server.args([
            format!("--datadir={}", self.data().display()),
            format!("--tmpdir={}", self.dir.display()),
            format!("--socket={}", self.dir.join("socket").display()),
            format!("--pid-file={}", self.dir.join("mariadb.pid").display()),
            format!("--server-id={}", self.id),
            format!("--port={}", self.port()),
            "--bind-address=127.0.0.1".into(),
        ]);
        server.args(&self.options).current_dir(self.data());
        let process = Arc::new(Process::start(&format!("mariadb{}", self.id), server, &self.dir.join("mariadb.log")));
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&process));
        wait_until(&format!("MariaDB {}", self.id), SOON * 2, &self.dir, async || {
            let ended = process.exit_status();
            assert!(ended.is_none(), "MariaDB ended: {}", crate::wait::tails(&self.dir));
            self.connect().await.ok()
        })
        .await;
    }

    /// Starts the server for the first time, with the replicas' user.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start_new(&self) {
        self.start().await;
        let (user, password) = REPLICATOR;
        // On each server separately: the binary log must not contain it.
        self.run(&[
            "SET sql_log_bin = 0",
            &format!("CREATE USER {user}@'%' IDENTIFIED BY '{password}'"),
            &format!("GRANT ALL ON *.* TO {user}@'%'"),
        ])
        .await;
    }

    /// Kills the server.
    ///
    /// # Panics
    /// When it is not running.
    pub async fn kill9(&self) {
        let process = self.process();
        process.signal(libc::SIGKILL);
        process.wait_exit(SOON).await;
    }

    /// Returns its process.
    ///
    /// # Panics
    /// When it is not running.
    pub fn process(&self) -> Arc<Process> {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(process.as_ref().expect("the server is started"))
    }

    /// Opens a connection as root.
    ///
    /// # Errors
    /// An error of the server or the socket.
    pub async fn connect(&self) -> mysql_async::Result<mysql_async::Conn> {
        root::connect(&self.socket()).await
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("socket")
    }

    /// Runs statements, one after another, on one connection.
    ///
    /// # Panics
    /// When one fails.
    pub async fn run(&self, statements: &[&str]) {
        root::run(&self.socket(), statements).await;
    }

    /// Returns the first column of the first row, as text.
    ///
    /// # Panics
    /// When the statement fails, or there is no row.
    pub async fn value(&self, statement: &str) -> String {
        root::value(&self.socket(), statement).await
    }

    /// Returns a column of SHOW SLAVE STATUS.
    ///
    /// # Panics
    /// When it fails.
    pub async fn slave_status(&self, column: &str) -> String {
        root::field(&self.socket(), "SHOW SLAVE STATUS", column).await.unwrap_or_default()
    }

    /// Replicates by GTID from the server or relay on `port`.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn replicate_from(&self, port: u16) {
        let (user, password) = REPLICATOR;
        self.run(&[
            "STOP SLAVE",
            &format!(
                "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, MASTER_USER='{user}', MASTER_PASSWORD='{password}', \
                 MASTER_CONNECT_RETRY=1, MASTER_HEARTBEAT_PERIOD=1, MASTER_USE_GTID=slave_pos, MASTER_SSL=0"
            ),
            "SET GLOBAL read_only = 1",
            "START SLAVE",
        ])
        .await;
    }
}

/// A relay of a binary log, ended when dropped.
#[derive(Debug)]
pub struct BinlogRelay {
    name: String,
    parent: PathBuf,
    port: Port,
    metrics_port: Port,
    config: Table,
    process: Option<Process>,
    _files: Files,
}

impl BinlogRelay {
    /// Creates a relay that follows the server on port `upstream`; not started.
    ///
    /// # Panics
    /// When its directory cannot be created.
    pub fn of(upstream: u16) -> BinlogRelay {
        let name = format!("binlog-relay{}", unique());
        let parent = new_dir(&name);
        let (port, metrics_port) = (Port::reserve(), Port::reserve());
        let mut config = Table::new();
        let (user, password) = REPLICATOR;
        let mut replicas = Table::new();
        replicas.insert("name".into(), user.into());
        replicas.insert("password".into(), password.into());
        let mut operator = Table::new();
        operator.insert("name".into(), OPERATOR.0.into());
        operator.insert("password".into(), OPERATOR.1.into());
        operator.insert("operator".into(), true.into());
        for (path, value) in [
            ("relay.engine", Value::from("mariadb")),
            ("relay.server_id", 77.into()),
            ("relay.listen", vec![format!("127.0.0.1:{}", port.number())].into()),
            ("relay.dir", parent.join("binlog").display().to_string().into()),
            ("relay.upstream.address", format!("127.0.0.1:{upstream}").into()),
            ("relay.upstream.user", user.into()),
            ("relay.upstream.password", password.into()),
            ("relay.upstream.heartbeat", "500ms".into()),
            ("relay.upstream.timeout", "10s".into()),
            ("relay.users", vec![Value::Table(replicas), Value::Table(operator)].into()),
            ("metrics.listen", format!("127.0.0.1:{}", metrics_port.number()).into()),
        ] {
            set(&mut config, path, value);
        }
        BinlogRelay { name, port, metrics_port, config, process: None, _files: Files(parent.clone()), parent }
    }

    /// Sets `section.key`; takes effect at the next start.
    #[must_use]
    pub fn set(mut self, path: &str, value: impl Into<Value>) -> BinlogRelay {
        set(&mut self.config, path, value.into());
        self
    }

    /// Returns the port for replicas, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the directory of its log.
    pub fn dir(&self) -> PathBuf {
        self.parent.join("binlog")
    }

    /// Returns its directory, which contains its output.
    pub fn logs(&self) -> &Path {
        &self.parent
    }

    /// Returns its output so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.parent.join("relay.log")).unwrap_or_default()).into_owned()
    }

    /// Returns its process.
    ///
    /// # Panics
    /// When it is not running.
    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("the relay is started")
    }

    fn write_config(&self) {
        let text = toml::to_string(&self.config).expect("a configuration");
        std::fs::write(self.parent.join("relay.toml"), text).expect("write the relay's configuration");
    }

    /// Starts the relay without waiting.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn launch(&mut self) {
        self.write_config();
        let mut relay = command(&kingpost_bin(), RunAs::Tests, "KILL");
        relay.args(["relay", "--config"]).arg(self.parent.join("relay.toml"));
        self.process = Some(Process::start(&self.name, relay, &self.parent.join("relay.log")));
    }

    /// Starts the relay, or restarts it on the same port, and waits until it receives.
    ///
    /// # Panics
    /// When the relay ends, or does not receive in time.
    pub async fn start(&mut self) {
        self.launch();
        self.wait_for("receive", |metrics| metrics.sum("kingpost_relay_streaming", &[]) == 1.0).await;
    }

    /// Waits until its metrics satisfy a condition.
    ///
    /// # Panics
    /// When the relay ends, or the time is over.
    pub async fn wait_for(&self, what: &str, condition: impl Fn(&Metrics) -> bool) -> Metrics {
        wait_until(&format!("{} to {what}", self.name), SOON, &self.parent, async || {
            let ended = self.process().exit_status();
            assert!(ended.is_none(), "the relay ended with {ended:?}:\n{}", self.log());
            self.http("/healthz").await?;
            let metrics = self.metrics().await;
            condition(&metrics).then_some(metrics)
        })
        .await
    }

    /// Follows a server at another address.
    pub fn follow(&mut self, upstream: &str) {
        set(&mut self.config, "relay.upstream.address", upstream.into());
        self.write_config();
        self.process().signal(libc::SIGHUP);
    }

    /// Runs `kingpost failover` with this relay and these servers; returns true if it succeeded, and its output.
    ///
    /// # Panics
    /// When it cannot be run.
    pub async fn failover(&self, nodes: &[(&str, u16)], arguments: &[&str]) -> (bool, String) {
        self.failover_with(&[], nodes, arguments).await
    }

    /// Runs `kingpost failover` with this relay as `relay1`, with `others` as `relay2` and so on, and with these servers; returns true if it
    /// succeeded, and its output.
    ///
    /// # Panics
    /// When it cannot be run.
    pub async fn failover_with(
        &self,
        others: &[&BinlogRelay],
        nodes: &[(&str, u16)],
        arguments: &[&str],
    ) -> (bool, String) {
        kingpost(&["failover"], &self.write_failover(others, nodes), arguments).await
    }

    /// Runs `kingpost switchover` for servers on these ports and this relay; returns true if it succeeded, and its output.
    ///
    /// # Panics
    /// When it cannot be run.
    pub async fn switchover(&self, nodes: &[(&str, u16)], arguments: &[&str]) -> (bool, String) {
        kingpost(&["switchover"], &self.write_failover(&[], nodes), arguments).await
    }

    /// Starts `kingpost watch` for servers on these ports and this relay; returns its process, and the file with its output.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn watch(&self, nodes: &[(&str, u16)], arguments: &[&str]) -> (Process, PathBuf) {
        let mut watch = command(&kingpost_bin(), RunAs::Tests, "KILL");
        watch.arg("watch").arg("--config").arg(self.write_failover(&[], nodes)).args(arguments);
        let log = self.parent.join(format!("watch{}.log", unique()));
        (Process::start("watch", watch, &log), log)
    }

    /// Writes the configuration of failovers; returns its path.
    fn write_failover(&self, others: &[&BinlogRelay], nodes: &[(&str, u16)]) -> PathBuf {
        let table = |fields: &[(&str, String)]| {
            Value::Table(fields.iter().map(|(name, value)| ((*name).to_owned(), Value::from(value.clone()))).collect())
        };
        let address = |port: u16| format!("127.0.0.1:{port}");
        let servers = nodes.iter().map(|(name, port)| table(&[("name", (*name).into()), ("address", address(*port))]));
        let relays = std::iter::once(self).chain(others.iter().copied()).enumerate().map(|(index, relay)| {
            let (user, password) = (OPERATOR.0.to_owned(), OPERATOR.1.to_owned());
            let name = format!("relay{}", index + 1);
            table(&[("name", name), ("address", address(relay.port())), ("user", user), ("password", password)])
        });
        let engine = self.config["relay"]["engine"].clone();
        let mut config = Table::new();
        for (path, value) in [
            ("cluster.nodes", Value::from(servers.collect::<Vec<_>>())),
            ("failover.engine", engine),
            ("failover.user", REPLICATOR.0.into()),
            ("failover.password", REPLICATOR.1.into()),
            ("failover.replication_user", REPLICATOR.0.into()),
            ("failover.replication_password", REPLICATOR.1.into()),
            ("failover.step_timeout", "30s".into()),
            ("failover.relays", relays.collect::<Vec<_>>().into()),
        ] {
            set(&mut config, path, value);
        }
        let path = self.parent.join("failover.toml");
        std::fs::write(&path, toml::to_string(&config).expect("a configuration")).expect("write the configuration");
        path
    }

    /// Sends the relay an operator's order, without `kingpost failover`: a statement such as `KINGPOST FENCE TERM 1 TIMELINE 1`.
    ///
    /// # Panics
    /// When the relay refuses.
    pub async fn order(&self, statement: &str) {
        let mut client = tokio::process::Command::new("mariadb");
        client.args(["--no-defaults", "--protocol=TCP", "--host=127.0.0.1"]).arg(format!("--port={}", self.port()));
        client.arg(format!("--user={}", OPERATOR.0)).arg(format!("--execute={statement}")).env("MYSQL_PWD", OPERATOR.1);
        let output = client.kill_on_drop(true).output().await.expect("run mariadb, the client");
        assert!(output.status.success(), "{statement}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Runs `kingpost check --online` with its configuration; returns true if it succeeded, and its output.
    ///
    /// # Panics
    /// When it cannot be run.
    pub async fn check(&self) -> (bool, String) {
        kingpost(&["check", "--online"], &self.parent.join("relay.toml"), &[]).await
    }

    /// Runs the command that an alarm names for a relay that has to give up its log; returns true if it succeeded, and its output.
    ///
    /// # Panics
    /// When the alarm names no command, or it cannot be run.
    pub async fn reset(&self, alarm: &str) -> (bool, String) {
        let (_, named) = alarm.split_once("kingpost relay reset ").unwrap_or_else(|| panic!("no command in {alarm}"));
        let arguments = named.lines().next().unwrap_or_default().split_whitespace();
        let mut run = command(&kingpost_bin(), RunAs::Tests, "KILL");
        run.args(["relay", "reset"]).args(arguments);
        let mut run = tokio::process::Command::from(run);
        let output = run.kill_on_drop(true).output().await.expect("run kingpost");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    /// Kills the relay.
    ///
    /// # Panics
    /// When it is not running.
    pub async fn kill9(&self) {
        self.process().signal(libc::SIGKILL);
        self.process().wait_exit(SOON).await;
    }

    /// Returns status and body of a GET on the metrics address; None without an answer.
    pub async fn http(&self, path: &str) -> Option<(u16, String)> {
        crate::metrics::get(self.metrics_port.number(), path).await
    }

    /// Returns the current metrics.
    ///
    /// # Panics
    /// When the metrics are not available or not valid.
    pub async fn metrics(&self) -> Metrics {
        Metrics::now(self.metrics_port.number()).await
    }

    /// Returns the transactions that it reports as durable, in the form of `@@gtid_binlog_state`.
    ///
    /// # Panics
    /// When the metrics are not available.
    pub async fn gtids(&self) -> String {
        let metrics = self.metrics().await;
        let sample = metrics.samples.iter().find(|sample| sample.name == "kingpost_relay_durable_info");
        sample.and_then(|sample| sample.labels.get("gtids").cloned()).unwrap_or_default()
    }
}

/// Runs a command to its end; returns true if it succeeded, and its output.
async fn kingpost(what: &[&str], config: &Path, arguments: &[&str]) -> (bool, String) {
    let mut run = command(&kingpost_bin(), RunAs::Tests, "KILL");
    run.args(what).arg("--config").arg(config).args(arguments);
    let mut run = tokio::process::Command::from(run);
    let output = run.kill_on_drop(true).output().await.expect("run kingpost");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}
