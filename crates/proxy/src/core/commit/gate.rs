//! The commit gate: output that reports a commit is held back until the commit is durable on the number of relays that the pool requires.
//!
//! ```text
//!  CommandComplete that may report a commit ──▶ a gate in the client's output: no bytes behind it are written
//!  ReadyForQuery ──▶ the gate has a ticket of the oracle ──answer──▶ an LSN ──durable──▶ open
//! ```
//!
//! The server connection returns to its pool as soon as the server has answered; a waiting client is an entry in the worker's own heap. Two more
//! kinds of output wait here: data that a strong session has read after the beginning of its transaction, for proof that the term was still in force
//! (docs/decisions/0048), and notifications, for the commit that they report. Invariants:
//!
//! - The ticket is taken after the server's answer was read, so that its batch finds the commit flushed.
//! - A gate opens only when the durable mark of its own term has passed it, or if the configuration permits it in degraded mode. Cancel, draining,
//!   errors of later statements and the end of a server connection never open a gate.
//! - A client's gates open in order; output behind a gate, also from other servers or the proxy itself, stays behind it.
//! - A gate whose outcome can no longer be known (another term, too long a wait) ends the client's connection: the proxy never reports success or
//!   "rolled back".

use std::sync::Arc;
use std::time::Instant;

use sql::{Class, Flags};
use topology::{Durable, MOST_RELAYS, Role, Topology};
use wire::message::Status;

use super::fate::{Gate, State};
use super::waiting::GateWaiters;
use crate::config::Consistency;
use crate::core::Core;
use crate::core::memory::Token;
use crate::settings::CommitGate;

/// Maximum number of gates of one client; beyond it two commits share one.
const MOST_GATES: usize = 64;

/// Commits of a worker that are held back, and its state of the relays that they wait for.
pub(in crate::core) struct Commits {
    /// Clients whose answers are held back; None until the first.
    pub(super) waiters: Option<Box<GateWaiters>>,
    /// Clients due in this turn, in `release_gates`.
    pub(super) due: Vec<Token>,
    /// Positions that the relays have made durable, on the view's term.
    pub(super) durable: Arc<Durable>,
    /// By number of relays: time since which fewer than that have confirmed anything.
    pub(super) short: [Option<Instant>; MOST_RELAYS + 1],
    pub(super) was_degraded: bool,
    /// True if the oracle's queries flush, so that commits need not.
    pub(super) flushes: bool,
}

impl Commits {
    pub(in crate::core) fn new(topology: &Topology) -> Commits {
        Commits {
            waiters: None,
            due: Vec::new(),
            durable: topology.durable(),
            short: [None; MOST_RELAYS + 1],
            was_degraded: false,
            flushes: topology.flushes(),
        }
    }

    /// True if a client waits.
    pub(in crate::core) fn any_wait(&self) -> bool {
        self.waiters.is_some() || !self.due.is_empty()
    }

    /// True if the oracle's queries flush, so that commits need not.
    pub(in crate::core) fn flushes(&self) -> bool {
        self.flushes
    }
}

/// Condition of a gate from the end of its unit on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Seal {
    /// Durability, since the unit committed or may have; and a proof, if the session is strong.
    Commit,
    /// Proof that the term was still in force.
    Proof,
}

/// True if the text contains `word`, which is in lower case, in any case.
fn mentions(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|part| part[0] | 0x20 == word[0] && part.eq_ignore_ascii_case(word))
}

/// True if the tag of a `CommandComplete` states that a transaction has ended for good.
fn is_commit(tag: &[u8]) -> bool {
    [&b"COMMIT\0"[..], b"COMMIT PREPARED\0", b"PREPARE TRANSACTION\0"].contains(&tag)
}

// === effects of replies ===

impl Core {
    /// Returns the commit gate of this server's pool; None if there is none.
    fn gate_of(&self, s: usize) -> Option<CommitGate> {
        let server = &self.servers[s];
        let gate = self.pools[server.pool].gate;
        // Lanes run only reads.
        (gate.relays > 0 && server.client.is_some() && server.lane.is_empty()).then_some(gate)
    }

