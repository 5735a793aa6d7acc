//! Asks LDAP servers whether a client's password is its user's (method `ldap` in rules).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ldap3::{Ldap, LdapConnAsync, LdapConnSettings, LdapError, SearchOptions, SearchResult};
use proxy::VerifyDesk;
use proxy::config::LdapConfig;
use proxy::ldap::{Entry, Options, Scope};
use proxy::verify::{Question, Verdict};
use tls::{ConnectConfig, ConnectMode, Connector};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Most logins that wait for a directory or are being asked about. A further one is refused.
const MOST_WAITING: usize = 1_000;
/// Result codes of a server that can't answer now: operationsError, timeLimitExceeded, busy, unavailable, other.
const NOT_NOW: [u32; 5] = [1, 3, 51, 52, 80];
/// The result code of a search that has found more than it may give.
const SIZE_LIMIT_EXCEEDED: u32 = 4;

/// Asks directories, as long as the process runs.
pub(crate) struct Directory {
    desk: VerifyDesk,
    config: Mutex<LdapConfig>,
    waiting: Arc<Semaphore>,
    /// Questions at a time. A reload does not change their number.
    asking: Semaphore,
}

/// Why a directory could not judge. Contains no password.
#[derive(Debug, thiserror::Error)]
enum Unable {
    #[error("{server}: {source}")]
    Ldap { server: String, source: Box<LdapError> },
    #[error("{server}: the server said: {said}")]
    Refused { server: String, said: String },
    #[error("proxy.ldap.ca_file: {0}")]
    Tls(#[from] tls::Error),
    #[error("no answer within {0:?}")]
    Late(Duration),
}

impl Directory {
    /// Serves the proxy's questions from here on.
    pub(crate) fn start(desk: VerifyDesk, config: &LdapConfig, runtime: &Handle) -> Arc<Directory> {
        let directory = Arc::new(Directory {
            desk,
            config: Mutex::new(config.clone()),
            waiting: Arc::new(Semaphore::new(MOST_WAITING)),
            asking: Semaphore::new(config.max_binds.max(1)),
        });
        let (serving, runtime) = (Arc::downgrade(&directory), runtime.clone());
        directory.desk.serve(Box::new(move |question| {
            let Some(directory) = serving.upgrade() else { return false };
            let Ok(place) = directory.waiting.clone().try_acquire_owned() else { return false };
            drop(runtime.spawn(async move {
                let verdict = directory.judge(&question).await;
                directory.desk.answer(&question, verdict);
                drop(place);
            }));
            true
        }));
        directory
    }

    /// Takes a new configuration.
    pub(crate) fn reload(&self, config: &LdapConfig) {
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config.clone();
    }

