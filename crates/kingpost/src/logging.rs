//! Logs: human on a terminal, JSON otherwise.

use std::fs::File;
use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::config::{LogConfig, LogFormat};
use crate::error::Failure;

/// Starts logging to standard error, or to `file`. Once a process.
///
/// # Errors
/// The level is not a level or a list of `target=level`; logging was started before.
pub(crate) fn start(config: &LogConfig, file: Option<File>) -> Result<(), Failure> {
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
