//! Changing passwords: several of one user at a time, files and commands that are read again.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use kingpost_tests::{
    Cluster, DATABASE, Kingpost, SCRAM_PASSWORD, SCRAM_USER, ShowLogs, USER, database, new_dir, sqlstate, user,
};
use tokio_postgres::{Client, Error};

use crate::common::{only_kingpost, value};
use crate::governed::config;

/// Asks all users but the harness for a password: `md5` means SCRAM if the role has a SCRAM verifier.
const HBA: &str = "host all,replication postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 md5\n";

async fn log_in(kingpost: &Kingpost, user: &str, password: &str, database: &str) -> Result<Client, Error> {
    kingpost.endpoint().try_connect(&config(kingpost, user, password, database)).await
}

/// Makes an entry of `[[proxy.users]]` with further secrets.
fn with_secrets(name: &str, password: &str, secrets: &[&str]) -> toml::Table {
    let mut table = user(name, password);
    table.insert("secrets".into(), secrets.iter().map(|secret| toml::Value::from(*secret)).collect::<Vec<_>>().into());
    table
}

async fn end_sessions(cluster: &Cluster, user: &str) {
    let sessions = format!("FROM pg_stat_activity WHERE usename = '{user}'");
    for node in cluster.nodes() {
        node.execute(&format!("SELECT pg_terminate_backend(pid) {sessions}")).await;
        node.wait_value(&format!("SELECT count(*) {sessions} AND application_name = 'kingpost'"), "0").await;
    }
}

#[tokio::test]
async fn each_of_a_users_passwords_lets_in_and_the_servers_get_the_one_they_know() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(1).hba(HBA).start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    // Two users with the two kinds of verifiers, and two databases.
    primary.execute(&format!("ALTER ROLE {USER} PASSWORD 'old'")).await;
    primary.execute("SET password_encryption = 'md5'; CREATE ROLE mia LOGIN PASSWORD 'mine'").await;
    primary.execute("CREATE DATABASE other").await;
    cluster.wait_caught_up().await;
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "md5")
        .add("proxy.users", with_secrets(USER, "new", &["older still", "old"]))
        .add("proxy.users", with_secrets("mia", "mine next", &["mine"]))
        .start()
        .await;
    let refused = async |user: &str, password: &str| {
        let error = log_in(&kingpost, user, password, DATABASE).await.map(|_| ()).expect_err("got in");
        assert_eq!(sqlstate(&error), "28P01", "{user} {password:?}: {error:?}");
    };
    // With any password of the client, the servers get the one that they know: the proxy finds it out, on each node.
    let all_work = async || {
        for (name, passwords) in [(USER, &["new", "older still", "old"][..]), ("mia", &["mine next", "mine"])] {
            for password in passwords {
                for database in [DATABASE, "other"] {
                    let client = log_in(&kingpost, name, password, database).await;
                    let client = client.unwrap_or_else(|error| panic!("{name} {password:?} {database}: {error:?}"));
                    for route in ["primary", "replica"] {
                        let sql = format!("/* kingpost.route={route} */ SELECT current_user || current_database()");
                        assert_eq!(value(&client, &sql).await, format!("{name}{database}"));
                    }
                }
            }
        }
    };
    all_work().await;
    for wrong in ["mine", "mine next", "wrong", ""] {
        refused(USER, wrong).await;
    }
    for wrong in ["new", "old", "older still"] {
        refused("mia", wrong).await;
    }
    // The servers get the new passwords. No client notices.
    primary.execute(&format!("ALTER ROLE {USER} PASSWORD 'new'")).await;
    primary.execute("SET password_encryption = 'md5'; ALTER ROLE mia PASSWORD 'mine next'").await;
    cluster.wait_caught_up().await;
    for name in [USER, "mia"] {
        end_sessions(&cluster, name).await;
    }
    all_work().await;
    // The servers get one that the proxy does not have: an error, not an endless wait.
    primary.execute(&format!("ALTER ROLE {USER} PASSWORD 'never told'")).await;
    cluster.wait_caught_up().await;
    end_sessions(&cluster, USER).await;
    let client = log_in(&kingpost, USER, "new", DATABASE).await;
    let error = match client {
        Err(error) => error,
        Ok(client) => client.simple_query("SELECT 1").await.map(|_| ()).expect_err("no password fits"),
    };
    assert_eq!(sqlstate(&error), "28P01", "{error:?}");
    // The other user is not affected.
    let mia = log_in(&kingpost, "mia", "mine", DATABASE).await.unwrap();
    assert_eq!(value(&mia, "SELECT current_user").await, "mia");
    // No password is in the log.
    let log = std::fs::read_to_string(kingpost.process().log()).unwrap();
    for secret in ["older still", "mine next", "never told"] {
        assert!(!log.contains(secret), "the log has a password");
    }
}

