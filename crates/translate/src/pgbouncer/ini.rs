//! The syntax of PgBouncer's files: sections, keys, connection strings, the list of users. Follows its documentation, and its parser where that is
//! silent.

use std::path::Path;

use crate::options::Read;
use process::Failure;

/// Deepest `%include` in an `%include`.
const DEEPEST: usize = 10;

/// One setting of an ini file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The section, without brackets.
    pub(super) section: String,
    pub(super) key: String,
    pub(super) value: String,
    /// File of the setting.
    pub(super) file: String,
    pub(super) line: usize,
}

impl Entry {
    /// Returns the place of the setting, for a message.
    pub(super) fn at(&self) -> String {
        at(&self.file, self.line)
    }
}

fn at(file: &str, line: usize) -> String {
    format!("{file}, line {line}")
}

/// Reads the settings of a file and of those that it includes, in order.
pub(super) fn read(file: &Path, read: Read<'_>) -> Result<Vec<Entry>, Failure> {
    let mut entries = Vec::new();
    read_file(file, read, DEEPEST, &mut String::new(), &mut entries)?;
    Ok(entries)
}

fn read_file(
    file: &Path,
    read: Read<'_>,
    deepest: usize,
    section: &mut String,
    entries: &mut Vec<Entry>,
) -> Result<(), Failure> {
    let text = read(file)?;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let (file, number) = (file.display().to_string(), number + 1);
        if line.is_empty() || line.starts_with(';') || line.starts_with('#') {
            continue;
        }
        if let Some(path) = line.strip_prefix("%include") {
            let Some(left) = deepest.checked_sub(1) else {
                return Err(Failure::config(format!("{}: too many %include in one another", at(&file, number))));
            };
            read_file(Path::new(path.trim()), read, left, section, entries)?;
        } else if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            *section = name.trim().to_ascii_lowercase();
        } else if let Some((key, value)) = key_and_value(line) {
            entries.push(Entry { section: section.clone(), key, value, file, line: number });
        } else {
            return Err(Failure::config(format!(
                "{}: found {line:?}, expected key = value or [section]",
                at(&file, number)
            )));
        }
    }
    Ok(())
}

/// Parses `key = value`; the key may be in double quotes, a quote inside it doubled.
fn key_and_value(line: &str) -> Option<(String, String)> {
    let (key, rest) = match in_quotes(line) {
        Some((key, rest)) => (key, rest.trim_start().strip_prefix('=')?),
        None => line.split_once('=').map(|(key, rest)| (key.trim().to_owned(), rest))?,
    };
    Some((key, rest.trim().to_owned()))
}

/// Parses the lines `"name" "secret"` of an auth_file, each with "" for a quote; the rest of a line is ignored. Of two lines of one name the last
/// counts.
pub(super) fn users(text: &str) -> Vec<(String, String)> {
    let mut users: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        let Some((name, rest)) = in_quotes(line.trim_start()) else { continue };
        let secret = in_quotes(rest.trim_start()).map(|(secret, _)| secret).unwrap_or_default();
        users.retain(|(other, _)| *other != name);
        users.push((name, secret));
    }
    users
}

/// Returns the text between double quotes at the beginning, and the rest; a quote inside is doubled.
pub(super) fn in_quotes(text: &str) -> Option<(String, &str)> {
    let mut rest = text.strip_prefix('"')?;
    let mut found = String::new();
    loop {
        let end = rest.find('"')?;
        found.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(after) => {
                found.push('"');
                rest = after;
            }
            None => return Some((found, rest)),
        }
    }
}

/// Parses the `key=value` pairs of a connection string; a value may be in single quotes, a quote inside it doubled.
pub(super) fn pairs(text: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut rest = text.trim_start();
    while let Some((key, after)) = rest.split_once('=') {
        let after = after.trim_start();
        let (value, left) = match after.strip_prefix('\'') {
            None => {
                let end = after.find(char::is_whitespace).unwrap_or(after.len());
                (after[..end].to_owned(), &after[end..])
            }
            Some(mut inside) => {
                let mut value = String::new();
                loop {
                    let Some(end) = inside.find('\'') else { break (value + inside, "") };
                    value.push_str(&inside[..end]);
                    inside = &inside[end + 1..];
                    match inside.strip_prefix('\'') {
                        Some(more) => {
                            value.push('\'');
                            inside = more;
                        }
                        None => break (value, inside),
                    }
                }
            }
        };
        pairs.push((key.trim().to_ascii_lowercase(), value));
        rest = left.trim_start();
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_strings() {
        for (text, expected) in [
            ("", vec![]),
            ("host=a port=1", vec![("host", "a"), ("port", "1")]),
            ("  HOST = a", vec![("host", "a")]),
            ("password='a b''c' dbname=x", vec![("password", "a b'c"), ("dbname", "x")]),
            ("password='open", vec![("password", "open")]),
        ] {
            let pairs = pairs(text);
            let pairs: Vec<_> = pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            assert_eq!(pairs, expected, "{text}");
        }
    }

    #[test]
    fn keys_may_be_quoted() {
        for (line, expected) in [
            ("a = b", Some(("a", "b"))),
            ("a=b=c", Some(("a", "b=c"))),
            ("\"odd \"\"name\" = host=x", Some(("odd \"name", "host=x"))),
            ("\"with = sign\"= y", Some(("with = sign", "y"))),
            ("nothing", None),
        ] {
            let found = key_and_value(line);
            assert_eq!(found.as_ref().map(|(key, value)| (key.as_str(), value.as_str())), expected, "{line}");
        }
    }

    #[test]
    fn the_last_line_of_a_user_counts() {
        let text = "\"a\" \"1\"\n;comment\n\"b\" \"s\"\"ecret\" more\n\"a\" \"2\"\n\"c\"\n";
        let users = users(text);
        let users: Vec<_> = users.iter().map(|(name, secret)| (name.as_str(), secret.as_str())).collect();
        assert_eq!(users, [("b", "s\"ecret"), ("a", "2"), ("c", "")]);
    }
}
