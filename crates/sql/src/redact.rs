//! Redaction of a statement's text, for logs and statistics: removes every literal and every comment.

use pg_query::protobuf::Token;

/// Replacement of a text that PostgreSQL's lexer rejects.
const UNREADABLE: &str = "(a text that is not SQL)";

/// Returns the text with `?` for each literal, without comments, and with single spaces for white space; cut after `most` bytes with `…`.
///
/// Only the lexer decides what a literal is, wherever it stands (a password, a connection string, a function's body). Nothing is returned of a text
/// that it rejects.
#[must_use]
pub fn redact(text: &[u8], most: usize) -> String {
    let Ok(text) = str::from_utf8(text) else { return UNREADABLE.into() };
    let Ok(scanned) = pg_query::scan(text) else { return UNREADABLE.into() };
    let mut out = String::with_capacity(text.len().min(most + 8));
    let mut end = 0;
    // `?, ?, ?` becomes `?, …`, so that lists of any length are one statement.
    let (mut listed, mut comma) = (false, false);
    for token in &scanned.tokens {
        let (Ok(from), Ok(to)) = (usize::try_from(token.start), usize::try_from(token.end)) else { continue };
        let Some(word) = text.get(from..to) else { return UNREADABLE.into() };
        let kind = Token::try_from(token.token).unwrap_or(Token::Nul);
        let spaced = from > end;
        end = to;
        if matches!(kind, Token::SqlComment | Token::CComment) {
            // Tokens separated by the comment stay separated.
            end = from.min(end);
            continue;
        }
        let literal = matches!(
            kind,
            Token::Sconst | Token::Usconst | Token::Bconst | Token::Xconst | Token::Fconst | Token::Iconst
        );
        if literal && comma && listed {
            comma = false;
            if !out.ends_with('…') {
                out.push_str(", …");
            }
            continue;
        }
        if comma {
            // The list of literals did not continue.
            comma = false;
            out.push(',');
        }
        if word == "," && listed {
            comma = true;
            continue;
        }
        listed = literal;
        if spaced && !out.is_empty() && !out.ends_with(' ') {
            out.push(' ');
        }
        out.push_str(if literal { "?" } else { word });
        if out.len() > most {
            let cut = (0..=most).rev().find(|&at| out.is_char_boundary(at)).unwrap_or(0);
            out.truncate(cut);
            out.push('…');
            return out;
        }
    }
    if comma {
        out.push(',');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_a_value() {
        for (text, expected) in [
            ("SELECT 1", "SELECT ?"),
            ("select  'a''b',\n\tx from t where y=$1 -- secret", "select ?, x from t where y=$1"),
            ("SELECT /* traceparent='x' */ 1.5e3, x'ff', b'01', E'a\\'b', U&'d'", "SELECT ?, …"),
            ("SELECT a FROM t WHERE b IN (1, 2,3 , 4) AND c = 5", "SELECT a FROM t WHERE b IN (?, …) AND c = ?"),
            ("SELECT a FROM t WHERE b IN (1, c, 3)", "SELECT a FROM t WHERE b IN (?, c, ?)"),
            ("INSERT INTO t VALUES (1,'a'),(2,'b')", "INSERT INTO t VALUES (?, …),(?, …)"),
            ("CREATE ROLE a LOGIN PASSWORD 'hunter2'", "CREATE ROLE a LOGIN PASSWORD ?"),
            ("ALTER USER a PASSWORD $$hunter2$$", "ALTER USER a PASSWORD ?"),
            (
                "CREATE SUBSCRIPTION s CONNECTION 'host=x password=hunter2' PUBLICATION p",
                "CREATE SUBSCRIPTION s CONNECTION ? PUBLICATION p",
            ),
            ("DO $body$ begin perform 'hunter2'; end $body$", "DO ?"),
            ("SELECT \"Column\" FROM t", "SELECT \"Column\" FROM t"),
            ("SELECT 'open", UNREADABLE),
            ("SELECT/**/1", "SELECT ?"),
            ("", ""),
        ] {
            assert_eq!(redact(text.as_bytes(), 1000), expected, "{text}");
        }
        assert_eq!(redact(b"SELECT '\xff'", 1000), UNREADABLE);
        assert_eq!(redact("SELECT abcdefgh, ü".as_bytes(), 10), "SELECT abc…");
        assert_eq!(redact("SELECT ü".as_bytes(), 8), "SELECT …");
    }
}
