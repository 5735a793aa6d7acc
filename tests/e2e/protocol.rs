//! The start of a connection, byte by byte.

use kingpost_tests::raw::{Message, Raw, query, startup};
use kingpost_tests::{DATABASE, Subject, USER, subject};

use crate::common::{only_kingpost, shared};

const WHO: [(&str, &str); 2] = [("user", USER), ("database", DATABASE)];

fn code(message: &Message) -> String {
    assert_eq!(message.kind, b'E', "{message:?}");
    message.field(b'C').unwrap()
}

#[tokio::test]
async fn encryption_is_declined_and_the_start_goes_on() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::Direct {
        // PostgreSQL built with GSSAPI offers it.
        return;
    }
    let (ssl, gss) = ([0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f], [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x30]);
    for requests in [vec![ssl], vec![gss], vec![gss, ssl], vec![ssl, gss]] {
        let mut raw = Raw::connect(shared.kingpost.port()).await;
        for request in &requests {
            raw.send(request).await;
            assert_eq!(raw.bytes(1).await.unwrap(), b"N");
        }
        raw.send(&startup(3 << 16, &WHO)).await;
        assert_eq!(raw.until(b'Z').await[0].kind, b'R');
        raw.send(&query("SELECT 1")).await;
        assert_eq!(raw.kinds_until(b'Z').await, "TDCZ");
    }
}

#[tokio::test]
async fn a_start_in_pieces_and_in_one_with_the_first_query() {
    let (shared, _logs) = shared().await;
    let mut raw = Raw::connect(shared.kingpost.port()).await;
    for byte in startup(3 << 16, &WHO) {
        raw.send(&[byte]).await;
    }
    raw.until(b'Z').await;
    for byte in query("SELECT 1") {
        raw.send(&[byte]).await;
    }
    assert_eq!(raw.kinds_until(b'Z').await, "TDCZ");

    let mut raw = Raw::connect(shared.kingpost.port()).await;
    raw.send(&[startup(3 << 16, &WHO), query("SELECT 1"), query("SELECT 2")].concat()).await;
    raw.until(b'Z').await;
    assert_eq!(raw.kinds_until(b'Z').await, "TDCZ");
    assert_eq!(raw.kinds_until(b'Z').await, "TDCZ");
}

#[tokio::test]
async fn newer_versions_and_options_are_negotiated() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    // PostgreSQL 15 itself knows only 3.0, so the stand-in answers 3.2 with 3.0.
    let highest = if subject() == Subject::Kingpost { 3 << 16 | 2 } else { 3 << 16 };
    for (version, option, answer) in [
        (3 << 16, None, None),
        (3 << 16 | 2, None, (subject() != Subject::Kingpost).then_some((highest, vec![]))),
        (3 << 16 | 99, None, Some((highest, vec![]))),
        (3 << 16, Some("_pq_.unheard_of"), Some((3 << 16, vec!["_pq_.unheard_of"]))),
        (3 << 16 | 99, Some("_pq_.unheard_of"), Some((highest, vec!["_pq_.unheard_of"]))),
    ] {
        let mut raw = Raw::connect(shared.kingpost.port()).await;
        let mut parameters = WHO.to_vec();
        parameters.extend(option.map(|option| (option, "1")));
        raw.send(&startup(version, &parameters)).await;
        let messages = raw.until(b'Z').await;
        let negotiated = messages.iter().find(|message| message.kind == b'v').map(|message| {
            let number = |at: usize| u32::from_be_bytes(message.body[at..at + 4].try_into().unwrap());
            let options = message.body[8..].split(|&b| b == 0).filter(|option| !option.is_empty());
            let options: Vec<String> = options.map(|option| String::from_utf8_lossy(option).into_owned()).collect();
            assert_eq!(options.len(), number(4) as usize, "{message:?}");
            (number(0), options)
        });
        // A server may answer the full version or only its minor part.
        let negotiated = negotiated.map(|(version, options)| (version & 0xffff, options));
        let answer =
            answer.map(|(version, options)| (version & 0xffff, options.iter().map(|o| (*o).to_owned()).collect()));
        assert_eq!(negotiated, answer, "{:x} {option:?}", version);
        let key = messages.iter().find(|message| message.kind == b'K').unwrap();
        if version == 3 << 16 {
            assert_eq!(key.body.len(), 8, "a 3.0 client takes a key of four bytes");
        }
        assert!((8..=4 + 256).contains(&key.body.len()));
        raw.send(&query("SELECT 1")).await;
        assert_eq!(raw.kinds_until(b'Z').await, "TDCZ");
    }
}

