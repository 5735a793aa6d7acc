//! A program beside the binary that is asked one question by a process of its own and gives one line: `kingpost-pam`, `kingpost-gss`. Their sources say
//! what goes over the pipes.

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
/// Longest time that a helper has to end by itself when its answer is not wanted any more.
const FAREWELL: Duration = Duration::from_secs(5);
/// The exit status of a program that lacks a library.
const NOT_LOADED: i32 = 127;

/// The program, and for how long it may take.
pub(crate) struct Helper {
    program: PathBuf,
    timeout: Duration,
    /// The library that it needs, for a hint.
    library: &'static str,
    /// The setting that says where it is.
    setting: &'static str,
    /// All that it has of an environment: the proxy's own may have passwords (KINGPOST_…).
    environment: Vec<(&'static str, PathBuf)>,
    /// Whether it hears the end of the question by the end of its input; otherwise its input stays open for as long as the answer is wanted.
    reads_to_the_end: bool,
}

/// Why there is no answer. Contains nothing of the question.
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

/// A started helper. When this is dropped its standard input is closed: the helper ends all that it has started, and itself. One that
/// does not is killed.
struct Running(Option<(Child, Option<ChildStdin>)>);

impl Drop for Running {
    fn drop(&mut self) {
        let Some((mut child, input)) = self.0.take() else { return };
        drop(input);
        // Without a runtime there is nobody to wait: the child is killed as it is dropped.
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn(async move {
                let _ = timeout(FAREWELL, child.wait()).await;
            }));
        }
    }
}

impl Helper {
    /// The program of this name, beside the running one unless the configuration says where.
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

    /// With this in its environment.
    pub(crate) fn with(mut self, name: &'static str, value: Option<PathBuf>) -> Helper {
        self.environment.extend(value.map(|value| (name, value)));
        self
    }

    /// It reads its input to the end before it looks at the question.
    pub(crate) fn reading_to_the_end(mut self) -> Helper {
        self.reads_to_the_end = true;
        self
    }

    /// Longest time for a question.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// What is said of an answer that is not one of those agreed upon.
    pub(crate) fn unknown_line(&self) -> Unable {
        Unable::Broken { program: self.program.clone(), how: "its line is not known".into() }
    }

    /// The line that it answers, without its end; never one that begins with `unable`, which is an error.
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
        // Not to the end of the output: something that the program has started may keep it open.
        let (written, read) = tokio::join!(write, output.read_until(b'\n', &mut answer));
        read.map_err(piped)?;
        // This would close the input, were it still the child's: the helper ends at that.
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
        // Without the whole question it cannot have asked.
        written.map_err(piped)?;
        Ok(line.to_owned())
    }
}
