//! Login, on both sides.
//!
//! ```text
//!  server: Greeting ─▶ client: [request for TLS] Response ─▶ server: OK, ERR, or "prove it in another way" ─▶ client: proof …
//! ```

use sha1::{Digest, Sha1};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use super::reply::{self, ServerError};
use super::rsa;
use super::{Cursor, ProtocolError, wrong};
use crate::dialect::Plugin;

/// Bytes of the random number that is hashed with a password.
pub const NONCE: usize = 20;

/// Bytes of the random number that hides a password in an encryption.
pub const SEED: usize = rsa::SEED;

const LONG_PASSWORD: u32 = 1;
const LONG_FLAG: u32 = 1 << 2;
const CONNECT_WITH_DB: u32 = 1 << 3;
const PROTOCOL_41: u32 = 1 << 9;
const SSL: u32 = 1 << 11;
const TRANSACTIONS: u32 = 1 << 13;
const SECURE_CONNECTION: u32 = 1 << 15;
const PLUGIN_AUTH: u32 = 1 << 19;
const PLUGIN_AUTH_LENENC: u32 = 1 << 21;

/// utf8mb4_general_ci.
const COLLATION: u8 = 45;
/// Autocommit.
const STATUS: u16 = 2;

/// The first message of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    /// `5.5.5-10.11.6-MariaDB`, for example.
    pub version: String,
    /// Number of the connection.
    pub id: u32,
    /// The random number.
    pub nonce: [u8; NONCE],
    /// True if TLS may begin.
    pub tls: bool,
    plugin: Vec<u8>,
}

impl Greeting {
    /// Makes the greeting of a server that accepts logins by one method.
    #[must_use]
    pub fn new(version: String, id: u32, nonce: [u8; NONCE], tls: bool, plugin: Plugin) -> Greeting {
        Greeting { version, id, nonce, tls, plugin: plugin.name().into() }
    }

    /// Parses the first message of a server.
    ///
    /// # Errors
    /// The server refuses the connection (an ERR), or speaks another protocol.
    pub fn parse(message: &[u8]) -> Result<Greeting, LoginError> {
        if message.first() == Some(&0xff) {
            return Err(LoginError::Refused(ServerError::parse(message)));
        }
        let read = || -> Option<Greeting> {
            let mut c = Cursor(message);
            if c.u8()? != 10 {
                return None;
            }
            let version = String::from_utf8_lossy(c.text()).into_owned();
            let id = c.u32()?;
            let mut nonce = [0; NONCE];
            nonce[..8].copy_from_slice(c.bytes(8)?);
            c.bytes(1)?;
            let low = c.number(2)? as u32;
            c.bytes(3)?;
            let capabilities = low | (c.number(2)? as u32) << 16;
            c.bytes(11)?;
            if capabilities & PROTOCOL_41 == 0 || capabilities & SECURE_CONNECTION == 0 {
                return None;
            }
            nonce[8..].copy_from_slice(c.bytes(12)?);
            // The terminating zero.
            let _ = c.bytes(1);
            let plugin = if capabilities & PLUGIN_AUTH != 0 { c.text().to_vec() } else { Plugin::Native.name().into() };
            Some(Greeting { version, id, nonce, tls: capabilities & SSL != 0, plugin })
        };
        let text = "the server does not begin as MySQL 4.1 and later and MariaDB do (protocol 10)";
        read().ok_or_else(|| LoginError::Protocol(wrong(text)))
    }

    /// Encodes the greeting.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let tls = if self.tls { SSL } else { 0 };
        let capabilities = LONG_PASSWORD
            | LONG_FLAG
            | CONNECT_WITH_DB
            | PROTOCOL_41
            | TRANSACTIONS
            | SECURE_CONNECTION
            | PLUGIN_AUTH
            | tls;
        let mut out = vec![10];
        out.extend_from_slice(self.version.as_bytes());
        out.push(0);
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.nonce[..8]);
        out.push(0);
        out.extend_from_slice(&(capabilities as u16).to_le_bytes());
        out.push(COLLATION);
        out.extend_from_slice(&STATUS.to_le_bytes());
        out.extend_from_slice(&((capabilities >> 16) as u16).to_le_bytes());
        out.push(NONCE as u8 + 1);
        out.extend_from_slice(&[0; 10]);
        out.extend_from_slice(&self.nonce[8..]);
        out.push(0);
        out.extend_from_slice(&self.plugin);
        out.push(0);
        out
    }
}

