//! Passwords, each given in one of several ways: in place, by a file, or by a program that writes it.

use std::path::Path;

use super::findings::{Findings, Stat};

/// A password as the configuration gives it.
#[derive(Clone, Copy, Default)]
pub(super) struct Password<'a> {
    /// Prefix of the keys, such as `server_` in `server_password_file`.
    pub(super) prefix: &'static str,
    /// Name of the key in place of `password`; "" for that.
    pub(super) named: &'static str,
    /// True if the configuration itself has the password.
    pub(super) in_place: bool,
    /// The file whose first line is the password.
    pub(super) file: Option<&'a Path>,
    /// The program that writes the password, with its arguments; empty for none.
    pub(super) command: &'a [String],
    /// True if a verifier is given instead.
    pub(super) verifier: bool,
}

impl Password<'_> {
    /// Returns the keys that are given.
    fn keys(&self) -> Vec<String> {
        [
            (self.key(""), self.in_place),
            (self.key("_file"), self.file.is_some()),
            (self.key("_command"), !self.command.is_empty()),
            (format!("{}verifier", self.prefix), self.verifier),
        ]
        .into_iter()
        .filter(|(_, given)| *given)
        .map(|(key, _)| key)
        .collect()
    }

    /// Returns the name of a key with this ending.
    fn key(&self, ending: &str) -> String {
        let named = if self.named.is_empty() { "password" } else { self.named };
        format!("{}{named}{ending}", self.prefix)
    }

    /// True if the password is given in any way.
    pub(super) fn is_given(&self) -> bool {
        !self.keys().is_empty()
    }

    /// Checks that the table `of` gives the password in at most one way, and that its file or program can be used.
    pub(super) fn check(&self, of: &str, stat: &dyn Fn(&Path) -> Stat, findings: &mut Findings) {
        let given = self.keys();
        if given.len() > 1 {
            findings.error(of, format!("found {}, expected at most one of them", given.join(" and ")));
        }
        let path = |ending: &str| format!("{of}.{}", self.key(ending));
        if let Some(file) = self.file {
            check_file(file, path("_file"), stat, findings);
        }
        check_command(self.command, path("_command"), stat, findings);
    }
}

/// Checks a program that writes a password, without running it.
fn check_command(command: &[String], path: String, stat: &dyn Fn(&Path) -> Stat, findings: &mut Findings) {
    let Some(program) = command.first() else { return };
    if !program.starts_with('/') {
        return findings.error(path, format!("found {program:?}, expected the absolute path of a program"));
    }
    match stat(Path::new(program)) {
        Stat::Unreadable(why) => findings.error(path, format!("cannot read {program:?}: {why}")),
        Stat::Readable { mode, .. } if mode & 0o111 == 0 => {
            findings.error(path, format!("{program:?} has mode {:03o}, nobody may run it", mode & 0o777));
        }
        Stat::Readable { mode, .. } if mode & 0o002 != 0 => {
            findings.warn(path, format!("{program:?} has mode {:03o}, everybody may replace it", mode & 0o777));
        }
        Stat::Readable { .. } => {}
    }
}

/// Checks a file whose first line is a password.
pub(super) fn check_file(file: &Path, path: String, stat: &dyn Fn(&Path) -> Stat, findings: &mut Findings) {
    let name = file.display().to_string();
    match stat(file) {
        Stat::Unreadable(why) => findings.error(path, format!("cannot read {name:?}: {why}")),
        Stat::Readable { empty: true, .. } => {
            findings.error(path, format!("found nothing in the first line of {name:?}, expected a password"));
        }
        Stat::Readable { mode, .. } if mode & 0o007 != 0 => findings
            .warn(path, format!("{name:?} has mode {:03o}, everybody may use it; expected 600 or 640", mode & 0o777)),
        Stat::Readable { .. } => {}
    }
}
