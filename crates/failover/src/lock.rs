//! The lock on a primary that is about to be replaced: no session can start, so the primary can acknowledge nothing that its successor lacks.
//!
//! `default_transaction_read_only` alone is not enough: a session can set READ WRITE and write. So every session is ended, and new ones are refused
//! by a setting that makes all sessions load a library that does not exist:
//!
//! ```text
//! $ psql -h db1
//! FATAL:  could not access file "kingpost_switchover_has_locked_this_server": No such file or directory
//! $ PGOPTIONS='-c session_preload_libraries=' psql -h db1 -U postgres      # a superuser who means it
//! ```
//!
//! A session that was logging in when the lock was taken starts with `default_transaction_read_only` on, too.
//!
//! **A lease.** At first the lock is only in the running server's memory, not in its files, and a session there sleeps for [`LEASE`] and then has the
//! server reload its files: that lifts the lock, whatever has become of this program. Renewal extends the lease. [`Lock::make_permanent`] also writes
//! the lock into the file, right before the successor is elected: from then on the lock must not end by itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio_postgres::Client;
use watermark::Lsn;
use wire::control;

use super::cluster_clients::{ClusterClients, PeerResult, describe, first};
use super::plan::Locked;

/// Name of the missing library, in the error of a refused session. The person at the other end reads this text.
pub(super) const LIBRARY: &str = "kingpost_switchover_has_locked_this_server";
/// Lifetime of the lock without renewal: short enough that clients of a proxy still wait when it ends (`no_primary_timeout`).
pub(super) const LEASE: Duration = Duration::from_secs(20);
/// Interval of renewals.
const RENEW: Duration = Duration::from_secs(5);
/// Longest time for a server to take over its configuration.
const RELOAD: Duration = Duration::from_secs(10);
/// Interval between two checks of a condition that is waited for.
const PACE: Duration = Duration::from_millis(10);
/// Application name of this program's sessions on the locked server.
const APPLICATION: &str = control::SWITCHOVER;

/// Values of `session_preload_libraries` and `default_transaction_read_only` in the configuration files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Files {
    /// Value set by ALTER SYSTEM; None if not set.
    libraries: Option<String>,
    read_only: Option<String>,
    /// Value in the other files.
    other_libraries: String,
}

/// A server on which only this program has sessions.
pub(super) struct Lock {
    node: String,
    client: Arc<Client>,
    before: Files,
    /// Time of the server's last configuration load; another time means that somebody else caused a reload, which has lifted the lock.
    loaded: String,
    /// The next transaction ID, once all sessions have ended.
    next_transaction: String,
    lease: JoinHandle<()>,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // At the server the lease continues until it expires.
        self.lease.abort();
    }
}

impl Lock {
    /// Locks a server. After an error the server is not locked.
    ///
    /// # Errors
    /// The server does not answer, or does not take over its configuration.
    pub(super) async fn take(clients: &ClusterClients, node: &str) -> PeerResult<Lock> {
        match Lock::try_take(clients, node).await {
            Ok(lock) => Ok(lock),
            Err(why) => {
                let undone = unlock(clients, node).await;
                Err(match undone {
                    Ok(_) => why,
                    Err(more) => format!("{why}; and it may still be locked: {more}"),
                })
            }
        }
    }

    async fn try_take(clients: &ClusterClients, node: &str) -> PeerResult<Lock> {
        let client = Arc::new(clients.session_past_lock(node, APPLICATION).await?);
        let before = Files::read(&client).await?;
        let asleep = sleep(clients, node).await?;
        let earlier = load_time(&client).await?;
        before.set_locked(&client).await?;
        let began = Instant::now();
        while !clients.is_locked(node).await? {
            late(began, RELOAD, "it does not take over its configuration")?;
            tokio::time::sleep(PACE).await;
        }
        // The lock stays in memory until somebody has the server reload its files.
        before.set(&client).await?;
        let loaded = loop {
            let loaded = load_time(&client).await?;
            if loaded != earlier {
                break loaded;
            }
            late(began, RELOAD, "its sessions do not take over its configuration")?;
            tokio::time::sleep(PACE).await;
        };
        let lease = tokio::spawn(renew(clients.clone(), node.to_owned(), Arc::clone(&client), asleep));
        let next_transaction = String::new();
        Ok(Lock { node: node.to_owned(), client, before, loaded, next_transaction, lease })
    }

