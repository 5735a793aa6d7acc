//! A client without a server connection: collects its next messages into a unit and decides where the unit goes.
//!
//! A **unit** is what PostgreSQL executes up to one `ReadyForQuery`: a `Query`, or messages of the extended protocol up
//! to `Sync`. A whole unit goes to one server, so the server is chosen when the end of the unit is seen. Waiting for
//! the end costs nothing: a server does not answer before `Sync` or `Flush` either. A unit longer than [`UNIT_MAX`] is
//! not waited for: it goes to the primary.

use std::hash::{DefaultHasher, Hash, Hasher};

use sql::{Access, Class, Classifier, Control, Flags, Pins};
use wire::frontend::Message;
use wire::message::Status;
use wire::payload::Named;
use wire::{Frame, Severity, Sqlstate, message};

use super::client::{Aborted, Attempts, PassThrough, SingleStatement, Step, Unit};
use super::login::error;
use crate::config::PoolMode;
use crate::core::routing::{Hold, UNPROVEN_HINT};
use crate::core::{CLASSIFY_MAX, Core, UNIT_MAX};

/// The error for a client that begins a transaction block in a pool of statement mode.
pub(in crate::core) const NO_BLOCKS: &str = "transaction blocks are not allowed: pool_mode is \"statement\"";

/// The result of looking at one message of a unit.
enum Scan {
    /// The message is counted in, and the unit goes on.
    On,
    /// The message ends the unit.
    End,
    /// The message has not arrived whole.
    More,
    /// The message is too long to wait for: the unit goes to the primary.
    Long,
    /// Terminate.
    Terminate,
    /// The client has been closed.
    Gone,
}

/// True if a statement of this class has to run on the primary in spite of any hint or setting: it takes an advisory lock or a snapshot for others,
/// or leaves something in the session.
pub(super) fn is_bound_to_primary(class: Class) -> bool {
    class.flags.has(Flags::LOCKS)
        || class.flags.has(Flags::SNAPSHOT)
        || !class.pins.without(Pins::PARAMETERS).is_empty()
}

/// True if a replica can run a statement of this class in a transaction declared READ ONLY as well as the primary.
pub(super) fn writes_nothing(class: Class) -> bool {
    let session = class.flags.has(Flags::SESSION) && !class.flags.has(Flags::LISTENS);
    let transaction = matches!(class.control, Control::Commit | Control::Rollback)
        || (class.flags.has(Flags::SAVEPOINT) && !class.flags.has(Flags::MULTI));
    class.access == Access::Read || session || transaction
}

impl Unit {
    /// Adds the facts about a statement of this class to the unit's.
    fn note(&mut self, class: Class) {
        let read = class.access == Access::Read;
        let begin = matches!(class.control, Control::Begin { .. });
        // A BEGIN in front: the rest of the unit runs in its transaction.
        let first = self.statement_kind == SingleStatement::Nothing;
        self.begins |= begin;
        self.primary_only |= is_bound_to_primary(class);
        self.standby |= class.flags.has(Flags::STANDBY);
        self.begin_time |= class.flags.has(Flags::BEGIN_TIME);
        self.read &= read;
        let begins_to_read = class.control == Control::Begin { read_only: true };
        self.begin_read_only |= first && begins_to_read;
        self.writes_nothing &= writes_nothing(class) || begins_to_read;
        self.repeatable &= read || begin;
        self.hint = self.hint.or(class.hint);
        self.needs_server = true;
        self.statement_kind = match class.control {
            _ if !first => SingleStatement::Other,
            Control::Begin { .. } if !class.flags.has(Flags::MULTI) => SingleStatement::Begin,
            Control::Commit | Control::Rollback if !class.flags.has(Flags::MULTI) => SingleStatement::End,
            _ if crate::core::lane::is_plain(class) => SingleStatement::Read,
            _ => SingleStatement::Other,
        };
    }

    /// Assumes the worst of the unit: it may write.
    pub(super) fn assume_writes(&mut self) {
        self.read = false;
        self.writes_nothing = false;
        self.repeatable = false;
        self.begin_read_only = false;
        self.needs_server = true;
        self.statement_kind = SingleStatement::Other;
    }
}

/// Returns a statement name's hash; never 0, which stands for no name.
fn hash(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish().max(1)
}

