//! Console commands for users of PgBouncer: SUSPEND, DISABLE, SET, and the tables about internals.

use kingpost_tests::{Cluster, DATABASE, Kingpost, ShowLogs, USER, database, sqlstate, within};

use crate::common::{only_kingpost, value};
use crate::console::{console, rows};
use crate::governed::{config, connect};

#[tokio::test]
async fn suspend_delivers_what_is_under_way_and_holds_the_rest_until_resume() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).set("proxy.workers", 2).start().await;
    let console = console(&kingpost).await;
    let (busy, open, quiet) = (kingpost.connect().await, kingpost.connect().await, kingpost.connect().await);
    open.batch_execute("CREATE TEMP TABLE mine (n int); BEGIN; INSERT INTO mine VALUES (1)").await.unwrap();
    assert_eq!(value(&quiet, "SELECT 1").await, "1");
    let gate = cluster.primary().endpoint().connect().await;
    gate.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
    let before = cluster
        .primary()
        .query(
            "SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity WHERE application_name = 'kingpost'",
        )
        .await;
    // A statement is under way while SUSPEND comes: SUSPEND waits for its answer, and the client gets it.
    let running = busy.simple_query("DO $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); END $$");
    let suspend = async {
        cluster
            .wait("the statement waits", async || {
                let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
                (cluster.primary().query(sql).await == "1").then_some(())
            })
            .await;
        let suspended = console.simple_query("SUSPEND");
        let release = async {
            let second = crate::console::console(&kingpost).await;
            cluster
                .wait("suspended", async || {
                    let state = rows(&second, "SHOW STATE").await;
                    state.iter().any(|row| row["key"] == "suspended" && row["value"] == "yes").then_some(())
                })
                .await;
            gate.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
        };
        let (suspended, ()) = futures_util::future::join(suspended, release).await;
        suspended.expect("SUSPEND");
    };
    let (answer, ()) = futures_util::future::join(running, suspend).await;
    answer.expect("the statement that was under way");
    // Nothing runs now: neither statements of clients without a server connection, nor inside a transaction, nor of new clients.
    let late = kingpost.connect().await;
    // Not this test's own queries: the backend of the last one may still be there.
    let count = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%while suspended%' AND query NOT LIKE '%pg_stat_activity%'";
    let held = futures_util::future::join3(
        quiet.simple_query("SELECT 'while suspended'"),
        open.simple_query("INSERT INTO mine SELECT 2 /* while suspended */"),
        late.simple_query("SELECT 'while suspended'"),
    );
    let resume = async {
        // For as long as a statement of the console takes, repeatedly.
        for _ in 0..20 {
            assert_eq!(cluster.primary().query(count).await, "0");
            let state = rows(&console, "SHOW STATE").await;
            assert!(state.iter().any(|row| row["key"] == "active" && row["value"] == "no"), "{state:?}");
        }
        console.simple_query("RESUME").await.expect("RESUME");
    };
    let ((first, second, third), ()) = within("answers", kingpost_tests::SOON, cluster.dir(), async {
        futures_util::future::join(held, resume).await
    })
    .await;
    first.expect("a client without a server connection");
    second.expect("a transaction goes on");
    third.expect("a client that came meanwhile");
    // Server connections were kept, with their session state.
    assert_eq!(value(&open, "SELECT count(*) FROM mine").await, "2");
    open.batch_execute("COMMIT").await.unwrap();
    let after = cluster
        .primary()
        .query(
            "SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity WHERE application_name = 'kingpost'",
        )
        .await;
    for pid in before.split(' ') {
        assert!(after.contains(pid), "{before} became {after}");
    }
}

#[tokio::test]
async fn a_disabled_database_lets_nobody_in_until_it_is_enabled() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster)
        .add("proxy.databases", database("one", "dbname", DATABASE))
        .add("proxy.databases", database("two", "dbname", DATABASE))
        .start()
        .await;
    let console = console(&kingpost).await;
    let inside = connect(&kingpost, USER, "", "one").await;
    console.simple_query("DISABLE one").await.expect("DISABLE");
    let refused = kingpost.endpoint().try_connect(&config(&kingpost, USER, "", "one")).await;
    let error = refused.err().unwrap_or_else(|| panic!("a refusal"));
    assert_eq!(sqlstate(&error), "57P03", "{error:?}");
    // Connected clients stay, and the other database is not affected.
    assert_eq!(value(&inside, "SELECT 1").await, "1");
    assert_eq!(value(&connect(&kingpost, USER, "", "two").await, "SELECT 2").await, "2");
    let databases = rows(&console, "SHOW DATABASES").await;
    let disabled = |name: &str| databases.iter().find(|row| row["name"] == name).expect(name)["disabled"].clone();
    assert_eq!((disabled("one"), disabled("two")), ("1".into(), "0".into()));
    // RESUME does not undo DISABLE.
    console.simple_query("RESUME").await.expect("RESUME");
    assert!(kingpost.endpoint().try_connect(&config(&kingpost, USER, "", "one")).await.is_err());
    console.simple_query("ENABLE one").await.expect("ENABLE");
    assert_eq!(value(&connect(&kingpost, USER, "", "one").await, "SELECT 3").await, "3");
    let unknown = console.simple_query("DISABLE nowhere").await.unwrap_err();
    assert_eq!(sqlstate(&unknown), "3D000");
}

