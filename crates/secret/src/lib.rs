//! Passwords: given in the configuration itself, in a file, or by a command.
//!
//! [`Source`] says where a password is, and [`Source::read`] is the one way to read it: the first line of a file, or of what a
//! command writes to its standard output. [`Store`] keeps what was read and finds out what may have changed.
//!
//! What must hold:
//! - A secret is in no error, no `Debug` output and no log. What a command writes to its standard error is thrown away, because it may
//!   contain the secret.
//! - Every reading ends: a file is read up to [`MOST_BYTES`], and a command is killed with all of its children when its time is over.
//! - A reading that fails takes nothing away: the last password stays.

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

use serde::Deserialize;

/// Most bytes that are read of a file or of a command's output. Tokens of clouds have up to some thousand.
pub const MOST_BYTES: u64 = 64 << 10;

/// How often a command is looked at that has closed its output and has not ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// A text that is to be kept secret.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text.
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

/// Where a password is that is not in the configuration itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// The first line of this file.
    File(PathBuf),
    /// The first line that this program writes to its standard output. The first item is the program, by its absolute path; the others are its
    /// arguments. No shell looks at them.
    Command(Vec<String>),
}

/// Why a password can't be had. No variant carries one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("cannot read password_file {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The first line is empty, longer than [`MOST_BYTES`], or not UTF-8.
    #[error("the first line of {from} is {what}, expected a password")]
    Unusable {
        /// The file or the program.
        from: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The command can't be started.
    #[error("cannot start password_command {program:?}: {source}")]
    Start {
        /// The program.
        program: String,
        /// The reason.
        source: io::Error,
    },
    /// The command has ended with an error.
    #[error(
        "password_command {program:?} ended with {status}: run it by hand as this user to see why, for what it writes to its standard error is thrown away"
    )]
    Failed {
        /// The program.
        program: String,
        /// The exit code or the signal.
        status: String,
    },
    /// The command was killed when its time was over.
    #[error("password_command {program:?} has not ended within {limit:?} and was killed")]
    Late {
        /// The program.
        program: String,
        /// Its time.
        limit: Duration,
    },
}

impl Source {
    /// The source of a file or a command, whichever is given; `None` if neither is. A file comes first.
    #[must_use]
    pub fn of(file: Option<&Path>, command: &[String]) -> Option<Source> {
        match file {
            Some(path) => Some(Source::File(path.to_owned())),
            None => (!command.is_empty()).then(|| Source::Command(command.to_vec())),
        }
    }

    /// Reads the password. Blocks: a command for `limit` at most.
    ///
    /// # Errors
    /// [`Error`], without the secret.
    pub fn read(&self, limit: Duration) -> Result<Secret, Error> {
        match self {
            Source::File(path) => {
                let failed = |source| Error::File { path: path.clone(), source };
                let mut bytes = Vec::new();
                File::open(path).map_err(failed)?.take(MOST_BYTES).read_to_end(&mut bytes).map_err(failed)?;
                first_line(&bytes, &path.display().to_string())
            }
            Source::Command(words) => run(words, limit),
        }
    }

    /// What changes when somebody writes or replaces the file; `None` for a command, and for a file that is not there.
    fn stamp(&self) -> Option<Stamp> {
        let Source::File(path) = self else { return None };
        let of = fs::metadata(path).ok()?;
        Some(Stamp { device: of.dev(), inode: of.ino(), size: of.size(), changed: (of.ctime(), of.ctime_nsec()) })
    }
}

/// A password that may stand in the configuration itself, or in a file, whichever is given. The file is not read again.
///
/// # Errors
/// The file can't be used.
pub fn given(password: Option<&String>, file: Option<&Path>) -> Result<Option<String>, Error> {
    match (password, file) {
        (Some(password), _) => Ok(Some(password.clone())),
        (None, Some(path)) => Ok(Some(Source::File(path.to_owned()).read(Duration::ZERO)?.0)),
        (None, None) => Ok(None),
    }
}

/// Of [`Error::Unusable`]: at least [`MOST_BYTES`].
const TOO_LONG: &str = "longer than 64 KiB";

fn first_line(bytes: &[u8], from: &str) -> Result<Secret, Error> {
    let unusable = |what| Error::Unusable { from: from.to_owned(), what };
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.len() as u64 >= MOST_BYTES {
        return Err(unusable(TOO_LONG));
    }
    match std::str::from_utf8(line) {
        Ok("") => Err(unusable("empty")),
        Ok(line) => Ok(Secret::new(line)),
        Err(_) => Err(unusable("not UTF-8")),
    }
}

/// Runs a command in a process group of its own, so that its children can be killed with it.
fn run(words: &[String], limit: Duration) -> Result<Secret, Error> {
    let until = Instant::now() + limit;
    let program = words.first().cloned().unwrap_or_default();
    let mut command = Command::new(&program);
    command.args(words.iter().skip(1)).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let child = command.spawn().map_err(|source| Error::Start { program: program.clone(), source })?;
    let mut running = Running(child);
    let (sender, output) = mpsc::sync_channel(1);
    if let Some(stdout) = running.0.stdout.take() {
        // Ends when the last process of the group has closed its output, at the latest when the group is killed.
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
    // Before the exit status: nobody reads the rest, so the command may have ended by SIGPIPE.
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
    first_line(&bytes, &from)
}

/// A started command; its process group is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // A child that was waited for has no number any more that could be another process's: then nothing is killed.
        if let Ok(None) = self.0.try_wait() {
            if let Some(group) = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            let _ = self.0.wait();
        }
    }
}

/// What tells one version of a file from another.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// Which sources [`Store::renew`] reads again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Files that have changed, and whatever was last read longer ago than this.
    Due(Option<Duration>),
    /// All of them.
    All,
}

/// The passwords that were read, by their sources.
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

/// What [`Store::renew`] has found.
#[derive(Debug, Default)]
pub struct Renewed {
    /// A password is another one now.
    pub changed: bool,
    /// What could not be read; its last password stays.
    pub errors: Vec<Error>,
}

impl Store {
    fn known(&self) -> MutexGuard<'_, HashMap<Source, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The password of a source, as it was last read. It is read if it never was, which blocks for `limit` at most.
    ///
    /// # Errors
    /// It can't be read.
    pub fn get(&self, source: &Source, limit: Duration) -> Result<Secret, Error> {
        if let Some(known) = self.known().get(source) {
            return Ok(known.secret.clone());
        }
        // Looked at first: a change during the reading is another one.
        let stamp = source.stamp();
        let secret = source.read(limit)?;
        let known = Known { secret: secret.clone(), stamp, tried: Instant::now() };
        self.known().insert(source.clone(), known);
        Ok(secret)
    }

    /// Reads sources again that were read before. Blocks, for each command for `limit` at most.
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

    /// Forgets the sources that `used` does not name.
    pub fn retain(&self, used: impl Fn(&Source) -> bool) {
        self.known().retain(|source, _| used(source));
    }
}

#[cfg(test)]
mod tests;
