//! Starting the tasks of the health part.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::{leases, probing, verdicts};
use crate::registry::Inner;

/// Starts the tasks.
pub(crate) fn start(inner: &Arc<Inner>, tasks: &mut JoinSet<()>) {
    inner.health.leases.start();
    tasks.spawn(leases::stay_awake(Arc::clone(inner)));
    tasks.spawn(verdicts::revive(Arc::clone(inner)));
    if inner.settings.health.enabled {
        tasks.spawn(verdicts::run(Arc::clone(inner)));
        tasks.spawn(probing::run(Arc::clone(inner)));
    }
}
