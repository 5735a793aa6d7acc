//! Rules: the matching statements, and their limits.

use std::fmt;

use sql::{Access, Class, Control, Flags};

use super::limiter::Rate;

/// A rule, from the configuration or from an operator. Checked: it has a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Name of the rule, by which operators change it.
    pub name: String,
    /// The matching statements.
    pub whose: Whose,
    /// The limits.
    pub limits: Limits,
    /// True if the rule only counts, and refuses no statements.
    pub dry_run: bool,
}

/// Filter of a rule: a statement matches if all given conditions apply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Whose {
    /// The clients' user.
    pub user: Option<String>,
    /// The database, by the name that clients use.
    pub database: Option<String>,
    /// The statement's fingerprint: `sql::fingerprint`.
    pub statement: Option<u64>,
    /// Reads or writes; both if not given.
    pub access: Option<Access>,
    /// True if each user has limits of its own; otherwise all share them.
    pub each_user: bool,
    /// True if each database has limits of its own.
    pub each_database: bool,
}

/// Limits of a rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// True if no statement may run.
    pub block: bool,
    /// Maximum number of clients that run a statement at the same time.
    pub concurrency: Option<u32>,
    /// Rate of statements.
    pub rate: Option<Rate>,
}

/// Error in a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The name is not valid.
    #[error("found the name {0:?}, expected up to {MOST_NAME} letters, digits, `_`, `-` or `.`")]
    Name(String),
    /// The rule has no limit.
    #[error("limits nothing: expected a rate, a concurrency or block")]
    LimitsNothing,
    /// The rule blocks, and has limits as well.
    #[error("found block beside a rate or a concurrency: what is blocked needs no limit")]
    BlocksAndLimits,
    /// The rate is not valid.
    #[error("found the rate {0:?}, expected one such as 100/s, 30/min or 500/h, at most 1000000/s")]
    Rate(String),
    /// The burst is not valid, or without a rate.
    #[error("found the burst {0}, expected 1 to 1000000, beside a rate")]
    Burst(u32),
    /// The concurrency is 0.
    #[error("found the concurrency 0, expected at least 1: what is not to run at all is blocked")]
    Concurrency,
    /// The statement is neither a fingerprint nor SQL.
    #[error(
        "found the statement {0:?}, expected a fingerprint of 16 digits as SHOW STATEMENTS has it, or the text of such a statement"
    )]
    Statement(String),
    /// The user or the database is empty.
    #[error("found an empty {0}, expected a name")]
    Empty(&'static str),
}

/// Maximum length of a rule's name, in bytes.
const MOST_NAME: usize = 63;

/// Unchecked fields of a rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given {
    /// Value of [`Rule::name`].
    pub name: String,
    /// Value of [`Whose::user`].
    pub user: Option<String>,
    /// Value of [`Whose::database`].
    pub database: Option<String>,
    /// A fingerprint of 16 hexadecimal digits, or a statement with it.
    pub statement: Option<String>,
    /// Value of [`Whose::access`].
    pub access: Option<Access>,
    /// Value of [`Whose::each_user`].
    pub each_user: bool,
    /// Value of [`Whose::each_database`].
    pub each_database: bool,
    /// Number of statements per time: [`Rate::parse`].
    pub rate: Option<String>,
    /// Number of statements at once; by default those of one second.
    pub burst: Option<u32>,
    /// Value of [`Limits::concurrency`].
    pub concurrency: Option<u32>,
    /// Value of [`Limits::block`].
    pub block: bool,
    /// Value of [`Rule::dry_run`].
    pub dry_run: bool,
}

