//! Responses about all of Eureka's applications: `/eureka/apps`, the delta, addresses.
//!
//! The encodings of a service are cached with its instances, and bodies are composed of them as [`super::super::list_cache`] describes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::delta::Covered;
use super::shown;
use super::view::{self, Form, HashCode, app_name};
use crate::api::auth::Caller;
use crate::api::identity;
use crate::api::list_cache::ListBuilder;
use crate::{Change, Encoding, Instance, NamespaceName, Registry, Revision, ServiceKey, ServiceSnapshot};

/// All applications in their current state.
pub(super) struct All {
    registry: Registry,
    namespace: NamespaceName,
    form: Form,
    /// Revision read before the services.
    revision: Revision,
    services: Vec<Arc<ServiceSnapshot>>,
    /// The caller, if it may not read all services.
    caller: Option<Caller>,
}

impl All {
    pub(super) fn new(registry: Registry, namespace: &NamespaceName, form: Form) -> All {
        let revision = registry.revision_in(namespace);
        let services = registry.services(Some(namespace));
        All { registry, namespace: namespace.clone(), form, revision, services, caller: None }
    }

    /// Leaves out the services that a caller may not read.
    pub(super) fn seen_by(mut self, caller: Caller) -> All {
        self.services.retain(|service| caller.may_read(&service.key));
        All { caller: Some(caller), ..self }
    }

    /// Returns the number of instances by status.
    fn hash_code(&self) -> String {
        let mut code = HashCode::default();
        for service in &self.services {
            for piece in service.instances.pieces() {
                let counts = piece.encodings().get(Encoding::EurekaStatuses, || {
                    let mut code = HashCode::default();
                    let statuses = piece.iter().filter_map(|instance| view::status(instance));
                    statuses.for_each(|status| code.add(status));
                    code.text().into()
                });
                code.add_text(&counts);
            }
        }
        code.text()
    }

    /// Writes all applications.
    pub(super) fn applications(&self, out: &mut ListBuilder) {
        self.write(BTreeMap::new(), out);
    }

    /// Writes all applications, each with its `removed` instances behind the others.
    fn write(&self, mut removed: BTreeMap<String, Vec<Value>>, out: &mut ListBuilder) {
        let form = self.form;
        // Two services whose names differ only in case are one application.
        let mut applications: BTreeMap<String, Vec<&Arc<ServiceSnapshot>>> = BTreeMap::new();
        for service in &self.services {
            applications.entry(app_name(service.key.name())).or_default().push(service);
        }
        for name in removed.keys() {
            applications.entry(name.clone()).or_default();
        }
        begin(form, out);
        let mut some = false;
        let encoding = if form == Form::Xml { Encoding::EurekaXml } else { Encoding::EurekaJson };
        for (name, services) in &applications {
            let (open, between, close) = around(name, some, form);
            let mut any = false;
            for service in services {
                let first = if any { between } else { open };
                any |= out.list(service, encoding, first, between, |instances| list(instances, form));
            }
            for instance in removed.remove(name).unwrap_or_default() {
                out.text(if any { between } else { open });
                out.text(item(&instance, form));
                any = true;
            }
            if any {
                out.text(close);
                some = true;
            }
        }
        end(&self.hash_code(), self.revision, form, out);
    }

    /// Writes the changes that `covered` describes, only the last one of each instance; all applications if the changes are no longer known.
    pub(super) fn delta(&self, covered: Covered, out: &mut ListBuilder) {
        let Some(changes) = self.registry.all_changes(covered.since) else { return self.applications(out) };
        let mut latest = BTreeMap::new();
        let sees = |key: &ServiceKey| {
            key.namespace() == self.namespace.as_str() && self.caller.as_ref().is_none_or(|caller| caller.may_read(key))
        };
        for change in changes.iter().filter(|change| sees(change.service())) {
            let app = app_name(change.service().name());
            let (instance, shown) = match change {
                Change::Put { instance, .. } => (instance, view::status(instance).is_some()),
                Change::Removed { last, .. } => (last, false),
                Change::Service { .. } => continue,
            };
            let id = identity::in_eureka(instance).to_owned();
            let tree = match change {
                _ if shown && covered.whole => None,
                _ if shown => Some(view::instance(instance, self.form)),
                Change::Removed { mtime, .. } => Some(view::gone(instance, *mtime, self.form)),
                _ => Some(view::gone(instance, instance.mtime, self.form)),
            };
            latest.insert((app, id), tree);
        }
        let mut applications: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for ((app, _), instance) in latest {
            applications.entry(app).or_default().extend(instance);
        }
        applications.retain(|_, instances| !instances.is_empty());
        if covered.whole {
            return self.write(applications, out);
        }
        begin(self.form, out);
        for (number, (name, list)) in applications.into_iter().enumerate() {
            add(&view::application(&name, list), number > 0, self.form, out);
        }
        end(&self.hash_code(), self.revision, self.form, out);
    }

