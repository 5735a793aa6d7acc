//! The store that a configuration names, and the form of what is written there.

use std::sync::Arc;

use crate::bucket::BucketStore;
use crate::config::{ArchiveConfig, Codec};
use crate::directory::DirectoryStore;
use crate::keys::Keys;
use crate::location::{FORMS, Location};
use crate::store::{Store, StoreError};

/// A store, with the keys and the compression of its objects.
#[derive(Debug, Clone)]
pub struct Place {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) keys: Keys,
    pub(crate) codec: Codec,
}

impl From<Arc<dyn Store>> for Place {
    fn from(store: Arc<dyn Store>) -> Place {
        Place { store, keys: Keys::default(), codec: Codec::Zstd }
    }
}

/// Opens the store of a configuration. Does not reach out for it yet.
///
/// # Errors
/// [`StoreError::Settings`]: the settings cannot be used.
pub fn open(config: &ArchiveConfig) -> Result<Place, StoreError> {
    let store: Arc<dyn Store> = match config.location() {
        Some(Location::Directory(directory)) => Arc::new(DirectoryStore::new(&directory, config.timeout)),
        Some(Location::Bucket(bucket)) => Arc::new(BucketStore::new(bucket, config)?),
        None => {
            return Err(StoreError::Settings(format!("relay.archive.url: found {:?}, expected {FORMS}", config.url)));
        }
    };
    Ok(Place { store, keys: keys(config)?, codec: config.compression })
}

/// Reads the keys of a configuration.
///
/// # Errors
/// [`StoreError::Settings`]: the file cannot be used.
pub fn keys(config: &ArchiveConfig) -> Result<Keys, StoreError> {
    let Some(path) = &config.key_file else { return Ok(Keys::default()) };
    Keys::read(path).map_err(|why| StoreError::Settings(format!("relay.archive.key_file: {why}")))
}
