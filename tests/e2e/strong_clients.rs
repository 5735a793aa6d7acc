//! Strong reads over failovers, checked with an independent linearizability checker (porcupine): histories of registers, written by clients in Go
//! through two proxies. Part of `make clients`.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use kingpost_tests::{Kingpost, KingpostBuilder, SOON, ShowLogs, new_dir, within};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::OnceCell;
use toml::Table;

use crate::clients::{build, here, there};
use crate::common::only_kingpost;
use crate::fleet::Fleet;

/// Longest time to check a history.
const CHECK: Duration = Duration::from_secs(600);

/// Returns the program, compiled once.
async fn program() -> &'static PathBuf {
    static PROGRAM: OnceCell<PathBuf> = OnceCell::const_new();
    PROGRAM
        .get_or_init(async || {
            let program = new_dir("go").join("linear");
            let mut go = Command::new("go");
            build(go.args(["build", "-o"]).arg(&program).arg(".").current_dir(here().join("go/linear"))).await;
            program
        })
        .await
}

/// Running clients.
struct Clients {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// Operations done, in hundreds.
    done: u64,
}

/// Result of the checker.
struct Verdict {
    code: Option<i32>,
    text: String,
}

impl Clients {
    async fn start(fleet: &Fleet, proxies: &[&Kingpost], environment: &[(&str, &str)]) -> Clients {
        let table = "CREATE TABLE register (n bigint PRIMARY KEY, value bigint); GRANT ALL ON register TO alice";
        fleet.cluster.primary().execute(table).await;
        for replica in fleet.cluster.replicas() {
            replica.wait_caught_up(fleet.cluster.primary()).await;
        }
        let url = |proxy: &&Kingpost| {
            let (user, database) = (kingpost_tests::USER, kingpost_tests::DATABASE);
            format!("postgresql://{user}@127.0.0.1:{}/{database}?sslmode=disable", proxy.port())
        };
        let urls: Vec<String> = proxies.iter().map(url).collect();
        let mut command = Command::new(program().await);
        command.env("PROXIES", urls.join("\n")).envs(environment.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("start the clients");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut clients = Clients { child, lines, done: 0 };
        while clients.line(fleet).await != "ready" {}
        clients
    }

    async fn line(&mut self, fleet: &Fleet) -> String {
        let line = within("the clients to do something", SOON, fleet.cluster.dir(), self.lines.next_line()).await;
        let line = line.unwrap().expect("the clients go on");
        if let Some(done) = line.strip_prefix("done ") {
            self.done = done.parse().unwrap();
        }
        line
    }

    /// Waits for this many hundred operations more.
    async fn more(&mut self, fleet: &Fleet, hundreds: u64) {
        let until = self.done + hundreds;
        while self.done < until {
            self.line(fleet).await;
        }
    }

    /// Ends the history, and checks it.
    async fn check(mut self, fleet: &Fleet) -> Verdict {
        drop(self.child.stdin.take());
        let mut text = String::new();
        let read = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if !line.starts_with("done ") {
                    text += &line;
                    text.push('\n');
                }
            }
            self.child.wait().await.unwrap()
        };
        let status = within("the check of the history", CHECK, fleet.cluster.dir(), read).await;
        eprintln!("{text}");
        Verdict { code: status.code(), text }
    }
}

/// Makes a proxy that waits for the relay.
fn proxy(fleet: &Fleet) -> KingpostBuilder<'_> {
    let relay = [("name", "r1".to_owned()), ("address", format!("127.0.0.1:{}", fleet.relays[0].port()))];
    let relay: Table = relay.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
    let builder = Kingpost::of(&fleet.cluster).add("cluster.relays", relay);
    builder.set("proxy.gate.commit_durability", "relay").set("proxy.routing.consistency", "strong")
}

/// Kills the primary so that another takes over, brings the old one back, and makes a switchover.
async fn over_failovers(
    tweak: impl Fn(KingpostBuilder<'_>) -> KingpostBuilder<'_>,
    environment: &[(&str, &str)],
) -> Verdict {
    let fleet = Fleet::builder().start().await;
    let _logs = ShowLogs(fleet.cluster.dir());
    let [n0, n1, n2] = fleet.cluster.nodes() else { panic!("three nodes") };
    let (one, two) = (tweak(proxy(&fleet)).start().await, tweak(proxy(&fleet)).start().await);
    let failover = fleet.failover().proxy(&one);
    let mut clients = Clients::start(&fleet, &[&one, &two], environment).await;
    clients.more(&fleet, 10).await;
    n0.kill9().await;
    eprintln!("{}", failover.succeed(&["failover", "--to", "n1"]).await);
    clients.more(&fleet, 10).await;
    n0.rejoin(n1).await;
    clients.more(&fleet, 5).await;
    n1.kill9().await;
    eprintln!("{}", failover.succeed(&["failover", "--to", "n2"]).await);
    clients.more(&fleet, 10).await;
    eprintln!("the primary is {}", n2.name());
    clients.check(&fleet).await
}

fn ready() -> bool {
    !only_kingpost() && there("go")
}

/// Reads of the primary that wait until their result is durable: an atomic register.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go and the network: make clients"]
async fn reads_behind_the_barrier_are_linearizable_over_failovers() {
    if !ready() {
        return;
    }
    let environment = [("RULE", "linear"), ("HINTS", "/* kingpost.route=primary */ ")];
    let verdict = over_failovers(|builder| builder.set("proxy.gate.read_barrier", true), &environment).await;
    assert_eq!(verdict.code, Some(0), "{}", verdict.text);
}

/// Strong reads on any node: none misses a commit acknowledged before the read began.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go and the network: make clients"]
async fn strong_reads_miss_no_acknowledged_commit_over_failovers() {
    if !ready() {
        return;
    }
    let verdict = over_failovers(|builder| builder, &[("RULE", "recent")]).await;
    assert_eq!(verdict.code, Some(0), "{}", verdict.text);
}

/// Checks the test itself: stale reads are found, by the weaker rule, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go and the network: make clients"]
async fn old_reads_are_found_by_the_checker() {
    if !ready() {
        return;
    }
    let fleet = Fleet::builder().start().await;
    let _logs = ShowLogs(fleet.cluster.dir());
    let (one, two) = (proxy(&fleet).start().await, proxy(&fleet).start().await);
    let environment = [("RULE", "recent"), ("SESSION", "SET kingpost.consistency = 'eventual'")];
    let mut clients = Clients::start(&fleet, &[&one, &two], &environment).await;
    clients.more(&fleet, 3).await;
    fleet.cluster.replica(0).pause_replay().await;
    clients.more(&fleet, 6).await;
    let verdict = clients.check(&fleet).await;
    assert_eq!(verdict.code, Some(1), "nobody noticed:\n{}", verdict.text);
    assert!(verdict.text.contains("is not linearizable"), "{}", verdict.text);
}
