#![allow(clippy::unwrap_used)]

use super::*;

fn server(name: &str, state: Option<(bool, u32, u64)>) -> ServerSeen {
    ServerSeen {
        name: name.into(),
        address: format!("{name}:1"),
        state: state.ok_or_else(|| "down".to_owned()).map(|(standby, timeline, has)| ServerState {
            system: 1,
            standby,
            timeline,
            has: Lsn(has),
            replayed: Lsn(has),
            receiving: standby,
            conninfo: None,
        }),
    }
}

fn relay(name: &str, standing: Option<(u32, u64, Option<u32>, Option<&str>)>) -> RelaySeen {
    RelaySeen {
        name: name.into(),
        address: format!("{name}:1"),
        standing: standing.ok_or_else(|| "down".to_owned()).map(|(timeline, flushed, fenced, chosen)| Standing {
            system: 1,
            term: 3,
            timeline,
            flushed: Lsn(flushed),
            whole: Lsn(flushed - 8),
            fenced,
            chosen: chosen.map(|node| (3, node.to_owned())),
            upstream: String::new(),
            state: "streaming".into(),
            named: false,
        }),
    }
}

const PRIMARY: bool = false;
const STANDBY: bool = true;

#[test]
fn situations() {
    let healthy = |primary: &str, timeline| Ok(Situation::Healthy { primary: primary.into(), timeline });
    for (what, servers, relays, expected) in [
        (
            "as it should be",
            vec![server("a", Some((PRIMARY, 1, 9))), server("b", Some((STANDBY, 1, 9)))],
            vec![relay("r", Some((1, 9, None, None)))],
            healthy("a", 1),
        ),
        (
            "the primary is gone",
            vec![server("a", None), server("b", Some((STANDBY, 1, 9)))],
            vec![relay("r", Some((1, 9, None, None)))],
            Ok(Situation::NoPrimary { timeline: 1 }),
        ),
        (
            "an old primary is back, and the new one is gone",
            vec![server("a", Some((PRIMARY, 1, 9))), server("b", None)],
            vec![relay("r", Some((2, 9, None, None)))],
            Ok(Situation::NoPrimary { timeline: 2 }),
        ),
        (
            "an old primary is back",
            vec![server("a", Some((PRIMARY, 1, 9))), server("b", Some((PRIMARY, 2, 9)))],
            vec![relay("r", Some((2, 9, None, None)))],
            healthy("b", 2),
        ),
        (
            "fenced and not dead",
            vec![server("a", Some((PRIMARY, 1, 9))), server("b", Some((STANDBY, 1, 9)))],
            vec![relay("r", Some((1, 9, Some(1), None)))],
            Ok(Situation::Fenced { old: "a".into(), timeline: 1 }),
        ),
        (
            "promoted, and the relay knows nothing of it",
            vec![server("a", None), server("b", Some((PRIMARY, 2, 9)))],
            vec![relay("r", Some((1, 9, Some(1), Some("b"))))],
            Ok(Situation::Promoted { primary: "b".into(), timeline: 2 }),
        ),
        (
            "two",
            vec![server("a", Some((PRIMARY, 2, 9))), server("b", Some((PRIMARY, 2, 9)))],
            vec![],
            Err(Undecided::Two("a".into(), "b".into(), 2)),
        ),
        ("silence", vec![server("a", None)], vec![relay("r", None)], Err(Undecided::Nobody)),
    ] {
        assert_eq!(Survey { servers, relays }.situation(), expected, "{what}");
    }
}

#[test]
fn foreign_servers_do_not_count() {
    let mut foreign = server("x", Some((PRIMARY, 7, 9)));
    foreign.state.as_mut().unwrap().system = 2;
    let servers = vec![foreign, server("a", Some((PRIMARY, 1, 9))), server("b", Some((STANDBY, 1, 9)))];
    let survey = Survey { servers, relays: vec![] };
    assert_eq!(survey.situation(), Ok(Situation::Healthy { primary: "a".into(), timeline: 1 }));
    assert_eq!(choose(&survey, Some("x"), false), Err(Unfit::Foreign("x".into())));
}

#[test]
fn how_many_relays() {
    for (relays, acknowledgements, expected) in
        [(1, 1, 1), (2, 1, 2), (2, 2, 1), (3, 1, 3), (3, 2, 2), (3, 3, 1), (5, 3, 3), (1, 0, 1), (1, 5, 1)]
    {
        assert_eq!(needed(relays, acknowledgements), expected, "{acknowledgements} of {relays}");
    }
}

