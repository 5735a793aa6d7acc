//! The commit gate: what tells a client of a commit is held back until the commit is durable on as many relays as its pool wants.
//!
//! ```text
//!  CommandComplete that may be a commit ──▶ a gate in the client's output: nothing behind it is written
//!  ReadyForQuery ──▶ the gate has a ticket of the oracle ──answer──▶ an LSN ──durable──▶ open
//! ```
//!
//! The server connection is back in its pool as soon as the server has answered; who waits is an entry in the worker's own
//! heap. Two more things wait here: what a strong session has read behind the beginning of its transaction, for proof that the term still stood
//! (docs/decisions/0048), and notifications, for the commit that they tell of. What must hold:
//!
//! - The ticket is taken after the server's answer was read: so its batch finds the commit flushed.
//! - A gate opens only when the durable mark of its own term has passed, or where the configuration lets it in a degraded state.
//!   Cancel, draining, errors of later statements and the end of a server connection open nothing.
//! - Gates of a client open in order; whatever comes behind one, also from other servers or the proxy itself, stays behind it.
//! - What can't be known any more (another term, too long) ends the client's connection: never a success, never "rolled back".

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sql::{Class, Flags};
use topology::{Durable, MOST_RELAYS, Role, Topology};
use watermark::{Lsn, Ticket, Waiters};
use wire::message::Status;
use wire::{Severity, Sqlstate, message};

use super::fate::{Fate, Known, State, fate};
use crate::config::Consistency;
use crate::console::GateReport;
use crate::core::memory::Token;
use crate::core::pool::Pool;
use crate::core::routing::UNPROVEN_HINT;
use crate::core::session::At;
use crate::core::{Core, DRAINING, over};
use crate::settings::Gate as Settings;

/// Most clients of one worker that wait.
const MOST_WAITING: usize = 1 << 20;
/// Most gates of one client; beyond that two commits share one.
const MOST_GATES: usize = 64;

/// A place in a client's output behind which nothing is written yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gate {
    state: State,
    /// When it may pass otherwise, it waits for this proof.
    proof: Option<Ticket>,
    /// It waits for all that was there when it was closed, flushed or not: whose commit it tells of is not known.
    everything: bool,
    since: Instant,
    /// Its client is in the heap for what `state` waits for.
    queued: bool,
}

/// A worker's commits that are held back, and what it knows of the relays that they wait for.
pub(in crate::core) struct Commits {
    /// Clients whose answers are held back; None until there is one.
    held: Option<Box<Held>>,
    /// Of a turn, in `release_gates`.
    due: Vec<Token>,
    /// What the relays have made durable, on the view's term.
    durable: Arc<Durable>,
    /// Since when fewer relays than this have confirmed anything.
    short: [Option<Instant>; MOST_RELAYS + 1],
    was_degraded: bool,
    /// The oracle's questions flush, so commits need not.
    flushes: bool,
}

impl Commits {
    pub(in crate::core) fn new(topology: &Topology) -> Commits {
        Commits {
            held: None,
            due: Vec::new(),
            durable: topology.durable(),
            short: [None; MOST_RELAYS + 1],
            was_degraded: false,
            flushes: topology.flushes(),
        }
    }

    /// True if somebody waits.
    pub(in crate::core) fn any_wait(&self) -> bool {
        self.held.is_some() || !self.due.is_empty()
    }

    /// The oracle's questions flush, so commits need not.
    pub(in crate::core) fn flushes(&self) -> bool {
        self.flushes
    }
}

/// What a gate waits for from the end of its unit on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Seal {
    /// What it tells of is a commit, or may be one, and a proof where its session is strong.
    Commit,
    /// Proof that its term still stood.
    Proof,
}

/// What a gate waits for at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Answer(Ticket),
    Durable(Lsn),
    Proof(Ticket),
}

/// A worker's clients that wait.
struct Held {
    asked: Waiters<Token, Ticket>,
    /// None until somebody waits there.
    proved: Option<Waiters<Token, Ticket>>,
    /// For one relay, for two, …: at the marks of `durable`.
    durable: Vec<Option<Waiters<Token>>>,
    /// Since when the first gate of each has waited, in that order; those that have been opened go when they are at the front.
    since: VecDeque<(Instant, Token)>,
}

