//! A client's messages about prepared statements: rewritten to the server's names, with a Parse ahead for what the
//! server connection lacks.

use std::sync::Arc;

use sql::{Access, Class, Flags, Local, Pins};
use wire::frontend::Message;
use wire::message::{self, Status};
use wire::payload::Named;
use wire::{Frame, Sqlstate};

use super::client::{PassThrough, Step};
use super::login::error;
use crate::core::Core;
use crate::core::parameters::{Reads, filled, literals_and_back};
use crate::core::prepared::{Full, ParseSettings, Scope, Statement, StatementName, Undo, Unnamed};
use crate::core::server::{Dropping, Note, ProxyReply, Refusal, Request, Run, SentAs};

/// Pins of a session with state that changes how texts are read and that the proxy can't tell by name and value.
const OWN_READING: Pins = Pins(Pins::PARAMETERS.0 | Pins::TEMP.0 | Pins::LOAD.0 | Pins::FUNCTION.0);

/// Most statements that are closed in a server connection ahead of one that is new there.
const MOST_CLOSED: usize = 16;

/// A name under which no server has a statement: the proxy's statement names contain no `?`.
const NOBODYS: &[u8] = b"?";

/// The name that a Bind or Describe carries to the server.
enum ServerName {
    Unnamed,
    Own(StatementName),
    /// A name that no server has, so that the server gives the error.
    Missing(Vec<u8>),
    /// The client's own name: the client may have prepared the statement by SQL in this session.
    Sqls(Vec<u8>),
    /// A name that no server has: the server's error shows when it is the client's turn to get the refusal.
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
    /// Under which parameters the client's next text will be read.
    pub(super) fn reads(&self, c: usize) -> Reads {
        let client = &self.clients[c];
        if client.pins.0 & OWN_READING.0 != 0 {
            // The client keeps its connection, whose statements are dropped when the client leaves.
            return Reads::Unknown { held_are_good: true };
        }
        match client.at.server() {
            Some(s) => self.servers[s].tracker.in_force.reads(&client.params),
            None => Reads::As(client.params.parse_settings()),
        }
    }

    /// The statement for this text and these parameter types, in the scope in which the client's texts are read now.
    pub(in crate::core) fn statement_for(
        &mut self,
        c: usize,
        text: &[u8],
        types: &[u8],
        class: Class,
    ) -> Arc<Statement> {
        let namespace = &self.pools[self.clients[c].pool].namespace;
        match self.reads(c) {
            Reads::As(parse_settings) => self.statements.get(namespace, parse_settings, text, types, class),
            Reads::Unknown { .. } => self.shared.registry.private(namespace, text, types, class),
        }
    }

    /// True if the client would now read the text as it was read when `statement` was prepared. A statement that is one
    /// client's alone is always good.
    pub(super) fn is_read_alike(&self, c: usize, statement: &Statement) -> bool {
        let Some(scope) = statement.scope() else { return true };
        let namespace = &self.pools[self.clients[c].pool].namespace;
        match self.reads(c) {
            Reads::As(parse_settings) => scope == Scope::new(namespace, parse_settings.of(statement.text())),
            Reads::Unknown { .. } => false,
        }
    }

    /// The version of what texts mean to the client, as far as this process knows of changes.
    pub(in crate::core) fn schema_version(&self, c: usize) -> u64 {
        self.pools[self.clients[c].pool].namespace.version()
    }

    /// True if the proxy can answer a Describe of this statement itself.
    pub(super) fn is_described(&self, c: usize, statement: &Statement, schema: u64) -> bool {
        statement.described(self.now, schema).is_some() && self.is_read_alike(c, statement)
    }

    /// True if this unnamed statement may be kept on server connections as a named one. Never for a client that is
    /// pinned or that reads texts differently.
    pub(in crate::core) fn shares_unnamed(&self, c: usize, statement: &Statement) -> bool {
        self.settings.share_unnamed
            && statement.is_recurring()
            && self.clients[c].pins.is_empty()
            && self.is_read_alike(c, statement)
    }

