//! Moving from PgCat, PgDog and pgpool-II: the commands' output is checked and run, in front of two databases of two users on a primary and a
//! replica. pgpool-II itself decides which logins must succeed.

use std::path::{Path, PathBuf};
use std::process::Output;

use kingpost_tests::certs::Authority;
use kingpost_tests::{
    Cluster, Kingpost, Port, Process, RunAs, SOON, ShowLogs, command, kingpost_bin, new_dir, skipped, sqlstate, unique,
};
use tls::postgres::Secure;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, NoTls};

use crate::clusters::named;
use crate::common::{only_kingpost, simple, value};

/// Files of another program, and their translation.
pub(crate) struct Old {
    pub(crate) dir: PathBuf,
}

impl Old {
    pub(crate) fn new(program: &str, files: &[(&str, &str)]) -> Old {
        let dir = new_dir(program);
        for (name, text) in files {
            std::fs::write(dir.join(name), text).unwrap();
        }
        Old { dir }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_owned()
    }

    /// Translates the file to kingpost.toml, which must not exist yet.
    pub(crate) fn translate(&self, command: &str, file: &str, further: &[&str]) -> Output {
        let (file, out) = (self.path(file), self.path("kingpost.toml"));
        let mut arguments = vec!["config", command, &file, "--out", &out];
        arguments.extend(further);
        Kingpost::run(&arguments)
    }

    /// Starts the proxy with the written configuration.
    pub(crate) fn start(&self, logs: &Path) -> Process {
        let (toml, metrics) = (self.path("kingpost.toml"), Port::reserve());
        let check = Kingpost::run(&["check", "--config", &toml]);
        assert!(check.status.success(), "{}", said(&check));
        let mut kingpost = command(&kingpost_bin(), RunAs::Tests, "KILL");
        kingpost.args(["proxy", "--config", &toml]);
        kingpost.env("KINGPOST__METRICS__LISTEN", format!("127.0.0.1:{}", metrics.number()));
        kingpost.env("KINGPOST__PROXY__WORKERS", "2");
        Process::start("kingpost", kingpost, &logs.join("moved.log"))
    }
}

pub(crate) fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A login: user, password, database.
pub(crate) type Who<'w> = (&'w str, &'w str, &'w str);

const ANN: Who<'_> = ("ann", "ann's own", "shop");
const BOB: Who<'_> = ("bob", "bob's own", "books");

/// Address and method of a login.
#[derive(Clone)]
pub(crate) struct Door {
    port: u16,
    tls: Option<Secure>,
}

impl Door {
    pub(crate) fn clear(port: &Port) -> Door {
        Door { port: port.number(), tls: None }
    }
}

