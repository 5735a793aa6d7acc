//! Translation of PgCat's settings to Kingpost's, as far as they concern all pools.

use std::path::Path;

use super::keys::{G, TABLE};
use super::pools::{Lookup, Pool, Reads};
use crate::document::{self, Settings, tables};
use crate::keys::SYSTEM_CAS;
use crate::lookup;
use crate::members::{self, Place, rule};
use crate::options::{Options, Read};
use crate::plan::{Plan, quoted};
use crate::prober::Login;
use crate::report::Report;
use process::{Failure, address::is_loopback};

/// Settings of members, and their possible places.
const PLACES: &[Place] = &[
    members::mode("pool_mode"),
    members::POOL_SIZE,
    members::MIN_POOL_SIZE,
    Place { key: "connect_timeout", pool: Some("wait_timeout"), database: None, user: None, shared: false },
    members::IDLE_TIMEOUT,
    members::SERVER_LIFETIME,
    Place {
        key: "prepared_statements_cache_size",
        pool: Some("prepared_per_server"),
        database: None,
        user: None,
        shared: true,
    },
    members::STATEMENT_TIMEOUT,
];

/// Reads PgCat's file, and returns the configuration to write.
pub(in super::super) fn plan(file: &Path, read: Read<'_>, options: &Options) -> Result<Plan, Failure> {
    let document = document::read(file, read)?;
    let mut report = Report::new(options, &TABLE);
    let mut plan = Plan::new(file, "from-pgcat", "PgCat");
    document::unknown(&mut report, TABLE.program, &document, &[G, "plugins", "pools", "path"]);
    let general = document::one(&mut report, &document, G);
    let plugins = document.get("plugins");
    let mut pools: Vec<Pool> = tables(&mut report, "pools", document.get("pools"))
        .into_iter()
        .filter_map(|(name, table)| Pool::read(&mut report, &general, plugins, &name, table))
        .collect();
    report.chosen(&mut pools, "pools", |pool| &pool.name);
    if pools.is_empty() {
        report.insist("pools", "there is none: PgCat serves nobody without one, and Kingpost would serve every name");
    }
    listen(&mut report, &mut plan, &general);
    tls(&mut report, &mut plan, &general);
    operators(&mut report, &mut plan, &general, &pools);
    lead(&mut plan, &pools, options);
    auth_query(&mut report, &mut plan, &pools);
    routing(&mut report, &mut plan, &pools);
    let members: Vec<_> = pools.into_iter().flat_map(|pool| pool.members).collect();
    members::settle(&mut report, &mut plan, &members, PLACES);
    plan.left_out = report.finish(file, "Moving from PgCat")?;
    Ok(plan)
}

