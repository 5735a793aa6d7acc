#![allow(clippy::unwrap_used)]

use sql::Access;

use super::*;

const READ: StatementFacts = StatementFacts { access: Access::Read, fingerprint: Some(7) };
const WRITE: StatementFacts = StatementFacts { access: Access::Write, fingerprint: Some(8) };
const SECOND: Duration = Duration::from_secs(1);

fn given(name: &str) -> Given {
    Given { name: name.into(), ..Given::default() }
}

fn rate(name: &str, rate: &str) -> Given {
    Given { rate: Some(rate.into()), burst: Some(1), ..given(name) }
}

fn at_a_time(name: &str, most: u32) -> Given {
    Given { concurrency: Some(most), ..given(name) }
}

/// Test fixture: rules, and the pools of two databases and two users.
struct World {
    traffic: Traffic,
    start: Instant,
    pools: HashMap<(&'static str, &'static str), PoolTrafficRules>,
}

impl World {
    fn new(rules: impl IntoIterator<Item = Given>) -> World {
        let start = Instant::now();
        let traffic = Traffic::new(start);
        let rules: Vec<Rule> = rules.into_iter().map(|given| given.check().unwrap()).collect();
        traffic.configure(&rules);
        World { traffic, start, pools: HashMap::new() }
    }

    fn set(&self, given: Given) {
        self.traffic.set(given.check().unwrap(), None).unwrap();
    }

    /// Runs a statement after this time; returns the refusal's message.
    fn at(
        &mut self,
        after: Duration,
        pool: (&'static str, &'static str),
        facts: StatementFacts,
        permit: &mut Permit,
    ) -> Option<RefusalMessage> {
        let now = self.start + after;
        let traffic_rules = self.pools.entry(pool).or_default();
        if !self.traffic.refresh(traffic_rules, pool.0, pool.1, now) {
            return None;
        }
        let refused = traffic_rules.admit(facts, self.traffic.at(now), permit).err();
        refused.map(|refused| self.traffic.explain(refused))
    }

    /// Runs a statement that ends at once, at the start; returns true if it is admitted.
    fn passes(&mut self, pool: (&'static str, &'static str), facts: StatementFacts) -> bool {
        self.at(Duration::ZERO, pool, facts, &mut Permit::default()).is_none()
    }

    fn counts(&self) -> Vec<(String, u64, u64, u64)> {
        let report = self.traffic.report(self.start).into_iter();
        report.map(|of| (of.rule.name, of.running, of.passed, of.refused)).collect()
    }
}

#[test]
fn a_rule_is_about_its_own_and_nobody_else() {
    for (rule, expected) in [
        (Given { user: Some("ann".into()), ..given("r") }, [true, false, true, false]),
        (Given { database: Some("a".into()), ..given("r") }, [true, true, false, false]),
        (Given { user: Some("ann".into()), database: Some("b".into()), ..given("r") }, [false, false, true, false]),
        (given("r"), [true; 4]),
    ] {
        let mut world = World::new([Given { block: true, ..rule.clone() }]);
        let pools = [("a", "ann"), ("a", "bob"), ("b", "ann"), ("b", "bob")];
        assert_eq!(pools.map(|pool| !world.passes(pool, READ)), expected, "{rule:?}");
    }
}

#[test]
fn limits_are_shared_or_each_has_them_for_itself() {
    let pools = [("a", "ann"), ("a", "bob"), ("b", "ann"), ("b", "bob")];
    for (each_user, each_database, expected) in [
        (false, false, [true, false, false, false]),
        (true, false, [true, true, false, false]),
        (false, true, [true, false, true, false]),
        (true, true, [true; 4]),
    ] {
        let mut world = World::new([Given { each_user, each_database, ..rate("r", "1/s") }]);
        assert_eq!(pools.map(|pool| world.passes(pool, READ)), expected, "{each_user} {each_database}");
        assert!(pools.iter().all(|pool| !world.passes(*pool, READ)));
    }
}

#[test]
fn statements_and_kinds() {
    let statement = Given { statement: Some(format!("{:016x}", 7)), ..rate("statement", "1/s") };
    let writes = Given { access: Some(Access::Write), block: true, ..given("writes") };
    let mut world = World::new([statement, writes]);
    assert!(world.passes(("a", "ann"), READ) && !world.passes(("a", "ann"), READ));
    assert!(world.passes(("a", "ann"), StatementFacts { fingerprint: Some(9), ..READ }));
    assert!(world.passes(("a", "ann"), StatementFacts { fingerprint: None, ..READ }));
    assert!(!world.passes(("a", "ann"), WRITE));
}

