//! Operations of Nacos' clients, common to both protocols: they identify the instance and the service, and change them.

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::super::auth::Caller;
use super::super::list_cache::{MOST_AT_ONCE, entries};
use super::super::{AT_ONCE, namespace, several};
use super::service::{ServiceRecord, Threshold};
use super::wire::{self, Lease, Sent, Service};
use super::*;
use crate::model::Digest;
use crate::rights::{Access, Resource};
use crate::{
    Edit, Encoding, InstanceId, NamespaceName, OverlayChange, Patch, Registration, Revision, ServiceKey,
    ServiceSnapshot, Written,
};

/// A caller in a namespace.
pub(super) struct Naming<'a> {
    pub(super) context: &'a Arc<Context>,
    pub(super) caller: Caller,
    pub(super) peer: IpAddr,
    pub(super) namespace: NamespaceName,
}

/// Returns the namespace with the name that a client sends; [`PUBLIC`] if empty.
pub(super) fn named(name: &str) -> Result<NamespaceName, ApiError> {
    namespace(if name.is_empty() { PUBLIC } else { name })
}

/// The instances of a service, encoded for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hosts {
    /// Revision of the service; read before the instances.
    pub(super) revision: Revision,
    /// The instances, encoded by [`wire::shown`] as JSON with commas between: parts of a list, none of them empty. They are shared by all answers
    /// with the same content.
    pub(super) parts: Vec<Bytes>,
    /// Digest of the parts. Lists with the same content may have different digests, if they were cut into different pieces; lists with different
    /// content never have the same.
    pub(super) digest: Digest,
    /// True if the service's protection threshold is reached: critical instances are shown as healthy.
    pub(super) protected: bool,
}

/// Selection of a service's instances.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wanted {
    /// Names of clusters, separated by commas; empty for all.
    pub(super) clusters: String,
    /// True to select only instances that are not critical.
    pub(super) healthy: bool,
}

/// A selection from one snapshot of a service.
#[derive(Debug, Clone)]
pub(super) struct Selection {
    wanted: Wanted,
    /// True if the service's protection threshold is reached.
    pub(super) protected: bool,
}

impl Selection {
    /// Returns the encoding under which the selection of a piece's instances is cached; `None` if the same selection is hardly ever requested again.
    pub(super) fn kept(&self) -> Option<Encoding> {
        let kept = match (self.wanted.healthy, self.protected) {
            (true, _) => Encoding::NacosHealthy,
            (false, true) => Encoding::NacosProtected,
            (false, false) => Encoding::NacosHosts,
        };
        self.wanted.clusters.is_empty().then_some(kept)
    }

    /// Encodes the selected ones of `instances` by [`wire::shown`], as JSON with commas between.
    pub(super) fn encode(&self, instances: &[Arc<Instance>], service: &Service) -> Bytes {
        let shown = |instance: &Arc<Instance>| {
            let mut shown = wire::shown(instance, service);
            if self.protected {
                (shown["healthy"], shown["valid"]) = (true.into(), true.into());
            }
            shown
        };
        entries(instances.iter().filter(|instance| self.wanted.has(instance)).map(shown))
    }
}

impl Wanted {
    /// Returns the selection from `snapshot`. Nacos compares the number of healthy instances with that of the selected ones.
    pub(super) fn of(&self, snapshot: &ServiceSnapshot) -> Selection {
        let protected = snapshot.metadata.as_ref().and_then(Threshold::read).is_some_and(|threshold| {
            let all = snapshot.instances.iter().filter(|instance| self.has(instance));
            let (healthy, all) = all.fold((0, 0), |(healthy, all), instance| {
                (healthy + usize::from(instance.overall() != crate::Health::Critical), all + 1)
            });
            threshold.is_reached(healthy, all)
        });
        Selection { wanted: self.clone(), protected }
    }

    /// True if the instance is selected. An isolated instance is not, as in Nacos.
    fn has(&self, instance: &Instance) -> bool {
        let mut clusters = self.clusters.split(',').map(str::trim).filter(|name| !name.is_empty()).peekable();
        !instance.isolate
            && (!self.healthy || instance.overall() != crate::Health::Critical)
            && (clusters.peek().is_none() || clusters.any(|name| name == wire::cluster(instance)))
    }
}

