//! Strong reads at a proxy that is cut off together with the old primary: after the failover they must not be answered from there.

use std::time::Duration;

use kingpost_tests::{Cluster, Cut, Failover, Kingpost, Link, Relay, SOON, ShowLogs, within};
use tokio_postgres::Client;
use toml::{Table, Value};

use crate::common::{only_kingpost, value};

/// Longest time that a statement waits for proof in these tests.
const PATIENCE: Duration = Duration::from_secs(2);

/// Two sides: one with the primary, its own replica and a proxy; one with the relays, the node that takes over, and another proxy. All traffic
/// between the sides goes through forwarders.
struct Sides {
    cluster: Cluster,
    relays: Vec<Relay>,
    /// Forwarders from the second side to the nodes of the first one.
    to_first: [Cut; 2],
    /// Forwarder from the first side's proxy to the second side's node; then those to each relay.
    to_second: Cut,
    to_relays: Vec<Cut>,
}

impl Sides {
    async fn start(relays: usize) -> Sides {
        let cluster = Cluster::builder().replicas(2).start().await;
        let [n0, n1, n2] = cluster.nodes() else { panic!("three nodes") };
        let to_first = [Cut::to(n0.port()), Cut::to(n1.port())];
        let to_second = Cut::to(n2.port());
        let mut list = Vec::new();
        for _ in 0..relays {
            let ports = [to_first[0].port(), to_first[1].port(), n2.port()];
            let mut relay = Relay::watching(&cluster, &ports);
            relay.start().await;
            list.push(relay);
        }
        n2.follow_port(list[0].port());
        n2.wait_value("SELECT status FROM pg_stat_wal_receiver", "streaming").await;
        n0.execute("CREATE TABLE seen (n bigint); INSERT INTO seen VALUES (1); GRANT ALL ON seen TO alice").await;
        for replica in cluster.replicas() {
            replica.wait_caught_up(n0).await;
        }
        let to_relays = list.iter().map(|relay| Cut::to(relay.port())).collect();
        Sides { cluster, relays: list, to_first, to_second, to_relays }
    }

    /// Starts the proxy on the primary's side.
    async fn first_proxy(&self) -> Kingpost {
        let mut builder = Kingpost::of(&self.cluster).through(2, &self.to_second);
        for (relay, cut) in self.relays.iter().zip(&self.to_relays) {
            builder = builder.add("cluster.relays", relay_at(relay, cut.port()));
        }
        let patience = format!("{}s", PATIENCE.as_secs());
        let builder = builder.set("proxy.routing.consistency", "strong").set("proxy.gate.timeout", patience.clone());
        builder.set("proxy.pool.no_primary_timeout", patience).start().await
    }

    /// Starts the proxy on the relays' side.
    async fn second_proxy(&self) -> Kingpost {
        let [n0, n1] = &self.to_first;
        let mut builder = Kingpost::of(&self.cluster).through(0, n0).through(1, n1);
        for relay in &self.relays {
            builder = builder.add("cluster.relays", relay_at(relay, relay.port()));
        }
        builder.set("proxy.routing.consistency", "strong").start().await
    }

    fn cut(&self, link: Link) {
        // Relays and coordinator notice at once that the primary is gone; the first side's proxy notices nothing.
        self.to_first.iter().for_each(|cut| cut.set(if link == Link::Up { Link::Up } else { Link::Cut }));
        self.to_second.set(link);
        self.to_relays.iter().for_each(|cut| cut.set(link));
    }

    /// Fails over on the relays' side.
    async fn fail_over(&self) {
        let relays: Vec<&Relay> = self.relays.iter().collect();
        let at = |index: usize| format!("127.0.0.1:{}", self.to_first[index].port());
        let failover = Failover::of(&self.cluster, &relays).tag("n0", "address", at(0)).tag("n1", "address", at(1));
        // Until the relays have noticed, they report that they hear the primary.
        let done = async || {
            let ran = failover.run(&["failover"]).await;
            if ran.code != Some(0) {
                eprintln!("{}", ran.text);
            }
            (ran.code == Some(0)).then_some(())
        };
        self.cluster.wait("the failover", done).await;
    }
}

fn relay_at(relay: &Relay, port: u16) -> Table {
    let mut table = Table::new();
    table.insert("name".into(), relay.name().into());
    table.insert("address".into(), Value::from(format!("127.0.0.1:{port}")));
    table
}

/// A client that reads in one of several ways, with its session prepared.
struct Reader {
    way: &'static str,
    client: Client,
}

const COUNT: &str = "SELECT count(*) FROM seen";
const WAYS: [&str; 6] = ["a replica", "the primary", "by Bind", "in a transaction", "pinned", "by a function"];

impl Reader {
    async fn begin(kingpost: &Kingpost, way: &'static str) -> Reader {
        let client = kingpost.connect().await;
        let first = match way {
            // It has its server connection, and has read there, before anything is cut.
            "in a transaction" => "BEGIN; SELECT count(*) FROM seen",
            "pinned" => "CREATE TEMP TABLE own (n int)",
            _ => COUNT,
        };
        client.batch_execute(first).await.unwrap();
        Reader { way, client }
    }