/// Writes a new password to a file as a Vault agent does: by replacing the file.
fn write(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    // The proxy may run as another user.
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::rename(&new, path).unwrap();
}

/// Makes an entry of a list of tables whose password is in a file or comes from a command.
fn with(key: &str, mut table: toml::Table, value: impl Into<toml::Value>) -> toml::Table {
    table.remove("password");
    table.insert(key.into(), value.into());
    table
}

fn command(script: &str) -> toml::Value {
    ["/bin/sh", "-c", script].map(toml::Value::from).to_vec().into()
}

/// Terminates all connections but the harness's, and waits until they are gone.
async fn end_pool(cluster: &Cluster) {
    for node in cluster.nodes() {
        node.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'kingpost'")
            .await;
        node.wait_value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'kingpost'", "0").await;
    }
}

#[tokio::test]
async fn a_password_that_a_server_refuses_is_read_again_before_the_login_fails() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(1).hba(HBA).start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let dir = new_dir("passwords");
    let [alice, mia, shop, counted] = ["alice", "mia", "shop", "count"].map(|name| dir.join(name));
    for (path, text) in [(&alice, "alice one\nnot this\n"), (&mia, "mia one\n"), (&shop, "shop one\n"), (&counted, "")]
    {
        write(path, text);
    }
    std::fs::set_permissions(&counted, std::fs::Permissions::from_mode(0o666)).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    primary.execute(&format!("ALTER ROLE {USER} PASSWORD 'alice one'")).await;
    primary.execute("CREATE ROLE mia LOGIN PASSWORD 'mia one'").await;
    primary.execute("CREATE ROLE shop LOGIN PASSWORD 'shop one'").await;
    primary.execute("CREATE DATABASE other").await;
    cluster.wait_caught_up().await;
    let script =
        |path: &Path| format!("echo x >> {}; echo s3cret-words >&2; exec cat {}", counted.display(), path.display());
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        // Nothing is read again on a timer.
        .set("passwords.interval", "0s")
        .add("proxy.users", with("password_file", user(USER, ""), alice.display().to_string()))
        .add("proxy.users", with("password_command", user("mia", ""), command(&script(&mia))))
        .add("proxy.databases", database(DATABASE, "pool_size", 4))
        .add(
            "proxy.databases",
            with(
                "server_password_command",
                {
                    let mut table = database("shop", "server_user", "shop");
                    table.insert("dbname".into(), "other".into());
                    table
                },
                command(&script(&shop)),
            ),
        )
        .start()
        .await;
    let runs = || std::fs::read_to_string(&counted).unwrap().lines().count();
    assert_eq!(runs(), 2, "each command once");
    let who = "/* kingpost.route=primary */ SELECT current_user || ' in ' || current_database()";
    for (user, password) in [(USER, "alice one"), ("mia", "mia one")] {
        let client = log_in(&kingpost, user, password, DATABASE).await.unwrap();
        assert_eq!(value(&client, who).await, format!("{user} in {DATABASE}"));
        let client = log_in(&kingpost, user, password, "shop").await.unwrap();
        assert_eq!(value(&client, who).await, "shop in other");
    }
    for (user, password) in [(USER, "mia one"), ("mia", "alice one"), (USER, "not this"), (USER, "s3cret-words")] {
        let error = log_in(&kingpost, user, password, DATABASE).await.map(|_| ()).expect_err("got in");
        assert_eq!(sqlstate(&error), "28P01");
    }
    // Clients that are connected, and hold no server connection.
    let mia_client = log_in(&kingpost, "mia", "mia one", DATABASE).await.unwrap();
    let shop_client = log_in(&kingpost, USER, "alice one", "shop").await.unwrap();
    // The passwords change, first on the servers, then in the commands' output. The proxy is not told.
    for (role, file) in [("mia", &mia), ("shop", &shop)] {
        primary.execute(&format!("ALTER ROLE {role} PASSWORD '{role} two'")).await;
        write(file, &format!("{role} two\n"));
    }
    cluster.wait_caught_up().await;
    end_pool(&cluster).await;
    assert_eq!(runs(), 2, "nothing was read without a reason");
    for route in ["primary", "replica"] {
        let sql = format!("/* kingpost.route={route} */ SELECT current_user");
        assert_eq!(value(&mia_client, &sql).await, "mia", "{route}");
        assert_eq!(value(&shop_client, &sql).await, "shop", "{route}");
    }
    assert!(runs() > 2);
    // The clients' passwords are compared with the same value.
    assert!(log_in(&kingpost, "mia", "mia two", DATABASE).await.is_ok());
    assert_eq!(
        sqlstate(&log_in(&kingpost, "mia", "mia one", DATABASE).await.map(|_| ()).expect_err("the old one")),
        "28P01"
    );
    // A file that changes is seen.
    primary.execute(&format!("ALTER ROLE {USER} PASSWORD 'alice two'")).await;
    write(&alice, "alice two\n");
    cluster.wait("the file to be read again", async || log_in(&kingpost, USER, "alice two", DATABASE).await.ok()).await;
    // A password that stays wrong is refused after it was read again; one that cannot be read is kept.
    primary.execute("ALTER ROLE mia PASSWORD 'never written'").await;
    cluster.wait_caught_up().await;
    end_pool(&cluster).await;
    let before = runs();
    let client = log_in(&kingpost, "mia", "mia two", DATABASE).await;
    let error = match client {
        Err(error) => error,
        Ok(client) => client.simple_query("SELECT 1").await.map(|_| ()).expect_err("no password fits"),
    };
    assert_eq!(sqlstate(&error), "28P01", "{error:?}");
    assert!(runs() > before, "was not read again");
    std::fs::remove_file(&mia).unwrap();
    kingpost.reload("proxy.pool.size", 9);
    let log = || std::fs::read_to_string(kingpost.process().log()).unwrap();
    cluster.wait("the reload to be refused", async || log().contains("not reloaded").then_some(())).await;
    let client = log_in(&kingpost, USER, "alice two", DATABASE).await.unwrap();
    assert_eq!(value(&client, "SELECT current_user").await, USER);
    // SIGHUP reads everything anew.
    primary.execute("ALTER ROLE mia PASSWORD 'mia three'").await;
    cluster.wait_caught_up().await;
    write(&mia, "mia three");
    kingpost.reload("proxy.pool.size", 10);
    cluster.wait("mia's new password", async || log_in(&kingpost, "mia", "mia three", DATABASE).await.ok()).await;
    for secret in ["alice one", "alice two", "mia one", "mia two", "mia three", "shop two", "s3cret-words"] {
        assert!(!log().contains(secret), "{secret:?} is in the log");
    }
    let (_, metrics) = kingpost.http("/metrics").await.unwrap();
    assert!(!metrics.contains("mia three"));
}

