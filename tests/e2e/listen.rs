//! LISTEN in transaction mode: one server connection listens for all clients, and none of them is pinned.

use std::time::Duration;

use kingpost_tests::raw::{Message, Raw, bind, execute, parse, query, sync};
use kingpost_tests::{Cluster, Kingpost, ShowLogs, within};

use crate::common::{name, only_kingpost, shared, value};

/// A raw client: its process id, as it was told, and its connection.
struct Listener {
    raw: Raw,
    pid: u32,
}

/// A notification: process, channel and payload.
type Heard = (u32, String, String);

fn heard(message: &Message) -> Heard {
    let pid = u32::from_be_bytes(message.body[..4].try_into().unwrap());
    let mut texts = message.body[4..].split(|&b| b == 0).map(|text| String::from_utf8_lossy(text).into_owned());
    (pid, texts.next().unwrap(), texts.next().unwrap())
}

impl Listener {
    async fn new(kingpost: &Kingpost) -> Listener {
        let mut raw = Raw::connect(kingpost.port()).await;
        let parameters = [("user", kingpost_tests::USER), ("database", kingpost_tests::DATABASE)];
        raw.send(&kingpost_tests::raw::startup(3 << 16, &parameters)).await;
        let greeting = raw.until(b'Z').await;
        let key = greeting.iter().find(|message| message.kind == b'K').expect("a key");
        Listener { raw, pid: u32::from_be_bytes(key.body[..4].try_into().unwrap()) }
    }

    /// Runs statements; returns the kinds of messages up to the end, without notifications.
    async fn run(&mut self, sql: &str) -> String {
        self.raw.send(&query(sql)).await;
        let messages = self.raw.until(b'Z').await;
        messages.iter().filter(|message| !b"ASN".contains(&message.kind)).map(|message| message.kind as char).collect()
    }

    /// Returns the next notification; no other message may come.
    async fn hears(&mut self) -> Heard {
        let message = self.raw.next().await.expect("a notification");
        assert_eq!(message.kind, b'A', "{message:?}");
        heard(&message)
    }

    async fn hears_text(&mut self) -> String {
        self.hears().await.2
    }

    /// Returns the error with which the connection ends.
    async fn ends(&mut self) -> (String, String) {
        let messages = self.raw.rest().await;
        let error = messages.iter().find(|message| message.kind == b'E').unwrap_or_else(|| panic!("{messages:?}"));
        (error.field(b'C').unwrap(), error.field(b'M').unwrap())
    }
}

/// Counts the clients that listen by a shared connection, and those that are pinned.
async fn counts(kingpost: &Kingpost) -> (f64, f64) {
    let metrics = kingpost.metrics().await;
    (metrics.sum("kingpost_clients_listening", &[]), metrics.sum("kingpost_clients_pinned", &[]))
}