/// A failure of a login, or of a server's greeting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The server's error.
    #[error("{0}")]
    Refused(ServerError),
    /// A violation of the protocol.
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    /// The server wants an unsupported authentication plugin.
    #[error("the server wants a login by {plugin:?}; mysql_native_password and caching_sha2_password are understood")]
    Plugin {
        /// Name of the plugin.
        plugin: String,
    },
    /// The server wants the password itself, others could read the connection, and the password cannot be encrypted.
    #[error(
        "the server wants the password itself, and gives no RSA key to encrypt it with ({0}): set [relay.upstream.tls], or have the user log in \
         once from elsewhere so that the server remembers"
    )]
    InClear(&'static str),
}

fn client_capabilities(tls: bool) -> u32 {
    let tls = if tls { SSL } else { 0 };
    LONG_PASSWORD | LONG_FLAG | PROTOCOL_41 | TRANSACTIONS | SECURE_CONNECTION | PLUGIN_AUTH | tls
}

fn response_head(tls: bool) -> Vec<u8> {
    let mut out = client_capabilities(tls).to_le_bytes().to_vec();
    out.extend_from_slice(&(1_u32 << 30).to_le_bytes());
    out.push(COLLATION);
    out.extend_from_slice(&[0; 23]);
    out
}

/// Encodes a client's request for TLS.
#[must_use]
pub fn tls_request() -> Vec<u8> {
    response_head(true)
}

/// Protection of a connection against readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privacy {
    /// None: the network.
    None,
    /// Protected by TLS.
    Tls,
    /// Protected as a Unix socket.
    Local,
}

/// A client's request for the server's RSA key (`caching_sha2_password`).
const REQUEST_KEY: u8 = 2;

/// A client's side of a login, from the greeting on.
pub struct ClientLogin {
    user: String,
    password: String,
    nonce: [u8; NONCE],
    plugin: Vec<u8>,
    privacy: Privacy,
    /// Random; for an encryption of the password.
    seed: [u8; SEED],
    /// True while the server's RSA key is awaited.
    wants_key: bool,
}

impl std::fmt::Debug for ClientLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientLogin").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Next step after a server's message.
#[derive(Debug, PartialEq, Eq)]
pub enum Login {
    /// Send this message, numbered after the server's packet.
    Send(Vec<u8>),
    /// Wait for the next message.
    Wait,
    /// The login is complete.
    In,
}

impl ClientLogin {
    /// Starts the answer to a greeting. `seed`: random bytes.
    #[must_use]
    pub fn new(greeting: &Greeting, user: &str, password: &str, privacy: Privacy, seed: [u8; SEED]) -> ClientLogin {
        let (nonce, plugin) = (greeting.nonce, greeting.plugin.clone());
        ClientLogin { user: user.into(), password: password.into(), nonce, plugin, privacy, seed, wants_key: false }
    }

    /// Encodes the first message of the client.
    ///
    /// # Errors
    /// The name contains a zero byte.
    pub fn response(&self) -> Result<Vec<u8>, LoginError> {
        if self.user.bytes().any(|byte| byte == 0) {
            return Err(LoginError::Protocol(wrong("a user's name with a zero byte")));
        }
        let (plugin, proof) = match self.proof() {
            Some(proof) => (&self.plugin[..], proof),
            // The server will name the user's own plugin.
            None => (Plugin::Native.name().as_bytes(), Vec::new()),
        };
        let mut out = response_head(self.privacy == Privacy::Tls);
        out.extend_from_slice(self.user.as_bytes());
        out.push(0);
        out.push(proof.len() as u8);
        out.extend_from_slice(&proof);
        out.extend_from_slice(plugin);
        out.push(0);
        Ok(out)
    }

