//! Assignment of server connections to clients.
//!
//! For each database and user a worker has a pool: idle connections, and queues of waiting clients. A [`Budget`] bounds the number of connections
//! over all workers. A worker that may not open another connection asks a worker that has an idle one, which sends the connection over with its
//! socket. If no worker has an idle one, the next worker that gets one sees that another worker waits.

mod budget;
mod crowd;
mod greetings;
mod local_socket;
mod pools;
mod room;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use topology::{Address, NodeId, Role};
use wire::Sqlstate;

use crate::config::PoolMode;
use crate::core::lane::Tally;
use crate::core::memory::{Kind, Token};
use crate::core::notify::{Channels, Listener};
use crate::core::observe::Timing;
use crate::core::parameters::Params;
use crate::core::prepared::StatementNamespace;
use crate::core::prepared::baseline::Begins;
use crate::core::report::{ConnectError, Totals};
use crate::core::server::{Server, ServerPhase};
use crate::core::session::{At, Attempt, Awaited, Client, Overdue, Phase};
use crate::core::{Core, CoreMessage, DRAINING, Destination, Effect, Moved, Moving, over};
use crate::settings::{CommitGate, Database};
use crate::traffic::PoolTrafficRules;

use budget::Full;
pub(crate) use budget::{Budget, Budgets, MOST_WORKERS};
pub(in crate::core) use crowd::Crowd;
use greetings::Greetings;
pub(in crate::core) use local_socket::LocalSocket;
pub(in crate::core) use pools::Pools;

/// A database, by the name that clients use, and a user.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PoolKey {
    /// The database.
    pub database: Arc<str>,
    /// The user.
    pub user: Arc<str>,
}

/// Kind of node that a client needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum NodeRequest {
    /// The primary.
    Primary,
    /// A node that may answer this read.
    Read,
    /// Any node: a login needs to learn the greeting.
    Any,
}

/// One worker's part of a pool.
pub(in crate::core) struct Pool {
    pub key: PoolKey,
    pub database: Database,
    /// The scope of the clients' statements: database and user.
    pub namespace: Arc<StatementNamespace>,
    pub nodes: Vec<PoolNode>,
    /// Clients that have authenticated, and server connections, in any state.
    pub clients: usize,
    pub servers: usize,
    /// Clients among them with a server connection of their own, for replication.
    pub tunnels: usize,
    /// True if one of the pool's clients was let in by a lookup.
    pub looked_up: bool,
    /// True if a server has accepted a login with this database and user.
    pub known: bool,
    /// Since when the pool has had neither clients nor server connections.
    unused_since: Option<Instant>,
    /// Clients that wait for the primary, oldest first.
    pub writers: VecDeque<Waiter>,
    /// Clients that wait for any node that may answer their read.
    pub readers: VecDeque<Waiter>,
    /// The parameters that a server reports at login, by the client's startup parameters.
    greetings: Greetings,
    /// The node that reported them, and [`StatementNamespace::greetings`] then.
    greeted_by: Option<(NodeId, u64)>,
    /// Value of [`StatementNamespace::dismissals`] for which the pool's clients have been closed.
    pub dismissed: u64,
    /// The view's epoch for which all nodes' session settings are known.
    pub settings_asked: Option<u64>,
    /// True if a read went to the primary because the primary's session settings are not known yet.
    pub settings_wanted: bool,
    /// True if a server connection began with `standard_conforming_strings = off`: a backslash may escape a quote in any text.
    pub odd_strings: bool,
    /// The traffic rules for the pool's statements, as of when one was last asked about.
    pub traffic_rules: PoolTrafficRules,
    /// Hold-back of answers to commits.
    pub gate: CommitGate,
    /// True if connections were opened that do not flush at commit. Never reset: waiting a little longer does no harm.
    pub lazy: bool,
    /// True if an operator has paused the pool: it gives out no connections, and closes those that come back.
    pub paused: bool,
    /// True if an operator has suspended the proxy: the pool gives out no connections, and keeps those that it has.
    pub suspended: bool,
    /// Channels that this worker's clients listen on through the shared connection.
    pub channels: Channels,
    /// The shared connection that listens, if this worker has it.
    pub listener: Option<Box<Listener>>,
    pub totals: Totals,
}

/// One worker's connections of a pool to one node.
pub(in crate::core) struct PoolNode {
    pub budget: Arc<Budget>,
    /// Idle connections; the one used last is given out first.
    pub idle: Vec<usize>,
    /// Number of connections being opened.
    pub connecting: usize,
    /// Number of connections in use, lanes included.
    pub busy: usize,
    /// Connections in use that are lanes.
    pub lanes: Vec<usize>,
    /// Number of units in those lanes.
    pub seated: usize,
    /// Counts of those units that the other workers do not know yet.
    pub lane_tally: Tally,
    /// Time of the next attempt after a failure.
    pub retry_at: Option<Instant>,
    pub failures: u32,
    /// The last failed attempt to open a connection, until one succeeds.
    failed: Option<Box<Failed>>,
    /// Selection of the secret that the node is offered.
    pub secret_selection: SecretSelection,
    /// Choice between the node's Unix socket and TCP.
    pub local_socket: LocalSocket,
    /// True if the node refused the login; it may be a replica on which the database does not exist yet.
    pub refused: bool,
    /// True if another worker was asked for a connection.
    asked: bool,
    /// True if the other workers know of idle connections here.
    published: bool,
    /// True if the list of idle connections may have changed in this turn.
    touched: bool,
    /// Connections given to this worker's clients while another worker waits.
    kept: u32,
}

/// An attempt to open a server connection that has failed.
#[derive(Debug)]
struct Failed {
    at: Instant,
    /// The SQLSTATE, if the server sent one.
    code: Option<Sqlstate>,
    text: String,
}

/// Selection of the secret that a node is offered: the one that it accepted last, else each in turn.
#[derive(Debug, Default)]
pub(in crate::core) struct SecretSelection {
    next: usize,
    /// Number of refusals since the node last accepted a secret, since it refused all, or since a client began to wait while no other did.
    refused: usize,
    renewal: Renewal,
}

/// State of the renewal of passwords after the node has refused one.
#[derive(Debug, Default, PartialEq, Eq)]
enum Renewal {
    /// No renewal.
    #[default]
    No,
    /// The passwords are being read, under this ticket.
    Asked(u64),
    /// The passwords were read again: the next refusal counts.
    Done,
}

impl SecretSelection {
    /// Returns the secret to offer, as a number that only grows.
    pub(in crate::core) fn next(&self) -> usize {
        self.next
    }

    /// Notes that the node has accepted the secret.
    pub(in crate::core) fn accepted(&mut self) {
        self.refused = 0;
        self.renewal = Renewal::No;
    }

    /// Forgets earlier refusals when a client begins to wait and no other one does: they are of attempts that no client waits for any more. Those
    /// clients got a connection of another worker meanwhile, so that no further secret was offered.
    pub(in crate::core) fn begin(&mut self) {
        self.refused = 0;
    }

