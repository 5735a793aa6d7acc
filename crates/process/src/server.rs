//! Processes of database servers: their identity, the account that they run as, their logs.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::Failure;

/// Identity of a process, distinct from that of a later one with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub started: u64,
}

impl Identity {
    /// Returns the identity of this process.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn own() -> Result<Identity, Failure> {
        let pid = std::process::id();
        let started = start_time(pid)
            .ok_or_else(|| Failure::environment("cannot read this process's start time from /proc/self/stat"))?;
        Ok(Identity { pid, started })
    }

    /// True if the process runs.
    pub fn is_alive(self) -> bool {
        start_time(self.pid) == Some(self.started)
    }

    /// Sends SIGTERM, if it is still the same process.
    pub fn terminate(self) {
        if self.is_alive() {
            signal(self.pid, Signal::TERM);
        }
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw)
        && let Err(error) = kill_process(pid, signal)
    {
        tracing::debug!(%error, ?pid, ?signal, "cannot signal");
    }
}

/// Reads a process's start time; a zombie counts as dead.
fn start_time(pid: u32) -> Option<u64> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads the 22nd field of `/proc/<pid>/stat`. The second is the program's name in parentheses, with any characters in it.
fn parse_stat(stat: &str) -> Option<u64> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.nth(18)?.parse().ok(),
    }
}

/// Files in the data directory with the process id of a PostgreSQL server, and of a MariaDB or MySQL server (set at its start).
pub const PID_FILES: [&str; 3] = ["postmaster.pid", "mariadb.pid", "mysql.pid"];

/// Returns the pid of the server that runs on a data directory: a file there names its process, and the working directory of that process proves that
/// the number was not given to another one since.
pub fn server(data: &Path) -> Option<u32> {
    let runs = |file: &str| {
        let text = fs::read_to_string(data.join(file)).ok()?;
        let pid: u32 = text.lines().next()?.trim().parse().ok()?;
        start_time(pid)?;
        let works_in = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
        (works_in == fs::canonicalize(data).ok()?).then_some(pid)
    };
    PID_FILES.iter().find_map(|file| runs(file))
}

/// Sends SIGTERM to a server, as a service manager does.
pub fn end_server(data: &Path) {
    if let Some(pid) = server(data) {
        signal(pid, Signal::TERM);
    }
}

/// Sends SIGINT to a server: it ends its sessions, makes a checkpoint and stops.
pub fn stop_server(data: &Path) {
    if let Some(pid) = server(data) {
        signal(pid, Signal::INT);
    }
}

/// Sends SIGQUIT to a server: it ends without waiting, and its next start recovers.
pub fn quit_server(data: &Path) {
    if let Some(pid) = server(data) {
        signal(pid, Signal::QUIT);
    }
}

/// Sends SIGKILL to a server that answers to no other signal.
pub fn kill_server(data: &Path) {
    if let Some(pid) = server(data) {
        signal(pid, Signal::KILL);
    }
}

/// An account that servers run as; PostgreSQL and MariaDB refuse root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Name of the user.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl Account {
    /// Chooses the account; `None` for that of this process. For root: the directory's owner, or else the user `usual`, or else `nobody`.
    ///
    /// # Errors
    /// The directory cannot be read, or there is no such user.
    pub fn choose(dir: &Path, usual: &str) -> Result<Option<Account>, Failure> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        let metadata = fs::metadata(dir).map_err(|error| Failure::path("look at", dir, &error))?;
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        choose_account(metadata.uid(), metadata.gid(), usual, &passwd).map(Some).ok_or_else(|| {
            Failure::environment(format!("servers do not run as root, and there is neither a user {usual} nor nobody"))
                .advise("run kingpost as another user")
        })
    }

    /// True if the account can enter a directory, by the permission bits of all its ancestors.
    pub fn can_enter(&self, path: &Path) -> bool {
        path.ancestors().all(|part| match fs::metadata(part) {
            Ok(metadata) => {
                let shift = if metadata.uid() == self.uid {
                    6
                } else if metadata.gid() == self.gid {
                    3
                } else {
                    0
                };
                metadata.mode() >> shift & 1 == 1
            }
            Err(_) => part.as_os_str().is_empty(),
        })
    }
}

fn choose_account(owner: u32, group: u32, usual: &str, passwd: &str) -> Option<Account> {
    let mut accounts = passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some(Account { name, uid: fields.nth(1)?.parse().ok()?, gid: fields.next()?.parse().ok()? })
    });
    if owner != 0 {
        let known = accounts.find(|account| account.uid == owner);
        return Some(known.unwrap_or(Account { name: owner.to_string(), uid: owner, gid: group }));
    }
    let accounts: Vec<Account> = accounts.filter(|account| account.uid != 0).collect();
    [usual, "nobody"].iter().find_map(|name| accounts.iter().find(|account| account.name == *name).cloned())
}

