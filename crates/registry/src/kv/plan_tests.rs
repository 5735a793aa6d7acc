#![allow(clippy::unwrap_used)]

use std::time::Duration;

use super::*;
use crate::kv::state::Touched;
use crate::store::Head;

fn ns() -> NamespaceName {
    NamespaceName::default()
}

fn other() -> NamespaceName {
    NamespaceName::new("other").unwrap()
}

fn value(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn op(key: &str, verb: Verb) -> Ask {
    Ask::Operations(ns(), vec![Operation { key: key.into(), verb }])
}

fn set(key: &str, text: &str) -> Ask {
    op(key, Verb::Set(value(text), 0))
}

fn take(key: &str, session: &str) -> Ask {
    op(key, Verb::Lock(value(session), 0, session.into()))
}

fn give(key: &str, session: &str) -> Ask {
    op(key, Verb::Unlock(value(session), 0, session.into()))
}

fn begin(id: &str, behavior: Behavior, delay: Duration) -> Ask {
    let session = Session {
        id: id.into(),
        name: String::new(),
        node: "n".into(),
        lock_delay: delay.as_nanos() as u64,
        behavior,
        ttl: None,
        ttl_text: String::new(),
        node_checks: Vec::new(),
        service_checks: Vec::new(),
        created: Revision(0),
        modified: Revision(0),
    };
    Ask::Begin(ns(), Arc::new(session))
}

fn end(id: &str) -> Ask {
    Ask::End(ns(), id.into(), None)
}

/// A state to run batches on, and a clock.
struct World {
    state: State,
    limits: KvLimits,
    now: Instant,
}

impl World {
    fn new() -> World {
        World { state: State::default(), limits: KvLimits::default(), now: Instant::now() }
    }

    /// Runs one batch. Returns the result of each call: `+` carried out, `-` another call was first, `!` refused.
    fn batch(&mut self, asks: &[Ask]) -> String {
        let (answers, rows, v) = {
            let mut draft = Draft::new(&self.state, &self.limits, self.now, 1);
            let answers: Vec<CallResult> = asks.iter().map(|ask| draft.run(ask)).collect();
            let (rows, v) = draft.rows();
            (answers, rows, v)
        };
        let head = Head { v, epoch: 1, gc_floor: Revision(0) };
        self.state.absorb(head, rows, self.now);
        let sign = |answer: &CallResult| match answer {
            Ok(_) => '+',
            Err(refused) if refused.iter().all(|(_, refusal)| refusal.is_lost_race()) => '-',
            Err(_) => '!',
        };
        answers.iter().map(sign).collect()
    }

    fn entry(&self, key: &str) -> Option<Arc<Entry>> {
        self.state.space(&ns())?.entry(key).cloned()
    }

    /// Shows value, holder, lock index, created, modified.
    fn shown(&self, key: &str) -> String {
        let Some(entry) = self.entry(key) else { return "none".into() };
        let text = String::from_utf8_lossy(&entry.value).into_owned();
        let holder = entry.session.as_deref().unwrap_or("-");
        format!("{text} {holder} {} {} {}", entry.lock_index, entry.created, entry.modified)
    }
}

/// Each line: a batch, the results of its calls, and the key `k` afterwards.
#[test]
fn rules_of_keys() {
    let cas = |index, text| op("k", Verb::SetIf(value(text), 0, Revision(index)));
    let delete = || op("k", Verb::Delete);
    let delete_if = |index| op("k", Verb::DeleteIf(Revision(index)));
    let steps: &[(&[Ask], &str, &str)] = &[
        (&[cas(1, "x")], "-", "none"),
        (&[cas(0, "a")], "+", "a - 0 1 1"),
        (&[cas(0, "b")], "-", "a - 0 1 1"),
        (&[set("k", "a")], "+", "a - 0 1 1"),
        (&[set("k", "b")], "+", "b - 0 1 2"),
        // Each call of a batch has its own revision.
        (&[set("k", "c"), cas(3, "d"), cas(3, "e"), set("k", "f")], "++-+", "f - 0 1 5"),
        (&[delete_if(4)], "-", "f - 0 1 5"),
        (&[delete_if(5)], "+", "none"),
        (&[delete_if(5), delete()], "++", "none"),
        (&[set("k", "g")], "+", "g - 0 7 7"),
        (&[delete(), set("k", "h")], "++", "h - 0 9 9"),
    ];
    let mut world = World::new();
    for (asks, gave, shown) in steps {
        assert_eq!((world.batch(asks).as_str(), world.shown("k").as_str()), (*gave, *shown), "{asks:?}");
    }
}

/// Rules of locks, in the same form. The lock index rises with each new holder, and only then.
#[test]
fn rules_of_locks() {
    let none = Duration::ZERO;
    let steps: &[(&[Ask], &str, &str)] = &[
        (&[take("k", "a")], "!", "none"),
        (&[begin("a", Behavior::Release, none), begin("b", Behavior::Release, none)], "++", "none"),
        (&[take("k", "a"), take("k", "b")], "+-", "a a 1 3 3"),
        (&[take("k", "a")], "+", "a a 1 3 3"),
        (&[set("k", "x")], "+", "x a 1 3 4"),
        (&[give("k", "b")], "-", "x a 1 3 4"),
        (&[give("k", "a")], "+", "a - 1 3 5"),
        (&[give("k", "a")], "-", "a - 1 3 5"),
        (&[take("k", "b")], "+", "b b 2 3 6"),
        (&[end("b"), take("k", "a")], "++", "a a 3 3 8"),
        (&[end("b")], "+", "a a 3 3 8"),
        (&[end("a")], "+", "a - 3 3 9"),
        (&[begin("c", Behavior::Delete, none), take("k", "c"), set("kept", "x")], "+++", "c c 4 3 11"),
        (&[end("c")], "+", "none"),
        (&[take("k", "c")], "!", "none"),
    ];
    let mut world = World::new();
    for (asks, gave, shown) in steps {
        assert_eq!((world.batch(asks).as_str(), world.shown("k").as_str()), (*gave, *shown), "{asks:?}");
    }
    assert_eq!(world.shown("kept"), "x - 0 12 12");
}

#[test]
fn a_session_of_one_namespace_is_none_of_another() {
    let mut world = World::new();
    assert_eq!(world.batch(&[begin("a", Behavior::Release, Duration::ZERO), take("k", "a")]), "++");
    let there = Operation { key: "k".into(), verb: Verb::Lock(value("x"), 0, "a".into()) };
    let end_there = Ask::End(other(), "a".into(), None);
    let read_there = Operation { key: "k".into(), verb: Verb::Get };
    let asks = [Ask::Operations(other(), vec![there]), end_there, Ask::Operations(other(), vec![read_there])];
    assert_eq!(world.batch(&asks), "!+!");
    assert_eq!(world.shown("k"), "a a 1 2 2");
}

/// A key under a lock delay cannot be acquired, whatever is done to it meanwhile; all other operations go on.
#[test]
fn a_lock_delay_holds() {
    for behavior in [Behavior::Release, Behavior::Delete] {
        for meanwhile in [&[][..], &[set("k", "x")], &[op("k", Verb::Delete)], &[set("k", "x"), op("k", Verb::Delete)]]
        {
            let mut world = World::new();
            let second = Duration::from_secs(1);
            let asks = [begin("a", behavior, second), begin("b", behavior, second), take("k", "a")];
            assert_eq!(world.batch(&asks), "+++");
            // Also in the same batch.
            assert_eq!(world.batch(&[end("a"), take("k", "b"), take("free", "b")]), "+-+");
            for ask in meanwhile {
                world.now += Duration::from_millis(400);
                assert_eq!(world.batch(std::slice::from_ref(ask)), "+");
                assert_eq!(world.batch(&[take("k", "b")]), "-", "{meanwhile:?}");
            }
            let begun = Duration::from_millis(400) * meanwhile.len() as u32;
            world.now += second - begun - Duration::from_millis(1);
            assert_eq!(world.batch(&[take("k", "b")]), "-", "{meanwhile:?}");
            world.now += Duration::from_millis(10);
            assert_eq!(world.batch(&[take("k", "b")]), "+", "{meanwhile:?}");
            // A key released by its holder has no delay.
            assert_eq!(world.batch(&[give("k", "b"), take("k", "b")]), "++");
        }
    }
}

/// A node that reads everything anew restarts a delay, unless it has already received that row.
#[test]
fn a_delay_survives_reading_everything_anew() {
    let mut world = World::new();
    let second = Duration::from_secs(1);
    world.batch(&[begin("a", Behavior::Release, second), begin("b", Behavior::Release, second), take("k", "a")]);
    let rows = {
        let mut draft = Draft::new(&world.state, &world.limits, world.now, 1);
        draft.run(&end("a")).unwrap();
        draft.rows().0
    };
    let head = Head { v: Revision(4), epoch: 1, gc_floor: Revision(0) };
    world.state.absorb(head, rows.clone(), world.now);
    for knew in [true, false] {
        let mut node = World { state: State::default(), limits: KvLimits::default(), now: world.now };
        if knew {
            node.state.absorb(head, rows.clone(), node.now);
        }
        node.now += Duration::from_millis(900);
        let session = KvRow {
            namespace: ns(),
            name: "b".into(),
            content: KvContent::Session(Arc::clone(world.state.space(&ns()).unwrap().session("b").unwrap())),
            lock_delay: 0,
            revision: Revision(2),
            mtime: 1,
        };
        let all = rows.iter().cloned().chain([session]).collect();
        node.state.replace(head, all, node.now);
        node.now += Duration::from_millis(200);
        assert_eq!(node.batch(&[take("k", "b")]), if knew { "+" } else { "-" });
        node.now += Duration::from_millis(900);
        assert_eq!(node.batch(&[take("k", "b")]), "+");
    }
}

/// A transaction is carried out completely or not at all; later operations see earlier ones.
#[test]
fn transactions() {
    let operation = |key: &str, verb| Operation { key: key.into(), verb };
    let all = |operations: &[Operation]| Ask::Operations(ns(), operations.to_vec());
    let put = |key: &str, text| operation(key, Verb::Set(value(text), 7));
    let mut world = World::new();
    assert_eq!(world.batch(&[set("a", "1"), all(&[put("b", "2"), put("c", "3")])]), "++");
    assert_eq!((world.shown("b"), world.shown("c")), ("2 - 0 2 2".into(), "3 - 0 2 2".into()));
    let before = world.shown("a");
    for refused in [
        operation("a", Verb::SetIf(value("x"), 0, Revision(9))),
        operation("none", Verb::Get),
        operation("a", Verb::CheckNotExists),
        operation("a", Verb::CheckIndex(Revision(2))),
        operation("a", Verb::CheckSession("s".into())),
        operation("a", Verb::Lock(value("x"), 0, "s".into())),
        operation("a", Verb::Unlock(value("x"), 0, "s".into())),
        operation("a", Verb::DeleteIf(Revision(2))),
    ] {
        let asks =
            [all(&[put("a", "x"), operation("b", Verb::Delete), refused.clone(), operation("", Verb::DeleteTree)])];
        // The key was set in an earlier operation, so a check of its old revision fails.
        assert_ne!(world.batch(&asks), "+", "{refused:?}");
        assert_eq!((world.shown("a"), world.shown("b")), (before.clone(), "2 - 0 2 2".into()), "{refused:?}");
    }
    let mut draft = Draft::new(&world.state, &world.limits, world.now, 1);
    let asked = [
        put("d/1", "4"),
        put("d/2", "5"),
        operation("d/1", Verb::Delete),
        operation("d/", Verb::GetTree),
        operation("x", Verb::GetOrEmpty),
        operation("x", Verb::CheckNotExists),
        operation("d/2", Verb::CheckSession("".into())),
        operation("", Verb::DeleteTree),
        operation("", Verb::GetTree),
    ];
    let given = draft.run(&all(&asked)).unwrap();
    let Given::Tree(tree) = &given[3] else { panic!("{given:?}") };
    assert_eq!(tree.iter().map(|entry| &*entry.key).collect::<Vec<_>>(), ["d/2"]);
    assert!(matches!(&given[4], Given::Entry { entry, with_value: true } if entry.modified == Revision(0)));
    assert_eq!(given[8], Given::Tree(Vec::new()));
    let (rows, v) = draft.rows();
    assert_eq!((rows.len(), v), (5, Revision(3)), "one revision, and a tombstone for each key");
}

/// The limits of a namespace do not count for another one; the total limit counts for all.
#[test]
fn limits() {
    let limits = KvLimits { keys: 3, bytes: 40, total_bytes: 60, sessions: 1, ..KvLimits::default() };
    let mut world = World { limits, ..World::new() };
    let there = |key: &str, text: &str| {
        Ask::Operations(other(), vec![Operation { key: key.into(), verb: Verb::Set(value(text), 0) }])
    };
    assert_eq!(world.batch(&[set("a", "1"), set("b", "1"), set("c", "1"), set("d", "1"), there("d", "1")]), "+++!+");
    assert_eq!(world.batch(&[op("a", Verb::Delete), set("d", "1"), set("d", "2"), set("a", "1")]), "+++!");
    let long = "x".repeat(34);
    assert_eq!(world.batch(&[set("d", &long)]), "+", "4 bytes of two keys, and 35");
    assert_eq!(
        world.batch(&[set("c", "12"), set("c", "123"), there("d", "12"), set("d", "1"), set("c", "12")]),
        "+!+++"
    );
    assert_eq!(world.batch(&[there("e", &long), there("f", "12345678901234")]), "+!", "all together");
    assert_eq!(
        world.batch(&[
            begin("s", Behavior::Release, Duration::ZERO),
            begin("t", Behavior::Release, Duration::ZERO),
            end("s"),
            begin("t", Behavior::Release, Duration::ZERO),
        ]),
        "+!++"
    );
    assert_eq!(
        world.state.bytes(),
        world.state.space(&ns()).unwrap().bytes() + world.state.space(&other()).unwrap().bytes()
    );
}

/// A session is ended only if it is unchanged since it was judged.
#[test]
fn a_renewal_through_the_store_is_in_the_way_of_the_end() {
    let mut world = World::new();
    world.batch(&[begin("a", Behavior::Delete, Duration::ZERO), take("k", "a")]);
    let judged = || Ask::End(ns(), "a".into(), Some(Revision(1)));
    assert_eq!(world.batch(&[Ask::Renew(ns(), "a".into()), judged()]), "++");
    assert_eq!(world.shown("k"), "a a 1 2 2", "it lives");
    let session = world.state.space(&ns()).unwrap().session("a").unwrap();
    assert_eq!((session.created, session.modified), (Revision(1), Revision(3)));
    assert_eq!(
        world.state.space(&ns()).unwrap().session_index(),
        Revision(1),
        "a renewal is no change to those who watch"
    );
    assert_eq!(world.batch(&[Ask::End(ns(), "a".into(), Some(Revision(3))), Ask::Renew(ns(), "a".into())]), "+!");
    assert_eq!(world.shown("k"), "none");
}

/// The index of a key, of a tree and of sessions never goes back while tombstones are kept, and is independent of other namespaces.
#[test]
fn indexes() {
    let mut world = World::new();
    world.batch(&[set("a/b", "1"), set("a/c", "1"), set("z", "1")]);
    let there = Operation { key: "a/b".into(), verb: Verb::Set(value("1"), 0) };
    world.batch(&[Ask::Operations(other(), vec![there])]);
    let index = |world: &World, key: &str, prefix: &str| {
        let space = world.state.space(&ns()).unwrap();
        (space.key_index(key).0, space.tree_index(prefix).0)
    };
    assert_eq!(index(&world, "a/b", "a/"), (1, 2));
    assert_eq!(index(&world, "none", "none"), (3, 3));
    assert_eq!(index(&world, "none", ""), (3, 3), "nothing of the other namespace's fourth");
    world.batch(&[op("a/b", Verb::Delete)]);
    assert_eq!(index(&world, "a/b", "a/"), (5, 5));
    world.batch(&[op("z", Verb::Delete)]);
    assert_eq!(index(&world, "a/b", "a/"), (5, 5));
    let head = Head { v: Revision(6), epoch: 1, gc_floor: Revision(6) };
    world.state.absorb(head, Vec::new(), world.now);
    assert_eq!(index(&world, "a/b", "a/"), (6, 2), "forgotten: the namespace's last");
}

/// Rows applied in any order, any number of times, give the same state.
#[test]
fn rows_in_any_order_come_to_the_same() {
    let mut world = World::new();
    let mut batches = Vec::new();
    for asks in [
        vec![begin("a", Behavior::Release, Duration::ZERO), set("k", "1"), take("l", "a")],
        vec![op("k", Verb::Delete), set("m", "1")],
        vec![set("k", "2"), end("a")],
    ] {
        let mut draft = Draft::new(&world.state, &world.limits, world.now, 1);
        asks.iter().for_each(|ask| drop(draft.run(ask)));
        let (rows, v) = draft.rows();
        let head = Head { v, epoch: 1, gc_floor: Revision(0) };
        world.state.absorb(head, rows.clone(), world.now);
        batches.push((head, rows));
    }
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 2, 0]] {
        let mut node = World::new();
        for index in order.into_iter().chain([0, 1, 2]) {
            let (head, rows) = &batches[index];
            node.state.absorb(*head, rows.clone(), node.now);
        }
        for key in ["k", "l", "m"] {
            assert_eq!(node.shown(key), world.shown(key), "{order:?}");
        }
        assert_eq!(node.state.counts(), world.state.counts());
        assert_eq!(node.state.bytes(), world.state.bytes());
        assert!(node.state.space(&ns()).unwrap().held("a").next().is_none());
        let again = node.state.absorb(batches[0].0, batches[0].1.clone(), node.now);
        assert_eq!(again, Vec::<Touched>::new(), "known already");
    }
}
