//! The state file beside the WAL, which identifies the cluster. Written once, when the log begins.
//!
//! ```text
//! kingpost-log 2
//! system-id 7339581467219530125
//! segment-size 16777216
//! crc32c 1b2c3d4e
//! ```
//!
//! Text, so that it can be read in an emergency; the checksum is over the lines before it.
//!
//! Version 1 had one more line, `term 3`, before the checksum; the term is now stored with the other promises, in a file of its own. The caller that
//! takes the term over then calls [`take_over`], so that an earlier version of the program, which would not know later promises, refuses the
//! directory.

use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

use super::error::LogError;
use super::files::{failed, write_durably};
use super::segment::SegmentSize;

/// Name of the file.
pub const STATE_FILE: &str = "kingpost-log.state";

const VERSION_LINE: &str = "kingpost-log 2";
const EARLIER_VERSION_LINE: &str = "kingpost-log 1";
/// Upper bound of its length.
const MAX_BYTES: usize = 4096;

/// The cluster and the segment size of the WAL: fixed for a directory's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's system identifier, as in `IDENTIFY_SYSTEM`.
    pub system_id: u64,
    /// `SHOW wal_segment_size`.
    pub segment_size: SegmentSize,
}

/// Content of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) identity: Identity,
    /// The highest promised term, in a file of version 1.
    term: Option<u64>,
}

/// Reads the file; `None` if it does not exist.
pub(super) fn read(dir: &Path) -> Result<Option<Content>, LogError> {
    let path = dir.join(STATE_FILE);
    let content = match fs::read(&path) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", &path)(error)),
    };
    match parse(&content) {
        Ok(content) => Ok(Some(content)),
        Err(reason) => Err(LogError::State { path, reason }),
    }
}

/// Writes the file; durable on return.
pub(super) fn write(dir: &Path, identity: Identity) -> Result<(), LogError> {
    write_durably(&dir.join(STATE_FILE), render(&Content { identity, term: None }).as_bytes())
}

/// Returns the term in a file of version 1; `None` if there is no file, or a newer one.
///
/// # Errors
/// [`LogError`]: the file cannot be read or believed.
pub fn earlier_term(dir: &Path) -> Result<Option<u64>, LogError> {
    Ok(read(dir)?.and_then(|content| content.term))
}

/// Rewrites a file of version 1 in this version, without the term; durable on return. Other files stay unchanged.
///
/// # Errors
/// [`LogError`]: it cannot be read or written.
pub fn take_over(dir: &Path) -> Result<(), LogError> {
    match read(dir)? {
        Some(Content { identity, term: Some(_) }) => write(dir, identity),
        _ => Ok(()),
    }
}

fn render(content: &Content) -> String {
    let Identity { system_id, segment_size } = content.identity;
    let version = if content.term.is_some() { EARLIER_VERSION_LINE } else { VERSION_LINE };
    let mut text = format!("{version}\nsystem-id {system_id}\nsegment-size {}\n", segment_size.bytes());
    if let Some(term) = content.term {
        let _ = writeln!(text, "term {term}");
    }
    let crc = crc32c::crc32c(text.as_bytes());
    let _ = writeln!(text, "crc32c {crc:08x}");
    text
}

fn parse(content: &[u8]) -> Result<Content, String> {
    if content.len() > MAX_BYTES {
        return Err(format!("{} bytes are too many", content.len()));
    }
    let text = std::str::from_utf8(content).map_err(|_| "not text")?;
    let mut lines = text.lines();
    let version = lines.next().unwrap_or("");
    let has_term = match version {
        VERSION_LINE => false,
        EARLIER_VERSION_LINE => true,
        other => {
            return Err(format!(
                "begins with {other:?}, and this version reads {VERSION_LINE:?} and {EARLIER_VERSION_LINE:?}"
            ));
        }
    };
    let mut number = |key: &str| {
        let line = lines.next().unwrap_or("");
        let value = line.strip_prefix(key).and_then(|rest| rest.strip_prefix(' ')).and_then(|value| value.parse().ok());
        value.ok_or_else(|| format!("{line:?} where {key} and a number were expected"))
    };
    let system_id: u64 = number("system-id")?;
    let segment_size = SegmentSize::new(number("segment-size")?).map_err(|error| error.to_string())?;
    let term = if has_term { Some(number("term")?) } else { None };
    let content = Content { identity: Identity { system_id, segment_size }, term };
    // Only one encoding is valid: a file with another was not written by this program.
    if render(&content) != text {
        return Err("its checksum does not fit its lines".into());
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const IDENTITY: Identity = Identity { system_id: 7_339_581_467_219_530_125, segment_size: SegmentSize::DEFAULT };
    /// A file as version 1 wrote it.
    const EARLIER: &str =
        "kingpost-log 1\nsystem-id 7339581467219530125\nsegment-size 16777216\nterm 3\ncrc32c 98579152\n";

    fn now() -> String {
        render(&Content { identity: IDENTITY, term: None })
    }

    #[test]
    fn round_trip_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        write(dir.path(), IDENTITY).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(Content { identity: IDENTITY, term: None }));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing left beside it");
    }

    #[test]
    fn an_earlier_version_is_read_and_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(earlier_term(dir.path()).unwrap(), None);
        fs::write(dir.path().join(STATE_FILE), EARLIER).unwrap();
        assert_eq!(earlier_term(dir.path()).unwrap(), Some(3));
        take_over(dir.path()).unwrap();
        assert_eq!(earlier_term(dir.path()).unwrap(), None);
        assert_eq!(read(dir.path()).unwrap().map(|content| content.identity), Some(IDENTITY));
        assert_eq!(fs::read_to_string(dir.path().join(STATE_FILE)).unwrap(), now());
        take_over(dir.path()).unwrap();
    }

    #[test]
    fn rejects() {
        for (text, part) in [
            (String::new(), "begins with"),
            (now().replace("kingpost-log 2", "kingpost-log 3"), "this version reads"),
            (now().replace("kingpost-log 2", "kingpost-log 1"), "where term"),
            (EARLIER.replace("term 3", "term 4"), "checksum"),
            (EARLIER.replace("term 3", "term"), "where term"),
            (EARLIER.replace("term 3", "term 03"), "checksum"),
            (now().replace("16777216", "16777217"), "power of two"),
            (format!("{}\n", now()), "checksum"),
            ("x".repeat(5000), "too many"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn every_cut_and_every_changed_byte_is_seen(cut in 0_usize..90, at in 0_usize..90, to: u8) {
            let good = now().into_bytes();
            let cut = cut.min(good.len() - 1);
            prop_assert!(parse(&good[..cut]).is_err());
            let mut changed = good.clone();
            let at = at % changed.len();
            changed[at] = to;
            prop_assert_eq!(parse(&changed).is_ok(), changed == good);
        }

        #[test]
        fn never_panics(content: Vec<u8>) {
            let _ = parse(&content);
        }
    }
}
