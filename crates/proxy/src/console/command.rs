//! The commands that operators type.

use std::time::Duration;

use super::lease::LONGEST;
use super::limits::{self, Ending};
use crate::traffic::Rule;

/// Shortest and longest lease of a pause.
const LEASE: (Duration, Duration) = (Duration::from_secs(1), LONGEST);

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    /// Only white space.
    Nothing,
    Show(Show),
    Reload,
    Shutdown,
    /// Changes a setting until the configuration is read again.
    Set {
        key: String,
        value: String,
    },
    /// A parameter of sessions that drivers set after each login: nothing follows from it here.
    SetSession,
    Suspend,
    /// Refuses all logins to a database.
    Disable(String),
    Enable(String),
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
    /// Sets a traffic rule.
    Limit(Box<Rule>, Ending),
    /// Ends a traffic rule.
    Lift(String),
}

/// Tables of `SHOW`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Show {
    Help,
    Version,
    Databases,
    Pools,
    Clients,
    Servers,
    Sockets,
    ActiveSockets,
    Fds,
    Memory,
    DnsHosts,
    DnsZones,
    Peers,
    PeerPools,
    Stats,
    StatsTotals,
    StatsAverages,
    Totals,
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
    Traffic,
}

/// By name, as `SHOW HELP` lists them.
pub(super) const SHOWS: &[(&str, Show, &str)] = &[
    ("HELP", Show::Help, "this list"),
    ("VERSION", Show::Version, "the program's version"),
    ("DATABASES", Show::Databases, "databases that clients may name, and where they lead"),
    ("POOLS", Show::Pools, "clients and server connections of each database and user"),
    ("CLIENTS", Show::Clients, "every client"),
    ("SERVERS", Show::Servers, "every server connection"),
    ("SOCKETS", Show::Sockets, "both, with the bytes that wait in the proxy"),
    ("ACTIVE_SOCKETS", Show::ActiveSockets, "those of both that are not idle"),
    ("FDS", Show::Fds, "the file descriptors of both"),
    ("MEM", Show::Memory, "memory that is set aside for connections and buffers"),
    ("DNS_HOSTS", Show::DnsHosts, "nothing: host names are resolved by the system, for each connection anew"),
    ("DNS_ZONES", Show::DnsZones, "nothing, for the same reason"),
    ("PEERS", Show::Peers, "the other proxies, to which cancel requests are passed on"),
    ("PEER_POOLS", Show::PeerPools, "nothing: a cancel request to another proxy takes no place in a pool"),
    ("STATS", Show::Stats, "totals and averages of each database"),
    ("STATS_TOTALS", Show::StatsTotals, "totals alone"),
    ("STATS_AVERAGES", Show::StatsAverages, "averages alone, of the last full minute"),
    ("TOTALS", Show::Totals, "totals and averages of all databases together"),
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
    ("TRAFFIC", Show::Traffic, "traffic rules: what they allow, and how many statements they have refused"),
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
    ("SUSPEND", "read nothing more from clients; returns when all answers under way are delivered"),
    ("DISABLE db", "let nobody log in to the database; who is in it stays"),
    ("ENABLE db", "end DISABLE"),
    (
        "SET key = value",
        "change a setting, by its name in SHOW CONFIG or in the file, until the configuration is read again",
    ),
    ("RECONNECT [db]", "replace server connections as they become free"),
    ("WAIT_CLOSE [db]", "wait until the connections that RECONNECT or RELOAD replaces are closed"),
    ("KILL [db]", "close clients and server connections at once; new clients wait for RESUME"),
    ("KILL_CLIENT id", "close one client, by its id in SHOW CLIENTS"),
    (
        "LIMIT name … [RATE 100/s [BURST n]] [CONCURRENCY n] [DRY RUN] [FOR time]",
        "set a traffic rule; …: USER name, DATABASE name, STATEMENT 'text' or fingerprint, READS or WRITES, EACH USER, EACH DATABASE",
    ),
    ("BLOCK name … [DRY RUN] [FOR time]", "set a traffic rule that lets no such statement run"),
    ("LIFT name", "end a traffic rule; one of the file holds again when the file is read again"),
    ("RESET STATEMENTS", "count them from now on"),
    ("SHUTDOWN [WAIT_FOR_SERVERS]", "stop the program as SIGTERM does: transactions may end"),
];

