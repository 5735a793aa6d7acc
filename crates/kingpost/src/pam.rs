//! Asks PAM whether a client's password is its user's (method `pam` in rules), each time by a process of its own: `kingpost-pam`, which says in its
//! source what goes over its pipes.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use proxy::config::PamConfig;
use proxy::pam::Options;
use proxy::verify::{Question, Verdict};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// The program's name.
const HELPER: &str = "kingpost-pam";
/// Most bytes that are read of an answer.
const LONGEST: u64 = 4 << 10;
/// Longest time that a helper has to end by itself when its answer is not wanted any more.
const FAREWELL: Duration = Duration::from_secs(5);
/// The exit status of a program that lacks a library.
const NOT_LOADED: i32 = 127;

/// `[proxy.pam]` since the start or the last reload.
pub(crate) struct Modules {
    helper: PathBuf,
    timeout: Duration,
}

/// Why PAM could not judge. Contains no password.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unable {
    #[error("cannot start {} (proxy.pam.helper): {source}", helper.display())]
    Start { helper: PathBuf, source: std::io::Error },
    #[error("cannot speak with {}: {source}", helper.display())]
    Pipe { helper: PathBuf, source: std::io::Error },
    #[error("{} gave no answer: {how}", helper.display())]
    Broken { helper: PathBuf, how: String },
    #[error("{} could not ask: {why}", helper.display())]
    NotAsked { helper: PathBuf, why: String },
    #[error("no answer within {0:?}; its modules were killed")]
    Late(Duration),
}

/// A started helper. When this is dropped its standard input is closed: the helper kills all that its modules have started, and ends. One that
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

impl Modules {
    /// As configured.
    pub(crate) fn of(config: &PamConfig) -> Modules {
        let beside = || std::env::current_exe().ok().and_then(|binary| Some(binary.parent()?.join(HELPER)));
        let helper = config.helper.clone().or_else(beside).unwrap_or_else(|| HELPER.into());
        Modules { helper, timeout: config.timeout }
    }

    /// Longest time for a question.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Asks. Whatever PAM answers but success is a no, as with PostgreSQL.
    pub(crate) async fn ask(&self, question: &Question, by: &Options) -> Result<Verdict, Unable> {
        let helper = &self.helper;
        let piped = |source| Unable::Pipe { helper: helper.clone(), source };
        let mut command = Command::new(helper);
        // The proxy's environment may have passwords (KINGPOST_…); modules get none of it.
        command.env_clear().current_dir("/").kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|source| Unable::Start { helper: helper.clone(), source })?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut running = Running(Some((child, input)));
        let (Some((child, Some(input))), Some(output)) = (&mut running.0, output) else {
            return Err(piped(std::io::ErrorKind::BrokenPipe.into()));
        };
        let asked = text(question, by);
        let mut answer = Vec::new();
        let mut output = BufReader::new(output.take(LONGEST));
        // Not to the end of the output: something that a module has started may keep it open.
        let (written, read) =
            tokio::join!(input.write_all(asked.expose().as_bytes()), output.read_until(b'\n', &mut answer));
        read.map_err(piped)?;
        // This would close the input, were it still the child's: the helper ends at that.
        let status = child.wait().await.map_err(piped)?;
        let line = std::str::from_utf8(&answer).ok().and_then(|text| text.strip_suffix('\n')).unwrap_or_default();
        if let Some(why) = line.strip_prefix("unable ") {
            return Err(Unable::NotAsked { helper: helper.clone(), why: why.into() });
        }
        if !status.success() {
            let hint = if status.code() == Some(NOT_LOADED) { " (is libpam.so.0 missing?)" } else { "" };
            return Err(Unable::Broken { helper: helper.clone(), how: format!("{status}{hint}") });
        }
        // Without the whole question it cannot have asked.
        written.map_err(piped)?;
        if line == "right" {
            return Ok(Verdict::Right);
        }
        let Some(why) = line.strip_prefix("wrong ") else {
            return Err(Unable::Broken { helper: helper.clone(), how: "its line is not known".into() });
        };
        tracing::info!(user = &*question.user, service = by.service, why, "PAM refuses a user");
        Ok(Verdict::Wrong)
    }
}

/// A question as the helper reads it.
fn text(question: &Question, by: &Options) -> secret::Secret {
    let host = question.from.map(|address: IpAddr| address.to_canonical().to_string()).unwrap_or_default();
    let by_name = if by.use_hostname { "1" } else { "0" };
    let fields = ["kingpost-pam 1", &by.service, &question.user, &host, by_name, question.password.expose()];
    // No field has a zero byte: names and passwords are the protocol's strings, which end at one.
    secret::Secret::new(fields.map(|field| format!("{field}\0")).concat())
}
