//! SETs and LISTENs of a client, tracked from the statement to the end of its transaction.
//!
//! The changes of a text are known before it is sent (`sql::Changes`). A change is made once its statement has completed, and is lasting once its
//! transaction has committed. An error undoes all changes of the transaction, or those since a savepoint.

use std::sync::Arc;

use sql::{Change, Changes, Value};

use super::in_force::InForce;
use super::params::Params;

/// Maximum number of parameters tracked for one client. `MOST_BYTES`: maximum size of their names and values together.
const MOST: usize = 64;
const MOST_BYTES: usize = 16 << 10;
/// Maximum number of changes in one transaction.
const MOST_PENDING: usize = 1024;

/// Changes of a client to its session's parameters and channels.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    /// Changes made in the current transaction, with the savepoints between them.
    pending: Vec<Change>,
    /// Changes committed since the last `ReadyForQuery`.
    committed: Vec<Change>,
    /// True if the current transaction has failed: its changes are undone, unless the client rolls back to a savepoint.
    failed: bool,
    /// Number of completed statements of the oldest `Query` in flight.
    completed: usize,
    /// True if a text that sets parameters was sent since the connection was last quiet.
    sets: bool,
    /// True if a text with LISTEN or UNLISTEN was sent since the connection was last quiet.
    listens: bool,
    /// True if a RESET was sent since the connection was last quiet, and the client has startup parameters. PostgreSQL resets to the server
    /// connection's initial values, not to the client's.
    goes_back: bool,
    /// True if the client listens and notifies in one transaction, and its own session has sent it the notification.
    heard_itself: bool,
    /// Parameters in force for the next text.
    pub(crate) in_force: InForce,
}

/// Result of tracking the changes of a completed statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Followed {
    /// The changes are tracked.
    Yes,
    /// The changes of parameters cannot be tracked: the client has to keep its server connection.
    NotParameters,
    /// The transaction has changed too many channels: the client has to keep its server connection.
    NotChannels,
}

/// Circumstances that decide if a client's SET can be repeated in another session.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Circumstances {
    /// True if the client has set a role.
    pub(crate) role: bool,
    /// True if the client's texts may be in an encoding other than UTF-8.
    pub(crate) foreign: bool,
}

// === impl Tracker ===

impl Tracker {
    /// True if a text with LISTEN or UNLISTEN was sent since the connection was last quiet.
    pub(crate) fn listens(&self) -> bool {
        self.listens
    }

    /// True if the current transaction, or the changes committed since the last `ReadyForQuery`, make the session listen on channel `name`.
    /// `as_named` returns a channel's name as the server has it (truncated to 63 bytes).
    pub(crate) fn listens_on(&self, name: &str, as_named: impl Fn(&str) -> &str) -> bool {
        let all = self.committed.iter().chain(if self.failed { &[][..] } else { &self.pending[..] });
        all.fold(false, |listens, change| match change {
            Change::Listen(channel) if as_named(channel) == name => true,
            Change::Unlisten(channel) if as_named(channel) == name => false,
            Change::UnlistenAll | Change::DiscardAll => false,
            _ => listens,
        })
    }

    /// Records that the client gets a notification sent by its own session.
    pub(crate) fn hears_itself(&mut self) {
        self.heard_itself = true;
    }

    /// True if the client has received such a notification since the connection was last quiet.
    pub(crate) fn has_heard_itself(&self) -> bool {
        self.heard_itself
    }

    /// True if a rollback to a savepoint may undo a part of the changes, so that savepoints have to be tracked.
    pub(crate) fn is_at_work(&self) -> bool {
        self.sets || self.listens || !self.in_force.is_settled()
    }

    /// True if a RESET was sent that may have another effect than the client expects.
    pub(crate) fn goes_back(&self) -> bool {
        self.goes_back
    }

    /// Records that a client whose startup parameters are `base` sends a text with these changes. `listens`: the text has LISTEN or UNLISTEN.
    pub(crate) fn text_sent(&mut self, base: &Params, changes: Option<&Changes>, listens: bool) {
        self.listens |= listens;
        let Some(changes) = changes else { return };
        let all = || changes.statements.iter().flatten();
        self.sets |= changes.doubt || all().any(Change::is_about_parameters);
        let resets = |change: &Change| matches!(change, Change::Reset(_) | Change::ResetAll | Change::DiscardAll);
        self.goes_back |= !base.is_empty() && all().any(resets);
    }

    /// True if there are no changes and no failure, so that a completed statement without changes can be ignored.
    pub(crate) fn follows_nothing(&self) -> bool {
        self.pending.is_empty() && self.committed.is_empty() && !self.failed
    }

