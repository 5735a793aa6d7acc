//! Names of files and directories. A file's name comes from a server: it must not lead out of the directory.

use std::fmt;

/// Longest name, in bytes.
const LONGEST: usize = 200;

/// A binary log's name: a base and a number, as `mysql-bin.000012`. Letters, digits, `.`, `-` and `_` only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileName {
    text: String,
    number: u64,
}

impl FileName {
    /// Parses a name; None if it is not a binary log's name, or not an accepted one.
    pub(crate) fn parse(name: &[u8]) -> Option<FileName> {
        let text = std::str::from_utf8(name).ok().filter(|text| text.len() <= LONGEST)?;
        let (base, digits) = text.rsplit_once('.')?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
        (!base.is_empty() && !base.starts_with('.') && base.bytes().all(plain))
            .then(|| FileName { text: text.into(), number })
    }

    /// The name.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the number, which rises with each file of a server.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns the name of an epoch's directory.
pub(crate) fn epoch(epoch: u64, source: u32) -> String {
    format!("{epoch:010}-{source}")
}

/// Parses a directory's name into epoch and source; None if it is not one of the log's.
pub(crate) fn parse_epoch(name: &str) -> Option<(u64, u32)> {
    let (number, source) = name.split_once('-')?;
    let parsed = (number.parse().ok()?, source.parse().ok()?);
    (epoch(parsed.0, parsed.1) == name && parsed.0 > 0).then_some(parsed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_leads_out_of_the_directory_is_no_name() {
        for (name, number) in [("mysql-bin.000012", 12), ("a.b.1", 1), ("bin.1000000", 1_000_000)] {
            assert_eq!(FileName::parse(name.as_bytes()).unwrap().number(), number, "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "bin",
            "bin.",
            ".000001",
            "../bin.000001",
            "/tmp/bin.1",
            "a/b.1",
            "bin.00x",
            "b in.1",
            "bin.+1",
            "b\0.1",
        ] {
            assert!(FileName::parse(name.as_bytes()).is_none(), "{name}");
        }
        assert!(FileName::parse(&[0xff, b'.', b'1']).is_none());
        assert!(FileName::parse(format!("{}.1", "a".repeat(300)).as_bytes()).is_none());
    }

    #[test]
    fn epochs() {
        assert_eq!(parse_epoch(&epoch(12, 7)), Some((12, 7)));
        for name in ["12-7", "0000000012", "0000000000-1", "0000000001-x", "lost+found"] {
            assert_eq!(parse_epoch(name), None, "{name}");
        }
    }
}