#[test]
fn places_are_given_back() {
    let mut world = World::new([at_a_time("two", 2)]);
    let (ann, bob) = (("a", "ann"), ("b", "bob"));
    let mut permits = [(); 3].map(|()| Permit::default());
    let [one, two, three] = &mut permits;
    assert_eq!(world.at(SECOND, ann, READ, one), None);
    // A client that pipelines runs one statement at a time.
    assert_eq!(world.at(SECOND, ann, WRITE, one), None);
    assert_eq!(world.at(SECOND, bob, READ, two), None);
    let message = world.at(SECOND, bob, READ, three).unwrap();
    assert_eq!(message.code, Sqlstate::CONFIGURATION_LIMIT_EXCEEDED);
    assert_eq!(message.text, "the traffic rule \"two\" allows 2 such statements at a time");
    assert_eq!(world.counts(), [("two".into(), 2, 3, 1)]);
    *one = Permit::default();
    assert_eq!(world.at(SECOND, bob, READ, three), None);
    drop(permits);
    assert_eq!(world.counts(), [("two".into(), 0, 4, 1)]);
}

#[test]
fn what_one_rule_refuses_costs_nothing_by_another() {
    // In the order of their names.
    let mut world = World::new([at_a_time("a", 5), rate("b", "1/s"), Given { block: true, ..given("c") }]);
    let mut permit = Permit::default();
    for _ in 0..3 {
        let message = world.at(SECOND, ("a", "ann"), READ, &mut permit).unwrap();
        assert_eq!(
            (message.code, message.text.contains("\"c\"")),
            (Sqlstate::INSUFFICIENT_PRIVILEGE, true),
            "{message:?}"
        );
    }
    assert!(permit.is_empty());
    assert_eq!(world.counts(), [("a".into(), 0, 0, 0), ("b".into(), 0, 0, 0), ("c".into(), 0, 0, 3)]);
    assert!(world.traffic.lift("c"));
    assert_eq!(world.at(SECOND, ("a", "ann"), READ, &mut permit), None);
    let message = world.at(SECOND, ("a", "ann"), READ, &mut permit).unwrap();
    assert_eq!(message.text, "the traffic rule \"b\" allows 1/s of such statements");
    assert!(message.hint.starts_with("Try again in 1001 ms."), "{}", message.hint);
    // The client keeps the place that it already had.
    assert_eq!(world.counts(), [("a".into(), 1, 1, 0), ("b".into(), 0, 1, 1)]);
}

#[test]
fn a_dry_run_refuses_nothing_and_counts() {
    let dry = |given: Given| Given { dry_run: true, ..given };
    let block = Given { block: true, ..given("block") };
    let mut world = World::new([dry(block), dry(rate("rate", "1/s")), dry(at_a_time("one", 1))]);
    let mut permits = [(); 3].map(|()| Permit::default());
    for permit in &mut permits {
        assert_eq!(world.at(SECOND, ("a", "ann"), READ, permit), None);
    }
    let expected = [("block".into(), 0, 0, 3), ("one".into(), 3, 1, 2), ("rate".into(), 0, 1, 2)];
    assert_eq!(world.counts(), expected);
}

#[test]
fn operators_set_and_lift_and_a_reload_brings_the_files_back() {
    let (ann, block) = (("a", "ann"), |name| Given { block: true, ..given(name) });
    let mut world = World::new([block("file")]);
    assert!(!world.passes(ann, READ));
    // A rule of the same name replaces the configuration's, also after a reload.
    world.set(Given { burst: None, ..rate("file", "1000/s") });
    assert!(world.passes(ann, READ));
    world.traffic.configure(&[block("file").check().unwrap()]);
    assert!(world.passes(ann, READ));
    // Once lifted, neither is in force; a reload restores the configuration's.
    assert!(world.traffic.lift("file") && !world.traffic.lift("file") && !world.traffic.lift("other"));
    assert!(world.passes(ann, READ));
    world.traffic.configure(&[block("file").check().unwrap()]);
    assert!(!world.passes(ann, READ));
    world.traffic.configure(&[]);
    assert!(world.passes(ann, READ));
    assert_eq!(world.counts(), []);
}

#[test]
fn a_rule_that_is_set_anew_goes_on_counting() {
    let mut world = World::new([rate("r", "1/s")]);
    assert!(world.passes(("a", "ann"), READ) && !world.passes(("a", "ann"), READ));
    world.set(rate("r", "1/s"));
    assert!(!world.passes(("a", "ann"), READ), "a new rule of the name is no second second");
    assert_eq!(world.counts(), [("r".into(), 0, 1, 2)]);
    let mut permit = Permit::default();
    world.set(at_a_time("r", 1));
    assert_eq!(world.at(SECOND, ("a", "ann"), READ, &mut permit), None);
    world.set(at_a_time("r", 1));
    assert!(!world.passes(("b", "bob"), READ), "who runs since before counts");
    drop(permit);
    assert!(world.passes(("b", "bob"), READ));
}

