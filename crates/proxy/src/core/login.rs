//! From accept to a client's first `ReadyForQuery`.

use std::sync::atomic::Ordering;

use wire::startup::{self, End, Startup, V3_0, V3_2};
use wire::{Severity, Sqlstate, message, payload, scram};

use super::client::{Mark, Phase, Step};
use super::params::Params;
use super::pool::{PoolKey, Want};
use super::{Core, Effect, Mail, SMALL_MAX};
use crate::config::{AuthMethod, RouteTo};

/// The only mechanism offered.
const MECHANISM: &str = "SCRAM-SHA-256";

/// Pairs of database and user that one worker has served; they are not forgotten.
const MOST_POOLS: usize = 1000;

/// What a login knows before it is done.
pub(super) struct Login {
    pub key: PoolKey,
    /// 3.0 or 3.2.
    pub version: u32,
    pub params: Params,
    pub exchange: Exchange,
}

/// How far the proof of identity is.
pub(super) enum Exchange {
    /// `SASLInitialResponse` is awaited.
    First(Box<scram::Server>),
    /// `SASLResponse` is awaited.
    Last(Box<scram::Server>),
    /// Done; a server connection is awaited, to learn what to greet the client with.
    Proved,
}

impl Core {
    /// A packet before the first message.
    pub(super) fn startup(&mut self, c: usize, bytes: &[u8]) -> Step {
        match startup::read(bytes) {
            Ok(None) => Step::More,
            Ok(Some((packet, used))) => match packet {
                Startup::Ssl | Startup::Gss => {
                    // Each may be asked for once.
                    let client = &mut self.clients[c];
                    client.again.attempts += 1;
                    if client.again.attempts > 2 {
                        self.violation(c, "unsupported frontend protocol: encryption was refused already");
                        return Step::Gone;
                    }
                    self.tell(c, |out| out.push(b'N'));
                    Step::Used(used)
                }
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
            Err(error) => {
                self.metrics.clients_refused.add(1);
                self.violation(c, &error.to_string());
                Step::Gone
            }
        }
    }

    fn begin_login(&mut self, c: usize, version: u32, parameters: &[u8]) {
        let (mut user, mut database) = (None, None);
        let mut settings = Vec::new();
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
                "replication" if ["", "false", "off", "no", "0"].contains(&value) => {}
                "replication" => {
                    let text = "replication connections cannot go through the proxy: connect to the server itself";
                    return self.fail_login(c, Sqlstate::FEATURE_NOT_SUPPORTED, text);
                }
                "options" => match startup::options(value) {
                    Ok(pairs) => settings.extend(pairs),
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
                "no PostgreSQL user name in the startup packet",
            );
        };
        let database = database.filter(|name| !name.is_empty()).unwrap_or_else(|| user.clone());
        if version > V3_2 || !unknown.is_empty() {
            self.tell(c, |out| message::negotiate_version(out, version.min(V3_2), &unknown));
        }
        let version = if version >= V3_2 { V3_2 } else { V3_0 };
        if self.draining {
            return self.fail_login(c, Sqlstate::CANNOT_CONNECT_NOW, "the proxy is shutting down");
        }
        if self.shared.clients.load(Ordering::Relaxed) > self.settings.max_clients {
            let text = format!("too many clients already: max_clients is {}", self.settings.max_clients);
            return self.fail_login(c, Sqlstate::TOO_MANY_CONNECTIONS, &text);
        }
        let exchange = match self.settings.auth {
            AuthMethod::Trust if self.settings.any_user() || self.settings.user(&user).is_some() => Exchange::Proved,
            AuthMethod::Trust => {
                let text = format!("role {user:?} is not among the proxy's users");
                return self.fail_login(c, Sqlstate::INVALID_AUTHORIZATION, &text);
            }
            AuthMethod::ScramSha256 => {
                let verifier = self.settings.user(&user).and_then(|user| user.verifier.clone());
                self.tell(c, |out| message::authentication_sasl(out, MECHANISM));
                Exchange::First(Box::new(match verifier {
                    Some(verifier) => scram::Server::new(verifier),
                    // An unknown user's exchange looks the same, and fails at its end.
                    None => scram::Server::mock(&user, &self.shared.secret),
                }))
            }
        };
        let proved = matches!(exchange, Exchange::Proved);
        let key = PoolKey { database: database.into(), user: user.into() };
        let login = Login { key, version, params: Params::from_pairs(settings), exchange };
        self.clients[c].phase = Phase::Login(Box::new(login));
        if proved {
            self.proved(c);
        }
    }

