//! What can be set.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::OpenError;
use crate::kv::KvLimits;
use crate::model::Limits;

/// How a registry behaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How much of everything there may be.
    pub limits: Limits,
    /// Rows after which a batch is full: 1 to 4096. While the store is busy rows gather; and where several
    /// write at once, for up to two milliseconds more. Who writes alone does not wait.
    pub batch_rows: usize,
    /// Changes of one service that are remembered for those who fell behind.
    pub service_changes: usize,
    /// Changes in all that are remembered.
    pub changes: usize,
    /// Tombstones are kept for so long: a node that was cut off for longer reads everything.
    #[serde(with = "humantime_serde")]
    pub tombstones: Duration,
    /// Heartbeats and probes.
    pub health: HealthSettings,
    /// The other nodes on the same store.
    pub peers: PeerSettings,
    /// How much keys and sessions may be.
    pub kv: KvLimits,
    /// How much Polaris' rules may be.
    pub rules: RuleLimits,
}

/// How much the rules of Polaris may be, for each namespace. They are kept with the keys, so [`KvLimits::total_bytes`] holds for them, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RuleLimits {
    /// Rules of one namespace.
    pub count: usize,
    /// Bytes of one rule, as it is kept or as it is served, whichever is more: up to 512 KiB.
    pub rule_bytes: usize,
    /// The same of all rules of one namespace. A client gets at most so much in one answer; many take 4 MiB.
    pub bytes: usize,
}

/// How nodes on one store reach each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PeerSettings {
    /// Where this node listens for the others; port 0 leaves the port to the system, and opens it only when there is another node. They prove to each other that they know the
    /// store's secret; what they say is encrypted if there is TLS.
    pub listen: SocketAddr,
    /// Where the others reach it, `host` or `host:port`; empty: where it listens.
    pub advertise: String,
    /// TLS between the nodes.
    pub tls: PeerTls,
}

/// TLS between the nodes on one store. Each shows its certificate to the others, and holds theirs against one CA.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PeerTls {
    /// Whether there is TLS. All nodes have to say the same: those that do not do not talk to each other.
    pub mode: PeerTlsMode,
    /// PEM: this node's certificate, and those between it and its CA. If it says what it may be used for, both that of a server and of a client.
    pub cert_file: Option<PathBuf>,
    /// PEM: the certificate's private key, without a passphrase.
    pub key_file: Option<PathBuf>,
    /// PEM: CAs that the nodes' certificates are verified with. Best one of their own: everybody else with a certificate of it may speak to them.
    pub ca_file: Option<PathBuf>,
}

/// Whether nodes speak TLS to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerTlsMode {
    /// In clear.
    #[default]
    Disable,
    /// TLS, and nothing else.
    Require,
}

impl PeerTls {
    /// Reads the files, and says what is wrong with them.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), OpenError> {
        crate::peers::check(self)
    }
}

/// Heartbeats and probes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HealthSettings {
    /// Whether this node judges health: expires, probes, deregisters. Those that do share the instances among them; heartbeats
    /// may go to any node.
    pub enabled: bool,
    /// Probes under way at the same time.
    pub probes: usize,
    /// Ranges of addresses (`10.0.0.0/8`) that may be probed, whatever `probe_deny` has.
    pub probe_allow: Vec<String>,
    /// Ranges of addresses that are not probed: an instance whose target is there is critical. The addresses at which the registry
    /// itself listens are not probed either.
    pub probe_deny: Vec<String>,
    /// PEM: the certificates of the authorities that probes over TLS trust; with none, those that the system trusts.
    pub probe_ca_file: Option<PathBuf>,
    /// When much is lost at once.
    pub brake: BrakeSettings,
}

/// What is not probed where nobody says: link-local addresses, at which clouds tell machines their secrets.
const DENIED: [&str; 3] = ["169.254.0.0/16", "fe80::/10", "fd00:ec2::254"];

/// When much is lost at once, it is rather the registry's view that is wrong: the last good state is kept for a while.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BrakeSettings {
    /// Share of a service's checked instances, above 0 to 1: when more than it are missing, the brake holds. 1: never.
    pub service_share: f64,
    /// The same for all checked instances together.
    pub whole_share: f64,
    /// Fewer missing ones than this never hold it.
    pub least: usize,
    /// After this the brake lets go, whatever the share; it holds again only after the share has fallen.
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
            brake: BrakeSettings::default(),
        }
    }
}

impl Default for BrakeSettings {
    fn default() -> BrakeSettings {
        BrakeSettings { service_share: 0.5, whole_share: 0.5, least: 3, longest: Duration::from_secs(300) }
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
