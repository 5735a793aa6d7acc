//! Whole files: their translations, and the refusals.

use std::path::Path;

use super::*;
use crate::checked::{checked, text};
use crate::options::Options;
use process::Failure;

const FILE: &str = r#"
[general]
host = "127.0.0.1"
port = 6400
workers = 0
default_pool_size = 12
pooler_mode = "transaction"
load_balancing_strategy = "weighted_round_robin"
read_write_split = "include_primary"
tls_certificate = "/c"
tls_private_key = "/k"
tls_client_required = true
tls_verify = "verify_full"
tls_server_ca_certificate = "/ca"
ban_replica_lag = 1500
openmetrics_port = 9090
checkout_timeout = 2500
client_idle_timeout = 60000
auth_type = "scram"
log_level = "info"
log_format = "json"
prepared_statements = "extended_anonymous"

[admin]
user = "boss"
password = "boss's own"

[[databases]]
name = "shop"
host = "db1"
role = "primary"
database_name = "shop_live"
statement_timeout = 30000
lb_weight = 10

[[databases]]
name = "shop"
host = "db2"
port = 5433
role = "replica"
database_name = "shop_live"
statement_timeout = 30000
lb_weight = 200

[[databases]]
name = "books"
host = "db3"
read_only = true
pool_size = 3

[tcp]
keepalive = true
"#;

const USERS: &str = r#"
[[users]]
name = "ann"
database = "shop"
password = "ann's"
passwords = ["ann's old"]

[[users]]
name = "bob"
all_databases = true
password = "bob's"
replication_mode = true
"#;

fn with(text: &str, users: &str, options: &Options) -> Result<String, Failure> {
    let read = |path: &Path| Ok(if path == Path::new("users.toml") { users.to_owned() } else { text.to_owned() });
    let mut plan = plan(Path::new("pgdog.toml"), Path::new("users.toml"), &read, options)?;
    plan.watch(options);
    Ok(plan.render())
}

