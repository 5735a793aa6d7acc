#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::{Frame, HEADER};

fn start(slot: Option<&str>, at: u64, timeline: Option<u32>) -> Command {
    Command::Start { slot: slot.map(str::to_owned), at, timeline }
}

#[test]
fn commands() {
    let create = |name: &str, temporary, reserve| Command::CreateSlot { name: name.into(), temporary, reserve };
    for (text, expected) in [
        ("IDENTIFY_SYSTEM", Command::IdentifySystem),
        ("identify_system ;", Command::IdentifySystem),
        ("SHOW wal_segment_size", Command::Show("wal_segment_size".into())),
        ("SHOW Data_Directory_Mode;", Command::Show("data_directory_mode".into())),
        ("SHOW a.b", Command::Show("a.b".into())),
        ("SHOW \"A b\"", Command::Show("A b".into())),
        ("TIMELINE_HISTORY 7", Command::TimelineHistory(7)),
        ("START_REPLICATION 0/3000000 TIMELINE 1", start(None, 0x300_0000, Some(1))),
        ("START_REPLICATION SLOT \"s1\" A/B TIMELINE 2", start(Some("s1"), 0xA_0000_000B, Some(2))),
        ("START_REPLICATION SLOT \"s\"\"1\" PHYSICAL 0/0", start(Some("s\"1"), 0, None)),
        ("START_REPLICATION PHYSICAL 0/1", start(None, 1, None)),
        ("START_REPLICATION SLOT s LOGICAL 0/1 (proto_version '1')", Command::Other("LOGICAL")),
        ("CREATE_REPLICATION_SLOT \"x\" PHYSICAL", create("x", false, false)),
        (
            "CREATE_REPLICATION_SLOT \"pg_walreceiver_7\" TEMPORARY PHYSICAL RESERVE_WAL",
            create("pg_walreceiver_7", true, true),
        ),
        ("CREATE_REPLICATION_SLOT \"x\" TEMPORARY PHYSICAL (RESERVE_WAL)", create("x", true, true)),
        ("CREATE_REPLICATION_SLOT x PHYSICAL ( RESERVE_WAL false )", create("x", false, false)),
        ("CREATE_REPLICATION_SLOT x PHYSICAL (\"reserve_wal\" 'ON');", create("x", false, true)),
        ("CREATE_REPLICATION_SLOT x PHYSICAL (RESERVE_WAL 0)", create("x", false, false)),
        ("CREATE_REPLICATION_SLOT x LOGICAL pgoutput", Command::Other("LOGICAL")),
        ("READ_REPLICATION_SLOT x", Command::ReadSlot("x".into())),
        ("READ_REPLICATION_SLOT \"\"", Command::ReadSlot(String::new())),
        ("DROP_REPLICATION_SLOT X", Command::DropSlot { name: "x".into(), wait: false }),
        ("DROP_REPLICATION_SLOT \"X\" WAIT", Command::DropSlot { name: "X".into(), wait: true }),
        ("BASE_BACKUP ( LABEL 'x y', PROGRESS )", Command::Other("BASE_BACKUP")),
    ] {
        assert_eq!(Command::parse(text), Ok(expected), "{text}");
    }
}