    /// Handles the refusal of a password that can be read again. Returns true if another attempt follows after passwords were read. `offered_at`:
    /// last ticket up to which they had been read when the password was offered; `newest`: up to which they have been read by now.
    pub(in crate::core) fn renew(&mut self, offered_at: u64, newest: u64, ask: impl FnOnce() -> Option<u64>) -> bool {
        match self.renewal {
            // The refused password is older than the newest one.
            _ if offered_at < newest => true,
            Renewal::Asked(_) => true,
            Renewal::Done => {
                self.renewal = Renewal::No;
                false
            }
            Renewal::No => match ask() {
                Some(ticket) => {
                    self.renewal = Renewal::Asked(ticket);
                    true
                }
                None => false,
            },
        }
    }

    /// True if passwords are being read for this node.
    pub(in crate::core) fn is_waiting(&self) -> bool {
        matches!(self.renewal, Renewal::Asked(_))
    }

    /// Notes that passwords were read for all tickets up to this one. Returns true if a renewal waited for that.
    pub(in crate::core) fn renewed(&mut self, ticket: u64) -> bool {
        let is_mine = matches!(self.renewal, Renewal::Asked(mine) if mine <= ticket);
        if is_mine {
            self.renewal = Renewal::Done;
        }
        is_mine
    }

    /// Notes that the node has refused the secret `offered`. Returns true if there is one among `choices` that it has not refused. Several
    /// connections may have offered the same secret at the same time: that is one refusal.
    pub(in crate::core) fn refused(&mut self, offered: usize, choices: usize) -> bool {
        if choices < 2 {
            return false;
        }
        if offered != self.next {
            return true;
        }
        self.next = self.next.wrapping_add(1);
        self.refused += 1;
        let others = self.refused < choices;
        if !others {
            self.refused = 0;
        }
        others
    }
}

#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct Waiter {
    pub client: Token,
    pub request: NodeRequest,
    pub since: Instant,
    /// True if the client got the notice that it waits.
    pub told: bool,
}

/// Pools of one worker from which on the unused one that was used last longest ago is forgotten for a new one. (Pools in use are bounded by
/// `max_clients` and by the server connections.)
const MANY_POOLS: usize = 1000;
/// Pause after a node has refused the login. It doubles with each refusal, up to 16 times this.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// Notice to a client that has waited for `wait_notice`.
const WAITS: &str = "the statement waits for a server connection: all that the pool may have are in use";
/// Told to clients whose sessions would have another role if they began now.
const OTHER_ROLE: &str = "the configuration gives sessions of this database another role now: connect again";

/// Number of idle connections that are searched for one with the client's parameters.
const IDLE_LOOKED_AT: usize = 16;
/// Longest time that an idle connection stays open to a server that gets no statements any more.
const LEFT_IDLE: Duration = Duration::from_secs(1);
/// Clients that a worker serves before it hands a connection to another worker that waits.
pub(in crate::core) const KEEP: u32 = 16;

impl Pool {
    /// True if clients wait for a connection.
    pub(in crate::core) fn is_waited_for(&self) -> bool {
        !self.writers.is_empty() || !self.readers.is_empty()
    }

    /// Returns the last failed attempt to open a connection, over all nodes.
    fn last_failed(&self) -> Option<&Failed> {
        self.nodes.iter().filter_map(|node| node.failed.as_deref()).max_by_key(|failed| failed.at)
    }

    /// Returns the last failed attempt to open a connection, for operators.
    pub(in crate::core) fn connect_error(&self) -> Option<ConnectError> {
        self.last_failed().map(|failed| ConnectError { at: failed.at, text: failed.text.clone() })
    }

    /// True if the pool has no clients, server connections, needed listener or channels.
    fn is_unused(&self) -> bool {
        let listens = self.listener.as_ref().is_some_and(|listener| listener.is_needed());
        self.clients == 0 && self.servers == 0 && !listens && self.channels.is_empty()
    }

    /// Returns the parameters for the greeting of a login with these start-up parameters; `None`: a server connection must report them. While the
    /// `primary` is known, its reports are used.
    pub(in crate::core) fn greeting(
        &mut self,
        params: &Params,
        primary: Option<NodeId>,
    ) -> Option<Vec<(String, String)>> {
        let version = self.namespace.greetings();
        let is_current = |(by, of): (NodeId, u64)| of == version && primary.is_none_or(|primary| primary == by);
        if !self.greeted_by.is_some_and(is_current) {
            self.greetings.clear();
        }
        self.greetings.get(params)
    }

    /// Notes the reports of a session with a client's parameters, on this node.
    pub(in crate::core) fn greets(&mut self, node: NodeId, params: &Params, told: &[(String, String)]) {
        let by = Some((node, self.namespace.greetings()));
        if std::mem::replace(&mut self.greeted_by, by) != by {
            self.greetings.clear();
        }
        self.greetings.learn(params, told);
    }

    /// Forgets the greetings: servers report the parameters for logins again.
    pub(in crate::core) fn forget_greetings(&mut self) {
        self.greeted_by = None;
    }

    /// Notes that a server connection reads a backslash in a string as an escape. The earlier analysis of texts may be wrong: they are analysed
    /// again.
    fn has_odd_strings(&mut self, at: Instant) {
        if !std::mem::replace(&mut self.odd_strings, true) {
            self.namespace.schema().changes(at, true);
        }
    }

    /// True for the database that `CREATE DATABASE` copies by default, which fails (55006) while another session is connected to it: no idle
    /// connection is kept.
    fn is_template(&self) -> bool {
        self.database.on_servers(&self.key.database, &self.key.user).0 == "template1"
    }

    /// Returns the number of connections to `node` that are kept open, idle or not: `min_size` to the primary, while there are clients.
    fn least(&self, node: NodeId, primary: Option<NodeId>) -> usize {
        if self.is_template() {
            return 0;
        }
        if self.clients > self.tunnels && primary == Some(node) { self.database.min_size } else { 0 }
    }

    /// Notes that a client or a server connection has gone.
    fn note_use(&mut self, now: Instant) {
        self.unused_since = (self.clients == 0 && self.servers == 0).then_some(now);
    }

    /// Returns the queue of clients that wait for a node for a read, or the queue of those that wait for the primary.
    fn queue(&mut self, readers: bool) -> &mut VecDeque<Waiter> {
        if readers { &mut self.readers } else { &mut self.writers }
    }
}

impl PoolNode {
    /// True if recent attempts to reach the node failed, and the next is not due yet.
    pub(in crate::core) fn is_suspect(&self, now: Instant) -> bool {
        self.retry_at.is_some_and(|at| now < at)
    }

    /// Returns the number of units in flight.
    pub(in crate::core) fn load(&self) -> usize {
        self.busy - self.lanes.len() + self.seated
    }

    /// True if a worker other than `id`, or another pool, waits for a connection, or if there are more connections than
    /// the limit.
    pub(in crate::core) fn is_asked_for(&self, id: usize) -> bool {
        self.budget.starving_but(id).is_some() || self.budget.is_exceeded() || self.budget.wanted_elsewhere().is_some()
    }
}

