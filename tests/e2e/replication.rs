//! Replication connections through the proxy, by PostgreSQL's own programs: their results are the same as without it.

use std::process::{Command, Output};

use kingpost_tests::{
    Cluster, DATABASE, Kingpost, SCRAM_PASSWORD, SCRAM_USER, SOON, ShowLogs, USER, database, unique, user, wait_until,
};
use toml::Table;

use crate::common::only_kingpost;
use crate::console::rows;
use crate::governed::config;

const STREAMER: &str = "streamer";
const PASSWORD: &str = "streams";

/// Makes a user that may open replication connections.
fn streamer() -> Table {
    let mut table = user(STREAMER, PASSWORD);
    table.insert("replication".into(), true.into());
    table
}

/// Starts a cluster whose primary accepts the streamer, with a directory for the programs' output.
async fn cluster(replicas: usize) -> Cluster {
    let cluster = Cluster::builder()
        .replicas(replicas)
        .setting("wal_level", "logical")
        .setting("max_wal_senders", "20")
        .hba("host replication,all streamer 127.0.0.1/32 scram-sha-256\nhost all scrammy 127.0.0.1/32 scram-sha-256\nhost replication,all all 127.0.0.1/32 trust\n")
        .start()
        .await;
    cluster
        .primary()
        .execute(&format!("SET password_encryption = 'scram-sha-256'; CREATE ROLE {STREAMER} LOGIN REPLICATION PASSWORD '{PASSWORD}'; GRANT pg_read_all_data TO {STREAMER}"))
        .await;
    cluster
}

async fn proxy(cluster: &Cluster) -> Kingpost {
    Kingpost::of(cluster)
        .set("proxy.auth", "scram-sha-256")
        .add("proxy.users", streamer())
        .add("proxy.users", user(SCRAM_USER, SCRAM_PASSWORD))
        .add("proxy.users", user(USER, "alice's own"))
        .add("proxy.operators", user("boss", "manages"))
        .start()
        .await
}

/// Makes a command of one of PostgreSQL's programs, as the streamer, through the proxy.
fn program(name: &str, kingpost: &Kingpost) -> Command {
    let mut command = Command::new(kingpost_tests::pg_bin().join(name));
    command.args(["-h", "127.0.0.1", "-p", &kingpost.port().to_string(), "-U", STREAMER, "-w"]);
    command.env("PGPASSWORD", PASSWORD).env("PGSSLMODE", "disable").env("PGCONNECT_TIMEOUT", "60");
    command
}

