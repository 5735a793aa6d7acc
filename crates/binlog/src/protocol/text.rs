//! The few statements that replicas send to their source, matched without a parser: a replica's text is always the same.

/// A statement of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement {
    /// `SET @name = value`, one or more; values as texts, without quotes.
    Set(Vec<(String, String)>),
    /// `SET name = value`, one system variable of the session.
    SetSystem(String, String),
    /// `SET NAMES name`: sent by a replica of MariaDB when it reconnects.
    Names,
    /// `KILL id`: by which a semi-synchronous replica ends its own connection.
    Kill(u32),
    /// `SELECT @@name, …`: names without `global.`, and as written, for the columns.
    Variables(Vec<(String, String)>),
    /// `SELECT @name`.
    UserVariable(String),
    /// `SHOW [GLOBAL] VARIABLES LIKE 'name'`.
    Show(String),
    /// `SELECT UNIX_TIMESTAMP()`.
    Timestamp,
    /// `SELECT VERSION()`.
    Version,
    /// Any other statement.
    Other,
}

/// Length limit of a parsed statement.
const LONGEST: usize = 64 << 10;

fn unquoted(value: &str) -> String {
    let value = value.trim();
    for quote in ['\'', '"'] {
        if let Some(inner) = value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return inner.into();
        }
    }
    value.into()
}

fn strip<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let head = text.get(..word.len())?;
    head.eq_ignore_ascii_case(word).then(|| text[word.len()..].trim_start())
}

/// Splits at commas outside of quotes.
fn parts(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut quote) = (Vec::new(), 0, None);
    for (at, character) in text.char_indices() {
        match (character, quote) {
            ('\'' | '"', None) => quote = Some(character),
            (end, Some(begin)) if end == begin => quote = None,
            (',', None) => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn variable(text: &str) -> Option<(String, String)> {
    let text = text.trim();
    let name = text.strip_prefix("@@")?;
    let name = ["global.", "session."].iter().find_map(|scope| strip(name, scope)).unwrap_or(name);
    let known = |character: char| character.is_ascii_alphanumeric() || character == '_';
    (!name.is_empty() && name.chars().all(known)).then(|| (name.to_ascii_lowercase(), text.into()))
}

impl Statement {
    /// Parses a statement.
    #[must_use]
    pub fn parse(text: &str) -> Statement {
        let text = text.trim().trim_end_matches(';').trim();
        if text.len() > LONGEST {
            return Statement::Other;
        }
        let read = || -> Option<Statement> {
            if let Some(rest) = strip(text, "SET ") {
                if let Some(name) = strip(rest, "NAMES ") {
                    let known = |character: char| character.is_ascii_alphanumeric() || character == '_';
                    return unquoted(name).chars().all(known).then_some(Statement::Names);
                }
                let assignment = |part: &str| {
                    let (name, value) = part.split_once('=')?;
                    let name = name.trim().trim_end_matches(':').trim().strip_prefix('@')?;
                    (!name.starts_with('@')).then(|| (name.to_ascii_lowercase(), unquoted(value)))
                };
                let user = parts(rest).into_iter().map(assignment).collect::<Option<_>>().map(Statement::Set);
                return user.or_else(|| {
                    let (name, value) = rest.split_once('=')?;
                    let name = name.trim().trim_end_matches(':').trim();
                    let name = strip(name, "SESSION ").or_else(|| strip(name, "@@session.")).unwrap_or(name);
                    let name = name.strip_prefix("@@").unwrap_or(name);
                    let known = |character: char| character.is_ascii_alphanumeric() || character == '_';
                    let one = !name.is_empty() && name.chars().all(known) && parts(value).len() == 1;
                    one.then(|| Statement::SetSystem(name.to_ascii_lowercase(), unquoted(value)))
                });
            }
            if let Some(rest) = strip(text, "SELECT ") {
                if rest.eq_ignore_ascii_case("UNIX_TIMESTAMP()") {
                    return Some(Statement::Timestamp);
                }
                if rest.eq_ignore_ascii_case("VERSION()") {
                    return Some(Statement::Version);
                }
                if let Some(name) = rest.strip_prefix('@').filter(|name| !name.starts_with('@')) {
                    return Some(Statement::UserVariable(name.to_ascii_lowercase()));
                }
                return parts(rest).into_iter().map(variable).collect::<Option<_>>().map(Statement::Variables);
            }
            if let Some(id) = strip(text, "KILL ") {
                return id.parse().ok().map(Statement::Kill);
            }
            let rest = strip(text, "SHOW ")?;
            let rest = strip(rest, "GLOBAL ").unwrap_or(rest);
            let rest = strip(rest, "VARIABLES ")?;
            Some(Statement::Show(unquoted(strip(rest, "LIKE ")?).to_ascii_lowercase()))
        };
        read().unwrap_or(Statement::Other)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_replica_sends() {
        let set = |name: &str, value: &str| Statement::Set(vec![(name.into(), value.into())]);
        for (text, expected) in [
            ("SELECT UNIX_TIMESTAMP()", Statement::Timestamp),
            ("SHOW VARIABLES LIKE 'SERVER_ID'", Statement::Show("server_id".into())),
            (
                "SHOW GLOBAL VARIABLES LIKE 'rpl_semi_sync_master_enabled';",
                Statement::Show("rpl_semi_sync_master_enabled".into()),
            ),
            ("SET @master_heartbeat_period= 30000001024", set("master_heartbeat_period", "30000001024")),
            (
                "SET @master_binlog_checksum= @@global.binlog_checksum",
                set("master_binlog_checksum", "@@global.binlog_checksum"),
            ),
            ("SELECT @master_binlog_checksum", Statement::UserVariable("master_binlog_checksum".into())),
            (
                "SELECT @@GLOBAL.gtid_domain_id",
                Statement::Variables(vec![("gtid_domain_id".into(), "@@GLOBAL.gtid_domain_id".into())]),
            ),
            ("SET @slave_connect_state='0-1-15,1-1-2'", set("slave_connect_state", "0-1-15,1-1-2")),
            ("SET @a = 1, @b='x,y'", Statement::Set(vec![("a".into(), "1".into()), ("b".into(), "x,y".into())])),
            ("SET NAMES utf8mb3", Statement::Names),
            ("SET NAMES 'latin1'", Statement::Names),
            ("SET NAMES a, @b = 1", Statement::Other),
            ("SET skip_replication=1", Statement::SetSystem("skip_replication".into(), "1".into())),
            ("SET @@session.skip_replication = 1", Statement::SetSystem("skip_replication".into(), "1".into())),
            ("SET a = 1, b = 2", Statement::Other),
            ("KILL 17", Statement::Kill(17)),
            ("KILL QUERY 17", Statement::Other),
            ("SET @@global.read_only=1", Statement::Other),
            ("SELECT 1", Statement::Other),
            ("DROP TABLE t", Statement::Other),
            ("", Statement::Other),
        ] {
            assert_eq!(Statement::parse(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_a_panic(text in "(SET |SELECT |KILL |SHOW VARIABLES LIKE |)[@'\",= a-zé]{0,40}") {
            let _ = Statement::parse(&text);
        }
    }
}
