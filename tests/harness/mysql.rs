//! MySQL servers: the real program, named by `KINGPOST_TESTS_MYSQLD`, each in a directory of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::mariadb::REPLICATOR;
use crate::port::Port;
use crate::process::Process;
use crate::root;
use crate::run::{Files, new_dir};
use crate::template::run;
use crate::wait::{SOON, tails, wait_until};

/// Returns the path of `mysqld`; None where MySQL cannot be had: `tests/newest/setup mysql` unpacks it.
pub fn mysqld() -> Option<PathBuf> {
    std::env::var_os("KINGPOST_TESTS_MYSQLD").filter(|path| !path.is_empty()).map(Into::into)
}

/// Returns a command that ends with the test process. Servers of root run as root: their programs may be where only root can read.
fn server_command() -> Command {
    let mysqld = mysqld().expect("KINGPOST_TESTS_MYSQLD");
    // Unpacked, not installed: …/usr/sbin/mysqld.
    let base = mysqld.ancestors().nth(2).expect("a directory of MySQL").to_owned();
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(mysqld).args(["--no-defaults", "--user=root"]);
    command.args([
        format!("--basedir={}", base.display()),
        format!("--plugin-dir={}", base.join("lib/mysql/plugin").display()),
        format!("--lc-messages-dir={}", base.join("share/mysql").display()),
        "--secure-file-priv=NULL".into(),
    ]);
    command
}

/// Returns the data directory of a server that was never started, created once and copied for each server.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let data = new_dir("mysql-template").join("data");
        let mut install = server_command();
        install.arg("--initialize-insecure").arg(format!("--datadir={}", data.display()));
        install.args(["--innodb-redo-log-capacity=8M", "--innodb-buffer-pool-size=16M"]);
        run(&mut install);
        // It names the server.
        let _ = std::fs::remove_file(data.join("auto.cnf"));
        data
    })
}

/// Options of each server.
const OPTIONS: &[&str] = &[
    "--log-bin=mysql-bin",
    "--gtid-mode=ON",
    "--enforce-gtid-consistency=ON",
    "--sync-binlog=1",
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-buffer-pool-size=16M",
    "--innodb-redo-log-capacity=8M",
    "--performance-schema=OFF",
    "--mysqlx=OFF",
    "--replica-net-timeout=10",
    "--max-allowed-packet=256M",
    "--plugin-load-add=semisync_source.so",
    "--plugin-load-add=semisync_replica.so",
];
const AS_SOURCE: &[&str] = &["--rpl-semi-sync-source-enabled=ON", "--rpl-semi-sync-source-timeout=4294967295"];
const AS_REPLICA: &[&str] = &["--rpl-semi-sync-replica-enabled=ON", "--skip-replica-start"];
const AS_READER: &[&str] = &["--rpl-semi-sync-replica-enabled=ON", "--skip-replica-start", "--super-read-only=ON"];

/// A MySQL server, ended when dropped.
#[derive(Debug)]
pub struct MySql {
    id: u32,
    dir: PathBuf,
    port: Port,
    /// Options of its role, from its next start on.
    role: Mutex<&'static [&'static str]>,
    process: Mutex<Option<Arc<Process>>>,
    _files: Files,
}

impl MySql {
    /// Creates a server with a `server_id`, which writes a binary log, and waits for semi-synchronous replicas (for the longest possible time) if
    /// `semisync`; else it is a semi-synchronous replica. Not started.
    ///
    /// # Panics
    /// When its directory cannot be created.
    pub fn new(id: u32, semisync: bool) -> MySql {
        let dir = new_dir(&format!("mysql{id}"));
        run(Command::new("cp").arg("-a").arg(template()).arg(dir.join("data")));
        let role = Mutex::new(if semisync { AS_SOURCE } else { AS_REPLICA });
        MySql { id, port: Port::reserve(), role, process: Mutex::default(), _files: Files(dir.clone()), dir }
    }

