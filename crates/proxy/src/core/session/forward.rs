//! A client with a server: its messages go on, one by one.
//!
//! Most are appended to the server's output as they are. What is about prepared statements is in `statements`; what the proxy answers by
//! itself in `local`.

use std::sync::Arc;

use sql::{Access, Changes, Class, Control, Flags, Hint, Pins};
use wire::frontend::Message;
use wire::message::{self, Status};
use wire::{Frame, HEADER};

use super::client::{Again, Pass, Step};
use crate::config::{PoolMode, UnknownFunctions};
use crate::core::Core;
use crate::core::prepared::Undo;
use crate::core::server::{Begin, Note, Refusal, Request};

/// Pipelined messages that a server may owe answers for; a client that sends more waits.
pub(in crate::core) const MOST_EXPECTED: usize = 4096;

impl Core {
    /// Sends a client's message to its server, or answers it.
    pub(super) fn forward(&mut self, c: usize, s: usize, bytes: &[u8], frame: Frame) -> Step {
        self.keep_for_replay(c, s, bytes);
        if self.must_wait(s, frame.tag) {
            return Step::Blocked;
        }
        if self.servers[s].protocol.owes() >= MOST_EXPECTED {
            // Only part of the unit has been sent: what is kept for a replay would overlap with what is still to come.
            self.give_up_replay(c);
            self.clients[c].held_up = true;
            return Step::Blocked;
        }
        if self.servers[s].protocol.is_skipping() && frame.tag != b'S' {
            self.clients[c].pass = Pass::discard(frame.total());
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
        // Where the unit was looked at as a whole, its class and its shape are known from there.
        let query = match message {
            Message::Query { text } => Some(match self.clients[c].unit.query {
                Some(class) => (class, self.clients[c].unit.key),
                None => (self.classify(c, text), self.classifier.shape()),
            }),
            _ => None,
        };
        if let (Some((class, _)), Message::Query { text }) = (query, message)
            && let Some(step) = self.forward_local(c, s, class, text, frame)
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
                // The client waits for what it has asked so far.
                self.give_up_replay(c);
                self.pass_on(c, s, bytes, frame)
            }
            Message::Sync => {
                let server = &mut self.servers[s];
                // While it reads COPY data, a server ignores Sync.
                if !server.protocol.copies_in() {
                    server.ends_unit(Request::Sync, Note::Sync);
                    server.barrier |= server.tracker.goes_back();
                    self.count_statement(s);
                    self.end_unit(c);
                }
                self.pass_on(c, s, bytes, frame)
            }
            Message::FunctionCall => {
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
                // It was looked at before.
                self.close_client(c);
                Step::Gone
            }
        }
    }

    /// True if the next message of this kind depends on an answer that is still to come.
    fn must_wait(&self, s: usize, tag: u8) -> bool {
        let server = &self.servers[s];
        let protocol = &server.protocol;
        let data = matches!(tag, b'd' | b'c' | b'f');
        let begins_unit = !protocol.is_in_unit() && !data;
        let about_statements = matches!(tag, b'P' | b'B' | b'D' | b'C' | b'Q');
        // A unit that fails skips its Parses: what a later unit does with their statements depends on it.
        let depends = protocol.is_depended_on() && about_statements;
        // SET in an earlier unit: how a text is read depends on whether it succeeds.
        let changed = server.tracker.in_force.changed_in();
        let in_flight = changed.is_some_and(|unit| unit < protocol.unit() && !protocol.has_ended(unit));
        let reread = in_flight && about_statements && tag != b'Q';
        // A unit behind the first of a transaction waits for that to have begun, or for its client to hear that it has not.
        let behind_begin = server.begin != Begin::No && begins_unit;
        // What comes after LISTEN waits until that is known to hold.
        let listens = server.tracker.listens() && !protocol.is_settled() && begins_unit;
        server.barrier || depends || reread || behind_begin || listens
    }

    /// A message that has not arrived whole, and that can't be understood as far as it is there.
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
        // Nothing is known of it: whatever it leaves behind goes when the transaction ends.
        self.servers[s].cleaning.all = true;
        self.clients[c].unflushed = true;
        if frame.tag == b'P' {
            self.forward_long_parse(c, s);
        } else {
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

    /// Forwards a message as it is, as far as it is there.
    pub(super) fn pass_on(&mut self, c: usize, s: usize, bytes: &[u8], frame: Frame) -> Step {
        let n = frame.total().min(bytes.len());
        self.send(s, |out| out.extend_from_slice(&bytes[..n]));
        if n < frame.total() {
            self.clients[c].pass = Pass::forward(frame.total() - n);
        }
        Step::Used(n)
    }

    pub(super) fn end_unit(&mut self, c: usize) {
        let client = &mut self.clients[c];
        client.unit.reset();
        client.since = self.now;
    }

    // --- replay ---

    /// At the first message of a unit that may be sent again: keeps it, and holds its replies back.
    fn keep_for_replay(&mut self, c: usize, s: usize, bytes: &[u8]) {
        // What a replica refuses it has not done, whatever it was.
        let replica = self.is_replica(s);
        let client = &mut self.clients[c];
        let unit = &mut client.unit;
        if unit.routed && unit.whole && (unit.repeatable || replica) {
            // Only once: `scanned` bytes from here are the unit.
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
        } else if !unit.routed {
            // Another unit follows before the first is answered.
            self.give_up_replay(c);
            self.clients[c].again = Again::default();
        }
    }

    /// The unit in flight can't be sent again from here on: its replies need not be held back.
    pub(in crate::core) fn give_up_replay(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if client.replay.forget(&mut self.buffers) {
            client.output.release();
            self.tell(c, |_| {});
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
        if let Some(why) = self.refusal(s, class) {
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

    /// A Query drops the unnamed statement, of the client and of its server.
    pub(super) fn names_of_query(&mut self, c: usize, s: usize) -> Undo {
        let undo = self.clients[c].names.query();
        let server = &mut self.servers[s];
        server.held.set_unnamed(crate::core::prepared::Unnamed::Unknown);
        // Only behind messages of a unit without its Sync may it be skipped.
        if server.protocol.is_in_unit() { undo } else { Undo::Nothing }
    }

    /// Why a statement of this class is not run by this server; None: it is.
    pub(super) fn refusal(&self, s: usize, class: Class) -> Option<Refusal> {
        let locks = class.flags.has(Flags::LOCKS);
        let holds = class.pins.0 & Pins::CURSOR.0 != 0;
        match (locks, holds) {
            (false, false) => None,
            _ if !self.is_replica(s) => None,
            (true, _) => Some(Refusal::LockOnReplica),
            (false, true) => Some(Refusal::HoldOnReplica),
        }
    }

    /// The server gets a text that it can't run, and the client is told why the proxy does not want it to be run.
    fn refuse_query(&mut self, c: usize, s: usize, frame: Frame, why: Refusal) -> Step {
        let undo = self.names_of_query(c, s);
        self.give_up_replay(c);
        self.servers[s].ends_unit(Request::Query, |timing| Note::RefusedQuery { why, undo, timing });
        self.count_statement(s);
        self.end_unit(c);
        // A transaction has to fail with it. What the server logs says why.
        self.send(s, |out| message::query(out, "refused by kingpost: not on a replica"));
        Step::Used(frame.total())
    }

    // --- what a statement does beside its answer ---

    /// What this text of the client's changes of parameters and channels. None: nothing, or nothing is known of it. `cached`: asked first.
    pub(super) fn changes_of(
        &self,
        c: usize,
        s: usize,
        class: Class,
        cached: impl FnOnce() -> Option<Option<Arc<Changes>>>,
        text: &[u8],
    ) -> Option<Arc<Changes>> {
        // Savepoints and ends of transactions matter only to who has changed something.
        let ends = class.flags.has(Flags::SAVEPOINT) || class.flags.has(Flags::TRANSACTION);
        let about = is_about_parameters(class) || class.flags.has(Flags::LISTENS);
        if !(about || (ends && self.servers[s].tracker.is_at_work())) {
            return None;
        }
        // Without standard strings a parser reads something else.
        if self.clients[c].odd_strings && text.contains(&b'\\') {
            return None;
        }
        cached().unwrap_or_else(|| self.classifier.changes(text).map(Arc::new))
    }

    /// A text is sent, or bound to a portal: what of its class's pins is left with these changes known.
    pub(super) fn note_text(&mut self, c: usize, s: usize, class: Class, changes: Option<&Changes>) -> Pins {
        if says_nothing(class) && changes.is_none() {
            return class.pins;
        }
        self.note_in_force(c, s, class, changes);
        self.note_bound_text(c, s, class, changes)
    }

    /// The same for what is bound only: it has no effect until it is executed.
    pub(super) fn note_bound_text(&mut self, c: usize, s: usize, class: Class, changes: Option<&Changes>) -> Pins {
        let listens = class.flags.has(Flags::LISTENS);
        self.servers[s].tracker.text_sent(&self.clients[c].base, changes, listens);
        match changes {
            Some(changes) if !changes.doubt => {
                let pins = class.pins.without(Pins::SET.with(Pins::ROLE));
                if listens && self.may_share_listen(c, s) {
                    // This session listens only until the shared connection does.
                    self.servers[s].cleaning.unlisten = true;
                    pins.without(Pins::LISTEN)
                } else {
                    pins
                }
            }
            // Something is reset, and nobody knows what: the client stays, and the session is made anew after it.
            _ if class.flags.has(Flags::RESETS_PARAMETERS) => class.pins.with(Pins::SET),
            _ => class.pins,
        }
    }

    /// A text is run: how what is sent behind it is read.
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

    /// What is done about functions of which nothing is known.
    fn unknown_functions(&self, c: usize) -> UnknownFunctions {
        let database = &self.pools[self.clients[c].pool].database;
        // In session mode the client keeps its connection, and what a function has left in it.
        if database.mode == PoolMode::Session { UnknownFunctions::Pin } else { database.unknown_functions }
    }

    /// What a statement leaves behind, and whether its loss would leave doubt. `certain`: it is run, and not only bound.
    pub(super) fn note_effects(&mut self, c: usize, s: usize, class: Class, certain: bool) {
        let mut pins = class.pins;
        // What it writes may notify, by a trigger or a function.
        if class.access == Access::Write
            && class.control == Control::None
            && (!class.flags.has(Flags::LISTENS) || class.flags.has(Flags::MULTI))
        {
            self.note_sender(c, s);
        }
        if class.flags.has(Flags::UNKNOWN) {
            match self.unknown_functions(c) {
                UnknownFunctions::Trust => {}
                UnknownFunctions::Reset => self.servers[s].cleaning.functions = true,
                UnknownFunctions::Pin => pins = pins.with(Pins::FUNCTION),
            }
        }
        let server = &mut self.servers[s];
        let work = &mut server.work;
        if class.access == Access::Write {
            match class.control {
                Control::Begin { .. } | Control::Rollback => {}
                Control::Commit => work.committing = true,
                Control::None => {
                    work.wrote = true;
                    work.changed |= !class.flags.has(Flags::SESSION);
                    work.committing |= server.protocol.status() == Status::Idle || class.flags.has(Flags::TRANSACTION);
                }
            }
        }
        // A view's or an operator's function may write, unseen: that may be why it was sent to the primary.
        work.may_have_written |= class.hint == Some(Hint::Primary);
        work.may_begin |= matches!(class.control, Control::Begin { .. }) || class.flags.has(Flags::TRANSACTION);
        if class.flags.has(Flags::SCHEMA) {
            let declared = class.flags.has(Flags::DDL);
            work.alters = Some(declared || work.alters == Some(true));
            self.pools[server.pool].place.schema().changes(self.now, declared);
        }
        let server = &mut self.servers[s];
        // Several statements: which of them are carried out is known when all have answered.
        let several = class.flags.has(Flags::MULTI) || class.flags.has(Flags::UNKNOWN);
        server.barrier |= certain && several && class.flags.has(Flags::DROPS_STATEMENTS);
        // It has cleared something only if it succeeds, and is not rolled back: seen at the end of the unit.
        let alone = server.protocol.status() == Status::Idle && !server.is_running();
        server.work.unpins = server.work.unpins.without(pins);
        if certain && alone && !class.flags.has(Flags::TRANSACTION) {
            server.work.unpins = server.work.unpins.with(class.unpins);
        }
        self.pin(c, s, pins);
    }

    /// The client stays with its server connection.
    pub(in crate::core) fn pin(&mut self, c: usize, s: usize, pins: Pins) {
        if pins.is_empty() {
            return;
        }
        if self.is_replica(s) {
            // A client that stays on a replica could not write any more: what a read-only transaction sets ends with it.
            self.servers[s].cleaning.all = true;
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

    /// What a client had in its session is gone from it.
    pub(in crate::core) fn unpin(&mut self, c: usize, unpins: Pins) {
        let client = &mut self.clients[c];
        let was_pinned = !client.pins.is_empty();
        client.pins = client.pins.without(unpins);
        if was_pinned && client.pins.is_empty() {
            self.metrics.clients_pinned.sub(1);
        }
    }

    /// What this server's client has changed of the schema, if it has, may have been committed.
    pub(in crate::core) fn settle_schema(&mut self, s: usize) {
        if let Some(declared) = self.servers[s].work.alters.take() {
            self.pools[self.servers[s].pool].place.schema().changes(self.now, declared);
        }
    }

    /// The client's session has gone back to what the server connection began with, and not to what the client did: that is put
    /// right before the client hears that it is done. True: it is being done. (In a transaction it waits for its end.)
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

/// True if nothing but its access is known of a text of this class, as of most: it changes nothing that is followed.
fn says_nothing(class: Class) -> bool {
    class.flags == Flags(0) && class.pins.is_empty() && class.control == Control::None
}

/// True if a text of this class may change parameters, for the session or for its transaction.
fn is_about_parameters(class: Class) -> bool {
    class.pins.0 & (Pins::SET.0 | Pins::ROLE.0) != 0
        || class.flags.has(Flags::RESETS_PARAMETERS)
        || class.flags.has(Flags::LOCAL)
}
