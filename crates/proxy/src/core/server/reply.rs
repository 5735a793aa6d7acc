//! Messages of a server: the part that the client gets, and their meaning for the client.
//!
//! [`Protocol`](super::Protocol) finds the request that a message answers; the request's [`Note`] describes that request.

use std::sync::Arc;

use sql::Change;
use wire::message::{self, Status};
use wire::payload;
use wire::{Frame, HEADER, Sqlstate};

use super::note::{Note, Refusal, SentAs};
use super::protocol::{Reply, Request};
use super::{Begin, Cleaning, LastWord, ServerPhase, Work};
use crate::config::PoolMode;
use crate::core::observe::{Timing, rows_of};
use crate::core::parameters::{Applied, Circumstances, Completed, Followed, applied, changed};
use crate::core::prepared::{Columns, Statement, Unnamed};
use crate::core::routing::{ReplayCheck, Replayed};
use crate::core::session::{
    Aborted, Attempts, End, IN_FAILED_TRANSACTION, MOST_EXPECTED, NO_BLOCKS, PassThrough, Phase,
};
use crate::core::{Core, DESCRIPTION_MAX, DRAINING, HOLD_MAX, SMALL_MAX};

/// Treatment of a message from the server.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// Passed on to the client.
    Forward,
    /// Dropped.
    Swallow,
    /// Passed on to the client once the commit that it reports is durable.
    Gated,
    /// Passed on to the client; it ends a unit.
    Ready,
    /// Dropped; it ends a unit, or a statement of the proxy's.
    SwallowReady,
    /// Ends an early read: the client gets `ReadyForQuery` with the status of its transaction instead.
    Early { failed: bool },
    /// Ends a unit whose BEGIN failed: the client gets `ReadyForQuery` with a failed transaction instead.
    NotBegun,
    /// The client gets this message instead.
    Instead(Box<[u8]>),
    /// A notification: passed on with the process id of its sender as clients know it.
    Notified,
    /// The connection is closed, because otherwise the server would commit the changes of the client's unit.
    Close,
    /// Out of place: the connection can't be used any more.
    Broken(&'static str),
}

/// Receiver of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum For {
    /// The proxy itself.
    Own,
    /// The client; `unheard` if it has gone or its unit goes to another server.
    Client { unheard: bool },
}

impl Core {
    pub(in crate::core) fn server_received(&mut self, s: usize, bytes: &[u8]) {
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
        if self.servers[s].tunnel.is_some() {
            self.tunnel_received(s, &bytes[used..]);
            return bytes.len();
        }
        used + self.replies(s, &bytes[used..])
    }

