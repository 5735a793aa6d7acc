//! Which databases operators have paused and disabled: the sum of their operations. Pure.
//!
//! Each worker acts by a sum of its own. The console keeps one as well, so that it knows what a worker that begins, or a process that
//! takes over, has to be told.

use std::collections::BTreeSet;

use super::report::Operation;

/// The databases, by the names that clients use, whose pools are paused and give out no server connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Paused {
    pub(super) all: bool,
    /// All databases are paused by a lease. Kept apart from `all`: the end of a lease does not undo an operator's
    /// PAUSE.
    pub(super) leased: bool,
    pub(super) names: BTreeSet<String>,
    /// Nothing is read from clients.
    suspended: bool,
    /// Databases to which nobody may log in. RESUME does not change them.
    pub(super) disabled: BTreeSet<String>,
}

impl Paused {
    /// True if this database is paused.
    pub(crate) fn has(&self, database: &str) -> bool {
        self.has_all() || self.names.contains(database)
    }

    /// True if every database is paused.
    pub(crate) fn has_all(&self) -> bool {
        self.all || self.leased
    }

    /// True if some database is paused.
    pub(super) fn has_any(&self) -> bool {
        self.has_all() || !self.names.is_empty()
    }

    /// True while nothing is read from clients.
    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended
    }

    /// True if nobody may log in to this database.
    pub(crate) fn is_disabled(&self, database: &str) -> bool {
        self.disabled.contains(database)
    }

    /// Takes an operation in.
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
        // What is noted, then: whether `a` is paused, whether `b` is, whether `a` is disabled.
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
