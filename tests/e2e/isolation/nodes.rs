//! Nodes with other session settings than the primary's: on any node, a statement runs under the settings reported to its client.

use kingpost_tests::oracle::Talk;
use kingpost_tests::raw::{Raw, bind, describe, execute, parse, sync};
use kingpost_tests::{
    Cluster, DATABASE, Kingpost, KingpostBuilder, Node, SOON, ShowLogs, Subject, USER, subject, wait_until,
};
use tokio_postgres::Client;

use crate::common::{only_kingpost, simple, value};
use crate::console::{console, rows};
use crate::isolation::{OTHER_DATABASE, OTHER_USER, REPLICA, World, people};

/// Settings of the replica only.
const OWN: [(&str, &str); 8] = [
    ("timezone", "Asia/Tokyo"),
    ("datestyle", "sql, dmy"),
    ("statement_timeout", "1ms"),
    ("extra_float_digits", "-10"),
    ("search_path", "elsewhere"),
    ("default_text_search_config", "pg_catalog.german"),
    ("bytea_output", "escape"),
    ("intervalstyle", "sql_standard"),
];

/// Reads whose results those settings change, or that they cancel.
const READS: [&str; 9] = [
    "select extract(month from '01/02/2020'::date), date_trunc('day','2020-06-01 23:30+00'::timestamptz)='2020-06-01 00:00+00'",
    "select '2020-06-01 23:30+00'::timestamptz, '2020-03-04'::date",
    "select count(*) from generate_series(1, 300000)",
    "select 0.1::float8 + 0.2::float8",
    "select who from things",
    "select to_tsvector('the cats were running')",
    "select 'a\\000b'::bytea",
    "select '1 year 2 months 3 days 4 hours'::interval",
    "select current_setting('transaction_isolation')",
];

/// Changes settings of one node, as an administrator does.
async fn configure(node: &Node, settings: &[(&str, &str)]) {
    for (name, value) in settings {
        let list = if *name == "datestyle" { (*value).to_owned() } else { format!("'{value}'") };
        node.execute(&format!("ALTER SYSTEM SET {name} = {list}")).await;
    }
    node.execute("SELECT pg_reload_conf()").await;
    // Not from pg_settings: that takes longer than a short statement_timeout.
    let Some((name, value)) = settings.first() else { return };
    node.wait_value(&format!("SHOW {name}"), value).await;
}

/// Starts a primary and a replica that keeps up, with two databases and two users. The contents of `things` depend on the schema.
async fn cluster() -> Cluster {
    let cluster = Cluster::builder().replicas(1).start().await;
    people(&cluster).await;
    for database in [DATABASE, OTHER_DATABASE] {
        let sql = "CREATE TABLE public.things AS SELECT 'public' AS who; CREATE SCHEMA elsewhere;
                   CREATE TABLE elsewhere.things AS SELECT 'elsewhere' AS who;
                   GRANT USAGE ON SCHEMA elsewhere TO PUBLIC; GRANT SELECT ON public.things, elsewhere.things TO PUBLIC";
        cluster.primary().execute_in(database, sql).await;
    }
    // The same on both nodes, and different from the files.
    for sql in ["ALTER ROLE bob SET timezone = 'America/Lima'", "ALTER DATABASE shop SET datestyle = 'german'"] {
        cluster.primary().execute(sql).await;
    }
    cluster.wait_caught_up().await;
    cluster
}

/// Sends all reads, by each way in which a client can.
async fn reads(talk: &mut Talk) {
    for (user, database) in
        [(USER, DATABASE), (OTHER_USER, DATABASE), (USER, OTHER_DATABASE), (OTHER_USER, OTHER_DATABASE)]
    {
        let who = talk.login(user, database).await;
        for text in READS {
            talk.query(who, text).await;
            talk.say(who, &[parse("", text), bind("", "", &[]), describe(b'P', ""), execute("", 0), sync()]).await;
        }
        for (n, text) in READS.iter().enumerate() {
            talk.say(who, &[parse(&format!("s{n}"), text), describe(b'S', &format!("s{n}")), sync()]).await;
        }
        for _ in 0..2 {
            for n in 0..READS.len() {
                talk.say(who, &[bind("", &format!("s{n}"), &[]), execute("", 0), sync()]).await;
            }
        }
        talk.logout(who).await;
    }
}

/// Returns the number of statements that the proxy has sent to the replica.
async fn on_replica(kingpost: &Kingpost) -> f64 {
    kingpost.metrics().await.sum("kingpost_statements_replica_total", &[])
}

/// Returns from the replica's row in SHOW NODES the settings that differ, and those that are used.
async fn shown(kingpost: &Kingpost) -> (String, String) {
    let rows = rows(&console(kingpost).await, "SHOW NODES").await;
    let replica = rows.iter().find(|row| row["role"] == "replica").expect("the replica");
    (replica["settings_differ"].clone(), replica["settings_used"].clone())
}

