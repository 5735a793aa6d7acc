//! The place for messages about a running backup: a terminal, or the log of a relay.

use std::fmt::Arguments;

use process::terminal;

/// The place for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Say {
    /// Standard output and standard error of a command.
    Terminal,
    /// The log.
    Log,
}

impl Say {
    /// Writes a result.
    pub(crate) fn line(self, text: Arguments<'_>) {
        match self {
            Say::Terminal => terminal::line(text),
            Say::Log => tracing::info!("{text}"),
        }
    }

    /// Writes a remark that an operator should see.
    pub(crate) fn warn(self, text: Arguments<'_>) {
        match self {
            Say::Terminal => terminal::note(text),
            Say::Log => tracing::warn!("{text}"),
        }
    }

    /// Writes a remark.
    pub(crate) fn note(self, text: Arguments<'_>) {
        match self {
            Say::Terminal => terminal::note(text),
            Say::Log => tracing::info!("{text}"),
        }
    }
}
