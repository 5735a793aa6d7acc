//! Translation of pgpool-II's settings to Kingpost's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proxy::config::SocketMode;
use proxy::hba_entries;

use super::conf::{self, Entry, list};
use super::keys::{C, TABLE};
use super::nodes;
use super::passwords::{self, Secret};
use crate::keys::Fate;
use crate::members::rule;
use crate::options::{Options, Read};
use crate::plan::{Line, Plan, quoted, quoted_list};
use crate::prober::Login;
use crate::report::{Found, Report, boolean};
use process::Failure;

/// The PAM service that pgpool-II uses; PostgreSQL's is another one.
const PAM_SERVICE: &str = "pgpool";

/// Users of pgpool-II's own sessions with the servers, each with its password and database.
const WATCHERS: [[&str; 3]; 2] = [
    ["sr_check_user", "sr_check_password", "sr_check_database"],
    ["health_check_user", "health_check_password", "health_check_database"],
];

/// pgpool-II's files.
#[derive(Debug)]
pub(in super::super) struct Files {
    pub(in super::super) conf: PathBuf,
    /// pool_hba.conf; None: in the directory of pgpool.conf.
    pub(in super::super) hba: Option<PathBuf>,
    /// pool_passwd; None: the path in pgpool.conf.
    pub(in super::super) passwords: Option<PathBuf>,
}

/// The settings to carry over, by key.
pub(super) struct Settings(BTreeMap<String, String>);

/// Returns the documented key of a numbered key in a file: `backend_portN` for `backend_port1`.
fn documented(key: &str) -> String {
    let stem = key.trim_end_matches(|c: char| c.is_ascii_digit());
    let numbered = format!("{stem}N");
    let is_numbered = stem != key && TABLE.find(C, key).is_none() && TABLE.find(C, &numbered).is_some();
    if is_numbered { numbered } else { key.to_owned() }
}

impl Settings {
    /// Checks every setting; the last one of a key counts.
    fn judged(report: &mut Report<'_>, entries: Vec<Entry>) -> Settings {
        let mut last: BTreeMap<String, (String, usize)> = BTreeMap::new();
        for Entry { key, value, line } in entries {
            last.insert(key, (value, line));
        }
        let mut settings = BTreeMap::new();
        for (name, (value, line)) in last {
            let key = documented(&name);
            // 0 and 1 are Boolean values, too.
            let truth = TABLE.find(C, &key).is_some_and(|known| match known.fate {
                Fate::Refused(harmless) => harmless.iter().any(|value| ["on", "off"].contains(value)),
                Fate::Carried(_) | Fate::Needless => false,
            });
            let value = match value.as_str() {
                "0" if truth => "off".to_owned(),
                "1" if truth => "on".to_owned(),
                _ => value,
            };
            if report.judge(&Found { section: C, key: &key, name: &name, value: &value, line: Some(line) }) {
                settings.insert(name, value);
            }
        }
        Settings(settings)
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    fn filled(&self, key: &str) -> Option<&str> {
        self.get(key).filter(|value| !value.is_empty())
    }

    /// Returns the numbers behind a key that may occur several times.
    pub(super) fn numbers(&self, stem: &str) -> Vec<String> {
        let numbers = self.0.keys().filter_map(|key| key.strip_prefix(stem));
        numbers
            .filter(|number| !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit()))
            .map(str::to_owned)
            .collect()
    }

    pub(super) fn flag(&self, report: &mut Report<'_>, key: &str, default: bool) -> bool {
        match self.get(key) {
            None => default,
            Some("0") => false,
            Some("1") => true,
            Some(value) => boolean(value).unwrap_or_else(|| {
                report.problem(key, format!("found {value:?}, expected on or off"));
                default
            }),
        }
    }

    /// Returns a time as TOML; `unit` is that of a bare number.
    fn time(
        &self,
        report: &mut Report<'_>,
        key: &str,
        unit: &str,
        default: Option<&str>,
        never: bool,
    ) -> Option<String> {
        let value = self.get(key).or(default)?;
        match conf::time(value, unit) {
            Some(time) => report.time(key, time, never),
            None => {
                report.problem(key, format!("found {value:?}, expected a time such as 30s or 5min"));
                None
            }
        }
    }

