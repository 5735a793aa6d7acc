//! Routing hint of a text: `kingpost.route=…` in a comment before its first token.

use crate::class::Hint;
use crate::shape::{block_comment_end, line_comment_end};

/// Returns the first valid hint in the comments before the first token. An unknown value is no hint.
pub(crate) fn hint(text: &[u8]) -> Option<Hint> {
    let mut i = 0;
    loop {
        match text.get(i)? {
            b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c => i += 1,
            b'/' if text.get(i + 1) == Some(&b'*') => {
                let end = block_comment_end(text, i + 2)?;
                if let Some(hint) = parse(&text[i + 2..end - 2]) {
                    return Some(hint);
                }
                i = end;
            }
            b'-' if text.get(i + 1) == Some(&b'-') => {
                let end = line_comment_end(text, i + 2)?;
                if let Some(hint) = parse(&text[i + 2..end]) {
                    return Some(hint);
                }
                i = end;
            }
            _ => return None,
        }
    }
}

fn parse(comment: &[u8]) -> Option<Hint> {
    let (name, value) = str::from_utf8(comment).ok()?.split_once('=')?;
    if !name.trim().eq_ignore_ascii_case("kingpost.route") {
        return None;
    }
    value_of(value.trim())
}

/// Parses `primary`, `replica` or `auto`, in any case.
pub(crate) fn value_of(value: &str) -> Option<Hint> {
    [("primary", Hint::Primary), ("replica", Hint::Replica), ("auto", Hint::Auto)]
        .into_iter()
        .find_map(|(name, hint)| value.eq_ignore_ascii_case(name).then_some(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints() {
        for (text, want) in [
            ("/* kingpost.route=primary */ select 1", Some(Hint::Primary)),
            ("/*kingpost.route=replica*/select 1", Some(Hint::Replica)),
            ("  /* other */ /*\tKingpost.Route = AUTO\n*/ select 1", Some(Hint::Auto)),
            ("-- kingpost.route=primary\nselect 1", Some(Hint::Primary)),
            ("/* kingpost.route=primary */ /* kingpost.route=replica */ select 1", Some(Hint::Primary)),
            ("/* kingpost.route=nowhere */ /* kingpost.route=replica */ select 1", Some(Hint::Replica)),
            ("/* kingpost.route=nowhere */ select 1", None),
            ("select /* kingpost.route=primary */ 1", None),
            ("; /* kingpost.route=primary */ select 1", None),
            ("/* kingpost.route=primary select 1", None),
            ("/**/", None),
            ("/*/ kingpost.route=primary */ select 1", None),
            ("", None),
        ] {
            assert_eq!(hint(text.as_bytes()), want, "{text}");
        }
    }
}
