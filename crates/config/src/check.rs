//! Checks of the values together. Pure but for `stat`, which looks at password files, and for the files of TLS and of login rules, which are read as
//! the parts themselves read them.

mod auth;
mod cluster;
mod failover;
mod findings;
mod operation;
mod password;
mod registry;
mod rules;

use std::collections::HashMap;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

mod relay;
mod scale;
mod strong;

use super::Config;
use findings::{Finding, Findings};
pub use findings::{Stat, stat_file};
use password::Password;
use process::address::{Host, parse_address};
use proxy::config::{AuthMethod, AuthQueryConfig, ProxyConfig, UserConfig};
use proxy::secrets::Given;
use wire::md5;

/// The auth_query of PgBouncer from 1.24.1 on: it lets in no role that has expired or may not log in (CVE-2025-2291).
pub const SAFE_QUERY: &str = "SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END FROM pg_authid WHERE rolname=$1 AND rolcanlogin";

/// Returns all errors and warnings of a configuration with correct keys and types.
pub(crate) fn check(config: &Config, stat: &dyn Fn(&Path) -> Stat) -> Vec<Finding> {
    let mut findings = Findings::default();
    // A file for a relay, a registry or failovers only needs no settings of a proxy.
    let proxy = !config.needs_no_proxy() && !config.is_registry_only();
    let lists_nodes =
        !config.cluster.nodes.is_empty() || !config.cluster.from.urls.is_empty() || !config.clusters.is_empty();
    if proxy || lists_nodes {
        cluster::check(config, stat, &mut findings);
    }
    if proxy {
        check_listen(&config.proxy, &mut findings);
        check_peers(&config.proxy, &mut findings);
        check_traffic(&config.proxy, &mut findings);
        check_databases(&config.proxy, stat, &mut findings);
        let access = rules::Access::of(&config.proxy);
        check_users(&config.proxy, access.proves_otherwise(), stat, &mut findings);
        access.check(&config.proxy, &mut findings);
        auth::check(&config.proxy, &mut findings);
        check_auth_query(&config.proxy.auth_query, stat, &mut findings);
        check_routing(&config.proxy, &mut findings);
        operation::check(&config.proxy, &mut findings);
        cluster::check_gates(config, &mut findings);
        check_tls(config, &mut findings);
    } else if lists_nodes {
        check_tls(config, &mut findings);
    }
    relay::check(&config.relay, stat, &mut findings);
    relay::check_backup_source(config, &mut findings);
    failover::check(config, stat, &mut findings);
    scale::check(config, &mut findings);
    strong::check(config, &mut findings);
    registry::check(config, &mut findings);
    check_console(config, &mut findings);
    check_metrics(config, &mut findings);
    if tracing_subscriber::EnvFilter::try_new(&config.log.level).is_err() {
        let found = &config.log.level;
        findings
            .error("log.level", format!("found {found:?}, expected a level such as info, or a list of target=level"));
    }
    findings.0
}

fn check_listen(proxy: &ProxyConfig, findings: &mut Findings) {
    if proxy.listen.is_empty() {
        findings.error("proxy.listen", "found no address, expected at least one");
    }
    // If there are rules, they decide instead.
    let trust = proxy.auth == AuthMethod::Trust && proxy.hba.is_empty() && proxy.hba_file.is_none();
    // Port 0 may occur more than once: each gets a port of its own.
    let fixed = |address: &str| !address.ends_with(":0");
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for (index, listen) in proxy.listen.iter().enumerate() {
        let path = format!("proxy.listen[{index}]");
        let address = listen.address.as_str();
        if let Some(first) = seen.insert(address, index).filter(|_| fixed(address)) {
            findings.error(&*path, format!("found {address:?}, which proxy.listen[{first}] has already"));
        }
        match parse_address(address, true) {
            Err(why) => findings.error(path, why),
            Ok(host) if trust && !host.is_local() => findings.error(
                path,
                format!(
                    "found {address:?} with auth = \"trust\": anybody who reaches it would be let in; expected a \
                     loopback address or a Unix socket, or auth = \"scram-sha-256\""
                ),
            ),
            Ok(_) => {}
        }
    }
}

