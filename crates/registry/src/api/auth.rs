//! Authentication and authorization: tokens of the configuration, with a role in namespaces, and tokens of the store, with policies ([`super::acl`]).
//! All fronts ask one question: may a [`Caller`] have an [`Access`] to a [`Resource`] in a namespace?
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

use super::acl::{AclCaller, View};
use super::error::ApiError;
use super::request::Request;
use crate::ServiceKey;
use crate::rights::{Access, Kind, Resource};

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

/// Parses a hash of 64 hexadecimal digits.
pub fn parse_hash(text: &str) -> Option<TokenHash> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = TokenHash::default();
    for (index, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(hash)
}

/// Authentication of clients.
#[derive(Debug, Clone)]
pub enum Auth {
    /// No authentication; every client may do everything. For loopback listeners only, which the caller has to ensure.
    None,
    /// Authentication by tokens.
    Tokens(HashMap<TokenHash, Arc<Token>>),
    /// Authentication by tokens of the configuration and of the store. Callers without a token have the anonymous token's rights.
    Acl {
        /// Tokens of the configuration.
        tokens: HashMap<TokenHash, Arc<Token>>,
        /// True if what no rule decides is allowed.
        default_allow: bool,
    },
}

impl Auth {
    /// Creates authentication by `tokens`.
    pub fn tokens(tokens: impl IntoIterator<Item = Token>) -> Auth {
        Auth::Tokens(by_hash(tokens))
    }

    /// Creates authentication by `tokens`, and by tokens of the store.
    pub fn acl(tokens: impl IntoIterator<Item = Token>, default_allow: bool) -> Auth {
        Auth::Acl { tokens: by_hash(tokens), default_allow }
    }

    /// True if a caller may do what no rule decides.
    pub(super) fn allows_by_default(&self) -> bool {
        match self {
            Auth::None => true,
            Auth::Tokens(_) => false,
            Auth::Acl { default_allow, .. } => *default_allow,
        }
    }

    /// True if the configuration has a token with all rights in all namespaces.
    pub(super) fn has_root(&self) -> bool {
        let tokens = self.of_configuration().into_iter().flatten();
        tokens.into_iter().any(|(_, token)| token.may(Role::Admin, "*"))
    }

    /// True if the configuration has a token with this text.
    pub(super) fn has_token(&self, text: &str) -> bool {
        self.of_configuration().is_some_and(|tokens| tokens.contains_key(&hash_of(text)))
    }

    fn of_configuration(&self) -> Option<&HashMap<TokenHash, Arc<Token>>> {
        match self {
            Auth::None => None,
            Auth::Tokens(tokens) | Auth::Acl { tokens, .. } => Some(tokens),
        }
    }

    /// Returns the caller without a token; `None` where policies do not decide about it.
    pub(super) fn anonymous(&self, stored: impl FnOnce() -> Arc<View>) -> Option<Caller> {
        let Auth::Acl { default_allow, .. } = self else { return None };
        let caller = AclCaller { token: None, view: stored(), default_allow: *default_allow };
        Some(Caller { rights: Rights::Policies(caller) })
    }

    /// Identifies the caller of a request. `stored` returns the tokens of the store.
    ///
    /// # Errors
    /// The token is missing or unknown.
    pub(super) fn identify(&self, request: &Request, stored: impl FnOnce() -> Arc<View>) -> Result<Caller, ApiError> {
        // Nacos clients send an access token, or user and password with each request.
        let of_nacos = || request.param("accessToken").or_else(|| request.param("password"));
        let is_nacos = request.segments.first().is_some_and(|first| first == "nacos");
        let parameter = if is_nacos { of_nacos() } else { request.param("token") };
        self.identify_by(&request.headers, parameter, stored)
    }

    /// Identifies the caller by the headers and the query parameter, like [`Auth::identify`].
    ///
    /// # Errors
    /// The token is missing or unknown.
    pub(super) fn identify_by(
        &self,
        headers: &HeaderMap,
        parameter: Option<&str>,
        stored: impl FnOnce() -> Arc<View>,
    ) -> Result<Caller, ApiError> {
        match self {
            // A browser sends the origin of a page that writes. None of our pages does so; any other might: every page open on the machine can reach
            // loopback, and JSON sent as text needs no preflight.
            Auth::None if headers.contains_key(hyper::header::ORIGIN) => {
                Err(ApiError::bad("a web page may not use a registry that asks for no token"))
            }
            Auth::None => Ok(Caller { rights: Rights::Everything }),
            Auth::Tokens(tokens) => {
                let text = presented(headers, parameter).ok_or(ApiError::Unauthorized)?;
                let token = tokens.get(&hash_of(&text)).ok_or(ApiError::Unauthorized)?;
                Ok(Caller { rights: Rights::Role(Arc::clone(token)) })
            }
            Auth::Acl { tokens, default_allow } => {
                let text = presented(headers, parameter).filter(|text| !text.is_empty());
                let hash = text.as_deref().map(hash_of);
                if let Some(token) = hash.as_ref().and_then(|hash| tokens.get(hash)) {
                    return Ok(Caller { rights: Rights::Role(Arc::clone(token)) });
                }
                let view = stored();
                let token = match hash {
                    Some(hash) => Some(Arc::clone(view.by_secret(&hash).ok_or(ApiError::NoSuchToken)?)),
                    // Credentials of an unknown form are not the anonymous token's.
                    None if text.is_none() && headers.contains_key("authorization") => {
                        return Err(ApiError::NoSuchToken);
                    }
                    // As without authentication: a page in a browser has no token, and must not use the rights of those who have none.
                    None if headers.contains_key(hyper::header::ORIGIN) => {
                        return Err(ApiError::bad("a web page may not use a registry without a token"));
                    }
                    None => None,
                };
                let caller = AclCaller { token, view, default_allow: *default_allow };
                Ok(Caller { rights: Rights::Policies(caller) })
            }
        }
    }
}