/// Whether `word`, which is in lower case, stands anywhere in a text in whatever case.
fn mentions(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|part| part[0] | 0x20 == word[0] && part.eq_ignore_ascii_case(word))
}

/// A `CommandComplete` that says of itself that it ended a transaction for good.
fn is_commit(tag: &[u8]) -> bool {
    [&b"COMMIT\0"[..], b"COMMIT PREPARED\0", b"PREPARE TRANSACTION\0"].contains(&tag)
}

impl Gate {
    pub(in crate::core) fn open(now: Instant) -> Gate {
        Gate { state: State::Open, proof: None, everything: false, since: now, queued: false }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    pub(in crate::core) fn since(&self) -> Instant {
        self.since
    }
}

// === what the replies do ===

impl Core {
    /// How this server's pool gates commits; None: it does not.
    fn gate_of(&self, s: usize) -> Option<Settings> {
        let server = &self.servers[s];
        let gate = self.pools[server.pool].gate;
        // Lanes have nothing but reads in them.
        (gate.relays > 0 && server.client.is_some() && server.lane.is_empty()).then_some(gate)
    }

    /// A server that shows what is not durable yet.
    fn shows_undurable(&self, s: usize) -> bool {
        self.view.node(self.servers[s].node).is_none_or(|node| node.role != Role::Replica)
    }

    /// A `CommandComplete` for the client: true if nothing from here on may be written yet.
    pub(in crate::core) fn may_commit(&mut self, s: usize, tag: &[u8]) -> bool {
        if self.gate_of(s).is_none() {
            return false;
        }
        let server = &mut self.servers[s];
        let commit = is_commit(tag);
        // Whatever the node is thought to be: a replica may have been promoted this moment.
        server.work.committed |= commit && (server.work.changed || tag != b"COMMIT\0");
        server.work.committed || (server.work.changed && server.protocol.status() == Status::Idle)
    }

    /// Closes a gate at the end of a client's output, unless the unit has one already.
    pub(in crate::core) fn close_gate(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if client.output.last_gate().is_none_or(|gate| !gate.is_open()) {
            client.output.close_gate(Gate::open(self.now), &mut self.buffers);
        }
    }

    /// Bytes of a server for its client: with a read barrier nothing that the primary says is written at once, and to a strong session nothing
    /// that is not proven.
    pub(in crate::core) fn bar_reads(&mut self, s: usize) {
        let Some(c) = self.servers[s].client else { return };
        let barrier = matches!(self.gate_of(s), Some(Settings { barrier: true, .. })) && self.shows_undurable(s);
        if barrier || self.lacks_proof(s) {
            self.close_gate(c);
        }
    }

    /// Whether what this server says to its client has to be proven: the client's session is strong, and its unit was sent without proof,
    /// because the session had the server connection already.
    pub(in crate::core) fn lacks_proof(&self, s: usize) -> bool {
        // Asked for each answer, and mostly there are no relays.
        if self.shared.topology.proof().is_none() {
            return false;
        }
        let server = &self.servers[s];
        // Who is in a lane had its proof before.
        let Some(c) = server.client.filter(|_| server.lane.is_empty()) else { return false };
        !self.clients[c].proven && self.consistency(c) == Consistency::Strong
    }

    /// A `ReadyForQuery`, of whomever: what the client it is for has to wait for.
    pub(in crate::core) fn ends_gated(&mut self, s: usize) -> Option<Seal> {
        let server = &mut self.servers[s];
        // They are of one unit, whether or not anybody hears its answer.
        let (committed, erred) = (std::mem::take(&mut server.work.committed), std::mem::take(&mut server.work.erred));
        let commit = self.gate_of(s).is_some_and(|gate| {
            let barrier = gate.barrier && self.shows_undurable(s);
            let server = &self.servers[s];
            // A statement that failed outside a transaction has told so, and committed nothing.
            committed || barrier || (server.protocol.status() == Status::Idle && server.work.changed && !erred)
        });
        match commit {
            true => Some(Seal::Commit),
            false => self.lacks_proof(s).then_some(Seal::Proof),
        }
    }