fn check_peers(proxy: &ProxyConfig, findings: &mut Findings) {
    let mut seen = HashMap::from([(proxy.peer_id, "proxy.peer_id".to_owned())]);
    if proxy.peer_id == 0 && !proxy.peers.is_empty() {
        findings.error("proxy.peer_id", "found 0 beside [[proxy.peers]], expected a number of its own from 1 to 31");
    }
    for (index, peer) in proxy.peers.iter().enumerate() {
        let path = format!("proxy.peers[{index}].id");
        if let Some(first) = seen.insert(peer.id, path.clone()) {
            findings.error(path, format!("found {}, which {first} has already", peer.id));
        }
        if !peer.address.starts_with('/') && peer.address.parse::<std::net::SocketAddr>().is_err() {
            let found = format!("found {:?}, expected ip:port or the absolute path of a Unix socket", peer.address);
            findings.error(format!("proxy.peers[{index}].address"), found);
        }
    }
}

fn check_traffic(proxy: &ProxyConfig, findings: &mut Findings) {
    let names = proxy.traffic.iter().map(|of| (of.cluster.as_deref(), of.name.as_str()));
    findings.unique_by_cluster("proxy.traffic", names);
    for (index, entry) in proxy.traffic.iter().enumerate() {
        if let Err(error) = entry.rule() {
            findings.error(format!("proxy.traffic[{index}]"), error.to_string());
        }
    }
}

fn check_databases(proxy: &ProxyConfig, stat: &dyn Fn(&Path) -> Stat, findings: &mut Findings) {
    let names = proxy.databases.iter().map(|of| (of.cluster.as_deref(), of.name.as_str()));
    findings.unique_by_cluster("proxy.databases", names);
    for (index, database) in proxy.databases.iter().enumerate() {
        let path = format!("proxy.databases[{index}].dbname");
        match database.dbname.as_deref() {
            Some("") => findings.error(path, "found \"\", expected the name of a database"),
            Some("*") => findings.error(path, "found \"*\", expected the name of a database"),
            _ => {}
        }
        let path = |key: &str| format!("proxy.databases[{index}].{key}");
        let password = Password {
            named: "",
            prefix: "server_",
            in_place: database.server_password.is_some(),
            file: database.server_password_file.as_deref(),
            command: &database.server_password_command,
            verifier: false,
        };
        match database.server_user.as_deref() {
            Some("") => findings.error(path("server_user"), "found \"\", expected the name of a user"),
            None if password.is_given() => {
                findings.error(path("server_user"), "missing, expected the user whose password is given");
            }
            None if database.set_role => {
                findings.error(
                    path("set_role"),
                    "found true without server_user: each client's own user logs in, who is that role",
                );
            }
            _ => {}
        }
        password.check(&format!("proxy.databases[{index}]"), stat, findings);
    }
}

/// `by_rule`: some rule accepts clients whose secret the proxy does not know.
fn check_users(proxy: &ProxyConfig, by_rule: bool, stat: &dyn Fn(&Path) -> Stat, findings: &mut Findings) {
    let looks_up = proxy.auth_query.is_on();
    if proxy.auth != AuthMethod::Trust && proxy.users.is_empty() && !looks_up {
        let proof = if proxy.auth.proves_otherwise() { "" } else { " with a password" };
        let auth = proxy.auth.name();
        findings.error(
            "proxy.users",
            format!("found no user, expected at least one [[proxy.users]]{proof}, for auth is {auth:?}"),
        );
    }
    findings.unique_by_cluster("proxy.users", proxy.users.iter().map(|of| (of.cluster.as_deref(), of.name.as_str())));
    for (index, user) in proxy.users.iter().enumerate() {
        let auth = user.auth.unwrap_or(proxy.auth);
        check_user(user, &format!("proxy.users[{index}]"), auth, looks_up || by_rule, stat, findings);
    }
    findings.unique("proxy.operators", ".name", proxy.operators.iter().map(|operator| operator.name.as_str()));
    for (index, operator) in proxy.operators.iter().enumerate() {
        let (user, path) = (operator.as_user(), format!("proxy.operators[{index}]"));
        check_user(&user, &path, operator.auth.unwrap_or(proxy.auth), false, stat, findings);
    }
}