impl Core {
    /// Returns the pool for this key, and creates it if necessary.
    pub(in crate::core) fn pool(&mut self, key: &PoolKey) -> usize {
        if let Some(p) = self.pools.find(key) {
            return p;
        }
        let database = self.settings.served(&key.database, &key.user);
        let database = database.unwrap_or_else(|| self.settings.default_database().clone());
        let namespace =
            self.shared.registry.namespace(database.on_servers(&key.database, &key.user), &database.start.name());
        let p = self.pools.insert(Pool {
            key: key.clone(),
            dismissed: namespace.dismissals(),
            namespace,
            database,
            nodes: Vec::new(),
            clients: 0,
            servers: 0,
            tunnels: 0,
            looked_up: false,
            known: false,
            unused_since: Some(self.now),
            writers: VecDeque::new(),
            readers: VecDeque::new(),
            greetings: Greetings::default(),
            greeted_by: None,
            settings_asked: None,
            settings_wanted: false,
            odd_strings: false,
            traffic_rules: PoolTrafficRules::default(),
            gate: self.settings.gate(&key.database, &key.user),
            lazy: false,
            paused: self.paused.has(&key.database),
            suspended: self.paused.is_suspended(),
            channels: Channels::default(),
            listener: None,
            totals: Totals::default(),
        });
        self.size_pool(p);
        p
    }

    /// Forgets an unused pool if a pool for this key is needed and there are many.
    pub(in crate::core) fn room_for_pool(&mut self, key: &PoolKey) {
        if self.pools.find(key).is_some() || self.pools.len() < MANY_POOLS {
            return;
        }
        let unused = self.pools.iter().filter(|(_, pool)| pool.is_unused());
        if let Some((p, _)) = unused.min_by_key(|(_, pool)| pool.unused_since) {
            self.forget_pool(p);
        }
    }

    fn forget_pool(&mut self, p: usize) {
        for node in &self.pools[p].nodes {
            node.budget.wants_no_more(self.id);
        }
        self.pools.remove(p);
    }

    /// Takes a client that has authenticated out of its pool's count.
    pub(in crate::core) fn leaves_pool(&mut self, c: usize) {
        let p = self.clients[c].pool;
        let Some(pool) = self.pools.get_mut(p) else { return };
        pool.clients -= 1;
        pool.tunnels -= usize::from(self.clients[c].asks_to_replicate());
        pool.note_use(self.now);
    }

    /// Forgets pools that have been unused for `pool_idle_timeout`, and pools whose login no server has accepted (the database or user may not
    /// exist).
    ///
    /// Called between turns only: within a turn the code that closed a pool's last client may still use the pool.
    pub(in crate::core) fn forget_pools(&mut self) {
        let old = |pool: &Pool| {
            let limit = self.settings.pool_idle_timeout;
            let long = || pool.unused_since.zip(limit).is_some_and(|(since, limit)| over(since, limit, self.now));
            pool.is_unused() && (!pool.known || long())
        };
        let old: Vec<usize> = self.pools.iter().filter(|(_, pool)| old(pool)).map(|(p, _)| p).collect();
        for p in old {
            self.forget_pool(p);
        }
    }

    /// Gives a pool an entry for each node of the view.
    fn size_pool(&mut self, p: usize) {
        let pool = &mut self.pools[p];
        let limits = self.settings.connection_limits(&pool.key.database, &pool.key.user);
        for id in pool.nodes.len()..self.view.nodes.len() {
            let budget = self.shared.budgets.get(&pool.key, NodeId(id as u16), limits);
            pool.nodes.push(PoolNode {
                budget,
                idle: Vec::new(),
                connecting: 0,
                busy: 0,
                lanes: Vec::new(),
                seated: 0,
                lane_tally: Tally::default(),
                retry_at: None,
                failures: 0,
                failed: None,
                secret_selection: SecretSelection::default(),
                local_socket: LocalSocket::default(),
                refused: false,
                asked: false,
                published: false,
                touched: false,
                kept: 0,
            });
        }
    }

    /// Marks all connections of a pool to be closed: they were opened with settings that have changed.
    pub(in crate::core) fn retire_all(&mut self, p: usize) {
        for (_, server) in self.servers.iter_mut().filter(|(_, server)| server.pool == p) {
            server.retire = true;
        }
    }

    /// Closes the pool's clients: their sessions did not begin as they would now.
    pub(in crate::core) fn close_all(&mut self, p: usize, why: &str) {
        let of_pool = |client: &Client| client.pool == p && !matches!(client.phase, Phase::Login(_));
        let clients: Vec<Token> =
            self.clients.iter().filter(|(_, client)| of_pool(client)).map(|(_, client)| client.token).collect();
        self.shut_out(&clients, why);
    }

    pub(in crate::core) fn apply_to_pools(&mut self) {
        for p in self.pools.ids() {
            let pool = &mut self.pools[p];
            let (mut outdated, mut elsewhere, mut as_others) = (false, false, false);
            if let Some(database) = self.settings.served(&pool.key.database, &pool.key.user) {
                if pool.database.dbname != database.dbname
                    || pool.database.server_user != database.server_user
                    || pool.database.start != database.start
                {
                    pool.forget_greetings();
                    let on_servers = database.on_servers(&pool.key.database, &pool.key.user);
                    pool.namespace = self.shared.registry.namespace(on_servers, &database.start.name());
                    (pool.dismissed, pool.settings_asked) = (pool.namespace.dismissals(), None);
                    outdated = true;
                }
                elsewhere = pool.database.dbname != database.dbname;
                as_others = pool.database.set_role != database.set_role;
                pool.database = database;
            }
            let gate = self.settings.gate(&pool.key.database, &pool.key.user);
            // Whether commits are flushed was decided when the connections were opened.
            outdated |= std::mem::replace(&mut pool.gate, gate).relays.min(1) != gate.relays.min(1);
            if outdated {
                self.retire_all(p);
            }
            if elsewhere {
                self.listens_elsewhere(p);
            }
            if as_others {
                self.close_all(p, OTHER_ROLE);
            }
            let pool = &self.pools[p];
            let limits = self.settings.connection_limits(&pool.key.database, &pool.key.user);
            for node in &pool.nodes {
                node.budget.set_limits(limits);
            }
            self.pump(p);
        }
    }

    // --- asking ---

    /// Gives a client a server connection. True if it can go on at once, otherwise it waits.
    pub(in crate::core) fn acquire(&mut self, c: usize, request: NodeRequest) -> bool {
        let p = self.clients[c].pool;
        if let Some(s) = self.take(p, c, request) {
            return self.attach(c, s);
        }
        let pool = &mut self.pools[p];
        if pool.writers.is_empty() && pool.readers.is_empty() {
            pool.nodes.iter_mut().for_each(|place| place.secret_selection.begin());
        }
        let client = &mut self.clients[c];
        client.since = self.now;
        let waiter = Waiter { client: client.token, request, since: self.now, told: false };
        self.start_waiting(c);
        self.pools[p].queue(request != NodeRequest::Primary).push_back(waiter);
        false
    }

