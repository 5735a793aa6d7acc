//! A pool of PgCat: a database with its users and servers.

use std::collections::BTreeMap;

use super::keys::{L, P, S, U};
use super::translate::method_of;
use crate::document::{Settings, table, tables, text_of};
use crate::members::Member;
use crate::plan::{Line, quoted};
use crate::report::{Found, Report};
use crate::server::address;
use config::{Tree, Value};

/// A pool, as far as it is carried over.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) name: String,
    /// Name of the database on the servers.
    pub(super) dbname: String,
    /// Addresses of the nodes.
    pub(super) nodes: Vec<String>,
    pub(super) members: Vec<Member>,
    /// Settings of the database.
    pub(super) lines: Vec<Line>,
    pub(super) reads: Reads,
    pub(super) lookup: Option<Lookup>,
    /// True if some user has no password.
    pub(super) looks_up: bool,
}

/// Destination of a pool's reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    Primary,
    Replicas,
    /// Replicas, and perhaps the primary, too.
    Everywhere {
        primary: bool,
    },
}

/// Lookup of users without a password.
#[derive(PartialEq, Eq)]
pub(super) struct Lookup {
    pub(super) query: String,
    pub(super) user: String,
    pub(super) password: String,
}

impl std::fmt::Debug for Lookup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lookup").field("query", &self.query).field("user", &self.user).finish_non_exhaustive()
    }
}

/// Addresses of a pool's only shard, with its kinds of servers.
#[derive(Default)]
struct Shard {
    dbname: String,
    nodes: Vec<String>,
    primary: bool,
    replicas: bool,
}

/// A setting of a user, of its pool, or of all pools: the nearest one counts.
struct Nearest<'s> {
    user: &'s Settings,
    pool: &'s Settings,
    general: &'s Settings,
}

impl Nearest<'_> {
    /// Returns the value and its full name.
    fn get(&self, key: &str) -> Option<(String, String)> {
        [self.user, self.pool, self.general].into_iter().find_map(|of| Some((of.get(key)?, of.of(key))))
    }

    /// Returns a time in milliseconds, as TOML; `default` if it is not set.
    fn time(&self, report: &mut Report<'_>, key: &str, default: &str) -> Option<String> {
        let (value, name) = self.get(key).unwrap_or_else(|| (default.into(), self.user.of(key)));
        report.milliseconds(&name, &value, false)
    }
}

impl Pool {
    /// Reads a pool; settings that cannot be carried over go to the report.
    pub(super) fn read(
        report: &mut Report<'_>,
        general: &Settings,
        plugins: Option<&Tree>,
        name: &str,
        tree: &BTreeMap<String, Tree>,
    ) -> Option<Pool> {
        let full = format!("pools.{name}");
        if report.ignores(&full) {
            report.leave(&full, "left out by --ignore");
            return None;
        }
        if ["kingpost", "pgbouncer", "*"].contains(&name) {
            report.insist(&full, "the name has a meaning of its own in Kingpost");
            return None;
        }
        let settings = Settings::judged(report, P, &full, tree, &["users", "shards", "plugins"]);
        let shard = Shard::read(report, &full, tree.get("shards"));
        let mut lines = Vec::new();
        if shard.dbname != name {
            lines.push(("dbname", quoted(&shard.dbname)));
        }
        let (plugins, of) = match tree.get("plugins") {
            // The pool's plugins replace all others.
            Some(own) => (Some(own), format!("{full}.plugins")),
            None => (plugins, "plugins".to_owned()),
        };
        lines.extend(connect_query(report, plugins, &of));
        let lookup = lookup(general, &settings);
        let users: Vec<Settings> = tables(report, &format!("{full}.users"), tree.get("users"))
            .into_iter()
            .map(|(at, table)| Settings::judged(report, U, &format!("{full}.users.{at}"), table, &[]))
            .collect();
        let looks_up = users.iter().any(|user| user.get("password").is_none());
        let members: Vec<Member> = users
            .iter()
            .filter_map(|user| {
                let nearest = Nearest { user, pool: &settings, general };
                member(report, name, &nearest, lookup.is_some())
            })
            .collect();
        let reads = reads(report, &settings, &shard);
        if reads != Reads::Primary && members.iter().any(in_session_mode) {
            let why = "in session mode Kingpost sends everything to the primary, and this pool reads from replicas: with transaction mode it can, or with default_role = \"primary\" and no query_parser_read_write_splitting";
            report.problem(&settings.of("pool_mode"), why);
        }
        let route = match reads {
            Reads::Primary => "primary",
            Reads::Replicas => "replica",
            Reads::Everywhere { .. } => "auto",
        };
        lines.push(("route", quoted(route)));
        Some(Pool {
            name: name.to_owned(),
            dbname: shard.dbname,
            nodes: shard.nodes,
            members,
            lines,
            reads,
            lookup,
            looks_up,
        })
    }
}

