//! One server of MariaDB or MySQL: finding the programs, making the data, starting, asking, stopping.

use std::fs;
use std::os::unix::fs::{OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use ::binlog::Dialect;
use ::binlog::protocol::reply::Row;
use ::relay::{BinlogAccess, BinlogSession};
use tokio::process::{Child, Command};

use super::super::children::{self, Launcher, Starting};
use super::super::port::Attempts;
use super::family::Family;
use process::Failure;

/// kingpost's user on the servers and on the relay; replicas log in as it, too.
pub(super) const USER: &str = "kingpost";
/// Longest time to make a server's data.
const INSTALL_LIMIT: Duration = Duration::from_secs(120);
/// Longest time for an answer of a starting server.
const ASK_LIMIT: Duration = Duration::from_secs(1);
/// Interval between two checks of a stopping server.
const PACE: Duration = Duration::from_millis(50);
/// Longest time for a clean stop of one server, before its process is killed.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Programs of MariaDB or MySQL.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    server: PathBuf,
    /// `mariadb-install-db`; None for MySQL, whose server makes its data itself.
    install: Option<PathBuf>,
    /// Directory with `lib` and `share` of programs that lie outside of the system's directories.
    base: Option<PathBuf>,
    /// Version; 1011 for 10.11.
    pub(super) version: u32,
}

impl Programs {
    /// Searches `bin`, or else the directories of packages and PATH.
    ///
    /// # Errors
    /// The programs are missing or too old.
    pub(super) fn find(family: &Family, bin: Option<&Path>) -> Result<Programs, Failure> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places: Vec<PathBuf> = match bin {
            Some(bin) => vec![bin.into()],
            None => ["/usr/sbin", "/usr/libexec", "/usr/bin"]
                .iter()
                .map(PathBuf::from)
                .chain(std::env::split_paths(&path))
                .collect(),
        };
        let find = |name: &str| places.iter().map(|place| place.join(name)).find(|program| program.is_file());
        let name = family.engine.name();
        let absent = |programs: &str| {
            let place = bin.map_or_else(|| "/usr/sbin, /usr/bin or PATH".to_owned(), |bin| bin.display().to_string());
            Failure::environment(format!("no {name} found: {programs} not in {place}")).advise(advice(family))
        };
        let (server, install, base) = match family.dialect {
            Dialect::MariaDb => match (find("mariadbd"), find("mariadb-install-db")) {
                (Some(server), Some(install)) => (server, Some(install), None),
                _ => return Err(absent("mariadbd and mariadb-install-db are")),
            },
            Dialect::MySql => {
                let server = find("mysqld").ok_or_else(|| absent("mysqld is"))?;
                let base = bin.and_then(|bin| std::path::absolute(bin).ok()?.parent().map(Path::to_owned));
                (server, None, base)
            }
        };
        let output =
            std::process::Command::new(&server).args(["--no-defaults", "--version"]).stdin(Stdio::null()).output();
        let output =
            output.map_err(|error| Failure::environment(format!("cannot start {}: {error}", server.display())))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match parse_version(family.dialect, &text) {
            Some(version) if version >= family.oldest => Ok(Programs { server, install, base, version }),
            _ => {
                let (major, minor) = (family.oldest / 100, family.oldest % 100);
                let what = format!("{} is no {name} {major}.{minor} or later: {}", server.display(), text.trim());
                Err(Failure::environment(what).advise(advice(family)))
            }
        }
    }

    /// Returns the program that makes data, for messages.
    pub(super) fn maker(&self) -> &'static str {
        if self.install.is_some() { "mariadb-install-db" } else { "mysqld --initialize-insecure" }
    }

    /// Adds the places of a server's parts, where it lies outside of the system's directories.
    fn place(&self, command: &mut Command) {
        let Some(base) = &self.base else { return };
        command.arg(format!("--basedir={}", base.display()));
        for (option, part) in [("plugin-dir", "lib/mysql/plugin"), ("lc-messages-dir", "share/mysql")] {
            if base.join(part).is_dir() {
                command.arg(format!("--{option}={}", base.join(part).display()));
            }
        }
    }
}

fn advice(family: &Family) -> &'static str {
    match family.dialect {
        Dialect::MariaDb => {
            "install MariaDB 10.3 or later (Debian, Ubuntu: apt-get install mariadb-server; Fedora: dnf install mariadb-server)"
        }
        Dialect::MySql => {
            "install MySQL 8.4 or later, or name the directory of its mysqld with --mysql-bin; in Kingpost's source tree `tests/newest/setup mysql` \
             unpacks one beside the system's packages, on Debian, and prints that directory"
        }
    }
}