    /// Takes an idle connection for a client. `None`: there is none; then one is being opened or asked for, if
    /// possible.
    fn take(&mut self, p: usize, c: usize, request: NodeRequest) -> Option<usize> {
        if self.pools[p].paused || self.pools[p].suspended {
            return None;
        }
        match request {
            NodeRequest::Primary => {
                let node = self.view.primary?;
                self.take_at(p, c, node)
            }
            NodeRequest::Read => {
                let node = self.read_node(p, c)?;
                self.take_at(p, c, node)
            }
            // The primary decides the parameters for a login.
            NodeRequest::Any if !self.pools[p].namespace.is_agreed() && self.view.primary.is_some() => {
                self.view.primary.and_then(|primary| self.take_at(p, c, primary))
            }
            NodeRequest::Any => {
                let usable = |n: &topology::NodeView| n.usable && matches!(n.role, Role::Primary | Role::Replica);
                let nodes = self
                    .view
                    .primary
                    .into_iter()
                    .chain(self.view.nodes.iter().filter(|n| usable(n)).map(|n| n.node.id));
                let nodes: Vec<NodeId> = nodes.collect();
                // If no node may be tried now, another worker may still have a connection.
                let sound = nodes.iter().find(|n| !self.pools[p].nodes[usize::from(n.0)].is_suspect(self.now));
                sound.or(nodes.first()).and_then(|&n| self.take_at(p, c, n))
            }
        }
    }

    fn take_at(&mut self, p: usize, c: usize, node: NodeId) -> Option<usize> {
        let waiting = self.pools[p].writers.len() + self.pools[p].readers.len();
        let place = self.pools[p].nodes.get_mut(usize::from(node.0))?;
        // Prefers a connection that has the client's parameters over the one used last, because changing parameters
        // takes a round trip; and one on which functions need not be analysed anew.
        let wanted = &self.clients[c].params;
        let latest = || place.idle.iter().rev().take(IDLE_LOOKED_AT).map(|&s| &self.servers[s]);
        let suits = |server: &Server| server.function_plans.suit(wanted.parse_settings());
        let fits = latest().position(|server| server.params.is(wanted) && suits(server));
        let fits = fits.or_else(|| latest().position(suits));
        let found = match fits {
            Some(at) => Some(place.idle.remove(place.idle.len() - 1 - at)),
            None => place.idle.pop(),
        };
        if found.is_some() {
            self.pools.touch(p, usize::from(node.0));
            return found;
        }
        if place.connecting <= waiting {
            // If none can be opened (limit reached, or no file descriptors left), another worker may have an idle one.
            let client = &self.clients[c];
            let late = client.waiting && over(client.since, self.settings.reserve_timeout, self.now);
            let counted = !place.is_suspect(self.now)
                && match place.budget.try_open(late) {
                    Ok(()) => true,
                    Err(Full::Pool) => false,
                    Err(Full::Shared) => self.find_room(p, node, late),
                };
            let place = &mut self.pools[p].nodes[usize::from(node.0)];
            if counted {
                place.connecting += 1;
                self.open(p, node);
            } else if !place.asked && self.shared.workers > 1 {
                place.asked = true;
                // If no worker has an idle one, the next that does sees that this worker waits.
                if let Some(to) = place.budget.starves(self.id) {
                    let message = CoreMessage::Want { key: self.pools[p].key.clone(), node, from: self.id };
                    self.effects.push(Effect::Post { to, message });
                }
            }
        }
        None
    }

    /// Serves waiting clients while there are connections for them.
    pub(in crate::core) fn pump(&mut self, p: usize) {
        for _ in 0..2 {
            let writers = self.pools[p].writers.len() + self.pools[p].readers.len() + 1;
            for _ in 0..writers {
                if !self.serve_front(p, false) {
                    break;
                }
            }
            for _ in 0..writers {
                if !self.serve_front(p, true) {
                    break;
                }
            }
            // A reader that only the primary can serve moves to the writers' queue, so that queue is looked at again.
        }
    }

    /// Serves the client at the front of a queue. False if it has to wait on.
    fn serve_front(&mut self, p: usize, readers: bool) -> bool {
        let Some(&waiter) = self.pools[p].queue(readers).front() else { return false };
        if !self.is_client(waiter.client) || !self.clients[waiter.client.index()].waiting {
            self.pools[p].queue(readers).pop_front();
            return true;
        }
        let c = waiter.client.index();
        if readers
            && waiter.request == NodeRequest::Read
            && self.read_node(p, c) == self.view.primary
            && self.view.primary.is_some()
        {
            let pool = &mut self.pools[p];
            pool.readers.pop_front();
            pool.writers.push_back(Waiter { request: NodeRequest::Primary, ..waiter });
            return true;
        }
        if matches!(self.clients[c].phase, Phase::Login(_))
            && let Some(greeting) = self.pools[p].greeting(&self.clients[c].params, self.view.primary)
        {
            // Another client's login has learned the greeting meanwhile.
            self.pools[p].readers.pop_front();
            self.stop_waiting(c);
            self.greet(c, &greeting);
            return true;
        }
        if self.seat_waiter(p, c, waiter.request, readers) {
            return true;
        }
        let Some(s) = self.take(p, c, waiter.request) else { return false };
        self.pools[p].queue(readers).pop_front();
        self.stop_waiting(c);
        if self.attach(c, s) {
            self.runnable.push_back(self.clients[c].token);
        }
        true
    }

    /// Puts the client at the front of a queue into a lane, if its unit fits and a lane is open.
    fn seat_waiter(&mut self, p: usize, c: usize, request: NodeRequest, readers: bool) -> bool {
        if !self.clients[c].unit.is_single() {
            return false;
        }
        let input = std::mem::take(&mut self.clients[c].input);
        let since = self.clients[c].since;
        let seated = input.len() == self.clients[c].unit.scanned && self.enter_lane(c, request, &input, true);
        if !seated {
            self.clients[c].input = input;
        } else {
            self.buffers.give(input);
            self.pools[p].queue(readers).pop_front();
            self.clients[c].since = since;
            self.stop_waiting(c);
            self.clients[c].since = self.now;
            self.bound_input(c);
        }
        seated
    }

    /// Notes that a client waits.
    pub(in crate::core) fn start_waiting(&mut self, c: usize) {
        self.clients[c].waiting = true;
        self.metrics.clients_waiting.add(1);
    }

    /// Notes that a client no longer waits, if it does.
    pub(in crate::core) fn stop_waiting(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if std::mem::take(&mut client.waiting) {
            let waited = self.now.saturating_duration_since(client.since).as_micros() as u64;
            self.metrics.clients_waiting.sub(1);
            self.metrics.wait_micros.observe(waited);
            self.clients[c].waited = u32::try_from(waited).unwrap_or(u32::MAX);
            self.pools[self.clients[c].pool].totals.wait_micros += waited;
        }
    }

    /// Attaches a client to a server connection. True if its messages can be forwarded at once.
    fn attach(&mut self, c: usize, s: usize) -> bool {
        let (client, server) = (&mut self.clients[c], &mut self.servers[s]);
        debug_assert!(client.at.server().is_none() && server.client.is_none() && server.protocol.is_settled());
        client.at = At::Server(s as u32);
        server.client = Some(c);
        if self.pools[server.pool].database.time_limits.transaction.is_some() {
            // The transaction of a BEGIN that was put off began when the client got its answer.
            server.work.seen = Some(if client.begun.is_some() { client.since } else { self.now });
        }
        (server.meter.measured, server.meter.answered) = (0, 0);
        client.since = self.now;
        self.metrics.servers_busy.add(1);
        (server.taken, server.fresh) = (self.now, false);
        let pool = &mut self.pools[server.pool];
        pool.totals.assignments += 1;
        pool.nodes[usize::from(server.node.0)].busy += 1;
        let greeting = matches!(client.phase, Phase::Login(_));
        let suits = server.function_plans.suit(client.params.parse_settings());
        let has_params = server.params.is(&client.params);
        let ready = suits && has_params;
        if !suits {
            self.forget_functions(s);
        }
        if !has_params {
            let params = self.clients[c].params.clone();
            self.prepare_session(s, &params);
        }
        if greeting {
            if ready {
                self.learn_greeting(c, s);
            } else {
                self.awaits_greeting(c);
            }
            return false;
        }
        let client = &mut self.clients[c];
        if self.pools[client.pool].odd_strings && !client.odd_strings {
            // When the unit was looked at, it was not known that a backslash escapes a quote: it is looked at again.
            client.odd_strings = true;
            client.unit.reset();
        } else {
            client.unit.routed = true;
        }
        // If the session's parameters have to be set first, nothing of the client's is sent before that has succeeded.
        ready
    }

