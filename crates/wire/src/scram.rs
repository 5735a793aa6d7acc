//! SCRAM-SHA-256 (RFC 5802, RFC 7677) as in PostgreSQL; both sides, bytes in and bytes out.
//!
//! ```text
//!  Client                                                     Server
//!  first()            ── n,,n=,r=<cn> ─────────────────────▶  first()     no secret is used yet
//!  final_()           ◀─ r=<cn><sn>,s=<salt>,i=<rounds> ────              proof = computed from the password only
//!                     ── c=biws,r=<cn><sn>,p=<proof> ──────▶  last()      wrong proof: `WrongPassword`
//!  verify()           ◀─ v=<signature> ────────────────────              the server knew the verifier
//! ```
//!
//! Invariants:
//! - The texts here are the SASL payloads, without the protocol messages around them.
//! - The user name in the exchange is ignored, as in PostgreSQL: the startup packet has named the user.
//! - Channel binding is that of RFC 5929 by the server's certificate (`tls-server-end-point`), under TLS: see [`Server::offer_binding`] and
//!   [`Client::bound`]. If a client reports that it could bind but had no offer (`y`), although the server made one, the offer was tampered with: the
//!   client is refused.
//! - Secrets are compared in constant time, and never appear in `Debug` output or an error.
//! - Deriving keys from a password takes milliseconds ([`SaltedKeys::derive`]), every other step microseconds. An event loop gives the client cached
//!   [`SaltedKeys`], and derives keys only after the server's salt has changed.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

mod keys;
mod saslprep;
#[cfg(test)]
mod tests;
mod text;

use keys::check_rounds_and_salt;
pub use keys::{SaltedKeys, Verifier, Verifiers};
use text::{Attributes, check_nonce, decode, decode_key, parse_iterations, text};

/// Name of the mechanism without channel binding.
pub const MECHANISM: &str = "SCRAM-SHA-256";

/// Name of the mechanism with channel binding: a man in the middle of two TLS connections cannot pass the exchange on.
pub const MECHANISM_PLUS: &str = "SCRAM-SHA-256-PLUS";

/// The gs2 header of a client that binds.
const BOUND: &str = "p=tls-server-end-point,,";

/// Iterations of a verifier created here: PostgreSQL's default.
pub const DEFAULT_ITERATIONS: u32 = 4096;

/// Maximum number of accepted iterations: a hostile server could otherwise keep its client busy for minutes.
pub const MAX_ITERATIONS: u32 = 1_000_000;

/// Maximum length of an accepted SASL payload, in bytes. Usual ones are below 300.
pub const MAX_MESSAGE: usize = 4096;

/// Maximum length of a password, in bytes: PostgreSQL's own limit of an authentication message.
pub const MAX_PASSWORD: usize = 65_535;

/// Maximum length of a salt, in bytes. PostgreSQL's has 16.
pub const MAX_SALT: usize = 1024;

const SALT_LEN: usize = 16;
/// Bytes of a nonce; 24 characters in base64, as in PostgreSQL.
const NONCE_LEN: usize = 18;
const KEY_LEN: usize = 32;

type Key = [u8; KEY_LEN];

