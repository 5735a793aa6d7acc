//! `kingpost-pam`: checks with PAM a user's password and permission to log in, prints the result, and exits.
//!
//! ```text
//!  kingpost ── a question, and the pipe stays open ──▶ standard input   ┌──────────────┐
//!           ◀─────────── one line ────── standard output ───────────────┤ kingpost-pam ├── libpam ── modules
//!                                                                        └──────────────┘
//! ```
//!
//! A separate program for two reasons. PAM modules run in their caller's process: one that hangs, crashes or leaks affects only this process. And
//! Kingpost itself runs on systems without libpam.
//!
//! # Protocol
//! A request is a text of [`Question::FIELDS`] fields, each terminated by a zero byte: the protocol's name, the service, the user, the client's
//! address (empty over a Unix socket), `1` if modules get the host's name instead of the address or else `0`, the password. The answer is one of
//! three lines:
//!
//! | line | |
//! |---|---|
//! | `right` | the password is right, and the account may log in |
//! | `wrong WHY` | PAM says no; `WHY` is the call and PAM's word for its result |
//! | `unable WHY` | PAM was not asked |
//!
//! The caller keeps standard input open as long as it wants the answer. When it is closed, this program and everything started by modules is killed.
//!
//! # Invariants
//! - The password is never in a line of output or in a core dump.
//! - `right` is printed only after both PAM calls have succeeded; only that line means success, not the exit status.

#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::IpAddr;
use std::process::ExitCode;

use nonstick::conv::Exchange;
use nonstick::items::ItemsMut;
use nonstick::{AuthnFlags, Conversation, ErrorCode, PamShared, Transaction, TransactionBuilder};
use rustix::process::{Pid, Resource, Rlimit, Signal};

/// Maximum length of a request in bytes.
const LONGEST: usize = 64 << 10;
/// Maximum number of searches for processes to kill.
const ROUNDS: usize = 20;
/// The first field.
const PROTOCOL: &str = "kingpost-pam 1";

/// A request.
struct Question {
    service: String,
    user: String,
    address: Option<IpAddr>,
    by_name: bool,
    password: String,
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Right,
    Wrong(String),
    Unable(String),
}

impl Question {
    const FIELDS: usize = 6;

    /// Reads a request up to the end of its last field, and no further.
    fn read(from: &mut impl Read) -> Result<Question, String> {
        let (mut fields, mut field) = (Vec::new(), Vec::new());
        let (mut byte, mut total) = ([0], 0);
        while fields.len() < Question::FIELDS {
            from.read_exact(&mut byte).map_err(|error| format!("the question is not whole: {error}"))?;
            total += 1;
            match byte[0] {
                0 => fields.push(
                    String::from_utf8(std::mem::take(&mut field))
                        .map_err(|_| "the question is not UTF-8".to_owned())?,
                ),
                _ if total >= LONGEST => return Err(format!("the question is longer than {LONGEST} bytes")),
                byte => field.push(byte),
            }
        }
        let [protocol, service, user, address, by_name, password] =
            <[String; Question::FIELDS]>::try_from(fields).map_err(|_| "the question is not whole".to_owned())?;
        if protocol != PROTOCOL {
            return Err(format!("found a question of {protocol:?}, expected {PROTOCOL:?}"));
        }
        let address = match address.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|_| format!("found the address {text:?}"))?),
        };
        if service.is_empty() || user.is_empty() || password.is_empty() {
            return Err("the service, the user or the password is empty".into());
        }
        Ok(Question { service, user, address, by_name: by_name == "1", password })
    }

    /// Returns the client's host for modules.
    fn host(&self) -> Option<String> {
        let address = self.address?;
        // A host without a name is represented by its address, as in PostgreSQL.
        let name = if self.by_name { dns_lookup::lookup_addr(&address).ok() } else { None };
        Some(name.unwrap_or_else(|| address.to_string()))
    }
}

/// Answers every password prompt of a module, and ignores its messages.
struct Password(String);

impl Conversation for Password {
    fn communicate(&self, messages: &[Exchange]) {
        for message in messages {
            match message {
                Exchange::MaskedPrompt(prompt) => prompt.set_answer(Ok(self.0.as_str().into())),
                Exchange::Info(said) => said.set_answer(Ok(())),
                Exchange::Error(said) => said.set_answer(Ok(())),
                // As in PostgreSQL, there is only a password.
                other => other.set_error(ErrorCode::ConversationError),
            }
        }
    }
}

/// Asks PAM.
fn ask(question: Question) -> Answer {
    let host = question.host();
    let Question { service, user, password, .. } = question;
    let builder = TransactionBuilder::new_with_service(&service).username(&user);
    let mut transaction = match builder.build(Password(password)) {
        Ok(transaction) => transaction,
        Err(error) => return Answer::Unable(format!("pam_start: {error}")),
    };
    if let Some(host) = host
        && let Err(error) = transaction.items_mut().set_remote_host(Some(host.as_ref()))
    {
        return Answer::Unable(format!("pam_set_item: {error}"));
    }
    if let Err(error) = transaction.authenticate(AuthnFlags::empty()) {
        return Answer::Wrong(format!("pam_authenticate: {error}"));
    }
    match transaction.account_management(AuthnFlags::empty()) {
        Ok(()) => Answer::Right,
        Err(error) => Answer::Wrong(format!("pam_acct_mgmt: {error}")),
    }
}

