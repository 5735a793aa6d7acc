//! Several clusters behind one address: two worlds with databases, users and tables of the same names. Every answer is compared with that of the
//! cluster's own primary.

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use kingpost_tests::certs::Authority;
use kingpost_tests::{Cluster, ClusterBuilder, DATABASE, Kingpost, SOON, ShowLogs, sqlstate, within};
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};
use toml::{Table, Value};

use crate::common::{only_kingpost, simple, value};

/// A database that both clusters have, with other columns in its tables.
const SAME: &str = "same";
const SHOP_HOST: &str = "shop.db.test";
const BILLING_HOST: &str = "billing.db.test";

struct World {
    shop: Cluster,
    billing: Cluster,
    kingpost: Kingpost,
    authority: Authority,
}

fn text(pairs: &[(&str, &str)]) -> Table {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))).collect()
}

/// Makes a cluster whose servers report this name.
pub(crate) fn named(name: &str) -> ClusterBuilder {
    Cluster::builder().setting("cluster_name", name)
}

/// Returns the proxy's configuration of a further cluster.
pub(crate) fn further(name: &str, cluster: &Cluster, host: Option<&str>) -> Table {
    let node = |node: &kingpost_tests::Node| {
        let address = format!("127.0.0.1:{}", node.port());
        Value::Table(text(&[("name", node.name()), ("address", &address)]))
    };
    let mut table = text(&[("name", name), ("user", "postgres"), ("probe_interval", "100ms"), ("probe_timeout", "1s")]);
    table.insert("nodes".into(), cluster.nodes().iter().map(node).collect::<Vec<_>>().into());
    if let Some(host) = host {
        table.insert("server_names".into(), vec![Value::from(host)].into());
    }
    table
}

impl World {
    /// Starts two clusters of a primary and a replica each; users `ann` and `ben` have different passwords on each.
    async fn start() -> World {
        let authority = Authority::new();
        let (shop, billing) =
            futures_util::future::join(named("shop").replicas(1).start(), named("billing").replicas(1).start()).await;
        for (cluster, columns, rows) in [
            (&shop, "id int, item text", "(1, 'pen'), (2, 'ink')"),
            (&billing, "id text, cents bigint, paid bool", "('r1', 500, true)"),
        ] {
            let primary = cluster.primary();
            primary.execute("CREATE ROLE ann LOGIN; CREATE ROLE ben LOGIN").await;
            primary.execute(&format!("CREATE DATABASE {SAME}")).await;
            primary
                .execute_in(
                    SAME,
                    &format!("CREATE TABLE t ({columns}); INSERT INTO t VALUES {rows}; GRANT ALL ON t TO ann, ben"),
                )
                .await;
            cluster.wait_caught_up().await;
        }
        let pair = authority.issue("proxy", &[SHOP_HOST, BILLING_HOST]);
        let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
        let of = |name: &str, dbname: &str, cluster: Option<&str>| {
            let mut table = text(&[("name", name), ("dbname", dbname)]);
            if let Some(cluster) = cluster {
                table.insert("cluster".into(), cluster.into());
            }
            table
        };
        let user = |name: &str, password: &str, cluster: &str| {
            text(&[("name", name), ("password", password), ("cluster", cluster)])
        };
        let kingpost = Kingpost::of(&shop)
            .set("cluster.name", "shop")
            .set("cluster.server_names", vec![Value::from(SHOP_HOST)])
            .add("clusters", further("billing", &billing, Some(BILLING_HOST)))
            .set("proxy.auth", "scram-sha-256")
            .set("proxy.tls.mode", "allow")
            .set("proxy.tls.cert_file", path(&pair.cert))
            .set("proxy.tls.key_file", path(&pair.key))
            .set("proxy.pool.no_primary_timeout", "2s")
            .add("proxy.databases", of("shop", SAME, None))
            .add("proxy.databases", of("bills", SAME, Some("billing")))
            .add("proxy.databases", of(SAME, SAME, Some("shop")))
            .add("proxy.databases", of(SAME, SAME, Some("billing")))
            .add("proxy.users", user("ann", "ann-shop", "shop"))
            .add("proxy.users", user("ben", "ben-shop", "shop"))
            .add("proxy.users", user("ann", "ann-billing", "billing"))
            .add("proxy.users", user("ben", "ben-billing", "billing"))
            .add("proxy.operators", text(&[("name", "boss"), ("password", "boss")]))
            .start()
            .await;
        let world = World { shop, billing, kingpost, authority };
        world.wait_primary("billing").await;
        world
    }