pub(crate) async fn connect(door: &Door, (user, password, database): Who<'_>) -> Result<Client, tokio_postgres::Error> {
    let mut config = Config::new();
    config.host("localhost").hostaddr([127, 0, 0, 1].into()).port(door.port);
    config.user(user).password(password).dbname(database).connect_timeout(SOON);
    if let Some(tls) = &door.tls {
        let (client, connection) = config.ssl_mode(SslMode::Require).connect(tls.clone()).await?;
        tokio::spawn(connection);
        return Ok(client);
    }
    let (client, connection) = config.ssl_mode(SslMode::Disable).connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Returns the first client that gets in.
pub(crate) async fn first(cluster: &Cluster, process: &Process, door: &Door, who: Who<'_>) -> Client {
    cluster
        .wait("the translated configuration to serve", async || {
            assert!(process.exit_status().is_none(), "{}", std::fs::read_to_string(process.log()).unwrap());
            connect(door, who).await.ok()
        })
        .await
}

/// Creates both users and databases, with a table in each.
async fn furnish(cluster: &Cluster, databases: &[&str]) {
    let primary = cluster.primary();
    primary.execute("CREATE ROLE ann LOGIN; CREATE ROLE bob LOGIN").await;
    for database in databases {
        primary.execute(&format!("CREATE DATABASE {database}")).await;
        let table =
            format!("CREATE TABLE t (what text); INSERT INTO t VALUES ('{database}'); GRANT ALL ON t TO ann, bob");
        primary.execute_in(database, &table).await;
    }
    cluster.wait_caught_up().await;
}

/// Checks that a login succeeds only in the own database with the own password. `refused`: the error of a known user in another's database.
async fn kept_apart(door: &Door) {
    let (ann, ann_password, shop) = ANN;
    let (bob, bob_password, books) = BOB;
    for (who, code) in [
        ((ann, ann_password, books), "28000"),
        ((bob, bob_password, shop), "28000"),
        ((ann, ann_password, "postgres"), "28000"),
        ((ann, bob_password, shop), "28P01"),
        ((bob, ann_password, books), "28P01"),
        ((ann, "", shop), "28P01"),
        ((ann, ann_password, "kingpost"), "28P01"),
        (("postgres", "x", shop), "28000"),
    ] {
        match connect(door, who).await {
            Ok(_) => panic!("{who:?} was let in"),
            // Without a password the client library itself gives up.
            Err(error) if error.as_db_error().is_none() => assert_eq!(who.1, "", "{who:?}: {error:?}"),
            Err(error) => assert_eq!(sqlstate(&error), code, "{who:?}: {error:?}"),
        }
    }
}

/// True if only the replica answers a read. The servers log each statement.
async fn reads_on_replica(cluster: &Cluster, client: &Client) -> bool {
    let marker = format!("mark{}end", unique());
    simple(client, &format!("SELECT what, '{marker}' FROM t")).await;
    cluster.replica(0).saw(&marker) && !cluster.primary().saw(&marker)
}

/// Waits until reads go to the replica: after a write a client reads at the primary until a replica is known to have the write.
async fn settles_on_replica(cluster: &Cluster, client: &Client) {
    cluster.wait("reads on the replica", async || reads_on_replica(cluster, client).await.then_some(())).await;
}

#[tokio::test]
async fn pgcats_pools_run_with_the_same_users_and_reads() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(1).log_statements().start().await;
    let _logs = ShowLogs(cluster.dir());
    furnish(&cluster, &["shop_live", "books"]).await;
    // Two users for the lookup, one of which has expired.
    let roles = "SET password_encryption = md5; CREATE ROLE carl LOGIN PASSWORD 'carl''s own'; \
                 CREATE ROLE late LOGIN PASSWORD 'late''s own' VALID UNTIL '2020-01-01'";
    cluster.primary().execute(roles).await;
    cluster.wait_caught_up().await;
    let port = Port::reserve();
    let servers = format!(
        "[[\"127.0.0.1\", {}, \"primary\"], [\"127.0.0.1\", {}, \"replica\"]]",
        cluster.primary().port(),
        cluster.replica(0).port()
    );
    let file = format!(
        "[general]\nhost = \"127.0.0.1\"\nport = {port}\nadmin_username = \"boss\"\nadmin_password = \"boss's own\"\nautoreload = 15000\n\
         connect_timeout = 20000\n\
         auth_query = \"SELECT usename, passwd FROM pg_shadow WHERE usename='$1'\"\nauth_query_user = \"postgres\"\nauth_query_password = \"any\"\n\
         [pools.shop]\nquery_parser_enabled = true\nquery_parser_read_write_splitting = true\nprimary_reads_enabled = false\n\
         [pools.shop.users.0]\nusername = \"ann\"\npassword = \"{ann}\"\npool_size = 3\nstatement_timeout = 60000\n\
         [pools.shop.shards.0]\ndatabase = \"shop_live\"\nservers = {servers}\n\
         [pools.books]\npool_mode = \"session\"\ndefault_role = \"primary\"\n\
         [pools.books.users.0]\nusername = \"bob\"\npassword = \"{bob}\"\npool_size = 2\n\
         [pools.books.users.1]\nusername = \"carl\"\npool_size = 2\n\
         [pools.books.users.2]\nusername = \"late\"\npool_size = 2\n\
         [pools.books.shards.0]\ndatabase = \"books\"\nservers = {servers}\n",
        port = port.number(),
        ann = ANN.1,
        bob = BOB.1,
    );
    let old = Old::new("pgcat", &[("pgcat.toml", &file)]);
    let refused = old.translate("from-pgcat", "pgcat.toml", &[]);
    assert_eq!(refused.status.code(), Some(3), "{}", said(&refused));
    assert!(
        said(&refused).contains("general.autoreload = 15000") && !said(&refused).contains("own"),
        "{}",
        said(&refused)
    );
    assert!(!old.dir.join("kingpost.toml").exists() && refused.stdout.is_empty());
    let written = old.translate("from-pgcat", "pgcat.toml", &["--ignore", "autoreload"]);
    assert!(written.status.success(), "{}", said(&written));
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(old.dir.join("kingpost.toml")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let (process, door) = (old.start(cluster.dir()), Door::clear(&port));
    let ann = first(&cluster, &process, &door, ANN).await;
    let bob = connect(&door, BOB).await.unwrap();
    assert_eq!(value(&ann, "SELECT what FROM t").await, "shop_live");
    assert_eq!(value(&bob, "SELECT what FROM t").await, "books");
    settles_on_replica(&cluster, &ann).await;
    assert!(!reads_on_replica(&cluster, &bob).await, "default_role = primary");
    // A write goes to the primary, and its client sees it.
    ann.batch_execute("UPDATE t SET what = 'sold'").await.unwrap();
    assert_eq!(value(&ann, "SELECT what FROM t").await, "sold");
    assert_eq!(value(&bob, "SELECT what FROM t").await, "books");
    kept_apart(&door).await;
    let carl = connect(&door, ("carl", "carl's own", "books")).await.unwrap();
    assert_eq!(value(&carl, "SELECT current_user").await, "carl");
    for (who, code) in [
        (("carl", "wrong", "books"), "28P01"),
        (("carl", "carl's own", "shop"), "28000"),
        (("late", "late's own", "books"), "28P01"),
    ] {
        assert_eq!(sqlstate(&connect(&door, who).await.expect_err("a login")), code, "{who:?}");
    }
    let boss = connect(&door, ("boss", "boss's own", "pgbouncer")).await.unwrap();
    assert!(boss.simple_query("SHOW POOLS").await.is_ok());
}

#[tokio::test]
async fn pgdogs_databases_on_two_clusters_run_with_the_same_users_and_reads() {
    if only_kingpost() {
        return;
    }
    let authority = Authority::new();
    let servers = authority.issue_server("server", &["127.0.0.1"]);
    let (one, two) = (named("one").replicas(1).log_statements().tls(&servers), named("two").tls(&servers));
    let (one, two) = futures_util::future::join(one.start(), two.start()).await;
    let _logs = (ShowLogs(one.dir()), ShowLogs(two.dir()));
    furnish(&one, &["shop"]).await;
    furnish(&two, &["books"]).await;
    let port = Port::reserve();
    let pair = authority.issue("proxy", &["localhost"]);
    let file = format!(
        "[general]\nhost = \"127.0.0.1\"\nport = {port}\nread_write_split = \"exclude_primary\"\nauth_type = \"scram\"\ncheckout_timeout = 20000\n\
         tls_certificate = \"{cert}\"\ntls_private_key = \"{key}\"\ntls_client_required = true\n\
         tls_verify = \"verify_full\"\ntls_server_ca_certificate = \"{ca}\"\n\
         [admin]\nuser = \"boss\"\npassword = \"boss's own\"\n\
         [[databases]]\nname = \"shop\"\nhost = \"127.0.0.1\"\nport = {primary}\nrole = \"auto\"\nlock_timeout = 7000\n\
         [[databases]]\nname = \"shop\"\nhost = \"127.0.0.1\"\nport = {replica}\nrole = \"auto\"\nlock_timeout = 7000\n\
         [[databases]]\nname = \"books\"\nhost = \"127.0.0.1\"\nport = {other}\nread_only = true\n",
        port = port.number(),
        primary = one.primary().port(),
        replica = one.replica(0).port(),
        other = two.primary().port(),
        cert = pair.cert.display(),
        key = pair.key.display(),
        ca = authority.ca_file().display(),
    );
    let users = format!(
        "[[users]]\nname = \"ann\"\ndatabase = \"shop\"\npassword = \"{}\"\n[[users]]\nname = \"bob\"\ndatabases = [\"books\"]\npassword = \"{}\"\n",
        ANN.1, BOB.1
    );
    let old = Old::new("pgdog", &[("pgdog.toml", &file), ("people.toml", &users)]);
    let missing = old.translate("from-pgdog", "pgdog.toml", &[]);
    assert!(!missing.status.success() && said(&missing).contains("users.toml"), "{}", said(&missing));
    let written = old.translate("from-pgdog", "pgdog.toml", &["--users", &old.path("people.toml")]);
    assert!(written.status.success(), "{}", said(&written));
    assert!(said(&written).contains("databases on different servers"), "{}", said(&written));

    let process = old.start(one.dir());
    let door = Door { port: port.number(), tls: Some(authority.client(None)) };
    let ann = first(&one, &process, &door, ANN).await;
    let bob = first(&two, &process, &door, BOB).await;
    assert_eq!(value(&ann, "SELECT what FROM t").await, "shop");
    assert_eq!(value(&bob, "SELECT what FROM t").await, "books");
    assert_eq!(
        (value(&ann, "SHOW cluster_name").await, value(&bob, "SHOW cluster_name").await),
        ("one".into(), "two".into())
    );
    settles_on_replica(&one, &ann).await;
    ann.batch_execute("UPDATE t SET what = 'sold'").await.unwrap();
    assert_eq!(value(&ann, "SELECT what FROM t").await, "sold");
    assert_eq!(value(&ann, "SHOW lock_timeout").await, "7s");
    // TLS on both sides: no client and no server connection is in clear text.
    for client in [&ann, &bob] {
        assert_eq!(value(client, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").await, "t");
    }
    let clear = connect(&Door::clear(&port), ANN).await.expect_err("a client without TLS");
    assert_eq!(sqlstate(&clear), "28000");
    let forbidden = bob.batch_execute("UPDATE t SET what = 'sold'").await.expect_err("read_only = true");
    assert_eq!(sqlstate(&forbidden), "25006");
    kept_apart(&door).await;
    let boss = connect(&door, ("boss", "boss's own", "kingpost")).await.unwrap();
    assert!(boss.simple_query("SHOW POOLS").await.is_ok());
}

/// Returns the result of a login, for comparisons: PostgreSQL's message for a refusal is not pgpool-II's.
async fn decided(door: &Door, who: Who<'_>) -> &'static str {
    match connect(door, who).await {
        Ok(client) if client.simple_query("SELECT 1").await.is_ok() => "let in",
        _ => "refused",
    }
}

#[tokio::test]
async fn pgpools_rules_decide_as_in_pgpool_itself() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(1).log_statements().start().await;
    let _logs = ShowLogs(cluster.dir());
    furnish(&cluster, &["shop", "books"]).await;
    cluster.primary().execute("CREATE ROLE carl LOGIN; CREATE ROLE dora LOGIN").await;
    cluster.wait_caught_up().await;
    let (port, theirs, pcp) = (Port::reserve(), Port::reserve(), Port::reserve());
    let authority = Authority::new();
    let pair = authority.issue("proxy", &["localhost"]);
    let tls = authority.client(None);
    // The order matters: the rule that refuses dora comes before the one that admits everybody to books.
    let hba = "# TYPE DATABASE USER ADDRESS METHOD\n\
        host shop  ann  127.0.0.1 255.255.255.255 scram-sha-256\n\
        host all   carl 10.0.0.0/8   trust\n\
        host books bob  127.0.0.1/32 md5\n\
        host books dora 127.0.0.1/32 reject\n\
        host books all  127.0.0.0/8  md5\n\
        host postgres dora 127.0.0.1/32 trust\n\
        hostssl postgres bob 127.0.0.1/32 md5\n\
        hostnossl postgres ann 127.0.0.1/32 scram-sha-256\n";
    let hash = format!("md5{}", cluster.primary().query("SELECT md5('dora''s owndora')").await);
    let passwords = format!("ann:TEXT{}\nbob:TEXT{}\ncarl:TEXTcarl's own\ndora:{hash}\n", ANN.1, BOB.1);
    let conf = |port: u16, key: &Path| {
        format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\n\
             backend_clustering_mode = 'streaming_replication'\n\
             backend_hostname0 = '127.0.0.1'\nbackend_port0 = {primary}\nbackend_weight0 = 0\nbackend_flag0 = 'ALLOW_TO_FAILOVER'\n\
             backend_hostname1 = '127.0.0.1'\nbackend_port1 = {replica}\nbackend_weight1 = 1\nbackend_flag1 = 'ALLOW_TO_FAILOVER'\n\
             ssl = on\nssl_cert = '{cert}'\nssl_key = '{key}'\n\
             enable_pool_hba = on\npool_passwd = 'pool_passwd'\nallow_clear_text_frontend_auth = off\n\
             num_init_children = 10\nmax_pool = 2\nauthentication_timeout = 30s\nload_balance_mode = on\n\
             sr_check_user = 'postgres'\nsr_check_database = 'postgres'\nhealth_check_period = 0\n\
             use_watchdog = off\nmemory_cache_enabled = off\nfailover_command = ''\n",
            primary = cluster.primary().port(),
            replica = cluster.replica(0).port(),
            cert = pair.cert.display(),
            key = key.display(),
        )
    };
    let old = Old::new(
        "pgpool",
        &[("pgpool.conf", &conf(port.number(), &pair.key)), ("pool_hba.conf", hba), ("pool_passwd", &passwords)],
    );
    let written = old.translate("from-pgpool", "pgpool.conf", &[]);
    assert!(written.status.success(), "{}", said(&written));
    let (process, door) = (old.start(cluster.dir()), Door::clear(&port));
    let ann = first(&cluster, &process, &door, ANN).await;
    let bob = connect(&door, BOB).await.unwrap();
    assert_eq!(
        (value(&ann, "SELECT what FROM t").await, value(&bob, "SELECT what FROM t").await),
        ("shop".into(), "books".into())
    );
    settles_on_replica(&cluster, &ann).await;
    ann.batch_execute("UPDATE t SET what = 'sold'").await.unwrap();
    assert_eq!(value(&ann, "SELECT what FROM t").await, "sold");
    // There is no operator: no user gets to the console, even one that rules trust.
    for user in ["ann", "dora", "postgres"] {
        assert_eq!(decided(&door, (user, "x", "kingpost")).await, "refused", "{user}");
    }

    let mut logins = vec![("stranger", "x", "books"), ("postgres", "x", "books"), ("dora", "anything", "postgres")];
    for (user, password) in [("ann", ANN.1), ("bob", BOB.1), ("carl", "carl's own"), ("dora", "dora's own")] {
        for database in ["shop", "books", "postgres"] {
            logins.extend([(user, password, database), (user, "wrong", database)]);
        }
    }
    let logins = logins.into_iter().flat_map(|who| [(who, None), (who, Some(tls.clone()))]);
    // Its key has to belong to its user.
    let key = authority.issue_server("pgpool", &["localhost"]);
    std::fs::copy(&pair.key, &key.key).unwrap();
    let Some(pgpool) = Pgpool::start(&old, &cluster, &conf(theirs.number(), &key.key), pcp.number()) else {
        skipped("pgpool-II is not there to be compared with (apt-get install pgpool2)");
        return;
    };
    first(&cluster, &pgpool.0, &Door::clear(&theirs), ANN).await;
    let (mut let_in, mut refused) = (0, 0);
    for (who, tls) in logins {
        let ours = Door { port: port.number(), tls };
        let expected = decided(&Door { port: theirs.number(), ..ours.clone() }, who).await;
        let found = decided(&ours, who).await;
        assert_eq!(found, expected, "{who:?}, with TLS: {}; Kingpost, and pgpool-II", ours.tls.is_some());
        *(if expected == "let in" { &mut let_in } else { &mut refused }) += 1;
    }
    assert!(let_in >= 10 && refused >= 10, "{let_in} were let in, {refused} refused");
}

/// pgpool-II itself with the same rules and passwords.
struct Pgpool(Process);

impl Drop for Pgpool {
    /// A kill would leave its children and its semaphores behind.
    fn drop(&mut self) {
        self.0.signal(libc::SIGINT);
        let ended = (0..1_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            self.0.exit_status().is_some()
        });
        if !ended {
            eprintln!("pgpool-II did not stop: see {}", self.0.log().display());
        }
    }
}

impl Pgpool {
    /// Returns None if it is not installed.
    fn start(old: &Old, cluster: &Cluster, conf: &str, pcp: u16) -> Option<Pgpool> {
        let binary =
            ["/usr/sbin/pgpool", "/usr/bin/pgpool"].map(PathBuf::from).into_iter().find(|path| path.exists())?;
        // Sockets of its own; versions before 4.4 call their directory socket_dir.
        let dir = old.path("");
        let further = format!(
            "socket_dir = '{dir}'\npcp_socket_dir = '{dir}'\nwd_ipc_socket_dir = '{dir}'\npcp_listen_addresses = '127.0.0.1'\npcp_port = {pcp}\n\
             pid_file_name = '{dir}/pgpool.pid'\nlogdir = '{dir}'\nwork_dir = '{dir}'\n"
        );
        std::fs::write(old.dir.join("theirs.conf"), format!("{conf}{further}")).unwrap();
        std::fs::write(old.dir.join("pcp.conf"), "").unwrap();
        // The servers' user may read it all.
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&old.dir, std::fs::Permissions::from_mode(0o777)).unwrap();
        for file in ["theirs.conf", "pool_hba.conf", "pool_passwd", "pcp.conf"] {
            std::fs::set_permissions(old.dir.join(file), std::fs::Permissions::from_mode(0o666)).unwrap();
        }
        let mut pgpool = command(&binary, RunAs::Server, "INT");
        pgpool.args([
            "-n",
            "-D",
            "-f",
            &old.path("theirs.conf"),
            "-a",
            &old.path("pool_hba.conf"),
            "-F",
            &old.path("pcp.conf"),
        ]);
        Some(Pgpool(Process::start("pgpool", pgpool, &cluster.dir().join("pgpool.log"))))
    }
}
