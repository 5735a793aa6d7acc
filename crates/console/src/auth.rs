//! Tokens, sessions, and how often somebody may try.
//!
//! A token is 32 random bytes in text; only its SHA-256 is configured. A fast hash is right for what nobody can guess. The
//! browser shows a token once and gets a session: a random cookie, of which only the hash is kept here.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// How long a session lasts.
const SESSION: Duration = Duration::from_secs(12 * 3600);
/// Most sessions; the oldest goes.
const MOST_SESSIONS: usize = 256;
/// Failed logins that an address has at once, and the time after which it has one more.
const TRIES: u32 = 5;
const NEXT_TRY: Duration = Duration::from_secs(5);
/// Addresses that are remembered; of more, the one that failed longest ago is forgotten.
const MOST_ADDRESSES: usize = 1024;

/// What somebody may do; each includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Look.
    Viewer,
    /// Act.
    Operator,
}

/// A configured token.
#[derive(Clone)]
pub(crate) struct Token {
    pub(crate) name: String,
    pub(crate) hash: [u8; 32],
    pub(crate) role: Role,
}

/// Who is let in.
pub(crate) struct Auth {
    tokens: Vec<Token>,
    /// Without a token one may look.
    anonymous: bool,
    sessions: Mutex<HashMap<[u8; 32], Session>>,
    failures: Mutex<HashMap<IpAddr, Failures>>,
}

/// Somebody who has shown a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) role: Role,
    until: Instant,
}

/// Tries that an address has spent, as of a moment.
#[derive(Debug, Clone, Copy)]
struct Failures {
    spent: u32,
    at: Instant,
}

