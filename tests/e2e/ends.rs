//! Ends of clients: Terminate, the end of their stream, a reset, first bytes that are no start-up packet. The expected result is PostgreSQL's own.

use kingpost_tests::raw::{Message, Raw, bind, execute, flush, message, parse, query, startup, sync};
use kingpost_tests::{Cluster, DATABASE, Kingpost, SOON, ShowLogs, USER, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::only_kingpost;

/// The way in which a client ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Terminate, with the socket left open.
    Terminate,
    /// Shutdown of its sending direction.
    HalfClose,
}

/// A client's writes, each with the types of the messages that answer it; then the client ends.
struct Case {
    name: &'static str,
    writes: Vec<(Vec<u8>, Option<u8>)>,
    ends: &'static [End],
}

const BOTH: &[End] = &[End::Terminate, End::HalfClose];

fn unit(sql: &str) -> Vec<u8> {
    [parse("", sql), bind("", "", &[]), execute("", 0)].concat()
}

fn synced(sql: &str) -> Vec<u8> {
    [unit(sql), sync()].concat()
}

fn cases() -> Vec<Case> {
    let copy = || query("COPY ends FROM STDIN");
    let data = |text: &str| message(b'd', text.as_bytes());
    let case = |name, writes| Case { name, writes, ends: BOTH };
    let six = (0..6).map(|n| synced(&format!("INSERT INTO ends VALUES ({n})"))).collect::<Vec<_>>().concat();
    let half = query("SELECT 1")[..6].to_vec();
    vec![
        case("idle", vec![]),
        case("a lock and COPY", vec![(query("BEGIN; LOCK TABLE ends"), Some(b'Z')), (copy(), Some(b'G'))]),
        case("COPY with data", vec![(copy(), Some(b'G')), (data("1\n2\n"), None)]),
        case("COPY with data that is no good", vec![([copy(), data("x\n")].concat(), Some(b'Z'))]),
        case("COPY and its data at once", vec![([copy(), data("1\n"), message(b'c', b"")].concat(), None)]),
        case("COPY, extended", vec![([unit("COPY ends FROM STDIN"), flush()].concat(), Some(b'G'))]),
        case("COPY, extended, synced", vec![([unit("COPY ends FROM STDIN"), sync()].concat(), Some(b'G'))]),
        case(
            "COPY in a transaction of the extended protocol",
            vec![
                (synced("BEGIN"), Some(b'Z')),
                ([unit("COPY ends FROM STDIN"), flush(), data("1\n")].concat(), Some(b'G')),
            ],
        ),
        case("six units", vec![(six.clone(), None)]),
        case(
            "six units and another one's beginning",
            vec![([six.clone(), unit("INSERT INTO ends VALUES (7)")].concat(), None)],
        ),
        Case {
            name: "six units and half a message",
            writes: vec![([six, half].concat(), None)],
            ends: &[End::HalfClose],
        },
        case(
            "reads and writes in turn",
            vec![(
                [
                    query("SELECT 1"),
                    synced("SELECT 2"),
                    synced("INSERT INTO ends VALUES (1)"),
                    query("SELECT count(*) FROM ends"),
                ]
                .concat(),
                None,
            )],
        ),
        case("a flush", vec![([unit("INSERT INTO ends VALUES (1) RETURNING n"), flush()].concat(), None)]),
        case(
            "a flush in a transaction, and more",
            vec![([query("BEGIN"), unit("INSERT INTO ends VALUES (1)"), flush(), unit("SELECT 2")].concat(), None)],
        ),
        case("a transaction", vec![([query("BEGIN"), query("INSERT INTO ends VALUES (1)")].concat(), None)]),
        case(
            "a transaction that is committed",
            vec![([query("BEGIN"), synced("INSERT INTO ends VALUES (1)"), query("COMMIT")].concat(), None)],
        ),
        case("a failed transaction", vec![([query("BEGIN"), query("SELECT 1/0"), query("SELECT 1")].concat(), None)]),
        case("BEGIN alone", vec![(query("BEGIN"), None)]),
        case(
            "a read that takes a while",
            vec![([query("SELECT pg_sleep(0.2)"), query("INSERT INTO ends VALUES (1)")].concat(), None)],
        ),
        case("many rows", vec![(query("SELECT n, repeat('x', 1000) FROM generate_series(1, 20000) n"), None)]),
        case(
            "much COPY data",
            vec![(
                [query("COPY (SELECT repeat('x', 1000) FROM generate_series(1, 5000)) TO STDOUT"), query("SELECT 1")]
                    .concat(),
                None,
            )],
        ),
        case(
            "a session of its own",
            vec![(
                [
                    query("CREATE TEMP TABLE mine (n int); LISTEN ends"),
                    query("INSERT INTO mine SELECT 1"),
                    query("INSERT INTO ends TABLE mine"),
                ]
                .concat(),
                None,
            )],
        ),
        case(
            "an error in what is skipped",
            vec![([parse("", "SELEC"), bind("", "", &[]), flush()].concat(), Some(b'E'))],
        ),
    ]
}

