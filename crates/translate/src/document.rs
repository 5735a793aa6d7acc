//! TOML files of other programs: tables whose settings are judged one by one.

use std::collections::BTreeMap;
use std::path::Path;

use super::options::Read;
use super::report::{Found, Report, boolean};
use config::{Origin, Tree, Value, parse_tree};
use process::Failure;

/// Most syntax errors reported of a file.
const MOST: usize = 20;

/// Parses a file. Syntax errors are reported with line and column, without the line, which may hold a password.
pub(super) fn read(file: &Path, read: Read<'_>) -> Result<BTreeMap<String, Tree>, Failure> {
    let mut problems = Vec::new();
    let tree = parse_tree(&file.display().to_string(), &read(file)?, &mut problems);
    if !problems.is_empty() {
        let lines: Vec<String> = problems.iter().take(MOST).map(|problem| format!("  {problem}")).collect();
        return Err(Failure::config(format!(
            "cannot read {}; nothing is written\n{}",
            file.display(),
            lines.join("\n")
        )));
    }
    match tree.value {
        Value::Table(table) => Ok(table),
        // Not possible: a document is a table.
        _ => Ok(BTreeMap::new()),
    }
}

/// The settings of one table that are carried over.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// The name in errors, such as `pools.shop`.
    pub(super) name: String,
    values: BTreeMap<String, Value>,
}

impl Settings {
    /// Judges every key of a table. `further`: keys that are tables of their own, which are judged elsewhere.
    pub(super) fn judged(
        report: &mut Report<'_>,
        section: &str,
        name: &str,
        table: &BTreeMap<String, Tree>,
        further: &[&str],
    ) -> Settings {
        let mut values = BTreeMap::new();
        for (key, tree) in table.iter().filter(|(key, _)| !further.contains(&key.as_str())) {
            let full = format!("{name}.{key}");
            let value = text_of(&tree.value);
            if report.judge(&Found { section, key, name: &full, value: &value, line: line_of(tree) }) {
                values.insert(key.clone(), tree.value.clone());
            }
        }
        Settings { name: name.to_owned(), values }
    }

    /// Takes all of a table, unjudged.
    pub(super) fn whole(name: &str, table: &BTreeMap<String, Tree>) -> Settings {
        let values = table.iter().map(|(key, tree)| (key.clone(), tree.value.clone())).collect();
        Settings { name: name.to_owned(), values }
    }

    /// Returns the full name of a key.
    pub(super) fn of(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// Returns a string, number or boolean as text.
    pub(super) fn get(&self, key: &str) -> Option<String> {
        self.values.get(key).map(text_of)
    }

    /// As [`Settings::get`], but None for an empty text.
    pub(super) fn filled(&self, key: &str) -> Option<String> {
        self.get(key).filter(|value| !value.is_empty())
    }

    /// Returns a boolean; `default` if the key is missing.
    pub(super) fn flag(&self, report: &mut Report<'_>, key: &str, default: bool) -> bool {
        let Some(value) = self.get(key) else { return default };
        boolean(&value).unwrap_or_else(|| {
            report.problem(&self.of(key), "expected true or false");
            default
        })
    }

    /// Returns a list of strings.
    pub(super) fn texts(&self, report: &mut Report<'_>, key: &str) -> Vec<String> {
        match self.values.get(key) {
            None => Vec::new(),
            Some(Value::Array(array)) if array.iter().all(|item| matches!(item.value, Value::Text(_))) => {
                array.iter().map(|item| text_of(&item.value)).collect()
            }
            Some(_) => {
                report.problem(&self.of(key), "expected a list of texts");
                Vec::new()
            }
        }
    }
}

/// Returns the tables in a table of tables, by their names; any other value in it is a problem.
pub(super) fn tables<'t>(
    report: &mut Report<'_>,
    name: &str,
    tree: Option<&'t Tree>,
) -> Vec<(String, &'t BTreeMap<String, Tree>)> {
    report.stands(name, tree.and_then(line_of));
    let found: Vec<(String, &Tree)> = match tree.map(|tree| &tree.value) {
        None => return Vec::new(),
        Some(Value::Table(table)) => table.iter().map(|(key, tree)| (key.clone(), tree)).collect(),
        Some(Value::Array(array)) => array.iter().enumerate().map(|(at, tree)| (at.to_string(), tree)).collect(),
        Some(_) => {
            report.insist(name, "expected tables");
            return Vec::new();
        }
    };
    let mut tables = Vec::new();
    for (key, tree) in found {
        report.stands(&format!("{name}.{key}"), line_of(tree));
        match &tree.value {
            Value::Table(table) => tables.push((key, table)),
            _ => report.insist(&format!("{name}.{key}"), "expected a table"),
        }
    }
    tables
}

/// Returns a single table; any other value is a problem.
pub(super) fn table<'t>(
    report: &mut Report<'_>,
    name: &str,
    tree: Option<&'t Tree>,
) -> Option<&'t BTreeMap<String, Tree>> {
    report.stands(name, tree.and_then(line_of));
    match &tree?.value {
        Value::Table(table) => Some(table),
        _ => {
            report.insist(name, "expected a table");
            None
        }
    }
}

/// Returns the settings of a single table of the document; empty if it is missing.
pub(super) fn one(report: &mut Report<'_>, document: &BTreeMap<String, Tree>, name: &str) -> Settings {
    match table(report, name, document.get(name)) {
        Some(table) => Settings::judged(report, name, name, table, &[]),
        None => Settings::default(),
    }
}

/// Renders a value, for a message and for comparisons. Lists and tables are only named as such.
pub(super) fn text_of(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(value) => value.to_string(),
        Value::Array(array) if array.is_empty() => String::new(),
        Value::Table(table) if table.is_empty() => String::new(),
        Value::Array(_) => "[…]".into(),
        Value::Table(_) => "{…}".into(),
        Value::Datetime(_) | Value::Unreadable(_) => "…".into(),
    }
}

/// Reports tables of a document that are not known.
pub(super) fn unknown(report: &mut Report<'_>, program: &str, document: &BTreeMap<String, Tree>, known: &[&str]) {
    for (key, tree) in document.iter().filter(|(key, _)| !known.contains(&key.as_str())) {
        report.stands(key, line_of(tree));
        report.problem(key, format!("{program} has no such table here"));
    }
}

fn line_of(tree: &Tree) -> Option<usize> {
    match tree.key_origin {
        Origin::File { line, .. } => Some(line),
        Origin::Variable(_) => None,
    }
}