/// Error that ends an exchange. No variant contains a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A message or a stored verifier violates the format of the RFC.
    #[error("malformed SCRAM data: {0}")]
    Malformed(&'static str),
    /// The message requests an unsupported feature.
    #[error("unsupported in SCRAM-SHA-256 here: {0}")]
    Unsupported(&'static str),
    /// The client's proof is wrong, or the user does not exist: both look the same on purpose.
    #[error("the password does not match")]
    WrongPassword,
    /// The server could not prove that it knows the verifier: it may be an impostor.
    #[error("wrong server signature: the server does not know this password; is it the right address?")]
    ServerSignature,
    /// The server ended the exchange with an error of its own (RFC 5802, `server-error-value`).
    #[error("the server refused the SCRAM exchange: {0}")]
    Refused(&'static str),
    /// The client has only derived keys, and the server uses another salt or iteration count.
    #[error("the SCRAM keys are for another salt or iteration count: log in with the password again")]
    StaleKeys,
    /// A verifier has another salt or iteration count than the ones it is to be used with.
    #[error(
        "the SCRAM verifier has another salt or iteration count than the first one: one login can offer only one salt"
    )]
    OtherSalt,
    /// A step was called twice, or too early: a bug of the caller.
    #[error("SCRAM step out of order: {0}")]
    OutOfOrder(&'static str),
    /// The system provides no random bytes.
    #[error("no random bytes from the system: {0}")]
    Random(getrandom::Error),
}

// === Server ===

/// The side with the verifier. One value per login: [`Server::first`], then [`Server::last`], each once.
pub struct Server {
    verifiers: Verifiers,
    /// True for a user that does not exist: takes the same steps and never succeeds.
    mock: bool,
    /// Hash of the server's certificate, if binding was offered.
    end_point: Option<Vec<u8>>,
    /// True if the client chose to bind.
    plus: bool,
    state: ServerState,
}

enum ServerState {
    Start,
    Challenged {
        /// Base64 text that the final message has to repeat: the gs2 header of the first message (`biws`, `eSws`) and, if the client binds, the
        /// certificate's hash.
        binding: String,
        /// Both nonces, which the final message has to repeat.
        nonce: String,
        /// `client-first-message-bare,server-first-message,`: all of AuthMessage but its last part.
        transcript: Vec<u8>,
    },
    Done(Option<SaltedKeys>),
}

impl Server {
    /// Creates a server that expects the client to prove knowledge of the password of this verifier, or of one of several.
    pub fn new(verifiers: impl Into<Verifiers>) -> Self {
        Self { verifiers: verifiers.into(), mock: false, end_point: None, plus: false, state: ServerState::Start }
    }

    /// Creates a server for a user that does not exist or has no verifier. The exchange looks like any other and ends in [`Error::WrongPassword`], so
    /// it does not reveal which users exist. `secret` is random and constant for the life of the process (better: the same in all processes behind
    /// one address), so that a user's salt stays the same.
    pub fn mock(user: &str, secret: &[u8]) -> Self {
        let salt = hmac(secret, user.as_bytes())[..SALT_LEN].to_vec();
        let verifier = Verifier { iterations: DEFAULT_ITERATIONS, salt, stored_key: [0; 32], server_key: [0; 32] };
        Self { verifiers: verifier.into(), mock: true, end_point: None, plus: false, state: ServerState::Start }
    }

    /// Offers [`MECHANISM_PLUS`] besides [`MECHANISM`]. `end_point`: the hash of the certificate that the client has seen.
    #[must_use]
    pub fn offer_binding(mut self, end_point: Option<Vec<u8>>) -> Self {
        self.end_point = end_point;
        self
    }

    /// Returns the mechanisms to offer, best first.
    pub fn mechanisms(&self) -> &'static [&'static str] {
        if self.end_point.is_some() { &[MECHANISM_PLUS, MECHANISM] } else { &[MECHANISM] }
    }

    /// Sets the mechanism that the client has chosen.
    ///
    /// # Errors
    /// [`Error::Unsupported`]: it was not offered.
    pub fn choose(&mut self, mechanism: &[u8]) -> Result<(), Error> {
        if !self.mechanisms().iter().any(|offered| offered.as_bytes() == mechanism) {
            return Err(Error::Unsupported("a mechanism that was not offered"));
        }
        self.plus = mechanism == MECHANISM_PLUS.as_bytes();
        Ok(())
    }

    /// Takes the client's first message, and returns the server's first. The mechanism is [`MECHANISM`] unless [`choose`](Server::choose) has set
    /// another one.
    ///
    /// # Errors
    /// [`Error::Malformed`]; [`Error::Unsupported`] for channel binding, an authorization identity or a mandatory extension; [`Error::Random`];
    /// [`Error::OutOfOrder`].
    pub fn first(&mut self, client_first: &[u8]) -> Result<Vec<u8>, Error> {
        let nonce = new_nonce()?;
        self.first_with(client_first, &nonce)
    }

    fn first_with(&mut self, client_first: &[u8], server_nonce: &str) -> Result<Vec<u8>, Error> {
        if !matches!(std::mem::replace(&mut self.state, ServerState::Done(None)), ServerState::Start) {
            return Err(Error::OutOfOrder("the client's first message was already taken"));
        }
        let message = text(client_first)?;
        let (binding, rest) = match (message.as_bytes().first(), &self.end_point) {
            (Some(b'p'), Some(end_point)) if self.plus => {
                // The rest of the header is the authorization identity, which must be empty.
                let binding = BASE64.encode([BOUND.as_bytes(), end_point].concat());
                match message.strip_prefix("p=tls-server-end-point,") {
                    Some(rest) => (binding, Some(rest)),
                    None => return Err(Error::Unsupported("a channel binding other than tls-server-end-point")),
                }
            }
            (_, Some(_)) if self.plus => return Err(Error::Malformed("SCRAM-SHA-256-PLUS without channel binding")),
            (Some(b'p'), _) => return Err(Error::Unsupported("channel binding in SCRAM-SHA-256")),
            (Some(b'n'), _) => ("biws".to_owned(), message.strip_prefix("n,")),
            (Some(b'y'), Some(_)) => {
                return Err(Error::Malformed("the client believes that channel binding was not offered: it was"));
            }
            // The client could bind and believes that the server cannot, which is true.
            (Some(b'y'), None) => ("eSws".to_owned(), message.strip_prefix("y,")),
            _ => return Err(Error::Malformed("the channel binding flag is none of n, y, p")),
        };
        let rest = rest.ok_or(Error::Malformed("no comma after the channel binding flag"))?;
        if rest.starts_with("a=") {
            return Err(Error::Unsupported("an authorization identity"));
        }
        let bare = rest.strip_prefix(',').ok_or(Error::Malformed("no comma after the authorization identity"))?;

        let mut attributes = Attributes(bare);
        attributes.refuse_mandatory_extension()?;
        attributes.take('n')?;
        let client_nonce = attributes.take('r')?;
        attributes.skip_extensions()?;
        check_nonce(client_nonce)?;

        let nonce = format!("{client_nonce}{server_nonce}");
        let (salt, iterations) = self.verifiers.salt_and_iterations();
        let reply = format!("r={nonce},s={},i={iterations}", BASE64.encode(salt));
        let transcript = format!("{bare},{reply},").into_bytes();
        self.state = ServerState::Challenged { binding, nonce, transcript };
        Ok(reply.into_bytes())
    }

    /// Takes the client's final message and returns the server's final message: the login has succeeded.
    ///
    /// # Errors
    /// [`Error::WrongPassword`], always for [`Server::mock`]; [`Error::Malformed`]; [`Error::OutOfOrder`].
    pub fn last(&mut self, client_final: &[u8]) -> Result<Vec<u8>, Error> {
        let ServerState::Challenged { binding, nonce, mut transcript } =
            std::mem::replace(&mut self.state, ServerState::Done(None))
        else {
            return Err(Error::OutOfOrder("the client's final message before its first, or twice"));
        };
        let message = text(client_final)?;
        // The proof is the last attribute; extensions may precede it and are signed.
        let (signed, proof) =
            message.rsplit_once(",p=").ok_or(Error::Malformed("the client's final message has no proof"))?;
        let proof = decode_key(proof.as_bytes(), "the proof is not 32 bytes in base64")?;
        let mut attributes = Attributes(signed);
        if attributes.take('c')? != binding {
            return Err(Error::Malformed("the channel binding is not the one the exchange began with"));
        }
        if attributes.take('r')? != nonce {
            return Err(Error::Malformed("the nonce is not the one of this exchange"));
        }
        attributes.skip_extensions()?;

        transcript.extend_from_slice(signed.as_bytes());
        // Every verifier is tried and every signature computed, so that success and failure take the same steps up to here.
        let mut proved = None;
        for verifier in self.verifiers.iter() {
            let client_key = xor(&proof, &hmac(&verifier.stored_key, &transcript));
            let given: Key = Sha256::digest(client_key).into();
            let signature = hmac(&verifier.server_key, &transcript);
            if bool::from(given.ct_eq(&verifier.stored_key)) {
                proved = Some((verifier, client_key, signature));
            }
        }
        let Some((verifier, client_key, signature)) = proved.filter(|_| !self.mock) else {
            return Err(Error::WrongPassword);
        };
        self.state = ServerState::Done(Some(SaltedKeys {
            salt: verifier.salt.clone(),
            iterations: verifier.iterations,
            client_key,
            server_key: verifier.server_key,
        }));
        Ok(format!("v={}", BASE64.encode(signature)).into_bytes())
    }

    /// Returns the keys that the client has proved, once [`Server::last`] has succeeded. They are enough to log in as this user to any server with
    /// the same verifier, without the password.
    pub fn into_keys(self) -> Option<SaltedKeys> {
        match self.state {
            ServerState::Done(keys) => keys,
            ServerState::Start | ServerState::Challenged { .. } => None,
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            ServerState::Start => "start",
            ServerState::Challenged { .. } => "challenged",
            ServerState::Done(None) => "failed",
            ServerState::Done(Some(_)) => "succeeded",
        };
        f.debug_struct("Server").field("state", &state).finish_non_exhaustive()
    }
}

