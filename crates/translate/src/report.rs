//! Report on the translated settings: those left out, with the reason, and those that can't be carried over. With any of the latter there is no
//! translation.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use super::keys::{Fate, Table};
use super::options::Options;
use super::plan::quoted;
use process::Failure;

/// The report of one translation.
pub(super) struct Report<'a> {
    options: &'a Options,
    table: &'static Table,
    /// Lines of settings, by full name.
    lines: BTreeMap<String, usize>,
    /// Settings that can't be carried over, with the reason.
    problems: Vec<(String, String)>,
    /// Settings that were left out, with the reason.
    left_out: Vec<(String, String)>,
}

/// A setting of the file.
pub(super) struct Found<'f> {
    /// The section in the program's documentation.
    pub(super) section: &'f str,
    pub(super) key: &'f str,
    /// The name in errors and in `--ignore`, such as `databases.shop.connect_query`.
    pub(super) name: &'f str,
    pub(super) value: &'f str,
    /// The line in the setting's file.
    pub(super) line: Option<usize>,
}

impl<'a> Report<'a> {
    pub(super) fn new(options: &'a Options, table: &'static Table) -> Report<'a> {
        Report { options, table, lines: BTreeMap::new(), problems: Vec::new(), left_out: Vec::new() }
    }

    /// True if `--ignore` names this setting: by its full name, `databases.shop.connect_query`, by its last part, or by that of a table above it.
    pub(super) fn ignores(&self, name: &str) -> bool {
        let last = name.rsplit('.').next().unwrap_or(name);
        let above = |ignored: &str| name.strip_prefix(ignored).is_some_and(|rest| rest.starts_with('.'));
        self.options.ignored.iter().any(|ignored| ignored == name || ignored == last || above(ignored))
    }

    /// Records the line of a setting, for errors.
    pub(super) fn stands(&mut self, name: &str, line: Option<usize>) {
        if let Some(line) = line {
            self.lines.insert(name.to_owned(), line);
        }
    }

    /// Records that a setting can't be carried over.
    pub(super) fn problem(&mut self, name: &str, why: impl Into<String>) {
        let why = why.into();
        if self.ignores(name) {
            self.leave(name, format!("left out by --ignore ({why})"));
        } else {
            self.insist(name, why);
        }
    }

    /// As [`Report::problem`], for a setting that `--ignore` can't leave out.
    pub(super) fn insist(&mut self, name: &str, why: impl Into<String>) {
        let why = why.into();
        let key = name.split(" = ").next().unwrap_or(name);
        let why = match self.lines.get(key) {
            Some(line) => format!("{why} (line {line})"),
            None => why,
        };
        self.problems.push((name.to_owned(), why));
    }

    /// Records that a setting, or something else, is left out.
    pub(super) fn leave(&mut self, name: &str, why: impl Into<String>) {
        self.left_out.push((name.to_owned(), why.into()));
    }

    /// Returns true if a setting is to be carried over; otherwise records the reason.
    pub(super) fn judge(&mut self, found: &Found<'_>) -> bool {
        let Found { section, key, name, value, line } = *found;
        self.stands(name, line);
        let known = self.table.find(section, key);
        // Whether an unknown key holds a secret is unknown, too.
        let shown =
            if is_secret(key) || (known.is_none() && value.contains(char::is_whitespace)) { "…" } else { value };
        let what = format!("{name} = {shown}");
        if self.ignores(name) {
            let why = match known.map(|known| known.fate) {
                Some(Fate::Carried(to)) => format!("left out by --ignore ({to} would have been made of it)"),
                _ => "left out by --ignore".into(),
            };
            self.leave(&what, why);
            return false;
        }
        let Some(known) = known else {
            self.insist(&what, format!("{} has no such key in [{section}]", self.table.program));
            return false;
        };
        match known.fate {
            Fate::Carried(_) => true,
            Fate::Needless => {
                self.leave(&what, known.note);
                false
            }
            Fate::Refused(harmless) if harmless.iter().any(|harmless| means_the_same(harmless, value)) => {
                self.leave(&what, "is so in Kingpost anyway");
                false
            }
            Fate::Refused(_) => {
                self.insist(&what, known.note);
                false
            }
        }
    }

    /// True if `--database` names any.
    pub(super) fn chooses(&self) -> bool {
        !self.options.databases.is_empty()
    }

    /// Keeps the databases that `--database` names, all of which must exist.
    pub(super) fn chosen<T>(&mut self, databases: &mut Vec<T>, section: &str, name_of: impl Fn(&T) -> &String) {
        let wanted = &self.options.databases;
        if wanted.is_empty() {
            return;
        }
        for wanted in wanted {
            if !databases.iter().any(|database| name_of(database) == wanted) {
                self.insist(&format!("{section}.{wanted}"), "--database names it, and it is not there");
            }
        }
        databases.retain(|database| wanted.contains(name_of(database)));
    }

    /// Returns a whole number in these bounds, as TOML.
    pub(super) fn number(&mut self, name: &str, value: &str, bounds: RangeInclusive<i64>) -> Option<String> {
        match value.parse::<i64>() {
            Ok(number) if bounds.contains(&number) => Some(number.to_string()),
            _ => {
                let (least, most) = (bounds.start(), bounds.end());
                self.problem(name, format!("found {value:?}, expected a number from {least} to {most}"));
                None
            }
        }
    }

    /// As [`Report::number`]; for 0, which means no limit, None.
    pub(super) fn limit(&mut self, name: &str, value: &str, most: i64) -> Option<String> {
        if value == "0" { None } else { self.number(name, value, 1..=most) }
    }

    /// Returns seconds, perhaps with a fraction, as TOML. `never`: 0, which means never, is allowed.
    pub(super) fn seconds(&mut self, name: &str, value: &str, never: bool) -> Option<String> {
        let seconds = value.parse::<f64>().ok().filter(|seconds| seconds.is_finite() && (0.0..1e9).contains(seconds));
        match seconds {
            None => {
                self.problem(name, format!("found {value:?}, expected seconds"));
                None
            }
            Some(seconds) => self.time(name, Duration::from_millis((seconds * 1000.0).round() as u64), never),
        }
    }

    /// Returns milliseconds, as TOML. `never`: as with [`Report::seconds`].
    pub(super) fn milliseconds(&mut self, name: &str, value: &str, never: bool) -> Option<String> {
        match value.parse::<u64>().ok().filter(|time| *time < 1_000_000_000_000) {
            None => {
                self.problem(name, format!("found {value:?}, expected milliseconds"));
                None
            }
            Some(time) => self.time(name, Duration::from_millis(time), never),
        }
    }

    /// Returns a time, as TOML. `never`: as with [`Report::seconds`].
    pub(super) fn time(&mut self, name: &str, time: Duration, never: bool) -> Option<String> {
        if time.is_zero() && !never {
            self.problem(name, "found 0, which means for ever: Kingpost needs a limit here");
            return None;
        }
        Some(quoted(&humantime::format_duration(time).to_string()))
    }

    /// Returns one of `session`, `transaction` and `statement`, as TOML.
    pub(super) fn mode(&mut self, name: &str, value: &str) -> Option<String> {
        if ["transaction", "statement", "session"].contains(&value) {
            return Some(quoted(value));
        }
        self.problem(name, format!("found {value:?}, expected session, transaction or statement"));
        None
    }

    /// Returns the settings left out; or fails with those that can't be carried over. `page`: the guide's page with every key.
    pub(super) fn finish(self, source: &Path, page: &str) -> Result<Vec<(String, String)>, Failure> {
        let problems = self.problems;
        if problems.is_empty() || self.options.ignore_all {
            return Ok(self.left_out);
        }
        let count = if problems.len() == 1 { "1 setting".to_owned() } else { format!("{} settings", problems.len()) };
        let lines: Vec<String> = problems.iter().map(|(what, why)| format!("  {what}: {why}")).collect();
        let source = source.display();
        let what = format!("{source}: {count} can't be carried over; nothing is written\n{}", lines.join("\n"));
        Err(Failure::config(what).advise(format!(
            "change them there, or leave a setting out with --ignore KEY; the guide ({page}) has every key"
        )))
    }
}

/// True if a key's value must not be shown.
fn is_secret(key: &str) -> bool {
    ["password", "passwd", "secret", "hash", "authkey", "api_key", "headers", "token", "vault"]
        .iter()
        .any(|part| key.contains(part))
        && !key.contains("tokens")
}

/// True for two words of one value, such as `off` and `false`.
fn means_the_same(one: &str, other: &str) -> bool {
    one == other || boolean(one).is_some_and(|one| boolean(other) == Some(one))
}

/// Parses a boolean, in the words of PostgreSQL's configuration and of TOML.
pub(super) fn boolean(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "on" | "true" | "yes" | "tru" | "tr" | "t" | "ye" | "y" => Some(true),
        "off" | "false" | "no" | "of" | "fals" | "fal" | "fa" | "f" | "n" => Some(false),
        _ => None,
    }
}
