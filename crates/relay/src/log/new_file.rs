//! A file in another program's directory: it gets its name when it is complete and durable.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::LogError;
use super::files::{self, failed};

/// A file that is being written under a temporary name. Dropped before it is complete, it is removed.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    unfinished: PathBuf,
    target: PathBuf,
    complete: bool,
}

impl NewFile {
    /// Starts the file `target`, empty. Leftovers of an earlier attempt are overwritten.
    ///
    /// # Errors
    /// [`LogError::Io`]: the file cannot be created.
    pub fn create(target: &Path) -> Result<NewFile, LogError> {
        let unfinished = files::unfinished(target);
        let file = files::create(&unfinished).map_err(failed("make", &unfinished))?;
        Ok(NewFile { file, unfinished, target: target.into(), complete: false })
    }

    /// Copies all of `source` to the file.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub(super) fn copy(&mut self, source: &mut File) -> Result<(), LogError> {
        std::io::copy(source, &mut self.file).map(|_| ()).map_err(failed("write", &self.unfinished))
    }

    /// Writes at an offset in bytes.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn write_at(&mut self, bytes: &[u8], at: u64) -> Result<(), LogError> {
        files::write_at(&self.file, bytes, at).map_err(failed("write", &self.unfinished))
    }

    /// Extends the file to this length, with zeroes behind the written bytes.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn extend_to(&mut self, bytes: u64) -> Result<(), LogError> {
        self.file.set_len(bytes).map_err(failed("extend", &self.unfinished))
    }

    /// Makes the written bytes durable.
    pub(super) fn sync(&self) -> Result<(), LogError> {
        files::sync(&self.file).map_err(failed("flush", &self.unfinished))
    }

    /// Makes the file durable and gives it its name.
    ///
    /// # Errors
    /// [`LogError::Io`]: the file does not exist then.
    pub fn complete(mut self) -> Result<(), LogError> {
        self.sync()?;
        std::fs::rename(&self.unfinished, &self.target).map_err(failed("rename", &self.unfinished))?;
        self.complete = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.complete {
            // The next attempt overwrites leftovers.
            let _ = std::fs::remove_file(&self.unfinished);
        }
    }
}
