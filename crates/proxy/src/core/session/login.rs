//! From accept to a client's first `ReadyForQuery`.
//!
//! ```text
//!  Startup ──SSLRequest: S──▶ Securing ──handshake──▶ Startup ──login packet──▶ Login ──▶ Ready
//!     └──first byte 0x16───────▲                         └──cancel request──▶ Cancelling
//! ```

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, PoisonError};

use wire::startup::{self, End, Startup, StartupError, V3_0, V3_2};
use wire::{Severity, Sqlstate, md5, message, oauth, payload, scram};

use super::bearer::Awaited;
use super::cancel::passed_on;
use super::client::{LookedUp, Phase, ReadBound, Step};
use super::cluster_routing::NOWHERE;
use super::replication::{NODE, Replication, Tunnel};
use crate::accounts::LookupResult;
use crate::config::Access;
use crate::config::{AuthMethod, PoolMode, RouteTo};
use crate::core::directory::CLUSTER;
use crate::core::pool::{NodeRequest, PoolKey};
use crate::core::{Core, CoreMessage, Effect, SMALL_MAX, Secure};
use crate::demand::{Certificate, Demand};
use crate::hba;
use crate::settings::{Database, User};
use secret::Secret;

/// First byte of a TLS handshake record. No startup packet begins with this byte: its length would be beyond the limit.
const TLS_HANDSHAKE: u8 = 0x16;

/// Parameter by which a login tells a client that it has reached a proxy, and its value.
pub(in crate::core) const VERSION: (&str, &str) = ("kingpost.version", env!("CARGO_PKG_VERSION"));

/// Bits of `Phase::Startup::refused`.
const REFUSED_SSL: u8 = 1;
const REFUSED_GSS: u8 = 1 << 1;

/// Most users whose credentials are remembered for logins to servers. Each has proved to know them, so there are as many such accounts.
const MOST_PASSED: usize = 1 << 17;

/// State of a login until it is done.
pub(in crate::core) struct Login {
    pub key: PoolKey,
    /// The protocol version: 3.0 or 3.2.
    pub version: u32,
    /// The parameters of the startup packet.
    pub params: Vec<(String, String)>,
    /// Permissions of the operator, set for a login to the console. Decided when the login began, by the settings that the proof is checked against.
    pub console: Option<Access>,
    /// Set for a replication connection.
    pub tunnel: Option<Box<Tunnel>>,
    /// Authentication that the client must complete. Decided when the login began, too.
    pub demand: Arc<Demand>,
    pub exchange: Exchange,
}

/// Progress of the authentication.
pub(in crate::core) enum Exchange {
    /// The method will be used, once the user's account has been looked up.
    Asked,
    /// `SASLInitialResponse` is awaited; the user, if there is one of that name.
    First(Box<scram::Server>, Option<Arc<User>>),
    /// `SASLResponse` is awaited.
    Last(Box<scram::Server>, Option<Arc<User>>),
    /// `PasswordMessage` with the MD5 hash for this salt is awaited. If the user has no MD5 verifier, no hash is
    /// accepted.
    Md5(Option<Arc<User>>, [u8; 4]),
    /// `PasswordMessage` with the password in clear is awaited.
    Clear(Option<Arc<User>>),
    /// `GSSResponse` with the token is awaited.
    Token(Option<Arc<User>>),
    /// A token is awaited (OAUTHBEARER).
    Bearer(Option<Arc<User>>, Awaited),
    /// The client was sent the reason for which its token is not accepted, or the issuers of tokens; its answer to that is awaited, and then it is
    /// refused.
    Farewell,
    /// An external authenticator is checking this password or token; a GSSAPI token is in base64.
    Verifying(Option<Arc<User>>, Secret),
    /// Authenticated; a server connection is awaited, to learn the parameters for the greeting.
    Proved,
}

impl Exchange {
    /// Returns the name of the awaited response, in PostgreSQL's words.
    fn awaits(&self) -> &'static str {
        match self {
            Exchange::Md5(..) | Exchange::Clear(_) => "password",
            Exchange::Token(_) => "GSS",
            _ => "SASL",
        }
    }
}

/// Credentials that a client has proved to know.
pub(super) enum Proved {
    /// The keys of the verifier that matched.
    Scram(Option<scram::SaltedKeys>),
    /// The MD5 verifier that matched.
    Md5(md5::Verifier),
    /// The password, in clear.
    Password(Secret),
}

