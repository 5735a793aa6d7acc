//! A program beside the binary that gets one question, in a process of its own, and answers with one line: `kingpost-pam`, `kingpost-gss`. Their
//! sources describe the data on the pipes.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use secret::Secret;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// Most bytes that are read of an answer: a token of 64 kB in base64, and a name.
const LONGEST: u64 = 128 << 10;
/// Longest time that a helper has to end by itself when its answer is no longer wanted.
const FAREWELL: Duration = Duration::from_secs(5);
/// Exit status of a program that lacks a library.
const NOT_LOADED: i32 = 127;

/// A helper program, and its time limit.
pub(crate) struct Helper {
    program: PathBuf,
    timeout: Duration,
    /// The library that the program needs, for a hint.
    library: &'static str,
    /// The setting that names the program.
    setting: &'static str,
    /// The whole environment of the program: the proxy's own may have passwords (KINGPOST_…).
    environment: Vec<(&'static str, PathBuf)>,
    /// True if the end of the input ends the question; otherwise the input stays open for as long as the answer is wanted.
    reads_to_the_end: bool,
}

/// The reason why there is no answer. Contains nothing of the question.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unable {
    #[error("cannot start {} ({setting}): {source}", program.display())]
    Start { program: PathBuf, setting: &'static str, source: std::io::Error },
    #[error("cannot speak with {}: {source}", program.display())]
    Pipe { program: PathBuf, source: std::io::Error },
    #[error("{} gave no answer: {how}", program.display())]
    Broken { program: PathBuf, how: String },
    #[error("{} could not ask: {why}", program.display())]
    NotAsked { program: PathBuf, why: String },
    #[error("no answer within {0:?}; whatever was started for it was killed")]
    Late(Duration),
}

/// A started helper. Dropping it closes its standard input: the helper ends all processes that it started, and itself. One that does not is killed.
struct Running(Option<(Child, Option<ChildStdin>)>);

impl Drop for Running {
    fn drop(&mut self) {
        let Some((mut child, input)) = self.0.take() else { return };
        drop(input);
        // Without a runtime no task can wait: the child is killed as it is dropped.
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn(async move {
                let _ = timeout(FAREWELL, child.wait()).await;
            }));
        }
    }
}

impl Helper {
    /// Makes the helper of this name: beside the running binary, unless the configuration names its path.
    pub(crate) fn new(
        name: &str,
        configured: Option<&Path>,
        timeout: Duration,
        (library, setting): (&'static str, &'static str),
    ) -> Helper {
        let beside = || std::env::current_exe().ok().and_then(|binary| Some(binary.parent()?.join(name)));
        let program = configured.map(Path::to_owned).or_else(beside).unwrap_or_else(|| name.into());
        Helper { program, timeout, library, setting, environment: Vec::new(), reads_to_the_end: false }
    }

    /// Adds a variable to the helper's environment.
    pub(crate) fn with(mut self, name: &'static str, value: Option<PathBuf>) -> Helper {
        self.environment.extend(value.map(|value| (name, value)));
        self
    }

    /// Closes the helper's input after the question: it reads its input to the end first.
    pub(crate) fn reading_to_the_end(mut self) -> Helper {
        self.reads_to_the_end = true;
        self
    }

    /// Longest time for a question.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Makes the error of an unknown answer.
    pub(crate) fn unknown_line(&self) -> Unable {
        Unable::Broken { program: self.program.clone(), how: "its line is not known".into() }
    }

    /// Asks the question and returns the line of the answer without its end; a line that begins with `unable` is an error.
    pub(crate) async fn ask(&self, question: &Secret) -> Result<String, Unable> {
        let program = &self.program;
        let piped = |source| Unable::Pipe { program: program.clone(), source };
        let mut command = Command::new(program);
        command.env_clear().envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.current_dir("/").kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let setting = self.setting;
        let mut child =
            command.spawn().map_err(|source| Unable::Start { program: program.clone(), setting, source })?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut running = Running(Some((child, input)));
        let (Some((child, input)), Some(output)) = (&mut running.0, output) else {
            return Err(piped(std::io::ErrorKind::BrokenPipe.into()));
        };
        let mut answer = Vec::new();
        let mut output = BufReader::new(output.take(LONGEST));
        let write = async {
            let Some(pipe) = input.as_mut() else { return Err(std::io::ErrorKind::BrokenPipe.into()) };
            let written = pipe.write_all(question.expose().as_bytes()).await;
            if self.reads_to_the_end {
                *input = None;
            }
            written
        };
        // Not to the end of the output: a process that the program has started may keep it open.
        let (written, read) = tokio::join!(write, output.read_until(b'\n', &mut answer));
        read.map_err(piped)?;
        // `wait` closes an input that the child still has, and the helper ends at that: it was taken out above.
        let status = child.wait().await.map_err(piped)?;
        let line = std::str::from_utf8(&answer).ok().and_then(|text| text.strip_suffix('\n')).unwrap_or_default();
        if let Some(why) = line.strip_prefix("unable ") {
            return Err(Unable::NotAsked { program: program.clone(), why: why.into() });
        }
        if !status.success() {
            let library = self.library;
            let hint =
                if status.code() == Some(NOT_LOADED) { format!(" (is {library} missing?)") } else { String::new() };
            return Err(Unable::Broken { program: program.clone(), how: format!("{status}{hint}") });
        }
        // The helper cannot have answered a question that it did not get.
        written.map_err(piped)?;
        Ok(line.to_owned())
    }
}