    async fn judge(&self, question: &Question) -> Verdict {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let asked = async {
            // Never closed.
            let _turn = self.asking.acquire().await;
            ask_all(question, &config).await
        };
        let verdict = timeout(config.timeout, asked).await.unwrap_or(Err(Unable::Late(config.timeout)));
        verdict.unwrap_or_else(|error| {
            tracing::warn!(user = &*question.user, %error, "the LDAP server could not be asked about a user's password");
            Verdict::Unknown
        })
    }
}

/// Asks the servers in their order, until one answers.
async fn ask_all(question: &Question, config: &LdapConfig) -> Result<Verdict, Unable> {
    let servers = &question.by.servers;
    let settings = settings(&question.by, config, u32::try_from(servers.len()).unwrap_or(1))?;
    let mut failed = Unable::Late(config.timeout);
    for server in servers {
        match ask(question, server, &settings).await {
            Ok(verdict) => return Ok(verdict),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// How connections are made. A server that does not answer leaves time for those behind it.
fn settings(by: &Options, config: &LdapConfig, servers: u32) -> Result<LdapConnSettings, Unable> {
    let settings = LdapConnSettings::new().set_conn_timeout(config.timeout / (servers + 1)).set_starttls(by.starttls);
    if by.is_plain() {
        return Ok(settings);
    }
    let Some(file) = &config.ca_file else { return Ok(settings) };
    let of = ConnectConfig { mode: ConnectMode::VerifyFull, ca_file: Some(file.clone()), ..ConnectConfig::default() };
    Ok(match Connector::new(&of)? {
        Some(connector) => settings.set_config(connector.speaking(&[])),
        None => settings,
    })
}

async fn ask(question: &Question, server: &str, settings: &LdapConnSettings) -> Result<Verdict, Unable> {
    let failed = |source| Unable::Ldap { server: server.to_owned(), source: Box::new(source) };
    let refused = |said: &ldap3::LdapResult| Unable::Refused {
        server: server.to_owned(),
        said: format!("{} (result code {})", said.text.chars().take(200).collect::<String>(), said.rc),
    };
    // An empty password would be an anonymous bind, which succeeds.
    if question.password.expose().is_empty() {
        return Ok(Verdict::Wrong);
    }
    let name = match &question.by.entry {
        Entry::Named { .. } => question.by.entry.named(&question.user),
        Entry::Found { base, bind_dn, bind_password, scope, .. } => {
            let Some(filter) = question.by.entry.filter(&question.user) else { return Ok(Verdict::Wrong) };
            let mut session = Session::open(server, settings).await.map_err(failed)?;
            let bound = session.ldap.simple_bind(bind_dn, bind_password.expose()).await.map_err(failed)?;
            if bound.rc != 0 {
                return no_search(question, &bound, refused);
            }
            let scope = match scope {
                Scope::Base => ldap3::Scope::Base,
                Scope::One => ldap3::Scope::OneLevel,
                Scope::Sub => ldap3::Scope::Subtree,
            };
            // Two are enough to know that there is more than one. No attribute is needed.
            session.ldap.with_search_options(SearchOptions::new().sizelimit(2));
            let SearchResult(entries, result) =
                session.ldap.search(base, scope, &filter, vec!["1.1"]).await.map_err(failed)?;
            if result.rc != 0 && result.rc != SIZE_LIMIT_EXCEEDED {
                return no_search(question, &result, refused);
            }
            let mut found = entries.into_iter().filter(|entry| !entry.is_ref() && !entry.is_intermediate());
            match (found.next(), found.next()) {
                (Some(entry), None) => Some(ldap3::SearchEntry::construct(entry).dn),
                _ => None,
            }
        }
    };
    // A bind without a name would be anonymous, too.
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(Verdict::Wrong) };
    let mut session = Session::open(server, settings).await.map_err(failed)?;
    let bound = session.ldap.simple_bind(&name, question.password.expose()).await.map_err(failed)?;
    match bound.rc {
        0 => Ok(Verdict::Right),
        code if NOT_NOW.contains(&code) => Err(refused(&bound)),
        _ => Ok(Verdict::Wrong),
    }
}

/// A directory does not let the rule's own user search. As with PostgreSQL nobody gets in by that; the log says why.
fn no_search(
    question: &Question,
    said: &ldap3::LdapResult,
    refused: impl FnOnce(&ldap3::LdapResult) -> Unable,
) -> Result<Verdict, Unable> {
    let error = refused(said);
    if NOT_NOW.contains(&said.rc) {
        return Err(error);
    }
    tracing::warn!(user = &*question.user, %error, "the search of a rule with the method ldap was refused");
    Ok(Verdict::Wrong)
}

/// A connection; closed when it is dropped.
struct Session {
    ldap: Ldap,
    drive: tokio::task::AbortHandle,
}

impl Session {
    async fn open(server: &str, settings: &LdapConnSettings) -> Result<Session, LdapError> {
        let (connection, ldap) = LdapConnAsync::with_settings(settings.clone(), server).await?;
        let drive = tokio::spawn(async move { drop(connection.drive().await) }).abort_handle();
        Ok(Session { ldap, drive })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.drive.abort();
    }
}
