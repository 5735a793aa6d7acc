//! Logging in to a server, and making its session fit a client.

use std::sync::{Arc, PoisonError};

use wire::message::{self, Status};
use wire::payload::{self, Authentication};
use wire::scram::{Client as Scram, Credential};
use wire::{Frame, Sqlstate};

use super::client::Phase;
use super::params::{Applied, Params};
use super::server::{Expect, ServerPhase};
use super::{Core, SMALL_MAX};

/// Why a login to a server failed.
enum Failure {
    /// The node can't be used at the moment.
    Node(String),
    /// The server refused this user or database: waiting does not help.
    Refused(Vec<u8>),
    /// The server has no connection left for us.
    Full(String),
}

impl Core {
    pub(super) fn server_connected(&mut self, s: usize) {
        let server = &mut self.servers[s];
        if !matches!(server.phase, ServerPhase::Connecting) {
            return;
        }
        server.phase = ServerPhase::Login(None);
        let pool = &self.pools[server.pool];
        let (user, database) = (pool.key.user.clone(), pool.database.dbname.clone());
        let database = database.unwrap_or_else(|| pool.key.database.to_string());
        self.send(s, |out| {
            message::startup(
                out,
                &[
                    ("user", &*user),
                    ("database", &database),
                    ("application_name", "kingpost"),
                    ("client_encoding", "UTF8"),
                ],
            );
        });
    }

    /// Messages of a server that is not logged in; how many bytes were used, or None if the connection is gone.
    pub(super) fn login_replies(&mut self, s: usize, bytes: &[u8]) -> Option<usize> {
        let mut used = 0;
        while matches!(self.servers[s].phase, ServerPhase::Login(_)) {
            let rest = &bytes[used..];
            let frame = match Frame::read(rest) {
                Ok(Some(frame)) if frame.payload <= SMALL_MAX => frame,
                Ok(None) => break,
                Ok(Some(_)) | Err(_) => {
                    self.login_failed(s, Failure::Node("it does not speak PostgreSQL's protocol".into()));
                    return None;
                }
            };
            let Some(data) = rest.get(wire::HEADER..frame.total()) else { break };
            used += frame.total();
            let server = &mut self.servers[s];
            match frame.tag {
                b'R' => {
                    if let Err(failure) = self.authenticate(s, data) {
                        self.login_failed(s, failure);
                        return None;
                    }
                }
                b'S' => {
                    if let Some((name, value)) = payload::parameter_status(data) {
                        server.report(name, value);
                    }
                }
                b'K' => {
                    if let Some((pid, secret)) = payload::backend_key(data) {
                        server.key = (pid, secret.to_vec());
                    }
                }
                b'Z' => {
                    server.phase = ServerPhase::Ready;
                    server.status = Status::Idle;
                    self.opened(s);
                    return self.servers.contains(s).then_some(used);
                }
                b'E' => {
                    let text = payload::error_field(data, b'M').map(String::from_utf8_lossy).unwrap_or_default();
                    let failure = match payload::sqlstate(data) {
                        Some(Sqlstate::TOO_MANY_CONNECTIONS) => Failure::Full(text.into_owned()),
                        // Starting up, shutting down, recovering.
                        Some(code) if code.0.starts_with(b"57P") => Failure::Node(text.into_owned()),
                        _ => Failure::Refused(data.to_vec()),
                    };
                    self.login_failed(s, failure);
                    return None;
                }
                // Notices; and NegotiateProtocolVersion, which a 3.0 login does not get.
                _ => {}
            }
        }
        Some(used)
    }

    fn authenticate(&mut self, s: usize, data: &[u8]) -> Result<(), Failure> {
        let user = self.pools[self.servers[s].pool].key.user.clone();
        let password = || {
            self.settings.user(&user).and_then(|user| user.password.clone()).ok_or_else(|| {
                Failure::Refused(refusal(&format!(
                    "the server asks for a password of user {user:?}, and the proxy has none: give the user a password or password_file"
                )))
            })
        };
        let unexpected = || Failure::Node("authentication messages out of order".into());
        match payload::authentication(data).ok_or_else(unexpected)? {
            Authentication::Ok => {}
            Authentication::Cleartext => {
                let password = password()?;
                self.send(s, |out| message::password(out, &password));
            }
            Authentication::Sasl(mechanisms) if payload::has_mechanism(mechanisms, b"SCRAM-SHA-256") => {
                let cached = self.shared.keys.lock().unwrap_or_else(PoisonError::into_inner).get(&*user).cloned();
                let credential = Credential::Password { password: password()?.into(), cached };
                let client = Scram::new(credential).map_err(|e| Failure::Node(e.to_string()))?;
                let first = client.first();
                self.servers[s].phase = ServerPhase::Login(Some(Box::new(client)));
                self.send(s, |out| message::sasl_initial(out, "SCRAM-SHA-256", &first));
            }
            Authentication::SaslContinue(challenge) => {
                let ServerPhase::Login(Some(client)) = &mut self.servers[s].phase else { return Err(unexpected()) };
                let answer = client.final_(challenge).map_err(|e| Failure::Refused(refusal(&e.to_string())))?;
                self.send(s, |out| message::sasl_response(out, &answer));
            }
            Authentication::SaslFinal(proof) => {
                let ServerPhase::Login(Some(client)) = &mut self.servers[s].phase else { return Err(unexpected()) };
                client.verify(proof).map_err(|e| Failure::Refused(refusal(&e.to_string())))?;
                if let Some(keys) = client.keys() {
                    let mut known = self.shared.keys.lock().unwrap_or_else(PoisonError::into_inner);
                    known.insert(user.to_string(), keys.clone());
                }
            }
            Authentication::Sasl(_) | Authentication::Md5(_) | Authentication::Other(_) => {
                return Err(Failure::Refused(refusal(
                    "the server asks for an authentication method that the proxy does not speak: expected trust, password or scram-sha-256",
                )));
            }
        }
        Ok(())
    }