    /// Ends every session, and returns the end position of the log that clients have written.
    ///
    /// # Errors
    /// They do not end within `limit`, or the server does not answer.
    pub(super) async fn silence(&mut self, limit: Duration) -> PeerResult<Lsn> {
        let began = Instant::now();
        loop {
            // Includes sessions that were logging in.
            while self.ask(&end_sessions()).await?.as_deref() != Some("0") {
                late(began, limit, "its sessions do not end")?;
                tokio::time::sleep(PACE).await;
            }
            // Flushes what asynchronous commits have left unflushed.
            self.ask("SET synchronous_commit = local").await?;
            self.ask("SELECT pg_catalog.pg_logical_emit_message(true, 'kingpost', '')").await?;
            let end = self.ask("SELECT pg_catalog.pg_current_wal_flush_lsn() - '0/0'").await?;
            self.next_transaction = self.ask(NEXT_TRANSACTION).await?.ok_or("it knows no next transaction")?;
            if self.ask(&sessions()).await?.as_deref() == Some("0") {
                let end = end.and_then(|text| text.parse().ok());
                return end.map(Lsn).ok_or_else(|| "it does not say where its log ends".into());
            }
        }
    }

    /// Checks that no session has started and nothing was committed since [`Lock::silence`].
    ///
    /// # Errors
    /// A session has started or committed; or the server does not answer.
    pub(super) async fn still_silent(&self) -> PeerResult<()> {
        if load_time(&self.client).await? != self.loaded {
            return Err(format!("somebody had {} read its configuration again, which has lifted the lock", self.node));
        }
        let next = self.ask(NEXT_TRANSACTION).await?;
        if next.as_deref() != Some(self.next_transaction.as_str())
            || self.ask(&sessions()).await?.as_deref() != Some("0")
        {
            return Err(format!("something was committed on {} after all its sessions had been ended", self.node));
        }
        Ok(())
    }

    /// Makes the lock outlive this program: the successor is about to be elected.
    ///
    /// # Errors
    /// A session has started since [`Lock::silence`], or the server does not answer.
    pub(super) async fn make_permanent(&self) -> PeerResult<()> {
        self.before.set_locked_in_file(&self.client).await?;
        self.still_silent().await
    }

    async fn ask(&self, sql: &str) -> PeerResult<Option<String>> {
        first(&self.client, sql).await
    }
}

/// Lifts a lock, of this run or left behind by an earlier one; returns true if there was one.
///
/// # Errors
/// The server does not answer, or does not take over its configuration.
pub(super) async fn unlock(clients: &ClusterClients, node: &str) -> PeerResult<bool> {
    let client = clients.session_past_lock(node, APPLICATION).await?;
    let files = Files::read(&client).await?;
    let cleared = files.unlocked();
    if cleared == files && !clients.is_locked(node).await? {
        return Ok(false);
    }
    cleared.set(&client).await?;
    reload(&client).await?;
    let began = Instant::now();
    while clients.is_locked(node).await? {
        late(began, RELOAD, "it does not take over its configuration")?;
        tokio::time::sleep(PACE).await;
    }
    Ok(true)
}

/// Returns the kind of lock of a locked server.
///
/// # Errors
/// The server does not answer.
pub(super) async fn kind(client: &Client) -> PeerResult<Locked> {
    let files = Files::read(client).await?;
    Ok(if files.unlocked() == files { Locked::ByLease } else { Locked::ForGood })
}

/// Removes a lock from a server's files, and leaves the running server locked: it is about to be stopped and rewound, and `pg_rewind` may have to
/// start it.
///
/// # Errors
/// The server does not answer.
pub(super) async fn take_out_of_files(clients: &ClusterClients, node: &str) -> PeerResult<()> {
    let client = clients.session_past_lock(node, APPLICATION).await?;
    Files::read(&client).await?.unlocked().set(&client).await
}

/// True if the files make sessions begin read-only. A session of this program cannot tell by its own setting, which it overrides.
pub(super) const READ_ONLY: &str = "SELECT setting::bool FROM pg_catalog.pg_file_settings \
    WHERE name = 'default_transaction_read_only' AND error IS NULL ORDER BY seqno DESC LIMIT 1";
