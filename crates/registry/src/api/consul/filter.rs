//! Filter expressions: Consul's grammar, evaluated on the JSON of a response's entries.
//!
//! ```text
//!  expression  a or b, a and b, not a, (a)
//!  match       Selector == value      Selector != value
//!              Selector contains value      Selector not contains value
//!              value in Selector      value not in Selector
//!              Selector is empty      Selector is not empty
//!              Selector matches value      Selector not matches value      (a regular expression, anywhere in the text)
//!  collection  any Selector as name { expression }      all Selector as name { expression }
//!              name: of a list its items, of a map its keys; `key, value` gives both, `_` stands for one that is not wanted
//!  Selector    Service.Meta.version   Service.Meta["a.b"]
//!  value       "text"   `text`   word   12
//! ```
//!
//! An endpoint's entries have a type ([`schema`]), as they have at Consul: a selector that the type lacks, an operator that the field's type does not
//! support, and a value that is none of the field's type are refused. A selector into a list of objects means any of them. A key that a map lacks
//! equals nothing and is empty. A regular expression always takes time linear in the text; size and number of the expressions are limited.
//!
//! Wider than at Consul: `any` and `all`, the grammar's words in any case, and `-`, `/`, `:` and `@` in words without quotes. The rest is held to
//! Consul's own library by a table of filters with its results (`filter/table.txt`, made by `tests/peers/bexpr`).

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::schema::{self, Type};
use crate::api::ApiError;

/// Maximum length of an expression in bytes.
const LONGEST: usize = 4096;
/// Maximum nesting depth.
const DEEPEST: usize = 32;
/// Maximum number of regular expressions, and maximum size of a compiled one.
const MOST_PATTERNS: usize = 8;
const PATTERN_BYTES: usize = 256 << 10;

/// Compiles a regular expression of up to `bytes` when compiled.
///
/// # Errors
/// The expression is invalid or too large. The text names the expression and what is wrong with it.
pub(super) fn pattern(text: &str, bytes: usize) -> Result<Regex, String> {
    let built = RegexBuilder::new(text).size_limit(bytes).dfa_size_limit(bytes).build();
    built.map_err(|error| format!("{text:?} is no regular expression that can be used: {error}"))
}

/// A parsed expression.
#[derive(Debug, Clone)]
pub(super) enum Filter {
    Or(Box<Filter>, Box<Filter>),
    And(Box<Filter>, Box<Filter>),
    Not(Box<Filter>),
    Match(Match),
    Each(Box<Each>),
}

/// A test of one field. Not the negation of the other test: of a list, both `Checks.Status == passing` and `Checks.Status != passing` may hold.
#[derive(Debug, Clone)]
pub(super) struct Match {
    path: Vec<String>,
    /// Type of the value that the path begins at: the entry, or the item of a collection.
    root: &'static Type,
    test: Test,
    negated: bool,
}

#[derive(Debug, Clone)]
enum Test {
    Text(String),
    Number(i64),
    Flag(bool),
    Contains(String),
    Empty,
    Matches(Regex),
}

/// A quantifier: true if an expression holds for any item of a collection, or for every one.
#[derive(Debug, Clone)]
pub(super) struct Each {
    every: bool,
    path: Vec<String>,
    /// Names of an item's index or key, and of the item, in the expression.
    key: Option<String>,
    value: Option<String>,
    expression: Filter,
}

/// The names of collection items in scope, innermost first, and the entry.
#[derive(Clone, Copy)]
struct Names<'a> {
    entry: &'a Value,
    bound: Option<&'a Bound<'a>>,
}

struct Bound<'a> {
    name: &'a str,
    value: &'a Value,
    outer: Option<&'a Bound<'a>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Open,
    Close,
    OpenBrace,
    CloseBrace,
    Comma,
    Equal,
    NotEqual,
    Quoted(String),
    /// A word, or the parts of a selector.
    Word(Vec<String>),
}

