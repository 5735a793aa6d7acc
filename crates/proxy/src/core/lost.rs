//! A client leaves its server, or a server its client.

use wire::Sqlstate;
use wire::message::{self, Status};

use super::aborted::LOST;
use super::client::{Aborted, Again, Pass, Phase};
use super::params::Applied;
use super::pool::Want;
use super::server::{Expect, ServerPhase};
use super::{Core, Effect};

/// Attempts at a unit whose server is lost again and again.
const MOST_ATTEMPTS: u8 = 5;

/// What a client is told when its server is gone, by what was in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// A transaction that had not begun to commit: rolled back for certain.
    Transaction,
    /// A transaction that may have committed.
    Commit,
    /// A statement outside a transaction that may have been carried out.
    Statement,
    /// Reads outside a transaction: nothing is lost but the answer.
    Read,
}

fn loss(status: Status, committing: bool, wrote: bool) -> Loss {
    match (status, committing) {
        (Status::Idle, _) if committing || wrote => Loss::Statement,
        (Status::Idle, _) => Loss::Read,
        (_, true) => Loss::Commit,
        (_, false) => Loss::Transaction,
    }
}

impl Loss {
    fn message(self) -> (Sqlstate, &'static str) {
        match self {
            Loss::Transaction => (Sqlstate::SERIALIZATION_FAILURE, LOST),
            Loss::Commit => (
                Sqlstate::TRANSACTION_RESOLUTION_UNKNOWN,
                "the connection to the server was lost during COMMIT: whether the transaction was committed is unknown",
            ),
            Loss::Statement => (
                Sqlstate::COMPLETION_UNKNOWN,
                "the connection to the server was lost during the statement: whether it was carried out is unknown",
            ),
            Loss::Read => (
                Sqlstate::SERIALIZATION_FAILURE,
                "the connection to the server was lost during the query: nothing was changed; it can be run again",
            ),
        }
    }
}

impl Core {
    // --- the client leaves ---

    /// The client of this server connection is gone: the connection finishes what it was told, and is cleaned.
    pub(super) fn abandon_server(&mut self, c: usize) {
        let Some(s) = self.clients[c].at.leave_server() else { return };
        let half_sent = matches!(self.clients[c].pass, Pass::Forward(_));
        let bound = self.is_bound(c);
        let server = &mut self.servers[s];
        server.client = None;
        server.discard = false;
        server.barrier = false;
        server.unpins = sql::Pins::NONE;
        server.reset |= bound;
        if self.clients[c].awaits_listener() {
            // The end of its answer, which has been put off, is nobody's.
            self.unheld.push_back(server.token);
        }
        if server.unnamed == super::forward::LONG {
            server.unnamed = 0;
        }
        if std::mem::take(&mut server.paused) {
            self.effects.push(Effect::Resume(server.token));
        }
        self.metrics.servers_busy.sub(1);
        self.pools[server.pool].nodes[usize::from(server.node.0)].busy -= 1;
        // Half a message was sent: nothing else can follow it. Or half of an implicit transaction: the Sync that would end it would
        // commit it, the end of the connection rolls it back.
        // (A transaction that is open may have ended by then, if a unit before it has not been answered.)
        let may_be_alone = server.status == Status::Idle || server.expect.iter().any(Expect::ends_unit);
        let half_done = server.in_unit && may_be_alone && (server.wrote || server.committing);
        if half_sent || half_done {
            let p = server.pool;
            // No Terminate either: it would complete the message.
            server.silent = true;
            self.drop_server(s);
            return self.pump(p);
        }
        let (copy_in, in_unit) = (server.copy_in, server.in_unit);
        let only_reads = server.status == Status::Idle && !server.wrote && !server.committing;
        if copy_in {
            self.send(s, copy_fail);
        }
        if in_unit {
            let server = &mut self.servers[s];
            server.in_unit = false;
            server.skipping = false;
            server.copy_in = false;
            server.owe(Expect::Sync);
            self.send(s, |out| message::empty(out, b'S'));
        }
        let server = &self.servers[s];
        if server.is_running() {
            // A write runs to its end, as it does when a client leaves a server; nobody waits for a read.
            if only_reads && server.cancels == 0 {
                self.send_cancel(s, None);
            }
        } else if server.expect.is_empty() {
            self.clean_up(s);
        }
    }

