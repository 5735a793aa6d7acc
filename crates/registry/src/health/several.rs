//! Instances with several checks, watched as several instances with one check each.
//!
//! Leases, probing and the reaper know one check for each instance. So each of several checks gets a **unit**: a copy of the instance with only this
//! check, this check's health, and an id of its own. The health found for a unit is written as the health of the check, and the instance then has the
//! worst health of all its checks ([`crate::model::Check`]).

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use crate::cache::Changes;
use crate::model::{Check, Digest, Instance, InstanceId, NamespaceName, WATCHED as MARK};

/// The units of all instances with several checks.
#[derive(Debug, Default)]
pub(super) struct Several {
    /// Units by instance.
    units: HashMap<InstanceId, Vec<InstanceId>>,
    /// Checks by unit.
    checks: HashMap<InstanceId, OneOf>,
}

/// A check of an instance with several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OneOf {
    pub(super) instance: InstanceId,
    /// The id of the check.
    pub(super) check: String,
}

/// Returns the id of the unit for the check `check` of the instance `id`: the same on all nodes.
pub(crate) fn unit(id: &InstanceId, check: &str) -> InstanceId {
    let namespace = NamespaceName::new(id.namespace()).unwrap_or_default();
    // The prefix and 32 hexadecimal digits are a valid id.
    InstanceId::new(&namespace, &format!("{MARK}{}", Digest::of_parts([id.local(), check])))
        .unwrap_or_else(|_| id.clone())
}

/// Returns the ids under which an instance is watched: its own, or those of its units.
pub(super) fn watched(instance: &Instance) -> impl Iterator<Item = Cow<'_, InstanceId>> {
    let parts = instance.check.as_deref().map(Check::parts).unwrap_or_default();
    let own = parts.is_empty().then_some(Cow::Borrowed(&instance.id));
    own.into_iter().chain(parts.iter().map(|part| Cow::Owned(unit(&instance.id, &part.id))))
}

impl Several {
    /// Translates changes to units: an instance with several checks is replaced by one unit for each check.
    pub(super) fn take_apart<'a>(&mut self, changes: &'a Changes) -> Cow<'a, Changes> {
        let has_several = |instance: &Arc<Instance>| instance.check.as_ref().is_some_and(|c| !c.parts().is_empty());
        let concerns = |(id, instance): &(InstanceId, Option<Arc<Instance>>)| {
            instance.as_ref().is_some_and(has_several) || self.units.contains_key(id)
        };
        if !changes.iter().any(concerns) {
            return Cow::Borrowed(changes);
        }
        let mut apart = Vec::with_capacity(changes.len() + 8);
        for (id, instance) in changes {
            let before = self.units.remove(id).unwrap_or_default();
            apart.push((id.clone(), instance.clone().filter(|instance| !has_several(instance))));
            let mut now = Vec::new();
            if let Some(instance) = instance {
                for part in instance.check.as_deref().map(Check::parts).unwrap_or_default() {
                    let unit = unit(id, &part.id);
                    let one = Instance {
                        id: unit.clone(),
                        check: Some(Arc::new(part.check.clone())),
                        health: part.health.unwrap_or_default(),
                        ..(**instance).clone()
                    };
                    self.checks.insert(unit.clone(), OneOf { instance: id.clone(), check: part.id.clone() });
                    apart.push((unit.clone(), Some(Arc::new(one))));
                    now.push(unit);
                }
            }
            for gone in before.into_iter().filter(|unit| !now.contains(unit)) {
                self.checks.remove(&gone);
                apart.push((gone, None));
            }
            if !now.is_empty() {
                self.units.insert(id.clone(), now);
            }
        }
        Cow::Owned(apart)
    }

    /// Returns the units of those instances that have several checks.
    pub(super) fn of_instances(&self, ids: &[InstanceId]) -> Vec<InstanceId> {
        if self.units.is_empty() {
            return Vec::new();
        }
        ids.iter().filter_map(|id| self.units.get(id)).flatten().cloned().collect()
    }

    /// Returns the check of the unit `id`; `None` if `id` is an instance with at most one check.
    pub(super) fn of(&self, id: &InstanceId) -> Option<&OneOf> {
        self.checks.get(id)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::model::{Health, Registration, ServiceKey};

    fn instance(checks: &str) -> Option<Arc<Instance>> {
        let id = InstanceId::parse("default/i").unwrap();
        let mut registration = Registration::new(id, ServiceKey::parse("default/s").unwrap(), "h", 1);
        registration.check = serde_json::from_str(checks).unwrap();
        Some(Arc::new(Instance::registered(registration, None)))
    }

    fn shown(changes: &Changes) -> Vec<(bool, Option<Health>)> {
        changes.iter().map(|(id, i)| (id.local().starts_with(MARK), i.as_ref().map(|i| i.health))).collect()
    }

    #[test]
    fn an_instance_gives_way_to_its_units_and_comes_back() {
        let (one, a_b, b) = (
            r#"{"type": "ttl", "ttl": "10s"}"#,
            r#"{"type": "several", "checks": [{"id": "a", "type": "ttl", "ttl": "10s"}, {"id": "b", "health": "critical", "type": "tcp"}]}"#,
            r#"{"type": "several", "checks": [{"id": "b", "type": "tcp"}, {"id": "c", "type": "reported"}]}"#,
        );
        let id = InstanceId::parse("default/i").unwrap();
        let mut several = Several::default();
        let mut observe = |instance: Option<Arc<Instance>>| {
            let changes = vec![(id.clone(), instance)];
            let apart = several.take_apart(&changes).into_owned();
            (shown(&apart), several.checks.len())
        };
        let (passing, critical) = (Some(Health::Passing), Some(Health::Critical));
        assert_eq!(observe(instance(one)), (vec![(false, passing)], 0));
        assert_eq!(observe(instance(a_b)), (vec![(false, None), (true, passing), (true, critical)], 2));
        assert_eq!(observe(instance(b)), (vec![(false, None), (true, passing), (true, passing), (true, None)], 2));
        assert_eq!(observe(instance(one)), (vec![(false, passing), (true, None), (true, None)], 0));
        observe(instance(a_b));
        assert_eq!(observe(None), (vec![(false, None), (true, None), (true, None)], 0));
    }

    #[test]
    fn a_unit_is_one_check_s_alone() {
        let ids: Vec<_> = ["default/i", "default/j", "other/i"].map(|id| InstanceId::parse(id).unwrap()).into();
        let units: std::collections::BTreeSet<_> =
            ids.iter().flat_map(|id| ["a", "b"].map(|check| unit(id, check))).collect();
        assert_eq!(units.len(), 6);
        assert!(units.iter().all(|unit| unit.local().starts_with(MARK)));
    }
}
