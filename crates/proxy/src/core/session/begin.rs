//! `BEGIN` that is put off: the proxy answers it at once, and sends it to a server together with the next statement.
//!
//! This saves a round trip to the server for each transaction, and a client that has sent no more than BEGIN holds no
//! server connection. The choice of the server is better, too: `BEGIN READ ONLY` goes to a replica if the first
//! statement is a read, and to the primary if it is, say, `LOCK TABLE`. The client sees one difference: `now()` is the
//! time of its first statement.
//!
//! The server gets BEGIN as `B '' kp5; E ''` without a Sync. If BEGIN fails, the server therefore skips what follows,
//! up to a Sync. So no statement is carried out outside the transaction that the client believes it is in. Until BEGIN
//! is answered, only one unit may be behind it: the Sync of that unit ends the skipping, and a second unit would be
//! carried out.

use sql::{Class, Control, Hint};
use wire::frontend::{Message, messages};
use wire::{Frame, Sqlstate, message};

use super::client::{Aborted, Attempts, SingleStatement, Step, Unit};
use super::put_off::PutOffBegin;
use super::unit::{is_bound_to_primary, writes_nothing};
use crate::config::RouteTo;
use crate::core::pool::NodeRequest;
use crate::core::prepared::Statement;
use crate::core::server::{Begin, Note, Request};
use crate::core::{Core, DRAINING};

/// Longest BEGIN that is put off, in bytes: a longer one consists mostly of comments.
const LONGEST: usize = 256;

/// The command tag with which a server answers `text`, which is known to begin or to end a transaction. `None` if a
/// comment in front hides the first word.
fn tag(text: &[u8]) -> Option<&'static str> {
    const TAGS: [(&[u8], &str); 6] = [
        (b"begin", "BEGIN"),
        (b"start", "START TRANSACTION"),
        (b"commit", "COMMIT"),
        (b"end", "COMMIT"),
        (b"rollback", "ROLLBACK"),
        (b"abort", "ROLLBACK"),
    ];
    let text = text.trim_ascii_start();
    let starts = |word: &[u8]| text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    if text.len() > LONGEST {
        return None;
    }
    TAGS.iter().find(|(word, _)| starts(word)).map(|&(_, tag)| tag)
}

impl Unit {
    /// True if the proxy answers the unit, once it is routed: it is one BEGIN, or the end of a transaction that no
    /// server knows.
    pub(super) fn is_put_off(&self) -> bool {
        matches!(self.statement_kind, SingleStatement::Begin | SingleStatement::End) && self.is_one()
    }
}

impl Core {
    /// True if the unit that `bytes` begin with is a BEGIN that can wait for the next unit.
    pub(super) fn puts_off(&self, c: usize, bytes: &[u8]) -> bool {
        let client = &self.clients[c];
        let unit = &client.unit;
        if !self.settings.defer_begin
            || unit.statement_kind != SingleStatement::Begin
            || !unit.is_one()
            || client.begun.is_some()
            || self.is_bound(c)
            // Where `request` is not the primary although the BEGIN is not read-only, all transactions go to replicas:
            // there is nothing to decide.
            || !(self.node_request(c) == NodeRequest::Primary || unit.begin_read_only)
        {
            return false;
        }
        self.is_answerable(c, bytes)
    }

    /// True if the unit that `bytes` begin with is the COMMIT or ROLLBACK of a transaction that has run nothing but early
    /// reads, so that no server needs to hear of it.
    pub(super) fn ends_early(&self, c: usize, bytes: &[u8]) -> bool {
        let client = &self.clients[c];
        client.begun.reads().is_some()
            && client.unit.statement_kind == SingleStatement::End
            && client.unit.is_one()
            && self.is_answerable(c, bytes)
    }

    /// True if the proxy can answer this unit, which is known to be one BEGIN, COMMIT or ROLLBACK.
    fn is_answerable(&self, c: usize, bytes: &[u8]) -> bool {
        let client = &self.clients[c];
        let unit = &client.unit;
        let Some(unit_bytes) = bytes.get(..unit.scanned) else { return false };
        messages(unit_bytes).all(|(message, _)| match message {
            Message::Query { text } | Message::Parse { text, .. } => tag(text).is_some(),
            // These have no parameters; a server would refuse a Bind that brings some.
            Message::Bind { statement: name, rest, .. } => {
                // In `P '' begin; B '' nosuch; E; S` the Bind fails, so nothing begins.
                let parsed_here = name.is_empty() && unit.parses_unnamed;
                let has_tag = |statement: &std::sync::Arc<Statement>| tag(statement.text()).is_some();
                (parsed_here || client.names.get(name).is_some_and(has_tag)) && rest.starts_with(&[0; 4])
            }
            Message::Describe(_) | Message::Execute { .. } | Message::Sync => true,
            Message::Close(_) | Message::Flush | Message::FunctionCall | Message::Terminate => false,
            Message::CopyData | Message::CopyDone | Message::CopyFail => false,
        })
    }

