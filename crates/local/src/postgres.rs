//! One PostgreSQL server: making its data, reading its data directory, starting, asking, stopping.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio_postgres::{NoTls, SimpleQueryMessage, SimpleQueryRow};

use super::children::{self, Launcher, Starting};
use super::plan::OnDisk;
use super::port::Attempts;
use process::Failure;
use process::postgresql::{ControlData, Installation};
use wire::control::UP;

/// Superuser of the local cluster.
pub(super) const SUPERUSER: &str = "postgres";
/// Longest time for initdb.
const INITDB_LIMIT: Duration = Duration::from_secs(120);
/// Longest time for a base backup.
const BACKUP_LIMIT: Duration = Duration::from_secs(3600);
/// Longest time for a clean stop of one server, before the immediate one.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Settings of every server of a local cluster: room for replicas and tools, and bounds on the WAL kept for a lost replica.
const SETTINGS: &str = "
# Written by kingpost when it made this cluster; yours to change. Port and sockets are given at each start.
wal_level = replica
hot_standby = on
hot_standby_feedback = on
wal_log_hints = on
max_wal_senders = 20
max_replication_slots = 20
wal_keep_size = 128MB
max_slot_wal_keep_size = 2GB
max_connections = 200
wal_retrieve_retry_interval = 500ms
";

/// Makes the data of a primary.
pub(super) async fn initdb(installation: &Installation, launcher: &Launcher, data: &Path) -> Result<(), Failure> {
    let command = |locale: &str| {
        let mut command = launcher.command(&installation.program("initdb"));
        command.arg("-D").arg(data).args(["-U", SUPERUSER, "-E", "UTF8", "--auth=trust", "--locale", locale]);
        command
    };
    if let Err(failure) = launcher.run("initdb", command("C.UTF-8"), INITDB_LIMIT).await {
        // Some systems lack this locale; all have C.
        if !failure.to_string().contains("locale") {
            return Err(failure);
        }
        remove_dir(data)?;
        launcher.run("initdb", command("C"), INITDB_LIMIT).await?;
    }
    let path = data.join("postgresql.conf");
    let append = || -> std::io::Result<()> {
        use std::io::Write;
        std::fs::OpenOptions::new().append(true).open(&path)?.write_all(SETTINGS.as_bytes())
    };
    append().map_err(|error| Failure::path("write", &path, &error))
}

/// Makes the data of a replica from a running primary. `kept`: the primary has the slot.
pub(super) async fn basebackup(
    installation: &Installation,
    launcher: &Launcher,
    data: &Path,
    primary_port: u16,
    slot: &str,
    kept: bool,
) -> Result<(), Failure> {
    remove_dir(data)?;
    let mut command = launcher.command(&installation.program("pg_basebackup"));
    command
        .args(["-h", "127.0.0.1", "-p", &primary_port.to_string(), "-U", SUPERUSER, "-w"])
        .args(["-R", "-X", "stream", "-c", "fast"]);
    if kept {
        command.args(["-S", slot]);
    }
    command.arg("-D").arg(data);
    launcher.run(&format!("basebackup-{slot}"), command, BACKUP_LIMIT).await
}

/// Removes a directory, if it exists.
pub(super) fn remove_dir(path: &Path) -> Result<(), Failure> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Failure::path("remove", path, &error)),
        _ => Ok(()),
    }
}

/// Reads the data directory of a stopped server; `None` without complete data.
pub(super) async fn inspect(
    installation: &Installation,
    launcher: &Launcher,
    data: &Path,
) -> Result<Option<OnDisk>, Failure> {
    let command = launcher.command(&installation.program("pg_controldata"));
    Ok(ControlData::read(command, data).await?.as_ref().and_then(on_disk))
}

/// Returns the state of a data directory; `None` if pg_controldata is not understood.
fn on_disk(control: &ControlData) -> Option<OnDisk> {
    let lsn = |name| parse_lsn(control.field(name)?);
    Some(OnDisk {
        system: control.system()?,
        standby: control.is_standby(),
        timeline: control.timeline()?,
        lsn: lsn("Latest checkpoint location")?.max(lsn("Minimum recovery ending location")?),
    })
}