    /// What a client's gate waits for where it is not known what it tells of.
    pub(in crate::core) fn seal_in_doubt(&self, c: usize) -> Seal {
        if self.pools[self.clients[c].pool].gate.relays > 0 { Seal::Commit } else { Seal::Proof }
    }

    /// The client's unit is at its end, or so far that its output can't be kept any longer: its gate waits.
    pub(in crate::core) fn seal_gate(&mut self, c: usize, seal: Seal) {
        if !self.clients[c].output.last_gate().is_some_and(Gate::is_open) {
            return;
        }
        // Two that share a place wait for what both wait for.
        let merges = self.clients[c].output.gates() >= MOST_GATES;
        let seal = if merges { self.seal_in_doubt(c) } else { seal };
        let everything = merges || self.clients[c].output.last_gate().is_some_and(|gate| gate.everything);
        let unflushed = everything || self.commits_unflushed(c);
        let strong = self.consistency(c) == Consistency::Strong;
        let topology = &self.shared.topology;
        let asks = strong && (merges || !self.clients[c].proven);
        let proof = topology.proof().filter(|_| asks).map(|oracle| oracle.ticket());
        let (state, proof) = match (seal, proof) {
            (Seal::Commit, proof) => {
                // Before the ticket, so that the question which answers it comes with the flush, or behind it.
                if unflushed {
                    topology.want_flush();
                }
                self.metrics.gated.add(1);
                (State::Asked(topology.oracle().ticket(), self.view.term), proof)
            }
            (Seal::Proof, Some(ticket)) => (State::Proving(ticket, self.view.term), None),
            // There is nobody to ask any more.
            (Seal::Proof, None) => return self.drop_open_gate(c),
        };
        let gate = Gate { state, proof, everything, since: self.now, queued: false };
        if let Some(last) = self.clients[c].output.last_gate_mut() {
            *last = gate;
        }
        match self.clients[c].output.gates() {
            1 => self.advance(c, false),
            // The one before waits for this one's commit, too: in order, and a little later than it must.
            MOST_GATES.. => self.clients[c].output.merge_gates(gate),
            _ => {}
        }
    }

    /// Tells a client of notifications. They tell of a commit, of whomever: where the client's pool waits for relays, they come when whatever had been
    /// committed by now is durable there.
    pub(in crate::core) fn tell_of_commit(&mut self, c: usize, tell: impl FnOnce(&mut Core)) {
        if self.pools.get(self.clients[c].pool).is_none_or(|pool| pool.gate.relays == 0) {
            return tell(self);
        }
        let in_unit = self.clients[c].output.last_gate().is_some_and(Gate::is_open);
        self.close_gate(c);
        if let Some(gate) = self.clients[c].output.last_gate_mut() {
            gate.everything = true;
        }
        tell(self);
        match self.clients[c].at.server() {
            // With the end of the unit that is being answered.
            Some(s) if in_unit => self.servers[s].work.committed = true,
            _ => self.seal_gate(c, Seal::Commit),
        }
    }

    /// The server says no more until the client does (it has asked for what there is by Flush, or is to send COPY data): what the
    /// client needs in order to go on is not held back, unless something was committed.
    pub(in crate::core) fn pause_gate(&mut self, s: usize) {
        let server = &self.servers[s];
        if !(server.protocol.is_settled() || server.protocol.copies_in()) || !server.lane.is_empty() {
            return;
        }
        let Some(c) = server.client else { return };
        if !self.clients[c].output.last_gate().is_some_and(Gate::is_open) {
            return;
        }
        let gate = self.pools[server.pool].gate;
        if gate.relays > 0 && (server.work.committed || gate.barrier) {
            self.seal_gate(c, Seal::Commit)
        } else if self.lacks_proof(s) {
            self.seal_gate(c, Seal::Proof)
        } else {
            self.drop_open_gate(c)
        }
    }

    /// The unit has ended without a commit.
    pub(in crate::core) fn drop_open_gate(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if client.output.last_gate().is_some_and(Gate::is_open) {
            client.output.drop_last_gate(&mut self.buffers);
            self.tell(c, |_| {});
        }
    }