    /// Handles the whole messages in `bytes`; gives the number of bytes used.
    fn replies(&mut self, s: usize, bytes: &[u8]) -> usize {
        let token = self.servers[s].token;
        // `bytes[from..used]` is for the client and not passed on yet.
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
                    self.forward_to_client(s, &bytes[from..used]);
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
            if there < frame.total() && there < longest_kept(frame.tag) {
                break;
            }
            if frame.tag == b'Z' && self.servers[s].tracker.listens() && self.holds_ready(s, rest[HEADER]) {
                // Until the shared connection listens, the client's LISTEN is not done: `ReadyForQuery` stays in the
                // input.
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
                    self.forward_to_client(s, &bytes[from..used]);
                    from = used;
                    used += there;
                    if let Some(c) = self.servers[s].client {
                        self.close_gate(c);
                    }
                }
                Verdict::Swallow => {
                    self.forward_to_client(s, &bytes[from..used]);
                    used += there;
                    from = used;
                }
                Verdict::Notified => {
                    self.forward_to_client(s, &bytes[from..used]);
                    self.pass_notification(s, &rest[HEADER..there]);
                    used += there;
                    from = used;
                }
                Verdict::Instead(message) => {
                    self.forward_to_client(s, &bytes[from..used]);
                    used += there;
                    from = used;
                    self.forward_to_client(s, &message);
                }
                Verdict::Ready | Verdict::SwallowReady | Verdict::NotBegun | Verdict::Early { .. } => {
                    let end = if verdict == Verdict::Ready { used + there } else { used };
                    let seal = self.ends_gated(s).filter(|_| verdict == Verdict::Ready);
                    let client = self.servers[s].client;
                    if seal.is_some()
                        && let Some(c) = client
                    {
                        self.forward_to_client(s, &bytes[from..used]);
                        from = used;
                        self.close_gate(c);
                    }
                    self.forward_to_client(s, &bytes[from..end]);
                    match (client, seal) {
                        (Some(c), Some(seal)) => self.seal_gate(c, seal),
                        (Some(c), None) => self.drop_unsealed_gate(c),
                        (None, _) => {}
                    }
                    if verdict == Verdict::Ready
                        && let Some(c) = client.filter(|&c| self.clients.contains(c))
                    {
                        // The proof was for this unit.
                        self.clients[c].proven = false;
                    }
                    if !self.is_server(token) {
                        return bytes.len();
                    }
                    used += there;
                    from = used;
                    if let (Verdict::Early { failed }, Some(c)) = (&verdict, self.servers[s].client) {
                        self.early_read_done(c, s, *failed);
                    }
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
                    // `unit_done` may move the connection to another worker, so the unhandled bytes have to be in its
                    // input.
                    self.servers[s].input.extend_from_slice(&bytes[used..]);
                    self.unit_done(s);
                    self.notify_between(listener);
                    if self.is_server(token) {
                        self.buffers.give(std::mem::take(&mut self.servers[s].input));
                    }
                }
                Verdict::Close => {
                    self.give_up_server(s);
                    return bytes.len();
                }
                Verdict::Broken(why) => {
                    self.server_closed(s, why);
                    return bytes.len();
                }
            }
            if !self.is_server(token) {
                return bytes.len();
            }
            if matches!(self.servers[s].protocol.front(), Some((Request::Nothing | Request::CopyEnd, _))) {
                self.forward_to_client(s, &bytes[from..used]);
                from = used;
                self.due_answers(s);
            }
        }
        self.forward_to_client(s, &bytes[from..used]);
        if self.pools[self.servers[s].pool].gate.relays > 0 || self.lacks_proof(s) {
            self.pause_gate(s);
            if !self.is_server(token) {
                return bytes.len();
            }
        }
        if let Some(c) = self.servers[s].client {
            let (client, owed) = (&mut self.clients[c], self.servers[s].protocol.owes());
            let waits = client.blocked && !client.input.is_empty() && owed == 0;
            let ends = client.end != End::No && !self.servers[s].protocol.will_answer(false);
            if waits || ends || (client.held_up && owed < MOST_EXPECTED / 2) {
                client.held_up = false;
                self.runnable.push_back(client.token);
            }
        }
        used
    }

    /// Sends the proxy's own answers whose turn has come.
    fn due_answers(&mut self, s: usize) {
        while let Some(note) = self.servers[s].protocol.due() {
            let Note::Answer { answer, undo } = note else { continue };
            let server = &self.servers[s];
            let Some(c) = server.client else { continue };
            let heard = !server.discard;
            self.clients[c].replay.answered(undo);
            if heard {
                self.write_client(c, |out| answer.write(out));
            }
        }
    }

    /// Passes bytes to the server connection's client.
    fn forward_to_client(&mut self, s: usize, bytes: &[u8]) {
        // Replies of a unit that goes to another server are dropped.
        if bytes.is_empty() || self.servers[s].discard {
            return;
        }
        let Some(c) = self.servers[s].client else { return };
        self.bar_reads(s);
        let meter = &mut self.servers[s].meter;
        meter.answered = meter.answered.saturating_add(bytes.len() as u32);
        if self.clients[c].output.held().is_some_and(|held| held + bytes.len() > HOLD_MAX) {
            self.give_up_replay(c);
        }
        self.write_client(c, |out| out.extend_from_slice(bytes));
        self.bound_gate(c);
        if self.clients[c].at.lane().is_some() && self.clients[c].output.unread() > self.settings.buffer_limit {
            self.hold_lane(s);
        }
    }

    // --- one message ---

    fn reply(&mut self, s: usize, tag: u8, data: &[u8], whole: bool) -> Verdict {
        let server = &mut self.servers[s];
        if tag == b'D'
            && server.client.is_some()
            && !server.discard
            && let Some((Request::Query | Request::Execute, Note::Query { .. } | Note::Execute { .. })) =
                server.protocol.front()
        {
            // A row for the client. Rows are the most frequent messages and change no state.
            return Verdict::Forward;
        }
        if tag == b'E'
            && let Some(last) = LastWord::read(data)
        {
            // The server closes the connection behind this; the error for the client is decided then.
            server.fatal = Some(last);
            return Verdict::Swallow;
        }
        if tag == b'D' && matches!(server.protocol.front(), Some((_, Note::Audit))) {
            server.cleaning.statements |= !whole || data == Cleaning::STATEMENTS_CHANGED;
        }
        let check = match server.protocol.front() {
            Some((_, Note::ReplayCheck(check))) => Some(*check),
            _ => None,
        };
        match (check, tag) {
            (Some(check), b'D') => server.replayed = Some(check.read_answer(data, whole)),
            // (An error of the unit as a whole comes behind the row.)
            (Some(_), b'E') => server.replayed = Some(Replayed::of_error(payload::sqlstate(data))),
            _ => {}
        }
        let whose = match server.protocol.front() {
            Some((_, Note::Own | Note::Audit | Note::Ahead | Note::ParseAhead(_) | Note::ReplayCheck(_))) => For::Own,
            Some((_, Note::Alias { ahead: true, .. })) => For::Own,
            _ => {
                let hears = server.client.is_some_and(|c| self.clients[c].end != End::Told);
                For::Client { unheard: server.discard || !hears }
            }
        };
        let unheard = whose != For::Client { unheard: false };
        let inserted = matches!(server.protocol.front(), Some((_, Note::Inserted | Note::Alias { .. }))) && tag != b'E';
        let verdict = if unheard || inserted { Verdict::Swallow } else { Verdict::Forward };
        match server.protocol.received(tag, data.first().copied()) {
            Reply::Parsed(note) => self.parsed(s, note, verdict),
            Reply::Bound(
                Note::Begin | Note::Own | Note::Audit | Note::Ahead | Note::ReplayCheck(_) | Note::Inserted,
            ) => Verdict::Swallow,
            Reply::Bound(_) => verdict,
            Reply::Closed(Note::Client) => verdict,
            Reply::Closed(_) => Verdict::Swallow,
            Reply::Parameters => self.parameters(s, data, whole, verdict),
            Reply::Described(note) => self.described(s, note, (tag, data, whole), verdict),
            Reply::Columns | Reply::Data => verdict,
            Reply::Completed(ended) => self.completed(s, ended, (tag, data), whose, verdict),
            Reply::CopyIn { ignored } => self.asked_for_copy(s, ignored, verdict),
            Reply::Failed { .. } if check.is_some() => Verdict::Swallow,
            Reply::Failed { failed, skipped } => self.failed(s, data, failed, skipped, whose, verdict),
            Reply::Ready(note) => self.ready_for_query(s, note, unheard || inserted),
            Reply::Aside => self.aside(s, tag, data, whose, verdict),
            Reply::Broken(why) => Verdict::Broken(why),
        }
    }

    fn parsed(&mut self, s: usize, note: Note, verdict: Verdict) -> Verdict {
        match note {
            Note::Parse { statement, undo, .. } => {
                statement.accept();
                if let Some(c) = self.servers[s].client {
                    self.clients[c].replay.answered(undo);
                }
                verdict
            }
            Note::ParseOwn(statement) | Note::ParseAhead(statement) => {
                statement.accept();
                Verdict::Swallow
            }
            Note::Doomed(_) => verdict,
            _ => Verdict::Swallow,
        }
    }

    /// Handles `ParameterDescription`.
    fn parameters(&mut self, s: usize, data: &[u8], whole: bool, verdict: Verdict) -> Verdict {
        let server = &mut self.servers[s];
        server.describing.clear();
        match server.protocol.front() {
            Some((_, Note::Check(_))) => Verdict::Swallow,
            Some((_, Note::Ask { .. })) => {
                if whole {
                    server.describing.extend_from_slice(data);
                }
                Verdict::Swallow
            }
            Some((_, Note::Describe { .. })) if whole => {
                server.describing.extend_from_slice(data);
                verdict
            }
            _ => verdict,
        }
    }

    /// Handles the `RowDescription` or `NoData` that ends a Describe.
    fn described(&mut self, s: usize, note: Note, (tag, data, whole): (u8, &[u8], bool), verdict: Verdict) -> Verdict {
        let parameters = std::mem::take(&mut self.servers[s].describing);
        match note {
            Note::Describe { statement, schema, undo, .. } => {
                if let Some(c) = self.servers[s].client {
                    self.clients[c].replay.answered(undo);
                }
                if whole {
                    self.statement_described(s, &statement, schema, &parameters, (tag, data));
                }
                verdict
            }
            Note::Check(statement) => {
                if whole && statement.has_columns(Columns::of(tag, data)) {
                    self.servers[s].statements.has_described(&statement);
                } else {
                    statement.outdate();
                    // This connection has the statement with other columns; it stays there unused, and the next use
                    // parses it under a new name.
                    self.servers[s].statements.spends(&statement);
                    if !self.servers[s].lane.is_empty() {
                        self.redo_alone(s);
                        return Verdict::Swallow;
                    }
                }
                let server = &self.servers[s];
                if let Some(c) = server.client
                    && server.lane.is_empty()
                {
                    self.runnable.push_back(self.clients[c].token);
                }
                Verdict::Swallow
            }
            Note::Ask { statement, held, asked } => {
                let types = Some(&parameters[..]).filter(|types| !types.is_empty());
                let now = self.pools[self.servers[s].pool].namespace.snapshot(self.now);
                statement.parses_as(types, whole.then(|| Columns::of(tag, data)), asked.answered(now));
                // (Two connections were the first at once. This one's client has the same as without the proxy; no other client gets the connection.)
                self.servers[s].retire |= held && types.is_some_and(|types| statement.settled_types() != types);
                // The client may wait with its Parse.
                if let Some(c) = self.servers[s].client {
                    self.runnable.push_back(self.clients[c].token);
                }
                Verdict::Swallow
            }
            _ => verdict,
        }
    }

    /// Handles a server's answer to a client's Describe of a statement.
    fn statement_described(
        &mut self,
        s: usize,
        statement: &Statement,
        schema: u64,
        parameters: &[u8],
        (tag, data): (u8, &[u8]),
    ) {
        if !statement.has_columns(Columns::of(tag, data)) {
            return statement.outdate();
        }
        if !parameters.is_empty() && !statement.has_types(parameters) {
            self.servers[s].retire = true;
            return;
        }
        self.servers[s].statements.has_described(statement);
        // A replica may not know of a schema change yet, so its description is not kept for others.
        let namespace = &self.pools[self.servers[s].pool].namespace;
        let behind = self.is_replica(s) && namespace.schema().has_changed_lately(self.now);
        if !parameters.is_empty() && !behind && statement.scope().is_some() {
            let mut messages = Vec::with_capacity(parameters.len() + data.len() + 2 * HEADER);
            message::message(&mut messages, b't', |out| out.extend_from_slice(parameters));
            message::message(&mut messages, tag, |out| out.extend_from_slice(data));
            statement.note_described(messages, self.now, schema);
        }
    }

    /// Handles `CommandComplete`, `EmptyQueryResponse` or `PortalSuspended`.
    fn completed(
        &mut self,
        s: usize,
        ended: Option<Note>,
        (tag, data): (u8, &[u8]),
        whose: For,
        verdict: Verdict,
    ) -> Verdict {
        if let Some(Note::Begin) = ended {
            self.servers[s].begin = Begin::No;
            return Verdict::Swallow;
        }
        if matches!(ended, Some(Note::Inserted)) {
            return Verdict::Swallow;
        }
        if whose == For::Own {
            let server = &mut self.servers[s];
            let all = data.starts_with(b"DISCARD ALL\0");
            if all || data.starts_with(b"DEALLOCATE ALL\0") {
                server.statements.drops_all();
                server.statements.set_unnamed(Unnamed::Unknown);
            }
            if all || data.starts_with(b"DISCARD PLANS\0") {
                server.function_plans.discard();
            }
            return Verdict::Swallow;
        }
        if tag == b's' {
            // `select set_config(…)` with a row limit: the portal is suspended, and the parameter is set.
            self.follow(s, ended.as_ref(), b"");
        }
        if tag != b'C' {
            return verdict;
        }
        self.follow(s, ended.as_ref(), data);
        let server = &mut self.servers[s];
        if data.starts_with(b"DISCARD ALL\0") && self.pools[server.pool].database.start.query.is_some() {
            // The settings of connect_query are gone: it runs again before the connection's next client.
            server.cleaning.all = true;
        }
        server.meter.rows = server.meter.rows.saturating_add(rows_of(data));
        if ended.is_none() && server.deallocating.is_some() {
            self.note_deallocated(s);
        }
        let server = &mut self.servers[s];
        let dropped = match &ended {
            Some(Note::Execute { dropped, .. }) => dropped.is_some(),
            None => matches!(server.protocol.front(), Some((_, Note::Query { dropped: Some(_), .. }))),
            _ => false,
        };
        if !dropped && (data.starts_with(b"DISCARD ALL\0") || data.starts_with(b"DEALLOCATE ALL\0")) {
            // The statement was one of several in its text, and nothing was sent behind it (`barrier`): names are
            // dropped now.
            server.statements.drops_all();
            if let Some(c) = server.client {
                self.clients[c].names.drop_all();
            }
        }
        if let Some(Note::Execute { dropped: Some(dropped), .. }) = ended
            && let Some(c) = self.servers[s].client
        {
            self.clients[c].replay.answered(dropped.names);
        }
        if verdict == Verdict::Forward && self.may_commit(s, data) { Verdict::Gated } else { verdict }
    }

    /// Follows the changes of parameters and channels of a client's completed statement.
    fn follow(&mut self, s: usize, ended: Option<&Note>, tag: &[u8]) {
        let server = &mut self.servers[s];
        let of = match (ended, server.protocol.front()) {
            (Some(Note::Execute { changes: Some(changes), .. }), _) => Completed::Portal(changes),
            (None, Some((_, Note::Query { changes: Some(changes), .. }))) => Completed::InQuery(changes),
            _ if server.tracker.follows_nothing() => return,
            _ => Completed::Other,
        };
        let params = server.client.filter(|_| !matches!(of, Completed::Other)).map(|c| &self.clients[c].params);
        let circumstances = params.map_or(Circumstances::default(), |params| Circumstances {
            role: params.get("role").is_some(),
            foreign: !params.is_utf8(),
        });
        let pins = match server.tracker.completed(of, tag, circumstances) {
            Followed::Yes => return,
            Followed::NotParameters => sql::Pins::SET,
            Followed::NotChannels => sql::Pins::LISTEN,
        };
        if let Some(c) = self.servers[s].client {
            self.pin(c, s, pins);
        }
    }

    fn asked_for_copy(&mut self, s: usize, ignored: Vec<Note>, verdict: Verdict) -> Verdict {
        let server = &mut self.servers[s];
        // The unit ends with a Sync that is still to come; that is counted as the ignored one would have been.
        if let Some(timing) = ignored.into_iter().filter_map(Note::into_timing).next() {
            server.meter.timing = timing;
        }
        match server.client {
            Some(c) => {
                self.give_up_replay(c);
                // Messages behind the data may have waited for this: `BEGIN`, then `P B E S d c S` in one packet.
                self.runnable.push_back(self.clients[c].token);
            }
            None if server.protocol.copies_in() => self.refuse_copy(s),
            // The client has gone. It sent all the data, but not the Sync that commits; nothing else may commit.
            None if server.protocol.is_in_unit() => return Verdict::Close,
            None => {}
        }
        verdict
    }

    /// Handles `ParameterStatus`, `NoticeResponse` and `NotificationResponse`.
    fn aside(&mut self, s: usize, tag: u8, data: &[u8], whose: For, verdict: Verdict) -> Verdict {
        let server = &mut self.servers[s];
        match tag {
            b'S' => {
                let Some((name, value)) = payload::parameter_status(data) else {
                    return Verdict::Broken("invalid ParameterStatus");
                };
                server.report(name, value);
                if whose != For::Own && server.tracker.in_force.is_reported(name) {
                    server.function_plans.literals_move();
                }
                let told = verdict == Verdict::Forward || (server.own.owes_ready && server.client.is_some());
                if told
                    && name == b"standard_conforming_strings"
                    && let Some(c) = server.client
                {
                    self.clients[c].odd_strings = value != b"on";
                }
                if told { Verdict::Forward } else { verdict }
            }
            b'A' if server.listener => {
                self.notified(s, data);
                verdict
            }
            // A notification may come ahead of the answer to a query of the proxy's.
            b'A' if !server.discard && self.hears_own(s, data) => Verdict::Notified,
            b'A' => Verdict::Swallow,
            _ => verdict,
        }
    }

    // --- the end of a unit ---

    fn ready_for_query(&mut self, s: usize, note: Note, unheard: bool) -> Verdict {
        let server = &mut self.servers[s];
        let idle = server.protocol.status() == Status::Idle;
        server.work.may_begin &= !server.protocol.is_settled();
        let unit = server.protocol.last_ended();
        match note {
            Note::Ahead => return Verdict::Swallow,
            Note::ReplayCheck(check) => return self.replay_check_ended(s, check),
            Note::Own if server.own.owes_ready && server.own.error.is_none() && server.client.is_some() => {
                server.own.owes_ready = false;
                return Verdict::Ready;
            }
            Note::Own | Note::Audit => {
                // `unit_done` looks at the result.
                server.own.done = true;
                return Verdict::SwallowReady;
            }
            _ => {}
        }
        if idle {
            server.portals.end(unit);
            server.work.seen = None;
        }
        server.own.ahead = None;
        server.deallocating = None;
        let goes_back = server.tracker.goes_back();
        self.settle_changes(s);
        self.servers[s].tracker.in_force.unit_ended(unit, idle);
        let failed = self.servers[s].meter.error.is_some();
        let note = if failed { self.query_failed(s, note) } else { note };
        self.servers[s].meter.ended = note.into_timing();
        self.count_end(s, !unheard);
        if goes_back && self.goes_back(s) {
            return Verdict::Swallow;
        }
        let server = &mut self.servers[s];
        let not_begun = server.begin == Begin::Failed;
        if not_begun {
            server.begin = Begin::No;
        }
        let early = server.client.is_some_and(|c| self.clients[c].begun.is_some());
        match (unheard, not_begun) {
            (true, _) => Verdict::SwallowReady,
            (false, true) => Verdict::NotBegun,
            (false, false) if early => Verdict::Early { failed },
            (false, false) => Verdict::Ready,
        }
    }

    /// Handles the `ReadyForQuery` of a replay check: the read behind it is dispatched again unless it is proven.
    fn replay_check_ended(&mut self, s: usize, check: ReplayCheck) -> Verdict {
        if self.replay_checked(s, check) {
            // The wait for the replica is no cost of the statement.
            self.servers[s].lane.read_begins(self.now);
            return Verdict::Swallow;
        }
        if self.servers[s].client.is_some_and(|c| self.clients[c].replay.is_none()) {
            return Verdict::Broken("a read that was not kept has run on a replica that is behind");
        }
        self.discard_rest(s);
        // Nothing of the unit was sent if the unit waited for an earlier answer.
        if self.servers[s].protocol.is_settled() { Verdict::SwallowReady } else { Verdict::Swallow }
    }

    /// Makes committed parameters the client's, at `ReadyForQuery`.
    fn settle_changes(&mut self, s: usize) {
        let server = &mut self.servers[s];
        let idle = server.protocol.status() == Status::Idle;
        let mut changes = server.tracker.ready(idle);
        if idle && server.protocol.is_quiet() {
            server.tracker.is_quiet();
        }
        changes.retain(Change::is_about_parameters);
        if changes.is_empty() {
            return;
        }
        if idle && let Some(style) = server.reports("DateStyle") {
            // `SET datestyle` may give only a part of the value (`ISO`); the server has reported the whole.
            let style = style.to_owned();
            for change in &mut changes {
                if let Change::Set(name, value) = change
                    && name == "datestyle"
                {
                    *value = sql::Value::Text(style.clone());
                }
            }
        }
        if let Applied::These(params) = &server.params {
            // A RESET on the server goes back to the connection's initial values.
            server.params = Applied::These(self.params.intern(applied(params, &changes)));
        }
        let Some(c) = server.client else { return };
        match changed(&self.clients[c].params, &self.clients[c].base, &changes) {
            Some(params) => {
                self.metrics.parameters_tracked.add(changes.len() as u64);
                self.clients[c].params = self.params.intern(params);
            }
            None => {
                // The client keeps this session, which has the values.
                self.pin(c, s, sql::Pins::SET);
                self.servers[s].params = Applied::These(self.clients[c].params.clone());
            }
        }
    }

    /// Continues after `ReadyForQuery` was passed on or dropped.
    fn unit_done(&mut self, s: usize) {
        if std::mem::take(&mut self.servers[s].own.done) {
            return self.own_query_done(s);
        }
        if !self.servers[s].lane.is_empty() {
            return self.seat_done(s);
        }
        let server = &mut self.servers[s];
        let Some(c) = server.client else {
            if server.protocol.is_quiet() {
                self.clean_up(s);
            }
            return;
        };
        if std::mem::take(&mut server.discard) {
            return self.replay(c, s);
        }
        let idle = server.protocol.status() == Status::Idle;
        if idle {
            self.settle_schema(s);
        }
        let server = &mut self.servers[s];
        let done = server.protocol.is_settled();
        let failed = server.work.failed;
        // (What is only about the session, such as SET, leaves nothing for later reads to see.)
        let may_have_written = server.work.changed || server.work.may_have_written;
        server.barrier &= !done;
        if done {
            // With nothing in flight, nothing can be committing.
            server.work.committing = false;
        }
        if idle && done {
            let work = std::mem::replace(&mut server.work, Work { alters: None, ..Work::default() });
            if !work.failed && !work.unpins.is_empty() {
                self.unpin(c, work.unpins);
            }
        }
        if done {
            self.runs_nothing(self.clients[c].token);
        }
        if !idle && done && self.pools[self.clients[c].pool].database.mode == PoolMode::Statement {
            // A transaction block in statement mode, begun in the middle of a text, by COMMIT AND CHAIN or by a
            // procedure.
            return self.fatal(c, Sqlstate::FEATURE_NOT_SUPPORTED, NO_BLOCKS);
        }
        self.note_cost(c, s, failed);
        let client = &mut self.clients[c];
        client.attempts = Attempts::default();
        if client.replay.forget(&mut self.buffers) {
            client.output.release();
        }
        if idle && may_have_written && !self.is_replica(s) {
            self.mark_write(c);
        }
        if idle && done && self.is_bound(c) && !self.servers[s].params.is(&self.clients[c].params) {
            // The client has reset its pinned session: the session is set to the client's initial values.
            let params = self.clients[c].params.clone();
            self.prepare_session(s, &params);
        }
        let client = &self.clients[c];
        let forwarding = matches!(client.pass_through, PassThrough::Forward { .. });
        let open = client.unit.routed || self.servers[s].protocol.is_in_unit() || forwarding;
        if idle && done && !open && !self.is_bound(c) && matches!(client.phase, Phase::Ready) {
            self.release(s);
        } else if self.draining && idle && done && !open && client.output.gates() == 0 {
            self.fatal(c, Sqlstate::ADMIN_SHUTDOWN, DRAINING);
        } else if client.has_more() {
            self.runnable.push_back(client.token);
        }
    }

    /// Records how long the unit took.
    fn note_cost(&mut self, c: usize, s: usize, failed: bool) {
        let client = &mut self.clients[c];
        let elapsed = self.now.saturating_duration_since(client.since);
        client.since = self.now;
        let micros = elapsed.as_micros() as u64;
        self.metrics.statement_micros.observe(micros);
        let totals = &mut self.pools[client.pool].totals;
        totals.queries += 1;
        totals.query_micros += micros;
        let meter = &mut self.servers[s].meter;
        let (measured, answered) = (std::mem::take(&mut meter.measured), std::mem::take(&mut meter.answered));
        if measured != 0 && !failed {
            self.lanes.costs.note(measured, crate::core::lane::micros(elapsed), answered);
        }
    }

    /// Releases the server that refused the unit, and sends the unit elsewhere.
    fn replay(&mut self, c: usize, s: usize) {
        self.release(s);
        if self.clients.contains(c) {
            self.send_again(c);
        }
    }

    /// Puts the kept unit back at the front of the client's input.
    pub(in crate::core) fn send_again(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if let Some((mut unit, begun)) = client.replay.take(&mut client.names) {
            // The end of the unit may still be in the input, because it waited for an answer to the beginning.
            let rest = if client.unit.routed { client.unit.scanned.min(client.input.len()) } else { 0 };
            unit.extend_from_slice(&client.input[rest..]);
            self.buffers.give(std::mem::replace(&mut client.input, unit));
            if let Some(begin) = begun {
                client.begun.begin(begin);
            }
        }
        client.attempts.admitted = true;
        client.unit.reset();
        self.runnable.push_back(client.token);
    }

    // --- errors ---

    /// Handles an `ErrorResponse`.
    fn failed(
        &mut self,
        s: usize,
        data: &[u8],
        failed: Option<Note>,
        skipped: Vec<Note>,
        whose: For,
        verdict: Verdict,
    ) -> Verdict {
        let code = payload::sqlstate(data).unwrap_or(Sqlstate::INTERNAL_ERROR);
        if let Some(Note::ParseOwn(statement) | Note::ParseAhead(statement)) = &failed
            && code.0.starts_with(b"42")
        {
            // The text may still be good, with other parameters.
            statement.does_not_parse();
        }
        if whose == For::Own {
            return self.own_failed(s, data, failed, skipped);
        }
        // A text did not find the client's statement, because it could not be parsed under the client's name: that error counts.
        let unfound = [Sqlstate::INVALID_STATEMENT_NAME, Sqlstate::IN_FAILED_TRANSACTION].contains(&code)
            && failed.is_none()
            && matches!(self.servers[s].protocol.front(), Some((_, Note::Query { .. })));
        let unparsed = self.servers[s].own.ahead.take_if(|_| unfound);
        let code = unparsed.as_ref().and_then(|error| payload::sqlstate(&error[HEADER..])).unwrap_or(code);
        let server = &mut self.servers[s];
        server.work.failed = true;
        server.work.erred = true;
        server.meter.error = Some(code);
        server.tracker.has_failed();
        if let Some(Note::Begin) = failed {
            self.begin_failed(s, skipped);
            return verdict;
        }
        // RevalidateCachedQuery: the statement was prepared on this connection before its table changed.
        let outdated = code == Sqlstate::FEATURE_NOT_SUPPORTED
            && payload::error_field(data, b'R') == Some(b"RevalidateCachedQuery");
        let relied_on = outdated && self.statement_outdated(s, failed.as_ref());
        let lacking = code == Sqlstate::INVALID_STATEMENT_NAME
            && matches!(failed, Some(Note::Bind(Some(_)) | Note::Describe { .. } | Note::Check(_)));
        let duplicate =
            code == Sqlstate::DUPLICATE_STATEMENT && matches!(failed, Some(Note::ParseOwn(_) | Note::Parse { .. }));
        let ahead = self.servers[s].own.ahead.take().filter(|_| lacking);
        if (lacking && ahead.is_none()) || duplicate {
            // The connection does not have the statements in `statements`.
            self.servers[s].retire = true;
        }
        // In a lane, another client's unit may have failed and the server skipped its Parse, which this unit relied on.
        let server = &self.servers[s];
        let shared = !server.lane.is_empty() && server.client.is_some_and(|c| self.clients[c].replay.is_some());
        let ended = server.client.and_then(|c| self.copy_ended(c, data));
        let server = &self.servers[s];
        let instead = match &failed {
            _ if ended.is_some() => ended,
            _ if ahead.is_some() => ahead,
            _ if unparsed.is_some() => unparsed.clone(),
            Some(Note::Refused(why)) => Some(self.refused(*why)),
            Some(Note::Missing(name)) if code == Sqlstate::INVALID_STATEMENT_NAME => Some(missing(data, name)),
            Some(Note::Doomed(name)) if code == Sqlstate::DUPLICATE_STATEMENT => Some(taken(data, name)),
            Some(Note::Finished(portal)) => Some(cannot_be_run(portal, server.protocol.answers_in_failed())),
            Some(_) => None,
            None => match server.protocol.front() {
                Some((_, Note::RefusedQuery { why, .. })) => Some(self.refused(*why)),
                Some((_, Note::FailedQuery { error, .. })) => Some(error.clone()),
                _ => None,
            },
        };
        let ends_query =
            matches!(failed, Some(Note::Alias { .. })) && skipped.iter().any(|note| matches!(note, Note::Query { .. }));
        self.take_back(s, failed, skipped);
        if ends_query {
            self.end_skipped_query(s);
        }
        if shared && verdict == Verdict::Forward && (lacking || code == Sqlstate::DUPLICATE_STATEMENT) {
            self.redo_alone(s);
            return Verdict::Swallow;
        }
        let goes_elsewhere = if outdated { !relied_on } else { self.is_replica(s) && is_refusal(code) };
        let replaced = instead.is_some() && unparsed.is_none();
        if verdict == Verdict::Forward && goes_elsewhere && !replaced && self.discard_unit(s, code, outdated) {
            return Verdict::Swallow;
        }
        if self.servers[s].protocol.is_skipping()
            && let Some(c) = self.servers[s].client
        {
            // Nothing ends this unit before the client's Sync, and the client may wait for the error first (`P; E; Q`
            // in one packet): the error is not held back.
            self.give_up_replay(c);
        }
        match instead {
            Some(message) if verdict == Verdict::Forward => Verdict::Instead(message),
            _ => verdict,
        }
    }

    /// Returns the error that the client gets in place of the server's.
    fn refused(&self, why: Refusal) -> Box<[u8]> {
        let mut message = Vec::new();
        why.write(&self.shared.traffic, &mut message);
        message.into()
    }

    /// Sends the unit in flight to another server, if that is possible; the rest of this server's replies is dropped.
    fn discard_unit(&mut self, s: usize, code: Sqlstate, outdated: bool) -> bool {
        let on_replica = self.is_replica(s);
        let Some(c) = self.servers[s].client else { return false };
        if self.clients[c].replay.is_none() || self.clients[c].attempts.count >= 3 || self.is_bound(c) {
            return false;
        }
        let client = &mut self.clients[c];
        client.output.retract(&mut self.buffers);
        client.attempts.count += 1;
        client.attempts.primary |= on_replica && !outdated;
        // A conflict with recovery says nothing about the statement itself.
        if !outdated && is_for_good(code) {
            let replay = std::mem::take(&mut client.replay);
            self.demote(c, replay.bytes());
            self.clients[c].replay = replay;
        }
        self.metrics.replays_refused.add(1);
        self.discard_rest(s);
        true
    }

    /// Drops the rest of this server's replies to the unit in flight, which goes to another server.
    fn discard_rest(&mut self, s: usize) {
        let server = &mut self.servers[s];
        server.discard = true;
        if server.protocol.is_in_unit() {
            // The unit's Sync goes to the other server; here the proxy ends the unit.
            server.ends_unit(Request::Sync, Note::Sync);
            self.write_server(s, |out| message::empty(out, b'S'));
        }
    }

    /// Handles a statement that has other columns than clients were sent. Returns true if this connection's client was sent them.
    fn statement_outdated(&mut self, s: usize, failed: Option<&Note>) -> bool {
        let (statement, asked) = match failed {
            Some(Note::Bind(Some(statement)) | Note::Check(statement)) => (statement, None),
            // The Describe itself failed: the client has not been sent columns under this name yet.
            Some(Note::Describe { statement, name, .. }) => (statement, Some(name)),
            _ => return false,
        };
        statement.outdate();
        // On this connection the statement stays, under a name that is not used again.
        self.servers[s].statements.spends(statement);
        let Some(c) = self.servers[s].client else { return false };
        let names = &mut self.clients[c].names;
        if let Some(name) = asked {
            names.set_told(name, false);
        }
        // A client that was sent the columns must get the error; any other gets a fresh statement unnoticed.
        names.is_told_of(statement, None)
    }

    /// Handles a failed statement of the proxy.
    fn own_failed(&mut self, s: usize, data: &[u8], failed: Option<Note>, skipped: Vec<Note>) -> Verdict {
        let server = &mut self.servers[s];
        match failed {
            // A Parse in a unit ahead of the client's. The client's Bind will fail, too, and then the client gets this
            // error.
            Some(failed) => {
                let mut message = Vec::new();
                message::message(&mut message, b'E', |out| out.extend_from_slice(data));
                server.own.ahead = Some(message.into());
                for note in skipped.into_iter().rev().chain([failed]) {
                    match note {
                        Note::ParseAhead(statement) => server.statements.loses(&statement),
                        Note::Alias { name, was, .. } => _ = server.statements.aliases.set(&name, was),
                        _ => {}
                    }
                }
            }
            None => _ = server.own.error.get_or_insert_with(|| data.to_vec()),
        }
        Verdict::Swallow
    }

    /// Handles a failed BEGIN, after which the server skips the messages behind it.
    fn begin_failed(&mut self, s: usize, skipped: Vec<Note>) {
        self.servers[s].begin = Begin::Failed;
        let query = skipped.iter().any(Note::ends_clients_unit);
        self.take_back(s, None, skipped);
        if query {
            self.end_skipped_query(s);
        }
    }

    /// Ends the unit of a Query that the server has skipped: the client sends no Sync behind a Query.
    fn end_skipped_query(&mut self, s: usize) {
        self.servers[s].protocol.sent(Request::Sync, Note::Sync(Timing::none(self.now)));
        self.write_server(s, |out| message::empty(out, b'S'));
    }

    /// Undoes the changes made for a message that failed, and for the messages that the server skipped behind it.
    fn take_back(&mut self, s: usize, failed: Option<Note>, skipped: Vec<Note>) {
        // The last change is undone first.
        for note in skipped.into_iter().rev() {
            self.was_skipped(s, note);
        }
        match failed {
            // PostgreSQL drops the unnamed statement before it looks at the text of a new one.
            Some(Note::Parse { statement, sent_as, undo: crate::core::prepared::Undo::Unnamed(_) }) => {
                self.not_parsed(s, &statement, sent_as);
                if let Some(c) = self.servers[s].client {
                    self.clients[c].names.unnamed_failed();
                }
            }
            Some(note) => self.was_skipped(s, note),
            None => {}
        }
    }

    fn was_skipped(&mut self, s: usize, mut note: Note) {
        if let Some(c) = self.servers[s].client {
            self.names_as_before(c, &mut note);
        }
        let statements = &mut self.servers[s].statements;
        match note {
            Note::Parse { statement, sent_as, .. } => self.not_parsed(s, &statement, sent_as),
            Note::ParseOwn(statement) | Note::ParseAhead(statement) => statements.loses(&statement),
            Note::ParseUnnamed => statements.set_unnamed(Unnamed::Unknown),
            Note::Evict(id) => statements.keeps(id),
            Note::Alias { name, was, .. } => _ = statements.aliases.set(&name, was),
            Note::Execute { dropped: Some(dropped), .. } | Note::Query { dropped: Some(dropped), .. } => {
                if let Some(was) = dropped.statements {
                    statements.undo(was);
                }
            }
            Note::Execute { dropped: None, .. } | Note::Query { dropped: None, .. } => {}
            Note::RefusedQuery { .. } | Note::FailedQuery { .. } | Note::Answer { .. } | Note::Describe { .. } => {}
            Note::Client | Note::Own | Note::Audit | Note::Begin | Note::Ahead | Note::Inserted | Note::CloseOwn => {}
            Note::ReplayCheck(_) => {}
            Note::Doomed(_) | Note::Bind(_) | Note::Missing(_) | Note::Refused(_) | Note::Finished(_) => {}
            Note::Check(_) | Note::Ask { .. } | Note::Sync(_) => {}
        }
    }

    /// Undoes a message's changes to its client's names.
    fn names_as_before(&mut self, c: usize, note: &mut Note) {
        for undo in note.take_undo() {
            self.clients[c].names.undo(undo);
        }
    }

    /// Handles a failed Query: prepared statements that it was to drop (DEALLOCATE ALL) all still exist.
    fn query_failed(&mut self, s: usize, note: Note) -> Note {
        let Note::Query { changes, undo, dropped: Some(mut dropped), timing } = note else { return note };
        if let Some(c) = self.servers[s].client {
            // (A failed Query has dropped the unnamed statement nevertheless.)
            self.clients[c].names.undo(std::mem::take(&mut dropped.names));
        }
        if let Some(was) = dropped.statements {
            self.servers[s].statements.undo(was);
        }
        Note::Query { changes, undo, dropped: None, timing }
    }

    fn not_parsed(&mut self, s: usize, statement: &Arc<Statement>, sent_as: SentAs) {
        let statements = &mut self.servers[s].statements;
        match sent_as {
            SentAs::Unnamed => statements.set_unnamed(Unnamed::Unknown),
            SentAs::Named => statements.loses(statement),
            // The name of a trial is not recorded.
            SentAs::Tried => {}
        }
    }

    /// Undoes the changes of names by messages that were not answered, after the connection is lost.
    pub(in crate::core) fn undo_owed(&mut self, s: usize, c: usize) {
        let owed = self.servers[s].protocol.abandon();
        for mut note in owed.into_iter().rev() {
            self.names_as_before(c, &mut note);
            if let Note::Query { timing, .. } | Note::Sync(timing) = note {
                self.span_lost(timing);
            }
        }
    }
}

