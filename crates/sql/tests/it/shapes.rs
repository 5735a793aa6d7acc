//! The cache never changes the result: after any texts, a text's class is that of a fresh parse.

use proptest::prelude::*;
use sql::{Class, Classifier, ClassifierConfig};

fn fresh(text: &[u8]) -> Class {
    Classifier::new(ClassifierConfig { max_entries: 0, ..ClassifierConfig::default() }).classify(text)
}

/// Returns parts of texts: whole clauses, so that many parse, and all constructs that are difficult for a lexer.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(vec![
            "select ", "a", " from t", " where a = ", "(", ")", ", ", ";", " and ", " union all ", "nextval(", "lower(",
            "set_config('a', ", ", true)", ", false)", "insert into t values (", "set a = ", "set kingpost.route = ",
            "begin", " read only", "commit", "delete from t", "pg_advisory_lock(", " for update", "explain ", "limit ",
        ])
        .prop_map(str::to_owned),
        4 => prop::sample::select(vec![
            "'", "''", "\"", "\"\"", "--", "/*", "*/", "\n", " ", "$", "$$", "$1", "$a$", "\\", "E'", "e", "U&'", "u&\"",
            " UESCAPE '!'", "x'", "B'", "N'", "&", ".", "-", "+", "*", "/", "::", "é", "_", "\u{1}", "\u{3}", "\r", "@",
            "1e", "0x", "1_0", "..", "1", "5", "'a'", "'a''b'", "'/*'", "'--'", "\"a'b\"", "E'\\''", "$$'$$",
        ])
        .prop_map(str::to_owned),
        2 => "[0-9]{1,12}",
        2 => "'[a-z0-9 ;*/-]{0,6}'",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_came_before_does_not_matter(texts in prop::collection::vec(prop::collection::vec(piece(), 1..12), 1..24)) {
        let mut classifier = Classifier::new(ClassifierConfig::default());
        for text in texts.iter().map(|pieces| pieces.concat()) {
            prop_assert_eq!(classifier.classify(text.as_bytes()), fresh(text.as_bytes()), "{:?}", text);
        }
    }

    /// Various literals in the places of a text: one shape, and one class.
    #[test]
    fn other_literals_same_shape(
        pieces in prop::collection::vec(prop_oneof![
            3 => prop::sample::select(vec![
                "select ", "a", " from t", " where ", " = ", "(", ")", ", ", "; ", " and ", " '\"' ", "/* 5 'x' */", "-- 7\n",
                "set_config(", ", true)", ", false)", "set kingpost.route = ", "insert into t values (", "\"5 'a\"", "$1",
            ]).prop_map(|text| (text.to_owned(), text.to_owned())),
            1 => (0..=i32::MAX, 0..=i32::MAX).prop_map(|(a, b)| (format!(" {a} "), format!(" {b} "))),
            1 => ("[0-9]{1,8}", "[0-9]{1,8}").prop_map(|(a, b)| (format!(" 1.{a} "), format!(" 2.{b} "))),
            1 => ("[a-zA-Z0-9 ;\"$/*-]{0,9}", "[a-zA-Z0-9 ;\"$/*-]{0,9}").prop_map(|(a, b)| (format!(" '{a}' "), format!(" '{b}''' "))),
        ], 1..14),
    ) {
        let first: String = pieces.iter().map(|piece| piece.0.as_str()).collect();
        let second: String = pieces.iter().map(|piece| piece.1.as_str()).collect();
        let mut classifier = Classifier::new(ClassifierConfig::default());
        let class = classifier.classify(first.as_bytes());
        prop_assert_eq!(classifier.classify(second.as_bytes()), class);
        prop_assert_eq!(classifier.counters().misses, 1, "{:?} {:?}", first, second);
        prop_assert_eq!(fresh(second.as_bytes()), class, "{:?} {:?}", first, second);
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), limit in 0usize..300) {
        let mut classifier = Classifier::new(ClassifierConfig { max_text: limit, ..ClassifierConfig::default() });
        let class = classifier.classify(&bytes);
        prop_assert_eq!(classifier.classify(&bytes), class);
        classifier.demote(&bytes);
        let _ = classifier.local_command(&bytes);
    }
}
