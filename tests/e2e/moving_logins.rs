//! Logins at the servers with the translators' output: one primary and its replica that require SCRAM, MD5 or no password, by user, and refuse all
//! others.

use std::fmt::Write as _;

use kingpost_tests::certs::Authority;
use kingpost_tests::{Cluster, Kingpost, Port, ShowLogs, command, kingpost_bin};
use kingpost_tests::{Process, RunAs};

use crate::common::{only_kingpost, value};
use crate::moving_others::{Door, Old, connect, first, said};

/// Two users of clients, each with a database.
#[derive(Clone, Copy)]
struct Pair {
    shop: &'static str,
    books: &'static str,
}

/// Users by their method in pg_hba.conf.
const PAIRS: [(&str, Pair); 3] = [
    ("scram-sha-256", Pair { shop: "ann", books: "bob" }),
    ("md5", Pair { shop: "amy", books: "ben" }),
    ("trust", Pair { shop: "abe", books: "bea" }),
];

/// The harness connects without TLS. Of all others only these users get in, with TLS and to their databases.
fn hba() -> String {
    let mut text = "hostnossl all postgres 127.0.0.1/32 trust\nhostnossl replication all 127.0.0.1/32 trust\n\
                    hostssl shop kingpost,finder 127.0.0.1/32 scram-sha-256\n"
        .to_owned();
    for (method, Pair { shop, books }) in PAIRS {
        let _ = writeln!(text, "hostssl shop,books {shop},{books} 127.0.0.1/32 {method}");
    }
    text
}

fn password(user: &str) -> String {
    format!("{user}'s own")
}

/// A file's name and text.
type File = (&'static str, String);

/// Files of a program, and its logins: user, password, database, and the user on the servers.
struct Input {
    command: &'static str,
    files: Vec<File>,
    further: &'static [&'static str],
    logins: Vec<(String, String, &'static str, String)>,
    /// True if clients need no password; the servers may ask the proxy for one all the same.
    trusts: bool,
}

/// Sources of users in pgbouncer.ini.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Users {
    /// auth_file has their passwords.
    Listed,
    /// auth_file has their passwords, and clients need none.
    Trusted,
    /// Each database has one user on the servers.
    Forced,
    /// auth_user looks them up.
    LookedUp,
}

/// Ports of the proxy and of the servers.
#[derive(Clone, Copy)]
struct Ports {
    proxy: u16,
    primary: u16,
    replica: u16,
}

fn own_logins(pair: Pair) -> Vec<(String, String, &'static str, String)> {
    let login = |user: &str, database| (user.to_owned(), password(user), database, user.to_owned());
    vec![login(pair.shop, "shop"), login(pair.books, "books")]
}

/// Returns pgbouncer.ini: the replica is a database of its own, as in PgBouncer.
fn pgbouncer(ports: Ports, pair: Pair, of: Users) -> Input {
    let Ports { proxy, primary, replica } = ports;
    let user = |user: &str| match of {
        Users::Forced => format!(" user={user} password='{}'", password(user).replace('\'', "''")),
        Users::Listed | Users::Trusted | Users::LookedUp => String::new(),
    };
    let auth = if of == Users::Trusted { "trust" } else { "scram-sha-256" };
    let mut ini = format!(
        "[databases]\nshop = host=127.0.0.1 port={primary}{shop}\nbooks = host=127.0.0.1 port={primary}{books}\n\
         shop_ro = host=127.0.0.1 port={replica} dbname=shop{shop}\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {proxy}\nunix_socket_dir =\n\
         auth_type = {auth}\nauth_file = DIR/userlist.txt\nadmin_users = aboss\npool_mode = transaction\n\
         pool_idle_timeout = 60\nlogin_notify_message =\n",
        shop = user(pair.shop),
        books = user(pair.books),
    );
    let (clients, listed) = match of {
        Users::Listed | Users::Trusted => ([pair.shop, pair.books], vec![pair.shop, pair.books]),
        Users::Forced => (["web", "web"], vec!["web"]),
        Users::LookedUp => ([pair.shop, pair.books], vec!["finder"]),
    };
    if of == Users::LookedUp {
        ini.push_str("auth_user = finder\nauth_query = SELECT * FROM lookup($1)\nauth_dbname = shop\n");
    }
    // An operator need not be a user of the servers.
    let mut users = "\"aboss\" \"boss's own\"\n".to_owned();
    for user in listed {
        let _ = writeln!(users, "\"{user}\" \"{}\"", password(user));
    }
    let mut logins = own_logins(pair);
    for (login, client) in logins.iter_mut().zip(clients) {
        (login.0, login.1) = (client.to_owned(), password(client));
    }
    let files = vec![("pgbouncer.ini", ini), ("userlist.txt", users)];
    Input { command: "from-pgbouncer", files, further: &["--same-cluster"], logins, trusts: of == Users::Trusted }
}

