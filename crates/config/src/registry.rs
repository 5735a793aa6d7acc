//! `[registry]` of the configuration.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use ::registry::api::{Auth, HttpLimits, RateLimit, Role, Token, TokenHash};
use ::registry::{HealthSettings, KvLimits, Limits, NamespaceName, PeerSettings, PeerTls, RuleLimits, Settings, dns};
use serde::{Deserialize, Serialize};

/// Distance from the port of `nacos_listen` to the one at which Nacos' clients expect gRPC.
pub const NACOS_GRPC: u16 = 1000;
/// Key of the address of Nacos' API.
pub const NACOS_LISTEN: &str = "nacos_listen";

/// `[registry]`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RegistryConfig {
    /// `host:port` that serves all fronts.
    pub listen: String,
    /// `host:port` that serves only Consul's API; empty for none.
    pub consul_listen: String,
    /// `host:port` that serves only Eureka's API; empty for none.
    pub eureka_listen: String,
    /// `host:port` that serves only Nacos' API: HTTP at this port, gRPC at the port [`NACOS_GRPC`] above; empty: HTTP on `listen` only.
    pub nacos_listen: String,
    /// `host:port` that serves only xDS; empty for none.
    pub xds_listen: String,
    /// `host:port` for other nodes on the same store; empty: a port chosen by the system, at the address of `listen`.
    pub peer_listen: String,
    /// Address announced to the other nodes instead: `host` or `host:port`.
    pub peer_advertise: String,
    /// TLS between the nodes.
    pub peer_tls: PeerTls,
    /// The DNS server.
    pub dns: DnsConfig,
    /// TLS on all addresses but that of DNS.
    pub tls: tls::ListenConfig,
    /// Rate of requests of one client.
    pub rate: RateConfig,
    /// Log of all changes.
    pub audit: AuditConfig,
    /// Address of the store.
    pub store: StoreAddress,
    /// Name of this node for Consul's clients.
    pub node: String,
    /// Method of authentication.
    pub auth: AuthMethod,
    /// Host names, beside those of this machine, that requests to a registry without authentication may have.
    pub hosts: Vec<String>,
    /// Most connections.
    pub connections: usize,
    /// Most connections from one address, loopback excepted.
    pub connections_per_address: usize,
    /// Most bytes of a request's line and headers.
    pub header_bytes: usize,
    /// Most bytes of a body.
    pub body_bytes: usize,
    /// Longest time to the last header of the next request.
    #[serde(with = "humantime_serde")]
    pub header_timeout: Duration,
    /// Longest time to the last byte of a body.
    #[serde(with = "humantime_serde")]
    pub body_timeout: Duration,
    /// Longest time for which a client may read nothing of an answer.
    #[serde(with = "humantime_serde")]
    pub write_timeout: Duration,
    /// Most requests that wait for a change at a time.
    pub waiting: usize,
    /// Longest time that a request may wait for a change.
    #[serde(with = "humantime_serde")]
    pub wait: Duration,
    /// Most items in one batch.
    pub batch: usize,
    /// Limits on the registry's content.
    pub limits: Limits,
    /// Limits of keys and sessions.
    pub kv: KvLimits,
    /// Limits of Polaris' rules.
    pub rules: RuleLimits,
    /// Settings of heartbeats and probes.
    pub health: HealthSettings,
    /// Tokens and their permissions.
    pub tokens: Vec<TokenConfig>,
}

/// Address of a store. `Debug` shows its kind only: it may hold a password.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct StoreAddress(pub String);

impl fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.0.split(':').next().unwrap_or_default();
        write!(f, "StoreAddress({kind}:…)")
    }
}

/// Method of authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuthMethod {
    /// Accepts everybody, on loopback addresses only.
    None,
    /// Accepts holders of a token.
    Tokens,
}

/// `[[registry.tokens]]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TokenConfig {
    /// Name of the token, for logs.
    pub name: String,
    /// SHA-256 of the token in hexadecimal.
    pub sha256: String,
    /// Role of the token.
    pub role: RoleName,
    /// Namespaces of the token; `*` for all.
    #[serde(default = "everywhere")]
    pub namespaces: Vec<String>,
}

/// `[registry.rate]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RateConfig {
    /// Requests a second of one token, or of one address without a token; 0 for no limit.
    pub per_second: u32,
    /// Most requests at once after a pause.
    pub burst: u32,
}

impl Default for RateConfig {
    fn default() -> Self {
        RateConfig { per_second: 0, burst: 1000 }
    }
}

/// `[registry.audit]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditConfig {
    /// File with one line of JSON for each change; empty: only in the log and in memory.
    pub file: String,
    /// Most bytes of the file; before a write beyond them it is renamed to `FILE.1`.
    pub max_bytes: u64,
}

impl Default for AuditConfig {
    fn default() -> Self {
        AuditConfig { file: String::new(), max_bytes: 64 << 20 }
    }
}

/// `[registry.dns]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct DnsConfig {
    /// `host:port` of the DNS server, UDP and TCP; empty for none.
    pub listen: String,
    /// True if `listen` may be reachable from other machines: there is no login.
    pub allow_remote: bool,
    /// Domain of all names.
    pub domain: String,
    /// Time for which answers may be cached.
    #[serde(with = "humantime_serde")]
    pub ttl: Duration,
    /// The namespaces that are served; names without one belong to the first.
    pub namespaces: Vec<String>,
    /// Most answers a second in datagrams to one network of other machines; 0 for no limit.
    pub per_second: u32,
    /// Most TCP connections.
    pub connections: usize,
    /// Longest idle time of a TCP connection.
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Duration,
}

