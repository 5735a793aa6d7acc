//! One cluster of the process: its topology, and the proxy in front of its nodes.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use topology::Topology;

use super::failure_of;
use super::shown;
use crate::console::{Observed, Watched};
use auth::{ExternalAuthenticators, Lookup, Passwords};
use config::Config;
use metrics::Exposition;
use process::Failure;
use proxy::console::Orders;
use proxy::fleet::Fleet;
use proxy::{Prepared, Proxy, RenewalDesk, Socket};

/// A cluster's topology and proxy, and the tasks that serve their requests.
pub struct ClusterRuntime {
    /// Name of the cluster at its start, by which clients are directed to it.
    name: String,
    topology: Arc<Topology>,
    /// `None` after the shutdown.
    proxy: RwLock<Option<Proxy>>,
    renewals: RenewalDesk,
    watchdog: Mutex<WorkerWatchdog>,
    lookup: Arc<Lookup>,
    authenticators: Arc<ExternalAuthenticators>,
    /// TLS settings of the open server connections.
    tls: Mutex<tls::ConnectConfig>,
}

/// Liveness of the workers' loops. An idle one turns at least once in [`WorkerWatchdog::LIMIT`].
#[derive(Debug, Default)]
struct WorkerWatchdog {
    /// By worker: its number of turns, and the time since when it has had that number.
    last: Vec<(u64, Instant)>,
}

impl WorkerWatchdog {
    /// Longest time without a turn.
    const LIMIT: Duration = Duration::from_secs(10);

    /// Compares the workers' turns with the last ones; `now` never goes back.
    fn observe(&mut self, turns: &[u64], now: Instant) -> Result<(), String> {
        self.last.resize(turns.len(), (u64::MAX, now));
        for (worker, (last, turns)) in self.last.iter_mut().zip(turns).enumerate() {
            if last.0 != *turns {
                *last = (*turns, now);
            }
            let still = now.saturating_duration_since(last.1);
            if still > WorkerWatchdog::LIMIT {
                return Err(format!("worker {worker} has not turned for {} s", still.as_secs()));
            }
        }
        Ok(())
    }
}

impl ClusterRuntime {
    /// Starts the proxy of a cluster whose topology runs already. `config` is the cluster's own, from [`Config::of_each_cluster`]; `orders`:
    /// operators' orders to the process that hands over to this one.
    ///
    /// # Errors
    /// The proxy cannot start; the topology is shut down.
    pub(super) fn start(
        config: &Config,
        topology: Arc<Topology>,
        sockets: Vec<Socket>,
        fleet: &Arc<Fleet>,
        runtime: &tokio::runtime::Handle,
        orders: Orders,
    ) -> Result<ClusterRuntime, Failure> {
        let name = config.cluster.name.clone();
        match Proxy::start(&config.proxy, Arc::clone(&topology), sockets, fleet, &name, orders) {
            Ok(proxy) => Ok(ClusterRuntime {
                lookup: Lookup::start(topology.clone(), proxy.lookups(), &config.proxy.auth_query, runtime),
                authenticators: ExternalAuthenticators::start(proxy.verifications(), &config.proxy, runtime),
                renewals: proxy.renewals(),
                name,
                topology,
                proxy: RwLock::new(Some(proxy)),
                watchdog: Mutex::default(),
                tls: Mutex::new(config.cluster.tls.clone()),
            }),
            Err(error) => {
                topology.shutdown();
                Err(failure_of(&error))
            }
        }
    }

    /// Returns the cluster's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the topology.
    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// Queries the proxy; returns the default after its shutdown.
    pub(super) fn ask<T: Default>(&self, question: impl FnOnce(&Proxy) -> T) -> T {
        self.proxy.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(question).unwrap_or_default()
    }

    /// Changes the proxy, unless it is shut down.
    pub(super) fn change(&self, change: impl FnOnce(&mut Proxy)) {
        if let Some(proxy) = self.proxy.write().unwrap_or_else(PoisonError::into_inner).as_mut() {
            change(proxy);
        }
    }

    /// Makes `passwords` reread passwords when a server refuses one.
    pub(super) fn renew_by(&self, passwords: &Arc<Passwords>) {
        self.lookup.renew_by(Arc::clone(passwords));
        self.renewals.serve(passwords.bell());
    }

