//! Configuration of an archive.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::location::Location;

::settings::settings! {
    /// `[relay.archive]`: object storage or a directory that all WAL of the relay goes to.
    #[derive(Clone, PartialEq)]
    pub struct ArchiveConfig: Default {
        /// The archive: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX (Google), az://ACCOUNT/CONTAINER/PREFIX (Azure), or the absolute path of a directory that
        /// exists. "": none. With an archive, WAL leaves the relay's disk only when it is there, whatever relay.max_bytes says.
        pub url: String = String::new();
        /// Address of the service, https://host:port; of Azure the address of the account's Blob service. "": Amazon's, Google's or Azure's own.
        pub endpoint: String = String::new();
        /// Region of a bucket of S3.
        pub region: String = "us-east-1".into();
        /// Credentials: this, or a file, or a command. S3: KEY_ID:SECRET or KEY_ID:SECRET:SESSION_TOKEN. Google: a service account's key, or an access
        /// token. Azure: an account key, a shared access signature, TENANT:CLIENT_ID:SECRET, or an access token.
        pub credentials: Option<String> = None, secret(), example(r#""AKIAEXAMPLE:change-me-five""#);
        /// File that holds the credentials in its first line, or a service account's key in JSON. Read again when the service refuses them.
        pub credentials_file: Option<PathBuf> = None, example(r#""/etc/kingpost/archive.credentials""#);
        /// Program, by its absolute path, and its arguments, that writes what the file would hold. Run again when the service refuses them.
        pub credentials_command: Vec<String> = Vec::new(), example(r#"["/usr/local/bin/archive-credentials"]"#);
        /// Use the identity that the cloud gives to this host or pod, in place of credentials.
        pub host_identity: bool = false;
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

    /// Returns the place that the URL means; None for a URL of another form.
    #[must_use]
    pub fn location(&self) -> Option<Location> {
        Location::parse(&self.url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_has_no_secret() {
        let config = ArchiveConfig { credentials: Some("AKIA:hush".into()), ..ArchiveConfig::default() };
        assert!(!format!("{config:?}").contains("hush"));
    }
}
