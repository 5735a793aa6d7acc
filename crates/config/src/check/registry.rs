//! Checks of `[registry]`.

use ::registry::api::parse_hash;
use ::registry::{DefaultPolicy, OpenError, PeerTlsMode};

use super::findings::Findings;
use crate::Config;
use crate::registry::{AuthMethod, NACOS_GRPC, NACOS_LISTEN};
use process::address::{Host, parse_address};

pub(super) fn check(config: &Config, findings: &mut Findings) {
    let registry = &config.registry;
    // A file without settings of a registry needs no tokens.
    let spoken = *registry != crate::registry::RegistryConfig::default();
    for (key, address) in registry.addresses() {
        let path = format!("registry.{key}");
        match parse_address(address, true) {
            Err(why) => findings.error(path, why.replace(", [v6]:port, or the absolute path of a Unix socket", "")),
            Ok(Host::Unix) => findings.error(path, format!("found the path {address:?}, expected host:port")),
            Ok(host) if registry.auth == AuthMethod::None && !host.is_local() => findings.error(
                path,
                format!(
                    "found {address:?} with auth = \"none\": anybody who reaches it could change everything; expected a \
                     loopback address, or auth = \"tokens\""
                ),
            ),
            Ok(host) => {
                if registry.auth == AuthMethod::Acl
                    && registry.acl.default_policy == DefaultPolicy::Allow
                    && !host.is_local()
                {
                    findings.warn(
                        path,
                        "other machines can reach it, and registry.acl.default_policy is \"allow\": whoever does may change everything but tokens and policies without a token",
                    );
                }
                nacos(key, address, findings);
            }
        }
    }
    for (index, host) in registry.hosts.iter().enumerate() {
        let address = host.parse::<std::net::IpAddr>().is_ok();
        if host.is_empty() || !(address || host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))) {
            findings.error(
                format!("registry.hosts[{index}]"),
                format!("found {host:?}, expected a host name without a port"),
            );
        }
    }
    dns(config, findings);
    eureka(config, findings);
    secure(config, findings);
    between_nodes(config, findings);
    if registry.listen.is_empty() {
        findings.error("registry.listen", "found \"\", expected host:port");
    }
    if !registry.peer_listen.is_empty() {
        match parse_address(&registry.peer_listen, true) {
            Ok(Host::Unix) | Err(_) => {
                findings.error("registry.peer_listen", format!("found {:?}, expected host:port", registry.peer_listen))
            }
            Ok(_) => {}
        }
    }
    if registry.peer_advertise.contains(char::is_whitespace) || registry.peer_advertise.contains('/') {
        let found = &registry.peer_advertise;
        findings.error("registry.peer_advertise", format!("found {found:?}, expected host or host:port"));
    }
    let store = &registry.store.0;
    let known = ["sqlite:", "postgres://", "postgresql://", "mysql://", "tikv://"];
    if !known.iter().any(|kind| store.starts_with(kind) && store.len() > kind.len()) {
        findings
            .error("registry.store", "found another kind, expected sqlite:FILE, postgres://…, mysql://… or tikv://…");
    }
    if store.starts_with("sqlite::memory:") || store.starts_with("sqlite:file:") {
        findings.error(
            "registry.store",
            "found a database in memory, or a URI; expected sqlite:FILE, with the file's path",
        );
    }
    let most = ::registry::store::TIKV_MOST_VALUE;
    let sizes = [
        ("registry.kv.value_bytes", registry.kv.value_bytes),
        ("registry.config.content_bytes", registry.config.content_bytes),
    ];
    for (key, found) in sizes {
        if store.starts_with("tikv://") && found > most {
            findings.error(key, format!("found {found}, in TiKV at most {most}"));
        }
    }
    if registry.node.is_empty() {
        findings.error("registry.node", "found \"\", expected a name");
    }
    if spoken && registry.auth == AuthMethod::Tokens && registry.tokens.is_empty() {
        findings.error(
            "registry.tokens",
            "found none, expected at least one [[registry.tokens]], for auth is \"tokens\"; `kingpost registry token` makes one",
        );
    }
    findings.unique("registry.tokens", ".name", registry.tokens.iter().map(|token| token.name.as_str()));
    for (index, token) in registry.tokens.iter().enumerate() {
        if parse_hash(&token.sha256).is_none() {
            findings.error(
                format!("registry.tokens[{index}].sha256"),
                "expected 64 hexadecimal digits, as `kingpost registry token` prints them",
            );
        }
        if token.namespaces.is_empty() {
            findings.error(
                format!("registry.tokens[{index}].namespaces"),
                "found none, expected names of namespaces, or \"*\" for all",
            );
        }
    }
}

/// Checks that the second port of Nacos' address is a valid one.
fn nacos(key: &str, address: &str, findings: &mut Findings) {
    let most = u16::MAX - NACOS_GRPC;
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    if key == NACOS_LISTEN && !port.is_some_and(|port| (1..=most).contains(&port)) {
        let expected = format!("expected a port from 1 to {most}: gRPC is served {NACOS_GRPC} above it");
        findings.error(format!("registry.{key}"), format!("found {address:?}, {expected}"));
    }
}

