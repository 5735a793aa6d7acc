//! A server that runs on a restored directory for its verification: on a socket of its own, without any other address.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use process::{Failure, StopSignals, terminal};
use tokio_postgres::{Client, Config, NoTls};

use crate::args::RestoreArgs;

/// Port of the socket's name.
const PORT: u16 = 5432;
/// Time between two looks at the recovery.
const LOOK: Duration = Duration::from_millis(200);
/// Longest time of a query.
const QUERY: Duration = Duration::from_secs(60);
/// Longest time of a shutdown.
const SHUTDOWN: Duration = Duration::from_secs(600);
/// Lines of a program's output in an error.
const LINES: usize = 8;

/// Checks that a server can be started by this user.
pub(crate) fn may_start(to: &Path) -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        return Err(Failure::environment("--verify starts a server, which does not run as root")
            .advise(format!("run this as the user that is to own {}", to.display())));
    }
    Ok(())
}

/// Returns the last lines of a program's output.
pub(crate) fn last_lines(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(&output[output.len().saturating_sub(64 << 10)..]).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// A running server, killed on drop.
struct Server {
    child: Child,
    directory: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            signal(&self.child, rustix::process::Signal::QUIT);
            let _ = self.child.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

impl Server {
    fn start(bin: &Path, to: &Path) -> Result<Server, Failure> {
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(|error| Failure::environment(format!("no random bytes: {error}")))?;
        let directory = std::env::temp_dir().join(format!("kingpost-restore-{:08x}", u32::from_ne_bytes(random)));
        let made = fs::DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(|error| Failure::path("make", &directory, &error))?;
        let prepare = || -> std::io::Result<Command> {
            // Nobody but this user can reach the socket.
            fs::write(directory.join("hba"), "local all all trust\n")?;
            let log = fs::File::create(directory.join("log"))?;
            let mut command = Command::new(bin.join("postgres"));
            command.arg("-D").arg(to).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            for (name, value) in [
                ("listen_addresses", String::new()),
                ("unix_socket_directories", directory.display().to_string()),
                ("port", PORT.to_string()),
                ("hba_file", directory.join("hba").display().to_string()),
                ("external_pid_file", String::new()),
                ("logging_collector", "off".into()),
                ("log_destination", "stderr".into()),
                ("hot_standby", "on".into()),
                ("ssl", "off".into()),
                ("archive_mode", "off".into()),
                ("synchronous_standby_names", String::new()),
            ] {
                command.arg("-c").arg(format!("{name}={value}"));
            }
            Ok(command)
        };
        let started = prepare().and_then(|mut command| command.spawn());
        match started {
            Ok(child) => Ok(Server { child, directory }),
            Err(error) => {
                let _ = fs::remove_dir_all(&directory);
                Err(Failure::path("start", &bin.join("postgres"), &error))
            }
        }
    }

    /// Returns the last lines of the server's log.
    fn log(&self) -> String {
        last_lines(&fs::read(self.directory.join("log")).unwrap_or_default())
    }

    /// Waits for the end of recovery.
    async fn recovered(&mut self, args: &RestoreArgs, database: &Config) -> Result<Client, Failure> {
        let begun = Instant::now();
        let mut client: Option<Client> = None;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(Failure::runtime(format!(
                    "the restored server has ended ({status}); its log ends with\n{}",
                    self.log()
                )));
            }
            if client.as_ref().is_none_or(Client::is_closed) {
                client = match database.connect(NoTls).await {
                    Ok((client, connection)) => {
                        tokio::spawn(connection);
                        Some(client)
                    }
                    // It starts.
                    Err(_) => None,
                };
            }
            if let Some(open) = &client
                && let Ok(rows) = open.query("SELECT pg_catalog.pg_is_in_recovery()", &[]).await
                && rows.first().is_some_and(|row| !row.get::<_, bool>(0))
                && let Some(client) = client.take()
            {
                return Ok(client);
            }
            if begun.elapsed() > args.limit {
                return Err(Failure::runtime(format!(
                    "the recovery did not end within {:?}; the server's log ends with\n{}",
                    args.limit,
                    self.log()
                )));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn stop(&mut self) -> Result<(), Failure> {
        signal(&self.child, rustix::process::Signal::INT);
        let begun = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => {
                    return Err(Failure::runtime(format!(
                        "the restored server did not stop cleanly ({status})\n{}",
                        self.log()
                    )));
                }
                _ if begun.elapsed() > SHUTDOWN => {
                    return Err(Failure::runtime(format!("the restored server did not stop within {SHUTDOWN:?}")));
                }
                _ => std::thread::sleep(LOOK),
            }
        }
    }
}

/// Starts a server on the directory, waits for the end of recovery, queries and checks it, and stops it.
pub(crate) async fn verify(bin: &Path, to: &Path, args: &RestoreArgs) -> Result<(), Failure> {
    let mut stop = StopSignals::new()?;
    let mut server = Server::start(bin, to)?;
    let done = tokio::select! {
        done = look(&mut server, bin, args) => done,
        signal = stop.next() => Err(Failure::runtime(format!("{signal}: the verification is given up"))),
    };
    let stopped = if done.is_ok() { server.stop() } else { Ok(()) };
    done?;
    stopped?;
    terminal::line(format_args!("restored and recovered in {}; the server is stopped", to.display()));
    Ok(())
}

async fn look(server: &mut Server, bin: &Path, args: &RestoreArgs) -> Result<(), Failure> {
    let mut config = Config::new();
    config.host_path(&server.directory).port(PORT).user(&args.user).dbname("postgres").connect_timeout(LOOK * 5);
    let client = server.recovered(args, &config).await?;
    let sql = "SELECT pg_catalog.pg_last_wal_replay_lsn()::text, \
               to_char(pg_last_xact_replay_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US+00'), \
               timeline_id::text, (SELECT count(*)::text FROM pg_catalog.pg_database) FROM pg_control_checkpoint()";
    let rows = tokio::time::timeout(QUERY, client.query(sql, &[])).await;
    let rows = rows.map_err(|_| Failure::runtime(format!("the restored server did not answer within {QUERY:?}")))?;
    let rows = rows
        .map_err(|error| Failure::runtime(format!("the restored server refuses a query: {error}\n{}", server.log())))?;
    let Some(row) = rows.first() else { return Err(Failure::runtime("the restored server gave no row")) };
    let text = |column: usize| row.get::<_, Option<String>>(column).unwrap_or_else(|| "none".into());
    terminal::line(format_args!(
        "recovered up to {}; the last commit is of {}; {} databases",
        text(0),
        text(1),
        text(3)
    ));
    amcheck(server, bin, args)
}

/// Runs `pg_amcheck`, where it is installed.
fn amcheck(server: &Server, bin: &Path, args: &RestoreArgs) -> Result<(), Failure> {
    let program = bin.join("pg_amcheck");
    if !program.is_file() {
        terminal::note("pg_amcheck is not installed: the tables are not checked");
        return Ok(());
    }
    let mut command = Command::new(&program);
    command.arg("--all").arg("-h").arg(&server.directory).args(["-p", &PORT.to_string(), "-U", &args.user]);
    let output = command.stdin(Stdio::null()).output().map_err(|error| Failure::path("run", &program, &error))?;
    let said = last_lines(&[output.stdout, output.stderr].concat());
    match output.status.code() {
        Some(0) => {
            terminal::line("pg_amcheck found no damage");
            Ok(())
        }
        Some(2) => Err(Failure::runtime(format!("pg_amcheck found damage:\n{said}"))),
        _ => {
            terminal::note(format_args!("pg_amcheck could not check the tables: {said}"));
            Ok(())
        }
    }
}
