//! An operator's view of what is registered with Eureka: what the original's server shows on its own page.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::servers::{EurekaServer, EurekaServers};
use super::view::{self, app_name};
use super::wire::Kept;
use crate::api::identity;
use crate::{Instance, NamespaceName, Registry};

/// Most instances of an application that are listed; all are counted.
const LISTED: usize = 100;
/// Interval of renewals that the original expects of a client that names none.
const RENEWAL_SECONDS: u64 = 30;
/// Seconds of the count of renewals.
const MINUTE: u64 = 60;

/// Renewals of leases at this node in the last minute.
#[derive(Debug)]
pub(in crate::api) struct Renewals {
    began: Instant,
    counts: Mutex<Counts>,
}

#[derive(Debug)]
struct Counts {
    /// The second of the newest count.
    newest: u64,
    /// A count for each second, by its number.
    seconds: [u64; MINUTE as usize],
}

impl Default for Renewals {
    fn default() -> Renewals {
        Renewals { began: Instant::now(), counts: Mutex::new(Counts { newest: 0, seconds: [0; MINUTE as usize] }) }
    }
}

impl Renewals {
    /// Counts a renewal.
    pub(super) fn note(&self, now: Instant) {
        self.at(now, |counts, second| counts.seconds[(second % MINUTE) as usize] += 1);
    }

    /// Returns the number of renewals in the minute before `now`.
    fn last_minute(&self, now: Instant) -> u64 {
        self.at(now, |counts, _| counts.seconds.iter().sum())
    }

    fn at<T>(&self, now: Instant, work: impl FnOnce(&mut Counts, u64) -> T) -> T {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let second = now.saturating_duration_since(self.began).as_secs().max(counts.newest);
        for old in counts.newest + 1..=second.min(counts.newest + MINUTE) {
            counts.seconds[(old % MINUTE) as usize] = 0;
        }
        counts.newest = second;
        work(&mut counts, second)
    }
}

/// Eureka's front, to look at.
#[derive(Clone)]
pub struct EurekaView {
    registry: Registry,
    renewals: Arc<Renewals>,
    servers: Option<Arc<EurekaServers>>,
}

/// The applications of a namespace and their leases.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EurekaOverview {
    /// Applications, those with an instance that is not UP first, then by name.
    pub applications: Vec<EurekaApplication>,
    /// Number of all applications.
    pub total: usize,
    /// Renewals a minute that the instances' intervals come to, at all nodes.
    pub expected: u64,
    /// Renewals in the last minute at this node.
    pub renewed: u64,
    /// Longest time since which instances of the namespace, or of the whole registry, are kept for so many are silent; None if none are.
    pub protected: Option<Duration>,
    /// Eureka's own servers that are told of changes.
    pub servers: Vec<EurekaServer>,
}

/// An application with its instances, as Eureka's clients see them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EurekaApplication {
    /// The name, in upper case.
    pub name: String,
    /// Number of instances by machine image, by zone and by status; an empty name stands for instances that name none.
    pub images: BTreeMap<String, usize>,
    /// See `images`.
    pub zones: BTreeMap<String, usize>,
    /// See `images`.
    pub statuses: BTreeMap<&'static str, usize>,
    /// Instances, those that are not UP first.
    pub instances: Vec<EurekaInstance>,
}

/// An instance of an application.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EurekaInstance {
    /// The status in force.
    pub status: &'static str,
    /// The client's id.
    pub id: String,
    /// Id of the registry's instance, `namespace/id`.
    pub instance: String,
    /// Address of the page about its state, as it was sent.
    pub page: Option<String>,
}

impl EurekaView {
    pub(in crate::api) fn new(
        registry: Registry,
        renewals: Arc<Renewals>,
        servers: Option<Arc<EurekaServers>>,
    ) -> EurekaView {
        EurekaView { registry, renewals, servers }
    }

    /// Returns up to `limit` applications of a namespace. Looks at every instance there.
    pub fn look(&self, namespace: &NamespaceName, limit: usize) -> EurekaOverview {
        let mut all: BTreeMap<String, EurekaApplication> = BTreeMap::new();
        let mut expected = 0.0;
        for service in self.registry.services(Some(namespace)) {
            for instance in service.instances.iter() {
                let Some(status) = view::status(instance) else { continue };
                let name = app_name(service.key.name());
                let application =
                    all.entry(name.clone()).or_insert_with(|| EurekaApplication { name, ..Default::default() });
                expected += add(application, instance, status);
            }
        }
        let total = all.len();
        let mut applications: Vec<EurekaApplication> = all.into_values().collect();
        applications.sort_by_key(|application| application.statuses.keys().all(|status| *status == "UP"));
        applications.truncate(limit);
        for application in &mut applications {
            application.instances.sort_by(|a, b| (a.status == "UP", a).cmp(&(b.status == "UP", b)));
            application.instances.truncate(LISTED);
        }
        let protected = self.registry.status().protected;
        let here = protected
            .into_iter()
            .filter(|(service, _)| service.as_ref().is_none_or(|service| service.namespace() == namespace.as_str()));
        EurekaOverview {
            applications,
            total,
            // The cast rounds.
            expected: expected as u64,
            renewed: self.renewals.last_minute(Instant::now()),
            protected: here.map(|(_, since)| since).max(),
            servers: self.servers.as_ref().map(|servers| servers.status()).unwrap_or_default(),
        }
    }
}

/// Adds an instance to its application. Returns the renewals a minute that are expected of it.
fn add(application: &mut EurekaApplication, instance: &Instance, status: &'static str) -> f64 {
    let kept = Kept::of(instance).unwrap_or_default();
    let center = |key: &str| kept.fields.get("dataCenterInfo")?.get("metadata")?.get(key)?.as_str().map(str::to_owned);
    let zone = center("availability-zone").or_else(|| instance.metadata.get("zone").map(str::to_owned));
    *application.images.entry(center("ami-id").unwrap_or_default()).or_default() += 1;
    *application.zones.entry(zone.unwrap_or_default()).or_default() += 1;
    *application.statuses.entry(status).or_default() += 1;
    let page = ["statusPageUrl", "homePageUrl"].map(|field| kept.text(field).to_owned());
    application.instances.push(EurekaInstance {
        status,
        id: identity::in_eureka(instance).to_owned(),
        instance: instance.id.as_str().to_owned(),
        page: page.into_iter().find(|page| !page.is_empty()),
    });
    if !identity::is_eureka(instance) {
        return 0.0;
    }
    let seconds = kept.fields.get("renewalIntervalInSecs").and_then(Value::as_u64).unwrap_or(RENEWAL_SECONDS);
    60.0 / seconds.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_of_the_last_minute() {
        let renewals = Renewals::default();
        let at = |seconds| renewals.began + Duration::from_secs(seconds);
        for second in [0, 0, 30, 59] {
            renewals.note(at(second));
        }
        for (second, expected) in [(59, 4), (60, 2), (89, 2), (90, 1), (118, 1), (119, 0), (100_000, 0)] {
            assert_eq!(renewals.last_minute(at(second)), expected, "{second}");
        }
        // A clock that seems to go back counts for the newest second.
        renewals.note(at(5));
        assert_eq!(renewals.last_minute(at(100_000)), 1);
    }
}
