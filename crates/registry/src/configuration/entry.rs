//! Entries, and the requests on them: plain values.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use md5::{Digest as _, Md5};

use super::audience::Audience;
use crate::error::WriteError;
use crate::model::{Invalid, Revision, check_text, visible};

::settings::settings! {
    /// Limits of the configuration service.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ConfigLimits: Default {
        /// Bytes of one entry's content: up to 4 MiB. A form has up to three bytes for one of them: registry.body_bytes must allow it.
        pub content_bytes: usize = 1 << 20, range(0, 4 << 20);
        /// Rows of a namespace: each entry is one, and each gray release, draft, older version and removed entry that is kept.
        pub rows: usize = 1_000_000, range(0, 1 << 30);
        /// Bytes of all rows of a namespace.
        pub bytes: usize = 256 << 20, range(0, 1 << 40);
        /// Older versions kept for each entry.
        pub history: usize = 10, range(0, 100);
        /// Removed entries kept for each namespace, with their last version.
        pub removed: usize = 1000, range(0, 10_000);
        /// Prefix under which Consul's clients read and write the entries as keys: "config" for the keys config/GROUP/ID. Empty: they do not.
        pub consul_keys: String = String::new();
    }
}

/// Maximum number and length of an entry's tags.
const MOST_TAGS: usize = 16;
const TAG_BYTES: usize = 64;

/// An entry's name within its namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigKey {
    group: Arc<str>,
    id: Arc<str>,
}

impl ConfigKey {
    /// Maximum length of a group, in bytes.
    pub const GROUP_BYTES: usize = 128;
    /// Maximum length of a data id, in bytes.
    pub const ID_BYTES: usize = 256;

    /// Validates a group and a data id.
    ///
    /// # Errors
    /// One of them is empty, too long, or has a character that is not allowed.
    pub fn new(group: &str, id: &str) -> Result<ConfigKey, Invalid> {
        check_text("group", group, 1, Self::GROUP_BYTES)?;
        check_text("data id", id, 1, Self::ID_BYTES)?;
        if group.contains('/') {
            return Err(Invalid::Character { what: "group", allowed: "no slash" });
        }
        visible("group", group)?;
        visible("data id", id)?;
        Ok(ConfigKey { group: group.into(), id: id.into() })
    }

    /// Returns the group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Returns the data id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// True for the name of an entry that clients of Nacos encrypt: such an entry is a secret.
    pub fn is_encrypted(&self) -> bool {
        self.id.starts_with("cipher-")
    }
}

impl fmt::Display for ConfigKey {
    /// Writes `GROUP/ID`, the name by which policies decide.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.id)
    }
}

/// A version of an entry. `Debug` leaves the content out.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigEntry {
    /// The name.
    pub key: ConfigKey,
    /// The content: text in UTF-8.
    pub content: Bytes,
    /// MD5 of the content, in hexadecimal: the version by which Nacos' clients compare.
    pub md5: String,
    /// The content's type: `text`, `json`, `yaml`, `properties` …
    pub kind: String,
    /// A description.
    pub description: String,
    /// The application that the entry belongs to.
    pub app: String,
    /// Tags.
    pub tags: Vec<String>,
    /// True if the content must not be shown in the console.
    pub secret: bool,
    /// The key with which the client has encrypted the content, itself encrypted.
    pub cipher_key: String,
    /// Number of the version, from 1.
    pub version: u64,
    /// The version that this one restored; 0 for none.
    pub restored: u64,
    /// Name of the token that published the version.
    pub author: String,
    /// Time of the publication, in milliseconds since 1970.
    pub time: i64,
    /// Time of the first publication, in milliseconds since 1970.
    pub created: i64,
    /// The clients that get this content, for a gray release; empty for a version.
    pub audience: Audience,
    /// The removal, for the last version of a removed entry.
    pub removal: Option<Removal>,
    /// The revision of the row.
    pub revision: Revision,
}

/// Author and time of a removal.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Removal {
    /// Name of the token.
    pub author: String,
    /// The time, in milliseconds since 1970.
    pub time: i64,
}

impl fmt::Debug for ConfigEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, version, bytes) = (&self.key, &self.version, self.content.len());
        f.debug_struct("ConfigEntry").field("key", key).field("version", version).field("bytes", &bytes).finish()
    }
}

impl ConfigEntry {
    /// Returns the content as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.content).unwrap_or_default()
    }
}

/// A content to publish. A value that is `None` stays as it is. `Debug` leaves the content out.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct NewConfig {
    /// The content.
    pub content: String,
    /// The type.
    pub kind: Option<String>,
    /// The description.
    pub description: Option<String>,
    /// The application.
    pub app: Option<String>,
    /// The tags.
    pub tags: Option<Vec<String>>,
    /// True for a secret.
    pub secret: Option<bool>,
    /// The encrypted key of an encrypted content.
    pub cipher_key: Option<String>,
}

