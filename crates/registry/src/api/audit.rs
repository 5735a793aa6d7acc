//! Audit log of changes: a JSON line per change in a file, and the last changes in memory for queries.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// Number of changes kept in memory.
const REMEMBERED: usize = 10_000;
/// Number of changes that may wait for the file. Further ones are kept in memory only, and counted as lost.
const WAITING: usize = 8_192;
/// Maximum length of a field in bytes. Names have far lower limits, and lists of names are shortened before.
const LONGEST_FIELD: usize = 4_096;
/// Number of bytes read from the end of an existing file.
const READ_BACK: u64 = 4 << 20;

/// An audited change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Time in milliseconds since 1970.
    pub time_ms: i64,
    /// Name of the token; `-` if no token was required.
    pub token: String,
    /// Address of the client.
    pub peer: IpAddr,
    /// The action, for example `putInstance`.
    pub action: String,
    /// The namespace.
    pub namespace: String,
    /// The changed object: an id, a name, or several.
    pub object: String,
}

/// The audit log. Clones share one log.
#[derive(Debug, Clone, Default)]
pub struct AuditLog {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    recent: Mutex<VecDeque<Change>>,
    /// Channel to the writer thread; `None` without a file.
    file: Option<SyncSender<Change>>,
    lost: Arc<AtomicU64>,
}

impl AuditLog {
    /// Opens a log that appends to `path`. Before a write that would make it longer than `most` bytes, the file is renamed to `path.1`, which is
    /// replaced.
    ///
    /// # Errors
    /// The file cannot be opened or read.
    pub fn open(path: &Path, most: u64) -> io::Result<AuditLog> {
        let recent = read_back(path)?;
        let mut file = append(path)?;
        if ends_open(path)? {
            // Ends a line cut off by a crash, so that the next line is not appended to it.
            file.write_all(b"\n")?;
        }
        let (sender, changes) = mpsc::sync_channel(WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        let writer =
            Writer { path: path.to_owned(), written: file.metadata()?.len(), file, most, lost: Arc::clone(&lost) };
        // The thread ends when the log is dropped.
        std::thread::Builder::new().name("audit".into()).spawn(move || writer.run(&changes))?;
        Ok(AuditLog { inner: Arc::new(Inner { recent: Mutex::new(recent), file: Some(sender), lost }) })
    }

    /// Records a change. Never blocks.
    pub fn note(&self, mut change: Change) {
        for text in [&mut change.token, &mut change.action, &mut change.namespace, &mut change.object] {
            let mut end = text.len().min(LONGEST_FIELD);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
        }
        if let Some(file) = &self.inner.file
            && file.try_send(change.clone()).is_err()
        {
            self.inner.lost.fetch_add(1, Ordering::Relaxed);
        }
        remember(&mut self.inner.recent.lock().unwrap_or_else(PoisonError::into_inner), change);
    }

    /// Returns the last `limit` changes for which `fits` returns true, newest first.
    pub fn last(&self, limit: usize, fits: impl Fn(&Change) -> bool) -> Vec<Change> {
        let recent = self.inner.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.iter().rev().filter(|change| fits(change)).take(limit).cloned().collect()
    }

    /// Returns the number of changes not written to the file.
    pub fn lost(&self) -> u64 {
        self.inner.lost.load(Ordering::Relaxed)
    }
}

/// Appends a change; drops the oldest one at the limit.
fn remember(recent: &mut VecDeque<Change>, change: Change) {
    if recent.len() >= REMEMBERED {
        recent.pop_front();
    }
    recent.push_back(change);
}

fn append(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new().create(true).append(true).mode(0o640).open(path)
}

/// Reads the last changes of a file. Skips lines that are cut off.
fn read_back(path: &Path) -> io::Result<VecDeque<Change>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(VecDeque::new()),
        Err(error) => return Err(error),
    };
    let from = file.metadata()?.len().saturating_sub(READ_BACK);
    file.seek(SeekFrom::Start(from))?;
    let mut recent = VecDeque::new();
    for line in BufReader::new(file).split(b'\n') {
        if let Ok(change) = serde_json::from_slice(&line?) {
            remember(&mut recent, change);
        }
    }
    Ok(recent)
}