/// Returns the parts of a message that must be equal, without the position in PostgreSQL's source.
fn told(message: &Message) -> String {
    let field = |code: u8| message.field(code).unwrap_or_default();
    match message.kind {
        b'E' => format!("E {} {} {:?} {:?}", field(b'S'), field(b'C'), field(b'M'), field(b'W')),
        kind => format!("{} {}", kind as char, String::from_utf8_lossy(&message.body)),
    }
}

/// Returns the messages without parameters, whose order is not defined; many rows as their number.
fn tell(messages: &[Message]) -> Vec<String> {
    let rows = messages.iter().filter(|message| b"Dd".contains(&message.kind)).count();
    let shown = messages.iter().filter(|message| !b"SNKA".contains(&message.kind));
    let mut told: Vec<String> =
        shown.filter(|message| rows < 100 || !b"Dd".contains(&message.kind)).map(told).collect();
    told.push(format!("{rows} rows"));
    told
}

/// Plays a case; returns all messages up to the end of the connection, and the contents of the table, which is not locked then.
async fn play(port: u16, case: &Case, end: End, cluster: &Cluster) -> (Vec<String>, String) {
    let admin = cluster.primary().admin().await;
    admin.batch_execute("TRUNCATE ends").await.unwrap();
    let mut raw = Raw::login(port).await;
    let mut came = Vec::new();
    for (bytes, until) in &case.writes {
        raw.send(bytes).await;
        if let Some(kind) = until {
            came.extend(raw.until(*kind).await);
        }
    }
    match end {
        End::Terminate => raw.send(&message(b'X', b"")).await,
        End::HalfClose => raw.stream.shutdown().await.unwrap(),
    }
    let what = format!("the end of {:?} by {end:?}", case.name);
    came.extend(within(&what, SOON, cluster.dir(), raw.rest()).await);
    // Locks are released although the client's socket is still open.
    let locked = admin.batch_execute("BEGIN; LOCK TABLE ends; COMMIT");
    within(&format!("the locks of {:?} after {end:?}", case.name), SOON, cluster.dir(), locked).await.unwrap();
    (tell(&came), cluster.primary().query("SELECT coalesce(string_agg(n::text, ' ' ORDER BY n), '-') FROM ends").await)
}