/// Returns the number of bytes up to which a server's message is buffered until it is complete.
fn longest_kept(tag: u8) -> usize {
    match tag {
        // Rows, COPY data and function results are passed on as they come.
        b'D' | b'd' | b'V' => 0,
        // Descriptions are compared with others.
        b'T' | b't' => DESCRIPTION_MAX,
        _ => SMALL_MAX,
    }
}

/// Returns PostgreSQL's error for an Execute of a portal that was run to its end. PostgreSQL looks first whether the transaction has failed.
fn cannot_be_run(portal: &[u8], has_failed: bool) -> Box<[u8]> {
    let (code, text) = match has_failed {
        true => (Sqlstate::IN_FAILED_TRANSACTION, IN_FAILED_TRANSACTION.to_owned()),
        false => (
            Sqlstate::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("portal \"{}\" cannot be run", String::from_utf8_lossy(portal)),
        ),
    };
    let mut message = Vec::new();
    message::error(&mut message, wire::Severity::Error, code, &text, "");
    message.into()
}

/// Replaces the name in `prepared statement "?name" does not exist` by the client's name.
fn missing(data: &[u8], name: &[u8]) -> Box<[u8]> {
    if name.is_empty() {
        return with_text(data, |_| b"unnamed prepared statement does not exist".to_vec());
    }
    with_text(data, |text| replaced(text, &[b"?", name].concat(), name))
}