impl Core {
    /// Handles a message of a client that has logged in.
    pub(super) fn message(&mut self, c: usize, bytes: &[u8]) -> Step {
        if self.clients[c].waiting || self.clients[c].at.lane().is_some() {
            return Step::Blocked;
        }
        let frame = match self.frame(c, bytes) {
            Ok(frame) => frame,
            Err(step) => return step,
        };
        if frame.tag == b'X' {
            return self.terminate(c);
        }
        let client = &self.clients[c];
        if client.skipping {
            return self.skip(c, frame);
        }
        match client.at.server() {
            Some(s) if self.streams(c, s) => self.forward(c, s, bytes, frame),
            Some(s) if self.servers[s].protocol.is_settled() => {
                let token = client.token;
                self.release_if_done(c);
                if self.is_client(token) { Step::Again } else { Step::Gone }
            }
            // Pipelined behind a statement on a replica: this unit is routed once that statement is done.
            Some(_) => Step::Blocked,
            None if matches!(frame.tag, b'd' | b'c' | b'f') => {
                // COPY data that still comes after the COPY has failed: a server ignores it, too.
                self.clients[c].pass_through = PassThrough::discard(frame.total());
                Step::Again
            }
            None if client.aborted != Aborted::No => self.aborted_message(c, bytes, frame),
            None if client.unit.routed && client.unit.is_put_off() => self.put_off_message(c, bytes, frame),
            None if client.unit.routed => self.local_message(c, bytes, frame),
            None => self.assemble(c, bytes),
        }
    }

    /// Reads the header of the client's next message. `Err`: the next step instead, because the header is incomplete or invalid.
    pub(super) fn frame(&mut self, c: usize, bytes: &[u8]) -> Result<Frame, Step> {
        match Frame::read(bytes) {
            Ok(Some(frame)) => Ok(frame),
            Ok(None) => Err(Step::More),
            Err(error) => {
                self.violation(c, &error.to_string());
                Err(Step::Gone)
            }
        }
    }

    /// True if the client's messages go to its server connection as they come, without being collected into a unit
    /// first.
    pub(super) fn streams(&self, c: usize, s: usize) -> bool {
        let (client, server) = (&self.clients[c], &self.servers[s]);
        let protocol = &server.protocol;
        // After `discard` the unit in flight is sent to another server: nothing may follow it to this one.
        !server.discard
            && !server.is_at_own()
            && (client.unit.routed
                || protocol.is_in_unit()
                || protocol.is_skipping()
                || protocol.copies_in()
                || self.is_bound(c)
                // While a statement on a replica is unanswered, it may end the transaction, and the next unit may
                // belong on the primary. So messages are streamed behind an unanswered statement only on the primary.
                || (protocol.status() != Status::Idle && protocol.is_settled())
                || (self.is_primary(s) && (protocol.status() != Status::Idle || !protocol.is_settled())))
    }

    /// Releases the server connection if only the rest of one message kept it (COPY data that came after the COPY had
    /// failed).
    pub(in crate::core) fn release_if_done(&mut self, c: usize) {
        if let Some(s) = self.clients[c].at.server()
            && self.servers[s].protocol.is_settled()
            && !self.streams(c, s)
        {
            self.release(s);
        }
    }

    /// Drops a message of a client that skips up to Sync; Sync is answered.
    fn skip(&mut self, c: usize, frame: Frame) -> Step {
        let client = &mut self.clients[c];
        client.pass_through = PassThrough::discard(frame.total());
        match frame.tag {
            b'S' => {
                client.skipping = false;
                self.ready(c);
                Step::Again
            }
            _ => Step::Again,
        }
    }

    /// Sends `ReadyForQuery` from the proxy itself.
    pub(in crate::core) fn ready(&mut self, c: usize) {
        let client = &mut self.clients[c];
        client.since = self.now;
        let status = client.status();
        self.write_client(c, |out| message::ready(out, status));
        self.runs_nothing(self.clients[c].token);
        self.pending_notifications.look_again_for(&self.clients[c]);
    }

