//! `kingpost config from-pgbouncer`: a configuration made from PgBouncer's.
//!
//! What is translated comes out as keys, what is not as a comment that says why. PgBouncer's files are described in its manual,
//! pgbouncer(5); its parser is followed where the manual is silent.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use wire::md5;

use crate::cli::FromPgbouncerArgs;
use crate::error::Failure;
use crate::out;

/// Deepest `%include` in an `%include`.
const DEEPEST: usize = 10;

/// Prints the translation of a file.
pub(crate) fn run(args: &FromPgbouncerArgs) -> Result<(), Failure> {
    let read = |path: &Path| std::fs::read_to_string(path).map_err(|error| Failure::path("read", path, &error));
    let text = translate(&args.file, &read)?;
    match &args.out {
        None => out::raw(&text),
        Some(path) => {
            use std::io::Write;
            use std::os::unix::fs::OpenOptionsExt;
            // It may hold passwords: for its owner alone, and nothing is overwritten.
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
            written.map_err(|error| Failure::path("write", path, &error))?;
        }
    }
    Ok(())
}

/// One setting of an ini file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    section: String,
    key: String,
    value: String,
}

type Read<'a> = &'a dyn Fn(&Path) -> Result<String, Failure>;

/// The translation of a text; whatever it refers to is empty.
pub(crate) fn translated(text: &str) -> Result<String, Failure> {
    let file = Path::new("pgbouncer.ini");
    translate(file, &|path| Ok(if path == file { text.to_owned() } else { String::new() }))
}

/// Reads `file` and what it refers to, and gives the whole configuration as text.
fn translate(file: &Path, read: Read<'_>) -> Result<String, Failure> {
    let mut entries = Vec::new();
    read_ini(file, read, DEEPEST, &mut String::new(), &mut entries)?;
    let mut translation = Translation { name: file.display().to_string(), ..Translation::default() };
    for entry in &entries {
        match entry.section.as_str() {
            "pgbouncer" => translation.setting(&entry.key, &entry.value),
            "databases" => translation.database(&entry.key, &entry.value),
            section => {
                let what = format!("[{section}] {} = {}", entry.key, entry.value);
                translation.left.push((what, "settings of users and peers have no counterpart".into()));
            }
        }
    }
    translation.read_users(read)?;
    Ok(translation.render())
}

fn read_ini(
    file: &Path,
    read: Read<'_>,
    deepest: usize,
    section: &mut String,
    entries: &mut Vec<Entry>,
) -> Result<(), Failure> {
    let text = read(file)?;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let at = || format!("{}, line {}", file.display(), number + 1);
        if line.is_empty() || line.starts_with(';') || line.starts_with('#') {
            continue;
        }
        if let Some(path) = line.strip_prefix("%include") {
            let Some(left) = deepest.checked_sub(1) else {
                return Err(Failure::config(format!("{}: too many %include in one another", at())));
            };
            read_ini(Path::new(path.trim()), read, left, section, entries)?;
        } else if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            *section = name.trim().to_ascii_lowercase();
        } else if let Some((key, value)) = line.split_once('=') {
            let key = key.trim().trim_matches('"').to_owned();
            entries.push(Entry { section: section.clone(), key, value: value.trim().to_owned() });
        } else {
            return Err(Failure::config(format!("{}: found {line:?}, expected key = value or [section]", at())));
        }
    }
    Ok(())
}

