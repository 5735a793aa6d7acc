//! A client's messages about prepared statements: under the server's names for them, with what the server lacks prepared ahead.

use std::sync::Arc;

use sql::{Access, Class, Flags, Local, Pins};
use wire::frontend::Message;
use wire::message::{self, Status};
use wire::payload::Named;
use wire::{Frame, Sqlstate};

use super::client::{Pass, Step};
use super::login::error;
use crate::core::Core;
use crate::core::parameters::{Reads, filled};
use crate::core::prepared::{Full, Reading, Scope, Statement, StatementName, Undo, Unnamed};
use crate::core::server::{Answer, Dropping, Note, Refusal, Request, Run, SentAs};

/// What a client's session may have of its own that changes how its texts are read, and that nobody can tell by name and value.
const OWN_READING: Pins = Pins(Pins::SET.0 | Pins::ROLE.0 | Pins::TEMP.0 | Pins::LOAD.0 | Pins::FUNCTION.0);

/// A name that no server has a statement under: the proxy's own statements have names without `?`.
const NOBODYS: &[u8] = b"?";

/// Under which name the server finds a client's statement.
enum ServerName {
    Unnamed,
    Own(StatementName),
    /// One that no server has, so that the server says so.
    Missing(Vec<u8>),
    /// The client's own, who may have prepared it by SQL in this very session.
    Sqls(Vec<u8>),
    /// One that no server has: its error tells the proxy that the client's turn has come to be told why it is refused.
    Refused(Refusal),
}

impl ServerName {
    fn as_bytes(&self) -> &[u8] {
        match self {
            ServerName::Unnamed => b"",
            ServerName::Own(name) => name.as_bytes(),
            ServerName::Missing(name) | ServerName::Sqls(name) => name,
            ServerName::Refused(_) => b"?refused",
        }
    }
}

// === what a text means ===

impl Core {
    /// How the next text of this client is read.
    pub(super) fn reads(&self, c: usize) -> Reads {
        let client = &self.clients[c];
        if client.pins.0 & OWN_READING.0 != 0 {
            // It stays with its connection, whose statements go when it leaves.
            return Reads::Unknown { held_are_good: true };
        }
        match client.at.server() {
            Some(s) => self.servers[s].tracker.in_force.reads(&client.params),
            None => Reads::As(client.params.reading()),
        }
    }

    /// The statement of this content, as this client's texts are read now.
    pub(in crate::core) fn statement_for(
        &mut self,
        c: usize,
        text: &[u8],
        types: &[u8],
        class: Class,
    ) -> Arc<Statement> {
        let place = &self.pools[self.clients[c].pool].place;
        match self.reads(c) {
            Reads::As(reading) => self.statements.get(place, reading, text, types, class),
            Reads::Unknown { .. } => self.shared.registry.private(place, text, types, class),
        }
    }

    /// True if the client's texts are read now as this statement was. One that is a client's alone it reads as it is.
    pub(super) fn is_read_alike(&self, c: usize, statement: &Statement) -> bool {
        let Some(scope) = statement.scope() else { return true };
        let place = &self.pools[self.clients[c].pool].place;
        match self.reads(c) {
            Reads::As(reading) => scope == Scope::new(place, reading.of(statement.text())),
            Reads::Unknown { .. } => false,
        }
    }

    /// Stands for the schema of the client's database, as far as this process knows of changes.
    pub(in crate::core) fn schema_version(&self, c: usize) -> u64 {
        self.pools[self.clients[c].pool].place.schema().version()
    }

    /// True if the client can be told what a server would say to a Describe of this statement.
    pub(super) fn is_described(&self, c: usize, statement: &Statement, schema: u64) -> bool {
        statement.described(self.now, schema).is_some() && self.is_read_alike(c, statement)
    }

    /// Whether servers keep this statement, which its client parses without a name, as they keep named ones: never if the client
    /// reads texts in a way of its own.
    pub(in crate::core) fn shares_unnamed(&self, c: usize, statement: &Statement) -> bool {
        self.settings.share_unnamed
            && statement.is_recurring()
            && self.clients[c].pins.is_empty()
            && self.is_read_alike(c, statement)
    }

