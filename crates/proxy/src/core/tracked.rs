//! Parameters that clients SET: followed from the statement to the end of its transaction, and from then on the client's own,
//! wherever its statements go.
//!
//! What a text changes is known before it is sent (`sql::Changes`); that it has happened is known when the statement completes; that it
//! lasts, when its transaction has been committed. An error undoes all that the transaction has set; with savepoints in
//! between that is not so simple, and the client is pinned instead, as it is for whatever can't be said by name and value.

use std::sync::Arc;

use sql::{Change, Changes, Class, Flags, Pins, Value};
use wire::message::Status;

use super::Core;
use super::params::{Applied, Params};
use super::server::Expect;

/// Parameters that are tracked for one client, and bytes of their names and values together.
const MOST: usize = 64;
const MOST_BYTES: usize = 16 << 10;
/// Changes of a client's channels that one transaction may have.
const MOST_PENDING: usize = 1024;

/// What a server connection's client does to its session's parameters.
#[derive(Debug, Default)]
pub(super) struct Sets {
    /// Done in the transaction in progress.
    pending: Vec<Change>,
    /// Committed since the server was last ready.
    committed: Vec<Change>,
    /// Statements of the oldest `Query` in flight that have completed.
    completed: usize,
    /// What executing the unnamed portal changes.
    portal: Option<Arc<Changes>>,
    /// Something that sets parameters was sent since nothing was last in flight, outside of transactions.
    open: bool,
    /// A savepoint was made or ended in the same time.
    savepoint: bool,
    /// In the same time, something that goes back to what its client began with: the server goes back to what it did itself.
    pub(super) goes_back: bool,
    /// What the client does to the channels that it listens on.
    pub(super) listens: Listens,
}

/// What a server connection's client does to the channels that it listens on.
#[derive(Debug, Default)]
pub(super) struct Listens {
    /// Done in the transaction in progress, with the savepoints in between.
    pending: Vec<Change>,
    /// Committed since the server was last ready.
    committed: Vec<Change>,
    /// The transaction in progress has failed: unless it goes back to a savepoint, nothing of it stays.
    failed: bool,
    /// Something about channels was sent since nothing was last in flight, outside of transactions.
    pub(super) open: bool,
}

impl Sets {
    /// The transaction in progress is undone.
    pub(super) fn undo(&mut self) {
        self.pending.clear();
        self.listens.failed = true;
    }

    /// The oldest `Query` has been answered.
    pub(super) fn query_ended(&mut self) {
        self.completed = 0;
    }

    /// The client leaves this server connection.
    pub(super) fn end(&mut self) {
        (self.open, self.savepoint, self.goes_back, self.portal) = (false, false, false, None);
        self.listens = Listens::default();
    }
}

// === impl Listens ===

impl Listens {
    /// A statement that changes this has completed.
    fn completed(&mut self, changes: &[Change]) {
        for change in changes.iter().filter(|change| change.is_about_channels()) {
            let is_mark = |kept: &Change, name: &String| matches!(kept, Change::Savepoint(of) if of == name);
            match change {
                Change::Release(name) => {
                    if let Some(at) = self.pending.iter().rposition(|kept| is_mark(kept, name)) {
                        let after = self.pending.split_off(at);
                        self.pending.extend(after.into_iter().filter(|kept| !matches!(kept, Change::Savepoint(_))));
                    }
                }
                Change::RollbackTo(name) => {
                    // A savepoint that is not there was made before the first of what is.
                    let at = self.pending.iter().rposition(|kept| is_mark(kept, name));
                    self.pending.truncate(at.map_or(0, |at| at + 1));
                    self.failed = false;
                }
                change => self.pending.push(change.clone()),
            }
        }
    }

    /// A transaction has ended.
    fn ended(&mut self, committed: bool) {
        if committed {
            self.committed.append(&mut self.pending);
        }
        self.pending.clear();
        self.failed = false;
    }

    /// The server is ready: what is committed by now. `idle`: outside of a transaction.
    pub(super) fn settle(&mut self, idle: bool) -> Vec<Change> {
        if idle {
            self.ended(!self.failed);
        }
        std::mem::take(&mut self.committed)
    }
}

