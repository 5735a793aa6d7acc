//! A client leaves its server, or a server its client.

use wire::Sqlstate;
use wire::message::{self, Status};

use super::aborted::LOST;
use super::client::{Aborted, Again, Pass, Phase};
use super::login::error;
use crate::core::parameters::Applied;
use crate::core::pool::Want;
use crate::core::server::{Cleaning, Note, Request, ServerPhase, Work};
use crate::core::{Core, Effect};

/// What `DISCARD ALL` does, but for prepared statements and plans: those are the proxy's, and functions leave them alone.
const CLEAN_FUNCTIONS: &str = "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *; \
                               SELECT pg_catalog.pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES";
/// The same on a standby, which has neither listeners nor temporary tables.
const CLEAN_FUNCTIONS_STANDBY: &str = "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; \
                                       SELECT pg_catalog.pg_advisory_unlock_all()";

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
    pub(in crate::core) fn abandon_server(&mut self, c: usize) {
        let Some(s) = self.clients[c].leave_server() else { return };
        let half_sent = matches!(self.clients[c].pass, Pass::Forward(_));
        let bound = self.is_bound(c);
        let awaits_listener = self.clients[c].awaits_listener();
        let server = &mut self.servers[s];
        server.client = None;
        server.discard = false;
        server.barrier = false;
        server.work.unpins = sql::Pins::NONE;
        server.cleaning.all |= bound;
        if awaits_listener {
            // The end of its answer, which has been put off, is nobody's.
            self.unheld.push_back(server.token);
        }
        server.held.client_leaves();
        if std::mem::take(&mut server.paused) {
            self.effects.push(Effect::Resume(server.token));
        }
        self.metrics.servers_busy.sub(1);
        self.pools[server.pool].nodes[usize::from(server.node.0)].busy -= 1;
        let protocol = &server.protocol;
        // Half a message was sent: nothing else can follow it. Or half of an implicit transaction: the Sync that would end it would
        // commit it, the end of the connection rolls it back.
        // (A transaction that is open may have ended by then, if a unit before it has not been answered.)
        let may_be_alone = protocol.status() == Status::Idle || protocol.owes_end();
        let half_done = protocol.is_in_unit() && may_be_alone && (server.work.wrote || server.work.committing);
        if half_sent || half_done {
            return self.give_up_server(s);
        }
        let only_reads = protocol.status() == Status::Idle && !server.work.wrote && !server.work.committing;
        if protocol.copies_in() {
            self.send(s, copy_fail);
            self.servers[s].protocol.ends_copy(Note::Client);
        }
        if self.servers[s].protocol.is_in_unit() {
            self.servers[s].ends_unit(Request::Sync, Note::Sync);
            self.send(s, |out| message::empty(out, b'S'));
        }
        let server = &self.servers[s];
        if server.is_running() {
            // A write runs to its end, as it does when a client leaves a server; nobody waits for a read.
            if only_reads && server.cancels == 0 {
                self.send_cancel(s, None);
            }
        } else if server.protocol.is_settled() {
            self.clean_up(s);
        }
    }

    /// Closes a server connection whose client has left in the middle of something: its end rolls that back.
    pub(in crate::core) fn give_up_server(&mut self, s: usize) {
        let server = &mut self.servers[s];
        let p = server.pool;
        // No Terminate either: it would complete a message of which half was sent.
        server.silent = true;
        self.drop_server(s);
        self.pump(p);
    }

    /// COPY asks for data of a client that has left.
    pub(in crate::core) fn refuse_copy(&mut self, s: usize) {
        self.send(s, copy_fail);
        let server = &mut self.servers[s];
        server.protocol.ends_copy(Note::Client);
        if server.protocol.is_in_unit() {
            server.ends_unit(Request::Sync, Note::Sync);
            self.send(s, |out| message::empty(out, b'S'));
        }
    }

    /// A server connection without a client has answered everything: what is left of its session goes.
    pub(in crate::core) fn clean_up(&mut self, s: usize) {
        self.settle_schema(s);
        let server = &mut self.servers[s];
        server.work = Work::default();
        server.tracker.client_leaves();
        server.portals.end();
        let open = server.protocol.status() != Status::Idle;
        let mut cleaning = std::mem::take(&mut server.cleaning);
        if cleaning.all {
            cleaning = Cleaning { all: true, ..Cleaning::default() };
        }
        if cleaning.all || cleaning.functions {
            server.params = Applied::These(self.params.none().clone());
        }
        // On a standby nobody listens.
        let primary = !self.is_replica(s);
        if open {
            self.own_query(s, "ROLLBACK");
        }
        if cleaning.all {
            self.own_query(s, "DISCARD ALL");
        }
        if cleaning.functions {
            self.metrics.functions_cleaned.add(1);
            self.own_query(s, if primary { CLEAN_FUNCTIONS } else { CLEAN_FUNCTIONS_STANDBY });
        }
        if cleaning.unlisten && !(cleaning.functions && primary) {
            self.own_query(s, "UNLISTEN *");
        }
        if !open && cleaning.is_none() {
            self.rest(s);
        }
    }

    // --- the server leaves ---

    /// A server connection is gone.
    pub(in crate::core) fn server_closed(&mut self, s: usize, why: &str) {
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
        if self.lanes.has(s) {
            return self.lane_lost(s, &why);
        }
        let Some(c) = server.client.take() else {
            tracing::debug!(node = node.0, why, "an idle server connection was closed");
            return self.drop_server(s);
        };
        let (protocol, work) = (&server.protocol, &server.work);
        let loss = loss(protocol.status(), work.committing, work.wrote);
        let mid_message = server.pass > 0 && server.pass_on;
        let units = protocol.all().filter(|(_, note)| note.ends_clients_unit()).count();
        // The session was going back to what its client began with: the end of that unit is owed, too.
        let units = units + usize::from(server.own.owes_ready);
        let (in_unit, skipping) = (protocol.is_in_unit(), protocol.is_skipping());
        let in_transaction = protocol.status() != Status::Idle;
        let place = &mut self.pools[server.pool].nodes[usize::from(node.0)];
        place.busy -= 1;
        self.metrics.servers_busy.sub(1);
        self.metrics.server_connections_lost.add(1);
        tracing::info!(node = node.0, why, "a server connection was lost while in use");
        let p = server.pool;
        let bound = self.is_bound(c);
        self.clients[c].leave_server();
        // What was not answered has not happened.
        self.undo_owed(s, c);
        self.drop_server(s);
        self.pump(p);

        self.listen_no_more(c);
        let client = &mut self.clients[c];
        client.held_up = false;
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
        self.seal_gate(c, self.seal_in_doubt(c));
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
    pub(in crate::core) fn seat_lost(&mut self, c: usize, node: topology::NodeId, mid_message: bool) {
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
            self.tell(c, |out| error(out, code, text));
            self.ready(c);
        }
        if unfinished {
            self.tell(c, |out| error(out, code, text));
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
