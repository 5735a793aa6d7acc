//! `BEGIN` that is put off: the proxy answers it, and the server gets it together with the statement after it.
//!
//! It saves a round trip to the server for each transaction, and a client that has said no more than BEGIN holds no server
//! connection. Seen from the client the difference is that `now()` is the time of its first statement.
//!
//! The server gets it as Bind and Execute of a prepared statement without a Sync: should it fail, then the server skips what
//! follows it, up to a Sync. So a statement is never carried out outside of the transaction that its client believes it
//! to be in. Until BEGIN has been answered no more than one unit is sent behind it, for the Sync that would end that skipping may
//! not be another unit's own.

use wire::message::{self, Status};
use wire::payload;
use wire::{Frame, HEADER};

use super::Core;
use super::client::{Aborted, Again, Sole, Step};
use super::pool::Want;
use super::server::Expect;

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
            || self.want(c) != Want::Primary
        {
            return false;
        }
        let Some(mut rest) = bytes.get(..unit.scanned) else { return false };
        while let Ok(Some(frame)) = Frame::read(rest) {
            let Some(data) = rest.get(HEADER..frame.total()) else { return false };
            let fits = match frame.tag {
                b'Q' => payload::cstr(data).is_some_and(|(text, _)| tag(text).is_some()),
                b'P' => payload::parse(data).is_some_and(|(_, text, _)| tag(text).is_some()),
                // It has no parameters: a server would say that they are too many.
                b'B' => payload::bind(data).is_some_and(|(_, name, values)| {
                    let known =
                        unit.parses_unnamed || self.statement_of(c, name).is_some_and(|s| tag(&s.text).is_some());
                    known && values.starts_with(&[0; 4])
                }),
                _ => true,
            };
            if !fits {
                return false;
            }
            rest = &rest[frame.total()..];
        }
        true
    }

    /// A message of a unit that is put off.
    pub(super) fn begin_message(&mut self, c: usize, bytes: &[u8], frame: Frame) -> Step {
        // The unit has been looked at as a whole.
        let Some(data) = bytes.get(HEADER..frame.total()) else { return Step::More };
        match frame.tag {
            b'Q' => {
                let text = payload::cstr(data).map_or(&b""[..], |(text, _)| text);
                let class = self.classify(c, text);
                let statement = self.statement_as(c, text, NO_TYPES, class);
                let answer = tag(text).unwrap_or("BEGIN");
                let client = &mut self.clients[c];
                client.begun = Some(statement);
                client.unnamed = None;
                self.tell(c, |out| message::complete(out, answer));
                self.end_begin(c);
            }
            b'P' => {
                if let Some((_, text, types)) = payload::parse(data) {
                    let class = self.classify(c, text);
                    self.clients[c].unnamed = Some(self.statement_as(c, text, types, class));
                    self.tell(c, |out| message::empty(out, b'1'));
                }
            }
            b'B' => {
                let named = payload::bind(data).and_then(|(_, name, _)| self.statement_of(c, name));
                if let Some(statement) = named {
                    self.clients[c].begun = Some(self.statement_as(c, &statement.text, NO_TYPES, statement.class));
                }
                self.tell(c, |out| message::empty(out, b'2'));
            }
            b'D' => self.tell(c, |out| message::empty(out, b'n')),
            b'E' => {
                let answer = self.clients[c].begun.as_ref().and_then(|begin| tag(&begin.text)).unwrap_or("BEGIN");
                self.tell(c, |out| message::complete(out, answer));
            }
            _ => self.end_begin(c),
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

    /// Sends the BEGIN that was put off, ahead of a client's first message to its server.
    pub(super) fn begin(&mut self, c: usize, s: usize) {
        let Some(statement) = self.clients[c].begun.take() else { return };
        self.prepare(s, &statement);
        let server = &mut self.servers[s];
        server.beginning = true;
        server.in_unit = true;
        // From here on its loss is that of a transaction; if BEGIN fails, that is put right.
        server.status = Status::Transaction;
        server.owe(Expect::BindOwn);
        server.owe(Expect::ExecuteOwn);
        self.send(s, |out| {
            message::bind(out, b"", statement.name().as_bytes());
            message::execute(out, b"");
        });
    }

    /// True if the unit that `bytes` begin with needs no server, and can't end in an error that would end its transaction.
    ///
    /// Whoever prepares a statement that is known need not wait for a server: others may hold them all, and wait for this client
    /// (`pgbench -M prepared` does).
    pub(super) fn is_sure_to_succeed(&self, c: usize, bytes: &[u8]) -> bool {
        let client = &self.clients[c];
        let Some(mut rest) = bytes.get(..client.unit.scanned).filter(|_| !client.unit.needs_server) else {
            return false;
        };
        let mut parses = 0;
        while let Ok(Some(frame)) = Frame::read(rest) {
            let name = rest.get(HEADER..frame.total()).and_then(payload::cstr).map(|(name, _)| name);
            let taken = name.is_some_and(|name| client.prepared.as_ref().is_some_and(|p| p.names.contains_key(name)));
            match frame.tag {
                b'P' if parses > 0 || taken => return false,
                b'P' => parses += 1,
                b'Q' => return false,
                _ => {}
            }
            rest = &rest[frame.total()..];
        }
        true
    }

    /// An error of the proxy's own: a transaction that no server knows of has failed.
    pub(super) fn fail_begun(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if client.begun.take().is_some() {
            client.aborted = Aborted::Told;
        }
    }

    /// BEGIN has failed, and with it what was sent behind it.
    pub(super) fn begin_failed(&mut self, s: usize) {
        let server = &mut self.servers[s];
        server.beginning = false;
        server.begin_failed = true;
        // Behind a Query no Sync follows from the client.
        let query = server.expect.iter().any(|expect| matches!(expect, Expect::Query(_)));
        self.drop_failed(s);
        if query {
            self.servers[s].owe(Expect::Sync);
            self.send(s, |out| message::empty(out, b'S'));
        }
    }
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
