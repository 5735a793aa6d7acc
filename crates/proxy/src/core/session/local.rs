//! Answers of the proxy without a server: units that need none, and statements about the proxy's own state.
//!
//! `DEALLOCATE s` of a statement that was prepared by the protocol is answered here, because servers know the statement
//! under another name. So are `SET kingpost.…` and `SHOW kingpost.…`. All take effect at once, and a rollback does not
//! undo them.

use std::sync::Arc;

use sql::{Class, Flags, Hint, Local, Pins};
use wire::frontend::Message;
use wire::message::Status;
use wire::payload::Named;
use wire::{Frame, Sqlstate, message};

use super::client::{Attempts, PassThrough, ReadBound, Step, Unit};
use super::login::error;
use crate::config::{Consistency, RouteTo, TransactionReads};
use crate::core::Core;
use crate::core::prepared::{NAME_MAX, Statement, Undo};
use crate::core::server::{Note, ProxyReply, Request};

/// Length in bytes up to which a name in SQL is certainly not cut: PostgreSQL cuts before a character, of at most four bytes.
const NAME_UNCUT: usize = NAME_MAX - 4;

/// The result of a statement about the proxy's own state.
enum Outcome {
    /// The statement is done; the command's tag, and how to undo the change of the client's names.
    Done(&'static str, Undo),
    /// The statement shows a value: the column's name, and the value.
    Shows(String, &'static str),
    /// The statement shows the primary's WAL position, for which the primary is asked.
    ShowsToken,
    /// The statement is invalid; the error's text.
    Fails(String),
    /// A server has to answer the statement.
    Servers,
}

impl Core {
    /// Answers a message of a unit that needs no server.
    pub(super) fn local_message(&mut self, c: usize, bytes: &[u8], frame: Frame) -> Step {
        // The messages of a unit are handled only when the whole unit has arrived.
        let Ok(Some(message)) = Message::read(frame, bytes) else { return Step::More };
        if bytes.len() < frame.total() {
            return Step::More;
        }
        match message {
            Message::Query { text } => return self.local_query(c, text, frame),
            Message::Parse { name, text, types } => {
                let class = self.classify(c, text);
                let statement = self.statement_for(c, text, types, class);
                let names = &mut self.clients[c].names;
                if names.get(name).is_some() && !name.is_empty() {
                    let text = format!("prepared statement {:?} already exists", String::from_utf8_lossy(name));
                    return self.fail_local(c, Sqlstate::DUPLICATE_STATEMENT, &text, frame);
                }
                if let Err(full) = names.parse(name, statement, self.settings.prepared_bytes) {
                    self.fatal(c, Sqlstate::CONFIGURATION_LIMIT_EXCEEDED, &full.to_string());
                    return Step::Gone;
                }
                self.metrics.parses_local.add(1);
                let pool = self.clients[c].pool;
                self.pools[pool].totals.client_parses += u64::from(!name.is_empty());
                self.write_client(c, |out| message::empty(out, b'1'));
            }
            Message::Describe(named) => {
                let name = match named {
                    Named::Statement(name) => name,
                    Named::Portal(_) => b"",
                };
                let schema = self.schema_version(c);
                let statement = self.clients[c].names.get(name);
                let Some(described) = statement.and_then(|s| s.described(self.now, schema)) else {
                    // The description has become outdated since the unit was looked at: the rest of the unit is looked
                    // at again.
                    self.clients[c].unit.reset();
                    return Step::Again;
                };
                self.clients[c].names.set_told(name, true);
                self.metrics.describes_local.add(1);
                self.write_client(c, |out| out.extend_from_slice(&described.messages));
            }
            Message::Close(named) => {
                if let Named::Statement(name) = named {
                    self.clients[c].names.close(name);
                }
                self.write_client(c, |out| message::empty(out, b'3'));
            }
            Message::Sync => {
                let client = &mut self.clients[c];
                client.unit.reset();
                client.attempts = Attempts::default();
                self.ready(c);
            }
            // Nothing to send: every message before Flush has been answered.
            Message::Flush => self.clients[c].unit.reset(),
            // `scan` sends units with these messages to a server; should one come here, the rest of the unit is looked
            // at again.
            Message::Bind { .. } | Message::Execute { .. } | Message::FunctionCall => self.clients[c].unit.reset(),
            Message::CopyData | Message::CopyDone | Message::CopyFail | Message::Terminate => {}
        }
        Step::Used(frame.total())
    }

    fn fail_local(&mut self, c: usize, code: Sqlstate, text: &str, frame: Frame) -> Step {
        self.write_client(c, |out| error(out, code, text));
        let client = &mut self.clients[c];
        client.unit.reset();
        client.skipping = true;
        Step::Used(frame.total())
    }

    // --- by a client without a server ---

    fn local_query(&mut self, c: usize, text: &[u8], frame: Frame) -> Step {
        let shows_token = match self.carry_out(c, text, true) {
            Outcome::Servers => false,
            Outcome::ShowsToken => true,
            done => {
                self.tell_local(c, done);
                self.clients[c].names.query();
                self.clients[c].unit.reset();
                self.ready(c);
                return Step::Used(frame.total());
            }
        };
        let unit = &mut self.clients[c].unit;
        **unit = Unit::default();
        let flags = if shows_token { Flags(0) } else { Flags::NAMES };
        unit.query = Some(Class { local: shows_token, flags, ..Class::UNKNOWN });
        unit.scanned = frame.total();
        unit.end = b'Q';
        unit.whole = true;
        unit.read = false;
        unit.writes_nothing = false;
        unit.repeatable = false;
        unit.needs_server = true;
        let request = self.node_request(c);
        if self.acquire(c, request) { Step::Again } else { Step::Blocked }
    }

    fn tell_local(&mut self, c: usize, done: Outcome) {
        match done {
            Outcome::Done(tag, _) => self.write_client(c, |out| message::complete(out, tag)),
            Outcome::Shows(column, value) => self.write_client(c, |out| {
                message::text_row(out, &[(&column, value)]);
                message::complete(out, "SHOW");
            }),
            Outcome::Fails(text) => {
                self.write_client(c, |out| error(out, Sqlstate::INVALID_PARAMETER_VALUE, &text));
                self.fail_begun(c);
            }
            Outcome::ShowsToken | Outcome::Servers => {}
        }
    }

    // --- by a client with a server ---

    /// Answers a Query of a client that holds a server connection, if the proxy can. `None`: the Query goes to the
    /// server.
    pub(super) fn forward_local(
        &mut self,
        c: usize,
        s: usize,
        class: Class,
        text: &[u8],
        frame: Frame,
    ) -> Option<Step> {
        if !class.local {
            return None;
        }
        let protocol = &self.servers[s].protocol;
        if protocol.is_in_unit() {
            // Inside a unit of the extended protocol the server has to answer.
            return None;
        }
        if !protocol.is_settled() {
            // Answers that the server owes come first. They may also end a failed transaction: `Q "rollback"; Q "deallocate s"`.
            return Some(Step::Blocked);
        }
        if protocol.is_failed() {
            // In a failed transaction, too, the server has to answer.
            return None;
        }
        let status = protocol.status();
        match self.carry_out(c, text, true) {
            Outcome::Servers => None,
            Outcome::ShowsToken => {
                let text = ReadBound::token_query(self.view.term);
                self.begin(c, s);
                let undo = self.names_of_query(c, s);
                self.servers[s].ends_unit(Request::Query, |timing| Note::Query {
                    changes: None,
                    undo,
                    dropped: None,
                    timing,
                });
                self.end_unit(c);
                self.write_server(s, |out| message::query(out, &text));
                Some(Step::Used(frame.total()))
            }
            Outcome::Fails(text) if status == Status::Transaction || self.clients[c].begun.is_some() => {
                // The open transaction has to fail, too, and only the server can make it fail.
                Some(self.fail_in_transaction(c, s, &text, frame))
            }
            done => {
                self.tell_local(c, done);
                self.clients[c].names.query();
                self.clients[c].unit.reset();
                let status = if self.clients[c].begun.is_some() { Status::Transaction } else { status };
                self.write_client(c, |out| message::ready(out, status));
                self.pending_notifications.look_again_for(&self.clients[c]);
                Some(Step::Used(frame.total()))
            }
        }
    }

    /// Reports an invalid statement about the proxy's own state, and has the server fail the open transaction.
    fn fail_in_transaction(&mut self, c: usize, s: usize, text: &str, frame: Frame) -> Step {
        let mut error_message = Vec::new();
        error(&mut error_message, Sqlstate::INVALID_PARAMETER_VALUE, text);
        self.begin(c, s);
        let undo = self.names_of_query(c, s);
        self.give_up_replay(c);
        self.servers[s].ends_unit(Request::Query, |timing| Note::FailedQuery {
            error: error_message.into(),
            undo,
            timing,
        });
        self.end_unit(c);
        self.write_server(s, |out| message::query(out, "refused by kingpost: not a setting of kingpost's"));
        Step::Used(frame.total())
    }

    /// Carries out an Execute of a statement about the proxy's own state. Gives the answer, and how to undo it. `None`:
    /// the server runs the statement.
    pub(super) fn execute_local(
        &mut self,
        c: usize,
        s: usize,
        statement: &Arc<Statement>,
    ) -> Option<(ProxyReply, Undo)> {
        if self.servers[s].protocol.is_failed() {
            return None;
        }
        match self.carry_out(c, statement.text(), false) {
            Outcome::Done(tag, undo) => Some((ProxyReply::Complete(tag), undo)),
            // For a SHOW, Parse has sent the server another text. An invalid statement is refused by the server.
            Outcome::Shows(..) | Outcome::ShowsToken | Outcome::Fails(_) | Outcome::Servers => None,
        }
    }

    /// Returns the text that a server gets in place of `SHOW kingpost.…` in the extended protocol. `None`: `text` itself.
    pub(super) fn shown_instead(&self, c: usize, class: Class, text: &[u8]) -> Option<Vec<u8>> {
        if !class.local {
            return None;
        }
        let Some(Local::Show(name)) = self.classifier.local_command(text) else { return None };
        if name == "token" {
            return Some(ReadBound::token_query(self.view.term).into_bytes());
        }
        let value = self.setting(c, &name)?;
        Some(format!("SELECT '{value}'::pg_catalog.text AS \"kingpost.{name}\"").into_bytes())
    }

    // --- effects ---

    /// Carries out a statement about the proxy's own state. `is_query`: the client gets the notices of its parse, too.
    fn carry_out(&mut self, c: usize, text: &[u8], is_query: bool) -> Outcome {
        let Some(command) = self.classifier.local_command(text) else { return Outcome::Servers };
        let client = &mut self.clients[c];
        let resets = text.trim_ascii_start().get(..5).is_some_and(|word| word.eq_ignore_ascii_case(b"reset"));
        let tag = if resets { "RESET" } else { "SET" };
        match command {
            // The server gives the notice that the name is cut.
            Local::Deallocate(name) if is_query && name.len() > NAME_UNCUT => Outcome::Servers,
            Local::Deallocate(name) => match client.names.close(name.as_bytes()).filter(|_| !name.is_empty()) {
                Some(undo) => Outcome::Done("DEALLOCATE", undo),
                // No such name from the protocol: SQL's PREPARE made the statement, or there is none.
                None => Outcome::Servers,
            },
            Local::DeallocateAll if client.pins.0 & Pins::PREPARE.0 != 0 => Outcome::Servers,
            Local::DeallocateAll => Outcome::Done("DEALLOCATE ALL", client.names.drop_all()),
            Local::Route(route) => {
                client.route = route.map(|hint| match hint {
                    Hint::Primary => RouteTo::Primary,
                    Hint::Replica => RouteTo::Replica,
                    Hint::Auto => RouteTo::Auto,
                });
                Outcome::Done(tag, Undo::Nothing)
            }
            Local::Consistency(value) => {
                client.consistency = match value.as_deref() {
                    None => None,
                    Some("eventual") => Some(Consistency::Eventual),
                    Some("session") => Some(Consistency::Session),
                    Some("strong") => Some(Consistency::Strong),
                    Some(other) => {
                        return Outcome::Fails(format!(
                            "kingpost.consistency: {other:?} is not one of 'eventual', 'session', 'strong'"
                        ));
                    }
                };
                Outcome::Done(tag, Undo::Nothing)
            }
            Local::TransactionReads(value) => {
                client.transaction_reads = match value.as_deref() {
                    None => None,
                    Some("primary") => Some(TransactionReads::Primary),
                    Some("replica") => Some(TransactionReads::Replica),
                    Some(other) => {
                        return Outcome::Fails(format!(
                            "kingpost.transaction_reads: {other:?} is not one of 'primary', 'replica'"
                        ));
                    }
                };
                Outcome::Done(tag, Undo::Nothing)
            }
            Local::Token(None) => Outcome::Done(tag, Undo::Nothing),
            Local::Token(Some(token)) => match ReadBound::from_token(&token) {
                Some(read_bound) => {
                    self.must_see(c, read_bound);
                    Outcome::Done(tag, Undo::Nothing)
                }
                None => Outcome::Fails(format!("kingpost.token: {token:?} is not what SHOW kingpost.token says")),
            },
            // Only the primary knows its position.
            Local::Show(name) if name == "token" => Outcome::ShowsToken,
            Local::Show(name) => match self.setting(c, &name) {
                Some(value) => Outcome::Shows(format!("kingpost.{name}"), value),
                None => Outcome::Fails(format!(
                    "kingpost.{name} is not known: expected route, consistency, token or transaction_reads"
                )),
            },
            Local::Invalid(text) => Outcome::Fails(text),
        }
    }

    fn setting(&self, c: usize, name: &str) -> Option<&'static str> {
        let client = &self.clients[c];
        match name {
            "route" => Some(client.route.unwrap_or(RouteTo::Auto).name()),
            "consistency" => {
                let of_database = self.pools[client.pool].database.consistency;
                Some(client.consistency.unwrap_or(of_database).name())
            }
            "transaction_reads" => {
                let of_database = self.pools[client.pool].database.transaction_reads;
                Some(client.transaction_reads.unwrap_or(of_database).name())
            }
            _ => None,
        }
    }

    /// Drops a client's message, however much of it has arrived.
    pub(in crate::core) fn discard(&mut self, c: usize, frame: Frame) -> Step {
        self.clients[c].pass_through = PassThrough::discard(frame.total());
        Step::Again
    }
}
