//! A TOML document with the place of every value.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{Origin, Problem};

/// A value and its place.
#[derive(Debug, Clone)]
pub struct Tree {
    /// The value.
    pub value: Value,
    /// Place of the value.
    pub origin: Origin,
    /// Place of the key before it; the same as `origin` for elements of arrays.
    pub key_origin: Origin,
}

/// A value as TOML has it.
#[derive(Debug, Clone)]
pub enum Value {
    /// A string.
    Text(String),
    /// An integer.
    Integer(i64),
    /// A number with a fraction.
    Float(f64),
    /// `true` or `false`.
    Boolean(bool),
    /// A date, a time or both.
    Datetime(toml::value::Datetime),
    /// An array, in its order.
    Array(Vec<Tree>),
    /// A table, by key.
    Table(BTreeMap<String, Tree>),
    /// The text of a value that TOML cannot hold, such as an integer of more than 64 bits.
    Unreadable(String),
}

impl Value {
    /// Describes the value for a message; with `secret` without its content.
    pub fn describe(&self, secret: bool) -> String {
        match self {
            Value::Text(_) if secret => "a string".into(),
            Value::Text(text) => format!("{text:?}"),
            Value::Integer(_) if secret => "an integer".into(),
            Value::Integer(number) => format!("the integer {number}"),
            Value::Float(_) if secret => "a number".into(),
            Value::Float(number) => format!("the number {number}"),
            Value::Boolean(value) => format!("{value}"),
            Value::Datetime(_) => "a date or time".into(),
            Value::Array(_) => "an array".into(),
            Value::Table(_) => "a table".into(),
            Value::Unreadable(_) if secret => "an unreadable value".into(),
            Value::Unreadable(text) => text.clone(),
        }
    }
}

impl Tree {
    /// Returns the value at a path such as `cluster.nodes[0].name`, or else the nearest one above it.
    pub(super) fn nearest(&self, path: &str) -> &Tree {
        let mut at = self;
        for step in path.split(['.', '[']).filter(|step| !step.is_empty()) {
            let next = match &at.value {
                Value::Table(table) => table.get(step),
                Value::Array(array) => {
                    step.trim_end_matches(']').parse::<usize>().ok().and_then(|index| array.get(index))
                }
                _ => None,
            };
            match next {
                Some(next) => at = next,
                None => break,
            }
        }
        at
    }
}

/// Conversion of byte offsets into lines and columns.
struct Positions<'a> {
    name: &'a str,
    text: &'a str,
}

impl Positions<'_> {
    fn at(&self, offset: usize) -> Origin {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &self.text[..offset];
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        Origin::File {
            name: self.name.into(),
            line: before.matches('\n').count() + 1,
            column: before[start..].chars().count() + 1,
        }
    }
}

/// Parses a document. Syntax errors go to `problems`; the readable rest is returned.
pub fn parse(name: &str, text: &str, problems: &mut Vec<Problem>) -> Tree {
    let positions = Positions { name, text };
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut last_line = 0;
    for error in errors {
        // The parser's own rendering would show the line, which may hold a password.
        let origin = positions.at(error.span().map_or(0, |span| span.start));
        // Further errors on the same line are consequences of the first.
        if let Origin::File { line, .. } = origin
            && std::mem::replace(&mut last_line, line) == line
        {
            continue;
        }
        problems.push(Problem::new(origin, "", format!("not TOML: {}", error.message())));
    }
    let origin = positions.at(0);
    let place = |span: std::ops::Range<usize>| positions.at(span.start);
    Tree { value: Value::Table(read_table(table.get_ref(), &place)), origin: origin.clone(), key_origin: origin }
}

/// Parses a single value, such as that of an environment variable.
pub(super) fn parse_value(text: &str, origin: &Origin) -> Result<Tree, String> {
    let value = DeValue::parse(text).map_err(|error| error.message().to_owned())?;
    let place = |_: std::ops::Range<usize>| origin.clone();
    Ok(Tree { value: read_value(value.get_ref(), &place), origin: origin.clone(), key_origin: origin.clone() })
}

type Place<'a> = &'a dyn Fn(std::ops::Range<usize>) -> Origin;

fn read_table(table: &DeTable<'_>, place: Place<'_>) -> BTreeMap<String, Tree> {
    table
        .iter()
        .map(|(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
            let tree = Tree {
                value: read_value(value.get_ref(), place),
                origin: place(value.span()),
                key_origin: place(key.span()),
            };
            (key.get_ref().to_string(), tree)
        })
        .collect()
}

fn read_value(value: &DeValue<'_>, place: Place<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Integer(number),
            Err(_) => Value::Unreadable(number.to_string()),
        },
        DeValue::Float(number) => match number.as_str().parse() {
            Ok(number) => Value::Float(number),
            Err(_) => Value::Unreadable(number.to_string()),
        },
        DeValue::Boolean(value) => Value::Boolean(*value),
        DeValue::Datetime(value) => Value::Datetime(*value),
        DeValue::Array(array) => Value::Array(
            array
                .iter()
                .map(|item| Tree {
                    value: read_value(item.get_ref(), place),
                    origin: place(item.span()),
                    key_origin: place(item.span()),
                })
                .collect(),
        ),
        DeValue::Table(table) => Value::Table(read_table(table, place)),
    }
}

/// Returns the same document without positions.
pub(super) fn to_toml(tree: &Tree) -> toml::Value {
    match &tree.value {
        Value::Text(text) | Value::Unreadable(text) => toml::Value::String(text.clone()),
        Value::Integer(number) => toml::Value::Integer(*number),
        Value::Float(number) => toml::Value::Float(*number),
        Value::Boolean(value) => toml::Value::Boolean(*value),
        Value::Datetime(value) => toml::Value::Datetime(*value),
        Value::Array(array) => toml::Value::Array(array.iter().map(to_toml).collect()),
        Value::Table(table) => {
            toml::Value::Table(table.iter().map(|(key, value)| (key.clone(), to_toml(value))).collect())
        }
    }
}
