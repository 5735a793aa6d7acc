//! Shared lanes: statements of many clients, one behind the other on one server connection.
//!
//! A unit that is one plain read, and a whole implicit transaction, needs no server connection to itself. It can be
//! written behind units of other clients, each with its own `Sync` (a `Query` needs none): `P B E S` of client 1, then
//! `P B E S` of client 2. The answers come back in the same order. Such a server connection is a **lane**, and each
//! unit in it has a **seat**. PostgreSQL answers a batch with fewer wake-ups and system calls, and so does the proxy.
//!
//! Invariants:
//!
//! - The front seat's client is the server connection's `client`, so `reply` need not know of lanes. Clients of the
//!   other seats are `At::Lane`, and get nothing until their seat is in front.
//! - A seat's unit is kept and its answer is held back, as with any read (`Client::replay`). If the unit fails for a
//!   reason that lies outside of it, the unit is sent again, and `alone`: on a connection to itself. (After a lost
//!   connection it is alone only from the second loss on.)
//! - A seat whose client has gone or moved on stays until the server has answered it; the answer is dropped.
//! - No unit enters a lane that is held up (`Lane::closed`, a slow front seat), or while clients wait for a connection
//!   to that node. So every lane comes to an end and its connection becomes free, however many clients there are.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use topology::Role;
use wire::frontend::{Message, messages};
use wire::payload::Named;
use wire::{Sqlstate, message};

mod cost;
mod fit;
mod width;

use self::cost::{Costs, Fit};
use self::fit::{Candidate, Pick, is_fit, pick, seats_for};
use self::width::Bounds;
use crate::core::memory::Token;
use crate::core::pool::{Budget, KEEP, NodeRequest};
use crate::core::prepared::{Statement, Undo, Unnamed};
use crate::core::server::{LastWord, Note, Request, SentAs, Server, ServerPhase};
use crate::core::session::{At, Attempts, Phase, error};
use crate::core::{Core, DRAINING, Effect, over};

pub(in crate::core) use self::fit::is_plain;
pub(in crate::core) use self::width::{LaneWidth, Tally};
use crate::config::PoolMode;
use crate::core::report::LaneReport;

/// From this many units in a worker's lanes on, the worker lets answers gather.
const MANY: usize = 8;

/// A worker's lanes.
#[derive(Default)]
pub(in crate::core) struct Lanes {
    /// Server connections that are lanes now.
    open: Vec<usize>,
    /// Measured costs of statements, by shape.
    pub(in crate::core) costs: Costs,
}

impl Lanes {
    /// True if the worker has a lane.
    pub(in crate::core) fn any(&self) -> bool {
        !self.open.is_empty()
    }

    /// True if this server connection is a lane.
    pub(in crate::core) fn has(&self, s: usize) -> bool {
        self.open.contains(&s)
    }
}

/// The units that share a server connection.
pub(in crate::core) struct Lane {
    /// The units in the order in which they were sent.
    pub seats: VecDeque<Seat>,
    /// Since when the front seat's unit has been running.
    since: Instant,
    /// True if no unit may enter; the connection leaves the lane when the last seat is empty.
    closed: bool,
    /// Units admitted since the connection was last free.
    admitted: u32,
}

/// A unit in a lane.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct Seat {
    /// The client that gets the answer; `None` if it has gone or moved on.
    pub client: Option<usize>,
    /// The statement's shape, for the table of costs.
    key: u64,
}

// === impl Lane ===

impl Lane {
    pub(in crate::core) fn new(now: Instant) -> Lane {
        Lane { seats: VecDeque::new(), since: now, closed: false, admitted: 0 }
    }

    pub(in crate::core) fn is_empty(&self) -> bool {
        self.seats.is_empty()
    }

    /// Notes that the front seat's unit begins to run now, behind a replay check.
    pub(in crate::core) fn read_begins(&mut self, now: Instant) {
        self.since = now;
    }

    /// Returns the lane's state for the console; `None` if the connection is no lane. `width`: of the lanes to this node.
    fn report(&self, width: usize) -> Option<LaneReport> {
        (!self.is_empty()).then_some(LaneReport {
            statements: self.seats.len(),
            admitted: self.admitted,
            width,
            since: self.since,
            closed: self.closed,
        })
    }
}

