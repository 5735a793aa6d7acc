//! `/eureka/apps`: all applications in one body, which every client of Eureka asks for.
//!
//! What one service comes to is made once a revision of the service and kept with its snapshot; the body of all of them once a revision
//! of the registry, and shared by all who ask. Both are made on a thread for blocking work: the threads that answer heartbeats do not wait.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Mutex;

use super::view::{self, Form, HashCode, app_name};
use crate::api::{ApiError, gzip};
use crate::{Encoding, NamespaceName, Registry, Revision, ServiceSnapshot};

/// The bodies that were made last: by form, and whether compressed.
#[derive(Debug, Default)]
pub(in crate::api) struct Whole {
    made: [Mutex<Option<(Revision, Bytes)>>; 4],
}

impl Whole {
    /// The body as of now.
    ///
    /// # Errors
    /// The server stops.
    pub(super) async fn body(
        &self,
        registry: &Registry,
        namespace: &NamespaceName,
        form: Form,
        compressed: bool,
    ) -> Result<Bytes, ApiError> {
        let slot = usize::from(form == Form::Json) + 2 * usize::from(compressed);
        // Who waits here gets what the one before makes, unless there is something newer.
        let mut made = self.made[slot].lock().await;
        // Read first: a change in between is in the body, and the body is made again.
        let revision = registry.revision();
        if let Some((at, body)) = made.as_ref()
            && *at == revision
        {
            return Ok(body.clone());
        }
        let (registry, namespace) = (registry.clone(), namespace.clone());
        let making = tokio::task::spawn_blocking(move || {
            let body = body(&registry.services(Some(&namespace)), revision, form);
            Bytes::from(if compressed { gzip::pack(body.as_bytes()) } else { body.into_bytes() })
        });
        let body = making.await.map_err(|_| ApiError::Unavailable("the registry is stopping".into()))?;
        *made = Some((revision, body.clone()));
        Ok(body)
    }
}

/// How many instances of all `services` have which status.
pub(super) fn hash_code(services: &[Arc<ServiceSnapshot>]) -> String {
    let mut code = HashCode::default();
    for service in services {
        let counts = service.encoded(Encoding::EurekaStatuses, |service| {
            let mut code = HashCode::default();
            service.instances.iter().filter_map(|instance| view::status(instance)).for_each(|status| code.add(status));
            code.text().into()
        });
        code.add_text(&counts);
    }
    code.text()
}

fn body(services: &[Arc<ServiceSnapshot>], revision: Revision, form: Form) -> String {
    let code = hash_code(services);
    // Two services whose names differ in case only are one application.
    let mut applications: BTreeMap<String, Vec<&Arc<ServiceSnapshot>>> = BTreeMap::new();
    for service in services {
        applications.entry(app_name(service.key.name())).or_default().push(service);
    }
    let parts: Vec<Bytes> = applications
        .iter()
        .map(|(name, services)| match services.as_slice() {
            [one] => {
                let slot = if form == Form::Xml { Encoding::EurekaXml } else { Encoding::EurekaJson };
                one.encoded(slot, |service| application(name, &[service], form))
            }
            several => application(name, &several.iter().map(|one| &***one).collect::<Vec<_>>(), form),
        })
        .filter(|part| !part.is_empty())
        .collect();
    let parts = parts.iter().map(|part| std::str::from_utf8(part).unwrap_or_default());
    // The order of keys is that of `Call::tree`.
    match form {
        Form::Xml => {
            let parts: String = parts.collect();
            format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?><applications>{parts}<apps__hashcode>{code}</apps__hashcode>\
                 <versions__delta>{revision}</versions__delta></applications>"
            )
        }
        Form::Json => {
            let parts = parts.collect::<Vec<_>>().join(",");
            format!(
                "{{\"applications\":{{\"application\":[{parts}],\"apps__hashcode\":\"{code}\",\
                 \"versions__delta\":\"{revision}\"}}}}"
            )
        }
    }
}

/// One application; empty where none of its instances is shown.
fn application(name: &str, services: &[&ServiceSnapshot], form: Form) -> Bytes {
    let instances = services.iter().flat_map(|service| service.instances.iter());
    let shown = instances.filter(|instance| view::status(instance).is_some());
    let list: Vec<_> = shown.map(|instance| view::instance(instance, "ADDED")).collect();
    if list.is_empty() {
        return Bytes::new();
    }
    let tree = view::application(name, list);
    match form {
        Form::Xml => view::xml_part("application", &tree).into(),
        Form::Json => tree.to_string().into(),
    }
}
