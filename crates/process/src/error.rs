//! Failures of the program: the attempted operation, its object, the advice, and the exit code.

use std::fmt;

/// Exit codes; `--help` lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Failure while running.
    Runtime = 1,
    /// Error in the configuration.
    Config = 3,
    /// Missing part of the machine: no PostgreSQL, a port taken, a disk full, a directory that cannot be used.
    Environment = 4,
}

/// Text below every `--help`. 2 is clap's own.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  failed while running
  2  wrong usage of the command line
  3  wrong configuration
  4  the machine lacks something (no PostgreSQL, port taken, disk full, directory not usable)";

/// A failure in the form that the user sees.
#[derive(Debug, thiserror::Error)]
pub struct Failure {
    /// Exit code.
    pub exit: Exit,
    /// The attempted operation, its object, and the error.
    pub what: String,
    /// Advice to the user.
    pub advice: Option<String>,
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
    /// Makes a failure while running.
    pub fn runtime(what: impl Into<String>) -> Failure {
        Failure { exit: Exit::Runtime, what: what.into(), advice: None }
    }

    /// Makes the failure of a configuration.
    pub fn config(what: impl Into<String>) -> Failure {
        Failure { exit: Exit::Config, what: what.into(), advice: None }
    }

    /// Makes the failure of a machine that lacks something.
    pub fn environment(what: impl Into<String>) -> Failure {
        Failure { exit: Exit::Environment, what: what.into(), advice: None }
    }

    /// Makes the failure of an operation on a path, refused by the system.
    pub fn path(tried: &str, path: &std::path::Path, error: &std::io::Error) -> Failure {
        Failure::environment(format!("cannot {tried} {}: {error}", path.display()))
    }

    /// Copies the failure.
    pub fn again(&self) -> Failure {
        Failure { exit: self.exit, what: self.what.clone(), advice: self.advice.clone() }
    }

    /// Adds advice to the user.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Failure {
        self.advice = Some(advice.into());
        self
    }
}
