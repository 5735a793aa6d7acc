//! Verification of credentials outside of the proxy: passwords by directories (method `ldap` in rules) and by PAM (method `pam`), tokens by GSSAPI
//! (method `gss`) and by the keys of their issuers (method `oauth`).

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proxy::VerifyDesk;
use proxy::config::ProxyConfig;
use proxy::verify::{Judge, Question, Verdict};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::gss::Tokens;
use crate::ldap::Directory;
use crate::oauth::Issuers;
use crate::pam::Modules;

/// Most logins of one method that wait or are being verified. A further one is refused.
const MOST_WAITING: usize = 1_000;

/// The authenticators of all methods, for the life of the process.
pub struct ExternalAuthenticators {
    desk: VerifyDesk,
    directory: Queue<Directory>,
    modules: Queue<Modules>,
    tokens: Queue<Tokens>,
    issuers: Queue<Issuers>,
}

/// The questions to one authenticator.
struct Queue<T> {
    authenticator: Mutex<Arc<T>>,
    waiting: Arc<Semaphore>,
    /// Limit of concurrent questions. A reload does not change it.
    asking: Semaphore,
}

impl<T> Queue<T> {
    fn new(authenticator: T, most: usize) -> Queue<T> {
        let (waiting, asking) = (Arc::new(Semaphore::new(MOST_WAITING)), Semaphore::new(most.max(1)));
        Queue { authenticator: Mutex::new(Arc::new(authenticator)), waiting, asking }
    }

    fn current(&self) -> Arc<T> {
        self.authenticator.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the authenticator.
    fn set(&self, authenticator: T) {
        *self.authenticator.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(authenticator);
    }

    /// Asks in turn; the limit is for waiting and asking together. If the authenticator fails, `warn` gets the error.
    async fn ask<E>(
        &self,
        limit: Duration,
        late: impl FnOnce(Duration) -> E,
        asked: impl Future<Output = Result<Verdict, E>>,
        warn: impl FnOnce(E),
    ) -> Verdict {
        let in_turn = async {
            // Never closed.
            let _turn = self.asking.acquire().await;
            asked.await
        };
        timeout(limit, in_turn).await.unwrap_or_else(|_| Err(late(limit))).unwrap_or_else(|error| {
            warn(error);
            Verdict::Unknown
        })
    }
}

impl ExternalAuthenticators {
    /// Starts to answer the proxy's questions.
    pub fn start(desk: VerifyDesk, config: &ProxyConfig, runtime: &Handle) -> Arc<ExternalAuthenticators> {
        let authenticators = Arc::new(ExternalAuthenticators {
            desk,
            directory: Queue::new(Directory::of(&config.ldap), config.ldap.max_binds),
            modules: Queue::new(Modules::of(&config.pam), config.pam.max_checks),
            tokens: Queue::new(Tokens::of(&config.gss), config.gss.max_checks),
            // Most tokens need no question. The others wait for their issuer: one that hangs delays no other.
            issuers: Queue::new(Issuers::of(&config.oauth), MOST_WAITING),
        });
        let (serving, runtime) = (Arc::downgrade(&authenticators), runtime.clone());
        authenticators.desk.serve(Box::new(move |question| {
            let Some(authenticators) = serving.upgrade() else { return false };
            let waiting = match &question.by {
                Judge::Ldap(_) => &authenticators.directory.waiting,
                Judge::Pam(_) => &authenticators.modules.waiting,
                Judge::Gss(_) => &authenticators.tokens.waiting,
                Judge::OAuth(_) => &authenticators.issuers.waiting,
            };
            let Ok(place) = waiting.clone().try_acquire_owned() else { return false };
            drop(runtime.spawn(async move {
                let verdict = authenticators.verify(&question).await;
                authenticators.desk.answer(&question, verdict);
                drop(place);
            }));
            true
        }));
        authenticators
    }

    /// Takes over a new configuration.
    pub fn reload(&self, config: &ProxyConfig) {
        self.directory.set(Directory::of(&config.ldap));
        self.modules.set(Modules::of(&config.pam));
        self.tokens.set(Tokens::of(&config.gss));
        self.issuers.set(Issuers::of(&config.oauth));
    }

    async fn verify(&self, question: &Question) -> Verdict {
        use crate::{helper, ldap, oauth};
        let user = &*question.user;
        match &question.by {
            Judge::Ldap(by) => {
                let authenticator = self.directory.current();
                let asked = authenticator.ask(question, by);
                let warn =
                    |error| tracing::warn!(user, %error, "the LDAP server could not be asked about a user's password");
                self.directory.ask(authenticator.timeout(), ldap::Unable::Late, asked, warn).await
            }
            Judge::Pam(by) => {
                let authenticator = self.modules.current();
                let asked = authenticator.ask(question, by);
                let warn = |error| tracing::warn!(user, service = by.service, %error, "PAM could not be asked about a user's password");
                self.modules.ask(authenticator.timeout(), helper::Unable::Late, asked, warn).await
            }
            Judge::Gss(_) => {
                let authenticator = self.tokens.current();
                let asked = authenticator.ask(question);
                let warn = |error| tracing::warn!(user, %error, "a user's token of GSSAPI could not be looked at");
                self.tokens.ask(authenticator.timeout(), helper::Unable::Late, asked, warn).await
            }
            Judge::OAuth(by) => {
                let authenticator = self.issuers.current();
                let asked = authenticator.ask(question, by);
                let warn = |error| tracing::warn!(user, issuer = by.issuer.text(), %error, "a user's token could not be judged");
                self.issuers.ask(authenticator.timeout(), oauth::Unable::Late, asked, warn).await
            }
        }
    }
}
