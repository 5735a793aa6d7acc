//! Waiting gates, and their time limit. A sealed gate waits for the oracle's answer (`Asked`), then at the position (`At`: that of the flush, or of the
//! insert where the commit may be unflushed), in a strong session for proof (`Proving`), and then lets the output go. The publisher of a mark wakes the
//! worker, which looks at the gates at the start of its next turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use topology::MOST_RELAYS;
use watermark::{Lsn, Ticket, Waiters};
use wire::{Severity, Sqlstate, message};

use super::fate::{Fate, Gate, Known, State, fate};
use crate::core::memory::Token;
use crate::core::routing::UNPROVEN_HINT;
use crate::core::session::At;
use crate::core::{Core, DRAINING, over};

/// Maximum number of waiting clients of one worker.
const MOST_WAITING: usize = 1 << 20;

/// Present condition of a waiting gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Answer(Ticket),
    Durable(Lsn),
    Proof(Ticket),
}

/// Waiting clients of a worker.
pub(super) struct GateWaiters {
    asked: Waiters<Token, Ticket>,
    /// Waiters for proofs; None until the first.
    proved: Option<Waiters<Token, Ticket>>,
    /// Waiters at the marks of `durable`: for one relay, for two, …
    durable: Vec<Option<Waiters<Token>>>,
    /// Start of the wait of each first gate, in that order; entries of opened gates are removed once they are at the front.
    since: VecDeque<(Instant, Token)>,
}

