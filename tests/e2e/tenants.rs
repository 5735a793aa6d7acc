//! Tenants behind row-level security on shared server connections: real drivers, two databases, and not one row of another tenant.
//! `clients/tenants/README.md` describes the data and the programs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use futures_util::future::join_all;
use kingpost_tests::{Cluster, Kingpost, ShowLogs, Subject, new_dir, subject, within};
use tokio::process::Command;

use crate::clients::{build, here, installed, jars, there};

const WORLD: &str = include_str!("../clients/tenants/world.json");
const SCHEMA: &str = include_str!("../clients/tenants/schema.sql");
/// Concurrent clients.
const CLIENTS: usize = 48;

/// A program that runs a driver's clients.
struct Program {
    driver: &'static str,
    program: PathBuf,
    arguments: Vec<OsString>,
}

/// Returns the names in a list of world.json.
fn names(list: &str) -> Vec<String> {
    let world: serde_json::Value = serde_json::from_str(WORLD).unwrap();
    world[list].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// Starts a cluster with the data.
async fn world(replicas: usize) -> Cluster {
    let cluster = Cluster::builder().replicas(replicas).setting("max_connections", "200").start().await;
    for database in names("databases") {
        cluster.primary().execute(&format!("CREATE DATABASE {database}")).await;
        let quoted = WORLD.replace('\'', "''");
        cluster.primary().execute_in(&database, &format!("SET tenants.world = '{quoted}';\n{SCHEMA}")).await;
    }
    cluster.wait_caught_up().await;
    cluster
}

/// Returns the drivers that need no compiler.
async fn scripted() -> Vec<Program> {
    let python = installed().await.join("venv/bin/python");
    let script = |driver, program: &Path, script: &str| Program {
        driver,
        program: program.into(),
        arguments: vec![here().join(script).into()],
    };
    vec![
        script("psycopg", &python, "python/psycopg_tenants.py"),
        script("asyncpg", &python, "python/asyncpg_tenants.py"),
        script("node-postgres", Path::new("node"), "node/pg_tenants.mjs"),
    ]
}

/// Reads and inserts of a program, by way.
type Counts = BTreeMap<String, (usize, usize)>;

/// Runs a program; returns its output, and true if it succeeded.
async fn run(program: &Program, port: u16, first: usize, clients: usize, reads: usize) -> (bool, String) {
    let mut command = Command::new(&program.program);
    command.args(&program.arguments).current_dir(new_dir("client"));
    command.env("TENANTS_PORT", port.to_string()).env("TENANTS_WORLD", here().join("tenants"));
    command.env("TENANTS_FIRST", first.to_string()).env("TENANTS_CLIENTS", clients.to_string());
    command.env("TENANTS_READS", reads.to_string());
    command.env("NODE_PATH", installed().await.join("node/node_modules")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = command.output().await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.success(), format!("{out}{err}"))
}

/// Parses reads and inserts by way from the lines of a program.
fn counts(lines: &str) -> Counts {
    let count = |line: &str| {
        let (_, line) = line.split_once("ok ")?.1.split_once(" - ")?;
        let (way, rest) = line.split_once(": ")?;
        let mut numbers = rest.split(", ").filter_map(|part| part.split(' ').next()?.parse().ok());
        Some((way.to_owned(), (numbers.next()?, numbers.next()?)))
    };
    lines.lines().filter_map(count).collect()
}

/// Returns the number of entries that disagree with their client's DateStyle and TimeZone, and of all entries.
async fn entries(cluster: &Cluster) -> (usize, usize) {
    let (mut bad, mut all) = (0, 0);
    for database in names("databases") {
        let mut config = cluster.primary().admin_config();
        config.dbname(&database);
        let admin = cluster.primary().endpoint().connect_as(&config).await;
        let sql = "SELECT count(*) FILTER (WHERE place IS DISTINCT FROM current_database() OR days IS NULL
                     OR day - DATE '2020-01-01' <> days OR extract(epoch FROM at)::int <> epoch), count(*)
                   FROM entries LEFT JOIN tenants ON name = home";
        let row = admin.query_one(sql, &[]).await.unwrap();
        bad += usize::try_from(row.get::<_, i64>(0)).unwrap();
        all += usize::try_from(row.get::<_, i64>(1)).unwrap();
    }
    (bad, all)
}

/// Runs programs one after the other with all clients each, or all at once with a part of the clients each, and fails on any error.
async fn tenants(
    cluster: &Cluster,
    kingpost: &Kingpost,
    programs: &[Program],
    together: bool,
    reads: usize,
    limit: Duration,
) {
    let share = reads.div_ceil(programs.len());
    // Each client does a whole number of rounds; so a few more than requested.
    let mut told = Vec::new();
    if together {
        let clients = CLIENTS.div_ceil(programs.len()).next_multiple_of(4);
        let all = programs.iter().enumerate();
        let all = join_all(all.map(|(n, program)| run(program, kingpost.port(), n * clients, clients, share)));
        told = within("the tenants' clients", limit, cluster.dir(), all).await;
    } else {
        for program in programs {
            let one = run(program, kingpost.port(), 0, CLIENTS, share);
            told.push(within(program.driver, limit, cluster.dir(), one).await);
        }
    }
    let (mut faults, mut read, mut inserted) = (Vec::new(), 0, 0);
    for (program, (good, lines)) in programs.iter().zip(&told) {
        eprintln!("{}:\n{lines}", program.driver);
        let counts = counts(lines);
        let sum = counts.values().fold((0, 0), |sum, way| (sum.0 + way.0, sum.1 + way.1));
        (read, inserted) = (read + sum.0, inserted + sum.1);
        if !good || counts.len() != 8 || sum.0 < share / CLIENTS * CLIENTS {
            faults.push(program.driver);
        }
    }
    let (bad, all) = entries(cluster).await;
    eprintln!(
        "{read} reads, {inserted} inserts by {} drivers; {all} entries, of which {bad} are wrong",
        programs.len()
    );
    assert!(faults.is_empty(), "what these drivers' clients saw is wrong, as told above: {faults:?}");
    assert_eq!((bad, all), (0, inserted), "entries that are wrong, and all");
}

