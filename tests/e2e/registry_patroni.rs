//! Patroni, unmodified, with the registry as its Consul: members, the leader's lock, a failover.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use kingpost_tests::{
    Port, Process, RegistryNode, RunAs, ShowLogs, command, http_get, new_dir, pg_bin, signal, skipped, wait_until,
};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio_postgres::{Client, NoTls};

use crate::clients::{here, installed};

/// A failover takes twice the session's time to live, and Patroni's own loops.
const LIMIT: Duration = Duration::from_secs(120);

/// Patroni and its server.
struct Member {
    name: &'static str,
    dir: PathBuf,
    api: Port,
    server: Port,
    process: Option<Process>,
}

impl Member {
    fn new(name: &'static str, registry: &RegistryNode) -> Member {
        let dir = new_dir(name);
        // Patroni creates the data directory there, as the servers' user.
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
        let member = Member { name, dir, api: Port::reserve(), server: Port::reserve(), process: None };
        let at = |port: &Port| format!("127.0.0.1:{}", port.number());
        let trust =
            ["local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"];
        let config = json!({
            "scope": "demo",
            "name": name,
            "restapi": { "listen": at(&member.api), "connect_address": at(&member.api) },
            "consul": { "host": format!("127.0.0.1:{}", registry.port()), "scheme": "http" },
            "bootstrap": {
                "dcs": { "ttl": 20, "loop_wait": 1, "retry_timeout": 5, "postgresql": { "parameters": { "fsync": "off" } } },
                "initdb": [{ "encoding": "UTF8" }, { "auth": "trust" }],
                "pg_hba": trust,
            },
            "postgresql": {
                "listen": at(&member.server),
                "connect_address": at(&member.server),
                "data_dir": member.data(),
                "bin_dir": pg_bin(),
                "pgpass": member.dir.join("pgpass"),
                "authentication": {
                    "superuser": { "username": "postgres" }, "replication": { "username": "replicator" },
                },
                "parameters": { "unix_socket_directories": member.dir },
            },
        });
        // JSON is YAML too.
        std::fs::write(member.dir.join("patroni.yml"), config.to_string()).unwrap();
        member
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn start(&mut self, program: &Path) {
        // On this signal Patroni stops its server, too.
        let mut patroni = command(program, RunAs::Server, "TERM");
        patroni.arg(self.dir.join("patroni.yml")).env("HOME", &self.dir).current_dir(&self.dir);
        self.process = Some(Process::start(self.name, patroni, &self.dir.join("patroni.log")));
    }

    /// True if Patroni reports this state of itself.
    async fn is(&self, what: &str) -> bool {
        http_get(self.api.number(), what).await.is_some_and(|(status, _)| status == 200)
    }

    /// Returns the server's process, if it runs.
    fn postmaster(&self) -> Option<u32> {
        let text = std::fs::read_to_string(self.data().join("postmaster.pid")).ok()?;
        let pid = text.lines().next()?.trim().parse().ok()?;
        // The file of a killed server stays, and the number may belong to another process by now.
        let started = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        String::from_utf8_lossy(&started).contains(&*self.data().to_string_lossy()).then_some(pid)
    }

    fn kill9(&mut self) {
        drop(self.process.take());
        if let Some(pid) = self.postmaster() {
            signal(pid, 9);
        }
    }

    async fn connect(&self) -> Client {
        let config = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", self.server.number());
        let (client, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// Returns the leader, by the registry.
async fn leader(registry: &RegistryNode) -> String {
    registry.get("/v1/kv/service/demo/leader?raw").await.body
}

#[tokio::test]
#[ignore = "needs the network: make clients"]
async fn registry_patroni_clients() {
    if !Path::new("/usr/bin/python3").exists() {
        skipped("Patroni needs /usr/bin/python3, which the servers' user may run");
        return;
    }
    let setup = Command::new(here().join("setup")).arg("--patroni").stdin(Stdio::null()).kill_on_drop(true).output();
    let setup = tokio::time::timeout(Duration::from_secs(300), setup).await.expect("the set-up ends").unwrap();
    assert!(setup.status.success(), "{}", String::from_utf8_lossy(&setup.stderr));
    let program = std::fs::canonicalize(installed().await).unwrap().join("patroni/bin/patroni");

    let registry = RegistryNode::start("").await;
    let _logs = ShowLogs(registry.dir());
    let (mut one, mut two) = (Member::new("one", &registry), Member::new("two", &registry));
    one.start(&program);
    wait_until("the first primary", LIMIT, &one.dir, async || one.is("/primary").await.then_some(())).await;
    two.start(&program);
    wait_until("a replica that streams", LIMIT, &two.dir, async || {
        let (_, body) = http_get(one.api.number(), "/cluster").await?;
        let cluster: Value = serde_json::from_str(&body).ok()?;
        cluster["members"].as_array()?.iter().any(|member| member["state"] == "streaming").then_some(())
    })
    .await;
    let client = one.connect().await;
    client.batch_execute("create table notes (id int); insert into notes values (1)").await.unwrap();
    assert_eq!(leader(&registry).await, "one");
    let position = client.query_one("select pg_current_wal_lsn()::text", &[]).await.unwrap().get::<_, String>(0);
    let replica = two.connect().await;
    wait_until("the row at the replica", LIMIT, &two.dir, async || {
        let replayed = format!("select pg_last_wal_replay_lsn() >= '{position}'");
        replica.query_one(&replayed, &[]).await.ok()?.get::<_, bool>(0).then_some(())
    })
    .await;

    one.kill9();
    wait_until("the second primary", LIMIT, &two.dir, async || two.is("/primary").await.then_some(())).await;
    let client = two.connect().await;
    // For Patroni the holder of the lock is the primary, even while its server is still being promoted.
    wait_until("the second primary to take writes", LIMIT, &two.dir, async || {
        client.batch_execute("insert into notes values (2)").await.ok()
    })
    .await;
    assert_eq!(leader(&registry).await, "two");
    // The old one comes back: as a replica, because the lock is held.
    one.start(&program);
    wait_until("the old primary as a replica", LIMIT, &one.dir, async || {
        assert!(!one.is("/primary").await, "two primaries");
        one.is("/replica").await.then_some(())
    })
    .await;
    assert_eq!(leader(&registry).await, "two");
    let replica = one.connect().await;
    wait_until("both rows at the old primary", LIMIT, &one.dir, async || {
        let rows = replica.query_one("select count(*) from notes", &[]).await.ok()?;
        (rows.get::<_, i64>(0) == 2).then_some(())
    })
    .await;

    // Stopped cleanly, it releases the lock: the session's time to live is not waited for.
    drop((client, replica));
    two.process.as_ref().unwrap().signal(15);
    wait_until("the first one again", LIMIT, &one.dir, async || one.is("/primary").await.then_some(())).await;
    assert_eq!(leader(&registry).await, "one");
}
