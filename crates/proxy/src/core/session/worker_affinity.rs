//! Assignment of clients to workers.
//!
//! A pool's server connections move between workers, to one with a waiting client. With clients of one pool on each of 48 workers and only eight
//! connections, nearly every statement would start with a message to another worker. So a pool has a group of workers, one for every [`CONNECTIONS`]
//! server connections that the pool may have. A client that another worker has accepted moves to a worker of the group once it has authenticated. It
//! moves before it is told a process ID, because that ID contains the worker.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::client::{Client, Phase};
use crate::core::memory::Token;
use crate::core::pool::PoolKey;
use crate::core::{Core, Destination, Effect, Moved, Moving};

/// Server connections of a pool per worker of its group: as many as one worker keeps busy without becoming the bottleneck.
const CONNECTIONS: usize = 4;

/// Returns the worker for a client of pool `key` that worker `accepted` has accepted. `connections`: the maximum number of the pool's connections on
/// all nodes.
fn home(key: &PoolKey, connections: usize, workers: usize, accepted: usize) -> usize {
    let size = connections.div_ceil(CONNECTIONS).clamp(1, workers);
    let mut hasher = DefaultHasher::new();
    (&key.database, &key.user).hash(&mut hasher);
    let first = (hasher.finish() % workers as u64) as usize;
    let is_in_it = (accepted + workers - first) % workers < size;
    if is_in_it { accepted } else { (first + accepted % size) % workers }
}

impl Core {
    /// Decides if another worker is to serve this client. If true, the client leaves at the end of this step and is told nothing until then.
    pub(super) fn leaves_for_home(&mut self, c: usize, key: &PoolKey) -> bool {
        let nodes = self.view.nodes.len().max(1);
        let connections = self.settings.pool_size(&key.database, &key.user).saturating_mul(nodes);
        let to = home(key, connections, self.shared.workers.max(1), self.id);
        if to != self.id {
            self.leaving.push((self.clients[c].token, Destination::Worker(to)));
        }
        to != self.id
    }

    /// Sends the clients in `leaving` to their workers.
    pub(in crate::core) fn send_away(&mut self) {
        while let Some((token, to)) = self.leaving.pop() {
            if !self.is_client(token) {
                continue;
            }
            let c = token.index();
            let moving = match to {
                Destination::Worker(_) => {
                    self.no_longer_logging_in(c);
                    self.metrics.clients.sub(1);
                    Moving::Client(Box::new(self.clients.remove(c)))
                }
                Destination::Cluster(_) => Moving::Newcomer(Box::new(self.part_with(c))),
            };
            self.effects.push(Effect::Move { token, to, moved: Box::new(Moved(moving)) });
        }
    }

    /// Adopts a client that another worker has accepted and authenticated.
    pub(in crate::core) fn adopt_client(&mut self, mut client: Client) -> Token {
        let index = self.clients.vacant_key();
        client.token = self.token(crate::core::token::Kind::Client, index);
        // The authentication messages may still be unsent.
        client.dirty = true;
        let token = client.token;
        self.dirty.push(token);
        self.clients.insert(client);
        self.metrics.clients.add(1);
        self.metrics.clients_moved.add(1);
        self.begins_to_log_in(index);
        token
    }

    /// Continues the login of an adopted client, once the driver has its socket.
    pub(in crate::core) fn adopted_client(&mut self, c: usize) {
        match self.clients[c].phase {
            Phase::Login(_) => self.proved(c),
            // Another cluster's worker has accepted it: its start-up packet is still to be read.
            Phase::Startup { .. } => self.runnable.push_back(self.clients[c].token),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_pool_has_few_workers() {
        let key = |user: &str| PoolKey { database: "app".into(), user: user.into() };
        for (connections, workers, expected) in
            [(8, 48, 2), (8, 2, 2), (1, 48, 1), (20, 16, 5), (60, 16, 15), (400, 16, 16), (8, 1, 1), (0, 4, 1)]
        {
            let mut group: Vec<usize> = (0..workers).map(|at| home(&key("alice"), connections, workers, at)).collect();
            for &to in &group {
                assert_eq!(home(&key("alice"), connections, workers, to), to, "who is there stays");
            }
            // Each of them gets about the same number.
            let of = |to: usize| group.iter().filter(|&&at| at == to).count();
            let (least, most) = (group.iter().map(|&to| of(to)).min(), group.iter().map(|&to| of(to)).max());
            assert!(most <= least.map(|least| 2 * least + 1), "{connections} {workers}: {group:?}");
            group.sort_unstable();
            group.dedup();
            assert_eq!(group.len(), expected, "{connections} {workers}");
        }
        // Pools have different workers.
        let firsts: std::collections::HashSet<usize> =
            (0..100).map(|n| home(&key(&format!("user{n}")), 4, 48, 0)).collect();
        assert!(firsts.len() > 20, "{firsts:?}");
    }
}