/// Replaces the name in `prepared statement "kp12" already exists` by the client's name.
fn taken(data: &[u8], name: &[u8]) -> Box<[u8]> {
    with_text(data, |text| {
        let digits = |from: usize| text[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let at = text.windows(2).position(|two| two == b"kp");
        match at {
            Some(at) => [&text[..at], name, &text[at + 2 + digits(at + 2)..]].concat(),
            None => text.to_vec(),
        }
    })
}

fn replaced(text: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    match text.windows(old.len()).position(|part| part == old) {
        Some(at) => [&text[..at], new, &text[at + old.len()..]].concat(),
        None => text.to_vec(),
    }
}

/// Returns an `ErrorResponse` with its text changed.
fn with_text(data: &[u8], change: impl Fn(&[u8]) -> Vec<u8>) -> Box<[u8]> {
    let mut out = Vec::new();
    message::message(&mut out, b'E', |out| {
        let mut rest = data;
        while let Some((&kind, after)) = rest.split_first().filter(|(kind, _)| **kind != 0) {
            let Some((value, after)) = payload::cstr(after) else { break };
            out.push(kind);
            if kind == b'M' {
                out.extend_from_slice(&change(value));
            } else {
                out.extend_from_slice(value);
            }
            out.push(0);
            rest = after;
        }
        out.push(0);
    });
    out.into()
}

/// Errors by which a replica reports that only the primary can run a statement.
fn is_for_good(code: Sqlstate) -> bool {
    matches!(
        code,
        Sqlstate::READ_ONLY_TRANSACTION
            | Sqlstate::FEATURE_NOT_SUPPORTED
            | Sqlstate::NOT_IN_PREREQUISITE_STATE
            // COPY of an unlogged table, whose file a replica does not have.
            | Sqlstate::UNDEFINED_FILE
    )
}

/// Errors of a replica where the primary may give another answer.
fn is_refusal(code: Sqlstate) -> bool {
    let behind = [&b"42P01"[..], b"42703", b"42883", b"42704", b"3F000", b"42P02"];
    is_for_good(code)
        // A conflict with recovery.
        || code == Sqlstate::SERIALIZATION_FAILURE
        // A table, column, function, type or schema that has not been replicated yet.
        || behind.contains(&&code.0[..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_a_statement_as_the_client_does() {
        let error = |text: &[u8]| [b"SERROR\0VERROR\0C26000\0M", text, b"\0Rx\0\0"].concat();
        let text = |message: Box<[u8]>| {
            let text = payload::error_field(&message[HEADER..], b'M').map(<[u8]>::to_vec);
            assert_eq!(payload::error_field(&message[HEADER..], b'R'), Some(&b"x"[..]));
            String::from_utf8(text.unwrap_or_default()).unwrap_or_default()
        };
        let data = error(b"prepared statement \"?s1\" does not exist");
        assert_eq!(text(missing(&data, b"s1")), "prepared statement \"s1\" does not exist");
        let data = error(b"prepared statement \"?\" does not exist");
        assert_eq!(text(missing(&data, b"")), "unnamed prepared statement does not exist");
        let data = error(b"prepared statement \"kp123\" already exists");
        assert_eq!(text(taken(&data, b"my name")), "prepared statement \"my name\" already exists");
        let data = error(b"something else");
        assert_eq!(text(taken(&data, b"s")), "something else");
    }
}
