//! The registry in the web console: its content, the history of instances, and operators' commands.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::console::picture::{self, Found, InstanceDetail, Instances, Protected, Service};
use ::console::{
    Action, BoxFuture, Refusal, RegistryPart, Search, State, Transition, Transitions, service_rank, standing_rank,
};
use registry::{
    Change, Health, Instance, InstanceId, NamespaceName, Patch, Registry, Revision, ServiceKey, ServiceSnapshot,
    WriteError, Written,
};
use tokio::time::Instant;

/// Least time between two reads of the changes: a storm of registrations is read in batches.
const PACE: Duration = Duration::from_millis(250);
/// Longest wait for a change; then they are read anyway.
const WAIT: Duration = Duration::from_secs(60);
/// Most transitions shown of an instance.
const HISTORY: usize = 50;
/// Most namespaces of a search by metadata without a namespace.
const NAMESPACES: usize = 64;

/// A running registry.
pub struct Known {
    registry: Registry,
    addresses: Vec<String>,
    transitions: Mutex<Transitions>,
}

impl Known {
    pub fn new(registry: Registry, addresses: Vec<String>) -> Known {
        Known { registry, addresses, transitions: Mutex::default() }
    }

    fn transitions(&self) -> MutexGuard<'_, Transitions> {
        self.transitions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the transitions of instances, until the task is dropped.
    pub async fn follow(self: Arc<Known>) {
        let mut at = self.registry.revision();
        for service in self.registry.services(None) {
            let mut transitions = self.transitions();
            service.instances.iter().for_each(|instance| transitions.know(instance.id.as_str(), state_of(instance)));
        }
        loop {
            // The revision is read before the changes: a change in between is read twice, and recorded once.
            let Ok(revision) = self.registry.watch_all(at, Instant::now() + WAIT).await else {
                // Too many watchers, or the registry stops.
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            };
            match self.registry.all_changes(at) {
                Some(changes) => self.observe(&changes, at),
                None => {
                    for service in self.registry.services(None) {
                        service.instances.iter().for_each(|instance| self.note(instance));
                    }
                }
            }
            at = revision;
            tokio::time::sleep(PACE).await;
        }
    }

    fn observe(&self, changes: &[Change], after: Revision) {
        for change in changes.iter().filter(|change| change.revision() > after) {
            match change {
                Change::Put { instance, .. } => self.note(instance),
                Change::Removed { last, mtime, .. } => {
                    // An instance that moved to another service still exists.
                    if self.registry.instance(&last.id).is_none() {
                        self.transitions().remove(last.id.as_str(), *mtime);
                    }
                }
                Change::Service { .. } => {}
            }
        }
    }

    fn note(&self, instance: &Instance) {
        self.transitions().observe(instance.id.as_str(), state_of(instance), instance.mtime);
    }

    async fn change(&self, id: &str, patch: Patch) -> Result<Written, Refusal> {
        let id = instance_id(id)?;
        one(self.registry.update(vec![(id, patch)]).await)
    }
}

fn instance_id(id: &str) -> Result<InstanceId, Refusal> {
    InstanceId::parse(id).map_err(|_| Refusal::NotFound(format!("{id:?} is no instance's id")))
}

/// Returns the answer to the only row of a call.
fn one(mut answers: Vec<Result<Written, WriteError>>) -> Result<Written, Refusal> {
    match answers.pop() {
        Some(Ok(written)) => Ok(written),
        Some(Err(WriteError::NotFound { what })) => Err(Refusal::NotFound(format!("{what} is not there any more"))),
        Some(Err(error)) => Err(Refusal::Refused(error.to_string())),
        None => Err(Refusal::Refused("no answer".into())),
    }
}

fn health(health: Health) -> &'static str {
    match health {
        Health::Passing => "passing",
        Health::Warning => "warning",
        Health::Critical => "critical",
    }
}

fn state_of(instance: &Instance) -> State {
    State { health: health(instance.overall()), isolate: instance.isolate }
}

fn service(snapshot: &ServiceSnapshot) -> Service {
    Service {
        namespace: snapshot.key.namespace().into(),
        name: snapshot.key.name().into(),
        instances: snapshot.instances.len(),
        usable: snapshot.usable(),
        critical: snapshot.instances.len() - snapshot.healthy(),
        revision: snapshot.revision.0,
    }
}

fn instance(instance: &Instance) -> picture::Instance {
    let location = &instance.location;
    let pairs = instance.metadata.iter().filter(|(key, _)| !key.starts_with(registry::api::RESERVED));
    picture::Instance {
        id: instance.id.as_str().into(),
        service: instance.service.as_str().into(),
        host: (*instance.host).into(),
        port: instance.port,
        health: health(instance.overall()),
        isolate: instance.isolate,
        usable: instance.is_usable(),
        weight: instance.weight,
        priority: instance.priority,
        protocol: (*instance.protocol).into(),
        version: (*instance.version).into(),
        location: [&location.region, &location.zone, &location.campus]
            .into_iter()
            .filter(|part| !part.is_empty())
            .map(|part| part.to_string())
            .collect(),
        metadata: pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        check: instance.check.as_ref().and_then(|check| serde_json::to_value(check.redacted()).ok()),
        revision: instance.revision.0,
        created: instance.ctime,
        changed: instance.mtime,
    }
}

