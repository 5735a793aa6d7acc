//! What the proxy answers by itself: units that need no server, and statements about the proxy's own state.
//!
//! `DEALLOCATE` of a statement that was prepared by the protocol is the proxy's affair, for servers know it under another name. So are
//! `SET kingpost.…` and `SHOW kingpost.…`. They take effect at once, and a rollback does not undo them.

use std::sync::Arc;

use sql::{Class, Hint, Local, Pins};
use wire::frontend::Message;
use wire::message::Status;
use wire::payload::Named;
use wire::{Frame, Sqlstate, message};

use super::client::{Again, Mark, Pass, Step, Unit};
use super::login::error;
use crate::config::{Consistency, RouteTo};
use crate::core::Core;
use crate::core::prepared::{Statement, Undo};
use crate::core::server::{Answer, Note, Request};

/// What comes of a statement about the proxy's own state.
enum Outcome {
    /// It is done: this is the command's tag.
    Done(&'static str, Undo),
    /// It shows this value in a column of this name.
    Shows(String, &'static str),
    /// It shows the primary's position, which only that knows.
    ShowsToken,
    /// It makes no sense.
    Fails(String),
    /// It is a server's to answer.
    Servers,
}

impl Core {
    /// A message of a unit that needs no server.
    pub(super) fn local_message(&mut self, c: usize, bytes: &[u8], frame: Frame) -> Step {
        // A unit is looked at only once it is whole.
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
                if let Err(full) = names.parse(name, statement) {
                    self.fatal(c, Sqlstate::PROGRAM_LIMIT_EXCEEDED, &full.to_string());
                    return Step::Gone;
                }
                self.metrics.parses_local.add(1);
                self.tell(c, |out| message::empty(out, b'1'));
            }
            Message::Describe(named) => {
                let name = match named {
                    Named::Statement(name) => name,
                    Named::Portal(_) => b"",
                };
                let schema = self.schema_version(c);
                let statement = self.clients[c].names.get(name);
                let Some(described) = statement.and_then(|s| s.described(self.now, schema)) else {
                    // It has gone out of date since the unit was looked at: what is left of that is looked at anew.
                    self.clients[c].unit.reset();
                    return Step::Again;
                };
                self.clients[c].names.set_told(name, true);
                self.metrics.describes_local.add(1);
                self.tell(c, |out| out.extend_from_slice(&described.messages));
            }
            Message::Close(named) => {
                if let Named::Statement(name) = named {
                    self.clients[c].names.close(name);
                }
                self.tell(c, |out| message::empty(out, b'3'));
            }
            Message::Sync => {
                let client = &mut self.clients[c];
                client.unit.reset();
                client.again = Again::default();
                self.ready(c);
            }
            // All is answered.
            Message::Flush => self.clients[c].unit.reset(),
            // They need a server, and so does their unit.
            Message::Bind { .. } | Message::Execute { .. } | Message::FunctionCall => self.clients[c].unit.reset(),
            Message::CopyData | Message::CopyDone | Message::CopyFail | Message::Terminate => {}
        }
        Step::Used(frame.total())
    }

    fn fail_local(&mut self, c: usize, code: Sqlstate, text: &str, frame: Frame) -> Step {
        self.tell(c, |out| error(out, code, text));
        let client = &mut self.clients[c];
        client.unit.reset();
        client.skipping = true;
        Step::Used(frame.total())
    }

    // --- by a client without a server ---

    fn local_query(&mut self, c: usize, text: &[u8], frame: Frame) -> Step {
        let shows_token = match self.carry_out(c, text) {
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
        unit.query = Some(Class { local: shows_token, ..Class::UNKNOWN });
        unit.scanned = frame.total();
        unit.end = b'Q';
        unit.whole = true;
        unit.read = false;
        unit.writes_nothing = false;
        unit.repeatable = false;
        unit.needs_server = true;
        let want = self.want(c);
        if self.acquire(c, want) { Step::Again } else { Step::Blocked }
    }

    fn tell_local(&mut self, c: usize, done: Outcome) {
        match done {
            Outcome::Done(tag, _) => self.tell(c, |out| message::complete(out, tag)),
            Outcome::Shows(column, value) => self.tell(c, |out| {
                message::text_row(out, &[(&column, value)]);
                message::complete(out, "SHOW");
            }),
            Outcome::Fails(text) => {
                self.tell(c, |out| error(out, Sqlstate::INVALID_PARAMETER_VALUE, &text));
                self.fail_begun(c);
            }
            Outcome::ShowsToken | Outcome::Servers => {}
        }
    }

    // --- by a client with a server ---

    /// A Query of this class, of a client with a server, if the proxy answers it. None: it goes to the server.
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
        if protocol.is_in_unit() || protocol.status() == Status::Failed {
            // In the middle of an extended-protocol unit, or in a failed transaction: the server's to answer.
            return None;
        }
        if !protocol.is_settled() {
            // Its turn has not come.
            return Some(Step::Blocked);
        }
        let status = protocol.status();
        match self.carry_out(c, text) {
            Outcome::Servers => None,
            Outcome::ShowsToken => {
                let text = self.token_query();
                self.begin(c, s);
                let undo = self.names_of_query(c, s);
                self.servers[s].ends_unit(Request::Query, |timing| Note::Query {
                    changes: None,
                    undo,
                    dropped: None,
                    timing,
                });
                self.end_unit(c);
                self.send(s, |out| message::query(out, &text));
                Some(Step::Used(frame.total()))
            }
            Outcome::Fails(text) if status == Status::Transaction || self.clients[c].begun.is_some() => {
                // The transaction has to fail with it, which only the server can bring about.
                Some(self.fail_in_transaction(c, s, &text, frame))
            }
            done => {
                self.tell_local(c, done);
                self.clients[c].names.query();
                self.clients[c].unit.reset();
                let status = if self.clients[c].begun.is_some() { Status::Transaction } else { status };
                self.tell(c, |out| message::ready(out, status));
                self.noticed.look_again_for(&self.clients[c]);
                Some(Step::Used(frame.total()))
            }
        }
    }

