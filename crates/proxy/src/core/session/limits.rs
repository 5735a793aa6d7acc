//! Limits on the number of clients, and on the time that each may stay in a state.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wire::Sqlstate;

use super::client::{Aborted, Client, Phase};
use super::login::Exchange;
use super::overdue::{Awaited, Overdue};
use crate::core::memory::Token;
use crate::core::pool::PoolKey;
use crate::core::server::Server;
use crate::core::{Core, over};

/// Time between two checks of all clients' time limits.
const LOOK: Duration = Duration::from_millis(500);

/// Clients of all workers, counted by the keys of the limits on their number. Changed when a client connects, logs in or leaves.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Connections, logged in or not.
    addresses: HashMap<IpAddr, usize>,
    databases: HashMap<Arc<str>, usize>,
    users: HashMap<Arc<str>, usize>,
}

/// A worker's connections that have not logged in, and when it last checked its clients' time limits.
#[derive(Debug)]
pub(in crate::core) struct PreAuthConnections {
    /// Connections that are logging in, oldest first. A connection that has logged in or left is removed when it
    /// reaches the front.
    logins: VecDeque<(Instant, Token)>,
    /// Number of connections that have not authenticated yet.
    unproved: usize,
    /// Logins whose server connection is to report its parameters, by when they got it, oldest first.
    greeted: VecDeque<(Instant, Token)>,
    /// Time of the last check of clients' time limits.
    looked: Instant,
}

impl PreAuthConnections {
    pub(in crate::core) fn new(now: Instant) -> PreAuthConnections {
        PreAuthConnections { logins: VecDeque::new(), unproved: 0, greeted: VecDeque::new(), looked: now }
    }
}

impl Counts {
    fn of(count: Option<&usize>) -> usize {
        count.copied().unwrap_or(0)
    }
}

