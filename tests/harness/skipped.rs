//! What a test says when something that it needs is not here.

use std::io::Write as _;

/// The calling test does nothing, and says why: on its standard error, and as a line `TEST: WHY` at the end of the file that `KINGPOST_TESTS_SKIPPED`
/// names. `scripts/test` shows that file at its end, so that nobody takes a test that was left out for one that passed.
///
/// # Panics
/// When the file cannot be written: then the test would be taken for one that passed.
pub fn skipped(why: &str) {
    eprintln!("skipped: {why}");
    let Some(file) = std::env::var_os("KINGPOST_TESTS_SKIPPED") else { return };
    // The harness of tests names the thread by the test.
    let thread = std::thread::current();
    let line = format!("{}: {why}\n", thread.name().unwrap_or("a test"));
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(&file);
    let written = opened.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("KINGPOST_TESTS_SKIPPED={}: {error}", file.display()));
}