/// Returns psql's output for a command over a logical replication connection through the proxy, or its error.
async fn psql(
    kingpost: &Kingpost,
    (user, password): (&str, &str),
    database: &str,
    options: &str,
    command: &str,
) -> Result<String, String> {
    let mut psql = Command::new(kingpost_tests::pg_bin().join("psql"));
    psql.args(["-X", "-A", "-t", "-v", "VERBOSITY=verbose", "-c", command, "-d"]);
    let port = kingpost.port();
    psql.arg(format!("host=127.0.0.1 port={port} user={user} dbname={database} replication=database sslmode=disable"));
    psql.env("PGPASSWORD", password).env("PGOPTIONS", options);
    let output = run(psql).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Runs a program without blocking the tests' other work.
async fn run(mut command: Command) -> Output {
    let shown = format!("{command:?}");
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap();
    output.unwrap_or_else(|error| panic!("{shown}: {error}"))
}

async fn succeed(command: Command) {
    let shown = format!("{command:?}");
    let output = run(command).await;
    assert!(output.status.success(), "{shown}: {}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn a_base_backup_and_the_log_come_through_the_proxy_whole() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster(1).await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = proxy(&cluster).await;
    cluster
        .primary()
        .execute("CREATE TABLE kept AS SELECT g AS n, repeat('x', 500) AS text FROM generate_series(1, 20000) g")
        .await;
    let backup = cluster.dir().join(format!("backup{}", unique()));
    let mut command = program("pg_basebackup", &kingpost);
    command.arg("-D").arg(&backup).args(["-X", "stream", "-c", "fast", "--manifest-checksums=SHA256"]);
    succeed(command).await;
    // The manifest has a checksum of each file, computed by the server.
    let mut verify = Command::new(kingpost_tests::pg_bin().join("pg_verifybackup"));
    verify.arg(&backup);
    succeed(verify).await;
    // The WAL: the files of pg_receivewal equal the server's.
    let log = cluster.dir().join(format!("log{}", unique()));
    std::fs::create_dir(&log).unwrap();
    let primary = cluster.primary();
    let segment = primary.query("SELECT pg_walfile_name(pg_current_wal_lsn())").await;
    let mut create = program("pg_receivewal", &kingpost);
    create.arg("-D").arg(&log).args(["--slot", "through", "--create-slot", "--if-not-exists"]);
    succeed(create).await;
    // That slot keeps nothing before its first use: another one keeps the WAL from here on.
    primary.execute("SELECT pg_create_physical_replication_slot('kept', true)").await;
    primary
        .execute("INSERT INTO kept SELECT g, 'second' FROM generate_series(1, 1000) g; SELECT pg_switch_wal()")
        .await;
    primary.execute("INSERT INTO kept VALUES (0, 'behind the switch')").await;
    let end = primary.query("SELECT pg_current_wal_lsn()").await;
    let mut receive = program("pg_receivewal", &kingpost);
    receive.arg("-D").arg(&log).args(["--slot", "kept", "--endpos", &end, "--no-loop"]);
    succeed(receive).await;
    let files = std::fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let files: Vec<String> = files.collect();
    let name = files.iter().find(|name| name.len() == 24 && **name >= segment);
    let name = name.unwrap_or_else(|| panic!("no whole segment from {segment} to {end}: {files:?}"));
    let (received, own) =
        (std::fs::read(log.join(name)).unwrap(), std::fs::read(primary.dir().join("pg_wal").join(name)).unwrap());
    assert!(received == own, "{name} differs from the server's");
}

#[tokio::test]
async fn a_subscriber_follows_through_the_proxy_and_is_seen_in_the_console() {
    if only_kingpost() {
        return;
    }
    let publisher = cluster(0).await;
    let _logs = ShowLogs(publisher.dir());
    let subscriber = Cluster::builder().start().await;
    let kingpost = proxy(&publisher).await;
    publisher.primary().execute("CREATE TABLE news (n int PRIMARY KEY, text text); CREATE PUBLICATION all_news FOR TABLE news; INSERT INTO news VALUES (1, 'before')").await;
    subscriber.primary().execute("CREATE TABLE news (n int PRIMARY KEY, text text)").await;
    let port = kingpost.port();
    subscriber
        .primary()
        .execute(&format!(
            "CREATE SUBSCRIPTION through CONNECTION 'host=127.0.0.1 port={port} user={STREAMER} password={PASSWORD} dbname={DATABASE} sslmode=disable' PUBLICATION all_news"
        ))
        .await;
    publisher.primary().execute("INSERT INTO news SELECT g, repeat('y', 1000) FROM generate_series(2, 5000) g; UPDATE news SET text = 'changed' WHERE n = 2; DELETE FROM news WHERE n = 3").await;
    let sum = "SELECT count(*) || ' ' || coalesce(md5(string_agg(n || text, ',' ORDER BY n)), 'none') FROM news";
    let expected = publisher.primary().query(sum).await;
    subscriber
        .wait("the subscriber has it all", async || (subscriber.primary().query(sum).await == expected).then_some(()))
        .await;
    // The operator of the proxy sees it, apart from the pools.
    let mut boss = kingpost.endpoint().config();
    boss.user("boss").password("manages").dbname("kingpost");
    let console = kingpost.endpoint().connect_as(&boss).await;
    let clients = rows(&console, "SHOW CLIENTS").await;
    assert!(clients.iter().any(|row| row["replication"] == "logical" && row["user"] == STREAMER), "{clients:?}");
    // PAUSE does not wait for it, and does not end it.
    console.simple_query("PAUSE").await.expect("PAUSE");
    publisher.primary().execute("INSERT INTO news VALUES (9999, 'while paused')").await;
    let expected = publisher.primary().query(sum).await;
    subscriber
        .wait("what came while paused", async || (subscriber.primary().query(sum).await == expected).then_some(()))
        .await;
    console.simple_query("RESUME").await.expect("RESUME");
    // The proxy stops and comes back: the subscriber goes on from its position.
    console.simple_query("KILL").await.expect("KILL");
    console.simple_query("RESUME").await.expect("RESUME");
    publisher.primary().execute("INSERT INTO news VALUES (10000, 'after all')").await;
    let expected = publisher.primary().query(sum).await;
    subscriber
        .wait("what came after", async || (subscriber.primary().query(sum).await == expected).then_some(()))
        .await;
    subscriber.primary().execute("DROP SUBSCRIPTION through").await;
}

#[tokio::test]
async fn only_who_may_replicates_and_the_node_is_the_primary_or_the_one_that_is_named() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster(1).await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = proxy(&cluster).await;
    let port_of = async |user: &str, password: &str, options: &str| {
        psql(&kingpost, (user, password), DATABASE, options, "SHOW port").await
    };
    let ports = [cluster.primary(), cluster.replica(0)].map(|node| node.port().to_string());
    assert_eq!(port_of(STREAMER, PASSWORD, "").await.expect("the primary"), ports[0]);
    let named = format!("-c kingpost.node={}", cluster.replica(0).name());
    cluster.wait_caught_up().await;
    assert_eq!(port_of(STREAMER, PASSWORD, &named).await.expect("the replica"), ports[1]);
    for (user, password, options, expected) in [
        // Another user of the proxy, without permission; a wrong password; a node that does not exist.
        (SCRAM_USER, SCRAM_PASSWORD, "", "needs replication = true"),
        (STREAMER, "wrong", "", "password authentication failed"),
        (STREAMER, PASSWORD, "-c kingpost.node=nowhere", "no node is called"),
    ] {
        let error = port_of(user, password, options).await.expect_err(user);
        assert!(error.contains(expected), "{user}: {error}");
    }
    // Other clients' statements are pooled as always, and none of them gets the streamer's connection.
    let client = kingpost.endpoint().connect_as(&config(&kingpost, SCRAM_USER, SCRAM_PASSWORD, DATABASE)).await;
    assert_eq!(crate::common::value(&client, "SELECT current_user").await, SCRAM_USER);
}

#[tokio::test]
async fn a_rule_for_replication_is_for_replication_alone() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster(0).await;
    let _logs = ShowLogs(cluster.dir());
    for (rules, physical, database) in [
        ("host all all 127.0.0.1/32 scram-sha-256\n", false, true),
        ("host replication streamer 127.0.0.1/32 scram-sha-256\n", true, false),
    ] {
        let file = cluster.dir().join(format!("rules{}", unique()));
        std::fs::write(&file, rules).unwrap();
        let kingpost = Kingpost::of(&cluster)
            .set("proxy.auth", "scram-sha-256")
            .set("proxy.hba_file", file.display().to_string())
            .add("proxy.users", streamer())
            .start()
            .await;
        let log = cluster.dir().join(format!("log{}", unique()));
        std::fs::create_dir(&log).unwrap();
        let mut create = program("pg_receivewal", &kingpost);
        create.arg("-D").arg(&log).args(["--slot", &format!("ruled{}", unique()), "--create-slot"]);
        let output = run(create).await;
        assert_eq!(output.status.success(), physical, "{rules}: {}", String::from_utf8_lossy(&output.stderr));
        let client = kingpost.endpoint().try_connect(&config(&kingpost, STREAMER, PASSWORD, DATABASE)).await;
        assert_eq!(client.is_ok(), database, "{rules}");
    }
}