/// Translates valid files, and checks the result as before it is written.
fn good(text: &str, users: &str) -> toml::Table {
    let text = with(text, users, &Options::default()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    checked(&text)
}

fn refusal(text: &str, users: &str) -> String {
    with(text, users, &Options::default()).expect_err(text).to_string()
}

/// Returns a file with these lines in `[general]`, and with a primary and a replica.
fn small(general: &str) -> String {
    format!(
        "[general]\nhost = \"127.0.0.1\"\n{general}\n\
         [[databases]]\nname = \"a\"\nhost = \"db1\"\n[[databases]]\nname = \"a\"\nhost = \"db2\"\nrole = \"replica\"\n"
    )
}

const ANN: &str = "[[users]]\nname = \"ann\"\ndatabase = \"a\"\npassword = \"p\"\n";

#[test]
fn settings_become_keys() {
    let table = good(FILE, USERS);
    let proxy = &table["proxy"];
    assert_eq!(proxy["listen"].to_string(), r#"["127.0.0.1:6400"]"#);
    assert_eq!((text(proxy, "auth"), text(proxy, "log_logins")), (Some("scram-sha-256"), Some("all")));
    assert_eq!((proxy["workers"].as_integer(), text(proxy, "client_idle_timeout")), (Some(1), Some("1m")));
    assert_eq!(text(proxy, "login_timeout"), Some("1m"));
    assert_eq!((text(&proxy["tls"], "mode"), text(&proxy["tls"], "key_file")), (Some("require"), Some("/k")));
    let pool = &proxy["pool"];
    assert_eq!((text(pool, "wait_timeout"), text(pool, "connect_timeout")), (Some("2s 500ms"), Some("5s")));
    assert_eq!((text(pool, "server_lifetime"), text(pool, "server_idle_timeout")), (Some("1day"), Some("1m")));
    assert_eq!((text(pool, "unnamed"), pool["min_size"].as_integer()), (Some("shared"), Some(1)));
    assert_eq!(proxy["routing"]["primary_weight"].as_integer(), Some(10));
    let [shop, books] = proxy["databases"].as_array().expect("databases").as_slice() else { panic!("two databases") };
    assert_eq!((text(shop, "dbname"), text(shop, "route")), (Some("shop_live"), Some("auto")));
    assert_eq!(shop["parameters"].to_string(), r#"["statement_timeout=30000ms"]"#);
    assert_eq!(books["parameters"].to_string(), r#"["default_transaction_read_only=on"]"#);
    assert_eq!((shop["pool_size"].as_integer(), books["pool_size"].as_integer()), (Some(12), Some(3)));
    assert_eq!((text(books, "route"), text(books, "cluster")), (Some("primary"), Some("books")));
    let nodes = table["cluster"]["nodes"].as_array().expect("nodes");
    let nodes: Vec<_> = nodes.iter().map(|node| (text(node, "address"), node["weight"].as_integer())).collect();
    assert_eq!(nodes, [(Some("db1:5432"), Some(10)), (Some("db2:5433"), Some(200))]);
    assert_eq!(text(&table["cluster"], "lag_limit"), Some("1s 500ms"));
    let tls = &table["cluster"]["tls"];
    assert_eq!((text(tls, "mode"), text(tls, "ca_file")), (Some("verify-full"), Some("/ca")));
    assert_eq!(text(&table["metrics"], "listen"), Some("0.0.0.0:9090"));
    assert_eq!(table["metrics"]["allow_remote"].as_bool(), Some(true));
    assert_eq!((text(&table["log"], "level"), text(&table["log"], "format")), (Some("info"), Some("json")));
}

#[test]
fn users_are_let_into_their_own_databases() {
    let table = good(FILE, USERS);
    let proxy = &table["proxy"];
    let rules: Vec<_> = proxy["hba"]
        .as_array()
        .expect("rules")
        .iter()
        .map(|rule| (text(rule, "database"), text(rule, "user"), text(rule, "method")))
        .collect();
    let scram = Some("scram-sha-256");
    assert_eq!(
        rules,
        [
            (Some("kingpost,pgbouncer"), Some("all"), scram),
            (Some("shop"), Some("ann,bob"), scram),
            (Some("books"), Some("bob"), scram),
        ]
    );
    let users: Vec<_> = proxy["users"]
        .as_array()
        .expect("users")
        .iter()
        .map(|user| {
            (text(user, "cluster"), text(user, "name"), text(user, "password"), user.get("replication").is_some())
        })
        .collect();
    assert_eq!(
        users,
        [
            (Some("books"), Some("bob"), Some("bob's"), true),
            (Some("shop"), Some("ann"), Some("ann's"), false),
            (Some("shop"), Some("bob"), Some("bob's"), true),
        ]
    );
    assert_eq!(proxy["users"][1]["secrets"].to_string(), r#"["ann's old"]"#);
    assert_eq!(text(&proxy["operators"][0], "name"), Some("boss"));
}

#[test]
fn reads_go_where_they_went() {
    for (lines, route, weight) in [
        ("", "auto", Some(1)),
        ("read_write_split = \"exclude_primary\"", "auto", Some(0)),
        ("read_write_split = \"include_primary_if_replica_banned\"", "auto", Some(0)),
        ("read_write_split = \"prefer_primary\"", "primary", None),
        ("query_parser = \"off\"", "primary", None),
        ("query_parser = \"off\"\nquery_parser_enabled = true", "auto", Some(1)),
    ] {
        let table = good(&small(lines), ANN);
        assert_eq!(text(&table["proxy"]["databases"][0], "route"), Some(route), "{lines}");
        let found = table["proxy"].get("routing").and_then(|of| of["primary_weight"].as_integer());
        assert_eq!(found, weight, "{lines}");
        assert!(table["cluster"]["nodes"][0].get("weight").is_none());
    }
    let replicas =
        small("").replace("name = \"a\"\nhost = \"db1\"", "name = \"a\"\nhost = \"db1\"\nrole = \"replica\"");
    assert_eq!(text(&good(&replicas, ANN)["proxy"]["databases"][0], "route"), Some("replica"));
    let found_out =
        small("").replace("\"replica\"", "\"auto\"").replace("host = \"db1\"", "host = \"db1\"\nrole = \"auto\"");
    assert_eq!(text(&good(&found_out, ANN)["proxy"]["databases"][0], "route"), Some("auto"));
}

#[test]
fn tls_to_servers_and_clients() {
    for (lines, mode, ca) in [
        ("", "prefer", None),
        ("tls_server_ca_certificate = \"/ca\"", "prefer", None),
        ("tls_verify = \"disabled\"", "disable", None),
        ("tls_verify = \"verify_ca\"\ntls_server_ca_certificate = \"/ca\"", "verify-ca", Some("/ca")),
        ("tls_verify = \"verify_full\"", "verify-full", Some("/etc/ssl/certs/ca-certificates.crt")),
    ] {
        let table = good(&small(lines), ANN);
        let tls = &table["cluster"]["tls"];
        assert_eq!((text(tls, "mode"), text(tls, "ca_file")), (Some(mode), ca), "{lines}");
    }
    let both = "tls_certificate = \"/c\"\ntls_private_key = \"/k\"";
    for (lines, mode, client_cert) in [
        (both.to_owned(), "allow", None),
        (format!("{both}\ntls_client_required = true"), "require", None),
        (format!("{both}\ntls_client_ca_certificate = \"/ca\""), "allow", Some("verify-ca")),
    ] {
        let table = good(&small(&lines), ANN);
        let tls = &table["proxy"]["tls"];
        assert_eq!((text(tls, "mode"), text(tls, "client_cert")), (Some(mode), client_cert), "{lines}");
    }
}

#[test]
fn what_cannot_be_carried_over_is_an_error_that_names_it() {
    let user = |lines: &str| format!("{ANN}{lines}\n");
    for (text, users, expected) in [
        (small("nonsense = 1"), ANN.into(), "general.nonsense = 1: PgDog 0.1.54 has no such key in [general] (line 3)"),
        (
            small("passthrough_auth = \"enabled\""),
            ANN.into(),
            "general.passthrough_auth = enabled: Kingpost takes no password in clear",
        ),
        (small("auth_type = \"plain\""), ANN.into(), "general.auth_type: found \"plain\""),
        (small("tls_client_required = true"), ANN.into(), "general.tls_client_required: there is no tls_certificate"),
        (small("two_phase_commit = true"), ANN.into(), "general.two_phase_commit = true: Kingpost does not shard"),
        (small("query_timeout = 0"), ANN.into(), "general.query_timeout: found 0, which means for ever"),
        (small("log_level = \"info,pgdog=debug\""), ANN.into(), "general.log_level: found"),
        (
            small("ban_replica_lag = 5\n[replica_lag]\nmax_age = 5"),
            ANN.into(),
            "general.ban_replica_lag: there is also replica_lag.max_age",
        ),
        (
            small("pooler_mode = \"session\""),
            ANN.into(),
            "users.0.pooler_mode: in session mode Kingpost sends everything",
        ),
        (format!("{}shard = 1\n", small("")), ANN.into(), "databases.1.shard = 1: Kingpost does not shard"),
        (format!("{}pool_size = 7\n", small("")), ANN.into(), "databases.1.pool_size: databases.0 has it otherwise"),
        (
            format!("{}[[sharded_tables]]\ndatabase = \"a\"\ncolumn = \"id\"\n", small("")),
            ANN.into(),
            "sharded_tables.0.column = id: Kingpost does not shard",
        ),
        (
            format!("{}[[mirroring]]\nsource_db = \"a\"\ndestination_db = \"b\"\n", small("")),
            ANN.into(),
            "mirroring.0.source_db = a: Kingpost sends nothing",
        ),
        (
            format!("{}[[plugins]]\nname = \"x\"\n", small("")),
            ANN.into(),
            "plugins.0.name = x: Kingpost loads no foreign code",
        ),
        (
            format!("{}[multi_tenant]\ncolumn = \"tenant\"\n", small("")),
            ANN.into(),
            "multi_tenant.column = tenant: Kingpost looks for no column",
        ),
        (format!("{}[extra]\na = 1\n", small("")), ANN.into(), "extra: PgDog 0.1.54 has no such table here (line 11)"),
        (
            small("").replace("name = \"a\"", "name = \"kingpost\""),
            ANN.replace("\"a\"", "\"kingpost\""),
            "databases.0.name: \"kingpost\" has a meaning of its own",
        ),
        (small(""), ANN.replace("\"a\"", "\"z\""), "users.0.database: there is no database \"z\""),
        (small(""), user("read_only = true"), "users.0.read_only = true: of a database it is a parameter"),
        (small(""), user("password_hash = \"hidden\""), "users.0.password_hash: expected SCRAM-SHA-256$"),
        (small(""), user("server_auth = \"rds_iam\""), "users.0.server_auth = rds_iam: Kingpost gets passwords"),
        (
            small(""),
            user("[[users]]\nname = \"bob\"\ndatabase = \"a\"\npassword = \"p\"\nserver_user = \"x\""),
            "users.1.server_user: users.0 has another one",
        ),
        (
            small("load_balancing_strategy = \"weighted_round_robin\"")
                .replace("\"replica\"", "\"auto\"\nlb_weight = 1")
                .replace("host = \"db1\"", "host = \"db1\"\nrole = \"auto\""),
            ANN.into(),
            "databases.0.lb_weight: which server is the primary is not said",
        ),
        ("[general]\nhost = \"127.0.0.1\"".into(), String::new(), "databases: there is none"),
    ] {
        let error = refusal(&text, &users);
        assert!(error.contains(expected), "{expected}\n{text}\n{error}");
        assert!(error.contains("nothing is written") && !error.contains("hidden"), "{error}");
    }
}

#[test]
fn a_replica_may_be_read_only_and_a_table_may_be_ignored() {
    let text = format!("{}read_only = true\n[[sharded_tables]]\ndatabase = \"a\"\ncolumn = \"id\"\n", small(""));
    let ignoring = |name: &str| Options { ignored: vec![name.to_owned()], ..Options::default() };
    let error = with(&text, ANN, &ignoring("sharded")).expect_err("half a name").to_string();
    assert!(error.contains("2 settings") && error.contains("sharded_tables.0.column"), "{error}");
    let text = with(&text, ANN, &ignoring("sharded_tables")).expect("a translation");
    assert!(text.contains("#   sharded_tables.0.column = id: left out by --ignore"), "{text}");
    assert!(!text.contains("default_transaction_read_only"), "{text}");
}

#[test]
fn who_has_no_password_is_left_out() {
    let users = format!("{ANN}[[users]]\nname = \"bob\"\ndatabase = \"a\"\n");
    let text = with(&small(""), &users, &Options::default()).expect("a translation");
    assert!(text.contains("#   users.1 (user bob): it has no password"), "{text}");
    assert!(!text.contains("name = \"bob\""), "{text}");
    assert!(text.contains("#   the operator admin: it has no password"), "{text}");
    assert!(!text.contains("kingpost,pgbouncer"), "{text}");
    let trusting = with(&small("auth_type = \"trust\""), &users, &Options::default()).expect("a translation");
    assert!(trusting.contains("auth = \"trust\"") && trusting.contains("user = \"ann,bob\""), "{trusting}");
}
