//! Names. A value of one of these types has always been validated.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::limits::{self, Invalid};

/// Prefixes of the namespaces in which rules, events, tokens with their policies, configuration entries and prepared queries are stored; the rest is
/// a digest of the owning namespace.
const RULES: &str = "kingpost.rules.";
const EVENTS: &str = "kingpost.events.";
const ACL: &str = "kingpost.acl.";
const CONFIG: &str = "kingpost.config.";
const QUERIES: &str = "kingpost.query.";
/// Bytes of the owner's digest in such a name: with the prefix they fit into [`NamespaceName::MAX_BYTES`], and they are enough to make a collision
/// infeasible.
const OWNER_DIGEST: usize = 24;

/// A namespace: 1 to 64 of `A-Z a-z 0-9 . _ -`. Since it contains no `/`, a `/` ends it unambiguously in the text of a key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceName(Arc<str>);

/// A service in its namespace. Its text is `namespace/name`; ordered by that text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey(Key);

/// An instance in its namespace, independent of the service: registering the same id in another service of the namespace moves the instance. Its text
/// is `namespace/id`; ordered by that text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(Key);

/// `namespace/rest`; only `namespace` is free of `/`. One allocation, shared by all clones.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Key(Arc<str>);

impl Key {
    fn new(namespace: &NamespaceName, rest: &str) -> Key {
        let mut text = String::with_capacity(namespace.0.len() + 1 + rest.len());
        text.push_str(&namespace.0);
        text.push('/');
        text.push_str(rest);
        Key(text.into())
    }

    fn split(&self) -> (&str, &str) {
        self.0.split_once('/').unwrap_or(("", &self.0))
    }
}

// === impl NamespaceName ===

impl NamespaceName {
    /// Maximum length of a name, in bytes.
    pub const MAX_BYTES: usize = 64;

    /// Validates `name`.
    ///
    /// # Errors
    /// `name` is empty, too long, contains another character, or is one of those that the registry reserves for itself.
    pub fn new(name: &str) -> Result<NamespaceName, Invalid> {
        match Self::stored(name)? {
            own if own.is_own() => Err(Invalid::Value {
                what: "namespace",
                found: name.to_owned(),
                expected: "another name: the registry keeps its own things under this one",
            }),
            namespace => Ok(namespace),
        }
    }

    /// Returns the reserved namespace of keys in which the registry stores the rules of `namespace`. [`NamespaceName::new`] refuses such a name, so
    /// no client can address it; an older program takes it for an ordinary one.
    pub(crate) fn of_rules(namespace: &NamespaceName) -> NamespaceName {
        own(&namespace.0, RULES)
    }

    /// Returns the reserved namespace for the events of `namespace`, like [`NamespaceName::of_rules`].
    pub(crate) fn of_events(namespace: &NamespaceName) -> NamespaceName {
        own(&namespace.0, EVENTS)
    }

    /// Returns the reserved namespace for the tokens and policies of `scope`, a namespace or `*`, like [`NamespaceName::of_rules`].
    pub(crate) fn of_acl(scope: &str) -> NamespaceName {
        own(scope, ACL)
    }

    /// Returns the reserved namespace for the configuration entries of `namespace`, like [`NamespaceName::of_rules`].
    pub(crate) fn of_config(namespace: &NamespaceName) -> NamespaceName {
        own(&namespace.0, CONFIG)
    }

    /// Returns the reserved namespace for the prepared queries of `namespace`, like [`NamespaceName::of_rules`].
    pub(crate) fn of_queries(namespace: &NamespaceName) -> NamespaceName {
        own(&namespace.0, QUERIES)
    }

    /// True if this is a namespace of configuration entries.
    pub(crate) fn is_of_config(&self) -> bool {
        self.digest_of(CONFIG).is_some()
    }

    /// True if this is a namespace of tokens and policies.
    pub(crate) fn is_of_acl(&self) -> bool {
        self.digest_of(ACL).is_some()
    }

    /// Returns the owner's digest if this is a namespace of rules.
    pub(crate) fn rules_digest(&self) -> Option<&str> {
        self.digest_of(RULES)
    }

    fn digest_of(&self, kind: &str) -> Option<&str> {
        let digest = self.0.strip_prefix(kind)?;
        let hexadecimal = digest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        (digest.len() == 2 * OWNER_DIGEST && hexadecimal).then_some(digest)
    }

    fn is_own(&self) -> bool {
        [RULES, EVENTS, ACL, CONFIG, QUERIES].into_iter().any(|kind| self.digest_of(kind).is_some())
    }