    fn login_failed(&mut self, s: usize, failure: Failure) {
        match failure {
            Failure::Node(why) => self.open_failed(s, &why, true),
            Failure::Full(why) => self.open_failed(s, &why, false),
            Failure::Refused(error) => {
                let p = self.servers[s].pool;
                let text = payload::error_field(&error, b'M').map(String::from_utf8_lossy).unwrap_or_default();
                let text = text.into_owned();
                // Everybody who waits now would be refused, too.
                let pool = &self.pools[p];
                let waiting: Vec<_> = pool.writers.iter().chain(&pool.readers).map(|w| w.client).collect();
                for token in waiting {
                    if self.is_client(token) && self.clients[token.index()].waiting {
                        let c = token.index();
                        if matches!(self.clients[c].phase, Phase::Login(_)) {
                            self.fail_login_as(c, &error);
                        } else {
                            let code = payload::sqlstate(&error).unwrap_or(Sqlstate::CONNECTION_FAILURE);
                            self.refuse_unit(c, code, &text);
                        }
                    }
                }
                self.open_failed(s, &text, false);
            }
        }
    }

    // --- sessions ---

    /// Brings a server session to a client's parameters: the statement goes ahead of the client's own.
    pub(super) fn prepare_session(&mut self, s: usize, params: &Arc<Params>) {
        let statement = self.servers[s].params.statement(params);
        self.servers[s].params = Applied::These(params.clone());
        self.own_query(s, &statement);
    }

    /// Sends a statement of the proxy's own.
    pub(super) fn own_query(&mut self, s: usize, statement: &str) {
        self.send(s, |out| message::query(out, statement));
        self.servers[s].unnamed = 0;
        self.servers[s].owe(Expect::Setup);
    }

    /// A statement of the proxy's own has ended.
    pub(super) fn own_query_done(&mut self, s: usize) {
        let server = &mut self.servers[s];
        let Some(error) = server.setup_error.take() else {
            if server.expect.is_empty() {
                match server.client {
                    Some(c) if matches!(self.clients[c].phase, Phase::Login(_)) => self.learn_greeting(c, s),
                    // It was cleaned up after a client that left.
                    None => self.rest(s),
                    Some(c) => self.runnable.push_back(self.clients[c].token),
                }
            }
            return;
        };
        // What it has in force is not what was asked for.
        server.params = Applied::Unknown;
        server.retire = true;
        match server.client {
            Some(c) => {
                let login = matches!(self.clients[c].phase, Phase::Login(_));
                if login {
                    self.fail_login_as(c, &error);
                } else {
                    // These parameters were good once: a setting of the server changed. Nothing of the client's has been sent.
                    let text = payload::error_field(&error, b'M').map(String::from_utf8_lossy).unwrap_or_default();
                    let text = format!("cannot set this session's start-up parameters: {text}");
                    self.fatal(c, Sqlstate::INVALID_PARAMETER_VALUE, &text);
                }
            }
            None if server.expect.is_empty() => self.rest(s),
            None => {}
        }
    }

    /// A server session has a new client's parameters: what it reports is what such clients are greeted with.
    pub(super) fn learn_greeting(&mut self, c: usize, s: usize) {
        let params = self.clients[c].params.clone();
        let pool = &mut self.pools[self.servers[s].pool];
        if pool.greetings.len() >= MOST_GREETINGS {
            // Greetings of clients that are gone.
            pool.greetings.retain(|params, _| Arc::strong_count(params) > 2);
            if pool.greetings.len() >= MOST_GREETINGS {
                pool.greetings.clear();
            }
        }
        pool.greetings.insert(params, Arc::new(self.servers[s].reported.clone()));
        let token = self.clients[c].token;
        self.release(s);
        if self.is_client(token) {
            self.greet(c);
        }
    }
}

/// Sets of start-up parameters whose greeting a pool remembers.
const MOST_GREETINGS: usize = 1024;

/// The payload of an `ErrorResponse` as a server would give it.
fn refusal(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    super::login::error(&mut out, Sqlstate::INVALID_AUTHORIZATION, text);
    out.split_off(wire::HEADER)
}
