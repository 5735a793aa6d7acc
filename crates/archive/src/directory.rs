//! A directory as a store: files that are complete and durable before they have their names.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;

use crate::seal::LARGEST;
use crate::store::{Created, Listed, MOST_LISTED, Store, StoreError};

/// Suffix of files that are not complete.
const UNFINISHED: &str = ".unfinished";

/// An archive in a directory, which must exist: a missing one may be a file system that is not mounted.
#[derive(Debug)]
pub struct DirectoryStore {
    root: Arc<Root>,
    name: String,
    timeout: Duration,
}

#[derive(Debug)]
struct Root {
    path: PathBuf,
    /// Identity of the directory when it was first used: another one may be the place where it was mounted.
    seen: Mutex<Option<Identity>>,
}

/// Device and inode of a directory, and its birth where the file system knows it: the numbers of a file system that is unmounted go to the next
/// one.
type Identity = (u64, u64, Option<SystemTime>);

impl DirectoryStore {
    /// Makes the store of a directory.
    #[must_use]
    pub fn new(path: &Path, timeout: Duration) -> DirectoryStore {
        let root = Arc::new(Root { path: path.into(), seen: Mutex::default() });
        DirectoryStore { root, name: path.display().to_string(), timeout }
    }

    /// Runs an operation on a thread for blocking work; a file system that hangs costs the thread, not the caller.
    async fn run<T: Send + 'static>(
        &self,
        tried: &'static str,
        path: &str,
        work: impl FnOnce(&HeldRoot, &Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (root, relative) = (Arc::clone(&self.root), PathBuf::from(path));
        let done = tokio::task::spawn_blocking(move || {
            let held = root.hold()?;
            let target = held.path.join(relative);
            work(&held, &target)
        });
        let failed = |why: String| StoreError::Failed { tried, path: path.into(), store: self.name.clone(), why };
        match tokio::time::timeout(self.timeout, done).await {
            Ok(Ok(Ok(value))) => Ok(value),
            Ok(Ok(Err(error))) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(StoreError::Refused { tried, path: path.into(), store: self.name.clone(), why: error.to_string() })
            }
            Ok(Ok(Err(error))) => Err(failed(error.to_string())),
            Ok(Err(panicked)) => Err(failed(panicked.to_string())),
            Err(_) => Err(failed(format!("no answer within {:?}", self.timeout))),
        }
    }

    /// Lists what `take` returns for the entries of a directory.
    async fn entries<T: Send + 'static>(
        &self,
        directory: &str,
        take: impl Fn(&fs::DirEntry, &str) -> io::Result<Option<T>> + Send + 'static,
    ) -> Result<Vec<T>, StoreError> {
        let taken = self.run("list", directory, move |_, path| read_entries(path, take)).await?;
        taken.ok_or_else(|| StoreError::TooMany { directory: directory.into(), store: self.name.clone() })
    }
}

/// The root, open for one operation: files below `path` stay on one file system, whatever is mounted or unmounted meanwhile.
struct HeldRoot {
    path: PathBuf,
    _directory: File,
}

/// Lists what `take` returns for the entries of a directory, none if the directory does not exist; `None` if there are too many.
fn read_entries<T>(
    path: &Path,
    take: impl Fn(&fs::DirEntry, &str) -> io::Result<Option<T>>,
) -> io::Result<Option<Vec<T>>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(Vec::new())),
        Err(error) => return Err(error),
    };
    let mut taken = Vec::new();
    for entry in entries {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Some(one) = take(&entry, &name)? else { continue };
        if taken.len() == MOST_LISTED {
            return Ok(None);
        }
        taken.push(one);
    }
    Ok(Some(taken))
}

impl Root {
    /// Opens the directory, which has to be the one that was used first.
    fn hold(&self) -> io::Result<HeldRoot> {
        let directory = File::open(&self.path)?;
        let found = directory.metadata()?;
        let found = (found.dev(), found.ino(), found.created().ok());
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen.get_or_insert(found) != found {
            return Err(io::Error::other(
                "the directory is another one than before, perhaps because a file system is not mounted any more",
            ));
        }
        // Linux leads a path through this name to the open directory itself.
        let through = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        let path = if through.exists() { through } else { self.path.clone() };
        Ok(HeldRoot { path, _directory: directory })
    }
}