fn less<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Core {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the client has not authenticated yet.
    fn is_unproved(client: &Client) -> bool {
        client.pool == usize::MAX && matches!(client.phase, Phase::Startup { .. } | Phase::Securing | Phase::Login(_))
    }

    /// Notes that a connection begins to log in: a new one, or one from another worker.
    pub(super) fn begins_to_log_in(&mut self, c: usize) {
        self.pre_auth.logins.push_back((self.now, self.clients[c].token));
        self.pre_auth.unproved += 1;
    }

    /// Counts a new connection. If too many are logging in, the one that began first is refused.
    pub(in crate::core) fn count_in(&mut self, c: usize) {
        self.begins_to_log_in(c);
        let most = (self.settings.max_logins / self.shared.workers).max(1);
        if self.pre_auth.unproved > most {
            while let Some((_, token)) = self.pre_auth.logins.pop_front() {
                if token != self.clients[c].token
                    && self.is_client(token)
                    && Core::is_unproved(&self.clients[token.index()])
                {
                    let text = "too many connections are logging in (max_logins), and this one has taken the longest";
                    self.fail_login(token.index(), Sqlstate::TOO_MANY_CONNECTIONS, text);
                    break;
                }
            }
        }
        let Some(address) = self.clients[c].address else { return };
        let count = {
            let mut counts = self.counts();
            let count = counts.addresses.entry(address).or_default();
            *count += 1;
            *count
        };
        let limit = self.settings.max_clients_per_address;
        // The address may be an operator's, which is known only later in the login: the reserved places count as well.
        if limit > 0 && count > limit + self.settings.reserved_clients {
            self.fail_login(c, Sqlstate::TOO_MANY_CONNECTIONS, &too_many_of_address(limit));
        }
    }

    /// Refuses clients that have not authenticated in time, and those whose server does not report its parameters. The limit of a login that waits
    /// for a server connection is the queue's (`expire_waiters`).
    pub(in crate::core) fn expire_logins(&mut self) {
        let limit = self.settings.login_timeout;
        while let Some(token) = due(&mut self.pre_auth.logins, limit, self.now) {
            if let Some(awaited) = self.is_client(token).then(|| self.awaits(token.index())).flatten() {
                self.refuse_overdue(token.index(), awaited, limit);
            }
        }
        let limit = self.settings.wait_timeout;
        while let Some(token) = due(&mut self.pre_auth.greeted, limit, self.now) {
            if !self.is_client(token) {
                continue;
            }
            let client = &self.clients[token.index()];
            // A client that has got another server connection since is in the list once more.
            let is_late = client.at.server().is_some() && over(client.since, limit, self.now);
            if is_late && matches!(client.phase, Phase::Login(_)) {
                self.refuse_overdue(token.index(), Awaited::Greeting, limit);
            }
        }
    }

    /// Notes that a client that logs in has got a server connection, which is to report its parameters.
    pub(in crate::core) fn awaits_greeting(&mut self, c: usize) {
        self.pre_auth.greeted.push_back((self.now, self.clients[c].token));
    }

    /// Returns the event that a login waits for; `None` once the client has authenticated.
    fn awaits(&self, c: usize) -> Option<Awaited<'static>> {
        match &self.clients[c].phase {
            Phase::Startup { .. } | Phase::Securing => Some(Awaited::Client),
            Phase::Login(login) => match login.exchange {
                Exchange::Proved => None,
                Exchange::Asked => Some(Awaited::Account),
                Exchange::Verifying(..) => Some(Awaited::Judge),
                _ => Some(Awaited::Client),
            },
            _ => None,
        }
    }

    fn refuse_overdue(&mut self, c: usize, awaited: Awaited<'_>, limit: Duration) {
        let (code, text) = Overdue { awaited, limit, database: "", user: "", attempt: None }.error();
        self.fail_login(c, code, &text);
    }

    /// Notes that a connection closes, asks for a cancel, or has logged in.
    pub(in crate::core) fn no_longer_logging_in(&mut self, c: usize) {
        if Core::is_unproved(&self.clients[c]) {
            self.pre_auth.unproved -= 1;
        }
    }

    /// Takes a client that is being closed out of the counts.
    pub(in crate::core) fn count_out(&mut self, c: usize) {
        self.no_longer_logging_in(c);
        let client = &self.clients[c];
        let key = self.pools.get(client.pool).map(|pool| pool.key.clone());
        if key.is_some() || matches!(client.phase, Phase::Console(_)) {
            self.shared.inside.fetch_sub(1, Ordering::Relaxed);
        }
        let address = client.address;
        if address.is_none() && key.is_none() {
            return;
        }
        let mut counts = self.counts();
        if let Some(address) = address {
            less(&mut counts.addresses, &address);
        }
        if let Some(key) = key {
            less(&mut counts.databases, &key.database);
            less(&mut counts.users, &key.user);
        }
    }

    /// Returns an error if there is no room for one more client. Checked before authentication. Operators have reserved places for when applications
    /// have taken all others.
    pub(in crate::core) fn room_for(&self, c: usize, console: bool, database: &str, user: &str) -> Result<(), String> {
        let reserved = if console { self.settings.reserved_clients } else { 0 };
        if self.shared.inside.load(Ordering::Relaxed) >= self.settings.max_clients + reserved {
            return Err(format!("too many clients already: max_clients is {}", self.settings.max_clients));
        }
        if console {
            return Ok(());
        }
        let (of_database, of_user) = self.most(database, user);
        let limit = self.settings.max_clients_per_address;
        let counts = self.counts();
        let address = self.clients[c].address;
        if limit > 0 && address.is_some_and(|address| Counts::of(counts.addresses.get(&address)) > limit) {
            return Err(too_many_of_address(limit));
        }
        if of_database.is_some_and(|most| Counts::of(counts.databases.get(database)) >= most) {
            return Err(too_many_of("database", database, of_database));
        }
        if of_user.is_some_and(|most| Counts::of(counts.users.get(user)) >= most) {
            return Err(too_many_of("user", user, of_user));
        }
        Ok(())
    }

    /// Counts a client that has authenticated; an error if others have taken the last place meanwhile.
    pub(in crate::core) fn enter(&mut self, c: usize, key: &PoolKey) -> Result<(), String> {
        let (of_database, of_user) = self.most(&key.database, &key.user);
        {
            let mut counts = self.counts();
            if of_database.is_some_and(|most| Counts::of(counts.databases.get(&key.database)) >= most) {
                return Err(too_many_of("database", &key.database, of_database));
            }
            if of_user.is_some_and(|most| Counts::of(counts.users.get(&key.user)) >= most) {
                return Err(too_many_of("user", &key.user, of_user));
            }
            if self.shared.inside.fetch_add(1, Ordering::Relaxed) >= self.settings.max_clients {
                self.shared.inside.fetch_sub(1, Ordering::Relaxed);
                return Err(format!("too many clients already: max_clients is {}", self.settings.max_clients));
            }
            *counts.databases.entry(key.database.clone()).or_default() += 1;
            *counts.users.entry(key.user.clone()).or_default() += 1;
        }
        self.no_longer_logging_in(c);
        Ok(())
    }

    /// Returns the limits on clients of this database, and of this user.
    fn most(&self, database: &str, user: &str) -> (Option<usize>, Option<usize>) {
        let of_database = self.settings.database(database).and_then(|database| database.max_clients);
        (of_database, self.settings.most_clients_of(user))
    }

    /// Closes clients that have been in a state for longer than its limit.
    pub(in crate::core) fn expire_clients(&mut self) {
        if !self.settings.has_time_limits || !over(self.pre_auth.looked, LOOK, self.now) {
            return;
        }
        self.pre_auth.looked = self.now;
        self.see_transactions();
        let late: Vec<_> = self
            .clients
            .iter()
            .filter_map(|(c, client)| {
                let (code, text) = self.is_over_limit(c)?;
                Some((client.token, code, text))
            })
            .collect();
        for (token, code, text) in late {
            if self.is_client(token) {
                self.metrics.clients_timed_out.add(1);
                let server = self.clients[token.index()].at.server().map(|s| self.servers[s].token);
                self.fatal(token.index(), code, text);
                // `abandon_server` lets a write run to its end; but here the statement itself is over its limit, so it
                // is cancelled.
                if let Some(server) = server.filter(|&server| self.is_server(server)) {
                    let s = server.index();
                    if self.servers[s].is_running() && self.servers[s].cancels == 0 {
                        self.send_cancel(s, None);
                    }
                }
            }
        }
    }

    /// Notes when each transaction that runs now was first seen, where transactions have a time limit, unless that is known
    /// from when its client got the connection. So a transaction costs nothing at its beginning, and the limit of one that
    /// is not the first on its connection is exceeded by up to [`LOOK`] more.
    fn see_transactions(&mut self) {
        for (_, server) in &mut self.servers {
            let limit = self.pools.get(server.pool).and_then(|pool| pool.database.time_limits.transaction);
            let runs = server.client.is_some() && (!server.protocol.is_settled() || server.is_in_transaction());
            if limit.is_some() && runs {
                server.work.seen.get_or_insert(self.now);
            }
        }
    }

    /// Returns the error for a client that has been in its current state, or in its transaction, for longer than it may be.
    fn is_over_limit(&self, c: usize) -> Option<(Sqlstate, &'static str)> {
        let client = &self.clients[c];
        if !matches!(client.phase, Phase::Ready) || client.waiting {
            return None;
        }
        let limits = self.pools.get(client.pool)?.database.time_limits;
        let server = client.at.server().map(|s| &self.servers[s]);
        let running = client.at.lane().is_some() || server.is_some_and(|server| !server.protocol.is_settled());
        let in_transaction =
            server.is_some_and(Server::is_in_transaction) || client.begun.is_some() || client.aborted != Aborted::No;
        let (limit, code, text) = if running {
            let text = "terminating connection: the statement ran for longer than query_timeout";
            (limits.query, Sqlstate::QUERY_CANCELED, text)
        } else if in_transaction {
            let text = "terminating connection: idle in a transaction for longer than idle_transaction_timeout";
            (limits.idle_transaction, Sqlstate::IDLE_IN_TRANSACTION_TIMEOUT, text)
        } else {
            let text = "terminating connection: idle for longer than client_idle_timeout";
            (limits.idle, Sqlstate::IDLE_SESSION_TIMEOUT, text)
        };
        if limit.is_some_and(|limit| over(client.since, limit, self.now)) {
            return Some((code, text));
        }
        let limit = limits.transaction.filter(|_| running || in_transaction)?;
        // A client without a server connection of its own (in a lane, or after a BEGIN that was put off) has been in its
        // state for as long as in its transaction.
        let since = server.map_or(Some(client.since), |server| server.work.seen)?;
        let text = "terminating connection: the transaction took longer than transaction_timeout";
        over(since, limit, self.now).then_some((Sqlstate::TRANSACTION_TIMEOUT, text))
    }
}

/// Takes the oldest connection from the list if it has been there for `limit`.
fn due(list: &mut VecDeque<(Instant, Token)>, limit: Duration, now: Instant) -> Option<Token> {
    let &(since, token) = list.front()?;
    over(since, limit, now).then(|| list.pop_front())?;
    Some(token)
}

fn too_many_of(what: &str, name: &str, limit: Option<usize>) -> String {
    format!("too many clients of {what} {name:?} already: its max_clients is {}", limit.unwrap_or(0))
}

fn too_many_of_address(limit: usize) -> String {
    format!("too many connections from this address already: max_clients_per_address is {limit}")
}
