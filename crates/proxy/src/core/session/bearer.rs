//! Logins by a token (method `oauth`): OAUTHBEARER as in PostgreSQL 18. An external authenticator that has the issuer's keys verifies the token
//! ([`super::external_auth`]).

use std::net::IpAddr;
use std::sync::Arc;

use secret::Secret;
use wire::oauth::{self, Response};
use wire::{Sqlstate, message, payload};

use super::client::{Phase, Step};
use super::login::Exchange;
use crate::core::Core;
use crate::oauth::Options;
use crate::settings::User;
use crate::verify::Judge;

/// PostgreSQL's error for a message that violates the RFC; the violation is in the detail.
const MALFORMED: &str = "malformed OAUTHBEARER message";

/// The awaited message of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Awaited {
    /// The message with the name of the mechanism, and perhaps with the token.
    Mechanism,
    /// The message with the token.
    Token,
}

impl Core {
    /// Returns the reason why a token would cross the network in clear; `None` if it would not. The rule's settings are not considered.
    pub(super) fn token_in_clear(&self, c: usize) -> Option<&'static str> {
        let client = &self.clients[c];
        let near = client.local || client.address.is_some_and(is_near);
        let why = "a token is taken over TLS only: connect with sslmode=require or stronger";
        (!near && client.identity.is_none()).then_some(why)
    }

    /// Takes a client's message with its token.
    pub(super) fn bearer(
        &mut self,
        c: usize,
        known: Option<Arc<User>>,
        awaited: Awaited,
        data: &[u8],
    ) -> Result<(), Step> {
        let response = match awaited {
            Awaited::Token => Some(data),
            Awaited::Mechanism => match payload::sasl_start(data) {
                Some((mechanism, response)) if mechanism == oauth::MECHANISM.as_bytes() => response,
                Some(_) => return self.refuse_message(c, "client selected an invalid SASL authentication mechanism"),
                None => return self.refuse_message(c, "malformed SASLInitialResponse"),
            },
        };
        let Some(response) = response else {
            self.expect(c, Exchange::Bearer(known, Awaited::Token));
            self.write_client(c, |out| message::authentication_sasl_continue(out, &[]));
            return Ok(());
        };
        match oauth::read(response) {
            Ok(Response::Token(token)) => self.ask_judge(c, known, Secret::new(token)),
            Ok(response) => {
                let Phase::Login(login) = &self.clients[c].phase else { return Err(Step::Blocked) };
                let Some(Judge::OAuth(by)) = login.demand.judge.clone() else { return Err(Step::Blocked) };
                match response {
                    // A client that asks for the issuer returns with a token: this is not a refusal, and is neither counted nor logged.
                    Response::Discovery => self.tell_issuer(c, &by),
                    _ => self.refuse_token(c, &by),
                }
                Ok(())
            }
            Err(oauth::Error::Unsupported(_)) => {
                let text = "client uses authorization identity, but it is not supported";
                self.fail_login(c, Sqlstate::FEATURE_NOT_SUPPORTED, text);
                Err(Step::Gone)
            }
            Err(oauth::Error::Malformed(why)) => {
                self.metrics.clients_refused.add(1);
                self.log_refusal(c, Sqlstate::PROTOCOL_VIOLATION, &format!("{MALFORMED}: {why}"));
                self.fatal_with_detail(c, Sqlstate::PROTOCOL_VIOLATION, MALFORMED, why);
                Err(Step::Gone)
            }
            Err(error) => self.refuse_message(c, &error.to_string()),
        }
    }

    fn refuse_message(&mut self, c: usize, text: &str) -> Result<(), Step> {
        self.fail_login(c, Sqlstate::PROTOCOL_VIOLATION, text);
        Err(Step::Gone)
    }

    /// Refuses a token. The client is told the issuer, and gets the error after its answer. Many clients close the connection instead: so the refusal
    /// is counted and logged here.
    pub(super) fn refuse_token(&mut self, c: usize, by: &Options) {
        self.metrics.clients_refused.add(1);
        let text = self.refusal_of_token(c);
        self.log_refusal(c, Sqlstate::INVALID_AUTHORIZATION, &text);
        self.tell_issuer(c, by);
    }

    fn tell_issuer(&mut self, c: usize, by: &Options) {
        self.expect(c, Exchange::Farewell);
        let challenge = oauth::challenge(by.issuer.text(), &by.scope);
        self.write_client(c, |out| message::authentication_sasl_continue(out, &challenge));
    }

    /// Takes the client's answer to the challenge.
    pub(super) fn farewell(&mut self, c: usize, data: &[u8]) {
        if oauth::is_farewell(data) {
            let text = self.refusal_of_token(c);
            self.fatal(c, Sqlstate::INVALID_AUTHORIZATION, &text);
        } else {
            self.metrics.protocol_errors.add(1);
            let why = "expected one separator, and nothing else";
            self.fatal_with_detail(c, Sqlstate::PROTOCOL_VIOLATION, MALFORMED, why);
        }
    }

    fn refusal_of_token(&self, c: usize) -> String {
        let user = match &self.clients[c].phase {
            Phase::Login(login) => &*login.key.user,
            _ => "",
        };
        format!("OAuth bearer authentication failed for user {user:?}")
    }

    fn expect(&mut self, c: usize, exchange: Exchange) {
        if let Phase::Login(login) = &mut self.clients[c].phase {
            login.exchange = exchange;
        }
    }
}

/// True for a loopback address, also for an IPv4 address mapped to IPv6.
fn is_near(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}