fn dns(config: &Config, findings: &mut Findings) {
    let dns = &config.registry.dns;
    if !dns.listen.is_empty() {
        match parse_address(&dns.listen, true) {
            Err(why) => findings.error("registry.dns.listen", why.replace(", [v6]:port, or the absolute path of a Unix socket", "")),
            Ok(Host::Unix) => {
                findings.error("registry.dns.listen", format!("found the path {:?}, expected host:port", dns.listen));
            }
            Ok(host) if !dns.allow_remote && !host.is_local() => findings.error(
                "registry.dns.listen",
                format!(
                    "found {:?}: DNS has no login, everybody who reaches it reads the namespaces of registry.dns.namespaces; expected \
                     a loopback address, or allow_remote = true",
                    dns.listen
                ),
            ),
            Ok(_) => {}
        }
    }
    let is_label = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let domain = dns.domain.trim_end_matches('.');
    // A name of 253 bytes needs room for the labels before the domain.
    if domain.len() > 100 || !domain.split('.').all(is_label) {
        findings.error(
            "registry.dns.domain",
            format!("found {:?}, expected a domain of at most 100 characters such as \"consul\"", dns.domain),
        );
    }
    if dns.namespaces.is_empty() {
        findings.error("registry.dns.namespaces", "found none, expected at least one, such as \"default\"");
    }
    for (index, name) in dns.namespaces.iter().enumerate() {
        if let Err(why) = registry::NamespaceName::new(name) {
            findings.error(format!("registry.dns.namespaces[{index}]"), why.to_string());
        }
    }
}

/// Checks Eureka's own servers.
fn eureka(config: &Config, findings: &mut Findings) {
    let eureka = &config.registry.eureka;
    if let Err(why) = registry::NamespaceName::new(&eureka.namespace) {
        findings.error("registry.eureka.namespace", why.to_string());
    }
    // A text that is no URL is not shown: it may have a password.
    if eureka.servers.iter().all(|server| server.place().is_some()) {
        findings.unique("registry.eureka.servers", ".url", eureka.servers.iter().map(|server| server.url.as_str()));
    }
    for (index, server) in eureka.servers.iter().enumerate() {
        let key = |name: &str| format!("registry.eureka.servers[{index}].{name}");
        match server.place() {
            None => findings.error(
                key("url"),
                "expected http://host:port/eureka or https://host:port/eureka, without user and password: they have settings of their own",
            ),
            Some((false, address, _)) if server.user.is_some() && !process::address::is_loopback(address) => {
                findings.warn(key("url"), "the password crosses the network in clear; https:// hides it");
            }
            Some(_) => {}
        }
        match (server.user.is_none(), server.password_file.is_none()) {
            (true, false) => findings.error(key("user"), "found none, expected the user of password_file"),
            (false, true) => {
                findings.error(key("password_file"), "found none, expected the file with the user's password")
            }
            _ => {}
        }
    }
}

/// Checks the TLS between the nodes.
fn between_nodes(config: &Config, findings: &mut Findings) {
    let registry = &config.registry;
    let tls = &registry.peer_tls;
    if let Err(OpenError::PeerTls { setting, reason }) = tls.check() {
        findings.error(format!("registry.peer_tls.{setting}"), reason);
    }
    if tls.mode == PeerTlsMode::Require {
        return;
    }
    if [&tls.cert_file, &tls.key_file, &tls.ca_file].into_iter().any(Option::is_some) {
        findings.warn("registry.peer_tls.mode", "is \"disable\": cert_file, key_file and ca_file are not used");
    }
    // Without peer_listen the nodes use the address of `listen`. On SQLite there are no nodes on other machines.
    let (key, address) = match registry.peer_listen.as_str() {
        "" => ("listen", &registry.listen),
        _ => ("peer_listen", &registry.peer_listen),
    };
    let shared = ["postgres://", "postgresql://", "mysql://", "tikv://"];
    if shared.iter().any(|kind| registry.store.0.starts_with(kind))
        && parse_address(address, true).is_ok_and(|host| !host.is_local())
    {
        findings.warn(
            format!("registry.{key}"),
            "what nodes on one store tell each other is authenticated, and crosses the network in clear; [registry.peer_tls] with mode = \"require\" hides it",
        );
    }
}

fn secure(config: &Config, findings: &mut Findings) {
    let registry = &config.registry;
    let tls = &registry.tls;
    match tls::Acceptor::new(tls) {
        Err(error) => findings.error(format!("registry.tls.{}", error.setting()), error.to_string()),
        Ok(_) if tls.client_cert == tls::ClientCert::VerifyFull => findings.error(
            "registry.tls.client_cert",
            "found \"verify-full\": certificates have no user to be compared with here; expected \"none\", \"optional\" or \"verify-ca\"",
        ),
        Ok(_) => {}
    }
    let off = tls.mode == tls::ListenMode::Disable;
    if off && (tls.cert_file.is_some() || tls.key_file.is_some()) {
        findings.warn("registry.tls.mode", "is \"disable\": cert_file and key_file are not used");
    }
    if tls.mode != tls::ListenMode::Require && registry.auth != AuthMethod::None {
        for (key, address) in registry.addresses() {
            if parse_address(address, true).is_ok_and(|host| !host.is_local()) {
                findings.warn(
                    format!("registry.{key}"),
                    "other machines can reach it without TLS: tokens may cross the network in clear; [registry.tls] with mode = \"require\" keeps them",
                );
            }
        }
    }
}