#[tokio::test]
async fn clients_on_one_server_hear_each_other() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", 1).set("proxy.workers", 2).start().await;
    let (news, own) = (name("news"), name("Own \" channel"));
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(Listener::new(&kingpost).await);
    }
    for (n, client) in clients.iter_mut().enumerate() {
        // By each protocol, alone and in a transaction.
        match n {
            0 => assert_eq!(client.run(&format!("LISTEN {news}")).await, "CZ"),
            1 => {
                let text = format!("LISTEN {news}");
                client.raw.send(&[parse("", &text), bind("", "", &[]), execute("", 0), sync()].concat()).await;
                assert_eq!(client.raw.kinds_until(b'Z').await, "12CZ");
            }
            2 => {
                client.run("BEGIN").await;
                client.run(&format!("LISTEN {news}")).await;
                client.run(&format!("LISTEN \"{}\"", own.replace('"', "\"\""))).await;
                assert_eq!(client.run("COMMIT").await, "CZ");
            }
            _ => {
                // LISTEN is pipelined with the statements behind it.
                client
                    .raw
                    .send(&[query(&format!("LISTEN {news}")), query("SELECT 1"), query("SELECT 2")].concat())
                    .await;
                let kinds = [client.raw.kinds_until(b'Z').await, client.raw.kinds_until(b'Z').await].concat();
                assert_eq!((kinds.as_str(), client.raw.kinds_until(b'Z').await.as_str()), ("CZTDCZ", "TDCZ"));
            }
        }
    }
    assert_eq!(counts(&kingpost).await, (4.0, 0.0));
    // One client notifies all, and itself: nobody else has written through that connection lately, so it recognises itself.
    clients[0].raw.send(&query(&format!("NOTIFY {news}, 'one'"))).await;
    let messages = clients[0].raw.until(b'Z').await;
    let sender = clients[0].pid;
    for (n, client) in clients.iter_mut().enumerate() {
        let early = messages.iter().find(|message| n == 0 && message.kind == b'A').map(heard);
        let one = match early {
            Some(heard) => heard,
            None => client.hears().await,
        };
        assert_eq!(one, (sender, news.clone(), "one".into()), "client {n}");
    }
    // A client that does not listen, in a transaction, which takes effect when committed.
    let other = kingpost.connect().await;
    other.batch_execute(&format!("BEGIN; NOTIFY {news}, 'never'; ROLLBACK")).await.unwrap();
    other.batch_execute(&format!("BEGIN; NOTIFY {news}, 'two'; NOTIFY {news}, 'three'; COMMIT")).await.unwrap();
    other.query("SELECT pg_notify($1, $2)", &[&own, &"just you"]).await.unwrap();
    for client in &mut clients {
        assert_eq!([client.hears_text().await, client.hears_text().await], ["two", "three"]);
    }
    assert_eq!(clients[2].hears().await.1, own);
    // A client in a transaction gets it at its end.
    clients[1].run("BEGIN; SELECT 1").await;
    // The only server connection is used by that transaction.
    let admin = shared.cluster.primary().admin().await;
    admin.batch_execute(&format!("NOTIFY {news}, 'four'")).await.unwrap();
    assert_eq!(clients[0].hears_text().await, "four");
    assert_eq!(clients[1].run("SELECT 2").await, "TDCZ");
    clients[1].raw.send(&query("COMMIT")).await;
    assert_eq!(clients[1].raw.kinds_until(b'Z').await, "CZ");
    assert_eq!(clients[1].hears_text().await, "four");
    // Rolled back changes have no effect, in whole or in part.
    clients[0].run(&format!("BEGIN; UNLISTEN {news}; ROLLBACK")).await;
    clients[1].run("BEGIN; SAVEPOINT a; UNLISTEN *; ROLLBACK TO a; COMMIT").await;
    for client in &mut clients[2..] {
        client.run("UNLISTEN *").await;
    }
    admin.batch_execute(&format!("NOTIFY {news}, 'five'; NOTIFY \"{}\"", own.replace('"', "\"\""))).await.unwrap();
    for client in &mut clients[..2] {
        // Clients that have not got it yet need not get it behind 'four'.
        let mut text = client.hears_text().await;
        while text == "four" {
            text = client.hears_text().await;
        }
        assert_eq!(text, "five");
    }
    assert_eq!(counts(&kingpost).await, (2.0, 0.0));
    clients[0].run("DISCARD ALL").await;
    drop(clients);
    shared.cluster.wait("nobody to listen", async || (counts(&kingpost).await == (0.0, 0.0)).then_some(())).await;
    // No session of the pool listens, for any client.
    assert_eq!(value(&kingpost.connect().await, "SELECT count(*) FROM pg_listening_channels()").await, "0");
}

#[tokio::test]
async fn who_can_not_share_is_pinned() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let start = |key: &'static str, setting: toml::Value| {
        let tweaks = Kingpost::of(&shared.cluster).set("proxy.pool.size", 2);
        tweaks.set(key, setting).start()
    };
    let channel = name("pinned");
    let admin = shared.cluster.primary().admin().await;
    // By the configuration; by the limits on channels; because no connection can listen.
    for (key, setting, listens) in [
        ("proxy.notify.listen", "pinned".into(), 1),
        ("proxy.notify.channels_per_client", 1.into(), 2),
        ("proxy.notify.channels", 1.into(), 2),
    ] {
        let kingpost = start(key, setting).await;
        let mut client = Listener::new(&kingpost).await;
        client.run("BEGIN").await;
        for n in 0..listens {
            client.run(&format!("LISTEN {channel}{n}")).await;
        }
        assert_eq!(client.run("COMMIT").await, "CZ");
        assert_eq!(counts(&kingpost).await, (0.0, 1.0), "{key}");
        for n in 0..listens {
            admin.batch_execute(&format!("NOTIFY {channel}{n}, '{n}'")).await.unwrap();
            assert_eq!(client.hears().await, client_hears(&channel, n, &admin).await, "{key}");
        }
        client.run("UNLISTEN *").await;
        assert_eq!(counts(&kingpost).await, (0.0, 0.0), "{key}");
    }
}