/// Returns a proxy with two server connections for each database and user.
fn proxy(cluster: &Cluster) -> KingpostBuilder<'_> {
    Kingpost::of(cluster).set("proxy.pool.size", 2)
}

/// Without this, `extract(month from '01/02/2020'::date)` was 1 or 2, and a time limit ended a statement or not, depending on the node of a read.
#[tokio::test]
async fn reads_run_under_what_the_login_was_told() {
    let cluster = cluster().await;
    let _logs = ShowLogs(cluster.dir());
    configure(cluster.replica(0), &OWN).await;
    let mut direct = Talk::new(cluster.primary().port());
    reads(&mut direct).await;
    assert_eq!(direct.errors(), [""; 0]);
    let mut wrong = Vec::new();
    for (set, value, replica) in [
        ("proxy.workers", toml::Value::from(1), true),
        ("proxy.workers", 3.into(), true),
        ("proxy.pool.unnamed", "shared".into(), true),
        ("proxy.pool.lane_width", 1.into(), true),
        ("proxy.pool.mode", "statement".into(), true),
        ("proxy.pool.mode", "session".into(), false),
    ] {
        let kingpost = proxy(&cluster).set(set, value.clone()).start().await;
        let mut proxied = Talk::new(kingpost.port());
        reads(&mut proxied).await;
        if let Some(difference) = direct.first_difference(&proxied) {
            wrong.push(format!("{set} = {value}: not as the primary\n{difference}"));
        }
        if subject() == Subject::Kingpost && wrong.is_empty() {
            assert_eq!(on_replica(&kingpost).await > 0.0, replica, "{set} = {value}: where reads go");
            if replica {
                let mut names: Vec<&str> = OWN.iter().map(|(name, _)| *name).collect();
                names.sort_unstable();
                assert_eq!(shown(&kingpost).await, (names.join(", "), "primary".to_owned()));
                let metrics = kingpost.metrics().await;
                assert_eq!(metrics.sum("kingpost_node_settings_differ", &[("node", "n1")]), OWN.len() as f64);
                assert_eq!(metrics.sum("kingpost_node_settings_differ", &[("node", "n0")]), 0.0);
                assert!(metrics.sum("kingpost_settings_brought_over_total", &[]) > 0.0);
                let log = std::fs::read_to_string(kingpost.process().log()).unwrap();
                let said = log.lines().filter(|line| line.contains("session settings are others than the primary's"));
                // The role's time zone and the database's date style are the same on both nodes.
                assert!((1..=4).contains(&said.count()), "{log}");
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// RESET and similar statements restore the values reported at login, also on the replica.
#[tokio::test]
async fn resets_come_back_to_what_the_login_was_told() {
    let world = World { cluster: cluster().await };
    let _logs = ShowLogs(world.cluster.dir());
    configure(world.cluster.replica(0), &OWN[..2]).await;
    world
        .as_postgres(&[REPLICA], async |talk| {
            for user in [USER, OTHER_USER] {
                let who = talk.login(user, DATABASE).await;
                for reset in ["SET timezone TO DEFAULT", "RESET timezone", "RESET ALL", "SET LOCAL timezone TO DEFAULT"]
                {
                    for text in [
                        "BEGIN READ ONLY",
                        READS[0],
                        "SET timezone = 'America/New_York'",
                        READS[1],
                        reset,
                        READS[1],
                        "SHOW timezone",
                        "COMMIT",
                        READS[1],
                    ] {
                        talk.query(who, text).await;
                    }
                    talk.query(who, "/* kingpost.route=replica */ RESET ALL").await;
                    talk.query(who, READS[1]).await;
                    talk.query(who, "/* kingpost.route=replica */ DISCARD ALL").await;
                    talk.query(who, READS[1]).await;
                }
                talk.logout(who).await;
            }
        })
        .await;
}

/// A reload on the replica alone changes nothing for clients; one on the primary changes all nodes' sessions.
#[tokio::test]
async fn configurations_that_are_read_again() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = proxy(&cluster).start().await;
    let clients = [connect(&kingpost, USER).await, connect(&kingpost, OTHER_USER).await];
    let reads = async |client: &Client| {
        let mut all = Vec::new();
        for text in READS {
            all.push(simple(client, text).await);
        }
        all
    };
    let direct = async |user: &str| reads(&connect_to(cluster.primary(), user).await).await;
    let before = [direct(USER).await, direct(OTHER_USER).await];
    for (client, before) in clients.iter().zip(&before) {
        assert_eq!(reads(client).await, *before);
    }
    assert_eq!(shown(&kingpost).await, (String::new(), String::new()));

    configure(cluster.replica(0), &OWN).await;
    // At once, and again when the proxy has noticed the reload.
    for (client, before) in clients.iter().zip(&before) {
        assert_eq!(reads(client).await, *before);
    }
    wait_until("the differences to be shown", SOON, cluster.dir(), async || {
        (shown(&kingpost).await.1 == "primary").then_some(())
    })
    .await;
    for (client, before) in clients.iter().zip(&before) {
        assert_eq!(reads(client).await, *before);
    }
    let new = connect(&kingpost, OTHER_USER).await;
    assert_eq!(reads(&new).await, before[1]);

    // The primary's settings apply to both nodes.
    configure(cluster.primary(), &[("extra_float_digits", "-3"), ("intervalstyle", "iso_8601")]).await;
    let after = [direct(USER).await, direct(OTHER_USER).await];
    assert_ne!(before, after);
    for (client, after) in clients.iter().zip(&after) {
        let what = "the primary's new settings on all nodes";
        cluster.wait(what, async || (reads(client).await == *after).then_some(())).await;
        assert!(on_replica(&kingpost).await > 0.0);
    }
    let told = told(&kingpost, USER).await;
    assert!(told.contains(&("IntervalStyle".into(), "iso_8601".into())), "{told:?}");

    // ALTER ROLE … SET takes effect with RECONNECT. (A standby allows no serializable transaction: then the primary answers.)
    cluster.primary().execute("ALTER ROLE bob SET extra_float_digits = -5").await;
    cluster.primary().execute("ALTER ROLE bob SET default_transaction_isolation = serializable").await;
    cluster.wait_caught_up().await;
    console(&kingpost).await.simple_query("RECONNECT").await.unwrap();
    let after = direct(OTHER_USER).await;
    cluster.wait("the role's new setting", async || (reads(&clients[1]).await == after).then_some(())).await;
}

async fn connect(kingpost: &Kingpost, user: &str) -> Client {
    let mut config = kingpost.endpoint().config();
    kingpost.endpoint().connect_as(config.user(user)).await
}

async fn connect_to(node: &Node, user: &str) -> Client {
    let mut config = node.endpoint().config();
    node.endpoint().connect_as(config.user(user)).await
}

/// The parameters that a login is told.
async fn told(kingpost: &Kingpost, user: &str) -> Vec<(String, String)> {
    let (_raw, greeting) = Raw::greeted(kingpost.port(), user, DATABASE, &[]).await;
    let status = greeting.iter().filter(|message| message.kind == b'S');
    let pair = |body: &[u8]| {
        let mut parts = body.split(|&byte| byte == 0).map(|part| String::from_utf8_lossy(part).into_owned());
        (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
    };
    status.map(|message| pair(&message.body)).collect()
}

/// A value that the replica cannot have, because it has not replayed the role yet: the replica gets no reads until then.
#[tokio::test]
async fn a_replica_that_refuses_a_setting_gets_no_reads() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = proxy(&cluster).set("cluster.lag_limit", "1h").start().await;
    cluster.replica(0).pause_replay().await;
    cluster.primary().execute("CREATE ROLE newcomer ROLE bob").await;
    cluster.primary().execute("ALTER ROLE bob SET role = newcomer").await;
    let asks = "/* kingpost.route=replica */ SELECT concat(current_user, ' ', pg_is_in_recovery())";
    let (other, bob) = (connect(&kingpost, USER).await, connect(&kingpost, OTHER_USER).await);
    assert_eq!(value(&other, asks).await, format!("{USER} t"));
    for _ in 0..3 {
        assert_eq!(value(&bob, asks).await, "newcomer f");
    }
    assert_eq!(shown(&kingpost).await, ("role".to_owned(), "refused".to_owned()));
    assert!(kingpost.metrics().await.sum("kingpost_settings_refused_total", &[]) > 0.0);
    assert_eq!(kingpost.metrics().await.sum("kingpost_node_settings_refused", &[("node", "n1")]), 1.0);
    cluster.replica(0).resume_replay().await;
    cluster.wait("reads on the replica", async || (value(&bob, asks).await == "newcomer t").then_some(())).await;
}

/// After a failover clients keep the reported settings, although the new primary has others; RECONNECT takes the new primary's.
#[tokio::test]
async fn a_new_primary_with_other_settings() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster().await;
    let _logs = ShowLogs(cluster.dir());
    configure(cluster.replica(0), &OWN[..2]).await;
    let kingpost = proxy(&cluster).start().await;
    let clients = [connect(&kingpost, USER).await, connect(&kingpost, OTHER_USER).await];
    let mut before = Vec::new();
    for client in &clients {
        value(client, "/* kingpost.route=primary */ SELECT 1").await;
        before.push([simple(client, READS[0]).await, simple(client, READS[1]).await]);
    }
    let told_before = told(&kingpost, USER).await;
    cluster.primary().kill9().await;
    cluster.replica(0).promote().await;
    for (client, before) in clients.iter().zip(&before) {
        let what = "the new primary";
        let on_primary = async || {
            let asked = client.simple_query("/* kingpost.route=primary */ SELECT pg_is_in_recovery()").await;
            asked.is_ok().then_some(())
        };
        cluster.wait(what, on_primary).await;
        for route in ["", "/* kingpost.route=primary */ "] {
            for n in [0, 1] {
                assert_eq!(simple(client, &format!("{route}{}", READS[n])).await, before[n]);
            }
        }
    }
    let zone = |told: &[(String, String)]| told.iter().find(|(name, _)| name == "TimeZone").cloned();
    assert_eq!(zone(&told(&kingpost, USER).await), zone(&told_before));
    console(&kingpost).await.simple_query("RECONNECT").await.unwrap();
    let own = connect_to(cluster.replica(0), USER).await;
    let own = [simple(&own, READS[0]).await, simple(&own, READS[1]).await];
    assert_ne!(own, before[0]);
    cluster
        .wait("the new primary's own settings", async || {
            let now = [simple(&clients[0], READS[0]).await, simple(&clients[0], READS[1]).await];
            (now == own).then_some(())
        })
        .await;
    assert_eq!(zone(&told(&kingpost, USER).await).map(|(_, zone)| zone).as_deref(), Some("Asia/Tokyo"));
}

/// A proxy that finds only a replica takes its settings; clients with these settings do not continue under the primary's.
#[tokio::test]
async fn a_primary_that_comes_later() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster().await;
    let _logs = ShowLogs(cluster.dir());
    configure(cluster.replica(0), &OWN[..2]).await;
    let kingpost = proxy(&cluster).start().await;
    cluster.primary().stop().await;
    let is_known = async || kingpost.metrics().await.sum("kingpost_topology_primary_known", &[]);
    cluster.wait("no primary", async || (is_known().await == 0.0).then_some(())).await;
    let early = connect(&kingpost, USER).await;
    assert_eq!(simple(&early, READS[0]).await, [["2", "f"]], "as on the replica, and as the login was told");
    let zone = told(&kingpost, USER).await.into_iter().find(|(name, _)| name == "TimeZone");
    assert_eq!(zone.map(|(_, zone)| zone).as_deref(), Some("Asia/Tokyo"));
    cluster.primary().start().await;
    cluster
        .wait("the client to be closed, or to be asked to connect again", async || {
            match early.simple_query(READS[0]).await {
                Ok(_) => None,
                Err(_) => Some(()),
            }
        })
        .await;
    let late = connect(&kingpost, USER).await;
    cluster.wait("a primary", async || late.simple_query("SELECT 1 FOR UPDATE").await.is_ok().then_some(())).await;
    for _ in 0..4 {
        assert_eq!(simple(&connect(&kingpost, USER).await, READS[0]).await, [["1", "t"]]);
    }
}

/// A server restarted with another configuration: new clients get the new values, although the pool still has earlier clients.
#[tokio::test]
async fn a_server_that_was_started_again_otherwise() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    people(&cluster).await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = proxy(&cluster).start().await;
    let kept = [connect(&kingpost, USER).await, connect(&kingpost, OTHER_USER).await];
    let console = console(&kingpost).await;
    let node = cluster.primary();
    let primary_known = async || {
        let metrics = kingpost.metrics().await;
        (metrics.sum("kingpost_topology_primary_known", &[]) == 1.0).then_some(())
    };
    for (begin, end, zone) in [
        ("PAUSE", "RESUME", "Asia/Tokyo"),
        ("RECONNECT", "", "America/Lima"),
        ("", "", "Europe/Paris"),
        ("KILL", "RESUME", "Asia/Kabul"),
    ] {
        for client in &kept {
            if begin != "KILL" {
                assert_eq!(value(client, "SELECT 1").await, "1");
            }
        }
        let told_before = told(&kingpost, USER).await;
        if begin == "PAUSE" || begin == "KILL" {
            console.simple_query(begin).await.unwrap();
        }
        node.execute(&format!("ALTER SYSTEM SET timezone = '{zone}'")).await;
        node.stop().await;
        node.start().await;
        if begin == "RECONNECT" {
            console.simple_query(begin).await.unwrap();
        }
        cluster.wait("the primary", primary_known).await;
        if !end.is_empty() {
            console.simple_query(end).await.unwrap();
        }
        for user in [USER, OTHER_USER] {
            let now = told(&kingpost, user).await;
            let of = |told: &[(String, String)]| {
                told.iter().find(|(name, _)| name == "TimeZone").map(|(_, zone)| zone.clone())
            };
            assert_ne!(of(&told_before), of(&now), "{begin}");
            assert_eq!(of(&now).as_deref(), Some(zone), "{begin}");
        }
    }
}