    /// A client's statement about the proxy's own state makes no sense, in a transaction on a server.
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
        self.send(s, |out| message::query(out, "refused by kingpost: not a setting of kingpost's"));
        Step::Used(frame.total())
    }

    /// An Execute of such a statement: what the client is told, and how to take that back. None: the server runs it.
    pub(super) fn execute_local(&mut self, c: usize, s: usize, statement: &Arc<Statement>) -> Option<(Answer, Undo)> {
        if self.servers[s].protocol.status() == Status::Failed {
            return None;
        }
        match self.carry_out(c, statement.text()) {
            Outcome::Done(tag, undo) => Some((Answer::Complete(tag), undo)),
            // A Parse of what shows something was sent as something else. What makes no sense a server refuses, in words of its own.
            Outcome::Shows(..) | Outcome::ShowsToken | Outcome::Fails(_) | Outcome::Servers => None,
        }
    }

    /// The text that a server gets in place of `SHOW kingpost.…` in the extended protocol; None: this one.
    pub(super) fn shown_instead(&self, c: usize, class: Class, text: &[u8]) -> Option<Vec<u8>> {
        if !class.local {
            return None;
        }
        let Some(Local::Show(name)) = self.classifier.local_command(text) else { return None };
        if name == "token" {
            return Some(self.token_query().into_bytes());
        }
        let value = self.setting(c, &name)?;
        Some(format!("SELECT '{value}'::pg_catalog.text AS \"kingpost.{name}\"").into_bytes())
    }

    // --- what they do ---

    fn carry_out(&mut self, c: usize, text: &[u8]) -> Outcome {
        let Some(command) = self.classifier.local_command(text) else { return Outcome::Servers };
        let client = &mut self.clients[c];
        let resets = text.trim_ascii_start().get(..5).is_some_and(|word| word.eq_ignore_ascii_case(b"reset"));
        let tag = if resets { "RESET" } else { "SET" };
        match command {
            Local::Deallocate(name) => match client.names.close(name.as_bytes()).filter(|_| !name.is_empty()) {
                Some(undo) => Outcome::Done("DEALLOCATE", undo),
                // Not one of the protocol's: SQL's PREPARE made it, or nobody did.
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
            Local::Token(None) => Outcome::Done(tag, Undo::Nothing),
            Local::Token(Some(token)) => match Mark::from_token(&token) {
                Some(mark) => {
                    self.must_see(c, mark);
                    Outcome::Done(tag, Undo::Nothing)
                }
                None => Outcome::Fails(format!("kingpost.token: {token:?} is not what SHOW kingpost.token says")),
            },
            // Only the primary knows.
            Local::Show(name) if name == "token" => Outcome::ShowsToken,
            Local::Show(name) => match self.setting(c, &name) {
                Some(value) => Outcome::Shows(format!("kingpost.{name}"), value),
                None => Outcome::Fails(format!("kingpost.{name} is not known: expected route, consistency or token")),
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
            _ => None,
        }
    }

    /// What the primary is asked for `SHOW kingpost.token`: where it is. Whatever this client has been told is committed lies before that.
    fn token_query(&self) -> String {
        let term = self.view.term.timeline;
        format!("SELECT '{term}:' || pg_catalog.pg_current_wal_insert_lsn() AS \"kingpost.token\"")
    }

    /// A client's message goes nowhere, however much of it has arrived.
    pub(in crate::core) fn discard(&mut self, c: usize, frame: Frame) -> Step {
        self.clients[c].pass = Pass::discard(frame.total());
        Step::Again
    }
}