/// Makes a command as an account, in a process group of its own, so that a Ctrl-C in the terminal does not reach it, and without environment
/// variables of this process that would change its behaviour. `cwd`: a directory that the account can enter.
pub fn tool(program: &Path, cwd: &Path, account: Option<&Account>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("LC_ALL", "C").current_dir(cwd).stdin(Stdio::null()).process_group(0);
    for name in ["PATH", "TZ", "TMPDIR", "LD_LIBRARY_PATH"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    if let Some(account) = account {
        command.uid(account.uid).gid(account.gid);
    }
    command
}

/// Has the kernel kill this process when its parent ends.
///
/// # Errors
/// The kernel refuses, or the parent, the process `parent`, has ended already.
pub fn end_with_parent(parent: u32) -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Failure::environment(format!("cannot end with the process {parent}: {error}")))?;
    let present = rustix::process::getppid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok());
    match present == Some(parent) {
        true => Ok(()),
        false => Err(Failure::environment(format!("the parent process {parent} has ended"))),
    }
}

/// Runs a tool to its end, with its output in `log`, whose end is in the failure. `name`: the tool in messages; `space`: a path on the file system
/// that it writes to.
///
/// # Errors
/// The tool cannot be started, fails, takes longer than `limit`, or `stop` came; the tool is killed then.
pub async fn run_tool(
    name: &str,
    mut command: Command,
    (log, space): (&Path, &Path),
    limit: Duration,
    stop: impl Future<Output = Failure>,
) -> Result<(), Failure> {
    let (output, errors) = log_file(log, true)?;
    command.stdout(output).stderr(errors).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| Failure::environment(format!("cannot start {name}: {error}")))?;
    let status = tokio::select! {
        status = child.wait() => status.map_err(|error| Failure::runtime(format!("cannot wait for {name}: {error}")))?,
        () = tokio::time::sleep(limit) => {
            let _ = child.kill().await;
            return Err(Failure::runtime(format!("{name} took longer than {} s and was ended", limit.as_secs())));
        }
        failure = stop => {
            let _ = child.kill().await;
            return Err(failure);
        }
    };
    if status.success() {
        return Ok(());
    }
    Err(Failure::environment(format!("{name} failed ({status}); the end of {}:", log.display())).advise(format!(
        "{}\n{}",
        tail(log, 12),
        free_space(space)
    )))
}

/// Opens a log for a program's output and errors. Truncates it if `anew`, or if it has grown beyond 64 MiB.
///
/// # Errors
/// The file cannot be written.
pub fn log_file(path: &Path, anew: bool) -> Result<(File, File), Failure> {
    const LIMIT: u64 = 64 << 20;
    let anew = anew || fs::metadata(path).is_ok_and(|metadata| metadata.len() > LIMIT);
    let mut options = fs::OpenOptions::new();
    options.create(true);
    if anew {
        options.write(true).truncate(true)
    } else {
        options.append(true)
    };
    let open = || -> std::io::Result<(File, File)> {
        let file = options.open(path)?;
        Ok((file.try_clone()?, file))
    };
    open().map_err(|error| Failure::path("write", path, &error))
}

/// Returns the last lines of a file.
pub fn tail(path: &Path, lines: usize) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(8 << 10)))?;
        let mut bytes = Vec::new();
        file.take(8 << 10).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    match read() {
        Ok(text) => {
            let all: Vec<&str> = text.lines().collect();
            all[all.len().saturating_sub(lines)..].join("\n")
        }
        Err(error) => format!("(cannot read it: {error})"),
    }
}

/// Describes the free space on a path's file system, for messages.
pub fn free_space(path: &Path) -> String {
    match rustix::fs::statvfs(path) {
        Ok(stat) => {
            let mib = stat.f_bavail.saturating_mul(stat.f_frsize) >> 20;
            format!("free space at {}: {mib} MiB", path.display())
        }
        Err(error) => format!("free space at {}: unknown ({error})", path.display()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn start_times() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 1000 1 18446744073709551615";
        assert_eq!(parse_stat(stat), Some(777));
        assert_eq!(parse_stat(&stat.replace(" S ", " Z ")), None);
        assert_eq!(parse_stat("garbage"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn accounts() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\nann:x:1000:1001::/home/ann:/bin/sh\n";
        let with_postgres = format!("{passwd}postgres:x:101:104::/var/lib/postgresql:/bin/bash\n");
        for (owner, passwd, expected) in [
            (1000, passwd, Some(("ann", 1000, 1001))),
            (7, passwd, Some(("7", 7, 8))),
            (0, passwd, Some(("nobody", 65534, 65534))),
            (0, with_postgres.as_str(), Some(("postgres", 101, 104))),
            (0, "postgres:x:0:0:::\n", None),
            (0, "", None),
        ] {
            let chosen = choose_account(owner, 8, "postgres", passwd);
            let expected = expected.map(|(name, uid, gid)| Account { name: name.into(), uid, gid });
            assert_eq!(chosen, expected, "{owner} {passwd}");
        }
    }

    #[test]
    fn tails() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        fs::write(&path, "1\n2\n3\n").unwrap();
        assert_eq!(tail(&path, 2), "2\n3");
        assert_eq!(tail(&path, 9), "1\n2\n3");
        assert!(tail(&dir.path().join("none"), 2).contains("cannot read"));
    }

    #[test]
    fn a_server_is_known_by_its_working_directory() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(server(dir.path()), None);
        for file in PID_FILES {
            fs::write(dir.path().join(file), format!("{}\n", std::process::id())).unwrap();
            assert_eq!(server(dir.path()), None, "a process that works elsewhere is not the server");
        }
    }
}
