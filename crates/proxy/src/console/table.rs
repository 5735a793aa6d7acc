//! Table of texts and numbers, encoded in PostgreSQL's protocol.

use wire::message::{self, Column};

/// Type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnType {
    Text,
    /// int8
    Number,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Text(String),
    Number(u64),
}

/// Columns and rows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Table {
    pub(super) columns: Vec<(&'static str, ColumnType)>,
    pub(super) rows: Vec<Vec<Value>>,
}

// Type OIDs of PostgreSQL's catalog, pg_type.
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

impl Value {
    fn text(&self) -> Option<String> {
        match self {
            Value::Null => None,
            Value::Text(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
        }
    }
}

impl Table {
    /// Creates a table without rows.
    pub(super) fn new(columns: &[(&'static str, ColumnType)]) -> Table {
        Table { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row.
    pub(super) fn row(&mut self, row: Vec<Value>) {
        debug_assert_eq!(row.len(), self.columns.len(), "{:?}", self.columns);
        self.rows.push(row);
    }

    /// Encodes `RowDescription`, the rows, and `CommandComplete`.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let column = |&(name, of): &(&'static str, ColumnType)| match of {
            ColumnType::Text => Column { name, kind: TEXT, size: -1 },
            ColumnType::Number => Column { name, kind: INT8, size: 8 },
        };
        message::row_description(out, &self.columns.iter().map(column).collect::<Vec<_>>());
        for row in &self.rows {
            let texts: Vec<Option<String>> = row.iter().map(Value::text).collect();
            let bytes: Vec<Option<&[u8]>> = texts.iter().map(|text| text.as_ref().map(String::as_bytes)).collect();
            message::data_row(out, &bytes);
        }
        message::complete(out, "SHOW");
    }
}
