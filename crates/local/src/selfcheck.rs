//! Check through the proxy that writes work, and that a replica answers reads and has the written row.

use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use super::postgres::{SUPERUSER, describe};
use process::Failure;

/// Longest time for the whole check.
const LIMIT: Duration = Duration::from_secs(60);
/// Time between two attempts of a read.
const PACE: Duration = Duration::from_millis(100);
/// Hint that sends a statement to a replica.
const HINT: &str = "/* kingpost.route=replica */";

/// Result of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Port of the server that took the write.
    pub(super) writer: u16,
    /// Port of the replica that answered the read, if there are replicas.
    pub(super) reader: Option<u16>,
}

/// Runs the check through the proxy.
///
/// # Errors
/// A step fails, or the row is not read back from a replica in time.
pub(super) async fn run(host: &str, port: u16, replicas: bool) -> Result<Outcome, Failure> {
    let failed = |what: String| {
        Failure::runtime(format!("the self-check through the proxy at {host}:{port} failed: {what}"))
            .advise("the servers' and the proxy's logs are in the logs directory of the cluster's directory")
    };
    match tokio::time::timeout(LIMIT, check(host, port, replicas)).await {
        Ok(result) => result.map_err(failed),
        Err(_) => Err(failed(format!("it took longer than {} s", LIMIT.as_secs()))),
    }
}

async fn check(host: &str, port: u16, replicas: bool) -> Result<Outcome, String> {
    let mut config = tokio_postgres::Config::new();
    config.host(host).port(port).user(SUPERUSER).dbname("postgres").application_name("kingpost self-check");
    config.connect_timeout(Duration::from_secs(10));
    let (client, connection) =
        config.connect(NoTls).await.map_err(|error| format!("cannot connect: {}", describe(&error)))?;
    let connection = tokio::spawn(connection);
    let result = steps(&client, replicas).await;
    // Also after a failure: a schema left behind would show up in the user's own \dn.
    let dropped = ask(&client, "DROP SCHEMA IF EXISTS kingpost_selfcheck CASCADE").await;
    drop(client);
    let _ = tokio::time::timeout(Duration::from_secs(1), connection).await;
    let outcome = result?;
    dropped?;
    Ok(outcome)
}

async fn steps(client: &Client, replicas: bool) -> Result<Outcome, String> {
    ask(client, "DROP SCHEMA IF EXISTS kingpost_selfcheck CASCADE").await?;
    ask(client, "CREATE SCHEMA kingpost_selfcheck").await?;
    ask(client, "CREATE TABLE kingpost_selfcheck.probe (id int PRIMARY KEY, note text NOT NULL)").await?;
    let written =
        ask(client, "INSERT INTO kingpost_selfcheck.probe VALUES (1, 'written') RETURNING inet_server_port()").await?;
    let writer = port_of(&written)?;
    if !replicas {
        let read = ask(client, "SELECT note FROM kingpost_selfcheck.probe WHERE id = 1").await?;
        return match read.first().map(String::as_str) {
            Some("written") => Ok(Outcome { writer, reader: None }),
            other => Err(format!("read {other:?} back instead of what was written")),
        };
    }
    let read = format!(
        "{HINT} SELECT inet_server_port(), pg_is_in_recovery(), note FROM kingpost_selfcheck.probe WHERE id = 1"
    );
    let started = Instant::now();
    loop {
        let seen = match ask(client, &read).await {
            Ok(row)
                if row.get(1).map(String::as_str) == Some("t") && row.get(2).map(String::as_str) == Some("written") =>
            {
                return Ok(Outcome { writer, reader: Some(port_of(&row)?) });
            }
            Ok(row) => format!("the last answer came from {}", describe_row(&row)),
            // A replica that has not replayed the CREATE yet.
            Err(error) => format!("the last answer was: {error}"),
        };
        if started.elapsed() + PACE > LIMIT / 2 {
            return Err(format!("no replica answered with the row that was written; {seen}"));
        }
        tokio::time::sleep(PACE).await;
    }
}

fn describe_row(row: &[String]) -> String {
    match row {
        [port, recovery, ..] if recovery == "t" => format!("the replica at port {port}, without the row"),
        [port, ..] => format!("the primary at port {port}"),
        [] => "a server without the row".into(),
    }
}

fn port_of(row: &[String]) -> Result<u16, String> {
    let text = row.first().map_or("nothing", String::as_str);
    text.parse().map_err(|_| format!("found {text:?} as the server's port"))
}

/// Runs a statement and returns the first row of the answer.
async fn ask(client: &Client, sql: &str) -> Result<Vec<String>, String> {
    let messages = client.simple_query(sql).await.map_err(|error| format!("{sql}: {}", describe(&error)))?;
    let row = messages.into_iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|column| row.get(column).unwrap_or_default().to_owned()).collect())
        }
        _ => None,
    });
    Ok(row.unwrap_or_default())
}
