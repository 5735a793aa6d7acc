//! Looked-up users, rules of client authentication, and limits of clients.

use futures_util::future::join_all;
use kingpost_tests::raw::{Raw, query, startup};
use kingpost_tests::{
    Cluster, DATABASE, Kingpost, SCRAM_PASSWORD, SCRAM_USER, ShowLogs, USER, database, new_dir, sqlstate, user,
};
use tokio_postgres::Config;
use toml::Table;

use crate::common::{only_kingpost, shared, value};

/// The `auth_query` of the guide, and of PgBouncer's documentation since 1.24.1.
const AUTH_QUERY: &str = "SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END FROM pg_authid WHERE rolname=$1 AND rolcanlogin";

fn config(kingpost: &Kingpost, user: &str, password: &str) -> Config {
    let mut config = kingpost.endpoint().config();
    config.user(user).password(password);
    config
}

async fn refusal(kingpost: &Kingpost, config: &Config) -> (String, String) {
    let outcome = kingpost.endpoint().try_connect(config).await;
    let error = outcome.map(|_| ()).expect_err("it got in");
    let said = error.as_db_error().map(|error| error.message().to_owned()).unwrap_or_default();
    (sqlstate(&error).to_owned(), said)
}

#[tokio::test]
async fn users_are_looked_up_and_passed_through_without_a_password_in_the_configuration() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.auth_query.query", AUTH_QUERY)
        .start()
        .await;
    let right = config(&kingpost, SCRAM_USER, SCRAM_PASSWORD);
    for _ in 0..10 {
        let client = kingpost.endpoint().connect_as(&right).await;
        // Both servers require a password, and the proxy's configuration has none.
        for route in ["primary", "replica"] {
            let sql = format!("/* kingpost.route={route} */ SELECT current_user");
            assert_eq!(value(&client, &sql).await, SCRAM_USER);
        }
    }
    assert_eq!(kingpost.metrics().await.sum("kingpost_user_lookups_total", &[]), 1.0, "it is remembered");
    // A wrong password, an unknown user, and a user without a password get the same error.
    for (name, password) in [(SCRAM_USER, "wrong"), ("nobody_known", "x"), (USER, "x")] {
        for _ in 0..3 {
            assert_eq!(refusal(&kingpost, &config(&kingpost, name, password)).await.0, "28P01", "{name}");
        }
    }
    let lookups = kingpost.metrics().await.sum("kingpost_user_lookups_total", &[]);
    assert!(lookups <= 7.0, "who is not there is remembered, too: {lookups}");
    // A changed password is detected when the old one no longer fits.
    cluster.primary().execute(&format!("ALTER ROLE {SCRAM_USER} PASSWORD 'battery staple'")).await;
    cluster.wait_caught_up().await;
    let changed = config(&kingpost, SCRAM_USER, "battery staple");
    let client = cluster
        .wait("the new password to be known", async || kingpost.endpoint().try_connect(&changed).await.ok())
        .await;
    // From here on the proxy opens server connections with the new password.
    cluster.primary().execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'sam'").await;
    cluster
        .wait("a server connection by the new password", async || {
            let answer = client.simple_query("/* kingpost.route=primary */ SELECT current_user").await;
            answer.is_ok().then_some(())
        })
        .await;
    assert_eq!(refusal(&kingpost, &right).await.0, "28P01", "the old password");
    let log = std::fs::read_to_string(kingpost.process().log()).unwrap();
    for secret in [SCRAM_PASSWORD, "battery staple", "SCRAM-SHA-256$"] {
        assert!(!log.contains(secret), "{secret:?} is in the log:\n{log}");
    }
}