/// Returns the `limit` worst instances. Only these are rendered: a service may have very many.
fn worst_first<'a>(instances: impl Iterator<Item = &'a Arc<Instance>>, limit: usize) -> Vec<picture::Instance> {
    let rank = |found: &Instance| standing_rank(health(found.overall()), found.isolate, found.weight);
    let mut ranked: Vec<(u8, &Arc<Instance>)> = instances.map(|found| (rank(found), found)).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().take(limit).map(|(_, found)| instance(found)).collect()
}

impl RegistryPart for Known {
    fn look(&self) -> picture::Registry {
        let status = self.registry.status();
        let mut protected: Vec<Protected> = status
            .protected
            .iter()
            .map(|(service, since)| Protected {
                service: service.as_ref().map(|service| service.as_str().to_owned()).unwrap_or_default(),
                seconds: since.as_secs(),
            })
            .collect();
        // Several causes may protect the same service.
        protected.dedup_by(|a, b| a.service == b.service);
        picture::Registry {
            addresses: self.addresses.clone(),
            ready: status.ready,
            store: status.store.into(),
            store_error: status.store_error,
            revision: status.revision.0,
            instances: status.instances,
            critical: status.critical,
            isolated: status.isolated,
            services: status.services,
            watchers: status.watchers,
            queued: status.queued_writes,
            protected,
            counts: status.counts.each().collect(),
        }
    }

    fn find(&self, search: &Search, limit: usize) -> Found {
        let revision = self.registry.revision().0;
        let namespaces = self.registry.namespaces();
        let wanted = search.namespace.as_deref();
        let mut found = Found {
            revision,
            namespaces: namespaces.iter().map(|name| name.as_str().to_owned()).collect(),
            ..Found::default()
        };
        if !search.pairs.is_empty() {
            let pairs: Vec<(&str, &str)> =
                search.pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            let inside = namespaces.iter().filter(|name| wanted.is_none_or(|wanted| wanted == name.as_str()));
            for namespace in inside.take(NAMESPACES) {
                let there = self.registry.find(namespace, &pairs, limit);
                found.more |= there.truncated;
                let fits = there.instances.iter().filter(|found| search.fits(found.service.name()));
                found.instances.extend(fits.map(|found| instance(found)));
                if found.instances.len() > limit {
                    found.instances.truncate(limit);
                    found.more = true;
                    break;
                }
            }
            found.instances.sort_by_key(|one| standing_rank(one.health, one.isolate, one.weight));
            return found;
        }
        let namespace = wanted.map(NamespaceName::new);
        let services = match &namespace {
            Some(Err(_)) => Vec::new(),
            Some(Ok(namespace)) => self.registry.services(Some(namespace)),
            None => self.registry.services(None),
        };
        let fit = services.iter().filter(|service| search.fits(service.key.name()));
        let mut fit: Vec<Service> = fit.map(|snapshot| service(snapshot)).collect();
        found.total = fit.len();
        // All of them are sorted, as the last may be the broken one.
        fit.sort_by_key(service_rank);
        fit.truncate(limit);
        found.services = fit;
        found
    }

    fn instances(&self, key: &str, limit: usize) -> Option<Instances> {
        let snapshot = self.registry.snapshot(&ServiceKey::parse(key).ok()?)?;
        let metadata = snapshot.metadata.as_ref();
        Some(Instances {
            service: service(&snapshot),
            metadata: metadata
                .map(|metadata| metadata.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
                .unwrap_or_default(),
            instances: worst_first(snapshot.instances.iter(), limit),
            more: snapshot.instances.len() > limit,
        })
    }

    fn transitions_since(&self, since: u64, limit: usize) -> (Vec<Transition>, u64) {
        self.transitions().since(since, limit)
    }

    fn instance(&self, id: &str) -> Option<InstanceDetail> {
        let found = self.registry.instance(&InstanceId::parse(id).ok()?)?;
        Some(InstanceDetail { instance: instance(&found), history: self.transitions().of(id, HISTORY) })
    }

    fn act<'a>(&'a self, action: &'a Action) -> BoxFuture<'a, Result<String, Refusal>> {
        Box::pin(async move {
            match action {
                Action::Isolate { instance } => {
                    self.change(instance, Patch { isolate: Some(true), ..Patch::default() }).await?;
                    Ok(format!("{instance} is isolated"))
                }
                Action::Restore { instance } => {
                    self.change(instance, Patch { isolate: Some(false), ..Patch::default() }).await?;
                    Ok(format!("{instance} is used again"))
                }
                Action::Weight { instance, weight } => {
                    self.change(instance, Patch { weight: Some(*weight), ..Patch::default() }).await?;
                    Ok(format!("the weight of {instance} is {weight}"))
                }
                Action::Deregister { instance } => {
                    one(self.registry.deregister(&[instance_id(instance)?]).await)?;
                    Ok(format!("{instance} was deregistered"))
                }
                Action::Pause { .. } | Action::Resume { .. } | Action::Reconnect { .. } | Action::KillClient { .. } => {
                    Err(Refusal::NotHere("it is the proxy's"))
                }
            }
        })
    }
}