    /// Waits for a cluster's primary: the proxy serves before it knows all primaries, and a first statement would wait for one, with a limit.
    async fn wait_primary(&self, cluster: &str) {
        self.shop
            .wait(&format!("a primary of {cluster}"), async || {
                (self.kingpost.metrics().await.sum("kingpost_topology_primary_known", &[("cluster", cluster)]) > 0.5)
                    .then_some(())
            })
            .await;
    }

    fn config(&self, user: &str, password: &str, database: &str) -> Config {
        let mut config = self.kingpost.endpoint().config();
        config.user(user).password(password).dbname(database);
        config
    }

    async fn connect(&self, user: &str, cluster: &str, database: &str) -> Client {
        self.kingpost.endpoint().connect_as(&self.config(user, &format!("{user}-{cluster}"), database)).await
    }

    /// Connects over TLS, with the host's name in the handshake.
    async fn by_host(
        &self,
        host: &str,
        user: &str,
        password: &str,
        database: &str,
    ) -> Result<Client, tokio_postgres::Error> {
        let mut config = Config::new();
        config.host(host).hostaddr("127.0.0.1".parse().unwrap()).port(self.kingpost.port());
        config.user(user).password(password).dbname(database).ssl_mode(tokio_postgres::config::SslMode::Require);
        let connected =
            within("a login by TLS", SOON, self.shop.dir(), config.connect(self.authority.client(None))).await;
        let (client, connection) = connected?;
        tokio::spawn(connection);
        Ok(client)
    }

    async fn console(&self, database: &str) -> Client {
        self.kingpost.endpoint().connect_as(&self.config("boss", "boss", database)).await
    }
}

/// Query for the cluster that a client's statements reach, as PostgreSQL itself reports it.
const SYSTEM: &str = "SELECT current_setting('cluster_name')";

async fn system(cluster: &Cluster) -> String {
    cluster.primary().query(SYSTEM).await
}