#[test]
fn refused_commands() {
    for text in ["", ";", "SELECT 1", "IDENTIFY_SYSTEMS", "\"IDENTIFY_SYSTEM\""] {
        assert_eq!(Command::parse(text), Err(CommandError::Sql), "{text}");
    }
    for text in [
        "IDENTIFY_SYSTEM 1",
        "SHOW",
        "TIMELINE_HISTORY 4294967296",
        "TIMELINE_HISTORY +1",
        "START_REPLICATION",
        "START_REPLICATION 0/",
        "START_REPLICATION 0/1 TIMELINE",
        "START_REPLICATION 123456789/0",
        "START_REPLICATION SLOT 0/1",
        "CREATE_REPLICATION_SLOT x",
        "CREATE_REPLICATION_SLOT x PHYSICAL (",
        "CREATE_REPLICATION_SLOT x PHYSICAL (RESERVE_WAL",
        "CREATE_REPLICATION_SLOT \"x PHYSICAL",
        "CREATE_REPLICATION_SLOT x PHYSICAL ()",
        "CREATE_REPLICATION_SLOT x PHYSICAL (bogus, RESERVE_WAL) more",
        "CREATE_REPLICATION_SLOT x PHYSICAL bogus",
        "DROP_REPLICATION_SLOT",
        "IDENTIFY_SYSTEM ?",
    ] {
        assert!(matches!(Command::parse(text), Err(CommandError::Syntax { .. })), "{text}: {:?}", Command::parse(text));
    }
    for (text, expected) in [
        ("TIMELINE_HISTORY 0", CommandError::Timeline(0)),
        ("START_REPLICATION 0/1 TIMELINE 0", CommandError::Timeline(0)),
        ("CREATE_REPLICATION_SLOT x PHYSICAL (bogus)", CommandError::UnknownOption("bogus".into())),
        ("CREATE_REPLICATION_SLOT x PHYSICAL (RESERVE_WAL, \"X\" 1)", CommandError::UnknownOption("X".into())),
        ("CREATE_REPLICATION_SLOT x PHYSICAL (RESERVE_WAL, RESERVE_WAL)", CommandError::RedundantOption),
        ("CREATE_REPLICATION_SLOT x PHYSICAL RESERVE_WAL RESERVE_WAL", CommandError::RedundantOption),
        ("CREATE_REPLICATION_SLOT x PHYSICAL (FAILOVER 'off', RESERVE_WAL true)", CommandError::RedundantOption),
        ("CREATE_REPLICATION_SLOT x PHYSICAL TWO_PHASE", CommandError::RedundantOption),
        ("CREATE_REPLICATION_SLOT x PHYSICAL (RESERVE_WAL 'tr')", CommandError::NotBoolean("reserve_wal".into())),
        ("CREATE_REPLICATION_SLOT x PHYSICAL (RESERVE_WAL '1')", CommandError::NotBoolean("reserve_wal".into())),
        ("CREATE_REPLICATION_SLOT x PHYSICAL (RESERVE_WAL 2)", CommandError::NotBoolean("reserve_wal".into())),
    ] {
        assert_eq!(Command::parse(text), Err(expected), "{text}");
    }
    let name = format!("{}äx", "x".repeat(62));
    let cut = Command::parse(&format!("READ_REPLICATION_SLOT \"{name}\""));
    assert_eq!(cut, Ok(Command::ReadSlot("x".repeat(62))), "as PostgreSQL cuts identifiers");
    let long = format!("SHOW {}", "x".repeat(MAX_COMMAND));
    assert!(matches!(Command::parse(&long), Err(CommandError::TooLong(_))));
}

#[test]
fn orders_are_read_as_they_are_written() {
    use super::Order;
    for order in [
        Order::Look,
        Order::Fence { term: 7, timeline: 3 },
        Order::Choose { term: u64::MAX, node: "db \"1\"; --".into() },
        Order::Withdraw { term: 9, node: "withdraw \"\"".into() },
        Order::Follow { term: 1, address: "[::1]:5432".into() },
        Order::Release { term: 2 },
    ] {
        assert_eq!(Command::parse(&order.text()), Ok(Command::Operate(order)));
    }
    assert_eq!(Command::parse("kingpost promise;"), Ok(Command::Promise));
    for text in [
        "KINGPOST",
        "KINGPOST PROMISE ME",
        "KINGPOST FENCE TERM 0 TIMELINE 1",
        "KINGPOST FENCE TERM 1",
        "KINGPOST CHOOSE TERM 1 NODE a",
        "KINGPOST CHOOSE TERM 1 NODE \"\"",
        "KINGPOST WITHDRAW NODE \"a\"",
        "KINGPOST WITHDRAW TERM 1",
        "KINGPOST FOLLOW TERM x ADDRESS \"a\"",
        "KINGPOST LOOK AGAIN",
    ] {
        assert!(matches!(Command::parse(text), Err(CommandError::Syntax { .. })), "{text}");
    }
}