#[tokio::test]
async fn other_protocols_are_refused() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    // (Older ones get an answer in their own form: `ends`.)
    for version in [4 << 16, 4 << 16 | 1, 1234 << 16, 0] {
        let mut raw = Raw::connect(shared.kingpost.port()).await;
        raw.send(&startup(version, &WHO)).await;
        let rest = raw.rest().await;
        assert_eq!(rest.len(), 1, "{version:x}: {rest:?}");
        assert_eq!(code(&rest[0]), "0A000", "{version:x}: {rest:?}");
    }
}

#[tokio::test]
async fn replication_and_nameless_users_are_refused() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    for value in ["true", "database", "on", "1"] {
        let mut raw = Raw::connect(shared.kingpost.port()).await;
        raw.send(&startup(3 << 16, &[("user", USER), ("database", DATABASE), ("replication", value)])).await;
        let rest = raw.rest().await;
        let last = rest.last().unwrap();
        assert!(["42501", "08P01"].contains(&code(last).as_str()), "{value}: {rest:?}");
        assert!(last.field(b'M').unwrap().contains("replication"), "{last:?}");
    }
    let mut raw = Raw::connect(shared.kingpost.port()).await;
    raw.send(&startup(3 << 16, &[("user", USER), ("database", DATABASE), ("replication", "false")])).await;
    raw.until(b'Z').await;
    let mut raw = Raw::connect(shared.kingpost.port()).await;
    raw.send(&startup(3 << 16, &[("database", DATABASE)])).await;
    let rest = raw.rest().await;
    assert!(["28000", "08P01"].contains(&code(&rest[0]).as_str()), "{rest:?}");
}

#[tokio::test]
async fn the_database_defaults_to_the_user() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    let mut raw = Raw::connect(shared.kingpost.port()).await;
    raw.send(&startup(3 << 16, &[("user", "postgres")])).await;
    raw.until(b'Z').await;
    raw.send(&query("SELECT current_database()")).await;
    let messages = raw.until(b'Z').await;
    let row = messages.iter().find(|message| message.kind == b'D').unwrap();
    assert_eq!(&row.body[6..], b"postgres");
}

#[tokio::test]
async fn terminate_at_any_moment() {
    let (shared, _logs) = shared().await;
    use kingpost_tests::raw::{bind, execute, flush, message, parse};
    let terminate = message(b'X', &[]);
    let moments: [Vec<u8>; 9] = [
        vec![],
        query("BEGIN"),
        query("SELECT generate_series(1, 100000)"),
        parse("a", "SELECT 1"),
        [parse("", "SELECT generate_series(1, 1000)"), bind("", "", &[]), execute("", 5), flush()].concat(),
        query("COPY (SELECT generate_series(1, 100000)) TO STDOUT"),
        query("CREATE TEMP TABLE gone (n int); COPY gone FROM STDIN"),
        query("SELECT 1/0"),
        query("SELECT 1")[..4].to_vec(),
    ];
    for moment in &moments {
        for wait in [false, true] {
            for polite in [true, false] {
                let mut raw = Raw::login(shared.kingpost.port()).await;
                raw.send(moment).await;
                if wait && moment.first() == Some(&b'Q') && moment.len() > 4 {
                    raw.next().await.unwrap();
                }
                if polite {
                    raw.send(&terminate).await;
                }
            }
        }
    }
    // All sessions end, with their state.
    let mut raw = Raw::login(shared.kingpost.port()).await;
    raw.send(&query("SELECT 7")).await;
    assert_eq!(raw.kinds_until(b'Z').await, "TDCZ");
    raw.send(&terminate).await;
    assert!(raw.rest().await.is_empty(), "Terminate has no answer");
}
