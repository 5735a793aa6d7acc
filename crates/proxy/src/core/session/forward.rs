//! A client with a server connection: its messages are passed on, one by one.
//!
//! Most messages are appended to the server connection's output unchanged. Messages about prepared statements are
//! handled in `statements`, messages that the proxy answers by itself in `local`.

use std::sync::Arc;
use std::time::Duration;

use sql::{Access, Changes, Class, Control, Flags, Hint, Pins};
use wire::frontend::Message;
use wire::message::{self, Status};
use wire::{Frame, HEADER};

use super::client::{Attempts, PassThrough, Step};
use crate::config::{PoolMode, UnknownFunctions};
use crate::core::parameters::Reads;
use crate::core::prepared::Undo;
use crate::core::server::{Begin, Note, Refusal, Request};
use crate::core::{Core, over};

/// Most answers that a server connection may owe; the messages of a client that pipelines more wait.
pub(in crate::core) const MOST_EXPECTED: usize = 4096;

/// Most unanswered units of a client outside of a transaction; another client may wait until they are carried out.
const MOST_UNITS: u64 = 128;
/// Time for which a client that pipelines has a server connection while others wait for one.
const TURN: Duration = Duration::from_millis(20);

impl Core {
    /// Sends a client's message to its server connection, or answers it.
    pub(super) fn forward(&mut self, c: usize, s: usize, bytes: &[u8], frame: Frame) -> Step {
        if self.clients[c].unit.early && !self.is_replica(s) {
            if self.loses_early_reads(c) {
                let token = self.clients[c].token;
                self.release(s);
                return if self.is_client(token) { Step::Again } else { Step::Gone };
            }
            // No replica answers the read: the transaction begins here.
            self.clients[c].unit.early = false;
            self.joins_transaction(c);
        }
        self.keep_for_replay(c, s, bytes);
        if self.must_wait(s, frame.tag) {
            return Step::Blocked;
        }
        if self.leaves_room(c, s, frame.tag) {
            self.clients[c].held_up = true;
            return Step::Blocked;
        }
        if self.servers[s].protocol.owes() >= MOST_EXPECTED {
            // Only part of the unit has been sent: a kept copy would overlap with the part that is still in the
            // client's input.
            self.give_up_replay(c);
            if !std::mem::replace(&mut self.clients[c].held_up, true) {
                // A server keeps short answers back until a Sync or a Flush, and the client's own waits behind the limit.
                self.write_server(s, |out| message::empty(out, b'H'));
            }
            return Step::Blocked;
        }
        if self.servers[s].protocol.is_skipping() && frame.tag != b'S' {
            self.clients[c].pass_through = PassThrough::discard(frame.total());
            return Step::Again;
        }
        let message = match Message::read(frame, bytes) {
            Ok(Some(message)) => message,
            Ok(None) => return self.forward_part(c, s, bytes, frame),
            Err(invalid) => {
                self.violation(c, &invalid.to_string());
                return Step::Gone;
            }
        };
        // If the unit was looked at as a whole, the text has been classified already.
        let query = match message {
            Message::Query { text } => Some(match self.clients[c].unit.query {
                Some(class) => (class, self.clients[c].unit.key),
                None => {
                    let class = self.classify(c, text);
                    let shape = self.classifier.shape();
                    (self.class_with_executed(c, class, text), shape)
                }
            }),
            _ => None,
        };
        if self.servers[s].work.shown.is_some() {
            let token = self.clients[c].token;
            if self.moves_to_primary(c, s, message, query.map(|(class, _)| class)) {
                return if self.is_client(token) { Step::Again } else { Step::Gone };
            }
        }
        if let (Some((class, _)), Message::Query { text }) = (query, message)
            && let Some(step) = self.forward_local(c, s, class, text, frame)
        {
            return step;
        }
        if let (Some((class, _)), Message::Query { text }) = (query, message)
            && class.flags.has(Flags::NAMES)
            && let Some(step) = self.alias_for_query(c, s, class, text)
        {
            return step;
        }
        if let Message::Parse { name, .. } = message
            && !name.is_empty()
            && frame.payload > self.settings.max_statement
        {
            return self.too_long(c, s);
        }
        self.prepare_before_begin(c, s, message);
        self.begin(c, s);
        match message {
            Message::Query { text } => {
                self.forward_query(c, s, query.unwrap_or((Class::UNKNOWN, 0)), (text, bytes), frame)
            }
            Message::Parse { name, text, types } => self.forward_parse(c, s, (name, text, types), bytes, frame),
            Message::Bind { portal, statement, rest } => {
                self.forward_bind(c, s, (portal, statement, rest), bytes, frame)
            }
            Message::Describe(named) => self.forward_describe(c, s, named, bytes, frame),
            Message::Close(named) => self.forward_close(c, s, named, bytes, frame),
            Message::Execute { portal, .. } => self.forward_execute(c, s, portal, bytes, frame),
            Message::Flush => {
                // The client waits for the answers so far, so they can't be held back.
                self.give_up_replay(c);
                self.servers[s].protocol.flushes();
                self.pass_on(c, s, bytes, frame)
            }
            Message::Sync => {
                let server = &mut self.servers[s];
                // A server that reads COPY data ignores Sync.
                if !server.protocol.copies_in() {
                    server.ends_unit(Request::Sync, Note::Sync);
                    server.barrier |= server.tracker.goes_back();
                    self.count_statement(s);
                    self.end_unit(c);
                }
                self.pass_on(c, s, bytes, frame)
            }
            Message::FunctionCall => {
                if let Some(why) = self.admit_sent(c, s, (Class::UNKNOWN, 0, b"")) {
                    return self.refuse_query(c, s, frame, why);
                }
                let class = Class { flags: Flags::UNKNOWN, ..Class::UNKNOWN };
                self.clients[c].unflushed = true;
                self.note_effects(c, s, class, true);
                self.servers[s].ends_unit(Request::Query, Note::query);
                self.count_statement(s);
                self.end_unit(c);
                self.pass_on(c, s, bytes, frame)
            }
            Message::CopyData => self.pass_on(c, s, bytes, frame),
            Message::CopyDone | Message::CopyFail => {
                self.servers[s].protocol.ends_copy(Note::Client);
                self.pass_on(c, s, bytes, frame)
            }
            Message::Terminate => {
                // `message` handles Terminate first.
                self.close_client(c);
                Step::Gone
            }
        }
    }

