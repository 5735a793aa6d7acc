//! `[registry]` of the configuration.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ::registry::api::{Auth, HttpLimits, RateLimit, Role, Token, parse_hash};
use ::registry::{
    AclLimits, ConfigLimits, DefaultPolicy, HealthSettings, KvLimits, Limits, NamespaceName, PeerSettings, PeerTls,
    RuleLimits, Settings, dns,
};
use ::settings::{Kind, Setting};
use serde::{Deserializer, Serializer};

/// Distance from the port of `nacos_listen` to the one at which Nacos' clients expect gRPC.
pub const NACOS_GRPC: u16 = 1000;
/// Key of the address of Nacos' API.
pub const NACOS_LISTEN: &str = "nacos_listen";

::settings::settings! {
    /// `[registry]`.
    #[derive(Debug, Clone, PartialEq)]
    pub struct RegistryConfig: Default {
        /// Address of all APIs: the registry's own, Consul's, Eureka's and Prometheus' service discovery.
        pub listen: String = "127.0.0.1:8632".into();
        /// Address of Consul's API alone (its clients expect 127.0.0.1:8500); "" for none.
        pub consul_listen: String = String::new();
        /// Address of Eureka's API alone; "" for none.
        pub eureka_listen: String = String::new();
        /// Address of Nacos' API alone (its clients expect port 8848): HTTP here, gRPC at the port 1000 above; "" for HTTP on `listen` only.
        pub nacos_listen: String = String::new();
        /// Address of xDS alone, for Envoy and gRPC; "" for none.
        pub xds_listen: String = String::new();
        /// Address for other nodes on the same store; "" for the address of `listen` and a port of the system's choosing.
        pub peer_listen: String = String::new();
        /// Address that the other nodes are told instead, host or host:port, if they reach this node by another one.
        pub peer_advertise: String = String::new();
        /// TLS between the nodes on one store; SIGHUP reads the files again.
        pub peer_tls: PeerTls = PeerTls::default();
        /// The registry as a DNS server.
        pub dns: DnsConfig = DnsConfig::default();
        /// TLS on all of its addresses but that of DNS and of the nodes' port; SIGHUP reads the files again.
        pub tls: tls::ListenConfig = tls::ListenConfig::default();
        /// Replication with Eureka's own servers.
        pub eureka: EurekaConfig = EurekaConfig::default();
        /// Limit on the requests of a token, or of an address without one.
        pub rate: RateConfig = RateConfig::default();
        /// Log of all changes.
        pub audit: AuditConfig = AuditConfig::default();
        /// Address of the store: sqlite:FILE, `postgres://user:password@host/database`, `mysql://user:password@host/database`,
        /// `tikv://pd1:2379,pd2:2379/PREFIX`. PostgreSQL's takes ?sslmode=disable|prefer|require|verify-ca|verify-full&sslrootcert=FILE, sslcert and
        /// sslkey, as libpq does (prefer is the default); MySQL's ?ssl-mode=DISABLED|PREFERRED|REQUIRED|VERIFY_CA|VERIFY_IDENTITY&ssl-ca=FILE,
        /// ssl-cert and ssl-key, as MySQL's clients do (PREFERRED is the default).
        pub store: StoreAddress = StoreAddress("sqlite:/var/lib/kingpost/registry.sqlite".into()), hidden();
        /// Name of this node for Consul's clients.
        pub node: String = "kingpost".into();
        /// Method of authentication: "tokens"; "acl": tokens with policies in the store, too, as at Consul; or "none": everybody is let in, only where
        /// every address is loopback.
        pub auth: AuthMethod = AuthMethod::Tokens;
        /// Host names, without ports, by which a registry with auth = "none" may be asked for beside localhost and loopback addresses. A page in a
        /// browser could otherwise reach it by a name of its own.
        pub hosts: Vec<String> = Vec::new();
        /// Most connections.
        pub connections: usize = HttpLimits::default().connections, range(1, 1_000_000);
        /// Most connections from one address, loopback excepted.
        pub connections_per_address: usize = HttpLimits::default().connections_per_address, range(1, 1_000_000);
        /// Most bytes of a request's line and headers.
        pub header_bytes: usize = HttpLimits::default().header_bytes, range(8 << 10, 1 << 20);
        /// Most bytes of a body.
        pub body_bytes: usize = HttpLimits::default().body_bytes, range(1 << 10, 1 << 30);
        /// Longest time from one request to the last header of the next.
        pub header_timeout: Duration = HttpLimits::default().header_timeout;
        /// Longest time from there to the last byte of the body.
        pub body_timeout: Duration = HttpLimits::default().body_timeout;
        /// Longest time that a client may take nothing of an answer.
        pub write_timeout: Duration = HttpLimits::default().write_timeout;
        /// Most requests that wait for a change at a time (blocking queries, event streams). One token, or one address without a token, gets at most
        /// three quarters of them, and less while others wait.
        pub waiting: usize = HttpLimits::default().waiting, range(1, 1_000_000);
        /// Longest time that a request may wait for a change.
        pub wait: Duration = HttpLimits::default().wait;
        /// Most instances, ids or services in one batch.
        pub batch: usize = HttpLimits::default().batch, range(1, 100_000);
        /// Limits on the registry's content; a value beyond one is refused with an error that names the limit.
        pub limits: Limits = Limits::default();
        /// Keys and sessions (Consul's key-value store), for each namespace but where it says otherwise.
        pub kv: KvLimits = KvLimits::default();
        /// PolarisMesh's rules, for each namespace. They count for registry.kv.total_bytes, too.
        pub rules: RuleLimits = RuleLimits::default();
        /// Tokens and policies in the store, managed through Consul's API, for auth = "acl".
        pub acl: AclLimits = AclLimits::default();
        /// Configuration entries, for each namespace. They count for registry.kv.total_bytes, too.
        pub config: ConfigLimits = ConfigLimits::default();
        /// Judging of instances: heartbeats and probes.
        pub health: HealthSettings = HealthSettings::default();
        /// Tokens and their permissions; `kingpost registry token NAME` makes one.
        pub tokens: Vec<TokenConfig> = Vec::new(), shown_table();
    }
}