impl Command {
    /// True if the command changes nothing.
    pub(super) fn only_looks(&self) -> bool {
        matches!(self, Command::Show(_) | Command::Nothing | Command::SetSession)
    }

    /// True if each cluster carries the command out for itself; otherwise it is about the process.
    pub(super) fn is_by_cluster(&self) -> bool {
        !matches!(
            self,
            Command::Nothing
                | Command::Reload
                | Command::Shutdown
                | Command::Set { .. }
                | Command::SetSession
                | Command::Show(
                    Show::Help | Show::Version | Show::DnsHosts | Show::DnsZones | Show::Peers | Show::PeerPools
                )
        )
    }

    /// Returns the database that the command is about.
    pub(super) fn database(&self) -> Option<&str> {
        match self {
            Command::Pause(name)
            | Command::Resume(name)
            | Command::Reconnect(name)
            | Command::WaitClose(name)
            | Command::Kill(name) => name.as_deref(),
            Command::Disable(name) | Command::Enable(name) => Some(name),
            Command::Limit(rule, _) => rule.whose.database.as_deref(),
            _ => None,
        }
    }
}

impl Show {
    /// True if all sockets have to be known.
    pub(super) fn is_about_sockets(self) -> bool {
        matches!(self, Show::Sockets | Show::ActiveSockets | Show::Fds)
    }

    /// True if the workers have to be asked.
    pub(super) fn needs_reports(self) -> bool {
        let from_configuration =
            matches!(self, Show::Help | Show::Version | Show::Config | Show::Nodes | Show::Relays | Show::Traffic);
        !from_configuration && !matches!(self, Show::DnsHosts | Show::DnsZones | Show::Peers | Show::PeerPools)
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
        "SHUTDOWN" => match argument().map(|how| how.to_ascii_uppercase()).as_deref() {
            None | Some("WAIT_FOR_SERVERS") => Command::Shutdown,
            Some("WAIT_FOR_CLIENTS") => {
                return Err(
                    "clients are not waited for: let a new process take over instead (proxy.upgrade_socket)".into()
                );
            }
            Some(_) => return Err("expected SHUTDOWN or SHUTDOWN WAIT_FOR_SERVERS".into()),
        },
        "SET" => {
            let rest: Vec<String> = words.by_ref().collect();
            set(&rest.join(" "))?
        }
        "LIMIT" | "BLOCK" => {
            let (rule, ending) = limits::parse(name == "BLOCK", words.by_ref())?;
            Command::Limit(Box::new(rule), ending)
        }
        "LIFT" => Command::Lift(argument().ok_or("LIFT which rule? SHOW TRAFFIC has their names")?),
        "SUSPEND" => Command::Suspend,
        "DISABLE" => Command::Disable(argument().ok_or("DISABLE which database?")?),
        "ENABLE" => Command::Enable(argument().ok_or("ENABLE which database?")?),
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

/// Parameters of sessions that drivers set after each login.
const OF_SESSIONS: &[&str] = &[
    "application_name",
    "client_encoding",
    "client_min_messages",
    "datestyle",
    "extra_float_digits",
    "intervalstyle",
    "standard_conforming_strings",
    "timezone",
];

/// Reads `key = value` and `key TO value`; the value may be in single quotes.
fn set(text: &str) -> Result<Command, String> {
    let (key, value) = text
        .split_once('=')
        .or_else(|| text.split_once(" TO "))
        .or_else(|| text.split_once(" to "))
        .ok_or("expected SET key = value: SHOW CONFIG has the keys")?;
    let (key, value) = (key.trim(), value.trim());
    let quoted = value.strip_prefix('\'').and_then(|value| value.strip_suffix('\''));
    let value = quoted.map_or_else(|| value.to_owned(), |value| value.replace("''", "'"));
    let named = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'.';
    if key.is_empty() || !key.bytes().all(named) {
        return Err(format!("SET {key:?}: expected the name of a setting: SHOW CONFIG has them"));
    }
    if OF_SESSIONS.contains(&key.to_ascii_lowercase().as_str()) {
        return Ok(Command::SetSession);
    }
    Ok(Command::Set { key: key.to_ascii_lowercase(), value })
}

/// Reads how long a lease is to last.
fn lease(text: &str) -> Result<Duration, String> {
    time(text, LEASE).ok_or_else(|| format!("PAUSE FOR {text:?}: expected a time from 1s to 10min, such as 30s"))
}

/// Reads `30s`, `2min` or a number of seconds, from the shortest to the longest time of `range`.
pub(super) fn time(text: &str, range: (Duration, Duration)) -> Option<Duration> {
    let seconds = text.parse().ok().map(Duration::from_secs);
    let time = seconds.or_else(|| humantime::parse_duration(text).ok());
    time.filter(|time| (range.0..=range.1).contains(time))
}

/// Splits a text into words, in double quotes (a name), in single quotes (a text) or not. Within quotes, two of them stand for one, as in SQL. A
/// semicolon at the end is dropped; comments are white space.
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
        } else if let Some(after) = rest.strip_prefix('"') {
            let (name, after) = unquoted(after, '"').ok_or("a quoted name has no end")?;
            if name.is_empty() {
                return Err("a quoted name is empty".into());
            }
            words.push(name);
            rest = after;
        } else if let Some(after) = rest.strip_prefix('\'') {
            let (word, after) = unquoted(after, '\'').ok_or("a quoted text has no end")?;
            words.push(word);
            rest = after;
        } else {
            let end = rest.find(|c: char| c.is_whitespace() || c == ';' || c == '"').unwrap_or(rest.len());
            words.push(rest[..end].to_owned());
            rest = &rest[end..];
        }
        rest = rest.trim_start();
    }
    Ok(words)
}