    /// True if the server's data may include changes that are not yet durable.
    fn shows_undurable(&self, s: usize) -> bool {
        self.view.node(self.servers[s].node).is_none_or(|node| node.role != Role::Replica)
    }

    /// Handles a `CommandComplete` for the client; returns true if no output from here on may be written yet. [`Core::ends_gated`]
    /// decides at the end of the unit.
    pub(in crate::core) fn may_commit(&mut self, s: usize, tag: &[u8]) -> bool {
        if self.gate_of(s).is_none() {
            return false;
        }
        let server = &mut self.servers[s];
        let commit = is_commit(tag);
        // Regardless of the node's known role: a replica may have been promoted at this moment.
        server.work.committed |= commit && (server.work.changed || tag != b"COMMIT\0");
        server.work.rolled_back = tag == b"ROLLBACK\0" && !server.work.completed;
        server.work.completed = true;
        server.work.committed || (server.work.changed && server.protocol.status() == Status::Idle)
    }

    /// Closes a gate at the end of a client's output, unless the unit already has one.
    pub(in crate::core) fn close_gate(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if client.output.last_gate().is_none_or(|gate| !gate.is_unsealed()) {
            client.output.close_gate(Gate::unsealed(self.now), &mut self.buffers);
        }
    }

    /// Closes a gate before a server's output for its client if the primary's output has to wait for a read barrier, or a strong session's for a
    /// proof.
    pub(in crate::core) fn bar_reads(&mut self, s: usize) {
        let Some(c) = self.servers[s].client else { return };
        let barrier = matches!(self.gate_of(s), Some(CommitGate { barrier: true, .. })) && self.shows_undurable(s);
        if barrier || self.lacks_proof(s) {
            self.close_gate(c);
        }
    }

    /// True if this server's output for its client has to be proven: the client's session is strong, and its unit was sent without proof because the
    /// session already had the server connection.
    pub(in crate::core) fn lacks_proof(&self, s: usize) -> bool {
        // Called for each answer, and there are mostly no relays.
        if self.shared.topology.proof().is_none() {
            return false;
        }
        let server = &self.servers[s];
        // A client in a lane has obtained its proof before.
        let Some(c) = server.client.filter(|_| server.lane.is_empty()) else { return false };
        !self.clients[c].proven && self.consistency(c) == Consistency::Strong
    }

    /// Handles a `ReadyForQuery`, also one for no client; returns the condition that its client has to wait for. It decides whether a unit
    /// is gated; `Work::changed` is set when a statement is sent.
    pub(in crate::core) fn ends_gated(&mut self, s: usize) -> Option<Seal> {
        let server = &mut self.servers[s];
        // All belong to one unit, whether or not a client receives the answer.
        let (committed, erred) = (std::mem::take(&mut server.work.committed), std::mem::take(&mut server.work.erred));
        let rolled_back = std::mem::take(&mut server.work.rolled_back);
        server.work.completed = false;
        let commit = self.gate_of(s).is_some_and(|gate| {
            let barrier = gate.barrier && self.shows_undurable(s);
            let server = &self.servers[s];
            // A statement that failed outside a transaction has reported so, and committed nothing; nor has a ROLLBACK alone.
            committed
                || barrier
                || (server.protocol.status() == Status::Idle && server.work.changed && !erred && !rolled_back)
        });
        match commit {
            true => Some(Seal::Commit),
            false => self.lacks_proof(s).then_some(Seal::Proof),
        }
    }

    /// Returns the seal of a client's gate whose cause is unknown.
    pub(in crate::core) fn seal_in_doubt(&self, c: usize) -> Seal {
        if self.pools[self.clients[c].pool].gate.relays > 0 { Seal::Commit } else { Seal::Proof }
    }

