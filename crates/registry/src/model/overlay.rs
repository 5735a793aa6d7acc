//! Overrides: values that an operator or a peer sets beside the instance's own, and that survive the instance's next registration.
//!
//! An instance shows the overriding values; its own ones are kept with them and show again when the override is taken away. Both are one metadata
//! entry, so every store, export and node has them without a column of their own. Only this module reads and writes the entry.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::limits::{Invalid, Limits};
use super::{Instance, Metadata, Patch};

/// The metadata key of an instance's overrides. Reserved.
const KEY: &str = "kingpost.overrides";

/// A change of an instance's overrides. `None` leaves a value as it is; `Some(None)` takes its override away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverlayChange {
    /// Share of the traffic.
    pub weight: Option<Option<u16>>,
    /// True to isolate the instance.
    pub isolate: Option<Option<bool>>,
    /// Metadata entries by key; `None` takes the override of the entry away.
    pub entries: BTreeMap<String, Option<String>>,
    /// True to take away the overrides of all entries that `entries` does not name.
    pub only_these_entries: bool,
}

/// An overriding value and the instance's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Override<T, O = T> {
    set: T,
    own: O,
}

/// The overrides of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Overlay {
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<Override<u16>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    isolate: Option<Override<bool>>,
    /// An entry that only the override has is without an own value.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, Override<String, Option<String>>>,
}

impl OverlayChange {
    /// Validates the entries against the limits of an instance's metadata.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self, limits: &Limits) -> Result<(), Invalid> {
        let set = self.entries.iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        Metadata::from_pairs(set)?.check(limits)
    }
}

impl<T: Copy> Override<T> {
    /// Takes a new word about a value, which sets the override if there is one, and returns `shown` to the instance's own value.
    fn say(overridden: &mut Option<Override<T>>, shown: &mut T, word: Option<T>) {
        match overridden {
            Some(overridden) => {
                overridden.set = word.unwrap_or(overridden.set);
                *shown = overridden.own;
            }
            None => *shown = word.unwrap_or(*shown),
        }
    }
}

impl Overlay {
    /// Returns the overrides of an instance with this metadata; `None` if there are none.
    pub(super) fn of(metadata: &Metadata) -> Option<Overlay> {
        metadata.get(KEY).and_then(|text| serde_json::from_str(text).ok())
    }

    /// Lays the overrides over an instance that has been registered: its weight, isolation and metadata are its own.
    pub(super) fn lay(mut self, instance: &mut Instance) {
        if let Some(weight) = &mut self.weight {
            weight.own = std::mem::replace(&mut instance.weight, weight.set);
        }
        if let Some(isolate) = &mut self.isolate {
            isolate.own = std::mem::replace(&mut instance.isolate, isolate.set);
        }
        let mut pairs = pairs(&instance.metadata);
        for (key, value) in &mut self.entries {
            value.own = pairs.insert(key.clone(), value.set.clone());
        }
        self.keep(instance, pairs);
    }

    /// Returns the isolation of an instance without its override.
    pub(super) fn own_isolation(&self, instance: &Instance) -> bool {
        self.isolate.as_ref().map_or(instance.isolate, |isolate| isolate.own)
    }

    /// Applies weight, isolation, metadata and overrides of `patch` to an instance. The newest word counts: who sets a weight or an isolation that has
    /// an override sets the override.
    pub(super) fn patch(instance: &mut Instance, patch: &Patch) {
        let found = Overlay::of(&instance.metadata);
        if found.is_none() && patch.overlay.is_none() {
            instance.weight = patch.weight.unwrap_or(instance.weight);
            instance.isolate = patch.isolate.unwrap_or(instance.isolate);
            instance.metadata = patch.metadata.as_ref().unwrap_or(&instance.metadata).clone();
            return;
        }
        let mut overlay = found.unwrap_or_default();
        Override::say(&mut overlay.weight, &mut instance.weight, patch.weight);
        Override::say(&mut overlay.isolate, &mut instance.isolate, patch.isolate);
        instance.metadata = overlay.own_metadata(patch.metadata.as_ref().unwrap_or(&instance.metadata));
        if let Some(change) = &patch.overlay {
            overlay.change(change);
        }
        overlay.lay(instance);
    }