#[test]
fn slot_names() {
    for (name, good) in [("a", true), ("a_1", true), ("", false), ("A", false), ("a-b", false), ("ä", false)] {
        assert_eq!(is_slot_name(name), good, "{name}");
    }
    assert!(is_slot_name(&"x".repeat(63)) && !is_slot_name(&"x".repeat(64)));
}

/// A row that was written is read back.
fn row_of(out: &[u8]) -> Rows {
    let description = Frame::read(out).unwrap().unwrap();
    let rest = &out[description.total()..];
    let row = Frame::read(rest).unwrap().unwrap();
    assert_eq!((description.tag, row.tag, row.total()), (b'T', b'D', rest.len()));
    Rows::read(&rest[HEADER..]).unwrap()
}

#[test]
fn rows_are_read_back() {
    let wanted = Identity { system: 7_000_000_000_000_000_001, timeline: 3, position: 0x1_0000_0028 };
    for version in [13, 15, 16, 18, 19] {
        let mut out = Vec::new();
        identity(&mut out, version, wanted);
        assert_eq!(row_of(&out).identity(), Some(wanted));
        assert_eq!(row_of(&out).0[3], None);
    }
    let mut out = Vec::new();
    timeline_end(&mut out, TimelineEnd { next: 2, at: 0x500_0000 });
    assert_eq!(row_of(&out).timeline_end(), Some(TimelineEnd { next: 2, at: 0x500_0000 }));
    out.clear();
    timeline_history(&mut out, 15, 2, b"1\t0/5000000\tno recovery target specified\n");
    assert_eq!(row_of(&out).text(0), Some("00000002.history"));
    out.clear();
    slot_read(&mut out, 15, None);
    assert_eq!(row_of(&out), Rows(vec![None, None, None]));
    out.clear();
    slot_read(&mut out, 18, Some(Some((1 << 32, 4))));
    assert_eq!(row_of(&out).text(1), Some("1/0"));
    out.clear();
    slot_read(&mut out, 19, Some(Some((1 << 32, 4))));
    assert_eq!(row_of(&out).text(1), Some("1/00000000"));
}

#[test]
fn replies_are_read_back() {
    let mut out = Vec::new();
    status(&mut out, 3, 2, 0, 5, true);
    assert_eq!(read_reply(&out[HEADER..]), Some(Reply::Status { write: 3, flush: 2, apply: 0, reply: true }));
    assert_eq!(read_reply(&out[HEADER..out.len() - 1]), None);
    out.clear();
    feedback(&mut out, 5, (700, 1), (0, 0));
    assert_eq!(read_reply(&out[HEADER..]), Some(Reply::Feedback { xmin: (700, 1), catalog_xmin: (0, 0) }));
    assert_eq!(read_reply(b""), None);
    assert_eq!(read_reply(b"x"), None);
}

#[test]
fn streams_that_are_none() {
    for bytes in [
        &b"d\0\0\0\x04"[..],
        b"d\0\0\0\x05x",
        b"d\0\0\0\x06wx",
        b"d\0\0\0\x06kx",
        b"d\0\0\0\x03",
        b"E\x00\xff\0\0",
        b"d\0\0\0\x1ew\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0x",
    ] {
        assert!(WalStream::default().next(bytes).is_err(), "{bytes:?}");
    }
}

/// Events of a stream that comes in pieces, WAL joined.
fn read(bytes: &[u8], cuts: &[usize]) -> (Vec<(u64, Vec<u8>)>, usize) {
    let (mut stream, mut have, mut from) = (WalStream::default(), Vec::new(), 0);
    let (mut wal, mut others): (Vec<(u64, Vec<u8>)>, usize) = (Vec::new(), 0);
    for &cut in cuts.iter().chain([&bytes.len()]) {
        have.extend_from_slice(&bytes[from..cut.max(from)]);
        from = cut.max(from);
        let mut used = 0;
        while let Some((event, n)) = stream.next(&have[used..]).unwrap() {
            used += n;
            match event {
                Event::Wal { at, data } => match wal.last_mut() {
                    Some((start, joined)) if *start + joined.len() as u64 == at => joined.extend(data),
                    _ => wal.push((at, data.to_vec())),
                },
                Event::Keepalive { .. } | Event::Done | Event::Message { .. } => others += 1,
            }
        }
        have.drain(..used);
    }
    assert!(have.is_empty());
    (wal, others)
}

