//! How the program fails: what was tried, on what, what to do, and with which exit code.

use std::fmt;

/// Exit codes; `--help` lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It went wrong while running.
    Runtime = 1,
    /// The configuration is wrong.
    Config = 3,
    /// The machine lacks something: no PostgreSQL, a port taken, a disk full, a directory that cannot be used.
    Environment = 4,
}

/// The text below every `--help`. 2 is clap's own.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  failed while running
  2  wrong usage of the command line
  3  wrong configuration
  4  the machine lacks something (no PostgreSQL, port taken, disk full, directory not usable)";

/// A failure as the user sees it.
#[derive(Debug, thiserror::Error)]
pub(crate) struct Failure {
    /// Exit code.
    pub(crate) exit: Exit,
    /// What was tried, on what, and what happened.
    pub(crate) what: String,
    /// What to do about it.
    pub(crate) advice: Option<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)?;
        if let Some(advice) = &self.advice {
            write!(f, "\n  {}", advice.replace('\n', "\n  "))?;
        }
        Ok(())
    }
}

impl Failure {
    pub(crate) fn runtime(what: impl Into<String>) -> Failure {
        Failure { exit: Exit::Runtime, what: what.into(), advice: None }
    }

    pub(crate) fn config(what: impl Into<String>) -> Failure {
        Failure { exit: Exit::Config, what: what.into(), advice: None }
    }

    pub(crate) fn environment(what: impl Into<String>) -> Failure {
        Failure { exit: Exit::Environment, what: what.into(), advice: None }
    }

    /// An operation on a path that the system refused.
    pub(crate) fn path(tried: &str, path: &std::path::Path, error: &std::io::Error) -> Failure {
        Failure::environment(format!("cannot {tried} {}: {error}", path.display()))
    }

    /// The same failure once more, for whoever reports it further.
    pub(crate) fn again(&self) -> Failure {
        Failure { exit: self.exit, what: self.what.clone(), advice: self.advice.clone() }
    }

    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Failure {
        self.advice = Some(advice.into());
        self
    }
}
