//! Whole files: their translations, and the refusals.

use super::*;
use config::SAFE_QUERY;

const INI: &str = r#"
;; a usual file
[databases]
shop = host=db1,db2 port=5433 dbname=shop_live query_wait_timeout=-1 pool_size=7 reserve_pool=2 max_db_connections=9 connect_query='select ''x''' timezone=UTC application_name='shop app'
"odd ""name" = host=db1 port=5433 pool_mode=session query_wait_timeout=4
* = host=db2 port=5433

[users]
app = pool_size=3 reserve_pool_size=1 max_user_connections=6 max_user_client_connections=9 pool_mode=session query_timeout=7 query_wait_timeout=3 transaction_timeout=8 client_idle_timeout=0

[peers]
1 = host=10.0.0.1
2 = host=10.0.0.2 port=7000
3 = host=/run/three

[pgbouncer]
listen_addr = 127.0.0.1, ::1
listen_port = 6543
unix_socket_dir =
auth_type = scram-sha-256
auth_file = /etc/userlist.txt
admin_users = boss
stats_users = watcher, boss
pool_mode = session
pool_mode = transaction
default_pool_size = 40
max_client_conn = 500
max_db_client_connections = 50
query_wait_timeout = 1.5
server_idle_timeout = 90
logfile = /var/log/pgbouncer.log
autodb_idle_timeout = 3600
pool_idle_timeout = 600
login_notify_message = this is a proxy
application_name_add_host = 0
min_pool_size = 2
max_db_connections = 30
max_user_connections = 0
reserve_pool_timeout = 2
peer_id = 1
"#;

const SCRAM: &str = "SCRAM-SHA-256$4096:c2FsdHNhbHRzYWx0c2FsdA==$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
const USERS: &str = "\"app\" \"s\"\"ecret\"\n\"old\" \"md5aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"\n;comment\n\"boss\" \"b\"\n\"watcher\" \"w\"\n\"none\" \"\"\n\"kept\" \"SCRAM\"\n";

