//! Translation of PgDog's settings to Kingpost's, as far as they concern all databases.

use std::collections::BTreeMap;
use std::path::Path;

use super::databases::{self, Database};
use super::keys::{A, G, LAG, OTHERS, TABLE};
use super::users::{self, Auth};
use crate::document::{self, Settings, tables};
use crate::keys::SYSTEM_CAS;
use crate::members::{self, Place, rule};
use crate::options::{Options, Read};
use crate::plan::{Plan, quoted};
use crate::report::Report;
use config::Tree;
use process::{Failure, address::is_loopback};

/// Settings of members, and their possible places.
const PLACES: &[Place] = &[
    members::mode("pooler_mode"),
    members::POOL_SIZE,
    members::MIN_POOL_SIZE,
    members::IDLE_TIMEOUT,
    members::SERVER_LIFETIME,
    Place {
        key: "server_lifetime_jitter",
        pool: Some("server_lifetime_jitter"),
        database: None,
        user: None,
        shared: false,
    },
    members::STATEMENT_TIMEOUT,
    Place { key: "replication_mode", pool: None, database: None, user: Some("replication"), shared: false },
];

/// Reads PgDog's files, and returns the configuration to write.
pub(in super::super) fn plan(file: &Path, users: &Path, read: Read<'_>, options: &Options) -> Result<Plan, Failure> {
    let document = document::read(file, read)?;
    let accounts = document::read(users, read)?;
    let mut report = Report::new(options, &TABLE);
    let mut plan = Plan::new(file, "from-pgdog", "PgDog");
    let general = document::one(&mut report, &document, G);
    // The operator in users.toml takes precedence.
    let admin = if accounts.contains_key(A) {
        document::one(&mut report, &accounts, A)
    } else {
        document::one(&mut report, &document, A)
    };
    let lag = document::one(&mut report, &document, LAG);
    for &section in OTHERS {
        others(&mut report, section, document.get(section));
    }
    let known: Vec<&str> = [G, A, LAG, "databases"].into_iter().chain(OTHERS.iter().copied()).collect();
    document::unknown(&mut report, TABLE.program, &document, &known);
    document::unknown(&mut report, TABLE.program, &accounts, &[A, "users"]);
    let auth = Auth::of(&mut report, &general);
    let mut databases = databases::read(&mut report, &general, document.get("databases"));
    report.chosen(&mut databases, "databases", |database| &database.name);
    if databases.is_empty() {
        report
            .insist("databases", "there is none: PgDog serves nobody without one, and Kingpost would serve every name");
    }
    listen(&mut report, &mut plan, &general);
    times(&mut report, &mut plan, &general);
    client_tls(&mut report, &mut plan, &general);
    server_tls(&mut report, &mut plan, &general);
    operator(&mut report, &mut plan, &admin, auth);
    lag_limit(&mut report, &mut plan, &general, &lag);
    lead(&mut report, &mut plan, &databases, options);
    let members = users::members(&mut report, &general, auth, &databases, accounts.get("users"));
    members::settle(&mut report, &mut plan, &members, PLACES);
    plan.left_out = report.finish(file, "Moving from PgDog")?;
    Ok(plan)
}

/// Checks a table, or several of one name, of which nothing is carried over.
fn others(report: &mut Report<'_>, section: &str, tree: Option<&Tree>) {
    match tree.map(|tree| &tree.value) {
        Some(config::Value::Table(table)) => {
            Settings::judged(report, section, section, table, &[]);
        }
        _ => {
            for (at, table) in tables(report, section, tree) {
                Settings::judged(report, section, &format!("{section}.{at}"), table, &[]);
            }
        }
    }
}