    /// Makes a name as it is stored: one that [`NamespaceName::new`] accepts, or a reserved one.
    ///
    /// # Errors
    /// Same as [`NamespaceName::new`], except that reserved names are accepted.
    pub(crate) fn stored(name: &str) -> Result<NamespaceName, Invalid> {
        limits::text("namespace", name, 1, Self::MAX_BYTES)?;
        if name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
            Ok(NamespaceName(name.into()))
        } else {
            Err(Invalid::Character { what: "namespace", allowed: "letters, digits, '.', '_' and '-'" })
        }
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Makes a reserved name: the kind, and the owner's digest.
fn own(owner: &str, kind: &str) -> NamespaceName {
    use std::fmt::Write as _;

    let digest = Sha256::digest(owner.as_bytes());
    let mut name = String::with_capacity(kind.len() + 2 * OWNER_DIGEST);
    name.push_str(kind);
    for byte in digest.iter().take(OWNER_DIGEST) {
        // Writing into a String never fails.
        let _ = write!(name, "{byte:02x}");
    }
    NamespaceName(name.into())
}

impl Default for NamespaceName {
    /// Returns `default`.
    fn default() -> NamespaceName {
        NamespaceName("default".into())
    }
}

// === impl ServiceKey ===

impl ServiceKey {
    /// Maximum length of a name within the namespace, in bytes.
    pub const MAX_BYTES: usize = 256;

    /// Makes the key of service `name` in `namespace`: 1 to 256 bytes of UTF-8 without control characters.
    ///
    /// # Errors
    /// `name` is empty, too long, or contains a control character.
    pub fn new(namespace: &NamespaceName, name: &str) -> Result<ServiceKey, Invalid> {
        limits::text("service name", name, 1, Self::MAX_BYTES)?;
        Ok(ServiceKey(Key::new(namespace, name)))
    }

    /// Makes the key of the service of machines, whose name needs no validation.
    pub(super) fn of_machines(namespace: &NamespaceName, name: &'static str) -> ServiceKey {
        ServiceKey(Key::new(namespace, name))
    }

    /// Parses `namespace/name`.
    ///
    /// # Errors
    /// [`NamespaceName::new`] or [`ServiceKey::new`] refuses its part.
    pub fn parse(text: &str) -> Result<ServiceKey, Invalid> {
        let (namespace, name) = text.split_once('/').ok_or(Invalid::Missing { what: "namespace of a service" })?;
        ServiceKey::new(&NamespaceName::new(namespace)?, name)
    }

    /// Returns the key in lower case, which all spellings of a name have in common. It may be longer than a name may be.
    pub(crate) fn folded(&self) -> ServiceKey {
        let name = self.name();
        if name.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase()) {
            return self.clone();
        }
        ServiceKey(Key(format!("{}/{}", self.namespace(), name.to_lowercase()).into()))
    }

    /// Returns the namespace.
    pub fn namespace(&self) -> &str {
        self.0.split().0
    }

    /// Returns the name within the namespace.
    pub fn name(&self) -> &str {
        self.0.split().1
    }

    /// Returns `namespace/name`.
    pub fn as_str(&self) -> &str {
        &self.0.0
    }
}

// === impl InstanceId ===

impl InstanceId {
    /// Maximum length of an id within the namespace, in bytes.
    pub const MAX_BYTES: usize = 256;

    /// Makes the id of instance `id` in `namespace`: 1 to 256 bytes of UTF-8 without control characters.
    ///
    /// # Errors
    /// `id` is empty, too long, or contains a control character.
    pub fn new(namespace: &NamespaceName, id: &str) -> Result<InstanceId, Invalid> {
        limits::text("instance id", id, 1, Self::MAX_BYTES)?;
        Ok(InstanceId(Key::new(namespace, id)))
    }

    /// Parses `namespace/id`.
    ///
    /// # Errors
    /// [`NamespaceName::new`] or [`InstanceId::new`] refuses its part.
    pub fn parse(text: &str) -> Result<InstanceId, Invalid> {
        let (namespace, id) = text.split_once('/').ok_or(Invalid::Missing { what: "namespace of an instance" })?;
        InstanceId::new(&NamespaceName::new(namespace)?, id)
    }

    /// Derives an id for a registration without one: the same for the same service, address and protocol.
    pub fn derived(service: &ServiceKey, host: &str, port: u16, protocol: &str) -> InstanceId {
        let digest = super::Digest::of_parts([service.as_str(), host, &port.to_string(), protocol]);
        let (namespace, _) = service.0.split();
        InstanceId(Key::new(&NamespaceName(namespace.into()), &digest.to_string()))
    }

    /// Returns the namespace.
    pub fn namespace(&self) -> &str {
        self.0.split().0
    }

    /// Returns the id within the namespace.
    pub fn local(&self) -> &str {
        self.0.split().1
    }

    /// Returns `namespace/id`.
    pub fn as_str(&self) -> &str {
        &self.0.0
    }
}

macro_rules! as_text {
    ($type:ty, $parse:path) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self.as_str(), f)
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
                $parse(&text).map_err(serde::de::Error::custom)
            }
        }

        impl std::str::FromStr for $type {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<Self, Invalid> {
                $parse(text)
            }
        }

        /// Borrows the text, so that a map with this key can be looked up by `&str`.
        impl std::borrow::Borrow<str> for $type {
            fn borrow(&self) -> &str {
                self.as_str()
            }
        }
    };
}

