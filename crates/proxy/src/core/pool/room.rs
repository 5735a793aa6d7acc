//! Room under a limit that several pools share: of a user, of a database, of a node.
//!
//! A pool that finds no room closes an idle connection of another pool that shares the limit, on this worker, or asks
//! another worker to do so. If none is idle, the pool is the next to open a connection under that limit: the other pools
//! give one up when they have no client for it, or after [`KEEP`] more transactions.

use topology::NodeId;

use super::budget::CEILINGS;
use super::{Budget, KEEP, PoolKey};
use crate::core::{Core, CoreMessage, Effect};

impl Core {
    /// Looks for room for a connection of pool `p` to `node`, which a shared limit does not allow. Returns true if there is room now; the connection
    /// is then counted as open.
    pub(super) fn find_room(&mut self, p: usize, node: NodeId, late: bool) -> bool {
        let n = usize::from(node.0);
        let budget = self.pools[p].nodes[n].budget.clone();
        // At most one for each shared limit.
        for _ in 0..CEILINGS {
            let Some(s) = self.idle_in_the_way(p, n, &budget) else { break };
            self.metrics.server_connections_evicted.add(1);
            self.drop_server(s);
            if budget.try_open(late).is_ok() {
                return true;
            }
        }
        budget.wants(self.id);
        let place = &mut self.pools[p].nodes[n];
        if self.shared.workers > 1
            && !place.asked
            && let Some((key, to)) = self.shared.budgets.idle_in_the_way_of(&budget, node, self.id)
        {
            self.effects.push(Effect::Post { to, message: CoreMessage::Yield { key, node, from: self.id } });
        }
        false
    }

    /// Returns the idle connection of this worker that was used last longest ago, of the other pools that are in the way.
    fn idle_in_the_way(&self, p: usize, n: usize, budget: &Budget) -> Option<usize> {
        let places = self.pools.iter().filter(|&(q, _)| q != p).filter_map(|(_, pool)| pool.nodes.get(n));
        let idle = places.filter(|place| place.budget.is_in_the_way_of(budget)).filter_map(|place| place.idle.first());
        idle.copied().min_by_key(|&s| self.servers[s].idle_since)
    }

    /// Closes an idle connection of this pool because worker `from` found no room.
    pub(in crate::core) fn yield_idle(&mut self, key: &PoolKey, node: NodeId, from: usize) {
        let Some(p) = self.pools.find(key) else { return };
        let idle = self.pools[p].nodes.get(usize::from(node.0)).and_then(|place| place.idle.first().copied());
        if let Some(s) = idle {
            self.metrics.server_connections_evicted.add(1);
            self.drop_server(s);
            self.effects.push(Effect::Post { to: from, message: CoreMessage::Room });
        }
    }

    /// Gives up a server connection without a client if another pool waits for the room that it takes. Returns true if so.
    pub(super) fn gives_way(&mut self, s: usize) -> bool {
        let (p, n) = (self.servers[s].pool, usize::from(self.servers[s].node.0));
        let pool = &mut self.pools[p];
        let waiting = pool.is_waited_for();
        let place = &mut pool.nodes[n];
        if waiting && place.kept < KEEP {
            return false;
        }
        let Some(to) = place.budget.wanted_elsewhere() else { return false };
        place.kept = 0;
        place.budget.gave_way();
        self.metrics.server_connections_evicted.add(1);
        self.drop_server(s);
        // The pool that waits may be one of this worker's.
        self.effects.push(Effect::Post { to, message: CoreMessage::Room });
        true
    }

    /// Tries all waiting pools again, after a limit that several pools share may have gained room.
    pub(in crate::core) fn room(&mut self) {
        for p in self.pools.ids() {
            if self.pools[p].is_waited_for() {
                self.pump(p);
            }
        }
    }
}