    /// Answers a waiting client's unit with an error.
    pub(in crate::core) fn refuse_unit(&mut self, c: usize, code: Sqlstate, text: &str) {
        self.stop_waiting(c);
        let client = &self.clients[c];
        let (p, token) = (client.pool, client.token);
        // An entry left in a queue would later be served for the client's next unit, with this unit's `NodeRequest`.
        self.pools[p].writers.retain(|waiter| waiter.client != token);
        self.pools[p].readers.retain(|waiter| waiter.client != token);
        if matches!(self.clients[c].phase, Phase::Login(_)) {
            return self.fail_login(c, code, text);
        }
        self.fail_unit(c, code, text);
    }

    pub(in crate::core) fn expire_waiters(&mut self, p: usize) {
        let is_waited_for = self.pools[p].is_waited_for();
        for node in &mut self.pools[p].nodes {
            // The worker that was asked had none, or closed it: this worker may ask again.
            node.asked = false;
            // The next attempt at a server that was full is still to come: until then its room stays reserved.
            let was_full =
                node.failed.as_ref().is_some_and(|failed| failed.code == Some(Sqlstate::TOO_MANY_CONNECTIONS));
            if !(is_waited_for && was_full && node.is_suspect(self.now)) {
                node.budget.wants_no_more(self.id);
            }
        }
        for readers in [false, true] {
            while let Some(&waiter) = self.pools[p].queue(readers).front() {
                let live = self.is_client(waiter.client) && self.clients[waiter.client.index()].waiting;
                let no_primary = self.view.primary.is_none();
                let limit =
                    if no_primary { self.settings.no_primary_timeout } else { self.pools[p].database.wait_timeout };
                if live && !over(waiter.since, limit, self.now) {
                    break;
                }
                self.pools[p].queue(readers).pop_front();
                if live {
                    self.metrics.wait_timeouts.add(1);
                    let (code, text) = self.wait_error(p, waiter.since, limit);
                    self.refuse_unit(waiter.client.index(), code, &text);
                }
            }
        }
    }

    /// Sends a notice to clients that have waited for long.
    pub(in crate::core) fn notify_waiters(&mut self, p: usize) {
        let Some(limit) = self.settings.wait_notice else { return };
        for readers in [false, true] {
            let queue = self.pools[p].queue(readers).iter_mut();
            let late = queue.filter(|waiter| !waiter.told && over(waiter.since, limit, self.now));
            let late: Vec<Token> = late.map(|waiter| (waiter.told = true, waiter.client).1).collect();
            for token in late {
                if self.is_client(token) {
                    let client = &self.clients[token.index()];
                    // Before the login is over, a client expects only messages of the login.
                    if client.waiting && matches!(client.phase, Phase::Ready) {
                        self.write_client(token.index(), |out| wire::message::notice(out, WAITS));
                    }
                }
            }
        }
    }

    /// Returns the error for a client that has waited for a server connection since `since`.
    fn wait_error(&self, p: usize, since: Instant, limit: Duration) -> (Sqlstate, String) {
        let pool = &self.pools[p];
        let key = &pool.key;
        let awaited = if pool.paused || pool.suspended {
            Awaited::Operator
        } else if self.view.primary.is_none() {
            Awaited::Primary
        } else {
            let size = self.settings.connection_limits(&key.database, &key.user).pool;
            Awaited::Connection { size, reached: pool.nodes.iter().find_map(|place| place.budget.reached()) }
        };
        let failed = pool.last_failed().filter(|failed| failed.at >= since);
        let attempt = failed.map(|failed| Attempt { code: failed.code, text: &failed.text });
        Overdue { awaited, limit, database: &key.database, user: &key.user, attempt }.error()
    }

    // --- giving back ---

    /// Releases a server connection that its client no longer needs.
    pub(in crate::core) fn release(&mut self, s: usize) {
        let server = &mut self.servers[s];
        if let Some(c) = server.client.take() {
            let client = &mut self.clients[c];
            client.leave_server();
            client.since = self.now;
            client.held_up = false;
            server.work.failed = false;
            server.work.unpins = sql::Pins::NONE;
            server.tracker.client_leaves();
            server.statements.client_leaves();
            server.function_plans.client_leaves();
            if server.paused {
                server.paused = false;
                self.effects.push(Effect::Resume(server.token));
            }
            self.metrics.servers_busy.sub(1);
            // (The transaction of an early read goes on.)
            let ended = client.begun.is_none();
            self.metrics.transactions.add(1);
            let pool = &mut self.pools[server.pool];
            pool.nodes[usize::from(server.node.0)].busy -= 1;
            pool.totals.transactions += u64::from(ended);
            pool.totals.transaction_micros += self.now.saturating_duration_since(server.taken).as_micros() as u64;
            // Messages of the client that were held up behind this unit go on.
            if client.paused || client.has_more() {
                self.runnable.push_back(client.token);
            }
            // A client whose answer is behind a gate is closed once it has got the answer.
            if self.draining && ended && self.clients[c].output.gates() == 0 {
                self.fatal(c, Sqlstate::ADMIN_SHUTDOWN, DRAINING);
            }
        }
        let server = &self.servers[s];
        if server.protocol.status() != wire::message::Status::Idle || !server.cleaning.is_none() {
            return self.clean_up(s);
        }
        self.rest(s);
    }

    /// Gives a free server connection to a waiting client or another worker, or makes it idle.
    pub(in crate::core) fn rest(&mut self, s: usize) {
        let server = &mut self.servers[s];
        debug_assert!(server.client.is_none());
        server.sender.rest(&self.shared.counters);
        if server.cancels > 0 {
            server.held_for_cancel = true;
            return;
        }
        // A connection that no client has used yet is not closed for its age, however short `server_lifetime` is: the
        // waiting client would only wait for another.
        let expired = !server.fresh && server.is_aged(self.pools[server.pool].database.server_lifetime, self.now);
        let otherwise = server.reads_otherwise();
        server.retire |= server.renewals != self.pools[server.pool].namespace.renewals();
        if server.retire || expired || otherwise || self.pools[server.pool].paused {
            let (p, node) = (server.pool, server.node);
            self.drop_server(s);
            self.pump(p);
            if otherwise && !self.pools[p].paused {
                // Either something has been left in this session, or sessions begin with something else now: a new one will show.
                self.open_one(p, node);
            }
            return;
        }
        server.idle_since = self.now;
        let (p, n) = (server.pool, usize::from(server.node.0));
        let pool = &mut self.pools[p];
        let waiting = pool.is_waited_for();
        let place = &mut pool.nodes[n];
        if place.budget.is_exceeded() {
            return self.drop_server(s);
        }
        if place.budget.is_governed() && self.gives_way(s) {
            return;
        }
        let place = &mut self.pools[p].nodes[n];
        if !waiting && std::mem::take(&mut place.asked) {
            place.budget.is_served(self.id);
        }
        let other = place.budget.starving_but(self.id).filter(|_| self.servers[s].output.is_empty());
        if let Some(to) = other
            && place.kept >= KEEP
        {
            place.kept = 0;
            return self.hand_over(s, to);
        }
        place.kept = place.kept.saturating_add(1);
        place.idle.push(s);
        self.pools.touch(p, n);
        if waiting {
            self.pump(p);
        }
        let place = &mut self.pools[p].nodes[n];
        if let Some(to) = other
            && place.idle.last() == Some(&s)
        {
            // No client that waits here can use the connection.
            place.idle.pop();
            place.kept = 0;
            self.hand_over(s, to);
        }
    }