/// Parses a filter for each endpoint and applies it to an entry; for the fuzz target.
#[doc(hidden)]
pub fn read_filter(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let entry = serde_json::json!({
        "ID": "1", "Node": { "Node": "n", "Meta": { "a": "b" } }, "Meta": { "a": "b" }, "Port": 80,
        "Service": { "Service": "web", "Tags": ["a"], "Port": 80, "Meta": { "v": "1" } },
        "Checks": [{ "Status": "passing" }, { "Status": "critical" }], "Tags": ["a", "b"], "ServiceTags": ["a"],
    });
    for root in [&schema::NODE, &schema::SERVICE, &schema::CHECK, &schema::ENTRY, &schema::CATALOG] {
        if let Ok(filter) = Filter::parse(text, root) {
            filter.fits(&entry);
        }
    }
}

impl Filter {
    /// Parses an expression about entries of a type.
    ///
    /// # Errors
    /// The expression is invalid, or does not fit the type; the message says what is wrong, and near which word.
    pub(super) fn parse(text: &str, entry: &'static Type) -> Result<Filter, ApiError> {
        let wrong = |message: String| ApiError::bad(format!("filter: {message}"));
        if text.len() > LONGEST {
            return Err(wrong(format!("longer than {LONGEST} bytes")));
        }
        let tokens = tokens(text).map_err(wrong)?;
        let mut parser = Parser { tokens: &tokens, at: 0, patterns: 0, entry, scope: Vec::new() };
        let filter = parser.or(0).map_err(wrong)?;
        match parser.peek() {
            None => Ok(filter),
            Some(token) => Err(wrong(format!("did not expect {token:?}"))),
        }
    }

    pub(super) fn fits(&self, entry: &Value) -> bool {
        self.holds(Names { entry, bound: None })
    }

    fn holds(&self, names: Names<'_>) -> bool {
        match self {
            Filter::Or(a, b) => a.holds(names) || b.holds(names),
            Filter::And(a, b) => a.holds(names) && b.holds(names),
            Filter::Not(a) => !a.holds(names),
            Filter::Match(one) => {
                let (root, path) = names.root(&one.path);
                one.holds(Some(root), one.root, path)
            }
            Filter::Each(each) => each.holds(names),
        }
    }
}

impl Match {
    /// Applies the test at the end of `path`, which begins at `value` of the type `kind`. A field that the JSON lacks has its type's empty value.
    fn holds(&self, value: Option<&Value>, kind: &Type, path: &[String]) -> bool {
        match (kind, path) {
            (Type::List(item), [_, ..]) => {
                value.and_then(Value::as_array).into_iter().flatten().any(|one| self.holds(Some(one), item, path))
            }
            (Type::Object(fields), [field, rest @ ..]) => match schema::field(fields, field) {
                Some(kind) => self.holds(value.and_then(|value| value.get(field)), kind, rest),
                None => false,
            },
            (Type::Map(kind), [key, rest @ ..]) => match value.and_then(|value| value.get(key)) {
                Some(value) => self.holds(Some(value), kind, rest),
                // What is not there is empty and differs from everything; at Consul it even matches every pattern.
                None => self.negated != matches!(self.test, Test::Empty) || matches!(self.test, Test::Matches(_)),
            },
            _ => self.test.holds(value) != self.negated,
        }
    }
}

impl Test {
    fn holds(&self, found: Option<&Value>) -> bool {
        let text = || found.and_then(Value::as_str).unwrap_or_default();
        match self {
            Test::Text(wanted) => text() == wanted,
            Test::Number(wanted) => found.and_then(Value::as_i64).unwrap_or_default() == *wanted,
            Test::Flag(wanted) => found.and_then(Value::as_bool).unwrap_or_default() == *wanted,
            Test::Contains(wanted) => match found {
                Some(Value::Array(items)) => items.iter().any(|item| item.as_str() == Some(wanted)),
                Some(Value::Object(map)) => map.contains_key(wanted),
                _ => text().contains(wanted.as_str()),
            },
            Test::Empty => match found {
                Some(Value::Array(items)) => items.is_empty(),
                Some(Value::Object(map)) => map.is_empty(),
                _ => true,
            },
            Test::Matches(pattern) => pattern.is_match(text()),
        }
    }
}