impl Core {
    /// Handles a packet before the first message.
    pub(in crate::core) fn startup(&mut self, c: usize, bytes: &[u8]) -> Step {
        let client = &self.clients[c];
        if bytes.first() == Some(&TLS_HANDSHAKE)
            && client.identity.is_none()
            && client.has_not_asked()
            && let Some(acceptor) = self.offered_tls(c)
        {
            return self.begin_tls(c, acceptor, true);
        }
        match startup::read(bytes) {
            Ok(None) => Step::More,
            Ok(Some((packet, used))) => match packet {
                Startup::Ssl | Startup::Gss => self.asked_to_encrypt(c, &packet, bytes.len() > used, used),
                packet if self.leads_elsewhere(c, &packet) => Step::Blocked,
                Startup::Cancel { pid, secret } => {
                    self.request_cancel(c, pid, secret);
                    if self.clients.contains(c) { Step::Used(used) } else { Step::Gone }
                }
                Startup::Login { version, parameters } => {
                    let token = self.clients[c].token;
                    self.begin_login(c, version, parameters);
                    if self.is_client(token) { Step::Used(used) } else { Step::Gone }
                }
            },
            Err(error) => self.refuse_start(c, error),
        }
    }

    /// Closes a connection whose first packet is none of PostgreSQL's, with PostgreSQL's answer.
    fn refuse_start(&mut self, c: usize, error: StartupError) -> Step {
        self.metrics.clients_refused.add(1);
        self.metrics.protocol_errors.add(1);
        tracing::debug!(%error, "a connection that began with no start-up packet is closed");
        self.write_client(c, |out| error.write(out));
        self.close_client(c);
        Step::Gone
    }

    /// Answers SSLRequest and GSSENCRequest. Each may come once, and before TLS.
    fn asked_to_encrypt(&mut self, c: usize, packet: &Startup<'_>, more: bool, used: usize) -> Step {
        let kind = if *packet == Startup::Ssl { REFUSED_SSL } else { REFUSED_GSS };
        let encrypted = self.clients[c].identity.is_some();
        let Phase::Startup { refused, .. } = &mut self.clients[c].phase else { return Step::Blocked };
        if encrypted || *refused & kind != 0 {
            return packet.as_version().map_or(Step::Blocked, |error| self.refuse_start(c, error));
        }
        let acceptor = self.offered_tls(c).filter(|_| kind == REFUSED_SSL);
        if acceptor.is_none() {
            if let Phase::Startup { refused, .. } = &mut self.clients[c].phase {
                *refused |= kind;
            }
            self.write_client(c, |out| out.push(b'N'));
        }
        if more {
            // Bytes sent in clear behind SSLRequest would be taken for a part of the encrypted stream. PostgreSQL refuses
            // them where there is no encryption, too.
            let of = if kind == REFUSED_SSL { "SSL" } else { "GSSAPI encryption" };
            self.violation(c, &format!("received unencrypted data after {of} request"));
            return Step::Gone;
        }
        let Some(acceptor) = acceptor else { return Step::Used(used) };
        self.write_client(c, |out| out.push(b'S'));
        match self.begin_tls(c, acceptor, false) {
            Step::Again => Step::Used(used),
            step => step,
        }
    }

    /// Returns the TLS that this client may start, if there is any.
    fn offered_tls(&self, c: usize) -> Option<Arc<tls::Acceptor>> {
        self.settings.tls.clone().filter(|_| !self.clients[c].local)
    }

    /// Has the driver start TLS. `direct`: the client began without SSLRequest.
    fn begin_tls(&mut self, c: usize, acceptor: Arc<tls::Acceptor>, direct: bool) -> Step {
        let client = &mut self.clients[c];
        client.phase = Phase::Securing;
        self.effects.push(Effect::Secure { token: client.token, with: Secure::Accept { acceptor, direct } });
        Step::Again
    }

    /// Returns the reason for which this client's TLS or certificate is not accepted, before it authenticates; `None` if it is.
    fn tls_refusal(&self, c: usize, user: &str) -> Option<String> {
        let (client, tls) = (&self.clients[c], self.settings.tls.as_ref()?);
        match &client.identity {
            None if tls.mode == tls::ListenMode::Require && !client.local => {
                Some("this address takes connections with TLS only: connect with sslmode=require or stronger".into())
            }
            Some(identity)
                if tls.client_cert == tls::ClientCert::VerifyFull && identity.common_name.as_deref() != Some(user) =>
            {
                Some(certificate_refusal(identity, user))
            }
            _ => None,
        }
    }

