//! An archive: a store that is known to belong to one cluster.

use std::sync::Arc;

use bytes::Bytes;

use crate::checksum::Checksum;
use crate::config::Codec;
use crate::header::{HEADER, Header, Identity};
use crate::keys::Keys;
use crate::name::{self, BackupId, BackupPart, FileName, Kind, Span, blocks, chain};
use crate::open::Place;
use crate::seal::{Form, SealError, Sealed, seal, unseal};
use crate::store::{Created, Listed, Store, StoreError};

/// Result of putting an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The object was written.
    New,
    /// An object with the same content was there.
    Equal,
}

/// Failed operation of an archive.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An archive of another cluster.
    #[error(
        "the archive {store} holds the WAL of the cluster with system identifier {held} and segments of {held_segment} bytes, and this \
         one is {given} with segments of {given_segment}: give relay.archive.url another prefix or directory"
    )]
    OtherCluster {
        /// The store.
        store: String,
        /// System identifier of the archive.
        held: u64,
        /// Segment size of the archive.
        held_segment: u64,
        /// System identifier of the cluster here.
        given: u64,
        /// Segment size here.
        given_segment: u64,
    },
    /// An object of that name with another content.
    #[error(
        "{path} in the archive {store} has other content (checksum {held}) than here ({given}): two histories were archived under one \
         name; nothing is overwritten. Find out which is right, and give relay.archive.url another prefix or directory"
    )]
    Differs {
        /// The object.
        path: String,
        /// The store.
        store: String,
        /// Checksum of the archived bytes.
        held: Checksum,
        /// Checksum of the bytes here.
        given: Checksum,
    },
    /// A damaged object, or one of a version that this one does not read.
    #[error("{path} in the archive {store} {source}")]
    Object {
        /// The object.
        path: String,
        /// The store.
        store: String,
        /// Reason of the failure.
        source: SealError,
    },
    /// A directory or prefix without an archive, or one that has lost it.
    #[error("{store} is no archive: it has no object {}", name::IDENTITY)]
    NoArchive {
        /// The store.
        store: String,
    },
    /// A file here that cannot be read.
    #[error("cannot read {file} to archive it: {source}")]
    Local {
        /// The file.
        file: FileName,
        /// Reason of the failure.
        source: std::io::Error,
    },
}

impl ArchiveError {
    fn other_cluster(store: &dyn Store, held: Identity, given: Identity) -> ArchiveError {
        ArchiveError::OtherCluster {
            store: store.name().into(),
            held: held.system_id,
            held_segment: held.segment_size,
            given: given.system_id,
            given_segment: given.segment_size,
        }
    }

    /// True if time alone does not help: an operator must act.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(self, ArchiveError::Store(StoreError::Failed { .. }))
    }
}

/// An archive of a known cluster.
#[derive(Debug, Clone)]
pub struct Archive {
    store: Arc<dyn Store>,
    identity: Identity,
    /// True if the store creates without overwriting. If not, objects are looked for before they are written, and read back after.
    creates: bool,
    keys: Keys,
    codec: Codec,
}

impl Archive {
    /// Opens the archive of a cluster; an empty store becomes one. `is_known`: this process has had it open, so it cannot be empty.
    ///
    /// # Errors
    /// [`ArchiveError`]: another cluster's, or the store fails.
    pub async fn open(place: impl Into<Place>, identity: Identity, is_known: bool) -> Result<Archive, ArchiveError> {
        let Place { store, keys, codec } = place.into();
        let object = |kind| Header::empty(kind, identity, None);
        let mut creates = true;
        // Looked for first: some services ignore the condition of a creation and overwrite.
        let held = match read_identity(&*store).await? {
            Some(held) => held,
            None if is_known => return Err(ArchiveError::NoArchive { store: store.name().into() }),
            None => {
                if store.create(name::IDENTITY, object(Kind::Identity)).await? == Created::Unsupported {
                    creates = false;
                    store.overwrite(name::IDENTITY, object(Kind::Identity)).await?;
                }
                // Another relay's, if that was faster.
                read_identity(&*store).await?.unwrap_or(identity)
            }
        };
        if held != identity {
            return Err(ArchiveError::other_cluster(&*store, held, identity));
        }
        // The second attempt must find the first.
        for _ in 0..2 {
            if !creates {
                break;
            }
            match store.create(name::PROBE, object(Kind::Probe)).await? {
                Created::Exists => return Ok(Archive { store, identity, creates: true, keys, codec }),
                Created::Unsupported => creates = false,
                Created::New => {}
            }
        }
        tracing::warn!(
            archive = store.name(),
            "the archive's service cannot create an object without overwriting (If-None-Match): objects are looked for before they are \
             written, and read back after"
        );
        Ok(Archive { store, identity, creates: false, keys, codec })
    }

    /// Opens an archive for reading.
    ///
    /// # Errors
    /// [`ArchiveError::NoArchive`], or the store fails.
    pub async fn attach(place: impl Into<Place>) -> Result<Archive, ArchiveError> {
        let Place { store, keys, codec } = place.into();
        match read_identity(&*store).await? {
            Some(identity) => Ok(Archive { store, identity, creates: false, keys, codec }),
            None => Err(ArchiveError::NoArchive { store: store.name().into() }),
        }
    }

