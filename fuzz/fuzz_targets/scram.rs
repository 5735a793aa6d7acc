//! Both sides of SCRAM-SHA-256, each with arbitrary messages of the other.
#![cfg_attr(fuzzing, no_main)]

use std::sync::OnceLock;

use kingpost_fuzz::fuzz_target;
use wire::scram::{Client, Credential, Server, Verifier};

static VERIFIER: OnceLock<Verifier> = OnceLock::new();

fuzz_target!(|bytes: &[u8]| {
    let (first, second) = bytes.split_at(bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len()));
    let second = second.get(1..).unwrap_or_default();

    // A client without the password is never authenticated.
    let verifier = VERIFIER.get_or_init(|| Verifier::from_password("correct horse").expect("a password"));
    for mut server in [Server::new(verifier.clone()), Server::mock("nobody", &[7; 32])] {
        if server.first(first).is_ok() {
            assert!(server.last(second).is_err());
        }
    }

    // A server without the verifier is never authenticated. The client limits the iterations that a server may require; a permitted but high count
    // only costs time, which the fuzzer would take for a hang.
    let text = String::from_utf8_lossy(first);
    let slow = text.rsplit_once("i=").is_some_and(|(_, count)| count.trim().len() > 5);
    if !slow && let Ok(mut client) = Client::new(Credential::password("correct horse")) {
        let _ = client.first();
        if client.final_(first).is_ok() {
            assert!(client.verify(second).is_err());
        }
    }

    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Verifier::parse(text);
    }
});
