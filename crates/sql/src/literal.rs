//! Literals whose value depends on when they are read.

use pg_query::protobuf::Token;

/// Words that PostgreSQL replaces by a time when it reads a literal of a date or time type. (`epoch` and `infinity` always mean
/// the same.)
const MOVING: [&[u8]; 4] = [b"now", b"today", b"tomorrow", b"yesterday"];

/// True if a text may have a literal like `'now'::timestamptz` or `date 'today'` in it: what a server makes of such a text when it
/// prepares it is the time of that moment. The function `now()` is no such literal.
///
/// Types are not known here: any string literal with one of the words counts, and one whose escapes could spell it. Most texts are
/// told apart without the lexer.
#[must_use]
pub fn has_moving_literal(text: &[u8]) -> bool {
    let suspect = text.contains(&b'\\') || MOVING.iter().any(|word| mentions(text, word));
    if !suspect {
        return false;
    }
    let Ok(text) = str::from_utf8(text) else { return true };
    // A text that the lexer refuses is not prepared either.
    let Ok(scanned) = pg_query::scan(text) else { return false };
    scanned.tokens.iter().any(|token| {
        let literal = matches!(Token::try_from(token.token), Ok(Token::Sconst | Token::Usconst));
        let place = usize::try_from(token.start).ok().zip(usize::try_from(token.end).ok());
        literal && place.and_then(|(from, to)| text.get(from..to)).is_none_or(|word| is_moving(word.as_bytes()))
    })
}

/// True if a text may have a string literal in it. `$1` is none.
#[must_use]
pub fn has_literal(text: &[u8]) -> bool {
    text.contains(&b'\'') || text.windows(2).any(|two| two[0] == b'$' && !two[1].is_ascii_digit())
}

/// True if one of the words stands in a literal by itself, or may, written in escapes.
fn is_moving(literal: &[u8]) -> bool {
    let words = literal.split(|byte| !byte.is_ascii_alphabetic());
    has_numeric_escape(literal) || words.into_iter().any(|word| MOVING.iter().any(|of| word.eq_ignore_ascii_case(of)))
}

/// `\x6e`, `\156`, `\u006e`, and `\006e` or `\+00006e` of `U&'…'`. (That may have another escape character: it is rare, and so is `UESCAPE`.)
fn has_numeric_escape(literal: &[u8]) -> bool {
    let escapes = literal.first().is_some_and(|first| matches!(first, b'e' | b'E' | b'u' | b'U'));
    let is_number =
        |two: &[u8]| two[0] == b'\\' && (two[1].is_ascii_digit() || matches!(two[1], b'x' | b'u' | b'U' | b'+'));
    escapes && literal.windows(2).any(is_number)
}

fn mentions(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|part| part[0] | 0x20 == word[0] && part.eq_ignore_ascii_case(word))
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
            ("select 1, 'it was now or never'", true),
            ("select now()", false),
            ("select a from t where b = 'x' and c < now() and d = 'y'", false),
            ("select now(), 'epoch'::timestamptz", false),
            ("select 'known', 'nowhere', 'snow'", false),
            ("select \"now\", today from yesterday", false),
            ("select 1 -- 'now'", false),
            ("select current_date - 1", false),
            (r"select E'a\nb', 'c\d'", false),
            ("", false),
            ("'now", false),
        ] {
            assert_eq!(has_moving_literal(text.as_bytes()), expected, "{text}");
        }
    }
}
