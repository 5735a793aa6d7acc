//! Classification of texts that the grammar refuses, because it is PostgreSQL 18's, and a newer server runs. Whatever is not recognised here is a write.

use pg_query::protobuf::{KeywordKind, ParseResult, ScanToken, Token};

use crate::class::{Access, Class, Flags};
use crate::functions::Functions;
use crate::{statement, unparsed};

/// Neighbouring words that only PostgreSQL 19 puts together: a text that has them may be one that its server accepts. An empty second word stands
/// for any.
const NEW: [(&str, &str); 12] = [
    ("=", "null"),
    ("by", "all"),
    ("do", "select"),
    ("for", "portion"),
    ("graph_table", "("),
    ("ignore", "nulls"),
    ("merge", "partitions"),
    ("property", "graph"),
    ("repack", ""),
    ("respect", "nulls"),
    ("split", "partition"),
    ("to", "null"),
];

/// Words inside of `GRAPH_TABLE (…)` that precede a parenthesis and are no functions.
const PATTERN: [&str; 2] = ["columns", "match"];

/// A text's tokens, without comments.
struct Words<'t> {
    text: &'t str,
    tokens: Vec<ScanToken>,
}

impl<'t> Words<'t> {
    /// Splits a text; None if it has no tokens that any version would read.
    fn of(text: &'t str) -> Option<Words<'t>> {
        let mut tokens = pg_query::scan_tokens(text).ok()?;
        tokens.retain(|token| !matches!(token.token(), Token::SqlComment | Token::CComment));
        // A semicolon at the end ends the one statement.
        while tokens.last().is_some_and(|token| token.token() == Token::Ascii59) {
            tokens.pop();
        }
        let words = Words { text, tokens };
        (0..words.tokens.len()).all(|i| words.span(i).is_some()).then_some(words)
    }

    fn span(&self, i: usize) -> Option<&'t str> {
        let token = self.tokens.get(i)?;
        self.text.get(usize::try_from(token.start).ok()?..usize::try_from(token.end).ok()?)
    }

    /// Returns the token's text; empty behind the last one.
    fn get(&self, i: usize) -> &'t str {
        self.span(i).unwrap_or_default()
    }

    /// True if the token is this word, in any case and without quotes.
    fn is(&self, i: usize, word: &str) -> bool {
        self.get(i).eq_ignore_ascii_case(word)
    }

    fn kind(&self, i: usize) -> Option<Token> {
        self.tokens.get(i).map(ScanToken::token)
    }
}

/// Class of a text, and whether it holds for all texts of its shape.
pub(crate) struct Newer {
    pub(crate) class: Class,
    pub(crate) of_shape: bool,
}

/// Classifies a text that the grammar refuses. `parse` is the grammar. The hint is not in the result.
pub(crate) fn classify(text: &str, functions: &Functions, parse: impl Fn(&str) -> Option<ParseResult>) -> Newer {
    let refused = Class { flags: Flags::UNKNOWN, ..Class::UNKNOWN };
    let of_shape = |class| Newer { class, of_shape: true };
    let Some(words) = Words::of(text) else { return of_shape(refused) };
    if let Some(wait) = wait_for(&words) {
        return wait;
    }
    if let Some(tree) = without_graphs(&words, functions).and_then(|text| parse(&text)) {
        let mut class = statement::classify(&tree, functions);
        if class.access == Access::Read {
            class.flags = class.flags.with(Flags::APART);
        }
        return of_shape(class);
    }
    let is_new =
        |i: usize| NEW.iter().any(|(one, next)| words.is(i, one) && (next.is_empty() || words.is(i + 1, next)));
    if !(0..words.tokens.len()).any(is_new) {
        return of_shape(refused);
    }
    // Session state that is not noticed would pass to the next client.
    let mut class = Class { hint: None, ..unparsed::classify(text.as_bytes()) };
    if (0..words.tokens.len()).any(|i| ["alter", "create", "drop", "property"].iter().any(|word| words.is(i, word))) {
        class.flags = class.flags.with(Flags::SCHEMA).with(Flags::DDL);
    }
    of_shape(class)
}

/// Classifies `WAIT FOR LSN '…' [WITH (…)]`, which leaves nothing behind. A standby waits for its replay, unless the mode is `primary_flush`: that
/// is a literal's value, which a shape does not have.
fn wait_for(words: &Words<'_>) -> Option<Newer> {
    let begins = ["wait", "for", "lsn"].iter().enumerate().all(|(i, word)| words.is(i, word));
    if !begins
        || words.kind(3) != Some(Token::Sconst)
        || words.tokens.iter().any(|token| token.token() == Token::Ascii59)
    {
        return None;
    }
    let modes: Vec<usize> = (4..words.tokens.len()).filter(|i| words.is(*i, "mode")).collect();
    let on_primary = modes.iter().any(|i| words.get(i + 1).to_ascii_lowercase().contains("primary"));
    let access = if on_primary { Access::Write } else { Access::Read };
    let flags = if on_primary { Flags::SESSION } else { Flags::APART.with(Flags::STANDBY) };
    Some(Newer { class: Class { access, flags, ..Class::UNKNOWN }, of_shape: modes.is_empty() })
}

/// Returns the text with a table's name in the place of each `GRAPH_TABLE (…)`; None if there is none, or if one may do more than read.
fn without_graphs(words: &Words<'_>, functions: &Functions) -> Option<String> {
    let mut out = String::new();
    let (mut copied, mut i) = (0, 0);
    while i < words.tokens.len() {
        if !(words.is(i, "graph_table") && words.is(i + 1, "(")) {
            i += 1;
            continue;
        }
        let close = graph(words, i + 1, functions)?;
        let (name, last) = (words.tokens.get(i)?, words.tokens.get(close)?);
        out.push_str(words.text.get(copied..usize::try_from(name.end).ok()?)?);
        copied = usize::try_from(last.end).ok()?;
        i = close + 1;
    }
    if copied == 0 {
        return None;
    }
    out.push_str(words.text.get(copied..)?);
    Some(out)
}

/// Returns the place of the parenthesis that closes a graph's; None if there is none, or if something between them may do more than read: a query, or
/// a function that is not known to.
fn graph(words: &Words<'_>, open: usize, functions: &Functions) -> Option<usize> {
    let mut depth = 0_usize;
    for i in open..words.tokens.len() {
        match words.get(i) {
            "(" => depth += 1,
            ")" => depth -= 1,
            ";" => return None,
            word if ["select", "table", "values", "with"].iter().any(|query| word.eq_ignore_ascii_case(query)) => {
                return None;
            }
            _ => {}
        }
        if depth == 0 {
            return Some(i);
        }
        if i > open && words.is(i, "(") && !may_precede(words, i - 1, functions) {
            return None;
        }
    }
    None
}

/// True if the token before a parenthesis is no name, or the name of a function that only reads, or a word of graph patterns.
fn may_precede(words: &Words<'_>, i: usize, functions: &Functions) -> bool {
    let Some(token) = words.tokens.get(i) else { return false };
    let first = words.get(i).as_bytes().first();
    let is_name = token.keyword_kind() != KeywordKind::ReservedKeyword
        && first.is_some_and(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'"' | 0x80..));
    let name = words.get(i).to_ascii_lowercase();
    // A dot before a name makes it a schema's function.
    let qualified = i > 0 && words.is(i - 1, ".");
    !is_name || (!qualified && (PATTERN.contains(&name.as_str()) || functions.reads("", &name)))
}