/// Reads 1011 from `mariadbd  Ver 10.11.6-MariaDB-0+deb12u1 for debian-linux-gnu …`, and 907 from `mysqld  Ver 9.7.4 for Linux …`.
fn parse_version(dialect: Dialect, text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("Ver ")?;
    let version = match (dialect, rest.split_once("-MariaDB")) {
        (Dialect::MariaDb, Some((version, _))) => version,
        (Dialect::MySql, None) => rest,
        _ => return None,
    };
    let mut parts = version.split(['.', '-', ' ']);
    let major: u32 = parts.next()?.trim().parse().ok()?;
    let minor: u32 = parts.next()?.parse().ok()?;
    major.checked_mul(100)?.checked_add(minor)
}

/// Role that a server is started in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// A primary: its commits wait for the relay.
    Primary,
    /// A replica: read-only but for replication.
    Replica,
}

/// A server of the cluster, running or not.
#[derive(Debug)]
pub(super) struct Server {
    family: &'static Family,
    pub(super) name: String,
    /// `server_id`; 0 before the data are made.
    pub(super) id: u32,
    pub(super) data: PathBuf,
    pub(super) port: u16,
    log: PathBuf,
    child: Option<Child>,
}

impl Server {
    pub(super) fn new(family: &'static Family, name: &str, id: u32, data: PathBuf, port: u16, logs: &Path) -> Server {
        Server { family, name: name.into(), id, data, port, log: logs.join(format!("{name}.log")), child: None }
    }

    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// True if a server's data were made completely: the settings are written last.
    pub(super) fn has_data(&self) -> bool {
        settings(&self.data).is_file()
    }

    /// Makes the data anew.
    ///
    /// # Errors
    /// The data cannot be made.
    pub(super) async fn make(&self, programs: &Programs, launcher: &Launcher) -> Result<(), Failure> {
        super::super::postgres::remove_dir(&self.data)?;
        let mut command = launcher.command(programs.install.as_ref().unwrap_or(&programs.server));
        match self.family.dialect {
            Dialect::MariaDb => {
                command.args(["--no-defaults", "--skip-test-db", "--innodb-log-file-size=32M"]);
                // root gets in by the socket only, and only as the servers' own account; everybody else needs the password.
                command.arg("--auth-root-authentication-method=socket");
            }
            Dialect::MySql => {
                command.args(["--no-defaults", "--initialize-insecure", "--innodb-redo-log-capacity=32M"]);
                programs.place(&mut command);
            }
        }
        command.arg(format!("--datadir={}", self.data.display()));
        launcher.run(&format!("install-db-{}", self.name), command, INSTALL_LIMIT).await?;
        self.write(launcher, &settings(&self.data), self.family.settings)
    }

    /// Writes a file that belongs to the servers' account and that only it can read.
    fn write(&self, launcher: &Launcher, path: &Path, text: &str) -> Result<(), Failure> {
        use std::io::Write;
        let write = || -> std::io::Result<()> {
            let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
            if let Some(account) = &launcher.account {
                chown(path, Some(account.uid), Some(account.gid))?;
            }
            file.write_all(text.as_bytes())
        };
        write().map_err(|error| Failure::path("write", path, &error))
    }

    /// Starts the server and waits until it answers. A port that was taken meanwhile is replaced.
    ///
    /// # Errors
    /// The server does not come up; the failure has the end of its log.
    pub(super) async fn start(
        &mut self,
        programs: &Programs,
        launcher: &Launcher,
        sockets: &Path,
        part: Part,
        secret: &str,
    ) -> Result<(), Failure> {
        launcher.stop.covers(self.data.clone());
        let mut attempts = Attempts::default();
        loop {
            attempts.choose(&mut self.port)?;
            match self.try_start(programs, launcher, sockets, part, secret).await {
                Err(failure) if attempts.may_try_another(&failure) => self.port = 0,
                result => return result,
            }
        }
    }

