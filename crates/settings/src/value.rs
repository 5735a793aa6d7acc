//! Values of settings: kind, serialization, and texts.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::key::{Key, Kind, Takes, Texts};
use crate::rows::Row;

/// A type of settings.
pub trait Setting: Sized {
    /// Kind of the values, before the limits of a setting.
    const KIND: Kind;

    /// Deserializes a value.
    ///
    /// # Errors
    /// A value of another kind.
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error>;

    /// Serializes the value.
    ///
    /// # Errors
    /// The serializer's.
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error>;

    /// Returns the value as TOML; None if it is not set, or is a table.
    fn toml(&self) -> Option<String>;

    /// Returns the value for a row: without quotation marks, and a duration as its number of seconds.
    fn text(&self) -> String {
        self.toml().unwrap_or_default()
    }

    /// Returns both texts of the value.
    fn texts(&self) -> Texts {
        Texts { toml: self.toml(), row: self.text() }
    }

    /// Adds the value's row, or those of a table, which is at `path`.
    fn add_rows(&self, key: &'static Key, path: String, takes: Takes, rows: &mut Vec<Row>) {
        let (value, default) = match key.kind {
            Kind::Secret | Kind::Secrets => (None, None),
            _ => (Some(self.text()), Some((key.default)().row)),
        };
        rows.push(Row { path, key, value, default, takes });
    }
}

/// A value that serde deserializes as a setting.
#[derive(Debug)]
pub struct Read<T>(pub T);

impl<'de, T: Setting> Deserialize<'de> for Read<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        T::read(from).map(Read)
    }
}

/// A value that serde serializes as a setting.
#[derive(Debug)]
pub struct Write<'a, T>(pub &'a T);

impl<T: Setting> Serialize for Write<'_, T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.write(to)
    }
}

/// Returns a text as TOML.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

macro_rules! plain {
    ($($type:ty: $kind:expr, |$value:ident| $toml:expr, $text:expr;)*) => {$(
        impl Setting for $type {
            const KIND: Kind = $kind;

            fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                Self::deserialize(from)
            }

            fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                self.serialize(to)
            }

            fn toml(&self) -> Option<String> {
                let $value = self;
                Some($toml)
            }

            fn text(&self) -> String {
                let $value = self;
                $text
            }
        }
    )*};
}

plain! {
    bool: Kind::Boolean, |value| value.to_string(), value.to_string();
    u8: Kind::Integer { min: 0, max: u8::MAX as i64 }, |value| value.to_string(), value.to_string();
    u32: Kind::Integer { min: 0, max: u32::MAX as i64 }, |value| value.to_string(), value.to_string();
    u64: Kind::Integer { min: 0, max: i64::MAX }, |value| value.to_string(), value.to_string();
    usize: Kind::Integer { min: 0, max: i64::MAX }, |value| value.to_string(), value.to_string();
    f64: Kind::Share, |value| value.to_string(), value.to_string();
    String: Kind::Text, |value| quoted(value), value.clone();
    PathBuf: Kind::Text, |value| quoted(&value.to_string_lossy()), value.to_string_lossy().into_owned();
}

impl Setting for Duration {
    const KIND: Kind = Kind::Duration { zero: false };

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        humantime_serde::deserialize(from)
    }

    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        humantime_serde::serialize(self, to)
    }

    fn toml(&self) -> Option<String> {
        Some(quoted(&humantime::format_duration(*self).to_string()))
    }

    fn text(&self) -> String {
        self.as_secs_f64().to_string()
    }
}

impl<T: Setting> Setting for Option<T> {
    const KIND: Kind = T::KIND;

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Option::<Read<T>>::deserialize(from)?.map(|read| read.0))
    }

    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.as_ref().map(Write).serialize(to)
    }

    fn toml(&self) -> Option<String> {
        self.as_ref().and_then(T::toml)
    }

    fn text(&self) -> String {
        self.as_ref().map(T::text).unwrap_or_default()
    }
}

impl<T: Setting> Setting for Vec<T> {
    const KIND: Kind = T::KIND.list();

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Vec::<Read<T>>::deserialize(from)?.into_iter().map(|read| read.0).collect())
    }

    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter().map(Write))
    }

    fn toml(&self) -> Option<String> {
        let items: Option<Vec<String>> = self.iter().map(T::toml).collect();
        items.map(|items| format!("[{}]", items.join(", ")))
    }

    fn text(&self) -> String {
        self.iter().map(T::text).collect::<Vec<_>>().join(", ")
    }

    fn add_rows(&self, key: &'static Key, path: String, takes: Takes, rows: &mut Vec<Row>) {
        // The tables of an array are shown by commands of their own, such as SHOW DATABASES.
        if !matches!(key.kind, Kind::Tables(_) | Kind::Secrets) {
            rows.push(Row { path, key, value: Some(self.text()), default: Some((key.default)().row), takes });
        }
    }
}
