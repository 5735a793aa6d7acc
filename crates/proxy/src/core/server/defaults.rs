//! Initial values of the parameters by which a server connection reads literals, and the check that they still hold.
//!
//! A reload of PostgreSQL's configuration changes `TimeZone` and the like in sessions that have not set them, and `ALTER ROLE … SET` in those that
//! begin later. A text that was prepared before has another meaning for a client that prepares it afterwards.

use sql::{Meaning, meaning_of};

use crate::core::parameters::Applied;

/// Pairs of name, in lower case, and value, sorted.
type List = Vec<(String, String)>;

/// Initial values of the parameters by which literals are read, as far as a server reports them.
#[derive(Debug, Default)]
pub(in crate::core) struct Defaults {
    begun: List,
    /// True if the server has reported one of them since [`Defaults::have_changed`] was last called.
    heard: bool,
}

impl Defaults {
    /// Takes the parameters that the server has reported at the beginning of the session.
    pub(in crate::core) fn begin(&mut self, reported: &[(String, String)]) {
        (self.begun, self.heard) = (of_literals(reported), false);
    }

    /// Notes that the server has reported a new value of this parameter. Returns true if literals are read by it.
    pub(in crate::core) fn hear(&mut self, name: &str) -> bool {
        let is = is_of_literals(&name.to_ascii_lowercase());
        self.heard |= is;
        is
    }

    /// Returns true if the values are no longer the initial ones, apart from those that the proxy has `applied`. Called while no client has the
    /// session.
    pub(in crate::core) fn have_changed(&mut self, reported: &[(String, String)], applied: &Applied) -> bool {
        let Applied::These(params) = applied else { return false };
        if !std::mem::take(&mut self.heard) {
            return false;
        }
        let now = of_literals(reported);
        self.begun.iter().any(|was| params.get(&was.0).is_none() && !now.contains(was))
    }
}

fn is_of_literals(name: &str) -> bool {
    meaning_of(name) == Meaning::Literals
}

fn of_literals(reported: &[(String, String)]) -> List {
    let named = reported.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
    let mut list: List = named.filter(|(name, _)| is_of_literals(name)).collect();
    list.sort_unstable();
    list
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::core::parameters::Interned;
    use crate::core::prepared::Registry;

    #[test]
    fn what_has_changed() {
        let list = |zone: &str, style: &str, name: &str| {
            [("TimeZone", zone), ("DateStyle", style), ("application_name", name)]
                .map(|(n, v)| (n.to_owned(), v.to_owned()))
        };
        let mut interned = Interned::new(Arc::new(Registry::default()));
        let none = Applied::These(interned.none().clone());
        let zone = Applied::These(interned.intern(vec![("timezone".into(), "UTC".into())]));
        let mut defaults = Defaults::default();
        defaults.begin(&list("UTC", "ISO, MDY", "a"));
        assert_eq!(defaults.begun, [("datestyle".into(), "ISO, MDY".into()), ("timezone".into(), "UTC".into())]);
        // Nothing is compared before a report.
        assert!(!defaults.have_changed(&list("Asia/Tokyo", "ISO, MDY", "a"), &none));
        assert!(!defaults.hear("application_name") && !defaults.have_changed(&list("UTC", "ISO, MDY", "b"), &none));
        // There and back.
        assert!(defaults.hear("TimeZone") && !defaults.have_changed(&list("UTC", "ISO, MDY", "b"), &none));
        assert!(defaults.hear("TimeZone") && defaults.have_changed(&list("Asia/Tokyo", "ISO, MDY", "b"), &none));
        // A client's own value, and with it a value that is not the client's.
        assert!(defaults.hear("TimeZone") && !defaults.have_changed(&list("Asia/Tokyo", "ISO, MDY", "b"), &zone));
        assert!(defaults.hear("DateStyle") && defaults.have_changed(&list("Asia/Tokyo", "SQL, DMY", "b"), &zone));
        // An unknown value is reset first, and then reported.
        assert!(
            defaults.hear("TimeZone")
                && !defaults.have_changed(&list("Asia/Tokyo", "ISO, MDY", "b"), &Applied::Unknown)
        );
        assert!(defaults.have_changed(&list("Asia/Tokyo", "ISO, MDY", "b"), &none));
    }
}
