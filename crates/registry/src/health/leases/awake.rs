//! The task that notices suspensions.

use std::sync::Arc;
use std::time::Duration;

use crate::registry::Inner;

/// Interval between two looks at the clock.
const TICK: Duration = Duration::from_millis(100);

/// Looks at the clock in a task of its own, which waits for neither a store nor a peer, and so notices suspensions.
pub(in crate::health) async fn stay_awake(inner: Arc<Inner>) {
    let mut stop = inner.stop.subscribe();
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(TICK) => {}
        }
        inner.health.leases.stood_still();
    }
}
