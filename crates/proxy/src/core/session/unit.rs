//! A client without a server: finds out what its next messages are, and where they go.
//!
//! A **unit** is what is executed as one: a `Query`, or extended-protocol messages up to `Sync`. All of a unit goes to one
//! server, so the destination is chosen when its end is seen. That costs no time: until `Sync` or `Flush` a server
//! would not answer either. A unit that does not end within [`UNIT_MAX`] goes to the primary.

use std::hash::{DefaultHasher, Hash, Hasher};

use sql::{Access, Class, Control, Flags, Pins};
use wire::frontend::Message;
use wire::message::Status;
use wire::payload::Named;
use wire::{Frame, Severity, Sqlstate, message};

use super::client::{Aborted, Again, Pass, Sole, Step, Unit};
use super::login::error;
use crate::config::PoolMode;
use crate::core::routing::{Hold, UNPROVEN_HINT};
use crate::core::{CLASSIFY_MAX, Core, UNIT_MAX};

/// What clients are told that begin one in statement mode.
pub(in crate::core) const NO_BLOCKS: &str = "transaction blocks are not allowed: pool_mode is \"statement\"";

/// What looking at one message of a unit gives.
enum Scan {
    /// It is counted in; the unit goes on.
    On,
    /// It ends the unit.
    End,
    /// It is not whole yet.
    More,
    /// It is too long to wait for: the unit goes to the primary.
    Long,
    /// The client is closed.
    Gone,
}

impl Unit {
    /// Counts a statement in.
    fn note(&mut self, class: Class) {
        let read = class.access == Access::Read;
        let begin = matches!(class.control, Control::Begin { .. });
        // What follows it in the unit is in that transaction.
        let first = self.sole == Sole::Nothing;
        self.begins |= begin;
        self.locks |= class.flags.has(Flags::LOCKS);
        self.read &= read;
        let session = class.flags.has(Flags::SESSION) && !class.flags.has(Flags::LISTENS);
        let transaction = matches!(class.control, Control::Commit | Control::Rollback)
            || (class.flags.has(Flags::SAVEPOINT) && !class.flags.has(Flags::MULTI));
        let begins_to_read = class.control == Control::Begin { read_only: true };
        self.begin_read_only |= first && begins_to_read;
        self.writes_nothing &= read || session || transaction || begins_to_read;
        self.repeatable &= read || begin;
        self.hint = self.hint.or(class.hint);
        self.needs_server = true;
        self.sole = match class.control {
            _ if !first => Sole::Other,
            Control::Begin { .. } if !class.flags.has(Flags::MULTI) => Sole::Begin,
            _ if crate::core::lane::is_plain(class) => Sole::Read,
            _ => Sole::Other,
        };
    }

    /// Nothing certain is known of it: it may write.
    pub(super) fn doubt(&mut self) {
        self.read = false;
        self.writes_nothing = false;
        self.repeatable = false;
        self.begin_read_only = false;
        self.needs_server = true;
        self.sole = Sole::Other;
    }
}

/// Stands for a statement's name; never 0.
fn hash(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish().max(1)
}

impl Core {
    /// A message of a client that is logged in.
    pub(super) fn message(&mut self, c: usize, bytes: &[u8]) -> Step {
        if self.clients[c].waiting || self.clients[c].at.lane().is_some() {
            return Step::Blocked;
        }
        let frame = match self.frame(c, bytes) {
            Ok(frame) => frame,
            Err(step) => return step,
        };
        let client = &self.clients[c];
        if client.skipping {
            return self.skip(c, frame);
        }
        if frame.tag == b'X' {
            // What was sent before it is still carried out.
            if client.at.server().is_some_and(|s| self.servers[s].is_running()) {
                return Step::Blocked;
            }
            self.close_client(c);
            return Step::Gone;
        }
        match client.at.server() {
            Some(s) if self.streams(c, s) => self.forward(c, s, bytes, frame),
            Some(s) if self.servers[s].protocol.is_settled() => {
                let token = client.token;
                self.release_if_done(c);
                if self.is_client(token) { Step::Again } else { Step::Gone }
            }
            // Pipelined behind a statement on a replica: where it goes is decided when that is done.
            Some(_) => Step::Blocked,
            None if matches!(frame.tag, b'd' | b'c' | b'f') => {
                // The rest of a COPY that failed: a server ignores it, too.
                self.clients[c].pass = Pass::discard(frame.total());
                Step::Again
            }
            None if client.aborted != Aborted::No => self.aborted_message(c, bytes, frame),
            None if client.unit.routed && client.unit.sole == Sole::Begin && client.unit.is_one() => {
                self.begin_message(c, bytes, frame)
            }
            None if client.unit.routed => self.local_message(c, bytes, frame),
            None => self.assemble(c, bytes),
        }
    }

    /// The header of a client's next message; or what comes of there being none.
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

