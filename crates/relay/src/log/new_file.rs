//! A file in another program's directory: it gets its name when it is complete and durable.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use watermark::Lsn;

use super::files::{self, failed};
use super::wal::{PAGE_BYTES, is_page};
use super::{Identity, LogError, Segment};

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

    /// Makes a segment durable and gives it its name. False: the server's own file of that segment, in the same directory, has more WAL; the new file
    /// is removed then. A server replaces its own file by what its `restore_command` brings, and would lack WAL that it has replayed: it could not
    /// become primary, nor start again by itself.
    ///
    /// # Errors
    /// [`LogError::Io`]: the file does not exist then.
    pub fn complete_segment(self, identity: &Identity, segment: Segment) -> Result<bool, LogError> {
        let own = self.target.with_file_name(segment.name(identity.segment_size));
        if own != self.target
            && let Ok(file) = File::open(&own)
        {
            let held = wal_bytes(&file, identity, segment).map_err(failed("read", &own))?;
            if held > wal_bytes(&self.file, identity, segment).map_err(failed("read", &self.unfinished))? {
                return Ok(false);
            }
        }
        self.complete()?;
        Ok(true)
    }
}

/// Returns the number of bytes up to the last one that is not 0 in the segment's unbroken run of pages. What a recycled file has behind it belongs to
/// another address, and counts only within the last page.
fn wal_bytes(file: &File, identity: &Identity, segment: Segment) -> io::Result<u64> {
    let size = identity.segment_size;
    let mut page = [0; PAGE_BYTES];
    let mut bytes = 0;
    for offset in (0..size.bytes()).step_by(PAGE_BYTES) {
        match file.read_exact_at(&mut page, offset) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            read => read?,
        }
        if !is_page(identity, Lsn(size.start(segment.number).0 + offset), &page) {
            break;
        }
        bytes = offset + page.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
    }
    Ok(bytes)
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.complete {
            // The next attempt overwrites leftovers.
            let _ = std::fs::remove_file(&self.unfinished);
        }
    }
}
