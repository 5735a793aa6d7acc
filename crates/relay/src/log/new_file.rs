//! A file for somebody else's directory: it gets its name when it is complete and durable.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::LogError;
use super::files::{self, failed};

/// A file that is being written under another name. It is removed again if it is dropped before it is complete.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    unfinished: PathBuf,
    target: PathBuf,
    complete: bool,
}

impl NewFile {
    /// Begins the file `target`, empty. What an earlier attempt has left is written over.
    ///
    /// # Errors
    /// [`LogError::Io`]: it cannot be made.
    pub fn create(target: &Path) -> Result<NewFile, LogError> {
        let unfinished = files::unfinished(target);
        let file = files::create(&unfinished).map_err(failed("make", &unfinished))?;
        Ok(NewFile { file, unfinished, target: target.into(), complete: false })
    }

    /// Copies all of `source` to it.
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

    /// Makes it so many bytes long, with zeroes behind what was written.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn extend_to(&mut self, bytes: u64) -> Result<(), LogError> {
        self.file.set_len(bytes).map_err(failed("extend", &self.unfinished))
    }

    /// Makes what was written durable.
    pub(super) fn sync(&self) -> Result<(), LogError> {
        files::sync(&self.file).map_err(failed("flush", &self.unfinished))
    }

    /// Makes it durable and gives it its name.
    ///
    /// # Errors
    /// [`LogError::Io`]: there is no such file then.
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
            // What is left over is written over by the next attempt.
            let _ = std::fs::remove_file(&self.unfinished);
        }
    }
}