fn pgcat(ports: Ports, pair: Pair, trusts: bool) -> Input {
    let Ports { proxy, primary, replica } = ports;
    let servers = format!("[[\"127.0.0.1\", {primary}, \"primary\"], [\"127.0.0.1\", {replica}, \"replica\"]]");
    let mut file = format!(
        "[general]\nhost = \"127.0.0.1\"\nport = {proxy}\nadmin_username = \"boss\"\nadmin_password = \"boss's own\"\n\
         connect_timeout = 20000\nserver_tls = true\n"
    );
    let method = if trusts { "trust" } else { "md5" };
    for (database, user) in [("shop", pair.shop), ("books", pair.books)] {
        let _ = write!(
            file,
            "[pools.{database}]\ndefault_role = \"any\"\n\
             [pools.{database}.users.0]\nusername = \"{user}\"\npassword = \"{}\"\npool_size = 3\nauth_type = \"{method}\"\n\
             [pools.{database}.shards.0]\ndatabase = \"{database}\"\nservers = {servers}\n",
            password(user)
        );
    }
    Input { command: "from-pgcat", files: vec![("pgcat.toml", file)], further: &[], logins: own_logins(pair), trusts }
}

fn pgdog(ports: Ports, pair: Pair, trusts: bool) -> Input {
    let Ports { proxy, primary, replica } = ports;
    let method = if trusts { "trust" } else { "scram" };
    let mut file = format!(
        "[general]\nhost = \"127.0.0.1\"\nport = {proxy}\ncheckout_timeout = 20000\nauth_type = \"{method}\"\n\
         [admin]\nuser = \"boss\"\npassword = \"boss's own\"\n"
    );
    let mut users = String::new();
    for (database, user) in [("shop", pair.shop), ("books", pair.books)] {
        for (port, role) in [(primary, "primary"), (replica, "replica")] {
            let entry = format!("name = \"{database}\"\nhost = \"127.0.0.1\"\nport = {port}\nrole = \"{role}\"\n");
            let _ = write!(file, "[[databases]]\n{entry}");
        }
        let _ = write!(
            users,
            "[[users]]\nname = \"{user}\"\ndatabase = \"{database}\"\npassword = \"{}\"\n",
            password(user)
        );
    }
    let files = vec![("pgdog.toml", file), ("users.toml", users)];
    Input { command: "from-pgdog", files, further: &[], logins: own_logins(pair), trusts }
}

/// `checks`: the password of sr_check_user, which is the shop's user; None: the file names a user without a password.
fn pgpool(ports: Ports, pair: Pair, checks: bool) -> Input {
    let Ports { proxy, primary, replica } = ports;
    let checks = if checks {
        format!("sr_check_user = '{}'\nsr_check_database = 'shop'\n", pair.shop)
    } else {
        "sr_check_user = 'nobody'\nsr_check_database = 'shop'\ndatabase_redirect_preference_list = 'shop:primary'\n"
            .to_owned()
    };
    let conf = format!(
        "listen_addresses = '127.0.0.1'\nport = {proxy}\nbackend_clustering_mode = 'streaming_replication'\n\
         backend_hostname0 = '127.0.0.1'\nbackend_port0 = {primary}\nbackend_weight0 = 1\n\
         backend_hostname1 = '127.0.0.1'\nbackend_port1 = {replica}\nbackend_weight1 = 1\n\
         ssl = on\nenable_pool_hba = off\npool_passwd = 'pool_passwd'\nnum_init_children = 5\nmax_pool = 2\n\
         load_balance_mode = on\nuse_watchdog = off\nmemory_cache_enabled = off\n{checks}"
    );
    let mut passwords = String::new();
    for user in [pair.books, pair.shop] {
        let _ = writeln!(passwords, "{user}:TEXT{}", password(user));
    }
    let files = vec![("pgpool.conf", conf), ("pool_passwd", passwords)];
    Input { command: "from-pgpool", files, further: &[], logins: own_logins(pair), trusts: false }
}

