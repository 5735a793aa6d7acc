//! Filter expressions: the common part of Consul's grammar, evaluated over the JSON of an answer's entries.
//!
//! ```text
//!  expression  a or b, a and b, not a, (a)
//!  match       Selector == value      Selector != value
//!              Selector contains value      Selector not contains value
//!              value in Selector      value not in Selector
//!              Selector is empty      Selector is not empty
//!  Selector    Service.Meta.version   Service.Meta["a.b"]
//!  value       "text"   `text`   word   12
//! ```
//!
//! Not understood: `matches` (regular expressions), `any`/`all`, and selectors in the form of JSON pointers. A field that an
//! entry does not have equals nothing and is empty.

use serde_json::Value;

use crate::api::ApiError;

/// Longest expression, in bytes.
const LONGEST: usize = 4096;
/// Deepest nesting.
const DEEPEST: usize = 32;

/// A parsed expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Filter {
    Or(Box<Filter>, Box<Filter>),
    And(Box<Filter>, Box<Filter>),
    Not(Box<Filter>),
    Equal(Vec<String>, String),
    Contains(Vec<String>, String),
    Empty(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Open,
    Close,
    Equal,
    NotEqual,
    Quoted(String),
    /// A word, or a selector: its parts.
    Word(Vec<String>),
}

impl Filter {
    /// # Errors
    /// What is wrong, and near which word.
    pub(super) fn parse(text: &str) -> Result<Filter, ApiError> {
        let wrong = |message: String| ApiError::bad(format!("filter: {message}"));
        if text.len() > LONGEST {
            return Err(wrong(format!("longer than {LONGEST} bytes")));
        }
        let tokens = tokens(text).map_err(wrong)?;
        let mut parser = Parser { tokens: &tokens, at: 0 };
        let filter = parser.or(0).map_err(wrong)?;
        match parser.peek() {
            None => Ok(filter),
            Some(token) => Err(wrong(format!("did not expect {token:?}"))),
        }
    }

    pub(super) fn fits(&self, entry: &Value) -> bool {
        match self {
            Filter::Or(a, b) => a.fits(entry) || b.fits(entry),
            Filter::And(a, b) => a.fits(entry) && b.fits(entry),
            Filter::Not(a) => !a.fits(entry),
            Filter::Equal(path, value) => find(entry, path).is_some_and(|found| equal(found, value)),
            Filter::Contains(path, value) => find(entry, path).is_some_and(|found| contains(found, value)),
            Filter::Empty(path) => find(entry, path).is_none_or(is_empty),
        }
    }
}

fn find<'a>(entry: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(entry, |value, part| value.get(part))
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

/// The text in quotes, and how many bytes it took. A backslash counts only in double quotes.
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

    /// Takes a word if it is next; words of the grammar are the same in any case.
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
        self.matching()
    }

    fn matching(&mut self) -> Result<Filter, String> {
        let first = self.next()?;
        // `value in Selector`: which of the two the first is shows only now.
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
            return Err("matches is not supported; == and contains are".into());
        }
        match self.next()? {
            Token::Equal if !negated => Ok(Filter::Equal(path, text_of(self.next()?)?)),
            Token::NotEqual if !negated => Ok(maybe_not(true, Filter::Equal(path, text_of(self.next()?)?))),
            token => Err(format!("expected ==, !=, contains, in or is, found {token:?}")),
        }
    }
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
            ("Service.ID matches `w.*`", None),
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