impl Auth {
    /// Identifies the owner of a token by its hash, like [`Auth::identify`].
    ///
    /// # Errors
    /// The token is unknown.
    pub(super) fn identify_hash(
        &self,
        hash: &TokenHash,
        stored: impl FnOnce() -> Arc<View>,
    ) -> Result<Caller, ApiError> {
        let configured = self.of_configuration().and_then(|tokens| tokens.get(hash));
        let rights = match (self, configured) {
            (Auth::None, _) => Rights::Everything,
            (_, Some(token)) => Rights::Role(Arc::clone(token)),
            (Auth::Tokens(_), None) => return Err(ApiError::NoSuchToken),
            (Auth::Acl { default_allow, .. }, None) => {
                let view = stored();
                let token = Some(Arc::clone(view.by_secret(hash).ok_or(ApiError::NoSuchToken)?));
                Rights::Policies(AclCaller { token, view, default_allow: *default_allow })
            }
        };
        Ok(Caller { rights })
    }
}

/// Returns the token that a request of Consul's clients has.
pub(super) fn presented_by(request: &Request) -> Option<String> {
    presented(&request.headers, request.param("token"))
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

fn by_hash(tokens: impl IntoIterator<Item = Token>) -> HashMap<TokenHash, Arc<Token>> {
    tokens.into_iter().map(|token| (token.hash, Arc::new(token))).collect()
}

/// An identified caller.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    rights: Rights,
}

#[derive(Debug, Clone)]
enum Rights {
    /// Authentication is off.
    Everything,
    /// A token of the configuration.
    Role(Arc<Token>),
    /// A token of the store, or none.
    Policies(AclCaller),
}

/// Returns the role that a token of the configuration needs.
fn role_for(access: Access, resource: Resource<'_>) -> Role {
    match (resource, access) {
        (Resource::Audit | Resource::One(Kind::Acl, _), _) | (Resource::Record(_), Access::Write) => Role::Admin,
        (_, Access::Write) => Role::Write,
        (_, Access::Read | Access::List) => Role::Read,
    }
}

impl Token {
    fn may(&self, role: Role, namespace: &str) -> bool {
        self.role >= role && self.namespaces.iter().any(|name| name == "*" || name == namespace)
    }
}

impl Caller {
    /// Returns the name for logs.
    pub(super) fn name(&self) -> &str {
        match &self.rights {
            Rights::Everything => "-",
            Rights::Role(token) => &token.name,
            Rights::Policies(caller) => caller.token.as_ref().map_or("anonymous", |_| caller.accessor()),
        }
    }

    /// Returns the token's name; `None` for a caller without a token.
    pub(super) fn token(&self) -> Option<&str> {
        match &self.rights {
            Rights::Role(token) => Some(&token.name),
            Rights::Policies(caller) if caller.token.is_some() => Some(caller.accessor()),
            _ => None,
        }
    }

    /// Returns the caller's token of the store, and all others there; `None` where tokens of the store are not in use or the caller has one of the
    /// configuration.
    pub(super) fn stored(&self) -> Option<&AclCaller> {
        match &self.rights {
            Rights::Policies(caller) => Some(caller),
            _ => None,
        }
    }

    /// True if the caller has an access to a resource of a namespace.
    pub(super) fn may(&self, access: Access, resource: Resource<'_>, namespace: &str) -> bool {
        match &self.rights {
            Rights::Everything => true,
            Rights::Role(token) => token.may(role_for(access, resource), namespace),
            Rights::Policies(caller) => caller.may(access, resource, namespace),
        }
    }

    /// True if the caller may read a service.
    pub(super) fn may_read(&self, service: &ServiceKey) -> bool {
        self.may(Access::Read, Resource::service(service.name()), service.namespace())
    }

    /// True if the caller may read something in a namespace.
    pub(super) fn may_see(&self, namespace: &str) -> bool {
        match &self.rights {
            Rights::Everything => true,
            Rights::Role(token) => token.may(Role::Read, namespace),
            Rights::Policies(caller) => caller.may_any(namespace),
        }
    }

