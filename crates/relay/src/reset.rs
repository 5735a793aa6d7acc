//! `kingpost relay reset`: a relay gives up the WAL or the binary logs that it holds, and keeps its promises and its slots. The remedy for a relay
//! that has a gap, or more than a source that is to stay.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::binlog::log as binlog;
use crate::error::StartError;
use crate::log::{self, Directory};
use crate::promise::{NotPromised, PromiseFile};

/// Result of a reset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenUp {
    /// Names of the segments, sorted, including those created ahead of time; or of the binary logs, with their directories.
    pub files: Vec<String>,
    /// True if the files are binary logs.
    pub is_binlog: bool,
    /// Directory that has the files now; None if they were removed.
    pub moved_to: Option<PathBuf>,
    /// The promised term, which stays in force. None: the relay does not know its promises.
    pub term: Option<u64>,
}

/// Moves aside, or removes, the WAL or the binary logs in `dir`; the relay must not run. At its start it begins anew with what its upstream writes.
/// An interrupted reset is completed at the next start.
///
/// # Errors
/// [`StartError`]: the directory is in use, does not belong to a relay, or a file cannot be written.
pub fn reset(dir: &Path, remove: bool) -> Result<GivenUp, StartError> {
    let failed = |source| StartError::Log { dir: dir.into(), source };
    let is_binlog = binlog::is_log(dir);
    if !is_binlog && log::identify(dir).map_err(failed)?.is_none() {
        return Err(StartError::Config(format!("{} holds no WAL of a relay, and no binary log", dir.display())));
    }
    let directory = Directory::open(dir).map_err(failed)?;
    // Promises of an earlier version must not be lost with the rest.
    let promise = match is_binlog {
        true => PromiseFile::open(directory.path())?,
        false => crate::relay::promised(&directory)?,
    };
    match promise.change(|promise| Ok(promise.giving_up(true))) {
        Ok(()) | Err(NotPromised::NoMemory) => {}
        Err(error) => return Err(not_written(error)),
    }
    let moved_to = if remove { None } else { Some(aside(dir)) };
    let files = finish(&directory, &promise, moved_to.as_deref())?;
    Ok(GivenUp { files, is_binlog, moved_to, term: promise.exists().then(|| promise.term()) })
}

/// Completes an interrupted [`reset`]. Remaining files are moved aside.
pub(crate) fn resume(directory: &Directory, promise: &PromiseFile) -> Result<(), StartError> {
    if promise.now().is_giving_up() {
        let to = aside(directory.path());
        let files = finish(directory, promise, Some(&to))?;
        tracing::warn!(files = files.len(), to = %to.display(), "finished giving up the log: a reset had been cut off");
    }
    Ok(())
}

fn finish(directory: &Directory, promise: &PromiseFile, to: Option<&Path>) -> Result<Vec<String>, StartError> {
    let dir = directory.path();
    let failed = |source| StartError::Log { dir: dir.into(), source };
    let files = if binlog::is_log(dir) {
        let failed = |error: binlog::LogError| StartError::Binlog { dir: dir.into(), text: error.to_string() };
        binlog::give_up(dir, to).map_err(failed)?
    } else {
        match log::identify(dir).map_err(failed)? {
            Some(identity) => log::give_up(directory, identity.segment_size, to).map_err(failed)?,
            None => Vec::new(),
        }
    };
    match promise.change(|promise| Ok(promise.giving_up(false))) {
        Ok(()) | Err(NotPromised::NoMemory) => Ok(files),
        Err(error) => Err(not_written(error)),
    }
}

fn not_written(error: NotPromised) -> StartError {
    match error {
        NotPromised::File(error) => error,
        other => StartError::Config(other.to_string()),
    }
}

