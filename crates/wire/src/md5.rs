//! MD5 authentication, for clients and servers that are too old for SCRAM.
//!
//! A verifier is `md5` and the hexadecimal MD5 of password and user name. The answer to a challenge is `md5` and the hexadecimal MD5 of the verifier
//! (without `md5`) and the four bytes of salt that the server chose. The verifier is equivalent to the password: it is enough to log in. Source:
//! PostgreSQL documentation, "Protocol Flow", AuthenticationMD5Password.

use std::fmt;

use md5::{Digest as _, Md5};
use subtle::ConstantTimeEq as _;

/// The form in which a server stores a password (`pg_authid.rolpassword`): a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier([u8; 32]);

impl Verifier {
    /// Creates the verifier for this user's password. The user name is the salt.
    #[must_use]
    pub fn new(user: &str, password: &str) -> Verifier {
        Verifier(hash(password.as_bytes(), user.as_bytes()))
    }

    /// Parses `md5` and 32 hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Verifier> {
        let digits: [u8; 32] = text.strip_prefix("md5")?.as_bytes().try_into().ok()?;
        digits.iter().all(u8::is_ascii_hexdigit).then(|| Verifier(digits.map(|digit| digit.to_ascii_lowercase())))
    }

    /// Returns the answer to a challenge with this salt: the contents of `PasswordMessage`, without its NUL.
    #[must_use]
    pub fn answer(&self, salt: [u8; 4]) -> String {
        let digits = hash(&self.0, &salt);
        format!("md5{}", String::from_utf8_lossy(&digits))
    }

    /// True if `answer` is correct for this salt.
    #[must_use]
    pub fn accepts(&self, salt: [u8; 4], answer: &[u8]) -> bool {
        self.answer(salt).as_bytes().ct_eq(answer).into()
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("md5::Verifier(..)")
    }
}

/// Returns four random bytes.
///
/// # Errors
/// The system provides no random bytes.
pub fn salt() -> Result<[u8; 4], getrandom::Error> {
    let mut salt = [0; 4];
    getrandom::fill(&mut salt)?;
    Ok(salt)
}

/// Returns the MD5 of the two parts, in hexadecimal digits.
fn hash(one: &[u8], other: &[u8]) -> [u8; 32] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let sum = Md5::new().chain_update(one).chain_update(other).finalize();
    let mut digits = [0; 32];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(sum.iter()) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    digits
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn as_postgresql_computes_it() {
        // SELECT 'md5' || md5('secret' || 'alice'), and of that with the salt 01 02 03 04.
        let verifier = Verifier::new("alice", "secret");
        assert_eq!(verifier, Verifier::parse("md54a0a68b43b6cd5cf266fa02f196e2371").unwrap());
        let salt = [1, 2, 3, 4];
        assert_eq!(verifier.answer(salt), "md598a0412b9c31436fc53776e863350083");
        assert!(verifier.accepts(salt, verifier.answer(salt).as_bytes()));
        assert!(!verifier.accepts([1, 2, 3, 5], verifier.answer(salt).as_bytes()));
        assert!(!verifier.accepts(salt, Verifier::new("alice", "Secret").answer(salt).as_bytes()));
        assert!(!verifier.accepts(salt, Verifier::new("bob", "secret").answer(salt).as_bytes()));
        assert!(!verifier.accepts(salt, b""));
    }

    #[test]
    fn texts() {
        for (text, good) in [
            ("md50123456789abcdef0123456789ABCDEF", true),
            ("md50123456789abcdef0123456789ABCDE", false),
            ("md50123456789abcdef0123456789ABCDEFF", false),
            ("md50123456789abcdef0123456789ABCDEG", false),
            ("SCRAM-SHA-256$4096:", false),
            ("", false),
        ] {
            assert_eq!(Verifier::parse(text).is_some(), good, "{text:?}");
        }
    }
}
