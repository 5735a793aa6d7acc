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
pub struct Judges {
    desk: VerifyDesk,
    directory: Queue<Directory>,
    modules: Queue<Modules>,
    tokens: Queue<Tokens>,
    issuers: Queue<Issuers>,
}

/// The questions to one authenticator.
struct Queue<T> {
    judge: Mutex<Arc<T>>,
    waiting: Arc<Semaphore>,
    /// Limit of concurrent questions. A reload does not change it.
    asking: Semaphore,
}

impl<T> Queue<T> {
    fn new(judge: T, most: usize) -> Queue<T> {
        let (waiting, asking) = (Arc::new(Semaphore::new(MOST_WAITING)), Semaphore::new(most.max(1)));
        Queue { judge: Mutex::new(Arc::new(judge)), waiting, asking }
    }

    fn judge(&self) -> Arc<T> {
        self.judge.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the authenticator.
    fn set(&self, judge: T) {
        *self.judge.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(judge);
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

impl Judges {
    /// Starts to answer the proxy's questions.
    pub fn start(desk: VerifyDesk, config: &ProxyConfig, runtime: &Handle) -> Arc<Judges> {
        let judges = Arc::new(Judges {
            desk,
            directory: Queue::new(Directory::of(&config.ldap), config.ldap.max_binds),
            modules: Queue::new(Modules::of(&config.pam), config.pam.max_checks),
            tokens: Queue::new(Tokens::of(&config.gss), config.gss.max_checks),
            // Most tokens need no question. The others wait for their issuer: one that hangs delays no other.
            issuers: Queue::new(Issuers::of(&config.oauth), MOST_WAITING),
        });
        let (serving, runtime) = (Arc::downgrade(&judges), runtime.clone());
        judges.desk.serve(Box::new(move |question| {
            let Some(judges) = serving.upgrade() else { return false };
            let waiting = match &question.by {
                Judge::Ldap(_) => &judges.directory.waiting,
                Judge::Pam(_) => &judges.modules.waiting,
                Judge::Gss(_) => &judges.tokens.waiting,
                Judge::OAuth(_) => &judges.issuers.waiting,
            };
            let Ok(place) = waiting.clone().try_acquire_owned() else { return false };
            drop(runtime.spawn(async move {
                let verdict = judges.judge(&question).await;
                judges.desk.answer(&question, verdict);
                drop(place);
            }));
            true
        }));
        judges
    }

    /// Takes over a new configuration.
    pub fn reload(&self, config: &ProxyConfig) {
        self.directory.set(Directory::of(&config.ldap));
        self.modules.set(Modules::of(&config.pam));
        self.tokens.set(Tokens::of(&config.gss));
        self.issuers.set(Issuers::of(&config.oauth));
    }

    async fn judge(&self, question: &Question) -> Verdict {
        use crate::{helper, ldap, oauth};
        let user = &*question.user;
        match &question.by {
            Judge::Ldap(by) => {
                let judge = self.directory.judge();
                let asked = judge.ask(question, by);
                let warn =
                    |error| tracing::warn!(user, %error, "the LDAP server could not be asked about a user's password");
                self.directory.ask(judge.timeout(), ldap::Unable::Late, asked, warn).await
            }
            Judge::Pam(by) => {
                let judge = self.modules.judge();
                let asked = judge.ask(question, by);
                let warn = |error| tracing::warn!(user, service = by.service, %error, "PAM could not be asked about a user's password");
                self.modules.ask(judge.timeout(), helper::Unable::Late, asked, warn).await
            }
            Judge::Gss(_) => {
                let judge = self.tokens.judge();
                let asked = judge.ask(question);
                let warn = |error| tracing::warn!(user, %error, "a user's token of GSSAPI could not be looked at");
                self.tokens.ask(judge.timeout(), helper::Unable::Late, asked, warn).await
            }
            Judge::OAuth(by) => {
                let judge = self.issuers.judge();
                let asked = judge.ask(question, by);
                let warn = |error| tracing::warn!(user, issuer = by.issuer.text(), %error, "a user's token could not be judged");
                self.issuers.ask(judge.timeout(), oauth::Unable::Late, asked, warn).await
            }
        }
    }
}