fn with(ini: &str, options: &Options) -> Result<String, Failure> {
    let read = |path: &Path| match path.to_str() {
        Some("pgbouncer.ini") => Ok(ini.to_owned()),
        Some("/etc/userlist.txt") => Ok(USERS.replace("SCRAM", SCRAM)),
        Some("/etc/hashes") => Ok("\"old\" \"md5aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"\n".to_owned()),
        Some("/etc/trusting") => Ok("local all all trust\n".to_owned()),
        Some("/etc/rules") => Ok("host all all 10.0.0.0/8 scram-sha-256\n".to_owned()),
        Some("again.ini") => Ok("%include again.ini".to_owned()),
        _ => Err(Failure::environment("no such file")),
    };
    let mut plan = plan(Path::new("pgbouncer.ini"), &read, options)?;
    plan.watch(options);
    Ok(plan.render())
}

/// Translates a valid file, and checks the result as before it is written; files that it names are not examined.
fn table(ini: &str, options: &Options) -> toml::Table {
    let text = with(ini, options).unwrap_or_else(|error| panic!("{error}\n{ini}"));
    let checked = config::parse("text", &text, [], &|_| config::Stat::Readable { mode: 0o600, empty: false });
    assert!(checked.config.is_some(), "{:?}\n{text}", checked.problems);
    text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn good(ini: &str) -> toml::Table {
    table(ini, &Options::default())
}

fn refusal(ini: &str) -> String {
    with(ini, &Options::default()).expect_err(ini).to_string()
}

/// Returns a file with these lines in `[pgbouncer]`, which is valid without them.
fn settings(lines: &str) -> String {
    format!("[databases]\na = host=db1\n[pgbouncer]\nlisten_addr = 127.0.0.1\nauth_file = /etc/userlist.txt\n{lines}\n")
}

#[test]
fn settings_become_keys() {
    let table = good(INI);
    let proxy = table["proxy"].as_table().expect("[proxy]");
    assert_eq!(proxy["listen"].to_string(), r#"["127.0.0.1:6543", "[::1]:6543"]"#);
    assert_eq!(proxy["auth"].as_str(), Some("scram-sha-256"));
    assert_eq!(proxy["max_clients"].as_integer(), Some(500));
    assert_eq!(proxy["log_logins"].as_str(), Some("all"));
    assert_eq!(proxy["login_notice"].as_str(), Some("this is a proxy"));
    assert_eq!(proxy["login_timeout"].as_str(), Some("1m"));
    let pool = &proxy["pool"];
    assert_eq!(pool["mode"].as_str(), Some("transaction"), "the last of two counts");
    assert_eq!(pool["size"].as_integer(), Some(40));
    assert_eq!(pool["min_size"].as_integer(), Some(2));
    assert_eq!((pool["max_database_connections"].as_integer(), pool.get("max_user_connections")), (Some(30), None));
    assert_eq!((pool["reserve_timeout"].as_str(), pool["wait_notice"].as_str()), (Some("2s"), Some("5s")));
    assert_eq!(pool["wait_timeout"].as_str(), Some("1s 500ms"));
    assert_eq!(pool["server_idle_timeout"].as_str(), Some("1m 30s"));
    assert_eq!(pool["idle_timeout"].as_str(), Some("10m"));
    let databases = proxy["databases"].as_array().expect("databases");
    assert_eq!(databases[0]["dbname"].as_str(), Some("shop_live"));
    assert_eq!(databases[0]["max_clients"].as_integer(), Some(50));
    assert_eq!(databases[0]["reserve_pool_size"].as_integer(), Some(2));
    assert_eq!(databases[0]["max_connections"].as_integer(), Some(9));
    assert_eq!(databases[0]["connect_query"].as_str(), Some("select 'x'"));
    assert_eq!(databases[0]["parameters"][0].as_str(), Some("TimeZone=UTC"));
    assert_eq!(databases[0]["parameters"][1].as_str(), Some("application_name=shop app"));
    assert_eq!(databases[1]["name"].as_str(), Some("odd \"name"));
    assert_eq!(databases[1]["pool_mode"].as_str(), Some("session"));
    assert_eq!((databases[0].get("wait_timeout"), databases[1]["wait_timeout"].as_str()), (None, Some("4s")));
    assert_eq!(proxy["users"][0]["wait_timeout"].as_str(), Some("3s"));
    let nodes = table["cluster"]["nodes"].as_array().expect("nodes");
    let addresses: Vec<_> = nodes.iter().filter_map(|node| node["address"].as_str()).collect();
    assert_eq!(addresses, ["db1:5433", "db2:5433"]);
    assert_eq!(table["cluster"]["tls"]["mode"].as_str(), Some("prefer"), "PgBouncer's own default");
}

#[test]
fn peers_and_users_are_carried_over() {
    let table = good(INI);
    let proxy = &table["proxy"];
    assert_eq!(proxy["peer_id"].as_integer(), Some(1));
    let peers: Vec<_> = proxy["peers"]
        .as_array()
        .expect("peers")
        .iter()
        .map(|peer| (peer["id"].as_integer(), peer["address"].as_str()))
        .collect();
    assert_eq!(peers, [(Some(2), Some("10.0.0.2:7000")), (Some(3), Some("/run/three/.s.PGSQL.6432"))]);
    let users = proxy["users"].as_array().expect("users");
    let names: Vec<_> = users.iter().filter_map(|user| user["name"].as_str()).collect();
    assert_eq!(names, ["app", "boss", "kept", "watcher"], "an MD5 hash and an empty password let nobody in by SCRAM");
    assert_eq!(users[0]["password"].as_str(), Some("s\"ecret"));
    assert_eq!((users[0]["pool_size"].as_integer(), users[0]["max_clients"].as_integer()), (Some(3), Some(9)));
    assert_eq!((users[0]["pool_mode"].as_str(), users[0]["query_timeout"].as_str()), (Some("session"), Some("7s")));
    assert_eq!(
        (users[0]["reserve_pool_size"].as_integer(), users[0]["max_connections"].as_integer()),
        (Some(1), Some(6))
    );
    assert_eq!(users[0]["client_idle_timeout"].as_str(), Some("0s"));
    assert_eq!(users[0]["transaction_timeout"].as_str(), Some("8s"));
    assert_eq!(users[2]["verifier"].as_str(), Some(SCRAM));
    let operators = proxy["operators"].as_array().expect("operators");
    assert_eq!((operators[0]["name"].as_str(), operators[0].get("role")), (Some("boss"), None));
    assert_eq!((operators[1]["name"].as_str(), operators[1]["role"].as_str()), (Some("watcher"), Some("viewer")));
    assert_eq!(operators.len(), 2);
    // With MD5 authentication a hash is enough.
    let by_md5 = good(&settings("auth_type = md5"));
    let names: Vec<_> =
        by_md5["proxy"]["users"].as_array().expect("users").iter().filter_map(|user| user["name"].as_str()).collect();
    assert_eq!(names, ["app", "boss", "kept", "old", "watcher"]);
}

#[test]
fn a_limit_of_all_users_counts_for_those_that_are_looked_up_too() {
    for (lookup, users) in [("", "auth_type = md5"), ("auth_user = app\n", "auth_type = scram-sha-256")] {
        let lines = format!(
            "{users}\n{lookup}max_user_client_connections = 3\n[users]\nboss = max_user_client_connections=0\nwatcher = max_user_client_connections=7"
        );
        let table = good(&settings(&lines));
        let proxy = &table["proxy"];
        assert_eq!(proxy["max_clients_per_user"].as_integer(), Some(3));
        let most = |name: &str| {
            let users = proxy["users"].as_array().expect("users");
            let user = users.iter().find(|user| user["name"].as_str() == Some(name)).expect(name);
            user.get("max_clients").and_then(toml::Value::as_integer)
        };
        assert_eq!((most("app"), most("boss"), most("watcher")), (None, Some(1_000_000), Some(7)));
    }
}

#[test]
fn users_towards_the_servers_are_carried_over() {
    let databases = "[databases]\nb = host=db1 user=x password='it''s'\nc = host=db1 user=app\nd = host=db1 user=trusted\ne = host=db1 password=unused\nf = host=db1 user=old";
    let table = good(&settings(databases));
    let found: Vec<_> = table["proxy"]["databases"]
        .as_array()
        .expect("databases")
        .iter()
        .map(|entry| {
            let text = |key: &str| entry.get(key).and_then(toml::Value::as_str);
            (text("name"), text("server_user"), text("server_password"))
        })
        .collect();
    assert_eq!(
        found,
        [
            (Some("a"), None, None),
            (Some("b"), Some("x"), Some("it's")),
            (Some("c"), Some("app"), Some("s\"ecret")),
            (Some("d"), Some("trusted"), None),
            (Some("e"), None, None),
            // PgBouncer logs in with an MD5 hash as well.
            (Some("f"), Some("old"), Some("md5aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")),
        ]
    );
}

#[test]
fn tls_is_carried_over() {
    let none = Options { ignore_all: true, ..Options::default() };
    let text =
        |lines: &str| -> toml::Table { with(&settings(lines), &none).expect("a translation").parse().expect("TOML") };
    for (clients, mode, client_cert) in [
        ("allow", "allow", "optional"),
        ("prefer", "allow", "optional"),
        ("require", "require", "optional"),
        ("verify-ca", "require", "verify-ca"),
        ("verify-full", "require", "verify-ca"),
    ] {
        let table = text(&format!(
            "client_tls_sslmode = {clients}\nclient_tls_cert_file = /c\nclient_tls_key_file = /k\nclient_tls_ca_file = /a\nclient_tls_protocols = tlsv1.3"
        ));
        let tls = &table["proxy"]["tls"];
        assert_eq!(tls["mode"].as_str(), Some(mode), "{clients}");
        assert_eq!(tls["client_cert"].as_str(), Some(client_cert), "{clients}");
        assert_eq!((tls["cert_file"].as_str(), tls["key_file"].as_str()), (Some("/c"), Some("/k")));
        assert_eq!(tls["ca_file"].as_str(), Some("/a"), "{clients}");
        assert_eq!(tls["min_protocol_version"].as_str(), Some("TLSv1.3"));
    }
    let without = text("client_tls_sslmode = require\nclient_tls_cert_file = /c\nclient_tls_key_file = /k");
    assert!(without["proxy"]["tls"].get("client_cert").is_none(), "there is no CA to verify certificates with");
    for (servers, mode, verifies) in [
        ("disable", "disable", false),
        ("allow", "prefer", false),
        ("prefer", "prefer", false),
        ("require", "require", false),
        ("verify-ca", "verify-ca", true),
        ("verify-full", "verify-full", true),
    ] {
        let table = text(&format!(
            "server_tls_sslmode = {servers}\nserver_tls_ca_file = /a\nserver_tls_cert_file = /c\nserver_tls_key_file = /k"
        ));
        let tls = &table["cluster"]["tls"];
        assert_eq!(tls["mode"].as_str(), Some(mode), "{servers}");
        assert_eq!(tls.get("ca_file").is_some(), verifies, "{servers}");
        assert_eq!(tls.get("cert_file").is_some(), mode != "disable", "{servers}");
    }
}

#[test]
fn who_else_judges_passwords_becomes_rules() {
    for (ini, method) in [
        ("auth_type = pam", "pam pamservice=pgbouncer"),
        (
            "auth_type = ldap\nauth_ldap_options = ldapserver=h ldapprefix=\"uid=\" ldapsuffix=\",dc=x\"",
            "ldap ldapserver=h ldapprefix=\"uid=\" ldapsuffix=\",dc=x\"",
        ),
    ] {
        let ini = settings(&format!("{ini}\nadmin_users = boss\n[users]\nlate = pool_size=3"));
        let table = good(&ini);
        let rules = table["proxy"]["hba"].as_array().expect("rules");
        assert_eq!(rules.len(), 2);
        for (rule, (kind, address)) in rules.iter().zip([("local", None), ("host", Some("all"))]) {
            assert_eq!(rule["type"].as_str(), Some(kind));
            assert_eq!(rule.get("address").and_then(toml::Value::as_str), address);
            assert_eq!(rule["method"].as_str(), Some(method));
        }
        let users = table["proxy"]["users"].as_array().expect("users");
        let named: Vec<_> = users.iter().filter_map(|user| user["name"].as_str()).collect();
        assert_eq!(named, ["app", "boss", "kept", "late", "none", "old", "watcher"]);
    }
}

#[test]
fn what_cannot_be_carried_over_is_an_error_that_names_it() {
    for (ini, expected) in [
        (
            settings("application_name_add_host = 5"),
            "application_name_add_host = 5: Kingpost leaves application_name as it is",
        ),
        (settings("nonsense = 1"), "nonsense = 1: PgBouncer 1.26 has no such key in [pgbouncer]"),
        (settings("client_tls_ciphers = HIGH"), "client_tls_ciphers = HIGH"),
        (settings("client_tls_sslmode = on"), "client_tls_sslmode: found \"on\""),
        (settings("server_tls_protocols = tlsv1.1"), "server_tls_protocols: Kingpost speaks TLS 1.2 and 1.3 only"),
        (settings("auth_type = plain"), "auth_type: found \"plain\""),
        (settings("auth_type = pam\nauth_file ="), "auth_type: there are no users in auth_file"),
        (settings("auth_type = ldap"), "auth_ldap_options: found 0 names of servers"),
        (
            settings(
                "auth_type = ldap\nauth_ldap_options = ldapserver=h ldapbasedn=x ldapprefix=y ldapbindpasswd=hidden",
            ),
            "auth_ldap_options: found ldapprefix",
        ),
        (settings("auth_type = hba"), "auth_type: found \"hba\" without auth_hba_file"),
        (settings("auth_type = hba\nauth_hba_file = /etc/trusting"), "admin_users: there is none"),
        (settings("auth_type = trust"), "admin_users: there is none"),
        (
            settings("auth_type = trust\nadmin_users = boss\nauth_user = app\n[users]\nlate = pool_size=1"),
            "users.late: auth_file does not have it: with auth_type = trust",
        ),
        (settings("auth_type = scram-sha-256\nauth_user = old"), "auth_user: auth_file has no plain-text password"),
        (settings("admin_users = stranger"), "admin_users.stranger: has no usable secret"),
        (settings("default_pool_size = many"), "default_pool_size: found \"many\", expected a number from 1 to 10000"),
        (settings("query_wait_timeout = 0"), "query_wait_timeout: found 0, which means for ever"),
        (
            settings("[users]\napp = query_wait_timeout=0"),
            "users.app.query_wait_timeout: found 0, which means for ever",
        ),
        (settings("unix_socket_dir = @abstract"), "unix_socket_dir: expected an absolute path"),
        (settings("listen_port = x"), "listen_port: found \"x\""),
        (settings("peer_id = 4000"), "peer_id: found \"4000\", expected a number from 1 to 31"),
        (settings("peer_id = 1\n[peers]\n2 = host=other.example"), "peers.2.host: found \"other.example\""),
        (
            settings("[databases]\nb = host=db1 user=kept"),
            "databases.b.user: auth_file has neither a plain-text password",
        ),
        (settings("[databases]\nb = host=db1 auth_query='select ''x'''"), "databases.b.auth_query = select 'x'"),
        (settings("[databases]\npgbouncer = host=db1"), "databases.pgbouncer: the name is the console's"),
        (settings("[extra]\na = b"), "extra.a: pgbouncer.ini, line 7: PgBouncer has no section [extra]"),
        ("[pgbouncer]\nauth_type = md5\n".to_owned(), "databases: there is none"),
    ] {
        let error = refusal(&ini);
        assert!(error.contains(expected), "{ini}\n{error}");
        assert!(error.contains("nothing is written") && !error.contains("hidden"), "{error}");
    }
    let both = refusal(&settings("application_name_add_host = 5\nresolv_conf = /etc/other"));
    assert!(
        both.contains("2 settings") && both.contains("application_name_add_host") && both.contains("resolv_conf"),
        "{both}"
    );
}

#[test]
fn what_is_ignored_is_left_out_and_said() {
    let ini = settings(
        "application_name_add_host = 5\n[databases]\nb = host=db1 auth_query='select 1'\nc = host=db1 auth_query='select 2'",
    );
    let ignoring = |names: &[&str]| Options {
        ignored: names.iter().map(|name| (*name).to_owned()).collect(),
        ..Options::default()
    };
    assert!(with(&ini, &ignoring(&["application_name_add_host"])).is_err());
    assert!(with(&ini, &ignoring(&["application_name_add_host", "databases.b.auth_query"])).is_err());
    let text = with(&ini, &ignoring(&["application_name_add_host", "auth_query"])).expect("a translation");
    for line in [
        "#   application_name_add_host = 5: left out by --ignore",
        "#   databases.b.auth_query = select 1: left out by --ignore",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn databases_of_several_clusters() {
    let ini = settings(
        "[databases]\nb = host=db2\nc = host=db2,db3\n* = host=db4 port=1\n[pgbouncer]\nserver_tls_sslmode = require",
    );
    let apart = table(&ini, &Options::default());
    let nodes = |cluster: &toml::Value| {
        let of = cluster["nodes"].as_array().expect("nodes").iter();
        of.map(|node| node["address"].as_str().expect("an address").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((apart["cluster"]["name"].as_str(), nodes(&apart["cluster"])), (Some("a"), vec!["db1:5432".into()]));
    let further = apart["clusters"].as_array().expect("further clusters");
    let further: Vec<_> =
        further.iter().map(|of| (of["name"].as_str(), nodes(of), of["tls"]["mode"].as_str())).collect();
    assert_eq!(
        further,
        [
            (Some("b"), vec!["db2:5432".to_owned(), "db3:5432".to_owned()], Some("require")),
            (Some("others"), vec!["db4:1".to_owned()], Some("require")),
        ]
    );
    let databases = apart["proxy"]["databases"].as_array().expect("databases").iter();
    let led: Vec<_> =
        databases.map(|of| (of["name"].as_str(), of.get("cluster").and_then(|name| name.as_str()))).collect();
    assert_eq!(led, [(Some("a"), None), (Some("b"), Some("b")), (Some("c"), Some("b")), (Some("*"), Some("others"))]);
    let same = table(&ini, &Options { same_cluster: true, ..Options::default() });
    assert_eq!(same["cluster"]["nodes"].as_array().map(Vec::len), Some(4));
    assert!(same.get("clusters").is_none());
    let one = table(&ini, &Options { databases: vec!["b".into(), "c".into()], ..Options::default() });
    assert_eq!(one["cluster"]["nodes"].as_array().map(Vec::len), Some(2));
    assert_eq!(one["proxy"]["databases"].as_array().map(Vec::len), Some(2));
    let error = with(&ini, &Options { databases: vec!["z".into()], ..Options::default() }).expect_err("z");
    assert!(error.to_string().contains("databases.z: --database names it"), "{error}");
}

/// Returns the user, password and database of a cluster's probes.
fn prober(cluster: &toml::Value) -> [Option<&str>; 3] {
    ["user", "password", "database"].map(|key| cluster.get(key).and_then(toml::Value::as_str))
}

#[test]
fn probes_log_in_as_a_user_whose_password_is_known() {
    let [app, boss] =
        [("app", "s\"ecret"), ("boss", "b")].map(|(user, password)| [Some(user), Some(password), Some("a")]);
    for (lines, expected) in [
        ("", app),
        // Operators need not be users of the servers.
        ("admin_users = app", boss),
        ("auth_type = scram-sha-256\nauth_user = app", app),
        ("auth_user = app\nauth_dbname = users", [Some("app"), Some("s\"ecret"), Some("users")]),
        // auth_user is looked up in auth_file, and is not in it.
        ("auth_user = finder", app),
        ("auth_file =\nauth_user = finder", [Some("finder"), None, Some("a")]),
        ("[databases]\na = host=db1 dbname=live user=writer password=w", [Some("writer"), Some("w"), Some("live")]),
        ("[databases]\na = host=db1 user=old", app),
        ("[databases]\n* = host=db1 user=writer password=w", [Some("writer"), Some("w"), None]),
    ] {
        let table = good(&settings(lines));
        assert_eq!(prober(&table["cluster"]), expected, "{lines}");
    }
    // Clusters are handled separately.
    let ini = settings("[databases]\nb = host=db2 user=writer password=w\nc = host=db3 dbname=archive");
    let apart = good(&ini);
    let clusters = apart["clusters"].as_array().expect("further clusters");
    assert_eq!(prober(&apart["cluster"]), app);
    assert_eq!(prober(&clusters[0]), [Some("writer"), Some("w"), Some("b")]);
    assert_eq!(prober(&clusters[1]), [Some("app"), Some("s\"ecret"), Some("archive")]);
    // Hashes give no login, and a comment tells what to do.
    let text = with(&settings("auth_file = /etc/hashes"), &Options::default()).expect("a translation");
    assert!(text.contains("CREATE ROLE kingpost LOGIN PASSWORD"), "{text}");
}

#[test]
fn servers_certificates_are_verified_with_the_systems_authorities_where_no_file_is_named() {
    let text = with(&settings("server_tls_sslmode = verify-full"), &Options::default()).expect("a translation");
    assert!(text.contains("ca_file = \"/etc/ssl/certs/ca-certificates.crt\""), "{text}");
    let text = with(&settings("server_tls_sslmode = require"), &Options::default()).expect("a translation");
    assert!(!text.contains("ca_file"), "{text}");
}

#[test]
fn the_old_auth_query_is_replaced() {
    for (lines, expected) in [
        ("auth_user = app", SAFE_QUERY),
        ("auth_user = app\nauth_query = SELECT usename, passwd FROM pg_shadow WHERE usename=$1", SAFE_QUERY),
        ("auth_user = app\nauth_query = select usename, passwd  from pg_shadow where usename = $1;", SAFE_QUERY),
        ("auth_user = app\nauth_query = SELECT * FROM lookup($1)", "SELECT * FROM lookup($1)"),
    ] {
        let table = good(&settings(lines));
        let query = &table["proxy"]["auth_query"];
        assert_eq!(query["query"].as_str(), Some(expected), "{lines}");
        assert_eq!((query["user"].as_str(), query["password"].as_str()), (Some("app"), Some("s\"ecret")));
        assert_eq!(query["database"].as_str(), Some("a"));
        assert_eq!(table["cluster"]["user"].as_str(), Some("app"));
    }
    // Without auth_user PgBouncer looks up no users.
    let nobody = good(&settings("auth_query = SELECT * FROM lookup($1)"));
    assert!(nobody["proxy"].get("auth_query").is_none());
}

#[test]
fn rules_are_carried_over_where_pgbouncer_reads_them() {
    let options = Options { ignore_all: true, ..Options::default() };
    let ruled: toml::Table =
        with(&settings("auth_type = hba\nauth_hba_file = /etc/rules\nauth_ident_file = /etc/maps"), &options)
            .expect("a translation")
            .parse()
            .expect("TOML");
    assert_eq!(ruled["proxy"]["hba_file"].as_str(), Some("/etc/rules"));
    assert_eq!(ruled["proxy"]["ident_file"].as_str(), Some("/etc/maps"));
    assert!(good(&settings("auth_hba_file = /etc/trusting"))["proxy"].get("hba_file").is_none());
    assert!(good(&settings("auth_ident_file = /etc/maps"))["proxy"].get("ident_file").is_none());
}

#[test]
fn what_is_not_needed_says_why() {
    let text = with(INI, &Options::default()).expect("a translation");
    for line in [
        "#   logfile = /var/log/pgbouncer.log: Kingpost logs to standard error",
        "#   autodb_idle_timeout = 3600: a pool that nobody uses",
        "#   application_name_add_host = 0: is so in Kingpost anyway",
        "#   user old: auth_file has an MD5 hash",
        "#   user none: auth_file has an empty password",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn control_characters_do_not_end_a_comment() {
    let ini = "[pgbouncer]\nlogfile = a\r[proxy]\0b\tc\u{7f}\nodd\r = 1\n[peers]\n1 = host=\ra\n[databases]\nd = auth_query='\rx'\n";
    let text = with(ini, &Options { ignored: vec!["odd".into(), "auth_query".into()], ..Options::default() })
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(text.contains("#   logfile = a\\r[proxy]\\u{0}b\tc\\u{7f}: Kingpost logs"), "{text}");
    let table: toml::Table = text.parse().expect("TOML");
    assert_eq!(table["proxy"]["auth"].as_str(), Some("md5"));
}

#[test]
fn a_short_file_has_pgbouncers_defaults() {
    let table = good("[databases]\n* = host=db1\n[pgbouncer]\nauth_file = /etc/userlist.txt\n");
    assert_eq!(table["proxy"]["auth"].as_str(), Some("md5"));
    assert_eq!(table["proxy"]["max_clients"].as_integer(), Some(100));
    assert_eq!(table["proxy"]["pool"]["mode"].as_str(), Some("session"));
    assert_eq!(table["proxy"]["pool"]["wait_timeout"].as_str(), Some("2m"));
    let listen = &table["proxy"]["listen"][0];
    assert_eq!((listen["address"].as_str(), listen["mode"].as_str()), (Some("/tmp/.s.PGSQL.6432"), Some("0777")));
}

#[test]
fn what_is_no_ini_file_is_refused_with_its_line() {
    for (ini, expected) in [
        ("[pgbouncer]\nnonsense", "pgbouncer.ini, line 2: found \"nonsense\""),
        ("%include again.ini", "too many %include"),
        ("%include gone.ini", "no such file"),
    ] {
        let error = refusal(ini);
        assert!(error.contains(expected), "{error}");
    }
}

/// Names of PgBouncer's that a setting declares lead to the same setting by the table of its keys.
#[test]
fn declared_names_of_pgbouncer_are_those_of_the_table() {
    let rows = settings::rows(&proxy::config::ProxyConfig::default(), "proxy");
    let mut named = 0;
    for row in rows {
        let Some(theirs) = row.key.pgbouncer else { continue };
        assert!(matches!(super::alias(theirs), Some(config::Alias::Path(path)) if path == row.path), "{theirs}");
        named += 1;
    }
    assert!(named > 20, "{named}");
}