#[tokio::test]
async fn who_may_not_log_in_any_more_loses_open_connections() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    for role in ["expires", "loses", "dropped", "stays"] {
        primary.execute(&format!("CREATE ROLE {role} LOGIN PASSWORD '{role}'")).await;
    }
    primary.execute("CREATE ROLE expired LOGIN PASSWORD 'expired' VALID UNTIL '2001-01-01'").await;
    primary.execute("CREATE ROLE group_role PASSWORD 'group_role'").await;
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.auth_query.query", AUTH_QUERY)
        .set("proxy.auth_query.cache", "300ms")
        .set("proxy.auth_query.negative_cache", "100ms")
        .start()
        .await;
    // From the start: the servers admit both without a password.
    for role in ["expired", "group_role"] {
        assert_eq!(refusal(&kingpost, &config(&kingpost, role, role)).await.0, "28P01", "{role}");
    }
    let stays = kingpost.endpoint().connect_as(&config(&kingpost, "stays", "stays")).await;
    stays.batch_execute("BEGIN").await.unwrap();
    let pid = value(&stays, "SELECT pg_backend_pid()").await;
    let backends = async |role: &str| {
        primary.query(&format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{role}'")).await
    };
    for (role, change) in [
        ("expires", "ALTER ROLE expires VALID UNTIL '2001-01-01'"),
        ("loses", "ALTER ROLE loses NOLOGIN"),
        ("dropped", "DROP ROLE dropped"),
    ] {
        // An idle client, with its server connection in the pool; and a client with a running statement.
        let idle = kingpost.endpoint().connect_as(&config(&kingpost, role, role)).await;
        assert_eq!(value(&idle, "SELECT current_user").await, role);
        let busy = kingpost.endpoint().connect_as(&config(&kingpost, role, role)).await;
        let running = async { busy.simple_query("SELECT pg_sleep(600)").await.map(|_| ()) };
        let losing = async {
            let sleeping =
                format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{role}' AND query LIKE '%sleep%'");
            cluster.wait("the statement to run", async || (primary.query(&sleeping).await == "1").then_some(())).await;
            primary.execute(change).await;
            let ends = format!("{change} to close the idle client");
            cluster.wait(&ends, async || idle.simple_query("SELECT 1").await.is_err().then_some(())).await;
        };
        let (running, ()) = futures_util::future::join(running, losing).await;
        let error = running.expect_err("the statement's client is closed");
        assert_eq!(sqlstate(&error), "28000", "{error:?}");
        cluster.wait("its server connections to be closed", async || (backends(role).await == "0").then_some(())).await;
        assert_eq!(refusal(&kingpost, &config(&kingpost, role, role)).await.0, "28P01", "{role}");
    }
    // Another user was looked up as often, without any effect: it is in the same transaction on the same connection.
    assert_eq!(value(&stays, "SELECT pg_backend_pid()").await, pid);
    stays.batch_execute("COMMIT").await.unwrap();
    // A user that may log in again gets in again.
    primary.execute("ALTER ROLE expires VALID UNTIL 'infinity'").await;
    let right = config(&kingpost, "expires", "expires");
    cluster.wait("the role to be let in again", async || kingpost.endpoint().try_connect(&right).await.ok()).await;
}

#[tokio::test]
async fn logins_and_refusals_are_logged_without_secrets() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster)
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.log_logins", "all")
        .add("proxy.users", user(SCRAM_USER, SCRAM_PASSWORD))
        .add("proxy.users", user(USER, "alice's own"))
        .start()
        .await;
    kingpost.endpoint().connect_as(&config(&kingpost, SCRAM_USER, SCRAM_PASSWORD)).await;
    let forged = "nobody\n2026-01-01 INFO all is well";
    for (name, password) in [(USER, "a wrong guess"), (forged, "x")] {
        assert_eq!(refusal(&kingpost, &config(&kingpost, name, password)).await.0, "28P01");
    }
    let log = std::fs::read_to_string(kingpost.process().log()).unwrap();
    let line = |what: &[&str]| log.lines().any(|line| what.iter().all(|word| line.contains(word)));
    assert!(line(&["kingpost::login", "logged in", SCRAM_USER, DATABASE, "127.0.0.1"]), "{log}");
    assert!(line(&["kingpost::login", "login refused", USER, "28P01", "password authentication failed"]), "{log}");
    assert!(!line(&["logged in", USER]), "{log}");
    assert!(!log.contains("\n2026-01-01 INFO all is well"), "a name ends a line of the log:\n{log}");
    for secret in ["a wrong guess", SCRAM_PASSWORD] {
        assert!(!log.contains(secret), "{log}");
    }
}

