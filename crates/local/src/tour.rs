//! The tour of `kingpost up --tour`: a backup while a client writes, a dropped table, and a restore of the moment before; then the loss of the
//! primary's host: `kingpost watch` replaces the primary, its agent brings it back as a standby, and `kingpost switchover` makes it the primary again.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{ChildStdout, Command};

use super::args::Tour as Part;
use super::children::{kill_server, log_file, run_tool};
use super::cluster::{Cluster, own_directory};
use super::postgres::{self, Server};
use super::relay::LocalRelay;
use process::Failure;

/// Longest time of the whole tour.
const LIMIT: Duration = Duration::from_secs(180);
/// Longest time of one command.
const COMMAND: Duration = Duration::from_secs(120);
/// Longest time until the archive has the WAL, and until the end of a recovery.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest time of one write while the primary is lost.
const WRITE: Duration = Duration::from_secs(5);
/// Interval between two looks.
const PACE: Duration = Duration::from_millis(50);
/// Name of the restored server, and of its directory among the nodes.
const RESTORED: &str = "restored";

/// Makes the directory of the archive. The relay may run as root: its files belong to the group of the servers' user, which reads them.
pub(super) fn archive(cluster: &Cluster) -> Result<PathBuf, Failure> {
    let path = cluster.state.data.join("archive");
    own_directory(&path, cluster.launcher.account.as_ref(), 0o2750)?;
    Ok(path)
}

/// Runs a part of the tour. `proxy`: host and port of the cluster's proxy. `places`: the file with its configuration, and the address of its registry.
pub(super) async fn run(
    part: Part,
    cluster: &Cluster,
    proxy: (&str, u16),
    places: (&Path, &str),
    step: &dyn Fn(&str),
) -> Result<(), Failure> {
    let Some(relay) = cluster.relay.clone() else {
        return Err(Failure::config("the tour needs the relay: leave out --no-relay"));
    };
    let tour = Tour { cluster, relay, proxy, places };
    match tokio::time::timeout(LIMIT, tour.walk(part, step)).await {
        Ok(walked) => walked,
        Err(_) => Err(Failure::runtime(format!("the tour took longer than {} s", LIMIT.as_secs()))),
    }
}

struct Tour<'a> {
    cluster: &'a Cluster,
    relay: LocalRelay,
    proxy: (&'a str, u16),
    /// The file with the cluster's configuration, and the address of its registry.
    places: (&'a Path, &'a str),
}

