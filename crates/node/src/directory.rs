//! The agent's directory: its owner, its lock, its data.
//!
//! ```text
//!  <directory>/kingpost.node   identity, written first: name, random id, system identifier, major version
//!              kingpost.lock   held (flock) while an agent runs
//!              fenced          while the agent has its server refuse writes
//!              passfile        the login of standbys and tools, for the servers' user alone
//!              logs/           of the server and of each tool
//!              data/           the server's data
//!              cloning/        a copy in progress: renamed to data/ when it is whole
//!              rewinding/      data that pg_rewind changes: renamed back to data/ when it has ended well
//!              new             from the start of a new cluster until most of its relays have confirmed it
//!              wanted          while a new copy is to be made in place of data that were set aside
//!              paused          while the agent only watches
//!              rebuild         from an order to copy the primary's data anew until the present ones are set aside
//!              aside-<time>/   replaced data
//! ```
//!
//! A rename is the mark of a rewind: whatever ends the agent, half-rewound data are never found in `data/`.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use process::Failure;
use process::server::Account;
use serde::{Deserialize, Serialize};

use crate::settings_file;
use crate::supervise::Trouble;

/// File with the identity of the node.
const IDENTITY: &str = "kingpost.node";
/// File that exists while the server refuses writes.
const FENCED: &str = "fenced";
/// File that exists from the start of a new cluster until most of its relays have confirmed it.
const NEW: &str = "new";
/// File that exists while a copy is to be made.
const WANTED: &str = "wanted";
/// File that exists while the agent only watches.
const PAUSED: &str = "paused";
/// File that exists while the data are to be copied anew.
const REBUILD: &str = "rebuild";
/// Prefix of replaced data directories.
const ASIDE: &str = "aside-";
/// Most entries of a directory that are looked at.
const MOST: usize = 4096;
/// Most bytes of a configuration file.
const LARGEST: u64 = 1 << 20;

/// Identity of a node, in its directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeIdentity {
    /// Version of this file.
    pub(crate) format: u32,
    /// Name of the node.
    pub(crate) name: String,
    /// Random id, distinct from that of any other node.
    pub(crate) id: String,
    /// System identifier of the data; None before there were any.
    pub(crate) system: Option<u64>,
    /// Major version of the data.
    pub(crate) version: Option<u32>,
}

/// The lock on a directory; the system releases it at the end of the process, however it ends.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    _file: File,
}

/// An agent's directory.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    pub(crate) account: Option<Account>,
}

impl Directory {
    pub(crate) fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    pub(crate) fn cloning(&self) -> PathBuf {
        self.path.join("cloning")
    }

    pub(crate) fn rewinding(&self) -> PathBuf {
        self.path.join("rewinding")
    }

    pub(crate) fn passfile(&self) -> PathBuf {
        self.path.join("passfile")
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.path.join("logs").join(format!("{name}.log"))
    }

    fn identity_file(&self) -> PathBuf {
        self.path.join(IDENTITY)
    }

