//! A client leaves its server connection, or a server connection is lost under its client.

use sql::Pins;
use wire::Sqlstate;
use wire::message::{self, Status};

use super::client::{Aborted, Attempts, PassThrough, Phase};
use super::login::error;
use super::termination::{Cause, InFlight, Loss, Outcome, cause, outcome};
use crate::core::parameters::Applied;
use crate::core::pool::{LocalSocket, NodeRequest};
use crate::core::prepared::StatementName;
use crate::core::server::{Cleaning, LastWord, Note, Request, ServerPhase, Work};
use crate::core::{Core, Effect};

/// Like `DISCARD ALL`, but keeps prepared statements and plans. A function can change prepared statements, too (`EXECUTE 'DEALLOCATE ALL'`), but
/// hardly any does: so they are audited (`Note::Audit`), and dropped if they are not those that the proxy has made.
const CLEAN_FUNCTIONS: &str = "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *; \
                               SELECT pg_catalog.pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES";
/// [`CLEAN_FUNCTIONS`] for a standby, which has neither listeners nor temporary tables.
const CLEAN_FUNCTIONS_STANDBY: &str = "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; \
                                       SELECT pg_catalog.pg_advisory_unlock_all()";

/// Most attempts at a unit whose server connection is lost again and again.
const MOST_ATTEMPTS: u8 = 5;

impl Core {
    // --- the client leaves ---

    /// Detaches a client that has gone from its server connection. The connection finishes its requests, and is then cleaned.
    pub(in crate::core) fn abandon_server(&mut self, c: usize) {
        let Some(s) = self.clients[c].leave_server() else { return };
        if self.servers[s].tunnel.is_some() {
            return self.drop_tunnel(s);
        }
        let half_sent = matches!(self.clients[c].pass_through, PassThrough::Forward { .. });
        let bound = self.is_bound(c);
        let keeps = self.clients[c].pins.0 & Pins::LOAD.0 != 0;
        let awaits_listener = self.clients[c].awaits_listener();
        let server = &mut self.servers[s];
        server.client = None;
        // State that no statement clears goes with the connection.
        server.retire |= keeps;
        server.discard = false;
        server.barrier = false;
        server.work.unpins = Pins::NONE;
        server.cleaning.all |= bound;
        if awaits_listener {
            // `ReadyForQuery` was held back until the shared connection answers LISTEN; no client waits for it any
            // more.
            self.unheld.push_back(server.token);
        }
        server.statements.client_leaves();
        if std::mem::take(&mut server.paused) {
            self.effects.push(Effect::Resume(server.token));
        }
        self.metrics.servers_busy.sub(1);
        self.pools[server.pool].nodes[usize::from(server.node.0)].busy -= 1;
        let protocol = &server.protocol;
        // After half a message nothing else can be sent. After `P B E` without Sync, a Sync from the proxy would commit
        // the implicit transaction, while closing the connection rolls it back. (An explicit transaction may also be at
        // its end: a unit in flight can contain its COMMIT.)
        let may_be_alone = protocol.status() == Status::Idle || protocol.owes_end();
        let half_done = protocol.is_in_unit() && may_be_alone && (server.work.has_written || server.work.committing);
        if half_sent || half_done {
            return self.give_up_server(s);
        }
        let only_reads = protocol.status() == Status::Idle && !server.work.has_written && !server.work.committing;
        if protocol.copies_in() {
            self.refuse_copy(s);
        }
        if self.servers[s].protocol.is_in_unit() {
            self.servers[s].ends_unit(Request::Sync, Note::Sync);
            self.write_server(s, |out| message::empty(out, b'S'));
        }
        let server = &self.servers[s];
        if server.is_running() {
            // A write runs to its end, as it does when a client leaves PostgreSQL itself. A read, for which no client waits, is cancelled.
            if only_reads && server.cancels == 0 {
                self.send_cancel(s, None);
            }
        } else if server.protocol.is_settled() {
            self.clean_up(s);
        }
    }

    /// Closes a server connection whose client left in the middle of a message or an implicit transaction: the server
    /// rolls back.
    pub(in crate::core) fn give_up_server(&mut self, s: usize) {
        let server = &mut self.servers[s];
        let p = server.pool;
        // No Terminate: after half a message, the server would take it for a part of that message.
        server.silent = true;
        self.drop_server(s);
        self.pump(p);
    }

    /// Fails a COPY FROM STDIN of a client that has gone.
    pub(in crate::core) fn refuse_copy(&mut self, s: usize) {
        self.fail_copy(s, Note::Sync);
    }

