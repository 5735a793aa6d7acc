//! The relay of a local cluster: in this process, between the primary and the replicas.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ::relay::config::{AuthMethod, RelayConfig, UpstreamConfig};
use ::relay::{Relay, Surroundings};

use super::postgres::{SUPERUSER, Server};
use super::status::{NodeStatus, relay_status};
use super::stop::Stop;
use daemon::Running;
use process::Failure;

/// Name of the relay's slot on the primary.
pub(super) const SLOT: &str = "kingpost_relay";
/// Longest time until the relay receives.
const LIMIT: Duration = Duration::from_secs(30);
/// Interval between two checks of a starting relay.
const PACE: Duration = Duration::from_millis(50);
/// Time after which new WAL is archived: the tour waits for it.
const ARCHIVE_INTERVAL: Duration = Duration::from_millis(200);
/// Interval between two checks for a new primary.
const FOLLOW: Duration = Duration::from_millis(500);

/// A running relay; clones share it.
#[derive(Debug, Clone)]
pub(super) struct LocalRelay {
    relay: Arc<Relay>,
    address: SocketAddr,
}

/// Directories of a relay.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dirs<'a> {
    /// The log.
    pub(super) log: &'a Path,
    /// The archive; None without one.
    pub(super) archive: Option<&'a Path>,
}

/// Removes the logs moved aside before, next to `dir`: only one log is kept, not one for each time.
fn remove_aside(dir: &Path) {
    let Some(entries) = dir.parent().and_then(|parent| std::fs::read_dir(parent).ok()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("relay.old-"));
        if number.is_some_and(|number| number.parse::<u64>().is_ok())
            && let Err(error) = std::fs::remove_dir_all(entry.path())
        {
            tracing::warn!(path = %entry.path().display(), %error, "an old log cannot be removed");
        }
    }
}

impl LocalRelay {
    /// Starts the relay and waits until it receives from the primary. A log that is not in the primary's history is moved aside: in a local cluster
    /// the servers decide.
    ///
    /// # Errors
    /// The relay does not receive in time, or a signal came.
    pub(super) async fn start(
        dirs: Dirs<'_>,
        primary: u16,
        stop: &Stop,
        step: &dyn Fn(&str),
    ) -> Result<LocalRelay, Failure> {
        let dir = dirs.log;
        let relay = match LocalRelay::receiving(dirs, primary, stop).await? {
            Ok(relay) => relay,
            Err(reason) => {
                let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
                let aside = dir.with_file_name(format!("relay.old-{seconds}"));
                step(&format!("the relay cannot follow the primary ({reason}): its log goes to {}", aside.display()));
                remove_aside(dir);
                std::fs::rename(dir, &aside).map_err(|error| Failure::path("move aside", dir, &error))?;
                LocalRelay::receiving(dirs, primary, stop).await?.map_err(not_receiving)?
            }
        };
        Ok(relay)
    }

    /// Starts the relay and waits until it receives; the inner error: the reason why it never will.
    async fn receiving(dirs: Dirs<'_>, primary: u16, stop: &Stop) -> Result<Result<LocalRelay, String>, Failure> {
        let mut config = RelayConfig {
            listen: vec!["127.0.0.1:0".into()],
            dir: dirs.log.into(),
            auth: AuthMethod::Trust,
            // As the limits of the primary's own slots in a local cluster.
            keep_bytes: 128 << 20,
            max_bytes: 2 << 30,
            upstream: UpstreamConfig {
                address: format!("127.0.0.1:{primary}"),
                user: SUPERUSER.into(),
                slot: SLOT.into(),
                ..UpstreamConfig::default()
            },
            ..RelayConfig::default()
        };
        if let Some(archive) = dirs.archive {
            config.archive.url = archive.display().to_string();
            config.archive.interval = ARCHIVE_INTERVAL;
        }
        // Started as new in any case: a local cluster consists of the servers and this directory, and the servers decide.
        let relay = Relay::start(&config, Surroundings::default(), true, &tokio::runtime::Handle::current())
            .map_err(|error| daemon::relay_failure(&error))?;
        let address = *relay.addresses().first().ok_or_else(|| Failure::runtime("the relay does not listen"))?;
        let relay = LocalRelay { relay: Arc::new(relay), address };
        let started = Instant::now();
        loop {
            let status = relay.relay.status();
            if status.upstream_state == "streaming" {
                return Ok(Ok(relay));
            }
            if status.alarm {
                relay.stop().await;
                return Ok(Err(status.upstream_state));
            }
            let failure = if started.elapsed() > LIMIT {
                not_receiving(status.upstream_state)
            } else {
                tokio::select! {
                    () = tokio::time::sleep(PACE) => continue,
                    failure = stop.failure() => failure,
                }
            };
            relay.stop().await;
            return Err(failure);
        }
    }