impl Naming<'_> {
    /// Checks the caller's role in the namespace. Policies decide about each service ([`Naming::needs`]).
    pub(super) fn enters(&self, access: Access) -> Result<(), ApiError> {
        self.caller.enters(access, self.namespace.as_str())
    }

    /// Checks the caller's right to a service.
    pub(super) fn needs(&self, access: Access, service: &Service) -> Result<(), ApiError> {
        self.caller.needs(access, Resource::service(&service.known_as()), self.namespace.as_str())
    }

    /// Checks the caller's right to change the record of a service, which is more than that to its instances.
    pub(super) fn needs_record(&self, service: &Service) -> Result<(), ApiError> {
        self.caller.needs(Access::Write, Resource::Record(&service.known_as()), self.namespace.as_str())
    }

    /// Returns the key of the service in the core.
    pub(super) fn key(&self, service: &Service) -> Result<ServiceKey, ApiError> {
        Ok(ServiceKey::new(&self.namespace, &service.known_as())?)
    }

    /// Returns the id of the instance `sent`.
    pub(super) fn id(&self, service: &Service, sent: &Sent) -> Result<InstanceId, ApiError> {
        Ok(identity::nacos(&self.namespace, &service.full(), &sent.cluster, &sent.ip, sent.port)?)
    }

    pub(super) fn audit(&self, action: &str, object: &str) {
        self.context.audit(&self.caller, self.peer, action, self.namespace.as_str(), object);
    }

    /// Audits many instances in one line, like [`Naming::audit`].
    pub(super) fn audit_several(&self, action: &str, ids: &[InstanceId]) {
        if !ids.is_empty() {
            self.audit(action, &several(ids));
        }
    }

    /// Writes the instance `sent`, with the lease `lease`.
    pub(super) async fn put(&self, service: &Service, sent: &Sent, lease: Lease<'_>) -> Result<Written, ApiError> {
        let (id, key) = (self.id(service, sent)?, self.key(service)?);
        let written = self.context.registry.change(&id, |before| {
            let registration = Registration {
                weight: sent.weight,
                metadata: sent.metadata(service, lease)?,
                check: Some(sent.check(lease)),
                isolate: Some(!sent.enabled),
                // A registration is a sign of life.
                health: if sent.ephemeral { Some(crate::Health::Passing) } else { before.map(|it| it.health) },
                ..Registration::new(id.clone(), key.clone(), &sent.ip, sent.port)
            };
            Ok::<_, ApiError>(Edit::Register(Box::new(registration)))
        });
        let written = written.await?;
        if written.changed() {
            self.audit("register", &sent.shown_id(service));
        }
        Ok(written)
    }

    /// Returns the instance with this address and cluster in the service, registered by this front or another.
    pub(super) async fn found(&self, service: &Service, sent: &Sent) -> Result<Option<Arc<Instance>>, ApiError> {
        let registry = &self.context.registry;
        if let Some(instance) = registry.instance_or_ask(&self.id(service, sent)?).await {
            return Ok(Some(instance));
        }
        let Some(snapshot) = registry.snapshot(&self.key(service)?) else { return Ok(None) };
        let same =
            |it: &&Arc<Instance>| *it.host == *sent.ip && it.port == sent.port && wire::cluster(it) == sent.cluster;
        Ok(snapshot.instances.iter().find(same).map(Arc::clone))
    }

    /// Sets overrides of an instance, whichever front registered it: its registration stays as it is, and what it depends on.
    ///
    /// # Errors
    /// The service or the instance is unknown; metadata would change the times of the instance's lease.
    pub(super) async fn overlay(
        &self,
        service: &Service,
        sent: &Sent,
        overlay: &OverlayChange,
    ) -> Result<(), ApiError> {
        let missing = || ApiError::NotFound { what: "instance", name: sent.shown_id(service) };
        let Some(instance) = self.found(service, sent).await? else {
            let known = self.context.registry.snapshot(&self.key(service)?);
            return Err(known.map_or_else(|| self.no_such_service(service), |_| missing()));
        };
        if self.overlay_found(&instance, overlay).await? { Ok(()) } else { Err(missing()) }
    }

    /// Sets overrides of an instance that was found, like [`Naming::overlay`]. False if it has gone since.
    async fn overlay_found(&self, instance: &Instance, overlay: &OverlayChange) -> Result<bool, ApiError> {
        let mut there = true;
        let written = self.context.registry.change(&instance.id, |row| {
            there = row.is_some();
            let Some(row) = row else { return Ok(Edit::Nothing) };
            let mut overlay = overlay.clone();
            for key in wire::LEASE_KEYS {
                // Who sends all metadata that a list shows changes nothing here.
                if let Some(value) = overlay.entries.remove(key).flatten()
                    && row.metadata.get(key) != Some(&*value)
                {
                    return Err(ApiError::bad(format!(
                        "metadata.{key} = {value:?}: expected the instance's own value, which nobody else can change"
                    )));
                }
            }
            Ok(Edit::Patch(Patch { overlay: Some(overlay), ..Patch::default() }))
        });
        if written.await?.changed() {
            self.audit("override", instance.id.local());
        }
        Ok(there)
    }

    /// Sets overrides of the `sent` instances of a service, or of all if none are sent. Returns those that are there.
    ///
    /// # Errors
    /// There are too many instances; otherwise as [`Naming::overlay`].
    pub(super) async fn overlay_several(
        &self,
        service: &Service,
        sent: &[Sent],
        overlay: &OverlayChange,
    ) -> Result<Vec<Arc<Instance>>, ApiError> {
        self.context.batch("instances", sent.len())?;
        let mut found = Vec::new();
        for sent in sent {
            found.extend(self.found(service, sent).await?);
        }
        if sent.is_empty()
            && let Some(snapshot) = self.context.registry.snapshot(&self.key(service)?)
        {
            self.context.batch("the service's instances, of which none is named", snapshot.instances.len())?;
            found.extend(snapshot.instances.iter().cloned());
        }
        let changes: Vec<_> = found.iter().map(|instance| self.overlay_found(instance, overlay)).collect();
        // One batch of the writer takes many.
        let there: Vec<bool> = stream::iter(changes).buffered(AT_ONCE).try_collect().await?;
        Ok(found.into_iter().zip(there).filter(|(_, there)| *there).map(|(instance, _)| instance).collect())
    }

    /// Removes the instance, whichever front registered it. A missing instance is no error.
    pub(super) async fn remove(&self, service: &Service, sent: &Sent) -> Result<(), ApiError> {
        let Some(instance) = self.found(service, sent).await? else { return Ok(()) };
        self.remove_found(&instance).await
    }

    /// Removes an instance that was found, like [`Naming::remove`].
    pub(super) async fn remove_found(&self, instance: &Instance) -> Result<(), ApiError> {
        let rows = self.context.registry.deregister(std::slice::from_ref(&instance.id)).await;
        match rows.into_iter().next() {
            Some(Err(error)) if !matches!(error, crate::WriteError::NotFound { .. }) => Err(error.into()),
            _ => {
                self.audit("deregister", instance.id.local());
                Ok(())
            }
        }
    }

    /// Returns the instances of a service for clients. Does not check the caller's permission.
    pub(super) async fn hosts(&self, service: &Service, wanted: &Wanted) -> Result<Hosts, ApiError> {
        hosts(self.context, service, &self.key(service)?, wanted).await
    }

    /// Returns the names of a service's clusters, in alphabetical order.
    ///
    /// # Errors
    /// The service does not exist.
    pub(super) async fn clusters(&self, service: &Service) -> Result<BTreeSet<String>, ApiError> {
        let snapshot = self.context.registry.snapshot(&self.key(service)?);
        let snapshot = snapshot.ok_or_else(|| self.no_such_service(service))?;
        let clusters = move || snapshot.instances.iter().map(|instance| wire::cluster(instance)).collect();
        self.context.lists.apart(clusters).await
    }

    /// True if a service has instances that live by their clients' signs of life.
    pub(super) fn is_ephemeral(&self, service: &Service) -> Result<bool, ApiError> {
        let snapshot = self.context.registry.snapshot(&self.key(service)?);
        Ok(snapshot.is_some_and(|snapshot| snapshot.instances.iter().any(|it| wire::is_ephemeral(it))))
    }

    /// Returns the service's record; the default one if no client of Nacos has set one.
    pub(super) fn record(&self, service: &Service) -> Result<ServiceRecord, ApiError> {
        let snapshot = self.context.registry.snapshot(&self.key(service)?);
        let metadata = snapshot.as_ref().and_then(|snapshot| snapshot.metadata.as_ref());
        Ok(metadata.and_then(ServiceRecord::read).unwrap_or_default())
    }

    /// Writes the record of a service: of one that must not exist if `new`, else of one that must.
    pub(super) async fn put_record(
        &self,
        service: &Service,
        record: &ServiceRecord,
        new: bool,
    ) -> Result<(), ApiError> {
        let (key, registry) = (self.key(service)?, &self.context.registry);
        match registry.snapshot(&key).is_some() {
            true if new => {
                let (name, namespace) = (service.full(), self.namespace.as_str());
                let text = format!("the service {name:?} already exists in the namespace {namespace:?}");
                return Err(coded(Code::ServiceExists, text));
            }
            false if !new => return Err(self.no_such_service(service)),
            _ => {}
        }
        if registry.put_service(key, record.metadata()?).await?.changed() {
            self.audit("put_service", &service.full());
        }
        Ok(())
    }

    /// Removes a service.
    ///
    /// # Errors
    /// The service does not exist, or has instances.
    pub(super) async fn remove_service(&self, service: &Service) -> Result<(), ApiError> {
        let (key, registry) = (self.key(service)?, &self.context.registry);
        registry.snapshot(&key).ok_or_else(|| self.no_such_service(service))?;
        registry.delete_service(&key).await.map_err(|error| match error {
            crate::WriteError::NotEmpty { .. } => coded(Code::ServiceDelete, error.to_string()),
            other => other.into(),
        })?;
        self.audit("delete_service", &service.full());
        Ok(())
    }

    fn no_such_service(&self, service: &Service) -> ApiError {
        let text = format!("no service {:?} in the namespace {:?}", service.full(), self.namespace.as_str());
        coded(Code::NoService, text)
    }

    /// Returns the names, without group, of the services of `group`: those of page `page` (from 1), and the total number. Services without instances
    /// are included if `empty`. An empty group is the default one.
    pub(super) async fn services(
        &self,
        group: &str,
        page: u64,
        size: u64,
        empty: bool,
    ) -> Result<(Vec<String>, usize), ApiError> {
        let group = if group.is_empty() { wire::DEFAULT_GROUP } else { group }.to_owned();
        let (registry, ns, caller) = (self.context.registry.clone(), self.namespace.clone(), self.caller.clone());
        let names = move || -> Vec<String> {
            let services = registry.services(Some(&ns));
            let named = services.iter().filter(|it| (empty || !it.instances.is_empty()) && caller.may_read(&it.key));
            let named = named.filter_map(|service| Service::of(service.key.name(), "").ok());
            named.filter(|service| service.group == group).map(|service| service.name).collect()
        };
        let names = self.context.lists.apart(names).await?;
        let size = usize::try_from(size).unwrap_or(MOST_NAMES).clamp(1, MOST_NAMES);
        let skipped = usize::try_from(page.max(1) - 1).unwrap_or(usize::MAX).saturating_mul(size);
        let count = names.len();
        Ok((names.into_iter().skip(skipped).take(size).collect(), count))
    }
}

