//! Settings of roles, databases and files that control sessions would inherit: probes, lookups and failovers are not affected by them.

use kingpost_tests::{Cluster, DATABASE, Kingpost, SCRAM_PASSWORD, SCRAM_USER, SOON, ShowLogs, sqlstate, within};

use crate::common::{only_kingpost, value};
use crate::fleet::Fleet;

/// Functions, tables and operators with false results for sessions that search this schema before `pg_catalog`.
const LIES: &str = "\
    CREATE SCHEMA lies;
    GRANT USAGE ON SCHEMA lies TO PUBLIC;
    CREATE FUNCTION lies.pg_is_in_recovery() RETURNS bool LANGUAGE sql AS 'SELECT NOT pg_catalog.pg_is_in_recovery()';
    CREATE FUNCTION lies.pg_current_wal_lsn() RETURNS pg_lsn LANGUAGE sql AS $$SELECT '0/1'::pg_lsn$$;
    CREATE FUNCTION lies.pg_last_wal_replay_lsn() RETURNS pg_lsn LANGUAGE sql AS $$SELECT 'FF/0'::pg_lsn$$;
    CREATE FUNCTION lies.pg_walfile_name(pg_lsn) RETURNS text LANGUAGE sql AS $$SELECT '000000FF'$$;
    CREATE FUNCTION lies.left(text, int) RETURNS text LANGUAGE sql AS $$SELECT '000000FF'$$;
    CREATE FUNCTION lies.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$SELECT '-infinity'::timestamptz$$;
    CREATE FUNCTION lies.now() RETURNS timestamptz LANGUAGE sql AS $$SELECT '-infinity'::timestamptz$$;
    CREATE FUNCTION lies.set_config(text, text, bool) RETURNS text LANGUAGE sql AS $$SELECT $2$$;
    CREATE FUNCTION lies.equals(name, name) RETURNS bool LANGUAGE sql AS 'SELECT true';
    CREATE OPERATOR lies.= (LEFTARG = name, RIGHTARG = name, FUNCTION = lies.equals);
    CREATE VIEW lies.pg_stat_wal_receiver AS SELECT 255 AS received_tli, 'stopped' AS status;
    CREATE VIEW lies.pg_replication_slots AS SELECT 'none' AS slot_name, '0/0'::pg_lsn AS restart_lsn;
    CREATE VIEW lies.pg_settings AS SELECT 'none' AS name, '' AS setting;
    CREATE VIEW lies.pg_file_settings AS SELECT 'none' AS name, '' AS setting, '' AS sourcefile, 1 AS seqno, ''::text AS error;
    CREATE TABLE lies.pg_authid (rolname name, rolvaliduntil timestamptz, rolpassword text, rolcanlogin bool);
    GRANT SELECT ON ALL TABLES IN SCHEMA lies TO PUBLIC;";

/// Settings that any role can have, and that break most sessions.
const UNKIND: &[(&str, &str)] = &[
    ("search_path", "lies, pg_catalog"),
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_read_only", "on"),
    ("default_transaction_deferrable", "on"),
    ("statement_timeout", "'1ms'"),
    ("lock_timeout", "'1ms'"),
    ("idle_session_timeout", "'300ms'"),
    ("datestyle", "'SQL, DMY'"),
    ("intervalstyle", "sql_standard"),
    ("extra_float_digits", "-15"),
    ("bytea_output", "escape"),
    ("standard_conforming_strings", "off"),
    ("transform_null_equals", "on"),
    ("row_security", "off"),
    ("quote_all_identifiers", "on"),
    ("client_min_messages", "debug5"),
];

async fn make_unkind(cluster: &Cluster, role: &str) {
    for (name, setting) in UNKIND {
        // `idle_session_timeout` is unknown to PostgreSQL 13, and 19 has nonstandard strings no more.
        let known = format!(
            "SELECT count(*) FROM pg_settings WHERE name = '{name}' AND (name <> 'standard_conforming_strings' \
             OR current_setting('server_version_num')::int < 190000)"
        );
        if cluster.primary().query(&known).await == "1" {
            let sql = format!("SET default_transaction_read_only = off; ALTER ROLE {role} SET {name} = {setting}");
            cluster.primary().execute(&sql).await;
        }
    }
}

