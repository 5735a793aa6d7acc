//! Instances: registrations and patches of clients, and the records that the registry makes of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::check::InstanceCheck;
use super::digest::Content;
use super::limits::{self, Invalid, Limits};
use super::overlay::{Overlay, OverlayChange};
use super::text::visible;
use super::{Check, Digest, InstanceId, Machines, Metadata, NamespaceName, Revision, ServiceKey};

/// Health of an instance, according to its check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Healthy.
    #[default]
    Passing,
    /// Healthy with a reservation; still served.
    Warning,
    /// Unhealthy.
    Critical,
}

/// Location of an instance. Each part may be empty; together at most 192 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Location {
    /// The largest part.
    pub region: Arc<str>,
    /// A part of the region; routing prefers instances of the same zone.
    pub zone: Arc<str>,
    /// A part of the zone.
    pub campus: Arc<str>,
}

/// A client's description of one of its instances.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// The id, in the namespace of `service`; [`InstanceId::derived`] makes one for a client that gives none.
    pub id: InstanceId,
    /// The service that the instance belongs to.
    pub service: ServiceKey,
    /// Host name or address: 1 to 253 bytes.
    pub host: String,
    /// The port; 0 for an instance that listens on none.
    #[serde(default)]
    pub port: u16,
    /// Free text: at most 32 bytes.
    #[serde(default)]
    pub protocol: String,
    /// Free text: at most 64 bytes.
    #[serde(default)]
    pub version: String,
    /// Share of the traffic among instances of the same priority; 0: none.
    #[serde(default = "default_weight")]
    pub weight: u16,
    /// The priority: lower is preferred, 0 is the first choice.
    #[serde(default)]
    pub priority: u16,
    /// The location.
    #[serde(default)]
    pub location: Location,
    /// Free key-value pairs.
    #[serde(default)]
    pub metadata: Metadata,
    /// The health check; without one, the health stays as reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<Check>,
    /// True for an instance that is isolated by hand: not to be used, whatever its health. `None` leaves the value unchanged, so that an operator's
    /// decision survives the next registration; a new instance is then not isolated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolate: Option<bool>,
    /// `None` leaves the health unchanged; a new instance is then passing. With several checks, the health of each stands in the check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
}

/// Prefix of the ids that the registry itself gives to checks.
pub(crate) const WATCHED: &str = "kingpost.check:";

fn default_weight() -> u16 {
    100
}

/// A change of an instance by a third party. `None` leaves a field unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Patch {
    /// True to isolate the instance by hand, false to undo it.
    pub isolate: Option<bool>,
    /// Share of the traffic.
    pub weight: Option<u16>,
    /// New metadata, which replaces all of the old.
    pub metadata: Option<Metadata>,
    /// Health set from outside; lasts until the next report of the instance's own check. With several checks, it applies to each one that the
    /// registry does not determine by itself.
    pub health: Option<Health>,
    /// Health of single checks of several, by the checks' ids.
    #[serde(skip)]
    pub checks: BTreeMap<String, Health>,
    /// Change of the overrides, which survive the instance's next registration.
    #[serde(skip)]
    pub overlay: Option<OverlayChange>,
}

