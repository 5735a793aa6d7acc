//! Differential tests of the proxy: random sessions of several clients, through the real binary and directly against PostgreSQL, compared
//! message by message. PostgreSQL is the oracle.
//!
//! ```text
//! seed ─▶ generator ─▶ Session ─▶ runner ┬─▶ Wire ─▶ PostgreSQL              ─┐
//!                          ▲             └─▶ Wire ─▶ kingpost ─▶ PostgreSQL ─┴─▶ compare (rules) ─▶ Difference
//!                          └────────────────────── shrink ◀───────────────────────────────────────────┘
//! ```
//!
//! A step is one write of one client, with its complete answer; steps run one after the other, in an order chosen by the seed, so the clients' effect
//! on each other is the same in both worlds. Between the steps an operator may act on the proxy (`PAUSE`, `RECONNECT`, server connections that end),
//! which no client may notice. Each session has its own proxy process and finds the databases in the same state: so a seed gives the same session,
//! and most often the same outcome, again.
//!
//! `differential --help` describes its use; `tests/README.md` its output.
#![allow(clippy::print_stdout, reason = "what it finds is printed")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod before;
mod compare;
mod config;
mod generator;
mod hunt;
mod operator;
mod options;
mod outstanding;
mod reply;
mod report;
mod rng;
mod rules;
mod runner;
mod session;
mod shrink;
mod text;
mod wire;
mod world;

use std::process::ExitCode;

use options::{Command, Options, USAGE};

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("differential: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let found = match &options.command {
        Command::Help => {
            print!("{}", options::help());
            return ExitCode::SUCCESS;
        }
        Command::Rules => {
            print!("{}", rules::markdown());
            return ExitCode::SUCCESS;
        }
        Command::Run => hunt::run(&options).await,
        Command::Replay(files) => hunt::replay(&options, files).await,
    };
    match found {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("differential: {error}");
            ExitCode::from(2)
        }
    }
}