    /// Sets the role in which the server starts from now on: a source that waits for semi-synchronous replicas, or a replica that takes no writes.
    pub fn start_as_source(&self, is_source: bool) {
        *self.role.lock().unwrap_or_else(PoisonError::into_inner) = if is_source { AS_SOURCE } else { AS_READER };
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
        let mut server = server_command();
        server.args([
            format!("--datadir={}", self.data().display()),
            format!("--tmpdir={}", self.dir.display()),
            format!("--socket={}", self.dir.join("socket").display()),
            format!("--pid-file={}", self.dir.join("mysql.pid").display()),
            format!("--server-id={}", self.id),
            format!("--port={}", self.port()),
            "--bind-address=127.0.0.1".into(),
        ]);
        server.args(OPTIONS).args(*self.role.lock().unwrap_or_else(PoisonError::into_inner));
        let process = Arc::new(Process::start(&format!("mysql{}", self.id), server, &self.dir.join("mysql.log")));
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&process));
        wait_until(&format!("MySQL {}", self.id), SOON * 2, &self.dir, async || {
            let ended = process.exit_status();
            assert!(ended.is_none(), "MySQL ended: {}", tails(&self.dir));
            self.connect().await.ok()
        })
        .await;
    }

    /// Starts the server for the first time, with a user for replicas and for `kingpost failover`.
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
            &format!("GRANT RELOAD, REPLICATION SLAVE, REPLICATION CLIENT, REPLICATION_SLAVE_ADMIN, SYSTEM_VARIABLES_ADMIN ON *.* TO {user}@'%'"),
        ])
        .await;
    }

    /// Kills the server.
    ///
    /// # Panics
    /// When it is not running.
    pub async fn kill9(&self) {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let process = process.expect("the server is started");
        process.signal(libc::SIGKILL);
        process.wait_exit(SOON).await;
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

    /// Returns the value of a status variable.
    ///
    /// # Panics
    /// When the statement fails, or there is no such variable.
    pub async fn status(&self, name: &str) -> String {
        let statement = format!("SHOW GLOBAL STATUS LIKE '{name}'");
        root::field(&self.socket(), &statement, 1).await.unwrap_or_else(|| panic!("{statement}: no row"))
    }

    /// Returns a column of SHOW REPLICA STATUS.
    ///
    /// # Panics
    /// When it fails.
    pub async fn replica_status(&self, column: &str) -> String {
        root::field(&self.socket(), "SHOW REPLICA STATUS", column).await.unwrap_or_default()
    }

    /// Replicates by GTID from the server or relay on `port`; `more`: further options of CHANGE REPLICATION SOURCE.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn replicate_from(&self, port: u16, more: &str) {
        let (user, password) = REPLICATOR;
        self.run(&[
            "STOP REPLICA",
            &format!(
                "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={port}, SOURCE_USER='{user}', SOURCE_PASSWORD='{password}', \
                 SOURCE_CONNECT_RETRY=1, SOURCE_RETRY_COUNT=1000, SOURCE_HEARTBEAT_PERIOD=1, SOURCE_AUTO_POSITION=1, {more}"
            ),
            "START REPLICA",
        ])
        .await;
    }

    /// Waits until the server has carried out a set of transactions.
    ///
    /// # Panics
    /// When it does not in time.
    pub async fn wait_for_gtids(&self, set: &str) {
        wait_until(&format!("{set} on MySQL {}", self.id), SOON, &self.dir, async || {
            (self.value(&format!("SELECT WAIT_FOR_EXECUTED_GTID_SET('{set}', 1)")).await == "0").then_some(())
        })
        .await;
    }

    /// Returns the transactions that it has carried out.
    ///
    /// # Panics
    /// When it does not answer.
    pub async fn gtids(&self) -> String {
        self.value("SELECT @@global.gtid_executed").await.replace('\n', "")
    }

    /// Waits until the receiver of the replica has failed with an error that contains `says`.
    ///
    /// # Panics
    /// When it does not in time.
    pub async fn wait_for_error(&self, says: &str) {
        wait_until(&format!("{says:?} on MySQL {}", self.id), SOON, &self.dir, async || {
            self.replica_status("Last_IO_Error").await.contains(says).then_some(())
        })
        .await;
    }
}
