//! Health of instances: three parts, each with a type of its own. All three treat an instance with several checks as several instances ([`several`]).
//!
//! ```text
//!  heartbeats, renewals ─▶ leases   times of the last ones, here and elsewhere
//!                            │ silent for too long
//!                            ▼
//!                          verdicts ─▶ patch "critical", only if still as judged ─▶ batch writer
//!                            ▲          (or held by the brake of a service or of the whole: judged again soon)
//!                            │ answers in a row
//!  probes of instances ─▶ probing
//! ```
//!
//! Every decision is pure and gets the time as an argument: milliseconds during which this node ran, monotonic. A verdict is written through the
//! batch writer, with the revision at which it was made: a registration in between wins.

pub(crate) mod leases;
mod probing;
pub(crate) mod several;
mod tasks;
mod verdicts;

use std::sync::{Mutex, MutexGuard, PoisonError};

use self::leases::Leases;
use self::probing::Probing;
pub(crate) use self::probing::Range;
#[doc(hidden)]
pub use self::probing::read_probe;
use self::several::Several;
pub(crate) use self::tasks::start;
use self::verdicts::Verdicts;
pub(crate) use self::verdicts::ask_all;

use crate::cache::Changes;
use crate::error::OpenError;
use crate::model::InstanceId;
use crate::settings::HealthSettings;

/// The result of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// The instance is registered.
    Known,
    /// The instance is not registered, and should register again.
    Unknown,
}

/// The health that a heartbeat states of an instance that is not passing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alive {
    /// Passing again.
    Passing,
    /// None: the health is stated elsewhere.
    AsReported,
    /// Not passing.
    Unwell,
}

/// The health part of a node.
pub(crate) struct Watch {
    pub(crate) leases: Leases,
    pub(crate) verdicts: Verdicts,
    pub(crate) probing: Probing,
    several: Mutex<Several>,
}

impl Watch {
    /// Makes the health part from the settings.
    ///
    /// # Errors
    /// The file with the CA certificates is unusable.
    pub(crate) fn new(settings: &HealthSettings) -> Result<Watch, OpenError> {
        let probing = Probing::new(settings).map_err(|reason| OpenError::Authorities { reason })?;
        Ok(Watch {
            leases: Leases::default(),
            verdicts: Verdicts::new(settings.brake),
            probing,
            several: Mutex::default(),
        })
    }

    /// Applies changed instances. Called by the caller that applies them to the cache, in the order of revisions.
    pub(crate) fn observe(&self, changes: &Changes) {
        let now = self.leases.now();
        let units = lock(&self.several).take_apart(changes);
        self.leases.observe(&units, now);
        self.probing.observe(&units, now);
        self.verdicts.observe(&units, now);
    }

    /// Renews the leases of instances with several checks: each check with a heartbeat is renewed.
    pub(crate) fn renew_each_check(&self, ids: &[InstanceId], alive: Alive) {
        let units = lock(&self.several).of_instances(ids);
        self.leases.renew(&units, alive);
    }

    /// Returns the instance for which leases, probing or the reaper use `id`, and the check if it has several.
    fn meant(&self, id: &InstanceId) -> (InstanceId, Option<String>) {
        match lock(&self.several).of(id) {
            Some(one) => (one.instance.clone(), Some(one.check.clone())),
            None => (id.clone(), None),
        }
    }
}

/// Locks even after a panic, which must not end the health part: the state consists of independent entries.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