/// PostgreSQL's parameters that only some users may set: with another role in force it matters which comes first. So it does for
/// an extension's, of which nothing is known.
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

/// What is in force after these changes; `base` is what a reset goes back to.
fn changed(params: &Params, base: &Params, changes: &[Change]) -> Params {
    let mut list = params.0.clone();
    for change in changes {
        match change {
            Change::Set(name, Value::Text(value)) => {
                list.retain(|(known, _)| known != name);
                list.push((name.clone(), value.clone()));
            }
            Change::Set(_, Value::Bound(_)) => debug_assert!(false, "bound values are filled in when they are bound"),
            Change::Reset(name) => {
                list.retain(|(known, _)| known != name);
                list.extend(base.0.iter().filter(|(known, _)| known == name).cloned());
            }
            Change::ResetAll => {
                list.retain(|(known, _)| known == "role");
                list.extend(base.0.iter().filter(|(known, _)| known != "role").cloned());
            }
            Change::DiscardAll => list.clone_from(&base.0),
            Change::Listen(_) | Change::Unlisten(_) | Change::UnlistenAll => {}
            Change::Savepoint(_) | Change::Release(_) | Change::RollbackTo(_) => {}
        }
    }
    Params::from_pairs(list)
}

/// With bound values in place; None if one is not there, or not text.
fn filled(changes: &Changes, values: &[u8]) -> Option<Changes> {
    let mut filled = changes.clone();
    for change in filled.statements.iter_mut().flatten() {
        if let Change::Set(_, value) = change
            && let Value::Bound(number) = value
        {
            let bytes = wire::payload::bound_value(values, *number)?;
            *value = Value::Text(str::from_utf8(bytes).ok()?.to_owned());
        }
    }
    Some(filled)
}

fn is_privileged_change(change: &Change) -> bool {
    match change {
        Change::Set(name, _) | Change::Reset(name) => is_privileged(name),
        _ => false,
    }
}

impl Core {
    /// What this text of the client's changes. None: nothing, or nothing is known of it; then the class has the pins.
    pub(super) fn changes(&self, c: usize, class: Class, text: &[u8]) -> Option<Arc<Changes>> {
        let listens = |s: usize| self.servers[s].sets.listens.open;
        let about = class.pins.0 & (Pins::SET.0 | Pins::ROLE.0) != 0
            || class.flags.has(Flags::RESETS_PARAMETERS)
            || class.flags.has(Flags::LISTENS)
            || (class.flags.has(Flags::SAVEPOINT) && self.clients[c].at.server().is_some_and(listens));
        // Without standard strings a parser reads something else.
        if !about || self.clients[c].odd_strings {
            return None;
        }
        self.classifier.changes(text).map(Arc::new)
    }

    /// A text is sent: what of its class's pins is left with these changes known.
    pub(super) fn note_changes(&mut self, c: usize, s: usize, class: Class, changes: Option<&Arc<Changes>>) -> Pins {
        let sets = &mut self.servers[s].sets;
        sets.savepoint |= class.flags.has(Flags::SAVEPOINT);
        let any = |changes: &Changes| changes.statements.iter().flatten().any(Change::is_about_parameters);
        sets.open |= changes.is_some_and(|changes| changes.doubt || any(changes));
        let back = |change: &Change| matches!(change, Change::Reset(_) | Change::ResetAll | Change::DiscardAll);
        sets.goes_back |= !self.clients[c].base.0.is_empty()
            && changes.is_some_and(|changes| changes.statements.iter().flatten().any(back));
        sets.listens.open |= class.flags.has(Flags::LISTENS);
        if sets.open && class.flags.has(Flags::SAVEPOINT) {
            sets.pending.clear();
            self.pin(c, s, Pins::SET);
        }
        match changes {
            Some(changes) if !changes.doubt => {
                let pins = class.pins.without(Pins::SET.with(Pins::ROLE));
                if class.flags.has(Flags::LISTENS) && self.may_share_listen(c, s) {
                    // This session listens only until the shared connection does.
                    self.servers[s].unlisten = true;
                    pins.without(Pins::LISTEN)
                } else {
                    pins
                }
            }
            _ => class.pins,
        }
    }