#[tokio::test]
async fn a_disabled_database_and_a_role_that_may_not_log_in_any_more_end_replication() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster(0).await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    primary.execute("SET password_encryption = 'scram-sha-256'; CREATE ROLE leaves LOGIN REPLICATION PASSWORD 'leaves'; CREATE ROLE stays LOGIN REPLICATION PASSWORD 'stays'").await;
    let replicating = |name: &str| {
        let mut table = Table::new();
        table.insert("name".into(), name.into());
        table.insert("replication".into(), true.into());
        table
    };
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.auth_query.query", "SELECT rolname, rolpassword FROM pg_authid WHERE rolname = $1 AND rolcanlogin")
        .set("proxy.auth_query.cache", "300ms")
        .set("proxy.auth_query.negative_cache", "100ms")
        .add("proxy.users", streamer())
        // Both users are looked up.
        .add("proxy.users", replicating("leaves"))
        .add("proxy.users", replicating("stays"))
        .add("proxy.databases", database("one", "dbname", DATABASE))
        .add("proxy.databases", database("two", "dbname", DATABASE))
        .add("proxy.operators", user("boss", "manages"))
        .start()
        .await;
    let logs = cluster.dir().join(format!("log{}", unique()));
    let mut receivers = Vec::new();
    for name in ["leaves", "stays"] {
        let dir = logs.join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let mut receive = Command::new(kingpost_tests::pg_bin().join("pg_receivewal"));
        receive.args(["-h", "127.0.0.1", "-p", &kingpost.port().to_string(), "-U", name, "-w", "--no-loop", "-D"]);
        receive.arg(&dir).env("PGPASSWORD", name).env("PGSSLMODE", "disable");
        receivers.push(Receiver(receive.spawn().expect("pg_receivewal")));
    }
    let streaming = "SELECT coalesce(string_agg(usename, ' ' ORDER BY usename), '') FROM pg_stat_replication WHERE state = 'streaming'";
    cluster.wait("both to stream", async || (primary.query(streaming).await == "leaves stays").then_some(())).await;
    primary.execute("ALTER ROLE leaves NOLOGIN").await;
    cluster.wait("one to end", async || (primary.query(streaming).await == "stays").then_some(())).await;
    cluster.wait("its client to end", async || receivers[0].0.try_wait().unwrap()).await;
    assert!(receivers[1].0.try_wait().unwrap().is_none(), "the other one has ended");
    // Logins to a disabled database are refused, for replication too; the other database is not affected.
    let console = kingpost.endpoint().connect_as(&config(&kingpost, "boss", "manages", "kingpost")).await;
    console.simple_query("DISABLE one").await.expect("DISABLE");
    let identify = async |database: &str| psql(&kingpost, (STREAMER, PASSWORD), database, "", "SHOW port").await;
    let error = identify("one").await.expect_err("a disabled database");
    assert!(error.contains("disabled by an operator"), "{error}");
    identify("two").await.expect("the other database");
    console.simple_query("ENABLE one").await.expect("ENABLE");
    identify("one").await.expect("it is enabled again");
}