    fn begin_login(&mut self, c: usize, version: u32, parameters: &[u8]) {
        let (mut user, mut database) = (None, None);
        let mut replication = None;
        let mut settings: Vec<(String, String)> = Vec::new();
        let mut unknown: Vec<&[u8]> = Vec::new();
        for parameter in startup::parameters(parameters) {
            let (name, value) = match parameter {
                Ok(pair) => pair,
                Err(End::Whole | End::Broken) => break,
            };
            if name.starts_with(b"_pq_.") {
                unknown.push(name);
                continue;
            }
            let (Ok(name), Ok(value)) = (std::str::from_utf8(name), std::str::from_utf8(value)) else {
                return self.fail_login(c, Sqlstate::PROTOCOL_VIOLATION, "a startup parameter is not UTF-8");
            };
            match name {
                "user" => user = Some(value.to_owned()),
                "database" => database = Some(value.to_owned()),
                "replication" => match Replication::read(value) {
                    Ok(wanted) => replication = wanted,
                    Err(()) => {
                        let text = format!("startup parameter replication: {value:?} is not true, false or database");
                        return self.fail_login(c, Sqlstate::INVALID_PARAMETER_VALUE, &text);
                    }
                },
                "options" => match startup::options(value) {
                    // The packet's own parameters win over those in `options`, in any order.
                    Ok(pairs) => drop(settings.splice(0..0, pairs)),
                    Err(word) => {
                        let text =
                            format!("startup parameter options: {word:?} is not supported: expected -c name=value");
                        return self.fail_login(c, Sqlstate::FEATURE_NOT_SUPPORTED, &text);
                    }
                },
                _ => settings.push((name.to_owned(), value.to_owned())),
            }
        }
        let Some(user) = user.filter(|user| !user.is_empty()) else {
            return self.fail_login(
                c,
                Sqlstate::INVALID_AUTHORIZATION,
                "no PostgreSQL user name specified in startup packet",
            );
        };
        let named = database.filter(|name| !name.is_empty());
        let database = named.clone().unwrap_or_else(|| user.clone());
        let physical = replication == Some(Replication::Physical);
        let tunnel = replication.map(|replication| {
            // Servers do not get the parameters for the proxy.
            let is_own = |name: &str| name == NODE || name == CLUSTER;
            let (own, parameters): (Vec<_>, Vec<_>) =
                std::mem::take(&mut settings).into_iter().partition(|(name, _)| is_own(name));
            let node = own.into_iter().rev().find_map(|(name, node)| (name == NODE).then_some(node));
            Box::new(Tunnel { replication, database: named, parameters, node })
        });
        if version > V3_2 || !unknown.is_empty() {
            self.write_client(c, |out| message::negotiate_version(out, version.min(V3_2), &unknown));
        }
        let version = if version >= V3_2 { V3_2 } else { V3_0 };
        if self.draining {
            return self.fail_login(c, Sqlstate::CANNOT_CONNECT_NOW, "the proxy is shutting down");
        }
        if let Some(text) = self.led_nowhere(c, parameters) {
            return self.fail_login(c, NOWHERE, &text);
        }
        let console = tunnel.is_none() && self.is_console(&database);
        if let Err(text) = self.room_for(c, console, &database, &user) {
            return self.fail_login(c, Sqlstate::TOO_MANY_CONNECTIONS, &text);
        }
        if let Some(text) = self.tls_refusal(c, &user) {
            return self.fail_login(c, Sqlstate::INVALID_AUTHORIZATION, &text);
        }
        let known = self.settings.account(&user, console).cloned().map(Arc::new);
        // A physical replication connection is to no database, whichever its client has named.
        let ruled = if physical { hba::REPLICATION } else { &database };
        let demand = match self.demand(c, ruled, &user, known.as_deref()) {
            Ok(demand) => demand,
            Err(text) => return self.fail_login(c, Sqlstate::INVALID_AUTHORIZATION, &text),
        };
        let method = demand.method;
        let access = console.then(|| self.settings.access(&user));
        let unproved = !console && self.settings.looks_up && known.as_ref().is_none_or(|known| !known.has_secret());
        let key = PoolKey { database: database.into(), user: user.into() };
        let exchange = Exchange::Asked;
        let login = Login { key, version, params: settings, console: access, tunnel, demand, exchange };
        let name = login.key.user.clone();
        self.clients[c].phase = Phase::Login(Box::new(login));
        self.clients[c].looked_up = match method {
            AuthMethod::ScramSha256 | AuthMethod::Md5 if unproved => LookedUp::ByPassword,
            // A listed user needs no more than its certificate, its user of the system, the answer of an external authenticator, or trust.
            method if (method.proves_otherwise() || method == AuthMethod::Trust) && unproved && known.is_none() => {
                LookedUp::ByName
            }
            _ => LookedUp::No,
        };
        if self.clients[c].looked_up == LookedUp::No {
            return self.challenge(c, known);
        }
        match self.shared.accounts.get(&name, self.now) {
            Some(found) => self.challenge(c, found),
            None => self.effects.push(Effect::LookUp { client: self.clients[c].token, user: name }),
        }
    }

