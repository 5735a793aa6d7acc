//! Subscriptions and sent resources of a stream: requests in, responses out. Without I/O and without a clock.
//!
//! ```text
//!  DiscoveryRequest ─▶ request ─▶ Subscription a type: names, and what was sent of each ─▶ next ─▶ DiscoveryResponse
//!                                                          World: services as they are ──┘
//! ```
//!
//! Nothing is queued: a response is made when there is room for it, from the current state. So a slow client gets fewer responses, and never an
//! outdated one.
//!
//! - A request always has all names of a type that the client wants; so the last request counts, whatever its nonce.
//! - The nonce identifies the response that is acknowledged or rejected. A nonce other than the last response's does neither.
//! - A rejected resource is sent again only after a change.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::endpoints;
use super::resources::{Kind, Resource, fixed, key};
use crate::{Revision, ServiceKey, ServiceSnapshot};

/// All services that a client may see, with their clusters: made once for all streams.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::api) struct Listing {
    /// Services, sorted by key.
    services: Vec<(ServiceKey, Bytes)>,
    version: String,
}

impl Listing {
    /// Makes a listing of services in any order.
    pub(in crate::api) fn new(keys: impl IntoIterator<Item = ServiceKey>) -> Listing {
        let cluster = |key: ServiceKey| {
            let cluster = fixed(Kind::Cluster, key.as_str());
            (key, cluster)
        };
        Listing::of(keys.into_iter().map(cluster).collect())
    }

    /// Makes a listing of several together.
    pub(in crate::api) fn joined<'a>(listings: impl IntoIterator<Item = &'a Arc<Listing>>) -> Listing {
        Listing::of(listings.into_iter().flat_map(|listing| listing.services.iter().cloned()).collect())
    }

    fn of(mut services: Vec<(ServiceKey, Bytes)>) -> Listing {
        services.sort_unstable_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
        let version = version(services.iter().map(|(key, _)| key.as_str()));
        Listing { services, version }
    }

    /// Returns the number of services.
    pub(in crate::api) fn len(&self) -> usize {
        self.services.len()
    }

    fn has(&self, name: &str) -> bool {
        self.services.binary_search_by(|(key, _)| key.as_str().cmp(name)).is_ok()
    }
}

/// Maximum number of names of a stream, of all types together.
pub(in crate::api) const NAMES: usize = 4096;
/// Maximum number of services for a client that asks for all.
pub(in crate::api) const LISTED: usize = 20_000;
/// Length above which a response gets no further endpoints; they come in the next one. Clients accept no message of more than 4 MiB.
const RESPONSE_BYTES: usize = 1 << 20;
/// Name of all resources of a type.
const ALL: &str = "*";

/// The services, as far as the client may see them.
pub(in crate::api) trait World {
    /// Returns the service; `None` if there is none, or the client may not see it.
    fn service(&self, key: &ServiceKey) -> Option<Arc<ServiceSnapshot>>;

    /// Returns the service's encoded assignment with its key as name: the same bytes for all clients.
    fn assignment(&self, service: &ServiceSnapshot) -> Bytes;
}

/// The relevant fields of a request.
#[derive(Debug, Clone)]
pub(in crate::api) struct Asked {
    /// Type of the resources.
    pub(in crate::api) kind: Kind,
    /// All resources of the type that the client wants.
    pub(in crate::api) names: Vec<String>,
    /// Nonce of the response that is answered; empty if none is.
    pub(in crate::api) nonce: String,
    /// Reason why the client rejects the response.
    pub(in crate::api) refused: Option<String>,
}

/// Effect of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::api) struct Noted {
    /// True if the client wants other resources than before.
    pub(in crate::api) names: bool,
    /// True if the client has rejected the last response.
    pub(in crate::api) refused: bool,
}

/// Error for more names than a stream may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::api) struct TooMany;

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::api) struct XdsResponse {
    /// Type of the resources.
    pub(in crate::api) kind: Kind,
    /// Version of the content: the highest revision of the services with endpoints in it, or a checksum of names.
    pub(in crate::api) version: String,
    /// Nonce by which the client acknowledges the response.
    pub(in crate::api) nonce: String,
    /// The resources.
    pub(in crate::api) resources: Vec<Resource>,
}

