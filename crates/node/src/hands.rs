//! PostgreSQL's programs and signals, as the agent uses them. No decisions.

use std::path::{Path, PathBuf};
use std::time::Duration;

use process::Failure;
use process::postgresql::{ControlData, Installation};
use process::server::{kill_server, log_file, quit_server, run_tool, server, stop_server, tail, tool};
use tokio::process::{Child, Command};
use watermark::Lsn;

use crate::controldata::{self, OnDisk};
use crate::directory::{Directory, read, remove};
use crate::settings_file;
use crate::shared::{self, OwnSettings};

/// Longest time for initdb.
const INITDB: Duration = Duration::from_secs(120);
/// Longest time for one question to the server's program.
const ASK: Duration = Duration::from_secs(10);
/// Prefixes of environment variables that `kingpost restore` gets: the configuration, and the login of an object store.
const RESTORE_ENVIRONMENT: [&str; 5] = ["KINGPOST_", "AWS_", "AZURE_", "GCE_METADATA_", "IDENTITY_"];
/// Longest time for an immediate stop, before SIGKILL.
const QUIT: Duration = Duration::from_secs(10);
/// Interval between two checks of a server that stops.
const PACE: Duration = Duration::from_millis(20);

/// Settings of a new cluster: what standbys, relays and pg_rewind need.
const SETTINGS: &str = "
# Written by `kingpost node --init`; yours to change.
wal_level = replica
hot_standby = on
wal_log_hints = on
max_wal_senders = 20
max_replication_slots = 20
max_slot_wal_keep_size = 4GB
wal_keep_size = 128MB
wal_retrieve_retry_interval = 500ms
";

/// Login of tools and standbys.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: Option<String>,
    pub(crate) sslmode: &'static str,
    pub(crate) ca_file: Option<PathBuf>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Settings of the server's start.
#[derive(Debug, Clone)]
pub(crate) struct StartSettings {
    pub(crate) port: u16,
    pub(crate) listen_addresses: String,
    pub(crate) socket_directory: String,
    pub(crate) cluster_name: String,
}

/// The hands of an agent.
#[derive(Debug)]
pub(crate) struct Hands {
    pub(crate) directory: Directory,
    pub(crate) installation: Installation,
    pub(crate) login: Login,
    pub(crate) start: StartSettings,
    pub(crate) stop_timeout: Duration,
    pub(crate) clone_timeout: Duration,
    child: Option<Child>,
}

impl Hands {
    pub(crate) fn new(
        directory: Directory,
        installation: Installation,
        login: Login,
        start: StartSettings,
        (stop_timeout, clone_timeout): (Duration, Duration),
    ) -> Hands {
        Hands { directory, installation, login, start, stop_timeout, clone_timeout, child: None }
    }

    /// Makes a command as the servers' user, in a process group of its own, without the agent's environment.
    fn command(&self, program: &str) -> Command {
        tool(&self.installation.program(program), &self.directory.path, self.directory.account.as_ref())
    }

    /// Runs a tool to its end.
    async fn run(&self, name: &str, command: Command, limit: Duration) -> Result<(), Failure> {
        let places = (&*self.directory.log(name), &*self.directory.path);
        run_tool(name, command, places, limit, std::future::pending()).await
    }

    /// Returns the connection string for a server or relay.
    pub(crate) fn conninfo(&self, host: &str, port: u16, database: &str) -> String {
        let passfile = self.directory.passfile();
        let passfile = match self.login.password {
            Some(_) => passfile.display().to_string(),
            None => String::new(),
        };
        let ca = self.login.ca_file.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
        settings_file::conninfo(&[
            ("host", host),
            ("port", &port.to_string()),
            ("user", &self.login.user),
            ("dbname", database),
            ("application_name", &self.start.cluster_name),
            ("passfile", &passfile),
            ("sslmode", self.login.sslmode),
            ("sslrootcert", &ca),
        ])
    }

