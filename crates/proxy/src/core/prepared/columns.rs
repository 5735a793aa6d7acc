//! The columns that a client was told a statement returns, as far as the client relies on them.

use std::hash::{DefaultHasher, Hasher};

use wire::payload;

/// A hash of the columns that a statement returns (names, types, modifiers), or of the fact that it returns none.
///
/// PostgreSQL compares the same before it reports "cached plan must not change result type" (`equalTupleDescs`). The table of a column is not
/// compared: replacing a table by RENAME changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Columns(u64);

impl Columns {
    /// Hashes a whole `RowDescription` or `NoData`. A payload of another format is hashed as it is.
    pub(crate) fn of(tag: u8, payload: &[u8]) -> Columns {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(tag);
        if tag == b'T' {
            let read = payload::each_column(payload, |column| {
                hasher.write(column.name);
                // A name contains no NUL, so this separates the name from the next field.
                hasher.write_u8(0);
                hasher.write_u32(column.kind);
                hasher.write_i32(column.modifier);
            });
            if read.is_none() {
                hasher.write(payload);
            }
        }
        Columns(hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a `RowDescription` of columns with name, table, type, modifier and format.
    fn described(columns: &[(&str, u32, u32, i32, u16)]) -> Columns {
        let mut payload = (columns.len() as u16).to_be_bytes().to_vec();
        for (name, table, kind, modifier, format) in columns {
            payload.extend(name.as_bytes());
            payload.push(0);
            payload.extend(table.to_be_bytes());
            payload.extend([0, 1]);
            payload.extend(kind.to_be_bytes());
            payload.extend([0, 4]);
            payload.extend(modifier.to_be_bytes());
            payload.extend(format.to_be_bytes());
        }
        Columns::of(b'T', &payload)
    }

    #[test]
    fn what_counts() {
        let one = described(&[("a", 1000, 23, -1, 0)]);
        assert_eq!(one, described(&[("a", 2000, 23, -1, 1)]), "another table, another format");
        for other in [
            described(&[("b", 1000, 23, -1, 0)]),
            described(&[("a", 1000, 25, -1, 0)]),
            described(&[("a", 1000, 23, 8, 0)]),
            described(&[("a", 1000, 23, -1, 0), ("a", 1000, 23, -1, 0)]),
            described(&[]),
            Columns::of(b'n', b""),
            Columns::of(b'T', b"not one"),
        ] {
            assert_ne!(one, other);
        }
        assert_ne!(described(&[]), Columns::of(b'n', b""), "no columns are not no rows");
    }
}