    /// Returns the authentication that a client must complete: that of the first rule of `proxy.hba` that matches it or, without rules, that of its
    /// user or of `proxy.auth`. `Err`: the reason for which the client is refused.
    fn demand(&self, c: usize, database: &str, user: &str, known: Option<&User>) -> Result<Arc<Demand>, String> {
        let Some(rules) = &self.settings.hba else {
            let own = known.and_then(|known| known.demand.as_ref());
            return Ok(own.unwrap_or(&self.settings.demand).clone());
        };
        let client = &self.clients[c];
        let identity = client.identity.as_deref();
        // The listener says whether a client came over a Unix socket; an unknown address does not.
        let address = client.address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let address = (!client.local).then_some(address);
        let attempt = hba::Attempt { address, tls: identity.is_some(), database, user };
        let who = || {
            let from = address.map_or("a Unix socket".to_owned(), |address| address.to_canonical().to_string());
            let tls = if identity.is_some() { "with TLS" } else { "without TLS" };
            format!("from {from}, user {user:?}, database {database:?}, {tls}")
        };
        let Some(rule) = rules.first(&attempt) else {
            return Err(format!("no rule of proxy.hba lets in a client {}", who()));
        };
        let Some(demand) = &rule.demand else {
            return Err(format!("a rule of proxy.hba rejects clients {}", who()));
        };
        let shown = identity.filter(|identity| identity.certificate);
        match (demand.certificate, shown) {
            (Certificate::No, _) | (Certificate::Any, Some(_)) => Ok(demand.clone()),
            (Certificate::OfUser, Some(shown)) if shown.common_name.as_deref() == Some(user) => Ok(demand.clone()),
            (_, shown) => Err(certificate_refusal(shown.unwrap_or(&tls::Identity::default()), user)),
        }
    }

    /// Takes the result of a user lookup that a client waits for.
    pub(in crate::core) fn looked_up(&mut self, c: usize, answer: LookupResult) {
        if !matches!(&self.clients[c].phase, Phase::Login(login) if matches!(login.exchange, Exchange::Asked)) {
            return;
        }
        match answer {
            Ok(found) => self.challenge(c, found),
            // The reason is in the log; a client that has not authenticated is not told.
            Err(_) => self.fail_login(c, Sqlstate::CONNECTION_FAILURE, "the user could not be looked up: try again"),
        }
    }

