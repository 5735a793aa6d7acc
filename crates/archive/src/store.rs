//! Stores: the few operations that an archive needs, on a directory or on a bucket.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;

/// Most objects of one listing.
pub const MOST_LISTED: usize = 20_000;

/// Result of creating an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// The object was written.
    New,
    /// An object of that name exists and was left alone.
    Exists,
    /// The store cannot create without overwriting; nothing was written.
    Unsupported,
}

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Path below the archive's root.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
}

/// Storage of objects. Every operation is bounded in time; a written object is durable.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// Returns the location, for messages.
    fn name(&self) -> &str;

    /// Writes an object unless one of that name exists.
    async fn create(&self, path: &str, object: Bytes) -> Result<Created, StoreError>;

    /// Writes an object over any other.
    async fn overwrite(&self, path: &str, object: Bytes) -> Result<(), StoreError>;

    /// Reads an object, or its first `bytes` bytes. None: not there.
    async fn read(&self, path: &str, bytes: Option<usize>) -> Result<Option<Bytes>, StoreError>;

    /// Lists the objects of a directory, without those of directories below.
    async fn list(&self, directory: &str) -> Result<Vec<Listed>, StoreError>;

    /// Lists the directories of a directory, as paths.
    async fn directories(&self, directory: &str) -> Result<Vec<String>, StoreError>;

    /// Removes an object, which may be absent.
    async fn remove(&self, path: &str) -> Result<(), StoreError>;
}

/// Failed operation of a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A failure that may pass.
    #[error("cannot {tried} {path} in the archive {store}: {why}")]
    Failed {
        /// The operation.
        tried: &'static str,
        /// The object.
        path: String,
        /// The store.
        store: String,
        /// Reason of the failure.
        why: String,
    },
    /// Refused credentials or permissions.
    #[error(
        "the archive {store} refuses to {tried} {path}: {why}; check relay.archive.credentials and what they permit"
    )]
    Refused {
        /// The operation.
        tried: &'static str,
        /// The object.
        path: String,
        /// The store.
        store: String,
        /// Reason that the store gives.
        why: String,
    },
    /// Settings that cannot be used.
    #[error("{0}")]
    Settings(String),
    /// More objects in a directory than any archive writes.
    #[error(
        "the archive {store} has more than {MOST_LISTED} objects in {directory}: remove what does not belong there"
    )]
    TooMany {
        /// The directory.
        directory: String,
        /// The store.
        store: String,
    },
}

/// Returns an error with its causes, each once: many errors repeat theirs.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let why = error.to_string();
        if !text.contains(&why) {
            text.push_str(": ");
            text.push_str(&why);
        }
        source = error.source();
    }
    text
}

/// True if an error, or one of its causes, has one of these words.
pub(crate) fn says(error: &(dyn std::error::Error + 'static), words: &[&str]) -> bool {
    let text = chain(error);
    words.iter().any(|word| text.contains(word))
}

/// Returns an error with its causes in one line of bounded length.
pub(crate) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    const MOST: usize = 600;
    let text = chain(error);
    let mut line: String = text.chars().take(MOST).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(MOST).is_some() {
        line.push('…');
    }
    line
}
