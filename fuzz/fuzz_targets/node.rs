//! Files that an agent reads of its server and of others: control data, timeline histories, settings.

#![cfg_attr(fuzzing, no_main)]

use kingpost_fuzz::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let kept = kingpost::kept_settings(text);
    assert_eq!(kingpost::kept_settings(&kept), kept, "settings that a standby keeps stay the same");
});