impl Core {
    // --- entering ---

    /// Puts the client's unit, whose bytes are `unit`, into a lane. False if the unit has to go another way. `queued`:
    /// the client is at the front of the pool's queue.
    pub(in crate::core) fn enter_lane(&mut self, c: usize, request: NodeRequest, unit: &[u8], queued: bool) -> bool {
        let client = &self.clients[c];
        let (p, key) = (client.pool, client.unit.key);
        let database = &self.pools[p].database;
        let candidate = Candidate {
            on: database.lanes
                && database.mode != PoolMode::Session
                && !self.pools[p].paused
                && !self.pools[p].suspended,
            unit: *client.unit,
            pinned: !client.pins.is_empty() || (client.begun.is_some() && !client.unit.early),
            alone: client.attempts.alone,
        };
        if !is_fit(&candidate) || !matches!(client.phase, Phase::Ready) || unit.len() != client.unit.scanned {
            return false;
        }
        if self.pools[p].odd_strings && !client.odd_strings {
            // The client's texts were not read as its server connection reads them: `attach` has them read again.
            return false;
        }
        let lanes = &self.settings.lanes;
        let seats = match self.lanes.costs.fit(key, micros(lanes.slow), lanes.bytes, self.now) {
            Fit::Fits(micros) => seats_for(micros, lanes),
            Fit::Unknown => {
                self.metrics.lane_unknown.add(1);
                return false;
            }
            Fit::Slow => {
                self.metrics.lane_slow.add(1);
                return false;
            }
            Fit::Large => {
                self.metrics.lane_large.add(1);
                return false;
            }
        };
        let node = match request {
            NodeRequest::Primary => self.view.primary,
            NodeRequest::Read => self.read_node(p, c),
            NodeRequest::Any => None,
        };
        let Some(node) = node else { return false };
        let pool = &self.pools[p];
        let begins = self.clients[c].begun.is_some();
        if (pool.gate.barrier || begins) && self.view.node(node).is_none_or(|node| node.role != Role::Replica) {
            return false;
        }
        let others = !pool.readers.is_empty() || (self.view.primary == Some(node) && !pool.writers.is_empty());
        if others && !queued {
            return false;
        }
        let Some(place) = pool.nodes.get(usize::from(node.0)) else { return false };
        let wanted = &self.clients[c].params;
        let idle = place.idle.iter().rposition(|&s| self.servers[s].params.is(wanted));
        let open = place.lanes.iter().enumerate().filter(|&(_, &s)| self.is_open(c, s));
        let open = open.map(|(position, &s)| (position, self.servers[s].lane.seats.len()));
        let width = self.lane_width(&place.budget);
        let s = match pick(open, place.lanes.len(), idle.is_some(), seats, width) {
            Pick::Join(position) => {
                let s = place.lanes[position];
                if place.lanes.len() < width {
                    if !place.idle.is_empty() {
                        // An idle connection with other parameters can be set to this client's, and become the next
                        // lane.
                        return false;
                    }
                    if place.connecting == 0 {
                        self.open_one(p, node);
                    }
                }
                s
            }
            Pick::Start => {
                let Some(at) = idle else { return false };
                let place = &mut self.pools[p].nodes[usize::from(node.0)];
                let s = place.idle.remove(at);
                self.begin_lane(s);
                s
            }
            Pick::None => return false,
        };
        self.take_seat(c, s, unit);
        true
    }

    /// Returns the limits of the width for a pool and node.
    fn lane_bounds(&self, budget: &Budget) -> Bounds {
        let (least, most) = (self.settings.lanes.width, self.settings.lanes.most_width);
        Bounds { least, most: most.min(budget.size().div_ceil(self.shared.workers.max(1))) }
    }

    /// Returns the number of lanes that this worker has for a pool and node before statements share them.
    fn lane_width(&self, budget: &Budget) -> usize {
        budget.lane_width().get(self.lane_bounds(budget))
    }

    /// Tells the other workers what this one has counted in its lanes of a pool and node.
    fn tell_lane_tally(&mut self, p: usize, n: usize) {
        let bounds = self.lane_bounds(&self.pools[p].nodes[n].budget);
        let place = &mut self.pools[p].nodes[n];
        place.budget.lane_width().tell(&mut place.lane_tally, bounds, self.now);
    }

