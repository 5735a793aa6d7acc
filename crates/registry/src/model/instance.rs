//! Instances: what a client registers, what a client changes, and what the registry then holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::check::Part;
use super::digest::Content;
use super::limits::{self, Invalid, Limits};
use super::text::visible;
use super::{Check, Digest, InstanceId, Machines, Metadata, NamespaceName, Revision, ServiceKey};

/// Whether an instance can be used, as far as its check says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// In order.
    #[default]
    Passing,
    /// In order with a reservation; still served.
    Warning,
    /// Out of order.
    Critical,
}

/// Where an instance is. Each part may be empty; together at most 192 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Location {
    /// Largest part.
    pub region: Arc<str>,
    /// Within the region; what routing prefers.
    pub zone: Arc<str>,
    /// Within the zone.
    pub campus: Arc<str>,
}

/// What a client says about an instance of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// The id; [`InstanceId::derived`] gives one to who has none. In the namespace of `service`.
    pub id: InstanceId,
    /// Which service it belongs to.
    pub service: ServiceKey,
    /// Name or address: 1 to 253 bytes.
    pub host: String,
    /// 0 where the instance listens on none.
    #[serde(default)]
    pub port: u16,
    /// Free text: at most 32 bytes.
    #[serde(default)]
    pub protocol: String,
    /// Free text: at most 64 bytes.
    #[serde(default)]
    pub version: String,
    /// Share of the traffic among instances of one priority; 0: none.
    #[serde(default = "default_weight")]
    pub weight: u16,
    /// Lower is preferred; 0 is the first choice.
    #[serde(default)]
    pub priority: u16,
    /// Where it is.
    #[serde(default)]
    pub location: Location,
    /// Whatever else.
    #[serde(default)]
    pub metadata: Metadata,
    /// How its health is known; without one it stays as reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<Check>,
    /// Taken out by hand: not to be used, whatever its health. `None` leaves it as it was (an operator's decision survives
    /// the instance's registering again); of a new one: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolate: Option<bool>,
    /// `None` leaves it as it was; of a new one: passing. Where there are several checks each of them says that for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
}

/// What the registry's own ids of checks begin with.
pub(crate) const WATCHED: &str = "kingpost.check:";

fn default_weight() -> u16 {
    100
}

/// What is changed of an instance by somebody else than itself. `None`: left as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Patch {
    /// Taken out by hand, or put back.
    pub isolate: Option<bool>,
    /// Share of the traffic.
    pub weight: Option<u16>,
    /// Replaces all metadata.
    pub metadata: Option<Metadata>,
    /// Health set from outside; lasts until the next report of the instance's own check. Where the instance has several checks, it is that of
    /// each one which the registry does not find out by itself.
    pub health: Option<Health>,
    /// The health of some of several checks, by the checks' ids.
    #[serde(skip)]
    pub checks: BTreeMap<String, Health>,
}

/// One instance as of [`Instance::revision`]; never changed, only replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Instance {
    /// The id.
    pub id: InstanceId,
    /// Which service it belongs to.
    pub service: ServiceKey,
    /// Name or address.
    pub host: Arc<str>,
    /// 0: none.
    pub port: u16,
    /// Free text.
    pub protocol: Arc<str>,
    /// Free text.
    pub version: Arc<str>,
    /// Share of the traffic among instances of one priority; 0: none.
    pub weight: u16,
    /// Lower is preferred.
    pub priority: u16,
    /// Taken out by hand.
    pub isolate: bool,
    /// As far as its check says. A brake may keep an earlier verdict: see [`crate::Status`].
    pub health: Health,
    /// Where it is.
    pub location: Arc<Location>,
    /// Whatever else.
    pub metadata: Metadata,
    /// How its health is known.
    pub check: Option<Arc<Check>>,
    /// Of everything above, health included.
    #[serde(skip)]
    pub digest: Digest,
    /// The commit that made it so.
    pub revision: Revision,
    /// When it was first registered, in milliseconds since 1970 by the clock of the node that wrote it. For people.
    pub ctime: i64,
    /// When it was last changed; as `ctime`.
    pub mtime: i64,
    /// The machines that it runs on and that have a row of their own. Joined by the cache; no part of the row, nor of the digest.
    #[serde(skip)]
    pub machines: Machines,
}

// === impl Health ===

impl Health {
    pub(crate) fn code(self) -> u8 {
        match self {
            Health::Passing => 0,
            Health::Warning => 1,
            Health::Critical => 2,
        }
    }

    pub(crate) fn from_code(code: i64) -> Option<Health> {
        Some(match code {
            0 => Health::Passing,
            1 => Health::Warning,
            2 => Health::Critical,
            _ => return None,
        })
    }
}

// === impl Registration ===