    /// Publishes to the other workers where this worker has or no longer has idle connections, as far as that changed in this turn. A worker that
    /// waits for a connection gets one.
    pub(in crate::core) fn publish_idle(&mut self) {
        if self.shared.workers < 2 {
            return;
        }
        let touched = self.pools.take_touched();
        for &(p, n) in &touched {
            let Some(place) = self.pools.get_mut(p).and_then(|pool| pool.nodes.get_mut(n)) else { continue };
            place.touched = false;
            let idle = !place.idle.is_empty();
            if std::mem::replace(&mut place.published, idle) == idle {
                continue;
            }
            if let Some(to) = place.budget.publish_idle(self.id, idle) {
                self.spare(p, n, to);
            }
        }
        self.pools.give_touched(touched);
    }

    /// Sends the least recently used idle connection without unsent output to another worker.
    fn spare(&mut self, p: usize, n: usize, to: usize) -> bool {
        let place = &mut self.pools[p].nodes[n];
        let Some(at) = place.idle.iter().position(|&s| self.servers[s].output.is_empty()) else { return false };
        let s = place.idle.remove(at);
        self.pools.touch(p, n);
        self.hand_over(s, to);
        true
    }

    /// Handles another worker's request for a connection.
    pub(in crate::core) fn wanted(&mut self, key: &PoolKey, node: NodeId, from: usize) {
        let Some(p) = self.pools.find(key) else { return };
        // Clients that wait here are served first. Those that still wait after that need another node, so an idle
        // connection to this node is of no use to them.
        self.pump(p);
        let n = usize::from(node.0);
        if self.pools[p].nodes.len() <= n || self.spare(p, n, from) {
            return;
        }
        // The connection has been used meanwhile. The question goes on to the next worker that may have one. If there is none, the next worker with
        // an idle connection sees the waiting worker.
        let place = &mut self.pools[p].nodes[n];
        place.published = false;
        place.budget.publish_idle(self.id, false);
        if let Some(to) = place.budget.idle_but(self.id, from) {
            self.effects.push(Effect::Post { to, message: CoreMessage::Want { key: key.clone(), node, from } });
        }
        self.pools.touch(p, n);
    }

    pub(in crate::core) fn hand_over(&mut self, s: usize, to: usize) {
        let server = &self.servers[s];
        debug_assert!(server.client.is_none());
        let place = &self.pools[server.pool].nodes[usize::from(server.node.0)];
        place.budget.is_served(to);
        let server = self.servers.remove(s);
        let pool = &mut self.pools[server.pool];
        let (key, namespace, odd_strings) = (pool.key.clone(), pool.namespace.clone(), pool.odd_strings);
        pool.servers -= 1;
        pool.note_use(self.now);
        self.metrics.servers.sub(1);
        let token = server.token;
        let reconnects = self.reconnects;
        let moving = Moving::Server { key, namespace, reconnects, odd_strings, server: Box::new(server) };
        self.effects.push(Effect::Move { token, to: Destination::Worker(to), moved: Box::new(Moved(moving)) });
    }

    /// Takes in a connection from another worker.
    pub fn adopt(&mut self, moved: Moved) -> Token {
        let (key, namespace, reconnects, odd_strings, mut server) = match moved.0 {
            Moving::Client(client) => return self.adopt_client(*client),
            Moving::Newcomer(newcomer) => return self.adopt_newcomer(*newcomer),
            Moving::Server { key, namespace, reconnects, odd_strings, server } => {
                (key, namespace, reconnects, odd_strings, *server)
            }
        };
        let p = self.pool(&key);
        self.dismiss_clients(p);
        let pool = &mut self.pools[p];
        // The configuration has changed, or an operator ordered RECONNECT, while the connection was on its way; or new ones begin otherwise.
        server.retire |= !Arc::ptr_eq(&pool.namespace, &namespace)
            || reconnects < self.reconnects
            || namespace.renewals() != server.renewals;
        if odd_strings {
            pool.has_odd_strings(self.now);
        }
        let index = self.servers.vacant_key();
        server.token = self.token(Kind::Server, index);
        server.pool = p;
        // Some output may still be unsent (the rest of a COPY that failed).
        server.dirty = true;
        self.dirty.push(server.token);
        let (token, node) = (server.token, usize::from(server.node.0));
        self.servers.insert(server);
        self.pools[p].servers += 1;
        self.pools[p].known = true;
        self.pools[p].looked_up |=
            self.settings.looks_up && self.settings.user(&key.user).is_none_or(|user| !user.has_secret());
        self.metrics.servers.add(1);
        self.metrics.server_connections_moved.add(1);
        if let Some(place) = self.pools[p].nodes.get_mut(node) {
            place.asked = false;
        }
        token
    }

    /// Continues an adopted connection, whose socket the driver has added to its loop.
    pub fn adopted(&mut self, token: Token) {
        if self.is_client(token) {
            self.adopted_client(token.index());
            self.run();
        } else if self.is_server(token) {
            let s = token.index();
            let role = self.view.node(self.servers[s].node).map(|node| node.role);
            // The node's role may have changed while the connection was on its way.
            if matches!(role, Some(Role::Primary | Role::Replica)) {
                self.rest(s)
            } else {
                self.drop_server(s)
            }
            self.run();
        }
    }

    // --- opening and closing ---

    /// Opens a connection to the node that no client waits for, if there may be one more.
    pub(in crate::core) fn open_one(&mut self, p: usize, node: NodeId) {
        let Some(place) = self.pools[p].nodes.get_mut(usize::from(node.0)) else { return };
        if !place.is_suspect(self.now) && place.budget.try_open(false).is_ok() {
            place.connecting += 1;
            self.open(p, node);
        }
    }

    pub(in crate::core) fn open(&mut self, p: usize, node: NodeId) {
        let index = self.servers.vacant_key();
        let token = self.token(Kind::Server, index);
        let mut server = Server::new(token, p, node, self.params.none().clone(), self.now);
        let socket = self.local_socket(p, node);
        server.by_socket = socket.is_some();
        self.servers.insert(server);
        self.pools[p].servers += 1;
        self.metrics.servers.add(1);
        match socket.or_else(|| self.address(node)) {
            Some(address) => self.effects.push(Effect::Connect { token, address }),
            None => debug_assert!(false, "a node of the view has an address"),
        }
    }

