//! Keys derived from a password, for the client, and verifiers for the server.

use std::fmt;

use base64::Engine as _;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::text::{decode, decode_key, parse_iterations};
use super::{
    BASE64, DEFAULT_ITERATIONS, Error, KEY_LEN, MAX_ITERATIONS, MAX_MESSAGE, MAX_PASSWORD, MAX_SALT, SALT_LEN, hmac,
    random, saslprep,
};

const PREFIX: &str = "SCRAM-SHA-256$";

/// Keys derived from a password with one salt and iteration count. They are enough to log in to any server with that verifier: a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct SaltedKeys {
    /// The decoded salt, at most [`MAX_SALT`] bytes.
    pub salt: Vec<u8>,
    /// Number of iterations, 1 to [`MAX_ITERATIONS`].
    pub iterations: u32,
    /// HMAC(SaltedPassword, "Client Key").
    pub client_key: [u8; 32],
    /// HMAC(SaltedPassword, "Server Key").
    pub server_key: [u8; 32],
}

impl SaltedKeys {
    /// Runs PBKDF2 over the prepared password: 1 to 5 ms for 4096 iterations, too long for an event loop to do often.
    ///
    /// # Errors
    /// [`Error::Malformed`] if salt, iterations or password exceed their limits.
    pub fn derive(password: &str, salt: &[u8], iterations: u32) -> Result<Self, Error> {
        check_rounds_and_salt(iterations, salt)?;
        if password.len() > MAX_PASSWORD {
            return Err(Error::Malformed("the password is longer than 65535 bytes"));
        }
        let prepared = saslprep::prepare(password);
        let mut salted = [0; KEY_LEN];
        pbkdf2::pbkdf2_hmac::<Sha256>(prepared.as_bytes(), salt, iterations, &mut salted);
        Ok(Self {
            salt: salt.to_vec(),
            iterations,
            client_key: hmac(&salted, b"Client Key"),
            server_key: hmac(&salted, b"Server Key"),
        })
    }

    pub(super) fn fits(&self, salt: &[u8], iterations: u32) -> bool {
        self.iterations == iterations && self.salt == salt
    }
}

impl fmt::Debug for SaltedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SaltedKeys").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

// === Verifier ===

/// The form in which a server stores a password (PostgreSQL: `pg_authid.rolpassword`). It serves to check a client, and is not enough to log in. It
/// can be attacked offline, so it has no `Display`; [`Verifier::encode`] writes it, on purpose.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    /// Number of iterations, 1 to [`MAX_ITERATIONS`].
    pub iterations: u32,
    /// The decoded salt, at most [`MAX_SALT`] bytes.
    pub salt: Vec<u8>,
    /// SHA-256 of the client key.
    pub stored_key: [u8; 32],
    /// HMAC(SaltedPassword, "Server Key").
    pub server_key: [u8; 32],
}

