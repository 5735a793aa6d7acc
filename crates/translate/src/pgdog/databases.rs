//! PgDog's `[[databases]]`: one entry for each server of a database.

use std::collections::BTreeMap;

use super::keys::D;
use crate::document::{Settings, tables};
use crate::plan::{Line, quoted, quoted_list};
use crate::report::Report;
use crate::server::address;
use config::Tree;

/// Keys with equal values in all entries of one name.
const COMMON: [&str; 14] = [
    "database_name",
    "user",
    "password",
    "pool_size",
    "max_pool_size",
    "min_pool_size",
    "pooler_mode",
    "statement_timeout",
    "lock_timeout",
    "idle_timeout",
    "read_only",
    "server_lifetime",
    "server_lifetime_jitter",
    "name",
];

/// A database, as far as it is carried over.
#[derive(Debug)]
pub(super) struct Database {
    pub(super) name: String,
    pub(super) nodes: Vec<Node>,
    /// Settings common to its entries.
    pub(super) settings: Settings,
    pub(super) lines: Vec<Line>,
    /// The primary's weight among the nodes that answer reads; None: reads are not shared by replicas and primary.
    pub(super) primary_weight: Option<u32>,
    /// True if reads go to replicas.
    pub(super) reads_replicas: bool,
}

/// A server of a database.
#[derive(Debug)]
pub(super) struct Node {
    /// The name in errors, such as `databases.0`.
    pub(super) name: String,
    pub(super) address: String,
    role: Role,
    pub(super) weight: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Primary,
    Replica,
    Auto,
}

/// Distinction of reads from writes, for all databases.
struct Split {
    /// True if PgDog parses statements.
    parses: bool,
    /// Value of `read_write_split`.
    mode: String,
    /// True if weights count.
    weighted: bool,
}

/// Reads all databases, in the order of their first entries.
pub(super) fn read(report: &mut Report<'_>, general: &Settings, tree: Option<&Tree>) -> Vec<Database> {
    let mut entries: Vec<(String, Vec<Settings>)> = Vec::new();
    for (at, table) in tables(report, D, tree) {
        let settings = Settings::judged(report, D, &format!("{D}.{at}"), table, &[]);
        let Some(name) = settings.filled("name") else {
            report.problem(&settings.of("name"), "it is missing");
            continue;
        };
        match entries.iter_mut().find(|(other, _)| *other == name) {
            Some((_, of)) => of.push(settings),
            None => entries.push((name, vec![settings])),
        }
    }
    let split = Split::of(report, general);
    entries.into_iter().filter_map(|(name, of)| Database::of(report, &split, name, of)).collect()
}

impl Split {
    fn of(report: &mut Report<'_>, general: &Settings) -> Split {
        let on = general.flag(report, "query_parser_enabled", false);
        let parses = match general.get("query_parser").as_deref() {
            None | Some("auto" | "on") => true,
            Some("off") => on,
            Some(other) => {
                let why =
                    format!("found {other:?}, expected on, auto or off: Kingpost looks at all statements or at none");
                report.problem(&general.of("query_parser"), why);
                on
            }
        };
        let weighted = match general.get("load_balancing_strategy").as_deref() {
            None | Some("random" | "round_robin" | "least_active_connections") => false,
            Some("weighted_round_robin") => true,
            Some(other) => {
                report.problem(
                    &general.of("load_balancing_strategy"),
                    format!("found {other:?}, which PgDog does not know"),
                );
                false
            }
        };
        let mode = general.get("read_write_split").unwrap_or_else(|| "include_primary".into());
        if !["include_primary", "exclude_primary", "include_primary_if_replica_banned", "prefer_primary"]
            .contains(&mode.as_str())
        {
            report.problem(&general.of("read_write_split"), format!("found {mode:?}, which PgDog does not know"));
        }
        Split { parses, mode, weighted }
    }
}

impl Database {
    fn of(report: &mut Report<'_>, split: &Split, name: String, mut entries: Vec<Settings>) -> Option<Database> {
        let is_replica = |entry: &Settings| entry.get("role").as_deref() == Some("replica");
        // The settings of a primary count for all.
        entries.sort_by_key(is_replica);
        let first = entries.first()?;
        if ["kingpost", "pgbouncer", "*"].contains(&name.as_str()) {
            report.insist(&first.of("name"), format!("{name:?} has a meaning of its own in Kingpost"));
            return None;
        }
        for other in &entries[1..] {
            // A replica is read-only, even without the setting.
            let own = |key: &str| key == "read_only" && is_replica(other);
            for key in COMMON.iter().filter(|key| first.get(key) != other.get(key) && !own(key)) {
                let why = format!("{} has it otherwise: what entries of one name say has to be the same", first.name);
                report.problem(&other.of(key), why);
            }
        }
        let nodes: Vec<Node> = entries.iter().filter_map(|entry| Node::of(report, split, entry)).collect();
        let settings = entries.swap_remove(0);
        let mut lines = Vec::new();
        lines.extend(settings.filled("database_name").filter(|of| *of != name).map(|of| ("dbname", quoted(&of))));
        lines.extend(parameters(report, &settings));
        let (route, primary_weight) = reads(report, split, &settings, &nodes);
        lines.push(("route", quoted(route)));
        Some(Database { name, nodes, settings, lines, primary_weight, reads_replicas: route != "primary" })
    }
}

