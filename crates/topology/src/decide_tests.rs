//! Table tests: a story of reports, and the expected decision after each.

use super::*;

/// Tests of servers without timelines.
#[path = "decide_counted_tests.rs"]
mod counted;

const SECOND: Duration = Duration::from_secs(1);
const US: u64 = 77;

/// Three nodes of weight 1, a clock that the test moves, and all reports so far.
struct Story {
    decider: Decider,
    now: Instant,
    events: Vec<Event>,
    marks: Vec<(NodeId, Mark)>,
    last: Option<Decision>,
}

fn limits() -> Limits {
    Limits { failures: 2, lag: SECOND * 10, back_off: SECOND, positions: Positions::Auto }
}

impl Story {
    fn new(nodes: usize) -> Story {
        Story {
            decider: Decider::new(limits(), &vec![Some(1); nodes]),
            now: Instant::now(),
            events: Vec::new(),
            marks: Vec::new(),
            last: None,
        }
    }

    /// Returns a story with primary 0, replicas 1 and 2, timeline 1, all at 1000.
    fn running() -> Story {
        let mut story = Story::new(3);
        story.primary(0, 1, 1000).standby(1, 1, 1000).standby(2, 1, 1000);
        story.standby(1, 1, 1000);
        assert_eq!(story.roles(), "P R R");
        story.forget();
        story
    }

    fn forget(&mut self) {
        self.events.clear();
        self.marks.clear();
    }

    fn report(&mut self, node: u16, report: Report) -> &mut Story {
        let mut decision = self.decider.report(NodeId(node), report, self.now);
        self.events.append(&mut decision.events);
        self.marks.append(&mut decision.marks);
        self.last = Some(decision);
        self
    }

    fn up(&mut self, node: u16, system: u64, timeline: u32, fresh: bool, position: Position) -> &mut Story {
        self.report(node, Report::Up(Facts { system, timeline, fresh, position }))
    }

    fn primary(&mut self, node: u16, timeline: u32, lsn: u64) -> &mut Story {
        self.up(node, US, timeline, false, Position::Primary { lsn: Lsn(lsn) })
    }

    fn standby(&mut self, node: u16, timeline: u32, lsn: u64) -> &mut Story {
        self.up(node, US, timeline, false, Position::of_log(Lsn(lsn), None))
    }

    fn fails(&mut self, node: u16) -> &mut Story {
        self.report(node, Report::Down { error: "refused".into(), suspected: false })
    }

    fn dies(&mut self, node: u16) -> &mut Story {
        self.report(node, Report::Lost).fails(node)
    }

    fn later(&mut self, time: Duration) -> &mut Story {
        self.now += time;
        self
    }

    fn decision(&self) -> &Decision {
        self.last.as_ref().expect("something was reported")
    }

    /// Returns a letter per node: Primary, Replica, Stale, `-` for unknown; in lower case if not usable (a stale one never is).
    fn roles(&self) -> String {
        let letter = |outcome: &Outcome| match (outcome.role, outcome.usable) {
            (Role::Primary, true) => "P",
            (Role::Primary, false) => "p",
            (Role::Replica, true) => "R",
            (Role::Replica, false) => "r",
            (Role::Stale, false) => "s",
            (Role::Stale, true) => "S",
            (Role::Unknown, false) => "-",
            (Role::Unknown, true) => "?",
        };
        let primaries = self.decision().nodes.iter().filter(|outcome| outcome.role == Role::Primary).count();
        assert_eq!(primaries, usize::from(self.decision().primary.is_some()), "the primary and the roles say the same");
        self.decision().nodes.iter().map(letter).collect::<Vec<_>>().join(" ")
    }

    fn weights(&self) -> Vec<u32> {
        self.decision().nodes.iter().map(|outcome| outcome.weight).collect()
    }

    fn published(&self, node: u16) -> Vec<u64> {
        let of = |(id, mark): &(NodeId, Mark)| match mark {
            Mark::Publish(lsn) if *id == NodeId(node) => Some(lsn.0),
            _ => None,
        };
        self.marks.iter().filter_map(of).collect()
    }

    fn was_reset(&self, node: u16) -> bool {
        self.marks.contains(&(NodeId(node), Mark::Reset))
    }

    fn count(&self, wanted: fn(&Event) -> bool) -> usize {
        self.events.iter().filter(|event| wanted(event)).count()
    }
}

