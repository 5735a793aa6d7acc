//! The parameters under which a server connection will read the next text, as far as they change how a text is read.

use sql::{Change, Meaning, Value, changes_reading, meaning_of};

use super::params::{Params, is_reading};
use crate::core::prepared::{ParseSettings, Registry};

/// Maximum number of tracked savepoints of one transaction; beyond it, the parameters become unknown.
const MOST_SAVEPOINTS: usize = 64;

/// Parameters in force in a session once all messages sent so far have been executed.
///
/// If the current transaction has changed none, the client's own parameters are in force, and this takes no memory. A change without a known name and
/// value makes all parameters unknown until the transaction ends.
///
/// "Unknown" can be narrowed down: the server reports changes of `TimeZone`, `DateStyle` and the like (`ParameterStatus`). If it has answered and
/// reported none, literals are read as before, and only names may refer to other objects.
#[derive(Debug, Default)]
pub(crate) struct InForce {
    layers: Layers,
    /// The unit with the last change, by the connection's count of units. `answered`: true if that unit has been answered.
    changed_in: u64,
    answered: bool,
    /// True if since that change the server has reported a parameter that changes how literals are read.
    reported: bool,
}

#[derive(Debug, Default)]
enum Layers {
    /// The client's own parameters, all committed.
    #[default]
    Settled,
    /// A transaction with known changes.
    Known(Box<Known>),
    /// An unknown change.
    Unknown,
}

/// Pairs of name and value, sorted by name.
type List = Vec<(String, String)>;

#[derive(Debug, Clone)]
struct Known {
    /// The session's parameters at the start of the transaction.
    before: List,
    now: State,
    /// The state at each savepoint.
    savepoints: Vec<(String, State)>,
    /// The parse settings for the parameters in force.
    parse_settings: ParseSettings,
}

#[derive(Debug, Clone, Default)]
struct State {
    /// Set by SET, for the session.
    session: List,
    /// Set by SET LOCAL, until the transaction ends. `None`: the value at the start of the session.
    local: Vec<(String, Option<String>)>,
}

/// Parameters under which a text is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// Known parameters.
    As(ParseSettings),
    /// Unknown parameters.
    Unknown {
        /// True if literals are read as in the client's other texts, so that a statement that the server has prepared before keeps its meaning. (If
        /// names now refer to other objects, PostgreSQL itself analyzes the statement again.)
        held_are_good: bool,
    },
}

// === impl InForce ===

impl InForce {
    /// True while the current transaction has changed nothing.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.layers, Layers::Settled)
    }

    /// Returns the unit with the last change; `None` if there is no change.
    pub(crate) fn changed_in(&self) -> Option<u64> {
        (!self.is_settled()).then_some(self.changed_in)
    }

    /// Returns the parse settings of the next text, for a client with these parameters.
    pub(crate) fn reads(&self, params: &Params) -> Reads {
        match &self.layers {
            Layers::Settled => Reads::As(params.parse_settings()),
            Layers::Known(known) => Reads::As(known.parse_settings),
            Layers::Unknown => Reads::Unknown { held_are_good: self.answered && !self.reported },
        }
    }

    /// Records that this unit sends a text that may change how texts are read in an unknown way.
    pub(crate) fn becomes_unknown(&mut self, unit: u64) {
        if !matches!(self.layers, Layers::Unknown) {
            self.reported = false;
        }
        self.layers = Layers::Unknown;
        (self.changed_in, self.answered) = (unit, false);
    }

    /// Records the server's report of a new value for this parameter; returns true if it changes how literals are read.
    pub(crate) fn is_reported(&mut self, name: &[u8]) -> bool {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        let literals = meaning_of(&name) == Meaning::Literals;
        self.reported |= literals;
        literals
    }

    /// Returns the parameters in force that change how a text is read; `None` if unknown.
    pub(crate) fn list(&self, params: &Params) -> Option<Vec<(String, String)>> {
        match &self.layers {
            Layers::Settled => Some(params.reading_list().cloned().collect()),
            Layers::Known(known) => Some(known.now.in_force()),
            Layers::Unknown => None,
        }
    }

    /// Records that a client with these parameters sends, in this unit, a statement with these changes. Changes that do not affect how texts are read
    /// are ignored.
    pub(crate) fn sent(&mut self, params: &Params, changes: &[Change], unit: u64, registry: &Registry) {
        for change in changes {
            if self.is_settled() && !change.is_about_reading() {
                continue;
            }
            (self.changed_in, self.answered) = (unit, false);
            if *change == Change::LocalUnknown {
                self.becomes_unknown(unit);
            }
            let known = match &mut self.layers {
                Layers::Unknown => continue,
                Layers::Known(known) => known,
                Layers::Settled => {
                    let before: List = params.reading_list().cloned().collect();
                    let now = State { session: before.clone(), local: Vec::new() };
                    self.layers = Layers::Known(Box::new(Known {
                        before,
                        now,
                        savepoints: Vec::new(),
                        parse_settings: params.parse_settings(),
                    }));
                    match &mut self.layers {
                        Layers::Known(known) => known,
                        _ => continue,
                    }
                }
            };
            if !known.changes(change) {
                self.becomes_unknown(unit);
            }
        }
        if let Layers::Known(known) = &mut self.layers {
            known.parse_settings = registry.parse_settings(known.now.in_force().iter());
        }
    }

    /// Records the answer to this unit. `idle`: the session is outside a transaction, so the client's own parameters contain all lasting changes.
    pub(crate) fn unit_ended(&mut self, unit: u64, idle: bool) {
        if self.changed_in > unit {
            return;
        }
        self.answered = true;
        if idle {
            self.layers = Layers::Settled;
            self.reported = false;
        }
    }
}

