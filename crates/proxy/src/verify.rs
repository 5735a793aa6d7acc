//! Verification of proofs outside of the workers: of passwords by a directory or PAM, of tokens by GSSAPI or by the holder of the issuers' keys.
//!
//! ```text
//!  core: has a client's proof ─Effect::Verify─▶ Verifier ─▶ the service that asks the authenticator
//!        accepts or refuses ◀─CoreMessage::Verified───────────┘
//! ```
//!
//! That service limits the number of concurrent questions. The answer for a client that has left meanwhile is ignored: its token matches no client.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use secret::Secret;

use crate::config::AuthMethod;
use crate::core::token::Token;
use crate::{gss, ldap, oauth, pam};

/// Authenticator of passwords or tokens, by a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judge {
    /// A directory.
    Ldap(Arc<ldap::Options>),
    /// The modules of a PAM service.
    Pam(Arc<pam::Options>),
    /// GSSAPI, for a token.
    Gss(Arc<gss::Options>),
    /// The holder of the keys of an issuer of tokens.
    OAuth(Arc<oauth::Options>),
}

impl Judge {
    /// Returns the method's name, as in PostgreSQL's errors.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Judge::Ldap(_) => "LDAP",
            Judge::Pam(_) => "PAM",
            Judge::Gss(_) => "GSSAPI",
            Judge::OAuth(_) => "OAuth bearer",
        }
    }

    /// Returns the authenticator's name, for an error about its failure.
    pub(crate) fn who(&self) -> &'static str {
        match self {
            Judge::Ldap(_) => "the LDAP server",
            Judge::Pam(_) => "PAM",
            Judge::Gss(_) => "GSSAPI",
            Judge::OAuth(_) => "the issuer of tokens",
        }
    }

    /// Returns the kind of proof.
    pub(crate) fn what(&self) -> &'static str {
        match self {
            Judge::Ldap(_) | Judge::Pam(_) => "password",
            Judge::Gss(_) | Judge::OAuth(_) => "token",
        }
    }
}

/// Options of a rule whose method has an authenticator, while they are parsed.
pub(crate) enum Reading {
    Ldap(Box<ldap::Reading>),
    Pam(pam::Reading),
    Gss(gss::Reading),
    OAuth(oauth::Reading),
}

impl Reading {
    /// Starts parsing the options of a rule with this method; `None` if the method has no authenticator.
    pub(crate) fn of(method: AuthMethod) -> Option<Reading> {
        match method {
            AuthMethod::Ldap => Some(Reading::Ldap(Box::default())),
            AuthMethod::Pam => Some(Reading::Pam(pam::Reading::default())),
            AuthMethod::Gss => Some(Reading::Gss(gss::Reading::default())),
            AuthMethod::OAuth => Some(Reading::OAuth(oauth::Reading::default())),
            _ => None,
        }
    }

    /// Parses one option; returns false if the name is unknown.
    ///
    /// # Errors
    /// A message with the found and the expected text, never with a password.
    pub(crate) fn take(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match self {
            Reading::Ldap(directory) => directory.take(name, value),
            Reading::Pam(modules) => modules.take(name, value),
            Reading::Gss(tokens) => tokens.take(name, value),
            Reading::OAuth(issuer) => issuer.take(name, value),
        }
    }

    /// Returns the authenticator. `map`: the rule has a name map.
    ///
    /// # Errors
    /// Options that are missing, or that exclude each other.
    pub(crate) fn finish(self, map: bool) -> Result<Judge, String> {
        Ok(match self {
            Reading::Ldap(directory) => Judge::Ldap(Arc::new(directory.finish()?)),
            Reading::Pam(modules) => Judge::Pam(Arc::new(modules.finish())),
            Reading::Gss(tokens) => Judge::Gss(Arc::new(tokens.finish())),
            Reading::OAuth(issuer) => Judge::OAuth(Arc::new(issuer.finish(map)?)),
        })
    }
}

/// Question to an authenticator: is this the user's password, or who is the token's bearer?
#[derive(Debug)]
pub struct Question {
    /// The user.
    pub user: Arc<str>,
    /// The password, never empty: a directory would treat an empty one as an anonymous bind, which succeeds. With the method `oauth` the token, with
    /// `gss` the token in base64.
    pub password: Secret,
    /// The authenticator.
    pub by: Judge,
    /// The client's address; `None` over a Unix socket.
    pub from: Option<IpAddr>,
    /// The waiting client, with its worker.
    pub(crate) waiting: (usize, Token),
}

/// Answer of an authenticator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The proof is correct.
    Right,
    /// The proof is correct, and its bearer has this name. The core decides by the rule if that may be the user.
    Is(Box<Proven>),
    /// The proof is wrong, or the user does not exist, or may not log in.
    Wrong,
    /// The authenticator could not be asked.
    Unknown,
}

/// A client's identity, according to an authenticator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proven {
    /// Name of the client for the authenticator: a Kerberos principal.
    pub name: String,
    /// Reply for the client, which proves the proxy's identity to it; empty for none.
    pub reply: Vec<u8>,
}

/// Takes a question; returns false if no more are accepted. Must not block.
pub type Ask = Box<dyn Fn(Question) -> bool + Send + Sync>;

/// Connection to the service that asks authenticators.
#[derive(Default)]
pub(crate) struct Verifier {
    ask: OnceLock<Ask>,
}

impl Verifier {
    /// Sets the function that takes questions. Only the first call has an effect.
    pub(crate) fn serve(&self, ask: Ask) {
        let _ = self.ask.set(ask);
    }

    /// Sends a question; returns false if it is not accepted.
    pub(crate) fn ask(&self, question: Question) -> bool {
        self.ask.get().is_some_and(|ask| ask(question))
    }
}