    /// True if the effect of the next message, of this tag, depends on an answer that is still to come.
    fn must_wait(&self, s: usize, tag: u8) -> bool {
        let server = &self.servers[s];
        let protocol = &server.protocol;
        let data = matches!(tag, b'd' | b'c' | b'f');
        let begins_unit = !protocol.is_in_unit() && !data;
        let about_statements = matches!(tag, b'P' | b'B' | b'D' | b'C' | b'Q');
        // If an earlier unit fails, PostgreSQL skips its Parses: `P s …; S; B s`. So a later message about statements
        // waits for that unit.
        let depends = protocol.is_depended_on() && about_statements;
        // A SET in an earlier unit may fail, and the scope of a later statement depends on that.
        let changed = server.tracker.in_force.changed_in();
        let in_flight = changed.is_some_and(|unit| unit < protocol.unit() && !protocol.has_ended(unit));
        let reread = in_flight && about_statements && tag != b'Q';
        // Only one unit may be behind a BEGIN that was put off: the next one waits until BEGIN is answered.
        let behind_begin = server.begin != Begin::No && begins_unit;
        // Messages behind LISTEN wait until the LISTEN is answered.
        let listens = server.tracker.listens() && !protocol.is_settled() && begins_unit;
        server.barrier || depends || reread || behind_begin || listens
    }

    /// True if a client that pipelines has to wait with its next unit, for the sake of other clients: [`MOST_UNITS`] units are unanswered, or other
    /// clients wait for a connection and the client has had this one for a while. In a transaction, or in a session of the client's own, no other
    /// client gets it anyway.
    fn leaves_room(&self, c: usize, s: usize, tag: u8) -> bool {
        let server = &self.servers[s];
        let protocol = &server.protocol;
        let begins_unit = !protocol.is_in_unit() && !protocol.copies_in() && !matches!(tag, b'd' | b'c' | b'f');
        let others = || self.pools[server.pool].is_waited_for() && over(server.taken, TURN, self.now);
        begins_unit
            && protocol.owes_end()
            && protocol.status() == Status::Idle
            && !self.is_bound(c)
            && (protocol.units() >= MOST_UNITS || others())
    }

