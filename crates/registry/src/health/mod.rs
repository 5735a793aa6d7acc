//! Who is alive: three parts, each with a type of its own. All three see an instance with several checks as several instances
//! ([`several`]).
//!
//! ```text
//!  heartbeats, renewals ─▶ leases   what was heard, here and elsewhere, and when
//!                            │ silent for too long
//!                            ▼
//!                          verdicts ─▶ patch "critical", only if still as judged ─▶ batch writer
//!                            ▲          (or held by the brake of a service or of the whole: looked at again soon)
//!                            │ answers in a row
//!  questions to instances ─▶ probing
//! ```
//!
//! Everything that decides is pure and gets the time as an argument: milliseconds in which this node ran, monotone. What
//! is found is written through the batch writer, with the revision it was found at: whoever registered again meanwhile wins.

pub(crate) mod leases;
mod probing;
pub(crate) mod several;
mod verdicts;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::JoinSet;

use self::leases::Leases;
use self::probing::Probing;
pub(crate) use self::probing::Range;
use self::several::Several;
use self::verdicts::Verdicts;
pub(crate) use self::verdicts::ask_all;

use crate::cache::Changes;
use crate::error::OpenError;
use crate::model::InstanceId;
use crate::registry::Inner;
use crate::settings::HealthSettings;

/// What became of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// The instance is registered.
    Known,
    /// It is not: it should register again.
    Unknown,
}

/// What a sign of life says about an instance that is not passing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alive {
    /// That it is passing again.
    Passing,
    /// Nothing: how it is is said elsewhere.
    AsReported,
    /// That it is not passing.
    Unwell,
}

/// Health as this node watches it.
pub(crate) struct Watch {
    pub(crate) leases: Leases,
    pub(crate) verdicts: Verdicts,
    pub(crate) probing: Probing,
    several: Mutex<Several>,
}

impl Watch {
    /// # Errors
    /// The file with the certificates of authorities cannot be used.
    pub(crate) fn new(settings: &HealthSettings) -> Result<Watch, OpenError> {
        let probing = Probing::new(settings).map_err(|reason| OpenError::Authorities { reason })?;
        Ok(Watch {
            leases: Leases::default(),
            verdicts: Verdicts::new(settings.brake),
            probing,
            several: Mutex::default(),
        })
    }

    /// Instances are different. Called by whoever applies to the cache, in the order of revisions.
    pub(crate) fn observe(&self, changes: &Changes) {
        let now = self.leases.now();
        let units = lock(&self.several).take_apart(changes);
        self.leases.observe(&units, now);
        self.probing.observe(&units, now);
        self.verdicts.observe(&units, now);
    }

    /// Instances that have several checks show a sign of life: each check that waits for such signs has one.
    pub(crate) fn renew_each_check(&self, ids: &[InstanceId], alive: Alive) {
        let units = lock(&self.several).of_instances(ids);
        self.leases.renew(&units, alive);
    }

    /// The instance that is meant where leases, probing or the reaper say `id`, and of several checks the one.
    fn meant(&self, id: &InstanceId) -> (InstanceId, Option<String>) {
        match lock(&self.several).of(id) {
            Some(one) => (one.instance.clone(), Some(one.check.clone())),
            None => (id.clone(), None),
        }
    }
}

/// A panic in one tick must not end health: the state is made of independent entries.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts what watches.
pub(crate) fn start(inner: &Arc<Inner>, tasks: &mut JoinSet<()>) {
    inner.health.leases.start();
    tasks.spawn(leases::stay_awake(Arc::clone(inner)));
    tasks.spawn(verdicts::revive(Arc::clone(inner)));
    if inner.settings.health.enabled {
        tasks.spawn(verdicts::run(Arc::clone(inner)));
        tasks.spawn(probing::run(Arc::clone(inner)));
    }
}
