//! Accounts of users that are not configured: their verifiers are looked up on a server (`auth_query`) and cached.
//!
//! ```text
//!  core: begins a login ─Effect::LookUp─▶ Accounts ─(the lookup service)─▶ a server
//!        continues the login ◀─CoreMessage::Account──    └ caches users, and the absence of users
//! ```
//!
//! Limits: cached names, names being looked up, and waiting clients. A found account is cached for `cache`, the absence of a user for
//! `negative_cache`. After a wrong password the user is looked up again, since the password may have been changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::core::token::Token;
use crate::settings::User;

/// Maximum number of cached names. A full cache drops its expired entries; if none have expired, all entries.
const MOST_KNOWN: usize = 10_000;
/// Maximum number of concurrent lookups.
const MOST_ASKED: usize = 256;
/// Maximum number of clients that wait for a lookup.
const MOST_WAITING: usize = 10_000;
/// Minimum age of an entry that a wrong password drops. It limits the lookups that guessing can cause.
const LEAST_AGE: Duration = Duration::from_secs(1);

/// Starts the lookup of a user's secret; returns false if no more lookups are accepted. The result goes to `Accounts::answer`.
pub type Ask = Box<dyn Fn(Arc<str>) -> bool + Send + Sync>;

/// A waiting connection, with its worker.
pub(crate) type Waiting = (usize, Token);

/// Result of a lookup: `None` if the user does not exist, or has no password.
pub type LookupResult = Result<Option<Arc<User>>, String>;

/// Accounts of users that are not configured.
#[derive(Default)]
pub struct Accounts {
    state: Mutex<State>,
    ask: OnceLock<Ask>,
}

/// Permission of a user with open connections to log in again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccountState {
    /// Granted, by the cached account.
    Good,
    /// Unknown: the lookup is under way, or failed.
    Unknown,
    /// The role exists, but has no password that permits a login.
    NoPassword,
    /// The role does not exist, or may not log in.
    Gone,
}

#[derive(Default)]
struct State {
    known: HashMap<Arc<str>, Known>,
    /// Time of each user's last lookup for open connections.
    renewed: HashMap<Arc<str>, Instant>,
    asked: HashMap<Arc<str>, Asked>,
    waiting: usize,
}

/// A lookup under way.
struct Asked {
    waiting: Vec<Waiting>,
    /// True if the configuration has changed since the lookup began: the result is passed on, but not cached.
    outdated: bool,
}

struct Known {
    account: Option<Arc<User>>,
    since: Instant,
    until: Instant,
}

impl std::fmt::Debug for Accounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accounts").finish_non_exhaustive()
    }
}

impl Accounts {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the service that carries out lookups. Only the first call has an effect.
    pub fn serve(&self, ask: Ask) {
        let _ = self.ask.set(ask);
    }

    /// Returns the cached account of a user; `None` if the user has to be looked up.
    pub(crate) fn get(&self, user: &str, now: Instant) -> Option<Option<Arc<User>>> {
        self.state().known.get(user).filter(|known| now < known.until).map(|known| known.account.clone())
    }

    /// Returns the permission of a user with open connections to log in again. Starts a lookup if the entry has expired, but does not wait for it.
    pub(crate) fn account_state(&self, user: &str, now: Instant) -> AccountState {
        let mut state = self.state();
        let known =
            state.known.get(user).map(|known| (known.until, known.account.as_ref().map(|user| user.has_secret())));
        if known.is_none_or(|(until, _)| now >= until) {
            self.renew(&mut state, user, now);
        }
        match known {
            None => AccountState::Unknown,
            // An entry that the user is gone stays valid until another answer replaces it.
            Some((_, None)) => AccountState::Gone,
            Some((_, Some(false))) => AccountState::NoPassword,
            Some((until, Some(true))) if now < until => AccountState::Good,
            Some((_, Some(true))) => AccountState::Unknown,
        }
    }