    /// Returns the report on a lane; `None` if the connection is none.
    pub(in crate::core) fn lane_report(&self, server: &Server) -> Option<LaneReport> {
        let budget = &self.pools.get(server.pool)?.nodes.get(usize::from(server.node.0))?.budget;
        server.lane.report(self.lane_width(budget))
    }

    /// True if this client's unit can be sent behind the units in this lane.
    fn is_open(&self, c: usize, s: usize) -> bool {
        let server = &self.servers[s];
        let place = &self.pools[server.pool].nodes[usize::from(server.node.0)];
        let aged = server.is_aged(self.pools[server.pool].database.server_lifetime, self.now);
        !server.lane.closed
            && !server.retire
            && !server.paused
            && server.cancels == 0
            && !aged
            && !over(server.lane.since, self.settings.lanes.slow, self.now)
            && server.output.len() < self.settings.buffer_limit
            && server.params.is(&self.clients[c].params)
            && (server.lane.admitted < KEEP || !place.is_asked_for(self.id))
    }

    fn begin_lane(&mut self, s: usize) {
        let server = &mut self.servers[s];
        debug_assert!(server.client.is_none() && server.protocol.is_settled() && server.lane.is_empty());
        server.fresh = false;
        server.lane.closed = false;
        server.lane.admitted = 0;
        let place = &mut self.pools[server.pool].nodes[usize::from(server.node.0)];
        place.lanes.push(s);
        place.busy += 1;
        self.lanes.open.push(s);
        self.metrics.servers_busy.add(1);
        self.metrics.lanes.add(1);
    }

    fn take_seat(&mut self, c: usize, s: usize, unit: &[u8]) {
        let (client, server) = (&mut self.clients[c], &mut self.servers[s]);
        debug_assert!(client.at == At::Nobody);
        let behind = !server.lane.is_empty();
        if !behind {
            server.client = Some(c);
            server.lane.since = self.now;
        }
        server.lane.admitted = server.lane.admitted.saturating_add(1);
        server.lane.seats.push_back(Seat { client: Some(c), key: client.unit.key });
        let pool = &mut self.pools[server.pool];
        pool.totals.assignments += 1;
        let place = &mut pool.nodes[usize::from(server.node.0)];
        place.seated += 1;
        place.lane_tally.entered(behind);
        if !server.dirty {
            self.metrics.lane_batches.add(1);
        }
        self.metrics.lane_statements.add(1);
        client.at = At::Lane(s as u32);
        if client.replay.is_none() {
            client.replay.keep(unit, &mut self.buffers);
            client.output.hold(&mut self.buffers);
        }
        client.repeatable = true;
        self.check_replay(c, s);
        self.send_unit(c, s, unit);
        self.count_statement(s);
        let client = &mut self.clients[c];
        client.unit.reset();
        client.since = self.now;
    }

    /// Writes the messages of a unit that has been looked at, with the server's statement names.
    ///
    /// A unit in a lane changes its client's names only with its first message, and no error of the unit itself can
    /// make the server skip that message. So there is nothing to undo.
    fn send_unit(&mut self, c: usize, s: usize, unit: &[u8]) {
        for (message, whole) in messages(unit) {
            match message {
                Message::Query { text } => {
                    self.clients[c].names.query();
                    self.count_begin(c, s, self.clients[c].unit.key, text, true);
                    let server = &mut self.servers[s];
                    server.statements.set_unnamed(Unnamed::Unknown);
                    server.ends_unit(Request::Query, Note::query);
                }
                Message::Parse { text, types, .. } => {
                    self.count_begin(c, s, self.clients[c].unit.key, text, true);
                    let class = self.classify(c, text);
                    let statement = self.statement_for(c, text, types, class);
                    statement.note_unnamed();
                    if self.shares_unnamed(c, &statement) {
                        self.parse_shared(c, s, &statement);
                        continue;
                    }
                    self.clients[c].names.parse_unnamed(statement.clone());
                    let server = &mut self.servers[s];
                    server.statements.set_unnamed(Unnamed::Is(statement.id()));
                    let note = Note::Parse { statement, sent_as: SentAs::Unnamed, undo: Undo::Unnamed(None) };
                    server.protocol.sent(Request::Parse, note);
                }
                Message::Bind { statement: name, rest, .. } => {
                    self.send_bind(c, s, name, rest);
                    continue;
                }
                Message::Describe(named) => {
                    if named == Named::Portal(b"") {
                        self.portal_described(c, s, b"");
                    }
                    self.servers[s].protocol.sent(Request::Describe, Note::Client);
                }
                Message::Execute { .. } => self.servers[s].protocol.sent(Request::Execute, Note::execute()),
                Message::Sync => self.servers[s].ends_unit(Request::Sync, Note::Sync),
                // `Unit::is_single` is false for a unit with one of these.
                Message::Close(_) | Message::Flush | Message::FunctionCall | Message::Terminate => continue,
                Message::CopyData | Message::CopyDone | Message::CopyFail => continue,
            }
            self.write_server(s, |out| out.extend_from_slice(whole));
        }
    }