    /// Cleans the session of a server connection without a client that has answered everything.
    pub(in crate::core) fn clean_up(&mut self, s: usize) {
        self.settle_schema(s);
        let server = &mut self.servers[s];
        server.work = Work::default();
        server.tracker.client_leaves();
        server.function_plans.client_leaves();
        server.portals.client_leaves();
        let open = server.protocol.status() != Status::Idle;
        let mut cleaning = std::mem::take(&mut server.cleaning);
        if cleaning.all {
            cleaning = Cleaning { all: true, ..Cleaning::default() };
        }
        if cleaning.all || cleaning.functions {
            server.params = Applied::These(self.params.none().clone());
        }
        // A standby allows no LISTEN.
        let primary = !self.is_replica(s);
        if cleaning.statements {
            // They were looked at in the cleaning before this one.
            tracing::debug!("a function has changed a server connection's prepared statements: all are dropped");
        }
        if open {
            self.own_query(s, "ROLLBACK");
        }
        if cleaning.outside {
            let drop = |id| format!("DEALLOCATE {}", StatementName::of(id));
            let drops: Vec<String> = self.servers[s].statements.loses_outside().into_iter().map(drop).collect();
            // None is left if each had to make room since.
            cleaning.outside = !drops.is_empty();
            if cleaning.outside {
                self.own_query(s, &drops.join("; "));
            }
        }
        cleaning.aliases = cleaning.aliases && !cleaning.all && self.close_aliases(s);
        if cleaning.all {
            self.own_query(s, "DISCARD ALL");
        }
        if cleaning.functions {
            self.metrics.functions_cleaned.add(1);
            self.own_query(s, if primary { CLEAN_FUNCTIONS } else { CLEAN_FUNCTIONS_STANDBY });
            let question = Cleaning::ask_for_statements(self.servers[s].statements.count());
            self.own_query_as(s, &question, Note::Audit);
        }
        if cleaning.statements {
            self.own_query(s, "DEALLOCATE ALL");
        }
        if cleaning.temp && primary && !cleaning.functions {
            self.own_query(s, "DISCARD TEMP");
        }
        if (cleaning.all || cleaning.functions || cleaning.statements)
            && let Some(query) = self.pools[self.servers[s].pool].database.start.query.clone()
        {
            self.own_query(s, &query);
        }
        if cleaning.unlisten && !(cleaning.functions && primary) {
            self.own_query(s, "UNLISTEN *");
        }
        if !open && cleaning.is_none() {
            self.rest(s);
        }
    }

    // --- the server leaves ---

