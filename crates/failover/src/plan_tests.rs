#![allow(clippy::unwrap_used)]

use super::*;

pub(in super::super) fn server(name: &str, state: Option<(bool, u32, u64)>) -> ServerSeen {
    ServerSeen {
        name: name.into(),
        address: format!("{name}:1"),
        tags: Tags { priority: 1, ..Tags::default() },
        state: state.ok_or_else(|| "down".to_owned()).map(|(standby, timeline, has)| ServerState {
            system: 1,
            standby,
            timeline,
            has: Lsn(has),
            replayed: Lsn(has),
            receiving: standby,
            conninfo: None,
            slot: None,
            paused: false,
            delay: Duration::ZERO,
            superuser: true,
            locked: Locked::No,
            read_only: false,
            note: None,
            sync_names: String::new(),
        }),
    }
}

pub(in super::super) fn relay(name: &str, standing: Option<(u32, u64, Option<u32>, Option<&str>)>) -> RelaySeen {
    RelaySeen {
        name: name.into(),
        address: format!("{name}:1"),
        application: name.into(),
        standing: standing.ok_or_else(|| "down".to_owned()).map(|(timeline, flushed, fenced, chosen)| RelayState {
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

/// Makes a survey with one acknowledgement.
fn survey(servers: Vec<ServerSeen>, relays: Vec<RelaySeen>) -> Survey {
    Survey { servers, relays, acknowledgements: 1 }
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
        assert_eq!(survey(servers, relays).situation(), expected, "{what}");
    }
}

/// With three relays, two have to be fenced so that none of the primary's commits is acknowledged.
#[test]
fn a_fence_that_stops_nothing_is_no_failover() {
    let free = |name: &str| relay(name, Some((1, 9, None, None)));
    let fenced = |name: &str| relay(name, Some((1, 9, Some(1), None)));
    let healthy = Ok(Situation::Healthy { primary: "a".into(), timeline: 1 });
    let stopped = Ok(Situation::Fenced { old: "a".into(), timeline: 1 });
    for (what, relays, expected) in [
        ("one comes back fenced", vec![fenced("r"), free("s"), free("t")], &healthy),
        ("one is fenced, of another nobody knows", vec![fenced("r"), relay("s", None), free("t")], &stopped),
        ("two are fenced", vec![fenced("r"), fenced("s"), free("t")], &stopped),
        ("none is, of two nobody knows", vec![free("r"), relay("s", None), relay("t", None)], &healthy),
    ] {
        let servers = vec![server("a", Some((PRIMARY, 1, 9))), server("b", Some((STANDBY, 1, 9)))];
        assert_eq!(&Survey { servers, relays, acknowledgements: 2 }.situation(), expected, "{what}");
    }
}

#[test]
fn terms_are_remembered_by_relays_and_by_servers() {
    let mut noted = server("a", Some((STANDBY, 1, 9)));
    assert_eq!(survey(vec![noted.clone()], vec![]).highest_term(), 0);
    assert_eq!(survey(vec![noted.clone()], vec![relay("r", Some((1, 9, None, None)))]).highest_term(), 3);
    // A relay that has lost its directory has promised nothing.
    noted.state.as_mut().unwrap().note = Some(Note { term: 8, after: None });
    assert_eq!(survey(vec![noted], vec![relay("r", Some((1, 9, None, None)))]).highest_term(), 8);
}

#[test]
fn foreign_servers_do_not_count() {
    let mut foreign = server("x", Some((PRIMARY, 7, 9)));
    foreign.state.as_mut().unwrap().system = 2;
    let servers = vec![foreign, server("a", Some((PRIMARY, 1, 9))), server("b", Some((STANDBY, 1, 9)))];
    let survey = survey(servers, vec![]);
    assert_eq!(survey.situation(), Ok(Situation::Healthy { primary: "a".into(), timeline: 1 }));
    assert_eq!(candidates(&survey, Some("x"), false, &Rules::default()), Err(Unfit::Foreign("x".into())));
}

#[test]
fn how_many_relays() {
    for (relays, acknowledgements, expected) in
        [(1, 1, 1), (2, 1, 2), (2, 2, 2), (3, 1, 3), (3, 2, 2), (3, 3, 2), (5, 3, 3), (5, 5, 3), (1, 0, 1), (1, 5, 1)]
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
    let survey = survey(vec![], relays.to_vec());
    let target = Target::of(survey.standing()).unwrap();
    assert_eq!(target.relay, ("r3".into(), "r3:1".into()));
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
fn who_may_be_the_primary() {
    let both = || vec![server("a", Some((STANDBY, 1, 8))), server("b", Some((STANDBY, 1, 9)))];
    let free = || vec![relay("r", Some((1, 9, Some(1), None)))];
    let elected = |node| vec![relay("r", Some((1, 9, Some(1), Some(node))))];
    let ok = |names: &[&str], withdraw: Option<&str>| {
        let names = names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        Ok((names, withdraw.map(str::to_owned)))
    };
    for (what, survey, to, force, expected) in [
        ("the one that has most first", survey(both(), free()), None, false, ok(&["b", "a"], None)),
        ("the one that is asked for", survey(both(), free()), Some("a"), false, ok(&["a"], None)),
        ("the one that was elected", survey(both(), elected("a")), None, false, ok(&["a"], None)),
        ("that one, asked for", survey(both(), elected("a")), Some("a"), false, ok(&["a"], None)),
        (
            "another than was elected, which answers and can be given up",
            survey(both(), elected("a")),
            Some("b"),
            false,
            ok(&["b"], Some("a")),
        ),
        (
            "the one that was elected is gone",
            survey(vec![server("a", None), server("b", Some((STANDBY, 1, 9)))], elected("a")),
            None,
            false,
            Err(Unfit::Elected("a".into(), 3)),
        ),
        (
            "it is gone, and given up by force",
            survey(vec![server("a", None), server("b", Some((STANDBY, 1, 9)))], elected("a")),
            None,
            true,
            ok(&["b"], Some("a")),
        ),
        (
            "the one that was elected is of another cluster by now",
            survey(vec![server("b", Some((STANDBY, 1, 9)))], elected("a")),
            None,
            false,
            Err(Unfit::Elected("a".into(), 3)),
        ),
        (
            "those on the newest timeline",
            survey(vec![server("a", Some((STANDBY, 1, 99))), server("b", Some((STANDBY, 2, 9)))], free()),
            None,
            false,
            ok(&["b"], None),
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
        ("nobody", survey(vec![server("a", None)], free()), None, false, Err(Unfit::Nobody)),
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
        let found = candidates(&survey, to, force, &Rules::default());
        let found = found.map(|found| (found.candidates.into_iter().map(|it| it.name).collect(), found.withdraw));
        assert_eq!(found, expected, "{what}");
    }
}

/// Three standbys with the same log, one of which is modified.
#[test]
fn who_is_fit() {
    let base = || ["a", "b", "c"].map(|name| server(name, Some((STANDBY, 1, 9)))).to_vec();
    let zone = |zone: &str| Some(zone.to_owned());
    type Case<'a> = (&'a str, &'a Rules, fn(&mut ServerSeen), &'a [&'a str], Option<Unfit>);
    let none = Rules::default();
    let zones = Rules { zones: vec!["here".into()], ..Rules::default() };
    let home = Rules { home: zone("here"), ..Rules::default() };
    let lag = Rules { lag_limit: Some(100), ..Rules::default() };
    let cases: [Case<'_>; 12] = [
        ("nothing", &none, |_| {}, &["a", "b", "c"], None),
        ("a higher priority", &none, |server| server.tags.priority = 2, &["b", "a", "c"], None),
        ("a lower priority", &none, |server| server.tags.priority = 0, &["a", "c", "b"], None),
        ("never", &none, |server| server.tags.never = true, &["a", "c"], Some(Unfit::Never("b".into()))),
        (
            "delayed",
            &none,
            |server| server.state.as_mut().unwrap().delay = Duration::from_secs(60),
            &["a", "c"],
            Some(Unfit::Delayed("b".into(), Duration::from_secs(60))),
        ),
        (
            "paused",
            &none,
            |server| server.state.as_mut().unwrap().paused = true,
            &["a", "c"],
            Some(Unfit::Paused("b".into())),
        ),
        (
            "no superuser",
            &none,
            |server| server.state.as_mut().unwrap().superuser = false,
            &["a", "c"],
            Some(Unfit::Forbidden("b".into())),
        ),
        ("the old primary's zone", &home, |server| server.tags.zone = Some("here".into()), &["b", "a", "c"], None),
        (
            "more than the zone",
            &home,
            |server| {
                server.tags = Tags { priority: 0, zone: Some("here".into()), never: false };
            },
            &["a", "c", "b"],
            None,
        ),
        ("only this zone", &zones, |server| server.tags.zone = Some("here".into()), &["b"], None),
        ("too far behind", &lag, |server| server.state.as_mut().unwrap().has = Lsn(909), &["b"], None),
        ("not too far behind", &lag, |server| server.state.as_mut().unwrap().has = Lsn(109), &["b", "a", "c"], None),
    ];
    for (what, rules, change, expected, named) in cases {
        let mut servers = base();
        change(&mut servers[1]);
        let survey = survey(servers, vec![relay("r", Some((1, 9, Some(1), None)))]);
        let found = candidates(&survey, None, false, rules).unwrap();
        let names: Vec<&str> = found.candidates.iter().map(|candidate| candidate.name.as_str()).collect();
        assert_eq!(names, expected, "{what}");
        assert_eq!(found.unfit.len(), 3 - expected.len(), "{what}");
        // If named it is accepted all the same, unless it is unusable.
        let found = candidates(&survey, Some("b"), false, rules);
        assert_eq!(found.err(), named, "{what}");
    }
    // With force even a node that is never to be the primary.
    let mut servers = base();
    servers[1].tags.never = true;
    assert!(candidates(&survey(servers, vec![]), Some("b"), true, &none).is_ok());
    // No candidate, with the reason.
    let mut servers = base();
    servers.iter_mut().for_each(|server| server.state.as_mut().unwrap().paused = true);
    let why = candidates(&survey(servers, vec![]), None, false, &none).unwrap_err().to_string();
    assert!(why.contains("replay is paused on a") && why.contains("replay is paused on c"), "{why}");
}

#[test]
fn judgements() {
    use super::super::judge::{Judgement, judge};
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
        assert_eq!(judge(&survey(servers, relays)), expected, "{what}");
    }
}
