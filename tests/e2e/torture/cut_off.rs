//! A network partition that drops packets isolates the old primary, with two proxies beside it. The other side fails over.
//!
//! ```text
//!  clients ─▶ p0, p1 ─▶ n0   ┊   n1 n2 ◀─ p2 ◀─ clients
//!                            ┊    ▲
//!                            ┊   relay, `kingpost failover`
//! ```
//!
//! The command reaches the console of p0, as by a separate network, but not that of p1.

use std::path::Path;
use std::time::{Duration, Instant};

use kingpost_tests::{Cluster, Cut, Failover, Kingpost, KingpostBuilder, Link, Relay, ShowLogs};
use tokio_postgres::Client;
use toml::{Table, Value};

use super::history::Clients;
use super::scene::Scene;
use crate::common::only_kingpost;

struct Sides {
    cluster: Cluster,
    relay: Relay,
    /// Links to n0 from the other side; and from n0's side to the other nodes, to the relay, and to the console of p1.
    between: Vec<Cut>,
    proxies: [Kingpost; 3],
    failover: Failover,
    primary: usize,
}

impl Scene for Sides {
    fn dir(&self) -> &Path {
        self.cluster.dir()
    }

    async fn admin(&self) -> Client {
        self.cluster.nodes()[self.primary].admin().await
    }

    fn last(&self) -> &str {
        if self.primary == 0 { "the start" } else { "the failover" }
    }

    fn has_barriers(&self) -> bool {
        true
    }
}

fn part(name: &str, port: u16) -> Table {
    let mut table = Table::new();
    table.insert("name".into(), name.into());
    table.insert("address".into(), format!("127.0.0.1:{port}").into());
    table
}

impl Sides {
    async fn start() -> Sides {
        let cluster = Cluster::builder().replicas(2).start().await;
        let [n0, n1, n2] = cluster.nodes() else { panic!("three nodes") };
        let to_n0 = Cut::to(n0.port());
        // Its configuration names the primary: it follows another one only by order.
        let mut relay = Relay::of(&cluster, to_n0.port());
        relay.start().await;
        for replica in cluster.replicas() {
            replica.follow_port(relay.port());
        }
        n0.execute("CREATE TABLE log (w int, n bigint); CREATE INDEX ON log (w, n); GRANT ALL ON log TO PUBLIC").await;
        for replica in cluster.replicas() {
            replica.wait_caught_up(n0).await;
        }
        let others = [Cut::to(n1.port()), Cut::to(n2.port()), Cut::to(relay.port())];
        let proxy = |relay: u16| -> KingpostBuilder {
            let builder = Kingpost::of(&cluster).add("cluster.relays", part("relay", relay));
            let builder = builder.set("proxy.gate.commit_durability", "relay").set("proxy.gate.read_barrier", true);
            // Isolated clients get an error soon.
            let builder = builder.set("proxy.gate.timeout", "2s").set("proxy.pool.no_primary_timeout", "2s");
            builder.set("cluster.probe_interval", "1s").set("cluster.probe_timeout", "2s")
        };
        let beside = || proxy(others[2].port()).through(1, &others[0]).through(2, &others[1]);
        let proxies = [
            beside().start().await,
            beside().start().await,
            proxy(relay.port()).through(0, &to_n0).set("proxy.pool.no_primary_timeout", "60s").start().await,
        ];
        let to_p1 = Cut::to(proxies[1].port());
        let ports = [proxies[0].port(), to_p1.port(), proxies[2].port()];
        let parts: Vec<Value> =
            ports.into_iter().enumerate().map(|(n, port)| part(&format!("p{n}"), port).into()).collect();
        let failover = Failover::of(&cluster, &[&relay]).set("failover.proxies", parts);
        let failover = failover.tag("n0", "address", format!("127.0.0.1:{}", to_n0.port()));
        let between = [to_n0, to_p1].into_iter().chain(others).collect();
        Sides { cluster, relay, between, proxies, failover, primary: 0 }
    }

    fn cut(&self, link: Link) {
        self.between.iter().for_each(|cut| cut.set(link));
    }
}

/// The side with the relay continues: the command ends within its own limits and names the proxies that it has not reached; no acknowledged commit is
/// lost, or missed by a strong read.
#[tokio::test(flavor = "multi_thread")]
async fn a_side_that_is_cut_off_holds_up_nobody_on_the_other() {
    if only_kingpost() {
        return;
    }
    let mut sides = Sides::start().await;
    let dir = sides.cluster.dir().to_owned();
    let _logs = ShowLogs(&dir);
    let [p0, p1, p2] = &sides.proxies;
    let clients = Clients::start_at(&[p0.endpoint(), p2.endpoint(), p1.endpoint(), p2.endpoint()], 8);
    clients.progress(&sides, 60).await;

    sides.cut(Link::BlackHole);
    let began = Instant::now();
    // Until the relay has noticed the partition, it reports that it hears the primary.
    let ended = async || {
        let ran = sides.failover.run(&["failover"]).await;
        eprintln!("{:?} after the cut: {}", began.elapsed(), ran.text);
        (ran.code == Some(0)).then_some(ran.text)
    };
    let text = sides.cluster.wait_for("the failover", Duration::from_secs(120), ended).await;
    let resuming = "RESUME WHEN TIMELINE >= 2";
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("does not know yet")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    let said = format!("{resuming} took longer than 5s");
    assert!(lines.iter().any(|line| line.contains("p0") && line.contains(&said)), "{text}");
    assert!(lines.iter().any(|line| line.contains("p1") && line.contains("no connection within 2s")), "{text}");
    // The relay, for which the clients of p2 wait, is switched over before the unreachable proxies.
    let follows = text.find(&format!("{} follows on timeline 2", sides.relay.name()));
    assert!(follows.is_some() && follows < text.find("p0 does not know yet"), "{text}");
    sides.primary = if text.contains("promoted n1") { 1 } else { 2 };
    clients.progress(&sides, 100).await;

    sides.cut(Link::Up);
    for proxy in &sides.proxies {
        proxy.wait_readyz(200).await;
    }
    clients.progress(&sides, 100).await;
    let summary = clients.end(&sides).await;
    let violations = clients.check(&sides).await;
    assert!(violations.is_empty(), "{} violations, such as {:?}; {summary}", violations.len(), violations.first());
    eprintln!("{summary}");
}
