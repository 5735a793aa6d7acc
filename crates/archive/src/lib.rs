//! An archive of WAL: a directory or a bucket that holds every segment and history file of a cluster.
//!
//! ```text
//!  files of a relay ─▶ plan (pure) ─▶ seal: header, zstd, SHA-256, AES-GCM ─▶ Archive: create only, compare ─▶ Store: directory, bucket
//!  restore_command  ◀─ unseal: every byte checked ◀──────────────── Archive: blocks, else parts  ◀──┘
//! ```
//!
//! # Invariants
//!
//! - An object is never overwritten by one with other content.
//! - An object belongs to the archive's cluster, by its own header.
//! - A segment counts as confirmed only after a listing has shown all of its objects.
//! - Memory is bounded by [`BLOCK`] for each object in work, whatever the segment size.

mod archive;
mod azure;
mod bucket;
mod checksum;
pub mod config;
mod connection;
mod credentials;
mod directory;
mod gcs;
mod header;
mod http;
mod keys;
mod location;
mod name;
mod open;
mod plan;
mod s3;
mod seal;
mod store;

pub use archive::{Archive, ArchiveError, Put};
pub use bucket::BucketStore;
pub use checksum::Checksum;
pub use config::Codec;
pub use credentials::check_credentials;
pub use directory::DirectoryStore;
pub use header::{HEADER, Header, HeaderError, Identity};
pub use keys::{Key, KeyId, Keys};
pub use location::{Bucket, FORMS, Location, Service};
pub use name::{
    BASES, BLOCK, BackupId, BackupPart, FileName, HISTORIES, IDENTITY, Kind, PROBE, RECORDS, Span, TURNS,
    backup_of_path, backup_path, block_directory, block_path, blocks, chain, history_path, next_whole, part_directory,
    part_of_path, part_path, turn_of_path, turn_path,
};
pub use open::{Place, keys, open};
pub use plan::{Held, Job, MOST_PARTS, Progress};
pub use seal::{Form, LARGEST, SealError, Sealed, seal, sum, unseal};
pub use store::{Created, Listed, MOST_LISTED, Store, StoreError};
