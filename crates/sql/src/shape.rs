//! Shape of a text: the text without the values of its plain literals.
//!
//! Invariant: two texts of one shape have the same tokens for PostgreSQL's lexer, except for the values of integer and plain string literals, and so
//! the same parse tree except for those values. If a text contains anything that makes this doubtful, the exact text is its own shape.
//!
//! Assumes `standard_conforming_strings = on`. With it off, a backslash escapes inside `'…'`; strings with a backslash are never removed, but callers
//! should not classify texts of such sessions at all, because the parser would read the remaining ones differently from the server.

/// First byte of a key whose rest is a shape.
const SHAPE: u8 = 1;
/// First byte of a key whose rest is the exact text.
const EXACT: u8 = 0;

/// Mark of a digit run whose value fits PostgreSQL's `ICONST` (int4).
const SMALL: u8 = 1;
/// Mark of a longer digit run, which is another token in the grammar (`FCONST`).
const LARGE: u8 = 2;
/// Mark of a plain string.
const STRING: u8 = 3;

/// Classes of bytes, by the tokens that a byte may begin or continue.
const IDENT_START: u8 = 1;
const DIGIT: u8 = 1 << 1;
const DOLLAR: u8 = 1 << 2;
/// Copied without further effect.
const PLAIN: u8 = 1 << 3;
/// Must be examined: neither a letter nor plain.
const STOP: u8 = 1 << 4;

static BYTES: [u8; 256] = {
    let mut table = [0u8; 256];
    let mut b = 0usize;
    while b < 256 {
        table[b] = match b as u8 {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | 0x80..=0xff => IDENT_START,
            b'0'..=b'9' => DIGIT | STOP,
            b'$' => DOLLAR | STOP,
            // Whitespace, and punctuation that begins no comment, quote or `U&`.
            b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c => PLAIN,
            b'(' | b')' | b'[' | b']' | b',' | b';' | b':' | b'.' | b'+' | b'*' | b'<' | b'>' | b'=' | b'~' | b'!'
            | b'@' | b'#' | b'%' | b'^' | b'|' | b'`' | b'?' | b'{' | b'}' => PLAIN,
            _ => STOP,
        };
        b += 1;
    }
    table
};

/// Writes the key of `text` into `key` (cleared first; allocates only to grow): its shape, or the exact text.
pub(crate) fn key(text: &[u8], key: &mut Vec<u8>) {
    key.clear();
    // A shape is never longer than its text: no growth inside the loop.
    key.reserve(text.len() + 1);
    key.push(SHAPE);
    if shape(text, key).is_none() {
        key.clear();
        key.push(EXACT);
        key.extend_from_slice(text);
    }
}

/// Appends the shape of `text`; returns `None` if the text contains anything doubtful.
///
/// Most bytes of a text are letters, white space and brackets, which the first loop skips. The byte before a digit, a dollar sign or a quote tells if
/// that belongs to an identifier.
fn shape(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let at = |i: usize| text.get(i).copied().unwrap_or(0);
    let mut i = 0;
    // Start of the bytes to be copied.
    let mut kept = 0;
    while let Some(run) = before_stop(&text[i..]) {
        i += run;
        let in_identifier = run > 0 && BYTES[text[i - 1] as usize] & IDENT_START != 0;
        let byte = text[i];
        let class = BYTES[byte as usize];
        if in_identifier && class & (DIGIT | DOLLAR) != 0 {
            while BYTES[at(i) as usize] & (IDENT_START | DIGIT | DOLLAR) != 0 {
                i += 1;
            }
            // e1'…' is an identifier and a string to PostgreSQL; it is too rare to be supported.
            if at(i) == b'\'' {
                return None;
            }
        } else if class & DIGIT != 0 {
            let start = i;
            while BYTES[at(i) as usize] & DIGIT != 0 {
                i += 1;
            }
            // 0x1F, 1_000, 1e5 and junk: the following bytes belong to the number.
            if BYTES[at(i) as usize] & IDENT_START == 0 {
                out.extend_from_slice(&text[kept..start]);
                out.push(if fits_int4(&text[start..i]) { SMALL } else { LARGE });
                kept = i;
            }
        } else {
            match byte {
                // E'…', B'…', X'…', N'…'.
                b'\'' if in_identifier => return None,
                b'\'' => {
                    out.extend_from_slice(&text[kept..i]);
                    i = string_end(text, i + 1)?;
                    out.push(STRING);
                    kept = i;
                }
                b'"' => i = quoted_end(text, i + 1)?,
                b'-' if at(i + 1) == b'-' => i = line_comment_end(text, i + 2)?,
                b'/' if at(i + 1) == b'*' => i = block_comment_end(text, i + 2)?,
                b'-' | b'/' => i += 1,
                // U&'…' and U&"…", whose meaning depends on a literal after UESCAPE.
                b'&' if matches!(at(i + 1), b'\'' | b'"') => return None,
                b'&' => i += 1,
                // $1, but not $tag$.
                b'$' if BYTES[at(i + 1) as usize] & DIGIT != 0 => {
                    i += 1;
                    while BYTES[at(i) as usize] & DIGIT != 0 {
                        i += 1;
                    }
                }
                _ => return None,
            }
        }
    }
    out.extend_from_slice(&text[kept..]);
    Some(())
}

