//! Order of messages: COPY data ahead of the request for it, answers in pieces, a client's own notifications.

use std::time::Duration;

use futures_util::future::join_all;
use kingpost_tests::oracle::{ServerMessage, Talk};
use kingpost_tests::raw::{Raw, bind, close, describe, execute, flush, message, parse, query, sync};
use kingpost_tests::{DATABASE, Kingpost, USER, within};

use crate::common::{name, only_kingpost};
use crate::isolation::{ONE, TWO, UNNAMED, WIDE, World, world};

/// COPY data in one packet with the COPY, from a client that does not wait for CopyInResponse: the rows were stored, but the client never got an
/// answer, nor one to its next statement.
#[tokio::test]
async fn copy_data_in_one_packet_with_the_copy() {
    let (world, _logs) = world().await;
    let table = name("copied");
    let primary = world.cluster.primary();
    primary.execute(&format!("CREATE TABLE {table} (n int); GRANT ALL ON {table} TO PUBLIC")).await;
    let copy = format!("COPY {table} FROM STDIN");
    let start = || vec![parse("", &copy), bind("", "", &[]), execute("", 0)];
    let data = |text: &str| message(b'd', text.as_bytes());
    let done = || message(b'c', &[]);
    let failed = || message(b'f', b"changed my mind\0");
    let select = || vec![parse("", "SELECT 7"), bind("", "", &[]), execute("", 0), sync()];
    // The packets, and their number of ReadyForQuery: a Sync while data is read gives none.
    let packets = [
        ([start(), vec![sync(), data("1\n"), done(), sync()]].concat(), 1),
        ([start(), vec![data("1\n"), done(), sync()]].concat(), 1),
        ([start(), vec![flush(), data("1\n"), flush(), data("2\n"), done(), sync()]].concat(), 1),
        ([start(), vec![sync(), data("1\n"), sync(), data("2\n"), done(), sync()]].concat(), 1),
        ([start(), vec![sync(), data("1\n"), done(), sync()], select()].concat(), 2),
        ([start(), vec![sync(), data("1\n"), failed(), sync()]].concat(), 1),
        ([start(), vec![sync(), data("not a number\n"), done(), sync()], select()].concat(), 2),
        ([start(), vec![sync(), done(), sync()], vec![query("SELECT 8")]].concat(), 2),
        (vec![query(&copy), data("1\n"), done(), query("SELECT 9")], 2),
        (vec![query(&copy), data("1\n"), sync(), done(), query("SELECT 9")], 2),
        (vec![query(&copy), data("1\n"), failed(), query("SELECT 9")], 2),
    ];
    world
        .as_postgres(&[ONE, TWO, UNNAMED], async |talk| {
            for (packet, ends) in &packets {
                for block in [false, true] {
                    primary.execute(&format!("TRUNCATE {table}")).await;
                    let who = talk.login(USER, DATABASE).await;
                    if block {
                        talk.query(who, "BEGIN").await;
                    }
                    talk.say_for(who, packet, *ends).await;
                    talk.query(who, "SELECT 1").await;
                    if block {
                        talk.query(who, "COMMIT").await;
                    }
                    talk.query(who, &format!("SELECT count(*), sum(n) FROM {table}")).await;
                    talk.logout(who).await;
                }
            }
        })
        .await;
}