/// Why somebody is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No such token.
    Wrong,
    /// Too many wrong ones; try after so many seconds.
    TooMany(u64),
    /// The system has no random numbers.
    NoRandom,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hash_of(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// 64 hexadecimal digits.
pub(crate) fn parse_hash(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = [0; 32];
    for (index, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(hash)
}

impl Auth {
    pub(crate) fn new(tokens: Vec<Token>, anonymous: bool) -> Auth {
        Auth { tokens, anonymous, sessions: Mutex::default(), failures: Mutex::default() }
    }

    /// Whether anybody can log in at all.
    pub(crate) fn has_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Makes a session for who shows a token; its cookie's value.
    pub(crate) fn login(&self, text: &str, from: IpAddr, now: Instant) -> Result<(String, Session), Denied> {
        let from = network(from);
        let mut failures = lock(&self.failures);
        let spent = failures.get(&from).map_or(0, |failures| failures.spent_at(now));
        if spent >= TRIES {
            return Err(Denied::TooMany(NEXT_TRY.as_secs()));
        }
        let presented = hash_of(text);
        // All are compared, each in constant time.
        let found = self
            .tokens
            .iter()
            .fold(None, |found, token| if bool::from(token.hash.ct_eq(&presented)) { Some(token) } else { found });
        let Some(token) = found else {
            if failures.len() >= MOST_ADDRESSES && !failures.contains_key(&from) {
                let oldest = failures.iter().min_by_key(|(_, failures)| failures.at).map(|(address, _)| *address);
                oldest.and_then(|oldest| failures.remove(&oldest));
            }
            failures.insert(from, Failures { spent: spent + 1, at: now });
            return Err(Denied::Wrong);
        };
        drop(failures);
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(|_| Denied::NoRandom)?;
        let cookie: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let session = Session { name: token.name.clone(), role: token.role, until: now + SESSION };
        let mut sessions = lock(&self.sessions);
        sessions.retain(|_, session| session.until > now);
        if sessions.len() >= MOST_SESSIONS {
            let oldest = sessions.iter().min_by_key(|(_, session)| session.until).map(|(hash, _)| *hash);
            oldest.and_then(|oldest| sessions.remove(&oldest));
        }
        sessions.insert(hash_of(&cookie), session.clone());
        Ok((cookie, session))
    }

    /// Ends a session.
    pub(crate) fn logout(&self, cookie: &str) {
        lock(&self.sessions).remove(&hash_of(cookie));
    }

    /// The session of a cookie. What is looked up is a hash: how long that takes says nothing about a cookie.
    pub(crate) fn session(&self, cookie: Option<&str>, now: Instant) -> Option<Session> {
        lock(&self.sessions).get(&hash_of(cookie?)).filter(|session| session.until > now).cloned()
    }

    /// Whether who has this session, or none, may do what a role may.
    pub(crate) fn may(&self, session: Option<&Session>, role: Role) -> bool {
        session.is_some_and(|session| session.role >= role) || (role == Role::Viewer && self.anonymous)
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth").field("anonymous", &self.anonymous).finish_non_exhaustive()
    }
}

impl Failures {
    fn spent_at(self, now: Instant) -> u32 {
        let back = now.saturating_duration_since(self.at).as_secs() / NEXT_TRY.as_secs();
        self.spent.saturating_sub(u32::try_from(back).unwrap_or(u32::MAX))
    }
}

/// Whoever has one address of IPv6 has 2^64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn auth() -> Auth {
        let token = |name: &str, role| Token { name: name.into(), hash: hash_of(&format!("kp_{name}")), role };
        Auth::new(vec![token("eve", Role::Viewer), token("olga", Role::Operator)], false)
    }

    #[test]
    fn a_session_is_what_its_token_is() {
        let (auth, now) = (auth(), Instant::now());
        let from = IpAddr::from([127, 0, 0, 1]);
        for (token, role) in [("kp_eve", Role::Viewer), ("kp_olga", Role::Operator)] {
            let (cookie, _) = auth.login(token, from, now).unwrap();
            let session = auth.session(Some(&cookie), now).unwrap();
            assert_eq!(session.role, role);
            assert!(auth.may(Some(&session), Role::Viewer));
            assert_eq!(auth.may(Some(&session), Role::Operator), role == Role::Operator);
            assert_eq!(auth.session(Some(&cookie), now + SESSION), None, "it is over");
            auth.logout(&cookie);
            assert_eq!(auth.session(Some(&cookie), now), None);
        }
        assert!(!auth.may(None, Role::Viewer));
        assert!(Auth::new(Vec::new(), true).may(None, Role::Viewer));
        assert!(!Auth::new(Vec::new(), true).may(None, Role::Operator));
        assert_eq!(auth.session(Some(""), now), None);
    }

    #[test]
    fn guessing_is_slow_and_only_for_who_guesses() {
        let (auth, now) = (auth(), Instant::now());
        let (guesser, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        for _ in 0..TRIES {
            assert_eq!(auth.login("kp_x", guesser, now).unwrap_err(), Denied::Wrong);
        }
        // A right one is not even looked at: otherwise the limit would be none.
        assert!(matches!(auth.login("kp_olga", guesser, now), Err(Denied::TooMany(_))));
        auth.login("kp_olga", other, now).unwrap();
        auth.login("kp_olga", guesser, now + NEXT_TRY).unwrap();
        let v6 = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last]);
        for last in 0..TRIES as u16 {
            assert_eq!(auth.login("kp_x", v6(last), now).unwrap_err(), Denied::Wrong);
        }
        assert!(matches!(auth.login("kp_x", v6(99), now), Err(Denied::TooMany(_))));
    }

    #[test]
    fn neither_grows_without_bound() {
        let (auth, now) = (auth(), Instant::now());
        for index in 0..3000u32 {
            let from = IpAddr::from((0x0a00_0000 + index).to_be_bytes());
            let _ = auth.login("kp_x", from, now);
            let _ = auth.login("kp_eve", from, now);
        }
        assert_eq!((lock(&auth.failures).len(), lock(&auth.sessions).len()), (MOST_ADDRESSES, MOST_SESSIONS));
    }
}