impl Tour<'_> {
    async fn walk(&self, part: Part, step: &dyn Fn(&str)) -> Result<(), Failure> {
        self.ask("DROP SCHEMA IF EXISTS kingpost_tour CASCADE").await?;
        self.ask("CREATE SCHEMA kingpost_tour").await?;
        if part == Part::All {
            self.go_back(step).await?;
        }
        match &self.cluster.servers[..] {
            [primary, _, ..] => self.lose(primary, step).await?,
            _ => step("tour: no replica could take over, so the primary is not killed"),
        }
        self.ask("DROP SCHEMA kingpost_tour CASCADE").await.map(drop)
    }

    /// Takes a backup while a client writes, drops a table, and restores the moment before on a server of its own.
    async fn go_back(&self, step: &dyn Fn(&str)) -> Result<(), Failure> {
        let commands =
            Commands { cluster: self.cluster, program: program(self.cluster)?, config: write_config(self.cluster)? };
        self.ask("CREATE TABLE kingpost_tour.orders AS SELECT generate_series(1, 1000) AS id").await?;
        step("tour: kingpost backup, while a client writes");
        let load = Load::start(self.proxy);
        let taken = commands.run("backup", &["--label", "tour"]).await;
        let written = load.end().await;
        taken?;
        let before = self
            .ask("/* kingpost.route=primary */ SELECT count(*), clock_timestamp() FROM kingpost_tour.orders")
            .await?;
        let [rows, moment] = &before[..] else { return Err(Failure::runtime("the tour read no row back")) };
        step(&format!(
            "tour: {written} rows were written meanwhile; at {moment} the table has {rows}. DROP TABLE orders"
        ));
        self.ask("DROP TABLE kingpost_tour.orders").await?;
        let dropped = self.ask("SELECT pg_current_wal_insert_lsn()").await?;
        self.archived(dropped.first().map_or("", String::as_str)).await?;

        step(&format!("tour: kingpost restore --at '{moment}'"));
        let data = self.cluster.state.node_dir(RESTORED);
        postgres::remove_dir(&data)?;
        let begun = Instant::now();
        let to = data.display().to_string();
        commands.run("restore", &["--at", moment, "--to", &to]).await?;
        let mut server = Server::new(RESTORED, data.clone(), 0, &self.cluster.launcher.logs);
        let read = self.read(&mut server).await;
        server.stop(&self.cluster.installation, &self.cluster.launcher).await;
        postgres::remove_dir(&data)?;
        let found = read?;
        if found != *rows {
            return Err(Failure::runtime(format!("the restored server has {found} rows of {rows}")));
        }
        step(&format!(
            "tour: the restored server has the table, with {found} rows, after {:.1} s; it is stopped, and its data are removed",
            begun.elapsed().as_secs_f32()
        ));
        Ok(())
    }

    /// Kills the primary while its agent is paused, as if its host were lost; waits until it is a standby of the server that takes its place, and makes
    /// it the primary again.
    async fn lose(&self, primary: &Server, step: &dyn Fn(&str)) -> Result<(), Failure> {
        let name = &primary.name;
        self.ask("CREATE TABLE kingpost_tour.kept (port int)").await?;
        let written = self.ask("SELECT pg_current_wal_insert_lsn()").await?;
        self.kept(written.first().map_or("", String::as_str)).await?;
        let mut watch = self.watch()?;
        let output = watch.stdout.take().ok_or_else(|| Failure::runtime("kingpost watch has no output"))?;
        let mut lines = BufReader::new(output).lines();
        within("kingpost watch to see the primary", says(&mut lines, &format!("{name} is the primary"))).await?;
        // Read to its end: a program whose output nobody reads stands still.
        let reading = tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        step(&format!("tour: kingpost watch looks on; {name} is lost: its agent is paused, its server killed"));
        let agent = Paused::begin(self.cluster.state.node_dir(name))?;
        kill_server(&primary.data);
        let begun = Instant::now();
        let port = within("a write on another server", self.written(primary.port)).await?;
        let server = self.cluster.servers.iter().find(|server| server.port == port);
        let server = server.map_or("another server", |server| server.name.as_str());
        let seconds = begun.elapsed().as_secs_f32();
        step(&format!("tour: {server} takes writes, {seconds:.1} s after the kill; the agent of {name} acts again"));
        drop(agent);
        let begun = Instant::now();
        within("the former primary to follow", self.follows(primary.port)).await?;
        let seconds = begun.elapsed().as_secs_f32();
        step(&format!("tour: {name} is a standby of {server}, {seconds:.1} s later, with what was written meanwhile"));
        self.switch_over(name).await?;
        within("the present standby to follow", self.follows(port)).await?;
        step(&format!("tour: kingpost switchover --to {name}: it is the primary again, and {server} a standby"));
        drop(watch);
        reading.abort();
        Ok(())
    }

    /// Makes a server the primary by `kingpost switchover`.
    async fn switch_over(&self, name: &str) -> Result<(), Failure> {
        let log = self.cluster.launcher.logs.join("tour-switchover.log");
        let mut switch = own_program()?;
        switch.arg("switchover").arg("--config").arg(self.places.0).args(["--to", name]).stdin(Stdio::null());
        let stopped = self.cluster.launcher.stop.failure();
        run_tool("kingpost switchover", switch, (&log, &self.cluster.state.data), COMMAND, stopped).await
    }

    /// Starts `kingpost watch`, which replaces a lost primary under a lock in the registry.
    fn watch(&self) -> Result<tokio::process::Child, Failure> {
        let (file, registry) = self.places;
        let (_, errors) = log_file(&self.cluster.launcher.logs.join("tour-watch.log"), true)?;
        let mut watch = own_program()?;
        watch.arg("watch").arg("--config").arg(file).args(["--registry", &format!("http://{registry}")]);
        watch.args(["--with-process", &std::process::id().to_string()]);
        watch.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).kill_on_drop(true);
        watch.spawn().map_err(|error| Failure::runtime(format!("cannot start kingpost watch: {error}")))
    }

    /// Writes through the proxy until a server other than that at a port has written; returns the port of that one.
    async fn written(&self, but: u16) -> u16 {
        let write = "INSERT INTO kingpost_tour.kept SELECT inet_server_port() RETURNING port";
        loop {
            let rows = postgres::query_at(self.proxy.0, self.proxy.1, write, WRITE).await.unwrap_or_default();
            let port = rows.first().and_then(|row| row.get(0)).and_then(|port| port.parse().ok());
            if let Some(port) = port.filter(|port| *port != but) {
                return port;
            }
            tokio::time::sleep(PACE).await;
        }
    }

    /// Waits until the server at a port streams, and has a row that was written meanwhile.
    async fn follows(&self, port: u16) {
        let streams = "SELECT 1 FROM pg_stat_wal_receiver AS receiver, kingpost_tour.kept \
                       WHERE receiver.status = 'streaming'";
        while !postgres::query(port, streams).await.is_ok_and(|rows| !rows.is_empty()) {
            tokio::time::sleep(PACE).await;
        }
    }

    /// Runs a statement through the proxy, and returns the first row.
    async fn ask(&self, sql: &str) -> Result<Vec<String>, Failure> {
        let rows = postgres::query_at(self.proxy.0, self.proxy.1, sql, COMMAND).await;
        let rows = rows.map_err(|error| Failure::runtime(format!("the tour failed: {sql}: {error}")))?;
        let text = |row: &tokio_postgres::SimpleQueryRow| {
            (0..row.len()).map(|column| row.get(column).unwrap_or_default().to_owned()).collect()
        };
        Ok(rows.first().map(text).unwrap_or_default())
    }

    /// Waits until the relay has the WAL up to a position.
    async fn kept(&self, position: &str) -> Result<(), Failure> {
        let at = lsn(position)?;
        let flushed = async {
            while self.relay.relay().status().log.is_none_or(|log| log.flushed.0 < at) {
                tokio::time::sleep(PACE).await;
            }
        };
        within("the relay to have what was written", flushed).await
    }

    /// Waits until the archive has the WAL up to a position.
    async fn archived(&self, position: &str) -> Result<(), Failure> {
        let at = lsn(position)?;
        let waiting = Instant::now();
        loop {
            let status = self.relay.relay().status();
            let flushed = status.log.as_ref().map_or(0, |log| log.flushed.0);
            let archived = status.archive.as_ref().map_or(0, |archive| flushed.saturating_sub(archive.behind_bytes));
            if archived >= at {
                return Ok(());
            }
            if waiting.elapsed() > PATIENCE {
                let state = status.archive.map_or_else(|| "there is no archive".into(), |archive| archive.state);
                return Err(Failure::runtime(format!("the archive does not have the WAL up to {position}: {state}")));
            }
            tokio::time::sleep(PACE).await;
        }
    }

    /// Starts the restored server, waits for the end of recovery, and counts the rows.
    async fn read(&self, server: &mut Server) -> Result<String, Failure> {
        let Cluster { installation, launcher, state, .. } = self.cluster;
        server.start(installation, launcher, &state.sockets, None).await?;
        let failed = |error: String| Failure::runtime(format!("the restored server fails: {error}"));
        let waiting = Instant::now();
        loop {
            let recovers = postgres::query(server.port, "SELECT pg_is_in_recovery()").await;
            match recovers.map(|rows| rows.first().and_then(|row| row.get(0)) == Some("f")) {
                Ok(true) => break,
                Ok(false) if waiting.elapsed() <= PATIENCE => {}
                Ok(false) => return Err(failed(format!("it recovers for longer than {} s", PATIENCE.as_secs()))),
                Err(error) => return Err(failed(error)),
            }
            tokio::time::sleep(PACE).await;
        }
        let rows = postgres::query(server.port, "SELECT count(*) FROM kingpost_tour.orders").await.map_err(failed)?;
        Ok(rows.first().and_then(|row| row.get(0)).unwrap_or_default().to_owned())
    }
}

