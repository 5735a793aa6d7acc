//! What a server connection owes, against a model of a server: each answer ends what the model says it ends, and a server may say anything.
//!
//! Each byte of the input is a message of the client's, whether the server refuses it, and how many of the server's messages follow.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| proxy::core::fuzz_protocol(data));
