//! Filter expressions: the common part of Consul's grammar, evaluated on the JSON of a response's entries.
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
//! Not supported: selectors in the form of JSON pointers. A field that an entry lacks equals nothing, matches nothing and is empty. A regular
//! expression always takes time linear in the text; size and number of the expressions are limited.

use regex::{Regex, RegexBuilder};
use serde_json::Value;

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
    Equal(Vec<String>, String),
    Contains(Vec<String>, String),
    Empty(Vec<String>),
    Matches(Vec<String>, Regex),
    Each(Box<Each>),
}

/// A quantifier: true if an expression holds for any item of a collection, or for every one.
#[derive(Debug, Clone)]
pub(super) struct Each {
    every: bool,
    path: Vec<String>,
    /// Names of an item's index or key, and of the item, in the expression.
    key: Option<String>,
    value: Option<String>,
    /// True if only one name was given; it means the item of a list, or the key of a map.
    only: bool,
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

impl Filter {
    /// Parses an expression.
    ///
    /// # Errors
    /// The expression is invalid; the message says what is wrong, and near which word.
    pub(super) fn parse(text: &str) -> Result<Filter, ApiError> {
        let wrong = |message: String| ApiError::bad(format!("filter: {message}"));
        if text.len() > LONGEST {
            return Err(wrong(format!("longer than {LONGEST} bytes")));
        }
        let tokens = tokens(text).map_err(wrong)?;
        let mut parser = Parser { tokens: &tokens, at: 0, patterns: 0 };
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
            Filter::Equal(path, value) => names.find(path).is_some_and(|found| equal(found, value)),
            Filter::Contains(path, value) => names.find(path).is_some_and(|found| contains(found, value)),
            Filter::Empty(path) => names.find(path).is_none_or(is_empty),
            Filter::Matches(path, pattern) => {
                names.find(path).and_then(Value::as_str).is_some_and(|text| pattern.is_match(text))
            }
            Filter::Each(each) => each.holds(names),
        }
    }
}

impl Each {
    fn holds(&self, names: Names<'_>) -> bool {
        let mut items: Box<dyn Iterator<Item = (Value, &Value)> + '_> = match names.find(&self.path) {
            Some(Value::Array(items)) => Box::new(items.iter().enumerate().map(|(n, item)| (n.into(), item))),
            Some(Value::Object(map)) => Box::new(map.iter().map(|(key, item)| (key.as_str().into(), item))),
            _ => Box::new(std::iter::empty()),
        };
        let is_map = names.find(&self.path).is_some_and(Value::is_object);
        let holds = |(key, item): (Value, &Value)| {
            let (first, second) = match (self.only, is_map) {
                (true, true) => (self.value.as_deref(), None),
                (true, false) => (None, self.value.as_deref()),
                (false, _) => (self.key.as_deref(), self.value.as_deref()),
            };
            let outer = names.bound;
            let key = first.map(|name| Bound { name, value: &key, outer });
            let outer = key.as_ref().or(outer);
            let item = second.map(|name| Bound { name, value: item, outer });
            self.expression.holds(Names { bound: item.as_ref().or(outer), ..names })
        };
        if self.every { items.all(holds) } else { items.any(holds) }
    }
}

impl<'a> Names<'a> {
    fn find(&self, path: &[String]) -> Option<&'a Value> {
        let (first, rest) = path.split_first()?;
        let mut bound = self.bound;
        while let Some(one) = bound {
            if one.name == first {
                return rest.iter().try_fold(one.value, |value, part| value.get(part));
            }
            bound = one.outer;
        }
        path.iter().try_fold(self.entry, |value, part| value.get(part))
    }
}

fn equal(found: &Value, value: &str) -> bool {
    match found {
        Value::String(text) => text == value,
        Value::Number(number) => number.to_string() == value,
        Value::Bool(bool) => value == if *bool { "true" } else { "false" },
        _ => false,
    }
}

fn contains(found: &Value, value: &str) -> bool {
    match found {
        Value::Array(items) => items.iter().any(|item| equal(item, value)),
        Value::Object(map) => map.contains_key(value),
        Value::String(text) => text.contains(value),
        _ => false,
    }
}

