//! Databases that operators have paused and disabled: the sum of their operations. Pure.
//!
//! Each worker keeps its own sum. The console also keeps one, for a worker that starts and a process that takes over.

use std::collections::BTreeSet;

use super::report::Operation;

/// Databases, by the names that clients use, whose pools are paused and hand out no server connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Paused {
    pub(crate) all: bool,
    /// True if a lease has paused all databases. Separate from `all`: the end of a lease does not undo an operator's PAUSE.
    pub(crate) leased: bool,
    pub(crate) names: BTreeSet<String>,
    /// True if no input is read from clients.
    suspended: bool,
    /// Databases that refuse logins. RESUME does not change them.
    pub(crate) disabled: BTreeSet<String>,
}

impl Paused {
    /// True if the database is paused.
    pub(crate) fn has(&self, database: &str) -> bool {
        self.has_all() || self.names.contains(database)
    }

    /// True if every database is paused.
    pub(crate) fn has_all(&self) -> bool {
        self.all || self.leased
    }

    /// True if some database is paused.
    pub(crate) fn has_any(&self) -> bool {
        self.has_all() || !self.names.is_empty()
    }

    /// True while no input is read from clients.
    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended
    }

    /// True if the database refuses logins.
    pub(crate) fn is_disabled(&self, database: &str) -> bool {
        self.disabled.contains(database)
    }

    /// Adds an operation.
    pub(crate) fn note(&mut self, operation: &Operation) {
        match operation {
            // Clients that come after KILL wait for RESUME.
            Operation::Pause(database) | Operation::Kill(database) => match database {
                Some(name) => {
                    self.names.insert(name.clone());
                }
                None => self.all = true,
            },
            Operation::Resume(Some(name)) => {
                self.names.remove(name);
            }
            Operation::Resume(None) => {
                *self = Paused { disabled: std::mem::take(&mut self.disabled), ..Paused::default() };
            }
            Operation::Suspend => self.suspended = true,
            Operation::Disable(database) => {
                self.disabled.insert(database.clone());
            }
            Operation::Enable(database) => {
                self.disabled.remove(database);
            }
            Operation::PauseLeased => self.leased = true,
            Operation::ResumeLeased => self.leased = false,
            Operation::Reconnect(_) | Operation::KillClient(_) | Operation::ResetStatements => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_operations_add_up_to() {
        let name = |name: &str| Some(name.to_owned());
        let mut paused = Paused::default();
        // An operation, then: `a` is paused, `b` is paused, `a` is disabled.
        for (operation, expected) in [
            (Operation::Pause(name("a")), (true, false, false)),
            (Operation::Disable("a".into()), (true, false, true)),
            (Operation::Kill(name("b")), (true, true, true)),
            (Operation::Resume(name("a")), (false, true, true)),
            (Operation::PauseLeased, (true, true, true)),
            (Operation::Resume(name("b")), (true, true, true)),
            (Operation::ResumeLeased, (false, false, true)),
            (Operation::Pause(None), (true, true, true)),
            // The end of a lease leaves the pause.
            (Operation::ResumeLeased, (true, true, true)),
            (Operation::Suspend, (true, true, true)),
            (Operation::Resume(None), (false, false, true)),
            (Operation::Reconnect(None), (false, false, true)),
            (Operation::Enable("a".into()), (false, false, false)),
        ] {
            paused.note(&operation);
            assert_eq!((paused.has("a"), paused.has("b"), paused.is_disabled("a")), expected, "{operation:?}");
        }
        assert_eq!(paused, Paused::default());
    }
}
