//! Authentication and authorization: tokens with a role in namespaces.
//!
//! A token is the text of 32 random bytes; the configuration contains only its SHA-256. Unlike for passwords, a fast hash suffices: 256 random bits
//! cannot be guessed. Hashes are compared, so the duration of the comparison reveals nothing about a token.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::HeaderMap;
use sha2::{Digest, Sha256};

use super::error::ApiError;
use super::request::Request;

/// Role of a token; each role includes the previous ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Discover and watch.
    Read,
    /// Register, send heartbeats, change and remove instances.
    Write,
    /// Change and remove services.
    Admin,
}

impl Role {
    /// Returns the action, for messages about a caller without this role.
    pub fn act(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Write => "write",
            Role::Admin => "change services",
        }
    }
}

/// SHA-256 of a token.
pub type TokenHash = [u8; 32];

/// A token.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Name for logs and messages.
    pub name: String,
    /// Hash of the token's text.
    pub hash: TokenHash,
    /// The role that the token grants.
    pub role: Role,
    /// Namespaces in which the role is granted; `*` stands for all.
    pub namespaces: Vec<String>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("name", &self.name)
            .field("role", &self.role)
            .field("namespaces", &self.namespaces)
            .finish_non_exhaustive()
    }
}

/// Returns the hash of a token's text.
pub fn hash_of(text: &str) -> TokenHash {
    Sha256::digest(text.as_bytes()).into()
}

/// Authentication of clients.
#[derive(Debug, Clone)]
pub enum Auth {
    /// No authentication; every client may do everything. For loopback listeners only, which the caller has to ensure.
    None,
    /// Authentication by tokens.
    Tokens(HashMap<TokenHash, Arc<Token>>),
}

impl Auth {
    /// Creates authentication by `tokens`.
    pub fn tokens(tokens: impl IntoIterator<Item = Token>) -> Auth {
        Auth::Tokens(tokens.into_iter().map(|token| (token.hash, Arc::new(token))).collect())
    }

    /// Identifies the caller of a request.
    ///
    /// # Errors
    /// The token is missing or unknown.
    pub fn identify(&self, request: &Request) -> Result<Caller, ApiError> {
        // Nacos clients send an access token, or user and password with each request.
        let of_nacos = || request.param("accessToken").or_else(|| request.param("password"));
        let is_nacos = request.segments.first().is_some_and(|first| first == "nacos");
        let parameter = if is_nacos { of_nacos() } else { request.param("token") };
        self.identify_by(&request.headers, parameter)
    }

    /// Identifies the caller by the headers and the query parameter, like [`Auth::identify`].
    ///
    /// # Errors
    /// The token is missing or unknown.
    pub fn identify_by(&self, headers: &HeaderMap, parameter: Option<&str>) -> Result<Caller, ApiError> {
        match self {
            // A browser sends the origin of a page that writes. None of our pages does so; any other might: every page open on the machine can reach
            // loopback, and JSON sent as text needs no preflight.
            Auth::None if headers.contains_key(hyper::header::ORIGIN) => {
                Err(ApiError::bad("a web page may not use a registry that asks for no token"))
            }
            Auth::None => Ok(Caller { token: None }),
            Auth::Tokens(tokens) => {
                let text = presented(headers, parameter).ok_or(ApiError::Unauthorized)?;
                let token = tokens.get(&hash_of(&text)).ok_or(ApiError::Unauthorized)?;
                Ok(Caller { token: Some(Arc::clone(token)) })
            }
        }
    }
}

/// Returns the token of a request: from the bearer scheme, Consul's header or parameter, Polaris' header, or the password of basic authentication,
/// the only scheme of Eureka clients.
fn presented(headers: &HeaderMap, parameter: Option<&str>) -> Option<String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(value) = text("authorization") {
        let (scheme, rest) = value.split_once(' ')?;
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return Some(rest.to_owned());
        }
        if scheme.eq_ignore_ascii_case("basic") {
            let decoded = String::from_utf8(STANDARD.decode(rest).ok()?).ok()?;
            return decoded.split_once(':').map(|(_, password)| password.to_owned());
        }
        return None;
    }
    text("x-consul-token").or_else(|| text("x-polaris-token")).or(parameter).map(str::to_owned)
}

/// An identified caller.
#[derive(Debug, Clone)]
pub struct Caller {
    token: Option<Arc<Token>>,
}

impl Caller {
    /// Returns the name for logs.
    pub fn name(&self) -> &str {
        self.token.as_ref().map_or("-", |token| token.name.as_str())
    }