    /// The same, at this moment. A statement that the server has parsed long ago may fail because its columns have changed since,
    /// which a fresh one does not: so it must have none, or the unit must be one that is sent again without anybody's noticing.
    fn is_shared_now(&self, c: usize, s: usize, statement: &Statement) -> bool {
        let (client, server) = (&self.clients[c], &self.servers[s]);
        let again = client.replay.is_some() && server.meter.measured != 0 && server.protocol.status() == Status::Idle;
        let class = statement.class();
        self.shares_unnamed(c, statement)
            && !server.may_have_failed()
            && (class.flags.has(Flags::ROWLESS) || (class.access == Access::Read && again))
    }
}

// === Parse ===

impl Core {
    pub(super) fn forward_parse(
        &mut self,
        c: usize,
        s: usize,
        (name, text, types): (&[u8], &[u8], &[u8]),
        bytes: &[u8],
        frame: Frame,
    ) -> Step {
        let class = self.classify(c, text);
        let shown = self.shown_instead(c, class, text);
        let statement = match &shown {
            // The proxy's own setting is shown by another text, which is nobody else's.
            Some(instead) => {
                let place = &self.pools[self.clients[c].pool].place;
                self.shared.registry.private(place, instead, types, Class { local: false, ..class })
            }
            None => self.statement_for(c, text, types, class),
        };
        self.count_begin(c, s, self.classifier.shape(), text, true);
        if !name.is_empty() {
            return match self.parse_named(c, s, name, statement) {
                Ok(()) => Step::Used(frame.total()),
                Err(full) => {
                    self.fatal(c, Sqlstate::PROGRAM_LIMIT_EXCEEDED, &full.to_string());
                    Step::Gone
                }
            };
        }
        statement.note_unnamed();
        if self.is_shared_now(c, s, &statement) {
            self.parse_shared(c, s, &statement);
            return Step::Used(frame.total());
        }
        let undo = self.names_of_parse(c, &statement);
        self.servers[s].held.set_unnamed(Unnamed::Is(statement.id()));
        if shown.is_some() {
            self.send(s, |out| message::parse(out, b"", statement.text(), statement.types()));
        }
        let note = Note::Parse { statement, sent_as: SentAs::Unnamed, undo };
        self.servers[s].protocol.sent(Request::Parse, note);
        if shown.is_some() { Step::Used(frame.total()) } else { self.pass_on(c, s, bytes, frame) }
    }

    fn names_of_parse(&mut self, c: usize, statement: &Arc<Statement>) -> Undo {
        // The unnamed one's place is never full.
        self.clients[c].names.parse(b"", statement.clone()).unwrap_or_default()
    }

    fn parse_named(&mut self, c: usize, s: usize, name: &[u8], statement: Arc<Statement>) -> Result<(), Full> {
        if self.clients[c].names.get(name).is_some() {
            // A second Parse under a name that the server has: it gives the error at the right moment.
            // Sent again, the unit would look as if it had not been sent before.
            self.give_up_replay(c);
            self.prepare(s, &statement);
            self.send_parse(s, &statement, |_| Note::Doomed(name.into()));
            return Ok(());
        }
        let undo = self.clients[c].names.parse(name, statement.clone())?;
        // Its text is good, and a server without it gets it when it is used; or this server is being asked already.
        let accepted = statement.is_accepted() && statement.scope().is_some();
        if accepted || self.servers[s].held.has(&statement) {
            if self.servers[s].may_have_failed() {
                // In a failed transaction a Parse is an error, whatever its text.
                self.try_parse(s, statement, undo);
            } else {
                self.metrics.parses_local.add(u64::from(accepted));
                self.answer(c, s, Answer::Empty(b'1'), undo);
            }
            return Ok(());
        }
        self.make_room(s);
        self.send_parse(s, &statement, |statement| Note::Parse { statement, sent_as: SentAs::Named, undo });
        Ok(())
    }

    /// The client's Parse of an unnamed statement that servers keep.
    pub(in crate::core) fn parse_shared(&mut self, c: usize, s: usize, statement: &Arc<Statement>) {
        let undo = self.names_of_parse(c, statement);
        if self.servers[s].held.uses(statement) {
            self.metrics.unnamed_shared.add(1);
            return self.answer(c, s, Answer::Empty(b'1'), undo);
        }
        self.make_room(s);
        self.send_parse(s, statement, |statement| Note::Parse { statement, sent_as: SentAs::Named, undo });
    }

