//! Proofs that somebody else than a worker judges: passwords by a directory or PAM, tokens by GSSAPI or by whoever knows the keys of their issuers.
//!
//! ```text
//!  core: has a client's proof ─Effect::Verify─▶ Verifier ─▶ whoever asks the judge
//!        lets in or refuses ◀─Mail::Verified──────────────────┘
//! ```
//!
//! How many are asked about at a time is bounded by whoever asks. A client that has gone meanwhile is not missed: its token fits nobody.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use secret::Secret;

use crate::config::AuthMethod;
use crate::core::token::Token;
use crate::{gss, ldap, oauth, pam};

/// Who judges passwords or tokens, by a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judge {
    /// A directory.
    Ldap(Arc<ldap::Options>),
    /// The modules of a service of PAM.
    Pam(Arc<pam::Options>),
    /// GSSAPI, of a token.
    Gss(Arc<gss::Options>),
    /// Whoever knows the keys of an issuer of tokens.
    OAuth(Arc<oauth::Options>),
}

impl Judge {
    /// The method's name, as PostgreSQL's errors have it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Judge::Ldap(_) => "LDAP",
            Judge::Pam(_) => "PAM",
            Judge::Gss(_) => "GSSAPI",
            Judge::OAuth(_) => "OAuth bearer",
        }
    }

    /// Who could not be asked, in an error.
    pub(crate) fn who(&self) -> &'static str {
        match self {
            Judge::Ldap(_) => "the LDAP server",
            Judge::Pam(_) => "PAM",
            Judge::Gss(_) => "GSSAPI",
            Judge::OAuth(_) => "the issuer of tokens",
        }
    }

    /// What it is asked about.
    pub(crate) fn what(&self) -> &'static str {
        match self {
            Judge::Ldap(_) | Judge::Pam(_) => "password",
            Judge::Gss(_) | Judge::OAuth(_) => "token",
        }
    }
}

/// The options of a rule whose method has a judge, as they are read.
pub(crate) enum Reading {
    Ldap(Box<ldap::Reading>),
    Pam(pam::Reading),
    Gss(gss::Reading),
    OAuth(oauth::Reading),
}

impl Reading {
    /// For the options of a rule with this method; `None` if the method has no judge.
    pub(crate) fn of(method: AuthMethod) -> Option<Reading> {
        match method {
            AuthMethod::Ldap => Some(Reading::Ldap(Box::default())),
            AuthMethod::Pam => Some(Reading::Pam(pam::Reading::default())),
            AuthMethod::Gss => Some(Reading::Gss(gss::Reading::default())),
            AuthMethod::OAuth => Some(Reading::OAuth(oauth::Reading::default())),
            _ => None,
        }
    }

    /// Takes one option; false if there is none of that name.
    ///
    /// # Errors
    /// What was found, and what was expected. Never a password.
    pub(crate) fn take(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match self {
            Reading::Ldap(directory) => directory.take(name, value),
            Reading::Pam(modules) => modules.take(name, value),
            Reading::Gss(tokens) => tokens.take(name, value),
            Reading::OAuth(issuer) => issuer.take(name, value),
        }
    }

    /// The whole. `map`: the rule has a name map.
    ///
    /// # Errors
    /// Options that make no sense together.
    pub(crate) fn finish(self, map: bool) -> Result<Judge, String> {
        Ok(match self {
            Reading::Ldap(directory) => Judge::Ldap(Arc::new(directory.finish()?)),
            Reading::Pam(modules) => Judge::Pam(Arc::new(modules.finish())),
            Reading::Gss(tokens) => Judge::Gss(Arc::new(tokens.finish())),
            Reading::OAuth(issuer) => Judge::OAuth(Arc::new(issuer.finish(map)?)),
        })
    }
}

/// Whether a client's password is its user's, or whose its token is.
#[derive(Debug)]
pub struct Question {
    /// The user.
    pub user: Arc<str>,
    /// The password, never empty: a directory would take an empty one for an anonymous bind, which succeeds. With the method `oauth` the token,
    /// with `gss` the token in base64.
    pub password: Secret,
    /// Who judges.
    pub by: Judge,
    /// The client's address; `None` over a Unix socket.
    pub from: Option<IpAddr>,
    /// The worker that waits, and its client.
    pub(crate) waiting: (usize, Token),
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Right,
    /// It is good, and its bearer is called so. Whether that may be the user the core decides, by the rule.
    Is(Box<Proven>),
    /// It is not, or there is no such user, or the user may not log in.
    Wrong,
    /// That could not be found out.
    Unknown,
}

/// Whom a judge has found a client to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proven {
    /// The name by which the judge knows the client: a principal of Kerberos.
    pub name: String,
    /// What the client is to be sent, so that it can be sure of the proxy, too; empty: nothing.
    pub reply: Vec<u8>,
}

/// Takes a question; false if it can take no more. Must not block.
pub type Ask = Box<dyn Fn(Question) -> bool + Send + Sync>;

/// The way to whoever judges.
#[derive(Default)]
pub(crate) struct Verifier {
    ask: OnceLock<Ask>,
}

impl Verifier {
    /// Sets who judges. Only the first call counts.
    pub(crate) fn serve(&self, ask: Ask) {
        let _ = self.ask.set(ask);
    }

    /// Asks; false if nobody can take the question.
    pub(crate) fn ask(&self, question: Question) -> bool {
        self.ask.get().is_some_and(|ask| ask(question))
    }
}