fn listen(report: &mut Report<'_>, plan: &mut Plan, general: &Settings) {
    let address = |report: &mut Report<'_>, host: &str, port: &str| {
        let (host, name) = (general.filled(host).unwrap_or_else(|| "0.0.0.0".into()), general.of(port));
        let port = report.number(&name, &general.get(port).unwrap_or_else(|| "6432".into()), 1..=65535)?;
        Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
    };
    plan.listen.extend(address(report, "host", "port"));
    if general.get("openmetrics_port").is_some()
        && let Some(metrics) = address(report, "openmetrics_host", "openmetrics_port")
    {
        plan.metrics.push(("listen", quoted(&metrics)));
        if !is_loopback(&metrics) {
            plan.metrics.push(("allow_remote", "true".into()));
        }
    }
    let logins = if general.flag(report, "log_connections", true) { "all" } else { "refused" };
    plan.proxy.push(("log_logins", quoted(logins)));
    if let Some(workers) = general.get("workers") {
        let workers = if workers == "0" { "1".to_owned() } else { workers };
        let workers = report.number(&general.of("workers"), &workers, 1..=256);
        plan.proxy.extend(workers.map(|workers| ("workers", workers)));
    }
    match general.get("log_format").as_deref() {
        None => {}
        Some("text") => plan.log.push(("format", quoted("human"))),
        Some("json" | "json_flattened") => plan.log.push(("format", quoted("json"))),
        Some(other) => report.problem(&general.of("log_format"), format!("found {other:?}, expected text or json")),
    }
    match general.get("log_level") {
        None => {}
        Some(level) if ["error", "warn", "info", "debug", "trace"].contains(&level.as_str()) => {
            plan.log.push(("level", quoted(&level)));
        }
        Some(level) => {
            report.problem(
                &general.of("log_level"),
                format!("found {level:?}, expected error, warn, info, debug or trace"),
            );
        }
    }
}

/// Translates times, and other settings of all connections.
fn times(report: &mut Report<'_>, plan: &mut Plan, general: &Settings) {
    for (key, to, default) in
        [("connect_timeout", "connect_timeout", "5000"), ("checkout_timeout", "wait_timeout", "5000")]
    {
        let time = general.get(key).unwrap_or_else(|| default.into());
        plan.pool.extend(report.milliseconds(&general.of(key), &time, false).map(|time| (to, time)));
    }
    for (key, to, default, never) in [
        ("client_login_timeout", "login_timeout", Some("60000"), false),
        ("query_timeout", "query_timeout", None, false),
        ("client_idle_timeout", "client_idle_timeout", None, false),
        ("client_idle_in_transaction_timeout", "idle_transaction_timeout", None, false),
    ] {
        if let Some(time) = general.get(key).or(default.map(str::to_owned)) {
            plan.proxy.extend(report.milliseconds(&general.of(key), &time, never).map(|time| (to, time)));
        }
    }
    if let Some(most) = general.get("prepared_statements_limit") {
        let most = report.number(&general.of("prepared_statements_limit"), &most, 1..=100_000);
        plan.pool.extend(most.map(|most| ("prepared_per_server", most)));
    }
    match general.get("prepared_statements").as_deref() {
        None | Some("disabled" | "extended" | "full") => {}
        Some("extended_anonymous") => plan.pool.push(("unnamed", quoted("shared"))),
        Some(other) => {
            let why = format!("found {other:?}, expected disabled, extended, extended_anonymous or full");
            report.problem(&general.of("prepared_statements"), why);
        }
    }
}

fn client_tls(report: &mut Report<'_>, plan: &mut Plan, general: &Settings) {
    let required = general.flag(report, "tls_client_required", false);
    let mode = if required { "require" } else { "allow" };
    match (general.filled("tls_certificate"), general.filled("tls_private_key")) {
        (Some(certificate), Some(key)) => {
            plan.proxy_tls =
                vec![("mode", quoted(mode)), ("cert_file", quoted(&certificate)), ("key_file", quoted(&key))];
        }
        (None, None) if required => {
            report.problem(&general.of("tls_client_required"), "there is no tls_certificate with tls_private_key");
        }
        (None, None) => {}
        (Some(_), None) => report.problem(&general.of("tls_certificate"), "there is no tls_private_key beside it"),
        (None, Some(_)) => report.problem(&general.of("tls_private_key"), "there is no tls_certificate beside it"),
    }
    let Some(authorities) = general.filled("tls_client_ca_certificate") else { return };
    if plan.proxy_tls.is_empty() {
        report.problem(&general.of("tls_client_ca_certificate"), "there is no tls_certificate with tls_private_key");
    } else {
        plan.proxy_tls.extend([("ca_file", quoted(&authorities)), ("client_cert", quoted("verify-ca"))]);
    }
}

