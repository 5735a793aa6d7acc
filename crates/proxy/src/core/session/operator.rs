//! Clients of the console, a worker's reports to the console, and orders of operators to a worker.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use wire::{HEADER, Sqlstate, message, payload};

use super::client::{Client, Operator, Phase, Step};
use super::login::{VERSION, error};
use crate::config::Access;
use crate::core::directory::DATABASES;
use crate::core::memory::Buffers;
use crate::core::pool::Pool;
use crate::core::report::{ClientReport, Look, MemoryReport, Operation, PoolReport, Report, ServerReport};
use crate::core::server::{Server, ServerPhase};
use crate::core::{Core, Effect, SMALL_MAX};

/// The parameters in the console's greeting: enough for drivers that look at them.
const GREETING: &[(&str, &str)] = &[
    ("server_version", concat!("15.0 (Kingpost ", env!("CARGO_PKG_VERSION"), ")")),
    ("server_encoding", "UTF8"),
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO, MDY"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "GMT"),
    ("integer_datetimes", "on"),
    ("is_superuser", "off"),
    ("in_hot_standby", "off"),
    ("standard_conforming_strings", "on"),
    ("application_name", ""),
];

/// The FATAL error for clients of a killed database.
const KILLED: &str = "terminating connection due to an operator's command";

fn is_of(pool: &Pool, database: Option<&str>) -> bool {
    database.is_none_or(|name| *pool.key.database == *name)
}

impl Core {
    // --- clients ---

    /// Lets an authenticated operator into the console.
    pub(in crate::core) fn enter_console(&mut self, c: usize, access: Access) {
        let Phase::Login(login) = &self.clients[c].phase else { return };
        let (version, user) = (login.version, login.key.user.clone());
        let whole = self.is_whole(&login.key.database);
        self.log_login(c);
        let (pid, secret) = self.cancel_key(c, version);
        let reports = self.settings.report_proxy;
        self.write_client(c, |out| {
            message::authentication_ok(out);
            for (name, value) in GREETING {
                message::parameter_status(out, name, value);
            }
            if reports {
                message::parameter_status(out, VERSION.0, VERSION.1);
            }
            message::backend_key(out, pid, &secret);
            message::ready(out, message::Status::Idle);
        });
        self.no_longer_logging_in(c);
        self.shared.inside.fetch_add(1, Ordering::Relaxed);
        let client = &mut self.clients[c];
        client.phase = Phase::Console(Box::new(Operator { user, access, whole, asked: false }));
        self.runnable.push_back(client.token);
    }

    /// Handles a message to the console, which takes simple queries, one at a time.
    pub(in crate::core) fn console_message(&mut self, c: usize, bytes: &[u8]) -> Step {
        let frame = match self.frame(c, bytes) {
            Ok(frame) => frame,
            Err(step) => return step,
        };
        let client = &mut self.clients[c];
        let token = client.token;
        let Phase::Console(operator) = &mut client.phase else { return Step::Blocked };
        if operator.asked {
            return Step::Blocked;
        }
        match frame.tag {
            b'X' => self.terminate(c),
            b'Q' if frame.payload <= SMALL_MAX => {
                let Some(data) = bytes.get(HEADER..frame.total()) else { return Step::More };
                let text = payload::cstr(data).map(|(text, _)| String::from_utf8_lossy(text).into_owned());
                let Some(text) = text else {
                    self.violation(c, "a query without its end");
                    return Step::Gone;
                };
                operator.asked = true;
                let (access, whole) = (operator.access, operator.whole);
                self.effects.push(Effect::Ask { client: token, text, access, whole });
                Step::Used(frame.total())
            }
            b'Q' => {
                self.violation(c, "a command to the console of more than 64 kB");
                Step::Gone
            }
            b'S' => {
                client.skipping = false;
                self.write_client(c, |out| message::ready(out, message::Status::Idle));
                Step::Used(frame.total())
            }
            _ => {
                if !std::mem::replace(&mut client.skipping, true) {
                    let text = "the console takes simple queries only: no parameters, no prepared statements";
                    self.write_client(c, |out| error(out, Sqlstate::FEATURE_NOT_SUPPORTED, text));
                }
                self.discard(c, frame)
            }
        }
    }

    /// Passes the console's answer on to its client.
    pub(in crate::core) fn console_answer(&mut self, c: usize, bytes: &[u8]) {
        if let Phase::Console(operator) = &mut self.clients[c].phase {
            operator.asked = false;
            self.write_client(c, |out| out.extend_from_slice(bytes));
            self.runnable.push_back(self.clients[c].token);
        }
    }

    // --- operations ---