#[tokio::test]
async fn a_database_may_have_a_user_of_its_own_on_the_servers() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    cluster.primary().execute("CREATE ROLE ted LOGIN PASSWORD 'ted''s own'").await;
    cluster.wait_caught_up().await;
    let alias = |name: &str, password: Option<&str>| {
        let mut table = database(name, "dbname", DATABASE);
        // The servers require a password of this user, by SCRAM.
        table.insert("server_user".into(), SCRAM_USER.into());
        if let Some(password) = password {
            table.insert("server_password".into(), password.into());
        }
        table
    };
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        .add("proxy.users", user(USER, "alice's own"))
        .add("proxy.users", user("ted", "ted's own"))
        // A client with the name of the server_user, and another password.
        .add("proxy.users", user(SCRAM_USER, "of the client"))
        .add("proxy.databases", alias("shop", Some(SCRAM_PASSWORD)))
        .add("proxy.databases", alias("wrong", Some("wrong")))
        .add("proxy.databases", alias("none", None))
        .add("proxy.databases", database(DATABASE, "pool_size", 3))
        .start()
        .await;
    let of = |name: &str, password: &str, database: &str| {
        let mut config = config(&kingpost, name, password);
        config.dbname(database);
        config
    };
    for (name, password) in [(USER, "alice's own"), ("ted", "ted's own"), (SCRAM_USER, "of the client")] {
        let client = kingpost.endpoint().connect_as(&of(name, password, "shop")).await;
        for route in ["primary", "replica"] {
            let sql = format!("/* kingpost.route={route} */ SELECT session_user");
            assert_eq!(value(&client, &sql).await, SCRAM_USER, "{name}");
        }
    }
    // In another database each client has its own user.
    for (name, password) in [(USER, "alice's own"), ("ted", "ted's own")] {
        let client = kingpost.endpoint().connect_as(&of(name, password, DATABASE)).await;
        assert_eq!(value(&client, "SELECT session_user").await, name);
    }
    // The password of the server_user is not valid for a client, nor a client's for the server_user.
    assert_eq!(refusal(&kingpost, &of(SCRAM_USER, SCRAM_PASSWORD, "shop")).await.0, "28P01");
    assert_eq!(refusal(&kingpost, &of(SCRAM_USER, "of the client", DATABASE)).await.0, "28P01");
    for database in ["wrong", "none"] {
        for (name, password) in [(USER, "alice's own"), (SCRAM_USER, "of the client")] {
            let (code, said) = refusal(&kingpost, &of(name, password, database)).await;
            assert!(code.starts_with("28"), "{database}: {code} {said}");
        }
    }
    let log = std::fs::read_to_string(kingpost.process().log()).unwrap();
    assert!(!log.contains(SCRAM_PASSWORD), "{log}");
}

/// Row-level security by `current_user`, for two users that the servers would refuse: one server_user with the role of each. In a second database the
/// clients are the server_user itself.
#[tokio::test]
async fn sessions_take_the_client_s_user_as_their_role() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    cluster
        .primary()
        .execute(
            "CREATE ROLE shop_app LOGIN; CREATE ROLE ann; CREATE ROLE ben; GRANT ann, ben TO shop_app; \
             CREATE TABLE owned (owner text, n int); ALTER TABLE owned ENABLE ROW LEVEL SECURITY; \
             CREATE POLICY own ON owned USING (owner = current_user); GRANT ALL ON owned TO ann, ben; \
             INSERT INTO owned SELECT owner, n FROM unnest('{ann,ben}'::text[]) owner, generate_series(1, 3) n",
        )
        .await;
    cluster.wait_caught_up().await;
    let alias = |name: &str, set_role: bool| {
        let mut table = database(name, "server_user", "shop_app");
        table.insert("set_role".into(), set_role.into());
        table
    };
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.pool.size", 1)
        .add("proxy.databases", alias("shop", true))
        .add("proxy.databases", alias("plain", false))
        .add("proxy.users", user("ann", "of ann"))
        .add("proxy.users", user("ben", "of ben"))
        .add("proxy.users", user("eve", "of eve"))
        .add("proxy.users", user("none", "of none"))
        .start()
        .await;
    let of = |name: &str, database: &str| {
        let mut config = config(&kingpost, name, &format!("of {name}"));
        config.dbname(database);
        config
    };
    let mut clients = Vec::new();
    for name in ["ann", "ben", "ann", "ben"] {
        clients.push((name, kingpost.endpoint().connect_as(&of(name, "shop")).await));
    }
    let seen = "SELECT string_agg(owner || n, ' ' ORDER BY n) FROM owned";
    for round in 0..20 {
        for (name, client) in &clients {
            let expected = format!("{name}1 {name}2 {name}3");
            assert_eq!(value(client, seen).await, expected);
            assert_eq!(value(client, &format!("/* kingpost.route=replica */ {seen}")).await, expected);
            let rows = client.query("SELECT owner FROM owned WHERE n = $1", &[&1]).await.unwrap();
            assert_eq!((rows.len(), rows[0].get::<_, &str>(0)), (1, *name));
            // Statements that change or clear the role, in every protocol; a role left by a DO is cleared by the proxy.
            let reset = [
                "RESET ROLE",
                "DISCARD ALL",
                "RESET ALL",
                "DO $$ BEGIN RESET ROLE; END $$",
                "SET ROLE ann; RESET ROLE",
            ];
            client.batch_execute(reset[round % reset.len()]).await.unwrap();
            assert_eq!(value(client, "SELECT current_user || ' ' || session_user").await, format!("{name} shop_app"));
            client.batch_execute("BEGIN").await.unwrap();
            assert_eq!(value(client, seen).await, expected);
            client.batch_execute("COMMIT").await.unwrap();
        }
    }
    // A role in the client's own start-up options does not count.
    let mut sly = of("ann", "shop");
    sly.options("-c role=ben");
    assert_eq!(value(&kingpost.endpoint().connect_as(&sly).await, seen).await, "ann1 ann2 ann3");
    // Without set_role they are the server_user; a user without a role, or with a role that the server_user is no member of, is refused.
    let plain = kingpost.endpoint().connect_as(&of("ann", "plain")).await;
    assert_eq!(value(&plain, "SELECT current_user").await, "shop_app");
    for name in ["eve", "none"] {
        let (code, said) = refusal(&kingpost, &of(name, "shop")).await;
        assert!(["22023", "28000"].contains(&code.as_str()) && said.contains(name), "{code} {said}");
    }
}