    /// Computes the proof. None: the plugin is unknown.
    fn proof(&self) -> Option<Vec<u8>> {
        let password = self.password.as_bytes();
        match &self.plugin[..] {
            _ if password.is_empty() => Some(Vec::new()),
            plugin if plugin == Plugin::Native.name().as_bytes() => Some(native_proof(&self.nonce, password)),
            plugin if plugin == Plugin::Sha2.name().as_bytes() => Some(sha2_proof(&self.nonce, password)),
            _ => None,
        }
    }

    /// Takes a message of the server and returns the next step.
    ///
    /// # Errors
    /// See [`LoginError`].
    pub fn received(&mut self, message: &[u8]) -> Result<Login, LoginError> {
        match message {
            [0x00, ..] => Ok(Login::In),
            [0xff, ..] => Err(LoginError::Refused(ServerError::parse(message))),
            [0xfe, rest @ ..] if !rest.is_empty() => {
                let mut c = Cursor(rest);
                self.plugin = c.text().to_vec();
                let nonce = c.bytes(NONCE).and_then(|nonce| nonce.try_into().ok());
                match (nonce, self.proof_with(nonce)) {
                    (Some(_), Some(proof)) => Ok(Login::Send(proof)),
                    _ => Err(LoginError::Plugin { plugin: String::from_utf8_lossy(&self.plugin).into_owned() }),
                }
            }
            // caching_sha2_password: the server has the password cached.
            [0x01, 0x03] => Ok(Login::Wait),
            // It has not, and requests the password.
            [0x01, 0x04] if self.privacy != Privacy::None => {
                let mut password = self.password.clone().into_bytes();
                password.push(0);
                Ok(Login::Send(password))
            }
            [0x01, 0x04] => {
                self.wants_key = true;
                Ok(Login::Send(vec![REQUEST_KEY]))
            }
            [0x01, key @ ..] if std::mem::take(&mut self.wants_key) => {
                let mut password = self.password.clone().into_bytes();
                password.push(0);
                // The server takes the nonce off again: a recorded answer is of no use in another login.
                password.iter_mut().zip(self.nonce.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
                rsa::encrypt(key, &password, &self.seed).map(Login::Send).map_err(LoginError::InClear)
            }
            _ => Err(LoginError::Protocol(wrong("an answer to the login that is none"))),
        }
    }

    fn proof_with(&mut self, nonce: Option<[u8; NONCE]>) -> Option<Vec<u8>> {
        self.nonce = nonce?;
        self.proof()
    }
}

fn xor(a: &[u8], b: &[u8]) -> Vec<u8> {
    a.iter().zip(b).map(|(a, b)| a ^ b).collect()
}

/// Computes `SHA1(password) xor SHA1(nonce, SHA1(SHA1(password)))`.
fn native_proof(nonce: &[u8; NONCE], password: &[u8]) -> Vec<u8> {
    let once = Sha1::digest(password);
    let mask = Sha1::new().chain_update(nonce).chain_update(Sha1::digest(once)).finalize();
    xor(&once, &mask)
}

/// Computes `SHA256(password) xor SHA256(SHA256(SHA256(password)), nonce)`.
fn sha2_proof(nonce: &[u8; NONCE], password: &[u8]) -> Vec<u8> {
    let once = Sha256::digest(password);
    let mask = Sha256::new().chain_update(Sha256::digest(once)).chain_update(nonce).finalize();
    xor(&once, &mask)
}

/// A password as a server stores it to check proofs.
#[derive(Clone, PartialEq, Eq)]
pub enum Stored {
    /// The SHA-1 of its SHA-1, as in `mysql.user` behind the `*`.
    Native([u8; 20]),
    /// The SHA-256 of its SHA-256, as in the cache of `caching_sha2_password`.
    Sha2([u8; 32]),
}

impl std::fmt::Debug for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stored")
    }
}

impl Stored {
    /// Makes the stored form of a password.
    #[must_use]
    pub fn of(plugin: Plugin, password: &str) -> Stored {
        match plugin {
            Plugin::Native => Stored::Native(Sha1::digest(Sha1::digest(password.as_bytes())).into()),
            Plugin::Sha2 => Stored::Sha2(Sha256::digest(Sha256::digest(password.as_bytes())).into()),
        }
    }

