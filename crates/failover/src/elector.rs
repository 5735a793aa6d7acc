//! Place of the lock that lets one watcher act: etcd, or Kingpost's own registry (or a Consul), and a lock in either.

use std::time::{Duration, Instant};

use super::etcd::{self, Etcd};
use super::session::{self, Sessions};
use crate::args::WatchArgs;
use config::failover::FailoverConfig;
use process::Failure;

/// The service that grants the lock.
#[derive(Clone)]
pub(super) enum Elector {
    Etcd(Etcd),
    Registry(Sessions),
}

/// A lock that expires unless it is renewed.
pub(super) enum Lock {
    Etcd(etcd::Lock),
    Registry(session::Lock),
}

impl Elector {
    /// Returns the service that the command line names; None if it names none.
    ///
    /// # Errors
    /// An invalid address, or an unusable file of the configuration.
    pub(super) fn of(args: &WatchArgs, config: &FailoverConfig) -> Result<Option<Elector>, Failure> {
        if let Some(registries) = args.registry.as_deref() {
            return Ok(Some(Elector::Registry(Sessions::of_watch(registries, args)?)));
        }
        let etcd = |endpoints| Etcd::new(&config.etcd, endpoints).map(Elector::Etcd);
        args.etcd.as_deref().map(etcd).transpose()
    }

    /// Returns the name of the service in messages.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Elector::Etcd(_) => "etcd",
            Elector::Registry(_) => "the registry",
        }
    }

    /// Checks that a lock with this time to live would be granted, so that a refusal is known before the lock is needed.
    ///
    /// # Errors
    /// The registry's refusal; or it does not answer.
    pub(super) async fn would_grant(&self, ttl: Duration) -> Result<(), String> {
        match self {
            Elector::Etcd(_) => Ok(()),
            Elector::Registry(sessions) => sessions.would_grant(ttl).await,
        }
    }

    /// Takes the lock if nobody has it.
    ///
    /// # Errors
    /// No endpoint gives a valid answer.
    pub(super) async fn lock(&self, key: &str, owner: &str, ttl: Duration) -> Result<Option<Lock>, String> {
        match self {
            Elector::Etcd(etcd) => Ok(etcd.lock(key, owner, ttl).await?.map(Lock::Etcd)),
            Elector::Registry(sessions) => Ok(sessions.lock(key, owner, ttl).await?.map(Lock::Registry)),
        }
    }

    /// Renews a lock.
    ///
    /// # Errors
    /// It is lost, or no endpoint answers: it holds until [`Lock::until`] all the same.
    pub(super) async fn keep(&self, lock: &mut Lock) -> Result<(), String> {
        match (self, lock) {
            (Elector::Etcd(etcd), Lock::Etcd(lock)) => etcd.keep(lock).await,
            (Elector::Registry(sessions), Lock::Registry(lock)) => sessions.keep(lock).await,
            _ => Err("the lock is another one's".into()),
        }
    }

    /// Releases a lock.
    pub(super) async fn unlock(&self, lock: &Lock) {
        match (self, lock) {
            (Elector::Etcd(etcd), Lock::Etcd(lock)) => etcd.unlock(lock).await,
            (Elector::Registry(sessions), Lock::Registry(lock)) => sessions.unlock(lock).await,
            _ => {}
        }
    }

    /// Returns the keys that begin with `prefix`, which begins with a slash.
    ///
    /// # Errors
    /// No endpoint gives a valid answer.
    pub(super) async fn keys(&self, prefix: &str) -> Result<Vec<String>, String> {
        match self {
            Elector::Etcd(etcd) => etcd.keys(prefix).await,
            Elector::Registry(sessions) => sessions.keys(prefix).await,
        }
    }
}

impl Lock {
    /// Returns the time of expiry without renewal, by this machine's clock.
    pub(super) fn until(&self) -> Instant {
        match self {
            Lock::Etcd(lock) => lock.until,
            Lock::Registry(lock) => lock.until,
        }
    }

    pub(super) fn copy(&self) -> Lock {
        match self {
            Lock::Etcd(lock) => Lock::Etcd(lock.copy()),
            Lock::Registry(lock) => Lock::Registry(lock.clone()),
        }
    }
}
