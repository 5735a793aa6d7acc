//! Opening the store at an address.

use std::sync::Arc;

use super::{MySql, Postgres, Sqlite, Store, TiKv};
use crate::error::StoreError;

/// Opens the store at `address`, `sqlite:FILE`, `postgres://…`, `mysql://…` or `tikv://…`, and brings its schema up to date.
///
/// # Errors
/// The address is invalid, or the database cannot be opened or migrated.
pub async fn open(address: &str) -> Result<Arc<dyn Store>, StoreError> {
    let (scheme, rest) =
        address.split_once(':').ok_or(StoreError::Address { reason: "it does not begin with a kind and a colon" })?;
    match scheme {
        "sqlite" if rest.starts_with(":memory:") || rest.starts_with("file:") => Err(StoreError::Address {
            reason: "sqlite: needs the name of a file: what is only in memory is neither kept nor shared by its connections",
        }),
        "sqlite" if !rest.is_empty() && !rest.contains('\0') => Ok(Arc::new(Sqlite::open(rest).await?)),
        "sqlite" => Err(StoreError::Address { reason: "sqlite: without a file" }),
        "postgres" | "postgresql" => Ok(Arc::new(Postgres::open(address).await?)),
        "mysql" => Ok(Arc::new(MySql::open(address).await?)),
        "tikv" => Ok(Arc::new(TiKv::open(address).await?)),
        _ => Err(StoreError::Address { reason: "this kind of store is not known" }),
    }
}