fn server_tls(report: &mut Report<'_>, plan: &mut Plan, general: &Settings) {
    let mode = match general.get("tls_verify").as_deref() {
        Some("disabled") => "disable",
        None | Some("prefer") => "prefer",
        Some("verify_ca") => "verify-ca",
        Some("verify_full") => "verify-full",
        Some(other) => {
            let why = format!("found {other:?}, expected disabled, prefer, verify_ca or verify_full");
            return report.problem(&general.of("tls_verify"), why);
        }
    };
    plan.cluster_tls.push(("mode", quoted(mode)));
    match (general.filled("tls_server_ca_certificate"), mode.starts_with("verify")) {
        (authorities, true) => {
            plan.cluster_tls.push(("ca_file", quoted(authorities.as_deref().unwrap_or(SYSTEM_CAS))));
        }
        (Some(_), false) => {
            let why = "PgDog verifies no certificate in this mode; verify_ca and verify_full do";
            report.leave(&general.of("tls_server_ca_certificate"), why);
        }
        (None, false) => {}
    }
    if mode != "disable" {
        for (key, to) in [("tls_server_certificate", "cert_file"), ("tls_server_private_key", "key_file")] {
            plan.cluster_tls.extend(general.filled(key).map(|file| (to, quoted(&file))));
        }
    }
}

/// Translates the console's operator, and `proxy.auth`, the method where no rule names one.
fn operator(report: &mut Report<'_>, plan: &mut Plan, admin: &Settings, auth: Auth) {
    plan.proxy.insert(0, ("auth", quoted(auth.method())));
    let user = admin.filled("user").unwrap_or_else(|| "admin".into());
    match admin.filled("password") {
        Some(password) => {
            plan.operators.push((user, vec![("password", quoted(&password))]));
            plan.rules.push(rule("host", "kingpost,pgbouncer", "all", auth.method()));
        }
        None => {
            report.leave(&format!("the operator {user}"), "it has no password: PgDog makes one up that nobody knows")
        }
    }
}

fn lag_limit(report: &mut Report<'_>, plan: &mut Plan, general: &Settings, lag: &Settings) {
    let of = [(general, "ban_replica_lag"), (lag, "max_age")];
    let found: Vec<(String, String)> =
        of.iter().filter_map(|(settings, key)| Some((settings.of(key), settings.get(key)?))).collect();
    match found.as_slice() {
        [] => {}
        [(name, time)] => plan.cluster.extend(report.milliseconds(name, time, false).map(|time| ("lag_limit", time))),
        [(name, _), (other, _), ..] => report.problem(name, format!("there is also {other}: Kingpost has one limit")),
    }
}

/// Assigns the databases and their servers to clusters, and translates the weights.
fn lead(report: &mut Report<'_>, plan: &mut Plan, databases: &[Database], options: &Options) {
    let mut led = Vec::new();
    // The weight of each node and of each database's primary, and the database that sets it.
    let mut weights: BTreeMap<&str, (&str, u32)> = BTreeMap::new();
    let mut primary: Option<(&str, u32)> = None;
    for database in databases {
        plan.databases.push((database.name.clone(), database.lines.clone()));
        led.push((database.name.clone(), database.nodes.iter().map(|node| node.address.clone()).collect()));
        for node in &database.nodes {
            let (other, weight) = *weights.entry(&node.address).or_insert((&node.name, node.weight));
            if weight != node.weight {
                report.problem(
                    &format!("{}.lb_weight", node.name),
                    format!("{other} has another one for the same server"),
                );
            }
        }
        let Some(weight) = database.primary_weight else { continue };
        match primary {
            Some((other, of)) if of != weight => {
                let why =
                    format!("it would not be as of {other}: Kingpost has one weight of the primary for all databases");
                report.problem(&format!("databases.{}.lb_weight", database.name), why);
            }
            _ => primary = Some((&database.name, weight)),
        }
    }
    if weights.values().any(|(_, weight)| *weight != 1) {
        let lines = |weight: u32| vec![("weight", weight.to_string())];
        plan.nodes = weights.into_iter().map(|(address, (_, weight))| (address.to_owned(), lines(weight))).collect();
    }
    if let Some((_, weight)) = primary {
        plan.about_routing =
            "The primary's weight among the nodes that answer reads; 0: it does so where no replica can.";
        plan.routing = vec![("primary_weight", weight.to_string())];
    }
    plan.lead(led, options.same_cluster);
}