    fn number(&self, report: &mut Report<'_>, key: &str, default: i64, least: i64) -> Option<i64> {
        let value = self.get(key).map_or_else(|| default.to_string(), str::to_owned);
        report.number(key, &value, least..=1_000_000)?.parse().ok()
    }
}

/// Reads pgpool-II's files, and returns the configuration to write.
pub(in super::super) fn plan(files: &Files, read: Read<'_>, options: &Options) -> Result<Plan, Failure> {
    let file = files.conf.as_path();
    let mut report = Report::new(options, &TABLE);
    let mut plan = Plan::new(file, "from-pgpool", "pgpool-II");
    let settings = Settings::judged(&mut report, conf::read(file, read)?);
    let beside = |name: &str| file.parent().unwrap_or(Path::new("")).join(name);
    let passwords = match (&files.passwords, settings.get("pool_passwd").unwrap_or("pool_passwd")) {
        (Some(path), _) => passwords::read(&read(path)?),
        (None, "") => Vec::new(),
        (None, name) => passwords::read(&read(&beside(name))?),
    };
    listen(&mut report, &mut plan, &settings);
    plan.proxy.insert(0, ("auth", quoted("md5")));
    if settings.flag(&mut report, "enable_pool_hba", false) {
        let path = files.hba.clone().unwrap_or_else(|| beside("pool_hba.conf"));
        rules(&mut report, &mut plan, &path, &read(&path)?);
    } else {
        report.leave("enable_pool_hba = off", "pgpool-II leaves it to the servers who comes in; Kingpost lets in the users of pool_passwd by their passwords");
    }
    users(&mut report, &mut plan, &passwords);
    tls(&mut report, &mut plan, &settings, &beside);
    let balances = nodes::read(&mut report, &mut plan, &settings);
    pool(&mut report, &mut plan, &settings, balances);
    routing(&mut report, &mut plan, &settings, balances);
    watch(&mut report, &mut plan, &settings, &passwords, options);
    plan.left_out = report.finish(file, "Moving from pgpool-II")?;
    Ok(plan)
}

fn listen(report: &mut Report<'_>, plan: &mut Plan, settings: &Settings) {
    let Some(port) = settings.number(report, "port", 9999, 1).filter(|port| *port <= 65535) else { return };
    for host in list(settings.get("listen_addresses").unwrap_or("localhost")) {
        plan.listen.push(match host {
            "*" => format!("[::]:{port}"),
            address if address.contains(':') => format!("[{address}]:{port}"),
            host => format!("{host}:{port}"),
        });
    }
    for directory in list(settings.get("unix_socket_directories").unwrap_or_default()) {
        if directory.starts_with('/') {
            plan.listen.push(format!("{directory}/.s.PGSQL.{port}"));
        } else {
            report.problem("unix_socket_directories", "expected absolute paths");
        }
    }
    if plan.listen.iter().any(|address| address.starts_with('/')) {
        match SocketMode::try_from(settings.get("unix_socket_permissions").unwrap_or("0777").to_owned()) {
            Ok(mode) => plan.socket.push(("mode", quoted(&String::from(mode)))),
            Err(error) => report.problem("unix_socket_permissions", error.to_string()),
        }
        plan.socket.extend(settings.filled("unix_socket_group").map(|group| ("group", quoted(group))));
    }
    if plan.listen.is_empty() {
        report.insist("listen_addresses", "there is no address: name one, or unix_socket_directories");
    }
    let logins = if settings.flag(report, "log_connections", false) { "all" } else { "refused" };
    plan.proxy.push(("log_logins", quoted(logins)));
    let login = settings.time(report, "authentication_timeout", "s", Some("60"), false);
    plan.proxy.extend(login.map(|time| ("login_timeout", time)));
    let idle = settings.time(report, "client_idle_limit", "s", None, true);
    plan.proxy.extend(idle.map(|time| ("client_idle_timeout", time)));
}