    /// Returns the cluster.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Goes on with these keys.
    pub fn set_keys(&mut self, keys: Keys) {
        self.keys = keys;
    }

    /// Makes an object from the next `bytes` bytes, compressed and encrypted as configured.
    ///
    /// # Errors
    /// The bytes cannot be read, or there are fewer.
    pub fn seal(&self, kind: Kind, span: &Span, raw: impl std::io::Read, bytes: u64) -> std::io::Result<Sealed> {
        let form = Form { codec: self.codec, key: self.keys.newest() };
        seal(form, kind, self.identity, Some(span.clone()), raw, bytes)
    }

    /// True if the store creates without overwriting.
    #[must_use]
    pub fn creates(&self) -> bool {
        self.creates
    }

    /// Returns the path of an object with content.
    #[must_use]
    pub fn path(&self, kind: Kind, span: &Span) -> String {
        match kind {
            Kind::Block => name::block_path(span, self.identity.segment_size),
            Kind::Part => name::part_path(span),
            Kind::History => name::history_path(&span.file),
            Kind::Identity => name::IDENTITY.into(),
            Kind::Probe => name::PROBE.into(),
            Kind::Base | Kind::Record | Kind::Mark | Kind::Turn => match FileName::parse_backup(span.file.as_str()) {
                Some((id, part)) => name::backup_path(&id, part, span.from),
                // No object has it.
                None => name::BASES.into(),
            },
        }
    }

    /// Compares an object with the bytes here. False: there is none.
    ///
    /// # Errors
    /// [`ArchiveError::Differs`]; damaged; or the store fails.
    pub async fn compare(&self, path: &str, kind: Kind, span: &Span, sum: Checksum) -> Result<bool, ArchiveError> {
        let Some(start) = self.store.read(path, Some(HEADER)).await? else { return Ok(false) };
        let header = Header::parse(&start).map_err(|error| self.object(path, error.into()))?;
        self.check(path, &header, kind, span)?;
        let given = header.sum_of(sum, &self.keys).map_err(|error| self.object(path, error))?;
        if header.sum != given {
            let (path, store) = (path.into(), self.store.name().into());
            return Err(ArchiveError::Differs { path, store, held: header.sum, given });
        }
        Ok(true)
    }

    /// Writes an object; never over one with other content.
    ///
    /// # Errors
    /// [`ArchiveError::Differs`]; or the store fails.
    pub async fn put(&self, path: &str, kind: Kind, span: &Span, sealed: Sealed) -> Result<Put, ArchiveError> {
        if !self.creates {
            if self.compare(path, kind, span, sealed.sum).await? {
                return Ok(Put::Equal);
            }
            self.store.overwrite(path, sealed.object).await?;
            self.compare(path, kind, span, sealed.sum).await?;
            return Ok(Put::New);
        }
        match self.store.create(path, sealed.object).await? {
            Created::New => return Ok(Put::New),
            Created::Exists => {}
            Created::Unsupported => {
                let why = "the service no longer creates without overwriting".into();
                let (path, store) = (path.into(), self.store.name().into());
                return Err(StoreError::Failed { tried: "write", path, store, why }.into());
            }
        }
        if !self.compare(path, kind, span, sealed.sum).await? {
            let why = "the service says that it exists, and then that it does not".into();
            let (path, store) = (path.into(), self.store.name().into());
            return Err(StoreError::Failed { tried: "write", path, store, why }.into());
        }
        Ok(Put::Equal)
    }

    /// Takes a turn in the schedule of base backups, for this backup. False: another one has it.
    ///
    /// # Errors
    /// Damaged, or the store fails.
    pub async fn take_turn(&self, number: u64, id: &BackupId) -> Result<bool, ArchiveError> {
        let span = Span { file: FileName::of_backup(id, BackupPart::Turn), from: number, to: number };
        let object = Header::empty(Kind::Turn, self.identity, Some(span));
        let path = name::turn_path(number);
        if self.creates {
            if self.store.create(&path, object).await? == Created::New {
                return Ok(true);
            }
        } else if self.turn(number).await?.is_none() {
            self.store.overwrite(&path, object).await?;
        }
        // An attempt whose answer was lost may have succeeded.
        Ok(self.turn(number).await?.as_ref() == Some(id))
    }

    /// Returns the backup of a turn. None: nobody has taken it.
    ///
    /// # Errors
    /// Damaged, or the store fails.
    pub async fn turn(&self, number: u64) -> Result<Option<BackupId>, ArchiveError> {
        let path = name::turn_path(number);
        let Some(object) = self.store.read(&path, Some(HEADER)).await? else { return Ok(None) };
        let header = Header::parse(&object).map_err(|error| self.object(&path, error.into()))?;
        let id = header.span.as_ref().and_then(|span| FileName::parse_backup(span.file.as_str()));
        match id {
            Some((id, BackupPart::Turn)) if header.identity == self.identity => Ok(Some(id)),
            _ => Err(self.object(&path, SealError::Other)),
        }
    }