    /// Asks a client to authenticate, or lets it in if its method needs no proof. `known`: the account to check
    /// against.
    fn challenge(&mut self, c: usize, known: Option<Arc<User>>) {
        let Phase::Login(login) = &self.clients[c].phase else { return };
        if !matches!(login.exchange, Exchange::Asked) {
            return;
        }
        let demand = login.demand.clone();
        let (user, console) = (login.key.user.clone(), login.console.is_some());
        let map = demand.map.as_deref();
        let exchange = match demand.method {
            AuthMethod::Trust if known.is_some() || self.settings.trusts(&user, console) => Exchange::Proved,
            AuthMethod::Trust => {
                let of = if console { "operators" } else { "users" };
                let text = format!("role {user:?} is not among the proxy's {of}");
                return self.fail_login(c, Sqlstate::INVALID_AUTHORIZATION, &text);
            }
            AuthMethod::Cert => {
                let identity = self.clients[c].identity.as_deref();
                let is_user = |identity: &&tls::Identity| {
                    let name = identity.common_name.as_deref().filter(|_| identity.certificate);
                    name.is_some_and(|name| self.settings.maps.allow(map, name, &user))
                };
                if known.is_none() || identity.filter(is_user).is_none() {
                    let shown = identity.filter(|shown| shown.certificate).and_then(|shown| shown.common_name.as_ref());
                    let text = match (map, shown) {
                        (Some(map), Some(name)) => {
                            format!("the map {map:?} lets the certificate's name (CN) {name:?} be no user {user:?}")
                        }
                        _ => certificate_refusal(identity.unwrap_or(&tls::Identity::default()), &user),
                    };
                    return self.fail_login(c, Sqlstate::INVALID_AUTHORIZATION, &text);
                }
                Exchange::Proved
            }
            AuthMethod::Peer => {
                let system = self.clients[c].system.as_deref();
                let is_user = |name: &&String| self.settings.maps.allow(map, name, &user);
                if known.is_none() || system.filter(is_user).is_none() {
                    let text = format!("peer authentication failed for user {user:?}");
                    return self.fail_login(c, Sqlstate::INVALID_AUTHORIZATION, &text);
                }
                Exchange::Proved
            }
            // An unknown user is asked all the same, and refused in the end.
            AuthMethod::Ldap | AuthMethod::Pam => {
                self.write_client(c, message::authentication_cleartext);
                Exchange::Clear(known)
            }
            AuthMethod::Gss => {
                self.write_client(c, message::authentication_gss);
                Exchange::Token(known)
            }
            AuthMethod::OAuth => {
                if let Some(text) = self.token_in_clear(c) {
                    return self.fail_login(c, Sqlstate::INVALID_AUTHORIZATION, text);
                }
                self.write_client(c, |out| message::authentication_sasl(out, &[oauth::MECHANISM]));
                Exchange::Bearer(known, Awaited::Mechanism)
            }
            // Like PostgreSQL, asks a user with a SCRAM verifier for SCRAM even where the method is md5.
            AuthMethod::Md5 if known.as_ref().is_none_or(|user| user.secrets.by_md5()) => {
                let salt = match md5::salt() {
                    Ok(salt) => salt,
                    Err(error) => return self.fail_login(c, Sqlstate::INTERNAL_ERROR, &error.to_string()),
                };
                self.write_client(c, |out| message::authentication_md5(out, salt));
                Exchange::Md5(known, salt)
            }
            AuthMethod::ScramSha256 | AuthMethod::Md5 => {
                let server = match known.as_ref().and_then(|user| user.secrets.scram().cloned()) {
                    Some(verifiers) => scram::Server::new(verifiers),
                    // The exchange for an unknown user looks the same, and fails at its end.
                    None => scram::Server::mock(&user, &self.shared.secret),
                };
                let end_point = self.clients[c].identity.as_ref().and_then(|identity| identity.end_point.clone());
                let server = server.offer_binding(end_point);
                self.write_client(c, |out| message::authentication_sasl(out, server.mechanisms()));
                Exchange::First(Box::new(server), known)
            }
        };
        let proved = matches!(exchange, Exchange::Proved);
        if let Phase::Login(login) = &mut self.clients[c].phase {
            login.exchange = exchange;
        }
        if proved {
            self.proved(c);
        }
    }

