//! Runs sessions until the time is over, makes those shorter in which the worlds differ, and tells of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use kingpost_tests::Kingpost;

use crate::config::{CONFIGS, Config, Needs};
use crate::generator;
use crate::options::Options;
use crate::report::report;
use crate::rules::Allowed;
use crate::runner::{Difference, Outcome, Patience, run as run_session};
use crate::session::Session;
use crate::shrink::Shrinker;
use crate::text;
use crate::world::Worlds;

/// Sessions of one configuration before it is the next one's turn.
const TURN: Duration = Duration::from_secs(8);
/// A session that may have too few server connections is run again with more.
const MOST_POOL: usize = 8;

/// What has been found so far.
#[derive(Debug, Default)]
struct Tally {
    sessions: u64,
    starved: u64,
    invalid: u64,
    /// Kinds of differences: how often, and the first seed with its configuration.
    kinds: BTreeMap<String, (u64, &'static str, u64)>,
}

/// Random sessions. Gives whether there was no difference.
///
/// # Errors
/// Why nothing could be run.
pub(crate) async fn run(options: &Options) -> Result<bool, String> {
    let configs = known(&options.configs)?;
    let needs = configs.iter().fold(Needs::default(), |needs, config| needs.and(config.needs()));
    let mut worlds = Worlds::start(needs).await;
    let first = options.seed.unwrap_or_else(clock);
    println!("seeds from {first}; configurations: {}", names(&configs));
    let end = Instant::now() + options.time;
    let mut allowed = if options.strict { Allowed::none() } else { Allowed::all() };
    let mut tally = Tally::default();
    let mut seeds: Vec<u64> = configs.iter().map(|_| first).collect();
    let is_over = |seed: u64| options.seeds.is_some_and(|seeds| seed >= first + seeds);
    'all: loop {
        let turn = TURN.min(options.time / (configs.len() as u32 + 1)).max(Duration::from_secs(1));
        for (config, seed) in configs.iter().zip(&mut seeds) {
            let turn = Instant::now() + turn;
            while !is_over(*seed) && (options.seeds.is_some() || Instant::now() < turn) {
                if options.seeds.is_none() && Instant::now() >= end {
                    break 'all;
                }
                let found = one(&mut worlds, config, *seed, options, &mut allowed, &mut tally).await;
                *seed += 1;
                if found && !options.keep_going {
                    break 'all;
                }
            }
        }
        if seeds.iter().all(|seed| is_over(*seed)) {
            break;
        }
    }
    println!(
        "{} sessions, {} of them without enough server connections, {} no good; differences that are meant: {:?}",
        tally.sessions, tally.starved, tally.invalid, allowed.used
    );
    for (kind, (count, config, seed)) in &tally.kinds {
        println!("{count:5} x {kind} (first: --config {config} --seed {seed})");
    }
    Ok(tally.kinds.is_empty())
}

fn clock() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |since| since.as_secs() * 1000)
}

fn names(configs: &[&Config]) -> String {
    configs.iter().map(|config| config.name).collect::<Vec<_>>().join(", ")
}

