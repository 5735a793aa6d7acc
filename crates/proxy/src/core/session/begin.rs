//! `BEGIN` that is put off: the proxy answers it, and the server gets it together with the statement after it.
//!
//! It saves a round trip to the server for each transaction, and a client that has said no more than BEGIN holds no server
//! connection. And which server it goes to is known better then: `BEGIN READ ONLY` goes to a replica if its first statement is a read,
//! and to the primary if that is, say, `LOCK TABLE`. Seen from the client the difference is that `now()` is the time of its first statement.
//!
//! The server gets it as Bind and Execute of a prepared statement without a Sync: should it fail, then the server skips what
//! follows it, up to a Sync. So a statement is never carried out outside of the transaction that its client believes it
//! to be in. Until BEGIN has been answered no more than one unit is sent behind it: a Sync of the next unit would end that skipping.

use sql::Control;
use wire::Frame;
use wire::frontend::{Message, messages};
use wire::message;

use super::client::{Aborted, Again, Sole, Step};
use crate::core::Core;
use crate::core::pool::Want;
use crate::core::prepared::Statement;
use crate::core::server::{Begin, Note, Request};

/// Longest BEGIN that is put off, in bytes: there is nothing in a longer one but comments.
const LONGEST: usize = 256;

/// What a server says when it has carried out this text, which is known to begin a transaction. None if a comment hides
/// which it is.
fn tag(text: &[u8]) -> Option<&'static str> {
    let text = text.trim_ascii_start();
    let starts = |word: &[u8]| text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    if text.len() > LONGEST {
        None
    } else if starts(b"begin") {
        Some("BEGIN")
    } else if starts(b"start") {
        Some("START TRANSACTION")
    } else {
        None
    }
}

impl Core {
    /// True if the unit that `bytes` begin with is a BEGIN that can wait for what comes after it.
    pub(super) fn puts_off(&self, c: usize, bytes: &[u8]) -> bool {
        let client = &self.clients[c];
        let unit = &client.unit;
        if !self.settings.defer_begin
            || unit.sole != Sole::Begin
            || !unit.is_one()
            || client.begun.is_some()
            || self.is_bound(c)
            // Where all transactions go to replicas there is nothing to be decided.
            || !(self.want(c) == Want::Primary || unit.begin_read_only)
        {
            return false;
        }
        let Some(unit_bytes) = bytes.get(..unit.scanned) else { return false };
        messages(unit_bytes).all(|(message, _)| match message {
            Message::Query { text } | Message::Parse { text, .. } => tag(text).is_some(),
            // It has no parameters: a server would say that they are too many.
            Message::Bind { statement: name, rest, .. } => {
                // `P '' begin; B '' nosuch; E; S` begins nothing.
                let parsed_here = name.is_empty() && unit.parses_unnamed;
                let is_begin = |statement: &std::sync::Arc<Statement>| tag(statement.text()).is_some();
                (parsed_here || client.names.get(name).is_some_and(is_begin)) && rest.starts_with(&[0; 4])
            }
            Message::Describe(_) | Message::Execute { .. } | Message::Sync => true,
            Message::Close(_) | Message::Flush | Message::FunctionCall | Message::Terminate => false,
            Message::CopyData | Message::CopyDone | Message::CopyFail => false,
        })
    }

