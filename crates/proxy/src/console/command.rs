//! The commands that operators type.

use std::time::Duration;

/// Shortest and longest lease of a pause.
const LEASE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    /// Only white space.
    Nothing,
    Show(Show),
    Reload,
    Shutdown,
    Pause(Option<String>),
    /// Pauses all databases for this long; a program that repeats the command in time prolongs the pause.
    PauseFor(Duration),
    Resume(Option<String>),
    /// Ends `PauseFor` once a primary on this timeline, or a later one, is known.
    ResumeWhen(u32),
    Reconnect(Option<String>),
    WaitClose(Option<String>),
    Kill(Option<String>),
    KillClient(u64),
    ResetStatements,
}

/// What `SHOW` can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Show {
    Help,
    Version,
    Databases,
    Pools,
    Clients,
    Servers,
    Sockets,
    Stats,
    StatsTotals,
    StatsAverages,
    Lists,
    Users,
    Config,
    Nodes,
    Gate,
    Relays,
    Lanes,
    Pins,
    Prepared,
    Statements,
    State,
}

/// By name, as `SHOW HELP` lists them.
pub(super) const SHOWS: &[(&str, Show, &str)] = &[
    ("HELP", Show::Help, "this list"),
    ("VERSION", Show::Version, "the program's version"),
    ("DATABASES", Show::Databases, "databases that clients may name, and where they lead"),
    ("POOLS", Show::Pools, "clients and server connections of each database and user"),
    ("CLIENTS", Show::Clients, "every client"),
    ("SERVERS", Show::Servers, "every server connection"),
    ("SOCKETS", Show::Sockets, "both"),
    ("STATS", Show::Stats, "totals and averages of each database"),
    ("STATS_TOTALS", Show::StatsTotals, "totals alone"),
    ("STATS_AVERAGES", Show::StatsAverages, "averages alone, of the last full minute"),
    ("LISTS", Show::Lists, "how many there are of what"),
    ("USERS", Show::Users, "users that may log in"),
    ("CONFIG", Show::Config, "settings in force"),
    ("NODES", Show::Nodes, "the servers of the cluster: role, timeline, positions, lag"),
    ("GATE", Show::Gate, "clients whose commits are held back until relays have them, and what they wait for"),
    ("RELAYS", Show::Relays, "the relays that make commits durable, as this proxy hears them"),
    ("LANES", Show::Lanes, "server connections that several clients share at this moment"),
    ("PINS", Show::Pins, "clients that keep their server connection, and why"),
    ("PREPARED", Show::Prepared, "prepared statements in server connections"),
    ("STATEMENTS", Show::Statements, "what statements have taken, by shape, the longest together first"),
    ("STATE", Show::State, "whether the proxy is active or paused"),
];

/// The other commands, for `SHOW HELP`.
pub(super) const ACTIONS: &[(&str, &str)] = &[
    ("RELOAD", "read the configuration again"),
    ("PAUSE [db]", "let transactions end, close server connections, hold clients; returns when all is closed"),
    ("PAUSE FOR time", "as PAUSE of all databases, which ends by itself after this time (30s) unless it is said again"),
    ("RESUME [db]", "go on after PAUSE"),
    (
        "RESUME WHEN TIMELINE >= n",
        "look for a primary on timeline n or later at once, and end PAUSE FOR when it is there",
    ),
    ("RECONNECT [db]", "replace server connections as they become free"),
    ("WAIT_CLOSE [db]", "wait until the connections that RECONNECT or RELOAD replaces are closed"),
    ("KILL [db]", "close clients and server connections at once; new clients wait for RESUME"),
    ("KILL_CLIENT id", "close one client, by its id in SHOW CLIENTS"),
    ("RESET STATEMENTS", "count them from now on"),
    ("SHUTDOWN", "stop the program as SIGTERM does"),
];

impl Command {
    /// True if the command changes nothing.
    pub(super) fn only_looks(&self) -> bool {
        matches!(self, Command::Show(_) | Command::Nothing)
    }

