//! Verification of clients' passwords by LDAP servers (method `ldap` in rules).

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use ldap3::{Ldap, LdapConnAsync, LdapConnSettings, LdapError, SearchOptions, SearchResult};
use proxy::config::LdapConfig;
use proxy::ldap::{Entry, Options, Scope};
use proxy::verify::{Question, Verdict};
use tls::{ConnectConfig, ConnectMode, Connector};

/// Result codes of a server that cannot answer now: operationsError, timeLimitExceeded, busy, unavailable, other.
const NOT_NOW: [u32; 5] = [1, 3, 51, 52, 80];
/// Result code of a search with more results than its limit.
const SIZE_LIMIT_EXCEEDED: u32 = 4;

/// `[proxy.ldap]` since the start or the last reload.
pub(crate) struct Directory {
    config: LdapConfig,
    /// Connector with the CAs; made when a rule first needs TLS, because the system's CAs are many.
    connector: OnceLock<Connector>,
}

/// The reason why a directory could not verify. Contains no password.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unable {
    #[error("{server}: {source}")]
    Ldap { server: String, source: Box<LdapError> },
    #[error("{server}: the server said: {said}")]
    Refused { server: String, said: String },
    #[error("the CAs that verify LDAP servers (proxy.ldap.ca_file, or the system's): {0}")]
    Tls(#[from] tls::Error),
    #[error("no answer within {0:?}")]
    Late(Duration),
}

impl Directory {
    /// Makes the directory as configured.
    pub(crate) fn of(config: &LdapConfig) -> Directory {
        Directory { config: config.clone(), connector: OnceLock::new() }
    }

    /// Longest time for a question.
    pub(crate) fn timeout(&self) -> Duration {
        self.config.timeout
    }

    /// Asks the servers in their order, until one answers.
    pub(crate) async fn ask(&self, question: &Question, by: &Options) -> Result<Verdict, Unable> {
        let settings = self.settings(by)?;
        let mut failed = Unable::Late(self.config.timeout);
        for server in &by.servers {
            match ask(question, by, server, &settings).await {
                Ok(verdict) => return Ok(verdict),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Returns the file with the CAs that verify LDAP servers.
    fn authorities(&self) -> &Path {
        self.config.ca_file.as_deref().unwrap_or_else(|| tls::system_authorities())
    }

    /// Makes the settings of connections. A server that does not answer leaves time for those behind it.
    fn settings(&self, by: &Options) -> Result<LdapConnSettings, Unable> {
        let servers = u32::try_from(by.servers.len()).unwrap_or(1);
        let patience = self.config.timeout / servers.saturating_add(1);
        let settings = LdapConnSettings::new().set_conn_timeout(patience).set_starttls(by.starttls);
        if by.is_plain() {
            return Ok(settings);
        }
        Ok(settings.set_config(self.connector()?.speaking(&[])))
    }

    fn connector(&self) -> Result<&Connector, Unable> {
        if let Some(connector) = self.connector.get() {
            return Ok(connector);
        }
        let of = ConnectConfig {
            mode: ConnectMode::VerifyFull,
            ca_file: Some(PathBuf::from(self.authorities())),
            ..ConnectConfig::default()
        };
        let connector =
            Connector::new(&of)?.ok_or(tls::Error::Missing { setting: "mode", why: "it is verify-full" })?;
        Ok(self.connector.get_or_init(|| connector))
    }
}

async fn ask(question: &Question, by: &Options, server: &str, settings: &LdapConnSettings) -> Result<Verdict, Unable> {
    let failed = |source| Unable::Ldap { server: server.to_owned(), source: Box::new(source) };
    let refused = |said: &ldap3::LdapResult| Unable::Refused {
        server: server.to_owned(),
        said: format!("{} (result code {})", said.text.chars().take(200).collect::<String>(), said.rc),
    };
    // An empty password would be an anonymous bind, which succeeds.
    if question.password.expose().is_empty() {
        return Ok(Verdict::Wrong);
    }
    let name = match &by.entry {
        Entry::Named { .. } => by.entry.named(&question.user),
        Entry::Found { base, bind_dn, bind_password, scope, .. } => {
            let Some(filter) = by.entry.filter(&question.user) else { return Ok(Verdict::Wrong) };
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

/// Handles a search that the directory refuses to the rule's own user. As with PostgreSQL the login fails; the log has the reason.
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

/// A connection, closed when dropped.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn without_a_file_the_authorities_are_the_systems() {
        let config = LdapConfig::default();
        assert_eq!(Directory::of(&config).authorities(), tls::system_authorities());
        let options = Options {
            servers: vec!["ldaps://h:636".into()],
            starttls: false,
            entry: Entry::Named { prefix: String::new(), suffix: String::new() },
        };
        // ldap3 alone would report nothing here: it falls back on no CA at all.
        let missing = LdapConfig { ca_file: Some("/nowhere/ca".into()), ..config };
        let error = Directory::of(&missing).settings(&options).err().unwrap().to_string();
        assert!(error.contains("/nowhere/ca"), "{error}");
    }
}