impl Each {
    fn holds(&self, names: Names<'_>) -> bool {
        let (root, path) = names.root(&self.path);
        let mut items: Box<dyn Iterator<Item = (Value, &Value)> + '_> =
            match path.iter().try_fold(root, |value, part| value.get(part)) {
                Some(Value::Array(items)) => Box::new(items.iter().enumerate().map(|(n, item)| (n.into(), item))),
                Some(Value::Object(map)) => Box::new(map.iter().map(|(key, item)| (key.as_str().into(), item))),
                _ => Box::new(std::iter::empty()),
            };
        let holds = |(key, item): (Value, &Value)| {
            let outer = names.bound;
            let key = self.key.as_deref().map(|name| Bound { name, value: &key, outer });
            let outer = key.as_ref().or(outer);
            let item = self.value.as_deref().map(|name| Bound { name, value: item, outer });
            self.expression.holds(Names { bound: item.as_ref().or(outer), ..names })
        };
        if self.every { items.all(holds) } else { items.any(holds) }
    }
}

impl<'a> Names<'a> {
    /// Returns the value that a path begins at, and the rest of the path.
    fn root<'p>(&self, path: &'p [String]) -> (&'a Value, &'p [String]) {
        let mut bound = self.bound;
        while let (Some(one), Some(first)) = (bound, path.first()) {
            if one.name == first {
                return (one.value, &path[1..]);
            }
            bound = one.outer;
        }
        (self.entry, path)
    }
}

/// Parses a whole number in the forms that Go takes: `80`, `-1`, `0x50`, `0b1`, `0o7`, `017`, `8_0`.
fn number(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, rest, prefixed) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..], true),
        Some("0b") => (2, &lower[2..], true),
        Some("0o") => (8, &lower[2..], true),
        _ => match lower.strip_prefix('0') {
            Some(rest) if !rest.is_empty() => (8, rest, true),
            _ => (10, lower.as_str(), false),
        },
    };
    // An underscore stands between digits, or behind the prefix.
    let parts: Vec<&str> = rest.split('_').collect();
    let is_wrong = |(n, part): (usize, &&str)| part.is_empty() && !(n == 0 && prefixed && parts.len() > 1);
    if parts.iter().enumerate().any(is_wrong) || !rest.chars().all(|c| c == '_' || c.is_digit(radix)) {
        return None;
    }
    let sign = if negative { "-" } else { "" };
    i64::from_str_radix(&format!("{sign}{}", parts.concat()), radix).ok()
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let taken = match first {
            '(' => {
                tokens.push(Token::Open);
                1
            }
            ')' => {
                tokens.push(Token::Close);
                1
            }
            '{' | '}' | ',' => {
                tokens.push(match first {
                    '{' => Token::OpenBrace,
                    '}' => Token::CloseBrace,
                    _ => Token::Comma,
                });
                1
            }
            '=' | '!' if rest[1..].starts_with('=') => {
                tokens.push(if first == '=' { Token::Equal } else { Token::NotEqual });
                2
            }
            '"' | '`' => {
                let (value, taken) = quoted(rest, first)?;
                tokens.push(Token::Quoted(value));
                taken
            }
            _ => {
                let (word, taken) = word(rest)?;
                tokens.push(Token::Word(word));
                taken
            }
        };
        rest = rest[taken..].trim_start();
    }
    Ok(tokens)
}