    fn assemble(&mut self, c: usize, bytes: &[u8]) -> Step {
        if self.clients[c].unit.end != 0 {
            // The unit is complete: it had to wait before it could be dispatched.
            return self.dispatch(c, bytes);
        }
        loop {
            let at = self.clients[c].unit.scanned;
            let rest = bytes.get(at..).unwrap_or_default();
            let frame = match Frame::read(rest) {
                Ok(Some(frame)) => frame,
                Ok(None) if at > UNIT_MAX => return self.dispatch_long(c),
                Ok(None) => return Step::More,
                Err(error) => {
                    self.violation(c, &error.to_string());
                    return Step::Gone;
                }
            };
            match self.scan(c, at == 0, rest, frame) {
                Scan::On => self.clients[c].unit.scanned += frame.total(),
                Scan::End => {
                    let unit = &mut self.clients[c].unit;
                    unit.scanned += frame.total();
                    unit.end = frame.tag;
                    unit.whole = frame.tag != b'H';
                    return self.dispatch(c, bytes);
                }
                Scan::Long => return self.dispatch_long(c),
                // A statement's text is awaited beyond `UNIT_MAX`, to know the session state that the statement leaves. `max_statement` bounds it.
                Scan::More if at + rest.len() > UNIT_MAX && (at > 0 || !matches!(frame.tag, b'P' | b'Q')) => {
                    return self.dispatch_long(c);
                }
                Scan::More => return Step::More,
                Scan::Terminate => return self.terminate(c),
                Scan::Gone => return Step::Gone,
            }
        }
    }

    /// Looks at one message, of which `rest` may hold only a part.
    fn scan(&mut self, c: usize, first: bool, rest: &[u8], frame: Frame) -> Scan {
        let whole = rest.len() >= frame.total();
        // A text longer than `max_statement` is not waited for.
        if matches!(frame.tag, b'P' | b'Q')
            && frame.payload > self.settings.max_statement
            && (!whole || frame.tag == b'P')
        {
            return Scan::Long;
        }
        let message = match Message::read(frame, rest) {
            Ok(Some(message)) => message,
            Ok(None) => return Scan::More,
            Err(invalid) => {
                self.violation(c, &invalid.to_string());
                return Scan::Gone;
            }
        };
        match message {
            Message::Query { text } => {
                self.scan_query(c, first, text);
                Scan::End
            }
            Message::Parse { name, text, types } => {
                self.scan_parse(c, name, text, types);
                Scan::On
            }
            Message::Bind { portal, statement, .. } => {
                self.scan_bind(c, portal, statement, whole);
                if whole { Scan::On } else { Scan::More }
            }
            Message::Describe(named) => {
                self.scan_describe(c, named);
                Scan::On
            }
            Message::Close(named) => {
                let unit = &mut self.clients[c].unit;
                unit.single = false;
                // The proxy can close a prepared statement by itself.
                unit.needs_server |= matches!(named, Named::Portal(_));
                Scan::On
            }
            Message::Execute { portal, rows } => {
                let unit = &mut self.clients[c].unit;
                unit.needs_server = true;
                // One statement executed to its end: the unnamed portal, with no limit on rows.
                unit.single &= unit.bound && !unit.executed && portal.is_empty() && rows == 0;
                unit.executed = true;
                Scan::On
            }
            Message::Sync | Message::Flush => Scan::End,
            Message::FunctionCall => {
                self.clients[c].unit.assume_writes();
                if whole {
                    let facts = self.statement_facts(c, Class::UNKNOWN, 0, b"");
                    self.admit_scanned(c, facts);
                    Scan::End
                } else if frame.payload > CLASSIFY_MAX {
                    Scan::Long
                } else {
                    Scan::More
                }
            }
            // COPY data in the same unit, `P B E d c S`: a server ignores data that no COPY asks for.
            Message::CopyData | Message::CopyDone | Message::CopyFail => Scan::Long,
            // Terminate before Sync: the unit is not carried out.
            Message::Terminate => Scan::Terminate,
        }
    }

    fn scan_query(&mut self, c: usize, first: bool, text: &[u8]) {
        let class = self.classify(c, text);
        let class = self.class_with_executed(c, class, text);
        let unit = &mut self.clients[c].unit;
        if class.local && first {
            unit.query = Some(class);
        } else {
            unit.note(class);
            unit.query = first.then_some(class);
            unit.key = self.classifier.shape();
            let facts = self.statement_facts(c, class, self.clients[c].unit.key, text);
            self.admit_scanned(c, facts);
        }
    }