// === Client ===

/// Credential of a client.
#[derive(Clone)]
pub enum Credential {
    /// A password, and the keys of an earlier login with it, if any. They save the derivation while the server's salt stays the same.
    Password {
        /// The password in clear text, not yet prepared.
        password: Arc<str>,
        /// The keys from [`Client::keys`] of an earlier login.
        cached: Option<Arc<SaltedKeys>>,
    },
    /// Keys only, from [`Server::into_keys`] of the user's own login.
    Keys(Arc<SaltedKeys>),
}

impl Credential {
    /// Creates the credential of a password without cached keys.
    pub fn password(password: impl Into<Arc<str>>) -> Self {
        Self::Password { password: password.into(), cached: None }
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Password { .. } => "Credential::Password(..)",
            Self::Keys(_) => "Credential::Keys(..)",
        })
    }
}

/// The side that logs in. One value per login: [`Client::first`], [`Client::final_`], [`Client::verify`], each once.
pub struct Client {
    credential: Credential,
    /// `client-first-message-bare`; ends with the nonce.
    bare: String,
    nonce_at: usize,
    binding: Binding,
    state: ClientState,
}

/// Channel binding of the client.
enum Binding {
    /// The client cannot bind.
    None,
    /// The client could bind, but the server has not offered to.
    NotOffered,
    /// The client binds to the certificate with this hash.
    EndPoint(Vec<u8>),
}

