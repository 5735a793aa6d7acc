//! What the proxy answers by itself: units that need no server, and statements about the proxy's own state.

use sql::{Class, Hint, Local};
use wire::payload::{self, Named};
use wire::{Frame, HEADER, Sqlstate, message};

use super::Core;
use super::client::{Again, Mark, Pass, Prepared, Step, Unit};
use super::login::error;
use crate::config::{Consistency, RouteTo};

impl Core {
    /// A message of a unit that needs no server.
    pub(super) fn local_message(&mut self, c: usize, bytes: &[u8], frame: Frame) -> Step {
        // A unit is looked at only once it is whole.
        let Some(data) = bytes.get(HEADER..frame.total()) else { return Step::More };
        match frame.tag {
            b'Q' => {
                return match self.local_query(c, bytes, frame) {
                    Some(step) => step,
                    None => {
                        // It needs a server after all.
                        let is_token = self.is_token_query(data);
                        let unit = &mut self.clients[c].unit;
                        **unit = Unit::default();
                        unit.query = Some(Class { local: is_token, ..Class::UNKNOWN });
                        self.dispatch_query(c, frame)
                    }
                };
            }
            b'P' => {
                if let Some((name, text, types)) = payload::parse(data) {
                    let class = self.classify(c, text);
                    let statement = self.statement_as(c, text, types, class);
                    let again = self.clients[c].again.attempts > 0;
                    let prepared = self.clients[c].prepared.get_or_insert_with(Box::<Prepared>::default);
                    if prepared.names.contains_key(name) && !again {
                        let name = String::from_utf8_lossy(name);
                        let text = format!("prepared statement {name:?} already exists");
                        return self.fail_local(c, Sqlstate::DUPLICATE_STATEMENT, &text, frame);
                    }
                    prepared.names.insert(name.into(), statement);
                    self.metrics.parses_local.add(1);
                    self.tell(c, |out| message::empty(out, b'1'));
                }
            }
            b'D' => {
                let name = match payload::named(data) {
                    Some(Named::Statement(name)) => name,
                    _ => b"",
                };
                let statement = self.statement_of(c, name);
                let Some(described) = statement.and_then(|s| s.described(self.now, self.schema())) else {
                    // It has gone out of date since the unit was looked at: what is left of that is looked at anew.
                    self.clients[c].unit.reset();
                    return Step::Again;
                };
                if let Some(prepared) = &mut self.clients[c].prepared {
                    prepared.described.insert(name.into());
                }
                self.metrics.describes_local.add(1);
                self.tell(c, |out| out.extend_from_slice(&described.messages));
            }
            b'C' => {
                if let Some(Named::Statement(name)) = payload::named(data) {
                    self.forget_statement(c, name);
                    self.tell(c, |out| message::empty(out, b'3'));
                }
            }
            b'S' => {
                let client = &mut self.clients[c];
                client.unit.reset();
                client.again = Again::default();
                self.ready(c);
            }
            // Flush: all is answered.
            _ => self.clients[c].unit.reset(),
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

    fn dispatch_query(&mut self, c: usize, frame: Frame) -> Step {
        let unit = &mut self.clients[c].unit;
        unit.scanned = frame.total();
        unit.end = b'Q';
        unit.whole = true;
        unit.read = false;
        unit.repeatable = false;
        unit.needs_server = true;
        let want = self.want(c);
        if self.acquire(c, want) { Step::Again } else { Step::Blocked }
    }

    /// A simple query that may be the proxy's to answer; None if it is not.
    pub(super) fn local_query(&mut self, c: usize, bytes: &[u8], frame: Frame) -> Option<Step> {
        let (text, _) = payload::cstr(bytes.get(HEADER..frame.total())?)?;
        let command = self.classifier.local_command(text)?;
        if let Some(s) = self.clients[c].at.server() {
            if self.servers[s].in_unit {
                // In the middle of an extended-protocol unit: the server's to answer.
                return None;
            }
            if !self.servers[s].expect.is_empty() {
                // Its turn has not come.
                return Some(Step::Blocked);
            }
        }
        let tag = match command {
            Local::Deallocate(name) => {
                if !self.forget_statement(c, name.as_bytes()) {
                    // Not one of the protocol's: SQL's PREPARE made it, or nobody did.
                    return None;
                }
                "DEALLOCATE"
            }
            Local::DeallocateAll => {
                if self.clients[c].pins.0 & sql::Pins::PREPARE.0 != 0 {
                    self.clients[c].prepared = None;
                    return None;
                }
                self.clients[c].prepared = None;
                self.clients[c].unnamed = None;
                "DEALLOCATE ALL"
            }
            Local::Route(route) => {
                self.clients[c].route = route.map(|hint| match hint {
                    Hint::Primary => RouteTo::Primary,
                    Hint::Replica => RouteTo::Replica,
                    Hint::Auto => RouteTo::Auto,
                });
                "SET"
            }
            Local::Consistency(value) => match value.as_deref() {
                None => {
                    self.clients[c].consistency = None;
                    "SET"
                }
                Some("eventual") => {
                    self.clients[c].consistency = Some(Consistency::Eventual);
                    "SET"
                }
                Some("session") => {
                    self.clients[c].consistency = Some(Consistency::Session);
                    "SET"
                }
                Some("strong") => {
                    self.clients[c].consistency = Some(Consistency::Strong);
                    "SET"
                }
                Some(other) => {
                    let text = format!("kingpost.consistency: {other:?} is not one of 'eventual', 'session', 'strong'");
                    return Some(self.local_error(c, &text, frame));
                }
            },
            Local::Token(None) => "SET",
            Local::Token(Some(token)) => match Mark::from_token(&token) {
                Some(mark) => {
                    self.must_see(c, mark);
                    "SET"
                }
                None => {
                    let text = format!("kingpost.token: {token:?} is not what SHOW kingpost.token says");
                    return Some(self.local_error(c, &text, frame));
                }
            },
            // Only the primary knows.
            Local::Show(name) if name == "token" => return None,
            Local::Show(name) => match self.setting(c, &name) {
                Some(value) => {
                    let column = format!("kingpost.{name}");
                    self.tell(c, |out| message::text_row(out, &[(&column, value)]));
                    "SHOW"
                }
                None => {
                    let text = format!("kingpost.{name} is not known: expected route, consistency or token");
                    return Some(self.local_error(c, &text, frame));
                }
            },
            Local::Invalid(text) => return Some(self.local_error(c, &text, frame)),
        };
        self.tell(c, |out| message::complete(out, tag));
        self.end_local(c);
        Some(Step::Used(frame.total()))
    }

    fn local_error(&mut self, c: usize, text: &str, frame: Frame) -> Step {
        self.tell(c, |out| error(out, Sqlstate::INVALID_PARAMETER_VALUE, text));
        self.end_local(c);
        Step::Used(frame.total())
    }

    /// `ReadyForQuery` after an answer of the proxy's own, in whatever state the client is.
    fn end_local(&mut self, c: usize) {
        self.clients[c].unit.reset();
        match self.clients[c].at.server() {
            Some(s) => {
                let status = self.servers[s].status;
                self.tell(c, |out| message::ready(out, status));
                self.look_again |= self.clients[c].listening.is_some();
            }
            None => self.ready(c),
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
}

impl Core {
    /// `SHOW kingpost.token`, as a `Query`'s payload.
    pub(super) fn is_token_query(&self, data: &[u8]) -> bool {
        let command = payload::cstr(data).and_then(|(text, _)| self.classifier.local_command(text));
        matches!(command, Some(Local::Show(name)) if name == "token")
    }

    /// What the primary is asked for it: where it is. Whatever this client has been told is committed lies before that.
    pub(super) fn token_query(&self) -> String {
        let term = self.view.term.timeline;
        format!("SELECT '{term}:' || pg_catalog.pg_current_wal_insert_lsn() AS \"kingpost.token\"")
    }

    /// Ends a discarded message's worth of state; used by the parts that skip.
    pub(super) fn discard(&mut self, c: usize, frame: Frame) -> Step {
        self.clients[c].pass = Pass::discard(frame.total());
        Step::Again
    }
}
