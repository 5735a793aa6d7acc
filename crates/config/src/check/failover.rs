//! Checks of `[failover]`.

use std::path::Path;

use super::findings::{Findings, Stat};
use super::password::{self, Password};
use crate::Config;
use crate::failover::{FailoverConfig, PartConfig, RelayPartConfig};
use crate::node::NodeAgentConfig;
use process::address::parse_address;

pub(super) fn check(config: &Config, stat: &dyn Fn(&Path) -> Stat, findings: &mut Findings) {
    let failover = &config.failover;
    if *failover == FailoverConfig::default() {
        return;
    }
    // An agent logs in as the same user, and its server is a node.
    let has_agent = config.node != NodeAgentConfig::default();
    if config.cluster.nodes.is_empty() && config.cluster.from.urls.is_empty() && !has_agent {
        findings.error("failover", "found no [[cluster.nodes]]: there is nothing to fail over to");
    }
    let (in_place, file) = (failover.password.is_some(), failover.password_file.as_deref());
    Password { in_place, file, ..Password::default() }.check("failover", stat, findings);
    let (in_place, file) = (failover.replication_password.is_some(), failover.replication_password_file.as_deref());
    Password { prefix: "replication_", in_place, file, ..Password::default() }.check("failover", stat, findings);
    if let Err(error) = tls::Connector::new(&failover.tls) {
        findings.error(format!("failover.tls.{}", error.setting()), error.to_string());
    }
    if let Err((key, why)) = failover.etcd.check() {
        findings.error(format!("failover.etcd.{key}"), why);
    }
    if let Some(file) = &failover.etcd.password_file {
        password::check_file(file, "failover.etcd.password_file".into(), stat, findings);
    }
    if !failover.relays.is_empty() && failover.acknowledgements > failover.relays.len() {
        findings.error(
            "failover.acknowledgements",
            format!(
                "found {}, expected at most the number of relays ({})",
                failover.acknowledgements,
                failover.relays.len()
            ),
        );
    }
    let relays = failover.relays.len();
    let waits = failover.acknowledgements;
    if relays > 1 && crate::failover::needed(relays, waits) >= relays {
        findings.warn(
            "failover.acknowledgements",
            format!(
                "found {waits}, with {relays} relays: a failover needs all of them, so that with one lost nothing can be failed over; with 3 \
                 relays and 2 acknowledgements one may be lost at any time"
            ),
        );
    }
    if relays > 0 {
        check_gates(config, findings);
    }
    let relays: Vec<PartConfig> = failover.relays.iter().map(RelayPartConfig::part).collect();
    for (list, parts) in [("failover.relays", &relays), ("failover.proxies", &failover.proxies)] {
        findings.unique(list, ".name", parts.iter().map(|part| part.name.as_str()));
        findings.unique(list, ".address", parts.iter().map(|part| part.address.as_str()));
        for (index, part) in parts.iter().enumerate() {
            let path = format!("{list}[{index}]");
            if let Err(why) = parse_address(&part.address, false) {
                findings.error(format!("{path}.address"), why);
            }
            let (in_place, file) = (part.password.is_some(), part.password_file.as_deref());
            Password { in_place, file, ..Password::default() }.check(&path, stat, findings);
        }
    }
}

/// Checks that the proxy of the same file waits for as many relays as a failover relies on.
fn check_gates(config: &Config, findings: &mut Findings) {
    let counted = config.failover.acknowledgements;
    let (proxy, too_few) = (&config.proxy, |relays: usize| relays > 0 && relays < counted);
    let databases = proxy.databases.iter().enumerate().filter_map(|(index, database)| {
        Some((format!("proxy.databases[{index}].commit_durability"), database.commit_durability?))
    });
    let users =
        proxy.users.iter().enumerate().filter_map(|(index, user)| {
            Some((format!("proxy.users[{index}].commit_durability"), user.commit_durability?))
        });
    let general = ("proxy.gate.commit_durability".to_owned(), proxy.gate.commit_durability);
    for (path, durability) in std::iter::once(general).chain(databases).chain(users) {
        if too_few(durability.relays()) {
            findings.warn(
                path,
                format!(
                    "found {:?}, and failover.acknowledgements is {counted}: a commit could be lost at a failover that fewer relays have; \
                     expected as many",
                    String::from(durability)
                ),
            );
        }
    }
}
