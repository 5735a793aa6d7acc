//! Check of a tree against the declared settings ([`settings::Table::KEYS`]): all wrong keys and values at once, with their places.

use settings::{Key, Kind, Table as _};

use super::Config;
use super::problem::{Problem, nearest};
use super::tree::{Tree, Value};

/// Keys of the whole file.
pub(super) const ROOT: &[Key] = Config::KEYS;

/// True if a key or table has this path, such as `proxy.users.password`, also in a list of tables.
pub fn has(path: &str) -> bool {
    let mut keys = ROOT;
    for step in path.split('.') {
        let Some(key) = keys.iter().find(|key| key.name == step) else { return false };
        keys = key.inner();
    }
    true
}

/// Reports unknown keys, missing keys, and values of the wrong kind.
pub(super) fn check(tree: &Tree, problems: &mut Vec<Problem>) {
    if let Value::Table(_) = &tree.value {
        check_table(tree, ROOT, "", problems);
    }
}

fn check_table(tree: &Tree, keys: &[Key], path: &str, problems: &mut Vec<Problem>) {
    let Value::Table(table) = &tree.value else { return };
    for (name, item) in table {
        let path = join(path, name);
        match keys.iter().find(|key| key.name == name) {
            Some(key) => check_value(item, key.kind, &path, problems),
            None => problems.push(Problem::new(item.key_origin.clone(), &path, unknown(name, keys))),
        }
    }
    for key in keys.iter().filter(|key| key.required && !table.contains_key(key.name)) {
        problems.push(Problem {
            missing: true,
            ..Problem::new(
                tree.origin.clone(),
                &join(path, key.name),
                format!("missing, expected {}", key.kind.expected()),
            )
        });
    }
}

fn check_value(item: &Tree, kind: Kind, path: &str, problems: &mut Vec<Problem>) {
    let fits = match (kind, &item.value) {
        (Kind::Text | Kind::Secret, Value::Text(_)) | (Kind::Boolean, Value::Boolean(_)) => true,
        (Kind::Integer { min, max }, Value::Integer(number)) => (min..=max).contains(number),
        (Kind::Share, Value::Float(share)) => *share > 0.0 && *share <= 1.0,
        (Kind::Duration { zero }, Value::Text(text)) => {
            humantime::parse_duration(text).is_ok_and(|duration| zero || !duration.is_zero())
        }
        (Kind::Form(form), Value::Text(text)) => (form.fits)(text),
        (Kind::Choice(choices), Value::Text(text)) => {
            let fits = choices.contains(&text.as_str());
            if let (false, Some(near)) = (fits, nearest(text, choices.iter().copied())) {
                let message = format!("found {text:?}, expected {}; did you mean {near:?}?", kind.expected());
                problems.push(Problem::new(item.origin.clone(), path, message));
                return;
            }
            fits
        }
        (Kind::Table(keys), Value::Table(_)) => {
            check_table(item, keys, path, problems);
            true
        }
        (Kind::Texts | Kind::Secrets, Value::Array(items)) => {
            let of = if kind.is_secret() { Kind::Secret } else { Kind::Text };
            for (index, item) in items.iter().enumerate() {
                check_value(item, of, &format!("{path}[{index}]"), problems);
            }
            true
        }
        (Kind::Tables(keys), Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                check_value(item, Kind::Table(keys), &format!("{path}[{index}]"), problems);
            }
            true
        }
        (Kind::TextsOrTables(keys), Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                let kind = if matches!(item.value, Value::Table(_)) { Kind::Table(keys) } else { Kind::Text };
                check_value(item, kind, &format!("{path}[{index}]"), problems);
            }
            true
        }
        _ => false,
    };
    if !fits {
        let message = format!("found {}, expected {}", item.value.describe(kind.is_secret()), kind.expected());
        problems.push(Problem::new(item.origin.clone(), path, message));
    }
}

/// Makes the message about an unknown key.
pub(super) fn unknown(name: &str, keys: &[Key]) -> String {
    match nearest(name, keys.iter().map(|key| key.name)) {
        Some(near) => format!("unknown key; did you mean `{near}`?"),
        None => {
            let names: Vec<&str> = keys.iter().map(|key| key.name).collect();
            format!("unknown key, expected one of {}", names.join(", "))
        }
    }
}

/// Joins path and name with a dot.
pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.into() } else { format!("{path}.{name}") }
}