    /// More is held back than may be, and the unit goes on: what is there so far waits by itself.
    pub(in crate::core) fn bound_gate(&mut self, c: usize) {
        let client = &self.clients[c];
        if client.output.len() > self.settings.buffer_limit && client.output.last_gate().is_some_and(Gate::is_open) {
            self.seal_gate(c, self.seal_in_doubt(c));
        }
    }

    // --- waiting ---

    /// Looks at a client's first gate, and opens as many as can be. Where that may close the client it is left for the next turn,
    /// unless `may_close`: whoever follows a server's replies does not expect it.
    fn advance(&mut self, c: usize, may_close: bool) {
        let token = self.clients[c].token;
        while let Some(&gate) = self.clients[c].output.first_gate() {
            let pool = &self.pools[self.clients[c].pool];
            let (settings, lazy) = (pool.gate, pool.lazy);
            // Who may have committed without waiting for the flush waits for everything that was there by then.
            let unflushed = gate.everything || self.commits_unflushed(c);
            let answer = match gate.state {
                State::Asked(ticket, _) => self.shared.topology.oracle().answer(ticket),
                _ => None,
            };
            let answer = answer.map(|a| (a.term, if unflushed { a.lsn } else { a.flushed }, a.flushed >= a.lsn));
            let proven = match (gate.state, self.shared.topology.proof()) {
                (State::Proving(ticket, _), Some(oracle)) => oracle.answer(ticket).map(|answer| answer.term),
                // There is nobody to ask any more.
                (State::Proving(_, term), None) => Some(u64::from(term.timeline)),
                _ => None,
            };
            let known = Known {
                answer,
                proven,
                now: self.view.term,
                durable: (
                    self.commits.durable.term,
                    self.commits.durable.mark(settings.relays).map_or(Lsn(0), |mark| mark.get()),
                ),
                // A pool that is not gated any more lets go what was held by its old settings.
                degraded: settings.relays == 0 || (settings.degrade && self.is_degraded(settings.relays)),
                lazy,
            };
            let (gate, target) = match fate(gate.state, known) {
                Fate::Stay => return,
                Fate::Pass if gate.proof.is_some() => {
                    self.prove_gate(c);
                    continue;
                }
                Fate::Pass if matches!(gate.state, State::Proving(..)) => {
                    self.clients[c].output.open_gate(&mut self.buffers);
                    self.tell(c, |_| {});
                    continue;
                }
                Fate::Pass => {
                    let waited = self.now.saturating_duration_since(gate.since).as_micros() as u64;
                    self.metrics.gate_micros.observe(waited);
                    if known.degraded {
                        self.metrics.gate_degraded_commits.add(1);
                    }
                    self.clients[c].output.open_gate(&mut self.buffers);
                    self.tell(c, |_| {});
                    continue;
                }
                Fate::Ask(ticket) => (gate, Target::Answer(ticket)),
                Fate::Prove(ticket) => (gate, Target::Proof(ticket)),
                Fate::Again => {
                    let topology = &self.shared.topology;
                    topology.want_flush();
                    let state = State::Asked(topology.oracle().ticket(), self.view.term);
                    if let Some(gate) = self.clients[c].output.first_gate_mut() {
                        *gate = Gate { state, queued: false, ..*gate };
                    }
                    continue;
                }
                Fate::Wait(lsn) => {
                    let state = State::At(lsn, self.commits.durable.term);
                    if state != gate.state && unflushed && answer.is_some_and(|(_, _, flushed)| !flushed) {
                        // Another question's flush came before this position: one more, and nobody waits for its answer.
                        let topology = &self.shared.topology;
                        topology.want_flush();
                        let _ = topology.oracle().ticket();
                    }
                    let gate = Gate { state, queued: gate.queued && state == gate.state, ..gate };
                    if let Some(first) = self.clients[c].output.first_gate_mut() {
                        *first = gate;
                    }
                    (gate, Target::Durable(lsn))
                }
                Fate::Unknown if may_close => return self.give_up_gate(c, "the primary was replaced"),
                Fate::Unknown => return self.put_off(token),
            };
            if self.wait_at(token, gate, target, settings.relays) {
                return;
            }
            if may_close {
                return self.give_up_gate(c, "too many commits wait");
            }
            return self.put_off(token);
        }
        let client = &self.clients[c];
        if may_close && self.draining && client.at == At::Nobody {
            return self.fatal(c, Sqlstate::ADMIN_SHUTDOWN, DRAINING);
        }
        self.bound_input(c);
    }

