//! One real PostgreSQL server.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio_postgres::{Client, Config};

use crate::endpoint::{Endpoint, USER};
use crate::port::Port;
use crate::process::{Process, RunAs, children, command, signal};
use crate::template::{pg_bin, run, template};
use crate::wait::{SOON, wait_until};

/// Delays such as that of a reconnecting receiver are short here, as tests do not wait for them.
const SETTINGS: &str = "\
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 200
superuser_reserved_connections = 10
shared_buffers = 32MB
dynamic_shared_memory_type = mmap
wal_level = replica
wal_keep_size = 512MB
wal_log_hints = on
hot_standby = on
max_wal_senders = 10
wal_retrieve_retry_interval = 100ms
wal_receiver_status_interval = 1s
wal_receiver_timeout = 10s
wal_sender_timeout = 10s
max_standby_streaming_delay = 30s
autovacuum_naptime = 1h
timezone = 'UTC'
logging_collector = off
log_line_prefix = '%m [%p] %q%u@%d '
log_parameter_max_length = 200
";

/// Marks a server's segment of System V memory for removal: it goes with the last process that has it. A killed server leaves it for the next one in
/// the same directory, and the system has 4096 of them for all.
///
/// Does nothing if there is none, or if the server was shut down properly. A running server does not need it: the segment only tells a second one of
/// the same directory that there is a first.
pub(crate) fn remove_segment(dir: &Path) {
    if let Some(id) = segment(dir) {
        // SAFETY: IPC_RMID uses no buffer; the id belongs to a segment of a server of ours, or to none.
        unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

/// True if a process of the server still has that memory: then no other one can be started in its directory.
fn has_segment(dir: &Path) -> bool {
    let Some(id) = segment(dir) else { return false };
    let mut found = std::mem::MaybeUninit::<libc::shmid_ds>::zeroed();
    // SAFETY: IPC_STAT fills the given structure, of the type that it needs; all zeroes is a valid value of it.
    let (failed, found) = unsafe { (libc::shmctl(id, libc::IPC_STAT, found.as_mut_ptr()) < 0, found.assume_init()) };
    !failed && found.shm_nattch > 0
}

fn segment(dir: &Path) -> Option<i32> {
    // The format: src/include/utils/pidfile.h; line 7 is `key id`.
    let file = std::fs::read_to_string(dir.join("postmaster.pid")).ok()?;
    file.lines().nth(6)?.split_whitespace().nth(1)?.parse().ok()
}

/// A server: a primary, or a replica by streaming replication. Stopped on drop.
#[derive(Debug)]
pub struct Node {
    name: String,
    dir: PathBuf,
    logs: PathBuf,
    port: Port,
    process: Mutex<Option<Process>>,
    dynamic: Mutex<Dynamic>,
}

/// Settings that a running server can reload.
#[derive(Debug, Default)]
struct Dynamic {
    /// Port of the server to follow.
    follows: Option<u16>,
    /// Slot on the followed server.
    slot: Option<String>,
    apply_delay_ms: u64,
}

impl Node {
    /// Makes the data directory `logs/name` with `settings` after the harness's own, and `hba` instead of it; does not start the server.
    pub(crate) fn create(name: &str, logs: &Path, settings: &[(String, String)], hba: Option<&str>) -> Node {
        let dir = logs.join(name);
        run(Command::new("cp").args(["-a", "--reflink=auto"]).arg(template()).arg(&dir));
        let port = Port::reserve();
        let mut text = format!("{SETTINGS}port = {}\ncluster_name = '{name}'\n", port.number());
        for (key, value) in settings {
            let _ = writeln!(text, "{key} = '{}'", value.replace('\'', "''"));
        }
        text.push_str("include_if_exists = 'dynamic.conf'\n");
        std::fs::write(dir.join("postgresql.conf"), text).expect("write postgresql.conf");
        let node = Node {
            name: name.into(),
            dir,
            logs: logs.into(),
            port,
            process: Mutex::new(None),
            dynamic: Mutex::new(Dynamic::default()),
        };
        if let Some(hba) = hba {
            node.replace_hba(hba);
        }
        node
    }

    /// Takes a data directory that something else made, with its own settings but for the port.
    pub(crate) fn adopt(name: &str, dir: &Path, logs: &Path) -> Node {
        let port = Port::reserve();
        let conf = dir.join("postgresql.conf");
        let mut text = std::fs::read_to_string(&conf).expect("read postgresql.conf");
        let _ = writeln!(text, "port = {}\ncluster_name = '{name}'", port.number());
        std::fs::write(conf, text).expect("write postgresql.conf");
        Node {
            name: name.into(),
            dir: dir.into(),
            logs: logs.into(),
            port,
            process: Mutex::new(None),
            dynamic: Mutex::new(Dynamic::default()),
        }
    }

    /// Returns the name, also used in the configuration of the proxy.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the port on 127.0.0.1, the same for the node's whole life.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the data directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the endpoint for direct connections of the tests' clients.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::new(self.port(), &self.logs)
    }

    /// Writes another `pg_hba.conf`, which the server reads with its next reload.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn replace_hba(&self, hba: &str) {
        std::fs::write(self.dir.join("pg_hba.conf"), hba).expect("write pg_hba.conf");
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.logs.join(format!("{}.log", self.name))
    }

    /// True if the log contains `marker`; with `log_statement = all`: if the server was sent a statement with the marker. The line is written before
    /// the statement runs.
    pub fn saw(&self, marker: &str) -> bool {
        self.log().contains(marker)
    }

    /// Returns the harness's configuration: a superuser in the tests' database. A test may give the server a short `statement_timeout`. It does not
    /// end the harness's statements: a `SET` would come too late.
    pub fn admin_config(&self) -> Config {
        let mut config = self.endpoint().config();
        config.user("postgres").application_name("harness").options("-c statement_timeout=0");
        config
    }

    /// Connects as a superuser.
    pub async fn admin(&self) -> Client {
        self.endpoint().connect_as(&self.admin_config()).await
    }

    /// Runs SQL as a superuser.
    ///
    /// # Panics
    /// When it fails.
    pub async fn execute(&self, sql: &str) {
        self.admin().await.batch_execute(sql).await.unwrap_or_else(|e| panic!("{}: {sql}: {e:?}", self.name));
    }

    /// Runs SQL as a superuser in another database than the tests' usual one.
    ///
    /// # Panics
    /// When it fails.
    pub async fn execute_in(&self, database: &str, sql: &str) {
        let mut config = self.admin_config();
        config.dbname(database);
        let admin = self.endpoint().connect_as(&config).await;
        admin.batch_execute(sql).await.unwrap_or_else(|e| panic!("{}, {database}: {sql}: {e:?}", self.name));
    }

    /// Returns the single value, as text, of a query run by a superuser.
    ///
    /// # Panics
    /// When it fails, gives no row, or gives NULL.
    pub async fn query(&self, sql: &str) -> String {
        self.try_query(sql).await.unwrap_or_else(|| panic!("{}: {sql} gave nothing", self.name))
    }

    async fn try_query(&self, sql: &str) -> Option<String> {
        self.query_as(&self.admin_config(), sql).await
    }

    /// As [`Node::query`], in this database.
    ///
    /// # Panics
    /// As [`Node::query`].
    pub async fn query_in(&self, database: &str, sql: &str) -> String {
        let mut config = self.admin_config();
        config.dbname(database);
        self.query_as(&config, sql).await.unwrap_or_else(|| panic!("{}: {sql} gave nothing", self.name))
    }

    /// Returns the single value, as text, of a query run by a superuser whom the lock of a switchover does not keep out.
    ///
    /// # Panics
    /// When it fails, gives no row, or gives NULL.
    pub async fn query_past_lock(&self, sql: &str) -> String {
        let mut config = self.admin_config();
        config.options("-c statement_timeout=0 -c session_preload_libraries=");
        self.query_as(&config, sql).await.unwrap_or_else(|| panic!("{}: {sql} gave nothing", self.name))
    }

    async fn query_as(&self, config: &Config, sql: &str) -> Option<String> {
        let client = self.endpoint().try_connect(config).await.ok()?;
        let rows = client.simple_query(sql).await.ok()?;
        rows.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
    }

    /// Counts the connections of the tests' user: those that a pool holds here.
    pub async fn pool_connections(&self) -> usize {
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{USER}'");
        self.query(&sql).await.parse().expect("a count")
    }

    fn with_process<T>(&self, work: impl FnOnce(Option<&Process>) -> T) -> T {
        work(self.process.lock().unwrap_or_else(PoisonError::into_inner).as_ref())
    }

    /// True if its process runs (it may be stopped by [`Node::sigstop`]).
    pub fn is_running(&self) -> bool {
        self.with_process(|process| process.is_some_and(|process| process.exit_status().is_none()))
    }

    /// Starts the server and waits until it answers queries.
    ///
    /// # Panics
    /// When it ends, or does not answer in time.
    pub async fn start(&self) {
        self.launch();
        self.wait_ready().await;
    }

    /// Starts the server without waiting for it.
    pub(crate) fn launch(&self) {
        // A killed server leaves its pid file; the pid may by now belong to another process of the same user.
        remove_segment(&self.dir);
        let _ = std::fs::remove_file(self.dir.join("postmaster.pid"));
        // Not by pg_ctl: the server must be our child to get the parent-death signal. QUIT: it ends its children, too.
        let mut postgres = command(&pg_bin().join("postgres"), RunAs::Server, "QUIT");
        postgres.arg("-D").arg(&self.dir);
        let process = Process::start(&self.name, postgres, &self.log_path());
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
    }

    pub(crate) async fn wait_ready(&self) {
        wait_until(&format!("{} to answer", self.name), SOON, &self.logs, async || {
            assert!(self.is_running(), "{} ended:\n{}", self.name, self.log());
            self.try_query("SELECT 1").await
        })
        .await;
        remove_segment(&self.dir);
    }

    /// Kills the server and all its processes at once, as at a crash of the machine (except that written data stay written).
    pub async fn kill9(&self) {
        self.signal_all(libc::SIGKILL);
        self.wait_ended().await;
        // Its children end when they notice, and one that it had just forked when it sees that it is alone.
        let what = format!("the last process of {} to end", self.name);
        wait_until(&what, SOON, &self.logs, async || (!has_segment(&self.dir)).then_some(())).await;
    }

    /// Shuts down fast: clients are disconnected, replicas get everything.
    pub async fn stop(&self) {
        self.with_process(|process| process.iter().for_each(|process| process.signal(libc::SIGINT)));
        self.wait_ended().await;
    }

    async fn wait_ended(&self) {
        wait_until(&format!("{} to end", self.name), SOON, &self.logs, async || (!self.is_running()).then_some(()))
            .await;
    }

    /// Freezes the server: connections stay open, nothing answers, the kernel still accepts.
    pub fn sigstop(&self) {
        self.signal_all(libc::SIGSTOP);
    }

    /// Resumes it.
    pub fn sigcont(&self) {
        self.signal_all(libc::SIGCONT);
    }

    /// Signals the parent first: a postmaster that is stopped or dead cannot replace a child that ends.
    fn signal_all(&self, number: i32) {
        self.with_process(|process| {
            let Some(process) = process.filter(|process| process.exit_status().is_none()) else { return };
            if number == libc::SIGKILL {
                process.signal(libc::SIGSTOP);
            } else {
                process.signal(number);
            }
            for child in children(process.pid()) {
                signal(child, number);
            }
            process.signal(number);
        });
    }

    /// Makes a replica a primary, on a new timeline.
    ///
    /// # Panics
    /// When that does not happen within a minute.
    pub async fn promote(&self) {
        let done = self.query("SELECT pg_promote(true, 60)").await;
        assert_eq!(done, "t", "{} was not promoted:\n{}", self.name, self.log());
    }

    /// Pauses replay on the replica, which goes on receiving.
    pub async fn pause_replay(&self) {
        self.execute("SELECT pg_wal_replay_pause()").await;
        self.wait_value("SELECT pg_get_wal_replay_pause_state()", "paused").await;
    }

    /// Makes a stopped server a standby that streams from any server on `port`, with the data it has.
    ///
    /// # Panics
    /// When it runs.
    pub fn demote(&self, port: u16) {
        assert!(!self.is_running(), "{} must be stopped to be made a standby", self.name);
        self.set_follow(port);
    }

    /// Ends [`Node::pause_replay`].
    pub async fn resume_replay(&self) {
        self.execute("SELECT pg_wal_replay_resume()").await;
    }

    /// Delays the application of each commit by this time after its commit on the primary; zero for none.
    pub async fn recovery_delay(&self, delay: Duration) {
        self.dynamic.lock().unwrap_or_else(PoisonError::into_inner).apply_delay_ms = delay.as_millis() as u64;
        self.reload_dynamic();
        let sql = "SELECT setting FROM pg_settings WHERE name = 'recovery_min_apply_delay'";
        self.wait_value(sql, &delay.as_millis().to_string()).await;
    }

    /// Streams from `primary`: from now on, or, if it is not running, from the next start on as a replica.
    pub async fn follow(&self, primary: &Node) {
        self.set_follow(primary.port());
        if self.is_running() {
            let sql = "SELECT strpos(setting, 'port=PORT ') > 0 FROM pg_settings WHERE name = 'primary_conninfo'";
            self.wait_value(&sql.replace("PORT", &primary.port().to_string()), "t").await;
        }
    }

    /// Streams from any server on `port`, from the next start on.
    pub fn follow_port(&self, port: u16) {
        self.set_follow(port);
    }

    /// Streams from `port` by an existing slot; a running server does so at once.
    pub fn follow_by_slot(&self, port: u16, slot: &str) {
        self.dynamic.lock().unwrap_or_else(PoisonError::into_inner).slot = Some(slot.into());
        self.set_follow(port);
    }

    pub(crate) fn set_follow(&self, port: u16) {
        self.dynamic.lock().unwrap_or_else(PoisonError::into_inner).follows = Some(port);
        std::fs::write(self.dir.join("standby.signal"), "").expect("write standby.signal");
        self.reload_dynamic();
    }

    /// Writes the settings and makes a running server reload them.
    fn reload_dynamic(&self) {
        let dynamic = self.dynamic.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = format!("recovery_min_apply_delay = {}ms\n", dynamic.apply_delay_ms);
        if let Some(port) = dynamic.follows {
            let name = &self.name;
            let _ =
                writeln!(text, "primary_conninfo = 'host=127.0.0.1 port={port} user=postgres application_name={name}'");
        }
        if let Some(slot) = &dynamic.slot {
            let _ = writeln!(text, "primary_slot_name = '{slot}'");
        }
        std::fs::write(self.dir.join("dynamic.conf"), text).expect("write dynamic.conf");
        self.with_process(|process| process.iter().for_each(|process| process.signal(libc::SIGHUP)));
    }

    /// Waits until a query run by a superuser returns `value`.
    ///
    /// # Panics
    /// When it does not in time.
    pub async fn wait_value(&self, sql: &str, value: &str) {
        let what = format!("{}: {sql} = {value}", self.name);
        wait_until(&what, SOON, &self.logs, async || self.try_query(sql).await.filter(|now| now == value)).await;
    }

    /// Waits until this replica has applied all that `primary` has written so far.
    pub async fn wait_caught_up(&self, primary: &Node) {
        let target = primary.query("SELECT pg_current_wal_insert_lsn()").await;
        let sql = format!("SELECT pg_last_wal_replay_lsn() >= '{target}'");
        self.wait_value(&sql, "t").await;
    }

    /// Makes a stopped server, a former primary or a standby, follow `primary`, dropping data that only it has.
    ///
    /// # Panics
    /// When it runs, or cannot be rewound.
    pub async fn rejoin(&self, primary: &Node) {
        assert!(!self.is_running(), "{} must be stopped to be rewound", self.name);
        // Until its first checkpoint a promoted server's control file still names the old timeline, and pg_rewind would do nothing.
        primary.execute("CHECKPOINT").await;
        let config = std::fs::read(self.dir.join("postgresql.conf")).expect("read postgresql.conf");
        // As the guide says: pg_rewind may have to start the server for itself, which a switchover's lock would prevent.
        let own = std::fs::read_to_string(self.dir.join("postgresql.auto.conf")).expect("read postgresql.auto.conf");
        let unlocked = own.lines().filter(|line| !line.contains("kingpost_switchover")).collect::<Vec<_>>().join("\n");
        std::fs::write(self.dir.join("postgresql.auto.conf"), unlocked + "\n").expect("write postgresql.auto.conf");
        // The file is ours, and in the way of a server's user.
        let _ = std::fs::remove_file(self.dir.join("dynamic.conf"));
        // The file of a killed standby: pg_rewind recovers the server in single-user mode, which refuses to be a standby.
        let _ = std::fs::remove_file(self.dir.join("standby.signal"));
        let source = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", primary.port());
        let mut rewind = command(&pg_bin().join("pg_rewind"), RunAs::Server, "KILL");
        rewind.args(["--no-sync", "--source-server", &source, "--target-pgdata"]).arg(&self.dir);
        run(&mut rewind);
        // The rewind copies every file that differs, configuration included.
        std::fs::write(self.dir.join("postgresql.conf"), config).expect("write postgresql.conf");
        self.set_follow(primary.port());
        self.start().await;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.signal_all(libc::SIGKILL);
        // The segment from before it was ready, or one made after a crash of one of its processes.
        remove_segment(&self.dir);
    }
}