    /// Answers a message of a unit that is put off, or that ends a transaction of early reads.
    pub(super) fn put_off_message(&mut self, c: usize, bytes: &[u8], frame: Frame) -> Step {
        // `assemble` has seen the unit whole.
        let Ok(Some(message)) = Message::read(frame, bytes) else { return Step::More };
        let ends = self.clients[c].unit.statement_kind == SingleStatement::End;
        match message {
            Message::Query { text } => {
                let class = self.classify(c, text);
                let statement = self.statement_for(c, text, NO_TYPES, class);
                let answer = tag(text).unwrap_or("BEGIN");
                let client = &mut self.clients[c];
                if ends {
                    client.begun.take();
                } else {
                    client.begun.begin(PutOffBegin { statement, leaves_portal: false });
                }
                client.names.query();
                self.write_client(c, |out| message::complete(out, answer));
                self.end_put_off(c);
            }
            Message::Parse { text, types, .. } => {
                let class = self.classify(c, text);
                let statement = self.statement_for(c, text, types, class);
                self.clients[c].names.parse_unnamed(statement);
                self.write_client(c, |out| message::empty(out, b'1'));
            }
            Message::Bind { statement: name, .. } => {
                if let Some(statement) = self.clients[c].names.get(name).cloned() {
                    // (A statement that ends the transaction stays here until its Execute.)
                    let statement = self.statement_for(c, statement.text(), NO_TYPES, statement.class());
                    self.clients[c].begun.begin(PutOffBegin { statement, leaves_portal: true });
                }
                self.write_client(c, |out| message::empty(out, b'2'));
            }
            Message::Describe(named) => self.write_client(c, |out| {
                if let wire::payload::Named::Statement(_) = named {
                    message::message(out, b't', |out| out.extend_from_slice(NO_TYPES));
                }
                message::empty(out, b'n');
            }),
            Message::Execute { .. } => {
                let client = &mut self.clients[c];
                let answer = client.begun.statement().and_then(|begin| tag(begin.text())).unwrap_or("BEGIN");
                if ends {
                    client.begun.take();
                }
                self.write_client(c, |out| message::complete(out, answer));
            }
            Message::Sync => self.end_put_off(c),
            // `is_answerable` accepts no unit with one of these messages.
            Message::Close(_) | Message::Flush | Message::FunctionCall | Message::Terminate => {}
            Message::CopyData | Message::CopyDone | Message::CopyFail => {}
        }
        if self.clients.contains(c) { Step::Used(frame.total()) } else { Step::Gone }
    }

    fn end_put_off(&mut self, c: usize) {
        let client = &mut self.clients[c];
        client.unit.reset();
        client.attempts = Attempts::default();
        self.metrics.statements_local.add(1);
        if client.begun.is_some() {
            self.metrics.begins_put_off.add(1);
        } else {
            self.pools[client.pool].totals.transactions += 1;
        }
        self.ready(c);
        if self.draining && self.clients[c].begun.is_none() {
            self.fatal(c, Sqlstate::ADMIN_SHUTDOWN, DRAINING);
        }
    }

    /// The client's unit is the first in a transaction whose BEGIN was put off: adjusts where the unit may go.
    pub(super) fn joins_transaction(&mut self, c: usize) {
        let client = &mut self.clients[c];
        let read_only = client.begun.statement().is_some_and(|begin| begins_read_only(begin));
        let unit = &mut client.unit;
        // A unit that writes, or that has not arrived whole, goes to the primary.
        if !(read_only && unit.writes_nothing && unit.whole) {
            unit.assume_writes();
        }
        // A unit in a transaction shares no server connection, and its errors have to come from the server.
        unit.statement_kind = SingleStatement::Other;
        unit.needs_server = true;
    }