/// Translates the rules of pool_hba.conf, in their order.
fn rules(report: &mut Report<'_>, plan: &mut Plan, path: &Path, text: &str) {
    let name = |line: usize| format!("{}, line {line}", path.display());
    // pgpool-II does not join continued lines; joined, the rule would be another one.
    if let Some(at) = text.lines().position(|line| line.trim_end().ends_with('\\')) {
        report.insist(&name(at + 1), "found a backslash at the end of the line");
    }
    let entries = match hba_entries::entries(text) {
        Ok(entries) => entries,
        Err(errors) => {
            for error in errors {
                report.insist(&name(error.line), error.message);
            }
            return;
        }
    };
    // pgpool-II has no console: any user that a rule trusts would be its operator.
    for kind in ["local", "host"] {
        let mut console = rule(kind, "kingpost,pgbouncer", "all", "reject");
        console.retain(|(key, _)| kind == "host" || *key != "address");
        plan.rules.push(console);
    }
    for entry in entries {
        let mut method = entry.method;
        if method == "pam" || (method.starts_with("pam ") && !method.contains("pamservice=")) {
            method.push_str(&format!(" pamservice={PAM_SERVICE}"));
        }
        let mut lines: Vec<Line> =
            vec![("type", quoted(&entry.kind)), ("database", quoted(&entry.database)), ("user", quoted(&entry.user))];
        lines.extend(entry.address.map(|address| ("address", quoted(&address))));
        lines.push(("method", quoted(&method)));
        plan.rules.push(lines);
    }
}

fn users(report: &mut Report<'_>, plan: &mut Plan, passwords: &[(String, Secret)]) {
    for (name, secret) in passwords {
        match secret {
            Secret::Plain(password) => plan.users.push((name.clone(), vec![("password", quoted(password))])),
            Secret::Verifier(verifier) => plan.users.push((name.clone(), vec![("verifier", quoted(verifier))])),
            Secret::Useless(why) => report.problem(&format!("pool_passwd.{name}"), *why),
        }
    }
    if plan.users.is_empty() {
        report.insist(
            "pool_passwd",
            "there are no users in it that can log in: Kingpost lets in only users whom it knows",
        );
    }
}

fn tls(report: &mut Report<'_>, plan: &mut Plan, settings: &Settings, beside: &dyn Fn(&str) -> PathBuf) {
    if !settings.flag(report, "ssl", false) {
        plan.cluster_tls.push(("mode", quoted("disable")));
        for key in ["ssl_cert", "ssl_key", "ssl_ca_cert"] {
            if settings.filled(key).is_some() {
                report.leave(key, "ssl is off: pgpool-II does not use it");
            }
        }
        return;
    }
    let file = |key: &str| settings.filled(key).map(|name| quoted(&beside(name).display().to_string()));
    let authorities = file("ssl_ca_cert");
    plan.cluster_tls.push(("mode", quoted("prefer")));
    plan.cluster_tls.extend(authorities.clone().map(|file| ("ca_file", file)));
    match (file("ssl_cert"), file("ssl_key")) {
        (Some(certificate), Some(key)) => {
            plan.proxy_tls = vec![("mode", quoted("allow")), ("cert_file", certificate), ("key_file", key)];
            if let Some(authorities) = authorities {
                plan.proxy_tls.extend([("ca_file", authorities), ("client_cert", quoted("optional"))]);
            }
        }
        (None, None) => report.leave("ssl = on", "there is no ssl_cert: clients come without TLS, as with pgpool-II"),
        (_, _) => report.problem("ssl", "expected both of ssl_cert and ssl_key, or neither"),
    }
}

fn pool(report: &mut Report<'_>, plan: &mut Plan, settings: &Settings, balances: bool) {
    if balances {
        plan.pool.push(("mode", quoted("transaction")));
        // Clients of pgpool-II keep their server connections, with all state that functions leave there.
        plan.pool.push(("unknown_functions", quoted("pin")));
    } else {
        plan.pool.push(("mode", quoted("session")));
    }
    let children = settings.number(report, "num_init_children", 32, 1);
    let reserved = settings.number(report, "reserved_connections", 0, 0);
    let pools = settings.number(report, "max_pool", 4, 0);
    if let (Some(children), Some(reserved), Some(pools)) = (children, reserved, pools) {
        if reserved >= children {
            report.problem("reserved_connections", "it leaves no connection of num_init_children");
        }
        if children > 10_000 {
            report.problem("num_init_children", "Kingpost has at most 10000 server connections of a database and user");
        }
        plan.proxy.push(("max_clients", (children - reserved).to_string()));
        plan.pool.push(("size", children.to_string()));
        if pools > 0 {
            plan.pool.push(("max_node_connections", children.saturating_mul(pools).min(1_000_000).to_string()));
        }
    }
    let idle = settings.time(report, "connection_life_time", "s", Some("0"), true);
    plan.pool.extend(idle.map(|time| ("server_idle_timeout", time)));
    let connect = settings.time(report, "connect_timeout", "ms", Some("10000"), false);
    plan.pool.extend(connect.map(|time| ("connect_timeout", time)));
}

