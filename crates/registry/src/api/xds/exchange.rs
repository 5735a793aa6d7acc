//! What a client has asked for on one stream and what it was told: requests in, responses out. Without I/O and without a clock.
//!
//! ```text
//!  DiscoveryRequest ─▶ request ─▶ Subscription a type: names, and what was sent of each ─▶ next ─▶ DiscoveryResponse
//!                                                          World: services as they are ──┘
//! ```
//!
//! Nothing is queued: a response is made when there is room for it, of what there is then. So a client that is slow gets fewer responses, and
//! never an old one.
//!
//! - A request always has all names that the client wants of a type; so the last request counts, whatever its nonce.
//! - The nonce says which response is acknowledged or refused. One that is not that of the last response says neither.
//! - What was refused is not sent again. When it changes it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::endpoints;
use super::resources::{Kind, Resource, fixed, key};
use crate::{Revision, ServiceKey, ServiceSnapshot};

/// Services that a client sees which asks for all of them, and their clusters: made once for all streams.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::api) struct Listing {
    /// Sorted by key.
    services: Vec<(ServiceKey, Bytes)>,
    version: String,
}

impl Listing {
    /// Of these services, in any order.
    pub(in crate::api) fn new(keys: impl IntoIterator<Item = ServiceKey>) -> Listing {
        let cluster = |key: ServiceKey| {
            let cluster = fixed(Kind::Cluster, key.as_str());
            (key, cluster)
        };
        Listing::of(keys.into_iter().map(cluster).collect())
    }

    /// All of these together.
    pub(in crate::api) fn joined<'a>(listings: impl IntoIterator<Item = &'a Arc<Listing>>) -> Listing {
        Listing::of(listings.into_iter().flat_map(|listing| listing.services.iter().cloned()).collect())
    }

    fn of(mut services: Vec<(ServiceKey, Bytes)>) -> Listing {
        services.sort_unstable_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
        let version = version(services.iter().map(|(key, _)| key.as_str()));
        Listing { services, version }
    }

    /// How many services.
    pub(in crate::api) fn len(&self) -> usize {
        self.services.len()
    }

    fn has(&self, name: &str) -> bool {
        self.services.binary_search_by(|(key, _)| key.as_str().cmp(name)).is_ok()
    }
}

/// Names that a client may ask for on one stream, of all types together.
pub(in crate::api) const NAMES: usize = 4096;
/// Services that a client is told of which asks for all.
pub(in crate::api) const LISTED: usize = 20_000;
/// A response that has so many bytes gets no further endpoints; they come in the next one. Clients take no message of more than 4 MiB.
const RESPONSE_BYTES: usize = 1 << 20;
/// The name that stands for all resources of a type.
const ALL: &str = "*";

/// What services are, as far as the client may see them.
pub(in crate::api) trait World {
    /// The service; `None` where there is none, or the client may not see it.
    fn service(&self, key: &ServiceKey) -> Option<Arc<ServiceSnapshot>>;

    /// The service's assignment, encoded: under its key as name, the same bytes for all who ask.
    fn assignment(&self, service: &ServiceSnapshot) -> Bytes;
}

/// A request, as far as it matters here.
#[derive(Debug, Clone)]
pub(in crate::api) struct Asked {
    /// Of which type.
    pub(in crate::api) kind: Kind,
    /// All resources of the type that the client wants.
    pub(in crate::api) names: Vec<String>,
    /// That of the response which is answered; empty: none is.
    pub(in crate::api) nonce: String,
    /// Why the client does not take the response.
    pub(in crate::api) refused: Option<String>,
}

/// What a request has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::api) struct Noted {
    /// The client wants other resources than before.
    pub(in crate::api) names: bool,
    /// The client has refused the last response.
    pub(in crate::api) refused: bool,
}

/// More names than a stream may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::api) struct TooMany;

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::api) struct Told {
    /// Of which type.
    pub(in crate::api) kind: Kind,
    /// Of what it is: the highest revision of services whose endpoints are in it, or a check sum of names.
    pub(in crate::api) version: String,
    /// By which the client acknowledges it.
    pub(in crate::api) nonce: String,
    /// The resources.
    pub(in crate::api) resources: Vec<Resource>,
}

/// The state of a stream.
#[derive(Debug, Default)]
pub(in crate::api) struct Exchange {
    subscriptions: BTreeMap<Kind, Subscription>,
    /// Of the last response.
    nonce: u64,
    /// What a client is told that asks for all; `None`: not known yet.
    listed: Option<Arc<Listing>>,
}

/// What the client wants of one type.
#[derive(Debug, Default)]
struct Subscription {
    names: BTreeMap<String, Name>,
    /// The client wants all of them.
    all: bool,
    /// The client has asked by name: no names are none from then on, and not all.
    named: bool,
    /// It is to be answered even if there is nothing.
    owed: bool,
    /// Of the last response; 0: there was none.
    nonce: u64,
    /// What the client was last told that there is in all.
    listed: Option<Arc<Listing>>,
}

/// A name that the client wants.
#[derive(Debug)]
struct Name {
    key: Option<ServiceKey>,
    sent: Sent,
}

/// What the client has of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// Nothing, or that it is not there.
    Nothing,
    /// The resource, which never changes.
    Fixed,
    /// Endpoints: of which revision (`None`: there was no service), and what they were.
    Endpoints(Option<Revision>, Sum),
}

/// A check sum of encoded endpoints.
type Sum = [u8; 32];

impl Exchange {
    /// Takes a request.
    ///
    /// # Errors
    /// The stream would have more than [`NAMES`]; nothing has changed then.
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

    /// The next response, of what there is now; `None`: the client knows everything that it asked for.
    pub(in crate::api) fn next(&mut self, world: &impl World) -> Option<Told> {
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
            return Some(Told { kind, version, nonce: self.nonce.to_string(), resources });
        }
        None
    }

    /// Whether the client wants to know all services.
    pub(in crate::api) fn wants_all(&self) -> bool {
        self.subscriptions.get(&Kind::Cluster).is_some_and(|subscription| subscription.all)
    }

    /// Says which services there are, for a client that wants all of them.
    pub(in crate::api) fn list(&mut self, listing: Arc<Listing>) {
        self.listed = Some(listing);
    }

    /// The services that the client asked for by name; some more than once.
    pub(in crate::api) fn keys(&self) -> impl Iterator<Item = &ServiceKey> {
        self.subscriptions
            .values()
            .flat_map(|subscription| subscription.names.values())
            .filter_map(|it| it.key.as_ref())
    }
}

impl Subscription {
    /// Takes all names that the client wants now; whether these are others than before.
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
            // Whoever asks for more hears also what of it is not there.
            self.owed |= known.is_none();
            let new = || Name { key: key(&name), sent: Sent::Nothing };
            let state = known.unwrap_or_else(new);
            self.names.insert(name, state);
        }
        // An answer without what the client no longer wants would tell it nothing.
        changed |= !before.is_empty();
        changed
    }

    /// All resources that are there, if the client has others, or is owed an answer.
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

    /// The routes that are there and that the client has not. It hears nothing of those that are not there.
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

    /// Endpoints that are others than the client has; as many as go into one response. Of a service that is not there: that it has none.
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

/// A version of resources that are what their names are.
fn version<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut sum = Sha256::new();
    for name in names {
        sum.update((name.len() as u64).to_be_bytes());
        sum.update(name.as_bytes());
    }
    sum.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