/// `looks_up`: a user without a secret gets it from `auth_query`, or logs in by a rule that needs none.
fn check_user(
    user: &UserConfig,
    path: &str,
    auth: AuthMethod,
    looks_up: bool,
    stat: &dyn Fn(&Path) -> Stat,
    findings: &mut Findings,
) {
    let password = Password {
        in_place: user.password.is_some(),
        file: user.password_file.as_deref(),
        command: &user.password_command,
        verifier: user.verifier.is_some(),
        ..Password::default()
    };
    password.check(path, stat, findings);
    if !password.is_given()
        && user.secrets.is_empty()
        && !looks_up
        && matches!(auth, AuthMethod::ScramSha256 | AuthMethod::Md5)
    {
        let auth = auth.name();
        findings.error(
            path,
            format!("found no password, expected one of password, password_file, verifier, for auth is {auth:?}"),
        );
    }
    if user.password.as_deref() == Some("") {
        findings.error(format!("{path}.password"), "found an empty string, expected a password");
    }
    let verifier = user.verifier.as_deref();
    if verifier.and_then(md5::Verifier::parse).is_some() {
        if auth == AuthMethod::ScramSha256 {
            findings.error(
                format!("{path}.verifier"),
                "found one of MD5, which nobody can log in with by auth \"scram-sha-256\"; expected auth = \"md5\", or a \
                 verifier SCRAM-SHA-256$…",
            );
        }
    } else if let Some(why) = verifier.and_then(|verifier| verifier_error(verifier).err()) {
        findings.error(
            format!("{path}.verifier"),
            format!("{why}; expected SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key> or md5<hash> as in pg_authid"),
        );
        return;
    }
    let md5_only = |secret: &proxy::config::Secret| md5::Verifier::parse(secret.expose()).is_some();
    if auth == AuthMethod::ScramSha256 && user.secrets.iter().any(md5_only) {
        findings.error(
            format!("{path}.secrets"),
            "found an MD5 verifier, which nobody can log in with by auth \"scram-sha-256\"; expected passwords or verifiers SCRAM-SHA-256$…",
        );
    }
    // The password in a file is not checked here: it is compatible with all others.
    let together = Given { password: None, verifier, others: &user.secrets };
    if let (false, Err(why)) = (user.secrets.is_empty(), together.check()) {
        findings.error(format!("{path}.secrets"), why.to_string());
    }
}

fn check_auth_query(query: &AuthQueryConfig, stat: &dyn Fn(&Path) -> Stat, findings: &mut Findings) {
    let of = "proxy.auth_query";
    if !query.is_on() {
        if *query != AuthQueryConfig::default() {
            findings.error(format!("{of}.query"), format!("missing, expected a query such as {:?}", SAFE_QUERY));
        }
        return;
    }
    if query.query.to_ascii_lowercase().contains("pg_shadow") && !query.query.to_ascii_lowercase().contains("valuntil")
    {
        findings.warn(
            format!("{of}.query"),
            format!(
                "lets in roles that have expired, for pg_shadow has their passwords, too; better is {:?}",
                SAFE_QUERY
            ),
        );
    }
    if !query.query.contains("$1") {
        findings.error(format!("{of}.query"), "found no $1, expected it where the user's name is compared");
    }
    let password = Password {
        in_place: query.password.is_some(),
        file: query.password_file.as_deref(),
        command: &query.password_command,
        ..Password::default()
    };
    password.check(of, stat, findings);
    if query.user.is_none() && password.is_given() {
        findings.error(format!("{of}.user"), "missing, expected the user whose password is given");
    }
}

fn check_tls(config: &Config, findings: &mut Findings) {
    let clients = &config.proxy.tls;
    if let Err(error) = tls::Acceptor::new(clients) {
        findings.error(format!("proxy.tls.{}", error.setting()), error.to_string());
    }
    if clients.mode == tls::ListenMode::Disable && (clients.cert_file.is_some() || clients.key_file.is_some()) {
        findings.warn("proxy.tls.mode", "is \"disable\": cert_file and key_file are not used");
    }
    if clients.ca_file.is_some() && clients.client_cert == tls::ClientCert::None {
        findings.warn("proxy.tls.client_cert", "is \"none\": ca_file is not used");
    }
    let asks = clients.mode != tls::ListenMode::Disable && clients.client_cert != tls::ClientCert::None;
    let expected =
        "expected [proxy.tls] with a mode other than \"disable\", a ca_file, and a client_cert other than \"none\"";
    if config.proxy.auth == AuthMethod::Cert && !asks {
        findings.error("proxy.auth", format!("found \"cert\", and no client is asked for a certificate; {expected}"));
    }
    for (index, user) in config.proxy.users.iter().enumerate() {
        if user.auth == Some(AuthMethod::Cert) && !asks {
            findings.error(
                format!("proxy.users[{index}].auth"),
                format!("found \"cert\", and no client is asked for a certificate; {expected}"),
            );
        }
    }
}

