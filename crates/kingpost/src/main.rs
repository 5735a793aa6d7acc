//! The `kingpost` binary: its code is in the library, so that the fuzzer reaches it, too.

use std::process::ExitCode;

fn main() -> ExitCode {
    kingpost::main()
}
