//! Tokens, sessions, and the limit on login attempts.
//!
//! A token is 32 random bytes in text; only its SHA-256 is configured. A fast hash suffices for a secret that cannot be guessed. The browser sends
//! the token once and gets a session: a random cookie, of which only the hash is stored here.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Lifetime of a session.
const SESSION: Duration = Duration::from_secs(12 * 3600);
/// Maximum number of sessions; beyond it, the oldest is removed.
const MOST_SESSIONS: usize = 256;
/// Failed logins that an address may make at once, and the time after which it may make another.
const TRIES: u32 = 5;
const NEXT_TRY: Duration = Duration::from_secs(5);
/// Maximum number of addresses remembered; beyond it, the one whose last failure is oldest is removed.
const MOST_ADDRESSES: usize = 1024;

/// The role of a token; each includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// May view.
    Viewer,
    /// May also act.
    Operator,
}

/// A configured token.
#[derive(Clone)]
pub(crate) struct Token {
    pub(crate) name: String,
    pub(crate) hash: [u8; 32],
    pub(crate) role: Role,
}

/// Tokens, sessions and failed logins.
pub(crate) struct Auth {
    tokens: Vec<Token>,
    /// True if a client without a token may view.
    anonymous: bool,
    sessions: Mutex<HashMap<[u8; 32], Session>>,
    failures: Mutex<HashMap<IpAddr, Failures>>,
}

/// The session of a client that has presented a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) role: Role,
    until: Instant,
}

/// Attempts that an address has used, at a given time.
#[derive(Debug, Clone, Copy)]
struct Failures {
    spent: u32,
    at: Instant,
}

/// Reason why a login is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The token does not exist.
    Wrong,
    /// Too many wrong tokens; the value is the number of seconds to wait.
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

/// Parses 64 hexadecimal digits.
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

    /// True if there is any token to log in with.
    pub(crate) fn has_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Creates a session for a valid token; returns the cookie's value and the session.
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

    /// Returns the session of a cookie. The look-up is by a hash, so its duration reveals nothing about a cookie.
    pub(crate) fn session(&self, cookie: Option<&str>, now: Instant) -> Option<Session> {
        lock(&self.sessions).get(&hash_of(cookie?)).filter(|session| session.until > now).cloned()
    }

    /// True if the owner of this session, or an anonymous client, has the rights of a role.
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

/// Returns the network of an address: an owner of one IPv6 address has 2^64 of them.
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
        // Even a valid token is refused: otherwise there would be no limit.
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
