//! Classification of a text that could not be parsed although the server may run it (too long, not UTF-8, nested too deeply): it is a write. Session
//! state left unnoticed would pass to the next client, so every pin that its words do not rule out is set.

use memchr::memmem;

use crate::class::{Class, Flags, Pins};
use crate::{hint, shape};

/// First words of statements that leave no state in the session.
const HARMLESS: [&str; 20] = [
    "alter", "analyze", "comment", "copy", "delete", "drop", "explain", "grant", "insert", "merge", "repack", "revoke",
    "select", "table", "truncate", "update", "vacuum", "values", "wait", "with",
];

/// Functions that leave state in the session, wherever they are called.
const FUNCTIONS: [(&str, Pins); 5] = [
    ("advisory_lock", Pins::ADVISORY_LOCK),
    ("currval", Pins::SEQUENCE),
    ("lastval", Pins::SEQUENCE),
    ("set_config", Pins::PARAMETERS),
    ("setseed", Pins::SEQUENCE),
];

/// Returns [`Class::UNKNOWN`] with the hint, and the pins that cannot be ruled out.
pub(crate) fn classify(text: &[u8]) -> Class {
    let mut class = Class { hint: hint::hint(text), flags: Flags::UNKNOWN, ..Class::UNKNOWN };
    // Without its literals if it has a shape: then a `;` in a string does not start a statement.
    let mut words = Vec::new();
    shape::key(text, &mut words);
    let words = words[1..].to_ascii_lowercase();
    let has = |word: &str| memmem::find(&words, word.as_bytes()).is_some();
    for (name, pins) in FUNCTIONS {
        if has(name) {
            class.pins = class.pins.with(pins);
            class.flags = class.flags.with(Flags::LOCAL);
        }
    }
    if has("advisory") {
        class.flags = class.flags.with(Flags::LOCKS);
    }
    for statement in words.split(|byte| *byte == b';') {
        let first = first_word(statement);
        if first.is_empty() || HARMLESS.iter().any(|word| word.as_bytes() == first) {
            continue;
        }
        match first {
            b"create" => {
                if has("temp") {
                    class.pins = class.pins.with(Pins::TEMP);
                }
            }
            b"begin" | b"start" | b"commit" | b"end" | b"rollback" | b"abort" | b"savepoint" | b"release" | b"call"
            | b"do" => class.flags = class.flags.with(Flags::TRANSACTION),
            _ => class.pins = class.pins.with(Pins::ALL).with(Pins::LOAD),
        }
    }
    if has("into") && has("temp") {
        class.pins = class.pins.with(Pins::TEMP);
    }
    class
}

/// Returns the first word after whitespace, parentheses and comments; empty if there is none.
fn first_word(statement: &[u8]) -> &[u8] {
    let mut rest = statement;
    loop {
        match rest {
            [b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c | b'(', tail @ ..] => rest = tail,
            [b'/', b'*', tail @ ..] => match shape::block_comment_end(tail, 0) {
                Some(end) => rest = &tail[end..],
                None => return b"?",
            },
            [b'-', b'-', tail @ ..] => match shape::line_comment_end(tail, 0) {
                Some(end) => rest = &tail[end..],
                None => return b"?",
            },
            _ => break,
        }
    }
    // A token that is not a word is also returned, and is not harmless.
    let end = rest.iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_').unwrap_or(rest.len());
    &rest[..end.max(usize::from(!rest.is_empty()))]
}
