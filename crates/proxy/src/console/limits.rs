//! `LIMIT`, `BLOCK` and `SHOW TRAFFIC`: traffic rules in the syntax and the tables of operators.

use std::time::Duration;

use sql::Access;

use super::command::time;
use super::table::ColumnType::{Number, Text};
use super::table::Table;
use crate::traffic::{self, Given, Rule, RuleReport};

/// Minimum and maximum duration of a rule.
pub(super) const FOR: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30 * 24 * 3600));

/// Duration of a rule; `None` for a rule without an end.
pub(super) type Ending = Option<Duration>;

/// Parses the text after `LIMIT` (or `BLOCK`, with `block`): a name, the matching statements, the limits, and the duration.
pub(super) fn parse(block: bool, mut words: impl Iterator<Item = String>) -> Result<(Rule, Ending), String> {
    let verb = if block { "BLOCK" } else { "LIMIT" };
    let name = words.next().ok_or_else(|| format!("{verb} by which name? SHOW HELP has an example"))?;
    let mut given = Given { name, block, ..Given::default() };
    let mut ending = None;
    while let Some(word) = words.next() {
        let key = word.to_ascii_uppercase();
        let mut value = || words.next().ok_or_else(|| format!("{key} has no value: SHOW HELP has the form"));
        let number = |text: String| text.parse().map_err(|_| format!("{key} {text}: expected a number"));
        match key.as_str() {
            "USER" => given.user = Some(value()?),
            "DATABASE" => given.database = Some(value()?),
            "STATEMENT" => given.statement = Some(value()?),
            "READS" => given.access = Some(Access::Read),
            "WRITES" => given.access = Some(Access::Write),
            "RATE" => given.rate = Some(value()?),
            "BURST" => given.burst = Some(number(value()?)?),
            "CONCURRENCY" => given.concurrency = Some(number(value()?)?),
            "EACH" => match value()?.to_ascii_uppercase().as_str() {
                "USER" => given.each_user = true,
                "DATABASE" => given.each_database = true,
                other => return Err(format!("EACH {other}: expected EACH USER or EACH DATABASE")),
            },
            "DRY" => match value()?.to_ascii_uppercase().as_str() {
                "RUN" => given.dry_run = true,
                other => return Err(format!("DRY {other}: expected DRY RUN")),
            },
            "FOR" => ending = Some(length(&value()?)?),
            _ => return Err(format!("unexpected {word:?} after {verb}: SHOW HELP has the form")),
        }
    }
    Ok((given.check().map_err(|error| format!("{verb}: {error}"))?, ending))
}

/// Parses the duration of a rule.
fn length(text: &str) -> Result<Duration, String> {
    time(text, FOR).ok_or_else(|| format!("FOR {text:?}: expected a time from 1s to 30days, such as 10min"))
}

/// `SHOW TRAFFIC`.
pub(super) fn table(rules: Vec<RuleReport>) -> Table {
    let mut table = Table::new(&[
        ("name", Text),
        ("set_by", Text),
        ("user", Text),
        ("database", Text),
        ("statement", Text),
        ("access", Text),
        ("each", Text),
        ("limits", Text),
        ("dry_run", Number),
        ("running", Number),
        ("passed", Number),
        ("refused", Number),
        ("ends_in", Number),
    ]);
    for RuleReport { rule, live, left, running, passed, refused } in rules {
        let whose = rule.whose;
        let access = whose.access.map(|access| match access {
            Access::Read => "reads",
            Access::Write => "writes",
        });
        let each = match (whose.each_user, whose.each_database) {
            (false, false) => None,
            (true, false) => Some("user"),
            (false, true) => Some("database"),
            (true, true) => Some("user, database"),
        };
        table.row(vec![
            rule.name.into(),
            if live { "operator" } else { "file" }.into(),
            whose.user.into(),
            whose.database.into(),
            whose.statement.map(traffic::digits).into(),
            access.into(),
            each.into(),
            rule.limits.to_string().into(),
            u64::from(rule.dry_run).into(),
            running.into(),
            passed.into(),
            refused.into(),
            left.map(|left| left.as_secs()).into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn read(block: bool, text: &str) -> Result<(Rule, Ending), String> {
        parse(block, text.split('|').map(str::to_owned))
    }

    #[test]
    fn reads() {
        let (rule, ending) = read(false, "r|user|ann|DATABASE|a|Rate|100/s|burst|5|concurrency|3|for|2min").unwrap();
        assert_eq!((rule.whose.user.as_deref(), rule.whose.database.as_deref()), (Some("ann"), Some("a")));
        assert_eq!(rule.limits.to_string(), "100/s burst 5, 3 at a time");
        assert_eq!(ending, Some(Duration::from_secs(120)));
        let (rule, ending) = read(true, "r|STATEMENT|select 1|READS|EACH|user|DRY|run").unwrap();
        assert_eq!((rule.whose.statement, ending), (sql::fingerprint(b"select $1"), None));
        assert!(rule.limits.block && rule.whose.each_user && rule.dry_run && rule.whose.access == Some(Access::Read));
    }

    #[test]
    fn refuses() {
        for (block, text, why) in [
            (false, "r", "limits nothing"),
            (false, "r|USER", "USER has no value"),
            (false, "r|RATE|x", "found the rate"),
            (false, "r|RATE|1|BURST|x", "expected a number"),
            (false, "r|CONCURRENCY|-1", "expected a number"),
            (false, "r|EACH|client|RATE|1", "EACH USER or EACH DATABASE"),
            (false, "r|RATE|1|FOR|1ms", "expected a time"),
            (false, "r|RATE|1|FOR|99years", "expected a time"),
            (false, "r|RATE|1|what", "unexpected \"what\" after LIMIT"),
            (true, "r|RATE|1", "what is blocked needs no limit"),
            (true, "r|STATEMENT|selec", "found the statement"),
        ] {
            let error = read(block, text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(parse(false, std::iter::empty()).is_err());
    }
}