    /// A message while logging in.
    pub(super) fn login_message(&mut self, c: usize, bytes: &[u8]) -> Step {
        let frame = match self.frame(c, bytes) {
            Ok(frame) => frame,
            Err(step) => return step,
        };
        let Phase::Login(login) = &mut self.clients[c].phase else { return Step::Blocked };
        if frame.tag == b'X' {
            self.close_client(c);
            return Step::Gone;
        }
        if matches!(login.exchange, Exchange::Proved) {
            // Statements sent before the greeting wait for it.
            return Step::Blocked;
        }
        if frame.tag != b'p' || frame.payload > SMALL_MAX {
            self.violation(c, "expected a password message");
            return Step::Gone;
        }
        let Some(data) = bytes.get(wire::HEADER..frame.total()) else { return Step::More };
        let (answer, next) = match std::mem::replace(&mut login.exchange, Exchange::Proved) {
            Exchange::First(mut server) => match payload::sasl_initial(data) {
                Some((mechanism, first)) if mechanism == MECHANISM.as_bytes() => {
                    (server.first(first), Some(Exchange::Last(server)))
                }
                _ => (Err(scram::Error::Malformed("SASLInitialResponse")), None),
            },
            Exchange::Last(mut server) => (server.last(data), None),
            Exchange::Proved => return Step::Blocked,
        };
        match (answer, next) {
            (Ok(answer), Some(next)) => {
                login.exchange = next;
                self.tell(c, |out| message::authentication_sasl_continue(out, &answer));
            }
            (Ok(answer), None) => {
                self.tell(c, |out| message::authentication_sasl_final(out, &answer));
                let token = self.clients[c].token;
                self.proved(c);
                if !self.is_client(token) {
                    return Step::Gone;
                }
            }
            (Err(scram::Error::WrongPassword), _) => {
                let text = format!("password authentication failed for user {:?}", login.key.user);
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

    /// The client is who it says.
    fn proved(&mut self, c: usize) {
        let Phase::Login(login) = &mut self.clients[c].phase else { return };
        let key = login.key.clone();
        let params = std::mem::replace(&mut login.params, Params(Vec::new()));
        let Some(database) = self.settings.database(&key.database) else {
            let text = format!("database {:?} is not among the proxy's databases", key.database);
            return self.fail_login(c, Sqlstate::INVALID_CATALOG_NAME, &text);
        };
        let route = database.route;
        if self.pools.len() >= MOST_POOLS && !self.pool_ids.contains_key(&key) {
            let text = format!("the proxy serves {MOST_POOLS} pairs of database and user already");
            return self.fail_login(c, Sqlstate::TOO_MANY_CONNECTIONS, &text);
        }
        let pool = self.pool(&key);
        let params = self.intern_params(params);
        let client = &mut self.clients[c];
        client.again = super::client::Again::default();
        client.pool = pool;
        if client.route.is_none() && route != RouteTo::Auto {
            client.route = Some(route);
        }
        let known = self.pools[pool].greetings.contains_key(&params);
        client.odd_strings = params.get("standard_conforming_strings").is_some_and(|v| !v.eq_ignore_ascii_case("on"));
        client.dialect = params.dialect();
        client.params = params;
        client.mark = Mark::Nothing;
        if known {
            self.greet(c);
        } else {
            self.acquire(c, Want::Any);
        }
    }

    /// Completes a login: the pool knows what a server says to a client with these parameters.
    pub(super) fn greet(&mut self, c: usize) {
        let client = &self.clients[c];
        let Phase::Login(login) = &client.phase else { return };
        let version = login.version;
        let Some(greeting) = self.pools[client.pool].greetings.get(&client.params).cloned() else { return };
        // A standby's address says so, any other must look like a primary to drivers that ask for one.
        let standby = client.route == Some(RouteTo::Replica);
        let (pid, secret) = self.cancel_key(c, version);
        self.tell(c, |out| {
            message::authentication_ok(out);
            for (name, value) in greeting.iter() {
                if name != "in_hot_standby" {
                    message::parameter_status(out, name, value);
                } else {
                    message::parameter_status(out, name, if standby { "on" } else { "off" });
                }
            }
            message::backend_key(out, pid, &secret);
            message::ready(out, message::Status::Idle);
        });
        let client = &mut self.clients[c];
        client.phase = Phase::Ready;
        self.runnable.push_back(client.token);
    }

    /// Refuses a login.
    pub(super) fn fail_login(&mut self, c: usize, code: Sqlstate, text: &str) {
        self.metrics.clients_refused.add(1);
        self.fatal(c, code, text);
    }

    /// Refuses a login with what the server said.
    pub(super) fn fail_login_as(&mut self, c: usize, error: &[u8]) {
        let code = payload::sqlstate(error).unwrap_or(Sqlstate::INTERNAL_ERROR);
        let text = payload::error_field(error, b'M').map(String::from_utf8_lossy).unwrap_or_default().into_owned();
        self.fail_login(c, code, &text);
    }

    /// A cancel request: passed to the worker that has the client it is meant for.
    fn request_cancel(&mut self, c: usize, pid: u32, secret: &[u8]) {
        let to = super::cancel::worker_of(pid);
        let client = &mut self.clients[c];
        client.phase = Phase::Cancelling;
        let requester = client.token;
        if to == self.id {
            self.cancel(pid, secret, self.id, requester);
        } else if to < self.shared.workers {
            let mail = Mail::Cancel { pid, secret: secret.to_vec(), from: self.id, requester };
            self.effects.push(Effect::Post { to, mail });
        } else {
            self.metrics.cancels_unknown.add(1);
            self.close_client(c);
        }
    }
}

/// `ErrorResponse` of severity ERROR.
pub(super) fn error(out: &mut Vec<u8>, code: Sqlstate, text: &str) {
    message::error(out, Severity::Error, code, text, "");
}