    /// The database that the command is about.
    pub(super) fn database(&self) -> Option<&str> {
        match self {
            Command::Pause(name)
            | Command::Resume(name)
            | Command::Reconnect(name)
            | Command::WaitClose(name)
            | Command::Kill(name) => name.as_deref(),
            _ => None,
        }
    }
}

impl Show {
    /// True if the workers have to be asked.
    pub(super) fn needs_reports(self) -> bool {
        !matches!(self, Show::Help | Show::Version | Show::Users | Show::Config | Show::Nodes | Show::Relays)
    }
}

/// Parses a command. Case does not matter except in names of databases, which may be in double quotes.
pub(super) fn parse(text: &str) -> Result<Command, String> {
    let mut words = words(text)?.into_iter();
    let Some(first) = words.next() else { return Ok(Command::Nothing) };
    let mut argument = || -> Option<String> { words.next() };
    let name = first.to_ascii_uppercase();
    let command = match name.as_str() {
        "SHOW" => {
            let Some(what) = argument() else { return Err("SHOW what? SHOW HELP lists it".into()) };
            // PgBouncer's name is `SHOW PREPARED_STATEMENTS`.
            let what = what.to_ascii_uppercase().replace("PREPARED_STATEMENTS", "PREPARED");
            match SHOWS.iter().find(|(name, _, _)| *name == what) {
                Some((_, show, _)) => Command::Show(*show),
                None => return Err(format!("nothing is called {what:?} here: SHOW HELP lists what there is")),
            }
        }
        "RELOAD" => Command::Reload,
        "SHUTDOWN" => Command::Shutdown,
        "RESET" => match argument().map(|what| what.to_ascii_uppercase()).as_deref() {
            Some("STATEMENTS") => Command::ResetStatements,
            _ => return Err("RESET what? STATEMENTS is all there is".into()),
        },
        "PAUSE" => match (argument(), argument()) {
            (Some(word), Some(time)) if word.eq_ignore_ascii_case("FOR") => Command::PauseFor(lease(&time)?),
            (_, Some(extra)) => {
                return Err(format!("unexpected {extra:?} after PAUSE: PAUSE, PAUSE db, or PAUSE FOR 30s"));
            }
            (database, None) => Command::Pause(database),
        },
        "RESUME" => match (argument(), argument()) {
            (Some(when), Some(what)) if when.eq_ignore_ascii_case("WHEN") && what.eq_ignore_ascii_case("TIMELINE") => {
                let number = argument().filter(|word| word != ">=").or_else(&mut argument);
                let timeline =
                    number.as_deref().and_then(|number| number.parse().ok()).filter(|timeline| *timeline > 0);
                Command::ResumeWhen(
                    timeline.ok_or("expected RESUME WHEN TIMELINE >= n, with the number of a timeline")?,
                )
            }
            (_, Some(extra)) => {
                return Err(format!(
                    "unexpected {extra:?} after RESUME: RESUME, RESUME db, or RESUME WHEN TIMELINE >= n"
                ));
            }
            (database, None) => Command::Resume(database),
        },
        "RECONNECT" => Command::Reconnect(argument()),
        "WAIT_CLOSE" => Command::WaitClose(argument()),
        "KILL" => Command::Kill(argument()),
        "KILL_CLIENT" => {
            let id = argument().ok_or("KILL_CLIENT which? The id column of SHOW CLIENTS says")?;
            Command::KillClient(id.parse().map_err(|_| format!("{id:?} is not a client's id: SHOW CLIENTS has it"))?)
        }
        _ => return Err(format!("unknown command {first:?}: SHOW HELP lists what there is")),
    };
    match words.next() {
        None => Ok(command),
        Some(extra) => Err(format!("unexpected {extra:?} after {name}: one command at a time")),
    }
}

/// Reads `30s`, `2min` or a number of seconds.
fn lease(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::from_secs);
    let time = seconds.or_else(|| humantime::parse_duration(text).ok());
    time.filter(|time| (LEASE.0..=LEASE.1).contains(time))
        .ok_or_else(|| format!("PAUSE FOR {text:?}: expected a time from 1s to 10min, such as 30s"))
}

