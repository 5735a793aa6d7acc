//! Layout of the keys. All keys begin with `k/PREFIX/`, and then:
//!
//! | | |
//! |---|---|
//! | `c` | the counter: revision, epoch, floor |
//! | `v`, `x` | version of the format; the nodes' secret |
//! | `i/ID` | an instance, or its tombstone |
//! | `s/KEY` | a service, or its tombstone |
//! | `f/REVISION` | the rows that the batch wrote |
//! | `w/WRITER` | a node's last batch |
//! | `n/NODE` | a node |
//! | `k/c`, `k/v` | for keys and sessions: their counter, the version of their format |
//! | `k/r/NAMESPACE/KIND/NAME` | a key or a session, or its tombstone |
//! | `k/f/REVISION` | the keys and sessions that the batch wrote |
//!
//! Numbers are 16 hexadecimal digits: sorted, and readable in a tool. The leading `k` avoids TiDB's keys, which begin with `m` and `t`.

use bytes::Bytes;

use super::super::NodeId;
use crate::model::{InstanceId, Revision, ServiceKey};

/// A key range: the first key, and the first one after it.
pub(super) type Range = (Bytes, Bytes);

/// The keys of one registry.
#[derive(Debug)]
pub(super) struct Keys {
    /// The prefix `k/PREFIX/`.
    root: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Keys {
        Keys { root: format!("k/{prefix}/") }
    }

    fn key(&self, rest: std::fmt::Arguments<'_>) -> Bytes {
        format!("{}{rest}", self.root).into()
    }

    pub(super) fn head(&self) -> Bytes {
        self.key(format_args!("c"))
    }

    pub(super) fn version(&self) -> Bytes {
        self.key(format_args!("v"))
    }

    pub(super) fn secret(&self) -> Bytes {
        self.key(format_args!("x"))
    }

    pub(super) fn instance(&self, id: &InstanceId) -> Bytes {
        self.key(format_args!("i/{}", id.as_str()))
    }

    pub(super) fn service(&self, key: &ServiceKey) -> Bytes {
        self.key(format_args!("s/{}", key.as_str()))
    }

    pub(super) fn feed(&self, revision: Revision) -> Bytes {
        self.key(format_args!("f/{:016x}", revision.0))
    }

    pub(super) fn writer(&self, id: i64) -> Bytes {
        self.key(format_args!("w/{id:016x}"))
    }

    pub(super) fn node(&self, id: NodeId) -> Bytes {
        self.key(format_args!("n/{:016x}", id.0))
    }

    /// Returns the range of all keys of a kind: `0` follows `/`.
    fn all(&self, kind: &str) -> Range {
        (self.key(format_args!("{kind}/")), self.key(format_args!("{kind}0")))
    }

    pub(super) fn instances(&self) -> Range {
        self.all("i")
    }

    pub(super) fn services(&self) -> Range {
        self.all("s")
    }

    pub(super) fn writers(&self) -> Range {
        self.all("w")
    }

    pub(super) fn nodes(&self) -> Range {
        self.all("n")
    }

    pub(super) fn kv_head(&self) -> Bytes {
        self.key(format_args!("k/c"))
    }

    pub(super) fn kv_version(&self) -> Bytes {
        self.key(format_args!("k/v"))
    }

    /// Returns the key of a row. A name may contain any character; a namespace contains no `/`.
    pub(super) fn kv_row(&self, namespace: &str, kind: i64, name: &str) -> Bytes {
        self.key(format_args!("k/r/{namespace}/{kind}/{name}"))
    }

    pub(super) fn kv_rows(&self) -> Range {
        self.all("k/r")
    }

