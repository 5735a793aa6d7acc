//! Child processes that never outlive the test process.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::wait::wait_until;

type Order = (Command, Sender<io::Result<Child>>);

/// Forks in one thread that lives as long as the process: the kernel sends the parent-death signal when the *thread* that forked ends, and tests run
/// in threads that end with the test.
fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Sender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = channel::<Order>();
        std::thread::Builder::new()
            .name("spawner".into())
            .spawn(move || {
                for (mut command, answer) in inbox {
                    let _ = answer.send(command.spawn());
                }
            })
            .expect("start the spawner thread");
        orders
    });
    let (answer, outcome) = channel();
    spawner.send((command, answer)).expect("the spawner thread lives as long as the process");
    outcome.recv().expect("the spawner thread answers every order")
}

/// Returns the user of database servers: PostgreSQL refuses root.
pub(crate) fn server_user() -> Option<&'static str> {
    static USER: OnceLock<Option<&'static str>> = OnceLock::new();
    *USER.get_or_init(|| {
        let id = |args: &[&str]| Command::new("id").args(args).stderr(Stdio::null()).output().expect("run id");
        if id(&["-u"]).stdout != b"0\n" {
            return None;
        }
        Some(if id(&["-u", "postgres"]).status.success() { "postgres" } else { "nobody" })
    })
}

/// User of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunAs {
    /// The user of the tests.
    Tests,
    /// The user of the servers: an unprivileged one if the tests run as root.
    Server,
}

/// Makes a command that runs `program` as `run_as`, and gets `death_signal` (`KILL`, `QUIT`) when the test process ends.
pub fn command(program: &Path, run_as: RunAs, death_signal: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", death_signal]);
    if let (RunAs::Server, Some(user)) = (run_as, server_user()) {
        command.args(["--reuid", user, "--regid"]).arg(group_of(user)).arg("--clear-groups");
    }
    command.arg("--").arg(program);
    command
}

fn group_of(user: &str) -> String {
    let output = Command::new("id").args(["-g", user]).output().expect("run id");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Sends a signal; `false` if there is no such process. After `SIGSTOP` it waits until all threads have stopped, as the process may answer until
/// then.
pub fn signal(pid: u32, signal: i32) -> bool {
    let Ok(pid) = i32::try_from(pid) else { return false };
    assert!(pid > 1, "a signal to pid {pid} would hit more than one child");
    // SAFETY: kill takes two integers and touches no memory of ours.
    let sent = unsafe { libc::kill(pid, signal) == 0 };
    let patience = Instant::now() + Duration::from_secs(10);
    while sent && signal == libc::SIGSTOP && runs(pid) {
        assert!(Instant::now() < patience, "process {pid} does not stop");
        std::thread::yield_now();
    }
    sent
}

/// True if a thread of the process is neither stopped nor ended.
fn runs(pid: i32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().any(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name, which is in brackets. No file: the thread has ended.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        !matches!(state, None | Some('T' | 't' | 'Z' | 'X'))
    })
}

/// Returns the direct children of a process.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let is_child = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        after_name.split_whitespace().nth(1).and_then(|ppid| ppid.parse().ok()) == Some(parent)
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|&pid| is_child(pid))
        .collect()
}

/// A running child with its output in a log file. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: u32,
    log: PathBuf,
    child: Mutex<Child>,
}

impl Process {
    /// Starts `command` with its output appended to `log`.
    ///
    /// # Panics
    /// When the log or the process cannot be made.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Process {
        let file = File::options().create(true).append(true).open(log);
        let file = file.unwrap_or_else(|e| panic!("open {}: {e}", log.display()));
        let same = file.try_clone().expect("a second handle of the log");
        command.stdin(Stdio::null()).stdout(file).stderr(same);
        let child = spawn(command).unwrap_or_else(|e| panic!("start {name}: {e}"));
        Process { name: name.into(), pid: child.id(), log: log.into(), child: Mutex::new(child) }
    }

    /// Returns the process id; setpriv replaces itself by the program, so it is the program's.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the path of its output.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns its exit status, if it has ended.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.try_wait().unwrap_or_else(|e| panic!("wait for {}: {e}", self.name))
    }

    /// Sends a signal to this process alone; does nothing if it has ended.
    pub fn signal(&self, number: i32) {
        // A pid that has been waited for may belong to another process.
        if self.exit_status().is_none() {
            signal(self.pid, number);
        }
    }

    /// Waits for the end of the process.
    ///
    /// # Panics
    /// After `limit`.
    pub async fn wait_exit(&self, limit: Duration) -> ExitStatus {
        let logs = self.log.parent().unwrap_or(Path::new("/"));
        wait_until(&format!("{} to end", self.name), limit, logs, async || self.exit_status()).await
    }

    /// Counts its open file descriptors.
    pub fn fd_count(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid)).map_or(0, Iterator::count)
    }

    /// Limits its open descriptors from now on; open ones stay open.
    ///
    /// # Panics
    /// When the system does not let us.
    pub fn limit_descriptors(&self, limit: usize) {
        let (pid, limit) = (self.pid().to_string(), format!("--nofile={limit}"));
        crate::template::run(Command::new("prlimit").args(["--pid", &pid, &limit]));
    }

    /// Returns its resident memory in KiB.
    pub fn rss_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
        line.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = child.wait();
    }
}
