//! The list of entries that a request of version 1 listens to, and the answer. Pure.
//!
//! ```text
//!  ID ^2 GROUP ^2 MD5 [^2 NAMESPACE] ^1      for each entry; ^1 and ^2 are the characters U+0001 and U+0002
//! ```

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::*;

const FIELD: char = '\u{2}';
const LINE: char = '\u{1}';
/// Characters that the answer has in escaped form, as Java's `URLEncoder` writes it.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_').remove(b'*');

/// An entry of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// The entry.
    pub(in crate::api) listened: Listened,
    /// The namespace as the client wrote it.
    pub(super) tenant: Option<String>,
}

/// Parses a list.
///
/// # Errors
/// An entry has too few or too many fields, or an invalid name; there are too many.
pub(in crate::api::nacos) fn parse(text: &str) -> Result<Vec<Line>, ApiError> {
    let mut lines = Vec::new();
    for line in text.split(LINE).filter(|line| !line.is_empty()) {
        if lines.len() >= MOST_LISTENED {
            return Err(ApiError::bad(format!("Listening-Configs: more than {MOST_LISTENED} entries")));
        }
        let mut fields = line.split(FIELD);
        let (Some(id), Some(group), Some(md5), tenant, None) =
            (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(ApiError::bad("Listening-Configs: expected dataId^2group^2md5^2namespace^1"));
        };
        let namespace = named(tenant.unwrap_or_default())?;
        let listened = Listened { namespace, key: key(group, id)?, md5: md5.to_owned() };
        lines.push(Line { listened, tenant: tenant.map(str::to_owned) });
    }
    if lines.is_empty() {
        return Err(ApiError::bad("Listening-Configs is missing"));
    }
    Ok(lines)
}

/// Returns the answer: the changed entries, without their MD5, and a line feed behind them; empty if nothing has changed.
pub(in crate::api::nacos) fn render<'a>(lines: impl Iterator<Item = &'a Line>) -> String {
    let mut text = String::new();
    for Line { listened, tenant } in lines {
        text.extend([listened.key.id(), "\u{2}", listened.key.group()]);
        if let Some(tenant) = tenant.as_deref().filter(|tenant| !tenant.is_empty()) {
            text.extend(["\u{2}", tenant]);
        }
        text.push(LINE);
    }
    let end = if text.is_empty() { "" } else { "\n" };
    format!("{}{end}", utf8_percent_encode(&text, ESCAPED))
}

/// True if a text matches a pattern in which `*` stands for any text.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_of_real_clients() {
        let lines = parse("a.yaml\u{2}g\u{2}\u{2}t\u{1}b\u{2}\u{2}m5\u{1}").unwrap();
        let of = |line: &Line| {
            let Listened { namespace, key, md5 } = &line.listened;
            (namespace.as_str().to_owned(), key.to_string(), md5.clone())
        };
        assert_eq!(of(&lines[0]), ("t".into(), "g/a.yaml".into(), String::new()));
        assert_eq!(of(&lines[1]), ("public".into(), "DEFAULT_GROUP/b".into(), "m5".into()));
        assert_eq!(render(lines.iter()), "a.yaml%02g%02t%01b%02DEFAULT_GROUP%01\n");
        assert_eq!(render(lines[..0].iter()), "", "nothing has changed");
        for wrong in ["", "a", "a\u{2}g", "a\u{2}g\u{2}m\u{2}t\u{2}x", "a\u{2}g\u{2}m\u{2}t/u", "\u{2}g\u{2}m"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(parse(&"a\u{2}g\u{2}m\u{1}".repeat(MOST_LISTENED + 1)).is_err());
    }

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("*a*", "xay", true),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "a1c2b", false),
            ("ab*ba", "aba", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a\u{1}\u{2}/é]{0,40}") {
            if let Ok(lines) = parse(&text) {
                prop_assert!(!lines.is_empty());
                let _ = render(lines.iter());
            }
        }
    }
}