    /// True if the client's messages go to its server as they come.
    pub(super) fn streams(&self, c: usize, s: usize) -> bool {
        let (client, server) = (&self.clients[c], &self.servers[s]);
        let protocol = &server.protocol;
        // While what it was sent goes to another server, nothing may follow it to this one.
        !server.discard
            && !server.is_at_own()
            && (client.unit.routed
                || protocol.is_in_unit()
                || protocol.is_skipping()
                || protocol.copies_in()
                || self.is_bound(c)
                // Behind something unanswered only the primary can be right: elsewhere that may end the transaction.
                || (protocol.status() != Status::Idle && protocol.is_settled())
                || (self.is_primary(s) && (protocol.status() != Status::Idle || !protocol.is_settled())))
    }

    /// Gives the server back, if only the rest of a message kept it (COPY data that came after the COPY had failed).
    pub(in crate::core) fn release_if_done(&mut self, c: usize) {
        if let Some(s) = self.clients[c].at.server()
            && self.servers[s].protocol.is_settled()
            && !self.streams(c, s)
        {
            self.release(s);
        }
    }

    /// Skips a message, up to and with Sync.
    fn skip(&mut self, c: usize, frame: Frame) -> Step {
        let client = &mut self.clients[c];
        client.pass = Pass::discard(frame.total());
        match frame.tag {
            b'S' => {
                client.skipping = false;
                self.ready(c);
                Step::Again
            }
            b'X' => {
                self.close_client(c);
                Step::Gone
            }
            _ => Step::Again,
        }
    }

    /// `ReadyForQuery` from the proxy itself.
    pub(in crate::core) fn ready(&mut self, c: usize) {
        let client = &mut self.clients[c];
        client.since = self.now;
        let status = client.status();
        self.tell(c, |out| message::ready(out, status));
        self.noticed.look_again_for(&self.clients[c]);
    }