    /// Lists a directory.
    ///
    /// # Errors
    /// The store fails.
    pub async fn list(&self, directory: &str) -> Result<Vec<Listed>, ArchiveError> {
        Ok(self.store.list(directory).await?)
    }

    /// Lists the directories of a directory.
    ///
    /// # Errors
    /// The store fails.
    pub async fn directories(&self, directory: &str) -> Result<Vec<String>, ArchiveError> {
        Ok(self.store.directories(directory).await?)
    }

    /// Writes an object over any other: for marks, which change.
    ///
    /// # Errors
    /// The store fails.
    pub async fn overwrite(&self, path: &str, sealed: Sealed) -> Result<(), ArchiveError> {
        Ok(self.store.overwrite(path, sealed.object).await?)
    }

    /// Returns the location, for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        self.store.name()
    }

    /// Removes an object.
    ///
    /// # Errors
    /// The store fails.
    pub async fn remove(&self, path: &str) -> Result<(), ArchiveError> {
        Ok(self.store.remove(path).await?)
    }

    /// Reads an object with content. None: not there.
    ///
    /// # Errors
    /// Damaged, not what its name says, or the store fails.
    pub async fn get(&self, kind: Kind, span: &Span) -> Result<Option<Vec<u8>>, ArchiveError> {
        let path = self.path(kind, span);
        let Some(object) = self.store.read(&path, None).await? else { return Ok(None) };
        let (header, raw) = unseal(&object, &self.keys).map_err(|error| self.object(&path, error))?;
        self.check(&path, &header, kind, span)?;
        Ok(Some(raw))
    }

    /// Fetches a file: gives `write` its bytes, each piece with its offset. False: the archive has nothing of it. Of a segment that is not whole,
    /// `write` gets the bytes up to the first that is missing.
    ///
    /// # Errors
    /// Damaged, or the store fails; the error of `write`.
    pub async fn fetch<E: From<ArchiveError>>(
        &self,
        file: &FileName,
        mut write: impl FnMut(&[u8], u64) -> Result<(), E>,
    ) -> Result<bool, E> {
        if file.is_history() {
            let span = Span { file: file.clone(), from: 0, to: 0 };
            return match self.get(Kind::History, &span).await? {
                Some(content) => write(&content, 0).map(|()| true),
                None => Ok(false),
            };
        }
        let mut at = 0;
        for range in blocks(self.identity.segment_size) {
            let span = Span { file: file.clone(), from: range.start, to: range.end };
            match self.get(Kind::Block, &span).await? {
                Some(block) => write(&block, range.start)?,
                None => break,
            }
            at = range.end;
        }
        if at == self.identity.segment_size {
            return Ok(true);
        }
        let listed = self.list(&name::part_directory(file)).await?;
        let parts: Vec<Span> = listed.iter().filter_map(|object| name::part_of_path(&object.path)).collect();
        for part in chain(&parts, at) {
            match self.get(Kind::Part, &part).await? {
                Some(bytes) => write(&bytes, part.from)?,
                // The block has become whole since: the next attempt finds it.
                None => break,
            }
            at = part.to;
        }
        Ok(at > 0)
    }

    fn check(&self, path: &str, header: &Header, kind: Kind, span: &Span) -> Result<(), ArchiveError> {
        if header.identity != self.identity {
            return Err(ArchiveError::other_cluster(&*self.store, header.identity, self.identity));
        }
        let same = |held: &Span| match kind {
            // The length is not part of the name.
            Kind::History | Kind::Record | Kind::Mark => held.file == span.file && held.from == 0,
            // Of the last piece neither.
            Kind::Base => held.file == span.file && held.from == span.from,
            _ => held == span,
        };
        if header.kind == kind && header.span.as_ref().is_some_and(same) {
            return Ok(());
        }
        Err(self.object(path, SealError::Other))
    }

    fn object(&self, path: &str, source: SealError) -> ArchiveError {
        ArchiveError::Object { path: path.into(), store: self.store.name().into(), source }
    }
}

impl Header {
    /// Returns an object without content.
    fn empty(kind: Kind, identity: Identity, span: Option<Span>) -> Bytes {
        // Reading nothing cannot fail.
        let form = Form { codec: Codec::None, key: None };
        seal(form, kind, identity, span, std::io::empty(), 0).map(|sealed| sealed.object).unwrap_or_default()
    }
}

async fn read_identity(store: &dyn Store) -> Result<Option<Identity>, ArchiveError> {
    let Some(object) = store.read(name::IDENTITY, Some(HEADER)).await? else { return Ok(None) };
    match Header::parse(&object) {
        Ok(header) => Ok(Some(header.identity)),
        Err(error) => {
            let (path, store) = (name::IDENTITY.into(), store.name().into());
            Err(ArchiveError::Object { path, store, source: error.into() })
        }
    }
}

#[cfg(test)]
mod tests;