#[test]
fn nothing_is_decided_before_every_node_was_tried() {
    let mut story = Story::new(3);
    assert_eq!(story.primary(0, 1, 10).roles(), "- - -", "it may be an old primary");
    assert_eq!(story.standby(1, 1, 10).roles(), "- - -");
    assert_eq!(story.fails(2).roles(), "P R -", "a node that is down was tried too");
    assert_eq!(story.decision().term, Term { system: US, timeline: 1 });
    assert_eq!(story.count(|event| matches!(event, Event::Primary { .. })), 1);
    assert_eq!(story.standby(2, 1, 10).roles(), "P R R");
    assert_eq!(story.weights(), [10, 10, 10], "no slow start for what was never in");
}

#[test]
fn at_the_start_the_old_primary_is_told_from_the_new() {
    for (others, roles, why) in [
        ((2, true), "s P -", "the new primary answers"),
        ((2, false), "s R -", "only a replica of the new primary answers"),
        ((1, false), "P R -", "nobody has seen a newer timeline"),
    ] {
        let mut story = Story::new(3);
        story.primary(0, 1, 900);
        match others {
            (timeline, true) => story.primary(1, timeline, 950),
            (timeline, false) => story.standby(1, timeline, 950),
        };
        assert_eq!(story.fails(2).roles(), roles, "{why}");
    }
}

#[test]
fn a_promoted_replica_becomes_primary() {
    let mut story = Story::running();
    assert_eq!(story.dies(0).roles(), "- R R", "no primary, reads go on");
    assert_eq!(story.decision().primary, None);
    assert_eq!(story.decision().term.timeline, 1, "the last primary's");
    story.forget();
    assert_eq!(story.primary(1, 2, 1100).roles(), "- P R");
    assert_eq!(story.decision().term, Term { system: US, timeline: 2 });
    assert!(story.was_reset(2), "positions of timeline 1 mean nothing now");
    assert!(story.published(2).is_empty(), "still on timeline 1");
    assert_eq!(story.standby(2, 2, 1100).roles(), "- P R");
    assert_eq!(story.published(2), [1100]);
}

#[test]
fn marks_go_down_before_they_go_up() {
    let mut story = Story::running();
    // Already on timeline 2 when the primary of timeline 2 is first seen: published in the same decision, after the reset.
    story.dies(0).standby(2, 2, 1200);
    story.forget();
    story.primary(1, 2, 1200);
    let of_two: Vec<Mark> = story.marks.iter().filter(|(id, _)| *id == NodeId(2)).map(|(_, mark)| *mark).collect();
    assert_eq!(of_two, [Mark::Reset, Mark::Publish(Lsn(1200))]);
}

#[test]
fn a_position_of_another_timeline_is_not_published() {
    for (timeline, published, why) in
        [(1, true, "the term's"), (2, false, "a newer one"), (0, false, "unknown"), (3, false, "newer still")]
    {
        let mut story = Story::running();
        story.standby(2, timeline, 2000);
        assert_eq!(story.published(2).contains(&2000), published, "{why}");
    }
}

#[test]
fn an_old_primary_is_stale() {
    let mut story = Story::running();
    story.dies(0).primary(1, 2, 1100).standby(2, 2, 1100);
    story.forget();
    assert_eq!(story.primary(0, 1, 1050).later(SECOND * 2).primary(0, 1, 1060).roles(), "s P R");
    story.later(SECOND).primary(0, 1, 1070);
    assert_eq!(story.count(|event| matches!(event, Event::OldTimeline { .. })), 1, "said once");
    assert_eq!(story.dies(1).roles(), "s - R", "also while the new primary cannot be reached");
    assert_eq!(story.later(SECOND * 100).primary(0, 1, 1080).roles(), "s - R", "however long");
    assert_eq!(story.primary(1, 2, 1200).roles(), "s P R", "the new one is back without delay");
}

#[test]
fn a_newer_timeline_at_a_replica_unseats_the_primary() {
    let mut story = Story::running();
    assert_eq!(story.standby(2, 2, 1000).roles(), "s R R", "somebody else writes, somewhere");
    assert_eq!(story.decision().primary, None);
}