/// Address of a store. `Debug` shows its kind only: it may hold a password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreAddress(pub String);

impl Setting for StoreAddress {
    const KIND: Kind = Kind::Secret;

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::read(from).map(StoreAddress)
    }

    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.write(to)
    }

    fn toml(&self) -> Option<String> {
        self.0.toml()
    }
}

impl fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.0.split(':').next().unwrap_or_default();
        write!(f, "StoreAddress({kind}:…)")
    }
}

::settings::settings! {
    /// Method of authentication.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum AuthMethod {
        /// Accepts everybody, on loopback addresses only.
        None = "none",
        /// Accepts holders of a token.
        Tokens = "tokens",
        /// Accepts holders of a token here or in the store; all others have the rights of the anonymous token.
        Acl = "acl",
    }
}

::settings::settings! {
    /// `[[registry.tokens]]`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct TokenConfig {
        /// Name, for logs.
        pub name: String, shown(r#""app""#);
        /// SHA-256 of the token, in hexadecimal: the token itself is nowhere in here.
        pub sha256: String, hidden(), shown(r#""0000000000000000000000000000000000000000000000000000000000000000""#);
        /// Role: "read" discovers, "write" also registers, "admin" also changes services.
        pub role: RoleName, shown(r#""write""#);
        /// Namespaces of the token, by name; "*" stands for all, and is the default.
        pub namespaces: Vec<String> = vec!["*".into()], shown(r#"["default"]"#);
    }
}

::settings::settings! {
    /// `[registry.eureka]`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct EurekaConfig: Default {
        /// Namespace whose instances are replicated.
        pub namespace: String = "default".into();
        /// Eureka's own servers, which this node tells the changes that Eureka's clients make here. Each of them names this node among its
        /// service URLs, and so tells what its own clients change. All nodes on one store have the same servers, and none has another node.
        pub servers: Vec<EurekaServerConfig> = Vec::new();
    }
}

::settings::settings! {
    /// `[[registry.eureka.servers]]`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct EurekaServerConfig {
        /// Address with the path of the server's API, without a password.
        pub url: String, shown(r#""https://eureka-1:8761/eureka""#);
        /// User of basic authentication.
        pub user: Option<String> = None, example(r#""eureka""#);
        /// File whose first line is the user's password.
        pub password_file: Option<PathBuf> = None, example(r#""/etc/kingpost/eureka.password""#);
        /// CAs of the server's certificate, PEM, for https://; not set: the system's.
        pub ca_file: Option<PathBuf> = None, example(r#""/etc/kingpost/eureka-ca.crt""#);
    }
}

impl EurekaServerConfig {
    /// Splits the URL: true for HTTPS, `host:port`, and the path without a slash at its end. None for another text.
    pub fn place(&self) -> Option<(bool, &str, &str)> {
        let (scheme, rest) = self.url.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"))?;
        let end = self.url.len() - rest.len() + rest.find('/').unwrap_or(rest.len());
        let (is_secure, address) = process::address::of_url(&self.url[..end])?;
        let path = self.url[end..].trim_end_matches('/');
        let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '?' | '#' | '@');
        (scheme == if is_secure { "https" } else { "http" }
            && address.chars().all(is_plain)
            && path.chars().all(is_plain))
        .then_some((is_secure, address, path))
    }
}

::settings::settings! {
    /// `[registry.rate]`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct RateConfig: Default {
        /// Requests a second in the long run; 0: any number.
        pub per_second: u32 = 0, range(0, 1_000_000);
        /// Requests at once.
        pub burst: u32 = 1000, range(1, 1_000_000);
    }
}

::settings::settings! {
    /// `[registry.audit]`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct AuditConfig: Default {
        /// File of JSON lines; "" for none.
        pub file: String = String::new();
        /// Length at which the file is put aside as FILE.1.
        pub max_bytes: u64 = 64 << 20, range(1 << 16, 1 << 40);
    }
}

::settings::settings! {
    /// `[registry.dns]`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct DnsConfig: Default {
        /// Address, UDP and TCP, host:port (Consul's is 127.0.0.1:8600); "" for none.
        pub listen: String = String::new();
        /// True if other machines may reach that address: there is no login.
        pub allow_remote: bool = false;
        /// Domain of all names: web.service.consul.
        pub domain: String = "consul".into();
        /// Time for which an answer may be kept, also one that there is none.
        pub ttl: Duration = Duration::ZERO, or_never();
        /// The namespaces that can be seen; names without a namespace are looked for in the first.
        pub namespaces: Vec<String> = vec!["default".into()];
        /// Most answers a second in datagrams to one network of other machines (/24, of IPv6 /56); 0: any number. What is beyond is referred to TCP,
        /// or gets no answer: the address of a datagram may be forged.
        pub per_second: u32 = dns::Limits::default().per_second, range(0, 1_000_000);
        /// Longest answer in a datagram to another machine, in bytes, if the client accepts it (EDNS); 0: four times its question, at most 1232. A
        /// larger value is for networks in which addresses cannot be forged; beyond 1232 a datagram may be sent in fragments.
        pub foreign_datagram: usize = dns::Limits::default().foreign_datagram, range(0, 65_000);
        /// Most TCP connections.
        pub connections: usize = dns::Limits::default().connections, range(1, 100_000);
        /// Longest idle time of a TCP connection.
        pub idle_timeout: Duration = dns::Limits::default().idle;
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
            foreign_datagram: self.foreign_datagram,
            ..dns::Limits::default()
        }
    }
}