/// The description of 1590 columns comes in several reads: the part that had arrived was compared with the part that had arrived the last time, and
/// the statement failed with "cached plan must not change result type" though nothing had changed.
#[tokio::test]
async fn a_description_that_comes_in_pieces() {
    const COLUMNS: usize = 1590;
    const CLIENTS: usize = 6;
    let (world, _logs) = world().await;
    let table = name("wide");
    // Each takes about 80 bytes of the description: it has more than 64 KiB.
    let columns: Vec<String> =
        (0..COLUMNS).map(|n| format!("a_name_of_sixty_characters_so_that_all_are_many_bytes_{n:0>6} bool")).collect();
    let sql = format!(
        "CREATE TABLE {table} ({}); INSERT INTO {table} DEFAULT VALUES; GRANT ALL ON {table} TO PUBLIC",
        columns.join(", ")
    );
    world.cluster.primary().execute(&sql).await;
    for pool in [2, 3] {
        let tweaks = Kingpost::of(&world.cluster).set("proxy.pool.size", pool).set("proxy.routing.route", "primary");
        let kingpost = tweaks.start().await;
        let clients = (0..CLIENTS).map(async |n| {
            let mut raw = Raw::login(kingpost.port()).await;
            let mut run = async |messages: &[Vec<u8>]| {
                raw.send(&messages.concat()).await;
                let said = raw.until(b'Z').await;
                let error = said.iter().find(|message| message.kind == b'E').map(|message| message.field(b'C'));
                let row = said.iter().rfind(|message| b"TD".contains(&message.kind));
                (error, row.map(|message| message.body[..2].to_vec()))
            };
            let mut errors = Vec::new();
            let mut executions = 0;
            for turn in 0..10 {
                let (name, text) = (format!("s{n}_{turn}"), format!("SELECT * FROM {table}"));
                // A row of a different length each time, so that the first read has less of the description.
                let row = format!("SELECT repeat('x', {})", 4000 * turn + 600 * n);
                let row = [parse("", &row), bind("", "", &[]), execute("", 0)].concat();
                let (error, described) = run(&[row, parse(&name, &text), describe(b'S', &name), sync()]).await;
                assert_eq!((&error, described), (&None, Some((COLUMNS as u16).to_be_bytes().to_vec())));
                for last in [false, true] {
                    let ask = [bind("", &name, &[]), describe(b'P', ""), execute("", 0), sync()];
                    let (error, row) = if last { run(&ask).await } else { run(&[&ask[..1], &ask[2..]].concat()).await };
                    executions += 1;
                    errors.extend(error);
                    assert!(row.is_none_or(|row| row == (COLUMNS as u16).to_be_bytes()));
                }
                let (error, _) = run(&[close(b'S', &name), sync()]).await;
                assert_eq!(error, None);
            }
            (executions, errors)
        });
        let all = within("wide rows", Duration::from_secs(90), world.cluster.dir(), join_all(clients)).await;
        let executions: usize = all.iter().map(|(executions, _)| executions).sum();
        let errors: Vec<_> = all.into_iter().flat_map(|(_, errors)| errors).flatten().collect();
        assert!(executions == 120 && errors.is_empty(), "pool of {pool}: {} of {executions}: {errors:?}", errors.len());
    }
}

/// Returns texts that listen and notify in one transaction, or in one query.
fn own_words(channel: &str) -> Vec<Vec<String>> {
    let words: [&[&str]; 10] = [
        &["BEGIN", "LISTEN c", "NOTIFY c, 'one'", "COMMIT"],
        &["BEGIN", "NOTIFY c, 'two'", "LISTEN c", "NOTIFY c, 'three'", "COMMIT"],
        &["LISTEN c; NOTIFY c, 'four'"],
        &["BEGIN; LISTEN c; NOTIFY c, 'five'; COMMIT"],
        &["LISTEN c; NOTIFY c, 'six'; NOTIFY c, 'six'; NOTIFY c, 'seven'"],
        &["LISTEN c", "NOTIFY c, 'eight'", "BEGIN", "NOTIFY c, 'nine'", "NOTIFY c, 'ten'", "COMMIT"],
        &["BEGIN", "LISTEN c", "NOTIFY c, 'never'", "ROLLBACK", "NOTIFY c, 'never'"],
        &["LISTEN c", "BEGIN", "UNLISTEN c", "NOTIFY c, 'never'", "COMMIT"],
        &["LISTEN c", "UNLISTEN *; NOTIFY c, 'never'"],
        &["LISTEN c", "SELECT pg_notify('c', 'eleven')", "SELECT 1"],
    ];
    let replace = |word: &&str| word.replace(" c", &format!(" {channel}")).replace("'c'", &format!("'{channel}'"));
    words.iter().map(|words| words.iter().map(replace).collect()).collect()
}

