//! An ordered map of strings in one allocation.

use std::ffi::CStr;
use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeSeed, MapAccess, Visitor};
use serde::ser::SerializeMap as _;

use super::limits::{self, Invalid, Limits};

/// Metadata of an instance or service: distinct keys in order. A clone shares the text.
///
/// One string, `key NUL value NUL …`: keys and values contain no NUL (PostgreSQL could not store one), so nothing needs escaping. Memory for 200,000
/// instances with 8 entries of 20 bytes: 176 bytes of text and 16 of header are 38 MB. A table of interned strings with counted 8-byte handles would
/// need 128 bytes an instance if all strings repeat, and 128 + 16 x 32 if values are unique (ids, addresses): 13 MB less in the best case, 90 MB more
/// in the worst.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Metadata(Arc<str>);

/// Prefix of the keys of the registry's own entries, which fronts write for what the model lacks.
pub(crate) const RESERVED: &str = "kingpost.";
/// Maximum bytes of the keys and values of all own entries of an instance or service: more than a client's, since one of them has all of Consul's tags.
pub(crate) const OWN_BYTES: usize = 128 * 1024;
/// Maximum number of own entries.
const OWN_ENTRIES: usize = 64;
/// Maximum bytes of the key of an own entry, which may end with a client's id.
const OWN_KEY_BYTES: usize = 256;
/// Number of characters of a key in a message.
const SHOWN: usize = 64;

const NUL: Invalid = Invalid::Character { what: "metadata", allowed: "anything but NUL" };

impl Metadata {
    /// Makes metadata from pairs in any order.
    ///
    /// # Errors
    /// A key is empty or given twice, or a key or value contains a NUL.
    pub fn from_pairs<K: AsRef<str>, V: AsRef<str>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Metadata, Invalid> {
        let mut pairs: Vec<(K, V)> = pairs.into_iter().collect();
        pairs.sort_by(|a, b| a.0.as_ref().cmp(b.0.as_ref()));
        let mut text = String::with_capacity(pairs.iter().map(|(k, v)| k.as_ref().len() + v.as_ref().len() + 2).sum());
        let mut last: Option<&str> = None;
        for (key, value) in &pairs {
            let (key, value) = (key.as_ref(), value.as_ref());
            if key.is_empty() {
                return Err(Invalid::Missing { what: "metadata key" });
            }
            if key.contains('\0') || value.contains('\0') {
                return Err(NUL);
            }
            if last == Some(key) {
                return Err(Invalid::Twice { key: key.to_owned() });
            }
            last = Some(key);
            text.push_str(key);
            text.push('\0');
            text.push_str(value);
            text.push('\0');
        }
        Ok(Metadata(text.into()))
    }

    /// Iterates over keys and values in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut rest = &*self.0;
        let mut next = move || {
            let (part, after) = rest.split_at_checked(nul(rest.as_bytes())?)?;
            rest = after.get(1..)?;
            Some(part)
        };
        std::iter::from_fn(move || Some((next()?, next()?)))
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(k, _)| *k == key).map(|(_, v)| v)
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// True if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the metadata as a JSON object with keys in order, the form stored in the database.
    pub fn to_json(&self) -> String {
        // Quotes, colon and comma need more room than the NULs: for entries of 20 bytes this capacity is enough, so there is one allocation.
        let mut json = Vec::with_capacity(self.0.len() * 3 / 2 + 2);
        match serde_json::to_writer(&mut json, self) {
            Ok(()) => String::from_utf8(json).unwrap_or_else(|_| "{}".into()),
            Err(_) => "{}".into(),
        }
    }

    pub(crate) fn as_text(&self) -> &str {
        &self.0
    }

    pub(crate) fn check(&self, limits: &Limits) -> Result<(), Invalid> {
        let (mut entries, mut bytes, mut own_entries, mut own_bytes) = (0, 0, 0, 0);
        let most = |part, key: &str, found, limit| match found > limit {
            true => Err(Invalid::Entry { part, key: key.chars().take(SHOWN).collect(), found, limit }),
            false => Ok(()),
        };
        for (key, value) in self.iter() {
            super::visible("metadata key", key)?;
            if key.starts_with(RESERVED) {
                most("key", key, key.len(), OWN_KEY_BYTES)?;
                own_entries += 1;
                own_bytes += key.len() + value.len();
                continue;
            }
            most("key", key, key.len(), limits.metadata_key_bytes)?;
            most("value", key, value.len(), limits.metadata_value_bytes)?;
            entries += 1;
            bytes += key.len() + value.len();
        }
        limits::at_most("metadata entries", entries, limits.metadata_entries)?;
        limits::at_most("metadata, in bytes", bytes, limits.metadata_bytes)?;
        limits::at_most("metadata entries that begin with kingpost.", own_entries, OWN_ENTRIES)?;
        limits::at_most("metadata entries that begin with kingpost., in bytes", own_bytes, OWN_BYTES)
    }
}

