//! The directory of a log: created if missing, and used by one process.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::LogError;
use super::files::{self, failed};

/// Name of the file whose lock shows that a process uses the directory.
pub const LOCK_FILE: &str = "kingpost-log.lock";

/// A directory locked for this process, until the last clone of this value is dropped.
#[derive(Debug, Clone)]
pub struct Directory {
    path: PathBuf,
    _locked: Arc<File>,
}

impl Directory {
    /// Creates the directory, durably, if it is missing, and takes its lock.
    ///
    /// # Errors
    /// [`LogError::Locked`]: another process has it, or this one by another [`Directory`]. [`LogError::Io`]: the operating system refuses.
    pub fn open(path: &Path) -> Result<Directory, LogError> {
        let is_new = !path.exists();
        fs::create_dir_all(path).map_err(failed("create directory", path))?;
        if is_new && let Some(parent) = fs::canonicalize(path).map_err(failed("find", path))?.parent() {
            // Acknowledged data must not be lost with the directory's own name.
            files::sync_dir(parent)?;
        }
        let file = path.join(LOCK_FILE);
        let locked = fs::OpenOptions::new().create(true).truncate(false).write(true).open(&file);
        let locked = locked.map_err(failed("open", &file))?;
        match locked.try_lock() {
            Ok(()) => Ok(Directory { path: path.into(), _locked: Arc::new(locked) }),
            Err(fs::TryLockError::WouldBlock) => Err(LogError::Locked { dir: path.into() }),
            Err(fs::TryLockError::Error(error)) => Err(failed("lock", &file)(error)),
        }
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}
