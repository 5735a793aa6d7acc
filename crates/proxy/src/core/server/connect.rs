//! Logging in to a server, and setting a session to a client's parameters.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use topology::Address;
use wire::control;
use wire::message;
use wire::payload::{self, Authentication};
use wire::scram::{Client as Scram, Credential, MECHANISM, MECHANISM_PLUS};
use wire::{Frame, Sqlstate};

use super::align::{Step, is_about_a_setting, parameters_of};
use super::{Greeting, LastWord, Note, Request, ServerPhase};
use crate::core::parameters::{Applied, Params};
use crate::core::pool::{Crowd, NodeRequest};
use crate::core::prepared::Unnamed;
use crate::core::prepared::baseline::Begins;
use crate::core::session::Phase;
use crate::core::shared::Passed;
use crate::core::{Core, Effect, SMALL_MAX, Secure};

/// Cause of a failed login to a server.
enum Failure {
    /// The node can't be used for now.
    Node(String),
    /// The server refused this user or database, so waiting would not help.
    Refused(Vec<u8>),
    /// The Unix socket is not to be used.
    Socket(String),
    /// The server accepts no more connections: of this user, to this database, or at all.
    Full(String, Crowd),
}

impl Core {
    pub(in crate::core) fn server_connected(&mut self, s: usize) {
        if !matches!(self.servers[s].phase, ServerPhase::Connecting) {
            return;
        }
        let node = self.servers[s].node;
        if self.servers[s].by_socket {
            return self.begin_server_login(s);
        }
        let Some(address) = self.address(node) else {
            return self.open_failed(s, "the node is no longer known", false);
        };
        match self.shared.topology.secure(node, &address) {
            None => self.begin_server_login(s),
            Some(target) => {
                self.servers[s].phase = ServerPhase::Asking(Box::new(target));
                self.write_server(s, message::ssl_request);
            }
        }
    }

    /// Handles a server's answer to SSLRequest. False if the connection is gone.
    fn asked_for_tls(&mut self, s: usize, target: &tls::Target, answer: &[u8]) -> bool {
        let failure = match answer {
            b"S" => {
                let server = &mut self.servers[s];
                server.phase = ServerPhase::Securing;
                let with = Secure::Connect(target.clone());
                self.effects.push(Effect::Secure { token: server.token, with });
                return true;
            }
            b"N" if target.connector.is_optional() => {
                self.begin_server_login(s);
                return true;
            }
            b"N" => "it does not offer TLS (ssl = off), and [cluster.tls] mode is not \"disable\" or \"prefer\"",
            // Anything sent in clear before the handshake would later be taken for the server's encrypted words.
            [b'S', ..] => "it sent more than its answer to the request for TLS",
            // The sender has not authenticated: its text is not passed on to the client.
            _ => "it answered the request for TLS with something else",
        };
        self.login_failed(s, Failure::Node(failure.into()));
        false
    }

    pub(in crate::core) fn server_secured(&mut self, s: usize, identity: tls::Identity) {
        if matches!(self.servers[s].phase, ServerPhase::Securing) {
            self.servers[s].identity = Some(Box::new(identity));
            self.begin_server_login(s);
        }
    }

    fn begin_server_login(&mut self, s: usize) {
        let server = &mut self.servers[s];
        server.phase = ServerPhase::Login(None);
        let pool = &self.pools[server.pool];
        if let Some(tunnel) = server.tunnel.clone() {
            let mut packet = Vec::new();
            message::startup(&mut packet, &tunnel.startup(pool));
            return self.write_server(s, |out| out.extend_from_slice(&packet));
        }
        let (database, user) = pool.database.on_servers(&pool.key.database, &pool.key.user);
        let (database, user) = (database.to_owned(), user.to_owned());
        // Under the gate the proxy decides how a commit is flushed, not the user's or database's default.
        let lazy = pool.gate.relays > 0 && self.commits.flushes();
        let gated = (pool.gate.relays > 0).then_some(("synchronous_commit", if lazy { "off" } else { "on" }));
        let start = pool.database.start.clone();
        let is_name = |(name, _): &&(String, String)| name.eq_ignore_ascii_case("application_name");
        let name = match start.parameters.iter().rfind(is_name) {
            _ if server.listener => control::LISTENER,
            Some((_, name)) => name,
            None => control::PROXIED,
        };
        let aligned = self.how_to_begin(s);
        let parameters: Vec<(&str, &str)> =
            [("user", &*user), ("database", &*database), ("application_name", name), ("client_encoding", "UTF8")]
                .into_iter()
                .chain(gated)
                .chain(aligned.iter().flat_map(|values| parameters_of(values)))
                .chain(start.parameters.iter().filter(|one| !is_name(one)).map(|(name, value)| (&**name, &**value)))
                .collect();
        let p = self.servers[s].pool;
        self.write_server(s, |out| message::startup(out, &parameters));
        self.pools[p].lazy |= lazy;
    }