#[tokio::test]
async fn probes_and_lookups_go_by_no_settings_of_roles_or_files() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    primary.execute("CREATE ROLE prober LOGIN; CREATE ROLE finder LOGIN SUPERUSER").await;
    for database in ["postgres", DATABASE] {
        primary.execute_in(database, LIES).await;
        let forged = primary.query(&format!("SELECT rolpassword FROM pg_authid WHERE rolname = '{SCRAM_USER}'")).await;
        let forge = format!("INSERT INTO lies.pg_authid VALUES ('alice', 'infinity', '{forged}', true)");
        primary.execute_in(database, &forge).await;
    }
    for role in ["prober", "finder"] {
        make_unkind(&cluster, role).await;
    }
    // An operator's own function, which its role finds by `search_path`.
    let own = "SET default_transaction_read_only = off; CREATE FUNCTION lies.found(who text, OUT name text, OUT secret text) LANGUAGE sql AS \
         'SELECT rolname::text, rolpassword FROM pg_authid WHERE rolname = who AND rolvaliduntil IS NULL'";
    primary.execute_in(DATABASE, own).await;
    cluster.wait_caught_up().await;
    // Each session of this cluster begins at a level that a standby refuses.
    for node in cluster.nodes() {
        node.execute("ALTER SYSTEM SET default_transaction_isolation = serializable").await;
        node.execute("SELECT pg_reload_conf()").await;
    }
    let query = "SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END FROM pg_authid \
         WHERE rolname=$1 AND rolcanlogin";
    for query in [query, "SELECT * FROM found($1)"] {
        let kingpost = Kingpost::of(&cluster)
            .set("cluster.user", "prober")
            .set("cluster.probe_interval", "1s")
            .set("proxy.auth", "scram-sha-256")
            .set("proxy.auth_query.query", query)
            .set("proxy.auth_query.user", "finder")
            .set("proxy.auth_query.database", DATABASE)
            .start()
            .await;
        let login = |user: &str| {
            let mut config = kingpost.endpoint().config();
            config.user(user).password(SCRAM_PASSWORD);
            config
        };
        let client = within("a login", SOON, cluster.dir(), kingpost.endpoint().connect_as(&login(SCRAM_USER))).await;
        assert_eq!(value(&client, "SELECT current_user").await, SCRAM_USER);
        // The forged row has this password.
        let refused = kingpost.endpoint().try_connect(&login("alice")).await.map(drop).unwrap_err();
        assert_eq!(sqlstate(&refused), "28P01");
        assert_eq!(value(&client, "/* kingpost.route=primary */ SELECT pg_is_in_recovery()").await, "f");
        // Both nodes answer their probes.
        cluster
            .wait("both nodes to be usable", async || {
                let metrics = kingpost.metrics().await;
                (metrics.sum("kingpost_node_usable", &[]) == 2.0).then_some(())
            })
            .await;
        // At the files' isolation level a standby refuses all statements: the primary answers, as it does directly.
        assert_eq!(value(&client, "SELECT 7").await, "7");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_goes_by_no_settings_of_its_role() {
    if only_kingpost() {
        return;
    }
    let fleet = Fleet::builder().acknowledgements(1).start().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    cluster.primary().execute_in("postgres", LIES).await;
    cluster.primary().execute("CREATE ROLE chief LOGIN SUPERUSER").await;
    make_unkind(cluster, "chief").await;
    cluster.wait_caught_up().await;
    let kingpost = Kingpost::of(cluster).start().await;
    let failover = fleet.failover().set("failover.user", "chief").proxy(&kingpost);
    let client = kingpost.connect().await;
    let text = failover.succeed(&["switchover", "--to", "n1"]).await;
    assert!(text.contains("promoted n1"), "{text}");
    client.batch_execute("INSERT INTO acked VALUES (1)").await.expect("a commit on the new primary");
    assert_eq!(cluster.replica(0).query("SELECT count(*) FROM acked").await, "1");
}