    /// True if `proof` is the right answer to `nonce`. Takes the same time for each wrong proof.
    #[must_use]
    pub fn accepts(&self, nonce: &[u8; NONCE], proof: &[u8]) -> bool {
        match self {
            Stored::Native(stored) if proof.len() == stored.len() => {
                let mask = Sha1::new().chain_update(nonce).chain_update(stored).finalize();
                let outer: [u8; 20] = Sha1::digest(xor(proof, &mask)).into();
                outer.ct_eq(stored).into()
            }
            Stored::Sha2(stored) if proof.len() == stored.len() => {
                let mask = Sha256::new().chain_update(stored).chain_update(nonce).finalize();
                let outer: [u8; 32] = Sha256::digest(xor(proof, &mask)).into();
                outer.ct_eq(stored).into()
            }
            _ => false,
        }
    }
}

/// A client's first message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientHello {
    /// A request for TLS, after which the response follows.
    Tls,
    /// The client's user and proof.
    Response(Response),
}

/// A client's user and proof.
#[derive(Clone, PartialEq, Eq)]
pub struct Response {
    /// Name of the user.
    pub user: String,
    /// The answer to the random number.
    pub proof: Vec<u8>,
    /// Name of the method that the proof is for.
    pub plugin: String,
}

impl std::fmt::Debug for Response {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Response").field("user", &self.user).field("plugin", &self.plugin).finish_non_exhaustive()
    }
}

impl ClientHello {
    /// Parses a client's first message.
    ///
    /// # Errors
    /// The message violates the protocol, or is of one before 4.1.
    pub fn parse(message: &[u8]) -> Result<ClientHello, ProtocolError> {
        let read = || -> Option<ClientHello> {
            let mut c = Cursor(message);
            let capabilities = c.u32()?;
            if capabilities & PROTOCOL_41 == 0 || capabilities & SECURE_CONNECTION == 0 {
                return None;
            }
            c.bytes(28)?;
            if capabilities & SSL != 0 && c.0.is_empty() {
                return Some(ClientHello::Tls);
            }
            let user = String::from_utf8_lossy(c.text()).into_owned();
            let proof = if capabilities & PLUGIN_AUTH_LENENC != 0 {
                c.packed_bytes()?
            } else {
                let n = c.u8()?;
                c.bytes(n.into())?
            };
            let proof = proof.to_vec();
            if capabilities & CONNECT_WITH_DB != 0 {
                c.text();
            }
            let named = if capabilities & PLUGIN_AUTH == 0 { Plugin::Native.name().as_bytes() } else { c.text() };
            let plugin = String::from_utf8_lossy(named).into_owned();
            Some(ClientHello::Response(Response { user, proof, plugin }))
        };
        read().ok_or_else(|| wrong("the client does not answer as clients of MySQL 4.1 and later do"))
    }
}

/// Encodes a server's request for a proof by another method with a random number.
#[must_use]
pub fn switch_to(plugin: Plugin, nonce: &[u8; NONCE]) -> Vec<u8> {
    let mut out = vec![0xfe];
    out.extend_from_slice(plugin.name().as_bytes());
    out.push(0);
    out.extend_from_slice(nonce);
    out.push(0);
    out
}

/// Encodes what a server sends between a right proof and its OK; None: nothing.
#[must_use]
pub fn proof_accepted(plugin: Plugin) -> Option<Vec<u8>> {
    // caching_sha2_password: the password is in the cache.
    (plugin == Plugin::Sha2).then(|| vec![0x01, 0x03])
}

