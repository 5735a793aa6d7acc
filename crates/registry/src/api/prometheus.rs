//! Service discovery for Prometheus: `GET /prometheus/targets` in the `http_sd` format, a list of groups of addresses with labels; `[]` if there are
//! none.
//!
//! Parameters: `namespace` (all that the caller may read if omitted), `service`, `all` (includes instances that are not usable).

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper::Method;
use serde::Serialize;

use super::list_cache::{Key, ListBuilder};
use super::reply::JSON;
use super::{ApiError, Context, RESERVED, Reply, Request, namespace};
use crate::rights::{Access, Resource};
use crate::{Encoding, Health, Instance, Revision, ServiceKey, ServiceSnapshot};

/// A target group: a single instance, because each has its own labels.
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
        caller.enters(Access::Read, wanted.as_str())?;
    }
    let all = request.flag("all");
    let packed = request.accepts_gzip();
    if let Some(name) = request.param("service") {
        let Some(namespace) = &wanted else { return Err(ApiError::bad("service without namespace: expected both")) };
        caller.needs(Access::Read, Resource::service(name), namespace.as_str())?;
        let services: Vec<_> = context.registry.snapshot(&ServiceKey::new(namespace, name)?).into_iter().collect();
        let body = context.lists.once(packed, move |out| targets(&services, all, out)).await?;
        return Ok(Reply::pieces(JSON, body, packed));
    }
    let registry = context.registry.clone();
    let body = match wanted {
        Some(namespace) if caller.sees_all(namespace.as_str()) => {
            let key = key(namespace.as_str(), all, packed);
            let stamp = || (context.registry.revision_in(&namespace), Revision(0));
            let of = namespace.clone();
            let make = move |out: &mut ListBuilder| targets(&registry.services(Some(&of)), all, out);
            context.lists.get(key, stamp, make).await?
        }
        None if caller.stored().is_none() && caller.may(Access::Read, Resource::Everything, "*") => {
            let stamp = || (context.registry.revision(), Revision(0));
            let make = move |out: &mut ListBuilder| targets(&registry.services(None), all, out);
            context.lists.get(key("", all, packed), stamp, make).await?
        }
        wanted => {
            let make = move |out: &mut ListBuilder| {
                let mut services = registry.services(wanted.as_ref());
                services.retain(|service| caller.may_read(&service.key));
                targets(&services, all, out);
            };
            context.lists.once(packed, make).await?
        }
    };
    Ok(Reply::pieces(JSON, body, packed))
}

fn key(namespace: &str, all: bool, packed: bool) -> Key {
    let what = if all { "prometheus.all" } else { "prometheus" };
    Key { what, namespace: namespace.to_owned(), more: String::new(), packed }
}

/// Writes the groups of `services`: of usable instances, or of all.
fn targets(services: &[Arc<ServiceSnapshot>], all: bool, out: &mut ListBuilder) {
    let encoding = if all { Encoding::HttpSdAll } else { Encoding::HttpSd };
    out.text("[");
    let mut some = false;
    for service in services {
        some |= out.list(service, encoding, if some { "," } else { "" }, ",", |instances| {
            let wanted = instances.iter().filter(|instance| all || instance.is_usable());
            let groups: Vec<Group> = wanted.map(|instance| group(instance)).collect();
            let list = serde_json::to_string(&groups).unwrap_or_default();
            let inner = list.strip_prefix('[').and_then(|list| list.strip_suffix(']')).unwrap_or_default();
            inner.to_owned().into()
        });
    }
    out.text("]");
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
        match instance.overall() {
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

/// Formats `host:port`, with brackets around IPv6.
fn address(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Replaces characters that a label name may not contain.
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