    /// Handles a message that is not complete yet, and of which the part that has arrived can't be decoded.
    fn forward_part(&mut self, c: usize, s: usize, bytes: &[u8], frame: Frame) -> Step {
        if !matches!(frame.tag, b'Q' | b'P') || frame.payload <= self.settings.max_statement {
            return Step::More;
        }
        if frame.tag == b'P' {
            match bytes.get(HEADER) {
                None => return Step::More,
                Some(0) => {}
                Some(_) => return self.too_long(c, s),
            }
        }
        self.begin(c, s);
        // The statement is unknown, so the session is cleaned of everything when the transaction ends.
        self.servers[s].cleaning.all = true;
        self.clients[c].unflushed = true;
        if frame.tag == b'P' {
            self.forward_long_parse(c, s);
        } else {
            if let Some(why) = self.admit_sent(c, s, (Class::UNKNOWN, 0, b"")) {
                return self.refuse_query(c, s, frame, why);
            }
            let undo = self.names_of_query(c, s);
            let class = Class { flags: Flags::LOCAL, ..Class::UNKNOWN };
            self.note_text(c, s, class, None);
            self.note_effects(c, s, class, true);
            self.servers[s].ends_unit(Request::Query, |timing| Note::Query {
                changes: None,
                undo,
                dropped: None,
                timing,
            });
            self.count_statement(s);
            self.end_unit(c);
        }
        self.pass_on(c, s, bytes, frame)
    }

    /// Forwards a message unchanged, as much of it as has arrived.
    pub(super) fn pass_on(&mut self, c: usize, s: usize, bytes: &[u8], frame: Frame) -> Step {
        let n = frame.total().min(bytes.len());
        self.write_server(s, |out| out.extend_from_slice(&bytes[..n]));
        if n < frame.total() {
            self.clients[c].pass_through =
                PassThrough::forward(frame.total() - n, !matches!(frame.tag, b'd' | b'c' | b'f'));
        }
        Step::Used(n)
    }

    pub(super) fn end_unit(&mut self, c: usize) {
        let client = &mut self.clients[c];
        client.unit.reset();
        client.since = self.now;
    }

    // --- replay ---

    /// Keeps a unit that may be sent again and holds its replies back, at its first message.
    fn keep_for_replay(&mut self, c: usize, s: usize, bytes: &[u8]) {
        // A unit that a replica refuses was not carried out, so any unit may be sent again after a refusal.
        let replica = self.is_replica(s);
        let client = &mut self.clients[c];
        let unit = &mut client.unit;
        if unit.routed && unit.whole && (unit.repeatable || replica) {
            // `whole` marks that the unit still starts at `bytes`; it is cleared, so that the unit is kept only once.
            if unit.is_single() {
                let meter = &mut self.servers[s].meter;
                (meter.measured, meter.answered) = (unit.key, 0);
            }
            unit.whole = false;
            if client.pins.is_empty() && client.replay.is_none() {
                client.repeatable = unit.repeatable;
                client.replay.keep(&bytes[..unit.scanned], &mut self.buffers);
                client.output.hold(&mut self.buffers);
            }
            self.check_replay(c, s);
        } else if !unit.routed {
            // Another unit follows before the first is answered.
            self.give_up_replay(c);
            self.clients[c].attempts = Attempts::default();
        }
    }

    /// Releases the replies of the unit in flight, which will not be sent again.
    pub(in crate::core) fn give_up_replay(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if client.replay.forget(&mut self.buffers) {
            client.output.release();
            self.write_client(c, |_| {});
        }
    }

    // --- queries ---

    fn forward_query(
        &mut self,
        c: usize,
        s: usize,
        (class, key): (Class, u64),
        (text, bytes): (&[u8], &[u8]),
        frame: Frame,
    ) -> Step {
        if let Some(why) = self.admit_sent(c, s, (class, key, text)).or_else(|| self.refusal(s, class)) {
            return self.refuse_query(c, s, frame, why);
        }
        let changes = self.changes_of(c, s, class, || None, text);
        let pins = self.note_text(c, s, class, changes.as_deref());
        self.note_effects(c, s, Class { pins, ..class }, true);
        self.count_begin(c, s, key, text, true);
        let undo = self.names_of_query(c, s);
        let dropped = self.drops_statements(c, s, class, text);
        let server = &mut self.servers[s];
        server.ends_unit(Request::Query, |timing| Note::Query { changes, undo, dropped, timing });
        server.barrier |= server.tracker.goes_back();
        self.count_statement(s);
        self.end_unit(c);
        self.pass_on(c, s, bytes, frame)
    }

