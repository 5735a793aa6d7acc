//! Random kills of a MySQL source, its replicas, their relay and runs of `kingpost`, while clients write: no acknowledged commit is lost.
//!
//! The sequence comes from a seed, which is printed: `KINGPOST_TORTURE_SEED` repeats it, `KINGPOST_TORTURE_FAILOVERS` sets the number of rounds.

use std::sync::{Arc, PoisonError};

use kingpost_tests::{BinlogRelay, MySql, SOON, wait_until};

use crate::mysql::{is_missing, replica};
use crate::mysql_changes::{Servers, Writers, all, all_agree, cluster, nodes, server, writable};
use crate::torture::random::Random;
use crate::torture::{number, seed};

/// Rounds, where the environment names no number.
const ROUNDS: u64 = 20;
const STEPS: [&str; 5] = ["silenced", "fenced", "caught-up", "elected", "promoted"];

struct World {
    servers: Servers,
    relay: BinlogRelay,
    /// The server that takes writes.
    source: usize,
    /// `server_id` of the next server that is made anew.
    next_id: u32,
    random: Random,
}

impl World {
    fn another(&mut self) -> usize {
        let others = usize::try_from(self.random.draw(2)).unwrap_or(0);
        (self.source + 1 + others) % 3
    }

    fn name(&self, index: usize) -> &'static str {
        nodes(&self.servers)[index].0
    }

    /// Carries out one fault; returns its name.
    async fn fault(&mut self) -> String {
        let source = server(&self.servers, self.source);
        match self.random.draw(7) {
            0 => {
                self.relay.kill9().await;
                self.relay.start().await;
                "relay".into()
            }
            1 => {
                let index = self.another();
                let replica = server(&self.servers, index);
                replica.kill9().await;
                self.start_replica(&replica).await;
                format!("replica {}", self.name(index))
            }
            2 => {
                source.kill9().await;
                source.start().await;
                format!("source {}", self.name(self.source))
            }
            3 => {
                self.relay.kill9().await;
                source.kill9().await;
                source.start().await;
                self.relay.start().await;
                format!("relay and source {}", self.name(self.source))
            }
            4 => self.failover(&source).await,
            5 => {
                let to = self.another();
                self.switchover(to, None).await;
                format!("switchover to {}", self.name(to))
            }
            _ => {
                let (to, step) = (self.another(), STEPS[usize::try_from(self.random.draw(5)).unwrap_or(0)]);
                self.switchover(to, Some(step)).await;
                format!("switchover to {}, killed at {step}", self.name(to))
            }
        }
    }

    /// Starts a server that was a replica, which replicates from the relay as before.
    async fn start_replica(&self, replica: &MySql) {
        replica.start_as_source(false);
        replica.start().await;
        replica.run(&["SET GLOBAL super_read_only = ON", "START REPLICA"]).await;
    }

    async fn switchover(&mut self, to: usize, die_at: Option<&str>) {
        let (nodes, name) = (nodes(&self.servers), self.name(to));
        if let Some(step) = die_at {
            let (done, said) = self.relay.switchover(&nodes, &["--to", name, "--die-at", step]).await;
            assert!(!done, "{said}");
        }
        let (done, said) = self.relay.switchover(&nodes, &["--to", name]).await;
        assert!(done, "{said}");
        self.changed(to);
    }

    fn changed(&mut self, to: usize) {
        server(&self.servers, self.source).start_as_source(false);
        server(&self.servers, to).start_as_source(true);
        self.source = to;
    }

    /// The source is lost. It comes back as a replica, made anew if it has what nobody acknowledged.
    async fn failover(&mut self, source: &MySql) -> String {
        let nodes = nodes(&self.servers);
        source.kill9().await;
        let said = wait_until("the failover", SOON * 2, self.relay.logs(), async || {
            let (done, said) = self.relay.failover(&nodes, &[]).await;
            done.then_some(said)
        })
        .await;
        let (lost, old) = (self.source, self.name(self.source));
        let to = nodes.iter().position(|(name, _)| said.contains(&format!("{name} is the source"))).unwrap();
        self.changed(to);
        source.start_as_source(false);
        source.start().await;
        source.run(&["SET GLOBAL super_read_only = ON"]).await;
        let new = server(&self.servers, to);
        let subset = format!("SELECT GTID_SUBSET('{}', '{}')", source.gtids().await, new.gtids().await);
        let fits = new.value(&subset).await == "1";
        if fits {
            source.replicate_from(self.relay.port(), "SOURCE_SSL=0").await;
        } else {
            source.kill9().await;
            let anew = replica(self.next_id, &self.relay).await;
            self.next_id += 1;
            anew.run(&["SET GLOBAL super_read_only = ON"]).await;
            self.servers.write().unwrap_or_else(PoisonError::into_inner)[lost] = Arc::new(anew);
        }
        format!("failover from {old} to {}{}", self.name(to), if fits { "" } else { ", made anew" })
    }

    /// Waits until each replica has what the source has now, so that the next fault may name any of them.
    async fn settle(&self) {
        let at = server(&self.servers, self.source).gtids().await;
        for server in all(&self.servers) {
            server.wait_for_gtids(&at).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "kills three servers of MySQL and a relay for minutes, for scripts/test-long"]
async fn nothing_that_mysql_acknowledged_is_lost_whatever_dies() {
    if is_missing() {
        return;
    }
    let (seed, rounds) = (seed(), number("KINGPOST_TORTURE_FAILOVERS").unwrap_or(ROUNDS));
    eprintln!("MySQL: KINGPOST_TORTURE_SEED={seed}, {rounds} rounds");
    let (servers, relay) = cluster().await;
    let writers = Writers::start(&servers, 4);
    let mut world = World { servers, relay, source: 0, next_id: 4, random: Random(seed) };
    for round in 1..=rounds {
        writers.more(20, &world.relay).await;
        let fault = world.fault().await;
        eprintln!("{round:3} {fault}");
        writers.more(20, &world.relay).await;
        assert_eq!(writable(&world.servers).await, world.source, "{fault}");
        world.settle().await;
    }
    let acknowledged = writers.end().await;
    all_agree(&world.servers, &acknowledged).await;
    eprintln!("MySQL: {rounds} rounds, {} commits acknowledged, 0 lost", acknowledged.len());
}
