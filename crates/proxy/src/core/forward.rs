//! A client with a server: its messages go on, one by one.
//!
//! Most are appended to the server's output as they are. Of those that name prepared statements the name is changed to
//! the server's own, and what the server lacks is prepared ahead of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sql::{Access, Class, Control, Flags, Pins};
use wire::payload::{self, Named};
use wire::{Frame, HEADER, Sqlstate, message};

use super::client::{Again, Pass, Prepared, Step};
use super::server::{Expect, Parsed, Undo};
use super::statement::{Statement, StatementName};
use super::{Core, SMALL_MAX};

/// Pipelined messages that a server may owe answers for; a client that sends more waits.
pub(super) const MOST_EXPECTED: usize = 4096;
/// Prepared statements of one client.
const MOST_NAMES: usize = 10_000;
/// In place of a statement's id: the unnamed statement is one of the present client's that was too long to be kept.
pub(super) const LONG: u64 = u64::MAX;

impl Core {
    pub(super) fn forward(&mut self, c: usize, s: usize, bytes: &[u8], frame: Frame) -> Step {
        self.keep_for_replay(c, s, bytes);
        let server = &self.servers[s];
        // A unit that fails skips its Parses: what a later unit does with their statements depends on it.
        let depends = server.unanswered_before > 0 && matches!(frame.tag, b'P' | b'B' | b'D' | b'C');
        // A unit behind the first of a transaction waits for that to have begun, or for its client to hear that it has not.
        let data = matches!(frame.tag, b'd' | b'c' | b'f');
        let behind = (server.beginning || server.begin_failed) && !server.in_unit && !data;
        // What comes after LISTEN waits until that is known to hold.
        let listens = server.sets.listens.open && !server.expect.is_empty() && !server.in_unit && !data;
        if server.barrier || depends || behind || listens {
            return Step::Blocked;
        }
        if self.servers[s].expect.len() >= MOST_EXPECTED {
            // Only part of the unit has been sent: what is kept for a replay would overlap with what is still to come.
            self.give_up_replay(c);
            self.clients[c].held_up = true;
            return Step::Blocked;
        }
        if self.servers[s].skipping && frame.tag != b'S' {
            self.clients[c].pass = Pass::discard(frame.total());
            return Step::Again;
        }
        if self.clients[c].begun.is_some() {
            self.begin(c, s);
        }
        match frame.tag {
            b'Q' => self.forward_query(c, s, bytes, frame),
            b'P' => self.forward_parse(c, s, bytes, frame),
            b'B' => self.forward_bind(c, s, bytes, frame),
            b'D' | b'C' => self.forward_named(c, s, bytes, frame),
            b'E' => {
                let Some(portal) = bytes.get(HEADER..).and_then(|data| Some(payload::cstr(data)?.0)) else {
                    if bytes.len() < frame.total() && bytes.len() < SMALL_MAX {
                        return Step::More;
                    }
                    self.violation(c, "invalid Execute message");
                    return Step::Gone;
                };
                let changes = self.execute_changes(s, portal);
                self.servers[s].in_unit = true;
                self.servers[s].owe(Expect::Execute(changes));
                self.pass_on(c, s, bytes, frame)
            }
            b'H' => {
                // The client waits for what it has asked so far.
                self.give_up_replay(c);
                self.pass_on(c, s, bytes, frame)
            }
            b'S' => {
                let server = &mut self.servers[s];
                // While it reads COPY data, a server ignores Sync.
                if !server.copy_in {
                    server.in_unit = false;
                    server.skipping = false;
                    server.owe(Expect::Sync);
                    server.barrier |= server.sets.goes_back;
                    self.count_statement(s);
                    self.end_unit(c);
                }
                self.pass_on(c, s, bytes, frame)
            }
            b'F' => {
                self.clients[c].unflushed = true;
                self.note_sender(c, s);
                let server = &mut self.servers[s];
                (server.wrote, server.changed) = (true, true);
                server.committing = true;
                server.owe(Expect::Query(None));
                self.count_statement(s);
                self.end_unit(c);
                self.pass_on(c, s, bytes, frame)
            }
            b'd' => self.pass_on(c, s, bytes, frame),
            b'c' | b'f' => {
                self.servers[s].copy_in = false;
                self.pass_on(c, s, bytes, frame)
            }
            tag => {
                self.violation(c, &format!("unexpected message {:?}", char::from(tag)));
                Step::Gone
            }
        }
    }