    /// Makes the data of a new cluster.
    pub(crate) async fn initialise(&self) -> Result<(), Failure> {
        let data = self.directory.cloning();
        remove(&data)?;
        let mut command = self.command("initdb");
        command.arg("-D").arg(&data).args(["-U", &self.login.user, "-E", "UTF8", "--locale", "C", "-k"]);
        let password = self.directory.path.join("initial-password");
        if let Some(secret) = &self.login.password {
            self.directory.write(&password, secret, 0o600)?;
            command.args(["--auth-local=peer", "--auth-host=scram-sha-256", "--pwfile"]).arg(&password);
        } else {
            command.arg("--auth=trust");
        }
        let made = self.run("initdb", command, INITDB).await;
        let _ = std::fs::remove_file(&password);
        made?;
        append(&data.join("postgresql.conf"), SETTINGS)?;
        if self.login.password.is_some() {
            append(
                &data.join("pg_hba.conf"),
                "host all all all scram-sha-256\nhost replication all all scram-sha-256\n",
            )?;
        }
        self.directory.rename(&data, &self.directory.data())
    }

    /// Makes the data of a standby from a server.
    pub(crate) async fn clone_from(
        &self,
        host: &str,
        port: u16,
        upstream: (&str, u16),
        slot: &str,
    ) -> Result<(), Failure> {
        let data = self.directory.cloning();
        remove(&data)?;
        let mut command = self.command("pg_basebackup");
        command.args(["-w", "-X", "stream", "-c", "fast", "-d", &self.conninfo(host, port, "")]).arg("-D").arg(&data);
        self.run("pg_basebackup", command, self.clone_timeout).await?;
        self.make_standby(&data, upstream, slot)?;
        self.directory.rename(&data, &self.directory.data())
    }

    /// Makes the data of a standby of `system` from the newest backup and the WAL in the archive of a configuration.
    pub(crate) async fn clone_from_archive(
        &self,
        config: &Path,
        system: u64,
        upstream: (&str, u16),
        slot: &str,
    ) -> Result<(), Failure> {
        let data = self.directory.cloning();
        remove(&data)?;
        let program = std::env::current_exe()
            .map_err(|error| Failure::environment(format!("cannot find this program's path: {error}")))?;
        let config = std::path::absolute(config).map_err(|error| Failure::path("use", config, &error))?;
        let mut command = tool(&program, &self.directory.path, self.directory.account.as_ref());
        let kept = |name: &std::ffi::OsStr| {
            RESTORE_ENVIRONMENT.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
        };
        command.envs(std::env::vars_os().filter(|(name, _)| kept(name)));
        command.args(["restore", "--standby", "--config"]).arg(config).arg("--to").arg(&data);
        // A chain of backups is joined by a program of the server's version.
        command.arg("--pg-bin").arg(&self.installation.bin);
        self.run("restore", command, self.clone_timeout).await?;
        let found = self.inspect_in(&data).await?.map(|disk| disk.system);
        if found != Some(system) {
            return Err(Failure::runtime(format!(
                "the archive has a backup of the cluster {}, and the primary is of {system}",
                found.unwrap_or(0)
            ))
            .advise("point [relay.archive] at the archive of this cluster"));
        }
        self.make_standby(&data, upstream, slot)?;
        self.directory.rename(&data, &self.directory.data())
    }

    /// Makes stopped data those of a standby.
    pub(crate) fn make_standby(&self, data: &Path, upstream: (&str, u16), slot: &str) -> Result<(), Failure> {
        self.follow(data, upstream, slot)?;
        self.directory.write(&data.join("standby.signal"), "", 0o600)
    }

    /// Writes the upstream into the files of a stopped server.
    pub(crate) fn follow(&self, data: &Path, (host, port): (&str, u16), slot: &str) -> Result<(), Failure> {
        self.directory.follow(data, &self.conninfo(host, port, ""), slot)
    }