    /// Drops the unnamed statement for a Query, both the client's and the server connection's.
    pub(super) fn names_of_query(&mut self, c: usize, s: usize) -> Undo {
        let undo = self.clients[c].names.query();
        let server = &mut self.servers[s];
        server.statements.set_unnamed(crate::core::prepared::Unnamed::Unknown);
        // The Query can be skipped only if it follows messages without their Sync, such as `P …; Q`.
        if server.protocol.is_in_unit() { undo } else { Undo::Nothing }
    }

    /// Returns the reason for which this server must not run a statement of this class; `None` if it may.
    pub(super) fn refusal(&self, s: usize, class: Class) -> Option<Refusal> {
        let locks = class.flags.has(Flags::LOCKS);
        let snapshot = class.flags.has(Flags::SNAPSHOT);
        let holds = class.pins.0 & Pins::CURSOR.0 != 0;
        match (locks, snapshot, holds) {
            (false, false, false) => None,
            _ if !self.is_replica(s) => None,
            (true, _, _) => Some(Refusal::LockOnReplica),
            (false, true, _) => Some(Refusal::SnapshotOnReplica),
            (false, false, true) => Some(Refusal::HoldOnReplica),
        }
    }

    /// Refuses a Query: the server gets a text that fails, and the client gets the proxy's error in place of the
    /// server's.
    fn refuse_query(&mut self, c: usize, s: usize, frame: Frame, why: Refusal) -> Step {
        let undo = self.names_of_query(c, s);
        self.give_up_replay(c);
        self.servers[s].ends_unit(Request::Query, |timing| Note::RefusedQuery { why, undo, timing });
        self.count_statement(s);
        self.end_unit(c);
        // The text fails on the server so that an open transaction fails, too. The server's log shows the text.
        self.write_server(s, |out| message::query(out, why.text()));
        self.discard(c, frame)
    }

    // --- effects of a statement beside its answer ---

    /// Returns the changes that this text makes to parameters and channels. `None`: none, or they can't be determined. `cached` is tried first.
    pub(super) fn changes_of(
        &self,
        c: usize,
        s: usize,
        class: Class,
        cached: impl FnOnce() -> Option<Option<Arc<Changes>>>,
        text: &[u8],
    ) -> Option<Arc<Changes>> {
        // Savepoints and ends of transactions matter only if the session has changed something.
        let ends = class.flags.has(Flags::SAVEPOINT) || class.flags.has(Flags::TRANSACTION);
        let about = is_about_parameters(class) || class.flags.has(Flags::LISTENS);
        if !(about || (ends && self.servers[s].tracker.is_at_work())) {
            return None;
        }
        // The text of an EXECUTE does not show what its statement sets.
        if class.flags.has(Flags::EXECUTES) && about {
            return None;
        }
        // With `standard_conforming_strings` off, the parser would misread the text.
        if self.clients[c].odd_strings && text.contains(&b'\\') {
            return None;
        }
        cached().unwrap_or_else(|| self.classifier.changes(text).map(Arc::new))
    }

    /// Records the changes of a text that is sent to be run. Returns those pins of its class that remain once the changes are known.
    pub(super) fn note_text(&mut self, c: usize, s: usize, class: Class, changes: Option<&Changes>) -> Pins {
        if says_nothing(class) && changes.is_none() {
            return class.pins;
        }
        self.note_in_force(c, s, class, changes);
        self.note_bound_text(c, s, class, changes)
    }