impl Registration {
    /// The least there can be: everything else at its default.
    pub fn new(id: InstanceId, service: ServiceKey, host: &str, port: u16) -> Registration {
        Registration {
            id,
            service,
            host: host.into(),
            port,
            protocol: String::new(),
            version: String::new(),
            weight: default_weight(),
            priority: 0,
            location: Location::default(),
            metadata: Metadata::default(),
            check: None,
            isolate: None,
            health: None,
        }
    }

    /// Holds it against `limits` and against what makes sense.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self, limits: &Limits) -> Result<(), Invalid> {
        if self.id.namespace() != self.service.namespace() {
            return Err(Invalid::Value {
                what: "namespace of an instance id",
                found: self.id.namespace().into(),
                expected: "that of its service",
            });
        }
        visible("instance id", self.id.local())?;
        if self.id.local().starts_with(WATCHED) {
            return Err(Invalid::Value {
                what: "instance id",
                found: self.id.local().into(),
                expected: "one that does not begin with kingpost.check:, which is what the checks of instances are called",
            });
        }
        visible("service name", self.service.name())?;
        if self.id.is_of_machine() != self.service.is_of_machines() {
            return Err(Invalid::Value {
                what: "service of an instance",
                found: self.service.name().into(),
                expected: "kingpost.machines for ids that begin with kingpost.machine:, and for no others",
            });
        }
        limits::text("host", &self.host, 1, 253)?;
        if self.host.contains(char::is_whitespace) {
            return Err(Invalid::Character { what: "host", allowed: "a name or address, without spaces" });
        }
        limits::text("protocol", &self.protocol, 0, 32)?;
        limits::text("version", &self.version, 0, 64)?;
        let Location { region, zone, campus } = &self.location;
        for (what, part) in [("region", region), ("zone", zone), ("campus", campus)] {
            limits::text(what, part, 0, 64)?;
            visible(what, part)?;
        }
        visible("host", &self.host)?;
        visible("protocol", &self.protocol)?;
        visible("version", &self.version)?;
        if let Some(check) = &self.check {
            check.check()?;
        }
        self.metadata.check(limits)
    }
}

// === impl Instance ===

impl Instance {
    /// What a registration makes of `before` (an instance that is there; `None`: there is none). Times, revision and digest
    /// are those of `before`, or 0: whoever commits it sets them.
    pub(crate) fn registered(registration: Registration, before: Option<&Instance>) -> Instance {
        // What a check found goes with the check: nobody would ever correct it.
        let has_check = registration.check.is_some();
        let unchecked = |b: &Instance| !has_check && b.check.is_some();
        let kept = before.map(|b| (b.isolate, if unchecked(b) { Health::Passing } else { b.health }));
        let (isolate, health) = kept.unwrap_or_default();
        let mut check = registration.check;
        let worst = check.as_mut().and_then(|check| check.settle(before.and_then(|b| b.check.as_deref())));
        Instance {
            id: registration.id,
            service: registration.service,
            host: registration.host.into(),
            port: registration.port,
            protocol: registration.protocol.into(),
            version: registration.version.into(),
            weight: registration.weight,
            priority: registration.priority,
            isolate: registration.isolate.unwrap_or(isolate),
            health: worst.or(registration.health).unwrap_or(health),
            location: Arc::new(registration.location),
            metadata: registration.metadata,
            check: check.map(Arc::new),
            digest: Digest::default(),
            revision: before.map_or(Revision(0), |b| b.revision),
            ctime: before.map_or(0, |b| b.ctime),
            mtime: before.map_or(0, |b| b.mtime),
            machines: Machines::default(),
        }
    }

    /// With `patch` applied; digest, revision and times as before.
    pub(crate) fn patched(&self, patch: &Patch) -> Instance {
        let mut after = Instance { machines: Machines::default(), ..self.clone() };
        if let Some(isolate) = patch.isolate {
            after.isolate = isolate;
        }
        if let Some(weight) = patch.weight {
            after.weight = weight;
        }
        if let Some(metadata) = &patch.metadata {
            after.metadata = metadata.clone();
        }
        if let Some(health) = patch.health {
            after.health = health;
        }
        if (patch.health.is_some() || !patch.checks.is_empty())
            && let Some(check) = after.check.as_mut().filter(|check| !check.parts().is_empty())
        {
            let said = |part: &Part| {
                let each = patch.health.filter(|_| part.check.is_reported());
                patch.checks.get(&part.id).copied().or(each)
            };
            let mut changed = (**check).clone();
            after.health = changed.report(said).unwrap_or(after.health);
            *check = Arc::new(changed);
        }
        after
    }