    /// Handles messages of a server that is not logged in yet. Gives the bytes used; `None` if the connection is gone.
    pub(in crate::core) fn login_replies(&mut self, s: usize, bytes: &[u8]) -> Option<usize> {
        let mut used = 0;
        if let ServerPhase::Asking(target) = &self.servers[s].phase {
            let target = target.clone();
            return self.asked_for_tls(s, &target, bytes).then_some(bytes.len());
        }
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
            let greeting = server.greeting;
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
                b'D' => {
                    if let Some(answer) = &mut server.answer {
                        answer.row(data);
                    }
                }
                b'Z' => {
                    match self.align(s) {
                        Step::Asks => continue,
                        Step::Closed => return None,
                        Step::Done => {}
                    }
                    if greeting == Greeting::ToDo && self.greet_server(s) {
                        continue;
                    }
                    if greeting == Greeting::Sent && data != b"I" {
                        let text = "connect_query left a transaction open: end it with COMMIT";
                        self.login_failed(s, Failure::Refused(refusal(text)));
                        return None;
                    }
                    self.servers[s].phase = ServerPhase::Ready;
                    self.opened(s);
                    return self.servers.contains(s).then_some(used);
                }
                b'G' | b'H' | b'W' => {
                    self.login_failed(
                        s,
                        Failure::Refused(refusal("connect_query must not COPY from or to the client")),
                    );
                    return None;
                }
                b'E' => {
                    let text = payload::error_message(data);
                    let code = payload::sqlstate(data);
                    if let Some(answer) = &mut server.answer
                        && !code.is_some_and(|code| code.0.starts_with(b"57P"))
                    {
                        answer.error = Some(text.into_owned());
                        continue;
                    }
                    if greeting == Greeting::ToDo
                        && matches!(server.begins, Begins::Aligned { .. })
                        && is_about_a_setting(data)
                    {
                        self.values_refused(s, data);
                        return None;
                    }
                    let failure = match code {
                        Some(code) if greeting == Greeting::Sent && !code.0.starts_with(b"57P") => {
                            Failure::Refused(refusal(&format!("connect_query failed: {text} ({code})")))
                        }
                        Some(Sqlstate::TOO_MANY_CONNECTIONS) => Failure::Full(text.into_owned(), Crowd::of(data)),
                        // 57P01 to 57P03: the server starts up, shuts down or recovers.
                        Some(code) if code.0.starts_with(b"57P") => Failure::Node(text.into_owned()),
                        _ => Failure::Refused(data.to_vec()),
                    };
                    self.servers[s].fatal = LastWord::read(data);
                    self.login_failed(s, failure);
                    return None;
                }
                // Notices; and NegotiateProtocolVersion, which a login with protocol 3.0 does not get.
                _ => {}
            }
        }
        Some(used)
    }

    /// Sends the database's `connect_query` to a server that has just accepted the login. False if there is none.
    fn greet_server(&mut self, s: usize) -> bool {
        let server = &self.servers[s];
        let Some(query) = self.pools[server.pool].database.start.query.clone() else { return false };
        if server.listener || server.tunnel.is_some() {
            return false;
        }
        self.servers[s].greeting = Greeting::Sent;
        self.write_server(s, |out| message::query(out, &query));
        true
    }

    fn authenticate(&mut self, s: usize, data: &[u8]) -> Result<(), Failure> {
        let pool = &self.pools[self.servers[s].pool];
        let server_user = pool.database.server_user.clone();
        let user = server_user.as_ref().map_or_else(|| pool.key.user.clone(), |user| user.name.clone());
        // The client's proof is for its own user, not for the database's server_user, even if the names are equal.
        let passed = match &server_user {
            Some(_) => Passed::default(),
            None => {
                let passed = self.shared.passed.lock().unwrap_or_else(PoisonError::into_inner);
                passed.get(&*user).cloned().unwrap_or_default()
            }
        };
        let server = &mut self.servers[s];
        if matches!(server.phase, ServerPhase::Login(None)) {
            let secret_selection = &self.pools[server.pool].nodes[usize::from(server.node.0)].secret_selection;
            (server.offered, server.offered_at) = (secret_selection.next(), self.renewed);
        }
        let offered = server.offered;
        let pool = &self.pools[server.pool];
        let configured = self.settings.user(&user).map(|user| &user.secrets);
        let known = match &server_user {
            Some(user) => user.password.clone(),
            None => configured
                .and_then(|secrets| secrets.password(offered))
                .map(str::to_owned)
                .or_else(|| passed.password.clone()),
        };
        let known_md5 = match &server_user {
            Some(user) => user.md5.clone(),
            None => configured.and_then(|secrets| secrets.md5(offered)).cloned(),
        };
        let has_password = known.is_some();
        // Keys computed of a password are kept by name. A server_user may have another password for each database, and others than a client of
        // its name. No name has a zero byte.
        let keys_of = match &server_user {
            Some(_) => format!("{user}\0{}", pool.key.database),
            None => user.to_string(),
        };
        let password = || {
            known.clone().ok_or_else(|| {
                Failure::Refused(refusal(&format!(
                    "the server asks for a password of user {user:?}, and the proxy has none: give the user a password or password_file, or let its clients log in by SCRAM with the server's own verifier"
                )))
            })
        };
        let unexpected = || Failure::Node("authentication messages out of order".into());
        let asked = payload::authentication(data).ok_or_else(unexpected)?;
        self.servers[s].proof_asked |= !matches!(asked, Authentication::Ok);
        match asked {
            Authentication::Ok => return self.is_let_in(s),
            Authentication::Cleartext => {
                let node = self.servers[s].node;
                let local = matches!(self.address(node), Some(Address::Unix(_)));
                if !local && self.servers[s].identity.is_none() {
                    return Err(Failure::Refused(refusal(
                        "the server asks for a password in clear text, which is sent only over TLS or a Unix socket: set [cluster.tls] mode, or use scram-sha-256 in the server's pg_hba.conf",
                    )));
                }
                let password = password()?;
                self.write_server(s, |out| message::password(out, &password));
            }
            Authentication::Md5(salt) => {
                let verifier = known_md5.or(passed.md5).ok_or_else(|| {
                    Failure::Refused(refusal(&format!(
                        "the server asks for an MD5 password of user {user:?}, and the proxy has none: give the user a password, password_file or md5 verifier"
                    )))
                })?;
                self.write_server(s, |out| message::password(out, &verifier.answer(salt)));
            }
            Authentication::Sasl(mechanisms) if payload::has_mechanism(mechanisms, MECHANISM.as_bytes()) => {
                let cached = self.shared.keys.lock().unwrap_or_else(PoisonError::into_inner).get(&*keys_of).cloned();
                let credential = match passed.keys {
                    // The keys that a client has proved fit wherever the server has the same verifier.
                    Some(keys) if !has_password => Credential::Keys(keys),
                    _ => Credential::Password { password: password()?.into(), cached },
                };
                let mut client = Scram::new(credential).map_err(|e| Failure::Node(e.to_string()))?;
                if let Some(end_point) = self.servers[s].identity.as_ref().and_then(|of| of.end_point.clone()) {
                    client = client.bound(end_point, payload::has_mechanism(mechanisms, MECHANISM_PLUS.as_bytes()));
                }
                let (mechanism, first) = (client.mechanism(), client.first());
                self.servers[s].phase = ServerPhase::Login(Some(Box::new(client)));
                self.write_server(s, |out| message::sasl_initial(out, mechanism, &first));
            }
            Authentication::SaslContinue(challenge) => {
                let ServerPhase::Login(Some(client)) = &mut self.servers[s].phase else { return Err(unexpected()) };
                let answer = client.final_(challenge).map_err(|e| {
                    Failure::Refused(refusal(&match e {
                        wire::scram::Error::StaleKeys => format!(
                            "user {user:?} has another SCRAM verifier on this server than the one that its client has proved to know: log in again, and see that the proxy's is the server's own"
                        ),
                        e => e.to_string(),
                    }))
                })?;
                self.write_server(s, |out| message::sasl_response(out, &answer));
            }
            Authentication::SaslFinal(proof) => {
                let ServerPhase::Login(Some(client)) = &mut self.servers[s].phase else { return Err(unexpected()) };
                client.verify(proof).map_err(|e| Failure::Refused(refusal(&e.to_string())))?;
                if let Some(keys) = client.keys() {
                    let mut known = self.shared.keys.lock().unwrap_or_else(PoisonError::into_inner);
                    known.insert(keys_of, keys.clone());
                }
            }
            Authentication::Sasl(_) | Authentication::Other(_) => {
                return Err(Failure::Refused(refusal(
                    "the server asks for an authentication method that the proxy does not speak: expected trust, password, md5 or scram-sha-256",
                )));
            }
        }
        Ok(())
    }

    /// Handles the server's word that the login is done.
    fn is_let_in(&mut self, s: usize) -> Result<(), Failure> {
        let server = &self.servers[s];
        let (by_socket, proof_asked, node) = (server.by_socket, server.proof_asked, server.node);
        let Some(settings) = self.view.node(node).filter(|view| view.socket.is_some()).map(|view| view.settings) else {
            return Ok(());
        };
        // The connections of listeners and tunnels are in no pool, and they go by TCP only.
        if server.listener || server.tunnel.is_some() {
            return Ok(());
        }
        let choice = &mut self.pools[server.pool].nodes[usize::from(node.0)].local_socket;
        if !by_socket {
            choice.tcp_login(settings, proof_asked);
        } else if !proof_asked && !choice.asked_for_nothing(settings) {
            return Err(Failure::Socket("it asks for no proof there, and perhaps for one by TCP".into()));
        }
        Ok(())
    }

    /// True if the server may let this user in by TCP, where pg_hba.conf has other rules.
    fn is_refused_at_socket(&self, s: usize, error: &[u8]) -> bool {
        self.servers[s].by_socket && payload::sqlstate(error).is_some_and(|code| code.0.starts_with(b"28"))
    }

    fn login_failed(&mut self, s: usize, failure: Failure) {
        match failure {
            // Its state says already why.
            Failure::Socket(why) => self.leave_socket(s, &why, |_, _, _| ()),
            Failure::Refused(error) if self.is_refused_at_socket(s, &error) => {
                let is_password = payload::sqlstate(&error) == Some(Sqlstate::INVALID_PASSWORD);
                self.leave_socket(s, &payload::error_message(&error), |choice, settings, now| match is_password {
                    // Another password may be right at both.
                    true => choice.failed(settings, now),
                    false => choice.refused(settings),
                });
            }
            Failure::Refused(error) if self.offers_another_secret(s, &error) => {
                self.open_failed(s, &payload::error_message(&error), false);
            }
            Failure::Refused(error) if self.waits_for_renewal(s, &error) => {
                let (p, node) = (self.servers[s].pool, usize::from(self.servers[s].node.0));
                self.open_failed(s, &payload::error_message(&error), false);
                let place = &mut self.pools[p].nodes[node];
                if place.secret_selection.is_waiting() {
                    place.retry_at = Some(self.now + RENEWED_WITHIN);
                }
            }
            Failure::Node(why) => self.open_failed(s, &why, true),
            Failure::Full(why, crowd) => self.server_is_full(s, &why, crowd),
            Failure::Refused(error) if self.servers[s].listener => {
                self.open_failed(s, &payload::error_message(&error), false)
            }
            Failure::Refused(error) => match self.servers[s].client {
                Some(c) if self.servers[s].tunnel.is_some() => self.fail_login_as(c, &error),
                _ => self.login_refused(s, &error),
            },
        }
    }

    /// Handles the refusal of a password of a user with several secrets. Returns true if the next connection offers another one that this server has
    /// not refused, and the clients go on waiting for it.
    fn offers_another_secret(&mut self, s: usize, error: &[u8]) -> bool {
        let server = &self.servers[s];
        let pool = &self.pools[server.pool];
        if payload::sqlstate(error) != Some(Sqlstate::INVALID_PASSWORD) || pool.database.server_user.is_some() {
            return false;
        }
        let choices = self.settings.user(&pool.key.user).map_or(0, |user| user.secrets.for_servers());
        // The client of a tunnel has no queue to wait in: it gets the error, and its next attempt offers the next secret.
        let may_wait = server.tunnel.is_none();
        let (p, node) = (server.pool, usize::from(server.node.0));
        let offered = server.offered;
        self.pools[p].nodes[node].secret_selection.refused(offered, choices) && may_wait
    }

    /// Handles the refusal of a password that was read from a file or a command. Returns true if the next connection tries once more with the present
    /// content, and the clients go on waiting for it.
    fn waits_for_renewal(&mut self, s: usize, error: &[u8]) -> bool {
        let server = &self.servers[s];
        let pool = &self.pools[server.pool];
        let renewable = match &pool.database.server_user {
            Some(user) => user.renewable,
            None => self.settings.user(&pool.key.user).is_some_and(|user| user.renewable),
        };
        if !renewable || payload::sqlstate(error) != Some(Sqlstate::INVALID_PASSWORD) {
            return false;
        }
        let ask = || self.shared.renewals.ask();
        if server.tunnel.is_some() || server.listener {
            // The client of a tunnel gets the error, and a listener tries again by itself.
            let _ = ask();
            return false;
        }
        let (p, node, offered_at, newest) = (server.pool, usize::from(server.node.0), server.offered_at, self.renewed);
        self.pools[p].nodes[node].secret_selection.renew(offered_at, newest, ask)
    }

    /// Notes that passwords were read again, for all requests up to this ticket.
    pub(in crate::core) fn renewed(&mut self, ticket: u64) {
        self.renewed = self.renewed.max(ticket);
        for p in self.pools.ids() {
            for place in &mut self.pools[p].nodes {
                if place.secret_selection.renewed(ticket) {
                    place.retry_at = None;
                }
            }
            self.pump(p);
        }
    }

    /// Handles a server's refusal of this user or database.
    pub(super) fn login_refused(&mut self, s: usize, error: &[u8]) {
        let (p, node) = (self.servers[s].pool, self.servers[s].node);
        let text = payload::error_message(error).into_owned();
        if self.view.primary.is_some_and(|primary| primary != node) {
            // A replica may be behind: the database, the role or its password may exist on the primary already.
            self.pools[p].nodes[usize::from(node.0)].refused = true;
            self.metrics.replica_logins_refused.add(1);
            return self.open_failed(s, &text, false);
        }
        // All clients that wait in this pool would be refused as well.
        let pool = &self.pools[p];
        let waiting: Vec<_> = pool.writers.iter().chain(&pool.readers).map(|w| w.client).collect();
        for token in waiting {
            if self.is_client(token) && self.clients[token.index()].waiting {
                let c = token.index();
                if matches!(self.clients[c].phase, Phase::Login(_)) {
                    self.fail_login_as(c, error);
                } else {
                    let code = payload::sqlstate(error).unwrap_or(Sqlstate::CONNECTION_FAILURE);
                    self.refuse_unit(c, code, &text);
                }
            }
        }
        self.open_failed(s, &text, false);
    }

    // --- sessions ---

    /// Sets the session to a client's parameters, by a statement ahead of the client's own.
    pub(in crate::core) fn prepare_session(&mut self, s: usize, params: &Arc<Params>) {
        let mut statement = self.servers[s].params.statement(params);
        self.servers[s].params = Applied::These(params.clone());
        if self.servers[s].begins.is_serializable() && self.is_replica(s) {
            statement.insert_str(0, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; ");
        }
        self.own_query(s, &statement);
    }

    /// Has the server analyse functions anew when they are called next, ahead of the client's own messages. Prepared statements go as well: one that
    /// is run while literals are read otherwise than when it was prepared would be analysed anew, too.
    pub(in crate::core) fn forget_functions(&mut self, s: usize) {
        self.metrics.functions_forgotten.add(1);
        self.own_query(s, "DISCARD PLANS; DEALLOCATE ALL");
    }

    /// Sends a Query of the proxy's.
    pub(in crate::core) fn own_query(&mut self, s: usize, statement: &str) {
        self.own_query_as(s, statement, Note::Own);
    }

    /// Sends a Query of the proxy's, to be remembered as this note: `Own` or `Audit`.
    pub(in crate::core) fn own_query_as(&mut self, s: usize, statement: &str, note: Note) {
        self.write_server(s, |out| message::query(out, statement));
        let server = &mut self.servers[s];
        server.statements.set_unnamed(Unnamed::Unknown);
        server.protocol.sent(Request::Query, note);
    }

    /// Continues after the end of a Query of the proxy.
    pub(in crate::core) fn own_query_done(&mut self, s: usize) {
        if self.servers[s].listener {
            return self.listener_answered(s);
        }
        let server = &mut self.servers[s];
        let owed = std::mem::take(&mut server.own.owes_ready);
        let Some(error) = server.own.error.take() else {
            if server.protocol.is_settled() {
                match server.client {
                    Some(c) if matches!(self.clients[c].phase, Phase::Login(_)) => self.learn_greeting(c, s),
                    // The client has left, perhaps with something in the session that has to be cleaned up.
                    None => self.clean_up(s),
                    Some(c) => self.runnable.push_back(self.clients[c].token),
                }
            }
            return;
        };
        // The parameters in force are not the ones that were asked for.
        server.params = Applied::Unknown;
        let client = server.client;
        match client {
            Some(c) if self.asks_the_primary_instead(c, s, owed) => {}
            Some(c) => {
                self.servers[s].retire = true;
                let login = matches!(self.clients[c].phase, Phase::Login(_));
                if login {
                    self.fail_login_as(c, &error);
                } else if self.clients[c].attempts.setups < MOST_SETUPS && !self.is_bound(c) && !owed {
                    // The parameters were accepted once, and nothing of the client's unit was sent. The cause may lie
                    // in this connection (a role or a `statement_timeout` in force): the client tries another
                    // connection.
                    let client = &mut self.clients[c];
                    client.attempts.setups += 1;
                    client.unit.reset();
                    self.release(s);
                } else {
                    let text = payload::error_message(&error);
                    let text = format!("cannot set this session's parameters: {text}");
                    self.fatal(c, Sqlstate::INVALID_PARAMETER_VALUE, &text);
                }
            }
            None => {
                self.servers[s].retire = true;
                if self.servers[s].protocol.is_settled() {
                    self.rest(s);
                }
            }
        }
    }

    /// Sends a client whose session a replica could not prepare to the primary, whose answer counts: with `default_transaction_isolation =
    /// serializable` a standby runs no statement at all. False if the server is no replica, or the client cannot leave it.
    fn asks_the_primary_instead(&mut self, c: usize, s: usize, owed: bool) -> bool {
        let login = matches!(self.clients[c].phase, Phase::Login(_));
        if !self.is_replica(s) || self.clients[c].attempts.primary || !login && (self.is_bound(c) || owed) {
            return false;
        }
        let client = &mut self.clients[c];
        client.attempts.primary = true;
        client.unit.reset();
        let token = client.token;
        self.release(s);
        if login && self.is_client(token) {
            self.acquire(c, NodeRequest::Primary);
        }
        true
    }

    /// Remembers the parameters that the server reports in a session with a client's parameters, as the greeting for clients with the same startup
    /// parameters.
    pub(in crate::core) fn learn_greeting(&mut self, c: usize, s: usize) {
        let params = self.clients[c].params.clone();
        let server = &self.servers[s];
        let told = server.reported.clone();
        self.pools[server.pool].greets(server.node, &params, &told);
        let token = self.clients[c].token;
        self.release(s);
        if self.is_client(token) {
            self.greet(c, &told);
        }
    }
}

/// Longest wait for passwords to be read again. After that the server is asked again anyway.
const RENEWED_WITHIN: Duration = Duration::from_secs(30);
/// Most server connections on which a client's parameters are tried.
const MOST_SETUPS: u8 = 2;

/// Returns the payload of an `ErrorResponse`, as a server would send it.
fn refusal(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    crate::core::session::error(&mut out, Sqlstate::INVALID_AUTHORIZATION, text);
    out.split_off(wire::HEADER)
}