#[tokio::test]
async fn set_changes_a_setting_until_the_file_is_read_again() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).set("proxy.query_timeout", "1h").start().await;
    let console = console(&kingpost).await;
    let setting = async |key: &str| {
        let config = rows(&console, "SHOW CONFIG").await;
        config.iter().find(|row| row["key"] == key).expect(key)["value"].clone()
    };
    assert_eq!(setting("query_timeout").await, "3600");
    console.simple_query("SET query_timeout = 0.2").await.expect("SET");
    console.simple_query("SET proxy.pool.size = '7'").await.expect("SET");
    assert_eq!((setting("query_timeout").await, setting("default_pool_size").await), ("0.2".into(), "7".into()));
    // It is in force.
    let error = kingpost.connect().await.simple_query("SELECT pg_sleep(600)").await.unwrap_err();
    assert_eq!(sqlstate(&error), "57014", "{error:?}");
    // A refusal gives the reason, and changes nothing.
    for (command, expected) in [
        ("SET nonsense = 1", "no setting is called"),
        ("SET proxy.listen = '127.0.0.1:1'", "can't be changed while"),
        ("SET proxy.pool.size = many", "proxy.pool.size"),
        ("SET proxy.users = '[]'", "RELOAD"),
    ] {
        let error = console.simple_query(command).await.unwrap_err();
        assert!(format!("{error:?}").contains(expected), "{command}: {error:?}");
    }
    assert_eq!(setting("default_pool_size").await, "7");
    console.simple_query("RELOAD").await.expect("RELOAD");
    assert_eq!(setting("query_timeout").await, "3600");
    assert_ne!(setting("default_pool_size").await, "7");
}

/// The columns of PgBouncer 1.26.1's tables: programs read them by name. (It has no `FDS` any more: those of 1.25.)
const COLUMNS: &[(&str, &str)] = &[
    (
        "CLIENTS",
        "type user database replication state addr port local_addr local_port connect_time request_time wait wait_us close_needed ptr link remote_pid tls application_name prepared_statements id",
    ),
    (
        "DATABASES",
        "name host port database force_user pool_size min_pool_size reserve_pool_size server_lifetime pool_mode load_balance_hosts max_connections current_connections max_client_connections current_client_connections paused disabled",
    ),
    ("DNS_HOSTS", "hostname ttl addrs"),
    ("DNS_ZONES", "zonename serial count"),
    ("FDS", "fd task user database addr port cancel link"),
    ("LISTS", "list items"),
    ("MEM", "name size used free memtotal"),
    ("PEERS", "peer_id host port pool_size"),
    ("PEER_POOLS", "peer_id cl_active_cancel_req cl_waiting_cancel_req sv_active_cancel sv_login"),
    (
        "POOLS",
        "database user cl_active cl_waiting cl_active_cancel_req cl_waiting_cancel_req sv_active sv_active_cancel sv_being_canceled sv_idle sv_used sv_tested sv_login maxwait maxwait_us pool_mode load_balance_hosts",
    ),
    (
        "SERVERS",
        "type user database replication state addr port local_addr local_port connect_time request_time wait wait_us close_needed ptr link remote_pid tls application_name prepared_statements id",
    ),
    (
        "SOCKETS",
        "type user database replication state addr port local_addr local_port connect_time request_time wait wait_us close_needed ptr link remote_pid tls application_name prepared_statements id recv_pos pkt_pos pkt_remain send_pos send_remain pkt_avail send_avail",
    ),
    (
        "STATS",
        "database total_server_assignment_count total_xact_count total_query_count total_received total_sent total_xact_time total_query_time total_wait_time total_client_parse_count total_server_parse_count total_bind_count total_client_login_count avg_server_assignment_count avg_xact_count avg_query_count avg_recv avg_sent avg_xact_time avg_query_time avg_wait_time avg_client_parse_count avg_server_parse_count avg_bind_count avg_client_login_count",
    ),
    (
        "STATS_AVERAGES",
        "database server_assignment_count xact_count query_count bytes_received bytes_sent xact_time query_time wait_time avg_client_parse_count avg_server_parse_count avg_bind_count avg_client_login_count",
    ),
    (
        "STATS_TOTALS",
        "database server_assignment_count xact_count query_count bytes_received bytes_sent xact_time query_time wait_time client_parse_count server_parse_count bind_count client_login_count",
    ),
    ("TOTALS", "name value"),
    (
        "USERS",
        "name pool_size reserve_pool_size pool_mode max_user_connections current_connections max_user_client_connections current_client_connections",
    ),
];