    /// A client's first gate could pass, but for the proof that it needs, too.
    fn prove_gate(&mut self, c: usize) {
        let Some(gate) = self.clients[c].output.first_gate_mut() else { return };
        let Some(ticket) = gate.proof.take() else { return };
        if let State::Asked(_, term) | State::At(_, term) = gate.state {
            (gate.state, gate.queued) = (State::Proving(ticket, term), false);
        }
    }

    /// This client is looked at in the next turn, which is made to come.
    fn put_off(&mut self, token: Token) {
        self.commits.due.push(token);
        (self.bell)();
    }

    /// False if there are too many.
    fn wait_at(&mut self, token: Token, gate: Gate, target: Target, relays: usize) -> bool {
        if gate.queued {
            return true;
        }
        if let Some(first) = self.clients[token.index()].output.first_gate_mut() {
            first.queued = true;
        }
        let topology = &self.shared.topology;
        let bell = &self.bell;
        let held = self.commits.held.get_or_insert_with(|| {
            let bell = Arc::clone(bell);
            let asked = Waiters::new(Arc::clone(topology.oracle().answered()), MOST_WAITING, move || bell());
            let durable = (0..MOST_RELAYS).map(|_| None).collect();
            Box::new(Held { asked, proved: None, durable, since: VecDeque::new() })
        });
        held.since.push_back((gate.since, token));
        match target {
            Target::Answer(ticket) => held.asked.insert(ticket, token).is_ok(),
            Target::Proof(ticket) => {
                let Some(oracle) = topology.proof() else { return false };
                let proved = held.proved.get_or_insert_with(|| {
                    let bell = Arc::clone(bell);
                    Waiters::new(Arc::clone(oracle.answered()), MOST_WAITING, move || bell())
                });
                proved.insert(ticket, token).is_ok()
            }
            Target::Durable(lsn) => {
                let slot = relays.checked_sub(1).and_then(|index| held.durable.get_mut(index));
                let (Some(slot), Some(mark)) = (slot, self.commits.durable.mark(relays)) else {
                    return false;
                };
                let waiters = slot.get_or_insert_with(|| {
                    let bell = Arc::clone(bell);
                    Waiters::new(Arc::clone(mark), MOST_WAITING, move || bell())
                });
                waiters.insert(lsn, token).is_ok()
            }
        }
    }

    /// Opens what can be opened. To be called each turn: a few loads while nobody waits.
    pub(in crate::core) fn release_gates(&mut self) {
        let mut due = std::mem::take(&mut self.commits.due);
        if let Some(held) = &mut self.commits.held {
            while let Some(token) = held.asked.pop() {
                due.push(token);
            }
            while let Some(token) = held.proved.as_mut().and_then(Waiters::pop) {
                due.push(token);
            }
            for waiters in held.durable.iter_mut().flatten() {
                while let Some(token) = waiters.pop() {
                    due.push(token);
                }
            }
        }
        for token in due.drain(..) {
            if self.is_client(token) {
                self.unqueue(token.index());
                self.advance(token.index(), true);
            }
        }
        // Its capacity is kept.
        if self.commits.due.is_empty() {
            self.commits.due = due;
        }
        while let Some(&(since, token)) = self.commits.held.as_ref().and_then(|held| held.since.front()) {
            let gate = self.clients.get(token.index()).filter(|client| client.token == token);
            let waits = gate
                .and_then(|client| client.output.first_gate())
                .is_some_and(|gate| gate.since == since && !gate.is_open());
            if waits && !over(since, self.settings.gate_timeout, self.now) {
                break;
            }
            if let Some(held) = &mut self.commits.held {
                held.since.pop_front();
            }
            if waits {
                self.give_up_gate(token.index(), "it was not confirmed in time (proxy.gate.timeout)");
            }
        }
    }

