//! Log of logins: clients that were accepted, and clients that were refused, with the reason. Under the target `kingpost::login`, with a limited
//! number of lines per second, so that guessing passwords does not fill a disk.

use std::time::{Duration, Instant};

use wire::Sqlstate;

use super::client::Phase;
use crate::config::LogLogins;
use crate::core::Core;

/// Maximum number of a worker's lines in [`PERIOD`]; further ones are counted, and reported by one line.
const MOST: u32 = 20;
const PERIOD: Duration = Duration::from_secs(1);

/// State of a worker's login log.
#[derive(Debug)]
pub(in crate::core) struct Journal {
    since: Instant,
    written: u32,
    kept_back: u64,
}

impl Journal {
    pub(in crate::core) fn new(now: Instant) -> Journal {
        Journal { since: now, written: 0, kept_back: 0 }
    }

    /// True if one more line may be written now.
    fn may_write(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) >= PERIOD {
            (self.since, self.written) = (now, 0);
        }
        let may = self.written < MOST;
        self.written += u32::from(may);
        self.kept_back += u64::from(!may);
        may
    }

    /// Logs the number of lines that were not written since the last call.
    pub(in crate::core) fn tick(&mut self) {
        let logins = std::mem::take(&mut self.kept_back);
        if logins > 0 {
            tracing::warn!(target: "kingpost::login", logins, "more logins than are logged");
        }
    }
}

impl Core {
    /// Logs the login of a client into a database, or into the console.
    pub(in crate::core) fn log_login(&mut self, c: usize) {
        if self.settings.log_logins != LogLogins::All || !self.journal.may_write(self.now) {
            return;
        }
        let client = &self.clients[c];
        let Phase::Login(login) = &client.phase else { return };
        tracing::info!(
            target: "kingpost::login",
            user = &*login.key.user,
            database = &*login.key.database,
            address = client.address.map(|address| address.to_canonical().to_string()),
            tls = client.identity.is_some(),
            "logged in"
        );
    }

    /// Logs the refusal of a client. The client's own names are escaped.
    pub(in crate::core) fn log_refusal(&mut self, c: usize, code: Sqlstate, why: &str) {
        if self.settings.log_logins == LogLogins::Off || !self.journal.may_write(self.now) {
            return;
        }
        let client = &self.clients[c];
        let key = match &client.phase {
            Phase::Login(login) => Some(&login.key),
            _ => None,
        };
        tracing::warn!(
            target: "kingpost::login",
            user = key.map(|key| format!("{:?}", key.user)),
            database = key.map(|key| format!("{:?}", key.database)),
            address = client.address.map(|address| address.to_canonical().to_string()),
            tls = client.identity.is_some(),
            code = %String::from_utf8_lossy(&code.0),
            why = ?why,
            "login refused"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_counted() {
        let now = Instant::now();
        let mut journal = Journal::new(now);
        let written = (0..100).filter(|_| journal.may_write(now)).count();
        assert_eq!((written, journal.kept_back), (MOST as usize, 100 - u64::from(MOST)));
        assert!(!journal.may_write(now + PERIOD / 2));
        assert!(journal.may_write(now + PERIOD), "the next second has its own");
        journal.tick();
        assert_eq!(journal.kept_back, 0);
    }
}