// === impl Known ===

impl Known {
    /// Applies a change; returns false if the parameters can no longer be tracked.
    fn changes(&mut self, change: &Change) -> bool {
        let now = &mut self.now;
        match change {
            Change::Set(name, Value::Text(value)) if changes_reading(name) => {
                now.local.retain(|(known, _)| known != name);
                set(&mut now.session, name, value);
            }
            Change::Local(name, None) => set_local(now, name, None),
            Change::Local(name, Some(Value::Text(value))) => set_local(now, name, Some(value.clone())),
            // A Bind supplies bound values.
            Change::Set(name, Value::Bound(_)) | Change::Local(name, Some(Value::Bound(_))) => {
                return !changes_reading(name);
            }
            Change::Reset(name) => {
                now.local.retain(|(known, _)| known != name);
                now.session.retain(|(known, _)| known != name);
            }
            Change::ResetAll => {
                now.local.retain(|(known, _)| known == "role");
                now.session.retain(|(known, _)| known == "role");
            }
            Change::DiscardAll => *now = State::default(),
            Change::Savepoint(name) => {
                if self.savepoints.len() >= MOST_SAVEPOINTS {
                    return false;
                }
                self.savepoints.push((name.clone(), self.now.clone()));
            }
            Change::Release(name) => {
                if let Some(at) = self.savepoint(name) {
                    self.savepoints.truncate(at);
                }
            }
            Change::RollbackTo(name) => match self.savepoint(name) {
                Some(at) => {
                    self.savepoints.truncate(at + 1);
                    self.now = self.savepoints[at].1.clone();
                }
                // The savepoint was created before the first change.
                None => {
                    self.savepoints.clear();
                    self.now = State { session: self.before.clone(), local: Vec::new() };
                }
            },
            Change::End { commits } => {
                if *commits {
                    self.before.clone_from(&self.now.session);
                }
                self.now = State { session: self.before.clone(), local: Vec::new() };
                self.savepoints.clear();
            }
            Change::LocalUnknown => return false,
            Change::Set(..) | Change::Listen(_) | Change::Unlisten(_) | Change::UnlistenAll => {}
        }
        true
    }

    fn savepoint(&self, name: &str) -> Option<usize> {
        self.savepoints.iter().rposition(|(known, _)| known == name)
    }
}

impl State {
    /// Returns the parameters in force, without those that make no difference (server connections begin with UTF-8).
    fn in_force(&self) -> List {
        let mut list = self.session.clone();
        for (name, value) in &self.local {
            match value {
                Some(value) => set(&mut list, name, value),
                None => list.retain(|(known, _)| known != name),
            }
        }
        list.retain(|(name, value)| is_reading(name, value));
        list
    }
}

fn set_local(state: &mut State, name: &str, value: Option<String>) {
    state.local.retain(|(known, _)| known != name);
    state.local.push((name.to_owned(), value));
}