    /// Starts another lookup of a user, at most once per [`LEAST_AGE`], even if the results are errors.
    fn renew(&self, state: &mut State, user: &str, now: Instant) {
        let Some(ask) = self.ask.get() else { return };
        let is_recent = |then: &Instant| now.saturating_duration_since(*then) < LEAST_AGE;
        if state.renewed.get(user).is_some_and(is_recent)
            || state.asked.contains_key(user)
            || state.asked.len() >= MOST_ASKED
        {
            return;
        }
        if state.renewed.len() >= MOST_KNOWN {
            state.renewed.retain(|_, then| is_recent(&*then));
            if state.renewed.len() >= MOST_KNOWN {
                return;
            }
        }
        let name: Arc<str> = user.into();
        if ask(name.clone()) {
            state.renewed.insert(name.clone(), now);
            state.asked.insert(name, Asked { waiting: Vec::new(), outdated: false });
        }
    }

    /// Looks a user up for a client, or returns an error if that is not possible.
    pub(crate) fn ask(&self, user: &str, who: Waiting) -> Result<(), &'static str> {
        let mut state = self.state();
        let ask = self.ask.get().ok_or("the proxy is still starting")?;
        if state.waiting >= MOST_WAITING {
            return Err("too many logins wait for the lookup of their user");
        }
        if let Some(asked) = state.asked.get_mut(user) {
            asked.waiting.push(who);
            state.waiting += 1;
            return Ok(());
        }
        let name: Arc<str> = user.into();
        if state.asked.len() >= MOST_ASKED || !ask(name.clone()) {
            return Err("too many users are being looked up");
        }
        state.asked.insert(name, Asked { waiting: vec![who], outdated: false });
        state.waiting += 1;
        Ok(())
    }

    /// Takes the result of a lookup, caches it for `keep`, and returns the clients that wait for it. An error is not cached.
    pub(crate) fn answer(&self, user: &str, answer: &LookupResult, keep: Duration, now: Instant) -> Vec<Waiting> {
        let mut state = self.state();
        let asked = state.asked.remove(user).unwrap_or(Asked { waiting: Vec::new(), outdated: false });
        state.waiting -= asked.waiting.len();
        if let Ok(account) = answer
            && !asked.outdated
        {
            if state.known.len() >= MOST_KNOWN {
                state.known.retain(|_, known| now < known.until);
                if state.known.len() >= MOST_KNOWN {
                    state.known.clear();
                }
            }
            state.known.insert(user.into(), Known { account: account.clone(), since: now, until: now + keep });
        }
        asked.waiting
    }

    /// Drops the cached account after a wrong password, so that the next login looks the user up again. A new account stays.
    pub(crate) fn invalidate(&self, user: &str, now: Instant) {
        let mut state = self.state();
        if state.known.get(user).is_some_and(|known| now.saturating_duration_since(known.since) >= LEAST_AGE) {
            state.known.remove(user);
        }
    }

    /// Drops all accounts after a change of the configuration.
    pub(crate) fn clear(&self) {
        let mut state = self.state();
        state.known.clear();
        state.asked.values_mut().for_each(|asked| asked.outdated = true);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const KEEP: Duration = Duration::from_secs(30);

    fn token(n: u32) -> Token {
        Token::new(crate::core::token::Kind::Client, n, 1)
    }

    fn counting() -> (Accounts, Arc<AtomicUsize>) {
        let (accounts, asked) = (Accounts::default(), Arc::new(AtomicUsize::new(0)));
        let count = asked.clone();
        accounts.serve(Box::new(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            true
        }));
        (accounts, asked)
    }

    #[test]
    fn one_question_serves_all_who_wait() {
        let (accounts, asked) = counting();
        let now = Instant::now();
        for n in 0..5 {
            accounts.ask("a", (0, token(n))).unwrap();
        }
        accounts.ask("b", (1, token(9))).unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        assert_eq!(accounts.answer("a", &Ok(None), KEEP, now).len(), 5);
        assert!(matches!(accounts.get("a", now), Some(None)));
        assert!(accounts.get("b", now).is_none());
        // The entry expires.
        assert!(accounts.get("a", now + KEEP).is_none());
        // An error is returned, but not cached.
        assert_eq!(accounts.answer("b", &Err("no".into()), KEEP, now).len(), 1);
        assert!(accounts.get("b", now).is_none());
    }

    #[test]
    fn a_wrong_password_has_it_looked_up_again_but_not_at_once() {
        let (accounts, _) = counting();
        let now = Instant::now();
        accounts.answer("a", &Ok(None), KEEP, now);
        accounts.invalidate("a", now + LEAST_AGE / 2);
        assert!(accounts.get("a", now + LEAST_AGE).is_some());
        accounts.invalidate("a", now + LEAST_AGE);
        assert!(accounts.get("a", now + LEAST_AGE).is_none());
    }

    #[test]
    fn it_is_bounded() {
        let (accounts, asked) = counting();
        let now = Instant::now();
        for n in 0..MOST_KNOWN * 2 + 10 {
            accounts.answer(&format!("u{n}"), &Ok(None), KEEP, now);
            assert!(accounts.state().known.len() <= MOST_KNOWN);
        }
        for n in 0..MOST_ASKED as u32 {
            accounts.ask(&format!("u{n}"), (0, token(n))).unwrap();
        }
        assert!(accounts.ask("one more", (0, token(1))).is_err());
        let mut taken = MOST_ASKED;
        while accounts.ask("u1", (0, token(1))).is_ok() {
            taken += 1;
        }
        assert_eq!((taken, asked.load(Ordering::Relaxed)), (MOST_WAITING, MOST_ASKED));
    }

    #[test]
    fn what_was_asked_before_a_reload_is_not_kept() {
        let (accounts, _) = counting();
        let now = Instant::now();
        accounts.ask("a", (0, token(1))).unwrap();
        accounts.clear();
        assert_eq!(accounts.answer("a", &Ok(None), KEEP, now).len(), 1);
        assert!(accounts.get("a", now).is_none());
    }

    #[test]
    fn who_has_open_connections_is_looked_up_again_when_it_is_time() {
        let (accounts, asked) = counting();
        let count = || asked.load(Ordering::Relaxed);
        let now = Instant::now();
        let good = || Arc::new(User::looked_up("a", Some("secret")).unwrap());
        accounts.answer("a", &Ok(Some(good())), KEEP, now);
        assert_eq!((accounts.account_state("a", now), count()), (AccountState::Good, 0));
        // Expired: one lookup, however often the account is read meanwhile.
        let later = now + KEEP;
        assert_eq!(
            (accounts.account_state("a", later), accounts.account_state("a", later), count()),
            (AccountState::Unknown, AccountState::Unknown, 1)
        );
        // An error keeps the entry; the lookup is repeated, but not at once.
        accounts.answer("a", &Err("down".into()), Duration::ZERO, later);
        assert_eq!((accounts.account_state("a", later + LEAST_AGE / 2), count()), (AccountState::Unknown, 1));
        assert_eq!((accounts.account_state("a", later + LEAST_AGE), count()), (AccountState::Unknown, 2));
        // No such role: valid beyond the entry's expiry.
        accounts.answer("a", &Ok(None), Duration::ZERO, later + LEAST_AGE);
        assert_eq!(accounts.account_state("a", later + LEAST_AGE * 3), AccountState::Gone);
        assert_eq!(count(), 3);
        let bare = Arc::new(User::looked_up("a", None).unwrap());
        accounts.answer("a", &Ok(Some(bare)), KEEP, later);
        assert_eq!(accounts.account_state("a", later), AccountState::NoPassword);
        // Another user is not affected.
        accounts.answer("b", &Ok(Some(good())), KEEP, later);
        assert_eq!(accounts.account_state("b", later), AccountState::Good);
    }

    #[test]
    fn nobody_is_asked_before_somebody_serves() {
        assert!(Accounts::default().ask("a", (0, token(1))).is_err());
    }
}
