//! `kingpost check`.

use config::failover::FailoverConfig;
use process::{Failure, terminal};
use relay::config::{Engine, RelayConfig};

use crate::cli::CheckArgs;
use crate::logins;

/// Checks a file and reports its problems.
pub(crate) fn check(args: &CheckArgs) -> Result<(), Failure> {
    let (config, warnings) = config::load(&args.config)?.accept(&args.config)?;
    for warning in &warnings {
        terminal::note(warning);
    }
    // The servers of the proxy are PostgreSQL, whatever a relay in the file is for.
    let serves = !config.needs_no_proxy() && !config.is_registry_only();
    if args.online {
        match config.relay.engine {
            Engine::Mariadb | Engine::Mysql => daemon::check_mariadb(&config.relay)?,
            Engine::Postgresql if serves && config.failover == FailoverConfig::default() => {}
            Engine::Postgresql => failover::check(config.clone())?,
        }
        if serves {
            logins::attempt(&config)?;
        }
    } else if serves {
        for doubt in logins::doubts(&config) {
            terminal::note(doubt);
        }
    }
    if config.needs_no_proxy() && config.relay != RelayConfig::default() {
        terminal::line(format_args!("{}: good, a relay", args.config.display()));
        return Ok(());
    }
    if config.is_registry_only() {
        terminal::line(format_args!("{}: good, a registry", args.config.display()));
        return Ok(());
    }
    if !config.clusters.is_empty() {
        let all = config.all_clusters();
        let each = all.iter().map(|(_, cluster)| match (cluster.nodes.len(), cluster.from.urls.is_empty()) {
            (_, false) => format!("{} (nodes from a registry)", cluster.name),
            (1, true) => format!("{} (1 node)", cluster.name),
            (nodes, true) => format!("{} ({nodes} nodes)", cluster.name),
        });
        let each: Vec<String> = each.collect();
        terminal::line(format_args!("{}: good, {} clusters: {}", args.config.display(), all.len(), each.join(", ")));
        return Ok(());
    }
    if !config.cluster.from.urls.is_empty() {
        let service = &config.cluster.from.service;
        terminal::line(format_args!("{}: good, nodes from the registry's service {service:?}", args.config.display()));
        return Ok(());
    }
    let nodes = config.cluster.nodes.len();
    terminal::line(format_args!("{}: good, {nodes} node{}", args.config.display(), if nodes == 1 { "" } else { "s" }));
    Ok(())
}
