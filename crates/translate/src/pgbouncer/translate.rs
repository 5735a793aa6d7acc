//! Translation of PgBouncer's settings to Kingpost's. A setting that cannot be carried over is a problem, and any problem prevents the translation.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use proxy::config::SocketMode;
use proxy::hba::{Fields, Rule};
use wire::md5;
use wire::scram::Verifier;

use super::ini::{self, Entry};
use super::keys::{D, P, R, TABLE, U};
use crate::keys::SYSTEM_CAS;
use crate::lookup;
use crate::options::{Options, Read};
use crate::plan::{Line, Plan, quoted};
use crate::prober::Login;
use crate::report::{Found, Report};
use crate::server::{Servers, address};
use config::SAFE_QUERY;
use process::Failure;

/// Time limits that have the same names in Kingpost: in general, and for a user.
const TIME_LIMITS: [&str; 4] =
    ["client_idle_timeout", "idle_transaction_timeout", "query_timeout", "transaction_timeout"];

/// Directory of the servers' Unix sockets if none is named.
const SOCKET_DIR: &str = "/var/run/postgresql";

/// Authentication method of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Auth {
    Trust,
    Md5,
    Scram,
    Cert,
    /// The method of the matching rule.
    Hba,
    /// An external authenticator checks passwords: PAM or a directory.
    Elsewhere,
}

