//! Verification of the tokens that clients log in with (method `oauth` in rules): signed by the rule's issuer, whose keys are read by HTTP.
//!
//! ```text
//!  a token ─▶ its key is known, and was read lately ──────────────────▶ verdict
//!                └── no: the issuer is asked, by one login at a time,
//!                        once in a few seconds ──────────────────────▶ verdict
//! ```
//!
//! Invariants:
//! - A login whose key is known never waits for a silent issuer, while the keys are not too old.
//! - Issuers are independent: each has its own keys, turn and number of waiting logins.
//! - Invented key names make the issuer be asked no more often than once in [`AGAIN`].
//! - No error and no log contains the token.

mod issuer;
mod token;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proxy::config::OAuthConfig;
use proxy::oauth::Options;
use proxy::verify::{Proven, Question, Verdict};
use tls::{ConnectConfig, ConnectMode, Connector};
use tokio::sync::Semaphore;

use token::{Bad, Demands, Head, Keys};

/// Age up to which keys are used without a request.
const FRESH: Duration = Duration::from_secs(600);
/// Age from which keys are no longer used, even if their issuer cannot be reached.
const STALE: Duration = Duration::from_secs(3600);
/// Least time between two requests to an issuer.
const AGAIN: Duration = Duration::from_secs(5);

/// `[proxy.oauth]` since the start or the last reload, and the issuers' keys read since then.
pub(crate) struct Issuers {
    config: OAuthConfig,
    /// Connector with the CAs; made when a rule first needs TLS, because the system's CAs are many.
    connector: OnceLock<Arc<Connector>>,
    /// Issuers of the rules, so no more than there are rules.
    known: Mutex<HashMap<String, Arc<Issuer>>>,
}

/// The reason why a token could not be verified. Contains no part of it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unable {
    #[error("{url}: {why}")]
    Asked { url: String, why: String },
    #[error("{0} could not be asked a moment ago, and is not asked again before {AGAIN:?} are over")]
    Lately(String),
    #[error("{0}: proxy.oauth.max_questions logins wait for its answer already")]
    Many(String),
    #[error("the CAs that verify issuers (proxy.oauth.ca_file, or the system's): {0}")]
    Tls(#[from] tls::Error),
    #[error("no answer within {0:?}")]
    Late(Duration),
}

/// State of an issuer.
struct Issuer {
    learned: Mutex<Learned>,
    /// Held by the login that asks the issuer.
    turn: tokio::sync::Mutex<()>,
    /// Limit of logins that wait for an answer.
    waiting: Semaphore,
}

#[derive(Default)]
struct Learned {
    keys: Option<(Arc<Keys>, Instant)>,
    tried: Option<Instant>,
}

impl Issuer {
    fn learned(&self) -> std::sync::MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the keys, with their age, unless they are too old.
    fn keys(&self, now: Instant) -> Option<(Arc<Keys>, Duration)> {
        let learned = self.learned();
        let (keys, read) = learned.keys.as_ref()?;
        let age = now.saturating_duration_since(*read);
        (age < STALE).then(|| (keys.clone(), age))
    }

    /// Returns true if the issuer may be asked now, and counts the request.
    fn may_ask(&self, now: Instant) -> bool {
        let mut learned = self.learned();
        let may = learned.tried.is_none_or(|tried| now.saturating_duration_since(tried) >= AGAIN);
        if may {
            learned.tried = Some(now);
        }
        may
    }
}

impl Issuers {
    /// Makes the issuers as configured.
    pub(crate) fn of(config: &OAuthConfig) -> Issuers {
        Issuers { config: config.clone(), connector: OnceLock::new(), known: Mutex::default() }
    }

    /// Longest time for a request.
    pub(crate) fn timeout(&self) -> Duration {
        self.config.timeout
    }

    /// Verifies a token.
    pub(crate) async fn ask(&self, question: &Question, by: &Options) -> Result<Verdict, Unable> {
        let decided = match Head::read(question.password.expose()) {
            Ok(head) => {
                let keys = self.keys_for(&head, by).await?;
                self.decide(&head, &keys, question, by)
            }
            Err(why) => Err(why),
        };
        Ok(decided.unwrap_or_else(|why| {
            tracing::debug!(user = &*question.user, issuer = by.issuer.text(), %why, "a token is not good");
            Verdict::Wrong
        }))
    }

