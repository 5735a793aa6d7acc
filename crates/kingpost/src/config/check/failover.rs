//! What the values of `[failover]` mean together.

use std::path::Path;

use super::super::Config;
use super::{Findings, Stat, check_password_file, parse_address};
use crate::failover::config::FailoverConfig;

pub(super) fn check(config: &Config, stat: &dyn Fn(&Path) -> Stat, findings: &mut Findings) {
    let failover = &config.failover;
    if *failover == FailoverConfig::default() {
        return;
    }
    if config.cluster.nodes.is_empty() {
        findings.error("failover", "found no [[cluster.nodes]]: there is nothing to fail over to");
    }
    if failover.password.is_some() && failover.password_file.is_some() {
        findings.error("failover", "found password and password_file, expected at most one of them");
    }
    if let Err(error) = tls::Connector::new(&failover.tls) {
        findings.error(format!("failover.tls.{}", error.setting()), error.to_string());
    }
    if let Some(file) = &failover.password_file {
        check_password_file(file, "failover.password_file".into(), stat, findings);
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
    for (list, parts) in [("failover.relays", &failover.relays), ("failover.proxies", &failover.proxies)] {
        findings.unique(list, ".name", parts.iter().map(|part| part.name.as_str()));
        findings.unique(list, ".address", parts.iter().map(|part| part.address.as_str()));
        for (index, part) in parts.iter().enumerate() {
            let path = format!("{list}[{index}]");
            if let Err(why) = parse_address(&part.address, false) {
                findings.error(format!("{path}.address"), why);
            }
            if part.password.is_some() && part.password_file.is_some() {
                findings.error(path.clone(), "found password and password_file, expected at most one of them");
            }
            if let Some(file) = &part.password_file {
                check_password_file(file, format!("{path}.password_file"), stat, findings);
            }
        }
    }
}
