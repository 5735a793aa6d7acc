//! Reserve for a full disk: a switch of timelines needs a whole segment and a history file, and must not wait for free space. Commits may wait for
//! it, and standbys that should follow a new primary.
//!
//! Two files of full length are renamed to the needed files, so that nothing has to be allocated. The preallocator makes them again as soon as there
//! is room, or retention frees the next old segment.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::files::{self, failed};
use super::{Log, LogError, Segment};

/// Name of the reserved segment.
pub(super) const RESERVE_FILE: &str = "kingpost-log.reserve";
/// Name of the reserved history file.
pub(super) const RESERVE_HISTORY_FILE: &str = "kingpost-log.reserve-history";
/// Length of the reserved history file: a history of about a thousand timelines.
const HISTORY_BYTES: u64 = 64 << 10;

impl Log {
    fn reserve(&self) -> PathBuf {
        self.dir.join(RESERVE_FILE)
    }

    fn history_reserve(&self) -> PathBuf {
        self.dir.join(RESERVE_HISTORY_FILE)
    }

    /// True if the reserve has everything that a switch of timelines needs on a full disk.
    #[must_use]
    pub fn has_reserve(&self) -> bool {
        self.reserve().exists() && self.history_reserve().exists()
    }

    /// Creates the missing files.
    ///
    /// # Errors
    /// [`LogError::Io`]: there may be no room.
    pub(super) fn keep_reserve(&self) -> Result<(), LogError> {
        for (path, bytes) in
            [(self.history_reserve(), HISTORY_BYTES), (self.reserve(), self.identity.segment_size.bytes())]
        {
            if path.exists() {
                continue;
            }
            let unfinished = files::unfinished(&path);
            let made = files::create(&unfinished).and_then(|file| {
                #[cfg(test)]
                self.faults.room()?;
                files::zero_fill(&file, 0, bytes)?;
                files::sync(&file)
            });
            if let Err(error) = made {
                let _ = files::remove(&unfinished);
                return Err(failed("make", &unfinished)(error));
            }
            files::rename_durably(&unfinished, &path)?;
        }
        Ok(())
    }

    /// Renames the file of an old segment to the reserved one, if that is missing. False: the old file is unchanged.
    pub(super) fn reserve_from(&self, old: Segment) -> Result<bool, LogError> {
        let (from, to) = (self.path(old), self.reserve());
        let held = || std::fs::metadata(&from).is_ok_and(|file| file.len() == self.identity.segment_size.bytes());
        if to.exists() || !held() {
            return Ok(false);
        }
        files::rename_durably(&from, &to)?;
        Ok(true)
    }

    /// Takes the reserved segment, renamed to `unfinished`, with arbitrary content. None: there is none.
    pub(super) fn take_reserve(&self, unfinished: &Path) -> Result<Option<File>, LogError> {
        let reserve = self.reserve();
        if !reserve.exists() {
            return Ok(None);
        }
        files::rename_durably(&reserve, unfinished)?;
        tracing::info!(file = %unfinished.display(), "the disk is full: the segment kept in reserve is used");
        files::open(unfinished).map(Some)
    }

    /// Writes `content` to `path`, durably, also on a full disk.
    pub(super) fn write_history(&self, path: &Path, content: &[u8]) -> Result<(), LogError> {
        #[cfg(test)]
        let room = self.faults.room().map_err(failed("write", path));
        #[cfg(not(test))]
        let room: Result<(), LogError> = Ok(());
        let error = match room.and_then(|()| files::write_durably(path, content)) {
            Err(error) if error.is_full() && content.len() as u64 <= HISTORY_BYTES => error,
            written => return written,
        };
        let (reserve, unfinished) = (self.history_reserve(), files::unfinished(path));
        if !reserve.exists() {
            return Err(error);
        }
        files::rename_durably(&reserve, &unfinished)?;
        let file = files::open(&unfinished)?;
        let written = files::write_at(&file, content, 0);
        let written = written.and_then(|()| file.set_len(content.len() as u64)).and_then(|()| files::sync(&file));
        written.map_err(failed("write", &unfinished))?;
        files::rename_durably(&unfinished, path)
    }
}
