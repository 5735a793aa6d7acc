//! Report of a skipped test.

use std::io::Write as _;

/// Reports that the calling test does nothing, with the reason: on its standard error, and as a line `TEST: WHY` at the end of the file that
/// `KINGPOST_TESTS_SKIPPED` names. `scripts/test` shows that file at its end, so that a skipped test is not taken for a passed one.
///
/// # Panics
/// When the file cannot be written: the test would be taken for a passed one.
pub fn skipped(why: &str) {
    eprintln!("skipped: {why}");
    let Some(file) = std::env::var_os("KINGPOST_TESTS_SKIPPED") else { return };
    // The test harness names the thread after the test.
    let thread = std::thread::current();
    let line = format!("{}: {why}\n", thread.name().unwrap_or("a test"));
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(&file);
    let written = opened.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("KINGPOST_TESTS_SKIPPED={}: {error}", file.display()));
}
