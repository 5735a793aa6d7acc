//! The two worlds of a session: PostgreSQL alone, and PostgreSQL behind the proxy. Both start each session with the same contents.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kingpost_tests::{Cluster, Kingpost, KingpostBuilder, Relay, SOON};
use tokio_postgres::{Client, SimpleQueryMessage};
use toml::{Table, Value};

use crate::config::{Config, Needs};
use crate::session::Session;

/// Databases that clients connect to.
pub(crate) const DATABASES: [&str; 2] = ["app", "shop"];
/// Users that clients log in as.
pub(crate) const USERS: [&str; 3] = ["alice", "bob", "carol"];
/// User of the server connections if clients' users are only roles.
pub(crate) const POOLED: &str = "pooled";
/// User of changes that bypass the proxy.
pub(crate) const PAST_USER: &str = "boss";

const ROLES: &str = include_str!("roles.sql");
const ONCE: &str = include_str!("once.sql");
const FULL: &str = include_str!("full.sql");
const FULL_APP: &str = include_str!("full_app.sql");
const FULL_SHOP: &str = include_str!("full_shop.sql");
const ROWS: &str = include_str!("rows.sql");
const ROWS_APP: &str = include_str!("rows_app.sql");
const ROWS_SHOP: &str = include_str!("rows_shop.sql");

/// Time after an error in which a crashed server must end its other connections.
const CRASH: Duration = Duration::from_millis(500);
/// Interval between two checks of a condition.
pub(crate) const POLL: Duration = Duration::from_millis(2);
/// Time after which a replica that has not replayed a step is considered blocked.
const REPLAY: Duration = Duration::from_secs(2);
/// Number of sessions after which the catalogs are vacuumed: each session's DDL leaves dead rows in them.
const VACUUM_AFTER: u32 = 300;
/// Session settings in the replica's own configuration: clients must not notice.
const OWN_SETTINGS: [&str; 8] = [
    "timezone = 'Asia/Tokyo'",
    "datestyle = sql, dmy",
    "intervalstyle = 'sql_standard'",
    "extra_float_digits = -10",
    "bytea_output = 'escape'",
    "search_path = 'pg_catalog'",
    "statement_timeout = '1ms'",
    "default_text_search_config = 'pg_catalog.german'",
];
/// Condition for the backends of clients.
const CLIENTS: &str = "backend_type = 'client backend' and usename <> 'postgres'";

/// One primary with connections that prepare and inspect it.
#[derive(Debug)]
pub(crate) struct World {
    cluster: Cluster,
    admins: BTreeMap<&'static str, Client>,
    replica: Option<Client>,
    /// True if the last session may have changed more than rows.
    dirty: bool,
    sessions: u32,
}

/// Both worlds.
#[derive(Debug)]
pub(crate) struct Worlds {
    pub(crate) direct: World,
    pub(crate) proxied: World,
    relay: Option<Relay>,
}

/// The world in which PostgreSQL has crashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Crashed {
    /// The direct world, and perhaps the one behind the proxy as well.
    Direct,
    /// Only the world behind the proxy.
    Proxied,
}

/// A running proxy; its files are removed with it.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) kingpost: Kingpost,
    /// Log and configuration of the proxy.
    files: [PathBuf; 2],
}

impl Proxy {
    /// Returns a panic from its log, or reports that the process has ended by itself.
    pub(crate) fn broken(&self) -> Option<String> {
        let log = String::from_utf8_lossy(&std::fs::read(&self.files[0]).unwrap_or_default()).into_owned();
        let panic = log.lines().find(|line| line.contains("panicked at")).map(str::to_owned);
        let ended = self.kingpost.process().exit_status().map(|status| format!("the proxy has ended: {status}"));
        panic.or(ended)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// True if a session may leave more than changed rows.
fn is_dirty(session: &Session) -> bool {
    const WORDS: [&str; 10] =
        ["create", "alter", "drop", "rename", "grant", "revoke", "truncate", "security", "comment on", "scratch"];
    !session.setup.is_empty()
        || session.texts().any(|text| {
            let text = text.to_ascii_lowercase();
            WORDS.iter().any(|word| text.contains(word))
        })
}

/// Returns the first column of each row.
async fn column(client: &Client, sql: &str) -> Result<Vec<String>, tokio_postgres::Error> {
    let messages = client.simple_query(sql).await?;
    let values = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("").to_owned()),
        _ => None,
    });
    Ok(values.collect())
}

async fn value(client: &Client, sql: &str) -> Result<String, tokio_postgres::Error> {
    Ok(column(client, sql).await?.pop().unwrap_or_default())
}

