//! A table of texts and numbers, as PostgreSQL's protocol sends it.

use wire::message;

/// A column's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Text,
    /// int8
    Number,
}

/// One value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Text(String),
    Number(u64),
}

/// Columns and rows.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Table {
    pub(super) columns: Vec<(&'static str, Of)>,
    pub(super) rows: Vec<Vec<Value>>,
}

// Type ids of PostgreSQL's catalogue, pg_type.
const TEXT: u32 = 25;
const INT8: u32 = 20;

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Number(number)
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Value {
        Value::Number(number as u64)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Null, Into::into)
    }
}

impl Table {
    /// Without rows.
    pub(super) fn new(columns: &[(&'static str, Of)]) -> Table {
        Table { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// One row more.
    pub(super) fn row(&mut self, row: Vec<Value>) {
        debug_assert_eq!(row.len(), self.columns.len(), "{:?}", self.columns);
        self.rows.push(row);
    }

    /// `RowDescription`, the rows, and `CommandComplete`.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let columns = self.columns.iter().map(|(name, of)| match of {
            Of::Text => (*name, TEXT, -1),
            Of::Number => (*name, INT8, 8),
        });
        message::row_description(out, columns);
        let mut number = String::new();
        for row in &self.rows {
            message::data_row(out, row.len() as u16, |row_out| {
                for value in row {
                    match value {
                        Value::Null => message::value(row_out, None),
                        Value::Text(text) => message::value(row_out, Some(text.as_bytes())),
                        Value::Number(value) => {
                            number.clear();
                            // Writing to a String cannot fail.
                            let _ = std::fmt::Write::write_fmt(&mut number, format_args!("{value}"));
                            message::value(row_out, Some(number.as_bytes()));
                        }
                    }
                }
            });
        }
        message::complete(out, "SHOW");
    }
}
