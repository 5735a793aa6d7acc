//! Logs: human on a terminal, JSON otherwise.

use std::fs::File;
use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::error::Failure;

settings::settings! {
    /// `[log]`.
    #[derive(Debug, Clone, PartialEq)]
    pub struct LogConfig: Default {
        /// Level of the log: error, warn, info, debug, trace, or a list such as "info,proxy=debug".
        pub level: String = "info".into();
        /// Format of the log's lines: "human", "json", or "auto": human on a terminal, JSON otherwise.
        pub format: LogFormat = LogFormat::Auto;
    }
}

::settings::settings! {
    /// Format of the log's lines.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
    pub enum LogFormat {
        /// Human on a terminal, JSON otherwise
        Auto = "auto",
        /// For people
        Human = "human",
        /// One JSON object a line
        Json = "json",
    }
}

/// Log settings of the command line, which override the file and the environment.
#[derive(Debug, Clone, Default)]
pub struct LogFlags {
    /// `--log-level`.
    pub level: Option<String>,
    /// `--log-format`.
    pub format: Option<LogFormat>,
}

impl LogFlags {
    /// Returns the settings with the flags over them.
    pub fn over(&self, config: &LogConfig) -> LogConfig {
        LogConfig {
            level: self.level.clone().unwrap_or_else(|| config.level.clone()),
            format: self.format.unwrap_or(config.format),
        }
    }
}

/// Starts logging to standard error, or to `file`. Once a process.
///
/// # Errors
/// The level is not a level or a list of `target=level`; logging was started before.
pub fn start(config: &LogConfig, file: Option<File>) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(&config.level)
        .map_err(|error| Failure::config(format!("cannot use the log level {:?}: {error}", config.level)))?;
    let json = match config.format {
        LogFormat::Auto => file.is_some() || !std::io::stderr().is_terminal(),
        LogFormat::Human => false,
        LogFormat::Json => true,
    };
    let colours = file.is_none() && std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let writer = match file {
        Some(file) => BoxMakeWriter::new(std::sync::Mutex::new(file)),
        None => BoxMakeWriter::new(std::io::stderr),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(colours);
    let started =
        if json { builder.json().flatten_event(true).with_current_span(true).try_init() } else { builder.try_init() };
    started.map_err(|error| Failure::runtime(format!("cannot start logging: {error}")))
}
