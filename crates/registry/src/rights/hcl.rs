//! The part of HCL (version 1) that Consul's policies are written in: blocks with labels, and attributes with texts. A policy in JSON is read into
//! the same tree.

use std::iter::Peekable;
use std::str::CharIndices;

/// Depth of blocks and lists; a policy needs three.
const DEEPEST: usize = 8;

/// An attribute or a block: `key "label" … { … }` or `key = value`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Item {
    /// The key, and the labels behind it. Never empty.
    pub(super) keys: Vec<String>,
    pub(super) value: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Text(String),
    Object(Vec<Item>),
    List(Vec<Value>),
    /// A number or a truth value, which no policy has.
    Other,
}

/// Position and description of a syntax error.
pub(super) type Problem = (usize, String);

/// Parses a text in HCL, or in JSON if it begins with `{`.
pub(super) fn parse(text: &str) -> Result<Vec<Item>, Problem> {
    if text.trim_start().starts_with('{') {
        return json(text);
    }
    let mut parser = Parser { text, chars: text.char_indices().peekable(), line: 1 };
    let items = parser.items(0, false)?;
    Ok(items)
}

fn json(text: &str) -> Result<Vec<Item>, Problem> {
    // A map would drop the first of two equal keys.
    let items: Pairs = serde_json::from_str(text).map_err(|error| (error.line(), error.to_string()))?;
    Ok(items.0)
}

/// A JSON object with all its pairs in order.
struct Pairs(Vec<Item>);

impl<'de> serde::Deserialize<'de> for Pairs {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Pairs, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Object(items) => Ok(Pairs(items)),
            _ => Err(serde::de::Error::custom("expected an object")),
        }
    }
}

impl<'de> serde::Deserialize<'de> for Value {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Value;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text, an object or a list")
            }

            fn visit_str<E>(self, text: &str) -> Result<Value, E> {
                Ok(Value::Text(text.to_owned()))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
                Ok(Value::Other)
            }

            fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
                Ok(Value::Other)
            }

            fn visit_u64<E>(self, _: u64) -> Result<Value, E> {
                Ok(Value::Other)
            }

            fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
                Ok(Value::Other)
            }

            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Other)
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                let mut items = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, Value>()? {
                    items.push(Item { keys: vec![key], value });
                }
                Ok(Value::Object(items))
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = list.next_element()? {
                    values.push(value);
                }
                Ok(Value::List(values))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

struct Parser<'a> {
    text: &'a str,
    chars: Peekable<CharIndices<'a>>,
    line: usize,
}