/// `kingpost backup` and `restore`, as the servers' user.
struct Commands<'a> {
    cluster: &'a Cluster,
    /// Path of this program, where the servers' user can run it.
    program: PathBuf,
    config: PathBuf,
}

impl Commands<'_> {
    async fn run(&self, command: &str, args: &[&str]) -> Result<(), Failure> {
        let mut run = self.cluster.launcher.command(&self.program);
        run.arg(command).arg("--config").arg(&self.config).args(args);
        self.cluster.launcher.run(&format!("tour-{command}"), run, COMMAND).await
    }
}

fn lsn(position: &str) -> Result<u64, Failure> {
    postgres::parse_lsn(position)
        .ok_or_else(|| Failure::runtime(format!("the server gave {position:?} as its position")))
}

/// Makes a command of this program.
fn own_program() -> Result<Command, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::environment(format!("cannot find this program's path: {error}")))?;
    Ok(Command::new(program))
}

/// Waits for something, within a limit.
async fn within<T>(what: &str, comes: impl Future<Output = T>) -> Result<T, Failure> {
    let limit = PATIENCE.as_secs();
    let late = |_| Failure::runtime(format!("the tour has waited {limit} s in vain for {what}"));
    tokio::time::timeout(PATIENCE, comes).await.map_err(late)
}