#[test]
fn rules_end_by_themselves() {
    let world = World::new([]);
    let rule = |name| Given { block: true, ..given(name) }.check().unwrap();
    assert_eq!(world.traffic.due_in(world.start), None);
    world.traffic.set(rule("short"), Some(world.start + SECOND)).unwrap();
    world.traffic.set(rule("long"), Some(world.start + SECOND * 3)).unwrap();
    world.traffic.set(rule("ever"), None).unwrap();
    assert_eq!(world.traffic.due_in(world.start), Some(SECOND));
    assert_eq!(world.traffic.expire(world.start), Vec::<String>::new());
    assert_eq!(world.traffic.expire(world.start + SECOND), ["short"]);
    assert_eq!(world.traffic.due_in(world.start + SECOND), Some(SECOND * 2));
    assert_eq!(world.traffic.expire(world.start + SECOND * 9), ["long"]);
    assert_eq!(world.counts(), [("ever".into(), 0, 0, 0)]);
}

#[test]
fn what_is_kept_is_bounded() {
    let world = World::new([Given { each_user: true, ..rate("r", "1/s") }]);
    for n in 0..10_000 {
        let mut traffic_rules = PoolTrafficRules::default();
        assert!(world.traffic.refresh(&mut traffic_rules, "a", &format!("user{n}"), world.start));
    }
    assert!(world.traffic.state().limiters.len() <= MANY_LIMITERS + 1);
    // A limiter in use is kept: a client that has used up its rate gets no new one by another login.
    let mut world = World::new([Given { each_user: true, ..rate("r", "1/h") }]);
    assert!(world.passes(("a", "ann"), READ));
    world.pools.clear();
    for n in 0..10_000 {
        world.traffic.refresh(&mut PoolTrafficRules::default(), "a", &format!("user{n}"), world.start);
    }
    assert!(!world.passes(("a", "ann"), READ));
    let rule = |n: usize| Given { block: true, ..given(&format!("r{n}")) }.check().unwrap();
    let set = (0..200).filter(|n| world.traffic.set(rule(*n), None).is_ok()).count();
    assert_eq!(set, MOST_LIVE);
    // An existing rule can still be replaced.
    assert_eq!(world.traffic.set(rule(0), None), Ok(()));
}

#[test]
fn the_log_is_told_once_a_minute() {
    let mut world = World::new([Given { block: true, ..given("r") }]);
    let mut traffic_rules = PoolTrafficRules::default();
    world.traffic.refresh(&mut traffic_rules, "a", "ann", world.start);
    let refused = traffic_rules.admit(READ, 0, &mut Permit::default()).unwrap_err();
    let logged = [0, 1, 59, 61, 62, 122].map(|after| world.traffic.may_log(refused, world.start + SECOND * after));
    assert_eq!(logged.map(|name| name.is_some()), [true, false, false, true, false, true]);
    // Lifted between the refusal and the answer.
    assert!(world.traffic.lift("r"));
    assert_eq!(world.traffic.explain(refused).code, Sqlstate::INSUFFICIENT_PRIVILEGE);
    assert!(world.passes(("a", "ann"), READ));
}

#[test]
fn what_was_ordered_is_told_and_holds_elsewhere() {
    let file = [rate("file", "1/s"), rate("lifted", "1/s")];
    let old = World::new(file.clone());
    let now = old.start;
    old.traffic.set(rate("live", "1/s").check().unwrap(), Some(now + 10 * SECOND)).unwrap();
    old.traffic.set(at_a_time("file", 3).check().unwrap(), None).unwrap();
    assert!(old.traffic.lift("lifted"));
    let (rules, lifted) = old.traffic.ordered(now + 4 * SECOND);
    let expected = [(rate("live", "1/s"), Some(6 * SECOND)), (at_a_time("file", 3), None)];
    assert_eq!(rules, expected.map(|(given, left)| (given.check().unwrap(), left)));
    assert_eq!(lifted, HashSet::from(["lifted".to_owned()]));
    let new = World::new(file);
    for name in &lifted {
        assert!(new.traffic.lift(name));
    }
    for (rule, left) in rules {
        new.traffic.set(rule, left.map(|left| new.start + left)).unwrap();
    }
    assert_eq!(new.traffic.report(new.start), old.traffic.report(now + 4 * SECOND));
}