    /// Handles a message during the login.
    pub(in crate::core) fn login_message(&mut self, c: usize, bytes: &[u8]) -> Step {
        let frame = match self.frame(c, bytes) {
            Ok(frame) => frame,
            Err(step) => return step,
        };
        let Phase::Login(login) = &mut self.clients[c].phase else { return Step::Blocked };
        if frame.tag == b'X' {
            self.close_client(c);
            return Step::Gone;
        }
        if matches!(login.exchange, Exchange::Proved | Exchange::Asked | Exchange::Verifying(..)) {
            // Statements sent before the greeting wait for it. A password that was not asked for yet waits for the
            // question.
            return Step::Blocked;
        }
        if frame.tag != b'p' {
            let text = format!("expected {} response, got message type {}", login.exchange.awaits(), frame.tag);
            self.violation(c, &text);
            return Step::Gone;
        }
        if frame.payload > SMALL_MAX {
            self.violation(c, "invalid message length");
            return Step::Gone;
        }
        let Some(data) = bytes.get(wire::HEADER..frame.total()) else { return Step::More };
        let name = login.key.user.clone();
        let console = login.console.is_some();
        let mut passed = None;
        let (answer, next) = match std::mem::replace(&mut login.exchange, Exchange::Proved) {
            Exchange::First(mut server, user) => match payload::sasl_initial(data) {
                Some((mechanism, first)) => {
                    let answer = server.choose(mechanism).and_then(|()| server.first(first));
                    (answer, Some(Exchange::Last(server, user)))
                }
                None => (Err(scram::Error::Malformed("SASLInitialResponse")), None),
            },
            Exchange::Md5(user, salt) => {
                let proved = match (payload::cstr(data), &user) {
                    (Some((answer, [])), Some(user)) => user.secrets.md5_of(salt, answer).cloned(),
                    _ => None,
                };
                if let Some(verifier) = proved {
                    let token = self.clients[c].token;
                    if !console {
                        self.remember(&name, user, Proved::Md5(verifier));
                    }
                    self.proved(c);
                    return if self.is_client(token) { Step::Used(frame.total()) } else { Step::Gone };
                }
                (Err(scram::Error::WrongPassword), None)
            }
            Exchange::Last(mut server, user) => {
                let answer = server.last(data);
                if answer.is_ok() {
                    passed = Some((user, server.into_keys()));
                }
                (answer, None)
            }
            Exchange::Token(user) => {
                return match self.verify_token(c, user, data) {
                    Ok(()) => Step::Used(frame.total()),
                    Err(step) => step,
                };
            }
            Exchange::Clear(user) => {
                return match self.verify_elsewhere(c, user, data) {
                    Ok(()) => Step::Used(frame.total()),
                    Err(step) => step,
                };
            }
            Exchange::Bearer(user, awaited) => {
                return match self.bearer(c, user, awaited, data) {
                    Ok(()) => Step::Used(frame.total()),
                    Err(step) => step,
                };
            }
            Exchange::Farewell => {
                self.farewell(c, data);
                return Step::Gone;
            }
            Exchange::Proved | Exchange::Asked | Exchange::Verifying(..) => return Step::Blocked,
        };
        match (answer, next) {
            (Ok(answer), Some(next)) => {
                login.exchange = next;
                self.write_client(c, |out| message::authentication_sasl_continue(out, &answer));
            }
            (Ok(answer), None) => {
                self.write_client(c, |out| message::authentication_sasl_final(out, &answer));
                let token = self.clients[c].token;
                if let Some((user, keys)) = passed.filter(|_| !console) {
                    self.remember(&name, user, Proved::Scram(keys));
                }
                self.proved(c);
                if !self.is_client(token) {
                    return Step::Gone;
                }
            }
            (Err(scram::Error::WrongPassword), _) => {
                self.shared.accounts.invalidate(&name, self.now);
                let text = format!("password authentication failed for user {name:?}");
                self.fail_login(c, Sqlstate::INVALID_PASSWORD, &text);
                return Step::Gone;
            }
            (Err(error), _) => {
                self.fail_login(c, Sqlstate::PROTOCOL_VIOLATION, &error.to_string());
                return Step::Gone;
            }
        }
        Step::Used(frame.total())
    }

    /// Remembers the credentials that a client has proved: the proxy can log in to servers with them, if the
    /// configuration has none for the user.
    pub(super) fn remember(&self, name: &str, user: Option<Arc<User>>, proved: Proved) {
        let mut passed = self.shared.passed.lock().unwrap_or_else(PoisonError::into_inner);
        if passed.len() >= MOST_PASSED && !passed.contains_key(name) {
            return;
        }
        let known = passed.entry(name.to_owned()).or_default();
        if let Some(user) = user {
            known.md5 = user.secrets.md5(0).cloned();
            known.password = user.secrets.password(0).map(str::to_owned);
        }
        match proved {
            Proved::Scram(Some(keys)) => known.keys = Some(Arc::new(keys)),
            Proved::Scram(None) => {}
            Proved::Md5(verifier) => known.md5 = Some(verifier),
            Proved::Password(password) => {
                known.md5 = Some(md5::Verifier::new(name, password.expose()));
                known.password = Some(password.expose().to_owned());
                known.keys = None;
            }
        }
    }

