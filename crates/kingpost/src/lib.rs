//! The `kingpost` binary, except `main`.
//!
//! ```text
//!  cli ─▶ daemon (proxy, relay, registry, console) ─▶ auth, handover, registry-client ─▶ metrics ─▶ config ─▶ process
//!     ├─▶ failover, switchover, watch,
//!     │   scale ──────────────────────▶ failover ─▶ registry-client
//!     ├─▶ node ───────────────────────▶ node ─▶ failover, registry-client
//!     ├─▶ up, down, status ───────────▶ local ─▶ daemon
//!     ├─▶ backup, restore ────────────▶ backup
//!     ├─▶ config from-… ──────────────▶ translate
//!     └─▶ check
//! ```
//!
//! The crate holds the command line and `check`; every command is the function of another crate.

mod check;
mod cli;
mod logins;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::cli::{Cli, Command, ConfigCommand};
use process::{Failure, terminal};

/// Runs the command of the command line; returns the exit code of the process.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match dispatch(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            terminal::note(format_args!("kingpost: {failure}"));
            ExitCode::from(failure.exit as u8)
        }
    }
}

/// Returns the problems of a configuration's text under such an environment, as `kingpost check` reports them; files that it names are not examined.
#[must_use]
pub fn problems(text: &str, variables: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<String> {
    let unseen = |_: &Path| config::Stat::Unreadable("not looked at".into());
    config::parse("text", text, variables, &unseen).problems.iter().map(ToString::to_string).collect()
}

/// Reads the orders of operators as an old process sends them, and writes them again; `None` for anything else.
#[must_use]
pub fn orders_again(bytes: &[u8]) -> Option<Vec<u8>> {
    handover::Ordered::read(bytes).ok().and_then(|(ordered, _)| ordered.write().ok())
}

/// Translates a text as `kingpost config from-PROGRAM`; files that it names are empty.
///
/// # Errors
/// The text cannot be translated.
pub fn translated(program: &str, text: &str) -> Result<String, String> {
    translate::translated(program, text).map_err(|failure| failure.to_string())
}

/// Reads a text as each of the files that an agent reads; returns the settings that a standby keeps.
#[must_use]
pub fn kept_settings(text: &str) -> String {
    node::kept_settings(text)
}

fn dispatch(cli: Cli) -> Result<(), Failure> {
    let log = process::LogFlags { level: cli.log_level, format: cli.log_format };
    match cli.command {
        Command::Proxy(args) => daemon::proxy(&args, &log),
        Command::Relay(args) => daemon::relay(&args, &log),
        Command::Registry(args) => daemon::registry(&args, &log),
        Command::Console(command) => daemon::console(&command),
        Command::Check(args) => check::check(&args),
        Command::Config(ConfigCommand::FromPgbouncer(args)) => translate::from_pgbouncer(&args),
        Command::Config(ConfigCommand::FromPgcat(args)) => translate::from_pgcat(&args),
        Command::Config(ConfigCommand::FromPgdog(args)) => translate::from_pgdog(&args),
        Command::Config(ConfigCommand::FromPgpool(args)) => translate::from_pgpool(&args),
        Command::Config(ConfigCommand::Schema) => {
            terminal::line(format!("{:#}", config::json_schema()));
            Ok(())
        }
        Command::Config(ConfigCommand::Default) => {
            terminal::raw(&config::described());
            Ok(())
        }
        Command::Up(args) => local::up(&args, &log),
        Command::Down(args) => local::down(&args),
        Command::Status(args) => match &args.config {
            Some(path) => failover::status(path),
            None => local::status(&args),
        },
        Command::Failover(args) => failover::failover(&args, &log),
        Command::Switchover(args) => failover::switchover(&args, &log),
        Command::Watch(args) => failover::watch(&args, &log),
        Command::Scale(args) => failover::scale(&args, &log),
        Command::Node(args) => node::node(&args, &log),
        Command::Backup(args) => backup::backup(&args, &log),
        Command::Restore(args) => backup::restore(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "kingpost", &mut script);
            terminal::raw(&String::from_utf8_lossy(&script));
            Ok(())
        }
        Command::Man { out: Some(dir) } => {
            std::fs::create_dir_all(&dir).map_err(|error| Failure::path("create", &dir, &error))?;
            clap_mangen::generate_to(Cli::command(), &dir)
                .map_err(|error| Failure::path("write man pages to", &dir, &error))
        }
        Command::Man { out: None } => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command())
                .render(&mut page)
                .map_err(|error| Failure::runtime(format!("cannot render the man page: {error}")))?;
            terminal::raw(&String::from_utf8_lossy(&page));
            Ok(())
        }
    }
}
