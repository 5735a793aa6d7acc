//! Pools of a worker, by number and by key.

use std::collections::HashMap;
use std::ops::{Index, IndexMut};

use super::{Pool, PoolKey};

/// Pools of a worker. A number is reused after its pool was removed; by then no reference to it is left.
#[derive(Default)]
pub(in crate::core) struct Pools {
    all: slab::Slab<Pool>,
    by_key: HashMap<PoolKey, usize>,
    /// Pools and nodes whose idle connections may have changed in this turn.
    touched: Vec<(usize, usize)>,
}

impl Pools {
    /// Returns the number of the pool with this key.
    pub(in crate::core) fn find(&self, key: &PoolKey) -> Option<usize> {
        self.by_key.get(key).copied()
    }

    /// Returns the pool with this number, if it exists.
    pub(in crate::core) fn get(&self, p: usize) -> Option<&Pool> {
        self.all.get(p)
    }

    /// Returns the pool with this number as mutable; `None` if it does not exist.
    pub(in crate::core) fn get_mut(&mut self, p: usize) -> Option<&mut Pool> {
        self.all.get_mut(p)
    }

    /// Returns the number of pools.
    pub(in crate::core) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the numbers of all pools.
    pub(in crate::core) fn ids(&self) -> Vec<usize> {
        self.all.iter().map(|(p, _)| p).collect()
    }

    /// Iterates over all pools, with their numbers.
    pub(in crate::core) fn iter(&self) -> impl Iterator<Item = (usize, &Pool)> {
        self.all.iter()
    }

    /// Iterates over all pools as mutable.
    pub(in crate::core) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pool> {
        self.all.iter_mut().map(|(_, pool)| pool)
    }

    pub(super) fn insert(&mut self, pool: Pool) -> usize {
        let key = pool.key.clone();
        let p = self.all.insert(pool);
        self.by_key.insert(key, p);
        p
    }

    pub(super) fn remove(&mut self, p: usize) {
        let pool = self.all.remove(p);
        self.by_key.remove(&pool.key);
        self.touched.retain(|(touched, _)| *touched != p);
    }

    /// Records that the idle connections of a pool to a node may have changed.
    pub(super) fn touch(&mut self, p: usize, node: usize) {
        let place = &mut self.all[p].nodes[node];
        if !std::mem::replace(&mut place.touched, true) {
            self.touched.push((p, node));
        }
    }

    /// Takes the list of pools and nodes whose idle connections may have changed.
    pub(super) fn take_touched(&mut self) -> Vec<(usize, usize)> {
        std::mem::take(&mut self.touched)
    }

    /// Returns the list's memory.
    pub(super) fn give_touched(&mut self, mut list: Vec<(usize, usize)>) {
        if self.touched.is_empty() {
            list.clear();
            self.touched = list;
        }
    }
}

impl Index<usize> for Pools {
    type Output = Pool;

    fn index(&self, p: usize) -> &Pool {
        &self.all[p]
    }
}

impl IndexMut<usize> for Pools {
    fn index_mut(&mut self, p: usize) -> &mut Pool {
        &mut self.all[p]
    }
}