impl World {
    async fn start(replicas: usize) -> World {
        let builder = Cluster::builder().replicas(replicas);
        // A blocked client is refused, and soon. With one client at a time no deadlocks occur.
        let builder = builder.setting("lock_timeout", "150ms").setting("max_prepared_transactions", "10");
        let cluster = builder.setting("autovacuum", "off").setting("log_min_messages", "panic").start().await;
        let mut admins = BTreeMap::new();
        cluster.primary().execute(ROLES.split("create database").next().unwrap_or_default()).await;
        cluster.primary().execute("create database shop").await;
        cluster.primary().execute("grant all on database app, shop to public").await;
        for database in DATABASES {
            let mut config = cluster.primary().admin_config();
            let admin = cluster.primary().endpoint().connect_as(config.dbname(database)).await;
            admin.batch_execute(ONCE).await.unwrap_or_else(|e| panic!("prepare {database}: {e:?}"));
            admins.insert(database, admin);
        }
        let replica = match cluster.replicas() {
            [] => None,
            [first, ..] => {
                for setting in OWN_SETTINGS {
                    first.execute(&format!("alter system set {setting}")).await;
                }
                first.execute("select pg_reload_conf()").await;
                first.wait_value("show timezone", "Asia/Tokyo").await;
                Some(first.admin().await)
            }
        };
        World { cluster, admins, replica, dirty: true, sessions: 0 }
    }

    /// Returns the port of the primary.
    pub(crate) fn port(&self) -> u16 {
        self.cluster.primary().port()
    }

    fn admin(&self, database: &str) -> &Client {
        self.admins.get(database).unwrap_or_else(|| &self.admins[DATABASES[0]])
    }

    /// Ends the remaining clients, and restores the state in which each session begins.
    async fn reset(&mut self, session: &Session) -> Result<(), tokio_postgres::Error> {
        let admin = self.admin(DATABASES[0]);
        let end = Instant::now() + SOON;
        let kill = format!("select pg_terminate_backend(pid) from pg_stat_activity where {CLIENTS}");
        while !column(admin, &kill).await?.is_empty() && Instant::now() < end {
            tokio::time::sleep(POLL).await;
        }
        if self.dirty {
            let mut roles = String::from("drop database if exists fresh; ");
            for name in USERS {
                roles.push_str(&format!("alter role {name} reset all; "));
            }
            for database in DATABASES {
                roles.push_str(&format!("alter database {database} reset all; "));
            }
            // CREATE and DROP DATABASE must be texts of their own.
            for statement in roles.split("; ").filter(|statement| !statement.is_empty()) {
                admin.batch_execute(statement).await?;
            }
        }
        for database in DATABASES {
            let admin = self.admin(database);
            let (full, rows) = if database == "app" { (FULL_APP, ROWS_APP) } else { (FULL_SHOP, ROWS_SHOP) };
            let sql = if self.dirty { format!("{FULL}\n{full}\n{ROWS}\n{rows}") } else { format!("{ROWS}\n{rows}") };
            admin.batch_execute(&sql).await?;
        }
        if self.dirty {
            self.admin(DATABASES[0]).batch_execute("drop role if exists dora").await?;
        }
        self.sessions += 1;
        if self.sessions.is_multiple_of(VACUUM_AFTER) {
            for admin in self.admins.values() {
                admin.batch_execute("vacuum").await?;
            }
        }
        for setup in &session.setup {
            self.admin(&setup.database).batch_execute(&setup.sql).await?;
        }
        self.dirty = is_dirty(session);
        while !self.catch_up().await? {
            assert!(Instant::now() < end, "the replica does not replay");
        }
        Ok(())
    }

