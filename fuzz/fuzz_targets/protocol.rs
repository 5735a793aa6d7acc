//! What a server connection owes, against a model of a server: each answer ends what the model says it ends, and a server may say anything.
//!
//! Each byte of the input is a message of the client's, whether the server refuses it, and how many of the server's messages follow.
#![cfg_attr(fuzzing, no_main)]

use kingpost_fuzz::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // The model is part of the crate only where it is fuzzed, and in its unit tests.
    #[cfg(fuzzing)]
    proxy::core::fuzz_protocol(data);
    let _ = data;
});
