//! The registry in the web console: its content, the history of instances, and operators' commands.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::console::picture::{
    self, Comparison, Entries, EntryDetail, Found, InstanceDetail, Instances, Protected, Service,
};
use ::console::{
    Action, BoxFuture, EntryName, Refusal, RegistryPart, Search, State, Transition, Transitions, compare, service_rank,
    standing_rank,
};
use registry::api::{AuditLog, Audited, EurekaApplication, EurekaServer, EurekaView};
use registry::configuration::{ConfigEntry, ConfigKey};
use registry::{
    Change, Health, Instance, InstanceId, NamespaceName, Patch, Registry, Revision, ServiceKey, ServiceSnapshot,
    WriteError, Written,
};
use tokio::time::Instant;

/// Least time between two reads of the changes: a storm of registrations is read in batches.
const PACE: Duration = Duration::from_millis(250);
/// Longest wait for a change; then they are read anyway.
const WAIT: Duration = Duration::from_secs(60);
/// Author of a version that an operator of the console has published; the log has the name of the operator's token.
const AUTHOR: &str = "console";
/// Most lines of the audit log shown of an entry.
const AUDITED: usize = 50;
/// Most transitions shown of an instance.
const HISTORY: usize = 50;
/// Most namespaces of a search by metadata without a namespace.
const NAMESPACES: usize = 64;

/// A running registry.
pub struct Known {
    registry: Registry,
    addresses: Vec<String>,
    audit: AuditLog,
    eureka: EurekaView,
    transitions: Mutex<Transitions>,
}

impl Known {
    pub fn new(registry: Registry, addresses: Vec<String>, audit: AuditLog, eureka: EurekaView) -> Known {
        Known { registry, addresses, audit, eureka, transitions: Mutex::default() }
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

fn application(found: EurekaApplication) -> picture::EurekaApplication {
    let EurekaApplication { name, images, zones, statuses, instances } = found;
    let instances = instances.into_iter().map(|one| picture::EurekaInstance {
        id: one.id,
        instance: one.instance,
        status: one.status,
        page: one.page,
    });
    picture::EurekaApplication { name, images, zones, statuses, instances: instances.collect() }
}

fn eureka_server(found: EurekaServer) -> picture::EurekaServer {
    let EurekaServer { name, reached, error, waiting, sent, refused, lost } = found;
    picture::EurekaServer { url: name, reached, error, waiting, sent, refused, lost }
}

/// True if a change in the audit log is one of an entry: its object is the entry's name, or begins with it.
fn is_about(change: &Audited, namespace: &NamespaceName, key: &ConfigKey) -> bool {
    let rest = change.object.strip_prefix(&key.to_string());
    change.namespace == namespace.as_str()
        && change.action.ends_with("Config")
        && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" version "))
}

fn line(change: Audited) -> picture::Audited {
    let Audited { time_ms, token, peer, action, object, .. } = change;
    picture::Audited { time: time_ms, token, peer: peer.to_string(), action, object }
}

fn named(name: &EntryName) -> Option<(NamespaceName, ConfigKey)> {
    Some((NamespaceName::new(&name.namespace).ok()?, ConfigKey::new(&name.group, &name.id).ok()?))
}

fn entry(namespace: &NamespaceName, entry: &ConfigEntry) -> picture::Entry {
    picture::Entry {
        namespace: namespace.as_str().into(),
        group: entry.key.group().into(),
        id: entry.key.id().into(),
        kind: entry.kind.clone(),
        md5: entry.md5.clone(),
        version: entry.version,
        restored: entry.restored,
        revision: entry.revision.0,
        bytes: entry.content.len(),
        secret: entry.secret,
        author: entry.author.clone(),
        time: entry.removal.as_ref().map_or(entry.time, |removal| removal.time),
        removed_by: entry.removal.as_ref().map(|removal| removal.author.clone()),
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

    fn eureka(&self, namespace: &str, limit: usize) -> Option<picture::Eureka> {
        let found = self.eureka.look(&NamespaceName::new(namespace).ok()?, limit);
        Some(picture::Eureka {
            namespaces: self.registry.namespaces().iter().map(|name| name.as_str().to_owned()).collect(),
            applications: found.applications.into_iter().map(application).collect(),
            total: found.total,
            expected: found.expected,
            renewed: found.renewed,
            protected: found.protected.map(|since| since.as_secs()),
            servers: found.servers.into_iter().map(eureka_server).collect(),
        })
    }

    fn entries(&self, namespace: &str, group: &str, text: &str, limit: usize) -> Option<Entries> {
        let namespace = NamespaceName::new(namespace).ok()?;
        let found = self.registry.configs(&namespace, Some(group).filter(|group| !group.is_empty())).ok()?;
        let text = text.to_lowercase();
        let fits = |found: &&ConfigEntry| found.key.to_string().to_lowercase().contains(&text);
        let fit: Vec<&ConfigEntry> = found.iter().filter(fits).collect();
        Some(Entries {
            entries: fit.iter().take(limit).map(|found| entry(&namespace, found)).collect(),
            total: fit.len(),
            namespaces: self.registry.namespaces().iter().map(|name| name.as_str().to_owned()).collect(),
        })
    }

    fn entry(&self, name: &EntryName) -> Option<EntryDetail> {
        let (namespace, key) = named(name)?;
        let versions = self.registry.config_history(&namespace, &key).ok()?;
        let newest = versions.first()?;
        Some(EntryDetail {
            entry: entry(&namespace, newest),
            content: (!newest.secret).then(|| newest.text().to_owned()),
            versions: versions.iter().map(|version| entry(&namespace, version)).collect(),
            audit: self
                .audit
                .last(AUDITED, |change| is_about(change, &namespace, &key))
                .into_iter()
                .map(line)
                .collect(),
        })
    }

    fn compare(&self, name: &EntryName, old: u64, new: u64) -> Option<Comparison> {
        let (namespace, key) = named(name)?;
        let versions = self.registry.config_history(&namespace, &key).ok()?;
        let version = |number: u64| versions.iter().find(|version| version.version == number);
        let (old, new) = (version(old)?, version(new)?);
        let lines = if old.secret || new.secret { None } else { compare(old.text(), new.text()) };
        Some(Comparison { lines })
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
                Action::RollBack { entry, version } => {
                    let missing = || Refusal::NotFound("that is no name of a configuration entry".into());
                    let (namespace, key) = named(entry).ok_or_else(missing)?;
                    let done = self.registry.roll_back_config(&namespace, &key, *version, AUTHOR).await;
                    let change = done.map_err(|error| Refusal::Refused(error.to_string()))?;
                    let now = change.entry.as_ref().map_or(0, |entry| entry.version);
                    if let Some(entry) = change.entry.filter(|_| change.wrote) {
                        self.audit.note(Audited {
                            time_ms: entry.time,
                            token: AUTHOR.into(),
                            peer: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                            action: "rollBackConfig".into(),
                            namespace: namespace.as_str().into(),
                            object: format!("{key} version {} md5 {}", entry.version, entry.md5),
                        });
                    }
                    Ok(format!("{key} has the content of version {version}, as version {now}"))
                }
                Action::Pause { .. } | Action::Resume { .. } | Action::Reconnect { .. } | Action::KillClient { .. } => {
                    Err(Refusal::NotHere("it is the proxy's"))
                }
            }
        })
    }
}