/// Returns the name of a directory that does not exist.
fn aside(dir: &Path) -> PathBuf {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    (now..).map(|number| dir.join(format!("given-up-{number}"))).find(|path| !path.exists()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use watermark::Lsn;

    use super::*;
    use crate::log::{Identity, Log, LogError, LogOptions, SegmentSize, Start, Timeline};
    use crate::promise::Promise;
    use crate::slots::Slots;

    const IDENTITY: Identity = Identity { system_id: 42, segment_size: SegmentSize::DEFAULT };

    /// Returns a closed relay's directory with some files.
    fn directory() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let promise = PromiseFile::open(dir.path()).unwrap();
        promise.make(Promise::learnt(5, 1, None)).unwrap();
        Slots::open(dir.path()).unwrap().create("a", false, Some((Lsn(0x500_0000), 2)), 1).unwrap();
        let start = Some(Start { timeline: Timeline(2), at: Lsn(0x500_0000) });
        let (mut writer, log) = Log::open(LogOptions { directory, identity: IDENTITY, start, spares: 1 }).unwrap();
        log.store_history(Timeline(2), b"1\t0/4000000\tx\n").unwrap();
        writer.append(Lsn(0x500_0000), &[7; 9000]).unwrap();
        writer.flush().unwrap();
        drop(writer);
        dir
    }

    fn files(dir: &Path) -> Vec<String> {
        let names = std::fs::read_dir(dir).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| !name.starts_with("given-up-")).collect();
        names.sort();
        names
    }

    fn begins_anew(dir: &Path) {
        assert_eq!(
            files(dir),
            ["kingpost-log.lock", "kingpost-log.state", "kingpost-relay.json", "kingpost-relay.promise"]
        );
        let promise = PromiseFile::open(dir).unwrap().now();
        assert_eq!((promise.term(), promise.fenced_up_to(), promise.is_giving_up()), (5, 1, false));
        assert!(Slots::open(dir).unwrap().restart("a").is_some());
        let directory = Directory::open(dir).unwrap();
        let opened = Log::open(LogOptions { directory, identity: IDENTITY, start: None, spares: 1 });
        assert!(matches!(opened.map(|_| ()), Err(LogError::Empty { .. })));
    }

    #[test]
    fn gives_up_wal_and_nothing_else() {
        for remove in [false, true] {
            let dir = directory();
            let given_up = reset(dir.path(), remove).unwrap();
            assert!(given_up.files.contains(&"000000020000000000000005".to_owned()), "{given_up:?}");
            assert_eq!((given_up.term, given_up.moved_to.is_none()), (Some(5), remove));
            if let Some(to) = given_up.moved_to {
                assert!(files(&to).contains(&"00000002.history".to_owned()));
                let kept = std::fs::read(to.join("000000020000000000000005")).unwrap();
                assert!(kept[..9000].iter().all(|byte| *byte == 7));
            }
            begins_anew(dir.path());
            // After `pg_resetwal --wal-segsize`; only for the same cluster.
            let segment_size = SegmentSize::new(64 << 20).unwrap();
            let open = |system_id| {
                let directory = Directory::open(dir.path()).unwrap();
                let start = Some(Start { timeline: Timeline(2), at: Lsn(0x800_0000) });
                let identity = Identity { system_id, segment_size };
                Log::open(LogOptions { directory, identity, start, spares: 1 }).map(|_| ())
            };
            assert!(matches!(open(43), Err(LogError::OtherCluster { .. })));
            open(IDENTITY.system_id).unwrap();
            let held = log::identify(dir.path()).unwrap().map(|identity| identity.segment_size);
            assert_eq!(held, Some(segment_size));
        }
    }

    /// Killed after the promise to give up, and after any of the files.
    #[test]
    fn cut_off_it_is_finished_at_the_next_start() {
        let whole = files(directory().path()).len();
        for moved in 0..whole {
            let dir = directory();
            let promise = PromiseFile::open(dir.path()).unwrap();
            promise.change(|old| Ok(old.giving_up(true))).unwrap();
            let gone: Vec<String> =
                files(dir.path()).into_iter().filter(|name| !name.starts_with("kingpost")).collect();
            for name in gone.iter().take(moved) {
                std::fs::remove_file(dir.path().join(name)).unwrap();
            }
            let directory = Directory::open(dir.path()).unwrap();
            resume(&directory, &PromiseFile::open(dir.path()).unwrap()).unwrap();
            drop(directory);
            begins_anew(dir.path());
        }
    }

    #[test]
    fn refuses_what_is_in_use_or_no_relays() {
        let dir = tempfile::tempdir().unwrap();
        assert!(reset(dir.path(), false).unwrap_err().to_string().contains("holds no WAL"));
        let dir = directory();
        let taken = Directory::open(dir.path()).unwrap();
        assert!(reset(dir.path(), false).unwrap_err().to_string().contains("in use by another process"));
        drop(taken);
        assert!(files(dir.path()).len() > 4, "nothing was touched");
    }
}