#[tokio::test]
async fn each_database_leads_to_its_cluster_and_nothing_of_another_shows() {
    if only_kingpost() {
        return;
    }
    let world = World::start().await;
    let (_shop_logs, _billing_logs) = (ShowLogs(world.shop.dir()), ShowLogs(world.billing.dir()));
    let (shop, billing) = (system(&world.shop).await, system(&world.billing).await);
    assert_ne!(shop, billing);
    // Statements with equal texts, prepared and run by many clients of both clusters at once: columns and rows are each cluster's own.
    let clients = (0..24).map(|n| {
        let (world, shop, billing) = (&world, &shop, &billing);
        async move {
            let user = ["ann", "ben"][n % 2];
            let (cluster, database, expected) = [("shop", "shop", shop), ("billing", "bills", billing)][n / 2 % 2];
            let client = world.connect(user, cluster, database).await;
            for _ in 0..20 {
                let statement = client.prepare("SELECT * FROM t ORDER BY 1").await.unwrap();
                let columns: Vec<&str> = statement.columns().iter().map(|column| column.name()).collect();
                let rows = client.query(&statement, &[]).await.unwrap();
                let all = client.query("SELECT * FROM t t1 WHERE $1", &[&true]).await.unwrap();
                match cluster {
                    "shop" => {
                        assert_eq!(columns, ["id", "item"]);
                        let items: Vec<String> = rows.iter().map(|row| row.get(1)).collect();
                        assert_eq!(items, ["pen", "ink"]);
                        assert_eq!(all.len(), 2);
                    }
                    _ => {
                        assert_eq!(columns, ["id", "cents", "paid"]);
                        assert_eq!((rows.len(), rows[0].get::<_, i64>(1)), (1, 500));
                        assert_eq!(all.len(), 1);
                    }
                }
                assert_eq!(value(&client, SYSTEM).await, *expected);
                let who = value(&client, "SELECT current_user").await;
                assert_eq!(who, user);
            }
        }
    });
    join_all(clients).await;
    // A write stays in its cluster.
    let ann = world.connect("ann", "billing", "bills").await;
    ann.batch_execute("INSERT INTO t VALUES ('r2', 7, false)").await.unwrap();
    assert_eq!(value(&ann, "SELECT count(*) FROM t").await, "2");
    assert_eq!(world.shop.primary().query_in(SAME, "SELECT count(*) FROM t").await, "2");
    assert_eq!(world.billing.primary().query_in(SAME, "SELECT count(*) FROM t").await, "2");
    // Channels of one name in two clusters are two channels.
    let (shop_ear, mut shop_inbox) =
        world.kingpost.endpoint().connect_with_messages(&world.config("ann", "ann-shop", "shop")).await;
    let (billing_ear, mut billing_inbox) =
        world.kingpost.endpoint().connect_with_messages(&world.config("ann", "ann-billing", "bills")).await;
    shop_ear.batch_execute("LISTEN news").await.unwrap();
    billing_ear.batch_execute("LISTEN news").await.unwrap();
    let ben = world.connect("ben", "billing", "bills").await;
    ben.batch_execute("NOTIFY news, 'of billing'").await.unwrap();
    let ben = world.connect("ben", "shop", "shop").await;
    ben.batch_execute("NOTIFY news, 'of shop'").await.unwrap();
    for (inbox, expected) in [(&mut shop_inbox, "of shop"), (&mut billing_inbox, "of billing")] {
        let heard = within("a notification", SOON, world.shop.dir(), async {
            loop {
                if let Some(AsyncMessage::Notification(heard)) = inbox.recv().await {
                    return heard.payload().to_owned();
                }
            }
        });
        assert_eq!(heard.await, expected);
    }
}

#[tokio::test]
async fn a_password_holds_for_its_cluster_and_a_host_name_chooses_one() {
    if only_kingpost() {
        return;
    }
    let world = World::start().await;
    let _logs = ShowLogs(world.shop.dir());
    let (shop, billing) = (system(&world.shop).await, system(&world.billing).await);
    // The other cluster's password is as wrong as any other.
    for (password, database) in [("ann-billing", "shop"), ("ann-shop", "bills"), ("ben-shop", "shop")] {
        let refused = world.kingpost.endpoint().try_connect(&world.config("ann", password, database)).await;
        assert_eq!(sqlstate(&refused.unwrap_err()), "28P01", "{password} {database}");
    }
    // Both clusters have a database of this name: the first one is the default.
    let client = world.connect("ann", "shop", SAME).await;
    assert_eq!(value(&client, SYSTEM).await, shop);
    for (host, cluster, expected) in [(SHOP_HOST, "shop", &shop), (BILLING_HOST, "billing", &billing)] {
        let client = world.by_host(host, "ben", &format!("ben-{cluster}"), SAME).await.unwrap();
        assert_eq!(value(&client, SYSTEM).await, *expected, "{host}");
    }
    let refused = world.by_host(BILLING_HOST, "ben", "ben-shop", SAME).await.unwrap_err();
    assert_eq!(sqlstate(&refused), "28P01");
    // The cluster chosen by the host name does not have the other cluster's database.
    let refused = world.by_host(BILLING_HOST, "ann", "ann-billing", "shop").await.unwrap_err();
    assert_eq!(sqlstate(&refused), "3D000");
    let refused = world.kingpost.endpoint().try_connect(&world.config("ann", "ann-shop", "nowhere")).await;
    assert_eq!(sqlstate(&refused.unwrap_err()), "3D000");
}

