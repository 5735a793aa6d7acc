//! The decision of a scaler: one by one, and in random worlds.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Duration;

use config::scale::ScaleConfig;
use proptest::prelude::*;

use super::decide::{Action, Answer, Order, Record, Seen, Stage, Why, decide, load};
use super::window::Window;

/// Time of the decisions.
const NOW: u64 = 100_000;

fn config() -> ScaleConfig {
    ScaleConfig { least: 1, most: 3, add_at: 40, remove_at: 20, ..ScaleConfig::default() }
}

fn seen(name: &str, answer: Answer) -> Seen {
    Seen { name: name.into(), address: format!("{name}:5432"), isolated: false, weightless: false, answer }
}

fn replica(name: &str) -> Seen {
    seen(name, Answer::Standby { receiving: true, behind: 0, busy: Some(1) })
}

fn isolated(server: Seen) -> Seen {
    Seen { isolated: true, ..server }
}

fn order(node: &str, stage: Stage, done: bool, since: u64) -> Record {
    let order =
        Order { node: node.into(), address: "h:1".into(), stage, done, since, undoes: false, reason: "a test".into() };
    Record { order: Some(order), ..Record::default() }
}

fn add(node: &str) -> Action {
    Action::Add { node: node.into() }
}

fn drain(node: &str) -> Action {
    Action::Drain { node: node.into(), address: format!("{node}:5432") }
}