    /// Records as `note_text`, for a text that is only bound: its changes take effect when the portal is executed.
    pub(super) fn note_bound_text(&mut self, c: usize, s: usize, class: Class, changes: Option<&Changes>) -> Pins {
        let listens = class.flags.has(Flags::LISTENS);
        self.servers[s].tracker.text_sent(&self.clients[c].base, changes, listens);
        match changes {
            Some(changes) if !changes.doubt => {
                let pins = class.pins.without(Pins::PARAMETERS);
                if listens && self.may_share_listen(c, s) {
                    // The session listens only until the pool's shared connection does.
                    self.servers[s].cleaning.unlisten = true;
                    pins.without(Pins::LISTEN)
                } else {
                    pins
                }
            }
            // A reset of unknown parameters: the client keeps the connection, and the session is reset after it.
            _ if class.flags.has(Flags::RESETS_PARAMETERS) => class.pins.with(Pins::SET),
            _ => class.pins,
        }
    }

    /// Updates the parameters under which later texts will be read, when a text is run.
    pub(super) fn note_in_force(&mut self, c: usize, s: usize, class: Class, changes: Option<&Changes>) {
        if says_nothing(class) && changes.is_none() {
            return;
        }
        let unknown = class.flags.has(Flags::UNKNOWN) && self.unknown_functions(c) != UnknownFunctions::Trust;
        let server = &mut self.servers[s];
        let (unit, in_force) = (server.protocol.unit(), &mut server.tracker.in_force);
        let params = &self.clients[c].params;
        let registry = &self.shared.registry;
        match (changes, class.control) {
            _ if unknown => in_force.becomes_unknown(unit),
            (Some(changes), _) if changes.doubt => in_force.becomes_unknown(unit),
            (Some(changes), _) => {
                for changes in &changes.statements {
                    in_force.sent(params, changes, unit, registry);
                }
            }
            (None, _) if is_about_parameters(class) => in_force.becomes_unknown(unit),
            (None, Control::Commit) => in_force.sent(params, &[sql::Change::End { commits: true }], unit, registry),
            (None, Control::Rollback) => in_force.sent(params, &[sql::Change::End { commits: false }], unit, registry),
            (None, _) => {}
        }
    }

    /// Returns the treatment of unknown functions in the client's database.
    fn unknown_functions(&self, c: usize) -> UnknownFunctions {
        let database = &self.pools[self.clients[c].pool].database;
        // In session mode the client keeps its connection, and with it the session state that a function left.
        if database.mode == PoolMode::Session { UnknownFunctions::Pin } else { database.unknown_functions }
    }

    /// Records the session state that a statement leaves behind, and whether its loss would be in doubt. `certain`: it is executed now, and not only
    /// bound.
    pub(super) fn note_effects(&mut self, c: usize, s: usize, class: Class, certain: bool) {
        let mut pins = class.pins;
        // A write may notify through a trigger or a function.
        if class.access == Access::Write
            && class.control == Control::None
            && (!class.flags.has(Flags::LISTENS) || class.flags.has(Flags::MULTI))
        {
            self.note_sender(c, s);
        }
        if class.flags.has(Flags::UNKNOWN) {
            let parse_settings = match self.reads(c) {
                Reads::As(parse_settings) => parse_settings,
                // The server's report decides if it is another one by now: `CachedFunctionPlans::literals_move`.
                Reads::Unknown { .. } => self.clients[c].params.parse_settings(),
            };
            self.servers[s].function_plans.call(parse_settings);
            match self.unknown_functions(c) {
                UnknownFunctions::Trust => {}
                UnknownFunctions::Reset => self.servers[s].cleaning.functions = true,
                UnknownFunctions::Pin => pins = pins.with(Pins::FUNCTION),
            }
        }
        if class.flags.has(Flags::MAKES) {
            // If `search_path` begins with `pg_temp`, new objects are temporary. In doubt (a role's own `search_path`, one that a function has set)
            // they are dropped before another client gets the connection; if it is known, its client stays, as with CREATE TEMP TABLE.
            let list = self.servers[s].tracker.in_force.list(&self.clients[c].params);
            let path = list.iter().flatten().find(|(name, _)| name == "search_path");
            // A text of several statements may set another `search_path` for a part of them.
            let sets = class.flags.has(Flags::MULTI) && is_about_parameters(class);
            if sets || path.is_some_and(|(_, path)| path.to_ascii_lowercase().contains("pg_temp")) {
                pins = pins.with(Pins::TEMP);
            }
            self.servers[s].cleaning.temp = true;
        }
        let server = &mut self.servers[s];
        let work = &mut server.work;
        if !class.flags.has(Flags::SHOWS) {
            work.shown = None;
        }
        if class.access == Access::Write {
            match class.control {
                Control::Begin { .. } | Control::Rollback => {}
                Control::Commit => work.committing = true,
                Control::None => {
                    work.has_written = true;
                    work.changed |= !class.flags.has(Flags::SESSION);
                    work.committing |= server.protocol.status() == Status::Idle || class.flags.has(Flags::TRANSACTION);
                }
            }
        }
        // A function behind a view or an operator may write unseen; that may be why a hint sends the statement to the
        // primary.
        work.may_have_written |= class.hint == Some(Hint::Primary);
        work.may_begin |= matches!(class.control, Control::Begin { .. }) || class.flags.has(Flags::TRANSACTION);
        if class.flags.has(Flags::SCHEMA) {
            let declared = class.flags.has(Flags::DDL);
            work.alters = Some(declared || work.alters == Some(true));
            self.pools[server.pool].namespace.schema().changes(self.now, declared);
        }
        let server = &mut self.servers[s];
        // Several statements in one text: how many were carried out is known only when all have answered.
        let several = class.flags.has(Flags::MULTI) || class.flags.has(Flags::UNKNOWN);
        server.barrier |= certain && several && class.flags.has(Flags::DROPS_STATEMENTS);
        // A statement such as DISCARD clears state only if it succeeds and is not rolled back: that is checked at the
        // end of the unit.
        let alone = server.protocol.status() == Status::Idle && !server.is_running();
        server.work.unpins = server.work.unpins.without(pins);
        if certain && alone && !class.flags.has(Flags::TRANSACTION) {
            server.work.unpins = server.work.unpins.with(class.unpins);
        }
        self.pin(c, s, pins);
    }

