//! SASLprep (RFC 4013) as in PostgreSQL, which deviates from the RFC.

use std::borrow::Cow;

use stringprep::tables;
use unicode_normalization::UnicodeNormalization as _;

/// Prepares a password as both sides hash it. PostgreSQL uses the bytes unchanged if the preparation forbids them: a password that PostgreSQL accepts
/// must never be refused, or hashed differently, here.
///
/// The RFC checks the output of the normalization; PostgreSQL, the input. `U+0340`, which becomes the harmless `U+0300`, thus makes PostgreSQL use
/// the whole password unchanged; that is why this is not `stringprep::saslprep`.
pub(super) fn prepare(password: &str) -> Cow<'_, str> {
    if password.is_ascii() {
        return Cow::Borrowed(password);
    }
    let mapped: String = password.chars().filter_map(map).collect();
    if mapped.is_empty() || mapped.contains(forbidden) || mixed_direction(&mapped) {
        return Cow::Borrowed(password);
    }
    Cow::Owned(mapped.nfkc().collect())
}

fn map(c: char) -> Option<char> {
    // In this order: `U+200B` is in both tables, and is a space to PostgreSQL.
    if tables::non_ascii_space_character(c) {
        Some(' ')
    } else if tables::commonly_mapped_to_nothing(c) {
        None
    } else {
        Some(c)
    }
}

fn forbidden(c: char) -> bool {
    tables::ascii_control_character(c)
        || tables::non_ascii_control_character(c)
        || tables::private_use(c)
        || tables::non_character_code_point(c)
        || tables::surrogate_code(c)
        || tables::inappropriate_for_plain_text(c)
        || tables::inappropriate_for_canonical_representation(c)
        || tables::change_display_properties_or_deprecated(c)
        || tables::tagging_character(c)
        || tables::unassigned_code_point(c)
}

/// True if the text violates RFC 3454, section 6: text with a right-to-left character begins and ends with one and has none left-to-right.
fn mixed_direction(text: &str) -> bool {
    text.contains(tables::bidi_r_or_al)
        && (text.contains(tables::bidi_l)
            || !text.starts_with(tables::bidi_r_or_al)
            || !text.ends_with(tables::bidi_r_or_al))
}
