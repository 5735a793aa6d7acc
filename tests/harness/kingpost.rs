//! The real binary in front of a [`Cluster`], or a stand-in to prove the tests themselves.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use toml::{Table, Value};

use crate::cluster::Cluster;
use crate::cut::Cut;
use crate::endpoint::{DATABASE, Endpoint};
use crate::metrics::Metrics;
use crate::port::Port;
use crate::process::{Process, RunAs, command};
use crate::run::unique;
use crate::wait::{SOON, wait_until};

/// Program behind the address that tests connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// Kingpost.
    Kingpost,
    /// The primary itself (`KINGPOST_TESTS_DIRECT=1`): proves what a test expects of PostgreSQL.
    Direct,
    /// PgBouncer in transaction mode in front of the primary (`KINGPOST_TESTS_PGBOUNCER=1`).
    PgBouncer,
}

/// Returns the program that the tests of this process run against.
pub fn subject() -> Subject {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0");
    match (set("KINGPOST_TESTS_DIRECT"), set("KINGPOST_TESTS_PGBOUNCER")) {
        (true, _) => Subject::Direct,
        (_, true) => Subject::PgBouncer,
        _ => Subject::Kingpost,
    }
}

/// Returns the binary under test: `KINGPOST_BIN`, or the release build, or the debug build.
///
/// # Panics
/// When there is none.
pub fn kingpost_bin() -> PathBuf {
    if let Some(path) = std::env::var_os("KINGPOST_BIN") {
        return path.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let built = ["release", "debug"].map(|profile| target.join(profile).join("kingpost"));
    let found = built.into_iter().find(|path| path.exists());
    found.expect("no kingpost binary: run `cargo build --release -p kingpost`, or set KINGPOST_BIN")
}

/// A configuration of a proxy, before its start.
#[derive(Debug)]
pub struct KingpostBuilder<'a> {
    cluster: &'a Cluster,
    config: Table,
}

/// A running proxy, stopped on drop.
#[derive(Debug)]
pub struct Kingpost {
    subject: Subject,
    endpoint: Endpoint,
    _port: Option<Port>,
    metrics_port: Port,
    config_path: PathBuf,
    config: Mutex<Table>,
    process: Option<Process>,
}

impl<'a> KingpostBuilder<'a> {
    /// Sets `section.key` (`proxy.pool.size`), making the sections on the way.
    #[must_use]
    pub fn set(mut self, path: &str, value: impl Into<Value>) -> Self {
        set(&mut self.config, path, value.into());
        self
    }

    /// Adds a table to the list of tables at `path` (`proxy.users`, `clusters`).
    #[must_use]
    pub fn add(mut self, path: &str, table: Table) -> Self {
        let (section, key) = split(path);
        let list = section_of(&mut self.config, section).entry(key).or_insert_with(|| Value::Array(Vec::new()));
        list.as_array_mut().expect("a list of tables").push(Value::Table(table));
        self
    }

    /// Makes the proxy reach the cluster's node `index` through a forwarder.
    #[must_use]
    pub fn through(mut self, index: usize, cut: &Cut) -> Self {
        let nodes = section_of(&mut self.config, "cluster").get_mut("nodes").and_then(Value::as_array_mut);
        let node = nodes.and_then(|nodes| nodes.get_mut(index)).and_then(Value::as_table_mut).expect("that node");
        node.insert("address".into(), format!("127.0.0.1:{}", cut.port()).into());
        self
    }

    /// Starts the proxy and waits until it reports that it is ready.
    ///
    /// # Panics
    /// When it ends, or is not ready in time.
    pub async fn start(self) -> Kingpost {
        match subject() {
            Subject::Direct => Kingpost::unstarted(self, Subject::Direct),
            Subject::PgBouncer => Kingpost::pgbouncer(self).await,
            Subject::Kingpost => {
                let mut kingpost = Kingpost::unstarted(self, Subject::Kingpost);
                kingpost.start().await;
                kingpost
            }
        }
    }
}

fn section_of<'t>(config: &'t mut Table, section: &str) -> &'t mut Table {
    section.split('.').filter(|key| !key.is_empty()).fold(config, |table, key| {
        let entry = table.entry(key).or_insert_with(|| Value::Table(Table::new()));
        entry.as_table_mut().expect("a section")
    })
}

/// Splits a path into section, empty for a key at the top, and key.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}

pub(crate) fn set(config: &mut Table, path: &str, value: Value) {
    let (section, key) = split(path);
    section_of(config, section).insert(key.into(), value);
}