    /// Records the completion of a statement, with its command tag.
    pub(crate) fn completed(&mut self, of: Completed<'_>, tag: &[u8], circumstances: Circumstances) -> Followed {
        let done = match of {
            Completed::InQuery(changes) => {
                self.completed += 1;
                changes.statements.get(self.completed - 1)
            }
            Completed::Portal(changes) => changes.statements.first(),
            Completed::Other => None,
        };
        let mut followed = Followed::Yes;
        let mut undone_in_part = false;
        for change in done.into_iter().flatten() {
            undone_in_part |= matches!(change, Change::RollbackTo(_));
            if change.is_about_parameters() && !self.can_follow(change, circumstances) {
                followed = Followed::NotParameters;
                continue;
            }
            self.happened(change);
        }
        // DISCARD ALL commits by itself, like every statement that cannot run in a transaction: a later error in the same batch does not undo it.
        let ends = matches!(tag, b"COMMIT\0" | b"ROLLBACK\0" | b"PREPARE TRANSACTION\0" | b"DISCARD ALL\0");
        if !undone_in_part && ends {
            self.transaction_ended(tag != b"ROLLBACK\0");
        }
        if self.pending.len() > MOST_PENDING {
            // The client keeps this session, which has all its changes.
            self.pending.clear();
            return if self.listens { Followed::NotChannels } else { Followed::NotParameters };
        }
        followed
    }

    fn can_follow(&self, change: &Change, circumstances: Circumstances) -> bool {
        let sets_role = |change: &Change| matches!(change, Change::Set(name, _) if name == "role");
        let role = circumstances.role || self.pending.iter().chain(&self.committed).any(sets_role);
        // Values are stored as UTF-8 text.
        let garbled = |change: &Change| matches!(change, Change::Set(_, Value::Text(text)) if !text.is_ascii());
        let doubtful = (role && is_privileged_change(change)) || (circumstances.foreign && garbled(change));
        !doubtful
    }

    fn happened(&mut self, change: &Change) {
        let is_mark = |kept: &Change, name: &String| matches!(kept, Change::Savepoint(of) if of == name);
        match change {
            Change::Release(name) => {
                if let Some(at) = self.pending.iter().rposition(|kept| is_mark(kept, name)) {
                    let after = self.pending.split_off(at);
                    self.pending.extend(after.into_iter().filter(|kept| !matches!(kept, Change::Savepoint(_))));
                }
            }
            Change::RollbackTo(name) => {
                // An unknown savepoint was created before the first recorded change.
                let at = self.pending.iter().rposition(|kept| is_mark(kept, name));
                self.pending.truncate(at.map_or(0, |at| at + 1));
                self.failed = false;
            }
            // Only `in_force` tracks changes that end with the transaction.
            Change::Local(..) | Change::LocalUnknown | Change::End { .. } => {}
            change => self.pending.push(change.clone()),
        }
    }

    /// Records the failure of a statement.
    pub(crate) fn has_failed(&mut self) {
        self.failed = true;
    }

    fn transaction_ended(&mut self, committed: bool) {
        if committed && !self.failed {
            self.committed.append(&mut self.pending);
        }
        self.pending.clear();
        self.failed = false;
    }

    /// Handles the `ReadyForQuery` at the end of one of the client's units. `idle`: outside a transaction. Returns the changes committed by now, in
    /// order; changes of channels are missing if [`Tracker::channels`] was called before.
    pub(crate) fn ready(&mut self, idle: bool) -> Vec<Change> {
        self.completed = 0;
        if idle {
            self.transaction_ended(true);
        }
        std::mem::take(&mut self.committed)
    }

    /// Takes the changes of channels that the present `ReadyForQuery` commits. `idle`: according to that message, the session is outside a
    /// transaction.
    pub(crate) fn channels(&mut self, idle: bool) -> Vec<Change> {
        if idle {
            self.transaction_ended(true);
        }
        let channels = self.committed.iter().filter(|change| change.is_about_channels()).cloned().collect();
        // (DISCARD ALL changes channels and parameters.)
        self.committed.retain(Change::is_about_parameters);
        channels
    }

    /// Records that no message is in flight, and that the session is outside a transaction.
    pub(crate) fn is_quiet(&mut self) {
        (self.sets, self.listens, self.goes_back, self.heard_itself) = (false, false, false, false);
    }

    /// Resets the tracker when the client leaves this server connection: uncommitted changes are undone.
    pub(crate) fn client_leaves(&mut self) {
        *self = Tracker::default();
    }
}

