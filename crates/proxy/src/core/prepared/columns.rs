//! What a client is told of a statement's rows, as far as it relies on that.

use std::hash::{DefaultHasher, Hasher};

use wire::payload;

/// Stands for the columns that a statement returns: names, types and modifiers, or that it returns none.
///
/// That is what PostgreSQL itself compares before it says "cached plan must not change result type" (`equalTupleDescs`). It does
/// not compare which table a column comes from: a table that was swapped in under the name of another changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Columns(u64);

impl Columns {
    /// From a whole `RowDescription` or `NoData`. A payload that is not of its format stands for itself.
    pub(crate) fn of(tag: u8, payload: &[u8]) -> Columns {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(tag);
        if tag == b'T' {
            let read = payload::each_column(payload, |column| {
                hasher.write(column.name);
                // A name has no NUL in it: what follows is not taken for more of it.
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

    /// A `RowDescription` of columns with name, table, type, modifier and format.
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