fn routing(report: &mut Report<'_>, plan: &mut Plan, settings: &Settings, balances: bool) {
    if plan.about_routing.is_empty() {
        plan.about_routing = "As pgpool-II has it. \"auto\" lets replicas answer reads.";
    }
    plan.routing.insert(0, ("route", quoted(if balances { "auto" } else { "primary" })));
    match settings.get("disable_load_balance_on_write").unwrap_or("transaction") {
        "off" => plan.routing.push(("consistency", quoted("eventual"))),
        "transaction" | "trans_transaction" | "always" | "dml_adaptive" => {}
        other => {
            report.problem("disable_load_balance_on_write", format!("found {other:?}, which pgpool-II does not know"))
        }
    }
    let functions = list(settings.get("read_only_function_list").unwrap_or_default());
    let plain = |name: &&str| name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '$' | '.'));
    if let Some(pattern) = functions.iter().find(|name| !plain(name) || name.matches('.').count() > 1) {
        report.problem(
            "read_only_function_list",
            format!("found {pattern:?}, expected names: Kingpost has no patterns of functions"),
        );
    } else if !functions.is_empty() {
        plan.routing.push(("read_functions", quoted_list(&functions)));
    }
    let preferences = list(settings.get("database_redirect_preference_list").unwrap_or_default());
    for preference in &preferences {
        let parts = preference.rsplit_once(':').map(|(name, node)| (name.trim(), node.trim()));
        match parts {
            Some((name, "primary" | "primary(1.0)")) if plain(&name) && !name.contains('.') => {
                if !plan.databases.iter().any(|(other, _)| other == name) {
                    plan.databases.push((name.to_owned(), vec![("route", quoted("primary"))]));
                }
            }
            _ => {
                let why = format!(
                    "found {preference:?}, expected NAME:primary: Kingpost has no nodes, shares or patterns here"
                );
                report.problem("database_redirect_preference_list", why);
            }
        }
    }
    if !plan.databases.is_empty() {
        // All other databases, which are all databases if none is listed.
        plan.databases.push(("*".to_owned(), Vec::new()));
    }
}

/// Translates the lag limit, and the users and databases of the server checks.
fn watch(
    report: &mut Report<'_>,
    plan: &mut Plan,
    settings: &Settings,
    passwords: &[(String, Secret)],
    options: &Options,
) {
    if settings.get("delay_threshold_by_time") != Some("0") {
        let limit = settings.time(report, "delay_threshold_by_time", "ms", None, false);
        plan.cluster.extend(limit.map(|limit| ("lag_limit", limit)));
    }
    let named = WATCHERS.iter().filter_map(|[user, key, database]| Some((settings.filled(user)?, *key, *database)));
    for (at, (user, key, database)) in named.enumerate() {
        let secret = match settings.filled(key) {
            Some(secret) => Some(passwords::secret_of(secret)),
            None => passwords.iter().find(|(name, _)| name == user).map(|(_, secret)| secret.clone()),
        };
        let password = match secret {
            None => None,
            Some(Secret::Plain(password)) => Some(password),
            // Another login is chosen, or may exist.
            Some(Secret::Useless(_) | Secret::Verifier(_)) if at > 0 || options.probe_user.is_some() => None,
            Some(Secret::Useless(why)) => {
                report.problem(key, why);
                None
            }
            Some(Secret::Verifier(_)) => {
                report.problem(
                    key,
                    "Kingpost can't log in to a server with a hash: name the password, or another user with --probe-user",
                );
                None
            }
        };
        let database = settings.filled(database).unwrap_or("postgres");
        plan.logins.push(Login::named(user, password.as_deref(), Some(database)));
    }
    // pgpool-II logs in to the servers as its clients do.
    plan.logins.extend(passwords.iter().filter_map(|(name, secret)| match secret {
        Secret::Plain(password) => Some(Login::of_clients(quoted(name), quoted(password), None)),
        Secret::Verifier(_) | Secret::Useless(_) => None,
    }));
}