#[test]
fn the_furthest_relay_is_the_measure() {
    let relays = [
        relay("r1", Some((1, 90, Some(1), None))),
        relay("r2", Some((2, 50, Some(2), None))),
        relay("r3", Some((2, 60, Some(2), None))),
    ];
    let survey = Survey { servers: vec![], relays: relays.to_vec() };
    let target = Target::of(survey.standing()).unwrap();
    assert_eq!(target.relay, Some(("r3".into(), "r3:1".into())));
    assert_eq!((target.timeline, target.received, target.replayed), (2, Lsn(60), Lsn(52)));
    for (timeline, has, replayed, expected) in
        [(2, 60, 52, true), (2, 60, 51, false), (1, 90, 90, false), (3, 52, 52, true), (2, 51, 52, false)]
    {
        let mut state = server("a", Some((STANDBY, timeline, has))).state.unwrap();
        state.replayed = Lsn(replayed);
        assert_eq!(target.reached(&state), expected, "{timeline} {has} {replayed}");
    }
}

#[test]
fn candidates() {
    let both = || vec![server("a", Some((STANDBY, 1, 8))), server("b", Some((STANDBY, 1, 9)))];
    let survey = |servers, relays| Survey { servers, relays };
    let free = || vec![relay("r", Some((1, 9, Some(1), None)))];
    let chosen = |node| vec![relay("r", Some((1, 9, Some(1), Some(node))))];
    for (what, survey, to, force, expected) in [
        ("the one that has most", survey(both(), free()), None, false, Ok("b")),
        ("the one that is asked for", survey(both(), free()), Some("a"), false, Ok("a")),
        ("the one that was chosen", survey(both(), chosen("a")), None, false, Ok("a")),
        ("that one, asked for", survey(both(), chosen("a")), Some("a"), false, Ok("a")),
        ("another than was chosen", survey(both(), chosen("a")), Some("b"), false, Err(Unfit::Chosen("a".into(), 3))),
        ("another, by force", survey(both(), chosen("a")), Some("b"), true, Ok("b")),
        (
            "the one that was chosen is gone",
            survey(vec![server("a", None), server("b", Some((STANDBY, 1, 9)))], chosen("a")),
            None,
            false,
            Err(Unfit::Chosen("a".into(), 3)),
        ),
        (
            "the one on the newest timeline",
            survey(vec![server("a", Some((STANDBY, 1, 99))), server("b", Some((STANDBY, 2, 9)))], free()),
            None,
            false,
            Ok("b"),
        ),
        (
            "one on an older timeline",
            survey(vec![server("a", Some((STANDBY, 1, 99))), server("b", Some((STANDBY, 2, 9)))], free()),
            Some("a"),
            false,
            Err(Unfit::Behind("a".into(), 1, "b".into(), 2)),
        ),
        (
            "a primary",
            survey(vec![server("a", Some((PRIMARY, 1, 9)))], free()),
            Some("a"),
            false,
            Err(Unfit::Writable("a".into())),
        ),
        ("nobody", survey(vec![server("a", None)], free()), None, false, Err(Unfit::None)),
        (
            "one that is down",
            survey(vec![server("a", None)], free()),
            Some("a"),
            false,
            Err(Unfit::Silent("a".into(), "down".into())),
        ),
        (
            "one that is not there",
            survey(both(), free()),
            Some("z"),
            false,
            Err(Unfit::Unknown("z".into(), "a, b".into())),
        ),
    ] {
        assert_eq!(choose(&survey, to, force), expected.map(str::to_owned), "{what}");
    }
}

#[test]
fn judgements() {
    use super::super::watch::{Judgement, judge};
    let lost = || vec![server("a", None), server("b", Some((STANDBY, 1, 9)))];
    let hears = |state: &str, fenced| {
        let mut relay = relay("r", Some((1, 9, fenced, None)));
        relay.standing.as_mut().unwrap().state = state.into();
        vec![relay]
    };
    for (what, servers, relays, expected) in [
        ("nobody hears it", lost(), hears("cannot connect", None), Judgement::Lost),
        ("the relay hears it", lost(), hears("streaming", None), Judgement::Unsure("r hears it".into())),
        (
            "the relay is away",
            lost(),
            vec![relay("r", None)],
            Judgement::Unsure("0 relays answer, and 1 are needed".into()),
        ),
        ("somebody has begun", lost(), hears("fenced", Some(1)), Judgement::Unfinished),
        (
            "all is well",
            vec![server("a", Some((PRIMARY, 1, 9)))],
            hears("streaming", None),
            Judgement::Healthy("a".into()),
        ),
        ("silence", vec![server("a", None)], vec![], Judgement::Unsure(Undecided::Nobody.to_string())),
    ] {
        assert_eq!(judge(&Survey { servers, relays }, 1), expected, "{what}");
    }
}