    /// Seals the client's unsealed gate, which then waits: the unit is at its end, or the proxy can keep no more of its output.
    pub(in crate::core) fn seal_gate(&mut self, c: usize, seal: Seal) {
        if !self.clients[c].output.last_gate().is_some_and(Gate::is_unsealed) {
            return;
        }
        // A merged gate waits for the conditions of both.
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
                // Before the ticket, so that the query which answers it runs with the flush or after it.
                if unflushed {
                    topology.want_flush();
                }
                self.metrics.gated.add(1);
                (State::Asked(topology.oracle().ticket(), self.view.term), proof)
            }
            (Seal::Proof, Some(ticket)) => (State::Proving(ticket, self.view.term), None),
            // No oracle is left to ask.
            (Seal::Proof, None) => return self.drop_unsealed_gate(c),
        };
        let gate = Gate { state, proof, everything, since: self.now, queued: false };
        if let Some(last) = self.clients[c].output.last_gate_mut() {
            *last = gate;
        }
        match self.clients[c].output.gates() {
            1 => self.advance(c, false),
            // The earlier gate then waits for this one's commit, too: in order, and slightly longer than necessary.
            MOST_GATES.. => self.clients[c].output.merge_gates(gate),
            _ => {}
        }
    }

    /// Sends notifications to a client. They report a commit of any session: if the client's pool waits for relays, they are sent once all commits up
    /// to now are durable there.
    pub(in crate::core) fn tell_of_commit(&mut self, c: usize, tell: impl FnOnce(&mut Core)) {
        if self.pools.get(self.clients[c].pool).is_none_or(|pool| pool.gate.relays == 0) {
            return tell(self);
        }
        let in_unit = self.clients[c].output.last_gate().is_some_and(Gate::is_unsealed);
        self.close_gate(c);
        if let Some(gate) = self.clients[c].output.last_gate_mut() {
            gate.everything = true;
        }
        tell(self);
        match self.clients[c].at.server() {
            // Sealed at the end of the unit being answered.
            Some(s) if in_unit => self.servers[s].work.committed = true,
            _ => self.seal_gate(c, Seal::Commit),
        }
    }

    /// Seals the gate if the server sends no more until the client does (after Flush, or before COPY data): output that the client needs in order to
    /// go on is not held back, unless something was committed.
    pub(in crate::core) fn pause_gate(&mut self, s: usize) {
        let server = &self.servers[s];
        if !(server.protocol.is_settled() || server.protocol.copies_in()) || !server.lane.is_empty() {
            return;
        }
        let Some(c) = server.client else { return };
        if !self.clients[c].output.last_gate().is_some_and(Gate::is_unsealed) {
            return;
        }
        let gate = self.pools[server.pool].gate;
        if gate.relays > 0 && (server.work.committed || gate.barrier) {
            self.seal_gate(c, Seal::Commit)
        } else if self.lacks_proof(s) {
            self.seal_gate(c, Seal::Proof)
        } else {
            self.drop_unsealed_gate(c)
        }
    }

    /// Drops the open gate of a unit that has ended without a commit.
    pub(in crate::core) fn drop_unsealed_gate(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if client.output.last_gate().is_some_and(Gate::is_unsealed) {
            client.output.drop_last_gate(&mut self.buffers);
            self.write_client(c, |_| {});
        }
    }

    /// Seals the gate of an unfinished unit once its output exceeds the limit: the output so far then waits on its own.
    pub(in crate::core) fn bound_gate(&mut self, c: usize) {
        let client = &self.clients[c];
        if client.output.len() > self.settings.buffer_limit && client.output.last_gate().is_some_and(Gate::is_unsealed)
        {
            self.seal_gate(c, self.seal_in_doubt(c));
        }
    }

    /// Records that a text may change `synchronous_commit` for later commits. (A function that changes it for its own transaction is not detected: as
    /// with PostgreSQL's own synchronous replication, that transaction's commit is not awaited.)
    pub(in crate::core) fn note_unflushed(&mut self, c: usize, text: &[u8], class: Class) {
        let gated = self.pools.get(self.clients[c].pool).is_some_and(|pool| pool.gate.relays > 0);
        if !gated || self.clients[c].unflushed {
            return;
        }
        // `set_config('app.tenant', …)` does not change it; `set_config($1, …)` may.
        let may_set =
            || class.flags.has(Flags::UNKNOWN) || self.classifier.changes(text).is_none_or(|changes| changes.doubt);
        if mentions(text, b"synchronous_commit") || (mentions(text, b"set_config") && may_set()) {
            self.clients[c].unflushed = true;
        }
    }

    /// True if the client's commits may have been answered before the primary has flushed them.
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