/// Waits for a line of a program that ends with a text; for ever if the program ends.
async fn says(lines: &mut Lines<BufReader<ChildStdout>>, text: &str) {
    while let Ok(Some(line)) = lines.next_line().await {
        if line.ends_with(text) {
            return;
        }
    }
    std::future::pending().await
}

/// An agent that only watches, until this value is dropped.
struct Paused(PathBuf);

impl Paused {
    fn begin(directory: PathBuf) -> Result<Paused, Failure> {
        node::pause(&directory, true)?;
        Ok(Paused(directory))
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        if let Err(failure) = node::pause(&self.0, false) {
            tracing::error!("{failure}");
        }
    }
}

/// A client that inserts rows, each in a transaction of its own.
struct Load {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<u64>,
}

impl Load {
    fn start((host, port): (&str, u16)) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, host) = (Arc::clone(&stop), host.to_owned());
        let task = tokio::spawn(async move {
            let mut config = tokio_postgres::Config::new();
            config
                .host(&host)
                .port(port)
                .user(postgres::SUPERUSER)
                .dbname("postgres")
                .application_name("kingpost tour");
            let Ok((client, connection)) = config.connect(tokio_postgres::NoTls).await else { return 0 };
            let connection = tokio::spawn(connection);
            let mut written = 0;
            while !stopped.load(Ordering::Relaxed) {
                if client.batch_execute("INSERT INTO kingpost_tour.orders VALUES (0)").await.is_err() {
                    break;
                }
                written += 1;
            }
            drop(client);
            let _ = tokio::time::timeout(Duration::from_secs(1), connection).await;
            written
        });
        Load { stop, task }
    }

    /// Ends it; returns the number of rows that were acknowledged.
    async fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap_or(0)
    }
}

/// Returns the path of this program, or of a copy of it where the servers' user cannot reach it.
fn program(cluster: &Cluster) -> Result<PathBuf, Failure> {
    let program = PathBuf::from(own_program()?.as_std().get_program());
    let reachable =
        |account: &super::children::Account| program.parent().is_none_or(|parent| account.can_enter(parent));
    if cluster.launcher.account.as_ref().is_none_or(reachable) {
        return Ok(program);
    }
    let copy = cluster.state.data.join("kingpost");
    std::fs::copy(&program, &copy).map_err(|error| Failure::path("write", &copy, &error))?;
    Ok(copy)
}

/// Writes the configuration of the commands.
fn write_config(cluster: &Cluster) -> Result<PathBuf, Failure> {
    let path = cluster.state.data.join("archive.toml");
    super::dir::write_whole(&path, config(&cluster.state.data.join("archive"), &cluster.ports()).as_bytes())?;
    Ok(path)
}

fn config(archive: &Path, nodes: &[(String, u16)]) -> String {
    use std::fmt::Write as _;
    let mut text = format!(
        "# Written by `kingpost up --tour`, for `kingpost backup` and `kingpost restore`.\n\
         [relay]\nlisten = []\n\n[relay.archive]\nurl = {archive:?}\n\n[relay.upstream]\nuser = \"{}\"\n",
        postgres::SUPERUSER
    );
    for (name, port) in nodes {
        let _ = write!(text, "\n[[cluster.nodes]]\nname = \"{name}\"\naddress = \"127.0.0.1:{port}\"\n");
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_commands_accept_the_configuration() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = config(Path::new("/srv/archive"), &[("node1".into(), 5432)]);
        std::fs::write(file.path(), &text).unwrap();
        let (config, _) = config::load(file.path()).unwrap().accept(file.path()).unwrap();
        assert_eq!(config.relay.archive.url, "/srv/archive");
        assert_eq!(config.cluster.nodes.len(), 1);
    }
}
