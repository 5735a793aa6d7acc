//! The store that a configuration names.

use std::sync::Arc;

use crate::config::ArchiveConfig;
use crate::directory::DirectoryStore;
use crate::s3::S3Store;
use crate::store::{Store, StoreError};

/// Opens the store of a configuration. Does not reach out for it yet.
///
/// # Errors
/// [`StoreError::Settings`]: the settings cannot be used.
pub fn open(config: &ArchiveConfig) -> Result<Arc<dyn Store>, StoreError> {
    if let Some(directory) = config.directory() {
        return Ok(Arc::new(DirectoryStore::new(directory, config.timeout)));
    }
    Ok(Arc::new(S3Store::new(config)?))
}