/// Cases without an order: name, servers, load, record, action.
#[test]
fn settled() {
    let p = || seen("db1", Answer::Primary);
    let behind = || seen("replica-2", Answer::Standby { receiving: true, behind: 1 << 40, busy: Some(1) });
    let cut_off = || seen("replica-2", Answer::Standby { receiving: false, behind: 0, busy: Some(1) });
    let missing = || seen("replica-2", Answer::Missing);
    let three = || vec![p(), replica("replica-1"), replica("replica-2"), replica("replica-3")];
    let (one, two) = (|| vec![p(), replica("replica-1")], || vec![p(), replica("replica-1"), replica("replica-2")]);
    let fresh = Record::default;
    let changed = |ago| Record { changed: NOW - ago, ..Record::default() };
    let failed = |failures, ago| Record { failures, failed: NOW - ago, ..Record::default() };
    let with = |mut servers: Vec<Seen>, server| {
        servers.push(server);
        servers
    };
    for (name, servers, load, record, expected) in [
        ("nothing is known", vec![], Some(90.0), fresh(), Action::Wait),
        ("the primary is lost", vec![missing(), replica("replica-1")], Some(90.0), fresh(), Action::Wait),
        ("two primaries", vec![p(), seen("db2", Answer::Primary)], Some(90.0), fresh(), Action::Wait),
        ("fewer than the least", vec![p()], None, fresh(), add("replica-1")),
        ("fewer than the least, just failed", vec![p()], None, failed(1, 20), Action::Wait),
        ("fewer than the least, failed a while ago", vec![p()], None, failed(1, 40), add("replica-1")),
        ("failed often", vec![p()], None, failed(4, 200), Action::Wait),
        ("failed very often", vec![p()], None, failed(4_000_000, 3599), Action::Wait),
        ("failed very often, an hour ago", vec![p()], None, failed(4_000_000, 3600), add("replica-1")),
        ("a server that does not answer counts", vec![p(), missing()], None, fresh(), Action::Wait),
        ("the load is not known", one(), None, fresh(), Action::Wait),
        ("busy", one(), Some(40.0), fresh(), add("replica-2")),
        ("nearly busy", one(), Some(39.9), fresh(), Action::Wait),
        ("busy, just changed", one(), Some(90.0), changed(119), Action::Wait),
        ("busy, changed a while ago", one(), Some(90.0), changed(120), add("replica-2")),
        ("busy, just failed", one(), Some(90.0), failed(2, 59), Action::Wait),
        ("busy, and at the most", three(), Some(90.0), fresh(), Action::Wait),
        (
            "busy while one is missing",
            vec![p(), replica("replica-1"), missing()],
            Some(90.0),
            fresh(),
            add("replica-3"),
        ),
        ("other names are not counted on", vec![p(), replica("db2")], Some(90.0), fresh(), add("replica-1")),
        ("idle", two(), Some(10.0), fresh(), drain("replica-2")),
        ("idle, just changed", two(), Some(1.0), changed(899), Action::Wait),
        ("idle, but not without it", two(), Some(10.1), fresh(), Action::Wait),
        ("idle, and at the least", one(), Some(0.0), fresh(), Action::Wait),
        ("idle while one is missing", with(one(), missing()), Some(0.0), fresh(), Action::Wait),
        ("idle while one is behind", with(three(), behind()), Some(0.0), fresh(), Action::Wait),
        ("idle while one receives nothing", with(one(), cut_off()), Some(0.0), fresh(), Action::Wait),
        (
            "idle while an operator has isolated one",
            with(one(), isolated(replica("db4"))),
            Some(0.0),
            fresh(),
            Action::Wait,
        ),
        ("only servers of others", vec![p(), replica("db2"), replica("db3")], Some(0.0), fresh(), Action::Wait),
        (
            "names that only begin alike",
            vec![p(), replica("db2"), replica("replica-x")],
            Some(0.0),
            fresh(),
            Action::Wait,
        ),
        (
            "10 is after 9",
            vec![p(), replica("replica-9"), replica("replica-10")],
            Some(0.0),
            fresh(),
            drain("replica-10"),
        ),
        (
            "the youngest is the primary",
            vec![replica("db1"), replica("replica-1"), seen("replica-2", Answer::Primary)],
            Some(0.0),
            fresh(),
            drain("replica-1"),
        ),
        ("more than the most", with(three(), replica("replica-4")), Some(90.0), fresh(), drain("replica-4")),
        (
            "more than the most, the load is not known",
            with(three(), replica("replica-4")),
            None,
            fresh(),
            drain("replica-4"),
        ),
    ] {
        let decision = decide(&config(), &servers, load, &record, true, NOW);
        assert_eq!(decision.action, expected, "{name}: {}", decision.why);
    }
    // A StatefulSet could only remove the primary.
    let servers = vec![replica("replica-0"), replica("replica-1"), seen("replica-2", Answer::Primary)];
    let only_last = ScaleConfig { only_last: true, ..config() };
    let decision = decide(&only_last, &servers, Some(0.0), &fresh(), true, NOW);
    assert_eq!((decision.action, decision.why), (Action::Wait, Why::None));
    assert_eq!(decide(&only_last, &two(), Some(0.0), &fresh(), true, NOW).action, drain("replica-2"));
}

