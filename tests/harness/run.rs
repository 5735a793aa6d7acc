//! The directory of one test run, and the watchdog that removes it when the test process is gone.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A script that reads its standard input until the test process is gone for any reason, then ends the servers with data in the directory and removes
/// it. Statics are never dropped, and a killed process drops nothing: this covers both.
const WATCHDOG: &str = r#"
trap '' INT TERM HUP
cat >/dev/null
for file in "$1"/*/*/postmaster.pid; do
    [ -r "$file" ] || continue
    read -r pid < "$file" || continue
    [ "$(readlink "/proc/$pid/cwd")" = "${file%/postmaster.pid}" ] || continue
    for child in $(cat "/proc/$pid/task/$pid/children"); do kill -CONT "$child"; done
    kill -CONT "$pid"
    kill -QUIT "$pid"
    n=0
    while kill -0 "$pid" && [ $n -lt 100 ]; do sleep 0.05; n=$((n + 1)); done
    kill -KILL "$pid"
done
for file in "$1"/*/mariadb.pid; do
    [ -r "$file" ] || continue
    read -r pid < "$file" || continue
    [ "$(readlink "/proc/$pid/cwd")" = "${file%/mariadb.pid}/data" ] || continue
    kill -KILL "$pid"
done
while read -r _ mounted _; do
    case "$mounted" in "$1"/*) umount -l "$mounted" ;; esac
done < /proc/mounts
rm -rf "$1"
"#;

struct Run {
    dir: PathBuf,
    /// Never waited for: it outlives this process. It notices the end of this process by the closing of its standard input.
    _watchdog: Child,
}

static RUN: OnceLock<Run> = OnceLock::new();
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Returns the directory of this run; everything that the harness writes is below it.
///
/// # Panics
/// When it cannot be made.
pub fn run_dir() -> &'static Path {
    &RUN.get_or_init(|| {
        let mut builder = tempfile::Builder::new();
        let dir = builder.prefix("kingpost-tests-").tempdir_in(parent()).expect("make a directory for this run").keep();
        // The database servers run as another user when the tests run as root.
        std::fs::set_permissions(&dir, Permissions::from_mode(0o755))
            .expect("open the run's directory for the servers");
        let watchdog = Command::new("/bin/sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("start the watchdog");
        Run { dir, _watchdog: watchdog }
    })
    .dir
}

/// Returns the parent of a run's directory: `TMPDIR`; otherwise in memory, if there is plenty; otherwise the directory of temporary files.
///
/// A test makes and removes thousands of files. ext4 does not reuse an inode within seconds of its release, and searches for others: that took a
/// third of the processor's time of all tests.
fn parent() -> PathBuf {
    const MEMORY: &str = "/dev/shm";
    /// In KiB. All tests together need 2 GiB at a time.
    const PLENTY: u64 = 8 << 20;
    if std::env::var_os("TMPDIR").is_some() {
        return std::env::temp_dir();
    }
    let df = Command::new("df").args(["-k", "--output=fstype,avail", MEMORY]).output();
    let df = df.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let room = df.lines().nth(1).and_then(|line| line.trim().strip_prefix("tmpfs")?.trim().parse().ok());
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next());
    let is_plenty = |kibibytes: Option<u64>| kibibytes.is_some_and(|kibibytes| kibibytes >= PLENTY);
    if is_plenty(room) && is_plenty(available.and_then(|number| number.parse().ok())) {
        return MEMORY.into();
    }
    std::env::temp_dir()
}

/// Makes a new, empty directory below [`run_dir`], named after `what`.
///
/// # Panics
/// When it cannot be made.
pub fn new_dir(what: &str) -> PathBuf {
    let dir = run_dir().join(format!("{what}-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    std::fs::create_dir(&dir).unwrap_or_else(|e| panic!("make {}: {e}", dir.display()));
    std::fs::set_permissions(&dir, Permissions::from_mode(0o755)).expect("open a directory for the servers");
    dir
}

/// A directory removed on drop, unless a test is failing: a run of all tests would take 16 GB otherwise.
///
/// In a struct it must be the last field: its writers end first.
#[derive(Debug)]
pub(crate) struct Files(pub PathBuf);

impl Drop for Files {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // The watchdog removes leftovers.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// Returns a number unique in this process, for names of tables, markers and the like.
pub fn unique() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}