    /// The view has changed.
    pub(in crate::core) fn refresh_gates(&mut self) {
        let durable = self.shared.topology.durable();
        if Arc::ptr_eq(&durable, &self.commits.durable) {
            return;
        }
        self.commits.durable = durable;
        if let Some(held) = &mut self.commits.held {
            held.durable.iter_mut().for_each(|waiters| *waiters = None);
        }
        // They are not in the heap any more.
        for gate in self.clients.iter_mut().filter_map(|(_, client)| client.output.first_gate_mut()) {
            gate.queued = false;
        }
        self.review_gates();
    }

    /// It is not in the heap any more, or may not be: once too often does no harm.
    fn unqueue(&mut self, c: usize) {
        if let Some(gate) = self.clients[c].output.first_gate_mut() {
            gate.queued = false;
        }
    }

    /// Looks at all clients that wait: for what is not told by a number.
    fn review_gates(&mut self) {
        let gated = self.clients.iter().filter(|(_, client)| client.output.gates() > 0);
        let tokens: Vec<Token> = gated.map(|(_, client)| client.token).collect();
        for token in tokens {
            if self.is_client(token) {
                self.advance(token.index(), true);
            }
        }
    }

    /// Nobody will ever say what became of it.
    fn give_up_gate(&mut self, c: usize, why: &str) {
        let relays = self.pools[self.clients[c].pool].gate.relays;
        let gate = self.clients[c].output.first_gate();
        let (text, hint) = if gate.is_some_and(|gate| matches!(gate.state, State::Proving(..))) {
            self.metrics.strong_unproven.add(1);
            tracing::warn!(
                why,
                "a strong session's answer is not given: it is not proven that its primary's term still stood"
            );
            let text = format!(
                "the statement was executed, and it is not proven that its server was still the primary: {why}; its answer is not given"
            );
            (text, UNPROVEN_HINT)
        } else if gate.is_some_and(|gate| gate.everything) {
            self.metrics.gate_unknown.add(1);
            tracing::warn!(
                why,
                relays,
                "notifications are not passed on: it is unknown what became of the commit they tell of"
            );
            let text = format!(
                "terminating connection: notifications are missing, for whether the commit that they tell of is durable on {relays} relay(s) \
                 is unknown: {why}"
            );
            (text, "")
        } else {
            self.metrics.gate_unknown.add(1);
            tracing::warn!(why, relays, "a commit's outcome is unknown");
            let text = format!(
                "the transaction was committed on the primary, and whether it is durable on {relays} relay(s) is unknown: {why}"
            );
            (text, "")
        };
        let client = &mut self.clients[c];
        client.output.cut(&mut self.buffers);
        let out = client.output.append(&mut self.buffers);
        message::error(out, Severity::Fatal, Sqlstate::TRANSACTION_RESOLUTION_UNKNOWN, &text, hint);
        self.close_client(c);
    }

    /// A text that may change `synchronous_commit` for the commits that follow it. (A function that does so for its own
    /// transaction is not seen: as with PostgreSQL's own synchronous replication, that transaction's commit is not waited for.)
    pub(in crate::core) fn note_unflushed(&mut self, c: usize, text: &[u8], class: Class) {
        let gated = self.pools.get(self.clients[c].pool).is_some_and(|pool| pool.gate.relays > 0);
        if !gated || self.clients[c].unflushed {
            return;
        }
        // `set_config('app.tenant', …)` is none; `set_config($1, …)` may be one.
        let may_set =
            || class.flags.has(Flags::UNKNOWN) || self.classifier.changes(text).is_none_or(|changes| changes.doubt);
        if mentions(text, b"synchronous_commit") || (mentions(text, b"set_config") && may_set()) {
            self.clients[c].unflushed = true;
        }
    }

    /// Whether the client's commits may have been answered before the primary has flushed them.
    fn commits_unflushed(&self, c: usize) -> bool {
        let client = &self.clients[c];
        self.pools[client.pool].lazy || client.unflushed || client.params.get("synchronous_commit").is_some()
    }