    /// Parses namespace, kind and name of a key or session.
    pub(super) fn of_kv_row<'a>(&self, key: &'a [u8]) -> Option<(&'a str, i64, &'a str)> {
        let (namespace, rest) = self.rest(key, "k/r")?.split_once('/')?;
        let (kind, name) = rest.split_once('/')?;
        Some((namespace, kind.parse().ok()?, name))
    }

    pub(super) fn kv_feed(&self, revision: Revision) -> Bytes {
        self.key(format_args!("k/f/{:016x}", revision.0))
    }

    /// Returns the range of batches of keys and sessions after `after`, up to `last`.
    pub(super) fn kv_feed_between(&self, after: Revision, last: Revision) -> Range {
        (self.kv_feed(Revision(after.0.saturating_add(1))), self.kv_feed(Revision(last.0.saturating_add(1))))
    }

    pub(super) fn revision_of_kv_feed(&self, key: &[u8]) -> Option<Revision> {
        u64::from_str_radix(self.rest(key, "k/f")?, 16).ok().map(Revision)
    }

    /// Returns the range of batches after `after`, up to `last`.
    pub(super) fn feed_between(&self, after: Revision, last: Revision) -> Range {
        (self.feed(Revision(after.0.saturating_add(1))), self.feed(Revision(last.0.saturating_add(1))))
    }

    fn rest<'a>(&self, key: &'a [u8], kind: &str) -> Option<&'a str> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.root)?;
        rest.strip_prefix(kind)?.strip_prefix('/')
    }

    pub(super) fn id_of_instance<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        self.rest(key, "i")
    }

    pub(super) fn id_of_service<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        self.rest(key, "s")
    }

    pub(super) fn revision_of_feed(&self, key: &[u8]) -> Option<Revision> {
        u64::from_str_radix(self.rest(key, "f")?, 16).ok().map(Revision)
    }

    pub(super) fn id_of_node(&self, key: &[u8]) -> Option<NodeId> {
        i64::from_str_radix(self.rest(key, "n")?, 16).ok().map(NodeId)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn keys_say_what_they_are_of_and_stay_in_their_range() {
        let keys = Keys::new("prod/a");
        let id = InstanceId::parse("default/i/1").unwrap();
        assert_eq!(keys.instance(&id), "k/prod/a/i/default/i/1");
        assert_eq!(keys.id_of_instance(&keys.instance(&id)), Some("default/i/1"));
        assert_eq!(keys.id_of_service(&keys.instance(&id)), None);
        assert_eq!(keys.id_of_node(&keys.node(NodeId(i64::MAX))), Some(NodeId(i64::MAX)));
        assert_eq!(Keys::new("prod/b").id_of_instance(&keys.instance(&id)), None, "another registry's");
        for (range, key) in [
            (keys.instances(), keys.instance(&id)),
            (keys.services(), keys.service(&ServiceKey::parse("default/\u{10ffff}").unwrap())),
            (keys.writers(), keys.writer(7)),
            (keys.nodes(), keys.node(NodeId(7))),
            (keys.kv_rows(), keys.kv_row("default", 1, "\u{10ffff}")),
            (keys.kv_rows(), keys.kv_row("default", 0, "")),
            (keys.kv_feed_between(Revision(0), Revision(7)), keys.kv_feed(Revision(7))),
        ] {
            assert!(range.0 <= key && key < range.1, "{key:?}");
            for head in [keys.head(), keys.kv_head(), keys.kv_version()] {
                assert!(head < range.0 || range.1 <= head, "{range:?}");
            }
        }
        for (namespace, kind, name) in [("a", 0, "x/y"), ("a.b", 1, ""), ("a", 0, "/\0ü")] {
            assert_eq!(keys.of_kv_row(&keys.kv_row(namespace, kind, name)), Some((namespace, kind, name)));
        }
        assert_eq!(keys.of_kv_row(&keys.kv_head()), None);
        assert_eq!(keys.revision_of_kv_feed(&keys.kv_feed(Revision(300))), Some(Revision(300)));
        for revision in [1, 9, 10, 255, 256, 1 << 40] {
            let (start, end) = keys.feed_between(Revision(revision - 1), Revision(revision));
            assert!((start..end).contains(&keys.feed(Revision(revision))));
            assert!(keys.feed(Revision(revision)) < keys.feed(Revision(revision + 1)), "in order");
            assert_eq!(keys.revision_of_feed(&keys.feed(Revision(revision))), Some(Revision(revision)));
        }
    }
}
