//! The proxies' part in a switchover: clients wait, by a lease that ends by itself, and go on once their proxy has seen the new
//! primary.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::parts::Parts;

/// How long a proxy pauses without being told again: as long as the [lock](super::lock) lasts.
const LEASE: Duration = super::lock::LEASE;
/// How often it is told again, and the longest time for that.
const RENEW: Duration = Duration::from_secs(5);
/// Longest time that a proxy is waited for to see a primary that is there. One that is cut off from it takes as long as the cut; it goes on looking
/// by itself.
const RESUME: Duration = Duration::from_secs(5);

/// A proxy's name, and what it said.
pub(super) type Refusals = Vec<(String, String)>;

/// Proxies that have paused, and stay so for as long as this is held.
pub(super) struct Pause {
    parts: Parts,
    /// One for each proxy: one that does not answer holds up no other.
    leases: Vec<Lease>,
}

/// The pause of one proxy.
struct Lease {
    ended: Arc<(AtomicBool, Notify)>,
    renewing: JoinHandle<()>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

impl Lease {
    /// Returns when no renewal is under way any more: one that came after the end would be a new pause.
    async fn renew_no_more(mut self) {
        self.ended.0.store(true, Ordering::Release);
        self.ended.1.notify_one();
        // What the task may have to say is of no use any more.
        let _ = (&mut self.renewing).await;
    }
}

impl Pause {
    /// Has every proxy pause, and waits until no client has anything under way.
    ///
    /// # Errors
    /// Those that have not paused within `limit`; nobody waits any more.
    pub(super) async fn begin(parts: &Parts, limit: Duration) -> Result<Pause, Refusals> {
        let lease = |proxy| {
            let ended = Arc::<(AtomicBool, Notify)>::default();
            // From the beginning: a long transaction may be waited for longer than a lease.
            let renewing = tokio::spawn(renew(parts.clone(), proxy, Arc::clone(&ended)));
            Lease { ended, renewing }
        };
        let pause = Pause { parts: parts.clone(), leases: (0..parts.proxy_count()).map(lease).collect() };
        let failed = parts.consoles(&command(), limit).await;
        if failed.is_empty() {
            return Ok(pause);
        }
        pause.end().await;
        Err(failed)
    }

    /// Has them go on at whatever primary they know.
    pub(super) async fn end(self) -> Refusals {
        self.end_at(1).await
    }

    /// Has them go on once each has seen a primary on `timeline`, which they look for at once.
    pub(super) async fn end_at(self, timeline: u32) -> Refusals {
        let parts = &self.parts;
        let each = self.leases.into_iter().enumerate().map(|(proxy, lease)| async move {
            lease.renew_no_more().await;
            parts.at_console(proxy, &resuming(timeline), RESUME).await
        });
        join_all(each).await.into_iter().flatten().collect()
    }
}

fn command() -> String {
    format!("PAUSE FOR {}s", LEASE.as_secs())
}

fn resuming(timeline: u32) -> String {
    format!("RESUME WHEN TIMELINE >= {timeline}")
}

async fn renew(parts: Parts, proxy: usize, ended: Arc<(AtomicBool, Notify)>) {
    while !ended.0.load(Ordering::Acquire) {
        tokio::select! {
            () = tokio::time::sleep(RENEW) => {}
            () = ended.1.notified() => continue,
        }
        // One that is not renewed ends its pause: its clients find that the old primary lets nobody in, and wait.
        parts.at_console(proxy, &command(), RENEW).await;
    }
}

/// Has the proxies look for a primary on `timeline` or a later one at once, and ends a pause that a lease holds when it is there. For
/// proxies that have not paused it only shortens the time until they know the primary. A proxy goes on looking after it is no longer waited for.
pub(super) async fn resume(parts: &Parts, timeline: u32) -> Refusals {
    parts.consoles(&resuming(timeline), RESUME).await
}
