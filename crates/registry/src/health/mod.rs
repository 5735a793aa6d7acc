//! Who is alive: three parts, each with a type of its own.
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
mod verdicts;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::JoinSet;

use self::leases::Leases;
use self::probing::Probing;
pub(crate) use self::probing::Range;
use self::verdicts::Verdicts;
pub(crate) use self::verdicts::ask_all;

use crate::cache::Changes;
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
}

impl Watch {
    pub(crate) fn new(settings: &HealthSettings) -> Watch {
        Watch {
            leases: Leases::default(),
            verdicts: Verdicts::new(settings.brake),
            probing: Probing::new(&settings.probe_allow, &settings.probe_deny),
        }
    }

    /// Instances are different. Called by whoever applies to the cache, in the order of revisions.
    pub(crate) fn observe(&self, changes: &Changes) {
        let now = self.leases.now();
        self.leases.observe(changes, now);
        self.probing.observe(changes, now);
        self.verdicts.observe(changes, now);
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
