//! Passwords that change: several of one user at a time.

use kingpost_tests::{Cluster, DATABASE, Kingpost, ShowLogs, USER, sqlstate, user};
use tokio_postgres::{Client, Error};

use crate::common::{only_kingpost, value};
use crate::governed::config;

/// Everybody but the harness is asked for a password: `md5` means SCRAM where the role has a SCRAM verifier.
const HBA: &str = "host all,replication postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 md5\n";

async fn log_in(kingpost: &Kingpost, user: &str, password: &str, database: &str) -> Result<Client, Error> {
    kingpost.endpoint().try_connect(&config(kingpost, user, password, database)).await
}

/// An entry of `[[proxy.users]]` with further secrets.
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
    // Whichever password a client has, the servers hear the one that they know: the proxy finds out which, on each node.
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
    // The servers get one that the proxy does not have: that is an error, and not an endless wait.
    primary.execute(&format!("ALTER ROLE {USER} PASSWORD 'never told'")).await;
    cluster.wait_caught_up().await;
    end_sessions(&cluster, USER).await;
    let client = log_in(&kingpost, USER, "new", DATABASE).await;
    let error = match client {
        Err(error) => error,
        Ok(client) => client.simple_query("SELECT 1").await.map(|_| ()).expect_err("no password fits"),
    };
    assert_eq!(sqlstate(&error), "28P01", "{error:?}");
    // The other user is none the worse for it.
    let mia = log_in(&kingpost, "mia", "mine", DATABASE).await.unwrap();
    assert_eq!(value(&mia, "SELECT current_user").await, "mia");
    // Nothing of it is in the log.
    let log = std::fs::read_to_string(kingpost.process().log()).unwrap();
    for secret in ["older still", "mine next", "never told"] {
        assert!(!log.contains(secret), "the log has a password");
    }
}