fn is_empty(found: &Value) -> bool {
    match found {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
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

/// Returns the text in quotes, and its length in bytes. A backslash escapes only in double quotes.
fn quoted(text: &str, quote: char) -> Result<(String, usize), String> {
    let mut value = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            _ if c == quote => return Ok((value, at + c.len_utf8())),
            '\\' if quote == '"' => match chars.next() {
                Some((_, escaped)) => value.push(escaped),
                None => break,
            },
            _ => value.push(c),
        }
    }
    Err("a quote is not closed".into())
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
        let first = self.name()?;
        let (key, value, only) = match self.peek() {
            Some(Token::Comma) => {
                self.at += 1;
                (first, self.name()?, false)
            }
            _ => (None, first, true),
        };
        match self.next()? {
            Token::OpenBrace => {}
            token => return Err(format!("expected {{, found {token:?}")),
        }
        let expression = self.or(depth + 1)?;
        match self.next()? {
            Token::CloseBrace => Ok(Filter::Each(Box::new(Each { every, path, key, value, only, expression }))),
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

    fn matching(&mut self) -> Result<Filter, String> {
        let first = self.next()?;
        // `value in Selector`: only now is it clear which of the two the first one is.
        let before = self.at;
        let negated = self.take("not");
        if self.take("in") {
            let value = text_of(first)?;
            let Token::Word(path) = self.next()? else { return Err("expected a selector after in".into()) };
            return Ok(maybe_not(negated, Filter::Contains(path, value)));
        }
        self.at = before;
        let Token::Word(path) = first else { return Err(format!("expected a selector, found {first:?}")) };
        if self.take("is") {
            let negated = self.take("not");
            return match self.take("empty") {
                true => Ok(maybe_not(negated, Filter::Empty(path))),
                false => Err("expected empty after is".into()),
            };
        }
        let negated = self.take("not");
        if self.take("contains") {
            let value = text_of(self.next()?)?;
            return Ok(maybe_not(negated, Filter::Contains(path, value)));
        }
        if self.take("matches") {
            let pattern = text_of(self.next()?)?;
            return Ok(maybe_not(negated, Filter::Matches(path, self.pattern(&pattern)?)));
        }
        match self.next()? {
            Token::Equal if !negated => Ok(Filter::Equal(path, text_of(self.next()?)?)),
            Token::NotEqual if !negated => Ok(maybe_not(true, Filter::Equal(path, text_of(self.next()?)?))),
            token => Err(format!("expected ==, !=, contains, matches, in or is, found {token:?}")),
        }
    }
}

/// True if the word is an operator that follows a selector or a value: so `any == 1` is about a field named `any`.
fn is_operator(word: &str) -> bool {
    ["is", "not", "in", "contains", "matches"].iter().any(|operator| word.eq_ignore_ascii_case(operator))
}

fn maybe_not(negated: bool, filter: Filter) -> Filter {
    if negated { Filter::Not(Box::new(filter)) } else { filter }
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
            ("Service.Kind is empty", Some(true)),
            ("Service.Tags is not empty", Some(true)),
            ("not (Service.Port == 80 or Service.Port == 81)", Some(false)),
            ("Service.Port == 1 or Service.Port == 80 and Node.Node == n1", Some(true)),
            (r#"Service.ID == "web\"1""#, Some(false)),
            ("Service.ID matches `^w.*1$`", Some(true)),
            ("Service.ID matches `eb`", Some(true)),
            ("Service.ID not matches `^eb`", Some(true)),
            ("Service.Meta.none matches `.*`", Some(false)),
            ("Service.Port matches `80`", Some(false)),
            ("Service.ID matches `(`", None),
            ("Service.ID matches `(a{1000}){1000}`", None),
            ("any Service.Tags as tag { tag == v1 }", Some(true)),
            ("all Service.Tags as tag { tag == v1 }", Some(false)),
            ("not any Service.Tags as tag { tag matches `^v2` }", Some(true)),
            ("all Service.Tags as _, tag { tag is not empty and Service.Port == 80 }", Some(true)),
            ("any Service.Tags as n, tag { n == 1 and tag == primary }", Some(true)),
            ("any Service.Meta as key { key == version }", Some(true)),
            ("any Service.Meta as key, value { key matches `^a` and value == c }", Some(true)),
            ("any Service.Meta as _, value { value == d }", Some(false)),
            ("any Service.None as x { x is empty }", Some(false)),
            ("all Service.None as x { x == 1 }", Some(true)),
            ("any Service.Tags as a { any Service.Tags as b { a == v1 and b == primary } }", Some(true)),
            ("any == 1", Some(false)),
            ("any is empty", Some(true)),
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
            let found = Filter::parse(text).ok().map(|filter| filter.fits(&entry));
            assert_eq!(found, expected, "{text}");
        }
        assert!(Filter::parse(&"(".repeat(4000)).is_err());
        assert!(Filter::parse(&"not ".repeat(1000)).is_err());
        assert!(Filter::parse(&"any a as a { ".repeat(300)).is_err());
        let many = |count| vec!["a matches b"; count].join(" or ");
        assert!(Filter::parse(&many(MOST_PATTERNS)).is_ok() && Filter::parse(&many(MOST_PATTERNS + 1)).is_err());
    }

    proptest! {
        #[test]
        fn no_text_is_too_much(text in "\\PC{0,40}") {
            let _ = Filter::parse(&text);
        }

        #[test]
        fn what_was_quoted_is_found(value in "\\PC{0,20}") {
            let text = format!("A == \"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""));
            let fits = Filter::parse(&text).unwrap().fits(&json!({ "A": value }));
            prop_assert!(fits);
        }
    }
}