    /// A statement is bound to a portal: what executing that changes. Some if it is known.
    pub(super) fn bind_changes(
        &mut self,
        s: usize,
        portal: &[u8],
        values: Option<&[u8]>,
        changes: Option<Arc<Changes>>,
    ) -> Option<Arc<Changes>> {
        if !portal.is_empty() {
            return None;
        }
        let bound = changes.and_then(|changes| {
            let open = |change: &Change| matches!(change, Change::Set(_, Value::Bound(_)));
            if changes.statements.iter().flatten().any(open) {
                filled(&changes, values?).map(Arc::new)
            } else {
                Some(changes)
            }
        });
        self.servers[s].sets.portal.clone_from(&bound);
        bound
    }

    /// A portal is executed.
    pub(super) fn execute_changes(&self, s: usize, portal: &[u8]) -> Option<Arc<Changes>> {
        if portal.is_empty() { self.servers[s].sets.portal.clone() } else { None }
    }

    /// A statement has completed.
    pub(super) fn completed(&mut self, s: usize, tag: &[u8]) {
        let server = &mut self.servers[s];
        let sets = &mut server.sets;
        let done = match server.expect.front() {
            Some(Expect::Query(Some(changes))) => {
                sets.completed += 1;
                changes.statements.get(sets.completed - 1)
            }
            Some(Expect::Execute(Some(changes))) => changes.statements.first(),
            _ => None,
        };
        let mut undone_in_part = false;
        if let Some(changes) = done {
            sets.listens.completed(changes);
            undone_in_part = changes.iter().any(|change| matches!(change, Change::RollbackTo(_)));
        }
        let done = done.map(|changes| changes.iter().filter(|change| change.is_about_parameters()).cloned());
        let done: Option<Vec<Change>> = done.map(Iterator::collect).filter(|changes: &Vec<_>| !changes.is_empty());
        if let Some(changes) = done {
            let client = server.client.map(|c| &self.clients[c]);
            let has_role = |change: &Change| matches!(change, Change::Set(name, _) if name == "role");
            let role = client.is_some_and(|client| client.params.get("role").is_some())
                || sets.pending.iter().chain(&sets.committed).any(has_role);
            let late = role && changes.iter().any(is_privileged_change);
            // An encoding other than UTF-8 is only known of for start-up parameters; values are kept as text.
            let encoding = client.and_then(|client| client.params.get("client_encoding"));
            let foreign = encoding.is_some_and(|name| {
                !matches!(&*name.to_ascii_lowercase(), "utf8" | "utf-8" | "unicode")
                    && changes.iter().any(|change| matches!(change, Change::Set(_, Value::Text(t)) if !t.is_ascii()))
            });
            if sets.savepoint || late || foreign {
                if let Some(c) = server.client {
                    self.pin(c, s, Pins::SET);
                }
            } else {
                sets.pending.extend(changes);
            }
        }
        let sets = &mut self.servers[s].sets;
        if sets.listens.open && !undone_in_part && matches!(tag, b"COMMIT\0" | b"ROLLBACK\0") {
            sets.listens.ended(tag == b"COMMIT\0");
        }
        if sets.listens.pending.len() > MOST_PENDING {
            // It keeps this very session, which listens.
            sets.listens.pending.clear();
            if let Some(c) = self.servers[s].client {
                self.pin(c, s, Pins::LISTEN);
            }
        }
        let sets = &mut self.servers[s].sets;
        if !sets.pending.is_empty() {
            match tag {
                b"COMMIT\0" => sets.committed.append(&mut sets.pending),
                // Not to a savepoint: with one, nothing is pending.
                b"ROLLBACK\0" => sets.undo(),
                _ => {}
            }
        }
    }

