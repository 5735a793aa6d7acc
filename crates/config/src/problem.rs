//! A problem of a configuration, and its place.

use std::fmt;

/// Origin of a value. Ordered by position, files before the environment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A place in a file; lines and columns (in characters) start at 1.
    File {
        /// File name that the user gave.
        name: String,
        /// Line.
        line: usize,
        /// Column.
        column: usize,
    },
    /// An environment variable.
    Variable(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { name, line, column } => write!(f, "{name}:{line}:{column}"),
            Origin::Variable(name) => write!(f, "environment variable {name}"),
        }
    }
}

/// Severity of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// An error: the configuration is not used.
    Error,
    /// A warning: the configuration is used.
    Warning,
}

/// A problem of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Place of the problem.
    pub origin: Origin,
    /// Path of the key, such as `proxy.pool.size` or `cluster.nodes[0].name`; empty for a syntax error.
    pub key: String,
    /// The value found and the value expected. Holds no secret.
    pub message: String,
    /// Severity of the problem.
    pub severity: Severity,
    /// True if a required key is missing.
    pub missing: bool,
}

impl Problem {
    /// Makes an error at a place, about a key.
    pub fn new(origin: Origin, key: &str, message: String) -> Problem {
        Problem { origin, key: key.into(), message, severity: Severity::Error, missing: false }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if self.severity == Severity::Warning {
            f.write_str("warning: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// Returns the candidate closest to a misspelt word, if it is close enough.
pub(crate) fn nearest<'a>(written: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (written.chars().count() / 3).clamp(1, 3);
    candidates
        .map(|candidate| (distance(&written.to_lowercase(), candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Counts the edits (insert, delete, replace, swap neighbours) from one word to the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().take(64).collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replace.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(rows[i - 2][j - 2] + 1);
            }
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name() {
        let names = ["size", "mode", "wait_timeout", "listen"];
        for (written, expected) in [
            ("sise", Some("size")),
            ("SIZE", Some("size")),
            ("wait_timout", Some("wait_timeout")),
            ("lisetn", Some("listen")),
            ("colour", None),
            ("x", None),
        ] {
            assert_eq!(nearest(written, names.into_iter()), expected, "{written}");
        }
    }
}
