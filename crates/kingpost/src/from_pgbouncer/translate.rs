//! From PgBouncer's settings to Kingpost's. Whatever can't be carried over is a problem, and with a problem there is no translation.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use proxy::config::SocketMode;
use proxy::hba::{Fields, Rule};
use wire::md5;
use wire::scram::Verifier;

use super::Options;
use super::ini::{self, Entry};
use super::keys::{self, Fate, Section};
use super::plan::{Cluster, Line, Plan, quoted};
use crate::error::Failure;

/// The auth_query of PgBouncer from 1.24.1 on: it lets in no role that has expired or may not log in (CVE-2025-2291).
pub(crate) const SAFE_QUERY: &str = "SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END FROM pg_authid WHERE rolname=$1 AND rolcanlogin";
/// Its default before, which does.
const OLD_QUERY: &str = "select usename, passwd from pg_shadow where usename=$1";

/// Time limits that have the same names in Kingpost: in general, and for a user.
const TIME_LIMITS: [&str; 4] =
    ["client_idle_timeout", "idle_transaction_timeout", "query_timeout", "transaction_timeout"];

/// What the servers' Unix sockets are called where nothing names their directory.
const SOCKET_DIR: &str = "/var/run/postgresql";

/// How clients prove who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Auth {
    Trust,
    Md5,
    Scram,
    Cert,
    /// The rules say.
    Hba,
    /// Somebody else judges passwords: PAM or a directory.
    Elsewhere,
}

