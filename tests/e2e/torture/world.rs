//! A fleet, and its faults.

use std::path::Path;
use std::time::Duration;

use kingpost_tests::{Cluster, Cut, Failover, Kingpost, Link, Node, Relay};
use tokio_postgres::Client;

use super::history::Clients;
use super::random::Random;
use super::scene::Scene;

/// Durability that a commit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// The relay, as PostgreSQL's synchronous standby.
    Native,
    /// The relay, by the proxy's gate, with read barriers.
    Gate,
    /// As `Gate`, and commits leave their flush to the proxy's request.
    Flush,
    /// The gate, which answers before the relay has the commit as soon as the relay is silent: to check that the suite finds the resulting faults.
    Early,
}

/// Three servers, a relay between them, a proxy in front; forwarders between relay and servers, and proxy and servers.
pub(super) struct World {
    pub(super) seed: u64,
    random: Random,
    pub(super) durability: Durability,
    pub(super) cluster: Cluster,
    relay: Relay,
    kingpost: Kingpost,
    relay_links: Vec<Cut>,
    proxy_links: Vec<Cut>,
    failover: Failover,
    primary: usize,
    pub(super) failovers: u64,
    pub(super) others: u64,
    /// Faults so far, in order.
    pub(super) faults: Vec<String>,
}

impl Scene for World {
    fn dir(&self) -> &Path {
        self.cluster.dir()
    }

    async fn admin(&self) -> Client {
        self.primary().admin().await
    }

    fn last(&self) -> &str {
        self.faults.last().map_or("the start", String::as_str)
    }

    fn has_barriers(&self) -> bool {
        self.durability != Durability::Native
    }
}

impl World {
    pub(super) fn primary(&self) -> &Node {
        &self.cluster.nodes()[self.primary]
    }

    pub(super) async fn start(seed: u64, durability: Durability) -> World {
        let cluster = Cluster::builder().replicas(2).start().await;
        let links = || cluster.nodes().iter().map(|node| Cut::to(node.port())).collect::<Vec<_>>();
        let (relay_links, proxy_links) = (links(), links());
        let ports: Vec<u16> = relay_links.iter().map(Cut::port).collect();
        let mut relay = Relay::watching(&cluster, &ports).set("relay.upstream.timeout", "4s");
        relay.start().await;
        for replica in cluster.replicas() {
            replica.follow_port(relay.port());
        }
        let primary = cluster.primary();
        if durability == Durability::Native {
            for node in cluster.nodes() {
                node.execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{}'", relay.name())).await;
                node.execute("SELECT pg_reload_conf()").await;
            }
            primary.wait_value("SELECT string_agg(sync_state, ',') FROM pg_stat_replication", "sync").await;
        }
        primary
            .execute("CREATE TABLE log (w int, n bigint); CREATE INDEX ON log (w, n); GRANT ALL ON log TO PUBLIC")
            .await;
        for replica in cluster.replicas() {
            replica.wait_caught_up(primary).await;
        }
        let mut builder = Kingpost::of(&cluster).set("proxy.pool.no_primary_timeout", "60s");
        for (index, link) in proxy_links.iter().enumerate() {
            builder = builder.through(index, link);
        }
        if durability != Durability::Native {
            let mut table = toml::Table::new();
            table.insert("name".into(), "relay".into());
            table.insert("address".into(), format!("127.0.0.1:{}", relay.port()).into());
            builder = builder.add("cluster.relays", table).set("proxy.gate.read_barrier", true);
            builder = builder.set("proxy.gate.commit_durability", "relay");
            if durability == Durability::Flush {
                // Before PostgreSQL 17 each flush request takes a transaction.
                builder = builder.set("proxy.gate.flush", "batch-transaction");
            }
            if durability == Durability::Early {
                builder = builder.set("proxy.gate.on_degraded", "local").set("proxy.gate.degraded_after", "1ms");
            }
        }
        let kingpost = builder.start().await;
        let failover = Failover::of(&cluster, &[&relay]).proxy(&kingpost).stopping(&cluster);
        World {
            seed,
            random: Random(seed),
            durability,
            cluster,
            relay,
            kingpost,
            relay_links,
            proxy_links,
            failover,
            primary: 0,
            failovers: 0,
            others: 0,
            faults: Vec::new(),
        }
    }

    pub(super) async fn clients(&self, count: usize) -> Clients {
        Clients::start(self.kingpost.endpoint(), count)
    }

    /// Sets the link between the relay and the primary.
    pub(super) fn relay_link(&self, link: Link) {
        self.relay_links[self.primary].set(link);
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random.draw(below)
    }

    /// Chooses one of the standbys.
    fn standby(&mut self) -> usize {
        let others: Vec<usize> = (0..self.cluster.nodes().len()).filter(|index| *index != self.primary).collect();
        others[self.draw(others.len() as u64) as usize]
    }

    /// Waits for a while in which clients go on, or try to.
    async fn while_faulty(&mut self, most_ms: u64) {
        let ms = self.draw(most_ms);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        eprintln!("{:?} {:>4} {text}", self.durability, self.faults.len());
        self.faults.push(text);
    }

    /// Makes one fault, and repairs it.
    pub(super) async fn fault(&mut self) {
        match self.draw(14) {
            0..=2 => self.crash().await,
            3 => self.crash_with_the_relay().await,
            4 => self.crash_of_the_coordinator().await,
            5 => self.freeze().await,
            6 => self.isolate().await,
            7 => self.switch_over(true).await,
            8 => self.switch_over(false).await,
            9 => {
                self.note("kill -9 of the relay");
                self.relay.kill9().await;
                self.while_faulty(500).await;
                self.relay.start().await;
                self.others += 1;
            }
            10 => {
                let index = self.standby();
                self.note(format!("kill -9 of standby n{index}"));
                self.cluster.nodes()[index].kill9().await;
                self.while_faulty(500).await;
                self.cluster.nodes()[index].start().await;
                self.others += 1;
            }
            11 => {
                self.note("kill -9 of the proxy");
                self.kingpost.kill9().await;
                self.kingpost.start().await;
                self.others += 1;
            }
            12 => self.cut().await,
            _ => {
                self.note("restart of the primary");
                self.primary().stop().await;
                self.while_faulty(300).await;
                self.primary().start().await;
                self.others += 1;
            }
        }
        self.mend().await;
    }

