//! Passwords: given in the configuration itself, in a file, or by a command.
//!
//! A [`Source`] is the location of a password, and [`Source::read`] is the only way to read it: the first line of a file, or of a command's standard
//! output. A [`Store`] keeps the passwords read, and detects changes.
//!
//! Invariants:
//! - A secret never appears in an error, in `Debug` output or in a log. A command's standard error is discarded, because it may contain the secret.
//! - Every read ends: a file is read up to [`MOST_BYTES`], and a command is killed with all of its children at its time limit.
//! - A failed read never removes a password: the last one is kept.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use serde::{Deserialize, Deserializer, Serializer, ser};

/// Maximum number of bytes read from a file or a command's output. Tokens of cloud providers have up to some thousand.
pub const MOST_BYTES: u64 = 64 << 10;

/// Polling interval for the end of a command that has closed its output.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A text that is never displayed.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Creates a secret.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// Returns the text.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl settings::Setting for Secret {
    const KIND: settings::Kind = settings::Kind::Secret;

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Secret, D::Error> {
        Secret::deserialize(from)
    }

    /// Fails: a secret is never written.
    fn write<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(ser::Error::custom("a secret is never written"))
    }

    fn toml(&self) -> Option<String> {
        None
    }
}

/// Location of a password outside of the configuration itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// The first line of this file.
    File(PathBuf),
    /// The first line of this program's standard output. The first item is the program's absolute path; the others are its arguments. No shell is
    /// involved.
    Command(Vec<String>),
}

/// Reason why a password cannot be read. No variant contains the password.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that cannot be read.
    #[error("cannot read password_file {}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Reason of the failure.
        source: io::Error,
    },
    /// A first line that is empty, longer than [`MOST_BYTES`], or not UTF-8.
    #[error("the first line of {from} is {what}, expected a password")]
    Unusable {
        /// The file or the program.
        from: String,
        /// Description of the fault.
        what: &'static str,
    },
    /// A command that cannot be started.
    #[error("cannot start password_command {program:?}: {source}")]
    Start {
        /// The program.
        program: String,
        /// Reason of the failure.
        source: io::Error,
    },
    /// A command that ended with an error.
    #[error(
        "password_command {program:?} ended with {status}: run it by hand as this user to see why, for what it writes to its standard error is thrown away"
    )]
    Failed {
        /// The program.
        program: String,
        /// Exit code or signal.
        status: String,
    },
    /// A command that was killed at its time limit.
    #[error("password_command {program:?} has not ended within {limit:?} and was killed")]
    Late {
        /// The program.
        program: String,
        /// The time limit.
        limit: Duration,
    },
}

impl Source {
    /// Returns the source of a file or a command; `None` if neither is given. A file takes precedence.
    #[must_use]
    pub fn of(file: Option<&Path>, command: &[String]) -> Option<Source> {
        match file {
            Some(path) => Some(Source::File(path.to_owned())),
            None => (!command.is_empty()).then(|| Source::Command(command.to_vec())),
        }
    }

    /// Reads the password. Blocks; a command for at most `limit`.
    ///
    /// # Errors
    /// An [`Error`], without the secret.
    pub fn read(&self, limit: Duration) -> Result<Secret, Error> {
        let (bytes, from) = self.bytes(limit)?;
        first_line(&bytes, &from)
    }

    /// Reads all lines: for keys in JSON. Blocks; a command for at most `limit`.
    ///
    /// # Errors
    /// An [`Error`], without the secret.
    pub fn read_whole(&self, limit: Duration) -> Result<Secret, Error> {
        let (bytes, from) = self.bytes(limit)?;
        text(bytes.trim_ascii(), &from, bytes.len())
    }

    /// Reads up to [`MOST_BYTES`]; returns them with their origin, for errors.
    fn bytes(&self, limit: Duration) -> Result<(Vec<u8>, String), Error> {
        match self {
            Source::File(path) => {
                let failed = |source| Error::File { path: path.clone(), source };
                let mut bytes = Vec::new();
                File::open(path).map_err(failed)?.take(MOST_BYTES).read_to_end(&mut bytes).map_err(failed)?;
                Ok((bytes, path.display().to_string()))
            }
            Source::Command(words) => run(words, limit),
        }
    }

    /// Returns a stamp that changes when the file is written or replaced; `None` for a command, and for a missing file.
    fn stamp(&self) -> Option<Stamp> {
        let Source::File(path) = self else { return None };
        let of = fs::metadata(path).ok()?;
        Some(Stamp { device: of.dev(), inode: of.ino(), size: of.size(), changed: (of.ctime(), of.ctime_nsec()) })
    }
}

/// Returns a password given in the configuration itself, or else in a file. The file is not read again.
///
/// # Errors
/// The file cannot be used.
pub fn given(password: Option<&String>, file: Option<&Path>) -> Result<Option<String>, Error> {
    match (password, file) {
        (Some(password), _) => Ok(Some(password.clone())),
        (None, Some(path)) => Ok(Some(Source::File(path.to_owned()).read(Duration::ZERO)?.0)),
        (None, None) => Ok(None),
    }
}

/// Text of [`Error::Unusable`] for at least [`MOST_BYTES`].
const TOO_LONG: &str = "longer than 64 KiB";

