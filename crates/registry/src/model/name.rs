//! Names. Whoever holds one of these types holds a checked one.

use std::fmt;
use std::sync::Arc;

use super::limits::{self, Invalid};

/// A namespace: 1 to 64 of `A-Z a-z 0-9 . _ -`. So `/` ends it in the text of a key without ambiguity.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceName(Arc<str>);

/// A service in its namespace. As text `namespace/name`; ordered by that text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey(Key);

/// An instance in its namespace, in whichever service: registering the same id in another service of the namespace moves
/// it. As text `namespace/id`; ordered by that text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(Key);

/// `namespace/rest`; only `namespace` is free of `/`. One allocation, shared by whoever holds it.
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
    /// Longest name, in bytes.
    pub const MAX_BYTES: usize = 64;

    /// Checks `name`.
    ///
    /// # Errors
    /// When it is empty, too long, or holds another character.
    pub fn new(name: &str) -> Result<NamespaceName, Invalid> {
        limits::text("namespace", name, 1, Self::MAX_BYTES)?;
        if name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
            Ok(NamespaceName(name.into()))
        } else {
            Err(Invalid::Character { what: "namespace", allowed: "letters, digits, '.', '_' and '-'" })
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for NamespaceName {
    /// `default`.
    fn default() -> NamespaceName {
        NamespaceName("default".into())
    }
}

// === impl ServiceKey ===

impl ServiceKey {
    /// Longest name within the namespace, in bytes.
    pub const MAX_BYTES: usize = 256;

    /// Service `name` of `namespace`: 1 to 256 bytes of UTF-8 without control characters.
    ///
    /// # Errors
    /// When `name` is empty, too long, or holds a control character.
    pub fn new(namespace: &NamespaceName, name: &str) -> Result<ServiceKey, Invalid> {
        limits::text("service name", name, 1, Self::MAX_BYTES)?;
        Ok(ServiceKey(Key::new(namespace, name)))
    }

    /// The service of machines, whose name is a good one.
    pub(super) fn of_machines(namespace: &NamespaceName, name: &'static str) -> ServiceKey {
        ServiceKey(Key::new(namespace, name))
    }

    /// From `namespace/name`.
    ///
    /// # Errors
    /// When either part is not what [`NamespaceName::new`] and [`ServiceKey::new`] take.
    pub fn parse(text: &str) -> Result<ServiceKey, Invalid> {
        let (namespace, name) = text.split_once('/').ok_or(Invalid::Missing { what: "namespace of a service" })?;
        ServiceKey::new(&NamespaceName::new(namespace)?, name)
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        self.0.split().0
    }

    /// The name within the namespace.
    pub fn name(&self) -> &str {
        self.0.split().1
    }

    /// `namespace/name`.
    pub fn as_str(&self) -> &str {
        &self.0.0
    }
}

// === impl InstanceId ===

impl InstanceId {
    /// Longest id within the namespace, in bytes.
    pub const MAX_BYTES: usize = 256;

    /// Instance `id` of `namespace`: 1 to 256 bytes of UTF-8 without control characters.
    ///
    /// # Errors
    /// When `id` is empty, too long, or holds a control character.
    pub fn new(namespace: &NamespaceName, id: &str) -> Result<InstanceId, Invalid> {
        limits::text("instance id", id, 1, Self::MAX_BYTES)?;
        Ok(InstanceId(Key::new(namespace, id)))
    }

    /// From `namespace/id`.
    ///
    /// # Errors
    /// When either part is not what [`NamespaceName::new`] and [`InstanceId::new`] take.
    pub fn parse(text: &str) -> Result<InstanceId, Invalid> {
        let (namespace, id) = text.split_once('/').ok_or(Invalid::Missing { what: "namespace of an instance" })?;
        InstanceId::new(&NamespaceName::new(namespace)?, id)
    }

    /// The id of a registration that gives none: the same for the same service, address and protocol.
    pub fn derived(service: &ServiceKey, host: &str, port: u16, protocol: &str) -> InstanceId {
        let digest = super::Digest::of_parts([service.as_str(), host, &port.to_string(), protocol]);
        let (namespace, _) = service.0.split();
        InstanceId(Key::new(&NamespaceName(namespace.into()), &digest.to_string()))
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        self.0.split().0
    }

    /// The id within the namespace.
    pub fn local(&self) -> &str {
        self.0.split().1
    }

    /// `namespace/id`.
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

        /// As text: a map with this key can be asked by `&str`.
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
