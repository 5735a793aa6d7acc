//! Characters that a name may contain.

use super::limits::Invalid;

/// Characters that are not displayed, or that change the displayed order: `U+202E` makes `we<U+202E>bsite` look like `weetisb`, and `shop<U+200B>`
/// looks like `shop`. Unicode's `Default_Ignorable_Code_Point`, the separators of lines and paragraphs, and the marks of annotations. Sorted.
/// Source: <https://www.unicode.org/Public/15.1.0/ucd/DerivedCoreProperties.txt>.
const INVISIBLE: [(char, char); 20] = [
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{2028}', '\u{2029}'),
    ('\u{202a}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fffb}'),
    ('\u{110bd}', '\u{110bd}'),
    ('\u{13430}', '\u{1343f}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{e0fff}'),
];

/// True for a control character or an invisible one.
pub fn is_invisible(c: char) -> bool {
    c.is_control() || (c >= '\u{ad}' && INVISIBLE.iter().any(|(first, last)| (*first..=*last).contains(&c)))
}

/// Refuses a name that could be mistaken for another one: with control characters, invisible characters, or characters that change the writing
/// direction. Every name that is new in the registry is checked here, on every front. A name that is stored already can still be looked up and
/// removed.
///
/// # Errors
/// The first such character.
pub fn visible(what: &'static str, text: &str) -> Result<(), Invalid> {
    match text.chars().find(|c| is_invisible(*c)) {
        None => Ok(()),
        Some(found) => Err(Invalid::Invisible { what, found: format!("U+{:04X}", u32::from(found)) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reader_does_not_see() {
        for (name, seen) in [
            ("website", true),
            ("名前", true),
            ("سلام", true),
            ("naïve", true),
            ("a b", true),
            ("we\u{202e}bsite", false),
            ("shop\u{200b}", false),
            ("\u{feff}shop", false),
            ("sh\u{ad}op", false),
            ("shop\u{2066}x\u{2069}", false),
            ("shop\u{200d}", false),
            ("shop\u{fe0f}", false),
            ("shop\u{e0041}", false),
            ("shop\u{3164}", false),
            ("a\u{2028}b", false),
            ("a\u{85}b", false),
            ("a\u{7f}b", false),
            ("a\nb", false),
        ] {
            assert_eq!(visible("name", name).is_ok(), seen, "{name:?}");
        }
        let error = visible("service name", "we\u{202e}bsite").map_err(|error| error.to_string());
        assert!(error.is_err_and(|error| error.contains("U+202E") && error.contains("service name")));
    }
}
