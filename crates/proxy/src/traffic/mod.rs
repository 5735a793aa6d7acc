//! Traffic rules: statements that may not run, and limits on the number of statements at a time and per second.
//!
//! ```text
//!  [[proxy.traffic]], LIMIT, BLOCK, LIFT ─▶ Traffic ──epoch──▶ PoolTrafficRules (a pool's rules, in each worker) ─▶ admit ─▶ Permit
//! ```
//!
//! The rules have one writer, under a lock. Workers compare the epoch, one atomic load per statement, and take the lock only after it has changed.
//! The counters of a limit are atomic and shared by all workers: no statement waits for a lock.

mod limiter;
mod rule;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wire::Sqlstate;

use limiter::Limiter;

pub use limiter::Rate;
pub use rule::{Given, Limits, Rule, RuleError, Whose};
pub(crate) use rule::{StatementFacts, digits, is_governed};

/// Maximum number of rules set by operators, besides those of the configuration.
const MOST_LIVE: usize = 100;
/// Number of limiters above which idle ones are dropped.
const MANY_LIMITERS: usize = 1_024;
/// Minimum time between two log messages of a rule that refuses.
const LOGGED_EVERY: Duration = Duration::from_secs(60);

/// Rules of a cluster, with their counters. Shared by its workers and its console.
#[derive(Debug)]
pub(crate) struct Traffic {
    /// Number that grows with each change of the rules; 0 before the first.
    epoch: AtomicU64,
    /// Start of the limiters' clock.
    born: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Rules of the configuration.
    configured: Vec<Rule>,
    /// Rules set by operators, with their ends. A rule replaces the configuration's of the same name.
    live: Vec<(Rule, Option<Instant>)>,
    /// Names of the configuration's rules that operators have lifted.
    lifted: HashSet<String>,
    /// Rules in force, computed from the above.
    active: Vec<Arc<Active>>,
    /// Number of the next rule.
    next: u64,
    limiters: HashMap<Subject, Arc<Limiter>>,
}

/// Key of a limiter: all values that its meaning depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Subject {
    rule: String,
    /// The user, if each user has limits of its own.
    user: Option<String>,
    /// The database, if each database has limits of its own.
    database: Option<String>,
}

/// A rule in force.
#[derive(Debug)]
struct Active {
    /// Number of the rule; unlike the name, it is never reused.
    number: u64,
    rule: Rule,
    /// True if set by an operator.
    live: bool,
    until: Option<Instant>,
    counts: Arc<Counts>,
}

/// Counters of a rule, continued as long as a rule of its name is in force.
#[derive(Debug, Default)]
struct Counts {
    passed: AtomicU64,
    refused: AtomicU64,
    /// Time of the last log message about the rule's refusals, on the limiters' clock; 0: never.
    logged: AtomicU64,
}

/// Rules that may apply to a pool's statements.
#[derive(Debug, Default)]
pub(crate) struct PoolTrafficRules {
    epoch: u64,
    rules: Box<[Bound]>,
    by_statement: bool,
}

/// A rule, and its limiter for the pool's statements.
#[derive(Debug)]
struct Bound {
    active: Arc<Active>,
    limiter: Arc<Limiter>,
}

/// A client's places of the concurrency limits. Dropping it gives them back.
#[derive(Debug, Default)]
pub(crate) struct Permit(Vec<Arc<Limiter>>);

/// Refusal of a statement by a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    /// Number of the rule.
    rule: u64,
    why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Blocked,
    Concurrency,
    /// The rate; time in milliseconds after which a statement would be admitted.
    Rate(u32),
}

/// Error message for a client whose statement was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusalMessage {
    pub(crate) code: Sqlstate,
    pub(crate) text: String,
    pub(crate) hint: String,
}

/// Report on a rule in force, for tables and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleReport {
    /// The rule.
    pub rule: Rule,
    /// True if set by an operator; otherwise the rule is from the configuration.
    pub live: bool,
    /// Time after which the rule ends by itself.
    pub left: Option<Duration>,
    /// Number of clients that run a statement under the rule.
    pub running: u64,
    /// Number of admitted statements.
    pub passed: u64,
    /// Number of refused statements; with `dry_run`: that would have been refused.
    pub refused: u64,
}