enum ClientState {
    Start,
    /// The proof was sent; `signature` is the expected answer of the server.
    Proved {
        keys: Arc<SaltedKeys>,
        signature: Key,
    },
    Done(Option<Arc<SaltedKeys>>),
}

impl Client {
    /// Starts a login.
    ///
    /// # Errors
    /// [`Error::Random`].
    pub fn new(credential: Credential) -> Result<Self, Error> {
        Ok(Self::with_nonce(credential, "", &new_nonce()?))
    }

    fn with_nonce(credential: Credential, user: &str, nonce: &str) -> Self {
        let bare = format!("n={user},r={nonce}");
        Self { credential, nonce_at: bare.len() - nonce.len(), bare, binding: Binding::None, state: ClientState::Start }
    }

    /// Sets the channel binding of a login under TLS. `end_point`: the hash of the server's certificate. `offered`: the server offers
    /// [`MECHANISM_PLUS`], which then is the mechanism to choose ([`Client::mechanism`]).
    #[must_use]
    pub fn bound(mut self, end_point: Vec<u8>, offered: bool) -> Self {
        self.binding = if offered { Binding::EndPoint(end_point) } else { Binding::NotOffered };
        self
    }

    /// Returns the mechanism to choose.
    pub fn mechanism(&self) -> &'static str {
        match self.binding {
            Binding::EndPoint(_) => MECHANISM_PLUS,
            Binding::None | Binding::NotOffered => MECHANISM,
        }
    }

    fn gs2_header(&self) -> &'static str {
        match self.binding {
            Binding::None => "n,,",
            Binding::NotOffered => "y,,",
            Binding::EndPoint(_) => BOUND,
        }
    }

    /// Returns the client's first message.
    pub fn first(&self) -> Vec<u8> {
        format!("{}{}", self.gs2_header(), self.bare).into_bytes()
    }

    /// Takes the server's first message and returns the client's final message. Derives the keys if none are cached for the server's salt and
    /// iteration count; see [`SaltedKeys::derive`] for the cost.
    ///
    /// # Errors
    /// [`Error::Malformed`], [`Error::Unsupported`], [`Error::StaleKeys`], [`Error::OutOfOrder`].
    pub fn final_(&mut self, server_first: &[u8]) -> Result<Vec<u8>, Error> {
        if !matches!(std::mem::replace(&mut self.state, ClientState::Done(None)), ClientState::Start) {
            return Err(Error::OutOfOrder("the server's first message was already taken"));
        }
        let message = text(server_first)?;
        let mut attributes = Attributes(message);
        attributes.refuse_mandatory_extension()?;
        let nonce = attributes.take('r')?;
        let salt = decode(attributes.take('s')?.as_bytes(), "the server's salt is not base64")?;
        let iterations = parse_iterations(attributes.take('i')?.as_bytes())?;
        attributes.skip_extensions()?;
        check_nonce(nonce)?;
        match nonce.strip_prefix(&self.bare[self.nonce_at..]) {
            None => return Err(Error::Malformed("the server's nonce does not begin with the client's")),
            Some("") => return Err(Error::Malformed("the server added nothing to the nonce")),
            Some(_) => {}
        }
        check_rounds_and_salt(iterations, &salt)?;

        let keys = self.keys_for(&salt, iterations)?;
        let end_point = match &self.binding {
            Binding::EndPoint(end_point) => end_point.as_slice(),
            Binding::None | Binding::NotOffered => &[],
        };
        let bound = BASE64.encode([self.gs2_header().as_bytes(), end_point].concat());
        let signed = format!("c={bound},r={nonce}");
        let transcript = format!("{},{message},{signed}", self.bare);
        let stored_key: Key = Sha256::digest(keys.client_key).into();
        let proof = xor(&keys.client_key, &hmac(&stored_key, transcript.as_bytes()));
        let signature = hmac(&keys.server_key, transcript.as_bytes());
        self.state = ClientState::Proved { keys, signature };
        Ok(format!("{signed},p={}", BASE64.encode(proof)).into_bytes())
    }

    fn keys_for(&self, salt: &[u8], iterations: u32) -> Result<Arc<SaltedKeys>, Error> {
        match &self.credential {
            Credential::Keys(keys) | Credential::Password { cached: Some(keys), .. } if keys.fits(salt, iterations) => {
                Ok(Arc::clone(keys))
            }
            Credential::Keys(_) => Err(Error::StaleKeys),
            Credential::Password { password, .. } => Ok(Arc::new(SaltedKeys::derive(password, salt, iterations)?)),
        }
    }

    /// Takes the server's final message. Only after `Ok` is the server known to be the right one.
    ///
    /// # Errors
    /// [`Error::ServerSignature`], [`Error::Refused`], [`Error::Malformed`], [`Error::OutOfOrder`].
    pub fn verify(&mut self, server_final: &[u8]) -> Result<(), Error> {
        let ClientState::Proved { keys, signature } = std::mem::replace(&mut self.state, ClientState::Done(None))
        else {
            return Err(Error::OutOfOrder("the server's final message before its first, or twice"));
        };
        let mut attributes = Attributes(text(server_final)?);
        if attributes.0.starts_with("e=") {
            return Err(Error::Refused(known_refusal(attributes.take('e')?)));
        }
        let given = decode_key(attributes.take('v')?.as_bytes(), "the signature is not 32 bytes in base64")?;
        attributes.skip_extensions()?;
        if !bool::from(given.ct_eq(&signature)) {
            return Err(Error::ServerSignature);
        }
        self.state = ClientState::Done(Some(keys));
        Ok(())
    }

    /// Returns the keys of the login, once [`Client::verify`] has succeeded, for the caller to cache.
    pub fn keys(&self) -> Option<&Arc<SaltedKeys>> {
        match &self.state {
            ClientState::Done(keys) => keys.as_ref(),
            ClientState::Start | ClientState::Proved { .. } => None,
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            ClientState::Start => "start",
            ClientState::Proved { .. } => "proved",
            ClientState::Done(None) => "failed",
            ClientState::Done(Some(_)) => "succeeded",
        };
        f.debug_struct("Client").field("state", &state).finish_non_exhaustive()
    }
}

/// Returns one of the RFC's own error values, since the text may end up in a log and comes from the peer.
fn known_refusal(value: &str) -> &'static str {
    const KNOWN: [&str; 9] = [
        "invalid-encoding",
        "extensions-not-supported",
        "invalid-proof",
        "channel-bindings-dont-match",
        "server-does-support-channel-binding",
        "channel-binding-not-supported",
        "unsupported-channel-binding-type",
        "unknown-user",
        "no-resources",
    ];
    KNOWN.into_iter().find(|known| *known == value).unwrap_or("other-error")
}

// === The arithmetic ===

fn hmac(key: &[u8], message: &[u8]) -> Key {
    #[allow(clippy::expect_used)] // HMAC takes a key of any length.
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

fn xor(left: &Key, right: &Key) -> Key {
    std::array::from_fn(|i| left[i] ^ right[i])
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(Error::Random)?;
    Ok(bytes)
}

fn new_nonce() -> Result<String, Error> {
    Ok(BASE64.encode(random::<NONCE_LEN>()?))
}
