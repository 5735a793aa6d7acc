//! A server's messages: which reply ends which request, and what of it the client gets.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use wire::message::{self, Status};
use wire::payload;
use wire::{Frame, HEADER, Sqlstate};

use super::client::{Aborted, Again, Phase};
use super::forward::MOST_EXPECTED;
use super::server::{Expect, Kept, Parsed, ServerPhase, Undo};
use super::statement::Statement;
use super::statistics;
use super::{Core, HOLD_MAX, SMALL_MAX};
use crate::config::PoolMode;

/// What becomes of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The client gets it.
    Forward,
    /// Nobody gets it.
    Swallow,
    /// The client gets it when what it says is durable.
    Gated,
    /// The client gets it, and it ends a unit.
    Ready,
    /// Nobody gets it, and it ends a unit or a statement of the proxy's own.
    SwallowReady,
    /// It ends a unit, and the client hears that its transaction has failed: it could not be begun.
    NotBegun,
    /// The client is told instead that the columns of its statement have changed.
    Outdated,
    /// The client gets it with the process id of its sender, as far as that is known.
    Notified,
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
            let long = matches!(frame.tag, b'D' | b'd' | b'V');
            if there < frame.total() && !long && there < SMALL_MAX {
                break;
            }
            if frame.tag == b'Z' && self.servers[s].sets.listens.open && self.holds_ready(s, rest[HEADER]) {
                // The unit ends when the shared connection listens: until then this message has not come.
                if rest.len() > SMALL_MAX
                    && let Some(c) = self.servers[s].client
                {
                    self.give_up_hold(c);
                }
                break;
            }
            let verdict = self.reply(s, frame.tag, &rest[HEADER..there], there == frame.total());
            let server = &mut self.servers[s];
            if there < frame.total() {
                server.pass = frame.total() - there;
                server.pass_on = verdict == Verdict::Forward;
            }
            match verdict {
                Verdict::Forward => used += there,
                Verdict::Gated => {
                    self.give(s, &bytes[from..used]);
                    from = used;
                    used += there;
                    if let Some(c) = self.servers[s].client {
                        self.close_gate(c);
                    }
                }
                Verdict::Swallow => {
                    self.give(s, &bytes[from..used]);
                    used += there;
                    from = used;
                }
                Verdict::Notified => {
                    self.give(s, &bytes[from..used]);
                    self.pass_notice(s, &rest[HEADER..there]);
                    used += there;
                    from = used;
                }
                Verdict::Ready | Verdict::SwallowReady | Verdict::NotBegun => {
                    let end = if verdict == Verdict::Ready { used + there } else { used };
                    let gated = self.ends_gated(s) && verdict == Verdict::Ready;
                    let client = self.servers[s].client;
                    if gated && let Some(c) = client {
                        self.give(s, &bytes[from..used]);
                        from = used;
                        self.close_gate(c);
                    }
                    self.give(s, &bytes[from..end]);
                    match client {
                        Some(c) if gated => self.seal_gate(c),
                        Some(c) => self.drop_open_gate(c),
                        None => {}
                    }
                    if !self.is_server(token) {
                        return bytes.len();
                    }
                    used += there;
                    from = used;
                    if verdict == Verdict::NotBegun
                        && let Some(c) = self.servers[s].client
                    {
                        self.clients[c].aborted = Aborted::Told;
                        self.ready(c);
                    }
                    let listener =
                        client.filter(|&c| self.clients[c].listening.is_some()).map(|c| self.clients[c].token);
                    if self.servers[s].lane.seats.len() > 1 {
                        self.seat_done(s);
                        self.notify_between(listener);
                        if !self.is_server(token) {
                            return bytes.len();
                        }
                        self.due_answers(s);
                        continue;
                    }
                    // It may go to another worker here and now: with all that it has said.
                    self.servers[s].input.extend_from_slice(&bytes[used..]);
                    self.unit_done(s);
                    self.notify_between(listener);
                    if self.is_server(token) {
                        self.buffers.give(std::mem::take(&mut self.servers[s].input));
                    }
                }
                Verdict::Outdated => {
                    self.give(s, &bytes[from..used]);
                    used += there;
                    from = used;
                    if let Some(c) = self.servers[s].client {
                        self.tell(c, outdated_plan);
                    }
                }
                Verdict::Broken(why) => {
                    self.server_closed(s, why);
                    return bytes.len();
                }
            }
            if !self.is_server(token) {
                return bytes.len();
            }
            if matches!(self.servers[s].expect.front(), Some(Expect::Answer { .. })) {
                self.give(s, &bytes[from..used]);
                from = used;
                self.due_answers(s);
            }
        }
        self.give(s, &bytes[from..used]);
        if self.pools[self.servers[s].pool].gate.relays > 0 {
            self.pause_gate(s);
            if !self.is_server(token) {
                return bytes.len();
            }
        }
        if let Some(c) = self.servers[s].client {
            let (client, owed) = (&mut self.clients[c], self.servers[s].expect.len());
            let waits = client.blocked && !client.input.is_empty() && owed == 0;
            if waits || (client.held_up && owed < MOST_EXPECTED / 2) {
                client.held_up = false;
                self.runnable.push_back(client.token);
            }
        }
        used
    }

    /// Gives answers of the proxy's own whose turn has come.
    fn due_answers(&mut self, s: usize) {
        while let Some(Expect::Answer { tag, .. }) = self.servers[s].expect.front() {
            let tag = *tag;
            let server = &mut self.servers[s];
            server.settled();
            if let Some(c) = server.client.filter(|_| !server.discard) {
                self.tell(c, |out| message::empty(out, tag));
            }
        }
    }

    /// Passes bytes to the server's client.
    fn give(&mut self, s: usize, bytes: &[u8]) {
        // What was said before a unit is given up is given up with it.
        if bytes.is_empty() || self.servers[s].discard {
            return;
        }
        let Some(c) = self.servers[s].client else { return };
        self.bar_reads(s);
        self.servers[s].answered = self.servers[s].answered.saturating_add(bytes.len() as u32);
        if self.clients[c].output.held().is_some_and(|held| held + bytes.len() > HOLD_MAX) {
            self.give_up_replay(c);
        }
        self.tell(c, |out| out.extend_from_slice(bytes));
        self.bound_gate(c);
        if self.clients[c].at.lane().is_some() && self.clients[c].output.len() > self.settings.buffer_limit {
            self.hold_lane(s);
        }
    }

    fn reply(&mut self, s: usize, tag: u8, data: &[u8], whole: bool) -> Verdict {
        let server = &mut self.servers[s];
        let own = matches!(server.expect.front(), Some(Expect::Setup));
        let unheard = own || server.discard || server.client.is_none();
        let told = !unheard || (server.owes_ready && server.client.is_some());
        let verdict = if unheard { Verdict::Swallow } else { Verdict::Forward };
        match tag {
            b'D' | b'd' | b'c' | b'H' | b'V' => {}
            b't' if matches!(server.expect.front(), Some(Expect::DescribeOwn(_))) => return Verdict::Swallow,
            b't' => {
                server.describing.clear();
                if whole && matches!(server.expect.front(), Some(Expect::Describe(Some(_), _))) {
                    server.describing.extend_from_slice(data);
                }
            }
            b'T' | b'n' => match server.expect.front() {
                Some(Expect::Describe(_, _)) => {
                    if let Some(Expect::Describe(Some(statement), schema)) = server.settled() {
                        self.described(s, &statement, schema, tag, data, whole);
                    }
                }
                Some(Expect::DescribeOwn(statement)) => {
                    let statement = statement.clone();
                    if statement.is_described_as(tag, data) {
                        server.has_described(&statement);
                    } else {
                        statement.outdated.store(true, Ordering::Relaxed);
                        // Under its name the server has something else now, and keeps it: nobody asks for it again.
                        server.prepared.remove(&statement.id);
                        if !server.lane.is_empty() {
                            server.settled();
                            self.redo_alone(s);
                            return Verdict::Swallow;
                        }
                    }
                    server.settled();
                    if let Some(c) = server.client
                        && server.lane.is_empty()
                    {
                        self.runnable.push_back(self.clients[c].token);
                    }
                    return Verdict::Swallow;
                }
                _ => {}
            },
            b'1' => match server.settled() {
                Some(Expect::Parse { statement, parsed }) => {
                    statement.accepted.store(true, Ordering::Relaxed);
                    if matches!(parsed, Parsed::Named | Parsed::Tried)
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
            b'2' => match server.settled() {
                Some(Expect::Bind(_)) => {}
                Some(Expect::BindOwn) => return Verdict::Swallow,
                _ => return Verdict::Broken("BindComplete without a Bind"),
            },
            b'3' => match server.settled() {
                Some(Expect::Close) => {}
                Some(Expect::CloseOwn(_)) => return Verdict::Swallow,
                _ => return Verdict::Broken("CloseComplete without a Close"),
            },
            b'C' if matches!(server.expect.front(), Some(Expect::ExecuteOwn)) => {
                server.settled();
                server.beginning = false;
                return Verdict::Swallow;
            }
            b'C' | b'I' | b's' => {
                if tag == b'C' && !own {
                    self.completed(s, data);
                }
                let server = &mut self.servers[s];
                server.copy_in = false;
                if data.starts_with(b"DISCARD ALL\0") || data.starts_with(b"DEALLOCATE ALL\0") {
                    server.prepared.clear();
                    server.unnamed = 0;
                    if let Some(c) = server.client.filter(|_| !own) {
                        self.clients[c].prepared = None;
                        self.clients[c].unnamed = None;
                    }
                }
                if tag == b'C' && !own {
                    server.rows = server.rows.saturating_add(statistics::rows(data));
                }
                if matches!(server.expect.front(), Some(Expect::Execute(_))) {
                    server.settled();
                }
                if tag == b'C' && !unheard && self.may_commit(s, data) {
                    return Verdict::Gated;
                }
            }
            b'G' => {
                if matches!(server.expect.front(), Some(Expect::Execute(_))) {
                    // Syncs already sent behind it are ignored: COPY data is read from here on.
                    while matches!(server.expect.get(1), Some(Expect::Sync)) {
                        server.expect.remove(1);
                        // What its end is counted under is that of the Sync to come.
                        if let Some(timing) = server.timings.pop_front() {
                            server.timing = timing;
                        }
                    }
                    // The Sync that ends this unit is still to come.
                    server.in_unit = true;
                }
                server.copy_in = true;
                match server.client {
                    Some(c) => self.give_up_replay(c),
                    None => self.refuse_copy(s),
                }
            }
            b'S' => {
                let Some((name, value)) = payload::parameter_status(data) else {
                    return Verdict::Broken("invalid ParameterStatus");
                };
                server.report(name, value);
                if told
                    && name == b"standard_conforming_strings"
                    && let Some(c) = server.client
                {
                    self.clients[c].odd_strings = value != b"on";
                }
                return if told { Verdict::Forward } else { verdict };
            }
            b'N' => {}
            b'A' if server.listener => self.notified(s, data),
            b'A' => return if !unheard && self.hears_own(s, data) { Verdict::Notified } else { Verdict::Swallow },
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
        if !server.settled().is_some_and(|expect| expect.ends_unit()) {
            return Verdict::Broken("ReadyForQuery out of order");
        }
        server.status = status;
        server.copy_in = false;
        server.may_begin &= !server.expect.is_empty();
        if own && server.owes_ready && server.setup_error.is_none() && server.client.is_some() {
            server.owes_ready = false;
            return Verdict::Ready;
        }
        if own {
            // The statements of the proxy's own are followed up in `unit_done`, too.
            server.own_done = true;
        } else {
            let goes_back = server.sets.goes_back;
            server.sets.query_ended();
            self.settle_changes(s);
            self.count_end(s, !unheard);
            if goes_back && self.goes_back(s) {
                return Verdict::Swallow;
            }
        }
        let not_begun = std::mem::take(&mut self.servers[s].begin_failed);
        match (unheard, not_begun) {
            (true, _) => Verdict::SwallowReady,
            (false, true) => Verdict::NotBegun,
            (false, false) => Verdict::Ready,
        }
    }

    /// The second part of a server's answer to a client's Describe of a statement, all of it or its beginning: what the columns are.
    fn described(&mut self, s: usize, statement: &Statement, schema: u64, tag: u8, data: &[u8], whole: bool) {
        let server = &mut self.servers[s];
        let parameters = std::mem::take(&mut server.describing);
        if !statement.is_described_as(tag, data) {
            return statement.outdated.store(true, Ordering::Relaxed);
        }
        server.has_described(statement);
        // A replica may not have heard of a change yet.
        let behind = || self.is_replica(s) && self.shared.registry.has_changed_lately(self.now);
        if whole && !parameters.is_empty() && !behind() {
            let mut messages = Vec::with_capacity(parameters.len() + data.len() + 2 * HEADER);
            message::message(&mut messages, b't', |out| out.extend_from_slice(&parameters));
            message::message(&mut messages, tag, |out| out.extend_from_slice(data));
            statement.note_described(messages, self.now, schema);
        }
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
        server.failed = true;
        server.erred = Some(payload::sqlstate(data).unwrap_or(Sqlstate::INTERNAL_ERROR));
        server.unit_erred = true;
        server.sets.undo();
        if server.beginning {
            self.begin_failed(s);
            return verdict;
        }
        let code = payload::sqlstate(data);
        // RevalidateCachedQuery: a statement that was prepared here before its table changed.
        let outdated = code == Some(Sqlstate::FEATURE_NOT_SUPPORTED)
            && payload::error_field(data, b'R') == Some(b"RevalidateCachedQuery");
        if matches!(server.expect.front(), Some(Expect::Outdated)) {
            self.drop_failed(s);
            return Verdict::Outdated;
        }
        let mut relied_on = false;
        if outdated
            && let Some(
                Expect::Bind(Some(statement)) | Expect::Describe(Some(statement), _) | Expect::DescribeOwn(statement),
            ) = server.expect.front()
        {
            statement.outdated.store(true, Ordering::Relaxed);
            // Who was told of its columns must hear of this; anybody else gets a fresh one without noticing.
            let prepared = server.client.and_then(|c| self.clients[c].prepared.as_mut());
            relied_on = prepared.is_some_and(|prepared| {
                let names = &prepared.names;
                let told = prepared.described.iter();
                let mut told =
                    told.filter(|name| names.get(*name).is_some_and(|known| Arc::ptr_eq(known, statement))).cloned();
                match (told.next(), told.next()) {
                    // Asked for just now, and under this name only: it has not been told yet.
                    (Some(name), None) if matches!(server.expect.front(), Some(Expect::Describe(..))) => {
                        prepared.described.remove(&name);
                        false
                    }
                    (first, _) => first.is_some(),
                }
            });
            // On this connection it stays as it is, under a name that nobody will ask for.
            server.prepared.remove(&statement.id);
        }
        let front = server.expect.front();
        let lacking = code == Some(Sqlstate::INVALID_STATEMENT_NAME)
            && matches!(front, Some(Expect::Bind(_) | Expect::Describe(..)));
        if lacking || (code == Some(Sqlstate::DUPLICATE_STATEMENT) && matches!(front, Some(Expect::ParseOwn { .. }))) {
            // What it has is not what it was thought to have. (A client's own wrong name does no more harm than a new connection.)
            server.retire = true;
        }
        // In a lane a statement may be missing because another client's unit, which was to prepare it, has failed.
        let server = &self.servers[s];
        let shared = !server.lane.is_empty() && server.client.is_some_and(|c| self.clients[c].replay.is_some());
        let missing = lacking || code == Some(Sqlstate::DUPLICATE_STATEMENT);
        self.drop_failed(s);
        if shared && verdict == Verdict::Forward && missing {
            self.redo_alone(s);
            return Verdict::Swallow;
        }
        let server = &self.servers[s];
        let on_replica = self.is_replica(s);
        if verdict == Verdict::Forward
            && let Some(c) = server.client
            && self.clients[c].replay.is_some()
            && self.clients[c].again.attempts < 3
            && !self.is_bound(c)
            && (if outdated { !relied_on } else { on_replica && code.is_some_and(is_refusal) })
        {
            let client = &mut self.clients[c];
            client.output.retract(&mut self.buffers);
            client.again.attempts += 1;
            client.again.primary |= on_replica && !outdated;
            let kept = std::mem::take(&mut client.replay);
            // A conflict with recovery says nothing of the statement.
            if !outdated && code.is_some_and(is_for_good) {
                self.demote(c, kept.bytes());
            }
            self.clients[c].replay = kept;
            self.servers[s].discard = true;
            self.metrics.replays_refused.add(1);
            let server = &mut self.servers[s];
            if server.in_unit {
                // The end of the unit, which was still to be sent, goes elsewhere with it: here it ends now.
                (server.in_unit, server.skipping) = (false, false);
                server.owe(Expect::Sync);
                self.send(s, |out| message::empty(out, b'S'));
            }
            return Verdict::Swallow;
        }
        verdict
    }

    /// Forgets what the server now skips, up to the next Sync.
    pub(super) fn drop_failed(&mut self, s: usize) {
        let server = &mut self.servers[s];
        server.copy_in = false;
        if server.expect.front().is_none_or(Expect::ends_unit) {
            server.skipping = server.expect.is_empty() && server.in_unit;
            return;
        }
        // A server that skips to Sync skips queries, too.
        let skipped = server.expect.iter().position(|e| matches!(e, Expect::Sync | Expect::Setup));
        let skipping = skipped.unwrap_or(server.expect.len());
        let run: Vec<Expect> = (0..skipping).filter_map(|_| server.settled()).collect();
        let mut prepared = server.client.and_then(|c| self.clients[c].prepared.as_mut());
        let own = |e: &&Expect| matches!(e, Expect::Parse { parsed: Parsed::Named | Parsed::Tried, .. });
        let parses = run.iter().filter(own).count();
        let mut names: Vec<Box<[u8]>> = match &mut prepared {
            Some(prepared) => prepared.parsing.drain(..parses.min(prepared.parsing.len())).collect(),
            None => Vec::new(),
        };
        // The last is taken back first.
        for expect in run.into_iter().rev() {
            match expect {
                Expect::Parse { statement, parsed: parsed @ (Parsed::Named | Parsed::Tried) } => {
                    if parsed == Parsed::Named {
                        server.prepared.remove(&statement.id);
                    }
                    if let (Some(prepared), Some(name)) = (&mut prepared, names.pop()) {
                        prepared.names.remove(&name);
                    }
                }
                Expect::Parse { statement, parsed: Parsed::Shared } => {
                    server.prepared.remove(&statement.id);
                }
                Expect::ParseOwn { statement, named: true } => {
                    server.prepared.remove(&statement.id);
                }
                Expect::Parse { parsed: Parsed::Unnamed, .. } | Expect::ParseOwn { named: false, .. } => {
                    server.unnamed = 0
                }
                // Of a name that was only tried there is nothing to keep.
                Expect::CloseOwn(0) => {}
                Expect::CloseOwn(id) => {
                    server.prepared.insert(id, Kept::default());
                }
                Expect::Answer { undo: Undo::Forget(name), .. } => {
                    if let Some(prepared) = &mut prepared {
                        prepared.names.remove(&name);
                    }
                }
                Expect::Answer { undo: Undo::Restore(name, statement), .. } => {
                    if let Some(prepared) = &mut prepared {
                        prepared.names.insert(name, statement);
                    }
                }
                _ => {}
            }
        }
        if skipped.is_none() {
            server.skipping = server.in_unit;
        }
    }

    /// `ReadyForQuery` has been passed on, or swallowed.
    fn unit_done(&mut self, s: usize) {
        if std::mem::take(&mut self.servers[s].own_done) {
            return self.own_query_done(s);
        }
        if !self.servers[s].lane.is_empty() {
            return self.seat_done(s);
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
        if idle {
            self.settle_schema(s);
        }
        let server = &mut self.servers[s];
        let done = server.expect.is_empty();
        let wrote = server.wrote;
        if done {
            // Nothing is in flight: nothing can be committing.
            server.committing = false;
            server.wrote &= !idle;
            server.changed &= !idle;
        }
        let in_unit = server.in_unit;
        let failed = server.failed;
        server.barrier &= !done;
        if idle && done {
            let failed = std::mem::take(&mut server.failed);
            let unpins = std::mem::take(&mut server.unpins);
            if !failed && !unpins.is_empty() {
                self.unpin(c, unpins);
            }
        }
        if !idle && done && self.pools[self.clients[c].pool].database.mode == PoolMode::Statement {
            // In the middle of a text, a COMMIT AND CHAIN, a procedure: it has begun all the same.
            return self.fatal(c, Sqlstate::FEATURE_NOT_SUPPORTED, super::unit::NO_BLOCKS);
        }
        let client = &mut self.clients[c];
        client.again = Again::default();
        let elapsed = self.now.saturating_duration_since(client.since);
        client.since = self.now;
        let micros = elapsed.as_micros() as u64;
        self.metrics.statement_micros.observe(micros);
        let totals = &mut self.pools[client.pool].totals;
        totals.queries += 1;
        totals.query_micros += micros;
        let server = &mut self.servers[s];
        let (measured, answered) = (std::mem::take(&mut server.measured), std::mem::take(&mut server.answered));
        if measured != 0 && !failed {
            self.costs.note(measured, super::lane::micros(elapsed), answered);
        }
        if client.replay.forget(&mut self.buffers) {
            client.output.release();
        }
        if let Some(prepared) = &mut client.prepared {
            prepared.closed.clear();
        }
        if idle && wrote && !self.is_replica(s) {
            self.mark_write(c);
        }
        if idle && done && self.is_bound(c) && !self.servers[s].params.is(&self.clients[c].params) {
            // It has reset its session: that is, to what it started with.
            let params = self.clients[c].params.clone();
            self.prepare_session(s, &params);
        }
        let client = &self.clients[c];
        let forwarding = matches!(client.pass, super::client::Pass::Forward(_));
        let open = client.unit.routed || in_unit || forwarding;
        if idle && done && !open && !self.is_bound(c) && matches!(client.phase, Phase::Ready) {
            self.release(s);
        } else if self.draining && idle && done && !open && client.output.gates() == 0 {
            self.fatal(c, Sqlstate::ADMIN_SHUTDOWN, super::DRAINING);
        } else if !client.input.is_empty() {
            self.runnable.push_back(client.token);
        }
    }

    /// What a client had in its session is gone from it.
    fn unpin(&mut self, c: usize, unpins: sql::Pins) {
        let client = &mut self.clients[c];
        let was_pinned = !client.pins.is_empty();
        client.pins = client.pins.without(unpins);
        if was_pinned && client.pins.is_empty() {
            self.metrics.clients_pinned.sub(1);
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
        if let Some(mut unit) = client.replay.take(&mut self.buffers) {
            // The end of the unit may be there still: it waited for an answer to its beginning.
            let rest = if client.unit.routed { client.unit.scanned.min(client.input.len()) } else { 0 };
            unit.extend_from_slice(&client.input[rest..]);
            self.buffers.give(std::mem::replace(&mut client.input, unit));
        }
        // What it has closed it finds again.
        if let Some(prepared) = &mut client.prepared {
            for (name, statement) in prepared.closed.drain(..).rev() {
                prepared.names.insert(name, statement);
            }
        }
        client.unit.reset();
        self.runnable.push_back(client.token);
    }
}

/// What PostgreSQL says when a prepared statement's columns have changed; drivers that cache statements know it by its
/// routine, and prepare again.
fn outdated_plan(out: &mut Vec<u8>) {
    message::message(out, b'E', |out| {
        out.extend_from_slice(
            b"SERROR\0VERROR\0C0A000\0Mcached plan must not change result type\0RRevalidateCachedQuery\0\0",
        );
    });
}

/// What a replica answers to a statement that only the primary can run.
fn is_for_good(code: Sqlstate) -> bool {
    matches!(
        code,
        Sqlstate::READ_ONLY_TRANSACTION
            | Sqlstate::FEATURE_NOT_SUPPORTED
            | Sqlstate::NOT_IN_PREREQUISITE_STATE
            // COPY of an unlogged table: a replica has no file of it.
            | Sqlstate::UNDEFINED_FILE
    )
}

/// What a replica answers to a statement that the primary may well answer otherwise.
fn is_refusal(code: Sqlstate) -> bool {
    let behind = [&b"42P01"[..], b"42703", b"42883", b"42704", b"3F000", b"42P02"];
    is_for_good(code)
        // A conflict with recovery.
        || code == Sqlstate::SERIALIZATION_FAILURE
        // A table, column, function, type or schema that it has not heard of yet.
        || behind.contains(&&code.0[..])
}