    /// Returns the requests to reread passwords.
    pub(super) fn renewals(&self) -> &RenewalDesk {
        &self.renewals
    }

    /// Checks whether a configuration could be applied, and changes nothing.
    ///
    /// # Errors
    /// The configuration could not be applied.
    pub(super) fn prepare(config: &Config) -> Result<Prepared, Failure> {
        check(config)?;
        Prepared::new(&config.proxy).map_err(|error| refused(&error))
    }

    /// Applies a new configuration.
    ///
    /// # Errors
    /// The topology refuses the configuration, for a reason that [`ClusterRuntime::prepare`] does not detect.
    pub(super) fn adopt(&self, config: &Config, prepared: Prepared) -> Result<(), Failure> {
        self.ask(|proxy| proxy.adopt(prepared));
        self.lookup.reload(&config.proxy.auth_query);
        self.authenticators.reload(&config.proxy);
        self.topology.reload(config.cluster.clone()).map_err(|error| refused(&error))?;
        let mut tls = self.tls.lock().unwrap_or_else(PoisonError::into_inner);
        // Open connections were made with the old settings: in clear text, perhaps, or to an unverified server.
        if *tls != config.cluster.tls {
            tls.clone_from(&config.cluster.tls);
            self.ask(Proxy::reconnect);
        }
        Ok(())
    }

    /// Checks that each worker's loop still turns.
    ///
    /// # Errors
    /// Names the worker that does not turn; or the proxy is shut down.
    pub(super) fn alive(&self) -> Result<(), String> {
        let turns = self.ask(Proxy::turns);
        if turns.is_empty() {
            return Err("the proxy has been stopped".into());
        }
        self.watchdog.lock().unwrap_or_else(PoisonError::into_inner).observe(&turns, Instant::now())
    }

    /// Adds the metrics of the proxy and of the cluster.
    pub(super) fn describe(&self, exposition: &mut Exposition) {
        shown::describe_proxy(&self.ask(Proxy::metrics), exposition);
        shown::describe_traffic(&self.ask(|proxy| proxy.observer().traffic()), exposition);
        shown::describe_view(&self.topology.view(), exposition);
        shown::describe_settings(&self.ask(|proxy| proxy.observer().settings()), exposition);
        shown::describe_relays(&self.topology.relays(), exposition);
        shown::describe_oracle(&self.topology.oracle_times(), exposition);
    }

    /// Returns the web console's view of the cluster, and of the proxy until its shutdown.
    pub(super) fn seen(&self) -> (Watched, Option<Observed>) {
        let watched = Watched { topology: Arc::clone(&self.topology), name: self.name.clone() };
        let observed = |proxy: &Proxy| Some(Observed { observer: proxy.observer(), addresses: proxy.addresses() });
        (watched, self.ask(observed))
    }

    /// Waits up to `grace` for transactions to finish, and closes everything. Blocks.
    pub(super) fn shutdown(&self, grace: Duration) {
        if let Some(proxy) = self.proxy.write().unwrap_or_else(PoisonError::into_inner).take() {
            proxy.shutdown(grace);
        }
        self.topology.shutdown();
    }
}

/// Checks whether a topology could apply a cluster's configuration.
///
/// # Errors
/// The reason why it could not.
fn check(config: &Config) -> Result<(), Failure> {
    config.cluster.validate().map_err(|error| refused(&error))?;
    config.cluster.connector().map_err(|error| refused(&error))?;
    Ok(())
}

pub(super) fn refused(error: &dyn std::fmt::Display) -> Failure {
    Failure::config(format!("the new configuration is refused: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standing_workers_are_noticed() {
        let start = Instant::now();
        let mut watchdog = WorkerWatchdog::default();
        for (turns, seconds, alive) in [
            ([5, 5], 0, true),
            ([5, 6], 9, true),
            ([5, 7], 11, false),
            ([6, 8], 12, true),
            ([7, 8], 22, true),
            ([8, 8], 23, false),
            ([8, 9], 24, true),
        ] {
            let observed = watchdog.observe(&turns, start + Duration::from_secs(seconds));
            assert_eq!(observed.is_ok(), alive, "{turns:?} turns after {seconds} s");
        }
    }
}