    /// A message of a unit that is put off.
    pub(super) fn begin_message(&mut self, c: usize, bytes: &[u8], frame: Frame) -> Step {
        // The unit has been looked at as a whole.
        let Ok(Some(message)) = Message::read(frame, bytes) else { return Step::More };
        match message {
            Message::Query { text } => {
                let class = self.classify(c, text);
                let statement = self.statement_for(c, text, NO_TYPES, class);
                let answer = tag(text).unwrap_or("BEGIN");
                let client = &mut self.clients[c];
                client.begun = Some(statement);
                client.begin_leaves_portal = false;
                client.names.query();
                self.tell(c, |out| message::complete(out, answer));
                self.end_begin(c);
            }
            Message::Parse { text, types, .. } => {
                let class = self.classify(c, text);
                let statement = self.statement_for(c, text, types, class);
                // The unnamed one's place is never full.
                let _ = self.clients[c].names.parse(b"", statement);
                self.tell(c, |out| message::empty(out, b'1'));
            }
            Message::Bind { statement: name, .. } => {
                if let Some(statement) = self.clients[c].names.get(name).cloned() {
                    let begin = self.statement_for(c, statement.text(), NO_TYPES, statement.class());
                    self.clients[c].begun = Some(begin);
                    self.clients[c].begin_leaves_portal = true;
                }
                self.tell(c, |out| message::empty(out, b'2'));
            }
            Message::Describe(named) => self.tell(c, |out| {
                if let wire::payload::Named::Statement(_) = named {
                    message::message(out, b't', |out| out.extend_from_slice(NO_TYPES));
                }
                message::empty(out, b'n');
            }),
            Message::Execute { .. } => {
                let answer = self.clients[c].begun.as_ref().and_then(|begin| tag(begin.text())).unwrap_or("BEGIN");
                self.tell(c, |out| message::complete(out, answer));
            }
            Message::Sync => self.end_begin(c),
            // `puts_off` lets none of them in.
            Message::Close(_) | Message::Flush | Message::FunctionCall | Message::Terminate => {}
            Message::CopyData | Message::CopyDone | Message::CopyFail => {}
        }
        Step::Used(frame.total())
    }

    fn end_begin(&mut self, c: usize) {
        let client = &mut self.clients[c];
        client.unit.reset();
        client.again = Again::default();
        self.metrics.begins_put_off.add(1);
        self.metrics.statements_local.add(1);
        self.ready(c);
    }

    /// The client's unit is the first of a transaction whose BEGIN was put off.
    pub(super) fn joins_transaction(&mut self, c: usize) {
        let client = &mut self.clients[c];
        let read_only = client.begun.as_ref().is_some_and(|begin| begins_read_only(begin));
        let unit = &mut client.unit;
        // Of a unit that is not whole, or that writes, nothing is certain: it goes to the primary.
        if !(read_only && unit.writes_nothing && unit.whole) {
            unit.doubt();
        }
        // What is in a transaction shares no connection. An error in it is its server's to give.
        unit.sole = Sole::Other;
        unit.needs_server = true;
    }

    /// Sends the BEGIN that was put off, ahead of a client's first message to its server.
    pub(super) fn begin(&mut self, c: usize, s: usize) {
        let client = &mut self.clients[c];
        let Some(statement) = client.begun.take() else { return };
        let closes = !client.begin_leaves_portal;
        client.replay.begins(&statement);
        self.prepare(s, &statement);
        let server = &mut self.servers[s];
        server.begin = Begin::Sent;
        // From here on its loss is that of a transaction; if BEGIN fails, that is put right.
        server.protocol.begins();
        server.protocol.sent(Request::Bind, Note::Begin);
        server.protocol.sent(Request::Execute, Note::Begin);
        self.send(s, |out| {
            message::bind(out, b"", statement.name().as_bytes());
            message::execute(out, b"");
        });
        if closes {
            self.send(s, |out| message::close_portal(out, b""));
            self.servers[s].protocol.sent(Request::Close, Note::Begin);
        }
    }

    /// True if the unit that `bytes` begin with needs no server, and can't end in an error that would end its transaction.
    ///
    /// Whoever prepares a statement that is known need not wait for a server: others may hold them all, and wait for this client
    /// (`pgbench -M prepared` does).
    pub(super) fn is_sure_to_succeed(&self, c: usize, bytes: &[u8]) -> bool {
        let client = &self.clients[c];
        if client.unit.query.is_some_and(|class| class.local) {
            // Whether it is the proxy's to answer is seen when it is carried out.
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

    /// An error of the proxy's own: a transaction that no server knows of has failed.
    pub(super) fn fail_begun(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if client.begun.take().is_some() {
            client.aborted = Aborted::Told;
        }
    }
}

/// True if the transaction that this begins is declared to only read.
pub(in crate::core) fn begins_read_only(begin: &Statement) -> bool {
    begin.class().control == Control::Begin { read_only: true }
}

/// No declared parameter types, as on the wire.
const NO_TYPES: &[u8] = b"\0\0";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags() {
        let cases: [(&[u8], _); 7] = [
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