impl HeldRoot {
    /// Makes the directories of `path` that are missing, durably.
    fn make_parents(&self, path: &Path) -> io::Result<()> {
        let Some(parent) = path.parent().filter(|parent| *parent != self.path) else { return Ok(()) };
        match fs::DirBuilder::new().mode(0o750).create(parent) {
            Ok(()) => sync_parent(parent),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_parents(parent)?;
                self.make_parents(path)
            }
            Err(error) => Err(error),
        }
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

/// Writes a file beside `path`, durably; `named` gives it its name.
fn write(
    root: &HeldRoot,
    path: &Path,
    object: &[u8],
    named: impl FnOnce(&Path) -> io::Result<Created>,
) -> io::Result<Created> {
    root.make_parents(path)?;
    let mut random = [0; 8];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut random)
        .map_err(|_| io::Error::other("no random bytes"))?;
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:016x}{UNFINISHED}", u64::from_ne_bytes(random)));
    let unfinished = PathBuf::from(name);
    let open = || OpenOptions::new().write(true).create_new(true).mode(0o640).open(&unfinished);
    let opened = open().or_else(|error| match error.kind() {
        // The directory went with its last object meanwhile.
        io::ErrorKind::NotFound => root.make_parents(path).and_then(|()| open()),
        _ => Err(error),
    });
    let written = opened.and_then(|mut file| {
        file.write_all(object)?;
        file.sync_all()
    });
    let created = written.and_then(|()| named(&unfinished));
    // Gone after a rename.
    let _ = fs::remove_file(&unfinished);
    let created = created?;
    if created == Created::New {
        sync_parent(path)?;
    }
    Ok(created)
}

#[async_trait]
impl Store for DirectoryStore {
    fn name(&self) -> &str {
        &self.name
    }

    async fn create(&self, path: &str, object: Bytes) -> Result<Created, StoreError> {
        let create = move |root: &HeldRoot, path: &Path| {
            if path.exists() {
                return Ok(Created::Exists);
            }
            write(root, path, &object, |unfinished| match fs::hard_link(unfinished, path) {
                Ok(()) => Ok(Created::New),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Created::Exists),
                // A file system without hard links.
                Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported) => {
                    let (cwd, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::NOREPLACE);
                    match rustix::fs::renameat_with(cwd, unfinished, cwd, path, flags) {
                        Ok(()) => Ok(Created::New),
                        Err(rustix::io::Errno::EXIST) => Ok(Created::Exists),
                        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => Ok(Created::Unsupported),
                        Err(error) => Err(error.into()),
                    }
                }
                Err(error) => Err(error),
            })
        };
        self.run("write", path, create).await
    }

    async fn overwrite(&self, path: &str, object: Bytes) -> Result<(), StoreError> {
        let overwrite = move |root: &HeldRoot, path: &Path| {
            write(root, path, &object, |unfinished| fs::rename(unfinished, path).map(|()| Created::New)).map(|_| ())
        };
        self.run("write", path, overwrite).await
    }

    async fn read(&self, path: &str, bytes: Option<usize>) -> Result<Option<Bytes>, StoreError> {
        let read = move |_: &HeldRoot, path: &Path| {
            let file = match File::open(path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            };
            let mut object = Vec::new();
            file.take(bytes.unwrap_or(LARGEST + 1) as u64).read_to_end(&mut object)?;
            if object.len() > LARGEST {
                return Err(io::Error::other(format!("it has more than {LARGEST} bytes, more than any object has")));
            }
            Ok(Some(object.into()))
        };
        self.run("read", path, read).await
    }

    async fn list(&self, directory: &str) -> Result<Vec<Listed>, StoreError> {
        let prefix = directory.to_owned();
        self.entries(directory, move |entry, name| match entry.metadata() {
            Ok(metadata) if metadata.is_file() && !name.ends_with(UNFINISHED) => {
                Ok(Some(Listed { path: format!("{prefix}/{name}"), size: metadata.len() }))
            }
            Ok(_) => Ok(None),
            // Removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        })
        .await
    }

    async fn directories(&self, directory: &str) -> Result<Vec<String>, StoreError> {
        let prefix = directory.to_owned();
        self.entries(directory, move |entry, name| Ok(entry.file_type()?.is_dir().then(|| format!("{prefix}/{name}"))))
            .await
    }

    async fn remove(&self, path: &str) -> Result<(), StoreError> {
        let remove = |root: &HeldRoot, path: &Path| match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => {
                // The last object leaves empty directories.
                for parent in path.ancestors().skip(1).take_while(|parent| *parent != root.path) {
                    if fs::remove_dir(parent).is_err() {
                        break;
                    }
                }
                Ok(())
            }
        };
        self.run("remove", path, remove).await
    }
}