/// The state of a stream.
#[derive(Debug, Default)]
pub(in crate::api) struct Exchange {
    subscriptions: BTreeMap<Kind, Subscription>,
    /// Nonce of the last response.
    nonce: u64,
    /// Services for a client that asks for all; `None` if not yet known.
    listed: Option<Arc<Listing>>,
}

/// The client's subscription to a type.
#[derive(Debug, Default)]
struct Subscription {
    names: BTreeMap<String, Name>,
    /// True if the client wants all resources.
    all: bool,
    /// True once the client has asked by name: from then on an empty list means none, not all.
    named: bool,
    /// True if a response is due even if it is empty.
    owed: bool,
    /// Nonce of the last response; 0 before the first one.
    nonce: u64,
    /// The listing in the last response.
    listed: Option<Arc<Listing>>,
}

/// A name that the client wants.
#[derive(Debug)]
struct Name {
    key: Option<ServiceKey>,
    sent: Sent,
}

/// The state of a name at the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// Nothing, or the information that the resource does not exist.
    Nothing,
    /// The resource, which never changes.
    Fixed,
    /// Endpoints: their revision (`None` if there was no service), and their checksum.
    Endpoints(Option<Revision>, Sum),
}

/// A checksum of encoded endpoints.
type Sum = [u8; 32];

impl Exchange {
    /// Processes a request.
    ///
    /// # Errors
    /// The stream would have more than [`NAMES`]; then nothing is changed.
    pub(in crate::api) fn request(&mut self, asked: Asked) -> Result<Noted, TooMany> {
        let others: usize =
            self.subscriptions.iter().filter(|(kind, _)| **kind != asked.kind).map(|(_, of)| of.names.len()).sum();
        if asked.names.len() > NAMES - others.min(NAMES) {
            return Err(TooMany);
        }
        let subscription = self.subscriptions.entry(asked.kind).or_default();
        let answers = !asked.nonce.is_empty() && asked.nonce == subscription.nonce.to_string();
        let noted = Noted { names: subscription.want(asked.kind, asked.names), refused: false };
        Ok(Noted { refused: answers && asked.refused.is_some(), ..noted })
    }

    /// Returns the next response, from the current state; `None` if the client has everything that it asked for.
    pub(in crate::api) fn next(&mut self, world: &impl World) -> Option<XdsResponse> {
        for kind in Kind::ALL {
            let Some(subscription) = self.subscriptions.get_mut(&kind) else { continue };
            let found = match kind {
                Kind::Cluster | Kind::Listener => subscription.whole(kind, world, self.listed.as_ref()),
                Kind::Route => subscription.routes(world),
                Kind::Endpoints => subscription.endpoints(world),
            };
            let Some((version, resources)) = found else { continue };
            self.nonce += 1;
            subscription.nonce = self.nonce;
            let resource = |value| Resource { type_url: kind.type_url().into(), value };
            let resources = resources.into_iter().map(resource).collect();
            return Some(XdsResponse { kind, version, nonce: self.nonce.to_string(), resources });
        }
        None
    }

    /// True if the client wants all services.
    pub(in crate::api) fn wants_all(&self) -> bool {
        self.subscriptions.get(&Kind::Cluster).is_some_and(|subscription| subscription.all)
    }

    /// Sets the services for a client that wants all of them.
    pub(in crate::api) fn list(&mut self, listing: Arc<Listing>) {
        self.listed = Some(listing);
    }

    /// Returns the services that the client asked for by name; some more than once.
    pub(in crate::api) fn keys(&self) -> impl Iterator<Item = &ServiceKey> {
        self.subscriptions
            .values()
            .flat_map(|subscription| subscription.names.values())
            .filter_map(|it| it.key.as_ref())
    }
}

impl Subscription {
    /// Replaces the names that the client wants; returns true if they have changed.
    fn want(&mut self, kind: Kind, names: Vec<String>) -> bool {
        let begins = self.nonce == 0 && self.names.is_empty() && !self.all && !self.named;
        self.named |= !names.is_empty();
        let all = kind.is_whole() && (!self.named || names.iter().any(|name| name == ALL));
        let mut changed = all != self.all || begins;
        self.owed |= all && !self.all;
        self.all = all;
        if !all {
            self.listed = None;
        }
        let mut before = std::mem::take(&mut self.names);
        for name in names.into_iter().filter(|name| !(kind.is_whole() && name == ALL)) {
            if self.names.contains_key(&name) {
                continue;
            }
            let known = before.remove(&name);
            changed |= known.is_none();
            // A request for further names is answered even if they do not exist.
            self.owed |= known.is_none();
            let new = || Name { key: key(&name), sent: Sent::Nothing };
            let state = known.unwrap_or_else(new);
            self.names.insert(name, state);
        }
        // A response without the names that the client no longer wants would tell it nothing.
        changed |= !before.is_empty();
        changed
    }