    /// Sends a Bind of the unnamed portal.
    fn send_bind(&mut self, c: usize, s: usize, name: &[u8], values: &[u8]) {
        let known = self.clients[c].names.get_told(name);
        let told = known.is_some_and(|(_, told)| told);
        let statement = known.map(|(statement, _)| statement.clone());
        let unit = self.servers[s].protocol.unit();
        self.servers[s].portals.bind((unit, b""), statement.clone(), name, None);
        let named = |statement: &&Arc<Statement>| !name.is_empty() || self.shares_unnamed(c, statement);
        let Some(own) = statement.as_ref().filter(named).cloned() else {
            self.servers[s].protocol.sent(Request::Bind, Note::Bind(statement));
            return self.write_server(s, |out| {
                message::header(out, b'B', 2 + values.len());
                out.extend_from_slice(b"\0\0");
                out.extend_from_slice(values);
            });
        };
        if !name.is_empty() {
            self.count_begin(c, s, !own.id(), own.text(), false);
        }
        self.prepare(s, &own);
        if !self.servers[s].statements.is_described(&own) && own.columns().is_some() && told {
            // The client relies on the columns that it was sent. If this connection has others, the answer is dropped and the unit sent again.
            self.write_server(s, |out| message::describe_statement(out, own.name().as_bytes()));
            self.servers[s].protocol.sent(Request::Describe, Note::Check(own.clone()));
        }
        let server_name = own.name();
        self.count_bind(s);
        self.servers[s].protocol.sent(Request::Bind, Note::Bind(statement));
        self.write_server(s, |out| {
            message::header(out, b'B', 2 + server_name.as_bytes().len() + values.len());
            out.push(0);
            out.extend_from_slice(server_name.as_bytes());
            out.push(0);
            out.extend_from_slice(values);
        });
    }

    // --- the answers ---

    /// Sends the front seat's unit again, on a connection to itself; this server's answer to it is dropped.
    pub(in crate::core) fn redo_alone(&mut self, s: usize) {
        let server = &mut self.servers[s];
        if let Some(client) = server.client.map(|c| &mut self.clients[c]) {
            client.output.retract(&mut self.buffers);
            client.attempts.count = client.attempts.count.saturating_add(1);
            client.attempts.alone = true;
            server.discard = true;
            self.metrics.lane_redone.add(1);
        }
    }