    /// Forwards a message as it is, as far as it is there.
    fn pass_on(&mut self, c: usize, s: usize, bytes: &[u8], frame: Frame) -> Step {
        let n = frame.total().min(bytes.len());
        self.send(s, |out| out.extend_from_slice(&bytes[..n]));
        if n < frame.total() {
            self.clients[c].pass = Pass::forward(frame.total() - n);
        }
        Step::Used(n)
    }

    fn end_unit(&mut self, c: usize) {
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
                (self.servers[s].measured, self.servers[s].answered) = (unit.key, 0);
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
    pub(super) fn give_up_replay(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if client.replay.forget(&mut self.buffers) {
            client.output.release();
            self.tell(c, |_| {});
        }
    }

    // --- messages that are understood ---

    fn forward_query(&mut self, c: usize, s: usize, bytes: &[u8], frame: Frame) -> Step {
        let class = match (self.clients[c].unit.query, bytes.get(HEADER..frame.total())) {
            (Some(class), Some(_)) => class,
            (_, Some(data)) => match payload::cstr(data) {
                Some((text, [])) => self.classify(c, text),
                _ => {
                    self.violation(c, "invalid Query message");
                    return Step::Gone;
                }
            },
            (_, None) if frame.payload > self.settings.max_statement => {
                // Nothing is known of it: whatever it leaves behind goes when the transaction ends.
                self.servers[s].reset = true;
                self.clients[c].unflushed = true;
                self.note_sender(c, s);
                Class::UNKNOWN
            }
            (_, None) => return Step::More,
        };
        if class.local
            && let Some(step) = self.local_query(c, bytes, frame)
        {
            return step;
        }
        if class.local && bytes.get(HEADER..frame.total()).is_some_and(|data| self.is_token_query(data)) {
            let text = self.token_query();
            self.clients[c].unnamed = None;
            (self.servers[s].unnamed, self.servers[s].in_unit) = (0, false);
            self.servers[s].owe(Expect::Query(None));
            self.end_unit(c);
            self.send(s, |out| message::query(out, &text));
            return Step::Used(frame.total());
        }
        // Where the unit was looked at as a whole, its shape is known from there.
        let unit = &self.clients[c].unit;
        let key = if unit.query.is_some() { unit.key } else { self.classifier.shape() };
        let text = bytes.get(HEADER..frame.total()).and_then(payload::cstr).map(|(text, _)| text);
        let changes = text.and_then(|text| self.changes(c, class, text));
        let pins = self.note_changes(c, s, class, changes.as_ref());
        self.note_effects(c, s, Class { pins, ..class }, true);
        // A simple query drops the unnamed statement.
        self.clients[c].unnamed = None;
        self.servers[s].unnamed = 0;
        self.servers[s].in_unit = false;
        if let Some(text) = text {
            self.count_begin(c, s, key, text, true);
        }
        let server = &mut self.servers[s];
        server.owe(Expect::Query(changes));
        server.barrier |= server.sets.goes_back;
        self.count_statement(s);
        self.end_unit(c);
        self.pass_on(c, s, bytes, frame)
    }

    /// What a statement leaves behind, and whether its loss would leave doubt.
    fn note_effects(&mut self, c: usize, s: usize, class: Class, certain: bool) {
        // What it writes may notify, by a trigger or a function.
        if class.access == Access::Write
            && class.control == Control::None
            && (!class.flags.has(Flags::LISTENS) || class.flags.has(Flags::MULTI))
        {
            self.note_sender(c, s);
        }
        let server = &mut self.servers[s];
        if class.access == Access::Write {
            match class.control {
                Control::Begin { .. } | Control::Rollback => {}
                Control::Commit => server.committing = true,
                Control::None => {
                    server.wrote = true;
                    server.changed |= !class.flags.has(Flags::SESSION);
                    server.committing |= server.status == message::Status::Idle || class.flags.has(Flags::TRANSACTION);
                }
            }
        }
        server.may_begin |= matches!(class.control, Control::Begin { .. }) || class.flags.has(Flags::TRANSACTION);
        if class.flags.has(Flags::SCHEMA) {
            let openly = class.flags.has(Flags::DDL);
            server.alters = Some(openly || server.alters == Some(true));
            self.shared.registry.schema_changes(self.now, openly);
        }
        let server = &mut self.servers[s];
        // Which statements it has is not known until this has answered.
        server.barrier |= certain && class.flags.has(Flags::DROPS_STATEMENTS);
        // It has cleared something only if it succeeds, and is not rolled back: seen at the end of the unit.
        let alone = server.status == message::Status::Idle && !server.is_running();
        server.unpins = server.unpins.without(class.pins);
        if certain && alone && !class.flags.has(Flags::TRANSACTION) {
            server.unpins = server.unpins.with(class.unpins);
        }
        self.pin(c, s, class.pins);
    }

    fn forward_parse(&mut self, c: usize, s: usize, bytes: &[u8], frame: Frame) -> Step {
        let Some(data) = bytes.get(HEADER..frame.total()) else {
            let unnamed = bytes.get(HEADER) == Some(&0);
            if unnamed && frame.payload > self.settings.max_statement {
                self.servers[s].reset = true;
                self.clients[c].unflushed = true;
                self.note_sender(c, s);
                // Nothing is known of it, and it can be used only until this server is given back.
                self.clients[c].unnamed = None;
                let server = &mut self.servers[s];
                (server.unnamed, server.wrote, server.committing, server.in_unit) = (LONG, true, true, true);
                server.changed = true;
                let statement = Arc::new(Statement::unknown());
                server.owe(Expect::Parse { statement, parsed: Parsed::Unnamed });
                return self.pass_on(c, s, bytes, frame);
            }
            if frame.payload > self.settings.max_statement {
                return self.too_long(c, s);
            }
            return Step::More;
        };
        let Some((name, text, types)) = payload::parse(data) else {
            self.violation(c, "invalid Parse message");
            return Step::Gone;
        };
        let class = self.classify(c, text);
        let statement = self.statement_as(c, text, types, class);
        self.count_begin(c, s, self.classifier.shape(), text, true);
        self.servers[s].in_unit = true;
        if name.is_empty() {
            statement.note_unnamed();
            self.clients[c].unnamed = Some(statement.clone());
            if self.is_shared_now(c, s, &statement) {
                self.parse_shared(c, s, &statement);
                return Step::Used(frame.total());
            }
            self.servers[s].unnamed = statement.id;
            self.servers[s].owe(Expect::Parse { statement, parsed: Parsed::Unnamed });
            return self.pass_on(c, s, bytes, frame);
        }
        if frame.payload > self.settings.max_statement {
            return self.too_long(c, s);
        }
        let replaying = self.clients[c].again.attempts > 0;
        let prepared = self.clients[c].prepared.get_or_insert_with(Box::<Prepared>::default);
        let taken = prepared.names.contains_key(name) && !replaying;
        if taken {
            // It ends in an error; sent again, it would look like a replay of the first.
            self.give_up_replay(c);
            // A second Parse under a name that the server has: it gives the error, in its own words and at the right moment.
            self.prepare(s, &statement);
        } else {
            if prepared.names.len() >= MOST_NAMES {
                let text = format!("more than {MOST_NAMES} prepared statements in one session");
                self.fatal(c, Sqlstate::PROGRAM_LIMIT_EXCEEDED, &text);
                return Step::Gone;
            }
            prepared.names.insert(name.into(), statement.clone());
            // Its text is good, and a server without it gets it when it is used; or this server is being asked already.
            let accepted = statement.accepted.load(Ordering::Relaxed);
            let is_good = accepted || self.servers[s].prepared.contains_key(&statement.id);
            if is_good && self.servers[s].may_have_failed() {
                // In a failed transaction a Parse is an error, whatever its text.
                prepared.parsing.push_back(name.into());
                self.try_parse(s, &statement);
                return Step::Used(frame.total());
            }
            if is_good {
                self.metrics.parses_local.add(u64::from(accepted));
                self.answer(c, s, b'1', || Undo::Forget(name.into()));
                return Step::Used(frame.total());
            }
            prepared.parsing.push_back(name.into());
            self.make_room(s);
        }
        let parsed = if taken { Parsed::Doomed } else { Parsed::Named };
        self.send_parse(s, &statement, Expect::Parse { statement: statement.clone(), parsed });
        Step::Used(frame.total())
    }

    fn forward_bind(&mut self, c: usize, s: usize, bytes: &[u8], frame: Frame) -> Step {
        let end = frame.total().min(bytes.len());
        let data = &bytes[HEADER..end];
        let Some((portal, name, rest)) = payload::bind(data) else {
            if end < frame.total() && data.len() <= SMALL_MAX {
                return Step::More;
            }
            self.violation(c, "invalid Bind message");
            return Step::Gone;
        };
        if end < frame.total() && frame.payload <= SMALL_MAX && self.servers[s].may_have_failed() {
            // If its statement has to be prepared first, that is refused: not before the client has said all of it.
            return Step::More;
        }
        let statement = self.statement_of(c, name);
        if let Some(statement) = &statement {
            let class = statement.class;
            let values = (end == frame.total()).then_some(rest);
            let changes = self.changes(c, class, &statement.text);
            let changes = self.bind_changes(s, portal, values, changes);
            let pins = self.note_changes(c, s, class, changes.as_ref());
            // What is bound need not be executed: it may pin, but not unpin.
            self.note_effects(c, s, Class { pins, ..class }, false);
            // Its own Parse in the same unit knows better what shape it is of.
            if !name.is_empty() || self.servers[s].timing.key == 0 {
                self.count_begin(c, s, !statement.id, &statement.text, false);
            }
        }
        let Some(server_name) = self.server_name(c, s, name, statement.as_ref()) else { return Step::Blocked };
        if let ServerName::Sqls(_) = server_name {
            // What it does nobody knows: a write.
            self.note_effects(c, s, Class::UNKNOWN, false);
        }
        let statement = self.statement_of(c, name);
        self.note_bound(c, name);
        let server = &mut self.servers[s];
        server.in_unit = true;
        server.owe(match server_name {
            ServerName::Outdated => Expect::Outdated,
            _ => Expect::Bind(statement),
        });
        let payload = frame.payload - name.len() + server_name.as_bytes().len();
        self.send(s, |out| {
            message::header(out, b'B', payload);
            out.extend_from_slice(portal);
            out.push(0);
            out.extend_from_slice(server_name.as_bytes());
            out.push(0);
            out.extend_from_slice(rest);
        });
        if end < frame.total() {
            self.clients[c].pass = Pass::forward(frame.total() - end);
        }
        Step::Used(end)
    }

    /// `Describe` and `Close`.
    fn forward_named(&mut self, c: usize, s: usize, bytes: &[u8], frame: Frame) -> Step {
        if frame.payload > SMALL_MAX {
            self.violation(c, "invalid Close or Describe message");
            return Step::Gone;
        }
        let Some(data) = bytes.get(HEADER..frame.total()) else { return Step::More };
        let Some(named) = payload::named(data) else {
            self.violation(c, "invalid Close or Describe message");
            return Step::Gone;
        };
        self.servers[s].in_unit = true;
        match (frame.tag, named) {
            (b'D', Named::Portal(_)) => {
                self.portal_described(c, s);
                self.servers[s].owe(Expect::Describe(None, 0));
                self.pass_on(c, s, bytes, frame)
            }
            (b'D', Named::Statement(name)) => {
                let statement = self.statement_of(c, name);
                let statement = statement.map(|statement| self.up_to_date(c, name, statement));
                if let Some(prepared) = &mut self.clients[c].prepared
                    && prepared.names.contains_key(name)
                {
                    // From here on the client relies on what it is told now.
                    prepared.described.remove(name);
                }
                let Some(server_name) = self.server_name(c, s, name, statement.as_ref()) else { return Step::Blocked };
                if let Some(prepared) = &mut self.clients[c].prepared
                    && prepared.names.contains_key(name)
                {
                    prepared.described.insert(name.into());
                }
                self.send(s, |out| message::describe_statement(out, server_name.as_bytes()));
                let schema = self.schema();
                self.servers[s].owe(Expect::Describe(statement, schema));
                Step::Used(frame.total())
            }
            (_, Named::Portal(_)) => {
                self.servers[s].owe(Expect::Close);
                self.pass_on(c, s, bytes, frame)
            }
            (_, Named::Statement(name)) if self.statement_of(c, name).is_none() && self.may_be_sqls(c, name) => {
                self.servers[s].owe(Expect::Close);
                self.pass_on(c, s, bytes, frame)
            }
            (_, Named::Statement(name)) => {
                let statement = self.statement_of(c, name);
                self.forget_statement(c, name);
                let client = &mut self.clients[c];
                if client.replay.is_some()
                    && let (Some(statement), Some(prepared)) = (&statement, &mut client.prepared)
                {
                    prepared.closed.push((name.into(), statement.clone()));
                }
                self.answer(c, s, b'3', || match statement {
                    Some(statement) => Undo::Restore(name.into(), statement),
                    None => Undo::Nothing,
                });
                Step::Used(frame.total())
            }
        }
    }

    /// The client binds this statement.
    pub(super) fn note_bound(&mut self, c: usize, name: &[u8]) {
        if let Some(prepared) = &mut self.clients[c].prepared {
            prepared.bound.clear();
            prepared.bound.extend_from_slice(name);
        }
    }

    /// The client asks for the columns of a portal, and may rely on them whenever it binds that statement again: some drivers ask only
    /// once. (Of several portals in a unit the last counts: too much relying costs an error that a server would have given, too.)
    pub(super) fn portal_described(&mut self, c: usize, s: usize) {
        let Some(prepared) = &mut self.clients[c].prepared else { return };
        let Some(statement) = prepared.names.get(&*prepared.bound) else { return };
        if !prepared.described.contains(&*prepared.bound) {
            prepared.described.insert(prepared.bound.as_slice().into());
        }
        if statement.shape.get().is_none() {
            // Portals are described with the formats that were asked for; what is compared is the statement's description.
            let statement = statement.clone();
            self.send(s, |out| message::describe_statement(out, statement.name().as_bytes()));
            self.servers[s].owe(Expect::DescribeOwn(statement));
        }
    }

    /// The client closes a statement; servers keep it for others.
    pub(super) fn forget_statement(&mut self, c: usize, name: &[u8]) -> bool {
        let client = &mut self.clients[c];
        if name.is_empty() {
            return client.unnamed.take().is_some();
        }
        client.prepared.as_mut().is_some_and(|prepared| {
            prepared.described.remove(name);
            prepared.names.remove(name).is_some()
        })
    }

    /// Under which name the server finds the statement that the client calls `name`: prepared ahead, if need be.
    /// None: that has to be looked into first; the client is woken when it is.
    fn server_name(
        &mut self,
        c: usize,
        s: usize,
        name: &[u8],
        statement: Option<&Arc<Statement>>,
    ) -> Option<ServerName> {
        Some(match statement {
            Some(statement) if !name.is_empty() => {
                let described = self.clients[c].prepared.as_ref().is_some_and(|p| p.described.contains(name));
                let Some(statement) = &self.in_dialect(c, s, name, statement, described) else {
                    return Some(ServerName::Outdated);
                };
                let outdated = statement.outdated.load(Ordering::Relaxed);
                if outdated && described {
                    // Servers have described it in two ways. Which of them this client was told is not kept.
                    return Some(ServerName::Outdated);
                }
                let statement = if outdated { self.up_to_date(c, name, statement.clone()) } else { statement.clone() };
                self.prepare(s, &statement);
                let told = described && statement.shape.get().is_some();
                // (In a failed transaction it would only say so too early.)
                let server = &self.servers[s];
                if told && !server.is_described(&statement) && server.status != message::Status::Failed {
                    // The client relies on what it was told of the columns: another Parse may have given others.
                    self.send(s, |out| {
                        message::describe_statement(out, statement.name().as_bytes());
                        message::empty(out, b'H');
                    });
                    let server = &mut self.servers[s];
                    server.in_unit = true;
                    server.owe(Expect::DescribeOwn(statement));
                    return None;
                }
                ServerName::Own(statement.name())
            }
            Some(statement) if self.is_shared_now(c, s, statement) => {
                self.prepare(s, statement);
                ServerName::Own(statement.name())
            }
            Some(statement) => {
                if self.servers[s].unnamed != statement.id {
                    self.metrics.prepares.add(1);
                    self.servers[s].unnamed = statement.id;
                    self.send(s, |out| message::parse(out, b"", &statement.text, &statement.types));
                    let statement = statement.clone();
                    self.servers[s].owe(Expect::ParseOwn { statement, named: false });
                }
                ServerName::Unnamed
            }
            None if name.is_empty() && self.servers[s].unnamed == LONG => ServerName::Unnamed,
            // It may have been prepared by SQL, in this very session.
            None if self.may_be_sqls(c, name) => ServerName::Sqls(name.to_vec()),
            // A name that no server has, so that the server says so: other clients' statements have names without `?`.
            None => ServerName::Missing([b"?", name].concat()),
        })
    }

    /// The statement as it reads under the client's parameters of the moment, unless the server has it already, as the client
    /// prepared it. None: its columns are others now than the client was told.
    fn in_dialect(
        &mut self,
        c: usize,
        s: usize,
        name: &[u8],
        statement: &Arc<Statement>,
        described: bool,
    ) -> Option<Arc<Statement>> {
        if statement.dialect == self.dialect_of(c) || self.servers[s].prepared.contains_key(&statement.id) {
            return Some(statement.clone());
        }
        let fresh = self.statement_as(c, &statement.text, &statement.types, statement.class);
        if let Some(&shape) = statement.shape.get().filter(|_| described)
            && *fresh.shape.get_or_init(|| shape) != shape
        {
            return None;
        }
        if let Some(prepared) = &mut self.clients[c].prepared {
            prepared.names.insert(name.into(), fresh.clone());
        }
        Some(fresh)
    }

    /// A statement whose columns have changed is replaced by one that is parsed anew.
    fn up_to_date(&mut self, c: usize, name: &[u8], statement: Arc<Statement>) -> Arc<Statement> {
        if !statement.outdated.load(Ordering::Relaxed) {
            return statement;
        }
        let fresh = self.statement_as(c, &statement.text, &statement.types, statement.class);
        if let Some(prepared) = &mut self.clients[c].prepared {
            prepared.names.insert(name.into(), fresh.clone());
        }
        fresh
    }

    /// Whether servers keep this statement, which its client parses without a name, as they keep named ones: never if the client
    /// reads texts in a way of its own.
    pub(super) fn shares_unnamed(&self, c: usize, statement: &Statement) -> bool {
        self.settings.share_unnamed
            && statement.is_recurring()
            && statement.dialect == self.clients[c].dialect
            && self.clients[c].pins.is_empty()
    }

    /// The same, at this moment. A statement that the server has parsed long ago may fail because its columns have changed since,
    /// which a fresh one does not: so it must have none, or the unit must be one that is sent again without anybody's noticing.
    fn is_shared_now(&self, c: usize, s: usize, statement: &Statement) -> bool {
        let (client, server) = (&self.clients[c], &self.servers[s]);
        let again = client.replay.is_some() && server.measured != 0 && server.status == message::Status::Idle;
        self.shares_unnamed(c, statement)
            && statement.dialect == self.dialect_of(c)
            && !server.may_have_failed()
            && (statement.class.flags.has(Flags::ROWLESS) || (statement.class.access == Access::Read && again))
    }

    /// The client's Parse of an unnamed statement that servers keep.
    pub(super) fn parse_shared(&mut self, c: usize, s: usize, statement: &Arc<Statement>) {
        if self.servers[s].prepared.contains_key(&statement.id) {
            self.metrics.unnamed_shared.add(1);
            self.prepare(s, statement);
            return self.answer(c, s, b'1', || Undo::Nothing);
        }
        self.make_room(s);
        self.send_parse(s, statement, Expect::Parse { statement: statement.clone(), parsed: Parsed::Shared });
    }

    /// Stands for the cluster's schema, as far as this process knows of changes.
    pub(super) fn schema(&self) -> u64 {
        self.shared.registry.schema()
    }

    /// What this server's client has changed of the schema, if it has, may have been committed.
    pub(super) fn settle_schema(&mut self, s: usize) {
        if let Some(openly) = self.servers[s].alters.take() {
            self.shared.registry.schema_changes(self.now, openly);
        }
    }

    /// Makes sure that the server has, or will have, this statement under its own name.
    pub(super) fn prepare(&mut self, s: usize, statement: &Arc<Statement>) {
        let server = &mut self.servers[s];
        if let Some(kept) = server.prepared.get_mut(&statement.id) {
            server.clock += 1;
            kept.used = server.clock;
            return;
        }
        self.make_room(s);
        self.send_parse(s, statement, Expect::ParseOwn { statement: statement.clone(), named: true });
    }

    /// Has the server parse a statement under its own name, for which there is room.
    fn send_parse(&mut self, s: usize, statement: &Statement, expect: Expect) {
        self.servers[s].keep(statement.id);
        self.metrics.prepares.add(1);
        self.send(s, |out| message::parse(out, statement.name().as_bytes(), &statement.text, &statement.types));
        self.servers[s].owe(expect);
    }

    /// True if a statement of this name, which the client has not prepared by the protocol, may be one that it has prepared by SQL.
    fn may_be_sqls(&self, c: usize, name: &[u8]) -> bool {
        self.clients[c].pins.0 & Pins::PREPARE.0 != 0 && !name.is_empty() && !name.starts_with(StatementName::PREFIX)
    }

    /// Has the server parse a statement that it has, or need not have, only to learn whether it would.
    fn try_parse(&mut self, s: usize, statement: &Arc<Statement>) {
        const TRIED: &[u8] = b"?";
        self.send(s, |out| {
            message::parse(out, TRIED, &statement.text, &statement.types);
            message::close_statement(out, TRIED);
        });
        let server = &mut self.servers[s];
        server.owe(Expect::Parse { statement: statement.clone(), parsed: Parsed::Tried });
        server.owe(Expect::CloseOwn(0));
    }

    /// Closes the statement that this server connection has not used for longest, if it has as many as it may.
    fn make_room(&mut self, s: usize) {
        let server = &mut self.servers[s];
        if server.prepared.len() < self.settings.prepared_per_server {
            return;
        }
        let Some((&id, _)) = server.prepared.iter().min_by_key(|(_, kept)| kept.used) else { return };
        server.prepared.remove(&id);
        server.owe(Expect::CloseOwn(id));
        self.send(s, |out| message::close_statement(out, StatementName::of(id).as_bytes()));
    }

    /// Answers with an empty message, when its turn comes.
    fn answer(&mut self, c: usize, s: usize, tag: u8, undo: impl FnOnce() -> Undo) {
        let server = &mut self.servers[s];
        if server.expect.is_empty() {
            self.tell(c, |out| message::empty(out, tag));
        } else {
            server.owe(Expect::Answer { tag, undo: undo() });
        }
    }

    /// A named statement that is too long to be kept.
    fn too_long(&mut self, c: usize, s: usize) -> Step {
        let text = format!(
            "prepared statement is longer than max_statement_bytes ({}): raise it, or use a simple query",
            self.settings.max_statement
        );
        let server = &self.servers[s];
        if server.expect.is_empty() && server.status == message::Status::Idle && !server.in_unit {
            self.tell(c, |out| super::login::error(out, Sqlstate::PROGRAM_LIMIT_EXCEEDED, &text));
            if self.is_bound(c) {
                // The server hears nothing before the Sync that ends the unit.
                let server = &mut self.servers[s];
                (server.in_unit, server.skipping) = (true, true);
                return Step::Again;
            }
            self.clients[c].unit.reset();
            self.clients[c].skipping = true;
            let token = self.clients[c].token;
            self.release(s);
            return if self.is_client(token) { Step::Again } else { Step::Gone };
        }
        // In a transaction, or behind other messages, an error of the proxy's own would leave the server in another state
        // than the client believes.
        self.fatal(c, Sqlstate::PROGRAM_LIMIT_EXCEEDED, &text);
        Step::Gone
    }
}

/// A prepared statement's name in a server connection.
enum ServerName {
    Unnamed,
    Own(StatementName),
    Missing(Vec<u8>),
    /// The client's own, who may have prepared it by SQL.
    Sqls(Vec<u8>),
    /// Its columns are no longer what the client was told.
    Outdated,
}

impl ServerName {
    fn as_bytes(&self) -> &[u8] {
        match self {
            ServerName::Unnamed => b"",
            ServerName::Own(name) => name.as_bytes(),
            ServerName::Missing(name) | ServerName::Sqls(name) => name,
            ServerName::Outdated => b"?outdated",
        }
    }
}
