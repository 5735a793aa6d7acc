//! A client's end: Terminate, or the end of its stream.
//!
//! PostgreSQL reads one message after the other. It reads Terminate, and the end of the stream, once every message before is executed and answered,
//! and then ends the session. A client that has shut down its sending direction (a half-close) still gets its answers.
//!
//! ```text
//!  No ──Terminate, end of the stream──▶ Sent ──nothing more is owed──▶ Reads ──all is written──▶ closed
//!                                        └─in COPY FROM STDIN─▶ InCopy ──the server's error──▶ Told ─▶ Reads
//! ```
//!
//! A connection that is reset is closed at once (`Core::closed`): its answers can't be delivered.

use std::time::{Duration, Instant};

use wire::message;
use wire::{Severity, Sqlstate, payload};

use super::client::{PassThrough, Phase, Step};
use super::login::Exchange;
use crate::core::memory::{Kind, Token};
use crate::core::observe::Timing;
use crate::core::server::{Note, Request};
use crate::core::{Core, over};

/// Longest time for which a client that has ended, and has no server connection any more, may accept no byte of its answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reason in the CopyFail that ends a client's COPY FROM STDIN; it identifies the server's error.
const REASON: &[u8] = b"the client left";

/// Progress of a client's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum End {
    /// The client may send more.
    No,
    /// The client sends nothing more. All its messages are still executed.
    Sent,
    /// The client has ended in COPY FROM STDIN, and the server was sent CopyFail.
    InCopy(InCopy),
    /// The client got the error that ends its session, and gets no further answers.
    Told,
    /// The client, which has no server connection, only reads its remaining answers; nothing more is executed.
    Reads,
}

/// A client's end in COPY FROM STDIN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum InCopy {
    /// By Terminate.
    Terminate,
    /// By the end of its stream.
    Stream,
}

impl InCopy {
    /// Returns PostgreSQL's error.
    fn error(self) -> (Sqlstate, &'static str) {
        match self {
            InCopy::Terminate => (Sqlstate::PROTOCOL_VIOLATION, "unexpected message type 0x58 during COPY from stdin"),
            InCopy::Stream => {
                (Sqlstate::CONNECTION_FAILURE, "unexpected EOF on client connection with an open transaction")
            }
        }
    }

    /// Appends PostgreSQL's messages at the end of a session in COPY. `error`: the server's answer to CopyFail, whose context (the table and the
    /// line) is kept.
    fn write(self, error: &[u8], out: &mut Vec<u8>) {
        let (code, text) = self.error();
        let field = |name| payload::error_field(error, name).unwrap_or_default();
        message::message(out, b'E', |out| {
            for (name, value) in [
                (b'S', &b"ERROR"[..]),
                (b'V', b"ERROR"),
                (b'C', &code.0[..]),
                (b'M', text.as_bytes()),
                (b'W', field(b'W')),
            ] {
                if !value.is_empty() {
                    out.push(name);
                    out.extend_from_slice(value);
                    out.push(0);
                }
            }
            out.push(0);
        });
        let text = "terminating connection because protocol synchronization was lost";
        message::error(out, Severity::Fatal, Sqlstate::PROTOCOL_VIOLATION, text, "");
    }
}

/// Clients in [`End::Reads`], each with its number of unread bytes and the time since which it has not changed.
#[derive(Debug, Default)]
pub(in crate::core) struct Leavers(Vec<(Token, Instant, usize)>);

impl Core {
    /// Handles the end of the input of a peer that has shut down its sending direction. It may still read.
    pub fn finished(&mut self, token: Token, why: &str) {
        if token.kind() != Kind::Client {
            return self.closed(token, why);
        }
        if self.is_client(token) {
            let client = &mut self.clients[token.index()];
            match client.phase {
                // The stream is passed on unread, or the connection has no answer.
                Phase::Replicating(_) | Phase::Cancelling | Phase::Securing => self.close_client(token.index()),
                _ => {
                    if client.end == End::No {
                        client.end = End::Sent;
                    }
                    self.runnable.push_back(token);
                }
            }
        }
        self.run();
    }

    /// Handles Terminate: messages before it are still executed.
    pub(super) fn terminate(&mut self, c: usize) -> Step {
        let token = self.clients[c].token;
        if self.clients[c].end == End::No {
            self.clients[c].end = End::Sent;
        }
        if self.is_owed(c) {
            return Step::Blocked;
        }
        self.ends(c, InCopy::Terminate);
        if !self.is_client(token) {
            return Step::Gone;
        }
        if self.clients[c].end == End::Reads { Step::Again } else { Step::Blocked }
    }