/// What comes of it.
#[derive(Debug, Default)]
struct Translation {
    name: String,
    hosts: Vec<String>,
    port: Option<String>,
    socket_dir: Option<String>,
    auth: Option<&'static str>,
    /// `[proxy.auth_query]`
    query: Vec<(&'static str, String)>,
    auth_file: Option<PathBuf>,
    admins: Vec<String>,
    viewers: Vec<String>,
    /// Of `[proxy]` and `[proxy.pool]`: key and value as TOML.
    proxy: Vec<(&'static str, String)>,
    pool: Vec<(&'static str, String)>,
    /// Name and settings, as TOML.
    databases: Vec<(String, Vec<(&'static str, String)>)>,
    nodes: Vec<String>,
    users: BTreeMap<String, String>,
    /// What has no counterpart, and why.
    left: Vec<(String, String)>,
}

/// How a setting of `[pgbouncer]` is translated.
enum Rule {
    /// `[proxy]`
    Proxy(&'static str, As),
    /// `[proxy.pool]`
    Pool(&'static str, As),
    /// It is not, and this is why.
    Left(&'static str),
}

/// What its value is.
#[derive(Clone, Copy)]
enum As {
    Number,
    /// Seconds, perhaps with a fraction.
    Seconds,
}

const NEEDLESS: &str = "not needed";
const STANDARD_ERROR: &str = "Kingpost logs to standard error: the service manager keeps it";

const RULES: &[(&str, Rule)] = &[
    ("max_client_conn", Rule::Proxy("max_clients", As::Number)),
    ("client_login_timeout", Rule::Proxy("login_timeout", As::Seconds)),
    ("client_idle_timeout", Rule::Proxy("client_idle_timeout", As::Seconds)),
    ("idle_transaction_timeout", Rule::Proxy("idle_transaction_timeout", As::Seconds)),
    ("query_timeout", Rule::Proxy("query_timeout", As::Seconds)),
    ("default_pool_size", Rule::Pool("size", As::Number)),
    ("query_wait_timeout", Rule::Pool("wait_timeout", As::Seconds)),
    ("server_lifetime", Rule::Pool("server_lifetime", As::Seconds)),
    ("server_idle_timeout", Rule::Pool("server_idle_timeout", As::Seconds)),
    ("server_connect_timeout", Rule::Pool("connect_timeout", As::Seconds)),
    ("max_prepared_statements", Rule::Pool("prepared_per_server", As::Number)),
    ("logfile", Rule::Left(STANDARD_ERROR)),
    ("syslog", Rule::Left(STANDARD_ERROR)),
    ("pidfile", Rule::Left("Kingpost stays in the foreground: the service manager knows its process")),
    ("ignore_startup_parameters", Rule::Left("not needed: start-up parameters are passed on to the servers")),
    ("track_extra_parameters", Rule::Left("not needed: all start-up parameters move with the client")),
    (
        "server_reset_query",
        Rule::Left("not needed: a connection with anything left in its session is cleaned or closed"),
    ),
    ("server_reset_query_always", Rule::Left(NEEDLESS)),
    ("server_check_query", Rule::Left("not needed: nodes are probed")),
    ("server_check_delay", Rule::Left("not needed: nodes are probed")),
    ("so_reuseport", Rule::Left("not needed: one process uses every core (proxy.workers)")),
    ("listen_backlog", Rule::Left(NEEDLESS)),
    (
        "max_db_connections",
        Rule::Left("pools are bounded for each database and user: pool_size of databases and users"),
    ),
    ("max_user_connections", Rule::Left("pools are bounded for each database and user: pool_size of users")),
];

impl Translation {
    fn setting(&mut self, key: &str, value: &str) {
        let names = || value.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
        match key {
            "listen_addr" => self.hosts = names(),
            "listen_port" => self.port = Some(value.to_owned()),
            "unix_socket_dir" => self.socket_dir = Some(value.to_owned()),
            "auth_file" => self.auth_file = Some(value.into()),
            "auth_hba_file" => self.proxy.push(("hba_file", quoted(value))),
            "auth_query" => self.query.push(("query", quoted(value))),
            "auth_user" => self.query.push(("user", quoted(value))),
            "auth_dbname" => self.query.push(("database", quoted(value))),
            "admin_users" => self.admins = names(),
            "stats_users" => self.viewers = names(),
            "auth_type" => match value {
                "trust" | "any" => self.auth = Some("trust"),
                "scram-sha-256" => self.auth = Some("scram-sha-256"),
                "md5" => self.auth = Some("md5"),
                "cert" => self.auth = Some("cert"),
                "hba" => self.auth = Some("scram-sha-256"),
                _ => self.leave(key, value, "Kingpost has trust, scram-sha-256, md5 and cert"),
            },
            "pool_mode" => match value {
                "transaction" | "statement" | "session" => self.pool.push(("mode", quoted(value))),
                _ => self.leave(key, value, "Kingpost has transaction, statement and session"),
            },
            _ => match RULES.iter().find(|(name, _)| *name == key).map(|(_, rule)| rule) {
                Some(Rule::Left(why)) => self.leave(key, value, why),
                Some(Rule::Proxy(name, of)) => match of.toml(value) {
                    Some(toml) => self.proxy.push((name, toml)),
                    None => self.leave(key, value, "found no number"),
                },
                // 0 keeps PgBouncer from preparing anything; Kingpost always can.
                Some(Rule::Pool("prepared_per_server", _)) if value == "0" => {
                    self.leave(key, value, "prepared statements always work");
                }
                Some(Rule::Pool(name, of)) => match of.toml(value) {
                    Some(toml) => self.pool.push((name, toml)),
                    None => self.leave(key, value, "found no number"),
                },
                None => self.leave(key, value, "Kingpost has nothing like it"),
            },
        }
    }

    fn leave(&mut self, key: &str, value: &str, why: &str) {
        let secret = key.contains("password") || key.contains("secret");
        let value = if secret { "…" } else { value };
        self.left.push((format!("{key} = {value}"), why.to_owned()));
    }

    fn database(&mut self, name: &str, value: &str) {
        let mut settings = Vec::new();
        let (mut hosts, mut port) = (String::new(), "5432".to_owned());
        for (key, value) in pairs(value) {
            match key.as_str() {
                "host" => hosts = value,
                "port" => port = value,
                "dbname" if value != name => settings.push(("dbname", quoted(&value))),
                "dbname" => {}
                "pool_size" => match As::Number.toml(&value) {
                    Some(number) => settings.push(("pool_size", number)),
                    None => self.leave(&format!("[databases] {name}: pool_size"), &value, "found no number"),
                },
                "pool_mode" if ["transaction", "statement", "session"].contains(&value.as_str()) => {
                    settings.push(("pool_mode", quoted(&value)));
                }
                "user" => {
                    let why = "clients keep their own user towards the servers";
                    self.leave(&format!("[databases] {name}: user"), &value, why);
                }
                other => self.leave(&format!("[databases] {name}: {other}"), &value, "Kingpost has nothing like it"),
            }
        }
        for host in hosts.split(',').map(str::trim) {
            let node = match host {
                "" => format!("/var/run/postgresql/.s.PGSQL.{port}"),
                directory if directory.starts_with('/') => format!("{directory}/.s.PGSQL.{port}"),
                address if address.contains(':') => format!("[{address}]:{port}"),
                host => format!("{host}:{port}"),
            };
            if !self.nodes.contains(&node) {
                self.nodes.push(node);
            }
        }
        self.databases.push((name.to_owned(), settings));
    }

    fn read_users(&mut self, read: Read<'_>) -> Result<(), Failure> {
        let Some(path) = &self.auth_file else { return Ok(()) };
        for line in read(path)?.lines() {
            // `"name" "secret"`, each with "" for a quote; the rest of the line does not count.
            let Some((name, rest)) = in_quotes(line.trim_start()) else { continue };
            let secret = in_quotes(rest.trim_start()).map(|(secret, _)| secret).unwrap_or_default();
            self.users.insert(name, secret);
        }
        Ok(())
    }

    /// `password` or `verifier`, or what to put there.
    fn secret(&self, user: &str) -> String {
        match self.users.get(user).map(String::as_str) {
            None | Some("") => "#password = \"…\" # PgBouncer's files have none".into(),
            Some(secret) if secret.starts_with("SCRAM-SHA-256$") || md5::Verifier::parse(secret).is_some() => {
                format!("verifier = {}", quoted(secret))
            }
            Some(secret) => format!("password = {}", quoted(secret)),
        }
    }

    fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut text);
        text
    }

    /// `[proxy.auth_query]`, if anything is said of it.
    fn write_query(&self, to: &mut String) -> std::fmt::Result {
        if self.query.is_empty() {
            return Ok(());
        }
        writeln!(to, "\n[proxy.auth_query]")?;
        if !self.query.iter().any(|(key, _)| *key == "query") {
            // PgBouncer's own default.
            writeln!(to, "query = \"SELECT usename, passwd FROM pg_shadow WHERE usename=$1\"")?;
        }
        for (key, value) in &self.query {
            writeln!(to, "{key} = {value}")?;
        }
        let user = self.query.iter().find(|(key, _)| *key == "user").map(|(_, name)| name.trim_matches('"'));
        match user.and_then(|user| self.users.get(user)).filter(|secret| !secret.is_empty()) {
            Some(secret) if !secret.starts_with("SCRAM-SHA-256$") && md5::Verifier::parse(secret).is_none() => {
                writeln!(to, "password = {}", quoted(secret))
            }
            _ => Ok(()),
        }
    }

    fn write(&self, to: &mut String) -> std::fmt::Result {
        writeln!(to, "# Made from {} by `kingpost config from-pgbouncer`.", in_comment(&self.name))?;
        writeln!(to, "# Look it over, then: kingpost check --config FILE")?;
        if !self.left.is_empty() {
            writeln!(to, "#\n# Not translated:")?;
            for (what, why) in &self.left {
                writeln!(to, "#   {}: {why}", in_comment(what))?;
            }
        }
        writeln!(to, "\n[proxy]")?;
        writeln!(to, "listen = [{}]", self.listen().iter().map(|a| quoted(a)).collect::<Vec<_>>().join(", "))?;
        // PgBouncer's own default is md5.
        writeln!(to, "auth = {}", quoted(self.auth.unwrap_or("md5")))?;
        for (key, value) in &self.proxy {
            writeln!(to, "{key} = {value}")?;
        }
        self.write_query(to)?;
        writeln!(to, "\n[proxy.pool]")?;
        // Its default, too, and not Kingpost's.
        if !self.pool.iter().any(|(key, _)| *key == "mode") {
            writeln!(to, "mode = \"session\"")?;
        }
        for (key, value) in &self.pool {
            writeln!(to, "{key} = {value}")?;
        }
        writeln!(
            to,
            "\n[proxy.routing]\n# As PgBouncer: everything to the primary. \"auto\" lets replicas answer reads.\nroute = \"primary\""
        )?;
        for (name, settings) in &self.databases {
            writeln!(to, "\n[[proxy.databases]]\nname = {}", quoted(name))?;
            for (key, value) in settings {
                writeln!(to, "{key} = {value}")?;
            }
        }
        let is_operator = |name: &String| self.admins.contains(name) || self.viewers.contains(name);
        for name in self.users.keys().filter(|name| !is_operator(name)) {
            writeln!(to, "\n[[proxy.users]]\nname = {}\n{}", quoted(name), self.secret(name))?;
        }
        for name in &self.admins {
            writeln!(to, "\n[[proxy.operators]]\nname = {}\n{}", quoted(name), self.secret(name))?;
        }
        for name in self.viewers.iter().filter(|name| !self.admins.contains(name)) {
            let secret = self.secret(name);
            writeln!(to, "\n[[proxy.operators]]\nname = {}\n{secret}\nrole = \"viewer\"", quoted(name))?;
        }
        writeln!(
            to,
            "\n[cluster]\n# Who watches the nodes: needs CONNECT, and pg_monitor for a prompt view of failovers."
        )?;
        writeln!(to, "user = \"postgres\"\n#password = \"…\"")?;
        if self.nodes.len() > 1 {
            writeln!(
                to,
                "# The databases led to several servers. These must be one primary and its replicas: for every other"
            )?;
            writeln!(to, "# primary a Kingpost of its own, with its databases.")?;
        }
        for (index, node) in self.nodes.iter().enumerate() {
            writeln!(to, "\n[[cluster.nodes]]\nname = \"node{}\"\naddress = {}", index + 1, quoted(node))?;
        }
        Ok(())
    }

    fn listen(&self) -> Vec<String> {
        let port = self.port.as_deref().unwrap_or("6432");
        let mut list: Vec<String> = self
            .hosts
            .iter()
            .map(|host| match host.as_str() {
                "*" => format!("0.0.0.0:{port}"),
                address if address.contains(':') => format!("[{address}]:{port}"),
                host => format!("{host}:{port}"),
            })
            .collect();
        // Without listen_addr PgBouncer has its Unix socket alone; "" switches that off.
        let directory = self.socket_dir.as_deref().unwrap_or("/tmp");
        if directory.starts_with('/') && (self.socket_dir.is_some() || list.is_empty()) {
            list.push(format!("{directory}/.s.PGSQL.{port}"));
        }
        list
    }
}

impl As {
    fn toml(self, value: &str) -> Option<String> {
        match self {
            As::Number => value.parse::<u32>().ok().map(|number| number.to_string()),
            As::Seconds => {
                let seconds = value.parse::<f64>().ok().filter(|s| s.is_finite() && (0.0..1e9).contains(s))?;
                let whole = std::time::Duration::from_millis((seconds * 1000.0).round() as u64);
                Some(quoted(&humantime::format_duration(whole).to_string()))
            }
        }
    }
}

/// As a TOML string.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// As part of a TOML comment, which has no control character but the tab: each as its escape.
fn in_comment(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_control() && c != '\t' => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

/// What stands between double quotes at the beginning, and what follows; a quote inside is doubled.
fn in_quotes(text: &str) -> Option<(String, &str)> {
    let mut rest = text.strip_prefix('"')?;
    let mut found = String::new();
    loop {
        let end = rest.find('"')?;
        found.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(after) => {
                found.push('"');
                rest = after;
            }
            None => return Some((found, rest)),
        }
    }
}

/// `key=value` pairs of a connection string; a value may be in single quotes, a quote inside it doubled.
fn pairs(text: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut rest = text.trim_start();
    while let Some((key, after)) = rest.split_once('=') {
        let after = after.trim_start();
        let (value, left) = match after.strip_prefix('\'') {
            None => {
                let end = after.find(char::is_whitespace).unwrap_or(after.len());
                (after[..end].to_owned(), &after[end..])
            }
            Some(mut inside) => {
                let mut value = String::new();
                loop {
                    let Some(end) = inside.find('\'') else { break (value + inside, "") };
                    value.push_str(&inside[..end]);
                    inside = &inside[end + 1..];
                    match inside.strip_prefix('\'') {
                        Some(more) => {
                            value.push('\'');
                            inside = more;
                        }
                        None => break (value, inside),
                    }
                }
            }
        };
        pairs.push((key.trim().to_ascii_lowercase(), value));
        rest = left.trim_start();
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    const INI: &str = r#"
;; a usual file
[databases]
shop = host=db1,db2 port=5433 dbname=shop_live pool_size=7
"odd name" = host=db1 port=5433 pool_mode=session connect_query='select ''x'''
* = host=/run/pg

[pgbouncer]
listen_addr = 127.0.0.1, ::1
listen_port = 6543
unix_socket_dir =
auth_type = scram-sha-256
auth_file = /etc/userlist.txt
admin_users = boss
stats_users = watcher, boss
pool_mode = transaction
default_pool_size = 40
max_client_conn = 500
query_wait_timeout = 1.5
server_idle_timeout = 90
logfile = /var/log/pgbouncer.log
autodb_idle_timeout = 3600
"#;

    const USERS: &str =
        "\"app\" \"s\"\"ecret\"\n\"old\" \"md5aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"\n;comment\n\"boss\" \"b\"\n";

    fn translated(ini: &str) -> Result<String, Failure> {
        translate(Path::new("pgbouncer.ini"), &|path| match path.to_str() {
            Some("pgbouncer.ini") => Ok(ini.to_owned()),
            Some("/etc/userlist.txt") => Ok(USERS.to_owned()),
            Some("again.ini") => Ok("%include again.ini".to_owned()),
            _ => Err(Failure::environment("no such file")),
        })
    }

    fn table(ini: &str) -> toml::Table {
        let text = translated(ini).expect("a translation");
        text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    #[test]
    fn settings_become_keys() {
        let table = table(INI);
        let proxy = table["proxy"].as_table().expect("[proxy]");
        assert_eq!(proxy["listen"].to_string(), r#"["127.0.0.1:6543", "[::1]:6543"]"#);
        assert_eq!(proxy["auth"].as_str(), Some("scram-sha-256"));
        assert_eq!(proxy["max_clients"].as_integer(), Some(500));
        let pool = &proxy["pool"];
        assert_eq!(pool["mode"].as_str(), Some("transaction"));
        assert_eq!(pool["size"].as_integer(), Some(40));
        assert_eq!(pool["wait_timeout"].as_str(), Some("1s 500ms"));
        assert_eq!(pool["server_idle_timeout"].as_str(), Some("1m 30s"));
        let databases = proxy["databases"].as_array().expect("databases");
        assert_eq!(databases[0]["dbname"].as_str(), Some("shop_live"));
        assert_eq!(databases[1]["name"].as_str(), Some("odd name"));
        assert_eq!(databases[1]["pool_mode"].as_str(), Some("session"));
        let nodes = table["cluster"]["nodes"].as_array().expect("nodes");
        let addresses: Vec<_> = nodes.iter().filter_map(|node| node["address"].as_str()).collect();
        assert_eq!(addresses, ["db1:5433", "db2:5433", "/run/pg/.s.PGSQL.5432"]);
    }

    #[test]
    fn users_and_operators_are_apart() {
        let table = table(INI);
        let proxy = &table["proxy"];
        let users = proxy["users"].as_array().expect("users");
        assert_eq!(users.len(), 2);
        assert_eq!(users[0]["password"].as_str(), Some("s\"ecret"));
        assert!(users[1]["verifier"].as_str().is_some_and(|verifier| verifier.starts_with("md5")));
        let operators = proxy["operators"].as_array().expect("operators");
        assert_eq!(operators[0]["name"].as_str(), Some("boss"));
        assert_eq!(operators[0].get("role"), None);
        assert_eq!((operators[1]["name"].as_str(), operators[1]["role"].as_str()), (Some("watcher"), Some("viewer")));
        assert_eq!(operators.len(), 2);
    }

    #[test]
    fn what_is_left_says_why() {
        let text = translated(INI).expect("a translation");
        for line in [
            "#   logfile = /var/log/pgbouncer.log: Kingpost logs to standard error",
            "#   autodb_idle_timeout = 3600: Kingpost has nothing like it",
            "#   [databases] odd name: connect_query = select 'x': Kingpost has nothing like it",
            "one primary and its replicas",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn control_characters_do_not_end_a_comment() {
        let ini = "[pgbouncer]\nodd\r = a\r[proxy]\0b\tc\u{7f}\n[peers]\n1 = host=\ra\n[databases]\nd = connect_query='\rx'\n";
        let text = translated(ini).expect("a translation");
        assert!(text.contains("#   odd = a\\r[proxy]\\u{0}b\tc\\u{7f}: Kingpost has nothing like it"), "{text}");
        assert_eq!(table(ini)["proxy"]["auth"].as_str(), Some("md5"));
    }

    #[test]
    fn an_empty_file_has_pgbouncers_defaults() {
        let table = table("[pgbouncer]\n");
        assert_eq!(table["proxy"]["auth"].as_str(), Some("md5"));
        assert_eq!(table["proxy"]["pool"]["mode"].as_str(), Some("session"));
        assert_eq!(table["proxy"]["listen"].to_string(), r#"["/tmp/.s.PGSQL.6432"]"#);
    }

    #[test]
    fn what_is_no_ini_file_is_refused_with_its_line() {
        for (ini, expected) in [
            ("[pgbouncer]\nnonsense", "pgbouncer.ini, line 2: found \"nonsense\""),
            ("%include again.ini", "too many %include"),
            ("%include gone.ini", "no such file"),
        ] {
            let error = translated(ini).expect_err(ini).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn connection_strings() {
        for (text, expected) in [
            ("", vec![]),
            ("host=a port=1", vec![("host", "a"), ("port", "1")]),
            ("  HOST = a", vec![("host", "a")]),
            ("password='a b''c' dbname=x", vec![("password", "a b'c"), ("dbname", "x")]),
            ("password='open", vec![("password", "open")]),
        ] {
            let pairs = pairs(text);
            let pairs: Vec<_> = pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            assert_eq!(pairs, expected, "{text}");
        }
    }
}
