//! Standard output and standard error. A reader that has gone away (`kingpost status | head -1`) is not an error.

use std::io::{IsTerminal, Write};

/// Writes a line to standard output.
pub fn line(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// Writes to standard output as it is, and flushes.
pub fn raw(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

/// Writes a line to standard error.
pub fn note(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// True if standard output is a terminal that can be redrawn.
pub fn is_terminal() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}