    fn decide(&self, head: &Head<'_>, keys: &Keys, question: &Question, by: &Options) -> Result<Verdict, Bad> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(u64::MAX, |since| since.as_secs());
        let audience = &self.config.audience;
        let claims = head.verify(keys, &Demands { issuer: by.issuer.text(), audience, scope: &by.scope, now })?;
        if by.delegates {
            // Without such a claim no login is accepted.
            let claim = self.config.users_claim.as_deref().ok_or(Bad::User)?;
            return claims.lets_be(claim, &question.user).map(|()| Verdict::Right);
        }
        let name = claims.name(&self.config.claim)?.to_owned();
        Ok(Verdict::Is(Box::new(Proven { name, reply: Vec::new() })))
    }

    fn issuer(&self, name: &str) -> Arc<Issuer> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            Arc::new(Issuer {
                learned: Mutex::default(),
                turn: tokio::sync::Mutex::default(),
                waiting: Semaphore::new(self.config.max_questions.max(1)),
            })
        };
        known.entry(name.to_owned()).or_insert_with(new).clone()
    }

    /// Returns the issuer's keys, with that of the token if the issuer has it.
    async fn keys_for(&self, head: &Head<'_>, by: &Options) -> Result<Arc<Keys>, Unable> {
        let name = by.issuer.text();
        let issuer = self.issuer(name);
        let known = issuer.keys(Instant::now()).filter(|(keys, _)| keys.has(head));
        if let Some((keys, age)) = known {
            if age < FRESH {
                return Ok(keys);
            }
            // One login asks anew and waits; the others use the known keys, as it does itself if the issuer cannot be reached.
            let Ok(_turn) = issuer.turn.try_lock() else { return Ok(keys) };
            if !issuer.may_ask(Instant::now()) {
                return Ok(keys);
            }
            let asked = tokio::time::timeout(self.config.timeout / 2, self.read(&issuer, by)).await;
            return match asked.unwrap_or(Err(Unable::Late(self.config.timeout / 2))) {
                Ok(keys) => Ok(keys),
                Err(error) => {
                    tracing::warn!(issuer = name, %error, "the keys of an issuer of tokens could not be read again; the last ones serve for an hour");
                    Ok(keys)
                }
            };
        }
        let Ok(_place) = issuer.waiting.try_acquire() else { return Err(Unable::Many(name.to_owned())) };
        let _turn = issuer.turn.lock().await;
        // The earlier holder of the turn may have read the key.
        let now = Instant::now();
        let known = issuer.keys(now);
        match known {
            Some((keys, _)) if keys.has(head) => Ok(keys),
            _ if issuer.may_ask(now) => self.read(&issuer, by).await,
            Some((keys, _)) => Ok(keys),
            None => Err(Unable::Lately(name.to_owned())),
        }
    }

    async fn read(&self, issuer: &Issuer, by: &Options) -> Result<Arc<Keys>, Unable> {
        let keys = Arc::new(issuer::read_keys(&by.issuer, || self.connector()).await?);
        issuer.learned().keys = Some((keys.clone(), Instant::now()));
        Ok(keys)
    }

    fn connector(&self) -> Result<Arc<Connector>, tls::Error> {
        if let Some(connector) = self.connector.get() {
            return Ok(connector.clone());
        }
        let file = self.config.ca_file.as_deref().unwrap_or_else(|| tls::system_authorities());
        let of = ConnectConfig {
            mode: ConnectMode::VerifyFull,
            ca_file: Some(PathBuf::from(file)),
            ..ConnectConfig::default()
        };
        let connector =
            Connector::new(&of)?.ok_or(tls::Error::Missing { setting: "mode", why: "it is verify-full" })?;
        Ok(self.connector.get_or_init(|| Arc::new(connector)).clone())
    }
}
