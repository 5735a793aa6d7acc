//! The cluster's directory: its owner, its content, its users.
//!
//! ```text
//!  <dir>/kingpost.marker   written first: the directory is ours
//!        lock              held (flock) while somebody starts, runs or stops the cluster
//!        up.json           the running `kingpost up`: pid, start time, addresses
//!        state.json        the nodes; `complete` once every one of them was made
//!        kingpost.toml     the configuration that the proxy was started with
//!        console.token     what an operator signs in to the console with; its owner's alone
//!        mariadb.password  of the servers and the relay, where they are of MariaDB; its owner's alone (mysql.password: of MySQL)
//!        client.cnf        likewise, for their own client
//!        logs/             one file a node, one for the proxy, one a tool
//!        relay/            the relay's log
//!  <data>/nodes/<name>/    data directories; <data> is <dir>, unless the servers' user cannot get there
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::children::Identity;
use process::Failure;

const MARKER: &str = "kingpost.marker";
const MARKER_TEXT: &str =
    "A local cluster of kingpost. Made by `kingpost up`; stop it with `kingpost down` before removing it.\n";

/// A cluster's directory.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    /// Absolute path.
    pub(super) path: PathBuf,
}

/// The lock on a directory while its cluster is started, run or stopped; the system releases it at the end of the process, however it ends.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

/// Engine of the servers of a local cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// PostgreSQL, behind a proxy
    #[default]
    Postgresql,
    /// MariaDB: a primary, a relay of its binary log, and replicas; there is no proxy
    Mariadb,
    /// MySQL: the same, with servers of MySQL 8.4 or later
    Mysql,
}

impl Engine {
    /// The engine's name for messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Engine::Postgresql => "PostgreSQL",
            Engine::Mariadb => "MariaDB",
            Engine::Mysql => "MySQL",
        }
    }

    /// The user that packages create for the servers.
    pub(super) fn account(self) -> &'static str {
        match self {
            Engine::Postgresql => "postgres",
            Engine::Mariadb | Engine::Mysql => "mysql",
        }
    }
}

/// Content of `state.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    /// Version of this file.
    pub(super) format: u32,
    /// Engine of the servers.
    #[serde(default)]
    pub(super) engine: Engine,
    /// True once every node was made. Otherwise everything is made again.
    pub(super) complete: bool,
    /// Major version of PostgreSQL; for MariaDB 10.11, 1011; for MySQL 8.4, 804.
    pub(super) version: u32,
    /// Directory of the programs; empty where they were searched for by MariaDB's or MySQL's names.
    pub(super) bin: PathBuf,
    /// Directory that holds `nodes/`.
    pub(super) data: PathBuf,
    /// Directory of the servers' Unix sockets.
    pub(super) sockets: PathBuf,
    /// The nodes.
    pub(super) nodes: Vec<NodeState>,
}

/// A node in `state.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct NodeState {
    pub(super) name: String,
    /// Last port, used again if it is free; 0 before the first start.
    pub(super) port: u16,
    /// `server_id` of MariaDB or MySQL; 0 before its data are made, and for PostgreSQL.
    #[serde(default)]
    pub(super) server_id: u32,
}

/// Content of `up.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct UpState {
    /// The process.
    pub(super) process: Identity,
    /// Addresses of the proxy; empty while starting.
    pub(super) proxy: Vec<String>,
    /// Address of the metrics.
    pub(super) metrics: String,
    /// Address of the relay, if there is one.
    #[serde(default)]
    pub(super) relay: Option<String>,
    /// Address of the registry; empty while starting.
    #[serde(default)]
    pub(super) registry: String,
    /// Address of the console.
    #[serde(default)]
    pub(super) console: String,
}

/// Replicas of a new cluster.
const DEFAULT_REPLICAS: u16 = 2;
/// The only version of `state.json` so far.
pub(super) const FORMAT: u32 = 1;

impl State {
    /// Returns a node's directory: for PostgreSQL that of its agent.
    pub(super) fn node_dir(&self, name: &str) -> PathBuf {
        self.data.join("nodes").join(name)
    }

    /// Returns a node's data directory.
    pub(super) fn node_data(&self, name: &str) -> PathBuf {
        let dir = self.node_dir(name);
        match self.engine {
            Engine::Postgresql => dir.join("data"),
            Engine::Mariadb | Engine::Mysql => dir,
        }
    }

