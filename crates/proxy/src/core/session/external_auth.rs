//! Logins verified by an external authenticator: a password by a directory (method `ldap`) or PAM (method `pam`), a token by GSSAPI (method `gss`) or
//! by the holder of the issuers' keys (method `oauth`).

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secret::Secret;
use wire::{Sqlstate, message, payload};

use super::client::{Phase, Step};
use super::login::{Exchange, Proved};
use crate::core::{Core, Effect};
use crate::settings::User;
use crate::verify::{Judge, Question, Verdict};

impl Core {
    /// Has the client's authenticator verify the password in a client's `PasswordMessage`.
    pub(super) fn verify_elsewhere(&mut self, c: usize, known: Option<Arc<User>>, message: &[u8]) -> Result<(), Step> {
        let password = payload::cstr(message).filter(|(_, rest)| rest.is_empty());
        let Some(Ok(password)) = password.map(|(password, _)| std::str::from_utf8(password)) else {
            self.violation(c, "expected a password in UTF-8");
            return Err(Step::Gone);
        };
        // A directory treats a bind without a password as anonymous, and it succeeds. PostgreSQL also refuses an empty password for PAM.
        if password.is_empty() {
            self.fail_login(c, Sqlstate::INVALID_PASSWORD, "empty password returned by client");
            return Err(Step::Gone);
        }
        self.ask_judge(c, known, Secret::new(password))
    }

    /// Has GSSAPI verify the token in a client's `GSSResponse`. Kerberos needs one token.
    pub(super) fn verify_token(&mut self, c: usize, known: Option<Arc<User>>, token: &[u8]) -> Result<(), Step> {
        if token.is_empty() {
            self.violation(c, "expected a token of GSSAPI");
            return Err(Step::Gone);
        }
        self.ask_judge(c, known, Secret::new(STANDARD.encode(token)))
    }

    /// Sends the question to the client's authenticator.
    pub(super) fn ask_judge(&mut self, c: usize, known: Option<Arc<User>>, password: Secret) -> Result<(), Step> {
        let (client, from) = (self.clients[c].token, self.clients[c].address);
        let Phase::Login(login) = &mut self.clients[c].phase else { return Err(Step::Blocked) };
        let Some(by) = login.demand.judge.clone() else { return Err(Step::Blocked) };
        login.exchange = Exchange::Verifying(known, password.clone());
        let user = login.key.user.clone();
        let question = Question { user, password, by, from, waiting: (self.id, client) };
        self.effects.push(Effect::Verify(Box::new(question)));
        Ok(())
    }

    /// Handles the authenticator's verdict on a client's password or token.
    pub(in crate::core) fn verified(&mut self, c: usize, verdict: Verdict) {
        let Phase::Login(login) = &mut self.clients[c].phase else { return };
        let user = login.key.user.clone();
        let console = login.console.is_some();
        let demand = login.demand.clone();
        let Some(judge) = &demand.judge else { return };
        let (known, password) = match std::mem::replace(&mut login.exchange, Exchange::Proved) {
            Exchange::Verifying(known, password) => (known, password),
            other => {
                login.exchange = other;
                return;
            }
        };
        let map = demand.map.as_deref();
        let right = match verdict {
            Verdict::Right => known.is_some(),
            Verdict::Is(proven) => {
                if !proven.reply.is_empty() {
                    self.write_client(c, |out| message::authentication_gss_continue(out, &proven.reply));
                }
                let maps = &self.settings.maps;
                let is_user = match judge {
                    Judge::Gss(options) => {
                        options.allow(&proven.name, &user, map, maps, self.settings.any_case_of_principals)
                    }
                    _ => maps.allow(map, &proven.name, &user),
                };
                if !is_user {
                    tracing::info!(user = &*user, name = proven.name, "who has proved to be this may not be the user");
                }
                known.is_some() && is_user
            }
            Verdict::Wrong => false,
            // The reason is in the log; a client that has not authenticated is not told.
            Verdict::Unknown => {
                let text = format!("{} could not be asked about the {}: try again", judge.who(), judge.what());
                return self.fail_login(c, Sqlstate::CONNECTION_FAILURE, &text);
            }
        };
        match judge {
            _ if right => {
                // A token is of no use to a server, and must not be kept.
                if !console && !matches!(judge, Judge::OAuth(_) | Judge::Gss(_)) {
                    self.remember(&user, None, Proved::Password(password));
                }
                self.proved(c);
            }
            Judge::OAuth(by) => self.refuse_token(c, by),
            _ => {
                let text = format!("{} authentication failed for user {user:?}", judge.name());
                self.fail_login(c, Sqlstate::INVALID_AUTHORIZATION, &text);
            }
        }
    }
}