const NEXT_TRANSACTION: &str = "SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())";
/// Makes the query of the number of sessions other than those of this program and of its other runs, which got past the lock and write nothing. Since
/// version 18 a session is in the view while it logs in: one that started under the lock will be refused, and does not count.
fn sessions() -> String {
    let own = control::is_named(&[control::SWITCHOVER, control::FAILOVER]);
    format!(
        "SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend' AND NOT {own} \
         AND (state IS DISTINCT FROM 'starting' OR backend_start <= pg_catalog.pg_conf_load_time())"
    )
}

/// Makes the statement that ends those sessions.
fn end_sessions() -> String {
    sessions().replace("count(*)", "count(pg_catalog.pg_terminate_backend(pid))")
}

/// Returns the time of the server's last configuration load, as this session knows it.
async fn load_time(client: &Client) -> PeerResult<String> {
    first(client, "SELECT pg_catalog.pg_conf_load_time()")
        .await?
        .ok_or_else(|| "it does not say when it read its files".into())
}

async fn reload(client: &Client) -> PeerResult<()> {
    first(client, "SELECT pg_catalog.pg_reload_conf()").await.map(drop)
}

fn late(began: Instant, limit: Duration, what: &str) -> PeerResult<()> {
    if began.elapsed() <= limit { Ok(()) } else { Err(format!("{what} within {limit:?}")) }
}

/// Opens a session that sleeps and then has the server reload its files; returns its process ID.
async fn sleep(clients: &ClusterClients, node: &str) -> PeerResult<u32> {
    let client = clients.session_past_lock(node, APPLICATION).await?;
    // A control session has no transaction_timeout.
    let limits = "SELECT set_config(name, '0', false) FROM pg_catalog.pg_settings \
                  WHERE name IN ('statement_timeout', 'client_connection_check_interval')";
    client.simple_query(limits).await.map_err(|error| describe(&error))?;
    let pid = first(&client, "SELECT pg_catalog.pg_backend_pid()").await?.and_then(|pid| pid.parse().ok());
    let pid = pid.ok_or("it does not say the number of its process")?;
    // One statement does both, so nothing depends on this program in between.
    let statement = format!("SELECT pg_catalog.pg_reload_conf() FROM pg_catalog.pg_sleep({})", LEASE.as_secs());
    tokio::spawn(async move {
        // Cancelled when the lease is renewed or no longer needed; or this program has ended.
        let _ = client.simple_query(&statement).await;
    });
    Ok(pid)
}

/// Renews the lease until aborted. An unreachable server lifts the lock when the lease expires, which [`Lock::still_silent`] detects.
async fn renew(clients: ClusterClients, node: String, client: Arc<Client>, mut asleep: u32) {
    loop {
        tokio::time::sleep(RENEW).await;
        if let Ok(another) = sleep(&clients, &node).await {
            let _ = first(&client, &format!("SELECT pg_catalog.pg_cancel_backend({asleep})")).await;
            asleep = another;
        }
    }
}

// === impl Files ===

impl Files {
    async fn read(client: &Client) -> PeerResult<Files> {
        let sql = "SELECT name, setting, sourcefile LIKE '%/postgresql.auto.conf' FROM pg_catalog.pg_file_settings \
                   WHERE name IN ('session_preload_libraries', 'default_transaction_read_only') AND error IS NULL ORDER BY seqno";
        let rows = client.query(sql, &[]).await.map_err(|error| describe(&error))?;
        let mut files = Files::default();
        for row in rows {
            let (name, setting, is_own): (String, Option<String>, bool) = (row.get(0), row.get(1), row.get(2));
            let setting = setting.unwrap_or_default();
            match (name.as_str(), is_own) {
                ("session_preload_libraries", true) => files.libraries = Some(setting),
                ("session_preload_libraries", false) => files.other_libraries = setting,
                (_, true) => files.read_only = Some(setting),
                (_, false) => {}
            }
        }
        Ok(files)
    }

    /// Returns the libraries that sessions load without the lock.
    fn loaded(&self) -> Vec<String> {
        let all = items(self.libraries.as_deref().unwrap_or(&self.other_libraries));
        all.into_iter().filter(|library| library != LIBRARY).collect()
    }