/// Cases with an order under way.
#[test]
fn under_way() {
    let p = || seen("db1", Answer::Primary);
    let node = || "replica-2".to_owned();
    let named = || (node(), "replica-2:5432".to_owned());
    let one = || vec![p(), replica("replica-1")];
    let two = || vec![p(), replica("replica-1"), replica("replica-2")];
    let with = |mut servers: Vec<Seen>, server| {
        servers.push(server);
        servers
    };
    let joining = || seen("replica-2", Answer::Standby { receiving: true, behind: 1 << 40, busy: None });
    let gone = || seen("replica-2", Answer::Missing);
    let leaving = || with(one(), isolated(replica("replica-2")));
    let (adding, draining, removing) = (
        |done, ago| order("replica-2", Stage::Adding, done, NOW - ago),
        |ago| order("replica-2", Stage::Draining, false, NOW - ago),
        |done, ago| order("replica-2", Stage::Removing, done, NOW - ago),
    );
    let (n, a) = named();
    let remove = Action::Remove { node: n.clone(), address: a.clone() };
    let run_remove = Action::RunRemove { node: n.clone(), address: a.clone() };
    let unlisted = Action::RunRemove { node: n.clone(), address: "h:1".into() };
    let give_up = |address: &str| Action::GiveUp { node: node(), address: address.into() };
    let (keep, forget) = (Action::Keep { node: node() }, Action::Forget { node: node() });
    let mut failed = removing(false, 10);
    (failed.failures, failed.failed) = (1, NOW - 10);
    let mut failed_before = removing(false, 10);
    (failed_before.failures, failed_before.failed) = (9, NOW - 1000);
    let lost = vec![seen("db1", Answer::Missing), replica("replica-1"), isolated(replica("replica-2"))];
    let promoted = vec![replica("db1"), replica("replica-1"), isolated(seen("replica-2", Answer::Primary))];
    for (name, servers, load, record, drained, expected) in [
        (
            "the program has not run, or its scaler was killed",
            one(),
            None,
            adding(false, 0),
            false,
            Action::RunAdd { node: node() },
        ),
        ("the program has run", one(), None, adding(true, 10), false, Action::Wait),
        (
            "its scaler was killed after it had run",
            with(one(), joining()),
            None,
            adding(false, 10),
            false,
            Action::Wait,
        ),
        ("it copies", with(one(), joining()), None, adding(true, 10), false, Action::Wait),
        ("it serves", two(), None, adding(true, 10), false, Action::Joined { node: node() }),
        ("it serves late", two(), None, adding(true, 90_000), false, Action::Joined { node: node() }),
        ("it never came", one(), None, adding(true, 4 * 3600), false, give_up("h:1")),
        ("it never caught up", with(one(), joining()), None, adding(true, 4 * 3600), false, give_up("replica-2:5432")),
        ("the primary is lost meanwhile", vec![replica("replica-1")], None, adding(false, 0), false, Action::Wait),
        ("one is joining: none is removed", with(one(), joining()), Some(0.0), adding(true, 10), true, Action::Wait),
        ("proxies have to leave it", two(), Some(0.0), draining(0), true, Action::Isolate { node: node() }),
        ("clients leave", leaving(), Some(0.0), draining(10), false, Action::Wait),
        ("clients have left", leaving(), Some(0.0), draining(10), true, remove.clone()),
        ("the load is back", leaving(), Some(40.0), draining(10), true, keep.clone()),
        (
            "another one is lost",
            vec![p(), seen("replica-1", Answer::Missing), isolated(replica("replica-2"))],
            Some(0.0),
            draining(10),
            true,
            keep.clone(),
        ),
        (
            "the others are too few",
            vec![p(), isolated(replica("replica-2"))],
            Some(0.0),
            draining(10),
            true,
            keep.clone(),
        ),
        ("the primary is lost while clients leave", lost.clone(), Some(0.0), draining(10), true, Action::Wait),
        ("it has become the primary", promoted.clone(), Some(0.0), draining(10), true, keep.clone()),
        ("it has become the primary at last", promoted, Some(0.0), removing(true, 10), true, keep),
        ("the program has not run", leaving(), None, removing(false, 0), false, run_remove.clone()),
        ("the program has failed", leaving(), None, failed.clone(), false, Action::Wait),
        ("a program had failed before", leaving(), None, failed_before, false, run_remove.clone()),
        ("the primary is lost while it is removed", lost, None, removing(false, 0), false, Action::Wait),
        ("it still answers", leaving(), None, removing(true, 10), false, Action::Wait),
        ("it still answers after the program's time", leaving(), None, removing(true, 600), false, run_remove),
        ("it answers no more", with(one(), isolated(gone())), None, removing(true, 10), false, forget.clone()),
        ("it is listed no more", one(), None, removing(true, 10), false, forget),
        ("one that was never there", one(), None, removing(false, 10), false, unlisted),
    ] {
        let decision = decide(&config(), &servers, load, &record, drained, NOW);
        assert_eq!(decision.action, expected, "{name}: {}", decision.why);
    }
}