    /// Moves the next seat to the front, after the front seat's `ReadyForQuery` was passed on or dropped.
    pub(in crate::core) fn seat_done(&mut self, s: usize) {
        let server = &mut self.servers[s];
        let Some(seat) = server.lane.seats.pop_front() else { return };
        let bytes = std::mem::take(&mut server.meter.answered);
        let discard = std::mem::take(&mut server.discard);
        server.work.failed = false;
        server.client = server.lane.seats.front().and_then(|seat| seat.client);
        let elapsed = self.now.saturating_duration_since(server.lane.since);
        server.lane.since = self.now;
        let (p, n) = (server.pool, usize::from(server.node.0));
        if std::mem::take(&mut server.paused) {
            self.effects.push(Effect::Resume(server.token));
        }
        let idle = server.protocol.status() == message::Status::Idle;
        let place = &mut self.pools[p].nodes[n];
        place.seated -= 1;
        if place.lane_tally.answered(place.lanes.len()) {
            self.tell_lane_tally(p, n);
        }
        self.lanes.costs.note(seat.key, micros(elapsed), bytes);
        if elapsed >= self.settings.lanes.stall / 2 {
            self.lanes.costs.strike(seat.key, self.now);
        }
        if let Some(c) = seat.client {
            let client = &mut self.clients[c];
            client.at.leave_lane();
            if discard {
                self.send_again(c);
            } else {
                client.attempts = Attempts::default();
                if client.replay.forget(&mut self.buffers) {
                    client.output.release();
                }
                let total = self.now.saturating_duration_since(client.since).as_micros() as u64;
                client.since = self.now;
                self.metrics.statement_micros.observe(total);
                // (The transaction of an early read goes on.)
                let ended = client.begun.is_none();
                self.metrics.transactions.add(1);
                let totals = &mut self.pools[p].totals;
                totals.transactions += u64::from(ended);
                totals.queries += 1;
                totals.query_micros += total;
                totals.transaction_micros += elapsed.as_micros() as u64;
                let token = client.token;
                if client.paused || client.has_more() {
                    self.runnable.push_back(token);
                }
                self.runs_nothing(token);
                if self.draining && ended {
                    self.fatal(c, Sqlstate::ADMIN_SHUTDOWN, DRAINING);
                }
            }
        }
        if !idle {
            // A query that was thought to be a plain read has opened a transaction: the units behind it must not run in
            // that.
            return self.server_closed(s, "a query in a shared lane left a transaction open");
        }
        if self.servers[s].lane.is_empty() {
            self.end_lane(s);
            if self.servers[s].cleaning.is_none() { self.rest(s) } else { self.clean_up(s) }
        } else if self.pools[p].is_waited_for() {
            self.pump(p);
        }
    }

    /// Ends the connection's use as a lane.
    fn end_lane(&mut self, s: usize) {
        let server = &mut self.servers[s];
        server.client = None;
        let place = &mut self.pools[server.pool].nodes[usize::from(server.node.0)];
        place.seated -= server.lane.seats.len();
        server.lane.seats.clear();
        place.busy -= 1;
        place.lanes.retain(|&lane| lane != s);
        self.lanes.open.retain(|&lane| lane != s);
        self.metrics.servers_busy.sub(1);
        self.metrics.lanes.sub(1);
    }

    /// Holds the lane while the front seat's client does not read its answer: the server connection waits for it, and all other units move.
    pub(in crate::core) fn hold_lane(&mut self, s: usize) {
        let server = &mut self.servers[s];
        if server.paused {
            return;
        }
        server.paused = true;
        self.effects.push(Effect::Pause(server.token));
        self.move_others(s);
    }

    // --- leaving ---

    /// Removes a client from its seat.
    pub(in crate::core) fn leave_lane(&mut self, c: usize) {
        let Some(s) = self.clients[c].at.leave_lane() else { return };
        let server = &mut self.servers[s];
        let Some(at) = server.lane.seats.iter().position(|seat| seat.client == Some(c)) else { return };
        server.lane.seats[at].client = None;
        if at == 0 {
            server.client = None;
            server.discard = false;
            if std::mem::take(&mut server.paused) {
                self.effects.push(Effect::Resume(server.token));
            }
        }
        self.cancel_if_nobodys(s);
    }

    /// Cancels the running statement if no seat has a client any more, since all are reads.
    fn cancel_if_nobodys(&mut self, s: usize) {
        let server = &mut self.servers[s];
        if server.lane.seats.iter().all(|seat| seat.client.is_none()) && server.cancels == 0 {
            server.lane.closed = true;
            self.send_cancel(s, None);
        }
    }

    /// Sends the units behind the front seat again, elsewhere.
    fn move_others(&mut self, s: usize) {
        self.servers[s].lane.closed = true;
        for at in 1..self.servers[s].lane.seats.len() {
            let Some(c) = self.servers[s].lane.seats[at].client.take() else { continue };
            let client = &mut self.clients[c];
            client.at.leave_lane();
            client.attempts.alone = true;
            client.output.retract(&mut self.buffers);
            self.metrics.lane_moved.add(1);
            self.send_again(c);
        }
        // The front seat's client may have gone before.
        self.cancel_if_nobodys(s);
    }