#[test]
fn how_far_a_relay_is_comes_through() {
    let flushed = Flushed { system: u64::MAX - 1, term: 7, timeline: 3, at: 0x16_B374_D848 };
    let mut out = Vec::new();
    flushed.write(&mut out);
    assert_eq!(Flushed::read(&out[HEADER..]), Some(flushed));
    assert_eq!(Flushed::read(&out[HEADER..out.len() - 1]), None);
    assert_eq!(Flushed::read(b"f"), None);
    assert_eq!(Flushed::read(b""), None);
    assert_eq!(Command::parse("watch_flushed;"), Ok(Command::WatchFlushed));
    assert!(Command::parse("WATCH_FLUSHED 1/0").is_err());
}

#[test]
fn questions_and_promises_come_through_and_are_told_apart() {
    let question = Question { number: u64::MAX - 2 };
    let promised = Promised { number: 5, system: u64::MAX - 1, term: 2033, fenced: u32::MAX, timeline: 3 };
    let (mut asked, mut answered) = (Vec::new(), Vec::new());
    question.write(&mut asked);
    promised.write(&mut answered);
    assert_eq!(Question::read(&asked[HEADER..]), Some(question));
    assert_eq!(Promised::read(&answered[HEADER..]), Some(promised));
    assert_eq!((Question::read(&answered[HEADER..]), Promised::read(&asked[HEADER..])), (None, None));
    assert_eq!(Flushed::read(&answered[HEADER..]), None);
    for bytes in [&asked[HEADER..], &answered[HEADER..]] {
        for end in 0..bytes.len() {
            assert_eq!((Question::read(&bytes[..end]), Promised::read(&bytes[..end])), (None, None));
        }
    }
}

proptest! {
    #[test]
    fn wal_comes_through_however_it_is_cut(
        sizes in prop::collection::vec(0_usize..300, 1..8),
        mut cuts in prop::collection::vec(0_usize..2000, 0..12),
    ) {
        let (mut bytes, mut at) = (Vec::new(), 1000_u64);
        let all: Vec<u8> = (0..sizes.iter().sum::<usize>()).map(|n| (n % 251) as u8).collect();
        for size in &sizes {
            let from = (at - 1000) as usize;
            bytes.extend(wal_header(at, 5000, 7, *size));
            bytes.extend(&all[from..from + size]);
            at += *size as u64;
            keepalive(&mut bytes, 5000, 7, true);
        }
        bytes.extend(b"c\0\0\0\x04");
        cuts.iter_mut().for_each(|cut| *cut = (*cut).min(bytes.len()));
        cuts.sort_unstable();
        let (wal, others) = read(&bytes, &cuts);
        let joined: Vec<u8> = wal.iter().flat_map(|(_, data)| data.clone()).collect();
        prop_assert_eq!(joined, all);
        prop_assert_eq!(others, 2 * sizes.len() + 1);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text: String) {
        let mut stream = WalStream::default();
        let mut used = 0;
        while let Ok(Some((_, n))) = stream.next(&bytes[used..]) {
            prop_assert!(n > 0);
            used += n;
            prop_assert!(used <= bytes.len());
        }
        let _ = read_reply(&bytes);
        let _ = Flushed::read(&bytes);
        let _ = Question::read(&bytes);
        let _ = Promised::read(&bytes);
        let _ = Rows::read(&bytes);
        let _ = Command::parse(&text);
        let _ = Command::parse(&format!("START_REPLICATION {text}"));
        let _ = Command::parse(&format!("CREATE_REPLICATION_SLOT x PHYSICAL ({text}"));
    }

    #[test]
    fn a_start_is_read_as_it_was_meant(name in "[a-z0-9_]{1,63}", at: u64, timeline in 1_u32..) {
        let text = format!("START_REPLICATION SLOT \"{name}\" {} TIMELINE {timeline}", position(at));
        prop_assert_eq!(Command::parse(&text), Ok(start(Some(&name), at, Some(timeline))));
    }
}