/// Those that the binary knows all the keys of.
fn known(wanted: &[&'static Config]) -> Result<Vec<&'static Config>, String> {
    let explicit = !wanted.is_empty();
    let wanted = if explicit { wanted.to_vec() } else { CONFIGS.iter().collect() };
    let (fits, unknown): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|config| is_known(config));
    if !unknown.is_empty() {
        println!("this binary does not know the settings of: {}", names(&unknown));
    }
    if fits.is_empty() { Err("none of the configurations can be run".into()) } else { Ok(fits) }
}

fn is_known(config: &Config) -> bool {
    let mut file = toml::Table::new();
    for (path, value) in config.settings() {
        let (section, key) = path.rsplit_once('.').unwrap_or(("proxy", &path));
        let mut at = &mut file;
        for part in section.split('.') {
            let entry = at.entry(part).or_insert_with(|| toml::Table::new().into());
            at = entry.as_table_mut().expect("a section");
        }
        at.insert(key.to_owned(), value);
    }
    let path = kingpost_tests::new_dir("check").join("kingpost.toml");
    std::fs::write(&path, toml::to_string(&file).expect("a configuration")).expect("write a configuration");
    let said = Kingpost::run(&["check", "--config", &path.display().to_string()]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned() + &String::from_utf8_lossy(&said.stdout);
    !said.contains("unknown key")
}

/// Runs a session, with more server connections if it has too few.
async fn attempt(worlds: &mut Worlds, session: &Session, config: &Config, allowed: &mut Allowed) -> (Session, Outcome) {
    let mut session = session.clone();
    loop {
        match run_session(worlds, &session, config, allowed, Patience::LONG).await {
            Outcome::Starved if session.pool < MOST_POOL => session.pool += 1,
            outcome => return (session, outcome),
        }
    }
}

/// Runs the session of a seed; gives whether it showed something new.
async fn one(
    worlds: &mut Worlds,
    config: &'static Config,
    seed: u64,
    options: &Options,
    allowed: &mut Allowed,
    tally: &mut Tally,
) -> bool {
    let session = generator::session(seed, config, options.allowed);
    if options.print {
        println!("# seed {seed}\nconfig {}\n{session}", config.name);
    }
    tally.sessions += 1;
    let (session, outcome) = attempt(worlds, &session, config, allowed).await;
    match outcome {
        Outcome::Alike => false,
        Outcome::Starved => {
            tally.starved += 1;
            false
        }
        Outcome::Invalid(reason) => {
            tally.invalid += 1;
            println!("--config {} --seed {seed}: {reason}", config.name);
            false
        }
        Outcome::Differs(difference) => {
            if options.skip.contains(&difference.kind) {
                return false;
            }
            let known = tally.kinds.entry(difference.kind.clone()).or_insert((0, config.name, seed));
            known.0 += 1;
            if known.0 > 1 {
                return false;
            }
            println!("\n==== --config {} --seed {seed}{}", config.name, options.given);
            let again = run_session(worlds, &session, config, allowed, Patience::LONG).await;
            if !matches!(&again, Outcome::Differs(again) if again.kind == difference.kind) {
                println!("the same session again: {}", outcome_name(&again));
            }
            let (session, difference) = shrink(worlds, config, session, *difference, options.shrink, allowed).await;
            println!("{}", report(config.name, &session, &difference));
            true
        }
    }
}

fn outcome_name(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Alike => "no difference".into(),
        Outcome::Differs(difference) => format!("another difference: {}", difference.kind),
        Outcome::Starved => "too few server connections".into(),
        Outcome::Invalid(reason) => reason.clone(),
    }
}

/// The shortest session that shows the same kind of difference, as far as the time goes.
async fn shrink(
    worlds: &mut Worlds,
    config: &Config,
    session: Session,
    difference: Difference,
    time: Duration,
    allowed: &Allowed,
) -> (Session, Difference) {
    let end = Instant::now() + time;
    let mut shrinker = Shrinker::new(session, difference.step);
    let mut best = difference;
    // Attempts do not count as uses of rules.
    let mut allowed = allowed.clone();
    while Instant::now() < end {
        let Some(candidate) = shrinker.next() else { break };
        match run_session(worlds, &candidate, config, &mut allowed, Patience::SHORT).await {
            Outcome::Differs(found) if found.kind == best.kind => {
                best = *found;
                shrinker.tell(true);
            }
            _ => shrinker.tell(false),
        }
    }
    (shrinker.best().clone(), best)
}

/// Sessions from files: each must show no difference, or, if it is marked `open`, one. Gives whether that is so.
///
/// # Errors
/// A file that cannot be read.
pub(crate) async fn replay(options: &Options, files: &[PathBuf]) -> Result<bool, String> {
    let mut scripts = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        scripts.push((file, text::parse(&text).map_err(|e| format!("{}: {e}", file.display()))?));
    }
    let needs = scripts.iter().filter_map(|(_, script)| Config::of(&script.config));
    let needs =
        needs.chain(options.configs.iter().copied()).fold(Needs::default(), |needs, one| needs.and(one.needs()));
    let mut worlds = Worlds::start(needs).await;
    let mut well = true;
    for (file, script) in scripts {
        let named: Vec<&Config> = Config::of(&script.config).into_iter().collect();
        let configs = if options.configs.is_empty() { named } else { options.configs.clone() };
        for config in configs.into_iter().filter(|config| is_known(config)) {
            let mut allowed = if options.strict { Allowed::none() } else { Allowed::all() };
            let (session, outcome) = attempt(&mut worlds, &script.session, config, &mut allowed).await;
            let name = format!("{} ({})", file.display(), config.name);
            match outcome {
                Outcome::Differs(difference) if script.open.is_empty() => {
                    println!("{name}: {}", report(config.name, &session, &difference));
                    well = false;
                }
                Outcome::Differs(difference) => println!("{name}: still open: {}: {}", script.open, difference.kind),
                Outcome::Alike if script.open.is_empty() => println!("{name}: ok"),
                outcome => {
                    let open = if script.open.is_empty() { "" } else { " (marked open: take the mark away?)" };
                    println!("{name}: {}{open}", outcome_name(&outcome));
                    well = false;
                }
            }
        }
    }
    Ok(well)
}