#[tokio::test]
async fn a_replication_connection_reaches_the_cluster_that_it_names_and_never_another() {
    if only_kingpost() {
        return;
    }
    let (shop, billing) =
        futures_util::future::join(named("shop").replicas(1).start(), named("billing").replicas(1).start()).await;
    let _logs = (ShowLogs(shop.dir()), ShowLogs(billing.dir()));
    for cluster in [&shop, &billing] {
        cluster.primary().execute("CREATE ROLE rep LOGIN REPLICATION").await;
    }
    // Unlisted databases lead to the second cluster, as with PgBouncer's `*`.
    let any = text(&[("name", "*"), ("cluster", "billing")]);
    let mut user = text(&[("name", "rep"), ("password", "rep")]);
    user.insert("replication".into(), true.into());
    let kingpost = Kingpost::of(&shop)
        .set("cluster.name", "shop")
        .add("clusters", further("billing", &billing, None))
        .set("proxy.auth", "scram-sha-256")
        .add("proxy.databases", text(&[("name", "postgres")]))
        .add("proxy.databases", any)
        .add("proxy.users", user)
        .start()
        .await;
    let program = async |name: &str, arguments: Vec<String>| {
        let mut command = std::process::Command::new(kingpost_tests::pg_bin().join(name));
        command.args(arguments).env("PGPASSWORD", "rep").env("PGSSLMODE", "disable");
        tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
    };
    let port = kingpost.port();
    let whole = format!("host=127.0.0.1 port={port} user=rep");
    let primaries = [("shop", shop.primary().port()), ("billing", billing.primary().port())];
    // The clusters come from one template, so the server's port distinguishes them, not the system identifier.
    for (more, expected) in [
        ("dbname=replication replication=true options='-c kingpost.cluster=shop'", Some("shop")),
        ("dbname=replication replication=true options='-c kingpost.cluster=billing'", Some("billing")),
        ("dbname=postgres replication=true", Some("shop")),
        ("dbname=postgres replication=true options='-ckingpost.cluster=billing'", Some("billing")),
        ("dbname=postgres replication=database options='-c kingpost.cluster=billing'", Some("billing")),
        ("dbname=replication replication=true", None),
        ("dbname=other replication=true", None),
        ("dbname=postgres replication=true options='-c kingpost.cluster=nobody'", None),
    ] {
        let arguments = ["-XAtc", "SHOW port", &format!("{whole} {more}")].map(str::to_owned);
        let output = program("psql", arguments.into()).await;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let reached = primaries.iter().find(|(_, port)| port.to_string() == said).map(|(name, _)| *name);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(reached, expected, "{more}: {said} {errors}");
        assert_eq!(errors.contains("kingpost.cluster"), expected.is_none(), "{more}: {errors}");
    }
    // A backup of either cluster would look the same.
    let target = kingpost_tests::new_dir("backup");
    let backup = |more: &str, name: &str| {
        let to = target.join(name).to_str().unwrap().to_owned();
        ["-d".into(), format!("{whole}{more}"), "-D".into(), to, "-c".into(), "fast".into(), "-w".into()]
    };
    let output = program("pg_basebackup", backup("", "none").into()).await;
    assert!(!output.status.success() && !target.join("none/PG_VERSION").exists(), "{output:?}");
    let output = program("pg_basebackup", backup(" options='-c kingpost.cluster=shop'", "shop").into()).await;
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test]
async fn cancel_requests_find_the_cluster_and_a_cluster_that_is_down_harms_no_other() {
    if only_kingpost() {
        return;
    }
    let world = World::start().await;
    let (_shop_logs, _billing_logs) = (ShowLogs(world.shop.dir()), ShowLogs(world.billing.dir()));
    for (cluster, database, primary) in
        [("shop", "shop", world.shop.primary()), ("billing", "bills", world.billing.primary())]
    {
        let client = world.connect("ann", cluster, database).await;
        let token = client.cancel_token();
        let holder = primary.admin().await;
        holder.batch_execute("SELECT pg_advisory_lock(4711)").await.unwrap();
        let holder_of_database = primary.endpoint();
        let mut config = primary.admin_config();
        config.dbname(SAME);
        let other = holder_of_database.connect_as(&config).await;
        other.batch_execute("SELECT pg_advisory_lock(4711)").await.unwrap();
        let cancel = async {
            let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%4711%' AND usename = 'ann'";
            primary.wait_value(waiting, "1").await;
            token.cancel_query(NoTls).await.unwrap();
        };
        let statement = client.simple_query("SELECT pg_advisory_xact_lock(4711)");
        let (outcome, ()) =
            within("the cancelled statement", SOON, world.shop.dir(), futures_util::future::join(statement, cancel))
                .await;
        assert_eq!(sqlstate(&outcome.unwrap_err()), "57014", "{cluster}");
        assert_eq!(value(&client, "SELECT 7").await, "7");
    }
    // No server of billing answers any more.
    let (shop, bills) = (world.connect("ann", "shop", "shop").await, world.connect("ann", "billing", "bills").await);
    assert_eq!(value(&bills, "SELECT 7").await, "7");
    for node in world.billing.nodes() {
        node.kill9().await;
    }
    world
        .shop
        .wait("the proxy to know that billing is down", async || {
            (world.kingpost.metrics().await.sum("kingpost_topology_primary_known", &[("cluster", "billing")]) < 0.5)
                .then_some(())
        })
        .await;
    let waits = bills.simple_query("INSERT INTO t VALUES ('x', 1, true)");
    let serves = async {
        for n in 0..50 {
            shop.batch_execute(&format!("INSERT INTO t VALUES ({}, 'more')", 100 + n)).await.unwrap();
            let new = world.connect("ben", "shop", "shop").await;
            assert_eq!(value(&new, "SELECT count(*) >= 2 FROM t").await, "t");
        }
    };
    let (refused, ()) = within(
        "shop's statements beside a cluster that is down",
        SOON,
        world.shop.dir(),
        futures_util::future::join(waits, serves),
    )
    .await;
    assert!(refused.is_err(), "a statement of a cluster that is down");
    assert_eq!(world.shop.primary().query_in(SAME, "SELECT count(*) FROM t").await, "52");
    assert_eq!(world.kingpost.http("/readyz").await.unwrap().0, 200);
    // It is served again once it is back.
    for node in world.billing.nodes() {
        node.start().await;
    }
    world.wait_primary("billing").await;
    let bills = world.connect("ann", "billing", "bills").await;
    bills.batch_execute("INSERT INTO t VALUES ('y', 1, true)").await.unwrap();
}