/// Returns the destination of statements, and the primary's weight.
fn reads(report: &mut Report<'_>, split: &Split, settings: &Settings, nodes: &[Node]) -> (&'static str, Option<u32>) {
    let has = |role: Role| nodes.iter().any(|node| node.role == role || node.role == Role::Auto);
    match (has(Role::Primary), has(Role::Replica)) {
        _ if nodes.len() < 2 && has(Role::Primary) => return ("primary", None),
        (true, false) => return ("primary", None),
        (false, _) => return ("replica", None),
        (true, true) if !split.parses || split.mode == "prefer_primary" => return ("primary", None),
        (true, true) => {}
    }
    if split.mode != "include_primary" {
        return ("auto", Some(0));
    }
    // The primary may move to another server: its weight is known if the file names the primary, or if all have the same.
    let named = nodes.iter().find(|node| node.role == Role::Primary).or(nodes.first());
    let weight = named.map_or(1, |node| node.weight);
    if nodes.iter().any(|node| node.role == Role::Auto && node.weight != weight) {
        report.problem(
            &settings.of("lb_weight"),
            "which server is the primary is not said, and the weights are not all the same",
        );
    }
    ("auto", Some(weight))
}

/// Returns the start-up parameters of server connections.
fn parameters(report: &mut Report<'_>, settings: &Settings) -> Option<Line> {
    let mut parameters = Vec::new();
    for key in ["statement_timeout", "lock_timeout"] {
        if let Some(time) = settings.get(key) {
            let time = report.number(&settings.of(key), &time, 0..=i64::from(i32::MAX));
            parameters.extend(time.map(|time| format!("{key}={time}ms")));
        }
    }
    if settings.flag(report, "read_only", false) {
        parameters.push("default_transaction_read_only=on".to_owned());
    }
    (!parameters.is_empty()).then(|| ("parameters", quoted_list(&parameters)))
}

impl Node {
    fn of(report: &mut Report<'_>, split: &Split, entry: &Settings) -> Option<Node> {
        let role = match entry.get("role").as_deref() {
            None | Some("primary") => Role::Primary,
            Some("replica") => Role::Replica,
            Some("auto") => Role::Auto,
            Some(other) => {
                report.problem(&entry.of("role"), format!("found {other:?}, expected primary, replica or auto"));
                Role::Auto
            }
        };
        let weight = entry.get("lb_weight").unwrap_or_else(|| "255".into());
        let weight = report.number(&entry.of("lb_weight"), &weight, 0..=255)?;
        let weight = if split.weighted { weight.parse().unwrap_or(255) } else { 1 };
        let Some(host) = entry.filled("host") else {
            report.problem(&entry.of("host"), "it is missing");
            return None;
        };
        match address(&host, &entry.get("port").unwrap_or_else(|| "5432".into()), "") {
            Ok(address) => Some(Node { name: entry.name.clone(), address, role, weight }),
            Err(why) => {
                report.problem(&entry.of("host"), why);
                None
            }
        }
    }
}

/// Returns a setting of a user, of its database, or of all: the nearest one counts. A key may have a second name.
pub(super) fn nearest(of: [&Settings; 3], keys: &[&str]) -> Option<(String, String)> {
    of.into_iter().find_map(|of| keys.iter().find_map(|key| Some((of.get(key)?, of.of(key)))))
}

/// Returns a member's settings from the nearest place, as TOML.
pub(super) fn settings(report: &mut Report<'_>, of: [&Settings; 3]) -> BTreeMap<&'static str, String> {
    let [user, _, _] = of;
    let mut settings = BTreeMap::new();
    let get = |keys: &[&str], default: &str| nearest(of, keys).unwrap_or_else(|| (default.into(), user.of(keys[0])));
    let (mode, name) = get(&["pooler_mode"], "transaction");
    settings.extend(report.mode(&name, &mode).map(|mode| ("pooler_mode", mode)));
    let (size, name) = get(&["pool_size", "default_pool_size", "max_pool_size"], "10");
    settings.extend(report.number(&name, &size, 1..=10_000).map(|size| ("pool_size", size)));
    let (least, name) = get(&["min_pool_size"], "1");
    settings.extend(report.number(&name, &least, 0..=10_000).map(|least| ("min_pool_size", least)));
    for (key, default) in [("idle_timeout", "60000"), ("server_lifetime", "86400000")] {
        let (time, name) = get(&[key], default);
        settings.extend(report.milliseconds(&name, &time, false).map(|time| (key, time)));
    }
    if let Some((time, name)) = nearest(of, &["server_lifetime_jitter"]).filter(|(time, _)| time != "0") {
        settings.extend(report.milliseconds(&name, &time, true).map(|time| ("server_lifetime_jitter", time)));
    }
    settings
}