impl Kingpost {
    /// Makes a proxy in front of `cluster`: trust, pools of 8, probes ten times a second.
    pub fn of(cluster: &Cluster) -> KingpostBuilder<'_> {
        let node = |node: &crate::Node| {
            let mut table = Table::new();
            table.insert("name".into(), node.name().into());
            table.insert("address".into(), format!("127.0.0.1:{}", node.port()).into());
            Value::Table(table)
        };
        let nodes: Vec<Value> = cluster.nodes().iter().map(node).collect();
        let mut builder = KingpostBuilder { cluster, config: Table::new() };
        if let Ok(driver) = std::env::var("KINGPOST_TEST_DRIVER") {
            builder = builder.set("proxy.driver", driver);
        }
        builder
            .set("cluster.nodes", nodes)
            .set("cluster.user", "postgres")
            .set("cluster.probe_interval", "100ms")
            .set("cluster.probe_timeout", "1s")
            .set("proxy.auth", "trust")
            .set("proxy.workers", 2)
            .set("proxy.pool.size", 8)
    }

    fn unstarted(builder: KingpostBuilder<'_>, subject: Subject) -> Kingpost {
        let cluster = builder.cluster;
        let (port, number) = match subject {
            Subject::Direct => (None, cluster.primary().port()),
            _ => {
                let port = Port::reserve();
                let number = port.number();
                (Some(port), number)
            }
        };
        let metrics_port = Port::reserve();
        let mut config = builder.config;
        // Further addresses of the test follow.
        let mut listen = vec![Value::from(format!("127.0.0.1:{number}"))];
        if let Some(Value::Array(further)) = section_of(&mut config, "proxy").remove("listen") {
            listen.extend(further);
        }
        set(&mut config, "proxy.listen", listen.into());
        set(&mut config, "metrics.listen", format!("127.0.0.1:{}", metrics_port.number()).into());
        let kingpost = Kingpost {
            subject,
            endpoint: Endpoint::new(number, cluster.dir()),
            _port: port,
            metrics_port,
            config_path: cluster.dir().join(format!("kingpost-{}.toml", unique())),
            config: Mutex::new(config),
            process: None,
        };
        kingpost.write_config();
        kingpost
    }

    fn write_config(&self) {
        let text =
            toml::to_string(&*self.config.lock().unwrap_or_else(PoisonError::into_inner)).expect("a configuration");
        std::fs::write(&self.config_path, text).expect("write the proxy's configuration");
    }

    /// Starts the binary (again, on the same port) and waits until it reports that it is ready.
    ///
    /// # Panics
    /// When it ends, or is not ready in time.
    pub async fn start(&mut self) {
        if self.subject != Subject::Kingpost {
            return;
        }
        let mut kingpost = command(&kingpost_bin(), RunAs::Tests, "KILL");
        kingpost.args(["proxy", "--config"]).arg(&self.config_path);
        let log = self.config_path.with_extension("log");
        self.process = Some(Process::start("kingpost", kingpost, &log));
        wait_until("the proxy to be ready", SOON, &self.endpoint.logs, async || {
            let ended = self.process().exit_status();
            let log = || std::fs::read_to_string(&log).unwrap_or_default();
            assert!(ended.is_none(), "the proxy ended with {ended:?}:\n{}", log());
            self.http("/readyz").await.filter(|(status, _)| *status == 200)
        })
        .await;
    }

    /// Starts another process that takes over from this one, waits until it has, and returns the old one.
    ///
    /// # Panics
    /// When it does not in time.
    pub async fn take_over(&mut self) -> Process {
        let mut kingpost = command(&kingpost_bin(), RunAs::Tests, "KILL");
        kingpost.args(["proxy", "--take-over", "--config"]).arg(&self.config_path);
        let log = self.config_path.with_extension(format!("{}.log", unique()));
        let process = Process::start("kingpost", kingpost, &log);
        wait_until("the new process to take over", SOON, &self.endpoint.logs, async || {
            let log = || std::fs::read_to_string(&log).unwrap_or_default();
            let ended = process.exit_status();
            assert!(ended.is_none(), "the new process ended with {ended:?}:\n{}", log());
            log().contains("has taken over").then_some(())
        })
        .await;
        self.process.replace(process).expect("a process to take over from")
    }

    async fn pgbouncer(builder: KingpostBuilder<'_>) -> Kingpost {
        let primary = builder.cluster.primary().port();
        let mut kingpost = Kingpost::unstarted(builder, Subject::PgBouncer);
        let log = kingpost.config_path.with_extension("log");
        let ini = kingpost.config_path.with_extension("ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={primary}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\n\
             unix_socket_dir =\nauth_type = any\nauth_file =\npool_mode = transaction\ndefault_pool_size = {}\n\
             max_client_conn = 1000\nignore_startup_parameters = extra_float_digits,options,search_path\n",
            kingpost.port(),
            kingpost.pool_size(),
        );
        // `auth_type = any` needs a user for the servers.
        let text = text.replace("port=", "user=alice port=");
        std::fs::write(&ini, text).expect("write PgBouncer's configuration");
        let mut bouncer = command(Path::new("/usr/sbin/pgbouncer"), RunAs::Server, "KILL");
        bouncer.arg(&ini);
        kingpost.process = Some(Process::start("pgbouncer", bouncer, &log));
        let endpoint = kingpost.endpoint.clone();
        wait_until("pgbouncer to answer", SOON, &endpoint.logs, async || {
            endpoint.try_connect(&endpoint.config()).await.ok()
        })
        .await;
        kingpost
    }

    /// Returns the program behind the address.
    pub fn subject(&self) -> Subject {
        self.subject
    }

    /// Returns the endpoint for clients.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the port for clients on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.endpoint.port
    }

    /// A client of the tests' usual user and database.
    pub async fn connect(&self) -> tokio_postgres::Client {
        self.endpoint.connect().await
    }

    /// The process.
    ///
    /// # Panics
    /// When it is not started.
    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("the proxy is started")
    }

    /// The configured `proxy.pool.size`.
    pub fn pool_size(&self) -> usize {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        let size = config.get("proxy").and_then(|proxy| proxy.get("pool")).and_then(|pool| pool.get("size"));
        size.and_then(Value::as_integer).map_or(20, |size| size as usize)
    }

    /// Returns the path of the configuration.
    pub fn config_path(&self) -> &Path {
        &self.config_path
    }

    /// Kills the proxy.
    ///
    /// # Panics
    /// When it is not started.
    pub async fn kill9(&self) {
        self.process().signal(libc::SIGKILL);
        self.process().wait_exit(SOON).await;
    }

    /// Changes `section.key` in the configuration file and sends SIGHUP. The change takes effect some time after.
    pub fn reload(&self, path: &str, value: impl Into<Value>) {
        set(&mut self.config.lock().unwrap_or_else(PoisonError::into_inner), path, value.into());
        self.write_config();
        self.process().signal(libc::SIGHUP);
    }

    /// As [`Kingpost::reload`], and waits until the proxy has logged that all of it runs with the new configuration.
    ///
    /// # Panics
    /// When it does not in time.
    pub async fn reload_and_wait(&self, path: &str, value: impl Into<Value>) {
        let log = self.config_path.with_extension("log");
        let reloads = || std::fs::read_to_string(&log).unwrap_or_default().matches(r#""message":"reloaded""#).count();
        let before = reloads();
        self.reload(path, value);
        wait_until("the proxy to have reloaded", SOON, &self.endpoint.logs, async || {
            (reloads() > before).then_some(())
        })
        .await;
    }

    /// Runs `kingpost` with other arguments to its end.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn run(arguments: &[&str]) -> std::process::Output {
        let bin = kingpost_bin();
        Command::new(&bin).args(arguments).output().unwrap_or_else(|e| panic!("run {}: {e}", bin.display()))
    }

    /// Returns status and body of a GET on the metrics address; None if it does not answer.
    pub async fn http(&self, path: &str) -> Option<(u16, String)> {
        crate::metrics::get(self.metrics_port.number(), path).await
    }

    /// Waits until `/readyz` answers with this status.
    ///
    /// # Panics
    /// When it does not in time.
    pub async fn wait_readyz(&self, status: u16) {
        wait_until(&format!("/readyz to answer {status}"), SOON, &self.endpoint.logs, async || {
            self.http("/readyz").await.filter(|(answered, _)| *answered == status)
        })
        .await;
    }

    /// Returns the port of the metrics address.
    pub fn metrics_port(&self) -> u16 {
        self.metrics_port.number()
    }

    /// Returns the current metrics.
    ///
    /// # Panics
    /// When they cannot be had, or are not valid.
    pub async fn metrics(&self) -> Metrics {
        Metrics::now(self.metrics_port.number()).await
    }
}

/// Makes an entry of `[[proxy.users]]`.
pub fn user(name: &str, password: &str) -> Table {
    let mut table = Table::new();
    table.insert("name".into(), name.into());
    table.insert("password".into(), password.into());
    table
}

/// Makes an entry of `[[proxy.databases]]`: an alias of the tests' database with one more setting.
pub fn database(name: &str, key: &str, value: impl Into<Value>) -> Table {
    let mut table = Table::new();
    table.insert("name".into(), name.into());
    table.insert("dbname".into(), DATABASE.into());
    table.insert(key.into(), value.into());
    table
}