impl Default for Metadata {
    fn default() -> Metadata {
        Metadata("".into())
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl serde::Serialize for Metadata {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in self.iter() {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> serde::Deserialize<'de> for Metadata {
    /// Reads a map of strings.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Metadata, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings to strings")
            }

            /// Appends each text directly to the result, without an allocation per pair.
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let mut text = String::with_capacity(256);
                let (mut last, mut in_order) = (0..0, true);
                loop {
                    let from = text.len();
                    if map.next_key_seed(Append(&mut text))?.is_none() {
                        break;
                    }
                    let key = from..text.len() - 1;
                    in_order &= !key.is_empty() && (from == 0 || text[last] < text[key.clone()]);
                    last = key;
                    map.next_value_seed(Append(&mut text))?;
                }
                let metadata = Metadata(text.into());
                // Pairs out of order are sorted in from_pairs, which also finds and names invalid ones.
                if in_order {
                    Ok(metadata)
                } else {
                    Metadata::from_pairs(metadata.iter()).map_err(serde::de::Error::custom)
                }
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// Returns the position of the first NUL. Most texts are short, and a search optimised for long ones costs several times as much to begin.
fn nul(bytes: &[u8]) -> Option<usize> {
    const SHORT: usize = 32;
    let far = || Some(SHORT + CStr::from_bytes_until_nul(bytes.get(SHORT..)?).ok()?.count_bytes());
    bytes.iter().take(SHORT).position(|byte| *byte == 0).or_else(far)
}

/// A deserializer seed that appends a text and a NUL to a string.
struct Append<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for Append<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Append<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        if text.contains('\0') {
            return Err(E::custom(NUL));
        }
        self.0.push_str(text);
        self.0.push('\0');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_goes_in_comes_out_in_order_also_through_json(
            map in proptest::collection::btree_map("[^\0]{1,6}", "[^\0]{0,40}", 0..6),
        ) {
            let metadata = Metadata::from_pairs(&map).unwrap();
            let back: Vec<(String, String)> = metadata.iter().map(|(k, v)| (k.into(), v.into())).collect();
            prop_assert_eq!(&back, &map.clone().into_iter().collect::<Vec<_>>());
            for (key, value) in &map {
                prop_assert_eq!(metadata.get(key), Some(value.as_str()));
            }
            let json = metadata.to_json();
            prop_assert_eq!(serde_json::from_str::<Metadata>(&json).unwrap(), metadata);
        }
    }

    #[test]
    fn refuses() {
        assert!(Metadata::from_pairs([("", "v")]).is_err());
        assert!(Metadata::from_pairs([("a\0", "v")]).is_err());
        assert!(Metadata::from_pairs([("a", "v\0")]).is_err());
        assert_eq!(Metadata::from_pairs([("a", "1"), ("a", "2")]), Err(Invalid::Twice { key: "a".into() }));
        for (json, why) in [
            (r#"{"a":1}"#, "expected a string"),
            (r#"{"a":"1","b":null}"#, "expected a string"),
            (r#"{"":"v"}"#, "metadata key"),
            (r#"{"a":"1","b":"2","":"v"}"#, "metadata key"),
            (r#"{"a\u0000":"v"}"#, "NUL"),
            (r#"{"a":"v\u0000"}"#, "NUL"),
            (r#"{"a":"1","a":"2"}"#, "twice"),
            (r#"{"b":"1","a":"2","b":"3"}"#, "twice"),
            (r#"{"a":"1""#, "EOF"),
        ] {
            let error = serde_json::from_str::<Metadata>(json).unwrap_err().to_string();
            assert!(error.contains(why), "{json}: {error}");
        }
    }

    #[test]
    fn json_comes_in_any_order_and_with_escapes() {
        for (json, pairs) in [
            (r#"{}"#, vec![]),
            (r#"{"a":"","b":"2"}"#, vec![("a", ""), ("b", "2")]),
            (r#"{"b":"2","a":""}"#, vec![("a", ""), ("b", "2")]),
            (r#"{"a\n":"\u00e9\"","b":"\\"}"#, vec![("a\n", "é\""), ("b", "\\")]),
        ] {
            assert_eq!(serde_json::from_str::<Metadata>(json).unwrap(), Metadata::from_pairs(pairs).unwrap(), "{json}");
        }
    }

    #[test]
    fn each_limit_is_named() {
        let own = "x".repeat(OWN_BYTES);
        let limits = Limits {
            metadata_entries: 2,
            metadata_key_bytes: 3,
            metadata_value_bytes: 4,
            metadata_bytes: 10,
            ..Limits::default()
        };
        for (pairs, expected) in [
            (vec![("abc", "1234")], None),
            (vec![("abcd", "")], Some("key")),
            (vec![("a", "12345")], Some("value")),
            (vec![("a", ""), ("b", ""), ("c", "")], Some("metadata entries")),
            (vec![("abc", "1234"), ("b", "123")], Some("metadata, in bytes")),
            (vec![("abc", "1234"), ("b", "12"), ("kingpost.a", "12345"), ("kingpost.b", "12345")], None),
            (vec![("kingpost.a", own.as_str())], Some("metadata entries that begin with kingpost., in bytes")),
        ] {
            let found = match Metadata::from_pairs(pairs).unwrap().check(&limits) {
                Ok(()) => None,
                Err(Invalid::TooLong { what, .. } | Invalid::Entry { part: what, .. }) => Some(what),
                Err(other) => panic!("{other}"),
            };
            assert_eq!(found, expected);
        }
        let error = Metadata::from_pairs([("abc", "12345")]).unwrap().check(&limits).unwrap_err().to_string();
        assert_eq!(error, "metadata value of \"abc\", in bytes: 5 is more than the limit of 4");
    }
}