fn check_routing(proxy: &ProxyConfig, findings: &mut Findings) {
    for (index, name) in proxy.routing.read_functions.iter().enumerate() {
        let parts: Vec<&str> = name.split('.').collect();
        let whole = parts.len() <= 2 && parts.iter().all(|part| !part.is_empty());
        if !whole || name.contains(|c: char| c.is_whitespace() || "()\"".contains(c)) {
            let path = format!("proxy.routing.read_functions[{index}]");
            findings.error(path, format!("found {name:?}, expected a function as name or schema.name"));
        }
    }
}

fn check_console(config: &Config, findings: &mut Findings) {
    let console = &config.console;
    let mut local = true;
    if !console.listen.is_empty() {
        match parse_address(&console.listen, true) {
            Err(why) => findings.error("console.listen", why),
            Ok(Host::Unix) => findings.error("console.listen", "found a path, expected host:port"),
            Ok(host) => local = host.is_local(),
        }
    }
    findings.unique("console.tokens", ".name", console.tokens.iter().map(|token| token.name.as_str()));
    for error in console.check(local) {
        // `unique` has reported empty names.
        if !error.key.ends_with("].name") {
            findings.error(format!("console.{}", error.key), error.message);
        }
    }
    if !local && !console.public_url.starts_with("https://") {
        findings.warn(
            "console.public_url",
            "is not https:// and other machines reach the console: tokens and what is shown cross the network in clear",
        );
    }
}

fn check_metrics(config: &Config, findings: &mut Findings) {
    if config.metrics.profiler_token.as_ref().is_some_and(|token| token.len() < 16) {
        findings.error("metrics.profiler_token", "found fewer than 16 characters, expected a long random text");
    }
    if let Some(collector) = crate::otlp::Collector::of_metrics(&config.metrics.otlp) {
        operation::check_collector(&collector, "metrics.otlp", "the metrics", findings);
    }
    let listen = &config.metrics.listen;
    if listen.is_empty() {
        return;
    }
    match parse_address(listen, true) {
        Err(why) => findings.error("metrics.listen", why),
        Ok(Host::Unix) => {
            findings.error("metrics.listen", format!("found the path {listen:?}, expected host:port"));
        }
        Ok(host) if !host.is_local() && !config.metrics.allow_remote => findings.error(
            "metrics.listen",
            format!(
                "found {listen:?}, which other machines can reach without a login; expected a loopback address, or \
                 metrics.allow_remote = true"
            ),
        ),
        Ok(_) => {}
    }
}

/// Returns the reason why a text is not a SCRAM verifier, without any part of the text.
fn verifier_error(verifier: &str) -> Result<(), &'static str> {
    let rest = verifier.strip_prefix("SCRAM-SHA-256$").ok_or("does not start with SCRAM-SHA-256$")?;
    let (parameters, keys) = rest.split_once('$').ok_or("has no $ before the keys")?;
    let (iterations, salt) = parameters.split_once(':').ok_or("has no : between iterations and salt")?;
    let (stored, server) = keys.split_once(':').ok_or("has no : between the keys")?;
    if !iterations.parse::<u32>().is_ok_and(|iterations| iterations > 0) {
        return Err("has no number of iterations above 0");
    }
    if !STANDARD.decode(salt).is_ok_and(|salt| !salt.is_empty()) {
        return Err("has a salt that is not base64");
    }
    for key in [stored, server] {
        if !STANDARD.decode(key).is_ok_and(|key| key.len() == 32) {
            return Err("has a key that is not 32 bytes in base64");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verifiers() {
        let key = STANDARD.encode([7_u8; 32]);
        let salt = STANDARD.encode([1_u8; 16]);
        let good = format!("SCRAM-SHA-256$4096:{salt}${key}:{key}");
        assert_eq!(verifier_error(&good), Ok(()));
        for bad in [
            "md5aabbccdd".to_owned(),
            format!("SCRAM-SHA-256$0:{salt}${key}:{key}"),
            format!("SCRAM-SHA-256$4096:${key}:{key}"),
            format!("SCRAM-SHA-256$4096:{salt}${key}"),
            format!("SCRAM-SHA-256$4096:{salt}${key}:{salt}"),
            format!("SCRAM-SHA-256$4096:{salt}"),
        ] {
            assert!(verifier_error(&bad).is_err(), "{bad}");
        }
    }
}