impl Given {
    /// Checks the fields.
    ///
    /// # Errors
    /// The invalid field.
    pub fn check(self) -> Result<Rule, RuleError> {
        let named = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
        if self.name.is_empty() || self.name.len() > MOST_NAME || !self.name.bytes().all(named) {
            return Err(RuleError::Name(self.name));
        }
        for (what, given) in [("user", &self.user), ("database", &self.database)] {
            if given.as_deref() == Some("") {
                return Err(RuleError::Empty(what));
            }
        }
        let rate = match (self.rate, self.burst) {
            (None, None) => None,
            (None, Some(burst)) => return Err(RuleError::Burst(burst)),
            (Some(text), burst) => {
                let usual = Rate::parse(&text, None).ok_or(RuleError::Rate(text.clone()))?;
                let burst = burst.unwrap_or(usual.burst());
                Some(Rate::parse(&text, Some(burst)).ok_or(RuleError::Burst(burst))?)
            }
        };
        if self.concurrency == Some(0) {
            return Err(RuleError::Concurrency);
        }
        let limits = Limits { block: self.block, concurrency: self.concurrency, rate };
        match (limits.block, limits.concurrency.is_some() || limits.rate.is_some()) {
            (false, false) => return Err(RuleError::LimitsNothing),
            (true, true) => return Err(RuleError::BlocksAndLimits),
            _ => {}
        }
        let statement = self.statement.map(|text| fingerprint(&text).ok_or(RuleError::Statement(text))).transpose()?;
        let whose = Whose {
            user: self.user,
            database: self.database,
            statement,
            access: self.access,
            each_user: self.each_user,
            each_database: self.each_database,
        };
        Ok(Rule { name: self.name, whose, limits, dry_run: self.dry_run })
    }
}

/// Formats a fingerprint for tables and rules.
pub(crate) fn digits(fingerprint: u64) -> String {
    format!("{fingerprint:016x}")
}

/// Parses a fingerprint, or computes that of a statement.
fn fingerprint(text: &str) -> Option<u64> {
    let digits = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if digits { u64::from_str_radix(text, 16).ok() } else { sql::fingerprint(text.as_bytes()) }
}

/// Facts about a statement that rules depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StatementFacts {
    pub(crate) access: Access,
    /// The fingerprint; `None` if the statement has none, or no rule needs it.
    pub(crate) fingerprint: Option<u64>,
}

/// True if rules apply to statements of this class. Ends of transactions, and statements that only reset or set up a session, are never refused: a
/// client whose `ROLLBACK` or `RESET` is refused cannot continue in any useful way.
pub(crate) fn is_governed(class: Class) -> bool {
    let one = !class.flags.has(Flags::MULTI);
    let of_transaction = class.control != Control::None
        || class.flags.has(Flags::SAVEPOINT)
        || (class.flags.has(Flags::TRANSACTION) && !class.flags.has(Flags::UNKNOWN));
    let of_session = class.local || class.flags.has(Flags::SESSION) || class.flags.has(Flags::EMPTY);
    !(of_session || (one && (of_transaction || class.flags.has(Flags::DROPS_STATEMENTS))))
}

impl Whose {
    /// True if the rule may match statements of clients of this database and user.
    pub(super) fn is_about(&self, database: &str, user: &str) -> bool {
        self.user.as_deref().is_none_or(|own| own == user) && self.database.as_deref().is_none_or(|own| own == database)
    }

    /// True if the rule matches this statement of such a client.
    pub(super) fn is_about_statement(&self, facts: StatementFacts) -> bool {
        self.access.is_none_or(|access| access == facts.access)
            && self.statement.is_none_or(|statement| Some(statement) == facts.fingerprint)
    }
}

