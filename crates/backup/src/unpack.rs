//! Unpacking of a backup's tar streams: every path is checked, and every file is compared with the manifest.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use crate::manifest::{Manifest, ManifestError};

/// Bytes read at a time.
const PIECE: usize = 256 << 10;

/// Path of the control file, without which no server starts.
pub(crate) const CONTROL: &str = "global/pg_control";
/// Path of the control file until the restore is complete.
pub(crate) const UNFINISHED: &str = "global/pg_control.unfinished";

/// The server's manifest, in a data directory.
pub(crate) const MANIFEST: &str = "backup_manifest";

/// Files of the backup that a restored directory does not get: they are the server's of then, or made anew.
const LEFT_OUT: [&str; 5] =
    ["standby.signal", "recovery.signal", "postmaster.pid", "postmaster.opts", "tablespace_map"];

/// A stream that cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnpackError {
    #[error("cannot read the stream: {0}")]
    Read(io::Error),
    #[error("cannot {tried} {}: {source}", path.display())]
    Write { tried: &'static str, path: PathBuf, source: io::Error },
    #[error("the path {0:?} is not one of a data directory")]
    Path(String),
    #[error("{path} is of the kind {kind:?}, which no backup has")]
    Kind { path: String, kind: char },
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// Checks a path of a stream; returns it without `./`.
pub(crate) fn inside(path: &str) -> Option<String> {
    let mut parts = Vec::new();
    for component in Path::new(path).components() {
        match component {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir => {}
            _ => return None,
        }
    }
    let clean = !path.contains(['\0', '\n', '\r', '\\']);
    clean.then(|| parts.join("/"))
}

/// Unpacks a stream below `to`; without it, only compares. `prefix`: the directory of the stream's files in the manifest, with a slash at its end, or "".
pub(crate) fn unpack(
    stream: impl Read,
    prefix: &str,
    to: Option<&Path>,
    manifest: &mut Manifest,
) -> Result<(), UnpackError> {
    let mut archive = tar::Archive::new(stream);
    let mut buffer = vec![0; PIECE];
    for entry in archive.entries().map_err(UnpackError::Read)? {
        let mut entry = entry.map_err(UnpackError::Read)?;
        let raw = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let path = inside(&raw).ok_or_else(|| UnpackError::Path(raw.clone()))?;
        let kind = entry.header().entry_type();
        let mode = entry.header().mode().map_err(UnpackError::Read)? & 0o777;
        if kind.is_dir() {
            if let Some(to) = to.filter(|_| !path.is_empty()) {
                make_directory(&to.join(&path), mode)?;
            }
            continue;
        }
        if !kind.is_file() || path.is_empty() {
            return Err(UnpackError::Kind { path, kind: char::from(kind.as_byte()) });
        }
        let mut file = match to.filter(|_| !(prefix.is_empty() && LEFT_OUT.contains(&path.as_str()))) {
            Some(to) => {
                let name = if prefix.is_empty() && path == CONTROL { UNFINISHED } else { &path };
                Some((create(&to.join(name), mode)?, to.join(name)))
            }
            None => None,
        };
        let (size, crc) = drain(&mut entry, &mut buffer, |piece| match &mut file {
            Some((file, path)) => {
                let written = file.write_all(piece);
                written.map_err(|source| UnpackError::Write { tried: "write", path: path.clone(), source })
            }
            None => Ok(()),
        })?;
        manifest.check(&format!("{prefix}{path}"), size, crc)?;
    }
    Ok(())
}

/// Reads to the end, and gives `sink` each piece; returns the size and the CRC-32C.
fn drain(
    from: &mut impl Read,
    buffer: &mut [u8],
    mut sink: impl FnMut(&[u8]) -> Result<(), UnpackError>,
) -> Result<(u64, u32), UnpackError> {
    let (mut size, mut crc) = (0_u64, 0);
    loop {
        let got = match from.read(buffer) {
            Ok(0) => return Ok((size, crc)),
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(UnpackError::Read(error)),
        };
        size += got as u64;
        crc = crc32c::crc32c_append(crc, &buffer[..got]);
        sink(&buffer[..got])?;
    }
}

/// Compares every file of a directory with the directory's own manifest; returns their number.
pub(crate) fn compare(dir: &Path) -> Result<usize, UnpackError> {
    let read = |path: &Path| -> io::Result<Vec<u8>> {
        let size = fs::metadata(path)?.len();
        if size > crate::manifest::LARGEST {
            return Err(io::Error::other(format!("it has {size} bytes")));
        }
        fs::read(path)
    };
    let failed = |path: &Path, source| UnpackError::Write { tried: "read", path: path.into(), source };
    let path = dir.join(MANIFEST);
    let mut manifest = Manifest::parse(&read(&path).map_err(|error| failed(&path, error))?)?;
    let mut buffer = vec![0; PIECE];
    // Directories to read, with their paths in the manifest.
    let mut waiting = vec![(dir.to_owned(), String::new())];
    while let Some((directory, inside)) = waiting.pop() {
        let entries = fs::read_dir(&directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        for entry in entries.map_err(|error| failed(&directory, error))? {
            let path = entry.path();
            let inside = format!("{inside}{}", entry.file_name().to_string_lossy());
            // A tablespace is a link.
            let kind = fs::metadata(&path).map_err(|error| failed(&path, error))?;
            if kind.is_dir() {
                waiting.push((path, format!("{inside}/")));
            } else if inside != MANIFEST {
                let mut file = File::open(&path).map_err(|error| failed(&path, error))?;
                let (size, crc) = drain(&mut file, &mut buffer, |_| Ok(()))?;
                manifest.check(&inside, size, crc)?;
            }
        }
    }
    Ok(manifest.finish()?)
}

fn make_directory(path: &Path, mode: u32) -> Result<(), UnpackError> {
    // The owner must be able to write below.
    match fs::DirBuilder::new().recursive(true).mode(mode | 0o700).create(path) {
        Ok(()) => Ok(()),
        Err(source) => Err(UnpackError::Write { tried: "make", path: path.into(), source }),
    }
}

/// Creates a file that is not there; a second one of the same name is an error, and a link is not followed.
fn create(path: &Path, mode: u32) -> Result<File, UnpackError> {
    let open = || OpenOptions::new().write(true).create_new(true).mode(mode | 0o600).open(path);
    let opened = open().or_else(|error| match (error.kind(), path.parent()) {
        (io::ErrorKind::NotFound, Some(parent)) => {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).and_then(|()| open())
        }
        _ => Err(error),
    });
    opened.map_err(|source| UnpackError::Write { tried: "create", path: path.into(), source })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::manifest::tests::manifest;

    fn tar(files: &[(&str, tar::EntryType, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, kind, content) in files {
            let mut header = tar::Header::new_ustar();
            // As a hostile stream has it: the builder's own function refuses.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o600);
            header.set_size(content.len() as u64);
            header.set_cksum();
            builder.append(&header, *content).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn unpacked_and_compared() {
        let (file, dir) = (tar::EntryType::Regular, tar::EntryType::Directory);
        let stream = tar(&[
            ("base/", dir, b""),
            ("base/1", file, b"one"),
            ("standby.signal", file, b""),
            ("global/pg_control", file, b"control"),
        ]);
        let files: [(&str, &[u8]); 3] =
            [("base/1", b"one"), ("standby.signal", b""), ("global/pg_control", b"control")];
        let to = tempfile::tempdir().unwrap();
        let mut parsed = Manifest::parse(&manifest(&files)).unwrap();
        unpack(&stream[..], "", Some(to.path()), &mut parsed).unwrap();
        assert_eq!(parsed.finish(), Ok(3));
        assert_eq!(fs::read(to.path().join("base/1")).unwrap(), b"one");
        assert_eq!(fs::read(to.path().join(UNFINISHED)).unwrap(), b"control");
        assert!(!to.path().join(CONTROL).exists() && !to.path().join("standby.signal").exists());
        let mut parsed = Manifest::parse(&manifest(&files)).unwrap();
        assert!(unpack(&stream[..1400], "", None, &mut parsed).and_then(|()| Ok(parsed.finish()?)).is_err(), "cut");
    }

    #[test]
    fn nothing_is_written_outside() {
        let file = tar::EntryType::Regular;
        for (path, kind) in [
            ("../x", file),
            ("/etc/x", file),
            ("base/../../x", file),
            ("link", tar::EntryType::Symlink),
            ("link", tar::EntryType::Link),
            ("device", tar::EntryType::Char),
        ] {
            let to = tempfile::tempdir().unwrap();
            let inner = to.path().join("data");
            fs::create_dir(&inner).unwrap();
            let mut parsed = Manifest::parse(&manifest(&[(path, b"")])).unwrap();
            assert!(unpack(&tar(&[(path, kind, b"")])[..], "", Some(&inner), &mut parsed).is_err(), "{path}");
            assert_eq!(fs::read_dir(to.path()).unwrap().count(), 1, "{path}");
            assert_eq!(fs::read_dir(&inner).unwrap().count(), 0, "{path}");
        }
    }

    #[test]
    fn a_directory_is_compared_with_its_own_manifest() {
        let dir = tempfile::tempdir().unwrap();
        let (data, elsewhere) = (dir.path().join("data"), dir.path().join("elsewhere"));
        let files: [(&str, &[u8]); 2] = [("base/1", b"one"), ("pg_tblspc/16384/PG_17/2", b"two")];
        for path in [data.join("base"), data.join("pg_tblspc"), elsewhere.join("PG_17")] {
            fs::create_dir_all(path).unwrap();
        }
        std::os::unix::fs::symlink(&elsewhere, data.join("pg_tblspc/16384")).unwrap();
        let write = |path: &str, bytes: &[u8]| fs::write(data.join(path), bytes).unwrap();
        write(MANIFEST, &manifest(&files));
        for (path, content) in files {
            write(path, content);
        }
        assert_eq!(compare(&data).unwrap(), 2);
        let fails = |why: &str| {
            let error = compare(&data).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        write("pg_tblspc/16384/PG_17/2", b"tvo");
        fails("pg_tblspc/16384/PG_17/2 has the CRC-32C");
        write("pg_tblspc/16384/PG_17/2", b"two");
        write("base/3", b"");
        fails("base/3 is not in the server's manifest");
        fs::remove_file(data.join("base/3")).unwrap();
        fs::remove_file(data.join("base/1")).unwrap();
        fails("the first is base/1");
    }

    proptest! {
        #[test]
        fn never_panics(stream in prop::collection::vec(any::<u8>(), 0..2048)) {
            let _ = unpack(&stream[..], "", None, &mut Manifest::default());
        }
    }
}