fn first_line(bytes: &[u8], from: &str) -> Result<Secret, Error> {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    text(line.strip_suffix(b"\r").unwrap_or(line), from, line.len())
}

/// Returns bytes as a text; `read` is the number of bytes that they were taken from.
fn text(bytes: &[u8], from: &str, read: usize) -> Result<Secret, Error> {
    let unusable = |what| Error::Unusable { from: from.to_owned(), what };
    if read as u64 >= MOST_BYTES {
        return Err(unusable(TOO_LONG));
    }
    match std::str::from_utf8(bytes) {
        Ok("") => Err(unusable("empty")),
        Ok(text) => Ok(Secret::new(text)),
        Err(_) => Err(unusable("not UTF-8")),
    }
}

/// Runs a command in a process group of its own, so that its children can be killed with it.
fn run(words: &[String], limit: Duration) -> Result<(Vec<u8>, String), Error> {
    let until = Instant::now() + limit;
    let program = words.first().cloned().unwrap_or_default();
    let mut command = Command::new(&program);
    command.args(words.iter().skip(1)).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let child = command.spawn().map_err(|source| Error::Start { program: program.clone(), source })?;
    let mut running = Running(child);
    let (sender, output) = mpsc::sync_channel(1);
    if let Some(stdout) = running.0.stdout.take() {
        // The thread ends when the last process of the group has closed its output, at the latest when the group is killed.
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = stdout.take(MOST_BYTES).read_to_end(&mut bytes);
            let _ = sender.send(read.map(|_| bytes));
        });
    }
    let late = || Error::Late { program: program.clone(), limit };
    let bytes = match output.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(source)) => return Err(Error::Start { program, source }),
        Err(_) => return Err(late()),
    };
    let from = format!("what password_command {program:?} writes");
    // Checked before the exit status: the rest is not read, so the command may have ended by SIGPIPE.
    if bytes.len() as u64 >= MOST_BYTES {
        return Err(Error::Unusable { from, what: TOO_LONG });
    }
    let status = loop {
        match running.0.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => std::thread::sleep(LOOK_EVERY),
            Ok(None) => return Err(late()),
            Err(source) => return Err(Error::Start { program, source }),
        }
    };
    if !status.success() {
        return Err(Error::Failed { program, status: status.to_string() });
    }
    Ok((bytes, from))
}

/// A started command; its process group is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The pid of a child that was waited for may belong to another process: then nothing is killed.
        if let Ok(None) = self.0.try_wait() {
            if let Some(group) = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            let _ = self.0.wait();
        }
    }
}

/// Identifies a version of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// Sources to be read again by [`Store::renew`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Files that have changed, and sources last read longer ago than this.
    Due(Option<Duration>),
    /// All sources.
    All,
}

/// Passwords already read, by source.
#[derive(Debug, Default)]
pub struct Store {
    known: Mutex<HashMap<Source, Known>>,
}

#[derive(Debug)]
struct Known {
    secret: Secret,
    stamp: Option<Stamp>,
    tried: Instant,
}

/// Result of [`Store::renew`].
#[derive(Debug, Default)]
pub struct Renewed {
    /// True if a password has changed.
    pub changed: bool,
    /// Failed reads; their last passwords are kept.
    pub errors: Vec<Error>,
}

impl Store {
    fn known(&self) -> MutexGuard<'_, HashMap<Source, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the password of a source as last read. Reads it the first time, which blocks for at most `limit`.
    ///
    /// # Errors
    /// The password cannot be read.
    pub fn get(&self, source: &Source, limit: Duration) -> Result<Secret, Error> {
        if let Some(known) = self.known().get(source) {
            return Ok(known.secret.clone());
        }
        // Taken first: a change during the read is detected later.
        let stamp = source.stamp();
        let secret = source.read(limit)?;
        let known = Known { secret: secret.clone(), stamp, tried: Instant::now() };
        self.known().insert(source.clone(), known);
        Ok(secret)
    }

    /// Reads sources again that were read before. Blocks for at most `limit` for each command.
    pub fn renew(&self, which: Which, limit: Duration) -> Renewed {
        let now = Instant::now();
        let due: Vec<Source> = self
            .known()
            .iter()
            .filter(|(source, known)| match which {
                Which::All => true,
                Which::Due(interval) => {
                    let is_old =
                        interval.is_some_and(|interval| now.saturating_duration_since(known.tried) >= interval);
                    is_old || source.stamp() != known.stamp
                }
            })
            .map(|(source, _)| source.clone())
            .collect();
        let mut renewed = Renewed::default();
        for source in due {
            let stamp = source.stamp();
            let read = source.read(limit);
            let mut all = self.known();
            let Some(known) = all.get_mut(&source) else { continue };
            (known.stamp, known.tried) = (stamp, Instant::now());
            match read {
                Ok(secret) if secret == known.secret => {}
                Ok(secret) => {
                    known.secret = secret;
                    renewed.changed = true;
                }
                Err(error) => renewed.errors.push(error),
            }
        }
        renewed
    }

    /// Removes sources for which `used` returns false.
    pub fn retain(&self, used: impl Fn(&Source) -> bool) {
        self.known().retain(|source, _| used(source));
    }
}

#[cfg(test)]
mod tests;