#[tokio::test]
async fn md5_users_are_looked_up_and_passed_through() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder()
        .hba(
            "host all mia 127.0.0.1/32 md5\nhost all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n",
        )
        .start()
        .await;
    let _logs = ShowLogs(cluster.dir());
    cluster
        .primary()
        .execute(
            "SET password_encryption = 'md5'; CREATE ROLE mia LOGIN PASSWORD 'old school'; \
             CREATE FUNCTION secret_of(who text, OUT name text, OUT secret text) LANGUAGE sql SECURITY DEFINER \
             AS 'SELECT rolname::text, rolpassword FROM pg_authid WHERE rolname = who'; \
             CREATE ROLE guard LOGIN",
        )
        .await;
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "md5")
        .set("proxy.auth_query.query", "SELECT * FROM secret_of($1)")
        .set("proxy.auth_query.user", "guard")
        .set("proxy.auth_query.database", "app")
        .start()
        .await;
    let client = kingpost.endpoint().connect_as(&config(&kingpost, "mia", "old school")).await;
    assert_eq!(value(&client, "SELECT current_user").await, "mia");
    assert_eq!(refusal(&kingpost, &config(&kingpost, "mia", "new school")).await.0, "28P01");
    // A database's own user may log in to the servers with a hash, too; a hash of another password is refused.
    let hash = cluster.primary().query("SELECT rolpassword FROM pg_authid WHERE rolname = 'mia'").await;
    let other = cluster.primary().query("SELECT 'md5' || md5('new school' || 'mia')").await;
    let of = |name: &str, password: &str| {
        let mut table = database(name, "dbname", DATABASE);
        table.insert("server_user".into(), "mia".into());
        table.insert("server_password".into(), password.into());
        table
    };
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        .add("proxy.users", user(USER, "alice's own"))
        .add("proxy.users", user("ted", "ted's own"))
        .add("proxy.databases", of("hashed", &hash))
        .add("proxy.databases", of("plain", "old school"))
        .add("proxy.databases", of("other", &other))
        .start()
        .await;
    for (name, password) in [(USER, "alice's own"), ("ted", "ted's own")] {
        let of = |database: &str| {
            let mut config = config(&kingpost, name, password);
            config.dbname(database);
            config
        };
        for database in ["hashed", "plain"] {
            let client = kingpost.endpoint().connect_as(&of(database)).await;
            assert_eq!(value(&client, "SELECT session_user").await, "mia", "{database}");
        }
        assert_eq!(refusal(&kingpost, &of("other")).await.0, "28P01");
    }
}

#[tokio::test]
async fn trust_lets_in_only_who_is_found_where_users_are_looked_up() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    cluster.primary().execute("CREATE ROLE found LOGIN; CREATE ROLE leaves LOGIN; CREATE ROLE group_role").await;
    let file = new_dir("trusting").join("pg_hba.conf");
    std::fs::write(&file, "host all all 127.0.0.1/32 trust\n").unwrap();
    // By proxy.auth, and by a rule. All are one user on the servers, so that the servers refuse none.
    for by_rule in [false, true] {
        let mut table = database("shop", "dbname", DATABASE);
        table.insert("server_user".into(), USER.into());
        let builder = Kingpost::of(&cluster)
            .set("proxy.auth_query.query", AUTH_QUERY)
            .set("proxy.auth_query.cache", "300ms")
            .set("proxy.auth_query.negative_cache", "100ms")
            .add("proxy.databases", table);
        let builder = if by_rule {
            let builder = builder.set("proxy.auth", "scram-sha-256");
            builder.set("proxy.hba_file", file.to_str().unwrap()).add("proxy.users", user("listed", "never asked for"))
        } else {
            builder.set("proxy.auth", "trust").add("proxy.users", user("listed", "never asked for"))
        };
        let kingpost = builder.start().await;
        let of = |name: &str| {
            let mut config = config(&kingpost, name, "");
            config.dbname("shop");
            config
        };
        cluster.primary().execute("ALTER ROLE leaves LOGIN").await;
        for name in ["found", "listed"] {
            let client = kingpost.endpoint().connect_as(&of(name)).await;
            assert_eq!(value(&client, "SELECT session_user").await, USER, "{name}");
        }
        for name in ["stranger", "group_role"] {
            let (code, said) = refusal(&kingpost, &of(name)).await;
            assert_eq!(code, "28000", "{name}: {said}");
        }
        // A client whose user is no longer found is closed, and the other one is not.
        let (stays, leaves) =
            (kingpost.endpoint().connect_as(&of("found")).await, kingpost.endpoint().connect_as(&of("leaves")).await);
        assert_eq!(value(&leaves, "SELECT 1").await, "1");
        cluster.primary().execute("ALTER ROLE leaves NOLOGIN").await;
        cluster
            .wait("the client to be closed", async || leaves.simple_query("SELECT 1").await.is_err().then_some(()))
            .await;
        assert_eq!(value(&stays, "SELECT 2").await, "2");
    }
}