fn ends_open(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

/// State of the writer thread.
struct Writer {
    path: PathBuf,
    file: File,
    written: u64,
    most: u64,
    lost: Arc<AtomicU64>,
}

impl Writer {
    fn run(mut self, changes: &mpsc::Receiver<Change>) {
        let mut failing = false;
        while let Ok(first) = changes.recv() {
            // Writes all waiting changes at once.
            let mut lines = Vec::new();
            let mut count = 0;
            for change in std::iter::once(first).chain(changes.try_iter().take(WAITING)) {
                // Serialization of our own type does not fail.
                let _ = serde_json::to_writer(&mut lines, &change);
                lines.push(b'\n');
                count += 1;
            }
            let result = self.write(&lines);
            if let Err(error) = &result {
                self.lost.fetch_add(count, Ordering::Relaxed);
                if !failing {
                    tracing::error!(file = %self.path.display(), %error, "changes cannot be written to the audit log");
                }
            }
            failing = result.is_err();
        }
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.written > 0 && self.written + lines.len() as u64 > self.most {
            let mut aside = self.path.clone().into_os_string();
            aside.push(".1");
            std::fs::rename(&self.path, aside)?;
            self.file = append(&self.path)?;
            self.written = 0;
        }
        self.file.write_all(lines)?;
        self.written += lines.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn change(n: i64) -> Change {
        Change {
            time_ms: n,
            token: "app".into(),
            peer: [127, 0, 0, 1].into(),
            action: "putInstance".into(),
            namespace: "default".into(),
            object: format!("i{n}"),
        }
    }

    /// Polls: the writer thread ends some time after its log.
    fn until<T>(found: impl Fn() -> Option<T>, what: &str) -> T {
        for _ in 0..2000 {
            if let Some(found) = found() {
                return found;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("{what} did not come");
    }

    fn closed(log: AuditLog, path: &Path, lines: usize) -> Vec<String> {
        drop(log);
        let read = || -> Vec<String> {
            std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
        };
        until(|| Some(read()).filter(|found| found.len() >= lines), "the lines")
    }

    #[test]
    fn what_is_noted_is_in_the_file_and_known_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let log = AuditLog::open(&path, 1 << 20).unwrap();
        (0..5).for_each(|n| log.note(change(n)));
        assert_eq!(log.last(2, |_| true), [change(4), change(3)]);
        assert_eq!(log.last(9, |change| change.object == "i1"), [change(1)]);
        let lines = closed(log, &path, 5);
        assert_eq!(serde_json::from_str::<Change>(&lines[2]).unwrap(), change(2));
        // A crash in the middle of a line.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"time_ms\":5,\"tok").unwrap();
        let again = AuditLog::open(&path, 1 << 20).unwrap();
        assert_eq!(again.last(9, |_| true).len(), 5);
        again.note(change(6));
        let lines = closed(again, &path, 7);
        assert_eq!(serde_json::from_str::<Change>(&lines[6]).unwrap(), change(6));
    }

    #[test]
    fn a_long_file_is_put_aside_and_what_is_long_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        std::fs::write(&path, "x".repeat(600)).unwrap();
        let log = AuditLog::open(&path, 500).unwrap();
        log.note(Change { object: "ä".repeat(LONGEST_FIELD), ..change(1) });
        assert!(log.last(1, |_| true)[0].object.len() <= LONGEST_FIELD);
        drop(log);
        let aside = until(|| std::fs::read_to_string(dir.path().join("audit.jsonl.1")).ok(), "the file put aside");
        // The cut-off line is terminated, so that the next one is not appended to it.
        assert_eq!(aside, "x".repeat(600) + "\n");
        let line = until(|| std::fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n')), "the new file");
        assert_eq!(line.lines().count(), 1);
    }

    #[test]
    fn memory_has_a_limit() {
        let log = AuditLog::default();
        (0..REMEMBERED as i64 + 10).for_each(|n| log.note(change(n)));
        let all = log.last(usize::MAX, |_| true);
        assert_eq!((all.len(), all[0].time_ms), (REMEMBERED, REMEMBERED as i64 + 9));
        assert_eq!(log.lost(), 0);
    }
}