fn in_session_mode(member: &Member) -> bool {
    member.settings.get("pool_mode").is_some_and(|mode| *mode == quoted("session"))
}

/// Decides the destination as PgCat does.
fn reads(report: &mut Report<'_>, settings: &Settings, shard: &Shard) -> Reads {
    let parses = settings.flag(report, "query_parser_enabled", false);
    let splits = settings.flag(report, "query_parser_read_write_splitting", false);
    let primary = settings.flag(report, "primary_reads_enabled", false);
    if splits && !parses {
        let name = settings.of("query_parser_read_write_splitting");
        report.problem(&name, "it is true without query_parser_enabled, with which PgCat does not start");
    }
    let role = settings.get("default_role").unwrap_or_else(|| "any".into());
    match (shard.primary, shard.replicas, role.as_str()) {
        (_, false, "any" | "primary" | "replica") => Reads::Primary,
        (false, true, "any" | "primary" | "replica") => Reads::Replicas,
        (true, true, "any" | "primary" | "replica") if splits => Reads::Everywhere { primary },
        (true, true, "primary") => Reads::Primary,
        (true, true, "replica") => Reads::Replicas,
        (true, true, "any") => Reads::Everywhere { primary: true },
        _ => {
            report.problem(&settings.of("default_role"), format!("found {role:?}, expected any, primary or replica"));
            Reads::Primary
        }
    }
}

/// Returns the lookup of a pool: each of its settings is the pool's, or else that of all pools.
fn lookup(general: &Settings, pool: &Settings) -> Option<Lookup> {
    let nearest = |key: &str| pool.filled(key).or_else(|| general.filled(key));
    let (query, user) = (nearest("auth_query")?, nearest("auth_query_user")?);
    Some(Lookup { query, user, password: nearest("auth_query_password")? })
}

fn member(report: &mut Report<'_>, pool: &str, nearest: &Nearest<'_>, looks_up: bool) -> Option<Member> {
    let user = nearest.user;
    let Some(name) = user.filled("username") else {
        report.problem(&user.of("username"), "it is missing");
        return None;
    };
    let password = user.get("password");
    if password.is_none() && !looks_up {
        let why = "it is missing, and the pool has no auth_query with auth_query_user and auth_query_password";
        report.problem(&user.of("password"), why);
    }
    let method = method_of(report, user, "auth_type");
    let mut settings = BTreeMap::new();
    let mode = nearest.get("pool_mode").map(|(mode, name)| (mode.to_ascii_lowercase(), name));
    let (mode, of) = mode.unwrap_or_else(|| ("transaction".into(), user.of("pool_mode")));
    settings.extend(report.mode(&of, &mode).map(|mode| ("pool_mode", mode)));
    match user.get("pool_size") {
        Some(size) => {
            let size = report.number(&user.of("pool_size"), &size, 1..=10_000);
            settings.extend(size.map(|size| ("pool_size", size)));
        }
        None => report.problem(&user.of("pool_size"), "it is missing, and PgCat does not start without it"),
    }
    let least = user.get("min_pool_size").and_then(|least| report.limit(&user.of("min_pool_size"), &least, 10_000));
    settings.extend(least.map(|least| ("min_pool_size", least)));
    for (key, default) in [("connect_timeout", "1000"), ("idle_timeout", "600000"), ("server_lifetime", "3600000")] {
        settings.extend(nearest.time(report, key, default).map(|time| (key, time)));
    }
    if let Some(time) = user.get("statement_timeout").filter(|time| time != "0") {
        let time = report.milliseconds(&user.of("statement_timeout"), &time, false);
        settings.extend(time.map(|time| ("statement_timeout", time)));
    }
    if let Some((most, of)) = nearest.get("prepared_statements_cache_size") {
        settings.extend(report.limit(&of, &most, 100_000).map(|most| ("prepared_statements_cache_size", most)));
    }
    let server_password = user.get("server_password").or_else(|| password.clone());
    let server = match user.filled("server_username") {
        Some(other) => Some((other, server_password)),
        None if server_password != password => Some((name.clone(), server_password)),
        None => None,
    };
    Some(Member {
        database: pool.to_owned(),
        user: name,
        name: user.name.clone(),
        method,
        secret: password.iter().map(|password| ("password", quoted(password))).collect(),
        server,
        settings,
    })
}