    /// True if the directory is a mount point.
    pub(crate) fn is_mounted(path: &Path) -> bool {
        let parent = path.parent().unwrap_or(path);
        let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev());
        matches!((device(path), device(parent)), (Ok(own), Ok(above)) if own != above)
    }

    /// True if an agent has used the directory.
    pub(crate) fn is_used(path: &Path) -> bool {
        path.join(IDENTITY).is_file()
    }

    /// Opens the directory, which is created if it does not exist.
    ///
    /// # Errors
    /// The directory cannot be used, or the servers' user cannot enter it.
    pub(crate) fn open(path: &Path) -> Result<Directory, Failure> {
        fs::create_dir_all(path).map_err(|error| Failure::path("create", path, &error))?;
        let path = fs::canonicalize(path).map_err(|error| Failure::path("find", path, &error))?;
        let account = Account::choose(&path, "postgres")?;
        let directory = Directory { path, account };
        directory.own(&directory.path)?;
        directory.own(&directory.path.join("logs"))?;
        if let Some(account) = directory.account.as_ref().filter(|account| !account.can_enter(&directory.path)) {
            return Err(Failure::environment(format!(
                "the user {} of the server cannot enter {}",
                account.name,
                directory.path.display()
            ))
            .advise("give a node.directory whose parents every user may enter"));
        }
        Ok(directory)
    }

    /// Makes a directory of the servers' user.
    fn own(&self, path: &Path) -> Result<(), Failure> {
        let make = || -> std::io::Result<()> {
            fs::create_dir_all(path)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o750))?;
            self.give(path)
        };
        make().map_err(|error| Failure::path("prepare", path, &error))
    }

    /// Gives a file to the servers' user.
    fn give(&self, path: &Path) -> std::io::Result<()> {
        match &self.account {
            Some(account) => std::os::unix::fs::chown(path, Some(account.uid), Some(account.gid)),
            None => Ok(()),
        }
    }

    /// Takes the lock; None if another agent has it.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub(crate) fn lock(&self) -> Result<Option<DirectoryLock>, Failure> {
        let path = self.path.join("kingpost.lock");
        let open = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = open.map_err(|error| Failure::path("open", &path, &error))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(DirectoryLock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(Failure::path("lock", &path, &error)),
        }
    }

    /// Makes the error of a second agent.
    pub(crate) fn has_agent(&self) -> Failure {
        Failure::environment(format!("another agent runs on {}", self.path.display()))
            .advise("each server has one agent and one directory: stop the other one, or set node.directory")
    }

    /// Reads the identity; None without one.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn identity(&self) -> Result<Option<NodeIdentity>, Failure> {
        let path = self.identity_file();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Failure::path("read", &path, &error)),
        };
        let identity = serde_json::from_slice(&text).map_err(|error| {
            Failure::environment(format!("cannot understand {}: {error}", path.display()))
                .advise("restore the file from a copy, or remove it and start the agent with --adopt")
        })?;
        Ok(Some(identity))
    }

    /// Writes the identity durably.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn set_identity(&self, identity: &NodeIdentity) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(identity)
            .map_err(|error| Failure::runtime(format!("cannot write the identity: {error}")))?;
        self.write(&self.identity_file(), &format!("{text}\n"), 0o640)
    }

    /// Replaces a file durably.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(&self, path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
        let new = path.with_extension("new");
        let write = || -> std::io::Result<()> {
            let _ = fs::remove_file(&new);
            let mut file = OpenOptions::new().create_new(true).write(true).open(&new)?;
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            self.give(&new)?;
            fs::rename(&new, path)?;
            sync(path.parent().unwrap_or(&self.path))
        };
        write().map_err(|error| Failure::path("write", path, &error))
    }

    /// Writes the upstream of a standby into the files of a stopped server.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub(crate) fn follow(&self, data: &Path, conninfo: &str, slot: &str) -> Result<(), Failure> {
        let file = data.join("postgresql.auto.conf");
        self.write(&file, &settings_file::following(&read(&file)?, conninfo, slot), 0o600)
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.path.join(FENCED).exists()
    }

    /// True if a copy is to be made in place of data that were set aside.
    pub(crate) fn is_copy_wanted(&self) -> bool {
        self.path.join(WANTED).exists()
    }

    /// Records that the server refuses writes, or that it does not any more.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub(crate) fn set_fenced(&self, fenced: bool) -> Result<(), Failure> {
        self.set(FENCED, fenced)
    }

    /// Records that a copy is to be made, or that it was.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub(crate) fn set_copy_wanted(&self, wanted: bool) -> Result<(), Failure> {
        self.set(WANTED, wanted)
    }

    /// True for a new cluster that its relays have not confirmed yet: nobody else can be its primary.
    pub(crate) fn is_new(&self) -> bool {
        self.path.join(NEW).exists()
    }

    /// Records that the cluster is new, or that its relays have confirmed it.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub(crate) fn set_new(&self, new: bool) -> Result<(), Failure> {
        self.set(NEW, new)
    }

    /// True while the agent only watches.
    pub(crate) fn is_paused(&self) -> bool {
        self.path.join(PAUSED).exists()
    }

    /// Has the directory's agent only watch, or act again.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub(crate) fn set_paused(&self, paused: bool) -> Result<(), Failure> {
        self.set(PAUSED, paused)
    }

    /// True if the data are to be copied anew.
    pub(crate) fn is_rebuild_wanted(&self) -> bool {
        self.path.join(REBUILD).exists()
    }

    /// Orders that the data are copied anew, or withdraws the order.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub(crate) fn set_rebuild_wanted(&self, wanted: bool) -> Result<(), Failure> {
        self.set(REBUILD, wanted)
    }

    /// Creates or removes an empty file.
    fn set(&self, name: &str, present: bool) -> Result<(), Failure> {
        let path = self.path.join(name);
        if present {
            return self.write(&path, "", 0o640);
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Failure::path("remove", &path, &error)),
            _ => Ok(()),
        }
    }

    /// Renames a directory durably.
    ///
    /// # Errors
    /// The file system refuses.
    pub(crate) fn rename(&self, from: &Path, to: &Path) -> Result<(), Failure> {
        let rename = || -> std::io::Result<()> {
            fs::rename(from, to)?;
            sync(&self.path)
        };
        rename().map_err(|error| Failure::path("rename", from, &error))
    }

    /// Moves a data directory out of the way, and removes the oldest of those beyond `limit`. Returns its new path.
    ///
    /// # Errors
    /// The file system refuses.
    pub(crate) fn set_aside(&self, from: &Path, limit: usize) -> Result<PathBuf, Failure> {
        self.set_copy_wanted(true)?;
        let mut seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        // Two within a second.
        while self.path.join(format!("{ASIDE}{seconds}")).exists() {
            seconds += 1;
        }
        let to = self.path.join(format!("{ASIDE}{seconds}"));
        self.rename(from, &to)?;
        let entries = fs::read_dir(&self.path).map_err(|error| Failure::path("list", &self.path, &error))?;
        let mut all: Vec<PathBuf> = entries
            .flatten()
            .take(MOST)
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(ASIDE))
            .map(|entry| entry.path())
            .collect();
        all.sort();
        for old in all.iter().rev().skip(limit) {
            remove(old)?;
        }
        Ok(to)
    }

    /// Checks the identity of the directory against the node's name.
    pub(crate) fn belongs(identity: Option<&NodeIdentity>, name: &str) -> Result<(), Trouble> {
        match identity {
            Some(identity) if identity.name != name => Err(Trouble::OtherNode(identity.name.clone())),
            _ => Ok(()),
        }
    }
}

