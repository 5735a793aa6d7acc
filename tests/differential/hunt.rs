//! Runs sessions until the time is over, shrinks those with differences, and reports them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use kingpost_tests::Kingpost;

use crate::config::{CONFIGS, Config, Needs};
use crate::generator;
use crate::operator::Operated;
use crate::options::Options;
use crate::report::report;
use crate::runner::{Difference, Outcome, Runner};
use crate::session::Session;
use crate::shrink::Shrinker;
use crate::text;

/// Time of one configuration's turn.
const TURN: Duration = Duration::from_secs(8);
/// Largest pool with which a session that may have too few server connections is run again.
const MOST_POOL: usize = 8;
/// Number of sessions of a configuration after which its proof counters must have grown.
const PROVEN_AFTER: u64 = 60;

/// A run of random sessions.
struct Hunt<'a> {
    options: &'a Options,
    runner: Runner,
    sessions: BTreeMap<&'static str, u64>,
    starved: u64,
    invalid: u64,
    /// Number of sessions in which PostgreSQL itself crashed.
    crashed: u64,
    /// Kinds of differences: the count, and the first seed with its configuration.
    kinds: BTreeMap<String, (u64, &'static str, u64)>,
}

/// Runs random sessions. Returns true if there was no difference.
///
/// # Errors
/// The reason why nothing could be run.
pub(crate) async fn run(options: &Options) -> Result<bool, String> {
    let configs = known(&options.configs)?;
    let needs = configs.iter().fold(Needs::default(), |needs, config| needs.and(config.needs()));
    let first = options.seed.unwrap_or_else(clock);
    println!("seeds from {first}; configurations: {}", names(&configs));
    let mut hunt = Hunt {
        options,
        runner: Runner::start(needs, options.strict).await,
        sessions: BTreeMap::new(),
        starved: 0,
        invalid: 0,
        crashed: 0,
        kinds: BTreeMap::new(),
    };
    hunt.all(&configs, first).await;
    Ok(hunt.tell())
}

impl Hunt<'_> {
    /// Cycles through the configurations, each with its own seeds from `first` on.
    async fn all(&mut self, configs: &[&'static Config], first: u64) {
        let end = Instant::now() + self.options.time;
        let turn = TURN.min(self.options.time / (configs.len() as u32 + 1)).max(Duration::from_secs(1));
        let mut seeds = vec![first; configs.len()];
        loop {
            for (config, seed) in configs.iter().zip(&mut seeds) {
                let turn = Instant::now() + turn;
                loop {
                    let over = match self.options.seeds {
                        Some(seeds) => *seed >= first + seeds,
                        None => Instant::now() >= turn,
                    };
                    if over {
                        break;
                    }
                    let found = self.one(config, *seed).await;
                    *seed += 1;
                    let late = self.options.seeds.is_none() && Instant::now() >= end;
                    if late || (found && !self.options.keep_going) {
                        return;
                    }
                }
            }
            if self.options.seeds.is_some() {
                return;
            }
        }
    }

    /// Runs the session of a seed; returns true if it differs.
    async fn one(&mut self, config: &'static Config, seed: u64) -> bool {
        let session = generator::session(seed, config, self.options.allowed);
        if self.options.print {
            println!("# seed {seed}\nconfig {}\n{session}", config.name);
        }
        *self.sessions.entry(config.name).or_default() += 1;
        let (session, outcome) = judge(&mut self.runner, &session, config).await;
        match outcome {
            Outcome::Alike => return false,
            Outcome::Starved => self.starved += 1,
            Outcome::Crashed => {
                self.crashed += 1;
                println!("--config {} --seed {seed}: PostgreSQL itself has crashed\n{session}", config.name);
            }
            Outcome::Invalid(reason) => {
                self.invalid += 1;
                println!("--config {} --seed {seed}: {reason}", config.name);
            }
            Outcome::Differs(difference) => {
                let count = self.kinds.entry(difference.kind.clone()).or_insert((0, config.name, seed));
                count.0 += 1;
                if count.0 <= self.options.each {
                    self.show(config, seed, session, *difference).await;
                }
                return true;
            }
        }
        false
    }

    async fn show(&mut self, config: &Config, seed: u64, session: Session, difference: Difference) {
        println!("\n==== differential --config {} --seed {seed} --seeds 1{}", config.name, self.options.given);
        let again = self.runner.judge(&session, config).await;
        if !matches!(&again, Outcome::Differs(again) if again.kind == difference.kind) {
            println!("the same session again: {}", outcome_name(&again));
        }
        let (session, difference) = shrink(&mut self.runner, config, session, difference, self.options.shrink).await;
        println!("{}", report(config.name, &session, &difference));
    }

    /// Prints the summary. Returns true if all is well.
    fn tell(&self) -> bool {
        let sessions: u64 = self.sessions.values().sum();
        println!(
            "{sessions} sessions ({:?}), {} of them without enough server connections, {} no good, {} crashed PostgreSQL",
            self.sessions, self.starved, self.invalid, self.crashed
        );
        let Operated { orders, cut, sent_paused } = self.runner.operated;
        println!(
            "operator: {orders} orders; {cut} server connections were cut, {sent_paused} packets sent while the proxy was paused"
        );
        println!("differences that are meant, by rule: {:?}", self.runner.used);
        let mut well = self.kinds.is_empty();
        for ((config, counter), count) in &self.runner.did {
            println!("{config}: {counter} {count}");
            // A counter at 0 means that the subject is not tested.
            if *count == 0 && self.sessions.get(config).is_some_and(|sessions| *sessions >= PROVEN_AFTER) {
                println!("FAILED: no session with the configuration {config} did what it is about");
                well = false;
            }
        }
        for (kind, (count, config, seed)) in &self.kinds {
            println!("{count:5} x {kind} (first: --config {config} --seed {seed})");
        }
        // Most sessions must be conclusive.
        if sessions > 20 && (self.starved + self.invalid + 10 * self.crashed) * 10 > sessions {
            println!("FAILED: too many sessions that say nothing");
            well = false;
        }
        well
    }
}