    /// Handles the loss of a server connection.
    pub(in crate::core) fn server_closed(&mut self, s: usize, why: &str) {
        let server = &mut self.servers[s];
        let last = server.fatal.take();
        let why = last.as_ref().map_or_else(|| why.to_owned(), LastWord::text);
        if server.tunnel.is_some() {
            return self.tunnel_lost(s, &why);
        }
        if !matches!(server.phase, ServerPhase::Ready) {
            if self.servers[s].by_socket {
                return self.leave_socket(s, &why, LocalSocket::failed);
            }
            return self.open_failed(s, &why, true);
        }
        let node = server.node;
        if server.listener {
            return self.listener_lost(s, &why);
        }
        self.shared.topology.report_failure(node);
        // The server may be started again, in another version.
        self.pools[server.pool].forget_greetings();
        if self.lanes.has(s) {
            return self.lane_lost(s, &why, last.as_ref());
        }
        let Some(c) = server.client.take() else {
            tracing::debug!(node = node.0, why, "an idle server connection was closed");
            return self.drop_server(s);
        };
        let (protocol, work) = (&server.protocol, &server.work);
        let (status, committing, has_written) = (protocol.status(), work.committing, work.has_written);
        let mid_message = server.pass > 0 && server.pass_on;
        let units = protocol.all().filter(|(_, note)| note.ends_clients_unit()).count();
        // A correction after RESET (`goes_back`) was under way: the client still waits for the end of that unit as
        // well.
        let units = units + usize::from(server.own.owes_ready);
        let (in_unit, skipping) = (protocol.is_in_unit(), protocol.is_skipping());
        let in_transaction = status != Status::Idle;
        let place = &mut self.pools[server.pool].nodes[usize::from(node.0)];
        place.busy -= 1;
        self.metrics.servers_busy.sub(1);
        self.metrics.server_connections_lost.add(1);
        tracing::info!(node = node.0, why, "a server connection was lost while in use");
        let p = server.pool;
        let bound = self.is_bound(c);
        self.clients[c].leave_server();
        // Changes of names by unanswered messages have not happened.
        self.undo_owed(s, c);
        self.drop_server(s);
        self.pump(p);

        self.listen_no_more(c);
        let client = &mut self.clients[c];
        client.held_up = false;
        if let PassThrough::Forward { left, .. } = client.pass_through {
            client.pass_through = PassThrough::Discard(left);
        }
        let cause = cause(last.as_ref().and_then(|last| last.code));
        if matches!(client.phase, Phase::Login(_)) {
            if let Some(last) = last.filter(|_| cause == Cause::Session) {
                return self.fail_login_as(c, &last.error);
            }
            client.attempts.count += 1;
            if client.attempts.count > MOST_ATTEMPTS {
                return self.fail_login(
                    c,
                    Sqlstate::CANNOT_CONNECT_NOW,
                    &format!("no server keeps its connection: {why}"),
                );
            }
            self.acquire(c, NodeRequest::Any);
            return;
        }
        let repeatable = client.replay.is_some() && client.repeatable && client.attempts.count < MOST_ATTEMPTS;
        let outcome = outcome(cause, InFlight { status, committing, has_written, repeatable, bound });
        if outcome == Outcome::Again {
            client.output.retract(&mut self.buffers);
            client.attempts.count += 1;
            client.attempts.avoid = Some(node);
            self.metrics.replays_lost.add(1);
            return self.send_again(c);
        }
        if mid_message {
            // The client has received half a message, so nothing can be sent behind it.
            return self.close_client(c);
        }
        self.give_up_replay(c);
        // Transactions whose answers are behind a gate may be committed. The error comes behind those answers.
        let token = self.clients[c].token;
        self.seal_gate(c, self.seal_in_doubt(c));
        if !self.is_client(token) {
            return;
        }
        let loss = match (outcome, last) {
            (Outcome::Closed, Some(last)) => return self.fatal_as(c, &last.error),
            (Outcome::Told(loss), _) => loss,
            _ => {
                let text = format!("the server connection was lost, and this session's state with it: {why}");
                return self.fatal(c, Sqlstate::ADMIN_SHUTDOWN, &text);
            }
        };
        self.tell_loss(c, loss, units, in_unit && !skipping, in_transaction);
        if in_unit && self.clients.contains(c) {
            // The rest of the client's current unit is skipped, up to Sync.
            self.clients[c].skipping = true;
        }
    }

    /// Handles the loss of the lane that a client's unit was in. `mid_message`: the client may have received half a message. `last`: the server's
    /// last FATAL, for the client whose unit ran.
    pub(in crate::core) fn seat_lost(
        &mut self,
        c: usize,
        node: topology::NodeId,
        mid_message: bool,
        last: Option<&LastWord>,
    ) {
        if let Some(last) = last.filter(|last| cause(last.code) == Cause::Session && !mid_message) {
            self.clients[c].replay.forget(&mut self.buffers);
            return self.fatal_as(c, &last.error);
        }
        let client = &mut self.clients[c];
        if client.replay.is_some() && client.attempts.count < MOST_ATTEMPTS {
            client.output.retract(&mut self.buffers);
            client.attempts.count += 1;
            client.attempts.avoid = Some(node);
            // The unit itself may be the cause: from the second loss on it gets a server connection to itself.
            client.attempts.alone |= client.attempts.count > 1;
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

    /// Sends the client the end of each of the `units` that the lost server connection still owed, with an error.
    fn tell_loss(&mut self, c: usize, loss: Loss, units: usize, unfinished: bool, in_transaction: bool) {
        self.runs_nothing(self.clients[c].token);
        let told = units > 0 || unfinished;
        // If nothing was in flight, the transaction was certainly rolled back.
        let loss = if in_transaction && !told { Loss::Transaction } else { loss };
        let (code, text) = loss.message();
        match loss {
            Loss::Transaction => self.metrics.transactions_lost.add(1),
            Loss::Commit | Loss::Statement => {
                self.metrics.outcome_unknown.add(1);
                // The client may look whether the statement took effect: its next reads must not go to a replica that
                // is behind.
                self.mark_write(c);
            }
            Loss::Read | Loss::Unread => {}
        }
        let client = &mut self.clients[c];
        client.unit.reset();
        client.attempts = Attempts::default();
        if in_transaction && loss == Loss::Transaction {
            client.aborted = if told { Aborted::Told } else { Aborted::Untold };
        }
        if told {
            self.fail_begun(c);
        }
        // Some units may have been answered already; `units` counts the others.
        for _ in 0..units {
            self.write_client(c, |out| error(out, code, text));
            self.ready(c);
        }
        if unfinished {
            self.write_client(c, |out| error(out, code, text));
            self.clients[c].skipping = true;
        }
        self.runnable.push_back(self.clients[c].token);
    }
}