    pub(in crate::core) fn operate(&mut self, operation: &Operation) {
        self.paused.note(operation);
        match operation {
            Operation::Pause(database) => self.pause_pools(database.as_deref()),
            Operation::Resume(_) | Operation::ResumeLeased => self.resume(),
            Operation::Suspend => self.suspend(),
            Operation::Disable(_) | Operation::Enable(_) => {}
            Operation::PauseLeased => self.pause_pools(None),
            Operation::ResetStatements => self.observing.clear(),
            Operation::Reconnect(database) => {
                for pool in self.pools.iter_mut().filter(|pool| is_of(pool, database.as_deref())) {
                    pool.namespace.forget();
                    pool.settings_asked = None;
                }
                self.retire_servers(database.as_deref());
            }
            Operation::Kill(database) => {
                self.pause_pools(database.as_deref());
                let of =
                    |client: &Client| self.pools.get(client.pool).is_some_and(|pool| is_of(pool, database.as_deref()));
                let killed: Vec<_> =
                    self.clients.iter().filter(|(_, client)| of(client)).map(|(_, client)| client.token).collect();
                self.shut_out(&killed, KILLED);
            }
            Operation::KillClient(token) => self.shut_out(&[*token], KILLED),
        }
    }

    /// Stops reading clients. Answers under way are delivered, and server connections stay open.
    fn suspend(&mut self) {
        for pool in self.pools.iter_mut() {
            pool.suspended = true;
        }
        for (_, client) in &mut self.clients {
            if matches!(client.phase, Phase::Ready) && !client.paused {
                client.paused = true;
                self.effects.push(Effect::Pause(client.token));
            }
        }
    }

    /// Returns the number of connections with unwritten bytes or unanswered requests.
    fn unsettled(&self) -> usize {
        let clients = self.clients.iter().filter(|(_, c)| matches!(c.phase, Phase::Ready) && c.output.unread() > 0);
        let busy = |server: &Server| !server.output.is_empty() || !server.protocol.is_settled();
        let ready = |server: &Server| matches!(server.phase, ServerPhase::Ready) && !server.listener;
        clients.count() + self.servers.iter().filter(|(_, server)| ready(server) && busy(server)).count()
    }

    /// Applies `paused` to the pools. Server connections of `database` are closed when they are free.
    fn pause_pools(&mut self, database: Option<&str>) {
        for pool in self.pools.iter_mut() {
            pool.paused = self.paused.has(&pool.key.database);
        }
        self.retire_servers(database);
    }

    /// Applies `paused` to the pools; waiting clients go on. The view is refreshed first: the one from the beginning of
    /// this turn may be older than the change (say, of the primary) that the clients were paused for.
    fn resume(&mut self) {
        if self.shared.topology.epoch() != self.view.epoch {
            self.refresh_view();
        }
        for p in self.pools.ids() {
            self.pools[p].paused = self.paused.has(&self.pools[p].key.database);
            self.pools[p].suspended = self.paused.is_suspended();
            self.pump(p);
        }
        if !self.paused.is_suspended() {
            let held: Vec<usize> = self.clients.iter().filter(|(_, client)| client.paused).map(|(c, _)| c).collect();
            for c in held {
                if self.clients.contains(c) {
                    self.bound_input(c);
                }
            }
        }
    }

    /// Closes the server connections of `database` as soon as they are idle. A text that is prepared from now on gets its present meaning.
    fn retire_servers(&mut self, database: Option<&str>) {
        self.reconnects += 1;
        for pool in self.pools.iter_mut().filter(|pool| is_of(pool, database)) {
            pool.namespace.schema().changes(self.now, true);
            pool.forget_greetings();
        }
        let mut idle = Vec::new();
        for (s, server) in &mut self.servers {
            // A listening connection is in use by its clients as long as they listen.
            if is_of(&self.pools[server.pool], database) && !server.listener {
                server.retire = true;
                if server.is_idle() {
                    idle.push(s);
                }
            }
        }
        for s in idle {
            self.drop_server(s);
        }
    }

    // --- reports ---

    /// Returns a report of the worker's present state.
    pub fn report(&self, look: Look) -> Report {
        let worker = self.shared.membership.first_worker + self.id;
        let mut report = Report { worker, ..Report::default() };
        report.pools = self.pools.iter().map(|(_, pool)| self.pool_report(pool)).collect();
        // The index of each pool's report.
        let places: HashMap<usize, usize> = self.pools.iter().enumerate().map(|(at, (p, _))| (p, at)).collect();
        let place = |p: usize| places.get(&p).copied().unwrap_or(0);
        for (_, client) in &self.clients {
            match &client.phase {
                Phase::Ready => {
                    let pool = &mut report.pools[place(client.pool)];
                    pool.clients += 1;
                    if client.waiting {
                        pool.waiting += 1;
                        pool.oldest_wait = pool.oldest_wait.max(self.now.saturating_duration_since(client.since));
                    }
                    if let (Some(gate), Some(since)) = (&mut pool.gate, client.output.held_since()) {
                        gate.held += 1;
                        gate.longest = gate.longest.max(self.now.saturating_duration_since(since));
                    }
                }
                Phase::Startup { .. } | Phase::Securing | Phase::Login(_) => report.logging_in += 1,
                Phase::Replicating(_) => report.pools[place(client.pool)].clients += 1,
                Phase::Console(_) | Phase::Cancelling => {}
            }
        }
        for (_, server) in &self.servers {
            if server.client.is_none() && matches!(server.phase, ServerPhase::Ready) && server.cancels > 0 {
                report.pools[place(server.pool)].cancelling += 1;
            }
        }
        if look.clients {
            report.clients = self.clients.iter().map(|(_, client)| self.client_report(client)).collect();
        }
        report.suspended = self.paused.is_suspended().then(|| self.unsettled());
        if look.memory {
            report.memory = self.memory_report();
        }
        if look.statements {
            report.statements = self.observing.report();
        }
        if look.servers {
            report.servers = self.servers.iter().map(|(_, server)| self.server_report(server)).collect();
        }
        report
    }

