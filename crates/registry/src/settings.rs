//! Settings of a registry node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::configuration::ConfigLimits;
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
    /// Limits on tokens and policies.
    pub acl: AclLimits,
    /// Limits of the configuration service.
    pub config: ConfigLimits,
}

::settings::settings! {
    /// Limits on Polaris rules, for each namespace. Rules are stored with the keys, so [`KvLimits::total_bytes`] applies to them, too.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RuleLimits: Default {
        /// Rules of a namespace.
        pub count: usize = 1000, range(0, 100_000);
        /// Bytes of one rule, in its stored or its served form, whichever is larger: up to 512 KiB.
        pub rule_bytes: usize = 64 << 10, range(0, 512 << 10);
        /// Bytes of all rules of one namespace, counted in the same way. A client gets at most this much in one answer; many clients accept 4 MiB.
        pub bytes: usize = 2 << 20, range(0, 64 << 20);
    }
}

::settings::settings! {
    /// Tokens and policies in the store, in Consul's sense, for auth = "acl".
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct AclLimits: Default {
        /// Decision where no rule of a token does: "deny" or "allow" (Consul's own default). It never gives a right on tokens and policies.
        pub default_policy: DefaultPolicy = DefaultPolicy::Deny;
        /// True if a list of the keys below a prefix needs the access "list" to it (Consul's enable_key_list_policy).
        pub key_list: bool = false;
        /// Tokens of a namespace.
        pub tokens: usize = 10_000, range(1, 100_000);
        /// Policies of a namespace.
        pub policies: usize = 1000, range(1, 100_000);
        /// Bytes of a policy's rules.
        pub rules_bytes: usize = 64 << 10, range(1 << 10, 512 << 10);
    }
}

::settings::settings! {
    /// Decision where no rule of a token does.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum DefaultPolicy {
        /// Refuses.
        Deny = "deny",
        /// Allows.
        Allow = "allow",
    }
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

::settings::settings! {
    /// TLS between the nodes on one store. Each node presents its certificate and verifies those of the others against a CA.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct PeerTls: Default {
        /// Use of TLS: "disable": messages are authenticated and in clear; "require": TLS, and nothing else, on all nodes.
        pub mode: PeerTlsMode = PeerTlsMode::default();
        /// Certificate of this node, followed by those between it and its CA, PEM. An extended key usage, if present, must include both server and
        /// client authentication.
        pub cert_file: Option<PathBuf> = None, example(r#""/etc/kingpost/node.crt""#);
        /// Key of the certificate, PEM, without a passphrase.
        pub key_file: Option<PathBuf> = None, example(r#""/etc/kingpost/node.key""#);
        /// CAs of all nodes' certificates, PEM. Use a CA of their own: any other holder of a certificate from it could connect to them.
        pub ca_file: Option<PathBuf> = None, example(r#""/etc/kingpost/nodes-ca.crt""#);
    }
}

::settings::settings! {
    /// TLS mode between nodes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum PeerTlsMode {
        /// In clear.
        #[default]
        Disable = "disable",
        /// TLS only.
        Require = "require",
    }
}

::settings::settings! {
    /// Heartbeats and probes.
    #[derive(Clone, Debug, PartialEq)]
    pub struct HealthSettings: Default {
        /// True if this node judges health. Of several nodes on one store those that do share the instances among them.
        pub enabled: bool = true;
        /// Probes under way at the same time.
        pub probes: usize = 1024, range(1, 1_000_000);
        /// Address ranges (10.0.0.0/8) that may be probed even if probe_deny includes them.
        pub probe_allow: Vec<String> = Vec::new();
        /// Address ranges that are not probed (an instance whose target is there is critical). The default keeps whoever may register from asking
        /// link-local addresses, at which clouds tell a machine its secrets.
        pub probe_deny: Vec<String> = DENIED.map(str::to_owned).to_vec();
        /// PEM: the authorities whose certificates probes over TLS take; without it those that the system trusts.
        pub probe_ca_file: Option<PathBuf> = None, example(r#""/etc/kingpost/probed-ca.crt""#);
        /// Self-preservation: when much is lost at once, the last good state is kept for a while.
        pub brake: SelfPreservationSettings = SelfPreservationSettings::default();
    }
}

/// Default of `probe_deny`: link-local addresses, at which clouds serve machine credentials.
const DENIED: [&str; 3] = ["169.254.0.0/16", "fe80::/10", "fd00:ec2::254"];

::settings::settings! {
    /// Self-preservation: if many instances are lost at once, the registry's view is probably wrong, and the last good state is kept for a while.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct SelfPreservationSettings: Default {
        /// Share of a service's checked instances that has to be missing; 1: never.
        pub service_share: f64 = 0.5;
        /// Share of all checked instances that has to be missing.
        pub whole_share: f64 = 0.5;
        /// Missing instances below which the brake never holds.
        pub least: usize = 3, range(0, 1 << 30);
        /// Longest time that the brake holds, whatever is missing.
        pub longest: Duration = Duration::from_secs(300);
    }
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
            acl: AclLimits::default(),
            config: ConfigLimits::default(),
        }
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
            (self.config.content_bytes <= 4 << 20, "config.content_bytes: expected up to 4 MiB"),
            (self.config.history <= 100, "config.history: expected up to 100"),
            (self.acl.rules_bytes <= 512 << 10, "acl.rules_bytes: expected up to 512 KiB"),
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
