#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::model::{Check, Health, Instance, Metadata, Registration, ServiceKey};

const SECRET: Secret = Secret([7; 32]);

/// Connects node 1 (asking) to node 2 with these secrets and this expected id.
fn connect(asking: Secret, asked: Secret, expected: i64) -> Result<(Channel, Channel), PeerError> {
    connect_over(asking, asked, expected, None, None)
}

/// Connects like [`connect`], over TLS connections with these bindings.
fn connect_over(
    asking: Secret,
    asked: Secret,
    expected: i64,
    asking_over: Option<&[u8; 32]>,
    asked_over: Option<&[u8; 32]>,
) -> Result<(Channel, Channel), PeerError> {
    let asked = Handshake::new(&asked, NodeId(2), [2; NONCE], asked_over)?;
    let greeting = asked.greeting();
    let (introduction, introduced) =
        Handshake::new(&asking, NodeId(1), [1; NONCE], asking_over)?.introduction(&greeting)?;
    assert_eq!((greeting.len(), introduction.len()), (GREETING, INTRODUCTION));
    let (welcome, who, there) = asked.welcome(&introduction)?;
    assert_eq!((welcome.len(), who), (WELCOME, NodeId(1)));
    Ok((introduced.welcomed(&welcome, NodeId(expected))?, there))
}

fn send(from: &mut Direction, body: &[u8]) -> Bytes {
    let (length, tag) = from.seal(body);
    assert_eq!(Direction::announced(length).unwrap(), body.len() + TAG);
    Bytes::from([body, &tag].concat())
}

#[test]
fn who_has_the_secret_is_let_in() {
    let (mut here, mut there) = connect(SECRET, SECRET, 2).unwrap();
    for body in [&b"first"[..], b"", b"third"] {
        let frame = send(&mut here.send, body);
        assert_eq!(there.receive.open(frame).unwrap(), body);
        let frame = send(&mut there.send, body);
        assert_eq!(here.receive.open(frame).unwrap(), body);
    }
    for (asking, asked, expected, error) in [
        (Secret([8; 32]), SECRET, 2, PeerError::Proof),
        (SECRET, Secret([8; 32]), 2, PeerError::Proof),
        (SECRET, SECRET, 3, PeerError::Another),
    ] {
        assert_eq!(connect(asking, asked, expected).err(), Some(error));
    }
    let strange =
        Handshake::new(&SECRET, NodeId(1), [1; NONCE], None).unwrap().introduction(b"HTTP/1.1 400 Bad Request\r\n");
    assert_eq!(strange.err(), Some(PeerError::Stranger));
    let mut newer = Handshake::new(&SECRET, NodeId(2), [2; NONCE], None).unwrap().greeting().to_vec();
    newer[5] = 9;
    let newer = Handshake::new(&SECRET, NodeId(1), [1; NONCE], None).unwrap().introduction(&newer);
    assert_eq!(newer.err(), Some(PeerError::Version { found: 9, known: VERSION }));
}

#[test]
fn a_hand_shake_is_not_passed_on_between_two_connections_of_tls() {
    let (one, other) = ([1; 32], [2; 32]);
    for (asking, asked, good) in [
        (Some(&one), Some(&one), true),
        (Some(&one), Some(&other), false),
        (Some(&one), None, false),
        (None, Some(&one), false),
    ] {
        let connected = connect_over(SECRET, SECRET, 2, asking, asked);
        assert_eq!(connected.err(), (!good).then_some(PeerError::Proof), "{asking:?} {asked:?}");
    }
}

#[test]
fn what_is_changed_repeated_left_out_or_sent_back_is_refused() {
    type Meddle = fn(&mut Channel) -> Bytes;
    let meddlers: [Meddle; 5] = [
        |here| {
            let frame = send(&mut here.send, b"one");
            Bytes::from([&b"two"[..], &frame[3..]].concat())
        },
        |here| {
            send(&mut here.send, b"left out");
            send(&mut here.send, b"one")
        },
        |here| {
            let frame = send(&mut here.send, b"one");
            frame.slice(..frame.len() - 1)
        },
        |here| {
            // A frame that the other side would have sent.
            let mut back = Direction { key: here.receive.key.clone(), frames: 0 };
            send(&mut back, b"one")
        },
        |_| Bytes::from_static(b"short"),
    ];
    for (n, meddle) in meddlers.into_iter().enumerate() {
        let (mut here, mut there) = connect(SECRET, SECRET, 2).unwrap();
        let frame = meddle(&mut here);
        assert!(there.receive.open(frame).is_err(), "meddler {n}");
    }
    let (mut here, mut there) = connect(SECRET, SECRET, 2).unwrap();
    let frame = send(&mut here.send, b"one");
    assert!(there.receive.open(frame.clone()).is_ok());
    assert!(there.receive.open(frame).is_err(), "again");
}