fn set(list: &mut List, name: &str, value: &str) {
    match list.binary_search_by(|(known, _)| known.as_str().cmp(name)) {
        Ok(at) => list[at].1 = value.to_owned(),
        Err(at) => list.insert(at, (name.to_owned(), value.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, value: &str) -> Change {
        Change::Set(name.into(), Value::Text(value.into()))
    }

    fn local(name: &str, value: &str) -> Change {
        Change::Local(name.into(), Some(Value::Text(value.into())))
    }

    /// Returns the parameters in force after these changes in one transaction, for a client that has `timezone` set; None: unknown.
    fn after(changes: &[Change]) -> Option<Vec<(String, String)>> {
        let registry = Registry::default();
        let params = Params::test(&registry, &[("timezone", "UTC"), ("app.tenant", "a")]);
        let mut in_force = InForce::default();
        in_force.sent(&params, changes, 1, &registry);
        match &in_force.layers {
            Layers::Settled => Some(params.reading_list().cloned().collect()),
            Layers::Known(known) => Some(known.now.in_force()),
            Layers::Unknown => None,
        }
    }

    #[test]
    fn within_a_transaction() {
        let mark = |name: &str| Change::Savepoint(name.into());
        let back = |name: &str| Change::RollbackTo(name.into());
        let release = |name: &str| Change::Release(name.into());
        let (commit, rollback) = (Change::End { commits: true }, Change::End { commits: false });
        type Expected<'a> = Option<&'a [(&'a str, &'a str)]>;
        let cases: [(Vec<Change>, Expected); 22] = [
            (vec![], Some(&[("timezone", "UTC")])),
            (vec![set("app.tenant", "b"), set("statement_timeout", "5")], Some(&[("timezone", "UTC")])),
            (vec![local("timezone", "Asia/Tokyo")], Some(&[("timezone", "Asia/Tokyo")])),
            (
                vec![local("search_path", "a"), local("search_path", "b")],
                Some(&[("search_path", "b"), ("timezone", "UTC")]),
            ),
            (
                vec![set("search_path", "a"), set("search_path", "b")],
                Some(&[("search_path", "b"), ("timezone", "UTC")]),
            ),
            // A value set for the session hides one set for the transaction, and the other way round.
            (vec![local("timezone", "X"), set("timezone", "Y")], Some(&[("timezone", "Y")])),
            (vec![set("timezone", "Y"), local("timezone", "X")], Some(&[("timezone", "X")])),
            (vec![set("timezone", "Y"), local("timezone", "X"), commit.clone()], Some(&[("timezone", "Y")])),
            (vec![set("timezone", "Y"), local("timezone", "X"), rollback.clone()], Some(&[("timezone", "UTC")])),
            (vec![Change::Local("timezone".into(), None)], Some(&[])),
            (vec![Change::Reset("timezone".into())], Some(&[])),
            (vec![set("role", "r"), Change::ResetAll], Some(&[("role", "r")])),
            (vec![set("role", "r"), Change::DiscardAll], Some(&[])),
            (
                vec![set("role", "r"), mark("p"), local("role", "s"), back("p")],
                Some(&[("role", "r"), ("timezone", "UTC")]),
            ),
            (vec![mark("p"), local("timezone", "X"), back("p")], Some(&[("timezone", "UTC")])),
            (vec![local("timezone", "X"), mark("p"), local("timezone", "Y"), release("p")], Some(&[("timezone", "Y")])),
            (
                vec![
                    local("timezone", "X"),
                    mark("p"),
                    local("timezone", "Y"),
                    mark("p"),
                    local("timezone", "Z"),
                    back("p"),
                ],
                Some(&[("timezone", "Y")]),
            ),
            (vec![local("timezone", "X"), mark("p"), mark("q"), release("p"), back("q")], Some(&[("timezone", "UTC")])),
            (vec![Change::LocalUnknown], None),
            (vec![Change::LocalUnknown, rollback], None),
            (vec![local("timezone", "X"), Change::Local("timezone".into(), Some(Value::Bound(0)))], None),
            (vec![Change::Set("timezone".into(), Value::Bound(0))], None),
        ];
        for (changes, expected) in cases {
            let expected = expected.map(|list| list.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect());
            assert_eq!(after(&changes), expected, "{changes:?}");
        }
        let many: Vec<Change> = std::iter::once(local("timezone", "X")).chain((0..100).map(|_| mark("p"))).collect();
        assert_eq!(after(&many), None, "savepoints have a bound");
    }

    #[test]
    fn it_settles_with_the_unit_that_changed_it() {
        let registry = Registry::default();
        let params = Params::test(&registry, &[]);
        let mut in_force = InForce::default();
        in_force.sent(&params, &[set("app.tenant", "a")], 3, &registry);
        assert!(in_force.is_settled(), "what does not change how texts are read is not kept");
        in_force.sent(&params, &[local("timezone", "X")], 3, &registry);
        let tokyo = in_force.reads(&params);
        assert_ne!(tokyo, Reads::As(ParseSettings::DEFAULT));
        assert_eq!(in_force.changed_in(), Some(3));
        in_force.unit_ended(2, true);
        assert!(!in_force.is_settled());
        in_force.unit_ended(3, true);
        assert!(in_force.is_settled() && in_force.reads(&params) == Reads::As(ParseSettings::DEFAULT));
        in_force.becomes_unknown(4);
        let unknown = |held_are_good| Reads::Unknown { held_are_good };
        assert_eq!(in_force.reads(&params), unknown(false), "it may have been anything");
        in_force.unit_ended(3, false);
        assert_eq!(in_force.reads(&params), unknown(false), "that was another unit");
        in_force.unit_ended(4, false);
        assert_eq!(in_force.reads(&params), unknown(true), "the server would have said so");
        assert!(!in_force.is_reported(b"application_name"));
        assert_eq!(in_force.reads(&params), unknown(true));
        assert!(in_force.is_reported(b"TimeZone"));
        assert_eq!(in_force.reads(&params), unknown(false));
        // Equal sets of values have the same parse settings, whatever changes led to them.
        in_force.unit_ended(4, true);
        in_force.sent(&params, &[set("timezone", "X")], 5, &registry);
        assert_eq!(in_force.reads(&params), tokyo);
    }
}
