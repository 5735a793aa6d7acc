//! The pause of the proxies in a switchover: clients wait, by a lease that ends by itself, and resume once their proxy has seen the new primary.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::cluster_clients::ClusterClients;

/// Duration of a proxy's pause without renewal: as long as the [lock](super::lock) lasts.
const LEASE: Duration = super::lock::LEASE;
/// Interval of renewals, and the time limit of one.
const RENEW: Duration = Duration::from_secs(5);
/// Longest wait until a proxy sees a primary that is up. A proxy that is cut off from it takes as long as the cut; it keeps looking by itself.
const RESUME: Duration = Duration::from_secs(5);

/// Proxies' names and errors.
pub(super) type Refusals = Vec<(String, String)>;

/// Proxies that have paused, and stay paused as long as this value is held.
pub(super) struct Pause {
    clients: ClusterClients,
    /// One lease for each proxy: a proxy that does not answer delays no other.
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
    /// Returns when no renewal is in progress any more: one that came after the end would be a new pause.
    async fn renew_no_more(mut self) {
        self.ended.0.store(true, Ordering::Release);
        self.ended.1.notify_one();
        // The result of the task is no longer of use.
        let _ = (&mut self.renewing).await;
    }
}

impl Pause {
    /// Has every proxy pause, and waits until no client has a transaction in progress.
    ///
    /// # Errors
    /// Proxies that have not paused within `limit`; then no client waits any more.
    pub(super) async fn begin(clients: &ClusterClients, limit: Duration) -> Result<Pause, Refusals> {
        let lease = |proxy| {
            let ended = Arc::<(AtomicBool, Notify)>::default();
            // Renewed from the beginning: a long transaction may be waited for longer than a lease lasts.
            let renewing = tokio::spawn(renew(clients.clone(), proxy, Arc::clone(&ended)));
            Lease { ended, renewing }
        };
        let pause = Pause { clients: clients.clone(), leases: (0..clients.proxy_count()).map(lease).collect() };
        let failed = clients.consoles(&command(), limit).await;
        if failed.is_empty() {
            return Ok(pause);
        }
        pause.end().await;
        Err(failed)
    }

    /// Resumes the proxies at the primary that they know.
    pub(super) async fn end(self) -> Refusals {
        self.end_at(1).await
    }

    /// Resumes each proxy once it has seen a primary on `timeline`, for which all look at once.
    pub(super) async fn end_at(self, timeline: u32) -> Refusals {
        let clients = &self.clients;
        let each = self.leases.into_iter().enumerate().map(|(proxy, lease)| async move {
            lease.renew_no_more().await;
            clients.at_console(proxy, &resuming(timeline), RESUME).await
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

async fn renew(clients: ClusterClients, proxy: usize, ended: Arc<(AtomicBool, Notify)>) {
    while !ended.0.load(Ordering::Acquire) {
        tokio::select! {
            () = tokio::time::sleep(RENEW) => {}
            () = ended.1.notified() => continue,
        }
        // A pause that is not renewed ends: clients then find that the old primary refuses sessions, and wait.
        clients.at_console(proxy, &command(), RENEW).await;
    }
}

/// Has the proxies look at once for a primary on `timeline` or a later one, and ends a leased pause when it is found. For proxies that have not
/// paused this only shortens the time until they know the primary. A proxy keeps looking after the wait for it has ended.
pub(super) async fn resume(clients: &ClusterClients, timeline: u32) -> Refusals {
    clients.consoles(&resuming(timeline), RESUME).await
}