/// Starts the proxy: `size` server connections for each database, user and node; `unnamed` is `proxy.pool.unnamed`. Lanes are narrow, so that clients
/// meet in them.
async fn proxy(cluster: &Cluster, workers: i64, size: i64, unnamed: &str) -> Kingpost {
    let builder = Kingpost::of(cluster).set("proxy.workers", workers).set("proxy.pool.size", size);
    let builder = builder.set("proxy.pool.lanes", "auto").set("proxy.pool.lane_width", 1);
    builder.set("proxy.pool.unnamed", unnamed).set("proxy.routing.consistency", "session").start().await
}

/// Fails unless clients shared the tested resources: lanes, and replicas if there are any.
async fn shared(cluster: &Cluster, kingpost: &Kingpost) {
    if subject() != Subject::Kingpost {
        return;
    }
    let metrics = kingpost.metrics().await;
    let in_lanes = metrics.sum("kingpost_lane_statements_total", &[]);
    eprintln!("{in_lanes} reads in lanes");
    assert!(in_lanes > 0.0, "no lane: this test proves less than it says");
    if !cluster.replicas().is_empty() {
        let there = metrics.sum("kingpost_statements_replica_total", &[]);
        eprintln!("{there} statements on replicas");
        assert!(there > 0.0, "no read on a replica: this test proves less than it says");
    }
}

#[tokio::test]
async fn no_row_of_another_tenant() {
    if subject() == Subject::PgBouncer {
        return;
    }
    let cluster = world(1).await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = proxy(&cluster, 2, 4, "parsed").await;
    tenants(&cluster, &kingpost, &scripted().await, false, 6_000, Duration::from_secs(240)).await;
    shared(&cluster, &kingpost).await;
}

/// Returns the number of reads of the long form.
fn wanted() -> usize {
    std::env::var("KINGPOST_TENANTS_READS").map_or(1_000_000, |reads| reads.parse().expect("a number of reads"))
}

/// Returns the drivers; those in Go and Java if they are installed.
async fn all() -> Vec<Program> {
    let mut programs = scripted().await;
    programs.push(Program {
        driver: "npgsql-pattern",
        program: installed().await.join("venv/bin/python"),
        arguments: vec![here().join("python/npgsql_pattern_tenants.py").into()],
    });
    if there("go") {
        let program = new_dir("go").join("tenants");
        let mut go = Command::new("go");
        go.args(["build", "-o"]).arg(&program).arg("./tenants").current_dir(here().join("go/pgx"));
        build(&mut go).await;
        programs.push(Program { driver: "pgx", program, arguments: Vec::new() });
    }
    if there("java") && there("mvn") {
        let jars = jars().await;
        for (driver, settings) in
            [("pgjdbc prepared", "prepareThreshold=1"), ("pgjdbc simple", "preferQueryMode=simple")]
        {
            let source = here().join("java/PgjdbcTenants.java");
            let arguments = vec!["-cp".into(), jars.into(), source.into(), settings.into()];
            programs.push(Program { driver, program: "java".into(), arguments });
        }
    }
    programs
}

/// Half of the reads on a primary alone, with one driver after the other; the others with a replica, with all drivers at once, sharing statements;
/// half of these with shared unnamed statements, too.
#[tokio::test]
#[ignore = "needs Go, Java, Maven, the network and many minutes: make tenants"]
async fn no_row_of_another_tenant_in_a_million_reads() {
    if subject() == Subject::PgBouncer {
        return;
    }
    let mut programs = all().await;
    // Selects some programs only.
    if let Ok(only) = std::env::var("KINGPOST_TENANTS_ONLY") {
        programs.retain(|program| only.split(',').any(|part| program.driver.contains(part)));
    }
    for (replicas, together, unnamed, part) in [(0, false, "parsed", 2), (1, true, "parsed", 4), (1, true, "shared", 4)]
    {
        let cluster = world(replicas).await;
        let _logs = ShowLogs(cluster.dir());
        let kingpost = proxy(&cluster, 3, 8, unnamed).await;
        let order = if together { "all drivers at once" } else { "one driver after the other" };
        eprintln!("=== {replicas} replicas, {order}, unnamed = {unnamed:?}");
        tenants(&cluster, &kingpost, &programs, together, wanted() / part, Duration::from_secs(3600)).await;
        shared(&cluster, &kingpost).await;
    }
}