    /// Reads, and returns the number of rows.
    async fn read(&self) -> Result<String, tokio_postgres::Error> {
        let text = match self.way {
            "by Bind" => {
                return self.client.query_one(COUNT, &[]).await.map(|row| row.get::<_, i64>(0).to_string());
            }
            "the primary" => format!("/* kingpost.route=primary */ {COUNT}"),
            "by a function" => "SELECT count_seen()".to_owned(),
            _ => COUNT.to_owned(),
        };
        let messages = self.client.simple_query(&text).await?;
        let row = messages.into_iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        Ok(row.expect("a row"))
    }
}

/// Returns the result of each reader within its time.
async fn read_all(sides: &Sides, readers: &[Reader]) -> Vec<(&'static str, Result<String, tokio_postgres::Error>)> {
    let reads = readers.iter().map(async |reader| {
        let read = within("an answer or an error", SOON, sides.cluster.dir(), reader.read());
        (reader.way, read.await)
    });
    futures_util::future::join_all(reads).await
}

async fn a_cut_off_proxy(relays: usize) {
    if only_kingpost() {
        return;
    }
    let sides = Sides::start(relays).await;
    let _logs = ShowLogs(sides.cluster.dir());
    let function = "CREATE FUNCTION count_seen() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM seen'";
    sides.cluster.primary().execute(function).await;
    let (first, second) = (sides.first_proxy().await, sides.second_proxy().await);
    let mut readers = Vec::new();
    for way in WAYS {
        readers.push(Reader::begin(&first, way).await);
    }
    for (way, read) in read_all(&sides, &readers).await {
        assert_eq!(read.unwrap(), "1", "{way}: while all is well");
    }
    // As long as the unreachable relays could not elect another primary, no client notices.
    let spare = relays / 2;
    sides.to_relays[..spare].iter().for_each(|cut| cut.set(Link::BlackHole));
    for (way, read) in read_all(&sides, &readers).await {
        assert_eq!(read.unwrap(), "1", "{way}: with {spare} of {relays} relays silent");
    }

    sides.cut(Link::BlackHole);
    sides.fail_over().await;
    let writer = second.connect().await;
    let insert = "INSERT INTO seen VALUES (2)";
    within("a commit on the other side", SOON, sides.cluster.dir(), writer.batch_execute(insert)).await.unwrap();
    assert_eq!(value(&writer, COUNT).await, "2", "a strong read where the new primary is");

    // The old primary and its replica answer the first proxy as before: no client may get these answers.
    let told = read_all(&sides, &readers).await;
    let stale: Vec<_> = told.iter().filter_map(|(way, read)| Some((way, read.as_ref().ok()?))).collect();
    assert!(
        stale.is_empty(),
        "answered from the primary that was left behind, which lacks an acknowledged commit: {stale:?}"
    );
    for (way, read) in told {
        let error = read.unwrap_err();
        let said = error.as_db_error().unwrap_or_else(|| panic!("{way}: {error:?}"));
        assert!(said.message().contains("proof") || said.message().contains("proven"), "{way}: {said:?}");
        assert!(said.hint().is_some_and(|hint| hint.contains("cluster.relays")), "{way}: {said:?}");
        // A client with a server connection has run it, and loses its connection; the others have run nothing.
        let holds = matches!(way, "in a transaction" | "pinned");
        assert_eq!(said.code().code(), if holds { "08007" } else { "57P03" }, "{way}: {said:?}");
    }
    let unproven = first.metrics().await.sum("kingpost_strong_unproven_total", &[]);
    assert_eq!(unproven, WAYS.len() as f64);
    // A session with weaker consistency goes on.
    let eventual = first.connect().await;
    eventual.batch_execute("SET kingpost.consistency = 'eventual'").await.unwrap();
    assert_eq!(value(&eventual, COUNT).await, "1");

    sides.cut(Link::Up);
    // Once the proxy gets any proof, its answers are current.
    let reader = Reader { way: "a replica", client: first.connect().await };
    let seen = async || reader.read().await.ok();
    assert_eq!(sides.cluster.wait("a strong read after the cut", seen).await, "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_off_proxy_does_not_answer_strong_reads_from_the_old_primary_with_one_relay() {
    a_cut_off_proxy(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_off_proxy_does_not_answer_strong_reads_from_the_old_primary_with_three_relays() {
    a_cut_off_proxy(3).await;
}

/// A relay that is restarted, or was silent when asked, is asked again: no read is refused for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strong_reads_wait_for_a_relay_that_is_restarted() {
    if only_kingpost() {
        return;
    }
    let mut sides = Sides::start(1).await;
    let _logs = ShowLogs(sides.cluster.dir());
    let mut builder =
        Kingpost::of(&sides.cluster).add("cluster.relays", relay_at(&sides.relays[0], sides.relays[0].port()));
    builder = builder.set("proxy.routing.consistency", "strong");
    let kingpost = builder.start().await;
    let client = kingpost.connect().await;
    assert_eq!(value(&client, COUNT).await, "1");
    sides.relays[0].kill9().await;
    let reading = tokio::spawn(async move { value(&client, COUNT).await });
    sides.relays[0].start().await;
    assert_eq!(within("the read that waited", SOON, sides.cluster.dir(), reading).await.unwrap(), "1");
}