/// Notifications come in the order of commits, also for a client that was pinned between two LISTENs: it gets all of them by one connection. Two
/// clients, each with channels that the other does not have.
#[tokio::test]
async fn who_is_pinned_between_two_listens_hears_in_the_order_of_commits() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", 4).set("proxy.workers", 2).start().await;
    let admin = shared.cluster.primary().admin().await;
    let refused = async || kingpost.metrics().await.sum("kingpost_listens_refused_total", &[]);
    let mut listeners = Vec::new();
    for _ in 0..2 {
        let (mut listener, channels) = (Listener::new(&kingpost).await, [name("first"), name("second")]);
        assert_eq!(listener.run(&format!("LISTEN {}", channels[0])).await, "CZ");
        // The lock pins the server connection.
        assert_eq!(listener.run(&format!("SELECT pg_advisory_lock({})", kingpost_tests::unique())).await, "TDCZ");
        assert_eq!(listener.run(&format!("LISTEN {}", channels[1])).await, "CZ");
        listeners.push((listener, channels));
    }
    assert_eq!((counts(&kingpost).await, refused().await), ((2.0, 2.0), 0.0));
    for round in 0..100 {
        for (_, channels) in &listeners {
            for channel in [&channels[round % 2], &channels[1 - round % 2]] {
                admin.batch_execute(&format!("NOTIFY {channel}, '{round}'")).await.unwrap();
            }
        }
    }
    for (listener, channels) in &mut listeners {
        for round in 0..100 {
            for expected in [&channels[round % 2], &channels[1 - round % 2]] {
                let (_, channel, text) = listener.hears().await;
                assert_eq!((&channel, text), (expected, round.to_string()));
            }
        }
        // Only once, and no more after UNLISTEN.
        listener.run(&format!("UNLISTEN {}", channels[1])).await;
        admin.batch_execute(&format!("NOTIFY {}, 'no'", channels[1])).await.unwrap();
        admin.batch_execute(&format!("NOTIFY {}, 'last'", channels[0])).await.unwrap();
        assert_eq!(listener.hears_text().await, "last");
        assert_eq!(listener.run("SELECT 1").await, "TDCZ");
    }
}

async fn client_hears(channel: &str, n: i32, admin: &tokio_postgres::Client) -> Heard {
    (value(admin, "SELECT pg_backend_pid()").await.parse().unwrap(), format!("{channel}{n}"), n.to_string())
}

#[tokio::test]
async fn who_may_have_missed_something_is_told() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(1).start().await;
    cluster.wait_caught_up().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).set("proxy.pool.size", 2).start().await;
    let (mut one, mut two) = (Listener::new(&kingpost).await, Listener::new(&kingpost).await);
    one.run("LISTEN news").await;
    two.run("LISTEN news").await;
    two.run("BEGIN; SELECT 1").await;
    // The listening connection is killed.
    let killed =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'kingpost listener'";
    assert_eq!(cluster.primary().query(killed).await, "1");
    let (code, text) = one.ends().await;
    assert_eq!(code, "57P01", "{text}");
    assert!(text.contains("notifications"), "{text}");
    // A transaction goes on to its end.
    assert_eq!(two.run("SELECT 2").await, "TDCZ");
    assert_eq!(two.run("COMMIT").await, "CZ");
    assert_eq!(two.ends().await.0, "57P01");
    // A reconnected client listens again; at first, for a moment, possibly by its own connection.
    let mut client = Listener::new(&kingpost).await;
    client.run("LISTEN news").await;
    cluster.primary().execute("NOTIFY news, 'again'").await;
    assert_eq!(client.hears_text().await, "again");
    let shares = async || {
        let mut other = Listener::new(&kingpost).await;
        other.run("LISTEN news").await;
        (counts(&kingpost).await.0 > 0.0).then_some(other)
    };
    let mut other = cluster.wait("a shared connection", shares).await;
    // After a failover the new primary is listened to.
    cluster.primary().kill9().await;
    cluster.replica(0).promote().await;
    assert_eq!(other.ends().await.0, "57P01");
    let new = cluster.replica(0);
    let again = async {
        loop {
            let mut client = Listener::new(&kingpost).await;
            if client.run("LISTEN news").await == "CZ" {
                new.execute("NOTIFY news, 'from the new one'").await;
                return client.hears_text().await;
            }
        }
    };
    let text = within("LISTEN on the new primary", Duration::from_secs(30), cluster.dir(), again).await;
    assert_eq!(text, "from the new one");
}

#[tokio::test]
async fn who_does_not_read_is_closed() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.notify.queue_bytes", 64 << 10).start().await;
    let channel = name("flood");
    let (mut idle, mut busy) = (Listener::new(&kingpost).await, Listener::new(&kingpost).await);
    idle.run(&format!("LISTEN {channel}")).await;
    busy.run(&format!("LISTEN {channel}")).await;
    busy.run("BEGIN; SELECT 1").await;
    let admin = shared.cluster.primary().admin().await;
    let flood = format!("SELECT count(pg_notify('{channel}', n || repeat('x', 7000))) FROM generate_series(1, 40) n");
    admin.batch_execute(&flood).await.unwrap();
    // One reads everything; the other is in a long transaction, and then it is closed.
    for n in 1..=40 {
        assert!(idle.hears_text().await.starts_with(&format!("{n}x")), "{n}");
    }
    assert_eq!(busy.run("SELECT 2").await, "TDCZ");
    busy.run("COMMIT").await;
    let (code, text) = busy.ends().await;
    assert_eq!(code, "53400", "{text}");
    assert!(text.contains("proxy.notify.queue_bytes"), "{text}");
}