    /// Returns the files' values without a lock.
    fn unlocked(&self) -> Files {
        let locked =
            self.libraries.as_deref().is_some_and(|libraries| items(libraries).iter().any(|item| item == LIBRARY));
        if !locked {
            return self.clone();
        }
        // Before the lock there was an ALTER SYSTEM entry only if it differed from the other files.
        let rest = self.loaded();
        let own = rest != items(&self.other_libraries);
        Files { libraries: own.then(|| rest.join(", ")), read_only: None, ..self.clone() }
    }

    /// Writes the values into `postgresql.auto.conf`.
    async fn set(&self, client: &Client) -> PeerResult<()> {
        let libraries = self.libraries.as_deref().map(|libraries| literals(&items(libraries)));
        let read_only = self.read_only.as_deref().map(|value| literals(&[value.to_owned()]));
        alter(client, "session_preload_libraries", libraries).await?;
        alter(client, "default_transaction_read_only", read_only).await
    }

    async fn set_locked_in_file(&self, client: &Client) -> PeerResult<()> {
        let mut libraries = vec![LIBRARY.to_owned()];
        libraries.extend(self.loaded());
        alter(client, "default_transaction_read_only", Some("'on'".into())).await?;
        alter(client, "session_preload_libraries", Some(literals(&libraries))).await
    }

    async fn set_locked(&self, client: &Client) -> PeerResult<()> {
        self.set_locked_in_file(client).await?;
        reload(client).await
    }
}

async fn alter(client: &Client, name: &str, value: Option<String>) -> PeerResult<()> {
    let statement = match value {
        Some(value) => format!("ALTER SYSTEM SET {name} = {value}"),
        None => format!("ALTER SYSTEM RESET {name}"),
    };
    client.batch_execute(&statement).await.map_err(|error| describe(&error))
}

/// Parses a list in the syntax of a PostgreSQL setting: `a, "b, c"`.
fn items(list: &str) -> Vec<String> {
    let (mut items, mut item, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = list.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.next_if_eq(&'"').is_some() => item.push('"'),
            '"' => quoted = !quoted,
            ',' if !quoted => items.push(std::mem::take(&mut item)),
            c if c.is_whitespace() && !quoted => {}
            c => item.push(c),
        }
    }
    items.push(item);
    items.retain(|item| !item.is_empty());
    items
}

/// Formats a list for ALTER SYSTEM: each item a literal; `''` for an empty one.
fn literals(items: &[String]) -> String {
    if items.is_empty() {
        return "''".into();
    }
    items.iter().map(|item| format!("'{}'", item.replace('\'', "''"))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn lists() {
        for (list, expected) in [
            ("", vec![]),
            ("a", vec!["a"]),
            ("a, b ,c", vec!["a", "b", "c"]),
            ("\"a, b\", c", vec!["a, b", "c"]),
            ("\"a \"\"b\"\"\"", vec!["a \"b\""]),
            (" , ", vec![]),
        ] {
            assert_eq!(items(list), expected, "{list}");
        }
        assert_eq!(literals(&[]), "''");
        assert_eq!(literals(&["a".into(), "it's".into()]), "'a', 'it''s'");
    }

    #[test]
    fn what_was_there_before_the_lock_is_there_after_it() {
        let locked = |rest: &str| Some(format!("{LIBRARY}{rest}"));
        for (what, own, others, expected) in [
            ("nothing was set", locked(""), "", None),
            ("another file sets it", locked(", auto_explain"), "auto_explain", None),
            ("ALTER SYSTEM had set it", locked(", auto_explain"), "", Some("auto_explain")),
            ("both had", locked(", a, b"), "a", Some("a, b")),
            ("no lock", Some("a".to_owned()), "a", Some("a")),
            ("no lock, nothing", None, "a", None),
        ] {
            let read_only = own.as_ref().is_some_and(|own| own.contains(LIBRARY)).then(|| "on".to_owned());
            let files = Files { libraries: own, read_only, other_libraries: others.into() };
            let unlocked = files.unlocked();
            assert_eq!(unlocked.libraries.as_deref(), expected, "{what}");
            assert_eq!(unlocked.read_only, None, "{what}");
        }
    }
}