    /// Writes the applications that have a wanted instance.
    pub(super) fn wanted(&self, wanted: impl Fn(&Instance) -> bool, out: &mut ListBuilder) {
        let mut code = HashCode::default();
        let instances = self.services.iter().flat_map(|service| service.instances.iter());
        instances
            .filter(|instance| wanted(instance))
            .filter_map(|instance| view::status(instance))
            .for_each(|status| code.add(status));
        begin(self.form, out);
        for (number, application) in shown(&self.services, self.form, wanted).iter().enumerate() {
            add(application, number > 0, self.form, out);
        }
        end(&code.text(), self.revision, self.form, out);
    }
}

fn begin(form: Form, out: &mut ListBuilder) {
    out.text(match form {
        Form::Xml => "<?xml version=\"1.0\" encoding=\"UTF-8\"?><applications>",
        Form::Json => "{\"applications\":{\"application\":[",
    });
}

fn add(application: &Value, behind: bool, form: Form, out: &mut ListBuilder) {
    match form {
        Form::Xml => out.text(view::xml_part("application", application)),
        Form::Json => {
            out.text(if behind { "," } else { "" });
            out.text(application.to_string());
        }
    }
}

fn end(code: &str, revision: Revision, form: Form, out: &mut ListBuilder) {
    out.text(match form {
        Form::Xml => format!(
            "<apps__hashcode>{code}</apps__hashcode><versions__delta>{revision}</versions__delta></applications>"
        ),
        Form::Json => format!("],\"apps__hashcode\":\"{code}\",\"versions__delta\":\"{revision}\"}}}}"),
    });
}

/// Returns the text before the instances of an application, between two of them, and after them. `behind` means that another application precedes.
fn around(name: &str, behind: bool, form: Form) -> (&'static str, &'static str, String) {
    match form {
        Form::Xml => ("<application>", "", format!("{}</application>", view::xml_part("name", &name.into()))),
        Form::Json => {
            let open = if behind { ",{\"instance\":[" } else { "{\"instance\":[" };
            (open, ",", format!("],\"name\":{}}}", Value::from(name)))
        }
    }
}

/// Encodes instances; empty if none of them is shown.
fn list(instances: &[Arc<Instance>], form: Form) -> Bytes {
    let shown = instances.iter().filter(|instance| view::status(instance).is_some());
    let mut text = String::new();
    for instance in shown {
        text.push_str(if text.is_empty() || form == Form::Xml { "" } else { "," });
        text.push_str(&item(&view::instance(instance, form), form));
    }
    text.into()
}

/// Encodes an instance of a list.
fn item(instance: &Value, form: Form) -> String {
    match form {
        Form::Xml => view::xml_part("instance", instance),
        Form::Json => instance.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// An application composed of pieces equals the application encoded as a tree.
    #[test]
    fn an_application_of_pieces_is_the_application_as_a_tree() {
        for name in ["SHOP", "A<&\"B"] {
            let trees: Vec<_> = (0..3).map(|n| json!({ "instanceId": n.to_string(), "port": { "$": n } })).collect();
            let tree = view::application(name, trees.clone());
            for behind in [false, true] {
                let (open, between, close) = around(name, behind, Form::Json);
                let items: Vec<_> = trees.iter().map(ToString::to_string).collect();
                let comma = if behind { "," } else { "" };
                assert_eq!(format!("{open}{}{close}", items.join(between)), format!("{comma}{tree}"));
                let (open, between, close) = around(name, behind, Form::Xml);
                let items: Vec<_> = trees.iter().map(|tree| view::xml_part("instance", tree)).collect();
                let expected = view::xml_part("application", &tree);
                assert_eq!(format!("{open}{}{close}", items.join(between)), expected);
            }
        }
    }
}
