//! The server's manifest of a base backup: files with sizes and checksums.

use std::collections::HashMap;

use archive::Checksum;
use serde::Deserialize;

/// Most bytes of a manifest: some millions of files.
pub(crate) const LARGEST: u64 = 1 << 30;

/// The files of a manifest, and those that were found.
#[derive(Debug, Default)]
pub(crate) struct Manifest {
    files: HashMap<String, Expected>,
}

#[derive(Debug)]
struct Expected {
    size: u64,
    /// CRC-32C; None for another algorithm, or none.
    crc: Option<u32>,
    seen: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Whole {
    files: Vec<File>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    path: Option<String>,
    #[serde(rename = "Encoded-Path")]
    encoded: Option<String>,
    size: u64,
    #[serde(rename = "Checksum-Algorithm")]
    algorithm: Option<String>,
    checksum: Option<String>,
}

/// A backup that is not what the server's manifest says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error("the server's manifest is damaged: {0}")]
    Damaged(String),
    #[error("{0} is not in the server's manifest")]
    Unknown(String),
    #[error("{0} is twice in the backup")]
    Twice(String),
    #[error("{path} has {found} bytes, and the server's manifest says {expected}")]
    Size { path: String, found: u64, expected: u64 },
    #[error("{path} has the CRC-32C {found:08x}, and the server's manifest says {expected:08x}")]
    Sum { path: String, found: u32, expected: u32 },
    #[error("{count} files of the server's manifest are missing, the first is {first}")]
    Missing { count: usize, first: String },
}

impl Manifest {
    /// Parses a manifest, and checks its own checksum.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        let damaged = |why: &str| ManifestError::Damaged(why.into());
        const LAST: &[u8] = b"\"Manifest-Checksum\"";
        let at =
            bytes.windows(LAST.len()).rposition(|window| window == LAST).ok_or_else(|| damaged("it has no end"))?;
        let rest = String::from_utf8_lossy(&bytes[at + LAST.len()..]).into_owned();
        let sum = Checksum::of(&bytes[..at]).to_string();
        if !rest.contains(&sum) {
            return Err(damaged("its checksum is another"));
        }
        let whole: Whole = serde_json::from_slice(bytes).map_err(|error| damaged(&error.to_string()))?;
        let mut files = HashMap::with_capacity(whole.files.len());
        for file in whole.files {
            let path = match (file.path, file.encoded) {
                (Some(path), None) => path,
                (None, Some(encoded)) => {
                    let bytes = unhex(&encoded).ok_or_else(|| damaged("a path"))?;
                    String::from_utf8_lossy(&bytes).into_owned()
                }
                _ => return Err(damaged("a file without a path")),
            };
            let crc = match (file.algorithm.as_deref(), file.checksum) {
                (Some("CRC32C"), Some(hex)) => {
                    let bytes =
                        unhex(&hex).and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| damaged("a checksum"))?;
                    Some(u32::from_le_bytes(bytes))
                }
                _ => None,
            };
            if files.insert(path.clone(), Expected { size: file.size, crc, seen: false }).is_some() {
                return Err(damaged(&format!("{path} is twice in it")));
            }
        }
        Ok(Manifest { files })
    }

    /// Compares a file of the backup.
    pub(crate) fn check(&mut self, path: &str, size: u64, crc: u32) -> Result<(), ManifestError> {
        let file = self.files.get_mut(path).ok_or_else(|| ManifestError::Unknown(path.into()))?;
        if std::mem::replace(&mut file.seen, true) {
            return Err(ManifestError::Twice(path.into()));
        }
        if file.size != size {
            return Err(ManifestError::Size { path: path.into(), found: size, expected: file.size });
        }
        match file.crc {
            Some(expected) if expected != crc => Err(ManifestError::Sum { path: path.into(), found: crc, expected }),
            _ => Ok(()),
        }
    }

    /// Checks that every file was there; returns their number.
    pub(crate) fn finish(&self) -> Result<usize, ManifestError> {
        // WAL is in the manifest only if it is in the backup, which ours never have.
        let mut missing: Vec<&String> =
            self.files.iter().filter(|(_, file)| !file.seen).map(|(path, _)| path).collect();
        missing.sort();
        match missing.first() {
            None => Ok(self.files.len()),
            Some(first) => Err(ManifestError::Missing { count: missing.len(), first: (*first).clone() }),
        }
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    /// Makes a manifest as servers do.
    pub(crate) fn manifest(files: &[(&str, &[u8])]) -> Vec<u8> {
        let lines = files.iter().map(|(path, content)| {
            let crc: String = crc32c::crc32c(content).to_le_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
            let size = content.len();
            format!(r#"{{ "Path": "{path}", "Size": {size}, "Last-Modified": "x", "Checksum-Algorithm": "CRC32C", "Checksum": "{crc}" }}"#)
        });
        let lines = lines.collect::<Vec<_>>().join(",\n");
        let text = format!(
            "{{ \"PostgreSQL-Backup-Manifest-Version\": 1,\n\"Files\": [\n{lines}\n],\n\"WAL-Ranges\": [\n],\n"
        );
        let sum = Checksum::of(text.as_bytes());
        format!("{text}\"Manifest-Checksum\": \"{sum}\"}}\n").into_bytes()
    }

    #[test]
    fn files_are_compared() {
        let bytes = manifest(&[("PG_VERSION", b"15\n"), ("base/1/2", b"xy")]);
        let mut parsed = Manifest::parse(&bytes).unwrap();
        let crc = crc32c::crc32c;
        assert_eq!(parsed.check("PG_VERSION", 3, crc(b"15\n")), Ok(()));
        assert!(matches!(parsed.check("PG_VERSION", 3, crc(b"15\n")), Err(ManifestError::Twice(_))));
        assert!(matches!(parsed.finish(), Err(ManifestError::Missing { count: 1, .. })));
        assert!(matches!(parsed.check("other", 1, 1), Err(ManifestError::Unknown(_))));
        for (content, wrong) in [(&b"xyz"[..], true), (b"xz", true), (b"xy", false)] {
            let mut parsed = Manifest::parse(&bytes).unwrap();
            assert_eq!(parsed.check("base/1/2", content.len() as u64, crc(content)).is_err(), wrong);
        }
    }

    #[test]
    fn a_changed_manifest_is_noticed() {
        let bytes = manifest(&[("PG_VERSION", b"15\n")]);
        let changed = String::from_utf8(bytes).unwrap().replace("PG_VERSION", "PG_VERSIOM");
        assert!(matches!(Manifest::parse(changed.as_bytes()), Err(ManifestError::Damaged(_))));
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Manifest::parse(&bytes);
        }
    }
}