    // --- too few relays ---

    /// Fewer relays than this have confirmed anything for longer than `degraded_after`.
    fn is_degraded(&self, relays: usize) -> bool {
        let since = self.commits.short.get(relays).copied().flatten();
        since.is_some_and(|since| over(since, self.settings.gate_degraded_after, self.now))
    }

    /// For an operator: how a pool's commits are held back; who is, is not in it yet.
    pub(in crate::core) fn gate_report(&self, pool: &Pool) -> Option<GateReport> {
        let settings = pool.gate;
        let report = || GateReport {
            settings,
            lazy: pool.lazy,
            degraded: self.is_degraded(settings.relays),
            held: 0,
            longest: Duration::ZERO,
        };
        (settings.relays > 0).then(report)
    }

    /// To be called each tick: keeps count of how long there have been too few relays.
    pub(in crate::core) fn watch_relays(&mut self) {
        let flushes = self.shared.topology.flushes();
        if std::mem::replace(&mut self.commits.flushes, flushes) != flushes {
            for p in self.pools.ids() {
                if self.pools[p].gate.relays > 0 {
                    self.retire_all(p);
                }
            }
        }
        let confirming = self.shared.topology.confirming();
        let mut worst = false;
        for relays in 1..=MOST_RELAYS {
            if confirming < relays {
                self.commits.short[relays].get_or_insert(self.now);
            } else {
                self.commits.short[relays] = None;
            }
        }
        for p in self.pools.ids() {
            let gate = self.pools[p].gate;
            worst |= gate.relays > 0 && self.is_degraded(gate.relays);
        }
        self.metrics.gate_degraded.set(u64::from(worst));
        if worst != self.commits.was_degraded {
            self.commits.was_degraded = worst;
            match (worst, self.id) {
                (true, 0) => tracing::error!(
                    confirming,
                    "DEGRADED: too few relays confirm commits; by on_degraded they wait and new writes are refused, or they \
                     are acknowledged though only the primary has them"
                ),
                (false, 0) => tracing::warn!(confirming, "no longer degraded: relays confirm commits again"),
                _ => {}
            }
        }
        if self.commits.held.is_some() {
            let held = self.clients.iter().filter(|(_, client)| client.output.gates() > 0).count();
            self.metrics.gate_held.set(held as u64);
            if worst {
                self.review_gates();
            }
        }
    }

    /// Why a unit that may write is not sent to a server; None: it may be.
    pub(in crate::core) fn refuses_writes(&self, c: usize) -> Option<String> {
        let client = &self.clients[c];
        let gate = self.pools[client.pool].gate;
        if gate.relays == 0 || gate.degrade || client.unit.repeatable || !self.is_degraded(gate.relays) {
            return None;
        }
        Some(format!(
            "writes are refused: {} of the {} relays that must make commits durable confirm anything; nothing was executed",
            self.shared.topology.confirming(),
            gate.relays
        ))
    }

    /// When the first of those who wait will have waited too long.
    pub(in crate::core) fn gate_patience(&self) -> Option<Duration> {
        let deadline = self.commits.held.as_ref()?.since.front()?.0 + self.settings.gate_timeout;
        Some(deadline.saturating_duration_since(self.now).max(Duration::from_millis(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        for (text, expected) in [
            (&b"set synchronous_commit = off"[..], true),
            (b"SET LOCAL Synchronous_Commit TO off", true),
            (b"SYNCHRONOUS_COMMIT", true),
            (b"ssynchronous_commit", true),
            (b"synchronous_commi", false),
            (b"", false),
        ] {
            assert_eq!(mentions(text, b"synchronous_commit"), expected, "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn commits() {
        for (tag, expected) in [
            (&b"COMMIT\0"[..], true),
            (b"COMMIT PREPARED\0", true),
            (b"PREPARE TRANSACTION\0", true),
            (b"PREPARE\0", false),
            (b"INSERT 0 1\0", false),
            (b"ROLLBACK\0", false),
            (b"ROLLBACK PREPARED\0", false),
        ] {
            assert_eq!(is_commit(tag), expected, "{}", String::from_utf8_lossy(tag));
        }
    }
}