    /// Waits until the replica has replayed all commits so far; returns false if it has not: its readers may block it.
    pub(crate) async fn catch_up(&self) -> Result<bool, tokio_postgres::Error> {
        let Some(replica) = &self.replica else { return Ok(true) };
        let flushed = value(self.admin(DATABASES[0]), "select pg_current_wal_flush_lsn()").await?;
        let sql = format!("select coalesce(pg_last_wal_replay_lsn() >= '{flushed}', false)");
        let end = Instant::now() + REPLAY;
        while value(replica, &sql).await? != "t" {
            if Instant::now() > end {
                return Ok(false);
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(true)
    }

    /// Pauses or resumes the replica's replay.
    async fn hold_replica(&self, hold: bool) -> Result<(), tokio_postgres::Error> {
        let Some(replica) = &self.replica else { return Ok(()) };
        let (act, state) = if hold { ("pause", "paused") } else { ("resume", "not paused") };
        replica.batch_execute(&format!("select pg_wal_replay_{act}()")).await?;
        let end = Instant::now() + SOON;
        while value(replica, "select pg_get_wal_replay_pause_state()").await? != state && Instant::now() < end {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Notifies on channels, in every database.
    pub(crate) async fn notify(&self, channels: &[&str]) -> Result<(), tokio_postgres::Error> {
        for admin in self.admins.values() {
            for channel in channels {
                admin.batch_execute(&format!("select pg_notify('{channel}', 'the end')")).await?;
            }
        }
        Ok(())
    }

    /// Returns, as lines, the locks of clients that other clients would notice.
    pub(crate) async fn locks(&self) -> Result<Vec<String>, tokio_postgres::Error> {
        let sql = format!(
            "select format('%s %s %s %s', l.locktype, d.datname, mode, \
                case l.locktype when 'advisory' then l.objid::text else (select relname from pg_class c where c.oid = l.relation) end) \
             from pg_locks l join pg_stat_activity a using (pid) left join pg_database d on d.oid = l.database \
             where {CLIENTS} and (locktype = 'advisory' or (locktype = 'relation' and mode <> 'AccessShareLock')) order by 1"
        );
        column(self.admin(DATABASES[0]), &sql).await
    }

    /// Waits until the server has no process with this ID.
    pub(crate) async fn wait_gone(&self, process: u32) -> Result<(), tokio_postgres::Error> {
        let sql = format!("select count(*) from pg_stat_activity where pid = {process}");
        let end = Instant::now() + SOON;
        while value(self.admin(DATABASES[0]), &sql).await? != "0" && Instant::now() < end {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Ends backends, each given by its server's port and its process ID.
    pub(crate) async fn end_backends(&self, backends: &[(u32, u32)]) -> Result<(), tokio_postgres::Error> {
        for &(port, process) in backends {
            let primary = port == u32::from(self.port());
            let server = if primary { Some(self.admin(DATABASES[0])) } else { self.replica.as_ref() };
            if let Some(server) = server {
                server.batch_execute(&format!("select pg_terminate_backend({process})")).await?;
            }
        }
        Ok(())
    }

    /// Returns, as lines, all that a session may have changed.
    pub(crate) async fn dump(&self) -> Result<Vec<String>, tokio_postgres::Error> {
        let mut lines = Vec::new();
        for database in DATABASES {
            lines.push(format!("database {database}"));
            lines.extend(column(self.admin(database), "select * from world.dump()").await?);
        }
        Ok(lines)
    }
}

impl Worlds {
    /// Starts the servers that some configurations need together.
    pub(crate) async fn start(needs: Needs) -> Worlds {
        let (direct, proxied) = tokio::join!(World::start(0), World::start(usize::from(needs.replica)));
        let mut relay = None;
        if needs.relay {
            let mut one = Relay::of(&proxied.cluster, proxied.port());
            one.start().await;
            relay = Some(one);
        }
        Worlds { direct, proxied, relay }
    }

    /// Returns the server that ends all its connections because a backend crashed. The others learn of the crash after a moment.
    pub(crate) async fn crashed(&self) -> Option<Crashed> {
        let deadline = Instant::now() + CRASH;
        let is = |world: &World| world.admins.values().any(Client::is_closed);
        let closed = || (is(&self.direct), is(&self.proxied));
        while closed() != (true, true) && Instant::now() < deadline {
            tokio::time::sleep(POLL).await;
        }
        match closed() {
            (false, false) => None,
            (true, _) => Some(Crashed::Direct),
            (false, true) => Some(Crashed::Proxied),
        }
    }

    /// Prepares both worlds for a session, and starts the proxy.
    ///
    /// # Errors
    /// A server refuses a statement that prepares a session.
    pub(crate) async fn begin(&mut self, session: &Session, config: &Config) -> Result<Proxy, tokio_postgres::Error> {
        self.proxied.hold_replica(false).await?;
        let (direct, proxied) = tokio::join!(self.direct.reset(session), self.proxied.reset(session));
        direct.and(proxied)?;
        let proxy = self.proxy(session, config).await;
        self.proxied.hold_replica(config.late).await?;
        Ok(proxy)
    }

    async fn proxy(&self, session: &Session, config: &Config) -> Proxy {
        let mut builder: KingpostBuilder<'_> = Kingpost::of(&self.proxied.cluster);
        if !config.replica {
            let node = self.proxied.cluster.primary();
            let address = format!("127.0.0.1:{}", node.port());
            let node = Table::from_iter([("name".into(), node.name().into()), ("address".into(), address.into())]);
            builder = builder.set("cluster.nodes", vec![Value::Table(node)]);
        }
        if let (true, Some(relay)) = (config.relay, &self.relay) {
            let address = format!("127.0.0.1:{}", relay.port());
            let relay = Table::from_iter([("name".into(), "r1".into()), ("address".into(), address.into())]);
            builder = builder.add("cluster.relays", relay);
        }
        builder = builder
            .set("proxy.pool.size", session.pool as i64)
            .set("proxy.pool.wait_timeout", "3s")
            .set("cluster.lag_limit", "1h");
        for (key, value) in config.settings() {
            builder = builder.set(&key, value);
        }
        let kingpost = builder.start().await;
        let config = kingpost.config_path().to_owned();
        let files = [config.with_extension("log"), config];
        Proxy { kingpost, files }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_more_than_rows_is_known() {
        let of = |text: &str| crate::text::parse(&format!("client a x y\na: Q \"{text}\"")).unwrap().session;
        assert!(!is_dirty(&of("update kv set v = 1")));
        assert!(is_dirty(&of("ALTER TABLE t ADD z int")));
        assert!(is_dirty(&of("select 1; drop table t")));
    }
}