/// An instance as of [`Instance::revision`]; never changed, only replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Instance {
    /// The id.
    pub id: InstanceId,
    /// The service that the instance belongs to.
    pub service: ServiceKey,
    /// Host name or address.
    pub host: Arc<str>,
    /// The port; 0: none.
    pub port: u16,
    /// Free text.
    pub protocol: Arc<str>,
    /// Free text.
    pub version: Arc<str>,
    /// Share of the traffic among instances of the same priority; 0: none.
    pub weight: u16,
    /// The priority; lower is preferred.
    pub priority: u16,
    /// True for an instance that is isolated by hand.
    pub isolate: bool,
    /// Health according to the check. A brake may keep an earlier result: see [`crate::Status`].
    pub health: Health,
    /// The location.
    pub location: Arc<Location>,
    /// Free key-value pairs.
    pub metadata: Metadata,
    /// The health check.
    pub check: Option<Arc<Check>>,
    /// Digest of everything above, health included.
    #[serde(skip)]
    pub digest: Digest,
    /// The commit that wrote this state.
    pub revision: Revision,
    /// Time of the first registration, in milliseconds since 1970 by the clock of the node that wrote it. Informational.
    pub ctime: i64,
    /// Time of the last change, in the same unit as `ctime`.
    pub mtime: i64,
    /// The machines that the instance runs on and that have a row of their own. Joined by the cache; part of neither the row nor the digest.
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
    /// Makes a minimal registration, with defaults for everything else.
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

    /// Returns the registration that would make an instance what it is, but for its health and isolation, which stay.
    pub(crate) fn of(instance: &Instance) -> Registration {
        Registration {
            protocol: instance.protocol.to_string(),
            version: instance.version.to_string(),
            weight: instance.weight,
            priority: instance.priority,
            location: (*instance.location).clone(),
            metadata: instance.metadata.clone(),
            check: instance.check.as_deref().cloned(),
            ..Registration::new(instance.id.clone(), instance.service.clone(), &instance.host, instance.port)
        }
    }

    /// Validates the registration against `limits` and the rules for each field.
    ///
    /// # Errors
    /// The first violation.
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
    /// Applies a registration to `before`, the present instance; `None` for a new one. Times, revision and digest are those of `before`, or 0: the
    /// commit sets them.
    pub(crate) fn registered(registration: Registration, before: Option<&Instance>) -> Instance {
        // The last result of a check is dropped with the check: nothing would ever correct it.
        let overlay = before.and_then(|b| Overlay::of(&b.metadata)).or_else(|| Overlay::of(&registration.metadata));
        let has_check = registration.check.is_some();
        let unchecked = |b: &Instance| !has_check && b.check.is_some();
        let own = |b: &Instance| overlay.as_ref().map_or(b.isolate, |overlay| overlay.own_isolation(b));
        let kept = before.map(|b| (own(b), if unchecked(b) { Health::Passing } else { b.health }));
        let (isolate, health) = kept.unwrap_or_default();
        let mut check = registration.check;
        let worst = check.as_mut().and_then(|check| check.settle(before.and_then(|b| b.check.as_deref())));
        let mut after = Instance {
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
        };
        if let Some(overlay) = overlay {
            overlay.lay(&mut after);
        }
        after
    }

    /// Returns a copy with `patch` applied; digest, revision and times are unchanged.
    pub(crate) fn patched(&self, patch: &Patch) -> Instance {
        let mut after = Instance { machines: Machines::default(), ..self.clone() };
        Overlay::patch(&mut after, patch);
        if let Some(health) = patch.health {
            after.health = health;
        }
        if (patch.health.is_some() || !patch.checks.is_empty())
            && let Some(check) = after.check.as_mut().filter(|check| !check.parts().is_empty())
        {
            let said = |part: &InstanceCheck| {
                let each = patch.health.filter(|_| part.check.is_reported());
                patch.checks.get(&part.id).copied().or(each)
            };
            let mut changed = (**check).clone();
            after.health = changed.report(said).unwrap_or(after.health);
            *check = Arc::new(changed);
        }
        after
    }

    /// Returns the digest of the content: everything but digest, revision and times.
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

    /// Returns the health of the check `id`; with a single check, that of the instance. An unknown check is critical.
    pub fn health_of(&self, id: &str) -> Health {
        match self.check.as_deref().map(Check::parts).unwrap_or_default() {
            [] => self.health,
            parts => parts.iter().find(|part| part.id == id).and_then(|part| part.health).unwrap_or(Health::Critical),
        }
    }

    /// Returns the check as JSON, the form stored in the database.
    pub(crate) fn check_text(&self) -> Option<String> {
        self.check.as_ref().and_then(|check| serde_json::to_string(&**check).ok())
    }

    /// Returns the time to live for the store's column, so that operators who query it need not read JSON.
    pub(crate) fn ttl_millis(&self) -> Option<i64> {
        let ttl = self.check.as_ref()?.time_to_live()?;
        Some(i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX))
    }

    /// Returns the instance's namespace.
    pub fn namespace(&self) -> &str {
        self.service.namespace()
    }

    /// True if no traffic is to go to the instance, whatever its health: it is isolated, or its weight is 0. A front whose clients do not know
    /// weight 0 shows such an instance as an isolated one.
    pub fn is_withdrawn(&self) -> bool {
        self.isolate || self.weight == 0
    }

    /// True if traffic may go to the instance: not withdrawn, and neither the instance nor one of its machines critical.
    pub fn is_usable(&self) -> bool {
        !self.is_withdrawn() && self.overall() != Health::Critical
    }
}

impl NamespaceName {
    /// Returns the namespace of `service`.
    pub fn of(service: &ServiceKey) -> NamespaceName {
        // A service's namespace was validated when the key was made.
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