/// Runs the words of a session, and returns the notifications up to a last one, which another session sends then.
async fn hears(world: &World, talk: &mut Talk, who: usize, words: &[String], end: &str) -> Vec<ServerMessage> {
    let mut heard = Vec::new();
    for word in words {
        heard.extend(talk.say_aside(who, &[query(word)]).await);
    }
    heard.extend(talk.say_aside(who, &[query(&format!("LISTEN {end}"))]).await);
    // The last notification: a server delivers them in the order of their commits.
    world.cluster.primary().execute(&format!("NOTIFY {end}")).await;
    let is_last = |said: &ServerMessage| matches!(said, ServerMessage::Notified { channel, .. } if channel == end);
    let comes = async || {
        heard.extend(talk.say_aside(who, &[query("SELECT 'more'")]).await);
        heard.iter().any(is_last).then_some(())
    };
    world.cluster.wait("the last word", comes).await;
    heard.retain(|said| matches!(said, ServerMessage::Notified { .. }) && !is_last(said));
    heard
}

/// A client that listens and notifies in one transaction, or in one query, did not get its own notification. It gets each once, with its own process
/// id.
#[tokio::test]
async fn who_listens_and_notifies_hears_itself() {
    let (world, _logs) = world().await;
    let (channel, end) = (name("own"), name("end"));
    let all = own_words(&channel);
    let run = async |port: u16| {
        let mut talk = Talk::new(port);
        let mut heard = Vec::new();
        for words in &all {
            let who = talk.login(USER, DATABASE).await;
            heard.push(hears(world, &mut talk, who, words, &end).await);
            talk.logout(who).await;
        }
        heard
    };
    let expected = run(world.cluster.primary().port()).await;
    for (words, expected) in all.iter().zip(&expected) {
        assert_eq!(expected.is_empty(), words.concat().contains("never"), "{words:?}: {expected:?}");
    }
    let mut wrong = Vec::new();
    for front in [ONE, TWO, WIDE] {
        let kingpost = front.start(&world.cluster).await;
        let heard = run(kingpost.port()).await;
        for ((words, expected), heard) in all.iter().zip(&expected).zip(&heard).filter(|((_, e), h)| e != h) {
            wrong.push(format!("{front:?}: {words:?}: {heard:?} and not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A session that begins to listen in the transaction that notifies, message by message: PostgreSQL sends it its own notification before
/// ReadyForQuery. A session that listens already gets it shortly after, from the shared listening connection.
#[tokio::test]
async fn who_listens_and_notifies_hears_itself_before_it_is_ready() {
    let (world, _logs) = world().await;
    let channel = name("own");
    let direct = world
        .as_postgres(&[TWO, WIDE], async |talk| {
            let listens_already = |words: &Vec<String>| words[0] == format!("LISTEN {channel}");
            for words in own_words(&channel).into_iter().filter(|words| !listens_already(words)) {
                let who = talk.login(USER, DATABASE).await;
                for word in &words {
                    talk.query(who, word).await;
                }
                talk.query(who, "SELECT 'more'").await;
                talk.logout(who).await;
            }
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// A made-up process id of the proxy could be that of a real backend: a client that compares it with those in pg_stat_activity, pg_locks or
/// notifications, or cancels by it, took another process for its own. PostgreSQL's are at most 2^22, Linux's limit.
#[tokio::test]
async fn a_clients_process_id_is_no_backends() {
    let (world, _logs) = world().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&world.cluster).start().await;
    let mut clients = Vec::new();
    for n in 0..12 {
        let database = if n % 2 == 0 { DATABASE } else { super::OTHER_DATABASE };
        let (raw, greeting) = Raw::greeted(kingpost.port(), USER, database, &[]).await;
        let key = greeting.iter().find(|message| message.kind == b'K').expect("a key");
        let pid = i32::from_be_bytes(key.body[..4].try_into().unwrap());
        assert!(pid > 1 << 22, "{pid} may be a backend's");
        clients.push((pid, raw));
    }
    let mut pids: Vec<i32> = clients.iter().map(|(pid, _)| *pid).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), clients.len(), "two clients have one process id: {pids:?}");
}
