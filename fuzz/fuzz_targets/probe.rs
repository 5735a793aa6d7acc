//! HTTP checks: a URL as clients may register it, and an answer of what it leads to.

#![cfg_attr(fuzzing, no_main)]

use kingpost_fuzz::fuzz_target;

fuzz_target!(|data: &[u8]| {
    registry::read_probe(data);
});
