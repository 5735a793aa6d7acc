//! Whole files: their translations, and the refusals.

use std::path::Path;

use super::*;
use crate::checked::{checked, text};
use crate::options::Options;
use config::SAFE_QUERY;
use process::Failure;

const FILE: &str = r#"
[general]
host = "127.0.0.1"
port = 6400
enable_prometheus_exporter = true
prometheus_exporter_port = 9000
connect_timeout = 1500
idle_timeout = 40000
server_lifetime = 7200000
idle_client_in_transaction_timeout = 250
healthcheck_delay = 10
log_client_connections = true
worker_threads = 3
tls_certificate = "/c"
tls_private_key = "/k"
server_tls = true
admin_username = "boss"
admin_password = "boss's own"

[pools.shop]
pool_mode = "transaction"
query_parser_enabled = true
query_parser_read_write_splitting = true
primary_reads_enabled = false
sharding_function = "pg_bigint_hash"
prepared_statements_cache_size = 200

[pools.shop.plugins.prewarmer]
enabled = true
queries = ["SELECT 1;", "SELECT 'two'"]

[pools.shop.plugins.intercept]
enabled = false

[pools.shop.users.0]
username = "ann"
password = "ann's"
pool_size = 7
min_pool_size = 2
statement_timeout = 15000

[pools.shop.users.1]
username = "bob"
password = "bob's"
pool_size = 9
min_pool_size = 2
pool_mode = "statement"

[pools.shop.shards.0]
servers = [["db1", 5432, "primary"], ["db2", 5433, "replica"]]
database = "shop_live"

[pools.books]
default_role = "primary"
server_lifetime = 60000

[pools.books.users.0]
username = "bob"
password = "bob's"
pool_size = 9
pool_mode = "statement"
server_username = "writer"
server_password = "writer's"

[pools.books.shards.0]
servers = [["db2", 5433, "replica"], ["db1", 5432, "primary"]]
database = "books"
"#;

fn with(text: &str, options: &Options) -> Result<String, Failure> {
    let read = |_: &Path| Ok(text.to_owned());
    let mut plan = plan(Path::new("pgcat.toml"), &read, options)?;
    plan.watch(options);
    Ok(plan.render())
}