/// Splits a text into words, quoted or not. A semicolon at the end is dropped; comments are white space.
fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut ended = false;
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        if let Some(comment) = rest.strip_prefix("--") {
            rest = comment.find('\n').map_or("", |end| &comment[end..]);
        } else if let Some(comment) = rest.strip_prefix("/*") {
            let end = comment.find("*/").ok_or("a comment has no end")?;
            rest = &comment[end + 2..];
        } else if let Some(after) = rest.strip_prefix(';') {
            ended |= !words.is_empty();
            rest = after;
        } else if ended {
            return Err("one command at a time".into());
        } else if let Some(quoted) = rest.strip_prefix('"') {
            let end = quoted.find('"').ok_or("a quoted name has no end")?;
            words.push(quoted[..end].to_owned());
            rest = &quoted[end + 1..];
        } else {
            let end = rest.find(|c: char| c.is_whitespace() || c == ';' || c == '"').unwrap_or(rest.len());
            words.push(rest[..end].to_owned());
            rest = &rest[end..];
        }
        rest = rest.trim_start();
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads() {
        let name = |name: &str| Some(name.to_owned());
        for (text, expected) in [
            ("", Command::Nothing),
            (" ; ", Command::Nothing),
            ("-- nothing\n", Command::Nothing),
            ("show pools", Command::Show(Show::Pools)),
            ("SHOW POOLS;", Command::Show(Show::Pools)),
            ("Show Stats_Totals ; ;", Command::Show(Show::StatsTotals)),
            ("SHOW prepared_statements", Command::Show(Show::Prepared)),
            ("/* why */ show clients -- now", Command::Show(Show::Clients)),
            ("reload", Command::Reload),
            ("pause", Command::Pause(None)),
            ("PAUSE Shop;", Command::Pause(name("Shop"))),
            ("pause for", Command::Pause(name("for"))),
            ("pause for 30s", Command::PauseFor(Duration::from_secs(30))),
            ("PAUSE FOR 5;", Command::PauseFor(Duration::from_secs(5))),
            ("resume when timeline >= 7", Command::ResumeWhen(7)),
            ("RESUME WHEN TIMELINE 8;", Command::ResumeWhen(8)),
            ("resume \"my shop\"", Command::Resume(name("my shop"))),
            ("wait_close", Command::WaitClose(None)),
            ("reconnect shop", Command::Reconnect(name("shop"))),
            ("kill", Command::Kill(None)),
            ("kill shop", Command::Kill(name("shop"))),
            ("KILL_CLIENT 72057598332895233", Command::KillClient(72_057_598_332_895_233)),
            ("shutdown", Command::Shutdown),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn refuses() {
        for (text, expected) in [
            ("select 1", "unknown command"),
            ("show", "SHOW what"),
            ("show everything", "SHOW HELP"),
            ("kill_client me", "not a client's id"),
            ("kill_client", "which"),
            ("reload now", "one command at a time"),
            ("show pools; show stats", "one command at a time"),
            ("pause \"shop", "no end"),
            ("pause for ever", "from 1s to 10min"),
            ("pause for 1h", "from 1s to 10min"),
            ("pause for 100ms", "from 1s to 10min"),
            ("pause shop 30s", "PAUSE FOR 30s"),
            ("pause for 30s now", "one command at a time"),
            ("resume when timeline >=", "RESUME WHEN TIMELINE"),
            ("resume when timeline 0", "RESUME WHEN TIMELINE"),
            ("resume when possible", "RESUME WHEN TIMELINE"),
            ("resume when timeline >= 1 now", "one command at a time"),
            ("/* show pools", "no end"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn every_name_of_the_list_can_be_shown() {
        for (name, show, _) in SHOWS {
            assert_eq!(parse(&format!("SHOW {name}")), Ok(Command::Show(*show)));
        }
    }
}
