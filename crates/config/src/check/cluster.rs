//! Checks of the clusters, of each one and of all together.

use std::collections::HashMap;
use std::path::Path;

use topology::{ClusterConfig, Positions};

use super::findings::{Findings, Stat};
use super::password::Password;
use crate::Config;
use process::address::{Host, parse_address};

/// Checks each cluster, and the settings that lead clients to it.
pub(super) fn check(config: &Config, stat: &dyn Fn(&Path) -> Stat, findings: &mut Findings) {
    let all = config.all_clusters();
    for (path, cluster) in &all {
        let before = findings.0.len();
        check_one(path, cluster, stat, findings);
        // Errors of the topology that were not found above. The nodes of a registry's list are not known yet.
        let found = findings.0[before..].iter().any(|finding| finding.path.starts_with(path.as_str()));
        if !found
            && cluster.from.urls.is_empty()
            && let Err(error) = cluster.validate()
        {
            findings.error(path, error.to_string());
        }
    }
    let zones: Vec<_> =
        all.iter().flat_map(|(_, cluster)| &cluster.nodes).filter_map(|node| node.zone.as_ref()).collect();
    if let Some(zone) = &config.proxy.zone
        && all.iter().all(|(_, cluster)| cluster.from.urls.is_empty())
        && !zones.contains(&zone)
    {
        findings.warn("proxy.zone", format!("found {zone:?}, which is the zone of no node"));
    }
    check_leads(config, &all, findings);
}

/// Checks the settings that lead clients to one of several clusters.
fn check_leads(config: &Config, all: &[(String, &ClusterConfig)], findings: &mut Findings) {
    let has_tls = config.proxy.tls.mode != tls::ListenMode::Disable;
    let (mut names, mut hosts): (HashMap<&str, &str>, HashMap<String, &str>) = (HashMap::new(), HashMap::new());
    for (path, cluster) in all {
        if let Some(first) = names.insert(&cluster.name, path) {
            let found = format!("found {:?}, which {first} has already; expected a different one", cluster.name);
            findings.error(format!("{path}.name"), found);
        }
        for (at, host) in cluster.server_names.iter().enumerate() {
            let path_of = format!("{path}.server_names[{at}]");
            let bare = host.strip_prefix("*.").unwrap_or(host);
            let is_name = !bare.is_empty()
                && bare.len() <= 253
                && bare.split('.').all(|label| !label.is_empty())
                && bare.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
                && bare.parse::<std::net::IpAddr>().is_err();
            if !is_name {
                findings.error(
                    path_of,
                    format!("found {host:?}, expected a host name such as \"db.example.org\" or \"*.db.example.org\""),
                );
            } else if let Some(first) = hosts.insert(host.to_ascii_lowercase(), path) {
                findings.error(path_of, format!("found {host:?}, which {first} has already; expected a different one"));
            }
        }
        if !cluster.server_names.is_empty() && !has_tls {
            let text = "not used while [proxy.tls] has the mode \"disable\": clients name a host over TLS only";
            findings.warn(format!("{path}.server_names"), text);
        }
    }
    let databases = config.proxy.databases.iter().map(|of| of.cluster.as_deref()).enumerate();
    let users = config.proxy.users.iter().map(|of| of.cluster.as_deref()).enumerate();
    let traffic = config.proxy.traffic.iter().map(|of| of.cluster.as_deref()).enumerate();
    let named = databases.map(|of| ("databases", of)).chain(users.map(|of| ("users", of)));
    let named = named.chain(traffic.map(|of| ("traffic", of)));
    for (list, (at, cluster)) in named {
        let Some(cluster) = cluster.filter(|cluster| !names.contains_key(cluster)) else { continue };
        let known: Vec<String> = all.iter().map(|(_, cluster)| format!("{:?}", cluster.name)).collect();
        let text = format!("found {cluster:?}, expected the name of a cluster: {}", known.join(" or "));
        findings.error(format!("proxy.{list}[{at}].cluster"), text);
    }
    // The first cluster gets all clients that nothing leads elsewhere.
    for (path, cluster) in all.iter().skip(1) {
        let led = config.proxy.databases.iter().any(|of| of.cluster.as_deref() == Some(&cluster.name));
        let by_host = has_tls && !cluster.server_names.is_empty() && config.proxy.databases.is_empty();
        if !led && !by_host {
            let text = format!(
                "nothing leads to the cluster: expected [[proxy.databases]] with cluster = {:?}, or server_names where no database is listed",
                cluster.name
            );
            findings.error(path, text);
        }
    }
}

