//! Prometheus finds what to scrape: `GET /prometheus/targets`, the `http_sd` format: a list of groups, each of addresses with
//! labels; `[]` where there is nothing.
//!
//! Parameters: `namespace` (all that the caller may read if not given), `service`, `all` (also what is not usable).

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper::Method;
use serde::Serialize;

use super::auth::Role;
use super::{ApiError, Context, RESERVED, Reply, Request, namespace};
use crate::{Health, Instance, ServiceKey};

/// One group: an instance, for each has labels of its own.
#[derive(Debug, Serialize)]
struct Group {
    targets: [String; 1],
    labels: BTreeMap<String, String>,
}

pub(super) async fn handle(context: &Arc<Context>, request: &Request) -> Result<Reply, ApiError> {
    if request.path() != ["prometheus", "targets"] {
        return Err(ApiError::NoSuchPath(format!("/{}", request.segments.join("/"))));
    }
    if request.method != Method::GET && request.method != Method::HEAD {
        return Err(ApiError::MethodNotAllowed { allow: "GET, HEAD" });
    }
    let caller = context.identify(request)?;
    let wanted = request.param("namespace").map(namespace).transpose()?;
    if let Some(wanted) = &wanted {
        caller.needs(Role::Read, wanted.as_str())?;
    }
    let services = match (&wanted, request.param("service")) {
        (Some(namespace), Some(name)) => {
            context.registry.snapshot(&ServiceKey::new(namespace, name)?).into_iter().collect()
        }
        (namespace, None) => context.registry.services(namespace.as_ref()),
        (None, Some(_)) => return Err(ApiError::bad("service without namespace: expected both")),
    };
    let all = request.flag("all");
    let groups: Vec<Group> = services
        .iter()
        .filter(|service| caller.may(Role::Read, service.key.namespace()))
        .flat_map(|service| service.instances.iter())
        .filter(|instance| all || instance.is_usable())
        .map(|instance| group(instance))
        .collect();
    let reply = Reply::ok(&groups);
    Ok(if request.accepts_gzip() { reply.gzip() } else { reply })
}

fn group(instance: &Instance) -> Group {
    let mut labels = BTreeMap::new();
    let mut add = |name: &str, value: &str| {
        if !value.is_empty() {
            labels.insert(format!("__meta_kingpost_{name}"), value.to_owned());
        }
    };
    add("namespace", instance.namespace());
    add("service", instance.service.name());
    add("instance", instance.id.local());
    add("protocol", &instance.protocol);
    add("version", &instance.version);
    add("region", &instance.location.region);
    add("zone", &instance.location.zone);
    add("campus", &instance.location.campus);
    add(
        "health",
        match instance.health {
            Health::Passing => "passing",
            Health::Warning => "warning",
            Health::Critical => "critical",
        },
    );
    for (key, value) in instance.metadata.iter().filter(|(key, _)| !key.starts_with(RESERVED)) {
        add(&format!("metadata_{}", label(key)), value);
    }
    Group { targets: [address(&instance.host, instance.port)], labels }
}

/// `host:port`, brackets around IPv6.
fn address(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// What a label's name may hold.
fn label(key: &str) -> String {
    key.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses() {
        assert_eq!(label("app.kubernetes.io/name"), "app_kubernetes_io_name");
        assert_eq!(address("10.0.0.1", 80), "10.0.0.1:80");
        assert_eq!(address("::1", 80), "[::1]:80");
    }
}
