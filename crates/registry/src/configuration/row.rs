//! Rows of entries: the key, and the value: a line of JSON, then the content.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::audience::Audience;
use super::entry::{ConfigEntry, ConfigKey, Removal};
use crate::model::Revision;

/// Kind of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The current version.
    Current,
    /// The gray release.
    Gray,
    /// A content that was written and not released yet.
    Draft,
    /// An older version.
    Version(u64),
    /// The last version of a removed entry.
    Removed,
}

impl Place {
    /// Returns the row's key.
    pub(crate) fn key(self, of: &ConfigKey) -> String {
        match self {
            Place::Current => Place::current(&of.to_string()),
            Place::Gray => format!("g/{of}"),
            Place::Draft => format!("d/{of}"),
            // A name has no control character, so the tab ends it.
            Place::Version(version) => format!("{}{version:020}", Place::versions(of)),
            Place::Removed => format!("r/{of}"),
        }
    }

    /// Returns the prefix of the keys of all current versions whose name begins with `name`.
    pub(crate) fn current(name: &str) -> String {
        format!("c/{name}")
    }

    /// Returns the prefix of the keys of all older versions.
    pub(crate) fn versions(of: &ConfigKey) -> String {
        format!("h/{of}\t")
    }
}

/// Parses a row's key; `None` for a key that is no row of an entry.
pub(crate) fn place(key: &str) -> Option<(Place, ConfigKey)> {
    let (kind, rest) = key.split_once('/')?;
    let (name, version) = match kind {
        "h" => {
            let (name, version) = rest.split_once('\t')?;
            (name, version.parse().ok()?)
        }
        _ => (rest, 0),
    };
    let (group, id) = name.split_once('/')?;
    let place = match kind {
        "c" => Place::Current,
        "g" => Place::Gray,
        "d" => Place::Draft,
        "h" => Place::Version(version),
        "r" => Place::Removed,
        _ => return None,
    };
    Some((place, ConfigKey::new(group, id).ok()?))
}

/// The line of JSON. Fields of a newer program are dropped.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Head {
    v: u64,
    md5: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    desc: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    app: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    secret: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    cipher_key: String,
    #[serde(skip_serializing_if = "is_zero")]
    restored: u64,
    by: String,
    at: i64,
    made: i64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    to: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    labels: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    removed: Option<Removal>,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Returns a row's value.
pub(crate) fn encode(entry: &ConfigEntry) -> Bytes {
    let head = Head {
        v: entry.version,
        md5: entry.md5.clone(),
        kind: entry.kind.clone(),
        desc: entry.description.clone(),
        app: entry.app.clone(),
        tags: entry.tags.clone(),
        secret: entry.secret,
        cipher_key: entry.cipher_key.clone(),
        restored: entry.restored,
        by: entry.author.clone(),
        at: entry.time,
        made: entry.created,
        to: entry.audience.addresses().to_vec(),
        labels: entry.audience.labels().to_vec(),
        removed: entry.removal.clone(),
    };
    // A struct of texts and numbers is always JSON.
    let mut value = serde_json::to_vec(&head).unwrap_or_default();
    value.push(b'\n');
    value.extend_from_slice(&entry.content);
    value.into()
}

/// Parses a row's value; `None` if it is none.
pub(crate) fn decode(key: &ConfigKey, value: &Bytes, revision: Revision) -> Option<ConfigEntry> {
    let end = value.iter().position(|byte| *byte == b'\n')?;
    let head: Head = serde_json::from_slice(&value[..end]).ok()?;
    let content = value.slice(end + 1..);
    std::str::from_utf8(&content).ok()?;
    Some(ConfigEntry {
        key: key.clone(),
        content,
        md5: head.md5,
        kind: head.kind,
        description: head.desc,
        app: head.app,
        tags: head.tags,
        secret: head.secret,
        cipher_key: head.cipher_key,
        version: head.v,
        restored: head.restored,
        author: head.by,
        time: head.at,
        created: head.made,
        audience: Audience::stored(head.to, head.labels),
        removal: head.removed,
        revision,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_come_apart_where_they_were_put_together() {
        let key = ConfigKey::new("g", "conf/a b.yaml").unwrap();
        for kind in [Place::Current, Place::Gray, Place::Draft, Place::Version(12), Place::Removed] {
            assert_eq!(place(&kind.key(&key)), Some((kind, key.clone())));
        }
        assert!(Place::Version(9).key(&key) < Place::Version(10).key(&key));
        for wrong in ["", "c", "c/g", "x/g/a", "h/g/a", "h/g/a\tx", "c//a", "c/g/"] {
            assert_eq!(place(wrong), None, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn rows_come_back(content in "(?s).{0,64}", kind in "\\PC{0,8}", version in any::<u64>(), secret in any::<bool>()) {
            let key = ConfigKey::new("g", "a").unwrap();
            let entry = ConfigEntry {
                key: key.clone(), content: content.clone().into(), md5: "m".into(), kind, description: "d\nd".into(),
                app: String::new(), tags: vec!["t".into()], secret, cipher_key: String::new(), version, restored: 3,
                author: "a".into(), time: 1, created: 2,
                audience: Audience::new(vec!["::1".into()], vec!["a=b".into()]).unwrap(),
                removal: Some(Removal { author: "b".into(), time: 4 }), revision: Revision(7),
            };
            prop_assert_eq!(decode(&key, &encode(&entry), Revision(7)), Some(entry));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            super::super::read_config_row(&bytes);
        }
    }
}