    /// Like `shares_unnamed`, for this very moment. A statement that was parsed long ago can fail with 0A000 because
    /// its columns have changed, which a fresh Parse would not. So the statement must return no rows, or its unit must
    /// be one that can be sent again unnoticed.
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
        let class = self.classify_parsed(c, text);
        if class.flags.has(Flags::EXECUTES) {
            // What the text gives is settled when it is parsed.
            self.alias_in_unit(c, s, class, text, false);
        }
        let shown = self.shown_instead(c, class, text);
        let statement = match &shown {
            // For SHOW of a setting of the proxy's, the server gets another text, which is this client's alone.
            Some(instead) => {
                let namespace = &self.pools[self.clients[c].pool].namespace;
                self.shared.registry.private(namespace, instead, types, Class { local: false, ..class })
            }
            None => self.statement_for(c, text, types, class),
        };
        if shown.is_none() && self.asks_first(c, s, name, &statement) {
            return Step::Blocked;
        }
        self.count_begin(c, s, self.classifier.shape(), text, true);
        if !name.is_empty() {
            let pool = self.clients[c].pool;
            self.pools[pool].totals.client_parses += 1;
            return match self.parse_named(c, s, name, statement) {
                Ok(()) => Step::Used(frame.total()),
                Err(full) => {
                    self.fatal(c, Sqlstate::CONFIGURATION_LIMIT_EXCEEDED, &full.to_string());
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
        self.servers[s].statements.set_unnamed(Unnamed::Is(statement.id()));
        if shown.is_some() {
            self.write_server(s, |out| message::parse(out, b"", statement.text(), statement.types()));
        }
        let note = Note::Parse { statement, sent_as: SentAs::Unnamed, undo };
        self.servers[s].protocol.sent(Request::Parse, note);
        if shown.is_some() { Step::Used(frame.total()) } else { self.pass_on(c, s, bytes, frame) }
    }

    fn names_of_parse(&mut self, c: usize, statement: &Arc<Statement>) -> Undo {
        self.clients[c].names.parse_unnamed(statement.clone())
    }

    fn parse_named(&mut self, c: usize, s: usize, name: &[u8], statement: Arc<Statement>) -> Result<(), Full> {
        if self.clients[c].names.get(name).is_some() {
            // A second Parse of a name in use, `P s …; P s …`: the server gives the error at the right moment. The
            // replay is given up, because a second attempt would find the name taken by the first.
            self.give_up_replay(c);
            self.prepare(s, &statement);
            self.send_parse(s, &statement, |_| Note::Doomed(name.into()));
            return Ok(());
        }
        if self.may_be_sqls(c, name) {
            self.try_name(s, name, statement.text(), statement.types());
        }
        let undo = self.clients[c].names.parse(name, statement.clone(), self.settings.prepared_bytes)?;
        // The text is known to be good, and a server connection without the statement gets it at Bind; or this
        // connection is already parsing it.
        let accepted = statement.is_accepted() && statement.scope().is_some();
        if accepted || self.servers[s].statements.has(&statement) {
            if self.servers[s].may_have_failed() {
                // In a failed transaction every Parse is an error.
                self.try_parse(s, statement, undo);
            } else {
                self.metrics.parses_local.add(u64::from(accepted));
                self.answer(c, s, ProxyReply::Empty(b'1'), undo);
            }
            return Ok(());
        }
        self.make_room(s);
        self.send_parse(s, &statement, |statement| Note::Parse { statement, sent_as: SentAs::Named, undo });
        if statement.leaves_types_open() && !self.servers[s].may_have_failed() {
            // Other connections have to get the statement with the types that this server settles now.
            self.ask(c, s, statement.clone(), true);
        }
        Ok(())
    }

    /// A client prepares a text that servers have had for a while, and its parameters may get other types by now: a server is asked, by a Parse and a Describe in
    /// the client's unit. True if the client's Parse has to wait for the answer. An error is the client's: its own Parse would have met it.
    fn asks_first(&mut self, c: usize, s: usize, name: &[u8], statement: &Arc<Statement>) -> bool {
        let (client, server) = (&self.clients[c], &self.servers[s]);
        let now = self.pools[client.pool].namespace.snapshot(self.now);
        let known = statement.scope().is_some() && statement.is_accepted() && !statement.is_sure(now);
        let taken = !name.is_empty() && client.names.get(name).is_some();
        let free = !server.may_have_failed()
            && !server.protocol.copies_in()
            && server.statements.unnamed() != Unnamed::TooLong;
        if !known || taken || !free {
            return false;
        }
        self.metrics.parses_asked.add(1);
        let server = &mut self.servers[s];
        server.statements.set_unnamed(Unnamed::Unknown);
        server.protocol.sent(Request::Parse, Note::Inserted);
        self.write_server(s, |out| message::parse(out, b"", statement.text(), statement.types()));
        self.ask(c, s, statement.clone(), false);
        self.write_server(s, |out| message::empty(out, b'H'));
        true
    }

    /// Has the server describe what it has just parsed of the statement's text: under the statement's name if it is `held`.
    fn ask(&mut self, c: usize, s: usize, statement: Arc<Statement>, held: bool) {
        let asked = self.pools[self.clients[c].pool].namespace.snapshot(self.now);
        let name = held.then(|| statement.name());
        let name = name.as_ref().map_or(&b""[..], StatementName::as_bytes);
        self.write_server(s, |out| message::describe_statement(out, name));
        self.servers[s].protocol.sent(Request::Describe, Note::Ask { statement, held, asked });
    }

    /// Handles a client's Parse of an unnamed statement that server connections keep under a name.
    pub(in crate::core) fn parse_shared(&mut self, c: usize, s: usize, statement: &Arc<Statement>) {
        let undo = self.names_of_parse(c, statement);
        if self.servers[s].statements.uses(statement) {
            self.metrics.unnamed_shared.add(1);
            return self.answer(c, s, ProxyReply::Empty(b'1'), undo);
        }
        self.make_room(s);
        self.send_parse(s, statement, |statement| Note::Parse { statement, sent_as: SentAs::Named, undo });
    }

    /// An unnamed statement that is too long to be kept: usable only until this server connection is released.
    pub(super) fn forward_long_parse(&mut self, c: usize, s: usize) {
        let undo = self.clients[c].names.close(b"").unwrap_or_default();
        let class = Class { flags: Flags::LOCAL, ..Class::UNKNOWN };
        self.note_effects(c, s, class, true);
        let server = &mut self.servers[s];
        server.work.committing = true;
        server.statements.set_unnamed(Unnamed::TooLong);
        let statement = Arc::new(Statement::unknown());
        server.protocol.sent(Request::Parse, Note::Parse { statement, sent_as: SentAs::Unnamed, undo });
        self.note_in_force(c, s, class, None);
    }

    /// Has the server parse a statement under a name that is closed at once, only to learn whether the transaction has
    /// failed.
    fn try_parse(&mut self, s: usize, statement: Arc<Statement>, undo: Undo) {
        self.write_server(s, |out| {
            message::parse(out, NOBODYS, statement.text(), statement.types());
            message::close_statement(out, NOBODYS);
        });
        let protocol = &mut self.servers[s].protocol;
        protocol.sent(Request::Parse, Note::Parse { statement, sent_as: SentAs::Tried, undo });
        protocol.sent(Request::Close, Note::CloseOwn);
    }

    /// Refuses a named statement that is too long to be kept.
    pub(super) fn too_long(&mut self, c: usize, s: usize) -> Step {
        let text = format!(
            "prepared statement is longer than max_statement_bytes ({}): raise it, or use a simple query",
            self.settings.max_statement
        );
        let protocol = &self.servers[s].protocol;
        if protocol.is_quiet() && protocol.status() == Status::Idle && self.clients[c].begun.is_none() {
            self.write_client(c, |out| error(out, Sqlstate::PROGRAM_LIMIT_EXCEEDED, &text));
            if self.is_bound(c) {
                // The server gets nothing before the Sync that ends the unit.
                self.servers[s].protocol.enters_unit(true);
                return Step::Again;
            }
            self.clients[c].unit.reset();
            self.clients[c].skipping = true;
            let token = self.clients[c].token;
            self.release(s);
            return if self.is_client(token) { Step::Again } else { Step::Gone };
        }
        // In a transaction, or behind other messages, an error from the proxy would leave the server in another state
        // than the client believes: the connection is closed.
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
            // If the statement has to be parsed first, the failed transaction makes that fail; so the Bind is awaited
            // whole. (A long Bind is not: its client gets the error a little early.)
            if frame.payload <= crate::core::SMALL_MAX {
                return Step::More;
            }
        }
        let Some((server_name, statement)) = self.server_name(c, s, name) else { return Step::Blocked };
        let by_rule = match (&statement, &server_name) {
            (Some(statement), _) => {
                let class = self.class_with_executed(c, statement.class(), statement.text());
                self.admit_sent(c, s, (class, !statement.id(), statement.text()))
            }
            // A statement of SQL's PREPARE may do anything.
            (None, ServerName::Sqls(_)) => self.admit_sent(c, s, (Class::UNKNOWN, 0, b"")),
            (None, _) => None,
        };
        let of_class = || {
            let statement = statement.as_ref()?;
            self.refusal(s, self.class_with_executed(c, statement.class(), statement.text()))
        };
        let refused = by_rule.or_else(of_class);
        let server_name = refused.map_or(server_name, ServerName::Refused);
        if let Some(statement) = &statement
            && !matches!(server_name, ServerName::Refused(_))
        {
            self.note_bound(c, s, statement, (portal, name, whole.then_some(rest)));
            // If the same unit has a Parse of the statement, the shape is known from there.
            if !name.is_empty() || self.servers[s].meter.timing.key == 0 {
                self.count_begin(c, s, !statement.id(), statement.text(), false);
            }
        } else {
            let unit = self.servers[s].protocol.unit();
            self.servers[s].portals.bind((unit, portal), None, name, None);
        }
        if let ServerName::Sqls(_) = server_name {
            // A statement of SQL's PREPARE may do anything: counts as a write.
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
        if matches!(server_name, ServerName::Own(_)) {
            self.count_bind(s);
        }
        let payload = frame.payload - name.len() + server_name.as_bytes().len();
        self.write_server(s, |out| {
            message::header(out, b'B', payload);
            out.extend_from_slice(portal);
            out.push(0);
            out.extend_from_slice(server_name.as_bytes());
            out.push(0);
            out.extend_from_slice(rest);
        });
        if !whole {
            self.clients[c].pass_through = PassThrough::forward(frame.total() - end, true);
        }
        Step::Used(end)
    }

    /// A statement is bound to a portal: notes what running it may do, since it may be run.
    fn note_bound(
        &mut self,
        c: usize,
        s: usize,
        statement: &Arc<Statement>,
        (portal, name, values): (&[u8], &[u8], Option<&[u8]>),
    ) {
        let class = self.class_with_executed(c, statement.class(), statement.text());
        let cached = || {
            let read = || self.classifier.changes(statement.text());
            Some(statement.changes(read))
        };
        let changes = self.changes_of(c, s, class, cached, statement.text());
        let changes = changes.and_then(|changes| filled(&changes, values));
        let unit = self.servers[s].protocol.unit();
        let followed = self.servers[s].portals.bind((unit, portal), Some(statement.clone()), name, changes.clone());
        let changes = changes.filter(|_| followed);
        let pins = self.note_bound_text(c, s, class, changes.as_deref());
        // A portal that is bound need not be run: it may pin the client, but not unpin it.
        self.note_effects(c, s, Class { pins, ..class }, false);
    }

    pub(super) fn forward_execute(&mut self, c: usize, s: usize, portal: &[u8], bytes: &[u8], frame: Frame) -> Step {
        if self.waits_for_end(s, portal) {
            return Step::Blocked;
        }
        let Run { statement, changes, has_run } = self.servers[s].portals.run(portal);
        let mut dropped = None;
        if let Some(statement) = &statement {
            let class = statement.class();
            if class.local && has_run && !self.servers[s].protocol.is_failed() {
                // The proxy has run this portal to its end. A second Execute is an error, which the server gives.
                self.write_server(s, |out| message::execute(out, NOBODYS));
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
            if class.flags.has(Flags::NAMES) {
                self.alias_in_unit(c, s, class, statement.text(), true);
            }
            let class = self.class_with_executed(c, class, statement.text());
            self.note_in_force(c, s, class, changes.as_deref());
            dropped = self.drops_statements(c, s, class, statement.text());
        }
        let runs_nothing = statement.is_some_and(|statement| statement.class().flags.has(Flags::EMPTY));
        if !runs_nothing {
            self.servers[s].protocol.recovers();
        }
        self.servers[s].protocol.sent(Request::Execute, Note::Execute { changes, dropped });
        self.pass_on(c, s, bytes, frame)
    }

    /// True if the portal runs what the proxy carries out by itself, and the end of an earlier unit decides what comes of it: the unit in which
    /// the portal was bound, whose end may have ended the transaction and the portal with it (`P '' "deallocate s"; B '' ''; S; E ''`); or one
    /// that may end a failed transaction (`B '' rollback; E ''; S; B '' deallocate; E ''`).
    fn waits_for_end(&self, s: usize, portal: &[u8]) -> bool {
        let server = &self.servers[s];
        let Some(portal) = server.portals.get(portal) else { return false };
        let carries_out = |class: Class| class.local || class.flags.has(Flags::DROPS_STATEMENTS);
        portal.statement.as_ref().is_some_and(|statement| carries_out(statement.class()))
            && (portal.unit < server.protocol.unit() && !server.protocol.has_ended(portal.unit)
                || server.protocol.is_failed() && server.protocol.owes_end())
    }

    /// A statement that drops prepared statements (DEALLOCATE ALL, DISCARD ALL) is run: drops them from the client's
    /// names and the server connection's. `None`: it drops none, or it is one of several in its text; then its effect
    /// is seen in the answer.
    pub(super) fn drops_statements(&mut self, c: usize, s: usize, class: Class, text: &[u8]) -> Option<Box<Dropping>> {
        let one = class.flags.has(Flags::DROPS_STATEMENTS) && !class.flags.has(Flags::MULTI);
        if !one || (class.local && self.classifier.local_command(text) != Some(Local::DeallocateAll)) {
            return None;
        }
        let names = self.clients[c].names.drop_all();
        let statements = Some(self.servers[s].statements.drops_all());
        Some(Box::new(Dropping { names, statements }))
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
            // The client gets a new description. (Which of several descriptions it was told before is not kept.)
            self.clients[c].names.set_told(name, false);
            self.renew(c, name, &statement);
        }
        // (If the message has to wait and is looked at again, the name already stands for the new statement.)
        let Some((server_name, statement)) = self.server_name(c, s, name) else { return Step::Blocked };
        self.clients[c].names.set_told(name, true);
        self.write_server(s, |out| message::describe_statement(out, server_name.as_bytes()));
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
            && self.servers[s].statements.has(&statement)
        {
            // No other client uses the statement: the server connection can drop it.
            self.servers[s].statements.loses(&statement);
            self.write_server(s, |out| message::close_statement(out, statement.name().as_bytes()));
            self.servers[s].protocol.sent(Request::Close, Note::Evict(statement.id()));
        }
        self.answer(c, s, ProxyReply::Empty(b'3'), undo);
        Step::Used(frame.total())
    }

    /// The client asks for the columns of a portal. It may rely on the answer whenever it binds that statement again:
    /// some drivers describe only once.
    pub(in crate::core) fn portal_described(&mut self, c: usize, s: usize, portal: &[u8]) {
        let Some(portal) = self.servers[s].portals.get(portal) else { return };
        let Some(statement) = self.clients[c].names.set_told(&portal.called, true) else { return };
        // In a failed transaction PostgreSQL describes only what returns no rows, and the proxy's own Describe would fail first.
        if statement.columns().is_none() && !self.servers[s].protocol.is_failed() {
            let statement = statement.clone();
            // A portal's description depends on its result formats; the statement's own description is the one to
            // compare.
            self.write_server(s, |out| message::describe_statement(out, statement.name().as_bytes()));
            self.servers[s].protocol.sent(Request::Describe, Note::Check(statement));
        }
    }
}

// === what a server has ===

impl Core {
    /// The name under which this server connection knows (or will know) the statement that the client calls `name`, and
    /// the statement. A Parse is sent ahead if need be. `None`: the statement's columns have to be checked first; the
    /// client is woken by the answer.
    fn server_name(&mut self, c: usize, s: usize, name: &[u8]) -> Option<(ServerName, Option<Arc<Statement>>)> {
        let Some((statement, told)) = self.clients[c].names.get_told(name) else {
            let too_long = name.is_empty() && self.servers[s].statements.unnamed() == Unnamed::TooLong;
            let server_name = match name {
                b"" if too_long => ServerName::Unnamed,
                name if self.may_be_sqls(c, name) => ServerName::Sqls(name.to_vec()),
                name => ServerName::Missing([NOBODYS, name].concat()),
            };
            return Some((server_name, None));
        };
        let statement = statement.clone();
        if statement.class().flags.has(Flags::EXECUTES) {
            self.alias_in_unit(c, s, statement.class(), statement.text(), false);
        }
        if name.is_empty() {
            return Some((self.unnamed_on(c, s, &statement), Some(statement)));
        }
        let outdated = || Some((ServerName::Refused(Refusal::Outdated), None));
        if told && statement.is_outdated() {
            // Servers have described the statement in two ways, and which one this client was told is not kept.
            return outdated();
        }
        let Some(statement) = self.as_read_now(c, s, (name, told), statement) else { return outdated() };
        let server = &self.servers[s];
        // (In a failed transaction the Describe would fail before the client's own message does.)
        let checks = told && statement.columns().is_some() && !server.protocol.is_failed();
        self.prepare(s, &statement);
        if checks && !self.servers[s].statements.is_described(&statement) {
            // The client relies on the columns that it was told; the Parse on this connection may have found others.
            self.write_server(s, |out| {
                message::describe_statement(out, statement.name().as_bytes());
                message::empty(out, b'H');
            });
            self.servers[s].protocol.sent(Request::Describe, Note::Check(statement));
            return None;
        }
        Some((ServerName::Own(statement.name()), Some(statement)))
    }

    /// The name for the client's unnamed statement on this server connection, with a Parse ahead if the connection has
    /// another.
    fn unnamed_on(&mut self, c: usize, s: usize, statement: &Arc<Statement>) -> ServerName {
        if self.is_shared_now(c, s, statement) {
            self.prepare(s, statement);
            return ServerName::Own(statement.name());
        }
        if self.servers[s].statements.unnamed() != Unnamed::Is(statement.id()) {
            if let Some(then) = self.literals_as_of(c, statement)
                && self.prepare_as_of(c, s, statement, then)
            {
                return ServerName::Own(statement.name());
            }
            self.metrics.prepares.add(1);
            self.servers[s].statements.set_unnamed(Unnamed::Is(statement.id()));
            self.write_server(s, |out| message::parse(out, b"", statement.text(), statement.settled_types()));
            self.servers[s].protocol.sent(Request::Parse, Note::ParseUnnamed);
        }
        ServerName::Unnamed
    }

    /// The client's statement as PostgreSQL would have it now, under the parameters in force. `None`: its columns
    /// differ from what the client was told.
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
        let held = self.servers[s].statements.has(&statement) && !statement.is_outdated();
        if held && self.servers[s].protocol.is_failed() {
            // Only a statement that ends the transaction is run here; a Parse would fail earlier than the Bind should.
            return Some(statement);
        }
        if let Some(then) = self.literals_as_of(c, &statement) {
            let statement = if statement.is_outdated() {
                let namespace = &self.pools[self.clients[c].pool].namespace;
                let (text, types, class) = (statement.text(), statement.types(), statement.class());
                let fresh = self.statements.get(namespace, then, text, types, class);
                self.clients[c].names.replace(name, fresh.clone());
                fresh
            } else {
                statement.clone()
            };
            if self.prepare_as_of(c, s, &statement, then) {
                return Some(statement);
            }
        }
        if held && now == (Reads::Unknown { held_are_good: true }) {
            return Some(statement);
        }
        // The names in the text stand for other objects now: PostgreSQL would analyse the text again, and keep the types of parameters.
        let fresh = self.statement_for(c, statement.text(), statement.settled_types(), statement.class());
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

    /// The parse settings under which the statement was prepared, if the client has changed since then how literals are read, and nothing else, or
    /// may have: PostgreSQL does not read literals again when `DateStyle` changes.
    fn literals_as_of(&self, c: usize, statement: &Statement) -> Option<ParseSettings> {
        let scope = statement.scope().filter(|scope| scope.is_at(&self.pools[self.clients[c].pool].namespace))?;
        let then = scope.parse_settings();
        let differs = match self.reads(c) {
            Reads::As(now) => then.differs_in_literals(now.of(statement.text())),
            // No other client gets this server connection with the statement, whatever its names stand for here.
            Reads::Unknown { held_are_good } => held_are_good && sql::has_literal(statement.text()),
        };
        differs.then_some(then)
    }

    /// Makes sure that the server connection has this statement, or will have it before the next message, parsed under the literals'
    /// parameters of `then`, which is the statement's own settings: `SELECT set_config('DateStyle', 'ISO, MDY', true)`, Parse, and back. Values that
    /// the proxy does not know are kept by the server meanwhile. False: not possible now.
    fn prepare_as_of(&mut self, c: usize, s: usize, statement: &Arc<Statement>, then: ParseSettings) -> bool {
        let server = &mut self.servers[s];
        if server.statements.uses(statement) {
            server.statements.runs_outside(statement);
            server.cleaning.outside = true;
            return true;
        }
        let server = &self.servers[s];
        if server.may_have_failed() || self.clients[c].begun.is_some() {
            return false;
        }
        let Some((there, back)) = self.there_and_back(c, s, then) else { return false };
        self.make_room(s);
        let server = &mut self.servers[s];
        server.statements.set_unnamed(Unnamed::Unknown);
        let (in_unit, in_transaction) = (server.protocol.is_in_unit(), server.is_in_transaction());
        self.send_own(s, &there, in_unit);
        self.send_parse(s, statement, if in_unit { Note::ParseOwn } else { Note::ParseAhead });
        if in_transaction {
            self.send_own(s, &back, in_unit);
        }
        if !in_unit {
            self.end_ahead(s);
        }
        true
    }

    /// Returns the statements around a Parse of the client's statement: they set the literals' parameters to those that it was prepared under, and
    /// back. `None`: they are the same.
    pub(super) fn literals_around(&self, c: usize, s: usize, statement: &Statement) -> Option<(String, String)> {
        self.literals_as_of(c, statement).and_then(|then| self.there_and_back(c, s, then))
    }

    /// Returns the statements that set the literals' parameters to those of `then`, and back.
    fn there_and_back(&self, c: usize, s: usize, then: ParseSettings) -> Option<(String, String)> {
        let then = self.shared.registry.literals_of(then)?;
        let now = match self.reads(c) {
            Reads::As(_) => self.servers[s].tracker.in_force.list(&self.clients[c].params),
            Reads::Unknown { .. } => None,
        };
        Some(match now {
            Some(mut now) => {
                now.retain(|(name, _)| sql::meaning_of(name) == sql::Meaning::Literals);
                (local_settings(&now, &then), local_settings(&then, &now))
            }
            None => literals_and_back(&then),
        })
    }

    /// Sends a statement of the proxy's, in a unit ahead of the client's, or (`inserted`) within the client's.
    pub(super) fn send_own(&mut self, s: usize, text: &str, inserted: bool) {
        self.write_server(s, |out| {
            message::parse(out, b"", text.as_bytes(), b"\0\0");
            message::bind(out, b"", b"");
            message::execute(out, b"");
        });
        let protocol = &mut self.servers[s].protocol;
        for request in [Request::Parse, Request::Bind, Request::Execute] {
            protocol.sent(request, if inserted { Note::Inserted } else { Note::Ahead });
        }
    }

    pub(super) fn end_ahead(&mut self, s: usize) {
        self.write_server(s, |out| message::empty(out, b'S'));
        self.servers[s].protocol.sent(Request::Sync, Note::Ahead);
    }

    /// Parses the statement that a unit describes first in a separate unit ahead, if a BEGIN follows. A Parse takes a
    /// snapshot, behind which no isolation level can be set: `D S s; P '' "begin isolation level serializable"; B; E;
    /// S`.
    pub(super) fn prepare_before_begin(&mut self, c: usize, s: usize, message: Message<'_>) {
        let Message::Describe(Named::Statement(name)) = message else { return };
        let client = &self.clients[c];
        let server = &self.servers[s];
        let begins = (client.begun.is_some() && !client.unit.early) || client.unit.begins;
        let Some(statement) = client.names.get(name).filter(|_| begins && !name.is_empty()).cloned() else { return };
        let executes = statement.class().flags.has(Flags::EXECUTES);
        let ready = server.protocol.is_quiet() && server.protocol.status() == Status::Idle && !executes;
        if !ready || server.statements.has(&statement) || statement.is_outdated() || !self.is_read_alike(c, &statement)
        {
            return;
        }
        self.make_room(s);
        self.count_prepare(s);
        self.servers[s].statements.gets(&statement);
        self.write_server(s, |out| {
            message::parse(out, statement.name().as_bytes(), statement.text(), statement.settled_types());
        });
        self.servers[s].protocol.sent(Request::Parse, Note::ParseAhead(statement));
        self.end_ahead(s);
    }

    /// Replaces a statement whose columns have changed by one that will be parsed anew.
    fn renew(&mut self, c: usize, name: &[u8], statement: &Arc<Statement>) -> Arc<Statement> {
        let fresh = match statement.scope() {
            Some(_) => self.statement_for(c, statement.text(), statement.types(), statement.class()),
            None => {
                let namespace = &self.pools[self.clients[c].pool].namespace;
                self.shared.registry.private(namespace, statement.text(), statement.types(), statement.class())
            }
        };
        self.clients[c].names.replace(name, fresh.clone());
        fresh
    }

    /// Counts a statement that is prepared on a server under a name.
    fn count_prepare(&mut self, s: usize) {
        self.metrics.prepares.add(1);
        self.pools[self.servers[s].pool].totals.server_parses += 1;
    }

    /// Counts a Bind of a statement that the server keeps under a name.
    pub(in crate::core) fn count_bind(&mut self, s: usize) {
        self.pools[self.servers[s].pool].totals.binds += 1;
    }

    /// Makes sure that the server connection has this statement, or will have it before the next message.
    pub(in crate::core) fn prepare(&mut self, s: usize, statement: &Arc<Statement>) {
        if self.servers[s].statements.uses(statement) {
            return;
        }
        self.make_room(s);
        self.send_parse(s, statement, Note::ParseOwn);
    }

    /// Sends a Parse of the statement under its server name. The caller has made room.
    fn send_parse(&mut self, s: usize, statement: &Arc<Statement>, note: impl FnOnce(Arc<Statement>) -> Note) {
        self.servers[s].statements.gets(statement);
        self.count_prepare(s);
        self.write_server(s, |out| {
            message::parse(out, statement.name().as_bytes(), statement.text(), statement.settled_types());
        });
        self.servers[s].protocol.sent(Request::Parse, note(statement.clone()));
    }

    /// True if the client, which has no statement `name` by the protocol, may have prepared one by SQL.
    fn may_be_sqls(&self, c: usize, name: &[u8]) -> bool {
        self.clients[c].pins.0 & Pins::PREPARE.0 != 0 && !name.is_empty() && !StatementName::is_like(name)
    }

    /// Closes the server connection's least recently used statement if it has as many as it may; more of them, some at a time, if the limit was
    /// lowered since.
    fn make_room(&mut self, s: usize) {
        for _ in 0..MOST_CLOSED {
            let Some(id) = self.servers[s].statements.makes_room(self.settings.prepared_per_server) else { return };
            self.write_server(s, |out| message::close_statement(out, StatementName::of(id).as_bytes()));
            self.servers[s].protocol.sent(Request::Close, Note::Evict(id));
        }
    }

    /// Sends the proxy's own answer to a client's message, when all answers before it have been sent.
    pub(in crate::core) fn answer(&mut self, c: usize, s: usize, answer: ProxyReply, undo: Undo) {
        if self.servers[s].protocol.is_settled() {
            // The message begins a unit, though nothing was sent to the server.
            self.servers[s].protocol.enters_unit(false);
            self.clients[c].replay.answered(undo);
            self.write_client(c, |out| answer.write(out));
        } else {
            let protocol = &mut self.servers[s].protocol;
            protocol.enters_unit(false);
            protocol.sent(Request::Nothing, Note::Answer { answer, undo });
        }
    }
}

/// A statement that changes the parameters from `from` to `to`, until the transaction ends.
fn local_settings(from: &[(String, String)], to: &[(String, String)]) -> String {
    let gone = from.iter().filter(|(name, _)| !to.iter().any(|(n, _)| n == name)).map(|(name, _)| (name, None));
    let changed = to.iter().filter(|pair| !from.contains(pair)).map(|(name, value)| (name, Some(value.as_str())));
    crate::core::parameters::set_config(gone.chain(changed).map(|(name, value)| (name.as_str(), value)), true)
}
