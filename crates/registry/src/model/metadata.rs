//! An ordered map of strings in one allocation.

use std::fmt;
use std::sync::Arc;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap as _;

use super::limits::{self, Invalid, Limits};

/// Metadata of an instance or service: keys in order, each once. A clone shares the text.
///
/// One string, `key NUL value NUL …`: keys and values hold no NUL (PostgreSQL could not store one), so nothing needs
/// escaping. The arithmetic for 200,000 instances with 8 entries of 20 bytes: 176 bytes of text and 16 of header are
/// 38 MB. A table of interned strings with counted 8-byte handles would be 128 bytes an instance where all strings repeat,
/// and 128 + 16 x 32 where values are unique (ids, addresses): better by 13 MB in the best case, worse by 90 in the worst.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Metadata(Arc<str>);

impl Metadata {
    /// From pairs in any order.
    ///
    /// # Errors
    /// When a key is empty, a key is there twice, or a key or value holds a NUL.
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
                return Err(Invalid::Character { what: "metadata", allowed: "anything but NUL" });
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

    /// Keys and values, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut parts = self.0.split_terminator('\0');
        std::iter::from_fn(move || Some((parts.next()?, parts.next()?)))
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(k, _)| *k == key).map(|(_, v)| v)
    }

    /// How many entries.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As a JSON object, keys in order: the form it has in the store.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| "{}".into())
    }

    pub(crate) fn as_text(&self) -> &str {
        &self.0
    }

    pub(crate) fn check(&self, limits: &Limits) -> Result<(), Invalid> {
        let (mut entries, mut bytes) = (0, 0);
        for (key, value) in self.iter() {
            limits::at_most("metadata key, in bytes", key.len(), limits.metadata_key_bytes)?;
            limits::at_most("metadata value, in bytes", value.len(), limits.metadata_value_bytes)?;
            entries += 1;
            bytes += key.len() + value.len();
        }
        limits::at_most("metadata entries", entries, limits.metadata_entries)?;
        limits::at_most("metadata, in bytes", bytes, limits.metadata_bytes)
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
    /// From a map of strings.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Metadata, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings to strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let mut pairs: Vec<(std::borrow::Cow<'de, str>, std::borrow::Cow<'de, str>)> = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Metadata::from_pairs(pairs).map_err(serde::de::Error::custom)
            }
        }
        deserializer.deserialize_map(Pairs)
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
            map in proptest::collection::btree_map("[^\0]{1,6}", "[^\0]{0,6}", 0..6),
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
        assert!(serde_json::from_str::<Metadata>(r#"{"a":1}"#).is_err());
    }

    #[test]
    fn each_limit_is_named() {
        let limits = Limits {
            metadata_entries: 2,
            metadata_key_bytes: 3,
            metadata_value_bytes: 4,
            metadata_bytes: 10,
            ..Limits::default()
        };
        for (pairs, expected) in [
            (vec![("abc", "1234")], None),
            (vec![("abcd", "")], Some("metadata key, in bytes")),
            (vec![("a", "12345")], Some("metadata value, in bytes")),
            (vec![("a", ""), ("b", ""), ("c", "")], Some("metadata entries")),
            (vec![("abc", "1234"), ("b", "123")], Some("metadata, in bytes")),
        ] {
            let found = match Metadata::from_pairs(pairs).unwrap().check(&limits) {
                Ok(()) => None,
                Err(Invalid::TooLong { what, .. }) => Some(what),
                Err(other) => panic!("{other}"),
            };
            assert_eq!(found, expected);
        }
    }
}