    /// Sends the BEGIN that was put off, ahead of the client's first message to its server.
    pub(super) fn begin(&mut self, c: usize, s: usize) {
        let client = &mut self.clients[c];
        if client.unit.early {
            return;
        }
        let Some(begin) = client.begun.take() else { return };
        client.replay.begins(&begin);
        let PutOffBegin { statement, leaves_portal } = begin.clone();
        self.prepare(s, &statement);
        let server = &mut self.servers[s];
        server.work.shown = Some(begin);
        server.begin = Begin::Sent;
        // A connection lost from here on counts as a lost transaction. If BEGIN fails, the protocol state is corrected
        // by its answer.
        server.protocol.begins();
        server.protocol.sent(Request::Bind, Note::Begin);
        server.protocol.sent(Request::Execute, Note::Begin);
        self.write_server(s, |out| {
            message::bind(out, b"", statement.name().as_bytes());
            message::execute(out, b"");
        });
        if !leaves_portal {
            self.write_server(s, |out| message::close_portal(out, b""));
            self.servers[s].protocol.sent(Request::Close, Note::Begin);
        }
    }

    /// Moves a READ ONLY transaction from its replica to the primary, where the client's next unit begins with a statement that needs the
    /// primary. That is possible while the transaction has run nothing but SHOW: it has no snapshot yet. True if it has moved: the BEGIN is put off
    /// again, and the unit is looked at anew.
    pub(super) fn moves_to_primary(&mut self, c: usize, s: usize, message: Message<'_>, query: Option<Class>) -> bool {
        let server = &self.servers[s];
        let Some(begin) = &server.work.shown else { return false };
        let between = server.protocol.is_quiet() && server.protocol.status() == message::Status::Transaction;
        if !between || !self.is_replica(s) || self.is_bound(c) || self.clients[c].replay.is_some() {
            return false;
        }
        let hint = begin.statement.class().hint;
        let class = match message {
            Message::Query { .. } => query,
            Message::Parse { text, .. } => Some(self.classify_parsed(c, text)),
            Message::Bind { statement: name, .. } => self.clients[c].names.get(name).map(|statement| statement.class()),
            _ => None,
        };
        let Some(class) = class else { return false };
        let replica =
            hint == Some(Hint::Replica) || (hint.is_none() && self.clients[c].route == Some(RouteTo::Replica));
        if !is_bound_to_primary(class) && (replica || writes_nothing(class)) {
            return false;
        }
        let Some(begin) = self.servers[s].work.shown.take() else { return false };
        self.release(s);
        if let Some(client) = self.clients.get_mut(c) {
            client.begun.begin(begin);
        }
        true
    }

    /// True if the unit that `bytes` begin with needs no server and cannot fail, so that it cannot fail its transaction
    /// either.
    ///
    /// Such a unit, for instance a Parse of a known statement, does not wait for a server connection: other clients may
    /// hold all of them while they wait for this client (`pgbench -M prepared` does that).
    pub(super) fn is_sure_to_succeed(&self, c: usize, bytes: &[u8]) -> bool {
        let client = &self.clients[c];
        if client.unit.query.is_some_and(|class| class.local) {
            // `carry_out` decides whether the proxy can answer the Query.
            return true;
        }
        let Some(unit) = bytes.get(..client.unit.scanned).filter(|_| !client.unit.needs_server) else {
            return false;
        };
        let mut parses = 0;
        messages(unit).all(|(message, _)| match message {
            Message::Parse { name, .. } => {
                parses += 1;
                parses == 1 && client.names.get(name).is_none()
            }
            Message::Query { .. } => false,
            _ => true,
        })
    }

    /// After an error from the proxy: a transaction that no server knows yet has failed.
    pub(in crate::core) fn fail_begun(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if client.begun.take().is_some() {
            client.aborted = Aborted::Told;
        }
    }
}

/// True if this BEGIN declares its transaction READ ONLY.
pub(in crate::core) fn begins_read_only(begin: &Statement) -> bool {
    begin.class().control == Control::Begin { read_only: true }
}

/// The part of Parse or ParameterDescription that says: no parameter types.
const NO_TYPES: &[u8] = b"\0\0";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags() {
        let cases: [(&[u8], _); 11] = [
            (b"commit", Some("COMMIT")),
            (b"END;", Some("COMMIT")),
            (b"\tRollback work", Some("ROLLBACK")),
            (b"abort", Some("ROLLBACK")),
            (b"BEGIN", Some("BEGIN")),
            (b" begin isolation level serializable;", Some("BEGIN")),
            (b"\nStart Transaction read write", Some("START TRANSACTION")),
            (b"/* hello */ BEGIN", None),
            (b"be", None),
            (b"", None),
            (&[b' '; LONGEST + 1], None),
        ];
        for (text, expected) in cases {
            assert_eq!(tag(text), expected, "{}", String::from_utf8_lossy(text));
        }
    }
}
