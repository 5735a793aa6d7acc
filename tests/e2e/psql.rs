//! The real psql.

use std::process::{Output, Stdio};

use kingpost_tests::{Endpoint, SOON, pg_bin, signal, within};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::common::{name, shared};

fn psql(endpoint: &Endpoint, arguments: &[&str]) -> Command {
    let mut psql = Command::new(pg_bin().join("psql"));
    psql.args(["-X", "-v", "ON_ERROR_STOP=1", "-d", &endpoint.url()]).args(arguments);
    psql.env("PSQL_PAGER", "").env("LC_ALL", "C.UTF-8").kill_on_drop(true);
    psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    psql
}

async fn finish(endpoint: &Endpoint, child: Child) -> (Output, String, String) {
    let output = within("psql", SOON, &endpoint.logs, child.wait_with_output()).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    (output, out, err)
}

/// Returns the standard output of a successful psql, with `script` as its input.
async fn run(endpoint: &Endpoint, arguments: &[&str], script: &str) -> String {
    let mut child = psql(endpoint, arguments).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(script.as_bytes()).await.unwrap();
    drop(stdin);
    let (output, out, err) = finish(endpoint, child).await;
    assert!(output.status.success(), "psql: {}\n{out}\n{err}", output.status);
    out
}

#[tokio::test]
async fn describe_and_list() {
    let (shared, _logs) = shared().await;
    let endpoint = shared.kingpost.endpoint();
    let table = name("described");
    run(endpoint, &[], &format!("CREATE TABLE {table} (id int PRIMARY KEY, label text NOT NULL DEFAULT 'x'); COMMENT ON TABLE {table} IS 'seen';")).await;
    // A replica may answer psql's own reads: it shows another session's table once it has been replayed.
    shared.cluster.wait_caught_up().await;
    let described = run(endpoint, &["-c", &format!("\\d {table}")], "").await;
    for part in ["id", "integer", "not null", "'x'::text", "PRIMARY KEY, btree (id)"] {
        assert!(described.contains(part), "\\d lacks {part:?}:\n{described}");
    }
    assert!(run(endpoint, &["-c", &format!("\\d+ {table}")], "").await.contains("extended"));
    assert!(run(endpoint, &["-c", "\\dt+"], "").await.contains(&table));
    assert!(run(endpoint, &["-c", "\\l"], "").await.contains("app"));
    assert!(run(endpoint, &["-c", "\\du"], "").await.contains("alice"));
    assert!(run(endpoint, &["-c", "\\df pg_catalog.now"], "").await.contains("timestamp with time zone"));
    // `"alice"`, or since version 18 a row of a table.
    assert!(run(endpoint, &["-c", "\\conninfo"], "").await.contains("alice"));
}

#[tokio::test]
async fn a_script_in_one_session() {
    let (shared, _logs) = shared().await;
    let table = name("script");
    let script = format!(
        "CREATE TABLE {table} (n int);
         BEGIN; INSERT INTO {table} SELECT generate_series(1, 5000); COMMIT;
         BEGIN; DELETE FROM {table}; ROLLBACK;
         SELECT count(*) FROM {table};
         \\set FETCH_COUNT 100
         SELECT n FROM {table} WHERE n > 4998 ORDER BY n;
         \\unset FETCH_COUNT
         SELECT 'SELECT ' || n FROM generate_series(6001, 6002) n \\gexec
         SELECT $1 + 1 \\bind 41 \\g
         DROP TABLE {table};"
    );
    // \bind came with psql 16.
    let script = script.replace("SELECT $1 + 1 \\bind 41 \\g", "SELECT 42;");
    assert_eq!(run(shared.kingpost.endpoint(), &["-Atq"], &script).await, "5000\n4999\n5000\n6001\n6002\n42\n");
}

#[tokio::test]
async fn copy_from_and_to_files() {
    let (shared, _logs) = shared().await;
    let endpoint = shared.kingpost.endpoint();
    let table = name("files");
    let (input, output) =
        (shared.cluster.dir().join(format!("{table}.in")), shared.cluster.dir().join(format!("{table}.out")));
    let text: String = (0..20_000).map(|n| format!("{n},row {n}\n")).collect();
    std::fs::write(&input, &text).unwrap();
    let script = format!(
        "CREATE TABLE {table} (n int, t text);
         \\copy {table} FROM '{}' WITH (FORMAT csv)
         \\copy (SELECT * FROM {table} ORDER BY n) TO '{}' WITH (FORMAT csv)
         COPY (SELECT count(*) FROM {table}) TO STDOUT;",
        input.display(),
        output.display()
    );
    assert_eq!(run(endpoint, &["-Atq"], &script).await, "20000\n");
    assert!(std::fs::read_to_string(&output).unwrap() == text, "\\copy TO differs from what \\copy FROM read");
}

#[tokio::test]
async fn errors_and_notices_are_shown() {
    let (shared, _logs) = shared().await;
    let endpoint = shared.kingpost.endpoint();
    let script = "DO $$ BEGIN RAISE NOTICE 'hello'; END $$; SELECT 1; SELECT * FROM missing_table; SELECT 2;";
    let child = psql(endpoint, &["-Atq", "-c", script]).spawn().unwrap();
    let (output, out, err) = finish(endpoint, child).await;
    assert_eq!((output.status.code(), out.as_str()), (Some(1), "1\n"), "{err}");
    assert!(err.contains("NOTICE:  hello"), "{err}");
    assert!(err.contains("relation \"missing_table\" does not exist") && err.contains('^'), "{err}");
}

#[tokio::test]
async fn control_c_cancels() {
    let (shared, _logs) = shared().await;
    let endpoint = shared.kingpost.endpoint();
    let marker = name("interrupted");
    let mut child = psql(endpoint, &["-v", "ON_ERROR_STOP=0", "-At"]).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(format!("SELECT pg_sleep(600) AS {marker};\nSELECT 'still here';\n").as_bytes()).await.unwrap();
    let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%{marker}%'");
    let cluster = &shared.cluster;
    cluster
        .wait("psql's statement to run", async || {
            for node in cluster.nodes() {
                if node.query(&sql).await == "1" {
                    return Some(());
                }
            }
            None
        })
        .await;
    signal(child.id().unwrap(), 2);
    let (_, out, err) = {
        drop(stdin);
        finish(endpoint, child).await
    };
    assert!(err.contains("canceling statement due to user request"), "{out}\n{err}");
    // Without a terminal, psql ends its input after Ctrl-C; only the connection matters here, and another psql takes it.
    assert_eq!(run(endpoint, &["-Atq"], "SELECT 7;").await, "7\n");
}
