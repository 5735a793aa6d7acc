//! Environment variables over the file: `KINGPOST__PROXY__POOL__SIZE=30` is `proxy.pool.size = 30`.

use std::collections::BTreeMap;
use std::ffi::OsString;

use settings::{Key, Kind, Takes};

use super::problem::{Origin, Problem};
use super::schema;
use super::tree::{self, Tree, Value};

/// Prefix of all such variables; two underscores stand for a dot.
const PREFIX: &str = "KINGPOST__";

/// Puts the variables into the tree.
pub(super) fn apply(
    tree: &mut Tree,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    problems: &mut Vec<Problem>,
) {
    let mut ours: Vec<(String, OsString)> = variables
        .into_iter()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| name.starts_with(PREFIX))
        .collect();
    ours.sort();
    for (name, value) in ours {
        let origin = Origin::Variable(name.clone());
        let steps: Vec<String> = name[PREFIX.len()..].split("__").map(str::to_lowercase).collect();
        let path = steps.join(".");
        let result = resolve(&steps).and_then(|(key, _)| {
            let text = value.into_string().map_err(|_| "found bytes that are not UTF-8, expected text".to_owned())?;
            read(&text, key.kind, &origin)
        });
        match result {
            Ok(value) => insert(tree, &steps, value),
            Err(message) => problems.push(Problem::new(origin, &path, message)),
        }
    }
}

/// Returns the key at a path, and the time at which a change of it takes effect; `None` if there is no such key.
pub(super) fn key_at(path: &str) -> Option<(&'static Key, Takes)> {
    resolve(&path.split('.').map(str::to_owned).collect::<Vec<_>>()).ok()
}

/// Returns the variable of a key.
pub(super) fn variable(path: &str) -> String {
    format!("{PREFIX}{}", path.replace('.', "__").to_uppercase())
}

/// Returns the key at a path of the schema, and the time at which a change of it takes effect.
fn resolve(steps: &[String]) -> Result<(&'static Key, Takes), String> {
    let mut keys = schema::ROOT;
    let mut found: Option<&'static Key> = None;
    let mut takes = Takes::Live;
    for step in steps {
        if let Some(key) = found {
            match key.kind {
                Kind::Table(inner) => keys = inner,
                _ => return Err("unknown key: what is above it is not a table".into()),
            }
        }
        match keys.iter().find(|key| key.name == step) {
            Some(key) => found = Some(key),
            None => return Err(schema::unknown(step, keys)),
        }
        if found.is_some_and(|key| key.takes == Takes::AtStart) {
            takes = Takes::AtStart;
        }
    }
    match found {
        Some(key) if !matches!(key.kind, Kind::Table(_)) => Ok((key, takes)),
        _ => Err("a whole table, expected the name of a key in it".into()),
    }
}

/// Reads a text by the kind of its key; a text that does not fit stays for the schema, which reports it.
fn read(text: &str, kind: Kind, origin: &Origin) -> Result<Tree, String> {
    let leaf = |value: Value| Tree { value, origin: origin.clone(), key_origin: origin.clone() };
    let trimmed = text.trim();
    let value = match kind {
        Kind::Boolean => match trimmed {
            "true" => Value::Boolean(true),
            "false" => Value::Boolean(false),
            _ => Value::Text(text.into()),
        },
        Kind::Integer { .. } => match trimmed.parse() {
            Ok(number) => Value::Integer(number),
            Err(_) => Value::Text(text.into()),
        },
        Kind::Share => match trimmed.parse() {
            Ok(number) => Value::Float(number),
            Err(_) => Value::Text(text.into()),
        },
        Kind::Texts | Kind::TextsOrTables(_) if !trimmed.starts_with('[') => Value::Array(
            trimmed
                .split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty())
                .map(|item| leaf(Value::Text(item.into())))
                .collect(),
        ),
        // Not split at commas, which a password may have.
        Kind::Secrets => {
            return tree::parse_value(trimmed, origin)
                .map_err(|_| "not TOML; expected an array of strings: '[\"one\", \"two\"]'".to_owned());
        }
        Kind::Texts | Kind::TextsOrTables(_) | Kind::Tables(_) => {
            return tree::parse_value(trimmed, origin)
                .map_err(|error| format!("not TOML: {error}; expected {}", kind.expected()));
        }
        _ => Value::Text(text.into()),
    };
    Ok(leaf(value))
}

fn insert(tree: &mut Tree, steps: &[String], value: Tree) {
    let Some((last, tables)) = steps.split_last() else { return };
    let mut at = tree;
    for step in tables {
        // A value here that is not a table is an error of the file, which the schema reports.
        let Value::Table(table) = &mut at.value else { return };
        at = table.entry(step.clone()).or_insert_with(|| Tree {
            value: Value::Table(BTreeMap::new()),
            origin: value.origin.clone(),
            key_origin: value.origin.clone(),
        });
    }
    if let Value::Table(table) = &mut at.value {
        table.insert(last.clone(), value);
    }
}
