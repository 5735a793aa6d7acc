//! Moving from PgBouncer: the output of `kingpost config from-pgbouncer` is checked and run.

use std::path::{Path, PathBuf};
use std::process::Output;

use kingpost_tests::certs::Authority;
use kingpost_tests::{
    Cluster, DATABASE, Kingpost, Port, Process, RunAs, SCRAM_PASSWORD, SCRAM_USER, SOON, ShowLogs, USER, command,
    kingpost_bin, new_dir, sqlstate,
};
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config};

use crate::common::{only_kingpost, value};

/// A directory with a pgbouncer.ini and the files that it names.
struct Old {
    dir: PathBuf,
    ini: PathBuf,
}

impl Old {
    fn new(ini: &str, users: &str) -> Old {
        let dir = new_dir("pgbouncer");
        std::fs::write(dir.join("userlist.txt"), users).unwrap();
        let file = dir.join("pgbouncer.ini");
        std::fs::write(&file, ini.replace("DIR", dir.to_str().unwrap())).unwrap();
        Old { ini: file, dir }
    }

    /// Translates it to this file, which must not exist before.
    fn translate(&self, to: &Path, further: &[&str]) -> Output {
        let mut arguments = vec!["config", "from-pgbouncer", self.ini.to_str().unwrap(), "--out", to.to_str().unwrap()];
        arguments.extend(further);
        Kingpost::run(&arguments)
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn what_is_translated_runs_with_tls_on_both_sides_and_lets_in_the_same_users() {
    if only_kingpost() {
        return;
    }
    let authority = Authority::new();
    let servers = authority.issue_server("server", &["localhost", "127.0.0.1"]);
    let cluster = Cluster::builder().replicas(1).tls(&servers).start().await;
    let _logs = ShowLogs(cluster.dir());
    // Another database and another user, whose data the first ones must not see.
    let verifier =
        cluster.primary().query(&format!("SELECT rolpassword FROM pg_authid WHERE rolname = '{SCRAM_USER}'")).await;
    cluster.primary().execute("CREATE ROLE bob LOGIN").await;
    cluster.primary().execute("CREATE DATABASE other").await;
    cluster.wait_caught_up().await;
    let pair = authority.issue("proxy", &["localhost", "127.0.0.1"]);
    let (port, metrics) = (Port::reserve(), Port::reserve());
    let ini = format!(
        "[databases]\n\
         shop = host=127.0.0.1 port={primary} dbname={DATABASE} pool_size=3\n\
         shop = host=127.0.0.1 port={primary} dbname={DATABASE} pool_size=2 max_db_client_connections=1\n\
         * = host=127.0.0.1 port={primary}\n\
         [users]\nbob = max_user_client_connections=1 pool_size=1\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = scram-sha-256\nauth_file = DIR/userlist.txt\nadmin_users = boss\n\
         pool_mode = transaction\ndefault_pool_size = 4\nmax_client_conn = 50\n\
         client_tls_sslmode = require\nclient_tls_cert_file = {cert}\nclient_tls_key_file = {key}\n\
         server_tls_sslmode = verify-full\nserver_tls_ca_file = {ca}\n\
         logfile = DIR/pgbouncer.log\nignore_startup_parameters = extra_float_digits\n",
        primary = cluster.primary().port(),
        port = port.number(),
        cert = pair.cert.display(),
        key = pair.key.display(),
        ca = authority.ca_file().display(),
    );
    let users = format!(
        "\"{SCRAM_USER}\" \"{verifier}\"\n\"bob\" \"bob's own\"\n\"boss\" \"the boss\"\n\
         \"{USER}\" \"md5aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"\n\"empty\" \"\"\n"
    );
    let old = Old::new(&ini, &users);
    let toml = old.dir.join("kingpost.toml");
    let output = old.translate(&toml, &[]);
    assert!(output.status.success(), "{}", said(&output));
    let check = Kingpost::run(&["check", "--config", toml.to_str().unwrap()]);
    assert!(check.status.success(), "{}", said(&check));

    let mut kingpost = command(&kingpost_bin(), RunAs::Tests, "KILL");
    kingpost.args(["proxy", "--config"]).arg(&toml);
    kingpost.env("KINGPOST__METRICS__LISTEN", format!("127.0.0.1:{}", metrics.number()));
    kingpost.env("KINGPOST__PROXY__WORKERS", "2");
    let process = Process::start("kingpost", kingpost, &cluster.dir().join("moved.log"));
    let tls = authority.client(None);
    let config = |user: &str, password: &str, database: &str| {
        let mut config = Config::new();
        config.host("localhost").port(port.number()).ssl_mode(SslMode::Require);
        config.user(user).password(password).dbname(database).connect_timeout(SOON);
        config
    };
    let connect = async |config: Config| -> Result<Client, tokio_postgres::Error> {
        let (client, connection) = config.connect(tls.clone()).await?;
        tokio::spawn(connection);
        Ok(client)
    };
    let sam = cluster
        .wait("the translated configuration to serve", async || {
            assert!(process.exit_status().is_none(), "{}", std::fs::read_to_string(process.log()).unwrap());
            connect(config(SCRAM_USER, SCRAM_PASSWORD, "shop")).await.ok()
        })
        .await;
    // The alias leads to its database, over TLS, as the client's own user.
    assert_eq!(value(&sam, "SELECT current_database()").await, DATABASE);
    assert_eq!(value(&sam, "SELECT current_user").await, SCRAM_USER);
    let ssl = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    assert_eq!(value(&sam, ssl).await, "t", "the server connection is in clear");
    // Of two entries the last counts: one client of this database.
    let full = connect(config("bob", "bob's own", "shop")).await.expect_err("a second client of shop");
    assert_eq!(sqlstate(&full), "53300");
    // The fallback: another database, another user, and that user's own limit.
    let bob = connect(config("bob", "bob's own", "other")).await.unwrap();
    assert_eq!(value(&bob, "SELECT current_database()").await, "other");
    let full = connect(config("bob", "bob's own", DATABASE)).await.expect_err("a second client of bob");
    assert_eq!(sqlstate(&full), "53300");
    // A user that could not log in to PgBouncer cannot log in here either, and a wrong password stays wrong.
    for (user, password) in
        [(USER, "anything"), ("empty", ""), ("empty", "x"), (SCRAM_USER, "wrong"), ("stranger", "x")]
    {
        let error = connect(config(user, password, "postgres")).await.expect_err(user);
        assert!(error.as_db_error().is_none_or(|_| sqlstate(&error) == "28P01"), "{user}: {error:?}");
    }
    // Without TLS nobody can log in: the reason why TLS was configured.
    let clear =
        config(SCRAM_USER, SCRAM_PASSWORD, "postgres").ssl_mode(SslMode::Disable).connect(tokio_postgres::NoTls).await;
    assert_eq!(sqlstate(&clear.err().expect("a client without TLS")), "28000");
    // The operator can use the console.
    let boss = connect(config("boss", "the boss", "pgbouncer")).await.unwrap();
    assert!(boss.simple_query("SHOW POOLS").await.is_ok());
}

#[tokio::test]
async fn what_cannot_be_carried_over_writes_nothing() {
    if only_kingpost() {
        return;
    }
    let ini = "[databases]\na = host=127.0.0.1 port=5432 auth_query='select 1'\nb = host=127.0.0.1 port=5433\n\
               [pgbouncer]\nlisten_addr = 127.0.0.1\nauth_file = DIR/userlist.txt\napplication_name_add_host = 5\n";
    let old = Old::new(ini, "\"a\" \"secret\"\n");
    let toml = old.dir.join("kingpost.toml");
    let refused = old.translate(&toml, &[]);
    assert_eq!(refused.status.code(), Some(3), "{}", said(&refused));
    for key in ["application_name_add_host = 5", "databases.a.auth_query"] {
        assert!(said(&refused).contains(key), "{key}: {}", said(&refused));
    }
    assert!(!toml.exists() && refused.stdout.is_empty());
    let ignoring = ["--ignore", "application_name_add_host", "--ignore", "auth_query", "--database", "b"];
    let written = old.translate(&toml, &ignoring);
    assert!(written.status.success(), "{}", said(&written));
    let text = std::fs::read_to_string(&toml).unwrap();
    assert!(text.contains("127.0.0.1:5433") && !text.contains("127.0.0.1:5432"), "{text}");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&toml).unwrap().permissions().mode() & 0o777, 0o600);
    // It is not overwritten; and a file with errors in the check is not written either.
    assert!(!old.translate(&toml, &ignoring).status.success());
    let trusting = Old::new(
        "[databases]\na = host=db\n[pgbouncer]\nlisten_addr = *\nauth_type = trust\nauth_file = DIR/userlist.txt\nadmin_users = a\n",
        "\"a\" \"\"\n",
    );
    let refused = trusting.translate(&trusting.dir.join("kingpost.toml"), &[]);
    assert_eq!(refused.status.code(), Some(3), "{}", said(&refused));
    assert!(said(&refused).contains("anybody who reaches it would be let in"), "{}", said(&refused));
    assert!(!trusting.dir.join("kingpost.toml").exists());
}