    /// Refuses a client of a database that an operator has disabled.
    pub(super) fn database_is_disabled(&mut self, c: usize, database: &str) {
        let text = format!("database {database:?} is disabled by an operator");
        self.fail_login(c, Sqlstate::CANNOT_CONNECT_NOW, &text);
    }

    /// Continues the login of a client that has authenticated.
    pub(super) fn proved(&mut self, c: usize) {
        if let Some(identity) = &mut self.clients[c].identity {
            // Only whether the client speaks TLS is needed from here on, not the certificate's name.
            **identity = tls::Identity::default();
        }
        self.clients[c].system = None;
        let Phase::Login(login) = &mut self.clients[c].phase else { return };
        let key = login.key.clone();
        if let Some(access) = login.console {
            return self.enter_console(c, access);
        }
        if let Some(tunnel) = login.tunnel.take() {
            return self.begin_replication(c, &key, *tunnel);
        }
        if self.leaves_for_home(c, &key) {
            return;
        }
        let Phase::Login(login) = &mut self.clients[c].phase else { return };
        let mut params = std::mem::take(&mut login.params);
        let Some(database) = self.settings.database(&key.database) else {
            let text = format!("database {:?} is not among the proxy's databases", key.database);
            return self.fail_login(c, Sqlstate::INVALID_CATALOG_NAME, &text);
        };
        let route = database.route;
        if let Err(text) = begins_as_role(database, &key, &mut params) {
            return self.fail_login(c, Sqlstate::INVALID_AUTHORIZATION, &text);
        }
        if self.paused.is_disabled(&key.database) {
            return self.database_is_disabled(c, &key.database);
        }
        self.room_for_pool(&key);
        if let Err(text) = self.enter(c, &key) {
            return self.fail_login(c, Sqlstate::TOO_MANY_CONNECTIONS, &text);
        }
        let pool = self.pool(&key);
        self.pools[pool].clients += 1;
        self.pools[pool].looked_up |= self.clients[c].looked_up != LookedUp::No;
        let params = self.params.intern(params);
        self.dismiss_clients(pool);
        let client = &mut self.clients[c];
        client.attempts = super::client::Attempts::default();
        client.pool = pool;
        if client.route.is_none() && route != RouteTo::Auto {
            client.route = Some(route);
        }
        let known = self.pools[pool].greeting(&params, self.view.primary);
        client.base = params.clone();
        client.params = params;
        client.read_bound = ReadBound::Nothing;
        match known {
            Some(greeting) => self.greet(c, &greeting),
            None => {
                self.acquire(c, NodeRequest::Any);
            }
        }
    }

    /// Completes a login. `greeting`: the parameters that a server reports to a client with these startup parameters.
    pub(in crate::core) fn greet(&mut self, c: usize, greeting: &[(String, String)]) {
        let client = &self.clients[c];
        let Phase::Login(login) = &client.phase else { return };
        let version = login.version;
        self.log_login(c);
        let client = &self.clients[c];
        // `in_hot_standby` is on only at a replica's listener; otherwise drivers that look for a primary would turn
        // away.
        let standby = client.route == Some(RouteTo::Replica);
        let (pid, secret) = self.cancel_key(c, version);
        let settings = self.settings.clone();
        let mode = settings.report_proxy.then(|| self.pools[client.pool].database.mode);
        self.write_client(c, |out| welcome(out, greeting, standby, mode, (pid, &secret), &settings.login_notice));
        let client = &mut self.clients[c];
        // The value that the server reported, whether from the client, the role, the database or the server's
        // configuration.
        let strings = greeting.iter().find(|(name, _)| name == "standard_conforming_strings");
        client.odd_strings = strings.is_some_and(|(_, value)| value != "on") || self.pools[client.pool].odd_strings;
        client.phase = Phase::Ready;
        self.pools[client.pool].totals.logins += 1;
        self.runnable.push_back(client.token);
    }

    /// Refuses a login.
    pub(in crate::core) fn fail_login(&mut self, c: usize, code: Sqlstate, text: &str) {
        self.metrics.clients_refused.add(1);
        self.log_refusal(c, code, text);
        self.fatal(c, code, text);
    }

    /// Refuses a login with the server's error.
    pub(in crate::core) fn fail_login_as(&mut self, c: usize, error: &[u8]) {
        let code = payload::sqlstate(error).unwrap_or(Sqlstate::INTERNAL_ERROR);
        let text = payload::error_message(error).into_owned();
        self.fail_login(c, code, &text);
    }