    /// Returns the node's Unix socket, if the pool's next connection may go there.
    fn local_socket(&mut self, p: usize, node: NodeId) -> Option<Address> {
        let view = self.view.node(node)?;
        let path = view.socket.as_ref()?;
        let place = self.pools[p].nodes.get_mut(usize::from(node.0))?;
        place.local_socket.may_try(view.settings, self.now).then(|| Address::Unix(path.to_path_buf()))
    }

    /// Gives up a connection by the node's Unix socket, and has the next one opened at once: a note in the pool's choice sends it by TCP.
    pub(in crate::core) fn leave_socket(
        &mut self,
        s: usize,
        why: &str,
        note: impl FnOnce(&mut LocalSocket, u64, Instant),
    ) {
        let (p, node) = (self.servers[s].pool, self.servers[s].node);
        let view = self.view.node(node);
        let settings = view.map_or(0, |view| view.settings);
        note(&mut self.pools[p].nodes[usize::from(node.0)].local_socket, settings, self.now);
        tracing::info!(
            node = view.map(|view| view.node.name.as_str()),
            why,
            "a connection by the server's Unix socket goes on by TCP"
        );
        self.drop_server(s);
        self.pump(p);
    }

    /// Takes a connection that is open and logged in into the pool.
    pub(in crate::core) fn opened(&mut self, s: usize) {
        let server = &mut self.servers[s];
        if server.listener {
            return self.listener_opened(s);
        }
        if server.tunnel.is_some() {
            return self.tunnel_opened(s);
        }
        self.shared.senders.add(server.node, server.key.0, &server.sender);
        server.defaults.begin(&server.reported);
        let pool = &mut self.pools[server.pool];
        if server.reports("standard_conforming_strings").is_some_and(|value| value != "on") {
            pool.has_odd_strings(self.now);
        }
        // The values that a session has reported, or was to begin with, are known better from there.
        let is_own = match server.begins {
            Begins::Own => true,
            Begins::Asked | Begins::Told => !pool.namespace.is_agreed(),
            Begins::Aligned { .. } => false,
        };
        let otherwise = pool.namespace.reported(server.node, &server.reported, is_own);
        server.renewals = otherwise.unwrap_or(server.renewals);
        if matches!(server.begins, Begins::Aligned { differ: true, .. }) {
            self.metrics.settings_brought_over.add(1);
        }
        pool.known = true;
        let place = &mut pool.nodes[usize::from(server.node.0)];
        place.connecting -= 1;
        place.failures = 0;
        place.failed = None;
        place.secret_selection.accepted();
        place.refused = false;
        place.retry_at = None;
        self.metrics.server_connections_opened.add(1);
        let p = server.pool;
        if otherwise.is_some() {
            self.sessions_change(s);
        }
        self.dismiss_clients(p);
        self.rest(s);
    }

    /// Handles a failure to open a connection. The pause before the next attempt grows with each failure.
    pub(in crate::core) fn open_failed(&mut self, s: usize, why: &str, is_node_down: bool) {
        let server = &self.servers[s];
        let (p, node) = (server.pool, server.node);
        if server.listener {
            return self.listener_lost(s, why);
        }
        if server.tunnel.is_some() {
            return self.tunnel_lost(s, why);
        }
        let code = server.fatal.as_ref().and_then(|last| last.code);
        let place = &mut self.pools[p].nodes[usize::from(node.0)];
        place.failed = Some(Box::new(Failed { at: self.now, code, text: why.to_owned() }));
        place.failures = (place.failures + 1).min(6);
        let pause = if place.refused {
            REFUSED_FOR * (1 << place.failures.min(5)) / 2
        } else {
            Duration::from_millis(25 << place.failures)
        };
        place.retry_at = Some(self.now + pause);
        self.metrics.server_connections_failed.add(1);
        tracing::warn!(
            node = self.view.node(node).map(|n| n.node.name.as_str()),
            why,
            "cannot open a server connection"
        );
        if is_node_down {
            self.shared.topology.report_failure(node);
        }
        self.drop_server(s);
        self.pump(p);
    }

    /// Closes and forgets a server connection that has no client.
    pub(in crate::core) fn drop_server(&mut self, s: usize) {
        self.settle_schema(s);
        let mut server = self.servers.remove(s);
        debug_assert!(server.client.is_none());
        if !server.listener && server.tunnel.is_none() {
            self.shared.senders.remove(server.node, server.key.0, &server.sender);
            let pool = &mut self.pools[server.pool];
            let place = &mut pool.nodes[usize::from(server.node.0)];
            if matches!(server.phase, ServerPhase::Ready) {
                pool.namespace.invalidate();
            } else {
                place.connecting = place.connecting.saturating_sub(1);
            }
            place.idle.retain(|&idle| idle != s);
            place.budget.close();
            self.pools.touch(server.pool, usize::from(server.node.0));
        }
        let pool = &mut self.pools[server.pool];
        pool.servers -= 1;
        pool.note_use(self.now);
        self.metrics.servers.sub(1);
        let owed = server.protocol.abandon().into_iter().filter_map(crate::core::server::Note::into_timing);
        let being_sent = std::mem::replace(&mut server.meter.timing, Timing::none(self.now));
        for timing in owed.chain([being_sent]) {
            self.span_lost(timing);
        }
        let mut last = Vec::new();
        if server.tunnel.is_some() {
            // The end of the client's bytes.
            last.extend_from_slice(server.output.writable());
        } else if server.key.0 != 0 && server.output.is_empty() && !server.silent {
            wire::message::empty(&mut last, b'X');
        }
        server.output.clear(&mut self.buffers);
        self.buffers.give(std::mem::take(&mut server.input));
        self.effects.push(Effect::Close { token: server.token, last });
    }

    /// Returns the longest time that an idle connection to a node stays open. Whoever drains a server waits until its sessions have ended: it is a replica
    /// of weight 0 then, or is not among the nodes any more, which have no weight either.
    fn idle_timeout(&self, node: NodeId) -> Option<Duration> {
        let is_left = self.view.node(node).is_none_or(|node| node.role != Role::Primary && node.weight == 0);
        let usual = self.settings.server_idle_timeout;
        if is_left { Some(usual.unwrap_or(LEFT_IDLE).min(LEFT_IDLE)) } else { usual }
    }