    /// Cuts, slows or silences links for a while.
    async fn cut(&mut self) {
        let kinds = [Link::Cut, Link::BlackHole, Link::Slow(Duration::from_millis(15))];
        let kind = kinds[self.draw(3) as usize];
        let index = self.draw(self.cluster.nodes().len() as u64) as usize;
        let proxy = self.draw(2) == 0;
        let links = if proxy { &self.proxy_links } else { &self.relay_links };
        links[index].set(kind);
        self.note(format!("{kind:?} between {} and n{index}", if proxy { "proxy" } else { "relay" }));
        self.while_faulty(1500).await;
        let links = if proxy { &self.proxy_links } else { &self.relay_links };
        links[index].set(Link::Up);
        self.others += 1;
    }

    async fn crash(&mut self) {
        self.note(format!("kill -9 of the primary n{}", self.primary));
        self.primary().kill9().await;
        self.fail_over(&["failover"]).await;
    }

    async fn crash_with_the_relay(&mut self) {
        self.note(format!("kill -9 of the primary n{} and the relay", self.primary));
        if self.draw(2) == 0 {
            self.relay.kill9().await;
            self.primary().kill9().await;
        } else {
            self.primary().kill9().await;
            self.relay.kill9().await;
        }
        self.relay.launch();
        self.fail_over(&["failover"]).await;
    }

    async fn crash_of_the_coordinator(&mut self) {
        self.note(format!("kill -9 of the primary n{}, and of `kingpost failover`", self.primary));
        self.primary().kill9().await;
        for _ in 0..2 {
            let (process, _) = self.failover.start(&["failover"]);
            self.while_faulty(600).await;
            drop(process);
        }
        self.fail_over(&["failover"]).await;
    }

    /// Freezes the primary at an arbitrary point, and resumes it when there is another.
    async fn freeze(&mut self) {
        self.note(format!("the primary n{} is frozen, and wakes up later", self.primary));
        let old = self.primary;
        self.primary().sigstop();
        self.promote_another(&["failover", "--force"]).await;
        self.cluster.nodes()[old].sigcont();
        self.while_faulty(500).await;
        self.rejoin(old).await;
    }

    /// Separates the primary from the relay, but not from proxies.
    async fn isolate(&mut self) {
        self.note(format!("the relay cannot reach the primary n{}", self.primary));
        let old = self.primary;
        self.relay_links[old].set(Link::BlackHole);
        self.while_faulty(300).await;
        self.promote_another(&["failover", "--force"]).await;
        self.while_faulty(300).await;
        self.relay_links[old].set(Link::Up);
        self.rejoin(old).await;
    }

    async fn switch_over(&mut self, clean: bool) {
        let (old, new) = (self.primary, self.standby());
        self.note(format!(
            "switchover from n{old} to n{new}, {}",
            if clean { "stopping it" } else { "without stopping it" }
        ));
        let name = format!("n{new}");
        let failover = if clean {
            self.failover.clone()
        } else {
            self.failover.clone().set("failover.stop", Vec::<String>::new())
        };
        failover.succeed(&["switchover", "--to", &name]).await;
        self.primary = new;
        self.failovers += 1;
        if clean {
            // Stopped cleanly, with all WAL sent: it goes on unchanged.
            let node = &self.cluster.nodes()[old];
            node.demote(self.relay.port());
            node.start().await;
        } else {
            self.rejoin(old).await;
        }
    }

    /// Promotes another primary, and makes the old one a standby.
    pub(super) async fn fail_over(&mut self, arguments: &[&str]) {
        let old = self.primary;
        self.promote_another(arguments).await;
        self.rejoin(old).await;
    }

    async fn promote_another(&mut self, arguments: &[&str]) {
        let mut text = String::new();
        // The relay may still be starting, or not have noticed the primary's end.
        for _ in 0..40 {
            // After a promotion another `--force` would start the next one.
            let arguments: &[&str] = if text.contains("promoted n") { &["failover"] } else { arguments };
            let ran = self.failover.run(arguments).await;
            text = ran.text;
            if ran.code == Some(0) || text.contains("is the primary and answers") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        let nodes = self.cluster.nodes().len();
        let mut new = None;
        for index in (0..nodes).filter(|index| *index != self.primary) {
            if self.cluster.nodes()[index].query("SELECT pg_is_in_recovery()").await == "f" {
                assert_eq!(new.replace(index), None, "two primaries:\n{text}");
            }
        }
        self.primary = new.unwrap_or_else(|| panic!("seed {}: nobody was promoted:\n{text}", self.seed));
        self.failovers += 1;
    }

    async fn rejoin(&mut self, old: usize) {
        let node = &self.cluster.nodes()[old];
        if node.is_running() {
            node.kill9().await;
        }
        node.rejoin(self.primary()).await;
        node.follow_port(self.relay.port());
    }

    /// Waits for full recovery.
    async fn mend(&mut self) {
        self.relay.wait_receiving().await;
        for (index, node) in self.cluster.nodes().iter().enumerate() {
            if index != self.primary {
                node.wait_value("SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming'", "1").await;
            }
        }
        self.kingpost.wait_readyz(200).await;
    }
}