/// Returns the rows of a `SHOW` as maps from column to value.
async fn show(console: &Client, what: &str) -> Vec<std::collections::BTreeMap<String, String>> {
    let messages = console.simple_query(&format!("SHOW {what}")).await.unwrap();
    let row = |message: &tokio_postgres::SimpleQueryMessage| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => {
            let names = row.columns().iter().map(|column| column.name().to_owned());
            Some(names.enumerate().map(|(at, name)| (name, row.get(at).unwrap_or("").to_owned())).collect())
        }
        _ => None,
    };
    messages.iter().filter_map(row).collect()
}

#[tokio::test]
async fn the_console_shows_all_clusters_or_one_and_acts_on_them() {
    if only_kingpost() {
        return;
    }
    let world = World::start().await;
    let _logs = ShowLogs(world.shop.dir());
    let (whole, billing) = (world.console("kingpost").await, world.console("kingpost.billing").await);
    let clusters = |rows: &[std::collections::BTreeMap<String, String>], key: &str| {
        let mut found: Vec<(String, String)> =
            rows.iter().map(|row| (row.get("cluster").cloned().unwrap_or_default(), row[key].clone())).collect();
        found.sort();
        found.dedup();
        found
    };
    let pair = |cluster: &str, name: &str| (cluster.to_owned(), name.to_owned());
    assert_eq!(
        clusters(&show(&whole, "DATABASES").await, "name"),
        [pair("billing", "bills"), pair("billing", SAME), pair("shop", SAME), pair("shop", "shop")]
    );
    assert_eq!(clusters(&show(&billing, "DATABASES").await, "name"), [pair("", "bills"), pair("", SAME)]);
    let nodes = show(&whole, "NODES").await;
    assert_eq!(nodes.len(), 4, "{nodes:?}");
    assert_eq!(nodes.iter().filter(|row| row["cluster"] == "billing").count(), 2);
    // Client numbers are unique over all clusters, and a client is closed by its number.
    let (shop_client, bills_client) =
        (world.connect("ann", "shop", "shop").await, world.connect("ben", "billing", "bills").await);
    assert_eq!(value(&bills_client, "SELECT 7").await, "7");
    let clients = show(&whole, "CLIENTS").await;
    let ids: std::collections::HashSet<&String> = clients.iter().map(|row| &row["id"]).collect();
    assert_eq!(ids.len(), clients.len());
    let victim = clients.iter().find(|row| row["cluster"] == "billing" && row["user"] == "ben").expect("ben's client");
    whole.batch_execute(&format!("KILL_CLIENT {}", victim["id"])).await.unwrap();
    assert!(bills_client.simple_query("SELECT 7").await.is_err());
    assert_eq!(value(&shop_client, "SELECT 7").await, "7");
    // A pause of one cluster lets the other one's clients go on, as a failover of one cluster needs.
    let bills_client = world.connect("ben", "billing", "bills").await;
    assert_eq!(value(&bills_client, "SELECT 7").await, "7");
    billing.batch_execute("PAUSE FOR 60s").await.unwrap();
    let waits = bills_client.simple_query("SELECT 7");
    let goes_on = async {
        for _ in 0..20 {
            assert_eq!(value(&shop_client, "SELECT 7").await, "7");
        }
        let state = show(&whole, "STATE").await;
        let paused = |cluster: &str| {
            state.iter().find(|row| row["cluster"] == cluster && row["key"] == "paused").map(|row| row["value"].clone())
        };
        assert_eq!((paused("shop"), paused("billing")), (Some("no".into()), Some("yes".into())));
        billing.batch_execute("RESUME").await.unwrap();
    };
    let (waited, ()) =
        within("a statement after a pause", SOON, world.shop.dir(), futures_util::future::join(waits, goes_on)).await;
    waited.unwrap();
    // By the name of a database of any cluster; and all clusters.
    whole.batch_execute("PAUSE bills").await.unwrap();
    assert_eq!(value(&shop_client, "SELECT 7").await, "7");
    whole.batch_execute("RESUME bills").await.unwrap();
    assert_eq!(value(&bills_client, "SELECT 7").await, "7");
    assert_eq!(sqlstate(&whole.batch_execute("PAUSE nowhere").await.unwrap_err()), "3D000");
    whole.batch_execute("PAUSE").await.unwrap();
    let state = show(&whole, "STATE").await;
    assert_eq!(state.iter().filter(|row| row["key"] == "paused" && row["value"] == "yes").count(), 2);
    whole.batch_execute("RESUME").await.unwrap();
    assert_eq!(value(&shop_client, "SELECT 7").await, "7");
    assert_eq!(value(&bills_client, "SELECT 7").await, "7");
    // An application's user cannot log in to any console, whichever name it uses.
    for database in ["kingpost", "kingpost.billing", "kingpost.shop"] {
        let refused = world.kingpost.endpoint().try_connect(&world.config("ann", "ann-billing", database)).await;
        assert_eq!(sqlstate(&refused.unwrap_err()), "28P01", "{database}");
    }
    // Metrics are labelled by cluster.
    let metrics = world.kingpost.metrics().await;
    assert!(metrics.sum("kingpost_clients_handed_over_total", &[("cluster", "shop")]) >= 3.0);
    assert!(metrics.sum("kingpost_statements_primary_total", &[("cluster", "billing")]) >= 0.0);
    assert_eq!(simple(&whole, "SHOW VERSION").await.len(), 1);
}