/// Returns the instances of a service for clients. Cached encodings are reused; if many instances must be encoded, another thread does it.
///
/// # Errors
/// The server is stopping.
pub(super) async fn hosts(
    context: &Context,
    service: &Service,
    key: &ServiceKey,
    wanted: &Wanted,
) -> Result<Hosts, ApiError> {
    let revision = context.registry.revision_of(key);
    let Some(snapshot) = context.registry.snapshot(key) else {
        return Ok(Hosts { revision, parts: Vec::new(), digest: Digest::of_bytes(&[]), protected: false });
    };
    let selection = wanted.of(&snapshot);
    let kept = selection.kept();
    let made = |encodings: &crate::cache::Encodings| kept.is_some_and(|kept| encodings.made(kept, false));
    let lacking = snapshot.instances.pieces().filter(|piece| !made(piece.encodings()));
    let lacking: usize = lacking.map(|piece| piece.len()).sum();
    if lacking <= MOST_AT_ONCE {
        return Ok(encoded(&snapshot, service, &selection));
    }
    let service = service.clone();
    context.lists.apart(move || encoded(&snapshot, &service, &selection)).await
}

fn encoded(snapshot: &ServiceSnapshot, service: &Service, selection: &Selection) -> Hosts {
    let (revision, protected) = (snapshot.revision, selection.protected);
    let mut hosts = Hosts { revision, parts: Vec::new(), digest: Digest::default(), protected };
    let mut digests = Vec::new();
    for piece in snapshot.instances.pieces() {
        let encode = || selection.encode(piece, service);
        let part = selection.kept().map_or_else(encode, |kept| piece.encodings().get(kept, encode));
        if part.is_empty() {
            continue;
        }
        let digest = || Bytes::copy_from_slice(&Digest::of_bytes(&part).0);
        digests.push(match selection.kept() {
            Some(Encoding::NacosHosts) => piece.encodings().get(Encoding::NacosDigest, digest),
            _ => digest(),
        });
        hosts.parts.push(part);
    }
    let mut content = digests.concat();
    content.push(u8::from(protected));
    hosts.digest = Digest::of_bytes(&content);
    hosts
}