    /// COPY asks for data of a client that has left.
    pub(super) fn refuse_copy(&mut self, s: usize) {
        self.send(s, copy_fail);
        let server = &mut self.servers[s];
        server.copy_in = false;
        if matches!(server.expect.front(), Some(Expect::Execute(_))) {
            server.in_unit = false;
            server.owe(Expect::Sync);
            self.send(s, |out| message::empty(out, b'S'));
        }
    }

    /// A server connection without a client has answered everything: what is left of its session goes.
    pub(super) fn clean_up(&mut self, s: usize) {
        let server = &mut self.servers[s];
        (server.wrote, server.changed) = (false, false);
        server.committing = false;
        server.sets.undo();
        server.sets.end();
        let (open, reset) = (server.status != Status::Idle, std::mem::take(&mut server.reset));
        let unlisten = std::mem::take(&mut server.unlisten) && !reset;
        if reset {
            server.params = Applied::These(self.no_params.clone());
        }
        self.settle_schema(s);
        if open {
            self.own_query(s, "ROLLBACK");
        }
        if reset {
            self.own_query(s, "DISCARD ALL");
        }
        if unlisten {
            self.own_query(s, "UNLISTEN *");
        }
        if !open && !reset && !unlisten {
            self.rest(s);
        }
    }

    // --- the server leaves ---

    /// A server connection is gone.
    pub(super) fn server_closed(&mut self, s: usize, why: &str) {
        let server = &mut self.servers[s];
        let why = server.fatal.take().unwrap_or_else(|| why.to_owned());
        if !matches!(server.phase, ServerPhase::Ready) {
            return self.open_failed(s, &why, true);
        }
        let node = server.node;
        if server.listener {
            return self.listener_lost(s, &why);
        }
        self.shared.topology.report_failure(node);
        if self.lanes.contains(&s) {
            return self.lane_lost(s, &why);
        }
        let Some(c) = server.client.take() else {
            tracing::debug!(node = node.0, why, "an idle server connection was closed");
            return self.drop_server(s);
        };
        let loss = loss(server.status, server.committing, server.wrote);
        let mid_message = server.pass > 0 && server.pass_on;
        let units = server.expect.iter().filter(|e| matches!(e, Expect::Query(_) | Expect::Sync)).count();
        // The session was going back to what its client began with: the end of that unit is owed, too.
        let units = units + usize::from(server.owes_ready);
        let (in_unit, skipping, in_transaction) = (server.in_unit, server.skipping, server.status != Status::Idle);
        let place = &mut self.pools[server.pool].nodes[usize::from(node.0)];
        place.busy -= 1;
        self.metrics.servers_busy.sub(1);
        self.metrics.server_connections_lost.add(1);
        tracing::info!(node = node.0, why, "a server connection was lost while in use");
        let p = server.pool;
        let bound = self.is_bound(c);
        self.clients[c].at.leave_server();
        self.drop_server(s);
        self.pump(p);

        self.listen_no_more(c);
        let client = &mut self.clients[c];
        client.held_up = false;
        // Parses that were not answered have not happened.
        if let Some(prepared) = &mut client.prepared {
            for name in prepared.parsing.drain(..) {
                prepared.names.remove(&name);
            }
        }
        if let Pass::Forward(left) = client.pass {
            client.pass = Pass::Discard(left);
        }
        if matches!(client.phase, Phase::Login(_)) {
            client.again.attempts += 1;
            if client.again.attempts > MOST_ATTEMPTS {
                return self.fail_login(
                    c,
                    Sqlstate::CANNOT_CONNECT_NOW,
                    &format!("no server keeps its connection: {why}"),
                );
            }
            self.acquire(c, Want::Any);
            return;
        }
        if client.replay.is_some() && client.repeatable && client.again.attempts < MOST_ATTEMPTS && !bound {
            client.output.retract(&mut self.buffers);
            client.again.attempts += 1;
            client.again.avoid = Some(node);
            self.metrics.replays_lost.add(1);
            return self.send_again(c);
        }
        if mid_message {
            // The client has half a message: nothing that is sent now could be understood.
            return self.close_client(c);
        }
        self.give_up_replay(c);
        // What the client has not been told may have been committed; what it is told now comes behind that.
        let token = self.clients[c].token;
        self.seal_gate(c);
        if !self.is_client(token) {
            return;
        }
        if bound {
            let text = format!("the server connection was lost, and this session's state with it: {why}");
            return self.fatal(c, Sqlstate::ADMIN_SHUTDOWN, &text);
        }
        self.tell_loss(c, loss, units, in_unit && !skipping, in_transaction);
        if in_unit && self.clients.contains(c) {
            // What is still to come of the unit is not a unit of its own.
            self.clients[c].skipping = true;
        }
    }