#[test]
fn records() {
    let mut record = Record::default();
    record.take(&add("replica-1"), &Why::NotAdded, NOW);
    // The program fails, or hangs until its time is over: half of a server may be there.
    record.ended(false, NOW + 5);
    let order = record.order.clone().unwrap();
    assert_eq!((order.stage, order.done, order.undoes, record.failures), (Stage::Removing, false, true, 1));
    record.ended(true, NOW + 50);
    record.take(&Action::Forget { node: "replica-1".into() }, &Why::Gone, NOW + 60);
    assert_eq!((&record.order, record.failures, record.changed), (&None, 1, NOW + 60), "the failure stays");
    // One that serves ends the failures, and so does a removal by load.
    for (stage, action) in
        [(Stage::Adding, Action::Joined { node: "x".into() }), (Stage::Removing, Action::Forget { node: "x".into() })]
    {
        let mut record = Record { failures: 3, ..order_of(stage) };
        record.take(&action, &Why::Serves, NOW);
        assert_eq!((&record.order, record.failures), (&None, 0), "{stage:?}");
    }
    let text = serde_json::to_string(&order_of(Stage::Draining)).unwrap();
    assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), order_of(Stage::Draining));
    let early = order_of(Stage::Adding).not_after(NOW - 5);
    assert_eq!(early.order.unwrap().since, NOW - 5, "another machine's clock is ahead");
}

fn order_of(stage: Stage) -> Record {
    order("x", stage, false, NOW)
}

#[test]
fn loads() {
    let serving = |busy| seen("a", Answer::Standby { receiving: true, behind: 0, busy });
    let far = seen("b", Answer::Standby { receiving: true, behind: 9, busy: Some(50) });
    for (name, servers, expected) in [
        ("none", vec![seen("p", Answer::Primary), seen("m", Answer::Missing)], None),
        ("two", vec![serving(Some(3)), serving(Some(4))], Some((7, 2))),
        ("one does not tell", vec![serving(Some(3)), serving(None)], None),
        ("one does not serve", vec![serving(Some(3)), far], Some((3, 1))),
    ] {
        assert_eq!(load(&servers, 8), expected, "{name}");
    }
}

/// A random world: servers come and go, programs fail, the scaler is killed anywhere.
#[derive(Debug)]
struct World {
    /// Servers: true for one that serves, false for one that does not answer.
    servers: BTreeMap<String, (bool, bool)>,
    primary: Option<String>,
    record: Record,
    window: Window,
    now: u64,
    busy: u64,
}

#[derive(Debug, Clone)]
enum Event {
    Load(u64),
    Fault(u8),
    Mend,
    Promote(u8),
    ScalerKilled,
    ProgramsFail(bool),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0_u64..400).prop_map(Event::Load),
        any::<u8>().prop_map(Event::Fault),
        Just(Event::Mend),
        any::<u8>().prop_map(Event::Promote),
        Just(Event::ScalerKilled),
        any::<bool>().prop_map(Event::ProgramsFail),
    ]
}

impl World {
    fn seen(&self) -> Vec<Seen> {
        let replicas = self.servers.len().saturating_sub(1).max(1) as u64;
        let each = self.servers.iter().map(|(name, (alive, isolated))| {
            let answer = match alive {
                false => Answer::Missing,
                true if self.primary.as_ref() == Some(name) => Answer::Primary,
                true => Answer::Standby { receiving: true, behind: 0, busy: Some(self.busy / replicas) },
            };
            Seen { isolated: *isolated, ..seen(name, answer) }
        });
        each.collect()
    }