    fn change(&mut self, change: &OverlayChange) {
        // The own values are set when the overrides are laid over the instance.
        if let Some(weight) = change.weight {
            self.weight = weight.map(|set| Override { set, own: set });
        }
        if let Some(isolate) = change.isolate {
            self.isolate = isolate.map(|set| Override { set, own: set });
        }
        if change.only_these_entries {
            self.entries.clear();
        }
        for (key, value) in &change.entries {
            match value {
                Some(set) => self.entries.insert(key.clone(), Override { set: set.clone(), own: None }),
                None => self.entries.remove(key),
            };
        }
    }

    /// Returns metadata without the overrides.
    fn own_metadata(&self, metadata: &Metadata) -> Metadata {
        let mut pairs = pairs(metadata);
        for (key, value) in &self.entries {
            // A value that is not the override's has been set since, by somebody who wrote all metadata: it is the instance's own.
            if pairs.get(key) == Some(&value.set) {
                match &value.own {
                    Some(own) => pairs.insert(key.clone(), own.clone()),
                    None => pairs.remove(key),
                };
            }
        }
        pairs.remove(KEY);
        from(&pairs)
    }

    fn keep(self, instance: &mut Instance, mut pairs: BTreeMap<String, String>) {
        pairs.remove(KEY);
        if self != Overlay::default()
            && let Ok(text) = serde_json::to_string(&self)
        {
            pairs.insert(KEY.to_owned(), text);
        }
        instance.metadata = from(&pairs);
    }
}

impl Instance {
    /// True if any value is overridden.
    pub(crate) fn is_overridden(&self) -> bool {
        self.metadata.get(KEY).is_some()
    }
}

