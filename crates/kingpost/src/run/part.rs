//! One cluster of the process: who watches its nodes, and the proxy in front of them.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use topology::Topology;

use super::failure_of;
use super::shown;
use crate::config::Config;
use crate::console::{Observed, Watched};
use crate::error::Failure;
use crate::exposition::Exposition;
use crate::judges::Judges;
use crate::lookup::Lookup;
use crate::passwords::Passwords;
use proxy::console::Orders;
use proxy::fleet::Fleet;
use proxy::{Prepared, Proxy, RenewalDesk, Socket};

/// A cluster's topology and proxy, and what serves their questions.
pub(crate) struct Part {
    /// The cluster's name when it was started: by this one clients are led to it.
    name: String,
    topology: Arc<Topology>,
    /// `None` once it was shut down.
    proxy: RwLock<Option<Proxy>>,
    renewals: RenewalDesk,
    pulse: Mutex<Pulse>,
    lookup: Arc<Lookup>,
    judges: Arc<Judges>,
    /// By which the open server connections were made.
    tls: Mutex<tls::ConnectConfig>,
}

/// Whether each worker's loop still turns. An idle one turns at least once in [`Pulse::LIMIT`].
#[derive(Debug, Default)]
struct Pulse {
    /// By worker: its turns, and since when it has had so many.
    last: Vec<(u64, Instant)>,
}

impl Pulse {
    /// Longest time without a turn.
    const LIMIT: Duration = Duration::from_secs(10);

    /// Compares with what was seen before; `now` never goes back.
    fn observe(&mut self, turns: &[u64], now: Instant) -> Result<(), String> {
        self.last.resize(turns.len(), (u64::MAX, now));
        for (worker, (last, turns)) in self.last.iter_mut().zip(turns).enumerate() {
            if last.0 != *turns {
                *last = (*turns, now);
            }
            let still = now.saturating_duration_since(last.1);
            if still > Pulse::LIMIT {
                return Err(format!("worker {worker} has not turned for {} s", still.as_secs()));
            }
        }
        Ok(())
    }
}

impl Part {
    /// Starts the proxy of a cluster that is being watched. `config` is the cluster's own, as [`Config::of_each_cluster`] gives it; `orders`: what operators
    /// have ordered of another process's.
    ///
    /// # Errors
    /// The proxy cannot start; nobody watches the cluster any more.
    pub(super) fn start(
        config: &Config,
        topology: Arc<Topology>,
        sockets: Vec<Socket>,
        fleet: &Arc<Fleet>,
        runtime: &tokio::runtime::Handle,
        orders: Orders,
    ) -> Result<Part, Failure> {
        let name = config.cluster.name.clone();
        match Proxy::start(&config.proxy, Arc::clone(&topology), sockets, fleet, &name, orders) {
            Ok(proxy) => Ok(Part {
                lookup: Lookup::start(topology.clone(), proxy.lookups(), &config.proxy.auth_query, runtime),
                judges: Judges::start(proxy.verifications(), &config.proxy, runtime),
                renewals: proxy.renewals(),
                name,
                topology,
                proxy: RwLock::new(Some(proxy)),
                pulse: Mutex::default(),
                tls: Mutex::new(config.cluster.tls.clone()),
            }),
            Err(error) => {
                topology.shutdown();
                Err(failure_of(&error))
            }
        }
    }

    /// The cluster's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Who watches the cluster's nodes.
    pub(crate) fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// Asks the proxy, as long as there is one.
    pub(super) fn ask<T: Default>(&self, question: impl FnOnce(&Proxy) -> T) -> T {
        self.proxy.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(question).unwrap_or_default()
    }

    /// Does something to the proxy, as long as there is one.
    pub(super) fn change(&self, change: impl FnOnce(&mut Proxy)) {
        if let Some(proxy) = self.proxy.write().unwrap_or_else(PoisonError::into_inner).as_mut() {
            change(proxy);
        }
    }

