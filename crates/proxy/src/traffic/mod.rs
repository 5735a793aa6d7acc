//! Traffic rules: which statements may not run, how many may run at a time, and how many a second.
//!
//! ```text
//!  [[proxy.traffic]], LIMIT, BLOCK, LIFT ─▶ Traffic ──epoch──▶ Governed (a pool's rules, in each worker) ─▶ admit ─▶ Permit
//! ```
//!
//! The rules are one writer's, under a lock. Workers compare the epoch, one atomic load a statement, and take the lock only when it
//! has grown. What a limit counts is atomic and shared by all workers: no statement waits for a lock.

mod limiter;
mod rule;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wire::Sqlstate;

use limiter::Limiter;

pub use limiter::Rate;
pub(crate) use rule::{Act, digits, is_governed};
pub use rule::{Given, Limits, Rule, RuleError, Whose};

/// Most rules that operators have set, beside those of the configuration.
const MOST_LIVE: usize = 100;
/// So many limiters are kept before those at rest are dropped.
const MANY_LIMITERS: usize = 1_024;
/// A rule that refuses is logged no more often than this.
const LOGGED_EVERY: Duration = Duration::from_secs(60);

/// The rules of a cluster, and what they have counted. Shared by its workers and its console.
#[derive(Debug)]
pub(crate) struct Traffic {
    /// Grows with each change of the rules; 0: there has been none yet.
    epoch: AtomicU64,
    /// The begin of the limiters' clock.
    born: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The rules of the configuration.
    configured: Vec<Rule>,
    /// The rules that operators have set, and when they end. One replaces the configuration's of the same name.
    live: Vec<(Rule, Option<Instant>)>,
    /// Names of rules of the configuration that operators have lifted.
    lifted: HashSet<String>,
    /// The rules in force, made of all that.
    active: Vec<Arc<Active>>,
    /// The number of the next rule.
    next: u64,
    limiters: HashMap<Subject, Arc<Limiter>>,
}

/// What a limiter counts for: everything that its meaning depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Subject {
    rule: String,
    /// Given where each user has limits of its own.
    user: Option<String>,
    /// Given where each database has.
    database: Option<String>,
}

/// A rule in force.
#[derive(Debug)]
struct Active {
    /// Unlike the name it is never used again.
    number: u64,
    rule: Rule,
    /// Set by an operator.
    live: bool,
    until: Option<Instant>,
    counts: Arc<Counts>,
}

/// What a rule has done, since a rule of its name is in force.
#[derive(Debug, Default)]
struct Counts {
    passed: AtomicU64,
    refused: AtomicU64,
    /// When it was logged last that the rule refuses, on the limiters' clock; 0: never.
    logged: AtomicU64,
}

/// The rules that may apply to a pool's statements.
#[derive(Debug, Default)]
pub(crate) struct Governed {
    epoch: u64,
    rules: Box<[Bound]>,
    by_statement: bool,
}

/// A rule, and the limiter that counts for the pool's statements.
#[derive(Debug)]
struct Bound {
    active: Arc<Active>,
    limiter: Arc<Limiter>,
}

/// A client's places among those that run at the same time. Gives them back when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Permit(Vec<Arc<Limiter>>);

/// A rule has refused a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The rule's number.
    rule: u64,
    why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Blocked,
    Concurrency,
    /// The rate; after so many milliseconds a statement could pass.
    Rate(u32),
}

/// What a client is told whose statement was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) code: Sqlstate,
    pub(crate) text: String,
    pub(crate) hint: String,
}

/// A rule in force, for tables and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleReport {
    /// The rule.
    pub rule: Rule,
    /// An operator has set it; otherwise the configuration has it.
    pub live: bool,
    /// After this time it ends by itself.
    pub left: Option<Duration>,
    /// Clients that run a statement under it.
    pub running: u64,
    /// Statements that it has let pass.
    pub passed: u64,
    /// Statements that it has refused; of a rule with `dry_run`: that it would have.
    pub refused: u64,
}