::settings::settings! {
    /// Name of a role.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RoleName {
        /// May discover and watch.
        Read = "read",
        /// May register, send heartbeats, change and remove instances.
        Write = "write",
        /// May change and remove services, too.
        Admin = "admin",
    }
}

impl RegistryConfig {
    /// Returns the settings of the core; `peers`: its address for other nodes.
    pub fn settings(&self, peers: SocketAddr) -> Settings {
        let peers = PeerSettings { listen: peers, advertise: self.peer_advertise.clone(), tls: self.peer_tls.clone() };
        let (limits, kv, rules) = (self.limits.clone(), self.kv.clone(), self.rules.clone());
        let (acl, config) = (self.acl.clone(), self.config.clone());
        Settings { limits, kv, rules, acl, config, health: self.health.clone(), peers, ..Settings::default() }
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
            AuthMethod::Tokens => Auth::tokens(self.given()),
            AuthMethod::Acl => Auth::acl(self.given(), self.acl.default_policy == DefaultPolicy::Allow),
        }
    }

    /// Returns the configured tokens.
    fn given(&self) -> impl Iterator<Item = Token> {
        self.tokens.iter().filter_map(|token| {
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
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_eureka_servers() {
        for (url, expected) in [
            ("http://eureka-1:8761/eureka", Some((false, "eureka-1:8761", "/eureka"))),
            ("https://eureka-1:8761/eureka/v2/", Some((true, "eureka-1:8761", "/eureka/v2"))),
            ("http://[::1]:8761", Some((false, "[::1]:8761", ""))),
            ("http://eureka-1/eureka", None),
            ("eureka-1:8761/eureka", None),
            ("http://user:secret@eureka-1:8761/eureka", None),
            ("http://eureka-1:8761/eureka?x=1", None),
            ("http://eureka-1:8761/a b", None),
            ("", None),
        ] {
            let server = EurekaServerConfig { url: url.into(), user: None, password_file: None, ca_file: None };
            assert_eq!(server.place(), expected, "{url}");
        }
    }
}
