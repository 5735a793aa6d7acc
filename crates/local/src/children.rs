//! Servers that start, and tools with a time limit.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};

use super::stop::Stop;
use process::Failure;
use process::server::tool;
pub(super) use process::server::{
    Account, Identity, PID_FILES, end_server, free_space, kill_server, log_file, quit_server, run_tool, server, tail,
};

/// Longest time from the start of a server to an answer, recovery included.
const START_LIMIT: Duration = Duration::from_secs(300);
/// Interval between two checks of a starting server.
const START_PACE: Duration = Duration::from_millis(50);

/// Returns name and data directory of each server of an earlier `up` that still runs on data in `nodes`.
pub(super) fn left_behind(nodes: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(nodes) else { return Vec::new() };
    let each = entries.flatten().take(256).flat_map(|entry| {
        // An earlier version had PostgreSQL's data where the agent's directory is now.
        let name = entry.file_name().to_string_lossy().into_owned();
        [entry.path().join("data"), entry.path()].map(|data| (name.clone(), data))
    });
    each.filter(|(_, data)| server(data).is_some()).collect()
}

/// True if the process has ended, or was never started.
pub(super) fn has_ended(child: &mut Option<Child>) -> bool {
    child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
}

/// A server to start, as messages name it.
pub(super) struct Starting<'a> {
    pub(super) name: &'a str,
    pub(super) address: String,
    pub(super) log: &'a Path,
    pub(super) data: &'a Path,
}

impl Starting<'_> {
    /// Starts the server and waits until it answers. Its process is in `child` as soon as it runs.
    ///
    /// # Errors
    /// The server does not come up (the failure has the end of its log), or a signal came.
    pub(super) async fn start(
        &self,
        mut command: Command,
        child: &mut Option<Child>,
        stop: &Stop,
        answers: impl AsyncFn() -> bool,
    ) -> Result<(), Failure> {
        let (output, errors) = log_file(self.log, false)?;
        let started = command.stdout(output).stderr(errors).spawn();
        let failed = |error| Failure::environment(format!("cannot start the server {}: {error}", self.name));
        *child = Some(started.map_err(failed)?);
        let started = Instant::now();
        loop {
            if has_ended(child) {
                let what = format!("the server {} did not start; the end of {}:", self.name, self.log.display());
                let advice = format!("{}\n{}", tail(self.log, 12), free_space(self.data));
                return Err(Failure::environment(what).advise(advice));
            }
            if answers().await {
                return Ok(());
            }
            if started.elapsed() > START_LIMIT {
                let what = format!(
                    "the server {} did not answer on {} within {} s; the end of {}:",
                    self.name,
                    self.address,
                    START_LIMIT.as_secs(),
                    self.log.display()
                );
                return Err(Failure::environment(what).advise(tail(self.log, 12)));
            }
            tokio::select! {
                () = tokio::time::sleep(START_PACE) => {}
                failure = stop.failure() => return Err(failure),
            }
        }
    }
}

/// Starter of programs as an account, without environment variables of this process that would change their behaviour.
#[derive(Debug, Clone)]
pub(super) struct Launcher {
    pub(super) account: Option<Account>,
    /// Directory of the tools' output.
    pub(super) logs: PathBuf,
    /// Working directory of the programs; the account can enter it.
    pub(super) cwd: PathBuf,
    pub(super) stop: Stop,
}

impl Launcher {
    /// Makes a command for a program.
    pub(super) fn command(&self, program: &Path) -> Command {
        tool(program, &self.cwd, self.account.as_ref())
    }

    /// Runs a tool to its end. Its output is in `logs/<name>.log`, whose end is in the failure.
    ///
    /// # Errors
    /// The tool cannot be started, fails, takes longer than `limit`, or a signal came; the tool is killed then.
    pub(super) async fn run(&self, name: &str, command: Command, limit: Duration) -> Result<(), Failure> {
        let log = self.logs.join(format!("{name}.log"));
        let program = command.as_std().get_program().to_string_lossy().into_owned();
        run_tool(&program, command, (&log, &self.cwd), limit, self.stop.failure()).await
    }
}