#[test]
fn lengths_are_bounded() {
    assert!(Direction::announced((LONGEST as u32).to_be_bytes()).is_ok());
    for length in [LONGEST as u32 + 1, 0x8000_0000, u32::MAX] {
        assert!(matches!(Direction::announced(length.to_be_bytes()), Err(PeerError::TooLong { .. })));
    }
    // A count beyond the body's length is refused before anything is allocated for it.
    let mut question = question(1, &[]).to_vec();
    question[9..13].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(Message::read(&question, &mut Interner::default()).err(), Some(PeerError::Malformed));
    let many: Vec<InstanceId> =
        (0..=QUESTION_IDS).map(|n| InstanceId::parse(&format!("default/{n}")).unwrap()).collect();
    let many = super::question(1, &many);
    assert!(matches!(Message::read(&many, &mut Interner::default()), Err(PeerError::TooLong { .. })));
}

fn row(n: u16, metadata: &[(String, String)]) -> InstanceRow {
    let id = InstanceId::parse(&format!("default/{n}")).unwrap();
    let mut registration = Registration::new(id, ServiceKey::parse("default/s").unwrap(), "h\u{e9}", n);
    let mut pairs = metadata.to_vec();
    pairs.sort();
    pairs.dedup_by(|a, b| a.0 == b.0);
    registration.metadata = Metadata::from_pairs(pairs).unwrap();
    registration.check = n.is_multiple_of(2).then(|| Check::ttl(std::time::Duration::from_secs(u64::from(n) + 1)));
    registration.health = Some(if n.is_multiple_of(3) { Health::Critical } else { Health::Passing });
    registration.isolate = Some(n.is_multiple_of(5));
    let mut instance = Instance::registered(registration, None);
    (instance.revision, instance.ctime, instance.mtime) = (Revision(9), -1, i64::from(n));
    instance.digest = instance.content_digest();
    InstanceRow { instance, deleted: n.is_multiple_of(7) }
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        numbers in proptest::collection::vec(any::<u16>(), 0..5),
        metadata in proptest::collection::vec(("[a-z\u{e9}]{1,9}", "[^\0]{0,20}"), 0..5),
        silence in proptest::collection::vec(proptest::option::of((any::<u64>(), any::<bool>())), 0..9),
    ) {
        let mut interner = Interner::default();
        let mut records: Vec<Record> = numbers.iter().map(|n| Record::Instance(row(*n, &metadata))).collect();
        let key = ServiceKey::parse("default/s").unwrap();
        let about = row(1, &metadata).instance.metadata;
        records.push(Record::Service(ServiceRow { key, metadata: about, revision: Revision(9), deleted: false, ctime: 1, mtime: 2 }));
        let body = committed(-3, Revision(9), &records);
        let Message::Committed { epoch: -3, revision: Revision(9), records: back } =
            Message::read(&body, &mut interner).unwrap() else { panic!("something else") };
        prop_assert_eq!(format!("{records:?}"), format!("{back:?}"));
        let silence: Vec<_> = silence.into_iter().map(|s| s.map(|(ms, known)| (ms, known, Silence::new(ms, known)))).collect();
        for (ms, known, silence) in silence.iter().flatten() {
            prop_assert_eq!((silence.milliseconds(), silence.is_known()), ((*ms).min((1 << 31) - 2), *known));
        }
        let silence: Vec<_> = silence.into_iter().map(|s| s.map(|(_, _, silence)| silence)).collect();
        let Message::Answer { number: 4, silence: back } =
            Message::read(&answer(4, &silence), &mut interner).unwrap() else { panic!("something else") };
        prop_assert_eq!(silence, back);
        let ids: Vec<InstanceId> = numbers.iter().map(|n| row(*n, &[]).instance.id).collect();
        let Message::Question { number: 5, ids: back } =
            Message::read(&question(5, &ids), &mut interner).unwrap() else { panic!("something else") };
        prop_assert_eq!(ids, back);
        // A message cut off at any length is refused.
        for length in 0..body.len() {
            prop_assert!(Message::read(&body[..length], &mut interner).is_err());
        }
    }

    #[test]
    fn no_bytes_make_it_panic(mut body in proptest::collection::vec(any::<u8>(), 0..200), kind in 0usize..5) {
        if let (Some(first), Some(kind)) = (body.first_mut(), b"QACN".get(kind)) {
            *first = *kind;
        }
        let _ = Message::read(&body, &mut Interner::default());
        let _ = Handshake::new(&SECRET, NodeId(1), [0; NONCE], None).unwrap().introduction(&body).map(drop);
        let _ = Handshake::new(&SECRET, NodeId(1), [0; NONCE], None).unwrap().welcome(&body).map(drop);
    }
}

#[test]
fn a_row_whose_digest_does_not_fit_is_refused() {
    let mut wrong = row(1, &[]);
    wrong.instance.digest = crate::model::Digest([1; 16]);
    let body = committed(1, Revision(9), &[Record::Instance(wrong)]);
    assert!(Message::read(&body, &mut Interner::default()).is_err());
    let body = committed(1, Revision(8), &[Record::Instance(row(1, &[]))]);
    assert!(Message::read(&body, &mut Interner::default()).is_err(), "a row of another revision");
}