/// The first column of PgBouncer 1.26.1's tables that have a row for each count.
const ROWS: &[(&str, &str, &str)] = &[
    (
        "LISTS",
        "list",
        "databases users peers pools peer_pools free_clients used_clients login_clients free_servers used_servers dns_names dns_zones dns_queries dns_pending",
    ),
    (
        "TOTALS",
        "name",
        "total_server_assignment_count total_xact_count total_query_count total_client_bytes total_server_bytes total_xact_time total_query_time total_wait_time total_ps_client_parse_count total_ps_server_parse_count total_ps_bind_count total_client_login_count avg_server_assignment_count avg_xact_count avg_query_count avg_client_bytes avg_server_bytes avg_xact_time avg_query_time avg_wait_time avg_ps_client_parse_count avg_ps_server_parse_count avg_ps_bind_count avg_client_login_count",
    ),
];

#[tokio::test]
async fn the_tables_of_pgbouncers_console_have_its_columns() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).start().await;
    let console = console(&kingpost).await;
    let client = kingpost.connect().await;
    client.batch_execute("BEGIN; SELECT 1").await.unwrap();
    for (name, expected) in COLUMNS {
        let messages = console.simple_query(&format!("SHOW {name}")).await.unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let columns = messages.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::RowDescription(columns) => {
                Some(columns.iter().map(|column| column.name().to_owned()).collect::<Vec<_>>())
            }
            _ => None,
        });
        let columns = columns.unwrap_or_else(|| panic!("{name}: columns")).join(" ");
        assert!(columns.starts_with(expected), "SHOW {name}: {columns}");
    }
    for (name, column, expected) in ROWS {
        let found = rows(&console, &format!("SHOW {name}")).await;
        let found: Vec<&str> = found.iter().map(|row| &*row[*column]).collect();
        assert!(found.join(" ").starts_with(expected), "SHOW {name}: {found:?}");
    }
    // The client and its server connection, from both sides.
    let fds = rows(&console, "SHOW FDS").await;
    let of = |task: &str| fds.iter().find(|row| row["task"] == task && !row["link"].is_empty()).expect(task).clone();
    let (client_row, server_row) = (of("client"), of("server"));
    assert_eq!((&client_row["link"], &server_row["link"]), (&server_row["fd"], &client_row["fd"]));
    assert!(fds.iter().all(|row| row["cancel"].is_empty()), "a cancel key is a secret");
    let active = rows(&console, "SHOW ACTIVE_SOCKETS").await;
    assert!(
        active.iter().any(|row| row["type"] == "S") && active.iter().all(|row| row["state"] != "idle"),
        "{active:?}"
    );
    let memory = rows(&console, "SHOW MEM").await;
    let clients = memory.iter().find(|row| row["name"] == "client_cache").expect("clients");
    assert!(clients["used"].parse::<usize>().unwrap() >= 2, "{clients:?}");
}

#[tokio::test]
async fn prepared_statements_are_counted_as_pgbouncer_counts_them() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).set("proxy.pool.size", 1).set("proxy.workers", 1).start().await;
    let console = console(&kingpost).await;
    for _ in 0..2 {
        let client = kingpost.connect().await;
        let statement = client.prepare("SELECT $1::int4").await.unwrap();
        for n in 0..3 {
            assert_eq!(client.query_one(&statement, &[&n]).await.unwrap().get::<_, i32>(0), n);
        }
    }
    // Two clients prepare one text on one server connection, and each binds it three times.
    let stats = rows(&console, "SHOW STATS").await;
    let of = |name: &str| stats.iter().find(|row| row["database"] == DATABASE).expect("a row")[name].clone();
    let found = ["total_client_parse_count", "total_server_parse_count", "total_bind_count"].map(of);
    assert_eq!(found, ["2", "1", "6"].map(String::from));
}
