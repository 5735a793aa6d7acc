//! The syntax of pgpool.conf, which is that of PostgreSQL's configuration: `key = value` on a line, comments, strings in quotation marks, times with
//! units.

use std::path::Path;
use std::time::Duration;

use crate::options::Read;
use process::Failure;

/// Deepest `include` in an `include`.
const DEEPEST: usize = 10;
/// Most settings of all files.
const MOST: usize = 10_000;

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) line: usize,
}

/// Reads the settings of a file and of those that it includes, in order.
pub(super) fn read(file: &Path, read: Read<'_>) -> Result<Vec<Entry>, Failure> {
    let mut entries = Vec::new();
    read_file(file, read, DEEPEST, &mut entries)?;
    Ok(entries)
}

fn read_file(file: &Path, read: Read<'_>, deepest: usize, entries: &mut Vec<Entry>) -> Result<(), Failure> {
    for (at, line) in read(file)?.lines().enumerate() {
        let line_number = at + 1;
        // The line may hold a password: it is not shown.
        let wrong = |why: &str| Failure::config(format!("{}, line {line_number}: {why}", file.display()));
        let Some((key, value)) = setting(line).map_err(wrong)? else { continue };
        if key == "include" {
            let deepest = deepest.checked_sub(1).ok_or_else(|| wrong("too many include in one another"))?;
            // A relative path starts at the file's directory.
            let path = file.parent().unwrap_or(Path::new("")).join(&value);
            read_file(&path, read, deepest, entries)?;
        } else if entries.len() >= MOST {
            return Err(wrong(&format!("found more than {MOST} settings")));
        } else {
            entries.push(Entry { key, value, line: line_number });
        }
    }
    Ok(())
}

/// Parses the setting of a line, if there is one.
fn setting(line: &str) -> Result<Option<(String, String)>, &'static str> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(line.len());
    let (key, rest) = line.split_at(end);
    if !key.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        return Err("expected key = value");
    }
    let rest = rest.trim_start();
    let rest = rest.strip_prefix('=').unwrap_or(rest).trim_start();
    let (value, rest) = match rest.strip_prefix('\'') {
        Some(inside) => in_quotes(inside).ok_or("expected a quotation mark at the end of the value")?,
        None => {
            let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '+' | '.' | ':' | '/');
            let end = rest.find(|c: char| !plain(c)).unwrap_or(rest.len());
            (rest[..end].to_owned(), &rest[end..])
        }
    };
    let rest = rest.trim_start();
    if value.is_empty() && !line.contains('\'') {
        return Err("expected a value behind the key");
    }
    if !(rest.is_empty() || rest.starts_with('#')) {
        return Err("expected nothing but a comment behind the value");
    }
    Ok(Some((key.to_owned(), value)))
}

/// Returns the text before the closing quotation mark, and the rest. A backslash escapes the next character, and stays, as in pgpool.
fn in_quotes(text: &str) -> Option<(String, &str)> {
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '\\' => {
                characters.next();
            }
            '\'' => return Some((text[..at].to_owned(), &text[at + 1..])),
            _ => {}
        }
    }
    None
}

/// Splits a list at commas.
pub(super) fn list(value: &str) -> Vec<&str> {
    value.split(',').map(str::trim).filter(|item| !item.is_empty()).collect()
}

/// Parses a time: a number, and perhaps a unit; `unit` is that of a number alone.
pub(super) fn time(value: &str, unit: &str) -> Option<Duration> {
    let value = value.trim();
    let end = value.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(value.len());
    let (number, found) = value.split_at(end);
    let unit = match found.trim() {
        "" => unit,
        found => found,
    };
    let milliseconds = match unit {
        "us" => 0.001,
        "ms" => 1.0,
        "s" => 1_000.0,
        "min" => 60_000.0,
        "h" => 3_600_000.0,
        "d" => 86_400_000.0,
        _ => return None,
    };
    let time = number.parse::<f64>().ok()? * milliseconds;
    (time.is_finite() && (0.0..1e12).contains(&time)).then(|| Duration::from_millis(time.round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        for (line, expected) in [
            ("", Ok(None)),
            ("  # comment", Ok(None)),
            ("port = 9999", Ok(Some(("port", "9999")))),
            ("port 9999 # comment", Ok(Some(("port", "9999")))),
            ("port=9999#comment", Ok(Some(("port", "9999")))),
            ("listen_addresses = 'a, b'   # all", Ok(Some(("listen_addresses", "a, b")))),
            ("empty = ''", Ok(Some(("empty", "")))),
            ("hash = 'a # b'", Ok(Some(("hash", "a # b")))),
            (r"pattern = 'LIKE \'%a%\''", Ok(Some(("pattern", r"LIKE \'%a%\'")))),
            ("mode = streaming_replication", Ok(Some(("mode", "streaming_replication")))),
            ("unix_socket_permissions = 0777", Ok(Some(("unix_socket_permissions", "0777")))),
            ("open = 'a", Err("expected a quotation mark at the end of the value")),
            ("port =", Err("expected a value behind the key")),
            ("port", Err("expected a value behind the key")),
            ("= 1", Err("expected key = value")),
            ("1a = 1", Err("expected key = value")),
            ("a = 1 b = 2", Err("expected nothing but a comment behind the value")),
            ("a = *", Err("expected a value behind the key")),
        ] {
            let found = setting(line);
            let found = found.as_ref().map(|found| found.as_ref().map(|(key, value)| (key.as_str(), value.as_str())));
            assert_eq!(found, expected.as_ref().map(|found| *found), "{line}");
        }
    }

    #[test]
    fn times() {
        for (value, unit, expected) in [
            ("30", "s", Some(30_000)),
            ("30", "ms", Some(30)),
            ("30s", "ms", Some(30_000)),
            ("5min", "s", Some(300_000)),
            ("2 h", "s", Some(7_200_000)),
            ("1d", "s", Some(86_400_000)),
            ("1500us", "s", Some(2)),
            ("1.5s", "ms", Some(1_500)),
            ("0", "s", Some(0)),
            ("-1", "s", None),
            ("1 week", "s", None),
            ("99999999999d", "s", None),
            ("", "s", None),
        ] {
            assert_eq!(time(value, unit), expected.map(Duration::from_millis), "{value} {unit}");
        }
    }

    #[test]
    fn includes_are_followed_to_an_end() {
        let read_from = |path: &Path| match path.to_str() {
            Some("/etc/a.conf") => Ok("port = 1\ninclude = 'b/c.conf'\nport = 2".to_owned()),
            Some("/etc/b/c.conf") => Ok("max_pool = 3\n".to_owned()),
            Some("/etc/again.conf") => Ok("include 'again.conf'".to_owned()),
            Some("/etc/wrong.conf") => Ok("ok = 1\nsr_check_password = 'hidden".to_owned()),
            _ => Err(Failure::environment("no such file")),
        };
        let found = read(Path::new("/etc/a.conf"), &read_from).expect("settings");
        let found: Vec<_> = found.iter().map(|of| (of.key.as_str(), of.value.as_str(), of.line)).collect();
        assert_eq!(found, [("port", "1", 1), ("max_pool", "3", 1), ("port", "2", 3)]);
        let again = read(Path::new("/etc/again.conf"), &read_from).expect_err("a circle").to_string();
        assert!(again.contains("too many include"), "{again}");
        let wrong = read(Path::new("/etc/wrong.conf"), &read_from).expect_err("a broken line").to_string();
        assert!(wrong.contains("line 2") && !wrong.contains("hidden"), "{wrong}");
    }
}
