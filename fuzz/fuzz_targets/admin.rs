//! Commands of the console.
#![cfg_attr(fuzzing, no_main)]

use kingpost_fuzz::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match proxy::console::understands(text) {
        // White space and semicolons around a valid command do not matter.
        Ok(()) => assert_eq!(proxy::console::understands(&format!(" \n{text}\n;")), Ok(())),
        // An error has a text.
        Err(error) => assert!(!error.is_empty()),
    }
});