    /// Keeps WAL for these slots, also while their replicas are away.
    pub(super) fn keep_for(&self, slots: &[String]) -> Result<(), Failure> {
        self.relay
            .set_slots(slots)
            .map_err(|error| Failure::runtime(format!("cannot set up the relay's slots: {error}")))
    }

    pub(super) fn relay(&self) -> &Arc<Relay> {
        &self.relay
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    /// True if a replica streams from the relay.
    pub(super) fn feeds(&self, name: &str) -> bool {
        self.relay.status().downstreams.iter().any(|downstream| downstream.application_name == name)
    }

    /// Returns the status for `kingpost status`.
    pub(super) fn status(&self) -> NodeStatus {
        let status = self.relay.status();
        let receiving = status.upstream_state == "streaming";
        NodeStatus {
            role: "relay",
            timeline: status.log.as_ref().map(|log| log.timeline),
            lsn: status.log.as_ref().map(|log| log.flushed.to_string()),
            connections: Some(status.downstreams.len() as u64),
            streaming: Some(receiving),
            error: (!receiving).then_some(status.upstream_state),
            ..relay_status(self.address.to_string())
        }
    }

    /// Stops the relay.
    pub(super) async fn stop(&self) {
        let relay = Arc::clone(&self.relay);
        if let Err(error) = tokio::task::spawn_blocking(move || relay.shutdown()).await {
            tracing::error!(%error, "stopping the relay failed");
        }
    }
}

fn not_receiving(why: String) -> Failure {
    Failure::runtime(format!("the relay does not receive from the primary: {why}"))
        .advise("the cluster starts without it by --no-relay")
}

/// Makes the relay, and with it the replicas, follow the new primary after a failover, and keep WAL for all other servers. Never returns.
pub(super) async fn follow_primary(relay: Option<&LocalRelay>, servers: &[Server], running: &Running) {
    let mut kept_for = servers.first().map(Server::address);
    loop {
        tokio::time::sleep(FOLLOW).await;
        let (Some(relay), Some(primary)) = (relay, running.primary()) else { continue };
        relay.relay.follow(&primary);
        if kept_for.as_ref() != Some(&primary) {
            let others = servers.iter().filter(|server| server.address() != primary);
            if let Err(failure) = relay.keep_for(&others.map(Server::slot).collect::<Vec<_>>()) {
                tracing::warn!("{failure}");
            }
            kept_for = Some(primary);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn of_the_logs_moved_aside_one_is_kept() {
        let parent = std::env::temp_dir().join(format!("kingpost-aside-{}", std::process::id()));
        let names = ["relay", "relay.old-1", "relay.old-1763812345", "relay.old-mine", "relay.older", "primary"];
        for name in names {
            std::fs::create_dir_all(parent.join(name).join("wal")).unwrap();
        }
        remove_aside(&parent.join("relay"));
        let mut left: Vec<String> = std::fs::read_dir(&parent)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        std::fs::remove_dir_all(&parent).unwrap();
        assert_eq!(left, ["primary", "relay", "relay.old-mine", "relay.older"]);
    }
}