    /// Returns the token's name; `None` if no token is required.
    pub fn token(&self) -> Option<&str> {
        self.token.as_ref().map(|token| token.name.as_str())
    }

    /// True if the caller has `role` in `namespace`.
    pub fn may(&self, role: Role, namespace: &str) -> bool {
        self.token.as_ref().is_none_or(|token| {
            token.role >= role && token.namespaces.iter().any(|name| name == "*" || name == namespace)
        })
    }

    /// Returns the namespaces in which the caller has its role; `None` for all.
    pub fn namespaces(&self) -> Option<&[String]> {
        let token = self.token.as_ref()?;
        (!token.namespaces.iter().any(|name| name == "*")).then_some(&token.namespaces)
    }

    /// Returns the namespace of a token that is valid in a single one.
    pub fn only_namespace(&self) -> Option<&str> {
        match self.namespaces()? {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Checks that the caller has a role in a namespace.
    ///
    /// # Errors
    /// The caller does not have the role.
    pub fn needs(&self, role: Role, namespace: &str) -> Result<(), ApiError> {
        match &self.token {
            Some(token) if !self.may(role, namespace) => {
                Err(ApiError::Forbidden { token: token.name.clone(), act: role.act(), namespace: namespace.to_owned() })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bytes::Bytes;
    use hyper::Method;
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    fn asked(uri: &str, header: Option<(&str, &str)>) -> Request {
        let mut headers = HeaderMap::new();
        if let Some((name, value)) = header {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.insert(name, HeaderValue::from_str(value).unwrap());
        }
        Request::new(Method::GET, &uri.parse().unwrap(), headers, Bytes::new(), [127, 0, 0, 1].into()).unwrap()
    }

    #[test]
    fn who_may_what() {
        let token = |name: &str, role, namespaces: &[&str]| Token {
            name: name.into(),
            hash: hash_of(&format!("secret-{name}")),
            role,
            namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
        };
        let auth = Auth::tokens([
            token("reader", Role::Read, &["default"]),
            token("writer", Role::Write, &["default", "shop"]),
            token("root", Role::Admin, &["*"]),
        ]);
        for (uri, only) in
            [("/?token=secret-reader", Some("default")), ("/?token=secret-writer", None), ("/?token=secret-root", None)]
        {
            assert_eq!(auth.identify(&asked(uri, None)).unwrap().only_namespace(), only, "{uri}");
        }
        assert_eq!(Auth::None.identify(&asked("/", None)).unwrap().only_namespace(), None);
        let basic = format!("Basic {}", STANDARD.encode("anybody:secret-writer"));
        for (uri, header, name) in [
            ("/", Some(("authorization", "Bearer secret-reader")), Some("reader")),
            ("/", Some(("authorization", "bearer secret-reader")), Some("reader")),
            ("/", Some(("x-consul-token", "secret-writer")), Some("writer")),
            ("/", Some(("x-polaris-token", "secret-writer")), Some("writer")),
            ("/?token=secret-root", None, Some("root")),
            ("/", Some(("authorization", basic.as_str())), Some("writer")),
            ("/", None, None),
            ("/", Some(("authorization", "Bearer secret-reade")), None),
            ("/", Some(("authorization", "Bearer ")), None),
            ("/", Some(("authorization", "Digest x")), None),
            // A valid parameter does not replace an invalid bearer token.
            ("/?token=secret-root", Some(("authorization", "Bearer x")), None),
        ] {
            let request = asked(uri, header);
            let found = auth.identify(&request);
            assert_eq!(found.as_ref().map(Caller::name).ok(), name, "{uri} {header:?}");
        }
        let request = asked("/?token=secret-writer", None);
        let writer = auth.identify(&request).unwrap();
        for (role, namespace, allowed) in [
            (Role::Read, "default", true),
            (Role::Write, "shop", true),
            (Role::Admin, "shop", false),
            (Role::Read, "other", false),
        ] {
            assert_eq!(writer.needs(role, namespace).is_ok(), allowed, "{role:?} {namespace}");
        }
        let request = asked("/?token=secret-root", None);
        assert!(auth.identify(&request).unwrap().may(Role::Admin, "anything"));
        assert!(Auth::None.identify(&asked("/", None)).unwrap().may(Role::Admin, "anything"));
        let shown = format!("{auth:?}");
        assert!(!shown.contains("hash"), "a hash is nobody's business: {shown}");
    }
}