    /// Handles the cancel request of a client in a lane. Returns true if its statement is the one that runs, so that the server must be asked.
    pub(in crate::core) fn cancel_in_lane(&mut self, c: usize, s: usize) -> bool {
        if self.servers[s].client == Some(c) {
            // The cancel may arrive late and hit the next unit.
            self.move_others(s);
            return true;
        }
        self.leave_lane(c);
        let client = &mut self.clients[c];
        client.output.retract(&mut self.buffers);
        client.attempts = Attempts::default();
        client.replay.forget(&mut self.buffers);
        let token = client.token;
        self.write_client(c, |out| {
            error(out, Sqlstate::QUERY_CANCELED, "canceling statement due to user request");
        });
        self.fail_begun(c);
        self.ready(c);
        self.runnable.push_back(token);
        false
    }

    // --- trouble ---

    /// Looks for lanes whose front seat had run for too long at `then`, the beginning of the last turn. (Not at the present time: all input that had
    /// arrived by `then` has been read.)
    pub(in crate::core) fn check_lanes(&mut self, then: Instant) {
        for i in 0..self.lanes.open.len() {
            let Some(&s) = self.lanes.open.get(i) else { return };
            let lane = &self.servers[s].lane;
            if lane.closed || !over(lane.since, self.settings.lanes.stall, then) {
                continue;
            }
            if let Some(front) = lane.seats.front() {
                self.lanes.costs.strike(front.key, self.now);
            }
            self.metrics.lane_stalls.add(1);
            self.move_others(s);
        }
    }

    /// Returns the time that the driver may wait for events, at most `longest`: a lane that is held up, a strong read or a gate may need attention
    /// earlier.
    pub fn patience(&self, longest: Duration) -> Duration {
        let shared =
            self.lanes.open.iter().any(|&s| self.servers[s].lane.seats.len() > 1 && !self.servers[s].lane.closed);
        let waits = [self.strong_patience(), self.gate_patience()];
        let longest = waits.into_iter().flatten().fold(longest, Duration::min);
        if shared { (self.settings.lanes.stall / 2).clamp(Duration::from_millis(1), longest) } else { longest }
    }

    /// Returns the time for which the driver should leave lanes alone so that more of their answers arrive together. `None`: none. Fills `others`
    /// with the connections whose messages end that time: server connections in use that are no lanes, and their clients. With more than `most` of
    /// them, the driver does not wait.
    pub fn gather(&self, most: usize, others: &mut Vec<Token>) -> Option<Duration> {
        let gather = self.settings.lanes.gather;
        if gather.is_zero() || self.lanes.open.is_empty() {
            return None;
        }
        let seats: usize = self.lanes.open.iter().map(|&s| self.servers[s].lane.seats.len()).sum();
        if seats < MANY {
            return None;
        }
        others.clear();
        for (_, server) in self.servers.iter().filter(|(_, server)| server.lane.is_empty()) {
            let Some(c) = server.client else { continue };
            others.extend([server.token, self.clients[c].token]);
        }
        (others.len() <= most).then_some(gather)
    }

    /// Handles the loss of a lane's connection: its units are sent again, except one whose client has got a part of the answer, and the front one if
    /// it is the cause of the server's last FATAL.
    pub(in crate::core) fn lane_lost(&mut self, s: usize, why: &str, last: Option<&LastWord>) {
        let server = &mut self.servers[s];
        let (p, node) = (server.pool, server.node);
        debug_assert!(matches!(server.phase, ServerPhase::Ready));
        let mid_message = server.pass > 0 && server.pass_on;
        let seats = std::mem::take(&mut server.lane.seats);
        self.pools[p].nodes[usize::from(node.0)].seated -= seats.len();
        self.metrics.server_connections_lost.add(1);
        tracing::info!(node = node.0, why, statements = seats.len(), "a server connection was lost while in use");
        self.end_lane(s);
        self.drop_server(s);
        for seat in &seats {
            if let Some(c) = seat.client {
                self.clients[c].at.leave_lane();
            }
        }
        for (at, seat) in seats.iter().enumerate() {
            if let Some(c) = seat.client {
                self.seat_lost(c, node, at == 0 && mid_message, last.filter(|_| at == 0));
            }
        }
        self.pump(p);
    }
}

/// Returns a duration in microseconds, for [`Costs`].
pub(in crate::core) fn micros(elapsed: Duration) -> u32 {
    elapsed.as_micros().try_into().unwrap_or(u32::MAX)
}
