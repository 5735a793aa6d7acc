//! Polaris' rules as JSON, as administrators may send them.

#![cfg_attr(fuzzing, no_main)]

use kingpost_fuzz::fuzz_target;

fuzz_target!(|data: &[u8]| registry::api::read_polaris_rules(data)
    .expect("a rule is the same once it was written and read again"));
