//! Search terms of a viewer.

/// Maximum length of the search text, in bytes; the rest is ignored.
const LONGEST: usize = 512;
/// Maximum number of words; the rest is ignored.
const MOST_WORDS: usize = 16;

/// A search for services by name, and for instances by metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Search {
    /// The namespace to search; None for all.
    pub namespace: Option<String>,
    /// Words that must all be in the name, in lower case.
    pub words: Vec<String>,
    /// Pairs that must all be in the metadata.
    pub pairs: Vec<(String, String)>,
}

impl Search {
    /// Parses a search text: words that contain `=` are pairs, the others parts of names.
    #[must_use]
    pub fn parse(namespace: Option<&str>, text: &str) -> Search {
        let mut end = text.len().min(LONGEST);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut search =
            Search { namespace: namespace.filter(|name| !name.is_empty()).map(str::to_owned), ..Search::default() };
        for word in text[..end].split_whitespace().take(MOST_WORDS) {
            match word.split_once('=') {
                Some((key, value)) if !key.is_empty() => search.pairs.push((key.to_owned(), value.to_owned())),
                _ => search.words.push(word.to_lowercase()),
            }
        }
        search
    }

    /// True if the name contains all words.
    #[must_use]
    pub fn fits(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        self.words.iter().all(|word| name.contains(word.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_pairs() {
        let parse = |text| {
            let search = Search::parse(None, text);
            (search.words.join(" "), search.pairs.iter().map(|(k, v)| format!("{k}:{v}")).collect::<Vec<_>>().join(" "))
        };
        for (text, words, pairs) in [
            ("", "", ""),
            ("  Web  api ", "web api", ""),
            ("zone=a web", "web", "zone:a"),
            ("=a b=", "=a", "b:"),
            ("k=a=b", "", "k:a=b"),
        ] {
            assert_eq!(parse(text), (words.to_owned(), pairs.to_owned()), "{text:?}");
        }
        assert_eq!(Search::parse(Some(""), "").namespace, None);
        assert!(Search::parse(None, "WEB pay").fits("payments-web") && !Search::parse(None, "x").fits("web"));
        // Cut inside a character, and too many words: no panic, bounded.
        assert!(Search::parse(None, &"ä".repeat(400)).words[0].len() <= LONGEST);
        assert_eq!(Search::parse(None, &"a ".repeat(200)).words.len(), MOST_WORDS);
    }
}
