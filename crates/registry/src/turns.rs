//! Locks for changes that are tried again.

use std::hash::BuildHasher as _;

use foldhash::fast::RandomState;
use tokio::sync::Mutex;

use crate::model::InstanceId;

/// Locks, shared by all ids.
const STRIPES: usize = 256;

/// Locks for repeated attempts: a change that is tried again waits for the other ones of this node on the same instance, so that each of them
/// succeeds in turn.
#[derive(Debug)]
pub(crate) struct Turns {
    hasher: RandomState,
    stripes: Vec<Mutex<()>>,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns { hasher: RandomState::default(), stripes: (0..STRIPES).map(|_| Mutex::new(())).collect() }
    }
}

impl Turns {
    /// Returns the lock of an instance.
    pub(crate) fn of(&self, id: &InstanceId) -> &Mutex<()> {
        &self.stripes[(self.hasher.hash_one(id) as usize) % STRIPES]
    }
}