#[tokio::test]
async fn a_lookup_that_fails_refuses_and_says_why_in_the_log() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster)
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.auth_query.query", "SELECT name, secret FROM no_such_table WHERE name = $1")
        .add("proxy.users", user("configured", "one of its own"))
        .start()
        .await;
    let (code, said) = refusal(&kingpost, &config(&kingpost, SCRAM_USER, SCRAM_PASSWORD)).await;
    assert_eq!(code, "08006", "{said}");
    assert!(!said.contains("no_such_table"), "{said}");
    let log = std::fs::read_to_string(kingpost.process().log()).unwrap();
    assert!(log.contains("no_such_table"), "{log}");
    // A configured user needs no lookup.
    assert_eq!(refusal(&kingpost, &config(&kingpost, "configured", "wrong")).await.0, "28P01");
}

#[tokio::test]
async fn the_first_rule_that_fits_decides() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let file = new_dir("hba").join("pg_hba.conf");
    let rules = format!(
        "# type database user address method\nhost closed all all reject\nhost all {SCRAM_USER} 127.0.0.0/8 scram-sha-256\n\
         host {DATABASE} {USER} 127.0.0.1 255.255.255.255 trust\nhostssl all all all trust\n"
    );
    std::fs::write(&file, &rules).unwrap();
    let kingpost = Kingpost::of(&shared.cluster)
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.hba_file", file.to_str().unwrap())
        .add("proxy.users", user(SCRAM_USER, SCRAM_PASSWORD))
        .add("proxy.users", user(USER, "never asked for"))
        .start()
        .await;
    assert_eq!(value(&kingpost.connect().await, "SELECT current_user").await, USER);
    let sam = kingpost.endpoint().connect_as(&config(&kingpost, SCRAM_USER, SCRAM_PASSWORD)).await;
    assert_eq!(value(&sam, "SELECT current_user").await, SCRAM_USER);
    assert_eq!(refusal(&kingpost, &config(&kingpost, SCRAM_USER, "wrong")).await.0, "28P01");
    let mut closed = config(&kingpost, USER, "never asked for");
    closed.dbname("closed");
    let mut other = config(&kingpost, USER, "never asked for");
    other.dbname("postgres");
    for (config, says) in [(&closed, "rejects"), (&other, "no rule"), (&config(&kingpost, "bob", "x"), "127.0.0.1")] {
        let (code, said) = refusal(&kingpost, config).await;
        assert_eq!(code, "28000", "{said}");
        assert!(said.contains(says), "{said}");
    }
    // The reload reads the file again.
    std::fs::write(&file, rules.replace("255 trust", "255 reject")).unwrap();
    kingpost.reload("proxy.login_timeout", "14s");
    shared
        .cluster
        .wait("the new rules", async || kingpost.endpoint().try_connect(&kingpost.endpoint().config()).await.err())
        .await;
    // An invalid rule changes nothing, and the error names its line; `check` reports the same.
    std::fs::write(&file, rules.replace("reject", "regect")).unwrap();
    kingpost.reload("proxy.login_timeout", "13s");
    let log = || std::fs::read_to_string(kingpost.process().log()).unwrap_or_default();
    shared
        .cluster
        .wait("the log to name the wrong line", async || log().contains("pg_hba.conf:2: ").then_some(()))
        .await;
    let check = Kingpost::run(&["check", "--config", kingpost.config_path().to_str().unwrap()]);
    let said = String::from_utf8_lossy(&check.stderr).into_owned();
    assert_eq!(check.status.code(), Some(3), "{said}");
    assert!(said.contains("pg_hba.conf:2: found the method \"regect\", expected trust"), "{said}");
    assert_eq!(value(&sam, "SELECT 7").await, "7");
}