fn clock() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |since| since.as_secs() * 1000)
}

fn names(configs: &[&Config]) -> String {
    configs.iter().map(|config| config.name).collect::<Vec<_>>().join(", ")
}

/// Returns the configurations whose keys the binary knows; by default all are wanted.
fn known(wanted: &[&'static Config]) -> Result<Vec<&'static Config>, String> {
    let wanted = if wanted.is_empty() { CONFIGS.iter().collect() } else { wanted.to_vec() };
    let (fits, unknown): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|config| is_known(config));
    if !unknown.is_empty() {
        println!("this binary does not know the settings of: {}", names(&unknown));
    }
    if fits.is_empty() { Err("none of the configurations can be run".into()) } else { Ok(fits) }
}

fn is_known(config: &Config) -> bool {
    let mut file = toml::Table::new();
    for (path, value) in config.settings() {
        let mut at = &mut file;
        let (section, key) = path.rsplit_once('.').unwrap_or(("proxy", &path));
        for part in section.split('.') {
            let entry = at.entry(part).or_insert_with(|| toml::Table::new().into());
            at = entry.as_table_mut().expect("a section");
        }
        at.insert(key.to_owned(), value);
    }
    let path = kingpost_tests::new_dir("check").join("kingpost.toml");
    std::fs::write(&path, toml::to_string(&file).expect("a configuration")).expect("write a configuration");
    let said = Kingpost::run(&["check", "--config", &path.display().to_string()]);
    let said = [said.stdout, said.stderr].concat();
    !String::from_utf8_lossy(&said).contains("unknown key")
}

/// Runs a session, with more server connections if it has too few.
async fn judge(runner: &mut Runner, session: &Session, config: &Config) -> (Session, Outcome) {
    let mut session = session.clone();
    loop {
        match runner.judge(&session, config).await {
            Outcome::Starved if session.pool < MOST_POOL => session.pool += 1,
            outcome => return (session, outcome),
        }
    }
}

fn outcome_name(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Alike => "no difference".into(),
        Outcome::Differs(difference) => format!("another difference: {}", difference.kind),
        Outcome::Starved => "too few server connections".into(),
        Outcome::Crashed => "PostgreSQL itself has crashed".into(),
        Outcome::Invalid(reason) => reason.clone(),
    }
}

/// Finds the shortest session with the same kind of difference, within the time limit.
async fn shrink(
    runner: &mut Runner,
    config: &Config,
    session: Session,
    difference: Difference,
    time: Duration,
) -> (Session, Difference) {
    let end = Instant::now() + time;
    let mut shrinker = Shrinker::new(session, difference.step);
    let mut best = difference;
    while Instant::now() < end {
        let Some(candidate) = shrinker.next() else { break };
        match runner.attempt(&candidate, config).await {
            Outcome::Differs(found) if found.kind == best.kind => {
                best = *found;
                shrinker.tell(true);
            }
            _ => shrinker.tell(false),
        }
    }
    (shrinker.best().clone(), best)
}

/// Runs sessions from files: each must show no difference, or, if it is marked `open`, one with some of its configurations. Returns true if that
/// holds.
///
/// # Errors
/// A file cannot be read.
pub(crate) async fn replay(options: &Options, files: &[PathBuf]) -> Result<bool, String> {
    let mut scripts = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let script = text::parse(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        let named = script.configs.iter().map(|name| Config::of(name).ok_or(name));
        let named = named.collect::<Result<Vec<_>, _>>();
        let named = named.map_err(|name| format!("{}: {name}: no such configuration", file.display()))?;
        scripts.push((file, script, if options.configs.is_empty() { named } else { options.configs.clone() }));
    }
    let configs = scripts.iter().flat_map(|(_, _, configs)| configs);
    let needs = configs.fold(Needs::default(), |needs, one| needs.and(one.needs()));
    let mut runner = Runner::start(needs, options.strict).await;
    let mut well = true;
    for (file, script, configs) in scripts {
        let mut differed = false;
        for config in configs {
            let name = format!("{} ({})", file.display(), config.name);
            if !is_known(config) {
                println!("{name}: this binary does not know its settings");
                continue;
            }
            let (session, outcome) = judge(&mut runner, &script.session, config).await;
            match outcome {
                Outcome::Alike => println!("{name}: ok"),
                Outcome::Differs(difference) if script.open.is_empty() => {
                    println!("{name}: {}", report(config.name, &session, &difference));
                    well = false;
                }
                Outcome::Differs(difference) => {
                    println!("{name}: open ({}): {}", script.open, difference.kind);
                    differed = true;
                }
                outcome => {
                    println!("{name}: {}", outcome_name(&outcome));
                    well = false;
                }
            }
        }
        if !script.open.is_empty() && !differed {
            println!("{}: no difference any more: take away the line `open` ({})", file.display(), script.open);
            well = false;
        }
    }
    Ok(well)
}