    /// Closes connections that are too old, were idle for too long, or are not logged in within the time limit.
    pub(in crate::core) fn expire_servers(&mut self) {
        let mut late = Vec::new();
        let mut unused = Vec::new();
        let mut slow = Vec::new();
        for (s, server) in &self.servers {
            match server.phase {
                ServerPhase::Ready if server.listener => {}
                ServerPhase::Ready if server.is_idle() => {
                    let pool = &self.pools[server.pool];
                    let idle_timeout = self.idle_timeout(server.node);
                    if server.is_aged(pool.database.server_lifetime, self.now) || pool.is_template() {
                        late.push(s);
                    } else if idle_timeout.is_some_and(|limit| over(server.idle_since, limit, self.now)) {
                        unused.push((s, pool.least(server.node, self.view.primary)));
                    } else if over(server.idle_since, self.settings.reserve_timeout, self.now) {
                        // Connections beyond the pool's size are for clients that have waited for long.
                        unused.push((s, pool.nodes[usize::from(server.node.0)].budget.size()));
                    }
                }
                ServerPhase::Ready => {}
                _ if over(server.opened, self.settings.connect_timeout, self.now) => slow.push(s),
                _ => {}
            }
        }
        // Idle connections that are to be closed anyway.
        let retired = |server: &Server| server.retire && server.is_idle() && !server.listener;
        late.extend(self.servers.iter().filter(|(_, server)| retired(server)).map(|(s, _)| s));
        late.sort_unstable();
        late.dedup();
        for &s in &late {
            self.drop_server(s);
        }
        unused.retain(|(s, _)| late.binary_search(s).is_err());
        for (s, kept) in unused {
            // Looks again after each connection that is closed, so that as many are left as are to be kept.
            let server = &self.servers[s];
            if self.pools[server.pool].nodes[usize::from(server.node.0)].budget.open() > kept {
                self.drop_server(s);
            }
        }
        for s in slow {
            self.open_failed(s, "not connected and logged in within connect_timeout", true);
        }
    }

    /// Opens server connections to the primary for pools that have clients and fewer connections than their least size.
    ///
    /// Each call opens at most one connection for each pool, so that a start brings no storm of logins.
    pub(in crate::core) fn fill_pools(&mut self) {
        let Some(primary) = self.view.primary else { return };
        for p in self.pools.ids() {
            let pool = &mut self.pools[p];
            let least = pool.least(primary, Some(primary));
            if least == 0 || pool.paused || self.draining {
                continue;
            }
            let Some(place) = pool.nodes.get_mut(usize::from(primary.0)) else { continue };
            // The budget counts the connections of all workers.
            if place.connecting == 0
                && place.budget.open() < least
                && !place.is_suspect(self.now)
                && place.budget.try_open(false).is_ok()
            {
                place.connecting += 1;
                self.open(p, primary);
            }
        }
    }

    // --- the cluster changes ---

    /// Takes in the new view, and closes connections that do not fit it.
    pub(in crate::core) fn refresh_view(&mut self) {
        let old = std::mem::replace(&mut self.view, self.shared.topology.view());
        self.refresh_gates();
        for p in self.pools.ids() {
            self.size_pool(p);
        }
        let demoted = old.primary.or(self.last_primary).filter(|&n| self.view.primary.is_some_and(|now| now != n));
        self.last_primary = self.view.primary.or(self.last_primary);
        self.primary_found();
        let mut idle = Vec::new();
        let mut busy = Vec::new();
        for (_, server) in &self.servers {
            let is = self.view.node(server.node);
            let was = old.node(server.node);
            let moved = is.map(|n| &n.address) != was.map(|n| &n.address);
            let gone = is.is_none_or(|n| matches!(n.role, Role::Unknown | Role::Stale)) || moved;
            let stale = demoted == Some(server.node) || is.is_some_and(|n| n.role == Role::Stale);
            if !gone && !stale {
                continue;
            }
            if server.listener && !stale && !moved && is.is_some() {
                // The node may only have answered a probe slowly. Closing the listening connection would lose
                // notifications.
                continue;
            }
            if self.lanes.has(server.token.index()) {
                // Units in a lane are reads: they are sent to another node.
                busy.push(server.token);
            } else if server.client.is_some() {
                // As long as no other node is primary, a silent node may still answer a statement. A read that may be
                // sent again goes to another node.
                let client = server.client.and_then(|c| self.clients.get(c));
                if stale || client.is_some_and(|client| client.replay.is_some() && client.repeatable) {
                    busy.push(server.token);
                }
            } else if matches!(server.phase, ServerPhase::Ready) {
                idle.push(server.token);
            }
        }
        for token in busy.into_iter().chain(idle) {
            if self.is_server(token) {
                self.server_closed(token.index(), "the node is no longer part of the cluster in its role");
            }
        }
        let configured_anew = self.view.nodes.iter().any(|is| {
            let was = old.node(is.node.id);
            was.is_some_and(|was| was.settings != 0 && was.settings != is.settings)
        });
        if configured_anew {
            // A server was started again, perhaps of another version, or has read its files again.
            self.pools.iter_mut().for_each(Pool::forget_greetings);
        }
        let held = self.clients.iter().filter(|(_, c)| c.at.server().is_some() && c.has_more());
        self.runnable.extend(held.map(|(_, client)| client.token));
        for p in self.pools.ids() {
            // The view's change is news about the nodes, so failed ones are tried again at once.
            for node in &mut self.pools[p].nodes {
                node.retry_at = None;
            }
            self.pump(p);
        }
    }

    /// True if this client keeps its server connection between transactions.
    pub(in crate::core) fn is_bound(&self, c: usize) -> bool {
        let client = &self.clients[c];
        !client.pins.is_empty() || self.pools[client.pool].database.mode == PoolMode::Session
    }
}

#[cfg(test)]
mod tests {
    use super::SecretSelection;

    #[test]
    fn each_secret_is_offered_once_before_the_login_fails() {
        // The number of secrets; the one that each refused connection had offered; the result each time.
        for (choices, refusals, expected) in [
            (1, &[0, 0][..], &[false, false][..]),
            (2, &[0, 1, 2, 3], &[true, false, true, false]),
            (3, &[0, 1, 2], &[true, true, false]),
            // Three connections had offered the first one at the same time: that is one refusal.
            (3, &[0, 0, 0, 1, 1, 2], &[true, true, true, true, true, false]),
        ] {
            let mut secret_selection = SecretSelection::default();
            let said: Vec<bool> = refusals.iter().map(|offered| secret_selection.refused(*offered, choices)).collect();
            assert_eq!(said, expected, "{choices} {refusals:?}");
        }
        // A password that is refused is read again once.
        let mut secret_selection = SecretSelection::default();
        assert!(!secret_selection.renew(0, 0, || None), "nobody reads passwords");
        assert!(secret_selection.renew(0, 0, || Some(7)) && secret_selection.is_waiting());
        assert!(secret_selection.renew(0, 0, || unreachable!()), "a second connection waits for the same");
        assert!(!secret_selection.renewed(6) && secret_selection.renewed(7) && !secret_selection.is_waiting());
        assert!(secret_selection.renew(0, 7, || unreachable!()), "offered before it was read");
        assert!(!secret_selection.renew(7, 7, || unreachable!()), "refused once more");
        assert!(secret_selection.renew(7, 7, || Some(8)) && secret_selection.renewed(8));
        secret_selection.accepted();
        assert!(secret_selection.renew(8, 8, || Some(9)), "it was right meanwhile");
        // A refusal of an attempt without a waiting client does not count for the next client.
        let mut secret_selection = SecretSelection::default();
        assert!(secret_selection.refused(0, 2));
        secret_selection.begin();
        assert!(secret_selection.refused(1, 2) && !secret_selection.refused(2, 2));
        // An accepted secret is offered from then on, and all others are tried again once it is refused.
        let mut secret_selection = SecretSelection::default();
        assert!(secret_selection.refused(0, 3) && secret_selection.next() == 1);
        secret_selection.accepted();
        assert!(secret_selection.refused(1, 3) && secret_selection.refused(2, 3) && !secret_selection.refused(3, 3));
    }
}