    async fn try_start(
        &mut self,
        programs: &Programs,
        launcher: &Launcher,
        sockets: &Path,
        part: Part,
        secret: &str,
    ) -> Result<(), Failure> {
        // The server runs this file before it accepts connections. Each server does so itself, without its binary log.
        let init = self.data.join("kingpost-init.sql");
        self.write(launcher, &init, &self.family.make_user(USER, secret))?;
        let mut command = launcher.command(&programs.server);
        command.arg(format!("--defaults-file={}", settings(&self.data).display()));
        for (name, value) in [
            ("datadir", self.data.display().to_string()),
            ("socket", sockets.join(format!("{}.sock", self.name)).display().to_string()),
            ("pid-file", self.data.join(self.family.pid_file).display().to_string()),
            ("init-file", init.display().to_string()),
            ("server-id", self.id.to_string()),
            ("port", self.port.to_string()),
            ("bind-address", "127.0.0.1".into()),
        ] {
            command.arg(format!("--{name}={value}"));
        }
        let options = if part == Part::Primary { self.family.primary } else { self.family.replica };
        command.args(options.iter().map(|(name, value)| format!("--{name}={value}")));
        programs.place(&mut command);
        let waits = if self.family.dialect == Dialect::MariaDb { "--skip-slave-start" } else { "--skip-replica-start" };
        command.args(["--skip-name-resolve", waits]);
        let address = self.address();
        let server = Starting { name: &self.name, address: address.clone(), log: &self.log, data: &self.data };
        let answers = async || ask(&address, secret, ASK_LIMIT, "SELECT 1").await.is_ok();
        server.start(command, &mut self.child, &launcher.stop, answers).await
    }

    /// Makes the server replicate from `port` by GTID, from its current position.
    ///
    /// # Errors
    /// The server's error, as text.
    pub(super) async fn follow(&self, port: u16, secret: &str) -> Result<(), String> {
        for statement in
            [self.family.stop.to_owned(), self.family.replicate_from(port, USER, secret), self.family.start.to_owned()]
        {
            // An error names the statement by its first word only: the password is in the statement.
            let word = statement.split(' ').next().unwrap_or_default().to_owned();
            let done = ask(&self.address(), secret, STOP_LIMIT, &statement).await;
            done.map_err(|error| format!("{word}: {}", error.replace(secret, "***")))?;
        }
        Ok(())
    }

    /// Stops the server and waits for the end of its process.
    pub(super) async fn stop(&mut self) {
        stop_data(&self.data, self.child.take()).await;
    }
}

fn settings(data: &Path) -> PathBuf {
    data.join("kingpost.cnf")
}

/// Stops the server of a data directory if one runs there: cleanly, then by force. `child`: the process, if this process started it.
pub(crate) async fn stop_data(data: &Path, child: Option<Child>) {
    children::end_server(data);
    let ended = async {
        match child {
            Some(mut child) => drop(child.wait().await),
            None => {
                while children::server(data).is_some() {
                    tokio::time::sleep(PACE).await;
                }
            }
        }
    };
    if tokio::time::timeout(STOP_LIMIT, ended).await.is_err() {
        tracing::warn!(data = %data.display(), "the server does not end by itself and is killed");
        children::kill_server(data);
    }
}

/// Runs a statement on a server as [`USER`], on a connection of its own, with a time limit.
///
/// # Errors
/// No connection, an error of the server, or no answer in time, as text.
pub(super) async fn ask(address: &str, secret: &str, limit: Duration, statement: &str) -> Result<Vec<Row>, String> {
    let statement = statement.to_owned();
    session(address, secret, limit, move |session| session.query(&statement)).await
}

/// Runs `run` on a connection of its own, with a time limit.
///
/// # Errors
/// As for [`ask`].
pub(super) async fn session<T: Send + 'static>(
    address: &str,
    secret: &str,
    limit: Duration,
    run: impl FnOnce(&mut BinlogSession) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let (address, secret) = (address.to_owned(), secret.to_owned());
    let asked = tokio::task::spawn_blocking(move || {
        let access = BinlogAccess { address: &address, user: USER, password: &secret, connector: None };
        let mut session = BinlogSession::open(&access)?;
        session.patience(limit)?;
        run(&mut session)
    });
    match tokio::time::timeout(limit, asked).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", limit.as_secs_f32())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let mysql = "mysqld  Ver 9.7.4-1 for debian-linux-gnu on x86_64 ((Debian))";
        let mariadb = "mariadbd  Ver 10.11.6-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)";
        for (dialect, text, expected) in [
            (Dialect::MariaDb, mariadb, Some(1011)),
            (Dialect::MariaDb, "mariadbd  Ver 11.4.2-MariaDB for Linux on x86_64 (Source distribution)", Some(1104)),
            (Dialect::MariaDb, mysql, None),
            (Dialect::MariaDb, "", None),
            (Dialect::MySql, mysql, Some(907)),
            (Dialect::MySql, "mysqld  Ver 8.0.36 for Linux on x86_64 (MySQL Community Server)", Some(800)),
            (Dialect::MySql, mariadb, None),
        ] {
            assert_eq!(parse_version(dialect, text), expected, "{text}");
        }
    }
}
