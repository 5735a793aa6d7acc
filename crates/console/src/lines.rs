//! The difference of two texts, line by line. Pure.

use std::time::Duration;

use similar::{ChangeTag, TextDiff};

use crate::picture::Line;

/// Longest text that is compared, in bytes.
const MOST_BYTES: usize = 1 << 20;
/// Maximum number of lines of a comparison; further ones are cut.
const MOST_LINES: usize = 5000;
/// Time after which the comparison goes on with a coarser one.
const TIME: Duration = Duration::from_millis(500);
/// Unchanged lines shown around a change.
const AROUND: usize = 3;

/// Returns the changed lines from one text to another with their surroundings; `None` for texts that are too long.
pub fn compare(old: &str, new: &str) -> Option<Vec<Line>> {
    if old.len() > MOST_BYTES || new.len() > MOST_BYTES {
        return None;
    }
    let compared = TextDiff::configure().timeout(TIME).diff_lines(old, new);
    let mut lines = Vec::new();
    for group in compared.grouped_ops(AROUND) {
        if !lines.is_empty() {
            lines.push(Line { change: "gap", text: String::new() });
        }
        for change in group.iter().flat_map(|op| compared.iter_changes(op)) {
            let tag = match change.tag() {
                ChangeTag::Equal => "same",
                ChangeTag::Delete => "removed",
                ChangeTag::Insert => "added",
            };
            if lines.len() >= MOST_LINES {
                return Some(lines);
            }
            lines.push(Line { change: tag, text: change.value().trim_end_matches(['\r', '\n']).to_owned() });
        }
    }
    Some(lines)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn changes_and_their_surroundings() {
        let old: String = (1..=20).map(|n| format!("line {n}\n")).collect();
        let new = old.replace("line 2\n", "").replace("line 15\n", "line 15\nmore\n");
        let found: Vec<(&str, String)> =
            compare(&old, &new).unwrap().into_iter().map(|line| (line.change, line.text)).collect();
        let is = |change: &'static str, text: &str| (change, text.to_owned());
        assert_eq!(found[..3], [is("same", "line 1"), is("removed", "line 2"), is("same", "line 3")]);
        assert_eq!(found.iter().filter(|(change, _)| *change == "gap").count(), 1);
        assert!(found.contains(&is("added", "more")) && !found.contains(&is("same", "line 9")), "{found:?}");
        assert_eq!(compare("a", "a").unwrap(), []);
        assert_eq!(compare(&"a".repeat(MOST_BYTES + 1), ""), None);
        assert_eq!(compare("", &"a\n".repeat(MOST_LINES + 1)).unwrap().len(), MOST_LINES);
    }

    proptest! {
        #[test]
        fn removed_and_added_lines_are_of_their_texts(old in "[ab\n]{0,30}", new in "[ab\n]{0,30}") {
            let lines = compare(&old, &new).unwrap();
            prop_assert_eq!(lines.is_empty(), old == new);
            for line in lines {
                let of = match line.change { "removed" => &old, "added" => &new, _ => continue };
                prop_assert!(of.lines().any(|one| one == line.text));
            }
        }
    }
}