    /// The digest of its content: everything but digest, revision and times.
    pub(crate) fn content_digest(&self) -> Digest {
        let mut content = Content::default();
        content.text(self.id.as_str());
        content.text(self.service.as_str());
        content.text(&self.host);
        content.text(&self.protocol);
        content.text(&self.version);
        content.number(
            u64::from(self.port) << 48
                | u64::from(self.weight) << 32
                | u64::from(self.priority) << 16
                | u64::from(self.isolate) << 8
                | u64::from(self.health.code()),
        );
        content.text(&self.location.region);
        content.text(&self.location.zone);
        content.text(&self.location.campus);
        content.text(self.metadata.as_text());
        content.text(&self.check_text().unwrap_or_default());
        content.finish()
    }

    /// What the check `id` says: of several checks the one; otherwise the instance's health. One that is not there is critical.
    pub fn health_of(&self, id: &str) -> Health {
        match self.check.as_deref().map(Check::parts).unwrap_or_default() {
            [] => self.health,
            parts => parts.iter().find(|part| part.id == id).and_then(|part| part.health).unwrap_or(Health::Critical),
        }
    }

    /// Its check as JSON: the form it has in the store.
    pub(crate) fn check_text(&self) -> Option<String> {
        self.check.as_ref().and_then(|check| serde_json::to_string(&**check).ok())
    }

    /// Its time to live, for the store's column: operators who look there need not read JSON.
    pub(crate) fn ttl_millis(&self) -> Option<i64> {
        let ttl = self.check.as_ref()?.time_to_live()?;
        Some(i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX))
    }

    /// The namespace it is in.
    pub fn namespace(&self) -> &str {
        self.service.namespace()
    }

    /// Whether traffic may go to it: not isolated, neither it nor one of its machines critical, weight above 0.
    pub fn is_usable(&self) -> bool {
        !self.isolate && self.overall() != Health::Critical && self.weight > 0
    }
}

impl NamespaceName {
    /// The namespace of `service`.
    pub fn of(service: &ServiceKey) -> NamespaceName {
        // A service's namespace was checked when the key was made.
        NamespaceName::new(service.namespace()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn registration() -> Registration {
        let service = ServiceKey::parse("default/s").unwrap();
        Registration::new(InstanceId::parse("default/i").unwrap(), service, "h", 1)
    }

    #[test]
    fn every_field_is_in_the_digest() {
        let base = Instance::registered(registration(), None).content_digest();
        let changes: [fn(&mut Registration); 14] = [
            |r| r.id = InstanceId::parse("default/j").unwrap(),
            |r| r.service = ServiceKey::parse("default/t").unwrap(),
            |r| r.host = "g".into(),
            |r| r.port = 2,
            |r| r.protocol = "p".into(),
            |r| r.version = "v".into(),
            |r| r.weight = 1,
            |r| r.priority = 1,
            |r| r.location.region = "a".into(),
            |r| r.location.zone = "a".into(),
            |r| r.metadata = Metadata::from_pairs([("a", "b")]).unwrap(),
            |r| r.check = Some(Check::ttl(std::time::Duration::from_secs(9))),
            |r| r.isolate = Some(true),
            |r| r.health = Some(Health::Critical),
        ];
        let mut seen = vec![base];
        for (n, change) in changes.iter().enumerate() {
            let mut changed = registration();
            change(&mut changed);
            let digest = Instance::registered(changed, None).content_digest();
            assert!(!seen.contains(&digest), "change {n}");
            seen.push(digest);
        }
    }

    #[test]
    fn registering_again_keeps_what_others_decided_unless_it_says_otherwise() {
        let before = Instance { isolate: true, health: Health::Critical, ..Instance::registered(registration(), None) };
        let again = Instance::registered(registration(), Some(&before));
        assert!(again.isolate && again.health == Health::Critical);
        let said = Registration { isolate: Some(false), health: Some(Health::Passing), ..registration() };
        let said = Instance::registered(said, Some(&before));
        assert!(!said.isolate && said.health == Health::Passing);
    }

    #[test]
    fn refuses() {
        type Change = fn(&mut Registration);
        let cases: [(Change, bool); 11] = [
            (|_| {}, true),
            (|r| r.service = ServiceKey::parse("default/we\u{202e}bsite").unwrap(), false),
            (|r| r.id = InstanceId::parse("default/i\u{200b}").unwrap(), false),
            (|r| r.location.zone = "a\u{feff}".into(), false),
            (|r| r.metadata = Metadata::from_pairs([("k\u{200b}", "v")]).unwrap(), false),
            (|r| r.host = String::new(), false),
            (|r| r.host = "a b".into(), false),
            (|r| r.host = "x".repeat(254), false),
            (|r| r.version = "x\n".into(), false),
            (|r| r.service = ServiceKey::parse("other/s").unwrap(), false),
            (|r| r.check = Some(Check::ttl(std::time::Duration::ZERO)), false),
        ];
        for (n, (change, good)) in cases.into_iter().enumerate() {
            let mut changed = registration();
            change(&mut changed);
            assert_eq!(changed.check(&Limits::default()).is_ok(), good, "case {n}");
        }
    }
}
