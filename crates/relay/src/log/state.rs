//! The one small file beside the WAL: whose it is, and the highest term that was promised to.
//!
//! ```text
//! kingpost-log 1
//! system-id 7339581467219530125
//! segment-size 16777216
//! term 0
//! crc32c 1b2c3d4e
//! ```
//!
//! Text, so that it can be read in an emergency; the checksum is over the lines before it. It is replaced as a whole.

use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

use super::files::{failed, write_durably};
use super::{Identity, LogError, SegmentSize};

/// Its name.
pub const STATE_FILE: &str = "kingpost-log.state";

const VERSION_LINE: &str = "kingpost-log 1";
/// More than it can have.
const MAX_BYTES: usize = 4096;

/// What it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    pub(super) identity: Identity,
    pub(super) term: u64,
}

impl State {
    /// `None` if there is no such file.
    pub(super) fn read(dir: &Path) -> Result<Option<State>, LogError> {
        let path = dir.join(STATE_FILE);
        let content = match fs::read(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        match parse(&content) {
            Ok(state) => Ok(Some(state)),
            Err(reason) => Err(LogError::State { path, reason }),
        }
    }

    pub(super) fn write(&self, dir: &Path) -> Result<(), LogError> {
        write_durably(&dir.join(STATE_FILE), self.render().as_bytes())
    }

    fn render(&self) -> String {
        let mut text = format!(
            "{VERSION_LINE}\nsystem-id {}\nsegment-size {}\nterm {}\n",
            self.identity.system_id,
            self.identity.segment_size.bytes(),
            self.term
        );
        let crc = crc32c::crc32c(text.as_bytes());
        let _ = writeln!(text, "crc32c {crc:08x}");
        text
    }
}

fn parse(content: &[u8]) -> Result<State, String> {
    if content.len() > MAX_BYTES {
        return Err(format!("{} bytes are too many", content.len()));
    }
    let text = std::str::from_utf8(content).map_err(|_| "not text")?;
    let mut lines = text.lines();
    let version = lines.next().unwrap_or("");
    if version != VERSION_LINE {
        return Err(format!("begins with {version:?}, and this version reads {VERSION_LINE:?}"));
    }
    let mut number = |key: &str| {
        let line = lines.next().unwrap_or("");
        let value = line.strip_prefix(key).and_then(|rest| rest.strip_prefix(' ')).and_then(|value| value.parse().ok());
        value.ok_or_else(|| format!("{line:?} where {key} and a number were expected"))
    };
    let system_id: u64 = number("system-id")?;
    let segment_size = SegmentSize::new(number("segment-size")?).map_err(|error| error.to_string())?;
    let term = number("term")?;
    let state = State { identity: Identity { system_id, segment_size }, term };
    // One way to write it: what is otherwise the same, but not written so, was not written by us.
    if state.render() != text {
        return Err("its checksum does not fit its lines".into());
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn state() -> State {
        State {
            identity: Identity { system_id: 7_339_581_467_219_530_125, segment_size: SegmentSize::DEFAULT },
            term: 3,
        }
    }

    #[test]
    fn round_trip_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(State::read(dir.path()).unwrap(), None);
        state().write(dir.path()).unwrap();
        assert_eq!(State::read(dir.path()).unwrap(), Some(state()));
        let later = State { term: 4, ..state() };
        later.write(dir.path()).unwrap();
        assert_eq!(State::read(dir.path()).unwrap(), Some(later));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing left beside it");
    }

    #[test]
    fn rejects() {
        let good = state().render();
        for (text, part) in [
            (String::new(), "begins with"),
            (good.replace("kingpost-log 1", "kingpost-log 2"), "this version reads"),
            (good.replace("term 3", "term 4"), "checksum"),
            (good.replace("term 3", "term"), "where term"),
            (good.replace("term 3", "term 03"), "checksum"),
            (good.replace("16777216", "16777217"), "power of two"),
            (format!("{good}\n"), "checksum"),
            ("x".repeat(5000), "too many"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn every_cut_and_every_changed_byte_is_seen(cut in 0_usize..90, at in 0_usize..90, to: u8) {
            let good = state().render().into_bytes();
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