    /// The server is ready: what is committed is the client's now.
    pub(super) fn settle_changes(&mut self, s: usize) {
        let server = &mut self.servers[s];
        let idle = server.status == Status::Idle;
        let sets = &mut server.sets;
        if idle {
            sets.committed.append(&mut sets.pending);
            if server.expect.is_empty() && !server.in_unit {
                sets.end();
            }
        }
        if sets.committed.is_empty() {
            return;
        }
        let mut changes = std::mem::take(&mut sets.committed);
        if idle {
            // It is set in parts: what came of that the server has just said.
            let style = server.reported.iter().find(|(name, _)| name == "DateStyle").map(|(_, value)| value);
            for change in &mut changes {
                if let (Change::Set(name, value), Some(style)) = (change, style)
                    && name == "datestyle"
                {
                    *value = Value::Text(style.clone());
                }
            }
        }
        let (of_server, client) = (server.params.clone(), server.client);
        // The server's own reset goes back to what it began with.
        let applied = match &of_server {
            Applied::These(params) => Some(changed(params, &self.no_params, &changes)),
            Applied::Unknown => None,
        };
        if let Some(applied) = applied {
            self.servers[s].params = Applied::These(self.intern_params(applied));
        }
        let Some(c) = client else { return };
        let params = changed(&self.clients[c].params, &self.clients[c].base, &changes);
        if params.0.len() > MOST || params.0.iter().map(|(n, v)| n.len() + v.len()).sum::<usize>() > MOST_BYTES {
            // It keeps this very session, which has them.
            self.pin(c, s, Pins::SET);
            self.servers[s].params = Applied::These(self.clients[c].params.clone());
            return;
        }
        self.metrics.parameters_tracked.add(changes.len() as u64);
        let params = self.intern_params(params);
        let client = &mut self.clients[c];
        client.dialect = params.dialect();
        client.params = params;
    }

    /// The client's session has gone back to what the server connection began with, and not to what the client did: that is put
    /// right before the client hears that it is done. True: it is being done. (In a transaction it waits for its end.)
    pub(super) fn goes_back(&mut self, s: usize) -> bool {
        let server = &self.servers[s];
        let Some(c) = server.client else { return false };
        let done = server.status == Status::Idle && server.expect.is_empty() && !server.in_unit;
        let alone = server.lane.is_empty() && !server.discard && !server.begin_failed;
        if !done || !alone || server.params.is(&self.clients[c].params) {
            return false;
        }
        let params = self.clients[c].params.clone();
        self.servers[s].owes_ready = true;
        self.prepare_session(s, &params);
        true
    }

    /// The client stays with its server connection.
    pub(super) fn pin(&mut self, c: usize, s: usize, pins: Pins) {
        if pins.is_empty() {
            return;
        }
        if self.is_replica(s) {
            // A client that stays on a replica could not write any more: what a read-only transaction sets ends with it.
            self.servers[s].reset = true;
            return;
        }
        let client = &mut self.clients[c];
        let was_pinned = !client.pins.is_empty();
        for (i, (pin, _)) in Pins::NAMES.iter().enumerate() {
            if pins.0 & pin.0 != 0 && client.pins.0 & pin.0 == 0 {
                self.metrics.pins[i].add(1);
            }
        }
        client.pins = client.pins.with(pins);
        if !was_pinned {
            self.metrics.clients_pinned.add(1);
        }
    }

    /// Stands for the parameters under which the client's texts are read now; while it is setting some, or is pinned, for the
    /// client itself: what is prepared then is nobody else's.
    pub(super) fn dialect_of(&self, c: usize) -> u64 {
        let client = &self.clients[c];
        let setting = client.at.server().is_some_and(|s| self.servers[s].sets.open);
        if client.pins.is_empty() && !setting { client.dialect } else { client.token.raw() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(list: &[(&str, &str)]) -> Params {
        Params::from_pairs(list.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())))
    }

    fn set(name: &str, value: &str) -> Change {
        Change::Set(name.into(), Value::Text(value.into()))
    }