impl Parser<'_> {
    fn problem<T>(&self, text: impl Into<String>) -> Result<T, Problem> {
        Err((self.line, text.into()))
    }

    fn next(&mut self) -> Option<char> {
        let (_, char) = self.chars.next()?;
        self.line += usize::from(char == '\n');
        Some(char)
    }

    fn peek(&mut self) -> Option<char> {
        self.chars.peek().map(|(_, char)| *char)
    }

    /// Skips white space and comments.
    fn skip(&mut self) -> Result<(), Problem> {
        loop {
            let rest = match self.chars.peek() {
                Some((at, _)) => &self.text[*at..],
                None => return Ok(()),
            };
            if rest.starts_with('#') || rest.starts_with("//") {
                while self.peek().is_some_and(|char| char != '\n') {
                    self.next();
                }
            } else if let Some(comment) = rest.strip_prefix("/*") {
                let Some(length) = comment.find("*/") else { return self.problem("a comment without its end") };
                for _ in 0..rest[..2 + length + 2].chars().count() {
                    self.next();
                }
            } else if rest.starts_with([' ', '\t', '\r', '\n']) {
                self.next();
            } else {
                return Ok(());
            }
        }
    }

    /// Parses items up to the end of the text, or of the block.
    fn items(&mut self, depth: usize, block: bool) -> Result<Vec<Item>, Problem> {
        if depth > DEEPEST {
            return self.problem(format!("blocks deeper than {DEEPEST}"));
        }
        let mut items = Vec::new();
        loop {
            self.skip()?;
            match self.peek() {
                None if block => return self.problem("a block without its end"),
                None => return Ok(items),
                Some('}') if block => {
                    self.next();
                    return Ok(items);
                }
                Some(',') if !items.is_empty() => {
                    self.next();
                }
                Some(_) => items.push(self.item(depth)?),
            }
        }
    }

    fn item(&mut self, depth: usize) -> Result<Item, Problem> {
        let mut keys = vec![self.key()?];
        loop {
            self.skip()?;
            match self.peek() {
                Some('{') => {
                    self.next();
                    return Ok(Item { keys, value: Value::Object(self.items(depth + 1, true)?) });
                }
                Some('=') if keys.len() == 1 => {
                    self.next();
                    return Ok(Item { keys, value: self.value(depth + 1)? });
                }
                Some(_) if keys.len() < DEEPEST => keys.push(self.key()?),
                _ => return self.problem(format!("expected a block or a value behind {:?}", keys[0])),
            }
        }
    }

    fn key(&mut self) -> Result<String, Problem> {
        match self.peek() {
            Some('"') => self.quoted(),
            Some(char) if char.is_alphabetic() || char == '_' => {
                let mut key = String::new();
                while let Some(char) = self.peek().filter(|char| char.is_alphanumeric() || "_-.".contains(*char)) {
                    key.push(char);
                    self.next();
                }
                Ok(key)
            }
            Some(char) => self.problem(format!("expected a name, found {char:?}")),
            None => self.problem("expected a name, found the end"),
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, Problem> {
        if depth > DEEPEST {
            return self.problem(format!("lists deeper than {DEEPEST}"));
        }
        self.skip()?;
        match self.peek() {
            Some('"') => Ok(Value::Text(self.quoted()?)),
            Some('{') => {
                self.next();
                Ok(Value::Object(self.items(depth + 1, true)?))
            }
            Some('[') => {
                self.next();
                let mut values = Vec::new();
                loop {
                    self.skip()?;
                    match self.peek() {
                        Some(']') => {
                            self.next();
                            return Ok(Value::List(values));
                        }
                        _ => values.push(self.value(depth + 1)?),
                    }
                    self.skip()?;
                    match self.peek() {
                        Some(',') => drop(self.next()),
                        Some(']') => {}
                        _ => return self.problem("expected ',' or ']' in a list"),
                    }
                }
            }
            Some(char) if char.is_ascii_digit() || char == '-' => {
                while self.peek().is_some_and(|char| char.is_ascii_alphanumeric() || "+-.".contains(char)) {
                    self.next();
                }
                Ok(Value::Other)
            }
            Some('t' | 'f') => match self.key()?.as_str() {
                "true" | "false" => Ok(Value::Other),
                other => self.problem(format!("expected a text in quotes, found {other}")),
            },
            _ => self.problem("expected a text in quotes"),
        }
    }

    fn quoted(&mut self) -> Result<String, Problem> {
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                Some('"') => return Ok(text),
                Some('\n') | None => return self.problem("a text without its closing quote"),
                Some('$') if self.peek() == Some('{') => {
                    return self.problem("an expression ${…}, which is not supported here");
                }
                Some('\\') => {
                    let char = match self.next() {
                        Some(char @ ('"' | '\\')) => char,
                        Some('n') => '\n',
                        Some('t') => '\t',
                        Some('r') => '\r',
                        Some('a') => '\u{7}',
                        Some('b') => '\u{8}',
                        Some('f') => '\u{c}',
                        Some('v') => '\u{b}',
                        Some('u') => self.coded(4)?,
                        Some('U') => self.coded(8)?,
                        _ => return self.problem("an unknown escape in a text"),
                    };
                    text.push(char);
                }
                Some(char) => text.push(char),
            }
        }
    }

    fn coded(&mut self, digits: usize) -> Result<char, Problem> {
        let mut code = 0;
        for _ in 0..digits {
            let digit = self.next().and_then(|char| char.to_digit(16));
            let Some(digit) = digit else { return self.problem("expected hexadecimal digits in an escape") };
            code = code * 16 + digit;
        }
        char::from_u32(code).map_or_else(|| self.problem("an escape that is no character"), Ok)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn item(keys: &[&str], value: Value) -> Item {
        Item { keys: keys.iter().map(|key| (*key).to_owned()).collect(), value }
    }

    #[test]
    fn one_policy_in_both_languages() {
        let policy = || item(&["policy"], Value::Text("read".into()));
        let hcl = "# a comment\nkey \"a/\\u00e4\" { policy = \"read\" } // and\n/* another */ acl = \"read\"";
        let of_hcl = item(&["key", "a/ä"], Value::Object(vec![policy()]));
        let acl = item(&["acl"], Value::Text("read".into()));
        assert_eq!(parse(hcl).unwrap(), [of_hcl, acl.clone()]);
        let json = r#"{"key": {"a/ä": {"policy": "read"}}, "acl": "read"}"#;
        let of_json = item(&["key"], Value::Object(vec![item(&["a/ä"], Value::Object(vec![policy()]))]));
        assert_eq!(parse(json).unwrap(), [of_json, acl]);
    }

    #[test]
    fn errors_name_their_line() {
        for (text, line) in [
            ("key \"a\" {", 1),
            ("\n\nkey \"a\n", 4),
            ("acl = read", 1),
            ("acl =\n", 2),
            ("\n/* no end", 2),
            ("a \"${b}\" {}", 1),
            ("a \"\\q\" {}", 1),
            ("{\"a\":\n}", 2),
            ("a = [1 2]", 1),
        ] {
            assert_eq!(parse(text).unwrap_err().0, line, "{text}");
        }
        let deep = "a = ".to_owned() + &"[".repeat(100_000);
        assert!(parse(&deep).unwrap_err().1.contains("deeper"));
        let deep = "a { ".repeat(100_000);
        assert!(parse(&deep).unwrap_err().1.contains("deeper"));
        assert!(parse(&("{\"a\":".to_owned() + &"[".repeat(100_000))).is_err());
    }
}