    /// Ends a client whose stream has ended once it is owed nothing more. Called when its input has been handled as far as possible.
    pub(super) fn look_at_end(&mut self, c: usize) {
        let client = &self.clients[c];
        let has_ended = matches!(client.end, End::Sent | End::InCopy(_) | End::Told);
        let waits = client.blocked && !client.input.is_empty() && client.end != End::Told;
        if has_ended && !waits && !self.is_owed(c) {
            self.ends(c, InCopy::Stream);
        }
    }

    /// True if a message that the client sent before its end is still to be executed or answered. False if PostgreSQL would be reading.
    fn is_owed(&self, c: usize) -> bool {
        let client = &self.clients[c];
        if client.waiting || client.at.lane().is_some() {
            return true;
        }
        match &client.phase {
            Phase::Login(login) => {
                matches!(login.exchange, Exchange::Asked | Exchange::Verifying(..) | Exchange::Proved)
            }
            Phase::Console(operator) => operator.asked,
            Phase::Ready => {
                let half = matches!(client.pass_through, PassThrough::Forward { asks: true, .. });
                client.at.server().is_some_and(|s| self.servers[s].protocol.will_answer(half))
            }
            _ => false,
        }
    }

    /// Ends the client's session, once all messages before its end are executed.
    fn ends(&mut self, c: usize, how: InCopy) {
        let client = &self.clients[c];
        if client.end == End::Sent
            && let Some(s) = client.at.server().filter(|&s| self.servers[s].protocol.copies_in())
        {
            if matches!(client.pass_through, PassThrough::Forward { .. }) {
                // No message can be sent to the server behind half a message.
                self.write_client(c, |out| how.write(b"", out));
            } else {
                self.clients[c].end = End::InCopy(how);
                return self.fail_copy(s, |_| Note::Inserted);
            }
        }
        self.leave(c);
    }

    /// Fails a COPY FROM STDIN whose client has left. The answer to the Sync that ends the unit is noted as `note`.
    pub(in crate::core) fn fail_copy(&mut self, s: usize, note: impl FnOnce(Timing) -> Note) {
        self.write_server(s, |out| {
            message::message(out, b'f', |out| {
                out.extend_from_slice(REASON);
                out.push(0);
            });
        });
        let server = &mut self.servers[s];
        server.protocol.ends_copy(Note::Client);
        if server.protocol.is_in_unit() {
            server.ends_unit(Request::Sync, note);
            self.write_server(s, |out| message::empty(out, b'S'));
        }
    }

    /// Returns PostgreSQL's error for a client that has ended in COPY, if the server's error is the answer to CopyFail. `None`: the COPY has failed
    /// by itself.
    pub(in crate::core) fn copy_ended(&mut self, c: usize, error: &[u8]) -> Option<Box<[u8]>> {
        let End::InCopy(how) = self.clients[c].end else { return None };
        let text = payload::error_field(error, b'M').unwrap_or_default();
        if payload::sqlstate(error) != Some(Sqlstate::QUERY_CANCELED) || !text.ends_with(REASON) {
            self.clients[c].end = End::Sent;
            return None;
        }
        self.clients[c].end = End::Told;
        let mut out = Vec::new();
        how.write(error, &mut out);
        Some(out.into())
    }

    /// Ends the session of a client that is owed nothing more. The connection stays until its answers are written.
    fn leave(&mut self, c: usize) {
        if self.clients[c].at.server().is_some() {
            self.abandon_server(c);
        }
        self.runs_nothing(self.clients[c].token);
        let client = &mut self.clients[c];
        client.replay.forget(&mut self.buffers);
        client.output.retract(&mut self.buffers);
        if client.output.is_empty() {
            return self.close_client(c);
        }
        let client = &mut self.clients[c];
        client.end = End::Reads;
        client.unit.reset();
        client.pass_through = PassThrough::No;
        self.buffers.give(std::mem::take(&mut client.input));
        self.leavers.0.push((client.token, self.now, client.output.len()));
        self.stop_listening(c);
    }

    /// Closes clients that have ended and have accepted no byte of their answers for too long.
    pub(in crate::core) fn expire_leavers(&mut self) {
        let mut leavers = std::mem::take(&mut self.leavers.0);
        leavers.retain_mut(|(token, since, left)| {
            let Some(client) = self.clients.get(token.index()).filter(|client| client.token == *token) else {
                return false;
            };
            let now = client.output.len();
            // The client cannot read bytes behind a gate.
            if now != *left || client.output.writable().is_empty() {
                (*since, *left) = (self.now, now);
            }
            let late = over(*since, PATIENCE, self.now);
            if late {
                self.metrics.clients_timed_out.add(1);
                self.close_client(token.index());
            }
            !late
        });
        self.leavers.0 = leavers;
    }
}