    fn scan_parse(&mut self, c: usize, name: &[u8], text: &[u8], types: &[u8]) {
        let class = self.classify_parsed(c, text);
        let statement = self.statement_for(c, text, types, class);
        // (Otherwise a server must be asked for the text's present meaning: `asks_first`.)
        let sure = statement.is_sure(self.pools[self.clients[c].pool].namespace.snapshot(self.now));
        let accepted = !name.is_empty() && statement.is_accepted() && sure;
        let described = accepted && statement.described(self.now, self.schema_version(c)).is_some();
        let class = self.class_with_executed(c, statement.class(), text);
        let unit = &mut self.clients[c].unit;
        unit.parses_unnamed |= name.is_empty();
        unit.single &= name.is_empty() && !unit.bound && (sure || !statement.is_accepted());
        unit.describable = if described { hash(name) } else { 0 };
        unit.key = self.classifier.shape();
        let needs_server = unit.needs_server;
        unit.note(class);
        // A Parse alone needs a server only if no server has accepted the text yet.
        unit.needs_server = needs_server || !accepted;
        if name.is_empty() {
            let key = unit.key;
            self.clients[c].unit.parsed = self.statement_facts(c, class, key, text);
        }
    }

    fn scan_bind(&mut self, c: usize, portal: &[u8], name: &[u8], whole: bool) {
        // A statement that the unit itself prepares was already counted in at its Parse.
        let own = name.is_empty() && self.clients[c].unit.parses_unnamed;
        let known = self.clients[c].names.get(name).filter(|_| !own).cloned();
        // A statement that must be parsed anew (after DDL, or read under other parameters) shares no server connection
        // (no lane).
        let anew = known.as_ref().is_some_and(|statement| statement.is_outdated() || !self.is_read_alike(c, statement));
        let known =
            known.map(|statement| (self.class_with_executed(c, statement.class(), statement.text()), statement));
        // A Bind of which a part is missing is looked at again.
        if whole {
            let facts = match &known {
                Some((class, statement)) => self.statement_facts(c, *class, !statement.id(), statement.text()),
                None => self.clients[c].unit.parsed.filter(|_| own),
            };
            self.admit_scanned(c, facts);
        }
        let unit = &mut self.clients[c].unit;
        unit.needs_server = true;
        // A shared session's unnamed statement is known only if the same unit has parsed it.
        unit.single &= portal.is_empty() && !anew && !unit.bound && (own || !name.is_empty());
        unit.bound = true;
        if !own {
            unit.key = !known.as_ref().map_or(0, |(_, statement)| statement.id());
        }
        match known {
            Some((class, _)) => unit.note(class),
            // A name that the client has not prepared. At the start of a unit the worst is assumed.
            None if unit.scanned == 0 => unit.assume_writes(),
            None => {}
        }
    }

    fn scan_describe(&mut self, c: usize, named: Named<'_>) {
        let schema = self.schema_version(c);
        let client = &self.clients[c];
        let unit = &client.unit;
        let (known, local) = match named {
            Named::Statement(b"") if unit.parses_unnamed => (None, false),
            Named::Statement(name) if unit.describable != 0 && unit.describable == hash(name) => (None, true),
            Named::Statement(name) => {
                let statement = client.names.get(name);
                let is_known = |statement: &&std::sync::Arc<_>| self.is_described(c, statement, schema);
                let local = !name.is_empty() && statement.filter(is_known).is_some();
                (statement.map(|s| self.class_with_executed(c, s.class(), s.text())), local)
            }
            Named::Portal(_) => (None, false),
        };
        let unit = &mut self.clients[c].unit;
        unit.single &= named == Named::Portal(b"") && unit.bound && !unit.executed;
        match known {
            None if local => {}
            Some(class) => {
                let needs_server = unit.needs_server || !local;
                unit.note(class);
                unit.needs_server = needs_server;
            }
            None => unit.needs_server = true,
        }
    }

    /// Sends off a unit that is too long to be buffered: only the primary can run every kind of unit.
    fn dispatch_long(&mut self, c: usize) -> Step {
        let unit = &mut self.clients[c].unit;
        unit.assume_writes();
        unit.whole = false;
        self.dispatch(c, &[])
    }