    fn assemble(&mut self, c: usize, bytes: &[u8]) -> Step {
        if self.clients[c].unit.end != 0 {
            // It has waited to be dispatched.
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
                // A text is waited for, to know what it leaves behind; it has its own bound.
                Scan::More if at + rest.len() > UNIT_MAX && (at > 0 || !matches!(frame.tag, b'P' | b'Q')) => {
                    return self.dispatch_long(c);
                }
                Scan::More => return Step::More,
                Scan::Gone => return Step::Gone,
            }
        }
    }

    /// Looks at one message, which may not be whole.
    fn scan(&mut self, c: usize, first: bool, rest: &[u8], frame: Frame) -> Scan {
        let whole = rest.len() >= frame.total();
        // A text that is longer than a statement may be is not waited for.
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
                self.scan_bind(c, portal, statement);
                if whole { Scan::On } else { Scan::More }
            }
            Message::Describe(named) => {
                self.scan_describe(c, named);
                Scan::On
            }
            Message::Close(named) => {
                let unit = &mut self.clients[c].unit;
                unit.single = false;
                // A statement's name is the proxy's affair.
                unit.needs_server |= matches!(named, Named::Portal(_));
                Scan::On
            }
            Message::Execute { portal, rows } => {
                let unit = &mut self.clients[c].unit;
                unit.needs_server = true;
                // The unnamed portal, to its end.
                unit.single &= unit.bound && !unit.executed && portal.is_empty() && rows == 0;
                unit.executed = true;
                Scan::On
            }
            Message::Sync | Message::Flush => Scan::End,
            Message::FunctionCall => {
                self.clients[c].unit.doubt();
                if whole {
                    Scan::End
                } else if frame.payload > CLASSIFY_MAX {
                    Scan::Long
                } else {
                    Scan::More
                }
            }
            // The data of a COPY in one packet with it: `P B E d c S`. What is not asked for a server ignores.
            Message::CopyData | Message::CopyDone | Message::CopyFail => Scan::Long,
            // In the middle of a unit, which then is not carried out.
            Message::Terminate => {
                self.close_client(c);
                Scan::Gone
            }
        }
    }

    fn scan_query(&mut self, c: usize, first: bool, text: &[u8]) {
        let class = self.classify(c, text);
        let unit = &mut self.clients[c].unit;
        if class.local && first {
            unit.query = Some(class);
        } else {
            unit.note(class);
            unit.query = first.then_some(class);
            unit.key = self.classifier.shape();
        }
    }

    fn scan_parse(&mut self, c: usize, name: &[u8], text: &[u8], types: &[u8]) {
        let class = self.classify(c, text);
        let statement = self.statement_for(c, text, types, class);
        let accepted = !name.is_empty() && statement.is_accepted();
        let described = accepted && statement.described(self.now, self.schema_version(c)).is_some();
        let unit = &mut self.clients[c].unit;
        unit.parses_unnamed |= name.is_empty();
        unit.single &= name.is_empty() && !unit.bound;
        unit.describable = if described { hash(name) } else { 0 };
        unit.key = self.classifier.shape();
        let needs_server = unit.needs_server;
        unit.note(statement.class());
        // A Parse by itself only needs a server if none has ever taken this text.
        unit.needs_server = needs_server || !accepted;
    }

    fn scan_bind(&mut self, c: usize, portal: &[u8], name: &[u8]) {
        // A statement that this very unit prepares is counted in by its Parse.
        let own = name.is_empty() && self.clients[c].unit.parses_unnamed;
        let known = self.clients[c].names.get(name).filter(|_| !own).cloned();
        // One that is prepared anew, in another client's place or under other parameters, has a connection to itself.
        let anew = known.as_ref().is_some_and(|statement| statement.is_outdated() || !self.is_read_alike(c, statement));
        let unit = &mut self.clients[c].unit;
        unit.needs_server = true;
        // In a shared session only a Parse of the same unit tells what the unnamed statement is.
        unit.single &= portal.is_empty() && !anew && !unit.bound && (own || !name.is_empty());
        unit.bound = true;
        if !own {
            unit.key = !known.as_ref().map_or(0, |statement| statement.id());
        }
        match known {
            Some(statement) => unit.note(statement.class()),
            // A name that nobody has given: a unit of its own may write.
            None if unit.scanned == 0 => unit.doubt(),
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
                (statement.map(|s| s.class()), local)
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

    /// A unit too long to be kept: only the primary can take whatever it turns out to be.
    fn dispatch_long(&mut self, c: usize) -> Step {
        let unit = &mut self.clients[c].unit;
        unit.doubt();
        unit.whole = false;
        self.dispatch(c, &[])
    }

    /// Sends the unit that `bytes` begin with on its way.
    fn dispatch(&mut self, c: usize, bytes: &[u8]) -> Step {
        if self.clients[c].begun.is_some() && !self.is_sure_to_succeed(c, bytes) {
            self.joins_transaction(c);
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
        let want = self.want(c);
        match self.hold_unit(c, want) {
            Hold::Go => {}
            Hold::Wait => return Step::Blocked,
            Hold::Refuse => {
                self.metrics.strong_unproven.add(1);
                let text = self.unproven_text();
                return self.refuse_scanned_with(c, Sqlstate::CANNOT_CONNECT_NOW, &text, UNPROVEN_HINT);
            }
        }
        // A client that has sent more than this is better served by a connection that it can fill by itself.
        if bytes.len() == self.clients[c].unit.scanned && self.enter_lane(c, want, bytes, false) {
            return Step::Used(bytes.len());
        }
        if self.acquire(c, want) { Step::Again } else { Step::Blocked }
    }

    /// The unit that was looked at goes to no server: its client gets an error.
    fn refuse_scanned(&mut self, c: usize, code: Sqlstate, text: &str) -> Step {
        self.refuse_scanned_with(c, code, text, "")
    }

    /// The same, with a hint.
    fn refuse_scanned_with(&mut self, c: usize, code: Sqlstate, text: &str, hint: &str) -> Step {
        let client = &mut self.clients[c];
        let unit = client.unit.take();
        if unit.whole {
            client.pass = Pass::discard(unit.scanned);
        } else {
            client.skipping = true;
        }
        self.tell(c, |out| message::error(out, Severity::Error, code, text, hint));
        self.fail_begun(c);
        if unit.whole {
            self.ready(c);
        }
        Step::Again
    }

    /// The next unit of a client gets an error from the proxy. Its bytes are in the client's kept input.
    pub(in crate::core) fn fail_unit(&mut self, c: usize, code: Sqlstate, text: &str) {
        let client = &mut self.clients[c];
        let unit = client.unit.take();
        client.again = Again::default();
        let first = Frame::read(&client.input).ok().flatten();
        let query = matches!(first, Some(Frame { tag: b'Q' | b'F', .. }));
        let ends = match first {
            Some(_) if unit.whole => {
                client.pass = Pass::discard(unit.scanned);
                true
            }
            Some(frame) if query => {
                client.pass = Pass::discard(frame.total());
                true
            }
            _ => {
                client.skipping = true;
                false
            }
        };
        self.tell(c, |out| error(out, code, text));
        self.fail_begun(c);
        if ends {
            self.ready(c);
        }
        self.runnable.push_back(self.clients[c].token);
    }

    /// What a text of this client is.
    pub(in crate::core) fn classify(&mut self, c: usize, text: &[u8]) -> Class {
        // Where `standard_conforming_strings` is off a backslash escapes a quote, and the parser would see another text.
        if self.clients[c].odd_strings && text.contains(&b'\\') {
            // Nothing is known of it, so it may leave anything behind.
            self.clients[c].unflushed = true;
            return Class { pins: Pins::SET, flags: Flags::UNKNOWN.with(Flags::LOCAL), ..Class::UNKNOWN };
        }
        let class = self.classifier.classify(text);
        if class.access == Access::Write {
            self.note_unflushed(c, text, class);
        }
        class
    }
}