fn pairs(metadata: &Metadata) -> BTreeMap<String, String> {
    metadata.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Keys and values come from metadata, or from a change that was checked: none is refused.
fn from(pairs: &BTreeMap<String, String>) -> Metadata {
    Metadata::from_pairs(pairs).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::model::{InstanceId, Registration, ServiceKey};

    fn registration(weight: u16, pairs: &[(&str, &str)]) -> Registration {
        let service = ServiceKey::parse("default/s").unwrap();
        Registration {
            weight,
            metadata: Metadata::from_pairs(pairs.iter().copied()).unwrap(),
            ..Registration::new(InstanceId::parse("default/i").unwrap(), service, "h", 1)
        }
    }

    fn over(change: OverlayChange) -> Patch {
        Patch { overlay: Some(change), ..Patch::default() }
    }

    /// Returns what the instance shows: weight, isolation, and metadata without the overrides' own entry.
    fn shown(instance: &Instance) -> (u16, bool, Vec<(&str, &str)>) {
        (instance.weight, instance.isolate, instance.metadata.iter().filter(|(key, _)| *key != KEY).collect())
    }

    fn entries<const N: usize>(pairs: [(&str, Option<&str>); N]) -> BTreeMap<String, Option<String>> {
        pairs.into_iter().map(|(key, value)| (key.to_owned(), value.map(str::to_owned))).collect()
    }

    #[test]
    fn overrides_survive_a_registration_until_they_are_taken_away() {
        let first = Instance::registered(registration(100, &[("a", "1"), ("b", "1")]), None);
        let set = OverlayChange {
            weight: Some(Some(2)),
            isolate: Some(Some(true)),
            entries: entries([("a", Some("9")), ("c", Some("9"))]),
            ..OverlayChange::default()
        };
        let set = first.patched(&over(set));
        let overridden = [("a", "9"), ("b", "1"), ("c", "9")];
        assert_eq!(shown(&set), (2, true, overridden.to_vec()));
        let again = Instance::registered(registration(50, &[("a", "2"), ("b", "2")]), Some(&set));
        assert_eq!(shown(&again), (2, true, vec![("a", "9"), ("b", "2"), ("c", "9")]));
        let without = |change| Instance::patched(&again, &over(change));
        let weight = without(OverlayChange { weight: Some(None), ..OverlayChange::default() });
        assert_eq!(shown(&weight), (50, true, vec![("a", "9"), ("b", "2"), ("c", "9")]));
        let entry = without(OverlayChange { entries: entries([("c", None)]), ..OverlayChange::default() });
        assert_eq!(shown(&entry), (2, true, vec![("a", "9"), ("b", "2")]));
        let all = OverlayChange {
            weight: Some(None),
            isolate: Some(None),
            only_these_entries: true,
            ..OverlayChange::default()
        };
        let all = without(all);
        assert_eq!(shown(&all), (50, false, vec![("a", "2"), ("b", "2")]));
        assert_eq!(all.metadata.get(KEY), None);
        assert_eq!(
            all.content_digest(),
            Instance::registered(registration(50, &[("a", "2"), ("b", "2")]), None).content_digest()
        );
    }

    #[test]
    fn the_newest_word_of_a_third_party_counts_and_survives_as_the_override_does() {
        let first = Instance::registered(registration(100, &[("a", "1")]), None);
        let set =
            OverlayChange { weight: Some(Some(2)), entries: entries([("a", Some("9"))]), ..OverlayChange::default() };
        let set = first.patched(&over(set));
        let later = set.patched(&Patch { weight: Some(7), ..Patch::default() });
        assert_eq!(shown(&Instance::registered(registration(100, &[]), Some(&later))), (7, false, vec![("a", "9")]));
        // Who reads all metadata, changes an entry and writes all of it leaves the overrides as they are.
        let mut read = pairs(&set.metadata);
        read.insert("b".into(), "3".into());
        let written = set.patched(&Patch { metadata: Some(from(&read)), ..Patch::default() });
        assert_eq!(shown(&written), (2, false, vec![("a", "9"), ("b", "3")]));
        let taken = OverlayChange { only_these_entries: true, ..OverlayChange::default() };
        assert_eq!(shown(&written.patched(&over(taken))).2, [("a", "1"), ("b", "3")]);
        // And who writes all metadata without having read them.
        let fresh = Patch { metadata: Some(Metadata::from_pairs([("a", "4")]).unwrap()), ..Patch::default() };
        let fresh = set.patched(&fresh);
        assert_eq!(shown(&fresh).2, [("a", "9")]);
        let taken = OverlayChange { entries: entries([("a", None)]), ..OverlayChange::default() };
        assert_eq!(shown(&fresh.patched(&over(taken))).2, [("a", "4")]);
    }

    #[test]
    fn an_isolation_that_no_registration_names_stays_under_the_override() {
        let first = Instance::registered(registration(100, &[]), None)
            .patched(&Patch { isolate: Some(true), ..Patch::default() });
        let isolate = |isolate| over(OverlayChange { isolate: Some(isolate), ..OverlayChange::default() });
        let open = first.patched(&isolate(Some(false)));
        let again = Instance::registered(registration(100, &[]), Some(&open));
        assert!(!again.isolate && again.patched(&isolate(None)).isolate);
    }

    #[test]
    fn overrides_are_exported_and_imported_with_the_instance() {
        let set = OverlayChange { weight: Some(Some(2)), ..OverlayChange::default() };
        let set = Instance::registered(registration(100, &[]), None).patched(&over(set));
        let imported = Registration { weight: set.weight, metadata: set.metadata.clone(), ..registration(0, &[]) };
        let imported = Instance::registered(imported, None);
        assert_eq!(Instance::registered(registration(30, &[]), Some(&imported)).weight, 2);
    }
}