    /// Sends off the unit that `bytes` begin with.
    fn dispatch(&mut self, c: usize, bytes: &[u8]) -> Step {
        if self.clients[c].begun.is_some() && !self.is_sure_to_succeed(c, bytes) {
            if self.loses_early_reads(c) {
                return Step::Again;
            }
            if self.ends_early(c, bytes) {
                self.clients[c].unit.routed = true;
                return Step::Again;
            }
            if self.is_early(c) {
                let unit = &mut self.clients[c].unit;
                // (Its errors have to come from a server.)
                (unit.early, unit.needs_server) = (true, true);
            } else {
                self.joins_transaction(c);
            }
        }
        if let Some(refused) = self.clients[c].unit.refused {
            return self.refuse_by_rule(c, refused);
        }
        if !self.clients[c].unit.needs_server {
            let unit = &mut self.clients[c].unit;
            unit.routed = true;
            self.metrics.statements_local.add(1);
            return Step::Again;
        }
        if self.clients[c].unit.begins && self.pools[self.clients[c].pool].database.mode == PoolMode::Statement {
            return self.refuse_scanned(c, Sqlstate::FEATURE_NOT_SUPPORTED, NO_BLOCKS);
        }
        if self.clients[c].unit.whole
            && let Some(text) = self.refuses_writes(c)
        {
            self.metrics.gate_refused.add(1);
            return self.refuse_scanned(c, Sqlstate::CANNOT_CONNECT_NOW, &text);
        }
        if self.puts_off(c, bytes) {
            self.clients[c].unit.routed = true;
            return Step::Again;
        }
        let request = self.node_request(c);
        match self.hold_unit(c, request) {
            Hold::Go => {}
            Hold::Wait => return Step::Blocked,
            Hold::Refuse => {
                self.metrics.strong_unproven.add(1);
                let text = self.unproven_text();
                return self.refuse_scanned_with(c, Sqlstate::CANNOT_CONNECT_NOW, &text, UNPROVEN_HINT);
            }
        }
        // A client that has pipelined more than one unit is better served by a connection of its own.
        if bytes.len() == self.clients[c].unit.scanned && self.enter_lane(c, request, bytes, false) {
            return Step::Used(bytes.len());
        }
        if self.acquire(c, request) { Step::Again } else { Step::Blocked }
    }

    /// Answers the unit that was just looked at with an error; no server gets it.
    fn refuse_scanned(&mut self, c: usize, code: Sqlstate, text: &str) -> Step {
        self.refuse_scanned_with(c, code, text, "")
    }

    /// Answers as [`Core::refuse_scanned`], with a hint.
    pub(super) fn refuse_scanned_with(&mut self, c: usize, code: Sqlstate, text: &str, hint: &str) -> Step {
        let client = &mut self.clients[c];
        let unit = client.unit.take();
        if unit.whole {
            client.pass_through = PassThrough::discard(unit.scanned);
        } else {
            client.skipping = true;
        }
        self.write_client(c, |out| message::error(out, Severity::Error, code, text, hint));
        self.fail_begun(c);
        if unit.whole {
            self.ready(c);
        }
        Step::Again
    }

    /// Answers the client's next unit with an error. The unit's bytes are in the client's `input`.
    pub(in crate::core) fn fail_unit(&mut self, c: usize, code: Sqlstate, text: &str) {
        let client = &mut self.clients[c];
        let unit = client.unit.take();
        client.attempts = Attempts::default();
        let first = Frame::read(&client.input).ok().flatten();
        let query = matches!(first, Some(Frame { tag: b'Q' | b'F', .. }));
        let ends = match first {
            Some(_) if unit.whole => {
                client.pass_through = PassThrough::discard(unit.scanned);
                true
            }
            Some(frame) if query => {
                client.pass_through = PassThrough::discard(frame.total());
                true
            }
            _ => {
                client.skipping = true;
                false
            }
        };
        self.write_client(c, |out| error(out, code, text));
        self.fail_begun(c);
        if ends {
            self.ready(c);
        }
        self.runnable.push_back(self.clients[c].token);
    }

    /// Classifies a statement text of this client.
    pub(in crate::core) fn classify(&mut self, c: usize, text: &[u8]) -> Class {
        self.classify_by(c, text, Classifier::classify)
    }

    /// Classifies the text of a Parse of this client.
    pub(in crate::core) fn classify_parsed(&mut self, c: usize, text: &[u8]) -> Class {
        self.classify_by(c, text, Classifier::classify_parsed)
    }

    fn classify_by(&mut self, c: usize, text: &[u8], classify: impl FnOnce(&mut Classifier, &[u8]) -> Class) -> Class {
        // Where `standard_conforming_strings` is off, a backslash escapes a quote and the parser would misread the
        // text.
        if self.clients[c].odd_strings && text.contains(&b'\\') {
            // Such a text may leave anything in the session.
            self.clients[c].unflushed = true;
            return Class { pins: Pins::SET, flags: Flags::UNKNOWN.with(Flags::LOCAL), ..Class::UNKNOWN };
        }
        let class = classify(&mut self.classifier, text);
        if class.access == Access::Write {
            self.note_unflushed(c, text, class);
        }
        class
    }
}
