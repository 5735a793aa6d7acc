//! By scripts that proptest thinks of, and by hand.

use proptest::prelude::*;

use super::model::{Sends, a_server_says_anything, answers_find_their_requests};
use super::*;

fn sends() -> impl Strategy<Value = Sends> {
    let fails = || prop::bool::weighted(0.15);
    prop_oneof![
        3 => fails().prop_map(Sends::Parse),
        3 => fails().prop_map(Sends::Bind),
        2 => fails().prop_map(Sends::Describe),
        1 => Just(Sends::Close),
        3 => fails().prop_map(Sends::Execute),
        1 => Just(Sends::Copy),
        4 => Just(Sends::Sync),
        2 => fails().prop_map(Sends::Query),
        1 => Just(Sends::QueryCopy),
        1 => Just(Sends::CopyData),
        3 => Just(Sends::CopyDone),
        1 => Just(Sends::Own),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn every_answer_finds_its_request(script in prop::collection::vec((sends(), 0..3usize), 1..60)) {
        answers_find_their_requests(script);
    }

    #[test]
    fn a_server_may_say_anything(script in prop::collection::vec((sends(), any::<u8>(), any::<Option<u8>>()), 0..60)) {
        a_server_says_anything(script);
    }
}

#[test]
fn a_server_reads_on_once_it_has_answered() {
    // P; B; H; E, of which the Flush asks for two answers.
    let mut protocol = Protocol::new();
    protocol.sent(Request::Parse, 1);
    assert!(!protocol.will_answer(false), "for want of a Flush");
    protocol.sent(Request::Bind, 3);
    protocol.flushes();
    protocol.sent(Request::Execute, 5);
    protocol.received(b'1', None);
    assert!(protocol.will_answer(false) && protocol.will_answer(true));
    protocol.received(b'2', None);
    assert!(!protocol.will_answer(false));
    protocol.sent(Request::Sync, 7);
    assert!(protocol.will_answer(false) && !protocol.will_answer(true), "half a Sync is none");
    protocol.received(b'C', None);
    protocol.received(b'Z', Some(b'I'));
    assert!(!protocol.will_answer(false) && protocol.units() == 0);
    // In COPY the server reads, and ignores a Flush until the data are at their end.
    protocol.sent(Request::Execute, 9);
    protocol.flushes();
    protocol.received(b'G', None);
    protocol.flushes();
    assert!(!protocol.will_answer(false));
    protocol.ends_copy(11);
    assert!(!protocol.will_answer(false));
    protocol.flushes();
    assert!(protocol.will_answer(false));
    protocol.received(b'C', None);
    assert!(!protocol.will_answer(false));
    protocol.sent(Request::Sync, 13);
    protocol.received(b'Z', Some(b'I'));
    // With its end sent ahead.
    protocol.sent(Request::Execute, 15);
    protocol.ends_copy(17);
    protocol.flushes();
    protocol.received(b'G', None);
    assert!(protocol.will_answer(false));
}

#[test]
fn copy_data_that_was_not_waited_for() {
    // P; B; E; S; d; c; S in one packet: the first Sync is ignored, the second one ends the unit.
    let mut protocol = Protocol::new();
    for (number, request) in [(1, Request::Parse), (3, Request::Bind), (5, Request::Execute), (7, Request::Sync)] {
        protocol.sent(request, number);
    }
    protocol.ends_copy(9);
    protocol.sent(Request::Sync, 11);
    assert_eq!(protocol.received(b'1', None), Reply::Parsed(1));
    assert_eq!(protocol.received(b'2', None), Reply::Bound(3));
    assert_eq!(protocol.received(b'G', None), Reply::CopyIn { ignored: vec![7] });
    assert!(!protocol.copies_in() && !protocol.is_in_unit());
    assert_eq!(protocol.received(b'C', None), Reply::Completed(Some(5)));
    assert_eq!(protocol.due(), None);
    assert_eq!(protocol.received(b'Z', Some(b'I')), Reply::Ready(11));
    assert!(protocol.is_quiet() && !protocol.owes_end());
    // The same where it was no COPY after all.
    protocol.sent(Request::Execute, 1);
    protocol.sent(Request::Sync, 3);
    protocol.ends_copy(5);
    protocol.sent(Request::Sync, 7);
    assert!(matches!(protocol.received(b'E', None), Reply::Failed { failed: Some(1), .. }));
    assert_eq!(protocol.received(b'Z', Some(b'I')), Reply::Ready(3));
    assert_eq!(protocol.due(), None);
    assert_eq!(protocol.received(b'Z', Some(b'I')), Reply::Ready(7));
}

#[test]
fn copy_data_behind_a_query_that_fails_owes_nothing() {
    // Q "copy nosuch from stdin"; d; c in one packet.
    let mut protocol = Protocol::new();
    protocol.sent(Request::Query, 1);
    protocol.ends_copy(3);
    assert!(matches!(protocol.received(b'E', None), Reply::Failed { failed: None, .. }));
    assert_eq!(protocol.received(b'Z', Some(b'I')), Reply::Ready(1));
    assert!(protocol.is_quiet());
}

#[test]
fn what_depends_on_an_answer_waits_for_it() {
    let mut protocol = Protocol::new();
    protocol.sent(Request::Parse, 2);
    assert!(!protocol.is_depended_on(), "in the same unit it is skipped as well");
    protocol.sent(Request::Sync, 3);
    assert!(protocol.is_depended_on());
    protocol.received(b'1', None);
    assert!(!protocol.is_depended_on());
    assert_eq!((protocol.unit(), protocol.has_ended(0)), (1, false));
    protocol.received(b'Z', Some(b'T'));
    assert!(protocol.has_ended(0) && !protocol.has_ended(1) && protocol.status() == Status::Transaction);
}

#[test]
fn a_server_that_skips_reads_on_to_sync() {
    let mut protocol = Protocol::new();
    protocol.sent(Request::Bind, 1);
    protocol.sent(Request::Execute, 3);
    assert_eq!(protocol.received(b'E', None), Reply::Failed { failed: Some(1), skipped: vec![3] });
    assert!(protocol.is_skipping() && protocol.is_in_unit());
    protocol.sent(Request::Sync, 5);
    assert!(!protocol.is_skipping());
    // An error at Sync itself (a deferred constraint) skips nothing.
    assert_eq!(protocol.received(b'E', None), Reply::Failed { failed: None, skipped: vec![] });
    assert_eq!(protocol.received(b'Z', Some(b'I')), Reply::Ready(5));
    assert_eq!(protocol.received(b'Z', Some(b'I')), Reply::Broken("ReadyForQuery out of order"));
    assert_eq!(protocol.received(b'2', None), Reply::Broken("BindComplete without a Bind"));
    assert_eq!(protocol.received(b'Z', Some(b'x')), Reply::Broken("invalid ReadyForQuery"));
}

#[test]
fn a_failed_transaction_ends_within_a_unit() {
    let mut protocol = Protocol::new();
    let fails = |protocol: &mut Protocol<u32>| {
        protocol.sent(Request::Query, 1);
        assert!(!protocol.is_failed(), "not known before it is answered");
        protocol.received(b'E', None);
        protocol.received(b'Z', Some(b'E'));
        assert!(protocol.is_failed());
    };
    fails(&mut protocol);
    // P '' "rollback"; B; E: what follows runs only if that has ended the transaction.
    protocol.sent(Request::Parse, 2);
    protocol.sent(Request::Bind, 3);
    assert!(protocol.is_failed());
    protocol.recovers();
    protocol.sent(Request::Execute, 4);
    assert!(!protocol.is_failed());
    // The next unit runs also if that has failed.
    protocol.sent(Request::Sync, 5);
    assert!(protocol.is_failed());
    for (tag, first) in [(b'1', None), (b'2', None)] {
        protocol.received(tag, first);
        assert!(protocol.answers_in_failed());
    }
    protocol.received(b'C', None);
    assert!(!protocol.answers_in_failed(), "what the rest of the unit is answered");
    protocol.received(b'Z', Some(b'I'));
    assert!(!protocol.is_failed());
    // In a transaction that has not failed, an Execute says nothing about the next failure.
    protocol.recovers();
    protocol.sent(Request::Execute, 6);
    protocol.sent(Request::Sync, 7);
    protocol.received(b'C', None);
    protocol.received(b'Z', Some(b'T'));
    fails(&mut protocol);
}