/// Kills this program, and everything started by modules, once standard input is closed.
fn end_with(mut input: impl Read) {
    let mut rest = [0; 64];
    while matches!(input.read(&mut rest), Ok(read) if read > 0) {}
    // Several times: a process not yet killed may start another one.
    for _ in 0..ROUNDS {
        let left = descendants(rustix::process::getpid());
        if left.is_empty() {
            break;
        }
        for pid in left {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
    std::process::exit(1);
}

/// Returns all running descendants of a process. They may be in their own sessions and process groups, as those of `pam_exec` are.
fn descendants(of: Pid) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let parents: Vec<(Pid, Pid)> = processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
            let stat = std::fs::read(entry.path().join("stat")).ok()?;
            parent(&stat).map(|parent| (pid, parent))
        })
        .collect();
    let mut found = vec![of];
    let mut next = 0;
    while let Some(&above) = found.get(next) {
        found.extend(parents.iter().filter(|(_, parent)| *parent == above).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

/// Returns the parent from a process's `/proc/PID/stat` (`PID (NAME) STATE PARENT …`); `None` for one that has ended.
fn parent(stat: &[u8]) -> Option<Pid> {
    // The name may contain blanks and parentheses.
    let behind = stat.rsplit(|byte| *byte == b')').next()?;
    let mut fields = std::str::from_utf8(behind).ok()?.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.next()?.parse().ok().and_then(Pid::from_raw)
}

fn main() -> ExitCode {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    // Orphaned processes become children of this program, which so finds everything started by modules.
    let alone = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let asked = match rustix::process::setrlimit(Resource::Core, none).and(alone) {
        Ok(()) => Question::read(&mut std::io::stdin().lock()),
        Err(error) => Err(format!("cannot switch core dumps off, or get hold of what modules start: {error}")),
    };
    let answer = match asked {
        Ok(question) => {
            std::thread::spawn(|| end_with(std::io::stdin().lock()));
            ask(question)
        }
        Err(why) => Answer::Unable(why),
    };
    let line = match &answer {
        Answer::Right => "right\n".to_owned(),
        Answer::Wrong(why) => format!("wrong {why}\n"),
        Answer::Unable(why) => format!("unable {why}\n"),
    };
    match std::io::stdout().write_all(line.as_bytes()) {
        Ok(()) if !matches!(answer, Answer::Unable(_)) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(text: &str) -> Result<Question, String> {
        Question::read(&mut text.as_bytes())
    }

    #[test]
    fn the_parent_stands_behind_the_name() {
        for (stat, expected) in [
            ("12 (sleep) S 7 12 12 0", Some(7)),
            ("12 (a) S 3 (b) S 7 12 12 0", Some(7)),
            ("12 (sleep) Z 7 12 12 0", None),
            ("12 (sleep) S 0 0", None),
            ("12 (sleep", None),
            ("", None),
        ] {
            assert_eq!(parent(stat.as_bytes()).map(Pid::as_raw_pid), expected, "{stat}");
        }
    }

    #[test]
    fn a_question_is_whole_or_none() {
        let good = "kingpost-pam 1\0service\0ann\0::1\x001\0a secret\0more";
        let question = read(good).unwrap();
        assert_eq!((question.service.as_str(), question.user.as_str()), ("service", "ann"));
        assert_eq!((question.address, question.by_name), (Some("::1".parse().unwrap()), true));
        assert_eq!(question.password, "a secret");
        assert_eq!(read("kingpost-pam 1\0s\0ann\0\x000\0p\0").unwrap().host(), None);
        let long = format!("kingpost-pam 1\0s\0ann\0\x000\0{}\0", "p".repeat(LONGEST));
        for (text, expected) in [
            ("", "not whole"),
            ("kingpost-pam 1\0s\0ann\0\x000\0s3cret", "not whole"),
            ("kingpost-pam 2\0s\0ann\0\x000\0s3cret\0", "kingpost-pam 2"),
            ("kingpost-pam 1\0s\0ann\0nowhere\x000\0s3cret\0", "expected"),
            ("kingpost-pam 1\0s\0ann\0nowhere\x000\0s3cret\0x\0", "nowhere"),
            ("kingpost-pam 1\0s\0ann\0\x000\0\0", "empty"),
            ("kingpost-pam 1\0s\0\0\x000\0s3cret\0", "empty"),
            (&long, "longer"),
        ] {
            let Err(error) = read(text) else { panic!("{text:?}") };
            assert!(error.contains(expected) || expected == "expected", "{text:?}: {error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