    /// Adds the nodes that are missing for so many replicas; without a number, for those that the directory has, or [`DEFAULT_REPLICAS`] at first.
    /// Returns the number of nodes to start, the primary included.
    pub(super) fn add_nodes(&mut self, replicas: Option<u16>) -> usize {
        let existing = self.nodes.len();
        let wanted = 1 + match replicas {
            Some(replicas) => usize::from(replicas),
            None if !self.complete => usize::from(DEFAULT_REPLICAS),
            None => existing.saturating_sub(1),
        };
        for number in existing + 1..=wanted {
            self.nodes.push(NodeState { name: format!("node{number}"), port: 0, server_id: 0 });
        }
        wanted
    }
}

impl Directory {
    /// Uses a directory: creates a missing one, refuses one that holds something else.
    ///
    /// # Errors
    /// The directory is not kingpost's, or cannot be made.
    pub(super) fn create(path: &Path) -> Result<Directory, Failure> {
        match fs::read_dir(path) {
            Ok(mut entries) => {
                if !path.join(MARKER).is_file() && entries.next().is_some() {
                    return Err(not_ours(path));
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                fs::create_dir_all(path).map_err(|error| Failure::path("create", path, &error))?;
            }
            Err(error) => return Err(Failure::path("use", path, &error)),
        }
        let directory = Directory { path: absolute(path)? };
        let marker = directory.path.join(MARKER);
        if !marker.exists() {
            write_whole(&marker, MARKER_TEXT.as_bytes())?;
        }
        let logs = directory.logs();
        fs::create_dir_all(&logs).map_err(|error| Failure::path("create", &logs, &error))?;
        Ok(directory)
    }

    /// Uses a directory that must exist.
    ///
    /// # Errors
    /// The directory is missing, or not kingpost's.
    pub(super) fn open(path: &Path) -> Result<Directory, Failure> {
        if path.join(MARKER).is_file() {
            return Ok(Directory { path: absolute(path)? });
        }
        if path.exists() {
            return Err(not_ours(path));
        }
        Err(Failure::environment(format!("there is no cluster in {}: no such directory", path.display()))
            .advise("start one with `kingpost up`, or name its directory with --dir"))
    }

    /// Returns the file of the console's token.
    pub(super) fn token_file(&self) -> PathBuf {
        self.path.join("console.token")
    }

    /// Returns the console's token, made at the first start and kept from then on.
    ///
    /// # Errors
    /// The token's file cannot be written.
    pub(super) fn console_token(&self) -> Result<String, Failure> {
        secret(&self.token_file(), usize::MAX)
    }

    /// Returns the file with the password of the servers of MariaDB or MySQL.
    pub(super) fn password_file(&self, engine: Engine) -> PathBuf {
        self.path.join(if engine == Engine::Mysql { "mysql.password" } else { "mariadb.password" })
    }

    /// Returns the password of the servers of MariaDB or MySQL, made at the first start and kept from then on.
    ///
    /// # Errors
    /// The password's file cannot be written.
    pub(super) fn password(&self, engine: Engine) -> Result<String, Failure> {
        secret(&self.password_file(engine), if engine == Engine::Mysql { SECRET } else { usize::MAX })
    }

    /// Takes the lock without waiting; `None` if another process has it.
    ///
    /// # Errors
    /// The lock's file cannot be used.
    pub(super) fn try_lock(&self) -> Result<Option<Lock>, Failure> {
        let path = self.path.join("lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|error| Failure::path("open", &path, &error))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(Failure::path("lock", &path, &error)),
        }
    }

    pub(super) fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    /// Returns the directory of the relay's log.
    pub(super) fn relay(&self) -> PathBuf {
        self.path.join("relay")
    }

    /// Reads `state.json`; `None` before the first start.
    ///
    /// # Errors
    /// The file cannot be read, or has another format.
    pub(super) fn state(&self) -> Result<Option<State>, Failure> {
        let state: Option<State> = read_json(&self.path.join("state.json"))?;
        match state {
            Some(state) if state.format != FORMAT => Err(Failure::environment(format!(
                "{} was made by another version of kingpost (format {}, this one knows {FORMAT})",
                self.path.display(),
                state.format
            ))
            .advise("use another directory with --dir")),
            state => Ok(state),
        }
    }

    pub(super) fn save_state(&self, state: &State) -> Result<(), Failure> {
        write_json(&self.path.join("state.json"), state)
    }

    /// Returns the `kingpost up` of this directory, if one is alive.
    pub(super) fn running(&self) -> Result<Option<UpState>, Failure> {
        let state: Option<UpState> = read_json(&self.path.join("up.json"))?;
        Ok(state.filter(|state| state.process.is_alive()))
    }

    pub(super) fn save_running(&self, state: &UpState) -> Result<(), Failure> {
        write_json(&self.path.join("up.json"), state)
    }

    pub(super) fn clear_running(&self) {
        let _ = fs::remove_file(self.path.join("up.json"));
    }
}

/// Shortest secret that is taken from a file. MySQL's replicas take no longer password.
const SECRET: usize = 32;

/// Returns the secret in a file that only its owner can read; makes one of at most `longest` characters if the file has none.
fn secret(path: &Path, longest: usize) -> Result<String, Failure> {
    if let Ok(text) = fs::read_to_string(path)
        && text.trim().len() >= SECRET
    {
        return Ok(text.trim().to_owned());
    }
    let (mut token, _) = process::token::make()?;
    token.truncate(longest);
    write_secret(path, &format!("{token}\n"))?;
    Ok(token)
}

/// Writes a file that only its owner can read.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write_secret(path: &Path, content: &str) -> Result<(), Failure> {
    use std::os::unix::fs::OpenOptionsExt;
    let write = || -> std::io::Result<()> {
        let _ = fs::remove_file(path);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(content.as_bytes())
    };
    write().map_err(|error| Failure::path("write", path, &error))
}