impl Verifier {
    /// Parses PostgreSQL's form: `SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>`, the last three in base64.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the text is of another kind (`md5…`, a plain password), [`Error::Malformed`] if a part is missing, not base64 or out
    /// of bounds.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let rest = text.strip_prefix(PREFIX).ok_or(Error::Unsupported("a verifier that is not SCRAM-SHA-256"))?;
        if text.len() > MAX_MESSAGE {
            return Err(Error::Malformed("the verifier is too long"));
        }
        let (rounds, keys) = rest.split_once('$').ok_or(Error::Malformed("the verifier has no keys"))?;
        let (iterations, salt) = rounds.split_once(':').ok_or(Error::Malformed("the verifier has no salt"))?;
        let (stored_key, server_key) = keys.split_once(':').ok_or(Error::Malformed("the verifier has one key only"))?;
        let verifier = Self {
            iterations: parse_iterations(iterations.as_bytes())?,
            salt: decode(salt.as_bytes(), "the verifier's salt is not base64")?,
            stored_key: decode_key(stored_key.as_bytes(), "the verifier's stored key is not 32 bytes in base64")?,
            server_key: decode_key(server_key.as_bytes(), "the verifier's server key is not 32 bytes in base64")?,
        };
        check_rounds_and_salt(verifier.iterations, &verifier.salt)?;
        Ok(verifier)
    }

    /// Creates a verifier with a random salt and [`DEFAULT_ITERATIONS`], at the cost of [`SaltedKeys::derive`].
    ///
    /// # Errors
    /// [`Error::Malformed`] for an empty or overlong password, [`Error::Random`].
    pub fn from_password(password: &str) -> Result<Self, Error> {
        refuse_empty(password)?;
        let salt: [u8; SALT_LEN] = random()?;
        Ok(Self::from(&SaltedKeys::derive(password, &salt, DEFAULT_ITERATIONS)?))
    }

    /// Returns PostgreSQL's form of the verifier, for [`Verifier::parse`].
    pub fn encode(&self) -> String {
        format!(
            "{PREFIX}{}:{}${}:{}",
            self.iterations,
            BASE64.encode(&self.salt),
            BASE64.encode(self.stored_key),
            BASE64.encode(self.server_key)
        )
    }

    /// True if this verifier was made from the password, which came in clear text. Costs as much as [`SaltedKeys::derive`].
    pub fn matches(&self, password: &str) -> bool {
        SaltedKeys::derive(password, &self.salt, self.iterations)
            .is_ok_and(|keys| bool::from(Self::from(&keys).stored_key.ct_eq(&self.stored_key)))
    }
}

impl From<&SaltedKeys> for Verifier {
    fn from(keys: &SaltedKeys) -> Self {
        Self {
            iterations: keys.iterations,
            salt: keys.salt.clone(),
            stored_key: Sha256::digest(keys.client_key).into(),
            server_key: keys.server_key,
        }
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

/// Verifiers of which a client has to match one: at least one, and all with the same salt and iteration count. A server sends the salt before it
/// knows which password the client has, so one login can try only verifiers that share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verifiers {
    first: Verifier,
    others: Vec<Verifier>,
}

impl Verifiers {
    /// Adds a verifier.
    ///
    /// # Errors
    /// [`Error::OtherSalt`]: its salt or iteration count differs.
    pub fn add(&mut self, verifier: Verifier) -> Result<(), Error> {
        if (&verifier.salt, verifier.iterations) != (&self.first.salt, self.first.iterations) {
            return Err(Error::OtherSalt);
        }
        self.others.push(verifier);
        Ok(())
    }

    /// Adds a verifier of this password, with the salt and the iteration count of the first one. Costs as much as [`SaltedKeys::derive`].
    ///
    /// # Errors
    /// [`Error::Malformed`] for an empty or overlong password.
    pub fn add_password(&mut self, password: &str) -> Result<(), Error> {
        refuse_empty(password)?;
        let keys = SaltedKeys::derive(password, &self.first.salt, self.first.iterations)?;
        self.add(Verifier::from(&keys))
    }

    /// Returns the salt and the iteration count of all verifiers.
    pub fn salt_and_iterations(&self) -> (&[u8], u32) {
        (&self.first.salt, self.first.iterations)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Verifier> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

impl From<Verifier> for Verifiers {
    fn from(first: Verifier) -> Self {
        Self { first, others: Vec::new() }
    }
}

fn refuse_empty(password: &str) -> Result<(), Error> {
    if password.is_empty() {
        return Err(Error::Malformed("the password is empty: PostgreSQL never lets such a role in"));
    }
    Ok(())
}

pub(super) fn check_rounds_and_salt(iterations: u32, salt: &[u8]) -> Result<(), Error> {
    if !(1..=MAX_ITERATIONS).contains(&iterations) {
        return Err(Error::Malformed("the iteration count is not within 1 and 1000000"));
    }
    if salt.is_empty() || salt.len() > MAX_SALT {
        return Err(Error::Malformed("the salt is empty or longer than 1024 bytes"));
    }
    Ok(())
}
