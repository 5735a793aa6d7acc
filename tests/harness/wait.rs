//! Waiting for a condition, with a limit, and with the logs of all processes if it is not met.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Limit for anything that should take well under a second, on a busy machine.
pub const SOON: Duration = Duration::from_secs(30);

/// Shortest and longest pause between two looks at a condition. Most looks are a connection of their own, which costs a server a process.
const POLL: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(50));
const TAIL_LINES: usize = 30;
const TAIL_BYTES: usize = 256 << 10;
const LINE_CHARS: usize = 400;

/// Calls `condition` until it returns a value.
///
/// # Panics
/// After `limit`, with the tails of all logs in the directory `logs`.
pub async fn wait_until<T>(
    what: &str,
    limit: Duration,
    logs: &Path,
    mut condition: impl AsyncFnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        // The condition itself may hang, as with a connection to a stopped server.
        let left = limit.saturating_sub(start.elapsed()).max(POLL.1);
        if let Ok(Some(value)) = tokio::time::timeout(left, condition()).await {
            return value;
        }
        let waited = start.elapsed();
        if waited >= limit {
            panic!("waited {limit:?} in vain for {what}\n{}", tails(logs));
        }
        // A tenth of the wait at most is lost by the pause.
        tokio::time::sleep((waited / 10).clamp(POLL.0, POLL.1)).await;
    }
}

/// Awaits `work`.
///
/// # Panics
/// After `limit`, with the tails of all logs in the directory `logs`.
pub async fn within<T>(what: &str, limit: Duration, logs: &Path, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, work).await {
        Ok(value) => value,
        Err(_) => panic!("not done after {limit:?}: {what}\n{}", tails(logs)),
    }
}

/// Returns the last lines of each `*.log` in a directory.
pub fn tails(dir: &Path) -> String {
    let mut out = String::new();
    let Ok(entries) = std::fs::read_dir(dir) else { return out };
    let mut logs: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    logs.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    logs.sort();
    for path in logs {
        let bytes = std::fs::read(&path).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(TAIL_BYTES)..]);
        let lines: Vec<&str> = text.lines().collect();
        let _ = writeln!(out, "--- {}", path.display());
        for line in &lines[lines.len().saturating_sub(TAIL_LINES)..] {
            let _ = writeln!(out, "{}", line.chars().take(LINE_CHARS).collect::<String>());
        }
    }
    out
}

/// A guard that prints the logs when its test panics. A fixture shared by tests is never dropped, so each test takes one of these.
#[derive(Debug)]
pub struct ShowLogs<'a>(pub &'a Path);

impl Drop for ShowLogs<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", tails(self.0));
        }
    }
}
