//! Settings that are declared once.
//!
//! A table of the configuration file is one [`settings!`] with its settings: doc, name, type, default, and limits of the values.
//!
//! ```
//! use std::time::Duration;
//!
//! use settings::OrNever;
//!
//! settings::settings! {
//!     /// Server connections.
//!     #[derive(Debug, Clone, PartialEq)]
//!     pub struct PoolConfig: Default {
//!         /// Most server connections for one database and user on one node.
//!         pub size: usize = 20, range(1, 10_000), pgbouncer("default_pool_size");
//!         /// Age at which a server connection is closed; `"0s"` means never.
//!         pub lifetime: OrNever = OrNever::after(Duration::from_secs(3600));
//!         /// Query that each new connection runs.
//!         pub query: Option<String> = None, example(r#""SET app.pooled = 'yes'""#);
//!     }
//! }
//!
//! assert_eq!(PoolConfig::default().size, 20);
//! ```
//!
//! From a declaration come
//!
//! - the struct with its docs, `Default`, and serde's traits, which refuse unknown keys ([`settings!`]);
//! - the rows of the schema: name, [`Kind`], required or not ([`Table::KEYS`]);
//! - the described file of the guide ([`guide::toml`]) and tables of Markdown ([`guide::markdown`]);
//! - the rows of `SHOW CONFIG` ([`rows()`]), and the settings that `SET` may change ([`Key::takes`]).
//!
//! Invariants:
//! - A setting has one declaration: its default, its limits and its doc stand in no other place.
//! - A secret is never serialized, and has no value in a row.
//! - A setting without a default is required: a file without it is an error.

pub mod guide;
mod key;
mod limit;
mod rows;
mod table;
#[cfg(test)]
mod tests;
mod value;

pub use key::{Form, Key, Kind, Takes, Texts, required};
pub use limit::{Limit, OrNever};
pub use rows::{Row, rows};
pub use table::Table;
pub use value::{Read, Setting, Write};

/// Names that the expansion of [`settings!`] needs.
#[doc(hidden)]
pub mod expansion {
    pub use serde;

    pub use crate::key::names;
}