async fn world() -> (Authority, Cluster) {
    let authority = Authority::new();
    let servers = authority.issue_server("server", &["127.0.0.1"]);
    let cluster = Cluster::builder().replicas(1).tls(&servers).hba(&hba()).start().await;
    let primary = cluster.primary();
    let mut users = Vec::new();
    for (method, Pair { shop, books }) in PAIRS {
        let encryption = if method == "md5" { "md5" } else { "scram-sha-256" };
        for user in [shop, books] {
            let password = password(user).replace('\'', "''");
            let role =
                format!("SET password_encryption = '{encryption}'; CREATE ROLE {user} LOGIN PASSWORD '{password}'");
            primary.execute(&role).await;
            users.push(user);
        }
    }
    for database in ["shop", "books"] {
        primary.execute(&format!("CREATE DATABASE {database}")).await;
        let table = format!("CREATE TABLE t (what text); GRANT ALL ON t TO {}", users.join(", "));
        primary.execute_in(database, &table).await;
    }
    let finder = format!(
        "CREATE ROLE finder LOGIN PASSWORD '{}'; \
         CREATE FUNCTION lookup(who text) RETURNS TABLE (name text, secret text) SECURITY DEFINER SET search_path = pg_catalog \
         LANGUAGE sql AS 'SELECT rolname::text, rolpassword FROM pg_authid WHERE rolname = who AND rolcanlogin'",
        password("finder").replace('\'', "''")
    );
    primary.execute_in("shop", &finder).await;
    cluster.wait_caught_up().await;
    (authority, cluster)
}

fn old(input: &Input) -> Old {
    let files: Vec<(&str, &str)> = input.files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let old = Old::new("logins", &files);
    let file = old.path(input.files[0].0);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("DIR", old.dir.to_str().unwrap())).unwrap();
    old
}

/// Checks that each login succeeds, and finds its own writes in its own database.
async fn serves(what: &str, cluster: &Cluster, process: &Process, port: &Port, input: &Input) {
    for (user, password, database, role) in &input.logins {
        let client = first(cluster, process, &Door::clear(port), (user, password, database)).await;
        assert_eq!(value(&client, "SELECT current_user").await, *role, "{what}");
        assert_eq!(value(&client, "SELECT current_database()").await, *database, "{what}");
        let text = format!("{what} by {role}");
        client.batch_execute(&format!("INSERT INTO t VALUES ('{text}')")).await.unwrap();
        let found = value(&client, &format!("SELECT count(*) FROM t WHERE what = '{text}'")).await;
        assert_eq!(found, "1", "{what}: {user}");
        let refused = connect(&Door::clear(port), (user, "wrong", database)).await;
        assert_eq!(refused.is_err(), !input.trusts, "{what}: {user} with a wrong password");
    }
}

#[tokio::test]
async fn what_is_translated_logs_in_to_servers_by_scram_md5_and_trust() {
    if only_kingpost() {
        return;
    }
    let (_authority, cluster) = world().await;
    let _logs = ShowLogs(cluster.dir());
    for (method, pair) in PAIRS {
        type Make = fn(Ports, Pair) -> Input;
        let inputs: [(&str, Make); 10] = [
            ("pgbouncer", |ports, pair| pgbouncer(ports, pair, Users::Listed)),
            ("pgbouncer with users of databases", |ports, pair| pgbouncer(ports, pair, Users::Forced)),
            ("pgcat", |ports, pair| pgcat(ports, pair, false)),
            ("pgdog", |ports, pair| pgdog(ports, pair, false)),
            ("pgpool", |ports, pair| pgpool(ports, pair, false)),
            ("pgpool with a user for checks", |ports, pair| pgpool(ports, pair, true)),
            // Servers by SCRAM only.
            ("pgbouncer with auth_user", |ports, pair| pgbouncer(ports, pair, Users::LookedUp)),
            ("pgbouncer that trusts", |ports, pair| pgbouncer(ports, pair, Users::Trusted)),
            ("pgcat that trusts", |ports, pair| pgcat(ports, pair, true)),
            ("pgdog that trusts", |ports, pair| pgdog(ports, pair, true)),
        ];
        let some = if method == "scram-sha-256" { inputs.len() } else { 6 };
        for (name, make) in inputs.into_iter().take(some) {
            let what = format!("{name} to {method}");
            let port = Port::reserve();
            let ports =
                Ports { proxy: port.number(), primary: cluster.primary().port(), replica: cluster.replica(0).port() };
            let input = make(ports, pair);
            let old = old(&input);
            let written = old.translate(input.command, input.files[0].0, input.further);
            assert!(written.status.success(), "{what}: {}", said(&written));
            assert!(!said(&written).contains(" own"), "{what}: {}", said(&written));
            let process = old.start(cluster.dir());
            serves(&what, &cluster, &process, &port, &input).await;
            let toml = old.path("kingpost.toml");
            let online = Kingpost::run(&["check", "--online", "--config", &toml]);
            assert!(online.status.success(), "{what}: {}", said(&online));
            assert!(!said(&online).contains("missing"), "{what}: {}", said(&online));
        }
    }
}