/// Error: too many rules set by operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there are {MOST_LIVE} rules already that operators have set: LIFT some, or write them into the configuration")]
pub(crate) struct TooMany;

// === impl Traffic ===

impl Traffic {
    pub(crate) fn new(now: Instant) -> Traffic {
        Traffic { epoch: AtomicU64::new(0), born: now, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes a change of the rules.
    fn publish(&self, state: &mut State) {
        state.resolve();
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Applies the rules of a configuration. Rules lifted by operators are in force again; rules set by operators stay.
    pub(crate) fn configure(&self, rules: &[Rule]) {
        let state = &mut *self.state();
        if state.configured == rules && state.lifted.is_empty() {
            return;
        }
        state.configured = rules.to_vec();
        state.lifted.clear();
        self.publish(state);
    }

    /// Sets an operator's rule, or replaces it.
    pub(crate) fn set(&self, rule: Rule, until: Option<Instant>) -> Result<(), TooMany> {
        let state = &mut *self.state();
        match state.live.iter().position(|(of, _)| of.name == rule.name) {
            Some(at) => state.live[at] = (rule, until),
            None if state.live.len() >= MOST_LIVE => return Err(TooMany),
            None => state.live.push((rule, until)),
        }
        self.publish(state);
        Ok(())
    }

    /// Lifts a rule for an operator: a rule set by an operator ends, and the configuration's of that name is not in force until the configuration is
    /// read again. Returns false if no rule of that name is in force.
    pub(crate) fn lift(&self, name: &str) -> bool {
        let state = &mut *self.state();
        let found = state.active.iter().any(|active| active.rule.name == name);
        if found {
            state.live.retain(|(rule, _)| rule.name != name);
            if state.configured.iter().any(|rule| rule.name == name) {
                state.lifted.insert(name.to_owned());
            }
            self.publish(state);
        }
        found
    }

    /// Returns the operators' orders: the rules set by them, each with the time after which it ends by itself; and the names of the rules lifted by
    /// them.
    pub(crate) fn ordered(&self, now: Instant) -> (Vec<(Rule, Option<Duration>)>, HashSet<String>) {
        let state = self.state();
        let left = |until: &Option<Instant>| until.map(|until| until.saturating_duration_since(now));
        (state.live.iter().map(|(rule, until)| (rule.clone(), left(until))).collect(), state.lifted.clone())
    }

    /// Removes expired rules, and returns their names.
    pub(crate) fn expire(&self, now: Instant) -> Vec<String> {
        let state = &mut *self.state();
        let over = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        let ended = state.live.iter().filter(|(_, until)| over(*until)).map(|(rule, _)| rule.name.clone());
        let ended: Vec<String> = ended.collect();
        if !ended.is_empty() {
            state.live.retain(|(_, until)| !over(*until));
            self.publish(state);
        }
        ended
    }

    /// Returns the time until the next rule expires.
    pub(crate) fn due_in(&self, now: Instant) -> Option<Duration> {
        let state = self.state();
        state.live.iter().filter_map(|(_, until)| *until).min().map(|until| until.saturating_duration_since(now))
    }

    /// Updates a pool's rules; returns true if there are any.
    pub(crate) fn refresh(
        &self,
        traffic_rules: &mut PoolTrafficRules,
        database: &str,
        user: &str,
        now: Instant,
    ) -> bool {
        let epoch = self.epoch.load(Ordering::Acquire);
        if traffic_rules.epoch != epoch {
            *traffic_rules = self.pool_rules(database, user, now);
        }
        !traffic_rules.rules.is_empty()
    }

    fn pool_rules(&self, database: &str, user: &str, now: Instant) -> PoolTrafficRules {
        let now = self.at(now);
        let state = &mut *self.state();
        // The lock is held, so the epoch is that of the rules.
        let epoch = self.epoch.load(Ordering::Acquire);
        let about = state.active.iter().filter(|active| active.rule.whose.is_about(database, user)).cloned();
        let about: Vec<Arc<Active>> = about.collect();
        let bind = |active: Arc<Active>| {
            let whose = &active.rule.whose;
            let subject = Subject {
                rule: active.rule.name.clone(),
                user: whose.each_user.then(|| user.to_owned()),
                database: whose.each_database.then(|| database.to_owned()),
            };
            let limiter = state.limiters.entry(subject).or_default().clone();
            Bound { active, limiter }
        };
        let rules: Box<[Bound]> = about.into_iter().map(bind).collect();
        if state.limiters.len() > MANY_LIMITERS {
            // The state of an idle limiter is that of a new one.
            state.limiters.retain(|_, limiter| Arc::strong_count(limiter) > 1 || !limiter.is_at_rest(now));
        }
        let by_statement = rules.iter().any(|bound| bound.active.rule.whose.statement.is_some());
        PoolTrafficRules { epoch, rules, by_statement }
    }

    /// Returns a time on the limiters' clock, in nanoseconds.
    pub(crate) fn at(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.born).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the error message of a refusal.
    pub(crate) fn explain(&self, refused: Refused) -> RefusalMessage {
        refused.message(self.state().find(refused).map(|active| &active.rule))
    }

    /// Returns the name of the refusing rule, if the refusal is to be logged now.
    pub(crate) fn may_log(&self, refused: Refused, now: Instant) -> Option<String> {
        let state = self.state();
        let active = state.find(refused).filter(|active| active.counts.may_log(self.at(now)));
        active.map(|active| active.rule.name.clone())
    }

    /// Returns the rules in force, in the order of their names.
    pub(crate) fn report(&self, now: Instant) -> Vec<RuleReport> {
        let state = self.state();
        let mut running: HashMap<&str, u64> = HashMap::new();
        for (subject, limiter) in &state.limiters {
            *running.entry(&subject.rule).or_default() += u64::from(limiter.running());
        }
        let report = |active: &Arc<Active>| RuleReport {
            running: running.get(active.rule.name.as_str()).copied().unwrap_or(0),
            rule: active.rule.clone(),
            live: active.live,
            left: active.until.map(|until| until.saturating_duration_since(now)),
            passed: active.counts.passed.load(Ordering::Relaxed),
            refused: active.counts.refused.load(Ordering::Relaxed),
        };
        state.active.iter().map(report).collect()
    }
}

impl State {
    fn find(&self, refused: Refused) -> Option<&Active> {
        self.active.iter().find(|active| active.number == refused.rule).map(|active| &**active)
    }

    /// Computes the rules in force from those configured, set and lifted. A rule's counters and limiters continue under its name.
    fn resolve(&mut self) {
        let set: HashSet<&str> = self.live.iter().map(|(rule, _)| rule.name.as_str()).collect();
        let configured = self.configured.iter().filter(|rule| !set.contains(rule.name.as_str()));
        let configured = configured.filter(|rule| !self.lifted.contains(&rule.name));
        let all = configured.map(|rule| (rule, false, None));
        let all = all.chain(self.live.iter().map(|(rule, until)| (rule, true, *until)));
        let mut active: Vec<Arc<Active>> = Vec::new();
        for (rule, live, until) in all {
            let known = self.active.iter().find(|active| active.rule.name == rule.name);
            let counts = known.map_or_else(Arc::default, |active| active.counts.clone());
            self.next += 1;
            active.push(Arc::new(Active { number: self.next, rule: rule.clone(), live, until, counts }));
        }
        active.sort_by(|a, b| a.rule.name.cmp(&b.rule.name));
        let names: HashSet<&str> = active.iter().map(|active| active.rule.name.as_str()).collect();
        self.limiters.retain(|subject, _| names.contains(subject.rule.as_str()));
        self.active = active;
    }
}

impl Counts {
    fn may_log(&self, now: u64) -> bool {
        // The clock's first moment is distinct from "never".
        let now = now.max(1);
        let every = LOGGED_EVERY.as_nanos() as u64;
        let due = |last: u64| (last == 0 || now.saturating_sub(last) >= every).then_some(now);
        self.logged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok()
    }
}

// === impl PoolTrafficRules ===

impl PoolTrafficRules {
    /// True if a rule needs statements' fingerprints.
    pub(crate) fn asks_for_statements(&self) -> bool {
        self.by_statement
    }

    /// Admits or refuses a statement: every matching rule has to admit it. `permit`: the client's places, to which new ones are added.
    pub(crate) fn admit(&self, facts: StatementFacts, now: u64, permit: &mut Permit) -> Result<(), Refused> {
        let had = permit.0.len();
        for (at, bound) in self.about(facts).enumerate() {
            let Err(why) = bound.pass(now, permit) else { continue };
            bound.active.counts.refused.fetch_add(1, Ordering::Relaxed);
            if bound.active.rule.dry_run {
                bound.count_in(permit);
                continue;
            }
            // The statement does not run: the earlier rules undo their counts.
            self.about(facts).take(at).for_each(Bound::give_back);
            permit.truncate(had);
            return Err(Refused { rule: bound.active.number, why });
        }
        Ok(())
    }

    fn about(&self, facts: StatementFacts) -> impl Iterator<Item = &Bound> {
        self.rules.iter().filter(move |bound| bound.active.rule.whose.is_about_statement(facts))
    }
}

impl Bound {
    fn pass(&self, now: u64, permit: &mut Permit) -> Result<(), Why> {
        let limits = self.active.rule.limits;
        if limits.block {
            return Err(Why::Blocked);
        }
        if limits.concurrency.is_some() && !permit.has(&self.limiter) {
            if !self.limiter.begin(limits.concurrency) {
                return Err(Why::Concurrency);
            }
            permit.0.push(self.limiter.clone());
        }
        if let Some(rate) = limits.rate {
            let millis = |wait: Duration| u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
            self.limiter.pass(rate, now).map_err(|wait| Why::Rate(millis(wait)))?;
        }
        self.active.counts.passed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Counts a statement that is over the limit and runs all the same.
    fn count_in(&self, permit: &mut Permit) {
        if self.active.rule.limits.concurrency.is_some() && !permit.has(&self.limiter) && self.limiter.begin(None) {
            permit.0.push(self.limiter.clone());
        }
    }

    /// Undoes the count of an admitted statement that does not run, because another rule refuses it.
    fn give_back(&self) {
        if !self.active.rule.dry_run {
            if let Some(rate) = self.active.rule.limits.rate {
                self.limiter.give_back(rate);
            }
            self.active.counts.passed.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Permit {
    fn has(&self, limiter: &Arc<Limiter>) -> bool {
        self.0.iter().any(|held| Arc::ptr_eq(held, limiter))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn truncate(&mut self, to: usize) {
        self.0.drain(to..).for_each(|limiter| limiter.end());
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.truncate(0);
    }
}

impl Refused {
    fn message(self, rule: Option<&Rule>) -> RefusalMessage {
        let name = rule.map_or("", |rule| rule.name.as_str());
        let hint = "SHOW TRAFFIC in the console shows the rule.";
        let (code, text, hint) = match self.why {
            Why::Blocked => (
                Sqlstate::INSUFFICIENT_PRIVILEGE,
                format!("the traffic rule {name:?} blocks the statement"),
                hint.into(),
            ),
            Why::Concurrency => {
                let most = rule.and_then(|rule| rule.limits.concurrency).unwrap_or(0);
                let text = format!("the traffic rule {name:?} allows {most} such statements at a time");
                (Sqlstate::CONFIGURATION_LIMIT_EXCEEDED, text, format!("Try again when others have ended. {hint}"))
            }
            Why::Rate(millis) => {
                let rate = rule.and_then(|rule| rule.limits.rate).map_or(String::new(), |rate| rate.to_string());
                let text = format!("the traffic rule {name:?} allows {rate} of such statements");
                let wait = u64::from(millis) + 1;
                (Sqlstate::CONFIGURATION_LIMIT_EXCEEDED, text, format!("Try again in {wait} ms. {hint}"))
            }
        };
        match rule {
            Some(_) => RefusalMessage { code, text, hint },
            None => RefusalMessage {
                text: "a traffic rule that was lifted meanwhile has refused the statement".into(),
                code,
                hint,
            },
        }
    }
}

#[cfg(test)]
mod tests;