as_text!(NamespaceName, NamespaceName::new);
as_text!(ServiceKey, ServiceKey::parse);
as_text!(InstanceId, InstanceId::parse);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn namespaces() {
        for (name, good) in [
            ("default", true),
            ("a.b_c-9", true),
            ("", false),
            ("a/b", false),
            ("a b", false),
            ("ä", false),
            (&"x".repeat(64), true),
            (&"x".repeat(65), false),
        ] {
            assert_eq!(NamespaceName::new(name).is_ok(), good, "{name:?}");
        }
    }

    /// The registry's reserved namespaces are never valid client names, and each client namespace has distinct ones.
    #[test]
    fn namespaces_of_rules_and_events_are_the_registrys_own() {
        let longest = "x".repeat(64);
        let names = ["default", "a", "b", longest.as_str(), "kingpost.rules.", "kingpost.rules.a", "kingpost.events."];
        let names: Vec<NamespaceName> = names.iter().map(|name| NamespaceName::new(name).unwrap()).collect();
        let rules: Vec<NamespaceName> = names.iter().map(NamespaceName::of_rules).collect();
        let events: Vec<NamespaceName> = names.iter().map(NamespaceName::of_events).collect();
        assert!(rules.iter().all(|space| space.rules_digest().map(str::len) == Some(48)));
        assert!(events.iter().all(|space| space.rules_digest().is_none()), "events are no rules");
        let acl: Vec<NamespaceName> = names.iter().map(|name| NamespaceName::of_acl(name.as_str())).collect();
        assert!(
            acl.iter().all(|space| space.is_of_acl()) && !rules.iter().chain(&events).any(|space| space.is_of_acl())
        );
        let config: Vec<NamespaceName> = names.iter().map(NamespaceName::of_config).collect();
        assert!(config.iter().all(NamespaceName::is_of_config) && !acl.iter().any(NamespaceName::is_of_config));
        let queries: Vec<NamespaceName> = names.iter().map(NamespaceName::of_queries).collect();
        let all = [rules, events, acl, config, queries, vec![NamespaceName::of_acl("*")]].concat();
        for (index, space) in all.iter().enumerate() {
            assert!(!all[..index].contains(space), "{space}");
            assert!(space.as_str().len() <= NamespaceName::MAX_BYTES, "{space}");
            assert!(NamespaceName::new(space.as_str()).is_err(), "{space}");
            assert!(space.as_str().parse::<NamespaceName>().is_err(), "{space}");
            assert!(ServiceKey::parse(&format!("{space}/s")).is_err(), "{space}");
            assert!(serde_json::from_str::<NamespaceName>(&format!("{:?}", space.as_str())).is_err(), "{space}");
            assert_eq!(NamespaceName::stored(space.as_str()).unwrap(), *space);
        }
        assert_eq!(NamespaceName::new("default").unwrap().rules_digest(), None);
        assert!(NamespaceName::stored("a/b").is_err());
    }

    #[test]
    fn names_may_hold_what_clients_use_but_no_control_characters() {
        let namespace = NamespaceName::default();
        for (name, good) in [
            ("DEFAULT_GROUP@@orders", true),
            ("providers:com.example.Foo:1.0:", true),
            ("a/b", true),
            ("名前", true),
            ("", false),
            ("a\0b", false),
            ("a\nb", false),
            (&"x".repeat(257), false),
        ] {
            assert_eq!(ServiceKey::new(&namespace, name).is_ok(), good, "{name:?}");
            assert_eq!(InstanceId::new(&namespace, name).is_ok(), good, "{name:?}");
        }
    }

    #[test]
    fn a_key_comes_apart_where_it_was_put_together() {
        let key = ServiceKey::new(&NamespaceName::new("ns").unwrap(), "a/b").unwrap();
        assert_eq!((key.namespace(), key.name(), key.as_str()), ("ns", "a/b", "ns/a/b"));
        assert_eq!(ServiceKey::parse("ns/a/b").unwrap(), key);
        assert!(ServiceKey::parse("only").is_err());
    }

    #[test]
    fn a_derived_id_depends_on_each_part() {
        let service = ServiceKey::parse("default/s").unwrap();
        let id = InstanceId::derived(&service, "h", 1, "tcp");
        assert_eq!(id, InstanceId::derived(&service, "h", 1, "tcp"));
        assert_eq!(id.namespace(), "default");
        for other in [
            InstanceId::derived(&ServiceKey::parse("default/t").unwrap(), "h", 1, "tcp"),
            InstanceId::derived(&service, "h1", 1, "tcp"),
            InstanceId::derived(&service, "h", 11, "tcp"),
            InstanceId::derived(&service, "h", 1, ""),
        ] {
            assert_ne!(id, other);
        }
    }
}
