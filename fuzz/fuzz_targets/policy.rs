//! Consul's policies, in HCL or JSON, as clients may send them.

#![cfg_attr(fuzzing, no_main)]

use kingpost_fuzz::fuzz_target;

fuzz_target!(|data: &[u8]| registry::read_policy(data));