/// Returns a word in quotes, behind the first of them, and the text behind the last. `None`: there is no last one.
fn unquoted(mut rest: &str, quote: char) -> Option<(String, &str)> {
    let mut word = String::new();
    loop {
        let (before, after) = rest.split_once(quote)?;
        word.push_str(before);
        let Some(more) = after.strip_prefix(quote) else { return Some((word, after)) };
        word.push(quote);
        rest = more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads() {
        let name = |name: &str| Some(name.to_owned());
        let setting = |key: &str, value: &str| Command::Set { key: key.into(), value: value.into() };
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
            ("pause \"Quo\"\"te\"", Command::Pause(name("Quo\"te"))),
            ("RESUME \"\"\"\"\"\";", Command::Resume(name("\"\""))),
            ("kill \"a; b\"\"\" -- c", Command::Kill(name("a; b\""))),
            ("reconnect\"Quo\"\"te\"", Command::Reconnect(name("Quo\"te"))),
            ("wait_close \"Quo\"\"te\"", Command::WaitClose(name("Quo\"te"))),
            ("disable \"Quo\"\"te\"", Command::Disable("Quo\"te".into())),
            ("lift \"Quo\"\"te\"", Command::Lift("Quo\"te".into())),
            ("wait_close", Command::WaitClose(None)),
            ("reconnect shop", Command::Reconnect(name("shop"))),
            ("kill", Command::Kill(None)),
            ("kill shop", Command::Kill(name("shop"))),
            ("KILL_CLIENT 72057598332895233", Command::KillClient(72_057_598_332_895_233)),
            ("shutdown", Command::Shutdown),
            ("shutdown wait_for_servers", Command::Shutdown),
            ("SUSPEND;", Command::Suspend),
            ("disable Shop", Command::Disable("Shop".into())),
            ("enable \"my shop\"", Command::Enable("my shop".into())),
            ("SET default_pool_size=5;", setting("default_pool_size", "5")),
            ("set Proxy.Pool.Size = 5", setting("proxy.pool.size", "5")),
            ("set query_timeout to '10 s'", setting("query_timeout", "10 s")),
            ("set x = 'it''s'", setting("x", "it's")),
            ("SET client_encoding = 'UTF8'", Command::SetSession),
            ("SET extra_float_digits TO 3", Command::SetSession),
            ("show active_sockets", Command::Show(Show::ActiveSockets)),
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
            ("set pool_size", "expected SET key = value"),
            ("set a b = 1", "expected the name of a setting"),
            ("disable", "which database"),
            ("shutdown wait_for_clients", "clients are not waited for"),
            ("shutdown now", "WAIT_FOR_SERVERS"),
            ("reload now", "one command at a time"),
            ("show pools; show stats", "one command at a time"),
            ("pause \"shop", "no end"),
            ("pause \"shop\"\"", "no end"),
            ("pause \"\"", "empty"),
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