/// Why a rule was not set.
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

    /// The rules have changed.
    fn publish(&self, state: &mut State) {
        state.resolve();
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Takes the rules of a configuration. What operators have lifted holds again; what they have set stays.
    pub(crate) fn configure(&self, rules: &[Rule]) {
        let state = &mut *self.state();
        if state.configured == rules && state.lifted.is_empty() {
            return;
        }
        state.configured = rules.to_vec();
        state.lifted.clear();
        self.publish(state);
    }

    /// An operator sets a rule, or sets it anew.
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

    /// An operator lifts a rule: one that was set ends, and the configuration's of that name does not hold until it is read again.
    /// False: no rule of that name is in force.
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

    /// What operators have ordered: the rules that they have set, and in how long each ends by itself; and the names of those that they have
    /// lifted.
    pub(crate) fn ordered(&self, now: Instant) -> (Vec<(Rule, Option<Duration>)>, HashSet<String>) {
        let state = self.state();
        let left = |until: &Option<Instant>| until.map(|until| until.saturating_duration_since(now));
        (state.live.iter().map(|(rule, until)| (rule.clone(), left(until))).collect(), state.lifted.clone())
    }

    /// Ends rules whose time is over, and gives their names.
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

    /// In how long the next rule ends by itself.
    pub(crate) fn due_in(&self, now: Instant) -> Option<Duration> {
        let state = self.state();
        state.live.iter().filter_map(|(_, until)| *until).min().map(|until| until.saturating_duration_since(now))
    }

    /// Brings a pool's rules up to date. True if there are any.
    pub(crate) fn refresh(&self, governed: &mut Governed, database: &str, user: &str, now: Instant) -> bool {
        let epoch = self.epoch.load(Ordering::Acquire);
        if governed.epoch != epoch {
            *governed = self.governed(database, user, now);
        }
        !governed.rules.is_empty()
    }

    fn governed(&self, database: &str, user: &str, now: Instant) -> Governed {
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
            // One at rest knows nothing that a new one does not.
            state.limiters.retain(|_, limiter| Arc::strong_count(limiter) > 1 || !limiter.is_at_rest(now));
        }
        let by_statement = rules.iter().any(|bound| bound.active.rule.whose.statement.is_some());
        Governed { epoch, rules, by_statement }
    }

    /// A moment on the limiters' clock, in nanoseconds.
    pub(crate) fn at(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.born).as_nanos()).unwrap_or(u64::MAX)
    }

    /// What a client is told of a refusal.
    pub(crate) fn explain(&self, refused: Refused) -> Told {
        refused.told(self.state().find(refused).map(|active| &active.rule))
    }

    /// The name of the rule that has refused, if that is to be logged now.
    pub(crate) fn may_log(&self, refused: Refused, now: Instant) -> Option<String> {
        let state = self.state();
        let active = state.find(refused).filter(|active| active.counts.may_log(self.at(now)));
        active.map(|active| active.rule.name.clone())
    }

    /// The rules in force, in the order of their names.
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

    /// Makes the rules in force of what is configured, set and lifted. A rule's counts and limiters go on with its name.
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
        // The clock's first moment is not "never".
        let now = now.max(1);
        let every = LOGGED_EVERY.as_nanos() as u64;
        let due = |last: u64| (last == 0 || now.saturating_sub(last) >= every).then_some(now);
        self.logged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok()
    }
}

// === impl Governed ===

impl Governed {
    /// True if some rule asks for statements' fingerprints.
    pub(crate) fn asks_for_statements(&self) -> bool {
        self.by_statement
    }

    /// Lets a statement pass, or not: every rule that is about it has to. `permit`: the client's places, to which new ones are added.
    pub(crate) fn admit(&self, act: Act, now: u64, permit: &mut Permit) -> Result<(), Refused> {
        let had = permit.0.len();
        for (at, bound) in self.about(act).enumerate() {
            let Err(why) = bound.pass(now, permit) else { continue };
            bound.active.counts.refused.fetch_add(1, Ordering::Relaxed);
            if bound.active.rule.dry_run {
                bound.count_in(permit);
                continue;
            }
            // It does not run: the rules before take back what they have counted.
            self.about(act).take(at).for_each(Bound::give_back);
            permit.truncate(had);
            return Err(Refused { rule: bound.active.number, why });
        }
        Ok(())
    }

    fn about(&self, act: Act) -> impl Iterator<Item = &Bound> {
        self.rules.iter().filter(move |bound| bound.active.rule.whose.is_about_act(act))
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

    /// A statement that is over the limit runs all the same.
    fn count_in(&self, permit: &mut Permit) {
        if self.active.rule.limits.concurrency.is_some() && !permit.has(&self.limiter) && self.limiter.begin(None) {
            permit.0.push(self.limiter.clone());
        }
    }

    /// A statement that had passed does not run, because another rule refuses it.
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
    fn told(self, rule: Option<&Rule>) -> Told {
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
            Some(_) => Told { code, text, hint },
            None => {
                Told { text: "a traffic rule that was lifted meanwhile has refused the statement".into(), code, hint }
            }
        }
    }
}

#[cfg(test)]
mod tests;