impl fmt::Debug for NewConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewConfig").field("bytes", &self.content.len()).finish_non_exhaustive()
    }
}

impl NewConfig {
    /// Makes a publication of `content`, with everything else as it is.
    pub fn new(content: impl Into<String>) -> NewConfig {
        NewConfig { content: content.into(), ..NewConfig::default() }
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// The exceeded limit.
    pub fn check(&self, limits: &ConfigLimits) -> Result<(), Invalid> {
        let at_most = |what, found, limit| {
            if found > limit { Err(Invalid::TooLong { what, found, limit }) } else { Ok(()) }
        };
        at_most("content, in bytes", self.content.len(), limits.content_bytes)?;
        if self.content.contains('\0') {
            return Err(Invalid::Character { what: "content", allowed: "no NUL" });
        }
        for (what, value, most) in [
            ("type", &self.kind, 32),
            ("description", &self.description, 1024),
            ("application", &self.app, 128),
            ("encrypted key", &self.cipher_key, 4096),
        ] {
            check_text(what, value.as_deref().unwrap_or_default(), 0, most)?;
        }
        let tags = self.tags.as_deref().unwrap_or_default();
        at_most("tags", tags.len(), MOST_TAGS)?;
        tags.iter().try_for_each(|tag| check_text("tag", tag, 1, TAG_BYTES))
    }
}

/// Condition of a publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// No condition.
    Anything,
    /// The current content has this MD5.
    Md5(String),
    /// The current content has this MD5, or there is no entry: Nacos' condition.
    Md5OrAbsent(String),
    /// The current row has this revision; 0: there is no entry.
    Revision(Revision),
}

/// Reason why an entry was not changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConfigError {
    /// The write failed.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The content has another MD5 than expected.
    #[error("{key} was not published: expected the MD5 {expected:?}, found {found:?}; read it again")]
    Changed {
        /// The entry.
        key: ConfigKey,
        /// The expected MD5.
        expected: String,
        /// The MD5 found; empty if there is no entry.
        found: String,
    },
    /// The entry has another revision than expected.
    #[error("{key} was not changed: expected the revision {expected}, found {found}; read it again")]
    Stale {
        /// The entry.
        key: ConfigKey,
        /// The expected revision.
        expected: Revision,
        /// The revision found; 0 if there is no entry.
        found: Revision,
    },
    /// The entry to create exists.
    #[error("{key} exists, as a version or as a draft")]
    Exists {
        /// The entry.
        key: ConfigKey,
    },
    /// The entry to change or to release does not exist.
    #[error("{key} does not exist, neither as a version nor as a draft")]
    Absent {
        /// The entry.
        key: ConfigKey,
    },
    /// The history lacks the version.
    #[error("{key} has no version {version}")]
    NoVersion {
        /// The entry.
        key: ConfigKey,
        /// The version.
        version: u64,
    },
}

impl From<Invalid> for ConfigError {
    fn from(invalid: Invalid) -> ConfigError {
        ConfigError::Write(invalid.into())
    }
}

/// Returns the MD5 of a content, in hexadecimal.
pub fn md5_of(content: &[u8]) -> String {
    use std::fmt::Write as _;

    Md5::digest(content).iter().fold(String::with_capacity(32), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn names() {
        let long = "x".repeat(257);
        for (group, id, good) in [
            ("DEFAULT_GROUP", "app.yaml", true),
            ("g", "conf/app.yaml", true),
            ("g/h", "a", false),
            ("", "a", false),
            ("g", "", false),
            ("g", "a\tb", false),
            ("g", "a\u{202e}b", false),
            ("g", &long, false),
            (&long[..128], &long[..256], true),
            (&long[..129], "a", false),
        ] {
            assert_eq!(ConfigKey::new(group, id).is_ok(), good, "{group:?} {id:?}");
        }
    }

    #[test]
    fn limits_are_named() {
        let limits = ConfigLimits { content_bytes: 4, ..ConfigLimits::default() };
        let new = |content: &str| NewConfig::new(content);
        assert!(new("abcd").check(&limits).is_ok());
        for (new, word) in [
            (new("abcde"), "content, in bytes: 5"),
            (new("a\0"), "NUL"),
            (NewConfig { kind: Some("x".repeat(33)), ..new("") }, "type"),
            (NewConfig { tags: Some(vec!["a".into(); 17]), ..new("") }, "tags: 17"),
            (NewConfig { tags: Some(vec![String::new()]), ..new("") }, "tag is missing"),
        ] {
            let error = new.check(&limits).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        assert_eq!(md5_of(b"hello"), "5d41402abc4b2a76b9719d911017c592");
    }
}
