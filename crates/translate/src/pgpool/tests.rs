//! Whole files: their translations, and the refusals.

use std::path::Path;

use super::*;
use crate::checked::{checked, text};
use crate::options::Options;
use process::Failure;

const CONF: &str = "\
listen_addresses = '127.0.0.1, ::1'
port = 9900   # as ever
backend_clustering_mode = streaming_replication
backend_hostname0 = 'db1'
backend_port0 = 5433
backend_weight0 = 0.5
backend_flag0 = 'ALLOW_TO_FAILOVER'
backend_hostname1 = 'db2'
backend_weight1 = 1
enable_pool_hba = on
ssl = on
ssl_cert = 'server.crt'
ssl_key = '/keys/server.key'
ssl_ca_cert = 'ca.crt'
num_init_children = 40
reserved_connections = 4
max_pool = 3
client_idle_limit = 5min
authentication_timeout = 30s
connection_life_time = 600
connect_timeout = 2500
load_balance_mode = on
read_only_function_list = 'price_of, shop.stock_of'
database_redirect_preference_list = 'books:primary'
disable_load_balance_on_write = 'off'
sr_check_user = 'watcher'
sr_check_password = ''
sr_check_database = 'postgres'
delay_threshold_by_time = 3s
log_connections = 1
log_statement = 0
use_watchdog = off
memory_cache_enabled = no
failover_command = ''
reset_query_list = 'ABORT; DISCARD ALL'
pid_file_name = 'pgpool.pid'
";

const HBA: &str = "\
# TYPE  DATABASE  USER  ADDRESS  METHOD
local   all       all                     trust
host    shop      ann   127.0.0.1/32      scram-sha-256
host    books     bob   10.0.0.0 255.0.0.0 md5
hostssl all       all   10.0.0.0/8        pam
host    all       all   all               reject
";

const PASSWD: &str = "ann:TEXTann's\nbob:md5aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\nwatcher:TEXTwatching\n";

fn with(conf: &str, hba: &str, passwords: &str, options: &Options) -> Result<String, Failure> {
    let read = |path: &Path| match path.to_str() {
        Some("/etc/pgpool.conf") => Ok(conf.to_owned()),
        Some("/etc/pool_hba.conf") => Ok(hba.to_owned()),
        Some("/etc/pool_passwd") => Ok(passwords.to_owned()),
        _ => Err(Failure::environment("no such file")),
    };
    let files = Files { conf: "/etc/pgpool.conf".into(), hba: None, passwords: None };
    let mut plan = plan(&files, &read, options)?;
    plan.watch(options);
    Ok(plan.render())
}

/// Translates valid files, and checks the result as before it is written.
fn good(conf: &str, hba: &str) -> toml::Table {
    let text = with(conf, hba, PASSWD, &Options::default()).unwrap_or_else(|error| panic!("{error}\n{conf}"));
    checked(&text)
}

fn refusal(conf: &str, hba: &str, passwords: &str) -> String {
    with(conf, hba, passwords, &Options::default()).expect_err(conf).to_string()
}

/// Returns a file with two backends and these lines.
fn small(lines: &str) -> String {
    format!("backend_hostname0 = 'db1'\nbackend_weight0 = 1\nbackend_hostname1 = 'db2'\nbackend_weight1 = 1\n{lines}\n")
}