    /// Has passwords read again by these where a server refuses one.
    pub(super) fn renew_by(&self, passwords: &Arc<Passwords>) {
        self.lookup.renew_by(Arc::clone(passwords));
        self.renewals.serve(passwords.bell());
    }

    /// Requests to read passwords again.
    pub(super) fn renewals(&self) -> &RenewalDesk {
        &self.renewals
    }

    /// Looks whether a configuration could be taken over, and changes nothing.
    ///
    /// # Errors
    /// It could not.
    pub(super) fn prepare(config: &Config) -> Result<Prepared, Failure> {
        check(config)?;
        Prepared::new(&config.proxy).map_err(|error| refused(&error))
    }

    /// Takes over a new configuration.
    ///
    /// # Errors
    /// The topology refuses it, for a reason that [`Part::prepare`] does not know.
    pub(super) fn adopt(&self, config: &Config, prepared: Prepared) -> Result<(), Failure> {
        self.ask(|proxy| proxy.adopt(prepared));
        self.lookup.reload(&config.proxy.auth_query);
        self.judges.reload(&config.proxy);
        self.topology.reload(config.cluster.clone()).map_err(|error| refused(&error))?;
        let mut tls = self.tls.lock().unwrap_or_else(PoisonError::into_inner);
        // What is open was made by the old ones: in clear, perhaps, or to a server that nobody has verified.
        if *tls != config.cluster.tls {
            tls.clone_from(&config.cluster.tls);
            self.ask(Proxy::reconnect);
        }
        Ok(())
    }

    /// Whether each worker's loop still turns.
    ///
    /// # Errors
    /// Which one does not; or there is no proxy any more.
    pub(super) fn alive(&self) -> Result<(), String> {
        let turns = self.ask(Proxy::turns);
        if turns.is_empty() {
            return Err("the proxy has been stopped".into());
        }
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner).observe(&turns, Instant::now())
    }

    /// Adds what is measured of the proxy and of the cluster.
    pub(super) fn describe(&self, exposition: &mut Exposition) {
        shown::describe_proxy(&self.ask(Proxy::metrics), exposition);
        shown::describe_traffic(&self.ask(|proxy| proxy.observer().traffic()), exposition);
        shown::describe_view(&self.topology.view(), exposition);
        shown::describe_settings(&self.ask(|proxy| proxy.observer().settings()), exposition);
        shown::describe_relays(&self.topology.relays(), exposition);
        shown::describe_oracle(&self.topology.oracle_times(), exposition);
    }

    /// What the web console shows of the cluster, and of the proxy while there is one.
    pub(super) fn seen(&self) -> (Watched, Option<Observed>) {
        let watched = Watched { topology: Arc::clone(&self.topology), name: self.name.clone() };
        let observed = |proxy: &Proxy| Some(Observed { observer: proxy.observer(), addresses: proxy.addresses() });
        (watched, self.ask(observed))
    }

    /// Lets transactions finish until `grace` is over, and closes everything. Blocks.
    pub(super) fn shutdown(&self, grace: Duration) {
        if let Some(proxy) = self.proxy.write().unwrap_or_else(PoisonError::into_inner).take() {
            proxy.shutdown(grace);
        }
        self.topology.shutdown();
    }
}

/// Whether a topology could take a cluster's configuration over.
///
/// # Errors
/// Why it could not.
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
    fn pulse() {
        let start = Instant::now();
        let mut pulse = Pulse::default();
        for (turns, seconds, alive) in [
            ([5, 5], 0, true),
            ([5, 6], 9, true),
            ([5, 7], 11, false),
            ([6, 8], 12, true),
            ([7, 8], 22, true),
            ([8, 8], 23, false),
            ([8, 9], 24, true),
        ] {
            let observed = pulse.observe(&turns, start + Duration::from_secs(seconds));
            assert_eq!(observed.is_ok(), alive, "{turns:?} turns after {seconds} s");
        }
    }
}