    /// A client's unit was in a lane that is lost. `mid_message`: the client may have half a message.
    pub(super) fn seat_lost(&mut self, c: usize, node: topology::NodeId, mid_message: bool) {
        let client = &mut self.clients[c];
        if client.replay.is_some() && client.again.attempts < MOST_ATTEMPTS {
            client.output.retract(&mut self.buffers);
            client.again.attempts += 1;
            client.again.avoid = Some(node);
            // Whatever the server was lost for: a second time it is not shared.
            client.again.alone |= client.again.attempts > 1;
            self.metrics.replays_lost.add(1);
            return self.send_again(c);
        }
        if client.replay.is_none() && mid_message {
            return self.close_client(c);
        }
        client.output.retract(&mut self.buffers);
        client.replay.forget(&mut self.buffers);
        self.tell_loss(c, Loss::Read, 1, false, false);
    }

    /// Answers everything that the lost server owed.
    fn tell_loss(&mut self, c: usize, loss: Loss, units: usize, unfinished: bool, in_transaction: bool) {
        let told = units > 0 || unfinished;
        // With nothing in flight, a transaction was rolled back for certain.
        let loss = if in_transaction && !told { Loss::Transaction } else { loss };
        let (code, text) = loss.message();
        match loss {
            Loss::Transaction => self.metrics.transactions_lost.add(1),
            Loss::Commit | Loss::Statement => {
                self.metrics.outcome_unknown.add(1);
                // Who goes to see what became of it must not ask a replica that is behind.
                self.mark_write(c);
            }
            Loss::Read => {}
        }
        let client = &mut self.clients[c];
        client.unit.reset();
        client.again = Again::default();
        if in_transaction && loss == Loss::Transaction {
            client.aborted = if told { Aborted::Told } else { Aborted::Untold };
        }
        // Some of what was sent may have been answered already; the rest is answered here.
        for _ in 0..units {
            self.tell(c, |out| super::login::error(out, code, text));
            self.ready(c);
        }
        if unfinished {
            self.tell(c, |out| super::login::error(out, code, text));
            self.clients[c].skipping = true;
        }
        self.runnable.push_back(self.clients[c].token);
    }
}

fn copy_fail(out: &mut Vec<u8>) {
    message::message(out, b'f', |out| out.extend(b"the client left\0"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses() {
        use Status::{Failed, Idle, Transaction};
        let cases = [
            (Idle, false, false, Loss::Read),
            (Idle, true, false, Loss::Statement),
            (Idle, false, true, Loss::Statement),
            (Transaction, false, true, Loss::Transaction),
            (Transaction, false, false, Loss::Transaction),
            (Transaction, true, true, Loss::Commit),
            (Failed, false, true, Loss::Transaction),
        ];
        for (status, committing, wrote, expected) in cases {
            assert_eq!(loss(status, committing, wrote), expected, "{status:?} {committing} {wrote}");
        }
    }
}