/// Parses an LSN such as `16/B374D848`.
pub(super) fn parse_lsn(text: &str) -> Option<u64> {
    let (high, low) = text.split_once('/')?;
    Some(u64::from_str_radix(high, 16).ok()? << 32 | u64::from(u32::from_str_radix(low, 16).ok()?))
}

/// A server of the cluster, running or not.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) data: PathBuf,
    pub(super) port: u16,
    log: PathBuf,
    child: Option<Child>,
}

impl Server {
    pub(super) fn new(name: &str, data: PathBuf, port: u16, logs: &Path) -> Server {
        Server { name: name.into(), data, port, log: logs.join(format!("{name}.log")), child: None }
    }

    /// Returns the name of the slot that keeps WAL for this node.
    pub(super) fn slot(&self) -> String {
        format!("kingpost_{}", self.name)
    }

    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Starts the server and waits until it answers. `follow`: port of the primary or relay to follow. A port that was taken meanwhile is replaced.
    ///
    /// # Errors
    /// The server does not come up; the failure has the end of its log.
    pub(super) async fn start(
        &mut self,
        installation: &Installation,
        launcher: &Launcher,
        sockets: &Path,
        follow: Option<u16>,
    ) -> Result<(), Failure> {
        launcher.stop.covers(self.data.clone());
        let mut attempts = Attempts::default();
        loop {
            attempts.choose(&mut self.port)?;
            match self.try_start(installation, launcher, sockets, follow).await {
                Err(failure) if attempts.may_try_another(&failure) => self.port = 0,
                result => return result,
            }
        }
    }

    async fn try_start(
        &mut self,
        installation: &Installation,
        launcher: &Launcher,
        sockets: &Path,
        follow: Option<u16>,
    ) -> Result<(), Failure> {
        let mut command: Command = launcher.command(&installation.program("postgres"));
        let mut set = |name: &str, value: &str| {
            command.arg("-c").arg(format!("{name}={value}"));
        };
        set("port", &self.port.to_string());
        set("listen_addresses", "127.0.0.1");
        set("unix_socket_directories", &sockets.display().to_string());
        set("cluster_name", &self.name);
        if let Some(port) = follow {
            let name = &self.name;
            let conninfo = format!("host=127.0.0.1 port={port} user={SUPERUSER} application_name={name}");
            // In the files, where the node's agent changes it by reload.
            node::follow(self.data.parent().unwrap_or(&self.data), &conninfo, &self.slot())?;
            set("recovery_target_timeline", "latest");
        }
        command.arg("-D").arg(&self.data);
        let server = Starting { name: &self.name, address: self.address(), log: &self.log, data: &self.data };
        let port = self.port;
        let answers = async || query(port, "SELECT 1").await.is_ok();
        server.start(command, &mut self.child, &launcher.stop, answers).await
    }

    /// True if the server's process has ended, or was never started.
    pub(super) fn is_down(&mut self) -> bool {
        children::has_ended(&mut self.child)
    }

    /// Leaves the running server to its agent. The runtime waits for its process from then on: PostgreSQL takes the number of an ended process that
    /// nobody has waited for, in a lock file of the socket, for a running server.
    pub(super) fn leave(&mut self) {
        drop(self.child.take());
    }

    /// Promotes a replica.
    pub(super) async fn promote(&self) -> Result<(), Failure> {
        let promoted = query(self.port, "SELECT pg_promote(true, 60)").await;
        match promoted.as_ref().map(|rows| rows.first().and_then(|row| row.get(0))) {
            Ok(Some("t")) => Ok(()),
            other => Err(Failure::runtime(format!("cannot promote {}: {other:?}", self.name))),
        }
    }