    /// Takes the data of the stopped server back to the history of a server, and makes them those of a standby. After an error the data are in
    /// `rewinding/`, or unchanged in `data/`.
    pub(crate) async fn rewind(
        &self,
        (host, port): (&str, u16),
        (timeline, fork): (u32, Lsn),
        disk: &OnDisk,
        upstream: (&str, u16),
        slot: &str,
    ) -> Result<(), Failure> {
        let (data, rewinding) = (self.directory.data(), self.directory.rewinding());
        // The lock of a switchover would keep pg_rewind's own server from starting.
        let auto = data.join("postgresql.auto.conf");
        self.directory.write(&auto, &settings_file::cleaned(&read(&auto)?), 0o600)?;
        let mut own = Vec::new();
        for name in ["postgresql.conf", "postgresql.auto.conf", "pg_hba.conf", "pg_ident.conf"] {
            if data.join(name).is_file() {
                own.push((name, read(&data.join(name))?));
            }
        }
        self.clear_pid_file()?;
        self.directory.rename(&data, &rewinding)?;
        let mut command = self.command("pg_rewind");
        command.arg("-D").arg(&rewinding).arg("--source-server").arg(self.conninfo(host, port, "postgres"));
        self.run("pg_rewind", command, self.clone_timeout).await?;
        for (name, text) in own {
            self.directory.write(&rewinding.join(name), &text, 0o600)?;
        }
        // Segments that this server alone wrote: pg_rewind keeps them, because they also have what came before.
        let wal = rewinding.join("pg_wal");
        let entries = std::fs::read_dir(&wal).map_err(|error| Failure::path("list", &wal, &error))?;
        for entry in entries.flatten() {
            let name = entry.file_name();
            if controldata::is_left_segment(&name.to_string_lossy(), timeline, fork, disk.segment) {
                let path = entry.path();
                std::fs::remove_file(&path).map_err(|error| Failure::path("remove", &path, &error))?;
            }
        }
        self.make_standby(&rewinding, upstream, slot)?;
        self.directory.rename(&rewinding, &data)
    }

    /// Reads the data directory; None without complete data.
    pub(crate) async fn inspect(&self) -> Result<Option<OnDisk>, Failure> {
        self.inspect_in(&self.directory.data()).await
    }

    async fn inspect_in(&self, data: &Path) -> Result<Option<OnDisk>, Failure> {
        let Some(control) = self.control_data(data).await? else { return Ok(None) };
        controldata::on_disk(&control).map(Some).ok_or_else(|| {
            Failure::environment(format!("pg_controldata does not understand {}", data.display()))
                .advise("the control file is damaged: `kingpost node --rebuild` copies the primary's data anew")
        })
    }

    async fn control_data(&self, data: &Path) -> Result<Option<ControlData>, Failure> {
        ControlData::read(self.command("pg_controldata"), data).await
    }

    /// Returns the settings that fall short of the primary's, with the primary's values. `own`: the settings of the running server; None: those of
    /// the files.
    pub(crate) async fn short_settings(&self, own: Option<&OwnSettings>) -> Vec<(&'static str, u32)> {
        let Ok(Some(control)) = self.control_data(&self.directory.data()).await else { return Vec::new() };
        match own {
            Some(own) => own.short(&control),
            None => self.configured().await.short(&control),
        }
    }

    /// Reads the shared settings in the files of a stopped server.
    async fn configured(&self) -> OwnSettings {
        let mut values = Vec::new();
        for name in shared::names() {
            let mut command = self.command("postgres");
            command.arg("-D").arg(self.directory.data()).args(["-C", name]).kill_on_drop(true);
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
            let value = match tokio::time::timeout(ASK, command.output()).await {
                Ok(Ok(output)) => String::from_utf8_lossy(&output.stdout).trim().parse().ok(),
                _ => None,
            };
            match value {
                Some(value) => values.push((name.to_owned(), value)),
                None => tracing::debug!(name, "cannot read a setting of the stopped server"),
            }
        }
        OwnSettings::of(values)
    }

