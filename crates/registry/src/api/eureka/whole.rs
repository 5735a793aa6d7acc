//! What Eureka's clients ask of all applications at once: `/eureka/apps`, the delta, addresses.
//!
//! What one service comes to is kept with its snapshot, and bodies are put together of that as [`super::super::whole`] says.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::view::{self, Form, HashCode, app_name};
use super::{NAMESPACE, shown};
use crate::api::identity;
use crate::api::whole::Composer;
use crate::{Change, Encoding, Instance, NamespaceName, Registry, Revision, ServiceSnapshot};

/// All applications as they are.
pub(super) struct All {
    registry: Registry,
    form: Form,
    /// Read before the services are.
    revision: Revision,
    services: Vec<Arc<ServiceSnapshot>>,
}

impl All {
    pub(super) fn new(registry: Registry, namespace: &NamespaceName, form: Form) -> All {
        let revision = registry.revision_in(namespace);
        let services = registry.services(Some(namespace));
        All { registry, form, revision, services }
    }

    /// How many instances have which status.
    fn hash_code(&self) -> String {
        let mut code = HashCode::default();
        for service in &self.services {
            let counts = service.encoded(Encoding::EurekaStatuses, |service| {
                let mut code = HashCode::default();
                let statuses = service.instances.iter().filter_map(|instance| view::status(instance));
                statuses.for_each(|status| code.add(status));
                code.text().into()
            });
            code.add_text(&counts);
        }
        code.text()
    }

    /// All of them.
    pub(super) fn applications(&self, out: &mut Composer) {
        let form = self.form;
        // Two services whose names differ in case only are one application.
        let mut applications: BTreeMap<String, Vec<&Arc<ServiceSnapshot>>> = BTreeMap::new();
        for service in &self.services {
            applications.entry(app_name(service.key.name())).or_default().push(service);
        }
        begin(form, out);
        let mut some = false;
        for (name, services) in &applications {
            let before = if some && form == Form::Json { "," } else { "" };
            match services.as_slice() {
                [one] => {
                    let encoding = if form == Form::Xml { Encoding::EurekaXml } else { Encoding::EurekaJson };
                    some |= out.part(before, one, encoding, |service| application(name, &[service], form));
                }
                several => {
                    let several: Vec<&ServiceSnapshot> = several.iter().map(|one| &***one).collect();
                    let part = application(name, &several, form);
                    if !part.is_empty() {
                        out.text(before);
                        out.text(&part);
                        some = true;
                    }
                }
            }
        }
        end(&self.hash_code(), self.revision, form, out);
    }

    /// What changed after `since`: of each instance the last word. All of them where that is not known any more.
    pub(super) fn delta(&self, since: Revision, out: &mut Composer) {
        let Some(changes) = self.registry.all_changes(since) else { return self.applications(out) };
        let mut latest = BTreeMap::new();
        for change in changes.iter().filter(|change| change.service().namespace() == NAMESPACE) {
            let app = app_name(change.service().name());
            match change {
                Change::Put(instance) => {
                    let action = match view::status(instance) {
                        None => "DELETED",
                        Some(_) if instance.ctime == instance.mtime => "ADDED",
                        Some(_) => "MODIFIED",
                    };
                    latest.insert((app, identity::in_eureka(instance).to_owned()), view::instance(instance, action));
                }
                Change::Removed { last, mtime, .. } => {
                    latest.insert((app, identity::in_eureka(last).to_owned()), view::gone(last, *mtime));
                }
                Change::Service { .. } => {}
            }
        }
        let mut applications: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for ((app, _), instance) in latest {
            applications.entry(app).or_default().push(instance);
        }
        begin(self.form, out);
        for (number, (name, list)) in applications.into_iter().enumerate() {
            add(&view::application(&name, list), number > 0, self.form, out);
        }
        end(&self.hash_code(), self.revision, self.form, out);
    }

    /// The applications that have an instance which is wanted; nothing at all if there is none.
    pub(super) fn wanted(&self, wanted: impl Fn(&Instance) -> bool, out: &mut Composer) {
        let applications = shown(&self.services, wanted);
        if applications.is_empty() {
            return;
        }
        begin(self.form, out);
        for (number, application) in applications.iter().enumerate() {
            add(application, number > 0, self.form, out);
        }
        end("", self.revision, self.form, out);
    }
}

fn begin(form: Form, out: &mut Composer) {
    out.text(match form {
        Form::Xml => "<?xml version=\"1.0\" encoding=\"UTF-8\"?><applications>",
        Form::Json => "{\"applications\":{\"application\":[",
    });
}

fn add(application: &serde_json::Value, behind: bool, form: Form, out: &mut Composer) {
    match form {
        Form::Xml => out.text(view::xml_part("application", application)),
        Form::Json => {
            out.text(if behind { "," } else { "" });
            out.text(application.to_string());
        }
    }
}

fn end(code: &str, revision: Revision, form: Form, out: &mut Composer) {
    out.text(match form {
        Form::Xml => format!(
            "<apps__hashcode>{code}</apps__hashcode><versions__delta>{revision}</versions__delta></applications>"
        ),
        Form::Json => format!("],\"apps__hashcode\":\"{code}\",\"versions__delta\":\"{revision}\"}}}}"),
    });
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
