//! Eviction of idle connections when a server accepts no more (53300), while other pools have idle ones to it.
//!
//! The limits of the proxy's configuration are in [`Budget`](super::Budget). A server's own limits are known only by its refusal. Then an idle
//! connection of another pool that counts under the same limit is closed, the least recently used one of this worker first, else one of another
//! worker; one for each refused attempt. If none is idle, the next one that comes back gives way.

use topology::NodeId;
use wire::payload;

use super::PoolKey;
use crate::core::{Core, CoreMessage, Effect};
use crate::settings::Settings;

/// The connections that a server counted when it refused one more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Crowd {
    /// The server's connections: `max_connections`.
    Server,
    /// The role's connections: `ALTER ROLE … CONNECTION LIMIT`.
    Role,
    /// The database's connections: `ALTER DATABASE … CONNECTION LIMIT`.
    Database,
}

impl Crowd {
    /// Returns the group of connections that this error (53300) is about. PostgreSQL's text is translated; the name of its routine is not.
    pub(in crate::core) fn of(error: &[u8]) -> Crowd {
        match payload::error_field(error, b'R') {
            Some(b"InitializeSessionUserId") => Crowd::Role,
            Some(b"CheckMyDatabase") => Crowd::Database,
            _ => Crowd::Server,
        }
    }

    /// True if connections of the two pools count under the same limit.
    fn counts_both(self, settings: &Settings, one: &PoolKey, other: &PoolKey) -> bool {
        let on_servers = |key: &PoolKey| {
            let database = settings.database(&key.database).unwrap_or(settings.default_database());
            let (database, user) = database.on_servers(&key.database, &key.user);
            (database.to_owned(), user.to_owned())
        };
        match self {
            Crowd::Server => true,
            Crowd::Role => on_servers(one).1 == on_servers(other).1,
            Crowd::Database => on_servers(one).0 == on_servers(other).0,
        }
    }
}

impl Core {
    /// Handles a server's refusal of a further connection. Clients go on waiting, and a connection of another pool makes room for the next attempt.
    pub(in crate::core) fn server_is_full(&mut self, s: usize, why: &str, crowd: Crowd) {
        let server = &self.servers[s];
        let (p, node, pooled) = (server.pool, server.node, server.tunnel.is_none());
        // Connections for replication have a limit of their own (`max_wal_senders`).
        let wanted = pooled && (server.listener || self.pools[p].is_waited_for());
        self.open_failed(s, why, false);
        if wanted && self.pools.get(p).is_some() {
            self.make_room_on(p, node, crowd);
        }
    }

    fn make_room_on(&mut self, p: usize, node: NodeId, crowd: Crowd) {
        let n = usize::from(node.0);
        let key = self.pools[p].key.clone();
        let Some(budget) = self.pools[p].nodes.get(n).map(|place| place.budget.clone()) else { return };
        let others =
            self.pools.iter().filter(|&(q, pool)| q != p && crowd.counts_both(&self.settings, &key, &pool.key));
        let idle = others.filter_map(|(_, pool)| pool.nodes.get(n)?.idle.first().copied());
        if let Some(oldest) = idle.min_by_key(|&s| self.servers[s].idle_since) {
            self.metrics.server_connections_evicted.add(1);
            self.drop_server(oldest);
        } else {
            let settings = &self.settings;
            let counts = |other: &PoolKey| crowd.counts_both(settings, &key, other);
            match self.shared.budgets.idle_elsewhere(&budget, node, self.id, counts) {
                Some((other, to)) => {
                    let message = CoreMessage::Yield { key: other, node, from: self.id };
                    self.effects.push(Effect::Post { to, message });
                }
                None if crowd == Crowd::Server => return budget.presses(self.id),
                None => return,
            }
        }
        budget.has_been_given_room(self.id);
        // The backend takes a moment to end.
        let soon = self.now + SOON;
        let place = &mut self.pools[p].nodes[n];
        place.retry_at = place.retry_at.map(|at| at.min(soon));
    }
}

/// Pause before the next attempt once a connection was closed to make room.
const SOON: std::time::Duration = std::time::Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routines_tell_the_limits_apart() {
        let error = |routine: &str| [b"SFATAL\0C53300\0Mtoo many\0R", routine.as_bytes(), b"\0\0"].concat();
        for (routine, expected) in [
            ("InitProcess", Crowd::Server),
            ("InitPostgres", Crowd::Server),
            ("ProcessStartupPacket", Crowd::Server),
            ("InitializeSessionUserId", Crowd::Role),
            ("CheckMyDatabase", Crowd::Database),
        ] {
            assert_eq!(Crowd::of(&error(routine)), expected, "{routine}");
        }
        assert_eq!(Crowd::of(b"SFATAL\0C53300\0\0"), Crowd::Server);
    }
}
