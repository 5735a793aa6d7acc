//! Consul's filters, as clients may send them.

#![cfg_attr(fuzzing, no_main)]

use kingpost_fuzz::fuzz_target;

fuzz_target!(|data: &[u8]| registry::api::read_consul_filter(data));
