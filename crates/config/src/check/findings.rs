//! Findings of the checks, and the look at files that settings name.

use std::collections::HashMap;
use std::path::Path;

use crate::problem::{Problem, Severity};
use crate::tree::Tree;

/// An error or a warning about a value.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(super) path: String,
    message: String,
    severity: Severity,
}

impl Finding {
    /// Adds the place of the value in the file, or that of the table it belongs in.
    pub(crate) fn at(self, tree: &Tree) -> Problem {
        let origin = tree.nearest(&self.path).origin.clone();
        Problem { severity: self.severity, ..Problem::new(origin, &self.path, self.message) }
    }
}

/// State of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stat {
    /// The file can be read.
    Readable {
        /// Permission bits.
        mode: u32,
        /// True if the first line is empty.
        empty: bool,
    },
    /// The file cannot be read, with the reason.
    Unreadable(String),
}

/// Examines a password file, or the program of a password command. Reads at most 8 KiB.
pub fn stat_file(path: &Path) -> Stat {
    use std::io::{BufRead, BufReader, Read};
    use std::os::unix::fs::PermissionsExt;
    let look = || -> std::io::Result<Stat> {
        let file = std::fs::File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(Stat::Unreadable("not a file".into()));
        }
        // A program is not text.
        let mut line = Vec::new();
        BufReader::new(file.take(8 << 10)).read_until(b'\n', &mut line)?;
        Ok(Stat::Readable {
            mode: metadata.permissions().mode(),
            empty: line.iter().all(|byte| matches!(byte, b'\r' | b'\n')),
        })
    };
    look().unwrap_or_else(|error| Stat::Unreadable(error.to_string()))
}

/// Errors and warnings so far.
#[derive(Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    /// Adds an error about the value at a path.
    pub(super) fn error(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(Finding { path: path.into(), message: message.into(), severity: Severity::Error });
    }

    /// Adds a warning about the value at a path.
    pub(super) fn warn(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(Finding { path: path.into(), message: message.into(), severity: Severity::Warning });
    }

    /// Reports every name that occurred before for the same cluster.
    pub(super) fn unique_by_cluster<'a>(
        &mut self,
        list: &str,
        names: impl Iterator<Item = (Option<&'a str>, &'a str)>,
    ) {
        let mut seen = HashMap::new();
        for (index, (cluster, name)) in names.enumerate() {
            let path = format!("{list}[{index}].name");
            if name.is_empty() {
                self.error(path, "found \"\", expected something that is not empty");
            } else if let Some(first) = seen.get(&(cluster, name)) {
                let text = format!("found {name:?}, which {list}[{first}] has already; expected a different one");
                self.error(path, text);
            } else {
                seen.insert((cluster, name), index);
            }
        }
    }

    /// Reports every value that occurred before.
    pub(super) fn unique<'a>(&mut self, list: &str, field: &str, values: impl Iterator<Item = &'a str>) {
        let mut seen: HashMap<&str, usize> = HashMap::new();
        for (index, value) in values.enumerate() {
            let path = format!("{list}[{index}]{field}");
            if value.is_empty() {
                self.error(path, "found \"\", expected something that is not empty");
            } else if let Some(first) = seen.insert(value, index) {
                self.error(
                    path,
                    format!("found {value:?}, which {list}[{first}] has already; expected a different one"),
                );
                seen.insert(value, first);
            }
        }
    }
}