    /// Stops the server and waits for the end of its process.
    pub(super) async fn stop(&mut self, installation: &Installation, launcher: &Launcher) {
        stop_data(installation, launcher, &self.data).await;
        if let Some(mut child) = self.child.take()
            && tokio::time::timeout(STOP_LIMIT, child.wait()).await.is_err()
        {
            tracing::error!(node = self.name, "the server's process does not end");
        }
    }
}

/// Stops the server of a data directory if one runs there, of this or an earlier run: with "fast", then "immediate", then SIGKILL.
pub(super) async fn stop_data(installation: &Installation, launcher: &Launcher, data: &Path) {
    for mode in ["fast", "immediate"] {
        // pg_ctl trusts postmaster.pid; a pid that another process has got must not reach it.
        if children::server(data).is_none() {
            return;
        }
        let mut command = launcher.command(&installation.program("pg_ctl"));
        command.arg("stop").arg("-D").arg(data).args(["-s", "-m", mode, "-t", &STOP_LIMIT.as_secs().to_string()]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let ended = tokio::time::timeout(STOP_LIMIT + Duration::from_secs(5), command.status()).await;
        match ended {
            Ok(Ok(status)) if status.success() => return,
            other => tracing::warn!(data = %data.display(), mode, ?other, "pg_ctl stop did not work"),
        }
    }
    children::kill_server(data);
}

/// Runs a statement on a server of the cluster as superuser, on a connection of its own, with a time limit.
///
/// # Errors
/// No connection, an error of the server, or no answer in time.
pub(super) async fn query(port: u16, sql: &str) -> Result<Vec<SimpleQueryRow>, String> {
    query_at("127.0.0.1", port, sql, Duration::from_secs(70)).await
}

/// As [`query`], with a given limit.
pub(super) async fn query_at(host: &str, port: u16, sql: &str, limit: Duration) -> Result<Vec<SimpleQueryRow>, String> {
    let ask = async {
        let mut config = tokio_postgres::Config::new();
        config.host(host).port(port).user(SUPERUSER).dbname("postgres").application_name(UP);
        config.connect_timeout(Duration::from_secs(2));
        let (client, connection) = config.connect(NoTls).await.map_err(|error| describe(&error))?;
        let connection = tokio::spawn(connection);
        let answer = client.simple_query(sql).await.map_err(|error| describe(&error));
        drop(client);
        let _ = tokio::time::timeout(Duration::from_secs(1), connection).await;
        let rows = answer?.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        Ok(rows.collect())
    };
    tokio::time::timeout(limit, ask)
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {} s", limit.as_secs_f32())))
}

/// Describes an error of the client library, with the server's message.
pub(super) fn describe(error: &tokio_postgres::Error) -> String {
    use std::error::Error;
    match (error.as_db_error(), error.source()) {
        (Some(database), _) => format!("{} ({})", database.message(), database.code().code()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use process::postgresql::history_timeline;

    use super::*;

    const CONTROL: &str = "\
pg_control version number:            1300
Database system identifier:           7300000000000000001
Database cluster state:               shut down in recovery
Latest checkpoint location:           0/3000028
Latest checkpoint's TimeLineID:       1
Minimum recovery ending location:     0/4000100
Min recovery ending loc's timeline:   2
";

    #[test]
    fn controldata() {
        let read = |text: &str, standby, histories| on_disk(&ControlData::new(text.into(), standby, histories));
        let expected =
            |standby, timeline| Some(OnDisk { system: 7300000000000000001, standby, timeline, lsn: 0x0400_0100 });
        assert_eq!(read(CONTROL, true, 5), expected(true, 2));
        assert_eq!(read(CONTROL, false, 5), expected(false, 5));
        assert_eq!(read(CONTROL, false, 0), expected(false, 2));
        assert_eq!(read("", true, 0), None);
    }

    #[test]
    fn names_and_numbers() {
        assert_eq!(history_timeline("0000000A.history"), Some(10));
        assert_eq!(history_timeline("000000010000000000000001"), None);
        assert_eq!(parse_lsn("16/B374D848"), Some(0x16_B374_D848));
        assert_eq!(parse_lsn("16"), None);
    }
}