/// Translates a valid file, and checks the result as before it is written.
fn good(text: &str) -> toml::Table {
    let text = with(text, &Options::default()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    checked(&text)
}

fn refusal(text: &str) -> String {
    with(text, &Options::default()).expect_err(text).to_string()
}

/// Returns a file with these lines in `[general]`, in its pool, and in its user.
fn small(general: &str, pool: &str, user: &str) -> String {
    format!(
        "[general]\nhost = \"127.0.0.1\"\nport = 1\nadmin_username = \"boss\"\nadmin_password = \"b\"\n{general}\n[pools.a]\n{pool}\n\
         [pools.a.users.0]\nusername = \"ann\"\npool_size = 1\n{user}\n\
         [pools.a.shards.0]\nservers = [[\"db1\", 5432, \"primary\"], [\"db2\", 5432, \"replica\"]]\ndatabase = \"a\"\n"
    )
}

const PASSWORD: &str = "password = \"p\"";

#[test]
fn settings_become_keys() {
    let table = good(FILE);
    let proxy = &table["proxy"];
    assert_eq!(proxy["listen"].to_string(), r#"["127.0.0.1:6400"]"#);
    assert_eq!((text(proxy, "auth"), text(proxy, "log_logins")), (Some("md5"), Some("all")));
    assert_eq!((proxy["workers"].as_integer(), text(proxy, "idle_transaction_timeout")), (Some(3), Some("250ms")));
    assert_eq!((text(&proxy["tls"], "mode"), text(&proxy["tls"], "cert_file")), (Some("allow"), Some("/c")));
    let pool = &proxy["pool"];
    assert_eq!((text(pool, "wait_timeout"), text(pool, "server_idle_timeout")), (Some("1s 500ms"), Some("40s")));
    assert_eq!(pool["prepared_per_server"].as_integer(), Some(200));
    assert_eq!(proxy["routing"]["primary_weight"].as_integer(), Some(0));
    let databases = proxy["databases"].as_array().expect("databases");
    let of = |name: &str| databases.iter().find(|of| text(of, "name") == Some(name)).expect("a database");
    let (books, shop) = (of("books"), of("shop"));
    assert_eq!((text(shop, "dbname"), text(shop, "route")), (Some("shop_live"), Some("auto")));
    assert_eq!(text(shop, "connect_query"), Some("SELECT 1; SELECT 'two'"));
    assert_eq!((text(shop, "server_lifetime"), text(books, "server_lifetime")), (Some("2h"), Some("1m")));
    assert_eq!((shop["min_pool_size"].as_integer(), books.get("min_pool_size")), (Some(2), None));
    assert_eq!((text(books, "route"), text(books, "dbname")), (Some("primary"), None));
    assert_eq!((text(books, "server_user"), text(books, "server_password")), (Some("writer"), Some("writer's")));
    assert_eq!(text(shop, "server_user"), None);
    assert_eq!(text(&table["cluster"]["tls"], "mode"), Some("prefer"));
    assert_eq!(table["cluster"]["nodes"].as_array().map(Vec::len), Some(2), "both pools lead to the same servers");
    assert_eq!(text(&table["metrics"], "listen"), Some("127.0.0.1:9000"));
    assert!(table["metrics"].get("allow_remote").is_none());
}

#[test]
fn users_are_let_into_their_own_pools() {
    let table = good(FILE);
    let proxy = &table["proxy"];
    let rules: Vec<_> = proxy["hba"]
        .as_array()
        .expect("rules")
        .iter()
        .map(|rule| (text(rule, "database"), text(rule, "user"), text(rule, "method")))
        .collect();
    assert_eq!(
        rules,
        [
            (Some("kingpost,pgbouncer"), Some("all"), Some("md5")),
            (Some("books"), Some("bob"), Some("md5")),
            (Some("shop"), Some("ann,bob"), Some("md5")),
        ]
    );
    let users: Vec<_> = proxy["users"]
        .as_array()
        .expect("users")
        .iter()
        .map(|user| {
            let size = user.get("pool_size").and_then(toml::Value::as_integer);
            (text(user, "name"), text(user, "password"), size, text(user, "pool_mode"))
        })
        .collect();
    assert_eq!(
        users,
        [
            (Some("ann"), Some("ann's"), Some(7), Some("transaction")),
            (Some("bob"), Some("bob's"), Some(9), Some("statement")),
        ]
    );
    assert_eq!(text(&proxy["users"][0], "query_timeout"), Some("15s"));
    assert_eq!(text(&proxy["users"][1], "query_timeout"), None);
    assert_eq!(text(&proxy["operators"][0], "name"), Some("boss"));
}

#[test]
fn reads_go_where_they_went() {
    for (pool, route, weight) in [
        ("", "auto", Some(1)),
        ("default_role = \"primary\"", "primary", None),
        ("default_role = \"replica\"", "replica", None),
        ("query_parser_enabled = true\ndefault_role = \"primary\"", "primary", None),
        ("query_parser_enabled = true\nquery_parser_read_write_splitting = true", "auto", Some(0)),
        (
            "query_parser_enabled = true\nquery_parser_read_write_splitting = true\nprimary_reads_enabled = true\ndefault_role = \"primary\"",
            "auto",
            Some(1),
        ),
    ] {
        let table = good(&small("", pool, PASSWORD));
        let proxy = &table["proxy"];
        assert_eq!(text(&proxy["databases"][0], "route"), Some(route), "{pool}");
        let found = proxy.get("routing").and_then(|of| of.get("primary_weight")).and_then(toml::Value::as_integer);
        assert_eq!(found, weight, "{pool}");
    }
    for (servers, route) in
        [("[[\"db1\", 5432, \"primary\"]]", "primary"), ("[[\"db2\", 5432, \"replica\"]]", "replica")]
    {
        let all = "[[\"db1\", 5432, \"primary\"], [\"db2\", 5432, \"replica\"]]";
        let table = good(&small("", "", PASSWORD).replace(all, servers));
        assert_eq!(text(&table["proxy"]["databases"][0], "route"), Some(route), "{servers}");
    }
}

#[test]
fn tls_to_servers() {
    for (lines, mode) in [
        ("", "disable"),
        ("verify_server_certificate = true", "disable"),
        ("server_tls = true", "prefer"),
        ("server_tls = true\nverify_server_certificate = true", "verify-full"),
    ] {
        let table = good(&small(lines, "", PASSWORD));
        let tls = &table["cluster"]["tls"];
        assert_eq!(text(tls, "mode"), Some(mode), "{lines}");
        assert_eq!(tls.get("ca_file").is_some(), mode == "verify-full");
    }
}

#[test]
fn users_without_a_password_are_looked_up() {
    let lookup = |query: &str| {
        format!("auth_query = \"{query}\"\nauth_query_user = \"finder\"\nauth_query_password = \"finder's\"")
    };
    for (query, expected) in [
        ("SELECT * FROM public.user_lookup('$1');", "SELECT * FROM public.user_lookup($1);"),
        ("SELECT usename, passwd FROM pg_shadow WHERE usename='$1'", SAFE_QUERY),
    ] {
        let table = good(&small(&lookup(query), "", ""));
        let found = &table["proxy"]["auth_query"];
        assert_eq!((text(found, "query"), text(found, "database")), (Some(expected), Some("a")));
        assert_eq!((text(found, "user"), text(found, "password")), (Some("finder"), Some("finder's")));
        assert_eq!(text(&table["cluster"], "user"), Some("finder"));
        assert_eq!(text(&table["proxy"]["users"][0], "name"), Some("ann"));
    }
    let nobody = good(&small(&lookup("SELECT '$1'"), "", PASSWORD));
    assert!(nobody["proxy"].get("auth_query").is_none(), "every user has a password");
    let error = refusal(&small(&lookup("SELECT $1"), "", ""));
    assert!(error.contains("pools.a.auth_query: expected '$1'"), "{error}");
}

#[test]
fn what_cannot_be_carried_over_is_an_error_that_names_it() {
    let twice = |second: &str| format!("{FILE}\n{second}");
    for (text, expected) in [
        (small("autoreload = 15000", "", PASSWORD), "general.autoreload = 15000: Kingpost reads its file again"),
        (small("nonsense = 1", "", PASSWORD), "general.nonsense = 1: PgCat 1.3.0 has no such key in [general]"),
        (small("", "automatic_sharding_key = \"data.id\"", PASSWORD), "pools.a.automatic_sharding_key = data.id: Kingpost does not shard (line 8)"),
        (small("", "pool_mode = \"session\"", PASSWORD), "pools.a.pool_mode: in session mode Kingpost sends everything"),
        (small("", "default_role = \"both\"", PASSWORD), "pools.a.default_role: found \"both\""),
        (small("", "", "auth_type = \"plain\"\npassword = \"hidden\""), "pools.a.users.0.auth_type: found \"plain\""),
        (small("", "", ""), "pools.a.users.0.password: it is missing"),
        (small("connect_timeout = 0", "", PASSWORD), "general.connect_timeout: found 0, which means for ever"),
        (small("", "", "password = \"hidden\"\nstatement_timeout = \"x\""), "pools.a.users.0.statement_timeout: found \"x\", expected milliseconds"),
        (small("tls_certificate = \"/c\"", "", PASSWORD), "general.tls_certificate: there is no tls_private_key"),
        (
            twice("[pools.shop.shards.1]\nservers = [[\"db3\", 5432, \"primary\"]]\ndatabase = \"x\""),
            "pools.shop.shards: found 2: Kingpost does not shard, a pool has one (line ",
        ),
        (
            twice("[pools.shop.plugins.table_access]\nenabled = true\ntables = [\"pg_user\"]"),
            "pools.shop.plugins.table_access = on: Kingpost has no list of forbidden tables",
        ),
        (
            small("", "", &format!("{PASSWORD}\n[pools.kingpost]")),
            "pools.kingpost: the name has a meaning of its own",
        ),
        (
            twice("[pools.books.users.1]\nusername = \"ann\"\npassword = \"hidden\"\npool_size = 7\nserver_username = \"writer\"\nserver_password = \"writer's\""),
            "pools.shop.users.0.password: pools.books.users.1 has another one for the same user",
        ),
        (
            twice("[pools.books.users.1]\nusername = \"ann\"\npassword = \"ann's\"\npool_size = 7\nstatement_timeout = 15000"),
            "pools.books.users.1.server_user: pools.books.users.0 has another one",
        ),
        (
            twice("[pools.books.users.1]\nusername = \"ann\"\npassword = \"ann's\"\npool_size = 8\nserver_username = \"writer\"\nserver_password = \"writer's\""),
            "pool_size: it is not the same for all users of a database, nor in all databases of a user",
        ),
        (small("", "connect_timeout = 7\n[pools.b]\n[pools.b.users.0]\nusername = \"bob\"\npassword = \"p\"\npool_size = 1\n[pools.b.shards.0]\nservers = [[\"db1\", 5432, \"primary\"]]\ndatabase = \"b\"", "").replace("username = \"ann\"", "username = \"ann\"\npassword = \"p\""), "pools.b.users.0.connect_timeout: it is not the same everywhere"),
        ("[general]\nport = 1\nadmin_username = \"a\"\nadmin_password = \"b\"".to_owned(), "pools: there is none"),
        (small("", "", PASSWORD).replace("\"replica\"", "\"mirror\""), "pools.a.shards.0.servers: found the role mirror"),
    ] {
        let error = refusal(&text);
        assert!(error.contains(expected), "{expected}\n{text}\n{error}");
        assert!(error.contains("nothing is written") && !error.contains("hidden"), "{error}");
    }
    // A broken line may hold a password.
    let error = refusal("[general]\nadmin_password = \"hidden\nport = 1");
    assert!(error.contains("pgcat.toml:2:") && !error.contains("hidden"), "{error}");
}

#[test]
fn what_is_ignored_is_left_out_and_said() {
    let text = small("autoreload = 15000", "checkout_failure_limit = 3", PASSWORD);
    let ignoring = |names: &[&str]| Options {
        ignored: names.iter().map(|name| (*name).to_owned()).collect(),
        ..Options::default()
    };
    assert!(with(&text, &ignoring(&["autoreload"])).is_err());
    let text = with(&text, &ignoring(&["general.autoreload", "checkout_failure_limit"])).expect("a translation");
    for line in
        ["#   general.autoreload = 15000: left out by --ignore", "#   pools.a.checkout_failure_limit = 3: left out by"]
    {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn without_an_operator_nobody_gets_to_the_console() {
    let ignored = vec!["admin_password".into(), "admin_username".into()];
    let trusting = small("admin_auth_type = \"trust\"", "", "password = \"p\"\nauth_type = \"trust\"");
    for options in [
        Options { ignored: ignored.clone(), ..Options::default() },
        Options { ignored: ignored[..1].to_vec(), ..Options::default() },
    ] {
        let text = with(&trusting, &options).expect("a translation");
        let console = text.contains("kingpost,pgbouncer");
        assert_eq!(console, text.contains("[[proxy.operators]]"), "{text}");
    }
}

#[test]
fn pools_on_other_servers_have_users_of_their_own() {
    let two = format!(
        "{}\n[pools.b]\n[pools.b.users.0]\nusername = \"ann\"\npassword = \"other\"\npool_size = 1\n[pools.b.users.1]\nusername = \"bob\"\npassword = \"b\"\npool_size = 1\n\
         [pools.b.shards.0]\nservers = [[\"db3\", 5432, \"primary\"]]\ndatabase = \"b\"\n",
        small("", "", PASSWORD)
    );
    let table = good(&two);
    let users: Vec<_> = table["proxy"]["users"]
        .as_array()
        .expect("users")
        .iter()
        .map(|user| (text(user, "cluster"), text(user, "name"), text(user, "password")))
        .collect();
    assert_eq!(
        users,
        [
            (Some("a"), Some("ann"), Some("p")),
            (Some("b"), Some("ann"), Some("other")),
            (Some("b"), Some("bob"), Some("b")),
        ]
    );
    assert_eq!(text(&table["proxy"]["databases"][1], "cluster"), Some("b"));
    let one = with(&two, &Options { databases: vec!["b".into()], ..Options::default() }).expect("a translation");
    assert!(!one.contains("db1:5432") && one.contains("db3:5432"), "{one}");
}