    /// An unnamed statement that is too long to be kept: it can be used only until this server connection is given back.
    pub(super) fn forward_long_parse(&mut self, c: usize, s: usize) {
        let undo = self.clients[c].names.close(b"").unwrap_or_default();
        let class = Class { flags: Flags::LOCAL, ..Class::UNKNOWN };
        self.note_effects(c, s, class, true);
        let server = &mut self.servers[s];
        server.work.committing = true;
        server.held.set_unnamed(Unnamed::TooLong);
        let statement = Arc::new(Statement::unknown());
        server.protocol.sent(Request::Parse, Note::Parse { statement, sent_as: SentAs::Unnamed, undo });
        self.note_in_force(c, s, class, None);
    }

    /// Has the server parse a statement that it has, or need not have, only to learn whether it would.
    fn try_parse(&mut self, s: usize, statement: Arc<Statement>, undo: Undo) {
        self.send(s, |out| {
            message::parse(out, NOBODYS, statement.text(), statement.types());
            message::close_statement(out, NOBODYS);
        });
        let protocol = &mut self.servers[s].protocol;
        protocol.sent(Request::Parse, Note::Parse { statement, sent_as: SentAs::Tried, undo });
        protocol.sent(Request::Close, Note::CloseOwn);
    }

    /// A named statement that is too long to be kept.
    pub(super) fn too_long(&mut self, c: usize, s: usize) -> Step {
        let text = format!(
            "prepared statement is longer than max_statement_bytes ({}): raise it, or use a simple query",
            self.settings.max_statement
        );
        let protocol = &self.servers[s].protocol;
        if protocol.is_quiet() && protocol.status() == Status::Idle && self.clients[c].begun.is_none() {
            self.tell(c, |out| error(out, Sqlstate::PROGRAM_LIMIT_EXCEEDED, &text));
            if self.is_bound(c) {
                // The server hears nothing before the Sync that ends the unit.
                self.servers[s].protocol.enters_unit(true);
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

// === Bind, Execute ===

impl Core {
    pub(super) fn forward_bind(
        &mut self,
        c: usize,
        s: usize,
        (portal, name, rest): (&[u8], &[u8], &[u8]),
        bytes: &[u8],
        frame: Frame,
    ) -> Step {
        let end = frame.total().min(bytes.len());
        let whole = end == frame.total();
        if !whole && self.servers[s].may_have_failed() {
            // If its statement has to be prepared first, that is refused: not before the client has said all of it. (A long one is not
            // waited for: its client hears of the failure a little early.)
            if frame.payload <= crate::core::SMALL_MAX {
                return Step::More;
            }
        }
        let Some((server_name, statement)) = self.server_name(c, s, name) else { return Step::Blocked };
        let refused = statement.as_ref().and_then(|statement| self.refusal(s, statement.class()));
        let server_name = refused.map_or(server_name, ServerName::Refused);
        if let Some(statement) = &statement
            && !matches!(server_name, ServerName::Refused(_))
        {
            self.note_bound(c, s, statement, (portal, name, whole.then_some(rest)));
            // Its own Parse in the same unit knows better what shape it is of.
            if !name.is_empty() || self.servers[s].meter.timing.key == 0 {
                self.count_begin(c, s, !statement.id(), statement.text(), false);
            }
        } else {
            self.servers[s].portals.bind(portal, None, name, None);
        }
        if let ServerName::Sqls(_) = server_name {
            // What it does nobody knows: a write.
            self.note_effects(c, s, Class { flags: Flags::UNKNOWN, ..Class::UNKNOWN }, false);
        }
        self.servers[s].protocol.sent(
            Request::Bind,
            match server_name {
                ServerName::Refused(why) => Note::Refused(why),
                ServerName::Missing(_) => Note::Missing(name.into()),
                ServerName::Unnamed | ServerName::Own(_) | ServerName::Sqls(_) => Note::Bind(statement),
            },
        );
        let payload = frame.payload - name.len() + server_name.as_bytes().len();
        self.send(s, |out| {
            message::header(out, b'B', payload);
            out.extend_from_slice(portal);
            out.push(0);
            out.extend_from_slice(server_name.as_bytes());
            out.push(0);
            out.extend_from_slice(rest);
        });
        if !whole {
            self.clients[c].pass = Pass::forward(frame.total() - end);
        }
        Step::Used(end)
    }

    /// A client's statement is bound to a portal: what running it may do is noted, for it may be run.
    fn note_bound(
        &mut self,
        c: usize,
        s: usize,
        statement: &Arc<Statement>,
        (portal, name, values): (&[u8], &[u8], Option<&[u8]>),
    ) {
        let class = statement.class();
        let cached = || {
            let read = || self.classifier.changes(statement.text());
            Some(statement.changes(read))
        };
        let changes = self.changes_of(c, s, class, cached, statement.text());
        let changes = changes.and_then(|changes| filled(&changes, values));
        let followed = self.servers[s].portals.bind(portal, Some(statement.clone()), name, changes.clone());
        let changes = changes.filter(|_| followed);
        let pins = self.note_bound_text(c, s, class, changes.as_deref());
        // What is bound need not be executed: it may pin, but not unpin.
        self.note_effects(c, s, Class { pins, ..class }, false);
    }

    pub(super) fn forward_execute(&mut self, c: usize, s: usize, portal: &[u8], bytes: &[u8], frame: Frame) -> Step {
        let Run { statement, changes, again } = self.servers[s].portals.run(portal);
        let mut dropped = None;
        if let Some(statement) = &statement {
            let class = statement.class();
            if class.local && again && self.servers[s].protocol.status() != Status::Failed {
                // The proxy has carried it out: the server would do so now.
                self.send(s, |out| message::execute(out, NOBODYS));
                self.servers[s].protocol.sent(Request::Execute, Note::Finished(portal.into()));
                return Step::Used(frame.total());
            }
            if class.local
                && let Some(done) = self.execute_local(c, s, statement)
            {
                let (answer, undo) = done;
                self.answer(c, s, answer, undo);
                return Step::Used(frame.total());
            }
            self.note_in_force(c, s, class, changes.as_deref());
            dropped = self.drops_statements(c, s, class, statement.text());
        }
        self.servers[s].protocol.sent(Request::Execute, Note::Execute { changes, dropped });
        self.pass_on(c, s, bytes, frame)
    }

    /// A statement that drops prepared statements is run: those of the client, and of its server. None: it does not, or it is one among
    /// several, and then what it has dropped is seen when it has.
    pub(super) fn drops_statements(&mut self, c: usize, s: usize, class: Class, text: &[u8]) -> Option<Box<Dropping>> {
        let one = class.flags.has(Flags::DROPS_STATEMENTS) && !class.flags.has(Flags::MULTI);
        if !one || (class.local && self.classifier.local_command(text) != Some(Local::DeallocateAll)) {
            return None;
        }
        let names = self.clients[c].names.drop_all();
        let held = Some(self.servers[s].held.drops_all());
        Some(Box::new(Dropping { names, held }))
    }
}

// === Describe, Close ===

impl Core {
    pub(super) fn forward_describe(
        &mut self,
        c: usize,
        s: usize,
        named: Named<'_>,
        bytes: &[u8],
        frame: Frame,
    ) -> Step {
        let name = match named {
            Named::Portal(portal) => {
                self.portal_described(c, s, portal);
                self.servers[s].protocol.sent(Request::Describe, Note::Client);
                return self.pass_on(c, s, bytes, frame);
            }
            Named::Statement(name) => name,
        };
        let undo = self.clients[c].names.describe(name);
        if let Some(statement) = self.clients[c].names.get(name).cloned()
            && statement.is_outdated()
        {
            // The client is told anew. (Which of two descriptions it was told before is not kept.)
            self.clients[c].names.set_told(name, false);
            self.renew(c, name, &statement);
        }
        // (What the name stands for by then stays: the message is looked at again.)
        let Some((server_name, statement)) = self.server_name(c, s, name) else { return Step::Blocked };
        self.clients[c].names.set_told(name, true);
        self.send(s, |out| message::describe_statement(out, server_name.as_bytes()));
        let note = match (statement, server_name) {
            (_, ServerName::Refused(why)) => Note::Refused(why),
            (Some(statement), _) => {
                Note::Describe { statement, name: name.into(), schema: self.schema_version(c), undo }
            }
            (None, ServerName::Missing(_)) => Note::Missing(name.into()),
            (None, _) => Note::Client,
        };
        self.servers[s].protocol.sent(Request::Describe, note);
        Step::Used(frame.total())
    }

    pub(super) fn forward_close(&mut self, c: usize, s: usize, named: Named<'_>, bytes: &[u8], frame: Frame) -> Step {
        let name = match named {
            Named::Portal(_) => {
                self.servers[s].protocol.sent(Request::Close, Note::Client);
                return self.pass_on(c, s, bytes, frame);
            }
            Named::Statement(name) => name,
        };
        let statement = self.clients[c].names.get(name).cloned();
        if statement.is_none() && self.may_be_sqls(c, name) {
            self.servers[s].protocol.sent(Request::Close, Note::Client);
            return self.pass_on(c, s, bytes, frame);
        }
        let undo = self.clients[c].names.close(name).unwrap_or_default();
        if let Some(statement) = statement
            && statement.scope().is_none()
            && !name.is_empty()
            && self.servers[s].held.has(&statement)
        {
            // It is nobody else's: what the server has of it is of no more use.
            self.servers[s].held.loses(&statement);
            self.send(s, |out| message::close_statement(out, statement.name().as_bytes()));
            self.servers[s].protocol.sent(Request::Close, Note::Evict(statement.id()));
        }
        self.answer(c, s, Answer::Empty(b'3'), undo);
        Step::Used(frame.total())
    }

    /// The client asks for the columns of a portal, and may rely on them whenever it binds that statement again: some drivers ask only
    /// once.
    pub(in crate::core) fn portal_described(&mut self, c: usize, s: usize, portal: &[u8]) {
        let Some(portal) = self.servers[s].portals.get(portal) else { return };
        let Some(statement) = self.clients[c].names.set_told(&portal.called, true) else { return };
        if statement.columns().is_none() {
            let statement = statement.clone();
            // Portals are described with the formats that were asked for; what is compared is the statement's description.
            self.send(s, |out| message::describe_statement(out, statement.name().as_bytes()));
            self.servers[s].protocol.sent(Request::Describe, Note::Check(statement));
        }
    }
}

// === what a server has ===

impl Core {
    /// Under which name the server finds the statement that the client calls `name`, and what it is: prepared ahead, if need be.
    /// None: that has to be looked into first; the client is woken when it is.
    fn server_name(&mut self, c: usize, s: usize, name: &[u8]) -> Option<(ServerName, Option<Arc<Statement>>)> {
        let Some((statement, told)) = self.clients[c].names.get_told(name) else {
            let too_long = name.is_empty() && self.servers[s].held.unnamed() == Unnamed::TooLong;
            let server_name = match name {
                b"" if too_long => ServerName::Unnamed,
                name if self.may_be_sqls(c, name) => ServerName::Sqls(name.to_vec()),
                name => ServerName::Missing([NOBODYS, name].concat()),
            };
            return Some((server_name, None));
        };
        let statement = statement.clone();
        if name.is_empty() {
            return Some((self.unnamed_on(c, s, &statement), Some(statement)));
        }
        let outdated = || Some((ServerName::Refused(Refusal::Outdated), None));
        if told && statement.is_outdated() {
            // Servers have described it in two ways. Which of them this client was told is not kept.
            return outdated();
        }
        let Some(statement) = self.as_read_now(c, s, (name, told), statement) else { return outdated() };
        let server = &self.servers[s];
        // (In a failed transaction it would only say so too early.)
        let checks = told && statement.columns().is_some() && server.protocol.status() != Status::Failed;
        self.prepare(s, &statement);
        if checks && !self.servers[s].held.is_described(&statement) {
            // The client relies on what it was told of the columns: another Parse may have given others.
            self.send(s, |out| {
                message::describe_statement(out, statement.name().as_bytes());
                message::empty(out, b'H');
            });
            self.servers[s].protocol.sent(Request::Describe, Note::Check(statement));
            return None;
        }
        Some((ServerName::Own(statement.name()), Some(statement)))
    }

    /// The client's unnamed statement.
    fn unnamed_on(&mut self, c: usize, s: usize, statement: &Arc<Statement>) -> ServerName {
        if self.is_shared_now(c, s, statement) {
            self.prepare(s, statement);
            return ServerName::Own(statement.name());
        }
        if self.servers[s].held.unnamed() != Unnamed::Is(statement.id()) {
            self.metrics.prepares.add(1);
            self.servers[s].held.set_unnamed(Unnamed::Is(statement.id()));
            self.send(s, |out| message::parse(out, b"", statement.text(), statement.types()));
            self.servers[s].protocol.sent(Request::Parse, Note::ParseUnnamed);
        }
        ServerName::Unnamed
    }

    /// The client's statement as PostgreSQL would have it now, in this client's session. None: its columns are others now than the client was
    /// told.
    fn as_read_now(
        &mut self,
        c: usize,
        s: usize,
        (name, told): (&[u8], bool),
        statement: Arc<Statement>,
    ) -> Option<Arc<Statement>> {
        let now = self.reads(c);
        let statement = match now {
            Reads::As(_) => self.clients[c].names.settled(name).cloned().unwrap_or(statement),
            Reads::Unknown { .. } => statement,
        };
        if self.is_read_alike(c, &statement) {
            return Some(if statement.is_outdated() { self.renew(c, name, &statement) } else { statement });
        }
        let held = self.servers[s].held.has(&statement) && !statement.is_outdated();
        if held && self.servers[s].protocol.status() == Status::Failed {
            // It is not run, unless it ends the transaction: a Parse would only fail earlier than its Bind does.
            return Some(statement);
        }
        if let (Some(scope), Reads::As(reading)) = (statement.scope(), now)
            && scope.is_at(&self.pools[self.clients[c].pool].place)
            && scope.reading().differs_in_literals(reading.of(statement.text()))
            && let Some(own) = self.read_as_it_was(c, s, name, &statement, scope.reading())
        {
            return Some(own);
        }
        if held && now == (Reads::Unknown { held_are_good: true }) {
            return Some(statement);
        }
        // Names stand for something else: PostgreSQL analyses it anew.
        let fresh = self.statement_for(c, statement.text(), statement.types(), statement.class());
        if let Some(columns) = statement.columns().filter(|_| told)
            && !fresh.has_columns(columns)
        {
            return None;
        }
        let names = &mut self.clients[c].names;
        match now {
            Reads::As(_) => names.replace(name, fresh.clone()),
            Reads::Unknown { .. } => names.replace_for_now(name, fresh.clone()),
        }
        Some(fresh)
    }

    /// The client's statement as it was read when the client prepared it: PostgreSQL does not read its literals anew when `DateStyle` changes. It
    /// is parsed ahead under the parameters of then, and is this client's alone from here on. None: that can't be done.
    fn read_as_it_was(
        &mut self,
        c: usize,
        s: usize,
        name: &[u8],
        statement: &Arc<Statement>,
        reading: Reading,
    ) -> Option<Arc<Statement>> {
        let then = self.shared.registry.literals_of(reading)?;
        let server = &self.servers[s];
        if server.may_have_failed() || self.clients[c].begun.is_some() {
            return None;
        }
        let now = server.tracker.in_force.list(&self.clients[c].params)?;
        let now: Vec<_> = now.into_iter().filter(|(n, _)| sql::meaning_of(n) == sql::Meaning::Literals).collect();
        let (there, back) = (local_settings(&now, &then), local_settings(&then, &now));
        let place = &self.pools[self.clients[c].pool].place;
        let own = self.shared.registry.private(place, statement.text(), statement.types(), statement.class());
        if let Some(columns) = statement.columns() {
            own.has_columns(columns);
        }
        self.clients[c].names.replace(name, own.clone());
        self.make_room(s);
        self.metrics.prepares.add(1);
        let server = &mut self.servers[s];
        server.held.gets(&own);
        server.held.set_unnamed(Unnamed::Unknown);
        let (in_unit, in_transaction) = (server.protocol.is_in_unit(), server.is_in_transaction());
        self.send_own(s, &there, in_unit);
        self.send(s, |out| message::parse(out, own.name().as_bytes(), own.text(), own.types()));
        let note = if in_unit { Note::ParseOwn } else { Note::ParseAhead };
        self.servers[s].protocol.sent(Request::Parse, note(own.clone()));
        if in_transaction {
            self.send_own(s, &back, in_unit);
        }
        if !in_unit {
            self.end_ahead(s);
        }
        Some(own)
    }

    /// A statement of the proxy's own, ahead of a client's unit or inserted into it.
    fn send_own(&mut self, s: usize, text: &str, inserted: bool) {
        self.send(s, |out| {
            message::parse(out, b"", text.as_bytes(), b"\0\0");
            message::bind(out, b"", b"");
            message::execute(out, b"");
        });
        let protocol = &mut self.servers[s].protocol;
        for request in [Request::Parse, Request::Bind, Request::Execute] {
            protocol.sent(request, if inserted { Note::Inserted } else { Note::Ahead });
        }
    }

    fn end_ahead(&mut self, s: usize) {
        self.send(s, |out| message::empty(out, b'S'));
        self.servers[s].protocol.sent(Request::Sync, Note::Ahead);
    }

    /// A statement that the unit names first is parsed in a unit of its own, where a BEGIN follows: a Parse takes a snapshot, and then it is too
    /// late for an isolation level. `D S s; P '' "begin isolation level serializable"; B; E; S`.
    pub(super) fn prepare_before_begin(&mut self, c: usize, s: usize, message: Message<'_>) {
        let Message::Describe(Named::Statement(name)) = message else { return };
        let client = &self.clients[c];
        let server = &self.servers[s];
        let begins = client.begun.is_some() || client.unit.begins;
        let Some(statement) = client.names.get(name).filter(|_| begins && !name.is_empty()).cloned() else { return };
        let ready = server.protocol.is_quiet() && server.protocol.status() == Status::Idle;
        if !ready || server.held.has(&statement) || statement.is_outdated() || !self.is_read_alike(c, &statement) {
            return;
        }
        self.make_room(s);
        self.metrics.prepares.add(1);
        self.servers[s].held.gets(&statement);
        self.send(s, |out| message::parse(out, statement.name().as_bytes(), statement.text(), statement.types()));
        self.servers[s].protocol.sent(Request::Parse, Note::ParseAhead(statement));
        self.end_ahead(s);
    }

    /// A statement whose columns have changed is replaced by one that is parsed anew.
    fn renew(&mut self, c: usize, name: &[u8], statement: &Arc<Statement>) -> Arc<Statement> {
        let fresh = match statement.scope() {
            Some(_) => self.statement_for(c, statement.text(), statement.types(), statement.class()),
            None => {
                let place = &self.pools[self.clients[c].pool].place;
                self.shared.registry.private(place, statement.text(), statement.types(), statement.class())
            }
        };
        self.clients[c].names.replace(name, fresh.clone());
        fresh
    }

    /// Makes sure that the server has, or will have, this statement under its own name.
    pub(in crate::core) fn prepare(&mut self, s: usize, statement: &Arc<Statement>) {
        if self.servers[s].held.uses(statement) {
            return;
        }
        self.make_room(s);
        self.send_parse(s, statement, Note::ParseOwn);
    }

    /// Has the server parse a statement under its own name, for which there is room.
    fn send_parse(&mut self, s: usize, statement: &Arc<Statement>, note: impl FnOnce(Arc<Statement>) -> Note) {
        self.servers[s].held.gets(statement);
        self.metrics.prepares.add(1);
        self.send(s, |out| message::parse(out, statement.name().as_bytes(), statement.text(), statement.types()));
        self.servers[s].protocol.sent(Request::Parse, note(statement.clone()));
    }

    /// True if a statement of this name, which the client has not prepared by the protocol, may be one that it has prepared by SQL.
    fn may_be_sqls(&self, c: usize, name: &[u8]) -> bool {
        self.clients[c].pins.0 & Pins::PREPARE.0 != 0 && !name.is_empty() && !name.starts_with(StatementName::PREFIX)
    }

    /// Closes the statement that this server connection has not used for longest, if it has as many as it may.
    fn make_room(&mut self, s: usize) {
        let Some(id) = self.servers[s].held.makes_room(self.settings.prepared_per_server) else { return };
        self.send(s, |out| message::close_statement(out, StatementName::of(id).as_bytes()));
        self.servers[s].protocol.sent(Request::Close, Note::Evict(id));
    }

    /// The proxy answers a client's message when its turn comes.
    pub(in crate::core) fn answer(&mut self, c: usize, s: usize, answer: Answer, undo: Undo) {
        if self.servers[s].protocol.is_settled() {
            // Its unit is begun all the same.
            self.servers[s].protocol.enters_unit(false);
            self.clients[c].replay.answered(undo);
            self.tell(c, |out| answer.write(out));
        } else {
            let protocol = &mut self.servers[s].protocol;
            protocol.enters_unit(false);
            protocol.sent(Request::Nothing, Note::Answer { answer, undo });
        }
    }
}

/// The statement that brings a transaction's parameters from `from` to `to`, until it ends.
fn local_settings(from: &[(String, String)], to: &[(String, String)]) -> String {
    let gone = from.iter().filter(|(name, _)| !to.iter().any(|(n, _)| n == name)).map(|(name, _)| (name, None));
    let changed = to.iter().filter(|pair| !from.contains(pair)).map(|(name, value)| (name, Some(value.as_str())));
    crate::core::parameters::set_config(gone.chain(changed).map(|(name, value)| (name.as_str(), value)), true)
}