    /// Returns all existing resources, if the client has others, or a response is due.
    fn whole(&mut self, kind: Kind, world: &impl World, listed: Option<&Arc<Listing>>) -> Option<(String, Vec<Bytes>)> {
        let lists = self.all && kind == Kind::Cluster;
        if lists && listed.is_none() {
            return None;
        }
        let listed = listed.filter(|_| lists);
        let mut changed = self.owed || self.listed.as_ref() != listed;
        for name in self.names.values_mut() {
            let is_there = name.key.as_ref().and_then(|key| world.service(key)).is_some();
            let now = if is_there { Sent::Fixed } else { Sent::Nothing };
            changed |= name.sent != now;
            name.sent = now;
        }
        if !changed {
            return None;
        }
        self.owed = false;
        self.listed = listed.cloned();
        let there = self.names.iter().filter(|(_, state)| state.sent == Sent::Fixed).map(|(name, _)| name.as_str());
        let named: Vec<&str> = there.filter(|name| !listed.is_some_and(|listing| listing.has(name))).collect();
        let of_names = version(named.iter().copied());
        let version = match listed {
            Some(listing) if named.is_empty() => listing.version.clone(),
            Some(listing) => format!("{}-{of_names}", listing.version),
            None => of_names,
        };
        let all = listed.into_iter().flat_map(|listing| listing.services.iter().map(|(_, bytes)| bytes.clone()));
        Some((version, all.chain(named.into_iter().map(|name| fixed(kind, name))).collect()))
    }

    /// Returns the existing routes that the client does not have. Missing routes are not reported.
    fn routes(&mut self, world: &impl World) -> Option<(String, Vec<Bytes>)> {
        self.owed = false;
        let mut names = Vec::new();
        for (name, state) in &mut self.names {
            match state.key.as_ref().and_then(|key| world.service(key)) {
                Some(_) if state.sent == Sent::Nothing => {
                    state.sent = Sent::Fixed;
                    names.push(name.as_str());
                }
                Some(_) => {}
                None => state.sent = Sent::Nothing,
            }
        }
        let found = (!names.is_empty()).then(|| names.iter().map(|name| fixed(Kind::Route, name)).collect());
        Some((version(names.iter().copied()), found?))
    }

    /// Returns endpoints that differ from the client's, as many as fit into a response. A missing service has an empty assignment.
    fn endpoints(&mut self, world: &impl World) -> Option<(String, Vec<Bytes>)> {
        self.owed = false;
        let (mut highest, mut bytes, mut found) = (Revision(0), 0, Vec::new());
        for (name, state) in &mut self.names {
            if bytes >= RESPONSE_BYTES {
                break;
            }
            let service = state.key.as_ref().and_then(|key| world.service(key));
            let revision = service.as_ref().map(|service| service.revision);
            let before = match state.sent {
                Sent::Endpoints(known, _) if known == revision => continue,
                Sent::Endpoints(_, sum) => Some(sum),
                _ => None,
            };
            let value = match &service {
                Some(service) => endpoints::renamed(&world.assignment(service), service.key.as_str(), name),
                None => endpoints::none(name),
            };
            let sum: Sum = Sha256::digest(&value).into();
            state.sent = Sent::Endpoints(revision, sum);
            if before == Some(sum) {
                continue;
            }
            highest = highest.max(revision.unwrap_or(Revision(0)));
            bytes += value.len();
            found.push(value);
        }
        (!found.is_empty()).then(|| (highest.0.to_string(), found))
    }
}

/// Returns a version of resources that depend on their names only.
fn version<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut sum = Sha256::new();
    for name in names {
        sum.update((name.len() as u64).to_be_bytes());
        sum.update(name.as_bytes());
    }
    sum.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
