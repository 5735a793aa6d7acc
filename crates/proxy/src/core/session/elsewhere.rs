//! Logins whose password somebody else judges: a directory (method `ldap`) or PAM (method `pam`).

use std::sync::Arc;

use secret::Secret;
use wire::{Sqlstate, payload};

use super::client::{Phase, Step};
use super::login::{Exchange, Proved};
use crate::core::{Core, Effect};
use crate::settings::User;
use crate::verify::{Question, Verdict};

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
        let password = Secret::new(password);
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
        let judge = login.rule.as_ref().and_then(|rule| rule.judge.as_ref());
        let (name, who) = judge.map_or_else(Default::default, |judge| (judge.name(), judge.who()));
        let (known, password) = match std::mem::replace(&mut login.exchange, Exchange::Proved) {
            Exchange::Verifying(known, password) => (known, password),
            other => {
                login.exchange = other;
                return;
            }
        };
        match (verdict, known) {
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
                let text = format!("{who} could not be asked about the password: try again");
                self.fail_login(c, Sqlstate::CONNECTION_FAILURE, &text);
            }
        }
    }
}
