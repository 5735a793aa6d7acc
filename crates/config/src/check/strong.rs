//! Check that strong reads are strong.

use proxy::config::Consistency;

use super::findings::Findings;
use crate::Config;

/// Checks that all relays are listed: a strong read asks them whether its primary's term still stands.
pub(super) fn check(config: &Config, findings: &mut Findings) {
    let proxy = &config.proxy;
    let databases =
        proxy.databases.iter().enumerate().filter_map(|(index, database)| {
            Some((format!("proxy.databases[{index}].consistency"), database.consistency?))
        });
    let general = ("proxy.routing.consistency".to_owned(), proxy.routing.consistency);
    let mut strong = std::iter::once(general).chain(databases).filter(|(_, of)| *of == Consistency::Strong);
    let Some((path, _)) = strong.next() else { return };
    let (asked, fenced) = (&config.cluster.relays, &config.failover.relays);
    if config.all_clusters().iter().any(|(_, cluster)| cluster.relays.is_empty()) {
        findings.warn(
            path,
            "found \"strong\" without [[cluster.relays]]: a proxy that is cut off together with an old primary goes on answering strong reads \
             from it after a failover, because there is nobody it could ask; with relays it asks them",
        );
        return;
    }
    for relay in fenced.iter().filter(|relay| !asked.iter().any(|asked| asked.name == relay.name)) {
        findings.warn(
            "cluster.relays",
            format!(
                "found {} of the relays, without {:?} of [[failover.relays]]: a strong read asks those listed whether its primary was replaced, \
                 and a failover may be made with the others; expected all of them, by the same names",
                asked.len(),
                relay.name
            ),
        );
    }
}