impl Core {
    /// Examines a client's first gate, and opens as many gates as possible. If that would close the client, it is deferred to the next turn, unless
    /// `may_close`: code that handles a server's replies does not expect a closed client.
    pub(super) fn advance(&mut self, c: usize, may_close: bool) {
        let token = self.clients[c].token;
        while let Some(&gate) = self.clients[c].output.first_gate() {
            let pool = &self.pools[self.clients[c].pool];
            let (settings, lazy) = (pool.gate, pool.lazy);
            // A commit that may not have waited for the flush waits for the whole log at that time.
            let unflushed = gate.everything || self.commits_unflushed(c);
            let answer = match gate.state {
                State::Asked(ticket, _) => self.shared.topology.oracle().answer(ticket),
                _ => None,
            };
            let answer = answer.map(|a| (a.term, if unflushed { a.lsn } else { a.flushed }, a.flushed >= a.lsn));
            let proven = match (gate.state, self.shared.topology.proof()) {
                (State::Proving(ticket, _), Some(oracle)) => oracle.answer(ticket).map(|answer| answer.term),
                // No oracle is left to ask.
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
                // A pool without a gate releases the commits that its old settings held.
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
                    self.write_client(c, |_| {});
                    continue;
                }
                Fate::Pass => {
                    let waited = self.now.saturating_duration_since(gate.since).as_micros() as u64;
                    self.metrics.gate_micros.observe(waited);
                    if known.degraded {
                        self.metrics.gate_degraded_commits.add(1);
                    }
                    self.clients[c].output.open_gate(&mut self.buffers);
                    self.write_client(c, |_| {});
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
                        // The last flush ended before this position, or there was none: request another one, without waiting for its answer.
                        let topology = &self.shared.topology;
                        topology.need_flush();
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

    /// Makes a client's first gate, which could pass otherwise, wait for its proof.
    fn prove_gate(&mut self, c: usize) {
        let Some(gate) = self.clients[c].output.first_gate_mut() else { return };
        let Some(ticket) = gate.proof.take() else { return };
        if let State::Asked(_, term) | State::At(_, term) = gate.state {
            (gate.state, gate.queued) = (State::Proving(ticket, term), false);
        }
    }

    /// Defers this client to the next turn, and wakes the worker for it.
    fn put_off(&mut self, token: Token) {
        self.commits.due.push(token);
        (self.wake)();
    }

    /// Adds the client to the heap of its condition; returns false if too many clients wait, or if there is no mark to wait at.
    fn wait_at(&mut self, token: Token, gate: Gate, target: Target, relays: usize) -> bool {
        if gate.queued {
            return true;
        }
        if let Some(first) = self.clients[token.index()].output.first_gate_mut() {
            first.queued = true;
        }
        let topology = &self.shared.topology;
        let wake = &self.wake;
        let waiters = self.commits.waiters.get_or_insert_with(|| {
            let wake = Arc::clone(wake);
            let asked = Waiters::new(Arc::clone(topology.oracle().answered()), MOST_WAITING, move || wake());
            let durable = (0..MOST_RELAYS).map(|_| None).collect();
            Box::new(GateWaiters { asked, proved: None, durable, since: VecDeque::new() })
        });
        waiters.since.push_back((gate.since, token));
        match target {
            Target::Answer(ticket) => waiters.asked.insert(ticket, token).is_ok(),
            Target::Proof(ticket) => {
                let Some(oracle) = topology.proof() else { return false };
                let proved = waiters.proved.get_or_insert_with(|| {
                    let wake = Arc::clone(wake);
                    Waiters::new(Arc::clone(oracle.answered()), MOST_WAITING, move || wake())
                });
                proved.insert(ticket, token).is_ok()
            }
            Target::Durable(lsn) => {
                let slot = relays.checked_sub(1).and_then(|index| waiters.durable.get_mut(index));
                let (Some(slot), Some(mark)) = (slot, self.commits.durable.mark(relays)) else {
                    return false;
                };
                let waiters = slot.get_or_insert_with(|| {
                    let wake = Arc::clone(wake);
                    Waiters::new(Arc::clone(mark), MOST_WAITING, move || wake())
                });
                waiters.insert(lsn, token).is_ok()
            }
        }
    }

    /// Opens all gates that can be opened. Called each turn: a few loads while no client waits.
    pub(in crate::core) fn release_gates(&mut self) {
        let mut due = std::mem::take(&mut self.commits.due);
        if let Some(waiters) = &mut self.commits.waiters {
            while let Some(token) = waiters.asked.pop() {
                due.push(token);
            }
            while let Some(token) = waiters.proved.as_mut().and_then(Waiters::pop) {
                due.push(token);
            }
            for waiters in waiters.durable.iter_mut().flatten() {
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
        // Keeps the capacity.
        if self.commits.due.is_empty() {
            self.commits.due = due;
        }
        while let Some(&(since, token)) = self.commits.waiters.as_ref().and_then(|waiters| waiters.since.front()) {
            let gate = self.clients.get(token.index()).filter(|client| client.token == token);
            let waits = gate
                .and_then(|client| client.output.first_gate())
                .is_some_and(|gate| gate.since == since && !gate.is_unsealed());
            if waits && !over(since, self.settings.gate_timeout, self.now) {
                break;
            }
            if let Some(waiters) = &mut self.commits.waiters {
                waiters.since.pop_front();
            }
            if waits {
                self.give_up_gate(token.index(), "it was not confirmed in time (proxy.gate.timeout)");
            }
        }
    }

    /// Updates the gates after a change of the view.
    pub(in crate::core) fn refresh_gates(&mut self) {
        let durable = self.shared.topology.durable();
        if Arc::ptr_eq(&durable, &self.commits.durable) {
            return;
        }
        self.commits.durable = durable;
        if let Some(waiters) = &mut self.commits.waiters {
            waiters.durable.iter_mut().for_each(|waiters| *waiters = None);
        }
        // These gates are no longer in the heap.
        for gate in self.clients.iter_mut().filter_map(|(_, client)| client.output.first_gate_mut()) {
            gate.queued = false;
        }
        self.review_gates();
    }

    /// Marks a client's first gate as not in the heap. A gate that is still there does no harm.
    fn unqueue(&mut self, c: usize) {
        if let Some(gate) = self.clients[c].output.first_gate_mut() {
            gate.queued = false;
        }
    }

    /// Examines all waiting clients, for changes that no watermark reports.
    pub(super) fn review_gates(&mut self) {
        let gated = self.clients.iter().filter(|(_, client)| client.output.gates() > 0);
        let tokens: Vec<Token> = gated.map(|(_, client)| client.token).collect();
        for token in tokens {
            if self.is_client(token) {
                self.advance(token.index(), true);
            }
        }
    }

    /// Closes a client whose gate's outcome will never be known.
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

    /// Returns the time until the oldest waiting gate reaches its limit.
    pub(in crate::core) fn gate_patience(&self) -> Option<Duration> {
        let deadline = self.commits.waiters.as_ref()?.since.front()?.0 + self.settings.gate_timeout;
        Some(deadline.saturating_duration_since(self.now).max(Duration::from_millis(1)))
    }
}
