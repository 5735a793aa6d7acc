//! Settings of a registry node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::OpenError;
use crate::kv::KvLimits;
use crate::model::Limits;

/// Settings of a registry node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Limits on instances, services and calls.
    pub limits: Limits,
    /// Rows of a full batch: 1 to 4096. Rows gather while the store is busy, and for up to two milliseconds more if several callers write at once. A
    /// single caller does not wait.
    pub batch_rows: usize,
    /// Changes remembered for each service, for watchers that fell behind.
    pub service_changes: usize,
    /// Changes remembered in all.
    pub changes: usize,
    /// Age at which tombstones are collected: a node that was cut off for longer reads everything.
    #[serde(with = "humantime_serde")]
    pub tombstones: Duration,
    /// Heartbeats and probes.
    pub health: HealthSettings,
    /// The other nodes on the same store.
    pub peers: PeerSettings,
    /// Limits on keys and sessions.
    pub kv: KvLimits,
    /// Limits on Polaris rules.
    pub rules: RuleLimits,
}

/// Limits on Polaris rules, for each namespace. Rules are stored with the keys, so [`KvLimits::total_bytes`] applies to them, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RuleLimits {
    /// Rules of one namespace.
    pub count: usize,
    /// Bytes of one rule, in its stored or its served form, whichever is larger: up to 512 KiB.
    pub rule_bytes: usize,
    /// Bytes of all rules of one namespace, counted in the same way. A client gets at most this much in one answer; many clients accept 4 MiB.
    pub bytes: usize,
}

/// Communication between nodes on one store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PeerSettings {
    /// Address at which this node listens for the others; with port 0 the system chooses the port, and it is opened only once another node exists.
    /// Nodes prove to each other that they know the store's secret; with TLS, their messages are encrypted.
    pub listen: SocketAddr,
    /// Address at which the others reach this node, `host` or `host:port`; empty for the address that it listens on.
    pub advertise: String,
    /// TLS between the nodes.
    pub tls: PeerTls,
}

/// TLS between the nodes on one store. Each node presents its certificate and verifies those of the others against a CA.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PeerTls {
    /// TLS mode, the same on all nodes: nodes with different modes cannot talk to each other.
    pub mode: PeerTlsMode,
    /// PEM: this node's certificate and the intermediate ones up to its CA. An extended key usage, if present, must include both server and client
    /// authentication.
    pub cert_file: Option<PathBuf>,
    /// PEM: the certificate's private key, without a passphrase.
    pub key_file: Option<PathBuf>,
    /// PEM: CAs that verify the nodes' certificates. Use a CA of their own: any other holder of a certificate from it could connect to them.
    pub ca_file: Option<PathBuf>,
}

/// TLS mode between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerTlsMode {
    /// In clear.
    #[default]
    Disable,
    /// TLS only.
    Require,
}

/// Heartbeats and probes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HealthSettings {
    /// True if this node judges health: expires, probes, deregisters. The nodes that do share the instances among them; heartbeats may go to any
    /// node.
    pub enabled: bool,
    /// Maximum number of concurrent probes.
    pub probes: usize,
    /// Address ranges (`10.0.0.0/8`) that may be probed even if `probe_deny` includes them.
    pub probe_allow: Vec<String>,
    /// Address ranges that are not probed: an instance with a target in one is critical. The addresses on which the registry itself listens are not
    /// probed either.
    pub probe_deny: Vec<String>,
    /// PEM: CA certificates that probes over TLS trust; None for those of the system.
    pub probe_ca_file: Option<PathBuf>,
    /// Limits on mass expiry.
    pub brake: SelfPreservationSettings,
}

/// Default of `probe_deny`: link-local addresses, at which clouds serve machine credentials.
const DENIED: [&str; 3] = ["169.254.0.0/16", "fe80::/10", "fd00:ec2::254"];

/// Self-preservation: if many instances are lost at once, the registry's view is probably wrong, and the last good state is kept for a while.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SelfPreservationSettings {
    /// Share of a service's checked instances, above 0 to 1: the brake holds if more than this share is missing. 1: never.
    pub service_share: f64,
    /// The share of all checked instances together.
    pub whole_share: f64,
    /// Minimum number of missing instances for the brake to hold.
    pub least: usize,
    /// Maximum time that the brake holds, whatever the share; it holds again only after the share has fallen.
    #[serde(with = "humantime_serde")]
    pub longest: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            limits: Limits::default(),
            batch_rows: 512,
            service_changes: 256,
            changes: 8192,
            tombstones: Duration::from_secs(600),
            health: HealthSettings::default(),
            peers: PeerSettings::default(),
            kv: KvLimits::default(),
            rules: RuleLimits::default(),
        }
    }
}

impl Default for RuleLimits {
    fn default() -> RuleLimits {
        RuleLimits { count: 1000, rule_bytes: 64 << 10, bytes: 2 << 20 }
    }
}

impl Default for PeerSettings {
    fn default() -> PeerSettings {
        PeerSettings {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: String::new(),
            tls: PeerTls::default(),
        }
    }
}

impl Default for HealthSettings {
    fn default() -> HealthSettings {
        HealthSettings {
            enabled: true,
            probes: 1024,
            probe_allow: Vec::new(),
            probe_deny: DENIED.map(str::to_owned).to_vec(),
            probe_ca_file: None,
            brake: SelfPreservationSettings::default(),
        }
    }
}

impl Default for SelfPreservationSettings {
    fn default() -> SelfPreservationSettings {
        SelfPreservationSettings { service_share: 0.5, whole_share: 0.5, least: 3, longest: Duration::from_secs(300) }
    }
}

impl Settings {
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let share = |share: f64| share > 0.0 && share <= 1.0;
        let brake = &self.health.brake;
        let ranges = |texts: &[String]| texts.iter().all(|text| text.parse::<crate::health::Range>().is_ok());
        for (good, what) in [
            ((1..=4096).contains(&self.batch_rows), "batch_rows: expected 1 to 4096"),
            (self.limits.call_rows > 0, "limits.call_rows: expected at least 1"),
            (self.limits.queued_writes > 0, "limits.queued_writes: expected at least 1"),
            ((1..=1 << 30).contains(&self.limits.instances), "limits.instances: expected 1 to 2^30"),
            ((1..=1024).contains(&self.kv.key_bytes), "kv.key_bytes: expected 1 to 1024"),
            (self.kv.value_bytes <= 8 << 20, "kv.value_bytes: expected up to 8 MiB"),
            (self.kv.session_ttl_min >= Duration::from_secs(1), "kv.session_ttl_min: expected at least 1s"),
            (self.rules.rule_bytes <= 512 << 10, "rules.rule_bytes: expected up to 512 KiB"),
            (self.health.probes > 0, "health.probes: expected at least 1"),
            (ranges(&self.health.probe_allow), "health.probe_allow: expected addresses or ranges such as 10.0.0.0/8"),
            (ranges(&self.health.probe_deny), "health.probe_deny: expected addresses or ranges such as 10.0.0.0/8"),
            (share(brake.service_share), "health.brake.service_share: expected above 0, up to 1"),
            (share(brake.whole_share), "health.brake.whole_share: expected above 0, up to 1"),
        ] {
            if !good {
                return Err(OpenError::Setting(what));
            }
        }
        Ok(())
    }
}