/// Kind of a completed statement.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Completed<'a> {
    /// The next statement of a Query with these changes.
    InQuery(&'a Changes),
    /// A portal's statement, with these changes.
    Portal(&'a Changes),
    /// A statement without changes, or an unknown one.
    Other,
}

/// Returns a client's parameters after these changes; a RESET restores `base`. `None`: too many to be tracked.
pub(crate) fn changed(params: &Params, base: &Params, changes: &[Change]) -> Option<Vec<(String, String)>> {
    let list = in_force_after(params.list(), base.list(), changes);
    let size: usize = list.iter().map(|(name, value)| name.len() + value.len()).sum();
    (list.len() <= MOST && size <= MOST_BYTES).then_some(list)
}

/// Returns a server connection's parameters after these changes. A RESET restores the connection's initial state: no parameters.
pub(crate) fn applied(params: &Params, changes: &[Change]) -> Vec<(String, String)> {
    in_force_after(params.list(), &[], changes)
}

fn in_force_after(now: &[(String, String)], base: &[(String, String)], changes: &[Change]) -> Vec<(String, String)> {
    let mut list = now.to_vec();
    for change in changes {
        match change {
            Change::Set(name, Value::Text(value)) => {
                list.retain(|(known, _)| known != name);
                list.push((name.clone(), value.clone()));
            }
            Change::Set(_, Value::Bound(_)) => debug_assert!(false, "bound values are filled in when they are bound"),
            Change::Reset(name) => {
                list.retain(|(known, _)| known != name);
                list.extend(base.iter().filter(|(known, _)| known == name).cloned());
            }
            Change::ResetAll => {
                list.retain(|(known, _)| known == "role");
                list.extend(base.iter().filter(|(known, _)| known != "role").cloned());
            }
            Change::DiscardAll => list = base.to_vec(),
            Change::Local(..) | Change::LocalUnknown | Change::End { .. } => {}
            Change::Listen(_) | Change::Unlisten(_) | Change::UnlistenAll => {}
            Change::Savepoint(_) | Change::Release(_) | Change::RollbackTo(_) => {}
        }
    }
    super::params::sorted(list)
}

/// Returns the changes with the values of a Bind. `None` if a value is missing or is not text.
pub(crate) fn filled(changes: &Arc<Changes>, values: Option<&[u8]>) -> Option<Arc<Changes>> {
    let open =
        |change: &Change| matches!(change, Change::Set(_, Value::Bound(_)) | Change::Local(_, Some(Value::Bound(_))));
    if !changes.statements.iter().flatten().any(open) {
        return Some(changes.clone());
    }
    let mut filled = Changes::clone(changes);
    for change in filled.statements.iter_mut().flatten() {
        if let Change::Set(_, value) | Change::Local(_, Some(value)) = change
            && let Value::Bound(number) = value
        {
            let bytes = wire::payload::bound_value(values?, *number)?;
            *value = Value::Text(str::from_utf8(bytes).ok()?.to_owned());
        }
    }
    Some(Arc::new(filled))
}

/// True for parameters that only some users may set: if a role is in force, the order of the SETs matters. Extensions' parameters count among them,
/// because they are unknown.
fn is_privileged(name: &str) -> bool {
    const NAMES: [&str; 38] = [
        "commit_delay",
        "compute_query_id",
        "deadlock_timeout",
        "dynamic_library_path",
        "event_triggers",
        "extension_control_path",
        "lc_messages",
        "lo_compat_privileges",
        "log_duration",
        "log_error_verbosity",
        "log_executor_stats",
        "log_lock_failures",
        "log_lock_waits",
        "log_min_duration_sample",
        "log_min_duration_statement",
        "log_min_error_statement",
        "log_min_messages",
        "log_parameter_max_length",
        "log_parser_stats",
        "log_planner_stats",
        "log_replication_commands",
        "log_statement",
        "log_statement_sample_rate",
        "log_statement_stats",
        "log_temp_files",
        "log_transaction_sample_rate",
        "max_stack_depth",
        "session_preload_libraries",
        "session_replication_role",
        "temp_file_limit",
        "track_activities",
        "track_cost_delay_timing",
        "track_counts",
        "track_functions",
        "track_io_timing",
        "track_wal_io_timing",
        "update_process_title",
        "wal_compression",
    ];
    name.contains('.') || name.starts_with("wal_") || NAMES.contains(&name)
}

/// True for a SET of such a parameter. (A RESET is not repeated in other sessions, so its order does not matter.)
fn is_privileged_change(change: &Change) -> bool {
    matches!(change, Change::Set(name, _) if is_privileged(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::prepared::Registry;

    fn params(list: &[(&str, &str)]) -> Params {
        Params::test(&Registry::default(), list)
    }

    fn set(name: &str, value: &str) -> Change {
        Change::Set(name.into(), Value::Text(value.into()))
    }

    #[test]
    fn what_is_in_force_after_changes() {
        let base = params(&[("timezone", "UTC"), ("role", "app")]);
        let now = params(&[("timezone", "Asia/Tokyo"), ("role", "admin"), ("jit", "off")]);
        let of = |list: &[(&str, &str)]| params(list).list().to_vec();
        let cases = [
            (vec![], now.list().to_vec()),
            (
                vec![set("jit", "on"), set("a.b", "")],
                of(&[("a.b", ""), ("jit", "on"), ("role", "admin"), ("timezone", "Asia/Tokyo")]),
            ),
            (vec![Change::Reset("jit".into())], of(&[("role", "admin"), ("timezone", "Asia/Tokyo")])),
            (vec![Change::Reset("timezone".into())], of(&[("jit", "off"), ("role", "admin"), ("timezone", "UTC")])),
            (vec![Change::ResetAll], of(&[("role", "admin"), ("timezone", "UTC")])),
            (vec![Change::DiscardAll], base.list().to_vec()),
            (vec![Change::DiscardAll, set("jit", "off")], of(&[("jit", "off"), ("role", "app"), ("timezone", "UTC")])),
            (vec![Change::Local("jit".into(), None), Change::End { commits: true }], now.list().to_vec()),
        ];
        for (changes, expected) in cases {
            assert_eq!(changed(&now, &base, &changes), Some(expected), "{changes:?}");
        }
        assert_eq!(applied(&now, &[Change::DiscardAll]), []);
        let long = set("a.b", &"x".repeat(MOST_BYTES));
        assert_eq!(changed(&now, &base, &[long]), None);
    }

    #[derive(Debug, Clone)]
    enum Step {
        /// A Query of one statement completes, with this tag.
        Done(Change, &'static str),
        Fails,
        /// The end of a transaction.
        Tag(&'static str),
    }

    fn done(change: Change) -> Step {
        Step::Done(change, "SET")
    }

    /// Returns the changes committed after these steps: by COMMIT tags in between, and by `ReadyForQuery` outside of a transaction.
    fn committed(steps: &[Step], idle: bool) -> Vec<Change> {
        let mut tracker = Tracker::default();
        for step in steps {
            let (changes, tag) = match step {
                Step::Fails => {
                    tracker.has_failed();
                    continue;
                }
                Step::Done(change, tag) => (vec![change.clone()], *tag),
                Step::Tag(tag) => (vec![], *tag),
            };
            let changes = Changes { statements: vec![changes], doubt: false };
            let tag = [tag.as_bytes(), &[0]].concat();
            tracker.completed(Completed::Portal(&changes), &tag, Circumstances::default());
        }
        tracker.ready(idle)
    }

    #[test]
    fn what_a_transaction_leaves() {
        let mark = |name: &str| Step::Done(Change::Savepoint(name.into()), "SAVEPOINT");
        let back = |name: &str| Step::Done(Change::RollbackTo(name.into()), "ROLLBACK");
        let release = |name: &str| Step::Done(Change::Release(name.into()), "RELEASE");
        let listen = |name: &str| Step::Done(Change::Listen(name.into()), "LISTEN");
        let (a, b, c) = (set("a", "1"), set("b", "2"), set("c", "3"));
        let (da, db, dc) = (done(a.clone()), done(b.clone()), done(c.clone()));
        let is_mark = |change: &Change| matches!(change, Change::Savepoint(_));
        for (steps, expected) in [
            (vec![da.clone(), db.clone()], vec![a.clone(), b.clone()]),
            (vec![da.clone(), mark("p"), db.clone(), back("p"), dc.clone()], vec![a.clone(), c.clone()]),
            // The savepoint was created before the first SET.
            (vec![da.clone(), back("p"), db.clone()], vec![b.clone()]),
            (vec![mark("p"), da.clone(), mark("q"), release("p"), back("q")], vec![]),
            (vec![mark("p"), mark("p"), da.clone(), back("p"), db.clone(), back("p")], vec![]),
            (vec![da.clone(), mark("p"), db.clone(), release("p")], vec![a.clone(), b.clone()]),
            // A failure undoes the changes, unless the client first rolls back to a savepoint.
            (vec![da.clone(), mark("p"), Step::Fails, back("p"), db.clone()], vec![a.clone(), b.clone()]),
            (vec![da.clone(), Step::Fails], vec![]),
            // COMMIT and ROLLBACK in the middle of a text; a COMMIT of a failed transaction.
            (
                vec![da.clone(), Step::Tag("COMMIT"), db.clone(), Step::Tag("ROLLBACK"), dc.clone()],
                vec![a.clone(), c.clone()],
            ),
            (vec![da.clone(), Step::Fails, Step::Tag("ROLLBACK"), db.clone()], vec![b.clone()]),
            (vec![da.clone(), Step::Tag("PREPARE TRANSACTION"), Step::Fails], vec![a.clone()]),
            // DISCARD ALL commits by itself.
            (
                vec![listen("x"), Step::Done(Change::DiscardAll, "DISCARD ALL"), da.clone(), Step::Fails],
                vec![Change::Listen("x".into()), Change::DiscardAll],
            ),
            (vec![listen("x"), mark("p"), da.clone(), back("p")], vec![Change::Listen("x".into())]),
            (vec![done(Change::Local("a".into(), None))], vec![]),
        ] {
            let left: Vec<Change> = committed(&steps, true).into_iter().filter(|change| !is_mark(change)).collect();
            assert_eq!(left, expected, "{steps:?}");
        }
        // Within a transaction, only changes committed on the way.
        assert_eq!(committed(&[da.clone(), Step::Tag("COMMIT"), db], false), [a]);
        assert_eq!(committed(&[da], false), []);
    }

    #[test]
    fn channels_are_asked_for_first() {
        let mut tracker = Tracker::default();
        let changes = Changes { statements: vec![vec![Change::Listen("x".into())], vec![set("a", "1")]], doubt: false };
        for _ in 0..2 {
            tracker.completed(Completed::InQuery(&changes), b"SET\0", Circumstances::default());
        }
        assert_eq!(tracker.channels(true), [Change::Listen("x".into())]);
        assert_eq!(tracker.channels(true), []);
        assert_eq!(tracker.ready(true), [set("a", "1")]);
    }

    #[test]
    fn what_can_not_be_moved() {
        let followed = |changes: &[Change], circumstances| {
            let mut tracker = Tracker::default();
            let changes = Changes { statements: vec![changes.to_vec()], doubt: false };
            tracker.completed(Completed::Portal(&changes), b"SET\0", circumstances)
        };
        let (none, role, foreign) = (
            Circumstances::default(),
            Circumstances { role: true, ..Circumstances::default() },
            Circumstances { foreign: true, ..Circumstances::default() },
        );
        let log = set("log_statement", "all");
        assert_eq!(followed(std::slice::from_ref(&log), none), Followed::Yes);
        assert_eq!(followed(std::slice::from_ref(&log), role), Followed::NotParameters);
        assert_eq!(followed(&[set("role", "a"), log], none), Followed::NotParameters);
        assert_eq!(followed(&[set("timezone", "UTC")], role), Followed::Yes);
        assert_eq!(followed(&[set("a.b", "é")], foreign), Followed::NotParameters);
        let many: Vec<Change> = (0..=MOST_PENDING).map(|n| set(&n.to_string(), "")).collect();
        assert_eq!(followed(&many, none), Followed::NotParameters);
    }

    #[test]
    fn bound_values_are_filled_in() {
        let of = |change: Change| Arc::new(Changes { statements: vec![vec![change]], doubt: false });
        let bound = |number| of(Change::Set("a".into(), Value::Bound(number)));
        // No formats, two values: NULL and "x".
        let values = [&[0, 0, 0, 2][..], &[0xff; 4], &[0, 0, 0, 1], b"x", &[0, 0]].concat();
        let filled = |changes: &Arc<Changes>, values| filled(changes, values).map(|changes| changes.statements.clone());
        assert_eq!(filled(&bound(1), Some(&values)), Some(vec![vec![set("a", "x")]]));
        assert_eq!(filled(&bound(0), Some(&values)), None, "NULL");
        assert_eq!(filled(&bound(2), Some(&values)), None, "no such value");
        assert_eq!(filled(&bound(1), None), None, "not there");
        assert_eq!(filled(&of(set("a", "x")), None), Some(vec![vec![set("a", "x")]]));
        let local = of(Change::Local("timezone".into(), Some(Value::Bound(1))));
        let expected = Change::Local("timezone".into(), Some(Value::Text("x".into())));
        assert_eq!(filled(&local, Some(&values)), Some(vec![vec![expected]]));
    }
}
