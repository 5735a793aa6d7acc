//! Orphans of a container: as process 1 the agent is the parent of every process whose own parent has ended.

use std::fs;

use rustix::process::{Pid, WaitOptions, waitpid};

/// Most processes that are looked at.
const MOST: usize = 65_536;

/// Waits for ended children, except `but`: the runtime waits for its own.
pub(crate) fn reap(but: Option<u32>) {
    let Ok(entries) = fs::read_dir("/proc") else { return };
    let pids = entries.flatten().take(MOST).filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let own = std::process::id();
    for pid in pids.filter(|pid| Some(*pid) != but) {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if is_ended_child(&stat, own)
            && let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw)
        {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

/// True if a line of `/proc/<pid>/stat` is that of an ended child of `parent`.
fn is_ended_child(stat: &str, parent: u32) -> bool {
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = after_name.split_ascii_whitespace();
    (fields.next(), fields.next().and_then(|ppid| ppid.parse().ok())) == (Some("Z"), Some(parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_children() {
        assert!(is_ended_child("42 (a) b (c)) Z 1 42 42 0", 1));
        assert!(!is_ended_child("42 (a) b (c)) S 1 42 42 0", 1));
        assert!(!is_ended_child("42 (a) Z 7 42", 1));
        assert!(!is_ended_child("", 1));
    }
}