/// A program that is killed at the end of its test.
struct Receiver(std::process::Child);

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Logical replication connections accept SQL as well: to a database with `set_role` they begin with the client's user as their role, and another
/// role in the startup packet is ignored. To a database without it they are the server's user.
#[tokio::test]
async fn who_replicates_from_a_database_with_set_role_is_that_role() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster(0).await;
    let _logs = ShowLogs(cluster.dir());
    cluster
        .primary()
        .execute(
            "CREATE ROLE shared LOGIN REPLICATION; CREATE ROLE ann; CREATE ROLE ben; GRANT ann, ben TO shared; \
             CREATE TABLE anns AS SELECT 'hers' AS text; GRANT SELECT ON anns TO ann",
        )
        .await;
    let of = |name: &str, set_role: bool| {
        let mut table = database(name, "server_user", "shared");
        table.insert("dbname".into(), DATABASE.into());
        table.insert("set_role".into(), set_role.into());
        table.insert("replication".into(), true.into());
        table
    };
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        .add("proxy.databases", of("roles", true))
        .add("proxy.databases", of("plain", false))
        .add("proxy.users", user("ann", "of ann"))
        .add("proxy.users", user("ben", "of ben"))
        .start()
        .await;
    let say = async |user: &str, database: &str, options: &str, command: &str| {
        psql(&kingpost, (user, &format!("of {user}")), database, options, command).await
    };
    let who = "SELECT current_user || ' ' || session_user";
    for (user, database, options, expected) in [
        ("ann", "roles", "", "ann shared"),
        ("ben", "roles", "", "ben shared"),
        ("ben", "roles", "-c role=ann", "ben shared"),
        ("ben", "plain", "", "shared shared"),
    ] {
        assert_eq!(say(user, database, options, who).await, Ok(expected.to_owned()), "{user} {database}");
    }
    let error = say("ben", "roles", "", "SELECT * FROM anns").await.expect_err("a table of another role");
    assert!(error.contains("permission denied"), "{error}");
    assert_eq!(say("ann", "roles", "", "SELECT * FROM anns").await, Ok("hers".to_owned()));
    // PostgreSQL checks the replication permission of the login user.
    let slot = format!("CREATE_REPLICATION_SLOT s{} TEMPORARY LOGICAL pgoutput", unique());
    say("ben", "roles", "", &slot).await.expect("a slot");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_replicates_waits_for_a_primary_as_others_do() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster(0).await;
    let _logs = ShowLogs(cluster.dir());
    let patient = proxy(&cluster).await;
    let hasty = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.pool.no_primary_timeout", "100ms")
        .add("proxy.users", streamer())
        .start()
        .await;
    let shows = async |kingpost: &Kingpost, metric: &str, expected: f64| {
        let what = format!("{metric} to be {expected}");
        wait_until(&what, SOON, cluster.dir(), async || {
            (kingpost.metrics().await.sum(metric, &[]) == expected).then_some(())
        })
        .await;
    };
    cluster.primary().kill9().await;
    for kingpost in [&patient, &hasty] {
        shows(kingpost, "kingpost_topology_primary_known", 0.0).await;
    }
    let port_by = async |kingpost| psql(kingpost, (STREAMER, PASSWORD), DATABASE, "", "SHOW port").await;
    let error = port_by(&hasty).await.unwrap_err();
    assert!(error.contains("no primary") && error.contains("no_primary_timeout"), "{error}");
    let comes = async {
        shows(&patient, "kingpost_clients_waiting", 1.0).await;
        cluster.primary().start().await;
    };
    let (port, ()) = tokio::join!(port_by(&patient), comes);
    assert_eq!(port.unwrap(), cluster.primary().port().to_string());
    shows(&patient, "kingpost_clients_waiting", 0.0).await;
}