#[tokio::test]
async fn clients_of_a_user_a_database_and_an_address_are_limited() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let mut bounded = Table::new();
    bounded.insert("name".into(), USER.into());
    bounded.insert("max_clients".into(), 4.into());
    let kingpost = Kingpost::of(&shared.cluster)
        .set("proxy.max_clients_per_address", 7)
        .set("proxy.reserved_clients", 2)
        .add("proxy.users", bounded)
        .add("proxy.users", user("bob", "x"))
        .add("proxy.databases", database("small", "max_clients", 2))
        .add("proxy.databases", database(DATABASE, "pool_size", 3))
        .start()
        .await;
    let mut small = kingpost.endpoint().config();
    small.dbname("small");
    let first = join_all((0..2).map(|_| kingpost.endpoint().connect_as(&small))).await;
    let (code, said) = refusal(&kingpost, &small).await;
    assert_eq!(code, "53300");
    assert!(said.contains("\"small\"") && said.contains('2'), "{said}");
    let second = join_all((0..2).map(|_| kingpost.connect())).await;
    let (code, said) = refusal(&kingpost, &kingpost.endpoint().config()).await;
    assert_eq!(code, "53300");
    assert!(said.contains(USER) && said.contains('4'), "{said}");
    // A client that leaves makes room.
    drop(first);
    let third = shared
        .cluster
        .wait("a place", async || kingpost.endpoint().try_connect(&kingpost.endpoint().config()).await.ok())
        .await;
    assert_eq!(value(&third, "SELECT 7").await, "7");
    drop((second, third));
    // Silent connections of an address count, too.
    let clients = async || kingpost.metrics().await.sum("kingpost_clients", &[]);
    shared.cluster.wait("everybody to be gone", async || (clients().await == 0.0).then_some(())).await;
    let silent = join_all((0..7).map(|_| Raw::connect(kingpost.port()))).await;
    shared.cluster.wait("them to be in", async || (clients().await == 7.0).then_some(())).await;
    let (code, said) = refusal(&kingpost, &kingpost.endpoint().config()).await;
    assert_eq!(code, "53300");
    assert!(said.contains("max_clients_per_address"), "{said}");
    // An operator from the same machine gets in.
    let mut console = kingpost.endpoint().config();
    console.dbname("kingpost");
    let operator = kingpost.endpoint().connect_as(&console).await;
    assert!(!operator.simple_query("SHOW VERSION").await.unwrap().is_empty());
    drop(silent);
}

#[tokio::test]
async fn connections_that_never_log_in_make_way() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.max_logins", 20).set("proxy.max_clients", 10).start().await;
    let memory = || kingpost.process().rss_kib();
    let before = memory();
    // More connections than descriptors for clients; each sends only the beginning of a packet.
    let packet = startup(3 << 16, &[("user", USER), ("database", DATABASE)]);
    let mut slow = Vec::new();
    for n in 0..400 {
        let mut raw = Raw::connect(kingpost.port()).await;
        raw.send(&packet[..n % packet.len()]).await;
        slow.push(raw);
    }
    let clients = async || kingpost.metrics().await.sum("kingpost_clients", &[]);
    shared.cluster.wait("all but 20 to be gone", async || (clients().await <= 20.0).then_some(())).await;
    // The oldest connections get the reason.
    let last = slow[0].rest().await;
    assert!(last.iter().any(|message| message.field(b'C').as_deref() == Some("53300")), "{last:?}");
    // They take no client's place.
    let inside = join_all((0..10).map(|_| kingpost.connect())).await;
    for client in &inside {
        assert_eq!(value(client, "SELECT 7").await, "7");
    }
    assert_eq!(refusal(&kingpost, &kingpost.endpoint().config()).await.0, "53300", "max_clients are in");
    let grown = memory().saturating_sub(before);
    assert!(grown < 32 << 10, "400 slow connections cost {grown} KiB");
}