/// The files have verifiers only: the operator has to create a role for probes, as the command says.
#[tokio::test]
async fn without_a_password_in_the_files_the_command_says_what_to_create() {
    if only_kingpost() {
        return;
    }
    let (_authority, cluster) = world().await;
    let _logs = ShowLogs(cluster.dir());
    for (name, port) in [("pgbouncer", Port::reserve()), ("pgdog", Port::reserve()), ("pgpool", Port::reserve())] {
        let ports =
            Ports { proxy: port.number(), primary: cluster.primary().port(), replica: cluster.replica(0).port() };
        // The verifiers in pool_passwd are MD5 hashes only.
        let pair = PAIRS[usize::from(name == "pgpool")].1;
        let mut verifiers = Vec::new();
        for user in [pair.shop, pair.books] {
            let sql = format!("SELECT rolpassword FROM pg_authid WHERE rolname = '{user}'");
            verifiers.push((password(user), cluster.primary().query(&sql).await));
        }
        let mut input = match name {
            "pgbouncer" => pgbouncer(ports, pair, Users::Listed),
            "pgdog" => pgdog(ports, pair, false),
            _ => pgpool(ports, pair, false),
        };
        for (_, text) in &mut input.files {
            for (password, verifier) in &verifiers {
                *text = text.replace(&format!("TEXT{password}"), verifier);
                *text = text.replace(&format!("password = \"{password}\""), &format!("password_hash = \"{verifier}\""));
                *text = text.replace(password, verifier);
            }
            // The operator's password gives no login at the servers.
            *text = text.replace("admin_users = aboss\n", "").replace("\"aboss\" \"boss's own\"\n", "");
        }
        let old = old(&input);
        let written = old.translate(input.command, input.files[0].0, input.further);
        assert!(written.status.success(), "{name}: {}", said(&written));
        let (said_of, text) = (said(&written), std::fs::read_to_string(old.path("kingpost.toml")).unwrap());
        for text in [&said_of, &text] {
            assert!(text.contains("CREATE ROLE kingpost LOGIN PASSWORD"), "{name}: {text}");
            assert!(text.contains("GRANT pg_monitor TO kingpost"), "{name}: {text}");
        }
        let shown = verifiers.iter().any(|(_, verifier)| said_of.contains(verifier));
        assert!(!shown, "{name}: {said_of}");
        let toml = old.path("kingpost.toml");
        let check = Kingpost::run(&["check", "--config", &toml]);
        assert!(check.status.success(), "{name}: {}", said(&check));
        assert!(said(&check).contains("cluster.password: missing"), "{name}: {}", said(&check));
        let online = Kingpost::run(&["check", "--online", "--config", &toml]);
        assert_eq!(online.status.code(), Some(3), "{name}: {}", said(&online));
        for port in [ports.primary, ports.replica] {
            let failed = format!("(127.0.0.1:{port}), database");
            assert!(said(&online).contains(&failed), "{name}: {}", said(&online));
        }
        assert!(said(&online).contains("SQLSTATE 28"), "{name}: {}", said(&online));

        // Runs the statement that the command has given.
        let role = "SET password_encryption = 'scram-sha-256'; DROP ROLE IF EXISTS kingpost; \
                    CREATE ROLE kingpost LOGIN PASSWORD 'of its own'; GRANT pg_monitor TO kingpost";
        cluster.primary().execute(role).await;
        cluster.wait_caught_up().await;
        let environment = [
            ("KINGPOST__CLUSTER__USER", "kingpost".to_owned()),
            ("KINGPOST__CLUSTER__PASSWORD", "of its own".to_owned()),
            ("KINGPOST__CLUSTER__DATABASE", "shop".to_owned()),
            ("KINGPOST__METRICS__LISTEN", format!("127.0.0.1:{}", Port::reserve().number())),
            ("KINGPOST__PROXY__WORKERS", "2".to_owned()),
        ];
        let run = |arguments: &[&str]| {
            let mut kingpost = command(&kingpost_bin(), RunAs::Tests, "KILL");
            kingpost.args(arguments).args(["--config", &toml]).envs(environment.clone());
            kingpost
        };
        let online = run(&["check", "--online"]).output().unwrap();
        assert!(online.status.success(), "{name}: {}", said(&online));
        let process = Process::start("kingpost", run(&["proxy"]), &cluster.dir().join(format!("{name}.log")));
        serves(name, &cluster, &process, &port, &input).await;
    }
}