    /// Pins the client to its server connection.
    pub(in crate::core) fn pin(&mut self, c: usize, s: usize, pins: Pins) {
        if pins.is_empty() {
            return;
        }
        if self.is_replica(s) {
            // A client pinned to a replica could not write any more. The session state that a read-only transaction leaves is cleaned up at its end
            // instead.
            self.servers[s].cleaning.all = true;
            self.servers[s].retire |= pins.0 & Pins::LOAD.0 != 0;
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

    /// Removes pins for state of the client that the session no longer has.
    pub(in crate::core) fn unpin(&mut self, c: usize, unpins: Pins) {
        let client = &mut self.clients[c];
        let was_pinned = !client.pins.is_empty();
        client.pins = client.pins.without(unpins);
        if was_pinned && client.pins.is_empty() {
            self.metrics.clients_pinned.sub(1);
        }
    }

    /// Notes that DDL of this connection's client may have been committed: statements prepared before it are outdated.
    pub(in crate::core) fn settle_schema(&mut self, s: usize) {
        if let Some(declared) = self.servers[s].work.alters.take() {
            self.pools[self.servers[s].pool].namespace.schema().changes(self.now, declared);
        }
    }

    /// Corrects a RESET, which took the session back to the initial values of the server connection, and not to those of the client. It is corrected
    /// before the client gets its answer. True: the correction is under way. (In a transaction it waits for the end.)
    pub(in crate::core) fn goes_back(&mut self, s: usize) -> bool {
        let server = &self.servers[s];
        let Some(c) = server.client else { return false };
        let done = server.protocol.status() == Status::Idle && server.protocol.is_quiet();
        let alone = server.lane.is_empty() && !server.discard && server.begin != Begin::Failed;
        if !done || !alone || server.params.is(&self.clients[c].params) {
            return false;
        }
        let params = self.clients[c].params.clone();
        self.servers[s].own.owes_ready = true;
        self.prepare_session(s, &params);
        true
    }
}

/// True if a text of this class changes nothing that is followed: most texts only read or write rows.
fn says_nothing(class: Class) -> bool {
    class.flags.without(Flags::BEGIN_TIME) == Flags(0) && class.pins.is_empty() && class.control == Control::None
}

/// True if a text of this class may change parameters, for the session or the transaction.
fn is_about_parameters(class: Class) -> bool {
    class.pins.0 & Pins::PARAMETERS.0 != 0 || class.flags.has(Flags::RESETS_PARAMETERS) || class.flags.has(Flags::LOCAL)
}
