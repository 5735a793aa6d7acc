//! A server's messages: which reply ends which request, and what of it the client gets.

use std::sync::atomic::Ordering;

use wire::message::{self, Status};
use wire::payload;
use wire::{Frame, HEADER, Sqlstate};

use super::client::{Again, Phase, Unit};
use super::server::{Expect, ServerPhase};
use super::{Core, HOLD_MAX, SMALL_MAX};

/// What becomes of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The client gets it.
    Forward,
    /// Nobody gets it.
    Swallow,
    /// The client gets it, and it ends a unit.
    Ready,
    /// Nobody gets it, and it ends a unit or a statement of the proxy's own.
    SwallowReady,
    /// It makes no sense: the connection can't be used any more.
    Broken(&'static str),
}

impl Core {
    pub(super) fn server_received(&mut self, s: usize, bytes: &[u8]) {
        let token = self.servers[s].token;
        if self.servers[s].input.is_empty() {
            let used = self.server_bytes(s, bytes);
            if self.is_server(token) && used < bytes.len() {
                let server = &mut self.servers[s];
                self.buffers.lend(&mut server.input).extend_from_slice(&bytes[used..]);
            }
        } else {
            let mut input = std::mem::take(&mut self.servers[s].input);
            input.extend_from_slice(bytes);
            let used = self.server_bytes(s, &input);
            if self.is_server(token) && used < input.len() {
                input.drain(..used);
                self.servers[s].input = input;
            } else {
                self.buffers.give(input);
            }
        }
    }

    fn server_bytes(&mut self, s: usize, bytes: &[u8]) -> usize {
        let token = self.servers[s].token;
        let mut used = 0;
        if !matches!(self.servers[s].phase, ServerPhase::Ready) {
            match self.login_replies(s, bytes) {
                Some(n) => used = n,
                None => return bytes.len(),
            }
            if !self.is_server(token) || !matches!(self.servers[s].phase, ServerPhase::Ready) {
                return used;
            }
        }
        used + self.replies(s, &bytes[used..])
    }

