//! Literals whose value depends on when they are read.

use memchr::memchr2_iter;
use pg_query::protobuf::Token;

/// Words that PostgreSQL replaces by a time when it reads a literal of a date or time type. (`epoch` and `infinity` have constant meanings.)
const MOVING: [&[u8]; 4] = [b"now", b"today", b"tomorrow", b"yesterday"];

/// True if a text may contain a literal like `'now'::timestamptz` or `date 'today'`: a server that prepares such a text fixes the time of that
/// moment. The function `now()` is not such a literal.
///
/// Types are unknown here: any string literal with one of the words counts, also one whose escapes could spell it, and one in pieces (`'no'` on one
/// line and `'w'` on the next are `'now'`). Most texts are decided without the lexer.
#[must_use]
pub fn has_moving_literal(text: &[u8]) -> bool {
    let spelt_otherwise = text.contains(&b'\\') || mentions(text, b"u&'") || has_quote_first_on_line(text);
    if !spelt_otherwise && !MOVING.iter().any(|word| mentions(text, word)) {
        return false;
    }
    let Ok(text) = str::from_utf8(text) else { return true };
    // A text that the lexer rejects is not prepared either.
    let Ok(scanned) = pg_query::scan(text) else { return false };
    scanned.tokens.iter().any(|token| {
        let place = usize::try_from(token.start).ok().zip(usize::try_from(token.end).ok());
        match Token::try_from(token.token) {
            Ok(Token::Sconst) => {
                place.and_then(|(from, to)| text.get(from..to)).is_none_or(|of| is_moving(of.as_bytes()))
            }
            // The escape character may be any: `U&'!006eow' UESCAPE '!'`.
            Ok(Token::Usconst) => true,
            _ => false,
        }
    })
}

/// True if a text may contain a string literal. `$1` is not one.
#[must_use]
pub fn has_literal(text: &[u8]) -> bool {
    text.contains(&b'\'') || text.windows(2).any(|two| two[0] == b'$' && !two[1].is_ascii_digit())
}

/// True if a literal (with its quotes) has one of the words by itself, or may have: in escapes, or in pieces.
fn is_moving(literal: &[u8]) -> bool {
    let said = |text: &[u8]| {
        let mut words = text.split(|byte| !byte.is_ascii_alphabetic());
        words.any(|word| MOVING.iter().any(|of| word.eq_ignore_ascii_case(of)))
    };
    // `$$…$$` has neither pieces nor escapes, `'\xff'::bytea` no escapes.
    let has_pieces = !literal.starts_with(b"$") && has_quote_first_on_line(literal);
    let has_escapes = literal.first().is_some_and(|first| first.eq_ignore_ascii_case(&b'e'));
    said(literal) || has_pieces || (has_escapes && unescaped(literal).is_none_or(|text| said(&text)))
}

/// Returns a literal's text without its escapes: `\o` is `o`, `\n` separates words. `None` if characters are given by number (`\x6e`, `\156`,
/// `\u006e`).
fn unescaped(literal: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(literal.len());
    let mut bytes = literal.iter();
    while let Some(&byte) = bytes.next() {
        if byte != b'\\' {
            text.push(byte);
            continue;
        }
        match bytes.next() {
            Some(b'0'..=b'9' | b'x' | b'u' | b'U') => return None,
            Some(b'b' | b'f' | b'n' | b'r' | b't' | b'v') => text.push(b' '),
            Some(&escaped) => text.push(escaped),
            None => break,
        }
    }
    Some(text)
}

/// True if a line begins with a quote, as the continuation of a literal from a line above does.
fn has_quote_first_on_line(text: &[u8]) -> bool {
    let mut lines = text.split(|byte| matches!(byte, b'\n' | b'\r'));
    lines.next();
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\x0b' | b'\x0c');
    lines.any(|line| line.iter().find(|byte| !is_space(byte)) == Some(&b'\''))
}

/// True if a word is in a text, in any case. Texts may have megabytes: few bytes of them are looked at one by one.
fn mentions(text: &[u8], word: &[u8]) -> bool {
    let Some(first) = word.first() else { return true };
    memchr2_iter(first.to_ascii_lowercase(), first.to_ascii_uppercase(), text)
        .any(|at| text.get(at..at + word.len()).is_some_and(|part| part.eq_ignore_ascii_case(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_without_a_literal() {
        for (text, expected) in [
            ("select $1, $23 + 4, \"a b\"", false),
            ("select 'a'", true),
            ("select $$a$$", true),
            ("select $x$a$x$, $1", true),
            ("select 1 -- it's", true),
            ("", false),
        ] {
            assert_eq!(has_literal(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn literals_that_move() {
        for (text, expected) in [
            ("select 'now'::timestamptz", true),
            ("select date 'today'", true),
            ("select 'Tomorrow'::date, 1", true),
            ("select ' YESTERDAY 04:05'::timestamp", true),
            ("insert into t values ('a', 'now')", true),
            ("select $$now$$::timestamptz", true),
            ("select $x$today$x$::date", true),
            (r"select E'\x6e\x6f\x77'::timestamptz", true),
            (r"select U&'\006e\006f\0077'::timestamptz", true),
            (r"select U&'!006e!006f!0077' UESCAPE '!'::timestamptz", true),
            (r"select E'\156ow'::timestamptz", true),
            (r"select E'n\ow'::timestamptz", true),
            (r"select E'\nnow'::timestamptz", true),
            ("select 'no'\n'w'::timestamptz", true),
            ("select 'no' -- the first half\n  'w'::timestamptz", true),
            ("select 'no'\r 'w'::timestamptz", true),
            ("select 'no'\n\x0c'w'::timestamptz", true),
            ("select 'a',\n'b'", false),
            ("do $$ begin perform\n'a', E'\\x41'; end $$", false),
            ("select 'a'\n || 'b', c\n = 'd'", false),
            ("select 1, 'it was now or never'", true),
            ("select now()", false),
            ("select a from t where b = 'x' and c < now() and d = 'y'", false),
            ("select now(), 'epoch'::timestamptz", false),
            ("select 'known', 'nowhere', 'snow'", false),
            ("select \"now\", today from yesterday", false),
            ("select 1 -- 'now'", false),
            ("select current_date - 1", false),
            (r"select E'a\nb', 'c\d', '\xff'::bytea, '\now'", true),
            (r"select E'a\nb', 'c\d', '\xff'::bytea, '\know'", false),
            ("", false),
            ("'now", false),
        ] {
            assert_eq!(has_moving_literal(text.as_bytes()), expected, "{text}");
        }
    }
}
