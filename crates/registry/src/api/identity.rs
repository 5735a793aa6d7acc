//! Instance ids of clients of other protocols.
//!
//! An instance id is unique in its namespace. The ids of other registries are unique in a smaller scope: a Consul service id on one node, a Eureka
//! instance id in one application. So two hosts may both register the Consul service `web`. Each protocol has one function here, which makes an
//! instance id from a scope and the client's id. Both fronts and the importer call it.
//!
//! | protocol | scope | example |
//! |---|---|---|
//! | Consul | node of the catalog, or agent: the client's address, whatever the service's | `consul:web@10.0.0.1` |
//! | Eureka | application | `eureka:host-a@ORDERS` |
//! | Nacos | service with its group | `nacos:10.0.0.1#80#DEFAULT@DEFAULT_GROUP%40%40shop` |
//!
//! The client's own id stays in the metadata, under [`CLIENT_ID`], and the front shows that id to its clients.

use crate::model::Digest;
use crate::{Instance, InstanceId, Invalid, NamespaceName};

/// Prefix of metadata keys reserved for fronts: attributes of Consul and Eureka instances that the model lacks. Only the native front shows them.
pub const RESERVED: &str = crate::model::RESERVED;
/// The metadata key of the client's id. Reserved; indexed, so that a front finds an instance by the client's id.
pub const CLIENT_ID: &str = "kingpost.id";

const CONSUL: &str = "consul";
const EUREKA: &str = "eureka";
const NACOS: &str = "nacos";

/// Returns the instance id of the Consul service `id` on `node`. Names of nodes are case-insensitive: the front looks for another spelling first.
///
/// # Errors
/// `id` is empty, longer than an instance id may be, or has a control character.
pub fn consul(namespace: &NamespaceName, node: &str, id: &str) -> Result<InstanceId, Invalid> {
    scoped(namespace, CONSUL, node, id)
}

/// Returns the instance id of the Eureka instance `id` of application `app`. Application names are case-insensitive.
///
/// # Errors
/// Same as for [`consul`].
pub fn eureka(namespace: &NamespaceName, app: &str, id: &str) -> Result<InstanceId, Invalid> {
    scoped(namespace, EUREKA, &app.to_uppercase(), id)
}

/// Returns the instance id of a Nacos instance at `ip` and `port` in a cluster of `service` (`GROUP@@name`): Nacos clients choose no id.
///
/// # Errors
/// Same as for [`consul`].
pub fn nacos(
    namespace: &NamespaceName,
    service: &str,
    cluster: &str,
    ip: &str,
    port: u16,
) -> Result<InstanceId, Invalid> {
    scoped(namespace, NACOS, service, &format!("{ip}#{port}#{cluster}"))
}

/// Returns the id shown to Consul clients: the client's id, or the instance id if another front registered the instance.
pub(super) fn in_consul(instance: &Instance) -> &str {
    client_id(instance, CONSUL)
}

/// Returns the id shown to Eureka clients, like [`in_consul`].
pub(super) fn in_eureka(instance: &Instance) -> &str {
    client_id(instance, EUREKA)
}

/// Returns true if the instance's id was made for a Eureka client.
pub(super) fn is_eureka(instance: &Instance) -> bool {
    is_of(instance, EUREKA)
}

fn is_of(instance: &Instance, protocol: &str) -> bool {
    instance.id.local().strip_prefix(protocol).is_some_and(|rest| rest.starts_with(':'))
}

fn client_id<'a>(instance: &'a Instance, protocol: &str) -> &'a str {
    instance.metadata.get(CLIENT_ID).filter(|_| is_of(instance, protocol)).unwrap_or(instance.id.local())
}

/// Returns `PROTOCOL:ID@SCOPE`. `@` in the scope is escaped as `%40`, so the last `@` ends the id, and no two pairs have the same text. If the text
/// is too long for an instance id, a digest of both parts replaces them.
fn scoped(namespace: &NamespaceName, protocol: &str, scope: &str, id: &str) -> Result<InstanceId, Invalid> {
    // The client's id alone must be a valid id, so that an error names what the client sent.
    InstanceId::new(namespace, id)?;
    let escaped = scope.replace('%', "%25").replace('@', "%40");
    let text = format!("{protocol}:{id}@{escaped}");
    if text.len() <= InstanceId::MAX_BYTES {
        return InstanceId::new(namespace, &text);
    }
    InstanceId::new(namespace, &format!("{protocol}:{}", Digest::of_parts([scope, id])))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn no_two_pairs_have_one_instance_id() {
        let namespace = NamespaceName::default();
        let long = "x".repeat(256);
        let mut seen = std::collections::BTreeSet::new();
        for (scope, id) in [
            ("n1", "web"),
            ("n2", "web"),
            ("n1", "api"),
            ("", "web"),
            ("b@n1", "a"),
            ("n1", "a@b"),
            ("%40", "a"),
            ("@", "a"),
            ("n1", "a@n1"),
            ("n1", &long),
            ("n2", &long),
            (&long, "web"),
        ] {
            assert!(seen.insert(consul(&namespace, scope, id).unwrap()), "{scope} {id}");
            assert!(seen.insert(scoped(&namespace, EUREKA, scope, id).unwrap()), "{scope} {id}");
        }
        assert_eq!(consul(&namespace, "10.0.0.1", "web").unwrap().local(), "consul:web@10.0.0.1");
        assert_eq!(eureka(&namespace, "Orders", "h:1").unwrap().local(), "eureka:h:1@ORDERS");
        assert!(consul(&namespace, "n", "").is_err() && consul(&namespace, "n", "a\nb").is_err());
    }
}