/// What auth_file has for a user.
enum Secret<'a> {
    None,
    Plain(&'a str),
    Verifier(&'a str),
    /// Nobody can log in with it, and why.
    Useless(&'static str),
}

/// A line of `[databases]`, `[users]` or `[peers]`: its key, and the pairs of its value.
type Named = Vec<(String, BTreeMap<String, String>)>;

/// Translates the settings of a file. `read_users` reads the users and secrets of an auth_file.
pub(super) fn translate(
    source: &Path,
    entries: &[Entry],
    read: super::Read<'_>,
    options: &Options,
) -> Result<Plan, Failure> {
    let mut translator = Translator {
        options,
        settings: BTreeMap::new(),
        databases: Named::new(),
        users: Named::new(),
        peers: Named::new(),
        secrets: Vec::new(),
        problems: Vec::new(),
        plan: Plan { source: source.display().to_string(), ..Plan::default() },
    };
    translator.sort(entries);
    if let Some(path) = translator.settings.get("auth_file").filter(|path| !path.is_empty()) {
        translator.secrets = ini::users(&read(Path::new(path))?);
    }
    let auth = translator.auth();
    translator.listen();
    translator.proxy();
    translator.pool();
    translator.client_tls();
    translator.server_tls();
    let looks_up = translator.auth_query(auth);
    translator.databases_and_nodes();
    translator.users(auth, looks_up);
    translator.operators(auth, read);
    translator.peers();
    let Translator { problems, plan, .. } = translator;
    if problems.is_empty() || options.ignore_all {
        return Ok(plan);
    }
    let count = if problems.len() == 1 { "1 setting".to_owned() } else { format!("{} settings", problems.len()) };
    let lines: Vec<String> = problems.iter().map(|(what, why)| format!("  {what}: {why}")).collect();
    Err(Failure::config(format!(
        "{}: {count} can't be carried over; nothing is written\n{}",
        source.display(),
        lines.join("\n")
    ))
    .advise(
        "change them there, or leave a setting out with --ignore KEY; the guide (Moving from PgBouncer) has every key",
    ))
}

struct Translator<'a> {
    options: &'a Options,
    /// `[pgbouncer]`
    settings: BTreeMap<String, String>,
    databases: Named,
    users: Named,
    peers: Named,
    /// Users and secrets of auth_file.
    secrets: Vec<(String, String)>,
    /// What can't be carried over, and why.
    problems: Vec<(String, String)>,
    plan: Plan,
}

impl Translator<'_> {
    /// True if `--ignore` names this setting: by its full name, `databases.shop.connect_query`, or by its last part.
    fn ignores(&self, name: &str) -> bool {
        let last = name.rsplit('.').next().unwrap_or(name);
        self.options.ignored.iter().any(|ignored| ignored == name || ignored == last)
    }

    fn problem(&mut self, name: &str, why: impl Into<String>) {
        let why = why.into();
        if self.ignores(name) {
            self.leave(name, format!("left out by --ignore ({why})"));
        } else {
            self.problems.push((name.to_owned(), why));
        }
    }

    fn leave(&mut self, name: &str, why: impl Into<String>) {
        self.plan.left_out.push((name.to_owned(), why.into()));
    }

    /// Sorts the settings by section, the last of a name counting, and judges every key.
    fn sort(&mut self, entries: &[Entry]) {
        for entry in entries {
            let section = Section::ALL.into_iter().find(|section| section.name() == entry.section);
            let name = match section {
                Some(Section::Pgbouncer) => entry.key.clone(),
                _ => format!("{}.{}", entry.section, entry.key),
            };
            if section != Some(Section::Pgbouncer) && self.ignores(&name) {
                self.leave(&name, "left out by --ignore");
                continue;
            }
            let list = match section {
                Some(Section::Pgbouncer) => {
                    self.settings.insert(entry.key.clone(), entry.value.clone());
                    continue;
                }
                Some(Section::Databases) => &mut self.databases,
                Some(Section::Users) => &mut self.users,
                Some(Section::Peers) => &mut self.peers,
                None => {
                    let why = format!("{}: PgBouncer has no section [{}]", entry.at, entry.section);
                    self.problem(&name, why);
                    continue;
                }
            };
            list.retain(|(key, _)| *key != entry.key);
            list.push((entry.key.clone(), ini::pairs(&entry.value).into_iter().collect()));
        }
        let mut settings = std::mem::take(&mut self.settings);
        settings.retain(|key, value| self.judge(Section::Pgbouncer, key, key, value));
        self.settings = settings;
        for section in [Section::Databases, Section::Users, Section::Peers] {
            let mut named = std::mem::take(self.named(section));
            for (entry, pairs) in &mut named {
                pairs.retain(|key, value| {
                    let name = format!("{}.{entry}.{key}", section.name());
                    self.judge(section, key, &name, value)
                });
            }
            *self.named(section) = named;
        }
        if !self.options.databases.is_empty() {
            for wanted in &self.options.databases {
                if !self.databases.iter().any(|(name, _)| name == wanted) {
                    self.problems
                        .push((format!("databases.{wanted}"), "--database names it, and it is not there".into()));
                }
            }
            self.databases.retain(|(name, _)| self.options.databases.contains(name));
        }
    }

    fn named(&mut self, section: Section) -> &mut Named {
        match section {
            Section::Databases => &mut self.databases,
            Section::Users => &mut self.users,
            Section::Peers | Section::Pgbouncer => &mut self.peers,
        }
    }

    /// True if a setting is one to carry over; otherwise what is said about it is noted.
    fn judge(&mut self, section: Section, key: &str, name: &str, value: &str) -> bool {
        let shown = if key.contains("password") { "…" } else { value };
        let what = format!("{name} = {shown}");
        let known = keys::find(section, key);
        if self.ignores(name) {
            let why = match known.map(|known| known.fate) {
                Some(Fate::Carried(to)) => format!("left out by --ignore ({to} would have been made of it)"),
                _ => "left out by --ignore".into(),
            };
            self.leave(&what, why);
            return false;
        }
        let Some(known) = known else {
            self.problems.push((what, format!("PgBouncer 1.25 has no such key in [{}]", section.name())));
            return false;
        };
        match known.fate {
            Fate::Carried(_) => true,
            Fate::Needless => {
                self.leave(&what, known.note);
                false
            }
            Fate::Refused(harmless) if harmless.contains(&value) => {
                self.leave(&what, "is so in Kingpost anyway");
                false
            }
            Fate::Refused(_) => {
                self.problems.push((what, known.note.to_owned()));
                false
            }
        }
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(String::as_str)
    }

    fn list(&self, key: &str) -> Vec<String> {
        let names = self.get(key).unwrap_or_default().split(',').map(|name| name.trim().to_owned());
        names.filter(|name| !name.is_empty()).collect()
    }

    /// A whole number in these bounds, as TOML.
    fn number(&mut self, name: &str, value: &str, bounds: std::ops::RangeInclusive<i64>) -> Option<String> {
        match value.parse::<i64>() {
            Ok(number) if bounds.contains(&number) => Some(number.to_string()),
            _ => {
                self.problem(
                    name,
                    format!("found {value:?}, expected a number from {} to {}", bounds.start(), bounds.end()),
                );
                None
            }
        }
    }

    /// As [`Translator::number`]; 0, which means no limit, becomes nothing.
    fn limit(&mut self, name: &str, value: &str, most: i64) -> Option<String> {
        if value == "0" { None } else { self.number(name, value, 1..=most) }
    }

    /// Seconds, perhaps with a fraction, as TOML. `never`: 0, which means never, is possible.
    fn seconds(&mut self, name: &str, value: &str, never: bool) -> Option<String> {
        let seconds = value.parse::<f64>().ok().filter(|seconds| seconds.is_finite() && (0.0..1e9).contains(seconds));
        let time = seconds.map(|seconds| Duration::from_millis((seconds * 1000.0).round() as u64));
        match time {
            None => self.problem(name, format!("found {value:?}, expected seconds")),
            Some(time) if time.is_zero() && !never => {
                self.problem(name, "found 0, which means for ever: Kingpost needs a limit here");
            }
            Some(time) => return Some(quoted(&humantime::format_duration(time).to_string())),
        }
        None
    }

    fn auth(&mut self) -> Auth {
        let auth = match self.get("auth_type").unwrap_or("md5") {
            "trust" => Auth::Trust,
            "md5" => Auth::Md5,
            "scram-sha-256" => Auth::Scram,
            "cert" => Auth::Cert,
            "hba" => Auth::Hba,
            // The service that PgBouncer asks PAM for; PostgreSQL's is another one.
            "pam" => self.judged("pam pamservice=pgbouncer"),
            "ldap" => {
                let options = self.get("auth_ldap_options").unwrap_or_default();
                self.judged(&format!("ldap {options}"))
            }
            other => {
                let why = format!("found {other:?}: Kingpost has trust, md5, scram-sha-256, cert, pam, ldap and hba");
                self.problem("auth_type", why);
                Auth::Md5
            }
        };
        let name = match auth {
            Auth::Trust => "trust",
            Auth::Scram => "scram-sha-256",
            Auth::Cert => "cert",
            // The rules decide; as what this is any kind of secret may be written.
            Auth::Md5 | Auth::Hba | Auth::Elsewhere => "md5",
        };
        self.plan.proxy.push(("auth", quoted(name)));
        match (auth, self.get("auth_ident_file").filter(|file| !file.is_empty()).map(quoted)) {
            (Auth::Hba, Some(file)) => self.plan.proxy.push(("ident_file", file)),
            (_, Some(_)) => self.leave("auth_ident_file", "PgBouncer reads it with auth_type = hba only"),
            (_, None) => {}
        }
        match (auth, self.get("auth_hba_file").filter(|file| !file.is_empty()).map(quoted)) {
            (Auth::Hba, Some(file)) => self.plan.proxy.push(("hba_file", file)),
            (Auth::Hba, None) => self.problem("auth_type", "found \"hba\" without auth_hba_file"),
            (_, Some(_)) => self.leave("auth_hba_file", "PgBouncer reads it with auth_type = hba only"),
            (_, None) => {}
        }
        auth
    }

    /// Has all clients log in by a method that only rules can name.
    fn judged(&mut self, method: &str) -> Auth {
        let fields = |kind, address| Fields { kind, database: "all,replication", user: "all", address, method };
        let rules = [fields("local", None), fields("host", Some("all"))];
        if let Err(why) = rules.into_iter().try_for_each(|rule| Rule::from_fields(rule).map(drop)) {
            self.problem("auth_ldap_options", why);
        }
        let shown = rules.map(|Fields { kind, database, user, address, method }| {
            let address = address.map_or_else(String::new, |address| format!("address = {}, ", quoted(address)));
            let (kind, database, user) = (quoted(kind), quoted(database), quoted(user));
            format!("{{ type = {kind}, database = {database}, user = {user}, {address}method = {} }}", quoted(method))
        });
        self.plan.proxy.push(("hba", format!("[{}]", shown.join(", "))));
        let why = "PgBouncer lets in whomever PAM or the directory lets in; Kingpost only who is also in proxy.users, or is looked up: add who is missing";
        self.leave("users that are not in auth_file", why);
        Auth::Elsewhere
    }

    fn listen(&mut self) {
        let port = self.get("listen_port").unwrap_or("6432").to_owned();
        if port.parse::<u16>().is_err() {
            return self.problem("listen_port", format!("found {port:?}, expected a port"));
        }
        for host in self.list("listen_addr") {
            self.plan.listen.push(match host.as_str() {
                "*" => format!("[::]:{port}"),
                address if address.contains(':') => format!("[{address}]:{port}"),
                host => format!("{host}:{port}"),
            });
        }
        // "" switches the socket off.
        let directory = self.get("unix_socket_dir").map(str::to_owned);
        match directory.as_deref() {
            Some("") => {}
            Some(directory) if directory.starts_with('/') => {
                self.plan.listen.push(format!("{directory}/.s.PGSQL.{port}"));
            }
            Some(_) => self.problem("unix_socket_dir", "expected an absolute path: Kingpost has no abstract sockets"),
            None if self.plan.listen.is_empty() => self.plan.listen.push(format!("/tmp/.s.PGSQL.{port}")),
            None => {}
        }
        if self.plan.listen.iter().any(|address| address.starts_with('/')) {
            let mode = self.get("unix_socket_mode").unwrap_or("0777").to_owned();
            match SocketMode::try_from(mode) {
                Ok(mode) => self.plan.socket.push(("mode", quoted(&String::from(mode)))),
                Err(error) => self.problem("unix_socket_mode", error.to_string()),
            }
            if let Some(group) = self.get("unix_socket_group").filter(|group| !group.is_empty()) {
                let group = quoted(group);
                self.plan.socket.push(("group", group));
            }
        }
    }

    fn proxy(&mut self) {
        let logins = if self.get("log_connections") == Some("0") { "refused" } else { "all" };
        self.plan.proxy.push(("log_logins", quoted(logins)));
        let most = self.get("max_client_conn").unwrap_or("100").to_owned();
        if let Some(number) = self.number("max_client_conn", &most, 1..=1_000_000) {
            self.plan.proxy.push(("max_clients", number));
        }
        let login = self.get("client_login_timeout").unwrap_or("60").to_owned();
        if let Some(time) = self.seconds("client_login_timeout", &login, false) {
            self.plan.proxy.push(("login_timeout", time));
        }
        for key in TIME_LIMITS {
            if let Some(value) = self.settings.get(key).cloned()
                && let Some(time) = self.seconds(key, &value, true)
            {
                self.plan.proxy.push((key, time));
            }
        }
    }

    fn pool(&mut self) {
        let mode = self.get("pool_mode").unwrap_or("session").to_owned();
        if let Some(mode) = self.mode("pool_mode", &mode) {
            self.plan.pool.push(("mode", mode));
        }
        let size = self.get("default_pool_size").unwrap_or("20").to_owned();
        if let Some(size) = self.number("default_pool_size", &size, 1..=10_000) {
            self.plan.pool.push(("size", size));
        }
        if let Some(least) = self.get("min_pool_size").map(str::to_owned)
            && let Some(least) = self.limit("min_pool_size", &least, 10_000)
        {
            self.plan.pool.push(("min_size", least));
        }
        if self.get("reserve_pool_timeout").is_none_or(|time| time.parse() != Ok(0.0)) {
            self.pool_number("reserve_pool_size", "reserve_size", 10_000);
            self.pool_time("reserve_pool_timeout", "reserve_timeout", None, false);
        } else if self.get("reserve_pool_size").is_some() {
            self.leave("reserve_pool_size", "reserve_pool_timeout is 0: PgBouncer does not use it");
        }
        self.pool_number("max_db_connections", "max_database_connections", 1_000_000);
        self.pool_number("max_user_connections", "max_user_connections", 1_000_000);
        for (key, to, default, never) in [
            ("query_wait_notify", "wait_notice", Some("5"), true),
            ("query_wait_timeout", "wait_timeout", Some("120"), false),
            ("server_connect_timeout", "connect_timeout", Some("15"), false),
            ("server_lifetime", "server_lifetime", None, true),
            ("server_idle_timeout", "server_idle_timeout", None, true),
        ] {
            self.pool_time(key, to, default, never);
        }
        match self.get("max_prepared_statements").map(str::to_owned) {
            None => {}
            Some(value) if value == "0" => self.leave("max_prepared_statements = 0", "prepared statements always work"),
            Some(value) => {
                if let Some(number) = self.number("max_prepared_statements", &value, 1..=100_000) {
                    self.plan.pool.push(("prepared_per_server", number));
                }
            }
        }
    }

    /// A number of `[pgbouncer]` becomes one of `[proxy.pool]`; 0, which means none, is left out.
    fn pool_number(&mut self, key: &'static str, to: &'static str, most: i64) {
        if let Some(value) = self.get(key).map(str::to_owned)
            && let Some(number) = self.limit(key, &value, most)
        {
            self.plan.pool.push((to, number));
        }
    }

    /// A time of `[pgbouncer]`, or else `default`, becomes one of `[proxy.pool]`.
    fn pool_time(&mut self, key: &'static str, to: &'static str, default: Option<&str>, never: bool) {
        if let Some(value) = self.get(key).or(default).map(str::to_owned)
            && let Some(time) = self.seconds(key, &value, never)
        {
            self.plan.pool.push((to, time));
        }
    }

    fn mode(&mut self, name: &str, value: &str) -> Option<String> {
        if ["transaction", "statement", "session"].contains(&value) {
            return Some(quoted(value));
        }
        self.problem(name, format!("found {value:?}, expected session, transaction or statement"));
        None
    }

    fn client_tls(&mut self) {
        let (mode, verifies) = match self.get("client_tls_sslmode").unwrap_or("disable") {
            "disable" => {
                return self.leave_files("client_tls", "client_tls_sslmode is disable: PgBouncer does not use it");
            }
            "allow" | "prefer" => ("allow", false),
            "require" => ("require", false),
            "verify-ca" | "verify-full" => ("require", true),
            other => {
                let why =
                    format!("found {other:?}, expected disable, allow, prefer, require, verify-ca or verify-full");
                return self.problem("client_tls_sslmode", why);
            }
        };
        let mut lines = vec![("mode", quoted(mode))];
        let files = self.tls_files("client_tls", true);
        // PgBouncer asks for certificates in every mode: rules with `cert` work with `require`, too.
        let asks = files.iter().any(|(key, _)| *key == "ca_file");
        lines.extend(files);
        if verifies || asks {
            lines.push(("client_cert", quoted(if verifies { "verify-ca" } else { "optional" })));
        }
        self.plan.proxy_tls = lines;
    }

    fn server_tls(&mut self) {
        let mode = match self.get("server_tls_sslmode").unwrap_or("prefer") {
            "disable" => {
                self.plan.cluster_tls = vec![("mode", quoted("disable"))];
                return self.leave_files("server_tls", "server_tls_sslmode is disable: PgBouncer does not use it");
            }
            "allow" | "prefer" => "prefer",
            "require" => "require",
            "verify-ca" => "verify-ca",
            "verify-full" => "verify-full",
            other => {
                let why =
                    format!("found {other:?}, expected disable, allow, prefer, require, verify-ca or verify-full");
                return self.problem("server_tls_sslmode", why);
            }
        };
        let mut lines = vec![("mode", quoted(mode))];
        lines.extend(self.tls_files("server_tls", mode.starts_with("verify")));
        self.plan.cluster_tls = lines;
    }

    fn leave_files(&mut self, side: &str, why: &str) {
        for file in ["key_file", "cert_file", "ca_file"] {
            let key = format!("{side}_{file}");
            if self.get(&key).is_some_and(|file| !file.is_empty()) {
                self.leave(&key, why);
            }
        }
    }

    /// Files and versions of `client_tls` or `server_tls`.
    fn tls_files(&mut self, side: &str, verifies: bool) -> Vec<Line> {
        let mut lines = Vec::new();
        for file in ["cert_file", "key_file", "ca_file"] {
            let key = format!("{side}_{file}");
            match self.get(&key).filter(|file| !file.is_empty()).map(quoted) {
                Some(_) if file == "ca_file" && !verifies => {
                    self.leave(&key, "PgBouncer verifies no certificate in this mode; verify-ca and verify-full do");
                }
                Some(value) => lines.push((file, value)),
                None => {}
            }
        }
        let key = format!("{side}_protocols");
        if let Some(versions) = self.get(&key).filter(|versions| !versions.is_empty()).map(str::to_owned) {
            let mut least = None;
            for version in versions.split([',', ':']).map(|version| version.trim().to_ascii_lowercase()) {
                match version.as_str() {
                    "secure" | "default" | "all" | "legacy" | "tlsv1" | "tlsv1.2" => least = Some("TLSv1.2"),
                    "tlsv1.3" => least = least.or(Some("TLSv1.3")),
                    "tlsv1.0" | "tlsv1.1" => {}
                    _ => {
                        self.problem(&key, format!("found {version:?}, expected tlsv1.2, tlsv1.3 or secure"));
                        return lines;
                    }
                }
            }
            match least {
                Some(least) => lines.push(("min_protocol_version", quoted(least))),
                None => self.problem(&key, "Kingpost speaks TLS 1.2 and 1.3 only"),
            }
        }
        lines
    }

    /// `[proxy.auth_query]`; true if users are looked up.
    fn auth_query(&mut self, auth: Auth) -> bool {
        let Some(user) = self.get("auth_user").filter(|user| !user.is_empty()).map(str::to_owned) else {
            for key in ["auth_query", "auth_dbname"] {
                if self.get(key).is_some() {
                    self.leave(key, "without auth_user PgBouncer looks nobody up");
                }
            }
            return false;
        };
        let query = self.get("auth_query").unwrap_or(SAFE_QUERY).to_owned();
        let plain = |query: &str| {
            query.to_ascii_lowercase().split_whitespace().collect::<Vec<_>>().join(" ").replace(" = ", "=")
        };
        let query = if plain(query.trim_end_matches(';')) == OLD_QUERY {
            let why =
                "it lets in roles that have expired (CVE-2025-2291): PgBouncer's default since 1.24.1 is in its place";
            self.leave(&format!("auth_query = {query}"), why);
            SAFE_QUERY.to_owned()
        } else {
            query
        };
        let mut lines = vec![("query", quoted(&query)), ("user", quoted(&user))];
        match self.secret(auth, &user) {
            Secret::Plain(password) => lines.push(("password", quoted(password))),
            Secret::None => {}
            Secret::Verifier(_) | Secret::Useless(_) => self.problem(
                "auth_user",
                "auth_file has no plain-text password for it, and Kingpost can't log in to a server with a hash",
            ),
        }
        if let Some(database) = self.get("auth_dbname").filter(|name| !name.is_empty()).map(str::to_owned) {
            let entry = self.databases.iter().find(|(name, _)| *name == database);
            let target = entry.and_then(|(_, pairs)| pairs.get("dbname")).unwrap_or(&database);
            lines.push(("database", quoted(target)));
        } else if let Some((name, pairs)) = self.databases.iter().find(|(name, _)| name != "*") {
            // PgBouncer asks in the database that the client wants.
            lines.push(("database", quoted(pairs.get("dbname").unwrap_or(name))));
        }
        self.plan.auth_query = lines;
        true
    }

    /// What auth_file has for a user, judged by how clients prove who they are.
    fn secret(&self, auth: Auth, user: &str) -> Secret<'_> {
        let secret = self.secrets.iter().find(|(name, _)| name == user).map(|(_, secret)| secret.as_str());
        match secret {
            None | Some("") => Secret::None,
            Some(secret) if secret.starts_with("SCRAM-SHA-256$") => match Verifier::parse(secret) {
                Ok(_) => Secret::Verifier(secret),
                Err(_) => Secret::Useless("its SCRAM secret in auth_file is malformed"),
            },
            Some(secret) if md5::Verifier::parse(secret).is_some() => match auth {
                Auth::Scram => {
                    Secret::Useless("auth_file has an MD5 hash, which nobody can log in with by scram-sha-256")
                }
                _ => Secret::Verifier(secret),
            },
            Some(secret) => Secret::Plain(secret),
        }
    }

    fn databases_and_nodes(&mut self) {
        let default_socket =
            self.get("unix_socket_dir").filter(|dir| dir.starts_with('/')).unwrap_or(SOCKET_DIR).to_owned();
        let of_all = self.get("max_db_client_connections").map(str::to_owned);
        let mut led: Vec<(String, Vec<String>)> = Vec::new();
        for (name, pairs) in self.databases.clone() {
            let of = |key: &str| format!("databases.{name}.{key}");
            if name == "pgbouncer" {
                self.problem("databases.pgbouncer", "the name is the console's, in PgBouncer and in Kingpost");
                continue;
            }
            let mut lines: Vec<Line> = Vec::new();
            if let Some(target) = pairs.get("dbname").filter(|target| **target != name) {
                lines.push(("dbname", quoted(target)));
            }
            match (pairs.get("user").filter(|user| !user.is_empty()), pairs.get("password")) {
                (Some(user), password) => {
                    lines.push(("server_user", quoted(user)));
                    match (password, self.secret(Auth::Md5, user)) {
                        (Some(password), _) => lines.push(("server_password", quoted(password))),
                        (None, Secret::Plain(password)) => lines.push(("server_password", quoted(password))),
                        (None, Secret::None) => {}
                        (None, Secret::Verifier(hash)) if md5::Verifier::parse(hash).is_some() => {
                            lines.push(("server_password", quoted(hash)));
                        }
                        (None, Secret::Verifier(_) | Secret::Useless(_)) => {
                            let why = "auth_file has neither a plain-text password nor an MD5 hash for it: nobody can log in to a server with a SCRAM verifier";
                            self.problem(&of("user"), why);
                        }
                    }
                }
                (None, Some(_)) => self.leave(&of("password"), "without user PgBouncer does not use it"),
                (None, None) => {}
            }
            if let Some(size) = pairs.get("pool_size")
                && let Some(size) = self.number(&of("pool_size"), size, 1..=10_000)
            {
                lines.push(("pool_size", size));
            }
            if let Some(mode) = pairs.get("pool_mode")
                && let Some(mode) = self.mode(&of("pool_mode"), mode)
            {
                lines.push(("pool_mode", mode));
            }
            if let Some(least) = pairs.get("min_pool_size")
                && let Some(least) = self.number(&of("min_pool_size"), least, 0..=10_000)
            {
                lines.push(("min_pool_size", least));
            }
            for key in ["reserve_pool", "reserve_pool_size"] {
                if let Some(size) = pairs.get(key)
                    && let Some(size) = self.number(&of(key), size, 0..=10_000)
                {
                    lines.retain(|(key, _)| *key != "reserve_pool_size");
                    lines.push(("reserve_pool_size", size));
                }
            }
            if let Some(most) = pairs.get("max_db_connections")
                && let Some(most) = self.number(&of("max_db_connections"), most, 0..=1_000_000)
            {
                lines.push(("max_connections", most));
            }
            if let Some(query) = pairs.get("connect_query").filter(|query| !query.is_empty()) {
                lines.push(("connect_query", quoted(query)));
            }
            let parameters: Vec<String> = [("datestyle", "DateStyle"), ("timezone", "TimeZone")]
                .iter()
                .filter_map(|(key, name)| Some((name, pairs.get(*key).filter(|value| !value.is_empty())?)))
                .map(|(name, value)| quoted(&format!("{name}={value}")))
                .collect();
            if !parameters.is_empty() {
                lines.push(("parameters", format!("[{}]", parameters.join(", "))));
            }
            if let Some(age) = pairs.get("server_lifetime")
                && let Some(age) = self.seconds(&of("server_lifetime"), age, true)
            {
                lines.push(("server_lifetime", age));
            }
            let most = pairs.get("max_db_client_connections").cloned().or(of_all.clone());
            if let Some(most) = most
                && let Some(most) = self.limit(&of("max_db_client_connections"), &most, 1_000_000)
            {
                lines.push(("max_clients", most));
            }
            let port = pairs.get("port").map_or("5432", String::as_str);
            let hosts = pairs.get("host").map(String::as_str).unwrap_or_default();
            let mut nodes = Vec::new();
            for host in hosts.split(',').map(str::trim) {
                match address(host, port, &default_socket) {
                    Ok(node) => nodes.push(node),
                    Err(why) => self.problem(&of("host"), why),
                }
            }
            led.push((name.clone(), nodes));
            self.plan.databases.push((name, lines));
        }
        if self.plan.databases.is_empty() {
            self.problem(
                "databases",
                "there is none: PgBouncer serves nobody without one, and Kingpost would serve every name",
            );
        }
        self.clusters(&led);
        let query =
            |key: &str| self.plan.auth_query.iter().find(|(name, _)| *name == key).map(|(_, value)| value.clone());
        let (user, password) = match &self.options.probe_user {
            Some(user) => (quoted(user), None),
            None => (query("user").unwrap_or_else(|| quoted("postgres")), query("password")),
        };
        self.plan.cluster.push(("user", user));
        self.plan.cluster.extend(password.map(|password| ("password", password)));
    }

    /// Which servers belong together: databases that share one lead to one cluster, others each to their own. `led`: the databases with their servers.
    fn clusters(&mut self, led: &[(String, Vec<String>)]) {
        let apart = if self.options.same_cluster { Vec::new() } else { groups(led) };
        if apart.len() < 2 {
            let mut nodes: Vec<String> = Vec::new();
            for node in led.iter().flat_map(|(_, nodes)| nodes) {
                if !nodes.contains(node) {
                    nodes.push(node.clone());
                }
            }
            return self.plan.clusters.push(Cluster { name: None, nodes });
        }
        let mut said = Vec::new();
        for (databases, nodes) in apart {
            let first = databases.iter().find(|name| *name != "*").map_or("others", String::as_str).to_owned();
            for (name, lines) in &mut self.plan.databases {
                // The first cluster is meant where none is named.
                if databases.contains(name) && !self.plan.clusters.is_empty() {
                    lines.insert(0, ("cluster", quoted(&first)));
                }
            }
            said.push(format!("{} on {}", databases.join(", "), nodes.join(", ")));
            self.plan.clusters.push(Cluster { name: Some(first), nodes });
        }
        self.plan.about_clusters = Some(format!(
            "Databases on different servers are in different clusters: {}. If some of the servers are standbys of others, say --same-cluster.",
            said.join("; ")
        ));
        if self.get("auth_dbname").is_none_or(str::is_empty) {
            // PgBouncer asks in the database that the client wants, and no other cluster has the first one's.
            self.plan.auth_query.retain(|(key, _)| *key != "database");
        }
    }

    fn users(&mut self, auth: Auth, looks_up: bool) {
        let of_all = self.get("max_user_client_connections").map(str::to_owned);
        let of_all = of_all.and_then(|most| self.limit("max_user_client_connections", &most, 1_000_000));
        self.plan.proxy.extend(of_all.clone().map(|most| ("max_clients_per_user", most)));
        let shows_certificates = self.plan.proxy_tls.iter().any(|(key, _)| *key == "client_cert");
        let mut names: Vec<String> = self.secrets.iter().map(|(name, _)| name.clone()).collect();
        names.extend(self.users.iter().map(|(name, _)| name.clone()));
        names.sort();
        names.dedup();
        for name in names {
            let pairs =
                self.users.iter().find(|(user, _)| *user == name).map(|(_, pairs)| pairs.clone()).unwrap_or_default();
            let listed = self.secrets.iter().any(|(user, _)| *user == name);
            let mut lines: Vec<Line> = Vec::new();
            let without = match self.secret(auth, &name) {
                Secret::Plain(password) => {
                    lines.push(("password", quoted(password)));
                    None
                }
                Secret::Verifier(verifier) => {
                    lines.push(("verifier", quoted(verifier)));
                    None
                }
                // Whoever judges has the secret.
                Secret::Useless(_) | Secret::None if auth == Auth::Elsewhere => None,
                Secret::Useless(why) => Some(why),
                Secret::None if listed && matches!(auth, Auth::Trust | Auth::Cert) => None,
                Secret::None if listed && auth == Auth::Hba && shows_certificates => {
                    lines.push(("auth", quoted("cert")));
                    None
                }
                Secret::None if listed && auth == Auth::Hba && !looks_up => {
                    let why = "auth_file has no secret for it: a rule may let it in without one, which Kingpost knows for all users only";
                    self.problem(&format!("auth_file.{name}"), why);
                    continue;
                }
                Secret::None if !listed && auth == Auth::Trust && looks_up => {
                    let why = "auth_file does not have it: with auth_type = trust Kingpost would let it in without looking it up";
                    self.problem(&format!("users.{name}"), why);
                    continue;
                }
                Secret::None if listed => Some("auth_file has an empty password for it, with which nobody can log in"),
                Secret::None => Some("auth_file does not have it"),
            };
            match without {
                Some(why) if looks_up => {
                    self.leave(&format!("the secret of user {name}"), format!("{why}: it is looked up"))
                }
                Some(why) => {
                    self.leave(&format!("user {name}"), why);
                    continue;
                }
                None => {}
            }
            if let Some(size) = pairs.get("pool_size")
                && let Some(size) = self.number(&format!("users.{name}.pool_size"), size, 1..=10_000)
            {
                lines.push(("pool_size", size));
            }
            for (key, to, most) in [
                ("reserve_pool_size", "reserve_pool_size", 10_000),
                ("max_user_connections", "max_connections", 1_000_000),
            ] {
                if let Some(number) = pairs.get(key)
                    && let Some(number) = self.number(&format!("users.{name}.{key}"), number, 0..=most)
                {
                    lines.push((to, number));
                }
            }
            if let Some(mode) = pairs.get("pool_mode")
                && let Some(mode) = self.mode(&format!("users.{name}.pool_mode"), mode)
            {
                lines.push(("pool_mode", mode));
            }
            for key in TIME_LIMITS {
                if let Some(time) = pairs.get(key)
                    && let Some(time) = self.seconds(&format!("users.{name}.{key}"), time, true)
                {
                    lines.push((key, time));
                }
            }
            match pairs.get("max_user_client_connections").map(String::as_str) {
                // Without a limit, whatever the others have.
                Some("0") if of_all.is_some() => lines.push(("max_clients", "1000000".into())),
                Some(most) => {
                    let most = self.limit(&format!("users.{name}.max_user_client_connections"), most, 1_000_000);
                    lines.extend(most.map(|most| ("max_clients", most)));
                }
                None => {}
            }
            self.plan.users.push((name, lines));
        }
        if auth == Auth::Elsewhere && self.plan.users.is_empty() && !looks_up {
            let why = "there are no users in auth_file: Kingpost lets in only users whom it knows; name them there (a password may be empty), or in [users]";
            self.problem("auth_type", why);
        }
        if auth == Auth::Trust && self.plan.users.is_empty() && !looks_up {
            let why = "found \"trust\" and no users in auth_file: PgBouncer lets nobody in then, Kingpost everybody";
            self.problem("auth_type", why);
        }
    }

    fn operators(&mut self, auth: Auth, read: super::Read<'_>) {
        let (admins, viewers) = (self.list("admin_users"), self.list("stats_users"));
        let all = admins
            .iter()
            .map(|name| ("admin_users", name))
            .chain(viewers.iter().filter(|name| !admins.contains(name)).map(|name| ("stats_users", name)));
        for (key, name) in all {
            let mut lines: Vec<Line> = Vec::new();
            match self.secret(auth, name) {
                Secret::Plain(password) => lines.push(("password", quoted(password))),
                Secret::Verifier(verifier) => lines.push(("verifier", quoted(verifier))),
                Secret::None if matches!(auth, Auth::Trust | Auth::Cert | Auth::Elsewhere) => {}
                Secret::None | Secret::Useless(_) => {
                    let why =
                        "has no usable secret in auth_file, and operators of Kingpost's console are not looked up";
                    self.problem(&format!("{key}.{name}"), why);
                    continue;
                }
            }
            if key == "stats_users" {
                lines.push(("role", quoted("viewer")));
            }
            self.plan.operators.push((name.clone(), lines));
        }
        // Whom a rule trusts is an operator where none is listed.
        let trusts = match auth {
            Auth::Trust => true,
            Auth::Hba => self.get("auth_hba_file").is_some_and(|file| {
                read(Path::new(file))
                    .is_ok_and(|rules| rules.lines().any(|line| line.split_whitespace().any(|word| word == "trust")))
            }),
            Auth::Md5 | Auth::Scram | Auth::Cert | Auth::Elsewhere => false,
        };
        if trusts && self.plan.operators.is_empty() {
            let why =
                "there is none, and Kingpost lets everybody whom it trusts into a console without operators: name one";
            self.problems.push(("admin_users".into(), why.into()));
        }
    }

    fn peers(&mut self) {
        let own = self.get("peer_id").filter(|id| *id != "0").map(str::to_owned);
        let Some(own) = own else {
            if !self.peers.is_empty() {
                self.leave("[peers]", "without peer_id PgBouncer does not use them");
            }
            return;
        };
        let Some(id) = self.number("peer_id", &own, 1..=31) else { return };
        self.plan.proxy.push(("peer_id", id));
        for (name, pairs) in self.peers.clone() {
            if name == own {
                continue;
            }
            let of = |key: &str| format!("peers.{name}.{key}");
            let Some(id) = self.number(&format!("peers.{name}"), &name, 1..=31).and_then(|id| id.parse().ok()) else {
                continue;
            };
            let port = pairs.get("port").map_or("6432", String::as_str);
            let host = pairs.get("host").map(String::as_str).unwrap_or_default();
            if !host.starts_with('/') && host.parse::<IpAddr>().is_err() {
                self.problem(&of("host"), format!("found {host:?}, expected an IP address or a directory"));
                continue;
            }
            match address(host, port, "") {
                Ok(address) => self.plan.peers.push((id, address)),
                Err(why) => self.problem(&of("host"), why),
            }
        }
    }
}