    /// True if the caller may do anything at all without a decision about a single object, so that its request is worth reading.
    pub(super) fn is_trusted(&self) -> bool {
        match &self.rights {
            Rights::Everything | Rights::Role(_) => true,
            Rights::Policies(caller) => caller.token.is_some() || caller.default_allow,
        }
    }

    /// True if the caller reads all nodes of a namespace.
    pub(super) fn sees_nodes(&self, namespace: &str) -> bool {
        match &self.rights {
            Rights::Policies(caller) => caller.sees_all_of(Kind::Node, namespace),
            _ => true,
        }
    }

    /// True if the caller reads all services and nodes of a namespace, so that an answer for all callers is one for it.
    pub(super) fn sees_all(&self, namespace: &str) -> bool {
        match &self.rights {
            Rights::Policies(caller) => caller.sees_all(namespace),
            _ => true,
        }
    }

    /// Returns the namespaces in which the caller has its role; `None` for all.
    pub(super) fn namespaces(&self) -> Option<&[String]> {
        match &self.rights {
            Rights::Everything => None,
            Rights::Role(token) => {
                (!token.namespaces.iter().any(|name| name == "*")).then_some(token.namespaces.as_slice())
            }
            Rights::Policies(caller) => caller.namespace().map(std::slice::from_ref),
        }
    }

    /// Returns the namespace of a token that is valid in a single one.
    pub(super) fn only_namespace(&self) -> Option<&str> {
        match self.namespaces()? {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Checks the role of a caller with a token of the configuration. A caller with policies passes: they decide about each object.
    ///
    /// # Errors
    /// The caller's role is not sufficient, or not in this namespace.
    pub(super) fn enters(&self, access: Access, namespace: &str) -> Result<(), ApiError> {
        match &self.rights {
            Rights::Policies(_) => Ok(()),
            _ => self.needs(access, Resource::Everything, namespace),
        }
    }

    /// Checks that the caller has an access to a resource of a namespace.
    ///
    /// # Errors
    /// The caller does not have it.
    pub(super) fn needs(&self, access: Access, resource: Resource<'_>, namespace: &str) -> Result<(), ApiError> {
        match &self.rights {
            _ if self.may(access, resource, namespace) => Ok(()),
            Rights::Everything => Ok(()),
            Rights::Role(token) => Err(ApiError::Forbidden {
                token: token.name.clone(),
                act: role_for(access, resource).act(),
                namespace: namespace.to_owned(),
            }),
            Rights::Policies(caller) => Err(ApiError::Denied(caller.refusal(access, resource))),
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
            assert_eq!(auth.identify(&asked(uri, None), Arc::default).unwrap().only_namespace(), only, "{uri}");
        }
        assert_eq!(Auth::None.identify(&asked("/", None), Arc::default).unwrap().only_namespace(), None);
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
            let found = auth.identify(&request, Arc::default);
            assert_eq!(found.as_ref().map(Caller::name).ok(), name, "{uri} {header:?}");
        }
        let request = asked("/?token=secret-writer", None);
        let writer = auth.identify(&request, Arc::default).unwrap();
        let web = Resource::service("web");
        for (access, resource, namespace, allowed) in [
            (Access::Read, web, "default", true),
            (Access::Write, web, "shop", true),
            (Access::List, Resource::key("a"), "shop", true),
            (Access::Write, Resource::Keys(""), "shop", true),
            (Access::Write, Resource::Everything, "shop", true),
            (Access::Write, Resource::Record("web"), "shop", false),
            (Access::Read, Resource::Record("web"), "shop", true),
            (Access::Read, Resource::Audit, "shop", false),
            (Access::Read, Resource::ACL, "shop", false),
            (Access::Read, web, "other", false),
        ] {
            let found = writer.needs(access, resource, namespace).is_ok();
            assert_eq!(found, allowed, "{access:?} {resource:?} {namespace}");
        }
        let request = asked("/?token=secret-root", None);
        assert!(auth.identify(&request, Arc::default).unwrap().may(Access::Write, Resource::Record("a"), "anything"));
        assert!(Auth::None.identify(&asked("/", None), Arc::default).unwrap().may(
            Access::Write,
            Resource::Record("a"),
            "anything"
        ));
        let acl = Auth::acl([token("root", Role::Admin, &["*"])], true);
        for (header, name) in [
            (Some(("authorization", "Bearer secret-root")), Ok("root")),
            (None, Ok("anonymous")),
            (Some(("x-consul-token", "")), Ok("anonymous")),
            (Some(("x-consul-token", "other")), Err(403)),
            (Some(("authorization", "Digest x")), Err(403)),
            (Some(("origin", "http://evil.example")), Err(400)),
        ] {
            let found = acl.identify(&asked("/", header), Arc::default);
            let found = found.as_ref().map(Caller::name).map_err(|error| error.status().as_u16());
            assert_eq!(found, name, "{header:?}");
        }
        let shown = format!("{auth:?}");
        assert!(!shown.contains("hash"), "a hash is nobody's business: {shown}");
    }
}
