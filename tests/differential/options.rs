//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::{CONFIGS, Config};
use crate::generator::{FEATURES, Features};

/// Text printed with an error.
pub(crate) const USAGE: &str = "\
Runs random sessions through kingpost (KINGPOST_BIN) and directly against PostgreSQL, and compares each message.

  differential [run] [OPTIONS]     random sessions
  differential replay FILE…        sessions from files (the form in which differences are printed)
  differential rules               the differences that are meant, as docs/conformance.md shows them

  --config NAME,…     configurations (all; `usual`: those of `make test`)
  --seed N            the first seed (by the clock)
  --seeds N           how many seeds for each configuration (as many as the time allows)
  --seconds N         time for all configurations together (60)
  --without A,B       features that no session has
  --only A,B          features that sessions have, all of them and no others
  --keep-going        go on after a difference
  --each N            of each kind so many are shown (1)
  --shrink-seconds N  longest time for making one session shorter (60)
  --no-shrink         print the session as it was made
  --strict            no difference is meant
  --print             print each session before it runs
";

/// The command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// Run random sessions.
    Run,
    /// Run sessions from files.
    Replay(Vec<PathBuf>),
    /// Print the table of rules.
    Rules,
    /// Print the usage.
    Help,
}

/// The parsed command line.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) command: Command,
    /// Configurations; empty: all that the binary knows.
    pub(crate) configs: Vec<&'static Config>,
    /// None: from the clock.
    pub(crate) seed: Option<u64>,
    /// Number for each configuration; None: until the time is over.
    pub(crate) seeds: Option<u64>,
    pub(crate) time: Duration,
    pub(crate) allowed: Features,
    pub(crate) keep_going: bool,
    /// Most differences shown of one kind.
    pub(crate) each: u64,
    /// Zero: sessions are printed as generated.
    pub(crate) shrink: Duration,
    pub(crate) strict: bool,
    pub(crate) print: bool,
    /// The options needed to run one of its sessions again.
    pub(crate) given: String,
}

/// Returns the text of `--help`.
pub(crate) fn help() -> String {
    let mut out = format!("{USAGE}\nConfigurations:\n");
    for config in &CONFIGS {
        let usual = if config.usual { " (usual)" } else { "" };
        out.push_str(&format!("  {:10} {}{usual}\n", config.name, config.what));
    }
    let features: Vec<&str> = FEATURES.iter().map(|(_, name, _)| *name).collect();
    out.push_str(&format!("\nFeatures:\n  {}\n", features.join(" ")));
    out
}

fn number(name: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("{name} {value}: expected a number"))
}

fn configs(names: &str) -> Result<Vec<&'static Config>, String> {
    let mut configs = Vec::new();
    for name in names.split(',') {
        match name {
            "all" => configs.extend(&CONFIGS),
            "usual" => configs.extend(CONFIGS.iter().filter(|config| config.usual)),
            name => {
                let all = || CONFIGS.iter().map(|config| config.name).collect::<Vec<_>>().join(", ");
                let config = Config::of(name);
                configs.push(
                    config.ok_or_else(|| format!("{name}: no such configuration; there are: all, usual, {}", all()))?,
                );
            }
        }
    }
    Ok(configs)
}

impl Options {
    /// Parses the arguments behind the program's name.
    ///
    /// # Errors
    /// Description of the error.
    pub(crate) fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Options, String> {
        let mut arguments = arguments.into_iter().peekable();
        let mut options = Options {
            command: Command::Run,
            configs: Vec::new(),
            seed: None,
            seeds: None,
            time: Duration::from_secs(60),
            allowed: Features::ALL,
            keep_going: false,
            each: 1,
            shrink: Duration::from_secs(60),
            strict: false,
            print: false,
            given: String::new(),
        };
        match arguments.peek().map(String::as_str) {
            Some("run") => drop(arguments.next()),
            Some("rules") => {
                options.command = Command::Rules;
                arguments.next();
            }
            Some("replay") => {
                options.command = Command::Replay(Vec::new());
                arguments.next();
            }
            _ => {}
        }
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{name}: expected a value"));
            match name.as_str() {
                "--help" | "-h" => options.command = Command::Help,
                "--config" => options.configs = configs(&value()?)?,
                "--seed" => options.seed = Some(number(&name, &value()?)?),
                "--seeds" => options.seeds = Some(number(&name, &value()?)?),
                "--seconds" => options.time = Duration::from_secs(number(&name, &value()?)?),
                "--shrink-seconds" => options.shrink = Duration::from_secs(number(&name, &value()?)?),
                "--no-shrink" => options.shrink = Duration::ZERO,
                "--without" => {
                    let names = value()?;
                    options.allowed = options.allowed.minus(Features::of(&names)?);
                    options.given.push_str(&format!(" --without {names}"));
                }
                "--only" => {
                    let names = value()?;
                    options.allowed = Features::of(&names)?.all();
                    options.given.push_str(&format!(" --only {names}"));
                }
                "--each" => options.each = number(&name, &value()?)?,
                "--keep-going" => options.keep_going = true,
                "--strict" => {
                    options.strict = true;
                    options.given.push_str(" --strict");
                }
                "--print" => options.print = true,
                file => match &mut options.command {
                    Command::Replay(files) if !file.starts_with('-') => files.push(file.into()),
                    _ => return Err(format!("{file}: no such option")),
                },
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn arguments() {
        let options = parse("--config one,replica --seed 7 --without prepared2").unwrap_err();
        assert!(options.starts_with("prepared2: no such feature"), "{options}");
        let options = parse("--config one,replica --seed 7 --without named,set --strict --seconds 5").unwrap();
        assert_eq!(options.configs.iter().map(|config| config.name).collect::<Vec<_>>(), ["one", "replica"]);
        assert_eq!((options.seed, options.time), (Some(7), Duration::from_secs(5)));
        assert_eq!(options.given, " --without named,set --strict");
        assert_eq!(parse("replay x y").unwrap().command, Command::Replay(vec!["x".into(), "y".into()]));
        assert_eq!(parse("rules").unwrap().command, Command::Rules);
        assert_eq!(parse("--nosuch").unwrap_err(), "--nosuch: no such option");
        assert_eq!(parse("--seed").unwrap_err(), "--seed: expected a value");
        assert_eq!(parse("--seed x").unwrap_err(), "--seed x: expected a number");
    }
}
