//! Operators' orders that a process takes over from its predecessor.

#![cfg_attr(fuzzing, no_main)]

use kingpost_fuzz::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(written) = kingpost::orders_again(bytes) else { return };
    assert_eq!(kingpost::orders_again(&written).as_ref(), Some(&written), "orders are the same once they were written");
});
