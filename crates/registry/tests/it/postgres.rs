//! The store in PostgreSQL, on a real server.

mod tls;

use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use registry::{Store, StoreError, store};
use tokio_postgres::NoTls;

use crate::common::*;
use crate::common::{config, fire, kv, suite};

/// A server in a temporary directory, ended even if the test panics.
struct Server {
    directory: tempfile::TempDir,
    bin: PathBuf,
    port: u16,
    user: Option<(u32, u32)>,
}

fn id_of(arguments: &[&str]) -> Option<u32> {
    let output = Command::new("id").args(arguments).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Server {
    fn start() -> Server {
        let mut bins: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
            .expect("PostgreSQL's servers are in /usr/lib/postgresql")
            .map(|entry| entry.unwrap().path().join("bin"))
            .filter(|bin| bin.join("initdb").exists())
            .collect();
        bins.sort();
        let directory = tempfile::Builder::new().prefix("kp-registry-").tempdir().unwrap();
        // If the test runs as root, the server runs as another user: it refuses to run as root.
        let user = (id_of(&["-u"]) == Some(0)).then(|| {
            let accounts = ["postgres", "nobody"];
            accounts.iter().find_map(|name| Some((id_of(&["-u", name])?, id_of(&["-g", name])?))).unwrap()
        });
        if let Some((uid, gid)) = user {
            std::os::unix::fs::chown(directory.path(), Some(uid), Some(gid)).unwrap();
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = Server { directory, bin: bins.pop().expect("a PostgreSQL server is installed"), port, user };
        run(server.command("initdb").args([
            "--no-sync",
            "--auth=trust",
            "--username=postgres",
            "-E",
            "UTF8",
            "-D",
            "data",
        ]));
        let settings = format!(
            "port = {port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\nfsync = off\n\
             shared_buffers = 16MB\nmax_connections = 60\n"
        );
        std::fs::write(server.directory.path().join("data/postgresql.auto.conf"), settings).unwrap();
        run(server.command("pg_ctl").args(["-w", "-t", "30", "-D", "data", "-l", "log", "start"]));
        server
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command.current_dir(self.directory.path()).env("LC_ALL", "C");
        if let Some((uid, gid)) = self.user {
            command.gid(gid).uid(uid);
        }
        command
    }

    fn address(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    async fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        store::open(&self.address()).await
    }

    async fn admin(&self) -> tokio_postgres::Client {
        let (client, connection) = tokio_postgres::connect(&self.address(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.command("pg_ctl").args(["-D", "data", "-m", "immediate", "stop"]).output();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contract() {
    let server = Server::start();
    suite::all(|| server.open()).await;
    kv::all(|| server.open()).await;
    config::all(|| server.open()).await;
    probed(&server.open().await.unwrap(), "postgres", server.port).await;
    let older = async {
        let back = "DROP TABLE registry_writer, registry_node, registry_secret; DROP INDEX instance_gone;
            DELETE FROM registry_schema WHERE version > 1";
        server.admin().await.batch_execute(back).await.unwrap();
    };
    suite::goes_forward(|| server.open(), older).await;
    // A schema of a newer version is refused.
    server.admin().await.batch_execute("INSERT INTO registry_schema VALUES (999, now())").await.unwrap();
    assert!(matches!(server.open().await.err(), Some(StoreError::Newer { found: 999, .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_fire() {
    let server = Server::start();
    // Kills every connection of every node from time to time, also during COMMIT.
    let kills = async {
        let admin = server.admin().await;
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let kill =
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'kingpost registry'";
            admin.execute(kill, &[]).await.unwrap();
        }
    };
    fire::under_fire(|| server.open(), 20, kills).await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_so_without_the_password() {
    for address in
        ["postgres://u:sesame@127.0.0.1:1/db", "postgres://u:sesame@[bad", "postgres://u:sesame@127.0.0.1:1/db?x=y"]
    {
        let error = store::open(address).await.err().unwrap();
        assert!(!format!("{error} {error:?}").contains("sesame"), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cursor_of_times_misses_rows_and_the_counter_does_not() {
    let server = Server::start();
    fire::only_the_counter_misses_nothing(|| server.open()).await;
}