/// Returns the number of bytes before the first one that must be examined; `None` if there is none.
fn before_stop(text: &[u8]) -> Option<usize> {
    let stops = |byte: &u8| BYTES[*byte as usize] & STOP != 0;
    // Eight at a time, with one branch for all of them.
    let (eights, _) = text.as_chunks::<8>();
    let passed = 8 * eights
        .iter()
        .take_while(|eight| eight.iter().fold(0, |any, byte| any | BYTES[*byte as usize]) & STOP == 0)
        .count();
    text[passed..].iter().position(stops).map(|at| passed + at)
}

/// True if PostgreSQL's lexer makes an `ICONST` of the digits, not an `FCONST`.
fn fits_int4(digits: &[u8]) -> bool {
    if digits.len() < 10 {
        return true;
    }
    let value = digits.iter().try_fold(0u32, |value, d| value.checked_mul(10)?.checked_add(u32::from(d - b'0')));
    value.is_some_and(|value| value <= i32::MAX as u32)
}

/// Returns the end of a plain string whose first byte after the quote is at `i`; `None` if it has a backslash or no end.
fn string_end(text: &[u8], mut i: usize) -> Option<usize> {
    loop {
        match text.get(i)? {
            b'\'' if text.get(i + 1) == Some(&b'\'') => i += 2,
            b'\'' => return Some(i + 1),
            b'\\' | 0 => return None,
            _ => i += 1,
        }
    }
}

/// Checks that a copied byte does not look like a mark.
fn unmistakable(byte: u8) -> Option<()> {
    (byte > STRING).then_some(())
}

fn quoted_end(text: &[u8], mut i: usize) -> Option<usize> {
    loop {
        match text.get(i)? {
            b'"' if text.get(i + 1) == Some(&b'"') => i += 2,
            b'"' => return Some(i + 1),
            byte => {
                unmistakable(*byte)?;
                i += 1;
            }
        }
    }
}

/// Returns the end of a `--` comment: the newline, or the end of the text.
pub(crate) fn line_comment_end(text: &[u8], mut i: usize) -> Option<usize> {
    while let Some(byte) = text.get(i) {
        if matches!(byte, b'\n' | b'\r') {
            break;
        }
        unmistakable(*byte)?;
        i += 1;
    }
    Some(i)
}

/// Returns the end of a (nested) block comment whose first byte after `/*` is at `i`.
pub(crate) fn block_comment_end(text: &[u8], mut i: usize) -> Option<usize> {
    let mut depth = 1;
    loop {
        match (*text.get(i)?, text.get(i + 1)) {
            (b'/', Some(b'*')) => {
                depth += 1;
                i += 2;
            }
            (b'*', Some(b'/')) => {
                depth -= 1;
                i += 2;
                if depth == 0 {
                    return Some(i);
                }
            }
            (byte, _) => {
                unmistakable(byte)?;
                i += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> String {
        let mut out = Vec::new();
        key(text.as_bytes(), &mut out);
        String::from_utf8_lossy(&out)
            .replace('\u{3}', "S")
            .replacen('\u{1}', "~", 1)
            .replace('\u{1}', "I")
            .replace('\u{2}', "L")
            .replace('\0', "=")
    }

    #[test]
    fn shapes() {
        for (text, want) in [
            ("select 1", "~select I"),
            ("select 2147483647, 2147483648, 0000000000001", "~select I, L, I"),
            ("select 1.50, .5, 1., 1..10", "~select I.I, .I, I., I..I"),
            ("select 1e5, 1e-5, 0x1F, 1_000, 12ab", "~select 1e5, 1e-I, 0x1F, 1_000, 12ab"),
            ("select a1, t2.c3, $1, $12, a$1", "~select a1, t2.c3, $1, $12, a$1"),
            ("select 'it''s', ''", "~select S, S"),
            ("select 'a'\n'b'", "~select S\nS"),
            ("select '/* no', 1 -- 'no' 1\n, 2", "~select S, I -- 'no' 1\n, I"),
            ("select /* 'a' /* 1 */ ' */ 1", "~select /* 'a' /* 1 */ ' */ I"),
            ("select 1 /**/-- x", "~select I /**/-- x"),
            ("select 1 /*/ 2 */ + 3", "~select I /*/ 2 */ + I"),
            ("select 1 /***/ 2", "~select I /***/ I"),
            ("select 1 -/* 2", "=select 1 -/* 2"),
            ("select \"a 1 'x' \"\" --\", 5", "~select \"a 1 'x' \"\" --\", I"),
            ("select - 1 / 2 - -3", "~select - I / I - -I"),
            ("select 'é' \u{e9}1", "~select S \u{e9}1"),
            ("select 'a\\'", "=select 'a\\'"),
            ("select E'a', 1", "=select E'a', 1"),
            ("select x'1F', 1", "=select x'1F', 1"),
            ("select U&'a' UESCAPE '!'", "=select U&'a' UESCAPE '!'"),
            ("select U&\"a\" UESCAPE '!'", "=select U&\"a\" UESCAPE '!'"),
            ("select $$a$$, 1", "=select $$a$$, 1"),
            ("select $x$a$x$, 1", "=select $x$a$x$, 1"),
            ("select 'open", "=select 'open"),
            ("select \"open", "=select \"open"),
            ("select \\ 1", "=select \\ 1"),
        ] {
            assert_eq!(of(text), want, "{text}");
        }
    }

    #[test]
    fn marks_in_the_text_are_not_taken_for_marks() {
        for text in ["select \u{1}", "select \"\u{3}\"", "select /*\u{2}*/ 1", "select --\u{1}"] {
            let mut out = Vec::new();
            key(text.as_bytes(), &mut out);
            assert_eq!(out[0], EXACT, "{text:?}");
        }
    }
}
