//! Texts for the guide: the described file, and tables of Markdown.

use std::fmt::Write as _;

use crate::key::{Key, Kind};

/// Returns the described file: every key with its doc and its default. A key without a default is commented out, and has an example.
#[must_use]
pub fn toml(keys: &[Key]) -> String {
    let mut text = String::new();
    for key in keys {
        section(&mut text, key.name, key, false);
    }
    text
}

/// Adds a table, or an array of tables, with those in it.
fn section(text: &mut String, path: &str, key: &Key, commented: bool) {
    text.push('\n');
    comment(text, key);
    if let (Kind::Tables(_), Some(example)) = (key.kind, key.example) {
        text.push_str(example);
        return;
    }
    let array = matches!(key.kind, Kind::Tables(_));
    let commented = commented || (array && !key.shown);
    let mark = if commented { "#" } else { "" };
    // A `String` takes every text.
    let _ = match array {
        true => writeln!(text, "{mark}[[{path}]]"),
        false => writeln!(text, "{mark}[{path}]"),
    };
    let is_table = |key: &&Key| matches!(key.kind, Kind::Table(_) | Kind::Tables(_));
    for key in key.inner().iter().filter(|key| !is_table(key)) {
        comment(text, key);
        let (value, off) = match key.example {
            Some(example) => (Some(example.to_owned()), commented || !key.shown),
            None => ((key.default)().toml, commented),
        };
        let mark = if off { "#" } else { "" };
        let _ = writeln!(text, "{mark}{} = {}", key.name, value.unwrap_or_default());
    }
    for key in key.inner().iter().filter(is_table) {
        section(text, &format!("{path}.{}", key.name), key, commented);
    }
}

fn comment(text: &mut String, key: &Key) {
    for line in key.doc.lines() {
        text.push('#');
        text.push_str(line);
        text.push('\n');
    }
}

/// Returns a key's doc as one line.
#[must_use]
pub fn line(key: &Key) -> String {
    key.doc.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Returns a table of Markdown with the keys of the table at `path`, their docs and their defaults.
#[must_use]
pub fn markdown(path: &str, keys: &[Key]) -> String {
    let mut text = format!("| `[{path}]` | | default |\n|---|---|---|\n");
    for key in keys.iter().filter(|key| !matches!(key.kind, Kind::Table(_) | Kind::Tables(_))) {
        let default = match key.kind {
            Kind::Secret | Kind::Secrets => None,
            _ => (key.default)().toml,
        };
        let default = default.map_or(String::new(), |default| format!("`{default}`"));
        let _ = writeln!(text, "| `{}` | {} | {default} |", key.name, line(key).replace('|', "\\|"));
    }
    text
}