/// Returns the text in quotes, and its length in bytes. In double quotes a backslash escapes as in Go: `\"`, `\\`, `\n`, `\x77`, `\167`, `\u0077` ….
fn quoted(text: &str, quote: char) -> Result<(String, usize), String> {
    let mut value: Vec<u8> = Vec::new();
    let mut chars = text.char_indices().skip(1);
    let open = || "a quote is not closed".to_owned();
    while let Some((at, c)) = chars.next() {
        match c {
            _ if c == quote => {
                let value = String::from_utf8(value).map_err(|_| "a text with escapes is not UTF-8".to_owned())?;
                return Ok((value, at + c.len_utf8()));
            }
            '\\' if quote == '"' => {
                let (at, escape) = chars.next().ok_or_else(open)?;
                let (first, digits, radix) = match escape {
                    'a' => (7, 0, 0),
                    'b' => (8, 0, 0),
                    'f' => (12, 0, 0),
                    'n' => (10, 0, 0),
                    'r' => (13, 0, 0),
                    't' => (9, 0, 0),
                    'v' => (11, 0, 0),
                    '\\' | '"' => (u32::from(escape), 0, 0),
                    'x' => (0, 2, 16),
                    'u' => (0, 4, 16),
                    'U' => (0, 8, 16),
                    '0'..='7' => (0, 3, 8),
                    _ => return Err(format!("\\{escape} is no escape in double quotes")),
                };
                let mut code = first;
                if digits > 0 {
                    let from = if radix == 8 { at } else { at + 1 };
                    let read = text.get(from..from + digits).filter(|read| read.chars().all(|c| c.is_digit(radix)));
                    let read = read.ok_or_else(|| format!("\\{escape}: expected {digits} digits"))?;
                    code = u32::from_str_radix(read, radix).map_err(|error| error.to_string())?;
                    for _ in at + 1..from + digits {
                        chars.next();
                    }
                }
                match escape {
                    // A byte, of which several may be one character.
                    'x' | '0'..='7' => {
                        value.push(u8::try_from(code).map_err(|_| format!("\\{code:o} is more than a byte"))?);
                    }
                    _ => {
                        let c = char::from_u32(code).ok_or_else(|| format!("\\{escape}{code:x} is no character"))?;
                        value.extend(c.encode_utf8(&mut [0; 4]).bytes());
                    }
                }
            }
            '\n' if quote == '"' => return Err("a line ends within double quotes".into()),
            '\r' if quote == '`' => {}
            _ => value.extend(c.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    Err(open())
}

fn word(text: &str) -> Result<(Vec<String>, usize), String> {
    let mut parts = vec![String::new()];
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        match c {
            '.' => parts.push(String::new()),
            '[' => {
                let inner = &text[at + 1..];
                let quote =
                    inner.chars().next().filter(|c| matches!(c, '"' | '`')).ok_or("expected a quote after [")?;
                let (part, taken) = quoted(inner, quote)?;
                if !inner[taken..].starts_with(']') {
                    return Err("expected ] after the quote".into());
                }
                parts.push(part);
                at += taken + 1;
            }
            _ if c.is_alphanumeric() || "_-/:@".contains(c) => {
                if let Some(last) = parts.last_mut() {
                    last.push(c);
                }
            }
            _ => break,
        }
        at += c.len_utf8();
    }
    if at == 0 {
        let found: String = text.chars().take(20).collect();
        return Err(format!("did not expect {found:?}"));
    }
    Ok((parts, at))
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    /// Number of regular expressions so far.
    patterns: usize,
    /// Type of the entries.
    entry: &'static Type,
    /// Names of collection items with their types, innermost last.
    scope: Vec<(String, &'static Type)>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn next(&mut self) -> Result<Token, String> {
        let token = self.peek().cloned().ok_or("it ends too early")?;
        self.at += 1;
        Ok(token)
    }

    /// Takes a word if it is next; words of the grammar are case-insensitive.
    fn take(&mut self, word: &str) -> bool {
        let found =
            matches!(self.peek(), Some(Token::Word(parts)) if parts.len() == 1 && parts[0].eq_ignore_ascii_case(word));
        self.at += usize::from(found);
        found
    }

    fn or(&mut self, depth: usize) -> Result<Filter, String> {
        let mut left = self.and(depth)?;
        while self.take("or") {
            left = Filter::Or(Box::new(left), Box::new(self.and(depth)?));
        }
        Ok(left)
    }

    fn and(&mut self, depth: usize) -> Result<Filter, String> {
        let mut left = self.not(depth)?;
        while self.take("and") {
            left = Filter::And(Box::new(left), Box::new(self.not(depth)?));
        }
        Ok(left)
    }

    fn not(&mut self, depth: usize) -> Result<Filter, String> {
        if depth > DEEPEST {
            return Err(format!("nested deeper than {DEEPEST}"));
        }
        if self.take("not") {
            return Ok(Filter::Not(Box::new(self.not(depth + 1)?)));
        }
        if self.peek() == Some(&Token::Open) {
            self.at += 1;
            let inner = self.or(depth + 1)?;
            return match self.next()? {
                Token::Close => Ok(inner),
                token => Err(format!("expected ), found {token:?}")),
            };
        }
        if let Some(Token::Word(second)) = self.tokens.get(self.at + 1)
            && !matches!(second.as_slice(), [word] if is_operator(word))
        {
            for (word, every) in [("any", false), ("all", true)] {
                if self.take(word) {
                    return self.each(every, depth);
                }
            }
        }
        self.matching()
    }

    /// Parses the rest of `any` or `all`.
    fn each(&mut self, every: bool, depth: usize) -> Result<Filter, String> {
        let Token::Word(path) = self.next()? else { return Err("expected a selector after any or all".into()) };
        if !self.take("as") {
            return Err("expected as, and a name, behind the selector of any or all".into());
        }
        let (key_type, item_type) = match self.kind(&path)? {
            (_, Type::Texts) => (&schema::NUMBER, &schema::TEXT),
            (_, Type::List(item)) => (&schema::NUMBER, *item),
            (_, Type::Map(item)) => (&schema::TEXT, *item),
            _ => return Err(format!("{} is no list and no map: any and all are not possible", path.join("."))),
        };
        let first = self.name()?;
        // One name means the item of a list, or the key of a map.
        let (key, value) = match self.peek() {
            Some(Token::Comma) => {
                self.at += 1;
                (first, self.name()?)
            }
            _ if matches!(key_type, Type::Text) => (first, None),
            _ => (None, first),
        };
        match self.next()? {
            Token::OpenBrace => {}
            token => return Err(format!("expected {{, found {token:?}")),
        }
        let outer = self.scope.len();
        self.scope.extend(key.iter().map(|name| (name.clone(), key_type)));
        self.scope.extend(value.iter().map(|name| (name.clone(), item_type)));
        let expression = self.or(depth + 1)?;
        self.scope.truncate(outer);
        match self.next()? {
            Token::CloseBrace => Ok(Filter::Each(Box::new(Each { every, path, key, value, expression }))),
            token => Err(format!("expected }}, found {token:?}")),
        }
    }

    /// Parses a name for the items of a collection; `_` means none.
    fn name(&mut self) -> Result<Option<String>, String> {
        match self.next()? {
            Token::Word(mut parts) if parts.len() == 1 => Ok(parts.pop().filter(|name| name != "_")),
            token => Err(format!("expected a name, found {token:?}")),
        }
    }

    fn pattern(&mut self, text: &str) -> Result<Regex, String> {
        self.patterns += 1;
        if self.patterns > MOST_PATTERNS {
            return Err(format!("more than {MOST_PATTERNS} regular expressions"));
        }
        pattern(text, PATTERN_BYTES)
    }

    /// Returns the type of the value that a path begins at, and of the one that it ends at.
    fn kind(&self, path: &[String]) -> Result<(&'static Type, &'static Type), String> {
        let bound = self.scope.iter().rev().find(|(name, _)| Some(name) == path.first());
        let (root, from) = bound.map_or((self.entry, 0), |(_, kind)| (*kind, 1));
        let mut kind = root;
        for (n, part) in path.iter().enumerate().skip(from) {
            // Within a list of objects, a selector goes on with the fields of its items.
            while let Type::List(item) = kind {
                kind = item;
            }
            kind = match kind {
                Type::Object(fields) => schema::field(fields, part),
                Type::Map(item) => Some(*item),
                _ => None,
            }
            .ok_or_else(|| format!("the selector {:?} is not valid here", path[..=n].join(".")))?;
        }
        Ok((root, kind))
    }

    fn test(&mut self, path: Vec<String>, operator: Operator, negated: bool) -> Result<Filter, String> {
        let (root, kind) = self.kind(&path)?;
        let selector = path.join(".");
        let wrong = |value: &str, expected: &str| format!("{value:?} is no {expected}, which {selector} is");
        let test = match (operator, kind) {
            (Operator::Equal(value), Type::Text) => Test::Text(value),
            (Operator::Equal(value), Type::Number) => {
                Test::Number(number(&value).ok_or_else(|| wrong(&value, "whole number"))?)
            }
            (Operator::Equal(value), Type::Flag) => match value.as_str() {
                "1" | "t" | "T" | "TRUE" | "true" | "True" => Test::Flag(true),
                "0" | "f" | "F" | "FALSE" | "false" | "False" => Test::Flag(false),
                value => return Err(wrong(value, "true or false")),
            },
            (Operator::Contains(value), Type::Text | Type::Texts | Type::Map(_)) => Test::Contains(value),
            (Operator::Matches(value), Type::Text) => Test::Matches(self.pattern(&value)?),
            (Operator::Empty, Type::Texts | Type::Map(_) | Type::List(_)) => Test::Empty,
            (operator, _) => return Err(format!("{} is not possible with {selector}", operator.name())),
        };
        Ok(Filter::Match(Match { path, root, test, negated }))
    }

    fn matching(&mut self) -> Result<Filter, String> {
        let first = self.next()?;
        // `value in Selector`: only now is it clear which of the two the first one is.
        let before = self.at;
        let negated = self.take("not");
        if self.take("in") {
            let value = text_of(first)?;
            let Token::Word(path) = self.next()? else { return Err("expected a selector after in".into()) };
            return self.test(path, Operator::Contains(value), negated);
        }
        self.at = before;
        let Token::Word(path) = first else { return Err(format!("expected a selector, found {first:?}")) };
        if self.take("is") {
            let negated = self.take("not");
            return match self.take("empty") {
                true => self.test(path, Operator::Empty, negated),
                false => Err("expected empty after is".into()),
            };
        }
        let negated = self.take("not");
        if self.take("contains") {
            let value = text_of(self.next()?)?;
            return self.test(path, Operator::Contains(value), negated);
        }
        if self.take("matches") {
            let pattern = text_of(self.next()?)?;
            return self.test(path, Operator::Matches(pattern), negated);
        }
        match self.next()? {
            token @ (Token::Equal | Token::NotEqual) if !negated => {
                let value = text_of(self.next()?)?;
                self.test(path, Operator::Equal(value), token == Token::NotEqual)
            }
            token => Err(format!("expected ==, !=, contains, matches, in or is, found {token:?}")),
        }
    }
}

/// An operator with its value.
enum Operator {
    Equal(String),
    Contains(String),
    Matches(String),
    Empty,
}

impl Operator {
    /// Returns the operator's words, for messages.
    fn name(&self) -> &'static str {
        match self {
            Operator::Equal(_) => "== or !=",
            Operator::Contains(_) => "in or contains",
            Operator::Matches(_) => "matches",
            Operator::Empty => "is empty",
        }
    }
}

/// True if the word is an operator that follows a selector or a value: so `any == 1` is about a field named `any`.
fn is_operator(word: &str) -> bool {
    ["is", "not", "in", "contains", "matches"].iter().any(|operator| word.eq_ignore_ascii_case(operator))
}

fn text_of(token: Token) -> Result<String, String> {
    match token {
        Token::Quoted(text) => Ok(text),
        Token::Word(parts) => Ok(parts.join(".")),
        token => Err(format!("expected a value, found {token:?}")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn expressions() {
        let entry = json!({
            "Node": {"Node": "n1"},
            "Service": {"ID": "web-1", "Port": 80, "Tags": ["v1", "primary"], "Meta": {"version": "1.2", "a.b": "c"}},
        });
        for (text, expected) in [
            (r#"Service.ID == "web-1""#, Some(true)),
            ("Service.ID == web-1", Some(true)),
            (r#"Service.ID != "web-1""#, Some(false)),
            ("Service.Port == 80", Some(true)),
            ("Service.Meta.version == `1.2`", Some(true)),
            (r#"Service.Meta["a.b"] == "c""#, Some(true)),
            (r#"Service.Meta.none == "c""#, Some(false)),
            (r#"Service.Meta.none != "c""#, Some(true)),
            (r#""v1" in Service.Tags"#, Some(true)),
            ("v1 in Service.Tags and primary in Service.Tags", Some(true)),
            (r#""v2" not in Service.Tags"#, Some(true)),
            (r#"Service.Tags contains "v2""#, Some(false)),
            (r#"Service.Tags not contains "v2""#, Some(true)),
            ("version in Service.Meta", Some(true)),
            ("Service.Meta is empty", Some(false)),
            ("Service.Kind is empty", None),
            ("Service.Kind == \"\"", Some(true)),
            ("Service.Tags is not empty", Some(true)),
            ("not (Service.Port == 80 or Service.Port == 81)", Some(false)),
            ("Service.Port == 1 or Service.Port == 80 and Node.Node == n1", Some(true)),
            (r#"Service.ID == "web\"1""#, Some(false)),
            ("Service.ID matches `^w.*1$`", Some(true)),
            ("Service.ID matches `eb`", Some(true)),
            ("Service.ID not matches `^eb`", Some(true)),
            ("Service.Meta.none matches `x`", Some(true)),
            ("Service.Port matches `80`", None),
            ("Service.ID matches `(`", None),
            ("Service.ID matches `(a{1000}){1000}`", None),
            ("any Service.Tags as tag { tag == v1 }", Some(true)),
            ("all Service.Tags as tag { tag == v1 }", Some(false)),
            ("not any Service.Tags as tag { tag matches `^v2` }", Some(true)),
            ("all Service.Tags as _, tag { tag != v3 and Service.Port == 80 }", Some(true)),
            ("any Service.Tags as n, tag { n == 1 and tag == primary }", Some(true)),
            ("any Service.Meta as key { key == version }", Some(true)),
            ("any Service.Meta as key, value { key matches `^a` and value == c }", Some(true)),
            ("any Service.Meta as _, value { value == d }", Some(false)),
            ("any Service.None as x { x is empty }", None),
            ("any Service.ID as x { x == 1 }", None),
            ("all Service.TaggedAddresses as x { x == 1 }", Some(true)),
            ("any Service.Tags as n, tag { n.x == 1 }", None),
            ("any Service.Tags as n, tag { n == one }", None),
            ("any Service.Tags as a { any Service.Tags as b { a == v1 and b == primary } }", Some(true)),
            ("any == 1", None),
            ("Service.Meta.any == 1", Some(false)),
            ("any Service.Tags as tag { tag == v1", None),
            ("any Service.Tags { tag == v1 }", None),
            ("any Service.Tags as a.b { a == 1 }", None),
            ("Service.ID", None),
            ("Service.ID ==", None),
            ("(Service.ID == a", None),
            ("Service.ID == \"a", None),
            ("== a", None),
            ("a == b c", None),
            ("", None),
            ("ä ö", None),
        ] {
            let found = Filter::parse(text, &schema::ENTRY).ok().map(|filter| filter.fits(&entry));
            assert_eq!(found, expected, "{text}");
        }
        let parses = |text: &str| Filter::parse(text, &schema::ENTRY).is_ok();
        assert!(!parses(&"(".repeat(4000)));
        assert!(!parses(&"not ".repeat(1000)));
        assert!(!parses(&"any Checks as a { ".repeat(200)));
        let many = |count| vec!["Node.Node matches b"; count].join(" or ");
        assert!(parses(&many(MOST_PATTERNS)) && !parses(&many(MOST_PATTERNS + 1)));
    }

    /// Each filter of the table has the result that Consul's own library gives for it on the same entries.
    #[test]
    fn filters_mean_what_they_mean_to_consul() {
        let entries: Value = serde_json::from_str(include_str!("filter/entries.json")).unwrap();
        let mut seen = 0;
        for line in include_str!("filter/table.txt").lines() {
            let [kind, text, expected] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line:?}") };
            let path: &[&str] = match kind {
                "entry" => &["v1", "health", "service", "web"],
                "catalog" => &["v1", "catalog", "service", "web"],
                "service" => &["v1", "agent", "services"],
                "check" => &["v1", "health", "state", "any"],
                "node" => &["v1", "catalog", "nodes"],
                kind => panic!("{kind}"),
            };
            let found = match Filter::parse(text, schema::of_path(path).unwrap()) {
                Ok(filter) => {
                    let list = entries[kind].as_array().unwrap().iter().enumerate();
                    let fitting = list.filter(|(_, entry)| filter.fits(entry)).map(|(n, _)| n.to_string());
                    fitting.collect::<Vec<_>>().join(",")
                }
                Err(_) => "error".to_owned(),
            };
            assert_eq!(found, expected, "{kind} {text}");
            seen += 1;
        }
        assert!(seen > 150, "{seen} filters");
    }

    proptest! {
        #[test]
        fn no_text_is_too_much(text in "\\PC{0,40}") {
            let _ = Filter::parse(&text, &schema::ENTRY);
        }

        #[test]
        fn what_was_quoted_is_found(value in "\\PC{0,20}") {
            let text = format!("Node == \"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""));
            let fits = Filter::parse(&text, &schema::CHECK).unwrap().fits(&json!({ "Node": value }));
            prop_assert!(fits);
        }
    }
}