/// Removes a directory, if it exists.
///
/// # Errors
/// The file system refuses.
pub(crate) fn remove(path: &Path) -> Result<(), Failure> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Failure::path("remove", path, &error)),
        _ => Ok(()),
    }
}

/// Reads a configuration file.
///
/// # Errors
/// The file cannot be read, or is too large.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    let size = fs::metadata(path).map_err(|error| Failure::path("read", path, &error))?.len();
    if size > LARGEST {
        return Err(Failure::environment(format!(
            "{} has {size} bytes, and at most {LARGEST} are read",
            path.display()
        )));
    }
    fs::read_to_string(path).map_err(|error| Failure::path("read", path, &error))
}

/// Makes a directory's entries durable.
fn sync(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn directory() -> (tempfile::TempDir, Directory) {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory { path: dir.path().to_owned(), account: None };
        (dir, directory)
    }

    #[test]
    fn the_second_agent_refuses() {
        let (_dir, directory) = directory();
        let lock = directory.lock().unwrap();
        assert!(lock.is_some() && directory.lock().unwrap().is_none());
        drop(lock);
        assert!(directory.lock().unwrap().is_some());
    }

    #[test]
    fn an_identity_is_read_again() {
        let (_dir, directory) = directory();
        assert_eq!(directory.identity().unwrap(), None);
        let identity =
            NodeIdentity { format: 1, name: "a".into(), id: "x".into(), system: Some(u64::MAX), version: Some(15) };
        directory.set_identity(&identity).unwrap();
        assert_eq!(directory.identity().unwrap(), Some(identity.clone()));
        assert_eq!(Directory::belongs(Some(&identity), "a"), Ok(()));
        assert_eq!(Directory::belongs(Some(&identity), "b"), Err(Trouble::OtherNode("a".into())));
    }

    #[test]
    fn replaced_data_are_kept_within_a_limit() {
        let (_dir, directory) = directory();
        let aside = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(ASIDE);
        let entries = || fs::read_dir(&directory.path).unwrap().flatten();
        let kept = || entries().filter(|entry| aside(&entry.file_name())).count();
        for limit in [2, 2, 2, 0] {
            fs::create_dir(directory.data()).unwrap();
            directory.set_aside(&directory.data(), limit).unwrap();
            assert!(kept() <= limit, "{limit}");
        }
        fs::create_dir(directory.data()).unwrap();
        assert!(directory.set_aside(&directory.data(), 1).unwrap().exists());
    }

    #[test]
    fn a_directory_is_no_mount_point_and_proc_is_one() {
        let (dir, _) = directory();
        assert!(!Directory::is_mounted(dir.path()));
        assert!(Directory::is_mounted(Path::new("/proc")));
    }
}