    /// Sends a cancel request to the worker that has the client.
    fn request_cancel(&mut self, c: usize, pid: u32, secret: &[u8]) {
        let to = self.worker_of(pid).unwrap_or(usize::MAX);
        let client = &self.clients[c];
        let requester = client.token;
        self.no_longer_logging_in(c);
        self.clients[c].phase = Phase::Cancelling;
        let (secret, was_passed_on) = passed_on(secret);
        if !was_passed_on && self.pass_on_cancel(pid, secret, requester) {
            return;
        }
        if to == self.id {
            self.cancel(pid, secret, self.id, requester);
        } else if to < self.shared.workers {
            let message = CoreMessage::Cancel { pid, secret: secret.to_vec(), from: self.id, requester };
            self.effects.push(Effect::Post { to, message });
        } else {
            self.metrics.cancels_unknown.add(1);
            self.close_client(c);
        }
    }
}

/// Appends the messages that end a login. `mode`: the pool's mode, if the proxy reports itself. `key`: process ID and secret for cancel requests.
/// `notice`: text for the user; empty: none.
fn welcome(
    out: &mut Vec<u8>,
    greeting: &[(String, String)],
    standby: bool,
    mode: Option<PoolMode>,
    key: (u32, &[u8]),
    notice: &str,
) {
    message::authentication_ok(out);
    for (name, value) in greeting {
        if name != "in_hot_standby" {
            message::parameter_status(out, name, value);
        } else {
            message::parameter_status(out, name, if standby { "on" } else { "off" });
        }
    }
    if let Some(mode) = mode {
        message::parameter_status(out, VERSION.0, VERSION.1);
        message::parameter_status(out, "kingpost.pool_mode", mode.name());
    }
    message::backend_key(out, key.0, key.1);
    if !notice.is_empty() {
        message::notice(out, notice);
    }
    message::ready(out, message::Status::Idle);
}

/// Returns the reason for which a client's certificate, or the lack of one, is not accepted for `user`.
fn certificate_refusal(identity: &tls::Identity, user: &str) -> String {
    match &identity.common_name {
        _ if !identity.certificate => format!("user {user:?} must show a certificate (over TLS), and showed none"),
        Some(name) if name == user => format!("role {user:?} is not among the proxy's users"),
        Some(name) => format!("the certificate is {name:?}'s (CN), not user {user:?}'s"),
        None => format!("the certificate has no single common name (CN), expected user {user:?}'s name"),
    }
}

/// Sets the client's user as the role that its sessions begin with, if the database has `set_role`: `RESET ROLE`, `RESET ALL` and `DISCARD ALL` come
/// back to it. A role that the client itself names is ignored. An error is for the client.
pub(super) fn begins_as_role(
    database: &Database,
    key: &PoolKey,
    params: &mut Vec<(String, String)>,
) -> Result<(), String> {
    if !database.set_role {
        return Ok(());
    }
    // PostgreSQL takes `none` for no role, so the client would be the database's server_user.
    if &*key.user == "none" {
        return Err(format!("user \"none\" is no role: database {:?} has set_role", key.database));
    }
    params.retain(|(name, _)| !name.eq_ignore_ascii_case("role"));
    params.push(("role".to_owned(), key.user.to_string()));
    Ok(())
}

/// Writes an `ErrorResponse` of severity ERROR.
pub(in crate::core) fn error(out: &mut Vec<u8>, code: Sqlstate, text: &str) {
    message::error(out, Severity::Error, code, text, "");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the tags of the messages that end a login.
    fn tags(notice: &str) -> String {
        let greeting = [("in_hot_standby".to_owned(), "off".to_owned())];
        let mut out = Vec::new();
        welcome(&mut out, &greeting, false, None, (7, b"key!"), notice);
        let mut tags = String::new();
        while let [tag, a, b, c, d, ..] = out[..] {
            tags.push(char::from(tag));
            out.drain(..1 + u32::from_be_bytes([a, b, c, d]) as usize);
        }
        tags
    }

    #[test]
    fn a_notice_stands_before_the_end_of_the_login() {
        assert_eq!(tags(""), "RSKZ");
        assert_eq!(tags("this is a proxy"), "RSKNZ");
    }
}