    fn memory_report(&self) -> Vec<MemoryReport> {
        let slab = |name, size, used, capacity: usize| MemoryReport { name, size, used, free: capacity - used };
        let clients = self.clients.iter().filter(|(_, client)| !client.output.is_empty()).count();
        let servers = self.servers.iter().filter(|(_, server)| !server.output.is_empty()).count();
        vec![
            slab("client_cache", size_of::<Client>(), self.clients.len(), self.clients.capacity()),
            slab("server_cache", size_of::<Server>(), self.servers.len(), self.servers.capacity()),
            MemoryReport {
                name: "iobuf_cache",
                size: Buffers::SIZE,
                used: clients + servers,
                free: self.buffers.spare(),
            },
        ]
    }

    fn pool_report(&self, pool: &Pool) -> PoolReport {
        PoolReport {
            database: pool.key.database.clone(),
            user: pool.key.user.clone(),
            mode: pool.database.mode,
            paused: pool.paused,
            clients: 0,
            waiting: 0,
            oldest_wait: std::time::Duration::ZERO,
            busy: pool.nodes.iter().map(|node| node.busy).sum(),
            idle: pool.nodes.iter().map(|node| node.idle.len()).sum(),
            connecting: pool.nodes.iter().map(|node| node.connecting).sum(),
            cancelling: 0,
            connect_error: pool.connect_error(),
            gate: self.gate_report(pool),
            totals: pool.totals,
        }
    }

    fn client_report(&self, client: &Client) -> ClientReport {
        let (user, database) = match (&client.phase, self.pools.get(client.pool)) {
            (Phase::Console(operator), _) => (operator.user.clone(), DATABASES[0].into()),
            (Phase::Login(login), _) => (login.key.user.clone(), login.key.database.clone()),
            (_, Some(pool)) => (pool.key.user.clone(), pool.key.database.clone()),
            (_, None) => ("".into(), "".into()),
        };
        let server = client.at.either();
        let running = server.is_some_and(|s| self.servers[s].client.is_some());
        let state = match client.phase {
            Phase::Startup { .. } | Phase::Securing | Phase::Login(_) => "login",
            Phase::Cancelling => "active_cancel_req",
            Phase::Console(_) => "console",
            Phase::Replicating(_) => "active",
            Phase::Ready if client.waiting => "waiting",
            Phase::Ready if running => "active",
            Phase::Ready => "idle",
        };
        ClientReport {
            token: client.token,
            user,
            database,
            state,
            connected: self.born + std::time::Duration::from_secs(u64::from(client.connected)),
            since: (client.waiting || running).then_some(client.since),
            server: server.map(|s| self.servers[s].token),
            application: client.params.get("application_name").cloned().unwrap_or_default(),
            prepared: client.names.len(),
            pins: client.pins,
            tls: client.identity.is_some(),
            replication: match client.phase {
                Phase::Replicating(replication) => replication.name(),
                _ => "none",
            },
            buffered: (client.input.len(), client.output.unread()),
            fd: None,
            address: None,
            local: None,
        }
    }

    fn server_report(&self, server: &Server) -> ServerReport {
        let key = &self.pools[server.pool].key;
        let state = match server.phase {
            ServerPhase::Connecting | ServerPhase::Asking(_) | ServerPhase::Securing | ServerPhase::Login(_) => "login",
            ServerPhase::Ready if server.listener => "listening",
            ServerPhase::Ready if server.tunnel.is_some() => "replicating",
            ServerPhase::Ready if server.client.is_some() => "active",
            ServerPhase::Ready if server.cancels > 0 => "being_canceled",
            ServerPhase::Ready if server.retire => "closing",
            ServerPhase::Ready => "idle",
        };
        let client = server.client.map(|c| &self.clients[c]);
        ServerReport {
            token: server.token,
            user: key.user.clone(),
            database: key.database.clone(),
            node: server.node,
            state,
            retire: server.retire,
            connected: server.opened,
            since: client.map_or(server.idle_since, |client| client.since),
            client: client.map(|client| client.token),
            pid: server.key.0,
            tls: server.identity.is_some(),
            replication: server.tunnel.as_ref().map_or("none", |tunnel| tunnel.replication.name()),
            buffered: (server.input.len(), server.output.len()),
            fd: None,
            lane: self.lane_report(server),
            prepared: server.statements.ids().collect(),
            application: client.and_then(|c| c.params.get("application_name").cloned()).unwrap_or_default(),
            address: None,
            local: None,
        }
    }
}