    fn turn(&mut self, config: &ScaleConfig, fails: bool) {
        self.now += 5;
        let seen = self.seen();
        let at = Duration::from_secs(self.now);
        self.window.see(load(&seen, config.lag_bytes), at);
        let before = self.record.clone();
        let decision = decide(config, &seen, self.window.average(at), &self.record, true, self.now);
        let alive = |name: &str| self.servers.get(name).is_some_and(|(alive, _)| *alive);
        let is_primary = |name: &str| self.primary.as_deref() == Some(name) && alive(name);
        let healthy = |but: &str| {
            let others = self.servers.iter().filter(|(name, _)| *name != but && self.primary.as_ref() != Some(*name));
            others.map(|(_, (alive, isolated))| *alive && !*isolated).collect::<Vec<_>>()
        };
        match &decision.action {
            Action::Add { .. } => assert!(seen.len() <= config.most, "{decision:?}"),
            Action::RunAdd { node } if !fails => drop(self.servers.insert(node.clone(), (true, false))),
            Action::Drain { node, .. } | Action::Isolate { node } | Action::Remove { node, .. } => {
                assert!(!is_primary(node) && node.starts_with("replica-"), "{decision:?}");
                let others = healthy(node);
                assert!(others.len() >= config.least && others.iter().all(|well| *well), "{decision:?} {self:?}");
                if matches!(decision.action, Action::Isolate { .. }) {
                    self.servers.get_mut(node).unwrap().1 = true;
                }
            }
            Action::RunRemove { node, .. } => {
                assert!(!is_primary(node) && before.order.is_some(), "{decision:?}");
                if let Some(server) = self.servers.get_mut(node).filter(|_| !fails) {
                    server.0 = false;
                }
            }
            Action::Keep { node } => {
                if let Some(server) = self.servers.get_mut(node) {
                    server.1 = false;
                }
            }
            Action::Forget { node } => {
                assert!(!alive(node), "{decision:?}");
                self.servers.remove(node);
            }
            _ => {}
        }
        self.record.take(&decision.action, &decision.why, self.now);
        if matches!(decision.action, Action::RunAdd { .. } | Action::RunRemove { .. }) {
            self.record.ended(!fails, self.now);
        }
        if matches!(decision.action, Action::Joined { .. } | Action::Keep { .. } | Action::Forget { .. }) {
            self.window.forget();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn whatever_happens_no_primary_is_removed_and_an_idle_fleet_settles(events in proptest::collection::vec(event(), 0..40)) {
        let config = ScaleConfig { join_timeout: Duration::from_secs(300), ..config() };
        let mut world = World {
            servers: BTreeMap::from([("db1".into(), (true, false))]),
            primary: Some("db1".into()),
            record: Record::default(),
            window: Window::new(config.window),
            now: NOW,
            busy: 0,
        };
        let mut fails = false;
        for event in events {
            match event {
                Event::Load(busy) => world.busy = busy,
                Event::Fault(which) => {
                    let which = usize::from(which) % world.servers.len();
                    world.servers.values_mut().nth(which).unwrap().0 = false;
                }
                Event::Mend => world.servers.values_mut().for_each(|server| server.0 = true),
                Event::Promote(which) => {
                    let which = usize::from(which) % world.servers.len();
                    world.primary = world.servers.keys().nth(which).cloned();
                }
                Event::ScalerKilled => {
                    world.window.forget();
                    world.record = world.record.clone().not_after(world.now);
                }
                Event::ProgramsFail(now) => fails = now,
            }
            for _ in 0..40 {
                world.turn(&config, fails);
            }
        }
        world.servers.values_mut().for_each(|server| server.0 = true);
        world.busy = 0;
        for _ in 0..3000 {
            world.turn(&config, false);
        }
        prop_assert_eq!(&world.record.order, &None);
        let replicas = world.servers.keys().filter(|name| Some(*name) != world.primary.as_ref());
        let own = replicas.clone().filter(|name| name.starts_with("replica-")).count();
        // db1 may be a replica by now: it is never removed.
        prop_assert!(replicas.count() == config.least || own == 0, "{:?}", world);
        prop_assert!(world.servers.values().all(|(alive, isolated)| *alive && !*isolated), "{:?}", world);
    }
}