    /// Goes through as many messages as are there; says how many bytes were used.
    fn replies(&mut self, s: usize, bytes: &[u8]) -> usize {
        let token = self.servers[s].token;
        // What of `bytes` the client gets and has not got yet starts at `from`.
        let (mut used, mut from) = (0, 0);
        loop {
            let rest = &bytes[used..];
            if rest.is_empty() {
                break;
            }
            let server = &mut self.servers[s];
            if server.pass > 0 {
                let n = server.pass.min(rest.len());
                server.pass -= n;
                if !server.pass_on {
                    self.give(s, &bytes[from..used]);
                    from = used + n;
                }
                used += n;
                continue;
            }
            let frame = match Frame::read(rest) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => {
                    self.server_closed(s, &error.to_string());
                    return bytes.len();
                }
            };
            let there = frame.total().min(rest.len());
            let long = matches!(frame.tag, b'D' | b'd' | b'T' | b'V');
            if there < frame.total() && !long && there < SMALL_MAX {
                break;
            }
            let verdict = self.reply(s, frame.tag, &rest[HEADER..there]);
            let server = &mut self.servers[s];
            if there < frame.total() {
                server.pass = frame.total() - there;
                server.pass_on = verdict == Verdict::Forward;
            }
            match verdict {
                Verdict::Forward => used += there,
                Verdict::Swallow => {
                    self.give(s, &bytes[from..used]);
                    used += there;
                    from = used;
                }
                Verdict::Ready => {
                    used += there;
                    self.give(s, &bytes[from..used]);
                    from = used;
                    self.unit_done(s);
                }
                Verdict::SwallowReady => {
                    self.give(s, &bytes[from..used]);
                    used += there;
                    from = used;
                    self.unit_done(s);
                }
                Verdict::Broken(why) => {
                    self.server_closed(s, why);
                    return bytes.len();
                }
            }
            if !self.is_server(token) {
                return bytes.len();
            }
            // Answers of the proxy's own whose turn has come.
            while let Some(Expect::Answer(tag)) = self.servers[s].expect.front() {
                let tag = *tag;
                self.servers[s].expect.pop_front();
                self.give(s, &bytes[from..used]);
                from = used;
                if let Some(c) = self.servers[s].client {
                    self.tell(c, |out| message::empty(out, tag));
                }
            }
        }
        self.give(s, &bytes[from..used]);
        used
    }

    /// Passes bytes to the server's client.
    fn give(&mut self, s: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let Some(c) = self.servers[s].client else { return };
        if self.clients[c].output.held().is_some_and(|held| held + bytes.len() > HOLD_MAX) {
            self.give_up_replay(c);
        }
        self.tell(c, |out| out.extend_from_slice(bytes));
    }

    fn reply(&mut self, s: usize, tag: u8, data: &[u8]) -> Verdict {
        let server = &mut self.servers[s];
        let own = matches!(server.expect.front(), Some(Expect::Setup));
        let unheard = own || server.discard || server.client.is_none();
        let verdict = if unheard { Verdict::Swallow } else { Verdict::Forward };
        match tag {
            b'D' | b'd' | b'c' | b'H' | b'V' | b't' => {}
            b'T' | b'n' => {
                if matches!(server.expect.front(), Some(Expect::Describe)) {
                    server.expect.pop_front();
                }
            }
            b'1' => match server.expect.pop_front() {
                Some(Expect::Parse { statement, of_client, named }) => {
                    statement.accepted.store(true, Ordering::Relaxed);
                    if of_client
                        && named
                        && let Some(prepared) = server.client.and_then(|c| self.clients[c].prepared.as_mut())
                    {
                        prepared.parsing.pop_front();
                    }
                }
                Some(Expect::ParseOwn { statement, .. }) => {
                    statement.accepted.store(true, Ordering::Relaxed);
                    return Verdict::Swallow;
                }
                _ => return Verdict::Broken("ParseComplete without a Parse"),
            },
            b'2' => {
                if !matches!(server.expect.pop_front(), Some(Expect::Bind)) {
                    return Verdict::Broken("BindComplete without a Bind");
                }
            }
            b'3' => match server.expect.pop_front() {
                Some(Expect::Close) => {}
                Some(Expect::CloseOwn(_)) => return Verdict::Swallow,
                _ => return Verdict::Broken("CloseComplete without a Close"),
            },
            b'C' | b'I' | b's' => {
                server.copy_in = false;
                if data.starts_with(b"DISCARD ALL\0") || data.starts_with(b"DEALLOCATE ALL\0") {
                    server.prepared.clear();
                    server.unnamed = 0;
                }
                if matches!(server.expect.front(), Some(Expect::Execute)) {
                    server.expect.pop_front();
                }
            }
            b'G' => {
                if matches!(server.expect.front(), Some(Expect::Execute)) {
                    // Syncs already sent behind it are ignored: COPY data is read from here on.
                    while matches!(server.expect.get(1), Some(Expect::Sync)) {
                        server.expect.remove(1);
                    }
                }
                server.copy_in = true;
                if let Some(c) = server.client {
                    self.give_up_replay(c);
                }
            }
            b'S' => {
                let Some((name, value)) = payload::parameter_status(data) else {
                    return Verdict::Broken("invalid ParameterStatus");
                };
                server.report(name, value);
                if !unheard
                    && name == b"standard_conforming_strings"
                    && let Some(c) = server.client
                {
                    self.clients[c].odd_strings = value != b"on";
                }
            }
            b'N' | b'A' => {}
            b'E' => return self.failed(s, data, verdict),
            b'Z' => return self.ready_for_query(s, data, own, unheard),
            _ => return Verdict::Broken("a message that makes no sense here"),
        }
        verdict
    }

    fn ready_for_query(&mut self, s: usize, data: &[u8], own: bool, unheard: bool) -> Verdict {
        let server = &mut self.servers[s];
        let Some(status) = data.first().copied().and_then(Status::from_byte) else {
            return Verdict::Broken("invalid ReadyForQuery");
        };
        if !server.expect.pop_front().is_some_and(|expect| expect.ends_unit()) {
            return Verdict::Broken("ReadyForQuery out of order");
        }
        server.status = status;
        server.copy_in = false;
        if own {
            // The statements of the proxy's own are followed up in `unit_done`, too.
            server.own_done = true;
        }
        if unheard { Verdict::SwallowReady } else { Verdict::Ready }
    }

    /// An `ErrorResponse`.
    fn failed(&mut self, s: usize, data: &[u8], verdict: Verdict) -> Verdict {
        let server = &mut self.servers[s];
        let severity = payload::error_field(data, b'V').or_else(|| payload::error_field(data, b'S'));
        if matches!(severity, Some(b"FATAL" | b"PANIC")) {
            // The connection ends here. What its client is told is decided when it is gone.
            let text = payload::error_field(data, b'M').map(String::from_utf8_lossy).unwrap_or_default();
            server.fatal = Some(text.into_owned());
            return Verdict::Swallow;
        }
        if matches!(server.expect.front(), Some(Expect::Setup)) {
            server.setup_error.get_or_insert_with(|| data.to_vec());
            return Verdict::Swallow;
        }
        let code = payload::sqlstate(data);
        // RevalidateCachedQuery: a statement that was prepared here before its table changed.
        let outdated = code == Some(Sqlstate::FEATURE_NOT_SUPPORTED)
            && payload::error_field(data, b'R') == Some(b"RevalidateCachedQuery");
        if outdated && let Some(Expect::Bind | Expect::Execute | Expect::Describe) = server.expect.front() {
            // Which one it was is not said; they are prepared again where they are next used.
            server.retire = true;
        }
        self.drop_failed(s);
        let server = &self.servers[s];
        let on_replica = !self.is_primary(s);
        if verdict == Verdict::Forward
            && let Some(c) = server.client
            && self.clients[c].replay.is_some()
            && self.clients[c].again.attempts < 3
            && ((on_replica && is_refusal(code)) || outdated)
        {
            let client = &mut self.clients[c];
            client.output.retract(&mut self.buffers);
            client.again.attempts += 1;
            client.again.primary |= on_replica && !outdated;
            let unit = client.replay.take().unwrap_or_default();
            // A conflict with recovery says nothing of the statement.
            if !outdated && code != Some(Sqlstate::SERIALIZATION_FAILURE) {
                self.demote(c, &unit);
            }
            self.clients[c].replay = Some(unit);
            self.servers[s].discard = true;
            self.metrics.replays_refused.add(1);
            return Verdict::Swallow;
        }
        verdict
    }

    /// Forgets what the server now skips, up to the next Sync.
    fn drop_failed(&mut self, s: usize) {
        let server = &mut self.servers[s];
        server.copy_in = false;
        while let Some(expect) = server.expect.front() {
            if expect.ends_unit() {
                return;
            }
            match server.expect.pop_front() {
                Some(Expect::Parse { statement, named, of_client }) => {
                    if named && of_client {
                        server.prepared.remove(&statement.id);
                        if let Some(prepared) = server.client.and_then(|c| self.clients[c].prepared.as_mut())
                            && let Some(name) = prepared.parsing.pop_front()
                        {
                            prepared.names.remove(&name);
                        }
                    } else if !named {
                        server.unnamed = 0;
                    }
                }
                Some(Expect::ParseOwn { statement, named }) => {
                    if named {
                        server.prepared.remove(&statement.id);
                    } else {
                        server.unnamed = 0;
                    }
                }
                Some(Expect::CloseOwn(id)) => {
                    server.prepared.insert(id, 0);
                }
                _ => {}
            }
        }
        server.skipping = server.in_unit;
    }

    /// `ReadyForQuery` has been passed on, or swallowed.
    fn unit_done(&mut self, s: usize) {
        if std::mem::take(&mut self.servers[s].own_done) {
            return self.own_query_done(s);
        }
        let server = &mut self.servers[s];
        let Some(c) = server.client else {
            if server.expect.is_empty() && !server.in_unit {
                self.clean_up(s);
            }
            return;
        };
        if std::mem::take(&mut server.discard) {
            return self.replay(c, s);
        }
        let idle = server.status == Status::Idle;
        let done = server.expect.is_empty();
        let wrote = server.wrote;
        if idle && done {
            server.wrote = false;
            server.committing = false;
        }
        let in_unit = server.in_unit;
        let client = &mut self.clients[c];
        client.again = Again::default();
        let micros = self.now.saturating_duration_since(client.since).as_micros() as u64;
        self.metrics.statement_micros.observe(micros);
        if let Some(replay) = client.replay.take() {
            self.buffers.give(replay);
            client.output.release();
        }
        if idle && wrote {
            self.mark_write(c);
        }
        let client = &self.clients[c];
        let forwarding = matches!(client.pass, super::client::Pass::Forward(_));
        let open = client.unit.routed || in_unit || forwarding;
        if idle && done && !open && !self.is_bound(c) && matches!(client.phase, Phase::Ready) {
            self.release(s);
        } else if !client.input.is_empty() {
            self.runnable.push_back(client.token);
        }
    }

    /// The unit that this server refused goes elsewhere.
    fn replay(&mut self, c: usize, s: usize) {
        self.release(s);
        if self.clients.contains(c) {
            self.send_again(c);
        }
    }

    /// Puts the kept unit back in front of the client's input.
    pub(super) fn send_again(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if let Some(mut unit) = client.replay.take() {
            unit.extend_from_slice(&client.input);
            self.buffers.give(std::mem::replace(&mut client.input, unit));
        }
        client.unit = Unit::default();
        self.runnable.push_back(client.token);
    }
}

/// What a replica answers to a statement that only the primary can run, or that it had to give up.
fn is_refusal(code: Option<Sqlstate>) -> bool {
    matches!(
        code,
        Some(
            Sqlstate::READ_ONLY_TRANSACTION
                | Sqlstate::FEATURE_NOT_SUPPORTED
                | Sqlstate::NOT_IN_PREREQUISITE_STATE
                | Sqlstate::SERIALIZATION_FAILURE
        )
    )
}