#[tokio::test]
async fn time_limits_of_each_state() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster)
        .set("proxy.query_timeout", "400ms")
        .set("proxy.idle_transaction_timeout", "1s")
        .set("proxy.client_idle_timeout", "3s")
        .start()
        .await;
    let tag = "pg_sleep(61)";
    let mut running = Raw::login(kingpost.port()).await;
    running.send(&query(&format!("SELECT {tag}"))).await;
    let mut transaction = Raw::login(kingpost.port()).await;
    transaction.send(&query("BEGIN")).await;
    transaction.until(b'Z').await;
    let mut idle = Raw::login(kingpost.port()).await;
    for (raw, code, says) in [
        (&mut running, "57014", "query_timeout"),
        (&mut transaction, "25P03", "idle_transaction_timeout"),
        (&mut idle, "57P05", "client_idle_timeout"),
    ] {
        let said = raw.rest().await;
        let last = said.last().unwrap_or_else(|| panic!("no word of {says}"));
        assert_eq!(last.field(b'C').as_deref(), Some(code), "{said:?}");
        assert!(last.field(b'M').unwrap().contains(says), "{said:?}");
    }
    // The statement ends with its client.
    let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = 'SELECT {tag}'");
    shared.cluster.primary().wait_value(&sql, "0").await;
    assert_eq!(kingpost.metrics().await.sum("kingpost_clients_timed_out_total", &[]), 3.0);
    // An active client stays.
    let client = kingpost.connect().await;
    for _ in 0..20 {
        value(&client, "SELECT pg_sleep(0.1)").await;
    }
}

#[tokio::test]
async fn users_that_are_looked_up_are_limited_and_shown() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let mut free = user("free", "free");
    free.insert("max_clients".into(), 5.into());
    cluster
        .primary()
        .execute("CREATE ROLE one LOGIN PASSWORD 'one'; CREATE ROLE two LOGIN PASSWORD 'two'; CREATE ROLE free LOGIN PASSWORD 'free'")
        .await;
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.auth_query.query", AUTH_QUERY)
        .set("proxy.max_clients_per_user", 2)
        .add("proxy.users", free)
        .add("proxy.operators", user("boss", "manages"))
        .start()
        .await;
    let of = |name: &str| config(&kingpost, name, name);
    let connect = async |name: &str, number: usize| {
        let config = of(name);
        join_all((0..number).map(|_| kingpost.endpoint().connect_as(&config))).await
    };
    let (one, two, free) = (connect("one", 2).await, connect("two", 1).await, connect("free", 5).await);
    for (name, limit) in [("one", "2"), ("free", "5")] {
        let (code, said) = refusal(&kingpost, &of(name)).await;
        assert_eq!(code, "53300", "{said}");
        assert!(said.contains(name) && said.contains(limit), "{said}");
    }
    // The other user has its own places, and all are in SHOW USERS.
    let more = connect("two", 1).await;
    assert_eq!(value(&more[0], "SELECT current_user").await, "two");
    let mut boss = config(&kingpost, "boss", "manages");
    boss.dbname("kingpost");
    let users = crate::console::rows(&kingpost.endpoint().connect_as(&boss).await, "SHOW USERS").await;
    for (name, most, now) in [("one", "2", "2"), ("two", "2", "2"), ("free", "5", "5")] {
        let row = users.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}: {users:?}"));
        assert_eq!((&*row["max_user_client_connections"], &*row["current_client_connections"]), (most, now), "{name}");
    }
    drop((one, two, free));
    // A client that leaves makes room.
    cluster.wait("a place", async || kingpost.endpoint().try_connect(&of("one")).await.ok()).await;
}

/// Class 28 is for credentials. A login that waits for a server gets the cause of the wait as its error, and drivers may retry.
#[tokio::test]
async fn a_login_that_waits_hears_what_for() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    cluster.primary().execute("CREATE DATABASE other").await;
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.workers", 1)
        .set("proxy.login_timeout", "300ms")
        .set("proxy.pool.size", 1)
        .set("proxy.pool.wait_timeout", "1s")
        .set("proxy.pool.no_primary_timeout", "1200ms")
        .start()
        .await;
    let parameters = [("user", USER), ("database", DATABASE), ("TimeZone", "Asia/Tokyo")];
    let refused = async |parameters: &[(&str, &str)]| {
        let mut raw = Raw::connect(kingpost.port()).await;
        raw.send(&startup(3 << 16, parameters)).await;
        let said = raw.rest().await.pop().expect("a word");
        [b'S', b'C', b'M'].map(|field| said.field(field).unwrap_or_default())
    };
    // A silent client: PostgreSQL closes without a message, and logs 57014.
    let mut silent = Raw::connect(kingpost.port()).await;
    let last = silent.rest().await.pop().expect("a word");
    assert_eq!(last.field(b'C').as_deref(), Some("57014"), "{last:?}");
    assert!(last.field(b'M').is_some_and(|text| text.contains("login_timeout")), "{last:?}");
    // The pool's only connection is in use; another database's is not.
    let holder = kingpost.connect().await;
    holder.batch_execute("BEGIN; CREATE TABLE held (n int)").await.unwrap();
    let [severity, code, text] = refused(&parameters).await;
    assert_eq!((&*severity, &*code), ("FATAL", "53300"), "{text}");
    assert!(text.contains("wait_timeout") && text.contains("pool size 1"), "{text}");
    let mut elsewhere = kingpost.endpoint().config();
    elsewhere.dbname("other");
    assert_eq!(value(&kingpost.endpoint().connect_as(&elsewhere).await, "SELECT 1").await, "1");
    holder.batch_execute("COMMIT").await.unwrap();
    // An operator has paused the database.
    let console = crate::console::console(&kingpost).await;
    console.simple_query(&format!("PAUSE {DATABASE}")).await.unwrap();
    let [severity, code, text] = refused(&parameters).await;
    assert_eq!((&*severity, &*code), ("FATAL", "57P03"), "{text}");
    assert!(text.contains("paused by an operator"), "{text}");
    console.simple_query(&format!("RESUME {DATABASE}")).await.unwrap();
    // The primary is down: for a login and for a session's statement.
    cluster.primary().stop().await;
    cluster
        .wait("the proxy to notice", async || {
            let [severity, code, text] = refused(&parameters).await;
            assert_eq!((&*severity, &*code), ("FATAL", "57P03"), "{text}");
            text.contains("no_primary_timeout").then_some(())
        })
        .await;
    let error = holder.simple_query("INSERT INTO held VALUES (1)").await.unwrap_err();
    assert_eq!(sqlstate(&error), "57P03", "{error:?}");
    cluster.primary().start().await;
    cluster.wait("writes", async || holder.simple_query("INSERT INTO held VALUES (2)").await.ok()).await;
}