impl Default for DnsConfig {
    fn default() -> Self {
        let limits = dns::Limits::default();
        DnsConfig {
            listen: String::new(),
            allow_remote: false,
            domain: "consul".into(),
            ttl: Duration::ZERO,
            namespaces: vec!["default".into()],
            per_second: limits.per_second,
            connections: limits.connections,
            idle_timeout: limits.idle,
        }
    }
}

impl DnsConfig {
    /// Returns the served zone. A malformed namespace was refused at the check of the configuration; here it is left out.
    pub fn zone(&self) -> dns::Zone {
        dns::Zone {
            domain: self.domain.trim_end_matches('.').to_owned(),
            ttl: self.ttl,
            namespaces: self.namespaces.iter().filter_map(|name| NamespaceName::new(name).ok()).collect(),
        }
    }

    /// Returns the server's limits.
    pub fn limits(&self) -> dns::Limits {
        dns::Limits {
            connections: self.connections,
            idle: self.idle_timeout,
            per_second: self.per_second,
            ..dns::Limits::default()
        }
    }
}

fn everywhere() -> Vec<String> {
    vec!["*".into()]
}

/// Name of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RoleName {
    /// May discover and watch.
    Read,
    /// May register, send heartbeats, change and remove instances.
    Write,
    /// May change and remove services, too.
    Admin,
}

impl Default for RegistryConfig {
    fn default() -> Self {
        let http = HttpLimits::default();
        let settings = Settings::default();
        RegistryConfig {
            listen: "127.0.0.1:8632".into(),
            consul_listen: String::new(),
            eureka_listen: String::new(),
            nacos_listen: String::new(),
            xds_listen: String::new(),
            peer_listen: String::new(),
            peer_advertise: String::new(),
            peer_tls: PeerTls::default(),
            dns: DnsConfig::default(),
            tls: tls::ListenConfig::default(),
            rate: RateConfig::default(),
            audit: AuditConfig::default(),
            store: StoreAddress("sqlite:/var/lib/kingpost/registry.sqlite".into()),
            node: "kingpost".into(),
            auth: AuthMethod::Tokens,
            hosts: Vec::new(),
            connections: http.connections,
            connections_per_address: http.connections_per_address,
            header_bytes: http.header_bytes,
            body_bytes: http.body_bytes,
            header_timeout: http.header_timeout,
            body_timeout: http.body_timeout,
            write_timeout: http.write_timeout,
            waiting: http.waiting,
            wait: http.wait,
            batch: http.batch,
            limits: settings.limits,
            kv: settings.kv,
            rules: settings.rules,
            health: settings.health,
            tokens: Vec::new(),
        }
    }
}

impl RegistryConfig {
    /// Returns the settings of the core; `peers`: its address for other nodes.
    pub fn settings(&self, peers: SocketAddr) -> Settings {
        let peers = PeerSettings { listen: peers, advertise: self.peer_advertise.clone(), tls: self.peer_tls.clone() };
        let (limits, kv, rules) = (self.limits.clone(), self.kv.clone(), self.rules.clone());
        Settings { limits, kv, rules, health: self.health.clone(), peers, ..Settings::default() }
    }

    /// Returns the limits of the fronts.
    pub fn http(&self) -> HttpLimits {
        HttpLimits {
            connections: self.connections,
            connections_per_address: self.connections_per_address,
            header_bytes: self.header_bytes,
            body_bytes: self.body_bytes,
            header_timeout: self.header_timeout,
            body_timeout: self.body_timeout,
            write_timeout: self.write_timeout,
            waiting: self.waiting,
            wait: self.wait,
            rate: RateLimit { per_second: self.rate.per_second, burst: self.rate.burst },
            batch: self.batch,
        }
    }

    /// Returns the authentication. A malformed hash was refused at the check of the configuration; here it is left out.
    pub fn auth(&self) -> Auth {
        match self.auth {
            AuthMethod::None => Auth::None,
            AuthMethod::Tokens => Auth::tokens(self.tokens.iter().filter_map(|token| {
                Some(Token {
                    name: token.name.clone(),
                    hash: parse_hash(&token.sha256)?,
                    role: match token.role {
                        RoleName::Read => Role::Read,
                        RoleName::Write => Role::Write,
                        RoleName::Admin => Role::Admin,
                    },
                    namespaces: token.namespaces.clone(),
                })
            })),
        }
    }

    /// Returns the addresses that are set, with their keys.
    pub fn addresses(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("listen", &self.listen),
            ("consul_listen", &self.consul_listen),
            ("eureka_listen", &self.eureka_listen),
            (NACOS_LISTEN, &self.nacos_listen),
            ("xds_listen", &self.xds_listen),
        ]
        .into_iter()
        .filter(|(_, address)| !address.is_empty())
        .map(|(key, address)| (key, address.as_str()))
    }
}

/// Parses 64 hexadecimal digits.
pub fn parse_hash(text: &str) -> Option<TokenHash> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = TokenHash::default();
    for (index, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(hash)
}