impl fmt::Display for Limits {
    /// Formats the limits for a table: `100/s burst 20, 8 at a time`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.block {
            return f.write_str("blocked");
        }
        if let Some(rate) = self.rate {
            write!(f, "{rate} burst {}", rate.burst())?;
        }
        if let Some(most) = self.concurrency {
            let before = if self.rate.is_some() { ", " } else { "" };
            write!(f, "{before}{most} at a time")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn given() -> Given {
        Given { name: "r".into(), rate: Some("10/s".into()), ..Given::default() }
    }

    #[test]
    fn what_is_a_rule() {
        let text = "select * from orders where id = 7";
        let rule = Given { statement: Some(text.into()), each_user: true, ..given() }.check().unwrap();
        assert_eq!(rule.whose.statement, sql::fingerprint(b"SELECT * FROM orders WHERE id = $1"));
        assert_eq!(rule.limits.rate, Rate::new(10.0, 10));
        let digits = format!("{:016x}", rule.whose.statement.unwrap());
        assert_eq!(Given { statement: Some(digits), each_user: true, ..given() }.check(), Ok(rule));
    }

    #[test]
    fn a_rule_is_the_same_once_it_was_written_and_read_again() {
        let slowest = 1e9 / Rate::LIMITS.0;
        let mut rates: Vec<Rate> =
            ["7/h", "0.3601/h", "30/min", "333333.3/s", "999999/s", "1000000/s", "2.5/s", "0.0001"]
                .iter()
                .map(|text| Rate::parse(text, None).unwrap())
                .collect();
        let others = (1..2_000u32).filter_map(|n| Rate::new(1e9 / (slowest / f64::from(n * n * 3)), n));
        rates.extend(others);
        assert!(rates.len() > 1_500);
        for rate in rates {
            let limits = Limits { rate: Some(rate), ..Limits::default() };
            let rule = Rule { limits, ..given().check().unwrap() };
            let written = crate::config::TrafficConfig::of(&rule);
            assert_eq!(written.rule(), Ok(rule), "{written:?}");
        }
        for given in [
            Given { rate: None, block: true, dry_run: true, ..given() },
            Given { concurrency: Some(3), each_user: true, access: Some(Access::Write), ..given() },
            Given { user: Some("ann".into()), database: Some("a".into()), each_database: true, ..given() },
            Given { statement: Some("select 1".into()), access: Some(Access::Read), burst: Some(9), ..given() },
        ] {
            let rule = given.check().unwrap();
            assert_eq!(crate::config::TrafficConfig::of(&rule).rule(), Ok(rule));
        }
    }

    #[test]
    fn what_is_none() {
        let nothing = Given { rate: None, ..given() };
        for (given, expected) in [
            (Given { name: String::new(), ..given() }, RuleError::Name(String::new())),
            (Given { name: "a b".into(), ..given() }, RuleError::Name("a b".into())),
            (Given { name: "x".repeat(64), ..given() }, RuleError::Name("x".repeat(64))),
            (nothing.clone(), RuleError::LimitsNothing),
            (Given { block: true, ..given() }, RuleError::BlocksAndLimits),
            (Given { rate: Some("0/s".into()), ..given() }, RuleError::Rate("0/s".into())),
            (Given { burst: Some(0), ..given() }, RuleError::Burst(0)),
            (Given { burst: Some(3), ..nothing.clone() }, RuleError::Burst(3)),
            (Given { concurrency: Some(0), ..nothing }, RuleError::Concurrency),
            (Given { statement: Some("selec".into()), ..given() }, RuleError::Statement("selec".into())),
            (Given { user: Some(String::new()), ..given() }, RuleError::Empty("user")),
        ] {
            assert_eq!(given.clone().check(), Err(expected), "{given:?}");
        }
    }

    #[test]
    fn what_is_governed() {
        let mut classifier = sql::Classifier::new(sql::ClassifierConfig {
            max_entries: 100,
            max_text: 10_000,
            max_bytes: 1 << 20,
            read_functions: Vec::new(),
        });
        for (text, expected) in [
            ("select 1", true),
            ("insert into t values (1)", true),
            ("copy t from stdin", true),
            ("call p()", true),
            ("do $$ begin end $$", true),
            ("execute q(1)", true),
            ("fetch 10 from c", true),
            ("lock table t", true),
            ("begin; delete from t; commit", true),
            ("drop table t", true),
            ("not sql at all", true),
            ("begin", false),
            ("commit", false),
            ("commit and chain", false),
            ("rollback", false),
            ("rollback to savepoint s", false),
            ("savepoint s", false),
            ("set work_mem = '1MB'", false),
            ("reset all", false),
            ("show work_mem", false),
            ("discard all", false),
            ("deallocate all", false),
            ("listen c", false),
            ("unlisten *", false),
            ("set kingpost.route = 'primary'", false),
            ("", false),
        ] {
            assert_eq!(is_governed(classifier.classify(text.as_bytes())), expected, "{text}");
        }
    }

    #[test]
    fn whose_statements() {
        let read = StatementFacts { access: Access::Read, fingerprint: Some(7) };
        let write = StatementFacts { access: Access::Write, fingerprint: None };
        let whose = Whose { user: Some("ann".into()), access: Some(Access::Read), ..Whose::default() };
        assert!(whose.is_about("a", "ann") && whose.is_about("b", "ann") && !whose.is_about("a", "bob"));
        assert!(whose.is_about_statement(read) && !whose.is_about_statement(write));
        let whose = Whose { database: Some("a".into()), statement: Some(7), ..Whose::default() };
        assert!(whose.is_about("a", "ann") && !whose.is_about("b", "ann"));
        assert!(whose.is_about_statement(read) && !whose.is_about_statement(write));
        assert!(!whose.is_about_statement(StatementFacts { fingerprint: Some(8), ..read }));
    }
}