    /// Returns the major version of the data, if there are any.
    pub(crate) fn version(&self) -> Option<u32> {
        read(&self.directory.data().join("PG_VERSION")).ok()?.trim().parse().ok()
    }

    /// True if the server's process runs.
    pub(crate) fn runs(&mut self) -> bool {
        let child = self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        child || server(&self.directory.data()).is_some()
    }

    /// Returns the process id of a server that this agent has started.
    pub(crate) fn child(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Removes the pid file of a server that is gone. Its number may be that of another process since, or of one that nobody has waited for, and
    /// PostgreSQL would take that for the server.
    fn clear_pid_file(&self) -> Result<(), Failure> {
        let data = self.directory.data();
        let file = data.join("postmaster.pid");
        if !file.exists() {
            return Ok(());
        }
        if works_in(&data) {
            return Err(Failure::runtime(format!("processes of a killed server still work in {}", data.display()))
                .advise("they end by themselves, and the agent goes on then"));
        }
        std::fs::remove_file(&file).map_err(|error| Failure::path("remove", &file, &error))
    }

    /// Starts the server's process with these settings beside those of its place, and waits for nothing.
    pub(crate) fn spawn(&mut self, raised: &[(&'static str, u32)]) -> Result<(), Failure> {
        self.clear_pid_file()?;
        let mut command = self.command("postgres");
        for (name, value) in [
            ("port", self.start.port.to_string()),
            ("listen_addresses", self.start.listen_addresses.clone()),
            ("unix_socket_directories", self.start.socket_directory.clone()),
            ("cluster_name", self.start.cluster_name.clone()),
            ("recovery_target_timeline", "latest".into()),
        ] {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        for (name, value) in raised {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command.arg("-D").arg(self.directory.data());
        let (output, errors) = log_file(&self.directory.log("server"), false)?;
        let spawned = command.stdout(output).stderr(errors).spawn();
        let child = spawned.map_err(|error| Failure::environment(format!("cannot start the server: {error}")))?;
        self.child = Some(child);
        Ok(())
    }

    /// Stops the server: with a checkpoint unless `now`, at once after the limit.
    pub(crate) async fn stop(&mut self, now: bool) {
        let data = self.directory.data();
        if server(&data).is_none()
            && let Some(child) = self.child.as_mut()
        {
            // A process that has not begun to start: it holds no data.
            let _ = child.kill().await;
        }
        if !now {
            stop_server(&data);
            if self.ended_within(self.stop_timeout).await {
                return;
            }
            tracing::warn!(limit = ?self.stop_timeout, "the server does not stop cleanly; it is stopped at once");
        }
        quit_server(&data);
        if self.ended_within(QUIT).await {
            return;
        }
        kill_server(&data);
        if !self.ended_within(QUIT).await {
            tracing::error!("the server's process does not end");
        }
    }

    async fn ended_within(&mut self, limit: Duration) -> bool {
        let ended = async {
            while self.runs() {
                tokio::time::sleep(PACE).await;
            }
        };
        tokio::time::timeout(limit, ended).await.is_ok()
    }

    /// Returns the end of the server's log.
    pub(crate) fn log_tail(&self) -> String {
        tail(&self.directory.log("server"), 8)
    }
}

/// True if a process has this working directory, as a server and its children have that of the data.
fn works_in(data: &Path) -> bool {
    let Ok(data) = std::fs::canonicalize(data) else { return false };
    let Ok(processes) = std::fs::read_dir("/proc") else { return true };
    processes.flatten().any(|process| std::fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == data))
}

fn append(path: &Path, text: &str) -> Result<(), Failure> {
    use std::io::Write;
    let append =
        || -> std::io::Result<()> { std::fs::OpenOptions::new().append(true).open(path)?.write_all(text.as_bytes()) };
    append().map_err(|error| Failure::path("write", path, &error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn processes_are_known_by_their_working_directory() {
        let dir = tempfile::tempdir().unwrap();
        assert!(works_in(&std::env::current_dir().unwrap()));
        assert!(!works_in(dir.path()));
    }
}