#[tokio::test]
async fn probes_and_lookups_go_on_with_a_password_that_has_changed() {
    if only_kingpost() {
        return;
    }
    let hba = "host all,replication postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
    let cluster = Cluster::builder().replicas(1).hba(hba).start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let dir = new_dir("passwords");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let [prober, asker] = ["prober", "asker"].map(|name| dir.join(name));
    for (role, file) in [("prober", &prober), ("asker", &asker)] {
        primary.execute(&format!("CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{role} one'")).await;
        write(file, &format!("{role} one"));
    }
    cluster.wait_caught_up().await;
    let kingpost = Kingpost::of(&cluster)
        .set("passwords.interval", "0s")
        .set("cluster.user", "prober")
        .set("cluster.password_command", command(&format!("cat {}", prober.display())))
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.auth_query.query", "SELECT rolname, rolpassword FROM pg_authid WHERE rolname = $1")
        .set("proxy.auth_query.user", "asker")
        .set("proxy.auth_query.password_command", command(&format!("cat {}", asker.display())))
        .set("proxy.auth_query.cache", "1ms")
        .set("proxy.auth_query.timeout", "20s")
        .start()
        .await;
    let sam = log_in(&kingpost, SCRAM_USER, SCRAM_PASSWORD, DATABASE).await.unwrap();
    assert_eq!(value(&sam, "SELECT current_user").await, SCRAM_USER);
    for (role, file) in [("prober", &prober), ("asker", &asker)] {
        primary.execute(&format!("ALTER ROLE {role} PASSWORD '{role} two'")).await;
        write(file, &format!("{role} two"));
    }
    cluster.wait_caught_up().await;
    for role in ["prober", "asker"] {
        for node in cluster.nodes() {
            node.execute(&format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'"))
                .await;
        }
    }
    // A lookup whose session was just ended may fail; one with a new login does not.
    let sam = cluster
        .wait("a lookup with the new password", async || {
            log_in(&kingpost, SCRAM_USER, SCRAM_PASSWORD, DATABASE).await.ok()
        })
        .await;
    assert_eq!(value(&sam, "SELECT current_user").await, SCRAM_USER);
    let sessions =
        "SELECT count(*) FROM pg_stat_activity WHERE usename = 'prober' AND application_name = 'kingpost probe'";
    for node in cluster.nodes() {
        node.wait_value(sessions, "1").await;
    }
    kingpost.wait_readyz(200).await;
    let log = std::fs::read_to_string(kingpost.process().log()).unwrap();
    for secret in ["prober one", "prober two", "asker one", "asker two"] {
        assert!(!log.contains(secret), "{secret:?} is in the log");
    }
}
