//! Logins whose proof somebody else judges: a password a directory (method `ldap`) or PAM (method `pam`), a token GSSAPI (method `gss`).

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
    /// Has the judge of the client's rule judge the password in a client's `PasswordMessage`.
    pub(super) fn verify_elsewhere(&mut self, c: usize, known: Option<Arc<User>>, message: &[u8]) -> Result<(), Step> {
        let password = payload::cstr(message).filter(|(_, rest)| rest.is_empty());
        let Some(Ok(password)) = password.map(|(password, _)| std::str::from_utf8(password)) else {
            self.violation(c, "expected a password in UTF-8");
            return Err(Step::Gone);
        };
        // A directory takes a bind without a password for an anonymous one, which succeeds. PostgreSQL refuses an empty one by PAM, too.
        if password.is_empty() {
            self.fail_login(c, Sqlstate::INVALID_PASSWORD, "empty password returned by client");
            return Err(Step::Gone);
        }
        self.ask_judge(c, known, Secret::new(password))
    }

    /// Has GSSAPI look at the token in a client's `GSSResponse`. Kerberos needs one.
    pub(super) fn verify_token(&mut self, c: usize, known: Option<Arc<User>>, token: &[u8]) -> Result<(), Step> {
        if token.is_empty() {
            self.violation(c, "expected a token of GSSAPI");
            return Err(Step::Gone);
        }
        self.ask_judge(c, known, Secret::new(STANDARD.encode(token)))
    }

    /// Puts the question to the judge of the client's rule.
    fn ask_judge(&mut self, c: usize, known: Option<Arc<User>>, password: Secret) -> Result<(), Step> {
        let (client, from) = (self.clients[c].token, self.clients[c].address);
        let Phase::Login(login) = &mut self.clients[c].phase else { return Err(Step::Blocked) };
        let Some(by) = login.rule.as_ref().and_then(|rule| rule.judge.clone()) else { return Err(Step::Blocked) };
        login.exchange = Exchange::Verifying(known, password.clone());
        let user = login.key.user.clone();
        let question = Question { user, password, by, from, waiting: (self.id, client) };
        self.effects.push(Effect::Verify(Box::new(question)));
        Ok(())
    }

    /// Takes the judge's word on a client's password.
    pub(in crate::core) fn verified(&mut self, c: usize, verdict: Verdict) {
        let Phase::Login(login) = &mut self.clients[c].phase else { return };
        let user = login.key.user.clone();
        let console = login.console.is_some();
        let rule = login.rule.clone();
        let judge = rule.as_ref().and_then(|rule| rule.judge.as_ref());
        let (name, who) = judge.map_or_else(Default::default, |judge| (judge.name(), judge.who()));
        let (known, password) = match std::mem::replace(&mut login.exchange, Exchange::Proved) {
            Exchange::Verifying(known, password) => (known, password),
            other => {
                login.exchange = other;
                return;
            }
        };
        match (verdict, known) {
            // Whom a token has proved has no password that servers would take.
            (Verdict::Is(proven), known) => {
                if !proven.reply.is_empty() {
                    self.tell(c, |out| message::authentication_gss_continue(out, &proven.reply));
                }
                let map = rule.as_ref().and_then(|rule| rule.map.as_deref());
                let (maps, any_case) = (&self.settings.maps, self.settings.any_case_of_principals);
                let is_user = match judge {
                    Some(Judge::Gss(options)) => options.allow(&proven.name, &user, map, maps, any_case),
                    Some(Judge::Ldap(_) | Judge::Pam(_)) | None => false,
                };
                if is_user && known.is_some() {
                    return self.proved(c);
                }
                tracing::info!(user = &*user, principal = proven.name, "GSSAPI's principal may not be the user");
                let text = format!("{name} authentication failed for user {user:?}");
                self.fail_login(c, Sqlstate::INVALID_AUTHORIZATION, &text);
            }
            (Verdict::Right, Some(_)) => {
                if !console {
                    self.remember(&user, None, Proved::Password(password));
                }
                self.proved(c);
            }
            (Verdict::Right | Verdict::Wrong, _) => {
                let text = format!("{name} authentication failed for user {user:?}");
                self.fail_login(c, Sqlstate::INVALID_AUTHORIZATION, &text);
            }
            // The reason is in the log; a client that has not authenticated is not told.
            (Verdict::Unknown, _) => {
                let what = if matches!(judge, Some(Judge::Gss(_))) { "token" } else { "password" };
                let text = format!("{who} could not be asked about the {what}: try again");
                self.fail_login(c, Sqlstate::CONNECTION_FAILURE, &text);
            }
        }
    }
}
