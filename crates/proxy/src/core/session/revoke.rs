//! Users that were looked up and may not log in any more: their role was dropped, has expired, or lost LOGIN.
//!
//! A server connection that is open stays open when its role goes, and PostgreSQL says nothing. So who was looked up is looked up again when what is
//! known is out of date, for as long as clients or server connections of that user are there, and loses them when the answer is that nobody may log in.
//! A lookup that fails takes nothing away: the servers may be down.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use wire::Sqlstate;

use super::client::LookedUp;
use crate::accounts::Standing;
use crate::core::{Core, over};

/// Time between two looks at the users of all pools.
const LOOK: Duration = Duration::from_millis(500);

/// When a worker has looked last.
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
    /// Has users looked up again whose time is over, and closes what those have who may not log in any more.
    pub(in crate::core) fn revoke_users(&mut self) {
        if !self.settings.looks_up || !over(self.revision.looked, LOOK, self.now) {
            return;
        }
        self.revision.looked = self.now;
        let used = self.pools.iter().filter(|(_, pool)| pool.looked_up && (pool.clients > 0 || pool.servers > 0));
        let used: Vec<_> = used.map(|(p, pool)| (p, pool.key.user.clone())).collect();
        for (p, user) in used {
            match self.shared.accounts.standing(&user, self.now) {
                Standing::Good | Standing::Unknown => {}
                Standing::NoPassword => self.revoke(p, &user, false),
                Standing::Gone => self.revoke(p, &user, true),
            }
        }
    }

    /// Closes the clients of a pool that were looked up, and its server connections. `gone`: there is no such role; otherwise the role has no
    /// password, and who got in without one (by `cert`, `peer` or `trust`) stays.
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
            // What it has begun would run to its end.
            if let Some(server) = server.filter(|&server| self.is_server(server)) {
                let s = server.index();
                if self.servers[s].is_running() && self.servers[s].cancels == 0 {
                    self.send_cancel(s, None);
                }
            }
        }
        // The next client that is looked up marks the pool again.
        let stay = self.clients.iter().any(|(_, client)| client.pool == p && client.looked_up != LookedUp::No);
        if let Some(pool) = self.pools.get_mut(p) {
            pool.looked_up = stay;
        }
        self.retire_all(p);
    }
}
