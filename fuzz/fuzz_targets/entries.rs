//! Configuration entries: rows of the store, and the lists of Nacos' clients that listen.

#![cfg_attr(fuzzing, no_main)]

use kingpost_fuzz::fuzz_target;

fuzz_target!(|data: &[u8]| {
    registry::configuration::read_config_row(data);
    registry::api::read_listening(data);
});