/// Encodes a server's refusal of a client, in MariaDB's words.
#[must_use]
pub fn access_denied(user: &str, host: &str, with_password: bool) -> Vec<u8> {
    let using = if with_password { "YES" } else { "NO" };
    reply::error(1045, "28000", &format!("Access denied for user '{user}'@'{host}' (using password: {using})"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const N: [u8; NONCE] = *b"abcdefghijklmnopqrst";

    fn login(greeting: &Greeting, password: &str) -> Response {
        let client = ClientLogin::new(greeting, "app", password, Privacy::None, [7; SEED]);
        let ClientHello::Response(response) = ClientHello::parse(&client.response().unwrap()).unwrap() else {
            panic!()
        };
        response
    }

    #[test]
    fn a_client_proves_that_it_knows_the_password() {
        for plugin in [Plugin::Native, Plugin::Sha2] {
            let greeting = Greeting::new("5.5.5-10.11.6-MariaDB".into(), 7, N, false, plugin);
            assert_eq!(Greeting::parse(&greeting.encode()).unwrap(), greeting);
            let stored = Stored::of(plugin, "secret");
            let response = login(&greeting, "secret");
            assert!(response.plugin == plugin.name() && response.user == "app" && stored.accepts(&N, &response.proof));
            assert!(!stored.accepts(b"another random number"[..20].try_into().unwrap(), &response.proof));
            for password in ["", "Secret", "secret "] {
                assert!(!stored.accepts(&N, &login(&greeting, password).proof), "{password:?}");
            }
            assert!(!format!("{response:?}{stored:?}").contains("secret"));
        }
    }

    #[test]
    fn what_a_server_may_ask_for() {
        let greeting = Greeting::new("8.0.36".into(), 7, N, false, Plugin::Native);
        let mut sha2 = vec![0xfe];
        sha2.extend_from_slice(b"caching_sha2_password\0abcdefghijklmnopqrst\0");
        let mut other = vec![0xfe];
        other.extend_from_slice(b"dialog\0abcdefghijklmnopqrst\0");
        let of = |privacy| ClientLogin::new(&greeting, "app", "secret", privacy, [7; SEED]);
        let proof = native_proof(&N, b"secret");
        assert_eq!(of(Privacy::None).received(&switch_to(Plugin::Native, &N)), Ok(Login::Send(proof)));
        let Ok(Login::Send(proof)) = of(Privacy::None).received(&sha2) else { panic!() };
        assert_eq!(proof.len(), 32);
        assert_eq!(of(Privacy::None).received(&other), Err(LoginError::Plugin { plugin: "dialog".into() }));
        let mut encrypted = of(Privacy::None);
        assert_eq!(encrypted.received(&[1, 4]), Ok(Login::Send(vec![2])));
        let key = [&[1][..], rsa::tests::PEM.as_bytes()].concat();
        let Ok(Login::Send(proof)) = encrypted.received(&key) else { panic!() };
        assert_eq!(proof.len(), 256);
        assert!(encrypted.received(&key).is_err(), "nobody has asked");
        let mut refused = of(Privacy::None);
        assert_eq!(refused.received(&[1, 4]), Ok(Login::Send(vec![2])));
        assert!(matches!(refused.received(b"\x01no key"), Err(LoginError::InClear(_))));
        assert_eq!(of(Privacy::Tls).received(&[1, 4]), Ok(Login::Send(b"secret\0".to_vec())));
        assert_eq!(of(Privacy::Tls).received(&[1, 3]), Ok(Login::Wait));
        assert_eq!(of(Privacy::Tls).received(&[0, 0, 0]), Ok(Login::In));
        let Err(LoginError::Refused(error)) = of(Privacy::Tls).received(&access_denied("app", "h", true)) else {
            panic!()
        };
        assert_eq!((error.code, error.state.as_str()), (1045, "28000"));
        for nothing in [&[][..], &[0xfe], &[7]] {
            assert!(of(Privacy::Tls).received(nothing).is_err());
        }
    }

    #[test]
    fn a_request_for_tls_is_told_from_a_response() {
        assert_eq!(ClientHello::parse(&tls_request()), Ok(ClientHello::Tls));
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..120), good: bool) {
            if good && bytes.len() > 4 {
                bytes[0] = 10;
                bytes[1] = 0x82;
            }
            let _ = (Greeting::parse(&bytes), ClientHello::parse(&bytes));
            let _ = ClientLogin::new(&Greeting::new(String::new(), 1, N, true, Plugin::Sha2), "a", "b", Privacy::Local, [7; SEED]).received(&bytes);
        }
    }
}