/// The address of a server, as Kingpost writes it. `socket_dir`: of whoever names no host.
fn address(host: &str, port: &str, socket_dir: &str) -> Result<String, String> {
    if !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return Err(format!("found port {port:?}, expected a port from 1 to 65535"));
    }
    match host {
        "" => Ok(format!("{socket_dir}/.s.PGSQL.{port}")),
        directory if directory.starts_with('/') => Ok(format!("{directory}/.s.PGSQL.{port}")),
        socket if socket.starts_with('@') => Err(format!("found {socket:?}: Kingpost has no abstract sockets")),
        address if address.contains(':') => Ok(format!("[{address}]:{port}")),
        host => Ok(format!("{host}:{port}")),
    }
}

/// Databases that share a server, directly or through others, and all of their servers.
fn groups(led: &[(String, Vec<String>)]) -> Vec<(Vec<String>, Vec<String>)> {
    let mut groups: Vec<(Vec<String>, Vec<String>)> = Vec::new();
    for (name, nodes) in led {
        let (mut names, mut all) = (vec![name.clone()], nodes.clone());
        groups.retain_mut(|(others, theirs)| {
            let shares = theirs.iter().any(|node| nodes.contains(node));
            if shares {
                names.splice(0..0, others.drain(..));
                all.splice(0..0, theirs.drain(..));
            }
            !shares
        });
        all.sort();
        all.dedup();
        groups.push((names, all));
    }
    groups
}