/// Clients with a separate name each (`pod-7`), and with a schema of their own, log in while all server connections are in use.
#[tokio::test]
async fn a_name_that_nobody_had_before_waits_for_no_server() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster)
        .set("proxy.workers", 1)
        .set("proxy.pool.size", 1)
        .set("proxy.pool.wait_timeout", "2s")
        .start()
        .await;
    let named = |messages: &[kingpost_tests::raw::Message]| {
        let reports = messages.iter().filter(|message| message.kind == b'S');
        let texts = reports.map(|message| String::from_utf8_lossy(&message.body).into_owned());
        let is_named =
            |text: &String| ["application_name", "search_path", "TimeZone"].iter().any(|name| text.starts_with(name));
        texts.filter(is_named).collect::<Vec<String>>()
    };
    let long = "a-deployment-with-a-very-long-name-5d4f8c7b9d-x2x5z-and-more-than-63-bytes";
    let port = shared.cluster.primary().port();
    let first = Raw::login_with(kingpost.port(), &[("application_name", "first")]).await;
    let sessions = Raw::login_with(kingpost.port(), &[("application_name", "first"), ("search_path", "a")]).await;
    drop((first, sessions));
    let holder = kingpost.connect().await;
    holder.batch_execute("BEGIN; SELECT pg_backend_pid()").await.unwrap();
    let mut inside = Vec::new();
    for parameters in [
        vec![("application_name", "pod-7")],
        vec![("application_name", long)],
        vec![("application_name", "it's \"quoted\" \\ ~")],
        vec![("application_name", "")],
        vec![("application_name", "pod-8"), ("search_path", "tenant_8, public")],
    ] {
        let (_, direct) = Raw::greeted(port, USER, DATABASE, &parameters).await;
        let (raw, proxied) = Raw::greeted(kingpost.port(), USER, DATABASE, &parameters).await;
        assert_eq!(named(&proxied), named(&direct), "{parameters:?}");
        inside.push((raw, parameters));
    }
    holder.batch_execute("COMMIT").await.unwrap();
    // A server is queried for the others: the result for such a name depends on its version.
    for name in ["caf\u{e9}", "a\tb"] {
        let parameters = [("application_name", name)];
        let (_, direct) = Raw::greeted(port, USER, DATABASE, &parameters).await;
        let (raw, proxied) = Raw::greeted(kingpost.port(), USER, DATABASE, &parameters).await;
        assert_eq!(named(&proxied), named(&direct), "{name:?}");
        drop(raw);
    }
    // The session has the parameters reported to the client.
    for (mut raw, parameters) in inside {
        let shown = format!("application_name\0{}\0", &parameters[0].1[..parameters[0].1.len().min(63)]);
        raw.send(&query("SELECT 'application_name' || chr(1) || current_setting('application_name') || chr(1)")).await;
        let said = raw.until(b'Z').await;
        let row = said.iter().find(|message| message.kind == b'D').unwrap_or_else(|| panic!("{said:?}"));
        assert_eq!(String::from_utf8_lossy(&row.body[6..]).replace('\u{1}', "\0"), shown);
    }
}