#[tokio::test]
async fn clients_end_as_they_do_at_postgresql() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    cluster.primary().execute("CREATE TABLE ends (n int); GRANT ALL ON ends TO PUBLIC").await;
    let mut proxies = Vec::new();
    for driver in ["epoll", "io_uring"] {
        proxies
            .push((driver, Kingpost::of(&cluster).set("proxy.driver", driver).set("proxy.pool.size", 2).start().await));
    }
    let mut differ = Vec::new();
    for case in cases() {
        for &end in case.ends {
            let expected = play(cluster.primary().port(), &case, end, &cluster).await;
            for (driver, kingpost) in &proxies {
                let seen = play(kingpost.port(), &case, end, &cluster).await;
                if seen != expected {
                    differ.push(format!(
                        "{:?} by {end:?}, {driver}:\n  directly {expected:?}\n  proxied  {seen:?}",
                        case.name
                    ));
                }
            }
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));

    for (driver, kingpost) in &proxies {
        // All at once: the start, statements, the end.
        let mut raw = Raw::connect(kingpost.port()).await;
        let start = startup(3 << 16, &[("user", USER), ("database", DATABASE)]);
        raw.send(&[start, query("SELECT 1"), query("SELECT 2")].concat()).await;
        raw.stream.shutdown().await.unwrap();
        let came = raw.rest().await;
        assert_eq!(came.iter().filter(|message| message.kind == b'Z').count(), 3, "{driver}: {came:?}");
        // A COPY that ends in half a message sends nothing more to the server.
        let mut raw = Raw::login(kingpost.port()).await;
        raw.send(&query("BEGIN; LOCK TABLE ends; COPY ends FROM STDIN")).await;
        raw.until(b'G').await;
        raw.send(&message(b'd', b"1\n")[..6]).await;
        raw.stream.shutdown().await.unwrap();
        let codes: Vec<_> = raw.rest().await.iter().map(|message| message.field(b'C').unwrap_or_default()).collect();
        assert_eq!(codes, ["08006", "08P01"], "{driver}");
        cluster.primary().execute("BEGIN; LOCK TABLE ends; COMMIT").await;
        // After a reset a running statement continues, and a transaction is rolled back.
        cluster.primary().execute("TRUNCATE ends").await;
        for (statements, rows) in [
            (&["BEGIN", "INSERT INTO ends VALUES (1)"][..], "0"),
            (&["INSERT INTO ends SELECT 1 FROM pg_sleep(0.3)"], "1"),
        ] {
            let mut raw = Raw::login(kingpost.port()).await;
            for sql in statements {
                raw.send(&query(sql)).await;
                if rows == "0" {
                    raw.until(b'Z').await;
                }
            }
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'INSERT INTO ends%' AND state <> 'idle'";
            cluster.primary().wait_value(sql, "1").await;
            raw.stream.set_zero_linger().unwrap();
            drop(raw);
            cluster.primary().execute("BEGIN; LOCK TABLE ends; COMMIT").await;
            assert_eq!(cluster.primary().query("SELECT count(*) FROM ends").await, rows, "{driver}: {statements:?}");
        }
        // A client that waits for a server connection is served after its own end.
        let mut holders = Vec::new();
        for _ in 0..2 {
            let mut raw = Raw::login(kingpost.port()).await;
            raw.send(&[query("BEGIN"), query("LOCK TABLE ends IN ACCESS SHARE MODE")].concat()).await;
            raw.until(b'Z').await;
            raw.until(b'Z').await;
            holders.push(raw);
        }
        let mut raw = Raw::login(kingpost.port()).await;
        raw.send(&query("INSERT INTO ends VALUES (7) RETURNING n")).await;
        raw.stream.shutdown().await.unwrap();
        let waits = async || (kingpost.metrics().await.sum("kingpost_clients_waiting", &[]) == 1.0).then_some(());
        cluster.wait("a client that waits", waits).await;
        for mut holder in holders {
            holder.send(&message(b'X', b"")).await;
        }
        assert_eq!(raw.kinds_until(b'Z').await, "TDCZ", "{driver}");
        assert!(raw.rest().await.is_empty());
    }
}

/// Returns the answer to the first bytes: of an error its message, without details and the position in PostgreSQL's source.
fn first_answer(bytes: &[u8]) -> Vec<String> {
    // Each server names its own highest version.
    let text = String::from_utf8_lossy(bytes).replace("server supports 3.0 to 3.2", "server supports 3.0 to 3.0");
    let Some((before, error)) = text.split_once("SFATAL\0") else { return vec![text] };
    let said = error.split('\0').filter(|field| field.starts_with(['V', 'C', 'M'])).map(str::to_owned);
    [before.chars().take_while(|c| *c != 'E').collect()].into_iter().chain(said).collect()
}

