//! Configuration of an archive.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

::settings::settings! {
    /// `[relay.archive]`: object storage or a directory that all WAL of the relay goes to.
    #[derive(Clone, PartialEq)]
    pub struct ArchiveConfig: Default {
        /// The archive: s3://BUCKET/PREFIX, or the absolute path of a directory that exists. "": none. With an archive, WAL leaves the relay's disk
        /// only when it is there, whatever relay.max_bytes says.
        pub url: String = String::new();
        /// Address of a service that speaks S3: https://host:port. "": Amazon's, of the region.
        pub endpoint: String = String::new();
        /// Region of the bucket.
        pub region: String = "us-east-1".into();
        /// Credentials for S3, KEY_ID:SECRET or KEY_ID:SECRET:SESSION_TOKEN: this, or a file, or a command.
        pub credentials: Option<String> = None, secret(), example(r#""AKIAEXAMPLE:change-me-five""#);
        /// File that holds the credentials in its first line. Read again when the service refuses them.
        pub credentials_file: Option<PathBuf> = None, example(r#""/etc/kingpost/archive.credentials""#);
        /// Program, by its absolute path, and its arguments: the first line that it writes is the credentials. Run again when the service refuses them.
        pub credentials_command: Vec<String> = Vec::new(), example(r#"["/usr/local/bin/archive-credentials"]"#);
        /// CAs that the service's certificate is verified with, instead of the system's.
        pub ca_file: Option<PathBuf> = None, example(r#""/etc/kingpost/archive-ca.crt""#);
        /// File of keys that everything in the archive is encrypted with: a line of 64 hexadecimal digits a key, as `openssl rand -hex 32` writes. The last
        /// one encrypts, each decrypts. Read again while the relay runs.
        pub key_file: Option<PathBuf> = None, example(r#""/etc/kingpost/archive.keys""#);
        /// Compression of new objects: "zstd"; "lz4", which takes less of the processor and more room; or "none".
        pub compression: Codec = Codec::Zstd;
        /// Time after which new WAL of a segment that is not whole yet is archived as a part.
        pub interval: Duration = Duration::from_secs(5);
        /// Longest time of one request.
        pub timeout: Duration = Duration::from_secs(30);
        /// The relay raises an alarm when the archive has been behind for this long.
        pub alarm_after: Duration = Duration::from_secs(60);
    }
}

::settings::settings! {
    /// Encoding of an object's payload.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Codec {
        /// The raw bytes.
        None = "none",
        /// Zstandard.
        Zstd = "zstd",
        /// LZ4's frame format.
        Lz4 = "lz4",
    }
}

impl fmt::Debug for ArchiveConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ArchiveConfig");
        shown.field("url", &self.url).field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl ArchiveConfig {
    /// True if an archive is configured.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.url.is_empty()
    }

    /// Returns a text that differs for two archives.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{} {}", self.url, self.endpoint)
    }

    /// Returns the directory; None for another kind of archive.
    #[must_use]
    pub fn directory(&self) -> Option<&Path> {
        self.url.starts_with('/').then(|| Path::new(&self.url))
    }

    /// Returns the bucket and the prefix, without slashes around it; None for another kind of archive.
    #[must_use]
    pub fn bucket(&self) -> Option<(&str, &str)> {
        let rest = self.url.strip_prefix("s3://")?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        (!bucket.is_empty()).then(|| (bucket, prefix.trim_matches('/')))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn urls() {
        for (url, directory, bucket) in [
            ("", None, None),
            ("/srv/wal", Some("/srv/wal"), None),
            ("s3://b", None, Some(("b", ""))),
            ("s3://b/", None, Some(("b", ""))),
            ("s3://b/of/main/", None, Some(("b", "of/main"))),
            ("s3:///x", None, None),
            ("srv/wal", None, None),
        ] {
            let config = ArchiveConfig { url: url.into(), ..ArchiveConfig::default() };
            assert_eq!(config.directory(), directory.map(Path::new), "{url}");
            assert_eq!(config.bucket(), bucket, "{url}");
        }
    }

    #[test]
    fn debug_has_no_secret() {
        let config = ArchiveConfig { credentials: Some("AKIA:hush".into()), ..ArchiveConfig::default() };
        assert!(!format!("{config:?}").contains("hush"));
    }
}