#[test]
fn settings_become_keys() {
    let table = good(CONF, HBA);
    let proxy = &table["proxy"];
    assert_eq!(proxy["listen"].to_string(), r#"["127.0.0.1:9900", "[::1]:9900"]"#);
    assert_eq!((text(proxy, "log_logins"), text(proxy, "login_timeout")), (Some("all"), Some("30s")));
    assert_eq!((proxy["max_clients"].as_integer(), text(proxy, "client_idle_timeout")), (Some(36), Some("5m")));
    let tls = &proxy["tls"];
    assert_eq!((text(tls, "mode"), text(tls, "client_cert")), (Some("allow"), Some("optional")));
    assert_eq!((text(tls, "cert_file"), text(tls, "key_file")), (Some("/etc/server.crt"), Some("/keys/server.key")));
    let pool = &proxy["pool"];
    assert_eq!((text(pool, "mode"), text(pool, "unknown_functions")), (Some("transaction"), Some("pin")));
    assert_eq!((pool["size"].as_integer(), pool["max_node_connections"].as_integer()), (Some(40), Some(120)));
    assert_eq!((text(pool, "server_idle_timeout"), text(pool, "connect_timeout")), (Some("10m"), Some("2s 500ms")));
    let routing = &proxy["routing"];
    assert_eq!((text(routing, "route"), text(routing, "consistency")), (Some("auto"), Some("eventual")));
    assert_eq!(routing["primary_weight"].as_integer(), Some(1));
    assert_eq!(routing["read_functions"].to_string(), r#"["price_of", "shop.stock_of"]"#);
    let databases = proxy["databases"].as_array().expect("databases");
    let databases: Vec<_> = databases.iter().map(|of| (text(of, "name"), text(of, "route"))).collect();
    assert_eq!(databases, [(Some("books"), Some("primary")), (Some("*"), None)]);
    let cluster = &table["cluster"];
    assert_eq!((text(cluster, "user"), text(cluster, "password")), (Some("watcher"), Some("watching")));
    assert_eq!((text(cluster, "database"), text(cluster, "lag_limit")), (Some("postgres"), Some("3s")));
    assert_eq!(
        (text(&cluster["tls"], "mode"), text(&cluster["tls"], "ca_file")),
        (Some("prefer"), Some("/etc/ca.crt"))
    );
    let nodes = cluster["nodes"].as_array().expect("nodes");
    let nodes: Vec<_> = nodes.iter().map(|node| (text(node, "address"), node["weight"].as_integer())).collect();
    assert_eq!(nodes, [(Some("db1:5433"), Some(1)), (Some("db2:5432"), Some(2))]);
}

#[test]
fn rules_keep_their_order_and_users_their_secrets() {
    let table = good(CONF, HBA);
    let proxy = &table["proxy"];
    let rules: Vec<_> = proxy["hba"]
        .as_array()
        .expect("rules")
        .iter()
        .map(|rule| {
            ["type", "database", "user", "address", "method"].map(|key| text(rule, key).unwrap_or("-")).join(" ")
        })
        .collect();
    assert_eq!(
        rules,
        [
            "local kingpost,pgbouncer all - reject",
            "host kingpost,pgbouncer all all reject",
            "local all all - trust",
            "host shop ann 127.0.0.1/32 scram-sha-256",
            "host books bob 10.0.0.0 255.0.0.0 md5",
            "hostssl all all 10.0.0.0/8 pam pamservice=pgpool",
            "host all all all reject",
        ]
    );
    let users = proxy["users"].as_array().expect("users");
    assert_eq!((text(&users[0], "name"), text(&users[0], "password")), (Some("ann"), Some("ann's")));
    assert_eq!((text(&users[1], "name"), text(&users[1], "verifier").is_some()), (Some("bob"), true));
    assert!(proxy.get("operators").is_none());
    let off = good(&CONF.replace("enable_pool_hba = on", "enable_pool_hba = off"), "not read");
    assert!(off["proxy"].get("hba").is_none());
    assert_eq!(text(&off["proxy"], "auth"), Some("md5"));
}

#[test]
fn defaults_are_those_of_pgpool() {
    let table = good(&small(""), "");
    let proxy = &table["proxy"];
    assert_eq!(proxy["listen"].to_string(), r#"["localhost:9999"]"#);
    assert_eq!((proxy["max_clients"].as_integer(), text(proxy, "login_timeout")), (Some(32), Some("1m")));
    assert_eq!(
        (text(&proxy["pool"], "server_idle_timeout"), text(&proxy["pool"], "connect_timeout")),
        (Some("0s"), Some("10s"))
    );
    assert_eq!(text(&table["cluster"]["tls"], "mode"), Some("disable"));
    assert_eq!((text(&proxy["routing"], "route"), proxy["routing"].get("consistency")), (Some("auto"), None));
    for lines in ["load_balance_mode = off", "load_balance_mode = 0"] {
        let table = good(&small(lines), "");
        assert_eq!(text(&table["proxy"]["routing"], "route"), Some("primary"), "{lines}");
        assert_eq!(text(&table["proxy"]["pool"], "mode"), Some("session"), "{lines}");
    }
    // The limit applies without a user that checks the servers, too; the probes then use a client user with a known password.
    let lag = good(&small("delay_threshold_by_time = 500"), "");
    assert_eq!((text(&lag["cluster"], "lag_limit"), text(&lag["cluster"], "user")), (Some("500ms"), Some("ann")));
    let socket =
        good(&small("unix_socket_directories = '/run/pg'\nunix_socket_permissions = 0770\nlisten_addresses = ''"), "");
    let listen = &socket["proxy"]["listen"][0];
    assert_eq!((text(listen, "address"), text(listen, "mode")), (Some("/run/pg/.s.PGSQL.9999"), Some("0770")));
}

#[test]
fn the_primary_that_a_flag_names_has_its_weight() {
    for (lines, primary) in [
        ("backend_weight0 = 3", 3),
        ("backend_weight0 = 3\nbackend_flag1 = 'DISALLOW_TO_FAILOVER|ALWAYS_PRIMARY'", 1),
        ("backend_weight0 = 0", 0),
    ] {
        let table = good(&small(lines), "");
        assert_eq!(table["proxy"]["routing"]["primary_weight"].as_integer(), Some(primary), "{lines}");
    }
}

#[test]
fn what_cannot_be_carried_over_is_an_error_that_names_it() {
    for (lines, expected) in [
        ("nonsense = 1", "nonsense = 1: pgpool-II 4.7 has no such key in [pgpool.conf] (line 5)"),
        ("failover_command = '/etc/failover.sh %d'", "failover_command = /etc/failover.sh %d: `kingpost failover` or"),
        ("use_watchdog = on", "use_watchdog = on: several proxies side by side"),
        ("memory_cache_enabled = 1", "memory_cache_enabled = on: Kingpost keeps no results"),
        ("recovery_1st_stage_command = 'x'", "recovery_1st_stage_command = x: Kingpost copies no servers"),
        ("recovery_password = 'hidden'", "recovery_password = …: Kingpost copies no servers"),
        (
            "backend_clustering_mode = 'native_replication'",
            "backend_clustering_mode = native_replication: Kingpost is for",
        ),
        (
            "allow_clear_text_frontend_auth = on",
            "allow_clear_text_frontend_auth = on: Kingpost takes no password in clear",
        ),
        ("delay_threshold = 10000000", "delay_threshold = 10000000: Kingpost's limit is a time"),
        ("read_only_function_list = 'get_.*'", "read_only_function_list: found \"get_.*\", expected names"),
        (
            "database_redirect_preference_list = 'a:standby(0.3)'",
            "database_redirect_preference_list: found \"a:standby(0.3)\"",
        ),
        ("primary_routing_query_pattern_list = '.*t.*'", "primary_routing_query_pattern_list = .*t.*: a comment"),
        ("authentication_timeout = 0", "authentication_timeout: found 0, which means for ever"),
        ("client_idle_limit = soon", "client_idle_limit: found \"soon\", expected a time"),
        ("ssl_crl_file = '/x'", "ssl_crl_file = /x: Kingpost reads no lists of revoked certificates"),
        ("ssl = on\nssl_cert = 'x'", "ssl: expected both of ssl_cert and ssl_key"),
        ("health_check_user1 = 'x'", "health_check_user1 = x: one user watches all nodes"),
        ("backend_hostname2 = 'db3'", "backend_weight2: it is missing"),
        ("backend_weight1 = -1", "backend_weight1: found \"-1\""),
        ("sr_check_user = 'bob'", "sr_check_password: Kingpost can't log in to a server with a hash"),
        (
            "sr_check_user = 'x'\nsr_check_password = 'AEShidden'",
            "sr_check_password: it is encrypted with pgpool-II's key",
        ),
        ("listen_addresses = ''", "listen_addresses: there is no address"),
    ] {
        let error = refusal(&small(lines), "", PASSWD);
        assert!(error.contains(expected), "{expected}\n{error}");
        assert!(error.contains("nothing is written") && !error.contains("hidden"), "{error}");
    }
    let ruled = small("enable_pool_hba = on");
    for (hba, expected) in [
        ("host all all samenet md5\n", "/etc/pool_hba.conf, line 1: found the address"),
        (
            "local all all trust\nhost all all all password\n",
            "/etc/pool_hba.conf, line 2: found the method \"password\"",
        ),
        ("host all +staff all md5\n", "line 1: found \"+staff\""),
        ("host all all all \\\nmd5\n", "line 1: found a backslash"),
    ] {
        let error = refusal(&ruled, hba, PASSWD);
        assert!(error.contains(expected), "{expected}\n{error}");
    }
    for (passwords, expected) in [
        ("ann:AEShidden\nbob:TEXTb\n", "pool_passwd.ann: it is encrypted with pgpool-II's key"),
        ("ann:TEXTa:other:TEXThidden\nbob:TEXTb\n", "pool_passwd.ann: it is another user on the servers"),
        ("", "pool_passwd: there are no users in it"),
    ] {
        let error = refusal(&small(""), "", passwords);
        assert!(error.contains(expected) && !error.contains("hidden"), "{expected}\n{error}");
    }
}

#[test]
fn probes_log_in_as_a_user_whose_password_is_known() {
    let ann = [Some("ann"), Some("ann's"), None];
    for (lines, expected) in [
        ("", ann),
        ("sr_check_user = 'nobody'\nsr_check_database = 'shop'", ann),
        ("sr_check_user = 'watcher'", [Some("watcher"), Some("watching"), Some("postgres")]),
        (
            "sr_check_user = 'nobody'\nhealth_check_user = 'h'\nhealth_check_password = 'x'\nhealth_check_database = 'd'",
            [Some("h"), Some("x"), Some("d")],
        ),
        ("sr_check_user = 'nobody'\nhealth_check_user = 'bob'", ann),
    ] {
        let table = good(&small(lines), "");
        let found = ["user", "password", "database"].map(|key| text(&table["cluster"], key));
        assert_eq!(found, expected, "{lines}");
    }
    let verifiers =
        with(&small("sr_check_user = 'nobody'"), "", "bob:md5aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n", &Options::default());
    let written = verifiers.expect("a translation");
    assert!(written.contains("user = \"nobody\"") && written.contains("CREATE ROLE kingpost LOGIN"), "{written}");
}

#[test]
fn a_rule_that_is_not_understood_cannot_be_ignored() {
    let options =
        Options { ignored: vec!["pool_hba.conf".into(), "1".into(), "use_watchdog".into()], ..Options::default() };
    let error =
        with(&small("enable_pool_hba = on"), "host all all samenet reject\n", PASSWD, &options).expect_err("a rule");
    assert!(error.to_string().contains("samenet"), "{error}");
    let left = with(&small("use_watchdog = on"), "", PASSWD, &options).expect("a translation");
    assert!(left.contains("#   use_watchdog = on: left out by --ignore"), "{left}");
}
