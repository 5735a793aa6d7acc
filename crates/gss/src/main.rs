//! `kingpost-gss`: verifies a client's GSSAPI token (Kerberos), prints the client's name, and exits.
//!
//! ```text
//!  kingpost ── the token ──▶ standard input    ┌──────────────┐
//!           ◀── one line ─── standard output ──┤ kingpost-gss ├── libgssapi_krb5 ── keytab, replay cache
//!                                              └──────────────┘
//! ```
//!
//! A separate program, so that Kingpost runs on systems without Kerberos, and a malicious token affects only this process.
//!
//! # Protocol
//! A request is a text of [`FIELDS`] fields, each terminated by a zero byte: the protocol's name, and the token in base64. The keytab is given in the
//! environment (`KRB5_KTNAME`), as for every GSSAPI program. The answer is one of three lines:
//!
//! | line | |
//! |---|---|
//! | `right NAME REPLY` | the client is the principal NAME, and is to be sent REPLY; both in base64, REPLY `-` if there is nothing to be sent |
//! | `wrong WHY` | the token is not good |
//! | `unable WHY` | it was not looked at: there is no key, for example |
//!
//! # Invariants
//! - `right` is printed only for a complete context. Kerberos' acceptor needs one token; a context that needs more is rejected.
//! - A replayed token is rejected: the library keeps a cache of tokens on disk as long as they are valid.
//! - The token is never in a line of output or in a core dump.

#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::process::ExitCode;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use libgssapi::context::{SecurityContext, ServerCtx};
use libgssapi::credential::{Cred, CredUsage};
use libgssapi::oid::{GSS_MECH_KRB5, OidSet};
use rustix::process::{Resource, Rlimit};

/// Maximum length of a request in bytes: a token of 64 kB in base64.
const LONGEST: usize = 96 << 10;
/// The first field.
const PROTOCOL: &str = "kingpost-gss 1";
/// Number of fields of a request.
const FIELDS: usize = 2;

/// An answer.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Right { name: Vec<u8>, reply: Vec<u8> },
    Wrong(String),
    Unable(String),
}

/// Reads a request up to the end of input, and decodes its token.
fn token(from: &mut impl Read) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let most = LONGEST as u64 + 1;
    from.take(most).read_to_end(&mut text).map_err(|error| format!("the question is not whole: {error}"))?;
    if text.len() > LONGEST {
        return Err(format!("the question is longer than {LONGEST} bytes"));
    }
    let fields: Vec<&[u8]> = text.split(|byte| *byte == 0).collect();
    let [protocol, token, []] = fields.as_slice() else {
        return Err(format!("found {} fields, expected {FIELDS}", fields.len().saturating_sub(1)));
    };
    if *protocol != PROTOCOL.as_bytes() {
        return Err(format!("expected a question of {PROTOCOL:?}"));
    }
    STANDARD.decode(token).map_err(|_| "the token is not base64".to_owned())
}

/// Verifies a token with GSSAPI.
fn look(token: &[u8]) -> Answer {
    let mut mechanisms = OidSet::new();
    if let Err(error) = mechanisms.add(GSS_MECH_KRB5) {
        return Answer::Unable(format!("gss_add_oid_set_member: {error}"));
    }
    // Any key of the keytab is accepted, as in PostgreSQL: clients may use any name of the host.
    let credentials = match Cred::acquire(None, None, CredUsage::Accept, Some(&mechanisms)) {
        Ok(credentials) => credentials,
        Err(error) => return Answer::Unable(format!("gss_acquire_cred: {error}")),
    };
    let mut context = ServerCtx::new(Some(credentials));
    let reply = match context.step(token, None) {
        Ok(reply) => reply.map(|reply| reply.to_vec()).unwrap_or_default(),
        Err(error) => return Answer::Wrong(format!("gss_accept_sec_context: {error}")),
    };
    if !context.is_complete() {
        return Answer::Wrong("gss_accept_sec_context: one token is not enough".into());
    }
    match context.source_name().and_then(|name| name.display_name()) {
        Ok(name) => Answer::Right { name: name.to_vec(), reply },
        Err(error) => Answer::Wrong(format!("gss_display_name: {error}")),
    }
}

/// Replaces control characters, so that the text has no line break.
fn in_a_line(why: &str) -> String {
    why.chars().map(|c| if c.is_control() { ' ' } else { c }).take(500).collect()
}

fn line(answer: &Answer) -> String {
    match answer {
        Answer::Right { name, reply } => {
            let reply = if reply.is_empty() { "-".to_owned() } else { STANDARD.encode(reply) };
            format!("right {} {reply}\n", STANDARD.encode(name))
        }
        Answer::Wrong(why) => format!("wrong {}\n", in_a_line(why)),
        Answer::Unable(why) => format!("unable {}\n", in_a_line(why)),
    }
}

fn main() -> ExitCode {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let asked = match rustix::process::setrlimit(Resource::Core, none) {
        Ok(()) => token(&mut std::io::stdin().lock()),
        Err(error) => Err(format!("cannot switch core dumps off: {error}")),
    };
    let answer = asked.map_or_else(Answer::Unable, |token| look(&token));
    match std::io::stdout().write_all(line(&answer).as_bytes()) {
        Ok(()) if !matches!(answer, Answer::Unable(_)) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_whole_or_none() {
        let read = |text: &str| token(&mut text.as_bytes());
        assert_eq!(read("kingpost-gss 1\0YWJj\0"), Ok(b"abc".to_vec()));
        let long = format!("kingpost-gss 1\0{}\0", "A".repeat(LONGEST));
        for (text, expected) in [
            ("", "0 fields"),
            ("kingpost-gss 1\0YWJj", "1 fields"),
            ("kingpost-gss 1\0YWJj\0more\0", "3 fields"),
            ("kingpost-gss 2\0YWJj\0", "expected a question"),
            ("kingpost-gss 1\0s3cret!\0", "not base64"),
            (&long, "longer"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(expected) && !error.contains("s3cret"), "{text:?}: {error}");
        }
    }

    #[test]
    fn an_answer_is_one_line() {
        let right = |name: &str, reply: &[u8]| line(&Answer::Right { name: name.into(), reply: reply.into() });
        assert_eq!(right("ann@A", b"\n"), "right YW5uQEE= Cg==\n");
        assert_eq!(right("ann@A", b""), "right YW5uQEE= -\n");
        assert_eq!(line(&Answer::Wrong("a\nright x".into())), "wrong a right x\n");
    }

    #[test]
    fn garbage_is_no_token() {
        for token in [&b""[..], b"garbage", &[0x60; 70], &[0; 4096]] {
            assert!(!matches!(look(token), Answer::Right { .. }), "{token:?}");
        }
    }
}
