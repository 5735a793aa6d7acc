//! Definition of fuzz targets, with libFuzzer and without.
//!
//! With `cargo fuzz` a target is libFuzzer's. Built in any other way, it is a program that reads the given files one after another: so a
//! finding can be reproduced without a nightly toolchain: `cargo run -p kingpost-fuzz --features
//! targets --bin core -- FILE`.

#[cfg(fuzzing)]
pub use libfuzzer_sys::fuzz_target;

/// Defines a target that is run with each input: `fuzz_target!(|bytes: &[u8]| …)`.
#[cfg(not(fuzzing))]
#[macro_export]
macro_rules! fuzz_target {
    (|$bytes:ident: &[u8]| $body:expr) => {
        /// Runs the target with an input.
        #[allow(clippy::redundant_closure_call)]
        pub(crate) fn run(input: &[u8]) {
            (|$bytes: &[u8]| $body)(input);
        }

        #[allow(dead_code, reason = "tests/targets.rs has the targets as modules")]
        fn main() {
            for path in std::env::args_os().skip(1) {
                run(&std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())));
            }
        }
    };
}