/// A user's secret in auth_file.
enum Secret<'a> {
    None,
    Plain(&'a str),
    Verifier(&'a str),
    /// A secret with which nobody can log in, and the reason.
    Useless(&'static str),
}

/// A line of `[databases]`, `[users]` or `[peers]`: its key, and the pairs of its value.
type Named = Vec<(String, BTreeMap<String, String>)>;

/// Translates the settings of a file. `read_users` reads the users and secrets of an auth_file.
pub(super) fn translate(source: &Path, entries: &[Entry], read: Read<'_>, options: &Options) -> Result<Plan, Failure> {
    let mut translator = Translator {
        options,
        settings: BTreeMap::new(),
        databases: Named::new(),
        users: Named::new(),
        peers: Named::new(),
        secrets: Vec::new(),
        report: Report::new(options, &TABLE),
        plan: Plan::new(source, "from-pgbouncer", "PgBouncer"),
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
    translator.logins();
    translator.peers();
    let Translator { report, mut plan, .. } = translator;
    plan.left_out = report.finish(source, "Moving from PgBouncer")?;
    plan.routing = vec![("route", quoted("primary"))];
    plan.about_routing = "As PgBouncer: everything to the primary. \"auto\" lets replicas answer reads.";
    Ok(plan)
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
    report: Report<'a>,
    plan: Plan,
}

impl Translator<'_> {
    /// Sorts the settings by section, the last value of a name counting, and checks every key.
    fn sort(&mut self, entries: &[Entry]) {
        // The settings of `[pgbouncer]`, and the line numbers of settings.
        let mut settings: BTreeMap<String, (String, usize)> = BTreeMap::new();
        let mut lines: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for entry in entries {
            let section = entry.section.as_str();
            let name = if section == P { entry.key.clone() } else { format!("{section}.{}", entry.key) };
            if section != P && self.report.ignores(&name) {
                self.report.leave(&name, "left out by --ignore");
                continue;
            }
            let list = match section {
                P => {
                    settings.insert(entry.key.clone(), (entry.value.clone(), entry.line));
                    continue;
                }
                D => &mut self.databases,
                U => &mut self.users,
                R => &mut self.peers,
                _ => {
                    let why = format!("{}: PgBouncer has no section [{section}]", entry.at());
                    self.report.problem(&name, why);
                    continue;
                }
            };
            lines.insert((section, &entry.key), entry.line);
            list.retain(|(key, _)| *key != entry.key);
            list.push((entry.key.clone(), ini::pairs(&entry.value).into_iter().collect()));
        }
        for (key, (value, line)) in settings {
            let found = Found { section: P, key: &key, name: &key, value: &value, line: Some(line) };
            if self.report.judge(&found) {
                self.settings.insert(key, value);
            }
        }
        for (section, named) in [(D, &mut self.databases), (U, &mut self.users), (R, &mut self.peers)] {
            for (entry, pairs) in named {
                let line = lines.get(&(section, entry.as_str())).copied();
                pairs.retain(|key, value| {
                    let name = format!("{section}.{entry}.{key}");
                    self.report.judge(&Found { section, key, name: &name, value, line })
                });
            }
        }
        self.report.chosen(&mut self.databases, "databases", |(name, _)| name);
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(String::as_str)
    }

    fn list(&self, key: &str) -> Vec<String> {
        let names = self.get(key).unwrap_or_default().split(',').map(|name| name.trim().to_owned());
        names.filter(|name| !name.is_empty()).collect()
    }

    fn auth(&mut self) -> Auth {
        let auth = match self.get("auth_type").unwrap_or("md5") {
            "trust" => Auth::Trust,
            "md5" => Auth::Md5,
            "scram-sha-256" => Auth::Scram,
            "cert" => Auth::Cert,
            "hba" => Auth::Hba,
            // The PAM service that PgBouncer uses; PostgreSQL's is another one.
            "pam" => self.judged("pam pamservice=pgbouncer"),
            "ldap" => {
                let options = self.get("auth_ldap_options").unwrap_or_default();
                self.judged(&format!("ldap {options}"))
            }
            other => {
                let why = format!("found {other:?}: Kingpost has trust, md5, scram-sha-256, cert, pam, ldap and hba");
                self.report.problem("auth_type", why);
                Auth::Md5
            }
        };
        let name = match auth {
            Auth::Trust => "trust",
            Auth::Scram => "scram-sha-256",
            Auth::Cert => "cert",
            // The rules decide; with `md5` any kind of secret may be written.
            Auth::Md5 | Auth::Hba | Auth::Elsewhere => "md5",
        };
        self.plan.proxy.push(("auth", quoted(name)));
        match (auth, self.get("auth_ident_file").filter(|file| !file.is_empty()).map(quoted)) {
            (Auth::Hba, Some(file)) => self.plan.proxy.push(("ident_file", file)),
            (_, Some(_)) => self.report.leave("auth_ident_file", "PgBouncer reads it with auth_type = hba only"),
            (_, None) => {}
        }
        match (auth, self.get("auth_hba_file").filter(|file| !file.is_empty()).map(quoted)) {
            (Auth::Hba, Some(file)) => self.plan.proxy.push(("hba_file", file)),
            (Auth::Hba, None) => self.report.problem("auth_type", "found \"hba\" without auth_hba_file"),
            (_, Some(_)) => self.report.leave("auth_hba_file", "PgBouncer reads it with auth_type = hba only"),
            (_, None) => {}
        }
        auth
    }

    /// Makes all clients log in by a method that only rules can name.
    fn judged(&mut self, method: &str) -> Auth {
        let fields = |kind, address| Fields { kind, database: "all,replication", user: "all", address, method };
        let rules = [fields("local", None), fields("host", Some("all"))];
        if let Err(why) = rules.into_iter().try_for_each(|rule| Rule::from_fields(rule).map(drop)) {
            self.report.problem("auth_ldap_options", why);
        }
        let shown = rules.map(|Fields { kind, database, user, address, method }| {
            let address = address.map_or_else(String::new, |address| format!("address = {}, ", quoted(address)));
            let (kind, database, user) = (quoted(kind), quoted(database), quoted(user));
            format!("{{ type = {kind}, database = {database}, user = {user}, {address}method = {} }}", quoted(method))
        });
        self.plan.proxy.push(("hba", format!("[{}]", shown.join(", "))));
        let why = "PgBouncer lets in whomever PAM or the directory lets in; Kingpost only who is also in proxy.users, or is looked up: add who is missing";
        self.report.leave("users that are not in auth_file", why);
        Auth::Elsewhere
    }

    fn listen(&mut self) {
        let port = self.get("listen_port").unwrap_or("6432").to_owned();
        if port.parse::<u16>().is_err() {
            return self.report.problem("listen_port", format!("found {port:?}, expected a port"));
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
            Some(_) => {
                self.report.problem("unix_socket_dir", "expected an absolute path: Kingpost has no abstract sockets")
            }
            None if self.plan.listen.is_empty() => self.plan.listen.push(format!("/tmp/.s.PGSQL.{port}")),
            None => {}
        }
        if self.plan.listen.iter().any(|address| address.starts_with('/')) {
            let mode = self.get("unix_socket_mode").unwrap_or("0777").to_owned();
            match SocketMode::try_from(mode) {
                Ok(mode) => self.plan.socket.push(("mode", quoted(&String::from(mode)))),
                Err(error) => self.report.problem("unix_socket_mode", error.to_string()),
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
        if let Some(number) = self.report.number("max_client_conn", &most, 1..=1_000_000) {
            self.plan.proxy.push(("max_clients", number));
        }
        let login = self.get("client_login_timeout").unwrap_or("60").to_owned();
        if let Some(time) = self.report.seconds("client_login_timeout", &login, false) {
            self.plan.proxy.push(("login_timeout", time));
        }
        if let Some(notice) = self.get("login_notify_message").filter(|text| !text.is_empty()).map(quoted) {
            self.plan.proxy.push(("login_notice", notice));
        }
        for key in TIME_LIMITS {
            if let Some(value) = self.settings.get(key).cloned()
                && let Some(time) = self.report.seconds(key, &value, true)
            {
                self.plan.proxy.push((key, time));
            }
        }
    }

    fn pool(&mut self) {
        let mode = self.get("pool_mode").unwrap_or("session").to_owned();
        if let Some(mode) = self.report.mode("pool_mode", &mode) {
            self.plan.pool.push(("mode", mode));
        }
        let size = self.get("default_pool_size").unwrap_or("20").to_owned();
        if let Some(size) = self.report.number("default_pool_size", &size, 1..=10_000) {
            self.plan.pool.push(("size", size));
        }
        if let Some(least) = self.get("min_pool_size").map(str::to_owned)
            && let Some(least) = self.report.limit("min_pool_size", &least, 10_000)
        {
            self.plan.pool.push(("min_size", least));
        }
        if self.get("reserve_pool_timeout").is_none_or(|time| time.parse() != Ok(0.0)) {
            self.pool_number("reserve_pool_size", "reserve_size", 10_000);
            self.pool_time("reserve_pool_timeout", "reserve_timeout", None, false);
        } else if self.get("reserve_pool_size").is_some() {
            self.report.leave("reserve_pool_size", "reserve_pool_timeout is 0: PgBouncer does not use it");
        }
        self.pool_number("max_db_connections", "max_database_connections", 1_000_000);
        self.pool_number("max_user_connections", "max_user_connections", 1_000_000);
        for (key, to, default, never) in [
            ("query_wait_notify", "wait_notice", Some("5"), true),
            ("query_wait_timeout", "wait_timeout", Some("120"), false),
            ("server_connect_timeout", "connect_timeout", Some("15"), false),
            ("server_lifetime", "server_lifetime", None, true),
            ("server_idle_timeout", "server_idle_timeout", None, true),
            ("pool_idle_timeout", "idle_timeout", None, true),
        ] {
            self.pool_time(key, to, default, never);
        }
        match self.get("max_prepared_statements").map(str::to_owned) {
            None => {}
            Some(value) if value == "0" => {
                self.report.leave("max_prepared_statements = 0", "prepared statements always work")
            }
            Some(value) => {
                if let Some(number) = self.report.number("max_prepared_statements", &value, 1..=100_000) {
                    self.plan.pool.push(("prepared_per_server", number));
                }
            }
        }
    }

    /// Carries a number of `[pgbouncer]` over to `[proxy.pool]`; 0, which means no limit, is left out.
    fn pool_number(&mut self, key: &'static str, to: &'static str, most: i64) {
        if let Some(value) = self.get(key).map(str::to_owned)
            && let Some(number) = self.report.limit(key, &value, most)
        {
            self.plan.pool.push((to, number));
        }
    }

    /// Carries a time of `[pgbouncer]`, or else `default`, over to `[proxy.pool]`.
    fn pool_time(&mut self, key: &'static str, to: &'static str, default: Option<&str>, never: bool) {
        if let Some(value) = self.get(key).or(default).map(str::to_owned)
            && let Some(time) = self.report.seconds(key, &value, never)
        {
            self.plan.pool.push((to, time));
        }
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
                return self.report.problem("client_tls_sslmode", why);
            }
        };
        let mut lines = vec![("mode", quoted(mode))];
        let files = self.tls_files("client_tls", true);
        // PgBouncer requests certificates in every mode: rules with `cert` work with `require`, too.
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
                return self.report.problem("server_tls_sslmode", why);
            }
        };
        let mut lines = vec![("mode", quoted(mode))];
        let verifies = mode.starts_with("verify");
        lines.extend(self.tls_files("server_tls", verifies));
        if verifies && !lines.iter().any(|(key, _)| *key == "ca_file") {
            lines.push(("ca_file", quoted(SYSTEM_CAS)));
        }
        self.plan.cluster_tls = lines;
    }

    fn leave_files(&mut self, side: &str, why: &str) {
        for file in ["key_file", "cert_file", "ca_file"] {
            let key = format!("{side}_{file}");
            if self.get(&key).is_some_and(|file| !file.is_empty()) {
                self.report.leave(&key, why);
            }
        }
    }

    /// Returns the files and versions of `client_tls` or `server_tls`.
    fn tls_files(&mut self, side: &str, verifies: bool) -> Vec<Line> {
        let mut lines = Vec::new();
        for file in ["cert_file", "key_file", "ca_file"] {
            let key = format!("{side}_{file}");
            match self.get(&key).filter(|file| !file.is_empty()).map(quoted) {
                Some(_) if file == "ca_file" && !verifies => {
                    self.report
                        .leave(&key, "PgBouncer verifies no certificate in this mode; verify-ca and verify-full do");
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
                        self.report.problem(&key, format!("found {version:?}, expected tlsv1.2, tlsv1.3 or secure"));
                        return lines;
                    }
                }
            }
            match least {
                Some(least) => lines.push(("min_protocol_version", quoted(least))),
                None => self.report.problem(&key, "Kingpost speaks TLS 1.2 and 1.3 only"),
            }
        }
        lines
    }

    /// Writes `[proxy.auth_query]`; returns true if users are looked up.
    fn auth_query(&mut self, auth: Auth) -> bool {
        let Some(user) = self.get("auth_user").filter(|user| !user.is_empty()).map(str::to_owned) else {
            for key in ["auth_query", "auth_dbname"] {
                if self.get(key).is_some() {
                    self.report.leave(key, "without auth_user PgBouncer looks nobody up");
                }
            }
            return false;
        };
        let query = self.get("auth_query").unwrap_or(SAFE_QUERY).to_owned();
        let query = lookup::safe(&mut self.report, "auth_query", query);
        let mut lines = vec![("query", quoted(&query)), ("user", quoted(&user))];
        let mut login = Login::named(&user, None, None);
        match self.secret(auth, &user) {
            Secret::Plain(password) => {
                login = Login::named(&user, Some(password), None);
                lines.push(("password", quoted(password)));
            }
            Secret::None => {}
            Secret::Verifier(_) | Secret::Useless(_) => self.report.problem(
                "auth_user",
                "auth_file has no plain-text password for it, and Kingpost can't log in to a server with a hash",
            ),
        }
        if let Some(database) = self.get("auth_dbname").filter(|name| !name.is_empty()).map(str::to_owned) {
            let entry = self.databases.iter().find(|(name, _)| *name == database);
            let target = entry.and_then(|(_, pairs)| pairs.get("dbname")).unwrap_or(&database);
            login.database = Some(quoted(target));
            lines.push(("database", quoted(target)));
        } else if let Some((name, pairs)) = self.databases.iter().find(|(name, _)| name != "*") {
            // PgBouncer runs the lookup in the database that the client requests.
            lines.push(("database", quoted(pairs.get("dbname").unwrap_or(name))));
        }
        self.plan.auth_query = lines;
        self.plan.logins.push(login);
        true
    }

    /// Returns a user's secret in auth_file, as far as the authentication method can use it.
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
        let mut led: Servers = Vec::new();
        for (name, pairs) in self.databases.clone() {
            let of = |key: &str| format!("databases.{name}.{key}");
            if name == "pgbouncer" {
                self.report.problem("databases.pgbouncer", "the name is the console's, in PgBouncer and in Kingpost");
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
                            self.report.problem(&of("user"), why);
                        }
                    }
                }
                (None, Some(_)) => self.report.leave(&of("password"), "without user PgBouncer does not use it"),
                (None, None) => {}
            }
            if let Some(size) = pairs.get("pool_size")
                && let Some(size) = self.report.number(&of("pool_size"), size, 1..=10_000)
            {
                lines.push(("pool_size", size));
            }
            if let Some(mode) = pairs.get("pool_mode")
                && let Some(mode) = self.report.mode(&of("pool_mode"), mode)
            {
                lines.push(("pool_mode", mode));
            }
            if let Some(least) = pairs.get("min_pool_size")
                && let Some(least) = self.report.number(&of("min_pool_size"), least, 0..=10_000)
            {
                lines.push(("min_pool_size", least));
            }
            for key in ["reserve_pool", "reserve_pool_size"] {
                if let Some(size) = pairs.get(key)
                    && let Some(size) = self.report.number(&of(key), size, 0..=10_000)
                {
                    lines.retain(|(key, _)| *key != "reserve_pool_size");
                    lines.push(("reserve_pool_size", size));
                }
            }
            if let Some(most) = pairs.get("max_db_connections")
                && let Some(most) = self.report.number(&of("max_db_connections"), most, 0..=1_000_000)
            {
                lines.push(("max_connections", most));
            }
            if let Some(query) = pairs.get("connect_query").filter(|query| !query.is_empty()) {
                lines.push(("connect_query", quoted(query)));
            }
            let names =
                [("datestyle", "DateStyle"), ("timezone", "TimeZone"), ("application_name", "application_name")];
            let parameters: Vec<String> = names
                .iter()
                .filter_map(|(key, name)| Some((name, pairs.get(*key).filter(|value| !value.is_empty())?)))
                .map(|(name, value)| quoted(&format!("{name}={value}")))
                .collect();
            if !parameters.is_empty() {
                lines.push(("parameters", format!("[{}]", parameters.join(", "))));
            }
            if let Some(age) = pairs.get("server_lifetime")
                && let Some(age) = self.report.seconds(&of("server_lifetime"), age, true)
            {
                lines.push(("server_lifetime", age));
            }
            // -1 stands for the value of [pgbouncer].
            if let Some(time) = pairs.get("query_wait_timeout").filter(|time| *time != "-1")
                && let Some(time) = self.report.seconds(&of("query_wait_timeout"), time, false)
            {
                lines.push(("wait_timeout", time));
            }
            let most = pairs.get("max_db_client_connections").cloned().or(of_all.clone());
            if let Some(most) = most
                && let Some(most) = self.report.limit(&of("max_db_client_connections"), &most, 1_000_000)
            {
                lines.push(("max_clients", most));
            }
            let port = pairs.get("port").map_or("5432", String::as_str);
            let hosts = pairs.get("host").map(String::as_str).unwrap_or_default();
            let mut nodes = Vec::new();
            for host in hosts.split(',').map(str::trim) {
                match address(host, port, &default_socket) {
                    Ok(node) => nodes.push(node),
                    Err(why) => self.report.problem(&of("host"), why),
                }
            }
            led.push((name.clone(), nodes));
            self.plan.databases.push((name, lines));
        }
        if self.plan.databases.is_empty() {
            self.report.problem(
                "databases",
                "there is none: PgBouncer serves nobody without one, and Kingpost would serve every name",
            );
        }
        if self.plan.lead(led, self.options.same_cluster) && self.get("auth_dbname").is_none_or(str::is_empty) {
            // PgBouncer runs the lookup in the database that the client requests, and other clusters lack the first one's.
            self.plan.auth_query.retain(|(key, _)| *key != "database");
        }
    }

    fn users(&mut self, auth: Auth, looks_up: bool) {
        let of_all = self.get("max_user_client_connections").map(str::to_owned);
        let of_all = of_all.and_then(|most| self.report.limit("max_user_client_connections", &most, 1_000_000));
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
                // The external authenticator has the secret.
                Secret::Useless(_) | Secret::None if auth == Auth::Elsewhere => None,
                Secret::Useless(why) => Some(why),
                Secret::None if listed && matches!(auth, Auth::Trust | Auth::Cert) => None,
                Secret::None if listed && auth == Auth::Hba && shows_certificates => {
                    lines.push(("auth", quoted("cert")));
                    None
                }
                Secret::None if listed && auth == Auth::Hba && !looks_up => {
                    let why = "auth_file has no secret for it: a rule may let it in without one, which Kingpost knows for all users only";
                    self.report.problem(&format!("auth_file.{name}"), why);
                    continue;
                }
                Secret::None if !listed && auth == Auth::Trust && looks_up => {
                    let why = "auth_file does not have it: with auth_type = trust Kingpost would let it in without looking it up";
                    self.report.problem(&format!("users.{name}"), why);
                    continue;
                }
                Secret::None if listed => Some("auth_file has an empty password for it, with which nobody can log in"),
                Secret::None => Some("auth_file does not have it"),
            };
            match without {
                Some(why) if looks_up => {
                    self.report.leave(&format!("the secret of user {name}"), format!("{why}: it is looked up"))
                }
                Some(why) => {
                    self.report.leave(&format!("user {name}"), why);
                    continue;
                }
                None => {}
            }
            if let Some(size) = pairs.get("pool_size")
                && let Some(size) = self.report.number(&format!("users.{name}.pool_size"), size, 1..=10_000)
            {
                lines.push(("pool_size", size));
            }
            for (key, to, most) in [
                ("reserve_pool_size", "reserve_pool_size", 10_000),
                ("max_user_connections", "max_connections", 1_000_000),
            ] {
                if let Some(number) = pairs.get(key)
                    && let Some(number) = self.report.number(&format!("users.{name}.{key}"), number, 0..=most)
                {
                    lines.push((to, number));
                }
            }
            if let Some(mode) = pairs.get("pool_mode")
                && let Some(mode) = self.report.mode(&format!("users.{name}.pool_mode"), mode)
            {
                lines.push(("pool_mode", mode));
            }
            for key in TIME_LIMITS {
                if let Some(time) = pairs.get(key)
                    && let Some(time) = self.report.seconds(&format!("users.{name}.{key}"), time, true)
                {
                    lines.push((key, time));
                }
            }
            if let Some(time) = pairs.get("query_wait_timeout").filter(|time| *time != "-1")
                && let Some(time) = self.report.seconds(&format!("users.{name}.query_wait_timeout"), time, false)
            {
                lines.push(("wait_timeout", time));
            }
            match pairs.get("max_user_client_connections").map(String::as_str) {
                // No limit for this user, although the others have one.
                Some("0") if of_all.is_some() => lines.push(("max_clients", "1000000".into())),
                Some(most) => {
                    let most = self.report.limit(&format!("users.{name}.max_user_client_connections"), most, 1_000_000);
                    lines.extend(most.map(|most| ("max_clients", most)));
                }
                None => {}
            }
            self.plan.users.push((name, lines));
        }
        if auth == Auth::Elsewhere && self.plan.users.is_empty() && !looks_up {
            let why = "there are no users in auth_file: Kingpost lets in only users whom it knows; name them there (a password may be empty), or in [users]";
            self.report.problem("auth_type", why);
        }
        if auth == Auth::Trust && self.plan.users.is_empty() && !looks_up {
            let why = "found \"trust\" and no users in auth_file: PgBouncer lets nobody in then, Kingpost everybody";
            self.report.problem("auth_type", why);
        }
    }

    fn operators(&mut self, auth: Auth, read: Read<'_>) {
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
                    self.report.problem(&format!("{key}.{name}"), why);
                    continue;
                }
            }
            if key == "stats_users" {
                lines.push(("role", quoted("viewer")));
            }
            self.plan.operators.push((name.clone(), lines));
        }
        // Without listed operators, a user that a rule trusts is an operator.
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
            self.report.insist("admin_users", why);
        }
    }

    /// Collects the server logins besides auth_user's, those first that the file gives for a database. Operators need not be roles of the servers.
    fn logins(&mut self) {
        for (entry, lines) in &self.plan.databases {
            let of = |key: &str| lines.iter().find(|(of, _)| *of == key).map(|(_, value)| value.clone());
            let plain = |password: &String| md5::Verifier::parse(password.trim_matches('"')).is_none();
            if let (Some(user), Some(password)) = (of("server_user"), of("server_password").filter(plain)) {
                self.plan.logins.push(Login::of_clients(user, password, Some(entry)));
            }
        }
        let operators: Vec<String> = [self.list("admin_users"), self.list("stats_users")].concat();
        let mut users: Vec<&(String, String)> = self.secrets.iter().collect();
        users.sort_by_key(|(name, _)| operators.contains(name));
        let plain = users.into_iter().filter_map(|(name, _)| match self.secret(Auth::Md5, name) {
            Secret::Plain(password) => Some(Login::of_clients(quoted(name), quoted(password), None)),
            Secret::None | Secret::Verifier(_) | Secret::Useless(_) => None,
        });
        let plain: Vec<Login> = plain.collect();
        self.plan.logins.extend(plain);
    }

    fn peers(&mut self) {
        let own = self.get("peer_id").filter(|id| *id != "0").map(str::to_owned);
        let Some(own) = own else {
            if !self.peers.is_empty() {
                self.report.leave("[peers]", "without peer_id PgBouncer does not use them");
            }
            return;
        };
        let Some(id) = self.report.number("peer_id", &own, 1..=31) else { return };
        self.plan.proxy.push(("peer_id", id));
        for (name, pairs) in self.peers.clone() {
            if name == own {
                continue;
            }
            let of = |key: &str| format!("peers.{name}.{key}");
            let Some(id) = self.report.number(&format!("peers.{name}"), &name, 1..=31).and_then(|id| id.parse().ok())
            else {
                continue;
            };
            let port = pairs.get("port").map_or("6432", String::as_str);
            let host = pairs.get("host").map(String::as_str).unwrap_or_default();
            if !host.starts_with('/') && host.parse::<IpAddr>().is_err() {
                self.report.problem(&of("host"), format!("found {host:?}, expected an IP address or a directory"));
                continue;
            }
            match address(host, port, "") {
                Ok(address) => self.plan.peers.push((id, address)),
                Err(why) => self.report.problem(&of("host"), why),
            }
        }
    }
}