/// Translates addresses and the settings of all clients.
fn listen(report: &mut Report<'_>, plan: &mut Plan, general: &Settings) {
    let host = general.filled("host").unwrap_or_else(|| "0.0.0.0".into());
    let mut address = |key: &str, default: &str| {
        let port = general.get(key).unwrap_or_else(|| default.into());
        report
            .number(&general.of(key), &port, 1..=65535)
            .map(|port| if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
    };
    let (clients, metrics) = (address("port", "5432"), address("prometheus_exporter_port", "9930"));
    plan.listen.extend(clients);
    if general.flag(report, "enable_prometheus_exporter", false)
        && let Some(metrics) = metrics
    {
        if !is_loopback(&metrics) {
            plan.metrics.push(("allow_remote", "true".into()));
        }
        plan.metrics.insert(0, ("listen", quoted(&metrics)));
    }
    let logins = if general.flag(report, "log_client_connections", false) { "all" } else { "refused" };
    plan.proxy.push(("log_logins", quoted(logins)));
    if let Some(workers) = general.get("worker_threads") {
        let workers = report.number(&general.of("worker_threads"), &workers, 1..=256);
        plan.proxy.extend(workers.map(|workers| ("workers", workers)));
    }
    if let Some(time) = general.get("idle_client_in_transaction_timeout") {
        let time = report.milliseconds(&general.of("idle_client_in_transaction_timeout"), &time, true);
        plan.proxy.extend(time.map(|time| ("idle_transaction_timeout", time)));
    }
}

fn tls(report: &mut Report<'_>, plan: &mut Plan, general: &Settings) {
    match (general.filled("tls_certificate"), general.filled("tls_private_key")) {
        (Some(certificate), Some(key)) => {
            plan.proxy_tls =
                vec![("mode", quoted("allow")), ("cert_file", quoted(&certificate)), ("key_file", quoted(&key))];
        }
        (None, None) => {}
        (None, Some(_)) => {
            report.leave(&general.of("tls_private_key"), "without tls_certificate PgCat does not use it")
        }
        (Some(_), None) => report.problem(&general.of("tls_certificate"), "there is no tls_private_key beside it"),
    }
    let server_tls = general.flag(report, "server_tls", false);
    let verifies = general.flag(report, "verify_server_certificate", false);
    plan.cluster_tls = match (server_tls, verifies) {
        (false, false) => vec![("mode", quoted("disable"))],
        (false, true) => {
            report.leave(&general.of("verify_server_certificate"), "without server_tls PgCat does not use it");
            vec![("mode", quoted("disable"))]
        }
        (true, false) => vec![("mode", quoted("prefer"))],
        (true, true) => vec![("mode", quoted("verify-full")), ("ca_file", quoted(SYSTEM_CAS))],
    };
}

/// Translates the console's operator, and `proxy.auth`, the method where no rule names one.
fn operators(report: &mut Report<'_>, plan: &mut Plan, general: &Settings, pools: &[Pool]) {
    let method = method_of(report, general, "admin_auth_type");
    let trusts =
        method == "trust" && pools.iter().flat_map(|pool| &pool.members).all(|member| member.method == "trust");
    plan.proxy.insert(0, ("auth", quoted(if trusts { "trust" } else { "md5" })));
    let Some(name) = general.filled("admin_username") else {
        report.problem(&general.of("admin_username"), "it is missing, and PgCat does not start without it");
        return;
    };
    match general.filled("admin_password") {
        Some(password) => plan.operators.push((name.clone(), vec![("password", quoted(&password))])),
        None if trusts => plan.operators.push((name.clone(), Vec::new())),
        None => report.problem(&general.of("admin_password"), "it is missing: an operator needs a password"),
    }
    // Without an operator, any user that a rule trusts would be one.
    if !plan.operators.is_empty() {
        plan.rules.push(rule("host", "kingpost,pgbouncer", "all", method));
    }
}

/// Returns the method: `md5` or `trust`.
pub(super) fn method_of(report: &mut Report<'_>, settings: &Settings, key: &str) -> &'static str {
    match settings.get(key).map(|method| method.to_ascii_lowercase()).as_deref() {
        None | Some("md5") => "md5",
        Some("trust") => "trust",
        Some(other) => {
            report.problem(&settings.of(key), format!("found {other:?}, expected md5 or trust"));
            "md5"
        }
    }
}

/// Assigns the databases and their servers to clusters.
fn lead(plan: &mut Plan, pools: &[Pool], options: &Options) {
    let mut led = Vec::new();
    for pool in pools {
        plan.databases.push((pool.name.clone(), pool.lines.clone()));
        led.push((pool.name.clone(), pool.nodes.clone()));
    }
    plan.lead(led, options.same_cluster);
}

/// Writes the one lookup for all pools that have users without a password.
fn auth_query(report: &mut Report<'_>, plan: &mut Plan, pools: &[Pool]) {
    let mut of: Vec<(&Pool, &Lookup)> = Vec::new();
    for pool in pools {
        match (&pool.lookup, pool.looks_up) {
            (Some(lookup), true) => of.push((pool, lookup)),
            (Some(_), false) => {
                report
                    .leave(&format!("pools.{}.auth_query", pool.name), "every user has a password: PgCat asks nobody");
            }
            // The problem of the user names the missing setting.
            (None, _) => {}
        }
    }
    let Some((first, lookup)) = of.first() else { return };
    for (pool, other) in &of[1..] {
        if other != lookup {
            let why = format!("pools.{} has another one: Kingpost has one lookup for all databases", first.name);
            report.problem(&format!("pools.{}.auth_query", pool.name), why);
        }
    }
    let name = format!("pools.{}.auth_query", first.name);
    // PgCat puts the name between the quotation marks.
    let query = lookup.query.replace("'$1'", "\u{0}");
    if query.contains("$1") || !query.contains('\u{0}') {
        report.problem(&name, "expected '$1' where PgCat writes the user's name, as a text of its own");
    }
    let query = lookup::safe(report, &name, query.replace('\u{0}', "$1"));
    plan.auth_query =
        vec![("query", quoted(&query)), ("user", quoted(&lookup.user)), ("password", quoted(&lookup.password))];
    for (pool, lookup) in &of {
        let login = Login::named(&lookup.user, Some(&lookup.password), Some(&pool.dbname));
        plan.logins.push(Login { entry: Some(pool.name.clone()), ..login });
    }
    // PgCat runs the lookup in the database that the client requests; other clusters lack the first one's.
    if plan.first_cluster().is_none() {
        plan.auth_query.push(("database", quoted(&first.dbname)));
    }
}

/// Translates the primary's share of reads, which is one for all databases.
fn routing(report: &mut Report<'_>, plan: &mut Plan, pools: &[Pool]) {
    let mut weights = pools.iter().filter_map(|pool| match pool.reads {
        Reads::Everywhere { primary } => Some((pool, primary)),
        Reads::Primary | Reads::Replicas => None,
    });
    let Some((first, primary)) = weights.next() else { return };
    if let Some((other, _)) = weights.find(|(_, other)| *other != primary) {
        let why =
            format!("pools.{} has it otherwise: Kingpost has one weight of the primary for all databases", first.name);
        report.problem(&format!("pools.{}.primary_reads_enabled", other.name), why);
    }
    plan.about_routing = "The primary's weight among the nodes that answer reads; 0: it does so where no replica can.";
    plan.routing = vec![("primary_weight", u8::from(primary).to_string())];
}
