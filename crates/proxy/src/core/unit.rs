//! A client without a server: finds out what its next messages are, and where they go.
//!
//! A **unit** is what is executed as one: a `Query`, or extended-protocol messages up to `Sync`. All of a unit goes to one
//! server, so the destination is chosen when its end is seen. That costs no time: until `Sync` or `Flush` a server
//! would not answer either. A unit that does not end within [`UNIT_MAX`] goes to the primary.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sql::{Access, Class, Control, Flags, Pins};
use wire::message::Status;
use wire::payload::{self, Named};
use wire::{Frame, HEADER, Sqlstate, message};

use super::client::{Aborted, Pass, Sole, Step, Unit};
use super::pool::Want;
use super::server::Expect;
use super::statement::Statement;
use super::{CLASSIFY_MAX, Core, SMALL_MAX, UNIT_MAX};
use crate::config::PoolMode;

/// What clients are told that begin one in statement mode.
pub(super) const NO_BLOCKS: &str = "transaction blocks are not allowed: pool_mode is \"statement\"";

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
    fn note(&mut self, class: Class, demoted: bool) {
        let read = class.access == Access::Read && !demoted;
        let begin = matches!(class.control, Control::Begin { .. });
        // What follows it in the unit is in that transaction.
        let first = self.sole == Sole::Nothing;
        self.begins |= begin;
        self.begin_read_only |= first && class.control == Control::Begin { read_only: true };
        self.read &= read;
        self.repeatable &= read || begin;
        self.hint = self.hint.or(class.hint);
        self.needs_server = true;
        self.sole = match class.control {
            _ if !first => Sole::Other,
            Control::Begin { read_only: false } if !class.flags.has(Flags::MULTI) => Sole::Begin,
            _ if super::fit::is_plain(class) => Sole::Read,
            _ => Sole::Other,
        };
    }

    fn doubt(&mut self) {
        self.read = false;
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
            Some(s) if self.servers[s].expect.is_empty() => {
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
    fn streams(&self, c: usize, s: usize) -> bool {
        let (client, server) = (&self.clients[c], &self.servers[s]);
        // While what it was sent goes to another server, nothing may follow it to this one.
        !server.discard
            && !matches!(server.expect.front(), Some(Expect::Setup))
            && (client.unit.routed
                || server.in_unit
                || server.skipping
                || server.copy_in
                || self.is_bound(c)
                // Behind something unanswered only the primary can be right: elsewhere that may end the transaction.
                || (server.status != Status::Idle && server.expect.is_empty())
                || (self.is_primary(s) && (server.status != Status::Idle || !server.expect.is_empty())))
    }

    /// Gives the server back, if only the rest of a message kept it (COPY data that came after the COPY had failed).
    pub(super) fn release_if_done(&mut self, c: usize) {
        if let Some(s) = self.clients[c].at.server()
            && self.servers[s].expect.is_empty()
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
    pub(super) fn ready(&mut self, c: usize) {
        let client = &mut self.clients[c];
        client.since = self.now;
        let status = match client.aborted {
            Aborted::No if client.begun.is_some() => Status::Transaction,
            Aborted::No => Status::Idle,
            Aborted::Untold | Aborted::Told => Status::Failed,
        };
        self.tell(c, |out| message::ready(out, status));
        self.look_again |= self.clients[c].listening.is_some();
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

    fn scan(&mut self, c: usize, first: bool, rest: &[u8], frame: Frame) -> Scan {
        let whole = rest.get(HEADER..frame.total());
        match frame.tag {
            b'Q' => {
                let Some(data) = whole else {
                    return if frame.payload > self.settings.max_statement { Scan::Long } else { Scan::More };
                };
                let Some((text, [])) = payload::cstr(data) else { return self.invalid(c, "Query") };
                let class = self.classify(c, text);
                let unit = &mut self.clients[c].unit;
                if class.local && first {
                    unit.query = Some(class);
                } else {
                    unit.note(class, false);
                    unit.query = first.then_some(class);
                    unit.key = self.classifier.shape();
                }
                Scan::End
            }
            b'P' => {
                let Some(data) = whole else {
                    return if frame.payload > self.settings.max_statement { Scan::Long } else { Scan::More };
                };
                let Some((name, text, types)) = payload::parse(data) else { return self.invalid(c, "Parse") };
                if frame.payload > self.settings.max_statement {
                    return Scan::Long;
                }
                let class = self.classify(c, text);
                let statement = self.statement_as(c, text, types, class);
                let accepted = !name.is_empty() && statement.accepted.load(Ordering::Relaxed);
                let described = accepted && statement.described(self.now, self.schema()).is_some();
                let unit = &mut self.clients[c].unit;
                unit.parses_unnamed |= name.is_empty();
                unit.single &= name.is_empty() && !unit.bound;
                unit.describable = if described { hash(name) } else { 0 };
                unit.key = self.classifier.shape();
                let needs_server = unit.needs_server;
                unit.note(class, statement.demoted.load(Ordering::Relaxed));
                // A Parse by itself only needs a server if none has ever taken this text.
                unit.needs_server = needs_server || !accepted;
                Scan::On
            }
            b'B' => {
                let data = whole.unwrap_or(&rest[HEADER..]);
                let Some((portal, name, _)) = payload::bind(data) else {
                    return match whole {
                        Some(_) => self.invalid(c, "Bind"),
                        None if data.len() > SMALL_MAX => self.invalid(c, "Bind"),
                        None => Scan::More,
                    };
                };
                // A statement that this very unit prepares is counted in by its Parse.
                let own = name.is_empty() && self.clients[c].unit.parses_unnamed;
                let known = self.statement_of(c, name).filter(|_| !own);
                // One that is prepared anew, in another client's place or under other parameters, has a connection to itself.
                let dialect = self.clients[c].dialect;
                let is_outdated = |s: &Arc<Statement>| s.outdated.load(Ordering::Relaxed) || s.dialect != dialect;
                let (id, outdated) = known.as_ref().map_or((0, false), |s| (s.id, is_outdated(s)));
                let known = known.map(|s| (s.class, s.demoted.load(Ordering::Relaxed)));
                let unit = &mut self.clients[c].unit;
                unit.needs_server = true;
                // What the unnamed statement is in a shared session only its own Parse tells.
                unit.single &= portal.is_empty() && !outdated && !unit.bound && (own || !name.is_empty());
                unit.bound = true;
                if !own {
                    unit.key = !id;
                }
                if unit.scanned == 0 || known.is_some() {
                    match known {
                        Some((class, demoted)) => unit.note(class, demoted),
                        None => unit.doubt(),
                    }
                }
                if whole.is_some() { Scan::On } else { Scan::More }
            }
            b'C' | b'D' => {
                if frame.payload > SMALL_MAX {
                    return self.invalid(c, "Close or Describe");
                }
                let Some(data) = whole else { return Scan::More };
                let Some(named) = payload::named(data) else { return self.invalid(c, "Close or Describe") };
                let unit = &self.clients[c].unit;
                let (known, local) = match named {
                    Named::Statement(b"") if unit.parses_unnamed => (None, false),
                    Named::Statement(name) if unit.describable != 0 && unit.describable == hash(name) => (None, true),
                    Named::Statement(name) => {
                        let statement = self.statement_of(c, name);
                        let local = !name.is_empty()
                            && statement.as_ref().is_some_and(|s| s.described(self.now, self.schema()).is_some());
                        (statement.map(|s| (s.class, s.demoted.load(Ordering::Relaxed))), local)
                    }
                    Named::Portal(_) => (None, false),
                };
                let unit = &mut self.clients[c].unit;
                let portal = matches!((frame.tag, named), (b'D', Named::Portal(b"")));
                unit.single &= portal && unit.bound && !unit.executed;
                match (frame.tag, named, known) {
                    (b'C', Named::Statement(_), _) => {}
                    (b'D', Named::Statement(_), None) if local => {}
                    (b'D', Named::Statement(_), Some((class, demoted))) if local => {
                        let needs_server = unit.needs_server;
                        unit.note(class, demoted);
                        unit.needs_server = needs_server;
                    }
                    (b'D', Named::Statement(_), Some((class, demoted))) => unit.note(class, demoted),
                    _ => unit.needs_server = true,
                }
                Scan::On
            }
            b'E' => {
                let unit = &mut self.clients[c].unit;
                unit.needs_server = true;
                // The unnamed portal, to its end.
                unit.single &= unit.bound && !unit.executed && whole == Some(&[0; 5]);
                unit.executed = true;
                if whole.is_some() { Scan::On } else { Scan::More }
            }
            b'S' | b'H' => {
                if whole.is_some() {
                    Scan::End
                } else {
                    Scan::More
                }
            }
            b'F' => {
                self.clients[c].unit.doubt();
                if whole.is_some() {
                    Scan::End
                } else if frame.payload > CLASSIFY_MAX {
                    Scan::Long
                } else {
                    Scan::More
                }
            }
            tag => {
                self.violation(c, &format!("unexpected message {:?}", char::from(tag)));
                Scan::Gone
            }
        }
    }

    fn invalid(&mut self, c: usize, what: &str) -> Scan {
        self.violation(c, &format!("invalid {what} message"));
        Scan::Gone
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
            // It is the first of a transaction, which goes to the primary.
            self.clients[c].unit.doubt();
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
        if want == Want::Read && self.hold_read(c) {
            return Step::Blocked;
        }
        // A client that has sent more than this is better served by a connection that it can fill by itself.
        if bytes.len() == self.clients[c].unit.scanned && self.enter_lane(c, want, bytes, false) {
            return Step::Used(bytes.len());
        }
        if self.acquire(c, want) { Step::Again } else { Step::Blocked }
    }

    /// The unit that was looked at goes to no server: its client gets an error.
    fn refuse_scanned(&mut self, c: usize, code: Sqlstate, text: &str) -> Step {
        let client = &mut self.clients[c];
        let unit = client.unit.take();
        if unit.whole {
            client.pass = Pass::discard(unit.scanned);
        } else {
            client.skipping = true;
        }
        self.tell(c, |out| super::login::error(out, code, text));
        self.fail_begun(c);
        if unit.whole {
            self.ready(c);
        }
        Step::Again
    }

    /// The next unit of a client gets an error from the proxy. Its bytes are in the client's kept input.
    pub(super) fn fail_unit(&mut self, c: usize, code: Sqlstate, text: &str) {
        let client = &mut self.clients[c];
        let unit = client.unit.take();
        client.again = super::client::Again::default();
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
        self.tell(c, |out| super::login::error(out, code, text));
        self.fail_begun(c);
        if ends {
            self.ready(c);
        }
        self.runnable.push_back(self.clients[c].token);
    }

    // --- statements ---

    /// What a text of this client is.
    pub(super) fn classify(&mut self, c: usize, text: &[u8]) -> Class {
        if self.clients[c].odd_strings {
            // Nothing is known of it, so it may leave anything behind.
            self.clients[c].unflushed = true;
            Class { pins: Pins::SET, ..Class::UNKNOWN }
        } else {
            let class = self.classifier.classify(text);
            if class.access == Access::Write {
                self.note_unflushed(c, text);
            }
            class
        }
    }

    /// The shared statement of this content.
    pub(super) fn statement(&mut self, c: usize, text: &[u8], types: &[u8]) -> Arc<Statement> {
        let class = self.classify(c, text);
        self.statement_as(c, text, types, class)
    }

    pub(super) fn statement_as(&mut self, c: usize, text: &[u8], types: &[u8], class: Class) -> Arc<Statement> {
        // Literals are read when a text is parsed: whoever reads them otherwise has a statement of its own.
        let dialect = self.dialect_of(c);
        self.statements.get(dialect, text, types, || class)
    }

    /// The statement that a client knows by this name.
    pub(super) fn statement_of(&self, c: usize, name: &[u8]) -> Option<Arc<Statement>> {
        let client = &self.clients[c];
        if name.is_empty() {
            client.unnamed.clone()
        } else {
            client.prepared.as_ref().and_then(|prepared| prepared.names.get(name)).cloned()
        }
    }
}