fn not_ours(path: &Path) -> Failure {
    Failure::environment(format!("{} holds something that kingpost did not make, and is left alone", path.display()))
        .advise("name an empty or a new directory with --dir")
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    fs::canonicalize(path).map_err(|error| Failure::path("find", path, &error))
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, Failure> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::path("read", path, &error)),
    };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| Failure::environment(format!("cannot understand {}: {error}", path.display())))
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_vec_pretty(value)
        .map_err(|error| Failure::runtime(format!("cannot write {}: {error}", path.display())))?;
    write_whole(path, &text)
}

/// Writes a file atomically.
pub(super) fn write_whole(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let new = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&new)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&new);
        Failure::path("write", path, &error)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_strange_directory_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.txt"), "x").unwrap();
        assert!(Directory::create(dir.path()).unwrap_err().to_string().contains("left alone"));
        assert!(Directory::open(dir.path()).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_empty_directory_becomes_ours_and_stays_ours() {
        let dir = tempfile::tempdir().unwrap();
        Directory::create(dir.path()).unwrap();
        fs::write(dir.path().join("junk"), "x").unwrap();
        Directory::create(dir.path()).unwrap();
        Directory::open(dir.path()).unwrap();
    }

    #[test]
    fn one_lock() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::create(dir.path()).unwrap();
        let lock = directory.try_lock().unwrap();
        assert!(lock.is_some());
        assert!(directory.try_lock().unwrap().is_none());
        drop(lock);
        assert!(directory.try_lock().unwrap().is_some());
    }

    #[test]
    fn state_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::create(dir.path()).unwrap();
        assert_eq!(directory.state().unwrap(), None);
        let mut state = State {
            format: FORMAT,
            engine: Engine::Mariadb,
            complete: true,
            version: 15,
            bin: "/bin".into(),
            data: dir.path().into(),
            sockets: "/tmp/x".into(),
            nodes: vec![NodeState { name: "node1".into(), port: 5, server_id: 7 }],
        };
        directory.save_state(&state).unwrap();
        assert_eq!(directory.state().unwrap().as_ref(), Some(&state));
        state.format = 99;
        directory.save_state(&state).unwrap();
        assert!(directory.state().is_err());
    }

    #[test]
    fn a_recycled_pid_is_not_the_running_one() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::create(dir.path()).unwrap();
        let mut process = Identity::own().unwrap();
        let state = |process| UpState {
            process,
            proxy: vec![],
            metrics: String::new(),
            relay: None,
            registry: String::new(),
            console: String::new(),
        };
        directory.save_running(&state(process)).unwrap();
        assert!(directory.running().unwrap().is_some());
        process.started += 1;
        directory.save_running(&state(process)).unwrap();
        assert!(directory.running().unwrap().is_none());
    }
}