#[test]
fn of_two_on_one_timeline_the_present_one_stays() {
    let mut story = Story::running();
    assert_eq!(story.primary(1, 1, 1010).roles(), "P s R");
    story.primary(1, 1, 1020).primary(0, 1, 1010);
    assert_eq!(story.roles(), "P s R");
    assert_eq!(story.count(|event| matches!(event, Event::Rival { .. })), 1, "said once");
    assert_eq!(story.dies(0).roles(), "- s R", "nor when the present one is lost: its writes are not there");
    assert_eq!(story.primary(0, 1, 1020).roles(), "P s R");
    assert_eq!(story.standby(1, 1, 1020).roles(), "P R R", "rebuilt as a standby");
    story.dies(0);
    assert_eq!(story.primary(1, 2, 1030).roles(), "- P R", "and promoted properly");
}

#[test]
fn a_node_of_another_system_is_stale() {
    let mut story = Story::new(3);
    let foreign = |story: &mut Story, position| {
        story.up(2, 99, 7, false, position);
    };
    foreign(&mut story, Position::Primary { lsn: Lsn(5000) });
    story.primary(0, 1, 10).standby(1, 1, 10);
    assert_eq!(story.roles(), "P R s", "however high its timeline");
    foreign(&mut story, Position::of_log(Lsn(5000), None));
    assert_eq!(story.roles(), "P R s");
    assert!(story.published(2).is_empty());
    assert_eq!(story.count(|event| matches!(event, Event::Foreign { .. })), 1, "said once");
    assert_eq!(story.dies(0).roles(), "- R s");
}

#[test]
fn a_primary_that_became_a_standby_is_a_replica() {
    let mut story = Story::running();
    assert_eq!(story.standby(0, 1, 1000).roles(), "R R R");
    assert_eq!(story.decision().primary, None);
}

#[test]
fn a_node_is_out_after_enough_failures() {
    for (reports, roles, why) in [
        (vec![false], "P R R", "one is not enough"),
        (vec![false, false], "P - R", "two are"),
        (vec![true], "P - R", "one after somebody else's is"),
        (vec![false, true], "P - R", "in any order"),
    ] {
        let mut story = Story::running();
        for suspected in reports {
            story.report(1, Report::Down { error: "refused".into(), suspected });
        }
        assert_eq!(story.roles(), roles, "{why}");
    }
    let mut story = Story::running();
    assert_eq!(story.fails(1).standby(1, 1, 1000).fails(1).roles(), "P R R", "not in a row");
    let mut story = Story::running();
    assert_eq!(story.report(1, Report::Lost).roles(), "P R R", "a lost session alone is no failure");
    assert_eq!(story.standby(1, 1, 1000).fails(1).roles(), "P R R", "and is forgotten when the node answers");
    let mut story = Story::running();
    assert_eq!(story.dies(1).roles(), "P - R");
    story.fails(1).fails(1);
    assert_eq!(story.count(|event| matches!(event, Event::Ejected { .. })), 1, "said once");
}

#[test]
fn return_is_backed_off_and_slow() {
    let mut story = Story::running();
    // (ejection, back-off in seconds)
    for back_off in [1, 2, 4, 8, 16, 30, 30, 30] {
        story.dies(1);
        let almost = SECOND * back_off - Duration::from_millis(1);
        assert_eq!(story.later(almost).standby(1, 1, 1000).roles(), "P - R", "before {back_off} s");
        assert_eq!(story.later(SECOND).standby(1, 1, 1000).roles(), "P R R", "after {back_off} s");
    }
    story.forget();
    assert_eq!(story.weights(), [10, 2, 10]);
    for (after, weight) in [(1, 2), (1, 4), (2, 6), (2, 8), (1, 8), (1, 10), (60, 10)] {
        story.later(SECOND * after).standby(1, 1, 1000);
        assert_eq!(story.weights(), [10, weight, 10]);
    }
    story.dies(1);
    story.later(SECOND * 2).standby(1, 1, 1000);
    assert_eq!(story.roles(), "P R R", "after a good minute the back-off is short again");
}

#[test]
fn a_primary_returns_at_once() {
    let mut story = Story::running();
    story.dies(0).primary(0, 1, 1000).dies(0).primary(0, 1, 1000).dies(0);
    assert_eq!(story.primary(0, 1, 1000).roles(), "P R R");
    assert_eq!(story.weights(), [10, 10, 10]);
}

