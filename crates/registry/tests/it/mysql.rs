//! The store in MySQL or MariaDB, on a real server: MariaDB's of the system, or the `mysqld` named by KINGPOST_TESTS_MYSQLD.

mod tls;

use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable as _;
use registry::{Store, StoreError, store};

use crate::common::*;
use crate::common::{config, fire, kv, suite};

/// A server in a temporary directory, ended even if the test panics; on a socket, and on a port for probes.
struct Server {
    directory: tempfile::TempDir,
    port: u16,
    process: Child,
}

fn id_of(arguments: &[&str]) -> Option<u32> {
    let output = Command::new("id").args(arguments).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// Returns the account for the server if the test runs as root.
fn account() -> Option<(u32, u32)> {
    (id_of(&["-u"]) == Some(0)).then(|| {
        let accounts = ["mysql", "nobody"];
        accounts.iter().find_map(|name| Some((id_of(&["-u", name])?, id_of(&["-g", name])?))).unwrap()
    })
}

/// Returns the path of MySQL's server; None: the tests are for MariaDB.
fn mysqld() -> Option<String> {
    std::env::var("KINGPOST_TESTS_MYSQLD").ok().filter(|path| !path.is_empty())
}

fn command(program: &str, directory: &Path) -> Command {
    // Debian installs the server outside of a user's PATH.
    let sbin = Path::new("/usr/sbin").join(program);
    let mut command = Command::new(if sbin.exists() { sbin } else { program.into() });
    command.current_dir(directory).arg("--no-defaults").arg(format!("--datadir={}", directory.join("data").display()));
    // In /tmp, servers remove each other's temporary tables.
    command.arg(format!("--tmpdir={}", directory.display()));
    if mysqld().as_deref() == Some(program) {
        // Unpacked, not installed: …/usr/sbin/mysqld, perhaps where only root can read.
        let base = Path::new(program).ancestors().nth(2).unwrap().display();
        command.args(["--user=root", "--secure-file-priv=NULL", "--mysqlx=OFF"]);
        command.args([format!("--basedir={base}"), format!("--plugin-dir={base}/lib/mysql/plugin")]);
    } else if let Some((uid, gid)) = account() {
        command.gid(gid).uid(uid);
    }
    command
}

impl Server {
    fn start() -> Server {
        Server::start_with(&[])
    }

    fn start_with(more: &[String]) -> Server {
        let directory = tempfile::Builder::new().prefix("kp-registry-").tempdir().unwrap();
        if let Some((uid, gid)) = account() {
            std::os::unix::fs::chown(directory.path(), Some(uid), Some(gid)).unwrap();
        }
        let mysqld = mysqld();
        let (installer, how, server) = match mysqld.as_deref() {
            Some(mysqld) => (mysqld, &["--initialize-insecure"][..], mysqld),
            None => {
                let how = &["--auth-root-authentication-method=normal", "--skip-test-db"][..];
                ("mariadb-install-db", how, "mariadbd")
            }
        };
        let mut install = command(installer, directory.path());
        install.args(how);
        let output = install.output().expect("MariaDB is installed");
        assert!(
            output.status.success(),
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let mut server = command(server, directory.path());
        let socket = directory.path().join("socket");
        server.arg(format!("--socket={}", socket.display())).args([
            "--bind-address=127.0.0.1",
            &format!("--port={port}"),
            "--innodb-flush-log-at-trx-commit=0",
        ]);
        server.args(more);
        let process = server.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let mut server = Server { directory, port, process };
        let began = Instant::now();
        // The server may run and not listen yet.
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            let ended = server.process.try_wait().unwrap();
            let log = || std::fs::read_to_string(server.directory.path().join("log")).unwrap_or_default();
            assert!(ended.is_none() && began.elapsed() < PATIENCE, "{}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    fn address(&self, database: &str) -> String {
        format!("mysql://root@localhost/{database}?socket={}", self.directory.path().join("socket").display())
    }

    async fn admin(&self) -> mysql_async::Conn {
        mysql_async::Conn::from_url(self.address("mysql")).await.unwrap()
    }

    async fn open(&self, database: &str) -> Result<Arc<dyn Store>, StoreError> {
        self.admin().await.query_drop(format!("CREATE DATABASE IF NOT EXISTS {database}")).await.unwrap();
        store::open(&self.address(database)).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// One server for all tests, since creating one takes longer than its tests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contract_then_under_fire() {
    let server = Server::start();
    suite::all(|| server.open("contract")).await;
    kv::all(|| server.open("contract")).await;
    config::all(|| server.open("contract")).await;
    probed(&server.open("contract").await.unwrap(), "mysql", server.port).await;
    let older = async {
        let mut admin = server.admin().await;
        for back in [
            "DROP TABLE contract.registry_writer, contract.registry_node, contract.registry_secret",
            "DELETE FROM contract.registry_schema WHERE version > 1",
        ] {
            admin.query_drop(back).await.unwrap();
        }
    };
    suite::goes_forward(|| server.open("contract"), older).await;
    let newer = "INSERT INTO contract.registry_schema VALUES (999, now())";
    server.admin().await.query_drop(newer).await.unwrap();
    assert!(matches!(server.open("contract").await.err(), Some(StoreError::Newer { found: 999, .. })));

    // Kills every connection of every node from time to time, also during COMMIT.
    let kills = async {
        let mut admin = server.admin().await;
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            // Not from information_schema: MySQL converts the statements there, and fails with those that hold bytes.
            let all: Vec<mysql_async::Row> = admin.query("SHOW PROCESSLIST").await.unwrap();
            let of_fire = |row: mysql_async::Row| {
                let database = row.get_opt::<Option<String>, _>("db")?.ok()?;
                (database.as_deref() == Some("fire")).then(|| row.get::<u64, _>("Id"))?
            };
            for other in all.into_iter().filter_map(of_fire) {
                // The connection may have ended by itself.
                let _ = admin.query_drop(format!("KILL {other}")).await;
            }
        }
    };
    fire::under_fire(|| server.open("fire"), 20, kills).await;
    fire::only_the_counter_misses_nothing(|| server.open("cursors")).await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_so_without_the_password() {
    for address in ["mysql://u:sesame@127.0.0.1:1/db", "mysql://u:sesame@[bad", "mysql://u:sesame@127.0.0.1:1/db?x=y"] {
        let error = store::open(address).await.err().unwrap();
        assert!(!format!("{error} {error:?}").contains("sesame"), "{error:?}");
    }
}