    #[test]
    fn what_is_in_force_after_changes() {
        let base = params(&[("timezone", "UTC"), ("role", "app")]);
        let now = params(&[("timezone", "Asia/Tokyo"), ("role", "admin"), ("jit", "off")]);
        let cases = [
            (vec![], now.0.clone()),
            (
                vec![set("jit", "on"), set("a.b", "")],
                params(&[("a.b", ""), ("jit", "on"), ("role", "admin"), ("timezone", "Asia/Tokyo")]).0,
            ),
            (vec![Change::Reset("jit".into())], params(&[("role", "admin"), ("timezone", "Asia/Tokyo")]).0),
            (
                vec![Change::Reset("timezone".into())],
                params(&[("jit", "off"), ("role", "admin"), ("timezone", "UTC")]).0,
            ),
            (vec![Change::ResetAll], params(&[("role", "admin"), ("timezone", "UTC")]).0),
            (vec![Change::DiscardAll], base.0.clone()),
            (
                vec![Change::DiscardAll, set("jit", "off")],
                params(&[("jit", "off"), ("role", "app"), ("timezone", "UTC")]).0,
            ),
        ];
        for (changes, expected) in cases {
            assert_eq!(changed(&now, &base, &changes).0, expected, "{changes:?}");
        }
    }

    #[test]
    fn channels_of_a_transaction() {
        let listen = |name: &str| Change::Listen(name.into());
        let mark = |name: &str| Change::Savepoint(name.into());
        let back = |name: &str| Change::RollbackTo(name.into());
        let release = |name: &str| Change::Release(name.into());
        let cases = [
            (vec![listen("a"), Change::UnlistenAll, listen("b")], vec![listen("a"), Change::UnlistenAll, listen("b")]),
            (
                vec![listen("a"), mark("p"), listen("b"), back("p"), listen("c")],
                vec![listen("a"), mark("p"), listen("c")],
            ),
            // It was made before anything was said of channels.
            (vec![listen("a"), back("p"), listen("b")], vec![listen("b")]),
            (vec![mark("p"), listen("a"), mark("q"), release("p"), back("q")], vec![]),
            (vec![mark("p"), mark("p"), listen("a"), back("p"), listen("b"), back("p")], vec![mark("p"), mark("p")]),
            (vec![listen("a"), mark("p"), listen("b"), release("p")], vec![listen("a"), listen("b")]),
        ];
        for (changes, expected) in cases {
            let mut listens = Listens::default();
            for change in &changes {
                listens.completed(std::slice::from_ref(change));
            }
            assert!(listens.settle(false).is_empty(), "{changes:?}");
            assert_eq!(listens.settle(true), expected, "{changes:?}");
        }
        // What fails is undone, unless it goes back to a savepoint first.
        let mut sets = Sets::default();
        sets.listens.completed(&[listen("a"), mark("p")]);
        sets.undo();
        sets.listens.completed(&[back("p")]);
        assert_eq!(sets.listens.settle(true), [listen("a"), mark("p")]);
        sets.listens.completed(&[listen("b")]);
        sets.undo();
        assert!(sets.listens.settle(true).is_empty());
        // COMMIT in the middle of a text.
        sets.listens.completed(&[listen("c")]);
        sets.listens.ended(true);
        sets.listens.completed(&[listen("d")]);
        assert_eq!(sets.listens.settle(false), [listen("c")]);
        sets.listens.ended(false);
        assert!(sets.listens.settle(true).is_empty());
    }

    #[test]
    fn bound_values_are_filled_in() {
        let changes = Changes { statements: vec![vec![Change::Set("a".into(), Value::Bound(1))]], doubt: false };
        // No formats, two values: NULL and "x".
        let values = [&[0, 0, 0, 2][..], &[0xff; 4], &[0, 0, 0, 1], b"x", &[0, 0]].concat();
        let filled_in = filled(&changes, &values).map(|changes| changes.statements);
        assert_eq!(filled_in, Some(vec![vec![set("a", "x")]]));
        let null = Changes { statements: vec![vec![Change::Set("a".into(), Value::Bound(0))]], doubt: false };
        assert_eq!(filled(&null, &values), None);
        let none = Changes { statements: vec![vec![Change::Set("a".into(), Value::Bound(2))]], doubt: false };
        assert_eq!(filled(&none, &values), None);
    }
}