/// First bytes of a connection that are not a start-up packet of PostgreSQL.
#[tokio::test]
async fn what_is_no_start_is_answered_as_by_postgresql() {
    if only_kingpost() {
        return;
    }
    let (shared, _logs) = crate::common::shared().await;
    let packet =
        |code: u32, rest: &[u8]| [&(8 + rest.len() as u32).to_be_bytes(), &code.to_be_bytes()[..], rest].concat();
    let long = |total: usize| {
        let (head, tail) = (b"user\0postgres\0application_name\0", b"\0\0");
        packet(3 << 16, &[&head[..], &vec![b'a'; total - 8 - head.len() - tail.len()], tail].concat())
    };
    let (ssl, gss) = (packet(80_877_103, b""), packet(80_877_104, b""));
    let hello = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[7; 500]].concat();
    let starts: [(&str, Vec<u8>); 18] = [
        ("Terminate", message(b'X', b"")),
        ("a length of 0", vec![0; 4]),
        ("a length of 7", vec![0, 0, 0, 7, 0, 3, 0]),
        ("a length beyond the limit", long(10_005)),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: db\r\n\r\n".to_vec()),
        ("TLS", hello),
        ("protocol 2.0", packet(2 << 16, b"")),
        ("protocol 0.0", packet(0, b"")),
        ("protocol 1.5", packet(1 << 16 | 5, b"")),
        ("protocol 4.0", packet(4 << 16, b"")),
        ("protocol 1234.1", packet(1234 << 16 | 1, b"")),
        ("no end of the parameters", packet(3 << 16, b"user\0u\0")),
        ("more behind the parameters", packet(3 << 16, b"user\0u\0\0\0")),
        ("half a cancel request", packet(80_877_102, b"\0\0\0\x01")),
        ("SSLRequest twice", ssl.clone()),
        ("SSLRequest and more", [ssl.clone(), startup(3 << 16, &[("user", USER)])].concat()),
        ("SSLRequest that is longer", packet(80_877_103, b"x")),
        ("nothing", Vec::new()),
    ];
    let before = shared.kingpost.metrics().await.sum("kingpost_protocol_errors_total", &[]);
    for (name, bytes) in &starts {
        let mut answers = Vec::new();
        for port in [shared.cluster.primary().port(), shared.kingpost.port()] {
            let mut raw = Raw::connect(port).await;
            raw.send(bytes).await;
            if *name == "SSLRequest twice" {
                assert_eq!(raw.bytes(1).await.unwrap(), b"N");
                raw.send(&ssl).await;
            }
            if bytes.is_empty() || *name == "SSLRequest that is longer" {
                raw.stream.shutdown().await.unwrap();
            }
            let mut came = Vec::new();
            // A server that closes with unread input resets the connection.
            let _ = within(name, SOON, shared.cluster.dir(), raw.stream.read_to_end(&mut came)).await;
            answers.push(first_answer(&came));
        }
        assert_eq!(answers[1], answers[0], "{name}");
    }
    // The longest packet that is accepted.
    for port in [shared.cluster.primary().port(), shared.kingpost.port()] {
        let mut raw = Raw::connect(port).await;
        raw.send(&long(10_004)).await;
        raw.until(b'Z').await;
    }
    // A kind of encryption that was not requested yet may still be.
    let mut raw = Raw::connect(shared.kingpost.port()).await;
    for request in [&gss, &ssl] {
        raw.send(request).await;
        assert_eq!(raw.bytes(1).await.unwrap(), b"N");
    }
    raw.send(&gss).await;
    assert_eq!(raw.rest().await[0].field(b'C').as_deref(), Some("0A000"));
    let counted = shared.kingpost.metrics().await.sum("kingpost_protocol_errors_total", &[]);
    assert!(counted - before >= 14.0, "{before} {counted}");
}
