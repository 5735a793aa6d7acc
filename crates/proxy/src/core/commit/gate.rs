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

use std::sync::Arc;
use std::time::Instant;

use sql::{Class, Flags};
use topology::{Durable, MOST_RELAYS, Role, Topology};
use watermark::Ticket;
use wire::message::Status;

use super::fate::State;
use super::waiting::Held;
use crate::config::Consistency;
use crate::core::Core;
use crate::core::memory::Token;
use crate::settings::CommitGate;

/// Most gates of one client; beyond that two commits share one.
const MOST_GATES: usize = 64;

/// A place in a client's output behind which nothing is written yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gate {
    pub(super) state: State,
    /// When it may pass otherwise, it waits for this proof.
    pub(super) proof: Option<Ticket>,
    /// It waits for all that was there when it was closed, flushed or not: whose commit it tells of is not known.
    pub(super) everything: bool,
    pub(super) since: Instant,
    /// Its client is in the heap for what `state` waits for.
    pub(super) queued: bool,
}

/// A worker's commits that are held back, and what it knows of the relays that they wait for.
pub(in crate::core) struct Commits {
    /// Clients whose answers are held back; None until there is one.
    pub(super) held: Option<Box<Held>>,
    /// Of a turn, in `release_gates`.
    pub(super) due: Vec<Token>,
    /// What the relays have made durable, on the view's term.
    pub(super) durable: Arc<Durable>,
    /// Since when fewer relays than this have confirmed anything.
    pub(super) short: [Option<Instant>; MOST_RELAYS + 1],
    pub(super) was_degraded: bool,
    /// The oracle's questions flush, so commits need not.
    pub(super) flushes: bool,
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
    fn gate_of(&self, s: usize) -> Option<CommitGate> {
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
        let barrier = matches!(self.gate_of(s), Some(CommitGate { barrier: true, .. })) && self.shows_undurable(s);
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
    pub(super) fn commits_unflushed(&self, c: usize) -> bool {
        let client = &self.clients[c];
        self.pools[client.pool].lazy || client.unflushed || client.params.get("synchronous_commit").is_some()
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