#[test]
fn positions_are_forgotten_with_the_session() {
    let mut story = Story::running();
    story.report(1, Report::Lost);
    assert!(story.was_reset(1));
    story.forget();
    story.standby(2, 1, 1000);
    assert!(story.published(1).is_empty(), "not from what is remembered");
    story.up(1, US, 1, true, Position::of_log(Lsn(800), None));
    let of_one: Vec<Mark> = story.marks.iter().filter(|(id, _)| *id == NodeId(1)).map(|(_, mark)| *mark).collect();
    assert_eq!(of_one, [Mark::Reset, Mark::Publish(Lsn(800))], "lower than before the restart");

    let mut story = Story::running();
    story.fails(1);
    assert!(story.was_reset(1), "a probe that fails ends its session too");
    assert_eq!(story.roles(), "P R R");
}

#[test]
fn a_replica_that_lags_gets_no_reads() {
    let mut story = Story::running();
    for second in 1..=10 {
        story.later(SECOND).primary(0, 1, 1000 + second).standby(2, 1, 1000 + second).standby(1, 1, 1000);
    }
    assert_eq!(story.roles(), "P R R", "10 s is the limit");
    assert_eq!(story.decision().nodes[1].lag, Lag { time: SECOND * 10, bytes: 10 });
    story.later(SECOND).primary(0, 1, 1011).standby(2, 1, 1011).standby(1, 1, 1000);
    assert_eq!(story.roles(), "P r R", "cut off, although it replayed all that it received");
    story.later(SECOND).standby(1, 1, 1000);
    assert_eq!(story.count(|event| matches!(event, Event::Lagging { .. })), 1, "said once");
    assert_eq!(story.standby(1, 1, 1011).roles(), "P R R");
    assert_eq!(story.decision().nodes[1].lag, Lag::default());
    assert_eq!(story.weights(), [10, 10, 10], "no slow start: its caches are warm");
}

#[test]
fn idleness_and_a_lost_primary_make_no_lag() {
    let mut story = Story::running();
    for _ in 0..100 {
        story.later(SECOND).primary(0, 1, 1000).standby(1, 1, 1000);
    }
    assert_eq!(story.roles(), "P R R");
    story.later(SECOND).primary(0, 1, 1005).standby(1, 1, 1000).standby(2, 1, 1005).dies(0);
    for _ in 0..100 {
        story.later(SECOND).standby(1, 1, 1000).standby(2, 1, 1005);
    }
    assert_eq!(story.roles(), "- R R", "nobody gets further behind a primary that is gone");
}

#[test]
fn an_older_position_is_not_held_against_a_newer_sample() {
    let mut story = Story::running();
    story.later(SECOND * 60).primary(0, 1, 2000);
    assert_eq!(story.roles(), "P R R", "the replicas were not asked since");
    story.standby(1, 1, 2000);
    assert_eq!(story.decision().nodes[1].lag, Lag::default());
}

#[test]
fn a_replica_left_on_the_old_timeline_lags() {
    let mut story = Story::running();
    story.dies(0).primary(1, 2, 1100);
    story.standby(2, 1, 1000).later(SECOND * 10).standby(2, 1, 1000);
    assert_eq!(story.roles(), "- P R");
    assert_eq!(story.later(SECOND).standby(2, 1, 1000).roles(), "- P r");
    assert_eq!(story.standby(2, 2, 1100).roles(), "- P R", "it follows now");
}

#[test]
fn a_new_configuration_keeps_what_is_known() {
    let mut story = Story::running();
    let decision = story.decider.reconfigure(limits(), &[Some(1), None, Some(3), Some(1)], &[], story.now);
    story.last = Some(decision);
    assert_eq!(story.roles(), "P - R -", "no wait for the new one");
    assert_eq!(story.weights(), [10, 0, 30, 10]);
    assert_eq!(story.standby(1, 1, 1000).roles(), "P - R -", "a removed node's late report");
    assert_eq!(story.standby(3, 1, 1000).roles(), "P - R R");
    let decision = story.decider.reconfigure(limits(), &[None, Some(1), Some(3), Some(1)], &[NodeId(1)], story.now);
    story.last = Some(decision);
    assert_eq!(story.roles(), "- - R R", "the primary was removed");
    assert_eq!(story.decision().primary, None);
    assert_eq!(story.standby(1, 1, 1000).roles(), "- R R R", "added again");
}

#[test]
fn all_down_at_the_start_and_then_not() {
    let mut story = Story::new(2);
    assert_eq!(story.fails(0).fails(1).roles(), "- -");
    assert_eq!(story.standby(1, 1, 10).roles(), "- R", "reads without a primary");
    assert_eq!(story.primary(0, 1, 10).roles(), "P R");
}