#[tokio::test]
async fn a_reload_adds_a_cluster_and_takes_one_away() {
    if only_kingpost() {
        return;
    }
    let (shop, billing) = futures_util::future::join(named("shop").start(), named("billing").start()).await;
    let (_shop_logs, _billing_logs) = (ShowLogs(shop.dir()), ShowLogs(billing.dir()));
    let database = |name: &str, cluster: Option<&str>| {
        let mut table = text(&[("name", name), ("dbname", "postgres")]);
        if let Some(cluster) = cluster {
            table.insert("cluster".into(), cluster.into());
        }
        Value::Table(table)
    };
    let kingpost =
        Kingpost::of(&shop).set("cluster.name", "shop").set("proxy.databases", vec![database("s", None)]).start().await;
    let config = |database: &str| {
        let mut config = kingpost.endpoint().config();
        config.dbname(database);
        config
    };
    let stays = kingpost.endpoint().connect_as(&config("s")).await;
    let (of_shop, of_billing) = (system(&shop).await, system(&billing).await);
    assert_eq!(value(&stays, SYSTEM).await, of_shop);
    assert_eq!(sqlstate(&kingpost.endpoint().try_connect(&config("b")).await.unwrap_err()), "3D000");
    kingpost.reload("proxy.databases", vec![database("s", None), database("b", Some("billing"))]);
    // The list names a cluster that does not exist: refused as a whole.
    kingpost.reload("clusters", vec![Value::Table(further("billing", &billing, None))]);
    let of_b = shop
        .wait("the new cluster to be served", async || kingpost.endpoint().try_connect(&config("b")).await.ok())
        .await;
    assert_eq!(value(&of_b, SYSTEM).await, of_billing);
    assert_eq!(value(&stays, SYSTEM).await, of_shop);
    // A removed cluster: its clients end, and the other one's do not notice.
    kingpost.reload("clusters", Vec::<Value>::new());
    kingpost.reload("proxy.databases", vec![database("s", None)]);
    shop.wait("the cluster's clients to end", async || of_b.is_closed().then_some(())).await;
    assert_eq!(sqlstate(&kingpost.endpoint().try_connect(&config("b")).await.unwrap_err()), "3D000");
    assert_eq!(value(&stays, SYSTEM).await, of_shop);
    billing
        .primary()
        .wait_value("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'kingpost%'", "0")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switchover_of_one_cluster_pauses_that_cluster_alone() {
    if only_kingpost() {
        return;
    }
    let (shop, billing) =
        futures_util::future::join(named("shop").start(), crate::fleet::Fleet::builder().acknowledgements(1).start())
            .await;
    let (_shop_logs, _billing_logs) = (ShowLogs(shop.dir()), ShowLogs(billing.cluster.dir()));
    let database =
        |name: &str, cluster: &str| Value::Table(text(&[("name", name), ("dbname", DATABASE), ("cluster", cluster)]));
    let kingpost = Kingpost::of(&shop)
        .set("cluster.name", "shop")
        .add("clusters", further("billing", &billing.cluster, None))
        .set("proxy.databases", vec![database("s", "shop"), database("b", "billing")])
        .start()
        .await;
    let config = |database: &str| {
        let mut config = kingpost.endpoint().config();
        config.dbname(database);
        config
    };
    let (of_shop, of_billing) =
        (kingpost.endpoint().connect_as(&config("s")).await, kingpost.endpoint().connect_as(&config("b")).await);
    for client in [&of_shop, &of_billing] {
        client.batch_execute("CREATE TABLE IF NOT EXISTS counted (n int)").await.unwrap();
    }
    let mut proxy = text(&[("name", "proxy"), ("cluster", "billing")]);
    proxy.insert("address".into(), format!("127.0.0.1:{}", kingpost.port()).into());
    let failover = billing.failover().set("failover.proxies", vec![Value::Table(proxy)]);
    let ended = AtomicBool::new(false);
    let switch = async {
        let said = failover.succeed(&["switchover", "--to", "n1"]).await;
        ended.store(true, Ordering::Release);
        said
    };
    let writes = |client: Client| {
        let ended = &ended;
        async move {
            let mut n = 0;
            // And a few more when it is over.
            let mut left = 10;
            while left > 0 {
                client.batch_execute(&format!("INSERT INTO counted VALUES ({n})")).await.unwrap();
                n += 1;
                left -= usize::from(ended.load(Ordering::Acquire));
            }
            n
        }
    };
    let all = futures_util::future::join3(switch, writes(of_shop), writes(of_billing));
    let (said, shops, billings) = within("a switchover", 3 * SOON, billing.cluster.dir(), all).await;
    let count = async |node: &kingpost_tests::Node| node.query_in(DATABASE, "SELECT count(*) FROM counted").await;
    assert_eq!(count(shop.primary()).await, shops.to_string(), "{said}");
    assert_eq!(count(&billing.cluster.nodes()[1]).await, billings.to_string(), "{said}");
    let timeline = "SELECT timeline_id FROM pg_control_checkpoint()";
    assert_eq!(shop.primary().query(timeline).await, "1");
    assert_eq!(billing.cluster.nodes()[1].query("SELECT pg_is_in_recovery()").await, "f");
}

#[tokio::test]
async fn what_leads_nowhere_is_an_error_with_its_place() {
    if only_kingpost() {
        return;
    }
    let dir = kingpost_tests::new_dir("checked");
    let node = |name: &str| format!("[[{name}.nodes]]\nname = \"n\"\naddress = \"127.0.0.1:5432\"\n");
    let proxy = "[proxy]\nauth = \"trust\"\n";
    let good =
        format!("{proxy}[cluster]\nname = \"a\"\n{}[[clusters]]\nname = \"b\"\n{}", node("cluster"), node("clusters"));
    let database = "[[proxy.databases]]\nname = \"x\"\ncluster = ";
    for (text, expected) in [
        (format!("{good}{database}\"b\"\n"), "good, 2 clusters: a (1 node), b (1 node)"),
        (good.clone(), "clusters[0]: nothing leads to the cluster"),
        (
            format!("{good}{database}\"c\"\n"),
            "proxy.databases[0].cluster: found \"c\", expected the name of a cluster: \"a\" or \"b\"",
        ),
        (
            format!("{good}{database}\"b\"\n[[clusters]]\nname = \"b\"\n{}", node("clusters")),
            "clusters[1].name: found \"b\", which clusters[0] has already",
        ),
        (
            format!("{proxy}{database}\"b\"\n[[clusters]]\nname = \"b\"\n"),
            "clusters[0].nodes: found no node, expected at least one [[clusters.nodes]]",
        ),
        (
            good.replace("name = \"b\"\n", "name = \"b\"\nserver_names = [\"10.0.0.1\"]\n") + database + "\"b\"\n",
            "clusters[0].server_names[0]: found \"10.0.0.1\", expected a host name",
        ),
    ] {
        let file = dir.join(format!("{}.toml", kingpost_tests::unique()));
        std::fs::write(&file, &text).unwrap();
        let output = Kingpost::run(&["check", "--config", file.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(expected), "{expected}\nin\n{said}\nof\n{text}");
    }
}
