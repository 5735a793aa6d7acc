//! Pending replies of a server connection, against a model of a server: each reply ends what the model says it ends, and a server may send anything.
//!
//! Each byte of the input is a message of the client, whether the server refuses it, and the number of the server's messages that follow.
#![cfg_attr(fuzzing, no_main)]

use kingpost_fuzz::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // The model is part of the crate only for fuzzing and in its unit tests.
    #[cfg(fuzzing)]
    proxy::core::fuzz_protocol(data);
    let _ = data;
});
