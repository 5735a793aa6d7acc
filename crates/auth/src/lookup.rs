//! Lookup of users that are not configured (`proxy.auth_query`), over one session with a server.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_postgres::Client;
use topology::session::Login;
use topology::{NodeId, Role, Topology};
use wire::control::AUTH_QUERY;

use proxy::LookupDesk;
use proxy::accounts::LookupResult;
use proxy::config::AuthQueryConfig;
use proxy::settings::User;

use crate::passwords::Passwords;

/// The lookup, for the life of the process.
pub struct Lookup {
    topology: Arc<Topology>,
    desk: LookupDesk,
    /// The configuration, with its password from wherever it was given.
    config: Mutex<Arc<AuthQueryConfig>>,
    /// Reader of changed passwords.
    passwords: OnceLock<Arc<Passwords>>,
    /// The session, and the configuration that it was opened with.
    session: tokio::sync::Mutex<Option<(Arc<AuthQueryConfig>, Arc<Client>)>>,
}

impl Lookup {
    /// Starts to answer the proxy's lookups.
    pub fn start(topology: Arc<Topology>, desk: LookupDesk, config: &AuthQueryConfig, runtime: &Handle) -> Arc<Lookup> {
        let config = Mutex::new(Arc::new(config.clone()));
        let (passwords, session) = (OnceLock::new(), tokio::sync::Mutex::new(None));
        let lookup = Arc::new(Lookup { topology, desk, config, passwords, session });
        let (serving, runtime) = (Arc::downgrade(&lookup), runtime.clone());
        // The asking side bounds the number of concurrent lookups.
        lookup.desk.serve(Box::new(move |user| {
            let Some(lookup) = serving.upgrade() else { return false };
            drop(runtime.spawn(async move { lookup.look_up(&user).await }));
            true
        }));
        lookup
    }

    /// Sets the passwords that are read again when a server refuses the one of the lookups.
    pub fn renew_by(&self, passwords: Arc<Passwords>) {
        // They are set already.
        let _ = self.passwords.set(passwords);
    }

    /// Takes over a new configuration.
    pub fn reload(&self, config: &AuthQueryConfig) {
        let mut known = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        // The session stays if nothing has changed.
        if **known != *config {
            *known = Arc::new(config.clone());
        }
    }

    fn config(&self) -> Arc<AuthQueryConfig> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks; and once more, if a server has refused the password and a new one was read.
    async fn ask_renewed(&self, config: Arc<AuthQueryConfig>, user: &str) -> Result<Option<Option<String>>, String> {
        let refusals = self.topology.refusals();
        let found = self.ask(&config, user).await;
        match self.passwords.get() {
            Some(passwords) if found.is_err() && self.topology.refusals() != refusals => {
                passwords.renew().await;
                self.ask(&self.config(), user).await
            }
            _ => found,
        }
    }

    async fn look_up(&self, user: &str) {
        let config = self.config();
        let found = timeout(config.timeout, self.ask_renewed(config.clone(), user));
        let found = found.await.unwrap_or_else(|_| Err(format!("no answer within {:?}", config.timeout)));
        let (answer, keep) = match found {
            Ok(Some(secret)) => {
                let name = user.to_owned();
                let keep = if secret.is_some() { config.cache } else { config.negative_cache };
                // A password in clear text costs milliseconds of hashing.
                let parsed = tokio::task::spawn_blocking(move || User::looked_up(&name, secret.as_deref())).await;
                match parsed {
                    Ok(Ok(account)) => (Ok(Some(Arc::new(account))), keep),
                    Ok(Err(error)) => {
                        tracing::warn!(user, %error, "what auth_query gives is no secret that a user can log in with");
                        (Ok(None), config.negative_cache)
                    }
                    Err(error) => (Err(error.to_string()), Duration::ZERO),
                }
            }
            Ok(None) => (Ok(None), config.negative_cache),
            Err(error) => {
                tracing::warn!(user, error, "a user could not be looked up");
                (Err(error), Duration::ZERO)
            }
        };
        let answer: LookupResult = answer;
        self.desk.answer(user, &answer, keep);
    }

    /// Returns a user's secret, if it has one; None: there is no such user, or it may not log in.
    async fn ask(&self, config: &Arc<AuthQueryConfig>, user: &str) -> Result<Option<Option<String>>, String> {
        let client = self.client(config).await?;
        let rows = client.query(&config.query, &[&user]).await.map_err(|error| match error.as_db_error() {
            Some(said) => format!("auth_query: {} (SQLSTATE {})", said.message(), said.code().code()),
            None => format!("auth_query: {error}"),
        })?;
        match rows.as_slice() {
            [] => Ok(None),
            // A function that finds no user may return a row of NULLs.
            [row] if row.len() >= 2 && matches!(row.try_get::<_, Option<String>>(0), Ok(None)) => Ok(None),
            [row] if row.len() >= 2 => row
                .try_get::<_, Option<String>>(1)
                .map(|secret| Some(secret.filter(|secret| !secret.is_empty())))
                .map_err(|error| format!("auth_query: its second column is not a text: {error}")),
            [_] => Err("auth_query gives one column, expected two: a name and a secret".into()),
            rows => Err(format!("auth_query gives {} rows, expected at most one", rows.len())),
        }
    }

    /// Returns the session, opened if there is no usable one.
    async fn client(&self, config: &Arc<AuthQueryConfig>) -> Result<Arc<Client>, String> {
        let mut session = self.session.lock().await;
        if let Some((of, client)) = &*session
            && Arc::ptr_eq(of, config)
            && !client.is_closed()
        {
            return Ok(client.clone());
        }
        *session = None;
        let login = Login {
            user: config.user.clone(),
            password: config.password.clone(),
            database: config.database.clone(),
            application: AUTH_QUERY.into(),
            timeout: config.timeout / 2,
        };
        let mut failed = "no server can be reached".to_owned();
        for node in self.nodes() {
            match self.topology.log_in(node, &login).await {
                Ok(client) => {
                    *session = Some((config.clone(), client.clone()));
                    return Ok(client);
                }
                Err(error) => failed = error.to_string(),
            }
        }
        Err(failed)
    }

    /// Returns the nodes to ask: the primary, else those with its data.
    fn nodes(&self) -> Vec<NodeId> {
        let view = self.topology.view();
        let others = view.nodes.iter().filter(|node| node.usable && node.role == Role::Replica);
        view.primary.into_iter().chain(others.map(|node| node.node.id)).collect()
    }
}
