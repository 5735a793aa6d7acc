//! Looked-up users that may no longer log in: their role was dropped, has expired, or lost LOGIN.
//!
//! An open server connection stays open after the loss of its role, and PostgreSQL does not report it. So a looked-up user is looked up again when
//! its account expires, as long as the user has clients or server connections, and these are closed if the user may no longer log in. A failed lookup
//! has no effect: the servers may be down.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use wire::Sqlstate;

use super::client::LookedUp;
use crate::accounts::AccountState;
use crate::core::{Core, over};

/// Time between two checks of the users of all pools.
const LOOK: Duration = Duration::from_millis(500);

/// Time of a worker's last check.
#[derive(Debug)]
pub(in crate::core) struct Revision {
    looked: Instant,
}

impl Revision {
    pub(in crate::core) fn new(now: Instant) -> Revision {
        Revision { looked: now }
    }
}

impl Core {
    /// Starts lookups of users whose accounts have expired, and closes the connections of users that may no longer log in.
    pub(in crate::core) fn revoke_users(&mut self) {
        if !self.settings.looks_up || !over(self.revision.looked, LOOK, self.now) {
            return;
        }
        self.revision.looked = self.now;
        let used = self.pools.iter().filter(|(_, pool)| pool.looked_up && (pool.clients > 0 || pool.servers > 0));
        let used: Vec<_> = used.map(|(p, pool)| (p, pool.key.user.clone())).collect();
        for (p, user) in used {
            match self.shared.accounts.account_state(&user, self.now) {
                AccountState::Good | AccountState::Unknown => {}
                AccountState::NoPassword => self.revoke(p, &user, false),
                AccountState::Gone => self.revoke(p, &user, true),
            }
        }
    }

    /// Closes the looked-up clients of a pool, and its server connections. `gone`: the role does not exist; otherwise the role has no password, and
    /// clients that logged in without one (by `cert`, `peer` or `trust`) stay.
    fn revoke(&mut self, p: usize, user: &str, gone: bool) {
        let concerned = |looked_up| match looked_up {
            LookedUp::No => false,
            LookedUp::ByPassword => true,
            LookedUp::ByName => gone,
        };
        let clients = self.clients.iter().filter(|(_, client)| client.pool == p && concerned(client.looked_up));
        let clients: Vec<_> = clients.map(|(_, client)| client.token).collect();
        if !clients.is_empty() || self.pools[p].servers > 0 {
            tracing::warn!(
                user,
                clients = clients.len(),
                "the user may not log in any more: its connections are closed"
            );
        }
        self.shared.passed.lock().unwrap_or_else(PoisonError::into_inner).remove(user);
        for token in clients {
            if !self.is_client(token) {
                continue;
            }
            let server = self.clients[token.index()].at.server().map(|s| self.servers[s].token);
            let text = format!("terminating connection: role {user:?} is not permitted to log in any more");
            self.fatal(token.index(), Sqlstate::INVALID_AUTHORIZATION, &text);
            // The running statement would otherwise run to its end.
            if let Some(server) = server.filter(|&server| self.is_server(server)) {
                let s = server.index();
                if self.servers[s].is_running() && self.servers[s].cancels == 0 {
                    self.send_cancel(s, None);
                }
            }
        }
        // The next looked-up client marks the pool again.
        let stay = self.clients.iter().any(|(_, client)| client.pool == p && client.looked_up != LookedUp::No);
        if let Some(pool) = self.pools.get_mut(p) {
            pool.looked_up = stay;
        }
        self.retire_all(p);
    }
}