fn check_one(of: &str, cluster: &ClusterConfig, stat: &dyn Fn(&Path) -> Stat, findings: &mut Findings) {
    let (file, command) = (cluster.password_file.as_deref(), cluster.password_command.as_slice());
    Password { in_place: cluster.password.is_some(), file, command, ..Password::default() }.check(of, stat, findings);
    let (nodes, from) = (&cluster.nodes, &cluster.from);
    if nodes.is_empty() && from.urls.is_empty() {
        findings.error(format!("{of}.nodes"), format!("found no node, expected at least one [[{}.nodes]]", table(of)));
    }
    if !from.urls.is_empty() {
        check_source(of, cluster, findings);
    }
    findings.unique(&format!("{of}.nodes"), ".name", nodes.iter().map(|node| node.name.as_str()));
    findings.unique(&format!("{of}.nodes"), ".address", nodes.iter().map(|node| node.address.as_str()));
    for (index, node) in nodes.iter().enumerate().filter(|(_, node)| !node.address.is_empty()) {
        if let Err(why) = parse_address(&node.address, false) {
            findings.error(format!("{of}.nodes[{index}].address"), why);
        }
    }
    if !nodes.is_empty() && nodes.iter().all(|node| node.weight == 0) {
        findings.warn(format!("{of}.nodes"), "every node has weight 0: no replica will get reads");
    }
    for (key, value, what) in [("user", &cluster.user, "a user"), ("database", &cluster.database, "a database")] {
        if value.is_empty() {
            findings.error(format!("{of}.{key}"), format!("found \"\", expected the name of {what}"));
        }
    }
    if let Err(error) = tls::Connector::new(&cluster.tls) {
        findings.error(format!("{of}.tls.{}", error.setting()), error.to_string());
    }
    let servers = &cluster.tls;
    if servers.mode == tls::ConnectMode::Disable && (servers.ca_file.is_some() || servers.cert_file.is_some()) {
        findings.warn(format!("{of}.tls.mode"), "is \"disable\": ca_file and cert_file are not used");
    }
}

/// Checks `[cluster.from]`.
fn check_source(of: &str, cluster: &ClusterConfig, findings: &mut Findings) {
    let from = &cluster.from;
    if !cluster.nodes.is_empty() {
        findings
            .error(format!("{of}.from"), format!("there are [[{}.nodes]], too: expected one of the two", table(of)));
    }
    for (index, url) in from.urls.iter().enumerate() {
        let key = format!("{of}.from.urls[{index}]");
        match process::http::Remote::new(url, None) {
            Err(_) => findings.error(key, format!("found {url:?}, expected http://host:port or https://host:port")),
            Ok(remote) if from.token.is_some() && !remote.is_private() => {
                findings.warn(key, "the token crosses the network in clear: https:// would hide it");
            }
            Ok(_) => {}
        }
    }
    match &::registry::NamespaceName::new(&from.namespace) {
        Err(error) => findings.error(format!("{of}.from.namespace"), error.to_string()),
        Ok(namespace) => {
            if let Err(error) = ::registry::ServiceKey::new(namespace, &from.service) {
                findings.error(format!("{of}.from.service"), error.to_string());
            }
        }
    }
}

/// Checks that a cluster has at least as many relays as its commits wait for.
pub(super) fn check_gates(config: &Config, findings: &mut Findings) {
    let proxy = &config.proxy;
    for (at, (of, cluster)) in config.all_clusters().into_iter().enumerate() {
        let relays = &cluster.relays;
        findings.unique(&format!("{of}.relays"), ".name", relays.iter().map(|relay| relay.name.as_str()));
        findings.unique(&format!("{of}.relays"), ".address", relays.iter().map(|relay| relay.address.as_str()));
        for (index, relay) in relays.iter().enumerate().filter(|(_, relay)| !relay.address.is_empty()) {
            let path = format!("{of}.relays[{index}].address");
            match parse_address(&relay.address, false) {
                Ok(Host::Unix) => findings.error(path, format!("found {:?}, expected host:port", relay.address)),
                Ok(_) => {}
                Err(why) => findings.error(path, why),
            }
        }
        let without_log = match cluster.positions {
            Positions::Auto | Positions::Wal => None,
            Positions::Transactions => Some("transactions"),
            Positions::None => Some("none"),
        };
        if let (Some(positions), false) = (without_log, relays.is_empty()) {
            findings.warn(
                format!("{of}.relays"),
                format!("with {of}.positions = {positions:?} servers are not asked for their log's positions: no commit can wait for a relay"),
            );
        }
        let leads_here = |name: Option<&str>| name.map_or(at == 0, |name| name == cluster.name);
        let own: Vec<_> =
            proxy.databases.iter().enumerate().filter(|(_, of)| leads_here(of.cluster.as_deref())).collect();
        // The general setting is checked if it applies to some database.
        let general = own.is_empty() || own.iter().any(|(_, database)| database.commit_durability.is_none());
        let general = ("proxy.gate.commit_durability".to_owned(), general.then_some(proxy.gate.commit_durability));
        let databases = own.iter().map(|(index, database)| {
            (format!("proxy.databases[{index}].commit_durability"), database.commit_durability)
        });
        let users = proxy.users.iter().enumerate();
        let users = users.filter(|(_, user)| user.cluster.as_deref().is_none_or(|name| name == cluster.name));
        let users =
            users.map(|(index, user)| (format!("proxy.users[{index}].commit_durability"), user.commit_durability));
        for (path, durability) in std::iter::once(general).chain(databases).chain(users) {
            let Some(durability) = durability.filter(|durability| durability.relays() > 0) else { continue };
            if let Some(positions) = without_log {
                let found = String::from(durability);
                findings.error(
                    path,
                    format!("found {found:?}, and {of}.positions is {positions:?}: a commit would wait in vain; expected \"local\""),
                );
                continue;
            }
            if durability.relays() <= relays.len() {
                continue;
            }
            let (found, table, listed) = (String::from(durability), table(&of), relays.len());
            // With several clusters, the name identifies this one.
            let which =
                if config.clusters.is_empty() { String::new() } else { format!(" of cluster {:?}", cluster.name) };
            findings.error(
                path,
                format!("found {found:?}, and [[{table}.relays]]{which} lists {listed}: expected at least as many relays as must have a commit"),
            );
        }
    }
}

/// Returns the table's name in the file: `clusters` for `clusters[1]`.
fn table(of: &str) -> &str {
    of.split_once('[').map_or(of, |(table, _)| table)
}
