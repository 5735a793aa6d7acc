//! The `kingpost` binary, except `main`.
//!
//! ```text
//!  cli ──▶ proxy ─▶ config (file + environment, checked) ─▶ run (topology + proxy) ◀─ admin (HTTP)
//!      ├─▶ relay ─▶ config ─▶ relay (the crate, and topology where it follows the primary) ◀─ admin
//!      ├─▶ registry ─▶ config ─▶ registry (the crate) ◀─ admin; or a client of one
//!      ├─▶ failover, switchover ─▶ config ─▶ failover (orders to relays, SQL to servers, commands to proxies' consoles)
//!      ├─▶ check ─▶ config
//!      ├─▶ console ─▶ the parts as a web page shows them; a token for it
//!      ├─▶ config from-… ─▶ a configuration's text
//!      └─▶ up ───▶ PostgreSQL servers in a directory ─▶ config (generated) ─▶ run, registry ◀─ admin
//! ```
//!
//! This crate knows every part; no part knows it.

mod activation;
mod admin;
mod cli;
mod console;
mod exposition;
mod failover;
mod gss;
mod helper;
mod judges;
mod ldap;
mod logins;
mod lookup;
mod moving;
mod oauth;
mod orders;
mod otlp;
mod pam;
mod passwords;
mod profile;
mod registry;
mod relay;
mod relay_mariadb;
mod run;
mod serve;
mod up;
mod upgrade;

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
    orders::Ordered::read(bytes).ok().and_then(|(ordered, _)| ordered.write().ok())
}

/// Translates a text as `kingpost config from-PROGRAM`; files that it names are empty.
///
/// # Errors
/// The text cannot be translated.
pub fn translated(program: &str, text: &str) -> Result<String, String> {
    moving::translated(program, text).map_err(|failure| failure.to_string())
}

fn dispatch(cli: Cli) -> Result<(), Failure> {
    let log = process::LogFlags { level: cli.log_level, format: cli.log_format };
    match cli.command {
        Command::Proxy(args) => serve::proxy(&args, &log),
        Command::Relay(args) => relay::command(&args, &log),
        Command::Registry(args) => registry::command(&args, &log),
        Command::Console(command) => console::command(&command),
        Command::Check(args) => serve::check(&args, &log),
        Command::Config(command) => moving::command(&command).unwrap_or_else(|| {
            if matches!(command, ConfigCommand::Schema) {
                terminal::line(format!("{:#}", config::json_schema()));
            } else {
                terminal::raw(config::DESCRIBED);
            }
            Ok(())
        }),
        Command::Up(args) => up::up(&args, &log),
        Command::Down(args) => up::down(&args),
        Command::Status(args) => match &args.config {
            Some(path) => failover::status(path),
            None => up::status(&args),
        },
        Command::Failover(args) => failover::failover(&args, &log),
        Command::Switchover(args) => failover::switchover(&args, &log),
        Command::Watch(args) => failover::watch(&args, &log),
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
