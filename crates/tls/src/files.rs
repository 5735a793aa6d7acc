//! Certificates and keys from files.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Maximum length of a file in bytes: a bundle of all public CAs has about 250 KB.
const LONGEST: u64 = 2 << 20;

/// Files with the CAs that the system trusts, by distribution: Debian and its derivatives, Red Hat, Alpine and the BSDs.
const SYSTEM_AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Returns the PEM file with the CAs that the system trusts. If there is none, returns its path on Debian, so that the error of reading it names the
/// missing file.
pub fn system_authorities() -> &'static Path {
    let found = SYSTEM_AUTHORITIES.iter().map(Path::new).find(|path| path.exists());
    found.unwrap_or(Path::new(SYSTEM_AUTHORITIES[0]))
}

/// An error in a setting of TLS. Contains no contents of any file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A missing file that other settings require.
    #[error("{setting} is missing: {why}")]
    Missing {
        /// Name of the setting.
        setting: &'static str,
        /// Purpose of the file.
        why: &'static str,
    },
    /// A file that cannot be read.
    #[error("cannot read {setting} {}: {why}", path.display())]
    Unreadable {
        /// Name of the setting.
        setting: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Reason of the failure.
        why: String,
    },
    /// A file with unexpected contents.
    #[error("{setting} {}: {why}", path.display())]
    Contents {
        /// Name of the setting.
        setting: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Description of the fault.
        why: String,
    },
    /// A private key that other users may read.
    #[error(
        "key_file {} has mode {mode:03o} and owner {owner}: others may use it; expected 600 of the user that Kingpost runs as, or \
         640 of root (chmod 600)",
        path.display()
    )]
    Exposed {
        /// Path of the file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
        /// User id of the file's owner.
        owner: u32,
    },
}

impl Error {
    /// Returns the name of the faulty setting.
    #[must_use]
    pub fn setting(&self) -> &'static str {
        match self {
            Error::Missing { setting, .. } | Error::Unreadable { setting, .. } | Error::Contents { setting, .. } => {
                setting
            }
            Error::Exposed { .. } => "key_file",
        }
    }
}

/// A setting that names a file.
#[derive(Clone, Copy)]
pub(crate) struct File<'a> {
    pub(crate) setting: &'static str,
    pub(crate) path: &'a Path,
}

impl File<'_> {
    pub(crate) fn contents(self, why: impl Into<String>) -> Error {
        Error::Contents { setting: self.setting, path: self.path.to_owned(), why: why.into() }
    }

    fn read(self, secret: bool) -> Result<Vec<u8>, Error> {
        let unreadable = |why: String| Error::Unreadable { setting: self.setting, path: self.path.to_owned(), why };
        // Checked before opening: opening a pipe would wait for its writer.
        let metadata = std::fs::metadata(self.path).map_err(|e| unreadable(e.to_string()))?;
        if !metadata.is_file() {
            return Err(unreadable("not a file".into()));
        }
        if metadata.len() > LONGEST {
            return Err(unreadable(format!("{} bytes, expected at most {LONGEST}", metadata.len())));
        }
        let user = rustix::process::geteuid().as_raw();
        if secret && is_exposed(metadata.mode(), metadata.uid(), user) {
            let (mode, owner) = (metadata.mode() & 0o777, metadata.uid());
            return Err(Error::Exposed { path: self.path.to_owned(), mode, owner });
        }
        let mut bytes = Vec::new();
        let file = std::fs::File::open(self.path).map_err(|e| unreadable(e.to_string()))?;
        file.take(LONGEST).read_to_end(&mut bytes).map_err(|e| unreadable(e.to_string()))?;
        Ok(bytes)
    }

    /// Reads all certificates of a PEM file; at least one.
    pub(crate) fn certificates(self) -> Result<Vec<CertificateDer<'static>>, Error> {
        let bytes = self.read(false)?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
        match found {
            Ok(found) if found.is_empty() => Err(self.contents("found no certificate, expected one in PEM form")),
            Ok(found) => Ok(found),
            Err(error) => Err(self.contents(format!("not a PEM file: {error}"))),
        }
    }

    /// Reads the private key of a PEM file.
    pub(crate) fn key(self) -> Result<PrivateKeyDer<'static>, Error> {
        let bytes = self.read(true)?;
        let expected = "expected one in PEM form (PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY)";
        match PrivateKeyDer::from_pem_slice(&bytes) {
            Ok(key) => Ok(key),
            Err(pem::Error::NoItemsFound) if contains(&bytes, b"ENCRYPTED") => Err(self.contents(
                "the key is protected by a passphrase, which nobody could give after a restart; expected one without",
            )),
            Err(pem::Error::NoItemsFound) => Err(self.contents(format!("found no private key, {expected}"))),
            // The parser's own message could quote the file.
            Err(_) => Err(self.contents(format!("not a PEM file, {expected}"))),
        }
    }

    /// Reads the CAs of a PEM file.
    pub(crate) fn authorities(self) -> Result<RootCertStore, Error> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|error| self.contents(format!("a certificate cannot be used: {error}")))?;
        }
        Ok(roots)
    }
}

fn contains(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|window| window == word)
}

/// True if other users than this process's may read the key. PostgreSQL's rule: root may grant it to a group.
fn is_exposed(mode: u32, owner: u32, user: u32) -> bool {
    match owner {
        0 => mode & 0o027 != 0,
        owner => owner != user || mode & 0o077 != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::is_exposed;

    #[test]
    fn who_may_read_a_key() {
        for (mode, owner, user, exposed) in [
            (0o100_600, 70, 70, false),
            (0o100_400, 70, 70, false),
            (0o100_640, 70, 70, true),
            (0o100_604, 70, 70, true),
            (0o100_600, 71, 70, true),
            (0o100_640, 0, 70, false),
            (0o100_600, 0, 0, false),
            (0o100_644, 0, 0, true),
            (0o100_660, 0, 0, true),
        ] {
            assert_eq!(is_exposed(mode, owner, user), exposed, "{mode:o} of {owner} for {user}");
        }
    }
}