impl Shard {
    /// Reads the only shard of a pool.
    fn read(report: &mut Report<'_>, pool: &str, tree: Option<&Tree>) -> Shard {
        let name = format!("{pool}.shards");
        let shards = tables(report, &name, tree);
        if shards.len() != 1 {
            let why = format!("found {}: Kingpost does not shard, a pool has one", shards.len());
            report.problem(&name, why);
        }
        let Some((at, shard)) = shards.into_iter().next() else { return Shard::default() };
        let settings = Settings::judged(report, S, &format!("{name}.{at}"), shard, &[]);
        let mut found = Shard { dbname: settings.filled("database").unwrap_or_default(), ..Shard::default() };
        if found.dbname.is_empty() {
            report.problem(&settings.of("database"), "it is missing");
        }
        found.servers(report, &settings);
        found
    }

    fn servers(&mut self, report: &mut Report<'_>, settings: &Settings) {
        let name = settings.of("servers");
        let servers = match settings.value("servers") {
            Some(Value::Array(servers)) if !servers.is_empty() => servers,
            _ => return report.problem(&name, "expected a list of [host, port, role]"),
        };
        for server in servers {
            let parts: Vec<String> = match &server.value {
                Value::Array(parts) => parts.iter().map(|part| text_of(&part.value)).collect(),
                Value::Table(table) => {
                    ["host", "port", "role"].iter().filter_map(|key| Some(text_of(&table.get(*key)?.value))).collect()
                }
                _ => Vec::new(),
            };
            let [host, port, role] = parts.as_slice() else {
                report.problem(&name, "expected a list of [host, port, role]");
                continue;
            };
            match role.to_ascii_lowercase().as_str() {
                "primary" => self.primary = true,
                "replica" => self.replicas = true,
                "mirror" => report.problem(&name, "found the role mirror: Kingpost sends nothing to a second server"),
                other => report.problem(&name, format!("found the role {other:?}, expected primary or replica")),
            }
            let address = if host.is_empty() { Err("found no host".to_owned()) } else { address(host, port, "") };
            match address {
                Ok(node) => self.nodes.push(node),
                Err(why) => report.problem(&name, why),
            }
        }
    }
}

/// Translates the plugins: the queries of the prewarmer. Any other plugin in use is an error.
fn connect_query(report: &mut Report<'_>, plugins: Option<&Tree>, of: &str) -> Option<Line> {
    let plugins = table(report, of, plugins)?;
    let mut queries = Vec::new();
    for (key, tree) in plugins {
        let name = format!("{of}.{key}");
        let Some(plugin) = table(report, &name, Some(tree)) else { continue };
        let plugin = Settings::whole(&name, plugin);
        let on = plugin.flag(report, "enabled", false);
        let value = if on { "on" } else { "off" };
        if report.judge(&Found { section: L, key, name: &name, value, line: None }) && on && key == "prewarmer" {
            queries = plugin.texts(report, "queries");
        }
    }
    let queries: Vec<&str> = queries.iter().map(|query| query.trim().trim_end_matches(';')).collect();
    (!queries.is_empty()).then(|| ("connect_query", quoted(&queries.join("; "))))
}
